-- What a batch of new jobs must pass before it is accepted: ids, unique keys, dependencies, lanes
-- and depth.

-- Refuses a batch with a job of an object that is not there, but for `_object`, which comes with
-- it.
create function windlass._refuse_unknown_objects(_items windlass.item[], _object text) returns void
language plpgsql as $$
declare
  _unknown jsonb;
begin
  if not exists (select from unnest(_items) i where i.spec ? 'object') then return; end if;
  select i.object into _unknown from (
      select i.spec->'object' as object, min(i.n) as n from windlass._numbered(_items) i
        where i.spec ? 'object' and windlass._address(i.spec->'object') is distinct from _object
            group by 1) i
    left join lateral (select true as there from windlass.object o
      where o.address = windlass._address(i.object) offset 0 for key share) o on true
    where o.there is null order by i.n limit 1;
  if found then
    perform windlass._refuse(jsonb_build_object('refusal', 'unknown_object', 'object', _unknown));
  end if;
end $$;

-- Locks what a batch asks about, in one order, so that two batches do not wait for each other:
-- queues with limits, or that spread jobs over their lanes, and then the jobs that it depends on.
create function windlass._lock_for_batch(_items windlass.item[]) returns void language plpgsql
set enable_hashjoin = off set enable_mergejoin = off as $$
declare
  _queues int[];
  _spread int[];
begin
  select array_agg(l.queue), array_agg(l.queue) filter (where i.spread) into _queues, _spread
    from (select i.queue_kind, bool_or(coalesce(i.spec->'lane' ? 'spread', false)) as spread
        from unnest(_items) i group by i.queue_kind) i
      cross join lateral (select l.queue from windlass.queue_kind l
          where l.id = i.queue_kind offset 0) l;
  perform from windlass.queue q where q.id = any (_queues)
      and (q.max_depth is not null or q.lane_depth is not null
          or q.id = any (coalesce(_spread, '{}')))
    order by q.id for no key update;
  perform from windlass.job_state p where p.seq = any (array(
      select j.seq from (select distinct (d->>'on')::uuid as id
          from unnest(_items) i cross join jsonb_array_elements(i.spec->'depends_on') d) d
        cross join lateral (select j.seq from windlass.job j where j.id = d.id offset 0) j))
    order by p.seq for share;
end $$;

-- Which job stands for each item: itself if it is new (0), the one that was accepted under its id
-- (1), or the one that holds its key (2, or 3 if its payload is another). Takes the keys of new
-- ones.
create function windlass._find_existing(_items windlass.item[], _now bigint, out stands uuid[],
    out seqs bigint[],
    out acceptances int[]) language plpgsql set enable_hashjoin = off set enable_mergejoin = off
        as $$
declare
  _never_started bigint[] := array(select nextval('windlass.job_seq_seq')
      from generate_series(1, cardinality(_items)));
  _reused uuid;
  _keyed boolean[];
begin
  select array_agg(i.id order by i.n), array_agg(coalesce(j.seq, _never_started[i.n]) order by i.n),
      array_agg((j.seq is not null)::int order by i.n),
      (array_agg(i.id order by i.n) filter (where not j.same))[1],
      array_agg(j.seq is null and i.spec ? 'unique' order by i.n)
    into stands, seqs, acceptances, _reused, _keyed
    from windlass._numbered(_items) i
      left join lateral (select j.seq, j.queue_kind = i.queue_kind
          and j.payload = i.payload as same from windlass.job j
        where j.id = i.id offset 0) j on true;
  if _reused is not null then
    perform windlass._refuse(jsonb_build_object('refusal', 'id_reused', 'job', _reused));
  end if;
  for _try in 1..100 loop
    if not coalesce(true = any (_keyed), false) then return; end if;
    -- The first item of each key takes it if nobody has it. By their keys, so that two batches do
    -- not wait for each other.
    insert into windlass.unique_key as k (queue_kind, key, seq, id, until)
      select distinct on (i.queue_kind, i.key) i.queue_kind, i.key, seqs[i.n], i.id,
          _now + i.length from (
          select i.queue_kind, i.spec->'unique'->>'key' as key, i.id,
              (i.spec->'unique'->>'window')::bigint as length, i.n
            from windlass._numbered(_items) i
            where _keyed[i.n]) i
        order by i.queue_kind, i.key, i.n
      on conflict (queue_kind, key) do update set seq = excluded.seq, id = excluded.id,
          until = excluded.until
        where k.until <= _now;
    select array_agg(case when i.asks and k.seq <> seqs[i.n] then k.id else stands[i.n] end
        order by i.n),
        array_agg(case when i.asks and k.seq <> seqs[i.n] then k.seq else seqs[i.n] end
            order by i.n), array_agg(case when i.asks and k.seq <> seqs[i.n]
          then case when i.payload = case when k.seq = i.first then i.first_payload
              else j.payload end then 2 else 3 end
          else acceptances[i.n] end order by i.n),
        array_agg(i.asks and k.seq is null order by i.n)
      into stands, seqs, acceptances, _keyed
      from (
        select i.queue_kind, i.payload, i.spec->'unique'->>'key' as key, i.n, _keyed[i.n] as asks,
            first_value(seqs[i.n]) over same_key as first,
                first_value(i.payload) over same_key as first_payload
          from windlass._numbered(_items) i
          window same_key as (partition by _keyed[i.n], i.queue_kind, i.spec->'unique'->>'key'
              order by i.n)) i
        left join lateral (select k.id, k.seq from windlass.unique_key k
          where i.asks and k.queue_kind = i.queue_kind and k.key = i.key offset 0) k on true
        left join lateral (select j.payload from windlass.job j
          where j.seq = k.seq and k.seq <> i.first offset 0) j on true;
  end loop;
  raise exception 'keys move too fast' using errcode = '40001';
end $$;

-- The items with the dependencies of new ones resolved: aliases as the jobs that stand for them,
-- and none twice. Each must be there and must not have failed, and none may wait for itself.
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
  if not exists (select from windlass._numbered(_items) i
      where _acceptances[i.n] = 0 and i.spec ? 'depends_on')
  then
    return _items;
  end if;
  select coalesce(jsonb_object_agg(i.id, _stands[i.n]) filter (where _acceptances[i.n] > 1), '{}'),
      coalesce(jsonb_object_agg(i.id, i.n) filter (where _acceptances[i.n] = 0), '{}'),
          array_agg(i.id order by i.n)
    into _aliases, _numbers, _ids
    from windlass._numbered(_items) i;
  select array_agg(d.n order by d.n, d.k), array_agg(d.id order by d.n, d.k),
      array_agg(d.on_failure order by d.n, d.k), sum(d.times)
    into _ns, _ons, _failures, _said from (
      select distinct on (d.n, d.id) d.n, d.k, d.id, d.on_failure, count(*) over (partition by d.n,
          d.id) as times from (
          select i.n::int as n, d.k, coalesce(_aliases->>((d.d->>'on')::uuid::text),
              d.d->>'on')::uuid as id, (d.d->>'on_failure')::int as on_failure
            from windlass._numbered(_items) i
              cross join lateral jsonb_array_elements(i.spec->'depends_on') with ordinality as d(d,
                  k)
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
          cross join lateral (select p.state from windlass.job_state p
              where p.seq = j.seq offset 0) p
          where j.id = d.id and not _numbers ? d.id::text offset 0) p on true
    where _ids[d.n] = d.id
      or not _numbers ? d.id::text and (p.state is null or p.state in (5, 6) and d.on_failure = 0)
    order by d.k limit 1;
  if found and _bad.itself then
    perform windlass._refuse_cycle(_bad.id);
  elsif found and _bad.state is null then
    perform windlass._refuse(jsonb_build_object('refusal', 'unknown_dependency',
      'job', _ids[_bad.n], 'dependency', _bad.id));
  elsif found then
    perform windlass._refuse(jsonb_build_object('refusal', 'dependency_failed',
      'job', _ids[_bad.n], 'dependency', _bad.id, 'state', _bad.state));
  end if;
  perform windlass._refuse_cycles(_ids, array_agg(d.n order by d.k), array_agg(d.m order by d.k))
      from (
      select d.n, d.k, (_numbers->>(d.id::text))::int as m
          from unnest(_ns, _ons) with ordinality as d(n, id, k)) d
    where d.m is not null
    having bool_or(d.m > d.n);
  if _aliases = '{}' and _said = cardinality(_ns) then return _items; end if;
  return windlass._rewrite_dependencies(_items, _acceptances, _aliases);
end $$;

-- The items with each dependency of new ones named by the job that stands for it, and none twice.
create function windlass._rewrite_dependencies(_items windlass.item[], _acceptances int[],
    _aliases jsonb)
returns windlass.item[] language plpgsql set enable_hashjoin = off set enable_mergejoin = off as $$
begin
  return array(
    select case when _acceptances[i.n] = 0 and i.spec ? 'depends_on' then row(i.id, i.queue_kind,
          i.payload, i.priority, i.start_kind, i.start_us, i.max_attempts,
              jsonb_set(i.spec, '{depends_on}', (
            select jsonb_agg(jsonb_build_object('on', d.id, 'on_failure', d.on_failure)
                order by d.k) from (
              select distinct on (d.id) d.id, d.k, d.on_failure from (
                  select coalesce(_aliases->>((d.d->>'on')::uuid::text), d.d->>'on')::uuid as id,
                      d.k, (d.d->>'on_failure')::int as on_failure
                    from jsonb_array_elements(i.spec->'depends_on') with ordinality as d(d, k)) d
                order by d.id, d.k) d)))::windlass.item
        else row(i.id, i.queue_kind, i.payload, i.priority, i.start_kind, i.start_us,
            i.max_attempts, i.spec)::windlass.item end
      from windlass._numbered(_items) i
      order by i.n);
end $$;

-- The state of a job someone wants to depend on, which cannot change before this transaction ends;
-- null if it is unknown.
create function windlass._dependency_state(_id uuid) returns int language sql as $$
  select p.state::int from windlass.job j join windlass.job_state p using (seq)
      where j.id = _id for share of p
$$;

create function windlass._refuse_cycle(_job uuid) returns void language plpgsql as $$
begin
  perform windlass._refuse(jsonb_build_object('refusal', 'dependency_cycle', 'job', _job));
end $$;

-- Things numbered from 1, of which `_waiting[i]` waits for `_on[i]`, in generations: those that
-- wait for none are the first, and who waits for one comes after it. Null for what waits for
-- itself, directly or through others. Each thing and each wait is looked at once.
create function windlass._generations(_count int, _waiting int[], _on int[]) returns int[]
language plpgsql as $$
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

-- Refuses jobs that wait for each other, as told by their numbers in the batch. Only jobs of one
-- batch can.
create function windlass._refuse_cycles(_ids uuid[], _waiting int[], _on int[]) returns void
language plpgsql as $$
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

-- The items with a lane for each new job that is spread over the lanes of its queue.
create function windlass._assign_lanes(_items windlass.item[], _acceptances int[])
returns windlass.item[]
language plpgsql set enable_hashjoin = off set enable_mergejoin = off as $$
declare
  _firsts jsonb := '{}';
  _queue record;
begin
  for _queue in
    select l.queue, sum(i.n) as n from (
        select i.queue_kind, count(*) as n from windlass._numbered(_items) i
          where _acceptances[i.n] = 0 and i.spec->'lane' ? 'spread' group by i.queue_kind) i
      cross join lateral (select l.queue from windlass.queue_kind l
          where l.id = i.queue_kind offset 0) l
      group by l.queue
  loop
    update windlass.queue q set next_lane = q.next_lane + _queue.n where q.id = _queue.queue
      returning _firsts || jsonb_build_object(_queue.queue::text, q.next_lane - _queue.n)
          into _firsts;
  end loop;
  if _firsts = '{}' then return _items; end if;
  return array(
    select row(i.id, i.queue_kind, i.payload, i.priority, i.start_kind, i.start_us, i.max_attempts,
        case when not i.spread then i.spec else jsonb_set(i.spec, '{lane}', jsonb_build_object(
          'turn', i.first + i.turn - 1, 'partition', i.first + i.turn - 1)) end)::windlass.item
      from (
        select i.*, (_firsts->>(l.queue::text))::bigint as first,
            row_number() over (partition by i.spread, l.queue order by i.n) as turn
          from (select i.*, _acceptances[i.n] = 0 and coalesce(i.spec->'lane' ? 'spread',
              false) as spread
              from windlass._numbered(_items) i) i
            cross join lateral (select l.queue from windlass.queue_kind l
                where l.id = i.queue_kind offset 0) l) i
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
    select q.id, q.name, q.max_depth, q.lanes, q.lane_depth,
        array_agg(i.queue_kind) as queue_kinds, sum(i.n) as added from (
        select i.queue_kind, count(*) as n from windlass._numbered(_items) i
          where _acceptances[i.n] = 0 group by i.queue_kind) i
      cross join lateral (select l.queue from windlass.queue_kind l
          where l.id = i.queue_kind offset 0) l
      cross join lateral (select q.* from windlass.queue q where q.id = l.queue offset 0) q
      where q.max_depth is not null
      group by q.id, q.name, q.max_depth, q.lanes, q.lane_depth order by q.name
  loop
    _depth := windlass._depth(_q.id);
    if _depth + _q.added > _q.max_depth then
      perform windlass._refuse(jsonb_build_object('refusal', 'queue_full', 'queue', _q.name,
        'depth', _depth, 'limit', _q.max_depth));
    end if;
  end loop;
  if not exists (select from unnest(_items) i where i.spec ? 'lane') then return; end if;
  -- What waits in each lane of a queue that has a limit there, and the first item that is one too
  -- many.
  select jsonb_object_agg(t.queue || '/' || t.lane, t.depth) into _depths from (
    select t.queue, t.lane, sum(t.depth) as depth from (
        select distinct l.queue from (select distinct i.queue_kind from unnest(_items) i) i
          cross join lateral (select l.queue from windlass.queue_kind l
              where l.id = i.queue_kind offset 0) l
          cross join lateral (select from windlass.queue q
            where q.id = l.queue and q.lanes is not null and q.lane_depth is not null offset 0) q) q
      cross join lateral (select t.queue, t.lane, t.blocked + t.scheduled + t.ready as depth
          from windlass.counter_delta t
        where t.queue = q.queue and t.lane is not null offset 0) t
      group by t.queue, t.lane) t;
  select x.name, x.lane, x.depth, x.lane_depth into _full from (
      select q.name, q.lane_depth, y.lane, i.n,
          coalesce((_depths->>(q.id || '/' || y.lane))::bigint, 0) as depth,
          row_number() over (partition by q.id, y.lane order by i.n) as added
        from windlass._numbered(_items) i
          cross join lateral (select l.queue from windlass.queue_kind l
              where l.id = i.queue_kind offset 0) l
          cross join lateral (select q.id, q.name, q.lanes, q.lane_depth from windlass.queue q
            where q.id = l.queue and q.lanes is not null and q.lane_depth is not null offset 0) q
          cross join lateral (select windlass._lane((i.spec->'lane'->>'partition')::bigint,
              q.lanes) as lane) y
        where _acceptances[i.n] = 0 and i.spec ? 'lane') x
    where x.depth + x.added > x.lane_depth order by x.n limit 1;
  if found then
    perform windlass._refuse(jsonb_build_object('refusal', 'lane_full', 'queue', _full.name,
      'lane', _full.lane, 'depth', _full.depth, 'limit', _full.lane_depth));
  end if;
end $$;
