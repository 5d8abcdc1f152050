//! Jobs as the ledger knows them, without what only their records hold: what a checkpoint is made
//! of.
//!
//! Answers: an opening that reads every record reads every payload that was ever kept.
//! Why not simpler: the ledger needs little of a record. A store reads these entries when it opens,
//! and a record only when someone asks for it; a million waiting jobs open in 1.2 s (README.md).
//! Guarded by: `an_opening_from_a_checkpoint_finds_what_reading_everything_finds` in
//! `windlass/tests/main/files/space.rs`.

use alloc::string::String;
use alloc::vec::Vec;

use super::entries::{Entry, HeldKey, Partition, RareFields};
use super::steps::StepMark;
use super::{Ledger, Restore};
use crate::job::{Dependency, JobId, JobStatus, Priority, UniqueScope};
use crate::name::Name;
use crate::object::Address;
use crate::record::RecordLocation;
use crate::time::Timestamp;

/// One job, without its record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointEntry {
    /// Its id.
    pub id: JobId,
    /// Its kind.
    pub kind: Name,
    /// Its queue.
    pub queue: Name,
    /// Its place in the order of acceptance.
    pub sequence: u64,
    /// Where it stands.
    pub status: JobStatus,
    /// Tells a repeated enqueue from a reused id.
    pub fingerprint: u64,
    /// Its place among ready jobs.
    pub priority: Priority,
    /// Total runs its producer asked for; 0 leaves it to the worker's kind.
    pub max_attempts: u32,
    /// Jobs that must complete first.
    pub depends_on: Vec<Dependency>,
    /// Those of them that have.
    pub met: Vec<JobId>,
    /// Its unique key, the scope of that, and until when it is held.
    pub unique: Option<(String, UniqueScope, Option<Timestamp>)>,
    /// When it is cancelled unless it has started.
    pub expires_at: Option<Timestamp>,
    /// What keeps its order within a lane.
    pub partition: Option<Partition>,
    /// The object it is bound to.
    pub object: Option<Address>,
    /// Its finished steps.
    pub steps: Vec<StepMark>,
    /// Where its record is kept.
    pub kept: RecordLocation,
}

impl Ledger {
    /// Entries of the jobs accepted after this sequence, in order.
    pub fn checkpoint_entries_after(
        &self,
        sequence: u64,
    ) -> impl Iterator<Item = CheckpointEntry> + '_ {
        self.summaries_after(sequence).filter_map(|summary| {
            let slot = self.find(summary.id)?;
            Some(self.checkpoint_entry(slot))
        })
    }

    fn checkpoint_entry(&self, slot: u32) -> CheckpointEntry {
        let entry = self.entry(slot);
        let line = &self.lines[entry.line as usize];
        let extras = entry.extras.as_ref();
        let is_met = |on: &JobId| self.edges.get(&(*on, entry.id)).is_some_and(|edge| edge.met);
        let unique = extras.and_then(|extras| extras.unique.as_ref());
        CheckpointEntry {
            id: entry.id,
            kind: self.kinds[line.kind as usize].name.clone(),
            queue: self.queues[line.queue as usize].name.clone(),
            sequence: entry.sequence,
            status: self.status(slot),
            fingerprint: entry.fingerprint,
            priority: entry.priority,
            max_attempts: entry.max_attempts,
            depends_on: entry.dependencies().copied().collect(),
            met: entry.dependencies().map(|dependency| dependency.on).filter(is_met).collect(),
            unique: unique.map(|unique| (unique.key.as_ref().into(), unique.scope, unique.until)),
            expires_at: extras.and_then(|extras| extras.expires_at),
            partition: extras.and_then(|extras| extras.partition),
            object: extras.and_then(|extras| self.objects.address(extras.object?)),
            steps: entry.steps().to_vec(),
            kept: entry.kept(),
        }
    }
}

impl Restore {
    /// Takes over a checkpoint entry: the job is now like this in every respect.
    pub fn checkpoint_entry(&mut self, checkpoint_entry: &CheckpointEntry) {
        let unique = checkpoint_entry.unique.as_ref().map(|(key, scope, until)| HeldKey {
            key: key.as_str().into(),
            scope: *scope,
            until: *until,
        });
        let extras = RareFields {
            depends_on: checkpoint_entry.depends_on.clone().into_boxed_slice(),
            unique,
            expires_at: checkpoint_entry.expires_at,
            partition: checkpoint_entry.partition,
            object: checkpoint_entry
                .object
                .as_ref()
                .map(|address| self.ledger.objects.number(address)),
            ..RareFields::default()
        };
        let mut entry = Entry {
            id: checkpoint_entry.id,
            fingerprint: checkpoint_entry.fingerprint,
            sequence: checkpoint_entry.sequence,
            extras: extras.boxed(),
            line: self.line(&checkpoint_entry.queue, &checkpoint_entry.kind),
            priority: checkpoint_entry.priority,
            max_attempts: checkpoint_entry.max_attempts,
            ..Entry::blank()
        };
        entry.set(&checkpoint_entry.status);
        for mark in &checkpoint_entry.steps {
            entry.add_step(*mark);
        }
        let slot = self.write_entry(entry, &checkpoint_entry.status);
        self.set_met(slot, &checkpoint_entry.met);
        self.keep(checkpoint_entry.id, checkpoint_entry.kept);
    }
}
