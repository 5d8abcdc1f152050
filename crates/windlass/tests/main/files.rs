//! The file store over closing, crashing, failing and filling disks.
//!
//! A crash here is a store that is dropped without being closed: whatever it had not written is
//! gone. What the power takes is the simulator's part (`windlass-sim`).

mod access;
mod answers;
mod backups;
mod damage;
mod failing;
mod failures;
mod full;
mod reopening;
mod space;

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use tokio::task::JoinHandle;
use windlass::clock::{BoxFuture, Clock, SystemClock};
use windlass::core::filter::Filter;
use windlass::core::job::{Dependency, NewJob, OnFailure, StateName};
use windlass::core::ledger::{
    BulkProgress, Cancel, Claim, Enqueue, KindClaim, QueueChange, Recovery, RecoveryMode, Renewal,
    Rescue, Settled, Settlement,
};
use windlass::core::outcome::{ErrorText, Verdict};
use windlass::core::record::{LogLine, Progress, Report};
use windlass::core::time::{Now, Steady};
use windlass::store::file::{
    Disk, DiskFile, FileOptions, JournaledLedger, LedgerOptions, OpenError, RealDisk, back_up,
    check,
};
use windlass::store::{
    AlterJobs, ClaimedBatch, ClaimedJob, Durability, FileStore, JobAction, Selection, Store,
    StoreError, StoreExt,
};
use windlass::testing::VirtualClock;
use windlass::wake::LocalWake;
use windlass::{
    DeadReason, Engine, Error, JobId, JobRecord, Limits, Name, RecoveryReason, Refusal, Start,
    Timestamp,
};

use self::failing::{Failing, LARGE, Switches};
use crate::common::{Directory, HOUR, SECOND, Work, work};

fn name(text: &str) -> Name {
    Name::new(text).expect("the tests use valid names")
}

fn id(number: u128) -> JobId {
    JobId::from_u128(number)
}

fn job(number: u128) -> NewJob {
    NewJob::new(id(number), name("work"), name("default"), format!("payload {number}").into_bytes())
}

/// A directory, a clock, and stores opened there one after the other.
struct Bench {
    directory: Directory,
    clock: Arc<VirtualClock>,
    options: FileOptions,
}

impl Bench {
    fn new() -> Self {
        let ledger = LedgerOptions { segment_bytes: Some(64 << 10), ..LedgerOptions::default() };
        let options = FileOptions { ledger, durability: Durability::Sync };
        Self { directory: Directory::new(), clock: Arc::new(VirtualClock::new()), options }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("jobs")
    }

    fn try_open(&self) -> Result<FileStore, OpenError> {
        let disk = Arc::new(RealDisk::open(&self.path())?);
        self.open_on(disk)
    }

    fn open_on(&self, disk: Arc<dyn Disk>) -> Result<FileStore, OpenError> {
        FileStore::on_disk(disk, &self.options, self.clock.clone(), Arc::new(LocalWake::new()))
    }

    fn open(&self) -> FileStore {
        self.try_open().expect("the store opens")
    }
}

async fn accept(store: &FileStore, jobs: impl IntoIterator<Item = NewJob>) {
    let jobs = jobs.into_iter().map(Arc::new).collect();
    store.enqueue(jobs).await.expect("the jobs are acceptable");
}

async fn claim(store: &FileStore, limit: usize) -> ClaimedBatch {
    let kinds = vec![KindClaim::new(name("work"))];
    let claim = Claim { worker: "w".into(), queues: None, kinds, limit, request: None };
    store.claim(claim).await.expect("a claim is answered")
}

async fn settle(store: &FileStore, settlement: Settlement) -> StateName {
    let mut answers = store.settle(vec![settlement]).await.expect("a settlement is answered");
    answers.remove(0).expect("the lease is held").state
}

async fn everything(store: &FileStore) -> Vec<JobRecord> {
    let (mut all, mut after) = (Vec::new(), None);
    loop {
        let page = store.list(&Filter::default(), after, 1_000).await.expect("a list is answered");
        all.extend(page.jobs);
        after = page.next;
        if after.is_none() {
            return all;
        }
    }
}

/// Jobs in every state, with everything a record can hold.
async fn a_bit_of_everything(store: &FileStore, clock: &VirtualClock) {
    let mut follows = job(9);
    follows.depends_on = vec![Dependency { on: id(2), on_failure: OnFailure::Cascade }];
    accept(store, (1..=6).map(job).chain([follows])).await;
    let handed = claim(store, 4).await.jobs;
    let lease = |index: usize| (handed[index].job.id, handed[index].lease.token);
    let (done, token) = lease(0);
    let mut completed = Settlement::new(done, token, Verdict::Complete);
    completed.output = Some(b"output".as_slice().into());
    completed.report.lines =
        vec![LogLine { at: Timestamp::from_micros(5), attempt: 1, text: "a line".to_string() }];
    settle(store, completed).await;
    let (died, token) = lease(1);
    let mut dead = Settlement::new(died, token, Verdict::Bury(DeadReason::Permanent));
    dead.error = Some(ErrorText::new("no such address"));
    settle(store, dead).await;
    let (retried, token) = lease(2);
    let mut failed = Settlement::new(retried, token, Verdict::Retry(HOUR));
    failed.error = Some(ErrorText::new("try later"));
    settle(store, failed).await;
    let (running, token) = lease(3);
    let progress = Some(Progress { percent: 40, note: "half".to_string() });
    let report = Report { progress, ..Report::default() };
    let renewal = Renewal { job: running, token, lease: 30 * SECOND, report };
    store.renew(vec![renewal]).await.expect("a renewal is answered").remove(0).expect("held");
    let cancelled = Selection::Jobs(vec![id(5)]);
    store.alter(AlterJobs::new(cancelled, JobAction::Cancel)).await.expect("it is cancelled");
    let mut later = job(7);
    later.start = Start::After(HOUR);
    later.tags = vec![name("red"), name("blue")];
    later.metadata.insert("for".to_string(), "someone".to_string());
    let mut blocked = job(8);
    blocked.depends_on = vec![Dependency { on: id(7), on_failure: OnFailure::Wait }];
    accept(store, [later, blocked]).await;
    store.configure(name("slow"), QueueChange::Pause).await.expect("it is paused");
    clock.step_forward(SECOND);
}

/// A bit of everything, and enough after it for segments to leave and checkpoints to be written.
pub(crate) async fn a_life_in_every_state(store: &FileStore, clock: &VirtualClock) {
    a_bit_of_everything(store, clock).await;
    for round in 0..60u128 {
        let number = 100 + round * 10;
        let large = |job: NewJob| NewJob { payload: vec![3; 1_000].into(), ..job };
        let mut after = job(number + 1);
        after.depends_on = vec![Dependency { on: id(number), on_failure: OnFailure::Ignore }];
        accept(store, [large(job(number)), large(after), large(job(number + 2))]).await;
        if let Some(handed) = claim(store, 1).await.jobs.pop() {
            let verdict = Verdict::Bury(DeadReason::Permanent);
            settle(store, Settlement::new(handed.job.id, handed.lease.token, verdict)).await;
        }
    }
}

fn copy_directory(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a directory");
    for entry in fs::read_dir(from).expect("a directory") {
        let path = entry.expect("an entry").path();
        fs::copy(&path, to.join(path.file_name().expect("a name"))).expect("a copy");
    }
}

/// A clock that only its test moves, for every thread.
#[derive(Debug, Default)]
pub(crate) struct Still(AtomicU64);

impl Clock for Still {
    fn now(&self) -> Now {
        let steady = Steady::from_micros(self.0.load(Ordering::SeqCst));
        Now { wall: Timestamp::default() + steady.since(Steady::default()), steady }
    }

    fn sleep(&self, _: Duration) -> BoxFuture<'static, ()> {
        Box::pin(std::future::pending())
    }
}

/// A test that would wait for ever fails instead.
async fn in_time<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(120 * SECOND, future).await.expect("it waits for ever")
}

fn segments(path: &Path) -> Vec<String> {
    let entries = fs::read_dir(path).expect("a directory");
    let names = entries.map(|entry| entry.expect("an entry").file_name().into_string());
    let mut names: Vec<String> = names.map(|name| name.expect("a name")).collect();
    names.retain(|name| name.starts_with("journal-"));
    names.sort();
    names
}
