-- What the steps of a claim (claim.sql, batch_lease.sql) hand on to each other.

-- Who claims, and the terms of each kind it runs: one value of each array per kind.
create type windlass.claim_terms as (
  worker text,
  kinds text[],
  leases bigint[],
  max_attempts bigint[],
  concurrency int[],
  rate_jobs int[],
  rate_periods bigint[],
  rate_bursts int[],
  request uuid
);

-- What a claim may take. A source is a pair of queue and kind that is wanted and not paused.
create type windlass.claim_plan as (
  now bigint,
  most int,
  -- One value per source. `terms` are the places of their kinds among the claim's terms.
  queue_kinds int[],
  terms int[],
  queues int[],
  ageings bigint[],
  lanes int[],
  -- The most bytes of a payload.
  payload_bytes bigint,
  -- Whether some kind of the terms has a limit. One value per kind, null without one: the most it
  -- may start now, and how long its rate lets the next one wait.
  has_limits boolean,
  allowed int[],
  waits bigint[],
  -- Where to look, how many to take there, and whether jobs of several ranges are put into one
  -- order.
  ranges windlass.scan_range[],
  shares int[],
  is_mixed boolean
);

-- The jobs that a claim takes, in the order of their numbers.
create type windlass.claim_jobs as (
  seqs bigint[],
  -- The source of each; null if there is but one.
  sources int[],
  -- Only if they are leased job by job: their rows in `job_state`, the place of each in the order
  -- of starting (null if that is the order of numbers), whether none of them has a past, and
  -- whether some were left because they have expired.
  ctids tid[],
  places bigint[],
  never_started boolean,
  has_expired boolean
);

-- A claimed job in a row of its own. NULL means the default: no priority, ready at once, the first
-- attempt, nothing recovered, and an end without side effects.
create type windlass.claimed_job as (
  id uuid,
  seq bigint,
  queue_kind int,
  payload bytea,
  spec jsonb,
  priority int,
  start_kind smallint,
  start_us bigint,
  created_at bigint,
  token bigint,
  attempt int,
  recoveries int,
  generation int,
  first_started bigint,
  step_names text[],
  step_results bytea[],
  has_side_effects boolean,
  last_error text,
  until bigint,
  cancel_requested boolean
);
