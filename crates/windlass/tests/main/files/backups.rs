//! Backups, of a store that may be in use, and what is restored from them.

use super::*;

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
        request: None,
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
        request: None,
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
