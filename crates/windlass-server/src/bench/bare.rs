//! What a PostgreSQL server could do at best: batches inserted and deleted, and nothing else.
//!
//! A few connections, so that some work while others wait for the disk, insert a hundred rows with
//! a payload, commit, delete them, commit, and go on. Nothing is claimed, leased, ordered, counted
//! or told: no job queue on that server is faster.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::Context;
use tokio::task::JoinSet;
use windlass::store::Durability;

use crate::bench::Plan;
use crate::bench::callers::shares;
use crate::bench::result::{Extra, Measurement};
use crate::bench::server::Server;
use crate::cli::Mode;

/// Rows of one insert and of one delete.
const BATCH: u64 = 100;

/// As many as there is anything to gain from on a small server.
const CONNECTIONS: u32 = 4;

/// Does with bare rows what `drain` does with jobs: each costs one insert and one delete.
pub(crate) async fn insert_and_delete(plan: &Plan) -> anyhow::Result<Measurement> {
    let address = plan.ground.database().context("it is the limit of a database")?;
    let table = format!("windlass_bare_{}", std::process::id());
    let server = Server::connect(address).await?;
    let client = server.client();
    let make = format!("create table {table} (id bigserial primary key, payload bytea not null)");
    client.batch_execute(&make).await?;
    let measured = measure(plan, address, &table).await;
    client.batch_execute(&format!("drop table {table}")).await?;
    measured
}

/// A table of bare rows, and connections that insert one at a time.
pub(crate) struct Rows {
    table: String,
    insert: String,
    connections: Vec<Server>,
    next: AtomicUsize,
    payload: Vec<u8>,
}

impl Rows {
    pub(crate) async fn create(plan: &Plan) -> anyhow::Result<Self> {
        let address = plan.ground.database().context("it is the limit of a database")?;
        let table = format!("windlass_bare_{}", std::process::id());
        let mut connections = Vec::new();
        for _ in 0..CONNECTIONS {
            connections.push(Server::connect(address).await?);
        }
        let make = format!("create table {table} (id bigserial primary key, payload bytea)");
        connections[0].client().batch_execute(&make).await?;
        let insert = format!("insert into {table} (payload) values ($1)");
        let (next, payload) = (AtomicUsize::new(0), vec![b'x'; plan.payload]);
        Ok(Self { table, insert, connections, next, payload })
    }

    /// Inserts a row, and returns when it is committed.
    pub(crate) async fn insert(&self) -> anyhow::Result<()> {
        let next = self.next.fetch_add(1, Ordering::Relaxed) % self.connections.len();
        let client = self.connections[next].client();
        client.execute(&self.insert, &[&self.payload]).await?;
        Ok(())
    }

    pub(crate) async fn drop_table(&self) -> anyhow::Result<()> {
        let client = self.connections[0].client();
        Ok(client.batch_execute(&format!("drop table {}", self.table)).await?)
    }
}

async fn measure(plan: &Plan, address: &str, table: &str) -> anyhow::Result<Measurement> {
    let insert =
        format!("insert into {table} (payload) select p from unnest($1::bytea[]) p returning id");
    let delete = format!("delete from {table} where id = any ($1)");
    let mut tasks = JoinSet::new();
    let began = Instant::now();
    for share in shares(plan.jobs, CONNECTIONS) {
        let (server, payload) = (Server::connect(address).await?, vec![b'x'; plan.payload]);
        let insert = server.client().prepare(&insert).await?;
        let delete = server.client().prepare(&delete).await?;
        tasks.spawn(async move {
            let (client, mut left) = (server.client(), share);
            while left > 0 {
                let size = left.min(BATCH);
                let rows = vec![payload.as_slice(); usize::try_from(size)?];
                let ids = client.query(&insert, &[&rows]).await?;
                let ids: Vec<i64> = ids.iter().map(|row| row.get(0)).collect();
                client.execute(&delete, &[&ids]).await?;
                left -= size;
            }
            anyhow::Ok(())
        });
    }
    while let Some(task) = tasks.join_next().await {
        task??;
    }
    let measured = Measurement::new(Mode::Limit, plan, plan.jobs).concurrency(CONNECTIONS);
    let extra = Extra::Limit {
        of: Mode::Drain.name(),
        writes_per_job: 2.0 / BATCH as f64,
        bytes_per_write: BATCH * plan.payload as u64,
        bytes_per_s: None,
    };
    Ok(measured.durability(Durability::Sync).took(began.elapsed()).extra(extra))
}
