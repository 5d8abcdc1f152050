//! Faults in the middle of things that are one commit: all of it happens, or none.

use windlass::{Options, StateName};

use crate::common::{Fault, rig, work};

#[tokio::test(start_paused = true)]
async fn a_batch_whose_answer_is_lost_is_there_once_and_whole() {
    for fault in [Fault::NotDone, Fault::Done] {
        let rig = rig().await;
        rig.store.tamper("enqueue", move |call| (call <= 2).then_some(fault));
        rig.engine.enqueue_many((0..100).map(work)).await.expect("they are accepted");
        let counts = rig.engine.counts().await.expect("it is answered");
        assert_eq!(counts.in_state(StateName::Ready), 100);
        assert_eq!(counts.totals().enqueued, 100);
    }
}

#[tokio::test(start_paused = true)]
async fn a_batch_with_one_bad_item_of_a_thousand_stores_nothing() {
    let rig = rig().await;
    let mut batch = rig.engine.batch();
    for number in 0..999 {
        batch.add(work(number)).expect("the job is valid");
    }
    let bad = Options::new().depends_on(windlass::new_id());
    batch.add_with(work(999), bad).expect("valid by itself");
    batch.commit().await.expect_err("one depends on a stranger");
    let counts = rig.engine.counts().await.expect("it is answered");
    assert_eq!(counts.totals().enqueued, 0);
}

#[tokio::test(start_paused = true)]
async fn many_producers_at_a_depth_limit_never_exceed_it() {
    let rig = rig().await;
    rig.engine.queue("default").expect("a name").max_depth(Some(50)).await.expect("it is set");
    let producers = (0..64).map(|number| {
        let engine = rig.engine.clone();
        tokio::spawn(async move { engine.enqueue(work(number)).await.is_ok() })
    });
    let mut accepted = 0;
    for producer in producers.collect::<Vec<_>>() {
        accepted += u32::from(producer.await.expect("it does not panic"));
    }
    assert_eq!(accepted, 50);
    let counts = rig.engine.counts().await.expect("it is answered");
    assert_eq!(counts.in_state(StateName::Ready), 50);
}

#[tokio::test(start_paused = true)]
async fn many_producers_of_one_unique_job_make_one() {
    let rig = rig().await;
    let producers = (0..64).map(|_| {
        let engine = rig.engine.clone();
        tokio::spawn(async move { engine.enqueue(work(1)).unique("once").await })
    });
    let mut ids = std::collections::BTreeSet::new();
    for producer in producers.collect::<Vec<_>>() {
        ids.insert(producer.await.expect("it does not panic").expect("it is answered").id());
    }
    assert_eq!(ids.len(), 1);
    let counts = rig.engine.counts().await.expect("it is answered");
    assert_eq!(counts.totals().enqueued, 1);
}
