-- Batch leases: one row leases all jobs that a claim took.
--
-- Answers: a claim of 500 jobs would rewrite 500 rows of `job_state`, and their end 500 more.
-- Why not simpler: with it a drain is 0.6 to 0.7 of bare inserts and deletes on the same server,
-- without it 0.4.
-- Guarded by: tests/postgres/batch_leases.rs.
--
-- A batch lease covers jobs that never started and are without side effects. Their rows in
-- `job_state` stay as they are: ready, and not in `ready`. A job is covered at most once, so an
-- unmodified row that is not in `ready` proves that it runs under the batch lease; its token is the
-- lease's plus its number. A completion writes the end at once (`_complete_batch`). Everything else
-- looks at jobs by `job_state_now` and locks them by `_lock_job`, which writes out what the lease
-- says first (`_materialize_lease`).

-- Jobs that were claimed together, as ranges of numbers from `lows` to `highs`. `until` is not
-- later than the first of their leases ends; whoever looks then makes it true again. `running` is
-- not less than how many still run. `request` names the claim, if it can be repeated. Only a batch
-- lease has a `worker`, `ends` and `max_attempts`.
create table windlass.lease (
  token bigint primary key,
  until bigint not null,
  running int not null,
  reported boolean not null default false,
  worker text,
  since bigint,
  ends bigint,
  max_attempts bigint,
  lowest bigint not null,
  highest bigint not null,
  lows bigint[] not null,
  highs bigint[] not null,
  request uuid
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0,
  vacuum_truncate = false);
-- Without the token, so that nobody looks for one here.
create index lease_until on windlass.lease (until);
create index lease_request on windlass.lease (request) where request is not null;
create index lease_range on windlass.lease using gist (int8range(lowest, highest, '[]'))
  where worker is not null;

-- Where jobs stand, for whoever looks without locking them: as in `job_state`, with what batch
-- leases say.
create view windlass.job_state_now as
  select p.seq, coalesce(s.ends, p.at) as at, coalesce(s.since, p.updated_at) as updated_at,
      case when s.token is null then p.attempts else 1 end as attempts, p.recoveries, p.generation,
      case when s.token is null then p.state else 3::smallint end as state, p.steps,
      p.begun or s.token is not null as begun, p.settled, p.cancel_requested, p.reason,
      p.attempt_end, p.unmet,
      coalesce(s.token, p.token) as token, coalesce(s.since, p.since) as since,
      case when s.token is null then p.max_attempts
        else coalesce(p.own_max_attempts, s.max_attempts) end as max_attempts,
      coalesce(p.first_started, s.since) as first_started, coalesce(s.worker, p.worker) as worker,
      p.output, p.met
    from windlass.job_state p left join lateral (
      select s.token + 1 + p.seq - s.lowest as token, s.worker, s.since, s.ends, s.max_attempts
        from windlass.lease s
        where windlass._never_started(p.state, p.begun, p.generation, p.without_effects)
          and s.worker is not null and int8range(s.lowest, s.highest, '[]') @> p.seq
          and s.highs[width_bucket(p.seq, s.lows)] >= p.seq
          and not exists (select from windlass.ready r
            where r.queue_kind = p.queue_kind and r.rank = p.rank and r.at = p.at and r.seq = p.seq)
        limit 1) s on true;

-- The jobs that still run under a lease, of either kind.
create function windlass._running_under(_lease windlass.lease)
returns table (seq bigint, until bigint, reported boolean, worker text) language sql stable as $$
  select p.seq, case when p.state = 3 then p.at else (_lease).ends end, p.reported,
      coalesce(p.worker, (_lease).worker)
    from unnest((_lease).lows, (_lease).highs) as r(low, high) cross join lateral (
      select p.* from windlass.job_state p where p.seq between r.low and r.high
        and (p.state = 3 and windlass._lease_of(p.token) = (_lease).token
          or (_lease).worker is not null
            and windlass._never_started(p.state, p.begun, p.generation, p.without_effects))
        offset 0) p
$$;

-- Writes out in `job_state` what batch leases say of jobs: of ranges of numbers, each under one
-- lease, and of no more than `_most` jobs. Passes over whom somebody else holds.
create function windlass._materialize_lease(_leases bigint[], _lows bigint[], _highs bigint[],
    _most int) returns void language plpgsql as $$
begin
  with covered as (
    select p.row_id, s.token + 1 + p.seq - s.lowest as token, s.worker, s.since, s.ends,
        s.max_attempts
      from unnest(_leases, _lows, _highs) as r(lease, low, high)
        join lateral (select s.* from windlass.lease s where s.token = r.lease offset 0) s
          on s.worker is not null and s.highs[width_bucket(r.low, s.lows)] >= r.high
        cross join lateral (
          select p.ctid as row_id, p.seq from windlass.job_state p
            where p.seq between r.low and r.high
              and windlass._never_started(p.state, p.begun, p.generation, p.without_effects)
            offset 0 for update skip locked) p
      limit _most
  )
  update windlass.job_state p set state = 3, attempts = 1, begun = true, token = s.token,
      worker = s.worker, since = s.since, at = s.ends,
      max_attempts = coalesce(p.own_max_attempts, s.max_attempts), first_started = s.since,
      updated_at = s.since
    from covered s where p.ctid = s.row_id;
end $$;

-- The jobs of these rows, if one lease can cover all of them; otherwise nothing. They never started
-- and are without side effects, start in the order of their numbers, and all on the same terms.
-- Their tokens follow from their numbers, so these must not be far apart; and all of them are told
-- in one row, which must not be too large.
create function windlass._fit_batch_lease(_terms windlass.claim_terms, _plan windlass.claim_plan,
    _rows windlass.ready_rows) returns windlass.claim_jobs language plpgsql as $$
declare
  _jobs windlass.claim_jobs;
  _by_priority bigint[];
begin
  if _rows.never_started is not true then return null; end if;
  if _plan.is_mixed then
    select array_agg(h.seq order by h.seq), array_agg(h.source order by h.seq),
        array_agg(h.seq order by windlass._effective_priority(_plan.ageings[h.source], h.rank, h.at,
          _plan.now) desc, h.at, h.seq)
        into _jobs.seqs, _jobs.sources, _by_priority
      from unnest(_rows.seqs, _rows.sources, _rows.ranks, _rows.ats) as h(seq, source, rank, at);
    if _by_priority <> _jobs.seqs then return null; end if;
    if exists (select from unnest(_jobs.sources) s, (select _plan.terms[_jobs.sources[1]]) f(term)
      where (_terms.leases[_plan.terms[s]], _terms.max_attempts[_plan.terms[s]])
        is distinct from (_terms.leases[f.term], _terms.max_attempts[f.term]))
    then
      return null;
    end if;
  elsif cardinality(_rows.seqs) = 1 then
    _jobs.seqs := _rows.seqs;
  else
    _jobs.seqs := array(select h from unnest(_rows.seqs) h order by h);
    if _jobs.seqs <> _rows.seqs then return null; end if;
  end if;
  if _jobs.seqs[cardinality(_jobs.seqs)] - _jobs.seqs[1] >= {LEASE_TOKENS} - 1 then
    return null;
  end if;
  if cardinality(_jobs.seqs) * _plan.payload_bytes >= 268435456 then
    if (select sum(octet_length(j.payload)) >= 268435456 from windlass.job j
      where j.seq = any (_jobs.seqs))
    then
      return null;
    end if;
  end if;
  return _jobs;
end $$;

-- Leases these jobs by one row, and answers with them, one value of each array per job. No
-- `details` at all means that none of them has any.
create function windlass._start_batch(_terms windlass.claim_terms, _plan windlass.claim_plan,
    _rows windlass.ready_rows, _jobs windlass.claim_jobs, _since bigint, out first_token bigint,
    out ids uuid[], out seqs bigint[], out payloads bytea, out sizes int[], out created bigint[],
    out queue_kinds int[], out details jsonb[]) language plpgsql as $$
#variable_conflict use_column
declare
  _base bigint := nextval('windlass.token') * {LEASE_TOKENS};
  _taken int := cardinality(_jobs.seqs);
  _term int := _plan.terms[coalesce(_jobs.sources[1], 1)];
  _lows bigint[];
  _highs bigint[];
  _has_details boolean;
begin
  if _jobs.seqs[_taken] - _jobs.seqs[1] = _taken - 1 then
    _lows := _jobs.seqs[1:1];
    _highs := _jobs.seqs[_taken:_taken];
  else
    select r.lows, r.highs into _lows, _highs from windlass._to_ranges(_jobs.seqs) r;
  end if;
  insert into windlass.lease (token, until, running, lowest, highest, lows, highs, worker, since,
      ends, max_attempts, request)
    values (_base, _since + _terms.leases[_term], _taken, _jobs.seqs[1], _jobs.seqs[_taken], _lows,
      _highs, _terms.worker, _since, _since + _terms.leases[_term], _terms.max_attempts[_term],
      _terms.request);
  perform windlass._leave_ready(_plan, _rows, _jobs);
  select array_agg(j.id), array_agg(j.seq), string_agg(j.payload, ''),
      array_agg(octet_length(j.payload)), array_agg(j.created_at),
      array_agg(j.queue_kind) filter (where _plan.is_mixed),
      array_agg(case when j.spec is not null or j.priority <> 0 or j.start_kind <> 0
        then jsonb_build_object('spec', j.spec, 'priority', j.priority,
          'start_kind', j.start_kind, 'start_us', j.start_us) end),
      bool_or(j.spec is not null or j.priority <> 0 or j.start_kind <> 0)
      into ids, seqs, payloads, sizes, created, queue_kinds, details, _has_details
    from unnest(_lows, _highs) as r(low, high) cross join lateral (
      select j.* from windlass.job j where j.seq between r.low and r.high offset 0) j;
  if not _plan.is_mixed then queue_kinds := _plan.queue_kinds; end if;
  if _has_details then
    insert into windlass.counter_delta (queue, priority, ready)
      select l.queue, j.priority, -count(*) from unnest(_lows, _highs) as r(low, high)
          cross join lateral (select j.queue_kind, j.priority from windlass.job j
            where j.seq between r.low and r.high and j.priority <> 0 offset 0) j
          join windlass.queue_kind l on l.id = j.queue_kind
        group by l.queue, j.priority;
  else
    details := null;
  end if;
  insert into windlass.event (at, n, topic, jobs, queue_kinds, a, detail)
    values (_since, _taken, 'job.started', ids, queue_kinds, array[1],
      jsonb_build_object('worker', _terms.worker));
  first_token := _base + 1;
end $$;

-- Completes jobs that are without side effects, all at once: the first `_alone` of `_jobs`, as
-- ranges of numbers and tokens. A job is as its row says, or as the batch lease does that covers
-- it. What is not as the caller thinks is left as it is. Answers how many were completed, of which
-- leases and pairs of queue and kind; and which, if it was not all of them. tests/postgres/bulk.rs
-- compares it with `_settle_one`.
create function windlass._complete_batch(_alone int, _jobs uuid[], _firsts int[], _lows bigint[],
    _highs bigint[], _first_tokens bigint[], _outputs bytea, _starts int[], _sizes int[],
    _most_bytes bigint, _now bigint, out done int, out leases bigint[], out ended int[],
    out queue_kinds int[], out seqs bigint[]) language plpgsql as $$
#variable_conflict use_column
declare
  _attempts int[];
  _since bigint[];
  _workers text[];
begin
  done := 0;
  if _alone = 0 then return; end if;
  with gone as (
    update windlass.job_state p set state = 4, at = _now, updated_at = _now, recoveries = 0,
        attempt_end = 0, begun = true, settled = true, attempts = greatest(p.attempts, 1),
        token = r.token + p.seq,
        worker = coalesce(p.worker, r.worker), since = coalesce(p.since, r.since),
        first_started = coalesce(p.first_started, r.since),
        output = substring(_outputs from _starts[r.n + p.seq] for _sizes[r.n + p.seq])
      from (
        select r.low, r.high, r.first - r.low as n, r.token - r.low as token, s.worker, s.since
          from unnest(_firsts, _lows, _highs, _first_tokens) as r(first, low, high, token)
            left join lateral (select s.* from windlass.lease s
                where s.token = windlass._lease_of(r.token) offset 0) s
              on s.worker is not null and s.token + 1 - s.lowest = r.token - r.low
                and s.highs[width_bucket(r.low, s.lows)] >= r.high offset 0) r
      where p.seq between r.low and r.high and p.without_effects
        and (p.state = 3 and p.token = r.token + p.seq
          or windlass._never_started(p.state, p.begun, p.generation, p.without_effects)
            and r.since is not null)
        and coalesce(_sizes[r.n + p.seq], 0) <= _most_bytes
      returning p.queue_kind, p.attempts, p.since, p.worker, windlass._lease_of(p.token) as lease
  )
  select coalesce(sum(n), 0), array_agg(lease), array_agg(n), array_agg(queue_kind),
      array_agg(attempts), array_agg(since), array_agg(worker)
    into done, leases, ended, queue_kinds, _attempts, _since, _workers from (
      select lease, queue_kind, attempts, count(*)::int as n, min(since) as since,
          min(worker collate "C") as worker
        from gone group by lease, queue_kind, attempts) together;
  if done < _alone then
    seqs := windlass._emit_completed(_jobs, _firsts, _lows, _highs, _now);
  elsif cardinality(leases) = 1 then
    -- All are alike, as they mostly are.
    insert into windlass.event (at, n, topic, jobs, queue_kinds, a, b, detail)
      values (_now, done, 'job.completed', _jobs[: _alone], queue_kinds, _attempts,
        array[_now - _since[1]], jsonb_build_object('worker', _workers[1]));
  elsif (select count(distinct l) = cardinality(leases) from unnest(leases) l) then
    -- All of a lease are alike, and a range is of one lease: nobody need look at the jobs again.
    insert into windlass.event (at, n, topic, jobs, queue_kinds, a, b, detail)
      select _now, e.n, 'job.completed', r.jobs, array[e.queue_kind], array[e.attempts],
          array[_now - e.since], jsonb_build_object('worker', e.worker)
        from unnest(leases, ended, queue_kinds, _attempts, _since, _workers)
            as e(lease, n, queue_kind, attempts, since, worker)
          cross join lateral (select array_agg(j) as jobs
            from unnest(_firsts, _lows, _highs, _first_tokens) as r(first, low, high, token)
              cross join lateral unnest(_jobs[r.first : r.first + (r.high - r.low)::int]) j
            where windlass._lease_of(r.token) = e.lease) r;
  else
    perform windlass._emit_completed(_jobs, _firsts, _lows, _highs, _now);
  end if;
end $$;

-- Tells of the jobs in these ranges that this call has completed, in a row for each lease, pair of
-- queue and kind, and attempt. Answers which they are.
create function windlass._emit_completed(_jobs uuid[], _firsts int[], _lows bigint[],
    _highs bigint[], _now bigint) returns bigint[] language plpgsql as $$
declare
  _seqs bigint[];
begin
  with gone as (
    select p.*, r.first + p.seq - r.low as n
      from unnest(_firsts, _lows, _highs) as r(first, low, high) cross join lateral (
        select p.seq, p.queue_kind, p.attempts, p.since, p.worker,
            windlass._lease_of(p.token) as lease
          from windlass.job_state p where p.seq between r.low and r.high
            and p.state = 4 and p.xmin = pg_current_xact_id()::xid offset 0) p
  ), told as (
    insert into windlass.event (at, n, topic, jobs, queue_kinds, a, b, detail)
      select _now, count(*), 'job.completed', array_agg(_jobs[n]), array[queue_kind],
          array[attempts], array[_now - min(since)],
          jsonb_build_object('worker', min(worker collate "C"))
        from gone group by lease, queue_kind, attempts
  )
  select coalesce(array_agg(seq order by seq), '{}') into _seqs from gone;
  return _seqs;
end $$;

-- Jobs of these leases have ended. Last in a settlement, because another one may wait for the same
-- lease; in the order of tokens, so that no two wait for each other.
create function windlass._end_leases(_leases bigint[], _ended int[]) returns void
language plpgsql as $$
begin
  if cardinality(_leases) = 1 then
    -- Mostly these were the last of their lease.
    delete from windlass.lease s where s.token = _leases[1] and s.running <= _ended[1];
    if found then return; end if;
  end if;
  update windlass.lease s set running = s.running
      - (select sum(l.n) from unnest(_leases, _ended) as l(lease, n) where l.lease = s.token)
    where s.token = any (_leases);
  delete from windlass.lease s where s.token = any (_leases) and s.running <= 0;
end $$;
