//! Who is let in, and who is written down as the one who acts.
//!
//! Without a token, a page in a browser on the same machine could reach a server on loopback. It
//! is told apart by what browsers say and pages cannot change: the host that was asked, which is a
//! foreign name if somebody's name server points here, and the page's origin.

use std::net::{IpAddr, SocketAddr};

use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, HOST, ORIGIN};
use axum::http::{Extensions, HeaderMap};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use windlass::wire::http::Token;
use windlass::{Actor, Engine};

use super::problem::{Problem, ProblemCode};
use super::{Api, body};

/// Who may use the API. It is all or nothing.
#[derive(Clone, Debug)]
pub enum Access {
    /// Whoever says this token: `Authorization: Bearer …`.
    Token(Token),
    /// Every program on this machine, but no page of another site in a browser. For a server that
    /// listens on loopback.
    Loopback,
    /// Everyone: the application that nests the router has let them in. It may put an
    /// [`Actor`] into the extensions of a request, who is then written down for changes.
    Unchecked,
}

/// Where a request comes from: an extension that whoever accepts connections may give a request, so
/// that the audit trail can name it.
#[derive(Clone, Copy, Debug)]
pub struct Peer(pub SocketAddr);

/// Lets a request in or refuses it, before anything of it is read.
pub(crate) async fn guard(State(api): State<Api>, request: Request, next: Next) -> Response {
    if api.is_closing() {
        return Problem::stopping().into_response();
    }
    match api.access().check(request.headers()) {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    }
}

impl Access {
    fn check(&self, headers: &HeaderMap) -> Result<(), Problem> {
        match self {
            Self::Token(token) => check_token(token, headers),
            Self::Loopback => check_loopback(headers),
            Self::Unchecked => Ok(()),
        }
    }
}

fn check_token(token: &Token, headers: &HeaderMap) -> Result<(), Problem> {
    let refused = |why: &str| Err(Problem::new(ProblemCode::Unauthorized, why));
    let Some(said) = headers.get(AUTHORIZATION) else {
        return refused("say the server's token: `Authorization: Bearer …`");
    };
    // The scheme is a word whose case means nothing.
    let (scheme, said) = said.as_bytes().split_at_checked(7).unwrap_or_default();
    match scheme.eq_ignore_ascii_case(b"bearer ") && token.is(said) {
        true => Ok(()),
        false => refused("the server does not know this token"),
    }
}

fn check_loopback(headers: &HeaderMap) -> Result<(), Problem> {
    let forbidden = |why: &str| Err(Problem::new(ProblemCode::Forbidden, why));
    let host = headers.get(HOST).map(|host| host.to_str().unwrap_or_default());
    if host.is_some_and(|host| !is_loopback(host)) {
        return forbidden(
            "without a token the server answers only to its own address, such as 127.0.0.1 or \
             localhost",
        );
    }
    let origin = headers.get(ORIGIN).map(|origin| origin.to_str().unwrap_or_default());
    let page_of = |origin: &str| origin.split_once("://").map(|(_, page)| page.to_string());
    if origin.is_some_and(|origin| page_of(origin).as_deref() != host) {
        return forbidden("without a token the server does not answer to pages of other sites");
    }
    Ok(())
}

/// Whether what a client calls the server is this machine.
fn is_loopback(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|digit| digit.is_ascii_digit()) => name,
        _ => host,
    };
    let address = name.trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost")
        || address.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

/// The engine, for whoever makes the request: what it changes is written down with that name.
pub(crate) fn acting(api: &Api, extensions: &Extensions) -> Result<Engine, Problem> {
    let actor = match (extensions.get::<Actor>(), api.access()) {
        (Some(actor), _) => actor.clone(),
        (None, Access::Token(_)) => Actor::new("token")?,
        (None, Access::Loopback | Access::Unchecked) => Actor::new("api")?,
    };
    let actor = match extensions.get::<Peer>() {
        Some(Peer(address)) if actor.place().is_none() => actor.from(&address.ip().to_string())?,
        _ => actor,
    };
    Ok(api.engine().acting_as(actor))
}

/// The same for a change that takes no body.
pub(super) async fn acting_without_body(api: &Api, request: Request) -> Result<Engine, Problem> {
    let engine = acting(api, request.extensions())?;
    body::none(api, request).await?;
    Ok(engine)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(headers: &[(&'static str, &'static str)]) -> bool {
        let headers = headers
            .iter()
            .map(|(name, value)| (name.parse().expect("a name"), value.parse().expect("a value")));
        Access::Loopback.check(&headers.collect()).is_ok()
    }

    #[test]
    fn on_loopback_pages_of_other_sites_and_foreign_names_are_refused() {
        assert!(check(&[]));
        for host in ["localhost", "localhost:7878", "127.0.0.1:7878", "[::1]:7878", "127.9.9.9"] {
            assert!(check(&[("host", host)]), "{host}");
        }
        for host in ["evil.example", "evil.example:7878", "10.0.0.1", "", "localhost.evil.example"]
        {
            assert!(!check(&[("host", host)]), "{host}");
        }
        assert!(check(&[("host", "localhost:1"), ("origin", "http://localhost:1")]));
        for origin in ["http://localhost:2", "https://evil.example", "null", ""] {
            assert!(!check(&[("host", "localhost:1"), ("origin", origin)]), "{origin}");
        }
    }
}
