-- A claim: ready jobs are handed to a worker, each under a lease.
--
-- It goes in steps. `_plan_claim`: which pairs of queue and kind are wanted and not paused, what
-- the limits of their kinds allow, and how many jobs to take from each, by effective priority over
-- all of them. `_lock_ready`: lock the rows of `ready`. `_fit_batch_lease` and `_start_batch`:
-- lease all of them by one row, if they allow it. Otherwise `_lock_each` and `_start_each`: lease
-- them job by job. `_note_limits`: write down what the limits used and turned away.
--
-- No step waits for a job: what others hold is left to the next claim.

-- Hands out jobs, in rows and in the last row. That says how many ready jobs are left (`ready`),
-- the start of the leases (`since`), when something is due (`wake_in`), and whether dependents of
-- finished jobs are still to be told (`owes`). Jobs under a batch
-- lease stand in it, all in one: their payloads one after the other, one queue and kind if they
-- have it in common, and of the tokens that of the lowest number, from which the others count up.
create function windlass.claim(_worker text, _queues text[], _kinds text[], _leases bigint[],
    _max_attempts bigint[], _concurrency int[], _rate_jobs int[], _rate_periods bigint[],
    _rate_bursts int[], _limit int, _parity int, _request uuid default null)
returns table (id uuid, seq bigint, queue_kind int, payload bytea, spec jsonb, priority int,
    start_kind smallint, start_us bigint, created_at bigint, token bigint, attempt int,
    recoveries int, generation int, first_started bigint, step_names text[], step_results bytea[],
    has_side_effects boolean, last_error text, until bigint, cancel_requested boolean,
    ready bigint, since bigint, wake_in bigint, owes boolean, ids uuid[], seqs bigint[],
    payloads bytea, sizes int[], created bigint[], queue_kinds int[], details jsonb[])
language plpgsql set lock_timeout = '10s' set plan_cache_mode = force_generic_plan set jit = off
  set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
  set enable_sort = off set enable_bitmapscan = off as $$
#variable_conflict use_column
declare
  _is_right boolean := windlass._require_read_committed();
  _now bigint;
  _is_repeated boolean;
  _terms windlass.claim_terms := row(_worker, _kinds, _leases, _max_attempts, _concurrency,
    _rate_jobs, _rate_periods, _rate_bursts, _request);
  _plan windlass.claim_plan;
  _rows windlass.ready_rows;
  _jobs windlass.claim_jobs;
  _turned_away int[];
  _rate_wait bigint;
begin
  if _request is not null then
    -- A claim that is repeated waits for the first. Before the lock of pauses: with that in hand,
    -- the two and a pause could wait for each other in a circle.
    perform pg_advisory_xact_lock(hashtextextended(_request::text, 0));
  end if;
  _now := windlass.now_us();
  _is_repeated := windlass._begin_claim(_worker, _request, _now);
  since := _now;
  if _is_repeated then
    return query select j.*, null::bigint, null::bigint, null::bigint, null::boolean,
        null::uuid[], null::bigint[], null::bytea, null::int[], null::bigint[], null::int[],
        null::jsonb[]
      from windlass.lease s cross join lateral windlass._claim_again(s, _worker) j
      where s.request = _request;
    if found then
      _limit := 0;
      since := (select max(s.since) from windlass.lease s where s.request = _request);
    end if;
  end if;
  -- A pause waits for this lock, so that no claim begins a job after it has returned.
  perform pg_advisory_xact_lock_shared(hashtextextended('windlass.claim', 0));
  _plan := windlass._plan_claim(_terms, _queues, _limit, _now);
  if cardinality(_plan.shares) > 0 then
    _rows := windlass._lock_ready(_plan.ranges, _plan.shares, _parity, _plan.is_mixed);
    -- Read when the jobs are locked: leases that began before those ended that made room for them
    -- would overlap with them in the store's own time.
    since := greatest(_now, windlass.now_us());
    _jobs := windlass._fit_batch_lease(_terms, _plan, _rows);
    if _jobs.seqs is not null then
      select * into token, ids, seqs, payloads, sizes, created, queue_kinds, details
        from windlass._start_batch(_terms, _plan, _rows, _jobs, since);
      -- What is left after so many is looked for behind them, not among what was just taken.
      if not _plan.is_mixed and cardinality(_jobs.seqs) = _plan.most then
        _plan.ranges := windlass._ranges_behind(_plan.ranges, _plan.shares,
          _jobs.seqs[_plan.most]);
      end if;
    elsif _rows.seqs is not null then
      _jobs := windlass._lock_each(_plan, _rows, since);
      if _jobs.seqs is not null then
        return query select j.*, null::bigint, null::bigint, null::bigint, null::boolean,
            null::uuid[], null::bigint[], null::bytea, null::int[], null::bigint[], null::int[],
            null::jsonb[]
          from windlass._start_each(_terms, _plan, _rows, _jobs, since) j;
      end if;
    end if;
    if _plan.has_limits then
      select l.turned_away, l.rate_wait into _turned_away, _rate_wait
        from windlass._note_limits(_terms, _plan, _jobs, since) l;
    end if;
  end if;
  select coalesce(sum(c.n), 0)::bigint, least(
        (select greatest(d.at - _now, 0) from windlass.scheduled d order by d.at limit 1),
        _rate_wait, case when _jobs.has_expired then 0 end),
        exists (select from windlass.owing)
    into ready, wake_in, owes from unnest(_plan.ranges) t
      cross join lateral (select count(*) as n from (
        select from windlass._ready_in(t) r order by r.rank, r.at, r.seq limit 100) r) c
    where not _plan.terms[t.source] = any (coalesce(_turned_away, '{}'));
  return next;
end $$;

-- What comes before a claim: whatever is due has happened, and the worker was seen. Answers whether
-- this claim was made before.
create function windlass._begin_claim(_worker text, _request uuid, _now bigint) returns boolean
language plpgsql as $$
declare
  _look record;
begin
  -- Mostly there is nothing to do of all this. One statement looks for it.
  select exists (select from windlass.scheduled d where d.at <= _now)
        or exists (select from windlass.job_state p where p.state < 3 and p.attempts = 0
          and p.generation = 0 and p.expires_at <= _now) as is_due,
      exists (select from windlass.worker w
        where w.id = _worker and w.seen_at < _now - 5000000) as is_worker_late,
      exists (select from windlass.lease s where s.request = _request) as is_repeated
    into _look;
  if _look.is_due then
    perform windlass._pass_time(_now);
    perform windlass._apply_effects(_now);
  end if;
  if _look.is_worker_late then
    update windlass.worker w set seen_at = _now
      where w.id = _worker and w.seen_at < _now - 5000000;
  end if;
  return _look.is_repeated;
end $$;

-- The jobs of a lease that still run under it in the hands of this worker, for the claim that took
-- them and is repeated.
create function windlass._claim_again(_lease windlass.lease, _worker text)
returns setof windlass.claimed_job language sql stable as $$
  select j.id, j.seq, j.queue_kind, j.payload, j.spec, nullif(j.priority, 0),
      nullif(j.start_kind, 0), j.start_us, j.created_at, p.token, nullif(p.attempts, 1),
      nullif(p.recoveries, 0), nullif(p.generation, 0), p.first_started,
      case when p.steps > 0 then
        (select array_agg(x.name order by x.number) from windlass.step x where x.seq = j.seq) end,
      case when p.steps > 0 then
        (select array_agg(x.result order by x.number) from windlass.step x where x.seq = j.seq) end,
      case when not windlass._without_side_effects(j.spec) then true end,
      (select d.error from windlass.attempt_log d where d.seq = j.seq), p.at,
      nullif(p.cancel_requested, false)
    from windlass._running_under(_lease) r
      join windlass.job_state_now p on p.seq = r.seq join windlass.job j on j.seq = r.seq
    where p.state = 3 and p.worker = _worker and windlass._lease_of(p.token) = (_lease).token
    order by p.token
$$;

-- What the claim wants, and how much of it.
create function windlass._plan_claim(_terms windlass.claim_terms, _queues text[], _limit int,
    _now bigint) returns windlass.claim_plan language plpgsql as $$
declare
  _plan windlass.claim_plan;
  _has_marks boolean;
begin
  _plan.now := _now;
  _plan.most := least(_limit, {CLAIM_JOBS});
  select array_agg(s.queue_kind), array_agg(s.term), array_agg(s.queue), array_agg(s.ageing),
      array_agg(s.lanes), (select m.queue_kinds is not null from windlass.low_water m
        order by m.n desc limit 1), (select payload_bytes from windlass.settings)
      into _plan.queue_kinds, _plan.terms, _plan.queues, _plan.ageings, _plan.lanes, _has_marks,
        _plan.payload_bytes from (
    select distinct on (l.id) l.id as queue_kind, t.n::int as term, q.id as queue, q.ageing, q.lanes
      from unnest(_terms.kinds) with ordinality as t(kind, n)
        join windlass.kind k on k.name = t.kind join windlass.queue_kind l on l.kind = k.id
        join windlass.queue q on q.id = l.queue
      where not q.paused and (_queues is null or q.name = any (_queues))
      order by l.id, t.n) s;
  if _has_marks or cardinality(_plan.queue_kinds) > 1 then
    _plan.ranges := array(select s from windlass._scan_ranges(_plan.queue_kinds) s);
  elsif _plan.queue_kinds is not null then
    -- As `_scan_ranges` has it, without a query.
    _plan.ranges := array[row(1, _plan.queue_kinds[1], 0, 1, -9223372036854775808,
      -9223372036854775808, -9223372036854775808)::windlass.scan_range];
  end if;
  if _plan.queue_kinds is null or _plan.most <= 0 then return _plan; end if;
  _plan.has_limits := array_remove(_terms.concurrency, null) <> '{}'
    or array_remove(_terms.rate_jobs, null) <> '{}';
  if _plan.has_limits then _plan := windlass._apply_limits(_terms, _plan); end if;
  if cardinality(_plan.ranges) = 1 then
    _plan.shares := array[coalesce(_plan.allowed[_plan.terms[1]], _plan.most)];
    _plan.is_mixed := false;
  else
    _plan.shares := windlass._share_out(_plan);
    _plan.is_mixed := cardinality(_plan.queue_kinds) > 1
      or cardinality(array_remove(_plan.shares, 0)) > 1;
  end if;
  return _plan;
end $$;

-- What each kind with a limit may start, decided with its row locked. Kinds are locked in the order
-- of their numbers.
create function windlass._apply_limits(_terms windlass.claim_terms, _plan windlass.claim_plan)
returns windlass.claim_plan language plpgsql as $$
declare
  _term record;
  _kind windlass.kind;
  _running bigint;
  _allowed int;
  _admitted record;
begin
  for _term in
    select t.n::int as n, t.kind, t.concurrency, t.rate_jobs, t.rate_period, t.rate_burst
      from unnest(_terms.kinds, _terms.concurrency, _terms.rate_jobs, _terms.rate_periods,
          _terms.rate_bursts) with ordinality
        as t(kind, concurrency, rate_jobs, rate_period, rate_burst, n)
      join windlass.kind k on k.name = t.kind
      where t.concurrency is not null or t.rate_jobs is not null order by k.id
  loop
    select * into _kind from windlass.kind k where k.name = _term.kind for no key update;
    _allowed := _plan.most;
    if _term.concurrency is not null then
      select coalesce(sum(t.running), 0) into _running from windlass.counter_delta t
        where t.queue_kind in (select l.id from windlass.queue_kind l where l.kind = _kind.id);
      _allowed := greatest(least(_plan.most, _term.concurrency - _running), 0);
    end if;
    if _term.rate_jobs is not null then
      -- The time is read with the kind locked. By the time of before the lock, a start that another
      -- claim has just noted would lie so far ahead that it seems to be of another rate.
      select * into _admitted from windlass._admit(_kind.full_at, _term.rate_jobs,
        _term.rate_period, _term.rate_burst, _allowed + 1, greatest(_plan.now, windlass.now_us()));
      _plan.waits[_term.n] := _admitted.wait;
      _allowed := least(_allowed, _admitted.admitted);
    end if;
    _plan.allowed[_term.n] := _allowed;
  end loop;
  return _plan;
end $$;

-- How many jobs to take from each range: the first of all of them, by effective priority.
create function windlass._share_out(_plan windlass.claim_plan) returns int[] language plpgsql as $$
begin
  return (
    with wanted as (
      select t.n, _plan.terms[(t.range).source] as term, x.at, x.seq,
          windlass._effective_priority(_plan.ageings[(t.range).source], x.rank, x.at, _plan.now)
            as priority
        from (select r as range, row_number() over () as n from unnest(_plan.ranges) r) t
          cross join lateral (
            select r.rank, r.at, r.seq from windlass._ready_in(t.range) r
              order by r.rank, r.at, r.seq limit least(_plan.most,
                coalesce(_plan.allowed[_plan.terms[(t.range).source]], _plan.most))) x
    ), allowed as (
      select w.*, row_number() over (partition by w.term order by w.priority desc, w.at, w.seq)
          as nth
        from wanted w
    ), first as (
      select a.n from allowed a where a.nth <= coalesce(_plan.allowed[a.term], _plan.most)
        order by a.priority desc, a.at, a.seq limit _plan.most
    )
    select array_agg(coalesce(f.jobs, 0) order by s.n)
      from generate_series(1, cardinality(_plan.ranges)) as s(n)
        left join (select n, count(*)::int as jobs from first group by n) f on f.n = s.n);
end $$;

-- Locks the jobs of these rows by their rows in `job_state`, which are the jobs' locks. One that
-- has expired is left to the next sweep. (A job that never started and is without side effects
-- cannot expire.)
create function windlass._lock_each(_plan windlass.claim_plan, _rows windlass.ready_rows,
    _since bigint) returns windlass.claim_jobs language plpgsql as $$
declare
  _jobs windlass.claim_jobs;
begin
  select array_agg(h.seq) filter (where not h.expired),
      array_agg(h.row_id) filter (where not h.expired),
      array_agg(h.source) filter (where not h.expired),
      bool_and(h.never_started) filter (where not h.expired), bool_or(h.expired)
      into _jobs.seqs, _jobs.ctids, _jobs.sources, _jobs.never_started, _jobs.has_expired from (
    select p.seq, p.ctid as row_id, array_position(_plan.queue_kinds, p.queue_kind) as source,
        not p.begun and p.attempts = 0 and p.recoveries = 0 and p.generation = 0 and p.steps = 0
          and p.without_effects as never_started,
        coalesce(p.expires_at <= _since, false) and p.attempts = 0 and p.generation = 0 as expired
      from windlass.job_state p where p.seq = any (_rows.seqs) and p.state = 2
      order by p.seq for update skip locked) h;
  -- In which order they start, where it is not that of their numbers.
  if _plan.is_mixed or _rows.seqs <> array(select h from unnest(_rows.seqs) h order by h) then
    select array_agg(h.place order by h.seq) into _jobs.places from (
      select p.seq, row_number() over (order by
          case when _plan.is_mixed then -windlass._effective_priority(
            _plan.ageings[array_position(_plan.queue_kinds, p.queue_kind)], p.rank, p.at,
            _plan.now) end,
          case when _plan.is_mixed then p.at else p.rank end,
          case when _plan.is_mixed then p.seq else p.at end, p.seq) as place
        from windlass.job_state p where p.ctid = any (_jobs.ctids)) h;
  end if;
  return _jobs;
end $$;

-- Leases jobs one by one and answers with them. The tokens follow the order of starting.
create function windlass._start_each(_terms windlass.claim_terms, _plan windlass.claim_plan,
    _rows windlass.ready_rows, _jobs windlass.claim_jobs, _since bigint)
returns setof windlass.claimed_job language plpgsql as $$
declare
  _base bigint := nextval('windlass.token') * {LEASE_TOKENS};
  _ranges record;
  _past record;
begin
  select * into _ranges from windlass._to_ranges(_jobs.seqs);
  insert into windlass.lease (token, until, running, lowest, highest, lows, highs, since, request)
    select _base, _since + min(_terms.leases[_plan.terms[s]]), cardinality(_jobs.seqs),
        _jobs.seqs[1], _jobs.seqs[cardinality(_jobs.seqs)], _ranges.lows, _ranges.highs, _since,
        _terms.request
      from unnest(_jobs.sources) s;
  perform windlass._leave_lanes(_plan, _jobs);
  perform windlass._leave_ready(_plan, _rows, _jobs);
  -- Most have no past. It is read before the update makes it the present.
  select array_agg(h.attempts + 1) as attempts, array_agg(h.recoveries) as recoveries,
      array_agg(h.first_started) as first_started, array_agg(h.steps) as steps,
      array_agg(h.without_effects) as without_effects, array_agg(h.generation) as generations,
      array_agg(h.begun) as begun into _past from (
    select p.attempts, p.recoveries, p.generation, p.first_started, p.steps, p.without_effects,
        p.begun from windlass.job_state p
      where not _jobs.never_started and p.ctid = any (_jobs.ctids) order by p.seq) h;
  update windlass.job_state p set state = 3, attempts = p.attempts + 1, begun = true,
      token = _base + coalesce(_jobs.places[r.first + p.seq - r.low], r.first + p.seq - r.low),
      worker = _terms.worker, since = _since, cancel_requested = false, reported = false,
      settled = false, offered = false, first_started = coalesce(p.first_started, _since),
      updated_at = _since,
      at = _since + _terms.leases[_plan.terms[_jobs.sources[r.first + p.seq - r.low]]],
      max_attempts = coalesce(p.own_max_attempts,
        _terms.max_attempts[_plan.terms[_jobs.sources[r.first + p.seq - r.low]]])
    from unnest(_ranges.firsts, _ranges.lows, _ranges.highs) as r(first, low, high)
    where p.seq between r.low and r.high;
  return query with started as (
    select j.*, r.first + j.seq - r.low as k
      from unnest(_ranges.firsts, _ranges.lows, _ranges.highs) as r(first, low, high)
        cross join lateral (
          select j.* from windlass.job j where j.seq between r.low and r.high offset 0) j
  ), told as (
    insert into windlass.event (at, n, topic, jobs, queue_kinds, a, detail)
      select _since, count(*), 'job.started', array_agg(id), array_agg(queue_kind),
          array_agg(coalesce(_past.attempts[k], 1)::bigint),
          jsonb_build_object('worker', _terms.worker) from started
  ), ranked as (
    insert into windlass.counter_delta (queue, priority, ready)
      select l.queue, b.priority, -count(*)
        from started b join windlass.queue_kind l on l.id = b.queue_kind
        where b.priority <> 0 group by l.queue, b.priority
  )
  select b.id, b.seq, b.queue_kind, b.payload, b.spec, nullif(b.priority, 0),
      nullif(b.start_kind, 0), b.start_us, b.created_at, _base + coalesce(_jobs.places[k], k),
      nullif(_past.attempts[k], 1), nullif(_past.recoveries[k], 0),
      nullif(_past.generations[k], 0), _past.first_started[k],
      case when _past.steps[k] > 0 then
        (select array_agg(x.name order by x.number) from windlass.step x where x.seq = b.seq) end,
      case when _past.steps[k] > 0 then
        (select array_agg(x.result order by x.number) from windlass.step x where x.seq = b.seq) end,
      case when not _past.without_effects[k] then true end,
      case when _past.begun[k] then
        (select d.error from windlass.attempt_log d where d.seq = b.seq) end,
      null::bigint, null::boolean
    from started b;
end $$;

-- Jobs of lanes that start leave the order of their lane.
create function windlass._leave_lanes(_plan windlass.claim_plan, _jobs windlass.claim_jobs)
returns void language plpgsql as $$
begin
  if not exists (select from windlass.lane_ready) then return; end if;
  delete from windlass.lane_ready x where x.ctid = any (array(
    select l.row_id from windlass.job_state p cross join lateral (
        select l.ctid as row_id from windlass.lane_ready l where l.queue = p.lane_queue
          and l.lane = p.lane and l.rank = p.rank and l.at = p.at and l.seq = p.seq offset 0) l
      where p.ctid = any (_jobs.ctids)));
  delete from windlass.lane_held x where x.ctid = any (array(
    select h.row_id from windlass.job_state p cross join lateral (
        select h.ctid as row_id from windlass.lane_held h where h.queue = p.lane_queue
          and h.lane = p.lane and h.partition = p.partition and h.seq = p.seq offset 0) h
      where p.ctid = any (_jobs.ctids) and p.begun));
  insert into windlass.counter_delta (queue, lane, ready, running)
    select p.lane_queue, p.lane, -count(*), count(*) from windlass.job_state p
      where p.ctid = any (_jobs.ctids) and p.lane_queue is not null
        and _plan.lanes[array_position(_plan.queue_kinds, p.queue_kind)] is not null
      group by p.lane_queue, p.lane;
end $$;

-- Jobs that start are counted as running and leave `ready`. Nobody else takes them from there.
create function windlass._leave_ready(_plan windlass.claim_plan, _rows windlass.ready_rows,
    _jobs windlass.claim_jobs) returns void language plpgsql as $$
declare
  _taken int := cardinality(_jobs.seqs);
begin
  if _jobs.sources is null then
    insert into windlass.counter_delta (queue_kind, queue, ready, running)
      values (_plan.queue_kinds[1], _plan.queues[1], -_taken, _taken);
  else
    insert into windlass.counter_delta (queue_kind, queue, ready, running)
      select _plan.queue_kinds[s.source], _plan.queues[s.source], -s.n, s.n from (
        select source, count(*) as n from unnest(_jobs.sources) source group by source) s;
  end if;
  perform windlass._delete_ready(_rows, _jobs.seqs);
end $$;

-- Writes down what the claim used of each rate. Answers which kinds have ready jobs that a limit
-- turned away, and how long the first rate lets one of them wait.
create function windlass._note_limits(_terms windlass.claim_terms, _plan windlass.claim_plan,
    _jobs windlass.claim_jobs, _since bigint, out turned_away int[], out rate_wait bigint)
language plpgsql as $$
#variable_conflict use_column
declare
  _taken int := coalesce(cardinality(_jobs.seqs), 0);
  _term record;
  _kind windlass.kind;
  _started bigint;
begin
  for _term in
    select t.n::int as n, t.kind, t.concurrency, t.rate_jobs, t.rate_period, t.rate_burst
      from unnest(_terms.kinds, _terms.concurrency, _terms.rate_jobs, _terms.rate_periods,
          _terms.rate_bursts) with ordinality
        as t(kind, concurrency, rate_jobs, rate_period, rate_burst, n)
      where t.concurrency is not null or t.rate_jobs is not null
  loop
    select * into _kind from windlass.kind k where k.name = _term.kind;
    continue when not found;
    if _term.rate_jobs is not null then
      select count(*) into _started
        from unnest(coalesce(_jobs.sources, array_fill(1, array[_taken]))) s
        where _plan.terms[s] = _term.n;
      if _started > 0 then
        update windlass.kind k set full_at = (select a.full_at from windlass._admit(_kind.full_at,
            _term.rate_jobs, _term.rate_period, _term.rate_burst, _started::int, _since) a)
          where k.id = _kind.id;
      end if;
    end if;
    if _taken < _plan.most and exists (
        select from unnest(_plan.ranges) t cross join lateral windlass._ready_in(t) r
          where t.queue_kind in (select l.id from windlass.queue_kind l where l.kind = _kind.id))
    then
      turned_away := turned_away || _term.n;
      if _term.concurrency is not null and _plan.waits[_term.n] is null then
        update windlass.kind k set turned_away = true where k.id = _kind.id and not k.turned_away;
      end if;
      rate_wait := least(rate_wait, _plan.waits[_term.n]);
    end if;
  end loop;
end $$;
