//! What people do to jobs and queues, as the model does it.

use std::collections::BTreeSet;

use windlass_core::job::{CancelReason, JobId, JobStatus, NewJob, Start, State, StateName};
use windlass_core::ledger::{
    Acceptance, CancelAnswer, Clear, ClearProgress, Configure, Enqueued, Promoted, QueueChange,
};
use windlass_core::record::QueueSettings;
use windlass_core::refusal::Refusal;
use windlass_core::time::Timestamp;

use super::accept::{Planned, check_delay};
use super::running::due_at;
use super::{About, Job, Link, Naive};

impl Naive {
    pub(crate) fn promote(&mut self) -> Promoted {
        self.go_on_with_cascades(usize::MAX);
        let now = self.now.wall;
        let age = self.limits.history_age;
        let mut purged = 0;
        while let Some((_, _, id)) = self.history().into_iter().find(|(at, _, _)| *at + age <= now)
        {
            self.remove_one(id);
            purged += 1;
        }
        purged += self.purge_due();
        let due = self.jobs.values().filter_map(due_at);
        let expiries = self.jobs.values().filter_map(Job::expires_at);
        let old = self.history().into_iter().map(|(at, _, _)| at + age);
        let owing = self.first_owing().map(|_| now);
        let next =
            due.chain(expiries).chain(old).chain(self.held_back_until()).chain(self.purge_times());
        let next = next.chain(owing).min();
        Promoted { purged, more: owing.is_some(), next_in: next.map(|at| at.since(now)) }
    }

    pub(crate) fn cancel(
        &mut self,
        id: JobId,
        reason: CancelReason,
    ) -> Result<CancelAnswer, Refusal> {
        let state = self.job(id)?.name();
        if state.is_terminal() {
            return Err(Refusal::WrongState { job: id, state, operation: "cancel".into() });
        }
        if let State::Running(lease) = &mut self.job_mut(id).status.state {
            if !std::mem::replace(&mut lease.cancel_requested, true) {
                self.tell(id, "job.cancel_requested");
            }
            return Ok(CancelAnswer::Requested);
        }
        let at = self.now.wall;
        self.end(id, State::Cancelled { at, reason });
        Ok(CancelAnswer::Cancelled)
    }

    pub(crate) fn reschedule(
        &mut self,
        ids: &[JobId],
        start: Start,
    ) -> Result<Vec<Result<StateName, Refusal>>, Refusal> {
        let now = self.now.wall;
        let at = match start {
            Start::Now => now,
            Start::After(delay) => now + delay,
            Start::At(at) => at,
        };
        check_delay(at.since(now))?;
        Ok(ids.iter().map(|id| self.reschedule_one(*id, at)).collect())
    }

    pub(super) fn reschedule_one(
        &mut self,
        id: JobId,
        at: Timestamp,
    ) -> Result<StateName, Refusal> {
        let state = self.job(id)?.name();
        if !state.is_waiting() {
            return Err(Refusal::WrongState { job: id, state, operation: "reschedule".into() });
        }
        let moved = match self.jobs[&id].status.state {
            State::Blocked { unmet, .. } => State::Blocked { unmet, not_before: at },
            State::Scheduled { .. }
            | State::Ready { .. }
            | State::Running(_)
            | State::Completed { .. }
            | State::Dead { .. }
            | State::Cancelled { .. } => self.state_after(at),
        };
        let name = moved.name();
        self.job_mut(id).status.state = moved;
        self.tell(id, "job.scheduled");
        Ok(name)
    }

    /// In the order of acceptance, but each after those of them that it depends on.
    pub(crate) fn replay(&mut self, mut ids: Vec<JobId>) -> Vec<(JobId, Result<(), Refusal>)> {
        ids.sort_by_key(|id| (self.jobs.get(id).map(|job| job.sequence), *id));
        ids.dedup();
        let mut order = Vec::new();
        for id in &ids {
            self.place(*id, &ids, &mut BTreeSet::new(), &mut order);
        }
        order.into_iter().map(|id| (id, self.replay_one(id))).collect()
    }

    /// Puts a job into the order, after those of `ids` that it depends on.
    fn place(
        &self,
        id: JobId,
        ids: &[JobId],
        under_way: &mut BTreeSet<JobId>,
        order: &mut Vec<JobId>,
    ) {
        if order.contains(&id) || !under_way.insert(id) {
            return;
        }
        let depends_on = self.jobs.get(&id).map(|job| job.new.depends_on.clone());
        for dependency in depends_on.unwrap_or_default() {
            if ids.contains(&dependency.on) {
                self.place(dependency.on, ids, under_way, order);
            }
        }
        order.push(id);
    }

    fn replay_one(&mut self, id: JobId) -> Result<(), Refusal> {
        let job = self.job(id)?;
        let state = job.name();
        if !matches!(state, StateName::Dead | StateName::Cancelled) {
            return Err(Refusal::WrongState { job: id, state, operation: "replay".into() });
        }
        let mut links = Vec::new();
        for dependency in &job.new.depends_on {
            let (on, on_failure) = (dependency.on, dependency.on_failure);
            // One that is gone counts as met: whoever replays the job has decided so.
            let met = !self.jobs.contains_key(&on) || self.is_met(id, on, on_failure)?;
            links.push(Link { on, on_failure, met });
        }
        if let Some(holder) = self.holder(&job.new, None) {
            return Err(Refusal::KeyTaken { job: id, holder });
        }
        let now = self.now.wall;
        let job = self.job_mut(id);
        job.links = links;
        job.gave_key_away = false;
        job.first_started_at = None;
        job.output = None;
        job.percent = None;
        let unmet = job.unmet();
        let state = match unmet {
            0 => State::Ready { since: now },
            _ => State::Blocked { unmet, not_before: now },
        };
        let generation = job.status.generation + 1;
        job.status = JobStatus { generation, ..JobStatus::new(state) };
        self.tell(id, "job.replayed");
        if unmet > 0 {
            self.tell(id, "job.blocked");
        }
        Ok(())
    }

    /// A new job in the place of a dead one, or a refusal: never the one without the other.
    pub(crate) fn replay_edited(&mut self, id: JobId, edited: NewJob) -> Result<Enqueued, Refusal> {
        let state = self.job(id)?.name();
        if state != StateName::Dead {
            return Err(Refusal::WrongState {
                job: id,
                state,
                operation: "edit and replay".into(),
            });
        }
        let plan = self.plan(vec![edited], Some(id), None)?;
        if let Planned::Known(known, _, acceptance) = &plan[0] {
            return Err(match acceptance {
                Acceptance::Deduplicated { .. } => Refusal::KeyTaken { job: id, holder: *known },
                Acceptance::Accepted | Acceptance::AlreadyAccepted => {
                    Refusal::IdReused { job: *known }
                }
            });
        }
        let enqueued = self.carry_out(plan).remove(0);
        self.job_mut(id).gave_key_away = true;
        let at = self.now.wall;
        self.end(id, State::Cancelled { at, reason: CancelReason::Replaced });
        Ok(enqueued)
    }

    pub(crate) fn remove(&mut self, id: JobId) -> Result<(), Refusal> {
        let state = self.job(id)?.name();
        if !state.is_terminal() {
            return Err(Refusal::WrongState { job: id, state, operation: "remove".into() });
        }
        let depends = |job: &&Job| job.is_open() && job.links.iter().any(|link| link.on == id);
        let many = self.waiting_for(id).len() > super::CASCADE.0;
        let kept = state == StateName::Completed || many;
        let by = self.jobs.values().find(depends).filter(|_| kept);
        if let Some(by) = by {
            return Err(Refusal::StillNeeded { job: id, by: by.id() });
        }
        self.remove_one(id);
        self.trim_due = true;
        self.trim();
        Ok(())
    }

    pub(crate) fn remove_graph(&mut self, root: JobId) -> Result<u64, Refusal> {
        self.job(root)?;
        let mut graph = BTreeSet::from([root]);
        loop {
            let depends = |job: &&Job| job.new.depends_on.iter().any(|on| graph.contains(&on.on));
            let more: Vec<JobId> = self.jobs.values().filter(depends).map(Job::id).collect();
            let before = graph.len();
            graph.extend(more);
            if graph.len() == before {
                break;
            }
        }
        let open = graph.iter().map(|id| &self.jobs[id]).filter(|job| job.is_open());
        if let Some(open) = open.min_by_key(|job| job.sequence) {
            let (job, state) = (open.id(), open.name());
            return Err(Refusal::WrongState { job, state, operation: "remove".into() });
        }
        for id in &graph {
            self.remove_one(*id);
        }
        self.trim_due = true;
        self.trim();
        Ok(graph.len() as u64)
    }

    /// A chunk: of the jobs that were there when the first was asked for, and not looked at yet.
    pub(crate) fn clear(&mut self, clear: &Clear) -> ClearProgress {
        let Clear { queue, mut progress, limit, by: _ } = clear.clone();
        if !self.queues.contains_key(&queue) {
            progress.bulk.done = true;
            return progress;
        }
        let cancelled = |model: &Self, inside: bool| -> u64 {
            let lines = model.totals.iter().filter(|((name, _), _)| (*name == queue) == inside);
            lines.map(|(_, totals)| totals.cancelled).sum()
        };
        let before = (cancelled(self, true), cancelled(self, false));
        let until = *progress.bulk.until.get_or_insert(self.next_sequence - 1);
        let mut ahead: Vec<(u64, JobId)> = self
            .jobs
            .iter()
            .map(|(id, job)| (job.sequence, *id))
            .filter(|(sequence, _)| *sequence > progress.bulk.after && *sequence <= until)
            .collect();
        ahead.sort();
        let waits = |(_, id): &&(u64, JobId)| {
            self.jobs[id].new.queue == queue && self.jobs[id].name().is_waiting()
        };
        let chunk: Vec<(u64, JobId)> = ahead.iter().filter(waits).take(limit).copied().collect();
        // It is done when it has seen the last job, and not only the last that waits.
        let last = chunk.last().filter(|_| chunk.len() == limit);
        match last.and_then(|(last, _)| ahead.iter().find(|(next, _)| next > last)) {
            Some((next, _)) => progress.bulk.after = next - 1,
            None => progress.bulk.done = true,
        }
        for (_, id) in chunk {
            // It may have followed one before it, and even be gone by now.
            if self.jobs.get(&id).is_some_and(|job| job.name().is_waiting()) {
                let _ = self.cancel(id, CancelReason::Cleared);
            }
        }
        if progress.bulk.done {
            self.told.push((About::Queue(queue.clone()), "queue.cleared"));
        }
        progress.cleared.cleared += cancelled(self, true) - before.0;
        progress.cleared.followed += cancelled(self, false) - before.1;
        progress
    }

    pub(crate) fn configure(&mut self, configure: &Configure) -> Result<QueueSettings, Refusal> {
        let old = self.queues.get(&configure.queue).cloned().unwrap_or_default();
        let mut new = old.clone();
        let topic = match configure.change {
            QueueChange::Pause => {
                new.settings.paused = true;
                "queue.paused"
            }
            QueueChange::Resume => {
                new.settings.paused = false;
                "queue.resumed"
            }
            QueueChange::MaxDepth(limit) => {
                new.settings.max_depth = limit;
                "queue.configured"
            }
            QueueChange::Ageing(step) => {
                new.settings.ageing = step;
                "queue.configured"
            }
            QueueChange::Lanes(lanes) => {
                new.settings.lanes = lanes;
                "queue.configured"
            }
            QueueChange::PauseLane(lane) => {
                let lanes = new.settings.lanes.map_or(0, |lanes| lanes.get());
                if lane >= lanes {
                    let allowed = format!("the queue has {lanes} lanes, numbered from 0");
                    let got = lane.to_string();
                    return Err(Refusal::OutOfBounds { what: "lane".into(), got, allowed });
                }
                new.settings.paused_lanes.insert(lane);
                "queue.configured"
            }
            QueueChange::ResumeLane(lane) => {
                new.settings.paused_lanes.remove(&lane);
                "queue.configured"
            }
            QueueChange::LaneDepth(limit) => {
                new.settings.lane_depth = limit;
                "queue.configured"
            }
            QueueChange::OnDead(_) | QueueChange::OnEmpty(_) => {
                unreachable!("hooks have tests of their own")
            }
        };
        let settings = new.settings.clone();
        if settings != old.settings {
            self.told.push((About::Queue(configure.queue.clone()), topic));
            self.queues.insert(configure.queue.clone(), new);
        }
        Ok(settings)
    }
}
