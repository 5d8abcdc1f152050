//! The Clock contract: the one place where time comes in, and where waiting happens.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;
use windlass_core::time::{Now, Steady, Timestamp};

/// A future that is sent between threads.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Tells the time and waits.
///
/// `now` reads two clocks: a wall clock, which may be stepped in either direction at any moment,
/// and a steady one, which only advances. Nobody may assume more; the ledger turns the readings
/// into engine time that never moves backwards.
pub trait Clock: Send + Sync + fmt::Debug {
    /// Reads both clocks.
    fn now(&self) -> Now;

    /// Waits until the steady clock has advanced by `duration`.
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()>;
}

/// The machine's own clocks.
#[derive(Debug)]
pub struct SystemClock {
    start: Instant,
}

impl SystemClock {
    /// A clock whose steady part starts now.
    pub fn new() -> Self {
        Self { start: Instant::now() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Now {
        Now { wall: timestamp(SystemTime::now()), steady: steady_since(self.start) }
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(duration))
    }
}

/// How far tokio's clock has advanced since `start`.
pub(crate) fn steady_since(start: Instant) -> Steady {
    Steady::from_micros(u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX))
}

/// A system time as a timestamp, saturating at the ends of time.
pub fn timestamp(time: SystemTime) -> Timestamp {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => Timestamp::default() + after,
        Err(before) => Timestamp::default() - before.duration(),
    }
}
