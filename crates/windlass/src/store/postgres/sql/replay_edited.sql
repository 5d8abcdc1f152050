-- Replaying a dead job with other contents.

-- Puts a new job in the place of a dead one.
create function windlass.replay_edited(_id uuid, _edited jsonb, _by text default null,
    out placed jsonb, out rings text[])
language plpgsql set lock_timeout = '10s' set plan_cache_mode = force_generic_plan set jit = off
  set enable_seqscan = off set enable_bitmapscan = off as $$
declare
  _now bigint;
  _p windlass.job_state;
begin
  perform windlass._require_read_committed();
  _p := windlass._lock_job_by_id(_id);
  _now := windlass.now_us();
  perform windlass._pass_time(_now);
  if _p.seq is null then
    perform windlass._refuse(jsonb_build_object('refusal', 'unknown_job', 'job', _id));
  elsif _p.state <> 5 then
    perform windlass._refuse(jsonb_build_object('refusal', 'wrong_state', 'job', _id,
      'state', _p.state, 'operation', 'edit and replay'));
  end if;
  delete from windlass.unique_key where seq = _p.seq;
  placed := windlass._accept_batch(windlass._items(jsonb_build_array(_edited)), null, 1, _now)->0;
  delete from windlass.dead d using windlass.queue_kind l
    where l.id = _p.queue_kind and d.queue = l.queue and d.at = _p.at and d.seq = _p.seq;
  if _p.worker is not null then
    perform windlass._log_attempt(_p, _p.at, _p.attempt_end,
        (select d.error from windlass.attempt_log d
      where d.seq = _p.seq and (_p.attempt_end = 1 or _p.attempt_end >= 4)));
  end if;
  update windlass.job_state set state = 6, reason = 5, at = _now, updated_at = _now,
      attempt_end = null, worker = null, since = null where seq = _p.seq;
  insert into windlass.history (at, n, lows, highs) values (_now, 1, array[_p.seq], array[_p.seq]);
  perform windlass._count(_p.seq, _p.queue_kind, _p.lane_queue, _p.lane, 5, 6);
  perform windlass._emit_end(_p, _now, 6, 5, null);
  perform windlass._cascade(_p.seq, null, _now);
  perform windlass._add_effect('history_grown');
  perform windlass._audit(_by, 1, _now);
  rings := windlass._apply_effects(_now);
end $$;
