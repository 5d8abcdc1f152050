//! Rebuilding the book from what a store has kept.
//!
//! A store that compacts its journal moves a job to the tail as one whole record and drops what it
//! knew of it before, so the records of different jobs come in an order in which nothing ever
//! happened. Therefore nothing is decided while they are read: the last record of each job wins,
//! and one finishing pass derives everything else (who waits for whom, who holds which key, where
//! each job is found, how many there are) from the jobs as they are.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::Ledger;
use super::book::{Entry, Held, Phase};
use crate::job::{Condition, JobId, NewJob, State};
use crate::limits::Limits;
use crate::record::{Change, Floors, JobRecord, Kept, Note, Update};
use crate::time::Timestamp;

/// A ledger on its way back. See the module documentation.
///
/// Of one job, the changes must come in the order in which they were made; of different jobs, they
/// may come in any order. Taking one over twice is harmless.
#[derive(Debug)]
pub struct Restore {
    /// With jobs and leases, but no index, edge or key yet.
    ledger: Ledger,
    /// Met dependencies of those jobs that have any.
    met: BTreeMap<u32, Vec<JobId>>,
}

impl Restore {
    /// A book without jobs, under these limits.
    pub fn new(limits: Limits) -> Self {
        Self { ledger: Ledger::new(limits), met: BTreeMap::new() }
    }

    /// Takes over a change.
    ///
    /// A change of a job that is not known is passed over: it was removed later, or its whole
    /// record comes later. A job that is known is accepted anew only with a greater sequence: then
    /// the earlier one was removed and its id used again.
    pub fn absorb(&mut self, change: &Change) {
        match change {
            Change::Insert(accepted) => {
                let known = self.ledger.ids.get(&accepted.job.id);
                let known = known.map(|slot| self.ledger.entry(*slot).sequence);
                if known.is_none_or(|sequence| sequence < accepted.sequence) {
                    self.remove(accepted.job.id);
                    let (sequence, at) = (accepted.sequence, accepted.at);
                    let slot = self.write(&accepted.job, sequence, at, &accepted.condition);
                    self.set_met(slot, &accepted.met);
                }
                self.ledger.time.resume_at(accepted.at);
            }
            Change::Update(update) => self.update(update),
            Change::Remove { job } => self.remove(*job),
            Change::Queue { queue, settings, dead_letters_dropped } => {
                let queue = self.ledger.queue_id(queue) as usize;
                let book = &mut self.ledger.queues[queue];
                book.settings = settings.clone();
                book.dead_letters_dropped = *dead_letters_dropped;
            }
            Change::Rate { kind, full_at } => {
                let kind = self.ledger.kind_id(kind) as usize;
                self.ledger.kinds[kind].full_at = *full_at;
            }
            Change::Line { queue, kind, totals } => {
                let (queue, kind) = (self.ledger.queue_id(queue), self.ledger.kind_id(kind));
                let line = self.ledger.line_id(kind, queue) as usize;
                self.ledger.lines[line].totals = *totals;
            }
        }
    }

    /// Takes over a whole record: the job is now like this in every respect, whatever was known of
    /// it before. Where its record is kept stays as it was said last.
    pub fn put(&mut self, record: &JobRecord) {
        let slot = self.write(&record.job, record.sequence, record.created_at, &record.condition);
        self.set_met(slot, &record.met);
        self.ledger.time.resume_at(record.updated_at);
    }

    /// Raises each number to at least this; engine time does not go back before `wall`.
    pub fn floors(&mut self, floors: Floors) {
        let Floors { sequence, token, event, wall } = floors;
        let ledger = &mut self.ledger;
        ledger.next_sequence = ledger.next_sequence.max(sequence);
        ledger.next_token = ledger.next_token.max(token);
        ledger.next_event = ledger.next_event.max(event);
        ledger.time.resume_at(wall);
    }

    /// Notes where the store keeps the job's record; an unknown job is passed over.
    pub fn keep(&mut self, job: JobId, kept: Kept) {
        self.ledger.keep(job, kept);
    }

    /// Where the store keeps the job's record, as it last said.
    pub fn kept(&self, job: JobId) -> Option<Kept> {
        self.ledger.kept(job)
    }

    /// Whether the job is known, and was not removed.
    pub fn knows(&self, job: JobId) -> bool {
        self.ledger.knows(job)
    }

    /// The book that was lost, as of the last change.
    ///
    /// No lease has an end that is known, so each ends at once unless it is renewed. Nothing is
    /// let go that is beyond a bound: the first command that ends a job does that.
    pub fn finish(mut self) -> Ledger {
        let slots: BTreeMap<u64, u32> = self
            .ledger
            .ids
            .values()
            .map(|slot| (self.ledger.entry(*slot).sequence, *slot))
            .collect();
        for slot in slots.values() {
            if !self.ledger.entry(*slot).phase.name().is_terminal() {
                let met = self.met.remove(slot).unwrap_or_default();
                self.ledger.link_all(*slot, &met);
            }
        }
        for slot in slots.values() {
            self.ledger.restore_key(*slot);
            let entry = self.ledger.entry(*slot);
            let (line, name) = (entry.line, entry.phase.name());
            self.ledger.count(line, None, Some(name));
            self.ledger.index(*slot);
        }
        self.ledger
    }

    /// Writes a job as it is, over what was known of it.
    fn write(&mut self, job: &NewJob, sequence: u64, at: Timestamp, condition: &Condition) -> u32 {
        let ledger = &mut self.ledger;
        let (queue, kind) = (ledger.queue_id(&job.queue), ledger.kind_id(&job.kind));
        let line = ledger.line_id(kind, queue);
        let mut entry = Entry::new(job, sequence, at, condition, line);
        ledger.next_sequence = ledger.next_sequence.max(sequence + 1);
        let slot = match ledger.ids.get(&job.id) {
            Some(&slot) => {
                self.forget_lease(slot);
                let known = self.ledger.entries.get_mut(slot);
                entry.keep(known.kept());
                *known = entry;
                slot
            }
            None => {
                let slot = ledger.entries.insert(entry);
                ledger.ids.insert(job.id, slot);
                slot
            }
        };
        self.take_lease(slot, condition);
        slot
    }

    fn update(&mut self, update: &Update) {
        self.ledger.time.resume_at(update.at);
        let Some(&slot) = self.ledger.ids.get(&update.job) else { return };
        self.forget_lease(slot);
        self.ledger.entries.get_mut(slot).set(&update.condition);
        self.take_lease(slot, &update.condition);
        match update.note.as_deref() {
            Some(Note::Met { on }) => {
                let met = self.met.entry(slot).or_default();
                if !met.contains(on) {
                    met.push(*on);
                }
            }
            Some(Note::Replayed { met }) => self.set_met(slot, met),
            Some(
                Note::Started { .. } | Note::Ended { .. } | Note::Reported(_) | Note::Failed(_),
            )
            | None => {}
        }
    }

    fn remove(&mut self, job: JobId) {
        let Some(&slot) = self.ledger.ids.get(&job) else { return };
        self.keep(job, Kept::default());
        self.forget_lease(slot);
        self.met.remove(&slot);
        self.ledger.ids.remove(&job);
        self.ledger.entries.remove(slot);
    }

    fn set_met(&mut self, slot: u32, met: &[JobId]) {
        if met.is_empty() {
            self.met.remove(&slot);
        } else {
            self.met.insert(slot, met.to_vec());
        }
    }

    fn forget_lease(&mut self, slot: u32) {
        if let Phase::Running { token } = self.ledger.entry(slot).phase {
            self.ledger.leases.remove(&token);
        }
    }

    fn take_lease(&mut self, slot: u32, condition: &Condition) {
        if let State::Running(lease) = &condition.state {
            let ledger = &mut self.ledger;
            let ends = ledger.time.latest().steady;
            let held = Held { slot, lease: lease.clone(), ends, told: false };
            ledger.leases.insert(lease.token, held);
            ledger.next_token = ledger.next_token.max(lease.token.0 + 1);
        }
    }
}

impl Ledger {
    /// Gives a job its key, if it holds one as things stand and no other has a better claim: the
    /// hold that ends last, and among those the job accepted last.
    fn restore_key(&mut self, slot: u32) {
        let entry = self.entry(slot);
        let Some(key) = self.key_of(slot).filter(|_| entry.may_hold_key()) else { return };
        let unique = entry.extras.as_ref().and_then(|extras| extras.unique.as_ref());
        let until = unique.and_then(|unique| unique.until);
        let end = |until: Option<Timestamp>| until.unwrap_or(Timestamp::from_micros(i64::MAX));
        let ended = until.is_some_and(|until| until <= self.time.latest().wall);
        let beaten = self.keys.get(&key).is_some_and(|hold| end(hold.until) > end(until));
        if !ended && !beaten {
            self.take_over_key(slot);
        }
    }
}
