//! Calls over one connection to the program that has the store, many at a time.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use windlass_core::refusal::Refusal;

use super::frame::{Frames, decode, encode};
use super::service::{ConnectionError, receive, receive_hello, send_hello, write_all};
use super::{CALL_BYTES, Call, Connection, Fault, InvalidFrame, Reply, Request, Response};

/// How many calls wait to be sent before callers wait.
const CALLS: usize = 64;

/// A connection as a stream of bytes: a socket.
///
/// When it breaks, every call that is under way is unknown, and every later one is refused: it is
/// not made again by itself.
pub struct StreamConnection {
    calls: mpsc::Sender<Vec<u8>>,
    waiting: Arc<PendingCalls>,
    next: AtomicU64,
    tasks: [JoinHandle<()>; 2],
}

/// Who waits for which answer.
#[derive(Default)]
struct PendingCalls {
    callers: Mutex<PendingByNumber>,
    /// How many messages have come.
    received: AtomicU64,
    /// Nobody is answered any more.
    has_ended: watch::Sender<bool>,
}

#[derive(Default)]
struct PendingByNumber {
    by_number: HashMap<u64, PendingCaller>,
    /// How many calls were put on their way.
    sent: u64,
    /// Why no more calls are made.
    ended: Option<String>,
}

/// Somebody who waits for an answer.
struct PendingCaller {
    tell: oneshot::Sender<Result<Response, Fault>>,
    /// The place of its call among all that were sent.
    place: u64,
}

impl PendingCalls {
    fn callers(&self) -> MutexGuard<'_, PendingByNumber> {
        self.callers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// No more calls are made. Answers that are on their way are still taken.
    fn refuse(&self, why: String) {
        self.callers().ended.get_or_insert(why);
    }

    /// Nobody is answered any more: whoever waits is told by the end of their channel.
    fn end(&self, why: String) {
        let mut callers = self.callers();
        callers.ended.get_or_insert(why);
        callers.by_number.clear();
        drop(callers);
        self.has_ended.send_replace(true);
    }

    /// The other program has read so many calls, and makes none of those after them.
    fn not_after(&self, read: u64) {
        let why = "the other program ends";
        self.refuse(why.to_string());
        let unmade: Vec<_> =
            self.callers().by_number.extract_if(|_, caller| caller.place > read).collect();
        for (_, caller) in unmade {
            let _ = caller.tell.send(Err(not_made(why)));
        }
    }

    /// Puts a call on its way, and whoever waits for its answer among the callers: both at once, so
    /// that places are those in which calls are read at the other end.
    fn send(
        &self,
        (number, bytes): (u64, Vec<u8>),
        tell: Option<oneshot::Sender<Result<Response, Fault>>>,
        way: mpsc::Permit<'_, Vec<u8>>,
    ) -> Result<(), Fault> {
        let mut callers = self.callers();
        if let Some(why) = &callers.ended {
            return Err(not_made(why));
        }
        callers.sent += 1;
        if let Some(tell) = tell {
            let place = callers.sent;
            callers.by_number.insert(number, PendingCaller { tell, place });
        }
        way.send(bytes);
        Ok(())
    }
}

impl fmt::Debug for StreamConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamConnection").finish_non_exhaustive()
    }
}

impl StreamConnection {
    /// Greets the other side, and waits for its greeting.
    pub async fn greet(
        stream: impl AsyncRead + AsyncWrite + Send + 'static,
    ) -> Result<Self, ConnectionError> {
        let (mut reader, mut writer) = tokio::io::split(stream);
        // Answers are what was asked for, however long they are.
        let mut frames = Frames::up_to(u32::MAX as usize);
        send_hello(&mut writer).await?;
        receive_hello(&mut reader, &mut frames).await?;
        let waiting = Arc::new(PendingCalls::default());
        let (calls, unsent) = mpsc::channel(CALLS);
        let reading = tokio::spawn(read_answers(reader, frames, waiting.clone()));
        let told = waiting.clone();
        let writing = tokio::spawn(async move {
            match write_all(writer, unsent).await {
                // Answers to what was sent before may have arrived, and are read first.
                Err(ConnectionError::Broken(error)) => told.refuse(error.to_string()),
                Err(error) => told.end(error.to_string()),
                Ok(()) => {}
            }
        });
        Ok(Self { calls, waiting, next: AtomicU64::new(1), tasks: [reading, writing] })
    }

    /// Why calls are refused, if the connection has ended.
    pub fn ended(&self) -> Option<String> {
        self.waiting.callers().ended.clone()
    }

    /// Returns when nobody is answered any more.
    pub async fn end(&self) {
        // The sender is here, so this ends only when it is so.
        let _ = self.waiting.has_ended.subscribe().wait_for(|ended| *ended).await;
    }

    /// Gives the connection up: every call that waits is unknown.
    pub fn give_up(&self, why: String) {
        self.waiting.end(why);
        self.tasks.iter().for_each(JoinHandle::abort);
    }

    /// Asks the other side whether it is there.
    pub(crate) fn ask(&self) -> impl Future<Output = ()> + Send + 'static {
        let (calls, number) = (self.calls.clone(), self.next.fetch_add(1, Ordering::Relaxed));
        let waiting = self.waiting.clone();
        async move {
            let mut bytes = Vec::new();
            if encode(&Request { number, call: Call::Info }, &mut bytes).is_ok()
                && let Ok(way) = calls.reserve().await
            {
                // Nobody waits for the answer: that one comes is what is seen.
                let _ = waiting.send((number, bytes), None, way);
            }
        }
    }

    /// How many messages have come, and whether somebody waits for one.
    pub fn activity(&self) -> (u64, bool) {
        let waiting = !self.waiting.callers().by_number.is_empty();
        (self.waiting.received.load(Ordering::SeqCst), waiting)
    }

    /// Why no call is made any more.
    fn gone(&self) -> String {
        self.ended().unwrap_or_else(|| "the connection was closed".to_string())
    }
}

/// A call that waits for its answer, until that is there or the caller goes.
struct PendingCall<'a> {
    waiting: &'a PendingCalls,
    number: u64,
}

impl Drop for PendingCall<'_> {
    fn drop(&mut self) {
        self.waiting.callers().by_number.remove(&self.number);
    }
}

/// The call did not leave this program.
fn not_made(why: &str) -> Fault {
    Fault::Refused(Refusal::Unavailable { why: why.to_string() })
}

#[async_trait]
impl Connection for StreamConnection {
    async fn send(&self, call: Call) -> Result<Response, Fault> {
        if let Some(why) = self.ended() {
            return Err(not_made(&why));
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let mut bytes = Vec::new();
        let request = Request { number, call };
        encode(&request, &mut bytes).map_err(|error| not_made(&error.to_string()))?;
        if bytes.len() > CALL_BYTES {
            let error = InvalidFrame::TooLong { bytes: bytes.len() as u64, most: CALL_BYTES };
            return Err(not_made(&error.to_string()));
        }
        drop(request);
        let Ok(way) = self.calls.reserve().await else { return Err(not_made(&self.gone())) };
        let (tell, told) = oneshot::channel();
        let _pending = PendingCall { waiting: &self.waiting, number };
        self.waiting.send((number, bytes), Some(tell), way)?;
        told.await.unwrap_or_else(|_| Err(Fault::Unknown { why: self.gone() }))
    }

    async fn close(&self) {
        self.give_up("the connection was closed".to_string());
    }
}

impl Drop for StreamConnection {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// Hands each answer to whoever waits for it. One that nobody waits for is of a caller that has
/// gone.
async fn read_answers(
    mut reader: impl AsyncRead + Unpin,
    mut frames: Frames,
    waiting: Arc<PendingCalls>,
) {
    let why = loop {
        match answers(&mut frames, &waiting) {
            Ok(()) => {}
            Err(error) => break error.to_string(),
        }
        match receive(&mut reader, &mut frames).await {
            Ok(true) => {}
            Ok(false) => break "the other program has ended the connection".to_string(),
            Err(error) => break error.to_string(),
        }
    };
    waiting.end(why);
}

/// The answers that have arrived.
fn answers(frames: &mut Frames, waiting: &PendingCalls) -> Result<(), InvalidFrame> {
    while let Some(message) = frames.take()? {
        let response: Response = decode(message)?;
        waiting.received.fetch_add(1, Ordering::SeqCst);
        if let Ok(Reply::Goodbye { last }) = response.answer {
            waiting.not_after(last);
            continue;
        }
        let caller = waiting.callers().by_number.remove(&response.number);
        if let Some(caller) = caller {
            let _ = caller.tell.send(Ok(response));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_farewell_goes_by_the_order_in_which_calls_were_sent_and_not_by_their_numbers() {
        let waiting = PendingCalls::default();
        let (calls, _unsent) = mpsc::channel(2);
        let mut told = Vec::new();
        // Two callers took their numbers in one order and sent in the other.
        for number in [2, 1] {
            let (tell, hears) = oneshot::channel();
            let way = calls.reserve().await.expect("there is room");
            waiting.send((number, Vec::new()), Some(tell), way).expect("it is sent");
            told.push(hears);
        }
        waiting.not_after(1);
        assert!(told[0].try_recv().is_err(), "the first that was sent is still answered");
        let second = told[1].try_recv().expect("it is told");
        assert!(matches!(second, Err(Fault::Refused(_))), "{second:?}");
    }
}
