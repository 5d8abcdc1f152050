-- What people do to jobs: cancel, reschedule, replay, remove.

-- Cancels a job. 0 it is cancelled, 1 its handler is asked to stop.
create function windlass._cancel(_p windlass.job_state, _reason int, _now bigint) returns int
language plpgsql as $$
begin
  if _p.state = 3 then
    if _p.cancel_requested then return 1; end if;
    update windlass.job_state set cancel_requested = true, updated_at = _now where seq = _p.seq;
    perform windlass._add_effect('ring_cancel');
    perform windlass._emit(_now, 'job.cancel_requested', _p.seq, null);
    return 1;
  end if;
  perform windlass._end(_p, _now, 6, _reason, null, null,
    (select d.error from windlass.attempt_log d where d.seq = _p.seq), _p.recoveries);
  perform windlass._emit_end(_p, _now, 6, _reason, null);
  perform windlass._cascade(_p.seq, null, _now);
  return 0;
end $$;

-- Cancels these jobs, which are locked, all at once, if each of them is ready, has never started
-- and its end concerns nobody else, as with most. Answers whether it did; if not, nothing was done.
create function windlass._cancel_plain(_seqs bigint[], _reason int, _now bigint) returns boolean
language plpgsql set enable_hashjoin = off set enable_mergejoin = off as $$
declare
  _ranges record;
begin
  -- It is ready if it is in `ready`, from where no claim takes it from now on.
  if cardinality(_seqs) = 0 or cardinality(_seqs) > (select count(*) from windlass.job_state p
      cross join lateral (select from windlass.ready r where r.queue_kind = p.queue_kind
        and r.rank = p.rank and r.at = p.at and r.seq = p.seq offset 0 for update) r
      where p.seq = any (_seqs)
        and windlass._never_started(p.state, p.begun, p.generation, p.without_effects))
    or exists (select from windlass.dependency) and exists (select from unnest(_seqs) as s(seq)
      cross join lateral (select j.id from windlass.job j where j.seq = s.seq offset 0) j
      cross join lateral (select from windlass.dependency e where e.on_id = j.id offset 0) e)
  then
    return false;
  end if;
  select * into _ranges from windlass._to_ranges(array(select s from unnest(_seqs) s order by s));
  perform windlass._remove_from_ready(_seqs);
  update windlass.job_state set state = 6, at = _now, updated_at = _now, reason = _reason
    where seq = any (_seqs);
  insert into windlass.history (at, n, lows, highs)
    values (_now, cardinality(_seqs), _ranges.lows, _ranges.highs);
  with gone as materialized (
    select s.n, j.id, j.queue_kind, j.priority, l.queue
      from unnest(_seqs) with ordinality as s(seq, n)
        cross join lateral (select j.id, j.queue_kind, j.priority from windlass.job j
            where j.seq = s.seq offset 0) j
        cross join lateral (select l.queue from windlass.queue_kind l
            where l.id = j.queue_kind offset 0) l
  ), counted as (
    insert into windlass.counter_delta (queue_kind, queue, ready, cancelled, t_cancelled)
      select queue_kind, queue, -count(*), count(*), count(*) from gone
          group by queue_kind, queue
  ), ranked as (
    insert into windlass.counter_delta (queue, priority, ready)
      select queue, priority, -count(*) from gone where priority <> 0 group by queue, priority
  ), owed as (
    insert into windlass.pending_effect (effect, queue)
      select 'queue_drained'::windlass.effect, queue from gone group by queue
      union all select 'history_grown', null
  )
  insert into windlass.event (at, n, topic, jobs, queue_kinds, a)
    select _now, count(*), 'job.cancelled', array_agg(id order by n),
        array_agg(queue_kind order by n), array_agg(_reason::bigint)
      from gone group by (n - 1) / {EVENTS_PER_ROW} order by min(n);
  return true;
end $$;

-- Reschedules a waiting job; the state it is in then.
create function windlass._reschedule(_p windlass.job_state, _at bigint, _now bigint) returns int
language plpgsql as $$
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
  if _q.state <> 0 then perform windlass._ring(array[_q.queue_kind]); end if;
  perform windlass._emit(_now, 'job.scheduled', _p.seq, null, greatest(_at, _now));
  return _q.state;
end $$;

-- Lets a dead or cancelled job start over.
create function windlass._replay(_p windlass.job_state, _id uuid, _now bigint) returns void
language plpgsql as $$
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
  for _dependency in select d
      from jsonb_array_elements(coalesce(_j.spec->'depends_on', '[]')) d loop
    _state := windlass._dependency_state((_dependency->>'on')::uuid);
    if _state is null or _state = 4 or (_state > 4 and (_dependency->>'on_failure')::int = 1) then
      _met := _met || (_dependency->>'on')::uuid;
    elsif _state > 4 and (_dependency->>'on_failure')::int = 0 then
      perform windlass._refuse(jsonb_build_object('refusal', 'dependency_failed', 'job', _id,
        'dependency', _dependency->>'on', 'state', _state));
    else
      _unmet := _unmet + 1;
    end if;
  end loop;
  if _j.spec ? 'unique' then
    insert into windlass.unique_key as k (queue_kind, key, seq, id, until)
      values (_j.queue_kind, _j.spec->'unique'->>'key', _j.seq, _id,
        _j.created_at + (_j.spec->'unique'->>'window')::bigint)
      on conflict (queue_kind, key) do update set seq = excluded.seq, id = excluded.id,
          until = excluded.until
        where k.seq = excluded.seq or k.until <= _now;
    if not found then
      select k.id into _holder from windlass.unique_key k where k.queue_kind = _j.queue_kind
          and k.key = _j.spec->'unique'->>'key';
      perform windlass._refuse(jsonb_build_object('refusal', 'key_taken', 'job', _id,
        'holder', _holder));
    end if;
  end if;
  if _p.worker is not null then
    perform windlass._log_attempt(_p, _p.at, _p.attempt_end,
        (select d.error from windlass.attempt_log d
      where d.seq = _p.seq and (_p.attempt_end = 1 or _p.attempt_end >= 4)));
  end if;
  update windlass.attempt_log set error = null, progress = null where seq = _p.seq;
  select q.* into _queue from windlass.queue q join windlass.queue_kind l on l.queue = q.id
      where l.id = _p.queue_kind;
  if _p.state = 5 then
    delete from windlass.dead where queue = _queue.id and at = _p.at and seq = _p.seq;
  end if;
  _q.attempts := 0; _q.recoveries := 0; _q.generation := _p.generation + 1; _q.begun := false;
  _q.settled := false;
  _q.since := null; _q.worker := null; _q.first_started := null; _q.max_attempts := null;
  _q.output := null;
  _q.met := nullif(_met, '{}'); _q.updated_at := _now; _q.at := _now; _q.cancel_requested := false;
  if _unmet > 0 then
    _q.state := 0;
    _q.unmet := _unmet;
  else
    _q.state := 2;
    _q.rank := windlass._rank(_queue.ageing, _j.priority, _now);
  end if;
  perform windlass._save_job(_p, _q);
  -- Those it has not told wait for it again.
  delete from windlass.owing where seq = _p.seq;
  insert into windlass.dependency (on_id, seq, on_failure, met)
    select (d->>'on')::uuid, _p.seq, (d->>'on_failure')::int, (d->>'on')::uuid = any (_met)
      from jsonb_array_elements(coalesce(_j.spec->'depends_on', '[]')) d on conflict do nothing;
  perform windlass._emit(_now, 'job.replayed', _p.seq, null, _q.generation);
  if _unmet > 0 then
    perform windlass._emit(_now, 'job.blocked', _p.seq, null, _unmet);
  else
    perform windlass._ring(array[_q.queue_kind]);
  end if;
end $$;

-- Whether a filter means a job.
create function windlass._matches(_filter jsonb, _state int, _queue_kind int, _spec jsonb,
    _created bigint) returns boolean
language sql stable as $$
  select (not (_filter ? 'states') or _filter->'states' @> to_jsonb(_state))
    and (not (_filter ? 'queue_kinds') or _filter->'queue_kinds' @> to_jsonb(_queue_kind))
    and (not (_filter ? 'tags') or coalesce(_spec->'tags', '[]') @> (_filter->'tags'))
    and (not (_filter ? 'from') or _created >= (_filter->>'from')::bigint)
    and (not (_filter ? 'before') or _created < (_filter->>'before')::bigint)
    and (not (_filter ? 'parent') or coalesce(_spec->>'parent' = _filter->>'parent', false))
$$;

-- The numbers of the jobs after `_after` and up to `_until` that a filter may mean, by acceptance,
-- at most as many as are looked at in one call. There are indexes of jobs by their parent, and of
-- those that wait for another, so that no others need be looked at.
create function windlass._scan_jobs(_filter jsonb, _after bigint, _until bigint) returns bigint[]
language plpgsql as $$
begin
  if _filter ? 'blocked_by' then
    return array(select d.seq from windlass.dependency d
      where d.on_id = (_filter->>'blocked_by')::uuid and d.seq > _after and d.seq <= _until
        and not d.met
      order by d.seq limit {PAGE_SCAN});
  elsif _filter ? 'parent' then
    return array(select j.seq from windlass.job j
      where j.spec ? 'parent' and j.spec->>'parent' = _filter->>'parent'
        and j.seq > _after and j.seq <= _until
      order by j.seq limit {PAGE_SCAN});
  end if;
  return array(select j.seq from windlass.job j where j.seq > _after and j.seq <= _until
    order by j.seq limit {PAGE_SCAN});
end $$;

-- The next jobs a filter means after `_after`, by acceptance, as many as one commit changes; and up
-- to where they were looked for, null if none is left up to `_until`.
create function windlass._select(_filter jsonb, _after bigint, _until bigint, _most int,
    _now bigint, out ids uuid[], out looked_to bigint)
language plpgsql set enable_hashjoin = off set enable_mergejoin = off as $$
declare
  _scanned bigint[] := windlass._scan_jobs(_filter, _after, _until);
begin
  -- Not sorted, so that it stops at the last one that is wanted: they are in this order.
  select coalesce(array_agg(m.id order by m.seq), '{}'), max(m.seq) into ids, looked_to from (
    select j.id, s.seq from unnest(_scanned) as s(seq)
      cross join lateral (select j.id, j.queue_kind, j.spec, j.created_at from windlass.job j
          where j.seq = s.seq offset 0) j
      cross join lateral (select p.state, p.at from windlass.job_state_now p
          where p.seq = s.seq offset 0) p
    where windlass._matches(_filter, case when p.state = 1 and p.at <= _now then 2
        else p.state end, j.queue_kind, j.spec, j.created_at)
    limit _most) m;
  if cardinality(ids) < _most then
    looked_to := case when cardinality(_scanned) = {PAGE_SCAN} then _scanned[{PAGE_SCAN}] end;
  end if;
end $$;

-- The numbers of these jobs in their order; none, if one is unknown or named twice.
create function windlass._each_once(_ids uuid[]) returns bigint[] language plpgsql as $$
declare
  _seqs bigint[] := array(select j.seq from unnest(_ids) with ordinality as i(id, n)
    cross join lateral (select j.seq from windlass.job j where j.id = i.id offset 0) j
    order by i.n);
begin
  return case when cardinality(_seqs) = cardinality(_ids)
      and cardinality(_seqs) = (select count(distinct s) from unnest(_seqs) s)
    then _seqs else '{}' end;
end $$;

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
      select i.n, (_numbers->>((d->>'on')::uuid::text))::int as m
          from unnest(_ids) with ordinality as i(id, n)
        cross join lateral (select j.spec from windlass.job j where j.id = i.id offset 0) j
        cross join lateral jsonb_array_elements(coalesce(j.spec->'depends_on', '[]')) d) d
    where d.m <> d.n;
  if _waiting is null then return _ids; end if;
  _generations := windlass._generations(cardinality(_ids), _waiting, _on);
  return array(select i.id from unnest(_ids) with ordinality as i(id, n)
      order by _generations[i.n], i.n);
end $$;

-- Cancels (0), reschedules (1), replays (2) or deletes jobs, alone (3) or with all that depend on
-- them (4), each answered on its own. By a filter it changes the next `_most` jobs after `_after`
-- and up to `_until`, the last job there is if that is null; a job that somebody else has changed
-- before it was locked, so that the filter no longer means it, is passed over. The last row says
-- `_until`, and up to where it has looked, null if nothing is left to look at.
create function windlass.alter(_ids uuid[], _filter jsonb, _after bigint, _until bigint, _most int,
    _what int, _start_kind int, _start_us bigint, _by text default null)
returns table (job uuid, deed int, refusal jsonb, rings text[], looked_to bigint, until bigint)
language plpgsql set lock_timeout = '10s' set plan_cache_mode = force_generic_plan set jit = off
  set enable_seqscan = off set enable_bitmapscan = off as $$
declare
  _now bigint := windlass.now_us();
  _id uuid;
  _p windlass.job_state;
  _at bigint;
  _detail text;
  _needed_by uuid;
  _changed bigint := 0;
  _looked_to bigint;
  _allowed int[] := (array['{0,1,2,3}', '{0,1,2}', '{5,6}', '{4,5,6}'])[_what + 1]::int[];
begin
  perform windlass._require_read_committed();
  if _filter is not null then
    _until := coalesce(_until, (select max(j.seq) from windlass.job j), 0);
    select s.ids, s.looked_to into _ids, _looked_to
      from windlass._select(_filter, _after, _until, _most, _now) s;
  end if;
  if _what <> 4 then
    -- In this order, so that two calls that name the same jobs do not wait for each other.
    perform from windlass.job_state p
      where p.seq = any (array(select j.seq from windlass.job j where j.id = any (_ids)))
      order by p.seq for update;
    _now := windlass.now_us();
  end if;
  if windlass._pass_time(_now) > 0 and _filter is not null then
    select s.ids, s.looked_to into _ids, _looked_to
      from windlass._select(_filter, _after, _until, _most, _now) s;
  end if;
  if _what = 4 then
    for job, deed, refusal in
      select g.job, g.deed, g.refusal from windlass._remove_graphs(coalesce(_ids, '{}'), _now) g
    loop
      _changed := _changed + coalesce(deed, 0);
      return next;
    end loop;
    if _changed > 0 then perform windlass._audit(_by, _changed, _now); end if;
    return query select null::uuid, null::int, null::jsonb, windlass._apply_effects(_now),
      _looked_to, _until;
    return;
  end if;
  _at := windlass._start_time(_start_kind, _start_us, _now);
  if _what = 2 then _ids := windlass._dependencies_first(_ids); end if;
  -- All of these are ready if it cancels any.
  if _what = 0 and coalesce(_filter->'states' @> '2', true)
      and windlass._cancel_plain(windlass._each_once(_ids), 0, _now) then
    perform windlass._audit(_by, cardinality(_ids), _now);
    return query select i.id, 0, null::jsonb, null::text[], null::bigint, null::bigint
      from unnest(_ids) with ordinality as i(id, n) order by i.n;
    _ids := '{}';
  end if;
  foreach _id in array coalesce(_ids, '{}') loop
    _p := windlass._lock_job_by_id(_id);
    -- Nothing but its state can have changed since it was selected.
    if _filter is not null and (_p.seq is null or not coalesce(_filter->'states'
        @> to_jsonb(case when _p.state = 1 and _p.at <= _now then 2 else _p.state end), true)) then
      continue;
    elsif _p.seq is null then
      return query select _id, null::int, jsonb_build_object('refusal', 'unknown_job', 'job', _id),
          null::text[], null::bigint, null::bigint;
      continue;
    elsif not _p.state = any (_allowed) then
      return query select _id, null::int, jsonb_build_object('refusal', 'wrong_state', 'job', _id,
          'state', _p.state,
        'operation', (array['cancel', 'reschedule', 'replay', 'remove'])[_what + 1]), null::text[],
        null::bigint, null::bigint;
      continue;
    end if;
    -- An open job may read the output of one it depends on; and those that wait for one that did
    -- not complete would all follow it in this commit.
    if _what = 3 and (_p.state = 4 or windlass._many_wait_for(_id)) then
      select j.id into _needed_by from windlass.dependency e join windlass.job j on j.seq = e.seq
          where e.on_id = _id order by j.id limit 1;
      if found then
        return query select _id, null::int, jsonb_build_object('refusal', 'still_needed', 'job',
            _id, 'by', _needed_by), null::text[], null::bigint, null::bigint;
        continue;
      end if;
    end if;
    begin
      deed := 0;
      case _what
        when 0 then deed := windlass._cancel(_p, 0, _now);
        when 1 then deed := windlass._reschedule(_p, _at, _now);
        when 2 then perform windlass._replay(_p, _id, _now);
        else perform windlass._remove(_p.seq, 0, _now);
      end case;
      _changed := _changed + 1;
      return query select _id, deed, null::jsonb, null::text[], null::bigint, null::bigint;
    exception when sqlstate 'WL001' then
      get stacked diagnostics _detail = pg_exception_detail;
      return query select _id, null::int, _detail::jsonb, null::text[], null::bigint, null::bigint;
    end;
  end loop;
  if _changed > 0 then perform windlass._audit(_by, _changed, _now); end if;
  return query select null::uuid, null::int, null::jsonb, windlass._apply_effects(_now), _looked_to,
      _until;
end $$;
