//! What heartbeats answer: orders to workers, and what is seen of who obeys them.

use windlass_core::explain::Reason;
use windlass_core::ledger::{WorkerInfo, WorkerKind, WorkerReport, WorkerView};
use windlass_core::limits;
use windlass_core::reserved::{self, WorkerOrder};

use super::{Bench, Case, HOUR, id, job, name, named_cases};
use crate::store::{ObjectFilter, StoreExt};

pub(super) fn cases() -> Vec<Case> {
    named_cases![
        a_heartbeat_is_answered_with_the_order_to_its_worker_until_that_is_withdrawn,
        a_worker_that_has_stopped_takes_its_order_with_it,
        an_order_is_kept_as_long_as_its_worker_lives_and_a_day_longer,
        a_quiet_worker_is_seen_and_would_take_no_job,
        a_worker_that_lives_is_known_and_nothing_is_told_of_it,
    ]
}

fn info(quiet: bool) -> WorkerInfo {
    let work = WorkerKind { kind: name("work"), concurrency: None, rate: None };
    WorkerInfo { queues: None, kinds: vec![work], slots: 3, quiet }
}

fn alive() -> WorkerReport {
    WorkerReport::Alive(info(false))
}

async fn say(bench: &Bench, worker: &str, news: WorkerReport) -> Option<WorkerOrder> {
    bench.store.heartbeat(worker.into(), news).await.expect("it is answered").order
}

async fn order(bench: &Bench, worker: &str, order: Option<WorkerOrder>) {
    bench.store.order_worker(worker, order, None).await.expect("it is answered");
}

async fn workers(bench: &Bench) -> Vec<WorkerView> {
    bench.store.count().await.expect("it is answered").workers
}

/// The workers to which there are orders.
async fn ordered(bench: &Bench) -> Vec<String> {
    let filter = ObjectFilter { kind: Some(name(reserved::ORDER)), ..ObjectFilter::default() };
    let page = bench.store.list_objects(&filter, None, 10).await.expect("it is answered");
    page.objects.iter().map(|view| view.record.address.key().to_string()).collect()
}

async fn a_heartbeat_is_answered_with_the_order_to_its_worker_until_that_is_withdrawn(
    bench: Bench,
) {
    assert_eq!(say(&bench, "w", WorkerReport::Started(info(false))).await, None);
    assert_eq!(say(&bench, "w", alive()).await, None);
    order(&bench, "w", Some(WorkerOrder::Quiet)).await;
    assert_eq!(say(&bench, "other", alive()).await, None, "an order is to one worker");
    for _ in 0..2 {
        assert_eq!(say(&bench, "w", alive()).await, Some(WorkerOrder::Quiet));
    }
    order(&bench, "w", Some(WorkerOrder::Stop)).await;
    assert_eq!(say(&bench, "w", alive()).await, Some(WorkerOrder::Stop), "the last counts");
    assert_eq!(say(&bench, "w", WorkerReport::Stopping).await, Some(WorkerOrder::Stop));
    for _ in 0..2 {
        order(&bench, "w", None).await;
        assert_eq!(say(&bench, "w", alive()).await, None);
    }
    for odd in ["", "two\nlines", &"x".repeat(limits::KEY_BYTES + 1)] {
        assert_eq!(say(&bench, odd, alive()).await, None, "{odd:?}");
    }
}

async fn a_worker_that_has_stopped_takes_its_order_with_it(bench: Bench) {
    say(&bench, "w", WorkerReport::Started(info(false))).await;
    order(&bench, "w", Some(WorkerOrder::Stop)).await;
    order(&bench, "other", Some(WorkerOrder::Quiet)).await;
    assert_eq!(say(&bench, "w", WorkerReport::Stopped).await, None);
    assert_eq!(ordered(&bench).await, ["other"]);
    assert_eq!(say(&bench, "w", alive()).await, None);
}

async fn an_order_is_kept_as_long_as_its_worker_lives_and_a_day_longer(bench: Bench) {
    order(&bench, "living", Some(WorkerOrder::Quiet)).await;
    order(&bench, "dead", Some(WorkerOrder::Quiet)).await;
    for _ in 0..5 {
        bench.advance(limits::ORDER_KEPT / 4).await;
        bench.store.promote().await.expect("it is answered");
        assert_eq!(say(&bench, "living", alive()).await, Some(WorkerOrder::Quiet));
    }
    bench.store.promote().await.expect("it is answered");
    assert_eq!(ordered(&bench).await, ["living"], "that of a worker that never lived is gone");
    bench.advance(limits::ORDER_KEPT + HOUR).await;
    bench.store.promote().await.expect("it is answered");
    assert!(ordered(&bench).await.is_empty(), "and so is that of one that lives no more");
}

async fn a_quiet_worker_is_seen_and_would_take_no_job(bench: Bench) {
    bench.accept([job(1)]).await;
    say(&bench, "w", WorkerReport::Started(info(false))).await;
    let counts = bench.store.count().await.expect("it is answered");
    assert_eq!((counts.free_slots(), counts.workers[0].takes_jobs()), (3, true));
    assert_eq!(bench.store.explain(id(1)).await.expect("it is answered").reasons, []);
    say(&bench, "w", WorkerReport::Alive(info(true))).await;
    let counts = bench.store.count().await.expect("it is answered");
    assert_eq!((counts.free_slots(), counts.workers[0].info.quiet), (0, true));
    let explained = bench.store.explain(id(1)).await.expect("it is answered");
    assert!(matches!(explained.reasons[..], [Reason::NoWorkerForKind { .. }]), "{explained}");
    say(&bench, "w", alive()).await;
    assert_eq!(bench.store.explain(id(1)).await.expect("it is answered").reasons, []);
}

async fn a_worker_that_lives_is_known_and_nothing_is_told_of_it(bench: Bench) {
    let told = bench.topics().await.len();
    say(&bench, "w", alive()).await;
    assert_eq!(bench.topics().await.len(), told);
    let seen = workers(&bench).await;
    assert_eq!((seen.len(), &*seen[0].worker, seen[0].stopping), (1, "w", false));
    say(&bench, "w", WorkerReport::Stopping).await;
    say(&bench, "w", alive()).await;
    assert!(workers(&bench).await[0].stopping, "that it lives does not mean that it works");
    say(&bench, "w", WorkerReport::Stopped).await;
    assert!(workers(&bench).await.is_empty());
}
