//! Clients: they make jobs, repeat what was not answered, and meddle with jobs and queues.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use windlass_core::job::{
    Dependency, JobId, Lane, NewJob, OnFailure, Priority, Start, Unique, UniqueScope,
};
use windlass_core::ledger::QueueChange;
use windlass_core::name::Name;
use windlass_core::retry::Retry;

use super::{Caller, Turn, World};
use crate::Checked;
use crate::answer::{Answer, Failure, Request, Ticket};
use crate::cover::Point;

/// What a client is in the middle of.
#[derive(Debug, Default)]
pub(super) struct Client {
    waiting: Option<(Ticket, Request)>,
    /// A call without an answer, to be made again.
    again: Option<Request>,
}

impl World {
    pub(super) fn client_turn(&mut self, client: usize) -> Checked {
        if self.healing || self.clients[client].waiting.is_some() {
            return Ok(());
        }
        let done = self.made >= self.settings.jobs;
        let request = match self.clients[client].again.take() {
            Some(request) => request,
            None if !done && self.random.chance(self.settings.mix.turning) => self.client_spin(),
            None if done || self.random.chance(self.settings.mix.control) => self.meddle(),
            None => self.enqueue(),
        };
        let repeatable = matches!(request, Request::Enqueue(_));
        let ticket = self.ask(Caller::Client(client), request.clone())?;
        self.clients[client].waiting = Some((ticket, request));
        if repeatable && self.random.chance(150) {
            let micros = self.random.spread(100, 300_000);
            self.after(micros, Turn::Impatient(client, ticket));
        }
        Ok(())
    }

    /// The client gives up waiting and asks again: the first call may still land.
    pub(super) fn impatient_turn(&mut self, client: usize, ticket: Ticket) -> Checked {
        let waiting = self.clients[client].waiting.take_if(|(waiting, _)| *waiting == ticket);
        let Some((_, request)) = waiting.filter(|_| !self.healing) else { return Ok(()) };
        self.callers.insert(ticket, Caller::Nobody);
        self.machine.cover.hit(Point::RepeatedInFlight);
        let ticket = self.ask(Caller::Client(client), request.clone())?;
        self.clients[client].waiting = Some((ticket, request));
        Ok(())
    }

    pub(super) fn client_answer(
        &mut self,
        client: usize,
        ticket: Ticket,
        answer: Answer,
    ) -> Checked {
        let waiting = self.clients[client].waiting.take_if(|(waiting, _)| *waiting == ticket);
        let request = waiting.map(|(_, request)| request);
        if let Some(Request::Turn(turn)) = &request {
            self.note_version(&turn.object, &answer);
        }
        if let (Some(request), Err(Failure::Unknown)) = (request, answer)
            && self.random.chance(850)
        {
            self.clients[client].again = Some(request);
        }
        let micros = self.random.spread(500, 400_000);
        self.after(micros, Turn::Client(client));
        Ok(())
    }

    fn enqueue(&mut self) -> Request {
        let size =
            if self.random.chance(self.settings.mix.batch) { self.random.between(2, 7) } else { 1 };
        let mut jobs: Vec<NewJob> = Vec::new();
        for _ in 0..size {
            let mut job = self.new_job();
            if self.random.chance(self.settings.mix.dependent) {
                self.depend(&mut job, &jobs);
            }
            jobs.push(job);
        }
        // A job may stand before those it depends on.
        if self.random.chance(200) {
            jobs.reverse();
        }
        Request::Enqueue(jobs.into_iter().map(Arc::new).collect())
    }

    pub(super) fn new_job(&mut self) -> NewJob {
        let kinds: Vec<Name> = self.settings.rules.kinds.keys().cloned().collect();
        let kind = self.random.pick(&kinds).clone();
        let queue = self.random.pick(&self.settings.queues).clone();
        let bytes = if self.random.chance(self.settings.mix.large) {
            let segment = self.settings.options.segment_bytes.unwrap_or(4_096);
            self.random.below(u64::from(segment) * 5 / 4)
        } else {
            self.random.spread(1, 300)
        };
        let fill = self.random.number() as u8;
        let payload = vec![fill; usize::try_from(bytes).expect("a small payload")];
        let mut job = NewJob::new(self.fresh_id(), kind, queue, payload);
        job.priority = Priority(self.random.below(3) as i32 * 10 - 10);
        if self.random.chance(self.settings.mix.delayed) {
            let delay = self.millis(1, 20_000);
            let at = self.machine.clock.now().wall + delay;
            job.start = if self.random.coin() { Start::After(delay) } else { Start::At(at) };
        }
        if self.random.chance(self.settings.mix.unique) {
            job.unique = Some(self.unique());
        }
        if self.random.chance(self.settings.mix.laned) {
            job.lane = Some(Lane::Key(format!("customer{}", self.random.below(4))));
        }
        if self.random.chance(self.settings.mix.expiring) {
            job.expires_after = Some(self.millis(1, 5_000));
        }
        if self.random.chance(300) {
            job.max_attempts = Some(self.random.between(1, 6) as u32);
        }
        if self.random.chance(300) {
            let delay = self.millis(1, 2_000);
            job.retry = Some(Retry::constant(delay));
        }
        if self.random.chance(100) {
            job.tags.push(Name::new("tagged").expect("a valid name"));
            job.metadata.insert("for".to_string(), "the record".to_string());
        }
        job
    }

    fn unique(&mut self) -> Unique {
        Unique {
            key: format!("key{}", self.random.below(6)),
            scope: if self.random.chance(700) { UniqueScope::Open } else { UniqueScope::Any },
            window: self.random.chance(500).then(|| self.millis(10, 8_000)),
        }
    }

    fn depend(&mut self, job: &mut NewJob, batch: &[NewJob]) {
        for _ in 0..self.random.between(1, 3) {
            let recent = self.known.len().saturating_sub(20);
            let on = match (batch.is_empty(), self.known.get(recent..)) {
                (false, _) if self.random.chance(600) => self.random.pick(batch).id,
                (_, Some(known)) if known.len() > 1 => *self.random.pick(&known[..known.len() - 1]),
                _ => return,
            };
            let policies = [OnFailure::Cascade, OnFailure::Ignore, OnFailure::Wait];
            let on_failure = *self.random.pick(&policies);
            if on != job.id && job.depends_on.iter().all(|edge| edge.on != on) {
                job.depends_on.push(Dependency { on, on_failure });
            }
        }
    }

    fn some_jobs(&mut self) -> Vec<JobId> {
        let mut some: Vec<JobId> = Vec::new();
        for _ in 0..self.random.between(1, 4).min(self.known.len() as u64) {
            some.push(*self.random.pick(&self.known));
        }
        some.sort_unstable();
        some.dedup();
        some
    }

    /// A call that controls jobs or queues.
    fn meddle(&mut self) -> Request {
        let jobs = self.some_jobs();
        let queue = self.random.pick(&self.settings.queues).clone();
        match self.random.below(14) {
            13 => {
                let lanes = NonZeroU32::new(self.random.below(4) as u32);
                Request::Configure(queue, QueueChange::Lanes(lanes))
            }
            0..=1 => Request::Cancel(jobs),
            2 => {
                let delay = self.millis(1, 5_000);
                let start = if self.random.coin() { Start::Now } else { Start::After(delay) };
                Request::Reschedule(jobs, start)
            }
            3..=5 => Request::Replay(jobs),
            6 if self.random.coin() => Request::RemoveGraph(jobs),
            6 => Request::Remove(jobs),
            7 => match jobs.first() {
                Some(job) => Request::ReplayEdited(*job, Box::new(self.new_job())),
                None => Request::Promote,
            },
            8 => Request::Configure(queue, QueueChange::Pause),
            9 => Request::Configure(queue, QueueChange::Resume),
            10 => {
                let limit = self.random.chance(700).then(|| self.random.between(1, 30));
                Request::Configure(queue, QueueChange::MaxDepth(limit))
            }
            11 => {
                let step = self.random.coin().then(|| Duration::from_millis(50));
                Request::Configure(queue, QueueChange::Ageing(step))
            }
            _ if self.random.chance(300) => Request::Clear(queue),
            _ => Request::Configure(queue, QueueChange::Resume),
        }
    }
}
