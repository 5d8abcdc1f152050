-- What time alone does: due jobs become ready, expired ones are cancelled.

create function windlass._glance(_now bigint) returns void language plpgsql as $$
declare
  _dues tid[];
  _places tid[];
  _ranks bigint[];
  _queues int[];
  _lanes int[];
begin
  if not exists (select from windlass.due where at <= _now) then return; end if;
  select array_agg(d.due), array_agg(p.place), array_agg(windlass._rank(q.ageing, j.priority, d.at)),
      array_agg(l.queue), array_agg(q.lanes) into _dues, _places, _ranks, _queues, _lanes
    from (select d.at, d.seq, d.ctid as due from windlass.due d where d.at <= _now order by d.at, d.seq limit 10000) d
      cross join lateral (
        select p.ctid as place, p.line from windlass.place p
          where p.seq = d.seq and p.state = 1 and p.at = d.at offset 0 for update skip locked) p
      cross join lateral (select j.priority from windlass.job j where j.seq = d.seq offset 0) j
      cross join lateral (select l.queue from windlass.line l where l.id = p.line offset 0) l
      cross join lateral (select q.ageing, q.lanes from windlass.queue q where q.id = l.queue offset 0) q;
  delete from windlass.due d where d.ctid = any (_dues);
  with ready as (
    update windlass.place p set state = 2, rank = c.rank, offered = false
      from unnest(_places, _ranks, _queues, _lanes) with ordinality as c(place, rank, queue, lanes, n)
      where p.ctid = c.place and c.n between 1 and 16384
      returning p.seq, p.at, p.rank, p.line, c.queue, p.lane_queue, p.lane, c.lanes,
        windlass._is_fresh(p.state, p.begun, p.generation, p.plain) as fresh
  ), listed as (
    insert into windlass.ready (line, rank, at, seq, fresh, epoch)
      select line, rank, at, seq, fresh, (select windlass._epoch()) from ready where lane_queue is null
  ), lined as (
    insert into windlass.lined (queue, lane, rank, at, seq)
      select lane_queue, lane, rank, at, seq from ready where lane_queue is not null
  ), counted as (
    insert into windlass.tally (line, queue, scheduled, ready)
      select line, queue, -count(*), count(*) from ready group by line, queue
  ), in_lanes as (
    insert into windlass.tally (queue, lane, scheduled, ready)
      select lane_queue, lane, -count(*), count(*) from ready
        where lane_queue is not null and lanes is not null group by lane_queue, lane
  )
  insert into windlass.after (what, a, b)
    select distinct 1, lane_queue, lane from ready where lane_queue is not null;
end $$;

create function windlass._expire(_now bigint) returns void language plpgsql as $$
declare
  _p windlass.place;
  _text text;
begin
  for _p in
    select * from windlass.place
      where expires_at <= _now and state < 3 and attempts = 0 and generation = 0
      order by expires_at, seq limit 1000 for update skip locked
  loop
    _text := 'it had not started when it expired at ' || windlass._rfc3339(_p.expires_at);
    perform windlass._end(_p, _now, 6, 2, null, null, _text, _p.recoveries);
    perform windlass._tell_end(_p, _now, 6, 2, _text);
    perform windlass._spread(_p.seq, _text, _now);
  end loop;
end $$;

-- Calls in transactions of our own read what others have committed until each of their statements began. With a
-- snapshot that is older than a lock they got, they would overlook what the lock had kept them from, such as a
-- dependent of the job they complete. The store sees this refusal and makes the call again in READ COMMITTED.
create function windlass._require_read_committed() returns void language plpgsql as $$
begin
  if current_setting('transaction_isolation') not in ('read committed', 'read uncommitted') then
    raise exception using errcode = 'WL002', message = 'this call needs a transaction in READ COMMITTED, not in '
      || upper(current_setting('transaction_isolation'));
  end if;
end $$;

-- The time, after which whatever is due has happened.
create function windlass._begin() returns bigint language plpgsql as $$
declare
  _now bigint := windlass.now_us();
begin
  perform windlass._require_read_committed();
  perform windlass._glance(_now);
  perform windlass._expire(_now);
  return _now;
end $$;
