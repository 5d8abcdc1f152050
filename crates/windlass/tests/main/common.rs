//! What the tests are written with: an engine on virtual time, a kind of job whose handler does
//! what the test says, a wake that loses rings, a store that fails on demand.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use windlass::core::job::{LeaseToken, NewJob};
use windlass::core::ledger::{
    Claim, Counts, Enqueued, Promoted, Renewal, Renewed, Rescue, Rescued, Ring, Settled,
    Settlement, Turned, WorkerReport,
};
use windlass::core::object::Turn;
use windlass::store::{
    AlterJobs, AlterQueue, Answer, ClaimedBatch, ClaimedJob, HeartbeatAnswer, JobActionResult,
    JobQuery, MemoryStore, ObjectPage, ObjectQuery, Page, QueueActionDone, Store, StoreError,
    StoreInfo,
};
use windlass::testing::VirtualClock;
use windlass::wake::{Interest, Listener, LocalWake, Wake};
use windlass::{Engine, Event, Explanation, Job, JobId, Limits, Refusal};

pub(crate) const SECOND: Duration = Duration::from_secs(1);
pub(crate) const HOUR: Duration = Duration::from_secs(3_600);

/// A job that carries a number and returns a number.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Work {
    pub(crate) number: i64,
}

impl Job for Work {
    const KIND: &'static str = "work";
    type Output = i64;
}

pub(crate) fn work(number: i64) -> Work {
    Work { number }
}

/// An engine on virtual time, and its parts.
pub(crate) struct Rig {
    pub(crate) engine: Engine,
    pub(crate) clock: Arc<VirtualClock>,
    pub(crate) store: Arc<Tampered>,
}

pub(crate) async fn rig() -> Rig {
    rig_on(Arc::new(LocalWake::new()))
}

pub(crate) fn rig_on(wake: Arc<dyn Wake>) -> Rig {
    rig_of(wake, |_| {})
}

/// With a store that is prepared before the engine sees it.
pub(crate) fn rig_with(prepare: impl FnOnce(&Tampered)) -> Rig {
    rig_of(Arc::new(LocalWake::new()), prepare)
}

fn rig_of(wake: Arc<dyn Wake>, prepare: impl FnOnce(&Tampered)) -> Rig {
    let clock = Arc::new(VirtualClock::new());
    let memory = MemoryStore::new(Limits::default(), clock.clone(), wake.clone());
    let store = Arc::new(Tampered::new(Arc::new(memory)));
    prepare(&store);
    let engine = Engine::builder()
        .on_store(store.clone(), wake, clock.clone())
        .expect("the default settings are valid");
    Rig { engine, clock, store }
}

/// Lets every task run until nothing more happens at this moment of virtual time.
pub(crate) async fn settle_down() {
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
}

/// Lets virtual time pass, with everything that falls due on the way.
pub(crate) async fn pass(duration: Duration) {
    tokio::time::sleep(duration).await;
    settle_down().await;
}

/// Counts, shared with handlers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counter(Arc<AtomicU32>);

impl Counter {
    /// Counts one and returns how many that makes.
    pub(crate) fn add(&self) -> u32 {
        self.0.fetch_add(1, Ordering::SeqCst) + 1
    }

    pub(crate) fn get(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }
}

/// A list shared with handlers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Notes(Arc<Mutex<Vec<String>>>);

impl Notes {
    pub(crate) fn add(&self, note: impl Into<String>) {
        self.0.lock().expect("no test panics while it notes").push(note.into());
    }

    pub(crate) fn all(&self) -> Vec<String> {
        self.0.lock().expect("no test panics while it notes").clone()
    }
}

/// What a wake does with each ring.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Trouble {
    LoseAll,
    LoseSome,
    Repeat,
    Delay(Duration),
}

/// A wake that is as bad as the contract allows.
#[derive(Debug)]
pub(crate) struct TroubledWake {
    inner: Arc<LocalWake>,
    trouble: Trouble,
    rings: AtomicU64,
}

impl TroubledWake {
    pub(crate) fn new(trouble: Trouble) -> Self {
        Self { inner: Arc::new(LocalWake::new()), trouble, rings: AtomicU64::new(0) }
    }
}

#[async_trait]
impl Wake for TroubledWake {
    async fn ring(&self, rings: &[Ring]) {
        let number = self.rings.fetch_add(1, Ordering::SeqCst);
        match self.trouble {
            Trouble::LoseAll => {}
            Trouble::LoseSome if !number.is_multiple_of(3) => {}
            Trouble::LoseSome => self.inner.ring(rings).await,
            Trouble::Repeat => {
                for _ in 0..3 {
                    self.inner.ring(rings).await;
                }
            }
            Trouble::Delay(delay) => {
                let (inner, rings) = (self.inner.clone(), rings.to_vec());
                tokio::spawn(async move {
                    tokio::time::sleep(delay).await;
                    inner.ring(&rings).await;
                });
            }
        }
    }

    fn listen(&self, interest: Interest) -> Box<dyn Listener> {
        self.inner.listen(interest)
    }
}

/// What goes wrong with a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The answer is unknown, and nothing was done.
    NotDone,
    /// The answer is unknown, and it was done.
    Done,
    /// The store's code panics.
    Panic,
    /// No answer ever comes.
    Hang,
    /// It is done, and the answer comes this much later.
    Late(Duration),
    /// It is done this much later, and then answered.
    Delayed(Duration),
    /// It is done, and no answer ever comes.
    DoneHang,
    /// The store refuses it: every item, because its lease is lost, or the call.
    Refused,
}

/// What the store said to the leases it was asked about, to judge a worker by.
#[derive(Clone, Debug)]
pub(crate) struct LeaseAnswer {
    /// The lease, as [`windlass::Attempt::fence`] names it.
    pub(crate) fence: String,
    /// When the question was sent.
    pub(crate) sent: tokio::time::Instant,
    /// When it was applied or refused.
    pub(crate) at: tokio::time::Instant,
    pub(crate) applied: bool,
}

type Plan = Box<dyn Fn(u64) -> Option<Fault> + Send + Sync>;

/// A store whose verbs fail as planned. Every verb counts its calls.
pub(crate) struct Tampered {
    inner: Arc<dyn Store>,
    plans: Mutex<BTreeMap<&'static str, Plan>>,
    calls: Mutex<BTreeMap<&'static str, u64>>,
    leases: Mutex<Vec<LeaseAnswer>>,
    deaf: AtomicBool,
    shares_commits: AtomicBool,
}

impl fmt::Debug for Tampered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tampered")
    }
}

impl Tampered {
    pub(crate) fn new(inner: Arc<dyn Store>) -> Self {
        let (plans, calls, leases) = (Mutex::default(), Mutex::default(), Mutex::default());
        let (deaf, shares_commits) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { inner, plans, calls, leases, deaf, shares_commits }
    }

    /// From now on, whoever asks for events is answered after an hour.
    pub(crate) fn deafen(&self) {
        self.deaf.store(true, Ordering::SeqCst);
    }

    /// From now on, it says that its calls share commits.
    pub(crate) fn share_commits(&self) {
        self.shares_commits.store(true, Ordering::SeqCst);
    }

    /// From now on, the `n`th call of `verb` (1 is the first) fails as `plan` says.
    pub(crate) fn tamper(
        &self,
        verb: &'static str,
        plan: impl Fn(u64) -> Option<Fault> + Send + Sync + 'static,
    ) {
        self.calls.lock().expect("not poisoned").insert(verb, 0);
        self.plans.lock().expect("not poisoned").insert(verb, Box::new(plan));
    }

    pub(crate) fn heal(&self) {
        self.plans.lock().expect("not poisoned").clear();
    }

    /// The store itself, without faults.
    pub(crate) fn inner(&self) -> &Arc<dyn Store> {
        &self.inner
    }

    /// Every lease that was begun, renewed or refused by a renewal, in order.
    pub(crate) fn leases(&self) -> Vec<LeaseAnswer> {
        self.leases.lock().expect("not poisoned").clone()
    }

    fn note_lease(&self, job: JobId, token: LeaseToken, sent: tokio::time::Instant, applied: bool) {
        let (fence, at) = (format!("{job}-{token}"), tokio::time::Instant::now());
        let answer = LeaseAnswer { fence, sent, at, applied };
        self.leases.lock().expect("not poisoned").push(answer);
    }

    pub(crate) fn calls(&self, verb: &'static str) -> u64 {
        self.calls.lock().expect("not poisoned").get(verb).copied().unwrap_or(0)
    }

    /// Calls of all verbs.
    pub(crate) fn all_calls(&self) -> u64 {
        self.calls.lock().expect("not poisoned").values().sum()
    }

    fn fault(&self, verb: &'static str) -> Option<Fault> {
        let mut calls = self.calls.lock().expect("not poisoned");
        let count = calls.entry(verb).or_default();
        *count += 1;
        let count = *count;
        drop(calls);
        self.plans.lock().expect("not poisoned").get(verb).and_then(|plan| plan(count))
    }

    async fn call<T>(
        &self,
        verb: &'static str,
        call: impl Future<Output = Answer<T>> + Send,
    ) -> Answer<T> {
        let refused =
            || Err(Refusal::Unavailable { why: format!("planned refusal of {verb}") }.into());
        self.call_or(verb, call, refused).await
    }

    async fn call_or<T>(
        &self,
        verb: &'static str,
        call: impl Future<Output = Answer<T>> + Send,
        refused: impl FnOnce() -> Answer<T> + Send,
    ) -> Answer<T> {
        let unknown = || StoreError::Unknown { doing: verb, source: "planned".into() };
        match self.fault(verb) {
            None => call.await,
            Some(Fault::NotDone) => Err(unknown()),
            Some(Fault::Done) => {
                let _ = call.await;
                Err(unknown())
            }
            // Without the hook: a report of each of thousands of panics would take minutes.
            Some(Fault::Panic) => {
                std::panic::resume_unwind(Box::new(format!("planned panic in {verb}")))
            }
            Some(Fault::Hang) => std::future::pending().await,
            Some(Fault::Late(delay)) => {
                let answer = call.await;
                tokio::time::sleep(delay).await;
                answer
            }
            Some(Fault::Delayed(delay)) => {
                tokio::time::sleep(delay).await;
                call.await
            }
            Some(Fault::DoneHang) => {
                let _ = call.await;
                std::future::pending().await
            }
            Some(Fault::Refused) => refused(),
        }
    }
}

#[async_trait]
impl Store for Tampered {
    async fn enqueue(&self, jobs: Vec<Arc<NewJob>>) -> Answer<Vec<Enqueued>> {
        self.call("enqueue", self.inner.enqueue(jobs)).await
    }

    async fn claim(&self, claim: Claim) -> Answer<ClaimedBatch> {
        let sent = tokio::time::Instant::now();
        let call = async {
            let handed = self.inner.claim(claim).await?;
            for ClaimedJob { job, lease, .. } in &handed.jobs {
                self.note_lease(job.id, lease.token, sent, true);
            }
            Ok(handed)
        };
        self.call("claim", call).await
    }

    async fn renew(&self, renewals: Vec<Renewal>) -> Answer<Vec<Result<Renewed, Refusal>>> {
        let sent = tokio::time::Instant::now();
        let asked: Vec<_> = renewals.iter().map(|renewal| (renewal.job, renewal.token)).collect();
        let lost = |&(job, token): &(JobId, LeaseToken)| {
            self.note_lease(job, token, sent, false);
            Err(Refusal::LeaseLost { job })
        };
        let call = async {
            let answers = self.inner.renew(renewals).await?;
            for ((job, token), answer) in asked.iter().zip(&answers) {
                self.note_lease(*job, *token, sent, answer.is_ok());
            }
            Ok(answers)
        };
        self.call_or("renew", call, || Ok(asked.iter().map(lost).collect())).await
    }

    async fn settle(&self, settlements: Vec<Settlement>) -> Answer<Vec<Result<Settled, Refusal>>> {
        let jobs: Vec<_> = settlements.iter().map(|settlement| settlement.job).collect();
        let lost = |job| Err(Refusal::LeaseLost { job });
        let refused = move || Ok(jobs.into_iter().map(lost).collect());
        self.call_or("settle", self.inner.settle(settlements), refused).await
    }

    async fn rescue(&self, rescue: Rescue) -> Answer<Rescued> {
        self.call("rescue", self.inner.rescue(rescue)).await
    }

    async fn promote(&self) -> Answer<Promoted> {
        self.call("promote", self.inner.promote()).await
    }

    async fn alter(&self, alter: AlterJobs) -> Answer<Vec<JobActionResult>> {
        self.call("alter", self.inner.alter(alter)).await
    }

    async fn alter_queue(&self, alter: AlterQueue) -> Answer<QueueActionDone> {
        self.call("alter_queue", self.inner.alter_queue(alter)).await
    }

    async fn turn(&self, turn: Turn) -> Answer<Turned> {
        self.call("turn", self.inner.turn(turn)).await
    }

    async fn objects(&self, query: &ObjectQuery) -> Answer<ObjectPage> {
        let verb = match query {
            ObjectQuery::Address(_) => "object",
            ObjectQuery::Page { .. } => "objects",
        };
        self.call(verb, self.inner.objects(query)).await
    }

    async fn heartbeat(&self, worker: Arc<str>, news: WorkerReport) -> Answer<HeartbeatAnswer> {
        let verb = match &news {
            WorkerReport::Alive(_) => "heartbeat",
            WorkerReport::Started(_)
            | WorkerReport::Stopping
            | WorkerReport::Stopped
            | WorkerReport::Error(_) => "announce",
        };
        self.call(verb, self.inner.heartbeat(worker, news)).await
    }

    async fn jobs(&self, query: &JobQuery) -> Answer<Page> {
        let verb = match query {
            JobQuery::Ids(_) => "find",
            JobQuery::Page { .. } | JobQuery::Count { .. } => "list",
        };
        self.call(verb, self.inner.jobs(query)).await
    }

    async fn count(&self) -> Answer<Counts> {
        self.call("count", self.inner.count()).await
    }

    async fn explain(&self, job: JobId) -> Answer<Explanation> {
        self.call("explain", self.inner.explain(job)).await
    }

    async fn events(&self, after: u64, limit: usize, wait: Duration) -> Answer<Vec<Arc<Event>>> {
        if self.deaf.load(Ordering::SeqCst) {
            tokio::time::sleep(HOUR).await;
        }
        self.inner.events(after, limit, wait).await
    }

    fn info(&self) -> StoreInfo {
        let mut info = self.inner.info();
        info.shares_commits = self.shares_commits.load(Ordering::SeqCst);
        info
    }
}

/// A directory of its own that is gone when the test ends.
pub(crate) struct Directory(std::path::PathBuf);

impl Directory {
    pub(crate) fn new() -> Self {
        static MADE: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
        let made = MADE.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        let name = format!("windlass-{}-{made}", std::process::id());
        let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&path).expect("a directory of its own");
        Self(path)
    }

    pub(crate) fn path(&self) -> &std::path::Path {
        &self.0
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
