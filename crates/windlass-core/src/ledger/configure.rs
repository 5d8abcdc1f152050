//! Settings of queues: what they are changed to, and what that does to the jobs that wait.

use alloc::string::ToString;
use alloc::vec::Vec;
use core::num::NonZeroU32;
use core::time::Duration;

use super::lanes::LaneAddress;
use super::{Command, Effects, Ledger, Ring};
use crate::audit::{Actor, AuditNote};
use crate::event::{EventKind, Subject};
use crate::limits::{self, at_most, shown};
use crate::name::Name;
use crate::record::QueueSettings;
use crate::refusal::Refusal;

/// Change one setting of a queue, which need not have had jobs yet.
#[derive(Clone, Debug)]
pub struct Configure {
    /// The queue.
    pub queue: Name,
    /// The setting.
    pub change: QueueChange,
    /// Who does it; a setting that changes then has an audit entry.
    pub by: Option<Actor>,
}

/// A setting of a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "wire", derive(serde::Serialize, serde::Deserialize))]
pub enum QueueChange {
    /// Start no more of its jobs. Running ones finish; due times are kept; enqueues are accepted.
    Pause,
    /// Start its jobs again.
    Resume,
    /// Refuse enqueues beyond this many waiting jobs; `None` for no limit.
    MaxDepth(Option<u64>),
    /// Raise a waiting job by one point of priority per this long; `None` for strict priorities.
    Ageing(Option<Duration>),
    /// Run its jobs that have a lane in so many lanes; `None` gives each key one of its own. What
    /// waits and what runs keeps its order.
    Lanes(Option<NonZeroU32>),
    /// Start no more jobs of this lane; the one that runs finishes.
    PauseLane(u32),
    /// Start jobs of this lane again.
    ResumeLane(u32),
    /// Refuse enqueues beyond this many waiting jobs of one lane; `None` for no limit.
    LaneDepth(Option<u64>),
    /// When a job dies, add one of this kind, in the queue of the same name, in the same commit.
    OnDead(Option<Name>),
    /// When a lane has become empty, add a job of this kind, in the queue of the same name.
    OnEmpty(Option<Name>),
}

impl QueueChange {
    /// The settings with this change, and its event, which is told only if they differ.
    ///
    /// Refuses a value out of its bounds, and a lane that the queue does not have.
    pub fn apply(self, settings: &QueueSettings) -> Result<(QueueSettings, EventKind), Refusal> {
        let mut settings = settings.clone();
        let what = match self {
            QueueChange::Pause => {
                settings.paused = true;
                EventKind::QueuePaused
            }
            QueueChange::Resume => {
                settings.paused = false;
                EventKind::QueueResumed
            }
            QueueChange::MaxDepth(limit) => {
                settings.max_depth = limit.map(limits::countable);
                EventKind::QueueConfigured
            }
            QueueChange::Ageing(step) => {
                if step.is_some_and(|step| step < Duration::from_millis(1)) {
                    return Err(Refusal::OutOfBounds {
                        what: "ageing step".into(),
                        got: shown(step),
                        allowed: "it must be at least 1 ms".to_string(),
                    });
                }
                limits::no_longer_than("ageing step", step.unwrap_or_default())?;
                settings.ageing = step;
                EventKind::QueueConfigured
            }
            QueueChange::Lanes(lanes) => {
                let number = lanes.map_or(0, NonZeroU32::get) as usize;
                at_most("lanes", number, limits::LANES, "use more queues")?;
                settings.lanes = lanes;
                EventKind::QueueConfigured
            }
            QueueChange::PauseLane(lane) => {
                let lanes = settings.lanes.map_or(0, NonZeroU32::get);
                if lane >= lanes {
                    return Err(limits::no_such_lane(lane, lanes));
                }
                settings.paused_lanes.insert(lane);
                EventKind::QueueConfigured
            }
            QueueChange::ResumeLane(lane) => {
                settings.paused_lanes.remove(&lane);
                EventKind::QueueConfigured
            }
            QueueChange::LaneDepth(limit) => {
                settings.lane_depth = limit.map(limits::countable);
                EventKind::QueueConfigured
            }
            QueueChange::OnDead(kind) => {
                settings.on_dead = kind;
                EventKind::QueueConfigured
            }
            QueueChange::OnEmpty(kind) => {
                settings.on_empty = kind;
                EventKind::QueueConfigured
            }
        };
        Ok((settings, what))
    }
}

impl Command for Configure {
    type Reply = QueueSettings;

    fn run(self, ledger: &mut Ledger, effects: &mut Effects) -> Result<QueueSettings, Refusal> {
        let known = ledger.queue_ids.get(&self.queue).map(|queue| &ledger.queues[*queue as usize]);
        let old = known.map(|queue| queue.settings.clone()).unwrap_or_default();
        let note = self.by.map(|by| AuditNote::of_setting(by, &self.queue, &self.change));
        let (settings, what) = self.change.apply(&old)?;
        if settings == old {
            return Ok(settings);
        }
        let hooks = [&settings.on_dead, &settings.on_empty].into_iter().flatten();
        ledger.refuse_surplus_hooks(&self.queue, hooks.clone())?;
        for kind in hooks {
            ledger.queue_id(kind);
            ledger.kind_id(kind);
        }
        let queue = ledger.queue_id(&self.queue);
        ledger.configure(queue, settings.clone());
        effects.changes.push(ledger.queue_change(queue));
        if old.paused && !settings.paused {
            effects.rings.insert(Ring::Queue(self.queue.clone()));
        }
        ledger.tell_of(Subject::Queue(self.queue), what, effects);
        ledger.audit(note.as_ref(), 0, effects);
        Ok(settings)
    }
}

impl Ledger {
    /// Takes over a queue's settings and sorts its lines anew if the order has changed.
    pub(super) fn configure(&mut self, queue: u32, settings: QueueSettings) {
        let entries = &mut self.queues[queue as usize];
        let reorder = entries.settings.ageing != settings.ageing;
        if !reorder && entries.settings.lanes == settings.lanes {
            let old = core::mem::replace(&mut entries.settings, settings);
            let changed = old.paused_lanes.symmetric_difference(&entries.settings.paused_lanes);
            for lane in changed.copied().collect::<Vec<u32>>() {
                let lane = u64::from(lane);
                self.offer(LaneAddress { queue, lane, partition: lane });
            }
            return;
        }
        // With the old settings, by which they stand in their lanes.
        let laned = self.close_lanes(queue);
        self.queues[queue as usize].settings = settings;
        for line in 0..self.lines.len() {
            if self.lines[line].queue != queue {
                continue;
            }
            let old = core::mem::take(&mut self.lines[line].ready);
            let again = old.into_iter().map(|(key, slot)| (self.ready_key(slot, key.since), slot));
            self.lines[line].ready = again.collect();
        }
        self.open_lanes(&laned);
    }
}
