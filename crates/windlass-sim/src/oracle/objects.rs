//! What is believed of objects: what turns that counted have said, and what was told since.
//!
//! A turn counts as a whole: state, runs and alarm of an object are those of its last turn, after a
//! crash too. What befalls its alarm without a turn reaches it in the same commit.

use std::collections::BTreeMap;

use windlass_core::event::{Event, EventKind};
use windlass_core::job::{Bytes, JobId};
use windlass_core::object::{Address, Alarm, ObjectStatus, ObjectView, RunResult, Turn};
use windlass_core::refusal::Refusal;

use super::Oracle;
use super::model::{Model, Stand, Told};
use crate::answer::Snapshot;
use crate::cover::{Cover, Point};
use crate::{Checked, ensure};

/// An object, as believed.
#[derive(Clone, Debug)]
pub(super) struct Believed {
    /// It is at least at this version.
    version: u64,
    status: ObjectStatus,
    state: Bytes,
    runs: u64,
    /// The job that is its alarm.
    alarm: Option<JobId>,
    /// Its alarm died or was cancelled since its last turn.
    lost: bool,
    /// How many jobs had been accepted when it was made.
    after: u64,
}

impl Model {
    /// Something was told of an object.
    pub(super) fn object_event(&mut self, address: &Address, event: &Event, cover: &mut Cover) {
        match &event.what {
            EventKind::ObjectCreated => {
                let believed = Believed {
                    version: 0,
                    status: ObjectStatus::Active,
                    state: Vec::new().into(),
                    runs: 0,
                    alarm: None,
                    lost: false,
                    after: self.accepted,
                };
                self.objects.insert(address.clone(), believed);
            }
            EventKind::ObjectRemoved => {
                cover.hit_if(Point::PurgedWithJobs, self.called_off);
                self.objects.remove(address);
            }
            EventKind::Object { topic, .. } if topic.as_str().ends_with(".failed") => {
                cover.hit(Point::ObjectFailed);
                let failed = |believed: &mut Believed| believed.status = ObjectStatus::Failed;
                self.objects.entry(address.clone()).and_modify(failed);
            }
            EventKind::Object { topic, .. } if topic.as_str().ends_with(".recovered") => {
                cover.hit(Point::AlarmRecovered);
            }
            _ => {}
        }
    }
}

impl Model {
    /// An alarm that has ended is none any more, even if its job is replayed.
    pub(super) fn end_alarms(&mut self) {
        for believed in self.objects.values_mut() {
            let Some(job) = believed.alarm else { continue };
            let told = self.jobs.get(&job);
            if told.is_some_and(is_open) {
                continue;
            }
            believed.alarm = None;
            believed.lost = told.is_some_and(|told| {
                matches!(told.stand, Stand::Dead { .. } | Stand::Cancelled { .. })
            });
        }
    }
}

impl Oracle {
    /// A turn counts.
    pub(super) fn turned(&mut self, turn: &Turn, cover: &mut Cover) -> Checked {
        let accepted = |job: JobId| self.model.jobs.contains_key(&job);
        let moved = match &turn.alarm {
            Alarm::Set(job) => !accepted(job.id),
            Alarm::Keep | Alarm::Cancel | Alarm::Move(_) => false,
        };
        let object = &turn.object;
        // It may have been purged by this very turn.
        let Some(believed) = self.model.objects.get_mut(object) else { return Ok(()) };
        let known = believed.version;
        ensure!(
            turn.version >= known,
            "a turn of {object} for {} came after {known}",
            turn.version
        );
        believed.version = turn.version + 1;
        if let Some((status, _)) = turn.status {
            believed.status = status;
        }
        believed.state = turn.state.clone().unwrap_or_else(|| believed.state.clone());
        believed.runs += u64::from(turn.ran == Some(RunResult::Well));
        let old = believed.alarm;
        // The turn that settles an alarm says what comes next, and that may be nothing.
        believed.lost = false;
        believed.alarm = match &turn.alarm {
            Alarm::Keep | Alarm::Move(_) => old,
            Alarm::Cancel => None,
            Alarm::Set(_) if moved => old,
            Alarm::Set(job) => Some(job.id),
        };
        let waits = old.and_then(|job| self.model.jobs.get(&job));
        ensure!(!moved || waits.is_some_and(is_open), "{object} has no alarm that could be moved");
        cover.hit_if(Point::AlarmMoved, moved);
        Ok(())
    }

    /// Whether a refusal of a turn is so.
    pub(super) fn refuses_turn(&self, refusal: &Refusal, cover: &mut Cover) -> bool {
        match refusal {
            Refusal::ObjectChanged { object, version } => {
                cover.hit(Point::StaleTurn);
                let known = self.model.objects.get(object).map_or(0, |object| object.version);
                *version >= known
            }
            Refusal::UnknownObject { object } => !self.model.objects.contains_key(object),
            _ => false,
        }
    }

    pub(super) fn compare_objects(&self, snapshot: &Snapshot) -> Checked {
        let found: BTreeMap<&Address, &ObjectView> =
            snapshot.objects.iter().map(|view| (&view.record.address, view)).collect();
        for address in self.model.objects.keys() {
            ensure!(found.contains_key(address), "object {address} is not there");
        }
        for (address, view) in found {
            let Some(believed) = self.model.objects.get(address) else {
                ensure!(false, "object {address} is there and should not be");
                continue;
            };
            self.compare_object(address, believed, view)?;
            for record in
                snapshot.jobs.iter().filter(|job| job.job.object.as_ref() == Some(address))
            {
                let id = record.id();
                let came_after = self.model.jobs[&id].place > believed.after;
                let owned = view.record.meta.owns(record.sequence);
                ensure!(owned == came_after, "object {address} owns job {id}: {owned}");
            }
        }
        Ok(())
    }

    fn compare_object(&self, address: &Address, believed: &Believed, view: &ObjectView) -> Checked {
        let meta = &view.record.meta;
        let words = || format!("object {address} is {view:?} and should be {believed:?}");
        ensure!(view.record.state == believed.state, "{}: its state", words());
        ensure!(meta.version >= believed.version, "{}: its version went back", words());
        ensure!(meta.runs == believed.runs, "{}: its runs", words());
        ensure!(meta.status == believed.status, "{}: its status", words());
        ensure!(meta.alarm == believed.alarm, "{}: its alarm", words());
        let orphaned = believed.lost && meta.status == ObjectStatus::Active;
        ensure!(!orphaned, "{}: it waits for an alarm that has failed", words());
        let bound =
            self.model.jobs.values().filter(|told| told.job.object.as_ref() == Some(address));
        let open = bound.filter(|told| is_open(told)).count() as u64;
        ensure!(view.open_jobs == open, "{}: {open} of its jobs are open", words());
        Ok(())
    }
}

fn is_open(told: &Told) -> bool {
    !told.stand.is_terminal()
}
