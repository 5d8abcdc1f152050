//! The thread of an engine on a directory: it owns, serves, joins and takes over.
//!
//! It has a runtime of its own, so that what others ask does not depend on what the program does
//! with its runtime.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tokio::net::UnixListener;
use tokio::net::UnixStream;
use tokio::runtime::{Builder, Handle};
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinSet;
use tokio::time::timeout;
use windlass_core::ledger::{LostWorkers, Recovery, RescueLost};
use windlass_core::refusal::Refusal;
use windlass_core::time::Steady;

use super::member::{self, DeadMember, Member, this_process};
use super::service::{JoinedService, OwnerService};
use super::settings::Settings;
use super::{Directory, DirectoryRole, JoinedOwner, Sharing, seeking, socket};
use crate::clock::{Clock, SystemClock};
use crate::store::file::{FileOptions, LedgerOptions, OpenError, RealDisk, this_thread_serves};
use crate::store::{FileStore, Store, StoreError};
use crate::wire::{
    Call, Connection, ConnectionError, Joining, Reply, StreamConnection, last_ring,
    pass_rings_on_after, serve,
};

/// How often members are looked at, and whether the store is in order.
const TICK: Duration = Duration::from_millis(100);

/// How long a process that has the directory and does not answer is waited for when it is opened.
const OPENING: Duration = Duration::from_secs(10);

/// How long an owner may take to greet.
const GREETING: Duration = Duration::from_secs(10);

/// The first pause before an owner is sought again; it doubles up to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LAST_PAUSE: Duration = Duration::from_millis(50);

/// An owner that says nothing for this long, while somebody waits for it, is asked whether it is
/// there; and after the second it is given up.
const QUIET: Duration = Duration::from_secs(3);
const SILENT: Duration = Duration::from_secs(10);

/// A process that has taken over so often within a minute has a reason not to try again.
const TAKEOVERS: usize = 3;
const TAKEOVERS_WITHIN: Duration = Duration::from_secs(60);

/// How long those who have joined may take to hear that the owner closes.
const DRAINING: Duration = Duration::from_secs(5);

/// How many processes may have joined at once.
const CONNECTIONS: usize = 1_000;

/// What the thread does next.
enum NextRole {
    Own(OwnedDirectory),
    Follow(Arc<JoinedOwner>),
    Seek,
    End,
}

/// The directory, owned.
struct OwnedDirectory {
    store: Arc<FileStore>,
    /// `None` where there are no sockets: then nobody can join.
    listener: Option<UnixListener>,
    recovery: Recovery,
}

/// Why there is no role yet.
enum NotYet {
    /// It may be different in a moment.
    Later(OpenError),
    /// It will not.
    Never(OpenError),
}

type OpeningTold = oneshot::Sender<Result<(), OpenError>>;

/// Starts the thread. It tells when the directory is open, or why it is not.
pub(super) fn start(directory: Arc<Directory>, tell: OpeningTold) -> io::Result<()> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let named = std::thread::Builder::new().name("windlass-directory".to_string());
    let run = move || {
        this_thread_serves();
        let run = async {
            let (directory, time) = (directory.clone(), Arc::new(SystemClock::new()));
            let takeovers = RecentTakeovers::default();
            let manager = Manager { directory, takeovers, time, broken: false };
            manager.run(tell).await;
        };
        let ended = crate::panics::catch(|| runtime.block_on(run));
        if let Err(panic) = ended {
            tracing::error!(panic, "the thread of a directory crashed");
        }
        drop(directory.member().take());
        directory.role.send_replace(DirectoryRole::Closed);
    };
    named.spawn(run).map(drop)
}

struct Manager {
    directory: Arc<Directory>,
    takeovers: RecentTakeovers,
    /// Real time: what a program's clock shows does not matter to other processes.
    time: Arc<SystemClock>,
    /// The store broke in this process: it does not open it again.
    broken: bool,
}

/// When this process took over, lately. Whoever has done so too often leaves it to others: what
/// ends its ownership again and again may be its own fault.
#[derive(Default)]
struct RecentTakeovers {
    times: VecDeque<Steady>,
    told: bool,
}

impl RecentTakeovers {
    fn note(&mut self, now: Steady) {
        self.times.push_back(now);
    }

    fn are_too_many(&mut self, now: Steady) -> bool {
        while self.times.front().is_some_and(|at| now.since(*at) > TAKEOVERS_WITHIN) {
            self.times.pop_front();
        }
        let too_many = self.times.len() >= TAKEOVERS;
        if too_many && !self.told {
            tracing::warn!("this process has taken over {TAKEOVERS} times in a minute, and waits");
        }
        self.told = too_many;
        too_many
    }
}

impl Manager {
    async fn run(mut self, tell: OpeningTold) {
        let mut next = match self.open().await {
            Ok(next) => next,
            Err(error) => return drop(tell.send(Err(error))),
        };
        self.publish(&next);
        if tell.send(Ok(())).is_err() {
            // Whoever opened it is gone.
            self.directory.closing.send_replace(true);
        }
        loop {
            next = match next {
                NextRole::Own(ownership) => self.own(ownership).await,
                NextRole::Follow(joined) => self.follow(joined).await,
                NextRole::Seek => {
                    let next = self.seek().await;
                    self.publish(&next);
                    next
                }
                NextRole::End => return,
            };
        }
    }

    /// Says who answers calls from now on.
    fn publish(&self, next: &NextRole) {
        let role = match next {
            NextRole::Own(owned) => DirectoryRole::Owner(owned.store.clone()),
            NextRole::Follow(joined) => DirectoryRole::Joined(joined.clone()),
            NextRole::Seek | NextRole::End => return,
        };
        self.directory.set_role(role);
        // Whoever listens looks once: nobody knows what was missed.
        self.directory.listeners.iter().for_each(|listeners| listeners.ring_everyone());
    }

    async fn closing(&self) {
        let mut closing = self.directory.closing.subscribe();
        let _ = closing.wait_for(|closing| *closing).await;
    }

    /// Owns the directory or joins its owner, for the first time.
    async fn open(&mut self) -> Result<NextRole, OpenError> {
        let began = self.time.now().steady;
        let mut pause = FIRST_PAUSE;
        loop {
            let error = match self.attempt(true).await {
                Ok(next) => return Ok(next),
                Err(NotYet::Never(error)) => return Err(error),
                Err(NotYet::Later(error)) => error,
            };
            // One that is refused if another has it does not wait for that, unless it is an engine
            // of this process that is letting go.
            let fails = self.directory.sharing == Sharing::OwnOrFail && !error.is_in_use_here();
            let alone = matches!(error, OpenError::NotOwned { .. });
            if fails || alone || self.time.now().steady.since(began) > OPENING {
                return Err(error);
            }
            self.time.sleep(pause).await;
            pause = (pause * 2).min(LAST_PAUSE);
        }
    }

    /// Looks for an owner, and becomes one if it may, for as long as it takes.
    async fn seek(&mut self) -> NextRole {
        let mut pause = FIRST_PAUSE;
        loop {
            match self.attempt(false).await {
                Ok(next) => return next,
                Err(NotYet::Later(error) | NotYet::Never(error)) => self.say(error.to_string()),
            }
            tokio::select! {
                () = self.time.sleep(pause) => {}
                () = self.closing() => return NextRole::End,
            }
            pause = (pause * 2).min(LAST_PAUSE);
        }
    }

    /// Says why there is no owner, to those who wait for one.
    fn say(&self, why: String) {
        self.directory.role.send_if_modified(|role| match role {
            DirectoryRole::Seeking(known) if **known == *why => false,
            DirectoryRole::Seeking(known) => {
                *known = why.into();
                true
            }
            DirectoryRole::Owner(_)
            | DirectoryRole::Joined(_)
            | DirectoryRole::Broken(_)
            | DirectoryRole::Closed => false,
        });
    }

    async fn attempt(&mut self, first: bool) -> Result<NextRole, NotYet> {
        let sharing = self.directory.sharing;
        if sharing != Sharing::OwnOrFail
            && let Some(joined) = self.join().await?
        {
            return Ok(NextRole::Follow(joined));
        }
        let may_own = match sharing {
            Sharing::OwnOrJoin => {
                first || !self.broken && !self.takeovers.are_too_many(self.time.now().steady)
            }
            Sharing::OwnOrFail | Sharing::NeverTakeOver => first,
            Sharing::JoinOrFail => false,
        };
        if !may_own {
            let path = self.directory.path.display().to_string();
            return Err(NotYet::Later(OpenError::NotOwned { path }));
        }
        match RealDisk::open(&self.directory.path) {
            Ok(disk) => {
                if !first {
                    self.takeovers.note(self.time.now().steady);
                }
                self.take(disk, first).await.map(NextRole::Own).map_err(NotYet::Never)
            }
            Err(error @ OpenError::InUse { .. }) => Err(NotYet::Later(error)),
            Err(error) => Err(NotYet::Never(error)),
        }
    }

    /// Opens the store, of which the lock was taken.
    async fn take(&mut self, disk: RealDisk, first: bool) -> Result<OwnedDirectory, OpenError> {
        let directory = &self.directory;
        let failed =
            |doing| move |error| OpenError::Io { doing, path: "the directory".into(), why: error };
        self.enter().map_err(failed("become a member of"))?;
        let survey = member::survey(&directory.path).map_err(failed("look for members of"))?;
        // Whoever takes over goes on with what there is, alone or not.
        let settings = self.settings(first && survey.members <= 1);
        let options = FileOptions {
            ledger: LedgerOptions {
                limits: settings.limits.clone(),
                recovery: settings.recovery,
                living_workers: survey.living,
                ..directory.options.ledger.clone()
            },
            durability: settings.durability,
        };
        let (clock, wake) = (directory.clock.clone(), directory.wake.clone());
        let runtime = directory.runtime.clone();
        let store = FileStore::open_on(Arc::new(disk), &options, clock, wake, runtime)?;
        let store = Arc::new(store);
        // What ran in them has been recovered, durably.
        survey.dead.into_iter().for_each(DeadMember::forget);
        member::forget_remote(&directory.path, |workers| store.has_leases_of(workers));
        store.serve_on(Handle::current());
        if let Some(held) = directory.held.all().await {
            let workers = directory.member().as_ref().map(Member::workers).unwrap_or_default();
            let released = store.release_unheld(&workers, &held).await;
            released.map_err(|error| OpenError::Recovery { why: error.to_string() })?;
        }
        directory.held.forget_all();
        *directory.recovery.lock().unwrap_or_else(PoisonError::into_inner) = settings.recovery;
        if !first {
            tracing::info!(path = %directory.path.display(), "took the store over");
        }
        let listener = self.listen();
        Ok(OwnedDirectory { store, listener, recovery: settings.recovery })
    }

    /// Those of the directory; or those that this program brings, if it opens it anew.
    fn settings(&self, anew: bool) -> Settings {
        let directory = &self.directory;
        let own = Settings {
            limits: directory.options.ledger.limits.clone(),
            recovery: directory.options.ledger.recovery,
            durability: directory.options.durability,
        };
        let known = Settings::read(&directory.path);
        if !anew && let Some(known) = known {
            if known != own {
                let why = "limits, recovery or durability of this program differ from those of \
                           the directory, which stay until nobody else has it open";
                tracing::warn!(path = %directory.path.display(), "{why}");
            }
            return known;
        }
        if let Err(error) = own.write(&directory.path) {
            tracing::warn!(%error, "the settings of the directory could not be written down");
        }
        own
    }

    fn enter(&self) -> io::Result<()> {
        let mut member = self.directory.member();
        if member.is_none() {
            *member = Some(Member::enter(&self.directory.path)?);
        }
        Ok(())
    }

    /// Listens for others. Without sockets the directory belongs to this process alone.
    fn listen(&self) -> Option<UnixListener> {
        let path = &self.directory.path;
        let listener = socket::listen(path).and_then(UnixListener::from_std);
        listener
            .inspect_err(|error| {
                let path = path.display();
                tracing::warn!(%error, %path, "no other process can join: there is no socket");
            })
            .ok()
    }

    /// Owns the directory until it closes or its store breaks.
    async fn own(&mut self, ownership: OwnedDirectory) -> NextRole {
        let OwnedDirectory { store, listener, recovery } = ownership;
        let directory = self.directory.clone();
        let service =
            Arc::new(OwnerService::new(store.clone(), directory.wake.clone(), self.time.clone()));
        let mut connections = JoinSet::new();
        let someone_left = Arc::new(Notify::new());
        let broken = loop {
            let has_room = connections.len() < CONNECTIONS;
            tokio::select! {
                Ok(stream) = accept(listener.as_ref(), &self.time), if has_room => {
                    if directory.may_enter(&stream) {
                        let left = someone_left.clone();
                        let joined = JoinedService::new(service.clone(), left.clone());
                        connections.spawn(async move {
                            if let Err(error) = serve(stream, Arc::new(joined)).await {
                                tracing::debug!(%error, "a process that had joined was left");
                            }
                            left.notify_one();
                        });
                    }
                }
                Some(_) = connections.join_next() => {}
                () = someone_left.notified() => {
                    directory.look_for_the_dead(&store, &service, recovery).await;
                }
                () = self.time.sleep(TICK) => {
                    directory.clock.now();
                    if !service.is_awake() {
                        // What has arrived meanwhile is overdue: whoever asked has given up.
                        connections.abort_all();
                    }
                    service.note_awake();
                    directory.look_for_the_dead(&store, &service, recovery).await;
                    if let Some(error) = store.broken() {
                        break Some(error);
                    }
                }
                () = self.closing() => break None,
            }
        };
        drop(listener);
        socket::remove(&directory.path);
        service.close();
        let drained = async { while connections.join_next().await.is_some() {} };
        let _ = timeout(DRAINING, drained).await;
        connections.shutdown().await;
        self.let_go(&store, broken).await
    }

    /// Gives the directory up.
    async fn let_go(&mut self, store: &FileStore, broken: Option<StoreError>) -> NextRole {
        let directory = &self.directory;
        let Some(error) = broken else {
            store.close().await;
            return NextRole::End;
        };
        tracing::error!(%error, "the store broke; another process may open it again");
        self.broken = true;
        let refusal = match error {
            StoreError::Refused(refusal) => refusal,
            unknown @ StoreError::Unknown { .. } => {
                Refusal::StoreBroken { why: unknown.to_string() }
            }
        };
        directory.set_role(DirectoryRole::Broken(refusal));
        store.close().await;
        NextRole::Seek
    }

    /// Joins whoever owns the directory; nobody if nobody listens.
    async fn join(&mut self) -> Result<Option<Arc<JoinedOwner>>, NotYet> {
        let directory = &self.directory;
        let Ok(stream) = socket::connect(&directory.path).await else { return Ok(None) };
        let later = |why: String| {
            let (path, holder) = (directory.path.display().to_string(), directory.holder());
            NotYet::Later(OpenError::NotJoined { path, holder, why })
        };
        self.enter().map_err(|error| later(error.to_string()))?;
        let greeted = timeout(GREETING, StreamConnection::greet(stream)).await;
        let connection = match greeted {
            Ok(Ok(connection)) => connection,
            Ok(Err(ConnectionError::Mismatch(mismatch))) => {
                let (path, holder) = (directory.path.display().to_string(), directory.holder());
                let why = mismatch.to_string();
                return Err(NotYet::Never(OpenError::NotJoined { path, holder, why }));
            }
            Ok(Err(error)) => return Err(later(error.to_string())),
            Err(_) => return Err(later(format!("it does not answer for {GREETING:?}"))),
        };
        let joined = timeout(GREETING, self.introduce(connection)).await;
        let joined = joined.map_err(|_| later(format!("it does not answer for {GREETING:?}")))?;
        joined.map(|joined| Some(Arc::new(joined))).map_err(later)
    }

    /// Says what this process has, before anything else is asked.
    async fn introduce(&self, connection: StreamConnection) -> Result<JoinedOwner, String> {
        let directory = &self.directory;
        let member = directory.member().as_ref().map(Member::id);
        let workers: BTreeSet<_> =
            directory.member().as_ref().map(Member::workers).unwrap_or_default();
        let held = directory.held.all().await.map(Vec::from_iter);
        let workers = Vec::from_iter(workers);
        let joining = Joining { process: this_process(), member, workers, held };
        let asked = |call| async {
            let response = connection.send(call).await.map_err(|fault| format!("{fault:?}"))?;
            response.answer.map_err(|fault| format!("{fault:?}"))
        };
        let Reply::Joined { owner } = asked(Call::Join(joining)).await? else {
            return Err("it answers something else".to_string());
        };
        let Reply::Info(mut info) = asked(Call::Info).await? else {
            return Err("it answers something else".to_string());
        };
        info.opened = None;
        let last_ring = last_ring(&connection).await.map_err(|fault| format!("{fault:?}"))?;
        Ok(JoinedOwner { connection, owner, info, last_ring })
    }

    /// Has joined another process, until that one is gone.
    async fn follow(&mut self, joined: Arc<JoinedOwner>) -> NextRole {
        let directory = self.directory.clone();
        let rings = async {
            if let Some(listeners) = &directory.listeners {
                pass_rings_on_after(joined.last_ring, &joined.connection, listeners).await;
            }
            // The end of the connection is heard below.
            std::future::pending::<()>().await;
        };
        let next = tokio::select! {
            () = joined.connection.end() => NextRole::Seek,
            () = give_up_if_silent(&joined, &self.time) => NextRole::Seek,
            () = rings => NextRole::Seek,
            () = self.closing() => NextRole::End,
        };
        match next {
            NextRole::End => joined.connection.close().await,
            NextRole::Own(_) | NextRole::Follow(_) | NextRole::Seek => {
                directory.set_role(seeking())
            }
        }
        next
    }
}

/// Returns when an owner that was asked has said nothing for too long.
async fn give_up_if_silent(joined: &JoinedOwner, time: &SystemClock) {
    let connection = &joined.connection;
    let mut heard = (connection.activity().0, time.now().steady);
    let mut asked = false;
    loop {
        time.sleep(TICK).await;
        let (received, waiting) = connection.activity();
        let now = time.now().steady;
        let quiet = now.since(heard.1);
        if received != heard.0 || !waiting {
            (heard, asked) = ((received, now), false);
        } else if quiet > SILENT {
            let why = format!("{} has not answered for {SILENT:?}", joined.owner);
            return connection.give_up(why);
        } else if quiet > QUIET && !std::mem::replace(&mut asked, true) {
            // If it takes no calls any more, this one waits as well.
            tokio::spawn(connection.ask());
        }
    }
}

async fn accept(listener: Option<&UnixListener>, time: &SystemClock) -> io::Result<UnixStream> {
    let Some(listener) = listener else { return std::future::pending().await };
    match listener.accept().await {
        Ok((stream, _)) => Ok(stream),
        Err(error) => {
            // Out of descriptors, say: others wait in the backlog.
            time.sleep(TICK).await;
            Err(error)
        }
    }
}

impl Directory {
    /// Which process has the lock, as far as it says.
    fn holder(&self) -> String {
        RealDisk::holder(&self.path)
    }

    /// Whether whoever connects may.
    fn may_enter(&self, stream: &UnixStream) -> bool {
        let user = stream.peer_cred().map(|peer| peer.uid());
        let may = user.and_then(|user| socket::may_enter(user, &self.path));
        may.unwrap_or(false)
    }

    /// Gives back the jobs of members that have died.
    async fn look_for_the_dead(
        &self,
        store: &FileStore,
        service: &OwnerService,
        recovery: Recovery,
    ) {
        let survey = match member::survey(&self.path) {
            Ok(survey) => survey,
            Err(error) => return tracing::warn!(%error, "who has joined could not be looked at"),
        };
        for dead in survey.dead {
            // Asked before: a claim that is made meanwhile is found the next time.
            let may_ask = service.may_ask(&dead.id());
            let mut jobs = 0;
            let rescued = loop {
                let lost = LostWorkers::These(dead.workers.clone());
                match store.rescue_lost(RescueLost { recovery, lost }).await {
                    Ok(rescued) => {
                        jobs += rescued.jobs.len();
                        if !rescued.more {
                            break true;
                        }
                    }
                    Err(error) => {
                        tracing::warn!(%error, "jobs of a lost process will be recovered again");
                        break false;
                    }
                }
            };
            if rescued && (jobs > 0 || !may_ask) {
                let process = &dead.process;
                tracing::warn!(process, jobs, "a process was lost; its jobs were recovered");
            }
            if rescued && !may_ask {
                dead.forget();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_taken_over_three_times_in_a_minute_leaves_it_to_others_until_it_has_passed() {
        let mut takeovers = RecentTakeovers::default();
        let at = |seconds: u64| Steady::from_micros(seconds * 1_000_000);
        for (second, too_many) in [(0, false), (20, false), (40, true)] {
            takeovers.note(at(second));
            assert_eq!(takeovers.are_too_many(at(second)), too_many, "second {second}");
        }
        assert!(takeovers.are_too_many(at(60)));
        assert!(!takeovers.are_too_many(at(61)));
    }
}
