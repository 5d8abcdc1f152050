//! Full disks: what is refused, what goes on, and how it heals.

use super::*;

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
    let cancels = store.clone();
    let cancels = tokio::spawn(async move {
        let all = Selection::Jobs((1..=5_000).map(id).collect());
        cancels
            .alter(AlterJobs::new(all, JobAction::Cancel))
            .await
            .map_or(0, |altered| altered.len() as u64)
    });
    // A claim does not wait for others, and fails once there is no room.
    let kinds = vec![KindClaim::new(name("other"))];
    let claim = Claim { worker: "w".into(), queues: None, kinds, limit: 1, request: None };
    while store.claim(claim.clone()).await.is_ok() {
        tokio::task::yield_now().await;
    }
    (store, switches, cancels)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_outgrew_a_full_disk_keeps_no_refusal_waiting_and_lands_by_itself() {
    let bench = Bench::new();
    let (store, switches, cancels) = waiting_for_room(&bench).await;
    let answer = in_time(store.enqueue(vec![Arc::new(job(9_000))])).await;
    let full = |refusal: &Refusal| matches!(refusal, Refusal::StoreFull { .. });
    assert!(matches!(&answer, Err(StoreError::Refused(why)) if full(why)), "{answer:?}");
    let counts = store.clone();
    let counts = tokio::spawn(async move { counts.count().await });
    tokio::task::yield_now().await;
    assert!(!cancels.is_finished(), "there is no room for it yet");
    switches.full.store(false, Ordering::SeqCst);
    // From here on nobody calls.
    assert_eq!(in_time(cancels).await.expect("no panic"), 5_000);
    let counted = in_time(counts).await.expect("no panic").expect("counted");
    assert_eq!(counted.in_state(StateName::Cancelled), 5_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_waits_for_room_is_told_when_the_store_is_closed() {
    let bench = Bench::new();
    let (store, _, cancels) = waiting_for_room(&bench).await;
    store.close().await;
    assert_eq!(in_time(cancels).await.expect("no panic"), 0, "it was not acknowledged");
    drop(store);
    let store = bench.open();
    let counted = store.count().await.expect("counted");
    assert_eq!(counted.in_state(StateName::Ready), 5_000, "half of a command is there");
}
