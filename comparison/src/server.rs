//! What the server used: processor time from `/proc`, write-ahead log from its position.

use std::fs;
use std::time::Duration;

use anyhow::Context;
use tokio_postgres::{Client, NoTls};

/// Ticks of `/proc/PID/stat` a second: the same on every Linux machine that is used today.
const TICKS: u64 = 100;

/// A connection of the measurement's own, beside those of the system that is measured.
pub(crate) struct Server {
    client: Client,
    postmaster: u32,
}

/// Figures that only grow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Used {
    pub(crate) processor: Duration,
    pub(crate) wal_bytes: u64,
}

impl Used {
    pub(crate) fn since(self, earlier: Self) -> Self {
        Self {
            processor: self.processor.saturating_sub(earlier.processor),
            wal_bytes: self.wal_bytes.saturating_sub(earlier.wal_bytes),
        }
    }
}

impl Server {
    pub(crate) async fn connect(url: &str, postmaster: u32) -> anyhow::Result<Self> {
        let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
        tokio::spawn(connection);
        Ok(Self { client, postmaster })
    }

    pub(crate) async fn used(&self) -> anyhow::Result<Used> {
        let position = "select (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint";
        let wal_bytes = self.number(position).await?;
        Ok(Used { processor: processor_time(self.postmaster)?, wal_bytes })
    }

    /// Leaves nothing to do in the background that an earlier step has caused.
    pub(crate) async fn settle(&self) -> anyhow::Result<()> {
        self.client.batch_execute("vacuum analyze").await?;
        self.client.batch_execute("checkpoint").await?;
        Ok(())
    }

    /// The one number that a query answers with.
    pub(crate) async fn number(&self, query: &str) -> anyhow::Result<u64> {
        let number: i64 = self.client.query_one(query, &[]).await?.get(0);
        Ok(number.try_into()?)
    }
}

/// Of the server's first process, of its children, and of those children that have ended.
fn processor_time(postmaster: u32) -> anyhow::Result<Duration> {
    let mut ticks = 0;
    for entry in fs::read_dir("/proc")? {
        // What is no process, or has ended since, has no such file.
        let Ok(text) = fs::read_to_string(entry?.path().join("stat")) else { continue };
        let Some(stat) = Stat::read(&text) else { continue };
        if stat.pid == postmaster {
            ticks += stat.own + stat.ended_children;
        } else if stat.parent == postmaster {
            ticks += stat.own;
        }
    }
    let millis = ticks.checked_mul(1_000 / TICKS).context("too many ticks")?;
    Ok(Duration::from_millis(millis))
}

struct Stat {
    pid: u32,
    parent: u32,
    /// Of the process itself.
    own: u64,
    /// Of children that it has waited for.
    ended_children: u64,
}

impl Stat {
    /// Fields are counted from behind the name, which may hold anything.
    fn read(text: &str) -> Option<Self> {
        let pid = text.split(' ').next()?.parse().ok()?;
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
        let ticks = |index: usize| fields.get(index)?.parse::<u64>().ok();
        Some(Self {
            pid,
            parent: fields.get(1)?.parse().ok()?,
            own: ticks(11)? + ticks(12)?,
            ended_children: ticks(13)? + ticks(14)?,
        })
    }
}
