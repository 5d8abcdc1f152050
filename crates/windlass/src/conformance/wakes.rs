//! The suite every wake must pass.
//!
//! Write a [`WakeHarness`] that makes two wakes as of two processes, call [`run`], and print what
//! it returns. The suite waits for rings for as long as a wake may need, and never for the absence
//! of one: that a ring did not come is told by a later one that did.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use windlass_core::ledger::Ring;
use windlass_core::name::Name;

use super::Broken;
use crate::clock::BoxFuture;
use crate::panics::CatchPanic;
use crate::wake::{Interest, Listener, Wake};

/// Makes wakes to test.
#[async_trait]
pub trait WakeHarness: Send + Sync {
    /// Two wakes, as two processes would have them, that reach each other and nobody else. For a
    /// wake within one process, the same twice.
    async fn pair(&self) -> Pair;
}

/// Two wakes that reach each other.
#[derive(Clone, Debug)]
pub struct Pair {
    /// Where the suite rings.
    pub here: Arc<dyn Wake>,
    /// Where the suite mostly listens.
    pub there: Arc<dyn Wake>,
    /// What cuts all their connections, once; they come back by themselves. `None` if they have no
    /// connections to lose.
    pub cut: Option<Arc<dyn Cut>>,
}

/// Something that can be cut.
pub trait Cut: Send + Sync + std::fmt::Debug {
    /// Cuts all connections there are now.
    fn cut(&self);

    /// Whether a ring may be lost meanwhile, so that everyone has to look. If not, whoever listens
    /// hears after the cut what was rung during it.
    fn loses_rings(&self) -> bool {
        true
    }
}

/// One promise, checked.
pub struct WakeCase {
    /// The promise as a sentence.
    pub name: String,
    run: fn(Pair) -> BoxFuture<'static, ()>,
}

impl std::fmt::Debug for WakeCase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name)
    }
}

/// Lists async functions as cases named after themselves.
macro_rules! named {
    ($($case:ident),* $(,)?) => {
        vec![$(WakeCase {
            name: stringify!($case).replace('_', " "),
            run: |pair| Box::pin($case(pair)),
        }),*]
    };
}

/// All promises.
pub fn cases() -> Vec<WakeCase> {
    named![
        a_ring_reaches_a_listener_of_another_process,
        a_ring_reaches_a_listener_of_the_same_process,
        a_ring_before_the_first_heard_is_not_lost,
        several_rings_may_end_one_call_and_a_later_ring_ends_the_next,
        one_call_can_ring_many,
        a_listener_hears_its_queues_and_no_others,
        a_listener_of_all_queues_hears_each,
        cancels_and_queues_are_heard_apart,
        a_future_dropped_before_a_ring_loses_nothing,
        a_future_dropped_after_a_ring_loses_nothing,
        a_ring_to_nobody_does_nothing,
        every_listener_of_a_queue_hears_its_ring,
        rings_of_many_queues_all_arrive,
        a_flush_ends,
        after_a_cut_listeners_are_woken_once_and_later_rings_arrive,
    ]
}

/// Checks every promise, each on a fresh pair, and returns those that were broken.
pub async fn run(harness: Arc<dyn WakeHarness>) -> Vec<Broken> {
    crate::panics::watch();
    let mut broken = Vec::new();
    for case in cases() {
        let pair = harness.pair().await;
        if let Err(seen) = CatchPanic((case.run)(pair)).await {
            broken.push(Broken { name: case.name, seen });
        }
    }
    broken
}

/// Longer than any wake needs, a lost connection included.
const PATIENCE: Duration = Duration::from_secs(60);

fn queue(name: &str) -> Ring {
    Ring::Queue(Name::new(name).expect("the suite uses valid names"))
}

fn listen(wake: &Arc<dyn Wake>, queues: &[&str]) -> Box<dyn Listener> {
    let names = queues.iter().map(|name| Name::new(name).expect("the suite uses valid names"));
    wake.listen(Interest::Queues(Some(names.collect())))
}

/// Waits for a ring.
async fn heard(listener: &mut Box<dyn Listener>) {
    let heard = tokio::time::timeout(PATIENCE, listener.heard()).await;
    assert!(heard.is_ok(), "no ring in {PATIENCE:?}");
}

/// Whether a ring waits for this listener, at this moment.
async fn is_rung(listener: &mut Box<dyn Listener>) -> bool {
    let mut heard = listener.heard();
    std::future::poll_fn(|context| std::task::Poll::Ready(heard.as_mut().poll(context).is_ready()))
        .await
}

/// Returns when everything that was rung here before has arrived there.
async fn pass(pair: &Pair) {
    let mut mark = listen(&pair.there, &["the.mark"]);
    pair.here.ring(&[queue("the.mark")]).await;
    heard(&mut mark).await;
}

async fn a_ring_reaches_a_listener_of_another_process(pair: Pair) {
    let mut listener = listen(&pair.there, &["mail"]);
    let waiting = tokio::spawn(async move { heard(&mut listener).await });
    tokio::task::yield_now().await;
    pair.here.ring(&[queue("mail")]).await;
    waiting.await.expect("it is heard");
}

async fn a_ring_reaches_a_listener_of_the_same_process(pair: Pair) {
    let mut listener = listen(&pair.here, &["mail"]);
    pair.here.ring(&[queue("mail")]).await;
    heard(&mut listener).await;
}

async fn a_ring_before_the_first_heard_is_not_lost(pair: Pair) {
    let mut listener = listen(&pair.there, &["mail"]);
    pair.here.ring(&[queue("mail")]).await;
    pass(&pair).await;
    assert!(is_rung(&mut listener).await);
}

async fn several_rings_may_end_one_call_and_a_later_ring_ends_the_next(pair: Pair) {
    let mut listener = listen(&pair.there, &["mail"]);
    for _ in 0..100 {
        pair.here.ring(&[queue("mail")]).await;
    }
    heard(&mut listener).await;
    // The last of them may still come, and end one more call.
    pass(&pair).await;
    pair.here.flush().await;
    let _ = is_rung(&mut listener).await;
    pair.here.ring(&[queue("mail")]).await;
    heard(&mut listener).await;
}

async fn one_call_can_ring_many(pair: Pair) {
    let mut mail = listen(&pair.there, &["mail"]);
    let mut cancels = pair.there.listen(Interest::Cancels);
    pair.here.ring(&[queue("other"), Ring::Cancel, queue("mail")]).await;
    heard(&mut mail).await;
    heard(&mut cancels).await;
    pair.here.ring(&[]).await;
}

async fn a_listener_hears_its_queues_and_no_others(pair: Pair) {
    let mut listener = listen(&pair.there, &["mail", "post"]);
    pair.here.ring(&[queue("mai"), queue("mail.x"), queue("Mail")]).await;
    pass(&pair).await;
    assert!(!is_rung(&mut listener).await, "it is not interested");
    for name in ["post", "mail"] {
        pair.here.ring(&[queue(name)]).await;
        heard(&mut listener).await;
    }
}

async fn a_listener_of_all_queues_hears_each(pair: Pair) {
    let mut listener = pair.there.listen(Interest::Queues(None));
    for name in ["mail", "x", "a-b_c.d", &"q".repeat(100)] {
        pair.here.ring(&[queue(name)]).await;
        heard(&mut listener).await;
    }
}

async fn cancels_and_queues_are_heard_apart(pair: Pair) {
    let mut queues = pair.there.listen(Interest::Queues(None));
    let mut cancels = pair.there.listen(Interest::Cancels);
    pair.here.ring(&[Ring::Cancel]).await;
    heard(&mut cancels).await;
    assert!(!is_rung(&mut queues).await, "a cancellation is no work");
    pair.here.ring(&[queue("c")]).await;
    heard(&mut queues).await;
    assert!(!is_rung(&mut cancels).await, "work is no cancellation");
}

async fn a_future_dropped_before_a_ring_loses_nothing(pair: Pair) {
    let mut listener = listen(&pair.there, &["mail"]);
    assert!(!is_rung(&mut listener).await);
    pair.here.ring(&[queue("mail")]).await;
    heard(&mut listener).await;
}

async fn a_future_dropped_after_a_ring_loses_nothing(pair: Pair) {
    let mut listener = listen(&pair.there, &["mail"]);
    {
        let mut waiting = listener.heard();
        std::future::poll_fn(|context| {
            assert!(waiting.as_mut().poll(context).is_pending());
            std::task::Poll::Ready(())
        })
        .await;
        pair.here.ring(&[queue("mail")]).await;
        pass(&pair).await;
        // The ring was for this future, which nobody asked again.
        drop(waiting);
    }
    assert!(is_rung(&mut listener).await);
}

async fn a_ring_to_nobody_does_nothing(pair: Pair) {
    drop(listen(&pair.there, &["mail"]));
    pair.here.ring(&[queue("mail")]).await;
    pass(&pair).await;
    assert!(!is_rung(&mut listen(&pair.there, &["mail"])).await);
}

async fn every_listener_of_a_queue_hears_its_ring(pair: Pair) {
    let mut all: Vec<_> = (0..10).map(|_| listen(&pair.there, &["mail"])).collect();
    pair.here.ring(&[queue("mail")]).await;
    for listener in &mut all {
        heard(listener).await;
    }
}

async fn rings_of_many_queues_all_arrive(pair: Pair) {
    let names: Vec<String> = (0..200).map(|number| format!("queue-{number}")).collect();
    let mut all: Vec<_> = names.iter().map(|name| listen(&pair.there, &[name])).collect();
    for name in &names {
        pair.here.ring(&[queue(name)]).await;
    }
    for listener in &mut all {
        heard(listener).await;
    }
}

async fn a_flush_ends(pair: Pair) {
    pair.here.ring(&[queue("mail")]).await;
    pair.here.flush().await;
    pair.there.flush().await;
}

async fn after_a_cut_listeners_are_woken_once_and_later_rings_arrive(pair: Pair) {
    let Some(cut) = pair.cut.clone() else { return };
    let mut mail = listen(&pair.there, &["mail"]);
    let mut cancels = pair.there.listen(Interest::Cancels);
    // A connection that is known to be there.
    pass(&pair).await;
    cut.cut();
    if !cut.loses_rings() {
        pair.here.ring(&[queue("mail"), Ring::Cancel]).await;
    }
    heard(&mut mail).await;
    heard(&mut cancels).await;
    pass(&pair).await;
    assert!(!is_rung(&mut mail).await, "one look is enough");
    pair.here.ring(&[queue("mail"), Ring::Cancel]).await;
    heard(&mut mail).await;
    heard(&mut cancels).await;
}
