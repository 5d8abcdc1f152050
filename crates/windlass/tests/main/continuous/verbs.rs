//! Starting, stopping, triggering, terminating; what a run chooses, and what cannot be read.

use std::future::pending;

use serde::{Deserialize, Serialize};
use windlass::primitives::{Continuous, Standing, Started, Tick, Triggered};
use windlass::{
    Error, Failure, Jitter, MissedRuns, ObjectStatus, Refusal, Retry, StateName, StopReason, Topics,
};

use super::{BEGIN, MINUTE, counting, every, lab, status, told, when};
use crate::common::{Counter, HOUR, Notes, SECOND};

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
