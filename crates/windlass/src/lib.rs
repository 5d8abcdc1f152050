#![doc = include_str!("../../../README.md")]

pub mod clock;
pub mod conformance;
pub mod primitives;
pub mod store;
pub mod testing;
pub mod wake;
pub mod wire;

/// Jobs in your own transactions, on PostgreSQL.
#[cfg(feature = "postgres")]
pub mod postgres {
    pub use crate::store::postgres::transaction::{
        SqlError, Transaction, complete_in, enqueue_in, enqueue_many_in,
    };
}

mod attempt;
mod client;
mod engine;
mod error;
mod events;
mod failure;
mod handler;
mod housekeeper;
mod middleware;
mod options;
mod outcomes;
mod panics;
mod schedule;
mod steps;
mod supervise;
mod trace;
mod worker;

pub use attempt::{Attempt, Cancellation, StopReason};
pub use client::{Batch, EnqueueJob, Handle, Query, Queue};
pub use engine::{Engine, EngineBuilder, Subscribed};
pub use error::Error;
pub use events::{Received, Subscription, Topics};
pub use failure::{BoxError, Failure};
pub use handler::{Handler, Job, KindOptions, Returned, State};
pub use middleware::{Middleware, Next};
pub use options::{DEFAULT_QUEUE, NewJobId, Options, new_id};
pub use schedule::{Due, InvalidSchedule, MissedRuns, RUNS_AT_ONCE, Schedule};
pub use store::file::OpenError;
pub use store::{
    Cursor, Durability, JobActionDone, JobActionResult, Opened, Ownership, Page, Sharing,
};
pub use windlass_core as core;
pub use windlass_core::audit::{Actor, AuditEntry};
pub use windlass_core::event::{
    Event, EventKind, EventResult, RecoveryReason, RemoveReason, Subject,
};
pub use windlass_core::explain::{Explanation, Reason};
pub use windlass_core::filter::Filter;
pub use windlass_core::job::{
    Bytes, CancelReason, DeadReason, Dependency, JobId, JobStatus, Lane, Lease, NewJob, OnFailure,
    Priority, Start, State as JobState, StateName, Timeout, Unique, UniqueScope,
};
pub use windlass_core::ledger::{
    Acceptance, CancelAnswer, Cleared, Counts, Enqueued, LaneCount, QueueCount, QueueKindCount,
    Recovery, RecoveryMode, Totals, WorkerInfo, WorkerView,
};
pub use windlass_core::limits::{self, Limits};
pub use windlass_core::name::Name;
pub use windlass_core::object::{Address as ObjectAddress, ObjectStatus, ObjectView};
pub use windlass_core::outcome::ErrorText;
pub use windlass_core::rate::Rate;
pub use windlass_core::record::{
    AttemptEnd, AttemptRecord, JobRecord, LogLine, Progress, QueueSettings, Step,
};
pub use windlass_core::refusal::Refusal;
pub use windlass_core::reserved::WorkerOrder;
pub use windlass_core::retry::{Backoff, Jitter, Retry};
pub use windlass_core::time::Timestamp;
pub use worker::{StopReport, Worker, WorkerBuilder};

/// The code on the pages compiles.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../../../docs/durability.md")]
    struct DurabilityPage;
    #[doc = include_str!("../../../docs/jobs.md")]
    struct JobsPage;
    #[doc = include_str!("../../../docs/objects.md")]
    struct ObjectsPage;
    #[doc = include_str!("../../../docs/recovery.md")]
    struct RecoveryPage;
    #[doc = include_str!("../../../docs/primitives.md")]
    struct PrimitivesPage;
    #[cfg(feature = "testing")]
    #[doc = include_str!("../../../docs/testing.md")]
    struct TestingPage;
    #[cfg(feature = "postgres")]
    #[doc = include_str!("../../../docs/postgres.md")]
    struct PostgresPage;
    #[cfg(all(feature = "postgres", feature = "redis"))]
    #[doc = include_str!("../../../docs/wakes.md")]
    struct WakesPage;
}
