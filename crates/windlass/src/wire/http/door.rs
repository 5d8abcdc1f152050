//! What a server does with a request: it makes the calls, and answers each when it is ready.
//!
//! Whatever framework takes requests hands them to [`HttpDoor::answer`]. A request is read whole
//! before anything of it is done, so that one that is refused has done nothing. What was begun is
//! carried through however the connection ends: whoever asked finds out by asking again.

use std::convert::Infallible;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Body, Bytes, Frame};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use hyper::{HeaderMap, Request as HttpRequest, Response as HttpResponse, StatusCode};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::{Interval, interval, timeout};
use windlass_core::refusal::Refusal;

use super::super::service::encoded;
use super::super::{
    CALL_BYTES, Call, Fault, Frames, Hello, InvalidFrame, Reply, Request, Response, Served,
    Service, decode, encode,
};
use super::{AT_WORK, TYPE, Token, VERSION};
use crate::engine::Engine;

/// How many bytes of requests are held at once, of all connections together: twice the longest
/// call, so that one of those still leaves room. Whoever comes beyond is told to come again.
pub const DOOR_BYTES: usize = 2 * CALL_BYTES;

/// How many calls one request may have, and all together that are under way.
const REQUEST_CALLS: usize = 1_024;
const DOOR_CALLS: usize = 65_536;

/// How many answers wait to be sent before calls wait for them.
const ANSWERS: usize = 64;

/// Bytes are counted in pieces of so many.
const PIECE: usize = 1 << 10;

/// How long the next part of a request may take, and all of it.
const NEXT_PART: Duration = Duration::from_secs(10);
const WHOLE_REQUEST: Duration = Duration::from_secs(300);

/// How much is sent at once.
const SENT_AT_ONCE: usize = 64 << 10;

/// A store that programs on other machines reach over HTTP.
///
/// It can be cloned: all are the same door.
#[derive(Clone)]
pub struct HttpDoor {
    service: Arc<dyn Service>,
    token: Option<Token>,
    room: Arc<Semaphore>,
    calls: Arc<Semaphore>,
    closing: watch::Sender<bool>,
}

impl fmt::Debug for HttpDoor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpDoor").field("token", &self.token).finish_non_exhaustive()
    }
}

impl HttpDoor {
    /// The door to the store of an engine. Leases that are held through it end by time alone.
    ///
    /// Calls do not go through the engine: close the door before the engine.
    pub fn to_engine(engine: &Engine) -> Self {
        let store = engine.store();
        let store = store.for_remote_workers().unwrap_or_else(|| store.clone());
        Self::to(Served { store, wake: engine.wake().clone() })
    }

    /// The door to a store.
    pub fn to(served: Served) -> Self {
        Self {
            service: Arc::new(FromElsewhere(served)),
            token: None,
            room: Arc::new(Semaphore::new(DOOR_BYTES / PIECE)),
            calls: Arc::new(Semaphore::new(DOOR_CALLS)),
            closing: watch::Sender::new(false),
        }
    }

    /// Lets in only who says this token.
    pub fn token(mut self, token: Option<Token>) -> Self {
        self.token = token;
        self
    }

    /// Answers a request. It must have been sent to [`PATH`](super::PATH), with `POST`.
    pub async fn answer<B>(&self, request: HttpRequest<B>) -> HttpResponse<AnswerBody>
    where
        B: Body<Data = Bytes> + Unpin,
        B::Error: fmt::Display,
    {
        let (head, body) = request.into_parts();
        match self.take(&head.headers, body).await {
            Ok(calls) => self.make(calls).await,
            Err(refused) => refused.into_response(),
        }
    }

    /// Whether it was asked to close.
    pub fn is_closing(&self) -> bool {
        *self.closing.borrow()
    }

    /// Takes no more calls, answers those that wait for something, and returns when all that was
    /// begun has been done.
    pub async fn close(&self) {
        self.closing.send_replace(true);
        let all = u32::try_from(DOOR_CALLS).unwrap_or(u32::MAX);
        drop(self.calls.acquire_many(all).await);
    }

    /// Reads a request. Nothing was done if it is refused.
    async fn take<B>(&self, headers: &HeaderMap, body: B) -> Result<TakenCalls, RefusedRequest>
    where
        B: Body<Data = Bytes> + Unpin,
        B::Error: fmt::Display,
    {
        self.let_in(headers)?;
        self.still_takes()?;
        if headers.get(CONTENT_TYPE).is_none_or(|of| of != TYPE) {
            let why = format!("a request to here has the content type {TYPE}");
            return Err(RefusedRequest(StatusCode::UNSUPPORTED_MEDIA_TYPE, why));
        }
        let whole = timeout(WHOLE_REQUEST, self.read(body)).await;
        let slow = || slow(WHOLE_REQUEST);
        let (frames, room) = whole.map_err(|_| slow())??;
        let calls = TakenCalls::of(frames, room)?;
        self.still_takes()?;
        Ok(calls)
    }

    fn let_in(&self, headers: &HeaderMap) -> Result<(), RefusedRequest> {
        let Some(token) = &self.token else { return Ok(()) };
        let refused = |why: &str| RefusedRequest(StatusCode::UNAUTHORIZED, why.to_string());
        let said = headers.get(AUTHORIZATION).ok_or_else(|| {
            refused(
                "it asks for a token; give it with `EngineBuilder::token` or in `WINDLASS_TOKEN`",
            )
        })?;
        let said = said.as_bytes().strip_prefix(b"Bearer ").unwrap_or_default();
        match token.is(said) {
            true => Ok(()),
            false => Err(refused("it does not know this token")),
        }
    }

    fn still_takes(&self) -> Result<(), RefusedRequest> {
        match self.is_closing() || !self.service.is_awake() {
            false => Ok(()),
            true => Err(RefusedRequest::for_now("it ends, or was stopped for a while; come again")),
        }
    }

    /// The whole body, and the room that it takes.
    async fn read<B>(
        &self,
        mut body: B,
    ) -> Result<(Frames, Option<OwnedSemaphorePermit>), RefusedRequest>
    where
        B: Body<Data = Bytes> + Unpin,
        B::Error: fmt::Display,
    {
        let mut frames = Frames::up_to(CALL_BYTES);
        let (mut bytes, mut room): (usize, Option<OwnedSemaphorePermit>) = (0, None);
        if body.size_hint().lower() > MOST as u64 {
            return Err(RefusedRequest::too_long());
        }
        loop {
            let part = std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context));
            let part = timeout(NEXT_PART, part).await.map_err(|_| slow(NEXT_PART))?;
            let Some(part) = part else { return Ok((frames, room)) };
            let broken = |error| bad(format!("the request did not arrive: {error}"));
            let Ok(part) = part.map_err(broken)?.into_data() else { continue };
            bytes += part.len();
            if bytes > MOST {
                return Err(RefusedRequest::too_long());
            }
            let held = room.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
            let more = u32::try_from(bytes.div_ceil(PIECE) - held).unwrap_or(u32::MAX);
            let more = self.room.clone().try_acquire_many_owned(more);
            let more = more.map_err(|_| {
                RefusedRequest::for_now("it holds as many requests as it can; come again")
            })?;
            match &mut room {
                Some(room) => room.merge(more),
                None => room = Some(more),
            }
            frames.push(&part);
        }
    }

    /// Makes the calls, each on a task of its own.
    async fn make(&self, calls: TakenCalls) -> HttpResponse<AnswerBody> {
        let TakenCalls { calls, room } = calls;
        let Ok(places) = u32::try_from(calls.len()) else {
            return RefusedRequest::for_now("it has too many calls").into_response();
        };
        let Ok(places) = self.calls.clone().try_acquire_many_owned(places) else {
            let why = "it is at work on as many calls as it can be; come again";
            return RefusedRequest::for_now(why).into_response();
        };
        let held = Arc::new((room, places));
        let (tell, answers) = mpsc::channel(ANSWERS);
        let left = calls.len();
        for call in calls {
            let (door, tell, held) = (self.clone(), tell.clone(), held.clone());
            tokio::spawn(async move {
                let answer = door.answer_to(call).await;
                drop(held);
                // If nobody takes it any more, the connection has ended.
                let _ = tell.send(answer).await;
            });
        }
        drop(tell);
        AnswerBody::begin(answers, left).await
    }

    /// The answer to one call; a farewell if it waited for something when the door closed.
    async fn answer_to(&self, call: TakenCall) -> Vec<u8> {
        let number = call.number;
        let answer = match call.call {
            Some(call) if call.waits() => {
                let mut closing = self.closing.subscribe();
                tokio::select! {
                    biased;
                    answer = self.service.answer(call) => answer,
                    _ = closing.wait_for(|closing| *closing) => Ok(Reply::Goodbye { last: 0 }),
                }
            }
            Some(call) => self.service.answer(call).await,
            None => {
                let why = "this program does not understand the call; it may be older".to_string();
                Err(Fault::Refused(Refusal::Unavailable { why }))
            }
        };
        encoded(Response { number, last_event: self.service.last_event(), answer })
    }
}

/// The most bytes of a request: the longest call, and a greeting.
const MOST: usize = CALL_BYTES + (1 << 10);

/// A store as programs on other machines may know it.
struct FromElsewhere(Served);

#[async_trait::async_trait]
impl Service for FromElsewhere {
    async fn answer(&self, call: Call) -> Result<Reply, Fault> {
        let mut reply = call.answered_by(&self.0).await?;
        if let Reply::Info(info) = &mut reply {
            // What only a program can use that has the store itself: no transaction of a client's
            // own reaches the database, and the server has opened it for everyone.
            (info.schema, info.opened) = (None, None);
        }
        Ok(reply)
    }

    fn last_event(&self) -> u64 {
        self.0.store.info().last_event
    }
}

/// The calls of a request, and the room that they take.
struct TakenCalls {
    calls: Vec<TakenCall>,
    room: Option<OwnedSemaphorePermit>,
}

/// A call with its number; without it, if it is not understood here.
struct TakenCall {
    number: u64,
    call: Option<Call>,
}

impl TakenCalls {
    fn of(mut frames: Frames, room: Option<OwnedSemaphorePermit>) -> Result<Self, RefusedRequest> {
        let invalid = |error: InvalidFrame| bad(format!("the request has {error}"));
        let hello = frames.take().map_err(invalid)?;
        let hello = hello.ok_or_else(|| bad("the request has no message".to_string()))?;
        let hello: Hello = decode(hello).map_err(invalid)?;
        let mut calls = Vec::new();
        if hello.agree().is_err() {
            // It is greeted and told that nothing was done: it finds the words itself.
            calls.push(TakenCall { number: 0, call: None });
            return Ok(Self { calls, room });
        }
        while let Some(message) = frames.take().map_err(invalid)? {
            calls.push(TakenCall::of(message).map_err(invalid)?);
            if calls.len() > REQUEST_CALLS {
                return Err(bad(format!("a request has at most {REQUEST_CALLS} calls")));
            }
        }
        if frames.has_more() {
            return Err(bad("the request ends within a message".to_string()));
        }
        if calls.is_empty() {
            return Err(bad("the request asks for nothing".to_string()));
        }
        Ok(Self { calls, room })
    }
}

impl TakenCall {
    fn of(message: &[u8]) -> Result<Self, InvalidFrame> {
        /// All that is needed to answer.
        #[derive(serde::Deserialize)]
        struct CallNumber {
            number: u64,
        }
        match decode(message) {
            Ok(Request { number, call }) => Ok(Self { number, call: Some(call) }),
            Err(error) => {
                let CallNumber { number } = decode(message).map_err(|_: InvalidFrame| error)?;
                Ok(Self { number, call: None })
            }
        }
    }
}

/// A request of which nothing was done, and why.
struct RefusedRequest(StatusCode, String);

fn bad(why: String) -> RefusedRequest {
    RefusedRequest(StatusCode::BAD_REQUEST, why)
}

fn slow(patience: Duration) -> RefusedRequest {
    let why = format!("the request did not arrive within {patience:?}");
    RefusedRequest(StatusCode::REQUEST_TIMEOUT, why)
}

impl RefusedRequest {
    fn for_now(why: &str) -> Self {
        Self(StatusCode::SERVICE_UNAVAILABLE, why.to_string())
    }

    fn too_long() -> Self {
        let why = format!(
            "the request has more than {CALL_BYTES} bytes, which are the most that are taken: \
             send fewer jobs at once"
        );
        Self(StatusCode::PAYLOAD_TOO_LARGE, why)
    }

    fn into_response(self) -> HttpResponse<AnswerBody> {
        let Self(status, why) = self;
        let mut response = HttpResponse::new(AnswerBody::text(why));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        headers.insert(VERSION, HeaderValue::from_static(env!("CARGO_PKG_VERSION")));
        if status == StatusCode::SERVICE_UNAVAILABLE {
            headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

/// Answers as the body of a response: each when it is ready, several at once if they are.
#[derive(Debug)]
pub struct AnswerBody {
    ready: Vec<u8>,
    answers: mpsc::Receiver<Vec<u8>>,
    /// How many answers are to come.
    left: usize,
    at_work: Option<Interval>,
}

impl AnswerBody {
    /// The response with what is ready when the first answer is, or when that takes long.
    async fn begin(answers: mpsc::Receiver<Vec<u8>>, left: usize) -> HttpResponse<Self> {
        let mut ready = Vec::new();
        // Our own greeting always fits.
        let _ = encode(&Hello::ours(), &mut ready);
        let mut body = Self { ready, answers, left, at_work: None };
        match timeout(AT_WORK, body.answers.recv()).await {
            Ok(first) => body.note(first),
            Err(_) => body.at_work = Some(from_now_on()),
        }
        let mut response = HttpResponse::new(body);
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(TYPE));
        headers.insert(VERSION, HeaderValue::from_static(env!("CARGO_PKG_VERSION")));
        // Proxies that gather answers would hold up those that are ready.
        headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
        response
    }

    fn text(text: String) -> Self {
        let (_, answers) = mpsc::channel(1);
        Self { ready: format!("{text}\n").into_bytes(), answers, left: 0, at_work: None }
    }

    /// Takes an answer; without one, nobody answers any more.
    fn note(&mut self, answer: Option<Vec<u8>>) {
        match answer {
            Some(answer) => {
                self.left = self.left.saturating_sub(1);
                match self.ready.is_empty() {
                    true => self.ready = answer,
                    false => self.ready.extend_from_slice(&answer),
                }
            }
            None => self.left = 0,
        }
    }
}

/// Ticks for as long as calls are under way, the first time after a while.
fn from_now_on() -> Interval {
    let mut at_work = interval(AT_WORK);
    at_work.reset();
    at_work
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        while self.left > 0
            && self.ready.len() < SENT_AT_ONCE
            && let Poll::Ready(answer) = self.answers.poll_recv(context)
        {
            self.note(answer);
        }
        if !self.ready.is_empty() {
            let ready = std::mem::take(&mut self.ready);
            return Poll::Ready(Some(Ok(Frame::data(ready.into()))));
        }
        if self.left == 0 {
            return Poll::Ready(None);
        }
        let at_work = self.at_work.get_or_insert_with(from_now_on);
        if at_work.poll_tick(context).is_ready() {
            // A message of no bytes.
            return Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&[0; 4])))));
        }
        Poll::Pending
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0 && self.ready.is_empty()
    }
}
