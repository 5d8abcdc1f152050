//! The worker's decisions: how many jobs to take, when to renew, how long to sleep.
//!
//! The asynchronous worker only carries these out, and a simulation can carry out the same ones.

use core::time::Duration;

use crate::limits;

/// From how many jobs on a second claim, or a second settlement, is sent while the first is in
/// flight.
pub const ASK_AHEAD: u32 = 500;

/// How many jobs a worker runs at once, unless it is told otherwise.
pub const DEFAULT_SLOTS: u32 = 10;

/// How many jobs a worker with so many `slots` claims when `busy` of them are in use and claims in
/// flight have `asked` for some; 0 if it is better to wait. A large worker claims a quarter of its
/// slots at a time, so that some jobs arrive while others run or end; a small one claims for all
/// free slots at once, because every call costs as much as many jobs.
///
/// A job that has run needs no slot while its settlement is in flight; with [`most_unsettled`] of
/// them the worker waits for the store.
pub fn to_ask(slots: u32, busy: u32, asked: u32, unsettled: u32) -> u32 {
    let free = slots.saturating_sub(busy).saturating_sub(asked);
    let free = free.min(most_unsettled(slots).saturating_sub(unsettled));
    if asked > 0 && free < ASK_AHEAD { 0 } else { free.min((slots / 4).max(ASK_AHEAD)) }
}

/// How many jobs of a worker may have run and wait to be settled: these run again if the process
/// is lost, and a store that does not settle should get no more to do.
pub fn most_unsettled(slots: u32) -> u32 {
    slots.max(ASK_AHEAD)
}

/// Whether a worker settles so many attempts now, with other settlements of it in flight. Where
/// every call is a commit, one for all that waits is cheaper than several, unless it would be large
/// by itself. Where calls share commits, there is nothing to wait for.
pub fn is_worth_a_call(waiting: usize, in_flight: usize, shares_commits: bool) -> bool {
    shares_commits || in_flight == 0 || waiting >= ASK_AHEAD as usize
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
    fn a_small_worker_asks_for_all_it_can_hold_and_a_large_one_ahead() {
        assert_eq!([to_ask(64, 0, 0, 0), to_ask(64, 60, 0, 0), to_ask(64, 64, 0, 0)], [64, 4, 0]);
        assert_eq!(to_ask(64, 0, 32, 0), 0, "not for half of them while others are on their way");
        assert_eq!(to_ask(8_000, 0, 0, 0), 2_000);
        assert_eq!(to_ask(8_000, 4_000, 2_000, 0), 2_000);
        assert_eq!(to_ask(8_000, 5_600, 2_000, 0), 0, "too few to be worth a question");
        assert_eq!(to_ask(8_000, 7_999, 0, 0), 1, "nothing is on its way");
        assert_eq!(to_ask(8_000, 9_000, 0, 0), 0, "slots were taken away");
    }

    #[test]
    fn a_worker_runs_ahead_of_its_settlements_but_not_far() {
        assert_eq!(to_ask(10, 0, 0, 490), 10);
        assert_eq!(to_ask(10, 0, 0, 495), 5);
        assert_eq!(to_ask(10, 0, 0, 500), 0);
        assert_eq!(to_ask(10, 0, 0, u32::MAX), 0);
        assert_eq!(to_ask(2_000, 0, 0, 1_900), 100);
    }

    #[test]
    fn a_second_settlement_goes_only_with_many() {
        assert!(is_worth_a_call(1, 0, false));
        assert!(!is_worth_a_call(499, 1, false));
        assert!(is_worth_a_call(500, 1, false));
        assert!(is_worth_a_call(1, 7, true));
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
