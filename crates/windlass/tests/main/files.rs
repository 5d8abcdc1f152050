//! The file store over closing, crashing, failing and filling disks.
//!
//! A crash here is a store that is dropped without being closed: whatever it had not written is
//! gone. What the power takes is the simulator's part (`windlass-sim`).

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
    Cancel, Claim, Enqueue, KindClaim, QueueChange, Recovery, RecoveryMode, Renewal, Settlement,
};
use windlass::core::outcome::{ErrorText, Verdict};
use windlass::core::record::{LogLine, Progress, Report};
use windlass::core::time::{Now, Steady};
use windlass::store::file::{
    Disk, DiskFile, FileOptions, JournaledLedger, LedgerOptions, OpenError, RealDisk,
    SelectionProgress, back_up, check,
};
use windlass::store::{
    ClaimedBatch, Durability, FileStore, JobAction, Selection, Store, StoreError, StoreExt,
};
use windlass::testing::VirtualClock;
use windlass::wake::LocalWake;
use windlass::{
    DeadReason, Engine, Error, JobId, JobRecord, Limits, Name, Refusal, Start, Timestamp,
};

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
    let claim = Claim { worker: "w".into(), queues: None, kinds, limit };
    store.claim(claim).await.expect("a claim is answered")
}

async fn settle(store: &FileStore, settlement: Settlement) -> StateName {
    let mut answers = store.settle(vec![settlement]).await.expect("a settlement is answered");
    answers.remove(0).expect("the lease is held").state
}

async fn everything(store: &FileStore) -> Vec<JobRecord> {
    let page = store.list(&Filter::default(), None, 1_000).await.expect("a list is answered");
    assert_eq!(page.next, None, "one page holds all");
    page.jobs
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
    store.alter(cancelled, JobAction::Cancel).await.expect("it is cancelled");
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

#[tokio::test(start_paused = true)]
async fn everything_is_as_it_was_after_closing_and_opening() {
    let mut bench = Bench::new();
    // So that opening changes nothing by itself.
    bench.options.ledger.recovery = Recovery { mode: RecoveryMode::Observe, ..Recovery::default() };
    let store = bench.open();
    a_bit_of_everything(&store, &bench.clock).await;
    let (before, counts) = (everything(&store).await, store.count().await.expect("counted"));
    store.close().await;
    let store = bench.open();
    let (after, recounted) = (everything(&store).await, store.count().await.expect("counted"));
    assert_eq!(before, after);
    assert_eq!((counts.lines, counts.queues), (recounted.lines, recounted.queues));
    assert_eq!(before.len(), 9);
    let dead = before.iter().filter(|record| record.state() == StateName::Dead);
    assert_eq!(dead.count(), 2, "the dead job took its dependent with it");
}

#[tokio::test(start_paused = true)]
async fn everything_is_as_it_was_after_a_crash() {
    let mut bench = Bench::new();
    bench.options.ledger.recovery = Recovery { mode: RecoveryMode::Observe, ..Recovery::default() };
    let store = bench.open();
    a_bit_of_everything(&store, &bench.clock).await;
    let before = everything(&store).await;
    // Not closed, not dropped: the copy is what a killed process leaves.
    let left = bench.directory.path().join("left");
    copy_directory(&bench.path(), &left);
    let disk = Arc::new(RealDisk::open(&left).expect("the copy is nobody's"));
    let store = bench.open_on(disk).expect("the copy opens");
    assert_eq!(before, everything(&store).await);
}

fn copy_directory(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a directory");
    for entry in fs::read_dir(from).expect("a directory") {
        let path = entry.expect("an entry").path();
        fs::copy(&path, to.join(path.file_name().expect("a name"))).expect("a copy");
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_running_is_recovered_before_the_first_answer_counted_and_capped() {
    let bench = Bench::new();
    let mut poison = job(1);
    poison.max_attempts = Some(100);
    let mut store = bench.open();
    accept(&store, [poison]).await;
    for recovery in 1..=3 {
        assert_eq!(claim(&store, 1).await.jobs.len(), 1, "recovery {recovery}");
        drop(store);
        store = bench.open();
        assert_eq!(store.info().opened.expect("a file store tells").recovered.len(), 1);
        let record = everything(&store).await.remove(0);
        assert_eq!((record.status.recoveries, record.state()), (recovery, StateName::Scheduled));
        bench.clock.step_forward(SECOND);
    }
    assert_eq!(claim(&store, 1).await.jobs.len(), 1);
    drop(store);
    let record = everything(&bench.open()).await.remove(0);
    assert_eq!(record.state(), StateName::Dead, "the fourth crash is one too many");
    assert!(record.error.expect("a reason").as_str().contains("crashed"));
}

#[tokio::test(start_paused = true)]
async fn observing_leaves_a_running_job_alone_and_says_so() {
    let mut bench = Bench::new();
    let store = bench.open();
    accept(&store, [job(1)]).await;
    claim(&store, 1).await;
    drop(store);
    bench.options.ledger.recovery = Recovery { mode: RecoveryMode::Observe, ..Recovery::default() };
    let store = bench.open();
    let opened = store.info().opened.expect("a file store tells");
    assert_eq!((opened.recovered.len(), opened.observed), (0, 1));
    assert_eq!(everything(&store).await[0].state(), StateName::Running);
    let events = store.events(0, 100, Duration::ZERO).await.expect("events are answered");
    let topics: Vec<&str> = events.iter().map(|event| event.topic()).collect();
    assert_eq!(topics, ["recovery.detected"]);
}

#[tokio::test(start_paused = true)]
async fn a_stale_worker_of_before_is_refused_and_no_token_or_event_number_comes_twice() {
    let bench = Bench::new();
    let (mut tokens, mut events) = (BTreeSet::new(), BTreeSet::new());
    let mut held = None;
    for round in 0..5 {
        let store = bench.open();
        if let Some((job, token)) = held {
            let stale = Settlement::new(job, token, Verdict::Complete);
            let answer = store.settle(vec![stale]).await.expect("answered").remove(0);
            assert!(matches!(answer, Err(Refusal::LeaseLost { .. })));
        }
        accept(&store, [job(100 + round)]).await;
        bench.clock.step_forward(SECOND);
        for handed in claim(&store, 10).await.jobs {
            assert!(tokens.last().is_none_or(|last| handed.lease.token > *last));
            assert!(tokens.insert(handed.lease.token));
            held = Some((handed.job.id, handed.lease.token));
        }
        for event in store.events(0, 1_000, Duration::ZERO).await.expect("answered") {
            assert!(events.last().is_none_or(|last| event.number > *last));
            assert!(events.insert(event.number));
        }
        store.close().await;
    }
    assert!(tokens.len() >= 5);
}

#[tokio::test(start_paused = true)]
async fn a_second_process_is_refused_with_the_name_of_the_first() {
    let bench = Bench::new();
    let store = bench.open();
    let refused = bench.try_open().expect_err("it is in use").to_string();
    assert!(refused.contains(&format!("process {}", std::process::id())), "{refused}");
    drop(store);
    bench.open();
}

#[tokio::test(start_paused = true)]
async fn nobody_else_can_read_the_directory_or_its_files() {
    let bench = Bench::new();
    let store = bench.open();
    a_bit_of_everything(&store, &bench.clock).await;
    let mode = |path: &Path| fs::metadata(path).expect("it is there").permissions().mode() & 0o777;
    assert_eq!(mode(&bench.path()), 0o700);
    for entry in fs::read_dir(bench.path()).expect("a directory") {
        let path = entry.expect("an entry").path();
        assert_eq!(mode(&path), 0o600, "{}", path.display());
    }
}

#[tokio::test(start_paused = true)]
async fn a_directory_that_was_there_is_closed_to_others_unless_it_holds_something_else() {
    let bench = Bench::new();
    let mode = |path: &Path| fs::metadata(path).expect("it is there").permissions().mode() & 0o777;
    let make = |path: &Path| {
        fs::create_dir_all(path).expect("made");
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("opened to all");
    };
    make(&bench.path());
    bench.open().close().await;
    assert_eq!(mode(&bench.path()), 0o700);
    let (copy, shared) = (bench.directory.path().join("copy"), bench.directory.path().join("own"));
    back_up(&bench.path(), &copy).expect("copied");
    for entry in fs::read_dir(&copy).expect("a directory") {
        let path = entry.expect("an entry").path();
        assert_eq!(mode(&path), 0o600, "{}", path.display());
    }
    make(&shared);
    fs::write(shared.join("letters"), "not ours").expect("written");
    drop(RealDisk::open(&shared).expect("it is nobody's"));
    assert_eq!(mode(&shared), 0o755);
}

#[tokio::test(start_paused = true)]
async fn a_backup_leaves_alone_what_another_is_writing() {
    let bench = Bench::new();
    bench.open().close().await;
    let copy = bench.directory.path().join("copy");
    let other = bench.directory.path().join("copy.unfinished");
    fs::create_dir(&other).expect("made");
    fs::write(other.join("journal-00000001"), "of another").expect("written");
    let refused = back_up(&bench.path(), &copy).expect_err("it is being written");
    assert!(format!("{refused:?}").contains("another backup"), "{refused:?}");
    assert!(other.join("journal-00000001").exists() && !copy.exists());
    fs::remove_dir_all(&other).expect("removed");
    back_up(&bench.path(), &copy).expect("copied");
}

#[tokio::test(start_paused = true)]
async fn a_relaxed_store_without_a_writer_syncs_too() {
    let mut bench = Bench::new();
    bench.options.durability = Durability::Relaxed(HOUR);
    let (disk, switches) = Failing::open(&bench.path());
    let store = bench.open_on(disk).expect("it opens");
    let syncs = switches.syncs.load(Ordering::SeqCst);
    accept(&store, [job(1)]).await;
    assert_eq!(switches.syncs.load(Ordering::SeqCst), syncs + 1);
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

#[tokio::test(flavor = "multi_thread")]
async fn a_relaxed_store_that_nobody_calls_any_more_syncs_in_time() {
    let mut bench = Bench::new();
    bench.options.durability = Durability::Relaxed(Duration::from_millis(5));
    let (disk, switches) = Failing::open(&bench.path());
    let (clock, wake) = (Arc::new(Still::default()), Arc::new(LocalWake::new()));
    let store = FileStore::with_writer(disk, &bench.options, clock.clone(), wake);
    let store = store.expect("it opens");
    let syncs = switches.syncs.load(Ordering::SeqCst);
    accept(&store, [job(1)]).await;
    assert_eq!(switches.syncs.load(Ordering::SeqCst), syncs, "it is answered first");
    clock.0.store(5_000, Ordering::SeqCst);
    let synced = async {
        while switches.syncs.load(Ordering::SeqCst) == syncs {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(20 * SECOND, synced).await.expect("it is synced without another call");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_filter_that_needs_many_records_means_exactly_those_that_match_at_the_commit() {
    let bench = Bench::new();
    let disk = Arc::new(RealDisk::open(&bench.path()).expect("it is nobody's"));
    let (mut ledger, _) =
        JournaledLedger::open(disk, &bench.options.ledger, bench.clock.now()).expect("it opens");
    let tagged = |number: u128| {
        let tags = if number.is_multiple_of(2) { vec![name("even")] } else { Vec::new() };
        Arc::new(NewJob { tags, ..job(number) })
    };
    let now = bench.clock.now();
    ledger.apply(Enqueue { jobs: (1..=5_000).map(tagged).collect() }, now).expect("accepted");
    let filter = Filter { tags: vec![name("even")], ..Filter::default() };
    let filter = Filter { states: vec![StateName::Ready], ..filter };
    let selection = Selection::Matching(filter);
    let (mut sifted, mut turns) = (SelectionProgress::default(), 0);
    let meant = loop {
        turns += 1;
        if let Some(meant) = ledger.select(&selection, &mut sifted, now).expect("answered") {
            break meant;
        }
        // Between two turns: one no longer matches, and one more does.
        ledger.apply(Cancel { jobs: vec![id(turns * 2)] }, now).expect("cancelled");
        ledger.apply(Enqueue { jobs: vec![tagged(6_000 + turns * 2)] }, now).expect("accepted");
    };
    assert!(turns > 2, "5,000 records were read in {turns} turns");
    let left = (turns..=2_500).map(|half| half * 2);
    let more = (1..turns).map(|turn| 6_000 + turn * 2);
    assert_eq!(meant, left.chain(more).map(id).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn a_due_time_does_not_move_when_the_clock_falls_back_over_a_restart() {
    let bench = Bench::new();
    let store = bench.open();
    let mut later = job(1);
    later.start = Start::After(HOUR);
    accept(&store, [later]).await;
    bench.clock.step_forward(HOUR);
    accept(&store, [job(2)]).await;
    store.close().await;
    bench.clock.step_back(24 * HOUR);
    let store = bench.open();
    assert_eq!(claim(&store, 10).await.jobs.len(), 2, "what was due stays due");
}

#[tokio::test(start_paused = true)]
async fn a_long_chain_of_reports_is_read_back_whole() {
    let bench = Bench::new();
    let store = bench.open();
    accept(&store, [job(1)]).await;
    let handed = claim(&store, 1).await.jobs.remove(0);
    for number in 0..300u32 {
        let line = LogLine { at: Timestamp::default(), attempt: 1, text: number.to_string() };
        let report = Report { lines: vec![line], ..Report::default() };
        let (job, token) = (handed.job.id, handed.lease.token);
        let renewal = Renewal { job, token, lease: 30 * SECOND, report };
        store.renew(vec![renewal]).await.expect("answered").remove(0).expect("held");
    }
    let record = everything(&store).await.remove(0);
    assert_eq!((record.log.len(), record.log_dropped), (100, 200));
    store.close().await;
    let store = bench.open();
    assert_eq!(record.log, everything(&store).await.remove(0).log);
}

#[tokio::test(start_paused = true)]
async fn a_commit_larger_than_a_segment_is_all_or_nothing() {
    let bench = Bench::new();
    let store = bench.open();
    accept(&store, (1..=900).map(|number| NewJob { payload: vec![7; 500].into(), ..job(number) }))
        .await;
    let before = everything(&store).await;
    assert!(store.space().segments > 3, "{:?}", store.space());
    drop(store);
    let whole = bench.path();
    let names = segments(&whole);
    let store = bench.open();
    assert_eq!(before, everything(&store).await);
    drop(store);
    // Without its end the commit does not count; what was before it does.
    let cut = bench.directory.path().join("cut");
    copy_directory(&whole, &cut);
    for name in names.iter().skip(2) {
        fs::remove_file(cut.join(name)).expect("removed");
    }
    let disk = Arc::new(RealDisk::open(&cut).expect("the copy is nobody's"));
    let store = bench.open_on(disk).expect("a torn tail is no damage");
    assert!(store.info().opened.expect("told").torn.is_some());
    assert!(everything(&store).await.is_empty());
}

fn segments(path: &Path) -> Vec<String> {
    let entries = fs::read_dir(path).expect("a directory");
    let names = entries.map(|entry| entry.expect("an entry").file_name().into_string());
    let mut names: Vec<String> = names.map(|name| name.expect("a name")).collect();
    names.retain(|name| name.starts_with("journal-"));
    names.sort();
    names
}

#[tokio::test(start_paused = true)]
async fn space_is_given_back_while_jobs_flow_and_history_keeps_its_bound() {
    let mut bench = Bench::new();
    let limits = Limits { history_jobs: 50, ..Limits::default() };
    bench.options.ledger.limits = limits;
    let store = bench.open();
    let mut waiting = job(0);
    waiting.start = Start::After(HOUR);
    accept(&store, [waiting]).await;
    for round in 0..400u128 {
        accept(&store, (0..10).map(|each| job(1 + round * 10 + each))).await;
        for handed in claim(&store, 10).await.jobs {
            let done = Settlement::new(handed.job.id, handed.lease.token, Verdict::Complete);
            settle(&store, done).await;
        }
    }
    let space = store.space();
    assert!(space.used <= 2 * space.live + 3 * (64 << 10), "{space:?}");
    let totals = store.count().await.expect("counted").totals();
    let before = everything(&store).await;
    assert_eq!(before.len(), 51, "one waits, fifty are remembered");
    store.close().await;
    let on_disk: u64 = fs::read_dir(bench.path())
        .expect("a directory")
        .map(|entry| entry.expect("an entry").metadata().expect("known").len())
        .sum();
    assert!(on_disk <= 8 * (64 << 10), "{on_disk} bytes on the disk");
    assert_eq!(check(&bench.path()).expect("whole").wrong, Vec::<String>::new());
    let store = bench.open();
    assert_eq!(before, everything(&store).await);
    assert_eq!(totals, store.count().await.expect("counted").totals());
}

#[tokio::test(start_paused = true)]
async fn an_opening_from_a_checkpoint_finds_what_reading_everything_finds() {
    let mut bench = Bench::new();
    bench.options.ledger.checkpoint_bytes = Some(20_000);
    bench.options.ledger.recovery = Recovery { mode: RecoveryMode::Observe, ..Recovery::default() };
    let store = bench.open();
    a_life_in_every_state(&store, &bench.clock).await;
    let (before, counts) = (everything(&store).await, store.count().await.expect("counted"));
    store.close().await;
    let mut commits = Vec::new();
    for thorough in [true, false, false] {
        bench.options.ledger.thorough = thorough;
        let store = bench.open();
        assert_eq!(before, everything(&store).await);
        let recounted = store.count().await.expect("counted");
        assert_eq!((&counts.lines, &counts.queues), (&recounted.lines, &recounted.queues));
        commits.push(store.info().opened.expect("told").commits);
        store.close().await;
    }
    assert!(commits[1] < commits[0] / 2, "{commits:?} commits were read");
    assert_eq!(check(&bench.path()).expect("whole").wrong, Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_checkpoint_that_knows_what_time_has_changed_is_not_taken_for_damage() {
    let mut bench = Bench::new();
    bench.options.ledger.checkpoint_bytes = Some(20_000);
    let store = bench.open();
    accept(&store, [job(2_000)]).await;
    let held = claim(&store, 1).await.jobs.remove(0);
    let due = NewJob { start: Start::After(SECOND), kind: name("other"), ..job(2_001) };
    accept(&store, [due]).await;
    bench.clock.step_forward(2 * SECOND);
    let (job, token) = (held.job.id, held.lease.token);
    let renewal = Renewal { job, token, lease: HOUR, report: Report::default() };
    store.renew(vec![renewal]).await.expect("a renewal is answered").remove(0).expect("held");
    a_life_in_every_state(&store, &bench.clock).await;
    drop(store);
    assert_eq!(check(&bench.path()).expect("whole").wrong, Vec::<String>::new());
    let copy = bench.directory.path().join("copy");
    back_up(&bench.path(), &copy).expect("a backup of it is whole too");
}

/// A disk whose calls can be made to fail.
#[derive(Debug)]
struct Failing {
    disk: RealDisk,
    switches: Arc<Switches>,
}

#[derive(Debug, Default)]
struct Switches {
    sync_fails: AtomicBool,
    write_fails: AtomicBool,
    rename_fails: AtomicBool,
    list_fails_once: AtomicBool,
    full: AtomicBool,
    /// Bytes that all files may take; 0 for no bound.
    capacity: AtomicU64,
    refused: AtomicU64,
    syncs: AtomicU64,
    gate: Arc<Gate>,
    write_gate: Arc<Gate>,
    large_write_fails: AtomicBool,
}

impl Switches {
    fn check(&self, switch: &AtomicBool) -> io::Result<()> {
        if switch.load(Ordering::SeqCst) { Err(io::Error::other("EIO")) } else { Ok(()) }
    }
}

/// Writes of at least so many bytes can be stopped: no mark and no small commit among them.
const LARGE: usize = 1_000;

#[derive(Debug)]
struct FailingFile {
    file: Arc<dyn DiskFile>,
    switches: Arc<Switches>,
}

impl Failing {
    fn open(path: &Path) -> (Arc<Self>, Arc<Switches>) {
        let switches = Arc::new(Switches::default());
        switches.gate.set(true);
        switches.write_gate.set(true);
        let disk = RealDisk::open(path).expect("it is nobody's");
        (Arc::new(Self { disk, switches: switches.clone() }), switches)
    }

    /// Bytes of all files.
    fn taken(&self) -> io::Result<u64> {
        let names = self.disk.list()?;
        names.iter().map(|name| self.disk.open(name)?.size()).sum()
    }

    fn wrap(&self, file: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
        Arc::new(FailingFile { file, switches: self.switches.clone() })
    }
}

impl Disk for Failing {
    fn list(&self) -> io::Result<Vec<String>> {
        if self.switches.list_fails_once.swap(false, Ordering::SeqCst) {
            return Err(io::Error::other("EIO"));
        }
        self.disk.list()
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        Ok(self.wrap(self.disk.open(name)?))
    }

    fn create(&self, name: &str, bytes: u64) -> io::Result<Arc<dyn DiskFile>> {
        let capacity = self.switches.capacity.load(Ordering::SeqCst);
        let fits = capacity == 0 || self.taken()? + bytes <= capacity;
        if self.switches.full.load(Ordering::SeqCst) || !fits {
            self.switches.refused.fetch_add(1, Ordering::SeqCst);
            return Err(io::Error::from(io::ErrorKind::StorageFull));
        }
        Ok(self.wrap(self.disk.create(name, bytes)?))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.switches.check(&self.switches.rename_fails)?;
        self.disk.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.disk.remove(name)
    }

    fn sync_directory(&self) -> io::Result<()> {
        self.disk.sync_directory()
    }
}

impl DiskFile for FailingFile {
    fn size(&self) -> io::Result<u64> {
        self.file.size()
    }

    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<()> {
        self.file.read_at(buffer, at)
    }

    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        if bytes.len() >= LARGE {
            self.switches.write_gate.pass();
            if self.switches.large_write_fails.load(Ordering::SeqCst) {
                return Err(io::Error::other("EIO"));
            }
        }
        self.switches.check(&self.switches.write_fails)?;
        self.file.write_at(bytes, at)
    }

    fn sync(&self) -> io::Result<()> {
        self.switches.syncs.fetch_add(1, Ordering::SeqCst);
        self.switches.gate.pass();
        self.switches.check(&self.switches.sync_fails)?;
        self.file.sync()
    }
}

#[tokio::test(start_paused = true)]
async fn after_a_failed_sync_nothing_is_acknowledged_until_reopened() {
    for fail_writes in [false, true] {
        let bench = Bench::new();
        let (disk, switches) = Failing::open(&bench.path());
        let store = bench.open_on(disk).expect("it opens");
        accept(&store, [job(1)]).await;
        let switch = if fail_writes { &switches.write_fails } else { &switches.sync_fails };
        switch.store(true, Ordering::SeqCst);
        let answer = store.enqueue(vec![Arc::new(job(2))]).await;
        assert!(matches!(answer, Err(StoreError::Unknown { .. })), "{answer:?}");
        // The disk says it is well again, but what it dropped is gone.
        switch.store(false, Ordering::SeqCst);
        let syncs = switches.syncs.load(Ordering::SeqCst);
        let answer = store.enqueue(vec![Arc::new(job(3))]).await;
        let why = answer.expect_err("it is broken").to_string();
        assert!(why.contains("reopen"), "{why}");
        assert!(store.find(&[id(1)]).await.is_err(), "reads could show what is not durable");
        assert_eq!(switches.syncs.load(Ordering::SeqCst), syncs, "a failed sync is not repeated");
        drop(store);
        let store = bench.open();
        let found = store.find(&[id(1), id(3)]).await.expect("found");
        assert!(found[0].is_some() && found[1].is_none());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_calls_after_a_failed_sync_is_refused_and_does_not_wait_for_ever() {
    let directory = Directory::new();
    let (disk, switches) = Failing::open(&directory.path().join("jobs"));
    let (clock, wake) = (Arc::new(SystemClock::new()), Arc::new(LocalWake::new()));
    let store = FileStore::with_writer(disk, &FileOptions::default(), clock, wake);
    let store = store.expect("it opens");
    accept(&store, [job(1)]).await;
    switches.sync_fails.store(true, Ordering::SeqCst);
    let answer = store.enqueue(vec![Arc::new(job(2))]).await;
    assert!(matches!(answer, Err(StoreError::Unknown { .. })), "{answer:?}");
    // Repeated calls, fresh ones and reads: some come before the writer has given up.
    for number in [2, 2, 3, 4] {
        let answer = store.enqueue(vec![Arc::new(job(number))]).await;
        assert!(answer.is_err(), "nothing is acknowledged any more");
    }
    let answer = store.enqueue(vec![Arc::new(job(5))]).await;
    let broken = |refusal: &Refusal| matches!(refusal, Refusal::StoreBroken { .. });
    assert!(matches!(&answer, Err(StoreError::Refused(why)) if broken(why)), "{answer:?}");
    assert!(store.find(&[id(1)]).await.is_err());
    assert!(store.count().await.is_err(), "counters could show what is not durable");
}

#[tokio::test(start_paused = true)]
async fn a_refusal_of_the_repetition_is_not_told_as_one_of_the_call() {
    let bench = Bench::new();
    let (disk, switches) = Failing::open(&bench.path());
    let (clock, wake) = (bench.clock.clone(), Arc::new(LocalWake::new()));
    let store = FileStore::on_disk(disk, &bench.options, clock.clone(), wake.clone());
    let store = Arc::new(store.expect("it opens"));
    let engine = Engine::builder().on_store(store, wake, clock).expect("it starts");
    switches.sync_fails.store(true, Ordering::SeqCst);
    // Written and not synced, then repeated and refused: the job may be there, and it is.
    let error = engine.enqueue_raw(vec![job(1)]).await.expect_err("the sync fails");
    assert!(matches!(error, Error::Unknown { .. }), "{error}");
    engine.close().await;
    assert_eq!(everything(&bench.open()).await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn of_a_batch_that_cannot_be_finished_nothing_is_written() {
    let bench = Bench::new();
    let (disk, switches) = Failing::open(&bench.path());
    let store = bench.open_on(disk).expect("it opens");
    accept(&store, [job(1)]).await;
    switches.rename_fails.store(true, Ordering::SeqCst);
    // More than the segment holds: half of it is put together before the next one is missed.
    let large = |n| Arc::new(NewJob { payload: vec![1; 1_000].into(), ..job(n) });
    let answer = store.enqueue((100..200).map(large).collect()).await;
    assert!(answer.is_err(), "{answer:?}");
    store.close().await;
    drop(store);
    assert_eq!(everything(&bench.open()).await.len(), 1, "half of a batch is there");
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_waits_for_a_segment_that_a_failing_disk_will_not_give_is_told() {
    let bench = Bench::new();
    let (disk, switches) = Failing::open(&bench.path());
    let (clock, wake) = (Arc::new(SystemClock::new()), Arc::new(LocalWake::new()));
    let store = FileStore::with_writer(disk, &bench.options, clock, wake).expect("it opens");
    let store = Arc::new(store);
    switches.rename_fails.store(true, Ordering::SeqCst);
    let large = |n| Arc::new(NewJob { payload: vec![1; 1_000].into(), ..job(n) });
    let waits = store.clone();
    let waits = tokio::spawn(async move { waits.enqueue((100..200).map(large).collect()).await });
    // Whoever calls next asks for the file again, finds that there is no hope, and says so to all.
    while !waits.is_finished() {
        let _ = store.promote().await;
        tokio::task::yield_now().await;
    }
    let answer = waits.await.expect("no panic");
    assert!(matches!(answer, Err(StoreError::Unknown { .. })), "{answer:?}");
    let answer = store.promote().await;
    assert!(matches!(answer, Err(StoreError::Refused(Refusal::StoreBroken { .. }))), "{answer:?}");
}

/// The writer's syncs wait for this.
#[derive(Debug, Default)]
struct Gate {
    open: Mutex<bool>,
    opened: Condvar,
    reached: tokio::sync::Notify,
}

impl Gate {
    fn set(&self, open: bool) {
        *self.open.lock().expect("nobody panics here") = open;
        self.opened.notify_all();
    }

    fn pass(&self) {
        self.reached.notify_one();
        let mut open = self.open.lock().expect("nobody panics here");
        while !*open {
            open = self.opened.wait(open).expect("nobody panics here");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_answered_or_told_before_the_sync_has_returned() {
    let directory = Directory::new();
    let (disk, switches) = Failing::open(&directory.path().join("jobs"));
    let gate = switches.gate.clone();
    gate.set(true);
    let clock = Arc::new(SystemClock::new());
    let wake = Arc::new(LocalWake::new());
    let options = FileOptions::default();
    let store = FileStore::with_writer(disk, &options, clock, wake).expect("it opens");
    let store = Arc::new(store);
    accept(&store, [job(1)]).await;
    let told = store.info().last_event;
    gate.set(false);
    // A ring left over from the first sync would be taken for that of the second.
    let _ = tokio::time::timeout(Duration::ZERO, gate.reached.notified()).await;
    let (one, other) = (store.clone(), store.clone());
    let mut enqueue = tokio::spawn(async move { one.enqueue(vec![Arc::new(job(2))]).await });
    gate.reached.notified().await;
    let mut find = tokio::spawn(async move { other.find(&[id(2)]).await });
    // Written, on its way to the disk: whatever runs now could tell too early.
    for _ in 0..1_000 {
        tokio::task::yield_now().await;
    }
    assert!(!enqueue.is_finished(), "it was acknowledged before the sync");
    assert!(!find.is_finished(), "a read showed what was not durable");
    assert_eq!(store.info().last_event, told, "it was told before the sync");
    let unharmed = store.find(&[id(1)]).await.expect("what has landed can be read");
    assert!(unharmed[0].is_some());
    gate.set(true);
    (&mut enqueue).await.expect("no panic").expect("acknowledged");
    assert!((&mut find).await.expect("no panic").expect("found")[0].is_some());
    assert!(store.info().last_event > told);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_behind_a_commit_that_could_not_be_written_is_not_answered() {
    let bench = Bench::new();
    let (disk, switches) = Failing::open(&bench.path());
    let (clock, wake) = (Arc::new(SystemClock::new()), Arc::new(LocalWake::new()));
    let store = FileStore::with_writer(disk, &bench.options, clock, wake).expect("it opens");
    let store = Arc::new(store);
    accept(&store, [job(1)]).await;
    let gate = &switches.write_gate;
    gate.set(false);
    switches.large_write_fails.store(true, Ordering::SeqCst);
    let (one, other) = (store.clone(), store.clone());
    let large = Arc::new(NewJob { payload: vec![1; LARGE].into(), ..job(2) });
    let enqueue = tokio::spawn(async move { one.enqueue(vec![large]).await });
    gate.reached.notified().await;
    // It decides at once, and waits to be written behind the enqueue.
    let kinds = vec![KindClaim::new(name("work"))];
    let claim = Claim { worker: "w".into(), queues: None, kinds, limit: 1 };
    let claim = tokio::spawn(async move { other.claim(claim).await });
    for _ in 0..1_000 {
        tokio::task::yield_now().await;
    }
    gate.set(true);
    assert!(in_time(enqueue).await.expect("no panic").is_err());
    let answer = in_time(claim).await.expect("no panic");
    assert!(answer.is_err(), "{answer:?}");
}

/// A clock that can be made to crash whoever reads it.
#[derive(Debug)]
struct Crashing {
    clock: SystemClock,
    crashes: AtomicBool,
}

impl Clock for Crashing {
    fn now(&self) -> Now {
        // Not the writer: it reads the clock when it likes.
        let writer = std::thread::current().name() == Some("windlass-writer");
        assert!(writer || !self.crashes.swap(false, Ordering::SeqCst), "as the test wants it");
        self.clock.now()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.clock.sleep(duration)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_crashes_leaves_nobody_waiting_and_does_not_keep_the_store_open() {
    let bench = Bench::new();
    let (disk, switches) = Failing::open(&bench.path());
    let clock = Arc::new(Crashing { clock: SystemClock::new(), crashes: AtomicBool::new(false) });
    let wake = Arc::new(LocalWake::new());
    let store = FileStore::with_writer(disk, &bench.options, clock.clone(), wake);
    let store = Arc::new(store.expect("it opens"));
    accept(&store, [job(1)]).await;
    switches.gate.set(false);
    let _ = tokio::time::timeout(Duration::ZERO, switches.gate.reached.notified()).await;
    let waits = store.clone();
    let waits = tokio::spawn(async move { waits.enqueue(vec![Arc::new(job(2))]).await });
    switches.gate.reached.notified().await;
    clock.crashes.store(true, Ordering::SeqCst);
    let crashes = store.clone();
    let crashed = tokio::spawn(async move { crashes.count().await });
    assert!(crashed.await.is_err(), "it crashes while it has the book");
    switches.gate.set(true);
    let answer = in_time(waits).await.expect("no panic");
    assert!(matches!(answer, Err(StoreError::Unknown { .. })), "{answer:?}");
    let answer = store.count().await;
    assert!(matches!(answer, Err(StoreError::Refused(Refusal::StoreBroken { .. }))), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_whose_writer_sleeps_while_a_call_crashes_can_be_closed() {
    let bench = Bench::new();
    let disk = Arc::new(RealDisk::open(&bench.path()).expect("it is nobody's"));
    let clock = Arc::new(Crashing { clock: SystemClock::new(), crashes: AtomicBool::new(false) });
    let wake = Arc::new(LocalWake::new());
    let store = FileStore::with_writer(disk, &bench.options, clock.clone(), wake);
    let store = Arc::new(store.expect("it opens"));
    accept(&store, [job(1)]).await;
    clock.crashes.store(true, Ordering::SeqCst);
    let crashes = store.clone();
    assert!(tokio::spawn(async move { crashes.count().await }).await.is_err(), "it crashes");
    in_time(tokio::task::spawn_blocking(move || drop(store))).await.expect("no panic");
    assert_eq!(everything(&bench.open()).await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_full_disk_refuses_new_jobs_lets_running_ones_end_and_heals() {
    let mut bench = Bench::new();
    bench.options.ledger.segment_bytes = Some(512 << 10);
    let (disk, switches) = Failing::open(&bench.path());
    let store = bench.open_on(disk).expect("it opens");
    accept(&store, [job(1)]).await;
    let handed = claim(&store, 1).await.jobs.remove(0);
    switches.full.store(true, Ordering::SeqCst);
    let mut accepted = 0u128;
    let refusal = loop {
        let big = NewJob { payload: vec![1; 50_000].into(), ..job(100 + accepted) };
        match store.enqueue(vec![Arc::new(big)]).await {
            Ok(_) => accepted += 1,
            Err(error) => break error,
        }
    };
    let full = matches!(refusal, StoreError::Refused(Refusal::StoreFull { .. }));
    assert!(full && accepted > 0, "{refusal} after {accepted}");
    let done = Settlement::new(handed.job.id, handed.lease.token, Verdict::Complete);
    assert_eq!(settle(&store, done).await, StateName::Completed);
    switches.full.store(false, Ordering::SeqCst);
    tokio::time::advance(SECOND).await;
    accept(&store, [job(2)]).await;
    drop(store);
    assert_eq!(everything(&bench.open()).await.len() as u128, accepted + 2);
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_is_refused_gives_back_the_room_that_was_made_for_it() {
    let bench = Bench::new();
    let (disk, switches) = Failing::open(&bench.path());
    let store = bench.open_on(disk.clone()).expect("it opens");
    accept(&store, [job(1)]).await;
    let taken = disk.taken().expect("known");
    switches.capacity.store(taken + 10 * (64 << 10), Ordering::SeqCst);
    let large = |n| Arc::new(NewJob { payload: vec![1; 10_000].into(), ..job(n) });
    let answer = store.enqueue((100..200).map(large).collect()).await;
    let full = |refusal: &Refusal| matches!(refusal, Refusal::StoreFull { .. });
    assert!(matches!(&answer, Err(StoreError::Refused(why)) if full(why)), "{answer:?}");
    assert_eq!(disk.taken().expect("known"), taken);
    tokio::time::advance(SECOND).await;
    accept(&store, [job(2)]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_is_not_filled_with_zeros_over_and_over() {
    let mut bench = Bench::new();
    bench.options.ledger.segment_bytes = Some(1 << 20);
    let (disk, switches) = Failing::open(&bench.path());
    let (clock, wake) = (Arc::new(SystemClock::new()), Arc::new(LocalWake::new()));
    let store = FileStore::with_writer(disk, &bench.options, clock, wake).expect("it opens");
    switches.full.store(true, Ordering::SeqCst);
    // More than half of the segment: from here on the next one is made in advance.
    let large = |n| NewJob { payload: vec![1; 100_000].into(), ..job(n) };
    accept(&store, (1..=6).map(large)).await;
    for number in 100..200 {
        accept(&store, [job(number)]).await;
    }
    let refused = switches.refused.load(Ordering::SeqCst);
    assert!((1..10).contains(&refused), "the disk was asked {refused} times");
}

/// Fills a small disk, ends all that is on it, and takes new jobs again.
async fn a_disk_full_of_what_is_gone_heals(store: &FileStore, clock: &dyn Clock) {
    let mut number = 0;
    for round in 0..3 {
        let mut accepted = 0;
        while accepted < 200 {
            let big = NewJob { payload: vec![1; 100_000].into(), ..job(number) };
            if store.enqueue(vec![Arc::new(big)]).await.is_err() {
                break;
            }
            number += 1;
            accepted += 1;
        }
        assert!((20..200).contains(&accepted), "{accepted} accepted in round {round}");
        let handed = claim(store, 200).await.jobs;
        assert_eq!(handed.len(), accepted);
        for handed in handed {
            settle(store, Settlement::new(handed.job.id, handed.lease.token, Verdict::Complete))
                .await;
        }
        // A full disk is not asked all the time.
        clock.sleep(SECOND / 2).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_disk_full_of_what_is_gone_heals_without_a_writer() {
    let mut bench = Bench::new();
    let limits = Limits { history_jobs: 1, ..Limits::default() };
    bench.options.ledger = LedgerOptions { limits, ..LedgerOptions::default() };
    let (disk, switches) = Failing::open(&bench.path());
    switches.capacity.store(16 << 20, Ordering::SeqCst);
    let store = bench.open_on(disk).expect("it opens");
    a_disk_full_of_what_is_gone_heals(&store, &*bench.clock).await;
    store.close().await;
    drop(store);
    assert_eq!(check(&bench.path()).expect("whole").wrong, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_full_of_what_is_gone_heals_with_a_writer() {
    let mut bench = Bench::new();
    let limits = Limits { history_jobs: 1, ..Limits::default() };
    bench.options.ledger = LedgerOptions { limits, ..LedgerOptions::default() };
    let (disk, switches) = Failing::open(&bench.path());
    switches.capacity.store(16 << 20, Ordering::SeqCst);
    let (clock, wake) = (Arc::new(SystemClock::new()), Arc::new(LocalWake::new()));
    let store = FileStore::with_writer(disk, &bench.options, clock.clone(), wake);
    let store = store.expect("it opens");
    in_time(a_disk_full_of_what_is_gone_heals(&store, &*clock)).await;
}

/// A test that would wait for ever fails instead.
async fn in_time<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(120 * SECOND, future).await.expect("it waits for ever")
}

/// A store on a full disk, and a call that waits for room: more was called off than fits.
async fn waiting_for_room(bench: &Bench) -> (Arc<FileStore>, Arc<Switches>, JoinHandle<u64>) {
    let (disk, switches) = Failing::open(&bench.path());
    let (clock, wake) = (Arc::new(SystemClock::new()), Arc::new(LocalWake::new()));
    let store = FileStore::with_writer(disk, &bench.options, clock, wake).expect("it opens");
    let store = Arc::new(store);
    for hundred in 0..50 {
        accept(&store, (1..=100).map(|each| job(hundred * 100 + each))).await;
    }
    switches.full.store(true, Ordering::SeqCst);
    let clears = store.clone();
    let clears = tokio::spawn(async move {
        clears.clear(name("default")).await.map_or(0, |cleared| cleared.cleared)
    });
    // A claim does not wait for others, and fails once there is no room.
    let kinds = vec![KindClaim::new(name("other"))];
    let claim = Claim { worker: "w".into(), queues: None, kinds, limit: 1 };
    while store.claim(claim.clone()).await.is_ok() {
        tokio::task::yield_now().await;
    }
    (store, switches, clears)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_outgrew_a_full_disk_keeps_no_refusal_waiting_and_lands_by_itself() {
    let bench = Bench::new();
    let (store, switches, clears) = waiting_for_room(&bench).await;
    let answer = in_time(store.enqueue(vec![Arc::new(job(9_000))])).await;
    let full = |refusal: &Refusal| matches!(refusal, Refusal::StoreFull { .. });
    assert!(matches!(&answer, Err(StoreError::Refused(why)) if full(why)), "{answer:?}");
    let counts = store.clone();
    let counts = tokio::spawn(async move { counts.count().await });
    tokio::task::yield_now().await;
    assert!(!clears.is_finished(), "there is no room for it yet");
    switches.full.store(false, Ordering::SeqCst);
    // From here on nobody calls.
    assert_eq!(in_time(clears).await.expect("no panic"), 5_000);
    let counted = in_time(counts).await.expect("no panic").expect("counted");
    assert_eq!(counted.in_state(StateName::Cancelled), 5_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_waits_for_room_is_told_when_the_store_is_closed() {
    let bench = Bench::new();
    let (store, _, clears) = waiting_for_room(&bench).await;
    store.close().await;
    assert_eq!(in_time(clears).await.expect("no panic"), 0, "it was not acknowledged");
    drop(store);
    let store = bench.open();
    let counted = store.count().await.expect("counted");
    assert_eq!(counted.in_state(StateName::Ready), 5_000, "half of a command is there");
}

#[tokio::test(start_paused = true)]
async fn every_flipped_byte_is_reported_or_harmless() {
    let bench = Bench::new();
    let store = bench.open();
    a_bit_of_everything(&store, &bench.clock).await;
    let handed = claim(&store, 10).await;
    assert_eq!(handed.jobs.len(), 1);
    // Last of all, so that losing the last commit shows.
    accept(&store, [job(10)]).await;
    let before = everything(&store).await;
    store.close().await;
    let path = bench.path().join(&segments(&bench.path())[0]);
    let whole = fs::read(&path).expect("a segment");
    let used = whole.iter().rposition(|byte| *byte != 0).expect("it is not empty") + 200;
    let (mut refused, mut harmless) = (0, 0);
    for at in 0..used {
        let mut flipped = whole.clone();
        flipped[at] ^= 1 << (at % 8);
        fs::write(&path, &flipped).expect("written");
        match check(&bench.path()) {
            Err(OpenError::Damaged { file, .. }) => {
                assert!(file.starts_with("journal-"), "{file}");
                refused += 1;
            }
            Err(OpenError::Newer { .. }) => refused += 1,
            Err(other) => panic!("byte {at}: {other}"),
            Ok(checked) => {
                assert_eq!((checked.jobs, checked.wrong), (10, Vec::new()), "byte {at}");
                harmless += 1;
            }
        }
    }
    fs::write(&path, &whole).expect("written");
    assert!(refused > used * 9 / 10 - 400, "{refused} refused, {harmless} harmless");
    let mut seen = before;
    let store = bench.open();
    let after = everything(&store).await;
    seen.iter_mut().zip(&after).for_each(|(seen, after)| {
        if seen.state() == StateName::Running {
            *seen = after.clone();
        }
    });
    assert_eq!(seen, after);
}

#[tokio::test(start_paused = true)]
async fn a_truncated_segment_is_refused_at_every_length() {
    let bench = Bench::new();
    let store = bench.open();
    a_bit_of_everything(&store, &bench.clock).await;
    store.close().await;
    let path = bench.path().join(&segments(&bench.path())[0]);
    let whole = fs::read(&path).expect("a segment");
    for length in (0..whole.len()).step_by(611) {
        fs::write(&path, &whole[..length]).expect("written");
        let refused = bench.try_open().expect_err("a file was cut");
        assert!(matches!(refused, OpenError::Damaged { .. }), "{length}: {refused}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_missing_segment_is_damage_with_its_place() {
    let bench = Bench::new();
    let store = bench.open();
    for round in 0..4u128 {
        let jobs = (0..100).map(|each| job(1 + round * 100 + each));
        accept(&store, jobs.map(|job| NewJob { payload: vec![1; 900].into(), ..job })).await;
    }
    store.close().await;
    let names = segments(&bench.path());
    assert!(names.len() > 4);
    for name in &names[..names.len() - 1] {
        let path = bench.path().join(name);
        let content = fs::read(&path).expect("a segment");
        fs::remove_file(&path).expect("removed");
        let refused = bench.try_open().expect_err("a file is missing").to_string();
        assert!(refused.contains("damaged: journal-"), "{name}: {refused}");
        fs::write(&path, content).expect("written");
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_of_a_later_version_is_refused_politely() {
    let bench = Bench::new();
    bench.open().close().await;
    let path = bench.path().join(&segments(&bench.path())[0]);
    let mut content = fs::read(&path).expect("a segment");
    content[8] = 2;
    let check = crc32(&content[..24]);
    content[24..28].copy_from_slice(&check.to_le_bytes());
    fs::write(&path, content).expect("written");
    let refused = bench.try_open().expect_err("it is newer").to_string();
    assert!(refused.contains("format 2") && refused.contains("newer version"), "{refused}");
}

/// The checksum of the format page, bit by bit.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |sum, byte| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| {
            (sum >> 1) ^ (0xedb8_8320 & 0u32.wrapping_sub(sum & 1))
        })
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_of_a_store_in_use_opens_as_of_one_moment_with_fresh_tokens() {
    let directory = Directory::new();
    let (from, to) = (directory.path().join("jobs"), directory.path().join("copy"));
    let engine = Engine::open(from.to_str().expect("a path")).await.expect("it opens");
    let mut ids = Vec::new();
    for number in 0..50 {
        ids.push(engine.enqueue(work(number)).await.expect("accepted").id());
    }
    let handed = engine.store().claim(Claim {
        worker: "w".into(),
        queues: None,
        kinds: vec![KindClaim::new(name("work"))],
        limit: 1,
    });
    let token = handed.await.expect("answered").jobs[0].lease.token;
    let copied = back_up(&from, &to).expect("copied");
    assert_eq!(copied.jobs, 50);
    let again = back_up(&from, &to).expect_err("nothing is overwritten").to_string();
    assert!(again.contains("copy"), "{again}");
    engine.enqueue(work(50)).await.expect("the original goes on");
    let copy = Engine::open(to.to_str().expect("a path")).await.expect("the copy opens");
    for id in &ids {
        assert!(copy.find(*id).await.expect("found").is_some());
    }
    assert_eq!(copy.opened().expect("told").recovered.len(), 1);
    let worker = copy.worker().handle(|work: Work| async move { Ok::<_, Error>(work.number) });
    let worker = worker.start().await.expect("started");
    let outcome = copy.handle::<Work>(ids[0]).outcome().await.expect("done");
    assert_eq!(outcome, 0);
    worker.stop().await.expect("stopped");
    let mut held = copy.store().events(0, 1_000, Duration::ZERO).await.expect("answered");
    held.retain(|event| event.topic() == "job.started");
    assert!(!held.is_empty());
    copy.enqueue(work(99)).await.expect("accepted");
    let handed = copy.store().claim(Claim {
        worker: "w".into(),
        queues: None,
        kinds: vec![KindClaim::new(name("work"))],
        limit: 1,
    });
    let fresh = handed.await.expect("answered").jobs[0].lease.token;
    assert!(fresh.0 > token.0 + (1 << 39), "{fresh} is too near to {token}");
    copy.close().await;
    engine.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_backup_restored_twice_hands_out_no_token_twice() {
    let bench = Bench::new();
    let store = bench.open();
    accept(&store, (1..=20).map(job)).await;
    store.close().await;
    let backup = bench.directory.path().join("backup");
    back_up(&bench.path(), &backup).expect("copied");
    let mut tokens = BTreeSet::new();
    for restored in ["first", "second"] {
        bench.clock.step_forward(SECOND);
        let path = bench.directory.path().join(restored);
        copy_directory(&backup, &path);
        let store = bench.open_on(Arc::new(RealDisk::open(&path).expect("nobody's")));
        for handed in claim(&store.expect("it opens"), 20).await.jobs {
            assert!(tokens.insert(handed.lease.token), "{} came twice", handed.lease.token);
        }
    }
    assert_eq!(tokens.len(), 40);
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_cannot_be_listed_is_not_taken_for_one_without_a_copy() {
    let bench = Bench::new();
    bench.open().close().await;
    let (disk, switches) = Failing::open(&bench.path());
    switches.list_fails_once.store(true, Ordering::SeqCst);
    let refused = bench.open_on(disk).expect_err("it cannot be listed");
    assert!(matches!(refused, OpenError::Io { .. }), "{refused}");
}

#[tokio::test(start_paused = true)]
async fn a_checkpoint_that_outlives_the_segments_before_it_is_concluded() {
    let mut bench = Bench::new();
    bench.options.ledger.checkpoint_bytes = Some(1 << 20);
    let limits = Limits { history_jobs: 10, ..Limits::default() };
    bench.options.ledger.limits = limits;
    let disk = Arc::new(RealDisk::open(&bench.path()).expect("it is nobody's"));
    let (mut ledger, _) =
        JournaledLedger::open(disk, &bench.options.ledger, bench.clock.now()).expect("it opens");
    let land = |ledger: &mut JournaledLedger| {
        while let Some(commit) = ledger.take() {
            commit.write().and_then(|()| commit.sync()).expect("the disk is sound");
            ledger.written(commit.number());
            for retired in ledger.landed(&commit) {
                ledger.add_spare(retired.let_go().expect("the disk is sound"));
            }
        }
    };
    let now = bench.clock.now();
    let mut number = 0;
    while !ledger.wants_checkpoint() {
        let jobs =
            (0..50).map(|each| NewJob { payload: vec![1; 500].into(), ..job(number + each) });
        let jobs: Vec<Arc<NewJob>> = jobs.map(Arc::new).collect();
        let ids = jobs.iter().map(|job| job.id).collect();
        ledger.apply(Enqueue { jobs }, now).expect("accepted");
        ledger.apply(Cancel { jobs: ids }, now).expect("cancelled");
        number += 50;
        land(&mut ledger);
    }
    ledger.checkpoint(1).expect("begun");
    land(&mut ledger);
    // All but the last segment leave before it has come to its end.
    while ledger.wants_compaction() {
        ledger.compact(1 << 20).expect("cleared");
        land(&mut ledger);
    }
    while ledger.wants_checkpoint() {
        ledger.checkpoint(1).expect("goes on");
        land(&mut ledger);
    }
    drop(ledger);
    assert_eq!(check(&bench.path()).expect("whole").wrong, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_on_a_directory_survives_closing_with_work_left() {
    let directory = Directory::new();
    let path = directory.path().join("jobs").to_str().expect("a path").to_string();
    let engine = Engine::open(&path).await.expect("it opens");
    assert_eq!(engine.durability(), Durability::Sync);
    let first = engine.enqueue(work(1)).await.expect("accepted").id();
    engine.close().await;
    let refused = engine.enqueue(work(2)).await.expect_err("it is closed").to_string();
    assert!(refused.contains("shutting down"), "{refused}");
    let engine = Engine::open(&path).await.expect("the lock was given back");
    let worker =
        engine.worker().handle(|work: Work| async move { Ok::<_, Error>(work.number * 2) });
    let worker = worker.start().await.expect("started");
    assert_eq!(engine.handle::<Work>(first).outcome().await.expect("done"), 2);
    let second = engine.enqueue(work(21)).await.expect("accepted");
    assert_eq!(second.outcome().await.expect("done"), 42);
    worker.stop().await.expect("stopped");
    engine.close().await;
    let engine = Engine::open(&path).await.expect("it opens");
    let record = engine.find(second.id()).await.expect("found").expect("kept");
    assert_eq!(record.output.as_deref(), Some(b"42".as_slice()));
    engine.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relaxed_store_says_so_and_loses_nothing_to_a_clean_end() {
    let directory = Directory::new();
    let path = directory.path().join("jobs").to_str().expect("a path").to_string();
    let relaxed = Durability::Relaxed(Duration::from_millis(20));
    let engine = Engine::builder().durability(relaxed).open(&path).await.expect("it opens");
    assert_eq!(engine.durability().to_string(), "relaxed(20ms)");
    let jobs = (0..2_000).map(work).collect::<Vec<_>>();
    engine.enqueue_many(jobs).await.expect("accepted");
    engine.close().await;
    let engine = Engine::open(&path).await.expect("it opens");
    assert_eq!(engine.counts().await.expect("counted").in_state(StateName::Ready), 2_000);
    engine.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_that_is_no_directory_is_refused_in_words() {
    let directory = Directory::new();
    let file = directory.path().join("a-file");
    fs::write(&file, "text").expect("written");
    let refused = Engine::open(file.to_str().expect("a path")).await.expect_err("no directory");
    assert!(refused.to_string().contains("a-file"), "{refused}");
    let refused = Engine::open("mongodb://host").await.expect_err("no such store");
    assert!(refused.to_string().contains("./jobs"), "{refused}");
}
