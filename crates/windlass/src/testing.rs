//! A clock you move, for tests that wait for nothing.
//!
//! Under tokio's paused time (`#[tokio::test(start_paused = true)]`) every sleep of the engine ends
//! at once when there is nothing else to do, and time advances by exactly as much. An engine on a
//! [`VirtualClock`] then runs hours of retries in milliseconds, and its wall clock can be stepped
//! like a real one.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use tokio::time::Instant;
use windlass_core::time::{Now, Timestamp};

use crate::clock::{BoxFuture, Clock, steady_since};

/// A clock that follows tokio's time, with a wall clock of its own that can be stepped.
#[derive(Debug)]
pub struct VirtualClock {
    start: Instant,
    wall_at_start: AtomicI64,
}

impl VirtualClock {
    /// A clock whose wall shows 2026-01-01T00:00:00Z now.
    pub fn new() -> Self {
        Self { start: Instant::now(), wall_at_start: AtomicI64::new(1_767_225_600_000_000) }
    }

    /// Steps the wall clock ahead; the steady clock does not notice.
    pub fn step_forward(&self, by: Duration) {
        self.wall_at_start.fetch_add(micros(by), Ordering::SeqCst);
    }

    /// Steps the wall clock back; the steady clock does not notice.
    pub fn step_back(&self, by: Duration) {
        self.wall_at_start.fetch_sub(micros(by), Ordering::SeqCst);
    }
}

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

impl Default for VirtualClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Now {
        let steady = steady_since(self.start);
        let wall = Timestamp::from_micros(self.wall_at_start.load(Ordering::SeqCst))
            + Duration::from_micros(steady.as_micros());
        Now { wall, steady }
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(duration))
    }
}
