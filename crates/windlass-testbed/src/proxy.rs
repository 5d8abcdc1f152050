//! A network that misbehaves: a proxy in front of a server, which cuts, delays and swallows.
//!
//! It runs on a thread and a runtime of its own, so that a test may block, or stop its clock,
//! without stopping the network.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};

use crate::framing::{Framer, Message, Talk};

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Requests.
    ToServer,
    /// Answers.
    ToClient,
}

/// What the network does to connections. What counts something counts from now on, over all
/// connections together; what cuts does so once, and is spent then. Of PostgreSQL's answers only
/// those to questions from now on are counted: a client may go on before it has read the last of
/// an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Cuts the connection that carries byte `bytes` in this direction, right after that byte.
    CutAfter {
        /// Which bytes are counted.
        direction: Direction,
        /// How many get through.
        bytes: usize,
    },
    /// PostgreSQL: cuts just before message `nth`, from 1, of this type. All messages before it get
    /// through, nothing of it does. `b'C'` to the client is `CommandComplete`, `b'Z'` is
    /// `ReadyForQuery`; `b'Q'` to the server is a query, `b'S'` is `Sync`.
    CutBefore {
        /// Which messages are counted.
        direction: Direction,
        /// Their type.
        message: u8,
        /// Which of them, from 1.
        nth: usize,
    },
    /// PostgreSQL: cuts when the server has given answer `nth`, from 1, in full, and nothing of it
    /// got through. So whatever was asked for is done, a commit is committed, and the client
    /// cannot know. An answer is all up to `ReadyForQuery`; a new connection is one, too.
    CutBeforeAnswer {
        /// Which answer, from 1.
        nth: usize,
    },
    /// Everything that is read waits this long before it is sent on.
    Delay(Duration),
    /// Nothing gets through in either direction, and nobody is told. What was sent meanwhile
    /// arrives after [`Proxy::heal`].
    BlackHole,
    /// Ends this direction of a connection when something is to pass, and leaves the other.
    HalfClose(Direction),
    /// Everything passes byte by byte.
    Slices,
    /// New connections are closed at once; those that are there are left alone.
    Refuse,
}

/// A proxy on 127.0.0.1 in front of a server there. Dropping it cuts everything.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    target: u16,
    network: Arc<Network>,
    end: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
}

/// What all connections share.
#[derive(Debug)]
struct Network {
    fault: watch::Sender<Option<Fault>>,
    /// How often a fault was set.
    era: AtomicUsize,
    connections: AtomicUsize,
    cuts: AtomicUsize,
    open: Mutex<Vec<Arc<watch::Sender<bool>>>>,
}

impl Proxy {
    /// Starts a proxy in front of the PostgreSQL server, or its pooler, on this port.
    pub fn postgres(target: u16) -> Self {
        Self::start(target, true)
    }

    /// Starts a proxy in front of any server on this port. It knows no messages, so what cuts at
    /// one never does.
    pub fn tcp(target: u16) -> Self {
        Self::start(target, false)
    }

    fn start(target: u16, is_postgres: bool) -> Self {
        let network = Arc::new(Network {
            fault: watch::Sender::new(None),
            era: AtomicUsize::new(0),
            connections: AtomicUsize::new(0),
            cuts: AtomicUsize::new(0),
            open: Mutex::default(),
        });
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("it binds");
        listener.set_nonblocking(true).expect("it is a socket");
        let port = listener.local_addr().expect("it is bound").port();
        let (end, ended) = oneshot::channel();
        let serve = serve(listener, target, is_postgres, network.clone());
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime can be made").block_on(async {
                tokio::select! {
                    () = serve => {}
                    _ = ended => {}
                }
            });
        });
        Self { port, target, network, end: Some((end, thread)) }
    }

    /// The port to connect to.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The URL of the server with the proxy's port in place of the server's.
    pub fn url(&self, of_the_server: &str) -> String {
        of_the_server.replacen(&format!(":{}", self.target), &format!(":{}", self.port), 1)
    }

    /// From now on the network does this, and nothing else.
    pub fn set(&self, fault: Fault) {
        self.network.era.fetch_add(1, Ordering::SeqCst);
        self.network.fault.send_replace(Some(fault));
    }

    /// From now on everything passes. Connections that were cut stay cut.
    pub fn heal(&self) {
        self.network.fault.send_replace(None);
    }

    /// Cuts all connections there are.
    pub fn cut(&self) {
        let open = self.network.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.iter().for_each(|connection| self.network.cut(connection));
    }

    /// How many connections there have been.
    pub fn connections(&self) -> usize {
        self.network.connections.load(Ordering::SeqCst)
    }

    /// How many connections were cut.
    pub fn cuts(&self) -> usize {
        self.network.cuts.load(Ordering::SeqCst)
    }

    /// Whether a fault that cuts once still waits for its moment.
    pub fn is_armed(&self) -> bool {
        self.network.fault.borrow().is_some()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        if let Some((end, thread)) = self.end.take() {
            let _ = end.send(());
            let _ = thread.join();
        }
    }
}

impl Network {
    fn cut(&self, connection: &watch::Sender<bool>) {
        if !connection.send_replace(true) {
            self.cuts.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Counts a message, and says what becomes of it. One place decides, in one step, so that of
    /// several connections exactly one is cut.
    fn judge(
        &self,
        direction: Direction,
        message: &Message,
        asked: &Mutex<VecDeque<usize>>,
    ) -> Judgement {
        let mut judgement = Judgement::Pass;
        self.fault.send_if_modified(|fault| {
            let era = self.era.load(Ordering::SeqCst);
            let mut asked = asked.lock().unwrap_or_else(PoisonError::into_inner);
            if message.asks {
                asked.push_back(era);
            }
            let is_answer = direction == Direction::ToClient && !asked.is_empty();
            if !is_answer || asked.front() == Some(&era) {
                judgement = count(fault, direction, message, is_answer);
            }
            if is_answer && message.kind == b'Z' {
                asked.pop_front();
            }
            false
        });
        judgement
    }
}

/// The name that such a connection gives itself.
const CLOCK: &[u8] = b"application_name\0windlass clock\0";

/// What becomes of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Judgement {
    Pass,
    /// It waits for the rest of the answer.
    Hold,
    /// This much passes, and then the connection is cut.
    Cut(usize),
    /// It ends its direction.
    End,
    Slice,
}

fn count(
    fault: &mut Option<Fault>,
    direction: Direction,
    message: &Message,
    is_answer: bool,
) -> Judgement {
    let length = message.bytes.len();
    match fault {
        Some(Fault::CutAfter { direction: counted, bytes }) if *counted == direction => {
            if *bytes <= length {
                let last = *bytes;
                *fault = None;
                return Judgement::Cut(last);
            }
            *bytes -= length;
            Judgement::Pass
        }
        Some(Fault::CutBefore { direction: counted, message: kind, nth })
            if *counted == direction && *kind == message.kind =>
        {
            *nth = nth.saturating_sub(1);
            if *nth == 0 {
                *fault = None;
                return Judgement::Cut(0);
            }
            Judgement::Pass
        }
        // What the server says of its own accord, such as a notification, is no answer.
        Some(Fault::CutBeforeAnswer { nth }) if is_answer => {
            if message.kind != b'Z' {
                return Judgement::Hold;
            }
            *nth = nth.saturating_sub(1);
            if *nth == 0 {
                *fault = None;
                return Judgement::Cut(0);
            }
            Judgement::Pass
        }
        Some(Fault::HalfClose(ended)) if *ended == direction => Judgement::End,
        Some(Fault::Slices) => Judgement::Slice,
        Some(
            Fault::CutAfter { .. }
            | Fault::CutBefore { .. }
            | Fault::CutBeforeAnswer { .. }
            | Fault::Delay(_)
            | Fault::BlackHole
            | Fault::HalfClose(_)
            | Fault::Refuse,
        )
        | None => Judgement::Pass,
    }
}

async fn serve(
    listener: std::net::TcpListener,
    target: u16,
    is_postgres: bool,
    network: Arc<Network>,
) {
    let listener = TcpListener::from_std(listener).expect("there is a runtime");
    loop {
        let Ok((client, _)) = listener.accept().await else { continue };
        network.connections.fetch_add(1, Ordering::SeqCst);
        if *network.fault.borrow() != Some(Fault::Refuse) {
            tokio::spawn(connect(client, target, is_postgres, network.clone()));
        }
    }
}

async fn connect(client: TcpStream, target: u16, is_postgres: bool, network: Arc<Network>) {
    let target = SocketAddr::from((Ipv4Addr::LOCALHOST, target));
    // A server that is down: the client's connection ends, too.
    let Ok(server) = TcpStream::connect(target).await else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let cut = Arc::new(watch::Sender::new(false));
    network.open.lock().unwrap_or_else(PoisonError::into_inner).push(cut.clone());
    let ((from_client, to_client), (from_server, to_server)) =
        (client.into_split(), server.into_split());
    let talk = Talk::new(is_postgres);
    let asked = Arc::new(Mutex::new(VecDeque::new()));
    let is_clock = Arc::new(AtomicBool::new(false));
    let pipe = |direction, from, to| Pipe {
        direction,
        from,
        to,
        framer: Framer::new(direction, talk.clone()),
        held: Vec::new(),
        asked: asked.clone(),
        is_clock: is_clock.clone(),
        network: network.clone(),
        cut: cut.clone(),
    };
    let requests = pipe(Direction::ToServer, from_client, to_server);
    let answers = pipe(Direction::ToClient, from_server, to_client);
    tokio::join!(requests.run(), answers.run());
    let mut open = network.open.lock().unwrap_or_else(PoisonError::into_inner);
    open.retain(|connection| !Arc::ptr_eq(connection, &cut));
}

/// One direction of a connection.
struct Pipe {
    direction: Direction,
    from: OwnedReadHalf,
    to: OwnedWriteHalf,
    framer: Framer,
    held: Vec<u8>,
    /// For each question that is not answered in full, the era it was asked in.
    asked: Arc<Mutex<VecDeque<usize>>>,
    /// It is the one on which a store looks at the clock now and then, and nobody makes calls.
    is_clock: Arc<AtomicBool>,
    network: Arc<Network>,
    cut: Arc<watch::Sender<bool>>,
}

impl Pipe {
    async fn run(mut self) {
        let mut cut = self.cut.subscribe();
        tokio::select! {
            // First, so that nothing passes from the moment at which it was cut.
            biased;
            _ = cut.wait_for(|cut| *cut) => {}
            () = self.carry() => {}
        }
        let _ = self.to.shutdown().await;
        // What is still on its way here must be read: closing a socket before would take back from
        // the other side what it has not read yet.
        let mut rest = [0; 4096];
        while *self.cut.borrow() && self.from.read(&mut rest).await.is_ok_and(|read| read > 0) {}
    }

    /// Carries bytes until one side has ended, or they are to go no further.
    async fn carry(&mut self) {
        let mut faults = self.network.fault.subscribe();
        let mut bytes = vec![0; 1 << 16];
        while let Ok(read @ 1..) = self.from.read(&mut bytes).await {
            let fault = *faults.borrow();
            if let Some(Fault::Delay(delay)) = fault {
                tokio::time::sleep(delay).await;
            }
            let is_open = |fault: &Option<Fault>| *fault != Some(Fault::BlackHole);
            if faults.wait_for(is_open).await.map(drop).is_err() {
                return;
            }
            for message in self.framer.feed(&bytes[..read]) {
                if self.pass(message).await.is_none() {
                    return;
                }
            }
        }
    }

    /// Sends a message on, as far as the network lets it; `None` when it was the last.
    async fn pass(&mut self, message: Message) -> Option<()> {
        // Faults that count messages are meant for calls.
        if message.kind == 0 && message.bytes.windows(CLOCK.len()).any(|part| part == CLOCK) {
            self.is_clock.store(true, Ordering::SeqCst);
        }
        if self.is_clock.load(Ordering::SeqCst) {
            return self.to.write_all(&message.bytes).await.ok();
        }
        match self.network.judge(self.direction, &message, &self.asked) {
            Judgement::Hold => self.held.extend(message.bytes),
            Judgement::Pass => {
                let mut bytes = std::mem::take(&mut self.held);
                bytes.extend(message.bytes);
                self.to.write_all(&bytes).await.ok()?;
            }
            Judgement::Cut(first) => {
                self.to.write_all(&message.bytes[..first]).await.ok()?;
                self.network.cut(&self.cut);
                return None;
            }
            Judgement::End => return None,
            Judgement::Slice => {
                for byte in message.bytes {
                    self.to.write_all(&[byte]).await.ok()?;
                    tokio::task::yield_now().await;
                }
            }
        }
        Some(())
    }
}
