-- How a call ends: what it has caused reaches dead letters, objects, lanes, hooks, limits and
-- queues before it commits. The verb notes each effect; `_apply_effects` does them in one order.

create function windlass._add_effect(_effect windlass.effect, _queue int default null,
    _lane bigint default null) returns void language sql as $$
  insert into windlass.pending_effect (effect, queue, lane) values (_effect, _queue, _lane)
$$;

-- Jobs of these pairs of queue and kind have become ready.
create function windlass._ring(_queue_kinds int[]) returns void language sql as $$
  insert into windlass.pending_effect (effect, queue)
    select 'ring_queue', l.queue from windlass.queue_kind l where l.id = any (_queue_kinds)
$$;

-- Jobs of these pairs have ended: whoever a limit on their kinds turned away may try again.
-- In plpgsql, which keeps its plan: a function in SQL is planned again by every call.
create function windlass._ring_turned_away(_queue_kinds int[]) returns void language plpgsql as $$
begin
  insert into windlass.pending_effect (effect, kind)
    select distinct 'limit_freed'::windlass.effect, k.id
      from windlass.queue_kind l join windlass.kind k on k.id = l.kind
      where l.id = any (_queue_kinds) and k.turned_away;
end $$;

-- Ends a call and answers whom to ring: `q:` and a queue, or `c` for workers that run jobs.
create function windlass._apply_effects(_now bigint) returns text[] language plpgsql as $$
declare
  _queue record;
  _rings text[];
begin
  -- A call that has written nothing has no number yet, and owes nothing.
  if not exists (select from windlass.pending_effect
      where tx = pg_current_xact_id_if_assigned())
  then
    return '{}';
  end if;
  perform windlass._enforce_limits(_now);
  perform windlass._notify_objects(_now);
  perform windlass._offer_lanes(_now);
  perform windlass._add_hooks(_now);
  perform windlass._free_limits();
  for _queue in
    select distinct q.id, q.name
      from windlass.pending_effect f join windlass.queue q on q.id = f.queue
      where f.tx = pg_current_xact_id() and f.effect = 'queue_drained' order by q.name
  loop
    perform windlass._notify_if_empty(_queue.id, _now);
  end loop;
  select array_agg(distinct case f.effect when 'ring_cancel' then 'c' else 'q:' || q.name end)
      into _rings
    from windlass.pending_effect f left join windlass.queue q on q.id = f.queue
    where f.tx = pg_current_xact_id() and f.effect in ('ring_queue', 'ring_cancel');
  delete from windlass.pending_effect where tx = pg_current_xact_id();
  return coalesce(_rings, '{}');
end $$;

-- What befell the alarms of objects without a turn reaches the objects. They are locked in one
-- order, and after all jobs.
create function windlass._notify_objects(_now bigint) returns void language plpgsql as $$
declare
  _ended record;
  _o windlass.object;
  _how text;
begin
  if not exists (select from windlass.pending_effect
      where tx = pg_current_xact_id() and effect = 'object_job_ended')
  then
    return;
  end if;
  perform from windlass.object o where o.address = any (array(
      select f.object from windlass.pending_effect f
        where f.tx = pg_current_xact_id() and f.effect = 'object_job_ended'))
    order by o.address for update;
  for _ended in
    select f.reason, f.state, f.object, f.job from windlass.pending_effect f
      where f.tx = pg_current_xact_id() and f.effect = 'object_job_ended' order by f.id
  loop
    select * into _o from windlass.object where address = _ended.object;
    continue when not found or _o.alarm is distinct from _ended.job;
    _how := case
      when _ended.state = 6 then 'was cancelled'
      when _ended.state = 5 then
        'died' || coalesce(': ' || (array['it failed as often as it may run',
          'its handler said that trying again is pointless', 'its time for retries is over',
          'its workers were lost', 'a job it depends on failed'])[_ended.reason + 1], '') end;
    if _how is not null and _o.status = 0 then
      _o.status := 2;
      _o.reason := format('its alarm, job %s, %s', _ended.job, _how);
      perform windlass._emit_once(_now, _o.kind || '.failed', jsonb_build_object(
        'object', jsonb_build_array(_o.kind, _o.name, _o.key),
        'detail', format('{"job":"%s","why":"its alarm %s"}', _ended.job, _how)));
    end if;
    update windlass.object set alarm = null, status = _o.status, reason = _o.reason,
      version = version + 1, updated_at = _now where address = _o.address;
  end loop;
end $$;

-- Offers what is next in the lanes that this call has changed, and tells of those that it has left
-- empty.
create function windlass._offer_lanes(_now bigint) returns void language plpgsql
set enable_hashjoin = off set enable_mergejoin = off as $$
declare
  _queues int[];
  _lanes bigint[];
  _totals jsonb;
  _each record;
begin
  select array_agg(f.queue order by q.name, f.lane), array_agg(f.lane order by q.name, f.lane)
      into _queues, _lanes
    from (select distinct f.queue, f.lane from windlass.pending_effect f
        where f.tx = pg_current_xact_id() and f.effect = 'lane_changed') f
      cross join lateral (select q.name from windlass.queue q where q.id = f.queue offset 0) q;
  if _queues is null then return; end if;
  select array_agg(e.queue), array_agg(e.lane) into _queues, _lanes
    from windlass._offer(_queues, _lanes) e
      cross join lateral (select from windlass.queue q
        where q.id = e.queue and e.lane between 0 and q.lanes - 1 offset 0) q;
  if _queues is null then return; end if;
  select jsonb_object_agg(t.queue || '/' || t.lane, t.completed) into _totals from (
    select t.queue, t.lane, sum(t.t_completed) as completed
      from (select distinct q from unnest(_queues) q) q
        cross join lateral (select t.queue, t.lane, t.t_completed from windlass.counter_delta t
          where t.queue = q.q and t.lane is not null offset 0) t
      group by t.queue, t.lane) t;
  for _each in
    select q.name, q.on_empty, e.lane,
        coalesce((_totals->>(e.queue || '/' || e.lane))::bigint, 0) as completed
      from unnest(_queues, _lanes) with ordinality as e(queue, lane, n)
        cross join lateral (
          select q.name, q.on_empty from windlass.queue q where q.id = e.queue offset 0) q
      order by e.n
  loop
    if _each.on_empty is not null then
      insert into windlass.pending_effect (effect, hook, payload) values ('job_wanted',
        _each.on_empty, format('{"lane":%s,"completed":%s}', _each.lane, _each.completed));
    end if;
    perform windlass._emit_once(_now, 'pool.empty', jsonb_build_object('queue', _each.name,
      'lane', _each.lane, 'completed', _each.completed));
  end loop;
end $$;

-- Adds the jobs that hooks of queues ask for.
create function windlass._add_hooks(_now bigint) returns void language plpgsql as $$
declare
  _items windlass.item[];
begin
  if not exists (select from windlass.pending_effect
      where tx = pg_current_xact_id() and effect = 'job_wanted')
  then
    return;
  end if;
  perform windlass.register(f.hook, f.hook) from (
    select distinct hook from windlass.pending_effect
      where tx = pg_current_xact_id() and effect = 'job_wanted') f;
  select array_agg(row(gen_random_uuid(), l.id, convert_to(f.payload, 'UTF8'), 0, 0::smallint,
      null::bigint, null::bigint, case when f.job is not null
        then jsonb_build_object('trace', null, 'parent', f.job)
        else '{"trace":null}' end)::windlass.item order by f.id) into _items
    from windlass.pending_effect f
      cross join lateral (select k.id from windlass.kind k where k.name = f.hook offset 0) k
      cross join lateral (select q.id from windlass.queue q where q.name = f.hook offset 0) q
      cross join lateral (select l.id from windlass.queue_kind l
        where l.kind = k.id and l.queue = q.id offset 0) l
    where f.tx = pg_current_xact_id() and f.effect = 'job_wanted';
  perform windlass._accept(_items,
    array(select nextval('windlass.job_seq_seq') from generate_series(1, cardinality(_items))),
    array_fill(0, array[cardinality(_items)]), _now);
end $$;

-- Lets workers try again that a limit turned away, if there is something for them. Kinds are locked
-- in the order of their numbers, and after lanes: a claim locks them in that order, too.
create function windlass._free_limits() returns void language plpgsql as $$
declare
  _kinds int[] := array(select distinct f.kind from windlass.pending_effect f
    where f.tx = pg_current_xact_id() and f.effect = 'limit_freed');
begin
  if _kinds = '{}' then return; end if;
  perform from windlass.kind k where k.id = any (_kinds) order by k.id for no key update;
  with freed as (
    update windlass.kind k set turned_away = false
      where k.id = any (_kinds) and k.turned_away returning k.id
  )
  insert into windlass.pending_effect (effect, queue)
    select 'ring_queue', l.queue from freed f join windlass.queue_kind l on l.kind = f.id
      where exists (select from windlass._scan_ranges(array[l.id]) t
        cross join lateral windlass._ready_in(t) r);
end $$;

-- Tells that nothing of a queue waits or runs, if that is so.
create function windlass._notify_if_empty(_queue int, _now bigint) returns void
language plpgsql as $$
begin
  -- Mostly it is not, and the last of those that wait is soon found: so the sum comes second.
  insert into windlass.event (at, n, topic, detail)
    select _now, 1, 'queue.empty', jsonb_build_object('queue', q.name) from windlass.queue q
      where q.id = _queue and case
        when exists (select from windlass.queue_kind l cross join lateral (
            select from windlass.ready r where r.queue_kind = l.id
              order by r.rank desc, r.at desc, r.seq desc limit 1) r
          where l.queue = _queue) then false
        else (select sum(blocked + scheduled + ready + running) from windlass.counter_delta
          where queue = _queue and queue_kind is not null) = 0 end;
end $$;
