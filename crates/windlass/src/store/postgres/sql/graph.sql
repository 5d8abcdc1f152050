-- Who waits for whom, and what spreads when a job ends.

-- Tells a finished job's dependents, theirs if they follow, and so on.
create function windlass._spread(_root bigint, _error text, _now bigint) returns void language plpgsql as $$
declare
  _stack bigint[] := array[_root];
  _seq bigint;
  _id uuid;
  _root_id uuid;
  _state int;
  _edge record;
  _next bigint;
begin
  select id into _root_id from windlass.job where seq = _root;
  while cardinality(_stack) > 0 loop
    _seq := _stack[cardinality(_stack)];
    _stack := _stack[1 : cardinality(_stack) - 1];
    select j.id, p.state into _id, _state from windlass.job j join windlass.place p using (seq) where j.seq = _seq;
    delete from windlass.edge where seq = _seq;
    for _edge in
      select e.seq, e.on_failure from windlass.edge e
          cross join lateral (select j.id from windlass.job j where j.seq = e.seq offset 0) j
        where e.on_id = _id and not e.met order by j.id
    loop
      if _state <> 4 and _edge.on_failure = 2 then
        continue;
      elsif _state <> 4 and _edge.on_failure = 0 then
        _next := windlass._follow(_edge.seq, _id, _root_id, _state, _error, _now);
        if _next is not null then _stack := _stack || _next; end if;
      else
        perform windlass._release(_id, _edge.seq, _now);
      end if;
    end loop;
  end loop;
end $$;

-- A blocked job dies or is cancelled with one it depends on.
create function windlass._follow(_seq bigint, _on uuid, _root uuid, _state int, _error text, _now bigint)
returns bigint language plpgsql as $$
declare
  _p windlass.place := windlass._hold(_seq);
  _word text := windlass._state_name(_state);
  _text text;
begin
  if _p.seq is null or _p.state <> 0 then return null; end if;
  _text := case when _on = _root
    then format('depends on job %s, which is %s: %s', _on, _word, coalesce(_error, _word))
    else format('depends on job %s, which is %s because job %s failed: %s', _on, _word, _root,
                coalesce(_error, _word)) end;
  perform windlass._end(_p, _now, case when _state = 6 then 6 else 5 end, 4, null, null, _text, _p.recoveries);
  perform windlass._tell_end(_p, _now, case when _state = 6 then 6 else 5 end, 4, _text);
  return _seq;
end $$;

-- One of a blocked job's dependencies is met.
create function windlass._release(_on uuid, _seq bigint, _now bigint) returns void language plpgsql as $$
declare
  _p windlass.place := windlass._hold(_seq);
  _q windlass.place;
begin
  update windlass.edge set met = true where on_id = _on and seq = _seq;
  if _p.seq is null or _p.state <> 0 then return; end if;
  _q := _p;
  _q.updated_at := _now;
  _q.met := coalesce(_p.met, '{}') || _on;
  if _p.unmet > 1 then
    _q.unmet := _p.unmet - 1;
    perform windlass._put(_p, _q);
    return;
  end if;
  _q.unmet := null;
  _q := windlass._wait_until(_q, _p.at, _now);
  perform windlass._put(_p, _q);
  perform windlass._tell(_now, 'job.unblocked', _seq, null);
  if _q.state = 1 then
    perform windlass._tell(_now, 'job.scheduled', _seq, null, _q.at);
  end if;
  perform windlass._ring(_q.line);
end $$;

-- Deletes a job, finished or called off. What still waited for it can only follow it.
-- Reasons: 0 requested, 1 retention, 2 too many dead letters.
create function windlass._remove(_seq bigint, _reason int, _now bigint) returns void language plpgsql as $$
declare
  _id uuid;
  _p windlass.place;
  _line int;
  _waiting bigint[];
  _dependent bigint;
  _text text;
begin
  select id, line into _id, _line from windlass.job where seq = _seq;
  if not found then return; end if;
  select array_agg(e.seq order by j.id) into _waiting from windlass.edge e
      cross join lateral (select j.id from windlass.job j where j.seq = e.seq offset 0) j
    where e.on_id = _id and not e.met;
  delete from windlass.edge where seq = _seq;
  perform windlass._tell(_now, 'job.removed', _seq, null, _reason);
  _p := windlass._hold(_seq);
  perform windlass._unlist(_p);
  delete from windlass.place where seq = _seq;
  if _p.state = 5 then
    delete from windlass.dead d using windlass.line l
      where l.id = _p.line and d.queue = l.queue and d.at = _p.at and d.seq = _seq;
  end if;
  if _p.lane_queue is not null then
    perform windlass._after(1, _p.lane_queue, _p.lane, null);
  end if;
  perform windlass._count(_seq, _line, _p.lane_queue, _p.lane, _p.state, null);
  delete from windlass.diary where seq = _seq;
  delete from windlass.step where seq = _seq;
  delete from windlass.key where seq = _seq;
  delete from windlass.job where seq = _seq;
  foreach _dependent in array coalesce(_waiting, '{}') loop
    _p := windlass._hold(_dependent);
    continue when _p.seq is null or _p.state <> 0;
    _text := format('depends on job %s, which was removed', _id);
    perform windlass._end(_p, _now, 5, 4, null, null, _text, _p.recoveries);
    perform windlass._tell_end(_p, _now, 5, 4, _text);
    perform windlass._spread(_dependent, _text, _now);
  end loop;
end $$;
