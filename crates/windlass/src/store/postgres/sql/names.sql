-- Names of queues and kinds, as numbers. A name is kept for ever.

-- The number of a pair of queue and kind, noted if new.
create function windlass.register(_queue text, _kind text) returns int language plpgsql as $$
declare
  _queue_kind int;
begin
  select l.id into _queue_kind from windlass.queue_kind l
    join windlass.queue q on q.id = l.queue join windlass.kind k on k.id = l.kind
    where q.name = _queue and k.name = _kind;
  if found then return _queue_kind; end if;
  perform windlass._register_names(array[_queue], array[_kind]);
  insert into windlass.queue_kind (kind, queue)
    select k.id, q.id from windlass.kind k, windlass.queue q where k.name = _kind
        and q.name = _queue
    on conflict (kind, queue) do nothing returning id into _queue_kind;
  if _queue_kind is null then
    select l.id into strict _queue_kind from windlass.queue_kind l
      join windlass.queue q on q.id = l.queue join windlass.kind k on k.id = l.kind
      where q.name = _queue and k.name = _kind;
  end if;
  return _queue_kind;
end $$;

create function windlass._register_names(_queues text[], _kinds text[]) returns void
language plpgsql as $$
begin
  insert into windlass.queue (name) select n from unnest(_queues) n
    where not exists (select from windlass.queue q where q.name = n) order by n
    on conflict (name) do nothing;
  if found then
    perform windlass._check_bound({BOUND_QUEUES}, (select count(*) from windlass.queue));
  end if;
  insert into windlass.kind (name) select n from unnest(_kinds) n
    where not exists (select from windlass.kind k where k.name = n) order by n
    on conflict (name) do nothing;
  if found then
    perform windlass._check_bound({BOUND_KINDS}, (select count(*) from windlass.kind));
  end if;
end $$;
