//! May this kind start another job now? The generic cell rate algorithm: one number per kind.
//!
//! The number is the *theoretical arrival time*: when the bucket would be full again. It lives in
//! the store with the jobs, so a limit holds across workers, machines and restarts.
//!
//! Answers: a rate must hold in every window, not only from one full minute to the next.
//! Why not simpler: a counter per period lets twice as many start around its end, and a list of
//! starts grows with the rate.
//! Guarded by: the properties below, and the planted bug 39.

use core::time::Duration;

use crate::time::Timestamp;

/// At most `burst` starts at once, and `jobs` per `period` in the long run.
///
/// In any window of length `t` no more than `burst + t × jobs / period` jobs start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "wire", derive(serde::Serialize, serde::Deserialize))]
pub struct Rate {
    /// Starts allowed per period in the long run; at least 1.
    pub jobs: u32,
    /// The period.
    pub period: Duration,
    /// Starts allowed back to back; at least 1.
    pub burst: u32,
}

impl Rate {
    /// `jobs` per second, evenly spaced but for a burst of the same size.
    pub fn per_second(jobs: u32) -> Self {
        Self { jobs, period: Duration::from_secs(1), burst: jobs }
    }

    /// `jobs` per minute, evenly spaced but for a burst of the same size.
    pub fn per_minute(jobs: u32) -> Self {
        Self { jobs, period: Duration::from_secs(60), burst: jobs }
    }

    /// How many jobs may start back to back.
    pub fn burst(mut self, burst: u32) -> Self {
        self.burst = burst;
        self
    }

    /// The period in whole microseconds, rounded up like the spacing.
    pub fn period_micros(&self) -> i64 {
        i64::try_from(self.period.as_nanos().div_ceil(1_000)).unwrap_or(i64::MAX)
    }

    /// Time between two evenly spaced starts, in whole microseconds and at least one. Rounded up:
    /// a spacing that is a little too short adds up to more starts than were allowed.
    fn spacing(&self) -> Duration {
        let period = self.period_micros().unsigned_abs();
        Duration::from_micros(period.div_ceil(u64::from(self.jobs.max(1))).max(1))
    }

    /// Whether one more job may start at `now`, given the arrival time `full_at` of the last one:
    /// the new arrival time, or how long to wait.
    pub fn admit(&self, full_at: Timestamp, now: Timestamp) -> Result<Timestamp, Duration> {
        let spacing = self.spacing();
        let tolerance = spacing.saturating_mul(self.burst.max(1) - 1);
        // Later than this rate can have made it: a slower one has left it behind, which was perhaps
        // a mistake. It is not waited for; one starts now, and the others are spaced.
        let is_of_another = full_at > now + tolerance.saturating_add(spacing);
        let full_at = if is_of_another { now + tolerance } else { full_at };
        let earliest = full_at - tolerance;
        if now < earliest {
            return Err(earliest.since(now));
        }
        Ok(full_at.max(now) + spacing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    #[test]
    fn a_burst_passes_at_once_and_the_rest_is_spaced() {
        let rate = Rate::per_second(10).burst(3);
        let now = Timestamp::from_millis(1_000);
        let mut full_at = Timestamp::default();
        for _ in 0..3 {
            full_at = rate.admit(full_at, now).expect("inside the burst");
        }
        assert_eq!(rate.admit(full_at, now), Err(Duration::from_millis(100)));
        assert!(rate.admit(full_at, now + Duration::from_millis(100)).is_ok());
    }

    #[test]
    fn the_longest_period_and_the_largest_burst_do_not_overflow() {
        for jobs in [0, 1, u32::MAX] {
            for period in [Duration::ZERO, Duration::from_nanos(1), Duration::MAX] {
                for burst in [0, 1, u32::MAX] {
                    let rate = Rate { jobs, period, burst };
                    for at in [i64::MIN, 0, i64::MAX].map(Timestamp::from_micros) {
                        let full_at = rate.admit(Timestamp::from_micros(i64::MIN), at);
                        let _ = rate.admit(full_at.expect("nothing has started"), at);
                    }
                }
            }
        }
    }

    proptest! {
        /// Whoever asks at every chance gets the most there can be: no window is longer than all.
        #[test]
        fn nobody_gets_more_than_the_rate_however_long_he_asks(
            jobs in 1u32..2_000_000,
            period_ns in 1u64..3_600_000_000_000,
            burst in 1u32..5,
            starts in 1u32..3_000,
        ) {
            let rate = Rate { jobs, period: Duration::from_nanos(period_ns), burst };
            let begin = Timestamp::from_millis(5_000);
            let (mut full_at, mut now) = (Timestamp::default(), begin);
            for started in 1..=starts {
                while let Err(wait) = rate.admit(full_at, now) {
                    now = now + wait;
                }
                full_at = rate.admit(full_at, now).expect("it was waited for");
                let passed_ns = now.since(begin).as_nanos();
                // No more than the burst, and one for each part of the period that has passed.
                let spaced = u128::from(started.saturating_sub(burst)) * u128::from(period_ns);
                prop_assert!(
                    spaced <= passed_ns * u128::from(jobs),
                    "{started} starts within {passed_ns} ns"
                );
            }
        }

        #[test]
        fn no_window_holds_more_than_burst_plus_rate(
            jobs in 1u32..50,
            burst in 1u32..20,
            gaps in proptest::collection::vec(0u64..200, 1..200),
        ) {
            let rate = Rate { jobs, period: Duration::from_secs(1), burst };
            let mut now = Timestamp::from_millis(5_000);
            let (mut full_at, mut starts) = (Timestamp::default(), Vec::new());
            for gap in gaps {
                now = now + Duration::from_millis(gap);
                if let Ok(next) = rate.admit(full_at, now) {
                    full_at = next;
                    starts.push(now);
                }
            }
            for (first, from) in starts.iter().enumerate() {
                for (last, to) in starts.iter().enumerate().skip(first) {
                    let window = to.since(*from).as_micros() as u64;
                    // One spare start for the half-open window's far edge.
                    let allowed = u64::from(burst) + window * u64::from(jobs) / 1_000_000 + 1;
                    prop_assert!((last - first + 1) as u64 <= allowed);
                }
            }
        }
    }
}
