//! The same measurements on a store that this process owns, on one that another process owns and
//! this one has joined, and on one behind a server; and how long a takeover takes.
//!
//! The other process is `windlass serve` on the directory: it owns it, and answers at the socket in
//! it and over HTTP.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use anyhow::{Context, bail};
use windlass::store::Durability;

use crate::bench::callers::{bulk, enqueue, fill};
use crate::bench::ground::Subject;
use crate::bench::result::{Extra, Latencies, Measurement};
use crate::bench::workers::{drain, latency};
use crate::bench::{Nothing, Plan};
use crate::cli::Mode;

/// How this process reaches the store that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Door {
    /// It owns it.
    Own,
    /// Another process owns the directory, and this one has joined.
    Joined,
    /// Over HTTP on the loopback, from a server that owns the directory.
    Http,
}

impl Door {
    fn name(self) -> &'static str {
        match self {
            Door::Own => "own",
            Door::Joined => "joined",
            Door::Http => "http",
        }
    }
}

/// A process that owns a directory, until this is dropped.
#[derive(Debug)]
pub(crate) struct OtherProcess {
    child: Child,
    pub(crate) url: String,
}

impl OtherProcess {
    pub(crate) fn start(address: &str) -> anyhow::Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["serve", "--store", address, "--listen", "127.0.0.1:0"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let mut line = String::new();
        let stdout = child.stdout.take().context("its output is piped")?;
        BufReader::new(stdout).read_line(&mut line)?;
        let url = line.trim_end().rsplit_once(' ').map(|(_, url)| url.to_string());
        let url = url.unwrap_or_default();
        let process = Self { child, url };
        if process.url.is_empty() {
            bail!("the other process, `windlass serve`, did not start");
        }
        Ok(process)
    }

    /// Kills it, and returns when it is dead.
    fn kill(&mut self) {
        // If it has ended by itself, it need not be killed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for OtherProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Samples of the pick-up by an idle worker.
const SAMPLES: u64 = 500;

/// Takeovers that are timed.
const TAKEOVERS: u64 = 10;

/// Each measurement by each door, and takeovers.
pub(crate) async fn doors(plan: &Plan) -> anyhow::Result<Vec<Measurement>> {
    if plan.ground.durability().is_some_and(|durability| durability != Durability::Sync) {
        bail!("`doors` measures with `sync`: the other process opens the store with its defaults");
    }
    let mut measured = Vec::new();
    for mode in [Mode::Enqueue, Mode::Bulk, Mode::Drain, Mode::Latency] {
        let jobs = if mode == Mode::Latency { plan.jobs.min(SAMPLES) } else { plan.jobs };
        let mut own: Option<Measurement> = None;
        for door in [Door::Own, Door::Joined, Door::Http] {
            let plan = Plan { door, jobs, ..plan.clone() };
            let one = match mode {
                Mode::Enqueue => enqueue(&plan).await?,
                Mode::Bulk => bulk(&plan).await?,
                Mode::Drain => drain(&plan).await?,
                _ => latency(&plan).await?,
            };
            let own = own.get_or_insert_with(|| one.clone());
            let (ratio_to_own, p50_more_ms) = (one.part_of(own), one.later_than(own));
            let (of, door) = (mode.name(), door.name());
            let extra = Extra::Door { of, door, ratio_to_own, p50_more_ms };
            measured.push(one.part_of_mode(Mode::Doors).extra(extra));
        }
    }
    measured.push(takeover(plan).await?);
    Ok(measured)
}

/// From the death of the owner until a call of a joined process is answered by its successor, which
/// is this process; a tenth of the jobs wait meanwhile.
async fn takeover(plan: &Plan) -> anyhow::Result<Measurement> {
    let mut latencies = Latencies::new()?;
    for _ in 0..TAKEOVERS {
        let plan = Plan { door: Door::Joined, ..plan.clone() };
        let mut subject = Subject::open(Mode::Doors, &plan).await?;
        fill(&subject.engine, plan.jobs / 10, plan.payload, |_, _| {}).await?;
        let owner = subject.other.as_mut().context("another process owns it")?;
        owner.kill();
        let began = Instant::now();
        subject.engine.enqueue(Nothing::of_bytes(plan.payload)).await?;
        latencies.note(began.elapsed());
        subject.end().await;
    }
    let (of, door) = ("takeover", Door::Joined.name());
    let extra = Extra::Door { of, door, ratio_to_own: None, p50_more_ms: None };
    let measured = Measurement::new(Mode::Doors, plan, TAKEOVERS).durability(Durability::Sync);
    Ok(measured.latencies(&latencies).extra(extra))
}
