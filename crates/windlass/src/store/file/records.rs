//! Records in a journal: what a ledger's decisions change is put into the commit that is being
//! gathered, and read back from the disk.
//!
//! A job's record is a chain: a base (the job as accepted, or a whole copy) and updates, each
//! pointing at the one before. The ledger carries where the last one stands.
//!
//! Answers: a job changes three times or more, and its payload never does.
//! Why not simpler: whole records would write the payload with every change. A chain without a
//! bound would make a job that reports for hours slow to read, so after [`DEPTH_MAX`] updates the
//! job is written whole.
//! Guarded by: `tests/main/files/reopening.rs` (`a_long_chain_of_reports_is_read_back_whole`), and
//! the twin in memory (`windlass-sim/tests/twin.rs`).

mod objects;
mod recent;
mod room;

use std::borrow::Cow;

use windlass_core::job::{Bytes, JobId, State};
use windlass_core::ledger::Ledger;
use windlass_core::object::Address;
use windlass_core::record::{Change, JobRecord, RecordLocation, Update};
use windlass_core::refusal::Refusal;
use windlass_core::time::{Now, Timestamp};

use self::objects::RecentStates;
use self::recent::RecentJobs;
pub(super) use self::room::{ASK_AGAIN, Room};
use super::codec::{self, Entry};
use super::journal::Journal;
use super::layout::{DEPTH_MAX, Place, Unreadable};
use super::ledger::compaction::Compaction;
use crate::store::ledger::{ClaimHistory, Need, Records};

/// See the module documentation.
#[derive(Debug)]
pub struct JournalRecords {
    pub(super) journal: Journal,
    recent: RecentJobs,
    states: RecentStates,
    pub(super) room: Room,
    pub(super) compaction: Compaction,
    /// The last lease token that a landed commit knew to be next.
    pub(super) landed_token: u64,
    /// How many tokens may be handed out ahead of that.
    pub(super) tokens_ahead: u64,
    broken: Option<String>,
}

impl JournalRecords {
    pub(super) fn new(journal: Journal, room: Room, compaction: Compaction) -> Self {
        Self {
            journal,
            recent: RecentJobs::default(),
            states: RecentStates::default(),
            room,
            compaction,
            landed_token: 0,
            tokens_ahead: 0,
            broken: None,
        }
    }

    /// Refuses everything from now on: what is on the disk is no longer known.
    pub(super) fn fail(&mut self, why: String) {
        self.broken.get_or_insert(why);
    }

    pub(super) fn is_broken(&self) -> bool {
        self.broken.is_some()
    }

    /// Refuses everything from now on, because something cannot be read back.
    pub(super) fn fail_unreadable(&mut self, Unreadable(why): Unreadable) -> Refusal {
        let why = format!("damaged: {why}");
        self.fail(why.clone());
        Refusal::StoreBroken { why: self.broken.clone().unwrap_or(why) }
    }

    /// Puts changes into the commit that is being gathered.
    pub(super) fn persist(
        &mut self,
        ledger: &mut Ledger,
        changes: &mut Vec<Change>,
    ) -> Result<(), Unreadable> {
        for change in changes.drain(..) {
            match &change {
                Change::Update(update) => {
                    self.persist_update(ledger, update)?;
                    continue;
                }
                Change::Object(change) => {
                    self.persist_object(ledger, change)?;
                    continue;
                }
                Change::Insert(_)
                | Change::Remove { .. }
                | Change::ObjectGone { .. }
                | Change::Queue { .. }
                | Change::Rate { .. }
                | Change::QueueKind { .. }
                | Change::Lane { .. } => {}
            }
            let (place, weight) = self.journal.stage(|to| codec::encode_change(&change, to));
            match change {
                Change::Insert(accepted) => {
                    ledger.keep(accepted.job.id, RecordLocation { place: place.pack(), weight });
                    self.recent.add(accepted);
                }
                Change::Remove { job } => self.recent.forget(job),
                Change::ObjectGone { address } => self.states.remove(&address),
                Change::Update(_)
                | Change::Queue { .. }
                | Change::Rate { .. }
                | Change::QueueKind { .. }
                | Change::Lane { .. }
                | Change::Object(_) => {}
            }
        }
        Ok(())
    }

    fn persist_update(&mut self, ledger: &mut Ledger, update: &Update) -> Result<(), Unreadable> {
        // A renewal is not written: whoever opens the store next ends every lease anyway.
        if let State::Running(lease) = &update.status.state
            && update.note.is_none()
            && !lease.cancel_requested
        {
            return Ok(());
        }
        // A job that the same commit removes needs no update.
        let Some(kept) = ledger.kept(update.job) else { return Ok(()) };
        let previous = Place::unpack(kept.place);
        if previous.depth == DEPTH_MAX {
            let mut record = self.stored(update.job, previous)?;
            record.absorb(update);
            self.recent.forget(update.job);
            self.persist_whole(ledger, &record);
            return Ok(());
        }
        let (mut place, bytes) =
            self.journal.stage(|to| codec::encode_update(update, kept.place, kept.weight, to));
        self.recent.absorb(update);
        place.depth = previous.depth + 1;
        let weight = kept.weight.saturating_add(bytes);
        ledger.keep(update.job, RecordLocation { place: place.pack(), weight });
        Ok(())
    }

    /// Writes a job as it is now, whole: what stands before it about this job is dead.
    pub(super) fn persist_whole(&mut self, ledger: &mut Ledger, record: &JobRecord) {
        let (place, weight) = self.journal.stage(|to| codec::encode_whole(record, to));
        ledger.keep(record.id(), RecordLocation { place: place.pack(), weight });
    }

    /// The record of a job as it lies on the disk.
    fn stored(&mut self, job: JobId, tip: Place) -> Result<JobRecord, Unreadable> {
        match self.recent.record(job) {
            Some(record) => Ok(record),
            None => self.chain(job, tip).map(|(_, record)| record),
        }
    }

    /// Follows a job's chain to its base. Returns where that stands, and the job as of `tip`.
    pub(super) fn chain(
        &mut self,
        job: JobId,
        tip: Place,
    ) -> Result<(Place, JobRecord), Unreadable> {
        let mut updates: Vec<Update> = Vec::new();
        let mut place = tip;
        let mut record = loop {
            let wrong = |why: &str| Unreadable::at(place, why);
            let entry = codec::decode(&self.journal.read(place)?).map_err(wrong)?;
            match entry {
                Entry::Update { update, previous, .. } if update.job == job => {
                    if updates.len() > usize::from(DEPTH_MAX) {
                        return Err(wrong("its chain does not end"));
                    }
                    updates.push(update);
                    place = Place::unpack(previous);
                }
                Entry::Change(Change::Insert(accepted)) if accepted.job.id == job => {
                    break JobRecord::new(&accepted);
                }
                Entry::Whole(record) if record.id() == job => break *record,
                Entry::Update { .. }
                | Entry::Change(_)
                | Entry::Checkpoint(_)
                | Entry::Whole(_)
                | Entry::Object(_)
                | Entry::ObjectCheckpoint(_) => {
                    return Err(wrong("it is not about the job it should be about"));
                }
            }
        };
        updates.iter().rev().for_each(|update| record.absorb(update));
        Ok((place, record))
    }

    /// The record of a job as it is now, and the bytes it takes; `None` if it is not kept.
    pub(super) fn record(
        &mut self,
        ledger: &Ledger,
        job: JobId,
    ) -> Result<Option<(JobRecord, u32)>, Refusal> {
        let Some(kept) = ledger.kept(job) else { return Ok(None) };
        let record = self.stored(job, Place::unpack(kept.place));
        let mut record = record.map_err(|why| self.fail_unreadable(why))?;
        if let Some(status) = ledger.status_of(job) {
            record.status = status;
        }
        Ok(Some((record, kept.weight)))
    }
}

impl Records for JournalRecords {
    fn usable(&self) -> Result<(), Refusal> {
        match &self.broken {
            None => Ok(()),
            Some(why) => Err(Refusal::StoreBroken { why: why.clone() }),
        }
    }

    fn admit(&mut self, need: Need, now: Now) -> Result<(), Refusal> {
        self.make_room_for(need, now)
    }

    fn keep(
        &mut self,
        ledger: &mut Ledger,
        changes: &mut Vec<Change>,
        tells: bool,
    ) -> Result<(), Refusal> {
        let kept = self.persist(ledger, changes);
        if tells {
            // An event without a change is a commit too: its number must not come twice after a
            // restart (`tests/main/files/reopening.rs`).
            self.journal.touch();
        }
        kept.map_err(|unreadable| self.fail_unreadable(unreadable))
    }

    fn job(&mut self, ledger: &Ledger, job: JobId) -> Result<Option<Cow<'_, JobRecord>>, Refusal> {
        Ok(self.record(ledger, job)?.map(|(record, _)| Cow::Owned(record)))
    }

    fn claimed(
        &mut self,
        ledger: &Ledger,
        job: JobId,
        since: Timestamp,
    ) -> Result<ClaimHistory, Refusal> {
        if let Some(recent) = self.recent.claimed(job, since) {
            return Ok(recent);
        }
        let tip = ledger.kept(job).map_or(0, |kept| kept.place);
        let record = self.stored(job, Place::unpack(tip));
        let record = record.map_err(|why| self.fail_unreadable(why))?;
        Ok(ClaimHistory::of(&record, since))
    }

    fn object_state(&mut self, ledger: &Ledger, address: &Address) -> Result<Bytes, Refusal> {
        self.state_of(ledger, address).map_err(|why| self.fail_unreadable(why))
    }
}
