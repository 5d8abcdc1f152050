-- Housekeeping, done by whoever is alive.

-- Goes on with large cascades, for a claim that has seen that some are not through. Answers whether
-- it could: another call may be at it.
create function windlass.go_on_with_cascades(out goes_on boolean, out more boolean,
    out rings text[])
language plpgsql set lock_timeout = '10s' set plan_cache_mode = force_generic_plan set jit = off
  set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
  set enable_sort = off set enable_bitmapscan = off as $$
declare
  _is_right boolean := windlass._require_read_committed();
  _now bigint := windlass.now_us();
begin
  goes_on := windlass._go_on_with_cascades({CASCADE_JOBS}, _now) > 0;
  rings := windlass._apply_effects(_now);
  more := exists (select from windlass.owing);
end $$;

create function windlass.promote(out purged bigint, out next_in bigint, out last_event bigint,
    out more boolean, out rings text[])
language plpgsql set lock_timeout = '10s' set plan_cache_mode = force_generic_plan set jit = off
  set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
  set enable_sort = off set enable_bitmapscan = off as $$
declare
  _is_right boolean := windlass._require_read_committed();
  _now bigint := windlass.now_us();
  _settings windlass.settings;
  _told int;
begin
  -- It waits for jobs, so it comes before what takes whatever jobs nobody holds.
  _told := windlass._go_on_with_cascades({CASCADE_JOBS}, _now);
  perform windlass._pass_time(_now);
  select * into _settings from windlass.settings;
  purged := windlass._purge(_now, _now - _settings.history_age, {SWEEP_BATCH});
  perform windlass._trim_history(_settings.history_jobs, _now, 0);
  purged := purged + windlass._purge_objects(_now);
  select least(
      (select at from windlass.scheduled order by at limit 1),
      (select expires_at from windlass.job_state where expires_at is not null and state < 3
          and attempts = 0
        and generation = 0 order by expires_at limit 1),
      (select at + _settings.history_age from windlass.history order by at limit 1),
      (select purge_at from windlass.object o where purge_at is not null
        and not exists (select from windlass.job_state p where p.object = o.address)
            order by purge_at limit 1))
    into next_in;
  next_in := case when next_in > _now then next_in - _now when next_in is not null then 0 end;
  rings := windlass._apply_effects(_now);
  -- If nobody could be told, another call is at it.
  more := _told > 0 and exists (select from windlass.owing);
  perform windlass._fold_counters();
  last_event := windlass._number_events();
  -- Only so many are kept for those who lag.
  delete from windlass.event e where e.number <= last_event - {EVENTS_KEPT}
      and e.number + e.n - 1 <= last_event - {EVENTS_KEPT};
  delete from windlass.worker where seen_at < _now - 86400000000;
end $$;
