//! When an answer is given: after the sync, unless the store is relaxed.

use super::*;

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
async fn a_job_runs_while_its_acceptance_is_synced() {
    let directory = Directory::new();
    let (disk, switches) = Failing::open(&directory.path().join("jobs"));
    let gate = switches.gate.clone();
    gate.set(true);
    let (clock, wake) = (Arc::new(SystemClock::new()), Arc::new(LocalWake::new()));
    let store = FileStore::with_writer(disk, &FileOptions::default(), clock.clone(), wake.clone());
    let store = Arc::new(store.expect("it opens"));
    let engine = Engine::builder().on_store(store, wake, clock).expect("the settings are valid");
    let (ran, mut has_run) = tokio::sync::mpsc::unbounded_channel();
    let run = move |job: Work| {
        let ran = ran.clone();
        async move { ran.send(job.number).map(|()| job.number) }
    };
    let worker = engine.worker().handle(run).poll_interval(HOUR);
    let worker = worker.start().await.expect("it starts");
    // Everything is synced that was to be, and from here on nothing is.
    engine.enqueue(work(1)).await.expect("accepted").outcome().await.expect("it completes");
    assert_eq!(has_run.recv().await, Some(1));
    gate.set(false);
    let enqueuing = engine.clone();
    let mut enqueue = tokio::spawn(async move { enqueuing.enqueue(work(2)).await });
    let started = tokio::time::timeout(20 * SECOND, has_run.recv()).await;
    assert_eq!(started.expect("it runs before the sync has returned"), Some(2));
    for _ in 0..1_000 {
        tokio::task::yield_now().await;
    }
    assert!(!enqueue.is_finished(), "it was acknowledged before the sync");
    gate.set(true);
    let handle = (&mut enqueue).await.expect("no panic").expect("acknowledged");
    assert_eq!(handle.outcome().await.expect("it completes"), 2);
    worker.stop().await.expect("it stops");
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
