-- Settings of queues.

-- Changes one setting of a queue and answers with all of them.
create function windlass.configure(_queue text, _what text, _value jsonb,
    _by text default null, out settings jsonb, out rings text[])
language plpgsql set lock_timeout = '10s' set plan_cache_mode = force_generic_plan set jit = off
  set enable_seqscan = off set enable_bitmapscan = off as $$
declare
  _now bigint := windlass.now_us();

  _q windlass.queue;
  _old windlass.queue;
  _topic text := 'queue.configured';
  _lane bigint;
begin
  perform windlass._require_read_committed();
  select * into _q from windlass.queue where name = _queue for update;
  if not found then
    perform windlass._register_names(array[_queue], '{}');
    select * into _q from windlass.queue where name = _queue for update;
  end if;
  _old := _q;
  case _what
    when 'pause' then
      -- A claim that does not know of it yet ends first.
      perform pg_advisory_xact_lock(hashtextextended('windlass.claim', 0));
      _q.paused := true;
      _topic := 'queue.paused';
    when 'resume' then _q.paused := false; _topic := 'queue.resumed';
    when 'max_depth' then _q.max_depth := (_value #>> '{}')::bigint;
    when 'ageing' then _q.ageing := (_value #>> '{}')::bigint;
    when 'lanes' then _q.lanes := (_value #>> '{}')::int;
    when 'pause_lane' then
      _lane := (_value #>> '{}')::bigint;
      if _lane >= coalesce(_q.lanes, 0) then
        perform windlass._refuse(jsonb_build_object('refusal', 'out_of_bounds', 'what', 'lane',
          'got', _lane::text, 'allowed', format('{LANES_NUMBERED}', coalesce(_q.lanes, 0))));
      end if;
      select array_agg(distinct l order by l) into _q.paused_lanes
          from unnest(_q.paused_lanes || _lane::int) l;
    when 'resume_lane' then _q.paused_lanes := array_remove(_q.paused_lanes,
        least((_value #>> '{}')::bigint, 2147483647)::int);
    when 'lane_depth' then _q.lane_depth := (_value #>> '{}')::bigint;
    when 'on_dead' then _q.on_dead := _value #>> '{}';
    when 'on_empty' then _q.on_empty := _value #>> '{}';
  end case;
  if _q is distinct from _old then
    if _q.on_dead is not null or _q.on_empty is not null then
      perform windlass._register_names(array_remove(array[_q.on_dead, _q.on_empty], null),
        array_remove(array[_q.on_dead, _q.on_empty], null));
    end if;
    update windlass.queue set paused = _q.paused, max_depth = _q.max_depth, ageing = _q.ageing,
        lanes = _q.lanes,
      paused_lanes = _q.paused_lanes, lane_depth = _q.lane_depth, on_dead = _q.on_dead,
          on_empty = _q.on_empty
      where id = _q.id;
    if _q.ageing is distinct from _old.ageing or _q.lanes is distinct from _old.lanes then
      perform windlass._rebuild_lanes(_q.id);
    elsif _q.paused_lanes <> _old.paused_lanes then
      insert into windlass.pending_effect (effect, queue, lane) select 'lane_changed', _q.id, l
          from (
        (select unnest(_q.paused_lanes) except select unnest(_old.paused_lanes))
        union (select unnest(_old.paused_lanes) except select unnest(_q.paused_lanes))) as c(l)
        where exists (select from windlass.job_state p where p.lane_queue = _q.id and p.lane = l);
    end if;
    if _old.paused and not _q.paused then
      perform windlass._add_effect('ring_queue', _q.id);
    end if;
    perform windlass._emit_once(_now, _topic, jsonb_build_object('queue', _queue));
    perform windlass._audit(_by, 0, _now);
  end if;
  settings := windlass._settings(_q);
  rings := windlass._apply_effects(_now);
end $$;

create function windlass._settings(_q windlass.queue) returns jsonb language sql as $$
  select to_jsonb(_q) - array['id', 'next_lane', 'dropped']
$$;
