-- Who made a change, written in the commit that makes it.

-- Writes an audit entry: `_by` is what is known of it before, nothing if nobody is named, and
-- `_jobs` how many jobs were changed. The latest comes first in the order of keys, so times and
-- numbers count down in them. Beyond the bound the oldest make room.
create function windlass._audit(_by text, _jobs bigint, _now bigint) returns void
language plpgsql as $$
declare
  _kind text := {AUDIT_KIND};
  _number bigint;
  _key text;
  _address text;
begin
  if _by is null then return; end if;
  _number := nextval('windlass.job_seq_seq');
  _key := lpad((9223372036854775807 - greatest(_now, 0))::text, 19, '0') || '-'
    || lpad((9223372036854775807 - _number)::text, 19, '0');
  insert into windlass.object (address, kind, name, key, version, incarnation, status, created_at,
      updated_at, state)
    values (windlass._address(jsonb_build_array(_kind, '{AUDIT_NAME}', _key)), _kind,
      '{AUDIT_NAME}', _key, 1, _number, 0, _now, _now, convert_to(_by || _jobs, 'UTF8'));
  perform windlass._emit_once(_now, 'object.created',
    jsonb_build_object('object', jsonb_build_array(_kind, '{AUDIT_NAME}', _key)));
  -- Looked for without locks: those that are passed over would be locked too.
  for _address in
    select o.address from windlass.object o where o.address = any (array(
        select s.address from windlass.object s where s.kind = _kind and s.name = '{AUDIT_NAME}'
          order by s.kind, s.name, s.key
          offset (select t.audit_entries from windlass.settings t) limit {SWEEP_BATCH}))
      for update skip locked
  loop
    perform windlass._purge_object(_address, _now);
  end loop;
end $$;
