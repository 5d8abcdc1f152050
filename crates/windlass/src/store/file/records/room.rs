//! Room on the disk: asked for before a command is decided, and kept back in part for running work.
//!
//! Answers: a decision cannot be taken back, so a command that would not fit must be refused before
//! it is decided. And if new jobs took the last byte, no running job could be settled.
//! Why not simpler: asking the disk for each commit would let a batch fail half-way. Room is
//! estimated before ([`Need`]), and new jobs leave a reserve.
//! Guarded by: `tests/main/files/full.rs`, and the profile `full-disk` of the simulation.

use std::time::Duration;

use windlass_core::refusal::Refusal;
use windlass_core::time::{Now, Steady};

use super::super::journal::Full;
use super::JournalRecords;
use crate::store::ledger::Need;

/// Room that is kept back when the disk is full, so that running work can be settled. A store with
/// segments of a fixed size keeps no more than a sixteenth of one.
const RESERVE: u64 = 256 << 10;

/// How long to wait before a full disk is asked for space again.
pub(in crate::store::file) const ASK_AGAIN: Duration = Duration::from_millis(200);

/// How long to wait before a spare file is made in advance again, after that has failed: each try
/// may fill the disk before it fails.
const SPARE_AGAIN: Duration = Duration::from_secs(5);

/// What is known of the room on the disk.
#[derive(Debug)]
pub(in crate::store::file) struct Room {
    pub(in crate::store::file) reserve: u64,
    /// The disk had no room when it was last asked.
    pub(in crate::store::file) full: bool,
    ask_again_at: Steady,
    spare_again_at: Steady,
}

impl Room {
    /// For segments of this size, if it is fixed.
    pub(in crate::store::file) fn new(segment_bytes: Option<u32>) -> Self {
        Self {
            reserve: segment_bytes.map_or(RESERVE, |bytes| RESERVE.min(u64::from(bytes) / 16)),
            full: false,
            ask_again_at: Steady::default(),
            spare_again_at: Steady::default(),
        }
    }

    /// Whether a spare file may be made in advance now.
    pub(in crate::store::file) fn may_make_spare(&self, now: Now) -> bool {
        now.steady >= self.spare_again_at
    }

    /// A spare file could not be made in advance.
    pub(in crate::store::file) fn no_spare(&mut self, now: Now) {
        self.full = true;
        self.spare_again_at = now.steady + SPARE_AGAIN;
    }
}

impl JournalRecords {
    pub(super) fn make_room_for(&mut self, need: Need, now: Now) -> Result<(), Refusal> {
        let (bytes, largest) = match need {
            Need::Growth(size) => (size.all + self.room.reserve, size.largest),
            Need::Progress(size) => (size.all + 4_096, size.largest),
        };
        let largest = usize::try_from(largest).unwrap_or(usize::MAX);
        let spares = self.journal.spare_count();
        while self.journal.room() < bytes || !self.journal.fits(largest) {
            let full = |why: String| Refusal::StoreFull { why };
            if now.steady < self.room.ask_again_at {
                return Err(full("the disk is full".to_string()));
            }
            // First for what has been decided already and waits to be written.
            let waited = !self.journal.has_files();
            let made = if waited {
                self.journal.allocate_files()
            } else {
                self.journal.make_spare(largest)
            };
            self.room.full = made.is_err();
            if let Err(why) = made {
                self.fail_if_permanent(waited, &why);
                self.room.ask_again_at = now.steady + ASK_AGAIN;
                // The call is refused, so what was allocated for it goes back to the disk
                // (`a_batch_that_is_refused_gives_back_the_room_that_was_made_for_it`).
                self.journal.drop_spares(spares);
                return Err(full(why.0.to_string()));
            }
        }
        Ok(())
    }

    /// Asks the disk again for the room that a commit waits for, unless that was done just now.
    /// Returns whether there is enough.
    pub(in crate::store::file) fn make_room_for_commit(&mut self, now: Now) -> bool {
        if now.steady < self.room.ask_again_at {
            return false;
        }
        let allocated = self.journal.allocate_files();
        self.room.full = allocated.is_err();
        if let Err(full) = &allocated {
            self.fail_if_permanent(true, full);
            self.room.ask_again_at = now.steady + ASK_AGAIN;
        }
        allocated.is_ok()
    }

    /// Gives up if callers wait for room that will not come: a disk that fails is not full.
    pub(in crate::store::file) fn fail_if_permanent(&mut self, waited_for: bool, full: &Full) {
        if waited_for && !full.may_pass() {
            self.fail(format!("a segment could not be made ({})", full.0));
        }
    }
}
