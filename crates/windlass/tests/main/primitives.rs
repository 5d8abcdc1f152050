//! The Primitive contract: turns, alarms, runs and what becomes of an object when they fail.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use windlass::primitives::{Commanded, Primitive, RunContext, RunOutcome, Turn};
use windlass::{Error, Failure, KindOptions, ObjectStatus, Retry};

use crate::common::{SECOND, pass, rig};

/// Counts what it is told, and reports the sum a minute after the first.
#[derive(Clone)]
struct Tally {
    fails: Arc<AtomicU32>,
    reported: Arc<AtomicU32>,
}

#[derive(Debug, Default, Serialize, Deserialize, PartialEq)]
struct Sum {
    sum: u32,
    reports: u32,
    lost: u32,
}

impl Primitive for Tally {
    const KIND: &'static str = "tally";
    type State = Sum;
    type Command = u32;
    type Reply = u32;
    type Run = u32;
    type Output = u32;

    fn name(&self) -> &str {
        "votes"
    }

    fn options(&self) -> KindOptions {
        KindOptions::default().retry(Retry::default().up_to(2))
    }

    fn on_command(
        &self,
        state: &mut Sum,
        votes: &u32,
        turn: &mut Turn<Self>,
    ) -> Result<u32, Error> {
        if *votes == 0 {
            let (what, issues) = ("votes".to_string(), "there must be some".to_string());
            return Err(Error::Validation { what, issues });
        }
        if turn.alarm_at().is_none() {
            turn.alarm_in(Duration::from_secs(60));
        }
        state.sum += votes;
        Ok(state.sum)
    }

    fn on_alarm(&self, state: &mut Sum, turn: &mut Turn<Self>) {
        turn.run(std::mem::take(&mut state.sum));
        turn.tell("closed", state);
    }

    async fn run(&self, sum: u32, context: RunContext<Self>) -> Result<u32, Failure> {
        assert_eq!(context.key(), "mayor");
        if self.fails.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1)).is_ok()
        {
            return Err(Failure::retry("the printer jams"));
        }
        self.reported.fetch_add(sum, Ordering::SeqCst);
        Ok(sum)
    }

    fn on_outcome(&self, state: &mut Sum, sum: u32, outcome: RunOutcome<u32>, _: &mut Turn<Self>) {
        match outcome {
            RunOutcome::Completed(_) => state.reports += 1,
            RunOutcome::Failed { .. } | RunOutcome::Cancelled => state.lost += sum,
        }
    }
}

fn tally(fails: u32) -> Tally {
    Tally { fails: Arc::new(fails.into()), reported: Arc::default() }
}

#[tokio::test(start_paused = true)]
async fn a_command_an_alarm_a_run_and_its_outcome_are_each_one_turn() {
    let rig = rig().await;
    let votes = tally(1);
    let _worker = rig.engine.worker().primitive(votes.clone()).start().await.expect("it starts");
    let objects = rig.engine.objects(&votes);
    assert_eq!(objects.command("mayor", &3).await.expect("taken"), 3);
    assert_eq!(objects.command("mayor", &4).await.expect("taken"), 7);
    let view = objects.view("mayor").await.expect("answered").expect("it is there");
    assert_eq!((view.record.meta.version, view.open_jobs), (2, 1));
    assert!(view.alarm_at.is_some());
    pass(SECOND * 120).await;
    assert_eq!(votes.reported.load(Ordering::SeqCst), 7);
    let state = objects.state("mayor").await.expect("answered").expect("it is there");
    assert_eq!(state, Sum { sum: 0, reports: 1, lost: 0 });
    let view = objects.view("mayor").await.expect("answered").expect("it is there");
    assert_eq!((view.record.meta.runs, view.open_jobs), (1, 0));
    assert!(view.record.meta.last_success_at.is_some() && view.alarm_at.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_refused_command_changes_nothing_and_an_event_counts_once() {
    let rig = rig().await;
    let votes = tally(0);
    let objects = rig.engine.objects(&votes);
    let refused = objects.command("mayor", &0).await;
    assert!(matches!(refused, Err(Error::Validation { .. })), "{refused:?}");
    assert!(objects.view("mayor").await.expect("answered").is_none(), "nothing was made");
    let hour = Duration::from_secs(3_600);
    let once = async || objects.command_once("mayor", "ballot-1", hour, &5).await.expect("taken");
    assert_eq!(once().await, Commanded::Done(5));
    assert_eq!(once().await, Commanded::Duplicate);
    pass(hour).await;
    assert_eq!(once().await, Commanded::Done(10), "the window has ended");
}

#[tokio::test(start_paused = true)]
async fn a_run_that_fails_for_good_is_told_to_its_object_with_the_state_kept() {
    let rig = rig().await;
    let votes = tally(2);
    let mut failures = rig
        .engine
        .subscribe(windlass::Topics::all().topic("tally.failed"))
        .expect("the topic is known");
    let _worker = rig.engine.worker().primitive(votes.clone()).start().await.expect("it starts");
    let objects = rig.engine.objects(&votes);
    objects.command("mayor", &9).await.expect("taken");
    pass(SECOND * 600).await;
    let state = objects.state("mayor").await.expect("answered").expect("it is there");
    assert_eq!(state, Sum { sum: 0, reports: 0, lost: 9 });
    let view = objects.view("mayor").await.expect("answered").expect("it is there");
    assert_eq!((view.record.meta.failures, view.record.meta.status), (1, ObjectStatus::Active));
    let mut told = 0;
    while failures.try_next().await.is_some() {
        told += 1;
    }
    assert_eq!(told, 2, "each failed attempt is told");
}

#[tokio::test(start_paused = true)]
async fn many_commands_at_once_are_all_carried_out() {
    let rig = rig().await;
    let votes = tally(0);
    let commands = (0..200).map(|_| {
        let (engine, votes) = (rig.engine.clone(), votes.clone());
        tokio::spawn(async move { engine.objects(&votes).command("mayor", &1).await })
    });
    for command in commands.collect::<Vec<_>>() {
        command.await.expect("no panic").expect("taken");
    }
    let state = rig.engine.objects(&votes).state("mayor").await.expect("answered");
    assert_eq!(state.expect("it is there").sum, 200);
}

/// A primitive of which only the kind matters.
struct Named<const KIND: usize>;

/// Kinds that are refused, and one that is just short enough.
const KINDS: [&str; 9] = [
    "job",
    "Workers",
    "queue.mine",
    "pool",
    "debounce",
    "two words",
    concat!(
        "a_kind_of_119_bytes_which_leaves_no_room_for_the_longest_word_that_is_told_of_every",
        "_object_xxxxxxxxxxxxxxxxxxxxxxxxxxxx",
    ),
    concat!(
        "a_kind_of_118_bytes_which_leaves_room_for_the_longest_word_that_is_told_of_every",
        "_object_xxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
    ),
    "windlass.value",
];

impl<const AT: usize> Primitive for Named<AT> {
    const KIND: &'static str = KINDS[AT];
    type State = u32;
    type Command = u32;
    type Reply = u32;
    type Run = u32;
    type Output = u32;

    fn name(&self) -> &str {
        "n"
    }

    fn on_command(&self, _: &mut u32, number: &u32, _: &mut Turn<Self>) -> Result<u32, Error> {
        Ok(*number)
    }

    async fn run(&self, number: u32, _: RunContext<Self>) -> Result<u32, Failure> {
        Ok(number)
    }
}

/// What is said of the kind when it is asked, and when it is given to a worker.
async fn tried<const AT: usize>() -> Result<u32, String> {
    let rig = rig().await;
    let asked = rig.engine.objects(&Named::<AT>).command("key", &7).await;
    let asked = asked.map_err(|error| error.to_string());
    let started = rig.engine.worker().primitive(Named::<AT>).start().await;
    let started = started.map(drop).map_err(|error| error.to_string());
    assert_eq!(started, asked.clone().map(drop));
    asked
}

#[tokio::test(start_paused = true)]
async fn a_kind_with_which_other_topics_begin_is_refused() {
    for (refused, why) in [
        (tried::<0>().await, "the engine's own topics begin with that"),
        (tried::<1>().await, "the engine's own topics begin with that"),
        (tried::<2>().await, "the engine's own topics begin with that"),
        (tried::<3>().await, "the engine's own topics begin with that"),
        (tried::<4>().await, "a primitive of this crate has it"),
        (tried::<5>().await, "has a character other than"),
        (tried::<6>().await, "at most 118 bytes"),
        (tried::<8>().await, "kinds that begin with `windlass.` are the engine's own"),
    ] {
        let refused = refused.expect_err("it is refused");
        assert!(refused.contains(why), "{refused}");
    }
    assert_eq!(tried::<7>().await, Ok(7));
}
