-- Dead letters and history beyond their bounds leave, the oldest first.

-- Deletes dead letters and history beyond their bounds, the oldest first.
create function windlass._enforce_limits(_now bigint) returns void language plpgsql as $$
declare
  _settings windlass.settings;
  _queue bigint;
  _surplus bigint;
  _at bigint;
  _seq bigint := 0;
begin
  select * into _settings from windlass.settings;
  loop
    select queue into _queue from windlass.pending_effect
      where tx = pg_current_xact_id() and effect = 'dead_letter' limit 1;
    exit when not found;
    delete from windlass.pending_effect
      where tx = pg_current_xact_id() and effect = 'dead_letter' and queue = _queue;
    select sum(dead) - _settings.dead_letters into _surplus from windlass.counter_delta
        where queue = _queue and queue_kind is not null;
    _at := -9223372036854775808;
    while _surplus > 0 loop
      -- Behind those that went before, so that nobody walks over them again.
      select at, seq into _at, _seq from windlass.dead
        where queue = _queue and (at, seq) > (_at, _seq) order by at, seq limit 1;
      exit when not found;
      continue when windlass._many_wait_for((select j.id from windlass.job j where j.seq = _seq));
      update windlass.queue set dropped = dropped + 1 where id = _queue;
      perform windlass._remove(_seq, 2, _now);
      _surplus := _surplus - 1;
    end loop;
  end loop;
  delete from windlass.pending_effect
    where tx = pg_current_xact_id() and effect = 'history_grown';
  if found then perform windlass._trim_history(_settings.history_jobs, _now, 0); end if;
end $$;

-- Deletes the oldest history beyond its bound, if it is beyond by more than `_slack`.
create function windlass._trim_history(_history_jobs bigint, _now bigint, _slack bigint)
returns bigint
language plpgsql as $$
declare
  _surplus bigint;
begin
  select sum(completed) + sum(cancelled) - _history_jobs into _surplus
      from windlass.counter_delta where queue_kind is not null;
  if _surplus is null or _surplus <= _slack then return 0; end if;
  if exists (select from windlass.dependency) or exists (select from windlass.unique_key) then
    select _surplus - count(*) into _surplus from (
      select j.seq from windlass.dependency d
        cross join lateral (select j.seq from windlass.job j where j.id = d.on_id offset 0) j
      union
      select k.seq from windlass.unique_key k where k.until > _now) kept
      cross join lateral (select from windlass.job_state p where p.seq = kept.seq
          and p.state in (4, 6) offset 0) p;
  end if;
  return windlass._purge(_now, null, least(_surplus, {SWEEP_BATCH}));
end $$;

-- Deletes finished jobs that ended before `_before`, at most so many, the oldest first. What an
-- open job depends on, and what holds a key, is looked at again later.
create function windlass._purge(_now bigint, _before bigint, _most bigint) returns bigint
language plpgsql as $$
declare
  _pasts tid[];
  _last_at bigint := -9223372036854775808;
  _last_id bigint := 0;
  _some bigint[];
  _held bigint[];
  _seqs bigint[] := '{}';
  _later bigint[] := '{}';
begin
  while cardinality(_seqs) < _most loop
    -- Each time behind what was looked at, so that nobody walks over it again.
    select array_agg(p.past order by p.at, p.id),
        (array_agg(p.at order by p.at desc, p.id desc))[1],
        (array_agg(p.id order by p.at desc, p.id desc))[1] into _pasts, _last_at, _last_id
      from (
        select p.*, sum(p.n) over (order by p.at, p.id) - p.n as sooner from (
          select p.ctid as past, p.at, p.id, p.n from windlass.history p
            where (p.at, p.id) > (_last_at, _last_id) and p.at <= coalesce(_before,
                9223372036854775807)
            order by p.at, p.id limit _most) p) p
      where p.sooner < _most - cardinality(_seqs);
    exit when _pasts is null;
    -- What was replayed meanwhile, or is gone, is no longer past.
    with gone as (
      delete from windlass.history p where p.ctid = any (array(
        select p.ctid from windlass.history p where p.ctid = any (_pasts) for update skip locked))
            returning p.*
    )
    select coalesce(array_agg(p.seq order by g.at, g.id, p.seq), '{}'), '{}' into _some, _held
      from gone g cross join lateral unnest(g.lows, g.highs) as r(low, high) cross join lateral (
        select p.seq from windlass.job_state p
          where p.seq between r.low and r.high and p.state in (4, 6) and p.at = g.at offset 0) p;
    if exists (select from windlass.dependency) or exists (select from windlass.unique_key) then
      select coalesce(array_agg(s order by n) filter (where not held), '{}'),
          coalesce(array_agg(s) filter (where held), '{}') into _some, _held from (
        select s, n, exists (select from windlass.dependency d where d.on_id = (select j.id
            from windlass.job j where j.seq = s))
          or exists (select from windlass.unique_key k where k.seq = s and k.until > _now) as held
        from unnest(_some) with ordinality as x(s, n)) x;
    end if;
    _later := _later || _held || _some[_most - cardinality(_seqs) + 1 :];
    _seqs := _seqs || _some[1 : _most - cardinality(_seqs)];
  end loop;
  insert into windlass.history (at, n, lows, highs)
    select k.at, cardinality(k.seqs), r.lows, r.highs from (
        select p.at, array_agg(p.seq order by p.seq) as seqs from windlass.job_state p
            where p.seq = any (_later) group by p.at) k
      cross join lateral windlass._to_ranges(k.seqs) r;
  if cardinality(_seqs) = 0 then return 0; end if;
  perform windlass._delete_finished(_seqs, 1, _now);
  return cardinality(_seqs);
end $$;

-- Deletes finished jobs, which nobody waits for, and tells of them in the order of their
-- acceptance. Reasons are those of `_remove`.
create function windlass._delete_finished(_seqs bigint[], _reason int, _now bigint) returns void
language plpgsql
set enable_hashjoin = off set enable_mergejoin = off as $$
declare
  _lows bigint[];
  _highs bigint[];
begin
  select r.lows, r.highs into _lows, _highs
      from windlass._to_ranges(array(select s from unnest(_seqs) s order by s)) r;
  with gone as (
    delete from windlass.job_state p using unnest(_lows, _highs) as r(low, high)
      where p.seq between r.low and r.high returning p.seq, p.queue_kind, p.state, p.at
  ), counted as (
    insert into windlass.counter_delta (queue_kind, queue, completed, dead, cancelled)
      select g.queue_kind, l.queue, -count(*) filter (where g.state = 4),
          -count(*) filter (where g.state = 5), -count(*) filter (where g.state = 6)
        from gone g join windlass.queue_kind l on l.id = g.queue_kind group by g.queue_kind, l.queue
  ), letters as (
    delete from windlass.dead d where d.ctid = any (array(
      select d.ctid from gone g cross join lateral (select l.queue from windlass.queue_kind l
          where l.id = g.queue_kind offset 0) l
        cross join lateral (select d.ctid from windlass.dead d
          where d.queue = l.queue and d.at = g.at and d.seq = g.seq offset 0) d where g.state = 5))
  ), jobs as (
    delete from windlass.job j using unnest(_lows, _highs) as r(low, high)
      where j.seq between r.low and r.high returning j.seq, j.id, j.queue_kind
  ), told as (
    insert into windlass.event (at, n, topic, jobs, queue_kinds, a, b)
      select _now, count(*), 'job.removed', array_agg(id order by seq),
          array_agg(queue_kind order by seq), array[_reason::bigint], null
        from (select j.*, row_number() over (order by j.seq) as n from jobs j) j
        group by (n - 1) / {EVENTS_PER_ROW} order by min(n)
  ), logs as (
    delete from windlass.attempt_log d using unnest(_lows, _highs) as r(low, high)
        where d.seq between r.low and r.high
  ), steps as (
    delete from windlass.step s using unnest(_lows, _highs) as r(low, high)
        where s.seq between r.low and r.high
  ), dependencies as (
    delete from windlass.dependency e using unnest(_lows, _highs) as r(low, high)
        where e.seq between r.low and r.high
  )
  delete from windlass.unique_key k using unnest(_lows, _highs) as r(low, high)
      where k.seq between r.low and r.high;
end $$;
