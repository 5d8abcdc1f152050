//! Moving between stores: what a random life has left in a directory is the same in a database,
//! and back.

use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use windlass::clock::SystemClock;
use windlass::core::filter::Filter;
use windlass::core::job::{Lane, NewJob, Unique};
use windlass::core::ledger::{
    Claim, KindClaim, QueueChange, Renewal, Settlement, WorkerInfo, WorkerReport,
};
use windlass::core::object::{Alarm, Purge, RunResult, Turn};
use windlass::core::outcome::{ErrorText, Verdict};
use windlass::core::record::Report;
use windlass::core::reserved;
use windlass::store::file::{FileOptions, OfflineStore};
use windlass::store::{
    AlterJobs, AlterQueue, FileStore, JobAction, ObjectFilter, QueueAction, Selection, Store,
    StoreExt, move_store,
};
use windlass::wake::LocalWake;
use windlass::{
    Actor, CancelReason, Counts, DeadReason, Dependency, Engine, JobId, JobRecord, LogLine, Name,
    ObjectAddress, ObjectStatus, ObjectView, OnFailure, Priority, Progress, Rate, Start, StateName,
    Step, Timestamp, UniqueScope, WorkerOrder,
};

use crate::common::Ground;

const HOUR: Duration = Duration::from_secs(3_600);

/// A directory that is removed with everything in it.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("moving-{}-{number}", std::process::id());
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&path).expect("a directory can be made");
        Self(path)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn address(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Numbers that are the same for the same seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) ^ (self.0 >> 11)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// Whether something happens that does so many times in a hundred.
    fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }

    fn pick<T: Clone>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize].clone()
    }
}

fn name(text: &str) -> Name {
    Name::new(text).expect("a valid name")
}

fn open_file(path: &Path) -> FileStore {
    let options = FileOptions::default();
    let (clock, wake) = (Arc::new(SystemClock::new()), Arc::new(LocalWake::new()));
    FileStore::open(path, &options, clock, wake).expect("it opens")
}

/// A store that has been used in every way there is.
struct Life {
    random: Random,
    store: FileStore,
    made: Vec<JobId>,
}

impl Life {
    fn id(&mut self) -> JobId {
        let id = JobId::from_u128(u128::from(self.random.next()) << 64 | self.made.len() as u128);
        self.made.push(id);
        id
    }

    /// Either at once or not for as long as the test runs.
    fn start(&mut self) -> Start {
        let now = Timestamp::from_micros(4_000_000_000_000_000);
        self.random.pick(&[Start::Now, Start::Now, Start::Now, Start::After(HOUR), Start::At(now)])
    }

    fn job(&mut self) -> NewJob {
        let id = self.id();
        let (queue, kind) =
            (self.random.pick(&["red", "green", "blue"]), self.random.pick(&["mail", "report"]));
        let payload = vec![self.made.len() as u8; self.random.below(300) as usize];
        let mut job = NewJob::new(id, name(kind), name(queue), payload);
        job.priority = Priority(self.random.below(3) as i32 - 1);
        job.start = self.start();
        if self.random.percent(25) {
            job.unique = Some(Unique {
                key: format!("key {}", self.random.below(12)),
                scope: self.random.pick(&[UniqueScope::Open, UniqueScope::Any]),
                window: self.random.pick(&[None, Some(HOUR)]),
            });
        }
        if self.random.percent(25) && self.made.len() > 1 {
            let policies = [OnFailure::Cascade, OnFailure::Ignore, OnFailure::Wait];
            let others = self.made[..self.made.len() - 1].to_vec();
            let on = self.random.pick(&others[others.len().saturating_sub(9)..]);
            job.depends_on.push(Dependency { on, on_failure: self.random.pick(&policies) });
        }
        job.max_attempts = self.random.pick(&[None, None, Some(1), Some(3)]);
        job.expires_after = self.random.pick(&[None, None, Some(HOUR)]);
        if self.random.percent(50) {
            let key = Lane::Key(format!("customer {}", self.random.below(5)));
            job.lane = Some(self.random.pick(&[key.clone(), key, Lane::Spread]));
        }
        if self.random.percent(30) {
            job.tags = vec![name("tag"), name("other")];
            job.metadata.insert("nul\0 and \u{e000}".to_string(), "\0\u{e000}0".to_string());
            job.trace = Some("00-trace".to_string());
        }
        job
    }

    fn report(&mut self) -> Report {
        let progress = Progress { percent: self.random.below(100) as u8, note: "so far".into() };
        let at = Timestamp::from_micros(1_700_000_000_000_000);
        let line = LogLine { at, attempt: 1, text: "a line, with a 'quote'".to_string() };
        let number = self.random.below(6);
        let step =
            Step { name: name(&format!("step{number}")), result: vec![number as u8; 40].into() };
        Report {
            progress: self.random.percent(50).then_some(progress),
            lines: if self.random.percent(60) { vec![line; 30] } else { Vec::new() },
            steps: if self.random.percent(60) { vec![step] } else { Vec::new() },
            lines_dropped: 0,
        }
    }

    async fn work(&mut self) {
        let rate = Rate::per_second(1_000).burst(1_000);
        let terms =
            |kind| KindClaim { rate: Some(rate), max_attempts: 4, ..KindClaim::new(name(kind)) };
        let claim = Claim {
            worker: "one".into(),
            queues: None,
            kinds: vec![terms("mail"), terms("report")],
            limit: self.random.below(5) as usize + 1,
            request: None,
        };
        let handed = self.store.claim(claim).await.expect("it answers");
        for job in handed.jobs {
            // Some are left running, as a crash would leave them.
            if self.random.percent(5) {
                continue;
            }
            let (id, token) = (job.job.id, job.lease.token);
            if self.random.percent(50) {
                let report = self.report();
                let renewal = Renewal { job: id, token, lease: HOUR, report };
                self.store.renew(vec![renewal]).await.expect("it answers");
            }
            let verdict = self.random.pick(&[
                Verdict::Complete,
                Verdict::Complete,
                Verdict::Complete,
                Verdict::Retry(HOUR),
                Verdict::Retry(Duration::ZERO),
                Verdict::Snooze(HOUR),
                Verdict::Release,
                Verdict::Bury(DeadReason::Permanent),
                Verdict::Cancel(CancelReason::Handler),
            ]);
            let mut settlement = Settlement::new(id, token, verdict);
            settlement.output = self.random.pick(&[None, Some(vec![5; 60].into())]);
            settlement.error = self.random.pick(&[None, Some(ErrorText::new("it \0 went wrong"))]);
            settlement.report = self.report();
            if self.random.percent(10) {
                settlement.next.push(Arc::new(self.job()));
            }
            let _ = self.store.settle(vec![settlement]).await.expect("it answers");
        }
    }

    async fn turn(&mut self) {
        let key = self.random.pick(&["one", "two", "a/b", "ä 'quoted'"]);
        let kind = self.random.pick(&["continuous", "debounce"]);
        let object = ObjectAddress::new(name(kind), name("tokens"), key).expect("a valid key");
        let view = self.store.object(&object).await.expect("it answers");
        let version = view.map_or(0, |view| view.record.meta.version);
        let mut turn = Turn::new(object.clone(), version);
        turn.state = Some(vec![self.made.len() as u8; 50].into());
        if self.random.percent(20) {
            let all = [ObjectStatus::Active, ObjectStatus::Stopped, ObjectStatus::Failed];
            turn.status = Some((self.random.pick(&all), Some(ErrorText::new("someone said so"))));
        }
        turn.ran = self.random.pick(&[None, Some(RunResult::Well), Some(RunResult::Badly)]);
        turn.purge = self.random.pick(&[Purge::Keep, Purge::Keep, Purge::After(HOUR), Purge::Now]);
        if self.random.percent(50) {
            let mut alarm = NewJob::new(self.id(), name("mail"), name("red"), Vec::new());
            alarm.start = Start::After(HOUR);
            alarm.object = Some(object.clone());
            alarm.lane = Some(Lane::Key(object.to_string()));
            turn.alarm = Alarm::Set(Arc::new(alarm));
        }
        if self.random.percent(30) {
            let mut job = self.job();
            job.object = Some(object);
            turn.jobs.push(Arc::new(job));
        }
        let _ = self.store.turn(turn).await;
    }

    async fn control(&mut self) {
        if self.made.is_empty() {
            return;
        }
        let jobs = vec![self.random.pick(&self.made.clone())];
        let alteration = self.random.pick(&[
            JobAction::Cancel,
            JobAction::Replay,
            JobAction::Replay,
            JobAction::Remove,
            JobAction::Reschedule(Start::After(HOUR)),
            JobAction::Reschedule(Start::Now),
        ]);
        self.store
            .alter(AlterJobs::new(Selection::Jobs(jobs), alteration))
            .await
            .expect("it answers");
        let lane = self.random.below(3) as u32;
        let change = match self.random.below(14) {
            0 => QueueChange::Pause,
            1..=3 => QueueChange::Resume,
            4 => QueueChange::MaxDepth(Some(100_000)),
            5 => QueueChange::Ageing(Some(Duration::from_secs(20))),
            6 | 7 => QueueChange::Lanes(NonZeroU32::new(3)),
            8 => QueueChange::PauseLane(lane),
            9 => QueueChange::ResumeLane(lane),
            10 => QueueChange::LaneDepth(Some(1_000)),
            11 => QueueChange::OnDead(Some(name("report"))),
            12 => QueueChange::Lanes(None),
            _ => return,
        };
        let queue = self.random.pick(&["red", "green", "blue"]);
        let _ = self.store.configure(name(queue), change).await;
    }

    async fn go_on(&mut self, commands: usize) {
        for _ in 0..commands {
            match self.random.below(10) {
                0..=3 => {
                    let batch = (0..self.random.below(3) + 1).map(|_| Arc::new(self.job()));
                    let batch = batch.collect();
                    let _ = self.store.enqueue(batch).await;
                }
                4..=6 => self.work().await,
                7 | 8 => self.turn().await,
                _ => self.control().await,
            }
        }
    }
}

/// Fills a directory with what a random life leaves.
async fn live(path: &Path, seed: u64, commands: usize) {
    let mut life = Life { random: Random(seed), store: open_file(path), made: Vec::new() };
    life.go_on(commands).await;
    for queue in ["red", "green", "blue"] {
        life.store.configure(name(queue), QueueChange::Resume).await.expect("it answers");
    }
    for _ in 0..40 {
        let job = Arc::new(life.job());
        let _ = life.store.enqueue(vec![job]).await;
    }
    life.store.close().await;
}

/// All that a store says of itself.
#[derive(Debug, PartialEq)]
struct Contents {
    jobs: Vec<JobRecord>,
    objects: Vec<ObjectView>,
    counts: Counts,
}

fn look(path: &Path) -> Contents {
    let mut look = OfflineStore::open(path).expect("it can be read");
    let (mut jobs, mut after) = (Vec::new(), None);
    loop {
        let page = look.list(&Filter::default(), after, 100).expect("a page");
        jobs.extend(page.jobs);
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    let page = look.objects(&ObjectFilter::default(), None, 100).expect("a page");
    Contents { jobs, objects: page.objects, counts: normal(look.counts()) }
}

async fn ask(store: &dyn Store) -> Contents {
    let (mut jobs, mut after) = (Vec::new(), None);
    loop {
        let page = store.list(&Filter::default(), after, 100).await.expect("a page");
        jobs.extend(page.jobs);
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    let page = store.list_objects(&ObjectFilter::default(), None, 100).await.expect("a page");
    let counts = normal(store.count().await.expect("it answers"));
    Contents { jobs, objects: page.objects, counts }
}

/// Counts without queues and kinds of which there is nothing to say.
fn normal(mut counts: Counts) -> Counts {
    let nothing = |totals: &windlass::core::ledger::Totals| *totals == Default::default();
    counts.lines.retain(|line| !nothing(&line.totals) || line.states != [0; 7]);
    counts.queues.retain(|queue| queue.waiting > 0 || queue.settings != Default::default());
    counts.lines.sort_by(|a, b| (&a.queue, &a.kind).cmp(&(&b.queue, &b.kind)));
    counts.queues.sort_by(|a, b| a.queue.cmp(&b.queue));
    counts
}

/// What a database cannot keep, in the words of a directory.
fn without_nul(mut contents: Contents) -> Contents {
    let clean = |error: &ErrorText| ErrorText::new(error.as_str().replace('\0', "\u{fffd}"));
    for job in &mut contents.jobs {
        job.error = job.error.as_ref().map(clean);
        for attempt in &mut job.attempts {
            attempt.error = attempt.error.as_ref().map(clean);
        }
    }
    contents
}

#[track_caller]
fn same(ours: &Contents, theirs: &Contents) {
    for (our, their) in ours.jobs.iter().zip(&theirs.jobs) {
        assert_eq!(our, their, "job {}", our.id());
    }
    assert_eq!(ours.jobs.len(), theirs.jobs.len());
    for (our, their) in ours.objects.iter().zip(&theirs.objects) {
        assert_eq!(our, their);
    }
    assert_eq!(ours.objects.len(), theirs.objects.len());
    assert_eq!(ours.counts, theirs.counts);
}

/// The order in which one worker gets all jobs that can start.
async fn drain(store: &dyn Store) -> Vec<JobId> {
    let mut order = Vec::new();
    loop {
        let kinds = ["mail", "report"].map(|kind| KindClaim::new(name(kind))).to_vec();
        let claim = Claim { worker: "drain".into(), queues: None, kinds, limit: 1, request: None };
        let handed = store.claim(claim).await.expect("it answers");
        let Some(job) = handed.jobs.first() else { return order };
        order.push(job.job.id);
        let done = Settlement::new(job.job.id, job.lease.token, Verdict::Complete);
        store.settle(vec![done]).await.expect("it answers")[0].as_ref().expect("it is held");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_random_life_moved_into_a_database_and_back_is_the_same_job_by_job() {
    let Some(ground) = Ground::new() else { return };
    let mut states = [0; 7];
    let mut objects = 0;
    for seed in 1..=6 {
        let scratch = Scratch::new();
        let (first, last) = (scratch.path("first"), scratch.path("last"));
        live(&first, seed, 250).await;
        let database = ground.text_address();
        let moved = move_store(&scratch.address("first"), &database, false).await;
        let moved = moved.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        let ours = without_nul(look(&first));
        assert_eq!(
            (moved.jobs, moved.objects),
            (ours.jobs.len() as u64, ours.objects.len() as u64)
        );
        for job in &ours.jobs {
            states[job.state() as usize] += 1;
        }
        objects += ours.objects.len();
        let engine = Engine::open(&database).await.expect("it is whole");
        same(&ours, &ask(&**engine.store()).await);
        engine.close().await;
        move_store(&database, &scratch.address("last"), false).await.expect("it goes back");
        same(&ours, &look(&last));
        // They also go on alike.
        let (file, engine) = (open_file(&last), Engine::open(&database).await.expect("it opens"));
        let order = drain(&file).await;
        assert_eq!(order, drain(&**engine.store()).await, "seed {seed}");
        assert!(order.len() > 10, "seed {seed} leaves only {} jobs to run", order.len());
        file.close().await;
        engine.close().await;
    }
    for state in StateName::ALL {
        let seen = states[state as usize];
        // What was running was given back.
        assert_eq!(seen > 0, state != StateName::Running, "{seen} jobs are {state:?}");
    }
    assert!(objects > 10, "only {objects} objects");
}

#[tokio::test(flavor = "multi_thread")]
async fn directories_and_databases_can_be_moved_among_themselves() {
    let Some(ground) = Ground::new() else { return };
    let scratch = Scratch::new();
    live(&scratch.path("one"), 77, 120).await;
    let other = scratch.address("two");
    move_store(&scratch.address("one"), &other, false).await.expect("it is moved");
    same(&look(&scratch.path("one")), &look(&scratch.path("two")));
    let (here, there) = (ground.text_address(), ground.text_address());
    move_store(&other, &here, false).await.expect("it is moved");
    move_store(&here, &there, false).await.expect("it is moved");
    let engine = Engine::open(&there).await.expect("it is whole");
    same(&without_nul(look(&scratch.path("two"))), &ask(&**engine.store()).await);
    engine.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_move_carries_values_orders_and_the_audit_trail_there_and_back() {
    let Some(ground) = Ground::new() else { return };
    let (scratch, database) = (Scratch::new(), ground.text_address());
    let (from, to) = (scratch.address("from"), scratch.address("to"));
    let anna = || Some(Actor::new("anna").expect("a name"));
    let store = open_file(&scratch.path("from"));
    let store: &dyn Store = &store;
    store.set_value("secret", *b"one", 0, anna()).await.expect("it is set");
    store.order_worker("w", Some(WorkerOrder::Stop), anna()).await.expect("it is ordered");
    let pause = AlterQueue::new(name("red"), QueueAction::Set(QueueChange::Pause));
    store.alter_queue(AlterQueue { by: anna(), ..pause }).await.expect("it is paused");
    let trail = store.audit(None, 10).await.expect("a page").entries;
    assert_eq!(trail.len(), 3);
    store.close().await;
    let is_there = async |store: &dyn Store| {
        assert_eq!(store.audit(None, 10).await.expect("a page").entries, trail);
        let secret = store.value("secret").await.expect("it answers").expect("it is there");
        assert_eq!((&secret.bytes[..], secret.version), (&b"one"[..], 1));
        let address = reserved::order_address("w").expect("an address");
        let order = store.object(&address).await.expect("it answers").expect("it is there");
        assert_eq!(WorkerOrder::kept(&order.record.state), Some(WorkerOrder::Stop));
    };
    move_store(&from, &database, false).await.expect("it is moved");
    let engine = Engine::open(&database).await.expect("it opens");
    is_there(&**engine.store()).await;
    engine.close().await;
    drop(engine);
    move_store(&database, &to, false).await.expect("it is moved back");
    is_there(&open_file(&scratch.path("to"))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_move_that_cannot_be_meant_is_refused_in_one_sentence() {
    let Some(ground) = Ground::new() else { return };
    let scratch = Scratch::new();
    live(&scratch.path("jobs"), 5, 30).await;
    live(&scratch.path("other"), 6, 30).await;
    let (jobs, other) = (scratch.address("jobs"), scratch.address("other"));
    let database = ground.text_address();
    let engine = Engine::open(&database).await.expect("it opens");
    engine
        .enqueue_raw(vec![NewJob::new(windlass::new_id(), name("a"), name("b"), [])])
        .await
        .expect("it is taken");
    let busy = open_file(&scratch.path("busy"));
    for (from, to, words) in [
        ("memory:", jobs.as_str(), "for its own process alone"),
        (&jobs, "memory:", "gone with its process"),
        (&jobs, &other, "holds a store already"),
        (&scratch.address("none"), &database, "there is no store at"),
        (&scratch.address("busy"), &database, "is in use by process"),
        (&jobs, &database, "holds jobs or objects already"),
        (&format!("{database}_none"), &scratch.address("new"), "run `windlass migrate up`"),
    ] {
        let error = move_store(from, to, false).await.expect_err(words).to_string();
        assert!(error.contains(words) && !error.contains('\n'), "{error}");
    }
    busy.close().await;
    engine.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_someone_works_on_is_moved_only_by_force() {
    let Some(ground) = Ground::new() else { return };
    let scratch = Scratch::new();
    let database = ground.text_address();
    let engine = Engine::open(&database).await.expect("it opens");
    let job = NewJob::new(windlass::new_id(), name("mail"), name("red"), []);
    let id = job.id;
    engine.enqueue_raw(vec![job]).await.expect("it is taken");
    let kinds = vec![KindClaim::new(name("mail"))];
    let claim = Claim { worker: "gone".into(), queues: None, kinds, limit: 1, request: None };
    engine.store().claim(claim).await.expect("it answers");
    let to = scratch.address("jobs");
    let refused = move_store(&database, &to, false).await.expect_err("it runs").to_string();
    assert!(refused.contains("1 of its jobs run"), "{refused}");
    let card = WorkerInfo { queues: None, kinds: Vec::new(), slots: 1, quiet: false };
    let news = WorkerReport::Started(card);
    engine.store().heartbeat("postman".into(), news).await.expect("it answers");
    let refused = move_store(&database, &to, false).await.expect_err("it works").to_string();
    assert!(refused.contains("(postman); stop them, or say --force"), "{refused}");
    move_store(&database, &to, true).await.expect("by force");
    let moved = look(&scratch.path("jobs"));
    assert_eq!((moved.jobs.len(), moved.jobs[0].id()), (1, id));
    assert_eq!(moved.jobs[0].status.recoveries, 1, "it was given back");
    engine.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restored_database_never_hands_out_a_lease_token_of_the_original() {
    let Some(ground) = Ground::new() else { return };
    let original = ground.text_address();
    let engine = Engine::open(&original).await.expect("it opens");
    let job = NewJob::new(windlass::new_id(), name("mail"), name("red"), []);
    let id = job.id;
    engine.enqueue_raw(vec![job]).await.expect("it is taken");
    engine.close().await;
    drop(engine);
    let database = &ground.database;
    let copy = format!("{database}_restored");
    let leave = "select pg_terminate_backend(pid, 10000) from pg_stat_activity where datname =";
    ground.server.sql("postgres", &format!("{leave} '{database}'"));
    ground.server.sql("postgres", &format!("create database {copy} template {database}"));
    ground.server.sql(&copy, "select s0.restored()");
    let claim = || {
        let kinds = vec![KindClaim::new(name("mail"))];
        Claim { worker: "one".into(), queues: None, kinds, limit: 1, request: None }
    };
    let (engine, restored) = (
        Engine::open(&original).await.expect("it opens"),
        Engine::open(&original.replace(database, &copy)).await.expect("it opens"),
    );
    let before = engine.store().claim(claim()).await.expect("it answers").jobs[0].lease.token;
    let after = restored.store().claim(claim()).await.expect("it answers").jobs[0].lease.token;
    assert!(after.0 > before.0 + 1_000_000_000, "{after:?} {before:?}");
    let late = Settlement::new(id, before, Verdict::Complete);
    let answer = restored.store().settle(vec![late]).await.expect("it answers");
    assert!(matches!(answer[0], Err(windlass::Refusal::LeaseLost { .. })), "{answer:?}");
    engine.close().await;
    restored.close().await;
}
