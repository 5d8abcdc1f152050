//! The body of a request: read whole, within bounds of size, depth and time, and then understood.
//!
//! Nothing of a request is done before its body was read, so one that is refused has done nothing.
//! Unknown fields are refused, with the nearest name: a misspelt `dealy` must not start a job at
//! once.

use std::borrow::Cow;
use std::pin::Pin;
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::extract::Request;
use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
use serde::de::DeserializeOwned;
use serde_json::error::Category;
use serde_path_to_error::Segment;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;
use windlass::Name;
use windlass::core::name::nearest;
use windlass::limits;

use super::Api;
use super::problem::{Problem, ProblemCode};

/// Bytes are counted in pieces of so many.
pub(super) const PIECE: usize = 1 << 10;

/// How long the next part of a body may take, and all of it.
const NEXT_PART: Duration = Duration::from_secs(10);
const WHOLE_BODY: Duration = Duration::from_secs(60);

/// How deep JSON may be nested: what is stored is read by others, and most of them stop at a
/// hundred and some.
const DEPTH: usize = 100;

/// The body of a request, and the room that it takes.
pub(super) struct TakenBody {
    bytes: Vec<u8>,
    room: Option<OwnedSemaphorePermit>,
}

/// Reads a body that must be JSON.
pub(super) async fn read(api: &Api, request: Request) -> Result<TakenBody, Problem> {
    check_content_type(request.headers())?;
    let body = timeout(WHOLE_BODY, take(api, request.into_body())).await;
    let body = body.map_err(|_| slow(WHOLE_BODY))??;
    check_depth(&body.bytes)?;
    Ok(body)
}

/// Reads and understands a body.
pub(super) async fn json<T: DeserializeOwned>(api: &Api, request: Request) -> Result<T, Problem> {
    read(api, request).await?.parse()
}

/// Refuses a body where none belongs: what it asks for would not be done.
pub(super) async fn none(api: &Api, request: Request) -> Result<(), Problem> {
    let body = timeout(WHOLE_BODY, take(api, request.into_body())).await;
    let body = body.map_err(|_| slow(WHOLE_BODY))??;
    match body.bytes.trim_ascii() {
        b"" | b"{}" => Ok(()),
        _ => Err(Problem::new(ProblemCode::InvalidField, "this takes no body").at("")),
    }
}

impl TakenBody {
    /// The first character that is no space; a list begins with `[`.
    pub(super) fn is_list(&self) -> bool {
        self.bytes.trim_ascii_start().first() == Some(&b'[')
    }

    /// What the body says.
    pub(super) fn parse<T: DeserializeOwned>(&self) -> Result<T, Problem> {
        let mut json = serde_json::Deserializer::from_slice(&self.bytes);
        let value = serde_path_to_error::deserialize(&mut json).map_err(|error| {
            let pointer = pointer(error.path());
            not_understood(error.inner(), pointer)
        })?;
        json.end().map_err(|error| not_understood(&error, String::new()))?;
        Ok(value)
    }
}

fn check_content_type(headers: &HeaderMap) -> Result<(), Problem> {
    let said = headers.get(CONTENT_TYPE).and_then(|said| said.to_str().ok()).unwrap_or_default();
    let said = said.split(';').next().unwrap_or_default().trim();
    match said.eq_ignore_ascii_case("application/json") {
        true => Ok(()),
        false => {
            let why = "a request with a body has `Content-Type: application/json`";
            Err(Problem::new(ProblemCode::NotJson, why))
        }
    }
}

/// The whole body, with room for it: many large requests at once must not take all memory.
async fn take(api: &Api, mut body: Body) -> Result<TakenBody, Problem> {
    let mut taken = TakenBody { bytes: Vec::new(), room: None };
    if body.size_hint().lower() > limits::REQUEST_BYTES as u64 {
        return Err(too_large());
    }
    loop {
        let part = std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context));
        let part = timeout(NEXT_PART, part).await.map_err(|_| slow(NEXT_PART))?;
        let Some(part) = part else { return Ok(taken) };
        let broken = |error| {
            Problem::new(ProblemCode::InvalidJson, format!("the body did not arrive: {error}"))
        };
        let Ok(part) = part.map_err(broken)?.into_data() else { continue };
        let bytes = taken.bytes.len() + part.len();
        if bytes > limits::REQUEST_BYTES {
            return Err(too_large());
        }
        taken.make_room(api, bytes)?;
        taken.bytes.extend_from_slice(&part);
    }
}

impl TakenBody {
    fn make_room(&mut self, api: &Api, bytes: usize) -> Result<(), Problem> {
        let held = self.room.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let more = u32::try_from(bytes.div_ceil(PIECE) - held).unwrap_or(u32::MAX);
        let more = api.room().clone().try_acquire_many_owned(more).map_err(|_| {
            let why = "the server holds as many requests as it can; come again";
            Problem::new(ProblemCode::Busy, why)
        })?;
        match &mut self.room {
            Some(room) => room.merge(more),
            None => self.room = Some(more),
        }
        Ok(())
    }
}

fn slow(patience: Duration) -> Problem {
    let why = format!("the body did not arrive within {patience:?}");
    Problem::new(ProblemCode::TooSlow, why)
}

fn too_large() -> Problem {
    let most = limits::REQUEST_BYTES;
    let why = format!("a body has at most {most} bytes; send fewer jobs at once");
    Problem::new(ProblemCode::BodyTooLarge, why)
}

/// Refuses what is nested too deep. Brackets within texts do not count.
fn check_depth(bytes: &[u8]) -> Result<(), Problem> {
    let (mut depth, mut in_text, mut escaped) = (0_usize, false, false);
    for byte in bytes {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_text => escaped = true,
            b'"' => in_text = !in_text,
            b'[' | b'{' if !in_text => depth += 1,
            b']' | b'}' if !in_text => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > DEPTH {
            let why = format!("JSON may be nested {DEPTH} deep; this is deeper");
            return Err(Problem::new(ProblemCode::InvalidJson, why));
        }
    }
    Ok(())
}

/// Where something is in the body (RFC 6901).
fn pointer(path: &serde_path_to_error::Path) -> String {
    path.iter().fold(String::new(), |pointer, segment| {
        let step: Cow<'_, str> = match segment {
            Segment::Seq { index } => index.to_string().into(),
            Segment::Map { key } => escape(key).into(),
            Segment::Enum { variant } => escape(variant).into(),
            Segment::Unknown => return pointer,
        };
        format!("{pointer}/{step}")
    })
}

fn escape(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

fn not_understood(error: &serde_json::Error, pointer: String) -> Problem {
    let said = error.to_string();
    match error.classify() {
        Category::Data => {
            // It says the line and column, where a pointer says it better.
            let said = said.rsplit_once(" at line ").map_or(said.as_str(), |(said, _)| said);
            let (said, pointer) = unknown_field(said, &pointer).unwrap_or((said.into(), pointer));
            Problem::new(ProblemCode::InvalidField, said).at(&pointer)
        }
        Category::Syntax | Category::Eof | Category::Io => {
            Problem::new(ProblemCode::InvalidJson, format!("the body is not JSON: {said}"))
        }
    }
}

/// An unknown field, with the nearest that there is. That is known only from what serde says.
fn unknown_field(said: &str, pointer: &str) -> Option<(String, String)> {
    let (field, known) = said.strip_prefix("unknown field `")?.rsplit_once("`, expected ")?;
    let known: Vec<Name> = known.split('`').filter_map(|word| Name::new(word).ok()).collect();
    let at = format!("/{}", escape(field));
    let pointer = if pointer.ends_with(&at) { pointer.into() } else { format!("{pointer}{at}") };
    let said = match nearest(field, known.iter()) {
        Some(nearest) => format!("there is no field `{field}`; did you mean `{nearest}`?"),
        None => format!("there is no field `{field}`"),
    };
    Some((said, pointer))
}
