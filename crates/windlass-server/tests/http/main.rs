//! The public API as a client meets it: the real router on a loopback port, on every kind of store.

mod access;
mod client;
mod jobs;
mod openapi;
mod queues;
mod refusals;
mod work;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::{Value, json};
use tokio::runtime::Runtime;
use windlass::Engine;
use windlass_server::{Access, router};
use windlass_testbed::{Postgres, or_skip};

use crate::client::{Answer, Client};

/// A server of this process, and the engine it answers for.
struct Server {
    runtime: Runtime,
    engine: Engine,
    address: SocketAddr,
}

impl Server {
    fn start(store: &str, access: Access) -> Self {
        let runtime = Runtime::new().expect("a runtime");
        let engine = runtime.block_on(Engine::open(store)).expect("it can be opened");
        let address = serve(&runtime, router(&engine, access));
        Self { runtime, engine, address }
    }

    /// A server that asks for no token, in memory.
    fn in_memory() -> Self {
        Self::start("memory:", Access::Unchecked)
    }

    fn client(&self) -> Client {
        Client::to(self.address)
    }

    fn get(&self, path: &str) -> Answer {
        self.client().send("GET", path, &[], "")
    }

    fn post(&self, path: &str, body: &Value) -> Answer {
        self.client().post(path, &body.to_string())
    }

    /// Makes a change that needs no body.
    fn change(&self, path: &str) -> Answer {
        self.client().send("POST", path, &[], "")
    }

    /// Enqueues a job and returns its id.
    #[track_caller]
    fn enqueue(&self, job: &Value) -> String {
        let answer = self.post("/v1/jobs", job);
        assert_eq!(answer.status, 201, "{answer:?}");
        answer.json()["id"].as_str().expect("it has an id").to_string()
    }

    /// The state of a job.
    fn state(&self, id: &str) -> String {
        let job = self.get(&format!("/v1/jobs/{id}")).json();
        job["state"].as_str().expect("it has a state").to_string()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.runtime.block_on(self.engine.close());
    }
}

fn serve(runtime: &Runtime, router: axum::Router) -> SocketAddr {
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0"));
    let listener = listener.expect("a port is free");
    let address = listener.local_addr().expect("it has one");
    runtime.spawn(async move { axum::serve(listener, router).await });
    address
}

/// A directory for one test, removed with everything in it.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("http-{}-{number}", std::process::id());
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&path).expect("a directory can be made");
        Self(path)
    }

    /// A path within.
    fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs a test on a server for each kind of store; without a database if there is none.
fn on_every_store(test: impl Fn(&Server)) {
    test(&Server::in_memory());
    let scratch = Scratch::new();
    test(&Server::start(&scratch.path("jobs"), Access::Unchecked));
    if let Some(postgres) = or_skip(Postgres::shared()) {
        let database = postgres.url_for(&postgres.create_database());
        test(&Server::start(&database, Access::Unchecked));
    }
}

/// A problem has the status and code that it should, in the header and the body alike.
#[track_caller]
fn check_problem(answer: &Answer, status: u16, code: &str) {
    assert_eq!(answer.status, status, "{answer:?}");
    assert_eq!(answer.header("content-type"), Some("application/problem+json"), "{answer:?}");
    let problem = answer.json();
    assert_eq!(problem["code"], code, "{answer:?}");
    assert_eq!(problem["status"], json!(status), "{answer:?}");
    assert_eq!(problem["type"], format!("urn:windlass:problem:{code}"));
    assert!(problem["title"].is_string() && problem["detail"].is_string(), "{answer:?}");
    assert!(answer.body.len() < 3_000, "it repeats too much: {} bytes", answer.body.len());
    let retryable = problem["retryable"].as_bool().expect("it says whether");
    assert_eq!(answer.header("retry-after").is_some(), retryable, "{answer:?}");
}
