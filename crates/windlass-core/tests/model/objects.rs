//! Objects, as the model does it: a map of addresses, and a scan of all jobs for those of one.

use windlass_core::job::{Bytes, CancelReason, JobId, NewJob, Start, State, StateName};
use windlass_core::ledger::Turned;
use windlass_core::object::{Address, Alarm, ObjectMeta, ObjectStatus, Purge, RunResult, Turn};
use windlass_core::outcome::ErrorText;
use windlass_core::refusal::Refusal;
use windlass_core::time::Timestamp;

use super::accept::{Planned, check_delay, same_content};
use super::{About, Job, Naive};

/// One object.
#[derive(Clone, Debug)]
pub(crate) struct Object {
    pub(crate) meta: ObjectMeta,
    pub(crate) state: Bytes,
}

/// A turn that has passed every check.
pub(super) struct PlannedTurn {
    turn: Turn,
    batch: Vec<Planned>,
    /// How many of the batch are not the turn's own jobs.
    before: usize,
    /// The alarm, if it is a new job.
    alarm: Option<JobId>,
    /// The alarm, if it is moved: when it goes off.
    moved: Option<Timestamp>,
}

impl Naive {
    pub(crate) fn turn(&mut self, turn: Turn) -> Result<Turned, Refusal> {
        let plan = self.plan_turn(turn, Vec::new(), None)?;
        let turned = self.carry_out_turn(plan);
        self.trim_due = true;
        self.trim();
        Ok(turned)
    }

    /// Checks a turn; `others` are accepted with it, and `giving` gives its key away.
    pub(super) fn plan_turn(
        &mut self,
        turn: Turn,
        others: Vec<NewJob>,
        giving: Option<JobId>,
    ) -> Result<PlannedTurn, Refusal> {
        let object = turn.object.clone();
        let known = self.objects.get(&object);
        let version = known.map_or(0, |known| known.meta.version);
        if version != turn.version {
            return Err(Refusal::ObjectChanged { object, version });
        }
        let start = match &turn.alarm {
            Alarm::Set(job) => job.start,
            Alarm::Move(start) => *start,
            Alarm::Keep | Alarm::Cancel => Start::Now,
        };
        let start = self.checked_start(start)?;
        let set = match &turn.alarm {
            Alarm::Set(job) => Some(job),
            Alarm::Keep | Alarm::Cancel | Alarm::Move(_) => None,
        };
        let mut bound = set.into_iter().chain(&turn.jobs).filter_map(|job| job.object.as_ref());
        if let Some(other) = bound.find(|other| **other != object) {
            return Err(Refusal::UnknownObject { object: other.clone() });
        }
        let current = known.and_then(|known| known.meta.alarm).and_then(|id| self.jobs.get(&id));
        let (mut alarm, mut moved, mut own) = (None, None, Vec::new());
        if let Alarm::Set(job) = &turn.alarm {
            if current
                .is_some_and(|current| is_intention(current) && same_content(&current.new, job))
            {
                moved = Some(start);
            } else {
                alarm = Some(job.id);
                let object = job.object.clone().or(Some(object.clone()));
                own.push(NewJob { object, ..NewJob::clone(job) });
            }
        }
        if let Alarm::Move(_) = turn.alarm {
            moved = Some(start);
        }
        own.extend(turn.jobs.iter().map(|job| NewJob::clone(job)));
        let (place, before) = (others.len(), others.len() + usize::from(alarm.is_some()));
        let batch = others.into_iter().chain(own).collect();
        let batch = self.plan(batch, giving, Some(&object))?;
        if let (Some(job), Some(Planned::Known(known, _, acceptance))) = (alarm, batch.get(place)) {
            use windlass_core::ledger::Acceptance;
            return Err(match acceptance {
                Acceptance::Deduplicated { .. } => Refusal::KeyTaken { job, holder: *known },
                Acceptance::Accepted | Acceptance::AlreadyAccepted => Refusal::IdReused { job },
            });
        }
        Ok(PlannedTurn { turn, batch, before, alarm, moved })
    }

    fn checked_start(&self, start: Start) -> Result<Timestamp, Refusal> {
        let at = match start {
            Start::Now => self.now.wall,
            Start::After(delay) => self.now.wall + delay,
            Start::At(at) => at,
        };
        check_delay(at.since(self.now.wall))?;
        Ok(at)
    }

    pub(super) fn carry_out_turn(&mut self, plan: PlannedTurn) -> Turned {
        let PlannedTurn { turn, batch, before, alarm, moved } = plan;
        let now = self.now.wall;
        let address = turn.object.clone();
        let known = self.objects.get(&address).cloned();
        if known.is_none() {
            self.told.push((About::Object(address.clone()), "object.created"));
        }
        let mut object = known.unwrap_or_else(|| first(now, self.next_sequence));
        let meta = &mut object.meta;
        meta.alarm = meta.alarm.filter(|id| self.jobs.get(id).is_some_and(Job::is_open));
        meta.version += 1;
        meta.updated_at = now;
        if let Some((status, reason)) = turn.status {
            (meta.status, meta.reason) = (status, reason);
        }
        match turn.ran {
            Some(RunResult::Well) => {
                meta.runs += 1;
                meta.last_success_at = Some(now);
                meta.recoveries = 0;
            }
            Some(RunResult::Badly) => meta.failures += 1,
            None => {}
        }
        match turn.purge {
            Purge::Keep | Purge::Now => {}
            Purge::After(delay) => meta.purge_at = Some(now + delay),
            Purge::Never => meta.purge_at = None,
        }
        object.state = turn.state.unwrap_or(object.state);
        self.objects.insert(address.clone(), object.clone());
        let jobs = self.carry_out(batch).split_off(before);
        let current = object.meta.alarm;
        object.meta.alarm = self.set_alarm(current, &turn.alarm, alarm, moved);
        let version = object.meta.version;
        self.objects.insert(address.clone(), object);
        for _ in turn.news {
            self.told.push((About::Object(address.clone()), "loop.told"));
        }
        if turn.purge == Purge::Now {
            self.purge(&address);
            return Turned { version: 0, jobs };
        }
        Turned { version, jobs }
    }

    fn set_alarm(
        &mut self,
        current: Option<JobId>,
        wanted: &Alarm,
        fresh: Option<JobId>,
        moved: Option<Timestamp>,
    ) -> Option<JobId> {
        match (wanted, current) {
            (Alarm::Keep, _) => current,
            (Alarm::Cancel, _) => {
                current.into_iter().for_each(|id| self.call_off(id));
                None
            }
            (Alarm::Move(_), None) => None,
            (Alarm::Set(_) | Alarm::Move(_), Some(id)) if moved.is_some() => {
                let _ = self.reschedule_one(id, moved?);
                current
            }
            (Alarm::Set(_) | Alarm::Move(_), _) => {
                let old = current.filter(|id| is_intention(&self.jobs[id]));
                old.into_iter().for_each(|id| self.call_off(id));
                fresh
            }
        }
    }

    /// Forgets a job that never started, and cancels any other that is open.
    fn call_off(&mut self, id: JobId) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        if is_intention(job) {
            self.remove_waiting(id);
        } else if let State::Running(lease) = &mut job.status.state {
            if !std::mem::replace(&mut lease.cancel_requested, true) {
                self.tell(id, "job.cancel_requested");
            }
        } else if job.is_open() {
            let at = self.now.wall;
            self.end_keeping_all(id, State::Cancelled { at, reason: CancelReason::Requested });
        }
    }

    fn purge(&mut self, address: &Address) {
        let mut open: Vec<(u64, JobId)> =
            self.open_of(address).map(|job| (job.sequence, job.id())).collect();
        open.sort_unstable();
        open.into_iter().for_each(|(_, id)| self.call_off(id));
        self.objects.remove(address);
        self.told.push((About::Object(address.clone()), "object.removed"));
    }

    /// Purges objects whose time has come; how many.
    pub(super) fn purge_due(&mut self) -> u64 {
        let now = self.now.wall;
        let due = self.objects.iter().filter_map(|(address, object)| {
            let at = object.meta.purge_at.filter(|at| *at <= now)?;
            let idle = self.open_of(address).next().is_none();
            idle.then(|| (at, address.clone()))
        });
        let mut due: Vec<_> = due.collect();
        due.sort();
        due.iter().for_each(|(_, address)| self.purge(address));
        self.trim_due |= !due.is_empty();
        self.trim();
        due.len() as u64
    }

    /// When objects that nothing is left to do for are purged, and the others at the earliest.
    pub(super) fn purge_times(&self) -> impl Iterator<Item = Timestamp> {
        let now = self.now.wall;
        self.objects.iter().filter_map(move |(address, object)| {
            let idle = self.open_of(address).next().is_none();
            object.meta.purge_at.filter(|at| idle || *at > now)
        })
    }

    /// Open jobs that are bound to an object.
    fn open_of(&self, address: &Address) -> impl Iterator<Item = &Job> {
        let bound = self.jobs.values().filter(move |job| job.new.object.as_ref() == Some(address));
        bound.filter(|job| job.is_open())
    }

    /// Alarms that ended without a turn which says what comes next.
    pub(super) fn hear_of_alarms(&mut self) {
        let now = self.now.wall;
        for (address, id, state) in std::mem::take(&mut self.ended_bound) {
            let object = self.objects.get_mut(&address);
            let Some(object) = object.filter(|object| object.meta.alarm == Some(id)) else {
                continue;
            };
            let end = match state {
                StateName::Dead => Some(match self.jobs.get(&id).map(|job| &job.status.state) {
                    Some(State::Dead { reason, .. }) => format!("died: {reason}"),
                    _ => "died".to_string(),
                }),
                StateName::Cancelled => Some("was cancelled".to_string()),
                StateName::Completed
                | StateName::Blocked
                | StateName::Scheduled
                | StateName::Ready
                | StateName::Running => None,
            };
            let meta = &mut object.meta;
            meta.alarm = None;
            meta.version += 1;
            meta.updated_at = now;
            if let Some(end) = end.filter(|_| meta.status == ObjectStatus::Active) {
                meta.status = ObjectStatus::Failed;
                meta.reason = Some(ErrorText::new(format!("its alarm, job {id}, {end}")));
                self.told.push((About::Object(address), "loop.failed"));
            }
        }
    }

    /// A job that was recovered is counted by its object.
    pub(super) fn count_recovery(&mut self, id: JobId) {
        let now = self.now.wall;
        let Some(address) = self.jobs[&id].new.object.clone() else { return };
        let Some(object) = self.objects.get_mut(&address) else { return };
        object.meta.recoveries += 1;
        object.meta.last_recovery_at = Some(now);
        object.meta.version += 1;
        object.meta.updated_at = now;
        self.told.push((About::Object(address), "loop.recovered"));
    }

    /// Since when a job of an object runs, when its alarm goes off, and how many jobs are open.
    pub(crate) fn object_jobs(
        &self,
        address: &Address,
    ) -> (Option<Timestamp>, Option<Timestamp>, u64) {
        let since = self.open_of(address).filter_map(|job| job.lease().map(|lease| lease.since));
        let alarm = self.objects.get(address).and_then(|object| object.meta.alarm);
        let alarm_at = alarm.and_then(|id| match self.jobs[&id].status.state {
            State::Scheduled { at } | State::Ready { since: at } => Some(at),
            State::Blocked { not_before, .. } => Some(not_before),
            State::Running(_)
            | State::Completed { .. }
            | State::Dead { .. }
            | State::Cancelled { .. } => None,
        });
        (since.min(), alarm_at, self.open_of(address).count() as u64)
    }
}

/// A job that waits and has never started.
fn is_intention(job: &Job) -> bool {
    job.name().is_waiting() && !job.status.begun
}

/// An object before its first turn.
fn first(now: Timestamp, next_sequence: u64) -> Object {
    let meta = ObjectMeta {
        version: 0,
        incarnation: next_sequence,
        status: ObjectStatus::Active,
        reason: None,
        created_at: now,
        updated_at: now,
        last_success_at: None,
        runs: 0,
        failures: 0,
        recoveries: 0,
        last_recovery_at: None,
        alarm: None,
        purge_at: None,
    };
    Object { meta, state: Vec::new().into() }
}
