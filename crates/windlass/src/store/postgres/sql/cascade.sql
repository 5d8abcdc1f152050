-- What the end of a job does to those that depend on it.
--
-- Thousands may depend on one job, or in a chain behind it: they are found, locked and written in a
-- few statements for all of them. Only who comes before whom is decided one by one, on arrays.
--
-- One call reaches {CASCADE_JOBS} of them, and at least {CASCADE_EACH} for each job that ends. The
-- finished jobs whose dependents it has not told stand in `owing`; claims and housekeeping of
-- whatever process go on with them (`_go_on_with_cascades`).

-- Tells a finished job's dependents, theirs if they follow, and so on.
create function windlass._cascade(_root bigint, _error text, _now bigint) returns void
language plpgsql as $$
declare
  _state int;
begin
  delete from windlass.dependency where seq = _root;
  if not exists (select from windlass.dependency e
      where e.on_id = (select j.id from windlass.job j where j.seq = _root) and not e.met)
  then
    return;
  end if;
  select p.state into _state from windlass.job_state p where p.seq = _root;
  if _state = 4 then
    perform windlass._cascade_success(array[_root], _now);
  else
    perform windlass._cascade_failure(_root, _state, _error, _now);
  end if;
end $$;

-- How many dependents the end of one more job may still reach in this call.
create function windlass._dependents_left() returns int language plpgsql as $$
begin
  return greatest({CASCADE_EACH}, {CASCADE_JOBS} - coalesce((
    select sum(f.told) from windlass.pending_effect f
      where f.tx = pg_current_xact_id() and f.effect = 'dependents_told'), 0));
end $$;

-- Notes that so many were reached. The first few of each job are always reached, so they cost
-- nothing here.
create function windlass._note_told(_told int) returns void language plpgsql as $$
begin
  if _told > {CASCADE_EACH} then
    insert into windlass.pending_effect (effect, told) values ('dependents_told', _told);
  end if;
end $$;

-- Whether more jobs wait for this one than can follow it in one commit.
create function windlass._many_wait_for(_id uuid) returns boolean language plpgsql as $$
begin
  return (select count(*) > {CASCADE_JOBS} from (select from windlass.dependency e
      where e.on_id = _id and not e.met limit {CASCADE_JOBS} + 1) w);
end $$;

-- These jobs are completed, and nobody waits for them any longer. Their dependents are told in the
-- order of the jobs, and of each job by their ids.
create function windlass._cascade_success(_roots bigint[], _now bigint) returns void
language plpgsql
set enable_hashjoin = off set enable_mergejoin = off as $$
declare
  _left int := windlass._dependents_left();
  _seqs bigint[];
  _ons uuid[];
  _root bigint;
begin
  select array_agg(t.seq order by t.n, d.id), array_agg(t.id order by t.n, d.id) into _seqs, _ons
    from (select r.n, j.id, e.seq from unnest(_roots) with ordinality as r(seq, n)
        cross join lateral (select j.id from windlass.job j where j.seq = r.seq offset 0) j
        cross join lateral (select e.seq from windlass.dependency e where e.on_id = j.id
            and not e.met offset 0) e
        limit _left + 1) t
      cross join lateral (select j.id from windlass.job j where j.seq = t.seq offset 0) d;
  if cardinality(_seqs) > _left then
    foreach _root in array _roots loop
      perform windlass._tell_some(_root, null, true, windlass._dependents_left(), _now);
    end loop;
    return;
  end if;
  perform windlass._note_told(cardinality(_seqs));
  perform from windlass.job_state p where p.seq = any (_seqs) order by p.seq for update;
  perform windlass._release(_seqs, _ons, _now);
end $$;

-- A job has failed: who must follow ends with it, and so do those who must follow them; who ignores
-- it is released. Of those who can be reached in several ways, the first way counts: from job to
-- job, and of each by the ids of its dependents, those of the last one first.
create function windlass._cascade_failure(_root bigint, _state int, _error text, _now bigint)
returns void
language plpgsql set enable_hashjoin = off set enable_mergejoin = off as $$
declare
  _reached bigint[] := windlass._lock_reached(_root, windlass._dependents_left());
  _first int[];
  _next int[];
  _ones int[];
  _others int[];
  _follows boolean[];
  _open boolean[];
  _ids uuid[];
  _top int := 1;
  _stack int[];
  _one int;
  _edge int;
  _other int;
  _followed int := 0;
  _follow bigint[] := '{}';
  _follow_on uuid[] := '{}';
  _freed int := 0;
  _release bigint[] := '{}';
  _release_on uuid[] := '{}';
begin
  if _reached is null then
    perform windlass._tell_some(_root, _error, true, windlass._dependents_left(), _now);
    return;
  end if;
  perform windlass._note_told(cardinality(_reached) - 1);
  select array_agg(p.state = 0 order by s.n), array_agg(j.id order by s.n),
      max(s.n) filter (where s.seq = _root)
    into _open, _ids, _one
    from unnest(_reached) with ordinality as s(seq, n)
      cross join lateral (select p.state from windlass.job_state p where p.seq = s.seq offset 0) p
      cross join lateral (select j.id from windlass.job j where j.seq = s.seq offset 0) j;
  -- Edges as numbers, those to the last id first: so the list of each job has them by id.
  select array_agg(e.one order by e.id desc), array_agg(e.other order by e.id desc),
      array_agg(e.follows order by e.id desc)
    into _ones, _others, _follows from (
      select s.n::int as one, width_bucket(e.seq, f.seqs) as other, e.follows, d.id
        from (select array(select unnest(_reached)) as seqs offset 0) f
          cross join lateral unnest(_ids) with ordinality as s(id, n)
          cross join lateral (select e.seq, e.on_failure = 0 as follows from windlass.dependency e
            where e.on_id = s.id and not e.met and e.on_failure <> 2 offset 0) e
          cross join lateral (select j.id from windlass.job j where j.seq = e.seq offset 0) d
        where f.seqs[width_bucket(e.seq, f.seqs)] = e.seq) e;
  if _ones is null then return; end if;
  _first := array_fill(0, array[cardinality(_reached)]);
  _next := array_fill(0, array[cardinality(_ones)]);
  for _e in 1..cardinality(_ones) loop
    _next[_e] := _first[_ones[_e]];
    _first[_ones[_e]] := _e;
  end loop;
  _stack := array[_one];
  while _top > 0 loop
    _one := _stack[_top];
    _top := _top - 1;
    _edge := _first[_one];
    while _edge > 0 loop
      _other := _others[_edge];
      if not _open[_other] then
        null;
      elsif _follows[_edge] then
        _open[_other] := false;
        _followed := _followed + 1;
        _follow[_followed] := _reached[_other];
        _follow_on[_followed] := _ids[_one];
        _top := _top + 1;
        _stack[_top] := _other;
      else
        _freed := _freed + 1;
        _release[_freed] := _reached[_other];
        _release_on[_freed] := _ids[_one];
      end if;
      _edge := _next[_edge];
    end loop;
  end loop;
  if _freed > 0 then perform windlass._release(_release, _release_on, _now); end if;
  if _followed > 0 then
    perform windlass._fail_dependents(_follow, _follow_on, (select j.id from windlass.job j
        where j.seq = _root),
      case when _state = 6 then 6 else 5 end, _error, _now);
  end if;
end $$;

-- Locks the jobs that a failed one reaches, itself among them; their numbers, ascending. Null, and
-- nothing is locked by that, if it reaches more than `_most` others.
create function windlass._lock_reached(_root bigint, _most int) returns bigint[]
language plpgsql set enable_hashjoin = off set enable_mergejoin = off as $$
declare
  _reached bigint[];
  _locked bigint[] := '{}';
begin
  -- Whoever wants to depend on one of them locks it, so that when all are locked, nobody comes to
  -- them any more: they are looked for until there is nobody new.
  loop
    with recursive reach(seq, follows) as (
      select _root, true
      union
      select e.seq, e.on_failure = 0 from reach r
        cross join lateral (
          select j.id from windlass.job j where j.seq = r.seq and r.follows offset 0) j
        cross join lateral (select e.seq, e.on_failure from windlass.dependency e
          where e.on_id = j.id and not e.met and e.on_failure <> 2 offset 0) e
    )
    -- A job that is reached in two ways stands in it twice. The recursion ends with the limit.
    select array_agg(distinct r.seq order by r.seq) into _reached
      from (select seq from reach limit 2 * _most + 3) r;
    if cardinality(_reached) > _most + 1 then return null; end if;
    exit when _reached = _locked;
    perform from windlass.job_state p where p.seq = any (_reached) order by p.seq for update;
    _locked := _reached;
  end loop;
  return _reached;
end $$;

-- Tells at most `_most` dependents of a finished job, where others are left to tell: from where it
-- stands in `owing`, by their numbers. What is left stands there afterwards. Answers how many were
-- told. Later than in the call in which the job ended, the cause is no longer at hand.
create function windlass._tell_some(_root bigint, _error text, _has_cause boolean, _most int,
    _now bigint) returns int
language plpgsql set enable_hashjoin = off set enable_mergejoin = off as $$
declare
  _id uuid := (select j.id from windlass.job j where j.seq = _root);
  _state int := (select p.state from windlass.job_state p where p.seq = _root);
  _first bigint := coalesce((select o.next from windlass.owing o where o.seq = _root), 0);
  _next bigint;
  _release bigint[];
  _follow bigint[];
  _told int;
begin
  _next := (select e.seq from windlass.dependency e where e.on_id = _id and e.seq >= _first
      and not e.met and (_state = 4 or e.on_failure <> 2) order by e.seq offset _most limit 1);
  -- Locked with the job itself, so that nobody replays it meanwhile; in one order.
  perform from windlass.job_state p where p.seq = any (array(
      select e.seq from windlass.dependency e where e.on_id = _id and e.seq >= _first
        and (_next is null or e.seq < _next) and not e.met
        and (_state = 4 or e.on_failure <> 2)) || _root)
    order by p.seq for update;
  _state := (select p.state from windlass.job_state p where p.seq = _root);
  if _state >= 4 then
    select array_agg(e.seq order by d.id) filter (where _state = 4 or e.on_failure = 1),
        array_agg(e.seq order by d.id) filter (where _state > 4 and e.on_failure = 0)
      into _release, _follow
      from windlass.dependency e
        cross join lateral (select j.id from windlass.job j where j.seq = e.seq offset 0) d
      where e.on_id = _id and e.seq >= _first and (_next is null or e.seq < _next) and not e.met;
  end if;
  if _release is not null then
    perform windlass._release(_release, array_fill(_id, array[cardinality(_release)]), _now);
  end if;
  if _follow is not null then
    perform windlass._fail_dependents(_follow, array_fill(_id, array[cardinality(_follow)]),
      case when _has_cause then _id end, case when _state = 6 then 6 else 5 end, _error, _now);
    insert into windlass.owing (seq)
      select s.seq from unnest(_follow) as s(seq)
        cross join lateral (select j.id from windlass.job j where j.seq = s.seq offset 0) j
      where exists (select from windlass.dependency e
        where e.on_id = j.id and not e.met and e.on_failure <> 2) on conflict do nothing;
  end if;
  if _state >= 4 and _next is not null then
    insert into windlass.owing (seq, next) values (_root, _next)
      on conflict (seq) do update set next = excluded.next;
  else
    delete from windlass.owing o where o.seq = _root;
  end if;
  _told := coalesce(cardinality(_release), 0) + coalesce(cardinality(_follow), 0);
  perform windlass._note_told(_told);
  return _told;
end $$;

-- Goes on with cascades that were too large for the calls that caused them, by at most `_most`
-- dependents, those of the jobs that were accepted first, first. What another call goes on with is
-- left to it. Answers how many were told.
create function windlass._go_on_with_cascades(_most int, _now bigint) returns int
language plpgsql as $$
declare
  _told int := 0;
  _root bigint;
begin
  while _told < _most loop
    select o.seq into _root from windlass.owing o order by o.seq limit 1 for update skip locked;
    exit when not found;
    _told := _told + windlass._tell_some(_root, null, false, _most - _told, _now);
  end loop;
  return _told;
end $$;

-- Blocked jobs, which are locked, die or are cancelled, each with one it depends on. Events tell of
-- them in this order. If `_root` is null, why it failed stands in the record of that one.
create function windlass._fail_dependents(_seqs bigint[], _ons uuid[], _root uuid, _state int,
    _error text, _now bigint)
returns void language plpgsql set enable_hashjoin = off set enable_mergejoin = off as $$
declare
  _word text := windlass._state_name(_state);
  _texts text[];
begin
  select array_agg(case when _root is null then format('depends on job %s, which is %s', f.on_id,
        _word)
      when f.on_id = _root then format('depends on job %s, which is %s: %s', f.on_id, _word,
                                         coalesce(_error, _word))
      else format('depends on job %s, which is %s because job %s failed: %s', f.on_id, _word, _root,
                  coalesce(_error, _word)) end order by f.n) into _texts
    from unnest(_ons) with ordinality as f(on_id, n);
  with ended as materialized (
    select f.n, f.seq, f.text, p.queue_kind, p.attempts, p.lane_queue, p.lane, p.object, l.queue,
        q.lanes, q.on_dead, j.id, j.priority
      from unnest(_seqs, _texts) with ordinality as f(seq, text, n)
        cross join lateral (select p.* from windlass.job_state p where p.seq = f.seq offset 0) p
        cross join lateral (select l.queue from windlass.queue_kind l
            where l.id = p.queue_kind offset 0) l
        cross join lateral (select q.lanes, q.on_dead from windlass.queue q
            where q.id = l.queue offset 0) q
        cross join lateral (select j.id, j.priority from windlass.job j
            where j.seq = f.seq offset 0) j
  ), logged as (
    insert into windlass.attempt_log (seq, error) select seq, text from ended
      on conflict (seq) do update set error = excluded.error
  ), dead as (
    insert into windlass.dead (queue, at, seq) select queue, _now, seq from ended where _state = 5
  ), finished as (
    insert into windlass.history (at, n, lows, highs)
      select _now, cardinality(_seqs), r.lows, r.highs
        from windlass._to_ranges(array(select s from unnest(_seqs) s order by s)) r where _state = 6
  ), counted as (
    insert into windlass.counter_delta (queue_kind, queue, lane, blocked, dead, cancelled, t_dead,
        t_cancelled)
      select queue_kind, queue, lane, -n, case when _state = 5 then n else 0 end,
          case when _state = 6 then n else 0 end,
          case when _state = 5 then n else 0 end, case when _state = 6 then n else 0 end from (
        select queue_kind, queue, null::bigint as lane, count(*) as n from ended
            group by queue_kind, queue
        union all
        select null, lane_queue, lane, count(*) from ended
          where lane_queue is not null and lanes is not null group by lane_queue, lane) c
  ), ranked as (
    insert into windlass.counter_delta (queue, priority, ready)
      select queue, priority, -count(*) from ended where priority <> 0 group by queue, priority
  ), owed as (
    insert into windlass.pending_effect (effect, queue, lane)
      select 'lane_changed'::windlass.effect, lane_queue, lane from ended
        where lane_queue is not null group by lane_queue, lane
      union all select 'queue_drained', queue, null from ended group by queue
      union all select 'dead_letter', queue, null from ended where _state = 5 group by queue
      union all select 'history_grown', null, null where _state = 6
  ), objects as (
    insert into windlass.pending_effect (effect, object, job, state, reason)
      select 'object_job_ended', object, id, _state, 4 from ended
        where object is not null order by n
  ), hooks as (
    insert into windlass.pending_effect (effect, hook, job, payload)
      select 'job_wanted', on_dead, id, windlass._dead_letter_payload(id, lanes, lane) from ended
        where _state = 5 and on_dead is not null order by n
  )
  insert into windlass.event (at, n, topic, jobs, queue_kinds, a, detail)
    select _now, count(*), case when _state = 5 then 'job.dead' else 'job.cancelled' end,
        array_agg(id order by n), array_agg(queue_kind order by n),
        array_agg(case when _state = 5 then attempts else 4 end::bigint order by n),
        case when _state = 5 then jsonb_build_object('reason', 4, 'error', e.error) end
      from (select e.*, case when _state = 5 then e.text end as error from ended e) e
      group by e.error, (n - 1) / {EVENTS_PER_ROW} order by min(n);
  if exists (select from windlass.unique_key) then
    delete from windlass.unique_key k where k.ctid = any (array(
      select k.ctid from unnest(_seqs) s
        cross join lateral (select k.ctid from windlass.unique_key k where k.seq = s offset 0) k
        cross join lateral (select from windlass.job j
          where j.seq = s and j.spec->'unique'->>'scope' = 'open' offset 0) j));
  end if;
  delete from windlass.dependency where seq = any (_seqs);
  update windlass.job_state set state = _state, at = _now, updated_at = _now, reason = 4,
      attempt_end = null, output = null, offered = false, unmet = null, since = null, worker = null,
    lane_queue = null, lane = null, partition = null, object = null, expires_at = null
    where seq = any (_seqs);
end $$;

-- Dependencies of blocked jobs, which are locked, are met: `_seqs[i]` need not wait for `_ons[i]`
-- any longer.
create function windlass._release(_seqs bigint[], _ons uuid[], _now bigint) returns void
language plpgsql
set enable_hashjoin = off set enable_mergejoin = off as $$
begin
  update windlass.dependency x set met = true where x.ctid = any (array(
    select e.ctid from unnest(_seqs, _ons) as r(seq, on_id) cross join lateral (
      select e.ctid from windlass.dependency e where e.on_id = r.on_id
          and e.seq = r.seq offset 0) e));
  with met as materialized (
    select r.*, p.row_id, l.queue, q.lanes, q.ageing, j.id, j.priority
      from (select r.seq, array_agg(r.on_id order by r.n) as ons, count(*)::int as times,
          min(r.n) as first
          from unnest(_seqs, _ons) with ordinality as r(seq, on_id, n) group by r.seq) r
        cross join lateral (select p.ctid as row_id, p.queue_kind from windlass.job_state p
          where p.seq = r.seq and p.state = 0 offset 0) p
        cross join lateral (select l.queue from windlass.queue_kind l
            where l.id = p.queue_kind offset 0) l
        cross join lateral (select q.lanes, q.ageing from windlass.queue q
            where q.id = l.queue offset 0) q
        cross join lateral (select j.id, j.priority from windlass.job j
            where j.seq = r.seq offset 0) j
  ), released as materialized (
    update windlass.job_state p set updated_at = _now, met = coalesce(p.met, '{}') || m.ons,
        unmet = case when p.unmet > m.times then p.unmet - m.times end,
        state = case when p.unmet > m.times then 0 when p.at > _now then 1 else 2 end,
        at = case when p.unmet > m.times then p.at else greatest(p.at, _now) end,
        rank = case when p.unmet > m.times or p.at > _now then p.rank
          else windlass._rank(m.ageing, m.priority, _now) end,
        offered = false, attempt_end = null, reason = null
      from met m where p.ctid = m.row_id and m.times between 1 and 1000000000
      returning p.seq, p.state, p.at, p.rank, p.queue_kind, p.lane_queue, p.lane, m.queue, m.lanes,
          m.id, m.first,
        windlass._never_started(p.state, p.begun, p.generation, p.without_effects) as never_started
  ), listed as (
    insert into windlass.ready (queue_kind, rank, at, seq, never_started)
      select queue_kind, rank, at, seq, never_started
          from released where state = 2 and lane_queue is null
  ), in_lane_order as (
    insert into windlass.lane_ready (queue, lane, rank, at, seq)
      select lane_queue, lane, rank, at, seq from released
          where state = 2 and lane_queue is not null
  ), waiting as (
    insert into windlass.scheduled (at, seq) select at, seq from released where state = 1
  ), counted as (
    insert into windlass.counter_delta (queue_kind, queue, lane, blocked, scheduled, ready)
      select queue_kind, queue, null, -count(*), count(*) filter (where state = 1),
          count(*) filter (where state = 2)
        from released where state > 0 group by queue_kind, queue
      union all
      select null, lane_queue, lane, -count(*), count(*) filter (where state = 1),
          count(*) filter (where state = 2)
        from released where state > 0 and lane_queue is not null and lanes is not null
            group by lane_queue, lane
  ), owed as (
    insert into windlass.pending_effect (effect, queue, lane)
      select distinct 'lane_changed'::windlass.effect, lane_queue, lane from released
        where lane_queue is not null
      union all
      select distinct 'ring_queue'::windlass.effect, queue, null::bigint from released
          where state > 0
  )
  insert into windlass.event (at, n, topic, jobs, queue_kinds, a)
    select _now, count(*), t.topic, array_agg(t.id order by t.n), array_agg(t.queue_kind
        order by t.n), array_agg(t.a order by t.n)
      from (
        select 1 as kind, 'job.unblocked' as topic, id, queue_kind,
            row_number() over (order by first) as n, null::bigint as a
          from released where state > 0
        union all
        select 2, 'job.scheduled', id, queue_kind, row_number() over (order by first), at
            from released
            where state = 1) t
      group by t.kind, t.topic, (t.n - 1) / {EVENTS_PER_ROW} order by t.kind, min(t.n);
end $$;
