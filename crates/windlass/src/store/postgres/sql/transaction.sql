-- Within somebody's own transaction: what is asked for here is there if that commits, and else not.

-- The time, for a call within somebody's own transaction that accepts these jobs, or completes one
-- (null).
--
-- Above READ COMMITTED the transaction sees nothing that was committed after its snapshot. Ids,
-- unique keys and dependencies are exact even so: whoever changed the row they rest on makes the
-- call fail with SQLSTATE 40001, to be tried again from the start. What rests on rows that others
-- may have added meanwhile is refused: how deep a queue is, which job of a lane is next, who waits
-- for a job that is completed. What is due is left to the others' calls.
create function windlass._begin_in_transaction(_items windlass.item[]) returns bigint
language plpgsql as $$
declare
  _level text := upper(current_setting('transaction_isolation'));
  _what text;
begin
  if _level in ('READ COMMITTED', 'READ UNCOMMITTED') then return windlass._begin(); end if;
  if _items is null then
    _what := 'a job cannot be completed';
  elsif exists (select from unnest(_items) i where i.spec ?| array['lane', 'object']) then
    _what := 'a job with a lane cannot be accepted';
  elsif exists (select from unnest(_items) i join windlass.queue_kind l on l.id = i.queue_kind
      join windlass.queue q on q.id = l.queue
      where q.max_depth is not null or q.lane_depth is not null)
  then
    _what := 'a job for a queue with a limit of its depth cannot be accepted';
  else
    return windlass.now_us();
  end if;
  perform windlass._refuse(jsonb_build_object('refusal', 'out_of_bounds',
    'what', '{ISOLATION_WHAT}', 'got', _level,
    'allowed', format('%s there; begin it with ISOLATION LEVEL READ COMMITTED', _what)));
  return null;
end $$;

-- Accepts jobs and answers what became of each. Workers are woken when the transaction commits.
create function windlass.enqueue_in(_jobs jsonb) returns jsonb language plpgsql
    set plan_cache_mode = force_generic_plan set jit = off
  set enable_seqscan = off set enable_bitmapscan = off as $$
declare
  _items windlass.item[] := windlass._items(_jobs);
  _now bigint := windlass._begin_in_transaction(_items);
  _placed jsonb;
  _ring text;
begin
  _placed := windlass._accept_batch(_items, null, null, _now);
  foreach _ring in array windlass._apply_effects(_now) loop
    perform pg_notify('windlass', _ring);
  end loop;
  return _placed;
end $$;

-- Completes an attempt, with the jobs it continues with. Refused if its lease is lost, and if it
-- was completed before: whoever repeats a transaction that was committed would do its other parts
-- twice.
create function windlass.complete_in(_end jsonb) returns jsonb language plpgsql
    set plan_cache_mode = force_generic_plan set jit = off
  set enable_seqscan = off set enable_bitmapscan = off as $$
declare
  _now bigint := windlass._begin_in_transaction(null);
  _p windlass.job_state := windlass._lock_job_by_id((_end->>'job')::uuid);
  _ring text;
begin
  if _p.seq is null or _p.state <> 3 or _p.token <> (_end->>'token')::bigint then
    perform windlass._refuse(jsonb_build_object('refusal', 'lease_lost', 'job', _end->>'job'));
  end if;
  perform windlass._settle_one(_p, 0, null, decode(_end->>'output', 'hex'), null,
    nullif(_end->'extra', 'null'), null, _now);
  foreach _ring in array windlass._apply_effects(_now) loop
    perform pg_notify('windlass', _ring);
  end loop;
  return '{}';
end $$;
