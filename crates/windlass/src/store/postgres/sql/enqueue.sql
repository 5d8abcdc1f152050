-- Accepting jobs: one batch, one decision, one commit.

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

-- Jobs as they stand in JSON, with their payloads in hexadecimal.
create function windlass._items(_jobs jsonb) returns windlass.item[] language sql as $$
  select coalesce(array_agg(row(
      (j->>'id')::uuid, windlass.register(j->>'queue', j->>'kind'), decode(j->>'payload', 'hex'),
      (j->>'priority')::int, (j->>'start_kind')::smallint, (j->>'start_us')::bigint,
      (j->>'max_attempts')::bigint, nullif(j->'spec', 'null'))::windlass.item order by n), '{}')
    from jsonb_array_elements(_jobs) with ordinality as e(j, n)
$$;

-- Whether nothing but time decides about the job.
create function windlass._without_side_effects(_spec jsonb) returns boolean language sql immutable as $$
  select _spec is null or not (_spec ?| array['unique', 'depends_on', 'lane', 'object', 'expires_after'])
$$;

-- Waiting jobs of a queue.
create function windlass._depth(_queue int) returns bigint language sql volatile as $$
  select coalesce(sum(blocked + scheduled + ready), 0)::bigint from windlass.counter_delta
    where queue = _queue and queue_kind is not null
$$;

-- The state of a job someone wants to depend on, which cannot change before this transaction ends;
-- null if it is unknown.
create function windlass._dependency_state(_id uuid) returns int language sql as $$
  select p.state::int from windlass.job j join windlass.job_state p using (seq) where j.id = _id for share of p
$$;

-- Accepting a batch is a handful of statements over all of its items, whatever is in it: an item is what stands at its
-- number in each of the arrays. One thing is found by another in an index (always by a lateral look-up, so that no
-- statistics make the planner read a whole table) or in an object of JSON, which is sorted.

-- Refuses a batch with a job of an object that is not there, but for `_object`, which comes with it.
create function windlass._refuse_unknown_objects(_items windlass.item[], _object text) returns void
language plpgsql as $$
declare
  _unknown jsonb;
begin
  if not exists (select from unnest(_items) i where i.spec ? 'object') then return; end if;
  select i.object into _unknown from (
      select i.spec->'object' as object, min(i.n) as n from unnest(_items) with ordinality
          as i(id, queue_kind, payload, priority, start_kind, start_us, max_attempts, spec, n)
        where i.spec ? 'object' and windlass._address(i.spec->'object') is distinct from _object group by 1) i
    left join lateral (select true as there from windlass.object o
      where o.address = windlass._address(i.object) offset 0 for key share) o on true
    where o.there is null order by i.n limit 1;
  if found then
    perform windlass._refuse(format('there is no object %s; start it, or check its name and key',
        windlass._address(_unknown)),
      jsonb_build_object('refusal', 'unknown_object', 'object', _unknown));
  end if;
end $$;

-- Locks what a batch asks about, in one order, so that two batches do not wait for each other: queues with limits or
-- turns, and then the jobs that it depends on.
create function windlass._lock_for_batch(_items windlass.item[]) returns void language plpgsql
set enable_hashjoin = off set enable_mergejoin = off as $$
declare
  _queues int[];
  _spread int[];
begin
  select array_agg(l.queue), array_agg(l.queue) filter (where i.spread) into _queues, _spread
    from (select i.queue_kind, bool_or(coalesce(i.spec->'lane' ? 'spread', false)) as spread from unnest(_items) i group by i.queue_kind) i
      cross join lateral (select l.queue from windlass.queue_kind l where l.id = i.queue_kind offset 0) l;
  perform from windlass.queue q where q.id = any (_queues)
      and (q.max_depth is not null or q.lane_depth is not null or q.id = any (coalesce(_spread, '{}')))
    order by q.id for no key update;
  perform from windlass.job_state p where p.seq = any (array(
      select j.seq from (select distinct (d->>'on')::uuid as id
          from unnest(_items) i cross join jsonb_array_elements(i.spec->'depends_on') d) d
        cross join lateral (select j.seq from windlass.job j where j.id = d.id offset 0) j))
    order by p.seq for share;
end $$;

-- Which job stands for each item: itself if it is new (0), the one that was accepted under its id (1), or the one that
-- holds its key (2, or 3 if its payload is another). Takes the keys of new ones.
create function windlass._find_existing(_items windlass.item[], _now bigint, out stands uuid[], out seqs bigint[],
    out acceptances int[]) language plpgsql set enable_hashjoin = off set enable_mergejoin = off as $$
declare
  _never_started bigint[] := array(select nextval('windlass.job_seq_seq') from generate_series(1, cardinality(_items)));
  _reused uuid;
  _keyed boolean[];
begin
  select array_agg(i.id order by i.n), array_agg(coalesce(j.seq, _never_started[i.n]) order by i.n),
      array_agg((j.seq is not null)::int order by i.n),
      (array_agg(i.id order by i.n) filter (where not j.same))[1],
      array_agg(j.seq is null and i.spec ? 'unique' order by i.n)
    into stands, seqs, acceptances, _reused, _keyed
    from unnest(_items) with ordinality as i(id, queue_kind, payload, priority, start_kind, start_us, max_attempts, spec, n)
      left join lateral (select j.seq, j.queue_kind = i.queue_kind and j.payload = i.payload as same from windlass.job j
        where j.id = i.id offset 0) j on true;
  if _reused is not null then
    perform windlass._refuse(format('job id %s is already taken by a different job; choose a fresh id', _reused),
      jsonb_build_object('refusal', 'id_reused', 'job', _reused));
  end if;
  for _try in 1..100 loop
    if not coalesce(true = any (_keyed), false) then return; end if;
    -- The first item of each key takes it if nobody has it. By their keys, so that two batches do not wait for each
    -- other.
    insert into windlass.unique_key as k (queue_kind, key, seq, id, until)
      select distinct on (i.queue_kind, i.key) i.queue_kind, i.key, seqs[i.n], i.id, _now + i.length from (
          select i.queue_kind, i.spec->'unique'->>'key' as key, i.id, (i.spec->'unique'->>'window')::bigint as length, i.n
            from unnest(_items) with ordinality
              as i(id, queue_kind, payload, priority, start_kind, start_us, max_attempts, spec, n)
            where _keyed[i.n]) i
        order by i.queue_kind, i.key, i.n
      on conflict (queue_kind, key) do update set seq = excluded.seq, id = excluded.id, until = excluded.until
        where k.until <= _now;
    select array_agg(case when i.asks and k.seq <> seqs[i.n] then k.id else stands[i.n] end order by i.n),
        array_agg(case when i.asks and k.seq <> seqs[i.n] then k.seq else seqs[i.n] end order by i.n),
        array_agg(case when i.asks and k.seq <> seqs[i.n]
          then case when i.payload = case when k.seq = i.first then i.first_payload else j.payload end then 2 else 3 end
          else acceptances[i.n] end order by i.n),
        array_agg(i.asks and k.seq is null order by i.n)
      into stands, seqs, acceptances, _keyed
      from (
        select i.queue_kind, i.payload, i.spec->'unique'->>'key' as key, i.n, _keyed[i.n] as asks,
            first_value(seqs[i.n]) over same_key as first, first_value(i.payload) over same_key as first_payload
          from unnest(_items) with ordinality
            as i(id, queue_kind, payload, priority, start_kind, start_us, max_attempts, spec, n)
          window same_key as (partition by _keyed[i.n], i.queue_kind, i.spec->'unique'->>'key' order by i.n)) i
        left join lateral (select k.id, k.seq from windlass.unique_key k
          where i.asks and k.queue_kind = i.queue_kind and k.key = i.key offset 0) k on true
        left join lateral (select j.payload from windlass.job j
          where j.seq = k.seq and k.seq <> i.first offset 0) j on true;
  end loop;
  raise exception 'keys move too fast' using errcode = '40001';
end $$;

-- The items with the dependencies of new ones resolved: aliases as the jobs that stand for them, and none twice. Each
-- must be there and must not have failed, and none may wait for itself.
create function windlass._resolve(_items windlass.item[], _stands uuid[], _acceptances int[])
returns windlass.item[] language plpgsql set enable_hashjoin = off set enable_mergejoin = off as $$
declare
  _aliases jsonb;
  _numbers jsonb;
  _ids uuid[];
  _ns int[];
  _ons uuid[];
  _failures int[];
  _said bigint;
  _bad record;
begin
  if not exists (select from unnest(_items) with ordinality
      as i(id, queue_kind, payload, priority, start_kind, start_us, max_attempts, spec, n)
      where _acceptances[i.n] = 0 and i.spec ? 'depends_on')
  then
    return _items;
  end if;
  select coalesce(jsonb_object_agg(i.id, _stands[i.n]) filter (where _acceptances[i.n] > 1), '{}'),
      coalesce(jsonb_object_agg(i.id, i.n) filter (where _acceptances[i.n] = 0), '{}'), array_agg(i.id order by i.n)
    into _aliases, _numbers, _ids
    from unnest(_items) with ordinality as i(id, queue_kind, payload, priority, start_kind, start_us, max_attempts, spec, n);
  select array_agg(d.n order by d.n, d.k), array_agg(d.id order by d.n, d.k), array_agg(d.on_failure order by d.n, d.k),
      sum(d.times)
    into _ns, _ons, _failures, _said from (
      select distinct on (d.n, d.id) d.n, d.k, d.id, d.on_failure, count(*) over (partition by d.n, d.id) as times from (
          select i.n::int as n, d.k, coalesce(_aliases->>((d.d->>'on')::uuid::text), d.d->>'on')::uuid as id,
              (d.d->>'on_failure')::int as on_failure
            from unnest(_items) with ordinality
              as i(id, queue_kind, payload, priority, start_kind, start_us, max_attempts, spec, n)
              cross join lateral jsonb_array_elements(i.spec->'depends_on') with ordinality as d(d, k)
            where _acceptances[i.n] = 0) d
        order by d.n, d.id, d.k) d;
  if _aliases <> '{}' then
    -- Those were not locked by their names in the batch.
    perform from windlass.job_state p where p.seq = any (array(
        select j.seq from (select distinct a.value::uuid as id from jsonb_each_text(_aliases) a) d
          cross join lateral (select j.seq from windlass.job j where j.id = d.id offset 0) j))
      order by p.seq for share;
  end if;
  select d.n, d.id, _ids[d.n] = d.id as itself, p.state into _bad
    from unnest(_ns, _ons, _failures) with ordinality as d(n, id, on_failure, k)
      left join lateral (
        select p.state from windlass.job j
          cross join lateral (select p.state from windlass.job_state p where p.seq = j.seq offset 0) p
          where j.id = d.id and not _numbers ? d.id::text offset 0) p on true
    where _ids[d.n] = d.id
      or not _numbers ? d.id::text and (p.state is null or p.state in (5, 6) and d.on_failure = 0)
    order by d.k limit 1;
  if found and _bad.itself then
    perform windlass._refuse_cycle(_bad.id);
  elsif found and _bad.state is null then
    perform windlass._refuse(format('job %s depends on %s, which is unknown', _ids[_bad.n], _bad.id),
      jsonb_build_object('refusal', 'unknown_dependency', 'job', _ids[_bad.n], 'dependency', _bad.id));
  elsif found then
    perform windlass._refuse(format('job %s depends on %s, which has failed (%s)', _ids[_bad.n], _bad.id,
        windlass._state_name(_bad.state)),
      jsonb_build_object('refusal', 'dependency_failed', 'job', _ids[_bad.n], 'dependency', _bad.id,
        'state', _bad.state));
  end if;
  perform windlass._refuse_cycles(_ids, array_agg(d.n order by d.k), array_agg(d.m order by d.k)) from (
      select d.n, d.k, (_numbers->>(d.id::text))::int as m from unnest(_ns, _ons) with ordinality as d(n, id, k)) d
    where d.m is not null
    having bool_or(d.m > d.n);
  if _aliases = '{}' and _said = cardinality(_ns) then return _items; end if;
  return array(
    select case when _acceptances[i.n] = 0 and i.spec ? 'depends_on' then row(i.id, i.queue_kind, i.payload, i.priority,
          i.start_kind, i.start_us, i.max_attempts, jsonb_set(i.spec, '{depends_on}', (
            select jsonb_agg(jsonb_build_object('on', d.id, 'on_failure', d.on_failure) order by d.k) from (
              select distinct on (d.id) d.id, d.k, d.on_failure from (
                  select coalesce(_aliases->>((d.d->>'on')::uuid::text), d.d->>'on')::uuid as id, d.k,
                      (d.d->>'on_failure')::int as on_failure
                    from jsonb_array_elements(i.spec->'depends_on') with ordinality as d(d, k)) d
                order by d.id, d.k) d)))::windlass.item
        else row(i.id, i.queue_kind, i.payload, i.priority, i.start_kind, i.start_us, i.max_attempts, i.spec)::windlass.item end
      from unnest(_items) with ordinality as i(id, queue_kind, payload, priority, start_kind, start_us, max_attempts, spec, n)
      order by i.n);
end $$;

create function windlass._refuse_cycle(_job uuid) returns void language plpgsql as $$
begin
  perform windlass._refuse(format('job %s depends on itself, directly or through others', _job),
    jsonb_build_object('refusal', 'dependency_cycle', 'job', _job));
end $$;

-- Things numbered from 1, of which `_waiting[i]` waits for `_on[i]`, in generations: those that wait for none are the
-- first, and who waits for one comes after it. Null for what waits for itself, directly or through others. Each thing
-- and each wait is looked at once.
create function windlass._generations(_count int, _waiting int[], _on int[]) returns int[] language plpgsql as $$
declare
  _generations int[] := array_fill(null::int, array[_count]);
  _waits int[] := array_fill(0, array[_count]);
  _first int[] := array_fill(0, array[_count]);
  _next int[] := '{}';
  _free int[] := '{}';
  _last int := 0;
  _at int := 0;
  _edge int;
  _one int;
begin
  for _e in 1..coalesce(cardinality(_waiting), 0) loop
    _waits[_waiting[_e]] := _waits[_waiting[_e]] + 1;
    _next[_e] := _first[_on[_e]];
    _first[_on[_e]] := _e;
  end loop;
  for _i in 1.._count loop
    if _waits[_i] = 0 then
      _last := _last + 1;
      _free[_last] := _i;
      _generations[_i] := 1;
    end if;
  end loop;
  while _at < _last loop
    _at := _at + 1;
    _edge := _first[_free[_at]];
    while _edge > 0 loop
      _one := _waiting[_edge];
      _waits[_one] := _waits[_one] - 1;
      if _waits[_one] = 0 then
        _last := _last + 1;
        _free[_last] := _one;
        _generations[_one] := _generations[_free[_at]] + 1;
      end if;
      _edge := _next[_edge];
    end loop;
  end loop;
  return _generations;
end $$;

-- Refuses jobs that wait for each other, as told by their numbers in the batch. Only jobs of one batch can.
create function windlass._refuse_cycles(_ids uuid[], _waiting int[], _on int[]) returns void language plpgsql as $$
declare
  _generations int[] := windlass._generations(cardinality(_ids), _waiting, _on);
  _stuck int[] := array_fill(0, array[cardinality(_ids)]);
  _walked boolean[] := array_fill(false, array[cardinality(_ids)]);
  _one int;
begin
  select i.n into _one from unnest(_ids) with ordinality as i(id, n)
    where _generations[i.n] is null order by i.id limit 1;
  if not found then return; end if;
  -- What is left is in a circle or waits for one: who follows it backwards ends up in one.
  for _e in reverse cardinality(_waiting)..1 loop
    if _generations[_on[_e]] is null then _stuck[_waiting[_e]] := _e; end if;
  end loop;
  while not _walked[_one] loop
    _walked[_one] := true;
    _one := _on[_stuck[_one]];
  end loop;
  perform windlass._refuse_cycle(_ids[_one]);
end $$;

-- The items with turns for new jobs that are spread over the lanes of their queue.
create function windlass._assign_lanes(_items windlass.item[], _acceptances int[]) returns windlass.item[]
language plpgsql set enable_hashjoin = off set enable_mergejoin = off as $$
declare
  _firsts jsonb := '{}';
  _queue record;
begin
  for _queue in
    select l.queue, sum(i.n) as n from (
        select i.queue_kind, count(*) as n from unnest(_items) with ordinality
            as i(id, queue_kind, payload, priority, start_kind, start_us, max_attempts, spec, n)
          where _acceptances[i.n] = 0 and i.spec->'lane' ? 'spread' group by i.queue_kind) i
      cross join lateral (select l.queue from windlass.queue_kind l where l.id = i.queue_kind offset 0) l
      group by l.queue
  loop
    update windlass.queue q set next_lane = q.next_lane + _queue.n where q.id = _queue.queue
      returning _firsts || jsonb_build_object(_queue.queue::text, q.next_lane - _queue.n) into _firsts;
  end loop;
  if _firsts = '{}' then return _items; end if;
  return array(
    select row(i.id, i.queue_kind, i.payload, i.priority, i.start_kind, i.start_us, i.max_attempts,
        case when not i.spread then i.spec else jsonb_set(i.spec, '{lane}', jsonb_build_object(
          'turn', i.first + i.turn - 1, 'partition', i.first + i.turn - 1)) end)::windlass.item
      from (
        select i.*, (_firsts->>(l.queue::text))::bigint as first,
            row_number() over (partition by i.spread, l.queue order by i.n) as turn
          from (select i.*, _acceptances[i.n] = 0 and coalesce(i.spec->'lane' ? 'spread', false) as spread
              from unnest(_items) with ordinality
                as i(id, queue_kind, payload, priority, start_kind, start_us, max_attempts, spec, n)) i
            cross join lateral (select l.queue from windlass.queue_kind l where l.id = i.queue_kind offset 0) l) i
      order by i.n);
end $$;

-- Refuses a batch for which a queue, or a lane of one, has no room.
create function windlass._refuse_overflow(_items windlass.item[], _acceptances int[]) returns void
language plpgsql set enable_hashjoin = off set enable_mergejoin = off as $$
declare
  _q record;
  _depth bigint;
  _depths jsonb;
  _full record;
begin
  for _q in
    select q.id, q.name, q.max_depth, q.lanes, q.lane_depth, array_agg(i.queue_kind) as queue_kinds, sum(i.n) as added from (
        select i.queue_kind, count(*) as n from unnest(_items) with ordinality
            as i(id, queue_kind, payload, priority, start_kind, start_us, max_attempts, spec, n)
          where _acceptances[i.n] = 0 group by i.queue_kind) i
      cross join lateral (select l.queue from windlass.queue_kind l where l.id = i.queue_kind offset 0) l
      cross join lateral (select q.* from windlass.queue q where q.id = l.queue offset 0) q
      where q.max_depth is not null
      group by q.id, q.name, q.max_depth, q.lanes, q.lane_depth order by q.name
  loop
    _depth := windlass._depth(_q.id);
    if _depth + _q.added > _q.max_depth then
      perform windlass._refuse(format('queue `%s` holds %s waiting jobs and its limit is %s; slow down, or raise its `max_depth`',
          _q.name, _depth, _q.max_depth),
        jsonb_build_object('refusal', 'queue_full', 'queue', _q.name, 'depth', _depth, 'limit', _q.max_depth));
    end if;
  end loop;
  if not exists (select from unnest(_items) i where i.spec ? 'lane') then return; end if;
  -- What waits in each lane of a queue that has a limit there, and the first item that is one too many.
  select jsonb_object_agg(t.queue || '/' || t.lane, t.depth) into _depths from (
    select t.queue, t.lane, sum(t.depth) as depth from (
        select distinct l.queue from (select distinct i.queue_kind from unnest(_items) i) i
          cross join lateral (select l.queue from windlass.queue_kind l where l.id = i.queue_kind offset 0) l
          cross join lateral (select from windlass.queue q
            where q.id = l.queue and q.lanes is not null and q.lane_depth is not null offset 0) q) q
      cross join lateral (select t.queue, t.lane, t.blocked + t.scheduled + t.ready as depth from windlass.counter_delta t
        where t.queue = q.queue and t.lane is not null offset 0) t
      group by t.queue, t.lane) t;
  select x.name, x.lane, x.depth, x.lane_depth into _full from (
      select q.name, q.lane_depth, y.lane, i.n, coalesce((_depths->>(q.id || '/' || y.lane))::bigint, 0) as depth,
          row_number() over (partition by q.id, y.lane order by i.n) as added
        from unnest(_items) with ordinality as i(id, queue_kind, payload, priority, start_kind, start_us, max_attempts, spec, n)
          cross join lateral (select l.queue from windlass.queue_kind l where l.id = i.queue_kind offset 0) l
          cross join lateral (select q.id, q.name, q.lanes, q.lane_depth from windlass.queue q
            where q.id = l.queue and q.lanes is not null and q.lane_depth is not null offset 0) q
          cross join lateral (select windlass._lane((i.spec->'lane'->>'partition')::bigint, q.lanes) as lane) y
        where _acceptances[i.n] = 0 and i.spec ? 'lane') x
    where x.depth + x.added > x.lane_depth order by x.n limit 1;
  if found then
    perform windlass._refuse(format('lane %s of queue `%s` holds %s waiting jobs and its limit is %s; slow down, use more lanes, or raise the limit',
        _full.lane, _full.name, _full.depth, _full.lane_depth),
      jsonb_build_object('refusal', 'lane_full', 'queue', _full.name, 'lane', _full.lane, 'depth', _full.depth,
        'limit', _full.lane_depth));
  end if;
end $$;

-- Accepts the items that are new, under these numbers, and tells of those that are not.
create function windlass._accept(_items windlass.item[], _seqs bigint[], _acceptances int[], _now bigint) returns void
language plpgsql set enable_hashjoin = off set enable_mergejoin = off as $$
declare
  _new int := (select count(*) from unnest(_acceptances) a where a = 0);
  _added int;
begin
  insert into windlass.job (seq, created_at, id, queue_kind, priority, start_kind, start_us, max_attempts, payload, spec)
    select _seqs[i.n], _now, i.id, i.queue_kind, i.priority, i.start_kind, i.start_us, i.max_attempts, i.payload, i.spec
      from unnest(_items) with ordinality as i(id, queue_kind, payload, priority, start_kind, start_us, max_attempts, spec, n)
      where _acceptances[i.n] = 0 order by i.n
    on conflict (id) do nothing;
  get diagnostics _added = row_count;
  if _added < _new then
    -- Someone accepts one of them at the same time: whoever tries again finds it.
    raise exception 'a job of the batch is being accepted elsewhere' using errcode = '40001';
  end if;
  insert into windlass.dependency (on_id, seq, on_failure, met)
    select d.id, _seqs[i.n], d.on_failure, coalesce(x.met, false)
      from unnest(_items) with ordinality as i(id, queue_kind, payload, priority, start_kind, start_us, max_attempts, spec, n)
        cross join lateral (select (e.d->>'on')::uuid as id, (e.d->>'on_failure')::int as on_failure
          from jsonb_array_elements(i.spec->'depends_on') as e(d)) d
        left join lateral (
          select x.state = 4 or (x.state > 4 and d.on_failure = 1) as met from windlass.job o
            cross join lateral (select x.state from windlass.job_state x where x.seq = o.seq offset 0) x
            where o.id = d.id offset 0) x on true
      where _acceptances[i.n] = 0;
  with item as materialized (
    select i.n, _seqs[i.n] as seq, i.id, i.queue_kind, i.priority, i.max_attempts, i.spec, l.queue, q.lanes, e.met,
        coalesce(e.unmet, 0) as unmet, windlass._without_side_effects(i.spec) as without_effects, d.due,
        case when e.unmet > 0 then 0 when d.due > _now then 1 else 2 end as state,
        case when e.unmet > 0 or d.due > _now then d.due else _now end as at,
        case when e.unmet > 0 or d.due > _now then 0 else windlass._rank(q.ageing, i.priority, _now) end as rank,
        case when i.spec ? 'lane' then l.queue end as lane_queue,
        (i.spec->'lane'->>'partition')::bigint as partition,
        windlass._lane((i.spec->'lane'->>'partition')::bigint, q.lanes) as lane
      from unnest(_items) with ordinality as i(id, queue_kind, payload, priority, start_kind, start_us, max_attempts, spec, n)
        cross join lateral (select l.queue from windlass.queue_kind l where l.id = i.queue_kind offset 0) l
        cross join lateral (select q.ageing, q.lanes from windlass.queue q where q.id = l.queue offset 0) q
        cross join lateral (select windlass._start_time(i.start_kind, i.start_us, _now) as due) d
        left join lateral (
          select array_agg(e.on_id order by d.k) filter (where e.met) as met, count(*) filter (where not e.met) as unmet
            from jsonb_array_elements(i.spec->'depends_on') with ordinality as d(d, k)
              cross join lateral (select e.on_id, e.met from windlass.dependency e
                where e.on_id = (d.d->>'on')::uuid and e.seq = _seqs[i.n] offset 0) e) e on i.spec ? 'depends_on'
      where _acceptances[i.n] = 0
  ), placed as (
    insert into windlass.job_state (seq, at, rank, updated_at, queue_kind, state, without_effects, own_max_attempts, met, unmet, lane_queue,
        partition, lane, object, expires_at)
      select seq, at, rank, _now, queue_kind, state, without_effects, max_attempts, met, nullif(unmet, 0), lane_queue,
          partition, lane, case when spec ? 'object' then windlass._address(spec->'object') end,
          _now + (spec->>'expires_after')::bigint
        from item order by n
  ), listed as (
    insert into windlass.ready (queue_kind, rank, at, seq, never_started, part)
      select queue_kind, rank, at, seq, without_effects, (select windlass._active_partition()) from item where state = 2 and lane_queue is null
  ), lined as (
    insert into windlass.lane_ready (queue, lane, rank, at, seq)
      select lane_queue, lane, rank, at, seq from item where state = 2 and lane_queue is not null
  ), waiting as (
    insert into windlass.scheduled (at, seq) select at, seq from item where state = 1
  ), counted as (
    insert into windlass.counter_delta (queue_kind, queue, lane, blocked, scheduled, ready, t_enqueued)
      select queue_kind, queue, null, count(*) filter (where state = 0), count(*) filter (where state = 1),
          count(*) filter (where state = 2), count(*) from item group by queue_kind, queue
      union all
      select null, lane_queue, lane, count(*) filter (where state = 0), count(*) filter (where state = 1),
          count(*) filter (where state = 2), count(*) from item
        where lane_queue is not null and lanes is not null group by lane_queue, lane
  ), ranked as (
    insert into windlass.counter_delta (queue, priority, ready)
      select queue, priority, count(*) from item where priority <> 0 group by queue, priority
  ), seen_to as (
    insert into windlass.pending_effect (what, a, b)
      select distinct 1, lane_queue, lane from item where lane_queue is not null
      union all
      select distinct 4, queue, null::bigint from item where state > 0
  )
  insert into windlass.event (at, n, topic, jobs, queue_kinds, a)
    select _now, count(*), t.topic, array_agg(t.id order by t.n), array_agg(t.queue_kind order by t.n), array_agg(t.a order by t.n)
      from (
        select 1 as first, 'job.enqueued' as topic, id, queue_kind, n, priority::bigint as a from item
        union all
        select 2, 'job.blocked', id, queue_kind, n, unmet from item where state = 0
        union all
        select 3, 'job.scheduled', id, queue_kind, n, at from item where state = 1
        union all
        select 4, 'job.deduplicated', j.id, j.queue_kind, x.n, x.acceptance - 2
          from unnest(_seqs, _acceptances) with ordinality as x(seq, acceptance, n)
            cross join lateral (select j.id, j.queue_kind from windlass.job j where j.seq = x.seq offset 0) j
          where x.acceptance > 1) t
      group by t.first, t.topic, (t.n - 1) / 10000 order by t.first, min(t.n);
end $$;

-- Accepts a batch, all or none, and answers for each item. `_object` is an object that comes into
-- being in the same commit. With `_must_add`, that item (from 1) must be a new job.
create function windlass._accept_batch(_items windlass.item[], _object text, _must_add int, _now bigint)
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
    perform windlass._refuse(format('job id %s stands twice in one batch', _twice),
      jsonb_build_object('refusal', 'id_twice', 'job', _twice));
  end if;
  perform windlass._lock_for_batch(_items);
  select * into _who from windlass._find_existing(_items, _now);
  if _who.acceptances[_must_add] = 1 then
    perform windlass._refuse(format('job id %s is already taken', _items[_must_add].id),
      jsonb_build_object('refusal', 'id_reused', 'job', _items[_must_add].id));
  elsif _who.acceptances[_must_add] > 1 then
    perform windlass._refuse(format('job %s holds the unique key', _who.stands[_must_add]),
      jsonb_build_object('refusal', 'key_taken', 'job', _items[_must_add].id, 'holder', _who.stands[_must_add]));
  end if;
  _items := windlass._resolve(_items, _who.stands, _who.acceptances);
  _items := windlass._assign_lanes(_items, _who.acceptances);
  perform windlass._refuse_overflow(_items, _who.acceptances);
  perform windlass._accept(_items, _who.seqs, _who.acceptances, _now);
  for _q in
    select distinct q.id, q.name, q.max_depth from (
        select distinct i.queue_kind from unnest(_items) with ordinality
            as i(id, queue_kind, payload, priority, start_kind, start_us, max_attempts, spec, n)
          where _who.acceptances[i.n] = 0) i
      cross join lateral (select l.queue from windlass.queue_kind l where l.id = i.queue_kind offset 0) l
      cross join lateral (select q.id, q.name, q.max_depth from windlass.queue q
        where q.id = l.queue and q.max_depth is not null offset 0) q
      order by q.name
  loop
    if windlass._depth(_q.id) = _q.max_depth then
      perform windlass._emit_once(_now, 'queue.full', jsonb_build_object('queue', _q.name, 'limit', _q.max_depth));
    end if;
  end loop;
  return windlass._lane_positions_of(_items, _who.stands, _who.seqs, _who.acceptances);
end $$;

create function windlass._lane_positions_of(_items windlass.item[], _stands uuid[], _seqs bigint[], _acceptances int[])
returns jsonb language plpgsql set enable_hashjoin = off set enable_mergejoin = off as $$
declare
  _depths jsonb;
  _has_lanes boolean;
  _positions jsonb;
begin
  select jsonb_object_agg(q.id, windlass._depth(q.id)), bool_or(q.lanes is not null) into _depths, _has_lanes from (
      select distinct l.queue from (select distinct i.queue_kind from unnest(_items) i) i
        cross join lateral (select l.queue from windlass.queue_kind l where l.id = i.queue_kind offset 0) l) l
    cross join lateral (select q.id, q.lanes from windlass.queue q where q.id = l.queue offset 0) q;
  if _has_lanes then _positions := windlass._positions(_seqs); end if;
  return (
    select coalesce(jsonb_agg(jsonb_build_object('id', s.stand, 'acceptance', s.acceptance,
        'depth', _depths->(l.queue::text), 'sequence', coalesce(j.seq, 0),
        'lane', case when q.lanes is not null and p.state < 3 then p.lane end,
        'position', case when q.lanes is not null and p.state < 3 and p.lane is not null
          then (_positions->>(p.seq::text))::bigint end) order by s.n), '[]')
      from rows from (unnest(_items), unnest(_stands, _seqs, _acceptances)) with ordinality
          as s(id, queue_kind, payload, priority, start_kind, start_us, max_attempts, spec, stand, seq, acceptance, n)
        cross join lateral (select l.queue from windlass.queue_kind l where l.id = s.queue_kind offset 0) l
        cross join lateral (select q.lanes from windlass.queue q where q.id = l.queue offset 0) q
        left join lateral (select j.seq from windlass.job j where j.seq = s.seq offset 0) j on true
        left join lateral (select p.* from windlass.job_state p where p.seq = s.seq offset 0) p on true);
end $$;

-- Accepts a batch. A row per job, in order, and one with no id that tells whom to ring.
create function windlass.accept(_ids uuid[], _queue_kinds int[], _payloads bytea[], _priorities int[],
    _start_kinds smallint[], _starts bigint[], _max_attempts bigint[], _specs jsonb[])
returns table (id uuid, acceptance int, depth bigint, sequence bigint, lane bigint, ahead bigint, rings text[])
language plpgsql set lock_timeout = '10s' set plan_cache_mode = force_generic_plan set jit = off
  set enable_seqscan = off set enable_bitmapscan = off as $$
declare
  _now bigint;
  _placed jsonb;
  _rings text[];
begin
  if (_specs is null or (select bool_and(windlass._without_side_effects(s)) from unnest(_specs) s))
    and not exists (select from windlass.queue_kind l join windlass.queue q on q.id = l.queue
      where l.id = any (_queue_kinds) and q.max_depth is not null)
  then
    return query select * from windlass._accept_plain(_ids, _queue_kinds, _payloads, _priorities, _start_kinds,
      _starts, _max_attempts, _specs);
    perform windlass._fold_counters_sometimes(windlass.now_us());
    return;
  end if;
  _now := windlass._begin();
  select windlass._accept_batch(array_agg(row(u.id, u.queue_kind, u.payload, u.priority, u.start_kind, u.start_us,
      u.max_attempts, u.spec)::windlass.item order by u.n), null, null, _now) into _placed
    from unnest(_ids, _queue_kinds, _payloads, _priorities, _start_kinds, _starts, _max_attempts, _specs)
      with ordinality as u(id, queue_kind, payload, priority, start_kind, start_us, max_attempts, spec, n);
  _rings := windlass._apply_effects(_now);
  return query select (p->>'id')::uuid, (p->>'acceptance')::int, (p->>'depth')::bigint,
      (p->>'sequence')::bigint, (p->>'lane')::bigint, (p->>'position')::bigint, null::text[]
    from jsonb_array_elements(_placed) p;
  return query select null::uuid, null::int, null::bigint, null::bigint, null::bigint, null::bigint, _rings;
end $$;

-- Jobs about which nothing but time decides, in queues without a limit: all at once.
create function windlass._accept_plain(_ids uuid[], _queue_kinds int[], _payloads bytea[], _priorities int[],
    _start_kinds smallint[], _starts bigint[], _max_attempts bigint[], _specs jsonb[])
returns table (id uuid, acceptance int, depth bigint, sequence bigint, lane bigint, ahead bigint, rings text[])
language plpgsql set plan_cache_mode = force_generic_plan set jit = off
  set enable_seqscan = off set enable_bitmapscan = off as $$
#variable_conflict use_column
declare
  _now bigint := windlass.now_us();
  _seqs bigint[];
  _new uuid[];
  _reused uuid;
begin
  with never_started as (
    insert into windlass.job (created_at, id, queue_kind, priority, start_kind, start_us, max_attempts, payload, spec)
      select _now, i.id, i.queue_kind, i.priority, i.start_kind, i.start_us, i.max_attempts, i.payload, i.spec
        from unnest(_ids, _queue_kinds, _payloads, _priorities, _start_kinds, _starts, _max_attempts, _specs)
          with ordinality as i(id, queue_kind, payload, priority, start_kind, start_us, max_attempts, spec, n)
        order by i.n
      on conflict (id) do nothing
      returning seq, id, queue_kind, priority, start_kind, start_us, max_attempts
  ), timed as (
    select f.*, q.id as queue, q.ageing, windlass._start_time(f.start_kind, f.start_us, _now) as due
      from never_started f join windlass.queue_kind l on l.id = f.queue_kind join windlass.queue q on q.id = l.queue
  ), placed as (
    insert into windlass.job_state (seq, at, rank, updated_at, queue_kind, state, without_effects, own_max_attempts)
      select seq, greatest(due, _now), case when due > _now then 0 else windlass._rank(ageing, priority, _now) end,
          _now, queue_kind, case when due > _now then 1 else 2 end, true, max_attempts
        from timed
  ), listed as (
    insert into windlass.ready (queue_kind, rank, at, seq, never_started, part)
      select queue_kind, windlass._rank(ageing, priority, _now), _now, seq, true, (select windlass._active_partition()) from timed where due <= _now
  ), waiting as (
    insert into windlass.scheduled (at, seq) select due, seq from timed where due > _now
  ), counted as (
    insert into windlass.counter_delta (queue_kind, queue, scheduled, ready, t_enqueued)
      select queue_kind, queue, count(*) filter (where due > _now), count(*) filter (where due <= _now), count(*)
        from timed group by queue_kind, queue
  ), ranked as (
    insert into windlass.counter_delta (queue, priority, ready)
      select queue, priority, count(*) from timed where priority <> 0 group by queue, priority
  ), told as (
    insert into windlass.event (at, n, topic, jobs, queue_kinds, a)
      select _now, n, topic, jobs, queue_kinds, a from (
        select 1 as first, count(*) as n, 'job.enqueued' as topic, array_agg(id order by seq) as jobs,
            array_agg(queue_kind order by seq) as queue_kinds, array_agg(priority::bigint order by seq) as a
          from timed having count(*) > 0
        union all
        select 2, count(*), 'job.scheduled', array_agg(id order by seq), array_agg(queue_kind order by seq),
            array_agg(due order by seq) from timed where due > _now having count(*) > 0) told
        order by first
  )
  select array_agg(seq), array_agg(id) into _seqs, _new from timed;
  if coalesce(cardinality(_new), 0) < cardinality(_ids) then
    select i.id into _reused from unnest(_ids, _queue_kinds, _payloads) as i(id, queue_kind, payload)
      cross join lateral (select j.queue_kind, j.payload from windlass.job j where j.id = i.id offset 0) j
      where j.queue_kind <> i.queue_kind or j.payload <> i.payload limit 1;
    if found then
      perform windlass._refuse(format('job id %s is already taken by a different job; choose a fresh id', _reused),
        jsonb_build_object('refusal', 'id_reused', 'job', _reused));
    end if;
  end if;
  return query
    select i.id, case when f.seq is null then 1 else 0 end, d.depth, coalesce(f.seq, j.seq), null::bigint,
        null::bigint, null::text[]
      from unnest(_ids, _queue_kinds) with ordinality as i(id, queue_kind, n)
      left join unnest(_seqs, _new) as f(seq, id) on f.id = i.id
      left join lateral (select j.seq from windlass.job j where f.seq is null and j.id = i.id offset 0) j on true
      join (select l.id as queue_kind, windlass._depth(l.queue) as depth from windlass.queue_kind l
        where l.id = any (_queue_kinds)) d on d.queue_kind = i.queue_kind
      order by i.n;
  return query select null::uuid, null::int, null::bigint, null::bigint, null::bigint, null::bigint,
    (select array_agg(distinct 'q:' || q.name) from windlass.queue_kind l join windlass.queue q on q.id = l.queue
      where l.id = any (_queue_kinds));
end $$;
