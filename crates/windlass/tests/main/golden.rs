//! Stores written by earlier versions, opened for ever.
//!
//! `tests/golden/format-1/` is a store as format 1 was first written, and `expected.txt` beside it
//! what it holds. A change that can no longer read it, or reads something else, breaks every store
//! there is. To add one for a new format, write it with
//! `WINDLASS_WRITE_GOLDEN=format-2 cargo test -p windlass --test main golden` and never again.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use windlass::core::filter::Filter;
use windlass::core::ledger::{Recovery, RecoveryMode};
use windlass::store::file::{FileOptions, LedgerOptions, RealDisk, check};
use windlass::store::{Durability, FileStore, Store, StoreExt};
use windlass::testing::VirtualClock;
use windlass::wake::LocalWake;

use crate::common::Directory;
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

/// Everything a user can see of a store.
async fn seen(store: &FileStore) -> String {
    let mut text = String::new();
    let page = store.list(&Filter::default(), None, 1_000).await.expect("a list is answered");
    for mut record in page.jobs {
        let mut job = (*record.job).clone();
        let (bytes, print) = (job.payload.len(), job.fingerprint());
        job.payload = Vec::new().into();
        record.job = Arc::new(job);
        // A field that came later says nothing where it is empty.
        let record = format!("{record:?}").replacen(", steps: []", "", 1);
        writeln!(text, "{bytes} bytes {print:016x} {record}").expect("text");
    }
    let counts = store.count().await.expect("counted");
    writeln!(text, "{:#?}\n{:#?}", counts.lines, counts.queues).expect("text");
    as_then(&text)
}

/// Fields that came later, as an older store leaves them.
const LATER: [&str; 2] = [", lane: None, object: None", ", begun: false"];
const LATER_LINES: [&str; 6] = [
    "lanes: None,",
    "paused_lanes: {},",
    "lane_depth: None,",
    "on_dead: None,",
    "on_empty: None,",
    "lanes: [],",
];

/// The text without fields that came later and have nothing in them.
fn as_then(text: &str) -> String {
    let mut then = String::new();
    for line in text.lines().filter(|line| !LATER_LINES.contains(&line.trim())) {
        let line = LATER.iter().fold(line.to_string(), |line, later| line.replace(later, ""));
        writeln!(then, "{line}").expect("text");
    }
    then
}

#[tokio::test(start_paused = true)]
async fn stores_of_every_format_so_far_are_read() {
    if let Ok(name) = std::env::var("WINDLASS_WRITE_GOLDEN") {
        write(&golden().join(name)).await;
    }
    let mut formats = 0;
    for entry in fs::read_dir(golden()).expect("there are some") {
        let format = entry.expect("an entry").path();
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
    let seen = seen(&store).await;
    store.close().await;
    // Opened once more, so that what recovery and a checkpoint write is part of it too.
    open(&format.join("store"), &clock).close().await;
    fs::write(format.join("expected.txt"), seen).expect("written");
}
