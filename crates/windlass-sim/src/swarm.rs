//! Many seeds, on every core, and what they came to.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::cover::Cover;
use crate::profile::Profile;
use crate::trace::Trace;
use crate::world::{self, Tally};

/// Which seeds to run.
#[derive(Clone, Copy, Debug)]
pub struct Swarm {
    /// The first seed.
    pub first: u64,
    /// How many.
    pub seeds: u64,
    /// What goes wrong; `None` lets each seed choose.
    pub profile: Option<Profile>,
    /// Stop beginning new seeds after this long.
    pub within: Option<Duration>,
    /// Threads at work.
    pub threads: usize,
}

/// What many seeds came to.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Seeds that were run.
    pub seeds: u64,
    /// What they came to.
    pub tally: Tally,
    /// Rare paths that were taken.
    pub cover: Cover,
    /// The first seed that failed, its profile, and what broke.
    pub failure: Option<(u64, Profile, String)>,
    /// How long it took.
    pub took: Duration,
}

/// Runs one seed; a panic of the engine is a failure like any other.
pub fn run_seed(seed: u64, profile: Profile, trace: Trace) -> Result<(Tally, Cover), String> {
    let outcome = catch_unwind(AssertUnwindSafe(|| world::run(seed, profile, trace)));
    let outcome = outcome.map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
        format!("panicked: {}", text.unwrap_or_default())
    })?;
    outcome.result.map_err(|violation| violation.0)?;
    Ok((outcome.tally, outcome.cover))
}

/// Runs seeds until all have been run, the time is over, or one has failed.
pub fn run(swarm: &Swarm) -> Report {
    let began = Instant::now();
    let (next, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let report = Mutex::new(Report::default());
    std::thread::scope(|scope| {
        for _ in 0..swarm.threads.max(1) {
            scope.spawn(|| {
                let mut own = Report::default();
                while !stop.load(Ordering::Relaxed)
                    && swarm.within.is_none_or(|within| began.elapsed() < within)
                {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= swarm.seeds {
                        break;
                    }
                    let seed = swarm.first + number;
                    let profile = swarm.profile.unwrap_or_else(|| Profile::of_seed(seed));
                    match run_seed(seed, profile, Trace::none()) {
                        Ok((tally, cover)) => {
                            own.seeds += 1;
                            own.tally.add(tally);
                            own.cover.add(&cover);
                        }
                        Err(why) => {
                            stop.store(true, Ordering::Relaxed);
                            own.failure = Some((seed, profile, why));
                        }
                    }
                }
                report.lock().unwrap_or_else(PoisonError::into_inner).add(own);
            });
        }
    });
    let mut report = report.into_inner().unwrap_or_else(PoisonError::into_inner);
    report.took = began.elapsed();
    report
}

impl Report {
    fn add(&mut self, other: Report) {
        self.seeds += other.seeds;
        self.tally.add(other.tally);
        self.cover.add(&other.cover);
        // Of several that failed at once, the one with the smallest seed.
        let failures = self.failure.take().into_iter().chain(other.failure);
        self.failure = failures.min_by_key(|(seed, _, _)| *seed);
    }
}
