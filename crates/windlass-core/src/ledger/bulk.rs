//! Changes of many jobs, in chunks: each is one commit of bounded size, and others have their say
//! between two of them.
//!
//! A bulk change is about the jobs that were accepted before it began, and goes through them by
//! acceptance. Nothing of its progress is kept: a crash leaves a part done, and whoever makes the
//! change again finds the rest.

use alloc::vec::Vec;

use super::{Command, Effects, Ledger};
use crate::audit::{Actor, AuditNote};
use crate::event::{EventKind, Subject};
use crate::job::{CancelReason, JobId};
use crate::limits;
use crate::name::Name;
use crate::refusal::Refusal;

/// How far a bulk change has come, in the order of acceptance. The default is its beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BulkProgress {
    /// All jobs up to this one were looked at.
    pub after: u64,
    /// The last job that was accepted before the change began; `None` before it has.
    pub until: Option<u64>,
    /// Nothing is left to look at.
    pub done: bool,
}

impl BulkProgress {
    /// The last job the change is about: the last one there is, if it begins now.
    pub fn last(&mut self, ledger: &Ledger) -> u64 {
        *self.until.get_or_insert(ledger.next_sequence - 1)
    }

    /// The change goes on with the job `next`, if there is one and it is about that.
    pub fn go_on_with(&mut self, next: Option<u64>) {
        match next.filter(|next| self.until.is_none_or(|last| *next <= last)) {
            Some(next) => self.after = next.saturating_sub(1),
            None => self.done = true,
        }
    }
}

/// Call off waiting jobs of a queue: a chunk of them. What runs is left alone, counters are kept.
///
/// The queue is cleared when this was asked with the progress of the answer before, until that is
/// done. The last one tells of it.
#[derive(Clone, Debug)]
pub struct Clear {
    /// The queue.
    pub queue: Name,
    /// What the command before has answered; the default for the first.
    pub progress: ClearProgress,
    /// How many jobs to call off at most, without those that depend on them.
    pub limit: usize,
    /// Who does it; a chunk that calls off jobs then has an audit entry.
    pub by: Option<Actor>,
}

impl Clear {
    /// The first chunk of a queue.
    pub fn first(queue: Name, by: Option<Actor>) -> Self {
        Self { queue, progress: ClearProgress::default(), limit: limits::CHUNK_JOBS, by }
    }
}

/// How far the clearing of a queue has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClearProgress {
    /// What was called off so far.
    pub cleared: Cleared,
    /// Which jobs were looked at.
    pub bulk: BulkProgress,
}

/// What the clearing of a queue has called off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "wire", derive(serde::Serialize, serde::Deserialize))]
pub struct Cleared {
    /// Jobs of the queue that were called off.
    pub cleared: u64,
    /// Jobs of other queues that depended on them and followed, in the same commits. Those that
    /// follow later, because they are very many, are not counted.
    pub followed: u64,
}

impl Command for Clear {
    type Reply = ClearProgress;

    fn run(self, ledger: &mut Ledger, effects: &mut Effects) -> Result<ClearProgress, Refusal> {
        let Self { queue: name, mut progress, limit, by } = self;
        let Some(&queue) = ledger.queue_ids.get(&name) else {
            progress.bulk.done = true;
            return Ok(progress);
        };
        let before = ledger.cancelled_in_and_outside(queue);
        for job in ledger.waiting_in(queue, &mut progress.bulk, limit) {
            // A job that followed one cleared before it is no longer waiting; that is fine.
            let _ = ledger.cancel(job, CancelReason::Cleared, effects);
        }
        let after = ledger.cancelled_in_and_outside(queue);
        progress.cleared.cleared += after.0 - before.0;
        progress.cleared.followed += after.1 - before.1;
        let note = by.map(|by| AuditNote::of_clear(by, &name));
        if after.0 > before.0 {
            ledger.audit(note.as_ref(), after.0 - before.0, effects);
        }
        if progress.bulk.done {
            let jobs = progress.cleared.cleared;
            ledger.tell_of(Subject::Queue(name), EventKind::QueueCleared { jobs }, effects);
        }
        Ok(progress)
    }
}

impl Ledger {
    /// How many jobs were ever cancelled in a queue, and in all others.
    fn cancelled_in_and_outside(&self, queue: u32) -> (u64, u64) {
        let cancelled = |inside: bool| {
            let lines = self.lines.iter().filter(|line| (line.queue == queue) == inside);
            lines.map(|line| line.totals.cancelled).sum()
        };
        (cancelled(true), cancelled(false))
    }

    /// The next waiting jobs of a queue in the order of acceptance, found by looking at all jobs:
    /// clearing a queue costs what it clears anyway.
    fn waiting_in(&self, queue: u32, bulk: &mut BulkProgress, limit: usize) -> Vec<JobId> {
        let last = bulk.last(self);
        let mut waiting = Vec::new();
        let first = bulk.after.saturating_add(1);
        for (looked_at, slot) in self.sequences.starting_at(first).enumerate() {
            let entry = self.entry(slot);
            let enough = waiting.len() == limit.max(1) || looked_at == limits::PAGE_SCAN;
            if enough || entry.sequence > last {
                bulk.go_on_with(Some(entry.sequence));
                return waiting;
            }
            let inside = self.lines[entry.line as usize].queue == queue;
            if inside && entry.phase.name().is_waiting() {
                waiting.push(entry.id);
            }
        }
        bulk.go_on_with(None);
        waiting
    }
}
