//! The suites that every store and every wake must pass.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use windlass::Limits;
use windlass::conformance::wakes::{self, Cut, Pair, WakeHarness};
use windlass::conformance::{Broken, Harness};
use windlass::store::Store;
use windlass::wake::{Interest, Ring, Wake};
use windlass::wire::http::HttpWake;
use windlass_testbed::Proxy;

use crate::common::{Server, connection, fresh, memory, name, remote};
use crate::suite::{SetClock, keeps_every_promise};

#[track_caller]
fn nothing_of(broken: &[Broken]) {
    let told: Vec<String> =
        broken.iter().map(|broken| format!("{}: {}", broken.name, broken.seen)).collect();
    assert!(broken.is_empty(), "{} are broken:\n{}", broken.len(), told.join("\n"));
}

/// Servers are kept until the end: a store must not lose its own.
struct OverHttp {
    clock: Arc<SetClock>,
    servers: tokio::sync::Mutex<Vec<Server>>,
}

#[async_trait]
impl Harness for OverHttp {
    async fn fresh(&self, limits: Limits) -> Arc<dyn Store> {
        self.clock.begin_another_store();
        let server = Server::start(memory(limits, self.clock.clone())).await;
        let store = Arc::new(remote(&server.url()).await);
        self.servers.lock().await.push(server);
        store
    }

    async fn advance(&self, by: Duration) {
        self.clock.advance(by);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_over_http_keeps_every_promise_of_the_suite() {
    let harness = OverHttp { clock: SetClock::new(), servers: Default::default() };
    keeps_every_promise(Arc::new(harness)).await;
}

/// Two programs that reach the same server through a network that can be cut.
struct WakesOverHttp(tokio::sync::Mutex<Vec<Server>>);

#[derive(Debug)]
struct CutProxy(Proxy);

impl Cut for CutProxy {
    fn cut(&self) {
        self.0.cut();
    }

    /// The server knows what each has heard.
    fn loses_rings(&self) -> bool {
        false
    }
}

/// A wake that has begun to hear: everyone is rung once then, and the suite counts. A ring at the
/// server is heard here if it has begun, and comes with the ring to everyone if it has not.
async fn hearing(url: &str, at_the_server: &Arc<dyn Wake>) -> Arc<dyn Wake> {
    let wake: Arc<dyn Wake> = Arc::new(HttpWake::over(connection(url)));
    let mut listener = wake.listen(Interest::Queues(None));
    at_the_server.ring(&[Ring::Queue(name("begin"))]).await;
    listener.heard().await;
    wake
}

#[async_trait]
impl WakeHarness for WakesOverHttp {
    async fn pair(&self) -> Pair {
        let served = fresh();
        let wake = served.wake.clone();
        let server = Server::start(served).await;
        let proxy = Proxy::tcp(server.port);
        let url = proxy.url(&server.url());
        let (here, there) = (hearing(&url, &wake).await, hearing(&url, &wake).await);
        self.0.lock().await.push(server);
        Pair { here, there, cut: Some(Arc::new(CutProxy(proxy))) }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn wakes_over_http_keep_every_promise_of_the_suite() {
    let harness = WakesOverHttp(Default::default());
    nothing_of(&wakes::run(Arc::new(harness)).await);
}
