//! Calls over a few connections to a server, several in each request.
//!
//! Calls that come while requests are under way wait, and the next request takes all of them: the
//! more come, the more share a round trip. A call that may take long has a request of its own.
//!
//! A connection that is lost is made again, and so is a call that was not made, or that can be made
//! twice, for as long as the patience lasts: a server that is started anew is a pause.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use hyper::body::Bytes;
use hyper::client::conn::http1::SendRequest;
use tokio::sync::oneshot;
use tokio::time::timeout;
use windlass_core::refusal::Refusal;
use windlass_core::time::Steady;

use super::super::{
    CALL_BYTES, Call, Connection, Fault, InvalidFrame, RemoteStore, Request, Response, encode,
};
use super::connect::Connector;
use super::exchange::{CallBody, Exchanged, QueuedCall, exchange};
use super::failure::HttpFailure;
use super::{HttpOptions, PATIENCE};
use crate::clock::{Clock, SystemClock};
use crate::error::Error;
use crate::store::{QueueAction, Selection, StoreError};

/// How many requests that calls share are under way at once.
const SHARED_REQUESTS: usize = 4;

/// A request is full with so many bytes, or so many calls. One call may be longer.
const FULL: usize = 1 << 20;
const FULL_CALLS: usize = 512;

/// Connections that are kept for the next request, and for how long.
const KEPT: usize = 8;
const KEPT_FOR: Duration = Duration::from_secs(30);

/// What cannot be repeated goes over a connection that was in use this long ago at most: an older
/// one may be closing at this moment, and then nobody knows whether the call was made.
const SURELY_OPEN: Duration = Duration::from_secs(1);

/// The first pause before a call is made again; it doubles up to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LAST_PAUSE: Duration = Duration::from_millis(500);

/// A server that is reached over HTTP. It can be cloned: all share the connections.
#[derive(Clone, Debug)]
pub struct HttpConnection {
    shared: Arc<HttpShared>,
}

#[derive(Debug)]
struct HttpShared {
    connector: Connector,
    clock: SystemClock,
    next: AtomicU64,
    queue: Mutex<CallQueue>,
    kept: Mutex<Vec<KeptConnection>>,
    closed: AtomicBool,
}

/// Calls that wait for a request.
#[derive(Debug, Default)]
struct CallQueue {
    waiting: VecDeque<QueuedCall>,
    /// Shared requests that are under way.
    requests: usize,
}

/// A connection that nobody uses at the moment.
#[derive(Debug)]
struct KeptConnection {
    connection: SendRequest<CallBody>,
    since: Steady,
}

impl HttpConnection {
    /// A way to the server at `address`. Nothing is sent yet.
    ///
    /// Refuses an address that cannot be meant, a token that cannot be sent and a certificate that
    /// cannot be read.
    pub fn to(address: &str, options: &HttpOptions) -> Result<Self, Error> {
        let connector =
            Connector::new(address, options).map_err(|why| Error::ServerAddress { why })?;
        let shared = HttpShared {
            connector,
            clock: SystemClock::new(),
            next: AtomicU64::new(1),
            queue: Mutex::default(),
            kept: Mutex::default(),
            closed: AtomicBool::new(false),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// The store of the server, which is asked once, without patience.
    pub(super) async fn open_store(&self) -> Result<RemoteStore<Self>, Error> {
        let unreachable = |why| Error::Server { server: self.server(), why };
        let call = self.encoded(Call::Info).map_err(|fault| unreachable(words(fault)))?;
        self.attempt(&call).await.map_err(|failure| unreachable(failure.why))?;
        let store = RemoteStore::over(self.clone()).await.map_err(|error| match error {
            StoreError::Refused(refusal) => unreachable(refusal.to_string()),
            StoreError::Unknown { source, .. } => unreachable(source.to_string()),
        })?;
        Ok(store.owned_by(format!("the server at {}", self.server())))
    }

    /// The address, in which there is no secret.
    pub(super) fn server(&self) -> String {
        self.shared.connector.address.to_string()
    }

    /// Makes a call once.
    pub(super) async fn send_once(&self, call: Call) -> Result<Response, Fault> {
        let call = self.encoded(call)?;
        self.attempt(&call).await.map_err(|failure| failure.into_fault(&self.server()))
    }

    fn encoded(&self, call: Call) -> Result<EncodedCall, Fault> {
        let (may_repeat, alone) = (call.may_repeat(), may_take_long(&call));
        let number = self.shared.next.fetch_add(1, Ordering::Relaxed);
        let refused = |error: InvalidFrame| Refusal::Unavailable { why: error.to_string() };
        let mut bytes = Vec::new();
        encode(&Request { number, call }, &mut bytes)
            .map_err(|error| Fault::Refused(refused(error)))?;
        if bytes.len() > CALL_BYTES {
            let long = InvalidFrame::TooLong { bytes: bytes.len() as u64, most: CALL_BYTES };
            return Err(Fault::Refused(refused(long)));
        }
        Ok(EncodedCall { number, bytes: bytes.into(), may_repeat, alone })
    }

    async fn attempt(&self, call: &EncodedCall) -> Result<Response, HttpFailure> {
        if self.shared.closed.load(Ordering::SeqCst) {
            return Err(HttpFailure::refused("the connection was closed"));
        }
        let (tell, told) = oneshot::channel();
        let EncodedCall { number, bytes, may_repeat, alone } = call.clone();
        let call = QueuedCall { number, bytes, may_repeat, tell };
        if alone {
            // On this task: if whoever asks goes, so does the request.
            self.shared.request(vec![call]).await;
            return told.await.unwrap_or_else(|_| Err(ended()));
        }
        self.shared.enqueue(call);
        let mut told = told;
        match timeout(PATIENCE, &mut told).await {
            Ok(answer) => answer.unwrap_or_else(|_| Err(ended())),
            Err(_) if self.shared.take_back(number) => {
                Err(HttpFailure::not_made(format!("it took no call for {PATIENCE:?}")).by_silence())
            }
            // It was sent, and is answered or given up.
            Err(_) => told.await.unwrap_or_else(|_| Err(ended())),
        }
    }
}

/// A call that is ready to be sent, again if need be.
#[derive(Clone, Debug)]
struct EncodedCall {
    number: u64,
    bytes: Bytes,
    may_repeat: bool,
    alone: bool,
}

fn ended() -> HttpFailure {
    HttpFailure::unknown("the request was given up")
}

/// What a fault says.
fn words(fault: Fault) -> String {
    match fault {
        Fault::Refused(refusal) => refusal.to_string(),
        Fault::Unknown { why } => why,
    }
}

/// Whether others must not wait for its answer: it waits, or there may be much to do.
fn may_take_long(call: &Call) -> bool {
    match call {
        Call::Alter(alter) => !matches!(alter.selection, Selection::Jobs(_)),
        Call::AlterQueue(alter) => !matches!(alter.action, QueueAction::Set(_)),
        call => call.waits(),
    }
}

impl HttpShared {
    fn queue(&self) -> MutexGuard<'_, CallQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn kept(&self) -> MutexGuard<'_, Vec<KeptConnection>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets a call wait for the next request, and begins one if there may be one more.
    fn enqueue(self: &Arc<Self>, call: QueuedCall) {
        let mut queue = self.queue();
        queue.waiting.push_back(call);
        if queue.requests < SHARED_REQUESTS {
            queue.requests += 1;
            tokio::spawn(self.clone().send_what_waits());
        }
    }

    /// Makes requests of all that waits, one after the other, until nothing does.
    async fn send_what_waits(self: Arc<Self>) {
        loop {
            let calls = {
                let mut queue = self.queue();
                let calls = queue.take();
                if calls.is_empty() {
                    queue.requests -= 1;
                    return;
                }
                calls
            };
            self.request(calls).await;
        }
    }

    /// Takes a call back that was not sent.
    fn take_back(&self, number: u64) -> bool {
        let mut queue = self.queue();
        let place = queue.waiting.iter().position(|call| call.number == number);
        place.and_then(|place| queue.waiting.remove(place)).is_some()
    }

    /// Sends calls over a connection that is there, or over a new one. Each caller is told.
    async fn request(&self, mut calls: Vec<QueuedCall>) {
        let may_repeat = calls.iter().all(|call| call.may_repeat);
        let mut kept = self.take_kept(if may_repeat { KEPT_FOR } else { SURELY_OPEN });
        loop {
            let is_new = kept.is_none();
            let connection = match kept.take() {
                Some(connection) => Ok(connection),
                None => self.connector.connect().await,
            };
            let exchanged = match connection {
                Ok(connection) => exchange(&self.connector, connection, calls).await,
                Err(failure) => return tell_all(calls, &failure),
            };
            calls = match exchanged {
                Exchanged::Done(connection) => return self.keep(connection),
                Exchanged::Ended => return,
                Exchanged::Unsent(calls, failure) if is_new => return tell_all(calls, &failure),
                // It had been closed while nobody used it.
                Exchanged::Unsent(calls, _) => calls,
            }
        }
    }

    /// A connection that was in use at most so long ago.
    fn take_kept(&self, at_most: Duration) -> Option<SendRequest<CallBody>> {
        let now = self.clock.now().steady;
        let mut kept = self.kept();
        kept.retain(|it| !it.connection.is_closed() && now.since(it.since) < KEPT_FOR);
        let last = kept.pop()?;
        match now.since(last.since) < at_most {
            true => Some(last.connection),
            false => {
                kept.push(last);
                None
            }
        }
    }

    fn keep(&self, connection: SendRequest<CallBody>) {
        let since = self.clock.now().steady;
        let mut kept = self.kept();
        if kept.len() < KEPT && !self.closed.load(Ordering::SeqCst) {
            kept.push(KeptConnection { connection, since });
        }
    }
}

impl CallQueue {
    /// Calls for one request. Whoever has gone is passed over: its call is never made.
    fn take(&mut self) -> Vec<QueuedCall> {
        let (mut calls, mut bytes) = (Vec::new(), 0);
        while let Some(call) = self.waiting.pop_front() {
            if call.tell.is_closed() {
                continue;
            }
            if !calls.is_empty() && (bytes + call.bytes.len() > FULL || calls.len() >= FULL_CALLS) {
                self.waiting.push_front(call);
                break;
            }
            bytes += call.bytes.len();
            calls.push(call);
        }
        calls
    }
}

fn tell_all(calls: Vec<QueuedCall>, failure: &HttpFailure) {
    for call in calls {
        let _ = call.tell.send(Err(failure.clone()));
    }
}

#[async_trait]
impl Connection for HttpConnection {
    async fn send(&self, call: Call) -> Result<Response, Fault> {
        let call = self.encoded(call)?;
        let clock = &self.shared.clock;
        let (mut pause, mut waited) = (FIRST_PAUSE, Duration::ZERO);
        loop {
            let began = clock.now().steady;
            let failure = match self.attempt(&call).await {
                Ok(response) => return Ok(response),
                Err(failure) => failure,
            };
            // The time in which a server is silent counts. One that was at work on the call, and
            // ends, is given time to come back.
            let took = clock.now().steady.since(began);
            waited += if failure.is_silence { took } else { took.min(LAST_PAUSE) };
            if !failure.is_worth_repeating(call.may_repeat) || waited + pause > PATIENCE {
                return Err(failure.into_fault(&self.server()));
            }
            clock.sleep(pause).await;
            waited += pause;
            pause = (pause * 2).min(LAST_PAUSE);
        }
    }

    async fn close(&self) {
        self.shared.closed.store(true, Ordering::SeqCst);
        self.shared.kept().clear();
    }
}
