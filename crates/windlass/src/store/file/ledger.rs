//! A ledger with a journal under it: how it is opened, and what an opening finds.
//!
//! No threads, no clock, no waiting: the caller says what time it is, takes a commit when it likes
//! and tells when it has landed ([`commit`]). The file store drives it with a writer, tests and
//! simulations drive it by hand.

mod check;
mod commit;
pub(super) mod compaction;
mod moving;

use std::collections::BTreeSet;
use std::sync::Arc;

use windlass_core::event::Event;
use windlass_core::job::StateName;
use windlass_core::ledger::{LostWorkers, Recovery, RescueLost, Restore};
use windlass_core::limits::Limits;
use windlass_core::record::{Change, RecordLocation};
use windlass_core::time::{Now, Timestamp};

pub use self::commit::Commit;
use self::compaction::Compaction;
use super::OpenError;
use super::codec::{self, Entry};
use super::disk::Disk;
use super::journal::{Journal, SEGMENT_LEAST, SEGMENT_MAX};
use super::layout::{DEPTH_MAX, Place};
use super::records::{JournalRecords, Room};
use super::scan::Found;
use crate::store::ledger::RecordedLedger;
use crate::store::{Opened, Space};

/// Lease tokens are handed out before their claim is on the disk. A reopened store goes on this
/// far beyond the last one it knows of, and no more are ever handed out ahead of the disk.
///
/// Answers: a power loss may take a claim whose handler has run. What the handler has shown to the
/// outside as its fence (`Attempt::fence`) must not be the fence of another attempt later.
/// Why not simpler: a token that is synced before it is used would make every claim wait.
/// Guarded by: `tests/main/writer.rs` (`however_relaxed_a_store_no_lease_token_comes_twice`,
/// `while_the_disk_hangs_no_claim_is_answered_beyond_what_a_reopened_store_skips`).
const TOKENS_AHEAD: u64 = 1 << 20;

/// A restored copy goes on this far beyond what the original can have reached by then: a number of
/// tokens, for clocks that are wrong, and the time in microseconds plus as many.
const TOKENS_OF_A_COPY: u64 = 1 << 32;
const TOKENS_BEYOND_TIME: u64 = 1 << 40;

/// The name of the file that says that a store is a restored copy.
pub(super) const COPY_MARK: &str = "restored-copy";

/// A ledger whose records are in a journal. See the module documentation.
pub type JournaledLedger = RecordedLedger<JournalRecords>;

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
    /// Workers that still run what they had begun: their leases are kept. All others have ended.
    pub living_workers: BTreeSet<Arc<str>>,
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

impl RecordedLedger<JournalRecords> {
    /// Reads the store on `disk`, recovers what was running, goes on with cascades, and makes that
    /// durable.
    pub fn open(
        disk: Arc<dyn Disk>,
        options: &LedgerOptions,
        now: Now,
    ) -> Result<(Self, Opened), OpenError> {
        Self::open_by(disk, options, &|| now)
    }

    /// The same, with a clock. A lease that is kept begins anew when all was read: however long
    /// that took, its worker has had no chance to renew it.
    pub fn open_by(
        disk: Arc<dyn Disk>,
        options: &LedgerOptions,
        clock: &dyn Fn() -> Now,
    ) -> Result<(Self, Opened), OpenError> {
        let names = disk.list().map_err(|error| OpenError::disk("list the files", error))?;
        super::moving::refuse_half_moved(&*disk)?;
        let copied = names.iter().any(|name| name == COPY_MARK);
        let (mut ledger, found) = Self::read(disk.clone(), options, copied.then(clock))?;
        let mut opened = Opened {
            jobs: ledger.ledger.jobs(),
            commits: found.commits,
            torn: found.torn.clone(),
            ..Opened::default()
        };
        let journal = &mut ledger.records.journal;
        journal.begin(&found).map_err(|error| OpenError::disk("tidy up", error))?;
        journal.touch();
        ledger.recover(options, clock(), &mut opened)?;
        ledger.land_first()?;
        if copied {
            let gone = disk.remove(COPY_MARK).and_then(|()| disk.sync_directory());
            gone.map_err(|error| OpenError::disk("note that the copy was opened", error))?;
        }
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
        let compaction = Compaction::new(options.checkpoint_bytes);
        let mut records = JournalRecords::new(journal, Room::new(size), compaction);
        (records.landed_token, records.tokens_ahead) = (ledger.next_ids().token, tokens_ahead);
        Ok((Self::with(ledger, records), found))
    }

    /// Owning the directory proves that whoever ran a job is gone.
    fn recover(
        &mut self,
        options: &LedgerOptions,
        now: Now,
        opened: &mut Opened,
    ) -> Result<(), OpenError> {
        let living = &options.living_workers;
        let before = self.ledger.counts(now).in_state(StateName::Running);
        let kept = self.ledger.leased_to(living).len() as u64;
        loop {
            let lost = LostWorkers::AllBut(living.clone());
            let rescue = RescueLost { recovery: options.recovery, lost };
            let rescued = self
                .apply(rescue, now)
                .map_err(|error| OpenError::Recovery { why: error.to_string() })?;
            opened.recovered.extend(rescued.jobs);
            if !rescued.more && !self.ledger.owes() {
                break;
            }
        }
        let running = before.saturating_sub(kept);
        opened.observed = running.saturating_sub(opened.recovered.len() as u64);
        Ok(())
    }

    /// What was told while the store was opened.
    pub fn opening_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.caused.events)
    }

    /// How many bytes the journal takes, and how many of them belong to jobs that are kept.
    pub fn space(&self) -> Space {
        let journal = &self.records.journal;
        Space {
            used: journal.used(),
            live: self.ledger.kept_bytes(),
            segments: journal.segment_count(),
            written: journal.bytes_written(),
            syncs: 0,
        }
    }
}

/// Where the lease tokens of a copy begin: behind all that the original can have used by now, and
/// behind those of a copy that was restored earlier, which is why the time counts. No store hands
/// out a token every microsecond for long. Guarded by
/// `a_backup_restored_twice_hands_out_no_token_twice` in `tests/main/files/backups.rs`.
fn first_token_of_a_copy(last: u64, now: Timestamp) -> u64 {
    let time = u64::try_from(now.as_micros()).unwrap_or(0);
    (last + TOKENS_OF_A_COPY).max(time + TOKENS_BEYOND_TIME)
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
            // A job that is not known yet has its whole copy further on, which includes this.
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
