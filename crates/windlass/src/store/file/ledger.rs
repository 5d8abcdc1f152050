//! The ledger and the journal as one: a command is decided, its changes are put into the commit
//! that is being gathered, and nothing is answered before that commit has landed.
//!
//! No threads, no clock, no waiting: the caller says what time it is, takes a commit when it likes
//! and tells when it has landed. [`super::FileStore`] drives it with a writer thread, tests and
//! simulations drive it by hand.
//!
//! A job's record lies on the disk as a chain: a base (the job as accepted, or a whole copy) and
//! updates, each pointing at the one before. The ledger carries where the last one stands.

mod compaction;
mod moving;
mod objects;
mod recent;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use windlass_core::event::{Event, RecoveryReason};
use windlass_core::explain::Explanation;
use windlass_core::filter::{Filter, Order};
use windlass_core::job::{JobId, JobStatus, Lease, State, StateName};
use windlass_core::ledger::{
    Applied, Claims, Command, Counts, JobSummary, Ledger, Recovery, Rescue, Restore, Ring,
};
use windlass_core::limits::{self, Limits};
use windlass_core::record::{Change, JobRecord, RecordLocation, Update};
use windlass_core::refusal::Refusal;
use windlass_core::time::{Now, Steady, Timestamp};

use self::compaction::{Checkpoint, Survey, Sweep};
use self::objects::RecentStates;
use self::recent::{ClaimHistory, RecentJobs};
use super::OpenError;
use super::codec::{self, Entry};
use super::disk::Disk;
use super::journal::{
    CommitBytes, Full, Journal, Retired, SEGMENT_LEAST, SEGMENT_MAX, WantedSpare,
};
use super::layout::{DEPTH_MAX, Place, Unreadable};
use super::scan::Found;
use crate::store::{
    ClaimedBatch, ClaimedJob, Cursor, JobQuery, Opened, Page, Selection, Space, StoreError,
};

/// Lease tokens are handed out before their claim is on the disk. A reopened store goes on this
/// far beyond the last one it knows of, and no more are ever handed out ahead of the disk.
const TOKENS_AHEAD: u64 = 1 << 20;

/// A restored copy goes on this far beyond what the original can have reached by then: a number of
/// tokens, for clocks that are wrong, and the time in microseconds plus as many.
const TOKENS_OF_A_COPY: u64 = 1 << 32;
const TOKENS_BEYOND_TIME: u64 = 1 << 40;

/// The name of the file that says that a store is a restored copy.
pub(super) const COPY_MARK: &str = "restored-copy";

/// Room that is kept back when the disk is full, so that running work can be settled. A store with
/// segments of a fixed size keeps no more than a sixteenth of one.
const RESERVE: u64 = 256 << 10;

/// How long to wait before a full disk is asked for space again.
pub(super) const ASK_AGAIN: Duration = Duration::from_millis(200);

/// How long to wait before a spare file is made in advance again, after that has failed: each try
/// may fill the disk before it fails.
const SPARE_AGAIN: Duration = Duration::from_secs(5);

/// Records one page may read from the disk when only they can tell whether they match.
const PAGE_READS: usize = 2_000;

/// See [`LedgerOptions::checkpoint_bytes`].
const CHECKPOINT_BYTES: u64 = 256 << 20;

/// How a store is opened.
#[derive(Clone, Debug, Default)]
pub struct LedgerOptions {
    /// The bounds in force.
    pub limits: Limits,
    /// What to do about jobs that were running when the store was last open.
    pub recovery: Recovery,
    /// The size of every segment, 4 KiB at least and 64 MiB at most; `None` lets it grow with the
    /// store from 4 to 64 MiB.
    pub segment_bytes: Option<u32>,
    /// Read the whole journal when opening, not only what follows the last checkpoint.
    pub thorough: bool,
    /// How many bytes an opening may have to read, beyond four times what a checkpoint takes,
    /// before one is written; `None` for 256 MiB.
    pub checkpoint_bytes: Option<u64>,
    /// How many lease tokens may be out ahead of the disk. For tests in which they are to run out:
    /// a store must not be opened with fewer than before.
    #[doc(hidden)]
    pub tokens_ahead: Option<u64>,
}

/// How much a command may write.
#[derive(Clone, Copy, Debug)]
pub enum Need {
    /// It adds jobs: refused when only the reserve is left.
    Growth(Size),
    /// It moves on what is there.
    Progress(Size),
}

/// About how many bytes something takes in the journal.
#[derive(Clone, Copy, Debug, Default)]
pub struct Size {
    /// All of it.
    pub all: u64,
    /// The largest part that must stand in one piece.
    pub largest: u64,
}

impl FromIterator<u64> for Size {
    /// From the bytes of each part.
    fn from_iter<T: IntoIterator<Item = u64>>(parts: T) -> Self {
        parts.into_iter().fold(Self::default(), |Self { all, largest }, part| Self {
            all: all + part,
            largest: largest.max(part),
        })
    }
}

/// What is known of the jobs that a filter may mean and only their records can tell.
#[derive(Debug, Default)]
pub struct SelectionProgress {
    is_meant: HashMap<JobId, bool>,
    /// How far it has come, in the order of acceptance; 0 at the beginning.
    after: u64,
}

/// A commit on its way to the disk, and what to tell when it has landed.
#[derive(Debug)]
pub struct Commit {
    batch: Arc<CommitBytes>,
    /// What to tell.
    pub events: Vec<Event>,
    /// Whom to wake.
    pub rings: BTreeSet<Ring>,
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

/// See the module documentation.
#[derive(Debug)]
pub struct JournaledLedger {
    ledger: Ledger,
    journal: Journal,
    recent: RecentJobs,
    states: RecentStates,
    events: Vec<Event>,
    rings: BTreeSet<Ring>,
    sweep: Option<Sweep>,
    checkpoint: Option<Checkpoint>,
    checkpoint_bytes: u64,
    landed_token: u64,
    tokens_ahead: u64,
    broken: Option<String>,
    reserve: u64,
    ask_again_at: Steady,
    spare_again_at: Steady,
    /// The disk had no room when it was last asked.
    full: bool,
    survey: Option<Survey>,
    /// What was dead in the journal when the oldest segment was last found to be too alive to leave
    /// a full disk.
    dead_when_surveyed: Option<u64>,
}

impl JournaledLedger {
    /// Reads the store on `disk`, recovers what was running, and makes that durable.
    pub fn open(
        disk: Arc<dyn Disk>,
        options: &LedgerOptions,
        now: Now,
    ) -> Result<(Self, Opened), OpenError> {
        let names = disk.list().map_err(|error| OpenError::disk("list the files", error))?;
        super::moving::refuse_half_moved(&*disk)?;
        let copied = names.iter().any(|name| name == COPY_MARK);
        let (mut ledger, found) = Self::read(disk.clone(), options, copied.then_some(now))?;
        let mut opened = Opened {
            jobs: ledger.ledger.jobs(),
            commits: found.commits,
            torn: found.torn.clone(),
            ..Opened::default()
        };
        ledger.journal.begin(&found).map_err(|error| OpenError::disk("tidy up", error))?;
        ledger.journal.touch();
        ledger.recover(options.recovery, now, &mut opened)?;
        let commit = ledger.take_now().map_err(OpenError::full)?;
        let landed = commit.write().and_then(|()| commit.sync());
        landed.map_err(|error| OpenError::disk("write the first commit", error))?;
        ledger.written(commit.number());
        for retired in ledger.landed(&commit) {
            let _ = retired.let_go().map(|spare| ledger.add_spare(spare));
        }
        ledger.journal.mark_used().map_err(|error| OpenError::disk("mark the store", error))?;
        if copied {
            let gone = disk.remove(COPY_MARK).and_then(|()| disk.sync_directory());
            gone.map_err(|error| OpenError::disk("note that the copy was opened", error))?;
        }
        ledger.events = commit.events;
        Ok((ledger, opened))
    }

    /// Reads the store on `disk`, which may be a copy that is being restored now, and changes
    /// nothing.
    pub(super) fn read(
        disk: Arc<dyn Disk>,
        options: &LedgerOptions,
        restored: Option<Now>,
    ) -> Result<(Self, Found), OpenError> {
        let mut restore = Restore::new(options.limits.clone());
        let size = options.segment_bytes.map(|bytes| bytes.clamp(SEGMENT_LEAST, SEGMENT_MAX));
        let (journal, found) = Journal::open(disk, size, options.thorough, &mut |place, body| {
            absorb(&mut restore, place, body).map_err(str::to_string)
        })?;
        let mut next_ids = found.next_ids;
        let tokens_ahead = options.tokens_ahead.unwrap_or(TOKENS_AHEAD);
        next_ids.token = match restored {
            None => next_ids.token + tokens_ahead,
            Some(now) => first_token_of_a_copy(next_ids.token, now.wall),
        };
        restore.next_ids(next_ids);
        let ledger = restore.finish();
        let landed_token = ledger.next_ids().token;
        let ledger = Self {
            ledger,
            journal,
            recent: RecentJobs::default(),
            states: RecentStates::default(),
            events: Vec::new(),
            rings: BTreeSet::new(),
            sweep: None,
            checkpoint: None,
            checkpoint_bytes: options.checkpoint_bytes.unwrap_or(CHECKPOINT_BYTES),
            landed_token,
            tokens_ahead,
            broken: None,
            reserve: size.map_or(RESERVE, |bytes| RESERVE.min(u64::from(bytes) / 16)),
            ask_again_at: Steady::default(),
            spare_again_at: Steady::default(),
            full: false,
            survey: None,
            dead_when_surveyed: None,
        };
        Ok((ledger, found))
    }

    /// Owning the directory proves that whoever ran a job is gone.
    fn recover(
        &mut self,
        recovery: Recovery,
        now: Now,
        opened: &mut Opened,
    ) -> Result<(), OpenError> {
        let running = self.ledger.counts(now).in_state(StateName::Running);
        loop {
            let rescue = Rescue { recovery, reason: RecoveryReason::Restart };
            let rescued = self
                .apply(rescue, now)
                .map_err(|error| OpenError::Recovery { why: error.to_string() })?;
            opened.recovered.extend(rescued.jobs);
            if !rescued.more {
                break;
            }
        }
        opened.observed = running.saturating_sub(opened.recovered.len() as u64);
        Ok(())
    }

    /// Decides a command and puts what it changes into the commit that is being gathered. The
    /// answer is true once [`JournaledLedger::awaited`] has landed.
    pub fn apply<C: Command>(&mut self, command: C, now: Now) -> Result<C::Reply, StoreError> {
        self.usable()?;
        let Applied { reply, changes, events, rings } = self.ledger.apply(command, now);
        let kept = self.persist(changes);
        if !events.is_empty() {
            // Even without a change: an event's number must not be given away twice.
            self.journal.touch();
        }
        self.events.extend(events);
        self.rings.extend(rings);
        kept.map_err(|unreadable| self.break_down(unreadable))?;
        Ok(reply?)
    }

    /// Refuses everything from now on: what is on the disk is no longer known.
    pub fn fail(&mut self, why: String) {
        self.broken.get_or_insert(why);
    }

    fn break_down(&mut self, Unreadable(why): Unreadable) -> StoreError {
        self.fail(format!("damaged: {why}"));
        self.usable().err().unwrap_or_else(|| Refusal::StoreBroken { why: String::new() }.into())
    }

    /// Whether anything can still be decided; after a failure, why not.
    pub fn usable(&self) -> Result<(), StoreError> {
        match &self.broken {
            None => Ok(()),
            Some(why) => Err(Refusal::StoreBroken { why: why.clone() }.into()),
        }
    }

    /// Makes sure that there is room for what a command writes, before it is decided.
    pub fn admit(&mut self, need: Need, now: Now) -> Result<(), Refusal> {
        let (bytes, largest) = match need {
            Need::Growth(size) => (size.all + self.reserve, size.largest),
            Need::Progress(size) => (size.all + 4_096, size.largest),
        };
        let largest = usize::try_from(largest).unwrap_or(usize::MAX);
        let spares = self.journal.spare_count();
        while self.journal.room() < bytes || !self.journal.fits(largest) {
            let full = |why: String| Refusal::StoreFull { why };
            if now.steady < self.ask_again_at {
                return Err(full("the disk is full".to_string()));
            }
            // First for what has been decided already and waits to be written.
            let waited = !self.journal.has_files();
            let made = if waited {
                self.journal.allocate_files()
            } else {
                self.journal.make_spare(largest)
            };
            self.full = made.is_err();
            if let Err(Full(error)) = made.inspect_err(|full| self.fail_if_permanent(waited, full))
            {
                self.ask_again_at = now.steady + ASK_AGAIN;
                // Of what was not enough, others may make use.
                self.journal.drop_spares(spares);
                return Err(full(error.to_string()));
            }
        }
        Ok(())
    }

    fn persist(&mut self, changes: Vec<Change>) -> Result<(), Unreadable> {
        for change in changes {
            if let Change::Update(update) = &change {
                self.persist_update(update)?;
                continue;
            }
            if let Change::Object(change) = &change {
                self.persist_object(change)?;
                continue;
            }
            let (place, weight) = self.journal.stage(|to| codec::encode_change(&change, to));
            match change {
                Change::Insert(accepted) => {
                    self.ledger
                        .keep(accepted.job.id, RecordLocation { place: place.pack(), weight });
                    self.recent.add(accepted);
                }
                Change::Remove { job } => self.recent.forget(job),
                Change::ObjectGone { address } => {
                    self.states.remove(&address);
                }
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

    fn persist_update(&mut self, update: &Update) -> Result<(), Unreadable> {
        // A renewal: whoever opens the store next ends every lease anyway.
        if let State::Running(lease) = &update.status.state
            && update.note.is_none()
            && !lease.cancel_requested
        {
            return Ok(());
        }
        // A job that the same commit removes needs no update.
        let Some(kept) = self.ledger.kept(update.job) else { return Ok(()) };
        let previous = Place::unpack(kept.place);
        if previous.depth == DEPTH_MAX {
            let mut record = self.stored(update.job, previous)?;
            record.absorb(update);
            self.recent.forget(update.job);
            self.persist_whole(&record);
            return Ok(());
        }
        let (mut place, bytes) =
            self.journal.stage(|to| codec::encode_update(update, kept.place, kept.weight, to));
        self.recent.absorb(update);
        place.depth = previous.depth + 1;
        let weight = kept.weight.saturating_add(bytes);
        self.ledger.keep(update.job, RecordLocation { place: place.pack(), weight });
        Ok(())
    }

    fn persist_whole(&mut self, record: &JobRecord) {
        let (place, weight) = self.journal.stage(|to| codec::encode_whole(record, to));
        self.ledger.keep(record.id(), RecordLocation { place: place.pack(), weight });
    }

    /// The last commit that has to land before anything that was seen until now may be told.
    pub fn awaited(&self) -> u64 {
        let gathered = self.journal.is_staged();
        self.journal.next_commit() - u64::from(!gathered)
    }

    /// The last commit that has landed.
    pub fn landed_commit(&self) -> u64 {
        self.journal.landed_commit()
    }

    /// Whether a commit is being gathered.
    pub fn is_gathering(&self) -> bool {
        self.journal.is_staged()
    }

    /// Whether it can be taken. Not while the disk is full and a part of it has no file, see
    /// [`JournaledLedger::make_room`]. And not after a failure: it may hold half of a command.
    pub fn has_work(&self) -> bool {
        self.broken.is_none() && self.journal.is_staged() && self.journal.has_files()
    }

    /// Whether the commit that is being gathered has outgrown the disk and waits for room.
    pub fn is_stalled(&self) -> bool {
        self.broken.is_none() && self.journal.is_staged() && !self.journal.has_files()
    }

    /// Asks the disk again for the room that a commit waits for, unless that was done just now.
    /// Returns whether there is enough.
    pub fn make_room(&mut self, now: Now) -> bool {
        if now.steady < self.ask_again_at {
            return false;
        }
        let allocated =
            self.journal.allocate_files().inspect_err(|full| self.fail_if_permanent(true, full));
        self.full = allocated.is_err();
        if allocated.is_err() {
            self.ask_again_at = now.steady + ASK_AGAIN;
        }
        allocated.is_ok()
    }

    /// Whether as many lease tokens are out ahead of the disk as may be.
    pub(super) fn tokens_run_out(&self) -> bool {
        self.ledger.next_ids().token - self.landed_token > self.tokens_ahead / 2
    }

    /// Closes the commit that is being gathered, if it can be written now. It must be written
    /// before the next one is, and be followed by [`JournaledLedger::written`] and
    /// [`JournaledLedger::landed`].
    pub fn take(&mut self) -> Option<Commit> {
        // What has been counted is part of it, and may need a file too.
        let taken = self.has_work().then(|| self.take_now())?;
        taken.inspect_err(|full| self.fail_if_permanent(true, full)).ok()
    }

    /// Gives up if callers wait for room that will not come: a disk that fails is not full.
    fn fail_if_permanent(&mut self, waited_for: bool, full: &Full) {
        if waited_for && !full.may_pass() {
            self.fail(format!("a segment could not be made ({})", full.0));
        }
    }

    fn take_now(&mut self) -> Result<Commit, Full> {
        for change in self.ledger.drain_totals() {
            self.journal.stage(|to| codec::encode_change(&change, to));
        }
        self.journal.allocate_files()?;
        let batch = self.journal.take(self.ledger.next_ids(), self.journal.landed_commit());
        let (events, rings) = (std::mem::take(&mut self.events), std::mem::take(&mut self.rings));
        Ok(Commit { batch, events, rings })
    }

    /// The commit was handed to the system.
    pub fn written(&mut self, number: u64) {
        self.journal.written(number);
    }

    /// The commit is on stable storage. Returns the files that may leave.
    pub fn landed(&mut self, commit: &Commit) -> Vec<Retired> {
        self.landed_token = self.landed_token.max(commit.batch.token);
        let retired = self.journal.landed(&commit.batch);
        self.conclude_checkpoint();
        retired
    }

    /// Takes back the memory of a commit that has landed.
    pub fn reuse(&mut self, commit: Commit) {
        self.journal.reuse(commit.batch);
    }

    /// A file that can be used for the next segment.
    pub fn add_spare(&mut self, spare: Option<(String, u32)>) {
        if let Some((name, bytes)) = spare {
            self.full = false;
            self.journal.add_spare(name, bytes);
        }
    }

    /// A spare file that should be made soon, apart from everything else. Be told what came of it
    /// by [`JournaledLedger::spare_made`].
    pub fn wanted_spare(&mut self, now: Now) -> Option<WantedSpare> {
        let wanted = self.journal.wants_spare() && now.steady >= self.spare_again_at;
        wanted.then(|| self.journal.wanted_spare(0))
    }

    /// A spare file was made, or could not be.
    pub fn spare_made(&mut self, made: std::io::Result<(String, u32)>, now: Now) {
        if made.is_err() {
            self.full = true;
            self.spare_again_at = now.steady + SPARE_AGAIN;
        }
        self.add_spare(made.ok());
    }

    /// A mark that the last commit is on stable storage, to be written when nothing else is.
    pub fn seal(&self) -> std::io::Result<()> {
        match self.journal.seal(self.ledger.next_ids()) {
            Some((file, at, bytes)) => file.write_at(&bytes, at),
            None => Ok(()),
        }
    }

    /// The record of a job as it lies on the disk.
    fn stored(&mut self, job: JobId, tip: Place) -> Result<JobRecord, Unreadable> {
        match self.recent.record(job) {
            Some(record) => Ok(record),
            None => self.chain(job, tip).map(|(_, record)| record),
        }
    }

    /// Follows a job's chain to its base. Returns where that stands, and the job as of `tip`.
    fn chain(&mut self, job: JobId, tip: Place) -> Result<(Place, JobRecord), Unreadable> {
        let mut updates: Vec<Update> = Vec::new();
        let mut place = tip;
        let mut record = loop {
            let wrong = |why: &str| {
                let Place { segment, offset, .. } = place;
                Unreadable(format!("segment {segment:08x} at byte {offset}: {why}"))
            };
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

    /// The record of a job as it is now.
    fn record(&mut self, job: JobId, now: Timestamp) -> Result<Option<JobRecord>, StoreError> {
        let Some(kept) = self.ledger.kept(job) else { return Ok(None) };
        let record = self.stored(job, Place::unpack(kept.place));
        let mut record = record.map_err(|why| self.break_down(why))?;
        if let Some(status) = self.ledger.status_of(job) {
            record.status = status;
        }
        Ok(Some(record.seen_at(now)))
    }

    /// Whether all that is known of these jobs has landed.
    pub fn have_landed(&self, jobs: &[JobId]) -> bool {
        let landed = |job: &JobId| {
            let kept = self.ledger.kept(*job);
            kept.is_some_and(|kept| self.journal.has_landed(Place::unpack(kept.place)))
        };
        self.awaited() <= self.landed_commit() || jobs.iter().all(landed)
    }

    /// Reads jobs by id, a page of them, or how many there are.
    pub fn jobs(&mut self, query: &JobQuery, now: Now) -> Result<Page, StoreError> {
        match query {
            JobQuery::Ids(jobs) => {
                Ok(Page::of(self.find(jobs, now)?.into_iter().flatten().collect()))
            }
            JobQuery::Page { filter, after, limit } => self.list(filter, *after, *limit, now),
            JobQuery::Count { filter, after } => self.count_part(filter, *after, now),
        }
    }

    /// Reads jobs by id.
    pub fn find(&mut self, jobs: &[JobId], now: Now) -> Result<Vec<Option<JobRecord>>, StoreError> {
        self.usable()?;
        let now = self.ledger.glance(now).wall;
        jobs.iter().map(|job| self.record(*job, now)).collect()
    }

    /// Candidates that match as far as the ledger knows, from a place on: at most `most` of them,
    /// and as many as one page looks at.
    fn choose(
        &self,
        filter: &Filter,
        after: Option<Cursor>,
        most: usize,
    ) -> (Vec<(u64, JobId)>, Option<Cursor>) {
        let mut chosen = Vec::new();
        let candidates = self.ledger.candidates(filter, after.map(|Cursor(at)| at));
        for (looked_at, summary) in candidates.enumerate() {
            if looked_at == limits::PAGE_SCAN || chosen.len() == most {
                return (chosen, Some(Cursor(filter.order.cursor(summary.sequence))));
            }
            if filter.may_match(&summary) {
                chosen.push((summary.sequence, summary.id));
            }
        }
        (chosen, None)
    }

    /// Reads a page of jobs that match.
    pub fn list(
        &mut self,
        filter: &Filter,
        after: Option<Cursor>,
        limit: usize,
        now: Now,
    ) -> Result<Page, StoreError> {
        self.usable()?;
        let now = self.ledger.glance(now).wall;
        let limit = limit.clamp(1, limits::PAGE_JOBS);
        let (chosen, next) = self.choose(filter, after, limit.max(PAGE_READS));
        let mut page = Page { next, ..Page::default() };
        for (sequence, job) in chosen {
            if page.jobs.len() == limit {
                page.next = Some(Cursor(filter.order.cursor(sequence)));
                break;
            }
            let record = self.record(job, now)?;
            page.jobs.extend(record.filter(|record| filter.matches(record, now)));
        }
        page.count = page.jobs.len() as u64;
        Ok(page)
    }

    /// How many jobs match, as far as one page looks; records are read only if they must be.
    fn count_part(
        &mut self,
        filter: &Filter,
        after: Option<Cursor>,
        now: Now,
    ) -> Result<Page, StoreError> {
        self.usable()?;
        let now = self.ledger.glance(now).wall;
        let most = if filter.needs_record() { PAGE_READS } else { limits::PAGE_SCAN };
        let (chosen, next) = self.choose(filter, after, most);
        let mut page = Page { next, ..Page::default() };
        for (_, job) in chosen {
            let matches = !filter.needs_record()
                || self.record(job, now)?.is_some_and(|record| filter.matches(&record, now));
            page.count += u64::from(matches);
        }
        Ok(page)
    }

    /// The jobs that are meant, by acceptance if they are chosen by a filter. `None` if so many
    /// records have to be read for it that others should have their turn first: then ask again,
    /// with what was `progress` so far.
    pub fn select(
        &mut self,
        selection: &Selection,
        progress: &mut SelectionProgress,
        now: Now,
    ) -> Result<Option<Vec<JobId>>, StoreError> {
        self.usable()?;
        let now = self.ledger.glance(now).wall;
        let filter = match selection {
            Selection::Jobs(jobs) => return Ok(Some(jobs.clone())),
            Selection::Matching(filter) => filter,
        };
        let anew = progress.after == 0;
        let open = |summary: &JobSummary<'_>| {
            filter.needs_record()
                && filter.may_match(summary)
                && !progress.is_meant.contains_key(&summary.id)
        };
        let by_acceptance = Filter { order: Order::OldestFirst, ..filter.clone() };
        let from = progress.after.saturating_add(1);
        let summaries = self.ledger.candidates(&by_acceptance, Some(from)).filter(open);
        let unread: Vec<(u64, JobId)> =
            summaries.map(|summary| (summary.sequence, summary.id)).take(PAGE_READS).collect();
        for (sequence, job) in &unread {
            let record = self.record(*job, now)?;
            let is_meant = record.is_some_and(|record| filter.matches(&record, now));
            progress.is_meant.insert(*job, is_meant);
            progress.after = *sequence;
        }
        if unread.len() < PAGE_READS {
            progress.after = 0;
        }
        if !anew || progress.after > 0 {
            return Ok(None);
        }
        // What a record says of a job for good is known of all that match now.
        let is_meant = |summary: &JobSummary<'_>| {
            filter.may_match(summary)
                && progress.is_meant.get(&summary.id).is_none_or(|meant| *meant)
        };
        let candidates = self.ledger.candidates(&by_acceptance, None);
        let meant = candidates.filter(is_meant).map(|summary| summary.id);
        Ok(Some(meant.collect()))
    }

    /// Adds to claimed jobs what their workers need.
    pub fn hand(&mut self, claims: Claims) -> Result<ClaimedBatch, StoreError> {
        let mut jobs = Vec::with_capacity(claims.jobs.len());
        for claimed in claims.jobs {
            let since = claimed.lease.since;
            let recalled = self.recent.claimed(claimed.id, since);
            let past = match recalled {
                Some(recent) => recent,
                None => {
                    let tip = self.ledger.kept(claimed.id).map_or(0, |kept| kept.place);
                    let record = self.stored(claimed.id, Place::unpack(tip));
                    let record = record.map_err(|why| self.break_down(why))?;
                    ClaimHistory::of(record, since)
                }
            };
            jobs.push(ClaimedJob {
                job: past.job,
                created_at: past.created_at,
                first_started_at: past.first_started_at,
                steps: past.steps,
                last_error: past.last_error,
                lease: claimed.lease,
                attempt: claimed.attempt,
                recoveries: claimed.recoveries,
                generation: claimed.generation,
                sequence: claimed.sequence,
            });
        }
        Ok(ClaimedBatch { jobs, ready: claims.ready, wake_in: claims.wake_in })
    }

    /// All counters.
    pub fn count(&mut self, now: Now) -> Counts {
        self.ledger.counts(now)
    }

    /// Why a job is not running.
    pub fn explain(&mut self, job: JobId, now: Now) -> Result<Explanation, StoreError> {
        Ok(self.ledger.explain(job, now)?)
    }

    /// The jobs that wait for this one.
    pub fn dependents(&self, job: JobId) -> Vec<JobId> {
        self.ledger.dependents(job)
    }

    /// The number of the last event that was given one.
    pub fn last_event(&self) -> u64 {
        self.ledger.last_event()
    }

    /// What was told while the store was opened.
    pub fn opening_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// The ledger, to look at.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// How many bytes the journal takes, and how many of them belong to jobs that are kept.
    pub fn space(&self) -> Space {
        Space {
            used: self.journal.used(),
            live: self.ledger.kept_bytes(),
            segments: self.journal.segment_count(),
            written: self.journal.bytes_written(),
        }
    }

    /// Everything that is wrong with the store, in words; every record is read and compared.
    pub fn check(&mut self) -> Vec<String> {
        let mut wrong = self.ledger.check();
        let jobs: Vec<JobId> = self.ledger.summaries_after(0).map(|summary| summary.id).collect();
        for job in jobs {
            let Some(kept) = self.ledger.kept(job) else { continue };
            match self.chain(job, Place::unpack(kept.place)) {
                Err(Unreadable(why)) => wrong.push(format!("job {job}: {why}")),
                Ok((_, record)) => {
                    let known = self.ledger.status_of(job);
                    if !known.is_some_and(|known| agree(&record.status, &known)) {
                        wrong.push(format!("job {job}: its record and the ledger disagree"));
                    }
                }
            }
        }
        let objects = self.ledger.objects_after(None);
        let objects: Vec<_> =
            objects.map(|(address, meta, kept)| (address.clone(), meta.clone(), kept)).collect();
        for (address, meta, kept) in objects {
            match self.stored_object(&address, Place::unpack(kept.place)) {
                Err(Unreadable(why)) => wrong.push(format!("object {address}: {why}")),
                Ok(record) if record.meta != meta => {
                    wrong.push(format!("object {address}: its record and the ledger disagree"));
                }
                Ok(_) => {}
            }
        }
        wrong
    }
}

/// Where the lease tokens of a copy begin. One backup can be restored more than once, so the time
/// of it counts: no store hands out a token every microsecond for long.
fn first_token_of_a_copy(last: u64, now: Timestamp) -> u64 {
    let time = u64::try_from(now.as_micros()).unwrap_or(0);
    (last + TOKENS_OF_A_COPY).max(time + TOKENS_BEYOND_TIME)
}

/// Whether a stored condition is the one the ledger knows. Two things are not written down: that a
/// time has come, and that a lease was renewed.
fn agree(stored: &JobStatus, known: &JobStatus) -> bool {
    let same_state = match (&stored.state, &known.state) {
        (State::Scheduled { at }, State::Ready { since }) => at == since,
        (State::Running(stored), State::Running(known)) => {
            Lease { until: known.until, ..stored.clone() } == *known
        }
        (stored, known) => stored == known,
    };
    let counters = |status: &JobStatus| (status.attempts, status.recoveries, status.generation);
    same_state && counters(stored) == counters(known)
}

/// Takes over one entry of the journal.
fn absorb(restore: &mut Restore, place: Place, body: &[u8]) -> Result<(), codec::Wrong> {
    let bytes = body.len() as u32 + 8;
    match codec::decode(body)? {
        Entry::Change(change) => {
            restore.absorb(&change);
            if let Change::Insert(accepted) = &change {
                restore
                    .keep(accepted.job.id, RecordLocation { place: place.pack(), weight: bytes });
            }
        }
        Entry::Update { update, previous, weight } => {
            let job = update.job;
            // What is copied further on needs no update from before.
            if !restore.knows(job) {
                return Ok(());
            }
            let depth = (Place::unpack(previous).depth + 1).min(DEPTH_MAX);
            restore.absorb(&Change::Update(update));
            let weight = weight.saturating_add(bytes);
            restore.keep(job, RecordLocation { place: Place { depth, ..place }.pack(), weight });
        }
        Entry::Checkpoint(checkpoint_entry) => restore.checkpoint_entry(&checkpoint_entry),
        Entry::Object(record) => {
            let kept = RecordLocation { place: place.pack(), weight: bytes };
            restore.object(&record.address, record.meta, kept);
        }
        Entry::ObjectCheckpoint(checkpoint_entry) => {
            let (address, meta, kept) = *checkpoint_entry;
            restore.object(&address, meta, kept);
        }
        Entry::Whole(record) => {
            restore.put(&record);
            restore.keep(record.id(), RecordLocation { place: place.pack(), weight: bytes });
        }
    }
    Ok(())
}
