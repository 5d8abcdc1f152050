-- A turn of an object: state, alarm, jobs, counters and events in one commit.

create function windlass.turn(_turn jsonb, _state bytea, out turned jsonb, out rings text[])
language plpgsql set lock_timeout = '10s' set plan_cache_mode = force_generic_plan set jit = off
  set enable_seqscan = off set enable_bitmapscan = off as $$
declare
  _now bigint;
begin
  perform windlass._require_read_committed();
  perform windlass._lock_object(_turn);
  _now := windlass.now_us();
  perform windlass._pass_time(_now);
  turned := windlass._turn(_turn, _state, null, _now);
  rings := windlass._apply_effects(_now);
end $$;

-- Locks the object of a turn, and its jobs first: whoever ends an attempt holds the job and then
-- the object, and the other way round the two would wait for each other.
create function windlass._lock_object(_turn jsonb) returns windlass.object language plpgsql as $$
declare
  _address text := windlass._address(_turn->'object');
  _o windlass.object;
begin
  perform from windlass.job_state p where p.seq = any (array(
      select j.seq from windlass.object o
          cross join lateral (select j.seq from windlass.job j where j.id = o.alarm offset 0) j
        where o.address = _address
      union all
      select p.seq from windlass.job_state p
        where _turn->'purge' = '"now"' and p.object = _address))
    order by p.seq for update;
  select * into _o from windlass.object where address = _address for update;
  return _o;
end $$;

-- Makes a turn, with other jobs that are accepted in the same commit; the object's version then,
-- and what became of the turn's own jobs.
create function windlass._turn(_turn jsonb, _state bytea, _others windlass.item[], _now bigint)
returns jsonb language plpgsql as $$
declare
  _parts jsonb := _turn->'object';
  _address text := windlass._address(_parts);
  _o windlass.object := windlass._lock_object(_turn);
  _is_new boolean := _o.address is null;
  _alarm jsonb := _turn->'alarm';
  _items windlass.item[] := coalesce(_others, '{}');
  _before int := coalesce(cardinality(_others), 0);
  _current windlass.job_state;
  _new_alarm uuid;
  _news jsonb;
  _placed jsonb;
begin
  if coalesce(_o.version, 0) <> (_turn->>'version')::bigint then
    perform windlass._refuse(jsonb_build_object('refusal', 'object_changed', 'object', _parts,
      'version', coalesce(_o.version, 0)));
  end if;
  perform windlass._audit(_turn->>'by', jsonb_array_length(coalesce(_turn->'jobs', '[]')), _now);
  if _is_new then _o := windlass._new_object(_parts, _now); end if;
  if _o.alarm is not null then
    _current := windlass._lock_job_by_id(_o.alarm);
    if _current.seq is null or _current.state >= 4 then
      _o.alarm := null;
      _current := null;
    end if;
  end if;
  if _alarm ? 'set' and not windlass._only_moves(_current, _alarm->'set') then
    _new_alarm := (_alarm->'set'->>'id')::uuid;
    _items := _items || windlass._items(jsonb_build_array(
      case when _alarm->'set'->'spec' ? 'object' then _alarm->'set'
        else jsonb_set(_alarm->'set', '{spec}', coalesce(nullif(_alarm->'set'->'spec', 'null'),
            '{}')
          || jsonb_build_object('object', _parts)) end));
  end if;
  _items := _items || windlass._items(coalesce(_turn->'jobs', '[]'));
  perform windlass._refuse(jsonb_build_object('refusal', 'unknown_object',
      'object', i.spec->'object'))
    from unnest(_items[_before + 1 :]) i where i.spec ? 'object' and i.spec->'object' <> _parts;
  _o := windlass._turned(_o, _turn, _state, _now);
  if _is_new then
    -- Someone may make the same object at this moment: then it has changed.
    insert into windlass.object select _o.* on conflict do nothing;
    if not found then
      raise exception 'object % is being made elsewhere', _address using errcode = '40001';
    end if;
    perform windlass._emit_once(_now, 'object.created', jsonb_build_object('object', _parts));
  end if;
  _placed := windlass._accept_batch(_items, _address,
    case when _new_alarm is not null then _before + 1 end, _now);
  _o.alarm := windlass._set_alarm(_o.alarm, _current, _alarm, _new_alarm, _now);
  update windlass.object set version = _o.version, status = _o.status, reason = _o.reason,
      updated_at = _now, last_success_at = _o.last_success_at, runs = _o.runs,
      failures = _o.failures, recoveries = _o.recoveries, alarm = _o.alarm, purge_at = _o.purge_at,
      state = _o.state
    where address = _address;
  for _news in select n from jsonb_array_elements(coalesce(_turn->'news', '[]')) n loop
    perform windlass._emit_once(_now, _news->>'topic',
      jsonb_build_object('object', _parts, 'detail', _news->>'detail'));
  end loop;
  if _turn->'purge' = '"now"' then
    perform windlass._purge_object(_address, _now);
    _o.version := 0;
  end if;
  select coalesce(jsonb_agg(p.placed order by p.n), '[]') into _placed
    from jsonb_array_elements(_placed) with ordinality as p(placed, n)
    where p.n > _before + (_new_alarm is not null)::int;
  return jsonb_build_object('version', _o.version, 'jobs', _placed);
end $$;

create function windlass._new_object(_parts jsonb, _now bigint) returns windlass.object
language plpgsql as $$
declare
  _o windlass.object;
begin
  _o.address := windlass._address(_parts);
  _o.kind := _parts->>0;
  _o.name := _parts->>1;
  _o.key := _parts->>2;
  -- After whoever deletes one of this address has committed, and with it whoever bound a job to
  -- that.
  _o.incarnation := nextval('windlass.job_seq_seq');
  _o.version := 0;
  _o.status := 0;
  _o.created_at := _now;
  _o.runs := 0;
  _o.failures := 0;
  _o.recoveries := 0;
  if not exists (select from windlass.object where kind = _o.kind and name = _o.name) then
    perform windlass._check_bound({BOUND_OBJECT_NAMES}, (select count(*) from (
      select kind from windlass.object union select name from windlass.object
      union select _o.kind union select _o.name) names));
  end if;
  return _o;
end $$;

-- Whether setting this alarm only moves the one there is: it waits for its first start and says the
-- same.
create function windlass._only_moves(_current windlass.job_state, _alarm jsonb) returns boolean
language plpgsql as $$
begin
  return _current.seq is not null and _current.state < 3 and not _current.begun and exists (
    select from windlass.job j join windlass.queue_kind l on l.id = j.queue_kind
        join windlass.queue q on q.id = l.queue join windlass.kind k on k.id = l.kind
      where j.seq = _current.seq and q.name = _alarm->>'queue' and k.name = _alarm->>'kind'
        and j.payload = decode(_alarm->>'payload', 'hex'));
end $$;

-- The object as a turn leaves it, but for its alarm.
create function windlass._turned(_o windlass.object, _turn jsonb, _state bytea, _now bigint)
returns windlass.object language plpgsql as $$
begin
  _o.version := _o.version + 1;
  _o.updated_at := _now;
  if _turn ? 'status' then
    _o.status := (_turn->'status'->>0)::int;
    _o.reason := _turn->'status'->>1;
  end if;
  if _turn->>'ran' = 'well' then
    _o.runs := _o.runs + 1;
    _o.last_success_at := _now;
    _o.recoveries := 0;
  elsif _turn->>'ran' = 'badly' then
    _o.failures := _o.failures + 1;
  end if;
  if _turn->'purge' ? 'after' then
    _o.purge_at := _now + (_turn->'purge'->>'after')::bigint;
  elsif _turn->'purge' = '"never"' then
    _o.purge_at := null;
  end if;
  _o.state := coalesce(_state, _o.state, '');
  return _o;
end $$;

-- Sees to the alarm as a turn says; the alarm then. `_old` is that of before, `_current` its job,
-- and `_new` the one that was accepted with the turn.
create function windlass._set_alarm(_old uuid, _current windlass.job_state, _alarm jsonb, _new uuid,
    _now bigint) returns uuid language plpgsql as $$
begin
  if _alarm ? 'cancel' then
    if _old is not null then perform windlass._cancel_job(_old, _now); end if;
    return null;
  elsif _alarm ? 'move' then
    if _old is not null then
      _current := windlass._lock_job(_current.seq);
      if _current.state < 3 then
        perform windlass._reschedule(_current, windlass._start_time(
          (_alarm->'move'->>0)::int, (_alarm->'move'->>1)::bigint, _now), _now);
      end if;
    end if;
  elsif _new is not null then
    if _old is not null and not _current.begun then perform windlass._cancel_job(_old,
        _now); end if;
    return _new;
  elsif _alarm ? 'set' then
    perform windlass._reschedule(windlass._lock_job(_current.seq), windlass._start_time(
      (_alarm->'set'->>'start_kind')::int, (_alarm->'set'->>'start_us')::bigint, _now), _now);
  end if;
  return _old;
end $$;

-- Takes a job that waits for its first start out of the store, or cancels it if it has started.
create function windlass._cancel_job(_id uuid, _now bigint) returns void language plpgsql as $$
declare
  _p windlass.job_state := windlass._lock_job_by_id(_id);
begin
  if _p.seq is null or _p.state >= 4 then return; end if;
  if _p.state < 3 and not _p.begun then
    perform windlass._remove(_p.seq, 0, _now);
  else
    perform windlass._cancel(_p, 0, _now);
  end if;
end $$;

-- Deletes an object with all that waits of it; what runs is told to stop.
create function windlass._purge_object(_address text, _now bigint) returns void
language plpgsql as $$
declare
  _id uuid;
  _o windlass.object;
begin
  for _id in
    select j.id from windlass.job_state p cross join lateral (
        select j.id from windlass.job j where j.seq = p.seq offset 0) j
      where p.object = _address order by p.seq
  loop
    perform windlass._cancel_job(_id, _now);
  end loop;
  delete from windlass.object where address = _address returning * into _o;
  if found then
    perform windlass._emit_once(_now, 'object.removed',
      jsonb_build_object('object', jsonb_build_array(_o.kind, _o.name, _o.key)));
  end if;
end $$;

-- Deletes objects whose time has come and that nothing is left to do for.
create function windlass._purge_objects(_now bigint) returns bigint language plpgsql as $$
declare
  _address text;
  _purged bigint := 0;
begin
  for _address in
    select o.address from windlass.object o where o.purge_at <= _now
      and not exists (select from windlass.job_state p where p.object = o.address)
      order by o.purge_at, o.kind, o.name, o.key limit {SWEEP_BATCH} for update skip locked
  loop
    perform windlass._purge_object(_address, _now);
    _purged := _purged + 1;
  end loop;
  return _purged;
end $$;
