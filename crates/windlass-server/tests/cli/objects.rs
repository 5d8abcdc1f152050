//! Durable objects of a store that nobody has open: listed, and one shown.

use serde_json::{Value, json};

use super::*;
use crate::offline::done;

const ALL: [&str; 3] =
    ["continuous/poller/mailbox-7", "debounce/webhooks/acme/eu", "saga/orders/7"];

fn as_json(text: &str) -> Value {
    serde_json::from_str(text).expect("it is JSON")
}

#[track_caller]
fn listed(arguments: &[&str]) -> Vec<String> {
    let page = as_json(&done(&[&["objects"], arguments, &["-o", "json"]].concat()));
    let objects = page["objects"].as_array().expect("there are objects");
    objects.iter().map(|each| each["address"].as_str().expect("a text").to_string()).collect()
}

#[test]
fn objects_are_listed_by_kind_name_and_status_in_the_order_of_their_addresses() {
    let scratch = Scratch::new();
    let store = scratch.path("jobs");
    stores::fill_with_objects(&store);
    let before = stores::files(&store);
    assert_eq!(listed(&[&store]), ALL);
    assert_eq!(listed(&[&store, "--kind", "debounce"]), ALL[1..2]);
    assert_eq!(listed(&[&store, "--name", "orders"]), ALL[2..]);
    assert_eq!(listed(&[&store, "--status", "stopped"]), ALL[..1]);
    assert_eq!(listed(&[&store, "--status", "active", "--kind", "saga"]), [""; 0]);

    let table = done(&["objects", &store]);
    for words in ["object ", "open jobs", ALL[1], "alarm 20", "maintenance", "went down three"] {
        assert!(table.contains(words), "no `{words}` in\n{table}");
    }
    assert_eq!(done(&["objects", &store, "--name", "nobody"]), "No object matches.\n");
    let lines = json_lines(&done(&["objects", &store, "-o", "jsonl"]));
    assert_eq!(lines.len(), 3);
    assert_eq!((&lines[1]["key"], &lines[1]["open_jobs"]), (&"acme/eu".into(), &1.into()));
    assert_eq!(lines[2]["reason"], "it went down three times");
    assert_eq!(stores::files(&store), before);
}

#[test]
fn a_list_of_objects_goes_on_where_the_page_before_ended() {
    let scratch = Scratch::new();
    let store = scratch.path("jobs");
    stores::fill_with_objects(&store);
    let (mut seen, mut after) = (Vec::new(), None::<String>);
    loop {
        let mut arguments = vec!["objects", &store, "--limit", "1", "-o", "json"];
        arguments.extend(after.iter().flat_map(|after| ["--after", after]));
        let page = as_json(&done(&arguments));
        seen.extend(page["objects"].as_array().expect("there are objects").clone());
        match page["next"].as_str() {
            Some(next) => after = Some(next.to_string()),
            None => break,
        }
    }
    let addresses: Vec<_> = seen.iter().filter_map(|object| object["address"].as_str()).collect();
    assert_eq!(addresses, ALL);
    let output = run(&["objects", &store, "--limit", "2"]);
    let remark = format!("go on with --after {}", ALL[1]);
    assert!(stderr(&output).contains(&remark), "{}", stderr(&output));
}

#[test]
fn an_object_is_shown_with_its_state_its_alarm_and_its_reason() {
    let scratch = Scratch::new();
    let store = scratch.path("jobs");
    let bound = stores::fill_with_objects(&store);
    let alarm = format!(", job {}", bound.alarm);
    for (address, words) in [
        (ALL[0], &["stopped", "maintenance", "version", "alarm", "none", "40"][..]),
        (ALL[1], &["active", &alarm, "open jobs", "\"changed\"", "\"seen\""]),
        (ALL[2], &["failed", "it went down three times", "ff00"]),
    ] {
        let shown = done(&["object", &store, address]);
        assert!(shown.starts_with(&format!("object {address}\n")), "{shown}");
        for words in words {
            assert!(shown.contains(words), "no `{words}` in\n{shown}");
        }
    }
    let shown = as_json(&done(&["object", &store, ALL[1], "-o", "json"]));
    assert_eq!(shown["alarm"], bound.alarm.to_string());
    assert!(shown["state"]["state"].is_object(), "{shown}");
    assert_eq!((&shown["runs"], &shown["version"]), (&0.into(), &1.into()));
    let failed = as_json(&done(&["object", &store, ALL[2], "-o", "json"]));
    assert_eq!(failed["state"], json!({ "hex": "ff00" }));

    check_refused(&["object", &store, "task/carts/ada"], 3, "there is no object task/carts/ada");
    check_refused(&["object", &store, "carts"], 2, "an object is named by kind/name/key");
    check_refused(&["object", &store, "task/carts/"], 2, "it must not be empty");
    check_refused(&["objects", &store, "--status", "ded"], 2, "active");
}

#[test]
fn jobs_tell_their_lane_and_their_object() {
    let scratch = Scratch::new();
    let store = scratch.path("jobs");
    let bound = stores::fill_with_objects(&store);
    let show = |job: windlass::JobId| done(&["show", &store, &job.to_string()]);
    assert!(show(bound.alarm).contains(ALL[1]), "{}", show(bound.alarm));
    assert!(show(bound.keyed).contains("that of key ada"), "{}", show(bound.keyed));
    assert!(show(bound.spread).contains("of those without a key"), "{}", show(bound.spread));
    assert!(done(&["list", &store]).contains(ALL[1]));
    for verb in ["list", "export"] {
        let format: &[&str] = if verb == "list" { &["-o", "jsonl"] } else { &[] };
        let lines = json_lines(&done(&[&[verb, &store], format].concat()));
        let job = |id: windlass::JobId| {
            lines.iter().find(|line| line["id"] == id.to_string()).expect("it is there")
        };
        assert_eq!(job(bound.alarm)["object"], ALL[1]);
        assert_eq!(job(bound.keyed)["lane"], json!({ "key": "ada" }));
        assert!(job(bound.spread)["lane"]["turn"].is_u64(), "{}", job(bound.spread));
        assert_eq!(job(bound.spread)["object"], Value::Null);
    }
}

#[test]
fn the_doctor_counts_objects() {
    let scratch = Scratch::new();
    let store = scratch.path("jobs");
    stores::fill_with_objects(&store);
    let text = done(&["doctor", &store]);
    assert!(text.contains("3 jobs and 3 objects in "), "{text}");
    assert_eq!(as_json(&done(&["doctor", &store, "-o", "json"]))["objects"], 3);
}
