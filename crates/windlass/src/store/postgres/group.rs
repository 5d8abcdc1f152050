//! Group commit: enqueues of one process that arrive together share a statement.
//!
//! The first call goes by itself, at once. Those that arrive while it is under way wait, and go in
//! one statement when it is answered; then those that arrived meanwhile, and so on. So nobody waits
//! for company, and a busy process makes one commit of many.
//!
//! Answers: every call was a commit and 0.65 ms of the server's time, whatever was in it.
//! Why not simpler: 64 callers that each wait for their answer did a tenth of what they do now.
//! Guarded by: `tests/postgres/groups.rs`.
//!
//! What each caller can rely on is as without it:
//! - A call is accepted as a whole or not at all, and what is refused is its own. A statement that
//!   was refused has done nothing; its calls are then made one by one.
//! - An answer that was lost is unknown for the callers of that statement and nobody else.
//! - Only jobs without side effects share a statement: they wait for nobody's locks. A job id
//!   stands in it once: twice, the statement would fail and its calls be made one by one.
//! - A caller that gives up takes nobody with it, so a task makes the statement, not a caller.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use windlass_core::job::{JobId, NewJob};
use windlass_core::ledger::{Acceptance, Enqueued};

use super::database::{Database, odd};
use super::enqueue::accept;
use crate::clock::Clock;
use crate::store::{Answer, StoreError};

/// Most jobs of a call that shares a statement, and most bytes of their payloads: larger ones gain
/// nothing by it, and would keep small ones waiting.
const CALL_JOBS: usize = 100;
const CALL_BYTES: usize = 16 * 1024;

/// Most jobs of a statement that is shared, so that it stays short.
const GROUP_JOBS: usize = 1_000;

/// How long a statement keeps those behind it waiting. One that takes longer waits for somebody.
const HOLD_UP: Duration = Duration::from_millis(100);

type EnqueueAnswer = Answer<Vec<Enqueued>>;

/// Jobs of one call, all or none of which are accepted.
pub(super) struct EnqueueCall {
    pub(super) jobs: Vec<Arc<NewJob>>,
    pub(super) queue_kinds: Vec<i32>,
}

impl EnqueueCall {
    /// Whether it may share a statement with others.
    pub(super) fn may_share(&self) -> bool {
        let bytes: usize = self.jobs.iter().map(|job| job.payload.len()).sum();
        self.jobs.len() <= CALL_JOBS
            && bytes <= CALL_BYTES
            && self.jobs.iter().all(|job| is_without_side_effects(job))
    }
}

/// As `_without_side_effects` in SQL has it.
fn is_without_side_effects(job: &NewJob) -> bool {
    job.unique.is_none()
        && job.depends_on.is_empty()
        && job.lane.is_none()
        && job.object.is_none()
        && job.expires_after.is_none()
}

/// A call that waits for the statement before it, and who wants its answer.
struct WaitingCall {
    call: EnqueueCall,
    caller: oneshot::Sender<EnqueueAnswer>,
}

/// Enqueues of one store that are under way or wait.
#[derive(Default)]
pub(super) struct EnqueueGroups(Mutex<GroupState>);

#[derive(Default)]
struct GroupState {
    /// Somebody has the turn. Whoever waits is taken along when it ends.
    is_taken: bool,
    waiting: VecDeque<WaitingCall>,
}

/// What becomes of a call that joins.
pub(super) enum Joined<F> {
    /// Nothing is under way: it goes by itself.
    First(EnqueueCall, EnqueueTurn),
    /// It waits, and this is its answer.
    Waiting(F),
}

/// The turn to make a statement. When it ends, those who have gathered meanwhile have the next.
pub(super) struct EnqueueTurn {
    groups: Arc<EnqueueGroups>,
    database: Arc<Database>,
}

impl EnqueueGroups {
    pub(super) fn join(
        self: &Arc<Self>,
        database: &Arc<Database>,
        call: EnqueueCall,
    ) -> Joined<impl Future<Output = EnqueueAnswer> + use<>> {
        let mut state = self.state();
        if !state.is_taken {
            state.is_taken = true;
            let turn = EnqueueTurn { groups: self.clone(), database: database.clone() };
            return Joined::First(call, turn);
        }
        let (caller, answer) = oneshot::channel();
        state.waiting.push_back(WaitingCall { call, caller });
        Joined::Waiting(async move { answer.await.unwrap_or_else(|_| Err(lost("it was dropped"))) })
    }

    fn state(&self) -> MutexGuard<'_, GroupState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl GroupState {
    /// The next calls to go together, in the order in which they came. One that was given up while
    /// it waited is not made.
    fn take_group(&mut self) -> Vec<WaitingCall> {
        let (mut group, mut jobs, mut ids) = (Vec::new(), 0, BTreeSet::new());
        let mut left = VecDeque::new();
        for waiting in self.waiting.drain(..) {
            if waiting.caller.is_closed() {
                continue;
            }
            let own: Vec<JobId> = waiting.call.jobs.iter().map(|job| job.id).collect();
            if jobs + own.len() > GROUP_JOBS || own.iter().any(|id| ids.contains(id)) {
                left.push_back(waiting);
                continue;
            }
            jobs += own.len();
            ids.extend(own);
            group.push(waiting);
        }
        self.waiting = left;
        group
    }
}

impl Drop for EnqueueTurn {
    fn drop(&mut self) {
        let mut state = self.groups.state();
        let group = state.take_group();
        // Without a runtime nobody is left who could wait.
        let runtime = Handle::try_current().ok().filter(|_| !group.is_empty());
        state.is_taken = runtime.is_some();
        drop(state);
        if let Some(runtime) = runtime {
            let turn = Self { groups: self.groups.clone(), database: self.database.clone() };
            runtime.spawn(turn.accept_group(group));
        }
    }
}

impl EnqueueTurn {
    /// Accepts one call, for the caller that waits here.
    pub(super) async fn accept_alone(self, call: EnqueueCall) -> EnqueueAnswer {
        let database = self.database.clone();
        self.until(accept(&database, &call.jobs, call.queue_kinds)).await
    }

    /// Accepts calls in one statement and gives each its answer.
    async fn accept_group(self, mut group: Vec<WaitingCall>) {
        let database = self.database.clone();
        let jobs: Vec<Arc<NewJob>> =
            group.iter().flat_map(|waiting| waiting.call.jobs.iter().cloned()).collect();
        let queue_kinds = group.iter().flat_map(|waiting| waiting.call.queue_kinds.iter().copied());
        let statement = self.until(accept(&database, &jobs, queue_kinds.collect()));
        let answer = tokio::select! {
            answer = statement => answer,
            // Nobody wants the answer: the server need not finish.
            () = all_given_up(&mut group) => return,
        };
        match answer {
            Ok(enqueued) => {
                let answers = share_out(&group, enqueued);
                for (waiting, answer) in group.into_iter().zip(answers) {
                    let _ = waiting.caller.send(answer);
                }
            }
            Err(StoreError::Unknown { source, .. }) => {
                let why = source.to_string();
                for waiting in group {
                    let _ = waiting.caller.send(Err(lost(&why)));
                }
            }
            // Rolled back. Whose fault it was, each finds out by itself.
            Err(_) => group.into_iter().for_each(|one| {
                drop(tokio::spawn(one.accept(database.clone())));
            }),
        }
    }

    /// The answer to a statement. When it comes, or does not come soon, others have the turn.
    async fn until(self, statement: impl Future<Output = EnqueueAnswer>) -> EnqueueAnswer {
        let clock = self.database.clone();
        let mut statement = std::pin::pin!(statement);
        let soon = tokio::select! {
            biased;
            answer = &mut statement => Some(answer),
            () = clock.clock.sleep(HOLD_UP) => None,
        };
        drop(self);
        match soon {
            Some(answer) => answer,
            None => statement.await,
        }
    }
}

impl WaitingCall {
    /// Makes the call by itself.
    async fn accept(mut self, database: Arc<Database>) {
        let statement = accept(&database, &self.call.jobs, self.call.queue_kinds);
        tokio::select! {
            answer = statement => drop(self.caller.send(answer)),
            () = self.caller.closed() => {}
        }
    }
}

/// Returns when no caller of the group waits any longer.
async fn all_given_up(group: &mut [WaitingCall]) {
    for waiting in group {
        waiting.caller.closed().await;
    }
}

/// The answer of each call: its own part, with the depth of its queue when it was accepted. The
/// statement tells the depth after the last of them.
fn share_out(group: &[WaitingCall], enqueued: Vec<Enqueued>) -> Vec<EnqueueAnswer> {
    let expected: usize = group.iter().map(|waiting| waiting.call.jobs.len()).sum();
    if enqueued.len() != expected {
        return group.iter().map(|_| Err(lost("the answer is not that of the calls"))).collect();
    }
    let (mut left, mut answers) = (enqueued, Vec::with_capacity(group.len()));
    let mut later: HashMap<&str, u64> = HashMap::new();
    for waiting in group.iter().rev() {
        let jobs = &waiting.call.jobs;
        let mut own = left.split_off(left.len() - jobs.len());
        for (enqueued, job) in own.iter_mut().zip(jobs) {
            let after = later.get(job.queue.as_str()).copied().unwrap_or(0);
            enqueued.depth = enqueued.depth.saturating_sub(after);
        }
        for (enqueued, job) in own.iter().zip(jobs) {
            if enqueued.acceptance == Acceptance::Accepted {
                *later.entry(job.queue.as_str()).or_default() += 1;
            }
        }
        answers.push(Ok(own));
    }
    answers.reverse();
    answers
}

fn lost(why: &str) -> StoreError {
    odd("enqueue", why)
}
