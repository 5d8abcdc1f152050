//! Stores written by earlier versions, opened for ever.
//!
//! `tests/golden/format-1/` is a store as format 1 was first written, and `expected.txt` beside it
//! what it holds. A change that can no longer read it, or reads something else, breaks every store
//! there is. To add one for a new format, write it with
//! `WINDLASS_WRITE_GOLDEN=format-2 cargo test -p windlass --test main golden` and never again.

use std::fmt::Write;
use std::fs;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use windlass::core::filter::Filter;
use windlass::core::job::{Lane, NewJob};
use windlass::core::ledger::{Claim, KindClaim, QueueChange, Recovery, RecoveryMode, Renewal};
use windlass::core::object::{Address, Alarm, Purge, Turn};
use windlass::core::record::{LogLine, Report, Step};
use windlass::store::file::{FileOptions, LedgerOptions, RealDisk, check};
use windlass::store::{Durability, FileStore, ObjectFilter, Store, StoreExt};
use windlass::testing::VirtualClock;
use windlass::wake::LocalWake;
use windlass::{JobId, Name, Start, Timestamp};

use crate::common::{Directory, HOUR};
use crate::files::a_life_in_every_state;

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

fn open(path: &Path, clock: &Arc<VirtualClock>) -> FileStore {
    let ledger = LedgerOptions {
        segment_bytes: Some(32 << 10),
        checkpoint_bytes: Some(8 << 10),
        // So that opening changes nothing by itself.
        recovery: Recovery { mode: RecoveryMode::Observe, ..Recovery::default() },
        ..LedgerOptions::default()
    };
    let options = FileOptions { ledger, durability: Durability::Sync };
    let disk = Arc::new(RealDisk::open(path).expect("it is nobody's"));
    FileStore::on_disk(disk, &options, clock.clone(), Arc::new(LocalWake::new())).expect("opens")
}

/// What a life in every state leaves out: lanes and hooks, steps and dropped lines, objects.
async fn lanes_steps_and_objects(store: &FileStore) {
    let queue = || name("laned");
    let dead = QueueChange::OnDead(Some(name("mourn")));
    let lanes = QueueChange::Lanes(NonZeroU32::new(4));
    for change in [lanes, QueueChange::PauseLane(3), QueueChange::LaneDepth(Some(50)), dead] {
        store.configure(queue(), change).await.expect("it is configured");
    }
    let laned = |number, lane| NewJob {
        lane: Some(lane),
        ..NewJob::new(JobId::from_u128(number), name("laned"), queue(), b"in a lane".to_vec())
    };
    let jobs = [laned(5_001, Lane::Key("a".to_string())), laned(5_002, Lane::Spread)];
    store.enqueue(jobs.map(Arc::new).into()).await.expect("they are accepted");
    let kinds = vec![KindClaim::new(name("laned"))];
    let claim = Claim { worker: "w".into(), queues: None, kinds, limit: 1, request: None };
    let handed = store.claim(claim).await.expect("a claim is answered").jobs.remove(0);
    let step = Step { name: name("charge"), result: b"5 cents".as_slice().into() };
    let line = LogLine { at: Timestamp::from_micros(7), attempt: 1, text: "late".to_string() };
    let report = Report { progress: None, lines: vec![line], lines_dropped: 2, steps: vec![step] };
    let (job, token) = (handed.job.id, handed.lease.token);
    let renewal = Renewal { job, token, lease: HOUR, report };
    store.renew(vec![renewal]).await.expect("a renewal is answered").remove(0).expect("held");
    let address = |key| Address::new(name("debounce"), name("pages"), key).expect("an address");
    let wake = NewJob {
        start: Start::After(HOUR),
        object: Some(address("kept")),
        ..NewJob::new(JobId::from_u128(5_003), name("wake"), name("wake"), Vec::new())
    };
    for (key, alarm) in [("kept", Alarm::Set(Arc::new(wake))), ("gone", Alarm::Keep)] {
        let state = Some(key.as_bytes().into());
        let turn = Turn { state, alarm, ..Turn::new(address(key), 0) };
        store.turn(turn).await.expect("a turn is answered");
    }
    let gone = Turn { purge: Purge::Now, ..Turn::new(address("gone"), 1) };
    store.turn(gone).await.expect("a turn is answered");
}

fn name(text: &str) -> Name {
    Name::new(text).expect("the tests use valid names")
}

/// Everything a user can see of a store.
async fn seen(store: &FileStore) -> String {
    let mut text = String::new();
    let page = store.list(&Filter::default(), None, 1_000).await.expect("a list is answered");
    for mut record in page.jobs {
        let mut job = (*record.job).clone();
        let (bytes, print) = (job.payload.len(), job.fingerprint());
        job.payload = Vec::new().into();
        record.job = Arc::new(job);
        writeln!(text, "{bytes} bytes {print:016x} {record:?}").expect("text");
    }
    let objects = store.list_objects(&ObjectFilter::default(), None, 1_000).await.expect("a list");
    for object in objects.objects {
        writeln!(text, "{object:?}").expect("text");
    }
    let counts = store.count().await.expect("counted");
    writeln!(text, "{:#?}\n{:#?}", counts.lines, counts.queues).expect("text");
    text
}

#[tokio::test(start_paused = true)]
async fn stores_of_every_format_so_far_are_read() {
    let asked = std::env::var("WINDLASS_WRITE_GOLDEN").ok();
    if let Some(name) = asked.filter(|name| name.starts_with("format-")) {
        write(&golden().join(name)).await;
    }
    let mut formats = 0;
    for entry in fs::read_dir(golden()).expect("there are some") {
        let format = entry.expect("an entry").path();
        // Messages of a protocol stand beside them; see wire.rs.
        if !format.join("store").exists() {
            continue;
        }
        let directory = Directory::new();
        let copy = directory.path().join("store");
        fs::create_dir(&copy).expect("a directory");
        for file in fs::read_dir(format.join("store")).expect("a store") {
            let file = file.expect("an entry").path();
            fs::copy(&file, copy.join(file.file_name().expect("a name"))).expect("copied");
        }
        // Who had it open is not part of it.
        fs::write(copy.join("lock"), "").expect("written");
        let checked = check(&copy).expect("it is whole");
        assert_eq!(checked.wrong, Vec::<String>::new(), "{}", format.display());
        let store = open(&copy, &Arc::new(VirtualClock::new()));
        let expected = fs::read_to_string(format.join("expected.txt")).expect("what it holds");
        assert_eq!(seen(&store).await, expected, "{}", format.display());
        formats += 1;
    }
    assert!(formats >= 1);
}

async fn write(format: &Path) {
    assert!(!format.exists(), "a golden store is written once");
    fs::create_dir_all(format).expect("a directory");
    let clock = Arc::new(VirtualClock::new());
    let store = open(&format.join("store"), &clock);
    a_life_in_every_state(&store, &clock).await;
    lanes_steps_and_objects(&store).await;
    let seen = seen(&store).await;
    store.close().await;
    // Opened once more, so that what recovery and a checkpoint write is part of it too.
    open(&format.join("store"), &clock).close().await;
    fs::write(format.join("expected.txt"), seen).expect("written");
}
