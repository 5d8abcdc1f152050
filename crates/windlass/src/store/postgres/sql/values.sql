-- Small functions of values. None of them reads a table.

-- The lease that a token belongs to: a claim takes one number of the sequence `token` and counts on
-- from it times {LEASE_TOKENS}.
create function windlass._lease_of(_token bigint) returns bigint language sql immutable as $$
  select _token / {LEASE_TOKENS} * {LEASE_TOKENS}
$$;

create function windlass._rfc3339(_at bigint) returns text language sql immutable as $$
  select to_char(timestamp 'epoch' + floor(_at / 1000.0) * interval '1 millisecond',
                 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')
$$;

create function windlass._state_name(_state int) returns text language sql immutable as $$
  select (array['blocked', 'scheduled', 'ready', 'running', 'completed', 'dead',
      'cancelled'])[_state + 1]
$$;

-- Lower is sooner; with ageing, the moment at which the job would have overtaken everything of
-- priority 0 that comes later.
create function windlass._rank(_ageing bigint, _priority int, _since bigint) returns bigint
language sql immutable as $$
  select case when _ageing is null then -_priority::bigint
    else greatest(least(_since - _ageing::numeric * _priority, 9223372036854775807),
                  -9223372036854775808)::bigint end
$$;

-- Priority in millionths of a point, with what waiting has added: compares jobs of queues with and
-- without ageing.
create function windlass._effective_priority(_ageing bigint, _rank bigint, _at bigint, _now bigint)
    returns float8
language sql immutable as $$
  select case when _ageing is null then -_rank::float8 * 1000000
    else (_at::float8 - _rank::float8) / _ageing * 1000000
        + trunc((_now - _at)::float8 * 1000000 / _ageing) end
$$;

-- Which lane a partition falls into; each has its own in a queue without lanes.
create function windlass._lane(_partition bigint, _lanes int) returns bigint language sql immutable
    as $$
  select case when _lanes is null then _partition
    when _partition >= 0 then _partition % _lanes
    else ((_partition::numeric + 18446744073709551616) % _lanes)::bigint end
$$;

-- An object's address as text, from its kind, name and key.
create function windlass._address(_parts jsonb) returns text language sql immutable as $$
  select (_parts->>0) || '/' || (_parts->>1) || '/' || (_parts->>2)
$$;

create function windlass._start_time(_kind int, _us bigint, _now bigint) returns bigint
language sql immutable as $$
  select case _kind when 0 then _now when 1 then _now + _us else _us end
$$;

-- What the hook for dead letters is told of one.
create function windlass._dead_letter_payload(_job uuid, _lanes int, _lane bigint) returns text
language sql immutable as $$
  select format('{"job":"%s"%s}', _job,
    case when _lanes is not null and _lane is not null then format(',"lane":%s', _lane)
      else '' end)
$$;

-- Numbers in ascending order as ranges without gaps, and where each begins among them. In plpgsql,
-- which keeps its plan: a function in SQL is planned again by every call.
create function windlass._to_ranges(_seqs bigint[], out firsts int[], out lows bigint[],
    out highs bigint[])
language plpgsql immutable as $$
begin
  select array_agg(r.first order by r.first), array_agg(r.low order by r.first),
      array_agg(r.high order by r.first) into firsts, lows, highs
    from (select min(x.n)::int as first, min(x.seq) as low, max(x.seq) as high
      from unnest(_seqs) with ordinality as x(seq, n) group by x.seq - x.n) r;
end $$;

-- The numbers in ranges.
create function windlass._from_ranges(_lows bigint[], _highs bigint[]) returns setof bigint
language sql immutable as $$
  select s from unnest(_lows, _highs) as r(low, high) cross join lateral generate_series(r.low,
      r.high) s
$$;

-- Whether a job is ready for its first start and without side effects. If it is not in `ready`
-- then, a batch lease covers it.
create function windlass._never_started(_state smallint, _begun boolean, _generation int,
    _without_effects boolean) returns boolean
language sql immutable as $$
  select _state = 2 and not _begun and _generation = 0 and _without_effects
$$;

-- Whether a job is without side effects: nothing but time decides when it may start, and its end
-- changes nothing else.
create function windlass._without_side_effects(_spec jsonb) returns boolean language sql immutable
    as $$
  select _spec is null or not (_spec ?| array['unique', 'depends_on', 'lane', 'object',
      'expires_after'])
$$;

-- How many jobs a rate allows now, up to `_most`, and how long until the next one if fewer.
create function windlass._admit(_full_at bigint, _jobs int, _period bigint, _burst int, _most int,
    _now bigint,
    out admitted int, out full_at bigint, out wait bigint) language plpgsql immutable as $$
declare
  -- Rounded up: a spacing that is a little too short adds up to more starts than were allowed.
  _spacing bigint := greatest(_period / greatest(_jobs, 1) + (_period % greatest(_jobs,
      1) > 0)::int, 1);
  _tolerance numeric := _spacing::numeric * (greatest(_burst, 1) - 1);
begin
  admitted := 0;
  -- Later than this rate can have made it: what a slower one has left behind is not waited for.
  full_at := case when _full_at > _now + _tolerance + _spacing then _now + _tolerance
      else _full_at end;
  while admitted < _most loop
    if full_at - _tolerance > _now then
      wait := least(full_at - _tolerance - _now, 9223372036854775807)::bigint;
      exit;
    end if;
    full_at := least(greatest(full_at, _now)::numeric + _spacing, 9223372036854775807)::bigint;
    admitted := admitted + 1;
  end loop;
end $$;
