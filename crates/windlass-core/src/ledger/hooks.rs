//! Jobs that a queue asks for when something happens to it: when a job dies, when a lane is empty.
//!
//! They are added in the commit in which it happens, whoever caused it, so no crash comes between
//! and each is there exactly once (`a_job_is_added_once_when_a_lane_becomes_empty` and
//! `a_job_is_added_when_one_dies_however_it_dies` of the conformance suite).

use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::{Effects, Ledger};
use crate::event::{EventKind, Subject};
use crate::job::{JobId, NewJob};
use crate::name::Name;

/// A job that a queue asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hook {
    /// Its kind, and its queue.
    kind: Name,
    /// JSON.
    payload: Vec<u8>,
    /// The job it is about.
    parent: Option<JobId>,
}

impl Hook {
    /// What a queue asks for with `on_dead`, after this job of it has died; `lane` is its lane, if
    /// the queue has lanes and the job is in one.
    pub fn of_death(kind: Name, job: JobId, lane: Option<u32>) -> Self {
        let payload = match lane {
            Some(lane) => format!("{{\"job\":\"{job}\",\"lane\":{lane}}}"),
            None => format!("{{\"job\":\"{job}\"}}"),
        };
        Self { kind, payload: payload.into_bytes(), parent: Some(job) }
    }

    /// What a queue asks for with `on_empty`, after the last open job of this lane has ended;
    /// `completed` counts the jobs of that lane that completed so far.
    pub fn of_empty_lane(kind: Name, lane: u32, completed: u64) -> Self {
        let payload = format!("{{\"lane\":{lane},\"completed\":{completed}}}");
        Self { kind, payload: payload.into_bytes(), parent: None }
    }

    /// The job itself, which takes this place in the order of acceptance.
    pub fn into_job(self, sequence: u64) -> NewJob {
        let Self { kind, payload, parent } = self;
        let id = hook_id(&kind, sequence);
        NewJob { parent, ..NewJob::new(id, kind.clone(), kind, payload) }
    }
}

impl Ledger {
    /// A job died: its queue may have asked for another one then.
    pub(super) fn note_death(&mut self, slot: u32) {
        let entry = self.entry(slot);
        let queue = &self.queues[self.lines[entry.line as usize].queue as usize];
        let Some(kind) = queue.settings.on_dead.clone() else { return };
        let lane = self.spot(slot).filter(|_| queue.settings.lanes.is_some());
        let lane = lane.map(|spot| u32::try_from(spot.lane).unwrap_or(u32::MAX));
        let hook = Hook::of_death(kind, entry.id, lane);
        self.hooks.push(hook);
    }

    /// Tells of lanes that this command has left empty.
    pub(super) fn tell_emptied_lanes(&mut self, effects: &mut Effects) {
        let mut emptied = core::mem::take(&mut self.emptied_lanes);
        emptied.retain(|(queue, lane)| {
            let has_lanes = self.queues[*queue as usize].settings.lanes.is_some();
            has_lanes && !self.lanes.contains_key(&(*queue, *lane))
        });
        // By name: the numbers of a ledger that was restored are others.
        let name = |queue: u32| &self.queues[queue as usize].name;
        emptied.sort_by(|one, other| (name(one.0), one.1).cmp(&(name(other.0), other.1)));
        emptied.dedup();
        for (queue, lane) in emptied {
            let entries = &self.queues[queue as usize];
            let lane = u32::try_from(lane).unwrap_or(u32::MAX);
            let completed = entries.lane_totals.get(&lane).map_or(0, |totals| totals.completed);
            if let Some(kind) = entries.settings.on_empty.clone() {
                self.hooks.push(Hook::of_empty_lane(kind, lane, completed));
            }
            let subject = Subject::Queue(self.queues[queue as usize].name.clone());
            self.tell_of(subject, EventKind::LaneEmpty { lane, completed }, effects);
        }
    }

    /// Adds the jobs that were asked for. None of them can be refused: their names are known since
    /// the queue was configured.
    pub(super) fn add_hook_jobs(&mut self, effects: &mut Effects) {
        for hook in core::mem::take(&mut self.hooks) {
            let job = hook.into_job(self.next_sequence);
            let fingerprint = job.fingerprint();
            self.accept(Arc::new(job), fingerprint, effects);
        }
    }
}

/// The id of a job that a queue asks for, which no other job has: a UUID of version 8 from a name
/// and a place in the order of acceptance, which is never used twice.
pub fn hook_id(kind: &Name, sequence: u64) -> JobId {
    let hash = xxhash_rust::xxh3::xxh3_64(kind.as_str().as_bytes());
    let number = u128::from(hash) << 64 | u128::from(sequence);
    let version = number & !(0xf << 76) | 8 << 76;
    JobId::from_u128(version & !(0x3 << 62) | 0x2 << 62)
}
