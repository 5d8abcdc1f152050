-- How a call begins: due jobs become ready, expired ones are cancelled.

-- Calls in transactions of our own read what others have committed until each of their statements
-- began. With a snapshot that is older than a lock they got, they would overlook what the lock had
-- kept them from, such as a dependent of the job they complete. The store sees this refusal and
-- makes the call again in READ COMMITTED.
--
-- It answers something, so that a caller can assign it: that is an expression, `perform` a query.
create function windlass._require_read_committed() returns boolean language plpgsql as $$
begin
  if current_setting('transaction_isolation') not in ('read committed', 'read uncommitted') then
    raise exception using errcode = 'WL002',
        message = 'this call needs a transaction in READ COMMITTED, not in '
      || upper(current_setting('transaction_isolation'));
  end if;
  return true;
end $$;

-- The time, for a call that need not wait for jobs of its own: whatever is due has happened.
create function windlass._begin() returns bigint language plpgsql as $$
declare
  _is_right boolean := windlass._require_read_committed();
  _now bigint := windlass.now_us();
  _expired int := windlass._pass_time(_now);
begin
  return _now;
end $$;

-- Lets what is due happen, and answers how many jobs have expired. It takes whatever jobs nobody
-- holds and holds them until the call commits. So a call that waits for jobs of its own locks those
-- first: otherwise two calls that each hold what the other one wants would wait in a circle.
create function windlass._pass_time(_now bigint) returns int language plpgsql as $$
declare
  _is_due boolean;
  _expires boolean;
begin
  -- Mostly there is nothing. One statement looks for both.
  select exists (select from windlass.scheduled where at <= _now),
      exists (select from windlass.job_state
        where state < 3 and attempts = 0 and generation = 0 and expires_at <= _now)
    into _is_due, _expires;
  if _is_due then perform windlass._promote_due(_now); end if;
  return case when _expires then windlass._expire(_now) else 0 end;
end $$;

create function windlass._promote_due(_now bigint) returns void language plpgsql as $$
declare
  _dues tid[];
  _row_ids tid[];
  _ranks bigint[];
  _queues int[];
  _lanes int[];
begin
  select array_agg(d.due), array_agg(p.row_id),
      array_agg(windlass._rank(q.ageing, j.priority, d.at)),
      array_agg(l.queue), array_agg(q.lanes) into _dues, _row_ids, _ranks, _queues, _lanes
    from (select d.at, d.seq, d.ctid as due from windlass.scheduled d where d.at <= _now
        order by d.at, d.seq limit {PROMOTE_BATCH}) d
      cross join lateral (
        select p.ctid as row_id, p.queue_kind from windlass.job_state p
          where p.seq = d.seq and p.state = 1 and p.at = d.at offset 0 for update skip locked) p
      cross join lateral (select j.priority from windlass.job j where j.seq = d.seq offset 0) j
      cross join lateral (select l.queue from windlass.queue_kind l
          where l.id = p.queue_kind offset 0) l
      cross join lateral (select q.ageing, q.lanes from windlass.queue q
          where q.id = l.queue offset 0) q;
  delete from windlass.scheduled d where d.ctid = any (_dues);
  with ready as (
    update windlass.job_state p set state = 2, rank = c.rank, offered = false
      from unnest(_row_ids, _ranks, _queues, _lanes) with ordinality
        as c(row_id, rank, queue, lanes, n)
      where p.ctid = c.row_id and c.n between 1 and 16384
      returning p.seq, p.at, p.rank, p.queue_kind, c.queue, p.lane_queue, p.lane, c.lanes,
        windlass._never_started(p.state, p.begun, p.generation, p.without_effects) as never_started
  ), listed as (
    insert into windlass.ready (queue_kind, rank, at, seq, never_started)
      select queue_kind, rank, at, seq, never_started
          from ready where lane_queue is null
  ), in_lane_order as (
    insert into windlass.lane_ready (queue, lane, rank, at, seq)
      select lane_queue, lane, rank, at, seq from ready where lane_queue is not null
  ), counted as (
    insert into windlass.counter_delta (queue_kind, queue, scheduled, ready)
      select queue_kind, queue, -count(*), count(*) from ready group by queue_kind, queue
  ), in_lanes as (
    insert into windlass.counter_delta (queue, lane, scheduled, ready)
      select lane_queue, lane, -count(*), count(*) from ready
        where lane_queue is not null and lanes is not null group by lane_queue, lane
  )
  insert into windlass.pending_effect (effect, queue, lane)
    select distinct 'lane_changed'::windlass.effect, lane_queue, lane from ready
      where lane_queue is not null;
end $$;

create function windlass._expire(_now bigint) returns int language plpgsql as $$
declare
  _expired int := 0;
  _p windlass.job_state;
  _text text;
begin
  for _p in
    select * from windlass.job_state
      where expires_at <= _now and state < 3 and attempts = 0 and generation = 0
      order by expires_at, seq limit {SWEEP_BATCH} for update skip locked
  loop
    _text := 'it had not started when it expired at ' || windlass._rfc3339(_p.expires_at);
    perform windlass._end(_p, _now, 6, 2, null, null, _text, _p.recoveries);
    perform windlass._emit_end(_p, _now, 6, 2, _text);
    perform windlass._cascade(_p.seq, _text, _now);
    _expired := _expired + 1;
  end loop;
  return _expired;
end $$;
