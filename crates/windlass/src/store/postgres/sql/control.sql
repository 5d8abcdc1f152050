-- What people do to jobs and queues.

-- The job, locked, and with what it had while it was open. Nothing if it is unknown.
create function windlass._lock_job_by_id(_id uuid) returns windlass.job_state language plpgsql as $$
declare
  _p windlass.job_state;
begin
  _p := windlass._lock_job((select j.seq from windlass.job j where j.id = _id));
  if _p.seq is null then return null; end if;
  if _p.state >= 4 and not _p.without_effects then
    _p := windlass._bind(_p, (select spec from windlass.job where seq = _p.seq));
  end if;
  return _p;
end $$;

-- Calls a job off. 0 it is cancelled, 1 its handler is asked.
create function windlass._cancel(_p windlass.job_state, _reason int, _now bigint) returns int language plpgsql as $$
begin
  if _p.state = 3 then
    if _p.cancel_requested then return 1; end if;
    update windlass.job_state set cancel_requested = true, updated_at = _now where seq = _p.seq;
    perform windlass._add_effect(5, null, null, null);
    perform windlass._emit(_now, 'job.cancel_requested', _p.seq, null);
    return 1;
  end if;
  perform windlass._end(_p, _now, 6, _reason, null, null,
    (select d.error from windlass.attempt_log d where d.seq = _p.seq), _p.recoveries);
  perform windlass._emit_end(_p, _now, 6, _reason, null);
  perform windlass._cascade(_p.seq, null, _now);
  return 0;
end $$;

-- Moves the start of a waiting job; the state it is in then.
create function windlass._reschedule(_p windlass.job_state, _at bigint, _now bigint) returns int language plpgsql as $$
declare
  _q windlass.job_state := _p;
begin
  _q.updated_at := _now;
  if _p.state = 0 then
    _q.at := _at;
  else
    _q := windlass._wait_until(_q, _at, _now);
  end if;
  perform windlass._save_job(_p, _q);
  if _q.state <> 0 then perform windlass._ring(_q.queue_kind); end if;
  perform windlass._emit(_now, 'job.scheduled', _p.seq, null, greatest(_at, _now));
  return _q.state;
end $$;

-- Lets a dead or cancelled job start over.
create function windlass._replay(_p windlass.job_state, _id uuid, _now bigint) returns void language plpgsql as $$
declare
  _j windlass.job;
  _q windlass.job_state := _p;
  _dependency jsonb;
  _state int;
  _met uuid[] := '{}';
  _unmet int := 0;
  _holder uuid;
  _queue windlass.queue;
begin
  select * into _j from windlass.job where seq = _p.seq;
  for _dependency in select d from jsonb_array_elements(coalesce(_j.spec->'depends_on', '[]')) d loop
    _state := windlass._dependency_state((_dependency->>'on')::uuid);
    if _state is null or _state = 4 or (_state > 4 and (_dependency->>'on_failure')::int = 1) then
      _met := _met || (_dependency->>'on')::uuid;
    elsif _state > 4 and (_dependency->>'on_failure')::int = 0 then
      perform windlass._refuse('a job it depends on has failed', jsonb_build_object('refusal', 'dependency_failed',
        'job', _id, 'dependency', _dependency->>'on', 'state', _state));
    else
      _unmet := _unmet + 1;
    end if;
  end loop;
  if _j.spec ? 'unique' then
    insert into windlass.unique_key as k (queue_kind, key, seq, id, until)
      values (_j.queue_kind, _j.spec->'unique'->>'key', _j.seq, _id,
        _j.created_at + (_j.spec->'unique'->>'window')::bigint)
      on conflict (queue_kind, key) do update set seq = excluded.seq, id = excluded.id, until = excluded.until
        where k.seq = excluded.seq or k.until <= _now;
    if not found then
      select k.id into _holder from windlass.unique_key k where k.queue_kind = _j.queue_kind and k.key = _j.spec->'unique'->>'key';
      perform windlass._refuse('another job holds its key', jsonb_build_object('refusal', 'key_taken', 'job', _id,
        'holder', _holder));
    end if;
  end if;
  if _p.worker is not null then
    perform windlass._log_attempt(_p, _p.at, _p.attempt_end, (select d.error from windlass.attempt_log d
      where d.seq = _p.seq and (_p.attempt_end = 1 or _p.attempt_end >= 4)));
  end if;
  update windlass.attempt_log set error = null, progress = null where seq = _p.seq;
  select q.* into _queue from windlass.queue q join windlass.queue_kind l on l.queue = q.id where l.id = _p.queue_kind;
  if _p.state = 5 then
    delete from windlass.dead where queue = _queue.id and at = _p.at and seq = _p.seq;
  end if;
  _q.attempts := 0; _q.recoveries := 0; _q.generation := _p.generation + 1; _q.begun := false;
  _q.since := null; _q.worker := null; _q.first_started := null; _q.max_attempts := null; _q.output := null;
  _q.met := nullif(_met, '{}'); _q.updated_at := _now; _q.at := _now; _q.cancel_requested := false;
  if _unmet > 0 then
    _q.state := 0;
    _q.unmet := _unmet;
  else
    _q.state := 2;
    _q.rank := windlass._rank(_queue.ageing, _j.priority, _now);
  end if;
  perform windlass._save_job(_p, _q);
  insert into windlass.dependency (on_id, seq, on_failure, met)
    select (d->>'on')::uuid, _p.seq, (d->>'on_failure')::int, (d->>'on')::uuid = any (_met)
      from jsonb_array_elements(coalesce(_j.spec->'depends_on', '[]')) d on conflict do nothing;
  perform windlass._emit(_now, 'job.replayed', _p.seq, null, _q.generation);
  if _unmet > 0 then
    perform windlass._emit(_now, 'job.blocked', _p.seq, null, _unmet);
  else
    perform windlass._ring(_q.queue_kind);
  end if;
end $$;

-- Whether a filter means a job.
create function windlass._matches(_filter jsonb, _state int, _queue_kind int, _spec jsonb, _created bigint) returns boolean
language sql stable as $$
  select (not (_filter ? 'states') or _filter->'states' @> to_jsonb(_state))
    and (not (_filter ? 'lines') or _filter->'lines' @> to_jsonb(_queue_kind))
    and (not (_filter ? 'tags') or coalesce(_spec->'tags', '[]') @> (_filter->'tags'))
    and (not (_filter ? 'from') or _created >= (_filter->>'from')::bigint)
    and (not (_filter ? 'before') or _created < (_filter->>'before')::bigint)
    and (not (_filter ? 'parent') or coalesce(_spec->>'parent' = _filter->>'parent', false))
$$;

-- The jobs a filter means, by acceptance.
create function windlass._select(_filter jsonb, _now bigint) returns uuid[] language sql as $$
  select coalesce(array_agg(j.id order by j.seq), '{}') from windlass.job j join windlass.job_state_now p on p.seq = j.seq
    where windlass._matches(_filter, case when p.state = 1 and p.at <= _now then 2 else p.state end, j.queue_kind, j.spec,
      j.created_at)
$$;

-- Each of these jobs after those of them that it depends on, otherwise by acceptance.
create function windlass._dependencies_first(_ids uuid[]) returns uuid[] language plpgsql as $$
declare
  _numbers jsonb;
  _waiting int[];
  _on int[];
  _generations int[];
begin
  select array_agg(i.id order by j.seq nulls first, i.id) into _ids
    from (select distinct unnest(_ids) as id) i
      left join lateral (select j.seq from windlass.job j where j.id = i.id offset 0) j on true;
  select jsonb_object_agg(i.id, i.n) into _numbers from unnest(_ids) with ordinality as i(id, n);
  select array_agg(d.n), array_agg(d.m) into _waiting, _on from (
      select i.n, (_numbers->>((d->>'on')::uuid::text))::int as m from unnest(_ids) with ordinality as i(id, n)
        cross join lateral (select j.spec from windlass.job j where j.id = i.id offset 0) j
        cross join lateral jsonb_array_elements(coalesce(j.spec->'depends_on', '[]')) d) d
    where d.m <> d.n;
  if _waiting is null then return _ids; end if;
  _generations := windlass._generations(cardinality(_ids), _waiting, _on);
  return array(select i.id from unnest(_ids) with ordinality as i(id, n) order by _generations[i.n], i.n);
end $$;

-- Deletes finished graphs: each of these jobs with all that depend on it, directly or through others that are kept. Each
-- is answered on its own; one that has an open job, or too many jobs, is left whole.
--
-- Edges leave with the end of a job, so that who depends on whom is read from all jobs that depend on any: once for all
-- graphs, as numbers, because a query for each step, of which a chain has thousands, would look at all of them again.
create function windlass._remove_graphs(_ids uuid[], _now bigint) returns table (job uuid, deed int, refusal jsonb)
language plpgsql set enable_hashjoin = off set enable_mergejoin = off as $$
#variable_conflict use_column
declare
  _most int := 10000;
  _gone int := 2147483647;
  _seqs bigint[];
  _states int[];
  _roots int[];
  _ones int[];
  _others int[];
  _first int[];
  _next int[];
  _seen int[];
  _jobs int[];
  _open int[];
  _list int[];
  _kept int;
  _last int;
  _at int;
  _one int;
  _edge int;
  _other int;
  _held bigint[] := '{}';
  _finished bigint[];
begin
  -- Whoever begins to depend on a job holds it. So when all that is to be deleted is held, nobody comes to it any more:
  -- it is looked for until it is what is held.
  loop
    select coalesce(array_agg(n.seq order by n.seq), '{}'), array_agg(p.state order by n.seq) into _seqs, _states from (
        select j.seq from windlass.job j where j.spec ? 'depends_on'
        union
        select j.seq from unnest(_ids) i cross join lateral (select j.seq from windlass.job j where j.id = i offset 0) j) n
      cross join lateral (select p.state from windlass.job_state_now p where p.seq = n.seq offset 0) p;
    select array_agg(case when f.seqs[width_bucket(j.seq, f.seqs)] = j.seq then width_bucket(j.seq, f.seqs) end
        order by i.n) into _roots
      from (select array(select unnest(_seqs)) as seqs offset 0) f
        cross join lateral unnest(_ids) with ordinality as i(id, n)
        left join lateral (select j.seq from windlass.job j where j.id = i.id offset 0) j on true;
    select array_agg(e.one), array_agg(e.other) into _ones, _others from (
        select width_bucket(o.seq, f.seqs) as one, o.seq as on_seq, s.n::int as other, f.seqs
          from (select array(select unnest(_seqs)) as seqs offset 0) f
            cross join lateral unnest(f.seqs) with ordinality as s(seq, n)
            cross join lateral (select j.spec from windlass.job j where j.seq = s.seq offset 0) j
            cross join lateral jsonb_array_elements(j.spec->'depends_on') d
            cross join lateral (select o.seq from windlass.job o where o.id = (d->>'on')::uuid offset 0) o) e
      where e.seqs[e.one] = e.on_seq;
    _first := array_fill(0, array[cardinality(_seqs)]);
    _next := '{}';
    for _e in 1..coalesce(cardinality(_ones), 0) loop
      _next[_e] := _first[_ones[_e]];
      _first[_ones[_e]] := _e;
    end loop;
    _seen := array_fill(0, array[cardinality(_seqs)]);
    _jobs := array_fill(0, array[cardinality(_ids)]);
    _open := array_fill(null::int, array[cardinality(_ids)]);
    _list := '{}';
    _kept := 0;
    for _i in 1..cardinality(_ids) loop
      continue when _roots[_i] is null or _seen[_roots[_i]] = _gone;
      _at := _kept;
      _last := _kept + 1;
      _list[_last] := _roots[_i];
      _seen[_roots[_i]] := _i;
      while _at < _last loop
        _at := _at + 1;
        _one := _list[_at];
        if _states[_one] < 4 then _open[_i] := least(_open[_i], _one); end if;
        _edge := _first[_one];
        while _edge > 0 loop
          _other := _others[_edge];
          if _seen[_other] < _i then
            _seen[_other] := _i;
            _last := _last + 1;
            _list[_last] := _other;
          end if;
          _edge := _next[_edge];
        end loop;
      end loop;
      _jobs[_i] := _last - _kept;
      if _jobs[_i] <= _most and _open[_i] is null then
        for _k in _kept + 1.._last loop _seen[_list[_k]] := _gone; end loop;
        _kept := _last;
      end if;
    end loop;
    select coalesce(array_agg(_seqs[l.one] order by l.one), '{}') into _finished
      from unnest(_list[1 : _kept]) as l(one);
    exit when _finished = _held;
    perform from windlass.job_state p where p.seq = any (_finished) order by p.seq for update;
    _held := _finished;
  end loop;
  if _kept > 0 then perform windlass._delete_finished(_finished, 0, _now); end if;
  return query select i.id, case when i.jobs between 1 and _most and i.open is null then i.jobs end, case
      when i.jobs = 0 then jsonb_build_object('refusal', 'unknown_job', 'job', i.id)
      when i.jobs > _most then jsonb_build_object('refusal', 'out_of_bounds', 'what', 'jobs of one graph',
        'got', i.jobs::text, 'allowed', format('at most %s are allowed; delete them by a filter', _most))
      when i.open is not null then jsonb_build_object('refusal', 'wrong_state', 'job', o.id,
        'state', _states[i.open], 'operation', 'remove') end
    from unnest(_ids, _jobs, _open) with ordinality as i(id, jobs, open, n)
      left join lateral (select j.id from windlass.job j where j.seq = _seqs[i.open] offset 0) o on true
    order by i.n;
end $$;

-- Calls off (0), moves (1), replays (2) or deletes jobs, alone (3) or with all that depend on them (4), each answered
-- on its own.
create function windlass.alter(_ids uuid[], _filter jsonb, _what int, _start_kind int, _start_us bigint)
returns table (job uuid, deed int, refusal jsonb, rings text[])
language plpgsql set lock_timeout = '10s' set plan_cache_mode = force_generic_plan set jit = off
  set enable_seqscan = off set enable_bitmapscan = off as $$
declare
  _now bigint := windlass._begin();
  _id uuid;
  _p windlass.job_state;
  _at bigint := windlass._start_time(_start_kind, _start_us, _now);
  _detail text;
  _by uuid;
  _allowed int[] := (array['{0,1,2,3}', '{0,1,2}', '{5,6}', '{4,5,6}'])[_what + 1]::int[];
begin
  if _filter is not null then _ids := windlass._select(_filter, _now); end if;
  if _what = 2 then _ids := windlass._dependencies_first(_ids); end if;
  if _what = 4 then
    return query select g.job, g.deed, g.refusal, null::text[] from windlass._remove_graphs(coalesce(_ids, '{}'), _now) g;
    return query select null::uuid, null::int, null::jsonb, windlass._apply_effects(_now);
    return;
  end if;
  -- In this order, so that two calls that name the same jobs do not wait for each other.
  perform from windlass.job_state p where p.seq = any (array(select j.seq from windlass.job j where j.id = any (_ids)))
    order by p.seq for update;
  foreach _id in array coalesce(_ids, '{}') loop
    _p := windlass._lock_job_by_id(_id);
    if _p.seq is null then
      return query select _id, null::int, jsonb_build_object('refusal', 'unknown_job', 'job', _id), null::text[];
      continue;
    elsif not _p.state = any (_allowed) then
      return query select _id, null::int, jsonb_build_object('refusal', 'wrong_state', 'job', _id, 'state', _p.state,
        'operation', (array['cancel', 'reschedule', 'replay', 'remove'])[_what + 1]), null::text[];
      continue;
    end if;
    -- An open job may read the output of one it depends on.
    if _what = 3 and _p.state = 4 then
      select j.id into _by from windlass.dependency e join windlass.job j on j.seq = e.seq where e.on_id = _id order by j.id limit 1;
      if found then
        return query select _id, null::int, jsonb_build_object('refusal', 'still_needed', 'job', _id, 'by', _by), null::text[];
        continue;
      end if;
    end if;
    begin
      if _what = 0 then
        return query select _id, windlass._cancel(_p, 0, _now), null::jsonb, null::text[];
      elsif _what = 1 then
        return query select _id, windlass._reschedule(_p, _at, _now), null::jsonb, null::text[];
      elsif _what = 2 then
        perform windlass._replay(_p, _id, _now);
        return query select _id, 0, null::jsonb, null::text[];
      else
        perform windlass._remove(_p.seq, 0, _now);
        return query select _id, 0, null::jsonb, null::text[];
      end if;
    exception when sqlstate 'WL001' then
      get stacked diagnostics _detail = pg_exception_detail;
      return query select _id, null::int, _detail::jsonb, null::text[];
    end;
  end loop;
  return query select null::uuid, null::int, null::jsonb, windlass._apply_effects(_now);
end $$;

-- Puts a new job in the place of a dead one.
create function windlass.replay_edited(_id uuid, _edited jsonb, out placed jsonb, out rings text[])
language plpgsql set lock_timeout = '10s' set plan_cache_mode = force_generic_plan set jit = off
  set enable_seqscan = off set enable_bitmapscan = off as $$
declare
  _now bigint := windlass._begin();
  _p windlass.job_state := windlass._lock_job_by_id(_id);
begin
  if _p.seq is null then
    perform windlass._refuse('unknown job', jsonb_build_object('refusal', 'unknown_job', 'job', _id));
  elsif _p.state <> 5 then
    perform windlass._refuse('not dead', jsonb_build_object('refusal', 'wrong_state', 'job', _id, 'state', _p.state,
      'operation', 'edit and replay'));
  end if;
  delete from windlass.unique_key where seq = _p.seq;
  placed := windlass._accept_batch(windlass._items(jsonb_build_array(_edited)), null, 1, _now)->0;
  delete from windlass.dead d using windlass.queue_kind l
    where l.id = _p.queue_kind and d.queue = l.queue and d.at = _p.at and d.seq = _p.seq;
  if _p.worker is not null then
    perform windlass._log_attempt(_p, _p.at, _p.attempt_end, (select d.error from windlass.attempt_log d
      where d.seq = _p.seq and (_p.attempt_end = 1 or _p.attempt_end >= 4)));
  end if;
  update windlass.job_state set state = 6, reason = 5, at = _now, updated_at = _now, attempt_end = null, worker = null,
    since = null where seq = _p.seq;
  insert into windlass.history (at, n, lows, highs) values (_now, 1, array[_p.seq], array[_p.seq]);
  perform windlass._count(_p.seq, _p.queue_kind, _p.lane_queue, _p.lane, 5, 6);
  perform windlass._emit_end(_p, _now, 6, 5, null);
  perform windlass._cascade(_p.seq, null, _now);
  perform windlass._add_effect(7, null, null, null);
  rings := windlass._apply_effects(_now);
end $$;

-- Changes one setting of a queue and answers with all of them.
create function windlass.configure(_queue text, _what text, _value jsonb, out settings jsonb, out rings text[])
language plpgsql set lock_timeout = '10s' set plan_cache_mode = force_generic_plan set jit = off
  set enable_seqscan = off set enable_bitmapscan = off as $$
declare
  _now bigint := windlass._begin();
  _q windlass.queue;
  _old windlass.queue;
  _topic text := 'queue.configured';
  _lane bigint;
begin
  select * into _q from windlass.queue where name = _queue for update;
  if not found then
    perform windlass._register_names(array[_queue], '{}');
    select * into _q from windlass.queue where name = _queue for update;
  end if;
  _old := _q;
  case _what
    when 'pause' then
      -- A claim that does not know of it yet ends first.
      perform pg_advisory_xact_lock(hashtextextended('windlass.claim', 0));
      _q.paused := true;
      _topic := 'queue.paused';
    when 'resume' then _q.paused := false; _topic := 'queue.resumed';
    when 'max_depth' then _q.max_depth := (_value #>> '{}')::bigint;
    when 'ageing' then _q.ageing := (_value #>> '{}')::bigint;
    when 'lanes' then _q.lanes := (_value #>> '{}')::int;
    when 'pause_lane' then
      _lane := (_value #>> '{}')::bigint;
      if _lane >= coalesce(_q.lanes, 0) then
        perform windlass._refuse('no such lane', jsonb_build_object('refusal', 'out_of_bounds', 'what', 'lane',
          'got', _lane::text, 'allowed', format('the queue has %s lanes, numbered from 0', coalesce(_q.lanes, 0))));
      end if;
      select array_agg(distinct l order by l) into _q.paused_lanes from unnest(_q.paused_lanes || _lane::int) l;
    when 'resume_lane' then _q.paused_lanes := array_remove(_q.paused_lanes, least((_value #>> '{}')::bigint, 2147483647)::int);
    when 'lane_depth' then _q.lane_depth := (_value #>> '{}')::bigint;
    when 'on_dead' then _q.on_dead := _value #>> '{}';
    when 'on_empty' then _q.on_empty := _value #>> '{}';
  end case;
  if _q is distinct from _old then
    if _q.on_dead is not null or _q.on_empty is not null then
      perform windlass._register_names(array_remove(array[_q.on_dead, _q.on_empty], null),
        array_remove(array[_q.on_dead, _q.on_empty], null));
    end if;
    update windlass.queue set paused = _q.paused, max_depth = _q.max_depth, ageing = _q.ageing, lanes = _q.lanes,
      paused_lanes = _q.paused_lanes, lane_depth = _q.lane_depth, on_dead = _q.on_dead, on_empty = _q.on_empty
      where id = _q.id;
    if _q.ageing is distinct from _old.ageing or _q.lanes is distinct from _old.lanes then
      perform windlass._rebuild_lanes(_q.id);
    elsif _q.paused_lanes <> _old.paused_lanes then
      insert into windlass.pending_effect (what, a, b) select 1, _q.id, l from (
        (select unnest(_q.paused_lanes) except select unnest(_old.paused_lanes))
        union (select unnest(_old.paused_lanes) except select unnest(_q.paused_lanes))) as c(l)
        where exists (select from windlass.job_state p where p.lane_queue = _q.id and p.lane = l);
    end if;
    if _old.paused and not _q.paused then perform windlass._add_effect(4, _q.id, null, null); end if;
    perform windlass._emit_once(_now, _topic, jsonb_build_object('queue', _queue));
  end if;
  settings := windlass._settings(_q);
  rings := windlass._apply_effects(_now);
end $$;

create function windlass._settings(_q windlass.queue) returns jsonb language sql as $$
  select to_jsonb(_q) - array['id', 'next_lane', 'dropped']
$$;

-- Calls off every waiting job of a queue.
create function windlass.clear(_queue text, out cleared bigint, out followed bigint, out rings text[])
language plpgsql set lock_timeout = '10s' set plan_cache_mode = force_generic_plan set jit = off
  set enable_seqscan = off set enable_bitmapscan = off as $$
declare
  _now bigint := windlass._begin();
  _q windlass.queue;
  _seq bigint;
  _p windlass.job_state;
begin
  cleared := 0;
  followed := 0;
  select * into _q from windlass.queue where name = _queue;
  if found then
    for _seq in
      select p.seq from windlass.job_state p join windlass.queue_kind l on l.id = p.queue_kind
        where l.queue = _q.id and p.state < 3 order by p.seq
    loop
      _p := windlass._lock_job(_seq);
      continue when _p.seq is null or _p.state >= 3;
      perform windlass._cancel(_p, 3, _now);
    end loop;
    select coalesce(sum(t_cancelled) filter (where queue = _q.id), 0),
        coalesce(sum(t_cancelled) filter (where queue <> _q.id), 0) into cleared, followed
      from windlass.counter_delta where xmin = pg_current_xact_id()::xid and queue_kind is not null;
    perform windlass._emit_once(_now, 'queue.cleared', jsonb_build_object('queue', _queue, 'jobs', cleared));
  end if;
  rings := windlass._apply_effects(_now);
end $$;
