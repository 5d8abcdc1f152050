//! One request and its answers.

use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::client::conn::http1::SendRequest;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{Method, Request as HttpRequest, Response as HttpResponse, StatusCode};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::super::{Frames, Hello, Reply, Response, decode, encode};
use super::connect::Connector;
use super::failure::HttpFailure;
use super::{PATH, PATIENCE, TYPE, VERSION};

/// A call that is to be sent, and who waits for its answer.
#[derive(Debug)]
pub(super) struct QueuedCall {
    pub(super) number: u64,
    /// The call as a frame.
    pub(super) bytes: Bytes,
    pub(super) may_repeat: bool,
    pub(super) tell: oneshot::Sender<Result<Response, HttpFailure>>,
}

/// Those who wait for the answers of one request.
#[derive(Debug, Default)]
struct Unanswered(HashMap<u64, oneshot::Sender<Result<Response, HttpFailure>>>);

impl Unanswered {
    fn answer(&mut self, response: Response) {
        let Some(caller) = self.0.remove(&response.number) else { return };
        let is_unmade = matches!(response.answer, Ok(Reply::Goodbye { .. }));
        let answer = if is_unmade { Err(HttpFailure::not_made("it ends")) } else { Ok(response) };
        // Whoever has gone wants no answer.
        let _ = caller.send(answer);
    }

    fn fail(self, failure: &HttpFailure) {
        for (_, caller) in self.0 {
            let _ = caller.send(Err(failure.clone()));
        }
    }
}

/// What became of a request.
pub(super) enum Exchanged {
    /// Everyone was told, and the connection can be used again.
    Done(SendRequest<CallBody>),
    /// Everyone was told, and the connection is of no more use.
    Ended,
    /// The connection had ended before: nothing was sent, and nobody was told.
    Unsent(Vec<QueuedCall>, HttpFailure),
}

/// Sends calls as one request and tells each caller its answer.
pub(super) async fn exchange(
    connector: &Connector,
    mut connection: SendRequest<CallBody>,
    calls: Vec<QueuedCall>,
) -> Exchanged {
    if connection.ready().await.is_err() {
        return Exchanged::Unsent(calls, HttpFailure::not_made("the connection was closed"));
    }
    let progress = Arc::new(AtomicU64::new(0));
    let body = CallBody::of(&calls, progress.clone());
    let request = match request(connector, body) {
        Ok(request) => request,
        Err(error) => {
            let why = HttpFailure::refused(format!("no request can be made: {error}"));
            unanswered(calls).fail(&why);
            return Exchanged::Done(connection);
        }
    };
    let response = connection.try_send_request(request);
    let response = unless_silent(&progress, response).await;
    let (response, mut callers) = match response {
        Some(Ok(response)) => (response, unanswered(calls)),
        Some(Err(mut error)) => {
            let unsent = error.take_message().is_some();
            let failure = HttpFailure::of_connection(error.error());
            if unsent {
                return Exchanged::Unsent(calls, HttpFailure::not_made(failure.why));
            }
            unanswered(calls).fail(&failure);
            return Exchanged::Ended;
        }
        None => {
            unanswered(calls).fail(&silent());
            return Exchanged::Ended;
        }
    };
    match read(response, &mut callers).await {
        Ok(()) if callers.0.is_empty() => Exchanged::Done(connection),
        Ok(()) => {
            callers.fail(&HttpFailure::unknown("it did not answer all that it was asked"));
            Exchanged::Ended
        }
        Err(failure) => {
            callers.fail(&failure);
            Exchanged::Ended
        }
    }
}

fn unanswered(calls: Vec<QueuedCall>) -> Unanswered {
    Unanswered(calls.into_iter().map(|call| (call.number, call.tell)).collect())
}

fn request(
    connector: &Connector,
    body: CallBody,
) -> Result<HttpRequest<CallBody>, hyper::http::Error> {
    let path = format!("{}{PATH}", connector.address.base);
    let mut request = HttpRequest::builder()
        .method(Method::POST)
        .uri(path)
        .header(HOST, &connector.address.authority)
        .header(CONTENT_TYPE, TYPE);
    if let Some(authorization) = &connector.authorization {
        request = request.header(AUTHORIZATION, authorization.clone());
    }
    request.body(body)
}

fn silent() -> HttpFailure {
    HttpFailure::unknown(format!("it was silent for {PATIENCE:?}")).by_silence()
}

/// What comes of it, unless nothing moves for as long as the patience lasts.
async fn unless_silent<T>(progress: &AtomicU64, work: impl Future<Output = T>) -> Option<T> {
    tokio::pin!(work);
    loop {
        let before = progress.load(Ordering::Relaxed);
        match timeout(PATIENCE, &mut work).await {
            Ok(done) => return Some(done),
            Err(_) if progress.load(Ordering::Relaxed) == before => return None,
            Err(_) => {}
        }
    }
}

/// Reads the answers and hands each to whoever waits for it.
async fn read(
    response: HttpResponse<Incoming>,
    callers: &mut Unanswered,
) -> Result<(), HttpFailure> {
    let (head, mut body) = response.into_parts();
    let is_windlass = head.headers.contains_key(VERSION);
    if head.status != StatusCode::OK {
        let said = text_of(&mut body).await;
        return Err(HttpFailure::of_status(head.status, is_windlass, &said));
    }
    if !is_windlass || head.headers.get(CONTENT_TYPE).is_none_or(|of| of != TYPE) {
        return Err(HttpFailure::refused("that is not a Windlass server; check the address"));
    }
    // Answers are what was asked for, however long they are.
    let mut frames = Frames::up_to(u32::MAX as usize);
    let mut greeted = false;
    while let Some(bytes) = next(&mut body).await? {
        frames.push(&bytes);
        take(&mut frames, &mut greeted, callers)?;
    }
    Ok(())
}

/// The answers that have arrived.
fn take(
    frames: &mut Frames,
    greeted: &mut bool,
    callers: &mut Unanswered,
) -> Result<(), HttpFailure> {
    let garbled = |error: super::super::InvalidFrame| {
        HttpFailure::not_understood(format!("it answers with {error}"))
    };
    while let Some(message) = frames.take().map_err(garbled)? {
        if !*greeted {
            let hello: Hello = decode(message).map_err(garbled)?;
            hello.agree().map_err(|mismatch| HttpFailure::refused(mismatch.to_string()))?;
            *greeted = true;
        } else if !message.is_empty() {
            callers.answer(decode(message).map_err(garbled)?);
        }
    }
    Ok(())
}

/// What comes next; nothing at the end.
async fn next(body: &mut Incoming) -> Result<Option<Bytes>, HttpFailure> {
    let frame = std::future::poll_fn(|context| Pin::new(&mut *body).poll_frame(context));
    match timeout(PATIENCE, frame).await {
        Err(_) => Err(silent()),
        Ok(None) => Ok(None),
        Ok(Some(Err(error))) => Err(HttpFailure::of_connection(&error)),
        // Trailers say nothing.
        Ok(Some(Ok(frame))) => Ok(Some(frame.into_data().unwrap_or_default())),
    }
}

/// The most of a text that is shown.
const SHOWN: usize = 300;

/// The sentence of a server that refuses, without what a terminal would obey.
async fn text_of(body: &mut Incoming) -> String {
    let mut said = Vec::new();
    while said.len() < SHOWN
        && let Ok(Some(bytes)) = next(body).await
    {
        said.extend_from_slice(&bytes);
    }
    let text = String::from_utf8_lossy(&said);
    text.trim().chars().filter(|c| !c.is_control()).take(SHOWN).collect()
}

/// How much of a body is handed on at once.
const SLICE: usize = 64 << 10;

/// Calls as the body of a request.
#[derive(Debug)]
pub(super) struct CallBody {
    parts: VecDeque<Bytes>,
    left: u64,
    /// Counts what was handed on.
    progress: Arc<AtomicU64>,
}

impl CallBody {
    /// A greeting and the calls. Small ones are put together, large ones are not copied.
    fn of(calls: &[QueuedCall], progress: Arc<AtomicU64>) -> Self {
        let (mut parts, mut small) = (VecDeque::new(), Vec::new());
        // Our own greeting always fits.
        let _ = encode(&Hello::ours(), &mut small);
        for call in calls {
            if call.bytes.len() > SLICE {
                parts.push_back(Bytes::from(std::mem::take(&mut small)));
                parts.push_back(call.bytes.clone());
            } else {
                small.extend_from_slice(&call.bytes);
            }
        }
        parts.push_back(Bytes::from(small));
        parts.retain(|part| !part.is_empty());
        let left = parts.iter().map(|part| part.len() as u64).sum();
        Self { parts, left, progress }
    }
}

impl Body for CallBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.progress.fetch_add(1, Ordering::Relaxed);
        let Some(first) = self.parts.front_mut() else { return Poll::Ready(None) };
        let slice = first.split_to(first.len().min(SLICE));
        if first.is_empty() {
            self.parts.pop_front();
        }
        self.left -= slice.len() as u64;
        Poll::Ready(Some(Ok(Frame::data(slice))))
    }

    fn is_end_stream(&self) -> bool {
        self.parts.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}
