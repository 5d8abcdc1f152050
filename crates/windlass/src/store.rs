//! The Store contract: the only door to what is durable.
//!
//! Every verb is **one commit** (but for changes of all that a filter means, which are made in
//! chunks, each one commit), takes a batch, is **safe to repeat**, and answers in one of three
//! ways: *applied* (`Ok`), *refused* with the reason ([`StoreError::Refused`], nothing changed), or
//! *unknown* ([`StoreError::Unknown`], no answer came and it may or may not have happened). Nobody
//! may treat unknown as failure: repeat the call, with the same ids and lease tokens.
//!
//! A store reads its own clock, and no other: times in requests are relative wherever a worker's
//! clock could be wrong. Before each verb, time passes: scheduled jobs whose time has come are
//! ready, jobs that had not started when they expired are cancelled.
//!
//! There are seventeen verbs, and each can be a message to somewhere else: what goes in and comes
//! out is plain data, and no verb hands out a channel, a lock or a type of one store. The phrases
//! in which callers like to ask (`find`, `pause`, `replay_edited`) are written over them, once, in
//! [`StoreExt`].
//!
//! The rules themselves are those of [`windlass_core::transition`] and of the ledger. A store that
//! is not a ledger (one in SQL) must repeat them, and [`crate::conformance`] tells whether it does.

mod action;
mod address;
mod audit;
mod bulk;
mod directory;
pub(crate) mod ext;
pub mod file;
mod info;
mod ledger;
mod memory;
mod moving;
mod orders;
#[cfg(feature = "postgres")]
pub mod postgres;
mod query;
mod values;
mod wait;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use action::{
    AlterJobs, AlterQueue, JobAction, JobActionDone, JobActionResult, QueueAction, QueueActionDone,
    Selection,
};
pub use address::Address;
use async_trait::async_trait;
pub use audit::AuditPage;
#[doc(hidden)]
pub use directory::HeldLeases;
pub use directory::{DirectoryOptions, DirectoryStore, OpenDirectory, Sharing};
pub use ext::StoreExt;
pub use file::FileStore;
pub use info::{Durability, Opened, Ownership, Space, StoreInfo};
pub use ledger::LedgerStore;
pub(crate) use ledger::{CommitPath, EventListener};
pub use memory::MemoryStore;
pub use moving::{Moved, move_store};
#[cfg(feature = "postgres")]
pub use postgres::PostgresStore;
pub use query::{Cursor, JobQuery, ObjectFilter, ObjectPage, ObjectQuery, Page};
use serde::{Deserialize, Serialize};
pub use values::{StoredValue, ValueChange, ValuePage};
pub(crate) use wait::events_within;
use windlass_core::event::Event;
use windlass_core::explain::Explanation;
use windlass_core::job::{JobId, Lease, NewJob};
use windlass_core::ledger::{
    Claim, Counts, Enqueued, Promoted, Renewal, Renewed, Rescue, Rescued, Settled, Settlement,
    Turned, WorkerReport,
};
#[cfg(doc)]
use windlass_core::limits;
use windlass_core::object::Turn;
use windlass_core::outcome::ErrorText;
use windlass_core::record::Step;
use windlass_core::refusal::Refusal;
use windlass_core::reserved::WorkerOrder;
use windlass_core::time::Timestamp;

/// What a store answers: applied, refused, or unknown.
pub type Answer<T> = Result<T, StoreError>;

/// Why a store did not say "applied".
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Nothing was changed, and this is why.
    #[error(transparent)]
    Refused(#[from] Refusal),

    /// No answer came. The call may have taken effect; it is safe to repeat.
    #[error("the store did not answer while trying to {doing}; it may have been done")]
    Unknown {
        /// What was being done.
        doing: &'static str,
        /// What went wrong.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// Keeps jobs.
#[async_trait]
pub trait Store: Send + Sync + fmt::Debug {
    /// Accepts a batch of jobs.
    ///
    /// *Order.* Jobs get increasing sequence numbers in the order of the batch, which breaks ties
    /// between jobs of one priority and due time; one answer per item, in that order. A call that
    /// begins after another has returned gets greater numbers. Of two that overlap, a store with
    /// several writers (PostgreSQL) may commit the one with the greater numbers first.
    /// *Atomic.* All or none, with every check: reused ids, unique keys, dependencies (which may
    /// point within the batch), cycles, depth limits. Two callers cannot both pass a limit.
    /// *After a crash.* Once it has returned, every job is durable. If it never returned, all or
    /// none are; repeating it with the same ids gives each job exactly once.
    /// *Empty.* An empty batch changes nothing and answers with an empty list.
    async fn enqueue(&self, jobs: Vec<Arc<NewJob>>) -> Answer<Vec<Enqueued>>;

    /// Hands up to `claim.limit` ready jobs to one worker, each under a fresh lease.
    ///
    /// *Order.* Priority (with ageing, if the queue has it), then due time, then sequence. Paused
    /// queues and kinds at their concurrency or rate limit are passed over.
    /// *Atomic.* A job is handed to exactly one caller. The start is counted and the token, which
    /// is greater than every token before it, is taken in the same commit.
    /// A claim whose answer was lost is repeated by its [`Claim::request`]: the same worker gets
    /// those of its jobs that still run under the leases of the first, with the same tokens and in
    /// the same order, and nothing new is claimed. If none does, it is a new claim.
    /// *After a crash.* The job is given back by [`Store::rescue`] when the lease ends, unless the
    /// claim is repeated before. What a claim asked for need not be known to a store that was
    /// opened again.
    /// *Empty.* No job is claimable; `wake_in` says when one may be without a ring: at once, if
    /// jobs that are to be released have not been reached yet.
    async fn claim(&self, claim: Claim) -> Answer<ClaimedBatch>;

    /// Extends leases, and records what their handlers report, finished steps included.
    ///
    /// *Order.* One answer per item, in the order given.
    /// *Atomic.* One commit; an item whose lease is lost, or whose steps are beyond a bound, is
    /// refused alone, with nothing of its report recorded.
    /// *After a crash.* Once it has returned, steps are durable. A renewal that was not answered
    /// may not have happened: the lease then ends when it would have ended before. Repeating it is
    /// harmless: of steps with the same name the first counts.
    /// *Empty.* An empty batch changes nothing.
    async fn renew(&self, renewals: Vec<Renewal>) -> Answer<Vec<Result<Renewed, Refusal>>>;

    /// Ends attempts: verdict, output, error, next jobs, dependents and events together.
    ///
    /// *Order.* Items are applied in the order given; one answer per item.
    /// *Atomic.* Each item wholly or not at all, all in one commit. Of the dependents that are
    /// released, or follow it into death or cancellation, and those that follow them, a store may
    /// leave those beyond [`limits::CASCADE_JOBS`] to later commits, never the first
    /// [`limits::CASCADE_EACH`] of an item: it goes on by itself, with claims and housekeeping of
    /// whatever process, also after a crash. Until then they are blocked, and each is told once.
    /// So it is wherever jobs end. An item is applied only if the
    /// job is still running under exactly the token it names; otherwise it changes nothing. If the
    /// job's last attempt was settled under that token and the job is still kept, the item is
    /// repeated, and answered with the state the job is in now, whatever else it says. Everything
    /// else is refused as [`Refusal::LeaseLost`]: the worker was lost to the store, the job has
    /// started again or was replayed, or it is gone.
    /// *After a crash.* Once it has returned, the outcome is durable. If it never returned, it
    /// happened or the job is still running and will be rescued: repeat it, and the answer says
    /// which.
    /// *Empty.* An empty batch changes nothing.
    async fn settle(&self, settlements: Vec<Settlement>) -> Answer<Vec<Result<Settled, Refusal>>>;

    /// Gives back jobs whose lease has ended, of every kind, known here or not.
    ///
    /// *Order.* Those that ended first, first.
    /// *Atomic.* Each job by the token that was seen to have ended, so a settlement that comes
    /// first wins. The recovery is counted in the same commit.
    /// *After a crash.* Done or not done; calling again finishes it.
    /// *Empty.* No lease has ended; `next_in` says when the first might.
    async fn rescue(&self, rescue: Rescue) -> Answer<Rescued>;

    /// Lets time pass: due jobs become ready, expired ones are cancelled, old history is deleted,
    /// and large cascades go on; `more` says that they are not through.
    ///
    /// *Order.* Oldest first. *Atomic.* One commit of bounded size. *After a crash.* Calling again
    /// finishes it. *Empty.* Nothing was due; `next_in` says when something will be.
    async fn promote(&self) -> Answer<Promoted>;

    /// Calls off, moves, replays or deletes jobs, chosen by id or by a filter.
    ///
    /// *Order.* By id: as given, but a replay goes by acceptance, so that a job and its dependents
    /// can be replayed together. By filter: by acceptance, and of a replay each after those of them
    /// that it depends on.
    /// *Atomic.* By id, at most [`limits::BATCH_JOBS`]: one commit. By filter: in chunks of
    /// [`limits::CHUNK_JOBS`], each one commit, with others' calls between them. It is about the
    /// jobs that were accepted before the call began, and each is chosen and changed in one
    /// commit, as it is then: one that was not reached yet may still start, and is then a running
    /// one. When the call has returned, nothing of that is left undone. A job that is in the wrong
    /// state is refused alone, and so is the deletion of a job that others need: a completed one
    /// on which an open job depends, and one for which more than [`limits::CASCADE_JOBS`] wait.
    /// Dependents that follow are part of the commit, up to a bound; see [`Store::settle`].
    /// *After a crash.* By id all or none; by filter a part, in whole chunks. Repeating it finds
    /// what is left to do. An edited replay that happened is refused when it is repeated, because
    /// its job is no longer dead. A call by filter that fails after its first chunk is unknown,
    /// never refused.
    /// *Who acts.* If [`AlterJobs::by`] names somebody, every commit that changes a job has an
    /// audit entry in it: one of a change by id, one for each chunk of a change by filter. What was
    /// refused, or matched nothing, leaves none.
    /// *Empty.* Nothing matched.
    async fn alter(&self, alter: AlterJobs) -> Answer<Vec<JobActionResult>>;

    /// Changes one setting of a queue, or calls off every waiting job of it.
    ///
    /// *Order.* After a pause has returned, no claim starts a job of the queue. A queue is cleared
    /// by acceptance; what runs, and counters, are left alone.
    /// *Atomic.* A setting is one commit. A queue is cleared in chunks, as [`Store::alter`] changes
    /// what a filter means: of the jobs that were accepted before the call began, none waits when
    /// it has returned, and one that was not reached before it started is left alone. The last
    /// chunk tells of all.
    /// *After a crash.* Durable once it returned. A crash leaves a part of a queue cleared; safe to
    /// repeat, which finds the rest.
    /// *Who acts.* As with [`Store::alter`]: an audit entry is in the commit of a setting that
    /// changes, and in that of each chunk that calls off jobs.
    /// *Empty.* A queue without jobs can be configured; clearing an unknown one calls off none.
    async fn alter_queue(&self, alter: AlterQueue) -> Answer<QueueActionDone>;

    /// Changes an object: state, alarm, jobs, counters and events.
    ///
    /// *Order.* Turns of one object follow each other; each names the version it was made for.
    /// *Atomic.* One commit, or nothing. If another turn came between, it is refused as
    /// [`Refusal::ObjectChanged`] and can be made again from what is there now.
    /// If [`Turn::by`] names somebody, that commit has an audit entry in it.
    /// *After a crash.* Durable once it returned. If it never returned it happened or not: look at
    /// the object before making it again. *Empty.* A turn that changes nothing counts as one.
    async fn turn(&self, turn: Turn) -> Answer<Turned>;

    /// Reads one object, or a page of them.
    ///
    /// *Order.* By kind, name and key. *Atomic.* A page is of one moment; two pages need not be.
    /// *After a crash.* Whatever is durable; a place to go on from stays valid. *Empty.* An object
    /// that never was, or was purged, is not on the page. A page may hold fewer objects than asked
    /// for, even none, and still name where to go on.
    async fn objects(&self, query: &ObjectQuery) -> Answer<ObjectPage>;

    /// Takes a worker's news of itself, and answers with the order there is for it.
    ///
    /// *Order.* The last news counts. An order that was given before the call began is answered
    /// with. *Atomic.* With its event; a worker that has stopped takes its order with it. *After a
    /// crash.* Not durable: a worker that lives says so again. Orders are durable, see
    /// [`StoreExt::order_worker`]. *Empty.* News of an unknown worker is only told, but that it
    /// lives makes it known.
    async fn heartbeat(&self, worker: Arc<str>, news: WorkerReport) -> Answer<HeartbeatAnswer>;

    /// Reads jobs by id, a page of those that match a filter, or how many match it.
    ///
    /// *Order.* By id: as given. By filter: by acceptance, backwards unless the filter says
    /// otherwise; a job accepted meanwhile is not on later pages, or comes at the end if the oldest
    /// come first. A cursor is for the order it was given in.
    /// *Atomic.* A page is of one moment, never half of a commit; two pages need not be.
    /// *After a crash.* Whatever is durable; a cursor stays valid.
    /// *Empty.* A job that was never accepted or is no longer kept is not on the page. A page may
    /// hold fewer jobs than asked for, even none, and still name where to go on; the end is when
    /// [`Page::next`] is `None`. There is room for one job at least, whatever the limit is, so that
    /// going from page to page gets somewhere.
    async fn jobs(&self, query: &JobQuery) -> Answer<Page>;

    /// Reads all counters, which are kept with every commit and never found by scanning.
    ///
    /// *Order.* By queue, then kind. *Atomic.* All as of one moment. *After a crash.* Counts of
    /// jobs per state are those of the jobs that are there. *Empty.* A queue or kind that never
    /// had a job is not listed.
    async fn count(&self) -> Answer<Counts>;

    /// Says why a job is not running.
    ///
    /// *Order.* The first cause first. *Atomic.* As of one moment. *After a crash.* Workers count
    /// once they are heard of again. *Empty.* No reasons means that only a moment is missing; an
    /// unknown job is refused.
    async fn explain(&self, job: JobId) -> Answer<Explanation>;

    /// Reads events after a number, oldest first. If there are none, waits up to `wait` for some.
    ///
    /// *Order.* By number, each one more than the last. *Atomic.* Only what was committed. *After a
    /// crash.* Events of before need not be kept, but their numbers are not used again. *Empty.*
    /// Nothing has happened since. Only so many are kept: if some after `after` are gone, the first
    /// one returned has a number greater than `after + 1`, and the caller missed those between.
    async fn events(&self, after: u64, limit: usize, wait: Duration) -> Answer<Vec<Arc<Event>>>;

    /// What the store says about itself, as far as this process knows.
    fn info(&self) -> StoreInfo;

    /// The same store for workers on other machines, if that makes a difference: nothing here tells
    /// whether they live, so their leases end by time alone. `None` if all leases do.
    fn for_remote_workers(&self) -> Option<Arc<dyn Store>> {
        None
    }

    /// Makes everything durable and lets go of what is held; later calls are refused. A store that
    /// is dropped without it loses nothing that was acknowledged.
    async fn close(&self) {}
}

/// What a store has to say to a worker that lives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeartbeatAnswer {
    /// What it is to do; `None` to take jobs, as it does by itself.
    pub order: Option<WorkerOrder>,
}

/// What a claim hands out.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ClaimedBatch {
    /// The jobs, in the order in which they should start.
    pub jobs: Vec<ClaimedJob>,
    /// Ready jobs that this worker could take but did not get.
    pub ready: u64,
    /// How long until something may become claimable without a ring; `None` for never.
    pub wake_in: Option<Duration>,
}

/// One job in one worker's hands.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ClaimedJob {
    /// What its producer said.
    pub job: Arc<NewJob>,
    /// The right to run it.
    pub lease: Lease,
    /// Which start this is, 1 for the first.
    pub attempt: u32,
    /// How often it was recovered from a lost worker.
    pub recoveries: u32,
    /// How often it was replayed.
    pub generation: u32,
    /// Its place in the order of acceptance. On PostgreSQL it is taken before the commit: of two
    /// calls that overlap, the one with the smaller number may be accepted later.
    pub sequence: u64,
    /// When it was accepted.
    pub created_at: Timestamp,
    /// When its first attempt of this generation began.
    pub first_started_at: Timestamp,
    /// Steps that earlier attempts have finished, in the order in which they did.
    pub steps: Vec<Step>,
    /// What went wrong in the attempt before, of this generation.
    pub last_error: Option<ErrorText>,
}
