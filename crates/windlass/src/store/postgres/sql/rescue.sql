-- Jobs whose lease has ended are given back.

-- Gives back jobs whose lease has ended, or with `_all` every job that runs; with `_observe` only
-- tells of them. Reasons: 0 the lease was not renewed, 1 a restart, 2 someone said so.
--
-- Jobs that will be tried again and are without side effects are given back all at once
-- (`_rescue_batch`), the others one by one (`_rescue_one`). Nothing here waits for a job: what
-- others hold is left to the next rescue.
create function windlass.rescue(_observe boolean, _max_recoveries int, _delay bigint, _reason int,
    _all boolean)
returns table (id uuid, state int, more boolean, next_in bigint, rings text[])
language plpgsql set lock_timeout = '10s' set plan_cache_mode = force_generic_plan set jit = off
  set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
  set enable_sort = off set enable_bitmapscan = off as $$
#variable_conflict use_column
declare
  _now bigint := windlass._begin();
  _text text := 'crashed: its worker was lost while running it';
  _p windlass.job_state;
  _lease windlass.lease;
  _due bigint[];
  _seqs bigint[];
  _seen int := 0;
  _jobs uuid[];
  _states int[];
  _ends bigint[];
begin
  select array_agg(s.token) into _due from (
    select s.token from windlass.lease s
      where (_all or s.until <= _now) and (not s.reported or not _observe)
      order by s.until limit {SWEEP_BATCH} for update skip locked) s;
  perform windlass._materialize_lease(array_agg(s.token), array_agg(r.low), array_agg(r.high),
      {SWEEP_BATCH})
    from windlass.lease s cross join lateral unnest(s.lows, s.highs) as r(low, high)
    where s.token = any (_due);
  _seqs := array(select p.seq from windlass.lease s
      cross join lateral unnest(s.lows, s.highs) as r(low, high)
      cross join lateral (select p.seq, p.at, p.token from windlass.job_state p
        where p.seq between r.low and r.high and p.state = 3
          and windlass._lease_of(p.token) = s.token
          and (_all or p.at <= _now) and (not p.reported or not _observe) offset 0) p
    where s.token = any (_due) order by p.at, p.token limit {SWEEP_BATCH});
  if not _observe then
    select * into _jobs, _states, _ends
      from windlass._rescue_batch(_seqs, _max_recoveries, _delay, _reason, _all, _text, _now);
    _seen := coalesce(cardinality(_jobs), 0);
  end if;
  for _p in
    select p.* from windlass.job_state p
      where p.seq = any (_seqs) and p.state = 3 and (_all or p.at <= _now)
        and (not p.reported or not _observe)
      order by p.at, p.token for update of p skip locked
  loop
    _seen := _seen + 1;
    perform windlass._emit(_now, 'recovery.detected', _p.seq,
      jsonb_build_object('reason', _reason), _p.attempts, _now - _p.since);
    if _observe then
      update windlass.job_state p set reported = true where p.seq = _p.seq;
    else
      _jobs := _jobs || (select j.id from windlass.job j where j.seq = _p.seq);
      _states := _states
        || windlass._rescue_one(_p, _max_recoveries, _delay, _reason, _text, _now);
      _ends := _ends || _p.at;
    end if;
  end loop;
  return query select r.job, r.state, null::boolean, null::bigint, null::text[]
    from unnest(_jobs, _states, _ends) with ordinality as r(job, state, ended, n)
    order by r.ended, r.n;
  perform windlass._shrink_lease(s) from windlass.lease s where s.token = any (_due);
  -- What has ended or was renewed since is not what is next.
  loop
    select * into _lease from windlass.lease s where not s.reported order by s.until limit 1
      for update skip locked;
    exit when not found or windlass._shrink_lease(_lease) is not distinct from _lease.until;
  end loop;
  return query select null::uuid, null::int,
    _seen >= {SWEEP_BATCH} or coalesce(cardinality(_due), 0) >= {SWEEP_BATCH},
    (select greatest(s.until - _now, 0) from windlass.lease s
      where not s.reported order by s.until limit 1), windlass._apply_effects(_now);
end $$;

-- Gives one job back that is locked; the state it is in then. Ends of an attempt are those of
-- `_emit_settled`.
create function windlass._rescue_one(_p windlass.job_state, _max_recoveries int, _delay bigint,
    _reason int, _text text, _now bigint) returns int language plpgsql as $$
declare
  _q windlass.job_state;
  _o windlass.object;
  _state int;
begin
  if _p.cancel_requested then
    _state := 6;
    perform windlass._end(_p, _now, 6, 0, 5 + _reason, null, _text, _p.recoveries);
  elsif _p.attempts >= _p.max_attempts or _p.recoveries >= _max_recoveries then
    _state := 5;
    perform windlass._end(_p, _now, 5, 3, 9, null, _text, _p.recoveries);
  else
    _state := 1;
    _q := _p;
    _q.state := 1;
    _q.at := _now + _delay;
    _q.recoveries := _p.recoveries + 1;
    _q.updated_at := _now;
    perform windlass._log_attempt(_p, _now, 5 + _reason, _text);
    update windlass.attempt_log set recovered_at = _now where seq = _p.seq;
    perform windlass._save_job(_p, _q);
    perform windlass._ring(array[_p.queue_kind]);
  end if;
  perform windlass._ring_turned_away(array[_p.queue_kind]);
  perform windlass._count_total(_p.queue_kind, _p.lane_queue, _p.lane, 'rescued');
  perform windlass._emit_settled(_p, _now, _state, case _state when 6 then 0 when 5 then 3 end,
    _q.at, 5, _text);
  if _state = 1 then
    perform windlass._emit(_now, 'job.recovered', _p.seq,
      jsonb_build_object('reason', _reason, 'recovery', _q.recoveries), _p.attempts,
      _now - _p.since);
    update windlass.object o set recoveries = o.recoveries + 1, last_recovery_at = _now,
        version = o.version + 1, updated_at = _now
      where o.address = _p.object returning * into _o;
    if found then
      perform windlass._emit_once(_now, _o.kind || '.recovered', jsonb_build_object(
        'object', jsonb_build_array(_o.kind, _o.name, _o.key),
        'detail', format('{"job":"%s","attempt":%s}',
          (select j.id from windlass.job j where j.seq = _p.seq), _o.recoveries)));
    end if;
  elsif _state = 5 then
    perform windlass._emit(_now, 'recovery.exhausted', _p.seq, null, _p.recoveries);
  end if;
  if _state >= 4 then perform windlass._cascade(_p.seq, _text, _now); end if;
  return _state;
end $$;

-- The same for jobs that will be tried again and have no lane or object: all at once.
-- tests/postgres/bulk.rs compares both.
create function windlass._rescue_batch(_seqs bigint[], _max_recoveries int, _delay bigint,
    _reason int, _all boolean,
    _text text, _now bigint, out jobs uuid[], out states int[], out ends bigint[])
language plpgsql as $$
declare
  _queue_kinds int[];
  _attempts bigint[];
  _recoveries bigint[];
  _stale bigint[];
  _workers text[];
  _of_jobs int[];
begin
  with lost as (
    select p.*, j.id, j.priority, l.queue
      from unnest(_seqs) x(seq)
        cross join lateral (
          select p.seq, p.queue_kind, p.attempts, p.recoveries, p.since, p.worker, p.at, p.token
              from windlass.job_state p
            where p.seq = x.seq and p.state = 3 and (_all or p.at <= _now)
                and not p.cancel_requested
              and p.attempts < p.max_attempts and p.recoveries < _max_recoveries
              and p.lane_queue is null and p.object is null offset 0
            for update skip locked) p
        cross join lateral (select j.id, j.priority from windlass.job j
            where j.seq = x.seq offset 0) j
        cross join lateral (select l.queue from windlass.queue_kind l
            where l.id = p.queue_kind offset 0) l
  ), back as (
    update windlass.job_state p set state = 1, at = _now + _delay, recoveries = p.recoveries + 1,
        updated_at = _now, offered = false, attempt_end = null, reason = null
      where p.seq = any (array(select seq from lost))
  ), waiting as (
    insert into windlass.scheduled (at, seq) select _now + _delay, seq from lost
  ), noted as (
    insert into windlass.attempt_log as d (seq, attempts, error, recovered_at)
      select seq, jsonb_build_array(jsonb_build_object('number', attempts, 'worker', worker,
          'started', since,
          'ended', _now, 'end', 5 + _reason, 'error', _text)), _text, _now from lost
      on conflict (seq) do update set
        attempts = case when jsonb_array_length(coalesce(d.attempts, '[]')) >= {ATTEMPTS_KEPT}
          then (d.attempts - 0) || excluded.attempts else coalesce(d.attempts,
              '[]') || excluded.attempts end,
        attempts_dropped = d.attempts_dropped + (jsonb_array_length(coalesce(d.attempts, '[]'))
            >= {ATTEMPTS_KEPT})::int, error = excluded.error, recovered_at = excluded.recovered_at
  ), counted as (
    insert into windlass.counter_delta (queue_kind, queue, scheduled, running, t_failed, t_retried,
        t_rescued)
      select queue_kind, queue, count(*), -count(*), count(*), count(*), count(*) from lost
          group by queue_kind, queue
  ), ranked as (
    insert into windlass.counter_delta (queue, priority, ready)
      select queue, priority, count(*) from lost where priority <> 0 group by queue, priority
  )
  select array_agg(id order by at, token), array_agg(1 order by at, token),
      array_agg(at order by at, token),
      array_agg(queue_kind order by at, token), array_agg(attempts::bigint order by at, token),
      array_agg(recoveries + 1::bigint order by at, token), array_agg(_now - since order by at,
          token), array_agg(worker order by at, token), array_agg(distinct queue_kind)
    into jobs, states, ends, _of_jobs, _attempts, _recoveries, _stale, _workers, _queue_kinds
        from lost;
  if jobs is null then return; end if;
  insert into windlass.event (at, n, topic, jobs, queue_kinds, a, b, detail)
    values (_now, cardinality(jobs), 'recovery.detected', jobs, _of_jobs, _attempts, _stale,
      jsonb_build_object('reason', _reason));
  insert into windlass.event (at, n, topic, jobs, queue_kinds, a, b, detail)
    select _now, count(*), 'job.failed', array_agg(j.id order by j.n), array_agg(j.queue_kind
        order by j.n), array_agg(j.attempt order by j.n), array_agg(_now + _delay),
        jsonb_build_object('worker', j.worker, 'error', _text)
      from unnest(jobs, _of_jobs, _attempts, _workers) with ordinality as j(id, queue_kind,
          attempt, worker, n)
      group by j.worker;
  insert into windlass.event (at, n, topic, jobs, queue_kinds, a, b)
    values (_now, cardinality(jobs), 'job.retrying', jobs, _of_jobs, _attempts,
      array_fill(_now + _delay, array[cardinality(jobs)]));
  insert into windlass.event (at, n, topic, jobs, queue_kinds, a, b, detail)
    select _now, count(*), 'job.recovered', array_agg(j.id order by j.n), array_agg(j.queue_kind
        order by j.n), array_agg(j.attempt order by j.n), array_agg(j.stale order by j.n),
        jsonb_build_object('reason', _reason, 'recovery', j.recovery)
      from unnest(jobs, _of_jobs, _attempts, _stale, _recoveries) with ordinality
        as j(id, queue_kind, attempt, stale, recovery, n)
      group by j.recovery;
  perform windlass._ring(_queue_kinds);
  perform windlass._ring_turned_away(_queue_kinds);
end $$;

-- Makes a lease end when the first of its jobs' leases does; it goes with the last. Leases that
-- were only told of keep it until someone acts on them.
create function windlass._shrink_lease(_lease windlass.lease) returns bigint language plpgsql as $$
declare
  _until bigint;
  _reported boolean;
begin
  select min(r.until), bool_and(r.reported) into _until, _reported
      from windlass._running_under(_lease) r;
  if _until is null then
    delete from windlass.lease where token = _lease.token;
  elsif _until <> _lease.until or _reported <> _lease.reported then
    update windlass.lease set until = _until, reported = _reported where token = _lease.token;
    if _reported then _until := null; end if;
  end if;
  return _until;
end $$;
