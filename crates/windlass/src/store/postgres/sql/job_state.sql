-- One job: locking it, writing where it stands now, ending it. Whoever changes a job does it by
-- these.

-- The job, locked; nothing if it is not kept.
create function windlass._lock_job(_seq bigint) returns windlass.job_state language plpgsql as $$
declare
  _p windlass.job_state;
  _lease bigint;
begin
  select * into _p from windlass.job_state where seq = _seq for update;
  if windlass._never_started(_p.state, _p.begun, _p.generation, _p.without_effects) then
    -- It is ready if it is in `ready`, from where no claim takes it from now on.
    perform from windlass.ready where queue_kind = _p.queue_kind and rank = _p.rank and at = _p.at
        and seq = _seq for update;
    if not found then
      select windlass._lease_of(s.token) into strict _lease from windlass.job_state_now s
          where s.seq = _seq and s.state = 3;
      perform windlass._materialize_lease(array[_lease], array[_seq], array[_seq], 1);
      select * into _p from windlass.job_state where seq = _seq;
    end if;
  end if;
  return _p;
end $$;

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

-- Takes a waiting job out of where it is found.
create function windlass._remove_from_indexes(_p windlass.job_state) returns void
language plpgsql as $$
begin
  if _p.begun and _p.lane_queue is not null and _p.state < 3 then
    delete from windlass.lane_held where queue = _p.lane_queue and lane = _p.lane
        and partition = _p.partition
      and seq = _p.seq;
  end if;
  if _p.state = 1 then
    delete from windlass.scheduled where at = _p.at and seq = _p.seq;
  elsif _p.state = 2 then
    if _p.lane_queue is not null then
      delete from windlass.lane_ready where queue = _p.lane_queue and lane = _p.lane
          and rank = _p.rank and at = _p.at
        and seq = _p.seq;
    end if;
    if _p.lane_queue is null or _p.offered then
      delete from windlass.ready where queue_kind = _p.queue_kind and rank = _p.rank and at = _p.at
          and seq = _p.seq;
    end if;
  end if;
end $$;

-- Puts a waiting job where it is found.
create function windlass._add_to_indexes(_p windlass.job_state) returns void language plpgsql as $$
begin
  if _p.begun and _p.lane_queue is not null and _p.state < 3 then
    insert into windlass.lane_held (queue, lane, partition, seq)
        values (_p.lane_queue, _p.lane, _p.partition, _p.seq);
  end if;
  if _p.state = 1 then
    insert into windlass.scheduled (at, seq) values (_p.at, _p.seq);
  elsif _p.state = 2 and _p.lane_queue is null then
    insert into windlass.ready (queue_kind, rank, at, seq, never_started)
        values (_p.queue_kind, _p.rank, _p.at, _p.seq,
      windlass._never_started(_p.state, _p.begun, _p.generation, _p.without_effects));
  elsif _p.state = 2 then
    insert into windlass.lane_ready (queue, lane, rank, at, seq)
        values (_p.lane_queue, _p.lane, _p.rank, _p.at, _p.seq);
  end if;
end $$;

-- Writes where an open job now stands.
create function windlass._save_job(_old windlass.job_state, _new windlass.job_state) returns void
language plpgsql as $$
begin
  perform windlass._remove_from_indexes(_old);
  update windlass.job_state set at = _new.at, rank = _new.rank, updated_at = _new.updated_at,
    attempts = _new.attempts, recoveries = _new.recoveries, generation = _new.generation,
    state = _new.state, steps = _new.steps, offered = false,
    begun = _new.begun, settled = _new.settled, cancel_requested = _new.cancel_requested,
        reported = _new.reported, unmet = _new.unmet,
    token = _new.token, since = _new.since, max_attempts = _new.max_attempts, attempt_end = null,
        reason = null,
    first_started = _new.first_started, worker = _new.worker, met = _new.met, output = _new.output,
    lane_queue = _new.lane_queue, lane = _new.lane, partition = _new.partition, object = _new.object
    where seq = _new.seq;
  perform windlass._add_to_indexes(_new);
  perform windlass._count(_new.seq, _new.queue_kind, _new.lane_queue, _new.lane, _old.state,
      _new.state);
  if _new.lane_queue is not null then
    perform windlass._add_effect('lane_changed', _new.lane_queue, _new.lane);
  end if;
end $$;

create function windlass._rank_of(_seq bigint, _queue_kind int, _since bigint) returns bigint
language sql stable as $$
  select windlass._rank(q.ageing, j.priority, _since)
    from windlass.job j, windlass.queue_kind l join windlass.queue q on q.id = l.queue
    where j.seq = _seq and l.id = _queue_kind
$$;

-- Makes a job that waits for a time ready, or lets it wait.
create function windlass._wait_until(_p windlass.job_state, _at bigint, _now bigint)
returns windlass.job_state
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

-- Gives an open job the lane and the object that its producer said.
create function windlass._bind(_p windlass.job_state, _spec jsonb) returns windlass.job_state
language plpgsql as $$
begin
  if _spec ? 'lane' then
    select q.id, (_spec->'lane'->>'partition')::bigint,
        windlass._lane((_spec->'lane'->>'partition')::bigint, q.lanes)
      into _p.lane_queue, _p.partition, _p.lane
      from windlass.queue q join windlass.queue_kind l on l.queue = q.id where l.id = _p.queue_kind;
  end if;
  if _spec ? 'object' then
    _p.object := windlass._address(_spec->'object');
  end if;
  return _p;
end $$;

-- Adds the attempt that ends to a job's attempt log.
create function windlass._log_attempt(_p windlass.job_state, _now bigint, _end int, _error text)
returns void
language plpgsql as $$
declare
  _entry jsonb := jsonb_build_object('number', _p.attempts, 'worker', _p.worker, 'started',
      _p.since, 'ended', _now, 'end', _end, 'error', _error);
begin
  insert into windlass.attempt_log as d (seq, attempts, error)
    values (_p.seq, jsonb_build_array(_entry), case when _end = 1 or _end >= 4 then _error end)
    on conflict (seq) do update set
      attempts = case when jsonb_array_length(coalesce(d.attempts, '[]')) >= {ATTEMPTS_KEPT}
        then (d.attempts - 0) || _entry else coalesce(d.attempts, '[]') || _entry end,
      attempts_dropped = d.attempts_dropped + (jsonb_array_length(coalesce(d.attempts, '[]'))
          >= {ATTEMPTS_KEPT})::int,
      error = case when _end = 1 or _end >= 4 then _error else d.error end;
end $$;

-- An open job has ended. Its key, lane and object are told. `_end` is how its last attempt ended,
-- null if it ends without one.
create function windlass._end(_p windlass.job_state, _now bigint, _state int, _reason int, _end int,
                              _output bytea, _error text, _recoveries int) returns void
language plpgsql as $$
declare
  _queue int;
begin
  perform windlass._remove_from_indexes(_p);
  update windlass.job_state set state = _state, at = _now, updated_at = _now, reason = _reason,
      attempt_end = _end, settled = settled or state = 3 and coalesce(_end, 0) < 5,
    recoveries = _recoveries, output = _output, steps = _p.steps, offered = false, unmet = null,
    since = case when _end is not null then since end, worker = case when _end is not null
        then worker end,
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
    insert into windlass.history (at, n, lows, highs)
        values (_now, 1, array[_p.seq], array[_p.seq]);
  end if;
  perform windlass._count(_p.seq, _p.queue_kind, _p.lane_queue, _p.lane, _p.state, _state);
  if not _p.without_effects then
    delete from windlass.unique_key k using windlass.job j
      where k.seq = _p.seq and j.seq = _p.seq
        and (j.spec->'unique'->>'scope' = 'open' or (_state = 6 and _reason = 5));
    if _p.lane_queue is not null then
      perform windlass._add_effect('lane_changed', _p.lane_queue, _p.lane);
    end if;
    if _p.object is not null then
      insert into windlass.pending_effect (effect, object, job, state, reason)
        select 'object_job_ended', _p.object, j.id, _state, _reason
          from windlass.job j where j.seq = _p.seq;
    end if;
  end if;
  if _state <> 5 then
    perform windlass._add_effect('history_grown');
  end if;
end $$;

-- Tells that a job died or was cancelled, and counts it.
create function windlass._emit_end(_p windlass.job_state, _now bigint, _state int, _reason int,
    _error text)
returns void language plpgsql as $$
declare
  _q windlass.queue;
begin
  if _state = 5 then
    perform windlass._count_total(_p.queue_kind, _p.lane_queue, _p.lane, 'dead');
    perform windlass._emit(_now, 'job.dead', _p.seq,
      jsonb_build_object('reason', _reason, 'error', _error), _p.attempts);
    select q.* into _q from windlass.queue q join windlass.queue_kind l on l.queue = q.id
        where l.id = _p.queue_kind;
    perform windlass._add_effect('dead_letter', _q.id);
    if _q.on_dead is not null then
      insert into windlass.pending_effect (effect, hook, job, payload)
        select 'job_wanted', _q.on_dead, j.id,
            windlass._dead_letter_payload(j.id, _q.lanes, _p.lane)
          from windlass.job j where j.seq = _p.seq;
    end if;
  elsif _state = 6 then
    perform windlass._count_total(_p.queue_kind, _p.lane_queue, _p.lane, 'cancelled');
    perform windlass._emit(_now, 'job.cancelled', _p.seq, null, _reason);
  end if;
end $$;
