-- Deleting jobs, alone or with all that depend on them.

-- Deletes a job. What still depends on it can only die with it.
-- Reasons: 0 requested, 1 retention, 2 too many dead letters.
create function windlass._remove(_seq bigint, _reason int, _now bigint) returns void
language plpgsql as $$
declare
  _id uuid;
  _p windlass.job_state;
  _queue_kind int;
  _waiting bigint[];
  _dependent bigint;
  _text text;
begin
  select id, queue_kind into _id, _queue_kind from windlass.job where seq = _seq;
  if not found then return; end if;
  select array_agg(e.seq order by j.id) into _waiting from windlass.dependency e
      cross join lateral (select j.id from windlass.job j where j.seq = e.seq offset 0) j
    where e.on_id = _id and not e.met;
  delete from windlass.dependency where seq = _seq;
  delete from windlass.owing where seq = _seq;
  perform windlass._emit(_now, 'job.removed', _seq, null, _reason);
  _p := windlass._lock_job(_seq);
  perform windlass._remove_from_indexes(_p);
  delete from windlass.job_state where seq = _seq;
  if _p.state = 5 then
    delete from windlass.dead d using windlass.queue_kind l
      where l.id = _p.queue_kind and d.queue = l.queue and d.at = _p.at and d.seq = _seq;
  end if;
  if _p.lane_queue is not null then
    perform windlass._add_effect('lane_changed', _p.lane_queue, _p.lane);
  end if;
  perform windlass._count(_seq, _queue_kind, _p.lane_queue, _p.lane, _p.state, null);
  delete from windlass.attempt_log where seq = _seq;
  delete from windlass.step where seq = _seq;
  delete from windlass.unique_key where seq = _seq;
  delete from windlass.job where seq = _seq;
  foreach _dependent in array coalesce(_waiting, '{}') loop
    _p := windlass._lock_job(_dependent);
    continue when _p.seq is null or _p.state <> 0;
    _text := format('depends on job %s, which was removed', _id);
    perform windlass._end(_p, _now, 5, 4, null, null, _text, _p.recoveries);
    perform windlass._emit_end(_p, _now, 5, 4, _text);
    perform windlass._cascade(_dependent, _text, _now);
  end loop;
end $$;

-- Deletes finished graphs: each of these jobs with all that depend on it, directly or through
-- others that are kept. Each is answered on its own; one that has an open job, or too many jobs, is
-- left whole.
create function windlass._remove_graphs(_ids uuid[], _now bigint)
returns table (job uuid, deed int, refusal jsonb)
language plpgsql set enable_hashjoin = off set enable_mergejoin = off as $$
#variable_conflict use_column
declare
  _most int := {BATCH_JOBS};
  _found record;
  _locked bigint[] := '{}';
begin
  -- Whoever begins to depend on a job locks it. So when all that is to be deleted is locked, nobody
  -- comes to it any more: it is looked for until it is what is locked.
  loop
    select * into _found from windlass._find_graphs(_ids, _most);
    exit when _found.finished = _locked;
    perform from windlass.job_state p where p.seq = any (_found.finished)
      order by p.seq for update;
    _locked := _found.finished;
  end loop;
  if _locked <> '{}' then perform windlass._delete_finished(_locked, 0, _now); end if;
  return query select i.id,
      case when i.jobs between 1 and _most and i.open is null then i.jobs end,
      case when i.jobs = 0 then jsonb_build_object('refusal', 'unknown_job', 'job', i.id)
        when i.jobs > _most then jsonb_build_object('refusal', 'out_of_bounds',
          'what', '{GRAPH_WHAT}', 'got', i.jobs::text,
          'allowed', windlass._at_most(_most, '{GRAPH_REMEDY}'))
        when i.open is not null then jsonb_build_object('refusal', 'wrong_state', 'job', o.id,
          'state', _found.states[i.open], 'operation', 'remove') end
    from unnest(_ids, _found.jobs, _found.open) with ordinality as i(id, jobs, open, n)
      left join lateral (
        select j.id from windlass.job j where j.seq = _found.seqs[i.open] offset 0) o on true
    order by i.n;
end $$;

-- Finds the graph of each of these jobs: how many jobs it has, and the place in `seqs` and `states`
-- of the first one that is open. A job of several graphs belongs to the first that can be deleted.
-- `finished` are the jobs of all that can.
--
-- Edges leave with the end of a job, so that who depends on whom is read from all jobs that depend
-- on any: once for all graphs, as numbers, because a query for each step, of which a chain has
-- thousands, would look at all of them again.
create function windlass._find_graphs(_ids uuid[], _most int, out seqs bigint[], out states int[],
    out jobs int[], out open int[], out finished bigint[])
language plpgsql set enable_hashjoin = off set enable_mergejoin = off as $$
#variable_conflict use_column
declare
  _gone int := 2147483647;
  _roots int[];
  _ones int[];
  _others int[];
  _first int[];
  _next int[] := '{}';
  _seen int[];
  _list int[] := '{}';
  _kept int := 0;
  _last int;
  _at int;
  _one int;
  _edge int;
  _other int;
begin
  select coalesce(array_agg(n.seq order by n.seq), '{}'), array_agg(p.state order by n.seq)
      into seqs, states from (
      select j.seq from windlass.job j where j.spec ? 'depends_on'
      union
      select j.seq from unnest(_ids) i
        cross join lateral (select j.seq from windlass.job j where j.id = i offset 0) j) n
    cross join lateral (select p.state from windlass.job_state_now p
      where p.seq = n.seq offset 0) p;
  select array_agg(case when f.seqs[width_bucket(j.seq, f.seqs)] = j.seq
      then width_bucket(j.seq, f.seqs) end order by i.n) into _roots
    from (select array(select unnest(seqs)) as seqs offset 0) f
      cross join lateral unnest(_ids) with ordinality as i(id, n)
      left join lateral (select j.seq from windlass.job j where j.id = i.id offset 0) j on true;
  select array_agg(e.one), array_agg(e.other) into _ones, _others from (
      select width_bucket(o.seq, f.seqs) as one, o.seq as on_seq, s.n::int as other, f.seqs
        from (select array(select unnest(seqs)) as seqs offset 0) f
          cross join lateral unnest(f.seqs) with ordinality as s(seq, n)
          cross join lateral (select j.spec from windlass.job j where j.seq = s.seq offset 0) j
          cross join lateral jsonb_array_elements(j.spec->'depends_on') d
          cross join lateral (
            select o.seq from windlass.job o where o.id = (d->>'on')::uuid offset 0) o) e
    where e.seqs[e.one] = e.on_seq;
  _first := array_fill(0, array[cardinality(seqs)]);
  for _e in 1..coalesce(cardinality(_ones), 0) loop
    _next[_e] := _first[_ones[_e]];
    _first[_ones[_e]] := _e;
  end loop;
  _seen := array_fill(0, array[cardinality(seqs)]);
  jobs := array_fill(0, array[cardinality(_ids)]);
  open := array_fill(null::int, array[cardinality(_ids)]);
  for _i in 1..cardinality(_ids) loop
    continue when _roots[_i] is null or _seen[_roots[_i]] = _gone;
    _at := _kept;
    _last := _kept + 1;
    _list[_last] := _roots[_i];
    _seen[_roots[_i]] := _i;
    while _at < _last loop
      _at := _at + 1;
      _one := _list[_at];
      if states[_one] < 4 then open[_i] := least(open[_i], _one); end if;
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
    jobs[_i] := _last - _kept;
    if jobs[_i] <= _most and open[_i] is null then
      for _k in _kept + 1.._last loop _seen[_list[_k]] := _gone; end loop;
      _kept := _last;
    end if;
  end loop;
  select coalesce(array_agg(seqs[l.one] order by l.one), '{}') into finished
    from unnest(_list[1 : _kept]) as l(one);
end $$;
