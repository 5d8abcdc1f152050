//! Every store passes the public suite.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use windlass::Limits;
use windlass::conformance::{Broken, Harness, cases, run, wakes};
use windlass::store::file::{FileOptions, LedgerOptions, RealDisk};
use windlass::store::{Durability, FileStore, MemoryStore, Store};
use windlass::testing::VirtualClock;
use windlass::wake::LocalWake;

use crate::common::Directory;

struct Memory {
    clock: Arc<VirtualClock>,
}

#[async_trait]
impl Harness for Memory {
    async fn fresh(&self, limits: Limits) -> Arc<dyn Store> {
        Arc::new(MemoryStore::new(limits, self.clock.clone(), Arc::new(LocalWake::new())))
    }

    async fn advance(&self, by: Duration) {
        tokio::time::advance(by).await;
    }
}

/// File stores in directories of their own. Every commit goes through the disk, and every read
/// comes back from it.
struct Files {
    clock: Arc<VirtualClock>,
    directory: Directory,
    made: AtomicUsize,
}

#[async_trait]
impl Harness for Files {
    async fn fresh(&self, limits: Limits) -> Arc<dyn Store> {
        let made = self.made.fetch_add(1, Ordering::SeqCst);
        let path = self.directory.path().join(made.to_string());
        let disk = Arc::new(RealDisk::open(&path).expect("opens"));
        let ledger = LedgerOptions { limits, segment_bytes: Some(64 << 10), ..Default::default() };
        // What the suite proves is the rules, not the syncs.
        let options = FileOptions { ledger, durability: Durability::Relaxed(Duration::MAX) };
        let wake = Arc::new(LocalWake::new());
        Arc::new(FileStore::on_disk(disk, &options, self.clock.clone(), wake).expect("opens"))
    }

    async fn advance(&self, by: Duration) {
        tokio::time::advance(by).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_memory_store_keeps_every_promise_of_the_suite() {
    check(Arc::new(Memory { clock: Arc::new(VirtualClock::new()) })).await;
}

#[tokio::test(start_paused = true)]
async fn the_file_store_keeps_every_promise_of_the_suite() {
    let clock = Arc::new(VirtualClock::new());
    let directory = Directory::new();
    check(Arc::new(Files { clock, directory, made: AtomicUsize::new(0) })).await;
}

/// A wake within one process, which has no connection to lose.
struct Local;

#[async_trait]
impl wakes::WakeHarness for Local {
    async fn pair(&self) -> wakes::Pair {
        let wake = Arc::new(LocalWake::new());
        wakes::Pair { here: wake.clone(), there: wake, cut: None }
    }
}

#[tokio::test(start_paused = true)]
async fn the_local_wake_keeps_every_promise_of_the_suite() {
    none_of(wakes::cases().len(), wakes::run(Arc::new(Local)).await);
}

async fn check(harness: Arc<dyn Harness>) {
    none_of(cases().len(), run(harness).await);
}

#[track_caller]
fn none_of(cases: usize, broken: Vec<Broken>) {
    let told: Vec<String> =
        broken.iter().map(|broken| format!("{}: {}", broken.name, broken.seen)).collect();
    assert!(broken.is_empty(), "{} of {cases} broken:\n{}", broken.len(), told.join("\n"));
}
