//! The ledger against a naive model: random commands, the same answers, the same jobs.
//!
//! A case is a list of commands from small pools. After every command the ledger and the model
//! must have given the same reply, told the same events and be in the same condition job by job,
//! counter by counter; the ledger's own invariants must hold; and the records kept from its
//! changes must agree with both. At the end of a case two more ledgers, one rebuilt from all
//! changes and one from a journal that was compacted at random moments, must be equal to it and go
//! on the same way.
//!
//! `WINDLASS_MODEL_CASES` sets the number of cases (10,000 unless set) and `WINDLASS_MODEL_SEED`
//! the seed, which a failure prints with the shortest list of commands that still fails.

#[path = "model/journal.rs"]
mod journal;
#[path = "model/naive.rs"]
mod naive;
#[path = "model/pair.rs"]
mod pair;
#[path = "model/steps.rs"]
mod steps;
#[path = "model/turns.rs"]
mod turns;

use std::cell::Cell;

use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};

use crate::pair::{Pair, Tally};

const CASES: u32 = 10_000;
const STEPS: usize = 60;
/// Cases of each half that are looked into for [`MUST_COME_UP`].
const TALLIED: u32 = 2_000;

/// What random commands must lead to, or agreeing on them would say little: every event, every
/// refusal, every way to end, and each limit.
#[rustfmt::skip]
const MUST_COME_UP: &[&str] = &[
    "JobEnqueued", "JobDeduplicated", "JobBlocked", "JobUnblocked", "JobScheduled", "JobStarted",
    "JobProgress", "JobCompleted", "JobFailed", "JobRetrying", "JobSnoozed", "JobReleased",
    "JobDead", "JobCancelRequested", "JobCancelled", "JobReplayed", "JobRemoved",
    "RecoveryDetected", "JobRecovered", "RecoveryExhausted",
    "QueuePaused", "QueueResumed", "QueueCleared", "QueueEmpty", "QueueFull", "QueueConfigured",
    "LaneEmpty", "LaneFull", "ObjectCreated", "ObjectRemoved", "ObjectChanged", "UnknownObject",
    "loop.told", "loop.failed", "loop.recovered", "alarm moved", "alarm replaced",
    "AlreadyAccepted", "Deduplicated", "IdReused", "IdTwiceInBatch", "UnknownDependency",
    "DependencyFailed", "DependencyCycle", "UnknownJob", "WrongState", "KeyTaken", "LeaseLost",
    "StillNeeded",
    "OutOfBounds", "AttemptsExhausted", "Permanent", "DurationExhausted", "Crashed",
    "Requested", "Handler", "Expired", "Cleared", "DependencyCancelled", "Replaced",
    "Retention", "DeadLettersFull", "LeaseExpired", "Restart", "Manual",
];

/// Two tests share the cases, so that two cores work on them.
#[test]
fn the_ledger_answers_as_the_model_does_in_the_first_half_of_the_cases() {
    check(1);
}

#[test]
fn the_ledger_answers_as_the_model_does_in_the_second_half_of_the_cases() {
    check(2);
}

fn check(half: u64) {
    let cases = from_environment("WINDLASS_MODEL_CASES").unwrap_or(u64::from(CASES));
    let cases = u32::try_from(cases.div_ceil(2)).expect("fewer than 2^32 cases");
    let seed = from_environment("WINDLASS_MODEL_SEED").unwrap_or(0);
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    bytes[8..16].copy_from_slice(&half.to_le_bytes());
    let config = Config {
        cases,
        max_shrink_iters: 50_000,
        // The seed is fixed, so a failure comes back without a file.
        failure_persistence: None,
        ..Config::default()
    };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let (tally, case) = (Tally::default(), Cell::new(0));
    let result = runner.run(&steps::steps(STEPS), |steps| {
        case.set(case.get() + 1);
        let mut pair = Pair::new(&tally, case.get() <= TALLIED);
        for step in steps {
            pair.take(step)?;
        }
        pair.rebuild()
    });
    match result {
        Ok(()) if cases < TALLIED => {}
        Ok(()) => {
            let missing: Vec<&&str> =
                MUST_COME_UP.iter().filter(|word| tally.count(word) == 0).collect();
            assert!(missing.is_empty(), "no case had {missing:?}: the cases have become too tame");
        }
        Err(TestError::Fail(why, steps)) => {
            let steps: String = steps.iter().map(|step| format!("\n  {step:?}")).collect();
            panic!(
                "half {half} of the cases with WINDLASS_MODEL_SEED={seed}: {why}\n\
                 the shortest commands that still fail:{steps}"
            )
        }
        Err(TestError::Abort(why)) => panic!("no cases could be made: {why}"),
    }
}

fn from_environment(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name} is `{value}`; it must be a number")))
}
