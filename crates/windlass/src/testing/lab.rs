//! An engine on virtual time, with a worker that runs your handlers, and assertions on what they
//! left behind.

use std::future::Future;
use std::panic::Location;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::Value;
use windlass_core::job::JobId;
use windlass_core::limits::{self, Limits};
use windlass_core::record::JobRecord;

use super::disk::MemoryDisk;
use super::pace::{Endless, Pace, PaceEnd};
use super::store::MortalStore;
use super::{VirtualClock, time_is_paused};
use crate::client::{Query, finished};
use crate::clock::Clock;
use crate::engine::Engine;
use crate::error::Error;
use crate::handler::Job;
use crate::store::{MemoryStore, Store};
use crate::wake::{LocalWake, Wake};
use crate::worker::{Worker, WorkerBuilder};

/// How far [`Lab::run_everything`] goes into the future.
const HORIZON: Duration = Duration::from_secs(400 * 86_400);

/// An engine on a clock that you move, and one worker on it.
///
/// Nothing sleeps: under `#[tokio::test(start_paused = true)]` hours pass in milliseconds, and what
/// is due in them happens in its order. A test that finds something else than it expects panics,
/// and the message says what was there.
///
/// ```
/// use std::time::Duration;
/// use serde::{Deserialize, Serialize};
/// use windlass::testing::Lab;
/// use windlass::{Attempt, Failure, Job};
///
/// #[derive(Serialize, Deserialize)]
/// struct Ship { order: u64 }
/// impl Job for Ship {
///     const KIND: &'static str = "ship";
///     type Output = ();
/// }
///
/// #[derive(Serialize, Deserialize)]
/// struct SendReceipt { order: u64 }
/// impl Job for SendReceipt {
///     const KIND: &'static str = "send_receipt";
///     type Output = ();
/// }
///
/// async fn ship(job: Ship, attempt: Attempt) -> Result<(), Failure> {
///     attempt.continue_with(SendReceipt { order: job.order })?;
///     Ok(())
/// }
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), windlass::Error> {
/// let lab = Lab::new(|worker| worker.handle(ship)).await;
/// let hour = Duration::from_secs(3_600);
/// let handle = lab.engine().enqueue(Ship { order: 7 }).delay(hour).await?;
/// lab.run_until_idle().await;
/// lab.assert_not_enqueued::<SendReceipt>().await;
/// lab.advance(hour).await;
/// lab.outcome::<Ship>(&handle).await?;
/// lab.assert_enqueued(&SendReceipt { order: 7 }).await;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Lab {
    pace: Pace,
    worker: Option<Worker>,
}

impl Lab {
    /// An engine on the memory store. `worker` gives its worker handlers, states and settings; if
    /// it gives no handler, nothing runs.
    ///
    /// Panics if time is not paused, or if the worker cannot start.
    pub async fn new(worker: impl FnOnce(WorkerBuilder) -> WorkerBuilder) -> Lab {
        check_time();
        let (clock, wake) = (Arc::new(VirtualClock::new()), Arc::new(LocalWake::new()));
        let store = MemoryStore::new(Limits::default(), clock.clone(), wake.clone());
        Self::on(Arc::new(store), wake, clock, worker).await
    }

    /// Like [`Lab::new`], on the file store over a disk in memory: everything is written, and read
    /// back, as it would be in a directory.
    pub async fn on_disk(worker: impl FnOnce(WorkerBuilder) -> WorkerBuilder) -> Lab {
        check_time();
        let (clock, wake) = (Arc::new(VirtualClock::new()), Arc::new(LocalWake::new()));
        let store = MortalStore::open(&MemoryDisk::default(), clock.clone(), wake.clone());
        let store = store.unwrap_or_else(|error| panic!("the store could not be opened: {error}"));
        Self::on(Arc::new(store), wake, clock, worker).await
    }

    /// Puts engine and worker together; for crashes too, which know their time to be paused.
    pub(super) async fn on(
        store: Arc<dyn Store>,
        wake: Arc<dyn Wake>,
        clock: Arc<VirtualClock>,
        worker: impl FnOnce(WorkerBuilder) -> WorkerBuilder,
    ) -> Lab {
        let engine = Engine::builder().on_store(store, wake, clock.clone());
        let engine = engine.unwrap_or_else(|error| panic!("the engine could not start: {error}"));
        let worker = match worker(engine.worker()).start().await {
            Ok(worker) => Some(worker),
            Err(Error::NoHandler) => None,
            Err(error) => panic!("the worker could not start: {error}"),
        };
        Lab { pace: Pace { engine, clock }, worker }
    }

    /// The engine.
    pub fn engine(&self) -> &Engine {
        &self.pace.engine
    }

    /// The worker; `None` if it was given no handler.
    pub fn worker(&self) -> Option<&Worker> {
        self.worker.as_ref()
    }

    /// The clock, whose wall can be stepped.
    pub fn clock(&self) -> &VirtualClock {
        &self.pace.clock
    }

    pub(super) fn pace(&self) -> &Pace {
        &self.pace
    }

    /// What the wall clock shows.
    pub fn now(&self) -> SystemTime {
        let micros = self.pace.clock.now().wall.as_micros();
        UNIX_EPOCH + Duration::from_micros(u64::try_from(micros).unwrap_or(0))
    }

    /// Lets so much time pass, with everything that falls due on the way, each at its time.
    /// Handlers that need longer than that are still running when it returns.
    ///
    /// While no job runs or is ready, the clock jumps to the next due time of a job. Timers of your
    /// own, outside of handlers, are then late: sleep on tokio's time if you need them exact.
    ///
    /// Panics if work begets work and no time passes, and for more than a century.
    pub async fn advance(&self, duration: Duration) {
        assert!(
            duration <= limits::DELAY_MAX,
            "{duration:?} cannot pass: a Lab lets at most a century pass at once; check the unit"
        );
        let passed = self.pace.pass(duration).await;
        self.end(passed).await;
    }

    /// Panics if there was no end.
    async fn end<T>(&self, ended: Result<T, Endless>) -> T {
        match ended {
            Ok(ended) => ended,
            Err(Endless(why)) => panic!("there is no end: {why}:{}", self.pace.open_jobs().await),
        }
    }

    /// Runs jobs until none runs and none can start now. Time passes only as far as handlers wait
    /// for it; what is scheduled for later stays, and so does what may not start (a paused queue, a
    /// limit, a kind without a handler).
    ///
    /// Panics if a job has not ended after a day of virtual time, or if work begets work and no
    /// time passes.
    pub async fn run_until_idle(&self) {
        let idle = self.pace.until_idle().await;
        self.end(idle).await;
    }

    /// Runs everything there is to do, delays and retries included, moving the clock to the next
    /// due time until no job is open.
    ///
    /// Panics if that never comes: because jobs are left that nothing will start, or because there
    /// is still more to do after 400 days of virtual time.
    pub async fn run_everything(&self) {
        let ending = self.pace.until_done(HORIZON).await;
        let ending = self.end(ending).await;
        let open = self.pace.open_jobs().await;
        match ending {
            PaceEnd::Done => {}
            PaceEnd::Stuck => panic!("jobs are left that nothing will start:{open}"),
            PaceEnd::Horizon => panic!("there is more to do however far the clock is moved:{open}"),
        }
    }

    /// The payloads of all jobs of one kind, in the order in which they were accepted, whatever has
    /// become of them; but for those whose record is no longer kept.
    ///
    /// Panics if one cannot be read.
    pub async fn enqueued<J: Job>(&self) -> Vec<J> {
        let records = records(self.engine().jobs().kind(J::KIND)).await;
        records.iter().map(decode::<J>).collect()
    }

    /// Panics unless such a job was enqueued, and lists those that were. Jobs are the same if their
    /// payloads are the same JSON.
    #[track_caller]
    pub fn assert_enqueued<J: Job>(&self, job: &J) -> impl Future<Output = ()> {
        let place = Location::caller();
        let wanted = serde_json::to_value(job);
        async move {
            let wanted = wanted.unwrap_or_else(|error| panic!("{place}: not JSON: {error}"));
            let records = records(self.engine().jobs().kind(J::KIND)).await;
            if !records.iter().any(|record| payload(record) == wanted) {
                let others = self.what_was_enqueued(J::KIND, &records).await;
                panic!("{place}: no `{}` {wanted} was enqueued; {others}", J::KIND);
            }
        }
    }

    /// Panics if any job of this kind was enqueued, and lists them.
    #[track_caller]
    pub fn assert_not_enqueued<J: Job>(&self) -> impl Future<Output = ()> {
        let place = Location::caller();
        async move {
            let records = records(self.engine().jobs().kind(J::KIND)).await;
            if !records.is_empty() {
                let there = self.what_was_enqueued(J::KIND, &records).await;
                panic!("{place}: no `{}` should have been enqueued; {there}", J::KIND);
            }
        }
    }

    /// What a job's handler returned, or [`Error::Died`], or [`Error::Cancelled`].
    ///
    /// Panics if the job has not finished, and says why.
    #[track_caller]
    pub fn outcome<J: Job>(
        &self,
        job: impl Into<JobId>,
    ) -> impl Future<Output = Result<J::Output, Error>> {
        let (place, job) = (Location::caller(), job.into());
        async move {
            let handle = self.engine().handle::<J>(job);
            if let Some(outcome) = finished::<J>(&handle.record().await?) {
                return outcome;
            }
            let why = self.engine().explain(job).await?;
            panic!("{place}: it has not finished: {why}");
        }
    }

    async fn what_was_enqueued(&self, kind: &str, of_kind: &[JobRecord]) -> String {
        let line = |record: &JobRecord| format!("\n  {} ({})", payload(record), record.state());
        if !of_kind.is_empty() {
            let lines: String = of_kind.iter().map(line).collect();
            return format!("of this kind there are:{lines}");
        }
        let all = records(self.engine().jobs()).await;
        if all.is_empty() {
            return "nothing was".to_string();
        }
        let line =
            |record: &JobRecord| format!("\n  `{}` {}", record.job.kind, line(record).trim());
        let lines: String = all.iter().map(line).collect();
        format!("there is no `{kind}` at all, only:{lines}")
    }
}

fn check_time() {
    assert!(
        time_is_paused(),
        "a Lab needs paused time: write `#[tokio::test(start_paused = true)]` over the test, and \
         give tokio the feature `test-util` in the dev-dependencies"
    );
}

/// All jobs of a query, the first accepted first.
async fn records(query: Query) -> Vec<JobRecord> {
    let mut records = Vec::new();
    let mut after = None;
    loop {
        let page = query.clone().page(after, 1_000).await;
        let page = page.unwrap_or_else(|error| panic!("cannot list jobs: {error}"));
        records.extend(page.jobs);
        after = page.next;
        if after.is_none() {
            records.reverse();
            return records;
        }
    }
}

fn decode<J: Job>(record: &JobRecord) -> J {
    serde_json::from_slice(&record.job.payload)
        .unwrap_or_else(|error| panic!("{} cannot be read as a job: {error}", payload(record)))
}

/// The payload as JSON; as text, if it is none.
fn payload(record: &JobRecord) -> Value {
    let bytes = &record.job.payload;
    serde_json::from_slice(bytes)
        .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(bytes).into_owned()))
}
