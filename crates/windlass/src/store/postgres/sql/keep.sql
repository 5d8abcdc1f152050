-- Keeping the house in order, done by whoever is alive; and hearing what happened.

-- For when dead rows cannot be cleared away: lets new rows go into the other half, or empties the half that
-- they have left at a stroke, which no old transaction keeps from happening. Says whether it did. Fails
-- rather than wait for somebody while everybody waits for it.
create function windlass.rotate() returns boolean language plpgsql set lock_timeout = '50ms' as $$
declare
  _other smallint := 1 - windlass._epoch();
begin
  if not pg_try_advisory_xact_lock(hashtextextended('windlass.rotate', 0)) then return false; end if;
  if pg_relation_size(format('windlass.ready_%s', _other)) = 0
    and pg_relation_size(format('windlass.tally_%s', _other)) = 0
  then
    update windlass.house set epoch = _other;
    return true;
  end if;
  -- What waits there for long is too much to be moved while everybody waits.
  if (select count(*) from (select from windlass.ready where epoch = _other limit 1001) r) > 1000 then return false; end if;
  -- Nobody else adds up meanwhile, so that what is counted there is moved for certain.
  perform pg_advisory_xact_lock(hashtextextended('windlass.tally', 0));
  execute format('lock table windlass.ready_%s, windlass.tally_%s in access exclusive mode', _other, _other);
  insert into windlass.ready (line, rank, at, seq, fresh)
    select line, rank, at, seq, fresh from windlass.ready where epoch = _other;
  perform windlass._add_up();
  execute format('truncate windlass.ready_%s, windlass.tally_%s', _other, _other);
  return true;
end $$;

-- Gives what happened since its numbers, without gaps; the last one.
create function windlass._number() returns bigint language plpgsql as $$
declare
  _last bigint;
  _events tid[];
  _numbers bigint[];
begin
  if not exists (select from windlass.event where number is null) then
    return (select last_event from windlass.house);
  end if;
  select last_event into _last from windlass.house for no key update;
  select array_agg(f.event), array_agg(_last + f.upto - f.n + 1), _last + coalesce(max(f.upto), 0)
    into _events, _numbers, _last
    from (select ctid as event, n, sum(n) over (order by id) as upto from windlass.event where number is null) f;
  update windlass.event e set number = f.number from unnest(_events, _numbers) with ordinality as f(event, number, n)
    where e.ctid = f.event and f.n between 1 and 1000000000;
  update windlass.house set last_event = _last;
  return _last;
end $$;

-- Events after a number, and the number of the last one in a row of its own.
create function windlass.events(_after bigint, _limit int)
returns table (number bigint, at bigint, n int, topic text, jobs uuid[], lines int[], a bigint[], b bigint[],
    detail jsonb, last bigint) language plpgsql
  set lock_timeout = '10s' set plan_cache_mode = force_generic_plan set jit = off
  set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
  set enable_sort = off set enable_bitmapscan = off as $$
#variable_conflict use_column
declare
  _last bigint := windlass._number();
begin
  if _last > _after then
    return query select e.number, e.at, e.n, e.topic, e.jobs, e.lines, e.a, e.b, e.detail, null::bigint
      from windlass.event e where e.number > _after - 10000 and e.number + e.n - 1 > _after order by e.number limit _limit;
  end if;
  return query select null::bigint, null::bigint, null::int, null, null::uuid[], null::int[], null::bigint[],
    null::bigint[], null::jsonb, _last;
end $$;

create function windlass.promote(out purged bigint, out next_in bigint, out last_event bigint, out rings text[])
language plpgsql set lock_timeout = '10s' set plan_cache_mode = force_generic_plan set jit = off
  set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
  set enable_sort = off set enable_bitmapscan = off as $$
declare
  _now bigint := windlass._begin();
  _house windlass.house;
begin
  select * into _house from windlass.house;
  purged := windlass._purge(_now, _now - _house.history_age, 1000);
  perform windlass._keep_history(_house, _now, 0);
  purged := purged + windlass._purge_objects(_now);
  select least(
      (select at from windlass.due order by at limit 1),
      (select expires_at from windlass.place where expires_at is not null and state < 3 and attempts = 0
        and generation = 0 order by expires_at limit 1),
      (select at + _house.history_age from windlass.past order by at limit 1),
      (select purge_at from windlass.object o where purge_at is not null
        and not exists (select from windlass.place p where p.object = o.address) order by purge_at limit 1))
    into next_in;
  next_in := case when next_in > _now then next_in - _now when next_in is not null then 0 end;
  rings := windlass._finish(_now);
  perform windlass._add_up();
  last_event := windlass._number();
  -- Only so many are kept for those who lag.
  delete from windlass.event e where e.number <= last_event - 65536 and e.number + e.n - 1 <= last_event - 65536;
  delete from windlass.worker where seen_at < _now - 86400000000;
end $$;

create function windlass.announce(_worker text, _news int, _card jsonb, _host text, _pid bigint, _version text,
    _error text) returns void language plpgsql as $$
declare
  _now bigint := windlass.now_us();
begin
  if _news = 0 then
    insert into windlass.worker (id, card, host, pid, version, started_at, seen_at)
      values (_worker, _card, _host, _pid, _version, _now, _now)
      on conflict (id) do update set card = excluded.card, host = excluded.host, pid = excluded.pid,
        version = excluded.version, seen_at = excluded.seen_at, stopping = false;
  elsif _news = 1 then
    update windlass.worker set stopping = true, seen_at = _now where id = _worker;
  elsif _news = 2 then
    delete from windlass.worker where id = _worker;
  end if;
  perform windlass._tell_of(_now, (array['worker.started', 'worker.stopping', 'worker.stopped', 'worker.error'])[_news + 1],
    jsonb_build_object('worker', _worker, 'error', _error));
end $$;
