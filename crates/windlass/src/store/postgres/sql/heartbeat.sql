-- Workers say that they live.

create function windlass.heartbeat(_worker text, _news int, _info jsonb, _host text, _pid bigint,
    _version text, _error text) returns void language plpgsql as $$
declare
  _now bigint := windlass.now_us();
begin
  if _news = 0 then
    insert into windlass.worker (id, info, host, pid, version, started_at, seen_at)
      values (_worker, _info, _host, _pid, _version, _now, _now)
      on conflict (id) do update set info = excluded.info, host = excluded.host, pid = excluded.pid,
        version = excluded.version, seen_at = excluded.seen_at, stopping = false;
  elsif _news = 1 then
    update windlass.worker set stopping = true, seen_at = _now where id = _worker;
  elsif _news = 2 then
    delete from windlass.worker where id = _worker;
  end if;
  perform windlass._emit_once(_now, (array['worker.started', 'worker.stopping', 'worker.stopped',
      'worker.error'])[_news + 1], jsonb_build_object('worker', _worker, 'error', _error));
end $$;
