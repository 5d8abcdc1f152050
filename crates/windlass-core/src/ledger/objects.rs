//! Objects in the ledger: what is known of each besides its state, and the jobs that are bound to
//! it.
//!
//! A turn is decided like everything else: checked against the ledger first, then written, in one
//! commit with whatever it follows from. What befalls a bound job without a turn (its worker was
//! lost, someone cancelled it) reaches the object in the same commit too, so an object never waits
//! for an alarm that is not there.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt::Write as _;

use super::enqueue::Plan;
use super::entries::Phase;
use super::{Command, Effects, Enqueued, Ledger};
use crate::audit::AuditNote;
use crate::event::{EventKind, RemoveReason, Subject};
use crate::job::{CancelReason, JobId, NewJob, State, StateName};
use crate::limits;
use crate::name::Name;
use crate::object::{Address, Alarm, ObjectChange, ObjectMeta, ObjectStatus, Purge, Turn};
use crate::outcome::ErrorText;
use crate::record::{Change, RecordLocation};
use crate::refusal::Refusal;
use crate::time::Timestamp;

/// What a turn answers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "wire", derive(serde::Serialize, serde::Deserialize))]
pub struct Turned {
    /// The object's version now; 0 if it was purged.
    pub version: u64,
    /// What became of the turn's jobs, in their order.
    pub jobs: Vec<Enqueued>,
}

impl Command for Turn {
    type Reply = Turned;

    fn run(self, ledger: &mut Ledger, effects: &mut Effects) -> Result<Turned, Refusal> {
        let plan = ledger.plan_turn(self, Vec::new(), effects.now.wall)?;
        let turned = ledger.carry_out_turn(plan, effects);
        ledger.keep_bounded(effects);
        Ok(turned)
    }
}

/// All objects, and which jobs are bound to them.
#[derive(Debug, Default)]
pub(super) struct Objects {
    ids: BTreeMap<Address, u32>,
    slots: Vec<Option<ObjectSlot>>,
    vacant: Vec<u32>,
    /// Kinds and names of objects, to be shared by their addresses, with how many objects have it.
    names: BTreeMap<Name, u64>,
    /// Open jobs, by object.
    open: BTreeSet<(u32, u32)>,
    purges: BTreeSet<(Timestamp, Address)>,
    kept: u64,
    /// Bound jobs that ended during this command, and the state of each.
    ended: Vec<(u32, JobId, StateName)>,
}

/// An address that an object has, or a job is bound to.
#[derive(Debug)]
struct ObjectSlot {
    address: Address,
    /// `None` if there is no such object, any more or yet.
    object: Option<ObjectEntry>,
    /// Kept jobs that are bound to it, open or finished.
    jobs: u64,
}

#[derive(Debug)]
struct ObjectEntry {
    meta: ObjectMeta,
    place: RecordLocation,
}

/// A turn that has passed every check.
pub(super) struct TurnPlan {
    turn: Turn,
    /// Jobs that come with it, then the alarm if it is a new job, then the turn's own jobs. They
    /// are one batch, so that they are checked against each other.
    batch: Plan,
    /// How many jobs come with it.
    others: usize,
    /// The alarm, if it is a new job.
    alarm: Option<JobId>,
    /// The alarm, if it is moved: when it goes off.
    moved: Option<Timestamp>,
}

impl Objects {
    fn get(&self, number: u32) -> Option<&ObjectSlot> {
        self.slots.get(number as usize)?.as_ref()
    }

    fn slot_mut(&mut self, number: u32) -> &mut ObjectSlot {
        self.slots[number as usize].as_mut().expect("a number stands for an address")
    }

    fn entry(&self, number: u32) -> Option<&ObjectEntry> {
        self.get(number)?.object.as_ref()
    }

    pub(super) fn find(&self, address: &Address) -> Option<u32> {
        self.ids.get(address).copied()
    }

    /// The number of an address, which may be new.
    pub(super) fn number(&mut self, address: &Address) -> u32 {
        if let Some(&number) = self.ids.get(address) {
            return number;
        }
        let kind = self.shared(address.kind());
        let name = self.shared(address.name());
        let address = address.clone().sharing(kind, name);
        let slot = Some(ObjectSlot { address: address.clone(), object: None, jobs: 0 });
        let number = match self.vacant.pop() {
            Some(number) => {
                self.slots[number as usize] = slot;
                number
            }
            None => {
                self.slots.push(slot);
                u32::try_from(self.slots.len() - 1).expect("fewer than 2^32 objects fit in memory")
            }
        };
        self.ids.insert(address, number);
        number
    }

    fn shared(&mut self, name: &Name) -> Name {
        let known = self.names.get_key_value(name).map(|(name, _)| name.clone());
        let name = known.unwrap_or_else(|| name.clone());
        *self.names.entry(name.clone()).or_default() += 1;
        name
    }

    /// The address that a number stands for.
    pub(super) fn address(&self, number: u32) -> Option<Address> {
        self.get(number).map(|slot| slot.address.clone())
    }

    /// Whether there is such an object.
    pub(super) fn contains(&self, address: &Address) -> bool {
        self.find(address).is_some_and(|number| self.entry(number).is_some())
    }

    /// Forgets addresses that were met while reading, and that nothing has.
    pub(super) fn tidy(&mut self) {
        let numbers: Vec<u32> = self.ids.values().copied().collect();
        numbers.into_iter().for_each(|number| self.release(number));
    }

    /// The bytes that the records of all objects take.
    pub(super) fn weight(&self) -> u64 {
        let slots = self.slots.iter().flatten().filter_map(|slot| slot.object.as_ref());
        slots.map(|object| u64::from(object.place.weight)).sum()
    }

    /// One more kept job is bound to it.
    pub(super) fn bind(&mut self, number: u32) {
        self.slot_mut(number).jobs += 1;
    }

    /// One kept job less is bound to it.
    pub(super) fn unbind(&mut self, number: u32) {
        self.slot_mut(number).jobs -= 1;
        self.release(number);
    }

    /// Forgets an address that neither an object nor a job has.
    fn release(&mut self, number: u32) {
        let slot = self.slot_mut(number);
        if slot.jobs > 0 || slot.object.is_some() {
            return;
        }
        let address = slot.address.clone();
        self.ids.remove(&address);
        for name in [address.kind(), address.name()] {
            if let Some(uses) = self.names.get_mut(name) {
                *uses -= 1;
                if *uses == 0 {
                    self.names.remove(name);
                }
            }
        }
        self.slots[number as usize] = None;
        self.vacant.push(number);
    }

    /// Puts an object into the ledger as it now is, wherever its record is kept.
    pub(super) fn write(&mut self, number: u32, meta: ObjectMeta) {
        let (purge_at, slot) = (meta.purge_at, self.slot_mut(number));
        let old = slot.object.take();
        let place = old.as_ref().map_or_else(RecordLocation::default, |object| object.place);
        slot.object = Some(ObjectEntry { meta, place });
        let address = slot.address.clone();
        self.kept += u64::from(old.is_none());
        let before = old.and_then(|object| object.meta.purge_at);
        if before == purge_at {
            return;
        }
        if let Some(at) = before {
            self.purges.remove(&(at, address.clone()));
        }
        if let Some(at) = purge_at {
            self.purges.insert((at, address));
        }
    }

    fn erase(&mut self, number: u32) -> Option<ObjectEntry> {
        let slot = self.slot_mut(number);
        let (object, address) = (slot.object.take()?, slot.address.clone());
        self.kept -= 1;
        if let Some(at) = object.meta.purge_at {
            self.purges.remove(&(at, address));
        }
        self.release(number);
        Some(object)
    }

    /// A bound job is now in this state.
    pub(super) fn note(&mut self, number: u32, slot: u32, job: JobId, state: StateName) {
        if !state.is_terminal() {
            self.open.insert((number, slot));
        } else if self.open.remove(&(number, slot)) {
            self.ended.push((number, job, state));
            self.resume_purge(number);
        }
    }

    /// A purge waits for open jobs: it is due again when the last of them has ended.
    fn resume_purge(&mut self, number: u32) {
        let purge_at = self.entry(number).and_then(|object| object.meta.purge_at);
        let has_open_jobs = self.open_jobs(number).next().is_some();
        if let Some(at) = purge_at.filter(|_| !has_open_jobs)
            && let Some(address) = self.address(number)
        {
            self.purges.insert((at, address));
        }
    }

    /// A bound job is no longer kept.
    pub(super) fn forget(&mut self, number: u32, slot: u32) {
        if self.open.remove(&(number, slot)) {
            self.resume_purge(number);
        }
    }

    fn open_jobs(&self, number: u32) -> impl Iterator<Item = u32> + '_ {
        self.open.range((number, 0)..=(number, u32::MAX)).map(|(_, slot)| *slot)
    }
}

impl Ledger {
    /// Checks a turn, and a batch that is accepted with it, without changing anything.
    pub(super) fn plan_turn(
        &self,
        turn: Turn,
        mut batch: Vec<Arc<NewJob>>,
        now: Timestamp,
    ) -> Result<TurnPlan, Refusal> {
        let known = self.objects.find(&turn.object);
        let known = known.and_then(|number| self.objects.entry(number));
        let version = known.map_or(0, |object| object.meta.version);
        if version != turn.version {
            return Err(Refusal::ObjectChanged { object: turn.object, version });
        }
        turn.check(now)?;
        let names = [turn.object.kind(), turn.object.name()];
        let fresh = names.into_iter().filter(|name| !self.objects.names.contains_key(*name));
        let fresh = fresh.count();
        // The names of the audit trail may be one too many: no known object suffers for that.
        if fresh > 0 {
            limits::OBJECT_NAMES_BOUND.check(self.objects.names.len() + fresh)?;
        }
        let (mut alarm, mut moved, others) = (None, None, batch.len());
        if let Some(job) = turn.alarm_job() {
            let current = known.and_then(|object| object.meta.alarm);
            if current.is_some_and(|current| self.is_moved_by(current, &job)) {
                moved = Some(job.start.due(now));
            } else {
                alarm = Some(job.id);
                batch.push(job);
            }
        }
        batch.extend(turn.jobs.iter().cloned());
        let batch = self.plan_for(batch, Some(&turn.object), now)?;
        if let Some(job) = alarm {
            batch.must_add(others, job)?;
        }
        Ok(TurnPlan { turn, batch, others, alarm, moved })
    }

    /// Whether setting this alarm only moves the one there is.
    fn is_moved_by(&self, current: JobId, job: &NewJob) -> bool {
        self.find(current).map(|slot| self.entry(slot)).is_some_and(|entry| {
            entry.phase.name().is_waiting()
                && !entry.begun()
                && entry.fingerprint == job.fingerprint()
        })
    }

    /// Writes a checked turn. Nothing can fail any more.
    pub(super) fn carry_out_turn(&mut self, plan: TurnPlan, effects: &mut Effects) -> Turned {
        let TurnPlan { turn, batch, others, alarm, moved } = plan;
        let now = effects.now.wall;
        self.audit(AuditNote::of_turn(&turn).as_ref(), turn.jobs.len() as u64, effects);
        let number = self.objects.number(&turn.object);
        let known = self.objects.entry(number).map(|object| object.meta.clone());
        let is_new = known.is_none();
        let mut meta = known.unwrap_or_else(|| ObjectMeta::new(now, self.next_sequence));
        // An alarm that has ended is none: the turn that follows from it says what comes next.
        meta.alarm = meta.alarm.filter(|job| self.is_open(*job));
        meta.take_turn(&turn, now);
        // Before its jobs, which are bound to it.
        self.objects.write(number, meta.clone());
        if is_new {
            self.tell_of(Subject::Object(turn.object.clone()), EventKind::ObjectCreated, effects);
        }
        let mut jobs = self.carry_out(batch, effects);
        jobs.drain(..others + usize::from(alarm.is_some()));
        // After the jobs, which may depend on the alarm that goes.
        meta.alarm = self.set_alarm(meta.alarm, &turn.alarm, alarm, moved, effects);
        self.objects.write(number, meta.clone());
        for news in turn.news {
            self.tell_of(Subject::Object(turn.object.clone()), news.told(), effects);
        }
        if turn.purge == Purge::Now {
            self.purge_object(number, effects);
            return Turned { version: 0, jobs };
        }
        let version = meta.version;
        // A new object has a state, even if it is empty.
        let state = turn.state.or_else(|| is_new.then(|| Vec::new().into()));
        let change = ObjectChange { address: turn.object, meta, state };
        effects.changes.push(Change::Object(alloc::boxed::Box::new(change)));
        Turned { version, jobs }
    }

    fn is_open(&self, job: JobId) -> bool {
        self.find(job).is_some_and(|slot| !self.entry(slot).phase.name().is_terminal())
    }

    /// Moves, replaces or calls off an alarm; which job is the alarm then.
    fn set_alarm(
        &mut self,
        current: Option<JobId>,
        wanted: &Alarm,
        fresh: Option<JobId>,
        moved: Option<Timestamp>,
        effects: &mut Effects,
    ) -> Option<JobId> {
        match wanted {
            Alarm::Keep => current,
            Alarm::Cancel => {
                if let Some(job) = current {
                    self.call_off(job, effects);
                }
                None
            }
            Alarm::Move(start) => {
                if let Some(job) = current {
                    // One that runs cannot be moved, and need not be.
                    let _ = self.reschedule(job, start.due(effects.now.wall), effects);
                }
                current
            }
            Alarm::Set(_) => {
                if let (Some(job), Some(at)) = (current, moved) {
                    let _ = self.reschedule(job, at, effects);
                    return Some(job);
                }
                if let Some(job) = current
                    && self.find(job).is_some_and(|slot| !self.entry(slot).begun())
                {
                    self.call_off(job, effects);
                }
                fresh
            }
        }
    }

    /// Takes a bound job that waits out of the ledger, or cancels it if it has started.
    fn call_off(&mut self, job: JobId, effects: &mut Effects) {
        let Some(slot) = self.find(job) else { return };
        let entry = self.entry(slot);
        if entry.phase.name().is_waiting() && !entry.begun() {
            // It was never more than an intention: no trace of it is worth keeping.
            self.remove(slot, RemoveReason::Requested, effects);
        } else if !entry.phase.name().is_terminal() {
            let _ = self.cancel_keeping_all(job, CancelReason::Requested, effects);
        }
    }

    /// Deletes an object with all that waits of it; what runs is told to stop.
    pub(super) fn purge_object(&mut self, number: u32, effects: &mut Effects) {
        let Some(address) = self.objects.get(number).map(|slot| slot.address.clone()) else {
            return;
        };
        let open = self.objects.open_jobs(number).map(|slot| self.entry(slot));
        let mut open: Vec<(u64, JobId)> = open.map(|entry| (entry.sequence, entry.id)).collect();
        // The numbers of a ledger that was restored are others.
        open.sort_unstable();
        for (_, job) in open {
            self.call_off(job, effects);
        }
        let Some(object) = self.objects.erase(number) else { return };
        self.kept_bytes -= u64::from(object.place.weight);
        self.tell_of(Subject::Object(address.clone()), EventKind::ObjectRemoved, effects);
        effects.changes.push(Change::ObjectGone { address });
    }

    /// Deletes objects whose time has come and that nothing is left to do for, at most so many.
    pub(super) fn purge_objects(&mut self, effects: &mut Effects) -> u64 {
        let mut purged = 0;
        while let Some((at, address)) = self.objects.purges.first().cloned()
            && at <= effects.now.wall
            && purged < limits::SWEEP_BATCH as u64
            && let Some(number) = self.objects.find(&address)
        {
            if self.objects.open_jobs(number).next().is_some() {
                self.objects.purges.remove(&(at, address));
                continue;
            }
            self.purge_object(number, effects);
            purged += 1;
        }
        if purged > 0 {
            self.keep_bounded(effects);
        }
        purged
    }

    /// When the next object is purged.
    pub(super) fn next_purge(&self) -> Option<Timestamp> {
        self.objects.purges.first().map(|(at, _)| *at)
    }

    /// What befell bound jobs without a turn reaches their objects.
    pub(super) fn tell_objects(&mut self, effects: &mut Effects) {
        for (number, job, state) in core::mem::take(&mut self.objects.ended) {
            let Some(object) = self.objects.entry(number) else { continue };
            if object.meta.alarm != Some(job) {
                continue;
            }
            let mut meta = object.meta.clone();
            meta.alarm = None;
            let end = match state {
                StateName::Dead => self.how_it_died(job),
                StateName::Cancelled => "was cancelled".to_string(),
                StateName::Completed
                | StateName::Blocked
                | StateName::Scheduled
                | StateName::Ready
                | StateName::Running => String::new(),
            };
            if !end.is_empty() && meta.status == ObjectStatus::Active {
                meta.status = ObjectStatus::Failed;
                meta.reason = Some(ErrorText::new(format!("its alarm, job {job}, {end}")));
                let detail = format!("{{\"job\":\"{job}\",\"why\":\"its alarm {end}\"}}");
                self.tell_object(number, "failed", detail, effects);
            }
            self.change_object(number, meta, effects);
        }
    }

    fn how_it_died(&self, job: JobId) -> String {
        match self.find(job).map(|slot| self.entry(slot).phase) {
            Some(Phase::Dead { reason, .. }) => format!("died: {reason}"),
            Some(_) | None => "died".to_string(),
        }
    }

    /// A job of an object was recovered from a lost worker.
    pub(super) fn note_recovery(&mut self, slot: u32, effects: &mut Effects) {
        let Some(number) = self.entry(slot).extras.as_ref().and_then(|extras| extras.object) else {
            return;
        };
        let Some(object) = self.objects.entry(number) else { return };
        let mut meta = object.meta.clone();
        meta.recoveries += 1;
        meta.last_recovery_at = Some(effects.now.wall);
        let (job, attempt) = (self.entry(slot).id, meta.recoveries);
        self.change_object(number, meta, effects);
        let detail = format!("{{\"job\":\"{job}\",\"attempt\":{attempt}}}");
        self.tell_object(number, "recovered", detail, effects);
    }

    pub(super) fn change_object(
        &mut self,
        number: u32,
        mut meta: ObjectMeta,
        effects: &mut Effects,
    ) {
        meta.version += 1;
        meta.updated_at = effects.now.wall;
        self.objects.write(number, meta.clone());
        let address = self.objects.slot_mut(number).address.clone();
        let change = ObjectChange { address, meta, state: None };
        effects.changes.push(Change::Object(alloc::boxed::Box::new(change)));
    }

    /// Tells something of an object that follows from its jobs, under the topic of its kind.
    fn tell_object(&mut self, number: u32, what: &str, detail: String, effects: &mut Effects) {
        let Some(address) = self.objects.get(number).map(|slot| slot.address.clone()) else {
            return;
        };
        let topic = Name::new(&format!("{}.{what}", address.kind()));
        let topic = topic.unwrap_or_else(|_| address.kind().clone());
        let what = EventKind::Object { topic, detail: detail.into() };
        self.tell_of(Subject::Object(address), what, effects);
    }
}

// What there is to see.
impl Ledger {
    /// What is known of an object besides its state, and where its record is kept.
    pub fn object(&self, address: &Address) -> Option<(&ObjectMeta, RecordLocation)> {
        let object = self.objects.entry(self.objects.find(address)?)?;
        Some((&object.meta, object.place))
    }

    /// Since when a job of the object runs, when its alarm goes off, and how many of its jobs are
    /// open.
    pub fn object_jobs(&self, address: &Address) -> (Option<Timestamp>, Option<Timestamp>, u64) {
        let Some(number) = self.objects.find(address) else { return (None, None, 0) };
        let open: Vec<u32> = self.objects.open_jobs(number).collect();
        let running = open.iter().filter_map(|slot| match self.status(*slot).state {
            State::Running(lease) => Some(lease.since),
            State::Blocked { .. }
            | State::Scheduled { .. }
            | State::Ready { .. }
            | State::Completed { .. }
            | State::Dead { .. }
            | State::Cancelled { .. } => None,
        });
        let alarm = self.objects.entry(number).and_then(|object| object.meta.alarm);
        let alarm = alarm.and_then(|job| self.find(job)).map(|slot| self.entry(slot).phase);
        let alarm_at = alarm.and_then(|phase| match phase {
            Phase::Scheduled { at } | Phase::Ready { since: at } => Some(at),
            Phase::Blocked { not_before, .. } => Some(not_before),
            Phase::Running { .. }
            | Phase::Completed { .. }
            | Phase::Dead { .. }
            | Phase::Cancelled { .. } => None,
        });
        (running.min(), alarm_at, open.len() as u64)
    }

    /// The objects after this address, in order.
    pub fn objects_after<'a>(
        &'a self,
        address: Option<&Address>,
    ) -> impl Iterator<Item = (&'a Address, &'a ObjectMeta, RecordLocation)> + use<'a> {
        let after = match address {
            Some(address) => core::ops::Bound::Excluded(address.clone()),
            None => core::ops::Bound::Unbounded,
        };
        let range = self.objects.ids.range((after, core::ops::Bound::Unbounded));
        range.filter_map(|(address, number)| {
            let object = self.objects.entry(*number)?;
            Some((address, &object.meta, object.place))
        })
    }

    /// The objects of one kind after this address, in order.
    pub fn objects_of<'a>(
        &'a self,
        kind: &Name,
        address: Option<&Address>,
    ) -> impl Iterator<Item = (&'a Address, &'a ObjectMeta, RecordLocation)> + use<'a> {
        let (kind, first) = (kind.clone(), Address::before_all_of(kind));
        let after = address.filter(|address| **address > first).unwrap_or(&first);
        self.objects_after(Some(after)).take_while(move |(address, ..)| *address.kind() == kind)
    }

    /// How many objects are kept.
    pub fn object_count(&self) -> u64 {
        self.objects.kept
    }

    /// Notes where the store keeps an object's record; an unknown object is passed over.
    pub fn keep_object(&mut self, address: &Address, kept: RecordLocation) {
        let Some(number) = self.objects.find(address) else { return };
        if let Some(object) = self.objects.slot_mut(number).object.as_mut() {
            self.kept_bytes -= u64::from(object.place.weight);
            self.kept_bytes += u64::from(kept.weight);
            object.place = kept;
        }
    }

    /// Takes an object over as it was kept: for [`super::Restore`].
    pub(super) fn restore_object(&mut self, address: &Address, meta: ObjectMeta) {
        // No job that is accepted later may be taken for one of an object before it.
        self.next_sequence = self.next_sequence.max(meta.incarnation);
        let number = self.objects.number(address);
        self.objects.write(number, meta);
    }

    /// Lets go of an object that was removed later: for [`super::Restore`].
    pub(super) fn restore_removal(&mut self, address: &Address) {
        let Some(number) = self.objects.find(address) else { return };
        // The address stays until all is read: a job may be bound to it.
        if let Some(object) = self.objects.slot_mut(number).object.take() {
            self.objects.kept -= 1;
            self.objects.purges.retain(|(_, other)| other != address);
            self.kept_bytes -= u64::from(object.place.weight);
        }
    }

    /// Everything that is wrong with the objects, in words.
    pub(super) fn check_objects(&self, wrong: &mut Vec<String>) {
        let mut open = BTreeSet::new();
        let mut jobs: BTreeMap<u32, u64> = BTreeMap::new();
        for (slot, entry) in self.entries.iter() {
            let Some(number) = entry.extras.as_ref().and_then(|extras| extras.object) else {
                continue;
            };
            *jobs.entry(number).or_default() += 1;
            if !entry.phase.name().is_terminal() {
                open.insert((number, slot));
            }
        }
        if open != self.objects.open {
            wrong.push("the jobs of objects are not those that are bound to them".to_string());
        }
        for (address, number) in &self.objects.ids {
            let Some(slot) = self.objects.get(*number) else {
                wrong.push(format!("object {address} has no place"));
                continue;
            };
            if slot.jobs != jobs.get(number).copied().unwrap_or(0) {
                wrong.push(format!("object {address} counts {} jobs", slot.jobs));
            }
            let alarm = slot.object.as_ref().and_then(|object| object.meta.alarm);
            let there = |job: JobId| {
                self.find(job).is_some_and(|job| self.objects.open.contains(&(*number, job)))
            };
            if alarm.is_some_and(|job| !there(job)) {
                wrong.push(format!("object {address} waits for an alarm that is not there"));
            }
        }
    }

    /// The objects as text, in a fixed order.
    pub(super) fn dump_objects(&self, text: &mut String) {
        for (address, meta, _) in self.objects_after(None) {
            let _ = writeln!(text, "object {address} {meta:?}");
        }
    }
}
