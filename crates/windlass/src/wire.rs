//! How the calls of a [`Store`] and its answers travel to another program and back.
//!
//! One form for every door: a [`Call`] for each verb, a [`Reply`] for each answer, and a
//! [`Fault`] where there is none. [`Call::answered_by`] is what the program that has the store does
//! with a call; [`RemoteStore`] is a store whose calls travel, over whatever [`Connection`] there
//! is.
//!
//! **Encoding.** MessagePack with the names of fields, so that a program passes over what a newer
//! one has added. Payloads, outputs and states are bytes in it and travel as they are. A message is
//! preceded by its length, four bytes, the least significant first. An enqueue of a thousand jobs
//! of 200 bytes takes 394 bytes a job, 0.2 µs to write and 0.6 to read; CBOR takes as many bytes
//! and 0.25 and 1.5 µs (`ciborium`) or 0.36 and 0.7 (`minicbor`), and JSON has no bytes.
//!
//! **Versions.** The first message of each side is a [`Hello`]. Fields and verbs are added, and
//! neither removed nor given another meaning, within a [`PROTOCOL`]; a program that speaks none of
//! the other's protocols is refused in one sentence ([`Hello::agree`]).

mod frame;
mod hello;
#[cfg(feature = "remote")]
pub mod http;
mod remote;
mod rings;
mod service;
mod stream;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
pub use frame::{CALL_BYTES, Frames, InvalidFrame, decode, encode};
pub use hello::{Hello, OLDEST_PROTOCOL, PROTOCOL, ProtocolMismatch};
pub use remote::{Connection, RemoteStore};
pub use rings::pass_rings_on;
pub(crate) use rings::{last_ring, pass_rings_on_after};
use serde::{Deserialize, Serialize};
pub use service::{ConnectionError, serve};
pub use stream::StreamConnection;
use windlass_core::event::Event;
use windlass_core::explain::Explanation;
use windlass_core::job::{JobId, LeaseToken, NewJob};
use windlass_core::ledger::{
    Claim, Counts, Enqueued, Promoted, Renewal, Renewed, Rescue, Rescued, Settled, Settlement,
    Turned, WorkerReport,
};
use windlass_core::object::Turn;
use windlass_core::refusal::Refusal;

use crate::store::{
    AlterJobs, AlterQueue, ClaimedBatch, HeartbeatAnswer, JobActionResult, JobQuery, ObjectPage,
    ObjectQuery, Page, QueueAction, QueueActionDone, Store, StoreError, StoreInfo,
};
use crate::wake::{Interest, Ring, Rung, Wake};

/// A verb of [`Store`] with all that it is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Call {
    /// [`Store::enqueue`].
    Enqueue(Vec<Arc<NewJob>>),
    /// [`Store::claim`].
    Claim(Claim),
    /// [`Store::renew`].
    Renew(Vec<Renewal>),
    /// [`Store::settle`].
    Settle(Vec<Settlement>),
    /// [`Store::rescue`].
    Rescue(Rescue),
    /// [`Store::promote`].
    Promote,
    /// [`Store::alter`].
    Alter(AlterJobs),
    /// [`Store::alter_queue`].
    AlterQueue(AlterQueue),
    /// [`Store::turn`].
    Turn(Box<Turn>),
    /// [`Store::objects`].
    Objects(ObjectQuery),
    /// [`Store::heartbeat`].
    Heartbeat {
        /// The worker.
        worker: Arc<str>,
        /// What it says of itself.
        news: WorkerReport,
    },
    /// [`Store::jobs`].
    Jobs(JobQuery),
    /// [`Store::count`].
    Count,
    /// [`Store::explain`].
    Explain(JobId),
    /// [`Store::events`].
    Events {
        /// The number after which to begin.
        after: u64,
        /// How many at most.
        limit: usize,
        /// How long to wait if there are none.
        wait: Duration,
    },
    /// [`Store::info`].
    Info,
    /// [`Wake::ring`].
    Ring(Vec<Ring>),
    /// [`Wake::rung_after`], for so long at most.
    Rung {
        /// The number after which to begin; `None` to be told it.
        after: Option<u64>,
        /// What those who listen at the other end want to hear.
        interests: Vec<Interest>,
        /// How long to wait if there is nothing.
        wait: Duration,
    },
    /// What a process of the same machine has: said once, before anything else.
    Join(Joining),
}

/// What a process says when it has reached the one that owns the directory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Joining {
    /// Which process it is, for people.
    pub process: String,
    /// Its file among the members. While it may still be asking something, it is not forgotten.
    #[serde(default)]
    pub member: Option<String>,
    /// Its workers.
    pub workers: Vec<Arc<str>>,
    /// The leases that they hold. Other jobs that were handed to them never arrived, and are given
    /// back, uncounted. `None` if that is not known: then none is.
    pub held: Option<Vec<LeaseToken>>,
}

/// What a store has applied, or found.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Reply {
    /// To [`Call::Enqueue`].
    Enqueued(Vec<Enqueued>),
    /// To [`Call::Claim`].
    Claimed(ClaimedBatch),
    /// To [`Call::Renew`].
    Renewed(Vec<Result<Renewed, Refusal>>),
    /// To [`Call::Settle`].
    Settled(Vec<Result<Settled, Refusal>>),
    /// To [`Call::Rescue`].
    Rescued(Rescued),
    /// To [`Call::Promote`].
    Promoted(Promoted),
    /// To [`Call::Alter`].
    Altered(Vec<JobActionResult>),
    /// To [`Call::AlterQueue`].
    QueueAltered(QueueActionDone),
    /// To [`Call::Turn`].
    Turned(Turned),
    /// To [`Call::Objects`].
    Objects(ObjectPage),
    /// To [`Call::Heartbeat`].
    Heartbeat(HeartbeatAnswer),
    /// To [`Call::Jobs`].
    Jobs(Page),
    /// To [`Call::Count`].
    Counts(Counts),
    /// To [`Call::Explain`].
    Explanation(Explanation),
    /// To [`Call::Events`].
    Events(Vec<Arc<Event>>),
    /// To [`Call::Info`].
    Info(StoreInfo),
    /// To [`Call::Ring`].
    Rang,
    /// To [`Call::Rung`]; `None` if there was nothing for so long.
    Rung(Option<Rung>),
    /// To [`Call::Join`].
    Joined {
        /// Which process owns the directory, for people.
        owner: String,
    },
    /// To no call: the program ends. It has answered as many calls as it has read, and makes none
    /// of those that were sent after them.
    Goodbye {
        /// How many calls it has read.
        last: u64,
    },
}

/// Why there is no reply.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Fault {
    /// Nothing was changed, and this is why.
    Refused(Refusal),
    /// The store was asked and did not answer: it may or may not have been done.
    Unknown {
        /// What went wrong.
        why: String,
    },
}

/// A call on its way.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Request {
    /// Its number on its connection: the response has the same.
    pub number: u64,
    /// What is asked.
    pub call: Call,
}

/// An answer on its way.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Response {
    /// The number of the request that it answers.
    pub number: u64,
    /// The last event that the store has told, so that one who asks for events after an answer
    /// knows whether there are some.
    pub last_event: u64,
    /// The answer.
    pub answer: Result<Reply, Fault>,
}

/// Answers calls that come over a connection.
#[async_trait]
pub trait Service: Send + Sync + 'static {
    /// Makes a call.
    async fn answer(&self, call: Call) -> Result<Reply, Fault>;

    /// The last event that the store has told.
    fn last_event(&self) -> u64;

    /// Whether what has arrived may still be done. After a pause of the whole program it may not:
    /// whoever asked has given up, and would be surprised.
    fn is_awake(&self) -> bool {
        true
    }

    /// Returns when no more calls are to be taken.
    async fn closing(&self) {
        std::future::pending().await
    }
}

#[async_trait]
impl Service for Served {
    async fn answer(&self, call: Call) -> Result<Reply, Fault> {
        call.answered_by(self).await
    }

    fn last_event(&self) -> u64 {
        self.store.info().last_event
    }
}

/// What a program has that others may reach: a store, and the wake that it rings.
#[derive(Clone, Debug)]
pub struct Served {
    /// The store.
    pub store: Arc<dyn Store>,
    /// What workers are woken by.
    pub wake: Arc<dyn Wake>,
}

impl Call {
    /// Makes the call on what is here. [`Call::Join`] is refused: that is for whoever owns a
    /// directory.
    pub async fn answered_by(self, served: &Served) -> Result<Reply, Fault> {
        let Served { store, wake } = served;
        let reply = match self {
            Call::Enqueue(jobs) => store.enqueue(jobs).await.map(Reply::Enqueued),
            Call::Claim(claim) => store.claim(claim).await.map(Reply::Claimed),
            Call::Renew(renewals) => store.renew(renewals).await.map(Reply::Renewed),
            Call::Settle(settlements) => store.settle(settlements).await.map(Reply::Settled),
            Call::Rescue(rescue) => store.rescue(rescue).await.map(Reply::Rescued),
            Call::Promote => store.promote().await.map(Reply::Promoted),
            Call::Alter(alter) => store.alter(alter).await.map(Reply::Altered),
            Call::AlterQueue(alter) => store.alter_queue(alter).await.map(Reply::QueueAltered),
            Call::Turn(turn) => store.turn(*turn).await.map(Reply::Turned),
            Call::Objects(query) => store.objects(&query).await.map(Reply::Objects),
            Call::Heartbeat { worker, news } => {
                store.heartbeat(worker, news).await.map(Reply::Heartbeat)
            }
            Call::Jobs(query) => store.jobs(&query).await.map(Reply::Jobs),
            Call::Count => store.count().await.map(Reply::Counts),
            Call::Explain(job) => store.explain(job).await.map(Reply::Explanation),
            Call::Events { after, limit, wait } => {
                store.events(after, limit, wait).await.map(Reply::Events)
            }
            Call::Info => Ok(Reply::Info(store.info())),
            Call::Ring(rings) => {
                wake.ring(&rings).await;
                Ok(Reply::Rang)
            }
            Call::Rung { after, interests, wait } => {
                let rung = tokio::time::timeout(wait, wake.rung_after(after, &interests)).await;
                Ok(Reply::Rung(rung.ok()))
            }
            Call::Join(_) => {
                let why = "this program owns no directory that others join".to_string();
                Err(StoreError::from(Refusal::Unavailable { why }))
            }
        };
        reply.map_err(Fault::from)
    }

    /// Whether making it twice does no more than making it once, so that it can be made again if
    /// its answer was lost. A claim can because it names its request, and because whoever reaches
    /// another owner says what it holds before it asks for more ([`Call::Join`]).
    pub fn may_repeat(&self) -> bool {
        match self {
            Call::Enqueue(_)
            | Call::Renew(_)
            | Call::Settle(_)
            | Call::Rescue(_)
            | Call::Promote
            | Call::Objects(_)
            | Call::Heartbeat { .. }
            | Call::Jobs(_)
            | Call::Count
            | Call::Explain(_)
            | Call::Events { .. }
            | Call::Info
            | Call::Ring(_)
            | Call::Rung { .. }
            | Call::Join(_) => true,
            Call::Claim(claim) => claim.request.is_some(),
            // Who acts is written down each time.
            Call::AlterQueue(alter) => {
                alter.by.is_none() && matches!(alter.action, QueueAction::Set(_))
            }
            Call::Alter(_) | Call::Turn(_) => false,
        }
    }

    /// Whether it may wait for something to happen before it is answered.
    fn waits(&self) -> bool {
        matches!(self, Call::Events { .. } | Call::Rung { .. })
    }

    /// What is being done, for an error.
    pub(crate) fn doing(&self) -> &'static str {
        match self {
            Call::Enqueue(_) => "enqueue jobs",
            Call::Claim(_) => "claim jobs",
            Call::Renew(_) => "renew leases",
            Call::Settle(_) => "settle jobs",
            Call::Rescue(_) => "recover jobs",
            Call::Promote => "keep house",
            Call::Alter(_) => "alter jobs",
            Call::AlterQueue(_) => "alter a queue",
            Call::Turn(_) => "change an object",
            Call::Objects(_) => "read objects",
            Call::Heartbeat { .. } => "tell of a worker",
            Call::Jobs(_) => "read jobs",
            Call::Count => "count jobs",
            Call::Explain(_) => "explain a job",
            Call::Events { .. } => "read events",
            Call::Info => "ask the store about itself",
            Call::Ring(_) => "ring workers",
            Call::Rung { .. } => "wait for rings",
            Call::Join(_) => "join the store",
        }
    }
}

impl From<StoreError> for Fault {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Refused(refusal) => Fault::Refused(refusal),
            StoreError::Unknown { source, .. } => Fault::Unknown { why: source.to_string() },
        }
    }
}

impl Fault {
    /// The error of the call that was made.
    pub(crate) fn into_error(self, doing: &'static str) -> StoreError {
        match self {
            Fault::Refused(refusal) => StoreError::Refused(refusal),
            Fault::Unknown { why } => StoreError::Unknown { doing, source: why.into() },
        }
    }
}
