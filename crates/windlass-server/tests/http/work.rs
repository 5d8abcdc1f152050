//! Work over HTTP: taken, renewed and finished, whatever is lost on the way.

use serde_json::{Value, json};
use windlass::WorkerOrder;
use windlass_server::{Access, router};

use crate::client::Client;
use crate::{Server, check_problem, on_every_store, serve};

/// Asks for one job of kind `x`.
#[track_caller]
fn lease_one(server: &Server, worker: &str) -> Value {
    let asked = json!({ "worker": worker, "kinds": ["x"], "wait": "30s" });
    let answer = server.post("/v1/lease", &asked);
    assert_eq!(answer.status, 200, "{answer:?}");
    let jobs = answer.json()["jobs"].as_array().cloned().expect("a list");
    assert_eq!(jobs.len(), 1, "{jobs:?}");
    jobs.into_iter().next().expect("it is there")
}

/// What became of one result.
#[track_caller]
fn finish(server: &Server, result: &Value) -> Value {
    let answer = server.post("/v1/finish", &json!({ "results": [result] }));
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()["results"][0].clone()
}

#[track_caller]
fn heartbeat(server: &Server, body: &Value) -> Value {
    let answer = server.post("/v1/heartbeat", body);
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()
}

#[test]
fn a_job_is_taken_run_and_finished_from_any_language() {
    on_every_store(|server| {
        let payload = r#"{"id":12345678901234567890123}"#;
        let body = format!(r#"{{"kind":"x","payload":{payload},"timeout":"5m"}}"#);
        let id = server.client().post("/v1/jobs", &body).json()["id"].clone();
        let asked = json!({ "worker": "w", "request_id": "1", "kinds": ["x"] });
        let answer = server.post("/v1/lease", &asked);
        assert!(answer.body.contains(payload), "{answer:?}");
        let job = answer.json()["jobs"][0].clone();
        assert_eq!(
            (&job["id"], &job["attempt"], &job["queue"]),
            (&id, &json!(1), &json!("default"))
        );
        assert_eq!(job["content_type"], json!("application/json"));
        assert!(job["deadline"].is_string() && job["lease_until"].is_string(), "{job}");
        assert_eq!(server.post("/v1/lease", &json!({ "worker": "v", "kinds": ["x"] })).status, 204);
        let value = r#"{"sum":0.10000000000000000000001}"#;
        let lease = &job["lease"];
        let result =
            format!(r#"{{"results":[{{"lease":{lease},"outcome":"ok","value":{value}}}]}}"#);
        let done = server.client().post("/v1/finish", &result).json();
        assert_eq!(done["results"][0]["state"], json!("completed"), "{done}");
        let whole = server.get(&format!("/v1/jobs/{}", id.as_str().expect("an id")));
        assert!(whole.body.contains(value), "{whole:?}");
    });
}

#[test]
fn a_worker_that_waits_gets_the_next_job_at_once() {
    on_every_store(|server| {
        let nothing = json!({ "worker": "w", "kinds": ["x"], "wait": "20ms" });
        assert_eq!(server.post("/v1/lease", &nothing).status, 204);
        let asked = json!({ "worker": "w", "kinds": ["x"], "wait": "60s" }).to_string();
        let json = [("content-type", "application/json")];
        let waiting =
            server.client().begin("POST", "/v1/lease", &json, asked.len(), asked.as_bytes());
        let id = server.enqueue(&json!({ "kind": "x" }));
        assert_eq!(waiting.answer().json()["jobs"][0]["id"], json!(id));
    });
}

#[test]
fn a_lost_answer_is_had_again() {
    on_every_store(|server| {
        let jobs: Vec<_> = (0..5).map(|n| json!({ "kind": "x", "payload": n })).collect();
        server.post("/v1/jobs", &json!(jobs));
        let ask = |worker: &str, request: &str| {
            let asked =
                json!({ "worker": worker, "request_id": request, "kinds": ["x"], "max": 2 });
            server.post("/v1/lease", &asked).json()["jobs"].clone()
        };
        let first = ask("w", "a");
        assert_eq!(first.as_array().map(Vec::len), Some(2));
        assert_eq!(ask("w", "a"), first);
        // Another worker, and another call, mean other jobs.
        let others = ask("v", "a");
        assert_ne!(others, first);
        assert_eq!(others.as_array().map(Vec::len), Some(2));
        assert_eq!(ask("w", "b").as_array().map(Vec::len), Some(1));
        let ok = json!({ "lease": first[0]["lease"], "outcome": "ok", "value": 7 });
        let fail = json!({ "lease": first[1]["lease"], "outcome": "fail", "error": "no" });
        let results = json!({ "results": [ok, fail] });
        let done = server.post("/v1/finish", &results).json();
        assert_eq!(done["results"][0]["state"], json!("completed"), "{done}");
        assert_eq!(done["results"][1]["state"], json!("dead"), "{done}");
        assert_eq!(server.post("/v1/finish", &results).json(), done);
    });
}

#[test]
fn the_job_of_a_killed_worker_runs_again_and_the_late_result_does_not_count() {
    on_every_store(|server| {
        let id = server.enqueue(&json!({ "kind": "x" }));
        let asked = json!({ "worker": "dead", "kinds": ["x"], "lease": "1s" });
        let lost = server.post("/v1/lease", &asked).json()["jobs"][0]["lease"].clone();
        let again = lease_one(server, "alive");
        assert_eq!((&again["id"], &again["attempt"]), (&json!(id), &json!(2)), "{again}");
        let late = finish(server, &json!({ "lease": lost, "outcome": "ok", "value": "late" }));
        assert_eq!(late["error"]["code"], json!("lease_lost"), "{late}");
        assert_eq!(late["error"]["status"], json!(409));
        let told = heartbeat(server, &json!({ "worker": "dead", "leases": [lost] }));
        assert_eq!((&told["lost"], &told["extend_until"]), (&json!([lost]), &Value::Null));
        let done = finish(server, &json!({ "lease": again["lease"], "outcome": "ok" }));
        assert_eq!(done["state"], json!("completed"));
        let job = server.get(&format!("/v1/jobs/{id}")).json();
        assert_eq!((&job["output"], &job["recoveries"]), (&Value::Null, &json!(0)), "{job}");
    });
}

#[test]
fn a_lease_that_was_guessed_or_changed_is_refused() {
    on_every_store(|server| {
        let id = server.enqueue(&json!({ "kind": "x" }));
        let lease = lease_one(server, "w")["lease"].as_str().expect("a text").to_string();
        let (text, code) = lease.rsplit_once('.').expect("it has a code");
        let number: u64 = text.split('.').next().and_then(|it| it.parse().ok()).expect("a number");
        let other = text.replacen(&number.to_string(), &(number + 1).to_string(), 1);
        for guess in [
            number.to_string(),
            text.to_string(),
            format!("{other}.{code}"),
            format!("{text}.{}", "0".repeat(code.len())),
            format!("{text}."),
            String::new(),
            "é".to_string(),
        ] {
            let refused = finish(server, &json!({ "lease": guess, "outcome": "ok" }));
            assert_eq!(refused["error"]["code"], json!("invalid_lease"), "{guess}: {refused}");
            let told = heartbeat(server, &json!({ "worker": "w", "leases": [guess] }));
            assert_eq!(told["lost"], json!([guess]));
        }
        assert_eq!(server.state(&id), "running");
        // Of several results, only the one that is wrong is refused.
        let results = json!({ "results": [
            { "lease": "guess", "outcome": "ok" },
            { "lease": lease, "outcome": "ok" }
        ] });
        let done = server.post("/v1/finish", &results).json();
        assert_eq!(done["results"][0]["error"]["code"], json!("invalid_lease"));
        assert_eq!(done["results"][1]["state"], json!("completed"));
    });
}

#[test]
fn what_becomes_of_a_job_is_what_it_would_be_with_a_rust_worker() {
    on_every_store(|server| {
        let run = |job: &Value, result: &Value| {
            let id = server.enqueue(job);
            let leased = lease_one(server, "w");
            assert_eq!(leased["id"], json!(id));
            let mut result = result.clone();
            result["lease"] = leased["lease"].clone();
            (finish(server, &result)["state"].clone(), server.get(&format!("/v1/jobs/{id}")).json())
        };
        let x = json!({ "kind": "x" });
        let slow = json!({ "kind": "x", "retry": { "backoff": "constant", "delay": "1h" } });
        let (state, job) = run(&slow, &json!({ "outcome": "retry", "error": "later" }));
        assert_eq!((&state, &job["error"]), (&json!("scheduled"), &json!("later")));
        assert_eq!(job["starts"], json!(1));
        let (state, job) = run(&x, &json!({ "outcome": "retry", "retry_after": "2h" }));
        assert_eq!((&state, &job["starts"]), (&json!("scheduled"), &json!(1)));
        assert_eq!(job["error"], json!("the worker gave no reason"));
        let once = json!({ "kind": "x", "max_attempts": 1 });
        let (state, job) = run(&once, &json!({ "outcome": "retry", "error": "no" }));
        assert_eq!(state, json!("dead"));
        assert_eq!(job["state_detail"]["reason"], json!("it failed as often as it may run"));
        let budget = json!({ "kind": "x", "retry": { "max_duration": "1h" } });
        let (state, job) = run(&budget, &json!({ "outcome": "retry", "retry_after": "2h" }));
        assert_eq!(state, json!("dead"));
        assert_eq!(job["state_detail"]["reason"], json!("its time for retries is over"));
        let (state, job) = run(&x, &json!({ "outcome": "fail", "error": "never" }));
        assert_eq!((&state, &job["error"]), (&json!("dead"), &json!("never")));
        let (state, job) = run(&x, &json!({ "outcome": "snooze", "retry_after": "1h" }));
        assert_eq!((&state, &job["starts"]), (&json!("scheduled"), &json!(0)));
        let (state, job) = run(&x, &json!({ "outcome": "cancel" }));
        assert_eq!(state, json!("cancelled"));
        assert_eq!(job["state_detail"]["reason"], json!("its handler said so"));
    });
}

#[test]
fn a_heartbeat_extends_leases_keeps_what_is_said_and_tells_of_a_cancel() {
    on_every_store(|server| {
        let id = server.enqueue(&json!({ "kind": "x" }));
        let leased = lease_one(server, "w");
        let (lease, until) = (leased["lease"].clone(), leased["lease_until"].clone());
        let text = lease.as_str().expect("a text");
        let said = json!({
            "worker": "w", "leases": [lease],
            "progress": { text: { "percent": 40, "note": "halfway" } },
            "logs": { text: ["one", "two"] }
        });
        let told = heartbeat(server, &said);
        assert_eq!((&told["lost"], &told["cancel"]), (&json!([]), &json!([])), "{told}");
        assert!(told["extend_until"].as_str() >= until.as_str(), "{told} {until}");
        assert_eq!(told["drain"], json!(false));
        let job = server.get(&format!("/v1/jobs/{id}")).json();
        assert_eq!(job["progress"], json!({ "percent": 40, "note": "halfway" }));
        assert_eq!(job["log"][1]["text"], json!("two"));
        let answer = server.change(&format!("/v1/jobs/{id}/cancel")).json();
        assert_eq!(answer["cancel_requested"], json!(true));
        let told = heartbeat(server, &json!({ "worker": "w", "leases": [lease] }));
        assert_eq!(told["cancel"], json!([lease]));
        let done = finish(server, &json!({ "lease": lease, "outcome": "fail" }));
        assert_eq!(done["state"], json!("cancelled"));
    });
}

#[test]
fn a_worker_is_known_by_what_it_handles_and_hears_its_orders() {
    on_every_store(|server| {
        let asked = json!({ "worker": "w", "kinds": ["x"], "queues": ["mail"] });
        assert_eq!(server.post("/v1/lease", &asked).status, 204);
        let id = server.enqueue(&json!({ "kind": "x" }));
        let why = server.get(&format!("/v1/jobs/{id}/explain")).json();
        assert_eq!(why["reasons"][0]["code"], json!("no_worker_for_queue"), "{why}");
        let order = |order| server.runtime.block_on(server.engine.order_worker("w", order));
        order(Some(WorkerOrder::Stop)).expect("it is kept");
        let drained = server.post("/v1/lease", &asked);
        assert_eq!(drained.json(), json!({ "jobs": [], "drain": true }));
        let told = heartbeat(server, &json!({ "worker": "w", "leases": [] }));
        assert_eq!(told["drain"], json!(true));
        order(None).expect("it is kept");
        assert_eq!(server.post("/v1/lease", &asked).status, 204);
    });
}

#[test]
fn a_worker_that_waits_when_the_server_stops_is_told_to_come_again() {
    let server = Server::in_memory();
    let api = windlass_server::Api::new(&server.engine, Access::Unchecked);
    let client = Client::to(serve(&server.runtime, api.router()));
    let asked = json!({ "worker": "w", "kinds": ["x"], "wait": "60s" }).to_string();
    let json = [("content-type", "application/json")];
    let waiting = client.begin("POST", "/v1/lease", &json, asked.len(), asked.as_bytes());
    // It came first, so it most likely waits when these have been answered.
    for _ in 0..20 {
        assert_eq!(client.send("GET", "/v1/jobs", &[], "").status, 200);
    }
    api.close();
    // Not `drain`: a server that is started anew must not end its workers.
    check_problem(&waiting.answer(), 503, "stopping");
}

#[test]
fn a_lease_of_one_server_is_known_to_the_others_of_its_store() {
    let server = Server::in_memory();
    server.enqueue(&json!({ "kind": "x" }));
    let other = Client::to(serve(&server.runtime, router(&server.engine, Access::Unchecked)));
    let lease = lease_one(&server, "w")["lease"].clone();
    let results = json!({ "results": [{ "lease": lease, "outcome": "ok" }] });
    let done = other.post("/v1/finish", &results.to_string()).json();
    assert_eq!(done["results"][0]["state"], json!("completed"), "{done}");
    // A server of another store knows nothing of it.
    let stranger = Server::in_memory();
    let refused = stranger.post("/v1/finish", &results).json();
    assert_eq!(refused["results"][0]["error"]["code"], json!("invalid_lease"));
}

#[test]
fn a_value_that_is_too_large_is_refused_and_the_job_still_held() {
    let server = Server::in_memory();
    let id = server.enqueue(&json!({ "kind": "x" }));
    let lease = lease_one(&server, "w")["lease"].clone();
    let large = json!({ "lease": lease, "outcome": "ok", "value": "x".repeat(200_000) });
    let refused = finish(&server, &large);
    assert_eq!(refused["error"]["code"], json!("out_of_bounds"), "{refused}");
    assert_eq!(server.state(&id), "running");
    let done = finish(&server, &json!({ "lease": lease, "outcome": "ok" }));
    assert_eq!(done["state"], json!("completed"));
}

#[test]
fn every_bad_call_of_a_worker_is_refused_with_its_code_and_place() {
    let server = Server::in_memory();
    let lease = |more: Value| {
        let mut body = json!({ "worker": "w", "kinds": ["x"] });
        let fields = more.as_object().expect("an object").clone();
        body.as_object_mut().expect("an object").extend(fields);
        ("/v1/lease", body)
    };
    let result = |result: Value| ("/v1/finish", json!({ "results": [result] }));
    for ((path, body), pointer) in [
        (lease(json!({ "worker": "" })), "/worker"),
        (lease(json!({ "worker": "w".repeat(257) })), "/worker"),
        (lease(json!({ "worker": 7 })), "/worker"),
        (lease(json!({ "kinds": [] })), "/kinds"),
        (lease(json!({ "kinds": ["a b"] })), "/kinds/0"),
        (lease(json!({ "max": 0 })), "/max"),
        (lease(json!({ "max": 101 })), "/max"),
        (lease(json!({ "max": -1 })), "/max"),
        (lease(json!({ "wait": "61s" })), "/wait"),
        (lease(json!({ "lease": "10ms" })), "/lease"),
        (lease(json!({ "lease": "2d" })), "/lease"),
        (lease(json!({ "requestid": "1" })), "/requestid"),
        (("/v1/lease", json!({ "kinds": ["x"] })), ""),
        (("/v1/heartbeat", json!({ "worker": "w" })), ""),
        (
            ("/v1/heartbeat", json!({ "worker": "w", "leases": [], "logs": { "7": ["x"] } })),
            "/logs/7",
        ),
        (("/v1/finish", json!({ "results": {} })), "/results"),
        (result(json!({ "lease": "7" })), "/results/0"),
        (result(json!({ "lease": "7", "outcome": "done" })), "/results/0/outcome"),
        (result(json!({ "lease": "7", "outcome": "fail", "value": 1 })), "/results/0/value"),
        (result(json!({ "lease": "7", "outcome": "ok", "error": "x" })), "/results/0/error"),
        (result(json!({ "lease": "7", "outcome": "snooze" })), "/results/0/retry_after"),
        (
            result(json!({ "lease": "7", "outcome": "fail", "retry_after": "1s" })),
            "/results/0/retry_after",
        ),
    ] {
        let answer = server.post(path, &body);
        check_problem(&answer, 400, "invalid_field");
        assert_eq!(answer.json()["errors"][0]["pointer"], json!(pointer), "{body}: {answer:?}");
    }
    let many = json!({ "worker": "w", "leases": vec!["7"; 1_001] });
    check_problem(&server.post("/v1/heartbeat", &many), 422, "out_of_bounds");
    assert_eq!(server.post("/v1/finish", &json!({ "results": [] })).status, 200);
}
