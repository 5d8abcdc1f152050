//! Commits: what was decided is taken as one, written, synced and landed, step by step.
//!
//! Whoever drives a ledger takes a commit, writes it before the next one, waits until it is on
//! stable storage, and says so. In between, calls go on being decided, into the next commit.

use std::sync::Arc;

use windlass_core::event::Event;
use windlass_core::job::JobId;
use windlass_core::object::Address;
use windlass_core::time::Now;

use super::super::OpenError;
use super::super::codec;
use super::super::journal::{CommitBytes, Full, Retired, WantedSpare};
use super::super::layout::Place;
use super::super::records::JournalRecords;
use crate::store::ledger::RecordedLedger;

/// A commit on its way to the disk, and what to tell when it has landed.
#[derive(Debug)]
pub struct Commit {
    pub(in crate::store::file) batch: Arc<CommitBytes>,
    /// What to tell.
    pub events: Vec<Event>,
}

impl Commit {
    /// The commit's number.
    pub fn number(&self) -> u64 {
        self.batch.number
    }

    /// How many bytes it writes.
    pub fn bytes(&self) -> u64 {
        self.batch.bytes()
    }

    /// Hands the bytes to the system.
    pub fn write(&self) -> std::io::Result<()> {
        self.batch.write()
    }

    /// Waits until they are on stable storage.
    pub fn sync(&self) -> std::io::Result<()> {
        Self::sync_all(std::slice::from_ref(self))
    }

    /// Waits until all of these are, with one sync where one will do.
    pub fn sync_all(commits: &[Commit]) -> std::io::Result<()> {
        CommitBytes::sync(commits.iter().map(|commit| &*commit.batch))
    }
}

impl RecordedLedger<JournalRecords> {
    /// Refuses everything from now on: what is on the disk is no longer known.
    pub fn fail(&mut self, why: String) {
        self.records.fail(why);
    }

    /// The last commit that must land before an answer may be given that is based on everything
    /// decided until now: the one being gathered, or the one before it if nothing is gathered.
    pub fn awaited(&self) -> u64 {
        let gathered = self.records.journal.is_staged();
        self.records.journal.next_commit() - u64::from(!gathered)
    }

    /// The last commit that has landed.
    pub fn landed_commit(&self) -> u64 {
        self.records.journal.landed_commit()
    }

    /// Whether all that is known of these jobs has landed.
    pub fn have_landed(&self, jobs: &[JobId]) -> bool {
        let landed = |job: &JobId| {
            let kept = self.ledger.kept(*job);
            kept.is_some_and(|kept| self.records.journal.has_landed(Place::unpack(kept.place)))
        };
        self.awaited() <= self.landed_commit() || jobs.iter().all(landed)
    }

    /// Whether all that is known of an object has landed.
    pub fn object_has_landed(&self, address: &Address) -> bool {
        let kept = self.ledger.object(address).map(|(_, kept)| Place::unpack(kept.place));
        self.awaited() <= self.landed_commit()
            || kept.is_some_and(|place| self.records.journal.has_landed(place))
    }

    /// Whether as many lease tokens are out ahead of the disk as may be.
    pub(in crate::store::file) fn tokens_run_out(&self) -> bool {
        let ahead = self.ledger.next_ids().token - self.records.landed_token;
        ahead > self.records.tokens_ahead / 2
    }

    /// Whether a commit is being gathered.
    pub fn is_gathering(&self) -> bool {
        self.records.journal.is_staged()
    }

    /// How many bytes it has so far.
    pub(in crate::store::file) fn gathered_bytes(&self) -> u64 {
        self.records.journal.staged_bytes()
    }

    /// Whether it can be taken. Not while the disk is full and a part of it has no file, see
    /// [`Self::make_room`]. And not after a failure: it may hold half of a command.
    pub fn has_work(&self) -> bool {
        !self.records.is_broken() && self.is_gathering() && self.records.journal.has_files()
    }

    /// Whether the commit that is being gathered has outgrown the disk and waits for room.
    pub fn is_stalled(&self) -> bool {
        !self.records.is_broken() && self.is_gathering() && !self.records.journal.has_files()
    }

    /// Asks the disk again for the room that a commit waits for, unless that was done just now.
    /// Returns whether there is enough.
    pub fn make_room(&mut self, now: Now) -> bool {
        self.records.make_room_for_commit(now)
    }

    /// Closes the commit that is being gathered, if it can be written now. It must be written
    /// before the next one is, and be followed by [`Self::written`] and [`Self::landed`].
    pub fn take(&mut self) -> Option<Commit> {
        // What has been counted is part of it, and may need a file too.
        let taken = self.has_work().then(|| self.take_now())?;
        taken.inspect_err(|full| self.records.fail_if_permanent(true, full)).ok()
    }

    fn take_now(&mut self) -> Result<Commit, Full> {
        let journal = &mut self.records.journal;
        for change in self.ledger.drain_totals() {
            journal.stage(|to| codec::encode_change(&change, to));
        }
        journal.allocate_files()?;
        let batch = journal.take(self.ledger.next_ids(), journal.landed_commit());
        Ok(Commit { batch, events: self.take_events() })
    }

    /// The commit was handed to the system.
    pub fn written(&mut self, number: u64) {
        self.records.journal.written(number);
    }

    /// The commit is on stable storage. Returns the files that may leave.
    pub fn landed(&mut self, commit: &Commit) -> Vec<Retired> {
        self.records.landed_token = self.records.landed_token.max(commit.batch.token);
        let retired = self.records.journal.landed(&commit.batch);
        self.conclude_checkpoint();
        retired
    }

    /// Takes back the memory of a commit that has landed.
    pub fn reuse(&mut self, commit: Commit) {
        self.records.journal.reuse(commit.batch);
    }

    /// Lands the first commit of an opening, before anyone is answered. Its events are kept.
    pub(super) fn land_first(&mut self) -> Result<(), OpenError> {
        let commit = self.take_now().map_err(OpenError::full)?;
        let landed = commit.write().and_then(|()| commit.sync());
        landed.map_err(|error| OpenError::disk("write the first commit", error))?;
        self.written(commit.number());
        for retired in self.landed(&commit) {
            let _ = retired.let_go().map(|spare| self.add_spare(spare));
        }
        self.caused.events = commit.events;
        let marked = self.records.journal.mark_used();
        marked.map_err(|error| OpenError::disk("mark the store", error))
    }

    /// A file that can be used for the next segment.
    pub fn add_spare(&mut self, spare: Option<(String, u32)>) {
        if let Some((name, bytes)) = spare {
            self.records.room.full = false;
            self.records.journal.add_spare(name, bytes);
        }
    }

    /// A spare file that should be made soon, outside of the lock. What came of it is to be said by
    /// [`Self::spare_made`].
    pub fn wanted_spare(&mut self, now: Now) -> Option<WantedSpare> {
        let records = &mut self.records;
        let wanted = records.journal.wants_spare() && records.room.may_make_spare(now);
        wanted.then(|| records.journal.wanted_spare(0))
    }

    /// A spare file was made, or could not be.
    pub fn spare_made(&mut self, made: std::io::Result<(String, u32)>, now: Now) {
        if made.is_err() {
            self.records.room.no_spare(now);
        }
        self.add_spare(made.ok());
    }

    /// A mark that the last commit is on stable storage, to be written when nothing else is.
    pub fn seal(&self) -> std::io::Result<()> {
        match self.records.journal.seal(self.ledger.next_ids()) {
            Some((file, at, bytes)) => file.write_at(&bytes, at),
            None => Ok(()),
        }
    }
}
