-- Accepting jobs: one batch, one decision, one commit.
--
-- A batch is a handful of statements over all of its items, whatever is in it: an item is what
-- stands at its number in each of the arrays. One thing is found by another in an index (always by
-- a lateral look-up, so that no statistics make the planner read a whole table) or in an object of
-- JSON, which is sorted.

create type windlass.item as (
  id uuid,
  queue_kind int,
  payload bytea,
  priority int,
  start_kind smallint,
  start_us bigint,
  max_attempts bigint,
  spec jsonb
);

-- The items of a batch, each with its number. PostgreSQL inlines it.
create function windlass._numbered(_items windlass.item[])
returns table (id uuid, queue_kind int, payload bytea, priority int, start_kind smallint,
    start_us bigint, max_attempts bigint, spec jsonb, n bigint)
language sql immutable as $$
  select i.* from unnest(_items) with ordinality i
$$;

-- Jobs as they stand in JSON, with their payloads in hexadecimal.
create function windlass._items(_jobs jsonb) returns windlass.item[] language sql as $$
  select coalesce(array_agg(row(
      (j->>'id')::uuid, windlass.register(j->>'queue', j->>'kind'), decode(j->>'payload', 'hex'),
      (j->>'priority')::int, (j->>'start_kind')::smallint, (j->>'start_us')::bigint,
      (j->>'max_attempts')::bigint, nullif(j->'spec', 'null'))::windlass.item order by n), '{}')
    from jsonb_array_elements(_jobs) with ordinality as e(j, n)
$$;

-- Accepts a batch. A row per job, in order, and one with no id that tells whom to ring. If all of
-- them are new and without side effects, that last row is the only one: it has their numbers, and
-- how deep the queue of each is now (one for all if they have one queue).
create function windlass.accept(_ids uuid[], _queue_kinds int[], _payloads bytea[],
    _priorities int[], _start_kinds smallint[], _starts bigint[], _max_attempts bigint[],
    _specs jsonb[])
returns table (id uuid, acceptance int, depth bigint, sequence bigint, lane bigint, ahead bigint,
    rings text[], sequences bigint[], depths bigint[])
language plpgsql set lock_timeout = '10s' set plan_cache_mode = force_generic_plan set jit = off
  set enable_seqscan = off set enable_bitmapscan = off as $$
declare
  _now bigint := windlass.now_us();
  _plain record;
  _items windlass.item[];
  _placed jsonb;
begin
  _plain := windlass._look_up_plain(_ids, _queue_kinds, _priorities, _specs, _now);
  if _plain.is_plain then
    _plain := windlass._accept_plain(_ids, _queue_kinds, _payloads, _priorities, _start_kinds,
      _starts, _max_attempts, _specs, _plain.queues, _plain.ranks, _plain.rings, _now);
    sequences := _plain.sequences;
    depths := _plain.depths;
    rings := _plain.rings;
    return next;
    if windlass._is_fold_due(_now) then perform windlass._fold_counters(); end if;
    return;
  end if;
  perform windlass._require_read_committed();
  select array_agg(row(u.id, u.queue_kind, u.payload, u.priority, u.start_kind, u.start_us,
      u.max_attempts, u.spec)::windlass.item order by u.n) into _items
    from unnest(_ids, _queue_kinds, _payloads, _priorities, _start_kinds, _starts, _max_attempts,
        _specs)
      with ordinality as u(id, queue_kind, payload, priority, start_kind, start_us, max_attempts,
          spec, n);
  perform windlass._lock_for_batch(_items);
  _now := windlass.now_us();
  perform windlass._pass_time(_now);
  _placed := windlass._accept_batch(_items, null, null, _now);
  rings := windlass._apply_effects(_now);
  return query select (p->>'id')::uuid, (p->>'acceptance')::int, (p->>'depth')::bigint,
      (p->>'sequence')::bigint, (p->>'lane')::bigint, (p->>'position')::bigint, null::text[],
      null::bigint[], null::bigint[]
    from jsonb_array_elements(_placed) p;
  return next;
end $$;

-- Whether these are new jobs without side effects, in queues without a limit. If so, the queue of
-- each (one for all if it is the same), their ranks (null if all are 0), and whom to ring.
create function windlass._look_up_plain(_ids uuid[], _queue_kinds int[], _priorities int[],
    _specs jsonb[], _now bigint, out is_plain boolean, out queues int[], out ranks bigint[],
    out rings text[]) language plpgsql as $$
begin
  if _specs is not null then
    is_plain := (select bool_and(windlass._without_side_effects(s)) from unnest(_specs) s);
    if not is_plain then return; end if;
  end if;
  if _queue_kinds[1] = all (_queue_kinds) then
    select q.max_depth is null and not exists (select from unnest(_ids) i cross join lateral (
          select from windlass.job j where j.id = i offset 0) j), array[q.id],
        case when q.ageing is not null or 0 <> any (_priorities)
          then array(select windlass._rank(q.ageing, p, _now) from unnest(_priorities) p) end,
        array['q:' || q.name] into is_plain, queues, ranks, rings
      from windlass.queue_kind l join windlass.queue q on q.id = l.queue
      where l.id = _queue_kinds[1];
    return;
  end if;
  select bool_and(q.max_depth is null) and not exists (select from unnest(_ids) i
        cross join lateral (select from windlass.job j where j.id = i offset 0) j),
      array_agg(l.queue), array_agg(windlass._rank(q.ageing, i.priority, _now)),
      array_agg(distinct 'q:' || q.name) into is_plain, queues, ranks, rings
    from unnest(_queue_kinds, _priorities) as i(queue_kind, priority)
      cross join lateral (select l.queue from windlass.queue_kind l
          where l.id = i.queue_kind offset 0) l
      cross join lateral (select q.name, q.ageing, q.max_depth from windlass.queue q
          where q.id = l.queue offset 0) q;
end $$;

-- Accepts new jobs without side effects, in queues without a limit: all at once, with what
-- `_look_up_plain` found. Which jobs these are makes no other difference than the cost;
-- tests/postgres/bulk.rs compares both paths. One that is accepted elsewhere at the same time fails
-- with SQLSTATE 23505: whoever tries again finds it.
--
-- Statements one after the other: as parts of one they cost more, for a single job (1.6 times) and
-- for a thousand (1.7 times).
create function windlass._accept_plain(_ids uuid[], _queue_kinds int[], _payloads bytea[],
    _priorities int[], _start_kinds smallint[], _starts bigint[], _max_attempts bigint[],
    _specs jsonb[], _queues int[], _ranks bigint[], inout rings text[], _now bigint,
    out sequences bigint[], out depths bigint[])
language plpgsql as $$
declare
  _dues bigint[];
begin
  if cardinality(_ids) = 1 then
    sequences := array[nextval('windlass.job_seq_seq')];
  else
    sequences := array(select nextval('windlass.job_seq_seq') from unnest(_ids));
  end if;
  if 0 <> any (_start_kinds) then
    _dues := array(select windlass._start_time(i.start_kind, i.start_us, _now)
      from unnest(_start_kinds, _starts) as i(start_kind, start_us));
  end if;
  insert into windlass.job (seq, created_at, id, queue_kind, priority, start_kind, start_us,
      max_attempts, payload, spec)
    select i.seq, _now, i.id, i.queue_kind, i.priority, i.start_kind, i.start_us, i.max_attempts,
        i.payload, i.spec
      from unnest(sequences, _ids, _queue_kinds, _payloads, _priorities, _start_kinds, _starts,
          _max_attempts, _specs)
        as i(seq, id, queue_kind, payload, priority, start_kind, start_us, max_attempts, spec);
  insert into windlass.job_state (seq, at, rank, updated_at, queue_kind, state, without_effects,
      own_max_attempts)
    select i.seq, greatest(i.due, _now), case when i.due > _now then 0 else coalesce(i.rank, 0) end,
        _now, i.queue_kind, case when i.due > _now then 1 else 2 end, true, i.max_attempts
      from unnest(sequences, _dues, _ranks, _queue_kinds, _max_attempts)
        as i(seq, due, rank, queue_kind, max_attempts);
  -- The active partition, read once: by the default of the column it would be read for every row.
  -- By the statement that inserts, as rotation.sql asks.
  insert into windlass.ready (queue_kind, rank, at, seq, never_started, part)
    select i.queue_kind, coalesce(i.rank, 0), _now, i.seq, true, a.part
      from (select (pg_sequence_last_value('windlass.active_partition') & 1)::smallint as part
          offset 0) a,
        unnest(sequences, _dues, _ranks, _queue_kinds) as i(seq, due, rank, queue_kind)
      where i.due is null or i.due <= _now;
  if _dues is not null then
    insert into windlass.scheduled (at, seq)
      select i.due, i.seq from unnest(sequences, _dues) as i(seq, due) where i.due > _now;
  end if;
  perform windlass._count_accepted(_queue_kinds, _queues, _priorities, _dues, _now);
  perform windlass._emit_accepted(_ids, _queue_kinds, _priorities, _dues, _now);
  depths := case when cardinality(_queues) = 1 then array[windlass._depth(_queues[1])]
    else windlass._depths(_queues) end;
end $$;

-- Counts jobs that were accepted. `_queues` has one for all if it is the same; `_dues` is null if
-- all of them are ready.
create function windlass._count_accepted(_queue_kinds int[], _queues int[], _priorities int[],
    _dues bigint[], _now bigint) returns void language plpgsql as $$
begin
  if _dues is null and cardinality(_queues) = 1 then
    insert into windlass.counter_delta (queue_kind, queue, ready, t_enqueued)
      values (_queue_kinds[1], _queues[1], cardinality(_queue_kinds), cardinality(_queue_kinds));
  else
    insert into windlass.counter_delta (queue_kind, queue, scheduled, ready, t_enqueued)
      select i.queue_kind, coalesce(i.queue, _queues[1]), count(*) filter (where i.due > _now),
          count(*) filter (where i.due is null or i.due <= _now), count(*)
        from unnest(_queue_kinds, _queues, _dues) as i(queue_kind, queue, due)
        group by i.queue_kind, coalesce(i.queue, _queues[1]);
  end if;
  if 0 <> any (_priorities) then
    insert into windlass.counter_delta (queue, priority, ready)
      select coalesce(i.queue, _queues[1]), i.priority, count(*)
        from unnest(_queues, _priorities) as i(queue, priority)
        where i.priority <> 0 group by coalesce(i.queue, _queues[1]), i.priority;
  end if;
end $$;

-- Tells of jobs that were accepted. What they have in common is told once.
create function windlass._emit_accepted(_ids uuid[], _queue_kinds int[], _priorities int[],
    _dues bigint[], _now bigint) returns void language plpgsql as $$
begin
  insert into windlass.event (at, n, topic, jobs, queue_kinds, a)
    values (_now, cardinality(_ids), 'job.enqueued', _ids,
      case when _queue_kinds[1] = all (_queue_kinds) then _queue_kinds[1:1] else _queue_kinds end,
      case when _priorities[1] = all (_priorities) then _priorities[1:1] else _priorities end);
  if _dues is not null then
    insert into windlass.event (at, n, topic, jobs, queue_kinds, a)
      select _now, count(*), 'job.scheduled', array_agg(i.id), array_agg(i.queue_kind),
          array_agg(i.due)
        from unnest(_ids, _queue_kinds, _dues) as i(id, queue_kind, due)
        where i.due > _now having count(*) > 0;
  end if;
end $$;

-- How deep each of these queues is; one for all if it is the same.
create function windlass._depths(_queues int[]) returns bigint[] language plpgsql as $$
begin
  if _queues[1] = all (_queues) then return array[windlass._depth(_queues[1])]; end if;
  return (
    with depth as materialized (
      select q.queue, windlass._depth(q.queue) as depth
        from (select distinct queue from unnest(_queues) as i(queue)) q
    )
    select array_agg(d.depth order by i.n)
      from unnest(_queues) with ordinality as i(queue, n) join depth d on d.queue = i.queue);
end $$;

-- Accepts a batch, all or none, and answers for each item. `_object` is an object that comes into
-- being in the same commit. With `_must_add`, that item (from 1) must be a new job. Where nobody
-- reads the answer, it has no more than the ids: to count who waits takes longer than the rest,
-- where many differences are to be added up.
create function windlass._accept_batch(_items windlass.item[], _object text, _must_add int,
    _now bigint, _is_read boolean default true)
returns jsonb language plpgsql as $$
declare
  _who record;
  _q record;
  _twice uuid;
begin
  if coalesce(cardinality(_items), 0) = 0 then return '[]'; end if;
  perform windlass._refuse_unknown_objects(_items, _object);
  select i.id into _twice from unnest(_items) i group by i.id having count(*) > 1 limit 1;
  if found then
    perform windlass._refuse(jsonb_build_object('refusal', 'id_twice', 'job', _twice));
  end if;
  perform windlass._lock_for_batch(_items);
  select * into _who from windlass._find_existing(_items, _now);
  if _who.acceptances[_must_add] = 1 then
    perform windlass._refuse(jsonb_build_object('refusal', 'id_reused',
      'job', _items[_must_add].id));
  elsif _who.acceptances[_must_add] > 1 then
    perform windlass._refuse(jsonb_build_object('refusal', 'key_taken',
      'job', _items[_must_add].id, 'holder', _who.stands[_must_add]));
  end if;
  _items := windlass._resolve(_items, _who.stands, _who.acceptances);
  _items := windlass._assign_lanes(_items, _who.acceptances);
  perform windlass._refuse_overflow(_items, _who.acceptances);
  perform windlass._accept(_items, _who.seqs, _who.acceptances, _now);
  for _q in
    select distinct q.id, q.name, q.max_depth from (
        select distinct i.queue_kind from windlass._numbered(_items) i
          where _who.acceptances[i.n] = 0) i
      cross join lateral (select l.queue from windlass.queue_kind l
          where l.id = i.queue_kind offset 0) l
      cross join lateral (select q.id, q.name, q.max_depth from windlass.queue q
        where q.id = l.queue and q.max_depth is not null offset 0) q
      order by q.name
  loop
    if windlass._depth(_q.id) = _q.max_depth then
      perform windlass._emit_once(_now, 'queue.full', jsonb_build_object('queue', _q.name, 'limit',
          _q.max_depth));
    end if;
  end loop;
  if not _is_read then
    return (select jsonb_agg(jsonb_build_object('id', s.id) order by s.n)
      from unnest(_who.stands) with ordinality as s(id, n));
  end if;
  return windlass._lane_positions_of(_items, _who.stands, _who.seqs, _who.acceptances);
end $$;

-- Accepts the items that are new, under these numbers, and tells of those that are not.
create function windlass._accept(_items windlass.item[], _seqs bigint[], _acceptances int[],
    _now bigint) returns void language plpgsql as $$
begin
  perform windlass._insert_jobs(_items, _seqs, _acceptances, _now);
  perform windlass._place_jobs(_items, _seqs, _acceptances, _now);
end $$;

-- Writes down what the producers said, and who depends on whom.
create function windlass._insert_jobs(_items windlass.item[], _seqs bigint[], _acceptances int[],
    _now bigint) returns void
language plpgsql set enable_hashjoin = off set enable_mergejoin = off as $$
declare
  _new int := (select count(*) from unnest(_acceptances) a where a = 0);
  _added int;
begin
  insert into windlass.job (seq, created_at, id, queue_kind, priority, start_kind, start_us,
      max_attempts, payload, spec)
    select _seqs[i.n], _now, i.id, i.queue_kind, i.priority, i.start_kind, i.start_us,
        i.max_attempts, i.payload, i.spec
      from windlass._numbered(_items) i
      where _acceptances[i.n] = 0 order by i.n
    on conflict (id) do nothing;
  get diagnostics _added = row_count;
  if _added < _new then
    -- Someone accepts one of them at the same time: whoever tries again finds it.
    raise exception 'a job of the batch is being accepted elsewhere' using errcode = '40001';
  end if;
  insert into windlass.dependency (on_id, seq, on_failure, met)
    select d.id, _seqs[i.n], d.on_failure, coalesce(x.met, false)
      from windlass._numbered(_items) i
        cross join lateral (select (e.d->>'on')::uuid as id, (e.d->>'on_failure')::int as on_failure
          from jsonb_array_elements(i.spec->'depends_on') as e(d)) d
        left join lateral (
          select x.state = 4 or (x.state > 4 and d.on_failure = 1) as met from windlass.job o
            cross join lateral (select x.state from windlass.job_state x
                where x.seq = o.seq offset 0) x
            where o.id = d.id offset 0) x on true
      where _acceptances[i.n] = 0;
end $$;

-- Puts the new jobs where they are found, counts them and tells of them.
create function windlass._place_jobs(_items windlass.item[], _seqs bigint[], _acceptances int[],
    _now bigint) returns void
language plpgsql set enable_hashjoin = off set enable_mergejoin = off as $$
begin
  with item as materialized (
    select i.n, _seqs[i.n] as seq, i.id, i.queue_kind, i.priority, i.max_attempts, i.spec, l.queue,
        q.lanes, e.met,
        coalesce(e.unmet, 0) as unmet, windlass._without_side_effects(i.spec) as without_effects,
            d.due,
        case when e.unmet > 0 then 0 when d.due > _now then 1 else 2 end as state,
        case when e.unmet > 0 or d.due > _now then d.due else _now end as at,
        case when e.unmet > 0 or d.due > _now then 0 else windlass._rank(q.ageing, i.priority,
            _now) end as rank,
        case when i.spec ? 'lane' then l.queue end as lane_queue,
        (i.spec->'lane'->>'partition')::bigint as partition,
        windlass._lane((i.spec->'lane'->>'partition')::bigint, q.lanes) as lane
      from windlass._numbered(_items) i
        cross join lateral (select l.queue from windlass.queue_kind l
            where l.id = i.queue_kind offset 0) l
        cross join lateral (select q.ageing, q.lanes from windlass.queue q
            where q.id = l.queue offset 0) q
        cross join lateral (select windlass._start_time(i.start_kind, i.start_us, _now) as due) d
        left join lateral (
          select array_agg(e.on_id order by d.k) filter (where e.met) as met,
              count(*) filter (where not e.met) as unmet
            from jsonb_array_elements(i.spec->'depends_on') with ordinality as d(d, k)
              cross join lateral (select e.on_id, e.met from windlass.dependency e
                where e.on_id = (d.d->>'on')::uuid and e.seq = _seqs[i.n] offset 0) e) e
                    on i.spec ? 'depends_on'
      where _acceptances[i.n] = 0
  ), placed as (
    insert into windlass.job_state (seq, at, rank, updated_at, queue_kind, state, without_effects,
        own_max_attempts, met, unmet, lane_queue, partition, lane, object, expires_at)
      select seq, at, rank, _now, queue_kind, state, without_effects, max_attempts, met,
          nullif(unmet, 0), lane_queue,
          partition, lane, case when spec ? 'object' then windlass._address(spec->'object') end,
          _now + (spec->>'expires_after')::bigint
        from item order by n
  ), listed as (
    insert into windlass.ready (queue_kind, rank, at, seq, never_started)
      select queue_kind, rank, at, seq, without_effects
          from item where state = 2 and lane_queue is null
  ), in_lane_order as (
    insert into windlass.lane_ready (queue, lane, rank, at, seq)
      select lane_queue, lane, rank, at, seq from item where state = 2 and lane_queue is not null
  ), waiting as (
    insert into windlass.scheduled (at, seq) select at, seq from item where state = 1
  ), counted as (
    insert into windlass.counter_delta (queue_kind, queue, lane, blocked, scheduled, ready,
        t_enqueued)
      select queue_kind, queue, null, count(*) filter (where state = 0),
          count(*) filter (where state = 1),
          count(*) filter (where state = 2), count(*) from item group by queue_kind, queue
      union all
      select null, lane_queue, lane, count(*) filter (where state = 0),
          count(*) filter (where state = 1), count(*) filter (where state = 2), count(*) from item
        where lane_queue is not null and lanes is not null group by lane_queue, lane
  ), ranked as (
    insert into windlass.counter_delta (queue, priority, ready)
      select queue, priority, count(*) from item where priority <> 0 group by queue, priority
  ), owed as (
    insert into windlass.pending_effect (effect, queue, lane)
      select distinct 'lane_changed'::windlass.effect, lane_queue, lane from item
        where lane_queue is not null
      union all
      select distinct 'ring_queue'::windlass.effect, queue, null::bigint from item where state > 0
  )
  insert into windlass.event (at, n, topic, jobs, queue_kinds, a)
    select _now, count(*), t.topic, array_agg(t.id order by t.n), array_agg(t.queue_kind
        order by t.n), array_agg(t.a order by t.n)
      from (
        select 1 as first, 'job.enqueued' as topic, id, queue_kind, n, priority::bigint as a
            from item
        union all
        select 2, 'job.blocked', id, queue_kind, n, unmet from item where state = 0
        union all
        select 3, 'job.scheduled', id, queue_kind, n, at from item where state = 1
        union all
        select 4, 'job.deduplicated', j.id, j.queue_kind, x.n, x.acceptance - 2
          from unnest(_seqs, _acceptances) with ordinality as x(seq, acceptance, n)
            cross join lateral (select j.id, j.queue_kind from windlass.job j
                where j.seq = x.seq offset 0) j
          where x.acceptance > 1) t
      group by t.first, t.topic, (t.n - 1) / {EVENTS_PER_ROW} order by t.first, min(t.n);
end $$;

create function windlass._lane_positions_of(_items windlass.item[], _stands uuid[], _seqs bigint[],
    _acceptances int[])
returns jsonb language plpgsql set enable_hashjoin = off set enable_mergejoin = off as $$
declare
  _depths jsonb;
  _has_lanes boolean;
  _positions jsonb;
begin
  select jsonb_object_agg(q.id, windlass._depth(q.id)), bool_or(q.lanes is not null) into _depths,
      _has_lanes from (
      select distinct l.queue from (select distinct i.queue_kind from unnest(_items) i) i
        cross join lateral (select l.queue from windlass.queue_kind l
            where l.id = i.queue_kind offset 0) l) l
    cross join lateral (select q.id, q.lanes from windlass.queue q where q.id = l.queue offset 0) q;
  if _has_lanes then _positions := windlass._positions(_seqs); end if;
  return (
    select coalesce(jsonb_agg(jsonb_build_object('id', s.stand, 'acceptance', s.acceptance,
        'depth', _depths->(l.queue::text), 'sequence', coalesce(j.seq, 0),
        'lane', case when q.lanes is not null and p.state < 3 then p.lane end,
        'position', case when q.lanes is not null and p.state < 3 and p.lane is not null
          then (_positions->>(p.seq::text))::bigint end) order by s.n), '[]')
      from rows from (unnest(_items), unnest(_stands, _seqs, _acceptances)) with ordinality
          as s(id, queue_kind, payload, priority, start_kind, start_us, max_attempts, spec, stand,
              seq, acceptance, n)
        cross join lateral (select l.queue from windlass.queue_kind l
            where l.id = s.queue_kind offset 0) l
        cross join lateral (select q.lanes from windlass.queue q where q.id = l.queue offset 0) q
        left join lateral (select j.seq from windlass.job j where j.seq = s.seq offset 0) j on true
        left join lateral (select p.* from windlass.job_state p where p.seq = s.seq offset 0) p
            on true);
end $$;
