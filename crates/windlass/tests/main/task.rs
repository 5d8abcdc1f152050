//! Task: events in order, state that only success changes, alarms, hooks, and the end.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use windlass::primitives::{FailedRun, StateMachine, Task, TaskContext, TaskTurn};
use windlass::testing::{Setup, crash_everywhere};
use windlass::{BoxError, Engine, Error, Failure, Job, ObjectStatus, Refusal, Retry};

use crate::common::{HOUR, Notes, Rig, SECOND, pass, rig, settle_down};

const MINUTE: Duration = Duration::from_secs(60);

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Step {
    /// Remember this.
    Note(u32),
    /// Take so long, whatever one is told meanwhile.
    Dawdle(Duration),
    /// Remember 99, and fail.
    Fail,
    /// Ring so much later.
    Ring(Duration),
    /// Ring not at all.
    Hush,
    /// End.
    End,
}

/// Does as it is told.
struct Obedient {
    notes: Notes,
    /// Whether a ring fails.
    is_broken: bool,
}

/// Enqueued by the hooks.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Tell(String);

impl Job for Tell {
    const KIND: &'static str = "tell";
    type Output = ();
}

impl StateMachine for Obedient {
    type State = Vec<u32>;
    type Event = Step;

    async fn on_event(&self, task: &mut TaskContext<Vec<u32>>, step: Step) -> Result<(), Failure> {
        self.notes.add(format!("{} {step:?} {:?} {}", task.key(), task.state, task.is_retry()));
        match step {
            Step::Note(number) => task.state.push(number),
            Step::Dawdle(duration) => {
                tokio::time::sleep(duration).await;
                task.state.push(0);
            }
            Step::Fail => {
                task.state.push(99);
                task.terminate();
                return Err(Failure::retry("as told"));
            }
            Step::Ring(after) => task.schedule(after),
            Step::Hush => task.cancel_alarm(),
            Step::End => task.terminate(),
        }
        Ok(())
    }

    async fn on_alarm(&self, task: &mut TaskContext<Vec<u32>>) -> Result<(), Failure> {
        self.notes.add(format!("{} rings {:?}", task.key(), task.state));
        task.state.push(7);
        if self.is_broken { Err(Failure::permanent("the bell is broken")) } else { Ok(()) }
    }

    fn on_idle(&self, task: &mut TaskTurn<'_, Self>) {
        let idle = format!("{} is idle {:?}", task.key(), task.state);
        task.enqueue(&Tell(idle)).expect("it can be written");
    }

    fn on_error(&self, task: &mut TaskTurn<'_, Self>, failed: FailedRun<Step>) {
        let FailedRun { event, error, attempts, .. } = failed;
        task.state.push(1_000);
        task.enqueue(&Tell(format!("{event:?}: {error} ({attempts})"))).expect("it can be written");
    }

    fn validate(&self, step: &Step) -> Result<(), String> {
        if *step == Step::Note(13) { Err("not that number".to_string()) } else { Ok(()) }
    }
}

fn task(notes: &Notes, is_broken: bool) -> Task<Obedient> {
    let machine = Obedient { notes: notes.clone(), is_broken };
    Task::new("pupil", machine).options(|options| {
        options.retry(Retry::constant(MINUTE).jitter(windlass::Jitter::None).up_to(2))
    })
}

/// What the hooks have told, in its order.
async fn told(rig: &Rig) -> Vec<String> {
    let page = rig.engine.jobs().kind("tell").page(None, 100).await.expect("answered");
    let jobs = page.jobs.iter().rev();
    let told = jobs.map(|job| serde_json::from_slice::<Tell>(&job.job.payload).expect("a tell").0);
    told.collect()
}

#[tokio::test(start_paused = true)]
async fn events_are_handled_in_order_and_each_sees_what_the_one_before_left() {
    let notes = Notes::default();
    let pupil = task(&notes, false);
    let rig = rig().await;
    let _worker = rig.engine.worker().primitive(pupil.clone()).start().await.expect("it starts");
    let client = rig.engine.task(&pupil);
    let sent = client.send("ada", Step::Dawdle(SECOND * 10)).await.expect("taken");
    assert_eq!((sent.ahead, sent.duplicate), (0, false));
    for number in 1..=3 {
        let sent = client.send("ada", Step::Note(number)).await.expect("taken");
        assert_eq!(sent.ahead, u64::from(number));
    }
    client.send("bob", Step::Note(5)).await.expect("taken");
    pass(SECOND).await;
    let status = client.status("ada").await.expect("answered").expect("it is there");
    assert_eq!((status.events, status.runs, status.executing_since.is_some()), (4, 0, true));
    assert_eq!(client.state("bob").await.expect("answered"), Some(vec![5]), "others do not wait");
    pass(SECOND * 10).await;
    assert_eq!(client.state("ada").await.expect("answered"), Some(vec![0, 1, 2, 3]));
    let seen: Vec<_> = notes.all().into_iter().filter(|note| note.starts_with("ada")).collect();
    let expected = [
        "ada Dawdle(10s) [] false",
        "ada Note(1) [0] false",
        "ada Note(2) [0, 1] false",
        "ada Note(3) [0, 1, 2] false",
    ];
    assert_eq!(seen, expected);
    assert_eq!(client.list(None, 10).await.expect("answered").objects.len(), 2);
    let status = client.status("ada").await.expect("answered").expect("it is there");
    assert_eq!((status.events, status.runs, status.status), (0, 4, ObjectStatus::Active));
}

#[tokio::test(start_paused = true)]
async fn a_failing_event_holds_up_the_later_ones_until_it_is_given_up() {
    let notes = Notes::default();
    let pupil = task(&notes, false);
    let rig = rig().await;
    let _worker = rig.engine.worker().primitive(pupil.clone()).start().await.expect("it starts");
    let client = rig.engine.task(&pupil);
    client.send("ada", Step::Note(1)).await.expect("taken");
    client.send("ada", Step::Fail).await.expect("taken");
    client.send("ada", Step::Note(2)).await.expect("taken");
    pass(SECOND * 30).await;
    assert_eq!(client.state("ada").await.expect("answered"), Some(vec![1]), "nothing of it counts");
    pass(MINUTE).await;
    assert_eq!(client.state("ada").await.expect("answered"), Some(vec![1, 1_000, 2]));
    let expected = [
        "ada Note(1) [] false",
        "ada Fail [1] false",
        "ada Fail [1] true",
        "ada Note(2) [1, 1000] false",
    ];
    assert_eq!(notes.all(), expected);
    let status = client.status("ada").await.expect("answered").expect("it is there");
    assert_eq!((status.runs, status.failures), (2, 1), "only success counts as a run");
    let expected = ["Some(Fail): as told (2)", "ada is idle [1, 1000, 2]"];
    assert_eq!(told(&rig).await, expected);
    let dead = rig.engine.dead_letters().page(None, 10).await.expect("answered").jobs;
    assert_eq!(String::from_utf8_lossy(&dead[0].job.payload), "{\"event\":\"Fail\"}");
    rig.engine.replay(dead[0].job.id).await.expect("replayed");
    settle_down().await;
    assert_eq!(notes.all()[4..], ["ada Fail [1, 1000, 2] true"], "it has run before");
}

#[tokio::test(start_paused = true)]
async fn an_alarm_is_set_moved_and_called_off_by_the_events() {
    let notes = Notes::default();
    let pupil = task(&notes, false);
    let rig = rig().await;
    let _worker = rig.engine.worker().primitive(pupil.clone()).start().await.expect("it starts");
    let client = rig.engine.task(&pupil);
    client.send("ada", Step::Ring(MINUTE)).await.expect("taken");
    pass(SECOND * 30).await;
    client.send("ada", Step::Ring(MINUTE)).await.expect("taken");
    pass(SECOND * 59).await;
    assert_eq!(client.state("ada").await.expect("answered"), Some(vec![]), "it was moved");
    let status = client.status("ada").await.expect("answered").expect("it is there");
    assert_eq!((status.events, status.alarm_at.is_some()), (0, true));
    assert!(told(&rig).await.is_empty(), "a task with an alarm is not idle");
    pass(SECOND).await;
    assert_eq!(client.state("ada").await.expect("answered"), Some(vec![7]));
    assert_eq!(told(&rig).await, ["ada is idle [7]"]);
    client.send("ada", Step::Ring(MINUTE)).await.expect("taken");
    client.send("ada", Step::Hush).await.expect("taken");
    pass(HOUR).await;
    assert_eq!(client.state("ada").await.expect("answered"), Some(vec![7]));
    assert_eq!(told(&rig).await, ["ada is idle [7]", "ada is idle [7]"]);
}

#[tokio::test(start_paused = true)]
async fn an_alarm_that_fails_for_good_is_told_and_the_task_goes_on() {
    let notes = Notes::default();
    let pupil = task(&notes, true);
    let rig = rig().await;
    let _worker = rig.engine.worker().primitive(pupil.clone()).start().await.expect("it starts");
    let client = rig.engine.task(&pupil);
    client.send("ada", Step::Ring(MINUTE)).await.expect("taken");
    pass(HOUR).await;
    let expected = ["None: the bell is broken (1)", "ada is idle [1000]"];
    assert_eq!(told(&rig).await, expected);
    client.send("ada", Step::Note(1)).await.expect("taken");
    settle_down().await;
    assert_eq!(client.state("ada").await.expect("answered"), Some(vec![1_000, 1]));
    let status = client.status("ada").await.expect("answered").expect("it is there");
    assert_eq!((status.status, status.alarm_at), (ObjectStatus::Active, None));
}

/// Fails whatever it is told, and looks after itself by an alarm.
struct Stubborn(Notes);

impl StateMachine for Stubborn {
    type State = u32;
    type Event = u32;

    async fn on_event(&self, task: &mut TaskContext<u32>, event: u32) -> Result<(), Failure> {
        task.cancel_alarm();
        Err(Failure::permanent(format!("not {event}")))
    }

    async fn on_alarm(&self, task: &mut TaskContext<u32>) -> Result<(), Failure> {
        self.0.add(format!("rings at {}", task.state));
        Ok(())
    }

    fn on_idle(&self, task: &mut TaskTurn<'_, Self>) {
        self.0.add(format!("idle at {}", task.state));
        task.terminate();
    }

    fn on_error(&self, task: &mut TaskTurn<'_, Self>, failed: FailedRun<u32>) {
        *task.state += failed.event.expect("no alarm fails");
        task.schedule(MINUTE);
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_hook_asks_for_after_a_failure_is_done_and_an_alarm_keeps_a_task_from_being_idle() {
    let notes = Notes::default();
    let stubborn = Task::new("stubborn", Stubborn(notes.clone()));
    let rig = rig().await;
    let worker = rig.engine.worker().primitive(stubborn.clone()).start().await;
    let _worker = worker.expect("it starts");
    let client = rig.engine.task(&stubborn);
    client.send("ada", 1).await.expect("taken");
    pass(SECOND * 30).await;
    client.send("ada", 2).await.expect("taken");
    pass(SECOND * 59).await;
    assert_eq!(notes.all(), [""; 0], "the second failure has moved the alarm");
    assert_eq!(client.state("ada").await.expect("answered"), Some(3));
    pass(SECOND).await;
    assert_eq!(notes.all(), ["rings at 3", "idle at 3"]);
    assert_eq!(client.state("ada").await.expect("answered"), None);
}

#[tokio::test(start_paused = true)]
async fn a_task_is_not_idle_while_events_wait_behind_one_that_failed() {
    let notes = Notes::default();
    let pupil = task(&notes, false);
    let rig = rig().await;
    let client = rig.engine.task(&pupil);
    for step in [Step::Fail, Step::Note(1), Step::Note(2)] {
        client.send("ada", step).await.expect("taken");
    }
    let _worker = rig.engine.worker().primitive(pupil.clone()).start().await.expect("it starts");
    pass(HOUR).await;
    let expected = ["Some(Fail): as told (2)", "ada is idle [1000, 1, 2]"];
    assert_eq!(told(&rig).await, expected);
}

#[tokio::test(start_paused = true)]
async fn a_task_that_ends_is_purged_with_all_that_waits() {
    let notes = Notes::default();
    let pupil = task(&notes, false);
    let rig = rig().await;
    let client = rig.engine.task(&pupil);
    for step in [Step::Ring(MINUTE), Step::End, Step::Note(1)] {
        client.send("ada", step).await.expect("taken");
    }
    let _worker = rig.engine.worker().primitive(pupil.clone()).start().await.expect("it starts");
    pass(HOUR).await;
    assert_eq!(notes.all().len(), 2, "what came after the end was not run: {:?}", notes.all());
    assert_eq!(client.state("ada").await.expect("answered"), None);
    assert_eq!(client.status("ada").await.expect("answered"), None);
    assert!(told(&rig).await.is_empty());

    let unknown = client.terminate("ada").await;
    assert!(matches!(unknown, Err(Error::Refused(Refusal::UnknownObject { .. }))), "{unknown:?}");
    assert!(client.list(None, 10).await.expect("answered").objects.is_empty());
    client.send("ada", Step::Note(2)).await.expect("taken");
    client.terminate("ada").await.expect("ended");
    assert_eq!(client.state("ada").await.expect("answered"), None);
}

#[tokio::test(start_paused = true)]
async fn what_a_terminated_task_still_does_is_not_taken_over_by_its_successor() {
    // Also when both are made in the same microsecond: no clock tells them apart.
    for between in [Duration::ZERO, SECOND] {
        let notes = Notes::default();
        let pupil = task(&notes, false);
        let rig = rig().await;
        let worker = rig.engine.worker().primitive(pupil.clone()).cancel_grace(HOUR);
        let _worker = worker.start().await.expect("it starts");
        let client = rig.engine.task(&pupil);
        client.send("ada", Step::Dawdle(MINUTE)).await.expect("taken");
        settle_down().await;
        pass(between).await;
        client.terminate("ada").await.expect("ended");
        client.send("ada", Step::Note(1)).await.expect("taken");
        pass(HOUR).await;
        assert_eq!(client.state("ada").await.expect("answered"), Some(vec![1]), "{between:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_event_counts_once_and_an_invalid_one_not_at_all() {
    let notes = Notes::default();
    let pupil = task(&notes, false).remember_ids(HOUR);
    let rig = rig().await;
    let _worker = rig.engine.worker().primitive(pupil.clone()).start().await.expect("it starts");
    let client = rig.engine.task(&pupil);
    let refused = client.send_once("ada", "e1", Step::Note(13)).await.expect_err("refused");
    assert_eq!(refused.to_string(), "an event of task `pupil`: not that number");
    assert_eq!(client.state("ada").await.expect("answered"), None, "nothing was stored");
    assert!(!client.send_once("ada", "e1", Step::Note(1)).await.expect("taken").duplicate);
    assert!(client.send_once("ada", "e1", Step::Note(1)).await.expect("taken").duplicate);
    pass(HOUR).await;
    assert!(!client.send_once("ada", "e1", Step::Note(2)).await.expect("taken").duplicate);
    settle_down().await;
    assert_eq!(client.state("ada").await.expect("answered"), Some(vec![1, 2]));
}

/// Which events were acknowledged.
#[derive(Default)]
struct Sender {
    acknowledged: Mutex<Vec<u32>>,
}

async fn send_some(engine: Engine, sender: Arc<Sender>) -> Result<(), BoxError> {
    let pupil = task(&Notes::default(), false);
    for number in 1..=3 {
        engine.task(&pupil).send("ada", Step::Note(number)).await?;
        sender.acknowledged.lock().expect("no panic").push(number);
        if number == 2 {
            engine.task(&pupil).send("ada", Step::Ring(SECOND)).await?;
        }
    }
    Ok(())
}

/// The state has every acknowledged event once, in order, and the alarm at most once.
async fn each_once_in_order(engine: Engine, sender: Arc<Sender>) -> Result<(), BoxError> {
    let pupil = task(&Notes::default(), false);
    let state = engine.task(&pupil).state("ada").await?.unwrap_or_default();
    let acknowledged = sender.acknowledged.lock().expect("no panic").clone();
    let events: Vec<u32> = state.iter().copied().filter(|number| *number < 7).collect();
    let (taken, rings) = (events.len(), state.len() - events.len());
    // What was not acknowledged may have been taken all the same.
    let in_order = events == (1..=3).collect::<Vec<u32>>()[..taken] && taken >= acknowledged.len();
    // It was set before the third event was sent.
    let must_ring = acknowledged.len() == 3;
    if !in_order || rings > 1 || (must_ring && rings == 0) {
        return Err(format!("{acknowledged:?} became {state:?}").into());
    }
    Ok(())
}

#[test]
fn each_accepted_event_changes_the_state_once_and_in_order_whatever_crashes() {
    let pupil = || task(&Notes::default(), false);
    let setup = || Setup::new(Sender::default(), move |worker| worker.primitive(pupil()));
    let points = crash_everywhere(setup, send_some, each_once_in_order);
    assert!(points > 50, "only {points} crash points");
}
