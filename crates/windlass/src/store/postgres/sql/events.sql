-- What happened: written down by whoever does it, numbered when somebody reads it.

create function windlass._emit(_now bigint, _topic text, _seq bigint, _detail jsonb,
    _a bigint default null, _b bigint default null) returns void language sql as $$
  insert into windlass.event (at, n, topic, jobs, queue_kinds, a, b, detail)
    select _now, 1, _topic, array[j.id], array[j.queue_kind], array[_a], array[_b], _detail
    from windlass.job j where j.seq = _seq
$$;

-- Something that happened to a queue, a worker or an object, which `detail` names.
create function windlass._emit_once(_now bigint, _topic text, _detail jsonb) returns void
language sql as $$
  insert into windlass.event (at, n, topic, detail) values (_now, 1, _topic, _detail)
$$;

-- Gives what happened since its numbers, without gaps; the last one.
create function windlass._number_events() returns bigint language plpgsql as $$
declare
  _last bigint;
  _events tid[];
  _numbers bigint[];
begin
  if not exists (select from windlass.event where number is null) then
    return (select last_event from windlass.settings);
  end if;
  select last_event into _last from windlass.settings for no key update;
  select array_agg(f.event), array_agg(_last + f.upto - f.n + 1), _last + coalesce(max(f.upto), 0)
    into _events, _numbers, _last
    from (select ctid as event, n, sum(n) over (order by id) as upto from windlass.event
        where number is null) f;
  update windlass.event e set number = f.number
      from unnest(_events, _numbers) with ordinality as f(event, number, n)
    where e.ctid = f.event and f.n between 1 and 1000000000;
  update windlass.settings set last_event = _last;
  return _last;
end $$;

-- Events after a number, and the number of the last one in a row of its own.
create function windlass.events(_after bigint, _limit int)
returns table (number bigint, at bigint, n int, topic text, jobs uuid[], queue_kinds int[],
    a bigint[], b bigint[], detail jsonb, last bigint) language plpgsql
  set lock_timeout = '10s' set plan_cache_mode = force_generic_plan set jit = off
  set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
  set enable_sort = off set enable_bitmapscan = off as $$
#variable_conflict use_column
declare
  _last bigint := windlass._number_events();
begin
  if _last > _after then
    return query select e.number, e.at, e.n, e.topic, e.jobs, e.queue_kinds, e.a, e.b, e.detail,
        null::bigint
      from windlass.event e where e.number > _after - {EVENTS_PER_ROW}
          and e.number + e.n - 1 > _after
          order by e.number limit _limit;
  end if;
  return query select null::bigint, null::bigint, null::int, null, null::uuid[], null::int[],
      null::bigint[], null::bigint[], null::jsonb, _last;
end $$;
