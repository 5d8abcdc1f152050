//! The suite that every store must pass, for stores whose calls travel: others have threads of
//! their own, so the clock is one that all of them look at.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use windlass::clock::{BoxFuture, Clock};
use windlass::conformance::{Harness, cases};
use windlass::core::time::{Now, Steady, Timestamp};

/// A clock that stands still until it is advanced, whichever thread asks. Whoever waits for longer
/// than anybody takes advances it, unless it began to wait for another store.
#[derive(Debug)]
pub(crate) struct SetClock {
    micros: Arc<watch::Sender<u64>>,
    /// How many stores there have been.
    stores: Arc<AtomicU64>,
}

/// How long it takes until nothing happens any more.
const AT_REST: Duration = Duration::from_secs(1);

impl SetClock {
    pub(crate) fn new() -> Arc<Self> {
        let micros = Arc::new(watch::Sender::new(1_000_000));
        Arc::new(Self { micros, stores: Arc::default() })
    }

    pub(crate) fn advance(&self, by: Duration) {
        let by = u64::try_from(by.as_micros()).unwrap_or(u64::MAX);
        self.micros.send_modify(|now| *now = now.saturating_add(by));
    }

    /// Whoever still waits for the store before this one moves the clock no more.
    pub(crate) fn begin_another_store(&self) {
        self.stores.fetch_add(1, Ordering::SeqCst);
    }
}

impl Clock for SetClock {
    fn now(&self) -> Now {
        let micros = *self.micros.borrow();
        let wall = Timestamp::from_micros(1_767_225_600_000_000) + Duration::from_micros(micros);
        Now { wall, steady: Steady::from_micros(micros) }
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        let (clock, mut now) = (self.micros.clone(), self.micros.subscribe());
        let stores = self.stores.clone();
        let began = stores.load(Ordering::SeqCst);
        let length = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        let until = now.borrow().saturating_add(length);
        Box::pin(async move {
            let advanced = now.wait_for(|now| *now >= until);
            if tokio::time::timeout(AT_REST, advanced).await.is_err()
                && stores.load(Ordering::SeqCst) == began
            {
                clock.send_modify(|now| *now = (*now).max(until));
            }
        })
    }
}

/// Longer than any promise takes to be checked.
const HANGS: Duration = Duration::from_secs(60);

/// Checks every promise, one after the other.
pub(crate) async fn keeps_every_promise(harness: Arc<dyn Harness>) {
    let mut told = Vec::new();
    for case in cases() {
        match tokio::time::timeout(HANGS, case.check(harness.clone())).await {
            Ok(broken) => told.extend(broken.map(|it| format!("{}: {}", it.name, it.seen))),
            Err(_) => told.push(format!("{}: it does not end", case.name)),
        }
    }
    assert!(told.is_empty(), "{} are broken:\n{}", told.len(), told.join("\n"));
}
