//! What wakes over a network have in common. A transport only sends and receives words, of which
//! each is a ring as text.
//!
//! - Listeners of this process are rung at once, without a round trip.
//! - A ring is sent at once. The same ring within the next few milliseconds, or while the server is
//!   slow, is sent once more, however often it came. Ringing never waits for the network.
//! - A lost connection is made again, with a pause that doubles. Rings of the meantime may be lost,
//!   so every listener is woken once, to look, when listening has begun again, and not before.
//!
//! Answers: a thousand enqueues ring a thousand times, and a wake that waited for the network would
//! add a round trip to each of them.
//! Why not simpler: to drop a ring that was just sent could lose the last one, after which a worker
//! sleeps until its next poll. So the second ring waits, and is sent when the first has rested.
//! Guarded by: the tests below, `conformance/wakes.rs`, and
//! `whoever_is_told_to_look_again_is_listening_already` in `tests/wakes/main.rs`.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use windlass_core::name::Name;

use super::{Interest, Listener, LocalWake, Ring, Rung};
use crate::clock::{Clock, SystemClock};
use crate::error::Error;

pub(super) use crate::failure::BoxError;

/// The same ring goes out once in this time. Far below what a person or a deadline notices, and
/// enough to make one message of a burst.
const REST: Duration = Duration::from_millis(3);

/// A connection on which nothing was said for this long is asked whether it is still there.
const QUIET: Duration = Duration::from_secs(10);

/// A server that does not answer for this long is taken for lost.
const PATIENCE: Duration = Duration::from_secs(5);

/// The first pause before a connection is tried again; it doubles up to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LAST_PAUSE: Duration = Duration::from_secs(5);

/// How long [`super::Wake::flush`] may take: whoever ends a process wants it to end.
const FLUSH: Duration = Duration::from_millis(500);

/// Rings kept for a connection that is to come back. More would say no more than "look again".
const WAITING_MAX: usize = 1_000;

/// How a wake over a network is set up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WakeOptions {
    /// What processes that share jobs have in common: the name of the schema on PostgreSQL, which
    /// is also the channel, and the first part of the channel or subject on Redis and NATS. At
    /// most 63 letters, digits, `_`, `-` and `.`; `windlass` by default.
    pub name: String,
    /// Whether rings of other processes are heard; yes by default. Without it workers poll, and
    /// their own rings still go out. To be turned off behind a PostgreSQL pooler in transaction
    /// mode, where `LISTEN` has no effect.
    pub listening: bool,
    /// Whether the server must answer now; yes by default. Otherwise it is sought in the
    /// background, for as long as it takes.
    pub at_once: bool,
}

impl Default for WakeOptions {
    fn default() -> Self {
        Self { name: "windlass".into(), listening: true, at_once: true }
    }
}

impl WakeOptions {
    /// Refuses a name that some transport could not carry.
    fn check(&self) -> Result<(), Error> {
        let has_gap = self.name.split('.').any(str::is_empty);
        if Name::new(&self.name).is_ok() && self.name.len() <= 63 && !has_gap {
            return Ok(());
        }
        let allowed = "it must be 1 to 63 letters, digits, `_`, `-`, with `.` between them";
        let got = self.name.chars().take(80).flat_map(char::escape_debug).collect();
        Err(Error::InvalidSetting { setting: "name of the wake", got, allowed })
    }
}

/// A way to other processes.
#[async_trait]
pub(super) trait Transport: fmt::Debug + Send + Sync + 'static {
    /// Where it leads, without credentials.
    fn server(&self) -> String;

    /// Connects, and if asked to, listens: whatever is said from the moment this returns is heard.
    async fn connect(&self, listening: bool) -> Result<RemoteConnection, BoxError>;
}

/// A connection, which ends when both are dropped.
pub(super) struct RemoteConnection {
    pub(super) publisher: Box<dyn WakePublisher>,
    pub(super) subscriber: Box<dyn WakeSubscriber>,
}

#[async_trait]
pub(super) trait WakePublisher: Send {
    /// Says all of these words to whoever listens elsewhere; without any, asks whether the
    /// connection is alive.
    async fn say(&mut self, words: &[String]) -> Result<(), BoxError>;
}

#[async_trait]
pub(super) trait WakeSubscriber: Send {
    /// The next word that another process said. Dropping the future loses nothing.
    async fn hear(&mut self) -> Result<String, BoxError>;
}

/// A ring as a word.
fn word(ring: &Ring) -> String {
    match ring {
        Ring::Queue(queue) => format!("q:{queue}"),
        Ring::Cancel => "c".into(),
    }
}

/// The ring that a word means; others may say what they like.
fn ring_of(word: &str) -> Option<Ring> {
    match word.strip_prefix("q:") {
        Some(queue) => Name::new(queue).ok().map(Ring::Queue),
        None => (word == "c").then_some(Ring::Cancel),
    }
}

/// A wake over a transport. Its connection ends when it is dropped.
pub(super) struct Remote {
    shared: Arc<RemoteShared>,
    task: AbortHandle,
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shared.transport.server())
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[derive(Debug)]
struct RemoteShared {
    transport: Box<dyn Transport>,
    local: LocalWake,
    outbox: Mutex<Outbox>,
    /// Something can be said.
    more: Notify,
    /// Nothing is left to be said.
    empty: watch::Sender<bool>,
    clock: SystemClock,
}

/// Rings that are to be sent.
#[derive(Debug, Default)]
struct Outbox {
    waiting: BTreeSet<Ring>,
    /// Being sent. Kept here and not by the task that sends them, which is dropped when the
    /// connection is found lost: then they are sent again on the next one
    /// (`a_ring_on_its_way_when_the_connection_ends_goes_out_again_and_so_do_later_ones`).
    leaving: BTreeSet<Ring>,
    /// Sent a moment ago: the same again waits.
    resting: BTreeSet<Ring>,
}

impl Remote {
    pub(super) async fn start(
        transport: impl Transport,
        options: &WakeOptions,
    ) -> Result<Self, Error> {
        options.check()?;
        let shared = Arc::new(RemoteShared {
            transport: Box::new(transport),
            local: LocalWake::new(),
            outbox: Mutex::default(),
            more: Notify::new(),
            empty: watch::Sender::new(true),
            clock: SystemClock::new(),
        });
        let listening = options.listening;
        let first = match shared.connect(listening).await {
            Err(why) if options.at_once => {
                let server = shared.transport.server();
                return Err(Error::WakeUnreachable { server, why: told(&*why) });
            }
            first => first.ok(),
        };
        let task = tokio::spawn(keep_connected(shared.clone(), first, listening)).abort_handle();
        Ok(Self { shared, task })
    }

    pub(super) fn ring(&self, rings: &[Ring]) {
        self.shared.local.ring_now(rings);
        let mut outbox = self.shared.outbox();
        for ring in rings {
            if outbox.waiting.len() < WAITING_MAX {
                outbox.waiting.insert(ring.clone());
            }
        }
        if !outbox.waiting.is_empty() {
            self.shared.empty.send_replace(false);
        }
        drop(outbox);
        self.shared.more.notify_one();
    }

    pub(super) fn listen(&self, interest: Interest) -> Box<dyn Listener> {
        super::Wake::listen(&self.shared.local, interest)
    }

    pub(super) async fn rung_after(&self, after: Option<u64>, interests: &[Interest]) -> Rung {
        super::Wake::rung_after(&self.shared.local, after, interests).await
    }

    pub(super) async fn flush(&self) {
        let mut empty = self.shared.empty.subscribe();
        tokio::select! {
            _ = empty.wait_for(|empty| *empty) => {}
            () = self.shared.clock.sleep(FLUSH) => {}
        }
    }
}

impl RemoteShared {
    fn outbox(&self) -> MutexGuard<'_, Outbox> {
        self.outbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn connect(&self, listening: bool) -> Result<RemoteConnection, BoxError> {
        self.in_time(self.transport.connect(listening)).await
    }

    async fn in_time<T>(
        &self,
        work: impl Future<Output = Result<T, BoxError>>,
    ) -> Result<T, BoxError> {
        tokio::select! {
            done = work => done,
            () = self.clock.sleep(PATIENCE) => Err(format!("no answer in {PATIENCE:?}").into()),
        }
    }

    /// Rings that may go out now.
    fn take(&self) -> BTreeSet<Ring> {
        let mut outbox = self.outbox();
        let ready: BTreeSet<Ring> = outbox.waiting.difference(&outbox.resting).cloned().collect();
        outbox.waiting.retain(|ring| !ready.contains(ring));
        outbox.leaving = ready.clone();
        ready
    }

    /// What was being sent when the connection was lost may not have arrived: it is sent again.
    fn begin_anew(&self) {
        let mut outbox = self.outbox();
        let leaving = std::mem::take(&mut outbox.leaving);
        outbox.waiting.extend(leaving);
    }

    /// What was being sent has arrived. The same ring may be sent again after a rest.
    fn rest(self: &Arc<Self>) {
        let mut outbox = self.outbox();
        let said = std::mem::take(&mut outbox.leaving);
        outbox.resting.extend(said.iter().cloned());
        self.empty.send_replace(outbox.waiting.is_empty());
        drop(outbox);
        let shared = self.clone();
        tokio::spawn(async move {
            shared.clock.sleep(REST).await;
            shared.outbox().resting.retain(|ring| !said.contains(ring));
            shared.more.notify_one();
        });
    }
}

/// Keeps a connection for as long as the wake lives.
async fn keep_connected(
    shared: Arc<RemoteShared>,
    mut line: Option<RemoteConnection>,
    listening: bool,
) {
    let server = shared.transport.server();
    let mut pause = FIRST_PAUSE;
    loop {
        if let Some(line) = line.take() {
            let why = talk(&shared, line).await;
            tracing::warn!(server, why = told(&*why), "wakes are lost; workers poll until then");
        }
        shared.clock.sleep(pause).await;
        pause = (pause * 2).min(LAST_PAUSE);
        match shared.connect(listening).await {
            Ok(again) => {
                tracing::info!(server, "wakes are carried again");
                // Only now: whoever looked before we listen would miss a ring between the two.
                shared.local.ring_everyone();
                line = Some(again);
                pause = FIRST_PAUSE;
            }
            Err(why) => tracing::debug!(server, why = told(&*why), "no connection for wakes"),
        }
    }
}

/// Says and hears until the connection is lost; returns why it was.
async fn talk(shared: &Arc<RemoteShared>, line: RemoteConnection) -> BoxError {
    let RemoteConnection { mut publisher, mut subscriber } = line;
    tokio::select! {
        why = speak(shared, &mut *publisher) => why,
        why = hear(shared, &mut *subscriber) => why,
    }
}

async fn hear(shared: &RemoteShared, subscriber: &mut dyn WakeSubscriber) -> BoxError {
    loop {
        match subscriber.hear().await {
            Ok(word) => match ring_of(&word) {
                Some(ring) => shared.local.ring_now(&[ring]),
                None => tracing::debug!("a wake that means nothing here"),
            },
            Err(why) => return why,
        }
    }
}

async fn speak(shared: &Arc<RemoteShared>, publisher: &mut dyn WakePublisher) -> BoxError {
    shared.begin_anew();
    loop {
        let words: Vec<String> = shared.take().iter().map(word).collect();
        if !words.is_empty() {
            if let Err(why) = shared.in_time(publisher.say(&words)).await {
                return why;
            }
            shared.rest();
            continue;
        }
        tokio::select! {
            () = shared.more.notified() => {}
            () = shared.clock.sleep(QUIET) => {
                if let Err(why) = shared.in_time(publisher.say(&[])).await {
                    return why;
                }
            }
        }
    }
}

/// An error with its causes: the outermost alone often says only that something failed.
fn told(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |told, cause| format!("{told}: {cause}"))
}

/// The methods of a wake that is a [`Remote`] inside.
macro_rules! wake_over {
    ($wake:ident) => {
        #[async_trait::async_trait]
        impl $crate::wake::Wake for $wake {
            async fn ring(&self, rings: &[$crate::wake::Ring]) {
                self.remote.ring(rings);
            }

            fn listen(&self, interest: $crate::wake::Interest) -> Box<dyn $crate::wake::Listener> {
                self.remote.listen(interest)
            }

            async fn rung_after(
                &self,
                after: Option<u64>,
                interests: &[$crate::wake::Interest],
            ) -> $crate::wake::Rung {
                self.remote.rung_after(after, interests).await
            }

            async fn flush(&self) {
                self.remote.flush().await;
            }
        }
    };
}
pub(super) use wake_over;

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;
    use crate::wake::Wake;

    /// A server in memory. It counts what is said, and can be down, silent, or drop everyone.
    #[derive(Clone, Debug, Default)]
    struct Server {
        state: Arc<Mutex<ServerState>>,
        silent: Arc<watch::Sender<bool>>,
    }

    #[derive(Debug, Default)]
    struct ServerState {
        said: Vec<Vec<String>>,
        attempts: usize,
        is_down: bool,
        ears: Vec<mpsc::UnboundedSender<String>>,
    }

    impl Server {
        fn state(&self) -> MutexGuard<'_, ServerState> {
            self.state.lock().unwrap_or_else(PoisonError::into_inner)
        }

        fn said(&self) -> Vec<Vec<String>> {
            std::mem::take(&mut self.state().said)
        }
    }

    #[async_trait]
    impl Transport for Server {
        fn server(&self) -> String {
            "a server in memory".into()
        }

        async fn connect(&self, _listening: bool) -> Result<RemoteConnection, BoxError> {
            let mut state = self.state();
            state.attempts += 1;
            if state.is_down {
                return Err("it is down".into());
            }
            let (subscriber, inbox) = mpsc::unbounded_channel();
            state.ears.push(subscriber);
            Ok(RemoteConnection {
                publisher: Box::new(self.clone()),
                subscriber: Box::new(Inbox(inbox)),
            })
        }
    }

    #[async_trait]
    impl WakePublisher for Server {
        async fn say(&mut self, words: &[String]) -> Result<(), BoxError> {
            let mut silent = self.silent.subscribe();
            silent.wait_for(|silent| !*silent).await.map(drop)?;
            self.state().said.push(words.to_vec());
            Ok(())
        }
    }

    struct Inbox(mpsc::UnboundedReceiver<String>);

    #[async_trait]
    impl WakeSubscriber for Inbox {
        async fn hear(&mut self) -> Result<String, BoxError> {
            self.0.recv().await.ok_or_else(|| "it dropped us".into())
        }
    }

    #[derive(Debug)]
    struct Memory {
        remote: Remote,
    }
    wake_over!(Memory);

    async fn over(server: &Server) -> Memory {
        let options = WakeOptions { at_once: false, ..WakeOptions::default() };
        Memory { remote: Remote::start(server.clone(), &options).await.expect("it may wait") }
    }

    fn queue(name: &str) -> Ring {
        Ring::Queue(Name::new(name).expect("a name"))
    }

    /// Lets paused time pass, with everything that falls due on the way.
    async fn pass(time: Duration) {
        SystemClock::new().sleep(time).await;
    }

    const MOMENT: Duration = Duration::from_micros(1);

    #[tokio::test(start_paused = true)]
    async fn a_ring_goes_out_at_once_and_the_same_soon_after_becomes_one_more() {
        let server = Server::default();
        let wake = over(&server).await;
        wake.ring(&[queue("mail")]).await;
        pass(MOMENT).await;
        assert_eq!(server.said(), [["q:mail"]]);
        for _ in 0..1_000 {
            wake.ring(&[queue("mail")]).await;
        }
        pass(MOMENT).await;
        assert!(server.said().is_empty(), "it rests");
        // Another queue does not wait for it.
        wake.ring(&[queue("other"), Ring::Cancel]).await;
        pass(MOMENT).await;
        assert_eq!(server.said(), [["q:other", "c"]]);
        pass(REST).await;
        assert_eq!(server.said(), [["q:mail"]]);
        pass(REST * 10).await;
        assert!(server.said().is_empty(), "nothing was rung since");
    }

    #[tokio::test(start_paused = true)]
    async fn rings_while_the_server_is_slow_become_one() {
        let server = Server::default();
        let wake = over(&server).await;
        server.silent.send_replace(true);
        wake.ring(&[queue("mail")]).await;
        pass(REST * 2).await;
        for _ in 0..1_000 {
            wake.ring(&[queue("mail")]).await;
        }
        server.silent.send_replace(false);
        pass(REST * 10).await;
        assert_eq!(server.said(), [["q:mail"], ["q:mail"]]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_is_silent_is_left_and_what_was_not_said_is_said_later() {
        let server = Server::default();
        let wake = over(&server).await;
        let mut heard = wake.listen(Interest::Cancels);
        server.silent.send_replace(true);
        wake.ring(&[queue("mail")]).await;
        pass(PATIENCE + MOMENT).await;
        server.silent.send_replace(false);
        heard.heard().await;
        pass(REST).await;
        assert_eq!(server.said(), [["q:mail"]]);
        assert_eq!(server.state().attempts, 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_ring_on_its_way_when_the_connection_ends_goes_out_again_and_so_do_later_ones() {
        let server = Server::default();
        let wake = over(&server).await;
        server.silent.send_replace(true);
        wake.ring(&[queue("mail")]).await;
        pass(MOMENT).await;
        server.state().ears.clear();
        pass(MOMENT).await;
        server.silent.send_replace(false);
        pass(FIRST_PAUSE).await;
        assert_eq!(server.said(), [["q:mail"]]);
        pass(REST).await;
        wake.ring(&[queue("mail")]).await;
        pass(MOMENT).await;
        assert_eq!(server.said(), [["q:mail"]]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_quiet_connection_is_asked_whether_it_is_alive() {
        let server = Server::default();
        let wake = over(&server).await;
        let mut heard = wake.listen(Interest::Cancels);
        pass(QUIET + MOMENT).await;
        assert_eq!(server.said(), [Vec::<String>::new()]);
        server.silent.send_replace(true);
        // It is found out without a ring.
        heard.heard().await;
        assert_eq!(server.state().attempts, 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_is_down_is_sought_less_and_less_eagerly() {
        let server = Server::default();
        let wake = over(&server).await;
        let mut heard = wake.listen(Interest::Queues(None));
        {
            let mut state = server.state();
            state.is_down = true;
            state.ears.clear();
        }
        pass(Duration::from_secs(60)).await;
        let attempts = server.state().attempts;
        assert!((10..30).contains(&attempts), "{attempts} attempts in a minute");
        server.state().is_down = false;
        heard.heard().await;
        let subscriber = server.state().ears.pop().expect("it listens");
        subscriber.send("q:mail".into()).expect("it hears");
        heard.heard().await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_flush_waits_for_the_last_ring_but_not_for_ever() {
        let server = Server::default();
        let wake = over(&server).await;
        wake.ring(&[queue("mail")]).await;
        wake.flush().await;
        assert_eq!(server.said(), [["q:mail"]]);
        server.silent.send_replace(true);
        wake.ring(&[queue("other")]).await;
        wake.flush().await;
        assert!(server.said().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn rings_that_nobody_takes_do_not_pile_up() {
        let server = Server::default();
        server.state().is_down = true;
        let wake = over(&server).await;
        for number in 0..WAITING_MAX * 2 {
            wake.ring(&[queue(&format!("queue-{number}"))]).await;
        }
        assert_eq!(wake.remote.shared.outbox().waiting.len(), WAITING_MAX);
    }

    #[test]
    fn a_word_means_the_ring_it_was_made_of_and_nonsense_means_nothing() {
        for ring in [queue("mail"), queue("a.b-c_d"), queue("c"), Ring::Cancel] {
            assert_eq!(ring_of(&word(&ring)), Some(ring));
        }
        for nonsense in ["", "q:", "q:a b", "cc", "x", "q", "q:\u{0}", "Q:mail"] {
            assert_eq!(ring_of(nonsense), None, "{nonsense:?}");
        }
    }
}
