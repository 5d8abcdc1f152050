//! Jobs in the user's own transaction: accepted with its rows, or completed with them.
//!
//! Everything goes through one question with one text and one text as its answer, so that any
//! driver can carry it: see [`Transaction`].

use async_trait::async_trait;
use serde_json::{Value, json};
use windlass_core::batch;
use windlass_core::job::NewJob;
use windlass_core::ledger::Enqueued;
use windlass_core::limits::Limits;

use super::wire::Placed;
use super::{Schema, about_now, fault, refusal, spec, understood, wire};
use crate::attempt::Attempt;
use crate::client::{Batch, EnqueueJob, Handle};
use crate::engine::Engine;
use crate::error::Error;
use crate::failure::BoxError;
use crate::handler::Job;

/// An open transaction of any driver.
///
/// Implemented for `&tokio_postgres::Transaction`, and with the feature `sqlx` for
/// `&mut sqlx::PgConnection`, to which a `sqlx` transaction dereferences. For another driver it is
/// a few lines.
#[async_trait]
pub trait Transaction: Send {
    /// Runs a statement with one parameter of type `text` that answers with one row of one `text`.
    async fn ask(&mut self, sql: &str, parameter: &str) -> Result<String, SqlError>;
}

/// What a driver says of a statement that failed.
#[derive(Debug)]
pub struct SqlError {
    /// The SQLSTATE, if the server answered.
    pub code: Option<String>,
    /// The server's `DETAIL`.
    pub detail: Option<String>,
    /// The driver's own error.
    pub source: BoxError,
}

impl From<tokio_postgres::Error> for SqlError {
    fn from(error: tokio_postgres::Error) -> Self {
        let code = error.code().map(|code| code.code().to_string());
        let detail = error.as_db_error().and_then(|error| error.detail()).map(str::to_string);
        Self { code, detail, source: error.into() }
    }
}

#[async_trait]
impl Transaction for &tokio_postgres::Transaction<'_> {
    async fn ask(&mut self, sql: &str, parameter: &str) -> Result<String, SqlError> {
        let parameters: [super::Parameter<'_>; 1] =
            [(&parameter, tokio_postgres::types::Type::TEXT)];
        let rows = self.query_typed(sql, &parameters).await?;
        Ok(rows.first().map(|row| row.get(0)).unwrap_or_default())
    }
}

#[cfg(feature = "sqlx")]
#[async_trait]
impl Transaction for &mut sqlx::PgConnection {
    async fn ask(&mut self, sql: &str, parameter: &str) -> Result<String, SqlError> {
        let sql = sqlx::AssertSqlSafe(sql);
        let asked = sqlx::query_scalar(sql).bind(parameter).fetch_one(&mut **self).await;
        asked.map_err(|error| {
            let database = error.as_database_error();
            let said = database
                .and_then(|error| error.try_downcast_ref::<sqlx::postgres::PgDatabaseError>());
            let code = database.and_then(|error| error.code()).map(|code| code.to_string());
            let detail = said.and_then(|error| error.detail()).map(str::to_string);
            SqlError { code, detail, source: error.into() }
        })
    }
}

/// Accepts a job in the caller's own transaction: it is there if, and only if, that commits.
///
/// The job comes as from [`Engine::enqueue`], with its options. Workers are woken by the commit.
/// A refusal is an error of the transaction, which PostgreSQL then lets do nothing but roll back,
/// unless the call was made behind a savepoint. A queue with a limit of its depth, and a lane, are
/// held by the transaction until it ends: keep it short.
///
/// In REPEATABLE READ and SERIALIZABLE such a queue and a lane are refused, as they cannot be exact
/// there; the rest is, or fails as your own statements do: see `docs/postgres.md`.
pub async fn enqueue_in<J: Job>(
    transaction: impl Transaction,
    job: EnqueueJob<J>,
) -> Result<Handle<J>, Error> {
    let (engine, job) = job.into_parts()?;
    let before = engine.waiters().position();
    let mut enqueued = accept(transaction, &engine, &[std::sync::Arc::new(job)]).await?;
    match enqueued.pop() {
        Some(enqueued) => Ok(Handle::new(&engine, enqueued, before)),
        None => Err(nonsense()),
    }
}

/// Accepts a batch in the caller's own transaction, all or none; see [`enqueue_in`].
pub async fn enqueue_many_in(
    transaction: impl Transaction,
    batch: Batch,
) -> Result<Vec<Enqueued>, Error> {
    let (engine, jobs) = batch.into_parts();
    accept(transaction, &engine, &jobs).await
}

async fn accept(
    mut transaction: impl Transaction,
    engine: &Engine,
    jobs: &[std::sync::Arc<NewJob>],
) -> Result<Vec<Enqueued>, Error> {
    let schema = schema_of(engine)?;
    if jobs.is_empty() {
        return Ok(Vec::new());
    }
    // The store's own limits are checked again by whoever owns the schema.
    let limits =
        Limits { payload_bytes: windlass_core::limits::PAYLOAD_BYTES_MAX, ..Limits::default() };
    batch::check(jobs, &limits, about_now())?;
    let said: Value = jobs.iter().map(|job| spec::whole_job(job)).collect();
    let sql = schema.in_sql("select windlass.enqueue_in($1::jsonb)::text");
    let answer = ask(&mut transaction, &sql, &said).await?;
    let placed = answer.as_array().into_iter().flatten();
    let placed =
        placed.map(|each| understood(Placed::of_json(each).and_then(Placed::into_enqueued)));
    Ok(placed.collect::<Result<Vec<_>, _>>()?)
}

/// Completes the running job in the handler's own transaction: its rows, the completion, the output
/// and the jobs it continues with are there together if that commits, or nothing is.
///
/// Commit, and return the same output from the handler. Returning `Ok` without having committed is
/// found out, and is a failed attempt. Refused if the lease is lost: then the transaction must be
/// rolled back, since another worker may be running the job. Refused as well if the attempt was
/// completed before, so that a transaction that is repeated because the answer to its commit was
/// lost does nothing twice. Refused in REPEATABLE READ and
/// SERIALIZABLE too, from which a job that begins to wait for this one cannot be seen.
pub async fn complete_in<T: serde::Serialize>(
    mut transaction: impl Transaction,
    attempt: &Attempt,
    output: &T,
) -> Result<(), Error> {
    let schema = schema_of(attempt.engine())?;
    let output = serde_json::to_vec(output)
        .map_err(|source| Error::Encode { kind: attempt.kind().to_string(), source })?;
    let next: Vec<Value> = attempt.take_next().iter().map(|job| spec::whole_job(job)).collect();
    let extra = if next.is_empty() { Value::Null } else { json!({ "next": next }) };
    let said = json!({
        "job": attempt.id().to_string(),
        "token": attempt.token().0.cast_signed(),
        "output": wire::hex(&output),
        "extra": extra,
    });
    let sql = schema.in_sql("select windlass.complete_in($1::jsonb)::text");
    attempt.note_completion_elsewhere();
    ask(&mut transaction, &sql, &said).await?;
    Ok(())
}

fn schema_of(engine: &Engine) -> Result<Schema, Error> {
    Schema::of(&engine.store().info()).ok_or(Error::NotPostgres)
}

fn nonsense() -> Error {
    Error::Transaction { source: "the database answered with nothing".into() }
}

async fn ask(transaction: &mut impl Transaction, sql: &str, said: &Value) -> Result<Value, Error> {
    match transaction.ask(sql, &said.to_string()).await {
        Ok(answer) => serde_json::from_str(&answer).map_err(|_| nonsense()),
        Err(error) => {
            let detail = error.detail.filter(|_| error.code.as_deref() == Some(fault::REFUSED));
            let refusal = detail.and_then(|detail| serde_json::from_str(&detail).ok());
            match refusal.and_then(|detail| refusal::read(&detail, None)) {
                Some(refusal) => Err(refusal.into()),
                None => Err(Error::Transaction { source: error.source }),
            }
        }
    }
}
