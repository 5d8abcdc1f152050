//! `windlass serve`: programs reach it, and it stops, dies and comes back without losing anything.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use serde::{Deserialize, Serialize};
use tokio::runtime::Runtime;
use windlass::{Engine, Failure, Job, JobId, Name, NewJob, StateName};
use windlass_testbed::{Postgres, or_skip};

use crate::{Scratch, check_refused, run, stdout, windlass};

/// A server that was started, with the address it has told.
pub(crate) struct Served {
    child: Child,
    pub(crate) url: String,
}

impl Served {
    pub(crate) fn start(store: &str, listen: &str, more: &[&str]) -> Self {
        let mut command = windlass(&["serve", "--store", store, "--listen", listen]);
        let mut child = command
            .args(more)
            .env_remove("WINDLASS_TOKEN")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        let mut line = String::new();
        let told = BufReader::new(child.stdout.take().expect("it is piped")).read_line(&mut line);
        told.expect("it can be read");
        let (said, url) = line.trim_end().rsplit_once(' ').unwrap_or_else(|| {
            let _ = child.kill();
            let mut why = String::new();
            let _ = child.stderr.take().expect("it is piped").read_to_string(&mut why);
            panic!("it told {line:?}: {why}")
        });
        // Of a database without the password.
        if !store.starts_with("postgres") {
            assert_eq!(said, format!("windlass serves {store} at"));
        }
        Self { url: url.to_string(), child }
    }

    fn address(&self) -> &str {
        self.url.strip_prefix("http://").expect("it is an address")
    }

    /// What it answers to `GET path`.
    pub(crate) fn get(&self, path: &str) -> String {
        self.send("GET", path, "")
    }

    /// What it answers to `POST path` with JSON.
    pub(crate) fn post(&self, path: &str, body: &str) -> String {
        self.send("POST", path, body)
    }

    fn send(&self, method: &str, path: &str, body: &str) -> String {
        let mut stream = TcpStream::connect(self.address()).expect("it listens");
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            self.address(),
            body.len()
        )
        .expect("it can be sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers");
        answer
    }

    /// Asks it to stop, and returns what it said and whether that went well.
    fn stop(mut self) -> String {
        let stop = Command::new("kill").arg(self.child.id().to_string()).status();
        assert!(stop.expect("it runs").success());
        let mut said = String::new();
        let stderr = self.child.stderr.as_mut().expect("it is piped");
        stderr.read_to_string(&mut said).expect("it can be read");
        let status = self.child.wait().expect("it ends");
        assert!(status.success(), "{status}: {said}");
        said
    }

    fn kill(mut self) {
        self.child.kill().expect("it lives");
        self.child.wait().expect("it ends");
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn job(number: u128) -> std::sync::Arc<NewJob> {
    let name = |text| Name::new(text).expect("a name");
    NewJob::new(JobId::from_u128(number), name("hello"), name("default"), b"1".to_vec()).into()
}

#[test]
fn what_was_acknowledged_through_a_server_survives_its_stop_and_its_death() {
    let scratch = Scratch::new();
    let store = scratch.path("jobs");
    let server = Served::start(&store, "127.0.0.1:0", &[]);
    let (url, address) = (server.url.clone(), server.address().to_string());
    let runtime = Runtime::new().expect("a runtime");
    let engine = runtime.block_on(Engine::open(&url)).expect("it is there");
    let enqueue = |number| {
        let accepted = runtime.block_on(engine.store().enqueue(vec![job(number)]));
        accepted.unwrap_or_else(|error| panic!("job {number}: {error}"));
    };
    enqueue(1);
    let said = server.stop();
    assert!(said.ends_with("stopped\n"), "{said}");
    // On the same port: for the program that was a pause.
    let server = Served::start(&store, &address, &[]);
    enqueue(2);
    server.kill();
    let server = Served::start(&store, &address, &[]);
    enqueue(3);
    // The command joins the server.
    let listed = stdout(&run(&["list", &store, "-o", "json"]));
    assert_eq!(listed.matches("\"id\"").count(), 3, "{listed}");
    let counts = runtime.block_on(engine.store().count()).expect("it is answered");
    assert_eq!(counts.in_state(StateName::Ready), 3);
    runtime.block_on(engine.close());
    server.stop();
}

/// A job that doubles a number.
#[derive(Clone, Serialize, Deserialize)]
struct Double(u64);

impl Job for Double {
    const KIND: &'static str = "double";
    type Output = u64;
}

async fn double(job: Double) -> Result<u64, Failure> {
    Ok(job.0 * 2)
}

/// Enqueues here, works there, and hears of it here.
async fn works_through(here: &Engine, there: &Engine) {
    let worker = there.worker().handle(double).start().await.expect("it starts");
    for number in 0..5 {
        let handle = here.enqueue(Double(number)).await.expect("it is accepted");
        assert_eq!(handle.outcome().await.expect("it is done"), number * 2);
    }
    worker.stop().await.expect("it stops");
}

#[test]
fn two_servers_before_one_database_are_one_store() {
    let Some(postgres) = or_skip(Postgres::shared()) else { return };
    let store = postgres.url_for(&postgres.create_database());
    let servers = [0, 1].map(|_| Served::start(&store, "127.0.0.1:0", &[]));
    Runtime::new().expect("a runtime").block_on(async {
        let here = Engine::open(&servers[0].url).await.expect("it is there");
        let there = Engine::open(&servers[1].url).await.expect("it is there");
        works_through(&here, &there).await;
        here.close().await;
        there.close().await;
    });
    servers.into_iter().for_each(|server| drop(server.stop()));
}

#[test]
fn a_server_beside_a_program_joins_its_directory_and_takes_over_when_it_ends() {
    let scratch = Scratch::new();
    let store = scratch.path("jobs");
    let runtime = Runtime::new().expect("a runtime");
    let program = runtime.block_on(Engine::open(&store)).expect("it opens");
    let server = Served::start(&store, "127.0.0.1:0", &[]);
    runtime.block_on(async {
        let far = Engine::open(&server.url).await.expect("it is there");
        works_through(&far, &program).await;
        program.close().await;
        works_through(&far, &far).await;
        far.close().await;
    });
    server.stop();
}

#[test]
fn a_server_tells_that_it_lives_and_is_ready() {
    let server = Served::start("memory:", "127.0.0.1:0", &[]);
    assert!(server.get("/livez").starts_with("HTTP/1.1 200"), "{}", server.get("/livez"));
    let ready = server.get("/readyz");
    assert!(ready.starts_with("HTTP/1.1 200") && ready.ends_with("ready\n"), "{ready}");
    let calls = server.get("/wire");
    assert!(calls.starts_with("HTTP/1.1 405"), "{calls}");
    let nothing = server.get("/elsewhere");
    assert!(nothing.starts_with("HTTP/1.1 404"), "{nothing}");
}

#[test]
fn a_token_from_a_file_is_asked_for() {
    let scratch = Scratch::new();
    let file = scratch.path("token");
    std::fs::write(&file, "0123456789abcdef\n").expect("it can be written");
    let server = Served::start("memory:", "127.0.0.1:0", &["--token-file", &file]);
    let runtime = Runtime::new().expect("a runtime");
    let open = |token: &'static str| {
        runtime.block_on(Engine::builder().token(token).open(&server.url)).map(drop)
    };
    open("0123456789abcdef").expect("it is the token");
    let refused = open("0123456789abcdeF").expect_err("it is another one").to_string();
    assert!(refused.contains("does not know this token"), "{refused}");
}

#[test]
fn a_server_that_cannot_be_is_refused_in_a_sentence() {
    let scratch = Scratch::new();
    let store = scratch.path("jobs");
    let serve = |listen| ["serve", "--store", "memory:", "--listen", listen];
    check_refused(&serve("0.0.0.0:0"), 2, "needs a token");
    check_refused(&serve("here"), 2, "invalid socket address");
    check_refused(&["serve", "--store", "redis://x"], 2, "cannot open `redis://x`");
    let short = scratch.path("short");
    std::fs::write(&short, "secret").expect("it can be written");
    let with_token = ["serve", "--store", "memory:", "--token-file", &short];
    check_refused(&with_token, 2, "at least 16 characters");
    let nowhere = ["serve", "--store", "memory:", "--token-file", "/nowhere/token"];
    check_refused(&nowhere, 2, "cannot be read from /nowhere/token");
    let server = Served::start("memory:", "127.0.0.1:0", &[]);
    let taken = ["serve", "--store", &store, "--listen", server.address()];
    check_refused(&taken, 4, "another program listens at");
    assert!(!std::path::Path::new(&store).exists(), "it has opened the store before the port");
}
