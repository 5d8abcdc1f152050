//! What goes wrong with a database, in the words of the store: refused, or unknown.
//!
//! What the server answers is known: an error means that the transaction was rolled back. What is
//! unknown is only a connection that was lost while waiting for an answer.

use std::time::Duration;

use deadpool_postgres::PoolError;
use tokio_postgres::error::SqlState;
use windlass_core::refusal::Refusal;

use super::refusal;
use crate::store::StoreError;

/// Why a database could not be opened: one sentence that says what to do.
#[derive(Debug, thiserror::Error)]
#[error("{sentence}")]
pub struct OpenFault {
    sentence: String,
}

impl OpenFault {
    pub(super) fn new(sentence: impl Into<String>) -> Self {
        Self { sentence: sentence.into() }
    }
}

/// The SQL state of our own refusals.
pub(super) const REFUSED: &str = "WL001";

/// The SQL state of a call that was made in another isolation level than READ COMMITTED, by
/// default, and has done nothing.
pub(super) const NOT_READ_COMMITTED: &str = "WL002";

/// What to make of a call that failed.
pub(super) enum Verdict {
    /// The transaction was rolled back for the sake of others: do it again.
    Again,
    /// Do it again, and tell the caller if it ends like that every time.
    AgainOrTell(StoreError),
    /// Tell the caller.
    Tell(StoreError),
}

/// A call waits for a lock for ten seconds (`lock_timeout` in the SQL). One that was told sooner
/// that they are over was told so by a clock that was put ahead.
const LOCK_WAIT: Duration = Duration::from_secs(9);

/// What to make of this answer to a call that has taken so long.
pub(super) fn verdict(
    doing: &'static str,
    error: tokio_postgres::Error,
    waited: Duration,
) -> Verdict {
    let Some(code) = error.code() else {
        // No answer: the connection is gone, or what came makes no sense.
        return Verdict::Tell(StoreError::Unknown { doing, source: Box::new(error) });
    };
    if code.code() == REFUSED {
        let detail = error.as_db_error().and_then(|error| error.detail()).unwrap_or_default();
        let refusal =
            serde_json::from_str(detail).ok().and_then(|detail| refusal::read(&detail, None));
        return Verdict::Tell(match refusal {
            Some(refusal) => refusal.into(),
            None => Refusal::Unavailable { why: said(&error) }.into(),
        });
    }
    match code.code() {
        // The last: a job that is being accepted elsewhere at the same time, under the same id.
        "40001" | "40P01" | "23505" => Verdict::Again,
        "55P03" => {
            let why = "someone keeps rows of the schema locked, and nothing was done; \
                 look for an open transaction in `pg_stat_activity`";
            let locked = Refusal::Unavailable { why: why.to_string() }.into();
            if waited < LOCK_WAIT { Verdict::AgainOrTell(locked) } else { Verdict::Tell(locked) }
        }
        // The server ended the session or goes down: whether before or after the commit, who knows.
        "57P01" | "57P02" | "57P05" => {
            Verdict::Tell(StoreError::Unknown { doing, source: Box::new(error) })
        }
        "53100" | "53200" => Verdict::Tell(Refusal::StoreFull { why: said(&error) }.into()),
        _ => Verdict::Tell(Refusal::Unavailable { why: sentence(&error) }.into()),
    }
}

/// Whether no more can be asked on the connection that answered so.
pub(super) fn ends_the_session(error: &tokio_postgres::Error) -> bool {
    error.code().is_none_or(|code| matches!(code.code(), "57P01" | "57P02" | "57P05"))
}

pub(super) fn no_connection(error: PoolError) -> StoreError {
    let why = match error {
        PoolError::Backend(error) => sentence(&error),
        PoolError::Timeout(_) => {
            "every connection of the pool is busy; raise `windlass_pool`, or wait".to_string()
        }
        other => other.to_string(),
    };
    Refusal::Unavailable { why }.into()
}

pub(super) fn open_fault(error: tokio_postgres::Error) -> OpenFault {
    OpenFault::new(sentence(&error))
}

/// What the server said, without its kind and its place.
pub(super) fn said(error: &tokio_postgres::Error) -> String {
    error.as_db_error().map_or_else(|| causes(error), |error| error.message().to_string())
}

/// All that is known of what went wrong on our side of the connection.
pub(super) fn causes(error: &tokio_postgres::Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(next) = cause {
        let next_text = next.to_string();
        if !text.contains(&next_text) {
            text = format!("{text}: {next_text}");
        }
        cause = next.source();
    }
    text
}

/// What is wrong and what to do about it.
fn sentence(error: &tokio_postgres::Error) -> String {
    let said = said(error);
    let Some(code) = error.code() else {
        return unreached(&said);
    };
    match code {
        code if *code == SqlState::INVALID_PASSWORD
            || *code == SqlState::INVALID_AUTHORIZATION_SPECIFICATION =>
        {
            format!("the database does not let us in ({said}); check user and password")
        }
        code if *code == SqlState::INVALID_CATALOG_NAME => {
            format!("{said}; create it, or check the address")
        }
        code if *code == SqlState::INSUFFICIENT_PRIVILEGE => {
            format!(
                "the role lacks a right ({said}); grant it, or run `windlass migrate up` as owner"
            )
        }
        code if *code == SqlState::READ_ONLY_SQL_TRANSACTION => {
            format!(
                "the database is read-only ({said}); connect to the primary, and see to it that \
                 `default_transaction_read_only` is off"
            )
        }
        code if *code == SqlState::TOO_MANY_CONNECTIONS => {
            format!("{said}; lower `windlass_pool`, or raise `max_connections`")
        }
        code if *code == SqlState::CANNOT_CONNECT_NOW => {
            format!("{said}; it goes on by itself when the server is up")
        }
        code if *code == SqlState::UNDEFINED_TABLE
            || *code == SqlState::UNDEFINED_FUNCTION
            || *code == SqlState::INVALID_SCHEMA_NAME =>
        {
            format!("the schema is not what this version needs ({said}); run `windlass migrate up`")
        }
        _ => said,
    }
}

/// What is wrong before the server has said anything.
fn unreached(said: &str) -> String {
    // Neither client nor encryption tells these by more than words.
    if said.ends_with("password missing") {
        return "the database asks for a password, and the address has none".to_string();
    }
    if said.contains("server does not support TLS") {
        return "the server offers no encryption, and `sslmode` asks for it; turn on `ssl` there"
            .to_string();
    }
    if let Some((_, why)) = said.split_once("invalid peer certificate: ") {
        let doing = if why.contains("not valid for name") || why.contains("NotValidForName") {
            "connect by a name it is for"
        } else {
            "name the right root with `sslrootcert=`"
        };
        return format!("the certificate of the server does not verify ({why}); {doing}");
    }
    format!("cannot reach the database ({said}); is it running, and is the address right?")
}
