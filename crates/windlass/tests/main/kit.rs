//! The test kit, used as a user would: an engine on virtual time, and crashes everywhere.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex};

use serde::{Deserialize, Serialize};
use windlass::testing::{Lab, Setup, crash_everywhere};
use windlass::{Attempt, BoxError, Engine, Error, Failure, Job, JobId, State, StateName};

use crate::common::{HOUR, SECOND};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Charge {
    order: u64,
}

impl Job for Charge {
    const KIND: &'static str = "charge";
    type Output = String;
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct SendReceipt {
    order: u64,
}

impl Job for SendReceipt {
    const KIND: &'static str = "send_receipt";
    type Output = ();
}

/// Charges, and has a receipt sent.
async fn charge(job: Charge, attempt: Attempt) -> Result<String, Failure> {
    attempt.continue_with(SendReceipt { order: job.order })?;
    Ok(format!("charged {}", job.order))
}

/// Both stores, with the same handler.
async fn labs() -> [Lab; 2] {
    [Lab::new(|worker| worker.handle(charge)).await, Lab::on_disk(|w| w.handle(charge)).await]
}

/// What a piece of test code panics with.
fn panic_of(test: impl FnOnce()) -> String {
    let panic = std::panic::catch_unwind(AssertUnwindSafe(test)).expect_err("it panics");
    match panic.downcast::<String>() {
        Ok(message) => *message,
        Err(panic) => panic.downcast_ref::<&str>().expect("a message").to_string(),
    }
}

/// What a test on a lab with the handler panics with.
fn panic_in_lab(test: impl AsyncFnOnce(Lab)) -> String {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().start_paused(true).build().expect("a runtime");
    let test = async { test(Lab::new(|worker| worker.handle(charge)).await).await };
    panic_of(|| runtime.block_on(test))
}

#[tokio::test(start_paused = true)]
async fn a_lab_runs_what_is_due_and_leaves_what_is_not() {
    for lab in labs().await {
        let now = lab.engine().enqueue(Charge { order: 1 }).await.expect("accepted");
        let later = lab.engine().enqueue(Charge { order: 2 }).delay(HOUR).await.expect("accepted");
        let began = lab.now();
        lab.run_until_idle().await;
        assert_eq!(lab.now(), began, "no time has passed");
        let outcome = lab.outcome::<Charge>(&now).await.expect("it completed");
        assert_eq!(outcome, "charged 1");
        lab.assert_enqueued(&SendReceipt { order: 1 }).await;
        lab.advance(HOUR - SECOND).await;
        let record = later.record().await.expect("it is there");
        assert_eq!(record.state(), StateName::Scheduled);
        lab.advance(SECOND).await;
        assert_eq!(lab.now(), began + HOUR);
        assert_eq!(lab.outcome::<Charge>(later.id()).await.expect("completed"), "charged 2");
        let receipts = lab.enqueued::<SendReceipt>().await;
        assert_eq!(receipts, [SendReceipt { order: 1 }, SendReceipt { order: 2 }]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_lab_waits_for_handlers_that_take_their_time() {
    let slow = |_: Charge| async move {
        tokio::time::sleep(SECOND * 20).await;
        Ok::<_, Failure>("at last".to_string())
    };
    let lab = Lab::new(|worker| worker.handle(slow)).await;
    let began = lab.now();
    let handle = lab.engine().enqueue(Charge { order: 1 }).await.expect("accepted");
    lab.advance(SECOND * 5).await;
    assert_eq!(handle.record().await.expect("there").state(), StateName::Running);
    lab.run_until_idle().await;
    assert_eq!(lab.outcome::<Charge>(&handle).await.expect("completed"), "at last");
    assert_eq!(lab.now(), began + SECOND * 20);
}

#[tokio::test(start_paused = true)]
async fn running_everything_goes_through_every_retry_and_delay() {
    let failing = |job: Charge, attempt: Attempt| async move {
        let is_last = attempt.number() == 3;
        is_last.then(|| job.order.to_string()).ok_or(Failure::retry("not yet"))
    };
    let lab = Lab::on_disk(|worker| worker.handle(failing)).await;
    let month = HOUR * 24 * 30;
    let early = lab.engine().enqueue(Charge { order: 1 }).await.expect("accepted");
    let late = lab.engine().enqueue(Charge { order: 2 }).delay(month).depends_on(&early).await;
    lab.run_everything().await;
    let late = late.expect("accepted");
    assert_eq!(lab.outcome::<Charge>(&late).await.expect("completed"), "2");
    assert_eq!(late.record().await.expect("there").status.attempts, 3);
    lab.run_everything().await;
}

#[tokio::test(start_paused = true)]
async fn a_lab_without_handlers_only_keeps() {
    let lab = Lab::new(|worker| worker).await;
    lab.engine().enqueue(Charge { order: 1 }).await.expect("accepted");
    lab.run_until_idle().await;
    assert!(lab.worker().is_none());
    assert_eq!(lab.enqueued::<Charge>().await, [Charge { order: 1 }]);
    lab.assert_not_enqueued::<SendReceipt>().await;
}

#[test]
fn a_lab_on_real_time_says_what_to_do_about_it() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let message = panic_of(|| drop(runtime.block_on(Lab::new(|worker| worker))));
    assert!(message.contains("#[tokio::test(start_paused = true)]"), "{message}");
}

#[test]
fn what_never_ends_is_named() {
    let message = panic_in_lab(async |lab| {
        lab.engine().enqueue(SendReceipt { order: 1 }).await.expect("accepted");
        lab.run_everything().await;
    });
    assert!(message.starts_with("jobs are left that nothing will start:\n  `send_receipt`: job"));
    let message = panic_in_lab(async |_| {
        let again = |_: Charge| async { Err::<String, _>(Failure::snooze(HOUR * 24 * 90)) };
        let lab = Lab::new(|worker| worker.handle(again)).await;
        lab.engine().enqueue(Charge { order: 1 }).await.expect("accepted");
        lab.run_everything().await;
    });
    assert!(
        message.starts_with("there is more to do however far the clock is moved:"),
        "{message}"
    );
    let message = panic_in_lab(async |_| {
        let hangs = |_: Charge| std::future::pending::<Result<String, Failure>>();
        let lab = Lab::new(|worker| worker.handle_with(hangs, |o| o.no_timeout())).await;
        lab.engine().enqueue(Charge { order: 1 }).await.expect("accepted");
        lab.run_until_idle().await;
    });
    assert!(message.starts_with("there is no end: jobs have been running for a day:"), "{message}");
    let message = panic_in_lab(async |_| {
        let again = |job: Charge, attempt: Attempt| async move {
            attempt.continue_with(job)?;
            Ok::<_, Failure>(String::new())
        };
        let lab = Lab::new(|worker| worker.handle(again)).await;
        lab.engine().enqueue(Charge { order: 1 }).await.expect("accepted");
        lab.run_until_idle().await;
    });
    assert!(message.starts_with("there is no end: 100,000 events have happened"), "{message}");
}

#[test]
fn an_assertion_that_fails_lists_what_was_there_instead() {
    let nothing = panic_in_lab(async |lab| lab.assert_enqueued(&Charge { order: 9 }).await);
    assert!(nothing.contains("kit.rs"), "it says where: {nothing}");
    assert!(nothing.ends_with("no `charge` {\"order\":9} was enqueued; nothing was"), "{nothing}");
    let others = panic_in_lab(async |lab| {
        lab.engine().enqueue(Charge { order: 1 }).await.expect("accepted");
        lab.run_until_idle().await;
        lab.assert_enqueued(&Charge { order: 9 }).await;
    });
    assert!(others.ends_with("of this kind there are:\n  {\"order\":1} (completed)"), "{others}");
    let other_kinds = panic_in_lab(async |lab| {
        lab.engine().enqueue(SendReceipt { order: 1 }).await.expect("accepted");
        lab.assert_enqueued(&Charge { order: 9 }).await;
    });
    let expected = "there is no `charge` at all, only:\n  `send_receipt` {\"order\":1} (ready)";
    assert!(other_kinds.ends_with(expected), "{other_kinds}");
    let unwanted = panic_in_lab(async |lab| {
        lab.engine().enqueue(Charge { order: 1 }).await.expect("accepted");
        lab.assert_not_enqueued::<Charge>().await;
    });
    assert!(unwanted.contains("no `charge` should have been enqueued; of this kind"), "{unwanted}");
    let unfinished = panic_in_lab(async |lab| {
        let handle = lab.engine().enqueue(Charge { order: 1 }).delay(HOUR).await.expect("accepted");
        let _ = lab.outcome::<Charge>(&handle).await;
    });
    assert!(unfinished.contains("it has not finished: job "), "{unfinished}");
}

#[tokio::test(start_paused = true)]
async fn an_outcome_tells_of_death_too() {
    let fails = |_: Charge| async { Err::<String, _>(Failure::permanent("no such card")) };
    let lab = Lab::new(|worker| worker.handle(fails)).await;
    let handle = lab.engine().enqueue(Charge { order: 1 }).await.expect("accepted");
    lab.run_everything().await;
    let died = lab.outcome::<Charge>(&handle).await;
    assert!(matches!(died, Err(Error::Died { .. })), "{died:?}");
    let unknown = lab.outcome::<Charge>(windlass::new_id()).await;
    assert!(matches!(unknown, Err(Error::Refused(_))), "{unknown:?}");
}

/// The outside world: a payment provider with or without idempotency keys, and a mailbox.
#[derive(Debug, Default)]
struct World {
    charges: Mutex<Vec<(u64, Option<JobId>)>>,
    receipts: Mutex<Vec<u64>>,
    seen: Mutex<Vec<String>>,
}

impl World {
    fn charge(&self, order: u64, key: Option<JobId>) {
        let mut charges = self.charges.lock().expect("no panic");
        if key.is_none() || !charges.contains(&(order, key)) {
            charges.push((order, key));
        }
    }

    fn charges(&self) -> usize {
        self.charges.lock().expect("no panic").len()
    }

    fn receipts(&self) -> Vec<u64> {
        self.receipts.lock().expect("no panic").clone()
    }

    fn see(&self, what: String) {
        self.seen.lock().expect("no panic").push(what);
    }
}

async fn charge_naively(
    job: Charge,
    attempt: Attempt,
    at: State<World>,
) -> Result<String, Failure> {
    at.charge(job.order, None);
    attempt.continue_with(SendReceipt { order: job.order })?;
    Ok(String::new())
}

async fn charge_once(job: Charge, attempt: Attempt, at: State<World>) -> Result<String, Failure> {
    at.charge(job.order, Some(attempt.id()));
    attempt.continue_with(SendReceipt { order: job.order })?;
    Ok(String::new())
}

async fn send_receipt(job: SendReceipt, at: State<World>) -> Result<(), Failure> {
    at.receipts.lock().expect("no panic").push(job.order);
    Ok(())
}

async fn order(engine: Engine, _: Arc<World>) -> Result<(), BoxError> {
    engine.enqueue(Charge { order: 7 }).await?;
    Ok(())
}

async fn charged_at_most_once(_: Engine, world: Arc<World>) -> Result<(), BoxError> {
    match world.charges() {
        0 | 1 => Ok(()),
        charges => Err(format!("{charges} charges for one order").into()),
    }
}

#[test]
fn a_double_charge_is_found_and_the_crash_point_is_named() {
    let naive = || Setup::new(World::default(), |w| w.handle(charge_naively).handle(send_receipt));
    let message = panic_of(|| _ = crash_everywhere(naive, order, charged_at_most_once));
    assert!(message.starts_with("crash point "), "{message}");
    assert!(message.contains("before the outcome of `charge` was written"), "{message}");
    assert!(message.contains("the check failed: 2 charges for one order"), "{message}");
    assert!(message.contains("with WINDLASS_CRASH_POINT="), "{message}");
    let again = panic_of(|| _ = crash_everywhere(naive, order, charged_at_most_once));
    assert_eq!(message, again, "the same point crashes at the same place");
}

#[test]
fn a_handler_with_an_idempotency_key_survives_every_crash() {
    let setup = || Setup::new(World::default(), |w| w.handle(charge_once).handle(send_receipt));
    let points = crash_everywhere(setup, order, async |engine: Engine, world: Arc<World>| {
        charged_at_most_once(engine.clone(), world.clone()).await?;
        // What was accepted has been done to its end, and what was not has left no trace.
        let accepted = engine.jobs().kind(Charge::KIND).page(None, 10).await?.jobs;
        assert!(accepted.iter().all(|job| job.state() == StateName::Completed));
        assert_eq!(world.charges(), accepted.len());
        assert_eq!(world.receipts().is_empty(), accepted.is_empty());
        Ok(())
    });
    assert!(points > 20, "only {points} points");
}

/// Three orders, of which each is charged at its second attempt; what is acknowledged is noted.
async fn order_three(engine: Engine, world: Arc<World>) -> Result<(), BoxError> {
    for order in 1..=3 {
        engine.enqueue(Charge { order }).await?;
        world.see(format!("accepted {order}"));
    }
    Ok(())
}

async fn charge_late(job: Charge, attempt: Attempt, at: State<World>) -> Result<String, Failure> {
    let (id, number, recoveries) = (attempt.id(), attempt.number(), attempt.recoveries());
    at.see(format!("{id} #{number} recovered {recoveries}x at {:?}", attempt.started_at()));
    if number < 2 {
        return Err(Failure::retry("not yet"));
    }
    charge_once(job, attempt, at).await
}

/// Runs the three orders through all crash points. Returns what was seen at each.
fn three_orders() -> Vec<Vec<String>> {
    let all = Mutex::new(Vec::new());
    let setup = || Setup::new(World::default(), |w| w.handle(charge_late).handle(send_receipt));
    let check = async |engine: Engine, world: Arc<World>| {
        let seen = world.seen.lock().expect("no panic").clone();
        let accepted = seen.iter().filter(|line| line.starts_with("accepted")).count();
        let jobs = engine.jobs().kind(Charge::KIND).page(None, 10).await?.jobs;
        assert!(jobs.len() >= accepted, "what was acknowledged is there");
        assert!(jobs.iter().all(|job| job.state() == StateName::Completed), "and was done");
        assert_eq!(world.charges(), jobs.len(), "once");
        all.lock().expect("no panic").push(seen);
        Ok(())
    };
    let points = crash_everywhere(setup, order_three, check);
    let all = all.into_inner().expect("no panic");
    assert_eq!(all.len(), points + 1, "each point, and the run without a crash");
    all
}

#[test]
fn every_crash_point_is_the_same_each_time_and_loses_nothing_acknowledged() {
    let first = three_orders();
    assert!(first.len() > 80, "only {} points", first.len());
    assert_eq!(first, three_orders());
}

#[test]
fn a_start_that_was_not_synced_may_be_forgotten_by_a_crash() {
    let all = three_orders();
    let starts =
        |seen: &Vec<String>, what: &str| seen.iter().filter(|line| line.contains(what)).count();
    let forgotten = all.iter().filter(|seen| starts(seen, "001 #1 recovered 0x") == 2);
    assert!(forgotten.count() > 0, "started twice for the first time");
    let remembered = all.iter().filter(|seen| starts(seen, "001 #2 recovered 1x") == 1);
    assert!(remembered.count() > 0, "recovered");
}

/// Which process a handler runs in.
struct Process(usize);

#[test]
fn nothing_of_a_killed_process_runs_on() {
    let setup = || {
        let started = std::sync::atomic::AtomicUsize::new(0);
        let ticks = |_: Charge, attempt: Attempt, at: State<World>| async move {
            let Process(process) = *attempt.state::<Process>().expect("it was given").0;
            let also = at.0.clone();
            // Even what it has let loose ends with it.
            tokio::spawn(async move {
                for _ in 0..20 {
                    also.see(format!("spawned by {process}"));
                    tokio::time::sleep(SECOND).await;
                }
            });
            for _ in 0..10 {
                at.see(format!("handler of {process}"));
                attempt.engine().enqueue(SendReceipt { order: 1 }).await?;
                tokio::time::sleep(SECOND).await;
            }
            Ok::<_, Failure>(String::new())
        };
        Setup::new(World::default(), move |worker| {
            let process = started.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            worker.state(Process(process)).handle(ticks).handle(send_receipt)
        })
    };
    let points = crash_everywhere(setup, order, async |_, world: Arc<World>| {
        let seen = world.seen.lock().expect("no panic").clone();
        let second = seen.iter().position(|line| line.ends_with('1')).unwrap_or(seen.len());
        assert!(seen[second..].iter().all(|line| line.ends_with('1')), "{seen:#?}");
        Ok(())
    });
    assert!(points > 100, "only {points} points");
}

#[test]
fn what_fails_without_a_crash_is_told_as_such() {
    let setup = || Setup::new(World::default(), |w| w.handle(charge_once).handle(send_receipt));
    let refused = async |_: Engine, _: Arc<World>| Err("out of stock".into());
    let message = panic_of(|| _ = crash_everywhere(setup, refused, charged_at_most_once));
    assert_eq!(message, "without any crash, the scenario failed: out of stock");
    let check = async |_: Engine, _: Arc<World>| panic!("never satisfied");
    let message = panic_of(|| _ = crash_everywhere(setup, order, check));
    assert!(message.starts_with("without any crash, panicked at "), "{message}");
    assert!(message.ends_with("never satisfied"), "{message}");
}

#[test]
fn a_scenario_that_is_different_each_time_is_told_so() {
    let setup = || Setup::new(World::default(), |w| w.handle(charge_once).handle(send_receipt));
    let runs = std::sync::atomic::AtomicU64::new(0);
    let scenario = async |engine: Engine, world: Arc<World>| match runs
        .fetch_add(1, std::sync::atomic::Ordering::SeqCst)
    {
        0 => order(engine, world).await,
        _ => Ok(()),
    };
    let message = panic_of(|| _ = crash_everywhere(setup, scenario, charged_at_most_once));
    assert!(message.contains("the second run did not do what the first one did"), "{message}");
}

#[test]
fn crashing_everywhere_is_not_for_async_tests() {
    let message = panic_in_lab(async |_| {
        let setup = || Setup::new(World::default(), |w| w.handle(charge_once));
        crash_everywhere(setup, order, charged_at_most_once);
    });
    assert!(message.contains("call it from a plain `#[test]`"), "{message}");
}

#[test]
fn work_without_end_is_run_for_as_long_as_asked() {
    let again = |_: Charge| async { Err::<String, _>(Failure::snooze(SECOND)) };
    let setup =
        || Setup::new(World::default(), move |worker| worker.handle(again)).run_for(SECOND * 3);
    let points = crash_everywhere(setup, order, async |engine: Engine, _: Arc<World>| {
        let jobs = engine.jobs().page(None, 10).await?.jobs;
        assert!(jobs.iter().all(|job| job.state() == StateName::Scheduled));
        Ok(())
    });
    assert!(points > 20, "only {points} points");
}

#[test]
fn a_killed_process_hears_nothing_not_even_an_error() {
    let setup = || Setup::new(World::default(), |w| w.handle(charge_once).handle(send_receipt));
    let scenario = async |engine: Engine, world: Arc<World>| {
        for order in 1..=3 {
            let accepted = engine.enqueue(Charge { order }).await;
            let found = engine.counts().await;
            if accepted.is_err() || found.is_err() {
                world.see(format!("{accepted:?} {found:?}"));
            }
        }
        Ok(())
    };
    let check = async |_: Engine, world: Arc<World>| {
        assert!(world.seen.lock().expect("no panic").is_empty(), "{world:?}");
        Ok(())
    };
    let points = crash_everywhere(setup, scenario, check);
    assert!(points > 30, "only {points} points");
}

#[test]
fn the_engine_of_a_killed_process_is_refused_by_the_next_one() {
    let setup = || Setup::new(Mutex::<Option<Engine>>::default(), |worker| worker.handle(charge));
    let scenario = async |engine: Engine, kept: Arc<Mutex<Option<Engine>>>| {
        *kept.lock().expect("no panic") = Some(engine.clone());
        engine.enqueue(Charge { order: 1 }).await?;
        Ok(())
    };
    let refused = std::sync::atomic::AtomicUsize::new(0);
    let check = async |_: Engine, kept: Arc<Mutex<Option<Engine>>>| {
        let old = kept.lock().expect("no panic").clone().expect("it was kept");
        if let Err(error) = old.counts().await {
            assert!(error.to_string().contains("its process was killed"), "{error}");
            refused.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        }
        Ok(())
    };
    let points = crash_everywhere(setup, scenario, check);
    assert_eq!(refused.into_inner(), points, "at every point");
}
