//! What happens is counted here, and what was counted is handed over as changes to persist.
//!
//! Answers: a total changes with almost every command.
//! Why not simpler: as one of its changes, each command would write all its totals. So a store asks
//! once per commit for those that differ from what it has ([`Ledger::drain_totals`]).
//! Guarded by: `a_count_is_handed_over_once_and_not_again_with_the_settings` in `tests/restore.rs`,
//! and the crash points in `windlass-sim`.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use super::Ledger;
use crate::record::{Change, Totals};
use crate::time::Timestamp;

/// Lines and queues whose counters changed since they were last handed over.
#[derive(Debug, Default)]
pub(super) struct ChangedCounters {
    lines: Vec<u32>,
    queues: Vec<u32>,
    lanes: BTreeSet<(u32, u32)>,
}

impl Ledger {
    /// Counts something that happened to a job: in its line and, if its queue has lanes, its lane.
    pub(super) fn totals(&mut self, slot: u32, count: impl Fn(&mut Totals)) {
        let line = self.entry(slot).line;
        let entries = &mut self.lines[line as usize];
        if !core::mem::replace(&mut entries.uncollected, true) {
            self.uncollected.lines.push(line);
        }
        count(&mut entries.totals);
        let queue = entries.queue;
        let lanes = self.queues[queue as usize].settings.lanes;
        if let (Some(_), Some(spot)) = (lanes, self.spot(slot)) {
            // A queue has fewer lanes than that.
            let lane = u32::try_from(spot.lane).unwrap_or(u32::MAX);
            count(self.queues[queue as usize].lane_totals.entry(lane).or_default());
            self.uncollected.lanes.insert((queue, lane));
        }
    }

    pub(super) fn count_dropped(&mut self, queue: u32) {
        let entries = &mut self.queues[queue as usize];
        entries.dead_letters_dropped += 1;
        if !core::mem::replace(&mut entries.uncollected, true) {
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

    /// What was counted since the last call, to be persisted: a [`Change::QueueKind`] for each line
    /// whose totals changed, and a [`Change::Queue`] for each queue that dropped dead letters and
    /// of which no command has told since.
    ///
    /// Costs nothing if nothing was counted.
    pub fn drain_totals(&mut self) -> Vec<Change> {
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
        for (queue, lane) in core::mem::take(&mut self.uncollected.lanes) {
            changes.push(self.lane_as_it_is(queue, lane));
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
        let lanes = self.queue_ids.values().flat_map(|queue| {
            let lanes = self.queues[*queue as usize].lane_totals.keys();
            lanes.map(|lane| self.lane_as_it_is(*queue, *lane))
        });
        queues.chain(rates).chain(lines).chain(lanes).collect()
    }

    fn lane_as_it_is(&self, queue: u32, lane: u32) -> Change {
        let entries = &self.queues[queue as usize];
        let totals = entries.lane_totals.get(&lane).copied().unwrap_or_default();
        Change::Lane { queue: entries.name.clone(), lane, totals }
    }

    fn queue_as_it_is(&self, queue: u32) -> Change {
        let entries = &self.queues[queue as usize];
        Change::Queue {
            queue: entries.name.clone(),
            settings: entries.settings.clone(),
            dead_letters_dropped: entries.dead_letters_dropped,
        }
    }

    fn line_as_it_is(&self, line: u32) -> Change {
        let line = &self.lines[line as usize];
        Change::QueueKind {
            queue: self.queues[line.queue as usize].name.clone(),
            kind: self.kinds[line.kind as usize].name.clone(),
            totals: line.totals,
        }
    }
}
