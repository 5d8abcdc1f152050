//! Finding a job: by its id, and by its place in the order of acceptance.
//!
//! Answers: every kept job is in both indexes, so each byte of them counts once per job.
//! Why not simpler: a map from id to slot holds every id a second time. Here each index holds
//! slots alone, and the id or sequence is read from the entry.
//! Guarded by: `Ledger::check`, which the model test (`tests/model.rs`) calls after every command.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use hashbrown::HashTable;
use xxhash_rust::xxh3::xxh3_64;

use super::entries::Slab;
use crate::job::JobId;

/// Tables the ids are spread over. One table for all would hash every id again when it grows, while
/// every caller waits for the ledger.
const SHARDS: usize = 256;

/// Slots by job id. A hash table has no order that two runs share, so this one cannot be iterated:
/// no decision can depend on it.
#[derive(Debug)]
pub(super) struct Ids {
    shards: Vec<HashTable<u32>>,
}

impl Default for Ids {
    fn default() -> Self {
        Self { shards: (0..SHARDS).map(|_| HashTable::new()).collect() }
    }
}

impl Ids {
    pub(super) fn get(&self, job: JobId, entries: &Slab) -> Option<u32> {
        let hash = hash_of(job);
        self.shards[shard_of(hash)].find(hash, |slot| entries.get(*slot).id == job).copied()
    }

    /// Adds a job that is in its slot and not known yet.
    pub(super) fn insert(&mut self, job: JobId, slot: u32, entries: &Slab) {
        let hash = hash_of(job);
        let hash_again = |slot: &u32| hash_of(entries.get(*slot).id);
        self.shards[shard_of(hash)].insert_unique(hash, slot, hash_again);
    }

    /// Removes a job that is still in its slot.
    pub(super) fn remove(&mut self, job: JobId, entries: &Slab) {
        let hash = hash_of(job);
        let found =
            self.shards[shard_of(hash)].find_entry(hash, |slot| entries.get(*slot).id == job);
        if let Ok(found) = found {
            found.remove();
        }
    }

    pub(super) fn len(&self) -> usize {
        self.shards.iter().map(HashTable::len).sum()
    }
}

fn hash_of(job: JobId) -> u64 {
    xxh3_64(&job.to_bytes())
}

/// By bits that a table does not look at itself: it finds a bucket by the lowest bits and tells
/// entries apart by the highest seven. All ids of one shard agree in the bits used here.
fn shard_of(hash: u64) -> usize {
    (hash >> 40) as usize % SHARDS
}

/// Slots by sequence, in blocks: sequences are dense among young jobs, so a block of 64 costs less
/// than 64 entries of a map. A block leaves with its last job. Guarded by:
/// `jobs_are_listed_in_the_order_of_acceptance_whatever_has_gone` in `tests/restore.rs`.
#[derive(Debug, Default)]
pub(super) struct Sequences {
    blocks: BTreeMap<u64, Box<[u32; BLOCK]>>,
}

/// Sequences in one block.
const BLOCK: usize = 64;

/// A sequence whose job is gone.
const VACANT: u32 = u32::MAX;

impl Sequences {
    /// From all jobs, in the order of acceptance.
    pub(super) fn from_sorted(slots: &[(u64, u32)]) -> Self {
        let blocks = slots.chunk_by(|one, next| number_of(one.0) == number_of(next.0));
        let blocks = blocks.map(|jobs| {
            let mut block = Box::new([VACANT; BLOCK]);
            jobs.iter().for_each(|(sequence, slot)| block[place_of(*sequence)] = *slot);
            (number_of(jobs[0].0), block)
        });
        Self { blocks: blocks.collect() }
    }

    pub(super) fn insert(&mut self, sequence: u64, slot: u32) {
        let block = self.blocks.entry(number_of(sequence));
        block.or_insert_with(|| Box::new([VACANT; BLOCK]))[place_of(sequence)] = slot;
    }

    pub(super) fn remove(&mut self, sequence: u64) {
        let Some(block) = self.blocks.get_mut(&number_of(sequence)) else { return };
        block[place_of(sequence)] = VACANT;
        if block.iter().all(|slot| *slot == VACANT) {
            self.blocks.remove(&number_of(sequence));
        }
    }

    pub(super) fn get(&self, sequence: u64) -> Option<u32> {
        let slot = self.blocks.get(&number_of(sequence))?[place_of(sequence)];
        (slot != VACANT).then_some(slot)
    }

    /// The slots of all sequences below this one, the last accepted first.
    pub(super) fn before(&self, sequence: u64) -> impl Iterator<Item = u32> + '_ {
        let blocks = self.blocks.range(..=number_of(sequence)).rev();
        blocks.flat_map(move |(number, block)| {
            let below = if *number == number_of(sequence) { place_of(sequence) } else { BLOCK };
            block[..below].iter().rev().copied().filter(|slot| *slot != VACANT)
        })
    }

    /// The slots of this sequence and all above it, the first accepted first.
    pub(super) fn starting_at(&self, sequence: u64) -> impl Iterator<Item = u32> + '_ {
        let blocks = self.blocks.range(number_of(sequence)..);
        blocks.flat_map(move |(number, block)| {
            let from = if *number == number_of(sequence) { place_of(sequence) } else { 0 };
            block[from..].iter().copied().filter(|slot| *slot != VACANT)
        })
    }

    pub(super) fn len(&self) -> usize {
        let occupied = |block: &[u32; BLOCK]| block.iter().filter(|slot| **slot != VACANT).count();
        self.blocks.values().map(|block| occupied(block)).sum()
    }
}

fn number_of(sequence: u64) -> u64 {
    sequence / BLOCK as u64
}

fn place_of(sequence: u64) -> usize {
    (sequence % BLOCK as u64) as usize
}
