-- Clearing a queue.

-- Cancels the next waiting jobs of a queue after `_after` and up to `_until`, the last job there is
-- if that is null, as many as one commit changes. Answers `_until`, and up to where it has looked,
-- null if nothing is left to look at; then it tells of all, `_before` of which were cancelled by
-- the calls before.
create function windlass.clear(_queue text, _after bigint, inout until bigint, _before bigint,
    _by text default null, out cleared bigint, out followed bigint, out looked_to bigint,
    out rings text[])
language plpgsql set lock_timeout = '10s' set plan_cache_mode = force_generic_plan set jit = off
  set enable_seqscan = off set enable_bitmapscan = off as $$
declare
  _now bigint;
  _q windlass.queue;
  _queue_kinds int[];
  _scanned bigint[];
  _seqs bigint[];
  _seq bigint;
  _p windlass.job_state;
begin
  perform windlass._require_read_committed();
  cleared := 0;
  followed := 0;
  select * into _q from windlass.queue where name = _queue;
  until := coalesce(until, (select max(j.seq) from windlass.job j), 0);
  _queue_kinds := array(select l.id from windlass.queue_kind l where l.queue = _q.id);
  _scanned := array(select j.seq from windlass.job j where j.seq > _after and j.seq <= until
    order by j.seq limit {PAGE_SCAN});
  _seqs := array(select p.seq from windlass.job_state p
    where p.seq > _after and p.seq <= _scanned[cardinality(_scanned)]
      and p.queue_kind = any (_queue_kinds) and p.state < 3
    order by p.seq limit {CHUNK_JOBS} for update);
  if cardinality(_seqs) = {CHUNK_JOBS} then
    looked_to := _seqs[{CHUNK_JOBS}];
  elsif cardinality(_scanned) = {PAGE_SCAN} then
    looked_to := _scanned[{PAGE_SCAN}];
  end if;
  _now := windlass.now_us();
  perform windlass._pass_time(_now);
  if _q.id is not null then
    if windlass._cancel_plain(_seqs, 3, _now) then _seqs := '{}'; end if;
    foreach _seq in array _seqs loop
      _p := windlass._lock_job(_seq);
      continue when _p.seq is null or _p.state >= 3;
      perform windlass._cancel(_p, 3, _now);
    end loop;
    select coalesce(sum(t_cancelled) filter (where queue = _q.id), 0),
        coalesce(sum(t_cancelled) filter (where queue <> _q.id), 0) into cleared, followed
      from windlass.counter_delta
      where xmin = pg_current_xact_id()::xid and queue_kind is not null;
    if cleared > 0 then perform windlass._audit(_by, cleared, _now); end if;
    if looked_to is null then
      perform windlass._emit_once(_now, 'queue.cleared',
        jsonb_build_object('queue', _queue, 'jobs', _before + cleared));
    end if;
  end if;
  rings := windlass._apply_effects(_now);
end $$;
