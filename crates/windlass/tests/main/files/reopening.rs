//! What a store holds when it is opened again, and what becomes of what was running.

use windlass::WorkerOrder;
use windlass::core::ledger::{WorkerInfo, WorkerReport};
use windlass::store::StoreExt as _;

use super::*;

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
async fn a_settlement_is_repeated_after_a_restart() {
    let bench = Bench::new();
    let verdicts = [
        (Verdict::Complete, StateName::Completed),
        (Verdict::Snooze(HOUR), StateName::Scheduled),
        (Verdict::Bury(DeadReason::Permanent), StateName::Dead),
    ];
    let store = bench.open();
    accept(&store, (1..=4).map(job)).await;
    let handed = claim(&store, 4).await.jobs;
    let end = |at: usize, verdict| {
        let ClaimedJob { job, lease, .. } = &handed[at];
        vec![Settlement::new(job.id, lease.token, verdict)]
    };
    for (at, (verdict, state)) in verdicts.into_iter().enumerate() {
        let answer = store.settle(end(at, verdict)).await.expect("answered").remove(0);
        assert_eq!(answer, Ok(Settled { state }));
    }
    drop(store);
    // After a crash, and after it was closed.
    for _ in 0..2 {
        let store = bench.open();
        let before = everything(&store).await;
        for (at, (verdict, state)) in verdicts.into_iter().enumerate() {
            let answer = store.settle(end(at, verdict)).await.expect("answered").remove(0);
            assert_eq!(answer, Ok(Settled { state }), "{verdict:?}");
        }
        // The fourth ran when the process ended, and was given back.
        let answer = store.settle(end(3, Verdict::Complete)).await.expect("answered").remove(0);
        assert_eq!(answer, Err(Refusal::LeaseLost { job: handed[3].job.id }));
        assert_eq!(everything(&store).await, before);
        store.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_filter_means_those_that_match_in_their_chunk_and_none_that_came_later() {
    let bench = Bench::new();
    let disk = Arc::new(RealDisk::open(&bench.path()).expect("it is nobody's"));
    let (mut ledger, _) =
        JournaledLedger::open(disk, &bench.options.ledger, bench.clock.now()).expect("it opens");
    let tagged = |number: u128| {
        let tags = if number.is_multiple_of(2) { vec![name("even")] } else { Vec::new() };
        Arc::new(NewJob { tags, ..job(number) })
    };
    let now = bench.clock.now();
    ledger.apply(Enqueue { jobs: (1..=1_000).map(tagged).collect() }, now).expect("accepted");
    let filter = Filter { tags: vec![name("even")], ..Filter::default() };
    let filter = Filter { states: vec![StateName::Ready], ..filter };
    let (mut progress, mut meant, mut chunks) = (BulkProgress::default(), Vec::new(), 0);
    while !progress.done {
        let chunk = ledger.select(&filter, &mut progress, 100, now).expect("answered");
        assert!(chunk.len() <= 100, "{} jobs in one chunk", chunk.len());
        meant.extend(chunk);
        chunks += 1;
        // Between two chunks: one that was reached and one that was not are called off, and one
        // more is accepted.
        let called_off = vec![id(2), id(1_000 - chunks * 2)];
        ledger.apply(Cancel { jobs: called_off }, now).expect("answered");
        ledger.apply(Enqueue { jobs: vec![tagged(6_000 + chunks * 2)] }, now).expect("accepted");
    }
    assert!(chunks >= 5, "500 jobs of 1,000 were found in {chunks} chunks");
    let gone: Vec<JobId> = (1..chunks).map(|chunk| id(1_000 - chunk * 2)).collect();
    let left = (1..=500).map(|half| id(half * 2)).filter(|job| !gone.contains(job));
    assert_eq!(meant, left.collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_opened_finishes_a_cascade_that_was_cut_short() {
    let bench = Bench::new();
    let store = bench.open();
    let on = vec![Dependency { on: id(1), on_failure: OnFailure::Cascade }];
    let follows = |number: u128| NewJob { depends_on: on.clone(), ..job(number) };
    accept(&store, [job(1)].into_iter().chain((2..=2_501).map(follows))).await;
    let handed = claim(&store, 1).await.jobs.remove(0);
    settle(&store, Settlement::new(handed.job.id, handed.lease.token, Verdict::Complete)).await;
    let blocked = async |store: &FileStore| {
        store.count().await.expect("counted").in_state(StateName::Blocked)
    };
    assert!(blocked(&store).await > 0, "all were released in one commit");
    // Not closed, not dropped: the copy is what a killed process leaves.
    let left = bench.directory.path().join("left");
    copy_directory(&bench.path(), &left);
    let disk = Arc::new(RealDisk::open(&left).expect("the copy is nobody's"));
    let store = bench.open_on(disk).expect("the copy opens");
    assert_eq!(blocked(&store).await, 0);
    assert_eq!(claim(&store, 5_000).await.jobs.len(), 2_500);
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

/// Sets a value, orders a worker to be quiet, and cancels a job, all as anna.
async fn act_as_anna(store: &FileStore) {
    let anna = || Some(windlass::Actor::new("anna").expect("a name"));
    accept(store, [job(1)]).await;
    store.set_value("secret", *b"one", 0, None).await.expect("set");
    store.set_value("secret", *b"two", 1, anna()).await.expect("set");
    store.order_worker("w", Some(WorkerOrder::Quiet), anna()).await.expect("ordered");
    let cancel = AlterJobs::new(Selection::Jobs(vec![id(1)]), JobAction::Cancel);
    store.alter(AlterJobs { by: anna(), ..cancel }).await.expect("cancelled");
}

/// Looks whether what [`act_as_anna`] did is all there.
async fn anna_has_acted(store: &FileStore) {
    let secret = store.value("secret").await.expect("read").expect("it is there");
    assert_eq!((&secret.bytes[..], secret.version), (&b"two"[..], 2));
    let info = WorkerInfo { queues: None, kinds: Vec::new(), slots: 1, quiet: false };
    let heard = store.heartbeat("w".into(), WorkerReport::Alive(info)).await.expect("answered");
    assert_eq!(heard.order, Some(WorkerOrder::Quiet));
    let trail = store.audit(None, 10).await.expect("read").entries;
    let did: Vec<&str> = trail.iter().map(|entry| &*entry.action).collect();
    assert_eq!(did, ["cancel", "turn", "turn"]);
    assert!(trail.iter().all(|entry| entry.by.name() == "anna"), "{trail:?}");
    assert_eq!(trail[0].jobs, 1);
}

#[tokio::test(start_paused = true)]
async fn values_orders_and_the_audit_trail_are_there_after_closing_and_after_a_crash() {
    let bench = Bench::new();
    let store = bench.open();
    act_as_anna(&store).await;
    anna_has_acted(&store).await;
    let left = bench.directory.path().join("left");
    copy_directory(&bench.path(), &left);
    let disk = Arc::new(RealDisk::open(&left).expect("the copy is nobody's"));
    anna_has_acted(&bench.open_on(disk).expect("the copy opens")).await;
    store.close().await;
    anna_has_acted(&bench.open()).await;
}

#[tokio::test(start_paused = true)]
async fn a_backup_carries_values_orders_and_the_audit_trail() {
    let bench = Bench::new();
    let store = bench.open();
    act_as_anna(&store).await;
    let copy = bench.directory.path().join("copy");
    back_up(&bench.path(), &copy).expect("copied");
    let disk = Arc::new(RealDisk::open(&copy).expect("the copy is nobody's"));
    anna_has_acted(&bench.open_on(disk).expect("the copy opens")).await;
    drop(store);
    assert_eq!(windlass::store::file::check(&bench.path()).expect("checked").objects, 0);
}

/// A clock that stands still but for what a slow disk takes.
#[derive(Debug, Default)]
struct SlowReadingClock(AtomicU64);

impl Clock for SlowReadingClock {
    fn now(&self) -> Now {
        let micros = self.0.load(Ordering::SeqCst);
        let wall = Timestamp::from_micros(1_767_225_600_000_000) + Duration::from_micros(micros);
        Now { wall, steady: Steady::from_micros(micros) }
    }

    fn sleep(&self, _: Duration) -> BoxFuture<'static, ()> {
        Box::pin(std::future::pending())
    }
}

/// A disk that takes a minute to open a file.
#[derive(Debug)]
struct SlowDisk(RealDisk, Arc<SlowReadingClock>);

impl Disk for SlowDisk {
    fn list(&self) -> io::Result<Vec<String>> {
        self.0.list()
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.1.0.fetch_add(60_000_000, Ordering::SeqCst);
        self.0.open(name)
    }

    fn create(&self, name: &str, bytes: u64) -> io::Result<Arc<dyn DiskFile>> {
        self.0.create(name, bytes)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.0.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.0.remove(name)
    }

    fn sync_directory(&self) -> io::Result<()> {
        self.0.sync_directory()
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_kept_begins_anew_when_all_was_read() {
    let mut bench = Bench::new();
    let store = bench.open();
    accept(&store, [job(1)]).await;
    claim(&store, 1).await;
    store.close().await;
    drop(store);
    bench.options.ledger.living_workers = BTreeSet::from(["w".into()]);
    let clock = Arc::new(SlowReadingClock::default());
    let disk = RealDisk::open(&bench.path()).expect("nobody has it");
    let disk = Arc::new(SlowDisk(disk, clock.clone()));
    let wake = Arc::new(LocalWake::new());
    let store = FileStore::on_disk(disk, &bench.options, clock.clone(), wake);
    let store = store.expect("it opens");
    assert!(clock.now().steady >= Steady::from_micros(60_000_000), "reading took its time");
    let rescue = Rescue { recovery: Recovery::default(), reason: RecoveryReason::LeaseExpired };
    let rescued = store.rescue(rescue).await.expect("it is answered");
    assert!(rescued.jobs.is_empty(), "its worker lives");
    assert_eq!(rescued.next_in, Some(Duration::from_secs(30)), "the whole lease is left");
}
