//! The invariants of the ledger, checked by a full scan: for tests and for `doctor`.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::Ledger;
use super::entries::{Entry, Phase};
use super::graph::is_owed;
use super::index::IndexPlace;
use super::lanes::LaneEntry;
use crate::job::{JobId, Priority, StateName};

impl Ledger {
    /// Everything that is wrong with the ledger, in words; empty if nothing is.
    ///
    /// Counters and indexes are compared with what a scan of all jobs finds, so its cost grows
    /// with the ledger.
    pub fn check(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        let mut states: BTreeMap<u32, [u64; 7]> = BTreeMap::new();
        let (mut indexed, mut kept_bytes) = (0, self.objects.weight());
        let slots = self.slots_by_id();
        for slot in &slots {
            let entry = self.entry(*slot);
            let id = entry.id;
            if self.find(id) != Some(*slot) || self.sequences.get(entry.sequence) != Some(*slot) {
                wrong.push(format!("job {id} is not found by its id and sequence"));
            }
            kept_bytes += u64::from(entry.weight);
            states.entry(entry.line).or_default()[entry.phase.name() as usize] += 1;
            indexed += usize::from(!matches!(entry.phase, Phase::Blocked { .. }));
            if let Err(problem) = self.check_place(*slot) {
                wrong.push(format!("job {id} is {}, but {problem}", entry.phase.name()));
            }
            self.check_edges(*slot, &mut wrong);
            self.check_key(*slot, &mut wrong);
        }
        if self.ids.len() != slots.len() || self.sequences.len() != slots.len() {
            let (ids, sequences, jobs) = (self.ids.len(), self.sequences.len(), slots.len());
            wrong.push(format!("{ids} ids and {sequences} sequences for {jobs} jobs"));
        }
        if self.kept_bytes != kept_bytes {
            let counted = self.kept_bytes;
            wrong.push(format!("records take {counted} bytes, a scan finds {kept_bytes}"));
        }
        self.check_counters(&states, &mut wrong);
        let ready: usize = self.lines.iter().map(|line| line.ready.len()).sum();
        let dead: usize = self.queues.iter().map(|queue| queue.dead.len()).sum();
        let held_back = self.count_held_back();
        let found = self.timers.len()
            + ready
            + self.count_unoffered()
            + self.leases.len()
            + self.finished.len()
            + self.withheld.len()
            + dead
            + held_back;
        if found != indexed {
            wrong.push(format!("indexes hold {found} entries for {indexed} jobs"));
        }
        let held = |first, last| self.leases.range(first..=last).count();
        if !self.requests.check(held) {
            wrong.push("claims that can be repeated are not those whose leases are held".into());
        }
        self.check_lanes(&mut wrong);
        self.check_objects(&mut wrong);
        self.check_dependents(&mut wrong);
        for (key, hold) in &self.keys {
            if self.find(hold.job).is_none() {
                wrong.push(format!("key {:?} is held by {}, which is gone", key.key, hold.job));
            }
        }
        wrong
    }

    /// Every edge against the jobs at both of its ends.
    fn check_dependents(&self, wrong: &mut Vec<String>) {
        for ((on, dependent), edge) in &self.edges {
            let open = |slot: u32| !self.entry(slot).phase.name().is_terminal();
            if !self.find(*dependent).is_some_and(open) {
                wrong.push(format!("edge from {dependent} to {on}, but it is no longer open"));
            }
            match self.find(*on).map(|slot| self.entry(slot)) {
                None if !edge.met => {
                    wrong.push(format!("job {dependent} waits for {on}, which is gone"));
                }
                Some(entry) if is_owed(entry.phase.name(), edge) => {
                    let owing = self.owing.get(&entry.sequence);
                    if owing.is_none_or(|owing| owing.next > *dependent) {
                        wrong.push(format!("job {dependent} will not learn that {on} has ended"));
                    }
                }
                Some(_) | None => {}
            }
        }
    }

    /// Ready jobs that stand in their lane and in no line.
    fn count_unoffered(&self) -> usize {
        let unoffered = |lane: &LaneEntry| {
            lane.ready.len() + lane.parked.len() - usize::from(lane.offered.is_some())
        };
        self.lanes.values().map(unoffered).sum()
    }

    /// Every lane against the jobs that belong to it, one by one.
    fn check_lanes(&self, wrong: &mut Vec<String>) {
        let mut found: BTreeMap<(u32, u64), Vec<u32>> = BTreeMap::new();
        for (slot, entry) in self.entries.iter() {
            if let Some(spot) = self.spot(slot).filter(|_| !entry.phase.name().is_terminal()) {
                found.entry((spot.queue, spot.lane)).or_default().push(slot);
            }
        }
        if !found.keys().eq(self.lanes.keys()) {
            let (kept, found) = (self.lanes.len(), found.len());
            wrong.push(format!("{kept} lanes are kept, a scan finds {found} with jobs"));
            return;
        }
        for (key, lane) in &self.lanes {
            let paused = self.is_paused(key.0, key.1);
            if let Err(problem) = self.check_lane(lane, &found[key], paused) {
                let queue = &self.queues[key.0 as usize].name;
                wrong.push(format!("lane {} of {queue}: {problem}", key.1));
            }
        }
    }

    fn check_lane(&self, lane: &LaneEntry, jobs: &[u32], paused: bool) -> Result<(), String> {
        let is = |slot: u32, state: StateName| self.entry(slot).phase.name() == state;
        let running = jobs.iter().filter(|slot| is(**slot, StateName::Running)).count();
        if (lane.open, lane.running) != (jobs.len() as u64, running as u64) {
            return Err(format!("{lane:?} for {} jobs, {running} of them running", jobs.len()));
        }
        for slot in jobs {
            let (entry, spot) = (self.entry(*slot), self.spot(*slot));
            let holder = spot.and_then(|spot| lane.held.get(&spot.partition));
            let holds = entry.begun() && entry.phase.name().is_waiting();
            if holds != (holder == Some(slot)) {
                return Err(format!("{} holds its key: {holds}, but not there", entry.id));
            }
            let Phase::Ready { since } = entry.phase else { continue };
            let key = self.ready_key(*slot, since);
            let place = if holder.is_some_and(|holder| holder != slot) {
                &lane.parked
            } else {
                &lane.ready
            };
            if place.get(&key) != Some(slot) {
                return Err(format!("{} stands in the wrong place", entry.id));
            }
        }
        let next = lane.ready.first_key_value().filter(|_| running == 0 && !paused);
        let next = next.map(|(key, slot)| (self.entry(*slot).line, *key));
        let in_line = |(line, key): &(u32, _)| self.lines[*line as usize].ready.contains_key(key);
        if next != lane.offered || !lane.offered.iter().all(in_line) {
            return Err(format!("{:?} is offered and {next:?} is next", lane.offered));
        }
        Ok(())
    }

    /// Finished jobs kept out of the purge index because an open job depends on them.
    fn count_held_back(&self) -> usize {
        let finished = self.entries.iter().filter(|(_, entry)| {
            matches!(entry.phase.name(), StateName::Completed | StateName::Cancelled)
                && self.edges_from(entry.id).next().is_some()
        });
        finished.count()
    }

    fn check_place(&self, slot: u32) -> Result<(), &'static str> {
        let entry = self.entry(slot);
        let line = &self.lines[entry.line as usize];
        let sequence = entry.sequence;
        let there = match self.place_of(slot) {
            IndexPlace::None | IndexPlace::Lane => true,
            IndexPlace::Timers(at) => self.timers.get(&(at, sequence)) == Some(&slot),
            IndexPlace::Ready(key) => line.ready.get(&key) == Some(&slot),
            IndexPlace::Leases(token) => self.leases.get(&token).is_some_and(|h| h.slot == slot),
            IndexPlace::Finished(at) => self.finished.contains(&(at, sequence, slot)),
            IndexPlace::Withheld(until) => self.withheld.contains(&(until, slot)),
            IndexPlace::Dead(at) => {
                self.queues[line.queue as usize].dead.contains(&(at, sequence, slot))
            }
        };
        if there { Ok(()) } else { Err("the index of that state does not hold it") }
    }

    fn check_edges(&self, slot: u32, wrong: &mut Vec<String>) {
        let entry = self.entry(slot);
        let id = entry.id;
        let unmet = entry
            .dependencies()
            .filter(|dependency| self.edges.get(&(dependency.on, id)).is_some_and(|e| !e.met))
            .count();
        match entry.phase {
            Phase::Blocked { unmet: counted, .. } => {
                if counted as usize != unmet {
                    wrong.push(format!("job {id} counts {counted} blockers and has {unmet}"));
                }
                if counted == 0 {
                    wrong.push(format!("job {id} is blocked by nothing"));
                }
            }
            Phase::Completed { .. } | Phase::Dead { .. } | Phase::Cancelled { .. } => {
                let linked = |on: JobId| self.edges.contains_key(&(on, id));
                if entry.dependencies().any(|dependency| linked(dependency.on)) {
                    wrong.push(format!("job {id} has finished and still holds on to others"));
                }
            }
            Phase::Scheduled { .. } | Phase::Ready { .. } | Phase::Running { .. } => {
                if unmet != 0 {
                    wrong.push(format!("job {id} is not blocked and waits for {unmet} jobs"));
                }
            }
        }
    }

    fn check_key(&self, slot: u32, wrong: &mut Vec<String>) {
        let entry = self.entry(slot);
        let Some(key) = self.key_of(slot) else { return };
        let held_by_us = self.keys.get(&key).is_some_and(|hold| hold.job == entry.id);
        if held_by_us && !entry.may_hold_key() {
            wrong.push(format!("job {} has finished and still holds its key", entry.id));
        }
    }

    fn check_counters(&self, states: &BTreeMap<u32, [u64; 7]>, wrong: &mut Vec<String>) {
        let mut waiting: BTreeMap<u32, u64> = BTreeMap::new();
        let mut running: BTreeMap<u32, u64> = BTreeMap::new();
        for (number, line) in self.lines.iter().enumerate() {
            let scanned = u32::try_from(number).ok().and_then(|n| states.get(&n));
            let scanned = scanned.copied().unwrap_or_default();
            if scanned != line.states {
                let (queue, kind) = (line.queue as usize, line.kind as usize);
                let (queue, kind) = (&self.queues[queue].name, &self.kinds[kind].name);
                let counted = line.states;
                wrong.push(format!("{queue}/{kind} counts {counted:?}, a scan finds {scanned:?}"));
            }
            for state in StateName::ALL {
                if state.is_waiting() {
                    *waiting.entry(line.queue).or_default() += scanned[state as usize];
                }
            }
            *running.entry(line.kind).or_default() += scanned[StateName::Running as usize];
        }
        for (queue, scanned) in waiting {
            let queue = &self.queues[queue as usize];
            if queue.waiting != scanned {
                let (name, counted) = (&queue.name, queue.waiting);
                wrong.push(format!("{name} counts {counted} waiting, a scan finds {scanned}"));
            }
        }
        let mut by_priority: BTreeMap<u32, BTreeMap<Priority, u64>> = BTreeMap::new();
        let waits = |entry: &&Entry| entry.phase.name().is_waiting();
        for entry in self.entries.iter().map(|(_, entry)| entry).filter(waits) {
            let queue = by_priority.entry(self.lines[entry.line as usize].queue).or_default();
            *queue.entry(entry.priority).or_default() += 1;
        }
        for (number, queue) in self.queues.iter().enumerate() {
            let scanned = u32::try_from(number).ok().and_then(|n| by_priority.remove(&n));
            let (scanned, counted) = (scanned.unwrap_or_default(), &queue.waiting_by_priority);
            if scanned != *counted {
                let name = &queue.name;
                wrong.push(format!("{name} counts {counted:?} waiting, a scan finds {scanned:?}"));
            }
        }
        for (kind, scanned) in running {
            let kind = &self.kinds[kind as usize];
            if kind.running != scanned {
                let (name, counted) = (&kind.name, kind.running);
                wrong.push(format!("{name} counts {counted} running, a scan finds {scanned}"));
            }
        }
    }
}
