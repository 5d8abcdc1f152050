//! A store whose process can be killed: from that moment on nobody who asks it gets an answer, as
//! nobody does in a process that is no more.
//!
//! It says what each write is for, so that a crash point has a name, and notes each answer to a
//! call that wrote something.

use std::collections::BTreeMap;
use std::future::{Future, pending};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use windlass_core::event::Event;
use windlass_core::explain::Explanation;
use windlass_core::job::{JobId, NewJob};
use windlass_core::ledger::{
    Claim, Counts, Enqueued, Promoted, Renewal, Renewed, Rescue, Rescued, Settled, Settlement,
    Turned, WorkerReport,
};
use windlass_core::name::Name;
use windlass_core::object::Turn;
use windlass_core::refusal::Refusal;

use super::disk::MemoryDisk;
use crate::clock::Clock;
use crate::store::file::{FileOptions, LedgerOptions, OpenError};
use crate::store::{
    AlterJobs, AlterQueue, Answer, ClaimedBatch, FileStore, HeartbeatAnswer, JobAction,
    JobActionResult, JobQuery, ObjectPage, ObjectQuery, Page, QueueAction, QueueActionDone, Store,
    StoreInfo,
};
use crate::wake::Wake;

/// See the module documentation.
#[derive(Debug)]
pub(super) struct MortalStore {
    inner: FileStore,
    disk: MemoryDisk,
    boot: u64,
    /// The kinds of jobs that were started, by which their outcomes are named.
    kinds: Mutex<BTreeMap<JobId, Name>>,
}

impl MortalStore {
    /// Opens what is on the disk. Without a writer thread: who writes when must not be up to the
    /// machine.
    pub(super) fn open(
        disk: &MemoryDisk,
        clock: Arc<dyn Clock>,
        wake: Arc<dyn Wake>,
    ) -> Result<Self, OpenError> {
        // Small segments: an opening reads the last one to its end.
        let ledger = LedgerOptions { segment_bytes: Some(256 << 10), ..LedgerOptions::default() };
        let options = FileOptions { ledger, ..FileOptions::default() };
        let inner = FileStore::on_disk(disk.mount(), &options, clock, wake)?;
        let (disk, boot) = (disk.clone(), disk.boot());
        Ok(Self { inner, disk, boot, kinds: Mutex::default() })
    }

    /// Asks the store, if its process lives.
    async fn ask<T>(
        &self,
        of: impl FnOnce() -> String,
        call: impl Future<Output = Answer<T>>,
    ) -> Answer<T> {
        self.alive()?;
        let began = self.disk.begin(of(), false);
        let answer = call.await;
        self.tell(began, None).await;
        answer
    }

    /// Refuses whoever held on to the engine of an earlier process.
    fn alive(&self) -> Answer<()> {
        if self.disk.boot() == self.boot {
            return Ok(());
        }
        let why = "its process was killed, by the test".to_string();
        Err(Refusal::Unavailable { why }.into())
    }

    /// Lets an answer out. Never returns if the process was killed.
    async fn tell(&self, began: usize, of: Option<String>) {
        if self.disk.is_dead() {
            pending::<()>().await;
        }
        self.disk.answer(began, of);
    }

    fn of_settlements(&self, settlements: &[Settlement]) -> String {
        let kinds = self.kinds.lock().unwrap_or_else(PoisonError::into_inner);
        let names = settlements.iter().filter_map(|settlement| kinds.get(&settlement.job));
        format!("the outcome of {}", list(names))
    }
}

/// `a`, `b` and `c`; without end would be no help to anyone.
fn list<'a>(names: impl Iterator<Item = &'a Name>) -> String {
    const SHOWN: usize = 4;
    let names: Vec<String> = names.map(|name| format!("`{name}`")).collect();
    match names.as_slice() {
        [] => "a job".to_string(),
        [name] => name.clone(),
        [most @ .., last] if most.len() < SHOWN => format!("{} and {last}", most.join(", ")),
        many => format!("{} and {} more", many[..SHOWN].join(", "), many.len() - SHOWN),
    }
}

#[async_trait]
impl Store for MortalStore {
    async fn enqueue(&self, jobs: Vec<Arc<NewJob>>) -> Answer<Vec<Enqueued>> {
        let of = format!("the enqueue of {}", list(jobs.iter().map(|job| &job.kind)));
        self.ask(|| of, self.inner.enqueue(jobs)).await
    }

    async fn claim(&self, claim: Claim) -> Answer<ClaimedBatch> {
        self.alive()?;
        // The real store does not wait for the disk here either.
        let began = self.disk.begin("the start of a job".to_string(), true);
        let handed = self.inner.claim(claim).await;
        let of = handed.as_ref().ok().map(|handed| {
            let mut kinds = self.kinds.lock().unwrap_or_else(PoisonError::into_inner);
            kinds.extend(handed.jobs.iter().map(|each| (each.job.id, each.job.kind.clone())));
            format!("the start of {}", list(handed.jobs.iter().map(|each| &each.job.kind)))
        });
        self.tell(began, of).await;
        handed
    }

    async fn renew(&self, renewals: Vec<Renewal>) -> Answer<Vec<Result<Renewed, Refusal>>> {
        self.ask(|| "the renewal of leases".to_string(), self.inner.renew(renewals)).await
    }

    async fn settle(&self, settlements: Vec<Settlement>) -> Answer<Vec<Result<Settled, Refusal>>> {
        let of = self.of_settlements(&settlements);
        self.ask(|| of, self.inner.settle(settlements)).await
    }

    async fn rescue(&self, rescue: Rescue) -> Answer<Rescued> {
        self.ask(|| "the recovery of lost jobs".to_string(), self.inner.rescue(rescue)).await
    }

    async fn promote(&self) -> Answer<Promoted> {
        self.ask(|| "the passing of time".to_string(), self.inner.promote()).await
    }

    async fn alter(&self, alter: AlterJobs) -> Answer<Vec<JobActionResult>> {
        let of = match &alter.action {
            JobAction::Cancel => "the cancelling of jobs".to_string(),
            JobAction::Reschedule(_) => "the rescheduling of jobs".to_string(),
            JobAction::Replay => "the replay of jobs".to_string(),
            JobAction::ReplayEdited(edited) => format!("the edited replay of `{}`", edited.kind),
            JobAction::Remove => "the removal of jobs".to_string(),
            JobAction::RemoveGraph => "the removal of graphs".to_string(),
        };
        self.ask(|| of, self.inner.alter(alter)).await
    }

    async fn alter_queue(&self, alter: AlterQueue) -> Answer<QueueActionDone> {
        let queue = &alter.queue;
        let of = match &alter.action {
            QueueAction::Set(_) => format!("a setting of queue `{queue}`"),
            QueueAction::Clear => format!("the clearing of queue `{queue}`"),
        };
        self.ask(|| of, self.inner.alter_queue(alter)).await
    }

    async fn turn(&self, turn: Turn) -> Answer<Turned> {
        let of = format!("a turn of object {}", turn.object);
        self.ask(|| of, Store::turn(&self.inner, turn)).await
    }

    async fn objects(&self, query: &ObjectQuery) -> Answer<ObjectPage> {
        self.ask(|| "a read".to_string(), self.inner.objects(query)).await
    }

    async fn heartbeat(&self, worker: Arc<str>, news: WorkerReport) -> Answer<HeartbeatAnswer> {
        if let WorkerReport::Alive(_) = news {
            // It comes by the clock and changes nothing: no moment of the scenario.
            self.alive()?;
            return self.inner.heartbeat(worker, news).await;
        }
        self.ask(|| "the news of a worker".to_string(), self.inner.heartbeat(worker, news)).await
    }

    async fn jobs(&self, query: &JobQuery) -> Answer<Page> {
        self.ask(|| "a read".to_string(), self.inner.jobs(query)).await
    }

    async fn count(&self) -> Answer<Counts> {
        self.ask(|| "a read".to_string(), self.inner.count()).await
    }

    async fn explain(&self, job: JobId) -> Answer<Explanation> {
        self.ask(|| "a read".to_string(), self.inner.explain(job)).await
    }

    async fn events(&self, after: u64, limit: usize, wait: Duration) -> Answer<Vec<Arc<Event>>> {
        // No part of the account: others write while this one waits.
        self.alive()?;
        let events = self.inner.events(after, limit, wait).await;
        if self.disk.is_dead() {
            pending::<()>().await;
        }
        events
    }

    fn info(&self) -> StoreInfo {
        self.inner.info()
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}
