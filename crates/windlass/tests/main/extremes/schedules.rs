//! When schedules run, what they enqueue, and how much they make up for.

use std::time::Duration;

use windlass::primitives::Continuous;
use windlass::{Error, InvalidSchedule, MissedRuns, Options, Schedule, Timestamp};

use super::jobs::odd_options;
use super::{DURATIONS, MICROS, Plain, Row, SIZES, plain, try_rows_on};
use crate::common::{SECOND, pass, work};

/// A schedule, or the sentence that says why it is none.
fn schedule(made: Result<Schedule, InvalidSchedule>) -> Option<Schedule> {
    made.map_err(|why| assert!(why.to_string().contains(' '), "no sentence: {why}")).ok()
}

pub(super) const MISSED: [MissedRuns; 4] = [
    MissedRuns::Skip,
    MissedRuns::RunOnce,
    MissedRuns::CatchUp { at_most: 0 },
    MissedRuns::CatchUp { at_most: 2 },
];

/// More than are made up for at once.
pub(super) const CATCH_UP: [MissedRuns; 3] = [
    MissedRuns::CatchUp { at_most: 1_000 },
    MissedRuns::CatchUp { at_most: 1_001 },
    MissedRuns::CatchUp { at_most: u32::MAX },
];

pub(super) fn schedules() -> Vec<Schedule> {
    let mut all: Vec<Schedule> =
        DURATIONS.iter().filter_map(|every| schedule(Schedule::every(*every))).collect();
    for pattern in ["* * * * * *", "0 0 1 1 *", "0 0 29 2 *", "0 0 0 1 1 * 4999"] {
        all.push(schedule(Schedule::cron(pattern)).expect("it runs"));
    }
    let started = |start: i64| {
        let every = Schedule::every(SECOND).expect("it is valid");
        schedule(every.starting_at(Timestamp::from_micros(start)))
    };
    all.extend(MICROS.into_iter().filter_map(started));
    all.extend(started(Timestamp::from_millis(95_617_583_999_999).as_micros()));
    all
}

#[test]
fn a_schedule_answers_at_any_time() {
    for schedule in schedules() {
        let _row = Row(schedule.to_string());
        for after in MICROS.map(Timestamp::from_micros) {
            schedule.next_after(after);
            for count in [0, 1, 3] {
                assert!(schedule.upcoming(after, count).len() <= count);
            }
            for now in MICROS.map(Timestamp::from_micros) {
                for missed in [MissedRuns::Skip, MissedRuns::CatchUp { at_most: 2 }] {
                    for grace in [Duration::ZERO, Duration::MAX] {
                        assert!(schedule.due(after, now, missed, grace).runs.len() <= 2);
                    }
                }
            }
        }
    }
    let every = Schedule::every(Duration::from_millis(1)).expect("it is valid");
    assert_eq!(every.upcoming(Timestamp::default(), usize::MAX).len(), windlass::RUNS_AT_ONCE);
    for text in ["every 340282366920938463463374607431768211455d", "every 0ms", "every 1000000d"] {
        text.parse::<Schedule>().expect_err("it cannot be kept");
    }
}

#[test]
fn a_schedule_may_enqueue_with_any_number() {
    let rows = schedules().into_iter().flat_map(|schedule| {
        MISSED.into_iter().map(move |missed| (schedule.clone(), missed, Options::new()))
    });
    let every = Schedule::every(SECOND).expect("it is valid");
    let with_options =
        odd_options().into_iter().map(|options| (every.clone(), MissedRuns::RunOnce, options));
    let many = CATCH_UP.into_iter().map(|missed| (every.clone(), missed, Options::new()));
    let rows: Vec<_> = rows.chain(with_options).chain(many).collect();
    try_rows_on(&[false], "a schedule", rows, async |scene, (schedule, missed, options)| {
        let schedules = scene.engine.schedules();
        let set = schedules.set("odd", schedule.clone(), work(1));
        let set = set.options(options).missed_runs(missed);
        let every_second = schedule == Schedule::every(SECOND).expect("it is valid");
        let set = match set.await {
            // A fixed time is that of a single job.
            Err(Error::Validation { issues, .. }) => {
                assert!(issues.contains(' '), "{issues}");
                None
            }
            answer => scene.taken(answer),
        };
        let worker = scene.worker(|kind| kind).await.expect("it starts");
        pass(Duration::from_millis(100)).await;
        // Nobody is there for a while.
        worker.stop().await.expect("it stops");
        scene.clock.step_forward(SECOND * 5_000);
        let worker = scene.worker(|kind| kind).await.expect("it starts");
        pass(Duration::from_millis(20)).await;
        if set.is_some() && every_second && missed != MissedRuns::Skip {
            let enqueued = scene.engine.jobs().kind("work").page(None, 1).await;
            let enqueued = enqueued.expect("it is answered").jobs;
            let view = schedules.get("odd").await;
            assert!(!enqueued.is_empty(), "{}: set, and nothing comes: {view:?}", scene.row);
        }
        scene.taken(schedules.get("odd").await);
        for limit in SIZES {
            scene.taken(schedules.list(None, limit).await);
        }
        if scene.taken(schedules.get("odd").await).flatten().is_some() {
            scene.taken(schedules.run_now("odd").await);
            schedules.remove("odd").await.expect("it is removed");
        }
        worker.stop().await.expect("it stops");
    });
}

#[test]
fn a_loop_or_a_schedule_makes_up_for_a_thousand_runs_at_most() {
    try_rows_on(&[false], "making up with", CATCH_UP, async |scene, missed| {
        let every = Schedule::every(SECOND).expect("it is valid");
        let code = |mut tick: windlass::primitives::Tick<u64>| async move {
            tick.state += 1;
            Ok(tick)
        };
        let definition = Continuous::new("odd", every.clone(), code).missed_runs(missed);
        let client = scene.engine.continuous(&definition);
        client.start("key", 0).await.expect("it starts");
        let schedules = scene.engine.schedules();
        let set = schedules.set("odd", every, Plain(1)).missed_runs(missed);
        set.await.expect("it is set");
        scene.clock.step_forward(SECOND * 5_000);
        let worker = scene.engine.worker().primitive(definition.clone()).handle(plain).slots(50);
        let worker = worker.start().await.expect("it starts");
        pass(SECOND / 2).await;
        let runs = client.state("key").await.expect("it can be read").expect("it was started");
        assert_eq!(runs, 1_000, "{}", scene.row);
        let counts = scene.engine.counts().await.expect("it is answered");
        assert_eq!(counts.of_kind("plain", windlass::StateName::Completed), 1_000);
        worker.stop().await.expect("it stops");
    });
}
