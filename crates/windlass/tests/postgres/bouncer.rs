//! Poolers between engines and the server, crowds that open at once, and pools that are too small.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinSet;
use windlass::primitives::{Debounce, Flush};
use windlass::{Attempt, Engine, Error, Failure, StateName, Worker};
use windlass_testbed::{Pgbouncer, Postgres, or_skip};

use crate::common::{Ground, Work, count, open, soon, until, work};

const A_MOMENT: Duration = Duration::from_millis(50);

/// Numbers that mean something to the handler.
const FAILS_TWICE: u64 = 1_001;
const WAITS_TO_BE_CANCELLED: u64 = 1_002;
const IS_POISON: u64 = 1_003;

/// What the handlers of a day have to tell.
#[derive(Clone, Debug, Default)]
struct Day {
    waits: Arc<Notify>,
    flushed: Arc<AtomicU64>,
}

impl Day {
    fn pages(&self) -> Debounce<u64> {
        let flushed = self.flushed.clone();
        Debounce::new("pages", A_MOMENT, move |page: Flush<u64>| {
            flushed.fetch_add(page.count, Ordering::SeqCst);
            async { Ok::<(), Failure>(()) }
        })
    }

    async fn worker(&self, engine: &Engine) -> Worker {
        let waits = self.waits.clone();
        let handler = move |job: Work, attempt: Attempt| {
            let waits = waits.clone();
            async move {
                match job.number {
                    FAILS_TWICE if attempt.number() < 3 => {
                        return Err(Failure::retry_after(A_MOMENT, "not yet"));
                    }
                    IS_POISON => return Err(Failure::permanent("never")),
                    WAITS_TO_BE_CANCELLED => {
                        waits.notify_one();
                        attempt.cancellation().cancelled().await;
                        return Err(Failure::cancel("told to stop"));
                    }
                    _ => {}
                }
                Ok(job.number)
            }
        };
        let worker = engine.worker().primitive(self.pages()).poll_interval(A_MOMENT);
        let worker = worker.handle_with(handler, |terms| terms.lease(Duration::from_secs(2)));
        worker.start().await.expect("the worker starts")
    }
}

/// Everything an application does, by one engine, while another works.
async fn live_through(producer: &Engine, day: &Day) {
    let many = producer.enqueue_many((0..100).map(work)).await.expect("they are accepted");
    let last = producer.enqueue(work(7)).depends_on(&many[99]).await.expect("it is accepted");
    assert_eq!(soon("a dependent", last.outcome()).await.expect("it completes"), 7);
    for job in many {
        soon("each of many", job.outcome()).await.expect("it completes");
    }
    let retried = producer.enqueue(work(FAILS_TWICE)).await.expect("it is accepted");
    soon("a retry", retried.outcome()).await.expect("it completes");
    assert_eq!(retried.record().await.expect("it is kept").status.attempts, 3);
    let poison = producer.enqueue(work(IS_POISON)).await.expect("it is accepted");
    assert!(matches!(soon("a death", poison.outcome()).await, Err(Error::Died { .. })));
    let edited = producer.replay_edited(poison.id(), work(8)).await.expect("it is replayed");
    assert_eq!(soon("a replay", edited.outcome()).await.expect("it completes"), 8);
    let later = producer.enqueue(work(9)).delay(Duration::from_secs(3_600)).await;
    later.expect("it is accepted").cancel().await.expect("it is cancelled");
    let waits = producer.enqueue(work(WAITS_TO_BE_CANCELLED)).await.expect("it is accepted");
    soon("its start", day.waits.notified()).await;
    waits.cancel().await.expect("it is answered");
    let cancelled = soon("a cancellation", waits.outcome()).await;
    assert!(matches!(cancelled, Err(Error::Cancelled { .. })), "{cancelled:?}");
    let pages = day.pages();
    for number in 0..10 {
        producer.debounce(&pages).add("home", number).await.expect("it is added");
    }
    until("every event was in a run", || async { day.flushed.load(Ordering::SeqCst) == 10 }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn behind_a_pooler_in_transaction_mode_a_whole_day_goes_well() {
    let Some(ground) = Ground::new() else { return };
    let Some(pooler) = or_skip(Pgbouncer::start(ground.server)) else { return };
    let pooled = pooler.url_for(&ground.database);
    let address = format!("{pooled}?windlass_schema=pooled&windlass_listen=off");
    let (producer, other) = (open(&address).await, open(&address).await);
    let day = Day::default();
    let worker = day.worker(&other).await;
    live_through(&producer, &day).await;
    let report = worker.stop().await.expect("the worker stops");
    assert_eq!(report.lost, 0, "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_that_opens_a_fresh_schema_through_a_pooler_finds_it_complete() {
    let Some(ground) = Ground::new() else { return };
    let Some(pooler) = or_skip(Pgbouncer::start(ground.server)) else { return };
    let pooled = pooler.url_for(&ground.database);
    let address = format!("{pooled}?windlass_schema=crowd&windlass_listen=off&windlass_pool=2");
    open_at_once(&address, 20).await;
}

/// Opens so many engines at once and has each of them enqueue a job.
async fn open_at_once(address: &str, how_many: u64) {
    let mut crowd = JoinSet::new();
    for number in 0..how_many {
        let address = address.to_owned();
        crowd.spawn(async move {
            let engine = Engine::open(&address).await?;
            engine.enqueue(work(number)).await?;
            Ok::<Engine, Error>(engine)
        });
    }
    let opened = soon("the crowd", crowd.join_all()).await;
    let engines: Vec<Engine> =
        opened.into_iter().map(|engine| engine.expect("it opens and enqueues")).collect();
    assert_eq!(count(&engines[0], StateName::Ready).await, how_many);
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_engines_that_open_a_fresh_schema_at_once_all_find_it_complete() {
    let Some(server) = or_skip(Postgres::with(&["max_connections=300"])) else { return };
    let address = format!("{}?windlass_schema=fresh&windlass_pool=2", server.url());
    open_at_once(&address, 50).await;
    assert_eq!(server.sql("postgres", "select count(*) from fresh.migration"), "1");
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_of_a_pool_that_is_too_small_wait_their_turn() {
    let Some(ground) = Ground::new() else { return };
    let engine = open(&format!("{}&windlass_pool=1", ground.text_address())).await;
    let day = Day::default();
    let worker = day.worker(&engine).await;
    let mut callers = JoinSet::new();
    for number in 0..100 {
        let engine = engine.clone();
        callers.spawn(async move {
            let job = engine.enqueue(work(number)).await?;
            job.outcome().await
        });
    }
    for outcome in soon("the callers", callers.join_all()).await {
        outcome.expect("it completes");
    }
    worker.stop().await.expect("the worker stops");
    assert_eq!(count(&engine, StateName::Completed).await, 100);
}
