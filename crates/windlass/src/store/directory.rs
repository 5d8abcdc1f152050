//! A directory that several processes share: whoever has its lock owns it, and the others join.
//!
//! ```text
//!   engine ─► DirectoryStore ─┬─ owner ──► FileStore                    this process has the lock
//!                             ├─ joined ─► socket ─► owner's FileStore  another one has it
//!                             └─ between two owners: calls wait         and are made again
//! ```
//!
//! One thread for each engine does what is nobody's call ([`manager`]): it takes the lock or joins
//! whoever has it, serves those who have joined, looks which of them live, and when the owner is
//! gone begins anew. The engine's store stays the same; what changes is its role.
//!
//! - Only the holder of the lock writes the journal, and makes or removes the socket. Holding it
//!   proves that nobody else writes, not that any worker is dead: that is told by [`member`] files.
//! - A call that may be repeated ([`Call::may_repeat`]) and has lost its answer is made again with
//!   the same ids, by whoever owns the directory then. One that may not is *unknown*.
//! - Nobody waits for ever: after ten seconds without an owner that answers, a call is refused, and
//!   the holder of the lock named.

mod held;
mod manager;
mod member;
mod service;
mod settings;
mod socket;

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};
use windlass_core::event::Event;
use windlass_core::explain::Explanation;
use windlass_core::job::{JobId, LeaseToken, NewJob};
use windlass_core::ledger::{
    Claim, Counts, Enqueued, Promoted, Recovery, Renewal, Renewed, Rescue, Rescued, Settled,
    Settlement, Turned, WorkerReport,
};
use windlass_core::object::Turn;
use windlass_core::refusal::Refusal;
use windlass_core::time::Steady;

use self::held::ClaimOnItsWay;
#[doc(hidden)]
pub use self::held::HeldLeases;
use self::member::{Member, MemberSurvey};
use super::file::{FileOptions, OpenError};
use super::ledger::EventListener;
use super::{
    AlterJobs, AlterQueue, Answer, ClaimedBatch, Durability, FileStore, HeartbeatAnswer,
    JobActionResult, JobQuery, ObjectPage, ObjectQuery, Ownership, Page, QueueActionDone, Store,
    StoreError, StoreInfo,
};
use crate::clock::{AwakeClock, Clock};
use crate::wake::{Interest, Listener, LocalWake, Ring, Rung, Wake};
use crate::wire::{Call, Connection, Fault, Reply, Response, Served, StreamConnection};

/// How long a call waits for an owner that answers.
const PATIENCE: Duration = Duration::from_secs(10);

/// How a program takes part in a directory that other processes may have open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sharing {
    /// Owns the directory if nobody does, else joins whoever does, and takes over when that one is
    /// gone. For programs that run for long.
    #[default]
    OwnOrJoin,
    /// Owns the directory, or is refused.
    OwnOrFail,
    /// Joins whoever owns the directory, or is refused; never takes over.
    JoinOrFail,
    /// Owns the directory if nobody does when it is opened, else joins; never takes over. For
    /// scripts and commands.
    NeverTakeOver,
}

/// Jobs in a directory, which several processes may have open. See the module documentation.
#[derive(Clone)]
pub struct DirectoryStore {
    directory: Arc<Directory>,
    /// Workers are those of other machines.
    remote: bool,
    _open: Arc<KeptOpen>,
}

/// Ends the thread when the last store is gone.
struct KeptOpen(watch::Sender<bool>);

impl Drop for KeptOpen {
    fn drop(&mut self) {
        self.0.send_replace(true);
    }
}

/// What the stores and the thread of one engine share.
struct Directory {
    path: PathBuf,
    /// What this program would set, if the directory were its own.
    options: FileOptions,
    sharing: Sharing,
    clock: Arc<dyn Clock>,
    /// The same clock, if it can stand still.
    awake: Option<Arc<AwakeClock>>,
    wake: Arc<dyn Wake>,
    /// Those who listen in this process, if they can be rung for others.
    listeners: Option<Arc<LocalWake>>,
    /// The program's own runtime.
    runtime: Handle,
    member: Mutex<Option<Member>>,
    role: watch::Sender<DirectoryRole>,
    closing: watch::Sender<bool>,
    /// Hears the events of whoever owns the directory.
    outcomes: Mutex<Option<Weak<dyn EventListener>>>,
    held: HeldLeases,
    /// The last event of which anybody has told.
    last_event: AtomicU64,
    /// What the directory says about recovery.
    recovery: Mutex<Recovery>,
}

/// Who answers calls.
#[derive(Clone)]
enum DirectoryRole {
    /// This process.
    Owner(Arc<FileStore>),
    /// Another one.
    Joined(Arc<JoinedOwner>),
    /// Nobody yet, and why.
    Seeking(Arc<str>),
    /// Nobody: the store of this process broke, and no other process has it.
    Broken(Refusal),
    /// Nobody any more: it was closed.
    Closed,
}

/// The process that owns the directory, as one that has joined it knows it.
struct JoinedOwner {
    connection: StreamConnection,
    /// Which process, for people.
    owner: String,
    info: StoreInfo,
    /// The last ring before it was joined.
    last_ring: u64,
}

impl fmt::Debug for DirectoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DirectoryStore({})", self.directory.path.display())
    }
}

/// How a directory is opened.
#[derive(Clone, Debug, Default)]
pub struct DirectoryOptions {
    /// What this program would set, if the directory were its own.
    pub file: FileOptions,
    /// How it takes part.
    pub sharing: Sharing,
    /// Where time comes from; `None` for the machine's clocks, which stand still while a process
    /// that owns the directory is stopped.
    pub clock: Option<Arc<dyn Clock>>,
    /// How workers are woken; `None` for a wake that reaches all processes that share the
    /// directory.
    pub wake: Option<Arc<dyn Wake>>,
}

/// An open directory, and what an engine on it is made of.
#[derive(Clone, Debug)]
pub struct OpenDirectory {
    /// The store.
    pub store: Arc<DirectoryStore>,
    /// Its clock.
    pub clock: Arc<dyn Clock>,
    /// What it rings.
    pub wake: Arc<dyn Wake>,
}

impl DirectoryStore {
    /// Opens the directory at `path`, or joins the process that has it open. What was running in
    /// processes that are gone has been recovered, durably, when this returns.
    ///
    /// Must be called within a tokio runtime.
    pub async fn open(path: &Path, options: DirectoryOptions) -> Result<OpenDirectory, OpenError> {
        let awake = match &options.clock {
            Some(_) => None,
            None => Some(Arc::new(AwakeClock::new(Arc::new(crate::clock::SystemClock::new())))),
        };
        let own = awake.clone().map(|clock| clock as Arc<dyn Clock>);
        let clock = options.clock.or(own).unwrap_or_else(|| unreachable!("one of them is there"));
        let (closing, role) = (watch::Sender::new(false), watch::Sender::new(seeking()));
        let shared = DirectoryWake { listeners: Arc::default(), role: role.subscribe() };
        let listeners = options.wake.is_none().then(|| shared.listeners.clone());
        let wake = options.wake.unwrap_or_else(|| Arc::new(shared));
        let held = HeldLeases::begin();
        let recovery = Mutex::new(options.file.ledger.recovery);
        let directory = Arc::new(Directory {
            recovery,
            path: std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf()),
            options: options.file,
            sharing: options.sharing,
            clock: clock.clone(),
            awake,
            wake: wake.clone(),
            listeners,
            runtime: Handle::current(),
            member: Mutex::default(),
            role,
            closing: closing.clone(),
            outcomes: Mutex::default(),
            held,
            last_event: AtomicU64::new(0),
        });
        let open = Arc::new(KeptOpen(closing));
        let (tell, told) = oneshot::channel();
        let failed = |why| OpenError::Io { doing: "start a thread for", path: "it".into(), why };
        manager::start(directory.clone(), tell).map_err(failed)?;
        let ended = || Err(failed(std::io::Error::other("it has ended")));
        told.await.unwrap_or_else(|_| ended())?;
        let store = Arc::new(Self { directory, remote: false, _open: open });
        Ok(OpenDirectory { store, clock, wake })
    }

    /// Tells events to somebody whenever this process owns the directory, and whether it does.
    pub(crate) fn listen(&self, listener: Weak<dyn EventListener>) {
        let mut outcomes = self.directory.outcomes();
        *outcomes = Some(listener);
        self.directory.tell_outcomes(&outcomes);
    }

    /// The store of this process, if it owns the directory.
    fn own(&self) -> Option<Arc<FileStore>> {
        match &*self.directory.role.borrow() {
            DirectoryRole::Owner(store) => Some(store.clone()),
            DirectoryRole::Joined(_)
            | DirectoryRole::Seeking(_)
            | DirectoryRole::Broken(_)
            | DirectoryRole::Closed => None,
        }
    }

    /// Makes a call wherever the directory is open, and again if its answer was lost and that does
    /// no harm.
    async fn elsewhere(&self, mut call: Call) -> Answer<Reply> {
        let (doing, directory) = (call.doing(), &self.directory);
        let mut role = directory.role.subscribe();
        let mut failed = None::<(Fault, Steady)>;
        loop {
            let now = role.borrow_and_update().clone();
            let fault = match now {
                DirectoryRole::Owner(store) => {
                    let served = Served { store, wake: directory.wake.clone() };
                    return call.answered_by(&served).await.map_err(|it| it.into_error(doing));
                }
                DirectoryRole::Joined(joined) => match directory.send(&joined, &call).await {
                    Ok(Response { answer: Err(fault), .. })
                        if is_of_a_broken_store(&fault, call.may_repeat()) =>
                    {
                        fault
                    }
                    Ok(response) => return response.answer.map_err(|it| it.into_error(doing)),
                    Err(fault @ Fault::Unknown { .. }) if !call.may_repeat() => {
                        return Err(fault.into_error(doing));
                    }
                    Err(fault) => fault,
                },
                DirectoryRole::Seeking(why) => not_reached(&why),
                DirectoryRole::Broken(refusal) => return Err(refusal.into()),
                DirectoryRole::Closed => return Err(not_reached("it was closed").into_error(doing)),
            };
            // Whether it was done is unknown for good, once it was sent.
            let now = directory.clock.now().steady;
            let (known, since) = failed.take().unwrap_or_else(|| (fault.clone(), now));
            let fault = if matches!(known, Fault::Unknown { .. }) { known } else { fault };
            let left = PATIENCE.saturating_sub(now.since(since));
            tokio::select! {
                biased;
                _ = role.changed() => {}
                () = directory.clock.sleep(left) => return Err(fault.into_error(doing)),
            }
            failed = Some((fault, since));
            // Whoever waits for events looks whether some are gone with the last owner.
            if let Call::Events { wait, .. } = &mut call {
                *wait = Duration::ZERO;
            }
        }
    }

    /// Names a worker before it claims, so that others know when it is gone.
    fn name_worker(&self, worker: &Arc<str>) -> Answer<()> {
        let member = self.directory.member();
        let Some(member) = &*member else { return Ok(()) };
        let named = match self.remote {
            true => member.name_remote_worker(worker),
            false => member.name_worker(worker),
        };
        named.map_err(|error| {
            let why = format!("its worker cannot be named in the directory: {error}");
            Refusal::Unavailable { why }.into()
        })
    }
}

/// Whether an owner answers so because its store has broken: it gives the directory up, and its
/// successor can be asked.
fn is_of_a_broken_store(fault: &Fault, may_repeat: bool) -> bool {
    match fault {
        Fault::Refused(refusal) => matches!(refusal, Refusal::StoreBroken { .. }),
        Fault::Unknown { .. } => may_repeat,
    }
}

/// The workers of a directory that may still run what they began. For whoever has its lock.
pub(super) fn living_workers(path: &Path) -> Result<BTreeSet<Arc<str>>, OpenError> {
    Ok(survey(path)?.living)
}

/// Refuses a directory that processes have open, also if none of them owns it at this moment. For
/// whoever has its lock.
pub(super) fn refuse_members(path: &Path) -> Result<(), OpenError> {
    match survey(path)?.members {
        0 => Ok(()),
        members => Err(OpenError::InUse {
            path: path.display().to_string(),
            holder: format!("{members} other process(es) that share it"),
        }),
    }
}

fn survey(path: &Path) -> Result<MemberSurvey, OpenError> {
    let (doing, shown) = ("look for members of", path.display().to_string());
    member::survey(path).map_err(|why| OpenError::Io { doing, path: shown, why })
}

fn seeking() -> DirectoryRole {
    DirectoryRole::Seeking("no process that has it open answers".into())
}

fn not_reached(why: &str) -> Fault {
    Fault::Refused(Refusal::Unavailable { why: why.to_string() })
}

impl Directory {
    /// Sends a call to the owner, and takes note of what its answer tells.
    async fn send(&self, joined: &JoinedOwner, call: &Call) -> Result<Response, Fault> {
        let is_claim = matches!(call, Call::Claim(_));
        let _on_its_way = is_claim.then(|| ClaimOnItsWay::begin(&self.held));
        let response = joined.connection.send(call.clone()).await?;
        self.last_event.fetch_max(response.last_event, Ordering::SeqCst);
        if let Ok(Reply::Claimed(claimed)) = &response.answer {
            self.held.claimed(claimed);
        }
        Ok(response)
    }

    /// Changes who answers calls.
    fn set_role(&self, role: DirectoryRole) {
        // Held throughout, so that the last change is what those who wait for outcomes hear last.
        let outcomes = self.outcomes();
        if let Some(awake) = &self.awake {
            awake.set_owner(matches!(role, DirectoryRole::Owner(_)));
        }
        self.role.send_replace(role);
        self.tell_outcomes(&outcomes);
    }

    /// Tells those who wait for outcomes whether they hear events from the store of this process,
    /// or must read those of another.
    fn tell_outcomes(&self, outcomes: &Option<Weak<dyn EventListener>>) {
        let Some(listener) = outcomes else { return };
        let role = self.role.borrow().clone();
        if let DirectoryRole::Owner(store) = &role {
            store.listen(listener.clone());
        }
        if let Some(listener) = listener.upgrade() {
            listener.source_changed(matches!(role, DirectoryRole::Owner(_)));
        }
    }

    fn recovery(&self) -> Recovery {
        *self.recovery.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn member(&self) -> MutexGuard<'_, Option<Member>> {
        self.member.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn outcomes(&self) -> MutexGuard<'_, Option<Weak<dyn EventListener>>> {
        self.outcomes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The answer to a call is one to another.
fn odd(doing: &'static str) -> StoreError {
    StoreError::Unknown { doing, source: "the answer is one to another call".into() }
}

/// Makes a call here if this process owns the directory, and elsewhere if not.
macro_rules! ask {
    ($self:ident, $verb:ident($($argument:expr),*), $call:expr, $reply:path) => {{
        if let Some(store) = $self.own() {
            return store.$verb($($argument),*).await;
        }
        let call = $call;
        let doing = call.doing();
        match $self.elsewhere(call).await? {
            $reply(answer) => Ok(answer),
            _ => Err(odd(doing)),
        }
    }};
}

#[async_trait]
impl Store for DirectoryStore {
    async fn enqueue(&self, jobs: Vec<Arc<NewJob>>) -> Answer<Vec<Enqueued>> {
        ask!(self, enqueue(jobs), Call::Enqueue(jobs), Reply::Enqueued)
    }

    async fn claim(&self, claim: Claim) -> Answer<ClaimedBatch> {
        self.name_worker(&claim.worker)?;
        if let Some(store) = self.own() {
            return store.claim(claim).await;
        }
        match self.elsewhere(Call::Claim(claim)).await? {
            Reply::Claimed(claimed) => Ok(claimed),
            _ => Err(odd("claim jobs")),
        }
    }

    async fn renew(&self, renewals: Vec<Renewal>) -> Answer<Vec<Result<Renewed, Refusal>>> {
        ask!(self, renew(renewals), Call::Renew(renewals), Reply::Renewed)
    }

    async fn settle(&self, settlements: Vec<Settlement>) -> Answer<Vec<Result<Settled, Refusal>>> {
        if let Some(store) = self.own() {
            return store.settle(settlements).await;
        }
        let tokens: Vec<LeaseToken> = settlements.iter().map(|it| it.token).collect();
        let settled = match self.elsewhere(Call::Settle(settlements)).await? {
            Reply::Settled(settled) => settled,
            _ => return Err(odd("settle jobs")),
        };
        self.directory.held.settled(&tokens, &settled);
        Ok(settled)
    }

    async fn rescue(&self, rescue: Rescue) -> Answer<Rescued> {
        ask!(self, rescue(rescue), Call::Rescue(rescue), Reply::Rescued)
    }

    async fn promote(&self) -> Answer<Promoted> {
        ask!(self, promote(), Call::Promote, Reply::Promoted)
    }

    async fn alter(&self, alter: AlterJobs) -> Answer<Vec<JobActionResult>> {
        ask!(self, alter(alter), Call::Alter(alter), Reply::Altered)
    }

    async fn alter_queue(&self, alter: AlterQueue) -> Answer<QueueActionDone> {
        ask!(self, alter_queue(alter), Call::AlterQueue(alter), Reply::QueueAltered)
    }

    async fn turn(&self, turn: Turn) -> Answer<Turned> {
        ask!(self, turn(turn), Call::Turn(Box::new(turn)), Reply::Turned)
    }

    async fn objects(&self, query: &ObjectQuery) -> Answer<ObjectPage> {
        ask!(self, objects(query), Call::Objects(query.clone()), Reply::Objects)
    }

    async fn heartbeat(&self, worker: Arc<str>, news: WorkerReport) -> Answer<HeartbeatAnswer> {
        ask!(self, heartbeat(worker, news), Call::Heartbeat { worker, news }, Reply::Heartbeat)
    }

    async fn jobs(&self, query: &JobQuery) -> Answer<Page> {
        ask!(self, jobs(query), Call::Jobs(query.clone()), Reply::Jobs)
    }

    async fn count(&self) -> Answer<Counts> {
        ask!(self, count(), Call::Count, Reply::Counts)
    }

    async fn explain(&self, job: JobId) -> Answer<Explanation> {
        ask!(self, explain(job), Call::Explain(job), Reply::Explanation)
    }

    async fn events(&self, after: u64, limit: usize, wait: Duration) -> Answer<Vec<Arc<Event>>> {
        ask!(self, events(after, limit, wait), Call::Events { after, limit, wait }, Reply::Events)
    }

    fn info(&self) -> StoreInfo {
        let directory = &self.directory;
        let mut info = match &*directory.role.borrow() {
            DirectoryRole::Owner(store) => {
                let recovery = Some(directory.recovery());
                StoreInfo { ownership: Some(Ownership::Owner), recovery, ..store.info() }
            }
            DirectoryRole::Joined(joined) => {
                let owner = joined.owner.clone();
                StoreInfo { ownership: Some(Ownership::Joined { owner }), ..joined.info.clone() }
            }
            DirectoryRole::Seeking(_) | DirectoryRole::Broken(_) | DirectoryRole::Closed => {
                let info = StoreInfo::new(Durability::Sync, 0);
                StoreInfo { ownership: Some(Ownership::Seeking), shares_commits: true, ..info }
            }
        };
        let known = directory.last_event.fetch_max(info.last_event, Ordering::SeqCst);
        info.last_event = info.last_event.max(known);
        info
    }

    fn for_remote_workers(&self) -> Option<Arc<dyn Store>> {
        Some(Arc::new(Self { remote: true, ..self.clone() }))
    }

    async fn close(&self) {
        self.directory.closing.send_replace(true);
        let mut role = self.directory.role.subscribe();
        // The thread says so last, or has ended.
        let _ = role.wait_for(|role| matches!(role, DirectoryRole::Closed)).await;
    }
}

/// Rings those who listen in this process, and in all others that share the directory.
#[derive(Clone)]
struct DirectoryWake {
    listeners: Arc<LocalWake>,
    role: watch::Receiver<DirectoryRole>,
}

impl fmt::Debug for DirectoryWake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DirectoryWake")
    }
}

#[async_trait]
impl Wake for DirectoryWake {
    async fn ring(&self, rings: &[Ring]) {
        self.listeners.ring_now(rings);
        let joined = match &*self.role.borrow() {
            DirectoryRole::Joined(joined) => joined.clone(),
            // Others ask the owner for what was rung.
            DirectoryRole::Owner(_)
            | DirectoryRole::Seeking(_)
            | DirectoryRole::Broken(_)
            | DirectoryRole::Closed => return,
        };
        let _ = joined.connection.send(Call::Ring(rings.to_vec())).await;
    }

    fn listen(&self, interest: Interest) -> Box<dyn Listener> {
        self.listeners.listen(interest)
    }

    async fn rung_after(&self, after: Option<u64>, interests: &[Interest]) -> Rung {
        self.listeners.rung_after(after, interests).await
    }
}
