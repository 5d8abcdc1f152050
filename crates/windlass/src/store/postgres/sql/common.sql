-- Small things everything else is made of.

-- Refuses a call as a whole: `detail` is for programs, `message` for people.
create function windlass._refuse(_message text, _detail jsonb) returns void language plpgsql as $$
begin
  raise exception using errcode = 'WL001', message = _message, detail = _detail::text;
end $$;

create function windlass._rfc3339(_at bigint) returns text language sql immutable as $$
  select to_char(timestamp 'epoch' + floor(_at / 1000.0) * interval '1 millisecond',
                 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')
$$;

create function windlass._state_name(_state int) returns text language sql immutable as $$
  select (array['blocked', 'scheduled', 'ready', 'running', 'completed', 'dead', 'cancelled'])[_state + 1]
$$;

-- The number of a queue and of a kind in it, noted if new. A name is kept for ever.
create function windlass.register(_queue text, _kind text) returns int language plpgsql as $$
declare
  _queue_kind int;
begin
  select l.id into _queue_kind from windlass.queue_kind l
    join windlass.queue q on q.id = l.queue join windlass.kind k on k.id = l.kind
    where q.name = _queue and k.name = _kind;
  if found then return _queue_kind; end if;
  perform windlass._register_names(array[_queue], array[_kind]);
  insert into windlass.queue_kind (kind, queue)
    select k.id, q.id from windlass.kind k, windlass.queue q where k.name = _kind and q.name = _queue
    on conflict (kind, queue) do nothing returning id into _queue_kind;
  if _queue_kind is null then
    select l.id into strict _queue_kind from windlass.queue_kind l
      join windlass.queue q on q.id = l.queue join windlass.kind k on k.id = l.kind
      where q.name = _queue and k.name = _kind;
  end if;
  return _queue_kind;
end $$;

create function windlass._register_names(_queues text[], _kinds text[]) returns void language plpgsql as $$
begin
  insert into windlass.queue (name) select n from unnest(_queues) n
    where not exists (select from windlass.queue q where q.name = n) order by n
    on conflict (name) do nothing;
  if found and (select count(*) from windlass.queue) > 10000 then
    perform windlass._refuse('there are 10000 queues; reuse the ones there are',
      jsonb_build_object('refusal', 'out_of_bounds', 'what', 'distinct queues', 'got', '10001',
        'allowed', 'at most 10000 are allowed; reuse the ones there are'));
  end if;
  insert into windlass.kind (name) select n from unnest(_kinds) n
    where not exists (select from windlass.kind k where k.name = n) order by n
    on conflict (name) do nothing;
  if found and (select count(*) from windlass.kind) > 10000 then
    perform windlass._refuse('there are 10000 kinds; reuse the ones there are',
      jsonb_build_object('refusal', 'out_of_bounds', 'what', 'distinct kinds', 'got', '10001',
        'allowed', 'at most 10000 are allowed; reuse the ones there are'));
  end if;
end $$;

-- Lower is sooner; with ageing, the moment at which the job would have overtaken everything of
-- priority 0 that comes later.
create function windlass._rank(_ageing bigint, _priority int, _since bigint) returns bigint
language sql immutable as $$
  select case when _ageing is null then -_priority::bigint
    else greatest(least(_since - _ageing::numeric * _priority, 9223372036854775807),
                  -9223372036854775808)::bigint end
$$;

-- Which lane a partition falls into; each has its own in a queue without lanes.
create function windlass._lane(_partition bigint, _lanes int) returns bigint language sql immutable as $$
  select case when _lanes is null then _partition
    when _partition >= 0 then _partition % _lanes
    else ((_partition::numeric + 18446744073709551616) % _lanes)::bigint end
$$;

-- An object's address as text, from its kind, name and key.
create function windlass._address(_parts jsonb) returns text language sql immutable as $$
  select (_parts->>0) || '/' || (_parts->>1) || '/' || (_parts->>2)
$$;

create function windlass._start_time(_kind int, _us bigint, _now bigint) returns bigint
language sql immutable as $$
  select case _kind when 0 then _now when 1 then _now + _us else _us end
$$;

-- Something this call must still see to: 0 an object's job ended (a: its reason, b: its state, c: the
-- object, d: the job), 1 a lane changed (a: queue, b: lane), 2 a job is asked for (c: its kind, d: its
-- parent and payload), 3 a queue may be empty (a: queue), 4 a queue is to be rung (a: queue), 5 cancels
-- are to be rung, 6 a queue has one more dead letter (a: queue), 7 there is more history.
create function windlass._add_effect(_what int, _a bigint, _b bigint, _c text, _d text default null) returns void
language sql as $$
  insert into windlass.pending_effect (what, a, b, c, d) values (_what, _a, _b, _c, _d)
$$;

create function windlass._emit(_now bigint, _topic text, _seq bigint, _detail jsonb, _a bigint default null,
                               _b bigint default null) returns void language sql as $$
  insert into windlass.event (at, n, topic, jobs, queue_kinds, a, b, detail)
    select _now, 1, _topic, array[j.id], array[j.queue_kind], array[_a], array[_b], _detail
    from windlass.job j where j.seq = _seq
$$;

-- Something that happened to a queue, a worker or an object, which `detail` names.
create function windlass._emit_once(_now bigint, _topic text, _detail jsonb) returns void language sql as $$
  insert into windlass.event (at, n, topic, detail) values (_now, 1, _topic, _detail)
$$;

-- Counts a job that went from one state to another; null for none.
create function windlass._count(_seq bigint, _queue_kind int, _lane_queue int, _lane bigint, _from int, _to int) returns void
language plpgsql as $$
declare
  _d int[] := array[0,0,0,0,0,0,0];
  _queue int;
  _lanes int;
begin
  if _from is not distinct from _to then return; end if;
  if _from is not null then _d[_from + 1] := -1; end if;
  if _to is not null then _d[_to + 1] := 1; end if;
  select l.queue, q.lanes into _queue, _lanes
    from windlass.queue_kind l join windlass.queue q on q.id = l.queue where l.id = _queue_kind;
  insert into windlass.counter_delta (queue_kind, queue, lane, blocked, scheduled, ready, running, completed, dead, cancelled)
    values (_queue_kind, _queue, null, _d[1], _d[2], _d[3], _d[4], _d[5], _d[6], _d[7]);
  if coalesce(_from < 3, false) <> coalesce(_to < 3, false) then
    insert into windlass.counter_delta (queue, priority, ready)
      select _queue, j.priority, case when _to < 3 then 1 else -1 end
        from windlass.job j where j.seq = _seq and j.priority <> 0;
  end if;
  if _lane_queue is not null and _lanes is not null then
    insert into windlass.counter_delta (queue, lane, blocked, scheduled, ready, running, completed, dead, cancelled)
      values (_queue, _lane, _d[1], _d[2], _d[3], _d[4], _d[5], _d[6], _d[7]);
  end if;
  if _from < 4 and (_to is null or _to >= 4) then
    perform windlass._add_effect(3, _queue, null, null);
  end if;
end $$;

-- Counts something that happened to a job, in its line and in its lane.
create function windlass._count_total(_queue_kind int, _lane_queue int, _lane bigint, _what text) returns void
language plpgsql as $$
declare
  _queue int;
  _lanes int;
begin
  select l.queue, q.lanes into _queue, _lanes
    from windlass.queue_kind l join windlass.queue q on q.id = l.queue where l.id = _queue_kind;
  insert into windlass.counter_delta (queue_kind, queue, t_enqueued, t_completed, t_failed, t_retried, t_rescued, t_dead, t_cancelled)
    values (_queue_kind, _queue, (_what = 'enqueued')::int, (_what = 'completed')::int, (_what = 'failed')::int,
      (_what = 'retried')::int, (_what = 'rescued')::int, (_what = 'dead')::int, (_what = 'cancelled')::int);
  if _lane_queue is not null and _lanes is not null then
    insert into windlass.counter_delta (queue, lane, t_enqueued, t_completed, t_failed, t_retried, t_rescued, t_dead, t_cancelled)
      values (_queue, _lane, (_what = 'enqueued')::int, (_what = 'completed')::int, (_what = 'failed')::int,
        (_what = 'retried')::int, (_what = 'rescued')::int, (_what = 'dead')::int, (_what = 'cancelled')::int);
  end if;
end $$;

-- Writes down in the places of jobs what leases say that cover them: of runs of numbers, each under one lease, and
-- not of more than so many. Passes over whom somebody else holds.
create function windlass._materialize_lease(_leases bigint[], _lows bigint[], _highs bigint[], _most int) returns void
language plpgsql as $$
begin
  with spoken as (
    select p.place, s.token + 1 + p.seq - s.lowest as token, s.worker, s.since, s.ends, s.max_attempts
      from unnest(_leases, _lows, _highs) as r(lease, low, high)
        join lateral (select s.* from windlass.lease s where s.token = r.lease offset 0) s
          on s.worker is not null and s.highs[width_bucket(r.low, s.lows)] >= r.high
        cross join lateral (
          select p.ctid as place, p.seq from windlass.job_state p
            where p.seq between r.low and r.high and windlass._never_started(p.state, p.begun, p.generation, p.without_effects) offset 0
            for update skip locked) p
      limit _most
  )
  update windlass.job_state p set state = 3, attempts = 1, begun = true, token = s.token, worker = s.worker,
      since = s.since, at = s.ends, max_attempts = coalesce(p.own_max_attempts, s.max_attempts),
      first_started = s.since, updated_at = s.since
    from spoken s where p.ctid = s.place;
end $$;

-- The job, locked; nothing if it is not kept.
create function windlass._lock_job(_seq bigint) returns windlass.job_state language plpgsql as $$
declare
  _p windlass.job_state;
  _lease bigint;
begin
  select * into _p from windlass.job_state where seq = _seq for update;
  if windlass._never_started(_p.state, _p.begun, _p.generation, _p.without_effects) then
    -- It is ready if it stands among the ready, where no claim takes it from now on.
    perform from windlass.ready where queue_kind = _p.queue_kind and rank = _p.rank and at = _p.at and seq = _seq for update;
    if not found then
      select s.token / 16384 * 16384 into strict _lease from windlass.job_state_now s where s.seq = _seq and s.state = 3;
      perform windlass._materialize_lease(array[_lease], array[_seq], array[_seq], 1);
      select * into _p from windlass.job_state where seq = _seq;
    end if;
  end if;
  return _p;
end $$;

-- Takes a waiting job out of where it is found.
create function windlass._remove_from_indexes(_p windlass.job_state) returns void language plpgsql as $$
begin
  if _p.begun and _p.lane_queue is not null and _p.state < 3 then
    delete from windlass.lane_held where queue = _p.lane_queue and lane = _p.lane and partition = _p.partition
      and seq = _p.seq;
  end if;
  if _p.state = 1 then
    delete from windlass.scheduled where at = _p.at and seq = _p.seq;
  elsif _p.state = 2 then
    if _p.lane_queue is not null then
      delete from windlass.lane_ready where queue = _p.lane_queue and lane = _p.lane and rank = _p.rank and at = _p.at
        and seq = _p.seq;
    end if;
    if _p.lane_queue is null or _p.offered then
      delete from windlass.ready where queue_kind = _p.queue_kind and rank = _p.rank and at = _p.at and seq = _p.seq;
    end if;
  end if;
end $$;

-- Puts a waiting job where it is found.
create function windlass._add_to_indexes(_p windlass.job_state) returns void language plpgsql as $$
begin
  if _p.begun and _p.lane_queue is not null and _p.state < 3 then
    insert into windlass.lane_held (queue, lane, partition, seq) values (_p.lane_queue, _p.lane, _p.partition, _p.seq);
  end if;
  if _p.state = 1 then
    insert into windlass.scheduled (at, seq) values (_p.at, _p.seq);
  elsif _p.state = 2 and _p.lane_queue is null then
    insert into windlass.ready (queue_kind, rank, at, seq, never_started) values (_p.queue_kind, _p.rank, _p.at, _p.seq,
      windlass._never_started(_p.state, _p.begun, _p.generation, _p.without_effects));
  elsif _p.state = 2 then
    insert into windlass.lane_ready (queue, lane, rank, at, seq) values (_p.lane_queue, _p.lane, _p.rank, _p.at, _p.seq);
  end if;
end $$;

-- Writes where an open job now stands.
create function windlass._save_job(_old windlass.job_state, _new windlass.job_state) returns void language plpgsql as $$
begin
  perform windlass._remove_from_indexes(_old);
  update windlass.job_state set at = _new.at, rank = _new.rank, updated_at = _new.updated_at,
    attempts = _new.attempts, recoveries = _new.recoveries, generation = _new.generation,
    state = _new.state, steps = _new.steps, offered = false,
    begun = _new.begun, cancel_requested = _new.cancel_requested, told = _new.told, unmet = _new.unmet,
    token = _new.token, since = _new.since, max_attempts = _new.max_attempts, attempt_end = null, reason = null,
    first_started = _new.first_started, worker = _new.worker, met = _new.met, output = _new.output,
    lane_queue = _new.lane_queue, lane = _new.lane, partition = _new.partition, object = _new.object
    where seq = _new.seq;
  perform windlass._add_to_indexes(_new);
  perform windlass._count(_new.seq, _new.queue_kind, _new.lane_queue, _new.lane, _old.state, _new.state);
  if _new.lane_queue is not null then
    perform windlass._add_effect(1, _new.lane_queue, _new.lane, null);
  end if;
end $$;

-- Adds the attempt that ends to a job's attempt log.
create function windlass._log_attempt(_p windlass.job_state, _now bigint, _end int, _error text) returns void
language plpgsql as $$
declare
  _entry jsonb := jsonb_build_object('number', _p.attempts, 'worker', _p.worker, 'started', _p.since,
    'ended', _now, 'end', _end, 'error', _error);
begin
  insert into windlass.attempt_log as d (seq, attempts, error)
    values (_p.seq, jsonb_build_array(_entry), case when _end = 1 or _end >= 4 then _error end)
    on conflict (seq) do update set
      attempts = case when jsonb_array_length(coalesce(d.attempts, '[]')) >= 20
        then (d.attempts - 0) || _entry else coalesce(d.attempts, '[]') || _entry end,
      attempts_dropped = d.attempts_dropped + (jsonb_array_length(coalesce(d.attempts, '[]')) >= 20)::int,
      error = case when _end = 1 or _end >= 4 then _error else d.error end;
end $$;

-- An open job has ended. Its key, lane and object are told. `_end` is how its last attempt ended, null
-- if it ends without one.
create function windlass._end(_p windlass.job_state, _now bigint, _state int, _reason int, _end int,
                              _output bytea, _error text, _recoveries int) returns void
language plpgsql as $$
declare
  _queue int;
begin
  perform windlass._remove_from_indexes(_p);
  update windlass.job_state set state = _state, at = _now, updated_at = _now, reason = _reason, attempt_end = _end,
    recoveries = _recoveries, output = _output, steps = _p.steps, offered = false, unmet = null,
    since = case when _end is not null then since end, worker = case when _end is not null then worker end,
    lane_queue = null, lane = null, partition = null, object = null, expires_at = null
    where seq = _p.seq;
  insert into windlass.attempt_log (seq, error) select _p.seq, _error where _error is not null
    on conflict (seq) do update set error = excluded.error;
  if _error is null then
    update windlass.attempt_log set error = null where seq = _p.seq and error is not null;
  end if;
  if _state = 5 then
    select queue into _queue from windlass.queue_kind where id = _p.queue_kind;
    insert into windlass.dead (queue, at, seq) values (_queue, _now, _p.seq);
  else
    insert into windlass.history (at, n, lows, highs) values (_now, 1, array[_p.seq], array[_p.seq]);
  end if;
  perform windlass._count(_p.seq, _p.queue_kind, _p.lane_queue, _p.lane, _p.state, _state);
  if not _p.without_effects then
    delete from windlass.unique_key k using windlass.job j
      where k.seq = _p.seq and j.seq = _p.seq
        and (j.spec->'unique'->>'scope' = 'open' or (_state = 6 and _reason = 5));
    if _p.lane_queue is not null then
      perform windlass._add_effect(1, _p.lane_queue, _p.lane, null);
    end if;
    if _p.object is not null then
      perform windlass._add_effect(0, _reason, _state, _p.object,
        (select j.id::text from windlass.job j where j.seq = _p.seq));
    end if;
  end if;
  if _state <> 5 then
    perform windlass._add_effect(7, null, null, null);
  end if;
end $$;

-- Tells that a job died or was cancelled, and counts it.
create function windlass._emit_end(_p windlass.job_state, _now bigint, _state int, _reason int, _error text)
returns void language plpgsql as $$
declare
  _q windlass.queue;
begin
  if _state = 5 then
    perform windlass._count_total(_p.queue_kind, _p.lane_queue, _p.lane, 'dead');
    perform windlass._emit(_now, 'job.dead', _p.seq,
      jsonb_build_object('reason', _reason, 'error', _error), _p.attempts);
    select q.* into _q from windlass.queue q join windlass.queue_kind l on l.queue = q.id where l.id = _p.queue_kind;
    perform windlass._add_effect(6, _q.id, null, null);
    if _q.on_dead is not null then
      perform windlass._add_effect(2, null, null, _q.on_dead, (select jsonb_build_object('parent', j.id, 'payload',
          format('{"job":"%s"%s}', j.id,
            case when _q.lanes is not null and _p.lane is not null then format(',"lane":%s', _p.lane) else '' end))::text
        from windlass.job j where j.seq = _p.seq));
    end if;
  elsif _state = 6 then
    perform windlass._count_total(_p.queue_kind, _p.lane_queue, _p.lane, 'cancelled');
    perform windlass._emit(_now, 'job.cancelled', _p.seq, null, _reason);
  end if;
end $$;

create function windlass._ring(_queue_kind int) returns void language sql as $$
  insert into windlass.pending_effect (what, a) select 4, queue from windlass.queue_kind where id = _queue_kind
$$;

-- Whoever a kind's concurrency limit turned away may try again.
create function windlass._ring_turned_away(_queue_kind int) returns void language plpgsql as $$
declare
  _kind int;
begin
  update windlass.kind k set turned_away = false from windlass.queue_kind l
    where l.id = _queue_kind and k.id = l.kind and k.turned_away returning k.id into _kind;
  if found then
    insert into windlass.pending_effect (what, a) select 4, l.queue from windlass.queue_kind l
      where l.kind = _kind
        and exists (select from windlass._scan_ranges(array[l.id]) t, windlass.ready r
          where r.queue_kind = t.queue_kind and r.part between t.low and t.high and (r.rank, r.at, r.seq) > (t.rank, t.at, t.seq));
  end if;
end $$;

-- Gives an open job the lane and the object that its producer said.
create function windlass._bind(_p windlass.job_state, _spec jsonb) returns windlass.job_state language plpgsql as $$
begin
  if _spec ? 'lane' then
    select q.id, (_spec->'lane'->>'partition')::bigint, windlass._lane((_spec->'lane'->>'partition')::bigint, q.lanes)
      into _p.lane_queue, _p.partition, _p.lane
      from windlass.queue q join windlass.queue_kind l on l.queue = q.id where l.id = _p.queue_kind;
  end if;
  if _spec ? 'object' then
    _p.object := windlass._address(_spec->'object');
  end if;
  return _p;
end $$;

-- Makes a job that waits for a time ready, or lets it wait.
create function windlass._wait_until(_p windlass.job_state, _at bigint, _now bigint) returns windlass.job_state
language plpgsql as $$
begin
  if _at > _now then
    _p.state := 1;
    _p.at := _at;
  else
    _p.state := 2;
    _p.at := _now;
    _p.rank := windlass._rank_of(_p.seq, _p.queue_kind, _now);
  end if;
  return _p;
end $$;

create function windlass._rank_of(_seq bigint, _queue_kind int, _since bigint) returns bigint language sql stable as $$
  select windlass._rank(q.ageing, j.priority, _since)
    from windlass.job j, windlass.queue_kind l join windlass.queue q on q.id = l.queue
    where j.seq = _seq and l.id = _queue_kind
$$;

-- Adds up the differences of counters, unless someone else does.
create function windlass._fold_counters() returns void language plpgsql as $$
begin
  if not pg_try_advisory_xact_lock(hashtextextended('windlass.counter_delta', 0)) then return; end if;
  with gone as (delete from windlass.counter_delta returning *)
  insert into windlass.counter_delta
    select queue_kind, queue, lane, sum(blocked), sum(scheduled), sum(ready), sum(running), sum(completed), sum(dead),
        sum(cancelled), sum(t_enqueued), sum(t_completed), sum(t_failed), sum(t_retried), sum(t_rescued),
        sum(t_dead), sum(t_cancelled), priority
      from gone group by queue_kind, queue, lane, priority having priority is null or sum(ready) <> 0;
end $$;

-- One call in so many does it, so that there is never much to add up.
create function windlass._fold_counters_sometimes(_now bigint) returns void language plpgsql as $$
begin
  if _now % 64 = 0 then perform windlass._fold_counters(); end if;
end $$;
