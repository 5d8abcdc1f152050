//! When a loop runs: after long runs, after hours away, by the clocks of a zone.

use std::time::Duration;

use windlass::primitives::{Continuous, Tick};
use windlass::{InvalidSchedule, MissedRuns, Schedule};

use super::{MINUTE, every, lab, when};
use crate::common::{HOUR, Notes, SECOND};

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
