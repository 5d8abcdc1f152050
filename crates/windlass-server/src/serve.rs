//! The server: a store that programs on other machines reach over HTTP, and the public API.
//!
//! Connections are bounded in number, and one that says nothing is left. Asked to stop, it takes
//! no more calls, answers those that wait for something, finishes what was begun, and closes the
//! store.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use windlass::Engine;
use windlass::wire::http::{HttpDoor, PATH, TOKEN_VARIABLE, Token};
use windlass_server::{Access, Api, Peer};

use crate::cli::ServeOptions;
use crate::output::{self, CONFLICT, Failure, USAGE};
use crate::signals::Interrupts;

/// How many connections there may be at once. Whoever comes beyond waits to be let in.
const CONNECTIONS: usize = 4_096;

/// How long the head of a request may take; also how long a connection may be idle.
const HEAD: Duration = Duration::from_secs(75);

/// How long what was begun may take when the server stops.
const GRACE: Duration = Duration::from_secs(10);

/// How long the store may take to answer before the server is not ready.
const READY: Duration = Duration::from_secs(2);

/// Serves until someone presses Ctrl-C or the service manager says the same.
pub(crate) fn run(options: &ServeOptions) -> anyhow::Result<()> {
    let token = token(options.token_file.as_deref())?;
    if token.is_none() && !options.listen.ip().is_loopback() {
        return Err(Failure::because(
            USAGE,
            format!(
                "{} can be reached from other machines, so it needs a token: put one of at least \
                 16 characters into {TOKEN_VARIABLE} or a file (--token-file)",
                options.listen
            ),
        ));
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let served = runtime.block_on(serve(options, token));
    runtime.shutdown_background();
    served
}

/// What clients must say: from a file, else from the environment.
fn token(file: Option<&Path>) -> anyhow::Result<Option<Token>> {
    let (said, place) = match file {
        Some(path) => {
            let place = path.display().to_string();
            let said = std::fs::read_to_string(path).map_err(|error| {
                Failure::because(USAGE, format!("the token cannot be read from {place}: {error}"))
            })?;
            (said, place)
        }
        None => match std::env::var(TOKEN_VARIABLE) {
            Ok(said) if !said.is_empty() => (said, TOKEN_VARIABLE.to_string()),
            _ => return Ok(None),
        },
    };
    let token = Token::new(said.trim());
    token.map(Some).map_err(|error| Failure::because(USAGE, format!("{place}: {error}")))
}

async fn serve(options: &ServeOptions, token: Option<Token>) -> anyhow::Result<()> {
    let mut interrupts = Interrupts::listen()?;
    // The port first: whoever cannot have it must not have opened the store.
    let listener = listen(options.listen).await?;
    let address = listener.local_addr()?;
    let engine = Engine::open(&options.store.0).await?;
    let access = token.clone().map_or(Access::Loopback, Access::Token);
    let door = HttpDoor::to_engine(&engine).token(token);
    let api = Api::new(&engine, access);
    output::line(&format!("windlass serves {} at http://{address}", options.store))?;
    let (stop, stopping) = watch::channel(false);
    let router = router(engine.clone(), door.clone()).merge(api.router());
    let mut accepting = tokio::spawn(accept(listener, router, stopping));
    interrupts.next().await;
    output::remark("stopping; Ctrl-C again ends it at once");
    stop.send_replace(true);
    api.close();
    let finish = async {
        let finished = timeout(GRACE, async { tokio::join!(door.close(), &mut accepting) }).await;
        if finished.is_err() {
            output::remark(&format!("requests were not finished within {GRACE:?}; they end here"));
            accepting.abort();
        }
        engine.close().await;
    };
    tokio::select! {
        () = finish => output::remark("stopped"),
        () = interrupts.next() => output::remark("ended at once; what was acknowledged is kept"),
    }
    Ok(())
}

async fn listen(address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.map_err(|error| match error.kind() {
        ErrorKind::AddrInUse => Failure::because(
            CONFLICT,
            format!("another program listens at {address}; choose another one with --listen"),
        ),
        _ => Failure::because(USAGE, format!("cannot listen at {address}: {error}")),
    })
}

/// Everything that is answered beside the public API.
fn router(engine: Engine, door: HttpDoor) -> Router {
    Router::new()
        .route(PATH, post(calls))
        .with_state(door.clone())
        .route("/livez", get(|| async { "ok\n" }))
        .merge(Router::new().route("/readyz", get(ready)).with_state((engine, door)))
}

async fn calls(State(door): State<HttpDoor>, request: Request) -> Response {
    door.answer(request).await.map(Body::new)
}

/// Whether calls would be answered now.
async fn ready(State((engine, door)): State<(Engine, HttpDoor)>) -> Response {
    let not_ready = |why: String| {
        (StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {why}\n")).into_response()
    };
    if door.is_closing() {
        return not_ready("the server stops".to_string());
    }
    match timeout(READY, engine.store().count()).await {
        Ok(Ok(_)) => "ready\n".into_response(),
        Ok(Err(error)) => not_ready(error.to_string()),
        Err(_) => not_ready(format!("the store did not answer within {READY:?}")),
    }
}

/// Takes connections until it is time to stop, and returns when all of them have ended.
async fn accept(listener: TcpListener, router: Router, mut stopping: watch::Receiver<bool>) {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            biased;
            _ = stopping.wait_for(|stopping| *stopping) => break,
            Some(_) = connections.join_next() => continue,
            accepted = place_for_one(&listener, &places) => accepted,
        };
        match accepted {
            Ok((stream, peer, place)) => {
                let router = router.clone().layer(Extension(peer));
                connections.spawn(answer(stream, router, stopping.clone(), place));
            }
            // Such as no more file descriptors: those who are here go on, and some will leave.
            Err(error) => {
                tracing::warn!(%error, "a connection was not accepted");
                sleep(Duration::from_millis(100)).await;
            }
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

async fn place_for_one(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
) -> std::io::Result<(TcpStream, Peer, OwnedSemaphorePermit)> {
    let place = places.clone().acquire_owned().await.map_err(std::io::Error::other)?;
    let (stream, peer) = listener.accept().await?;
    Ok((stream, Peer(peer), place))
}

/// Answers the requests of one connection, until it ends or the server stops.
async fn answer(
    stream: TcpStream,
    router: Router,
    mut stopping: watch::Receiver<bool>,
    _place: OwnedSemaphorePermit,
) {
    // If it cannot be set, answers come a little later.
    let _ = stream.set_nodelay(true);
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD);
    let service = TowerToHyperService::new(router);
    let connection = http.serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    tokio::select! {
        ended = &mut connection => return log_end(ended),
        _ = stopping.wait_for(|stopping| *stopping) => {}
    }
    connection.as_mut().graceful_shutdown();
    log_end(connection.await);
}

/// A connection that broke is its client's business.
fn log_end(ended: Result<(), hyper::Error>) {
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection broke");
    }
}
