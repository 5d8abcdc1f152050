//! The PostgreSQL store: many machines, one database, the rules in SQL.
//!
//! Every verb is one call of one function of the schema, in one round trip and one commit; the
//! functions are in `postgres/sql`, a file for each part of the ledger they stand for. Time is the
//! database's. Nothing is prepared by name, so all of it works behind a transaction pooler.
//!
//! A job's words never change after it was accepted; where it stands is a narrow row of its own, so
//! that the hot path neither rewrites wide rows nor walks through history.

mod cancel;
mod claimed;
mod clock;
pub(crate) mod connect;
mod event;
mod explain;
mod fault;
mod jobs;
mod migrate;
pub(in crate::store) mod moving;
mod record;
mod roles;
mod tls;
pub(crate) mod transaction;
mod vacuum;
mod wire;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
pub use connect::{PostgresAddress, Schema};
use deadpool_postgres::Pool;
pub use fault::OpenFault;
pub use migrate::{MIGRATIONS, Migration, VERSION};
pub use roles::{grant_enqueue_sql, grant_read_sql, grant_work_sql};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};
use windlass_core::batch;
use windlass_core::event::{Event, EventKind};
use windlass_core::explain::Explanation;
use windlass_core::filter::Filter;
use windlass_core::job::{JobId, LeaseToken, NewJob, Priority, Start, StateName};
use windlass_core::ledger::{
    CancelAnswer, Claim, Cleared, Counts, Enqueued, LaneCount, Promoted, QueueChange, QueueCount,
    QueueKindCount, RecoveryMode, Renewal, Renewed, Rescue, Rescued, RescuedJob, Ring, Settled,
    Settlement, Totals, Turned, WorkerInfo, WorkerKind, WorkerReport, WorkerView,
};
use windlass_core::limits::{self, Limits};
use windlass_core::name::Name;
use windlass_core::object::{Address, ObjectMeta, ObjectRecord, ObjectView, Turn};
use windlass_core::outcome::{ErrorText, Verdict as Outcome};
use windlass_core::rate::Rate;
use windlass_core::record::{QueueSettings, Report};
use windlass_core::refusal::Refusal;
use windlass_core::time::Timestamp;

use self::cancel::CancelOnDrop;
use self::claimed::{ClaimColumns, Claims, HandedOut};
use self::clock::ClockWatch;
use self::event::{EventRow, QueueKinds};
use self::fault::Verdict;
use self::vacuum::{LowWater, Vacuum};
use self::wire::{Placed, Read, Sparse};
use super::{
    Answer, ClaimedBatch, Durability, JobAction, JobActionDone, JobActionResult, JobQuery,
    ObjectFilter, ObjectPage, ObjectQuery, Page, QueueAction, QueueActionDone, Selection, Store,
    StoreError, StoreInfo, events_within,
};
use crate::clock::{Clock, SystemClock};
use crate::wake::Wake;

/// How long the database may take to answer before the answer is unknown.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long closing may take to tell the others.
const A_WORD: Duration = Duration::from_secs(1);

/// How often a reader that waits for events looks by itself: other processes commit too, and do
/// not tell.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// How often a call is made again when the database rolled it back for the sake of others.
const TRIES: u32 = 10;

/// A value for the database, and its type.
type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);

/// Keeps jobs in a PostgreSQL database, which many processes may share.
pub struct PostgresStore {
    pool: Pool,
    address: Arc<PostgresAddress>,
    schema: Schema,
    limits: Limits,
    wake: Arc<dyn Wake>,
    committed: watch::Sender<u64>,
    names: Mutex<Names>,
    handed_out: HandedOut,
    claims: Claims,
    /// For pauses of its own, and for bounds of a hundred years; jobs know the database's.
    clock: SystemClock,
    vacuum: Vacuum,
    watch: ClockWatch,
    /// Whether sessions have another isolation level by default, so that each call says its own.
    names_isolation: AtomicBool,
}

/// Numbers of lines, which never change.
#[derive(Default)]
struct Names {
    lines: HashMap<(Name, Name), i32>,
    of_line: QueueKinds,
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PostgresStore({})", self.schema)
    }
}

impl PostgresStore {
    /// Opens the database at `address`, brings its schema up to date unless the address says not
    /// to, and makes these limits those of the schema.
    ///
    /// Refuses a schema that is newer than this build, or older if it may not migrate.
    pub async fn open(
        address: &PostgresAddress,
        limits: Limits,
        wake: Arc<dyn Wake>,
    ) -> Result<Self, OpenFault> {
        prepare(address).await?;
        let store = Self {
            pool: connect::pool(address)?,
            address: Arc::new(address.clone()),
            schema: address.schema.clone(),
            limits,
            wake,
            committed: watch::Sender::new(0),
            names: Mutex::default(),
            handed_out: HandedOut::default(),
            claims: Claims::default(),
            clock: SystemClock::new(),
            vacuum: Vacuum::default(),
            watch: ClockWatch::start(address.clone()),
            names_isolation: AtomicBool::new(false),
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
        let sql = "update windlass.settings set payload_bytes = $1, dead_letters = $2, \
             history_age = $3, history_jobs = $4 \
             where (payload_bytes, dead_letters, history_age, history_jobs) \
               is distinct from ($1, $2, $3, $4)";
        let parameters: [Parameter<'_>; 4] =
            [(&bytes, Type::INT8), (&dead, Type::INT8), (&age, Type::INT8), (&jobs, Type::INT8)];
        self.call("write down the limits", sql, &parameters).await?;
        let sql = "select windlass._number_events(), \
             current_setting('transaction_isolation') <> 'read committed'";
        let row = self.one("read the last event", sql, &[]).await?;
        self.names_isolation.store(row.get(1), Ordering::Relaxed);
        self.committed.send_replace(row.get::<_, i64>(0).cast_unsigned());
        self.learn_lines().await
    }

    async fn call(
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
            under_way.answered();
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
    async fn one(
        &self,
        doing: &'static str,
        sql: &str,
        parameters: &[Parameter<'_>],
    ) -> Answer<Row> {
        let rows = self.call(doing, sql, parameters).await?;
        rows.into_iter().next().ok_or_else(|| odd(doing, "no row came back"))
    }

    /// After a commit: wakes whom it concerns, and lets those who wait for events look.
    async fn committed_and_rings(&self, rings: Option<Vec<String>>) {
        self.committed.send_modify(|_| {});
        let rings: Vec<Ring> =
            rings.into_iter().flatten().filter_map(|ring| read_ring(&ring)).collect();
        if !rings.is_empty() {
            self.wake.ring(&rings).await;
        }
    }

    fn names(&self) -> std::sync::MutexGuard<'_, Names> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn learn_lines(&self) -> Answer<()> {
        let sql = "select l.id, q.name, k.name from windlass.queue_kind l \
             join windlass.queue q on q.id = l.queue join windlass.kind k on k.id = l.kind";
        let rows = self.call("read names", sql, &[]).await?;
        let mut names = self.names();
        for row in rows {
            let line = (understood(wire::name(row.get(1)))?, understood(wire::name(row.get(2)))?);
            names.of_line.insert(row.get(0), line.clone());
            names.lines.insert(line, row.get(0));
        }
        Ok(())
    }

    /// The number of the line of each job. One that is new is noted in a commit of its own, so that
    /// nobody waits for a name until somebody's transaction ends.
    async fn lines(&self, jobs: &[Arc<NewJob>]) -> Answer<Vec<i32>> {
        let mut lines = Vec::with_capacity(jobs.len());
        for job in jobs {
            let line = (job.queue.clone(), job.kind.clone());
            let known = self.names().lines.get(&line).copied();
            lines.push(match known {
                Some(number) => number,
                None => self.register(line).await?,
            });
        }
        Ok(lines)
    }

    async fn register(&self, line: (Name, Name)) -> Answer<i32> {
        let (queue, kind) = (line.0.as_str(), line.1.as_str());
        let parameters: [Parameter<'_>; 2] = [(&queue, Type::TEXT), (&kind, Type::TEXT)];
        let sql = "select windlass.register($1, $2)";
        let number: i32 = self.one("note a name", sql, &parameters).await?.get(0);
        let mut names = self.names();
        names.of_line.insert(number, line.clone());
        names.lines.insert(line, number);
        Ok(number)
    }

    async fn accept(&self, jobs: &[Arc<NewJob>]) -> Answer<Vec<Enqueued>> {
        let columns = BatchColumns::of(jobs, self.lines(jobs).await?);
        let rows = self.call("enqueue", ACCEPT, &columns.parameters()).await?;
        let (enqueued, rings) = read_enqueued(&rows)?;
        self.committed_and_rings(rings).await;
        Ok(enqueued)
    }

    /// Whether the job runs under this lease.
    async fn is_held(&self, job: JobId, token: LeaseToken) -> Answer<bool> {
        let (job, token) = (wire::uuid(job), token.0.cast_signed());
        let sql = "select exists (select from windlass.job j \
             join windlass.job_state_now p using (seq) \
             where j.id = $1 and p.state = 3 and p.token = $2)";
        let parameters: [Parameter<'_>; 2] = [(&job, Type::UUID), (&token, Type::INT8)];
        Ok(self.one("look at a lease", sql, &parameters).await?.get(0))
    }

    async fn objects_where(
        &self,
        status: &str,
        parameters: &[Parameter<'_>],
    ) -> Answer<Vec<ObjectView>> {
        let sql = format!("{OBJECTS} where {status}");
        let rows = self.call("read objects", &sql, parameters).await?;
        rows.iter().map(|row| understood(read_object(row))).collect()
    }

    /// Adds what completed jobs returned to the events that tell of it.
    async fn look_up_results(&self, events: &mut [Event]) -> Answer<()> {
        let mut completed: Vec<&mut Event> = events
            .iter_mut()
            .filter(|event| matches!(event.what, EventKind::JobCompleted { .. }))
            .collect();
        if completed.is_empty() {
            return Ok(());
        }
        let job = |event: &&mut Event| event.job().map(wire::uuid).unwrap_or_default();
        let jobs: Vec<uuid::Uuid> = completed.iter().map(job).collect();
        let ats: Vec<i64> = completed.iter().map(|event| event.at.as_micros()).collect();
        let most = i32::try_from(limits::EVENT_RESULT_BYTES).unwrap_or(i32::MAX);
        let parameters: [Parameter<'_>; 3] =
            [(&jobs, Type::UUID_ARRAY), (&ats, Type::INT8_ARRAY), (&most, Type::INT4)];
        for row in self.call("read results", event::RESULTS, &parameters).await? {
            let place = usize::try_from(row.get::<_, i32>("n")).ok();
            let event = place.and_then(|n| completed.get_mut(n.checked_sub(1)?));
            if let Some(EventKind::JobCompleted { result, .. }) = event.map(|event| &mut event.what)
            {
                *result = event::result(&row);
            }
        }
        Ok(())
    }

    /// The filter in JSON. `None` if nothing can match it, because no job of its queues or kinds
    /// was ever accepted.
    async fn filter(&self, filter: &Filter) -> Answer<Option<Value>> {
        let mut said = json!({});
        if !filter.states.is_empty() {
            said["states"] = filter.states.iter().map(|state| *state as i64).collect();
        }
        if !filter.kinds.is_empty() || !filter.queues.is_empty() {
            self.learn_lines().await?;
            let any = |list: &[Name], name: &Name| list.is_empty() || list.contains(name);
            let names = self.names();
            let meant = names.of_line.iter().filter(|(_, (queue, kind))| {
                any(&filter.queues, queue) && any(&filter.kinds, kind)
            });
            let lines: Vec<i32> = meant.map(|(line, _)| *line).collect();
            if lines.is_empty() {
                return Ok(None);
            }
            said["lines"] = lines.into_iter().collect();
        }
        if !filter.tags.is_empty() {
            said["tags"] = filter.tags.iter().map(Name::as_str).collect();
        }
        if let Some(from) = filter.created_from {
            said["from"] = from.as_micros().into();
        }
        if let Some(before) = filter.created_before {
            said["before"] = before.as_micros().into();
        }
        if let Some(parent) = filter.parent {
            said["parent"] = parent.to_string().into();
        }
        if let Some(on) = filter.blocked_by {
            said["blocked_by"] = on.to_string().into();
        }
        Ok(Some(said))
    }
}

/// Makes sure that the schema is the one this build works with.
async fn prepare(address: &PostgresAddress) -> Result<(), OpenFault> {
    let mut client = connect::connect(address).await?;
    let found = migrate::version(&client, &address.schema).await?;
    migrate::refuse_newer(found, &address.schema)?;
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
pub async fn schema_version(address: &PostgresAddress) -> Result<i32, OpenFault> {
    let client = connect::connect(address).await?;
    migrate::version(&client, &address.schema).await
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

fn odd(doing: &'static str, why: &str) -> StoreError {
    StoreError::Unknown { doing, source: why.into() }
}

/// What was read, or that it makes no sense.
fn understood<T>(read: Read<T>) -> Answer<T> {
    read.map_err(|strange| Refusal::Unavailable { why: strange.to_string() }.into())
}

fn read_ring(ring: &str) -> Option<Ring> {
    match ring.strip_prefix("q:") {
        Some(queue) => Name::new(queue).ok().map(Ring::Queue),
        None => (ring == "c").then_some(Ring::Cancel),
    }
}

/// The time by this machine's clock: only for bounds of a hundred years.
fn about_now() -> Timestamp {
    SystemClock::new().now().wall
}

const ACCEPT: &str = "select * from windlass.accept($1, $2, $3, $4, $5, $6, $7, $8)";

/// A batch of jobs, column by column.
struct BatchColumns<'a> {
    ids: Vec<uuid::Uuid>,
    lines: Vec<i32>,
    payloads: Vec<&'a [u8]>,
    priorities: Vec<i32>,
    start_kinds: Vec<i16>,
    starts: Sparse<i64>,
    max_attempts: Sparse<i64>,
    specs: Sparse<Value>,
}

impl<'a> BatchColumns<'a> {
    fn of(jobs: &'a [Arc<NewJob>], lines: Vec<i32>) -> Self {
        Self {
            ids: jobs.iter().map(|job| wire::uuid(job.id)).collect(),
            lines,
            payloads: jobs.iter().map(|job| &*job.payload).collect(),
            priorities: jobs.iter().map(|job| job.priority.0).collect(),
            start_kinds: jobs.iter().map(|job| wire::start(job.start).0).collect(),
            starts: jobs.iter().map(|job| wire::start(job.start).1).collect(),
            max_attempts: jobs.iter().map(|job| job.max_attempts().map(i64::from)).collect(),
            specs: jobs.iter().map(|job| wire::spec(job)).collect(),
        }
    }

    fn parameters(&self) -> [Parameter<'_>; 8] {
        [
            (&self.ids, Type::UUID_ARRAY),
            (&self.lines, Type::INT4_ARRAY),
            (&self.payloads, Type::BYTEA_ARRAY),
            (&self.priorities, Type::INT4_ARRAY),
            (&self.start_kinds, Type::INT2_ARRAY),
            (&self.starts.column, Type::INT8_ARRAY),
            (&self.max_attempts.column, Type::INT8_ARRAY),
            (&self.specs.column, Type::JSONB_ARRAY),
        ]
    }
}

/// What became of a batch, and whom to ring.
fn read_enqueued(rows: &[Row]) -> Answer<(Vec<Enqueued>, Option<Vec<String>>)> {
    let mut enqueued = Vec::with_capacity(rows.len());
    let mut rings = None;
    for row in rows {
        let Some(id) = row.get::<_, Option<uuid::Uuid>>("id") else {
            rings = row.get("rings");
            continue;
        };
        let placed = Placed {
            id,
            acceptance: row.get("acceptance"),
            depth: row.get("depth"),
            sequence: row.get("sequence"),
            lane: row.get("lane"),
            ahead: row.get("ahead"),
        };
        enqueued.push(understood(placed.into_enqueued())?);
    }
    Ok((enqueued, rings))
}

/// An object's columns, given what its jobs say.
const OBJECTS: &str = "select o.*, \
    (select min(p.since) from windlass.job_state p where p.object = o.address and p.state = 3) \
      as running, \
    (select case when p.state < 3 then p.at end from windlass.job j \
      join windlass.job_state p using (seq) where j.id = o.alarm) as alarm_at, \
    (select count(*) from windlass.job_state p where p.object = o.address) as open_jobs \
    from windlass.object o";

fn read_object(row: &Row) -> Read<ObjectView> {
    let name = |what: &str| wire::name(row.get(what));
    let address = Address::new(name("kind")?, name("name")?, row.get("key"));
    let address = address.map_err(|refusal| wire::UnknownValue(refusal.to_string()))?;
    let at = |what: &str| row.get::<_, Option<i64>>(what).map(wire::time);
    let meta = ObjectMeta {
        version: row.get::<_, i64>("version").cast_unsigned(),
        incarnation: row.get::<_, i64>("incarnation").cast_unsigned(),
        status: wire::read_status(row.get("status"))?,
        reason: row.get::<_, Option<&str>>("reason").map(ErrorText::new),
        created_at: wire::time(row.get("created_at")),
        updated_at: wire::time(row.get("updated_at")),
        last_success_at: at("last_success_at"),
        runs: row.get::<_, i64>("runs").cast_unsigned(),
        failures: row.get::<_, i64>("failures").cast_unsigned(),
        recoveries: row.get::<_, i32>("recoveries").cast_unsigned(),
        last_recovery_at: at("last_recovery_at"),
        alarm: row.get::<_, Option<uuid::Uuid>>("alarm").map(wire::job_id),
        purge_at: at("purge_at"),
    };
    let state = wire::bytes(row.get("state"));
    Ok(ObjectView {
        record: ObjectRecord { address, meta, state },
        executing_since: at("running"),
        alarm_at: at("alarm_at"),
        open_jobs: row.get::<_, i64>("open_jobs").cast_unsigned(),
    })
}

/// Whether nothing but the attempt itself ends with this.
fn ends_alone(settlement: &Settlement) -> bool {
    settlement.verdict == Outcome::Complete
        && settlement.next.is_empty()
        && settlement.turn.is_none()
        && settlement.report == Report::default()
}

/// The order in which settlements go to the database, and which of them end alone. It goes through
/// these fastest by number, and their order is of no consequence; the others stay in theirs, and
/// so does whatever else is said of a job that was named before.
fn by_number(
    settlements: &[(usize, Settlement)],
    numbers: &[Option<i64>],
) -> impl Iterator<Item = (bool, usize)> {
    let mut seen = HashSet::with_capacity(settlements.len());
    let key = |(at, (number, (_, end))): (usize, (&Option<i64>, &(usize, Settlement)))| {
        let is_first = seen.insert(end.job);
        let alone = number.filter(|_| is_first && ends_alone(end));
        (alone.is_none(), alone, at)
    };
    let mut order: Vec<_> = numbers.iter().zip(settlements).enumerate().map(key).collect();
    order.sort_unstable();
    order.into_iter().map(|(others, _, at)| (!others, at))
}

/// Settlements, column by column.
#[derive(Default)]
struct SettlementColumns {
    jobs: Vec<uuid::Uuid>,
    /// How many of them, from the first on, end alone and are in the order of their numbers.
    alone: i32,
    /// Those as runs.
    runs: Runs,
    /// The numbers, tokens and verdicts of the others.
    numbers: Vec<Option<i64>>,
    tokens: Vec<i64>,
    verdicts: Vec<i16>,
    arguments: Sparse<i64>,
    /// All outputs, one after the other.
    outputs: Vec<u8>,
    /// Where each begins, counted from one.
    starts: Sparse<i32>,
    /// How long each is.
    sizes: Sparse<i32>,
    errors: Sparse<String>,
    extras: Sparse<Value>,
    object_states: Sparse<Vec<u8>>,
}

impl SettlementColumns {
    fn push(&mut self, settlement: &Settlement, number: Option<i64>, alone: bool) {
        let (verdict, argument) = wire::verdict(settlement.verdict);
        let token = settlement.token.0.cast_signed();
        if let Some(number) = number.filter(|_| alone) {
            self.alone += 1;
            self.runs.push(self.alone, number, token);
        } else {
            self.numbers.push(number);
            self.tokens.push(token);
            self.verdicts.push(verdict);
        }
        self.jobs.push(wire::uuid(settlement.job));
        self.arguments.push(argument);
        let place = settlement.output.as_ref().map(|output| {
            self.outputs.extend_from_slice(output);
            (self.outputs.len() - output.len() + 1, output.len())
        });
        let number = |count| i32::try_from(count).unwrap_or(i32::MAX);
        self.starts.push(place.map(|(start, _)| number(start)));
        self.sizes.push(place.map(|(_, size)| number(size)));
        self.errors.push(settlement.error.as_ref().map(|error| wire::text(error.as_str())));
        let mut extra = serde_json::Map::new();
        if let Some(report) = wire::report(&settlement.report) {
            extra.insert("report".to_string(), report);
        }
        if !settlement.next.is_empty() {
            let next = settlement.next.iter().map(|job| wire::whole_job(job)).collect();
            extra.insert("next".to_string(), next);
        }
        let mut state = None;
        if let Some(turn) = &settlement.turn {
            extra.insert("turn".to_string(), wire::turn(turn));
            state = turn.state.as_ref().map(|state| state.to_vec());
        }
        self.extras.push((!extra.is_empty()).then_some(Value::Object(extra)));
        self.object_states.push(state);
    }

    fn parameters(&self) -> [Parameter<'_>; 16] {
        [
            (&self.alone, Type::INT4),
            (&self.jobs, Type::UUID_ARRAY),
            (&self.runs.firsts, Type::INT4_ARRAY),
            (&self.runs.lows, Type::INT8_ARRAY),
            (&self.runs.highs, Type::INT8_ARRAY),
            (&self.runs.tokens, Type::INT8_ARRAY),
            (&self.numbers, Type::INT8_ARRAY),
            (&self.tokens, Type::INT8_ARRAY),
            (&self.verdicts, Type::INT2_ARRAY),
            (&self.arguments.column, Type::INT8_ARRAY),
            (&self.outputs, Type::BYTEA),
            (&self.starts.column, Type::INT4_ARRAY),
            (&self.sizes.column, Type::INT4_ARRAY),
            (&self.errors.column, Type::TEXT_ARRAY),
            (&self.extras.column, Type::JSONB_ARRAY),
            (&self.object_states.column, Type::BYTEA_ARRAY),
        ]
    }
}

/// Jobs in the order of their numbers as runs, in which both numbers and tokens count up by one:
/// where each begins, counted from one, its lowest number and its highest, and the token of its
/// first.
#[derive(Default)]
struct Runs {
    firsts: Vec<i32>,
    lows: Vec<i64>,
    highs: Vec<i64>,
    tokens: Vec<i64>,
    /// What the next one has if it belongs to the last run.
    next: Option<(i64, i64)>,
}

impl Runs {
    fn push(&mut self, place: i32, number: i64, token: i64) {
        if self.next != Some((number, token)) {
            self.firsts.push(place);
            self.lows.push(number);
            self.highs.push(number);
            self.tokens.push(token);
        } else if let Some(high) = self.highs.last_mut() {
            *high = number;
        }
        self.next = Some((number + 1, token + 1));
    }
}

/// What of a batch can be refused without asking the database. Whether jobs wait for each other is
/// not: only it knows which of them are new.
fn check_batch(jobs: &[Arc<NewJob>], limits: &Limits) -> Result<(), Refusal> {
    batch::check(jobs, limits, about_now())
}

/// What of a settlement can be refused without asking the database.
fn check_settlement(settlement: &Settlement, limits: &Limits) -> Result<(), Refusal> {
    let next: &[Arc<NewJob>] = match settlement.verdict {
        Outcome::Complete => &settlement.next,
        Outcome::Retry(_)
        | Outcome::Snooze(_)
        | Outcome::Release
        | Outcome::Bury(_)
        | Outcome::Cancel(_) => &[],
    };
    match &settlement.turn {
        Some(turn) => check_turn(turn, next, limits),
        None => check_batch(next, limits),
    }
}

/// The same of a turn, and of other jobs that come with it.
fn check_turn(turn: &Turn, others: &[Arc<NewJob>], limits: &Limits) -> Result<(), Refusal> {
    turn.check(about_now())?;
    // On its own: it is no part of the batch if it only moves the alarm there is.
    if let Some(alarm) = turn.alarm_job() {
        alarm.check(limits, about_now())?;
    }
    let jobs: Vec<Arc<NewJob>> = others.iter().chain(&turn.jobs).cloned().collect();
    check_batch(&jobs, limits)
}

/// A setting of a queue as SQL takes it.
fn write_change(change: &QueueChange) -> (&'static str, Value) {
    match change {
        QueueChange::Pause => ("pause", Value::Null),
        QueueChange::Resume => ("resume", Value::Null),
        QueueChange::MaxDepth(limit) => ("max_depth", json!(limit.map(limits::countable))),
        QueueChange::Ageing(step) => ("ageing", json!(step.map(wire::micros))),
        QueueChange::Lanes(lanes) => ("lanes", json!(lanes.map(std::num::NonZeroU32::get))),
        QueueChange::PauseLane(lane) => ("pause_lane", json!(lane)),
        QueueChange::ResumeLane(lane) => ("resume_lane", json!(lane)),
        QueueChange::LaneDepth(limit) => ("lane_depth", json!(limit.map(limits::countable))),
        QueueChange::OnDead(kind) => ("on_dead", json!(kind.as_ref().map(Name::as_str))),
        QueueChange::OnEmpty(kind) => ("on_empty", json!(kind.as_ref().map(Name::as_str))),
    }
}

fn write_worker_info(info: &WorkerInfo) -> Value {
    let kind = |kind: &WorkerKind| {
        let rate = kind.rate.map(|rate| json!([rate.jobs, wire::micros(rate.period), rate.burst]));
        json!({ "kind": kind.kind.as_str(), "concurrency": kind.concurrency, "rate": rate })
    };
    let queues = info.queues.as_ref();
    let queues = queues.map(|queues| queues.iter().map(Name::as_str).collect::<Vec<_>>());
    let kinds: Vec<Value> = info.kinds.iter().map(kind).collect();
    json!({ "queues": queues, "kinds": kinds, "slots": info.slots })
}

fn read_worker_info(value: &Value) -> Option<WorkerInfo> {
    let number = |value: &Value| value.as_u64().and_then(|number| u32::try_from(number).ok());
    let name = |value: &Value| Name::new(value.as_str()?).ok();
    let kind = |value: &Value| {
        let rate = match value["rate"].as_array() {
            Some(rate) => Some(Rate {
                jobs: number(rate.first()?)?,
                period: wire::duration(rate.get(1)?.as_i64()?),
                burst: number(rate.get(2)?)?,
            }),
            None => None,
        };
        let concurrency = number(&value["concurrency"]);
        Some(WorkerKind { kind: name(&value["kind"])?, concurrency, rate })
    };
    let queues = match value["queues"].as_array() {
        Some(queues) => Some(queues.iter().map(name).collect::<Option<Vec<_>>>()?),
        None => None,
    };
    Some(WorkerInfo {
        queues,
        kinds: value["kinds"].as_array()?.iter().map(kind).collect::<Option<_>>()?,
        slots: number(&value["slots"])?,
    })
}

fn read_totals(value: &Value) -> Option<Totals> {
    let number = |index: usize| Some(value[index].as_i64()?.max(0).cast_unsigned());
    Some(Totals {
        enqueued: number(0)?,
        completed: number(1)?,
        failed: number(2)?,
        retried: number(3)?,
        rescued: number(4)?,
        dead: number(5)?,
        cancelled: number(6)?,
    })
}

fn read_counts(value: &Value) -> Option<Counts> {
    let count = |value: &Value| Some(value.as_i64()?.max(0).cast_unsigned());
    let name = |value: &Value| Name::new(value.as_str()?).ok();
    let line = |line: &Value| {
        let mut states = [0; 7];
        for (index, state) in states.iter_mut().enumerate() {
            *state = count(&line["states"][index])?;
        }
        let totals = read_totals(&line["totals"])?;
        Some(QueueKindCount {
            queue: name(&line["queue"])?,
            kind: name(&line["kind"])?,
            states,
            totals,
        })
    };
    let queue = |queue: &Value| {
        let settings = wire::settings(&queue["settings"]).ok()?;
        let mut lanes =
            vec![LaneCount::default(); settings.lanes.map_or(0, |lanes| lanes.get() as usize)];
        for said in queue["lanes"].as_array()? {
            let number = said["lane"].as_i64().and_then(|lane| usize::try_from(lane).ok());
            let Some(lane) = number.and_then(|number| lanes.get_mut(number)) else { continue };
            lane.waiting = count(&said["waiting"])?;
            lane.running = count(&said["running"])?;
            lane.totals = read_totals(&said["totals"])?;
        }
        for paused in &settings.paused_lanes {
            if let Some(lane) = lanes.get_mut(*paused as usize) {
                lane.paused = true;
            }
        }
        // The table has those of other priorities than 0; 0 is what they leave.
        let mut waiting_by_priority = Vec::new();
        for said in queue["priorities"].as_array()? {
            let priority = i32::try_from(said[0].as_i64()?).ok()?;
            waiting_by_priority.push((Priority(priority), count(&said[1])?));
        }
        waiting_by_priority.push((Priority::NORMAL, count(&queue["normal"])?));
        waiting_by_priority.retain(|(_, jobs)| *jobs > 0);
        waiting_by_priority.sort_unstable_by(|one, other| other.cmp(one));
        waiting_by_priority.truncate(limits::PRIORITIES_COUNTED);
        Some(QueueCount {
            queue: name(&queue["queue"])?,
            waiting: count(&queue["waiting"])?,
            waiting_by_priority,
            dead_letters_dropped: count(&queue["dropped"])?,
            settings,
            lanes,
        })
    };
    let worker = |worker: &Value| {
        Some(WorkerView {
            worker: worker["worker"].as_str()?.into(),
            info: read_worker_info(&worker["card"])?,
            running: count(&worker["running"])?,
            stopping: worker["stopping"].as_bool()?,
        })
    };
    Some(Counts {
        lines: value["lines"].as_array()?.iter().map(line).collect::<Option<_>>()?,
        queues: value["queues"].as_array()?.iter().map(queue).collect::<Option<_>>()?,
        workers: value["workers"].as_array()?.iter().map(worker).collect::<Option<_>>()?,
    })
}

/// Parts of the verbs.
impl PostgresStore {
    async fn replay_edited(&self, job: JobId, edited: &Arc<NewJob>) -> Answer<Enqueued> {
        let edited = [edited.clone()];
        check_batch(&edited, &self.limits)?;
        let (id, edited) = (wire::uuid(job), wire::whole_job(&edited[0]));
        let parameters: [Parameter<'_>; 2] = [(&id, Type::UUID), (&edited, Type::JSONB)];
        let sql = "select * from windlass.replay_edited($1, $2)";
        let row = match self.one("replay an edited job", sql, &parameters).await {
            Err(StoreError::Refused(Refusal::KeyTaken { holder, .. })) => {
                return Err(Refusal::KeyTaken { job, holder }.into());
            }
            other => other?,
        };
        let placed = understood(Placed::of_json(&row.get("placed")))?;
        self.committed_and_rings(row.get("rings")).await;
        understood(placed.into_enqueued())
    }

    async fn configure(&self, queue: &Name, change: &QueueChange) -> Answer<QueueSettings> {
        // What is wrong with it whatever the settings are.
        match change {
            QueueChange::PauseLane(_) => {}
            other => drop(other.clone().apply(&QueueSettings::default())?),
        }
        let (what, value) = write_change(change);
        let queue = queue.as_str();
        let parameters: [Parameter<'_>; 3] =
            [(&queue, Type::TEXT), (&what, Type::TEXT), (&value, Type::JSONB)];
        let sql = "select * from windlass.configure($1, $2, $3)";
        let row = self.one("configure a queue", sql, &parameters).await?;
        self.committed_and_rings(row.get("rings")).await;
        understood(wire::settings(&row.get("settings")))
    }

    async fn clear(&self, queue: &Name) -> Answer<Cleared> {
        let queue = queue.as_str();
        let sql = "select * from windlass.clear($1)";
        let row = self.one("clear a queue", sql, &[(&queue, Type::TEXT)]).await?;
        self.committed_and_rings(row.get("rings")).await;
        Ok(Cleared {
            cleared: row.get::<_, i64>("cleared").cast_unsigned(),
            followed: row.get::<_, i64>("followed").cast_unsigned(),
        })
    }

    async fn list_objects(
        &self,
        filter: &ObjectFilter,
        after: Option<&Address>,
        limit: usize,
    ) -> Answer<ObjectPage> {
        let limit = limit.clamp(1, limits::PAGE_JOBS);
        let kind = filter.kind.as_ref().map(Name::as_str);
        let name = filter.name.as_ref().map(Name::as_str);
        let status = filter.status.map(wire::status_number);
        let (after_kind, after_name, after_key) = match after {
            Some(after) => (after.kind().as_str(), after.name().as_str(), after.key()),
            None => ("", "", ""),
        };
        let most = i64::try_from(limit + 1).unwrap_or(i64::MAX);
        let parameters: [Parameter<'_>; 7] = [
            (&after_kind, Type::TEXT),
            (&after_name, Type::TEXT),
            (&after_key, Type::TEXT),
            (&kind, Type::TEXT),
            (&name, Type::TEXT),
            (&status, Type::INT2),
            (&most, Type::INT8),
        ];
        let status = "(o.kind, o.name, o.key) \
               > ($1 collate \"C\", $2 collate \"C\", $3 collate \"C\") \
             and ($4 is null or o.kind = $4) \
             and ($5 is null or o.name = $5) and ($6 is null or o.status = $6) \
             order by o.kind, o.name, o.key limit $7";
        let mut objects = self.objects_where(status, &parameters).await?;
        let more = objects.len() > limit;
        objects.truncate(limit);
        let last = objects.last().map(|object| object.record.address.clone());
        Ok(ObjectPage { next: last.filter(|_| more), objects })
    }

    async fn events_after(&self, after: u64, limit: usize) -> Answer<Vec<Arc<Event>>> {
        let number = signed(after);
        let rows = i32::try_from(limit).unwrap_or(i32::MAX);
        let parameters: [Parameter<'_>; 2] = [(&number, Type::INT8), (&rows, Type::INT4)];
        let sql = "select * from windlass.events($1, $2)";
        let rows = self.call("read events", sql, &parameters).await?;
        let mut told = Vec::with_capacity(rows.len());
        for row in &rows {
            match row.get::<_, Option<i64>>("last") {
                Some(last) => {
                    let last = last.cast_unsigned();
                    self.committed.send_if_modified(|known| {
                        *known = last.max(*known);
                        false
                    });
                }
                None => told.push(EventRow::of(row)),
            }
        }
        let unknown = |told: &EventRow| {
            let names = self.names();
            told.lines.iter().any(|line| !names.of_line.contains_key(line))
        };
        if told.iter().any(unknown) {
            self.learn_lines().await?;
        }
        let mut events = Vec::new();
        for told in &told {
            events.extend(understood(told.events(&self.names().of_line, after))?);
            if events.len() >= limit {
                break;
            }
        }
        events.truncate(limit);
        self.look_up_results(&mut events).await?;
        Ok(events.into_iter().map(Arc::new).collect())
    }
}

#[async_trait]
impl Store for PostgresStore {
    async fn enqueue(&self, jobs: Vec<Arc<NewJob>>) -> Answer<Vec<Enqueued>> {
        if jobs.is_empty() {
            return Ok(Vec::new());
        }
        check_batch(&jobs, &self.limits)?;
        self.accept(&jobs).await
    }

    async fn claim(&self, claim: Claim) -> Answer<ClaimedBatch> {
        const CLAIM: &str =
            "select * from windlass.claim($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)";
        let part = self.claims.begin(claim.limit);
        let terms = ClaimColumns::of(&claim, &part);
        let rows = self.call("claim", CLAIM, &terms.parameters()).await?;
        drop(part);
        let known = {
            let names = self.names();
            claimed::lines(&rows).all(|line| names.of_line.contains_key(&line))
        };
        if !known {
            self.learn_lines().await?;
        }
        let mut claimed = ClaimedBatch::default();
        // The last row tells how things stand.
        if let Some((stand, rows)) = rows.split_last() {
            claimed.ready = stand.get::<_, i64>("ready").cast_unsigned();
            claimed.wake_in = stand.get::<_, Option<i64>>("wake_in").map(wire::duration);
            let (since, lines) = (wire::time(stand.get("since")), &self.names().of_line);
            let reader = claimed::ClaimReader { claim: &claim, since, lines };
            claimed.jobs = understood(reader.spoken(stand))?;
            self.handed_out.remember(rows, &claimed.jobs);
            for row in rows {
                claimed.jobs.push(understood(reader.row(row))?);
            }
        }
        // In the order in which they are to start, whatever the database thinks of it.
        claimed.jobs.sort_by_key(|claimed| claimed.lease.token);
        if !claimed.jobs.is_empty() {
            self.committed_and_rings(None).await;
        }
        Ok(claimed)
    }

    async fn renew(&self, renewals: Vec<Renewal>) -> Answer<Vec<Result<Renewed, Refusal>>> {
        if renewals.is_empty() {
            return Ok(Vec::new());
        }
        let ids: Vec<JobId> = renewals.iter().map(|renewal| renewal.job).collect();
        let jobs: Vec<uuid::Uuid> = ids.iter().copied().map(wire::uuid).collect();
        let tokens: Vec<i64> = renewals.iter().map(|each| each.token.0.cast_signed()).collect();
        let length =
            |lease: Duration| wire::micros(lease.clamp(limits::LEASE_MIN, limits::LEASE_MAX));
        let leases: Vec<i64> = renewals.iter().map(|each| length(each.lease)).collect();
        let mut answers: Vec<Result<Renewed, Refusal>> =
            ids.iter().map(|job| Err(Refusal::LeaseLost { job: *job })).collect();
        let reports: Vec<Option<Value>> =
            renewals.iter().map(|renewal| wire::report(&renewal.report)).collect();
        let parameters: [Parameter<'_>; 4] = [
            (&jobs, Type::UUID_ARRAY),
            (&tokens, Type::INT8_ARRAY),
            (&leases, Type::INT8_ARRAY),
            (&reports, Type::JSONB_ARRAY),
        ];
        let sql = "select * from windlass.renew($1, $2, $3, $4)";
        for row in self.call("renew leases", sql, &parameters).await? {
            let index = usize::try_from(row.get::<_, i32>("n") - 1).unwrap_or(usize::MAX);
            let Some(answer) = answers.get_mut(index) else { continue };
            let refused: Option<Value> = row.get("refusal");
            *answer = match refused {
                Some(detail) => Err(fault::refusal(&detail, Some(ids[index]))
                    .unwrap_or(Refusal::LeaseLost { job: ids[index] })),
                None => Ok(Renewed {
                    until: wire::time(row.get("until")),
                    cancel_requested: row.get("cancel_requested"),
                }),
            };
        }
        self.committed.send_modify(|_| {});
        Ok(answers)
    }

    async fn settle(&self, settlements: Vec<Settlement>) -> Answer<Vec<Result<Settled, Refusal>>> {
        let mut answers: Vec<Result<Settled, Refusal>> = Vec::with_capacity(settlements.len());
        let mut accepted = Vec::with_capacity(settlements.len());
        for (index, settlement) in settlements.into_iter().enumerate() {
            let job = settlement.job;
            answers.push(Err(Refusal::LeaseLost { job }));
            match check_settlement(&settlement, &self.limits) {
                Ok(()) => accepted.push((index, settlement)),
                // A stale worker hears that it is stale, whatever else is wrong.
                Err(refusal) if self.is_held(job, settlement.token).await? => {
                    answers[index] = Err(refusal);
                }
                Err(_) => {}
            }
        }
        if accepted.is_empty() {
            return Ok(answers);
        }
        let jobs = || accepted.iter().map(|(_, settlement)| settlement.job);
        let numbers = self.handed_out.numbers(jobs());
        let (mut ends, mut places) =
            (SettlementColumns::default(), Vec::with_capacity(accepted.len()));
        for (alone, at) in by_number(&accepted, &numbers) {
            let (index, settlement) = &accepted[at];
            places.push((*index, settlement.job));
            ends.push(settlement, numbers[at], alone);
        }
        let sql = "select * from windlass.settle($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, \
             $12, $13, $14, $15, $16)";
        let rows = self.call("settle", sql, &ends.parameters()).await?;
        self.handed_out.forget(jobs());
        let place = |number: i32| usize::try_from(number - 1).ok().and_then(|at| places.get(at));
        // What has no row of its own is completed.
        for (index, _) in places.iter().take(usize::try_from(ends.alone).unwrap_or(0)) {
            answers[*index] = Ok(Settled { state: StateName::Completed });
        }
        let mut rings = None;
        for row in rows {
            let Some(number) = row.get::<_, Option<i32>>("n") else {
                rings = row.get("rings");
                continue;
            };
            let Some((index, job)) = place(number) else { continue };
            let refused: Option<Value> = row.get("refusal");
            answers[*index] =
                match refused {
                    Some(detail) => Err(fault::refusal(&detail, Some(*job))
                        .unwrap_or(Refusal::LeaseLost { job: *job })),
                    None => {
                        let state = row.get::<_, Option<i32>>("state").unwrap_or(4);
                        Ok(Settled { state: understood(wire::state_name(state.into()))? })
                    }
                };
        }
        self.committed_and_rings(rings).await;
        Ok(answers)
    }

    async fn rescue(&self, rescue: Rescue) -> Answer<Rescued> {
        let observe = rescue.recovery.mode == RecoveryMode::Observe;
        let most = i32::try_from(rescue.recovery.max_recoveries).unwrap_or(i32::MAX);
        let delay = wire::micros(rescue.recovery.delay);
        let reason = event::recovery_number(rescue.reason);
        let all = rescue.reason == windlass_core::event::RecoveryReason::Restart;
        let parameters: [Parameter<'_>; 5] = [
            (&observe, Type::BOOL),
            (&most, Type::INT4),
            (&delay, Type::INT8),
            (&reason, Type::INT4),
            (&all, Type::BOOL),
        ];
        let sql = "select * from windlass.rescue($1, $2, $3, $4, $5)";
        let rows = self.call("rescue", sql, &parameters).await?;
        let (mut rescued, mut rings) = (Rescued::default(), None);
        for row in rows {
            if let Some(id) = record::id(&row) {
                let state = understood(wire::state_name(row.get::<_, i32>("state").into()))?;
                rescued.jobs.push(RescuedJob { id, state });
            } else {
                rescued.more = row.get("more");
                rescued.next_in = row.get::<_, Option<i64>>("next_in").map(wire::duration);
                rings = row.get("rings");
            }
        }
        if !rescued.jobs.is_empty() || observe {
            self.committed_and_rings(rings).await;
        }
        Ok(rescued)
    }

    async fn promote(&self) -> Answer<Promoted> {
        let row = self.one("promote", "select * from windlass.promote()", &[]).await?;
        let last = row.get::<_, i64>("last_event").cast_unsigned();
        self.committed.send_if_modified(|known| {
            let new = *known < last;
            *known = last.max(*known);
            new
        });
        let rings: Vec<String> = row.get("rings");
        let rings: Vec<Ring> = rings.iter().filter_map(|ring| read_ring(ring)).collect();
        if !rings.is_empty() {
            self.wake.ring(&rings).await;
        }
        let low_water = || LowWater { pool: self.pool.clone(), schema: self.schema.clone() };
        self.vacuum.sweep(low_water, self.clock.now().steady);
        Ok(Promoted {
            purged: row.get::<_, i64>("purged").cast_unsigned(),
            next_in: row.get::<_, Option<i64>>("next_in").map(wire::duration),
        })
    }

    async fn alter(&self, selection: Selection, action: JobAction) -> Answer<Vec<JobActionResult>> {
        selection.check(&action)?;
        if let (JobAction::ReplayEdited(edited), Selection::Jobs(jobs)) = (&action, &selection)
            && let [job] = jobs.as_slice()
        {
            let result = match self.replay_edited(*job, edited).await {
                Err(StoreError::Refused(refusal)) => Err(refusal),
                other => Ok(JobActionDone::Replaced(other?)),
            };
            return Ok(vec![JobActionResult { job: *job, result }]);
        }
        let (ids, filter) = match selection {
            Selection::Jobs(jobs) => (Some(jobs), None),
            Selection::Matching(filter) => match self.filter(&filter).await? {
                Some(filter) => (None, Some(filter)),
                None => return Ok(Vec::new()),
            },
        };
        let ids: Option<Vec<uuid::Uuid>> = ids.map(|ids| ids.into_iter().map(wire::uuid).collect());
        let (what, start) = match action {
            JobAction::Cancel => (0_i32, Start::Now),
            JobAction::Reschedule(start) => {
                start.check(about_now())?;
                (1, start)
            }
            JobAction::Replay | JobAction::ReplayEdited(_) => (2, Start::Now),
            JobAction::Remove => (3, Start::Now),
            JobAction::RemoveGraph => (4, Start::Now),
        };
        let (kind, us) = wire::start(start);
        let kind = i32::from(kind);
        let parameters: [Parameter<'_>; 5] = [
            (&ids, Type::UUID_ARRAY),
            (&filter, Type::JSONB),
            (&what, Type::INT4),
            (&kind, Type::INT4),
            (&us, Type::INT8),
        ];
        let sql = "select * from windlass.alter($1, $2, $3, $4, $5)";
        let rows = self.call("alter jobs", sql, &parameters).await?;
        let (mut altered, mut rings) = (Vec::with_capacity(rows.len()), None);
        for row in rows {
            let Some(job) = row.get::<_, Option<uuid::Uuid>>("job").map(wire::job_id) else {
                rings = row.get("rings");
                continue;
            };
            let refused: Option<Value> = row.get("refusal");
            let result = match refused {
                Some(detail) => {
                    Err(fault::refusal(&detail, Some(job)).unwrap_or(Refusal::UnknownJob { job }))
                }
                None => Ok(match (&action, row.get::<_, i32>("deed")) {
                    (JobAction::Cancel, 0) => JobActionDone::Cancel(CancelAnswer::Cancelled),
                    (JobAction::Cancel, _) => JobActionDone::Cancel(CancelAnswer::Requested),
                    (JobAction::Reschedule(_), state) => {
                        JobActionDone::Rescheduled(understood(wire::state_name(state.into()))?)
                    }
                    (JobAction::Replay | JobAction::ReplayEdited(_), _) => JobActionDone::Replayed,
                    (JobAction::Remove, _) => JobActionDone::Removed,
                    (JobAction::RemoveGraph, jobs) => {
                        JobActionDone::GraphRemoved { jobs: jobs.unsigned_abs().into() }
                    }
                }),
            };
            altered.push(JobActionResult { job, result });
        }
        self.committed_and_rings(rings).await;
        Ok(altered)
    }

    async fn alter_queue(&self, queue: Name, action: QueueAction) -> Answer<QueueActionDone> {
        match action {
            QueueAction::Set(change) => {
                self.configure(&queue, &change).await.map(QueueActionDone::Set)
            }
            QueueAction::Clear => self.clear(&queue).await.map(QueueActionDone::Cleared),
        }
    }

    async fn turn(&self, turn: Turn) -> Answer<Turned> {
        check_turn(&turn, &[], &self.limits)?;
        let said = wire::turn(&turn);
        let state: Option<&[u8]> = turn.state.as_deref();
        let sql = "select * from windlass.turn($1, $2)";
        let parameters: [Parameter<'_>; 2] = [(&said, Type::JSONB), (&state, Type::BYTEA)];
        let row = self.one("turn an object", sql, &parameters).await?;
        self.committed_and_rings(row.get("rings")).await;
        let turned: Value = row.get("turned");
        let jobs = turned["jobs"].as_array().into_iter().flatten();
        let jobs = jobs.map(|job| understood(Placed::of_json(job).and_then(Placed::into_enqueued)));
        let version = turned["version"].as_u64().unwrap_or(0);
        Ok(Turned { version, jobs: jobs.collect::<Answer<_>>()? })
    }

    async fn objects(&self, query: &ObjectQuery) -> Answer<ObjectPage> {
        match query {
            ObjectQuery::Address(address) => {
                let address = address.to_string();
                let address: [Parameter<'_>; 1] = [(&address, Type::TEXT)];
                let objects = self.objects_where("o.address = $1", &address).await?;
                Ok(ObjectPage { objects, next: None })
            }
            ObjectQuery::Page { filter, after, limit } => {
                self.list_objects(filter, after.as_ref(), *limit).await
            }
        }
    }

    async fn heartbeat(&self, worker: Arc<str>, news: WorkerReport) -> Answer<()> {
        let (number, info, error) = match &news {
            WorkerReport::Started(info) => (0_i32, Some(write_worker_info(info)), None),
            WorkerReport::Stopping => (1, None, None),
            WorkerReport::Stopped => (2, None, None),
            WorkerReport::Error(error) => (3, None, Some(wire::text(error.as_str()))),
        };
        let worker = &*worker;
        let (host, pid) = (host(), i64::from(std::process::id()));
        let version = env!("CARGO_PKG_VERSION");
        let parameters: [Parameter<'_>; 7] = [
            (&worker, Type::TEXT),
            (&number, Type::INT4),
            (&info, Type::JSONB),
            (&host, Type::TEXT),
            (&pid, Type::INT8),
            (&version, Type::TEXT),
            (&error, Type::TEXT),
        ];
        let sql = "select windlass.heartbeat($1, $2, $3, $4, $5, $6, $7)";
        self.call("announce a worker", sql, &parameters).await?;
        self.committed.send_modify(|_| {});
        Ok(())
    }

    async fn jobs(&self, query: &JobQuery) -> Answer<Page> {
        jobs::read(self, query).await
    }

    async fn count(&self) -> Answer<Counts> {
        let row = self.one("count", "select windlass.counts()", &[]).await?;
        let counts: Value = row.get(0);
        read_counts(&counts).ok_or_else(|| odd("count", "the counters make no sense"))
    }

    async fn explain(&self, job: JobId) -> Answer<Explanation> {
        explain::explain(self, job).await
    }

    async fn events(&self, after: u64, limit: usize, wait: Duration) -> Answer<Vec<Arc<Event>>> {
        let (committed, look) = (self.committed.subscribe(), || self.events_after(after, limit));
        events_within(wait, LOOK_AGAIN, &self.clock, committed, look).await
    }

    fn info(&self) -> StoreInfo {
        let schema = Some(self.schema.shared());
        StoreInfo { schema, ..StoreInfo::new(Durability::Sync, *self.committed.borrow()) }
    }

    async fn close(&self) {
        self.watch.stop();
        let leaving = self.call("leave", "select windlass.leave_clock()", &[]);
        // Without a word of it, others wait a moment longer for nobody.
        let _ = tokio::time::timeout(A_WORD, leaving).await;
        self.pool.close();
    }
}

/// A number as PostgreSQL has it, which ends at half of what ours can be.
fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// The name of this machine, as far as it is known.
fn host() -> Option<String> {
    let name = std::fs::read_to_string("/etc/hostname").ok();
    let name = name.or_else(|| std::env::var("HOSTNAME").ok());
    name.map(|name| wire::text(name.trim())).filter(|name| !name.is_empty())
}
