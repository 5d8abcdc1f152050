-- Workers say that they live.

-- Takes what a worker says, and answers with the order there is for it, which stands at the address
-- `_order`: it goes with the worker, and is kept for longer while that lives.
create function windlass.heartbeat(_worker text, _news int, _info jsonb, _host text, _pid bigint,
    _version text, _error text, _order text) returns bytea language plpgsql as $$
declare
  _now bigint := windlass.now_us();
begin
  if _news in (0, 4) then
    insert into windlass.worker as w (id, info, host, pid, version, started_at, seen_at)
      values (_worker, _info, _host, _pid, _version, _now, _now)
      on conflict (id) do update set info = excluded.info, host = excluded.host, pid = excluded.pid,
        version = excluded.version, seen_at = excluded.seen_at,
        stopping = w.stopping and _news = 4;
  elsif _news = 1 then
    update windlass.worker set stopping = true, seen_at = _now where id = _worker;
  elsif _news = 2 then
    delete from windlass.worker where id = _worker;
    perform windlass._purge_object(_order, _now);
  end if;
  if _news = 4 then
    update windlass.object o set purge_at = _now + {ORDER_KEPT}, version = o.version + 1,
        updated_at = _now
      where o.address = _order and o.purge_at < _now + {ORDER_KEPT} / 2;
  else
    perform windlass._emit_once(_now, (array['worker.started', 'worker.stopping', 'worker.stopped',
        'worker.error'])[_news + 1], jsonb_build_object('worker', _worker, 'error', _error));
  end if;
  return (select o.state from windlass.object o where o.address = _order);
end $$;
