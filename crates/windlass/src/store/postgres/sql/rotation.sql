-- Rotation: `ready` and `counter_delta` have two partitions. New rows go into the active one while
-- the other is emptied.
--
-- Answers: while somebody's old transaction is open, vacuum removes no dead row, and every claim
-- walks over all jobs that were taken before.
-- Why not simpler: with 64 slots the flow fell to 0.56 of before while a transaction was pinned.
-- Guarded by: tests/postgres/rotation.rs, tests/postgres/bloat.rs.
--
-- Everything else inserts into the two tables without naming a partition, reads ready jobs in the
-- ranges of `_scan_ranges` (by `_ready_in` or `_lock_ready`), and deletes what it took by
-- `_delete_ready`.

-- Low-water marks: up to where the inactive partition is empty, for each pair of queue and kind, so
-- that no claim walks over it again. The last row counts, if it is of the current `rotation` (the
-- value of `active_partition`) and has marks. Rows are only added while dead ones are pinned, so
-- that the last is found at once. `awaited` are the transactions that may still insert into the
-- partition. Losing the marks costs time, never a job.
-- Why not simpler: without them the flow at 64 slots fell to 0.66 of before while a transaction was
-- pinned, with them to 0.79 (medians of three runs each, in turns).
create table windlass.low_water (
  n bigint generated always as identity primary key,
  rotation bigint not null,
  awaited text[],
  queue_kinds int[],
  ranks bigint[],
  ats bigint[],
  seqs bigint[]
);

-- Where ready jobs of a pair of queue and kind are looked for: in these partitions, behind this
-- place in their order. `source` is the number of the pair among those that were asked for.
create type windlass.scan_range as (
  source int,
  queue_kind int,
  first_part smallint,
  last_part smallint,
  rank bigint,
  at bigint,
  seq bigint
);

-- Rows of `ready` that a claim has locked, in the order of starting within each range. `part` is
-- the partition of all of them, if it is one. The last three are there only where jobs of several
-- ranges are put into one order.
create type windlass.ready_rows as (
  seqs bigint[],
  ctids tid[],
  parts smallint[],
  part smallint,
  never_started boolean,
  sources int[],
  ranks bigint[],
  ats bigint[]
);

create function windlass._scan_ranges(_queue_kinds int[]) returns setof windlass.scan_range
language sql stable as $$
  select l.source::int, l.queue_kind, s.first_part::smallint, s.last_part::smallint,
      coalesce(s.rank, -9223372036854775808), coalesce(s.at, -9223372036854775808),
      coalesce(s.seq, -9223372036854775808)
    from (select) one
      left join lateral (
        select m.*, m.rotation & 1 as part from windlass.low_water m order by m.n desc limit 1) m
        on m.queue_kinds is not null
          and m.rotation = (select last_value from windlass.active_partition)
      cross join unnest(_queue_kinds) with ordinality as l(queue_kind, source)
      cross join lateral (
        select 0 as first_part, 1 as last_part, null::bigint as rank, null::bigint as at,
            null::bigint as seq
          where m.n is null
        union all
        select 1 - m.part, 1 - m.part, m.ranks[p.i], m.ats[p.i], m.seqs[p.i]
          from (select array_position(m.queue_kinds, l.queue_kind) as i) p where m.n is not null
        union all
        select m.part, m.part, null, null, null where m.n is not null) s
$$;

-- The ready jobs in a range. PostgreSQL inlines it, so that the caller's order and limit hold for
-- the index.
create function windlass._ready_in(_range windlass.scan_range) returns setof windlass.ready
language sql stable as $$
  select r.* from windlass.ready r
    where r.queue_kind = (_range).queue_kind
      and r.part between (_range).first_part and (_range).last_part
      and (r.rank, r.at, r.seq) > ((_range).rank, (_range).at, (_range).seq)
$$;

-- Locks the first `_shares[i]` rows of each of `_ranges[i]`. What others hold is passed over.
--
-- With a `_parity`, 0 or 1, it takes from every other thousand of numbers as long as there are any,
-- so that two claims at the same time need not pass over each other's rows.
create function windlass._lock_ready(_ranges windlass.scan_range[], _shares int[], _parity int,
    _is_mixed boolean) returns windlass.ready_rows language plpgsql as $$
declare
  _rows windlass.ready_rows;
  _range windlass.scan_range := _ranges[1];
begin
  loop
    if cardinality(_ranges) = 1 then
      -- The same for one range, as mostly, without what puts several together: a claim of one job
      -- takes 0.42 ms so, and 0.44 otherwise.
      select array_agg(h.seq), array_agg(h.row_id), array_agg(h.part),
          case when min(h.part) = max(h.part) then min(h.part) end, bool_and(h.never_started)
          into _rows.seqs, _rows.ctids, _rows.parts, _rows.part, _rows.never_started
        from (
          select r.seq, r.ctid as row_id, r.part, r.never_started from windlass.ready r
            where r.queue_kind = _range.queue_kind
              and r.part between _range.first_part and _range.last_part
              and (r.rank, r.at, r.seq) > (_range.rank, _range.at, _range.seq)
              and (_parity is null or r.seq >> 10 & 1 = _parity)
            order by r.rank, r.at, r.seq limit _shares[1] for update skip locked) h;
      exit when _rows.seqs is not null or _parity is null;
      _parity := null;
      continue;
    end if;
    select array_agg(h.seq), array_agg(h.row_id), array_agg(h.part),
        case when min(h.part) = max(h.part) then min(h.part) end, bool_and(h.never_started),
        array_agg(t.source) filter (where _is_mixed), array_agg(h.rank) filter (where _is_mixed),
        array_agg(h.at) filter (where _is_mixed)
        into _rows.seqs, _rows.ctids, _rows.parts, _rows.part, _rows.never_started,
          _rows.sources, _rows.ranks, _rows.ats
      from rows from (unnest(_ranges), unnest(_shares))
          as t(source, queue_kind, first_part, last_part, rank, at, seq, share)
        cross join lateral (
          select r.seq, r.ctid as row_id, r.part, r.never_started, r.rank, r.at
            from windlass.ready r
            where r.queue_kind = t.queue_kind and r.part between t.first_part and t.last_part
              and (r.rank, r.at, r.seq) > (t.rank, t.at, t.seq)
              and (_parity is null or r.seq >> 10 & 1 = _parity)
            order by r.rank, r.at, r.seq limit t.share for update skip locked) h
      where t.share > 0;
    exit when _rows.seqs is not null or _parity is null;
    _parity := null;
  end loop;
  return _rows;
end $$;

-- Deletes those of the locked rows whose jobs (`_seqs`, ascending) the claim takes: by partition,
-- because a row is found by its ctid there.
create function windlass._delete_ready(_rows windlass.ready_rows, _seqs bigint[]) returns void
language plpgsql as $$
begin
  if _rows.part = 0 and cardinality(_seqs) = cardinality(_rows.seqs) then
    delete from windlass.ready_0 r where r.ctid = any (_rows.ctids);
  elsif _rows.part = 1 and cardinality(_seqs) = cardinality(_rows.seqs) then
    delete from windlass.ready_1 r where r.ctid = any (_rows.ctids);
  else
    delete from windlass.ready_0 r where r.ctid = any (array(
      select h.row_id from unnest(_rows.seqs, _rows.ctids, _rows.parts) as h(seq, row_id, part),
          (select array(select unnest(_seqs)) as seqs offset 0) f
        where h.part = 0 and f.seqs[width_bucket(h.seq, f.seqs)] = h.seq));
    delete from windlass.ready_1 r where r.ctid = any (array(
      select h.row_id from unnest(_rows.seqs, _rows.ctids, _rows.parts) as h(seq, row_id, part),
          (select array(select unnest(_seqs)) as seqs offset 0) f
        where h.part = 1 and f.seqs[width_bucket(h.seq, f.seqs)] = h.seq));
  end if;
end $$;

-- The same for jobs whose rows nobody has looked for: those of lanes that are not offered any more.
create function windlass._remove_from_ready(_seqs bigint[]) returns void language plpgsql as $$
begin
  -- Both partitions at once, so that nothing is moved from one to the other in between.
  lock table windlass.ready in row exclusive mode;
  delete from windlass.ready_0 x where x.ctid = any (array(
    select r.row_id from windlass.job_state p cross join lateral (
        select r.ctid as row_id from windlass.ready_0 r where r.queue_kind = p.queue_kind
          and r.rank = p.rank and r.at = p.at and r.seq = p.seq offset 0) r
      where p.seq = any (_seqs)));
  delete from windlass.ready_1 x where x.ctid = any (array(
    select r.row_id from windlass.job_state p cross join lateral (
        select r.ctid as row_id from windlass.ready_1 r where r.queue_kind = p.queue_kind
          and r.rank = p.rank and r.at = p.at and r.seq = p.seq offset 0) r
      where p.seq = any (_seqs)));
end $$;

-- Ranges that begin behind a job that was just taken as the last one of its range.
create function windlass._ranges_behind(_ranges windlass.scan_range[], _shares int[], _seq bigint)
returns windlass.scan_range[] language plpgsql as $$
begin
  return (
    select array_agg(case when t.share > 0
        then row(t.source, t.queue_kind, t.first_part, t.last_part, p.rank, p.at, p.seq)
          ::windlass.scan_range
        else row(t.source, t.queue_kind, t.first_part, t.last_part, t.rank, t.at, t.seq)
          ::windlass.scan_range end)
      from rows from (unnest(_ranges), unnest(_shares))
          as t(source, queue_kind, first_part, last_part, rank, at, seq, share),
        (select p.rank, p.at, p.seq from windlass.job_state p where p.seq = _seq) p);
end $$;

-- Goes one step on, while dead rows are pinned: switch the active partition; wait for transactions
-- that may still insert into the inactive one; note how far that is empty; when little is left in
-- it, move that and truncate it, which no old transaction can prevent. Partitions below `_worth`
-- bytes are left alone. Answers whether a partition was switched or truncated.
--
-- It uses a lock time-out of 50 ms: claims would wait behind it.
create function windlass.rotate(_worth bigint default 131072) returns boolean language plpgsql
  set lock_timeout = '50ms' set plan_cache_mode = force_generic_plan set jit = off
  set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off as $$
declare
  _rotation bigint;
  _inactive smallint;
  _bytes bigint;
  _inactive_bytes bigint;
  _marks windlass.low_water;
begin
  if not pg_try_advisory_xact_lock(hashtextextended('windlass.rotate', 0)) then
    return false;
  end if;
  select last_value into _rotation from windlass.active_partition;
  _inactive := 1 - (_rotation & 1);
  _inactive_bytes := windlass._partition_bytes(_inactive);
  _bytes := windlass._partition_bytes(1 - _inactive);
  select * into _marks from windlass.low_water order by n desc limit 1;
  -- Whoever inserts into the inactive partition read the sequence before the switch, while it held
  -- the lock of the table. So it is among those who hold that lock now.
  if _marks.rotation is distinct from _rotation then
    insert into windlass.low_water (rotation, awaited) values (_rotation, windlass._open_writers());
    return false;
  end if;
  if _marks.awaited && windlass._open_writers() then return false; end if;
  if _inactive_bytes = 0 then
    if _bytes > _worth then perform nextval('windlass.active_partition'); end if;
    return _bytes > _worth;
  end if;
  _marks := windlass._raise_low_water(_marks, _inactive);
  -- Much that waits there for long cannot be moved while everybody waits.
  if greatest(_inactive_bytes, _bytes) <= _worth or windlass._more_than_1000_left(_marks, _inactive)
  then
    insert into windlass.low_water (rotation, queue_kinds, ranks, ats, seqs)
      select _rotation, _marks.queue_kinds, _marks.ranks, _marks.ats, _marks.seqs
        where not exists (select from windlass.low_water m
          where m.n = _marks.n and m.queue_kinds = _marks.queue_kinds and m.seqs = _marks.seqs);
    return false;
  end if;
  perform windlass._empty_partition(_inactive);
  insert into windlass.low_water (rotation) values (_rotation);
  return true;
end $$;

-- The marks as far as they can be raised now.
create function windlass._raise_low_water(_marks windlass.low_water, _part int)
returns windlass.low_water language plpgsql as $$
begin
  select array_agg(l.id), array_agg(coalesce(h.rank, 9223372036854775807)),
      array_agg(coalesce(h.at, 9223372036854775807)),
      array_agg(coalesce(h.seq - 1, 9223372036854775807))
      into _marks.queue_kinds, _marks.ranks, _marks.ats, _marks.seqs
    from windlass.queue_kind l
      left join unnest(_marks.queue_kinds, _marks.ranks, _marks.ats, _marks.seqs)
        as m(queue_kind, rank, at, seq) on m.queue_kind = l.id
      left join lateral (
        select r.rank, r.at, r.seq from windlass.ready r
          where r.queue_kind = l.id and r.part = _part
            and (r.rank, r.at, r.seq) > (coalesce(m.rank, -9223372036854775808),
              coalesce(m.at, -9223372036854775808), coalesce(m.seq, -9223372036854775808))
          order by r.rank, r.at, r.seq limit 1) h on true;
  return _marks;
end $$;

create function windlass._more_than_1000_left(_marks windlass.low_water, _part int)
returns boolean language plpgsql as $$
begin
  return (select count(*) > 1000 from (
    select from unnest(_marks.queue_kinds, _marks.ranks, _marks.ats, _marks.seqs)
          as m(queue_kind, rank, at, seq), windlass.ready r
      where r.queue_kind = m.queue_kind and r.part = _part
        and (r.rank, r.at, r.seq) > (m.rank, m.at, m.seq) limit 1001) r);
end $$;

-- Moves what is left in a partition and truncates it, and the marks. No claim reads meanwhile by
-- marks that are gone, and nobody else adds counters up. What is ready is moved whatever the marks
-- say.
create function windlass._empty_partition(_part int) returns void language plpgsql as $$
begin
  perform pg_advisory_xact_lock(hashtextextended('windlass.claim', 0));
  perform pg_advisory_xact_lock(hashtextextended('windlass.counter_delta', 0));
  execute format('lock table windlass.ready_%s, windlass.counter_delta_%s in access exclusive mode',
    _part, _part);
  insert into windlass.ready (queue_kind, rank, at, seq, never_started)
    select queue_kind, rank, at, seq, never_started from windlass.ready where part = _part;
  perform windlass._fold_counters();
  execute format('truncate windlass.ready_%s, windlass.counter_delta_%s, windlass.low_water',
    _part, _part);
end $$;

create function windlass._partition_bytes(_part int) returns bigint language sql as $$
  select pg_relation_size(format('windlass.ready_%s', _part))
    + pg_relation_size(format('windlass.counter_delta_%s', _part))
$$;

-- Transactions that have inserted into `ready`, or are about to.
create function windlass._open_writers() returns text[] language sql as $$
  select coalesce(array_agg(distinct virtualtransaction), '{}') from pg_locks
    where locktype = 'relation' and relation = 'windlass.ready'::regclass
      and mode = 'RowExclusiveLock' and pid is distinct from pg_backend_pid()
      and database = (select oid from pg_database where datname = current_database())
$$;

-- When dead rows are no longer pinned: forgets the marks.
create function windlass.reset_rotation() returns void language plpgsql as $$
declare
  _marks windlass.low_water;
begin
  select * into _marks from windlass.low_water order by n desc limit 1;
  if _marks.queue_kinds is not null then
    insert into windlass.low_water (rotation) values (_marks.rotation);
    delete from windlass.low_water where n <= _marks.n;
  end if;
end $$;
