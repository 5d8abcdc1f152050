//! What the writer thread of a store owes to those who do not ask: a sync, a ring.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use windlass::clock::SystemClock;
use windlass::core::job::NewJob;
use windlass::store::file::{Disk, DiskFile, FileOptions, LedgerOptions, RealDisk};
use windlass::store::{Durability, FileStore, Store};
use windlass::wake::{Interest, LocalWake, Wake};
use windlass::{JobId, Name};

use crate::common::Directory;

/// Counts syncs, and tells of each.
#[derive(Debug, Default)]
struct Syncs {
    count: AtomicU64,
    lock: Mutex<()>,
    told: Condvar,
}

impl Syncs {
    fn add(&self) {
        let _guard = self.lock.lock().expect("nobody panics here");
        self.count.fetch_add(1, Ordering::SeqCst);
        self.told.notify_all();
    }

    fn get(&self) -> u64 {
        self.count.load(Ordering::SeqCst)
    }

    /// Waits for the next one. The deadline is only for a test that would never end.
    fn wait_beyond(&self, seen: u64) -> bool {
        let guard = self.lock.lock().expect("nobody panics here");
        let deadline = Duration::from_secs(60);
        let waited = self.told.wait_timeout_while(guard, deadline, |()| self.get() <= seen);
        !waited.expect("nobody panics here").1.timed_out()
    }
}

#[derive(Debug)]
struct Watched(RealDisk, Arc<Syncs>);

#[derive(Debug)]
struct WatchedFile(Arc<dyn DiskFile>, Arc<Syncs>);

impl Watched {
    fn file(&self, file: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
        Arc::new(WatchedFile(file, self.1.clone()))
    }
}

impl Disk for Watched {
    fn list(&self) -> io::Result<Vec<String>> {
        self.0.list()
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        Ok(self.file(self.0.open(name)?))
    }

    fn create(&self, name: &str, bytes: u64) -> io::Result<Arc<dyn DiskFile>> {
        Ok(self.file(self.0.create(name, bytes)?))
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

impl DiskFile for WatchedFile {
    fn size(&self) -> io::Result<u64> {
        self.0.size()
    }

    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<()> {
        self.0.read_at(buffer, at)
    }

    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.0.write_at(bytes, at)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync()?;
        self.1.add();
        Ok(())
    }
}

fn job(number: u128) -> Arc<NewJob> {
    let name = |text| Name::new(text).expect("it is valid");
    Arc::new(NewJob::new(JobId::from_u128(number), name("work"), name("default"), b"1".to_vec()))
}

/// A relaxed store that has answered and not synced since, and how often it had then.
async fn answered_before_its_sync(store: &FileStore, syncs: &Syncs) -> u64 {
    for number in 1.. {
        let seen = syncs.get();
        store.enqueue(vec![job(number)]).await.expect("it is accepted");
        if syncs.get() == seen {
            return seen;
        }
    }
    unreachable!("there is always another number")
}

fn open(directory: &Directory, every: Duration) -> (FileStore, Arc<Syncs>) {
    let syncs = Arc::new(Syncs::default());
    let disk = RealDisk::open(&directory.path().join("store")).expect("it is nobody's");
    let disk = Arc::new(Watched(disk, syncs.clone()));
    let options =
        FileOptions { ledger: LedgerOptions::default(), durability: Durability::Relaxed(every) };
    let clock = Arc::new(SystemClock::new());
    let store = FileStore::with_writer(disk, &options, clock, Arc::new(LocalWake::new()));
    (store.expect("it opens"), syncs)
}

// A real thread syncs here, so time is real.
#[tokio::test(flavor = "current_thread")]
async fn a_relaxed_store_that_nobody_asks_anything_syncs_what_it_has_answered() {
    let directory = Directory::new();
    let (store, syncs) = open(&directory, Duration::from_millis(200));
    let seen = answered_before_its_sync(&store, &syncs).await;
    let synced = tokio::task::spawn_blocking(move || syncs.wait_beyond(seen)).await;
    assert!(synced.expect("it does not panic"), "what was answered was never synced");
}

// A real thread syncs here, so time is real.
#[tokio::test(flavor = "current_thread")]
async fn a_relaxed_store_syncs_what_it_has_answered_when_it_is_closed() {
    let directory = Directory::new();
    let (store, syncs) = open(&directory, Duration::from_secs(86_400));
    let seen = answered_before_its_sync(&store, &syncs).await;
    store.close().await;
    assert!(syncs.get() > seen, "it was closed without a sync");
}

// A real thread syncs here, so time is real.
#[tokio::test(flavor = "current_thread")]
async fn whoever_listens_is_rung_by_a_store_with_a_writer() {
    let directory = Directory::new();
    let disk = Arc::new(RealDisk::open(&directory.path().join("store")).expect("nobody has it"));
    let (clock, wake) = (Arc::new(SystemClock::new()), Arc::new(LocalWake::new()));
    let options = FileOptions::default();
    let store = FileStore::with_writer(disk, &options, clock, wake.clone()).expect("it opens");
    let mut listener = wake.listen(Interest::Queues(None));
    store.enqueue(vec![job(1)]).await.expect("it is accepted");
    // The deadline is only for a test that would never end.
    let rung = tokio::time::timeout(Duration::from_secs(60), listener.heard()).await;
    assert!(rung.is_ok(), "nobody was rung");
}
