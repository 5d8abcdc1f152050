//! The bytes of one file: what a reader sees, and what the platter holds.
//!
//! A sector is written whole or not at all, from the memory of the system, at any moment between
//! the write and the sync. So after a power loss each sector holds what it held at the last sync
//! or what any of the writes since then made of it, independently of every other sector.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::random::Random;

/// Bytes that reach the platter together.
pub(super) const SECTOR: usize = 512;

/// What becomes of writes that were not synced when the power is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// All of them had reached the platter.
    Keep,
    /// None of them had.
    Drop,
    /// Some sectors of each had.
    Tear,
    /// Each is kept, dropped or torn.
    Mix,
}

impl Loss {
    /// The three that every crash point is tried with.
    pub const PLAIN: [Loss; 3] = [Loss::Keep, Loss::Drop, Loss::Tear];
}

/// How much of what was unsynced a power loss took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wreck {
    /// Writes of which every sector is gone.
    pub dropped: usize,
    /// Writes of which some sectors are gone and some are not.
    pub torn: usize,
    /// Writes that are there.
    pub kept: usize,
}

#[derive(Clone, Debug)]
struct Dirty {
    at: usize,
    old: Vec<u8>,
}

impl Dirty {
    fn sectors(&self) -> Range<usize> {
        sectors(self.at, self.old.len())
    }
}

fn sectors(at: usize, length: usize) -> Range<usize> {
    at / SECTOR..(at + length).div_ceil(SECTOR)
}

/// See the module documentation.
#[derive(Clone, Debug)]
pub(super) struct Content {
    /// What a reader sees.
    pub(super) now: Vec<u8>,
    /// What the platter holds of each sector that may differ from that.
    platter: BTreeMap<usize, Box<[u8]>>,
    /// Writes that were not synced, with the bytes they replaced.
    dirty: Vec<Dirty>,
}

impl Content {
    pub(super) fn zeros(bytes: usize) -> Self {
        Self { now: vec![0; bytes], platter: BTreeMap::new(), dirty: Vec::new() }
    }

    pub(super) fn write(&mut self, bytes: &[u8], at: usize) {
        let Self { now, platter, dirty } = self;
        for sector in sectors(at, bytes.len()) {
            let from = sector * SECTOR;
            let end = (from + SECTOR).min(now.len());
            platter.entry(sector).or_insert_with(|| now[from..end].into());
        }
        let range = at..at + bytes.len();
        dirty.push(Dirty { at, old: now[range.clone()].to_vec() });
        now[range].copy_from_slice(bytes);
    }

    pub(super) fn is_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    pub(super) fn sync(&mut self) {
        for dirty in self.dirty.drain(..) {
            dirty.sectors().for_each(|sector| drop(self.platter.remove(&sector)));
        }
    }

    /// The system gives up on what it could not write: it is still seen, and the next sync says
    /// that all is well, but it is not on the platter.
    pub(super) fn give_up(&mut self) -> bool {
        let gave_up = self.is_dirty();
        self.dirty.clear();
        gave_up
    }

    /// The system forgets what it holds in memory and need not write: what it gave up on is gone.
    pub(super) fn evict(&mut self) {
        let needed: Vec<usize> = self.dirty.iter().flat_map(Dirty::sectors).collect();
        let platter = std::mem::take(&mut self.platter);
        for (sector, bytes) in platter {
            if needed.contains(&sector) {
                self.platter.insert(sector, bytes);
            } else {
                self.now[sector * SECTOR..][..bytes.len()].copy_from_slice(&bytes);
            }
        }
    }

    /// Everything reaches the platter in peace.
    pub(super) fn settle(&mut self) {
        self.dirty.clear();
        self.platter.clear();
    }

    /// Puts the bytes back to what the platter holds when the power is lost.
    pub(super) fn crash(&mut self, loss: Loss, random: &mut Random) -> Wreck {
        let mut wreck = Wreck::default();
        // Per sector, how many of the writes to the file had been made when it was last written.
        let mut reached: BTreeMap<usize, usize> = BTreeMap::new();
        for (number, dirty) in self.dirty.iter().enumerate() {
            let fate = match loss {
                Loss::Keep | Loss::Drop | Loss::Tear => loss,
                Loss::Mix => *random.pick(&Loss::PLAIN),
            };
            let (mut kept, mut lost) = (false, false);
            for sector in dirty.sectors() {
                let written = match fate {
                    Loss::Keep => true,
                    Loss::Drop => false,
                    Loss::Tear | Loss::Mix => random.coin(),
                };
                if written {
                    reached.insert(sector, number + 1);
                }
                (kept, lost) = (kept | written, lost | !written);
            }
            match (kept, lost) {
                (true, true) => wreck.torn += 1,
                (false, true) => wreck.dropped += 1,
                (_, false) => wreck.kept += 1,
            }
        }
        self.undo(&reached);
        self.settle();
        wreck
    }

    fn undo(&mut self, reached: &BTreeMap<usize, usize>) {
        let until = |sector: usize| reached.get(&sector).copied().unwrap_or(0);
        for (number, dirty) in self.dirty.iter().enumerate().rev() {
            for sector in dirty.sectors().filter(|sector| until(*sector) <= number) {
                let from = dirty.at.max(sector * SECTOR);
                let end = (dirty.at + dirty.old.len()).min((sector + 1) * SECTOR);
                self.now[from..end].copy_from_slice(&dirty.old[from - dirty.at..end - dirty.at]);
            }
        }
        for (sector, bytes) in self.platter.iter().filter(|(sector, _)| until(**sector) == 0) {
            self.now[sector * SECTOR..][..bytes.len()].copy_from_slice(bytes);
        }
    }
}
