//! The Wake contract: a hint that there may be work, never a promise.
//!
//! Losing every ring costs a poll interval, never a job, because a worker also wakes by itself at
//! the next due time. So a wake may lose, delay or repeat rings as it likes; what it must not do
//! is lose a ring that comes after `listen` returned and before the first `heard`.
//!
//! [`LocalWake`] is for one process. `PostgresWake`, `RedisWake` and `NatsWake`, each behind a
//! feature, ring other processes too; `conformance::wakes` checks what they all promise.

mod local;
#[cfg(feature = "nats")]
mod nats;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "redis")]
mod redis;
#[cfg(any(feature = "postgres", feature = "redis", feature = "nats"))]
mod remote;

use std::fmt;

use async_trait::async_trait;
pub use local::LocalWake;
#[cfg(feature = "nats")]
pub use nats::NatsWake;
#[cfg(feature = "postgres")]
pub use postgres::PostgresWake;
#[cfg(feature = "redis")]
pub use redis::RedisWake;
#[cfg(any(feature = "postgres", feature = "redis", feature = "nats"))]
pub use remote::WakeOptions;
use serde::{Deserialize, Serialize};
pub use windlass_core::ledger::Ring;
use windlass_core::name::Name;

/// Carries hints from those who change jobs to those who wait for them.
#[async_trait]
pub trait Wake: Send + Sync + fmt::Debug {
    /// Wakes whoever listens to any of these. Returns when the hints are on their way; it does not
    /// fail, because nobody may depend on them.
    async fn ring(&self, rings: &[Ring]);

    /// Begins to listen. Every ring from now on, until the listener is dropped, ends a call of
    /// [`Listener::heard`] that waits, or else the next one.
    fn listen(&self, interest: Interest) -> Box<dyn Listener>;

    /// Waits until the rings so far have left this process, though not long. Asked for before a
    /// process ends, whose last rings would end with it.
    async fn flush(&self) {}

    /// Waits for rings after a number, for whoever passes them on to another program. Without a
    /// number it answers at once with the one to begin at. Rings that nobody is interested in may
    /// be left out. A wake that cannot tell never answers, and the other program polls.
    async fn rung_after(&self, _after: Option<u64>, _interests: &[Interest]) -> Rung {
        std::future::pending().await
    }
}

/// What was rung, as [`Wake::rung_after`] tells it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rung {
    /// The number after which to ask next.
    pub upto: u64,
    /// Which rings; `None` if that is not known any more, so that everyone has to look.
    pub rings: Option<Vec<Ring>>,
}

/// What a listener wants to hear.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Interest {
    /// Rings of these queues; `None` for all.
    Queues(Option<Vec<Name>>),
    /// That a running job is to be cancelled.
    Cancels,
}

impl Interest {
    /// Whether this ring is wanted.
    pub fn includes(&self, ring: &Ring) -> bool {
        match (self, ring) {
            (Interest::Queues(None), Ring::Queue(_)) | (Interest::Cancels, Ring::Cancel) => true,
            (Interest::Queues(Some(queues)), Ring::Queue(queue)) => queues.contains(queue),
            (Interest::Queues(_), Ring::Cancel) | (Interest::Cancels, Ring::Queue(_)) => false,
        }
    }
}

/// Waits for rings.
#[async_trait]
pub trait Listener: Send {
    /// Returns when there was a ring since the last call, or at once if there already was. Several
    /// rings may end one call. Dropping the future loses nothing.
    async fn heard(&mut self);
}
