//! Who waits for whom: edges between jobs, and what spreads along them when one ends.

use alloc::collections::BTreeSet;
use alloc::format;
use alloc::vec::Vec;

use super::entries::{Edge, Phase};
use super::{Effects, Ledger};
use crate::event::EventKind;
use crate::job::{Dependency, JobId, OnFailure, State, StateName};
use crate::outcome::ErrorText;
use crate::record::RecordNote;
use crate::transition::Input;

impl Ledger {
    pub(super) fn edges_from(&self, dependency: JobId) -> impl Iterator<Item = (JobId, Edge)> + '_ {
        let first = (dependency, JobId::from_u128(0));
        let last = (dependency, JobId::from_u128(u128::MAX));
        self.edges.range(first..=last).map(|((_, dependent), edge)| (*dependent, *edge))
    }

    /// Those of a new job's dependencies that are met as things stand. One that is not in the
    /// ledger yet comes later in the same batch.
    pub(super) fn met_by_now(&self, dependencies: &[Dependency]) -> Vec<JobId> {
        let met = dependencies.iter().filter(|dependency| {
            let state = self.find(dependency.on).map(|slot| self.entry(slot).phase.name());
            state.is_some_and(|state| is_met(state, dependency.on_failure))
        });
        met.map(|dependency| dependency.on).collect()
    }

    /// Notes what a job that was accepted or replayed depends on; `met` need not be waited for.
    ///
    /// There is an edge per dependency for as long as the job is open, even if the dependency is
    /// removed meanwhile: so the edges follow from the job alone.
    pub(super) fn link_all(&mut self, slot: u32, met: &[JobId]) {
        for ((on, dependent), edge) in self.edges_of(slot, met) {
            self.edges.insert((on, dependent), edge);
            if let Some(slot) = self.find(on) {
                self.keep_from_purge(slot);
            }
        }
    }

    /// The edges of an open job to those it depends on, of which `met` need not be waited for.
    pub(super) fn edges_of(&self, slot: u32, met: &[JobId]) -> Vec<((JobId, JobId), Edge)> {
        let entry = self.entry(slot);
        let met: BTreeSet<JobId> = met.iter().copied().collect();
        let edge = |dependency: &Dependency| {
            let Dependency { on, on_failure } = *dependency;
            ((on, entry.id), Edge { on_failure, met: met.contains(&on) })
        };
        entry.dependencies().map(edge).collect()
    }

    /// A finished job is needed for its output, so it must not be purged.
    fn keep_from_purge(&mut self, slot: u32) {
        let entry = self.entry(slot);
        if let Phase::Completed { at } | Phase::Cancelled { at, .. } = entry.phase {
            let key = (at, entry.sequence, slot);
            self.finished.remove(&key);
            if let Some(until) = self.key_until(slot) {
                self.withheld.remove(&(until, slot));
            }
        }
    }

    /// Removes the edges from a finished job to those it depended on, which may now be purged.
    pub(super) fn unlink(&mut self, slot: u32) {
        let entry = self.entry(slot);
        let id = entry.id;
        let dependencies: Vec<JobId> =
            entry.dependencies().map(|dependency| dependency.on).collect();
        for on in dependencies {
            self.edges.remove(&(on, id));
            if let Some(slot) = self.find(on) {
                self.offer_for_purge(slot);
            }
        }
    }

    /// Tells a finished job's dependents, and keeps the dead letters and the history within their
    /// bounds. The job itself may be gone afterwards.
    ///
    /// `error` is why it failed, for the record of those that follow.
    pub(super) fn after_end(
        &mut self,
        slot: u32,
        error: Option<&ErrorText>,
        effects: &mut Effects,
    ) {
        self.spread(slot, error, effects);
        self.keep_bounded(effects);
    }

    /// Tells a finished job's dependents, theirs if they follow, and so on.
    ///
    /// Nothing is removed meanwhile, not even beyond a bound: the jobs still to be visited must be
    /// there.
    pub(super) fn spread(&mut self, slot: u32, error: Option<&ErrorText>, effects: &mut Effects) {
        let root = self.entry(slot).id;
        let mut ended: Vec<u32> = alloc::vec![slot];
        while let Some(slot) = ended.pop() {
            let id = self.entry(slot).id;
            let state = self.entry(slot).phase.name();
            self.unlink(slot);
            let dependents: Vec<(JobId, Edge)> =
                self.edges_from(id).filter(|(_, edge)| !edge.met).collect();
            for (dependent, edge) in dependents {
                let fails = state != StateName::Completed;
                match edge.on_failure {
                    OnFailure::Wait if fails => {}
                    OnFailure::Cascade if fails => {
                        ended.extend(self.follow(dependent, id, root, state, error, effects));
                    }
                    OnFailure::Cascade | OnFailure::Wait | OnFailure::Ignore => {
                        self.release(id, dependent, effects);
                    }
                }
            }
            self.offer_for_purge(slot);
        }
    }

    /// A dependent dies or is cancelled with the job it depends on.
    pub(super) fn follow(
        &mut self,
        dependent: JobId,
        dependency: JobId,
        root: JobId,
        state: StateName,
        error: Option<&ErrorText>,
        effects: &mut Effects,
    ) -> Option<u32> {
        let slot = self.find(dependent)?;
        let cause = error.map_or(state.as_str(), ErrorText::as_str);
        let text = if dependency == root {
            format!("depends on job {dependency}, which is {state}: {cause}")
        } else {
            format!(
                "depends on job {dependency}, which is {state} because job {root} failed: {cause}"
            )
        };
        let error = ErrorText::new(text);
        let cancelled = state == StateName::Cancelled;
        let input = Input::DependencyFailed { cancelled };
        let note = Some(RecordNote::Failed(error.clone()));
        let status = self.transition(slot, &input, note, effects).ok()?;
        self.tell_end(slot, &status, Some(error), effects);
        Some(slot)
    }

    /// One of a blocked job's dependencies is met.
    pub(super) fn release(&mut self, dependency: JobId, dependent: JobId, effects: &mut Effects) {
        if let Some(edge) = self.edges.get_mut(&(dependency, dependent)) {
            edge.met = true;
        }
        let Some(slot) = self.find(dependent) else { return };
        let note = Some(RecordNote::Met { on: dependency });
        let Ok(status) = self.transition(slot, &Input::Unblock, note, effects) else { return };
        match status.state {
            State::Ready { .. } => self.tell(slot, EventKind::JobUnblocked, effects),
            State::Scheduled { at } => {
                self.tell(slot, EventKind::JobUnblocked, effects);
                self.tell(slot, EventKind::JobScheduled { at }, effects);
            }
            State::Blocked { .. }
            | State::Running(_)
            | State::Completed { .. }
            | State::Dead { .. }
            | State::Cancelled { .. } => {}
        }
    }
}

/// Whether a job need not wait, or no longer, for one that is in this state.
pub(super) fn is_met(state: StateName, on_failure: OnFailure) -> bool {
    match state {
        StateName::Completed => true,
        StateName::Dead | StateName::Cancelled => on_failure == OnFailure::Ignore,
        StateName::Blocked | StateName::Scheduled | StateName::Ready | StateName::Running => false,
    }
}
