//! Schemas on a shared server, with a clock that tests move; jobs, engines and waiting.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use windlass::store::StoreExt as _;

use serde::{Deserialize, Serialize};
use tokio_postgres::{Client, NoTls};
use windlass::core::job::NewJob;
use windlass::core::ledger::{Claim, KindClaim};
use windlass::store::postgres::{PostgresAddress, PostgresStore, Schema};
use windlass::wake::LocalWake;
use windlass::{Engine, Job, JobId, JobRecord, JobState, Limits, Name, StateName};
use windlass_testbed::{Postgres, or_skip};

/// A database of its own on the shared server.
pub(crate) struct Ground {
    pub(crate) server: &'static Postgres,
    pub(crate) database: String,
    made: AtomicUsize,
}

impl Ground {
    /// `None` if there is no server to be had.
    pub(crate) fn new() -> Option<Self> {
        let server = or_skip(Postgres::shared())?;
        let database = server.create_database();
        Some(Self { server, database, made: AtomicUsize::new(0) })
    }

    /// Engines on one schema that nobody has used.
    pub(crate) async fn engines(&self, how_many: usize) -> Vec<Engine> {
        // Small pools: a server has a hundred connections for all tests that run.
        let address = format!("{}&windlass_pool=6", self.text_address());
        let mut engines = Vec::new();
        for _ in 0..how_many {
            engines.push(open(&address).await);
        }
        engines
    }

    /// The address of a schema that nobody has used.
    pub(crate) fn text_address(&self) -> String {
        let made = self.made.fetch_add(1, Ordering::SeqCst);
        format!("{}?windlass_schema=s{made}", self.server.url_for(&self.database))
    }

    /// A connection of one's own, for what is slow to come or is told nobody else.
    pub(crate) async fn client(&self) -> Client {
        let url = self.server.url_for(&self.database);
        let (client, connection) = tokio_postgres::connect(&url, NoTls).await.expect("it connects");
        tokio::spawn(connection);
        client
    }

    pub(crate) fn sql(&self, statements: &str) -> String {
        self.server.sql(&self.database, statements)
    }

    /// How many calls wait for a lock, of this database alone: others share the server.
    pub(crate) fn waiting(&self) -> u32 {
        let sql = "select count(*) from pg_locks l join pg_stat_activity a using (pid) \
             where not l.granted and a.datname = current_database()";
        self.sql(sql).parse().expect("it is a number")
    }

    /// Makes a clock for all stores, which stands still until it is moved.
    pub(crate) fn make_clock(&self) {
        // What is tested on it is the rules, not the disk.
        self.server.sql(
            "postgres",
            &format!("alter database {} set synchronous_commit = off", self.database),
        );
        self.sql("create table public.clock (us bigint)");
        self.sql("insert into public.clock values (1700000000000000)");
    }

    pub(crate) fn advance(&self, by: Duration) {
        self.sql(&format!("update public.clock set us = us + {}", by.as_micros()));
    }

    /// A store on the clock of [`Ground::make_clock`].
    pub(crate) async fn store(&self, limits: Limits) -> Arc<PostgresStore> {
        self.store_at(&self.text_address(), limits).await
    }

    /// The same on a schema of one's choice.
    pub(crate) async fn store_at(&self, address: &str, limits: Limits) -> Arc<PostgresStore> {
        let address: PostgresAddress = address.parse().expect("the address is well formed");
        let store = PostgresStore::open(&address, limits, Arc::new(LocalWake::new())).await;
        let store = store.expect("the schema can be made");
        self.sql(&clock_sql(&address.schema));
        Arc::new(store)
    }
}

/// Puts a schema on the clock of [`Ground::make_clock`].
pub(crate) fn clock_sql(schema: &Schema) -> String {
    format!(
        "create or replace function {schema}.now_us() returns bigint language sql volatile as \
         $$ select us from public.clock $$"
    )
}

/// How long something is waited for. The deadline is only for a test that would never end; one that
/// runs with a bug (`planted/run`) is to end in vain, and soon.
fn deadline() -> Duration {
    let planted = std::env::var("PLANTED").is_ok_and(|bug| !bug.is_empty());
    Duration::from_secs(if planted { 10 } else { 60 })
}

/// Waits until the condition holds.
pub(crate) async fn until<Fut: Future<Output = bool>>(what: &str, holds: impl FnMut() -> Fut) {
    until_within(deadline(), what, holds).await;
}

/// Waits until a condition holds that needs several rounds of the engine's vacuum, of which there
/// is one in 15 seconds.
pub(crate) async fn until_vacuumed<Fut: Future<Output = bool>>(
    what: &str,
    holds: impl FnMut() -> Fut,
) {
    until_within(3 * deadline(), what, holds).await;
}

async fn until_within<Fut: Future<Output = bool>>(
    deadline: Duration,
    what: &str,
    mut holds: impl FnMut() -> Fut,
) {
    let waiting = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let in_time = tokio::time::timeout(deadline, waiting).await;
    assert!(in_time.is_ok(), "waited in vain until {what}");
}

/// The answer to something that must not take for ever.
pub(crate) async fn soon<T>(what: &str, answer: impl Future<Output = T>) -> T {
    let answered = tokio::time::timeout(deadline(), answer).await;
    answered.unwrap_or_else(|_| panic!("waited in vain for {what}"))
}

pub(crate) async fn open(address: &str) -> Engine {
    Engine::open(address).await.expect("the engine opens")
}

/// A job that carries a number.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Work {
    pub(crate) number: u64,
}

impl Job for Work {
    const KIND: &'static str = "work";
    type Output = u64;
}

pub(crate) fn work(number: u64) -> Work {
    Work { number }
}

pub(crate) fn name(text: &str) -> Name {
    Name::new(text).expect("tests use valid names")
}

/// A job without a type: kind `work`, queue `default`, its number as its payload.
pub(crate) fn raw(number: u64) -> NewJob {
    let payload = format!("{{\"number\":{number}}}").into_bytes();
    NewJob::new(windlass::new_id(), name("work"), name("default"), payload)
}

/// A claim of jobs of kind `work`.
pub(crate) fn claim(worker: &str, limit: usize) -> Claim {
    let kinds = vec![KindClaim::new(name("work"))];
    Claim { worker: worker.into(), queues: None, kinds, limit, request: None }
}

/// What is kept of these jobs, in their order.
pub(crate) async fn records(engine: &Engine, jobs: &[JobId]) -> Vec<JobRecord> {
    let mut records = Vec::with_capacity(jobs.len());
    for some in jobs.chunks(1_000) {
        let found = engine.store().find(some).await.expect("a find is answered");
        records.extend(found.into_iter().map(|record| record.expect("the job is kept")));
    }
    records
}

/// How many jobs of all queues are in this state.
pub(crate) async fn count(engine: &Engine, state: StateName) -> u64 {
    let counts = engine.counts().await.expect("counters are answered");
    counts.lines.iter().map(|line| line.states[state as usize]).sum()
}

pub(crate) fn is_completed(record: &JobRecord) -> bool {
    matches!(record.status.state, JobState::Completed { .. })
}

/// Numbers that look random and are the same in every run.
#[derive(Clone, Debug)]
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// A number below `sides`.
    pub(crate) fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}

/// When an attempt began and ended, in the store's time.
pub(crate) type Interval = (i64, i64);

/// The attempts of a job that have ended, oldest first.
pub(crate) fn intervals(record: &JobRecord) -> Vec<Interval> {
    let ended = record.attempts.iter().filter_map(|attempt| {
        let (end, _) = attempt.ended?;
        Some((attempt.started_at.as_micros(), end.as_micros()))
    });
    ended.collect()
}

/// The most of these that were going on at once.
pub(crate) fn most_at_once(intervals: &[Interval]) -> usize {
    // Whoever ends at the moment at which another begins has made room for it.
    let ends = intervals.iter().map(|(_, end)| (*end, 0));
    let begins = intervals.iter().map(|(begin, _)| (*begin, 1));
    let mut moments: Vec<_> = ends.chain(begins).collect();
    moments.sort_unstable();
    let (mut now, mut most) = (0_usize, 0);
    for (_, begins) in moments {
        now = if begins == 1 { now + 1 } else { now.saturating_sub(1) };
        most = most.max(now);
    }
    most
}
