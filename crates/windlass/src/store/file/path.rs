//! From a decision to its answer: which commit an answer waits for, who waits for which, and the
//! order in which commits are written.

use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use windlass_core::event::Event;

use super::disk::Disk;
use super::journal::CommitBytes;
use super::ledger::{Commit, JournaledLedger};
use super::records::JournalRecords;
use super::writer::Writer;
use super::{FileOptions, OpenError};
use crate::clock::Clock;
use crate::store::ledger::{
    AfterEvents, Basis, CommitPath, EventBuffer, LedgerState, SharedLedger,
};
use crate::store::{Answer, Durability, Opened, Space, StoreError, StoreInfo};
use crate::wake::Wake;

/// Answers wait for their commit.
pub struct JournalPath {
    write_order: Mutex<WriteOrder>,
    /// There is something for the writer to do.
    pub(super) work: Condvar,
    /// How often the disk was waited for.
    pub(super) syncs: AtomicU64,
    pub(super) durability: Durability,
    /// For answers of a writer thread; `None` if callers drive the writer.
    runtime: Option<Handle>,
    /// Where calls of other processes are answered, if there are any.
    serving: OnceLock<Handle>,
    driver: Mutex<WriterDriver>,
    opened: Arc<Opened>,
    /// What the disk is called; the lock itself goes when the store is closed.
    disk: String,
}

/// Who takes the writer's steps.
pub(super) enum WriterDriver {
    Thread(JoinHandle<()>),
    Callers(Writer),
    /// Whoever opened it, or nobody any more.
    Nobody,
}

/// Commits that were taken and are not in the files yet, in their order.
///
/// Answers: two write commits, the writer and the caller of a claim. A commit counts only if all
/// before it are there. A claim that was written and answered before its predecessor would be lost
/// if the process ended in between.
/// Why not simpler: the writer writes without the lock of the ledger, so that calls go on; so that
/// lock cannot order the writes. The order is fixed when a commit is taken
/// ([`JournalPath::add_to_write`]), and whoever writes first writes all that were taken
/// before ([`JournalPath::write_all`]).
/// Guarded by: `a_claim_that_waits_behind_a_commit_that_fails_is_not_written` in
/// `tests/main/writer.rs` (the planted bug 33), and `tests/main/files/failures.rs`.
#[derive(Default)]
struct WriteOrder {
    unwritten: VecDeque<Arc<CommitBytes>>,
    /// One could not be written: then none after it is.
    failed: bool,
}

/// Who waits for which commit, under the lock of the ledger.
#[derive(Debug)]
pub struct CommitState {
    /// Who waits, by the commit that must have landed.
    waiting: VecDeque<(u64, CommitWaiter)>,
    /// Commits that their callers write, have written or could not write, and nobody has synced.
    pub(super) written: Vec<Commit>,
    /// The last commit of which callers were told: it has landed, or need not have.
    answered: u64,
    /// How many calls there have been.
    pub(super) calls: u64,
    pub(super) writer_sleeps: bool,
    pub(super) closing: bool,
}

pub(super) struct CommitWaiter {
    tell: oneshot::Sender<Landing>,
    /// It serves another process.
    serves: bool,
}

impl fmt::Debug for CommitWaiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CommitWaiter")
    }
}

thread_local! {
    static SERVES: Cell<bool> = const { Cell::new(false) };
}

/// Calls that this thread makes from now on are those of other processes.
pub(crate) fn this_thread_serves() {
    SERVES.set(true);
}

/// Whether a commit has landed, or why nothing is known of it.
type Landing = Result<(), Arc<str>>;

/// Tells that a commit has landed, or why nothing is known of it.
pub type PendingLanding = oneshot::Receiver<Result<(), Arc<str>>>;

/// What a caller takes along when it lets go of the ledger.
#[derive(Debug)]
pub enum PendingAnswer {
    /// It waits until this tells that its commit has landed.
    Landing(PendingLanding),
    /// It writes this commit, which was closed for it.
    Write(u64),
    /// It has its answer.
    Nothing,
}

/// A commit could not be made durable.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct NotLanded(Arc<str>);

/// What an answer waits for.
///
/// Answers: a sync takes longer than everything else in a call, and not every answer needs one.
/// Why not simpler: if a claim waited for its sync, every job would start a sync later. If it were
/// not even written, a job that kills its process would never be counted as started. A read of
/// what has landed would wait behind the writes of others.
/// Guarded by: `nothing_is_answered_or_told_before_the_sync_has_returned` in
/// `tests/main/files/answers.rs`; for tokens the planted bugs 30 and 31 (`tests/main/writer.rs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WaitFor {
    /// Everything it has seen is on stable storage.
    Landed,
    /// Everything it has decided survives the process.
    Written,
    /// Nothing.
    None,
}

impl WaitFor {
    fn of(basis: Basis<'_>, ledger: &JournaledLedger) -> Self {
        match basis {
            Basis::Everything => Self::Landed,
            // A token must not come twice: an opening skips as many as may be handed out ahead of
            // the disk, so no more than that are.
            Basis::Claim if ledger.tokens_run_out() => Self::Landed,
            Basis::Claim => Self::Written,
            // Whoever asks for what has landed need not wait for what others are about to write.
            Basis::Jobs(jobs) if ledger.have_landed(jobs) => Self::None,
            Basis::Object(address) if ledger.object_has_landed(address) => Self::None,
            Basis::Jobs(_) | Basis::Object(_) => Self::Landed,
            Basis::Nothing => Self::None,
        }
    }
}

impl fmt::Debug for JournalPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FileStore({}, {})", self.disk, self.durability)
    }
}

impl JournalPath {
    /// Opens a store on a disk. Nobody drives its writer yet.
    #[doc(hidden)]
    pub fn open(
        disk: Arc<dyn Disk>,
        options: &FileOptions,
        clock: Arc<dyn Clock>,
        wake: Arc<dyn Wake>,
        runtime: Option<Handle>,
    ) -> Result<(Arc<SharedLedger<Self>>, Writer), OpenError> {
        let called = format!("{disk:?}");
        let began = clock.now().steady;
        let (mut ledger, mut opened) =
            JournaledLedger::open_by(disk, &options.ledger, &|| clock.now())?;
        opened.took = clock.now().steady.since(began);
        let events = EventBuffer::new(ledger.last_event());
        events.keep(ledger.opening_events());
        let commits = CommitState {
            waiting: VecDeque::new(),
            written: Vec::new(),
            answered: ledger.landed_commit(),
            calls: 0,
            writer_sleeps: false,
            closing: false,
        };
        // Without a thread nobody would come back for a sync that was put off.
        let put_off = match options.durability {
            Durability::Relaxed(every) if runtime.is_some() => Some(every),
            Durability::Relaxed(_) | Durability::Sync | Durability::None => None,
        };
        let writer = Writer::new(put_off, clock.now().steady);
        let path = Self {
            write_order: Mutex::default(),
            work: Condvar::new(),
            syncs: AtomicU64::new(0),
            durability: options.durability,
            runtime,
            serving: OnceLock::new(),
            driver: Mutex::new(WriterDriver::Nobody),
            opened: Arc::new(opened),
            disk: called,
        };
        let state = LedgerState { ledger: Some(ledger), commits };
        Ok((Arc::new(SharedLedger::new(state, path, events, clock, wake)), writer))
    }

    /// What a store takes on its disk; nothing once it is closed.
    pub(super) fn space_of(shared: &SharedLedger<Self>) -> Space {
        let state = shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        let syncs = shared.path.syncs.load(Ordering::Relaxed);
        state.ledger.as_ref().map(|ledger| Space { syncs, ..ledger.space() }).unwrap_or_default()
    }

    /// Where calls of other processes are answered from now on.
    pub(super) fn serve_on(&self, runtime: Handle) {
        let _ = self.serving.set(runtime);
    }

    fn driver(&self) -> MutexGuard<'_, WriterDriver> {
        self.driver.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn driven_by_callers(&self, writer: Writer) {
        *self.driver() = WriterDriver::Callers(writer);
    }

    pub(super) fn driven_by(&self, thread: JoinHandle<()>) {
        *self.driver() = WriterDriver::Thread(thread);
    }

    fn write_order(&self) -> MutexGuard<'_, WriteOrder> {
        self.write_order.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A commit is to be written next. Said with the ledger in hand, so that commits are written in
    /// the order in which they were taken.
    pub(super) fn add_to_write(&self, commit: &Commit) {
        self.write_order().unwritten.push_back(commit.batch.clone());
    }

    /// Writes all commits that were taken, whoever took them. None is written behind one that could
    /// not be: whoever took that may not have told the ledger yet.
    pub(super) fn write_all(&self) -> std::io::Result<()> {
        let mut order = self.write_order();
        if order.failed {
            return Err(std::io::Error::other("an earlier commit could not be written"));
        }
        while let Some(next) = order.unwritten.front() {
            if let Err(error) = next.write() {
                order.failed = true;
                return Err(error);
            }
            order.unwritten.pop_front();
        }
        Ok(())
    }

    /// Tells callers that their commit has landed.
    ///
    /// Answers: one commit answers many callers at once.
    /// Why not simpler: a thread outside of the runtime would hand each of them over to it alone.
    /// So one task is spawned, which wakes them all from within.
    /// Guarded by: no test sees this cost; `windlass bench --mode enqueue` does.
    ///
    /// Those who serve other processes are told by a task of theirs: the program's own runtime may
    /// be busy for as long as it likes (`a_program_that_blocks_its_runtime_still_serves_others` in
    /// `tests/processes/takeover.rs`).
    pub(super) fn answer(&self, mut waiting: Vec<CommitWaiter>) {
        if let Some(serving) = self.serving.get() {
            let served = waiting.extract_if(.., |waiter| waiter.serves);
            let served = Landed(served.collect());
            if !served.0.is_empty() {
                serving.spawn(async move { drop(served) });
            }
        }
        let landed = Landed(waiting);
        if let Some(runtime) = self.runtime.as_ref().filter(|_| landed.0.len() > 1) {
            runtime.spawn(async move { drop(landed) });
        }
    }

    /// Tells those who wait for outcomes, in the same way, and frees events that made way.
    pub(super) fn tell(&self, after: AfterEvents) {
        if let Some(runtime) = self.runtime.as_ref().filter(|_| after.is_work()) {
            runtime.spawn(async move { drop(after) });
        }
    }
}

/// Callers whose commit has landed. They are told when this is dropped, wherever that is.
struct Landed(Vec<CommitWaiter>);

impl Drop for Landed {
    fn drop(&mut self) {
        for waiter in self.0.drain(..) {
            let _ = waiter.tell.send(Ok(()));
        }
    }
}

impl CommitState {
    /// Those who waited for a commit up to this one.
    pub(super) fn answer(&mut self, commit: u64) -> Vec<CommitWaiter> {
        self.answered = self.answered.max(commit);
        let many = self.waiting.partition_point(|(awaited, _)| *awaited <= commit);
        self.waiting.drain(..many).map(|(_, waiter)| waiter).collect()
    }
}

impl LedgerState<JournalPath> {
    /// A promise to tell when everything that was seen until now has landed; `None` if it has.
    fn landing(&mut self) -> Option<PendingLanding> {
        let awaited = self.ledger.as_ref()?.awaited();
        if awaited <= self.commits.answered {
            return None;
        }
        let (tell, landing) = oneshot::channel();
        self.commits.waiting.push_back((awaited, CommitWaiter { tell, serves: SERVES.get() }));
        Some(landing)
    }

    /// Refuses everything from now on, and tells everyone who waits that nothing is known.
    pub(super) fn fail(&mut self, why: &str) -> Arc<str> {
        let why: Arc<str> = why.into();
        if let Some(ledger) = self.ledger.as_mut() {
            ledger.fail(why.to_string());
        }
        for (_, waiter) in self.commits.waiting.drain(..) {
            let _ = waiter.tell.send(Err(why.clone()));
        }
        why
    }

    /// Closes the commit that is being gathered, to be written next.
    pub(super) fn take(&mut self, path: &JournalPath) -> Option<Commit> {
        let commit = self.ledger.as_mut()?.take()?;
        path.add_to_write(&commit);
        Some(commit)
    }

    /// Closes what was gathered, to be written by the caller, who leaves the sync to the writer.
    /// Without it a worker would get its jobs only after two switches of threads.
    fn take_to_write(&mut self, path: &JournalPath, doing: &'static str) -> Answer<PendingAnswer> {
        if !self.ledger.as_ref().is_some_and(JournaledLedger::is_gathering) {
            return Ok(PendingAnswer::Nothing);
        }
        let Some(commit) = self.take(path) else {
            let broken = self.ledger.as_ref().and_then(|ledger| ledger.usable().err());
            let why = match broken {
                // The writer may be asleep until it asks for room again, and nobody waits that long
                // to hear that the disk has failed for good.
                Some(broken) => self.fail(&broken.to_string()),
                None => "there is no room for it".into(),
            };
            return Err(unknown(doing, why));
        };
        let number = commit.number();
        self.commits.written.push(commit);
        Ok(PendingAnswer::Write(number))
    }

    /// Wakes a writer thread that sleeps and should not.
    fn wake_writer(&mut self, path: &JournalPath) {
        // A commit that waits for room counts, because the writer asks the disk for it again; so
        // does a call that was refused, because it may have found the disk to be full.
        let has_work = |ledger: &JournaledLedger| {
            ledger.is_gathering() || ledger.usable().is_err() || ledger.wants_compaction()
        };
        let has_work = || self.ledger.as_ref().is_some_and(has_work);
        if self.commits.writer_sleeps && (!self.commits.written.is_empty() || has_work()) {
            self.commits.writer_sleeps = false;
            path.work.notify_one();
        }
    }
}

fn unknown(doing: &'static str, why: Arc<str>) -> StoreError {
    StoreError::Unknown { doing, source: Box::new(NotLanded(why)) }
}

impl CommitPath for JournalPath {
    type Records = JournalRecords;
    type State = CommitState;
    type Pending = PendingAnswer;

    fn decided(
        shared: &SharedLedger<Self>,
        state: &mut LedgerState<Self>,
        basis: Basis<'_>,
        doing: &'static str,
    ) -> Answer<Self::Pending> {
        state.commits.calls += 1;
        let wait_for = state.ledger.as_ref().map_or(WaitFor::None, |l| WaitFor::of(basis, l));
        let pending = match wait_for {
            WaitFor::Landed => {
                state.landing().map_or(PendingAnswer::Nothing, PendingAnswer::Landing)
            }
            WaitFor::Written => state.take_to_write(&shared.path, doing)?,
            WaitFor::None => PendingAnswer::Nothing,
        };
        // Whoever writes a commit wakes the writer afterwards: before, it would only wait for that.
        if !matches!(pending, PendingAnswer::Write(_)) {
            state.wake_writer(&shared.path);
        }
        Ok(pending)
    }

    async fn committed(
        shared: &Arc<SharedLedger<Self>>,
        pending: Self::Pending,
        doing: &'static str,
    ) -> Answer<()> {
        if let PendingAnswer::Write(number) = pending {
            shared.write_commit(number, doing)?;
        }
        let driven_here = shared.path.runtime.is_none();
        if driven_here && let WriterDriver::Callers(writer) = &mut *shared.path.driver() {
            writer.run_to_rest(shared);
        }
        let PendingAnswer::Landing(mut landing) = pending else { return Ok(()) };
        let landed = match driven_here {
            true => landing.try_recv().unwrap_or_else(|_| Err("the disk is full".into())),
            false => landing.await.unwrap_or_else(|_| Err("the writer is gone".into())),
        };
        landed.map_err(|why| unknown(doing, why))
    }

    /// Lets the writer finish, and lets go of the directory.
    fn close(shared: &Arc<SharedLedger<Self>>) {
        // Also after a call has crashed: a writer that sleeps must learn of it, to be waited for.
        shared.state.lock().unwrap_or_else(PoisonError::into_inner).commits.closing = true;
        shared.path.work.notify_all();
        let driver = std::mem::replace(&mut *shared.path.driver(), WriterDriver::Nobody);
        match driver {
            WriterDriver::Thread(thread) => drop(thread.join()),
            WriterDriver::Callers(mut writer) => writer.run_to_rest(shared),
            WriterDriver::Nobody => {}
        }
        let mut state = shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.fail("the store was closed");
        state.ledger = None;
    }

    fn info(shared: &SharedLedger<Self>) -> StoreInfo {
        StoreInfo {
            shares_commits: true,
            opened: Some(shared.path.opened.clone()),
            space: Some(Self::space_of(shared)),
            ..StoreInfo::new(shared.path.durability, 0)
        }
    }
}

impl SharedLedger<JournalPath> {
    /// Writes a commit that was taken for its caller, without the ledger: nobody else waits for it.
    #[doc(hidden)]
    pub fn write_commit(&self, number: u64, doing: &'static str) -> Answer<()> {
        let written = self.path.write_all();
        let mut state = self.lock()?;
        if let Err(error) = written {
            let why = state.fail(&format!("a write to the disk failed ({error})"));
            return Err(unknown(doing, why));
        }
        if let Some(ledger) = state.ledger.as_mut() {
            ledger.written(number);
        }
        state.wake_writer(&self.path);
        Ok(())
    }
}

/// A commit that has not landed, as a simulation sees it.
#[doc(hidden)]
#[derive(Debug)]
pub struct CommitInFlight {
    pub number: u64,
    pub events: Vec<Event>,
    /// Its bytes are in the hands of the system.
    pub written: bool,
}

/// For simulations, which make calls by [`SharedLedger::decide`] and take the writer's steps.
#[doc(hidden)]
impl SharedLedger<JournalPath> {
    /// What was found and done when it was opened.
    pub fn opened(&self) -> &Opened {
        &self.path.opened
    }

    /// Looks at the ledger, apart from any call; `None` once it is closed.
    pub fn inspect<T>(&self, look: impl FnOnce(&mut JournaledLedger) -> T) -> Option<T> {
        self.lock().ok()?.ledger.as_mut().map(look)
    }

    /// Events after a number that subscribers can see.
    pub fn events_after(&self, number: u64) -> Vec<Arc<Event>> {
        self.events.after(number, usize::MAX)
    }

    /// Commits that have not landed, in their order.
    pub fn in_flight(&self, writer: &Writer) -> Vec<CommitInFlight> {
        let first_unwritten = self.path.write_order().unwritten.front().map(|next| next.number);
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let commits = writer.in_flight().chain(&state.commits.written);
        let in_flight = commits.map(|commit| CommitInFlight {
            number: commit.number(),
            events: commit.events.clone(),
            written: first_unwritten.is_none_or(|first| commit.number() < first),
        });
        in_flight.collect()
    }
}
