//! The worker's decisions: how many jobs to take, when to renew, how long to sleep.
//!
//! The asynchronous worker only carries these out, and a simulation can carry out the same ones.

use core::time::Duration;

use crate::limits;

/// Between how many slots a worker scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slots {
    /// Kept even when idle.
    pub min: u32,
    /// Never exceeded.
    pub max: u32,
}

impl Default for Slots {
    fn default() -> Self {
        Self { min: 1, max: 10 }
    }
}

impl Slots {
    /// How many slots to have when `busy` are in use and `ready` jobs wait: one for each, within
    /// the bounds, and never fewer than are in use.
    pub fn wanted(&self, busy: u32, ready: u64) -> u32 {
        let demand = u64::from(busy).saturating_add(ready).min(u64::from(self.max));
        let demand = u32::try_from(demand).unwrap_or(self.max);
        demand.max(self.min).max(busy)
    }
}

/// How long a worker sleeps: until the store expects something to become due, but no longer than
/// the poll interval, because a wake may be lost and a wall clock may be stepped.
pub fn sleep_for(wake_in: Option<Duration>, poll_interval: Duration) -> Duration {
    wake_in.map_or(poll_interval, |due| due.min(poll_interval))
}

/// How long before the end of a lease it is renewed: a third of it has passed, so two more tries
/// fit before it is lost.
pub fn renew_every(lease: Duration) -> Duration {
    lease.clamp(limits::LEASE_MIN, limits::LEASE_MAX) / 3
}

/// How long to wait after the store failed to answer for the `failures`th time in a row: 100 ms
/// doubling to 10 s.
pub fn store_backoff(failures: u32) -> Duration {
    Duration::from_millis(100 << failures.saturating_sub(1).min(7)).min(Duration::from_secs(10))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_follow_the_ready_depth_between_min_and_max() {
        let slots = Slots::default();
        assert_eq!(slots.wanted(0, 0), 1);
        assert_eq!(slots.wanted(2, 3), 5);
        assert_eq!(slots.wanted(3, 1_000), 10);
        assert_eq!(slots.wanted(10, 0), 10);
        assert_eq!(Slots { min: 2, max: 4 }.wanted(6, 9), 6);
    }

    #[test]
    fn a_sleep_ends_at_the_next_due_time_or_the_poll_interval() {
        let poll = Duration::from_secs(5);
        assert_eq!(sleep_for(None, poll), poll);
        assert_eq!(sleep_for(Some(Duration::from_secs(2)), poll), Duration::from_secs(2));
        assert_eq!(sleep_for(Some(Duration::from_secs(9)), poll), poll);
    }

    #[test]
    fn store_backoff_doubles_to_its_cap() {
        assert_eq!(store_backoff(1), Duration::from_millis(100));
        assert_eq!(store_backoff(4), Duration::from_millis(800));
        assert_eq!(store_backoff(u32::MAX), Duration::from_secs(10));
    }
}
