-- What time alone does: due jobs become ready, expired ones are cancelled.

create function windlass._glance(_now bigint) returns void language plpgsql as $$
begin
  if not exists (select from windlass.due where at <= _now) then return; end if;
  with come as (
    select d.at, p.seq, q.ageing, q.lanes, l.queue, j.priority
      from windlass.due d join windlass.place p on p.seq = d.seq join windlass.job j on j.seq = d.seq
        join windlass.line l on l.id = p.line join windlass.queue q on q.id = l.queue
      where d.at <= _now and p.state = 1 and p.at = d.at order by d.at, d.seq limit 10000 for update of p skip locked
  ), gone as (
    delete from windlass.due d using come c where d.at = c.at and d.seq = c.seq
  ), ready as (
    update windlass.place p set state = 2, rank = windlass._rank(c.ageing, c.priority, p.at), offered = false
      from come c where p.seq = c.seq
      returning p.seq, p.at, p.rank, p.line, c.queue, p.lane_queue, p.lane, c.lanes
  ), listed as (
    insert into windlass.ready (line, rank, at, seq)
      select line, rank, at, seq from ready where lane_queue is null
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

-- The time, after which whatever is due has happened.
create function windlass._begin() returns bigint language plpgsql as $$
declare
  _now bigint := windlass.now_us();
begin
  perform windlass._glance(_now);
  perform windlass._expire(_now);
  return _now;
end $$;
