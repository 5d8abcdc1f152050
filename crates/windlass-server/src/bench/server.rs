//! A look at the PostgreSQL server that is measured: what it has written, and how it is kept busy.

use anyhow::Context;
use tokio_postgres::{Client, NoTls};

/// A connection beside those of the store.
pub(crate) struct Server {
    client: Client,
    schema: String,
}

/// What a server has done so far, for whomever.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Work {
    /// Bytes of its write-ahead log.
    pub(crate) bytes: u64,
    pub(crate) commits: u64,
}

impl Server {
    /// Connects, without TLS, to the server at an address that may hold words of ours.
    pub(crate) async fn connect(address: &str) -> anyhow::Result<Self> {
        let (base, query) = address.split_once('?').unwrap_or((address, ""));
        let pairs = || query.split('&').filter(|pair| !pair.is_empty());
        let theirs: Vec<&str> = pairs().filter(|pair| !pair.starts_with("windlass_")).collect();
        let schema = pairs().find_map(|pair| pair.strip_prefix("windlass_schema="));
        let schema = schema.unwrap_or("windlass").to_string();
        let address = format!("{base}?{}", theirs.join("&"));
        let (client, connection) = tokio_postgres::connect(&address, NoTls).await.context(
            "the bench needs a connection of its own for this mode, and it has no TLS; \
             name a server that takes connections without it",
        )?;
        tokio::spawn(connection);
        Ok(Self { client, schema })
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// What it has done. Commits are told a moment later than they are made.
    pub(crate) async fn work(&self) -> anyhow::Result<Work> {
        let sql = "select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint, \
             (select xact_commit from pg_stat_database where datname = current_database())";
        let row = self.client.query_one(sql, &[]).await?;
        let count = |column| u64::try_from(row.get::<_, i64>(column)).context("a negative count");
        Ok(Work { bytes: count(0)?, commits: count(1)? })
    }

    /// What the tables and indexes of the schema take on the disk.
    pub(crate) async fn bytes_of_schema(&self) -> anyhow::Result<u64> {
        let sql = "select coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint \
             from pg_class c join pg_namespace n on n.oid = c.relnamespace \
             where n.nspname = $1 and c.relkind = 'r'";
        let row = self.client.query_one(sql, &[&self.schema]).await?;
        u64::try_from(row.get::<_, i64>(0)).context("a negative size")
    }

    /// Begins a transaction that sees things as they are now, and holds everything up that was
    /// deleted since until it ends.
    pub(crate) async fn forget_a_transaction(&self) -> anyhow::Result<()> {
        let sql = "begin isolation level repeatable read; select pg_current_xact_id()";
        Ok(self.client.batch_execute(sql).await?)
    }

    /// Ends that transaction.
    pub(crate) async fn remember_it(&self) -> anyhow::Result<()> {
        Ok(self.client.batch_execute("rollback").await?)
    }
}
