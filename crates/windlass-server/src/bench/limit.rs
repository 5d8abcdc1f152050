//! What the disk could do at best: a bare log with group commit, and nothing else.
//!
//! Callers hand over bytes and wait. One thread writes what has gathered meanwhile, waits until it
//! is on stable storage, and lets those callers go on. The files were filled with zeros before, so
//! that a sync has no metadata to write. Nothing is checked, indexed, or ever read back: no store
//! that acknowledges what is durable can be faster on the same disk, and how near one comes is what
//! its own work costs.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use anyhow::Context;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use windlass::store::Durability;

use crate::bench::Plan;
use crate::bench::callers::{BATCH, shares};
use crate::bench::result::{Extra, Latencies, Measurement, rounded};
use crate::cli::Mode;

/// The size of a file at most: that of a large segment of the engine's journal.
const FILE_BYTES: u64 = 64 << 20;

/// Files at most; after the last one the first is written over.
const FILES: u64 = 4;

/// Bytes that an engine of this version adds to the payload of a job when it accepts it, and until
/// it has completed it: only for a limit that is measured alone.
pub(crate) const ADDED_BY_ENQUEUE: u64 = 130;
const ADDED_BY_LIFECYCLE: u64 = 275;

/// What the callers of a log do.
#[derive(Clone, Copy, Debug)]
struct LimitWork {
    /// What it is the limit of.
    of: Mode,
    jobs: u64,
    jobs_per_call: u64,
    callers: u32,
    /// Each is waited for before the next.
    writes_per_call: u32,
    bytes_per_write: u64,
}

impl LimitWork {
    /// The work of a mode that writes so many bytes per job.
    fn of(mode: Mode, plan: &Plan, bytes_per_job: f64) -> Self {
        let bytes = |part: f64| (bytes_per_job * part).round().max(1.0) as u64;
        let batch = BATCH.min(plan.jobs);
        let (jobs_per_call, callers, writes_per_call, bytes_per_write) = match mode {
            Mode::Bulk => (batch, 1, 1, bytes(batch as f64)),
            Mode::Lifecycle => (1, plan.concurrency, 2, bytes(0.5)),
            Mode::Enqueue
            | Mode::Batch
            | Mode::Drain
            | Mode::Pool
            | Mode::Debounce
            | Mode::Continuous
            | Mode::Latency
            | Mode::Backlog
            | Mode::Pinned
            | Mode::Memory
            | Mode::Reopen
            | Mode::Idle
            | Mode::Steady
            | Mode::Doors
            | Mode::Limit
            | Mode::All => (1, plan.concurrency, 1, bytes(1.0)),
        };
        let jobs = plan.jobs;
        Self { of: mode, jobs, jobs_per_call, callers, writes_per_call, bytes_per_write }
    }

    fn in_one_write(self) -> Self {
        let bytes_per_write = self.bytes_per_write * u64::from(self.writes_per_call);
        Self { writes_per_call: 1, bytes_per_write, ..self }
    }

    fn calls(self) -> u64 {
        self.jobs.div_ceil(self.jobs_per_call)
    }

    fn bytes(self) -> u64 {
        self.calls() * u64::from(self.writes_per_call) * self.bytes_per_write
    }
}

/// Does with a bare log what `measured` did with the engine, and notes there how near it came.
pub(crate) async fn beside(
    mode: Mode,
    plan: &Plan,
    measured: &mut Measurement,
) -> anyhow::Result<Vec<Measurement>> {
    let work = LimitWork::of(mode, plan, measured.bytes_per_job());
    let limit = measure(plan, work).await?;
    measured.compare(&limit);
    let mut limits = vec![limit];
    if mode == Mode::Lifecycle {
        let stricter = measure(plan, work.in_one_write()).await?;
        measured.compare_with_one_write(&stricter);
        limits.push(stricter);
    }
    Ok(limits)
}

/// The limits of all modes that have one, by what a job takes as far as is known beforehand.
pub(crate) async fn alone(plan: &Plan) -> anyhow::Result<Vec<Measurement>> {
    let payload = plan.payload as u64;
    let lifecycle = LimitWork::of(Mode::Lifecycle, plan, (payload + ADDED_BY_LIFECYCLE) as f64);
    let enqueue = |mode| LimitWork::of(mode, plan, (payload + ADDED_BY_ENQUEUE) as f64);
    let works = [enqueue(Mode::Enqueue), enqueue(Mode::Bulk), lifecycle, lifecycle.in_one_write()];
    let mut limits = Vec::new();
    for work in works {
        limits.push(measure(plan, work).await?);
    }
    Ok(limits)
}

async fn measure(plan: &Plan, work: LimitWork) -> anyhow::Result<Measurement> {
    let plot = plan.ground.plot(Mode::Limit)?;
    let directory = plot.directory().context("a limit is that of a disk")?;
    let log = Arc::new(Log::open(directory, work.bytes())?);
    let bytes: Arc<[u8]> = vec![b'x'; usize::try_from(work.bytes_per_write)?].into();
    let mut callers = JoinSet::new();
    let began = Instant::now();
    for share in shares(work.calls(), work.callers) {
        let (log, bytes) = (log.clone(), bytes.clone());
        callers.spawn(async move {
            let mut latencies = Latencies::new()?;
            for _ in 0..share {
                let called = Instant::now();
                for _ in 0..work.writes_per_call {
                    log.write(&bytes).await?;
                }
                latencies.note(called.elapsed());
            }
            anyhow::Ok(latencies)
        });
    }
    let mut latencies = Latencies::new()?;
    while let Some(caller) = callers.join_next().await {
        latencies.absorb(&caller??)?;
    }
    let took = began.elapsed();
    log.close()?;
    let bytes_per_s = work.bytes() as f64 / took.as_secs_f64().max(1e-9);
    let measured = Measurement::new(Mode::Limit, plan, work.jobs).concurrency(work.callers);
    let extra = Extra::Limit {
        of: work.of.name(),
        writes_per_job: rounded(f64::from(work.writes_per_call) / work.jobs_per_call as f64, 3),
        bytes_per_write: work.bytes_per_write,
        bytes_per_s: Some(bytes_per_s.round()),
    };
    let measured = measured.durability(Durability::Sync).wrote(work.bytes());
    Ok(measured.took(took).latencies(&latencies).extra(extra))
}

/// A log that knows nothing but bytes.
pub(crate) struct Log {
    shared: Arc<Shared>,
    writer: Mutex<Option<JoinHandle<io::Result<()>>>>,
}

#[derive(Default)]
struct Shared {
    gathering: Mutex<Gathering>,
    work: Condvar,
}

/// What the next write will hold, and who waits for it.
#[derive(Default)]
struct Gathering {
    bytes: Vec<u8>,
    waiting: Vec<oneshot::Sender<()>>,
    writer_sleeps: bool,
    closing: bool,
}

impl Log {
    pub(crate) fn open(directory: &Path, bytes: u64) -> anyhow::Result<Self> {
        let count = bytes.div_ceil(FILE_BYTES).clamp(1, FILES);
        let size = bytes.clamp(1, FILE_BYTES).next_multiple_of(ZEROS as u64);
        let make = |number| zeroed(&directory.join(format!("log-{number}")), size);
        let files = (0..count).map(make).collect::<io::Result<Vec<File>>>();
        let files = files.context("cannot make the log")?;
        let shared = Arc::new(Shared::default());
        let writer = Writer { shared: shared.clone(), files, size, current: 0, at: 0 };
        let named = std::thread::Builder::new().name("bare-log".to_string());
        let writer = named.spawn(move || writer.run())?;
        Ok(Self { shared, writer: Mutex::new(Some(writer)) })
    }

    /// Returns when the bytes are on stable storage.
    pub(crate) async fn write(&self, bytes: &[u8]) -> anyhow::Result<()> {
        let (landed, landing) = oneshot::channel();
        {
            let mut gathering = self.shared.lock();
            gathering.bytes.extend_from_slice(bytes);
            gathering.waiting.push(landed);
            if gathering.writer_sleeps {
                gathering.writer_sleeps = false;
                self.shared.work.notify_one();
            }
        }
        landing.await.context("the bare log failed")
    }

    pub(crate) fn close(&self) -> anyhow::Result<()> {
        self.shared.lock().closing = true;
        self.shared.work.notify_one();
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        let written = writer.map(JoinHandle::join);
        let written = written.unwrap_or(Ok(Ok(())));
        written.unwrap_or_else(|panic| std::panic::resume_unwind(panic)).context("the bare log")
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Gathering> {
        self.gathering.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Writer {
    shared: Arc<Shared>,
    files: Vec<File>,
    /// Of each file.
    size: u64,
    current: usize,
    at: u64,
}

impl Writer {
    /// Writes until the log is closed. When it fails, those who wait are dropped, and so told.
    fn run(mut self) -> io::Result<()> {
        let (mut bytes, mut waiting) = (Vec::new(), Vec::new());
        while self.take(&mut bytes, &mut waiting) {
            self.write(&bytes)?;
            bytes.clear();
            for landed in waiting.drain(..) {
                // A caller that no longer waits needs no answer.
                let _ = landed.send(());
            }
        }
        Ok(())
    }

    /// Takes what has gathered, and leaves the empty buffers to be filled; `false` at the end.
    fn take(&self, bytes: &mut Vec<u8>, waiting: &mut Vec<oneshot::Sender<()>>) -> bool {
        let mut gathering = self.shared.lock();
        while gathering.bytes.is_empty() {
            if gathering.closing {
                return false;
            }
            gathering.writer_sleeps = true;
            let woken = self.shared.work.wait(gathering);
            gathering = woken.unwrap_or_else(PoisonError::into_inner);
            gathering.writer_sleeps = false;
        }
        std::mem::swap(bytes, &mut gathering.bytes);
        std::mem::swap(waiting, &mut gathering.waiting);
        true
    }

    fn write(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let room = usize::try_from(self.size - self.at).unwrap_or(usize::MAX);
            let (now, rest) = bytes.split_at(room.min(bytes.len()));
            let file = &self.files[self.current];
            file.write_all_at(now, self.at)?;
            file.sync_data()?;
            self.at += now.len() as u64;
            if self.at == self.size {
                (self.current, self.at) = ((self.current + 1) % self.files.len(), 0);
            }
            bytes = rest;
        }
        Ok(())
    }
}

/// Bytes that are written at once where only zeros are.
const ZEROS: usize = 1 << 20;

/// A file full of zeros, on stable storage.
fn zeroed(path: &Path, size: u64) -> io::Result<File> {
    let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
    let zeros = vec![0; ZEROS];
    for _ in 0..size / zeros.len() as u64 {
        file.write_all(&zeros)?;
    }
    file.sync_all()?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_writes_every_byte_and_goes_round() -> anyhow::Result<()> {
        let directory = std::env::temp_dir().join(format!("windlass-log-{}", std::process::id()));
        std::fs::create_dir_all(&directory)?;
        let log = Log::open(&directory, 1)?;
        let runtime = tokio::runtime::Builder::new_current_thread().build()?;
        let most = ZEROS - 2;
        runtime.block_on(log.write(&vec![b'a'; most]))?;
        runtime.block_on(log.write(b"bcde"))?;
        log.close()?;
        let written = std::fs::read(directory.join("log-0"))?;
        assert_eq!((&written[..3], &written[most - 1..]), (&b"dea"[..], &b"abc"[..]));
        assert_eq!(written.len(), ZEROS);
        Ok(std::fs::remove_dir_all(directory)?)
    }
}
