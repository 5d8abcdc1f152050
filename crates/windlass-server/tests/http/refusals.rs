//! Bad input: every one gets a problem with its code, and none of it is done.

use serde_json::json;

use crate::jobs::NOBODY;
use crate::{Server, check_problem};

#[test]
fn every_bad_body_is_refused_with_its_code_and_where_it_is_wrong() {
    let server = Server::in_memory();
    let deep = format!(r#"{{"kind":"x","payload":{}1{}}}"#, "[".repeat(200), "]".repeat(200));
    let large = format!(r#"{{"kind":"x","payload":"{}"}}"#, "x".repeat(200_000));
    let long = format!(r#"{{"{}":1}}"#, "k".repeat(100_000));
    let tags = format!(r#"{{"kind":"x","tags":{}}}"#, json!(vec!["t"; 17]));
    let cyclic = format!(r#"{{"kind":"x","id":"{NOBODY}","depends_on":["{NOBODY}"]}}"#);
    let twice = format!(r#"[{{"kind":"x","id":"{NOBODY}"}},{{"kind":"x","id":"{NOBODY}"}}]"#);
    for (body, status, code, pointer) in [
        ("", 400, "invalid_json", None),
        ("{", 400, "invalid_json", None),
        (r#"{"kind":"x"} more"#, 400, "invalid_json", None),
        ("\u{0}", 400, "invalid_json", None),
        (r#"{"kind":"x","payload":01}"#, 400, "invalid_json", None),
        (&deep, 400, "invalid_json", None),
        ("null", 400, "invalid_field", Some("")),
        ("7", 400, "invalid_field", Some("")),
        ("{}", 400, "invalid_field", Some("")),
        ("[[]]", 400, "invalid_field", Some("/0")),
        (r#"{"kind":7}"#, 400, "invalid_field", Some("/kind")),
        (r#"{"kind":""}"#, 400, "invalid_field", Some("/kind")),
        (r#"{"kind":"a b"}"#, 400, "invalid_field", Some("/kind")),
        (r#"{"kind":"x","kind":"y"}"#, 400, "invalid_field", Some("")),
        (r#"{"kind":"x","queue":"../x"}"#, 400, "invalid_field", Some("/queue")),
        (r#"{"kind":"x","dealy":"5m"}"#, 400, "invalid_field", Some("/dealy")),
        (r#"[{"kind":"x"},{"kind":"x","a/b":1}]"#, 400, "invalid_field", Some("/1/a~1b")),
        (&long, 400, "invalid_field", None),
        (r#"{"kind":"x","delay":300}"#, 400, "invalid_field", Some("/delay")),
        (r#"{"kind":"x","delay":"soon"}"#, 400, "invalid_field", Some("/delay")),
        (r#"{"kind":"x","delay":"-5m"}"#, 400, "invalid_field", Some("/delay")),
        (r#"{"kind":"x","at":"tomorrow"}"#, 400, "invalid_field", Some("/at")),
        (
            r#"{"kind":"x","at":"2030-01-01T00:00:00Z","delay":"1s"}"#,
            400,
            "invalid_field",
            Some("/at"),
        ),
        (r#"{"kind":"x","priority":1.5}"#, 400, "invalid_field", Some("/priority")),
        (r#"{"kind":"x","priority":99999999999}"#, 400, "invalid_field", Some("/priority")),
        (r#"{"kind":"x","id":"7"}"#, 400, "invalid_field", Some("/id")),
        (r#"{"kind":"x","tags":["ok","no good"]}"#, 400, "invalid_field", Some("/tags/1")),
        (r#"{"kind":"x","depends_on":["7"]}"#, 400, "invalid_field", Some("/depends_on/0")),
        (r#"{"kind":"x","unique":{"kye":"k"}}"#, 400, "invalid_field", Some("/unique/kye")),
        (r#"{"kind":"x","unique":{"key":""}}"#, 422, "out_of_bounds", None),
        (r#"{"kind":"x","delay":"400000d"}"#, 422, "out_of_bounds", None),
        (r#"{"kind":"x","timeout":"0s"}"#, 422, "out_of_bounds", None),
        (r#"{"kind":"x","trace":"nonsense"}"#, 422, "out_of_bounds", None),
        (&large, 422, "out_of_bounds", None),
        (&tags, 422, "out_of_bounds", None),
        (&cyclic, 422, "dependency_cycle", None),
        (&twice, 422, "id_twice", None),
    ] {
        let answer = server.client().post("/v1/jobs", body);
        check_problem(&answer, status, code);
        let problem = answer.json();
        if let Some(pointer) = pointer {
            assert_eq!(problem["errors"][0]["pointer"], json!(pointer), "{body}: {problem}");
        }
    }
    let misspelt = server.client().post("/v1/jobs", r#"{"kind":"x","dealy":"5m"}"#).json();
    assert_eq!(misspelt["detail"], "there is no field `dealy`; did you mean `delay`?");
    let counts = server.runtime.block_on(server.engine.counts()).expect("they are counted");
    assert_eq!(counts.waiting(), 0);
}

#[test]
fn every_bad_address_is_refused_with_its_code() {
    let server = Server::in_memory();
    for (path, status, code) in [
        ("/v1/jobs/7", 400, "invalid_parameter"),
        ("/v1/jobs/%ff", 400, "invalid_parameter"),
        ("/v1/jobs?stat=ready", 400, "invalid_parameter"),
        ("/v1/jobs?state=raedy", 400, "invalid_parameter"),
        ("/v1/jobs?kind=a%20b", 400, "invalid_parameter"),
        ("/v1/jobs?limit=0", 400, "invalid_parameter"),
        ("/v1/jobs?limit=501", 400, "invalid_parameter"),
        ("/v1/jobs?limit=-1", 400, "invalid_parameter"),
        ("/v1/jobs?limit=5&limit=6", 400, "invalid_parameter"),
        ("/v1/jobs?cursor=7", 400, "invalid_parameter"),
        ("/v1/jobs?cursor=j%2B00000000000000f", 400, "invalid_parameter"),
        ("/v1/queues/a%20b", 400, "invalid_parameter"),
        ("/v1/queues/a/b/c", 404, "no_such_path"),
        ("/v1", 404, "no_such_path"),
        ("/v1/", 404, "no_such_path"),
    ] {
        let answer = server.get(path);
        check_problem(&answer, status, code);
    }
    let job = format!("/v1/jobs/{NOBODY}");
    check_problem(&server.get(&job), 404, "unknown_job");
    for wait in ["x", "61s", "-1s", ""] {
        check_problem(&server.get(&format!("{job}?wait={wait}")), 400, "invalid_parameter");
    }
    check_problem(&server.client().send("PUT", &job, &[], ""), 405, "method_not_allowed");
    check_problem(
        &server.client().send("GET", &format!("{job}/cancel"), &[], ""),
        405,
        "method_not_allowed",
    );
    let with_body = server.client().post(&format!("{job}/cancel"), r#"{"force":true}"#);
    check_problem(&with_body, 400, "invalid_field");
    let neither = server.client().post(&format!("{job}/reschedule"), "{}");
    check_problem(&neither, 400, "invalid_field");
}

#[test]
fn a_body_that_is_too_large_or_is_no_json_is_not_read() {
    let server = Server::in_memory();
    let json = [("content-type", "application/json")];
    let begun = server.client().begin("POST", "/v1/jobs", &json, 1 << 30, b"{");
    check_problem(&begun.answer(), 413, "body_too_large");
    for of in ["text/plain", "application/x-www-form-urlencoded", "application/jsonx", ""] {
        let headers = [("content-type", of)];
        let answer = server.client().send("POST", "/v1/jobs", &headers, r#"{"kind":"x"}"#);
        check_problem(&answer, 415, "unsupported_media_type");
    }
    let headers = [("content-type", "Application/JSON; charset=utf-8")];
    let answer = server.client().send("POST", "/v1/jobs", &headers, r#"{"kind":"x"}"#);
    assert_eq!(answer.status, 201);
}

#[test]
fn an_engine_that_is_closed_answers_that_it_is() {
    let server = Server::in_memory();
    server.runtime.block_on(server.engine.close());
    check_problem(&server.get("/v1/jobs"), 503, "stopping");
}
