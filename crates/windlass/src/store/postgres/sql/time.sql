-- What time alone does: due jobs become ready, expired ones are cancelled.

create function windlass._glance(_now bigint) returns void language plpgsql as $$
declare
  _lanes record;
begin
  if not exists (select from windlass.place where state = 1 and at <= _now) then return; end if;
  with due as (
    select p.seq, p.line, p.at from windlass.place p where p.state = 1 and p.at <= _now
      order by p.at, p.seq limit 10000 for update skip locked
  ), ready as (
    update windlass.place p set state = 2, rank = windlass._rank(q.ageing, j.priority, p.at),
        offered = p.lane_queue is null
      from due d join windlass.job j on j.seq = d.seq join windlass.line l on l.id = d.line
        join windlass.queue q on q.id = l.queue
      where p.seq = d.seq
      returning p.line, l.queue, p.lane_queue, p.lane, q.lanes
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
      where expires_at is not null and state < 3 and attempts = 0 and generation = 0 and expires_at <= _now
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
