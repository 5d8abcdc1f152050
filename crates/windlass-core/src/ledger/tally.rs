//! What happens is counted here, and what was counted is handed over as changes to persist.
//!
//! A total changes with almost every command, so it is not a change of each: whoever keeps them
//! asks now and then for those that differ from what it has.

use alloc::vec::Vec;

use super::Ledger;
use crate::record::{Change, Totals};
use crate::time::Timestamp;

/// Lines and queues whose counters changed since they were last handed over.
#[derive(Debug, Default)]
pub(super) struct Uncollected {
    lines: Vec<u32>,
    queues: Vec<u32>,
}

impl Ledger {
    /// The totals of a line, to be changed.
    pub(super) fn total(&mut self, line: u32) -> &mut Totals {
        let book = &mut self.lines[line as usize];
        if !core::mem::replace(&mut book.uncollected, true) {
            self.uncollected.lines.push(line);
        }
        &mut book.totals
    }

    pub(super) fn count_dropped(&mut self, queue: u32) {
        let book = &mut self.queues[queue as usize];
        book.dead_letters_dropped += 1;
        if !core::mem::replace(&mut book.uncollected, true) {
            self.uncollected.queues.push(queue);
        }
    }

    /// What is now true of a queue, to be persisted: nothing of it is left to hand over.
    pub(super) fn queue_change(&mut self, queue: u32) -> Change {
        if core::mem::take(&mut self.queues[queue as usize].uncollected) {
            self.uncollected.queues.retain(|other| *other != queue);
        }
        self.queue_as_it_is(queue)
    }

    /// What was counted since the last call, to be persisted: a [`Change::Line`] for each line
    /// whose totals changed, and a [`Change::Queue`] for each queue that dropped dead letters and
    /// of which no command has told since.
    ///
    /// Costs nothing if nothing was counted.
    pub fn drain_lines(&mut self) -> Vec<Change> {
        let lines = core::mem::take(&mut self.uncollected.lines);
        let queues = core::mem::take(&mut self.uncollected.queues);
        let mut changes = Vec::with_capacity(queues.len() + lines.len());
        for queue in queues {
            self.queues[queue as usize].uncollected = false;
            changes.push(self.queue_as_it_is(queue));
        }
        for line in lines {
            self.lines[line as usize].uncollected = false;
            changes.push(self.line_as_it_is(line));
        }
        changes
    }

    /// Everything to be persisted that is not about one job: settings, rate limits and totals.
    pub fn image(&self) -> Vec<Change> {
        let queues = self.queue_ids.values().map(|queue| self.queue_as_it_is(*queue));
        let used = |full_at: Timestamp| full_at > Timestamp::from_micros(i64::MIN);
        let rates = self.kind_ids.values().map(|kind| &self.kinds[*kind as usize]);
        let rates = rates.filter(|kind| used(kind.full_at));
        let rates =
            rates.map(|kind| Change::Rate { kind: kind.name.clone(), full_at: kind.full_at });
        let lines = self.line_ids.values().map(|line| self.line_as_it_is(*line));
        queues.chain(rates).chain(lines).collect()
    }

    fn queue_as_it_is(&self, queue: u32) -> Change {
        let book = &self.queues[queue as usize];
        Change::Queue {
            queue: book.name.clone(),
            settings: book.settings.clone(),
            dead_letters_dropped: book.dead_letters_dropped,
        }
    }

    fn line_as_it_is(&self, line: u32) -> Change {
        let line = &self.lines[line as usize];
        Change::Line {
            queue: self.queues[line.queue as usize].name.clone(),
            kind: self.kinds[line.kind as usize].name.clone(),
            totals: line.totals,
        }
    }
}
