//! How often a crashed part may be restarted before something is wrong that a restart cannot mend.

use alloc::collections::VecDeque;
use core::time::Duration;

use crate::time::Steady;

/// At most so many restarts in so long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Intensity {
    /// Restarts allowed within the period.
    pub restarts: u32,
    /// The period.
    pub period: Duration,
}

impl Default for Intensity {
    /// 10 restarts in 60 s.
    fn default() -> Self {
        Self { restarts: 10, period: Duration::from_secs(60) }
    }
}

/// Counts restarts against an [`Intensity`].
#[derive(Clone, Debug)]
pub struct Restarts {
    intensity: Intensity,
    recent: VecDeque<Steady>,
}

impl Restarts {
    /// No restarts yet.
    pub fn new(intensity: Intensity) -> Self {
        Self { intensity, recent: VecDeque::new() }
    }

    /// Counts a crash at `now` and says whether to restart.
    pub fn allow(&mut self, now: Steady) -> bool {
        while let Some(first) = self.recent.front()
            && now.since(*first) >= self.intensity.period
        {
            self.recent.pop_front();
        }
        self.recent.push_back(now);
        self.recent.len() <= self.intensity.restarts as usize
    }

    /// How long to rest before the next restart: nothing after the first crash, then doubling, so
    /// that a part that crashes at once does not spin.
    pub fn rest(&self) -> Duration {
        let crashes = u32::try_from(self.recent.len()).unwrap_or(u32::MAX);
        match crashes {
            0 | 1 => Duration::ZERO,
            _ => Duration::from_millis(10 << (crashes - 2).min(7)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_restarts_in_a_minute_are_allowed_and_the_eleventh_is_not() {
        let mut restarts = Restarts::new(Intensity::default());
        let now = Steady::from_micros(0);
        assert!((0..10).all(|second| restarts.allow(now + Duration::from_secs(second))));
        assert!(!restarts.allow(now + Duration::from_secs(59)));
    }

    #[test]
    fn crashes_that_are_a_minute_old_no_longer_count() {
        let mut restarts = Restarts::new(Intensity::default());
        let now = Steady::from_micros(0);
        assert!((0..100).all(|crash| restarts.allow(now + Duration::from_secs(6 * crash))));
    }
}
