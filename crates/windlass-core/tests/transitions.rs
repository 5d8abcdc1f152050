//! The table of the state machine: every state and every input, written out cell by cell.
//!
//! The tests below draw the table from the code and compare it with the one on this page, so that
//! no cell changes without someone having read it. What a cell cannot say (times, counters, the
//! reasons of an end) follows as one test per rule.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use windlass_core::job::{
    CancelReason, DeadReason, JobStatus, Lease, LeaseToken, State, StateName,
};
use windlass_core::outcome::Verdict;
use windlass_core::time::Timestamp;
use windlass_core::transition::{Input, InputName, Next, Refused, next, waiting_until};

/// What each input makes of a job in each state. `-` is refused as the wrong state, `lost` as a
/// lease that is not held, `gone` deletes the record.
///
/// Tokens are right, times have come, the last dependency is met, and nothing is exhausted; the
/// other sides of these are in [`VARIANTS`].
const TABLE: &str = "
                  blocked    scheduled  ready      running    completed  dead       cancelled
Due               -          ready      -          -          -          -          -
Unblock           ready      -          -          -          -          -          -
DependencyFailed  dead       -          -          -          -          -          -
Claim             -          -          running    -          -          -          -
Renew             lost       lost       lost       running    lost       lost       lost
Settle            lost       lost       lost       completed  lost       lost       lost
Rescue            lost       lost       lost       scheduled  lost       lost       lost
Cancel            cancelled  cancelled  cancelled  running    -          -          -
Expire            cancelled  cancelled  cancelled  -          -          -          -
Reschedule        blocked    scheduled  scheduled  -          -          -          -
Replay            -          -          -          -          -          ready      ready
Replace           -          -          -          -          -          cancelled  -
Remove            -          -          -          -          gone       gone       gone
";

/// Every counter that some cell of [`TABLE`] changes, and nothing else changes one.
const COUNTERS: &str = "
Claim on ready: attempts 1 to 2
Settle on running: recoveries 1 to 0
Rescue on running: recoveries 1 to 2
Replay on dead: attempts 1 to 0, recoveries 1 to 0, generation 1 to 2
Replay on cancelled: attempts 1 to 0, recoveries 1 to 0, generation 1 to 2
";

/// The other side of the cells that look at more than the state.
const VARIANTS: &str = "
Due on scheduled for later: -
Unblock on blocked by two: blocked
Unblock on blocked and not due: scheduled
DependencyFailed by cancellation on blocked: cancelled
Renew with a stale token on running: lost
Settle with a stale token on running: lost
Rescue with a stale token on running: lost
Settle as retry on running: scheduled
Settle as snooze on running: scheduled
Settle as release on running: ready
Settle as bury on running: dead
Settle as cancel on running: cancelled
Settle as complete on asked to stop: completed
Settle as retry on asked to stop: cancelled
Settle as snooze on asked to stop: cancelled
Settle as release on asked to stop: cancelled
Settle as bury on asked to stop: dead
Settle as cancel on asked to stop: cancelled
Rescue on asked to stop: cancelled
Rescue on running for the last time: dead
Rescue on recovered as often as may be: dead
Cancel on asked to stop: running
Expire on blocked after a start: -
Expire on blocked after a replay: -
Expire on scheduled after a start: -
Expire on scheduled after a replay: -
Expire on ready after a start: -
Expire on ready after a replay: -
Reschedule to the past on scheduled: ready
Reschedule to the past on ready: ready
Reschedule to the past on blocked: blocked
Replay behind another on dead: blocked
Replay behind another on cancelled: blocked
";

const TOKEN: LeaseToken = LeaseToken(7);
const STALE: LeaseToken = LeaseToken(6);
const MAX_RECOVERIES: u32 = 3;

fn seconds(number: i64) -> Timestamp {
    Timestamp::from_millis(number * 1_000)
}

/// The moment at which everything happens here.
fn now() -> Timestamp {
    seconds(1_000)
}

fn lease() -> Lease {
    Lease {
        token: TOKEN,
        worker: Arc::from("anna"),
        since: seconds(990),
        until: seconds(1_020),
        max_attempts: 3,
        cancel_requested: false,
    }
}

fn asked_to_stop() -> State {
    State::Running(Lease { cancel_requested: true, ..lease() })
}

/// A job in a state, with every counter at 1 so that a change of any shows.
fn in_state(state: State) -> JobStatus {
    let settled_by = (!state.is_running()).then_some(STALE);
    JobStatus { state, attempts: 1, recoveries: 1, generation: 1, begun: true, settled_by }
}

/// A job that has not started, as an expiry needs it.
fn unstarted(state: State) -> JobStatus {
    JobStatus { attempts: 0, generation: 0, begun: false, ..in_state(state) }
}

fn state(name: StateName) -> State {
    let past = seconds(900);
    match name {
        StateName::Blocked => State::Blocked { unmet: 1, not_before: past },
        StateName::Scheduled => State::Scheduled { at: past },
        StateName::Ready => State::Ready { since: past },
        StateName::Running => State::Running(lease()),
        StateName::Completed => State::Completed { at: past },
        StateName::Dead => State::Dead { at: past, reason: DeadReason::Permanent },
        StateName::Cancelled => State::Cancelled { at: past, reason: CancelReason::Requested },
    }
}

fn input(name: InputName) -> Input {
    match name {
        InputName::Due => Input::Due,
        InputName::Unblock => Input::Unblock,
        InputName::DependencyFailed => Input::DependencyFailed { cancelled: false },
        InputName::Claim => Input::Claim(lease()),
        InputName::Renew => renew(TOKEN),
        InputName::Settle => settle(TOKEN, Verdict::Complete),
        InputName::Rescue => rescue(TOKEN),
        InputName::Cancel => Input::Cancel(CancelReason::Requested),
        InputName::Expire => Input::Expire,
        InputName::Reschedule => Input::Reschedule(seconds(2_000)),
        InputName::Replay => Input::Replay { unmet: 0 },
        InputName::Replace => Input::Replace,
        InputName::Remove => Input::Remove,
    }
}

fn renew(token: LeaseToken) -> Input {
    Input::Renew { token, until: seconds(1_030) }
}

fn settle(token: LeaseToken, verdict: Verdict) -> Input {
    Input::Settle { token, verdict }
}

fn rescue(token: LeaseToken) -> Input {
    let delay = Duration::from_secs(5);
    Input::Rescue { token, max_recoveries: MAX_RECOVERIES, delay }
}

fn verdicts() -> [(&'static str, Verdict); 6] {
    let pause = Duration::from_secs(60);
    [
        ("complete", Verdict::Complete),
        ("retry", Verdict::Retry(pause)),
        ("snooze", Verdict::Snooze(pause)),
        ("release", Verdict::Release),
        ("bury", Verdict::Bury(DeadReason::Permanent)),
        ("cancel", Verdict::Cancel(CancelReason::Handler)),
    ]
}

/// What a cell of the table says.
fn cell(status: &JobStatus, input: &Input) -> &'static str {
    match next(status, input, now()) {
        Ok(Next::Is(status)) => status.state.name().as_str(),
        Ok(Next::Gone) => "gone",
        Err(Refused::LeaseLost) => "lost",
        Err(Refused::WrongState(named)) => {
            assert_eq!(named, status.state.name(), "a refusal names the state the job is in");
            "-"
        }
    }
}

/// The cells of the table with the conditions they start from.
fn starting_point(input: InputName, name: StateName) -> JobStatus {
    match input {
        InputName::Expire => unstarted(state(name)),
        InputName::Due
        | InputName::Unblock
        | InputName::DependencyFailed
        | InputName::Claim
        | InputName::Renew
        | InputName::Settle
        | InputName::Rescue
        | InputName::Cancel
        | InputName::Reschedule
        | InputName::Replay
        | InputName::Replace
        | InputName::Remove => in_state(state(name)),
    }
}

/// The condition a job is in afterwards; a panic if the input was refused.
#[track_caller]
fn after(status: &JobStatus, input: &Input) -> JobStatus {
    match next(status, input, now()) {
        Ok(Next::Is(status)) => status,
        Ok(Next::Gone) => panic!("{input:?} deleted {status:?}"),
        Err(refused) => panic!("{input:?} on {status:?} was refused: {refused:?}"),
    }
}

#[test]
fn every_state_and_every_input_meet_as_the_table_says() {
    let mut drawn = format!("\n{:18}", "");
    for name in StateName::ALL {
        let _ = write!(drawn, "{:11}", name.as_str());
    }
    for column in InputName::ALL {
        let _ = write!(drawn, "\n{:18}", format!("{column:?}"));
        for name in StateName::ALL {
            let found = cell(&starting_point(column, name), &input(column));
            let _ = write!(drawn, "{found:11}");
        }
    }
    let drawn: Vec<&str> = drawn.lines().map(str::trim_end).collect();
    let expected: Vec<&str> = TABLE.lines().collect();
    assert_eq!(drawn, expected, "the code draws this table:\n{}", drawn.join("\n"));
}

#[test]
fn only_the_counters_named_in_the_list_ever_change() {
    let mut drawn = String::from("\n");
    for column in InputName::ALL {
        for name in StateName::ALL {
            let before = starting_point(column, name);
            let Ok(Next::Is(after)) = next(&before, &input(column), now()) else { continue };
            let counters = [
                ("attempts", before.attempts, after.attempts),
                ("recoveries", before.recoveries, after.recoveries),
                ("generation", before.generation, after.generation),
            ];
            let changed = counters.iter().filter(|(_, before, after)| before != after);
            let changed: Vec<String> = changed
                .map(|(what, before, after)| format!("{what} {before} to {after}"))
                .collect();
            if !changed.is_empty() {
                let _ = writeln!(drawn, "{column:?} on {name}: {}", changed.join(", "));
            }
        }
    }
    assert_eq!(drawn, COUNTERS);
}

#[test]
fn cells_that_look_at_more_than_the_state_have_both_sides() {
    let mut drawn = String::from("\n");
    let mut draw = |what: &str, status: JobStatus, input: Input| {
        let _ = writeln!(drawn, "{what}: {}", cell(&status, &input));
    };
    let (past, later) = (seconds(900), seconds(2_000));
    let scheduled = |at| in_state(State::Scheduled { at });
    let blocked = |unmet, not_before| in_state(State::Blocked { unmet, not_before });
    let running = || in_state(state(StateName::Running));
    draw("Due on scheduled for later", scheduled(later), Input::Due);
    draw("Unblock on blocked by two", blocked(2, past), Input::Unblock);
    draw("Unblock on blocked and not due", blocked(1, later), Input::Unblock);
    let by_cancellation = Input::DependencyFailed { cancelled: true };
    draw("DependencyFailed by cancellation on blocked", blocked(1, past), by_cancellation);
    draw("Renew with a stale token on running", running(), renew(STALE));
    draw("Settle with a stale token on running", running(), settle(STALE, Verdict::Complete));
    draw("Rescue with a stale token on running", running(), rescue(STALE));
    for (name, verdict) in verdicts().into_iter().skip(1) {
        draw(&format!("Settle as {name} on running"), running(), settle(TOKEN, verdict));
    }
    for (name, verdict) in verdicts() {
        let asked = in_state(asked_to_stop());
        draw(&format!("Settle as {name} on asked to stop"), asked, settle(TOKEN, verdict));
    }
    draw("Rescue on asked to stop", in_state(asked_to_stop()), rescue(TOKEN));
    let last = JobStatus { attempts: lease().max_attempts, ..running() };
    draw("Rescue on running for the last time", last, rescue(TOKEN));
    let recovered = JobStatus { recoveries: MAX_RECOVERIES, ..running() };
    draw("Rescue on recovered as often as may be", recovered, rescue(TOKEN));
    let cancel = Input::Cancel(CancelReason::Requested);
    draw("Cancel on asked to stop", in_state(asked_to_stop()), cancel);
    for name in [StateName::Blocked, StateName::Scheduled, StateName::Ready] {
        draw(&format!("Expire on {name} after a start"), in_state(state(name)), Input::Expire);
        let replayed = JobStatus { generation: 1, ..unstarted(state(name)) };
        draw(&format!("Expire on {name} after a replay"), replayed, Input::Expire);
    }
    for name in [StateName::Scheduled, StateName::Ready, StateName::Blocked] {
        let what = format!("Reschedule to the past on {name}");
        draw(&what, in_state(state(name)), Input::Reschedule(past));
    }
    for name in [StateName::Dead, StateName::Cancelled] {
        let what = format!("Replay behind another on {name}");
        draw(&what, in_state(state(name)), Input::Replay { unmet: 1 });
    }
    assert_eq!(drawn, VARIANTS);
}

#[test]
fn no_state_takes_a_write_that_carries_a_stale_token() {
    for name in StateName::ALL {
        let status = in_state(state(name));
        for (_, verdict) in verdicts() {
            let refused = next(&status, &settle(STALE, verdict), now());
            assert_eq!(refused, Err(Refused::LeaseLost), "{verdict:?} on {name}");
        }
        assert_eq!(next(&status, &renew(STALE), now()), Err(Refused::LeaseLost));
        assert_eq!(next(&status, &rescue(STALE), now()), Err(Refused::LeaseLost));
    }
}

#[test]
fn the_token_that_settled_an_attempt_is_kept_until_the_next_one_or_a_replay() {
    let running = in_state(state(StateName::Running));
    for (_, verdict) in verdicts() {
        let settled = after(&running, &settle(TOKEN, verdict));
        assert_eq!(settled.settled_by, Some(TOKEN), "{verdict:?}");
    }
    assert_eq!(after(&running, &rescue(TOKEN)).settled_by, None, "nobody settled it");
    for name in StateName::ALL {
        for input in InputName::ALL {
            let before = in_state(state(name));
            let Ok(Next::Is(changed)) = next(&before, &self::input(input), now()) else { continue };
            let expected = match input {
                InputName::Claim | InputName::Replay => None,
                InputName::Settle => Some(TOKEN),
                _ => before.settled_by,
            };
            assert_eq!(changed.settled_by, expected, "{input:?} on {name}");
        }
    }
}

#[test]
fn a_crash_is_counted_when_it_is_detected_and_capped() {
    let mut status = in_state(State::Running(Lease { max_attempts: 100, ..lease() }));
    status.recoveries = 0;
    for recovery in 1..=MAX_RECOVERIES {
        status = after(&status, &rescue(TOKEN));
        assert_eq!(status.recoveries, recovery);
        assert_eq!(status.state, State::Scheduled { at: now() + Duration::from_secs(5) });
        let held = Lease { max_attempts: 100, ..lease() };
        status.state = State::Ready { since: now() };
        status = after(&status, &Input::Claim(held));
    }
    let end = after(&status, &rescue(TOKEN));
    assert_eq!(end.state, State::Dead { at: now(), reason: DeadReason::Crashed });
    assert_eq!(end.recoveries, MAX_RECOVERIES, "a burial is not one more recovery");
}

#[test]
fn crashes_never_add_up_to_more_starts_than_there_are_attempts() {
    let mut status = JobStatus::new(State::Ready { since: now() });
    let unlimited = Input::Rescue { token: TOKEN, max_recoveries: 100, delay: Duration::ZERO };
    let mut starts = 0;
    while let State::Ready { .. } = status.state {
        status = after(&status, &Input::Claim(lease()));
        starts += 1;
        status = after(&status, &unlimited);
        status = match next(&status, &Input::Due, now()) {
            Ok(Next::Is(ready)) => ready,
            Ok(Next::Gone) | Err(_) => status,
        };
    }
    assert_eq!(starts, lease().max_attempts);
    assert_eq!(status.state, State::Dead { at: now(), reason: DeadReason::Crashed });
}

#[test]
fn recoveries_are_reset_by_success_and_by_nothing_else_a_worker_can_say() {
    let running = in_state(state(StateName::Running));
    for (name, verdict) in verdicts() {
        let recoveries = after(&running, &settle(TOKEN, verdict)).recoveries;
        let expected = if verdict == Verdict::Complete { 0 } else { running.recoveries };
        assert_eq!(recoveries, expected, "after {name}");
    }
}

#[test]
fn a_request_to_cancel_wins_over_retry_snooze_release_and_rescue() {
    let asked = in_state(asked_to_stop());
    let pause = Duration::from_secs(60);
    for input in [
        settle(TOKEN, Verdict::Retry(pause)),
        settle(TOKEN, Verdict::Snooze(pause)),
        settle(TOKEN, Verdict::Release),
        rescue(TOKEN),
    ] {
        let end = after(&asked, &input);
        let reason = CancelReason::Requested;
        assert_eq!(end.state, State::Cancelled { at: now(), reason }, "after {input:?}");
        assert_eq!(end.recoveries, asked.recoveries, "nothing was recovered by {input:?}");
    }
}

#[test]
fn a_request_to_cancel_survives_a_renewal_and_changes_nothing_else() {
    let asked = after(&in_state(state(StateName::Running)), &input(InputName::Cancel));
    assert_eq!(asked, in_state(asked_to_stop()));
    let renewed = after(&asked, &renew(TOKEN));
    let until = seconds(1_030);
    let held = Lease { cancel_requested: true, until, ..lease() };
    assert_eq!(renewed, in_state(State::Running(held)));
}

#[test]
fn a_snooze_and_a_release_are_not_counted_as_starts() {
    let running = in_state(state(StateName::Running));
    let pause = Duration::from_secs(60);
    let snoozed = after(&running, &settle(TOKEN, Verdict::Snooze(pause)));
    assert_eq!(snoozed.attempts, running.attempts - 1);
    assert_eq!(snoozed.state, State::Scheduled { at: now() + pause });
    let released = after(&running, &settle(TOKEN, Verdict::Release));
    assert_eq!(released.attempts, running.attempts - 1);
    assert_eq!(released.state, State::Ready { since: lease().since }, "it keeps its place");
    let retried = after(&running, &settle(TOKEN, Verdict::Retry(pause)));
    assert_eq!(retried.attempts, running.attempts, "a failure is counted");
}

#[test]
fn counters_stop_at_their_ends_instead_of_wrapping() {
    let running = JobStatus { attempts: 0, ..in_state(state(StateName::Running)) };
    assert_eq!(after(&running, &settle(TOKEN, Verdict::Release)).attempts, 0);
    let ready = JobStatus { attempts: u32::MAX, ..in_state(state(StateName::Ready)) };
    assert_eq!(after(&ready, &Input::Claim(lease())).attempts, u32::MAX);
}

#[test]
fn a_replay_starts_over_in_a_new_generation() {
    for name in [StateName::Dead, StateName::Cancelled] {
        let end = JobStatus { attempts: 9, recoveries: 3, ..in_state(state(name)) };
        let expected = JobStatus {
            state: State::Ready { since: now() },
            attempts: 0,
            recoveries: 0,
            generation: end.generation + 1,
            begun: false,
            settled_by: None,
        };
        assert_eq!(after(&end, &Input::Replay { unmet: 0 }), expected);
        let behind = State::Blocked { unmet: 2, not_before: now() };
        let expected = JobStatus { state: behind, ..expected };
        assert_eq!(after(&end, &Input::Replay { unmet: 2 }), expected);
    }
}

#[test]
fn a_past_time_means_now_so_that_it_cannot_jump_the_queue() {
    let (past, later) = (seconds(1), seconds(2_000));
    assert_eq!(waiting_until(past, now()), State::Ready { since: now() });
    assert_eq!(waiting_until(now(), now()), State::Ready { since: now() });
    assert_eq!(waiting_until(later, now()), State::Scheduled { at: later });
    let moved = after(&in_state(state(StateName::Ready)), &Input::Reschedule(past));
    assert_eq!(moved.state, State::Ready { since: now() });
    let blocked = in_state(State::Blocked { unmet: 1, not_before: past });
    assert_eq!(after(&blocked, &Input::Unblock).state, State::Ready { since: now() });
}

#[test]
fn a_job_that_becomes_due_keeps_the_place_of_its_due_time() {
    let due = in_state(State::Scheduled { at: seconds(900) });
    assert_eq!(after(&due, &Input::Due).state, State::Ready { since: seconds(900) });
}

#[test]
fn every_end_says_when_and_why() {
    let at = now();
    let cancelled = |reason| State::Cancelled { at, reason };
    let dead = |reason| State::Dead { at, reason };
    let blocked = in_state(state(StateName::Blocked));
    let running = in_state(state(StateName::Running));
    let waiting = unstarted(state(StateName::Ready));
    let failed = |cancelled| Input::DependencyFailed { cancelled };
    let bury = |reason| settle(TOKEN, Verdict::Bury(reason));
    for (status, input, end) in [
        (&running, settle(TOKEN, Verdict::Complete), State::Completed { at }),
        (&running, bury(DeadReason::DurationExhausted), dead(DeadReason::DurationExhausted)),
        (&blocked, failed(false), dead(DeadReason::DependencyFailed)),
        (&blocked, failed(true), cancelled(CancelReason::DependencyCancelled)),
        (&waiting, Input::Expire, cancelled(CancelReason::Expired)),
        (&waiting, Input::Cancel(CancelReason::Cleared), cancelled(CancelReason::Cleared)),
    ] {
        assert_eq!(after(status, &input).state, end, "after {input:?}");
    }
    let replaced = after(&in_state(state(StateName::Dead)), &Input::Replace);
    assert_eq!(replaced.state, cancelled(CancelReason::Replaced));
}
