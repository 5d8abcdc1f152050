-- Handing out ready jobs, each under a fresh lease.

-- How many jobs a rate allows now, up to `_most`, and how long until the next one if fewer.
create function windlass._admit(_full_at bigint, _jobs int, _period bigint, _burst int, _most int, _now bigint,
    out admitted int, out full_at bigint, out wait bigint) language plpgsql immutable as $$
declare
  _spacing bigint := greatest(_period / greatest(_jobs, 1), 1);
  _tolerance numeric := _spacing::numeric * (greatest(_burst, 1) - 1);
begin
  admitted := 0;
  full_at := _full_at;
  while admitted < _most loop
    if full_at - _tolerance > _now then
      wait := least(full_at - _tolerance - _now, 9223372036854775807)::bigint;
      exit;
    end if;
    full_at := greatest(full_at, _now) + _spacing;
    admitted := admitted + 1;
  end loop;
end $$;

-- Priority in millionths of a point, with what waiting has added: compares jobs of queues with and
-- without ageing.
create function windlass._standing(_ageing bigint, _rank bigint, _at bigint, _now bigint) returns float8
language sql immutable as $$
  select case when _ageing is null then -_rank::float8 * 1000000
    else (_at - _rank)::float8 / _ageing * 1000000 + trunc((_now - _at)::float8 * 1000000 / _ageing) end
$$;

create function windlass.claim(_worker text, _queues text[], _kinds text[], _leases bigint[], _max_attempts bigint[],
    _concurrency int[], _rate_jobs int[], _rate_periods bigint[], _rate_bursts int[], _limit int)
returns table (id uuid, seq bigint, queue text, kind text, payload bytea, spec jsonb, priority int,
    start_kind smallint, start_us bigint, own_attempts bigint, created_at bigint, token bigint, until bigint,
    max_attempts bigint, attempt int, recoveries int, first_started bigint, step_names text[],
    step_results bytea[], ready bigint, wake_in bigint, since bigint)
language plpgsql set plan_cache_mode = force_generic_plan set jit = off
  set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
#variable_conflict use_column
declare
  _now bigint := windlass._begin();
  _lines int[];
  _terms int[];
  _queue_ids int[];
  _queue_names text[];
  _ageings bigint[];
  _lanes int[];
  _caps int[];
  _waits bigint[];
  _take int[];
  _base bigint;
  _term record;
  _kind windlass.kind;
  _running bigint;
  _taken int := 0;
  _capped int[] := '{}';
  _rate_wait bigint;
  _admitted record;
begin
  update windlass.worker w set seen_at = _now where w.id = _worker and w.seen_at < _now - 5000000;
  perform windlass._finish(_now);
  -- A pause waits for this to end, and whoever comes after it sees the pause.
  perform pg_advisory_xact_lock_shared(hashtextextended('windlass.claim', 0));
  select array_agg(l.line), array_agg(l.term), array_agg(l.queue), array_agg(l.name), array_agg(l.ageing),
      array_agg(l.lanes) into _lines, _terms, _queue_ids, _queue_names, _ageings, _lanes from (
    select distinct on (l.id) l.id as line, t.n::int as term, q.id as queue, q.name, q.ageing, q.lanes
      from unnest(_kinds) with ordinality as t(kind, n)
      join windlass.kind k on k.name = t.kind join windlass.line l on l.kind = k.id
      join windlass.queue q on q.id = l.queue
      where not q.paused and (_queues is null or q.name = any (_queues))
      order by l.id, t.n) l;
  _limit := least(_limit, 10000);
  if _lines is not null and _limit > 0 then
    -- What each kind may have, if it has a limit: decided with its row locked.
    for _term in
      select t.n::int as n, t.kind, t.concurrency, t.rate_jobs, t.rate_period, t.rate_burst
        from unnest(_kinds, _concurrency, _rate_jobs, _rate_periods, _rate_bursts) with ordinality
          as t(kind, concurrency, rate_jobs, rate_period, rate_burst, n)
        join windlass.kind k on k.name = t.kind
        where t.concurrency is not null or t.rate_jobs is not null order by k.id
    loop
      select * into _kind from windlass.kind k where k.name = _term.kind for no key update;
      _caps[_term.n] := _limit;
      if _term.concurrency is not null then
        select coalesce(sum(t.running), 0) into _running from windlass.tally t
          where t.line in (select l.id from windlass.line l where l.kind = _kind.id);
        _caps[_term.n] := greatest(least(_limit, _term.concurrency - _running), 0);
      end if;
      if _term.rate_jobs is not null then
        select * into _admitted from windlass._admit(_kind.full_at, _term.rate_jobs, _term.rate_period,
          _term.rate_burst, _caps[_term.n] + 1, _now);
        _waits[_term.n] := _admitted.wait;
        _caps[_term.n] := least(_caps[_term.n], _admitted.admitted);
      end if;
    end loop;
    if cardinality(_lines) = 1 then
      _take := array[coalesce(_caps[_terms[1]], _limit)];
    else
      -- How many of each line, by the order of all of them.
      select array_agg(coalesce(c.n, 0) order by l.ord) into _take
        from unnest(_lines) with ordinality as l(line, ord)
        left join (
          select h.line, count(*)::int as n from (
            select h.line from (
              select x.line, x.term, x.at, x.seq, x.standing,
                  row_number() over (partition by x.term order by x.standing desc, x.at, x.seq) as nth
                from unnest(_lines, _terms, _ageings) as t(line, term, ageing)
                cross join lateral (
                  select t.line, t.term, r.at, r.seq, windlass._standing(t.ageing, r.rank, r.at, _now) as standing
                    from windlass.ready r where r.line = t.line
                    order by r.rank, r.at, r.seq limit least(_limit, coalesce(_caps[t.term], _limit))) x) h
              where h.nth <= coalesce(_caps[h.term], _limit)
              order by h.standing desc, h.at, h.seq limit _limit) h
          group by h.line) c on c.line = l.line;
    end if;
    _base := nextval('windlass.token') * 16384;
    return query with moment as materialized (
      -- Read when the jobs have been seen: a lease that began before those ended that made room for it
      -- would overlap with them in the store's own time.
      select greatest(_now, windlass.now_us()) as now
    ), taken as (
      select h.seq, h.rank, h.at, h.place, h.ready, t.n as place_of_line, t.term,
          row_number() over (order by windlass._standing(t.ageing, h.rank, h.at, _now) desc, h.at, h.seq) as n
        from unnest(_lines, _terms, _take, _ageings) with ordinality as t(line, term, take, ageing, n)
        cross join lateral (
          select r.seq, r.rank, r.at, r.ctid as ready, p.ctid as place
            from windlass.ready r join windlass.place p on p.seq = r.seq
            -- `at` too: a job that was started and given back meanwhile stands elsewhere in the line.
            where r.line = t.line and p.state = 2 and p.at = r.at
            order by r.rank, r.at, r.seq limit t.take for update of p skip locked) h
        where t.take > 0
    ), gone as (
      -- Nobody but who holds a job's place takes it from among the ready.
      delete from windlass.ready r using taken t where r.ctid = t.ready
    ), started as (
      update windlass.place p set state = 3, attempts = p.attempts + 1, begun = true, token = _base + t.n,
          worker = _worker, since = m.now, at = m.now + _leases[t.term], cancel_requested = false, told = false,
          max_attempts = coalesce(j.max_attempts, _max_attempts[t.term]), offered = false,
          first_started = coalesce(p.first_started, m.now), updated_at = m.now
        from taken t join windlass.job j on j.seq = t.seq cross join moment m
        where p.ctid = t.place
        returning t.n, p.seq, p.since, p.line, p.lane_queue, p.lane, p.attempts, p.recoveries, p.token, p.at, p.max_attempts,
          p.first_started, p.steps, _queue_ids[t.place_of_line] as queue_id, t.place_of_line, t.term, j.id, j.payload,
          j.spec, j.priority, j.start_kind, j.start_us, j.max_attempts as own_attempts, j.created_at, t.rank, t.at as was
    ), unlined as (
      delete from windlass.lined x using started s
        where s.lane_queue is not null and x.queue = s.lane_queue and x.lane = s.lane and x.rank = s.rank
          and x.at = s.was and x.seq = s.seq
    ), leased as (
      insert into windlass.lease (token, until, seqs)
        select _base, min(at), array_agg(seq) from started having count(*) > 0
    ), counted as (
      insert into windlass.tally (line, queue, ready, running)
        select line, queue_id, -count(*), count(*) from started group by line, queue_id
    ), in_lanes as (
      insert into windlass.tally (queue, lane, ready, running)
        select queue_id, lane, -count(*), count(*) from started
          where lane_queue is not null and _lanes[place_of_line] is not null group by queue_id, lane
    ), told as (
      insert into windlass.event (at, n, topic, jobs, lines, a, detail)
        select max(since), count(*), 'job.started', array_agg(id), array_agg(line), array_agg(attempts::bigint),
            jsonb_build_object('worker', _worker)
          from (select * from started order by n) s having count(*) > 0
    )
    select s.id, s.seq, _queue_names[s.place_of_line], _kinds[s.term], s.payload, s.spec, s.priority, s.start_kind, s.start_us,
        s.own_attempts, s.created_at, s.token, s.at, s.max_attempts, s.attempts, s.recoveries, s.first_started,
        case when s.steps > 0 then (select array_agg(x.name order by x.number) from windlass.step x where x.seq = s.seq) end,
        case when s.steps > 0 then (select array_agg(x.result order by x.number) from windlass.step x where x.seq = s.seq) end,
        null::bigint, null::bigint, s.since
      from started s order by s.n;
    get diagnostics _taken = row_count;
    -- What the limits turned away, and what of the rates was used.
    for _term in
      select t.n::int as n, t.kind, t.concurrency, t.rate_jobs, t.rate_period, t.rate_burst
        from unnest(_kinds, _concurrency, _rate_jobs, _rate_periods, _rate_bursts) with ordinality
          as t(kind, concurrency, rate_jobs, rate_period, rate_burst, n)
        where t.concurrency is not null or t.rate_jobs is not null
    loop
      select * into _kind from windlass.kind k where k.name = _term.kind;
      continue when not found;
      if _term.rate_jobs is not null then
        select count(*), coalesce(max(p.since), _now) into _running, _now from windlass.lease s
          cross join lateral unnest(s.seqs) as x(seq) join windlass.place p on p.seq = x.seq
          where s.token = _base and p.line in (select l.id from windlass.line l where l.kind = _kind.id);
        if _running > 0 then
          update windlass.kind k set full_at = (select a.full_at from windlass._admit(_kind.full_at, _term.rate_jobs,
              _term.rate_period, _term.rate_burst, _running::int, _now) a) where k.id = _kind.id;
        end if;
      end if;
      if _taken < _limit and exists (select from windlass.ready r
          where r.line = any (_lines) and r.line in (select l.id from windlass.line l where l.kind = _kind.id))
      then
        _capped := _capped || _term.n;
        if _term.concurrency is not null and _waits[_term.n] is null then
          update windlass.kind k set turned_away = true where k.id = _kind.id and not k.turned_away;
        end if;
        _rate_wait := least(_rate_wait, _waits[_term.n]);
      end if;
    end loop;
  end if;
  return query select null::uuid, null::bigint, null, null, null::bytea, null::jsonb, null::int, null::smallint,
    null::bigint, null::bigint, null::bigint, null::bigint, null::bigint, null::bigint, null::int, null::int,
    null::bigint, null::text[], null::bytea[],
    (select coalesce(sum(c.n), 0)::bigint from unnest(_lines, _terms) as t(line, term)
      cross join lateral (select count(*) as n from (select from windlass.ready r
        where r.line = t.line order by r.rank, r.at, r.seq limit 100) heads) c
      where not t.term = any (_capped)),
    least((select greatest(d.at - _now, 0) from windlass.due d order by d.at limit 1), _rate_wait),
    _now;
end $$;
