-- Attempts go on: their leases are renewed, and what their handlers report is kept.

create function windlass.renew(_jobs uuid[], _tokens bigint[], _leases bigint[], _reports jsonb[])
returns table (n int, until bigint, cancel_requested boolean, refusal jsonb)
language plpgsql set lock_timeout = '10s' set plan_cache_mode = force_generic_plan set jit = off
  set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
  set enable_sort = off set enable_bitmapscan = off as $$
#variable_conflict use_column
declare
  _now bigint := windlass._begin();
  _item record;
  _p windlass.job_state;
  _detail text;
begin
  perform windlass._apply_effects(_now);
  perform windlass._materialize_lease(array_agg(windlass._lease_of(i.token)), array_agg(j.seq),
      array_agg(j.seq), null)
    from unnest(_jobs, _tokens) as i(job, token)
      cross join lateral (select j.seq from windlass.job j where j.id = i.job offset 0) j;
  -- A job that is being settled at this moment keeps the lease it has: nobody waits for it here.
  return query with asked as (
    select i.n::int as n, i.lease, p.seq, p.at, p.cancel_requested
      from unnest(_jobs, _tokens, _leases, _reports) with ordinality as i(job, token, lease,
          report, n)
        cross join lateral (select j.seq from windlass.job j where j.id = i.job offset 0) j
        cross join lateral (select p.* from windlass.job_state p where p.seq = j.seq offset 0) p
      where p.state = 3 and p.token = i.token and i.report is null and i.n between 1 and 16384
  ), held as (
    select a.n, a.lease, p.row_id from asked a cross join lateral (
      select p.ctid as row_id from windlass.job_state p where p.seq = a.seq and p.state = 3 offset 0
        for update skip locked) p
  ), renewed as (
    update windlass.job_state p set at = _now + h.lease, reported = false, updated_at = _now
        from held h
      where p.ctid = h.row_id returning h.n, p.at, p.cancel_requested
  )
  select a.n, coalesce(r.at, a.at), coalesce(r.cancel_requested, a.cancel_requested), null::jsonb
    from asked a left join renewed r on r.n = a.n;
  update windlass.lease s set reported = false where s.reported
    and s.token in (select windlass._lease_of(t) from unnest(_tokens) t);
  update windlass.worker w set seen_at = _now where w.seen_at < _now - 5000000 and w.id in (
    select p.worker from unnest(_jobs, _tokens) as i(job, token)
      cross join lateral (select j.seq from windlass.job j where j.id = i.job offset 0) j
      cross join lateral (select p.* from windlass.job_state p where p.seq = j.seq offset 0) p
      where p.state = 3 and p.token = i.token limit 1);
  for _item in
    select i.n::int as n, j.seq, i.token, i.lease, i.report
      from unnest(_jobs, _tokens, _leases, _reports) with ordinality as i(job, token, lease,
          report, n)
        cross join lateral (select j.seq from windlass.job j where j.id = i.job offset 0) j
      where i.report is not null order by i.n
  loop
    _p := windlass._lock_job(_item.seq);
    continue when _p.seq is null or _p.state <> 3 or _p.token <> _item.token;
    begin
      _p := windlass._report(_p, _item.report, _now);
      update windlass.job_state p set at = _now + _item.lease, reported = false, updated_at = _now
          where p.seq = _p.seq;
      return query select _item.n, _now + _item.lease, _p.cancel_requested, null::jsonb;
    exception when sqlstate 'WL001' then
      get stacked diagnostics _detail = pg_exception_detail;
      return query select _item.n, null::bigint, null::boolean, _detail::jsonb;
    end;
  end loop;
  perform windlass._apply_effects(_now);
end $$;

-- Records what the handler of a running job has to say.
create function windlass._report(_p windlass.job_state, _report jsonb, _now bigint)
returns windlass.job_state
language plpgsql as $$
declare
  _step jsonb;
  _log_lines jsonb := coalesce(_report->'lines', '[]');
begin
  if _report is null then return _p; end if;
  if _report ? 'steps' then perform windlass._admit_steps(_p.seq, _report->'steps'); end if;
  if _report ? 'progress' or _log_lines <> '[]' then
    insert into windlass.attempt_log (seq) values (_p.seq) on conflict do nothing;
    update windlass.attempt_log d set
      progress = coalesce(_report->'progress', d.progress),
      progress_token = case when _report ? 'progress' then _p.token else d.progress_token end,
      log_dropped = least(d.log_dropped + coalesce((_report->>'lines_dropped')::bigint, 0)
        + greatest(jsonb_array_length(coalesce(d.log, '[]'))
            + jsonb_array_length(_log_lines) - {LOG_LINES_KEPT}, 0), 2147483647),
      log = (select jsonb_agg(l order by n) from (
        select l, n from jsonb_array_elements(coalesce(d.log,
            '[]') || _log_lines) with ordinality as e(l, n)
          order by n desc limit {LOG_LINES_KEPT}) last)
      where d.seq = _p.seq;
  end if;
  if _report ? 'progress' then
    perform windlass._emit(_now, 'job.progress', _p.seq, null,
        (_report->'progress'->>'percent')::bigint);
  end if;
  for _step in select s from jsonb_array_elements(coalesce(_report->'steps', '[]')) s loop
    continue when exists (select from windlass.step where seq = _p.seq and name = _step->>'name');
    insert into windlass.step (seq, number, name, result)
      values (_p.seq, _p.steps, _step->>'name', decode(_step->>'result', 'hex'));
    _p.steps := _p.steps + 1;
    perform windlass._emit(_now, 'step.completed', _p.seq,
        jsonb_build_object('name', _step->>'name'));
  end loop;
  update windlass.job_state set steps = _p.steps, updated_at = _now where seq = _p.seq;
  return _p;
end $$;

-- Refuses steps that a running job may not have as well as those it has.
create function windlass._admit_steps(_seq bigint, _steps jsonb) returns void language plpgsql as $$
declare
  _all record;
begin
  perform windlass._check_bound({BOUND_STEP_BYTES}, (
    select max(octet_length(s->>'result') / 2) from jsonb_array_elements(_steps) s));
  select count(*) as n, sum(bytes) as bytes into _all from (
    select name, octet_length(result) as bytes from windlass.step where seq = _seq
    union all
    select s.name, s.bytes from (
      select distinct on (s->>'name') s->>'name' as name,
          octet_length(decode(s->>'result', 'hex')) as bytes
        from jsonb_array_elements(_steps) with ordinality as e(s, n) order by s->>'name', n) s
      where not exists (select from windlass.step k where k.seq = _seq and k.name = s.name)) steps;
  perform windlass._check_bound({BOUND_STEPS}, _all.n);
  perform windlass._check_bound({BOUND_STEPS_BYTES}, _all.bytes::bigint);
end $$;
