//! Where a job is found: the one place where indexes and counters change.
//!
//! Answers: a job that stands in two indexes starts twice, and one that is in none never does.
//! Why not simpler: a command that moved a job between indexes itself would have to know all of
//! them. Here [`Ledger::place_of`] derives the index from the job as it stands: for commands, for
//! `Restore` and for `Ledger::check`.
//! Guarded by: the model test (`tests/model.rs`), which calls `Ledger::check` after every command.

use super::Ledger;
use super::entries::{Entry, HeldLease, Key, KeyHolder, Phase, ReadyKey};
use crate::job::{JobStatus, Lane, LeaseToken, Priority, State, StateName, UniqueScope};
use crate::record::Accepted;
use crate::time::{Steady, Timestamp};

/// Where a job is found, besides by its id and its sequence.
pub(super) enum IndexPlace {
    /// In no index: it waits for others, or others need it.
    None,
    Timers(Timestamp),
    Ready(ReadyKey),
    /// Ready, in its lane, which offers one job at a time.
    Lane,
    Leases(LeaseToken),
    Finished(Timestamp),
    Withheld(Timestamp),
    Dead(Timestamp),
}

impl Ledger {
    /// Puts a job into a condition: the one place where indexes and counters change.
    pub(super) fn set(&mut self, slot: u32, status: &JobStatus) {
        let old = self.entry(slot).phase.name();
        let (ends, told) = self.lease_end_of(slot);
        let held = self.entry(slot).phase;
        self.unindex(slot);
        if let State::Running(lease) = &status.state {
            self.leases.insert(lease.token, HeldLease { slot, lease: lease.clone(), ends, told });
        } else if let Phase::Running { token } = held {
            self.requests.lease_ended(token);
        }
        let entry = self.entries.get_mut(slot);
        entry.set(status);
        let (line, priority, sequence) = (entry.line, entry.priority, entry.sequence);
        if !status.state.name().is_terminal() {
            // It was replayed, and those it has not told wait for it again.
            self.owing.remove(&sequence);
        }
        self.count(line, priority, Some(old), Some(status.state.name()));
        self.index(slot);
    }

    /// When the job's lease ends, and whether that was told; at once, if it holds none yet.
    pub(super) fn lease_end_of(&self, slot: u32) -> (Steady, bool) {
        match self.entry(slot).phase {
            Phase::Running { token } => (self.leases[&token].ends, self.leases[&token].told),
            Phase::Blocked { .. }
            | Phase::Scheduled { .. }
            | Phase::Ready { .. }
            | Phase::Completed { .. }
            | Phase::Dead { .. }
            | Phase::Cancelled { .. } => (self.time.latest().steady, false),
        }
    }

    pub(super) fn count(
        &mut self,
        line: u32,
        priority: Priority,
        from: Option<StateName>,
        to: Option<StateName>,
    ) {
        let line = &mut self.lines[line as usize];
        let queue = &mut self.queues[line.queue as usize];
        let waited = from.is_some_and(StateName::is_waiting);
        let waits = to.is_some_and(StateName::is_waiting);
        if waited != waits {
            queue.count_waiting(priority, waits);
        }
        if let Some(from) = from {
            line.states[from as usize] -= 1;
            queue.open -= u64::from(!from.is_terminal());
        }
        if let Some(to) = to {
            line.states[to as usize] += 1;
            queue.open += u64::from(!to.is_terminal());
        }
        let was_open = from.is_some_and(|from| !from.is_terminal());
        if was_open && queue.open == 0 {
            self.emptied.push(line.queue);
        }
    }

    /// The index in which the job belongs, as it and its dependents stand now.
    pub(super) fn place_of(&self, slot: u32) -> IndexPlace {
        let entry = self.entry(slot);
        match entry.phase {
            Phase::Blocked { .. } => IndexPlace::None,
            Phase::Scheduled { at } => IndexPlace::Timers(at),
            Phase::Ready { .. } if self.spot(slot).is_some() => IndexPlace::Lane,
            Phase::Ready { since } => IndexPlace::Ready(self.ready_key(slot, since)),
            Phase::Running { token } => IndexPlace::Leases(token),
            Phase::Completed { at } | Phase::Cancelled { at, .. } => {
                // Needed for its output by an open job.
                if self.edges_from(entry.id).next().is_some() {
                    return IndexPlace::None;
                }
                match self.key_until(slot) {
                    Some(until) if until > self.time.latest().wall => IndexPlace::Withheld(until),
                    Some(_) | None => IndexPlace::Finished(at),
                }
            }
            Phase::Dead { at, .. } => IndexPlace::Dead(at),
        }
    }

    /// When the job is called off because it has not started.
    pub(super) fn expiry_of(&self, slot: u32) -> Option<Timestamp> {
        let entry = self.entry(slot);
        let first = entry.attempts == 0 && entry.generation() == 0;
        let at = entry.extras.as_ref()?.expires_at?;
        (entry.phase.name().is_waiting() && first).then_some(at)
    }

    fn index(&mut self, slot: u32) {
        let entry = self.entries.get(slot);
        let (sequence, line) = (entry.sequence, entry.line as usize);
        let (queue, kind) = (self.lines[line].queue, self.lines[line].kind);
        match self.place_of(slot) {
            IndexPlace::None | IndexPlace::Lane => {}
            IndexPlace::Timers(at) => {
                self.timers.insert((at, sequence), slot);
            }
            IndexPlace::Ready(key) => {
                self.lines[line].ready.insert(key, slot);
            }
            IndexPlace::Leases(token) => {
                self.kinds[kind as usize].running += 1;
                let held = &self.leases[&token];
                let ends = if held.told { &mut self.told_ends } else { &mut self.lease_ends };
                ends.insert((held.ends, token));
            }
            IndexPlace::Finished(at) => {
                self.finished.insert((at, sequence, slot));
            }
            IndexPlace::Withheld(until) => {
                self.withheld.insert((until, slot));
            }
            IndexPlace::Dead(at) => {
                let dead = &mut self.queues[queue as usize].dead;
                dead.insert((at, sequence, slot));
                if dead.len() > self.limits.dead_letters {
                    self.overfull.push(queue);
                }
            }
        }
        if let Some(at) = self.expiry_of(slot) {
            self.expiries.insert((at, sequence, slot));
        }
        self.release_key(slot);
        self.note_bound(slot);
        self.enter_lane(slot);
        if let Some(spot) = self.spot(slot) {
            self.offer(spot);
        }
    }

    pub(super) fn unindex(&mut self, slot: u32) {
        self.leave_lane(slot);
        let entry = self.entries.get(slot);
        let (sequence, line, phase) = (entry.sequence, entry.line, entry.phase);
        let (queue, kind) = (self.lines[line as usize].queue, self.lines[line as usize].kind);
        if let Some(at) = entry.extras.as_ref().and_then(|extras| extras.expires_at) {
            self.expiries.remove(&(at, sequence, slot));
        }
        match phase {
            Phase::Blocked { .. } => {}
            Phase::Scheduled { at } => {
                self.timers.remove(&(at, sequence));
            }
            Phase::Ready { .. } if self.spot(slot).is_some() => {}
            Phase::Ready { since } => {
                let key = self.ready_key(slot, since);
                self.lines[line as usize].ready.remove(&key);
            }
            Phase::Running { token } => {
                self.kinds[kind as usize].running -= 1;
                if let Some(held) = self.leases.remove(&token) {
                    self.lease_ends.remove(&(held.ends, token));
                    self.told_ends.remove(&(held.ends, token));
                }
            }
            // Not by `place_of`: time and dependents have moved on since the job was put there, so
            // it may stand in either index, or in neither.
            Phase::Completed { at } | Phase::Cancelled { at, .. } => {
                self.finished.remove(&(at, sequence, slot));
                if let Some(until) = self.key_until(slot) {
                    self.withheld.remove(&(until, slot));
                }
            }
            Phase::Dead { at, .. } => {
                self.queues[queue as usize].dead.remove(&(at, sequence, slot));
            }
        }
    }

    /// A finished job may be purged unless an open job depends on it or its key is still held.
    pub(super) fn offer_for_purge(&mut self, slot: u32) {
        let sequence = self.entry(slot).sequence;
        match self.place_of(slot) {
            IndexPlace::Finished(at) => {
                self.finished.insert((at, sequence, slot));
            }
            IndexPlace::Withheld(until) => {
                self.withheld.insert((until, slot));
            }
            IndexPlace::None
            | IndexPlace::Timers(_)
            | IndexPlace::Lane
            | IndexPlace::Ready(_)
            | IndexPlace::Leases(_)
            | IndexPlace::Dead(_) => {}
        }
    }

    /// Until when the job's key outlives the job, if it does.
    pub(super) fn key_until(&self, slot: u32) -> Option<Timestamp> {
        let unique = self.entry(slot).extras.as_ref()?.unique.as_ref()?;
        (unique.scope == UniqueScope::Any).then_some(unique.until)?
    }

    pub(super) fn key_scope(&self, slot: u32) -> Option<UniqueScope> {
        self.entry(slot).extras.as_ref()?.unique.as_ref().map(|unique| unique.scope)
    }

    fn release_key(&mut self, slot: u32) {
        let entry = self.entry(slot);
        if entry.extras.is_some()
            && !entry.may_hold_key()
            && let Some(key) = self.key_of(slot)
            && self.keys.get(&key).is_some_and(|hold| hold.job == entry.id)
        {
            self.keys.remove(&key);
        }
    }

    /// A job that was just accepted or replayed takes its key. Whoever stands there holds it no
    /// longer, which was checked: the window ended, or the key was passed on.
    pub(super) fn take_over_key(&mut self, slot: u32) {
        if let Some((key, hold)) = self.hold_of(slot) {
            self.keys.insert(key, hold);
        }
    }

    /// The job's unique key, and its claim to it.
    pub(super) fn hold_of(&self, slot: u32) -> Option<(Key, KeyHolder)> {
        let key = self.key_of(slot)?;
        let entry = self.entry(slot);
        let until = entry.extras.as_ref()?.unique.as_ref()?.until;
        Some((key, KeyHolder { job: entry.id, until, fingerprint: entry.fingerprint }))
    }

    pub(super) fn ready_key(&self, slot: u32, since: Timestamp) -> ReadyKey {
        let entry = self.entry(slot);
        let queue = self.lines[entry.line as usize].queue;
        let rank = self.queues[queue as usize].rank(entry.priority, since);
        ReadyKey { rank, since, sequence: entry.sequence }
    }

    /// Notes with its object, if it has one, where a job stands.
    pub(super) fn note_bound(&mut self, slot: u32) {
        let entry = self.entries.get(slot);
        if let Some(number) = entry.extras.as_ref().and_then(|extras| extras.object) {
            self.objects.note(number, slot, entry.id, entry.phase.name());
        }
    }

    /// Writes a newly accepted job into the ledger.
    pub(super) fn insert(&mut self, accepted: &Accepted, fingerprint: u64) -> u32 {
        let job = &accepted.job;
        let (queue, kind) = (self.queue_id(&job.queue), self.kind_id(&job.kind));
        let line = self.line_id(kind, queue);
        let (sequence, at) = (accepted.sequence, accepted.at);
        let object = job.object.as_ref().map(|address| self.objects.number(address));
        let entry = Entry::new(job, sequence, at, &accepted.status, line, object);
        let entry = Entry { fingerprint, ..entry };
        let slot = self.entries.insert(entry);
        if let Some(number) = object {
            self.objects.bind(number);
        }
        self.ids.insert(job.id, slot, &self.entries);
        self.sequences.insert(sequence, slot);
        self.next_sequence = self.next_sequence.max(accepted.sequence + 1);
        if let Some(Lane::Turn(turn)) = job.lane {
            let queue = &mut self.queues[queue as usize];
            queue.next_turn = queue.next_turn.max(turn.saturating_add(1));
        }
        self.link_all(slot, &accepted.met);
        self.count(line, job.priority, None, Some(accepted.status.state.name()));
        self.take_over_key(slot);
        self.index(slot);
        slot
    }

    /// Deletes a job from the ledger.
    pub(super) fn forget(&mut self, slot: u32) {
        self.unindex(slot);
        if let Some(spot) = self.spot(slot) {
            self.offer(spot);
        }
        let entry = self.entries.get(slot);
        let (id, line, name) = (entry.id, entry.line, entry.phase.name());
        let priority = entry.priority;
        let (sequence, weight) = (entry.sequence, entry.weight);
        if let Some(unique) = entry.extras.as_ref().and_then(|extras| extras.unique.as_ref()) {
            let line = &self.lines[line as usize];
            let key = Key { queue: line.queue, kind: line.kind, key: unique.key.clone() };
            if self.keys.get(&key).is_some_and(|hold| hold.job == id) {
                self.keys.remove(&key);
            }
        }
        let object = entry.extras.as_ref().and_then(|extras| extras.object);
        self.count(line, priority, Some(name), None);
        if let Some(number) = object {
            self.objects.forget(number, slot);
            self.objects.unbind(number);
        }
        self.kept_bytes -= u64::from(weight);
        self.owing.remove(&sequence);
        self.ids.remove(id, &self.entries);
        self.sequences.remove(sequence);
        self.entries.remove(slot);
    }
}
