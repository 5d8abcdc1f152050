//! For tests that wait for nothing: a clock you move and, with the feature `testing`, a test kit.
//!
//! Under tokio's paused time (`#[tokio::test(start_paused = true)]`) every sleep of the engine ends
//! at once when there is nothing else to do, and time advances by exactly as much. An engine on a
//! [`VirtualClock`] then runs hours of retries in milliseconds, and its wall clock can be stepped
//! like a real one.
//!
//! The kit is for tests of your own handlers. `Lab` is an engine on such a clock, with assertions
//! on what was enqueued. `crash_everywhere` runs your code once per durable write, kills the engine
//! there, reopens it, and checks your invariant. It needs the feature in your `dev-dependencies`:
//!
//! ```toml
//! [dev-dependencies]
//! windlass = { version = "0.1", features = ["testing"] }
//! ```

#[cfg(feature = "testing")]
mod crash;
#[cfg(feature = "testing")]
mod disk;
#[cfg(feature = "testing")]
mod ids;
#[cfg(feature = "testing")]
mod lab;
#[cfg(feature = "testing")]
mod pace;
#[cfg(feature = "testing")]
mod store;

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use tokio::time::Instant;
use windlass_core::time::{Now, Timestamp};

#[cfg(feature = "testing")]
pub use self::crash::{Setup, crash_everywhere};
#[cfg(feature = "testing")]
pub(crate) use self::ids::next_id;
#[cfg(feature = "testing")]
pub use self::lab::Lab;
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
        Self::showing(Timestamp::from_micros(1_767_225_600_000_000))
    }

    fn showing(wall: Timestamp) -> Self {
        Self { start: Instant::now(), wall_at_start: AtomicI64::new(wall.as_micros()) }
    }

    /// Steps the wall clock ahead, at most to the end of time; the steady clock does not notice.
    pub fn step_forward(&self, by: Duration) {
        self.step(|wall| wall + by);
    }

    /// Steps the wall clock back, at most to the beginning of time; the steady clock does not
    /// notice.
    pub fn step_back(&self, by: Duration) {
        self.step(|wall| wall - by);
    }

    fn step(&self, step: impl Fn(Timestamp) -> Timestamp) {
        let stepped = |wall| Some(step(Timestamp::from_micros(wall)).as_micros());
        let _ = self.wall_at_start.fetch_update(Ordering::SeqCst, Ordering::SeqCst, stepped);
    }
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

/// Whether tokio's time is paused. Tokio does not say, so 20 µs of the machine's time are spent to
/// see whether tokio's moves along. Guarded by `a_lab_on_real_time_says_what_to_do_about_it` in
/// `tests/main/kit.rs`.
#[cfg(feature = "testing")]
fn time_is_paused() -> bool {
    let (tokio, machine) = (Instant::now(), std::time::Instant::now());
    while machine.elapsed() < Duration::from_micros(20) {
        std::hint::spin_loop();
    }
    Instant::now() == tokio
}
