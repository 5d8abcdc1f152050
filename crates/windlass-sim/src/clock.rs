//! Two clocks that are moved by hand.

use std::future::pending;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use windlass::clock::BoxFuture;
use windlass_core::time::{Now, Steady, Timestamp};

/// When every run begins, in microseconds since 1970.
const BEGINNING: i64 = 1_700_000_000_000_000;

/// A wall clock that can be stepped and a steady one that starts anew with each process.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clock {
    /// Microseconds since the run began.
    elapsed: u64,
    /// When the process began.
    process: u64,
    /// How long the process was stopped, in microseconds.
    stopped: u64,
    /// How far the wall clock is off, in microseconds.
    step: i64,
}

impl Clock {
    /// Both readings. Time for which the process was stopped does not count on the steady clock.
    pub fn now(&self) -> Now {
        let Now { wall, steady } = self.machine_now();
        Now { wall, steady: Steady::from_micros(steady.as_micros() - self.stopped) }
    }

    /// Both readings of the machine's clocks, which do not know that a process was stopped.
    pub(crate) fn machine_now(&self) -> Now {
        let elapsed = i64::try_from(self.elapsed).expect("a run of less than 292,000 years");
        Now {
            wall: Timestamp::from_micros(BEGINNING + elapsed + self.step),
            steady: Steady::from_micros(self.elapsed - self.process),
        }
    }

    /// Microseconds since the run began.
    pub fn elapsed(&self) -> u64 {
        self.elapsed
    }

    /// Time passes until so many microseconds after the run began.
    pub fn advance_to(&mut self, elapsed: u64) {
        self.elapsed = self.elapsed.max(elapsed);
    }

    /// Time passes.
    pub fn advance(&mut self, by: Duration) {
        self.elapsed += u64::try_from(by.as_micros()).expect("not so long");
    }

    /// Someone sets the wall clock ahead or back.
    pub fn step(&mut self, micros: i64) {
        self.step += micros;
    }

    /// A process begins: its steady clock starts at zero.
    pub fn restart(&mut self) {
        (self.process, self.stopped) = (self.elapsed, 0);
    }

    /// The process has been stopped for so many microseconds until now.
    pub fn was_stopped(&mut self, micros: u64) {
        self.stopped += micros;
    }
}

/// The clock as a process reads it: what it was last set to.
#[derive(Debug)]
pub(crate) struct ProcessClock(Mutex<Now>);

impl ProcessClock {
    pub(crate) fn new(now: Now) -> Self {
        Self(Mutex::new(now))
    }

    pub(crate) fn set(&self, now: Now) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = now;
    }
}

impl windlass::clock::Clock for ProcessClock {
    fn now(&self) -> Now {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sleep(&self, _: Duration) -> BoxFuture<'static, ()> {
        Box::pin(pending())
    }
}
