-- Accepting jobs: one batch, one decision, one commit.

create type windlass.item as (
  id uuid,
  line int,
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
create function windlass._is_plain(_spec jsonb) returns boolean language sql immutable as $$
  select _spec is null or not (_spec ?| array['unique', 'depends_on', 'lane', 'object', 'expires_after'])
$$;

-- Waiting jobs of a queue.
create function windlass._depth(_queue int) returns bigint language sql volatile as $$
  select coalesce(sum(blocked + scheduled + ready), 0)::bigint from windlass.tally
    where queue = _queue and line is not null
$$;

-- The state of a job someone wants to depend on, which cannot change before this transaction ends;
-- null if it is unknown.
create function windlass._dependable(_id uuid) returns int language sql as $$
  select p.state::int from windlass.job j join windlass.place p using (seq) where j.id = _id for share of p
$$;

-- Accepts a job that has passed every check, and tells the state it is in.
create function windlass._accept(_item windlass.item, _seq bigint, _now bigint) returns int language plpgsql as $$
declare
  _p windlass.place;
  _met uuid[];
  _unmet int := 0;
  _not_before bigint := windlass._start_time(_item.start_kind, _item.start_us, _now);
begin
  insert into windlass.job (seq, created_at, id, line, priority, start_kind, start_us, max_attempts, payload, spec)
    values (_seq, _now, _item.id, _item.line, _item.priority, _item.start_kind, _item.start_us,
      _item.max_attempts, _item.payload, _item.spec)
    on conflict (id) do nothing;
  if not found then
    -- Someone accepts it at the same time: whoever tries again finds it.
    raise exception 'job % is being accepted elsewhere', _item.id using errcode = '40001';
  end if;
  if _item.spec ? 'depends_on' then
    select array_agg((d->>'on')::uuid order by n) filter (where s.met),
        count(*) filter (where not s.met) into _met, _unmet
      from jsonb_array_elements(_item.spec->'depends_on') with ordinality as e(d, n)
      cross join lateral (select coalesce((select x.state = 4 or (x.state > 4 and (d->>'on_failure')::int = 1)
          from windlass.job o join windlass.place x using (seq) where o.id = (d->>'on')::uuid), false) as met) s;
    insert into windlass.edge (on_id, seq, on_failure, met)
      select (d->>'on')::uuid, _seq, (d->>'on_failure')::int, coalesce((d->>'on')::uuid = any (_met), false)
        from jsonb_array_elements(_item.spec->'depends_on') d;
  end if;
  _p.seq := _seq;
  _p.updated_at := _now;
  _p.line := _item.line;
  _p.own_max_attempts := _item.max_attempts;
  _p.met := _met;
  _p.attempts := 0; _p.recoveries := 0; _p.generation := 0; _p.steps := 0;
  _p.begun := false; _p.cancel_requested := false; _p.told := false;
  _p.plain := windlass._is_plain(_item.spec);
  _p.rank := 0;
  _p.offered := false;
  if _unmet > 0 then
    _p.state := 0;
    _p.at := _not_before;
    _p.unmet := _unmet;
  else
    _p := windlass._wait_until(_p, _not_before, _now);
  end if;
  _p := windlass._belonging(_p, _item.spec);
  if _p.lane_queue is not null then
    perform windlass._after(1, _p.lane_queue, _p.lane, null);
  end if;
  if _item.spec ? 'expires_after' then
    _p.expires_at := _now + (_item.spec->>'expires_after')::bigint;
  end if;
  insert into windlass.place select _p.*;
  perform windlass._list(_p);
  perform windlass._count(_p.seq, _p.line, _p.lane_queue, _p.lane, null, _p.state);
  perform windlass._total(_p.line, _p.lane_queue, _p.lane, 'enqueued');
  perform windlass._tell(_now, 'job.enqueued', _seq, null, _item.priority);
  if _p.state = 0 then
    perform windlass._tell(_now, 'job.blocked', _seq, null, _p.unmet);
  else
    if _p.state = 1 then perform windlass._tell(_now, 'job.scheduled', _seq, null, _p.at); end if;
    perform windlass._ring(_p.line);
  end if;
  return _p.state;
end $$;

-- Which job stands for an item: itself if it is new, or the one that was accepted under its id or
-- holds its key. Takes the key of a new one, which gets the sequence number `_fresh`.
create function windlass._identify(_item windlass.item, _fresh bigint, _now bigint, out stand uuid, out seq bigint,
                                   out acceptance int) language plpgsql as $$
declare
  _known record;
  _key text := _item.spec->'unique'->>'key';
begin
  select j.seq, j.line = _item.line and j.payload = _item.payload as same into _known
    from windlass.job j where j.id = _item.id;
  if found then
    if not _known.same then
      perform windlass._refuse(format('job id %s is already taken by a different job; choose a fresh id', _item.id),
        jsonb_build_object('refusal', 'id_reused', 'job', _item.id));
    end if;
    stand := _item.id; seq := _known.seq; acceptance := 1;
    return;
  end if;
  stand := _item.id;
  seq := _fresh;
  acceptance := 0;
  if _key is null then return; end if;
  for _try in 1..100 loop
    insert into windlass.key as k (line, key, seq, id, until)
      values (_item.line, _key, seq, _item.id, _now + (_item.spec->'unique'->>'window')::bigint)
      on conflict (line, key) do update set seq = excluded.seq, id = excluded.id, until = excluded.until
        where k.until <= _now;
    if found then return; end if;
    select k.id, k.seq, j.payload is distinct from _item.payload as differs into _known
      from windlass.key k left join windlass.job j on j.seq = k.seq
      where k.line = _item.line and k.key = _key;
    if found then
      stand := _known.id; seq := _known.seq; acceptance := case when _known.differs then 3 else 2 end;
      return;
    end if;
  end loop;
  raise exception 'key % moves too fast', _key using errcode = '40001';
end $$;

-- The dependencies of an item with aliases resolved and doubles left out, each of which must be there
-- and must not have failed.
create function windlass._resolve(_item windlass.item, _aliases jsonb, _accepted uuid[]) returns jsonb
language plpgsql as $$
declare
  _dependency jsonb;
  _on uuid;
  _seen uuid[] := '{}';
  _resolved jsonb := '[]';
  _state int;
begin
  for _dependency in select d from jsonb_array_elements(_item.spec->'depends_on') d loop
    _on := coalesce(_aliases->>(_dependency->>'on'), _dependency->>'on')::uuid;
    if _on = _item.id then
      perform windlass._refuse(format('job %s depends on itself, directly or through others', _item.id),
        jsonb_build_object('refusal', 'dependency_cycle', 'job', _item.id));
    end if;
    continue when _on = any (_seen);
    _seen := _seen || _on;
    _resolved := _resolved || jsonb_build_array(jsonb_build_object('on', _on,
      'on_failure', (_dependency->>'on_failure')::int));
    continue when _on = any (_accepted);
    _state := windlass._dependable(_on);
    if _state is null then
      perform windlass._refuse(format('job %s depends on %s, which is unknown', _item.id, _on),
        jsonb_build_object('refusal', 'unknown_dependency', 'job', _item.id, 'dependency', _on));
    elsif _state in (5, 6) and (_dependency->>'on_failure')::int = 0 then
      perform windlass._refuse(format('job %s depends on %s, which has failed (%s)', _item.id, _on,
          windlass._state_name(_state)),
        jsonb_build_object('refusal', 'dependency_failed', 'job', _item.id, 'dependency', _on, 'state', _state));
    end if;
  end loop;
  return _resolved;
end $$;

-- Refuses jobs that wait for each other. Only jobs of one batch can.
create function windlass._refuse_cycles(_ids uuid[], _specs jsonb[]) returns void language plpgsql as $$
declare
  _left uuid[] := _ids;
  _stuck uuid[];
begin
  loop
    select array_agg(i.id order by i.id) into _stuck
      from unnest(_ids, _specs) as i(id, spec)
      where i.id = any (_left) and exists (
        select from jsonb_array_elements(coalesce(i.spec->'depends_on', '[]')) d
          where (d->>'on')::uuid = any (_left));
    exit when coalesce(cardinality(_stuck), 0) = coalesce(cardinality(_left), 0);
    _left := coalesce(_stuck, '{}');
  end loop;
  if cardinality(_left) > 0 then
    perform windlass._refuse(format('job %s depends on itself, directly or through others', _left[1]),
      jsonb_build_object('refusal', 'dependency_cycle', 'job', _left[1]));
  end if;
end $$;

-- Accepts a batch, all or none, and answers for each item. `_object` is an object that comes into
-- being in the same commit. With `_must_add`, that item (from 1) must be a new job.
create function windlass._accept_batch(_items windlass.item[], _object text, _must_add int, _now bigint)
returns jsonb language plpgsql as $$
declare
  _item windlass.item;
  _who record;
  _q record;
  _depth bigint;
  _i int;
  _fresh bigint[];
  _stands uuid[] := '{}';
  _seqs bigint[] := '{}';
  _acceptances int[] := '{}';
  _accepted uuid[] := '{}';
  _aliases jsonb := '{}';
  _address text;
  _twice uuid;
begin
  foreach _item in array _items loop
    continue when (_item.spec ? 'object') is not true;
    _address := windlass._address(_item.spec->'object');
    if _address is distinct from _object
      and not exists (select from windlass.object where address = _address for key share)
    then
      perform windlass._refuse(format('there is no object %s; start it, or check its name and key', _address),
        jsonb_build_object('refusal', 'unknown_object', 'object', _item.spec->'object'));
    end if;
  end loop;
  select i.id into _twice from unnest(_items) i group by i.id having count(*) > 1 limit 1;
  if found then
    perform windlass._refuse(format('job id %s stands twice in one batch', _twice),
      jsonb_build_object('refusal', 'id_twice', 'job', _twice));
  end if;
  -- In this order, so that two batches do not wait for each other.
  perform from windlass.queue q where q.id in (
      select l.queue from windlass.line l join unnest(_items) i on i.line = l.id
        where q.max_depth is not null or q.lane_depth is not null or i.spec->'lane' ? 'spread')
    order by q.id for no key update;
  perform from windlass.place p where p.seq = any (array(select j.seq from windlass.job j where j.id = any (array(
        select (d->>'on')::uuid from unnest(_items) i cross join jsonb_array_elements(i.spec->'depends_on') d))))
    order by p.seq for share;
  _fresh := array(select nextval('windlass.job_seq_seq') from generate_series(1, cardinality(_items)));
  -- By their keys, so that two batches do not wait for each other.
  for _i in
    select i.n from unnest(_items) with ordinality as i(id, line, payload, priority, start_kind, start_us,
        max_attempts, spec, n)
      order by i.line, i.spec->'unique'->>'key', i.n
  loop
    _item := _items[_i];
    select * into _who from windlass._identify(_item, _fresh[_i], _now);
    if _must_add = _i and _who.acceptance <> 0 then
      if _who.acceptance = 1 then
        perform windlass._refuse(format('job id %s is already taken', _item.id),
          jsonb_build_object('refusal', 'id_reused', 'job', _item.id));
      end if;
      perform windlass._refuse(format('job %s holds the unique key', _who.stand),
        jsonb_build_object('refusal', 'key_taken', 'job', _item.id, 'holder', _who.stand));
    end if;
    _stands[_i] := _who.stand;
    _seqs[_i] := _who.seq;
    _acceptances[_i] := _who.acceptance;
    if _who.acceptance = 0 then
      _accepted := _accepted || _item.id;
    elsif _who.acceptance > 1 then
      _aliases := _aliases || jsonb_build_object(_item.id::text, _who.stand);
    end if;
  end loop;
  for _i in 1..coalesce(cardinality(_items), 0) loop
    if _acceptances[_i] = 0 and _items[_i].spec ? 'depends_on' then
      _item := _items[_i];
      _item.spec := jsonb_set(_item.spec, '{depends_on}', windlass._resolve(_item, _aliases, _accepted));
      _items[_i] := _item;
    end if;
  end loop;
  -- Larger batches were looked at before they came here, but for what goes through an alias.
  if cardinality(_accepted) > 1 and (_aliases <> '{}' or cardinality(_accepted) <= 500) then
    perform windlass._refuse_cycles(array_agg(i.id), array_agg(i.spec))
      from unnest(_items, _acceptances) as i(id, line, payload, priority, start_kind, start_us, max_attempts, spec, acceptance)
      where acceptance = 0 and spec ? 'depends_on';
  end if;
  _items := windlass._take_turns(_items, _acceptances);
  perform windlass._refuse_overflow(_items, _acceptances);
  for _i in 1..coalesce(cardinality(_items), 0) loop
    if _acceptances[_i] = 0 then
      perform windlass._accept(_items[_i], _seqs[_i], _now);
    elsif _acceptances[_i] > 1 then
      perform windlass._tell(_now, 'job.deduplicated', _seqs[_i], null, _acceptances[_i] - 2);
    end if;
  end loop;
  for _q in
    select distinct q.id, q.name, q.max_depth from unnest(_items, _acceptances)
        as i(id, line, payload, priority, start_kind, start_us, max_attempts, spec, acceptance)
      join windlass.line l on l.id = i.line join windlass.queue q on q.id = l.queue
      where i.acceptance = 0 and q.max_depth is not null order by q.name
  loop
    if windlass._depth(_q.id) = _q.max_depth then
      perform windlass._tell_of(_now, 'queue.full', jsonb_build_object('queue', _q.name, 'limit', _q.max_depth));
    end if;
  end loop;
  return windlass._placed(_items, _stands, _seqs, _acceptances);
end $$;

create function windlass._placed(_items windlass.item[], _stands uuid[], _seqs bigint[], _acceptances int[])
returns jsonb language sql as $$
  select coalesce(jsonb_agg(jsonb_build_object('id', s.stand, 'acceptance', s.acceptance,
      'depth', windlass._depth(l.queue), 'sequence', case when j.seq is null then 0 else s.seq end,
      'lane', case when q.lanes is not null and p.state < 3 then p.lane end,
      'position', case when q.lanes is not null and p.state < 3 and p.lane is not null
        then windlass._position(p) end) order by s.n), '[]')
    from unnest(_stands, _seqs, _acceptances) with ordinality as s(stand, seq, acceptance, n)
    join windlass.line l on l.id = (_items[s.n]).line
    join windlass.queue q on q.id = l.queue
    left join lateral (select j.seq from windlass.job j where j.seq = s.seq offset 0) j on true
    left join lateral (select p.* from windlass.place p where p.seq = s.seq offset 0) p on true
$$;

-- Gives new jobs that are spread over the lanes of their queue their turns.
create function windlass._take_turns(_items windlass.item[], _acceptances int[]) returns windlass.item[]
language plpgsql as $$
declare
  _item windlass.item;
  _turn bigint;
begin
  for _i in 1..coalesce(cardinality(_items), 0) loop
    if _acceptances[_i] = 0 and _items[_i].spec->'lane' ? 'spread' then
      _item := _items[_i];
      update windlass.queue q set next_turn = next_turn + 1 from windlass.line l
        where l.id = _item.line and q.id = l.queue returning next_turn - 1 into _turn;
      _item.spec := jsonb_set(_item.spec, '{lane}', jsonb_build_object('turn', _turn, 'partition', _turn));
      _items[_i] := _item;
    end if;
  end loop;
  return _items;
end $$;

create function windlass._refuse_overflow(_items windlass.item[], _acceptances int[]) returns void
language plpgsql as $$
declare
  _q record;
  _depth bigint;
begin
  for _q in
    select q.id, q.name, q.max_depth, count(*) as added from unnest(_items, _acceptances)
        as i(id, line, payload, priority, start_kind, start_us, max_attempts, spec, acceptance)
      join windlass.line l on l.id = i.line join windlass.queue q on q.id = l.queue
      where i.acceptance = 0 and q.max_depth is not null group by q.id order by q.name
  loop
    _depth := windlass._depth(_q.id);
    if _depth + _q.added > _q.max_depth then
      perform windlass._refuse(format('queue `%s` holds %s waiting jobs and its limit is %s; slow down, or raise its `max_depth`',
          _q.name, _depth, _q.max_depth),
        jsonb_build_object('refusal', 'queue_full', 'queue', _q.name, 'depth', _depth, 'limit', _q.max_depth));
    end if;
  end loop;
  for _q in
    select q.id, q.name, q.lane_depth, x.lane, count(*) as added, min(i.n) as first from unnest(_items, _acceptances)
        with ordinality as i(id, line, payload, priority, start_kind, start_us, max_attempts, spec, acceptance, n)
      join windlass.line l on l.id = i.line join windlass.queue q on q.id = l.queue
      cross join lateral (select windlass._lane((i.spec->'lane'->>'partition')::bigint, q.lanes) as lane) x
      where i.acceptance = 0 and q.lanes is not null and q.lane_depth is not null and i.spec ? 'lane'
      group by q.id, x.lane order by 6
  loop
    select coalesce(sum(blocked + scheduled + ready), 0) into _depth from windlass.tally
      where queue = _q.id and lane = _q.lane and line is null;
    if _depth + _q.added > _q.lane_depth then
      perform windlass._refuse(format('lane %s of queue `%s` holds %s waiting jobs and its limit is %s; slow down, use more lanes, or raise the limit',
          _q.lane, _q.name, _depth, _q.lane_depth),
        jsonb_build_object('refusal', 'lane_full', 'queue', _q.name, 'lane', _q.lane, 'depth', _depth,
          'limit', _q.lane_depth));
    end if;
  end loop;
end $$;

-- Accepts a batch. A row per job, in order, and one with no id that tells whom to ring.
create function windlass.accept(_ids uuid[], _lines int[], _payloads bytea[], _priorities int[],
    _start_kinds smallint[], _starts bigint[], _max_attempts bigint[], _specs jsonb[])
returns table (id uuid, acceptance int, depth bigint, sequence bigint, lane bigint, ahead bigint, rings text[])
language plpgsql set lock_timeout = '10s' set plan_cache_mode = force_generic_plan set jit = off
  set enable_seqscan = off set enable_bitmapscan = off as $$
declare
  _now bigint;
  _placed jsonb;
  _rings text[];
begin
  if (_specs is null or (select bool_and(windlass._is_plain(s)) from unnest(_specs) s))
    and not exists (select from windlass.line l join windlass.queue q on q.id = l.queue
      where l.id = any (_lines) and q.max_depth is not null)
  then
    return query select * from windlass._accept_plain(_ids, _lines, _payloads, _priorities, _start_kinds,
      _starts, _max_attempts, _specs);
    perform windlass._add_up_sometimes(windlass.now_us());
    return;
  end if;
  _now := windlass._begin();
  select windlass._accept_batch(array_agg(row(u.id, u.line, u.payload, u.priority, u.start_kind, u.start_us,
      u.max_attempts, u.spec)::windlass.item order by u.n), null, null, _now) into _placed
    from unnest(_ids, _lines, _payloads, _priorities, _start_kinds, _starts, _max_attempts, _specs)
      with ordinality as u(id, line, payload, priority, start_kind, start_us, max_attempts, spec, n);
  _rings := windlass._finish(_now);
  return query select (p->>'id')::uuid, (p->>'acceptance')::int, (p->>'depth')::bigint,
      (p->>'sequence')::bigint, (p->>'lane')::bigint, (p->>'position')::bigint, null::text[]
    from jsonb_array_elements(_placed) p;
  return query select null::uuid, null::int, null::bigint, null::bigint, null::bigint, null::bigint, _rings;
end $$;

-- Jobs about which nothing but time decides, in queues without a limit: all at once.
create function windlass._accept_plain(_ids uuid[], _lines int[], _payloads bytea[], _priorities int[],
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
  with fresh as (
    insert into windlass.job (created_at, id, line, priority, start_kind, start_us, max_attempts, payload, spec)
      select _now, i.id, i.line, i.priority, i.start_kind, i.start_us, i.max_attempts, i.payload, i.spec
        from unnest(_ids, _lines, _payloads, _priorities, _start_kinds, _starts, _max_attempts, _specs)
          with ordinality as i(id, line, payload, priority, start_kind, start_us, max_attempts, spec, n)
        order by i.n
      on conflict (id) do nothing
      returning seq, id, line, priority, start_kind, start_us, max_attempts
  ), timed as (
    select f.*, q.id as queue, q.ageing, windlass._start_time(f.start_kind, f.start_us, _now) as due
      from fresh f join windlass.line l on l.id = f.line join windlass.queue q on q.id = l.queue
  ), placed as (
    insert into windlass.place (seq, at, rank, updated_at, line, state, plain, own_max_attempts)
      select seq, greatest(due, _now), case when due > _now then 0 else windlass._rank(ageing, priority, _now) end,
          _now, line, case when due > _now then 1 else 2 end, true, max_attempts
        from timed
  ), listed as (
    insert into windlass.ready (line, rank, at, seq, fresh, epoch)
      select line, windlass._rank(ageing, priority, _now), _now, seq, true, (select windlass._epoch()) from timed where due <= _now
  ), waiting as (
    insert into windlass.due (at, seq) select due, seq from timed where due > _now
  ), counted as (
    insert into windlass.tally (line, queue, scheduled, ready, t_enqueued)
      select line, queue, count(*) filter (where due > _now), count(*) filter (where due <= _now), count(*)
        from timed group by line, queue
  ), ranked as (
    insert into windlass.tally (queue, priority, ready)
      select queue, priority, count(*) from timed where priority <> 0 group by queue, priority
  ), told as (
    insert into windlass.event (at, n, topic, jobs, lines, a)
      select _now, n, topic, jobs, lines, a from (
        select 1 as first, count(*) as n, 'job.enqueued' as topic, array_agg(id order by seq) as jobs,
            array_agg(line order by seq) as lines, array_agg(priority::bigint order by seq) as a
          from timed having count(*) > 0
        union all
        select 2, count(*), 'job.scheduled', array_agg(id order by seq), array_agg(line order by seq),
            array_agg(due order by seq) from timed where due > _now having count(*) > 0) told
        order by first
  )
  select array_agg(seq), array_agg(id) into _seqs, _new from timed;
  if coalesce(cardinality(_new), 0) < cardinality(_ids) then
    select i.id into _reused from unnest(_ids, _lines, _payloads) as i(id, line, payload)
      cross join lateral (select j.line, j.payload from windlass.job j where j.id = i.id offset 0) j
      where j.line <> i.line or j.payload <> i.payload limit 1;
    if found then
      perform windlass._refuse(format('job id %s is already taken by a different job; choose a fresh id', _reused),
        jsonb_build_object('refusal', 'id_reused', 'job', _reused));
    end if;
  end if;
  return query
    select i.id, case when f.seq is null then 1 else 0 end, d.depth, coalesce(f.seq, j.seq), null::bigint,
        null::bigint, null::text[]
      from unnest(_ids, _lines) with ordinality as i(id, line, n)
      left join unnest(_seqs, _new) as f(seq, id) on f.id = i.id
      left join lateral (select j.seq from windlass.job j where f.seq is null and j.id = i.id offset 0) j on true
      join (select l.id as line, windlass._depth(l.queue) as depth from windlass.line l
        where l.id = any (_lines)) d on d.line = i.line
      order by i.n;
  return query select null::uuid, null::int, null::bigint, null::bigint, null::bigint, null::bigint,
    (select array_agg(distinct 'q:' || q.name) from windlass.line l join windlass.queue q on q.id = l.queue
      where l.id = any (_lines));
end $$;
