//! Errors as a client reads them: `application/problem+json` (RFC 9457).
//!
//! `code` is stable and made for programs, `detail` is a sentence for people, `retryable` says
//! whether the same request may succeed later. Whatever the engine refuses with becomes one here,
//! and nowhere else.

use axum::http::StatusCode;
use axum::http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;
use windlass::store::StoreError;
use windlass::{Error, Refusal};

/// The longest detail in bytes: a request may hold a name of megabytes, and its refusal must not.
const DETAIL_BYTES: usize = 500;

/// What went wrong, by a name that does not change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProblemCode {
    InvalidJson,
    InvalidField,
    InvalidParameter,
    InvalidHeader,
    Unauthorized,
    Forbidden,
    InvalidLease,
    NoSuchPath,
    UnknownJob,
    UnknownQueue,
    MethodNotAllowed,
    TooSlow,
    Conflict,
    WrongState,
    IdReused,
    StillNeeded,
    KeyTaken,
    LeaseLost,
    BodyTooLarge,
    NotJson,
    OutOfBounds,
    InvalidName,
    IdTwice,
    IdempotencyKeyReused,
    UnknownDependency,
    DependencyFailed,
    DependencyCycle,
    QueueFull,
    Busy,
    Stopping,
    Unavailable,
    Unanswered,
    StoreFull,
    StoreBroken,
}

/// Whether the same request may succeed later.
type Retryable = bool;

impl ProblemCode {
    /// The code, the status, whether trying again may help, and a title.
    fn facts(self) -> (&'static str, u16, Retryable, &'static str) {
        match self {
            Self::InvalidJson => ("invalid_json", 400, false, "The body is not JSON"),
            Self::InvalidField => ("invalid_field", 400, false, "A field cannot be meant"),
            Self::InvalidParameter => {
                ("invalid_parameter", 400, false, "A parameter cannot be meant")
            }
            Self::InvalidHeader => ("invalid_header", 400, false, "A header cannot be meant"),
            Self::Unauthorized => ("unauthorized", 401, false, "A token is needed"),
            Self::Forbidden => ("forbidden", 403, false, "Not from there"),
            Self::InvalidLease => ("invalid_lease", 403, false, "No such lease was given"),
            Self::NoSuchPath => ("no_such_path", 404, false, "Nothing is there"),
            Self::UnknownJob => ("unknown_job", 404, false, "There is no such job"),
            Self::UnknownQueue => ("unknown_queue", 404, false, "There is no such queue"),
            Self::MethodNotAllowed => {
                ("method_not_allowed", 405, false, "That cannot be done here")
            }
            Self::TooSlow => ("too_slow", 408, true, "The request did not arrive in time"),
            Self::Conflict => ("conflict", 409, false, "Something stands in the way"),
            Self::WrongState => ("wrong_state", 409, false, "The job is in another state"),
            Self::IdReused => ("id_reused", 409, false, "The id is that of another job"),
            Self::StillNeeded => ("still_needed", 409, false, "Another job needs it"),
            Self::KeyTaken => ("key_taken", 409, false, "Another job holds the unique key"),
            Self::LeaseLost => ("lease_lost", 409, false, "The lease has ended"),
            Self::BodyTooLarge => ("body_too_large", 413, false, "The body is too large"),
            Self::NotJson => ("unsupported_media_type", 415, false, "Send JSON"),
            Self::OutOfBounds => ("out_of_bounds", 422, false, "A value is beyond a bound"),
            Self::InvalidName => ("invalid_name", 422, false, "That is not a name"),
            Self::IdTwice => ("id_twice", 422, false, "An id stands twice in the batch"),
            Self::IdempotencyKeyReused => {
                ("idempotency_key_reused", 422, false, "The key was used for another request")
            }
            Self::UnknownDependency => {
                ("unknown_dependency", 422, false, "A job to depend on is unknown")
            }
            Self::DependencyFailed => {
                ("dependency_failed", 422, false, "A job to depend on has failed")
            }
            Self::DependencyCycle => {
                ("dependency_cycle", 422, false, "The jobs wait for each other")
            }
            Self::QueueFull => ("queue_full", 429, true, "The queue is full"),
            Self::Busy => ("busy", 503, true, "The server holds as much as it can"),
            Self::Stopping => ("stopping", 503, true, "The server stops"),
            Self::Unavailable => ("unavailable", 503, true, "The store is unavailable"),
            Self::Unanswered => ("unanswered", 503, true, "The store did not answer"),
            Self::StoreFull => ("store_full", 503, true, "The store has no room left"),
            Self::StoreBroken => ("store_broken", 503, false, "The store takes no writes"),
        }
    }

    pub(crate) fn is_retryable(self) -> bool {
        self.facts().2
    }

    /// What a refusal is to a client.
    pub(crate) fn of(refusal: &Refusal) -> Self {
        match refusal {
            Refusal::QueueFull { .. } | Refusal::LaneFull { .. } => Self::QueueFull,
            Refusal::IdReused { .. } => Self::IdReused,
            Refusal::IdTwiceInBatch { .. } => Self::IdTwice,
            Refusal::UnknownDependency { .. } => Self::UnknownDependency,
            Refusal::DependencyFailed { .. } => Self::DependencyFailed,
            Refusal::DependencyCycle { .. } => Self::DependencyCycle,
            Refusal::UnknownJob { .. } => Self::UnknownJob,
            Refusal::WrongState { .. } => Self::WrongState,
            Refusal::StillNeeded { .. } => Self::StillNeeded,
            Refusal::KeyTaken { .. } => Self::KeyTaken,
            Refusal::LeaseLost { .. } => Self::LeaseLost,
            Refusal::ObjectChanged { .. } | Refusal::UnknownObject { .. } => Self::Conflict,
            Refusal::OutOfBounds { .. } => Self::OutOfBounds,
            Refusal::InvalidName(_) => Self::InvalidName,
            Refusal::ShuttingDown => Self::Stopping,
            Refusal::Unavailable { .. } => Self::Unavailable,
            Refusal::StoreFull { .. } => Self::StoreFull,
            Refusal::StoreBroken { .. } => Self::StoreBroken,
            // The compiler asks for it: refusals may be added. Nothing was changed, at least.
            _ => Self::Conflict,
        }
    }
}

/// A request that was not done, and why.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Problem {
    #[serde(skip)]
    of: ProblemCode,
    /// What it is, as a URI.
    #[serde(rename = "type")]
    uri: String,
    /// What it is, in words that are always the same.
    title: &'static str,
    /// The status of the response.
    status: u16,
    /// What it is, for programs.
    code: &'static str,
    /// Whether the same request may succeed later.
    retryable: bool,
    /// What happened this time, and what to do about it.
    detail: String,
    /// Which parts of the request are wrong.
    errors: Vec<WrongPart>,
}

/// A part of a request that is wrong.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct WrongPart {
    /// Where in the body, as a JSON pointer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pointer: Option<String>,
    /// Which parameter of the address.
    #[serde(skip_serializing_if = "Option::is_none")]
    parameter: Option<String>,
    /// What is wrong with it.
    detail: String,
}

impl Problem {
    pub(crate) fn new(of: ProblemCode, detail: impl AsRef<str>) -> Self {
        let (code, status, retryable, title) = of.facts();
        let (uri, detail) = (format!("urn:windlass:problem:{code}"), cut(detail.as_ref()));
        Self { of, uri, title, status, code, retryable, detail, errors: Vec::new() }
    }

    /// A part of the body is wrong.
    pub(crate) fn at(self, pointer: &str) -> Self {
        let (pointer, detail) = (Some(cut(pointer)), self.detail.clone());
        Self { errors: vec![WrongPart { pointer, parameter: None, detail }], ..self }
    }

    /// A parameter of the address is wrong.
    pub(crate) fn parameter(name: &str, detail: impl AsRef<str>) -> Self {
        let problem = Self::new(ProblemCode::InvalidParameter, detail);
        let (parameter, detail) = (Some(cut(name)), problem.detail.clone());
        Self { errors: vec![WrongPart { pointer: None, parameter, detail }], ..problem }
    }

    /// Under an idempotency key, an id that is taken means another request under the same key.
    pub(crate) fn under_a_key(self) -> Self {
        match self.of == ProblemCode::IdReused {
            true => Self::new(
                ProblemCode::IdempotencyKeyReused,
                "a request with another body was made under this Idempotency-Key; choose a new one",
            ),
            false => self,
        }
    }

    /// The server stops; another one, or the next, may answer.
    pub(crate) fn stopping() -> Self {
        Self::new(ProblemCode::Stopping, "the server stops and takes no more requests")
    }

    /// The store did not answer in time.
    pub(crate) fn unanswered() -> Self {
        let why = "the store did not answer in time; it may have been done, so repeat the request \
                   as it was, with its `id` or `Idempotency-Key` if it adds jobs";
        Self::new(ProblemCode::Unanswered, why)
    }
}

/// As much of a text as a problem repeats.
fn cut(text: &str) -> String {
    if text.len() <= DETAIL_BYTES {
        return text.to_string();
    }
    let end = (0..=DETAIL_BYTES).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    format!("{}…", &text[..end])
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        Self::new(ProblemCode::of(&refusal), refusal.to_string())
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Refused(refusal) => refusal.into(),
            StoreError::Unknown { doing, source } => {
                tracing::warn!(doing, %source, "the store did not answer");
                Self::unanswered()
            }
        }
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        match error {
            Error::Refused(refusal) => refusal.into(),
            Error::Unknown { doing, source } => StoreError::Unknown { doing, source }.into(),
            // The compiler asks for it: none of the others is an answer to what is asked here.
            other => Self::new(ProblemCode::Conflict, other.to_string()),
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let of = self.of;
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::BAD_REQUEST);
        let body = serde_json::to_vec(&self).unwrap_or_default();
        let mut response = (status, body).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if of.is_retryable() {
            headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        if of == ProblemCode::Unauthorized {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}
