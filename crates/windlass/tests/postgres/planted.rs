//! Planted bugs: rules of the SQL, broken one at a time, each of which the suite must see.
//!
//! A suite that cannot see a bug it was written for is no proof. Each is planted in a schema, which
//! costs no build, and the cases named beside it must fail; that they pass without it is for
//! `conformance.rs` and `growth.rs` to see. `WINDLASS_PLANTED` picks those bugs whose sentence has
//! it.

use crate::common::{Ground, clock_sql, open, raw};
use crate::growth::{Growth, growths};
use crate::locks::circles;
use crate::public_api::{on_the_callers_path, plant_in_front};
use crate::schemas::{Bug, Plot, Trial, check_all, judge};
use crate::transaction::is_refused_with_a_lost_lease;
use windlass::store::postgres::{PostgresAddress, Schema};

const BUGS: &[Bug] = &[
    Bug {
        what: "a change by filter skips a job after every chunk",
        edits: &[(
            "max(m.seq) into ids, looked_to from (",
            "max(m.seq) + 1 into ids, looked_to from (",
        )],
        caught_by: &["a change by filter reaches all that were accepted before and none after"],
    },
    Bug {
        what: "a change by filter goes on with what comes later",
        edits: &[(
            "_until := coalesce(_until, (select max(j.seq) from windlass.job j), 0);",
            "_until := 9223372036854775807;",
        )],
        caught_by: &["a change by filter reaches all that were accepted before and none after"],
    },
    Bug {
        what: "a change by filter is done after its first chunk",
        edits: &[("if cardinality(ids) < _most then", "if true then")],
        caught_by: &["a change by tag reaches every job that has it"],
    },
    Bug {
        what: "a clear skips a job after every chunk",
        edits: &[("looked_to := _seqs[250];", "looked_to := _seqs[250] + 1;")],
        caught_by: &["a queue is cleared of all that waited and of nothing that came later"],
    },
    Bug {
        what: "a clear goes on with what comes later",
        edits: &[(
            "until := coalesce(until, (select max(j.seq) from windlass.job j), 0);",
            "until := 9223372036854775807;",
        )],
        caught_by: &["a queue is cleared of all that waited and of nothing that came later"],
    },
    Bug {
        what: "a clear tells of every chunk",
        edits: &[(
            "if looked_to is null then\n      perform windlass._emit_once",
            "if true then\n      perform windlass._emit_once",
        )],
        caught_by: &["a queue is cleared of all that waited and of nothing that came later"],
    },
    Bug {
        what: "a clear by somebody leaves no audit entry",
        edits: &[("if cleared > 0 then perform windlass._audit(_by, cleared, _now); end if;", "")],
        caught_by: &["every chunk of a change by filter and of a clear has its entry"],
    },
    Bug {
        what: "a refused change is audited as done",
        edits: &[("_changed bigint := 0;", "_changed bigint := 1;")],
        caught_by: &["a refused change is not kept as done"],
    },
    Bug {
        what: "an order to a living worker runs out",
        edits: &[(
            "where o.address = _order and o.purge_at < _now",
            "where o.address is null and o.purge_at < _now",
        )],
        caught_by: &["an order is kept as long as its worker lives and a day longer"],
    },
    Bug {
        what: "the latest audit entries make room for the oldest",
        edits: &[(
            "order by s.kind, s.name, s.key\n          offset",
            "order by s.kind, s.name, s.key desc\n          offset",
        )],
        caught_by: &["the audit trail is bounded and the oldest goes"],
    },
    Bug {
        what: "a dead job is removed with however many wait for it",
        edits: &[(
            "(select count(*) > 1000 from (select from",
            "(select count(*) > 2000 from (select from",
        )],
        caught_by: &["a dead job for which thousands wait is not removed"],
    },
    Bug {
        what: "a large cascade ends with its first part",
        edits: &[("values (_root, _next)\n", "select _root, _next where false\n")],
        caught_by: &["the end of a job with thousands of dependents reaches each of them once"],
    },
    Bug {
        what: "who follows in a large cascade takes nobody along",
        edits: &[("where e.on_id = j.id and not e.met and e.on_failure <> 2)", "where false)")],
        caught_by: &["a death spreads to thousands and to theirs each once"],
    },
    Bug {
        what: "jobs that are cancelled together stay claimable",
        edits: &[("perform windlass._remove_from_ready(_seqs);\n  update", "update")],
        caught_by: &["a cancelled job does not start"],
    },
    Bug {
        what: "a job for which others wait is cancelled without them",
        edits: &[(
            "(select from windlass.dependency e where e.on_id = j.id offset 0) e)",
            "(select where false) e)",
        )],
        caught_by: &["cancelling a dependency cancels those that follow"],
    },
    Bug {
        what: "claims do not see that dependents are still to be told",
        edits: &[("exists (select from windlass.owing)\n    into ready", "false\n    into ready")],
        caught_by: &["while a cascade goes on claims come back at once and counters are true"],
    },
    Bug {
        what: "a corrected rate waits for what a slower one has left behind",
        edits: &[(
            "case when _full_at > _now + _tolerance + _spacing then",
            "case when false then",
        )],
        caught_by: &["a claim may be made on any terms"],
    },
    Bug {
        what: "a claim leaves the count of its priority as it was",
        edits: &[("if _has_details then", "if false then")],
        caught_by: &["waiting jobs are counted per priority"],
    },
    Bug {
        what: "a recovery forgets the count of its priority",
        edits: &[("from lost where priority <> 0 group", "from lost where false group")],
        caught_by: &["waiting jobs are counted per priority"],
    },
    Bug {
        what: "adding up loses priorities",
        edits: &[("having priority is null or sum(ready) <> 0;", "having priority is null;")],
        caught_by: &["waiting jobs are counted per priority"],
    },
    Bug {
        what: "a recovery is not stamped",
        edits: &[(
            "update windlass.attempt_log set recovered_at = _now where",
            "perform from windlass.attempt_log where",
        )],
        caught_by: &["a recovery is told and recorded with its reason and time"],
    },
    Bug {
        what: "every crash is recorded as a lease that ended",
        edits: &[("'ended', _now, 'end', 5 + _reason,", "'ended', _now, 'end', 5,")],
        caught_by: &["a recovery is told and recorded with its reason and time"],
    },
    Bug {
        what: "jobs that follow one into death still count among those of their priority",
        edits: &[(
            "select queue, priority, -count(*) from ended where priority <> 0 group by queue, \
             priority",
            "select queue, priority, -count(*) from ended where false group by queue, priority",
        )],
        caught_by: &["waiting jobs are counted per priority"],
    },
    Bug {
        what: "jobs that nothing but time decides about are not counted per priority",
        edits: &[(
            "from unnest(_queues, _priorities) as i(queue, priority) where i.priority <> 0",
            "from unnest(_queues, _priorities) as i(queue, priority) where false",
        )],
        caught_by: &["waiting jobs are counted per priority"],
    },
    Bug {
        what: "jobs with a lane or a dependency are not counted per priority",
        edits: &[("count(*) from item where priority <> 0", "count(*) from item where false")],
        caught_by: &["waiting jobs are counted per priority"],
    },
    Bug {
        what: "a job that goes back or ends is not counted per priority",
        edits: &[(
            "from windlass.job j where j.seq = _seq and j.priority <> 0;",
            "from windlass.job j where false;",
        )],
        caught_by: &["waiting jobs are counted per priority"],
    },
    Bug {
        what: "the priorities that are told are the lowest",
        edits: &[("order by priority desc limit 100", "order by priority limit 100")],
        caught_by: &["waiting jobs are counted per priority"],
    },
    Bug {
        what: "the last recovery is the first",
        edits: &[(
            "error = excluded.error, recovered_at = excluded.recovered_at",
            "error = excluded.error",
        )],
        caught_by: &["a recovery is told and recorded with its reason and time"],
    },
    Bug {
        what: "every recovery is told as one of a lease that ended",
        edits: &[(
            "jsonb_build_object('reason', _reason, 'recovery', j.recovery)",
            "jsonb_build_object('reason', 0, 'recovery', j.recovery)",
        )],
        caught_by: &["a recovery is told and recorded with its reason and time"],
    },
    Bug {
        what: "whatever was lost is told to have been noticed by its lease",
        edits: &[(
            "_stale,\n      jsonb_build_object('reason', _reason));",
            "_stale,\n      jsonb_build_object('reason', 0));",
        )],
        caught_by: &["a recovery is told and recorded with its reason and time"],
    },
    Bug {
        what: "the recovery of a job with a lane is told as one of a lease that ended",
        edits: &[(
            "jsonb_build_object('reason', _reason, 'recovery', _q.recoveries)",
            "jsonb_build_object('reason', 0, 'recovery', _q.recoveries)",
        )],
        caught_by: &["a recovery is told and recorded with its reason and time"],
    },
    Bug {
        what: "a job that cannot be recovered any more is recorded as one that could",
        edits: &[(
            "perform windlass._end(_p, _now, 5, 3, 9, null,",
            "perform windlass._end(_p, _now, 5, 3, 5 + _reason, null,",
        )],
        caught_by: &["a recovery is told and recorded with its reason and time"],
    },
    Bug {
        what: "a completion is told with another time than its job has",
        edits: &[(
            "values (_now, done, 'job.completed', _jobs",
            "values (_now + 1, done, 'job.completed', _jobs",
        )],
        caught_by: &["the event of a completed job carries its result up to a bound"],
    },
    Bug {
        what: "of a job that is settled alone the output is lost",
        edits: &[("case when _state = 4 then _output end", "null")],
        caught_by: &["the event of a completed job carries its result up to a bound"],
    },
    Bug {
        what: "lines that leave a log are not counted",
        edits: &[(
            "+ greatest(jsonb_array_length(coalesce(d.log, '[]')) \
             + jsonb_array_length(_log_lines) - 100, 0)",
            "",
        )],
        caught_by: &["lines that no log keeps are counted"],
    },
    Bug {
        what: "lines that a worker has dropped are not counted",
        edits: &[("coalesce((_report->>'lines_dropped')::bigint, 0)", "0")],
        caught_by: &["lines that no log keeps are counted"],
    },
    Bug {
        what: "a graph is deleted although one of it is open",
        edits: &[("if states[_one] < 4 then", "if false then")],
        caught_by: &["a finished graph is deleted in one call or not at all"],
    },
    Bug {
        what: "of the open jobs of a graph the one that is found first is named",
        edits: &[("least(open[_i], _one)", "coalesce(open[_i], _one)")],
        caught_by: &["a finished graph is deleted in one call or not at all"],
    },
    Bug {
        what: "a graph ends with those that depend on its first job directly",
        edits: &[(
            "_edge := _first[_one]; while _edge > 0 loop _other := _others[_edge]; if _seen",
            "_edge := case when _at = _kept + 1 then _first[_one] else 0 end; \
             while _edge > 0 loop _other := _others[_edge]; if _seen",
        )],
        caught_by: &["a finished graph is deleted in one call or not at all"],
    },
    Bug {
        what: "a job of two graphs is counted in both",
        edits: &[("_seen[_list[_k]] := _gone;", "null;")],
        caught_by: &["graphs of one call are deleted one by one"],
    },
    Bug {
        what: "what is deleted with its graph still counts as a dead letter",
        edits: &[("-count(*) filter (where g.state = 5)", "0")],
        caught_by: &["what was deleted with its graph is no dead letter"],
    },
    Bug {
        what: "what is deleted with its graph stays among the dead letters",
        edits: &[("offset 0) d where g.state = 5))", "offset 0) d where false))")],
        caught_by: &["what was deleted with its graph is no dead letter"],
    },
    Bug {
        what: "a completion is taken from whoever sends it",
        edits: &[("(p.state = 3 and p.token = r.token + p.seq\n", "(p.state = 3\n")],
        caught_by: &["a stale settlement is refused and changes nothing"],
    },
    Bug {
        what: "a completion is taken for a job that no lease covers",
        edits: &[("p.without_effects) and r.since is not null)", "p.without_effects))")],
        caught_by: &["a token holds for one job alone"],
    },
    Bug {
        what: "any token of a lease holds for all of its jobs",
        edits: &[("and s.token + 1 - s.lowest = r.token - r.low\n", "\n")],
        caught_by: &["a token holds for one job alone"],
    },
    Bug {
        what: "a lease covers the jobs between its own",
        edits: &[(
            "and s.highs[width_bucket(r.low, s.lows)] >= r.high offset 0) r\n",
            "offset 0) r\n",
        )],
        caught_by: &["a token holds for one job alone"],
    },
    Bug {
        what: "a job that a lease covers seems to wait",
        edits: &[(
            "case when s.token is null then p.state else 3::smallint end as state",
            "p.state",
        )],
        caught_by: &["jobs that were claimed together are seen to run"],
    },
    Bug {
        what: "who holds a job does not ask whether a lease covers it",
        edits: &[(
            "for update; if not found then select windlass._lease_of(s.token)",
            "for update; if false then select windlass._lease_of(s.token)",
        )],
        caught_by: &["one of many that were claimed together is told to stop"],
    },
    Bug {
        what: "a renewal does not see whom a lease covers",
        edits: &[(
            "where j.id = i.job offset 0) j;\n  -- A job",
            "where false offset 0) j;\n  -- A job",
        )],
        caught_by: &["one of many that were claimed together goes on for longer"],
    },
    Bug {
        what: "a rescue does not see whom a lease covers",
        edits: &[("where s.token = any (_due);\n  _seqs", "where false;\n  _seqs")],
        caught_by: &["a lease that ended is rescued once and counted"],
    },
    Bug {
        what: "a lease is let go of while it covers somebody",
        edits: &[("or (_lease).worker is not null and", "or false and")],
        caught_by: &[
            "one of many that were claimed together goes on for longer",
            "jobs that were claimed together are seen to run",
        ],
    },
    Bug {
        what: "a new order of a queue brings back what runs",
        edits: &[("as r(low, high) where s.worker is not null;", "as r(low, high) where false;")],
        caught_by: &["a new order of a queue leaves alone what runs"],
    },
    Bug {
        what: "a job that has run before counts as one that never started",
        edits: &[(
            "select _state = 2 and not _begun and _generation = 0 and _without_effects",
            "select _state = 2 and _without_effects",
        )],
        caught_by: &["a job that kills its workers dies after exactly its attempts"],
    },
    Bug {
        what: "a lease covers jobs with other terms",
        edits: &[(
            "if exists (select from unnest(_jobs.sources) s, (select _plan.terms[",
            "if false and exists (select from unnest(_jobs.sources) s, (select _plan.terms[",
        )],
        caught_by: &["kinds that are claimed together keep their own terms"],
    },
    Bug {
        what: "a lease covers jobs in whatever order they start",
        edits: &[("if _jobs.seqs <> _rows.seqs then return null; end if;", "")],
        caught_by: &["jobs start by priority then due time then acceptance"],
    },
    Bug {
        what: "any other outcome is taken from whoever sends it",
        edits: &[("_p.state <> 3 or _p.token <> _item.token then", "_p.state <> 3 then")],
        caught_by: &["a stale settlement is refused and changes nothing"],
    },
    Bug {
        what: "a lease is renewed by whoever asks",
        edits: &[(
            "where p.state = 3 and p.token = i.token and i.report is null",
            "where p.state = 3 and i.report is null",
        )],
        caught_by: &["a stale renewal is refused and records nothing"],
    },
    Bug {
        what: "a report is taken from whoever sends it",
        edits: &[(
            "continue when _p.seq is null or _p.state <> 3 or _p.token <> _item.token;",
            "continue when _p.seq is null or _p.state <> 3;",
        )],
        caught_by: &[
            "a stale renewal is refused and records nothing",
            "a stale step is refused and not kept",
        ],
    },
    Bug {
        what: "a claim does not look whether a queue is paused",
        edits: &[("where not q.paused and (_queues", "where (_queues")],
        caught_by: &["nothing of a paused queue starts and due times are kept"],
    },
    Bug {
        what: "a rescue does not ask whether the lease has ended",
        edits: &[
            ("where (_all or s.until <= _now) and (not s.reported", "where (not s.reported"),
            (
                "and (_all or p.at <= _now) and (not p.reported or not _observe) offset 0",
                "offset 0",
            ),
            ("and p.state = 3 and (_all or p.at <= _now) and not p", "and p.state = 3 and not p"),
        ],
        caught_by: &["a lease that ended is rescued once and counted"],
    },
    Bug {
        what: "a rescue does not count the recovery",
        edits: &[(
            "at = _now + _delay, recoveries = p.recoveries + 1, updated_at",
            "at = _now + _delay, updated_at",
        )],
        caught_by: &["a lease that ended is rescued once and counted"],
    },
    Bug {
        what: "a rescue does not count the recovery of a job with a lane",
        edits: &[("_q.recoveries := _p.recoveries + 1;", "")],
        caught_by: &["a recovered job holds its key"],
    },
    Bug {
        what: "recoveries have no end",
        edits: &[("and p.recoveries < _max_recoveries", "")],
        caught_by: &["recovery is capped even with attempts left"],
    },
    Bug {
        what: "a job that kills its workers has one attempt too many",
        edits: &[("and p.attempts < p.max_attempts", "and p.attempts <= p.max_attempts")],
        caught_by: &["a job that kills its workers dies after exactly its attempts"],
    },
    Bug {
        what: "the job of a lost worker runs again although it was cancelled",
        edits: &[(
            "(_all or p.at <= _now) and not p.cancel_requested\n",
            "(_all or p.at <= _now)\n",
        )],
        caught_by: &["a request to cancel wins over another run"],
    },
    Bug {
        what: "a job that was given back still counts as running",
        edits: &[("queue, count(*), -count(*), count(*),", "queue, count(*), 0, count(*),")],
        caught_by: &["concurrency limits count leases and never leak"],
    },
    Bug {
        what: "the depth limit does not count the batch itself",
        edits: &[("if _depth + _q.added > _q.max_depth", "if _depth >= _q.max_depth")],
        caught_by: &["the depth limit is exact and counts the whole batch"],
    },
    Bug {
        what: "the depth limit of a lane does not count the batch itself",
        edits: &[("where x.depth + x.added > x.lane_depth", "where x.depth >= x.lane_depth")],
        caught_by: &["a full lane refuses and leaves nothing of a batch"],
    },
    Bug {
        what: "an id that comes again with another payload passes for a repeated call",
        edits: &[(
            "j.queue_kind = i.queue_kind and j.payload = i.payload as same",
            "j.queue_kind = i.queue_kind as same",
        )],
        caught_by: &["a reused id with another payload is refused"],
    },
    Bug {
        what: "only success gives a unique key back",
        edits: &[("= 'open' or (_state = 6 and _reason = 5));", "= 'open' and _state = 4);")],
        caught_by: &["a unique key is held while the job is open and released at its end"],
    },
    Bug {
        what: "the end of a job gives back a key that is to outlast it",
        edits: &[(
            "\n        and (j.spec->'unique'->>'scope' = 'open' or (_state = 6 and _reason = 5));",
            ";",
        )],
        caught_by: &["a key of scope any is held after the end until its window closes"],
    },
    Bug {
        what: "a key is held for a moment longer than its window",
        edits: &[(
            "where k.until <= _now;\n    select array_agg(case",
            "where k.until < _now;\n    select array_agg(case",
        )],
        caught_by: &[
            "a key of scope any is held after the end until its window closes",
            "a key whose window closed may be taken while the job is open",
        ],
    },
    Bug {
        what: "a job is released when all but two of its dependencies are met",
        edits: &[
            (
                "unmet = case when p.unmet > m.times then p.unmet - m.times end,",
                "unmet = case when p.unmet > m.times + 1 then p.unmet - m.times end,",
            ),
            (
                "state = case when p.unmet > m.times then 0 when",
                "state = case when p.unmet > m.times + 1 then 0 when",
            ),
        ],
        caught_by: &["a job waits for its dependencies and is released once"],
    },
    Bug {
        what: "a plain job that completes releases nobody",
        edits: &[("perform windlass._cascade_success(_parents, _now);", "null;")],
        caught_by: &["a diamond completes in order"],
    },
    Bug {
        what: "a job that waited itself releases nobody when it completes",
        edits: &[(
            "if _state >= 4 then\n    perform windlass._cascade(_p.seq, _error, _now);",
            "if _state > 4 then\n    perform windlass._cascade(_p.seq, _error, _now);",
        )],
        caught_by: &["a diamond completes in order"],
    },
    Bug {
        what: "a job that is released forgets that it was to start later",
        edits: &[(
            "then 0 when p.at > _now then 1 else 2 end,\n        at = case when p.unmet > m.times",
            "then 0 else 2 end,\n        at = case when p.unmet > m.times",
        )],
        caught_by: &["a delayed job that depends on another waits for both"],
    },
    Bug {
        what: "a failure reaches dependents and not theirs",
        edits: &[("        _top := _top + 1;\n        _stack[_top] := _other;\n", "")],
        caught_by: &["a failed dependency is cascaded ignored or waited for by edge"],
    },
    Bug {
        what: "a lane offers a job while another one runs",
        edits: &[(
            "i.lane = t.lane and not c.runs and not q.paused",
            "i.lane = t.lane and not q.paused",
        )],
        caught_by: &[
            "jobs of one key run one at a time and in order",
            "jobs of one object do not overlap",
        ],
    },
    Bug {
        what: "a paused lane goes on",
        edits: &[("and not c.runs and not q.paused", "and not c.runs")],
        caught_by: &["a paused lane starts nothing and the others go on"],
    },
    Bug {
        what: "a job that waits to be tried again lets others of its key pass",
        edits: &[("and h.partition = p.partition))\n", "and false))\n")],
        caught_by: &[
            "a job to be tried again holds its key and no other",
            "a recovered job holds its key",
        ],
    },
    Bug {
        what: "the least urgent job comes first",
        edits: &[("is null then -_priority::bigint", "is null then _priority::bigint")],
        caught_by: &["jobs start by priority then due time then acceptance"],
    },
    Bug {
        what: "of several queues the least urgent job comes first",
        edits: &[(
            "order by a.priority desc, a.at, a.seq limit _plan.most",
            "order by a.priority, a.at, a.seq limit _plan.most",
        )],
        caught_by: &["a claim of several queues and kinds takes the most urgent of all"],
    },
    Bug {
        what: "waiting makes nothing more urgent",
        edits: &[("select case when _ageing is null then -_p", "select case when true then -_p")],
        caught_by: &["ageing lets a low job overtake after its stated wait"],
    },
    Bug {
        what: "a retry forgets when it is to run",
        edits: &[("_q.at := _now + _arg;", "_q.at := _now;")],
        caught_by: &["each verdict leads to its state"],
    },
    Bug {
        what: "a job that was given back by its worker counts as tried",
        edits: &[("if _verdict in (2, 3) then _q.attempts", "if _verdict = 2 then _q.attempts")],
        caught_by: &["snooze and release are not counted as starts"],
    },
    Bug {
        what: "a job that was cancelled while it ran is released and runs again",
        edits: &[("if _verdict in (1, 2, 3) and _p", "if _verdict in (1, 2) and _p")],
        caught_by: &["a request to cancel wins over another run"],
    },
    Bug {
        what: "an attempt that fails adds its next jobs",
        edits: &[(
            "case when _verdict = 0 then coalesce(_extra->'next', '[]') else '[]' end",
            "coalesce(_extra->'next', '[]')",
        )],
        caught_by: &["next jobs of a failure are not accepted"],
    },
    Bug {
        what: "a timer fires a second early",
        edits: &[
            (
                "from windlass.scheduled where at <= _now)",
                "from windlass.scheduled where at <= _now + 1000000)",
            ),
            ("where d.at <= _now order by", "where d.at <= _now + 1000000 order by"),
            ("scheduled d where d.at <= _now) or", "scheduled d where d.at <= _now + 1000000) or"),
        ],
        caught_by: &["a delayed job is not ready before its time"],
    },
    Bug {
        what: "a job expires although it has started",
        edits: &[
            (
                "where expires_at <= _now and state < 3 and attempts = 0 and",
                "where expires_at <= _now and state < 3 and",
            ),
            (
                "where state < 3 and attempts = 0 and generation = 0 and expires_at <= _now",
                "where state < 3 and expires_at <= _now",
            ),
            (
                "p.state < 3 and p.attempts = 0 and p.generation = 0 and p.expires_at <= _now",
                "p.state < 3 and p.expires_at <= _now",
            ),
        ],
        caught_by: &["a job that has not started when it expires is cancelled"],
    },
    Bug {
        what: "history leaves although an open job depends on it",
        edits: &[(
            "exists (select from windlass.dependency d \
             where d.on_id = (select j.id from windlass.job j where j.seq = s))",
            "false",
        )],
        caught_by: &["what an open job depends on is kept for its output"],
    },
    Bug {
        what: "the newest history leaves first",
        edits: &[("order by p.at, p.id limit _most", "order by p.at desc, p.id limit _most")],
        caught_by: &["history is bounded by age and number"],
    },
    Bug {
        what: "what is kept is in the way of what may leave",
        edits: &[(
            "_some[1 : _most - cardinality(_seqs)];\n  end loop;",
            "_some[1 : _most - cardinality(_seqs)];\n    exit;\n  end loop;",
        )],
        caught_by: &["what an open job depends on is kept for its output"],
    },
    Bug {
        what: "the newest dead letter leaves first",
        edits: &[(
            "where queue = _queue and (at, seq) > (_at, _seq) order by at, seq limit 1;",
            "where queue = _queue and (at, seq) > (_at, _seq) order by at desc, seq limit 1;",
        )],
        caught_by: &["dead letters are bounded and the oldest goes"],
    },
    Bug {
        what: "a replayed job is still among the dead letters",
        edits: &[(
            "delete from windlass.dead where queue = _queue.id and at = _p.at and seq = _p.seq;",
            "null;",
        )],
        caught_by: &["what was replayed is no dead letter and stays when those leave"],
    },
    Bug {
        what: "a job that was replaced by an edited one is still among the dead letters",
        edits: &[(
            "delete from windlass.dead d using windlass.queue_kind l\n    \
             where l.id = _p.queue_kind and d.queue = l.queue and d.at = _p.at and d.seq = _p.seq;",
            "",
        )],
        caught_by: &["what was replayed is no dead letter and stays when those leave"],
    },
    Bug {
        what: "cancelling a running job ends it at once",
        edits: &[("if _p.state = 3 then\n    if _p.cancel", "if false then\n    if _p.cancel")],
        caught_by: &["cancelling says what happened in every state"],
    },
    Bug {
        what: "a limit of concurrency does not count what runs",
        edits: &[("_term.concurrency - _running), 0)", "_term.concurrency), 0)")],
        caught_by: &["concurrency limits count leases and never leak"],
    },
    Bug {
        what: "a rate forgets its burst",
        edits: &[("(greatest(_burst, 1) - 1)", "0")],
        caught_by: &["a rate limit holds over any claims"],
    },
    Bug {
        what: "a rate does not remember what it has let through",
        edits: &[("if _started > 0 then", "if false then")],
        caught_by: &["a rate limit holds over any claims"],
    },
    Bug {
        what: "a turn is made for any version that has been",
        edits: &[("if coalesce(_o.version, 0) <> (_turn", "if coalesce(_o.version, 0) < (_turn")],
        caught_by: &["a turn for another version is refused and changes nothing"],
    },
    Bug {
        what: "an object does not hear that its alarm has died",
        edits: &[("if _how is not null and _o.status = 0 then", "if false then")],
        caught_by: &["an alarm that died or was cancelled fails its object"],
    },
    Bug {
        what: "a purge forgets the alarm",
        edits: &[("where p.object = _address order by p.seq", "where false")],
        caught_by: &["a purge takes the alarm and everything that waits"],
    },
    Bug {
        what: "a job that goes back loses its steps",
        edits: &[("state = _new.state, steps = _new.steps,", "state = _new.state, steps = 0,")],
        caught_by: &["a finished step is handed to every later attempt"],
    },
    Bug {
        what: "what happened first gets the last number",
        edits: &[("sum(n) over (order by id)", "sum(n) over (order by id desc)")],
        caught_by: &["events are numbered without gaps and ordered per job"],
    },
    Bug {
        what: "whoever keeps house is told to come back at once when nothing will be due",
        edits: &[("when next_in is not null then 0 end", "else 0 end")],
        caught_by: &["whoever keeps house is told how long to rest"],
    },
    Bug {
        what: "a second start passes for the first",
        edits: &[("first_started = coalesce(p.first_started, _since)", "first_started = _since")],
        caught_by: &["a lease that ended is rescued once and counted"],
    },
    Bug {
        what: "a second start is told as the first",
        edits: &[("array_agg(h.first_started)", "array_agg(null::bigint)")],
        caught_by: &["a lease that ended is rescued once and counted"],
    },
    Bug {
        what: "success does not forgive recoveries",
        edits: &[("updated_at = _now, recoveries = 0, attempt", "updated_at = _now, attempt")],
        caught_by: &["a lease that ended is rescued once and counted"],
    },
    Bug {
        what: "a clear asks what runs to stop",
        edits: &[
            (
                "and p.queue_kind = any (_queue_kinds) and p.state < 3",
                "and p.queue_kind = any (_queue_kinds) and p.state < 4",
            ),
            (
                "continue when _p.seq is null or _p.state >= 3;",
                "continue when _p.seq is null or _p.state > 3;",
            ),
        ],
        caught_by: &["clearing leaves running work counters and other queues alone"],
    },
    Bug {
        what: "a job waits for ever for one that has failed, although it ignores that",
        edits: &[(
            "select x.state = 4 or (x.state > 4 and d.on_failure = 1) as met",
            "select x.state = 4 as met",
        )],
        caught_by: &["a failed dependency is cascaded ignored or waited for by edge"],
    },
    Bug {
        what: "a job that was removed holds its key",
        edits: &[("delete from windlass.unique_key where seq = _seq;", "")],
        caught_by: &["a removed job holds no key"],
    },
    Bug {
        what: "a blocked job that is moved starts when it would have",
        edits: &[("_q.at := _at;\n  else", "null;\n  else")],
        caught_by: &["running now and moving change when a job starts"],
    },
    Bug {
        what: "a released job comes last",
        edits: &[("_q.at := least(_p.since, _now);", "_q.at := _now;")],
        caught_by: &["a released job comes before what was accepted after its start"],
    },
    Bug {
        what: "a job's own number of attempts is not asked for",
        edits: &[
            (
                "max_attempts = coalesce(p.own_max_attempts, s.max_attempts),",
                "max_attempts = s.max_attempts,",
            ),
            (
                "max_attempts = coalesce(p.own_max_attempts, _terms.max_attempts[",
                "max_attempts = coalesce(_terms.max_attempts[",
            ),
        ],
        caught_by: &["a job is added when one dies however it dies"],
    },
    Bug {
        what: "a job's own number of attempts is forgotten",
        edits: &[("then 1 else 2 end, true, i.max_attempts", "then 1 else 2 end, true, null")],
        caught_by: &["a job is added when one dies however it dies"],
    },
    Bug {
        what: "jobs start in the order of their numbers",
        edits: &[
            (
                "coalesce(_jobs.places[r.first + p.seq - r.low], r.first + p.seq - r.low)",
                "r.first + p.seq - r.low",
            ),
            ("_base + coalesce(_jobs.places[k], k)", "_base + k"),
        ],
        caught_by: &["jobs start by priority then due time then acceptance"],
    },
    Bug {
        what: "an output is that of another job",
        edits: &[(
            "substring(_outputs from _starts[r.n + p.seq] for",
            "substring(_outputs from 1 for",
        )],
        caught_by: &["each job of a batch has its own output and its own end"],
    },
    Bug {
        what: "a job ages from when someone looks",
        edits: &[(
            "windlass._rank(q.ageing, j.priority, d.at)",
            "windlass._rank(q.ageing, j.priority, _now)",
        )],
        caught_by: &["ageing lets a low job overtake after its stated wait"],
    },
    Bug {
        what: "nobody is told that a queue is empty",
        edits: &[("where q.id = _queue and case", "where false and case")],
        caught_by: &["a queue tells that it is empty whenever its last job has ended"],
    },
    Bug {
        what: "of many completions in one call only a hundred release their dependents",
        edits: &[(
            "where e.on_id = j.id and not e.met) order by s.n);",
            "where e.on_id = j.id and not e.met) order by s.n limit 100);",
        )],
        caught_by: &["many completions in one call release all their dependents"],
    },
    Bug {
        what: "history leaves although it holds a key",
        edits: &[(
            "\n          or exists (select from windlass.unique_key k \
              where k.seq = s and k.until > _now) as held",
            " as held",
        )],
        caught_by: &["a key outlives history for its window and no longer"],
    },
    Bug {
        what: "the key of a job that has left is held for ever",
        edits: &[(
            "delete from windlass.unique_key k using unnest(_lows, _highs) as r(low, high) \
             where k.seq between r.low and r.high;",
            "delete from windlass.unique_key where false;",
        )],
        caught_by: &["a key outlives history for its window and no longer"],
    },
    Bug {
        what: "an item of a batch is not compared with the one that stands for it",
        edits: &[(
            "case when k.seq = i.first then i.first_payload else j.payload end then 2",
            "j.payload then 2",
        )],
        caught_by: &["of a batch with one key the first stands for all"],
    },
    Bug {
        what: "an item waits for one that another stands for",
        edits: &[("if _aliases = '{}' and _said = card", "if _said = card")],
        caught_by: &["of a batch with one key the first stands for all"],
    },
    Bug {
        what: "nobody looks for circles",
        edits: &[("having bool_or(d.m > d.n);", "having false;")],
        caught_by: &["a circle is found however it closes"],
    },
    Bug {
        what: "jobs that are spread in one batch take one turn together",
        edits: &[("'partition', i.first + i.turn - 1)", "'partition', i.first)")],
        caught_by: &["spread jobs of one batch take their turns"],
    },
    Bug {
        what: "the turns of a batch are taken again",
        edits: &[(
            "set next_lane = q.next_lane + _queue.n where",
            "set next_lane = q.next_lane + 1 where",
        )],
        caught_by: &["spread jobs of one batch take their turns"],
    },
    Bug {
        what: "who has begun and waits for a time is not ahead",
        edits: &[("::bigint, 0) + h.begun) as of", "::bigint, 0)) as of")],
        caught_by: &["a place in a lane counts what is ahead"],
    },
    Bug {
        what: "places in a lane are counted from its end",
        edits: &[(
            "partition by f.queue, f.lane order by b.rank desc, b.at desc, b.seq desc",
            "partition by f.queue, f.lane order by b.rank, b.at, b.seq",
        )],
        caught_by: &["a place in a lane counts what is ahead"],
    },
    Bug {
        what: "who follows names the first that failed and not whom it followed",
        edits: &[("when f.on_id = _root then format(", "when true then format(")],
        caught_by: &["who follows says whom it followed"],
    },
    Bug {
        what: "dependents go on in the order of their ids",
        edits: &[(
            "array_agg(e.one order by e.id desc), array_agg(e.other order by e.id desc),\n      \
             array_agg(e.follows order by e.id desc)",
            "array_agg(e.one order by e.id), array_agg(e.other order by e.id),\n      \
             array_agg(e.follows order by e.id)",
        )],
        caught_by: &["who follows says whom it followed"],
    },
    Bug {
        what: "who follows is a dead letter beyond the bound",
        edits: &[(
            "union all select 'dead_letter', queue, null from ended where _state = 5 \
             group by queue",
            "",
        )],
        caught_by: &["who follows counts as a dead letter"],
    },
    Bug {
        what: "who follows keeps its key",
        edits: &[(
            "where j.seq = s and j.spec->'unique'->>'scope' = 'open' offset 0",
            "where false",
        )],
        caught_by: &["who follows gives its key back"],
    },
    Bug {
        what: "who follows is not seen to leave its lane",
        edits: &[(
            "where lane_queue is not null group by lane_queue, lane union all select \
             'queue_drained'",
            "where false group by lane_queue, lane union all select 'queue_drained'",
        )],
        caught_by: &["who follows leaves its lane"],
    },
    Bug {
        what: "nobody is added for who follows into death",
        edits: &[("from ended where _state = 5 and on_dead is not null", "from ended where false")],
        caught_by: &["whoever follows into death is told to whom it concerns"],
    },
    Bug {
        what: "a job that has begun does not hold its key back",
        edits: &[(
            "insert into windlass.lane_held (queue, lane, partition, seq) values (_p.lane_queue, \
             _p.lane, _p.partition, _p.seq);",
            "null;",
        )],
        caught_by: &["a job to be tried again holds its key and no other"],
    },
    Bug {
        what: "a job that goes on holds its key back for ever",
        edits: &[("where p.ctid = any (_jobs.ctids) and p.begun));", "where false));")],
        caught_by: &["the lane of a job that goes on is free after it"],
    },
    Bug {
        what: "lanes forget what runs when they change",
        edits: &[(
            "where p.lane_queue = _queue and p.state = 3 group by",
            "where p.lane_queue = _queue and false group by",
        )],
        caught_by: &["one runs in a lane after lanes were joined"],
    },
    Bug {
        what: "a released job is not told",
        edits: &[(
            "from released where state > 0 union all select 2, 'job.scheduled'",
            "from released where false union all select 2, 'job.scheduled'",
        )],
        caught_by: &["a job waits for its dependencies and is released once"],
    },
];

/// Mistakes that leave every answer as it is and make a call cost the square of what it is about:
/// what is looked up for each of many in something that has as many.
const SQUARES: &[Bug] = &[
    Bug {
        what: "each new job is looked for among all of its batch",
        edits: &[(
            "as i(seq, due, rank, queue_kind) where i.due is null or",
            "as i(seq, due, rank, queue_kind) cross join lateral (select from windlass.job j \
               where j.seq + 0 = i.seq offset 0) j where i.due is null or",
        )],
        caught_by: &["plain"],
    },
    Bug {
        what: "each item of a batch is looked for among all jobs",
        edits: &[(
            "left join lateral (select j.seq from windlass.job j where j.seq = s.seq offset 0) j",
            "left join lateral (select j.seq from windlass.job j where j.seq + 0 = s.seq \
               offset 0) j",
        )],
        caught_by: &["expiring"],
    },
    Bug {
        what: "each key is looked for among all of its line",
        edits: &[(
            "k.queue_kind = i.queue_kind and k.key = i.key offset 0",
            "k.queue_kind = i.queue_kind and k.key || '' = i.key offset 0",
        )],
        caught_by: &["keyed"],
    },
    Bug {
        what: "each item that another stands for looks for it among all jobs",
        edits: &[(
            "where j.seq = x.seq offset 0) j\n          where x.acceptance > 1",
            "where j.seq + 0 = x.seq offset 0) j\n          where x.acceptance > 1",
        )],
        caught_by: &["keyed, two of each"],
    },
    Bug {
        what: "of each job of a batch it is counted what is ahead in its lane",
        edits: &[(
            "then (_positions->>(p.seq::text))::bigint end",
            "then windlass._position((select o from windlass.job_state o where o.seq = p.seq)) end",
        )],
        caught_by: &["in one lane", "in lanes", "spread"],
    },
    Bug {
        what: "each edge of a batch is looked for among all edges",
        edits: &[(
            "where e.on_id = (d.d->>'on')::uuid and e.seq = _seqs[i.n] offset 0",
            "where e.on_id::text = d.d->>'on' and e.seq + 0 = _seqs[i.n] offset 0",
        )],
        caught_by: &["in a row", "before one"],
    },
    Bug {
        what: "each dependency is looked for among all items of its batch",
        edits: &[(
            "select d.n, d.k, (_numbers->>(d.id::text))::int as m from",
            "select d.n, d.k, (select i.n::int from unnest(_ids) with ordinality as i(id, n) \
               where i.id = d.id) as m from",
        )],
        caught_by: &["in a row, the last first"],
    },
    Bug {
        what: "each edge of a batch is looked for among all that lead to the same job",
        edits: &[(
            "where e.on_id = (d.d->>'on')::uuid and e.seq = _seqs[i.n] offset 0",
            "where e.on_id = (d.d->>'on')::uuid and e.seq + 0 = _seqs[i.n] offset 0",
        )],
        caught_by: &["after one"],
    },
    Bug {
        what: "the dependents of each that fails are looked for among all edges",
        edits: &[(
            "select e.seq, e.on_failure from windlass.dependency e\n          where e.on_id = j.id",
            "select e.seq, e.on_failure from windlass.dependency e\n          \
               where e.on_id::text = j.id::text",
        )],
        caught_by: &["a row dies"],
    },
    Bug {
        what: "each of those who follow is looked for among all places",
        edits: &[(
            "(select p.* from windlass.job_state p where p.seq = f.seq offset 0)",
            "(select p.* from windlass.job_state p where p.seq + 0 = f.seq offset 0)",
        )],
        caught_by: &["a fan dies", "a row is cancelled"],
    },
    Bug {
        what: "each edge that is met is looked for among all that lead to the same job",
        edits: &[(
            "where e.on_id = r.on_id and e.seq = r.seq offset 0",
            "where e.on_id = r.on_id and e.seq + 0 = r.seq offset 0",
        )],
        caught_by: &["a fan is released"],
    },
    Bug {
        what: "whoever ends looks for its own edges among all edges",
        edits: &[(
            "delete from windlass.dependency where seq = _root;",
            "delete from windlass.dependency where seq + 0 = _root;",
        )],
        caught_by: &["many release one"],
    },
    Bug {
        what: "whoever ends looks for its key among all keys",
        edits: &[(
            "where k.seq = _p.seq and j.seq = _p.seq and j.spec->'unique'->>'scope' = 'open';",
            "where k.seq + 0 = _p.seq and j.seq = _p.seq and j.spec->'unique'->>'scope' = 'open';",
        )],
        caught_by: &["jobs with keys end"],
    },
    Bug {
        what: "each lane is looked for among all lanes",
        edits: &[(
            "l.others from windlass.lane l\n            \
               where l.queue = t.queue and l.lane = t.lane",
            "l.others from windlass.lane l\n            \
               where l.queue = t.queue and l.lane + 0 = t.lane",
        )],
        caught_by: &["jobs of lanes end", "jobs of lanes die"],
    },
    Bug {
        what: "each job of a graph is looked for among all jobs",
        edits: &[(
            "select j.spec from windlass.job j where j.seq = s.seq offset 0",
            "select j.spec from windlass.job j where j.seq + 0 = s.seq offset 0",
        )],
        caught_by: &["a row is deleted by its first", "a fan is deleted by its first"],
    },
    Bug {
        what: "the first job of each graph is looked for among all jobs",
        edits: &[(
            "left join lateral (select j.seq from windlass.job j where j.id = i.id offset 0) j on \
             true;\n    select array_agg(e.one)",
            "left join lateral (select j.seq from windlass.job j where j.id::text = i.id::text \
             offset 0) j on true;\n    select array_agg(e.one)",
        )],
        caught_by: &[
            "a row is deleted by each of it",
            "pairs are deleted",
            "jobs that nobody depends on are deleted",
        ],
    },
];

/// Every bug of a table that is asked for, if it can still be planted.
fn asked_for(table: &'static [Bug]) -> Vec<&'static Bug> {
    let schema = Schema::default();
    let lost: Vec<String> = table.iter().filter_map(|bug| bug.script(&schema).err()).collect();
    assert!(lost.is_empty(), "{}", lost.join("\n"));
    let only = std::env::var("WINDLASS_PLANTED").unwrap_or_default();
    table.iter().filter(|bug| bug.what.contains(&only)).collect()
}

#[tokio::test(flavor = "current_thread")]
async fn every_bug_that_is_planted_in_the_sql_is_caught_by_the_suite() {
    let mut trials: Vec<Trial> = Vec::new();
    for bug in asked_for(BUGS) {
        let trial = |case: &&str| {
            let (case, bug, meanwhile) = ((*case).to_string(), Some(bug), None);
            Trial { case, bug, meanwhile }
        };
        trials.extend(bug.caught_by.iter().map(trial));
    }
    let problems = judge(trials).await;
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[tokio::test(flavor = "current_thread")]
async fn every_square_that_is_planted_in_the_sql_is_caught_by_the_rows_it_costs() {
    for growth in growths() {
        let bugs = SQUARES.iter().filter(|bug| bug.caught_by.contains(&growth.what));
        assert_eq!(bugs.count(), 1, "bugs for `{}`", growth.what);
    }
    let mut trials: Vec<(&'static Bug, Growth)> = Vec::new();
    for bug in asked_for(SQUARES) {
        let caught_by = |growth: &Growth| bug.caught_by.contains(&growth.what);
        trials.extend(growths().into_iter().filter(caught_by).map(|growth| (bug, growth)));
    }
    let problems = check_all(trials, |plot, trials, number| async move {
        let (bug, growth) = &trials[number];
        let caught = growth.problem(&plot, Some(bug)).await.is_some();
        (!caught).then(|| format!("NOT CAUGHT: {}\n  by {}", bug.what, growth.what))
    })
    .await;
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// The suite knows nothing of transactions of others: this one has a check of its own.
#[tokio::test(flavor = "current_thread")]
async fn a_completion_in_a_transaction_that_looks_at_no_token_is_caught() {
    let bug = Bug {
        what: "a completion in a transaction is taken from whoever sends it",
        edits: &[("or _p.token <> (_end->>'token')::bigint then", "then")],
        caught_by: &[],
    };
    let Some(plot) = Plot::new().await else { return };
    let address: PostgresAddress = plot.ground.text_address().parse().expect("it is well formed");
    let script = bug.script(&address.schema).expect("it can be planted");
    plot.sql(&format!("{script}{}", clock_sql(&address.schema)), bug.what).await;
    assert!(!is_refused_with_a_lost_lease(&plot.ground, &address).await);
}

/// Nor does it see who waits for whom.
#[tokio::test(flavor = "multi_thread")]
async fn a_settlement_that_lets_time_pass_before_it_locks_its_jobs_is_caught() {
    let bug = Bug {
        what: "due jobs are promoted before a settlement has locked its own",
        edits: &[(
            "perform windlass._lock_for_settle(_jobs, _seqs, _lows, _highs, _extras);",
            "perform windlass._pass_time(windlass.now_us());",
        )],
        caught_by: &[],
    };
    let Some(ground) = Ground::new() else { return };
    ground.make_clock();
    let address: PostgresAddress = ground.text_address().parse().expect("it is well formed");
    let script = bug.script(&address.schema).expect("it can be planted");
    ground.client().await.batch_execute(&script).await.expect("it is understood");
    assert_eq!(circles(&ground, &address).await, 1);
}

/// Nor does it know of paths.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_on_the_callers_path_is_caught() {
    let bug = Bug {
        what: "a call takes the path of whoever makes it",
        edits: &[("and p.proname <> 'now_us'", "and p.proname not in ('now_us', 'accept')")],
        caught_by: &[],
    };
    let Some(ground) = Ground::new() else { return };
    let text = ground.text_address();
    let address: PostgresAddress = text.parse().expect("it is well formed");
    let script = bug.script(&address.schema).expect("it can be planted");
    ground.client().await.batch_execute(&script).await.expect("it is understood");
    assert_eq!(on_the_callers_path(&ground, &address.schema).await, ["accept"]);
    let engine = open(&plant_in_front(&ground, &text).await).await;
    let refused = engine.enqueue_raw(vec![raw(1)]).await.expect_err("it calls what is planted");
    // What is planted is called, or it is not clear whether it is meant.
    let refused = refused.to_string();
    assert!(refused.contains("planted: ") || refused.contains("is not unique"), "{refused}");
}
