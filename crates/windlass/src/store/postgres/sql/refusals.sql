-- Refusing a call as a whole. Sentences and bounds are written once, in Rust; sql.rs puts them
-- here.

-- A refusal in words.
create function windlass._sentence(_detail jsonb) returns text language sql immutable as $$
  select case _detail->>'refusal'
{SENTENCES}
  end
$$;

-- Refuses a call: `_detail` is for programs, and its sentence for people.
create function windlass._refuse(_detail jsonb) returns void language plpgsql as $$
begin
  raise exception using errcode = 'WL001', message = windlass._sentence(_detail),
    detail = _detail::text;
end $$;

-- What a bound allows, in words.
create function windlass._at_most(_most bigint, _remedy text) returns text
language sql immutable as $$
  select format('{AT_MOST}', _most, _remedy)
$$;

-- Refuses more than `_most` of something, with what to do about it.
create function windlass._check_bound(_what text, _most bigint, _remedy text, _got bigint)
returns void language plpgsql as $$
begin
  if _got > _most then
    perform windlass._refuse(jsonb_build_object('refusal', 'out_of_bounds', 'what', _what,
      'got', _got::text, 'allowed', windlass._at_most(_most, _remedy)));
  end if;
end $$;
