-- How a call ends: what it has caused reaches objects, lanes, hooks and queues before it commits.

-- Lets go of dead letters and history beyond their bounds, the oldest first.
create function windlass._enforce_limits(_now bigint) returns void language plpgsql as $$
declare
  _settings windlass.settings;
  _queue bigint;
  _surplus bigint;
  _at bigint;
  _seq bigint := 0;
begin
  select * into _settings from windlass.settings;
  loop
    select a into _queue from windlass.pending_effect where tx = pg_current_xact_id() and what = 6 limit 1;
    exit when not found;
    delete from windlass.pending_effect where tx = pg_current_xact_id() and what = 6 and a = _queue;
    select sum(dead) - _settings.dead_letters into _surplus from windlass.counter_delta where queue = _queue and queue_kind is not null;
    _at := -9223372036854775808;
    while _surplus > 0 loop
      -- Behind those that went before, so that nobody walks over them again.
      select at, seq into _at, _seq from windlass.dead
        where queue = _queue and (at, seq) > (_at, _seq) order by at, seq limit 1;
      exit when not found;
      update windlass.queue set dropped = dropped + 1 where id = _queue;
      perform windlass._remove(_seq, 2, _now);
      _surplus := _surplus - 1;
    end loop;
  end loop;
  delete from windlass.pending_effect where tx = pg_current_xact_id() and what = 7;
  if found then perform windlass._trim_history(_settings, _now, 0); end if;
end $$;

-- Lets go of the oldest history beyond its bound, if it is beyond by more than `_slack`.
create function windlass._trim_history(_settings windlass.settings, _now bigint, _slack bigint) returns bigint
language plpgsql as $$
declare
  _surplus bigint;
begin
  select sum(completed) + sum(cancelled) - _settings.history_jobs into _surplus from windlass.counter_delta where queue_kind is not null;
  if _surplus is null or _surplus <= _slack then return 0; end if;
  if exists (select from windlass.dependency) or exists (select from windlass.unique_key) then
    select _surplus - count(*) into _surplus from (
      select j.seq from windlass.dependency d
        cross join lateral (select j.seq from windlass.job j where j.id = d.on_id offset 0) j
      union
      select k.seq from windlass.unique_key k where k.until > _now) kept
      cross join lateral (select from windlass.job_state p where p.seq = kept.seq and p.state in (4, 6) offset 0) p;
  end if;
  return windlass._purge(_now, null, least(_surplus, 1000));
end $$;

-- Deletes finished jobs that ended before `_before`, at most so many, the oldest first. What an open
-- job depends on, and what holds a key, is looked at again later.
create function windlass._purge(_now bigint, _before bigint, _most bigint) returns bigint language plpgsql as $$
declare
  _pasts tid[];
  _last_at bigint := -9223372036854775808;
  _last_id bigint := 0;
  _some bigint[];
  _held bigint[];
  _seqs bigint[] := '{}';
  _later bigint[] := '{}';
begin
  while cardinality(_seqs) < _most loop
    -- Each time behind what was looked at, so that nobody walks over it again.
    select array_agg(p.past order by p.at, p.id), (array_agg(p.at order by p.at desc, p.id desc))[1],
        (array_agg(p.id order by p.at desc, p.id desc))[1] into _pasts, _last_at, _last_id
      from (
        select p.*, sum(p.n) over (order by p.at, p.id) - p.n as sooner from (
          select p.ctid as past, p.at, p.id, p.n from windlass.history p
            where (p.at, p.id) > (_last_at, _last_id) and p.at <= coalesce(_before, 9223372036854775807)
            order by p.at, p.id limit _most) p) p
      where p.sooner < _most - cardinality(_seqs);
    exit when _pasts is null;
    -- What was replayed meanwhile, or is gone, is no longer past.
    with gone as (
      delete from windlass.history p where p.ctid = any (array(
        select p.ctid from windlass.history p where p.ctid = any (_pasts) for update skip locked)) returning p.*
    )
    select coalesce(array_agg(p.seq order by g.at, g.id, p.seq), '{}'), '{}' into _some, _held
      from gone g cross join lateral unnest(g.lows, g.highs) as r(low, high) cross join lateral (
        select p.seq from windlass.job_state p
          where p.seq between r.low and r.high and p.state in (4, 6) and p.at = g.at offset 0) p;
    if exists (select from windlass.dependency) or exists (select from windlass.unique_key) then
      select coalesce(array_agg(s order by n) filter (where not held), '{}'),
          coalesce(array_agg(s) filter (where held), '{}') into _some, _held from (
        select s, n, exists (select from windlass.dependency d where d.on_id = (select j.id from windlass.job j where j.seq = s))
          or exists (select from windlass.unique_key k where k.seq = s and k.until > _now) as held
        from unnest(_some) with ordinality as x(s, n)) x;
    end if;
    _later := _later || _held || _some[_most - cardinality(_seqs) + 1 :];
    _seqs := _seqs || _some[1 : _most - cardinality(_seqs)];
  end loop;
  insert into windlass.history (at, n, lows, highs)
    select k.at, cardinality(k.seqs), r.lows, r.highs from (
        select p.at, array_agg(p.seq order by p.seq) as seqs from windlass.job_state p where p.seq = any (_later) group by p.at) k
      cross join lateral windlass._to_ranges(k.seqs) r;
  if cardinality(_seqs) = 0 then return 0; end if;
  perform windlass._delete_finished(_seqs, 1, _now);
  return cardinality(_seqs);
end $$;

-- Deletes finished jobs, which nobody waits for, and tells of them in the order of their acceptance. Reasons are those
-- of `_remove`.
create function windlass._delete_finished(_seqs bigint[], _reason int, _now bigint) returns void language plpgsql
set enable_hashjoin = off set enable_mergejoin = off as $$
declare
  _lows bigint[];
  _highs bigint[];
begin
  select r.lows, r.highs into _lows, _highs from windlass._to_ranges(array(select s from unnest(_seqs) s order by s)) r;
  with gone as (
    delete from windlass.job_state p using unnest(_lows, _highs) as r(low, high)
      where p.seq between r.low and r.high returning p.seq, p.queue_kind, p.state, p.at
  ), counted as (
    insert into windlass.counter_delta (queue_kind, queue, completed, dead, cancelled)
      select g.queue_kind, l.queue, -count(*) filter (where g.state = 4), -count(*) filter (where g.state = 5),
          -count(*) filter (where g.state = 6)
        from gone g join windlass.queue_kind l on l.id = g.queue_kind group by g.queue_kind, l.queue
  ), letters as (
    delete from windlass.dead d where d.ctid = any (array(
      select d.ctid from gone g cross join lateral (select l.queue from windlass.queue_kind l where l.id = g.queue_kind offset 0) l
        cross join lateral (select d.ctid from windlass.dead d
          where d.queue = l.queue and d.at = g.at and d.seq = g.seq offset 0) d where g.state = 5))
  ), jobs as (
    delete from windlass.job j using unnest(_lows, _highs) as r(low, high)
      where j.seq between r.low and r.high returning j.seq, j.id, j.queue_kind
  ), told as (
    insert into windlass.event (at, n, topic, jobs, queue_kinds, a, b)
      select _now, count(*), 'job.removed', array_agg(id order by seq), array_agg(queue_kind order by seq),
          array[_reason::bigint], null
        from (select j.*, row_number() over (order by j.seq) as n from jobs j) j
        group by (n - 1) / 10000 order by min(n)
  ), diaries as (
    delete from windlass.attempt_log d using unnest(_lows, _highs) as r(low, high) where d.seq between r.low and r.high
  ), steps as (
    delete from windlass.step s using unnest(_lows, _highs) as r(low, high) where s.seq between r.low and r.high
  ), edges as (
    delete from windlass.dependency e using unnest(_lows, _highs) as r(low, high) where e.seq between r.low and r.high
  )
  delete from windlass.unique_key k using unnest(_lows, _highs) as r(low, high) where k.seq between r.low and r.high;
end $$;

-- What befell jobs of objects without a turn reaches their objects.
create function windlass._notify_objects(_now bigint) returns void language plpgsql as $$
declare
  _ended record;
  _o windlass.object;
  _how text;
begin
  for _ended in
    select a as reason, b as state, c as object, d as job from windlass.pending_effect
      where tx = pg_current_xact_id() and what = 0 order by id
  loop
    select * into _o from windlass.object where address = _ended.object for update;
    continue when not found or _o.alarm is distinct from _ended.job::uuid;
    _how := case
      when _ended.state = 6 then 'was cancelled'
      when _ended.state = 5 then 'died' || coalesce(': ' || (array['it failed as often as it may run',
        'its handler said that trying again is pointless', 'its time for retries is over',
        'its workers were lost', 'a job it depends on failed'])[_ended.reason + 1], '') end;
    _o.alarm := null;
    if _how is not null and _o.status = 0 then
      _o.status := 2;
      _o.reason := format('its alarm, job %s, %s', _ended.job, _how);
      perform windlass._emit_once(_now, _o.kind || '.failed', jsonb_build_object('object',
        jsonb_build_array(_o.kind, _o.name, _o.key),
        'detail', format('{"job":"%s","why":"its alarm %s"}', _ended.job, _how)));
    end if;
    update windlass.object set alarm = null, status = _o.status, reason = _o.reason,
      version = version + 1, updated_at = _now where address = _o.address;
  end loop;
end $$;

-- Offers what is next in the lanes that this call has changed, and tells of those that it has left empty.
create function windlass._offer_lanes(_now bigint) returns void language plpgsql
set enable_hashjoin = off set enable_mergejoin = off as $$
declare
  _queues int[];
  _lanes bigint[];
  _totals jsonb;
  _each record;
begin
  select array_agg(f.queue order by q.name, f.lane), array_agg(f.lane order by q.name, f.lane) into _queues, _lanes
    from (select distinct f.a::int as queue, f.b as lane from windlass.pending_effect f
        where f.tx = pg_current_xact_id() and f.what = 1) f
      cross join lateral (select q.name from windlass.queue q where q.id = f.queue offset 0) q;
  if _queues is null then return; end if;
  select array_agg(e.queue), array_agg(e.lane) into _queues, _lanes from windlass._offer(_queues, _lanes) e
    cross join lateral (select from windlass.queue q
      where q.id = e.queue and e.lane between 0 and q.lanes - 1 offset 0) q;
  if _queues is null then return; end if;
  select jsonb_object_agg(t.queue || '/' || t.lane, t.completed) into _totals from (
    select t.queue, t.lane, sum(t.t_completed) as completed from (select distinct q from unnest(_queues) q) q
      cross join lateral (select t.queue, t.lane, t.t_completed from windlass.counter_delta t
        where t.queue = q.q and t.lane is not null offset 0) t group by t.queue, t.lane) t;
  for _each in
    select q.name, q.on_empty, e.lane, coalesce((_totals->>(e.queue || '/' || e.lane))::bigint, 0) as completed
      from unnest(_queues, _lanes) with ordinality as e(queue, lane, n)
        cross join lateral (select q.name, q.on_empty from windlass.queue q where q.id = e.queue offset 0) q
      order by e.n
  loop
    if _each.on_empty is not null then
      perform windlass._add_effect(2, null, null, _each.on_empty, jsonb_build_object('payload',
        format('{"lane":%s,"completed":%s}', _each.lane, _each.completed))::text);
    end if;
    perform windlass._emit_once(_now, 'pool.empty', jsonb_build_object('queue', _each.name,
      'lane', _each.lane, 'completed', _each.completed));
  end loop;
end $$;

-- Ends a call and answers whom to ring: `q:` and a queue, or `c` for workers that run jobs.
create function windlass._apply_effects(_now bigint) returns text[] language plpgsql as $$
declare
  _each record;
  _rings text[];
begin
  if not exists (select from windlass.pending_effect where tx = pg_current_xact_id()) then return '{}'; end if;
  perform windlass._enforce_limits(_now);
  perform windlass._notify_objects(_now);
  perform windlass._offer_lanes(_now);
  perform windlass._add_hooks(_now);
  for _each in
    select distinct q.id, q.name from windlass.pending_effect f join windlass.queue q on q.id = f.a
      where f.tx = pg_current_xact_id() and f.what = 3 order by q.name
  loop
    perform windlass._notify_if_empty(_each.id, _each.name, _now);
  end loop;
  select array_agg(distinct case f.what when 5 then 'c' else 'q:' || q.name end) into _rings
    from windlass.pending_effect f left join windlass.queue q on q.id = f.a
    where f.tx = pg_current_xact_id() and f.what in (4, 5);
  delete from windlass.pending_effect where tx = pg_current_xact_id();
  return coalesce(_rings, '{}');
end $$;

create function windlass._notify_if_empty(_queue int, _name text, _now bigint) returns void language plpgsql as $$
begin
  -- Mostly it is not, and the last of those that wait is soon found.
  if exists (select from windlass.queue_kind l cross join lateral (
      select from windlass.ready r where r.queue_kind = l.id order by r.rank desc, r.at desc, r.seq desc limit 1) r
    where l.queue = _queue)
  then
    return;
  end if;
  if (select sum(blocked + scheduled + ready + running) from windlass.counter_delta
      where queue = _queue and queue_kind is not null) = 0 then
    perform windlass._emit_once(_now, 'queue.empty', jsonb_build_object('queue', _name));
  end if;
end $$;

-- Adds the jobs that queues asked for.
create function windlass._add_hooks(_now bigint) returns void language plpgsql as $$
declare
  _items windlass.item[];
begin
  if not exists (select from windlass.pending_effect where tx = pg_current_xact_id() and what = 2) then return; end if;
  perform windlass.register(k.kind, k.kind) from (
    select distinct c as kind from windlass.pending_effect where tx = pg_current_xact_id() and what = 2) k;
  select array_agg(row(gen_random_uuid(), l.id, convert_to(f.d::jsonb->>'payload', 'UTF8'), 0, 0::smallint, null::bigint,
      null::bigint, case when f.d::jsonb ? 'parent'
        then jsonb_build_object('trace', null, 'parent', f.d::jsonb->>'parent')
        else '{"trace":null}' end)::windlass.item order by f.id) into _items
    from windlass.pending_effect f
      cross join lateral (select k.id from windlass.kind k where k.name = f.c offset 0) k
      cross join lateral (select q.id from windlass.queue q where q.name = f.c offset 0) q
      cross join lateral (select l.id from windlass.queue_kind l where l.kind = k.id and l.queue = q.id offset 0) l
    where f.tx = pg_current_xact_id() and f.what = 2;
  perform windlass._accept(_items, array(select nextval('windlass.job_seq_seq') from generate_series(1, cardinality(_items))),
    array_fill(0, array[cardinality(_items)]), _now);
end $$;
