//! Durable schedules: jobs enqueued at their times, once each, whatever happens in between.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use windlass::testing::{Lab, Setup, crash_everywhere};
use windlass::{
    Attempt, BoxError, Engine, Error, Failure, Job, JobId, MissedRuns, Options, Priority, Refusal,
    Retry, Schedule, State, Timeout, Timestamp, WorkerBuilder,
};

use crate::common::{HOUR, SECOND};

const MINUTE: Duration = Duration::from_secs(60);

/// What the clock of a lab shows when it begins.
const BEGIN: Timestamp = Timestamp::from_micros(1_767_225_600_000_000);

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Report {
    number: u32,
}

impl Job for Report {
    const KIND: &'static str = "report";
    type Output = ();
}

async fn report(_: Report) -> Result<(), Failure> {
    Ok(())
}

fn every(interval: Duration) -> Schedule {
    Schedule::every(interval).expect("a valid interval")
}

async fn lab() -> Lab {
    Lab::new(|worker| worker.handle(report)).await
}

async fn numbers(lab: &Lab) -> Vec<u32> {
    lab.enqueued::<Report>().await.iter().map(|report| report.number).collect()
}

#[tokio::test(start_paused = true)]
async fn a_schedule_enqueues_its_job_at_each_of_its_times() -> Result<(), BoxError> {
    let lab = lab().await;
    let schedules = lab.engine().schedules();
    let night = Schedule::cron("30 2 * * *")?.in_zone("Europe/Berlin")?;
    schedules.set("nightly", night.clone(), Report { number: 1 }).await?;
    lab.advance(HOUR).await;
    lab.assert_not_enqueued::<Report>().await;
    lab.advance(HOUR * 47).await;
    assert_eq!(numbers(&lab).await, [1, 1]);
    let view = schedules.get("nightly").await?.expect("it is there");
    assert_eq!(view.schedule, night);
    assert!(view.words.contains("02:30") && view.words.contains("Europe/Berlin"), "{}", view.words);
    assert_eq!(view.next_runs.len(), 5);
    assert_eq!(view.next_runs[0].to_string(), "2026-01-03T01:30:00.000Z");
    let last = view.last_run.expect("it ran");
    assert_eq!(last.planned.to_string(), "2026-01-02T01:30:00.000Z");
    assert!(lab.engine().find(last.job).await?.is_some());
    assert_eq!((view.missed, view.paused, view.failed), (MissedRuns::RunOnce, false, None));
    assert_eq!((view.kind.as_str(), view.queue.as_str()), ("report", "default"));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn the_runs_that_are_shown_are_those_that_come_when_the_clocks_are_put_forward()
-> Result<(), BoxError> {
    let lab = lab().await;
    let schedules = lab.engine().schedules();
    lab.advance(HOUR * 24 * 86).await;
    let night = Schedule::cron("30 1 * * *")?.in_zone("Europe/Berlin")?;
    schedules.set("nightly", night, Report { number: 1 }).await?;
    let view = schedules.get("nightly").await?.expect("it is there");
    let shown: Vec<String> = view.next_runs.iter().take(3).map(Timestamp::to_string).collect();
    let runs = ["2026-03-28T00:30:00.000Z", "2026-03-29T00:30:00.000Z", "2026-03-29T23:30:00.000Z"];
    assert_eq!(shown, runs);
    lab.advance(HOUR * 71).await;
    let jobs = lab.engine().jobs().kind("report").page(None, 10).await?.jobs;
    let mut came: Vec<String> = jobs.iter().map(|job| job.created_at.to_string()).collect();
    came.sort_unstable();
    assert_eq!(came, runs);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_schedule_is_edited_paused_resumed_run_and_removed() -> Result<(), BoxError> {
    let lab = lab().await;
    let schedules = lab.engine().schedules();
    schedules.set("often", every(MINUTE), Report { number: 1 }).await?;
    lab.advance(MINUTE).await;
    schedules.set("often", every(MINUTE), Report { number: 2 }).await?;
    lab.advance(MINUTE).await;
    schedules.set("often", every(HOUR), Report { number: 3 }).await?;
    lab.advance(MINUTE * 57).await;
    assert_eq!(numbers(&lab).await, [1, 2]);
    lab.advance(MINUTE).await;
    assert_eq!(numbers(&lab).await, [1, 2, 3], "the new times count");

    schedules.pause("often").await?;
    schedules.pause("often").await?;
    schedules.set("often", every(HOUR), Report { number: 4 }).await?;
    lab.advance(HOUR * 3).await;
    assert!(schedules.get("often").await?.expect("it is there").paused, "an edit keeps that");
    assert_eq!(numbers(&lab).await, [1, 2, 3]);
    let job = schedules.run_now("often").await?;
    lab.run_until_idle().await;
    assert_eq!(numbers(&lab).await, [1, 2, 3, 4]);
    assert_eq!(schedules.get("often").await?.and_then(|v| v.last_run).expect("it ran").job, job);
    schedules.resume("often").await?;
    lab.run_until_idle().await;
    assert_eq!(numbers(&lab).await.len(), 4, "nothing is made up for");
    lab.advance(HOUR).await;
    assert_eq!(numbers(&lab).await, [1, 2, 3, 4, 4]);

    assert_eq!(schedules.list(None, 10).await?.len(), 1);
    schedules.remove("often").await?;
    lab.run_everything().await;
    assert!(schedules.get("often").await?.is_none());
    assert_eq!(numbers(&lab).await.len(), 5);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_scheduled_is_refused_with_a_typed_error() -> Result<(), BoxError> {
    let lab = lab().await;
    let schedules = lab.engine().schedules();
    let unknown = |answer: Result<(), Error>| {
        let unknown = matches!(answer, Err(Error::Refused(Refusal::UnknownObject { .. })));
        assert!(unknown, "{answer:?}");
    };
    unknown(schedules.pause("nobody").await);
    unknown(schedules.resume("nobody").await);
    unknown(schedules.remove("nobody").await);
    unknown(schedules.run_now("nobody").await.map(drop));
    let job = || Report { number: 1 };
    let invalid = |answer: Result<(), Error>| {
        assert!(matches!(answer, Err(Error::Validation { .. })), "{answer:?}");
    };
    invalid(schedules.set("a", every(HOUR), job()).id(JobId::from_u128(1)).await);
    invalid(schedules.set("a", every(HOUR), job()).depends_on(JobId::from_u128(1)).await);
    invalid(schedules.set("a", every(HOUR), job()).at(lab.now()).await);
    let name = schedules.set("a", every(HOUR), job()).queue("no/slash").await;
    assert!(matches!(name, Err(Error::Refused(Refusal::InvalidName(_)))), "{name:?}");
    assert!(schedules.get("a").await?.is_none(), "nothing was stored");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn the_options_of_a_job_are_those_of_each_run() -> Result<(), BoxError> {
    let lab = lab().await;
    let retry = Retry::custom([SECOND, SECOND * 7]).up_to(4);
    let options = Options::new()
        .queue("reports")
        .priority(Priority::HIGH)
        .retry(retry.clone())
        .no_timeout()
        .delay(SECOND)
        .expires_after(HOUR)
        .unique("one")
        .tag("night")
        .metadata("team", "billing");
    let set = lab.engine().schedules().set("a", every(HOUR), Report { number: 9 });
    set.options(options).await?;
    lab.advance(HOUR).await;
    let last = lab.engine().schedules().get("a").await?.and_then(|view| view.last_run);
    let record = lab.engine().find(last.expect("it ran").job).await?.expect("it is kept");
    let job = &record.job;
    assert_eq!((job.queue.as_str(), job.priority), ("reports", Priority::HIGH));
    assert_eq!((job.retry.as_ref(), job.timeout), (Some(&retry), Some(Timeout::Off)));
    assert_eq!(job.expires_after, Some(HOUR));
    assert_eq!(job.unique.as_ref().map(|unique| unique.key.as_str()), Some("one"));
    assert_eq!(job.tags[0].as_str(), "night");
    assert_eq!(job.metadata.get("team").map(String::as_str), Some("billing"));
    assert_eq!(job.start, windlass::Start::After(SECOND));
    Ok(())
}

/// A schedule by the hour whose worker is away from 0:30 to 4:30; how often it enqueued by 5:00.
async fn runs_after_hours_away(missed: MissedRuns) -> usize {
    let lab = lab().await;
    let set = lab.engine().schedules().set("hourly", every(HOUR), Report { number: 1 });
    set.missed_runs(missed).await.expect("set");
    lab.advance(HOUR / 2).await;
    lab.worker().expect("there is one").stop().await.expect("it stops");
    lab.advance(HOUR * 4).await;
    // One that is limited to another queue keeps schedules going all the same.
    let worker = lab.engine().worker().handle(report).queue("other").start().await;
    let _worker = worker.expect("it starts");
    // As a program does when it starts: what is owed is still owed.
    let set = lab.engine().schedules().set("hourly", every(HOUR), Report { number: 1 });
    set.missed_runs(missed).await.expect("set");
    lab.advance(HOUR / 2).await;
    lab.enqueued::<Report>().await.len()
}

#[tokio::test(start_paused = true)]
async fn times_missed_while_nobody_was_there_follow_the_policy() {
    assert_eq!(runs_after_hours_away(MissedRuns::RunOnce).await, 2);
    assert_eq!(runs_after_hours_away(MissedRuns::Skip).await, 1);
    assert_eq!(runs_after_hours_away(MissedRuns::CatchUp { at_most: 3 }).await, 4);
    assert_eq!(runs_after_hours_away(MissedRuns::CatchUp { at_most: 100 }).await, 5);
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_delays_a_schedule_and_does_not_end_it() -> Result<(), BoxError> {
    let lab = lab().await;
    let reports = lab.engine().queue("reports")?;
    reports.pause().await?;
    reports.max_depth(Some(1)).await?;
    let set = lab.engine().schedules().set("a", every(MINUTE), Report { number: 1 });
    set.queue("reports").missed_runs(MissedRuns::CatchUp { at_most: 100 }).await?;
    lab.advance(MINUTE * 10).await;
    assert_eq!(numbers(&lab).await.len(), 1, "there is no room");
    reports.max_depth(None).await?;
    lab.advance(MINUTE * 2).await;
    assert_eq!(numbers(&lab).await.len(), 12);
    Ok(())
}

/// When each report was due that a handler has seen.
#[derive(Default)]
struct Desk {
    seen: Mutex<Vec<(JobId, u64)>>,
}

async fn file(_: Report, attempt: Attempt, desk: State<Desk>) -> Result<(), Failure> {
    let minute = attempt.enqueued_at().since(BEGIN).as_secs() / 60;
    desk.seen.lock().expect("no panic").push((attempt.id(), minute));
    Ok(())
}

#[test]
fn no_crash_makes_a_schedule_fire_twice_or_forget_a_time() {
    let setup = || {
        let worker = |worker: WorkerBuilder| worker.handle(file);
        Setup::new(Desk::default(), worker).run_for(MINUTE * 3)
    };
    let scenario = async |engine: Engine, _| -> Result<(), BoxError> {
        engine.schedules().set("often", every(MINUTE), Report { number: 1 }).await?;
        Ok(())
    };
    let check = async |engine: Engine, desk: Arc<Desk>| -> Result<(), BoxError> {
        let seen = desk.seen.lock().expect("no panic").clone();
        let jobs = engine.jobs().kind("report").page(None, 100).await?.jobs;
        let Some(view) = engine.schedules().get("often").await? else {
            assert!(jobs.is_empty() && seen.is_empty(), "it fired, and is gone");
            return Ok(());
        };
        assert!(!view.paused && view.failed.is_none());
        let mut minutes: Vec<u64> =
            jobs.iter().map(|job| job.created_at.since(BEGIN).as_secs() / 60).collect();
        minutes.sort_unstable();
        let expected: Vec<u64> = (1..=minutes.len() as u64).collect();
        assert_eq!(minutes, expected, "one job for each minute");
        assert!(minutes.len() >= 3, "and for every one");
        Ok(())
    };
    let points = crash_everywhere(setup, scenario, check);
    assert!(points > 30, "{points}");
}
