//! A server on the loopback, and what tests ask of it.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use windlass::clock::{Clock, SystemClock};
use windlass::store::{MemoryStore, Store};
use windlass::wake::LocalWake;
use windlass::wire::http::{HttpConnection, HttpDoor, HttpOptions, Token};
use windlass::wire::{RemoteStore, Served};
use windlass::{Engine, JobId, Limits, Name, NewJob};

/// A store of its own, as others reach it.
pub(crate) fn memory(limits: Limits, clock: Arc<dyn Clock>) -> Served {
    let wake = Arc::new(LocalWake::new());
    let store = Arc::new(MemoryStore::new(limits, clock, wake.clone()));
    Served { store, wake }
}

pub(crate) fn fresh() -> Served {
    memory(Limits::default(), Arc::new(SystemClock::new()))
}

/// A server. Dropping it cuts all its connections.
pub(crate) struct Server {
    pub(crate) port: u16,
    pub(crate) door: HttpDoor,
    listens: JoinHandle<()>,
    connections: Arc<Mutex<Vec<JoinHandle<()>>>>,
}

impl Server {
    pub(crate) async fn start(served: Served) -> Self {
        Self::with(HttpDoor::to(served), 0).await
    }

    /// A server on a port that another one had a moment ago.
    pub(crate) async fn with(door: HttpDoor, port: u16) -> Self {
        let place = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let listener = loop {
            match TcpListener::bind(place).await {
                Ok(listener) => break listener,
                Err(_) => tokio::task::yield_now().await,
            }
        };
        let port = listener.local_addr().expect("it is bound").port();
        let connections: Arc<Mutex<Vec<JoinHandle<()>>>> = Arc::default();
        let (its_door, its_connections) = (door.clone(), connections.clone());
        let listens = tokio::spawn(async move {
            loop {
                let Ok((stream, _)) = listener.accept().await else { continue };
                let _ = stream.set_nodelay(true);
                let connection = tokio::spawn(answer(stream, its_door.clone()));
                its_connections.lock().expect("nobody panicked").push(connection);
            }
        });
        Self { port, door, listens, connections }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Ends as a server does that is asked to, and gives the port back.
    pub(crate) async fn stop(self) -> u16 {
        self.listens.abort();
        self.door.close().await;
        self.port
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.listens.abort();
        let connections = self.connections.lock().expect("nobody panicked");
        connections.iter().for_each(JoinHandle::abort);
    }
}

/// Answers the requests of one connection.
pub(crate) async fn answer(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    door: HttpDoor,
) {
    let service = service_fn(move |request| {
        let door = door.clone();
        async move { Ok::<_, Infallible>(door.answer(request).await) }
    });
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

pub(crate) const TOKEN: &str = "a-token-that-is-long-enough";

pub(crate) fn token() -> Option<Token> {
    Some(Token::new(TOKEN).expect("it is long enough"))
}

pub(crate) fn connection(url: &str) -> HttpConnection {
    HttpConnection::to(url, &HttpOptions::default()).expect("it is an address")
}

pub(crate) async fn remote(url: &str) -> RemoteStore<HttpConnection> {
    RemoteStore::over(connection(url)).await.expect("it is there")
}

/// An engine on a store of its own, and a server before it.
pub(crate) async fn engine_with_server() -> (Engine, Server) {
    let engine = Engine::open("memory:").await.expect("it opens");
    let server = Server::with(HttpDoor::to_engine(&engine), 0).await;
    (engine, server)
}

pub(crate) fn name(text: &str) -> Name {
    Name::new(text).expect("a valid name")
}

pub(crate) fn job(number: u128) -> Arc<NewJob> {
    let (id, payload) = (JobId::from_u128(number), vec![7; 300]);
    Arc::new(NewJob::new(id, name("work"), name("default"), payload))
}

/// How many jobs there are in a state.
pub(crate) async fn counted(store: &Arc<dyn Store>, state: windlass::StateName) -> u64 {
    store.count().await.expect("it is answered").in_state(state)
}
