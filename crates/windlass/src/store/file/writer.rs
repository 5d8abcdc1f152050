//! The writer: it makes commits durable and answers those who wait for them, step by step.
//!
//! ```text
//!   take ─► write ─► sync ─► answer ─► let go ─► tend ─► take …       nothing to do: seal, rest
//! ```
//!
//! A [`Writer`] has no thread. In a store that ships, a thread takes its steps and sleeps between
//! them; in a test callers do, until it is at rest; in a simulation whoever likes, with anything in
//! between. It is the same code for all of them.
//!
//! Answers: a crash between any two steps must lose nothing of what was answered.
//! Why not simpler: a thread cannot be stopped at will, so a loop in one is tested by luck. As
//! steps, the simulation stops the shipping writer after each of them, and crashes it there.
//! Guarded by: `windlass-sim/tests/crash_points.rs` and the simulation; `tests/main/writer.rs` and
//! `tests/main/files/answers.rs` (the planted bugs 04, 27 and 34).

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use windlass_core::time::Steady;

use super::OpenError;
use super::journal::{Retired, WantedSpare};
use super::ledger::{Commit, JournaledLedger};
use super::path::JournalPath;
use super::records::ASK_AGAIN;
use crate::store::ledger::{LedgerState, SharedLedger};

/// Bytes of the oldest segment that are cleared, or of a checkpoint that are written, in one step:
/// a millisecond or two, for which everybody waits.
const TEND_STEP: u64 = 256 << 10;

/// Most such steps after a commit, unless the journal has fallen behind: what they copy is synced
/// with the next commit, and everybody in it waits for that.
const TEND_STEPS: u64 = 4;

/// How often a writer thread looks whether more calls have come in before it takes a commit; see
/// `WriterThread::gather`.
const GATHER_ROUNDS: usize = 8;

type SharedJournal = SharedLedger<JournalPath>;

/// What one step came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriterStep {
    /// It closed the commit that was being gathered, or took those that callers have written.
    Took,
    /// Their bytes are in the hands of the system.
    Wrote,
    /// They are on stable storage, or may wait for that.
    Synced,
    /// Those who waited for them were answered.
    Answered,
    /// A segment left.
    LetGo,
    /// A part of the oldest segment was cleared, or a part of a checkpoint written.
    Tended,
    /// The journal is marked as whole.
    Sealed,
    /// There is nothing to do until there is a call, or for so long.
    Idle(Option<Duration>),
    /// The store is closed.
    Closed,
    /// The disk failed, and the store refuses everything.
    Failed,
}

/// What comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NextStep {
    Take,
    Write,
    Sync,
    Answer,
    LetGo,
    Checkpoint,
    Nothing,
}

/// See the module documentation.
#[derive(Debug)]
pub struct Writer {
    next: NextStep,
    /// Commits that were taken and not yet answered.
    commits: Vec<Commit>,
    /// Commits that were answered and not yet synced.
    unsynced: Vec<Commit>,
    /// For how long that may be put off.
    put_off: Option<Duration>,
    synced_at: Steady,
    /// The last sync was not put off.
    synced: bool,
    /// Files that may leave.
    retired: VecDeque<Retired>,
    /// How many bytes of the next commit were copied by compaction, or belong to a checkpoint.
    tended: u64,
    /// How many steps of tending are left to do after the last commit.
    steps_left: u64,
    sealed: bool,
}

impl Writer {
    /// With a sync for all that was taken at once, or one that may be put off for so long.
    pub(super) fn new(put_off: Option<Duration>, now: Steady) -> Self {
        Self {
            next: NextStep::Take,
            commits: Vec::new(),
            unsynced: Vec::new(),
            put_off,
            synced_at: now,
            synced: false,
            retired: VecDeque::new(),
            tended: 0,
            steps_left: 0,
            sealed: false,
        }
    }

    /// Does what comes next. Of the oldest segment and of a checkpoint it does about `most` bytes.
    pub fn step(&mut self, shared: &SharedJournal, most: u64) -> WriterStep {
        let done = match self.next {
            NextStep::Take => Ok(self.take(shared)),
            NextStep::Write => self.write(shared),
            NextStep::Sync => self.sync(shared),
            NextStep::Answer => Ok(self.answer(shared)),
            NextStep::LetGo => Ok(self.let_go(shared, most)),
            NextStep::Checkpoint => Ok(self.checkpoint(shared, most)),
            NextStep::Nothing => Ok(WriterStep::Closed),
        };
        done.unwrap_or_else(|error| {
            self.give_up(shared, &format!("a write to the disk failed ({error})"));
            WriterStep::Failed
        })
    }

    /// Takes steps until there is nothing to do.
    pub(super) fn run_to_rest(&mut self, shared: &SharedJournal) {
        use WriterStep::{Closed, Failed, Idle};
        while !matches!(self.step(shared, u64::MAX), Idle(_) | Closed | Failed) {}
    }

    /// Commits that have not landed, in their order.
    pub(super) fn in_flight(&self) -> impl Iterator<Item = &Commit> {
        self.unsynced.iter().chain(&self.commits)
    }

    /// Whether the next step takes a commit.
    fn is_at_rest(&self) -> bool {
        self.next == NextStep::Take
    }

    fn take(&mut self, shared: &SharedJournal) -> WriterStep {
        let due = self.sync_due(shared);
        let Ok(mut state) = shared.lock() else { return self.end(WriterStep::Closed) };
        let Some(ledger) = state.ledger.as_mut() else { return self.end(WriterStep::Closed) };
        // Callers wait for it, and nobody else may ever ask for room again.
        let stalled = ledger.is_stalled() && !ledger.make_room(shared.clock.now());
        if let Err(broken) = ledger.usable() {
            state.fail(&broken.to_string());
            return self.end(WriterStep::Failed);
        }
        if has_work(&state) {
            self.commits = std::mem::take(&mut state.commits.written);
            self.commits.extend(state.take(&shared.path));
            self.steps_left = self.steps_to_tend(&state);
            self.sealed = false;
            let nothing = self.commits.is_empty();
            self.next = if nothing { NextStep::LetGo } else { NextStep::Write };
            return WriterStep::Took;
        }
        if due == Some(Duration::ZERO) || state.commits.closing && !self.unsynced.is_empty() {
            self.next = NextStep::Sync;
            return WriterStep::Took;
        }
        let due = if stalled { Some(due.unwrap_or(ASK_AGAIN).min(ASK_AGAIN)) } else { due };
        self.rest(&mut state, due)
    }

    /// There is nothing to write: what has landed is marked as such.
    fn rest(&mut self, state: &mut LedgerState<JournalPath>, due: Option<Duration>) -> WriterStep {
        if !std::mem::replace(&mut self.sealed, true) {
            let _ = state.ledger.as_ref().map(JournaledLedger::seal);
            return WriterStep::Sealed;
        }
        if !state.commits.closing {
            return WriterStep::Idle(due);
        }
        state.fail("the store was closed before there was room for it");
        state.ledger = None;
        self.end(WriterStep::Closed)
    }

    fn end(&mut self, step: WriterStep) -> WriterStep {
        self.next = NextStep::Nothing;
        step
    }

    /// Writes what was taken, while the next commit may gather already.
    fn write(&mut self, shared: &SharedJournal) -> std::io::Result<WriterStep> {
        shared.path.write_all()?;
        self.next = NextStep::Sync;
        Ok(WriterStep::Wrote)
    }

    /// Syncs what was written, unless that can wait.
    fn sync(&mut self, shared: &SharedJournal) -> std::io::Result<WriterStep> {
        self.synced = self.commits.is_empty() || !self.may_sync_later(shared);
        self.unsynced.append(&mut self.commits);
        if self.synced {
            Commit::sync_all(&self.unsynced)?;
            self.synced_at = shared.clock.now().steady;
            shared.path.syncs.fetch_add(1, Ordering::Relaxed);
        }
        self.next = NextStep::Answer;
        Ok(WriterStep::Synced)
    }

    /// How long what was answered may still wait for its sync; `None` if nothing does.
    fn sync_due(&self, shared: &SharedJournal) -> Option<Duration> {
        let every = self.put_off.filter(|_| !self.unsynced.is_empty())?;
        Some(every.saturating_sub(shared.clock.now().steady.since(self.synced_at)))
    }

    /// Whether a sync can wait. Not when claims wait for the disk, however relaxed the store is: a
    /// lease token must not come twice, and an opening goes on only so far beyond the last known.
    fn may_sync_later(&self, shared: &SharedJournal) -> bool {
        let now = shared.clock.now().steady;
        let early = self.put_off.is_some_and(|every| now.since(self.synced_at) < every);
        let run_out = |state: &LedgerState<JournalPath>| {
            state.ledger.as_ref().is_some_and(JournaledLedger::tokens_run_out)
        };
        early && !shared.lock().is_ok_and(|state| run_out(&state))
    }

    /// Tells the ledger what is in the files and what is on stable storage, tells what happened,
    /// and answers those who waited for it.
    fn answer(&mut self, shared: &SharedJournal) -> WriterStep {
        let mut events = Vec::new();
        for commit in &mut self.unsynced {
            events.append(&mut commit.events);
        }
        let Ok(mut state) = shared.lock() else { return self.end(WriterStep::Closed) };
        let last = self.unsynced.last().map(Commit::number);
        let waiting = last.map(|last| state.commits.answer(last)).unwrap_or_default();
        if let Some((ledger, last)) = state.ledger.as_mut().zip(last) {
            ledger.written(last);
            let landed = if self.synced { self.unsynced.len() } else { 0 };
            for commit in self.unsynced.drain(..landed) {
                self.retired.extend(ledger.landed(&commit));
                ledger.reuse(commit);
            }
        }
        drop(state);
        let after = shared.events.keep(events);
        shared.path.answer(waiting);
        shared.path.tell(after);
        self.next = NextStep::LetGo;
        WriterStep::Answered
    }

    /// Lets go of a file that is not needed any more; after the last of them, clears a part of the
    /// oldest segment.
    fn let_go(&mut self, shared: &SharedJournal, most: u64) -> WriterStep {
        let Some(file) = self.retired.pop_front() else { return self.compact(shared, most) };
        // A file that cannot leave now is let go when the store is next opened.
        if let Ok(spare) = file.let_go()
            && let Ok(mut state) = shared.lock()
            && let Some(ledger) = state.ledger.as_mut()
        {
            ledger.add_spare(spare);
        }
        WriterStep::LetGo
    }

    fn compact(&mut self, shared: &SharedJournal, most: u64) -> WriterStep {
        self.next = NextStep::Checkpoint;
        let Ok(mut state) = shared.lock() else { return self.end(WriterStep::Closed) };
        let Some(ledger) = state.ledger.as_mut() else { return self.end(WriterStep::Closed) };
        if !ledger.wants_compaction() {
            return self.write_checkpoint(ledger, most);
        }
        let before = ledger.gathered_bytes();
        let compacted = ledger.compact(TEND_STEP.min(most));
        self.tended += ledger.gathered_bytes() - before;
        self.steps_left = self.steps_left.saturating_sub(1);
        // A step that finds nothing alive has nothing to write, so the next one follows at once.
        if compacted.is_ok() && (!ledger.has_work() || self.steps_left > 0) {
            self.next = NextStep::LetGo;
        }
        drop(state);
        shared.let_callers_in();
        WriterStep::Tended
    }

    fn checkpoint(&mut self, shared: &SharedJournal, most: u64) -> WriterStep {
        let Ok(mut state) = shared.lock() else { return self.end(WriterStep::Closed) };
        let Some(ledger) = state.ledger.as_mut() else { return self.end(WriterStep::Closed) };
        let step = self.write_checkpoint(ledger, most);
        drop(state);
        shared.let_callers_in();
        step
    }

    fn write_checkpoint(&mut self, ledger: &mut JournaledLedger, most: u64) -> WriterStep {
        self.next = NextStep::Take;
        if ledger.wants_checkpoint() {
            let before = ledger.gathered_bytes();
            // What cannot be read breaks the ledger, and the next step finds that.
            let written = ledger.checkpoint(TEND_STEP.min(most));
            self.tended += ledger.gathered_bytes() - before;
            self.steps_left = self.steps_left.saturating_sub(1);
            if written.is_ok() && self.steps_left > 0 {
                self.next = NextStep::Checkpoint;
            }
        }
        WriterStep::Tended
    }

    /// How many steps of tending follow the commits that were just taken: more if callers wrote
    /// more, so that what is dead leaves as fast as it comes. What tending itself has written does
    /// not count; it would make each step larger than the one before.
    fn steps_to_tend(&mut self, state: &LedgerState<JournalPath>) -> u64 {
        let bytes: u64 = self.commits.iter().map(Commit::bytes).sum();
        let by_callers = bytes.saturating_sub(std::mem::take(&mut self.tended));
        let steps = by_callers.saturating_mul(4).div_ceil(TEND_STEP).max(1);
        let behind = state.ledger.as_ref().is_some_and(JournaledLedger::has_fallen_behind);
        if behind { steps } else { steps.min(TEND_STEPS) }
    }

    /// Nothing is known about the disk any more: everything is refused from now on.
    fn give_up(&mut self, shared: &SharedJournal, why: &str) {
        self.next = NextStep::Nothing;
        shared.state.lock().unwrap_or_else(PoisonError::into_inner).fail(why);
    }

    /// Starts the thread that takes the steps of a store.
    pub(super) fn run_in_a_thread(self, shared: &Arc<SharedJournal>) -> Result<(), OpenError> {
        let thread = WriterThread { shared: shared.clone(), writer: self, spare: None };
        let named = std::thread::Builder::new().name("windlass-writer".to_string());
        let spawned = named.spawn(move || thread.run());
        shared.path.driven_by(spawned.map_err(|error| OpenError::disk("start a thread", error))?);
        Ok(())
    }
}

/// Whether there is something to take, or to tend.
fn has_work(state: &LedgerState<JournalPath>) -> bool {
    let work = |ledger: &JournaledLedger| ledger.has_work() || ledger.wants_compaction();
    !state.commits.written.is_empty() || state.ledger.as_ref().is_some_and(work)
}

/// The thread of a store that ships.
struct WriterThread {
    shared: Arc<SharedJournal>,
    writer: Writer,
    /// Makes the next segment ready.
    spare: Option<JoinHandle<()>>,
}

impl WriterThread {
    fn run(mut self) {
        let ended = crate::panics::catch(|| self.write_until_closed());
        let why = match ended {
            // It was closed, or a call has crashed: whoever still waits would wait for ever.
            Ok(()) => "the writer thread has ended".to_string(),
            Err(panic) => format!("the writer thread crashed ({panic})"),
        };
        self.writer.give_up(&self.shared, &why);
        // Waited for: it still uses the disk, and so keeps the lock of the directory.
        let _ = self.spare.take().map(JoinHandle::join);
    }

    fn write_until_closed(&mut self) {
        loop {
            if self.writer.is_at_rest() {
                self.gather();
            }
            match self.writer.step(&self.shared, u64::MAX) {
                WriterStep::Idle(due) => self.sleep(due),
                WriterStep::Closed | WriterStep::Failed => return,
                WriterStep::Tended => self.make_spare(),
                WriterStep::Took
                | WriterStep::Wrote
                | WriterStep::Synced
                | WriterStep::Answered
                | WriterStep::LetGo
                | WriterStep::Sealed => {}
            }
        }
    }

    /// If there is something to take, gives way to other threads for as long as calls keep coming
    /// in, for a bounded number of rounds.
    ///
    /// Answers: a caller that comes just after a commit was taken waits for two syncs, its own and
    /// the one before it.
    /// Why not simpler: to sleep for a fixed time would delay a lone caller too. This ends as soon
    /// as a round has brought no call, and yields only if there is something to take.
    /// Guarded by: no test sees this cost; `windlass bench --mode enqueue` does.
    fn gather(&self) {
        let mut seen = None;
        for _ in 0..=GATHER_ROUNDS {
            let Ok(state) = self.shared.lock() else { return };
            let calls = state.commits.calls;
            if seen.replace(calls) == Some(calls) || !has_work(&state) {
                return;
            }
            drop(state);
            std::thread::yield_now();
        }
    }

    /// Sleeps until there is something to do, or for so long.
    fn sleep(&self, due: Option<Duration>) {
        let Ok(mut state) = self.shared.lock() else { return };
        // A commit that has begun to wait for room since the last step must not be slept through:
        // `due` was worked out without it.
        let awake = |ledger: &JournaledLedger| {
            ledger.usable().is_err() || due.is_none() && ledger.is_gathering()
        };
        let awake = state.ledger.as_ref().is_none_or(awake);
        if has_work(&state) || state.commits.closing || awake {
            return;
        }
        state.commits.writer_sleeps = true;
        let work = &self.shared.path.work;
        let woken = match due {
            None => work.wait(state).ok(),
            Some(due) => work.wait_timeout(state, due).ok().map(|(state, _)| state),
        };
        if let Some(mut state) = woken {
            state.commits.writer_sleeps = false;
        }
    }

    /// Makes the next segment ready, in a thread of its own: see `journal/segments.rs`.
    fn make_spare(&mut self) {
        if self.spare.as_ref().is_some_and(|making| !making.is_finished()) {
            return;
        }
        let Some(wanted) = wanted_spare(&self.shared) else { return };
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
}

fn wanted_spare(shared: &SharedJournal) -> Option<WantedSpare> {
    let mut state = shared.lock().ok()?;
    state.ledger.as_mut()?.wanted_spare(shared.clock.now())
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use windlass_core::event::Event;
    use windlass_core::job::{JobId, NewJob};
    use windlass_core::ledger::Enqueue;
    use windlass_core::name::Name;

    use super::super::FileOptions;
    use super::super::disk::RealDisk;
    use super::*;
    use crate::clock::SystemClock;
    use crate::store::ledger::{Basis, EventListener};
    use crate::wake::LocalWake;

    /// Notes the numbers of what it hears.
    #[derive(Default)]
    struct Listener(Mutex<Vec<u64>>);

    impl EventListener for Listener {
        fn hear(&self, events: &[Event]) -> Option<Box<dyn Send>> {
            self.0.lock().expect("no panic").extend(events.iter().map(|event| event.number));
            None
        }

        fn source_changed(&self, _told: bool) {}
    }

    #[test]
    fn a_listener_hears_of_a_commit_when_it_has_landed_and_not_before() {
        let path = std::env::temp_dir().join(format!("windlass-listener-{}", std::process::id()));
        let disk = Arc::new(RealDisk::open(&path).expect("a directory"));
        let (clock, wake) = (Arc::new(SystemClock::new()), Arc::new(LocalWake::new()));
        let opened = JournalPath::open(disk, &FileOptions::default(), clock, wake, None);
        let (shared, mut writer) = opened.expect("it opens");
        let listener = Arc::new(Listener::default());
        let told: Arc<dyn EventListener> = listener.clone();
        shared.events.listen(Arc::downgrade(&told));
        let name = Name::new("work").expect("a name");
        let job = NewJob::new(JobId::from_u128(1), name.clone(), name, vec![]);
        let decided = shared.decide("enqueue", Basis::Everything, |ledger, now| {
            ledger.commit(Enqueue { jobs: vec![job.into()] }, now)
        });
        assert!(decided.is_ok_and(|(answer, _)| answer.is_ok()));
        let heard = || listener.0.lock().expect("no panic").len();
        let mut synced = false;
        loop {
            match writer.step(&shared, u64::MAX) {
                WriterStep::Answered => break,
                step => {
                    assert_eq!(heard(), 0, "told after {step:?}");
                    synced |= step == WriterStep::Synced;
                }
            }
        }
        assert!(synced && heard() == 1, "it is told once, when it has landed");
        drop((shared, writer));
        let _ = std::fs::remove_dir_all(path);
    }
}
