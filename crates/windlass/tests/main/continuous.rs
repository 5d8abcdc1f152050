//! Continuous: loops that run at their times, keep their state, and outlive crashes.

use std::future::pending;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use windlass::primitives::{Continuous, ContinuousStatus, Standing, Started, Tick, Triggered};
use windlass::store::FileStore;
use windlass::store::file::FileOptions;
use windlass::testing::{Lab, Setup, VirtualClock, crash_everywhere};
use windlass::wake::LocalWake;
use windlass::{
    BoxError, Engine, Error, EventKind, Failure, InvalidSchedule, Jitter, MissedRuns, ObjectStatus,
    Received, Refusal, Retry, Schedule, State, StateName, StopReason, Subscription, Timestamp,
    Topics, WorkerBuilder,
};

use crate::common::{Counter, Directory, HOUR, Notes, SECOND};

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

#[tokio::test(start_paused = true)]
async fn long_runs_do_not_move_the_times() {
    let notes = Notes::default();
    let definition = {
        let notes = notes.clone();
        Continuous::new("counting", every(MINUTE), move |tick: Tick<u64>| {
            notes.add(when(&tick));
            async move {
                tokio::time::sleep(SECOND * 25).await;
                Ok(tick)
            }
        })
    };
    let lab = lab(&definition).await;
    lab.engine().continuous(&definition).start("a", 0).await.expect("started");
    lab.advance(MINUTE * 3).await;
    assert_eq!(notes.all(), ["0", "60", "120", "180"]);
}

/// A loop by the minute, whose second run takes so long; the times of its runs.
async fn runs_after_a_long_one(missed: MissedRuns, takes: Duration) -> Vec<String> {
    let notes = Notes::default();
    let definition = {
        let notes = notes.clone();
        let code = move |tick: Tick<u64>| {
            notes.add(when(&tick));
            async move {
                if tick.run_count() == 2 {
                    tokio::time::sleep(takes).await;
                }
                Ok(tick)
            }
        };
        Continuous::new("counting", every(MINUTE), code)
            .options(|options| options.no_timeout())
            .missed_runs(missed)
    };
    let lab = lab(&definition).await;
    lab.engine().continuous(&definition).start("a", 0).await.expect("started");
    lab.advance(MINUTE * 6).await;
    notes.all()
}

#[tokio::test(start_paused = true)]
async fn runs_missed_during_a_long_one_follow_the_policy() {
    let long = SECOND * 210; // from 60 to 270: 120, 180 and 240 are missed
    let once = runs_after_a_long_one(MissedRuns::RunOnce, long).await;
    assert_eq!(once, ["0", "60", "270 for 240", "300", "360"]);
    let skip = runs_after_a_long_one(MissedRuns::Skip, long).await;
    assert_eq!(skip, ["0", "60", "300", "360"]);
    let two = runs_after_a_long_one(MissedRuns::CatchUp { at_most: 2 }, long).await;
    assert_eq!(two, ["0", "60", "270 for 180", "270 for 240", "300", "360"]);
}

/// A loop by the hour whose worker is away from 1:00 to 6:30; the times of its runs, in seconds.
async fn runs_after_hours_away(missed: MissedRuns) -> Vec<String> {
    let notes = Notes::default();
    let definition = {
        let notes = notes.clone();
        Continuous::new("counting", every(HOUR), move |tick: Tick<u64>| {
            notes.add(when(&tick));
            async move { Ok(tick) }
        })
        .missed_runs(missed)
    };
    let lab = lab(&definition).await;
    lab.engine().continuous(&definition).start("a", 0).await.expect("started");
    lab.advance(HOUR / 2).await;
    lab.worker().expect("there is one").stop().await.expect("it stops");
    lab.advance(HOUR * 6).await;
    let worker = lab.engine().worker().primitive(definition.clone()).start().await;
    let _worker = worker.expect("it starts");
    lab.advance(HOUR).await;
    notes.all()
}

#[tokio::test(start_paused = true)]
async fn runs_missed_while_nobody_was_there_follow_the_policy() {
    let (half_past_six, seven) = ("23400", "25200");
    let once = runs_after_hours_away(MissedRuns::RunOnce).await;
    assert_eq!(once, ["0", "23400 for 21600", seven]);
    let skip = runs_after_hours_away(MissedRuns::Skip).await;
    assert_eq!(skip, ["0", seven]);
    let two = runs_after_hours_away(MissedRuns::CatchUp { at_most: 2 }).await;
    let late = |hour: u64| format!("{half_past_six} for {}", hour * 3_600);
    assert_eq!(two, ["0", &late(5), &late(6), seven]);
    let all = runs_after_hours_away(MissedRuns::CatchUp { at_most: 100 }).await;
    let expected: Vec<String> =
        ["0".to_string()].into_iter().chain((1..=6).map(late)).chain([seven.to_string()]).collect();
    assert_eq!(all, expected);
}

#[tokio::test(start_paused = true)]
async fn a_cron_loop_runs_by_the_clocks_of_its_zone() -> Result<(), InvalidSchedule> {
    let notes = Notes::default();
    let night = Schedule::cron("30 2 * * *")?.in_zone("Europe/Berlin")?;
    let definition = {
        let notes = notes.clone();
        Continuous::new("counting", night, move |tick: Tick<u64>| {
            notes.add(tick.planned_at().to_string());
            async move { Ok(tick) }
        })
        .start_immediately(false)
    };
    let lab = lab(&definition).await;
    lab.engine().continuous(&definition).start("a", 0).await.expect("started");
    lab.advance(HOUR * 48).await;
    assert_eq!(notes.all(), ["2026-01-01T01:30:00.000Z", "2026-01-02T01:30:00.000Z"]);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_cron_loop_runs_once_on_the_day_on_which_the_clocks_are_put_forward()
-> Result<(), InvalidSchedule> {
    let notes = Notes::default();
    let night = Schedule::cron("30 1 * * *")?.in_zone("Europe/Berlin")?;
    let definition = {
        let notes = notes.clone();
        Continuous::new("counting", night, move |tick: Tick<u64>| {
            notes.add(tick.planned_at().to_string());
            async move { Ok(tick) }
        })
        .start_immediately(false)
    };
    let lab = lab(&definition).await;
    // The gap is at 01:00 UTC of 29 March, the 88th day of the year.
    lab.advance(HOUR * 24 * 86).await;
    lab.engine().continuous(&definition).start("a", 0).await.expect("started");
    lab.advance(HOUR * 71).await;
    let runs = ["2026-03-28T00:30:00.000Z", "2026-03-29T00:30:00.000Z", "2026-03-29T23:30:00.000Z"];
    assert_eq!(notes.all(), runs);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_stopped_loop_keeps_its_state_and_goes_on_with_it() {
    let notes = Notes::default();
    let definition = counting(&notes);
    let lab = lab(&definition).await;
    let mut all =
        lab.engine().subscribe(Topics::all().topic("continuous.*")).expect("the topic is known");
    let loops = lab.engine().continuous(&definition);
    loops.start("a", 0).await.expect("started");
    lab.advance(SECOND * 30).await;
    loops.stop("a", "maintenance").await.expect("stopped");
    lab.advance(MINUTE * 5).await;
    let rest = status(lab.engine(), &definition).await;
    assert_eq!((rest.standing, rest.next_run), (Standing::Stopped, None));
    assert_eq!(rest.reason.as_deref(), Some("maintenance"));
    assert_eq!(loops.state("a").await.expect("answered"), Some(1));
    let again = loops.start("a", 77).await.expect("started");
    assert_eq!(again, Started { created: false, resumed: true });
    lab.advance(MINUTE).await;
    assert_eq!(notes.all(), ["0", "330", "390"], "the interval counts from the new start");
    assert_eq!(loops.state("a").await.expect("answered"), Some(3));
    loops.terminate("a").await.expect("terminated");
    assert_eq!(loops.status("a").await.expect("answered"), None);
    assert_eq!(loops.state("a").await.expect("answered"), None);
    lab.run_everything().await;
    let told = told(&mut all).await;
    let topics: Vec<&str> = told.iter().filter_map(|line| line.split(' ').next()).collect();
    let short: Vec<&str> = topics.iter().filter_map(|topic| topic.split('.').nth(1)).collect();
    let expected =
        ["started", "executed", "stopped", "started", "executed", "executed", "terminated"];
    assert_eq!(short, expected);
    let afresh = loops.start("a", 40).await.expect("started");
    assert!(afresh.created);
    lab.run_until_idle().await;
    assert_eq!(loops.state("a").await.expect("answered"), Some(41));
}

#[tokio::test(start_paused = true)]
async fn verbs_in_the_wrong_state_and_on_nobody_are_typed_errors() {
    let definition = counting(&Notes::default());
    let lab = lab(&definition).await;
    let loops = lab.engine().continuous(&definition);
    let unknown = |answer: Result<(), Error>| {
        assert!(matches!(answer, Err(Error::Refused(Refusal::UnknownObject { .. }))), "{answer:?}");
    };
    unknown(loops.stop("a", "why not").await);
    unknown(loops.terminate("a").await);
    unknown(loops.trigger("a").await.map(drop));
    assert!(loops.status("a").await.expect("answered").is_none(), "nothing was made");
    loops.start("a", 0).await.expect("started");
    loops.stop("a", "enough").await.expect("stopped");
    let wrong = |answer: Result<(), Error>, verb: &str| match answer {
        Err(Error::WrongStatus { status: ObjectStatus::Stopped, operation, .. }) => {
            assert_eq!(operation, verb);
        }
        other => panic!("{other:?}"),
    };
    wrong(loops.stop("a", "again").await, "stop");
    wrong(loops.trigger("a").await.map(drop), "trigger");
    let bad = counting(&Notes::default());
    let refused = lab.engine().continuous(&bad).start("", 0).await;
    assert!(matches!(refused, Err(Error::Refused(Refusal::OutOfBounds { .. }))), "{refused:?}");
}

#[tokio::test(start_paused = true)]
async fn a_trigger_runs_now_and_never_piles_up() {
    let (notes, fails) = (Notes::default(), Counter::default());
    let definition = {
        let (notes, fails) = (notes.clone(), fails.clone());
        Continuous::new("counting", every(MINUTE), move |mut tick: Tick<u64>| {
            notes.add(when(&tick));
            let fails = fails.clone();
            async move {
                tokio::time::sleep(SECOND * 5).await;
                if tick.run_count() == 3 && fails.add() == 1 {
                    return Err(Failure::retry("once"));
                }
                tick.state += 1;
                Ok(tick)
            }
        })
        .options(|options| options.retry(Retry::constant(SECOND * 20).jitter(Jitter::None)))
    };
    let lab = lab(&definition).await;
    let loops = lab.engine().continuous(&definition);
    loops.start("a", 0).await.expect("started");
    lab.advance(SECOND * 2).await;
    assert_eq!(loops.trigger("a").await.expect("answered"), Triggered::AlreadyRunning);
    let running = status(lab.engine(), &definition).await;
    assert_eq!((running.standing, running.executing_since), (Standing::Executing, Some(BEGIN)));
    lab.advance(SECOND * 18).await;
    assert_eq!(loops.trigger("a").await.expect("answered"), Triggered::Now);
    assert_eq!(loops.trigger("a").await.expect("answered"), Triggered::Now);
    lab.advance(SECOND * 10).await;
    assert_eq!(notes.all(), ["0", "20"], "once");
    lab.advance(SECOND * 40).await; // at 60 the third run begins, and fails at 65
    assert_eq!(notes.all(), ["0", "20", "60"], "the planned run stays where it is");
    assert_eq!(loops.trigger("a").await.expect("answered"), Triggered::Now, "it waits to retry");
    lab.advance(SECOND * 6).await;
    assert_eq!(notes.all(), ["0", "20", "60", "70 for 60"]);
    lab.advance(SECOND * 44).await;
    assert_eq!(notes.all(), ["0", "20", "60", "70 for 60", "120"], "nothing has piled up");
}

#[tokio::test(start_paused = true)]
async fn a_run_chooses_what_comes_next() {
    let notes = Notes::default();
    let definition = {
        let notes = notes.clone();
        Continuous::new("counting", every(MINUTE), move |mut tick: Tick<u64>| {
            notes.add(when(&tick));
            async move {
                match tick.run_count() {
                    1 => tick.next_in(SECOND * 10),
                    2 => tick.next_at(std::time::UNIX_EPOCH), // long ago: at once
                    4 => tick.stop("seen enough"),
                    5 => tick.terminate("done"),
                    _ => {}
                }
                tick.set_state(tick.run_count());
                Ok(tick)
            }
        })
    };
    let lab = lab(&definition).await;
    let mut ends =
        lab.engine().subscribe(Topics::all().topic("continuous.*")).expect("the topic is known");
    let loops = lab.engine().continuous(&definition);
    loops.start("a", 0).await.expect("started");
    lab.run_everything().await;
    assert_eq!(notes.all().len(), 4);
    assert_eq!(notes.all()[..2], ["0", "10"]);
    assert_eq!(notes.all()[3], "60", "back to the times of the schedule");
    let stopped = status(lab.engine(), &definition).await;
    assert_eq!(stopped.reason.as_deref(), Some("seen enough"));
    loops.start("a", 0).await.expect("started");
    lab.run_everything().await;
    assert!(loops.status("a").await.expect("answered").is_none());
    let told = told(&mut ends).await;
    let end = told.iter().find(|line| line.starts_with("continuous.terminated")).expect("told");
    assert!(end.contains("done"), "{end}");
}

#[tokio::test(start_paused = true)]
async fn a_loop_that_is_kept_after_its_end_can_be_started_until_it_is_purged() {
    let definition = counting(&Notes::default()).purge_after(HOUR);
    let lab = lab(&definition).await;
    let loops = lab.engine().continuous(&definition);
    for _ in 0..2 {
        loops.start("a", 5).await.expect("started");
        lab.run_until_idle().await;
        loops.terminate("a").await.expect("terminated");
        lab.advance(HOUR / 2).await;
        assert_eq!(status(lab.engine(), &definition).await.standing, Standing::Stopped);
    }
    assert_eq!(loops.state("a").await.expect("answered"), Some(7));
    lab.advance(HOUR).await;
    assert!(loops.status("a").await.expect("answered").is_none());
}

#[tokio::test(start_paused = true)]
async fn stopping_and_terminating_reach_the_run_that_is_under_way() {
    let notes = Notes::default();
    let definition = {
        let notes = notes.clone();
        Continuous::new("counting", every(MINUTE), move |mut tick: Tick<u64>| {
            let notes = notes.clone();
            async move {
                let told = tick.attempt().cancellation().cancelled().await;
                assert_eq!(told, StopReason::Cancelled);
                notes.add(format!("told in run {}", tick.run_count()));
                tick.state += 1;
                Ok(tick) // the work was done nevertheless
            }
        })
        .options(|options| options.no_timeout())
    };
    let lab = lab(&definition).await;
    let loops = lab.engine().continuous(&definition);
    loops.start("a", 0).await.expect("started");
    lab.advance(SECOND).await;
    loops.stop("a", "enough").await.expect("stopped");
    lab.advance(MINUTE).await;
    assert_eq!(notes.all(), ["told in run 1"]);
    let stopped = status(lab.engine(), &definition).await;
    assert_eq!((stopped.standing, stopped.next_run), (Standing::Stopped, None));
    assert_eq!(loops.state("a").await.expect("answered"), Some(1), "what was done counts");

    loops.start("a", 0).await.expect("started");
    lab.advance(SECOND).await;
    loops.terminate("a").await.expect("terminated");
    loops.start("a", 500).await.expect("started");
    lab.advance(MINUTE / 2).await;
    assert_eq!(notes.all().len(), 2);
    assert_eq!(loops.state("a").await.expect("answered"), Some(500), "another object's run");
    assert_eq!(status(lab.engine(), &definition).await.run_count, 0);
}

/// How a run ends that was stopped while it was under way.
#[derive(Clone, Copy, Debug)]
enum Ending {
    Well,
    Badly,
    ForGood,
    /// It does not listen, and is ended.
    Never,
}

#[tokio::test(start_paused = true)]
async fn a_loop_that_was_stopped_during_a_run_stays_stopped_however_the_run_ends() {
    for ending in [Ending::Well, Ending::Badly, Ending::ForGood, Ending::Never] {
        let notes = Notes::default();
        let definition = {
            let notes = notes.clone();
            Continuous::new("counting", every(MINUTE), move |mut tick: Tick<u64>| {
                notes.add(tick.run_count().to_string());
                async move {
                    tick.attempt().cancellation().cancelled().await;
                    tick.state += 1;
                    match ending {
                        Ending::Well => Ok(tick),
                        Ending::Badly => Err(Failure::retry("stopped")),
                        Ending::ForGood => Err(Failure::permanent("stopped")),
                        Ending::Never => pending().await,
                    }
                }
            })
            .options(|options| options.no_timeout())
        };
        let lab = lab(&definition).await;
        let loops = lab.engine().continuous(&definition);
        loops.start("a", 0).await.expect("started");
        lab.advance(SECOND).await;
        loops.stop("a", "enough").await.expect("stopped");
        lab.advance(HOUR * 3).await;
        assert_eq!(notes.all(), ["1"], "{ending:?}: it ran on");
        let stopped = status(lab.engine(), &definition).await;
        let told = (stopped.standing, stopped.next_run, stopped.reason.as_deref());
        assert_eq!(told, (Standing::Stopped, None, Some("enough")), "{ending:?}");
        let state = loops.state("a").await.expect("answered");
        let counts = u64::from(matches!(ending, Ending::Well));
        assert_eq!((state, stopped.run_count), (Some(counts), counts), "{ending:?}");
        let open = lab.engine().counts().await.expect("answered");
        let open = open.in_state(StateName::Scheduled) + open.in_state(StateName::Ready);
        assert_eq!(open, 0, "{ending:?}: a run is left");

        loops.start("a", 0).await.expect("started");
        lab.advance(SECOND).await;
        assert_eq!(notes.all()[1..], [(counts + 1).to_string()], "{ending:?}: it goes on");
    }
}

#[tokio::test(start_paused = true)]
async fn a_triggered_run_counts_once_and_the_next_missed_one_is_skipped_as_ever() {
    let notes = Notes::default();
    let definition = {
        let notes = notes.clone();
        Continuous::new("counting", every(HOUR), move |mut tick: Tick<u64>| {
            notes.add(format!("{}: {}", tick.run_count(), when(&tick)));
            tick.state += 1;
            async move { Ok(tick) }
        })
        .missed_runs(MissedRuns::Skip)
    };
    let lab = lab(&definition).await;
    let loops = lab.engine().continuous(&definition);
    loops.start("a", 0).await.expect("started");
    lab.advance(MINUTE).await;
    assert_eq!(loops.trigger("a").await.expect("answered"), Triggered::Now);
    lab.advance(MINUTE).await;
    assert_eq!(notes.all(), ["1: 0", "2: 60"]);
    assert_eq!(status(lab.engine(), &definition).await.run_count, 2);
    lab.worker().expect("there is one").stop().await.expect("it stops");
    lab.advance(HOUR * 2).await;
    let worker = lab.engine().worker().primitive(definition.clone()).start().await;
    let _worker = worker.expect("it starts");
    lab.advance(MINUTE).await;
    assert_eq!(notes.all().len(), 2, "what was missed is left out");
    lab.advance(HOUR).await;
    assert_eq!(notes.all()[2..], ["3: 10800"]);
    assert_eq!(loops.state("a").await.expect("answered"), Some(3));
}

#[tokio::test(start_paused = true)]
async fn objects_are_listed_by_key() {
    let definition = counting(&Notes::default());
    let lab = lab(&definition).await;
    let loops = lab.engine().continuous(&definition);
    for number in 0..25 {
        loops.start(&format!("key-{number:02}"), 0).await.expect("started");
    }
    loops.stop("key-20", "enough").await.expect("stopped");
    let first = loops.list(None, 20).await.expect("answered");
    assert_eq!(first.len(), 20);
    let rest = loops.list(first.last().map(|last| last.key.as_str()), 20).await.expect("answered");
    assert_eq!((rest.len(), rest[0].key.as_str()), (5, "key-20"));
    assert_eq!(rest[0].standing, Standing::Stopped);
}

#[tokio::test(start_paused = true)]
async fn a_state_that_can_no_longer_be_read_parks_the_object_and_is_kept() {
    #[derive(Serialize, Deserialize)]
    struct Renamed {
        total: String,
    }
    let old = counting(&Notes::default());
    let new = Continuous::new("counting", every(MINUTE), async |tick: Tick<Renamed>| Ok(tick));
    let lab = lab(&old).await;
    lab.engine().continuous(&old).start("a", 7).await.expect("started");
    lab.run_until_idle().await;
    lab.worker().expect("there is one").stop().await.expect("it stops");
    let worker = lab.engine().worker().primitive(new.clone()).start().await.expect("it starts");
    lab.advance(MINUTE).await;
    worker.stop().await.expect("it stops");
    let parked = status(lab.engine(), &old).await;
    assert_eq!(parked.standing, Standing::Failed);
    assert!(parked.reason.expect("a reason").contains("cannot be read"));
    assert_eq!(lab.engine().continuous(&old).state("a").await.expect("it is kept"), Some(8));
    let loops = lab.engine().continuous(&new);
    let unreadable = loops.state("a").await.map(drop);
    assert!(matches!(unreadable, Err(Error::UnreadableState { .. })), "{unreadable:?}");
    loops.terminate("a").await.expect("it can be purged");
    assert!(loops.status("a").await.expect("answered").is_none());
}

/// What the code of a loop has done outside.
#[derive(Default)]
struct World {
    /// The number of each run that began.
    began: Mutex<Vec<u64>>,
}

async fn count_outside(mut tick: Tick<u64>) -> Result<Tick<u64>, Failure> {
    let world: State<World> = tick.attempt().state().expect("the kit gives it");
    world.began.lock().expect("no panic").push(tick.run_count());
    assert_eq!(tick.state + 1, tick.run_count(), "no run is counted without its state");
    tick.state += 1;
    Ok(tick)
}

#[test]
fn no_crash_puts_a_loop_to_sleep_or_counts_a_run_without_its_state() {
    let definition = || Continuous::new("counting", every(MINUTE), count_outside);
    let setup = || {
        let worker = move |worker: WorkerBuilder| worker.primitive(definition());
        Setup::new(World::default(), worker).run_for(MINUTE * 3)
    };
    let scenario = async |engine: Engine, _| -> Result<(), BoxError> {
        engine.continuous(&definition()).start("a", 0).await?;
        Ok(())
    };
    let check = async |engine: Engine, world: Arc<World>| -> Result<(), BoxError> {
        let definition = definition();
        let loops = engine.continuous(&definition);
        let began = world.began.lock().expect("no panic").clone();
        let Some(status) = loops.status("a").await? else {
            // Only if the process died before the start was answered.
            assert!(began.is_empty(), "it ran, and is gone");
            return Ok(());
        };
        assert_eq!(status.standing, Standing::Active);
        assert!(status.next_run.is_some(), "it sleeps");
        assert_eq!(loops.state("a").await?, Some(status.run_count));
        let count = status.run_count;
        assert!(count >= 4, "at 0, 60, 120 and 180, and not only {count} times");
        let each_once = (1..=count).collect::<Vec<_>>();
        let mut distinct = began.clone();
        distinct.dedup();
        assert_eq!(distinct, each_once, "in their order");
        assert!(began.len() as u64 <= count + 1, "one crash repeats one run: {began:?}");
        Ok(())
    };
    let points = crash_everywhere(setup, scenario, check);
    assert!(points > 30, "{points}");
}

/// One process: an engine on the file store, killed when `life` returns. What the disk holds at
/// that moment is what the next process finds.
fn process<T>(
    disk: &mut Directory,
    clock: &Arc<VirtualClock>,
    definition: &Continuous<u64>,
    life: impl AsyncFnOnce(Engine) -> T,
) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let (ended, left) = runtime.block_on(async {
        let wake = Arc::new(LocalWake::new());
        let options = FileOptions::default();
        let store =
            FileStore::open(disk.path(), &options, clock.clone(), wake.clone()).expect("it opens");
        let engine = Engine::builder().on_store(Arc::new(store), wake, clock.clone());
        let engine = engine.expect("the default settings are valid");
        let worker = engine.worker().primitive(definition.clone()).start().await;
        let _worker = worker.expect("it starts");
        let ended = life(engine).await;
        let left = Directory::new();
        for file in std::fs::read_dir(disk.path()).expect("a directory") {
            let file = file.expect("an entry");
            std::fs::copy(file.path(), left.path().join(file.file_name())).expect("a copy");
        }
        (ended, left)
    });
    *disk = left;
    ended
}

/// Waits until something of this topic is told.
async fn heard(engine: &Engine, topic: &str) {
    let mut subscription =
        engine.subscribe_after(Topics::all().topic(topic), Some(0)).expect("the topic is known");
    // Those of earlier processes are not kept.
    while let Received::Lagged { .. } = subscription.next().await {}
}

#[test]
fn a_loop_resumes_by_itself_after_six_hours() {
    let (mut disk, clock) = (Directory::new(), Arc::new(VirtualClock::new()));
    let ran = Arc::new(Notify::new());
    let definition = {
        let ran = ran.clone();
        Continuous::new("counting", every(HOUR), move |mut tick: Tick<u64>| {
            ran.notify_one();
            async move {
                tick.state += 1;
                Ok(tick)
            }
        })
    };
    let started = process(&mut disk, &clock, &definition, async |engine| {
        engine.continuous(&definition).start("a", 0).await.expect("started");
        heard(&engine, "continuous.executed").await;
        status(&engine, &definition).await
    });
    assert_eq!(started.run_count, 1);
    let first = started.next_run.expect("it is planned");
    clock.step_forward(HOUR * 6 + MINUTE);
    let resumed = process(&mut disk, &clock, &definition, async |engine| {
        heard(&engine, "continuous.executed").await;
        status(&engine, &definition).await
    });
    assert_eq!(resumed.run_count, 2, "once for all that was missed");
    assert_eq!(resumed.next_run, Some(first + HOUR * 6), "on the same times as before");
}

/// A loop whose first `crashes` attempts never end, and that notes its recoveries.
fn crashing(crashes: u32, began: &Arc<Notify>, notes: &Notes) -> Continuous<u64> {
    let (began, notes, count) = (began.clone(), notes.clone(), Counter::default());
    Continuous::new("counting", every(HOUR), move |mut tick: Tick<u64>| {
        let (began, notes, attempts) = (began.clone(), notes.clone(), count.add());
        async move {
            notes.add(format!("attempt {} after {}", tick.attempt_number(), tick.recoveries()));
            began.notify_one();
            if attempts <= crashes {
                pending::<()>().await;
            }
            tick.state += 1;
            Ok(tick)
        }
    })
    .options(|options| options.no_timeout())
}

#[test]
fn a_loop_that_kills_its_process_stops_after_three_and_says_why() {
    let (mut disk, clock) = (Directory::new(), Arc::new(VirtualClock::new()));
    let (began, notes) = (Arc::new(Notify::new()), Notes::default());
    let definition = crashing(3, &began, &notes);
    process(&mut disk, &clock, &definition, async |engine| {
        engine.continuous(&definition).start("a", 10).await.expect("started");
        began.notified().await;
        let executing = status(&engine, &definition).await;
        assert_eq!(executing.standing, Standing::Executing);
    });
    for _ in 0..2 {
        clock.step_forward(SECOND);
        process(&mut disk, &clock, &definition, async |_| began.notified().await);
    }
    assert_eq!(notes.all(), ["attempt 1 after 0", "attempt 2 after 1", "attempt 3 after 2"]);
    clock.step_forward(SECOND);
    // Failed is failed: it is not recovered, however often the process starts.
    for _ in 0..2 {
        let failed = process(&mut disk, &clock, &definition, async |engine| {
            assert_eq!(engine.continuous(&definition).state("a").await.expect("kept"), Some(10));
            status(&engine, &definition).await
        });
        assert_eq!((failed.standing, failed.next_run), (Standing::Failed, None));
        let reason = failed.reason.expect("a reason");
        assert!(reason.contains("its workers were lost"), "{reason}");
        clock.step_forward(HOUR * 5);
    }
    assert_eq!(notes.all().len(), 3);
    let again = process(&mut disk, &clock, &definition, async |engine| {
        let started = engine.continuous(&definition).start("a", 0).await.expect("started");
        assert_eq!(started, Started { created: false, resumed: true });
        heard(&engine, "continuous.executed").await;
        assert_eq!(engine.continuous(&definition).state("a").await.expect("kept"), Some(11));
        status(&engine, &definition).await
    });
    assert_eq!((again.standing, again.reason), (Standing::Active, None));
}

#[test]
fn success_after_two_recoveries_forgives_them() {
    let (mut disk, clock) = (Directory::new(), Arc::new(VirtualClock::new()));
    let (began, notes) = (Arc::new(Notify::new()), Notes::default());
    let definition = crashing(2, &began, &notes);
    process(&mut disk, &clock, &definition, async |engine| {
        engine.continuous(&definition).start("a", 10).await.expect("started");
        began.notified().await;
    });
    clock.step_forward(SECOND);
    let between = process(&mut disk, &clock, &definition, async |engine| {
        began.notified().await;
        status(&engine, &definition).await
    });
    assert_eq!((between.recoveries, between.run_count), (1, 0));
    clock.step_forward(SECOND);
    let after = process(&mut disk, &clock, &definition, async |engine| {
        heard(&engine, "continuous.executed").await;
        status(&engine, &definition).await
    });
    assert_eq!((after.recoveries, after.run_count), (0, 1));
    assert!(after.last_recovery.is_some() && after.last_success.is_some());
    assert_eq!(notes.all().last().map(String::as_str), Some("attempt 3 after 2"));
}

#[test]
fn a_loop_that_was_stopped_while_it_ran_is_not_recovered() {
    let (mut disk, clock) = (Directory::new(), Arc::new(VirtualClock::new()));
    let (began, notes) = (Arc::new(Notify::new()), Notes::default());
    let definition = crashing(9, &began, &notes);
    process(&mut disk, &clock, &definition, async |engine| {
        let loops = engine.continuous(&definition);
        loops.start("a", 10).await.expect("started");
        began.notified().await;
        loops.stop("a", "enough").await.expect("stopped");
    });
    clock.step_forward(HOUR * 6);
    let stopped = process(&mut disk, &clock, &definition, async |engine| {
        let counts = engine.counts().await.expect("answered");
        assert_eq!(counts.in_state(StateName::Cancelled), 1);
        status(&engine, &definition).await
    });
    assert_eq!((stopped.standing, stopped.next_run), (Standing::Stopped, None));
    assert_eq!((stopped.recoveries, notes.all().len()), (0, 1));
}
