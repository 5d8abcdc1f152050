//! The database as every call reaches it: a connection of the pool, one statement, one answer, and
//! whom to tell of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use deadpool_postgres::Pool;
use tokio::sync::watch;
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};
use windlass_core::ledger::Ring;
use windlass_core::name::Name;
use windlass_core::refusal::Refusal;

use super::cancel::CancelOnDrop;
use super::connect::{self, PostgresAddress, Schema};
use super::fault::{self, OpenFault, Verdict};
use crate::clock::{Clock, SystemClock};
use crate::store::{Answer, StoreError};
use crate::wake::Wake;

/// How long the database may take to answer before the answer is unknown.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// How often a call is made again when the database rolled it back for the sake of others.
const TRIES: u32 = 10;

/// A value for the database, and its type.
pub(super) type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);

/// What a call needs. Tasks that go on when their caller has left share it with the store.
pub(super) struct Database {
    pub(super) pool: Pool,
    address: Arc<PostgresAddress>,
    pub(super) schema: Schema,
    /// For pauses of its own, and for bounds of a hundred years; jobs know the database's.
    pub(super) clock: SystemClock,
    wake: Arc<dyn Wake>,
    /// The last event that is known. Whoever waits for events looks when it is touched.
    pub(super) committed: watch::Sender<u64>,
    /// Whether sessions have another isolation level by default, so that each call says its own.
    pub(super) names_isolation: AtomicBool,
}

impl Database {
    pub(super) fn new(address: &PostgresAddress, wake: Arc<dyn Wake>) -> Result<Self, OpenFault> {
        Ok(Self {
            pool: connect::pool(address)?,
            address: Arc::new(address.clone()),
            schema: address.schema.clone(),
            clock: SystemClock::new(),
            wake,
            committed: watch::Sender::new(0),
            names_isolation: AtomicBool::new(false),
        })
    }

    /// Makes one call, again if the database rolled it back for the sake of others.
    pub(super) async fn call(
        &self,
        doing: &'static str,
        sql: &str,
        parameters: &[Parameter<'_>],
    ) -> Answer<Vec<Row>> {
        let sql = self.schema.in_sql(sql);
        for attempt in 1..=TRIES {
            let client = self.pool.get().await.map_err(fault::no_connection)?;
            let under_way = CancelOnDrop::new(client, &self.address);
            let begun = self.clock.now().steady;
            let asked = async {
                let client = under_way.client();
                match self.names_isolation.load(Ordering::Relaxed) {
                    false => client.query_typed(&sql, parameters).await,
                    true => connect::ask_in_read_committed(client, &sql, parameters).await,
                }
            };
            let Ok(answer) = tokio::time::timeout(PATIENCE, asked).await else {
                let why = format!("no answer within {PATIENCE:?}");
                return Err(StoreError::Unknown { doing, source: why.into() });
            };
            match &answer {
                Err(error) if fault::ends_the_session(error) => under_way.lost(),
                Ok(_) | Err(_) => under_way.answered(),
            }
            if let Err(error) = &answer
                && error.code().is_some_and(|code| code.code() == fault::NOT_READ_COMMITTED)
            {
                // Someone has changed the default of database, role or server meanwhile.
                self.names_isolation.store(true, Ordering::Relaxed);
                continue;
            }
            let waited = self.clock.now().steady.since(begun);
            match answer.map_err(|error| fault::verdict(doing, error, waited)) {
                Ok(rows) => return Ok(rows),
                Err(Verdict::Tell(error)) => return Err(error),
                Err(Verdict::AgainOrTell(error)) if attempt == TRIES => return Err(error),
                Err(Verdict::Again | Verdict::AgainOrTell(_)) => {
                    let pause = Duration::from_millis(1 << attempt.min(7));
                    self.clock.sleep(pause).await;
                }
            }
        }
        let why = format!("others were in the way {TRIES} times; try again");
        Err(Refusal::Unavailable { why }.into())
    }

    /// A call that is answered with at least one row.
    pub(super) async fn one(
        &self,
        doing: &'static str,
        sql: &str,
        parameters: &[Parameter<'_>],
    ) -> Answer<Row> {
        let rows = self.call(doing, sql, parameters).await?;
        rows.into_iter().next().ok_or_else(|| odd(doing, "no row came back"))
    }

    /// After a commit: wakes whom it concerns, and lets those who wait for events look.
    pub(super) async fn committed_and_rings(&self, rings: Option<Vec<String>>) {
        self.committed.send_modify(|_| {});
        self.ring(rings.unwrap_or_default()).await;
    }

    pub(super) async fn ring(&self, rings: Vec<String>) {
        let rings: Vec<Ring> = rings.iter().filter_map(|ring| read_ring(ring)).collect();
        if !rings.is_empty() {
            self.wake.ring(&rings).await;
        }
    }
}

pub(super) fn odd(doing: &'static str, why: &str) -> StoreError {
    StoreError::Unknown { doing, source: why.into() }
}

fn read_ring(ring: &str) -> Option<Ring> {
    match ring.strip_prefix("q:") {
        Some(queue) => Name::new(queue).ok().map(Ring::Queue),
        None => (ring == "c").then_some(Ring::Cancel),
    }
}
