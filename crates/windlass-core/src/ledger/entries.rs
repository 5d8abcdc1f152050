//! The entries of the ledger: one compact entry per kept job, and what is known per line, queue,
//! kind.
//!
//! An entry is what scheduling needs and nothing more; payloads, errors and history are the
//! store's. Its size, and that of the index entries beside it, is what a waiting job costs.
//!
//! Two words of the whole ledger: a *slot* is the number of an entry in the [`Slab`], by which the
//! indexes name a job. A *line* is the number of a [`QueueKind`], the jobs of one kind in one
//! queue.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet, btree_map};
use alloc::vec::Vec;
use core::time::Duration;

use super::steps::StepMark;
use crate::job::{
    CancelReason, DeadReason, Dependency, JobId, JobStatus, Lane, Lease, LeaseToken, NewJob,
    OnFailure, Priority, State, StateName, UniqueScope,
};
use crate::name::Name;
use crate::record::{QueueSettings, RecordLocation, Totals};
use crate::time::{Steady, Timestamp, micros};

/// [`State`] without what is kept elsewhere.
#[derive(Clone, Copy, Debug)]
pub(super) enum Phase {
    Blocked { unmet: u32, not_before: Timestamp },
    Scheduled { at: Timestamp },
    Ready { since: Timestamp },
    Running { token: LeaseToken },
    Completed { at: Timestamp },
    Dead { at: Timestamp, reason: DeadReason },
    Cancelled { at: Timestamp, reason: CancelReason },
}

impl Phase {
    pub(super) fn of(state: &State) -> Self {
        match state {
            State::Blocked { unmet, not_before } => {
                Phase::Blocked { unmet: *unmet, not_before: *not_before }
            }
            State::Scheduled { at } => Phase::Scheduled { at: *at },
            State::Ready { since } => Phase::Ready { since: *since },
            State::Running(lease) => Phase::Running { token: lease.token },
            State::Completed { at } => Phase::Completed { at: *at },
            State::Dead { at, reason } => Phase::Dead { at: *at, reason: *reason },
            State::Cancelled { at, reason } => Phase::Cancelled { at: *at, reason: *reason },
        }
    }

    pub(super) fn name(self) -> StateName {
        match self {
            Phase::Blocked { .. } => StateName::Blocked,
            Phase::Scheduled { .. } => StateName::Scheduled,
            Phase::Ready { .. } => StateName::Ready,
            Phase::Running { .. } => StateName::Running,
            Phase::Completed { .. } => StateName::Completed,
            Phase::Dead { .. } => StateName::Dead,
            Phase::Cancelled { .. } => StateName::Cancelled,
        }
    }
}

/// One kept job.
///
/// Answers: every kept job has one of these in memory, whatever its state.
/// Why not simpler: what few jobs have ([`RareFields`]) would take its room in all of them, and a
/// `bool` for `begun` eight bytes more. A job that waits costs 170 bytes in all (README.md).
/// Guarded by: the size that is asserted below.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) id: JobId,
    pub(super) phase: Phase,
    pub(super) fingerprint: u64,
    pub(super) sequence: u64,
    /// What most jobs do not have.
    pub(super) extras: Option<Box<RareFields>>,
    pub(super) line: u32,
    pub(super) priority: Priority,
    pub(super) attempts: u32,
    /// Total runs the producer asked for; 0 leaves it to the worker's kind.
    pub(super) max_attempts: u32,
    pub(super) recoveries: u16,
    /// How often it was replayed; the highest bit is [`BEGUN`].
    pub(super) generation: u16,
    /// The token under which its last attempt was settled; 0 for none, which no lease has.
    pub(super) settled_by: u64,
    /// Where a store keeps the record, and the bytes it takes there: [`RecordLocation`] without its
    /// padding.
    pub(super) weight: u32,
    pub(super) place: u64,
}

/// What most jobs do not have.
#[derive(Debug, Default)]
pub(super) struct RareFields {
    pub(super) depends_on: Box<[Dependency]>,
    pub(super) unique: Option<HeldKey>,
    pub(super) expires_at: Option<Timestamp>,
    pub(super) partition: Option<Partition>,
    /// The number of the object it is bound to.
    pub(super) object: Option<u32>,
    pub(super) steps: Box<[StepMark]>,
}

impl RareFields {
    /// Boxed, unless there is nothing in it.
    pub(super) fn boxed(self) -> Option<Box<Self>> {
        let plain = self.unique.is_none()
            && self.expires_at.is_none()
            && self.partition.is_none()
            && self.object.is_none()
            && self.steps.is_empty()
            && self.depends_on.is_empty();
        (!plain).then(|| Box::new(self))
    }
}

/// What keeps its order within a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partition {
    /// Jobs with the same number start in order.
    pub number: u64,
    /// It is the job's number among those that are spread over the lanes.
    pub turn: bool,
}

impl Partition {
    pub(super) fn of(lane: &Lane) -> Option<Self> {
        let turn = matches!(lane, Lane::Turn(_));
        lane.partition().map(|number| Self { number, turn })
    }
}

/// The bit of [`Entry`]'s generation that says that the job has begun.
const BEGUN: u16 = 1 << 15;

/// A job's claim to a unique key.
#[derive(Debug)]
pub(super) struct HeldKey {
    pub(super) key: Box<str>,
    pub(super) scope: UniqueScope,
    pub(super) until: Option<Timestamp>,
}

/// Whoever adds a field here adds its bytes to every job.
#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<Option<Entry>>() == 96);

impl Entry {
    /// The entry of a job that was accepted at `at` and now is in `status`. Its fingerprint is
    /// added by whoever knows it already.
    pub(super) fn new(
        job: &NewJob,
        sequence: u64,
        at: Timestamp,
        status: &JobStatus,
        line: u32,
        object: Option<u32>,
    ) -> Self {
        let unique = job.unique.as_ref().map(|unique| HeldKey {
            key: unique.key.as_str().into(),
            scope: unique.scope,
            until: unique.window.map(|window| at + window),
        });
        let extras = RareFields {
            depends_on: job.depends_on.clone().into_boxed_slice(),
            unique,
            expires_at: job.expires_after.map(|after| at + after),
            partition: job.lane.as_ref().and_then(Partition::of),
            object,
            ..RareFields::default()
        };
        let extras = extras.boxed();
        let mut entry = Self {
            id: job.id,
            sequence,
            extras,
            line,
            priority: job.priority,
            max_attempts: job.max_attempts().unwrap_or(0),
            ..Self::blank()
        };
        entry.set(status);
        entry
    }

    /// An entry that says nothing yet.
    pub(super) fn blank() -> Self {
        Self {
            id: JobId::from_u128(0),
            phase: Phase::Ready { since: Timestamp::default() },
            fingerprint: 0,
            sequence: 0,
            extras: None,
            line: 0,
            priority: Priority::NORMAL,
            attempts: 0,
            max_attempts: 0,
            recoveries: 0,
            generation: 0,
            settled_by: 0,
            weight: 0,
            place: 0,
        }
    }

    /// Takes over a condition, all but the lease of a running job.
    pub(super) fn set(&mut self, status: &JobStatus) {
        self.phase = Phase::of(&status.state);
        self.attempts = status.attempts;
        self.recoveries = u16::try_from(status.recoveries).unwrap_or(u16::MAX);
        let generation = u16::try_from(status.generation).unwrap_or(u16::MAX).min(BEGUN - 1);
        self.generation = if status.begun { generation | BEGUN } else { generation };
        self.settled_by = status.settled_by.map_or(0, |token| token.0);
    }

    pub(super) fn generation(&self) -> u32 {
        u32::from(self.generation & !BEGUN)
    }

    /// Whether the job has started since it was accepted or last replayed.
    pub(super) fn begun(&self) -> bool {
        self.generation & BEGUN != 0
    }

    /// The lease under which its last attempt was settled.
    pub(super) fn settled_by(&self) -> Option<LeaseToken> {
        (self.settled_by != 0).then_some(LeaseToken(self.settled_by))
    }

    pub(super) fn kept(&self) -> RecordLocation {
        RecordLocation { place: self.place, weight: self.weight }
    }

    /// Notes where the record is kept and returns how many bytes the old place took.
    pub(super) fn keep(&mut self, kept: RecordLocation) -> u32 {
        self.place = kept.place;
        core::mem::replace(&mut self.weight, kept.weight)
    }

    /// Whether the job, as it stands, holds its unique key unless the window has ended.
    pub(super) fn may_hold_key(&self) -> bool {
        let Some(unique) = self.extras.as_ref().and_then(|extras| extras.unique.as_ref()) else {
            return false;
        };
        match (unique.scope, self.phase) {
            (UniqueScope::Open, phase) => !phase.name().is_terminal(),
            // Its place was taken, and its key with it.
            (_, Phase::Cancelled { reason: CancelReason::Replaced, .. }) => false,
            (UniqueScope::Any, _) => true,
        }
    }

    /// The job's finished steps.
    pub(super) fn steps(&self) -> &[StepMark] {
        self.extras.as_ref().map_or(&[], |extras| &extras.steps)
    }

    /// Takes note of a finished step, and tells whether it is news.
    pub(super) fn add_step(&mut self, mark: StepMark) -> bool {
        let new = self.steps().iter().all(|known| known.print != mark.print);
        if new {
            let steps = &mut self.extras.get_or_insert_default().steps;
            let mut marks = core::mem::take(steps).into_vec();
            marks.push(mark);
            *steps = marks.into();
        }
        new
    }

    pub(super) fn dependencies(&self) -> impl Iterator<Item = &Dependency> {
        self.extras.iter().flat_map(|extras| extras.depends_on.iter())
    }
}

/// Entries in blocks.
///
/// Answers: a `Vec` of all entries copies them when it grows, while every caller waits for the
/// ledger, and holds both copies meanwhile.
/// Why not simpler: a map or boxes would cost each entry a pointer and an allocation more.
/// Guarded by: no test sees this cost; `windlass bench --mode memory` does.
#[derive(Debug, Default)]
pub(super) struct Slab {
    blocks: Vec<Vec<Option<Entry>>>,
    vacant: Vec<u32>,
}

const BLOCK: usize = 1024;

impl Slab {
    pub(super) fn insert(&mut self, entry: Entry) -> u32 {
        if let Some(slot) = self.vacant.pop() {
            self.blocks[slot as usize / BLOCK][slot as usize % BLOCK] = Some(entry);
            return slot;
        }
        if self.blocks.last().is_none_or(|block| block.len() == BLOCK) {
            self.blocks.push(Vec::with_capacity(BLOCK));
        }
        let last = self.blocks.len() - 1;
        self.blocks[last].push(Some(entry));
        let slot = last * BLOCK + self.blocks[last].len() - 1;
        u32::try_from(slot).expect("fewer than 2^32 jobs fit in memory")
    }

    pub(super) fn len(&self) -> usize {
        self.blocks.iter().map(Vec::len).sum::<usize>() - self.vacant.len()
    }

    pub(super) fn get(&self, slot: u32) -> &Entry {
        self.blocks[slot as usize / BLOCK][slot as usize % BLOCK]
            .as_ref()
            .expect("an index points only at kept jobs")
    }

    pub(super) fn get_mut(&mut self, slot: u32) -> &mut Entry {
        self.blocks[slot as usize / BLOCK][slot as usize % BLOCK]
            .as_mut()
            .expect("an index points only at kept jobs")
    }

    /// All entries, in no order that means anything.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Entry)> {
        let blocks = (0..).step_by(BLOCK).zip(&self.blocks);
        blocks.flat_map(|(first, block)| {
            (first..).zip(block).filter_map(|(slot, entry)| Some((slot, entry.as_ref()?)))
        })
    }

    pub(super) fn remove(&mut self, slot: u32) {
        self.blocks[slot as usize / BLOCK][slot as usize % BLOCK] = None;
        self.vacant.push(slot);
    }
}

/// The jobs of one kind in one queue.
#[derive(Debug)]
pub(super) struct QueueKind {
    pub(super) kind: u32,
    pub(super) queue: u32,
    pub(super) ready: BTreeMap<ReadyKey, u32>,
    /// Jobs per state, by [`StateName`].
    pub(super) states: [u64; 7],
    pub(super) totals: Totals,
    /// The totals changed since they were last handed over.
    pub(super) uncollected: bool,
}

impl QueueKind {
    pub(super) fn new(kind: u32, queue: u32) -> Self {
        Self {
            kind,
            queue,
            ready: BTreeMap::new(),
            states: [0; 7],
            totals: Totals::default(),
            uncollected: false,
        }
    }
}

/// The place of a ready job in its line: lower rank first, then due time, then acceptance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ReadyKey {
    pub(super) rank: i64,
    pub(super) since: Timestamp,
    pub(super) sequence: u64,
}

/// What is known of a queue.
#[derive(Debug)]
pub(super) struct QueueEntry {
    pub(super) name: Name,
    pub(super) settings: QueueSettings,
    /// The number of the next job that is spread over the lanes.
    pub(super) next_turn: u64,
    /// Blocked, scheduled and ready jobs.
    pub(super) waiting: u64,
    /// The same per priority; one of which none waits is not there.
    pub(super) waiting_by_priority: BTreeMap<Priority, u64>,
    /// Waiting and running jobs.
    pub(super) open: u64,
    pub(super) dead: BTreeSet<(Timestamp, u64, u32)>,
    /// What has happened in each of its lanes, if it has lanes.
    pub(super) lane_totals: BTreeMap<u32, Totals>,
    pub(super) dead_letters_dropped: u64,
    /// That number changed since it was last handed over.
    pub(super) uncollected: bool,
}

impl QueueEntry {
    pub(super) fn new(name: Name) -> Self {
        Self {
            name,
            settings: QueueSettings::default(),
            next_turn: 0,
            waiting: 0,
            waiting_by_priority: BTreeMap::new(),
            open: 0,
            dead: BTreeSet::new(),
            lane_totals: BTreeMap::new(),
            dead_letters_dropped: 0,
            uncollected: false,
        }
    }

    /// Counts a job of this priority that waits now, or does not any more.
    pub(super) fn count_waiting(&mut self, priority: Priority, waits: bool) {
        if waits {
            self.waiting += 1;
            *self.waiting_by_priority.entry(priority).or_default() += 1;
        } else {
            self.waiting -= 1;
            if let btree_map::Entry::Occupied(mut jobs) = self.waiting_by_priority.entry(priority) {
                *jobs.get_mut() -= 1;
                if *jobs.get() == 0 {
                    jobs.remove();
                }
            }
        }
    }

    /// Lower is sooner. With ageing, a job's rank is the moment at which it would have overtaken
    /// everything of priority 0 that comes later.
    ///
    /// Answers: with ageing the priority of every waiting job grows all the time.
    /// Why not simpler: an index by current priority would have to be sorted again for each claim.
    /// All priorities grow at the same pace, so the order of these moments never changes.
    /// Guarded by: `ageing_lets_a_low_job_overtake_after_its_stated_wait` of the conformance suite,
    /// and `any_priority_with_any_ageing_stops_no_claim`.
    pub(super) fn rank(&self, priority: Priority, since: Timestamp) -> i64 {
        match self.settings.ageing {
            None => -i64::from(priority.0),
            Some(step) => {
                let lead = micros(step).saturating_mul(i64::from(priority.0));
                since.as_micros().saturating_sub(lead)
            }
        }
    }

    /// Priority in millionths of a point, with what waiting has added by `now`: compares jobs of
    /// queues with and without ageing.
    pub(super) fn standing(&self, priority: Priority, since: Timestamp, now: Timestamp) -> i128 {
        let gained = match self.settings.ageing {
            None => 0,
            Some(step) => {
                let step = micros(step.max(Duration::from_micros(1)));
                (i128::from(now.as_micros()) - i128::from(since.as_micros())) * 1_000_000
                    / i128::from(step)
            }
        };
        i128::from(priority.0) * 1_000_000 + gained
    }
}

/// What is known of a kind.
#[derive(Debug)]
pub(super) struct KindEntry {
    pub(super) name: Name,
    pub(super) running: u64,
    /// The rate limiter's theoretical arrival time.
    pub(super) full_at: Timestamp,
    /// A claim was turned away by the concurrency limit: ring when a job of the kind ends.
    pub(super) turned_away: bool,
}

impl KindEntry {
    pub(super) fn new(name: Name) -> Self {
        Self { name, running: 0, full_at: Timestamp::from_micros(i64::MIN), turned_away: false }
    }
}

/// A lease that is held.
#[derive(Debug)]
pub(super) struct HeldLease {
    pub(super) slot: u32,
    pub(super) lease: Lease,
    /// On the steady clock, so that a step of the wall clock does not end it.
    pub(super) ends: Steady,
    /// Its end was told by a rescue that only looks.
    pub(super) told: bool,
}

/// One edge of the dependency graph, kept until the dependent finishes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Edge {
    pub(super) on_failure: OnFailure,
    pub(super) met: bool,
}

/// A unique key within its queue and kind.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) queue: u32,
    pub(super) kind: u32,
    pub(super) key: Box<str>,
}

/// Who holds a unique key.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeyHolder {
    pub(super) job: JobId,
    pub(super) until: Option<Timestamp>,
    pub(super) fingerprint: u64,
}
