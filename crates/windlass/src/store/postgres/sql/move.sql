-- Moving between stores: records of another store are taken over as they are, while nobody works
-- here.

-- The last move into this schema. Until it is finished, no one opens the store. `stand` is where
-- the source stood when it began, `jobs` and `object` are the last that were taken over.
create table windlass.move (
  one boolean primary key default true check (one),
  source text not null,
  stand text not null,
  jobs bigint not null default 0,
  object jsonb,
  settled boolean not null default false,
  began_at timestamptz not null default now(),
  finished_at timestamptz
);

-- Deletes everything that is stored.
create function windlass._require_empty() returns void language plpgsql as $$
begin
  execute (select 'truncate ' || string_agg(format('%I.%I', schemaname, tablename), ', ')
      from pg_tables
    where schemaname = 'windlass' and tablename <> 'migration');
  insert into windlass.settings default values;
end $$;

-- Begins a move, or goes on with it; one whose source has changed begins anew.
create function windlass.move_begin(_source text, _stand text, out jobs bigint, out object jsonb,
    out settled boolean, out finished boolean) language plpgsql as $$
declare
  _m windlass.move;
begin
  lock table windlass.move in share row exclusive mode;
  select * into _m from windlass.move;
  if _m.source = _source and _m.stand = _stand then
    jobs := _m.jobs; object := _m.object; settled := _m.settled;
    finished := _m.finished_at is not null;
    return;
  end if;
  if _m.finished_at is null and _m.source <> _source then
    raise exception using errcode = 'WL001', message = format(
      'a move from %s into it is not finished; finish that first, or delete the schema', _m.source);
  elsif _m.finished_at is null and _m.source = _source then
    perform windlass._require_empty();
  elsif exists (select from windlass.job) or exists (select from windlass.object) then
    raise exception 'it holds jobs or objects already; move into a schema that holds nothing'
      using errcode = 'WL001';
  elsif exists (select from windlass.worker where seen_at > (select windlass.now_us()) - 60000000)
      then
    raise exception 'a worker is at work there; stop it, and try again in a minute'
        using errcode = 'WL001';
  end if;
  delete from windlass.move;
  insert into windlass.move (source, stand) values (_source, _stand);
  jobs := 0; settled := false; finished := false;
end $$;

-- Notes how far a move has come, unless another one has come further.
create function windlass._move_on(_after bigint, _jobs bigint, _object jsonb, _settled boolean)
returns void
language plpgsql as $$
begin
  update windlass.move m set jobs = _jobs, object = coalesce(_object, m.object), settled = _settled
    where m.jobs = _after and not m.settled and m.finished_at is null;
  if not found then
    raise exception 'another move writes to it' using errcode = 'WL001';
  end if;
end $$;

-- Takes over what is not about one job: settings and what rate limits have used. Before the jobs.
create function windlass.move_settings(_queues jsonb, _kinds jsonb) returns void
language plpgsql as $$
begin
  perform windlass._register_names(
    coalesce((select array_agg(distinct q->>'name') from jsonb_array_elements(_queues) q), '{}'),
    coalesce((select array_agg(distinct k->>'name') from jsonb_array_elements(_kinds) k), '{}'));
  update windlass.queue q set paused = n.paused, max_depth = n.max_depth, ageing = n.ageing,
      lanes = n.lanes,
      paused_lanes = n.paused_lanes, lane_depth = n.lane_depth, on_dead = n.on_dead,
          on_empty = n.on_empty, dropped = n.dropped
    from jsonb_to_recordset(_queues) as n(name text, paused boolean, max_depth bigint,
        ageing bigint, lanes int,
      paused_lanes int[], lane_depth bigint, on_dead text, on_empty text, dropped bigint)
    where q.name = n.name;
  update windlass.kind k set full_at = n.full_at from jsonb_to_recordset(_kinds) as n(name text,
      full_at bigint)
    where k.name = n.name;
end $$;

-- Takes over jobs, in the order in which they were accepted; none of them runs.
create function windlass.move_jobs(_after bigint, _jobs jsonb) returns void language plpgsql as $$
begin
  perform windlass._move_on(_after, (_jobs->-1->>'seq')::bigint, null, false);
  perform windlass.register(n.queue, n.kind)
    from (select distinct j->>'queue' as queue, j->>'kind' as kind
        from jsonb_array_elements(_jobs) j) n;
  with record as materialized (
    select r.*, l.id as queue_kind, l.queue as queue_id, q.lanes, r.state < 4 as open
      from jsonb_to_recordset(_jobs) as r(seq bigint, id uuid, queue text, kind text, payload text,
          priority int,
        start_kind smallint, start_us bigint, max_attempts bigint, spec jsonb, created_at bigint,
            state smallint,
        at bigint, updated_at bigint, attempts int, recoveries int, generation int, begun boolean,
        first_started bigint, recovered_at bigint, met uuid[], unmet int, reason smallint,
            output text, error text, tries jsonb,
        tries_dropped int, progress jsonb, log jsonb, log_dropped int, steps jsonb,
            settled_by bigint)
      join windlass.queue q on q.name = r.queue join windlass.kind k on k.name = r.kind
      join windlass.queue_kind l on l.queue = q.id and l.kind = k.id
  ), job as (
    insert into windlass.job (seq, created_at, id, queue_kind, priority, start_kind, start_us,
        max_attempts, payload, spec)
      select seq, created_at, id, queue_kind, priority, start_kind, start_us, max_attempts,
          decode(payload, 'hex'), spec
        from record
  ), placed as (
    insert into windlass.job_state (seq, at, updated_at, queue_kind, attempts, recoveries,
        generation, state, steps, without_effects,
        own_max_attempts, begun, settled, token, reason, unmet, first_started, output, met,
            expires_at, lane_queue, partition, lane, object)
      select seq, at, updated_at, queue_kind, attempts, recoveries, generation, state,
          coalesce(jsonb_array_length(steps), 0), windlass._without_side_effects(spec),
              max_attempts, begun, settled_by is not null, settled_by, reason, unmet, first_started,
          decode(output, 'hex'), met,
          case when open and attempts = 0 and generation = 0
              then created_at + (spec->>'expires_after')::bigint end,
          case when open and spec ? 'lane' then queue_id end,
          case when open then (spec->'lane'->>'partition')::bigint end,
          case when open then windlass._lane((spec->'lane'->>'partition')::bigint, lanes) end,
          case when open and spec ? 'object'
            then windlass._address(spec->'object') end
        from record
  ), waiting as (
    insert into windlass.scheduled (at, seq) select at, seq from record where state = 1
  ), finished as (
    insert into windlass.history (at, n, lows, highs)
      select p.at, cardinality(p.seqs), r.lows, r.highs from (
          select at, array_agg(seq order by seq) as seqs from record where state in (4, 6)
              group by at) p
        cross join lateral windlass._to_ranges(p.seqs) r
  ), dead as (
    insert into windlass.dead (queue, at, seq) select queue_id, at, seq from record where state = 5
  ), logged as (
    insert into windlass.attempt_log (seq, error, attempts, attempts_dropped, recovered_at,
        progress, progress_token, log, log_dropped)
      select seq, error, tries, tries_dropped, recovered_at, progress, settled_by, log, log_dropped
        from record
        where coalesce(error, tries::text, recovered_at::text, progress::text,
            log::text) is not null
          or tries_dropped > 0 or log_dropped > 0
  ), step as (
    insert into windlass.step (seq, number, name, result)
      select r.seq, s.n - 1, s.step->>'name', decode(s.step->>'result', 'hex')
        from record r cross join lateral jsonb_array_elements(r.steps) with ordinality as s(step, n)
  ), depending as (
    insert into windlass.dependency (on_id, seq, on_failure, met)
      select (d->>'on')::uuid, r.seq, (d->>'on_failure')::int,
          (d->>'on')::uuid = any (coalesce(r.met, '{}'))
        from record r cross join lateral jsonb_array_elements(r.spec->'depends_on') d where r.open
        on conflict do nothing
  ), ranked as (
    insert into windlass.counter_delta (queue, priority, ready)
      select queue_id, priority, count(*) from record where state < 3 and priority <> 0
          group by queue_id, priority
  )
  insert into windlass.counter_delta (queue_kind, queue, blocked, scheduled, ready, completed,
      dead, cancelled)
    select queue_kind, queue_id, count(*) filter (where state = 0),
        count(*) filter (where state = 1),
        count(*) filter (where state = 2), count(*) filter (where state = 4),
            count(*) filter (where state = 5), count(*) filter (where state = 6)
      from record group by queue_kind, queue_id;
    perform windlass._move_keys(_after, (_jobs->-1->>'seq')::bigint);
end $$;

-- Gives unique keys to the jobs with numbers above `_after` up to `_last`. Of jobs with the same
-- key, the one whose window ends last holds it, and among those the last.
create function windlass._move_keys(_after bigint, _last bigint) returns void language plpgsql as $$
begin
  insert into windlass.unique_key as k (queue_kind, key, seq, id, until)
    select distinct on (j.queue_kind, j.spec->'unique'->>'key') j.queue_kind,
        j.spec->'unique'->>'key', j.seq, j.id, u.until
      from windlass.job j join windlass.job_state p using (seq)
        cross join lateral (select j.created_at + (j.spec->'unique'->>'window')::bigint as until) u
      where j.seq > _after and j.seq <= _last and j.spec ? 'unique'
        and (p.state < 4 or (j.spec->'unique'->>'scope' = 'any'
            and not (p.state = 6 and p.reason = 5)))
      order by j.queue_kind, j.spec->'unique'->>'key', u.until desc nulls first, j.seq desc
    on conflict (queue_kind, key) do update set seq = excluded.seq, id = excluded.id,
        until = excluded.until
      where k.until is not null and (excluded.until is null or excluded.until >= k.until)
        or k.until is null and excluded.until is null;
end $$;

-- Takes over objects, after the jobs.
create function windlass.move_objects(_after bigint, _objects jsonb) returns void
language plpgsql as $$
begin
  perform windlass._move_on(_after, _after, jsonb_build_array(_objects->-1->>'kind',
      _objects->-1->>'name', _objects->-1->>'key'), false);
  insert into windlass.object (address, kind, name, key, version, incarnation, status, reason,
      created_at,
      updated_at, last_success_at, runs, failures, recoveries, last_recovery_at, alarm, purge_at,
          state)
    select o.kind || '/' || o.name || '/' || o.key, o.kind, o.name, o.key, o.version, o.incarnation,
        o.status, o.reason, o.created_at, o.updated_at, o.last_success_at, o.runs, o.failures,
            o.recoveries, o.last_recovery_at, o.alarm, o.purge_at, decode(o.state, 'hex')
      from jsonb_to_recordset(_objects) as o(kind text, name text, key text, version bigint,
          incarnation bigint,
        status smallint, reason text, created_at bigint, updated_at bigint, last_success_at bigint,
            runs bigint, failures bigint,
        recoveries int, last_recovery_at bigint, alarm uuid, purge_at bigint, state text);
end $$;

-- When all jobs and objects are there: what has happened so far, who is next, and the next numbers.
create function windlass.move_settle(_after bigint, _queue_kinds jsonb, _lanes jsonb,
    _sequence bigint, _token bigint, _event bigint) returns void language plpgsql as $$
declare
  _now bigint := windlass.now_us();
begin
  perform windlass._move_on(_after, _after, null, true);
  perform windlass.register(l->>'queue', l->>'kind') from jsonb_array_elements(_queue_kinds) l;
  insert into windlass.counter_delta (queue_kind, queue, t_enqueued, t_completed, t_failed,
      t_retried, t_rescued, t_dead, t_cancelled)
    select l.id, l.queue, (n.t->>0)::bigint, (n.t->>1)::bigint, (n.t->>2)::bigint,
        (n.t->>3)::bigint, (n.t->>4)::bigint, (n.t->>5)::bigint, (n.t->>6)::bigint
      from jsonb_to_recordset(_queue_kinds) as n(queue text, kind text, t jsonb)
      join windlass.queue q on q.name = n.queue join windlass.kind k on k.name = n.kind
      join windlass.queue_kind l on l.queue = q.id and l.kind = k.id;
  insert into windlass.counter_delta (queue, lane, t_enqueued, t_completed, t_failed, t_retried,
      t_rescued, t_dead, t_cancelled)
    select q.id, n.lane, (n.t->>0)::bigint, (n.t->>1)::bigint, (n.t->>2)::bigint, (n.t->>3)::bigint,
        (n.t->>4)::bigint, (n.t->>5)::bigint, (n.t->>6)::bigint
      from jsonb_to_recordset(_lanes) as n(queue text, lane bigint, t jsonb)
      join windlass.queue q on q.name = n.queue;
  update windlass.queue q set next_lane = greatest(q.next_lane, t.next) from (
      select l.queue, max((j.spec->'lane'->>'turn')::bigint) + 1 as next
        from windlass.job j join windlass.queue_kind l on l.id = j.queue_kind
            where j.spec->'lane' ? 'turn' group by l.queue) t
    where t.queue = q.id;
  perform windlass._rebuild_lanes(q.id) from windlass.queue q order by q.id;
  -- Cascades that were not through when the source was closed go on here.
  insert into windlass.owing (seq)
    select distinct p.seq from windlass.dependency e join windlass.job j on j.id = e.on_id
      join windlass.job_state p on p.seq = j.seq
      where not e.met and (p.state = 4 or (p.state > 4 and e.on_failure <> 2));
  perform windlass._apply_effects(_now);
  perform setval('windlass.job_seq_seq', greatest(_sequence, 1), false);
  -- Tokens only grow, also beyond those of the source.
  perform setval('windlass.token', greatest(_token / {LEASE_TOKENS} + 2,
      (select last_value from windlass.token) + 1), false);
  update windlass.settings set last_event = greatest(last_event, _event - 1);
  perform windlass._fold_counters();
end $$;

-- To be called once in a database that was restored from a backup, before anybody works on it:
-- lease tokens go on beyond those that the original can have handed out by now, so that a worker
-- which still runs on a job of the original can never settle it here.
create function windlass.restored() returns void language sql as $$
  select setval('windlass.token', greatest((select last_value from windlass.token) + 1048576,
    (extract(epoch from clock_timestamp()) * 1000)::bigint))
$$;
