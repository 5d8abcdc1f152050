//! Debounce: what is kept, when it is flushed, and that every event is in exactly one batch.

use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use windlass::primitives::{
    Debounce, DebouncePhase, Flush, FlushReason, Offered, Throttle, Throttled,
};
use windlass::testing::{Lab, Setup, crash_everywhere};
use windlass::{
    Attempt, BoxError, Engine, Error, EventKind, Failure, Jitter, JobRecord, KindOptions, Next,
    Received, Refusal, Retry, StateName, Topics,
};

use crate::common::{Counter, Fault, HOUR, Notes, SECOND, pass, rig, settle_down};

const MINUTE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(86_400);

/// Notes `key: what was kept (count, reason)`.
fn noting<A: std::fmt::Debug + Send + 'static>(
    notes: &Notes,
) -> impl Fn(Flush<A>) -> std::future::Ready<Result<(), Failure>> + Send + Sync + 'static {
    let notes = notes.clone();
    move |flush| {
        let Flush { key, kept, count, reason, .. } = flush;
        notes.add(format!("{key}: {kept:?} ({count}, {reason:?})"));
        std::future::ready(Ok(()))
    }
}

/// What was told under these topics since the subscription, as `topic detail`.
async fn told(subscription: &mut windlass::Subscription) -> Vec<String> {
    let mut told = Vec::new();
    while let Some(heard) = subscription.try_next().await {
        let Received::Event(event) = heard else { panic!("nothing was missed") };
        let EventKind::Object { topic, detail } = &event.what else { panic!("{event:?}") };
        told.push(format!("{topic} {detail}"));
    }
    told
}

async fn runs(engine: &Engine, name: &str) -> Vec<JobRecord> {
    let page = engine.jobs().kind(&format!("debounce.{name}")).page(None, 1_000).await;
    page.expect("answered").jobs
}

// A20, A31 accumulation.
#[tokio::test(start_paused = true)]
async fn a_flush_gets_the_latest_the_first_all_or_what_a_reducer_makes_of_them() {
    let notes = Notes::default();
    let latest = Debounce::new("latest", MINUTE, noting::<u32>(&notes));
    let first = Debounce::keep_first("first", MINUTE, noting::<u32>(&notes));
    let all = Debounce::collect("all", MINUTE, noting::<Vec<u32>>(&notes));
    let add = |sum: Option<u64>, event: u32| sum.unwrap_or(0) + u64::from(event);
    let sum = Debounce::reduce("sum", MINUTE, add, noting::<u64>(&notes));
    let lab = Lab::new(|worker| {
        let worker = worker.primitive(latest.clone()).primitive(first.clone());
        worker.primitive(all.clone()).primitive(sum.clone())
    });
    let lab = lab.await;
    let engine = lab.engine();
    for event in [3_u32, 4, 5] {
        engine.debounce(&latest).add("latest", event).await.expect("taken");
        engine.debounce(&first).add("first", event).await.expect("taken");
        engine.debounce(&all).add("all", event).await.expect("taken");
        engine.debounce(&sum).add("sum", event).await.expect("taken");
    }
    assert_eq!(engine.debounce(&sum).state("sum").await.expect("answered"), Some(12));
    lab.run_everything().await;
    let mut flushed = notes.all();
    flushed.sort();
    let expected = [
        "all: [3, 4, 5] (3, Timeout)",
        "first: 3 (3, Timeout)",
        "latest: 5 (3, Timeout)",
        "sum: 12 (3, Timeout)",
    ];
    assert_eq!(flushed, expected);
}

// A21, C19, A31 flush triggers.
#[tokio::test(start_paused = true)]
async fn the_window_is_fixed_by_its_first_event_and_closed_early_by_the_twentieth() {
    let notes = Notes::default();
    let pages = Debounce::new("pages", MINUTE * 5, noting::<u32>(&notes)).max_events(20);
    let rig = rig().await;
    let _worker = rig.engine.worker().primitive(pages.clone()).start().await.expect("it starts");
    let client = rig.engine.debounce(&pages);
    let first = client.add("home", 1).await.expect("taken");
    assert_eq!((first.event_count, first.flushed, first.duplicate), (1, false, false));
    for event in 2..=19 {
        pass(SECOND).await;
        let added = client.add("home", event).await.expect("taken");
        assert_eq!(
            (added.event_count, added.will_flush_at),
            (u64::from(event), first.will_flush_at)
        );
    }
    assert!(notes.all().is_empty());
    let last = client.add("home", 20).await.expect("taken");
    assert_eq!((last.event_count, last.will_flush_at, last.flushed), (20, None, true));
    settle_down().await;
    assert_eq!(notes.all(), ["home: 20 (20, MaxEvents)"]);
    client.add("home", 21).await.expect("taken");
    pass(MINUTE * 5 - SECOND).await;
    assert_eq!(notes.all().len(), 1, "the old alarm is gone");
    pass(SECOND).await;
    assert_eq!(notes.all()[1], "home: 21 (1, Timeout)");
}

// C19.
#[tokio::test(start_paused = true)]
async fn a_sliding_window_moves_with_every_event_up_to_its_longest_wait() {
    let notes = Notes::default();
    let pages = Debounce::new("pages", MINUTE, noting::<u32>(&notes)).sliding(MINUTE * 3);
    let rig = rig().await;
    let _worker = rig.engine.worker().primitive(pages.clone()).start().await.expect("it starts");
    let client = rig.engine.debounce(&pages);
    let opened = client.add("home", 0).await.expect("taken").will_flush_at.expect("it is open");
    pass(SECOND * 59).await;
    let moved = client.add("home", 1).await.expect("taken").will_flush_at.expect("it is open");
    assert_eq!(moved.since(opened), SECOND * 59);
    for event in 2..=4 {
        pass(SECOND * 40).await;
        let added = client.add("home", event).await.expect("taken");
        assert!(added.will_flush_at.expect("it is open").since(opened) <= MINUTE * 2);
    }
    assert!(notes.all().is_empty());
    pass(SECOND).await;
    assert_eq!(notes.all(), ["home: 4 (5, Timeout)"], "three minutes after the first");
    client.add("home", 5).await.expect("taken");
    pass(MINUTE).await;
    assert_eq!(notes.all()[1], "home: 5 (1, Timeout)");
}

// A5, A22.
#[tokio::test(start_paused = true)]
async fn after_a_flush_nothing_is_left_and_an_empty_flush_runs_nothing() {
    let notes = Notes::default();
    let pages = Debounce::new("pages", HOUR, noting::<u32>(&notes));
    let rig = rig().await;
    let mut news =
        rig.engine.subscribe(Topics::all().topic("debounce.*")).expect("the topic is known");
    let _worker = rig.engine.worker().primitive(pages.clone()).start().await.expect("it starts");
    let client = rig.engine.debounce(&pages);
    assert_eq!(client.flush("home").await.expect("answered"), 0);
    let status = client.status("home").await.expect("answered");
    assert_eq!(status.phase, DebouncePhase::NotFound, "an empty flush makes no object");
    client.add("home", 1).await.expect("taken");
    client.add("home", 2).await.expect("taken");
    let status = client.status("home").await.expect("answered");
    assert_eq!((status.phase, status.event_count), (DebouncePhase::Waiting, 2));
    assert_eq!(client.list(None, 10).await.expect("answered").objects.len(), 1);
    assert_eq!(client.flush("home").await.expect("answered"), 2);
    assert_eq!(client.flush("home").await.expect("answered"), 0);
    let status = client.status("home").await.expect("answered");
    assert_eq!((status.phase, status.event_count), (DebouncePhase::Executing, 0));
    settle_down().await;
    assert_eq!(notes.all(), ["home: 2 (2, Manual)"]);
    let status = client.status("home").await.expect("answered");
    assert_eq!((status.phase, status.will_flush_at), (DebouncePhase::NotFound, None));
    assert_eq!(client.state("home").await.expect("answered"), None);
    let told = told(&mut news).await;
    assert!(told[0].starts_with("debounce.started {\"will_flush_at_ms\":"), "{told:?}");
    assert_eq!(told[1..], ["debounce.flushed {\"count\":2,\"reason\":\"manual\"}"]);
    assert_eq!(runs(&rig.engine, "pages").await.len(), 1);
    pass(HOUR * 2).await;
    assert_eq!(notes.all().len(), 1, "no alarm was left");
}

#[tokio::test(start_paused = true)]
async fn clearing_drops_the_open_window_and_leaves_a_closed_batch_alone() {
    let notes = Notes::default();
    let pages = Debounce::new("pages", HOUR, noting::<u32>(&notes));
    let rig = rig().await;
    let mut news =
        rig.engine.subscribe(Topics::all().topic("debounce.cleared")).expect("the topic is known");
    let client = rig.engine.debounce(&pages);
    assert_eq!(client.clear("home").await.expect("answered"), 0);
    client.add("home", 1).await.expect("taken");
    client.flush("home").await.expect("answered");
    client.add("home", 2).await.expect("taken");
    client.add("home", 3).await.expect("taken");
    assert_eq!(client.clear("home").await.expect("answered"), 2);
    assert_eq!(client.clear("home").await.expect("answered"), 0);
    assert_eq!(told(&mut news).await, ["debounce.cleared {\"count\":2}"]);
    let _worker = rig.engine.worker().primitive(pages.clone()).start().await.expect("it starts");
    pass(HOUR * 2).await;
    assert_eq!(notes.all(), ["home: 1 (1, Manual)"]);
    client.add("home", 4).await.expect("taken");
    client.clear("home").await.expect("answered");
    let status = client.status("home").await.expect("answered");
    assert_eq!(status.phase, DebouncePhase::NotFound, "nothing is left to remember");
}

// T42, and the second half of G32.
#[tokio::test(start_paused = true)]
async fn events_that_arrive_during_a_flush_open_the_next_window() {
    let notes = Notes::default();
    let slow = {
        let notes = notes.clone();
        move |flush: Flush<Vec<u32>>| {
            let notes = notes.clone();
            async move {
                notes.add(format!("begins {:?}", flush.kept));
                tokio::time::sleep(SECOND * 10).await;
                notes.add(format!("ends {:?}", flush.kept));
                Ok::<_, Failure>(())
            }
        }
    };
    let pages = Debounce::batch("pages", 2, SECOND, slow);
    let rig = rig().await;
    let _worker = rig.engine.worker().primitive(pages.clone()).start().await.expect("it starts");
    let client = rig.engine.debounce(&pages);
    client.add("home", 1).await.expect("taken");
    pass(SECOND * 2).await;
    let added = client.add("home", 2).await.expect("taken");
    assert_eq!(added.event_count, 1, "a window of its own");
    let status = client.status("home").await.expect("answered");
    assert_eq!((status.phase, status.event_count), (DebouncePhase::Executing, 1));
    pass(SECOND * 5).await;
    assert!(client.add("home", 3).await.expect("taken").flushed);
    client.add("home", 4).await.expect("taken");
    pass(MINUTE).await;
    let expected =
        ["begins [1]", "ends [1]", "begins [2, 3]", "ends [2, 3]", "begins [4]", "ends [4]"];
    assert_eq!(notes.all(), expected);
    let status = client.status("home").await.expect("answered");
    assert_eq!(status.phase, DebouncePhase::NotFound);
}

#[tokio::test(start_paused = true)]
async fn closed_batches_of_a_key_all_run_and_in_their_order() {
    let notes = Notes::default();
    let pages = Debounce::new("pages", HOUR, noting::<u32>(&notes));
    let rig = rig().await;
    let client = rig.engine.debounce(&pages);
    for event in 1..=3 {
        client.add("home", event).await.expect("taken");
        assert_eq!(client.flush("home").await.expect("answered"), 1);
    }
    let _worker = rig.engine.worker().primitive(pages.clone()).start().await.expect("it starts");
    settle_down().await;
    let expected = ["home: 1 (1, Manual)", "home: 2 (1, Manual)", "home: 3 (1, Manual)"];
    assert_eq!(notes.all(), expected, "the first to end does not take the others with it");
    let status = client.status("home").await.expect("answered");
    assert_eq!(status.phase, DebouncePhase::NotFound);
}

// T43, R21.
#[tokio::test(start_paused = true)]
async fn a_failing_flush_is_tried_again_with_its_batch_and_then_a_dead_letter() {
    let notes = Notes::default();
    let failing = {
        let notes = notes.clone();
        move |flush: Flush<Vec<u32>>| {
            notes.add(format!("{:?} retry: {}", flush.kept, flush.is_retry()));
            let is_down = notes.all().len() <= 2;
            async move { if is_down { Err("the index is down") } else { Ok(()) } }
        }
    };
    let later = || Retry::constant(MINUTE * 10).cap(HOUR).jitter(Jitter::None).up_to(2);
    let pages =
        Debounce::collect("pages", MINUTE, failing).options(move |options| options.retry(later()));
    let rig = rig().await;
    let _worker = rig.engine.worker().primitive(pages.clone()).start().await.expect("it starts");
    let client = rig.engine.debounce(&pages);
    client.add("home", 1).await.expect("taken");
    pass(MINUTE).await;
    client.add("home", 2).await.expect("taken");
    pass(MINUTE * 5).await;
    assert_eq!(notes.all(), ["[1] retry: false"], "the next batch waits for this one");
    pass(MINUTE * 10).await;
    assert_eq!(notes.all(), ["[1] retry: false", "[1] retry: true", "[2] retry: false"]);
    let dead = rig.engine.jobs().state(StateName::Dead).page(None, 10).await.expect("answered");
    let [dead] = &dead.jobs[..] else { panic!("{dead:?}") };
    let batch = String::from_utf8_lossy(&dead.job.payload);
    assert!(batch.starts_with("{\"kept\":[1],\"count\":1,"), "{batch}");
    rig.engine.replay(dead.job.id).await.expect("replayed");
    settle_down().await;
    assert_eq!(notes.all()[3..], ["[1] retry: true"], "the batch has run before");
    let record = rig.engine.find(dead.job.id).await.expect("answered").expect("it is there");
    assert_eq!(record.state(), StateName::Completed);
    client.add("home", 3).await.expect("taken");
    pass(MINUTE).await;
    assert_eq!(notes.all()[4..], ["[3] retry: false"], "the key goes on");
}

#[tokio::test(start_paused = true)]
async fn replayed_batches_of_a_forgotten_key_are_told_and_run_to_their_end() {
    let notes = Notes::default();
    let failing = {
        let notes = notes.clone();
        move |flush: Flush<u32>| {
            notes.add(format!("{} retry: {}", flush.kept, flush.is_retry()));
            let is_down = notes.all().len() <= 3;
            async move { if is_down { Err("the index is down") } else { Ok(()) } }
        }
    };
    let once = |options: KindOptions| options.retry(Retry::default().up_to(1));
    let pages = Debounce::new("pages", MINUTE, failing).options(once);
    let rig = rig().await;
    let _worker = rig.engine.worker().primitive(pages.clone()).start().await.expect("it starts");
    let client = rig.engine.debounce(&pages);
    for page in [1, 2] {
        client.add("home", page).await.expect("taken");
        pass(MINUTE).await;
    }
    let phase = async || client.status("home").await.expect("answered").phase;
    assert_eq!(phase().await, DebouncePhase::NotFound);
    let mut all =
        rig.engine.subscribe(Topics::all().topic("debounce.*")).expect("the topic is known");
    let replayed = rig.engine.dead_letters().replay().await.expect("answered");
    assert_eq!(replayed.len(), 2);
    settle_down().await;
    let said = told(&mut all).await;
    assert_eq!(said.len(), 2, "{said:?}");
    assert!(said[0].starts_with("debounce.failed {"), "{said:?}");
    assert_eq!(said[1], r#"debounce.flushed {"count":1,"reason":"timeout"}"#);
    assert_eq!(notes.all()[2..], ["1 retry: true", "2 retry: true"]);
    // With events of a new window, the key is not forgotten by the end of an old batch.
    client.add("home", 3).await.expect("taken");
    rig.engine.dead_letters().replay().await.expect("answered");
    settle_down().await;
    assert_eq!(told(&mut all).await.len(), 2, "started, and flushed");
    assert_eq!(phase().await, DebouncePhase::Waiting);
    pass(MINUTE).await;
    assert_eq!(notes.all()[4..], ["1 retry: true", "3 retry: false"]);
    pass(HOUR).await;
    assert_eq!(phase().await, DebouncePhase::NotFound);
    assert_eq!(rig.engine.counts().await.expect("answered").in_state(StateName::Cancelled), 0);
}

#[tokio::test(start_paused = true)]
async fn the_event_of_a_failed_run_is_json_all_through_however_large_state_and_error_are() {
    let failing = |_: Flush<String>| async { Err::<(), _>("\u{1}\"".repeat(10_000)) };
    let pages = Debounce::new("pages", MINUTE, failing)
        .max_events(9)
        .options(|options| options.retry(Retry::default().up_to(1)));
    let lab = Lab::new(|worker| worker.primitive(pages.clone())).await;
    let client = lab.engine().debounce(&pages);
    for (key, bytes) in [("small", 100), ("large", 30_000)] {
        let mut failed = lab
            .engine()
            .subscribe(Topics::all().topic("debounce.failed"))
            .expect("the topic is known");
        client.add_once(key, "event-1", "\"".repeat(bytes)).await.expect("taken");
        client.flush(key).await.expect("flushed");
        client.add(key, "\"".repeat(bytes)).await.expect("taken");
        lab.run_until_idle().await;
        let said = told(&mut failed).await;
        let detail = said[0].strip_prefix("debounce.failed ").expect("its topic");
        let detail: serde_json::Value = serde_json::from_str(detail).expect("JSON");
        let kept = detail["state"]["kept"].as_str().map(str::len);
        assert_eq!(kept, (bytes < 1_000).then_some(bytes), "{detail}");
        assert_eq!((&detail["attempt"], &detail["again"]), (&1.into(), &false.into()));
        assert!(detail["error"].as_str().expect("a text").starts_with("\u{1}\""), "{detail}");
        assert!(!detail.to_string().contains("seen"), "{detail}");
        client.clear(key).await.expect("cleared");
    }
}

// T45, T41, A31 idempotency, and the purge.
#[tokio::test(start_paused = true)]
async fn an_event_id_counts_once_from_its_acceptance_to_the_end_of_its_window() {
    let notes = Notes::default();
    let pages = Debounce::collect("pages", MINUTE, noting::<Vec<u32>>(&notes));
    let rig = rig().await;
    let _worker = rig.engine.worker().primitive(pages.clone()).start().await.expect("it starts");
    let client = rig.engine.debounce(&pages);
    let first = client.add_once("home", "e1", 1).await.expect("taken");
    let again = client.add_once("home", "e1", 1).await.expect("answered");
    assert_eq!((again.event_count, again.duplicate), (1, true));
    assert_eq!(again.will_flush_at, first.will_flush_at);
    assert!(!client.add_once("other", "e1", 2).await.expect("taken").duplicate, "per key");
    pass(HOUR).await;
    let status = client.status("home").await.expect("answered");
    assert_eq!(status.phase, DebouncePhase::Idle, "the id is remembered");
    let again = client.add_once("home", "e1", 1).await.expect("answered");
    assert_eq!((again.event_count, again.duplicate), (0, true), "although it was flushed");
    client.flush("home").await.expect("answered");
    pass(DAY).await;
    let status = client.status("home").await.expect("answered");
    assert_eq!(status.phase, DebouncePhase::NotFound, "and then forgotten");
    assert!(!client.add_once("home", "e1", 3).await.expect("taken").duplicate);
    pass(HOUR).await;
    let mut flushed = notes.all();
    flushed.sort();
    let expected = ["home: [1] (1, Timeout)", "home: [3] (1, Timeout)", "other: [2] (1, Timeout)"];
    assert_eq!(flushed, expected);
}

// R20: the source lost the answer between adding and marking; here both are one commit.
#[tokio::test(start_paused = true)]
async fn an_event_whose_answer_was_lost_is_added_once() {
    let notes = Notes::default();
    let pages = Debounce::collect("pages", MINUTE, noting::<Vec<u32>>(&notes));
    let rig = rig().await;
    let client = rig.engine.debounce(&pages);
    rig.store.tamper("turn", |call| (call <= 2).then_some(Fault::Done));
    let added = client.add_once("home", "e1", 1).await.expect("answered in the end");
    assert!(added.duplicate, "the first try was carried out");
    let added = client.add_once("home", "e1", 1).await.expect("answered");
    assert_eq!((added.event_count, added.duplicate), (1, true));
    let _worker = rig.engine.worker().primitive(pages.clone()).start().await.expect("it starts");
    pass(HOUR).await;
    assert_eq!(notes.all(), ["home: [1] (1, Timeout)"]);
}

// C26.
#[tokio::test(start_paused = true)]
async fn an_invalid_event_is_refused_and_nothing_is_stored() {
    let pages = Debounce::new("pages", MINUTE, noting::<u32>(&Notes::default()))
        .validate(|page| if *page > 0 { Ok(()) } else { Err("there is no page 0".to_string()) });
    let rig = rig().await;
    let client = rig.engine.debounce(&pages);
    let refused = client.add_once("home", "e1", 0).await.expect_err("refused");
    assert_eq!(refused.to_string(), "an event of debounce `pages`: there is no page 0");
    assert!(matches!(refused, Error::Validation { .. }), "{refused:?}");
    let status = client.status("home").await.expect("answered");
    assert_eq!(status.phase, DebouncePhase::NotFound);
    assert!(!client.add_once("home", "e1", 1).await.expect("taken").duplicate, "nor its id");
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_is_full_is_flushed_before_the_event_that_does_not_fit() {
    let notes = Notes::default();
    let pages = Debounce::collect("pages", MINUTE, noting::<Vec<String>>(&notes)).max_bytes(20);
    let rig = rig().await;
    let _worker = rig.engine.worker().primitive(pages.clone()).start().await.expect("it starts");
    let client = rig.engine.debounce(&pages);
    let too_large = client.add("home", "x".repeat(17)).await.expect_err("refused");
    let Error::Refused(Refusal::OutOfBounds { allowed, .. }) = &too_large else {
        panic!("{too_large:?}");
    };
    assert!(allowed.contains("max_bytes"), "{allowed}");
    for event in ["aaaaaa", "bbbbbb"] {
        assert!(!client.add("home", event.to_string()).await.expect("taken").flushed);
    }
    let added = client.add("home", "c".to_string()).await.expect("taken");
    assert_eq!((added.event_count, added.flushed), (1, true), "it opened the next window");
    assert!(added.will_flush_at.is_some());
    let too_large = client.add("home", "x".repeat(17)).await;
    assert!(too_large.is_err(), "nothing is flushed on account of what is refused");
    pass(MINUTE).await;
    let expected = ["home: [\"aaaaaa\", \"bbbbbb\"] (2, Full)", "home: [\"c\"] (1, Timeout)"];
    assert_eq!(notes.all(), expected);
}

#[tokio::test(start_paused = true)]
async fn keys_that_are_idle_are_forgotten() {
    let flushes = Counter::default();
    let count = {
        let flushes = flushes.clone();
        move |_: Flush<u32>| {
            flushes.add();
            async { Ok::<_, Failure>(()) }
        }
    };
    let pages = Debounce::new("pages", MINUTE, count);
    let lab = Lab::on_disk(|worker| worker.primitive(pages.clone())).await;
    let client = lab.engine().debounce(&pages);
    for key in 0..200 {
        client.add(&key.to_string(), key).await.expect("taken");
        client.add(&key.to_string(), key).await.expect("taken");
    }
    assert_eq!(client.list(None, 1_000).await.expect("answered").objects.len(), 200);
    lab.run_everything().await;
    assert_eq!(flushes.get(), 200);
    assert!(client.list(None, 1_000).await.expect("answered").objects.is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_alarm_that_was_cancelled_by_hand_is_set_again_by_the_next_event() {
    let notes = Notes::default();
    let pages = Debounce::collect("pages", MINUTE, noting::<Vec<u32>>(&notes));
    let rig = rig().await;
    let _worker = rig.engine.worker().primitive(pages.clone()).start().await.expect("it starts");
    let client = rig.engine.debounce(&pages);
    client.add("home", 1).await.expect("taken");
    let view = rig.engine.objects(&pages).view("home").await.expect("answered").expect("there");
    let alarm = view.record.meta.alarm.expect("it is set");
    rig.engine.cancel(alarm).await.expect("cancelled");
    pass(HOUR).await;
    assert!(notes.all().is_empty());
    client.add("home", 2).await.expect("taken");
    settle_down().await;
    assert_eq!(notes.all(), ["home: [1, 2] (2, Timeout)"], "its window was over long ago");
}

#[tokio::test(start_paused = true)]
async fn an_alarm_that_has_a_successor_when_it_ends_flushes_nothing() {
    let notes = Notes::default();
    let pages = Debounce::new("pages", MINUTE, noting::<u32>(&notes)).sliding(HOUR);
    let slid = pages.clone();
    let slide_once = move |attempt: Attempt, next: Next| {
        let pages = slid.clone();
        async move {
            let engine = attempt.engine();
            if attempt.kind().as_str() == "debounce.pages.alarm" && attempt.sequence() == 1 {
                engine.debounce(&pages).add("home", 2).await.expect("taken");
            }
            next.run().await
        }
    };
    let rig = rig().await;
    let worker = rig.engine.worker().primitive(pages.clone()).middleware(slide_once);
    let _worker = worker.start().await.expect("it starts");
    rig.engine.debounce(&pages).add("home", 1).await.expect("taken");
    pass(MINUTE).await;
    settle_down().await;
    assert!(notes.all().is_empty(), "the window was moved while its alarm was on its way");
    pass(MINUTE).await;
    settle_down().await;
    assert_eq!(notes.all(), ["home: 2 (2, Timeout)"]);
}

#[tokio::test(start_paused = true)]
async fn a_definition_that_cannot_work_is_refused() {
    let notes = Notes::default();
    let pages = || Debounce::new("pages", MINUTE, noting::<u32>(&notes));
    let wrong = [
        (Debounce::new("pages", Duration::ZERO, noting::<u32>(&notes)), "flush_after"),
        (pages().max_events(0), "max_events"),
        (pages().sliding(SECOND), "max_wait"),
        (pages().max_bytes(0), "max_bytes"),
        (pages().max_bytes(1024 * 1024), "max_bytes"),
        (pages().remember_ids(Duration::MAX), "remember_ids"),
    ];
    let rig = rig().await;
    for (definition, what) in wrong {
        let refused = rig.engine.debounce(&definition).add("home", 1).await.expect_err("refused");
        let Error::InvalidSetting { setting, .. } = refused else { panic!("{refused:?}") };
        assert_eq!(setting, what);
        let refused = rig.engine.worker().primitive(definition).start().await;
        assert!(matches!(refused, Err(Error::InvalidSetting { .. })), "{refused:?}");
    }
    let refused = rig.engine.debounce(&pages()).add("", 1).await.expect_err("refused");
    assert!(matches!(refused, Error::Refused(Refusal::OutOfBounds { .. })), "{refused:?}");
}

fn throttle(notes: &Notes) -> Throttle<u32> {
    let notes = notes.clone();
    let run = move |throttled: Throttled<u32>| {
        let Throttled { key, event, passed_over, .. } = throttled;
        notes.add(format!("{key}: {event} after {passed_over}"));
        async { Ok::<_, Failure>(()) }
    };
    Throttle::new("alerts", MINUTE, run)
}

#[tokio::test(start_paused = true)]
async fn a_throttle_runs_the_first_event_at_once_and_drops_the_rest_of_its_period() {
    let notes = Notes::default();
    let alerts = throttle(&notes).validate(|event| match event {
        0 => Err("nothing happened".to_string()),
        _ => Ok(()),
    });
    let rig = rig().await;
    let _worker = rig.engine.worker().primitive(alerts.clone()).start().await.expect("it starts");
    let client = rig.engine.throttle(&alerts);
    let refused = client.offer("db", 0).await;
    assert!(matches!(refused, Err(Error::Validation { .. })), "{refused:?}");
    assert_eq!(client.status("db").await.expect("answered"), None);
    assert_eq!(client.offer_once("db", "e1", 1).await.expect("taken"), Offered::Runs);
    assert_eq!(client.offer_once("db", "e1", 1).await.expect("taken"), Offered::Duplicate);
    settle_down().await;
    assert_eq!(notes.all(), ["db: 1 after 0"]);
    let until = client.status("db").await.expect("answered").expect("it is known").until;
    let until = until.expect("a period is open");
    pass(SECOND * 59).await;
    assert_eq!(client.offer("db", 2).await.expect("taken"), Offered::Dropped { until });
    assert_eq!(client.offer("other", 3).await.expect("taken"), Offered::Runs, "per key");
    pass(SECOND).await;
    assert_eq!(client.offer("db", 4).await.expect("taken"), Offered::Runs);
    client.clear("db").await.expect("answered");
    assert_eq!(client.offer("db", 5).await.expect("taken"), Offered::Runs, "it was ended");
    pass(MINUTE * 2).await;
    assert_eq!(notes.all()[1..], ["other: 3 after 0", "db: 4 after 1", "db: 5 after 0"]);
    let left = client.list(None, 10).await.expect("answered").objects;
    assert_eq!(left.len(), 1, "only that with an id is remembered");
    pass(DAY).await;
    assert!(client.list(None, 10).await.expect("answered").objects.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_throttle_that_keeps_the_latest_runs_it_when_the_period_ends() {
    let notes = Notes::default();
    let alerts = throttle(&notes).keep_latest();
    let rig = rig().await;
    let _worker = rig.engine.worker().primitive(alerts.clone()).start().await.expect("it starts");
    let client = rig.engine.throttle(&alerts);
    assert_eq!(client.offer("db", 1).await.expect("taken"), Offered::Runs);
    for event in 2..=4 {
        let offered = client.offer("db", event).await.expect("taken");
        assert!(matches!(offered, Offered::Deferred { .. }), "{offered:?}");
    }
    let status = client.status("db").await.expect("answered").expect("it is known");
    assert_eq!((status.deferred, status.passed_over), (Some(4), 2));
    pass(MINUTE).await;
    assert_eq!(notes.all(), ["db: 1 after 0", "db: 4 after 2"]);
    let offered = client.offer("db", 5).await.expect("taken");
    assert!(matches!(offered, Offered::Deferred { .. }), "the next period is open: {offered:?}");
    client.clear("db").await.expect("answered");
    pass(HOUR).await;
    assert_eq!(notes.all().len(), 2);
    assert!(client.list(None, 10).await.expect("answered").objects.is_empty());
    let huge = Throttle::new("huge", MINUTE, |_: Throttled<String>| async { Ok::<_, Failure>(()) });
    let refused = rig.engine.throttle(&huge).offer("db", "x".repeat(70_000)).await;
    assert!(matches!(refused, Err(Error::Refused(Refusal::OutOfBounds { .. }))), "{refused:?}");
}

/// What the outside knows: which events were acknowledged.
#[derive(Default)]
struct Producer {
    acknowledged: Mutex<Vec<u32>>,
}

fn all_events() -> Debounce<u32, Vec<u32>> {
    let flush = |flush: Flush<Vec<u32>>| async move {
        // Some batches fail once: what is tried again must be the same batch.
        let fails = flush.kept.iter().sum::<u32>() % 3 == 0 && !flush.is_retry();
        if fails { Err(Failure::retry("not yet")) } else { Ok(()) }
    };
    let retry = |options: KindOptions| options.retry(Retry::constant(SECOND).up_to(10));
    Debounce::collect("events", SECOND * 5, flush).max_events(3).options(retry)
}

/// A few random things a producer does. Every event has a number of its own.
async fn produce(seed: u64, engine: Engine, producer: Arc<Producer>) -> Result<(), BoxError> {
    let events = all_events();
    let client = engine.debounce(&events);
    let mut random = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = move |below: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % below
    };
    for event in 0..7_u32 {
        let key = ["a", "b"][usize::try_from(next(2))?];
        match next(8) {
            0 => {
                client.flush(key).await?;
            }
            1 => tokio::time::sleep(SECOND * 2).await,
            2 => tokio::time::sleep(SECOND * 6).await,
            _ => {}
        }
        if next(2) == 0 {
            client.add_once(key, &event.to_string(), event).await?;
        } else {
            client.add(key, event).await?;
        }
        producer.acknowledged.lock().expect("no panic").push(event);
    }
    Ok(())
}

#[derive(Serialize, Deserialize)]
struct Batch {
    kept: Vec<u32>,
    count: u64,
    reason: FlushReason,
}

/// Every acknowledged event is in exactly one flush that was committed; no event is in two.
async fn each_in_one_flush(engine: Engine, producer: Arc<Producer>) -> Result<(), BoxError> {
    let mut flushed = Vec::new();
    for run in runs(&engine, "events").await {
        let batch: Batch = serde_json::from_slice(&run.job.payload)?;
        if run.state() != StateName::Completed {
            return Err(format!("a batch is {}: {:?}", run.state(), batch.kept).into());
        }
        assert_eq!(batch.count, batch.kept.len() as u64);
        flushed.extend(batch.kept);
    }
    let mut once = flushed.clone();
    once.sort_unstable();
    once.dedup();
    if once.len() != flushed.len() {
        return Err(format!("an event was flushed twice: {flushed:?}").into());
    }
    let acknowledged = producer.acknowledged.lock().expect("no panic").clone();
    match acknowledged.iter().find(|event| !flushed.contains(event)) {
        Some(lost) => Err(format!("event {lost} was lost; flushed: {flushed:?}").into()),
        None => Ok(()),
    }
}

// G32, R20, R21: at every durable write and every acknowledgement.
#[test]
fn each_accepted_event_is_in_exactly_one_committed_flush_whatever_crashes() {
    for seed in 1..=2 {
        let setup = || Setup::new(Producer::default(), |worker| worker.primitive(all_events()));
        let scenario = move |engine, producer| produce(seed, engine, producer);
        let points = crash_everywhere(setup, scenario, each_in_one_flush);
        assert!(points > 100, "seed {seed}: only {points} crash points");
    }
}

/// Every run of a batch: which event, and whether it was marked as a repetition.
#[derive(Default)]
struct Outside {
    runs: Mutex<Vec<(u32, bool)>>,
    acknowledged: Mutex<bool>,
}

fn to_the_outside() -> Debounce<u32> {
    Debounce::new("pages", SECOND, |flush: Flush<u32>| async move {
        let outside = flush.attempt.state::<Outside>().ok_or(Failure::permanent("no outside"))?;
        outside.runs.lock().expect("no panic").push((flush.kept, flush.is_retry()));
        Ok::<_, Failure>(())
    })
}

// R21: a flush may repeat what it did before the crash, loses nothing, and is told.
#[test]
fn a_flush_that_a_crash_cut_short_runs_again_and_is_marked() {
    let marked = Counter::default();
    let scenario = |engine: Engine, outside: Arc<Outside>| async move {
        engine.debounce(&to_the_outside()).add("home", 7).await?;
        *outside.acknowledged.lock().expect("no panic") = true;
        Ok(())
    };
    let seen = marked.clone();
    let check = move |engine: Engine, outside: Arc<Outside>| {
        let seen = seen.clone();
        async move {
            let runs = outside.runs.lock().expect("no panic").clone();
            if *outside.acknowledged.lock().expect("no panic") && runs.is_empty() {
                return Err("the event was lost".into());
            }
            assert!(runs.iter().all(|(event, _)| *event == 7) && runs.len() <= 2, "{runs:?}");
            if runs == [(7, false), (7, true)] {
                seen.add();
            }
            let status = engine.debounce(&to_the_outside()).status("home").await?;
            assert_eq!(status.phase, DebouncePhase::NotFound, "it is finished and forgotten");
            Ok(())
        }
    };
    let setup = || Setup::new(Outside::default(), |worker| worker.primitive(to_the_outside()));
    crash_everywhere(setup, scenario, check);
    assert!(marked.get() > 0, "no crash cut a flush short");
}
