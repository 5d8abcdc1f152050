//! Wakes within one process.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use async_trait::async_trait;
use tokio::sync::Notify;

use super::{Interest, Listener, Ring, Wake};

/// Rings everyone in this process who listens, at once.
#[derive(Debug, Default)]
pub struct LocalWake {
    ears: Mutex<Vec<Weak<QueueListener>>>,
}

/// One who listens, to queues or to cancellations. The wake holds it weakly: whoever drops its
/// listener is forgotten at the next ring.
#[derive(Debug)]
struct QueueListener {
    interest: Interest,
    rung: Notify,
}

impl LocalWake {
    /// A wake nobody listens to yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Rings whoever wants any of these.
    pub(super) fn ring_now(&self, rings: &[Ring]) {
        self.ring_if(|interest| rings.iter().any(|ring| interest.includes(ring)));
    }

    /// Rings everyone: nobody knows what was missed.
    #[cfg(any(feature = "postgres", feature = "redis", feature = "nats"))]
    pub(super) fn ring_everyone(&self) {
        self.ring_if(|_| true);
    }

    fn ring_if(&self, wanted: impl Fn(&Interest) -> bool) {
        let mut ears = self.ears.lock().unwrap_or_else(PoisonError::into_inner);
        ears.retain(|ear| {
            let Some(ear) = ear.upgrade() else { return false };
            if wanted(&ear.interest) {
                // Keeps one ring for a listener that is not waiting at this moment.
                ear.rung.notify_one();
            }
            true
        });
    }
}

#[async_trait]
impl Wake for LocalWake {
    async fn ring(&self, rings: &[Ring]) {
        self.ring_now(rings);
    }

    fn listen(&self, interest: Interest) -> Box<dyn Listener> {
        let ear = Arc::new(QueueListener { interest, rung: Notify::new() });
        let mut ears = self.ears.lock().unwrap_or_else(PoisonError::into_inner);
        ears.push(Arc::downgrade(&ear));
        Box::new(LocalListener { ear })
    }
}

struct LocalListener {
    ear: Arc<QueueListener>,
}

#[async_trait]
impl Listener for LocalListener {
    async fn heard(&mut self) {
        self.ear.rung.notified().await;
    }
}
