//! Rebuilding the ledger from what a store has kept.
//!
//! Answers: a store that compacts its journal moves a job to the end as one whole record, and drops
//! what stood there of it before. So records of different jobs come in an order in which nothing
//! ever happened.
//! Why not simpler: replayed as commands, they would be decided by states that never were together.
//! Here nothing is decided while they are read: the last record of each job wins, and one finishing
//! pass derives the rest from the jobs as they are: who waits for whom, who holds which key, where
//! each job is found, how many there are.
//! Guarded by: `tests/restore.rs`, and the model test (`tests/model.rs`), which rebuilds its ledger
//! from changes, twice each, and from a compacted journal.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::cmp::Reverse;

use super::Ledger;
use super::entries::{Entry, HeldLease, Key, KeyHolder, Phase, ReadyKey};
use super::find::Sequences;
use super::graph::is_owed;
use super::index::IndexPlace;
use super::steps::StepMark;
use crate::job::{JobId, JobStatus, LeaseToken, NewJob, State};
use crate::limits::Limits;
use crate::name::Name;
use crate::object::{Address, ObjectMeta};
use crate::record::{
    Accepted, Change, JobRecord, NextIds, RecordLocation, RecordNote, Step, Update,
};
use crate::time::Timestamp;

/// A ledger on its way back. See the module documentation.
///
/// Of one job, the changes must come in the order in which they were made; of different jobs, they
/// may come in any order. Taking one over twice is harmless.
#[derive(Debug)]
pub struct Restore {
    /// With jobs and leases, but no index, edge or key yet.
    pub(super) ledger: Ledger,
    /// Met dependencies of those jobs that have any.
    met: BTreeMap<u32, Vec<JobId>>,
    /// The job that was written last. The next call says where its record is kept, and need not
    /// look it up by its id.
    recent: Option<u32>,
}

impl Restore {
    /// A ledger without jobs, under these limits.
    pub fn new(limits: Limits) -> Self {
        Self { ledger: Ledger::new(limits), met: BTreeMap::new(), recent: None }
    }

    /// Takes over a change.
    ///
    /// A change of a job that is not known is passed over: it was removed later, or its whole
    /// record comes later. A job that is known is accepted anew only with a greater sequence: then
    /// the earlier one was removed and its id used again.
    pub fn absorb(&mut self, change: &Change) {
        match change {
            Change::Insert(accepted) => {
                self.ledger.time.resume_at(accepted.at);
                let Accepted { job, sequence, at, status, met } = &**accepted;
                if let Some(slot) = self.find(job.id) {
                    if self.ledger.entry(slot).sequence >= *sequence {
                        return;
                    }
                    self.remove(slot);
                }
                let slot = self.write(job, *sequence, *at, status);
                self.set_met(slot, met);
            }
            Change::Update(update) => self.update(update),
            Change::Remove { job } => {
                if let Some(slot) = self.find(*job) {
                    self.remove(slot);
                }
            }
            Change::Queue { queue, settings, dead_letters_dropped } => {
                for hook in [&settings.on_dead, &settings.on_empty].into_iter().flatten() {
                    self.ledger.queue_id(hook);
                    self.ledger.kind_id(hook);
                }
                let queue = self.ledger.queue_id(queue) as usize;
                let entries = &mut self.ledger.queues[queue];
                entries.settings = settings.clone();
                entries.dead_letters_dropped = *dead_letters_dropped;
            }
            Change::Rate { kind, full_at } => {
                let kind = self.ledger.kind_id(kind) as usize;
                self.ledger.kinds[kind].full_at = *full_at;
            }
            Change::QueueKind { queue, kind, totals } => {
                let (queue, kind) = (self.ledger.queue_id(queue), self.ledger.kind_id(kind));
                let line = self.ledger.line_id(kind, queue) as usize;
                self.ledger.lines[line].totals = *totals;
            }
            Change::Object(change) => {
                self.ledger.time.resume_at(change.meta.updated_at);
                self.ledger.restore_object(&change.address, change.meta.clone());
            }
            Change::ObjectGone { address } => self.ledger.restore_removal(address),
            Change::Lane { queue, lane, totals } => {
                let queue = self.ledger.queue_id(queue) as usize;
                self.ledger.queues[queue].lane_totals.insert(*lane, *totals);
            }
        }
    }

    /// Takes over a whole record: the job is now like this in every respect, whatever was known of
    /// it before. Where its record is kept stays as it was said last.
    pub fn put(&mut self, record: &JobRecord) {
        let JobRecord { job, sequence, created_at, status, .. } = record;
        let slot = self.write(job, *sequence, *created_at, status);
        self.set_met(slot, &record.met);
        self.add_steps(slot, &record.steps);
        self.ledger.time.resume_at(record.updated_at);
    }

    /// Raises each number to at least this; engine time does not go back before `wall`.
    pub fn next_ids(&mut self, next_ids: NextIds) {
        let NextIds { sequence, token, event, wall } = next_ids;
        let ledger = &mut self.ledger;
        ledger.next_sequence = ledger.next_sequence.max(sequence);
        ledger.next_token = ledger.next_token.max(token);
        ledger.next_event = ledger.next_event.max(event);
        ledger.time.resume_at(wall);
    }

    /// Notes where the store keeps the job's record; an unknown job is passed over.
    pub fn keep(&mut self, job: JobId, kept: RecordLocation) {
        if let Some(slot) = self.find(job) {
            self.ledger.keep_at(slot, kept);
        }
    }

    /// Where the store keeps the job's record, as it last said.
    pub fn kept(&self, job: JobId) -> Option<RecordLocation> {
        self.find(job).map(|slot| self.ledger.entry(slot).kept())
    }

    /// Takes over an object as it is, whose record is kept there.
    pub fn object(&mut self, address: &Address, meta: ObjectMeta, kept: RecordLocation) {
        self.ledger.time.resume_at(meta.updated_at);
        self.ledger.restore_object(address, meta);
        self.ledger.keep_object(address, kept);
    }

    /// Whether the job is known, and was not removed.
    pub fn knows(&self, job: JobId) -> bool {
        self.find(job).is_some()
    }

    /// The ledger that was lost, as of the last change.
    ///
    /// No lease has an end that is known, so each ends at once unless it is renewed. Nothing is
    /// let go that is beyond a bound: the first command that ends a job does that.
    pub fn finish(self) -> Ledger {
        let Self { mut ledger, mut met, .. } = self;
        let mut owing: BTreeSet<u32> = BTreeSet::new();
        let jobs = ledger.entries.iter().map(|(slot, entry)| (entry.sequence, slot));
        let mut slots: Vec<(u64, u32)> = jobs.collect();
        slots.sort_unstable();
        ledger.sequences = Sequences::from_sorted(&slots);
        let open = |slot: u32| !ledger.entry(slot).phase.name().is_terminal();
        let edges = slots.iter().filter(|(_, slot)| open(*slot)).flat_map(|(_, slot)| {
            let met = met.remove(slot).unwrap_or_default();
            ledger.edges_of(*slot, &met)
        });
        ledger.edges = edges.collect();
        for ((on, _), edge) in ledger.edges.iter().filter(|(_, edge)| !edge.met) {
            if let Some(slot) = ledger.find(*on)
                && is_owed(ledger.entry(slot).phase.name(), edge)
            {
                owing.insert(slot);
            }
        }
        owing.into_iter().for_each(|slot| ledger.note_owing(slot));
        ledger.keys = ledger.restored_keys(&slots);
        let mut places = IndexLists::new(&ledger);
        for (sequence, slot) in slots {
            let entry = ledger.entry(slot);
            let (line, priority, state) = (entry.line, entry.priority, entry.phase.name());
            ledger.count(line, priority, None, Some(state));
            places.add(&ledger, slot, sequence);
        }
        places.write_into(&mut ledger);
        ledger.restore_lanes();
        ledger
    }

    fn find(&self, job: JobId) -> Option<u32> {
        let recent = self.recent.filter(|slot| self.ledger.entry(*slot).id == job);
        recent.or_else(|| self.ledger.find(job))
    }

    /// Writes a job as it is, over what was known of it.
    fn write(&mut self, job: &NewJob, sequence: u64, at: Timestamp, status: &JobStatus) -> u32 {
        let line = self.line(&job.queue, &job.kind);
        let object = job.object.as_ref().map(|address| self.ledger.objects.number(address));
        let entry = Entry::new(job, sequence, at, status, line, object);
        let entry = Entry { fingerprint: job.fingerprint(), ..entry };
        self.write_entry(entry, status)
    }

    /// The line of a queue and a kind, which may be new.
    pub(super) fn line(&mut self, queue: &Name, kind: &Name) -> u32 {
        let (queue, kind) = (self.ledger.queue_id(queue), self.ledger.kind_id(kind));
        self.ledger.line_id(kind, queue)
    }

    /// Writes an entry over what was known of the job, except where its record is kept.
    pub(super) fn write_entry(&mut self, mut entry: Entry, status: &JobStatus) -> u32 {
        let known = self.find(entry.id);
        let ledger = &mut self.ledger;
        ledger.next_sequence = ledger.next_sequence.max(entry.sequence + 1);
        let slot = match known {
            Some(slot) => {
                self.forget_lease(slot);
                let known = self.ledger.entries.get_mut(slot);
                entry.keep(known.kept());
                *known = entry;
                slot
            }
            None => {
                let id = entry.id;
                let slot = ledger.entries.insert(entry);
                ledger.ids.insert(id, slot, &ledger.entries);
                slot
            }
        };
        self.take_lease(slot, status);
        self.recent = Some(slot);
        slot
    }

    fn update(&mut self, update: &Update) {
        self.ledger.time.resume_at(update.at);
        if let State::Running(lease) = &update.status.state {
            self.ledger.next_token = self.ledger.next_token.max(lease.token.0 + 1);
        }
        let Some(slot) = self.find(update.job) else { return };
        self.forget_lease(slot);
        self.ledger.entries.get_mut(slot).set(&update.status);
        self.take_lease(slot, &update.status);
        match update.note.as_ref() {
            Some(RecordNote::Met { on }) => self.met.entry(slot).or_default().push(*on),
            Some(RecordNote::Replayed { met }) => self.set_met(slot, met),
            Some(RecordNote::Reported(report)) => self.add_steps(slot, &report.steps),
            Some(RecordNote::Started { .. } | RecordNote::Ended { .. } | RecordNote::Failed(_))
            | None => {}
        }
    }

    fn add_steps(&mut self, slot: u32, steps: &[Step]) {
        let entry = self.ledger.entries.get_mut(slot);
        for step in steps {
            entry.add_step(StepMark::of(step));
        }
    }

    fn remove(&mut self, slot: u32) {
        self.ledger.keep_at(slot, RecordLocation::default());
        self.forget_lease(slot);
        self.met.remove(&slot);
        self.recent = None;
        self.ledger.ids.remove(self.ledger.entry(slot).id, &self.ledger.entries);
        self.ledger.entries.remove(slot);
    }

    pub(super) fn set_met(&mut self, slot: u32, met: &[JobId]) {
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

    fn take_lease(&mut self, slot: u32, status: &JobStatus) {
        if let State::Running(lease) = &status.state {
            let ledger = &mut self.ledger;
            let ends = ledger.time.latest().steady;
            let held = HeldLease { slot, lease: lease.clone(), ends, told: false };
            ledger.leases.insert(lease.token, held);
            ledger.next_token = ledger.next_token.max(lease.token.0 + 1);
        }
    }
}

impl Ledger {
    /// Puts every open job into its lane and binds every job to its object, and goes on counting
    /// turns.
    fn restore_lanes(&mut self) {
        let mut laned = Vec::new();
        let slots: Vec<u32> = self.entries.iter().map(|(slot, _)| slot).collect();
        for slot in slots {
            if let Some(number) = self.entry(slot).extras.as_ref().and_then(|e| e.object) {
                self.objects.bind(number);
            }
            self.note_bound(slot);
        }
        self.objects.tidy();
        for (slot, entry) in self.entries.iter() {
            let Some(partition) = entry.extras.as_ref().and_then(|extras| extras.partition) else {
                continue;
            };
            let queue = &mut self.queues[self.lines[entry.line as usize].queue as usize];
            if partition.turn {
                queue.next_turn = queue.next_turn.max(partition.number + 1);
            }
            laned.push(slot);
        }
        self.open_lanes(&laned);
        self.offering.clear();
        self.emptied_lanes.clear();
    }

    /// Who holds which key, as the jobs stand. There is one claim to a key that has not ended; were
    /// there more, the one that ends last would count, and among those the job accepted last.
    fn restored_keys(&self, slots: &[(u64, u32)]) -> BTreeMap<Key, KeyHolder> {
        let now = self.time.latest().wall;
        let may_hold = slots.iter().filter(|(_, slot)| self.entry(*slot).may_hold_key());
        let claims = may_hold.filter_map(|(sequence, slot)| {
            let (key, hold) = self.hold_of(*slot)?;
            let end = hold.until.unwrap_or(Timestamp::from_micros(i64::MAX));
            (end > now).then_some((key, Reverse((end, *sequence)), hold))
        });
        let mut claims: Vec<_> = claims.collect();
        claims.sort_unstable_by(|one, other| (&one.0, one.1).cmp(&(&other.0, other.1)));
        claims.dedup_by(|next, first| next.0 == first.0);
        claims.into_iter().map(|(key, _, hold)| (key, hold)).collect()
    }
}

/// The indexes as lists, from which each is built in one go. A tree that is built from a sorted
/// list has full nodes; one that is filled one by one, in the order of a journal, has not.
struct IndexLists {
    timers: Vec<((Timestamp, u64), u32)>,
    /// Per line.
    ready: Vec<Vec<(ReadyKey, u32)>>,
    leases: Vec<(LeaseToken, u32)>,
    finished: Vec<(Timestamp, u64, u32)>,
    withheld: Vec<(Timestamp, u32)>,
    /// Per queue.
    dead: Vec<Vec<(Timestamp, u64, u32)>>,
    expiries: Vec<(Timestamp, u64, u32)>,
}

impl IndexLists {
    fn new(ledger: &Ledger) -> Self {
        Self {
            timers: Vec::new(),
            ready: ledger.lines.iter().map(|_| Vec::new()).collect(),
            leases: Vec::new(),
            finished: Vec::new(),
            withheld: Vec::new(),
            dead: ledger.queues.iter().map(|_| Vec::new()).collect(),
            expiries: Vec::new(),
        }
    }

    fn add(&mut self, ledger: &Ledger, slot: u32, sequence: u64) {
        let line = ledger.entry(slot).line as usize;
        let queue = ledger.lines[line].queue as usize;
        match ledger.place_of(slot) {
            IndexPlace::None | IndexPlace::Lane => {}
            IndexPlace::Timers(at) => self.timers.push(((at, sequence), slot)),
            IndexPlace::Ready(key) => self.ready[line].push((key, slot)),
            IndexPlace::Leases(token) => self.leases.push((token, slot)),
            IndexPlace::Finished(at) => self.finished.push((at, sequence, slot)),
            IndexPlace::Withheld(until) => self.withheld.push((until, slot)),
            IndexPlace::Dead(at) => self.dead[queue].push((at, sequence, slot)),
        }
        if let Some(at) = ledger.expiry_of(slot) {
            self.expiries.push((at, sequence, slot));
        }
    }

    fn write_into(self, ledger: &mut Ledger) {
        ledger.timers = self.timers.into_iter().collect();
        ledger.finished = self.finished.into_iter().collect();
        ledger.withheld = self.withheld.into_iter().collect();
        ledger.expiries = self.expiries.into_iter().collect();
        for (line, ready) in ledger.lines.iter_mut().zip(self.ready) {
            line.ready = ready.into_iter().collect();
        }
        for (number, dead) in (0..).zip(self.dead) {
            if dead.len() > ledger.limits.dead_letters {
                ledger.overfull.push(number);
            }
            ledger.queues[number as usize].dead = dead.into_iter().collect();
        }
        let ends = self.leases.iter().map(|(token, _)| (ledger.leases[token].ends, *token));
        ledger.lease_ends = ends.collect();
        for (_, slot) in self.leases {
            let kind = ledger.lines[ledger.entry(slot).line as usize].kind;
            ledger.kinds[kind as usize].running += 1;
        }
    }
}
