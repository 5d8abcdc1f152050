//! A server on the loopback, for tests of what reaches a store over HTTP.

use std::convert::Infallible;
use std::net::Ipv4Addr;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use windlass::Engine;
use windlass::wire::http::HttpDoor;

/// An engine in memory, and the server before it.
pub(crate) struct Server {
    engine: Engine,
    door: HttpDoor,
    port: u16,
    serving: JoinHandle<()>,
}

impl Server {
    pub(crate) async fn start() -> Self {
        let engine = Engine::open("memory:").await.expect("it opens");
        let door = HttpDoor::to_engine(&engine);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port is free");
        let port = listener.local_addr().expect("it is bound").port();
        let answers = door.clone();
        let serving = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let door = answers.clone();
                let answer = service_fn(move |request| {
                    let door = door.clone();
                    async move { Ok::<_, Infallible>(door.answer(request).await) }
                });
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), answer));
            }
        });
        Self { engine, door, port, serving }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    pub(crate) async fn close(self) {
        self.door.close().await;
        self.serving.abort();
        self.engine.close().await;
    }
}
