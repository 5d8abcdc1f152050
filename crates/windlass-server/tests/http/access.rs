//! Who is let in: with a token, on loopback, and from pages in a browser.

use windlass::wire::http::Token;
use windlass_server::Access;

use crate::{Server, check_problem};

#[test]
fn without_its_token_a_server_does_nothing_at_all() {
    let token = Token::new("0123456789abcdef").expect("it is long enough");
    let server = Server::start("memory:", Access::Token(token));
    let send = |said: &str| {
        let headers = [("content-type", "application/json"), ("authorization", said)];
        server.client().send("POST", "/v1/jobs", &headers, r#"{"kind":"x"}"#)
    };
    let unsaid = server.get("/v1/jobs");
    check_problem(&unsaid, 401, "unauthorized");
    assert_eq!(unsaid.header("www-authenticate"), Some("Bearer"));
    for wrong in [
        "Bearer 0123456789abcdeF",
        "Bearer 0123456789abcde",
        "Bearer 0123456789abcdef0",
        "Bearer ",
        "Bearer",
        "",
        "Basic 0123456789abcdef",
        "0123456789abcdef",
    ] {
        check_problem(&send(wrong), 401, "unauthorized");
    }
    // Also where nothing is: who is not let in learns nothing.
    check_problem(&server.get("/v1/nothing"), 401, "unauthorized");
    check_problem(&server.client().send("PUT", "/v1/jobs", &[], ""), 401, "unauthorized");
    // Paths of the application around it are not its business.
    assert_eq!(server.get("/elsewhere").status, 404);
    assert_eq!(send("Bearer 0123456789abcdef").status, 201);
    assert_eq!(send("bearer 0123456789abcdef").status, 201);
    let counts = server.runtime.block_on(server.engine.counts()).expect("they are counted");
    assert_eq!(counts.waiting(), 2);
}

#[test]
fn a_page_of_another_site_cannot_reach_a_server_on_this_machine() {
    let server = Server::start("memory:", Access::Loopback);
    let pause = |headers: &[(&str, &str)]| {
        server.client().send("POST", "/v1/queues/default/pause", headers, "")
    };
    check_problem(&pause(&[("origin", "https://evil.example")]), 403, "forbidden");
    check_problem(&pause(&[("origin", "null")]), 403, "forbidden");
    check_problem(&pause(&[("host", "evil.example:7878")]), 403, "forbidden");
    assert_eq!(pause(&[]).status, 200);
    assert_eq!(pause(&[("host", "localhost:7878")]).status, 200);
    // A form can send text, and nothing else without asking first.
    let headers = [("content-type", "text/plain")];
    let form = server.client().send("POST", "/v1/jobs", &headers, r#"{"kind":"x"}"#);
    check_problem(&form, 415, "unsupported_media_type");
}
