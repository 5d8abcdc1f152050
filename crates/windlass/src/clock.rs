//! The Clock contract: the one place where time comes in, and where waiting happens.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
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

/// Longer than a process that runs is without a reading, so longer gaps are stops.
const STOPPED: Duration = Duration::from_secs(2);

/// A clock that stands still while its process is stopped, as by SIGSTOP, or a machine that hangs.
///
/// For whoever owns a directory that others share. While it was stopped nobody could renew a lease,
/// so the time does not count. It must be read every [`STOPPED`] at least, and is, by the thread
/// that serves others. While another process owns the directory it is as any other clock: then
/// time has passed there. Not part of the contract: public for the simulation.
#[doc(hidden)]
#[derive(Debug)]
pub struct AwakeClock {
    clock: Arc<dyn Clock>,
    owns: AtomicBool,
    state: Mutex<AwakeState>,
}

#[derive(Debug, Default)]
struct AwakeState {
    last: Steady,
    stopped: Duration,
}

impl AwakeClock {
    /// Reads that clock.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        let state = AwakeState { last: clock.now().steady, stopped: Duration::ZERO };
        Self { clock, owns: AtomicBool::new(false), state: Mutex::new(state) }
    }

    /// Whether this process owns the directory from now on.
    pub fn set_owner(&self, owns: bool) {
        self.now();
        self.owns.store(owns, Ordering::SeqCst);
    }
}

impl Clock for AwakeClock {
    fn now(&self) -> Now {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        // Read with the state in hand: an older reading would see a later stop, and fall behind.
        let Now { wall, steady } = self.clock.now();
        let gap = steady.since(state.last);
        state.last = state.last.max(steady);
        if gap > STOPPED && self.owns.load(Ordering::SeqCst) {
            state.stopped += gap;
        }
        let stopped = u64::try_from(state.stopped.as_micros()).unwrap_or(u64::MAX);
        Now { wall, steady: Steady::from_micros(steady.as_micros().saturating_sub(stopped)) }
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.clock.sleep(duration)
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Shows what it is told.
    #[derive(Debug)]
    struct SetClock(Mutex<Steady>);

    impl SetClock {
        fn set(&self, seconds: u64) {
            *self.0.lock().expect("nobody panicked") = Steady::from_micros(seconds * 1_000_000);
        }
    }

    impl Clock for SetClock {
        fn now(&self) -> Now {
            let steady = *self.0.lock().expect("nobody panicked");
            Now { wall: Timestamp::default(), steady }
        }

        fn sleep(&self, _: Duration) -> BoxFuture<'static, ()> {
            Box::pin(std::future::pending())
        }
    }

    #[test]
    fn the_time_for_which_an_owner_was_stopped_does_not_count() {
        let inner = Arc::new(SetClock(Mutex::default()));
        let clock = AwakeClock::new(inner.clone());
        let seconds = |clock: &AwakeClock| clock.now().steady.as_micros() / 1_000_000;
        inner.set(60);
        assert_eq!(seconds(&clock), 60, "another process may own it: time has passed there");
        clock.set_owner(true);
        for second in [61, 62] {
            inner.set(second);
            assert_eq!(seconds(&clock), second, "it is read often enough");
        }
        inner.set(102);
        assert_eq!(seconds(&clock), 62, "it was stopped for 40 s");
        inner.set(103);
        assert_eq!(seconds(&clock), 63);
        clock.set_owner(false);
        inner.set(203);
        assert_eq!(seconds(&clock), 163);
    }
}
