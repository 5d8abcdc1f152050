//! How a journal stays small and short to read: compaction and checkpoints.

use super::*;

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
async fn compaction_goes_in_small_commits_however_much_it_has_to_copy() {
    let mut bench = Bench::new();
    bench.options.ledger.segment_bytes = Some(4 << 20);
    bench.options.ledger.limits = Limits { history_jobs: 50, ..Limits::default() };
    let store = bench.open();
    for batch in 0..30u128 {
        let large = |each| NewJob { payload: vec![3; 2_000].into(), ..job(batch * 1_000 + each) };
        accept(&store, (0..1_000).map(large)).await;
    }
    // Every second one leaves, so that half of every segment is alive.
    let (mut copied, mut largest) = (0, 0);
    for part in 0..5u128 {
        let before = store.space();
        let jobs = (0..3_000).map(|each| id((part * 3_000 + each) * 2)).collect();
        store
            .alter(AlterJobs::new(Selection::Jobs(jobs), JobAction::Cancel))
            .await
            .expect("they are cancelled");
        let after = store.space();
        let (written, syncs) = (after.written - before.written, after.syncs - before.syncs);
        (copied, largest) = (copied + written, largest.max(written / syncs));
    }
    assert!(copied > 10 << 20, "{copied} bytes: that is too little to have been compacted");
    assert!(largest < 600 << 10, "{largest} bytes in a commit, on average");
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
