-- Lanes: of each, at most one job is offered, and it alone is found by claims.

-- Locks a lane, so that no one else decides which of its jobs is next.
create function windlass._lock_lane(_queue int, _lane bigint) returns void language plpgsql as $$
begin
  loop
    perform from windlass.lane where queue = _queue and lane = _lane for update;
    exit when found;
    insert into windlass.lane (queue, lane) values (_queue, _lane) on conflict do nothing;
  end loop;
end $$;

-- Offers the job of a lane that may start next, and no other. Whether the lane is empty.
create function windlass._offer(_queue int, _lane bigint) returns boolean language plpgsql as $$
declare
  _q windlass.queue;
  _current bigint;
  _current_line int;
  _next bigint;
  _next_line int;
  _rank bigint;
  _at bigint;
begin
  perform windlass._lock_lane(_queue, _lane);
  select * into _q from windlass.queue where id = _queue;
  -- A claim may be taking it at this moment: then it runs when this goes on.
  select p.seq, p.line into _current, _current_line from windlass.place p
    where p.lane_queue = _queue and p.lane = _lane and p.state = 2 and p.offered for update;
  if not exists (select from windlass.place where lane_queue = _queue and lane = _lane and state = 3)
    and not (_q.lanes is not null and _lane = any (_q.paused_lanes))
  then
    select p.seq, p.line, l.rank, l.at into _next, _next_line, _rank, _at
      from windlass.lined l cross join lateral (
          select p.seq, p.line, p.begun, p.partition from windlass.place p where p.seq = l.seq offset 0) p
      where l.queue = _queue and l.lane = _lane
        and (p.begun or not exists (select from windlass.place h
          where h.lane_queue = _queue and h.lane = _lane and h.partition = p.partition
            and h.begun and h.state < 3))
      order by l.rank, l.at, l.seq limit 1;
  end if;
  if _current is distinct from _next then
    update windlass.place set offered = false where seq = _current;
    delete from windlass.ready r where r.line = _current_line and r.seq = _current
      and r.rank = (select p.rank from windlass.place p where p.seq = _current)
      and r.at = (select p.at from windlass.place p where p.seq = _current);
    update windlass.place set offered = true where seq = _next;
    if _next is not null then
      insert into windlass.ready (line, rank, at, seq, fresh) values (_next_line, _rank, _at, _next, false);
      insert into windlass.after (what, a) values (4, _queue);
    end if;
  end if;
  if exists (select from windlass.place where lane_queue = _queue and lane = _lane) then
    return false;
  end if;
  delete from windlass.lane where queue = _queue and lane = _lane;
  return true;
end $$;

-- How many waiting jobs of its lane are ahead of a waiting job.
create function windlass._position(_p windlass.place) returns bigint language sql stable as $$
  select count(*) from windlass.place o
    where o.lane_queue = _p.lane_queue and o.lane = _p.lane and o.seq <> _p.seq and (
      (o.begun and o.state < 2)
      or (o.state = 2 and (_p.state <> 2 or (o.rank, o.at, o.seq) < (_p.rank, _p.at, _p.seq))))
$$;

-- Puts the jobs of a queue into their lanes and their order anew.
create function windlass._sort_queue(_queue int) returns void language plpgsql as $$
declare
  _q windlass.queue;
begin
  select * into _q from windlass.queue where id = _queue;
  insert into windlass.after (what, a, b)
    select distinct 1, p.lane_queue, p.lane from windlass.place p where p.lane_queue = _queue;
  -- No claim takes anything meanwhile, and what leases speak for is not among what is sorted.
  perform pg_advisory_xact_lock(hashtextextended('windlass.claim', 0));
  perform from windlass.place p join windlass.line l on l.id = p.line
    where l.queue = _queue and p.state < 4 order by p.seq for update of p;
  perform windlass._write_out(array_agg(s.token), array_agg(r.low), array_agg(r.high), null)
    from windlass.lease s cross join lateral unnest(s.lows, s.highs) as r(low, high) where s.worker is not null;
  delete from windlass.ready r using windlass.line l where l.queue = _queue and r.line = l.id;
  delete from windlass.lined where queue = _queue;
  update windlass.place p set
      lane = case when p.lane_queue is not null then windlass._lane(p.partition, _q.lanes) end,
      rank = case when p.state = 2 then windlass._rank(_q.ageing, j.priority, p.at) else p.rank end,
      offered = false
    from windlass.job j, windlass.line l
    where l.queue = _queue and p.line = l.id and j.seq = p.seq and p.state < 4
      and (p.lane_queue is not null or p.state = 2);
  insert into windlass.ready (line, rank, at, seq, fresh)
    select p.line, p.rank, p.at, p.seq, windlass._is_fresh(p.state, p.begun, p.generation, p.plain) from windlass.place p join windlass.line l on l.id = p.line
      where l.queue = _queue and p.state = 2 and p.lane_queue is null;
  insert into windlass.lined (queue, lane, rank, at, seq)
    select p.lane_queue, p.lane, p.rank, p.at, p.seq from windlass.place p
      where p.lane_queue = _queue and p.state = 2;
  insert into windlass.after (what, a, b)
    select distinct 1, p.lane_queue, p.lane from windlass.place p where p.lane_queue = _queue;
  -- What waits and runs in each lane is counted anew; what has happened there stays.
  insert into windlass.tally (queue, lane, blocked, scheduled, ready, running)
    select queue, lane, -sum(blocked), -sum(scheduled), -sum(ready), -sum(running) from windlass.tally
      where queue = _queue and line is null and lane is not null group by queue, lane;
  if _q.lanes is not null then
    insert into windlass.tally (queue, lane, blocked, scheduled, ready, running)
      select lane_queue, lane, count(*) filter (where state = 0), count(*) filter (where state = 1),
          count(*) filter (where state = 2), count(*) filter (where state = 3)
        from windlass.place where lane_queue = _queue group by lane_queue, lane;
  end if;
end $$;
