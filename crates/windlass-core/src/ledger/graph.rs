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

    /// Tells a finished job's dependents, theirs if they follow, and so on, up to the bound of the
    /// command. Who is left is owed it: see [`Ledger::go_on_with_cascades`].
    ///
    /// Nothing is removed meanwhile, not even beyond a bound: the jobs still to be visited must be
    /// there.
    pub(super) fn spread(&mut self, slot: u32, error: Option<&ErrorText>, effects: &mut Effects) {
        let cause = Cause { root: self.entry(slot).id, error };
        self.unlink(slot);
        let (_, each) = self.cascade_bounds;
        let mut left = effects.dependents_left.max(each);
        let before = left;
        let (mut next, mut ended) = (Some(slot), Vec::new());
        while let Some(slot) = next {
            ended.extend(self.tell_dependents(slot, Some(cause), &mut left, effects));
            self.offer_for_purge(slot);
            next = ended.pop();
        }
        effects.dependents_left = effects.dependents_left.saturating_sub(before - left);
    }

    /// Tells as many of a finished job's dependents as are left to tell, by their ids. Returns
    /// those that have ended with it; if some were not told, that is noted.
    fn tell_dependents(
        &mut self,
        slot: u32,
        cause: Option<Cause<'_>>,
        left: &mut usize,
        effects: &mut Effects,
    ) -> Vec<u32> {
        let entry = self.entry(slot);
        let (id, sequence, state) = (entry.id, entry.sequence, entry.phase.name());
        let first = self.owing.get(&sequence).map_or(JobId::from_u128(0), |owing| owing.next);
        let mut owed: Vec<(JobId, Edge)> = self.owed(id, state, first).take(*left + 1).collect();
        let next = owed.get(*left).map(|(dependent, _)| *dependent);
        owed.truncate(*left);
        *left -= owed.len();
        let mut ended = Vec::new();
        for (dependent, edge) in owed {
            match is_met(state, edge.on_failure) {
                true => self.release(id, dependent, effects),
                false => ended.extend(self.follow(dependent, id, cause, state, effects)),
            }
        }
        match next {
            Some(next) => drop(self.owing.insert(sequence, Owing { slot, next })),
            None => drop(self.owing.remove(&sequence)),
        }
        ended
    }

    /// Dependents of a job in this state that are still to be told of its end, from an id on.
    fn owed(
        &self,
        job: JobId,
        state: StateName,
        first: JobId,
    ) -> impl Iterator<Item = (JobId, Edge)> + '_ {
        let last = (job, JobId::from_u128(u128::MAX));
        let edges = self.edges.range((job, first)..=last);
        let edges = edges.map(|((_, dependent), edge)| (*dependent, *edge));
        edges.filter(move |(_, edge)| is_owed(state, edge))
    }

    /// Goes on with cascades that were too large for the commands that caused them, by so many
    /// dependents, those of the jobs that were accepted first, first.
    ///
    /// Nothing is kept of them but the jobs themselves: a job whose dependency has ended and that
    /// was not told. So any command goes on with them, also after a crash and in another process.
    pub(super) fn go_on_with_cascades(&mut self, most: usize, effects: &mut Effects) {
        if self.owing.is_empty() {
            return;
        }
        let most = most.min(effects.dependents_left);
        let mut left = most;
        while left > 0
            && let Some(Owing { slot, .. }) = self.owing.values().next().copied()
        {
            for ended in self.tell_dependents(slot, None, &mut left, effects) {
                self.note_owing(ended);
            }
            self.offer_for_purge(slot);
        }
        effects.dependents_left -= most - left;
        if left < most {
            self.keep_bounded(effects);
        }
    }

    /// Whether dependents of finished jobs are still to be told; any command goes on with that.
    pub fn owes(&self) -> bool {
        let owes = |owing: &Owing| {
            let entry = self.entry(owing.slot);
            self.owed(entry.id, entry.phase.name(), owing.next).next().is_some()
        };
        self.owing.values().any(owes)
    }

    /// Notes that a finished job has dependents to tell, if it has.
    pub(super) fn note_owing(&mut self, slot: u32) {
        let entry = self.entry(slot);
        let (id, sequence, state) = (entry.id, entry.sequence, entry.phase.name());
        let next = self.owed(id, state, JobId::from_u128(0)).next();
        if let Some((next, _)) = next {
            self.owing.insert(sequence, Owing { slot, next });
        }
    }

    /// Whether so few jobs wait for this one that they can follow it in one commit.
    pub(super) fn few_wait_for(&self, job: JobId) -> bool {
        let (most, _) = self.cascade_bounds;
        self.edges_from(job).filter(|(_, edge)| !edge.met).take(most + 1).count() <= most
    }

    /// A dependent dies or is cancelled with the job it depends on. Later than in the command that
    /// ended that one, the cause is no longer at hand: its own record tells.
    fn follow(
        &mut self,
        dependent: JobId,
        dependency: JobId,
        cause: Option<Cause<'_>>,
        state: StateName,
        effects: &mut Effects,
    ) -> Option<u32> {
        let slot = self.find(dependent)?;
        let text = match cause {
            None => format!("depends on job {dependency}, which is {state}"),
            Some(Cause { root, error }) => {
                let why = error.map_or(state.as_str(), ErrorText::as_str);
                let because = match dependency == root {
                    true => format!("{state}"),
                    false => format!("{state} because job {root} failed"),
                };
                format!("depends on job {dependency}, which is {because}: {why}")
            }
        };
        let error = ErrorText::new(text);
        let cancelled = state == StateName::Cancelled;
        let input = Input::DependencyFailed { cancelled };
        let note = Some(RecordNote::Failed(error.clone()));
        let status = self.transition(slot, &input, note, effects).ok()?;
        self.tell_end(slot, &status, Some(error), effects);
        self.unlink(slot);
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

/// Why jobs end that depend on others.
#[derive(Clone, Copy)]
struct Cause<'a> {
    /// The job that ended first.
    root: JobId,
    /// Why it failed.
    error: Option<&'a ErrorText>,
}

/// A finished job that has dependents to tell.
#[derive(Clone, Copy, Debug)]
pub(super) struct Owing {
    pub(super) slot: u32,
    /// The next of them; none before it is to be told.
    pub(super) next: JobId,
}

/// Whether a dependent is still to be told of the end of one that is in this state.
pub(super) fn is_owed(state: StateName, edge: &Edge) -> bool {
    let follows = edge.on_failure == OnFailure::Cascade;
    !edge.met && state.is_terminal() && (is_met(state, edge.on_failure) || follows)
}

/// Whether a job need not wait, or no longer, for one that is in this state.
pub(super) fn is_met(state: StateName, on_failure: OnFailure) -> bool {
    match state {
        StateName::Completed => true,
        StateName::Dead | StateName::Cancelled => on_failure == OnFailure::Ignore,
        StateName::Blocked | StateName::Scheduled | StateName::Ready | StateName::Running => false,
    }
}
