//! Disks that fail and calls that crash: nothing is believed, and nobody waits for ever.

use super::*;

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
    let claim = Claim { worker: "w".into(), queues: None, kinds, limit: 1, request: None };
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
