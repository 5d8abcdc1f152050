//! Continuous: loops that run at their times, keep their state, and outlive crashes.

mod crashes;
mod times;
mod verbs;

use std::time::Duration;

use windlass::primitives::{Continuous, ContinuousStatus, Standing, Started, Tick};
use windlass::testing::Lab;
use windlass::{
    Engine, EventKind, Failure, Received, Retry, Schedule, StateName, Subscription, Timestamp,
    Topics,
};

use crate::common::{Counter, Notes, SECOND};

const MINUTE: Duration = Duration::from_secs(60);

/// What the clock of a lab shows when it begins.
const BEGIN: Timestamp = Timestamp::from_micros(1_767_225_600_000_000);

fn every(interval: Duration) -> Schedule {
    Schedule::every(interval).expect("a valid interval")
}

/// Counts its runs, and notes when each was and what it stood for, in seconds since the beginning.
fn counting(notes: &Notes) -> Continuous<u64> {
    let notes = notes.clone();
    Continuous::new("counting", every(MINUTE), move |mut tick: Tick<u64>| {
        notes.add(when(&tick));
        async move {
            tick.state += 1;
            Ok(tick)
        }
    })
}

fn when<S>(tick: &Tick<S>) -> String {
    let began = tick.attempt().started_at().since(BEGIN).as_secs();
    let planned = tick.planned_at().since(BEGIN).as_secs();
    if began == planned { began.to_string() } else { format!("{began} for {planned}") }
}

async fn lab(definition: &Continuous<u64>) -> Lab {
    let definition = definition.clone();
    Lab::new(|worker| worker.primitive(definition)).await
}

async fn status(engine: &Engine, definition: &Continuous<u64>) -> ContinuousStatus {
    let status = engine.continuous(definition).status("a").await.expect("answered");
    status.expect("it is there")
}

async fn told(subscription: &mut Subscription) -> Vec<String> {
    let mut told = Vec::new();
    while let Some(heard) = subscription.try_next().await {
        if let Received::Event(event) = heard
            && let EventKind::Object { topic, detail } = &event.what
        {
            told.push(format!("{topic} {detail}"));
        }
    }
    told
}

#[tokio::test(start_paused = true)]
async fn a_loop_runs_when_it_is_started_and_then_at_its_interval() {
    let notes = Notes::default();
    let definition = counting(&notes);
    let lab = lab(&definition).await;
    let mut executed = lab
        .engine()
        .subscribe(Topics::all().topic("continuous.executed"))
        .expect("the topic is known");
    let loops = lab.engine().continuous(&definition);
    let started = loops.start("a", 100).await.expect("started");
    assert_eq!(started, Started { created: true, resumed: false });
    lab.advance(MINUTE * 2).await;
    assert_eq!(notes.all(), ["0", "60", "120"]);
    assert_eq!(loops.state("a").await.expect("answered"), Some(103));
    let status = status(lab.engine(), &definition).await;
    assert_eq!((status.standing, status.run_count), (Standing::Active, 3));
    assert_eq!(status.next_run, Some(BEGIN + MINUTE * 3));
    assert_eq!(status.last_success, Some(BEGIN + MINUTE * 2));
    assert_eq!(told(&mut executed).await.len(), 3);
    let open = lab.engine().counts().await.expect("answered").in_state(StateName::Scheduled);
    assert_eq!(open, 1, "one run is planned");
}

#[tokio::test(start_paused = true)]
async fn a_loop_that_does_not_start_immediately_runs_an_interval_later() {
    let notes = Notes::default();
    let definition = counting(&notes).start_immediately(false);
    let lab = lab(&definition).await;
    lab.advance(SECOND * 7).await;
    lab.engine().continuous(&definition).start("a", 0).await.expect("started");
    lab.advance(MINUTE * 2).await;
    assert_eq!(notes.all(), ["67", "127"]);
}

#[tokio::test(start_paused = true)]
async fn a_second_start_leaves_the_state_and_the_schedule_alone() {
    let notes = Notes::default();
    let definition = counting(&notes);
    let lab = lab(&definition).await;
    let loops = lab.engine().continuous(&definition);
    loops.start("a", 0).await.expect("started");
    lab.advance(SECOND * 30).await;
    let again = loops.start("a", 50).await.expect("answered");
    assert_eq!(again, Started { created: false, resumed: false });
    lab.advance(SECOND * 30).await;
    assert_eq!(notes.all(), ["0", "60"], "one instance, one schedule");
    assert_eq!(loops.state("a").await.expect("answered"), Some(2));
}

#[tokio::test(start_paused = true)]
async fn a_failing_run_leaves_the_state_and_the_loop_goes_on() {
    let runs = Counter::default();
    let code = {
        let runs = runs.clone();
        move |mut tick: Tick<u64>| {
            let run = runs.add();
            async move {
                tick.state += 1;
                if run == 2 || run == 3 { Err(Failure::retry("no connection")) } else { Ok(tick) }
            }
        }
    };
    let retry = Retry::constant(SECOND).up_to(2);
    let definition = Continuous::new("counting", every(MINUTE), code)
        .options(move |options| options.retry(retry.clone()));
    let lab = lab(&definition).await;
    let mut failed = lab
        .engine()
        .subscribe(Topics::all().topic("continuous.failed"))
        .expect("the topic is known");
    let loops = lab.engine().continuous(&definition);
    loops.start("a", 0).await.expect("started");
    lab.advance(MINUTE + SECOND * 30).await;
    assert_eq!(loops.state("a").await.expect("answered"), Some(1), "as before the run");
    let standing = status(lab.engine(), &definition).await;
    assert_eq!((standing.run_count, standing.failures), (1, 1));
    assert_eq!(standing.next_run, Some(BEGIN + MINUTE * 2), "it goes on at its next time");
    let dead = lab.engine().dead_letters().page(None, 10).await.expect("answered").jobs;
    assert_eq!(dead.len(), 1, "the run is among the dead letters");
    let told = told(&mut failed).await;
    assert_eq!(told.len(), 2, "each attempt is told: {told:?}");
    assert!(told[1].contains("no connection") && told[1].contains("state"), "{told:?}");
    lab.advance(MINUTE).await;
    assert_eq!(loops.state("a").await.expect("answered"), Some(2));

    // A replayed run is one run more, and the loop keeps its one alarm.
    lab.engine().replay(dead[0].id()).await.expect("replayed");
    lab.run_until_idle().await;
    assert_eq!(loops.state("a").await.expect("answered"), Some(3));
    let after = status(lab.engine(), &definition).await;
    assert_eq!(after.next_run, Some(BEGIN + MINUTE * 3));
    assert_eq!(lab.engine().counts().await.expect("answered").in_state(StateName::Scheduled), 1);
}
