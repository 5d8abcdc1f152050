//! The workers of `examples/http/`, against the real server.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};
use windlass_testbed::{Missing, or_skip};

use crate::serve::Served;

/// A worker that is ended with the test.
struct RunningWorker(Child);

impl Drop for RunningWorker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts an example, or says that the test is skipped because a program is missing.
fn start(example: &str, program: &'static str, server: &Served) -> Option<RunningWorker> {
    let there = Command::new(program).arg("--version").stdout(Stdio::null()).status();
    or_skip(there.map(drop).map_err(|_| Missing {
        what: program,
        how_to_install: "install it with the system's packages",
    }))?;
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/http");
    let worker = Command::new(root.join(example))
        .arg(&server.url)
        .env("WINDLASS_TOKEN", "")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    Some(RunningWorker(worker.expect("it starts")))
}

fn json_of(answer: &str) -> Value {
    let body = answer.split_once("\r\n\r\n").map(|(_, body)| body).expect("it has a body");
    serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {answer}"))
}

/// A job of the server after it has ended.
fn ended(server: &Served, id: &Value) -> Value {
    let id = id.as_str().expect("it has an id");
    json_of(&server.get(&format!("/v1/jobs/{id}?wait=60s")))
}

#[track_caller]
fn check_worker(example: &str, program: &'static str) {
    let server = Served::start("memory:", "127.0.0.1:0", &[]);
    let enqueue = |job: Value| json_of(&server.post("/v1/jobs", &job.to_string()))["id"].clone();
    // One is there before the worker, and one comes while it waits.
    let first = enqueue(json!({ "kind": "hello", "payload": { "name": "Ada \"Countess\"" } }));
    let Some(worker) = start(example, program, &server) else { return };
    assert_eq!(ended(&server, &first)["state"], json!("completed"));
    let second = enqueue(json!({ "kind": "hello", "payload": { "name": "Grace" } }));
    let job = ended(&server, &second);
    assert_eq!(job["state"], json!("completed"), "{job}");
    assert!(job["output"]["hello"].to_string().contains("Grace"), "{job}");
    drop(worker);
}

#[test]
fn the_worker_in_shell_runs_jobs() {
    check_worker("worker.sh", "curl");
}

#[test]
fn the_worker_in_python_runs_jobs() {
    check_worker("worker.py", "python3");
}

#[test]
fn the_examples_of_workers_are_short() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/http");
    for (example, most) in [("worker.sh", 20), ("worker.py", 40)] {
        let text = std::fs::read_to_string(root.join(example)).expect("it is there");
        assert!(text.lines().count() <= most, "{example} has {} lines", text.lines().count());
    }
}
