//! Looking at the ledger: counters, dependents, workers, and the facts that explain a job.
//!
//! Counters are kept with every change; nothing here counts by scanning.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::num::NonZeroU32;

use super::Ledger;
use super::entries::Phase;
use super::workers::{WORKER_SILENCE, WorkerInfo};
use crate::explain::{
    ExplainFacts, Explanation, JobFacts, LaneFacts, QueueKindFacts, StateFacts, blockers_shown,
    explain,
};
use crate::job::{JobId, Priority, StateName};
use crate::limits;
use crate::name::Name;
use crate::record::{QueueSettings, Totals};
use crate::refusal::Refusal;
use crate::time::Now;

/// The jobs of one kind in one queue.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "wire", derive(serde::Serialize, serde::Deserialize))]
pub struct QueueKindCount {
    /// The queue.
    pub queue: Name,
    /// The kind.
    pub kind: Name,
    /// Jobs now kept in each state, in the order of [`StateName::ALL`].
    pub states: [u64; 7],
    /// What has happened so far.
    pub totals: Totals,
}

/// What is set for, and known of, one queue.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "wire", derive(serde::Serialize, serde::Deserialize))]
pub struct QueueCount {
    /// The queue.
    pub queue: Name,
    /// Its settings.
    pub settings: QueueSettings,
    /// Blocked, scheduled and ready jobs.
    pub waiting: u64,
    /// The same per priority, the highest first; one of which none waits is not listed. Of more
    /// than [`limits::PRIORITIES_COUNTED`] priorities, those are the highest; what `waiting` has
    /// beyond their sum waits at lower ones.
    pub waiting_by_priority: Vec<(Priority, u64)>,
    /// Dead letters dropped because there were too many.
    pub dead_letters_dropped: u64,
    /// Its lanes in order, if it has lanes.
    pub lanes: Vec<LaneCount>,
}

/// What is known of one lane of a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "wire", derive(serde::Serialize, serde::Deserialize))]
pub struct LaneCount {
    /// Blocked, scheduled and ready jobs.
    pub waiting: u64,
    /// Jobs that run.
    pub running: u64,
    /// No job of it starts.
    pub paused: bool,
    /// What has happened so far.
    pub totals: Totals,
}

/// One live worker.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "wire", derive(serde::Serialize, serde::Deserialize))]
pub struct WorkerView {
    /// Its id.
    pub worker: Arc<str>,
    /// What it does.
    pub info: WorkerInfo,
    /// Jobs it runs.
    pub running: u64,
    /// It takes no more jobs.
    pub stopping: bool,
}

/// All counters at one moment.
///
/// [`lines`](Self::lines) and [`queues`](Self::queues) are counted with every change and never
/// found by scanning; [`workers`](Self::workers) are those that were heard of within a minute.
///
/// ```
/// # use windlass_core::ledger::Counts;
/// # use windlass_core::job::StateName;
/// # fn show(counts: &Counts) {
/// println!("{} wait, {} run", counts.waiting(), counts.in_state(StateName::Running));
/// for (priority, jobs) in counts.waiting_by_priority().into_iter().rev() {
///     println!("priority {}: {jobs}", priority.0);
/// }
/// println!("{} slots are free", counts.free_slots());
/// println!("handled: {:?}", counts.handled_kinds());
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "wire", derive(serde::Serialize, serde::Deserialize))]
pub struct Counts {
    /// Per queue and kind.
    pub lines: Vec<QueueKindCount>,
    /// Per queue.
    pub queues: Vec<QueueCount>,
    /// Live workers.
    pub workers: Vec<WorkerView>,
}

impl Counts {
    /// Jobs in a state, over all queues and kinds.
    pub fn in_state(&self, state: StateName) -> u64 {
        self.lines.iter().map(|line| line.states[state as usize]).sum()
    }

    /// Jobs of a queue in a state.
    pub fn in_queue(&self, queue: &str, state: StateName) -> u64 {
        let lines = self.lines.iter().filter(|line| line.queue.as_str() == queue);
        lines.map(|line| line.states[state as usize]).sum()
    }

    /// Jobs of a kind in a state.
    pub fn of_kind(&self, kind: &str, state: StateName) -> u64 {
        let lines = self.lines.iter().filter(|line| line.kind.as_str() == kind);
        lines.map(|line| line.states[state as usize]).sum()
    }

    /// Blocked, scheduled and ready jobs, over all queues.
    pub fn waiting(&self) -> u64 {
        self.queues.iter().map(|queue| queue.waiting).sum()
    }

    /// The same per priority; see [`QueueCount::waiting_by_priority`].
    pub fn waiting_by_priority(&self) -> BTreeMap<Priority, u64> {
        let mut sum = BTreeMap::new();
        for (priority, jobs) in self.queues.iter().flat_map(|queue| &queue.waiting_by_priority) {
            *sum.entry(*priority).or_default() += jobs;
        }
        sum
    }

    /// The size of a queue: its jobs that wait or run.
    pub fn queue_size(&self, queue: &str) -> u64 {
        let of_queue = self.queues.iter().filter(|count| count.queue.as_str() == queue);
        let waiting: u64 = of_queue.map(|count| count.waiting).sum();
        waiting + self.in_queue(queue, StateName::Running)
    }

    /// Slots of live workers in which no job runs; a worker that stops or is quiet has none.
    pub fn free_slots(&self) -> u64 {
        let free =
            |worker: &WorkerView| u64::from(worker.info.slots).saturating_sub(worker.running);
        self.workers.iter().filter(|worker| worker.takes_jobs()).map(free).sum()
    }

    /// The kinds that live workers handle, other than those that are stopping or quiet.
    pub fn handled_kinds(&self) -> BTreeSet<Name> {
        let taking = self.workers.iter().filter(|worker| worker.takes_jobs());
        taking.flat_map(|worker| worker.info.kinds.iter().map(|kind| kind.kind.clone())).collect()
    }

    /// What has happened so far, over all queues and kinds.
    pub fn totals(&self) -> Totals {
        let mut sum = Totals::default();
        self.lines.iter().for_each(|line| sum += line.totals);
        sum
    }

    /// Kinds with waiting jobs that no live worker handles, and how many wait.
    pub fn unhandled(&self) -> BTreeMap<Name, u64> {
        let mut unhandled = BTreeMap::new();
        for line in &self.lines {
            let waiting: u64 = StateName::ALL
                .into_iter()
                .filter(|state| state.is_waiting())
                .map(|state| line.states[state as usize])
                .sum();
            let handled = self.workers.iter().any(|worker| worker.info.takes(line));
            if waiting > 0 && !handled {
                *unhandled.entry(line.kind.clone()).or_default() += waiting;
            }
        }
        unhandled
    }
}

/// The highest priorities and their counts.
fn highest_first(by_priority: &BTreeMap<Priority, u64>) -> Vec<(Priority, u64)> {
    let highest = by_priority.iter().rev().take(limits::PRIORITIES_COUNTED);
    highest.map(|(priority, jobs)| (*priority, *jobs)).collect()
}

impl WorkerView {
    /// Whether it would take a job now: it neither stops nor is quiet.
    pub fn takes_jobs(&self) -> bool {
        !self.stopping && !self.info.quiet
    }
}

impl WorkerInfo {
    fn takes(&self, line: &QueueKindCount) -> bool {
        self.handles(&line.kind) && self.listens_to(&line.queue)
    }

    pub(crate) fn handles(&self, kind: &Name) -> bool {
        self.kinds.iter().any(|known| known.kind == *kind)
    }

    pub(crate) fn listens_to(&self, queue: &Name) -> bool {
        self.queues.as_ref().is_none_or(|queues| queues.contains(queue))
    }
}

impl Ledger {
    /// All counters, at the time `reading`.
    pub fn counts(&mut self, reading: Now) -> Counts {
        let now = self.glance(reading);
        let lines = self.line_ids.values().map(|line| {
            let line = &self.lines[*line as usize];
            QueueKindCount {
                queue: self.queues[line.queue as usize].name.clone(),
                kind: self.kinds[line.kind as usize].name.clone(),
                states: line.states,
                totals: line.totals,
            }
        });
        let mut lines: Vec<QueueKindCount> = lines.collect();
        lines.sort_by(|a, b| (&a.queue, &a.kind).cmp(&(&b.queue, &b.kind)));
        let queues = self.queue_ids.values().map(|number| {
            let queue = &self.queues[*number as usize];
            QueueCount {
                lanes: self.lane_counts(*number),
                queue: queue.name.clone(),
                settings: queue.settings.clone(),
                waiting: queue.waiting,
                waiting_by_priority: highest_first(&queue.waiting_by_priority),
                dead_letters_dropped: queue.dead_letters_dropped,
            }
        });
        Counts { lines, queues: queues.collect(), workers: self.live_workers(now) }
    }

    fn live_workers(&self, now: Now) -> Vec<WorkerView> {
        let mut running: BTreeMap<&Arc<str>, u64> = BTreeMap::new();
        for held in self.leases.values() {
            *running.entry(&held.lease.worker).or_default() += 1;
        }
        let live = self
            .workers
            .iter()
            .filter(|(_, worker)| now.steady.since(worker.seen) < WORKER_SILENCE);
        live.map(|(id, worker)| WorkerView {
            worker: id.clone(),
            info: worker.info.clone(),
            running: running.get(id).copied().unwrap_or(0),
            stopping: worker.stopping,
        })
        .collect()
    }

    /// The jobs that wait for this one, by id; empty if it is unknown or has finished.
    pub fn dependents(&self, job: JobId) -> Vec<JobId> {
        self.edges_from(job).filter(|(_, edge)| !edge.met).map(|(dependent, _)| dependent).collect()
    }

    /// Whether the ledger holds the job.
    pub fn knows(&self, job: JobId) -> bool {
        self.find(job).is_some()
    }

    /// Why a job is not running, at the time `reading`.
    pub fn explain(&mut self, job: JobId, reading: Now) -> Result<Explanation, Refusal> {
        let now = self.glance(reading);
        let job = self.job_facts(self.slot(job)?, 0);
        Ok(explain(&ExplainFacts { now: now.wall, workers: self.live_workers(now), job }))
    }

    /// What bears on why a job is not running, `depth` jobs away from the one that was asked about.
    fn job_facts(&self, slot: u32, depth: usize) -> JobFacts {
        let entry = self.entry(slot);
        let state = match entry.phase {
            Phase::Blocked { .. } => self.blocked_facts(slot, depth),
            Phase::Scheduled { at } => {
                let (attempts, queue_kind) = (entry.attempts, self.queue_kind_facts(slot));
                StateFacts::Scheduled { at, attempts, queue_kind }
            }
            Phase::Ready { .. } => {
                let (queue_kind, lane) = (self.queue_kind_facts(slot), self.lane_facts(slot));
                StateFacts::Ready { queue_kind, lane, ahead: self.ready_ahead(slot) }
            }
            Phase::Running { token } => {
                let cancel_requested = self.leases[&token].lease.cancel_requested;
                StateFacts::Running { cancel_requested }
            }
            Phase::Completed { at } => StateFacts::Completed { at },
            Phase::Dead { at, reason } => StateFacts::Dead { at, reason },
            Phase::Cancelled { at, reason } => StateFacts::Cancelled { at, reason },
        };
        JobFacts { job: entry.id, state }
    }

    fn blocked_facts(&self, slot: u32, depth: usize) -> StateFacts {
        let entry = self.entry(slot);
        let unmet = entry.dependencies().filter(|dependency| {
            self.edges.get(&(dependency.on, entry.id)).is_some_and(|edge| !edge.met)
        });
        let blockers: Vec<u32> = unmet.filter_map(|dependency| self.find(dependency.on)).collect();
        let shown = blockers.iter().take(blockers_shown(depth));
        let by = shown.map(|blocker| self.job_facts(*blocker, depth + 1)).collect();
        StateFacts::Blocked { by, of: blockers.len() }
    }

    fn queue_kind_facts(&self, slot: u32) -> QueueKindFacts {
        let line = &self.lines[self.entry(slot).line as usize];
        let queue = &self.queues[line.queue as usize];
        let kind = &self.kinds[line.kind as usize];
        QueueKindFacts {
            queue: queue.name.clone(),
            paused: queue.settings.paused,
            kind: kind.name.clone(),
            running: kind.running,
            full_at: kind.full_at,
        }
    }

    fn lane_facts(&self, slot: u32) -> Option<LaneFacts> {
        let spot = self.spot(slot)?;
        let lane = self.lanes.get(&(spot.queue, spot.lane))?;
        let holder = lane.held.get(&spot.partition).filter(|holder| **holder != slot);
        let paused = self.is_paused(spot.queue, spot.lane);
        Some(LaneFacts {
            paused: paused.then(|| u32::try_from(spot.lane).unwrap_or(u32::MAX)),
            holder: holder.map(|holder| self.entry(*holder).id),
            busy: lane.running > 0,
            first: lane.ready.first_key_value().is_some_and(|(_, next)| *next == slot),
            ahead: self.position(slot),
        })
    }

    /// Ready jobs of the same queue and kind that come before this one, counted up to a bound.
    fn ready_ahead(&self, slot: u32) -> u64 {
        let ready = &self.lines[self.entry(slot).line as usize].ready;
        ready.values().take(limits::EXPLAIN_AHEAD).take_while(|ahead| **ahead != slot).count()
            as u64
    }

    fn lane_counts(&self, queue: u32) -> Vec<LaneCount> {
        let entries = &self.queues[queue as usize];
        let lanes = entries.settings.lanes.map_or(0, NonZeroU32::get);
        let count = |lane: u32| {
            let (waiting, running) = self.lane_load(queue, lane.into());
            let totals = entries.lane_totals.get(&lane).copied().unwrap_or_default();
            LaneCount { waiting, running, paused: self.is_paused(queue, lane.into()), totals }
        };
        (0..lanes).map(count).collect()
    }

    /// All kept jobs, in an order that does not depend on how they came to be in the ledger.
    pub(super) fn slots_by_id(&self) -> Vec<u32> {
        let mut slots: Vec<u32> = self.entries.iter().map(|(slot, _)| slot).collect();
        slots.sort_unstable_by_key(|slot| self.entry(*slot).id);
        slots
    }

    /// Everything in the ledger as text, in a fixed order: equal ledgers give equal text.
    pub fn dump(&self) -> alloc::string::String {
        use core::fmt::Write;
        let mut text = alloc::string::String::new();
        for slot in self.slots_by_id() {
            let entry = self.entry(slot);
            let line = &self.lines[entry.line as usize];
            let queue = &self.queues[line.queue as usize].name;
            let kind = &self.kinds[line.kind as usize].name;
            let (id, status) = (entry.id, self.status(slot));
            let _ = writeln!(text, "{id} #{} {queue}/{kind} {status:?}", entry.sequence);
            if !entry.steps().is_empty() {
                let _ = writeln!(text, "steps {:?}", entry.steps());
            }
        }
        for ((on, dependent), edge) in &self.edges {
            let _ = writeln!(text, "{dependent} after {on} {edge:?}");
        }
        let mut keys: Vec<_> = self.keys.iter().collect();
        // A hold that has ended is none, and a ledger that was restored does not know of it.
        let now = self.time.latest().wall;
        keys.retain(|(_, hold)| hold.until.is_none_or(|until| until > now));
        keys.sort_by_key(|(key, hold)| (hold.job, &key.key));
        for (key, hold) in keys {
            let queue = &self.queues[key.queue as usize].name;
            let kind = &self.kinds[key.kind as usize].name;
            let _ = writeln!(text, "key {queue}/{kind} {:?} {hold:?}", key.key);
        }
        for (name, queue) in &self.queue_ids {
            let queue = &self.queues[*queue as usize];
            let (settings, waiting, dead) = (&queue.settings, queue.waiting, queue.dead.len());
            let _ = writeln!(text, "{name} {settings:?} waiting {waiting} dead {dead}");
        }
        self.dump_objects(&mut text);
        for (name, kind) in &self.kind_ids {
            let full_at = self.kinds[*kind as usize].full_at;
            let _ = writeln!(text, "{name} rate full at {full_at:?}");
        }
        text
    }
}
