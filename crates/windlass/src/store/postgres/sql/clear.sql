-- Clearing a queue.

-- Cancels every waiting job of a queue.
create function windlass.clear(_queue text, out cleared bigint, out followed bigint,
    out rings text[])
language plpgsql set lock_timeout = '10s' set plan_cache_mode = force_generic_plan set jit = off
  set enable_seqscan = off set enable_bitmapscan = off as $$
declare
  _now bigint;
  _q windlass.queue;
  _seqs bigint[];
  _seq bigint;
  _p windlass.job_state;
begin
  perform windlass._require_read_committed();
  cleared := 0;
  followed := 0;
  select * into _q from windlass.queue where name = _queue;
  _seqs := array(select p.seq
    from windlass.job_state p join windlass.queue_kind l on l.id = p.queue_kind
    where l.queue = _q.id and p.state < 3 order by p.seq for update of p);
  _now := windlass.now_us();
  perform windlass._pass_time(_now);
  if _q.id is not null then
    foreach _seq in array _seqs loop
      _p := windlass._lock_job(_seq);
      continue when _p.seq is null or _p.state >= 3;
      perform windlass._cancel(_p, 3, _now);
    end loop;
    select coalesce(sum(t_cancelled) filter (where queue = _q.id), 0),
        coalesce(sum(t_cancelled) filter (where queue <> _q.id), 0) into cleared, followed
      from windlass.counter_delta
      where xmin = pg_current_xact_id()::xid and queue_kind is not null;
    perform windlass._emit_once(_now, 'queue.cleared',
      jsonb_build_object('queue', _queue, 'jobs', cleared));
  end if;
  rings := windlass._apply_effects(_now);
end $$;
