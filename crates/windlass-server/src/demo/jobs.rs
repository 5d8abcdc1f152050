//! The kinds of work and their handlers: what a program that uses the library would contain.
//!
//! How long a job takes and whether it fails stands in its payload, so that chance is only where
//! the jobs are made and a seed decides everything.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::sleep;
use windlass::{
    Attempt, Engine, Failure, Jitter, Job, JobId, Options, Priority, Retry, State, WorkerBuilder,
};

use crate::demo::objects::{Objects, Scan, send_digest};

/// What the handlers share with the rest of the program.
#[derive(Debug, Default)]
pub(crate) struct World {
    /// The last day whose figures are in.
    figures_until: AtomicU64,
    /// Scans in the order in which they were made.
    scans: Mutex<Vec<Scan>>,
}

impl World {
    pub(crate) fn figures_arrive(&self, day: u64) {
        self.figures_until.fetch_max(day, Ordering::Relaxed);
    }

    pub(crate) fn note(&self, scan: Scan) {
        self.scans.lock().unwrap_or_else(PoisonError::into_inner).push(scan);
    }

    /// Where a parcel was seen so far, one after the other; they are forgotten.
    pub(crate) fn take_scans_of(&self, parcel: &str) -> Vec<String> {
        let mut scans = self.scans.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = scans.extract_if(.., |scan| scan.parcel == parcel);
        taken.map(|scan| scan.place).collect()
    }

    fn has_figures_of(&self, day: u64) -> bool {
        self.figures_until.load(Ordering::Relaxed) >= day
    }
}

/// Mails a receipt. An address without `@` is refused for good.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SendReceipt {
    pub(crate) order: u64,
    pub(crate) to: String,
    pub(crate) takes_ms: u64,
}

impl Job for SendReceipt {
    const KIND: &'static str = "mail.send_receipt";
    type Output = String;

    fn options(&self) -> Options {
        Options::new().queue("mail").priority(Priority::HIGH)
    }
}

async fn send_receipt(job: SendReceipt) -> Result<String, Failure> {
    if !job.to.contains('@') {
        return Err(Failure::permanent(format!("`{}` is not an address", job.to)));
    }
    sleep(Duration::from_millis(job.takes_ms)).await;
    Ok(format!("receipt {} is with {}", job.order, job.to))
}

/// Charges a card, once per order however often it is asked for.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Charge {
    pub(crate) order: u64,
    pub(crate) cents: u64,
    /// How many attempts the bank declines before it accepts one.
    pub(crate) declined: u32,
    pub(crate) takes_ms: u64,
}

impl Job for Charge {
    const KIND: &'static str = "billing.charge";
    type Output = u64;

    fn options(&self) -> Options {
        Options::new().queue("billing").priority(Priority::CRITICAL).unique(self.order)
    }
}

async fn charge(job: Charge, attempt: Attempt) -> Result<u64, Failure> {
    sleep(Duration::from_millis(job.takes_ms)).await;
    if attempt.number() <= job.declined {
        return Err(Failure::retry("no answer"));
    }
    Ok(job.cents)
}

/// Makes a small picture of a large one.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Resize {
    pub(crate) photo: u64,
    pub(crate) takes_ms: u64,
}

impl Job for Resize {
    const KIND: &'static str = "media.resize";
    type Output = ();

    fn options(&self) -> Options {
        Options::new().queue("media").priority(Priority::LOW)
    }
}

async fn resize(job: Resize, attempt: Attempt) -> Result<(), Failure> {
    sleep(Duration::from_millis(job.takes_ms / 2)).await;
    attempt.progress(50, "half the pixels");
    sleep(Duration::from_millis(job.takes_ms / 2)).await;
    Ok(())
}

/// Converts a video: the one job that takes long, and says how far it is.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Transcode {
    pub(crate) video: u64,
    pub(crate) takes_ms: u64,
}

impl Job for Transcode {
    const KIND: &'static str = "media.transcode";
    type Output = ();

    fn options(&self) -> Options {
        Options::new().queue("media").no_timeout()
    }
}

async fn transcode(job: Transcode, attempt: Attempt) -> Result<(), Failure> {
    for quarter in 1..4_u8 {
        sleep(Duration::from_millis(job.takes_ms / 4)).await;
        attempt.progress(quarter * 25, format!("{quarter} of 4 parts of video {}", job.video));
    }
    sleep(Duration::from_millis(job.takes_ms / 4)).await;
    Ok(())
}

/// Builds the report of a day, as soon as the figures of that day are in.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct BuildReport {
    pub(crate) day: u64,
    pub(crate) takes_ms: u64,
}

impl Job for BuildReport {
    const KIND: &'static str = "report.build";
    type Output = String;

    fn options(&self) -> Options {
        Options::new().queue("reports")
    }
}

async fn build_report(
    job: BuildReport,
    attempt: Attempt,
    world: State<Arc<World>>,
) -> Result<String, Failure> {
    if !world.has_figures_of(job.day) {
        attempt.log(format!("the figures of day {} are not in yet", job.day));
        return Err(Failure::snooze(Duration::from_millis(400)));
    }
    sleep(Duration::from_millis(job.takes_ms)).await;
    Ok(format!("report-{}.pdf", job.day))
}

/// First step of the graph: reads rows from somewhere.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Extract {
    pub(crate) rows: u64,
}

impl Job for Extract {
    const KIND: &'static str = "etl.extract";
    type Output = Vec<u64>;

    fn options(&self) -> Options {
        Options::new().queue("etl")
    }
}

async fn extract(job: Extract) -> Result<Vec<u64>, Failure> {
    sleep(Duration::from_millis(300)).await;
    Ok((1..=job.rows).collect())
}

/// Second step, three at a time: adds up every third row of what the first step read.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Transform {
    pub(crate) part: u64,
}

impl Job for Transform {
    const KIND: &'static str = "etl.transform";
    type Output = u64;

    fn options(&self) -> Options {
        Options::new().queue("etl")
    }
}

async fn transform(job: Transform, attempt: Attempt) -> Result<u64, Failure> {
    let rows: Vec<u64> = output_of_first(&attempt).await?;
    sleep(Duration::from_millis(250 + 150 * job.part)).await;
    Ok(rows.iter().filter(|row| **row % 3 == job.part).sum())
}

/// Last step: puts together what the second step made.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Load {
    pub(crate) table: String,
}

impl Job for Load {
    const KIND: &'static str = "etl.load";
    type Output = u64;

    fn options(&self) -> Options {
        Options::new().queue("etl")
    }
}

async fn load(_job: Load, attempt: Attempt) -> Result<u64, Failure> {
    let mut sum = 0;
    for part in attempt.dependencies().collect::<Vec<_>>() {
        sum += output_of::<u64>(&attempt, part).await?;
    }
    sleep(Duration::from_millis(200)).await;
    Ok(sum)
}

async fn output_of_first<T: serde::de::DeserializeOwned>(attempt: &Attempt) -> Result<T, Failure> {
    let first = attempt.dependencies().next();
    let first = first.ok_or_else(|| Failure::permanent("it depends on nothing"))?;
    output_of(attempt, first).await
}

async fn output_of<T: serde::de::DeserializeOwned>(
    attempt: &Attempt,
    job: JobId,
) -> Result<T, Failure> {
    let output = attempt.output_of(job).await?;
    output.ok_or_else(|| Failure::permanent(format!("job {job} left no output")))
}

/// A worker for all of them.
pub(crate) fn worker(engine: &Engine, world: Arc<World>, objects: &Objects) -> WorkerBuilder {
    let soon = Retry::constant(Duration::from_millis(300)).jitter(Jitter::None).up_to(4);
    engine
        .worker()
        .name("demo")
        .slots(12)
        .state(world)
        .handle(send_receipt)
        .handle_with(charge, |options| options.retry(soon))
        .handle_with(resize, |options| options.concurrency(4))
        .handle(transcode)
        .handle(build_report)
        .handle(extract)
        .handle(transform)
        .handle(load)
        .handle(send_digest)
        .pool(&objects.parcels)
        .primitive(objects.index.clone())
        .primitive(objects.renewal.clone())
}
