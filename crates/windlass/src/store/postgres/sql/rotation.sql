-- Rotation: `ready` and `counter_delta` have two partitions. New rows go into the active one while
-- the other is emptied.
--
-- Answers: while somebody's old transaction is open, vacuum removes no dead row, and every claim
-- walks over all jobs that were taken before.
-- Why not simpler: with 64 slots the flow fell to 0.56 of before while a transaction was pinned.
-- Guarded by: tests/postgres/rotation.rs, tests/postgres/bloat.rs.
--
-- Everything else inserts into the two tables without naming a partition, reads ready jobs from
-- both, and deletes what it took by `_delete_ready`.

-- Rows of `ready` that a claim has locked, in the order of starting within each source. `part` is
-- the partition of all of them, if it is one. The last three are there only where jobs of several
-- sources are put into one order.
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

-- Locks the first `_shares[i]` rows of each of `_queue_kinds[i]`. What others hold is passed over.
--
-- With a `_parity`, 0 or 1, it takes from every other thousand of numbers as long as there are any,
-- so that two claims at the same time need not pass over each other's rows.
create function windlass._lock_ready(_queue_kinds int[], _shares int[], _parity int,
    _is_mixed boolean) returns windlass.ready_rows language plpgsql as $$
declare
  _rows windlass.ready_rows;
begin
  loop
    select array_agg(h.seq), array_agg(h.row_id), array_agg(h.part),
        case when min(h.part) = max(h.part) then min(h.part) end, bool_and(h.never_started),
        array_agg(s.n::int) filter (where _is_mixed), array_agg(h.rank) filter (where _is_mixed),
        array_agg(h.at) filter (where _is_mixed)
        into _rows.seqs, _rows.ctids, _rows.parts, _rows.part, _rows.never_started,
          _rows.sources, _rows.ranks, _rows.ats
      from unnest(_queue_kinds, _shares) with ordinality as s(queue_kind, share, n)
        cross join lateral (
          select r.seq, r.ctid as row_id, r.part, r.never_started, r.rank, r.at
            from windlass.ready r
            where r.queue_kind = s.queue_kind
              and (_parity is null or r.seq >> 10 & 1 = _parity)
            order by r.rank, r.at, r.seq limit s.share for update skip locked) h
      where s.share > 0;
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

-- Goes one step on, while dead rows are pinned: switch the active partition, or, when little is left
-- in the inactive one, move that and truncate it, which no old transaction can prevent. Partitions
-- below `_worth` bytes are left alone. Answers whether a partition was switched or truncated.
--
-- Whoever read the sequence before a switch may insert into the inactive partition after it. That
-- row is found like any other, and moved by a later step.
--
-- It uses a lock time-out of 50 ms: claims would wait behind it.
create function windlass.rotate(_worth bigint default 131072) returns boolean language plpgsql
  set lock_timeout = '50ms' set plan_cache_mode = force_generic_plan set jit = off
  set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off as $$
declare
  _inactive smallint := 1 - (pg_sequence_last_value('windlass.active_partition') & 1);
  _inactive_bytes bigint := windlass._partition_bytes(_inactive);
  _bytes bigint := windlass._partition_bytes(1 - _inactive);
begin
  if greatest(_inactive_bytes, _bytes) <= _worth
    or not pg_try_advisory_xact_lock(hashtextextended('windlass.rotate', 0))
  then
    return false;
  end if;
  if _inactive_bytes = 0 then
    perform nextval('windlass.active_partition');
    return true;
  end if;
  -- Much that waits there for long cannot be moved while everybody waits. What waits is last in the
  -- order, so it is counted from there and not over what is dead.
  if (select count(*) > 1000 from (select from windlass.ready r where r.part = _inactive
      order by r.queue_kind desc, r.rank desc, r.at desc, r.seq desc limit 1001) r)
  then
    return false;
  end if;
  perform windlass._empty_partition(_inactive);
  return true;
end $$;

-- Moves what is left in a partition and truncates it. No claim reads meanwhile, and nobody else
-- adds counters up.
create function windlass._empty_partition(_part int) returns void language plpgsql as $$
begin
  perform pg_advisory_xact_lock(hashtextextended('windlass.claim', 0));
  perform pg_advisory_xact_lock(hashtextextended('windlass.counter_delta', 0));
  execute format('lock table windlass.ready_%s, windlass.counter_delta_%s in access exclusive mode',
    _part, _part);
  insert into windlass.ready (queue_kind, rank, at, seq, never_started)
    select queue_kind, rank, at, seq, never_started from windlass.ready where part = _part;
  perform windlass._fold_counters();
  execute format('truncate windlass.ready_%s, windlass.counter_delta_%s', _part, _part);
end $$;

create function windlass._partition_bytes(_part int) returns bigint language sql as $$
  select pg_relation_size(format('windlass.ready_%s', _part))
    + pg_relation_size(format('windlass.counter_delta_%s', _part))
$$;
