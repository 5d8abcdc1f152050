//! The durable objects, as a program that uses the library would define them: a pool with lanes, a
//! debounce, a loop, and the job of a schedule.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::sleep;
use windlass::primitives::{Continuous, Debounce, Flush, PoolContext, Tick, WorkerPool};
use windlass::{Failure, Jitter, Job, Options, Retry, Schedule};

use crate::demo::jobs::World;

/// Lanes of the pool.
pub(crate) const LANES: u32 = 4;

/// How long a page gathers edits before it is indexed.
const WINDOW: Duration = Duration::from_millis(1_500);

/// How often the loop runs, and the schedule enqueues its job.
const RENEW: Duration = Duration::from_secs(2);
const DIGEST: Duration = Duration::from_secs(3);

/// The definitions, for the worker that runs them and for those who ask something of them.
#[derive(Clone)]
pub(crate) struct Objects {
    pub(crate) parcels: WorkerPool<Scan>,
    pub(crate) index: Debounce<Edit>,
    pub(crate) renewal: Continuous<Token>,
    /// When the digest is sent.
    pub(crate) digest: Schedule,
}

impl Objects {
    pub(crate) fn new(world: Arc<World>) -> anyhow::Result<Self> {
        let soon = Retry::constant(Duration::from_millis(300)).jitter(Jitter::None).up_to(4);
        let scan = move |scan, context| scanned(scan, context, world.clone());
        Ok(Self {
            parcels: WorkerPool::new("parcels", LANES, scan)
                .options(move |options| options.retry(soon.clone())),
            index: Debounce::new("index", WINDOW, index),
            renewal: Continuous::new("api", Schedule::every(RENEW)?, renew),
            digest: Schedule::every(DIGEST)?,
        })
    }
}

/// A parcel is seen at a place. Scans of one parcel must keep their order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Scan {
    pub(crate) parcel: String,
    pub(crate) place: String,
    /// The first attempt fails.
    pub(crate) fails: bool,
}

impl fmt::Display for Scan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at the {}", self.parcel, self.place)
    }
}

/// The job that an event of the pool is.
impl Job for Scan {
    const KIND: &'static str = "pool.parcels";
    type Output = ();
}

async fn scanned(scan: Scan, context: PoolContext, world: Arc<World>) -> Result<(), Failure> {
    sleep(Duration::from_millis(60)).await;
    if scan.fails && !context.is_retry() {
        return Err(Failure::retry("no network"));
    }
    world.note(scan);
    Ok(())
}

/// A page has changed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Edit {
    pub(crate) version: u64,
}

async fn index(_page: Flush<Edit>) -> Result<(), Failure> {
    sleep(Duration::from_millis(80)).await;
    Ok(())
}

/// What the loop remembers from run to run.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Token {
    renewed: u64,
}

async fn renew(mut tick: Tick<Token>) -> Result<Tick<Token>, Failure> {
    sleep(Duration::from_millis(40)).await;
    tick.state.renewed += 1;
    Ok(tick)
}

/// Sends a digest of what happened since the last one.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SendDigest {
    pub(crate) to: String,
}

impl Job for SendDigest {
    const KIND: &'static str = "report.digest";
    type Output = ();

    fn options(&self) -> Options {
        Options::new().queue("reports")
    }
}

pub(crate) async fn send_digest(_job: SendDigest) -> Result<(), Failure> {
    sleep(Duration::from_millis(50)).await;
    Ok(())
}
