-- An attempt goes on, has ended, or its worker is lost.

-- Whether a running job may have these steps as well as those it has.
create function windlass._admit_steps(_seq bigint, _steps jsonb) returns void language plpgsql as $$
declare
  _all record;
  _largest bigint;
begin
  select max(octet_length(s->>'result') / 2) into _largest from jsonb_array_elements(_steps) s;
  if _largest > 131072 then
    perform windlass._refuse(format('a step''s result in bytes is %s; at most 131072 are allowed', _largest),
      jsonb_build_object('refusal', 'out_of_bounds', 'what', 'a step''s result in bytes', 'got', _largest::text,
        'allowed', 'at most 131072 are allowed; store the data elsewhere, and return its address'));
  end if;
  select count(*) as n, sum(bytes) as bytes into _all from (
    select name, octet_length(result) as bytes from windlass.step where seq = _seq
    union all
    select s.name, s.bytes from (
      select distinct on (s->>'name') s->>'name' as name, octet_length(decode(s->>'result', 'hex')) as bytes
        from jsonb_array_elements(_steps) with ordinality as e(s, n) order by s->>'name', n) s
      where not exists (select from windlass.step k where k.seq = _seq and k.name = s.name)) steps;
  if _all.n > 256 then
    perform windlass._refuse(format('steps of one job is %s; at most 256 are allowed', _all.n),
      jsonb_build_object('refusal', 'out_of_bounds', 'what', 'steps of one job', 'got', _all.n::text,
        'allowed', 'at most 256 are allowed; continue with another job'));
  elsif _all.bytes > 1048576 then
    perform windlass._refuse(format('results of all steps in bytes is %s; at most 1048576 are allowed', _all.bytes),
      jsonb_build_object('refusal', 'out_of_bounds', 'what', 'results of all steps in bytes', 'got', _all.bytes::text,
        'allowed', 'at most 1048576 are allowed; store the data elsewhere, and return its address'));
  end if;
end $$;

-- Records what the handler of a running job has to say.
create function windlass._report(_p windlass.job_state, _report jsonb, _now bigint) returns windlass.job_state
language plpgsql as $$
declare
  _step jsonb;
  _log_lines jsonb := coalesce(_report->'lines', '[]');
begin
  if _report is null then return _p; end if;
  if _report ? 'steps' then perform windlass._admit_steps(_p.seq, _report->'steps'); end if;
  if _report ? 'progress' or _log_lines <> '[]' then
    insert into windlass.attempt_log (seq) values (_p.seq) on conflict do nothing;
    update windlass.attempt_log d set
      progress = coalesce(_report->'progress', d.progress),
      progress_token = case when _report ? 'progress' then _p.token else d.progress_token end,
      log_dropped = least(d.log_dropped + coalesce((_report->>'lines_dropped')::bigint, 0)
        + greatest(jsonb_array_length(coalesce(d.log, '[]')) + jsonb_array_length(_log_lines) - 100, 0), 2147483647),
      log = (select jsonb_agg(l order by n) from (
        select l, n from jsonb_array_elements(coalesce(d.log, '[]') || _log_lines) with ordinality as e(l, n)
          order by n desc limit 100) last)
      where d.seq = _p.seq;
  end if;
  if _report ? 'progress' then
    perform windlass._emit(_now, 'job.progress', _p.seq, null, (_report->'progress'->>'percent')::bigint);
  end if;
  for _step in select s from jsonb_array_elements(coalesce(_report->'steps', '[]')) s loop
    continue when exists (select from windlass.step where seq = _p.seq and name = _step->>'name');
    insert into windlass.step (seq, number, name, result)
      values (_p.seq, _p.steps, _step->>'name', decode(_step->>'result', 'hex'));
    _p.steps := _p.steps + 1;
    perform windlass._emit(_now, 'step.completed', _p.seq, jsonb_build_object('name', _step->>'name'));
  end loop;
  update windlass.job_state set steps = _p.steps, updated_at = _now where seq = _p.seq;
  return _p;
end $$;

create function windlass.renew(_jobs uuid[], _tokens bigint[], _leases bigint[], _reports jsonb[])
returns table (n int, until bigint, cancel_requested boolean, refusal jsonb)
language plpgsql set lock_timeout = '10s' set plan_cache_mode = force_generic_plan set jit = off
  set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
  set enable_sort = off set enable_bitmapscan = off as $$
#variable_conflict use_column
declare
  _now bigint := windlass._begin();
  _item record;
  _p windlass.job_state;
  _detail text;
begin
  perform windlass._apply_effects(_now);
  perform windlass._materialize_lease(array_agg(i.token / 16384 * 16384), array_agg(j.seq), array_agg(j.seq), null)
    from unnest(_jobs, _tokens) as i(job, token)
      cross join lateral (select j.seq from windlass.job j where j.id = i.job offset 0) j;
  -- A job that is being settled at this moment keeps the lease it has: nobody waits for it here.
  return query with asked as (
    select i.n::int as n, i.lease, p.seq, p.at, p.cancel_requested
      from unnest(_jobs, _tokens, _leases, _reports) with ordinality as i(job, token, lease, report, n)
        cross join lateral (select j.seq from windlass.job j where j.id = i.job offset 0) j
        cross join lateral (select p.* from windlass.job_state p where p.seq = j.seq offset 0) p
      where p.state = 3 and p.token = i.token and i.report is null and i.n between 1 and 16384
  ), held as (
    select a.n, a.lease, p.place from asked a cross join lateral (
      select p.ctid as place from windlass.job_state p where p.seq = a.seq and p.state = 3 offset 0
        for update skip locked) p
  ), renewed as (
    update windlass.job_state p set at = _now + h.lease, told = false, updated_at = _now from held h
      where p.ctid = h.place returning h.n, p.at, p.cancel_requested
  )
  select a.n, coalesce(r.at, a.at), coalesce(r.cancel_requested, a.cancel_requested), null::jsonb
    from asked a left join renewed r on r.n = a.n;
  update windlass.lease s set told = false where s.told
    and s.token in (select t / 16384 * 16384 from unnest(_tokens) t);
  update windlass.worker w set seen_at = _now where w.seen_at < _now - 5000000 and w.id in (
    select p.worker from unnest(_jobs, _tokens) as i(job, token)
      cross join lateral (select j.seq from windlass.job j where j.id = i.job offset 0) j
      cross join lateral (select p.* from windlass.job_state p where p.seq = j.seq offset 0) p
      where p.state = 3 and p.token = i.token limit 1);
  for _item in
    select i.n::int as n, j.seq, i.token, i.lease, i.report
      from unnest(_jobs, _tokens, _leases, _reports) with ordinality as i(job, token, lease, report, n)
        cross join lateral (select j.seq from windlass.job j where j.id = i.job offset 0) j
      where i.report is not null order by i.n
  loop
    _p := windlass._lock_job(_item.seq);
    continue when _p.seq is null or _p.state <> 3 or _p.token <> _item.token;
    begin
      _p := windlass._report(_p, _item.report, _now);
      update windlass.job_state p set at = _now + _item.lease, told = false, updated_at = _now where p.seq = _p.seq;
      return query select _item.n, _now + _item.lease, _p.cancel_requested, null::jsonb;
    exception when sqlstate 'WL001' then
      get stacked diagnostics _detail = pg_exception_detail;
      return query select _item.n, null::bigint, null::boolean, _detail::jsonb;
    end;
  end loop;
  perform windlass._apply_effects(_now);
end $$;

-- Tells what became of an attempt and of its job, and counts both.
-- Ends: 0 completed, 1 failed, 2 snoozed, 3 released, 4 cancelled, from 5 on crashed: 5 and the reason of its recovery.
create function windlass._emit_settled(_p windlass.job_state, _now bigint, _state int, _reason int, _at bigint, _end int,
    _error text) returns void language plpgsql as $$
declare
  _failed boolean := case when _state = 5 then _reason <> 4 else _end = 1 or _end >= 5 end;
begin
  if _failed then
    perform windlass._count_total(_p.queue_kind, _p.lane_queue, _p.lane, 'failed');
    perform windlass._emit(_now, 'job.failed', _p.seq, jsonb_build_object('worker', _p.worker,
      'error', coalesce(_error, 'no reason was given')), _p.attempts, case when _state = 1 then _at end);
  end if;
  if _state = 4 then
    perform windlass._count_total(_p.queue_kind, _p.lane_queue, _p.lane, 'completed');
    perform windlass._emit(_now, 'job.completed', _p.seq, jsonb_build_object('worker', _p.worker), _p.attempts,
      _now - _p.since);
  elsif _state = 1 and _failed then
    perform windlass._count_total(_p.queue_kind, _p.lane_queue, _p.lane, 'retried');
    perform windlass._emit(_now, 'job.retrying', _p.seq, null, _p.attempts, _at);
  elsif _state = 1 then
    perform windlass._emit(_now, 'job.snoozed', _p.seq, null, _at);
  elsif _state = 2 then
    perform windlass._emit(_now, 'job.released', _p.seq, jsonb_build_object('worker', _p.worker));
  else
    perform windlass._emit_end(_p, _now, _state, _reason, _error);
  end if;
end $$;

-- Ends one attempt whose lease is held; the state the job is in then.
-- Verdicts: 0 complete, 1 retry, 2 snooze, 3 release, 4 bury, 5 cancel.
create function windlass._settle_one(_p windlass.job_state, _verdict int, _arg bigint, _output bytea, _error text,
    _extra jsonb, _object_state bytea, _now bigint) returns int language plpgsql as $$
declare
  _q windlass.job_state;
  _state int;
  _reason int;
  _end int := (array[0, 1, 2, 3, 1, 4])[_verdict + 1];
  _next jsonb := case when _verdict = 0 then coalesce(_extra->'next', '[]') else '[]' end;
  _kept_error text;
begin
  if octet_length(_output) > (select payload_bytes from windlass.settings) then
    perform windlass._refuse('the output is too large', jsonb_build_object('refusal', 'out_of_bounds',
      'what', 'output bytes', 'got', octet_length(_output)::text, 'allowed', format(
        'at most %s are allowed; raise `payload_bytes`, or store the data elsewhere',
        (select payload_bytes from windlass.settings))));
  end if;
  if _extra->'report' ? 'steps' then perform windlass._admit_steps(_p.seq, _extra->'report'->'steps'); end if;
  if _verdict = 0 and not _p.without_effects then
    -- The job may continue with one of the same key, which it gives up by completing.
    delete from windlass.unique_key k using windlass.job j
      where k.seq = _p.seq and j.seq = _p.seq and j.spec->'unique'->>'scope' = 'open';
  end if;
  if _next <> '[]' and not (_extra ? 'turn') then
    perform windlass._accept_batch(windlass._items(_next), null, null, _now);
  end if;
  _p := windlass._report(_p, _extra->'report', _now);
  if _verdict in (1, 2, 3) and _p.cancel_requested then
    _state := 6; _reason := 0;
  else
    _state := (array[4, 1, 1, 2, 5, 6])[_verdict + 1];
    _reason := case when _verdict in (4, 5) then _arg end;
  end if;
  if _state >= 4 then
    select d.error into _kept_error from windlass.attempt_log d where d.seq = _p.seq;
    if _end in (2, 3) then
      -- Its own error is not that of the job, so it goes with the attempts of before.
      perform windlass._log_attempt(_p, _now, _end, _error);
    end if;
    perform windlass._end(_p, _now, _state, _reason, nullif(nullif(_end, 2), 3), case when _state = 4 then _output end,
      case when _state = 4 then null when _end = 1 or _end >= 4 then _error else _kept_error end,
      case when _state = 4 then 0 else _p.recoveries end);
    perform windlass._emit_settled(_p, _now, _state, _reason, null, _end, _error);
  else
    _q := _p;
    _q.state := _state;
    _q.updated_at := _now;
    if _verdict in (2, 3) then _q.attempts := greatest(_p.attempts - 1, 0); end if;
    if _state = 1 then
      _q.at := _now + _arg;
    else
      _q.at := least(_p.since, _now);
      _q.rank := windlass._rank_of(_p.seq, _p.queue_kind, _q.at);
    end if;
    perform windlass._log_attempt(_p, _now, _end, _error);
    perform windlass._save_job(_p, _q);
    perform windlass._ring(_p.queue_kind);
    perform windlass._emit_settled(_p, _now, _state, null, _q.at, _end, _error);
  end if;
  perform windlass._ring_turned_away(_p.queue_kind);
  if _extra ? 'turn' then
    perform windlass._turn(_extra->'turn', _object_state, windlass._items(_next), _now);
  end if;
  if _state >= 4 then
    perform windlass._cascade(_p.seq, _error, _now);
  end if;
  return coalesce((select p.state from windlass.job_state p where p.seq = _p.seq), _state);
end $$;

-- The first `_alone` are completed and say nothing else; they come as runs of numbers and of tokens. The others have
-- their tokens and verdicts, and their numbers where the caller knows them. An output is a piece of `_outputs`. Answers
-- for each that is not simply completed, and in a last row whom to ring.
create function windlass.settle(_alone int, _jobs uuid[], _firsts int[], _lows bigint[], _highs bigint[],
    _first_tokens bigint[], _seqs bigint[], _tokens bigint[], _verdicts smallint[], _args bigint[], _outputs bytea,
    _starts int[], _sizes int[], _errors text[], _extras jsonb[], _object_states bytea[])
returns table (n int, state int, refusal jsonb, rings text[])
language plpgsql set lock_timeout = '10s' set plan_cache_mode = force_generic_plan set jit = off
  set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
  set enable_sort = off set enable_bitmapscan = off as $$
#variable_conflict use_column
declare
  _now bigint := windlass.now_us();
  _done int;
  _done_seqs bigint[];
  _done_lines int[];
  _parents bigint[];
  _leases bigint[];
  _ended int[];
  _item record;
  _p windlass.job_state;
  _settings windlass.settings;
  _detail text;
begin
  perform windlass._require_read_committed();
  select * into _settings from windlass.settings;
  if array_position(_seqs, null) is not null then
    _seqs := array(select coalesce(i.seq, j.seq) from unnest(_jobs[_alone + 1 :], _seqs) with ordinality as i(job, seq, n)
      left join lateral (select j.seq from windlass.job j where i.seq is null and j.id = i.job offset 0) j on true
      order by i.n);
  end if;
  -- Whoever waits for these is held together with them, in one order, so that two batches with
  -- dependents in common do not wait for each other.
  if exists (select from windlass.dependency)
    and exists (select from windlass.dependency e where e.on_id = any (_jobs) and not e.met)
  then
    perform from windlass.job_state p where p.seq = any (array(
        select unnest(_seqs)
        union all select windlass._from_ranges(_lows, _highs)
        union all select e.seq from windlass.dependency e where e.on_id = any (_jobs) and not e.met))
      order by p.seq for update;
  end if;
  -- Jobs that are done and with which nothing else ends: all at once, run by run. A job is as its place says, or
  -- as the lease does that covers it. What is not as the caller thinks is settled one by one.
  with gone as (
    update windlass.job_state p set state = 4, at = _now, updated_at = _now, recoveries = 0, attempt_end = 0,
        begun = true, attempts = greatest(p.attempts, 1), token = r.token + p.seq,
        worker = coalesce(p.worker, r.worker), since = coalesce(p.since, r.since),
        first_started = coalesce(p.first_started, r.since),
        output = substring(_outputs from _starts[r.n + p.seq] for _sizes[r.n + p.seq])
      from (select r.low, r.high, r.first - r.low as n, r.token - r.low as token, s.worker, s.since
        from unnest(_firsts, _lows, _highs, _first_tokens) as r(first, low, high, token)
        left join lateral (select s.* from windlass.lease s where s.token = r.token / 16384 * 16384 offset 0) s
          on s.worker is not null and s.token + 1 - s.lowest = r.token - r.low
            and s.highs[width_bucket(r.low, s.lows)] >= r.high offset 0) r
      where p.seq between r.low and r.high and p.without_effects
        and (p.state = 3 and p.token = r.token + p.seq
          or windlass._never_started(p.state, p.begun, p.generation, p.without_effects) and r.since is not null)
        and coalesce(_sizes[r.n + p.seq], 0) <= _settings.payload_bytes
      returning p.queue_kind, p.attempts, p.since, p.worker, p.token / 16384 * 16384 as lease, r.n + p.seq as n
  ), ended as (
    select lease, queue_kind, attempts, min(since) as since, min(worker collate "C") as worker, count(*)::int as n,
        array_agg(_jobs[n]) as jobs from gone group by lease, queue_kind, attempts
  ), told as (
    insert into windlass.event (at, n, topic, jobs, queue_kinds, a, b, detail)
      select _now, n, 'job.completed', jobs, array[queue_kind], array[attempts], array[_now - since],
        jsonb_build_object('worker', worker) from ended
  ), counted as (
    insert into windlass.counter_delta (queue_kind, queue, running, completed, t_completed)
      select e.queue_kind, l.queue, -e.n, e.n, e.n
        from (select queue_kind, sum(n) as n from ended group by queue_kind) e join windlass.queue_kind l on l.id = e.queue_kind
      returning queue_kind
  )
  select coalesce(sum(n), 0), array_agg(lease), array_agg(n), array(select queue_kind from counted)
    into _done, _leases, _ended, _done_lines from ended;
  if _done < _alone then
    _done_seqs := array(select p.seq from unnest(_lows, _highs) as r(low, high) cross join lateral (
        select p.seq from windlass.job_state p
          where p.seq between r.low and r.high and p.state = 4 and p.xmin = pg_current_xact_id()::xid offset 0) p
      order by p.seq);
  end if;
  if _done > 0 then
    if _done = _alone then
      insert into windlass.history (at, n, lows, highs) values (_now, _done, _lows, _highs);
    else
      insert into windlass.history (at, n, lows, highs) select _now, _done, r.lows, r.highs from windlass._to_ranges(_done_seqs) r;
    end if;
    if _done = _alone and (exists (select from windlass.attempt_log) or exists (select from windlass.dependency)) then
      _done_seqs := array(select windlass._from_ranges(_lows, _highs));
    end if;
    if _done_seqs is not null then
      -- A attempt log that told of earlier failures tells of a success now.
      update windlass.attempt_log d set error = null where d.seq = any (_done_seqs) and d.error is not null;
      -- Looked at after they ended: who begins to wait for one of them now sees that it has.
      _parents := array(select s.seq from unnest(_done_seqs) with ordinality as s(seq, n)
          cross join lateral (select j.id from windlass.job j where j.seq = s.seq offset 0) j
        where exists (select from windlass.dependency e where e.on_id = j.id and not e.met) order by s.n);
      if cardinality(_parents) > 0 then perform windlass._cascade_success(_parents, _now); end if;
    end if;
    if exists (select from windlass.queue_kind l join windlass.kind k on k.id = l.kind
        where l.id = any (_done_lines) and k.turned_away) then
      perform windlass._ring_turned_away(l) from unnest(_done_lines) l;
    end if;
    for _item in
      select distinct q.id, q.name from windlass.queue_kind l join windlass.queue q on q.id = l.queue
        where l.id = any (_done_lines) order by q.name
    loop
      perform windlass._notify_if_empty(_item.id, _item.name, _now);
    end loop;
    perform windlass._trim_history(_settings, _now, _settings.history_jobs / 10);
  end if;
  if _done < cardinality(_jobs) then
    _now := windlass._begin();
    for _item in
      select i.* from (
          select r.first + s - r.low as n, s as seq, r.token + s - r.low as token, 0 as verdict, null as arg,
              _starts[r.first + s - r.low] as start, _sizes[r.first + s - r.low] as size, null as error, null::jsonb as extra,
              null::bytea as object_state
            from unnest(_firsts, _lows, _highs, _first_tokens) as r(first, low, high, token)
              cross join lateral generate_series(r.low, r.high) s
            where _done < _alone and not s = any (_done_seqs)
          union all
          select _alone + i.n, i.seq, i.token, i.verdict, i.arg, i.start, i.size, i.error, i.extra, i.object_state
            from unnest(_seqs, _tokens, _verdicts, _args[_alone + 1 :], _starts[_alone + 1 :], _sizes[_alone + 1 :],
                _errors[_alone + 1 :], _extras[_alone + 1 :], _object_states[_alone + 1 :]) with ordinality
              as i(seq, token, verdict, arg, start, size, error, extra, object_state, n)) i
        order by i.n
    loop
      _p := windlass._lock_job(_item.seq);
      if _p.seq is null or _p.state <> 3 or _p.token <> _item.token then
        return query select _item.n::int, null::int, jsonb_build_object('refusal', 'lease_lost'), null::text[];
        continue;
      end if;
      begin
        return query select _item.n::int, windlass._settle_one(_p, _item.verdict, _item.arg,
            substring(_outputs from _item.start for _item.size), _item.error, _item.extra, _item.object_state,
            _now), null::jsonb, null::text[];
      exception when sqlstate 'WL001' then
        get stacked diagnostics _detail = pg_exception_detail;
        return query select _item.n::int, null::int, _detail::jsonb, null::text[];
      end;
    end loop;
  end if;
  perform windlass._fold_counters_sometimes(_now);
  return query select null::int, null::int, null::jsonb, windlass._apply_effects(_now);
  -- At last, because another settlement may wait for the same lease; in one order, so that no two wait for
  -- each other.
  update windlass.lease s
    set running = s.running - (select sum(l.n) from unnest(_leases, _ended) as l(lease, n) where l.lease = s.token)
    where s.token = any (_leases);
  delete from windlass.lease s where s.token = any (_leases) and s.running <= 0;
end $$;

-- Makes a batch of leases end when the first of them does; it goes with the last. Leases that were only
-- told of keep it until someone acts on them.
create function windlass._shrink_lease(_lease windlass.lease) returns bigint language plpgsql as $$
declare
  _until bigint;
  _told boolean;
begin
  select min(p.at), bool_and(p.told) into _until, _told from unnest(_lease.lows, _lease.highs) as r(low, high) cross join lateral (
    select case when p.state = 3 then p.at else _lease.ends end as at, p.told from windlass.job_state p
      where p.seq between r.low and r.high and (p.state = 3 and p.token > _lease.token and p.token < _lease.token + 16384
        or _lease.worker is not null and windlass._never_started(p.state, p.begun, p.generation, p.without_effects)) offset 0) p;
  if _until is null then
    delete from windlass.lease where token = _lease.token;
  elsif _until <> _lease.until or _told <> _lease.told then
    update windlass.lease set until = _until, told = _told where token = _lease.token;
    if _told then _until := null; end if;
  end if;
  return _until;
end $$;

-- The same for jobs that will be tried again and with which nothing else ends: all at once.
create function windlass._rescue_batch(_seqs bigint[], _max_recoveries int, _delay bigint, _reason int, _all boolean,
    _text text, _now bigint, out jobs uuid[], out states int[], out ends bigint[]) language plpgsql as $$
declare
  _queue_kinds int[];
  _attempts bigint[];
  _recoveries bigint[];
  _stale bigint[];
  _workers text[];
  _job_lines int[];
begin
  with lost as (
    select p.*, j.id, j.priority, l.queue
      from unnest(_seqs) x(seq)
        cross join lateral (
          select p.seq, p.queue_kind, p.attempts, p.recoveries, p.since, p.worker, p.at, p.token from windlass.job_state p
            where p.seq = x.seq and p.state = 3 and (_all or p.at <= _now) and not p.cancel_requested
              and p.attempts < p.max_attempts and p.recoveries < _max_recoveries
              and p.lane_queue is null and p.object is null offset 0
            for update skip locked) p
        cross join lateral (select j.id, j.priority from windlass.job j where j.seq = x.seq offset 0) j
        cross join lateral (select l.queue from windlass.queue_kind l where l.id = p.queue_kind offset 0) l
  ), back as (
    update windlass.job_state p set state = 1, at = _now + _delay, recoveries = p.recoveries + 1, updated_at = _now,
        offered = false, attempt_end = null, reason = null
      where p.seq = any (array(select seq from lost))
  ), waiting as (
    insert into windlass.scheduled (at, seq) select _now + _delay, seq from lost
  ), noted as (
    insert into windlass.attempt_log as d (seq, attempts, error, recovered_at)
      select seq, jsonb_build_array(jsonb_build_object('number', attempts, 'worker', worker, 'started', since,
          'ended', _now, 'end', 5 + _reason, 'error', _text)), _text, _now from lost
      on conflict (seq) do update set
        attempts = case when jsonb_array_length(coalesce(d.attempts, '[]')) >= 20
          then (d.attempts - 0) || excluded.attempts else coalesce(d.attempts, '[]') || excluded.attempts end,
        attempts_dropped = d.attempts_dropped + (jsonb_array_length(coalesce(d.attempts, '[]')) >= 20)::int,
        error = excluded.error, recovered_at = excluded.recovered_at
  ), counted as (
    insert into windlass.counter_delta (queue_kind, queue, scheduled, running, t_failed, t_retried, t_rescued)
      select queue_kind, queue, count(*), -count(*), count(*), count(*), count(*) from lost group by queue_kind, queue
  ), ranked as (
    insert into windlass.counter_delta (queue, priority, ready)
      select queue, priority, count(*) from lost where priority <> 0 group by queue, priority
  )
  select array_agg(id order by at, token), array_agg(1 order by at, token), array_agg(at order by at, token),
      array_agg(queue_kind order by at, token), array_agg(attempts::bigint order by at, token),
      array_agg(recoveries + 1::bigint order by at, token), array_agg(_now - since order by at, token),
      array_agg(worker order by at, token), array_agg(distinct queue_kind)
    into jobs, states, ends, _job_lines, _attempts, _recoveries, _stale, _workers, _queue_kinds from lost;
  if jobs is null then return; end if;
  insert into windlass.event (at, n, topic, jobs, queue_kinds, a, b, detail)
    values (_now, cardinality(jobs), 'recovery.detected', jobs, _job_lines, _attempts, _stale,
      jsonb_build_object('reason', _reason));
  insert into windlass.event (at, n, topic, jobs, queue_kinds, a, b, detail)
    select _now, count(*), 'job.failed', array_agg(j.id order by j.n), array_agg(j.queue_kind order by j.n),
        array_agg(j.attempt order by j.n), array_agg(_now + _delay),
        jsonb_build_object('worker', j.worker, 'error', _text)
      from unnest(jobs, _job_lines, _attempts, _workers) with ordinality as j(id, queue_kind, attempt, worker, n)
      group by j.worker;
  insert into windlass.event (at, n, topic, jobs, queue_kinds, a, b)
    values (_now, cardinality(jobs), 'job.retrying', jobs, _job_lines, _attempts,
      array_fill(_now + _delay, array[cardinality(jobs)]));
  insert into windlass.event (at, n, topic, jobs, queue_kinds, a, b, detail)
    select _now, count(*), 'job.recovered', array_agg(j.id order by j.n), array_agg(j.queue_kind order by j.n),
        array_agg(j.attempt order by j.n), array_agg(j.stale order by j.n),
        jsonb_build_object('reason', _reason, 'recovery', j.recovery)
      from unnest(jobs, _job_lines, _attempts, _stale, _recoveries) with ordinality
        as j(id, queue_kind, attempt, stale, recovery, n)
      group by j.recovery;
  perform windlass._ring(l), windlass._ring_turned_away(l) from unnest(_queue_kinds) l;
end $$;

-- Gives back jobs whose lease has ended, or with `_all` every job that runs. Reasons: 0 the lease was
-- not renewed, 1 a restart, 2 someone said so; of an attempt also 4, the job could not be recovered.
create function windlass.rescue(_observe boolean, _max_recoveries int, _delay bigint, _reason int, _all boolean)
returns table (id uuid, state int, more boolean, next_in bigint, rings text[])
language plpgsql set lock_timeout = '10s' set plan_cache_mode = force_generic_plan set jit = off
  set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
  set enable_sort = off set enable_bitmapscan = off as $$
#variable_conflict use_column
declare
  _now bigint := windlass._begin();
  _p windlass.job_state;
  _q windlass.job_state;
  _looked int := 0;
  _state int;
  _text text := 'crashed: its worker was lost while running it';
  _o windlass.object;
  _job uuid;
  _lease windlass.lease;
  _due bigint[];
  _seqs bigint[];
  _jobs uuid[];
  _states int[];
  _ends bigint[];
begin
  select array_agg(s.token) into _due from (
    select s.token from windlass.lease s where (_all or s.until <= _now) and (not s.told or not _observe)
      order by s.until limit 1000 for update skip locked) s;
  perform windlass._materialize_lease(array_agg(s.token), array_agg(r.low), array_agg(r.high), 1000)
    from windlass.lease s cross join lateral unnest(s.lows, s.highs) as r(low, high) where s.token = any (_due);
  _seqs := array(select p.seq from windlass.lease s cross join lateral unnest(s.lows, s.highs) as r(low, high)
      cross join lateral (select p.seq, p.at, p.token from windlass.job_state p
        where p.seq between r.low and r.high and p.state = 3 and p.token > s.token and p.token < s.token + 16384
          and (_all or p.at <= _now) and (not p.told or not _observe) offset 0) p
    where s.token = any (_due) order by p.at, p.token limit 1000);
  if not _observe then
    select * into _jobs, _states, _ends
      from windlass._rescue_batch(_seqs, _max_recoveries, _delay, _reason, _all, _text, _now);
    _looked := coalesce(cardinality(_jobs), 0);
  end if;
  for _p in
    select p.* from windlass.job_state p
      where p.seq = any (_seqs) and p.state = 3 and (_all or p.at <= _now) and (not p.told or not _observe)
      order by p.at, p.token for update of p skip locked
  loop
    _looked := _looked + 1;
    select j.id into _job from windlass.job j where j.seq = _p.seq;
    perform windlass._emit(_now, 'recovery.detected', _p.seq, jsonb_build_object('reason', _reason), _p.attempts,
      _now - _p.since);
    if _observe then
      update windlass.job_state p set told = true where p.seq = _p.seq;
      continue;
    end if;
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
      perform windlass._ring(_p.queue_kind);
    end if;
    perform windlass._ring_turned_away(_p.queue_kind);
    perform windlass._count_total(_p.queue_kind, _p.lane_queue, _p.lane, 'rescued');
    perform windlass._emit_settled(_p, _now, _state, case _state when 6 then 0 when 5 then 3 end, _q.at, 5, _text);
    if _state = 1 then
      perform windlass._emit(_now, 'job.recovered', _p.seq,
        jsonb_build_object('reason', _reason, 'recovery', _q.recoveries), _p.attempts, _now - _p.since);
      update windlass.object o set recoveries = o.recoveries + 1, last_recovery_at = _now, version = o.version + 1,
        updated_at = _now where o.address = _p.object returning * into _o;
      if found then
        perform windlass._emit_once(_now, _o.kind || '.recovered', jsonb_build_object('object',
          jsonb_build_array(_o.kind, _o.name, _o.key),
          'detail', format('{"job":"%s","attempt":%s}', _job, _o.recoveries)));
      end if;
    elsif _state = 5 then
      perform windlass._emit(_now, 'recovery.exhausted', _p.seq, null, _p.recoveries);
    end if;
    if _state >= 4 then perform windlass._cascade(_p.seq, _text, _now); end if;
    _jobs := _jobs || _job;
    _states := _states || _state;
    _ends := _ends || _p.at;
  end loop;
  return query select r.job, r.state, null::boolean, null::bigint, null::text[]
    from unnest(_jobs, _states, _ends) with ordinality as r(job, state, ended, n) order by r.ended, r.n;
  perform windlass._shrink_lease(s) from windlass.lease s where s.token = any (_due);
  -- What has ended or was renewed since is not what is next.
  loop
    select * into _lease from windlass.lease s where not s.told order by s.until limit 1
      for update skip locked;
    exit when not found or windlass._shrink_lease(_lease) is not distinct from _lease.until;
  end loop;
  return query select null::uuid, null::int, _looked >= 1000 or coalesce(cardinality(_due), 0) >= 1000,
    (select greatest(s.until - _now, 0) from windlass.lease s where not s.told order by s.until limit 1),
    windlass._apply_effects(_now);
end $$;
