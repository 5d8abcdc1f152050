//! A network that cuts connections at every byte: nothing is lost, and nothing is done twice.

use std::sync::Arc;

use windlass::Actor;
use windlass::core::job::{RequestId, StateName};
use windlass::core::ledger::QueueChange;
use windlass::core::ledger::{Claim, KindClaim, Settlement};
use windlass::core::outcome::Verdict;
use windlass::store::{AlterQueue, QueueAction, Store, StoreError, StoreExt};
use windlass_testbed::{Direction, Fault, Proxy};

use crate::common::{Server, counted, fresh, job, name, remote};

/// Coprime to everything: cuts fall in heads and bodies alike.
const STRIDE: usize = 11;

/// Longer than a request or an answer of these tests.
const BYTES: usize = 900;

/// Where cuts fall: within requests, and within answers.
fn cuts() -> impl Iterator<Item = (Direction, usize)> {
    let directions = [Direction::ToServer, Direction::ToClient];
    directions.into_iter().flat_map(|to| (1..BYTES).step_by(STRIDE).map(move |at| (to, at)))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_whose_request_is_cut_anywhere_is_enqueued_run_and_settled_once() {
    let served = fresh();
    let store = served.store.clone();
    let server = Server::start(served).await;
    let proxy = Proxy::tcp(server.port);
    let far = remote(&proxy.url(&server.url())).await;
    let mut number = 0;
    for (direction, bytes) in cuts() {
        number += 1;
        let place = format!("cut {direction:?} after byte {bytes}");
        proxy.set(Fault::CutAfter { direction, bytes });
        far.enqueue(vec![job(number)]).await.expect(&place);
        proxy.set(Fault::CutAfter { direction, bytes });
        let claim = Claim {
            worker: "far".into(),
            queues: None,
            kinds: vec![KindClaim::new(name("work"))],
            limit: 1,
            request: Some(RequestId(number)),
        };
        let claimed = far.claim(claim).await.expect(&place);
        assert_eq!(claimed.jobs.len(), 1, "{place}");
        assert_eq!(claimed.jobs[0].attempt, 1, "{place}");
        proxy.set(Fault::CutAfter { direction, bytes });
        let (id, token) = (claimed.jobs[0].job.id, claimed.jobs[0].lease.token);
        let settled = far.settle(vec![Settlement::new(id, token, Verdict::Complete)]).await;
        let settled = settled.expect(&place);
        assert_eq!(settled[0].as_ref().expect(&place).state, StateName::Completed, "{place}");
        assert_eq!(counted(&store, StateName::Completed).await, number as u64, "{place}");
    }
    assert!(proxy.cuts() > 200, "only {} were cut", proxy.cuts());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_whose_answer_is_cut_is_not_made_again_behind_the_callers_back() {
    let served = fresh();
    let store = served.store.clone();
    let server = Server::start(served).await;
    let proxy = Proxy::tcp(server.port);
    let far = remote(&proxy.url(&server.url())).await;
    let (mut made, mut unknown) = (0, 0);
    for (direction, bytes) in cuts() {
        let before = audited(&store).await;
        proxy.set(Fault::CutAfter { direction, bytes });
        let depth = QueueChange::MaxDepth(Some(1_000 + bytes as u64));
        let mut alter = AlterQueue::new(name("default"), QueueAction::Set(depth));
        alter.by = Some(Actor::new("anna").expect("a name"));
        let answer = far.alter_queue(alter).await;
        proxy.heal();
        let done = audited(&store).await - before;
        match answer {
            Ok(_) => {
                assert_eq!(done, 1, "{direction:?} {bytes}");
                made += 1;
            }
            Err(StoreError::Unknown { .. }) => {
                assert!(done <= 1, "{direction:?} {bytes}: {done}");
                unknown += 1;
            }
            Err(refused) => panic!("{direction:?} {bytes}: {refused}"),
        }
    }
    assert!(made > 10 && unknown > 10, "{made} made, {unknown} unknown");
}

/// How many changes somebody has made.
async fn audited(store: &Arc<dyn Store>) -> usize {
    store.audit(None, 1_000).await.expect("it is answered").entries.len()
}
