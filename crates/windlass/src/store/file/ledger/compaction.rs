//! What keeps the journal small and an opening short: the oldest segment is cleared, step by step,
//! and a checkpoint is written now and then.
//!
//! Both write into the commits that are being gathered anyway, so many bytes per commit at most.
//!
//! Answers: a journal that only grows fills the disk, and an opening that reads all of it takes
//! longer every day.
//! Why not simpler: to copy a segment at once would keep callers waiting for up to 64 MiB. And on a
//! full disk the copy itself may not fit: there a segment is first *surveyed*, which writes
//! nothing, and is cleared only if what is alive in it fits into the room that is left.
//! Guarded by: `tests/main/files/space.rs`; `tests/main/files/full.rs` for the survey
//! (`a_disk_full_of_what_is_gone_heals`); crashes in the middle by
//! `windlass-sim/tests/crash_points.rs`.

use windlass_core::job::JobId;
use windlass_core::object::Address;
use windlass_core::record::JobRecord;

use super::super::codec;
use super::super::journal::Fragment;
use super::super::layout::{ENTRY_HEADER, Place, SEGMENT_HEADER, Unreadable};
use super::super::records::JournalRecords;
use crate::store::Answer;
use crate::store::ledger::RecordedLedger;

/// About how many bytes a checkpoint entry takes.
const ENTRY_BYTES: u64 = 96;

/// See [`super::LedgerOptions::checkpoint_bytes`].
const CHECKPOINT_BYTES: u64 = 256 << 20;

/// What is under way.
#[derive(Debug)]
pub(in crate::store::file) struct Compaction {
    sweep: Option<Sweep>,
    survey: Option<Survey>,
    /// What was dead in the journal when the oldest segment was last found to be too alive to leave
    /// a full disk.
    dead_when_surveyed: Option<u64>,
    checkpoint: Option<Checkpoint>,
    checkpoint_bytes: u64,
}

impl Compaction {
    /// Nothing yet. A checkpoint is due after so many bytes; `None` for the default.
    pub(super) fn new(checkpoint_bytes: Option<u64>) -> Self {
        Self {
            sweep: None,
            survey: None,
            dead_when_surveyed: None,
            checkpoint: None,
            checkpoint_bytes: checkpoint_bytes.unwrap_or(CHECKPOINT_BYTES),
        }
    }
}

/// How much of the oldest segment was found to be alive so far.
#[derive(Debug)]
struct Survey {
    segment: u32,
    at: u32,
    alive: u64,
}

/// How far the oldest segment has been cleared.
#[derive(Debug)]
struct Sweep {
    segment: u32,
    at: u32,
    fragment: Option<Fragment>,
}

/// A checkpoint that is being written: an entry for every object, then of every job, in order of
/// acceptance.
#[derive(Debug)]
struct Checkpoint {
    /// Where it began.
    position: u64,
    /// What had been written since the opening when it began.
    before: u64,
    /// The last object that has its entry.
    object: Option<Address>,
    /// The last job that has its entry, and the last one that has to.
    checkpointed: u64,
    until: u64,
    /// The commit that holds the last of it.
    complete: Option<u64>,
}

/// The job or object whose record begins with an entry. Updates are not looked at: they are alive
/// as long as their base is, and are copied with it.
enum Alive {
    Job(JobId),
    Object(Address),
}

impl Alive {
    fn of(entry: &[u8]) -> Option<Self> {
        let job = codec::base_job(entry).map(Alive::Job);
        job.or_else(|| codec::whole_object(entry).map(Alive::Object))
    }
}

impl RecordedLedger<JournalRecords> {
    /// Whether the journal holds more than half as much again as what is alive, or the disk is full
    /// and a segment could make room.
    pub fn wants_compaction(&self) -> bool {
        if !self.can_tend() {
            return self.wants_survey();
        }
        let live = self.ledger.kept_bytes();
        let allowed = live + live / 2 + u64::from(self.records.journal.wanted_size());
        self.records.compaction.sweep.is_some()
            || self.records.journal.filled() > allowed
                && self.records.journal.oldest_closed().is_some()
    }

    /// Whether so much is dead that clearing it is worth holding up callers: three times what is
    /// alive, where half as much again is what a journal may hold.
    pub(in crate::store::file) fn has_fallen_behind(&self) -> bool {
        let allowed = 3 * self.ledger.kept_bytes() + u64::from(self.records.journal.wanted_size());
        self.records.journal.filled() > allowed
    }

    /// Whether there is room for more than what callers ask for. On a full disk there is not: what
    /// is left is for those who wait for an answer.
    fn can_tend(&self) -> bool {
        !self.records.is_broken() && self.records.journal.room() > 2 * self.records.room.reserve
    }

    /// Whether to look for room in the store itself: the disk is full, and more has died since the
    /// last survey found nothing.
    fn wants_survey(&self) -> bool {
        let enough = |then| self.dead() >= then + self.records.room.reserve / 256;
        self.records.room.full
            && !self.records.is_broken()
            && self.records.compaction.dead_when_surveyed.is_none_or(enough)
            && self.records.journal.oldest_closed().is_some()
    }

    fn dead(&self) -> u64 {
        self.records.journal.filled().saturating_sub(self.ledger.kept_bytes())
    }

    /// How much may be copied from a segment that is to leave a full disk. With a part of the
    /// reserve: what leaves gives back more.
    fn room_for_survivors(&self) -> u64 {
        self.records.journal.room().saturating_sub(self.records.room.reserve / 2)
    }

    /// What may be written of `budget` bytes without touching the reserve.
    fn within_room(&self, budget: u64) -> u64 {
        budget.min(self.records.journal.room().saturating_sub(self.records.room.reserve))
    }

    /// Clears the oldest segment by about `budget` bytes: what is still alive in it is copied into
    /// the commit that is being gathered. Once all of it has been, it leaves with that commit.
    ///
    /// On a full disk it first looks how much that would be. A segment with little that is alive
    /// then leaves at once, and any other stays.
    pub fn compact(&mut self, budget: u64) -> Answer<()> {
        self.usable()?;
        let compacted = if self.can_tend() {
            self.sweep(self.within_room(budget))
        } else {
            self.survey(budget)
        };
        compacted.map_err(|unreadable| self.records.fail_unreadable(unreadable).into())
    }

    fn survey(&mut self, budget: u64) -> Result<(), Unreadable> {
        let Some(segment) = self.records.journal.oldest_closed() else { return Ok(()) };
        let begun =
            self.records.compaction.survey.take().filter(|survey| survey.segment == segment);
        let mut survey = begun.unwrap_or(Survey { segment, at: SEGMENT_HEADER, alive: 0 });
        let mut looked_at = 0;
        while looked_at < budget && survey.alive < self.room_for_survivors() {
            let Some(mut fragment) = self.records.journal.fragment(segment, survey.at)? else {
                return self.clear_at_once(survey);
            };
            looked_at += u64::from(fragment.next - survey.at);
            survey.at = fragment.next;
            while let Some((place, entry)) = fragment.next_entry() {
                survey.alive += match Alive::of(entry) {
                    Some(Alive::Job(job)) => self.alive(job, place)?.map_or(0, |found| found.1),
                    Some(Alive::Object(address)) => self
                        .records
                        .object_at(&self.ledger, &address, place)?
                        .map_or(0, |found| found.1),
                    None => 0,
                };
            }
        }
        if survey.alive < self.room_for_survivors() {
            self.records.compaction.survey = Some(survey);
        } else {
            self.records.compaction.dead_when_surveyed = Some(self.dead());
        }
        Ok(())
    }

    /// Lets a surveyed segment leave with the commit that is being gathered, if there is room for
    /// what stays.
    fn clear_at_once(&mut self, survey: Survey) -> Result<(), Unreadable> {
        let mut image = Vec::new();
        for change in self.ledger.image() {
            image.extend([0; ENTRY_HEADER]);
            codec::encode_change(&change, &mut image);
        }
        if survey.alive + image.len() as u64 >= self.room_for_survivors() {
            self.records.compaction.dead_when_surveyed = Some(self.dead());
            return Ok(());
        }
        self.records.compaction.dead_when_surveyed = None;
        self.sweep(u64::MAX)
    }

    fn sweep(&mut self, budget: u64) -> Result<(), Unreadable> {
        if self.records.compaction.sweep.is_none() {
            let Some(segment) = self.records.journal.oldest_closed() else { return Ok(()) };
            self.records.compaction.sweep =
                Some(Sweep { segment, at: SEGMENT_HEADER, fragment: None });
        }
        let mut looked_at = 0;
        while looked_at < budget
            && let Some(mut sweep) = self.records.compaction.sweep.take()
        {
            let Some(mut fragment) = sweep.fragment.take() else {
                let next = self.records.journal.fragment(sweep.segment, sweep.at);
                match next? {
                    Some(fragment) => {
                        sweep.at = fragment.next;
                        sweep.fragment = Some(fragment);
                        self.records.compaction.sweep = Some(sweep);
                    }
                    None => self.let_go(sweep.segment)?,
                }
                continue;
            };
            let mut alive = None;
            while looked_at < budget
                && alive.is_none()
                && let Some((place, entry)) = fragment.next_entry()
            {
                looked_at += entry.len() as u64 + 8;
                alive = Alive::of(entry).map(|alive| (alive, place));
            }
            // At the end of the fragment, the next round reads the next one.
            sweep.fragment = (alive.is_some() || looked_at >= budget).then_some(fragment);
            self.records.compaction.sweep = Some(sweep);
            looked_at += match alive {
                Some((Alive::Job(job), place)) => self.copy_if_alive(job, place)?,
                Some((Alive::Object(address), place)) => self.copy_object(&address, place)?,
                None => 0,
            };
        }
        Ok(())
    }

    /// Whether so much was written since the last checkpoint that opening would take long.
    pub fn wants_checkpoint(&self) -> bool {
        let checkpoint_entries = (self.ledger.jobs() + self.ledger.object_count()) * ENTRY_BYTES;
        let due = self.records.journal.since_begin()
            > self.records.compaction.checkpoint_bytes.saturating_add(4 * checkpoint_entries);
        self.can_tend()
            && self
                .records
                .compaction
                .checkpoint
                .as_ref()
                .map_or(due, |begun| begun.complete.is_none())
    }

    /// Writes about `budget` bytes of a checkpoint into the commit that is being gathered.
    pub fn checkpoint(&mut self, budget: u64) -> Answer<()> {
        self.usable()?;
        self.checkpoint_entry(self.within_room(budget))
            .map_err(|unreadable| self.records.fail_unreadable(unreadable).into())
    }

    fn checkpoint_entry(&mut self, budget: u64) -> Result<(), Unreadable> {
        let (position, before) =
            (self.records.journal.position(), self.records.journal.bytes_written());
        let last = self.ledger.next_ids().sequence.saturating_sub(1);
        if self.records.compaction.checkpoint.is_none() {
            // What is not about one job or object comes first.
            let mut image = self.ledger.image();
            self.records.persist(&mut self.ledger, &mut image)?;
        }
        let begun = self.records.compaction.checkpoint.get_or_insert(Checkpoint {
            position,
            before,
            object: None,
            checkpointed: 0,
            until: last,
            complete: None,
        });
        let count = usize::try_from(budget / ENTRY_BYTES + 1).unwrap_or(usize::MAX);
        let mut objects = 0;
        // Objects first; one that changes later is written later, and counts.
        for (address, meta, kept) in self.ledger.objects_after(begun.object.as_ref()).take(count) {
            objects += 1;
            begun.object = Some(address.clone());
            self.records
                .journal
                .stage(|to| codec::encode_object_checkpoint_entry(address, meta, kept, to));
        }
        let count = count - objects;
        let mut checkpointed = 0;
        for checkpoint_entry in self.ledger.checkpoint_entries_after(begun.checkpointed).take(count)
        {
            if checkpoint_entry.sequence > begun.until {
                break;
            }
            checkpointed += 1;
            begun.checkpointed = checkpoint_entry.sequence;
            self.records.journal.stage(|to| codec::encode_checkpoint_entry(&checkpoint_entry, to));
        }
        if checkpointed < count {
            self.records.journal.touch();
            begun.complete = Some(self.records.journal.next_commit());
        }
        Ok(())
    }

    /// Once all of a checkpoint is on stable storage, reading may begin with it. Not before: a
    /// checkpoint spans many commits, and an opening that began with half of one would know half
    /// of the jobs.
    pub(super) fn conclude_checkpoint(&mut self) {
        if let Some(Checkpoint { position, before, complete: Some(commit), .. }) =
            self.records.compaction.checkpoint
            && commit <= self.records.journal.landed_commit()
        {
            self.records.journal.begin_at(position, self.records.journal.bytes_written() - before);
            self.records.compaction.checkpoint = None;
        }
    }

    /// Copies a job to the end of the journal if `base` is where its chain starts.
    fn copy_if_alive(&mut self, job: JobId, base: Place) -> Result<u64, Unreadable> {
        let Some((record, weight)) = self.alive(job, base)? else { return Ok(0) };
        self.records.persist_whole(&mut self.ledger, &record);
        Ok(weight)
    }

    /// Copies an object to the end of the journal if its record is the one at `place`.
    fn copy_object(&mut self, address: &Address, place: Place) -> Result<u64, Unreadable> {
        let Some((record, weight)) = self.records.object_at(&self.ledger, address, place)? else {
            return Ok(0);
        };
        self.records.write_object(&mut self.ledger, &record);
        Ok(weight)
    }

    /// A job and how many bytes it takes, if `base` is where its chain starts.
    fn alive(&mut self, job: JobId, base: Place) -> Result<Option<(JobRecord, u64)>, Unreadable> {
        let Some(kept) = self.ledger.kept(job) else { return Ok(None) };
        let (chain, record) = self.records.chain(job, Place::unpack(kept.place))?;
        let here = (chain.segment, chain.offset) == (base.segment, base.offset);
        Ok(here.then_some((record, kept.weight.into())))
    }

    /// Everything alive in the oldest segment has been copied: it may leave with this commit.
    /// Settings, rates and totals have no place of their own that could be looked for in the
    /// segment, so all of them are written anew: the segment may have held the only copy.
    fn let_go(&mut self, segment: u32) -> Result<(), Unreadable> {
        let mut image = self.ledger.image();
        self.records.persist(&mut self.ledger, &mut image)?;
        self.records.journal.touch();
        self.records.journal.let_go_before(segment + 1);
        Ok(())
    }
}
