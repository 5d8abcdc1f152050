//! A store that is somewhere else: its calls travel, and its answers come back.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use windlass_core::event::Event;
use windlass_core::explain::Explanation;
use windlass_core::job::{JobId, NewJob};
use windlass_core::ledger::{
    Claim, Counts, Enqueued, Promoted, Renewal, Renewed, Rescue, Rescued, Settled, Settlement,
    Turned, WorkerReport,
};
use windlass_core::object::Turn;
use windlass_core::refusal::Refusal;

use super::{Call, Fault, Reply, Response};
#[cfg(feature = "remote")]
use crate::store::Ownership;
use crate::store::{
    AlterJobs, AlterQueue, Answer, ClaimedBatch, HeartbeatAnswer, JobActionResult, JobQuery,
    ObjectPage, ObjectQuery, Page, QueueActionDone, Store, StoreError, StoreInfo,
};

/// How calls get to the program that has the store.
#[async_trait]
pub trait Connection: Send + Sync + fmt::Debug {
    /// Sends a call and waits for its answer.
    ///
    /// An error that is [`Fault::Refused`] says that the call was not made; if that is not certain,
    /// it is [`Fault::Unknown`].
    async fn send(&self, call: Call) -> Result<Response, Fault>;

    /// Lets go of the connection.
    async fn close(&self) {}
}

/// A [`Store`] whose calls travel over a [`Connection`].
#[derive(Debug)]
pub struct RemoteStore<C> {
    connection: C,
    /// What the store said of itself when it was reached.
    info: StoreInfo,
    /// The last event of which an answer has told.
    last_event: AtomicU64,
}

impl<C: Connection> RemoteStore<C> {
    /// The store at the other end. It is asked about itself.
    pub async fn over(connection: C) -> Answer<Self> {
        let call = Call::Info;
        let doing = call.doing();
        let response = connection.send(call).await.map_err(|fault| fault.into_error(doing))?;
        match response.answer.map_err(|fault| fault.into_error(doing))? {
            Reply::Info(info) => {
                let last_event = AtomicU64::new(info.last_event);
                Ok(Self { connection, info, last_event })
            }
            _ => Err(odd(doing)),
        }
    }

    /// The same, with who owns it: who that is at the other end says nothing here.
    #[cfg(feature = "remote")]
    pub(crate) fn owned_by(mut self, owner: String) -> Self {
        self.info.ownership = Some(Ownership::Joined { owner });
        self
    }

    async fn call(&self, call: Call) -> Answer<Reply> {
        let doing = call.doing();
        let response = self.connection.send(call).await.map_err(|fault| fault.into_error(doing))?;
        self.last_event.fetch_max(response.last_event, Ordering::Relaxed);
        response.answer.map_err(|fault| fault.into_error(doing))
    }
}

/// The answer is one to another call. What was asked may have been done.
fn odd(doing: &'static str) -> StoreError {
    StoreError::Unknown { doing, source: "the answer is one to another call".into() }
}

/// Makes a call and takes the reply that belongs to it.
macro_rules! ask {
    ($store:expr, $call:expr, $reply:path) => {{
        let call = $call;
        let doing = call.doing();
        match $store.call(call).await? {
            $reply(answer) => Ok(answer),
            _ => Err(odd(doing)),
        }
    }};
}

#[async_trait]
impl<C: Connection> Store for RemoteStore<C> {
    async fn enqueue(&self, jobs: Vec<Arc<NewJob>>) -> Answer<Vec<Enqueued>> {
        ask!(self, Call::Enqueue(jobs), Reply::Enqueued)
    }

    async fn claim(&self, claim: Claim) -> Answer<ClaimedBatch> {
        ask!(self, Call::Claim(claim), Reply::Claimed)
    }

    async fn renew(&self, renewals: Vec<Renewal>) -> Answer<Vec<Result<Renewed, Refusal>>> {
        ask!(self, Call::Renew(renewals), Reply::Renewed)
    }

    async fn settle(&self, settlements: Vec<Settlement>) -> Answer<Vec<Result<Settled, Refusal>>> {
        ask!(self, Call::Settle(settlements), Reply::Settled)
    }

    async fn rescue(&self, rescue: Rescue) -> Answer<Rescued> {
        ask!(self, Call::Rescue(rescue), Reply::Rescued)
    }

    async fn promote(&self) -> Answer<Promoted> {
        ask!(self, Call::Promote, Reply::Promoted)
    }

    async fn alter(&self, alter: AlterJobs) -> Answer<Vec<JobActionResult>> {
        ask!(self, Call::Alter(alter), Reply::Altered)
    }

    async fn alter_queue(&self, alter: AlterQueue) -> Answer<QueueActionDone> {
        ask!(self, Call::AlterQueue(alter), Reply::QueueAltered)
    }

    async fn turn(&self, turn: Turn) -> Answer<Turned> {
        ask!(self, Call::Turn(Box::new(turn)), Reply::Turned)
    }

    async fn objects(&self, query: &ObjectQuery) -> Answer<ObjectPage> {
        ask!(self, Call::Objects(query.clone()), Reply::Objects)
    }

    async fn heartbeat(&self, worker: Arc<str>, news: WorkerReport) -> Answer<HeartbeatAnswer> {
        ask!(self, Call::Heartbeat { worker, news }, Reply::Heartbeat)
    }

    async fn jobs(&self, query: &JobQuery) -> Answer<Page> {
        ask!(self, Call::Jobs(query.clone()), Reply::Jobs)
    }

    async fn count(&self) -> Answer<Counts> {
        ask!(self, Call::Count, Reply::Counts)
    }

    async fn explain(&self, job: JobId) -> Answer<Explanation> {
        ask!(self, Call::Explain(job), Reply::Explanation)
    }

    async fn events(&self, after: u64, limit: usize, wait: Duration) -> Answer<Vec<Arc<Event>>> {
        ask!(self, Call::Events { after, limit, wait }, Reply::Events)
    }

    fn info(&self) -> StoreInfo {
        let mut info = self.info.clone();
        info.last_event = info.last_event.max(self.last_event.load(Ordering::Relaxed));
        info
    }

    async fn close(&self) {
        self.connection.close().await;
    }
}
