-- Engine time: the server's clock, corrected when it was stepped.
--
-- The server cannot tell a step of its clock from time that has passed; engines can, by their own
-- steady clocks. Each looks at the time twice a second (`look_at_clock`) and confirms it, or
-- corrects it by the size of a step (`confirm_clock`). Between two confirmations the clock is
-- believed for two seconds: a step back makes time stand, and a greater step ahead is waited out,
-- until an engine has corrected it.
--
-- Sequences and not rows: every transaction reads the same value of them, also one with an old
-- snapshot; they leave no dead rows and nobody waits for a lock on them. tests/postgres/clock.rs
-- steps the clock of a server.

-- Microseconds to add to the server's clock.
create sequence windlass.clock_shift minvalue -9000000000000000000 start 0;

-- The latest engine time that was confirmed.
create sequence windlass.clock_mark minvalue -9000000000000000000 start 0;

-- 1 while engines look, as far as is known.
create sequence windlass.clock_watch minvalue 0 start 0;

do $$ begin
  perform setval('windlass.clock_shift', 0), setval('windlass.clock_mark', 0),
      setval('windlass.clock_watch', 0);
end $$;

create function windlass._server_us() returns bigint language sql volatile as $$
  select (extract(epoch from clock_timestamp()) * 1000000)::bigint
$$;

-- The time of everything in this schema. Each call reads it, so it is made of expressions that need
-- no query.
create function windlass.now_us() returns bigint language plpgsql as $$
declare
  _mark bigint := pg_sequence_last_value('windlass.clock_mark');
  _now bigint := (extract(epoch from clock_timestamp()) * 1000000)::bigint
    + pg_sequence_last_value('windlass.clock_shift');
begin
  if _now between _mark and _mark + 2000000 then return _now; end if;
  return windlass._unconfirmed_time(_now, _mark);
end $$;

-- The time when the clock says something that no engine has confirmed.
create function windlass._unconfirmed_time(_now bigint, _mark bigint) returns bigint
language plpgsql as $$
begin
  if (select last_value from windlass.clock_watch) > 0 then
    -- Engines look so often that one has confirmed or corrected it before this ends, if any is
    -- alive.
    for _i in 1..30 loop
      if _now < _mark then return _mark; end if;
      if _now <= _mark + 2000000 then return _now; end if;
      perform pg_sleep(0.05);
      select windlass._server_us() + s.last_value, m.last_value into _now, _mark
        from windlass.clock_shift s, windlass.clock_mark m;
    end loop;
  end if;
  return windlass._trusted_time();
end $$;

-- The time when nobody looks at the clock: what the server says, or if that is earlier than what
-- was, on from there.
create function windlass._trusted_time() returns bigint language plpgsql as $$
declare
  _server bigint := windlass._server_us();
  _now bigint := greatest(_server, (select last_value from windlass.clock_mark));
begin
  perform setval('windlass.clock_watch', 0);
  perform setval('windlass.clock_shift', _now - _server);
  perform setval('windlass.clock_mark', _now);
  return _now;
exception when insufficient_privilege or read_only_sql_transaction then
  return _now;
end $$;

-- What the clock says: the time, what is added to the server's, and the last time that was
-- confirmed.
create function windlass.look_at_clock(out reading bigint, out shift bigint, out mark bigint)
language sql volatile
  set search_path = pg_catalog, pg_temp as $$
  select windlass._server_us() + s.last_value, s.last_value, m.last_value
    from windlass.clock_shift s, windlass.clock_mark m
$$;

-- An engine has found what it read to be so, or to be wrong by `_correction`. Whoever was first is
-- believed.
create function windlass.confirm_clock(_reading bigint, _shift bigint, _correction bigint)
returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  _look record;
begin
  if not pg_try_advisory_xact_lock(hashtextextended('windlass.clock', 0)) then return; end if;
  select * into _look from windlass.look_at_clock();
  if _look.shift <> _shift then return; end if;
  if _correction <> 0 then
    -- Not if it came late, or the clock was stepped once more since.
    if _look.reading - _reading between 0 and 500000 then
      perform setval('windlass.clock_shift', _shift + _correction);
      perform setval('windlass.clock_mark', greatest(_look.mark, _look.reading + _correction));
    end if;
    return;
  end if;
  -- A mark that a crash of the server takes back is only older.
  perform set_config('synchronous_commit', 'off', true);
  if (select last_value from windlass.clock_watch) = 0 then perform setval('windlass.clock_watch',
      1); end if;
  if _reading > _look.mark then
    perform setval('windlass.clock_mark', _reading);
    -- Slowly back to the server's clock: by a ten-thousandth, which no lease or rate can feel.
    if _shift <> 0 then
      perform setval('windlass.clock_shift', _shift - least(greatest(_shift, -50), 50));
    end if;
  end if;
end $$;

-- An engine leaves. If there are others, they say so at their next look.
create function windlass.leave_clock() returns void language sql set search_path = pg_catalog,
    pg_temp as $$
  select setval('windlass.clock_watch', 0)
$$;

-- For who knows that the server's clock is right now and was wrong before: engine time follows it
-- at once. It never goes back: if the clock is behind, time goes on from where it is.
create function windlass.adopt_clock() returns timestamptz language sql
    set search_path = pg_catalog, pg_temp as $$
  select to_timestamp(windlass._trusted_time() / 1000000.0)
$$;
