-- Counters, kept as differences that are added up now and then.

-- Counts a job that went from one state to another; null for none.
create function windlass._count(_seq bigint, _queue_kind int, _lane_queue int, _lane bigint,
    _from int, _to int) returns void
language plpgsql as $$
declare
  _d int[] := array[0,0,0,0,0,0,0];
  _queue int;
  _lanes int;
begin
  if _from is not distinct from _to then return; end if;
  if _from is not null then _d[_from + 1] := -1; end if;
  if _to is not null then _d[_to + 1] := 1; end if;
  select l.queue, q.lanes into _queue, _lanes
    from windlass.queue_kind l join windlass.queue q on q.id = l.queue where l.id = _queue_kind;
  insert into windlass.counter_delta (queue_kind, queue, lane, blocked, scheduled, ready, running,
      completed, dead, cancelled)
    values (_queue_kind, _queue, null, _d[1], _d[2], _d[3], _d[4], _d[5], _d[6], _d[7]);
  if coalesce(_from < 3, false) <> coalesce(_to < 3, false) then
    insert into windlass.counter_delta (queue, priority, ready)
      select _queue, j.priority, case when _to < 3 then 1 else -1 end
        from windlass.job j where j.seq = _seq and j.priority <> 0;
  end if;
  if _lane_queue is not null and _lanes is not null then
    insert into windlass.counter_delta (queue, lane, blocked, scheduled, ready, running, completed,
        dead, cancelled)
      values (_queue, _lane, _d[1], _d[2], _d[3], _d[4], _d[5], _d[6], _d[7]);
  end if;
  if _from < 4 and (_to is null or _to >= 4) then
    perform windlass._add_effect('queue_drained', _queue);
  end if;
end $$;

-- Counts something that happened to a job, of its queue and kind, and in its lane.
create function windlass._count_total(_queue_kind int, _lane_queue int, _lane bigint, _what text)
returns void
language plpgsql as $$
declare
  _queue int;
  _lanes int;
begin
  select l.queue, q.lanes into _queue, _lanes
    from windlass.queue_kind l join windlass.queue q on q.id = l.queue where l.id = _queue_kind;
  insert into windlass.counter_delta (queue_kind, queue, t_enqueued, t_completed, t_failed,
      t_retried, t_rescued, t_dead, t_cancelled)
    values (_queue_kind, _queue, (_what = 'enqueued')::int, (_what = 'completed')::int,
        (_what = 'failed')::int,
      (_what = 'retried')::int, (_what = 'rescued')::int, (_what = 'dead')::int,
          (_what = 'cancelled')::int);
  if _lane_queue is not null and _lanes is not null then
    insert into windlass.counter_delta (queue, lane, t_enqueued, t_completed, t_failed, t_retried,
        t_rescued, t_dead, t_cancelled)
      values (_queue, _lane, (_what = 'enqueued')::int, (_what = 'completed')::int,
          (_what = 'failed')::int,
        (_what = 'retried')::int, (_what = 'rescued')::int, (_what = 'dead')::int,
            (_what = 'cancelled')::int);
  end if;
end $$;

-- Waiting jobs of a queue. In plpgsql, which keeps its plan: a function in SQL is planned again by
-- every call.
create function windlass._depth(_queue int) returns bigint language plpgsql as $$
begin
  return (select coalesce(sum(blocked + scheduled + ready), 0)::bigint from windlass.counter_delta
    where queue = _queue and queue_kind is not null);
end $$;

-- Adds up the differences of counters, unless someone else does.
create function windlass._fold_counters() returns void language plpgsql as $$
begin
  if not pg_try_advisory_xact_lock(hashtextextended('windlass.counter_delta', 0))
      then return; end if;
  with gone as (delete from windlass.counter_delta returning *)
  insert into windlass.counter_delta
    select queue_kind, queue, lane, sum(blocked), sum(scheduled), sum(ready), sum(running),
        sum(completed), sum(dead),
        sum(cancelled), sum(t_enqueued), sum(t_completed), sum(t_failed), sum(t_retried),
            sum(t_rescued), sum(t_dead), sum(t_cancelled), priority
      from gone group by queue_kind, queue, lane, priority having priority is null
          or sum(ready) <> 0;
end $$;

-- One call in so many adds them up, so that there is never much to add.
create function windlass._is_fold_due(_now bigint) returns boolean language sql immutable as $$
  select _now % 64 = 0
$$;
