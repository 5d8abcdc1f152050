//! Lanes: jobs that run one at a time, and in order where they share a key.
//!
//! A queue may have a number of lanes; each job with a [`Lane`] belongs to the one its partition
//! falls into. A queue without lanes gives every partition a lane of its own. Which lane that is
//! follows from the job and the queue's settings alone, so the number of lanes can change under
//! load: jobs of one key stay in one lane, whichever that is.
//!
//! Of a lane, at most one job is *offered*: it alone stands in the ready line of its kind, where
//! claims find it. Everything else here decides which one that is.
//!
//! Answers: a claim must not start two jobs of one lane, however many wait.
//! Why not simpler: if all ready jobs stood in the line, every claim would pass over those whose
//! lane is busy. With one offered job per lane a claim looks at nothing that it cannot take.
//! Guarded by: the model test (`tests/model.rs`), the lanes of the conformance suite
//! (`jobs_of_one_key_run_one_at_a_time_and_in_order`,
//! `the_number_of_lanes_changes_under_waiting_and_running_jobs`), and the planted bugs 09 and 42.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::Ledger;
use super::entries::{Phase, ReadyKey};
use super::ranked::Ranked;
use crate::job::{Lane, StateName};

/// The open jobs of one lane.
#[derive(Debug, Default)]
pub(super) struct LaneEntry {
    /// Ready jobs that may be offered.
    pub(super) ready: Ranked<ReadyKey, u32>,
    /// Ready jobs that may not: a job of their key has started before and waits, for a retry or a
    /// snooze. It must finish first; other keys of the lane go on meanwhile.
    pub(super) parked: Ranked<ReadyKey, u32>,
    /// Those jobs that have started before and wait, by partition.
    pub(super) held: BTreeMap<u64, u32>,
    /// How many of those are ready.
    pub(super) held_ready: usize,
    /// Jobs that run: one, or more just after the number of lanes was changed.
    pub(super) running: u64,
    /// Jobs that wait or run.
    pub(super) open: u64,
    /// The job that may start next: the line it stands in, and its place there.
    pub(super) offered: Option<(u32, ReadyKey)>,
}

/// Where a job with a lane belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LaneAddress {
    pub(super) queue: u32,
    pub(super) lane: u64,
    pub(super) partition: u64,
}

impl Ledger {
    /// The lane of a job, as its queue is configured now.
    pub(super) fn spot(&self, slot: u32) -> Option<LaneAddress> {
        let entry = self.entry(slot);
        let partition = entry.extras.as_ref()?.partition?.number;
        let queue = self.lines[entry.line as usize].queue;
        let lanes = self.queues[queue as usize].settings.lanes;
        let lane = lanes.map_or(partition, |lanes| Lane::of(partition, lanes).into());
        Some(LaneAddress { queue, lane, partition })
    }

    /// Takes an open job out of its lane, as it stands. [`Ledger::offer`] must follow.
    pub(super) fn leave_lane(&mut self, slot: u32) {
        let Some(spot) = self.spot(slot) else { return };
        let (phase, begun) = (self.entry(slot).phase, self.entry(slot).begun());
        if phase.name().is_terminal() {
            return;
        }
        let key = self.waiting_key(slot, phase);
        let Some(lane) = self.lanes.get_mut(&(spot.queue, spot.lane)) else { return };
        lane.open -= 1;
        lane.running -= u64::from(phase.name() == StateName::Running);
        if let Some(key) = key {
            lane.ready.remove(&key);
            lane.parked.remove(&key);
        }
        if begun && phase.name().is_waiting() {
            lane.held.remove(&spot.partition);
            lane.held_ready -= usize::from(key.is_some());
            let (freed, parked): (Vec<_>, Vec<_>) = lane
                .parked
                .take_all()
                .partition(|(_, other)| self.partition_of(*other) == Some(spot.partition));
            let lane = self.lanes.entry((spot.queue, spot.lane)).or_default();
            lane.ready.extend(freed);
            lane.parked.extend(parked);
        }
    }

    /// Puts an open job into its lane, as it stands. [`Ledger::offer`] must follow.
    pub(super) fn enter_lane(&mut self, slot: u32) {
        let Some(spot) = self.spot(slot) else { return };
        let (phase, begun) = (self.entry(slot).phase, self.entry(slot).begun());
        if phase.name().is_terminal() {
            return;
        }
        let key = self.waiting_key(slot, phase);
        let lane = self.lanes.entry((spot.queue, spot.lane)).or_default();
        lane.open += 1;
        lane.running += u64::from(phase.name() == StateName::Running);
        if let Some(key) = key {
            let behind = !begun && lane.held.contains_key(&spot.partition);
            let place = if behind { &mut lane.parked } else { &mut lane.ready };
            place.insert(key, slot);
        }
        if begun && phase.name().is_waiting() {
            lane.held.insert(spot.partition, slot);
            lane.held_ready += usize::from(key.is_some());
            let (behind, ready): (Vec<_>, Vec<_>) =
                lane.ready.take_all().partition(|(_, other)| {
                    *other != slot && self.partition_of(*other) == Some(spot.partition)
                });
            let lane = self.lanes.entry((spot.queue, spot.lane)).or_default();
            lane.ready.extend(ready);
            lane.parked.extend(behind);
        }
    }

    fn waiting_key(&self, slot: u32, phase: Phase) -> Option<ReadyKey> {
        match phase {
            Phase::Ready { since } => Some(self.ready_key(slot, since)),
            Phase::Blocked { .. }
            | Phase::Scheduled { .. }
            | Phase::Running { .. }
            | Phase::Completed { .. }
            | Phase::Dead { .. }
            | Phase::Cancelled { .. } => None,
        }
    }

    fn partition_of(&self, slot: u32) -> Option<u64> {
        Some(self.entry(slot).extras.as_ref()?.partition?.number)
    }

    /// Offers the job of a lane that may start next, and no other.
    pub(super) fn offer(&mut self, spot: LaneAddress) {
        let Some(lane) = self.lanes.get(&(spot.queue, spot.lane)) else { return };
        let may_start = lane.running == 0 && !self.is_paused(spot.queue, spot.lane);
        let next = lane.ready.first_key_value().filter(|_| may_start);
        let next = next.map(|(key, slot)| (*slot, (self.entry(*slot).line, *key)));
        let (offered, open) = (lane.offered, lane.open);
        if offered != next.map(|(_, place)| place) {
            if let Some((line, key)) = offered {
                self.lines[line as usize].ready.remove(&key);
            }
            if let Some((slot, (line, key))) = next {
                self.lines[line as usize].ready.insert(key, slot);
                self.offering.push(spot.queue);
            }
            if let Some(lane) = self.lanes.get_mut(&(spot.queue, spot.lane)) {
                lane.offered = next.map(|(_, place)| place);
            }
        }
        if open == 0 {
            self.lanes.remove(&(spot.queue, spot.lane));
            self.emptied_lanes.push((spot.queue, spot.lane));
        }
    }

    /// Whether no job of this lane may start.
    pub(super) fn is_paused(&self, queue: u32, lane: u64) -> bool {
        let settings = &self.queues[queue as usize].settings;
        let number = u32::try_from(lane).unwrap_or(u32::MAX);
        settings.lanes.is_some() && settings.paused_lanes.contains(&number)
    }

    /// Takes all jobs of a queue out of their lanes, before the lanes or their order change.
    pub(super) fn close_lanes(&mut self, queue: u32) -> Vec<u32> {
        let books: Vec<u64> =
            self.lanes.range((queue, 0)..=(queue, u64::MAX)).map(|((_, lane), _)| *lane).collect();
        for lane in books {
            let offered = self.lanes.remove(&(queue, lane)).and_then(|entries| entries.offered);
            if let Some((line, key)) = offered {
                self.lines[line as usize].ready.remove(&key);
            }
        }
        let in_queue = self.sequences.starting_at(0).filter(|slot| {
            let entry = self.entry(*slot);
            self.lines[entry.line as usize].queue == queue && !entry.phase.name().is_terminal()
        });
        in_queue.filter(|slot| self.partition_of(*slot).is_some()).collect()
    }

    /// Puts jobs into their lanes, in whatever order they come.
    pub(super) fn open_lanes(&mut self, jobs: &[u32]) {
        jobs.iter().for_each(|slot| self.enter_lane(*slot));
        for slot in jobs {
            if let Some(spot) = self.spot(*slot) {
                self.offer(spot);
            }
        }
    }

    /// How many jobs of its lane are ahead of a waiting job: those that have started and wait to go
    /// on, and the ready ones that come before it, or all if it is not ready itself.
    pub(super) fn position(&self, slot: u32) -> u64 {
        let Some(spot) = self.spot(slot) else { return 0 };
        let Some(lane) = self.lanes.get(&(spot.queue, spot.lane)) else { return 0 };
        let key = self.waiting_key(slot, self.entry(slot).phase);
        let holds = lane.held.get(&spot.partition) == Some(&slot);
        let held = lane.held.len() - lane.held_ready - usize::from(holds && key.is_none());
        let ready = match key {
            None => lane.ready.len() + lane.parked.len(),
            Some(key) => lane.ready.ahead(&key) + lane.parked.ahead(&key),
        };
        (held + ready) as u64
    }

    /// Waiting and running jobs of a lane.
    pub(super) fn lane_load(&self, queue: u32, lane: u64) -> (u64, u64) {
        let lane = self.lanes.get(&(queue, lane));
        lane.map_or((0, 0), |lane| (lane.open - lane.running, lane.running))
    }
}
