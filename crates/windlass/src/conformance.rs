//! The suite every store must pass: every cell of states × inputs, and what every verb promises.
//!
//! Write a [`Harness`] that makes empty stores and moves their clock, call [`run`], and print what
//! it returns. A store that passes can stand in for any other. [`wakes`] is the suite for wakes.

mod audit;
mod batching;
mod bulk;
mod cascading;
mod cells;
mod claiming;
mod concurrency;
mod controlling;
mod enqueueing;
mod extremes;
mod lanes;
mod objects;
mod orders;
mod reading;
mod records;
mod repeating;
mod settling;
mod stepping;
mod values;
pub mod wakes;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use windlass_core::job::{JobId, NewJob, State, StateName};
use windlass_core::ledger::{Claim, Enqueued, KindClaim, Settlement};
use windlass_core::limits::Limits;
use windlass_core::name::Name;
use windlass_core::outcome::Verdict;
use windlass_core::record::JobRecord;

use crate::clock::BoxFuture;
use crate::panics::CatchPanic;
use crate::store::{Answer, ClaimedBatch, ClaimedJob, Store, StoreError, StoreExt};

/// Makes stores to test, and moves their clock.
#[async_trait]
pub trait Harness: Send + Sync {
    /// An empty store with these limits. Stores of one harness share a clock.
    async fn fresh(&self, limits: Limits) -> Arc<dyn Store>;

    /// Lets the stores' clock, wall and steady, advance.
    async fn advance(&self, by: Duration);
}

/// One promise, checked.
pub struct Case {
    /// The promise as a sentence.
    pub name: String,
    run: Box<dyn Fn(Bench) -> BoxFuture<'static, ()> + Send + Sync>,
}

impl std::fmt::Debug for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name)
    }
}

impl Case {
    fn new<Fut>(name: impl Into<String>, run: impl Fn(Bench) -> Fut + Send + Sync + 'static) -> Self
    where
        Fut: Future<Output = ()> + Send + 'static,
    {
        Self { name: name.into(), run: Box::new(move |bench| Box::pin(run(bench))) }
    }

    /// Checks this promise alone, on fresh stores, and returns how it was broken.
    pub async fn check(&self, harness: Arc<dyn Harness>) -> Option<Broken> {
        crate::panics::watch();
        let bench = Bench::new(harness, Limits::default()).await;
        let seen = CatchPanic((self.run)(bench)).await.err()?;
        Some(Broken { name: self.name.clone(), seen })
    }
}

/// Lists async functions as cases named after themselves.
macro_rules! named_cases {
    ($($case:ident),* $(,)?) => {
        vec![$($crate::conformance::Case::new(stringify!($case).replace('_', " "), $case)),*]
    };
}
use named_cases;

/// All promises.
pub fn cases() -> Vec<Case> {
    let mut all = cells::cases();
    all.extend(enqueueing::cases());
    all.extend(claiming::cases());
    all.extend(concurrency::cases());
    all.extend(settling::cases());
    all.extend(repeating::cases());
    all.extend(controlling::cases());
    all.extend(stepping::cases());
    all.extend(lanes::cases());
    all.extend(objects::cases());
    all.extend(values::cases());
    all.extend(orders::cases());
    all.extend(audit::cases());
    all.extend(records::cases());
    all.extend(reading::cases());
    all.extend(extremes::cases());
    all.extend(batching::cases());
    all.extend(bulk::cases());
    all.extend(cascading::cases());
    all
}

/// A promise that was broken.
#[derive(Clone, Debug)]
pub struct Broken {
    /// The promise.
    pub name: String,
    /// What was seen instead.
    pub seen: String,
}

/// Checks every promise, each on a fresh store, and returns those that were broken.
pub async fn run(harness: Arc<dyn Harness>) -> Vec<Broken> {
    let mut broken = Vec::new();
    for case in cases() {
        broken.extend(case.check(harness.clone()).await);
    }
    broken
}

/// A store on the bench, with the words the cases are written in.
#[derive(Clone)]
struct Bench {
    harness: Arc<dyn Harness>,
    store: Arc<dyn Store>,
}

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);

fn name(text: &str) -> Name {
    Name::new(text).expect("the suite uses valid names")
}

fn id(number: u128) -> JobId {
    JobId::from_u128(number)
}

/// A job with this number as its id, of kind `work` in queue `default`.
fn job(number: u128) -> NewJob {
    NewJob::new(id(number), name("work"), name("default"), number.to_string().into_bytes())
}

fn claim(limit: usize) -> Claim {
    Claim {
        worker: "w".into(),
        queues: None,
        kinds: vec![KindClaim::new(name("work"))],
        limit,
        request: None,
    }
}

impl Bench {
    async fn new(harness: Arc<dyn Harness>, limits: Limits) -> Self {
        let store = harness.fresh(limits).await;
        Self { harness, store }
    }

    /// The same harness with another, empty store.
    async fn with_limits(&self, limits: Limits) -> Self {
        Self::new(self.harness.clone(), limits).await
    }

    async fn advance(&self, by: Duration) {
        self.harness.advance(by).await;
    }

    async fn accept(&self, jobs: impl IntoIterator<Item = NewJob>) {
        self.enqueue(jobs).await.expect("the jobs are acceptable");
    }

    async fn enqueue(&self, jobs: impl IntoIterator<Item = NewJob>) -> Answer<Vec<Enqueued>> {
        self.store.enqueue(jobs.into_iter().map(Arc::new).collect()).await
    }

    async fn claim(&self, limit: usize) -> ClaimedBatch {
        self.store.claim(claim(limit)).await.expect("a claim is answered")
    }

    /// Claims exactly one job.
    async fn take(&self) -> ClaimedJob {
        let mut handed = self.claim(1).await;
        handed.jobs.pop().expect("a job is claimable")
    }

    async fn settle(&self, handed: &ClaimedJob, verdict: Verdict) -> StateName {
        let settlement = Settlement::new(handed.job.id, handed.lease.token, verdict);
        let mut answers = self.store.settle(vec![settlement]).await.expect("it is answered");
        answers.remove(0).expect("the lease is held").state
    }

    async fn record(&self, job: JobId) -> JobRecord {
        let found = self.store.find(&[job]).await.expect("a find is answered").remove(0);
        found.expect("the job is kept")
    }

    async fn state(&self, job: JobId) -> State {
        self.record(job).await.status.state
    }

    async fn state_name(&self, job: JobId) -> StateName {
        self.state(job).await.name()
    }

    async fn assert_unknown(&self, job: JobId) {
        let found = self.store.find(&[job]).await.expect("a find is answered").remove(0);
        assert!(found.is_none(), "job {job} is kept: {found:?}");
    }

    /// Topics of all events so far.
    async fn topics(&self) -> Vec<String> {
        // A claim is answered before its events are told; counts are based on everything before.
        self.store.count().await.expect("counts are answered");
        let events =
            self.store.events(0, usize::MAX, Duration::ZERO).await.expect("events are answered");
        events.iter().map(|event| event.topic().to_string()).collect()
    }
}

/// The refusal in an answer that must be one.
fn refused<T: std::fmt::Debug>(answer: Answer<T>) -> windlass_core::refusal::Refusal {
    match answer {
        Err(StoreError::Refused(refusal)) => refusal,
        other => panic!("expected a refusal, got {other:?}"),
    }
}
