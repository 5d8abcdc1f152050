//! Rings between engines, and what is left without them: polling.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Notify;
use windlass::store::postgres::PostgresAddress;
use windlass::wake::{Interest, Listener, PostgresWake, Ring, Wake, WakeOptions};
use windlass::{Attempt, Engine, Failure, Worker};
use windlass_testbed::{Fault, Proxy};

use crate::common::{Ground, Work, open, soon, until, work};

const HOUR: Duration = Duration::from_secs(3_600);
const A_MOMENT: Duration = Duration::from_millis(200);

async fn idle_worker(engine: &Engine, poll_interval: Duration) -> Worker {
    let worker = engine.worker().handle(|job: Work| async move { Ok::<_, Failure>(job.number) });
    worker.poll_interval(poll_interval).start().await.expect("the worker starts")
}

/// Whether a worker waits for jobs, as far as can be seen: it has done one and runs none.
async fn warm_up(producer: &Engine, worker: &Worker) {
    let first = producer.enqueue(work(0)).await.expect("it is accepted");
    soon("the first job", first.outcome()).await.expect("it completes");
    until("the worker is idle", || async { worker.busy() == 0 }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_worker_of_another_engine_is_woken_by_a_job() {
    let Some(ground) = Ground::new() else { return };
    let engines = ground.engines(2).await;
    // It would come to it by itself in an hour.
    let worker = idle_worker(&engines[1], HOUR).await;
    warm_up(&engines[0], &worker).await;
    for number in 1..4 {
        let job = engines[0].enqueue(work(number)).await.expect("it is accepted");
        assert_eq!(soon("its outcome", job.outcome()).await.expect("it completes"), number);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_worker_wakes_when_a_delayed_job_of_another_engine_is_due() {
    let Some(ground) = Ground::new() else { return };
    let engines = ground.engines(2).await;
    let worker = idle_worker(&engines[1], HOUR).await;
    warm_up(&engines[0], &worker).await;
    let job = engines[0].enqueue(work(1)).delay(A_MOMENT).await.expect("it is accepted");
    assert_eq!(soon("its outcome", job.outcome()).await.expect("it completes"), 1);
    let record = job.record().await.expect("it is kept");
    let waited = record.attempts[0].started_at.since(record.created_at);
    assert!(waited >= A_MOMENT, "it began {waited:?} after it was accepted");
}

/// An engine whose rings go through a proxy, and everything else does not.
async fn ringing_through(proxy: &Proxy, address: &str) -> Engine {
    let schema = address.parse::<PostgresAddress>().expect("an address").schema.to_string();
    let options = WakeOptions { name: schema, ..WakeOptions::default() };
    let plain = address.split('?').next().unwrap_or(address);
    let wake = PostgresWake::connect_with(&proxy.url(plain), options).await.expect("it connects");
    Engine::builder().wake(Arc::new(wake)).open(address).await.expect("the engine opens")
}

#[tokio::test(flavor = "multi_thread")]
async fn with_its_ear_cut_off_a_worker_still_finds_jobs_by_polling() {
    let Some(ground) = Ground::new() else { return };
    let address = ground.text_address();
    let producer = open(&address).await;
    let proxy = Proxy::postgres(ground.server.port());
    let deaf = ringing_through(&proxy, &address).await;
    let worker = idle_worker(&deaf, A_MOMENT).await;
    warm_up(&producer, &worker).await;
    proxy.set(Fault::Refuse);
    proxy.cut();
    for number in 1..3 {
        let job = producer.enqueue(work(number)).await.expect("it is accepted");
        assert_eq!(soon("its outcome", job.outcome()).await.expect("it completes"), number);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_rung_while_the_ear_was_cut_off_is_looked_for_when_it_is_back() {
    let Some(ground) = Ground::new() else { return };
    let address = ground.text_address();
    let producer = open(&address).await;
    let proxy = Proxy::postgres(ground.server.port());
    let deaf = ringing_through(&proxy, &address).await;
    let worker = idle_worker(&deaf, HOUR).await;
    warm_up(&producer, &worker).await;
    proxy.set(Fault::Refuse);
    proxy.cut();
    let job = producer.enqueue(work(1)).await.expect("it is accepted");
    let tried = proxy.connections();
    until("it tries to listen again", || async { proxy.connections() > tried }).await;
    proxy.heal();
    assert_eq!(soon("its outcome", job.outcome()).await.expect("it completes"), 1);
}

/// A wake that says nothing and hears nothing.
#[derive(Debug)]
struct Silence;

struct Nothing;

#[async_trait]
impl Wake for Silence {
    async fn ring(&self, _: &[Ring]) {}

    fn listen(&self, _: Interest) -> Box<dyn Listener> {
        Box::new(Nothing)
    }
}

#[async_trait]
impl Listener for Nothing {
    async fn heard(&mut self) {
        std::future::pending().await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_any_ring_jobs_start_and_cancellations_arrive_by_polling() {
    let Some(ground) = Ground::new() else { return };
    let address = ground.text_address();
    let silent = || Engine::builder().wake(Arc::new(Silence)).open(&address);
    let producer = silent().await.expect("the engine opens");
    let other = silent().await.expect("the engine opens");
    let entered = Arc::new(Notify::new());
    let enters = entered.clone();
    let handler = move |job: Work, attempt: Attempt| {
        let entered = enters.clone();
        async move {
            if job.number == 0 {
                entered.notify_one();
                attempt.cancellation().cancelled().await;
            }
            Ok::<u64, Failure>(job.number)
        }
    };
    // A lease is renewed each third of it, and that is when a cancellation is heard of.
    let worker = other.worker().handle_with(handler, |terms| terms.lease(Duration::from_secs(1)));
    worker.poll_interval(A_MOMENT).start().await.expect("the worker starts");
    for number in 1..3 {
        let job = producer.enqueue(work(number)).await.expect("it is accepted");
        assert_eq!(soon("its outcome", job.outcome()).await.expect("it completes"), number);
    }
    let job = producer.enqueue(work(0)).await.expect("it is accepted");
    soon("the handler", entered.notified()).await;
    job.cancel().await.expect("it is answered");
    // Whatever the handler returns, it has been told.
    soon("its end", job.outcome()).await.ok();
    let state = job.record().await.expect("it is kept").status.state;
    assert!(state.name().is_terminal(), "{state:?}");
}
