//! Every verb through a network that cuts, delays and swallows. Those of a job's life are in
//! `cuts.rs`, which cuts them more finely.

use std::sync::Arc;
use std::time::Duration;

use windlass::Actor;
use windlass::core::job::{LeaseToken, RequestId};
use windlass::core::ledger::{Claim, KindClaim, Recovery, Renewal, Rescue, WorkerReport};
use windlass::core::object::{Address, Turn};
use windlass::store::{
    AlterJobs, Answer, JobAction, JobQuery, ObjectFilter, ObjectQuery, Selection, Store,
    StoreError, StoreExt,
};
use windlass::wire::http::HttpConnection;
use windlass::wire::{Call, Connection, RemoteStore};
use windlass::{JobId, RecoveryReason};
use windlass_testbed::{Direction, Fault, Proxy};

use crate::common::{Server, connection, fresh, job, name, remote};

/// What is asked, beside enqueue, claim, settle and the settings of queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verb {
    Renew,
    Rescue,
    Promote,
    Alter,
    Turn,
    Objects,
    Heartbeat,
    Jobs,
    Count,
    Explain,
    Events,
    Ring,
}

impl Verb {
    const ALL: [Verb; 12] = [
        Verb::Renew,
        Verb::Rescue,
        Verb::Promote,
        Verb::Alter,
        Verb::Turn,
        Verb::Objects,
        Verb::Heartbeat,
        Verb::Jobs,
        Verb::Count,
        Verb::Explain,
        Verb::Events,
        Verb::Ring,
    ];

    /// Whether it is made again by itself when its answer is lost.
    fn is_repeated(self) -> bool {
        !matches!(self, Verb::Alter | Verb::Turn)
    }
}

/// A server with a job that runs, behind a network.
struct Scene {
    store: Arc<dyn Store>,
    proxy: Proxy,
    far: RemoteStore<HttpConnection>,
    raw: HttpConnection,
    _server: Server,
    running: (JobId, LeaseToken),
}

impl Scene {
    async fn new() -> Self {
        let served = fresh();
        let store = served.store.clone();
        let server = Server::start(served).await;
        let proxy = Proxy::tcp(server.port);
        let url = proxy.url(&server.url());
        let (far, raw) = (remote(&url).await, connection(&url));
        store.enqueue(vec![job(1)]).await.expect("it is accepted");
        let claim = Claim {
            worker: "far".into(),
            queues: None,
            kinds: vec![KindClaim::new(name("work"))],
            limit: 1,
            request: Some(RequestId(1)),
        };
        let claimed = store.claim(claim).await.expect("it is answered");
        let running = (claimed.jobs[0].job.id, claimed.jobs[0].lease.token);
        Self { store, proxy, far, raw, _server: server, running }
    }

    /// Makes a call that no other has made.
    async fn ask(&self, verb: Verb, number: u64) -> Answer<()> {
        let far = &self.far;
        let by = || Some(Actor::new("anna").expect("a name"));
        match verb {
            Verb::Renew => {
                let (job, token) = self.running;
                let lease = Duration::from_secs(600);
                let renewal = Renewal { job, token, lease, report: Default::default() };
                let renewed = far.renew(vec![renewal]).await?;
                renewed[0].as_ref().expect("the lease goes on");
            }
            Verb::Rescue => {
                let (recovery, reason) = (Recovery::default(), RecoveryReason::LeaseExpired);
                let rescued = far.rescue(Rescue { recovery, reason }).await?;
                assert!(rescued.jobs.is_empty(), "its worker lives");
            }
            Verb::Promote => drop(far.promote().await?),
            Verb::Alter => {
                let id = JobId::from_u128(u128::from(number) << 32);
                let other = windlass::NewJob::new(id, name("work"), name("default"), Vec::new());
                self.store.enqueue(vec![Arc::new(other)]).await?;
                let cancel = AlterJobs::new(Selection::Jobs(vec![id]), JobAction::Cancel);
                let altered = far.alter(AlterJobs { by: by(), ..cancel }).await?;
                altered[0].result.as_ref().expect("it waited");
            }
            Verb::Turn => {
                let address = Address::new(name("counter"), name("of"), &format!("{number}"));
                let address = address.expect("an address");
                let turn = Turn { state: Some(b"1".to_vec().into()), ..Turn::new(address, 0) };
                assert_eq!(far.turn(Turn { by: by(), ..turn }).await?.version, 1);
            }
            Verb::Objects => {
                let filter = ObjectFilter::default();
                drop(far.objects(&ObjectQuery::Page { filter, after: None, limit: 10 }).await?);
            }
            Verb::Heartbeat => {
                let _ = far.heartbeat("far".into(), WorkerReport::Stopping).await?;
            }
            Verb::Jobs => {
                let page = far.jobs(&JobQuery::Ids(vec![self.running.0])).await?;
                assert_eq!(page.jobs.len(), 1);
            }
            Verb::Count => drop(far.count().await?),
            Verb::Explain => drop(far.explain(self.running.0).await?),
            Verb::Events => {
                let events = far.events(0, 1, Duration::ZERO).await?;
                assert_eq!(events.len(), 1);
            }
            Verb::Ring => drop(self.raw.send(Call::Ring(Vec::new())).await),
        }
        Ok(())
    }

    /// How many changes somebody has made.
    async fn audited(&self) -> usize {
        self.store.audit(None, 1_000).await.expect("it is answered").entries.len()
    }
}

/// Longer than a request or an answer of these tests.
const BYTES: usize = 1_000;

#[tokio::test(flavor = "multi_thread")]
async fn every_verb_whose_connection_is_cut_is_made_once_or_said_to_be_unknown() {
    for verb in Verb::ALL {
        let scene = Scene::new().await;
        let mut unknown = 0;
        for (number, at) in (1..).zip((1..BYTES).step_by(37)) {
            for (side, direction) in (0..).zip([Direction::ToServer, Direction::ToClient]) {
                let place = format!("{verb:?}, cut {direction:?} after byte {at}");
                let before = scene.audited().await;
                scene.proxy.set(Fault::CutAfter { direction, bytes: at });
                let answer = scene.ask(verb, 2 * number + side).await;
                scene.proxy.heal();
                let made = scene.audited().await - before;
                match answer {
                    Ok(()) => assert_eq!(made, usize::from(!verb.is_repeated()), "{place}"),
                    Err(StoreError::Unknown { .. }) if !verb.is_repeated() => {
                        unknown += 1;
                        assert!(made <= 1, "{place}: {made}");
                    }
                    Err(error) => panic!("{place}: {error}"),
                }
            }
        }
        assert!(scene.proxy.cuts() > 8, "{verb:?}: only {} were cut", scene.proxy.cuts());
        assert!(verb.is_repeated() || unknown > 3, "{verb:?}: {unknown} unknown");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_network_only_takes_its_time() {
    let scene = Scene::new().await;
    scene.proxy.set(Fault::Delay(Duration::from_millis(20)));
    for verb in Verb::ALL {
        scene.ask(verb, 1).await.unwrap_or_else(|error| panic!("{verb:?}: {error}"));
    }
    scene.proxy.set(Fault::Slices);
    for verb in Verb::ALL {
        scene.ask(verb, 2).await.unwrap_or_else(|error| panic!("{verb:?}: {error}"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_network_that_swallows_everything_ends_calls_with_the_name_of_the_server() {
    let scene = Arc::new(Scene::new().await);
    scene.proxy.set(Fault::BlackHole);
    let asked = Verb::ALL.map(|verb| {
        let scene = scene.clone();
        (verb, tokio::spawn(async move { scene.ask(verb, 1).await }))
    });
    let url = scene.proxy.url(&scene._server.url());
    for (verb, answer) in asked {
        let Err(error) = answer.await.expect("no panic") else {
            assert_eq!(verb, Verb::Ring, "{verb:?} was answered out of nothing");
            continue;
        };
        let error = anyhow::Error::from(error);
        let said = format!("{error:#}");
        assert!(said.contains(&url) && said.contains("10s"), "{verb:?}: {said}");
    }
    scene.proxy.heal();
    scene.ask(Verb::Count, 2).await.expect("it is there again");
}
