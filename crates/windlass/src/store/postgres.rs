//! The PostgreSQL store: many machines, one database, the rules in SQL.
//!
//! Every verb is one call of one function of the schema, in one round trip and one commit; the
//! functions are in `postgres/sql`, a file for each verb. Here a verb becomes its call and the rows
//! become its answer. Time is the database's. Nothing is prepared by name, so all of it works
//! behind a transaction pooler.
//!
//! A job's words never change after it was accepted; where it stands is a narrow row of its own, so
//! that the hot path neither rewrites wide rows nor walks through history.

mod cancel;
mod claimed;
mod clock;
pub(crate) mod connect;
mod control;
mod counts;
mod database;
mod enqueue;
mod event;
mod explain;
mod fault;
mod group;
mod jobs;
mod migrate;
pub(in crate::store) mod moving;
mod names;
mod objects;
mod record;
mod refusal;
mod renew;
mod roles;
mod settle;
mod spec;
mod sql;
mod tls;
pub(crate) mod transaction;
mod vacuum;
mod wire;

use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
pub use connect::{PostgresAddress, Schema};
pub use fault::OpenFault;
pub use migrate::{MIGRATIONS, Migration, VERSION};
pub use roles::{grant_enqueue_sql, grant_read_sql, grant_work_sql};
use tokio_postgres::Row;
use tokio_postgres::types::Type;
use windlass_core::event::Event;
use windlass_core::explain::Explanation;
use windlass_core::job::{JobId, NewJob};
use windlass_core::ledger::{
    Claim, Counts, Enqueued, Promoted, Renewal, Renewed, Rescue, Rescued, Settled, Settlement,
    Turned, WorkerReport,
};
use windlass_core::limits::Limits;
use windlass_core::object::Turn;
use windlass_core::refusal::Refusal;
use windlass_core::time::Timestamp;

use self::claimed::{ClaimedSequences, Claims};
use self::clock::ClockWatch;
use self::database::{Database, PATIENCE, Parameter, odd};
use self::group::EnqueueGroups;
use self::names::Names;
use self::vacuum::{Vacuum, VacuumTarget};
use self::wire::Read;
use super::{
    AlterJobs, AlterQueue, Answer, ClaimedBatch, Durability, HeartbeatAnswer, JobActionResult,
    JobQuery, ObjectPage, ObjectQuery, Page, QueueAction, QueueActionDone, Store, StoreError,
    StoreInfo, events_within,
};
use crate::clock::{Clock, SystemClock};
use crate::wake::Wake;

/// How long closing may take to tell the others.
const A_WORD: Duration = Duration::from_secs(1);

/// How often a reader that waits for events looks by itself: other processes commit too, and do
/// not tell.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Keeps jobs in a PostgreSQL database, which many processes may share.
pub struct PostgresStore {
    database: Arc<Database>,
    limits: Limits,
    names: Mutex<Names>,
    groups: Arc<EnqueueGroups>,
    sequences: ClaimedSequences,
    claims: Claims,
    vacuum: Vacuum,
    watch: ClockWatch,
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PostgresStore({})", self.database.schema)
    }
}

impl PostgresStore {
    /// Opens the database at `address`, brings its schema up to date unless the address says not
    /// to, and makes these limits those of the schema.
    ///
    /// Refuses a schema that is newer than this build or of another one, or older if it may not
    /// migrate.
    pub async fn open(
        address: &PostgresAddress,
        limits: Limits,
        wake: Arc<dyn Wake>,
    ) -> Result<Self, OpenFault> {
        prepare(address).await?;
        let store = Self {
            database: Arc::new(Database::new(address, wake)?),
            limits,
            names: Mutex::default(),
            groups: Arc::default(),
            sequences: ClaimedSequences::default(),
            claims: Claims::default(),
            vacuum: Vacuum::default(),
            watch: ClockWatch::start(address.clone()),
        };
        match store.settle_in().await {
            Ok(()) => Ok(store),
            Err(StoreError::Refused(Refusal::Unavailable { why })) => Err(OpenFault::new(why)),
            Err(error) => Err(OpenFault::new(error.to_string())),
        }
    }

    /// Writes down the limits and learns the names and the last event.
    async fn settle_in(&self) -> Answer<()> {
        let number = |limit: usize| i64::try_from(limit).unwrap_or(i64::MAX);
        let (age, jobs) = (wire::micros(self.limits.history_age), number(self.limits.history_jobs));
        let (bytes, dead) = (number(self.limits.payload_bytes), number(self.limits.dead_letters));
        let entries = number(self.limits.audit_entries);
        let sql = "update windlass.settings set payload_bytes = $1, dead_letters = $2, \
             history_age = $3, history_jobs = $4, audit_entries = $5 \
             where (payload_bytes, dead_letters, history_age, history_jobs, audit_entries) \
               is distinct from ($1, $2, $3, $4, $5)";
        let parameters = [&bytes, &dead, &age, &jobs, &entries];
        let parameters = parameters.map(|limit| -> Parameter<'_> { (limit, Type::INT8) });
        self.call("write down the limits", sql, &parameters).await?;
        let sql = "select windlass._number_events(), \
             current_setting('transaction_isolation') <> 'read committed'";
        let row = self.one("read the last event", sql, &[]).await?;
        self.database.names_isolation.store(row.get(1), Ordering::Relaxed);
        self.database.committed.send_replace(row.get::<_, i64>(0).cast_unsigned());
        self.learn_names().await
    }

    async fn call(
        &self,
        doing: &'static str,
        sql: &str,
        parameters: &[Parameter<'_>],
    ) -> Answer<Vec<Row>> {
        self.database.call(doing, sql, parameters).await
    }

    async fn one(
        &self,
        doing: &'static str,
        sql: &str,
        parameters: &[Parameter<'_>],
    ) -> Answer<Row> {
        self.database.one(doing, sql, parameters).await
    }

    async fn committed_and_rings(&self, rings: Option<Vec<String>>) {
        self.database.committed_and_rings(rings).await;
    }
}

/// Makes sure that the schema is the one this build works with.
async fn prepare(address: &PostgresAddress) -> Result<(), OpenFault> {
    let mut client = connect::connect(address).await?;
    let found = migrate::known_version(&client, &address.schema).await?;
    if found < VERSION && !address.migrate {
        let stands = match found {
            0 => "is not there yet".to_string(),
            version => format!("has version {version}"),
        };
        return Err(OpenFault::new(format!(
            "schema `{}` {stands} and needs {VERSION}; run `windlass migrate up`",
            address.schema
        )));
    }
    if found < VERSION {
        migrate::up(&mut client, &address.schema).await?;
    }
    moving::refuse_half_moved(&client, &address.schema).await
}

/// Brings the schema at `address` up to date and answers which versions that took.
///
/// Any number of processes may do so at once. Each version is one transaction: what is interrupted
/// has changed nothing and can be run again. Refuses a schema that is newer than this build.
pub async fn migrate_up(address: &PostgresAddress) -> Result<Vec<i32>, OpenFault> {
    let mut client = connect::connect(address).await?;
    migrate::up(&mut client, &address.schema).await
}

/// The version of the schema at `address`; 0 if there is none.
///
/// Refuses a schema of another build, whose versions are not the same by the same numbers.
pub async fn schema_version(address: &PostgresAddress) -> Result<i32, OpenFault> {
    let client = connect::connect(address).await?;
    match migrate::version(&client, &address.schema).await? {
        newer if newer > VERSION => Ok(newer),
        _ => migrate::known_version(&client, &address.schema).await,
    }
}

/// Deletes the schema at `address` with every job and object in it.
pub async fn remove_schema(address: &PostgresAddress) -> Result<(), OpenFault> {
    let client = connect::connect(address).await?;
    let sql = address.schema.in_sql("drop schema if exists windlass cascade");
    // It tells of every table that goes with it.
    let quiet = "set client_min_messages = warning";
    client.batch_execute(quiet).await.map_err(fault::open_fault)?;
    client.batch_execute(&sql).await.map_err(fault::open_fault)
}

/// The SQL that brings a schema from one version to the current one, to be run by other means.
pub fn migration_sql(schema: &Schema, from: i32) -> String {
    let due = MIGRATIONS.iter().filter(|migration| migration.version > from);
    let scripts = due.map(|migration| migrate::script(migration, schema));
    format!("begin isolation level read committed;\n{}commit;\n", scripts.collect::<String>())
}

/// What was read, or that it makes no sense.
fn understood<T>(read: Read<T>) -> Answer<T> {
    read.map_err(|strange| Refusal::Unavailable { why: strange.to_string() }.into())
}

/// A number as PostgreSQL has it, which ends at half of what ours can be.
fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// The time by this machine's clock: only for bounds of a hundred years.
fn about_now() -> Timestamp {
    SystemClock::new().now().wall
}

#[async_trait]
impl Store for PostgresStore {
    async fn enqueue(&self, jobs: Vec<Arc<NewJob>>) -> Answer<Vec<Enqueued>> {
        enqueue::enqueue(self, jobs).await
    }

    async fn claim(&self, claim: Claim) -> Answer<ClaimedBatch> {
        claimed::claim(self, claim).await
    }

    async fn renew(&self, renewals: Vec<Renewal>) -> Answer<Vec<Result<Renewed, Refusal>>> {
        renew::renew(self, renewals).await
    }

    async fn settle(&self, settlements: Vec<Settlement>) -> Answer<Vec<Result<Settled, Refusal>>> {
        settle::settle(self, settlements).await
    }

    async fn rescue(&self, rescue: Rescue) -> Answer<Rescued> {
        renew::rescue(self, rescue).await
    }

    async fn promote(&self) -> Answer<Promoted> {
        let row = self.one("promote", "select * from windlass.promote()", &[]).await?;
        let last = row.get::<_, i64>("last_event").cast_unsigned();
        self.database.committed.send_if_modified(|known| {
            let new = *known < last;
            *known = last.max(*known);
            new
        });
        self.database.ring(row.get("rings")).await;
        let database = &self.database;
        let (pool, schema) = (&database.pool, &database.schema);
        let target = || VacuumTarget { pool: pool.clone(), schema: schema.clone() };
        self.vacuum.sweep(target, database.clock.now().steady);
        Ok(Promoted {
            purged: row.get::<_, i64>("purged").cast_unsigned(),
            more: row.get("more"),
            next_in: row.get::<_, Option<i64>>("next_in").map(wire::duration),
        })
    }

    async fn alter(&self, alter: AlterJobs) -> Answer<Vec<JobActionResult>> {
        control::alter(self, alter).await
    }

    async fn alter_queue(&self, alter: AlterQueue) -> Answer<QueueActionDone> {
        let AlterQueue { queue, action, by } = alter;
        match action {
            QueueAction::Set(change) => {
                control::configure(self, queue, change, by).await.map(QueueActionDone::Set)
            }
            QueueAction::Clear => {
                control::clear(self, queue, by).await.map(QueueActionDone::Cleared)
            }
        }
    }

    async fn turn(&self, turn: Turn) -> Answer<Turned> {
        objects::turn(self, turn).await
    }

    async fn objects(&self, query: &ObjectQuery) -> Answer<ObjectPage> {
        objects::read(self, query).await
    }

    async fn heartbeat(&self, worker: Arc<str>, news: WorkerReport) -> Answer<HeartbeatAnswer> {
        counts::heartbeat(self, worker, news).await
    }

    async fn jobs(&self, query: &JobQuery) -> Answer<Page> {
        jobs::read(self, query).await
    }

    async fn count(&self) -> Answer<Counts> {
        counts::count(self).await
    }

    async fn explain(&self, job: JobId) -> Answer<Explanation> {
        explain::explain(self, job).await
    }

    async fn events(&self, after: u64, limit: usize, wait: Duration) -> Answer<Vec<Arc<Event>>> {
        let committed = self.database.committed.subscribe();
        let look = || event::events(self, after, limit);
        events_within(wait, LOOK_AGAIN, &self.database.clock, committed, look).await
    }

    fn info(&self) -> StoreInfo {
        let Database { schema, committed, .. } = &*self.database;
        let schema = Some(schema.shared());
        StoreInfo { schema, ..StoreInfo::new(Durability::Sync, *committed.borrow()) }
    }

    async fn close(&self) {
        self.watch.stop();
        let leaving = self.call("leave", "select windlass.leave_clock()", &[]);
        // Without a word of it, others wait a moment longer for nobody.
        let _ = tokio::time::timeout(A_WORD, leaving).await;
        self.database.pool.close();
    }
}
