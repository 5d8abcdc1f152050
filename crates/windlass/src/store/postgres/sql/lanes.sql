-- Lanes: of each, at most one job is offered in `ready`, where claims find it.

-- Offers the job of each of these lanes that may start next, and no other. Answers which of them
-- are empty. Lanes come in one order, so that two calls do not wait for each other. All at once,
-- because a batch may touch thousands.
create function windlass._offer(_queues int[], _lanes bigint[])
returns table (queue int, lane bigint)
language plpgsql set enable_hashjoin = off set enable_mergejoin = off as $$
#variable_conflict use_column
declare
  _row_ids tid[];
  _olds bigint[];
  _news bigint[];
  _new_lanes tid[];
  _new_queues int[];
  _idle_queues int[];
  _idle_lanes bigint[];
begin
  -- Each is made, or locked if it is there: the condition is never true.
  insert into windlass.lane as l (queue, lane)
    select t.queue, t.lane from unnest(_queues, _lanes) with ordinality as t(queue, lane, n)
        order by t.n
    on conflict (queue, lane) do update set lane = excluded.lane where l.lane <> excluded.lane;
  -- A claim may be taking one of these at this moment: then it runs when this goes on.
  perform from windlass.job_state p where p.seq = any (array(
      select l.current from unnest(_queues, _lanes) as t(queue, lane) cross join lateral (
        select l.current from windlass.lane l where l.queue = t.queue
            and l.lane = t.lane offset 0) l))
    and p.state = 2 and p.offered order by p.seq for update;
  select array_agg(x.current) filter (where x.current is distinct from x.next),
      array_agg(x.next) filter (where x.next is distinct from x.current and x.next is not null),
      array_agg(x.row_id) filter (where x.next is distinct from x.current and x.next is not null),
      array_agg(distinct x.queue) filter (where x.next is distinct from x.current
          and x.next is not null),
      array_agg(x.queue order by x.n) filter (where x.next is null and not x.runs),
      array_agg(x.lane order by x.n) filter (where x.next is null and not x.runs)
    into _olds, _news, _new_lanes, _new_queues, _idle_queues, _idle_lanes
    from (
      select t.queue, t.lane, t.n, l.row_id, c.current, c.runs, f.seq as next
        from unnest(_queues, _lanes) with ordinality as t(queue, lane, n)
          cross join lateral (select l.ctid as row_id, l.current, l.others from windlass.lane l
            where l.queue = t.queue and l.lane = t.lane offset 0) l
          cross join lateral (select q.lanes is not null and t.lane = any (q.paused_lanes) as paused
            from windlass.queue q where q.id = t.queue offset 0) q
          cross join lateral (
            select max(p.seq) filter (where p.state = 2) as current, coalesce(bool_or(p.state = 3),
                false) as runs
              from unnest(l.others || l.current) s cross join lateral (
                select p.seq, p.state from windlass.job_state p
                  where p.seq = s and p.lane_queue = t.queue and p.lane = t.lane
                    and (p.state = 3 or p.state = 2 and p.offered) offset 0) p) c
          left join lateral (
            select i.seq from windlass.lane_ready i cross join lateral (
                select p.begun, p.partition from windlass.job_state p
                    where p.seq = i.seq offset 0) p
              where i.queue = t.queue and i.lane = t.lane and not c.runs and not q.paused
                and (p.begun or not exists (select from windlass.lane_held h
                  where h.queue = t.queue and h.lane = t.lane and h.partition = p.partition))
              order by i.rank, i.at, i.seq limit 1) f on true) x;
  if _olds is not null then
    update windlass.job_state p set offered = false where p.seq = any (_olds);
    perform windlass._remove_from_ready(_olds);
  end if;
  if _news is not null then
    update windlass.job_state p set offered = true where p.seq = any (_news);
    insert into windlass.ready (queue_kind, rank, at, seq, never_started)
      select p.queue_kind, p.rank, p.at, p.seq, false
          from windlass.job_state p where p.seq = any (_news);
    update windlass.lane l set current = c.next
        from unnest(_new_lanes, _news) with ordinality as c(row_id, next, n)
      where l.ctid = c.row_id and c.n between 1 and 16384;
    insert into windlass.pending_effect (effect, queue)
      select 'ring_queue', q from unnest(_new_queues) q;
  end if;
  select array_agg(l.row_id), array_agg(t.queue order by t.n), array_agg(t.lane order by t.n)
    into _row_ids, _idle_queues, _idle_lanes
    from unnest(_idle_queues, _idle_lanes) with ordinality as t(queue, lane, n)
      cross join lateral (select l.ctid as row_id from windlass.lane l
        where l.queue = t.queue and l.lane = t.lane offset 0) l
    where not exists (select from windlass.job_state p where p.lane_queue = t.queue
        and p.lane = t.lane);
  delete from windlass.lane l where l.ctid = any (_row_ids);
  return query select t.queue, t.lane from unnest(_idle_queues, _idle_lanes) as t(queue, lane);
end $$;

-- How many waiting jobs of its lane are ahead of a waiting job: those that have begun and wait for
-- a time, and the ready ones that come before it, or all of those if it is not ready itself.
create function windlass._position(_p windlass.job_state) returns bigint language sql stable as $$
  select (select count(*) from windlass.lane_held h cross join lateral (
        select p.state from windlass.job_state p where p.seq = h.seq offset 0) o
      where h.queue = _p.lane_queue and h.lane = _p.lane and h.seq <> _p.seq and o.state < 2)
    + (select count(*) from windlass.lane_ready l where l.queue = _p.lane_queue and l.lane = _p.lane
      and (_p.state <> 2 or (l.rank, l.at, l.seq) < (_p.rank, _p.at, _p.seq)))
$$;

-- The same for many jobs, by their numbers. Of each lane it looks at what stands behind the first
-- of them and takes that from how many are ready there: mostly they are the last, and to count what
-- is ahead of each of them would cost as much as there is.
create function windlass._positions(_seqs bigint[]) returns jsonb language sql
set enable_hashjoin = off set enable_mergejoin = off as $$
  with asked as materialized (
    select p.seq, p.state, p.begun, p.lane_queue as queue, p.lane, p.rank, p.at
        from windlass.job_state p
      where p.seq = any (_seqs) and p.lane_queue is not null and p.state < 3
  ), ready as materialized (
    select coalesce(jsonb_object_agg(t.queue || '/' || t.lane, t.ready), '{}') as of from (
      select t.queue, t.lane, sum(t.ready) as ready from (select distinct a.queue from asked a) q
        cross join lateral (select t.queue, t.lane, t.ready from windlass.counter_delta t
          where t.queue = q.queue and t.lane is not null offset 0) t group by t.queue, t.lane) t
  ), total as materialized (
    select jsonb_object_agg(l.queue || '/' || l.lane,
        coalesce((r.of->>(l.queue || '/' || l.lane))::bigint, 0) + h.begun) as of
      from (select distinct a.queue, a.lane from asked a) l cross join ready r cross join lateral (
        select count(*) as begun from windlass.lane_held h cross join lateral (
            select p.state from windlass.job_state p where p.seq = h.seq offset 0) p
          where h.queue = l.queue and h.lane = l.lane and p.state < 2) h
  ), first as materialized (
    select distinct on (a.queue, a.lane) a.queue, a.lane, a.rank, a.at, a.seq
      from asked a where a.state = 2 order by a.queue, a.lane, a.rank, a.at, a.seq
  )
  select jsonb_object_agg(x.seq, x.ahead) from (
    select b.seq, (t.of->>(f.queue || '/' || f.lane))::bigint
        - row_number() over (partition by f.queue, f.lane order by b.rank desc, b.at desc,
            b.seq desc) as ahead
      from first f cross join total t cross join lateral (select i.seq, i.rank, i.at
          from windlass.lane_ready i
        where i.queue = f.queue and i.lane = f.lane and (i.rank, i.at, i.seq) >= (f.rank, f.at,
            f.seq) offset 0) b
    union all
    select a.seq, (t.of->>(a.queue || '/' || a.lane))::bigint - (a.begun and a.state = 1)::int
      from asked a cross join total t where a.state <> 2) x
$$;

-- Puts the jobs of a queue into their lanes and their order anew.
create function windlass._rebuild_lanes(_queue int) returns void language plpgsql as $$
declare
  _q windlass.queue;
begin
  select * into _q from windlass.queue where id = _queue;
  insert into windlass.pending_effect (effect, queue, lane)
    select distinct 'lane_changed'::windlass.effect, p.lane_queue, p.lane from windlass.job_state p
        where p.lane_queue = _queue;
  -- No claim takes anything meanwhile, and what leases cover is not among what is sorted.
  perform pg_advisory_xact_lock(hashtextextended('windlass.claim', 0));
  perform from windlass.job_state p join windlass.queue_kind l on l.id = p.queue_kind
    where l.queue = _queue and p.state < 4 order by p.seq for update of p;
  perform windlass._materialize_lease(array_agg(s.token), array_agg(r.low), array_agg(r.high), null)
    from windlass.lease s cross join lateral unnest(s.lows, s.highs) as r(low, high)
        where s.worker is not null;
  delete from windlass.ready r using windlass.queue_kind l where l.queue = _queue
      and r.queue_kind = l.id;
  delete from windlass.lane_ready where queue = _queue;
  delete from windlass.lane_held where queue = _queue;
  update windlass.job_state p set
      lane = case when p.lane_queue is not null then windlass._lane(p.partition, _q.lanes) end,
      rank = case when p.state = 2 then windlass._rank(_q.ageing, j.priority, p.at) else p.rank end,
      offered = false
    from windlass.job j, windlass.queue_kind l
    where l.queue = _queue and p.queue_kind = l.id and j.seq = p.seq and p.state < 4
      and (p.lane_queue is not null or p.state = 2);
  insert into windlass.ready (queue_kind, rank, at, seq, never_started)
    select p.queue_kind, p.rank, p.at, p.seq, windlass._never_started(p.state, p.begun,
        p.generation, p.without_effects) from windlass.job_state p join windlass.queue_kind l
        on l.id = p.queue_kind
      where l.queue = _queue and p.state = 2 and p.lane_queue is null;
  insert into windlass.lane_ready (queue, lane, rank, at, seq)
    select p.lane_queue, p.lane, p.rank, p.at, p.seq from windlass.job_state p
      where p.lane_queue = _queue and p.state = 2;
  insert into windlass.lane_held (queue, lane, partition, seq)
    select p.lane_queue, p.lane, p.partition, p.seq from windlass.job_state p
      where p.lane_queue = _queue and p.begun and p.state < 3;
  update windlass.lane set current = null, others = '{}' where queue = _queue;
  insert into windlass.lane as l (queue, lane, others)
    select p.lane_queue, p.lane, array_agg(p.seq) from windlass.job_state p
      where p.lane_queue = _queue and p.state = 3 group by p.lane_queue, p.lane order by p.lane
    on conflict (queue, lane) do update set others = excluded.others;
  insert into windlass.pending_effect (effect, queue, lane)
    select distinct 'lane_changed'::windlass.effect, p.lane_queue, p.lane from windlass.job_state p
        where p.lane_queue = _queue;
  -- What waits and runs in each lane is counted anew; what has happened there stays.
  insert into windlass.counter_delta (queue, lane, blocked, scheduled, ready, running)
    select queue, lane, -sum(blocked), -sum(scheduled), -sum(ready), -sum(running)
        from windlass.counter_delta
      where queue = _queue and queue_kind is null and lane is not null group by queue, lane;
  if _q.lanes is not null then
    insert into windlass.counter_delta (queue, lane, blocked, scheduled, ready, running)
      select lane_queue, lane, count(*) filter (where state = 0), count(*) filter (where state = 1),
          count(*) filter (where state = 2), count(*) filter (where state = 3)
        from windlass.job_state where lane_queue = _queue group by lane_queue, lane;
  end if;
end $$;
