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

create function windlass.claim(_worker text, _queues text[], _kinds text[], _leases bigint[], _max_attempts bigint[],
    _concurrency int[], _rate_jobs int[], _rate_periods bigint[], _rate_bursts int[], _limit int)
returns table (id uuid, seq bigint, queue text, kind text, payload bytea, spec jsonb, priority int,
    start_kind smallint, start_us bigint, own_attempts bigint, created_at bigint, token bigint, until bigint,
    max_attempts bigint, attempt int, recoveries int, first_started bigint, step_names text[],
    step_results bytea[], ready bigint, wake_in bigint, since bigint)
language plpgsql as $$
#variable_conflict use_column
declare
  _now bigint := windlass._begin();
  _lines int[];
  _terms int[];
  _caps int[];
  _waits bigint[];
  _take int[];
  _base bigint;
  _term record;
  _kind windlass.kind;
  _running bigint;
  _taken int := 0;
  _by_kind jsonb;
  _capped int[] := '{}';
  _rate_wait bigint;
  _admitted record;
begin
  update windlass.worker w set seen_at = _now where w.id = _worker and w.seen_at < _now - 5000000;
  perform windlass._finish(_now);
  select array_agg(l.line), array_agg(l.term) into _lines, _terms from (
    select distinct on (l.id) l.id as line, t.n::int as term
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
        select count(*) into _running from windlass.place p
          where p.state = 3 and p.line in (select l.id from windlass.line l where l.kind = _kind.id);
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
                from unnest(_lines, _terms) as t(line, term)
                join windlass.line l on l.id = t.line join windlass.queue q on q.id = l.queue
                cross join lateral (
                  select t.line, t.term, p.at, p.seq,
                      case when q.ageing is null then -p.rank::numeric * 1000000
                        else (p.at - p.rank::numeric) / q.ageing * 1000000
                          + trunc((_now - p.at)::numeric * 1000000 / q.ageing) end as standing
                    from windlass.place p where p.state = 2 and p.offered and p.line = t.line
                    order by p.rank, p.at, p.seq limit least(_limit, coalesce(_caps[t.term], _limit))) x) h
              where h.nth <= coalesce(_caps[h.term], _limit)
              order by h.standing desc, h.at, h.seq limit _limit) h
          group by h.line) c on c.line = l.line;
    end if;
    _base := nextval('windlass.token') * 16384;
    return query with taken as (
      select h.seq, h.at, t.term, row_number() over () as n,
          case when q.ageing is null then -h.rank::numeric * 1000000
            else (h.at - h.rank::numeric) / q.ageing * 1000000 + trunc((_now - h.at)::numeric * 1000000 / q.ageing)
          end as standing, l.queue as queue_id, q.name as queue_name, q.lanes
        from unnest(_lines, _terms, _take) as t(line, term, take)
        join windlass.line l on l.id = t.line join windlass.queue q on q.id = l.queue
        cross join lateral (
          select p.seq, p.rank, p.at from windlass.place p
            where p.state = 2 and p.offered and p.line = t.line
            order by p.rank, p.at, p.seq limit t.take for update skip locked) h
        where t.take > 0
    ), started as (
      update windlass.place p set state = 3, attempts = p.attempts + 1, begun = true, token = _base + t.n,
          worker = _worker, since = _now, at = _now + _leases[t.term], cancel_requested = false, told = false,
          max_attempts = coalesce(j.max_attempts, _max_attempts[t.term]),
          first_started = coalesce(p.first_started, _now), updated_at = _now
        from taken t join windlass.job j on j.seq = t.seq
        where p.seq = t.seq
        returning p.seq, p.line, p.lane_queue, p.lane, p.attempts, p.recoveries, p.token, p.at, p.max_attempts,
          p.first_started, p.steps, t.standing, t.at as was, t.queue_id, t.queue_name, t.lanes, t.term, j.id, j.payload,
          j.spec, j.priority, j.start_kind, j.start_us, j.max_attempts as own_attempts, j.created_at
    ), counted as (
      insert into windlass.tally (line, queue, ready, running)
        select line, queue_id, -count(*), count(*) from started group by line, queue_id
    ), in_lanes as (
      insert into windlass.tally (queue, lane, ready, running)
        select queue_id, lane, -count(*), count(*) from started
          where lane_queue is not null and lanes is not null group by queue_id, lane
    ), told as (
      insert into windlass.event (at, n, topic, jobs, lines, a, detail)
        select _now, count(*), 'job.started', array_agg(id order by standing desc, was, seq),
            array_agg(line order by standing desc, was, seq),
            array_agg(attempts::bigint order by standing desc, was, seq), jsonb_build_object('worker', _worker)
          from started having count(*) > 0
    )
    select s.id, s.seq, s.queue_name, _kinds[s.term], s.payload, s.spec, s.priority, s.start_kind, s.start_us,
        s.own_attempts, s.created_at, s.token, s.at, s.max_attempts, s.attempts, s.recoveries, s.first_started,
        case when s.steps > 0 then (select array_agg(x.name order by x.number) from windlass.step x where x.seq = s.seq) end,
        case when s.steps > 0 then (select array_agg(x.result order by x.number) from windlass.step x where x.seq = s.seq) end,
        null::bigint, null::bigint, _now
      from started s order by s.standing desc, s.was, s.seq;
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
        select count(*) into _running from windlass.place p
          where p.state = 3 and p.token > _base and p.token <= _base + 16384
            and p.line in (select l.id from windlass.line l where l.kind = _kind.id);
        if _running > 0 then
          update windlass.kind k set full_at = (select a.full_at from windlass._admit(_kind.full_at, _term.rate_jobs,
              _term.rate_period, _term.rate_burst, _running::int, _now) a) where k.id = _kind.id;
        end if;
      end if;
      if _taken < _limit and exists (select from windlass.place p where p.state = 2 and p.offered
          and p.line = any (_lines) and p.line in (select l.id from windlass.line l where l.kind = _kind.id))
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
      cross join lateral (select count(*) as n from (select from windlass.place p
        where p.state = 2 and p.offered and p.line = t.line limit greatest(_limit, 100)) heads) c
      where not t.term = any (_capped)),
    least((select greatest(p.at - _now, 0) from windlass.place p where p.state = 1 order by p.at limit 1), _rate_wait),
    _now;
end $$;
