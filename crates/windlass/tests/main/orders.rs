//! Who acts: workers do what they are ordered to, and the engine writes down who ordered what.

use std::time::Duration;

use windlass::core::reserved::WorkerOrder;
use windlass::primitives::{Throttle, Throttled, WorkerPool};
use windlass::store::StoreExt;
use windlass::{Actor, Failure, Reason, StateName};

use crate::common::{Fault, SECOND, Work, pass, rig, work};

/// More than it takes a worker to hear of an order.
const SOON: Duration = Duration::from_secs(10);

async fn takes_20_seconds(job: Work) -> Result<i64, Failure> {
    tokio::time::sleep(SECOND * 20).await;
    Ok(job.number)
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_is_ordered_to_be_quiet_claims_nothing_until_the_order_is_withdrawn() {
    let rig = rig().await;
    let worker = rig.engine.worker().handle(takes_20_seconds).start().await.expect("it starts");
    let store = rig.engine.store();
    let before = rig.engine.enqueue(work(1)).await.expect("it is accepted");
    pass(SECOND).await;
    store.order_worker(worker.id(), Some(WorkerOrder::Quiet), None).await.expect("it is given");
    pass(SOON).await;
    assert!(worker.is_quiet());
    let after = rig.engine.enqueue(work(2)).await.expect("it is accepted");
    pass(SECOND * 300).await;
    let state = async |job| rig.engine.find(job).await.expect("found").expect("kept").state();
    assert_eq!(state(before.id()).await, StateName::Completed, "what runs goes on");
    assert_eq!(state(after.id()).await, StateName::Ready);
    let counts = rig.engine.counts().await.expect("counted");
    let seen = &counts.workers[0];
    assert_eq!((&*seen.worker, seen.info.quiet, seen.stopping), (worker.id(), true, false));
    let explained = rig.engine.explain(after.id()).await.expect("it is explained");
    assert!(matches!(explained.reasons[..], [Reason::NoWorkerForKind { .. }]), "{explained}");
    store.order_worker(worker.id(), None, None).await.expect("it is withdrawn");
    pass(SOON).await;
    assert_eq!(state(after.id()).await, StateName::Running);
    assert!(
        !worker.is_quiet() && !rig.engine.counts().await.expect("counted").workers[0].info.quiet
    );
    worker.stop().await.expect("it stops");
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_is_ordered_to_stop_finishes_what_runs_and_ends() {
    for quiet_before in [false, true] {
        let rig = rig().await;
        let worker = rig.engine.worker().handle(takes_20_seconds).start().await.expect("it starts");
        let store = rig.engine.store();
        let running = rig.engine.enqueue(work(1)).await.expect("it is accepted");
        pass(SECOND).await;
        if quiet_before {
            store
                .order_worker(worker.id(), Some(WorkerOrder::Quiet), None)
                .await
                .expect("it is given");
            pass(SOON).await;
        }
        store.order_worker(worker.id(), Some(WorkerOrder::Stop), None).await.expect("it is given");
        pass(SECOND * 6).await;
        let waiting = rig.engine.enqueue(work(2)).await.expect("it is accepted");
        assert!(rig.engine.counts().await.expect("counted").workers[0].stopping);
        let report = worker.stopped().await.expect("it ends by itself");
        assert_eq!((report.completed, report.interrupted), (1, 0));
        assert_eq!(running.outcome().await.expect("it completed"), 1);
        assert_eq!(waiting.record().await.expect("kept").state(), StateName::Ready);
        assert!(rig.engine.counts().await.expect("counted").workers.is_empty());
        let order = windlass::core::reserved::order_address(worker.id()).expect("an address");
        assert!(store.object(&order).await.expect("read").is_none(), "it left with the worker");
    }
}

#[tokio::test(start_paused = true)]
async fn a_worker_obeys_an_order_that_it_could_not_hear_at_first() {
    for fault in [Fault::NotDone, Fault::Done, Fault::Panic, Fault::Hang, Fault::Refused] {
        let rig = rig().await;
        let worker = rig.engine.worker().handle(takes_20_seconds).start().await.expect("it starts");
        rig.store.tamper("heartbeat", move |call| (call <= 3).then_some(fault));
        let store = rig.engine.store();
        store.order_worker(worker.id(), Some(WorkerOrder::Quiet), None).await.expect("it is given");
        pass(SECOND * 60).await;
        assert!(worker.is_quiet(), "{fault:?}");
        worker.stop().await.expect("it stops");
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_changed_through_a_handle_of_somebody_is_written_down_and_nothing_else_is() {
    let rig = rig().await;
    let anna = rig.engine.acting_as(Actor::new("anna").expect("a name"));
    assert_eq!(rig.engine.actor(), None);
    let handles = anna.enqueue_many((1..=6).map(work)).await.expect("an enqueue is not");
    rig.engine.cancel(handles[0].id()).await.expect("by the program itself");
    handles[1].cancel().await.expect("cancelled");
    anna.run_now(handles[2].id()).await.expect("moved");
    anna.replay(handles[1].id()).await.expect("replayed");
    let queue = anna.queue(windlass::DEFAULT_QUEUE).expect("a name");
    queue.pause().await.expect("paused");
    anna.jobs().state(StateName::Cancelled).remove().await.expect("removed");
    queue.clear().await.expect("cleared");
    anna.order_worker("w", Some(WorkerOrder::Quiet)).await.expect("ordered");
    let pool = WorkerPool::new("parcels", 2, |_: i64, _| async { Ok::<_, Failure>(()) });
    anna.pool(&pool).pause(None).await.expect("paused");
    let throttle =
        Throttle::new("mails", SECOND, |_: Throttled<i64>| async { Ok::<_, Failure>(()) });
    anna.throttle(&throttle).offer("a", 1).await.expect("offered");
    let trail = rig.engine.store().audit(None, 100).await.expect("read").entries;
    let did = trail.iter().rev().map(|entry| (&*entry.action, entry.jobs));
    let jobs = [("cancel", 1), ("reschedule", 1), ("replay", 1), ("pause", 0), ("remove", 1)];
    let rest = [("clear", 5), ("turn", 0), ("pause", 0), ("turn", trail[0].jobs)];
    assert_eq!(did.collect::<Vec<_>>(), [&jobs[..], &rest[..]].concat());
    assert!(trail.iter().all(|entry| entry.by.name() == "anna"), "{trail:?}");
}
