-- Handing out ready jobs, each under a fresh lease.

-- How many jobs a rate allows now, up to `_most`, and how long until the next one if fewer.
create function windlass._admit(_full_at bigint, _jobs int, _period bigint, _burst int, _most int, _now bigint,
    out admitted int, out full_at bigint, out wait bigint) language plpgsql immutable as $$
declare
  -- Rounded up: a spacing that is a little too short adds up to more starts than were allowed.
  _spacing bigint := greatest(_period / greatest(_jobs, 1) + (_period % greatest(_jobs, 1) > 0)::int, 1);
  _tolerance numeric := _spacing::numeric * (greatest(_burst, 1) - 1);
begin
  admitted := 0;
  -- Later than this rate can have made it: what a slower one has left behind is not waited for.
  full_at := case when _full_at > _now + _tolerance + _spacing then _now + _tolerance else _full_at end;
  while admitted < _most loop
    if full_at - _tolerance > _now then
      wait := least(full_at - _tolerance - _now, 9223372036854775807)::bigint;
      exit;
    end if;
    full_at := least(greatest(full_at, _now)::numeric + _spacing, 9223372036854775807)::bigint;
    admitted := admitted + 1;
  end loop;
end $$;

-- Priority in millionths of a point, with what waiting has added: compares jobs of queues with and
-- without ageing.
create function windlass._effective_priority(_ageing bigint, _rank bigint, _at bigint, _now bigint) returns float8
language sql immutable as $$
  select case when _ageing is null then -_rank::float8 * 1000000
    else (_at::float8 - _rank::float8) / _ageing * 1000000 + trunc((_now - _at)::float8 * 1000000 / _ageing) end
$$;

-- Hands out jobs in rows, and tells how things stand in a last one. What is as usual is null: no priority,
-- ready at once, the first attempt, nothing recovered, and nobody else involved in how it ends. Jobs that a lease
-- speaks for stand in the last row, all in one: their payloads one after the other, a line that is told once is that
-- of all of them, and a token is that of the first, in `token`, and as much more as the number is.
-- With a `_part`, 0 or 1, it takes from every other thousand of numbers as long as there are any, so that two
-- at the same time need not pass over each other's.
create function windlass.claim(_worker text, _queues text[], _kinds text[], _leases bigint[], _max_attempts bigint[],
    _concurrency int[], _rate_jobs int[], _rate_periods bigint[], _rate_bursts int[], _limit int,
    _part int)
returns table (id uuid, seq bigint, queue_kind int, payload bytea, spec jsonb, priority int, start_kind smallint,
    start_us bigint, created_at bigint, token bigint, attempt int, recoveries int, first_started bigint,
    step_names text[], step_results bytea[], involved boolean, ready bigint, since bigint, wake_in bigint,
    ids uuid[], seqs bigint[], payloads bytea, sizes int[], created bigint[], queue_kinds int[], details jsonb[], generation int,
    last_error text)
language plpgsql set lock_timeout = '10s' set plan_cache_mode = force_generic_plan set jit = off
  set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
  set enable_sort = off set enable_bitmapscan = off as $$
#variable_conflict use_column
declare
  _now bigint := windlass._begin();
  _queue_kinds int[];
  _terms int[];
  _queue_ids int[];
  _ageings bigint[];
  _lanes int[];
  _stretches windlass.scan_range[];
  _caps int[];
  _waits bigint[];
  _many boolean;
  _take int[];
  _heads bigint[];
  _readies tid[];
  _epochs smallint[];
  _epoch smallint;
  _ranks bigint[];
  _ats bigint[];
  _speaks boolean := false;
  _ids uuid[];
  _numbers bigint[];
  _payloads bytea;
  _sizes int[];
  _created bigint[];
  _of_lines int[];
  _details jsonb[];
  _detailed boolean;
  _firsts int[];
  _lows bigint[];
  _highs bigint[];
  _seqs bigint[];
  _all boolean;
  _places tid[];
  _ofs int[];
  _order bigint[];
  _never_started boolean;
  _attempts int[];
  _recoveries int[];
  _generations int[];
  _begun boolean[];
  _first_starts bigint[];
  _steps smallint[];
  _plains boolean[];
  _lease bigint;
  _most bigint;
  _since bigint;
  _base bigint;
  _term record;
  _kind windlass.kind;
  _running bigint;
  _taken int := 0;
  _capped int[] := '{}';
  _rate_wait bigint;
  _at_once bigint;
  _admitted record;
begin
  update windlass.worker w set seen_at = _now where w.id = _worker and w.seen_at < _now - 5000000;
  perform windlass._apply_effects(_now);
  -- A pause waits for this to end, and whoever comes after it sees the pause.
  perform pg_advisory_xact_lock_shared(hashtextextended('windlass.claim', 0));
  select array_agg(l.queue_kind), array_agg(l.term), array_agg(l.queue), array_agg(l.ageing),
      array_agg(l.lanes) into _queue_kinds, _terms, _queue_ids, _ageings, _lanes from (
    select distinct on (l.id) l.id as queue_kind, t.n::int as term, q.id as queue, q.ageing, q.lanes
      from unnest(_kinds) with ordinality as t(kind, n)
      join windlass.kind k on k.name = t.kind join windlass.queue_kind l on l.kind = k.id
      join windlass.queue q on q.id = l.queue
      where not q.paused and (_queues is null or q.name = any (_queues))
      order by l.id, t.n) l;
  _stretches := array(select s from windlass._scan_ranges(_queue_kinds) s);
  _limit := least(_limit, 10000);
  if _queue_kinds is not null and _limit > 0 then
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
        select coalesce(sum(t.running), 0) into _running from windlass.counter_delta t
          where t.queue_kind in (select l.id from windlass.queue_kind l where l.kind = _kind.id);
        _caps[_term.n] := greatest(least(_limit, _term.concurrency - _running), 0);
      end if;
      if _term.rate_jobs is not null then
        -- The time is read with the kind locked. By the time of before the lock, a start that another claim has
        -- just noted would lie so far ahead that it seems to be of another rate.
        select * into _admitted from windlass._admit(_kind.full_at, _term.rate_jobs, _term.rate_period,
          _term.rate_burst, _caps[_term.n] + 1, greatest(_now, windlass.now_us()));
        _waits[_term.n] := _admitted.wait;
        _caps[_term.n] := least(_caps[_term.n], _admitted.admitted);
      end if;
    end loop;
    _many := cardinality(_stretches) > 1;
    if not _many then
      _take := array[coalesce(_caps[_terms[1]], _limit)];
    else
      -- How many of each stretch, by the order of all of them.
      select array_agg(coalesce(c.n, 0) order by s.nth) into _take
        from unnest(_stretches) with ordinality as s(of, queue_kind, low, high, rank, at, seq, nth)
        left join (
          select h.stretch, count(*)::int as n from (
            select h.stretch from (
              select x.stretch, x.term, x.at, x.seq, x.standing,
                  row_number() over (partition by x.term order by x.standing desc, x.at, x.seq) as nth
                from (select t.*, _terms[t.of] as term, _ageings[t.of] as ageing
                    from unnest(_stretches) with ordinality as t(of, queue_kind, low, high, rank, at, seq, nth)) t
                cross join lateral (
                  select t.nth as stretch, t.term, r.at, r.seq, windlass._effective_priority(t.ageing, r.rank, r.at, _now) as standing
                    from windlass.ready r
                    where r.queue_kind = t.queue_kind and r.part between t.low and t.high and (r.rank, r.at, r.seq) > (t.rank, t.at, t.seq)
                    order by r.rank, r.at, r.seq limit least(_limit, coalesce(_caps[t.term], _limit))) x) h
              where h.nth <= coalesce(_caps[h.term], _limit)
              order by h.standing desc, h.at, h.seq limit _limit) h
          group by h.stretch) c on c.stretch = s.nth;
      _many := cardinality(_queue_kinds) > 1 or cardinality(array_remove(_take, 0)) > 1;
    end if;
    -- Whoever changes a job that is ready takes it from among the ready, so what is held there is true. What
    -- others hold is passed over. The other half is taken from when there is nothing in its own.
    loop
      select array_agg(h.seq), array_agg(h.ready), array_agg(h.part),
          case when min(h.part) = max(h.part) then min(h.part) end, bool_and(h.never_started),
          array_agg(t.of) filter (where _many), array_agg(h.rank) filter (where _many),
          array_agg(h.at) filter (where _many)
          into _heads, _readies, _epochs, _epoch, _speaks, _ofs, _ranks, _ats
        from rows from (unnest(_stretches), unnest(_take)) as t(of, queue_kind, low, high, rank, at, seq, take)
          cross join lateral (
            select r.seq, r.ctid as ready, r.part, r.never_started, r.rank, r.at from windlass.ready r
              where r.queue_kind = t.queue_kind and r.part between t.low and t.high and (r.rank, r.at, r.seq) > (t.rank, t.at, t.seq)
                and (_part is null or r.seq >> 10 & 1 = _part)
              order by r.rank, r.at, r.seq limit t.take for update skip locked) h
        where t.take > 0;
      exit when _heads is not null or _part is null;
      _part := null;
    end loop;
    -- Read when the jobs have been seen: a lease that began before those ended that made room for it
    -- would overlap with them in the store's own time.
    _since := greatest(_now, windlass.now_us());
    -- Jobs that never started that start in the order of their numbers, all on the same terms, are leased by one row.
    if _speaks then
      if _many then
        select array_agg(h.seq order by h.seq), array_agg(h.of order by h.seq),
            array_agg(h.seq order by windlass._effective_priority(_ageings[h.of], h.rank, h.at, _now) desc, h.at, h.seq)
            into _seqs, _ofs, _order
          from unnest(_heads, _ofs, _ranks, _ats) as h(seq, of, rank, at);
        _speaks := _order = _seqs and not exists (select from unnest(_ofs) o
          where (_leases[_terms[o]], _max_attempts[_terms[o]])
            is distinct from (_leases[_terms[_ofs[1]]], _max_attempts[_terms[_ofs[1]]]));
        _order := null;
      else
        _seqs := array(select h from unnest(_heads) h order by h);
        _speaks := _seqs = _heads;
      end if;
      -- Their tokens follow from their numbers, so these must not be far apart; and all of them are told in one
      -- row, which must not be too large.
      _speaks := _speaks and _seqs[cardinality(_seqs)] - _seqs[1] < 16383
        and (cardinality(_seqs) * (select payload_bytes from windlass.settings) < 268435456 or (
          select sum(octet_length(j.payload)) < 268435456 from windlass.job j where j.seq = any (_seqs)));
    end if;
    if _speaks then
      _all := true;
      _never_started := true;
    else
      -- The others are held by their places, which are the jobs' locks. One that has expired is left to the next
      -- sweep: there are more than one takes. A fresh one cannot expire.
      select array_agg(h.seq) filter (where not h.expired), array_agg(h.place) filter (where not h.expired),
          array_agg(h.of) filter (where not h.expired), bool_and(h.never_started) filter (where not h.expired),
          case when bool_or(h.expired) then 0 end into _seqs, _places, _ofs, _never_started, _at_once from (
        select p.seq, p.ctid as place, array_position(_queue_kinds, p.queue_kind) as of,
            not p.begun and p.attempts = 0 and p.recoveries = 0 and p.generation = 0 and p.steps = 0 and
              p.without_effects as never_started,
            coalesce(p.expires_at <= _since, false) and p.attempts = 0 and p.generation = 0 as expired
          from windlass.job_state p where p.seq = any (_heads) and p.state = 2 order by p.seq for update skip locked) h;
      _all := cardinality(_seqs) = cardinality(_heads);
      -- In which order they start, where it is not that of their numbers.
      if _many or _heads <> array(select h from unnest(_heads) h order by h) then
        select array_agg(h.nth order by h.seq) into _order from (
          select p.seq, row_number() over (order by
              case when _many then -windlass._effective_priority(_ageings[array_position(_queue_kinds, p.queue_kind)], p.rank, p.at, _now) end,
              case when _many then p.at else p.rank end, case when _many then p.seq else p.at end, p.seq) as nth
            from windlass.job_state p where p.ctid = any (_places)) h;
      end if;
    end if;
    _taken := coalesce(cardinality(_seqs), 0);
  end if;
  if _taken > 0 then
    _base := nextval('windlass.token') * 16384;
    select r.firsts, r.lows, r.highs into _firsts, _lows, _highs from windlass._to_ranges(_seqs) r;
    if _speaks then
      _lease := _leases[_terms[coalesce(_ofs[1], 1)]];
      insert into windlass.lease (token, until, running, lowest, highest, lows, highs, worker, since, ends, max_attempts)
        values (_base, _since + _lease, _taken, _seqs[1], _seqs[_taken], _lows, _highs, _worker, _since,
          _since + _lease, _max_attempts[_terms[coalesce(_ofs[1], 1)]]);
    else
      insert into windlass.lease (token, until, running, lowest, highest, lows, highs)
        select _base, _since + min(_leases[_terms[o]]), _taken, _seqs[1], _seqs[_taken], _lows, _highs from unnest(_ofs) o;
    end if;
    if not _speaks and exists (select from windlass.lane_ready) then
      delete from windlass.lane_ready x where x.ctid = any (array(
        select l.ctid from windlass.job_state p cross join lateral (
            select l.ctid from windlass.lane_ready l where l.queue = p.lane_queue and l.lane = p.lane and l.rank = p.rank
              and l.at = p.at and l.seq = p.seq offset 0) l
          where p.ctid = any (_places)));
      delete from windlass.lane_held x where x.ctid = any (array(
        select h.ctid from windlass.job_state p cross join lateral (
            select h.ctid from windlass.lane_held h where h.queue = p.lane_queue and h.lane = p.lane
              and h.partition = p.partition and h.seq = p.seq offset 0) h
          where p.ctid = any (_places) and p.begun));
      insert into windlass.counter_delta (queue, lane, ready, running)
        select p.lane_queue, p.lane, -count(*), count(*) from windlass.job_state p
          where p.ctid = any (_places) and p.lane_queue is not null and _lanes[array_position(_queue_kinds, p.queue_kind)] is not null
          group by p.lane_queue, p.lane;
    end if;
    insert into windlass.counter_delta (queue_kind, queue, ready, running)
      select _queue_kinds[o.of], _queue_ids[o.of], -o.n, o.n from (
        select of, count(*) as n from unnest(_ofs) of group by of
        union all select 1, _taken where _ofs is null) o;
    -- Nobody but who holds a job's place takes it from among the ready.
    if _all and _epoch is not null then
      if _epoch = 0 then
        delete from windlass.ready_0 r where r.ctid = any (_readies);
      else
        delete from windlass.ready_1 r where r.ctid = any (_readies);
      end if;
    else
      delete from windlass.ready_0 r where r.ctid = any (array(
        select h.ready from unnest(_heads, _readies, _epochs) as h(seq, ready, part),
            (select array(select unnest(_seqs)) as seqs offset 0) f
          where h.part = 0 and f.seqs[width_bucket(h.seq, f.seqs)] = h.seq));
      delete from windlass.ready_1 r where r.ctid = any (array(
        select h.ready from unnest(_heads, _readies, _epochs) as h(seq, ready, part),
            (select array(select unnest(_seqs)) as seqs offset 0) f
          where h.part = 1 and f.seqs[width_bucket(h.seq, f.seqs)] = h.seq));
    end if;
    -- Most have no past.
    if not _never_started then
      select array_agg(h.attempts + 1), array_agg(h.recoveries), array_agg(h.first_started), array_agg(h.steps),
          array_agg(h.without_effects), array_agg(h.generation), array_agg(h.begun)
          into _attempts, _recoveries, _first_starts, _steps, _plains, _generations, _begun from (
        select p.attempts, p.recoveries, p.generation, p.first_started, p.steps, p.without_effects, p.begun from windlass.job_state p
          where p.ctid = any (_places) order by p.seq) h;
    end if;
    if not _speaks then
      if not _many then
        _lease := _leases[_terms[1]];
        _most := _max_attempts[_terms[1]];
      end if;
      update windlass.job_state p set state = 3, attempts = p.attempts + 1, begun = true,
          token = _base + coalesce(_order[r.first + p.seq - r.low], r.first + p.seq - r.low),
          worker = _worker, since = _since, cancel_requested = false, told = false, offered = false,
          at = _since + coalesce(_lease, _leases[_terms[_ofs[r.first + p.seq - r.low]]]),
          max_attempts = coalesce(p.own_max_attempts, _most, _max_attempts[_terms[_ofs[r.first + p.seq - r.low]]]),
          first_started = coalesce(p.first_started, _since), updated_at = _since
        from unnest(_firsts, _lows, _highs) as r(first, low, high)
        where p.seq between r.low and r.high;
    end if;
    if _speaks then
      select array_agg(j.id), array_agg(j.seq), string_agg(j.payload, ''), array_agg(octet_length(j.payload)),
          array_agg(j.created_at), array_agg(j.queue_kind) filter (where _many), array_agg(case
            when j.spec is not null or j.priority <> 0 or j.start_kind <> 0 then jsonb_build_object(
              'spec', j.spec, 'priority', j.priority, 'start_kind', j.start_kind, 'start_us', j.start_us) end),
          bool_or(j.spec is not null or j.priority <> 0 or j.start_kind <> 0)
          into _ids, _numbers, _payloads, _sizes, _created, _of_lines, _details, _detailed
        from unnest(_lows, _highs) as r(low, high) cross join lateral (
          select j.* from windlass.job j where j.seq between r.low and r.high offset 0) j;
      if not _many then _of_lines := _queue_kinds; end if;
      if _detailed then
        insert into windlass.counter_delta (queue, priority, ready)
          select l.queue, j.priority, -count(*) from unnest(_lows, _highs) as r(low, high)
              cross join lateral (select j.queue_kind, j.priority from windlass.job j
                where j.seq between r.low and r.high and j.priority <> 0 offset 0) j
              join windlass.queue_kind l on l.id = j.queue_kind
            group by l.queue, j.priority;
      else
        _details := null;
      end if;
      insert into windlass.event (at, n, topic, jobs, queue_kinds, a, detail)
        values (_since, _taken, 'job.started', _ids, _of_lines, array[1], jsonb_build_object('worker', _worker));
      -- What is left after so many is looked for behind them, not among what was just taken.
      if not _many and _taken = _limit then
        select array_agg(case when t.take > 0 then (t.of, t.queue_kind, t.low, t.high, p.rank, p.at, p.seq)::windlass.scan_range
            else (t.of, t.queue_kind, t.low, t.high, t.rank, t.at, t.seq)::windlass.scan_range end) into _stretches
          from rows from (unnest(_stretches), unnest(_take)) as t(of, queue_kind, low, high, rank, at, seq, take),
            (select p.rank, p.at, p.seq from windlass.job_state p where p.seq = _seqs[_taken]) p;
      end if;
    else
      return query with begun as (
        select j.*, r.first + j.seq - r.low as k from unnest(_firsts, _lows, _highs) as r(first, low, high)
          cross join lateral (select j.* from windlass.job j where j.seq between r.low and r.high offset 0) j
      ), told as (
        insert into windlass.event (at, n, topic, jobs, queue_kinds, a, detail)
          select _since, count(*), 'job.started', array_agg(id), array_agg(queue_kind),
              array_agg(coalesce(_attempts[k], 1)::bigint), jsonb_build_object('worker', _worker) from begun
      ), ranked as (
        insert into windlass.counter_delta (queue, priority, ready)
          select l.queue, b.priority, -count(*) from begun b join windlass.queue_kind l on l.id = b.queue_kind
            where b.priority <> 0 group by l.queue, b.priority
      )
      select b.id, b.seq, b.queue_kind, b.payload, b.spec, nullif(b.priority, 0), nullif(b.start_kind, 0), b.start_us,
          b.created_at, _base + coalesce(_order[k], k), nullif(_attempts[k], 1), nullif(_recoveries[k], 0),
          _first_starts[k],
          case when _steps[k] > 0 then (select array_agg(x.name order by x.number) from windlass.step x where x.seq = b.seq) end,
          case when _steps[k] > 0 then (select array_agg(x.result order by x.number) from windlass.step x where x.seq = b.seq) end,
          case when not _plains[k] then true end, null::bigint, null::bigint, null::bigint, null::uuid[], null::bigint[],
          null::bytea, null::int[], null::bigint[], null::int[], null::jsonb[], nullif(_generations[k], 0),
          case when _begun[k] then (select d.error from windlass.attempt_log d where d.seq = b.seq) end
        from begun b;
    end if;
  end if;
  if _queue_kinds is not null and _limit > 0 then
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
        select count(*) into _running from unnest(coalesce(_ofs, array_fill(1, array[_taken]))) o where _terms[o] = _term.n;
        if _running > 0 then
          update windlass.kind k set full_at = (select a.full_at from windlass._admit(_kind.full_at, _term.rate_jobs,
              _term.rate_period, _term.rate_burst, _running::int, _since) a) where k.id = _kind.id;
        end if;
      end if;
      if _taken < _limit and exists (
          select from unnest(_stretches) t, windlass.ready r
            where t.queue_kind in (select l.id from windlass.queue_kind l where l.kind = _kind.id)
              and r.queue_kind = t.queue_kind and r.part between t.low and t.high and (r.rank, r.at, r.seq) > (t.rank, t.at, t.seq))
      then
        _capped := _capped || _term.n;
        if _term.concurrency is not null and _waits[_term.n] is null then
          update windlass.kind k set turned_away = true where k.id = _kind.id and not k.turned_away;
        end if;
        _rate_wait := least(_rate_wait, _waits[_term.n]);
      end if;
    end loop;
  end if;
  return query select null::uuid, null::bigint, null::int, null::bytea, null::jsonb, null::int, null::smallint,
    null::bigint, null::bigint, _base + 1, null::int, null::int, null::bigint, null::text[], null::bytea[],
    null::boolean,
    (select coalesce(sum(c.n), 0)::bigint 
        from unnest(_stretches) t
      cross join lateral (select count(*) as n from (select from windlass.ready r
        where r.queue_kind = t.queue_kind and r.part between t.low and t.high and (r.rank, r.at, r.seq) > (t.rank, t.at, t.seq)
        order by r.rank, r.at, r.seq limit 100) heads) c
      where not _terms[t.of] = any (_capped)),
    coalesce(_since, _now),
    least((select greatest(d.at - _now, 0) from windlass.scheduled d order by d.at limit 1), _rate_wait, _at_once),
    _ids, _numbers, _payloads, _sizes, _created, _of_lines, _details, null::int, null::text;
end $$;
