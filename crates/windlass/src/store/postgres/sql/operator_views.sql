-- What an operator reads with psql: states in words, times with a time zone, payloads as JSON where
-- they are. Read-only and stable; nothing of the engine depends on them. `docs/postgres.md` lists
-- the columns. A role that may read them needs no right to the tables behind them.

create function windlass._timestamp(_us bigint) returns timestamptz language sql immutable as $$
  -- Beyond what a timestamp holds, it is for ever.
  select case when _us >= 9223371331200000000 then 'infinity'::timestamptz
    else 'epoch'::timestamptz + _us * interval '1 microsecond' end
$$;

-- Bytes as JSON; null if they are not JSON, or are not text at all.
create function windlass._json(_bytes bytea) returns jsonb language plpgsql immutable strict as $$
begin
  return convert_from(_bytes, 'UTF8')::jsonb;
exception when others then
  return null;
end $$;

create function windlass._reason(_state int, _reason int) returns text language sql immutable as $$
  select case _state
    when 5 then (array['attempts exhausted', 'permanent failure', 'duration exhausted',
        'crashed too often', 'dependency failed'])[_reason + 1]
    when 6 then (array['requested', 'by its handler', 'expired', 'queue cleared',
        'dependency cancelled', 'replaced'])[_reason + 1] end
$$;

-- Engine time for a reader: without the part of `now_us` that needs rights to more than a view.
create view windlass.engine_clock as
  select (extract(epoch from clock_timestamp()) * 1000000)::bigint + s.last_value as now_us
    from windlass.clock_shift s;

-- One row per kept job. A scheduled job whose time has come is ready, as everywhere.
create view windlass.jobs as
  select j.id, q.name as queue, k.name as kind,
      windlass._state_name(case when p.state = 1 and p.at <= c.now_us then 2
          else p.state end) as state,
      windlass._reason(p.state, p.reason) as reason, j.priority, p.attempts, p.recoveries,
          p.generation, windlass._timestamp(j.created_at) as created_at,
          windlass._timestamp(p.updated_at) as updated_at,
      windlass._timestamp(case when p.state in (0, 1, 2) then p.at end) as due_at,
      windlass._timestamp(p.first_started) as first_started_at,
      windlass._timestamp(case when p.state >= 4 then p.at end) as finished_at,
      case when p.state = 3 then p.worker end as worker,
      windlass._timestamp(case when p.state = 3 then p.at end) as leased_until,
      d.error, windlass._json(j.payload) as payload, octet_length(j.payload) as payload_bytes,
      windlass._json(p.output) as output, j.spec->'unique'->>'key' as unique_key,
      j.spec->'lane'->>'key' as lane_key, j.spec->'tags' as tags, j.spec->'metadata' as metadata,
      (j.spec->>'parent')::uuid as parent, j.seq as sequence
    from windlass.job j
      join windlass.job_state_now p on p.seq = j.seq
      join windlass.queue_kind l on l.id = j.queue_kind
      join windlass.queue q on q.id = l.queue
      join windlass.kind k on k.id = l.kind
      left join windlass.attempt_log d on d.seq = j.seq
      cross join windlass.engine_clock c;

-- Jobs that gave up, with why. Narrower than `jobs`, and found without looking at the others.
create view windlass.dead_letters as
  select j.id, q.name as queue, k.name as kind, windlass._reason(5, p.reason) as reason, d.error,
      p.attempts,
      windlass._timestamp(x.at) as died_at, windlass._timestamp(j.created_at) as created_at,
      windlass._json(j.payload) as payload, j.seq as sequence
    from windlass.dead x
      join windlass.job j on j.seq = x.seq
      join windlass.job_state p on p.seq = x.seq
      join windlass.queue q on q.id = x.queue
      join windlass.queue_kind l on l.id = j.queue_kind
      join windlass.kind k on k.id = l.kind
      left join windlass.attempt_log d on d.seq = x.seq;

-- One row per queue, from the counters. Jobs that are due and not yet promoted count as scheduled.
create view windlass.queues as
  select q.name as queue, q.paused, q.max_depth, q.lanes,
      coalesce(t.blocked, 0) as blocked, coalesce(t.scheduled, 0) as scheduled,
          coalesce(t.ready, 0) as ready,
      coalesce(t.running, 0) as running, coalesce(t.completed, 0) as completed,
          coalesce(t.dead, 0) as dead,
      coalesce(t.cancelled, 0) as cancelled, coalesce(t.enqueued, 0) as enqueued_so_far,
      coalesce(t.finished, 0) as completed_so_far, coalesce(t.failed, 0) as failed_attempts_so_far,
      q.dropped as dead_letters_dropped
    from windlass.queue q left join (
      select queue, sum(blocked)::bigint as blocked, sum(scheduled)::bigint as scheduled,
          sum(ready)::bigint as ready, sum(running)::bigint as running,
              sum(completed)::bigint as completed,
          sum(dead)::bigint as dead, sum(cancelled)::bigint as cancelled,
              sum(t_enqueued)::bigint as enqueued,
          sum(t_completed)::bigint as finished, sum(t_failed)::bigint as failed
        from windlass.counter_delta where queue_kind is not null group by queue) t
            on t.queue = q.id;

-- Workers that were heard of, and whether they still are.
create view windlass.workers as
  select w.id as worker, w.host, w.pid, w.version, windlass._timestamp(w.started_at) as started_at,
      windlass._timestamp(w.seen_at) as seen_at, w.seen_at > c.now_us - 60000000 as alive,
          w.stopping,
      (w.info->>'slots')::int as slots, w.info->'queues' as queues, w.info->'kinds' as kinds
    from windlass.worker w cross join windlass.engine_clock c;

-- Schedules: when each enqueues its next job, and what it enqueued last.
create view windlass.schedules as
  select o.key as schedule, case o.status when 1 then 'paused' when 2 then 'failed'
      else 'active' end as status,
      s.state->'schedule' as rule, windlass._timestamp(p.at) as next_at,
      s.state->'job'->>'kind' as kind, s.state->'job'->>'queue' as queue,
      windlass._timestamp((s.state->'last'->>'planned_us')::bigint) as last_planned_at,
      (s.state->'last'->>'job')::uuid as last_job
    from windlass.object o
      cross join lateral (select windlass._json(o.state)->'state' as state) s
      left join windlass.job j on j.id = o.alarm
      left join windlass.job_state p on p.seq = j.seq
    where o.kind = 'schedule';
