//! When to try again: a durable policy and the arithmetic of its delays.
//!
//! A policy is plain data, stored with the job, so every worker and every restart computes the
//! same delay. Jitter comes from a seed, and the seed from the job and its attempt: two jobs that
//! fail together spread out, and one run can be replayed exactly.

use alloc::vec::Vec;
use core::time::Duration;

use crate::job::JobId;
use crate::limits;

/// How the delay grows with the attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "wire", derive(serde::Serialize, serde::Deserialize))]
pub enum Backoff {
    /// The same delay every time.
    Constant(Duration),
    /// `step`, `2 × step`, `3 × step`, …
    Linear(Duration),
    /// `base`, `base × factor`, `base × factor²`, …
    Exponential {
        /// The first delay.
        base: Duration,
        /// What each further delay is multiplied by, in thousandths.
        factor_milli: u32,
    },
    /// Delays chosen one by one; the last repeats. An empty list retries at once.
    Custom(Vec<Duration>),
}

/// How much chance is mixed into a delay, so that jobs that failed together do not return together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "wire", derive(serde::Serialize, serde::Deserialize))]
pub enum Jitter {
    /// None: the delay is exact.
    None,
    /// Up to a tenth more or less, applied after the cap: at most 1.1 × the cap.
    Tenth,
    /// Between half of the delay and all of it.
    Equal,
    /// Between nothing and all of it.
    Full,
}

/// Whether, how often and when a failed job is tried again.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "wire", derive(serde::Serialize, serde::Deserialize))]
pub struct Retry {
    /// How the delay grows.
    pub backoff: Backoff,
    /// No delay is longer than this, before jitter.
    pub cap: Duration,
    /// How much chance is mixed in.
    pub jitter: Jitter,
    /// Total runs, the first included. `None` leaves it to the kind, then to the default of 3.
    pub max_attempts: Option<u32>,
    /// Give up when the next try would start later than this after the first start.
    pub max_duration: Option<Duration>,
}

/// `max_attempts` that never runs out: the job is retried until it succeeds or is cancelled.
pub const UNLIMITED: u32 = u32::MAX;

/// Total runs of a job that says nothing else.
pub const DEFAULT_MAX_ATTEMPTS: u32 = 3;

impl Default for Retry {
    /// 1 s doubling to a cap of 60 s, a tenth of jitter.
    fn default() -> Self {
        Self::exponential(Duration::from_secs(1)).cap(Duration::from_secs(60))
    }
}

impl Retry {
    fn with(backoff: Backoff) -> Self {
        Self {
            backoff,
            cap: Duration::from_secs(300),
            jitter: Jitter::Tenth,
            max_attempts: None,
            max_duration: None,
        }
    }

    /// The same delay before every retry, however long: what does not grow needs no cap, so only
    /// [`Retry::cap`] sets one.
    pub fn constant(delay: Duration) -> Self {
        Self::with(Backoff::Constant(delay)).cap(Duration::MAX)
    }

    /// `step`, `2 × step`, `3 × step`, … capped at 5 minutes unless [`Retry::cap`] says otherwise.
    pub fn linear(step: Duration) -> Self {
        Self::with(Backoff::Linear(step))
    }

    /// `base` doubling, capped at 5 minutes unless [`Retry::cap`] says otherwise.
    pub fn exponential(base: Duration) -> Self {
        Self::with(Backoff::Exponential { base, factor_milli: 2_000 })
    }

    /// Delays chosen one by one; the last repeats. Only [`Retry::cap`] shortens them.
    pub fn custom(delays: impl Into<Vec<Duration>>) -> Self {
        Self::with(Backoff::Custom(delays.into())).cap(Duration::MAX)
    }

    /// Preset: 1 s to 30 s, for calls to well-behaved services.
    pub fn standard() -> Self {
        Self::exponential(Duration::from_secs(1)).cap(Duration::from_secs(30))
    }

    /// Preset: 100 ms to 5 s, for work someone is waiting for.
    pub fn aggressive() -> Self {
        Self::exponential(Duration::from_millis(100)).cap(Duration::from_secs(5))
    }

    /// Preset: 5 s to 2 minutes, for services that need time to recover.
    pub fn patient() -> Self {
        Self::exponential(Duration::from_secs(5)).cap(Duration::from_secs(120))
    }

    /// Never run a second time: the first failure goes to the dead letters.
    pub fn never() -> Self {
        Self::constant(Duration::ZERO).up_to(1)
    }

    /// No delay longer than `cap`, before jitter.
    pub fn cap(mut self, cap: Duration) -> Self {
        self.cap = cap;
        self
    }

    /// How much chance is mixed into each delay.
    pub fn jitter(mut self, jitter: Jitter) -> Self {
        self.jitter = jitter;
        self
    }

    /// At most `max_attempts` runs in all, the first included; 0 is read as 1.
    pub fn up_to(mut self, max_attempts: u32) -> Self {
        self.max_attempts = Some(max_attempts.max(1));
        self
    }

    /// As often as it takes.
    pub fn unlimited(mut self) -> Self {
        self.max_attempts = Some(UNLIMITED);
        self
    }

    /// Give up when the next try would start later than `budget` after the first start.
    pub fn within(mut self, budget: Duration) -> Self {
        self.max_duration = Some(budget);
        self
    }

    /// The delay after attempt number `attempt` (1 is the first) failed.
    ///
    /// Never overflows: growth stops at the cap or at a century, whatever the attempt.
    pub fn delay(&self, attempt: u32, seed: u64) -> Duration {
        let exact = self.exact_delay(attempt).min(self.cap).min(limits::DELAY_MAX);
        match self.jitter {
            Jitter::None => exact,
            Jitter::Tenth => {
                let tenth = exact / 10;
                (exact - tenth).saturating_add(part(tenth.saturating_mul(2), seed))
            }
            Jitter::Equal => (exact / 2).saturating_add(part(exact / 2, seed)),
            Jitter::Full => part(exact, seed),
        }
    }

    fn exact_delay(&self, attempt: u32) -> Duration {
        let retries_before = attempt.saturating_sub(1);
        match &self.backoff {
            Backoff::Constant(delay) => *delay,
            Backoff::Linear(step) => step.saturating_mul(attempt.max(1)),
            Backoff::Exponential { base, factor_milli } => {
                let mut delay = *base;
                // A factor of 1 or less never reaches the cap; 4096 steps of 1.001 already give
                // a factor of 60, so stopping there loses nothing anyone would configure.
                for _ in 0..retries_before.min(4_096) {
                    if delay >= self.cap || delay.is_zero() {
                        break;
                    }
                    delay = delay.saturating_mul(*factor_milli) / 1_000;
                }
                delay
            }
            Backoff::Custom(delays) => {
                let index = usize::try_from(retries_before).unwrap_or(usize::MAX);
                delays.get(index).or(delays.last()).copied().unwrap_or(Duration::ZERO)
            }
        }
    }
}

/// A share of `whole` between none and all of it, chosen by `seed`.
fn part(whole: Duration, seed: u64) -> Duration {
    let micros = u128::from(seed) * whole.as_micros() / u128::from(u64::MAX);
    Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX))
}

/// The jitter seed of one attempt of one job: the same everywhere, for ever.
pub fn jitter_seed(job: JobId, attempt: u32) -> u64 {
    xxhash_rust::xxh3::xxh3_64_with_seed(&job.to_bytes(), u64::from(attempt))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use proptest::prelude::*;

    fn seconds(retry: &Retry, attempts: u32) -> Vec<u64> {
        (1..=attempts).map(|attempt| retry.delay(attempt, 0).as_secs()).collect()
    }

    #[test]
    fn exponential_doubles_to_the_cap() {
        let retry = Retry::exponential(Duration::from_secs(10)).jitter(Jitter::None);
        assert_eq!(seconds(&retry, 7), [10, 20, 40, 80, 160, 300, 300]);
        let default = Retry::default().jitter(Jitter::None);
        assert_eq!(seconds(&default, 8), [1, 2, 4, 8, 16, 32, 60, 60]);
    }

    #[test]
    fn linear_constant_and_custom_delays_follow_their_tables() {
        let linear = Retry::linear(Duration::from_secs(100)).jitter(Jitter::None);
        assert_eq!(seconds(&linear, 4), [100, 200, 300, 300]);
        for delay in [7, 600, 86_400] {
            let constant = Retry::constant(Duration::from_secs(delay)).jitter(Jitter::None);
            assert_eq!(seconds(&constant, 3), [delay; 3]);
        }
        let custom = Retry::custom(vec![Duration::from_secs(1), Duration::from_secs(900)])
            .jitter(Jitter::None);
        assert_eq!(seconds(&custom, 3), [1, 900, 900]);
        assert_eq!(seconds(&Retry::custom(vec![]), 2), [0, 0]);
    }

    #[test]
    fn the_seed_of_an_attempt_is_fixed_and_differs_between_jobs_and_attempts() {
        let (a, b) = (JobId::from_u128(1), JobId::from_u128(2));
        assert_eq!(jitter_seed(a, 1), jitter_seed(a, 1));
        assert_ne!(jitter_seed(a, 1), jitter_seed(a, 2));
        assert_ne!(jitter_seed(a, 1), jitter_seed(b, 1));
    }

    proptest! {
        #[test]
        fn a_tenth_of_jitter_stays_within_a_tenth(attempt in 1..=u32::MAX, seed: u64) {
            let exact = Retry::default().jitter(Jitter::None).delay(attempt, seed);
            let delay = Retry::default().delay(attempt, seed);
            prop_assert!(delay >= exact - exact / 10, "{delay:?} below {exact:?}");
            prop_assert!(delay <= exact + exact / 10, "{delay:?} above {exact:?}");
        }

        #[test]
        fn no_configuration_overflows_or_exceeds_its_cap(
            base in durations(), factor_milli: u32, cap in durations(), attempt: u32, seed: u64,
        ) {
            let backoffs = [
                Backoff::Constant(base),
                Backoff::Linear(base),
                Backoff::Exponential { base, factor_milli },
                Backoff::Custom(vec![base]),
            ];
            for backoff in backoffs {
                for jitter in [Jitter::None, Jitter::Tenth, Jitter::Equal, Jitter::Full] {
                    let retry = Retry::with(backoff.clone()).cap(cap).jitter(jitter);
                    let most = match jitter {
                        Jitter::Tenth => cap.saturating_add(cap / 10),
                        Jitter::None | Jitter::Equal | Jitter::Full => cap,
                    };
                    prop_assert!(retry.delay(attempt, seed) <= most);
                }
            }
        }
    }

    fn durations() -> impl Strategy<Value = Duration> {
        prop_oneof![
            any::<u64>().prop_map(Duration::from_micros),
            any::<u64>().prop_map(Duration::from_secs),
            Just(Duration::ZERO),
            Just(Duration::MAX),
        ]
    }
}
