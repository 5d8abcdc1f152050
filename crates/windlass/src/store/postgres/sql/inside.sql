-- Within somebody's own transaction: what is asked for here is there if that commits, and else not.

-- Accepts jobs and answers what became of each. Workers are woken when the transaction commits.
create function windlass.enqueue_in(_jobs jsonb) returns jsonb language plpgsql set plan_cache_mode = force_generic_plan set jit = off
  set enable_seqscan = off set enable_bitmapscan = off as $$
declare
  _now bigint := windlass._begin();
  _placed jsonb;
  _ring text;
begin
  _placed := windlass._accept_batch(windlass._items(_jobs), null, null, _now);
  foreach _ring in array windlass._finish(_now) loop
    perform pg_notify('windlass', _ring);
  end loop;
  return _placed;
end $$;

-- Completes an attempt, with the jobs it continues with. Refused if its lease is lost.
create function windlass.complete_in(_end jsonb) returns jsonb language plpgsql set plan_cache_mode = force_generic_plan set jit = off
  set enable_seqscan = off set enable_bitmapscan = off as $$
declare
  _now bigint := windlass._begin();
  _p windlass.place := windlass._locate((_end->>'job')::uuid);
  _ring text;
begin
  if _p.seq is null or _p.state <> 3 or _p.token <> (_end->>'token')::bigint then
    perform windlass._refuse(format('the lease on job %s ended; another worker may be running it', _end->>'job'),
      jsonb_build_object('refusal', 'lease_lost', 'job', _end->>'job'));
  end if;
  perform windlass._settle_one(_p, 0, null, decode(_end->>'output', 'hex'), null,
    nullif(_end->'extra', 'null'), null, _now);
  foreach _ring in array windlass._finish(_now) loop
    perform pg_notify('windlass', _ring);
  end loop;
  return '{}';
end $$;
