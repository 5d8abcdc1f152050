//! Queues over HTTP: counted, paused, resumed, cleared, and full.

use serde_json::json;

use crate::{Server, check_problem, on_every_store};

#[test]
fn queues_are_counted_paused_resumed_and_cleared() {
    on_every_store(|server| {
        check_problem(&server.get("/v1/queues/mail"), 404, "unknown_queue");
        let jobs = json!([
            { "kind": "x", "queue": "mail" },
            { "kind": "y", "queue": "mail", "delay": "1h" },
            { "kind": "x" }
        ]);
        server.post("/v1/jobs", &jobs);
        let mail = server.get("/v1/queues/mail").json();
        assert_eq!((&mail["waiting"], &mail["paused"]), (&json!(2), &json!(false)), "{mail}");
        assert_eq!(mail["jobs"]["ready"], json!(1));
        assert_eq!(mail["jobs"]["scheduled"], json!(1));
        assert_eq!(mail["totals"]["enqueued"], json!(2));
        let all = server.get("/v1/queues").json();
        let names: Vec<_> =
            all["queues"].as_array().expect("a list").iter().map(|it| it["name"].clone()).collect();
        assert_eq!(names, ["default", "mail"]);
        assert_eq!(server.change("/v1/queues/mail/pause").json()["paused"], json!(true));
        assert_eq!(server.get("/v1/queues/mail").json()["paused"], json!(true));
        assert_eq!(server.change("/v1/queues/mail/resume").json()["paused"], json!(false));
        let cleared = server.change("/v1/queues/mail/clear").json();
        assert_eq!(cleared, json!({ "cancelled": 2, "followed": 0 }));
        assert_eq!(server.get("/v1/queues/mail").json()["waiting"], json!(0));
    });
}

#[test]
fn a_full_queue_says_so_and_when_to_come_again() {
    on_every_store(|server| {
        let queue = server.engine.queue("mail").expect("a name");
        server.runtime.block_on(queue.max_depth(Some(1))).expect("it is set");
        server.enqueue(&json!({ "kind": "x", "queue": "mail" }));
        let answer = server.post("/v1/jobs", &json!({ "kind": "x", "queue": "mail" }));
        check_problem(&answer, 429, "queue_full");
        assert_eq!(answer.json()["retryable"], json!(true));
    });
}

#[test]
fn the_router_works_below_a_prefix() {
    let server = Server::in_memory();
    let api = windlass_server::router(&server.engine, windlass_server::Access::Unchecked);
    let app = axum::Router::new().nest("/teams/{team}/jobs-of-mine", api);
    let client = crate::client::Client::to(crate::serve(&server.runtime, app));
    let prefix = "/teams/red/jobs-of-mine/v1";
    let answer = client.post(&format!("{prefix}/jobs"), r#"{"kind":"hello"}"#);
    let place = answer.header("location").expect("it is told where").to_string();
    assert!(place.starts_with(&format!("{prefix}/jobs/")), "{place}");
    assert_eq!(client.send("GET", &place, &[], "").json()["state"], json!("ready"));
    check_problem(&client.send("GET", &format!("{prefix}/x"), &[], ""), 404, "no_such_path");
}
