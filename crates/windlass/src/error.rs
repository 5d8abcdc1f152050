//! What a user's call can return.

use std::time::Duration;

use windlass_core::job::{CancelReason, DeadReason, JobId};
use windlass_core::name::{InvalidName, Name};
use windlass_core::object::{Address, ObjectStatus};
use windlass_core::refusal::Refusal;

use crate::store::StoreError;

/// Why a call did not do what it was asked. Every variant names something the caller can act on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Nothing was changed, and this is why.
    #[error(transparent)]
    Refused(#[from] Refusal),

    /// No answer came from the store. The call may have taken effect; repeat it with the same id.
    #[error(
        "the store did not answer while trying to {doing}; it may have been done, so repeat it"
    )]
    Unknown {
        /// What was being done.
        doing: &'static str,
        /// What went wrong.
        source: Box<dyn std::error::Error + Send + Sync>,
    },

    /// The payload could not be written as JSON. Nothing was stored.
    #[error("the payload of kind `{kind}` cannot be written as JSON")]
    Encode {
        /// The kind.
        kind: String,
        /// What serde says.
        source: serde_json::Error,
    },

    /// A stored output cannot be read as the type asked for.
    #[error("the output of job {job} cannot be read as the type asked for")]
    Decode {
        /// The job.
        job: JobId,
        /// What serde says.
        source: serde_json::Error,
    },

    /// What was given is not what the definition takes. Nothing was stored.
    #[error("{what}: {issues}")]
    Validation {
        /// What was given.
        what: String,
        /// What is wrong with it.
        issues: String,
    },

    /// The object is in a state in which this cannot be done.
    #[error("cannot {operation} object {object}: it is {status}")]
    WrongStatus {
        /// The object.
        object: Address,
        /// Its status.
        status: ObjectStatus,
        /// What was asked.
        operation: &'static str,
    },

    /// The state of an object cannot be read as its definition says. It was left as it is.
    #[error(
        "the state of object {object} cannot be read as its definition says; it was left as it is: \
         use a definition that reads it, or purge the object"
    )]
    UnreadableState {
        /// The object.
        object: Address,
        /// What serde says.
        source: serde_json::Error,
    },

    /// The job is dead; its record holds every attempt.
    #[error("job {job} died ({reason}): {error}")]
    Died {
        /// The job.
        job: JobId,
        /// Why.
        reason: DeadReason,
        /// The last error.
        error: String,
    },

    /// The job was called off.
    #[error("job {job} was cancelled ({reason})")]
    Cancelled {
        /// The job.
        job: JobId,
        /// Why.
        reason: CancelReason,
    },

    /// The job is still open.
    #[error("job {job} was not finished after {waited:?}")]
    TimedOut {
        /// The job.
        job: JobId,
        /// How long was waited.
        waited: Duration,
    },

    /// Two handlers claim the same kind.
    #[error("two handlers for kind `{kind}`; a worker takes one handler per kind")]
    DuplicateKind {
        /// The kind.
        kind: Name,
    },

    /// A worker without handlers would wait for ever.
    #[error("the worker has no handler; add one with `.handle(your_function)`")]
    NoHandler,

    /// A handler asks for shared state that the worker was not given.
    #[error("the handler for kind `{kind}` takes `State<{state}>`; give it with `.state(…)`")]
    MissingState {
        /// The kind.
        kind: Name,
        /// The type it asks for.
        state: &'static str,
    },

    /// A setting is outside its bounds.
    #[error("{setting} is {got}; {allowed}")]
    InvalidSetting {
        /// Which.
        setting: &'static str,
        /// What was given.
        got: String,
        /// What would be accepted.
        allowed: &'static str,
    },

    /// The address does not name a store this build can open.
    #[error(
        "cannot open `{address}`: this build opens a directory such as `./jobs`, {databases}\
         or `memory:`",
        databases = match (cfg!(feature = "postgres"), cfg!(feature = "remote")) {
            (true, true) => "`postgres://host/database`, `https://host:7878`, ",
            (true, false) => "`postgres://host/database`, ",
            (false, true) => "`https://host:7878`, ",
            (false, false) => "",
        }
    )]
    UnknownStore {
        /// The address.
        address: String,
    },

    /// The store could not be opened.
    #[error(transparent)]
    Open(#[from] crate::store::file::OpenError),

    /// The address is that of a database, and this build has no client for it.
    #[error("cannot open a PostgreSQL database: build with the feature `postgres`")]
    NoPostgres,

    /// The address is that of a Windlass server, and this build has no client for it.
    #[error("cannot reach a Windlass server: build with the feature `remote`")]
    NoRemote,

    /// What was given cannot be the address of a server, or its token or certificate. It is not
    /// repeated here, because it may hold a secret.
    #[error("that is not how a Windlass server is reached: {why}")]
    ServerAddress {
        /// What is wrong with it.
        why: String,
    },

    /// The server was not reached, or is none that this program understands.
    #[error("cannot open the Windlass server at {server}: {why}")]
    Server {
        /// Its address.
        server: String,
        /// What went wrong.
        why: String,
    },

    /// A job was to be part of a transaction, and its engine is not on PostgreSQL.
    #[error(
        "the engine does not keep its jobs in a PostgreSQL database that it has open itself, so \
         they cannot join a transaction"
    )]
    NotPostgres,

    /// A statement in the caller's own transaction failed: roll it back.
    #[error("the transaction failed; roll it back: {source}")]
    Transaction {
        /// What the driver says.
        source: Box<dyn std::error::Error + Send + Sync>,
    },

    /// The database could not be opened.
    #[cfg(feature = "postgres")]
    #[error("cannot open the PostgreSQL store: {0}")]
    Database(crate::store::postgres::OpenFault),

    /// A store was not moved. What is in the target cannot be opened until the move is finished.
    #[error("the store was not moved: {why}")]
    NotMoved {
        /// Why not.
        why: String,
    },

    /// What was given is not an address of this kind of server. It is not repeated here, because it
    /// may hold a password.
    #[error("that is not an address of a {kind} server ({why}); write it like `{example}`")]
    WakeAddress {
        /// The kind of server.
        kind: &'static str,
        /// What is wrong with it.
        why: String,
        /// What would be right.
        example: &'static str,
    },

    /// The server that is to carry wakes does not answer, or does not let us in.
    #[error(
        "no wakes over {server}: {why}; check that it runs and lets this user in, or open without \
         it and let workers poll"
    )]
    WakeUnreachable {
        /// The server, without credentials.
        server: String,
        /// What went wrong.
        why: String,
    },

    /// A worker gave up.
    #[error("the worker stopped by itself: {why}")]
    WorkerFailed {
        /// Why.
        why: String,
    },
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Refused(refusal) => Error::Refused(refusal),
            StoreError::Unknown { doing, source } => Error::Unknown { doing, source },
        }
    }
}

/// Not by `#[from]`: as a source, its text would stand twice in a chain of causes.
#[cfg(feature = "postgres")]
impl From<crate::store::postgres::OpenFault> for Error {
    fn from(fault: crate::store::postgres::OpenFault) -> Self {
        Error::Database(fault)
    }
}

impl From<InvalidName> for Error {
    fn from(error: InvalidName) -> Self {
        Error::Refused(Refusal::InvalidName(error))
    }
}
