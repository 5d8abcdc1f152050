-- Keeping the house in order, done by whoever is alive; and hearing what happened.

-- For when dead rows cannot be cleared away, a step at a time: new rows go into the other partition; of the partition that they
-- have left it is told how far it has been emptied; and when little is left in it, that is moved and the partition is
-- emptied at a stroke, which no old transaction keeps from happening. A half of few bytes is not worth it. Says
-- whether one was left or emptied. Fails rather than wait for somebody while everybody waits for it.
create function windlass.rotate(_worth bigint default 131072) returns boolean language plpgsql set lock_timeout = '50ms'
  set plan_cache_mode = force_generic_plan set jit = off
  set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off as $$
declare
  _turn bigint;
  _left smallint;
  _left_bytes bigint;
  _bytes bigint;
  _floor windlass.low_water;
begin
  if not pg_try_advisory_xact_lock(hashtextextended('windlass.rotate', 0)) then return false; end if;
  select last_value into _turn from windlass.active_partition;
  _left := 1 - (_turn & 1);
  _left_bytes := windlass._partition_bytes(_left);
  _bytes := windlass._partition_bytes(1 - _left);
  select * into _floor from windlass.low_water order by n desc limit 1;
  -- Whoever writes into the partition that was left has asked before now, and has had the lock of the table since.
  if _floor.turn is distinct from _turn then
    insert into windlass.low_water (turn, awaited) values (_turn, windlass._open_writers());
    return false;
  end if;
  if _floor.awaited && windlass._open_writers() then return false; end if;
  if _left_bytes = 0 then
    if _bytes > _worth then perform nextval('windlass.active_partition'); end if;
    return _bytes > _worth;
  end if;
  select array_agg(l.id), array_agg(coalesce(h.rank, 9223372036854775807)), array_agg(coalesce(h.at, 9223372036854775807)),
      array_agg(coalesce(h.seq - 1, 9223372036854775807)) into _floor.queue_kinds, _floor.ranks, _floor.ats, _floor.seqs
    from windlass.queue_kind l
      left join unnest(_floor.queue_kinds, _floor.ranks, _floor.ats, _floor.seqs) as f(queue_kind, rank, at, seq) on f.queue_kind = l.id
      left join lateral (
        select r.rank, r.at, r.seq from windlass.ready r
          where r.queue_kind = l.id and r.part = _left and (r.rank, r.at, r.seq) > (coalesce(f.rank, -9223372036854775808),
            coalesce(f.at, -9223372036854775808), coalesce(f.seq, -9223372036854775808))
          order by r.rank, r.at, r.seq limit 1) h on true;
  -- What waits there for long is too much to be moved while everybody waits.
  if greatest(_left_bytes, _bytes) <= _worth or (select count(*) from (
      select from unnest(_floor.queue_kinds, _floor.ranks, _floor.ats, _floor.seqs) as f(queue_kind, rank, at, seq), windlass.ready r
        where r.queue_kind = f.queue_kind and r.part = _left and (r.rank, r.at, r.seq) > (f.rank, f.at, f.seq) limit 1001) r) > 1000
  then
    insert into windlass.low_water (turn, queue_kinds, ranks, ats, seqs)
      select _turn, _floor.queue_kinds, _floor.ranks, _floor.ats, _floor.seqs
        where not exists (select from windlass.low_water f where f.n = _floor.n and f.queue_kinds = _floor.queue_kinds and f.seqs = _floor.seqs);
    return false;
  end if;
  -- No claim looks behind a floor that is gone, and nobody else adds up meanwhile, so that what is counted there is
  -- moved for certain. So is what is ready, whatever the floor says.
  perform pg_advisory_xact_lock(hashtextextended('windlass.claim', 0));
  perform pg_advisory_xact_lock(hashtextextended('windlass.counter_delta', 0));
  execute format('lock table windlass.ready_%s, windlass.counter_delta_%s in access exclusive mode', _left, _left);
  insert into windlass.ready (queue_kind, rank, at, seq, never_started)
    select queue_kind, rank, at, seq, never_started from windlass.ready where part = _left;
  perform windlass._fold_counters();
  execute format('truncate windlass.ready_%s, windlass.counter_delta_%s, windlass.low_water', _left, _left);
  insert into windlass.low_water (turn) values (_turn);
  return true;
end $$;

create function windlass._partition_bytes(_part int) returns bigint language sql as $$
  select pg_relation_size(format('windlass.ready_%s', _part)) + pg_relation_size(format('windlass.counter_delta_%s', _part))
$$;

-- Who writes into a table of which one partition is emptied, or is about to.
create function windlass._open_writers() returns text[] language sql as $$
  select coalesce(array_agg(distinct virtualtransaction), '{}') from pg_locks
    where locktype = 'relation' and relation = 'windlass.ready'::regclass and mode = 'RowExclusiveLock'
      and database = (select oid from pg_database where datname = current_database()) and pid is distinct from pg_backend_pid()
$$;

-- For when dead rows can be cleared away again: forgets how far a partition has been emptied.
create function windlass.reset_rotation() returns void language plpgsql as $$
declare
  _floor windlass.low_water;
begin
  select * into _floor from windlass.low_water order by n desc limit 1;
  if _floor.queue_kinds is not null then
    insert into windlass.low_water (turn) values (_floor.turn);
    delete from windlass.low_water where n <= _floor.n;
  end if;
end $$;

-- Gives what happened since its numbers, without gaps; the last one.
create function windlass._number_events() returns bigint language plpgsql as $$
declare
  _last bigint;
  _events tid[];
  _numbers bigint[];
begin
  if not exists (select from windlass.event where number is null) then
    return (select last_event from windlass.settings);
  end if;
  select last_event into _last from windlass.settings for no key update;
  select array_agg(f.event), array_agg(_last + f.upto - f.n + 1), _last + coalesce(max(f.upto), 0)
    into _events, _numbers, _last
    from (select ctid as event, n, sum(n) over (order by id) as upto from windlass.event where number is null) f;
  update windlass.event e set number = f.number from unnest(_events, _numbers) with ordinality as f(event, number, n)
    where e.ctid = f.event and f.n between 1 and 1000000000;
  update windlass.settings set last_event = _last;
  return _last;
end $$;

-- Events after a number, and the number of the last one in a row of its own.
create function windlass.events(_after bigint, _limit int)
returns table (number bigint, at bigint, n int, topic text, jobs uuid[], queue_kinds int[], a bigint[], b bigint[],
    detail jsonb, last bigint) language plpgsql
  set lock_timeout = '10s' set plan_cache_mode = force_generic_plan set jit = off
  set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
  set enable_sort = off set enable_bitmapscan = off as $$
#variable_conflict use_column
declare
  _last bigint := windlass._number_events();
begin
  if _last > _after then
    return query select e.number, e.at, e.n, e.topic, e.jobs, e.queue_kinds, e.a, e.b, e.detail, null::bigint
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
  _settings windlass.settings;
begin
  select * into _settings from windlass.settings;
  purged := windlass._purge(_now, _now - _settings.history_age, 1000);
  perform windlass._trim_history(_settings, _now, 0);
  purged := purged + windlass._purge_objects(_now);
  select least(
      (select at from windlass.scheduled order by at limit 1),
      (select expires_at from windlass.job_state where expires_at is not null and state < 3 and attempts = 0
        and generation = 0 order by expires_at limit 1),
      (select at + _settings.history_age from windlass.history order by at limit 1),
      (select purge_at from windlass.object o where purge_at is not null
        and not exists (select from windlass.job_state p where p.object = o.address) order by purge_at limit 1))
    into next_in;
  next_in := case when next_in > _now then next_in - _now when next_in is not null then 0 end;
  rings := windlass._apply_effects(_now);
  perform windlass._fold_counters();
  last_event := windlass._number_events();
  -- Only so many are kept for those who lag.
  delete from windlass.event e where e.number <= last_event - 65536 and e.number + e.n - 1 <= last_event - 65536;
  delete from windlass.worker where seen_at < _now - 86400000000;
end $$;

create function windlass.heartbeat(_worker text, _news int, _info jsonb, _host text, _pid bigint, _version text,
    _error text) returns void language plpgsql as $$
declare
  _now bigint := windlass.now_us();
begin
  if _news = 0 then
    insert into windlass.worker (id, info, host, pid, version, started_at, seen_at)
      values (_worker, _info, _host, _pid, _version, _now, _now)
      on conflict (id) do update set info = excluded.info, host = excluded.host, pid = excluded.pid,
        version = excluded.version, seen_at = excluded.seen_at, stopping = false;
  elsif _news = 1 then
    update windlass.worker set stopping = true, seen_at = _now where id = _worker;
  elsif _news = 2 then
    delete from windlass.worker where id = _worker;
  end if;
  perform windlass._emit_once(_now, (array['worker.started', 'worker.stopping', 'worker.stopped', 'worker.error'])[_news + 1],
    jsonb_build_object('worker', _worker, 'error', _error));
end $$;
