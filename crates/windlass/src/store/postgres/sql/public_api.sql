-- For everyone else: enqueue with one SELECT from any language, inside any transaction.

-- Accepts a job and answers with its id: its own, or that of the job that holds its key.
--
-- The payload is JSON, as handlers in Rust expect it. Workers are woken when the transaction
-- commits. What cannot be accepted is an error with SQLSTATE WL001 that says why; nothing is stored
-- then.
create function windlass.enqueue(
    kind text, payload jsonb default '{}',
    queue text default 'default',
    id uuid default null,
    priority int default 0,
    delay interval default null,
    run_at timestamptz default null,
    max_attempts int default null,
    unique_key text default null,
    unique_scope text default 'open',
    unique_for interval default null,
    depends_on uuid[] default null,
    expires_after interval default null,
    tags text[] default null,
    metadata jsonb default null
) returns uuid language plpgsql security definer set search_path = pg_catalog, pg_temp
    set plan_cache_mode = force_generic_plan set jit = off
  set enable_seqscan = off set enable_bitmapscan = off as $$
declare
  _us constant numeric := 1000000;
  _item windlass.item;
  _now bigint;
  _placed jsonb;
  _ring text;
  _limit bigint := (select h.payload_bytes from windlass.settings h);
begin
  perform windlass._check_name('kind', kind);
  perform windlass._check_name('queue', queue);
  if payload is null then
    raise exception 'payload must not be null' using errcode = 'WL001';
  end if;
  _item.payload := convert_to(payload::text, 'UTF8');
  if octet_length(_item.payload) > _limit then
    raise exception 'payload is % bytes; at most % are allowed: %', octet_length(_item.payload),
      _limit, '{PAYLOAD_REMEDY}' using errcode = 'WL001';
  end if;
  if delay is not null and run_at is not null then
    raise exception 'give `delay` or `run_at`, not both' using errcode = 'WL001';
  end if;
  if not isfinite(run_at) or not isfinite(delay) or not isfinite(unique_for)
      or not isfinite(expires_after) then
    raise exception 'a time or a duration is infinite' using errcode = 'WL001';
  end if;
  if delay > interval '100 years' or run_at > now() + interval '100 years'
      or unique_for > interval '100 years'
    or expires_after > interval '100 years' then
    raise exception 'a time is more than 100 years away; check the unit' using errcode = 'WL001';
  end if;
  if delay < interval '0' or expires_after <= interval '0' or unique_for <= interval '0' then
    raise exception 'a duration is negative or nothing' using errcode = 'WL001';
  end if;
  if max_attempts < 1 then
    raise exception 'max_attempts is %; it must be at least 1', max_attempts
        using errcode = 'WL001';
  end if;
  _item.spec := windlass._spec(max_attempts, unique_key, unique_scope, unique_for, depends_on,
    expires_after, tags, metadata);
  _item.id := coalesce(id, gen_random_uuid());
  _item.queue_kind := windlass.register(queue, kind);
  _item.priority := coalesce(priority, 0);
  _item.start_kind := case when delay is not null then 1 when run_at is not null then 2 else 0 end;
  _item.start_us := coalesce((extract(epoch from delay) * _us)::bigint,
      (extract(epoch from run_at) * _us)::bigint);
  _item.max_attempts := max_attempts;
  _now := windlass._begin_in_transaction(array[_item]);
  _placed := windlass._accept_batch(array[_item], null, null, _now, false);
  foreach _ring in array windlass._apply_effects(_now) loop
    perform pg_notify('windlass', _ring);
  end loop;
  return (_placed->0->>'id')::uuid;
end $$;

-- What `enqueue` was told beyond the columns of a job, as `job.spec` has it; null if nothing.
create function windlass._spec(max_attempts int, unique_key text, unique_scope text,
    unique_for interval, depends_on uuid[], expires_after interval, tags text[], metadata jsonb)
returns jsonb language plpgsql as $$
declare
  _us constant numeric := 1000000;
  _spec jsonb := '{}';
begin
  if unique_key is not null then
    if coalesce(unique_scope not in ('open', 'any'), true) then
      raise exception 'unique_scope is `%`; it must be `open` or `any`', left(unique_scope, 40)
          using errcode = 'WL001';
    elsif octet_length(unique_key) not between 1 and {KEY_BYTES} or unique_key ~ '[[:cntrl:]]' then
      raise exception 'unique_key must have 1 to {KEY_BYTES} bytes and no control characters'
          using errcode = 'WL001';
    end if;
    _spec := _spec || jsonb_build_object('unique',
        jsonb_strip_nulls(jsonb_build_object('key', unique_key,
      'scope', unique_scope, 'window', (extract(epoch from unique_for) * _us)::bigint)));
  end if;
  if cardinality(depends_on) > 0 then
    if cardinality(depends_on) > {DEPENDENCIES} then
      raise exception 'a job may depend on at most {DEPENDENCIES} others; chain the jobs'
          using errcode = 'WL001';
    end if;
    if array_position(depends_on, null) is not null then
      raise exception 'depends_on has a null in it; name jobs' using errcode = 'WL001';
    end if;
    _spec := _spec || jsonb_build_object('depends_on',
        (select jsonb_agg(jsonb_build_object('on', d, 'on_failure', 0))
      from unnest(depends_on) d));
  end if;
  if expires_after is not null then
    _spec := _spec || jsonb_build_object('expires_after',
        (extract(epoch from expires_after) * _us)::bigint);
  end if;
  if cardinality(tags) > 0 then
    if cardinality(tags) > {TAGS} then
      raise exception 'a job may have at most {TAGS} tags' using errcode = 'WL001';
    end if;
    perform windlass._check_name('tag', t) from unnest(tags) t;
    _spec := _spec || jsonb_build_object('tags', to_jsonb(tags));
  end if;
  if metadata is not null and metadata <> '{}' then
    if jsonb_typeof(metadata) <> 'object'
      or exists (select from jsonb_each(metadata) m where jsonb_typeof(m.value) <> 'string')
      or (select count(*) > {METADATA_ENTRIES} or sum(octet_length(m.key) + octet_length(m.value))
          > {METADATA_BYTES}
        from jsonb_each_text(metadata) m)
    then
      raise exception 'metadata must be an object of at most % strings and % bytes',
        {METADATA_ENTRIES}, {METADATA_BYTES}
          using errcode = 'WL001';
    end if;
    _spec := _spec || jsonb_build_object('metadata', metadata);
  end if;
  if max_attempts is not null then
    _spec := _spec || jsonb_build_object('max_attempts', max_attempts);
  end if;
  return nullif(_spec, '{}');
end $$;

create function windlass._check_name(_what text, _name text) returns void language plpgsql as $$
begin
  if _name is null or _name !~ '^[A-Za-z0-9_][A-Za-z0-9_.-]{0,{NAME_BYTES_LESS_1}}$'
      or _name like '%..%' then
    raise exception '% is `%`; a name has 1 to % letters, digits, `_`, `-` and single `.`',
      _what, left(_name, 40), {NAME_BYTES} using errcode = 'WL001';
  end if;
end $$;

-- Nobody but the owner does anything, unless the owner says so. Whoever is granted the use of the
-- schema and the execution of `enqueue` can do that, with the owner's rights, and nothing else.
revoke all on schema windlass from public;
revoke all on all tables in schema windlass from public;
revoke all on all functions in schema windlass from public;

-- Whoever is called from outside finds what it means and not what stands in front of it on the
-- caller's path: all names of ours say their schema, and this is for functions and operators of
-- PostgreSQL itself. Not on helpers, which are called with that path already, and which PostgreSQL
-- could no longer inline; nor on the clock, which every call reads. Guarded by
-- tests/postgres/public_api.rs.
do $$
declare
  _entry regprocedure;
begin
  for _entry in
    select p.oid from pg_catalog.pg_proc p where p.pronamespace = 'windlass'::regnamespace
      and (p.proname !~ '^_' or p.proname = '_number_events') and p.proname <> 'now_us'
  loop
    execute format('alter function %s set search_path = pg_catalog, pg_temp', _entry);
  end loop;
end $$;
