//! Jobs over HTTP: enqueued once, found, waited for, listed, explained and changed.

use serde::{Deserialize, Serialize};
use serde_json::json;
use windlass::store::StoreExt;
use windlass::{Attempt, Failure, Job};

use crate::{Server, check_problem, on_every_store};

#[derive(Serialize, Deserialize)]
struct Hello {
    n: u64,
}

impl Job for Hello {
    const KIND: &'static str = "hello";
    type Output = u64;
}

async fn hello(job: Hello, _attempt: Attempt) -> Result<u64, Failure> {
    match job.n {
        0 => Err(Failure::permanent("nothing to greet")),
        n => Ok(n + 1),
    }
}

#[test]
fn a_first_job_is_accepted_found_and_run_by_a_rust_worker() {
    on_every_store(|server| {
        let answer = server.post("/v1/jobs", &json!({ "kind": "hello", "payload": { "n": 1 } }));
        assert_eq!(answer.status, 201, "{answer:?}");
        let id = answer.json()["id"].as_str().expect("it has an id").to_string();
        assert_eq!(answer.header("location"), Some(format!("/v1/jobs/{id}").as_str()));
        let job = server.get(&format!("/v1/jobs/{id}")).json();
        assert_eq!((&job["kind"], &job["state"]), (&json!("hello"), &json!("ready")));
        assert_eq!(job["payload"], json!({ "n": 1 }));
        let worker = server.engine.worker().handle(hello);
        let worker = server.runtime.block_on(worker.start()).expect("it starts");
        let ended = server.get(&format!("/v1/jobs/{id}?wait=30s")).json();
        assert_eq!((&ended["state"], &ended["output"]), (&json!("completed"), &json!(2)));
        let dead = server.enqueue(&json!({ "kind": "hello", "payload": { "n": 0 } }));
        let ended = server.get(&format!("/v1/jobs/{dead}?wait=30s")).json();
        assert_eq!(
            (&ended["state"], &ended["error"]),
            (&json!("dead"), &json!("nothing to greet"))
        );
        server.runtime.block_on(worker.stop()).expect("it stops");
    });
}

#[test]
fn every_digit_of_a_payload_is_kept() {
    on_every_store(|server| {
        let payload =
            r#"{"id":12345678901234567890123, "rate":0.1000000000000000000001,"e":1E400}"#;
        let body = format!(r#"{{"kind":"hello","payload":{payload}}}"#);
        let id = server.client().post("/v1/jobs", &body).json()["id"].clone();
        let job = server.get(&format!("/v1/jobs/{}", id.as_str().expect("an id")));
        assert!(job.body.contains(payload), "{}", job.body);
    });
}

#[test]
fn everything_a_producer_can_say_is_said() {
    let server = Server::in_memory();
    let first = server.enqueue(&json!({ "kind": "hello" }));
    let id = "0199f2a4-7d1c-7c3e-9b52-2f0c5f6f7a10";
    let said = json!({
        "id": id, "kind": "hello", "payload": [1], "queue": "mail", "priority": 10,
        "delay": "1h30m", "unique": { "key": "order-7", "scope": "any", "window": "2d" },
        "depends_on": [{ "on": first, "on_failure": "wait" }],
        "retry": { "backoff": "constant", "delay": "5s", "jitter": "none", "max_duration": "1h" },
        "max_attempts": 7, "timeout": "2m", "expires_after": "1d", "tags": ["a", "b"],
        "metadata": { "source": "a test" }, "lane": "customer-7", "parent": first,
        "trace": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    });
    assert_eq!(server.enqueue(&said), id);
    let job = server.get(&format!("/v1/jobs/{id}")).json();
    for (field, expected) in [
        ("queue", json!("mail")),
        ("priority", json!(10)),
        ("state", json!("blocked")),
        ("start", json!({ "after_ms": 5_400_000 })),
        ("unique", json!({ "key": "order-7", "scope": "any", "window_ms": 172_800_000 })),
        ("depends_on", json!([{ "on": first, "on_failure": "wait" }])),
        ("max_attempts", json!(7)),
        ("timeout", json!({ "after_ms": 120_000 })),
        ("expires_after_ms", json!(86_400_000)),
        ("tags", json!(["a", "b"])),
        ("metadata", json!({ "source": "a test" })),
        ("lane", json!({ "key": "customer-7" })),
        ("parent", json!(first)),
        ("trace", said["trace"].clone()),
    ] {
        assert_eq!(job[field], expected, "{field}: {job}");
    }
    assert_eq!(job["retry"]["backoff"], json!({ "constant_ms": 5_000 }));
    assert_eq!(job["retry"]["max_duration_ms"], json!(3_600_000));
    let at = server.enqueue(&json!({ "kind": "hello", "at": "2099-01-01T00:00:00+01:00" }));
    let job = server.get(&format!("/v1/jobs/{at}")).json();
    assert_eq!(job["due_at"], json!("2098-12-31T23:00:00.000Z"));
}

#[test]
fn a_list_of_jobs_is_one_commit() {
    on_every_store(|server| {
        let (a, b) =
            ("0199f2a4-7d1c-7c3e-9b52-000000000001", "0199f2a4-7d1c-7c3e-9b52-000000000002");
        let two = json!([{ "id": a, "kind": "x" }, { "id": b, "kind": "x", "depends_on": [a] }]);
        let answer = server.post("/v1/jobs", &two);
        assert_eq!(answer.status, 201, "{answer:?}");
        assert_eq!(answer.json()["jobs"][1]["id"], json!(b));
        assert_eq!(server.state(b), "blocked");
        let bad = json!([{ "kind": "x" }, { "kind": "x", "depends_on": [a, crate::jobs::NOBODY] }]);
        check_problem(&server.post("/v1/jobs", &bad), 422, "unknown_dependency");
        let jobs = server.get("/v1/jobs").json();
        assert_eq!(jobs["jobs"].as_array().map(Vec::len), Some(2), "{jobs}");
        assert_eq!(server.post("/v1/jobs", &json!([])).json(), json!({ "jobs": [] }));
    });
}

/// The id of a job that is not there.
pub(crate) const NOBODY: &str = "0199f2a4-7d1c-7c3e-9b52-2f0c5f6fffff";

#[test]
fn a_request_that_is_repeated_under_its_key_adds_nothing() {
    on_every_store(|server| {
        let send = |key: &str, body: &serde_json::Value| {
            let headers = [("content-type", "application/json"), ("idempotency-key", key)];
            server.client().send("POST", "/v1/jobs", &headers, &body.to_string())
        };
        let two = json!([{ "kind": "x", "payload": 1 }, { "kind": "x", "payload": 2 }]);
        let (first, again) = (send("order-7", &two).json(), send("order-7", &two).json());
        for place in 0..2 {
            assert_eq!(first["jobs"][place]["id"], again["jobs"][place]["id"]);
            assert_eq!(first["jobs"][place]["repeated"], json!(false));
            assert_eq!(again["jobs"][place]["repeated"], json!(true));
        }
        assert_ne!(first["jobs"][0]["id"], first["jobs"][1]["id"]);
        let other = json!([{ "kind": "x", "payload": 1 }, { "kind": "x", "payload": 3 }]);
        check_problem(&send("order-7", &other), 422, "idempotency_key_reused");
        assert_ne!(send("order-8", &two).json()["jobs"][0]["id"], first["jobs"][0]["id"]);
        let jobs = server.get("/v1/jobs").json();
        assert_eq!(jobs["jobs"].as_array().map(Vec::len), Some(4), "{jobs}");
        check_problem(&send("", &two), 400, "invalid_header");
        check_problem(&send(&"k".repeat(256), &two), 400, "invalid_header");
        let with_id = json!({ "kind": "x", "id": NOBODY });
        check_problem(&send("order-9", &with_id), 400, "invalid_field");
    });
}

#[test]
fn a_job_whose_key_is_held_is_that_job() {
    let server = Server::in_memory();
    let job = |payload| json!({ "kind": "x", "payload": payload, "unique": { "key": "k" } });
    let first = server.enqueue(&job(1));
    let answer = server.post("/v1/jobs", &job(2)).json();
    assert_eq!((&answer["id"], &answer["duplicate"]), (&json!(first), &json!(true)));
    assert_eq!(answer["payload_differs"], json!(true));
    let taken = json!({ "kind": "y", "id": first });
    check_problem(&server.post("/v1/jobs", &taken), 409, "id_reused");
}

#[test]
fn waiting_for_a_job_ends_with_its_state_as_it_is() {
    let server = Server::in_memory();
    let id = server.enqueue(&json!({ "kind": "x" }));
    let job = server.get(&format!("/v1/jobs/{id}?wait=50ms"));
    assert_eq!((job.status, &job.json()["state"]), (200, &json!("ready")));
    let path = format!("/v1/jobs/{id}?wait=60s");
    let waiting = server.client().begin("GET", &path, &[], 0, b"");
    assert_eq!(server.change(&format!("/v1/jobs/{id}/cancel")).status, 200);
    assert_eq!(waiting.answer().json()["state"], json!("cancelled"));
}

#[test]
fn pages_follow_each_other_without_gaps() {
    on_every_store(|server| {
        let jobs: Vec<_> = (0..25).map(|n| json!({ "kind": "x", "payload": n })).collect();
        server.post("/v1/jobs", &json!(jobs));
        server.enqueue(&json!({ "kind": "y" }));
        let (mut seen, mut cursor) = (Vec::new(), String::new());
        loop {
            let page = server.get(&format!("/v1/jobs?kind=x&limit=10{cursor}")).json();
            let jobs = page["jobs"].as_array().expect("a list");
            assert!(jobs.len() <= 10);
            seen.extend(jobs.iter().map(|job| job["id"].to_string()));
            let Some(next) = page["next"].as_str() else { break };
            cursor = format!("&cursor={next}");
        }
        assert_eq!(seen.len(), 25);
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), 25);
    });
}

#[test]
fn a_list_has_what_all_its_parameters_mean() {
    let server = Server::in_memory();
    let jobs = json!([
        { "kind": "a", "queue": "mail", "tags": ["t"] },
        { "kind": "a", "queue": "mail", "delay": "1h" },
        { "kind": "b", "queue": "mail" },
        { "kind": "b" }
    ]);
    server.post("/v1/jobs", &jobs);
    for (parameters, count) in [
        ("", 4),
        ("?kind=a", 2),
        ("?kind=a,b&queue=mail", 3),
        ("?kind=a&kind=b&queue=mail", 3),
        ("?state=scheduled", 1),
        ("?state=scheduled,ready", 4),
        ("?tag=t", 1),
        ("?queue=nowhere", 0),
    ] {
        let page = server.get(&format!("/v1/jobs{parameters}")).json();
        assert_eq!(page["jobs"].as_array().map(Vec::len), Some(count), "{parameters}: {page}");
    }
}

#[test]
fn an_explanation_names_the_first_cause() {
    on_every_store(|server| {
        let first = server.enqueue(&json!({ "kind": "x" }));
        let second = server.enqueue(&json!({ "kind": "x", "depends_on": [first] }));
        let why = server.get(&format!("/v1/jobs/{second}/explain")).json();
        assert_eq!(why["reasons"][0]["code"], json!("blocked_by"), "{why}");
        let blocker = &why["reasons"][0]["blocked_by"];
        assert_eq!(blocker["job"], json!(first));
        assert_eq!(blocker["reasons"][0]["code"], json!("no_worker_for_kind"), "{why}");
        check_problem(&server.get(&format!("/v1/jobs/{NOBODY}/explain")), 404, "unknown_job");
    });
}

#[test]
fn a_job_is_moved_called_off_replayed_and_removed() {
    on_every_store(|server| {
        let id = server.enqueue(&json!({ "kind": "x", "delay": "1h" }));
        let verb = |verb: &str| server.change(&format!("/v1/jobs/{id}/{verb}"));
        let move_to = |body| server.post(&format!("/v1/jobs/{id}/reschedule"), &body);
        assert_eq!(verb("run-now").json()["state"], json!("ready"));
        assert_eq!(move_to(json!({ "delay": "5m" })).json()["state"], json!("scheduled"));
        assert_eq!(
            move_to(json!({ "at": "2020-01-01T00:00:00Z" })).json()["state"],
            json!("ready")
        );
        check_problem(&verb("replay"), 409, "wrong_state");
        let answer = verb("cancel").json();
        assert_eq!(answer, json!({ "id": id, "state": "cancelled", "cancel_requested": false }));
        assert_eq!(verb("replay").json()["state"], json!("ready"));
        let remove = || server.client().send("DELETE", &format!("/v1/jobs/{id}"), &[], "");
        check_problem(&remove(), 409, "wrong_state");
        verb("cancel");
        let removed = remove();
        assert_eq!((removed.status, removed.body.as_str()), (204, ""));
        for gone in [remove(), verb("cancel"), server.get(&format!("/v1/jobs/{id}"))] {
            check_problem(&gone, 404, "unknown_job");
        }
    });
}

#[test]
fn changes_are_in_the_audit_trail_with_where_they_came_from() {
    let server = Server::in_memory();
    let id = server.enqueue(&json!({ "kind": "x" }));
    server.change(&format!("/v1/jobs/{id}/cancel"));
    server.change("/v1/queues/default/pause");
    let trail = server.runtime.block_on(server.engine.store().audit(None, 10)).expect("it is read");
    let entries: Vec<_> =
        trail.entries.iter().map(|entry| (entry.by.name(), entry.action.as_str())).collect();
    assert_eq!(entries, [("api", "pause"), ("api", "cancel")]);
}

#[test]
fn a_server_that_ends_answers_those_who_wait() {
    let server = Server::in_memory();
    let id = server.enqueue(&json!({ "kind": "x" }));
    let api = windlass_server::Api::new(&server.engine, windlass_server::Access::Unchecked);
    let address = crate::serve(&server.runtime, api.router());
    let client = crate::client::Client::to(address);
    let waiting = client.begin("GET", &format!("/v1/jobs/{id}?wait=60s"), &[], 0, b"");
    // It came first, so it most likely waits when these have been answered.
    for _ in 0..20 {
        assert_eq!(client.send("GET", "/v1/jobs", &[], "").status, 200);
    }
    api.close();
    // Without waiting for a minute.
    let answer = waiting.answer();
    assert!(matches!(answer.status, 200 | 503), "{answer:?}");
    check_problem(&client.send("GET", "/v1/jobs", &[], ""), 503, "stopping");
}
