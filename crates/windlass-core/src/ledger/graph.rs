//! Who waits for whom: edges between jobs, and what spreads along them when one ends.

use alloc::format;
use alloc::vec::Vec;

use super::book::{Edge, Phase};
use super::{Effects, Ledger};
use crate::event::What;
use crate::job::{Dependency, JobId, OnFailure, State, StateName};
use crate::outcome::ErrorText;
use crate::record::Note;
use crate::transition::Input;

impl Ledger {
    pub(super) fn edges_from(&self, dependency: JobId) -> impl Iterator<Item = (JobId, Edge)> + '_ {
        let first = (dependency, JobId::from_u128(0));
        let last = (dependency, JobId::from_u128(u128::MAX));
        self.edges.range(first..=last).map(|((_, dependent), edge)| (*dependent, *edge))
    }

    /// Notes that `dependent` depends on `on`, met or not as `on` stands now.
    pub(super) fn link(&mut self, on: JobId, dependent: JobId, on_failure: OnFailure) {
        let state = self.ids.get(&on).map(|slot| self.entry(*slot).phase.name());
        let met = match state {
            Some(StateName::Completed) => true,
            Some(StateName::Dead | StateName::Cancelled) => on_failure == OnFailure::Ignore,
            Some(
                StateName::Blocked | StateName::Scheduled | StateName::Ready | StateName::Running,
            ) => false,
            // Not in the book yet: it comes later in the same batch.
            None => false,
        };
        self.edges.insert((on, dependent), Edge { on_failure, met });
        if let Some(&slot) = self.ids.get(&on) {
            // It is needed for its output now, so it must not be purged.
            let entry = self.entry(slot);
            if let Phase::Completed { at } | Phase::Cancelled { at, .. } = entry.phase {
                let key = (at, entry.sequence, slot);
                self.finished.remove(&key);
                if let Some(until) = self.key_until(slot) {
                    self.withheld.remove(&(until, slot));
                }
            }
        }
    }

    /// Notes again what a job depends on, after it had finished.
    pub(super) fn relink(&mut self, slot: u32) {
        let entry = self.entry(slot);
        let id = entry.id;
        let dependencies: Vec<Dependency> = entry.dependencies().copied().collect();
        for dependency in dependencies {
            if self.ids.contains_key(&dependency.on) {
                self.link(dependency.on, id, dependency.on_failure);
            }
        }
    }

    /// Brings the edges around a job in line with the state it is in.
    pub(super) fn settle_edges_of(&mut self, job: JobId) {
        let Some(&slot) = self.ids.get(&job) else { return };
        let state = self.entry(slot).phase.name();
        if state.is_terminal() {
            self.unlink(slot);
        }
        let met_on_failure = matches!(state, StateName::Dead | StateName::Cancelled);
        let met: Vec<JobId> = self
            .edges_from(job)
            .filter(|(_, edge)| match edge.on_failure {
                OnFailure::Ignore => state == StateName::Completed || met_on_failure,
                OnFailure::Cascade | OnFailure::Wait => state == StateName::Completed,
            })
            .map(|(dependent, _)| dependent)
            .collect();
        for dependent in met {
            if let Some(edge) = self.edges.get_mut(&(job, dependent)) {
                edge.met = true;
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
            if let Some(&slot) = self.ids.get(&on) {
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
    /// Nothing is removed on the way: those still to be told must be there.
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
        let slot = *self.ids.get(&dependent)?;
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
        let note = Some(Note::Failed(error.clone()));
        let condition = self.transition(slot, &input, note, effects).ok()?;
        self.tell_end(slot, &condition, Some(error), effects);
        Some(slot)
    }

    /// One of a blocked job's dependencies is met.
    pub(super) fn release(&mut self, dependency: JobId, dependent: JobId, effects: &mut Effects) {
        if let Some(edge) = self.edges.get_mut(&(dependency, dependent)) {
            edge.met = true;
        }
        let Some(&slot) = self.ids.get(&dependent) else { return };
        let Ok(condition) = self.transition(slot, &Input::Unblock, None, effects) else { return };
        match condition.state {
            State::Ready { .. } => self.tell(slot, What::JobUnblocked, effects),
            State::Scheduled { at } => {
                self.tell(slot, What::JobUnblocked, effects);
                self.tell(slot, What::JobScheduled { at }, effects);
            }
            State::Blocked { .. }
            | State::Running(_)
            | State::Completed { .. }
            | State::Dead { .. }
            | State::Cancelled { .. } => {}
        }
    }
}
