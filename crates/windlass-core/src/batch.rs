//! What can be said of a batch of new jobs without looking at any other job.
//!
//! A store that is not a [`Ledger`](crate::ledger::Ledger) refuses by the same rules, in the same
//! words, before it asks anyone.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::job::{JobId, NewJob};
use crate::limits::{self, Limits, at_most};
use crate::refusal::Refusal;
use crate::time::Timestamp;

/// Refuses a batch that is too large, in which a job is beyond its bounds ([`NewJob::check`]), or
/// in which an id stands twice.
pub fn check(jobs: &[Arc<NewJob>], limits: &Limits, now: Timestamp) -> Result<(), Refusal> {
    at_most("jobs in one batch", jobs.len(), limits::BATCH_JOBS, "split the batch")?;
    jobs.iter().try_for_each(|job| job.check(limits, now))?;
    // Ids that were made one after the other ascend, so nearly every batch is done here.
    if jobs.is_sorted_by(|one, next| one.id < next.id) {
        return Ok(());
    }
    let mut ids = BTreeSet::new();
    match jobs.iter().find(|job| !ids.insert(job.id)) {
        Some(job) => Err(Refusal::IdTwiceInBatch { job: job.id }),
        None => Ok(()),
    }
}

/// Refuses jobs that wait for each other in a circle, or one that waits for itself.
///
/// Only jobs of one batch can form a circle: a job outside of it was accepted before, and cannot
/// depend on one of them. So dependencies on others are passed over. `jobs` are those that will be
/// added; if an item was a duplicate, those that depend on it depend on its holder already.
pub fn refuse_cycles<'a>(jobs: impl Iterator<Item = &'a NewJob> + Clone) -> Result<(), Refusal> {
    if jobs.clone().all(|job| job.depends_on.is_empty()) {
        return Ok(());
    }
    let mut waits_for: BTreeMap<JobId, usize> = jobs.clone().map(|job| (job.id, 0)).collect();
    let mut dependents: BTreeMap<JobId, Vec<JobId>> = BTreeMap::new();
    let mut dependencies: BTreeMap<JobId, Vec<JobId>> = BTreeMap::new();
    for job in jobs {
        for dependency in &job.depends_on {
            if waits_for.contains_key(&dependency.on) {
                *waits_for.entry(job.id).or_default() += 1;
                dependents.entry(dependency.on).or_default().push(job.id);
                dependencies.entry(job.id).or_default().push(dependency.on);
            }
        }
    }
    let mut free: Vec<JobId> =
        waits_for.iter().filter(|(_, count)| **count == 0).map(|(job, _)| *job).collect();
    while let Some(job) = free.pop() {
        waits_for.remove(&job);
        for dependent in dependents.remove(&job).unwrap_or_default() {
            if let Some(count) = waits_for.get_mut(&dependent) {
                *count -= 1;
                if *count == 0 {
                    free.push(dependent);
                }
            }
        }
    }
    let Some((&start, _)) = waits_for.first_key_value() else { return Ok(()) };
    // What is left is in a cycle or waits for one: following it backwards must end in a cycle.
    let mut job = start;
    let mut walked = BTreeSet::new();
    while walked.insert(job) {
        let stuck = dependencies.get(&job).into_iter().flatten();
        job = stuck.copied().find(|on| waits_for.contains_key(on)).unwrap_or(start);
    }
    Err(Refusal::DependencyCycle { job })
}
