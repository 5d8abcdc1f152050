-- Looking without changing anything.

-- All counters at one moment.
create function windlass.counts() returns jsonb language plpgsql
  set lock_timeout = '10s' set plan_cache_mode = force_generic_plan set jit = off
  set enable_seqscan = off set enable_bitmapscan = off as $$
declare
  _now bigint := windlass.now_us();
begin
  return jsonb_build_object(
    'queue_kinds', (select coalesce(jsonb_agg(jsonb_build_object('queue', q.name, 'kind', k.name,
        'states', jsonb_build_array(t.blocked, t.scheduled - coalesce(d.n, 0),
            t.ready + coalesce(d.n, 0), t.running, t.completed, t.dead, t.cancelled),
        'totals', jsonb_build_array(t.enqueued, t.completed_so_far, t.failed, t.retried, t.rescued,
            t.dead_so_far, t.cancelled_so_far)) order by q.name, k.name), '[]')
      from (select queue_kind, sum(blocked) as blocked, sum(scheduled) as scheduled,
          sum(ready) as ready,
          sum(running) as running, sum(completed) as completed, sum(dead) as dead,
              sum(cancelled) as cancelled,
          sum(t_enqueued) as enqueued, sum(t_completed) as completed_so_far,
              sum(t_failed) as failed,
          sum(t_retried) as retried, sum(t_rescued) as rescued, sum(t_dead) as dead_so_far,
          sum(t_cancelled) as cancelled_so_far
        from windlass.counter_delta where queue_kind is not null group by queue_kind) t
      join windlass.queue_kind l on l.id = t.queue_kind join windlass.queue q on q.id = l.queue
      join windlass.kind k on k.id = l.kind
      left join (select p.queue_kind, count(*) as n from windlass.scheduled d cross join lateral (
            select p.queue_kind from windlass.job_state p where p.seq = d.seq offset 0) p
          where d.at <= _now group by p.queue_kind) d on d.queue_kind = t.queue_kind),
    'queues', (select coalesce(jsonb_agg(jsonb_build_object('queue', q.name, 'settings',
        windlass._settings(q),
        'waiting', w.waiting, 'normal', w.waiting - w.ranked, 'dropped', q.dropped,
        'priorities', (select coalesce(jsonb_agg(jsonb_build_array(t.priority, t.n)), '[]') from (
          select priority, sum(ready) as n from windlass.counter_delta where queue = q.id
              and priority is not null
            group by priority having sum(ready) > 0 order by priority desc
                limit {PRIORITIES_COUNTED}) t),
        'lanes', (select coalesce(jsonb_agg(jsonb_build_object('lane', t.lane, 'waiting',
            t.waiting, 'running', t.running, 'totals', t.totals)), '[]') from (
          select lane, sum(blocked + scheduled + ready) as waiting, sum(running) as running,
              jsonb_build_array(sum(t_enqueued), sum(t_completed), sum(t_failed), sum(t_retried),
                  sum(t_rescued), sum(t_dead), sum(t_cancelled)) as totals
            from windlass.counter_delta where queue = q.id and queue_kind is null
                and lane is not null group by lane) t))
        order by q.name), '[]')
      from windlass.queue q cross join lateral (
        select coalesce(sum(blocked + scheduled + ready) filter (where queue_kind is not null),
            0) as waiting, coalesce(sum(ready) filter (where priority is not null), 0) as ranked
          from windlass.counter_delta where queue = q.id) w),
    'workers', (select coalesce(jsonb_agg(jsonb_build_object('worker', w.id, 'info', w.info,
        'stopping', w.stopping, 'running', coalesce(r.running, 0)) order by w.id), '[]')
      from windlass.worker w
      left join (select r.worker, count(*) as running
          from windlass.lease s cross join lateral windlass._running_under(s) r
          group by r.worker) r on r.worker = w.id
      where w.seen_at > _now - 60000000));
end $$;

-- What a job and its like are kept from starting by.
create function windlass.explain_facts(_id uuid) returns jsonb language plpgsql
  set lock_timeout = '10s' set plan_cache_mode = force_generic_plan
  set jit = off set enable_seqscan = off set enable_bitmapscan = off as $$
declare
  _now bigint := windlass.now_us();
  _j windlass.job;
  _p windlass.job_state;
  _facts jsonb;
begin
  select * into _j from windlass.job where id = _id;
  if not found then return null; end if;
  select * into _p from windlass.job_state where seq = _j.seq;
  select state, at, attempts, reason into _p.state, _p.at, _p.attempts, _p.reason from windlass.job_state_now
    where seq = _j.seq;
  if _p.state >= 4 then
    return jsonb_build_object('state', _p.state, 'at', _p.at, 'reason', _p.reason);
  end if;
  if _p.state = 1 and _p.at <= _now then
    _p.state := 2;
    _p.rank := windlass._rank_of(_p.seq, _p.queue_kind, _p.at);
  end if;
  select jsonb_build_object('now', _now, 'state', _p.state, 'at', _p.at, 'attempts', _p.attempts,
      'cancel_requested', _p.cancel_requested, 'queue', q.name, 'kind', k.name, 'paused', q.paused,
      'full_at', k.full_at,
      'running', (select coalesce(sum(t.running), 0) from windlass.counter_delta t
        where t.queue_kind in (select id from windlass.queue_kind where kind = k.id)),
      'blockers', (select coalesce(jsonb_agg(e.on_id order by n), '[]')
        from jsonb_array_elements(coalesce(_j.spec->'depends_on', '[]')) with ordinality as d(d, n)
        join windlass.dependency e on e.on_id = (d->>'on')::uuid and e.seq = _j.seq and not e.met
        where _p.state = 0 and exists (select from windlass.job o where o.id = e.on_id)),
      'ahead', (select count(*) from (select from windlass.ready o where o.queue_kind = _p.queue_kind
        and (o.rank, o.at, o.seq) < (_p.rank, _p.at, _p.seq) limit 1000) ahead))
    into _facts
    from windlass.queue_kind l join windlass.queue q on q.id = l.queue join windlass.kind k on k.id = l.kind
    where l.id = _p.queue_kind;
  if _p.lane_queue is not null and _p.state = 2 then
    _facts := _facts || (select jsonb_build_object('lane', jsonb_build_object(
        'lane', _p.lane, 'ahead', windlass._position(_p),
        'paused', q.lanes is not null and _p.lane = any (q.paused_lanes),
        'holder', (select o.id from windlass.job_state h join windlass.job o on o.seq = h.seq
          where h.lane_queue = _p.lane_queue and h.lane = _p.lane and h.partition = _p.partition and h.begun
            and h.state < 3 and h.seq <> _p.seq limit 1),
        'busy', exists (select from windlass.job_state r where r.lane_queue = _p.lane_queue and r.lane = _p.lane
          and r.state = 3),
        'first', not exists (select from windlass.job_state o where o.lane_queue = _p.lane_queue and o.lane = _p.lane
          and o.state = 2 and (o.rank, o.at, o.seq) < (_p.rank, _p.at, _p.seq))))
      from windlass.queue q where q.id = _p.lane_queue);
  end if;
  return _facts;
end $$;
