-- Attempts end.
--
-- Completions without side effects, which most are, end all at once (`_complete_batch`, and what
-- follows from it in `_follow_completions`). All others are settled one by one (`_settle_one`).

-- Settles attempts. The first `_alone` are completed and have nothing else to say; they come as
-- ranges of numbers and of tokens. The others have their tokens and verdicts, and their numbers
-- where the caller knows them. An output is a piece of `_outputs`. Answers for each that is not
-- simply completed, and in a last row whom to ring.
create function windlass.settle(_alone int, _jobs uuid[], _firsts int[], _lows bigint[],
    _highs bigint[], _first_tokens bigint[], _seqs bigint[], _tokens bigint[], _verdicts smallint[],
    _args bigint[], _outputs bytea, _starts int[], _sizes int[], _errors text[], _extras jsonb[],
    _object_states bytea[])
returns table (n int, state int, refusal jsonb, rings text[])
language plpgsql set lock_timeout = '10s' set plan_cache_mode = force_generic_plan set jit = off
  set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
  set enable_sort = off set enable_bitmapscan = off as $$
#variable_conflict use_column
declare
  _is_right boolean := windlass._require_read_committed();
  _now bigint;
  _most_bytes bigint;
  _history_jobs bigint;
  _has_dependents boolean;
  _batch record;
  _owes boolean := false;
  _item record;
  _p windlass.job_state;
  _detail text;
begin
  select s.payload_bytes, s.history_jobs, exists (select from windlass.dependency)
    into _most_bytes, _history_jobs, _has_dependents from windlass.settings s;
  if array_position(_seqs, null) is not null then
    _seqs := array(select coalesce(i.seq, j.seq)
      from unnest(_jobs[_alone + 1 :], _seqs) with ordinality as i(job, seq, n)
        left join lateral (select j.seq from windlass.job j
          where i.seq is null and j.id = i.job offset 0) j on true
      order by i.n);
  end if;
  if _has_dependents or cardinality(_seqs) > 0 then
    perform windlass._lock_for_settle(_jobs, _seqs, _lows, _highs, _extras);
  end if;
  _now := windlass.now_us();
  _batch := windlass._complete_batch(_alone, _jobs, _firsts, _lows, _highs, _first_tokens,
    _outputs, _starts, _sizes, _most_bytes, _now);
  if _batch.done > 0 then
    _owes := windlass._follow_completions(_batch.done, _batch.seqs, _lows, _highs,
      _batch.queue_kinds, _batch.ended, _history_jobs, _now);
  end if;
  if _batch.done < cardinality(_jobs) then
    _owes := true;
    perform windlass._pass_time(_now);
    for _item in
      select i.* from (
          select r.first + s - r.low as n, s as seq, r.token + s - r.low as token, 0 as verdict,
              null as arg, _starts[r.first + s - r.low] as start,
              _sizes[r.first + s - r.low] as size, null as error, null::jsonb as extra,
              null::bytea as object_state
            from unnest(_firsts, _lows, _highs, _first_tokens) as r(first, low, high, token)
              cross join lateral generate_series(r.low, r.high) s
            where _batch.done < _alone and not s = any (_batch.seqs)
          union all
          select _alone + i.n, i.seq, i.token, i.verdict, i.arg, i.start, i.size, i.error, i.extra,
              i.object_state
            from unnest(_seqs, _tokens, _verdicts, _args[_alone + 1 :], _starts[_alone + 1 :],
                _sizes[_alone + 1 :], _errors[_alone + 1 :], _extras[_alone + 1 :],
                _object_states[_alone + 1 :]) with ordinality
              as i(seq, token, verdict, arg, start, size, error, extra, object_state, n)) i
        order by i.n
    loop
      _p := windlass._lock_job(_item.seq);
      if _p.settled and _p.token = _item.token then
        -- It is repeated, because its first answer was lost.
        return query select _item.n::int, _p.state::int, null::jsonb, null::text[];
        continue;
      elsif _p.seq is null or _p.state <> 3 or _p.token <> _item.token then
        return query select _item.n::int, null::int, jsonb_build_object('refusal', 'lease_lost'),
          null::text[];
        continue;
      end if;
      begin
        return query select _item.n::int, windlass._settle_one(_p, _item.verdict, _item.arg,
            substring(_outputs from _item.start for _item.size), _item.error, _item.extra,
            _item.object_state, _now), null::jsonb, null::text[];
      exception when sqlstate 'WL001' then
        get stacked diagnostics _detail = pg_exception_detail;
        return query select _item.n::int, null::int, _detail::jsonb, null::text[];
      end;
    end loop;
  end if;
  if windlass._is_fold_due(_now) then perform windlass._fold_counters(); end if;
  n := null;
  rings := case when _owes then windlass._apply_effects(_now) else '{}' end;
  return next;
  if _batch.done > 0 then perform windlass._end_leases(_batch.leases, _batch.ended); end if;
end $$;

-- Locks the jobs of a settlement together with what their end changes: their dependents, and the
-- alarms of objects that turn. In the order of numbers, so that no two calls with jobs in common
-- wait for each other in a circle. Dependents beyond those of one call are locked when they are
-- told. Where all are simply completed and nobody depends on them, the
-- update locks them in that order itself.
create function windlass._lock_for_settle(_jobs uuid[], _seqs bigint[], _lows bigint[],
    _highs bigint[], _extras jsonb[]) returns void language plpgsql as $$
begin
  if coalesce(cardinality(_seqs), 0) = 0 and not (exists (select from windlass.dependency)
    and exists (select from windlass.dependency e where e.on_id = any (_jobs) and not e.met))
  then
    return;
  end if;
  perform from windlass.job_state p where p.seq = any (array(
      select unnest(_seqs)
      union all select windlass._from_ranges(_lows, _highs)
      union all (select e.seq from windlass.dependency e
        where e.on_id = any (_jobs) and not e.met limit {CASCADE_JOBS})
      union all select j.seq from unnest(_extras) x
        cross join lateral (select o.alarm from windlass.object o
          where o.address = windlass._address(x->'turn'->'object') offset 0) o
        cross join lateral (select j.seq from windlass.job j where j.id = o.alarm offset 0) j))
    order by p.seq for update;
end $$;

-- What follows when jobs were completed all at once: `_seqs`, or all of the ranges if that is null,
-- so many of each pair of queue and kind. Answers whether the call owes effects by that.
create function windlass._follow_completions(_done int, _seqs bigint[], _lows bigint[],
    _highs bigint[], _queue_kinds int[], _ended int[], _history_jobs bigint, _now bigint)
returns boolean
language plpgsql as $$
declare
  _queues int[];
  _frees_limit boolean;
  _has_logs boolean;
  _has_dependents boolean;
  _parents bigint[];
  _queue int;
begin
  if _seqs is not null then
    select r.lows, r.highs into _lows, _highs from windlass._to_ranges(_seqs) r;
  end if;
  insert into windlass.history (at, n, lows, highs) values (_now, _done, _lows, _highs);
  -- Looked at after they ended: who begins to depend on one of them now sees that it has.
  select array_agg(distinct l.queue), bool_or(k.turned_away),
      exists (select from windlass.attempt_log), exists (select from windlass.dependency)
    into _queues, _frees_limit, _has_logs, _has_dependents
    from windlass.queue_kind l join windlass.kind k on k.id = l.kind
    where l.id = any (_queue_kinds);
  if cardinality(_queue_kinds) = 1 then
    insert into windlass.counter_delta (queue_kind, queue, running, completed, t_completed)
      values (_queue_kinds[1], _queues[1], -_done, _done, _done);
  else
    insert into windlass.counter_delta (queue_kind, queue, running, completed, t_completed)
      select e.queue_kind, l.queue, -e.n, e.n, e.n
        from (select e.queue_kind, sum(e.n) as n from unnest(_queue_kinds, _ended)
            as e(queue_kind, n) group by e.queue_kind) e
          join windlass.queue_kind l on l.id = e.queue_kind;
  end if;
  if _has_logs or _has_dependents then
    _seqs := coalesce(_seqs, array(select windlass._from_ranges(_lows, _highs)));
    -- An attempt log that told of earlier failures tells of a success now.
    update windlass.attempt_log d set error = null
      where d.seq = any (_seqs) and d.error is not null;
    _parents := array(select s.seq from unnest(_seqs) with ordinality as s(seq, n)
        cross join lateral (select j.id from windlass.job j where j.seq = s.seq offset 0) j
      where exists (select from windlass.dependency e where e.on_id = j.id and not e.met)
      order by s.n);
    if cardinality(_parents) > 0 then perform windlass._cascade_success(_parents, _now); end if;
  end if;
  if _frees_limit then perform windlass._ring_turned_away(_queue_kinds); end if;
  foreach _queue in array _queues loop
    perform windlass._notify_if_empty(_queue, _now);
  end loop;
  -- So seldom that what is added between two looks is about as much as the slack.
  if _done * 64 > _history_jobs / 10 or windlass._is_fold_due(_now) then
    perform windlass._trim_history(_history_jobs, _now, _history_jobs / 10);
  end if;
  return _frees_limit or cardinality(_parents) > 0;
end $$;

-- Ends one attempt whose lease is held; the state the job is in then.
-- Verdicts: 0 complete, 1 retry, 2 snooze, 3 release, 4 bury, 5 cancel.
create function windlass._settle_one(_p windlass.job_state, _verdict int, _arg bigint,
    _output bytea, _error text,
    _extra jsonb, _object_state bytea, _now bigint) returns int language plpgsql as $$
declare
  _q windlass.job_state;
  _state int;
  _reason int;
  _end int := (array[0, 1, 2, 3, 1, 4])[_verdict + 1];
  _next jsonb := case when _verdict = 0 then coalesce(_extra->'next', '[]') else '[]' end;
  _kept_error text;
begin
  if _output is not null then
    perform windlass._check_bound('{OUTPUT_WHAT}', (select payload_bytes from windlass.settings),
      '{PAYLOAD_REMEDY}', octet_length(_output));
  end if;
  if _extra->'report' ? 'steps' then perform windlass._admit_steps(_p.seq,
      _extra->'report'->'steps'); end if;
  if _verdict = 0 and not _p.without_effects then
    -- The job may continue with one of the same key, which it gives up by completing.
    delete from windlass.unique_key k using windlass.job j
      where k.seq = _p.seq and j.seq = _p.seq and j.spec->'unique'->>'scope' = 'open';
  end if;
  if _next <> '[]' and not (_extra ? 'turn') then
    perform windlass._accept_batch(windlass._items(_next), null, null, _now, false);
  end if;
  _p := windlass._report(_p, _extra->'report', _now);
  if _verdict in (1, 2, 3) and _p.cancel_requested then
    _state := 6; _reason := 0;
  else
    _state := (array[4, 1, 1, 2, 5, 6])[_verdict + 1];
    _reason := case when _verdict in (4, 5) then _arg end;
  end if;
  if _state >= 4 then
    select d.error into _kept_error from windlass.attempt_log d where d.seq = _p.seq;
    if _end in (2, 3) then
      -- Its own error is not that of the job, so it goes with the attempts of before.
      perform windlass._log_attempt(_p, _now, _end, _error);
    end if;
    perform windlass._end(_p, _now, _state, _reason, nullif(nullif(_end, 2), 3),
        case when _state = 4 then _output end,
      case when _state = 4 then null when _end = 1 or _end >= 4 then _error else _kept_error end,
      case when _state = 4 then 0 else _p.recoveries end);
    perform windlass._emit_settled(_p, _now, _state, _reason, null, _end, _error);
  else
    _q := _p;
    _q.state := _state;
    _q.settled := true;
    _q.updated_at := _now;
    if _verdict in (2, 3) then _q.attempts := greatest(_p.attempts - 1, 0); end if;
    if _state = 1 then
      _q.at := _now + _arg;
    else
      _q.at := least(_p.since, _now);
      _q.rank := windlass._rank_of(_p.seq, _p.queue_kind, _q.at);
    end if;
    perform windlass._log_attempt(_p, _now, _end, _error);
    perform windlass._save_job(_p, _q);
    perform windlass._ring(array[_p.queue_kind]);
    perform windlass._emit_settled(_p, _now, _state, null, _q.at, _end, _error);
  end if;
  perform windlass._ring_turned_away(array[_p.queue_kind]);
  if _extra ? 'turn' then
    perform windlass._turn(_extra->'turn', _object_state, windlass._items(_next), _now);
  end if;
  if _state >= 4 then
    perform windlass._cascade(_p.seq, _error, _now);
  end if;
  return coalesce((select p.state from windlass.job_state p where p.seq = _p.seq), _state);
end $$;

-- Tells what became of an attempt and of its job, and counts both. Ends: 0 completed, 1 failed, 2
-- snoozed, 3 released, 4 cancelled, from 5 on crashed: 5 and the reason of its recovery.
create function windlass._emit_settled(_p windlass.job_state, _now bigint, _state int, _reason int,
    _at bigint, _end int, _error text) returns void language plpgsql as $$
declare
  _failed boolean := case when _state = 5 then _reason <> 4 else _end = 1 or _end >= 5 end;
begin
  if _failed then
    perform windlass._count_total(_p.queue_kind, _p.lane_queue, _p.lane, 'failed');
    perform windlass._emit(_now, 'job.failed', _p.seq, jsonb_build_object('worker', _p.worker,
      'error', coalesce(_error, 'no reason was given')), _p.attempts, case when _state = 1
          then _at end);
  end if;
  if _state = 4 then
    perform windlass._count_total(_p.queue_kind, _p.lane_queue, _p.lane, 'completed');
    perform windlass._emit(_now, 'job.completed', _p.seq, jsonb_build_object('worker', _p.worker),
        _p.attempts, _now - _p.since);
  elsif _state = 1 and _failed then
    perform windlass._count_total(_p.queue_kind, _p.lane_queue, _p.lane, 'retried');
    perform windlass._emit(_now, 'job.retrying', _p.seq, null, _p.attempts, _at);
  elsif _state = 1 then
    perform windlass._emit(_now, 'job.snoozed', _p.seq, null, _at);
  elsif _state = 2 then
    perform windlass._emit(_now, 'job.released', _p.seq, jsonb_build_object('worker', _p.worker));
  else
    perform windlass._emit_end(_p, _now, _state, _reason, _error);
  end if;
end $$;
