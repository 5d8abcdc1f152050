//! The file store: a directory that survives the plug.
//!
//! Calls decide at once, under a lock, and put what they changed into the commit that is being
//! gathered. One writer thread takes that commit, writes it, waits until it is on stable storage,
//! and only then are the calls answered; meanwhile the next commit gathers. So the number of
//! syncs, which is what a disk is slow at, does not grow with the number of callers.
//!
//! - A claim is written before it is answered, so that a start is counted whatever the job does to
//!   its process; it does not wait for the disk. Losing one with the power only means that the job
//!   runs again, with that start uncounted.
//! - Everything else waits, reads and refusals too: nothing is told that a crash could undo.
//! - After a failed write or sync nothing is known, and everything is refused until reopened.

mod codec;
mod copy;
mod disk;
mod journal;
mod layout;
mod ledger;
pub(in crate::store) mod moving;
mod offline;
mod scan;

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread::JoinHandle;
use std::time::Duration;

use async_trait::async_trait;
use ledger::ASK_AGAIN;
// For tests and simulations that drive a ledger by hand; no part of the contract.
pub use copy::{Checked, Copied, back_up, check};
pub use disk::{Disk, DiskFile, RealDisk};
#[doc(hidden)]
pub use journal::{Retired, WantedSpare};
pub use ledger::LedgerOptions;
#[doc(hidden)]
pub use ledger::{Commit, JournaledLedger, Need, SelectionProgress, Size};
pub use offline::OfflineStore;
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};
use windlass_core::event::Event;
use windlass_core::explain::Explanation;
use windlass_core::job::{JobId, NewJob};
use windlass_core::ledger::{
    Alter, Claim, Clear, Command, Configure, Counts, Enqueue, Enqueued, Heartbeat, Promote,
    Promoted, Renew, Renewal, Renewed, Rescue, Rescued, Ring, Settle, Settled, Settlement, Turned,
    WorkerReport,
};
use windlass_core::limits;
use windlass_core::name::Name;
use windlass_core::object::{Alarm, Turn};
use windlass_core::refusal::Refusal;
use windlass_core::time::{Now, Steady};

use super::{
    Answer, ClaimedBatch, Durability, JobAction, JobActionResult, JobQuery, ObjectPage,
    ObjectQuery, Opened, Page, QueueAction, QueueActionDone, Selection, Space, Store, StoreError,
    StoreInfo, events_within,
};
use crate::clock::Clock;
use crate::wake::Wake;

/// Why a store could not be opened. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Another process has it open.
    #[error("the store at {path} is in use by {holder}; stop it first, or choose another path")]
    InUse {
        /// Where.
        path: String,
        /// Which process.
        holder: String,
    },

    /// There is nothing to open.
    #[error("there is no store at {path}; check the path")]
    NoStore {
        /// Where.
        path: String,
    },

    /// A move into it was interrupted.
    #[error(
        "a move into this store is not finished; run the same `windlass move` again, or remove the \
         directory"
    )]
    HalfMoved,

    /// It must hold no store, and does.
    #[error("{path} holds a store already; name a directory that is empty or not there yet")]
    NotEmpty {
        /// Where.
        path: String,
    },

    /// Something that was once on stable storage can no longer be read.
    #[error(
        "the store is damaged: {file} at byte {at}: {why}. Nothing was changed; \
         `windlass doctor` tells more, and a backup brings it back"
    )]
    Damaged {
        /// Which file.
        file: String,
        /// Which byte of it.
        at: u64,
        /// In which way.
        why: String,
    },

    /// A later version wrote it.
    #[error(
        "the store has format {version}, and this program reads formats up to {known}; \
         use a newer version of Windlass"
    )]
    Newer {
        /// Its format.
        version: u32,
        /// The newest format this program knows.
        known: u32,
    },

    /// The disk refused.
    #[error("cannot {doing} {path}: {why}{}", remedy(why))]
    Io {
        /// What was being done.
        doing: &'static str,
        /// With what.
        path: String,
        /// Why not.
        why: std::io::Error,
    },

    /// What was running could not be recovered.
    #[error("cannot recover the jobs that were running: {why}")]
    Recovery {
        /// Why not.
        why: String,
    },
}

impl OpenError {
    fn io(path: &Path, doing: &'static str, why: std::io::Error) -> Self {
        Self::Io { doing, path: path.display().to_string(), why }
    }

    fn disk(doing: &'static str, why: std::io::Error) -> Self {
        Self::Io { doing, path: "of the store".to_string(), why }
    }

    fn full(journal::Full(why): journal::Full) -> Self {
        Self::disk("make room for a segment", why)
    }

    /// Whether a store of this very process has it.
    pub(crate) fn is_in_use_here(&self) -> bool {
        let us = format!("process {} ", std::process::id());
        matches!(self, Self::InUse { holder, .. } if holder.starts_with(&us))
    }

    fn damaged(file: &str, at: u64, why: &str) -> Self {
        Self::Damaged { file: file.to_string(), at, why: why.to_string() }
    }
}

/// What can be done about it, where the system's own words do not say.
fn remedy(why: &std::io::Error) -> &'static str {
    use std::io::ErrorKind as Kind;
    // Our own words say what to do.
    if why.raw_os_error().is_none() && why.get_ref().is_some() {
        return "";
    }
    match why.kind() {
        Kind::PermissionDenied => {
            "; a store needs a directory that this process may read and write: change its mode or \
             owner, or choose another path"
        }
        Kind::ReadOnlyFilesystem => {
            "; a store must be able to write: mount it for writing, or choose another path"
        }
        Kind::StorageFull | Kind::QuotaExceeded => "; free some space, or choose another path",
        Kind::NotADirectory | Kind::AlreadyExists => {
            "; a file stands where a directory is needed: remove it, or choose another path"
        }
        _ => "",
    }
}

/// How a file store is opened.
#[derive(Clone, Debug)]
pub struct FileOptions {
    /// Limits, recovery, segment size.
    pub ledger: LedgerOptions,
    /// When an answer may be given.
    pub durability: Durability,
}

impl Default for FileOptions {
    fn default() -> Self {
        Self { ledger: LedgerOptions::default(), durability: Durability::Sync }
    }
}

/// Keeps jobs in a directory. See the module documentation.
pub struct FileStore {
    shared: Arc<StoreShared>,
    opened: Arc<Opened>,
    writer: Mutex<Option<JoinHandle<()>>>,
    /// What it is called; the lock itself goes when the store is closed.
    disk: String,
}

#[derive(Debug)]
struct StoreShared {
    state: Mutex<CommitState>,
    /// Held while a commit is written, and taken with the ledger in hand: so commits are written in
    /// their order. Says whether one could not be written: then none after it is.
    order: Mutex<bool>,
    /// There is something for the writer to do.
    work: Condvar,
    told: EventBuffer,
    clock: Arc<dyn Clock>,
    wake: Arc<dyn Wake>,
    durability: Durability,
    /// For rings that cannot be given at once; `None` for a store without a writer thread.
    runtime: Option<Handle>,
}

/// The ledger, and who waits for which commit.
#[derive(Debug)]
struct CommitState {
    /// `None` once closed.
    ledger: Option<JournaledLedger>,
    /// Who waits, by the commit that must have landed.
    waiting: VecDeque<(u64, CommitWaiter)>,
    /// Commits that were written and not yet synced.
    written: Vec<Commit>,
    /// The last commit of which callers were told: it has landed, or need not have.
    answered: u64,
    /// How many calls there have been.
    calls: u64,
    writer_sleeps: bool,
    closing: bool,
}

type CommitWaiter = oneshot::Sender<Result<(), Arc<str>>>;

/// Events that have been committed.
#[derive(Debug)]
struct EventBuffer {
    events: Mutex<VecDeque<Arc<Event>>>,
    committed: watch::Sender<u64>,
}

/// A commit could not be made durable.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct NotLanded(Arc<str>);

impl FileStore {
    /// Opens the directory at `path`, making it if need be, and starts the writer thread. What was
    /// running when it was last open has been recovered, durably, when this returns.
    ///
    /// Blocks while it reads; must be called within a tokio runtime.
    pub fn open(
        path: &Path,
        options: &FileOptions,
        clock: Arc<dyn Clock>,
        wake: Arc<dyn Wake>,
    ) -> Result<Self, OpenError> {
        let disk = Arc::new(RealDisk::open(path)?);
        Self::with_writer(disk, options, clock, wake)
    }

    /// Opens a store on a disk of your own, with a writer thread; within a tokio runtime.
    pub fn with_writer(
        disk: Arc<dyn Disk>,
        options: &FileOptions,
        clock: Arc<dyn Clock>,
        wake: Arc<dyn Wake>,
    ) -> Result<Self, OpenError> {
        Self::start(disk, options, clock, wake, Some(Handle::current()))
    }

    /// Opens a store on a disk of your own, with no thread: every call writes and syncs by itself,
    /// however relaxed the store is. For tests on virtual time and simulated disks.
    pub fn on_disk(
        disk: Arc<dyn Disk>,
        options: &FileOptions,
        clock: Arc<dyn Clock>,
        wake: Arc<dyn Wake>,
    ) -> Result<Self, OpenError> {
        Self::start(disk, options, clock, wake, None)
    }

    fn start(
        disk: Arc<dyn Disk>,
        options: &FileOptions,
        clock: Arc<dyn Clock>,
        wake: Arc<dyn Wake>,
        runtime: Option<Handle>,
    ) -> Result<Self, OpenError> {
        let called = format!("{disk:?}");
        let began = clock.now().steady;
        let (mut ledger, mut opened) = JournaledLedger::open(disk, &options.ledger, clock.now())?;
        opened.took = clock.now().steady.since(began);
        let told = EventBuffer { events: Mutex::default(), committed: watch::Sender::new(0) };
        let events = ledger.opening_events();
        let _ = told.committed.send_replace(ledger.last_event());
        told.keep(events);
        let gathering = CommitState {
            answered: ledger.landed_commit(),
            calls: 0,
            ledger: Some(ledger),
            waiting: VecDeque::new(),
            written: Vec::new(),
            writer_sleeps: false,
            closing: false,
        };
        let durability = options.durability;
        let threaded = runtime.is_some();
        let state = Mutex::new(gathering);
        let work = Condvar::new();
        let order = Mutex::new(false);
        let shared =
            Arc::new(StoreShared { state, order, work, told, clock, wake, durability, runtime });
        let writer = threaded.then(|| {
            let synced_at = shared.clock.now().steady;
            let (unsynced, spare) = (Vec::new(), None);
            let writer = Writer { shared: shared.clone(), unsynced, synced_at, spare };
            let named = std::thread::Builder::new().name("windlass-writer".to_string());
            named.spawn(move || writer.run()).map_err(|e| OpenError::disk("start a thread", e))
        });
        let opened = Arc::new(opened);
        Ok(Self { shared, opened, writer: Mutex::new(writer.transpose()?), disk: called })
    }

    /// What the store takes on its disk.
    pub fn space(&self) -> Space {
        let state = self.shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.ledger.as_ref().map(JournaledLedger::space).unwrap_or_default()
    }

    /// Applies one command; `read` looks at the ledger in the same breath.
    async fn commit<C: Command, T>(
        &self,
        doing: &'static str,
        need: Need,
        command: C,
        read: impl FnOnce(&mut JournaledLedger, C::Reply) -> Answer<T>,
    ) -> Answer<T> {
        self.with_ledger(
            doing,
            |_| WaitFor::Landed,
            |ledger, now| {
                ledger.admit(need, now).map_err(|full| match need {
                    Need::Growth(_) => StoreError::Refused(full),
                    // Not refused: whoever has something to settle must try again.
                    Need::Progress(_) => StoreError::Unknown { doing, source: Box::new(full) },
                })?;
                let reply = ledger.apply(command, now)?;
                read(ledger, reply)
            },
        )
        .await
    }

    /// Asks something of the ledger. What it answers is told when everything it saw has landed, or
    /// at once if it can be patient with less.
    async fn with_ledger<T>(
        &self,
        doing: &'static str,
        wait_for: impl FnOnce(&JournaledLedger) -> WaitFor,
        ask: impl FnOnce(&mut JournaledLedger, Now) -> Answer<T>,
    ) -> Answer<T> {
        let (answer, landing, landed_here) = {
            let mut state = self.shared.lock()?;
            state.calls += 1;
            let now = self.shared.clock.now();
            let ledger = state.ledger.as_mut().ok_or_else(closed)?;
            let answer = ledger.usable().and_then(|()| ask(ledger, now));
            // Nothing lands any more in a broken store, and whoever was turned away has seen
            // nothing: there is nothing to wait for.
            let nothing = ledger.usable().is_err() || is_turned_away(&answer);
            let wait_for = if nothing { WaitFor::None } else { wait_for(ledger) };
            if self.shared.runtime.is_none() {
                let landed = self.shared.land_here(&mut state, doing);
                let landed = if nothing { landed.unwrap_or_default() } else { landed? };
                (answer, None, Some(landed))
            } else {
                let landing = match wait_for {
                    WaitFor::Landed => state.landing(),
                    WaitFor::Written => self.shared.write_here(&mut state, doing).map(|()| None)?,
                    WaitFor::None => None,
                };
                self.shared.wake_writer(&mut state);
                (answer, landing, None)
            }
        };
        if let Some(rings) = landed_here.filter(|rings| !rings.is_empty()) {
            self.shared.wake.ring(&rings).await;
        }
        if let Some(landing) = landing {
            let why = match landing.await {
                Ok(Ok(())) => return answer,
                Ok(Err(why)) => why,
                Err(_) => Arc::from("the writer thread is gone"),
            };
            return Err(StoreError::Unknown { doing, source: Box::new(NotLanded(why)) });
        }
        answer
    }

    /// Lets the writer finish, and lets go of the directory.
    fn shut(&self) {
        // Also after a call has crashed: a writer that sleeps must learn of it, to be waited for.
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner).closing = true;
        self.shared.work.notify_all();
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        let _ = writer.map(JoinHandle::join);
        let crashed = self.shared.state.is_poisoned();
        let mut state = self.shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.fail("the store was closed");
        if let Some(ledger) = state.ledger.take().filter(|_| !crashed) {
            let _ = ledger.seal();
        }
    }
}

/// What an answer waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WaitFor {
    /// Everything it has seen is on stable storage.
    Landed,
    /// Everything it has decided survives the process.
    Written,
    /// Nothing.
    None,
}

impl fmt::Debug for FileStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FileStore({}, {})", self.disk, self.shared.durability)
    }
}

impl Drop for FileStore {
    fn drop(&mut self) {
        self.shut();
    }
}

/// Whether a call was turned away for want of room, before anything was decided.
fn is_turned_away<T>(answer: &Answer<T>) -> bool {
    let Err(error) = answer else { return false };
    matches!(error, StoreError::Unknown { .. } | StoreError::Refused(Refusal::StoreFull { .. }))
}

fn closed() -> StoreError {
    Refusal::Unavailable { why: "it was closed".to_string() }.into()
}

impl StoreShared {
    fn lock(&self) -> Answer<MutexGuard<'_, CommitState>> {
        self.state.lock().map_err(|_| {
            let why = "an earlier call crashed while changing it".to_string();
            Refusal::StoreBroken { why }.into()
        })
    }

    fn wake_writer(&self, state: &mut CommitState) {
        // Of a commit that waits for room it must know, to ask for it now and then; and a call that
        // was turned away may have found the disk to be full.
        let has_work = |ledger: &JournaledLedger| {
            ledger.is_gathering() || ledger.usable().is_err() || ledger.wants_compaction()
        };
        let has_work = || state.ledger.as_ref().is_some_and(has_work);
        if state.writer_sleeps && (!state.written.is_empty() || has_work()) {
            state.writer_sleeps = false;
            self.work.notify_one();
        }
    }

    /// Waits for as long as calls keep coming in: a sync costs more than a moment's patience, and
    /// whoever comes too late for it waits for the next. Costs a lone caller nothing.
    fn gather<'a>(
        &'a self,
        mut state: MutexGuard<'a, CommitState>,
    ) -> Option<MutexGuard<'a, CommitState>> {
        for _ in 0..GATHER_ROUNDS {
            let calls = state.calls;
            drop(state);
            std::thread::yield_now();
            state = self.lock().ok()?;
            if state.calls == calls {
                break;
            }
        }
        Some(state)
    }

    /// Writes what was gathered on the caller's own time, and leaves the sync to the writer.
    fn write_here(&self, state: &mut CommitState, doing: &'static str) -> Answer<()> {
        let gathers = |ledger: &&mut JournaledLedger| ledger.is_gathering();
        let Some(ledger) = state.ledger.as_mut().filter(gathers) else { return Ok(()) };
        let Some(commit) = ledger.take() else {
            let source = Box::new(NotLanded("there is no room for it".into()));
            return Err(StoreError::Unknown { doing, source });
        };
        if let Err(error) = Self::write_in_order(self.order(), &commit) {
            let why = state.fail(&format!("a write to the disk failed ({error})"));
            return Err(StoreError::Unknown { doing, source: Box::new(NotLanded(why)) });
        }
        ledger.written(commit.number());
        state.written.push(commit);
        Ok(())
    }

    fn order(&self) -> MutexGuard<'_, bool> {
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a commit, unless one before it could not be: whoever wrote that may not have told the
    /// ledger yet.
    fn write_in_order(mut failed: MutexGuard<'_, bool>, commit: &Commit) -> std::io::Result<()> {
        if *failed {
            return Err(std::io::Error::other("an earlier commit could not be written"));
        }
        commit.write().inspect_err(|_| *failed = true)
    }

    /// Writes and syncs what was gathered, on the caller's own time.
    fn land_here(&self, state: &mut CommitState, doing: &'static str) -> Answer<Vec<Ring>> {
        let Some(ledger) = state.ledger.as_mut() else { return Ok(Vec::new()) };
        let mut rings = Vec::new();
        let mut step = COMPACT_STEP;
        loop {
            while ledger.wants_compaction() && !ledger.is_gathering() {
                ledger.compact(step)?;
            }
            let Some(commit) = ledger.take() else { break };
            Self::land_one(ledger, &commit).map_err(|error| {
                let why = format!("a write to the disk failed ({error})");
                ledger.fail(why.clone());
                StoreError::Unknown { doing, source: Box::new(NotLanded(why.into())) }
            })?;
            step = commit.bytes().saturating_mul(4).max(COMPACT_STEP);
            if ledger.wants_checkpoint() {
                ledger.checkpoint(step)?;
            }
            rings.extend(commit.rings);
            self.told.keep(commit.events);
        }
        if ledger.is_gathering() {
            let source = Box::new(NotLanded("the disk is full".into()));
            return Err(StoreError::Unknown { doing, source });
        }
        Ok(rings)
    }

    fn land_one(ledger: &mut JournaledLedger, commit: &Commit) -> std::io::Result<()> {
        commit.write().and_then(|()| commit.sync())?;
        ledger.written(commit.number());
        for retired in ledger.landed(commit) {
            let _ = retired.let_go().map(|spare| ledger.add_spare(spare));
        }
        Ok(())
    }

    /// Tells callers that their commit has landed. Many are told from within the runtime: from here
    /// each of them would have to be handed over to it alone.
    fn answer(&self, landed: Landed) {
        if let Some(runtime) = self.runtime.as_ref().filter(|_| landed.0.len() > 1) {
            runtime.spawn(async move { drop(landed) });
        }
    }

    /// Rings, from a thread that cannot wait: nearly every wake is done at the first try.
    fn ring(self: &Arc<Self>, rings: Vec<Ring>) {
        let Some(runtime) = self.runtime.clone().filter(|_| !rings.is_empty()) else { return };
        let shared = self.clone();
        let mut ringing = Box::pin(async move { shared.wake.ring(&rings).await });
        let polled = ringing.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        if polled == Poll::Pending {
            runtime.spawn(ringing);
        }
    }
}

/// Callers whose commit has landed. They are told when this is dropped, wherever that is.
struct Landed(Vec<CommitWaiter>);

impl Drop for Landed {
    fn drop(&mut self) {
        for waiter in self.0.drain(..) {
            let _ = waiter.send(Ok(()));
        }
    }
}

impl CommitState {
    /// A promise to tell when everything that was seen until now has landed; `None` if it has.
    fn landing(&mut self) -> Option<oneshot::Receiver<Result<(), Arc<str>>>> {
        let awaited = self.ledger.as_ref()?.awaited();
        if awaited <= self.answered {
            return None;
        }
        let (tell, landing) = oneshot::channel();
        self.waiting.push_back((awaited, tell));
        Some(landing)
    }

    /// Those who waited for a commit up to this one.
    fn answer(&mut self, commit: u64) -> Vec<CommitWaiter> {
        self.answered = self.answered.max(commit);
        let many = self.waiting.partition_point(|(awaited, _)| *awaited <= commit);
        self.waiting.drain(..many).map(|(_, waiter)| waiter).collect()
    }

    /// Refuses everything from now on, and tells everyone who waits that nothing is known.
    fn fail(&mut self, why: &str) -> Arc<str> {
        let why: Arc<str> = why.into();
        if let Some(ledger) = self.ledger.as_mut() {
            ledger.fail(why.to_string());
        }
        for (_, waiter) in self.waiting.drain(..) {
            let _ = waiter.send(Err(why.clone()));
        }
        why
    }
}

impl EventBuffer {
    fn keep(&self, events: Vec<Event>) {
        let Some(last) = events.last().map(|event| event.number) else { return };
        let mut kept = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        for event in events {
            if kept.len() == limits::EVENTS_KEPT {
                kept.pop_front();
            }
            kept.push_back(Arc::new(event));
        }
        drop(kept);
        self.committed.send_replace(last);
    }

    fn after(&self, number: u64, limit: usize) -> Vec<Arc<Event>> {
        let kept = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        let first = kept.front().map_or(1, |event| event.number);
        let skip = number.saturating_add(1).saturating_sub(first);
        let skip = usize::try_from(skip).unwrap_or(usize::MAX);
        kept.iter().skip(skip).take(limit).cloned().collect()
    }
}

/// How often the writer looks whether more calls have come in before it syncs.
const GATHER_ROUNDS: usize = 8;

/// Bytes of the oldest segment that are cleared per commit at least.
const COMPACT_STEP: u64 = 256 << 10;

/// The thread that syncs, and writes what callers did not write themselves.
struct Writer {
    shared: Arc<StoreShared>,
    /// Commits that were answered and not yet synced: only with [`Durability::Relaxed`].
    unsynced: Vec<Commit>,
    synced_at: Steady,
    /// Makes the next segment ready.
    spare: Option<JoinHandle<()>>,
}

impl Writer {
    fn run(mut self) {
        let ended = crate::panics::catch(|| self.write_until_closed());
        match ended {
            // It was closed, or a call has crashed: whoever still waits would wait for ever.
            Ok(Ok(())) => self.give_up("the writer thread has ended"),
            Ok(Err(error)) => self.give_up(&format!("a write to the disk failed ({error})")),
            Err(panic) => self.give_up(&format!("the writer thread crashed ({panic})")),
        }
        // It holds the directory's lock.
        let _ = self.spare.take().map(JoinHandle::join);
    }

    fn now(&self) -> Steady {
        self.shared.clock.now().steady
    }

    fn write_until_closed(&mut self) -> std::io::Result<()> {
        while let Some(commits) = self.next()? {
            let bytes = commits.iter().map(Commit::bytes).sum();
            self.land(commits)?;
            self.compaction(bytes);
        }
        Ok(())
    }

    /// Waits for commits, writes the one that is being gathered, and returns all that are not yet
    /// answered; none if it is only time to sync. `None` at the end.
    fn next(&mut self) -> std::io::Result<Option<Vec<Commit>>> {
        let shared = self.shared.clone();
        let Ok(mut state) = shared.lock() else { return Ok(None) };
        loop {
            let due = self.sync_due();
            let (closing, written) = (state.closing, !state.written.is_empty());
            let Some(ledger) = state.ledger.as_mut() else { return Ok(None) };
            // Callers wait for it, and nobody else may ever ask for room again.
            let stalled = ledger.is_stalled() && !ledger.make_room(shared.clock.now());
            if let Err(broken) = ledger.usable() {
                state.fail(&broken.to_string());
                return Ok(None);
            }
            if ledger.has_work() || written || ledger.wants_compaction() {
                let Some(gathered) = shared.gather(state) else { return Ok(None) };
                return self.write(gathered).map(Some);
            }
            if due == Some(Duration::ZERO) || closing && !self.unsynced.is_empty() {
                return Ok(Some(Vec::new()));
            }
            // Nothing to write: what has landed is marked as such.
            let _ = ledger.seal();
            if closing {
                state.fail("the store was closed before there was room for it");
                state.ledger = None;
                return Ok(None);
            }
            let due =
                if stalled { Some(due.map_or(ASK_AGAIN, |due| due.min(ASK_AGAIN))) } else { due };
            state.writer_sleeps = true;
            let woken = match due {
                None => shared.work.wait(state).ok(),
                Some(due) => shared.work.wait_timeout(state, due).ok().map(|(state, _)| state),
            };
            let Some(woken) = woken else { return Ok(None) };
            state = woken;
            state.writer_sleeps = false;
        }
    }

    /// How long what was answered may still wait for its sync; `None` if nothing does.
    fn sync_due(&self) -> Option<Duration> {
        match self.shared.durability {
            Durability::Relaxed(every) if !self.unsynced.is_empty() => {
                Some(every.saturating_sub(self.now().since(self.synced_at)))
            }
            Durability::Relaxed(_) | Durability::Sync | Durability::None => None,
        }
    }

    /// Writes the commit that is being gathered, while the next one may gather already.
    fn write(&self, mut state: MutexGuard<'_, CommitState>) -> std::io::Result<Vec<Commit>> {
        let mut commits = std::mem::take(&mut state.written);
        let Some(commit) = state.ledger.as_mut().and_then(JournaledLedger::take) else {
            return Ok(commits);
        };
        let order = self.shared.order();
        drop(state);
        StoreShared::write_in_order(order, &commit)?;
        commits.push(commit);
        Ok(commits)
    }

    /// Syncs commits that were written, unless that can wait, and answers.
    fn land(&mut self, mut commits: Vec<Commit>) -> std::io::Result<()> {
        let last = commits.last().map(Commit::number);
        let relaxed = match self.shared.durability {
            Durability::Relaxed(every) => {
                let early = self.now().since(self.synced_at) < every;
                last.is_some() && early && !self.tokens_run_out()
            }
            Durability::Sync | Durability::None => false,
        };
        let events: Vec<Event> =
            commits.iter_mut().flat_map(|commit| std::mem::take(&mut commit.events)).collect();
        let rings: BTreeSet<Ring> =
            commits.iter_mut().flat_map(|commit| std::mem::take(&mut commit.rings)).collect();
        self.unsynced.extend(commits);
        if !relaxed {
            Commit::sync_all(&self.unsynced)?;
            self.synced_at = self.now();
        }
        let (waiting, retired) = self.settle(last, relaxed);
        self.shared.told.keep(events);
        self.shared.ring(rings.into_iter().collect());
        self.shared.answer(Landed(waiting));
        for file in retired {
            // A file that cannot leave now is let go when the store is next opened.
            if let Ok(spare) = file.let_go()
                && let Ok(mut state) = self.shared.lock()
                && let Some(ledger) = state.ledger.as_mut()
            {
                ledger.add_spare(spare);
            }
        }
        Ok(())
    }

    /// Whether claims wait for the disk: then for stable storage, however relaxed the store is. A
    /// lease token must not come twice, and an opening goes on only so far beyond the last known.
    fn tokens_run_out(&self) -> bool {
        let state = self.shared.lock();
        state.is_ok_and(|state| state.ledger.as_ref().is_some_and(JournaledLedger::tokens_run_out))
    }

    /// Tells the ledger what is in the files and what is on stable storage. Returns who may be
    /// answered, and which files may leave.
    fn settle(&mut self, last: Option<u64>, relaxed: bool) -> (Vec<CommitWaiter>, Vec<Retired>) {
        let Ok(mut state) = self.shared.lock() else { return (Vec::new(), Vec::new()) };
        let waiting = last.map(|last| state.answer(last)).unwrap_or_default();
        let mut retired = Vec::new();
        if let Some(ledger) = state.ledger.as_mut() {
            if let Some(last) = last {
                ledger.written(last);
            }
            if !relaxed {
                for commit in self.unsynced.drain(..) {
                    retired.extend(ledger.landed(&commit));
                    ledger.reuse(commit);
                }
            }
        }
        (waiting, retired)
    }

    /// Keeps the journal small and the next segment at hand.
    fn compaction(&mut self, bytes: u64) {
        let step = bytes.saturating_mul(4).max(COMPACT_STEP);
        // A step that finds nothing alive has nothing to write, so the next one follows at once.
        // The lock is given back between them.
        while let Ok(mut state) = self.shared.lock()
            && let Some(ledger) = state.ledger.as_mut()
            && ledger.wants_compaction()
            && ledger.compact(step).is_ok()
            && !ledger.has_work()
        {}
        if let Ok(mut state) = self.shared.lock()
            && let Some(ledger) = state.ledger.as_mut()
            && ledger.wants_checkpoint()
        {
            let _ = ledger.checkpoint(step);
        }
        if self.spare.as_ref().is_some_and(|making| !making.is_finished()) {
            return;
        }
        let Ok(mut state) = self.shared.lock() else { return };
        let now = self.shared.clock.now();
        let wanted = state.ledger.as_mut().and_then(|ledger| ledger.wanted_spare(now));
        drop(state);
        let Some(wanted) = wanted else { return };
        let shared = self.shared.clone();
        let making = std::thread::Builder::new().spawn(move || {
            let made = wanted.make();
            let now = shared.clock.now();
            if let Ok(mut state) = shared.lock()
                && let Some(ledger) = state.ledger.as_mut()
            {
                ledger.spare_made(made, now);
            }
        });
        self.spare = making.ok();
    }

    /// Nothing is known about the disk any more: everything is refused from now on.
    fn give_up(&mut self, why: &str) {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner).fail(why);
    }
}

/// About how many bytes a job takes in the journal.
fn size_of(job: &NewJob) -> u64 {
    let labels: usize = job.metadata.iter().map(|(key, value)| key.len() + value.len() + 8).sum();
    (job.payload.len() + labels + job.depends_on.len() * 17 + 1_024) as u64
}

fn turn_sizes(turn: &Turn) -> impl Iterator<Item = u64> {
    let state = turn.state.as_ref().map_or(0, |state| state.len()) as u64 + 2_048;
    let alarm = match &turn.alarm {
        Alarm::Set(job) => Some(size_of(job)),
        Alarm::Keep | Alarm::Cancel | Alarm::Move(_) => None,
    };
    turn.jobs.iter().map(|job| size_of(job)).chain(alarm).chain([state])
}

#[async_trait]
impl Store for FileStore {
    async fn enqueue(&self, jobs: Vec<Arc<NewJob>>) -> Answer<Vec<Enqueued>> {
        let need = Need::Growth(jobs.iter().map(|job| size_of(job)).collect());
        self.commit("enqueue", need, Enqueue { jobs }, |_, reply| Ok(reply)).await
    }

    async fn claim(&self, claim: Claim) -> Answer<ClaimedBatch> {
        let all = claim.limit.min(limits::CLAIM_JOBS) as u64 * 256;
        let need = Need::Progress(Size { all, largest: 0 });
        let wait_for = |ledger: &JournaledLedger| match ledger.tokens_run_out() {
            true => WaitFor::Landed,
            false => WaitFor::Written,
        };
        self.with_ledger("claim", wait_for, |ledger, now| {
            let unknown = |full| StoreError::Unknown { doing: "claim", source: Box::new(full) };
            ledger.admit(need, now).map_err(unknown)?;
            let claims = ledger.apply(claim, now)?;
            ledger.hand(claims)
        })
        .await
    }

    async fn renew(&self, renewals: Vec<Renewal>) -> Answer<Vec<Result<Renewed, Refusal>>> {
        let report = |renewal: &Renewal| {
            let lines = renewal.report.lines.iter().map(|line| line.text.len() as u64 + 64);
            let steps = renewal.report.steps.iter().map(|step| step.result.len() as u64 + 160);
            lines.chain(steps).sum::<u64>() + 256
        };
        let need = Need::Progress(renewals.iter().map(report).collect());
        self.commit("renew", need, Renew { renewals }, |_, reply| Ok(reply)).await
    }

    async fn settle(&self, settlements: Vec<Settlement>) -> Answer<Vec<Result<Settled, Refusal>>> {
        let size = |settlement: &Settlement| {
            let output = settlement.output.as_ref().map_or(0, |output| output.len());
            let steps = settlement.report.steps.iter().map(|step| step.result.len() as u64 + 160);
            output as u64 + steps.sum::<u64>() + 1_024
        };
        let next = settlements.iter().flat_map(|settlement| &settlement.next);
        let turns = settlements.iter().filter_map(|settlement| settlement.turn.as_deref());
        let sizes = settlements.iter().map(size).chain(next.map(|job| size_of(job)));
        let sizes = sizes.chain(turns.flat_map(turn_sizes));
        let need = Need::Progress(sizes.collect());
        self.commit("settle", need, Settle { settlements }, |_, reply| Ok(reply)).await
    }

    async fn rescue(&self, rescue: Rescue) -> Answer<Rescued> {
        self.commit("rescue", Need::Progress(Size::default()), rescue, |_, reply| Ok(reply)).await
    }

    async fn promote(&self) -> Answer<Promoted> {
        self.commit("promote", Need::Progress(Size::default()), Promote, |_, reply| Ok(reply)).await
    }

    async fn alter(&self, selection: Selection, action: JobAction) -> Answer<Vec<JobActionResult>> {
        selection.check(&action)?;
        let need = match &action {
            JobAction::ReplayEdited(edited) => {
                Need::Growth([size_of(edited)].into_iter().collect())
            }
            JobAction::Cancel
            | JobAction::Reschedule(_)
            | JobAction::Replay
            | JobAction::Remove
            | JobAction::RemoveGraph => Need::Progress(Size::default()),
        };
        let mut progress = SelectionProgress::default();
        loop {
            let alter = |ledger: &mut JournaledLedger, now| {
                ledger.admit(need, now)?;
                let jobs = ledger.select(&selection, &mut progress, now)?;
                let alter = |jobs| ledger.apply(Alter { jobs, action: action.clone() }, now);
                jobs.map(alter).transpose().map_err(StoreError::from)
            };
            // More records have to be read than is done in one turn.
            let altered = self.with_ledger("change jobs", |_| WaitFor::Landed, alter).await?;
            if let Some(altered) = altered {
                return Ok(altered);
            }
        }
    }

    async fn alter_queue(&self, queue: Name, action: QueueAction) -> Answer<QueueActionDone> {
        let need = Need::Progress(Size::default());
        match action {
            QueueAction::Set(change) => {
                let command = Configure { queue, change };
                let done = |_: &mut JournaledLedger, reply| Ok(QueueActionDone::Set(reply));
                self.commit("configure", need, command, done).await
            }
            QueueAction::Clear => {
                let done = |_: &mut JournaledLedger, reply| Ok(QueueActionDone::Cleared(reply));
                self.commit("clear", need, Clear { queue }, done).await
            }
        }
    }

    async fn turn(&self, turn: Turn) -> Answer<Turned> {
        let need = Need::Growth(turn_sizes(&turn).collect());
        self.commit("turn", need, turn, |_, reply| Ok(reply)).await
    }

    async fn objects(&self, query: &ObjectQuery) -> Answer<ObjectPage> {
        // Whoever asks for what has landed need not wait for what others are about to write.
        let wait_for = |ledger: &JournaledLedger| match query {
            ObjectQuery::Address(address) if ledger.object_has_landed(address) => WaitFor::None,
            ObjectQuery::Address(_) | ObjectQuery::Page { .. } => WaitFor::Landed,
        };
        self.with_ledger("read objects", wait_for, |ledger, now| match query {
            ObjectQuery::Address(address) => {
                let objects = ledger.object(address, now)?.into_iter().collect();
                Ok(ObjectPage { objects, next: None })
            }
            ObjectQuery::Page { filter, after, limit } => {
                ledger.objects(filter, after.as_ref(), *limit, now)
            }
        })
        .await
    }

    async fn heartbeat(&self, worker: Arc<str>, news: WorkerReport) -> Answer<()> {
        let command = Heartbeat { worker, news };
        self.commit("announce", Need::Progress(Size::default()), command, |_, reply| Ok(reply))
            .await
    }

    async fn jobs(&self, query: &JobQuery) -> Answer<Page> {
        // Whoever asks for what has landed need not wait for what others are about to write.
        let wait_for = |ledger: &JournaledLedger| match query {
            JobQuery::Ids(jobs) if ledger.have_landed(jobs) => WaitFor::None,
            JobQuery::Ids(_) | JobQuery::Page { .. } | JobQuery::Count { .. } => WaitFor::Landed,
        };
        self.with_ledger("read jobs", wait_for, |ledger, now| ledger.jobs(query, now)).await
    }

    async fn count(&self) -> Answer<Counts> {
        self.with_ledger("count", |_| WaitFor::Landed, |ledger, now| Ok(ledger.count(now))).await
    }

    async fn explain(&self, job: JobId) -> Answer<Explanation> {
        self.with_ledger("explain", |_| WaitFor::Landed, |ledger, now| ledger.explain(job, now))
            .await
    }

    async fn events(&self, after: u64, limit: usize, wait: Duration) -> Answer<Vec<Arc<Event>>> {
        let told = &self.shared.told;
        let look = || async { Ok(told.after(after, limit)) };
        let (clock, committed) = (&*self.shared.clock, told.committed.subscribe());
        events_within(wait, Duration::MAX, clock, committed, look).await
    }

    fn info(&self) -> StoreInfo {
        let last_event = *self.shared.told.committed.borrow();
        StoreInfo {
            opened: Some(self.opened.clone()),
            space: Some(self.space()),
            ..StoreInfo::new(self.shared.durability, last_event)
        }
    }

    async fn close(&self) {
        self.shut();
    }
}
