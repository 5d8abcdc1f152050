//! What the file store owes to its disk: no token beyond what is durable, nothing written after a
//! failure, nobody left who uses it once the store is closed. On a disk in memory that loses what
//! was not synced, fails when the test says so, and counts who uses it.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use windlass::clock::{BoxFuture, Clock};
use windlass::core::job::{LeaseToken, NewJob};
use windlass::core::ledger::{Claim, KindClaim, QueueChange, Settlement};
use windlass::core::outcome::Verdict;
use windlass::core::time::Now;
use windlass::store::file::{Disk, DiskFile, FileOptions, LedgerOptions};
use windlass::store::{Answer, ClaimedBatch, Durability, FileStore, Store, StoreExt};
use windlass::wake::LocalWake;
use windlass::{JobId, Name};

use crate::common::HOUR;
use crate::files::Still;

/// A mark that everything has landed: of exactly so many bytes, which no commit with a change has.
/// Nothing depends on it, so nobody is told when it cannot be written.
const SEAL_BYTES: usize = 96;

#[derive(Clone, Debug, Default)]
struct Content {
    bytes: Vec<u8>,
    /// What stood where before each write that is not durable yet.
    unsynced: Vec<(usize, Vec<u8>)>,
    /// The same for writes that a failed sync has dropped: they can be read, and never become
    /// durable, however often the system is asked.
    dropped: Vec<(usize, Vec<u8>)>,
}

impl Content {
    /// What the plug leaves of it.
    fn durable(&self) -> Self {
        let mut bytes = self.bytes.clone();
        for (at, before) in self.unsynced.iter().rev().chain(self.dropped.iter().rev()) {
            bytes[*at..*at + before.len()].copy_from_slice(before);
        }
        Self { bytes, ..Self::default() }
    }
}

#[derive(Clone, Debug, Default)]
struct Platter {
    names: BTreeMap<String, u64>,
    files: BTreeMap<u64, Content>,
    next_file: u64,
    /// How many writes and syncs of commits go well before one fails; `None` if none is to fail.
    good: Option<u64>,
    failed: bool,
    /// Writes and syncs since that failure.
    after_failure: u64,
}

impl Platter {
    /// Counts a write or a sync. Is it the one that fails?
    fn act(&mut self, is_seal: bool) -> io::Result<()> {
        self.after_failure += u64::from(self.failed);
        match self.good {
            _ if is_seal || self.failed => Ok(()),
            Some(0) => {
                self.failed = true;
                Err(io::Error::other("EIO"))
            }
            Some(good) => {
                self.good = Some(good - 1);
                Ok(())
            }
            None => Ok(()),
        }
    }
}

/// A disk in memory.
#[derive(Debug, Default)]
pub(crate) struct Plate {
    platter: Arc<Mutex<Platter>>,
    /// Syncs wait for this.
    gate: Arc<Gate>,
    /// And for this the writes of the writer thread.
    writer_gate: Arc<Gate>,
    /// Making a spare file takes until someone has looked, or for very long.
    lingers: AtomicBool,
    looked: AtomicBool,
}

/// Whoever comes waits while it is shut.
#[derive(Debug, Default)]
struct Gate {
    shut: Mutex<bool>,
    opened: Condvar,
    reached: tokio::sync::Notify,
}

impl Gate {
    fn shut(&self, shut: bool) {
        *self.shut.lock().expect("nobody panics here") = shut;
        self.opened.notify_all();
    }

    fn pass(&self) {
        let mut shut = self.shut.lock().expect("nobody panics here");
        if *shut {
            self.reached.notify_one();
        }
        while *shut {
            shut = self.opened.wait(shut).expect("nobody panics here");
        }
    }
}

impl Plate {
    fn platter(&self) -> MutexGuard<'_, Platter> {
        self.platter.lock().expect("nobody panics here")
    }

    /// A disk as the machine finds it after the plug was pulled now.
    fn unplugged(&self) -> Arc<Self> {
        let mut platter = self.platter().clone();
        platter.files.values_mut().for_each(|content| *content = content.durable());
        (platter.good, platter.failed, platter.after_failure) = (None, false, 0);
        Arc::new(Self { platter: Arc::new(Mutex::new(platter)), ..Self::default() })
    }

    fn handle(&self, file: u64) -> Arc<dyn DiskFile> {
        let (gate, writer_gate) = (self.gate.clone(), self.writer_gate.clone());
        Arc::new(File { platter: self.platter.clone(), gate, writer_gate, file })
    }
}

fn missing() -> io::Error {
    io::Error::from(io::ErrorKind::NotFound)
}

impl Disk for Plate {
    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.platter().names.keys().cloned().collect())
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let file = self.platter().names.get(name).copied();
        file.map(|file| self.handle(file)).ok_or_else(missing)
    }

    fn create(&self, name: &str, bytes: u64) -> io::Result<Arc<dyn DiskFile>> {
        if self.lingers.load(Ordering::SeqCst) {
            for _ in 0..20_000 {
                if self.looked.load(Ordering::SeqCst) {
                    break;
                }
                std::thread::yield_now();
            }
        }
        let mut platter = self.platter();
        platter.next_file += 1;
        let (file, size) = (platter.next_file, usize::try_from(bytes).map_err(io::Error::other)?);
        platter.files.insert(file, Content { bytes: vec![0; size], ..Content::default() });
        platter.names.insert(name.to_string(), file);
        drop(platter);
        Ok(self.handle(file))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut platter = self.platter();
        let file = platter.names.remove(from).ok_or_else(missing)?;
        platter.names.insert(to.to_string(), file);
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.platter().names.remove(name).map(drop).ok_or_else(missing)
    }

    fn sync_directory(&self) -> io::Result<()> {
        self.platter().act(false)
    }
}

#[derive(Debug)]
struct File {
    platter: Arc<Mutex<Platter>>,
    gate: Arc<Gate>,
    writer_gate: Arc<Gate>,
    file: u64,
}

impl File {
    fn with<T>(
        &self,
        work: impl FnOnce(&mut Platter, u64) -> Result<T, io::Error>,
    ) -> io::Result<T> {
        work(&mut self.platter.lock().expect("nobody panics here"), self.file)
    }
}

fn content(platter: &mut Platter, file: u64) -> io::Result<&mut Content> {
    platter.files.get_mut(&file).ok_or_else(missing)
}

fn start(at: u64) -> usize {
    usize::try_from(at).expect("it is in memory")
}

impl DiskFile for File {
    fn size(&self) -> io::Result<u64> {
        self.with(|platter, file| Ok(content(platter, file)?.bytes.len() as u64))
    }

    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<()> {
        self.with(|platter, file| {
            let bytes = content(platter, file)?.bytes.get(start(at)..start(at) + buffer.len());
            buffer.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
            Ok(())
        })
    }

    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        if is_writer() && bytes.len() != SEAL_BYTES {
            self.writer_gate.pass();
        }
        self.with(|platter, file| {
            platter.act(bytes.len() == SEAL_BYTES)?;
            let content = content(platter, file)?;
            let place = content.bytes.get_mut(start(at)..start(at) + bytes.len());
            let place = place.ok_or(io::ErrorKind::UnexpectedEof)?;
            content.unsynced.push((start(at), place.to_vec()));
            place.copy_from_slice(bytes);
            Ok(())
        })
    }

    fn sync(&self) -> io::Result<()> {
        self.gate.pass();
        self.with(|platter, file| {
            let synced = platter.act(false);
            let content = content(platter, file)?;
            let unsynced = std::mem::take(&mut content.unsynced);
            if synced.is_err() {
                content.dropped.extend(unsynced);
            }
            synced
        })
    }
}

fn is_writer() -> bool {
    std::thread::current().name() == Some("windlass-writer")
}

fn name(text: &str) -> Name {
    Name::new(text).expect("the tests use valid names")
}

fn job(number: u128, bytes: usize) -> Arc<NewJob> {
    let id = JobId::from_u128(number);
    Arc::new(NewJob::new(id, name("work"), name("default"), vec![b'x'; bytes]))
}

fn claim() -> Claim {
    let kinds = vec![KindClaim::new(name("work"))];
    Claim { worker: "w".into(), queues: None, kinds, limit: 1, request: None }
}

/// Few tokens ahead, so that they run out; small segments, so that there are several.
fn options(durability: Durability) -> FileOptions {
    let ledger = LedgerOptions {
        segment_bytes: Some(16 << 10),
        tokens_ahead: Some(8),
        ..LedgerOptions::default()
    };
    FileOptions { ledger, durability }
}

/// A clock that stands still, and tells when someone other than the writer reads it: whoever calls
/// the store does, with the ledger locked.
#[derive(Debug, Default)]
struct Telling {
    still: Still,
    read: tokio::sync::Notify,
}

impl Clock for Telling {
    fn now(&self) -> Now {
        if !is_writer() {
            self.read.notify_one();
        }
        self.still.now()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.still.sleep(duration)
    }
}

/// With a writer thread, or without any.
fn open(disk: Arc<Plate>, durability: Durability, threaded: bool) -> FileStore {
    let (clock, wake) = (Arc::new(Still::default()), Arc::new(LocalWake::new()));
    let open = if threaded { FileStore::with_writer } else { FileStore::on_disk };
    open(disk, &options(durability), clock, wake).expect("it opens")
}

/// A disk with a closed store on it, that has so many jobs to claim.
async fn filled(jobs: u128) -> Arc<Plate> {
    let disk = Arc::new(Plate::default());
    let store = open(disk.clone(), Durability::Sync, false);
    store.enqueue((1..=jobs).map(|n| job(n, 1)).collect()).await.expect("they are accepted");
    store.close().await;
    disk
}

/// The first token that a store hands out that is opened on this disk.
async fn next_token(disk: Arc<Plate>) -> LeaseToken {
    let store = open(disk, Durability::Sync, false);
    let handed = store.claim(claim()).await.expect("it is answered");
    handed.jobs.first().expect("there are more jobs than claims").lease.token
}

#[tokio::test(start_paused = true)]
async fn however_relaxed_a_store_no_lease_token_comes_twice() {
    let disk = filled(100).await;
    let store = open(disk.clone(), Durability::Relaxed(HOUR), true);
    for claimed in 1..=30 {
        let handed = store.claim(claim()).await.expect("it is answered");
        let last = handed.jobs[0].lease.token;
        let next = next_token(disk.unplugged()).await;
        assert!(next > last, "{next:?} after {last:?}, claim {claimed}");
    }
}

/// The answer, if there is one already.
fn now<T>(future: impl Future<Output = Answer<T>>) -> Option<Answer<T>> {
    match std::pin::pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => Some(answer),
        Poll::Pending => None,
    }
}

#[tokio::test(start_paused = true)]
async fn while_the_disk_hangs_no_claim_is_answered_beyond_what_a_reopened_store_skips() {
    let disk = filled(100).await;
    for durability in [Durability::Sync, Durability::Relaxed(HOUR)] {
        let disk = disk.unplugged();
        let store = open(disk.clone(), durability, true);
        disk.gate.shut(true);
        let answers: Vec<Answer<ClaimedBatch>> =
            (0..30).map_while(|_| now(store.claim(claim()))).collect();
        let found = disk.unplugged();
        // Before anything is said of it: a store that is dropped waits for its disk.
        disk.gate.shut(false);
        assert!(!answers.is_empty(), "the first need not wait for the disk");
        let token =
            |answer: Answer<ClaimedBatch>| answer.expect("it is answered").jobs[0].lease.token;
        let claims = answers.len();
        let last = answers.into_iter().map(token).max();
        let next = next_token(found).await;
        assert!(Some(next) > last, "{next:?} after {last:?}, {claims} claims");
    }
}

#[tokio::test(start_paused = true)]
async fn a_closed_store_leaves_nobody_behind_who_uses_its_disk() {
    // A disk that is being made ready for more: when the first segment is half full.
    for _ in 0..20 {
        let disk = Arc::new(Plate::default());
        let store = open(disk.clone(), Durability::Sync, true);
        disk.lingers.store(true, Ordering::SeqCst);
        store.enqueue(vec![job(1, 10 << 10)]).await.expect("it is accepted");
        store.close().await;
        let users = Arc::strong_count(&disk) - 1;
        disk.looked.store(true, Ordering::SeqCst);
        assert_eq!(users, 0, "someone still writes");
        let spares = disk.list().expect("there is one");
        assert!(spares.iter().any(|name| name.starts_with("spare")), "{spares:?}");
    }
}

/// Enqueues, claims and completes jobs until one call fails. Returns the jobs that were
/// acknowledged, and whether all went well.
async fn live(store: &FileStore) -> (Vec<JobId>, bool) {
    let mut acknowledged = Vec::new();
    for number in 1..=8 {
        // Every third needs a new segment.
        let job = job(number, 5_000);
        let id = job.id;
        if store.enqueue(vec![job]).await.is_err() {
            return (acknowledged, false);
        }
        acknowledged.push(id);
        let Ok(handed) = store.claim(claim()).await else { return (acknowledged, false) };
        let lease = &handed.jobs[0].lease;
        let settlement = Settlement::new(id, lease.token, Verdict::Complete);
        if !store.settle(vec![settlement]).await.is_ok_and(|answers| answers[0].is_ok()) {
            return (acknowledged, false);
        }
    }
    (acknowledged, true)
}

#[tokio::test(start_paused = true)]
async fn after_one_failed_write_or_sync_nothing_is_written_any_more() {
    let modes =
        [(Durability::Sync, true), (Durability::Relaxed(HOUR), true), (Durability::Sync, false)];
    for (durability, threaded) in modes {
        for good in 0.. {
            let case = format!("{durability:?}, threads: {threaded}, after {good}");
            let disk = Arc::new(Plate::default());
            let store = open(disk.clone(), durability, threaded);
            disk.platter().good = Some(good);
            let (acknowledged, all_well) = live(&store).await;
            if !disk.platter().failed {
                assert!(all_well && good > 20, "{case}: {} jobs", acknowledged.len());
                break;
            }
            // The disk is well again, and the store must not believe it.
            let _ = store.enqueue(vec![job(99, 1)]).await.expect_err("nothing is accepted");
            let _ = store.claim(claim()).await.expect_err("nothing is handed out");
            let _ = store.find(&acknowledged).await.expect_err("nothing is shown");
            let pause = store.configure(name("default"), QueueChange::Pause).await;
            let _ = pause.expect_err("nothing is changed");
            store.close().await;
            drop(store);
            assert_eq!(disk.platter().after_failure, 0, "{case}: it wrote on");
            if durability == Durability::Sync {
                let reopened = open(disk.unplugged(), durability, false);
                let found = reopened.find(&acknowledged).await.expect("they can be read");
                assert!(found.iter().all(Option::is_some), "{case}: an acknowledged job is gone");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_waits_behind_a_commit_that_fails_is_not_written() {
    let disk = filled(1).await;
    let (clock, wake) = (Arc::new(Telling::default()), Arc::new(LocalWake::new()));
    let options = options(Durability::Sync);
    let store = FileStore::with_writer(disk.clone(), &options, clock.clone(), wake);
    let store = Arc::new(store.expect("it opens"));
    disk.platter().good = Some(0);
    disk.writer_gate.shut(true);
    let (one, other) = (store.clone(), store.clone());
    let enqueue = tokio::spawn(async move { one.enqueue(vec![job(2, 1)]).await });
    disk.writer_gate.reached.notified().await;
    // Whoever reads the clock from now on is the claim; it has the ledger until it is written.
    let _ = tokio::time::timeout(Duration::ZERO, clock.read.notified()).await;
    let runtime = tokio::runtime::Handle::current();
    let claim = tokio::task::spawn_blocking(move || runtime.block_on(other.claim(claim())));
    clock.read.notified().await;
    disk.writer_gate.shut(false);
    let _ = claim.await.expect("no panic").expect_err("it was not written");
    let _ = enqueue.await.expect("no panic").expect_err("it was not written");
    assert_eq!(disk.platter().after_failure, 0, "it wrote on");
}
