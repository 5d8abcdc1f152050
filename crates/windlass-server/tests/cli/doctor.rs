//! Whether a store is well, and copies of it.

use serde_json::Value;

use super::*;
use crate::demo::Demo;

#[track_caller]
fn examined(store: &str, code: i32) -> Value {
    let output = run(&["doctor", store, "-o", "json"]);
    assert_eq!(output.status.code(), Some(code), "{}{}", stdout(&output), stderr(&output));
    assert_eq!(stderr(&output), "");
    serde_json::from_str(&stdout(&output)).expect("it is JSON")
}

#[test]
fn a_store_that_is_well_is_said_to_be_so_and_stays_as_it_is() {
    let scratch = Scratch::new();
    let store = scratch.path("jobs");
    stores::fill(&store);
    let before = stores::files(&store);
    let output = run(&["doctor", &store]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = stdout(&output);
    assert!(text.contains("all is well"), "{text}");
    assert!(text.contains("6 jobs in "), "{text}");
    let findings = examined(&store, 0);
    assert_eq!((&findings["ok"], &findings["jobs"]), (&true.into(), &6.into()));
    assert!(findings["used_bytes"].as_u64() > findings["live_bytes"].as_u64(), "{findings}");
    assert!(findings["commits"].as_u64() > Some(6), "{findings}");
    assert_eq!(stores::files(&store), before);
}

#[test]
fn a_commit_that_was_cut_off_is_harmless() {
    let scratch = Scratch::new();
    let store = scratch.path("jobs");
    stores::fill(&store);
    stores::tear(&store);
    let findings = examined(&store, 0);
    let torn = findings["torn"].as_str().expect("it is torn");
    assert!(torn.starts_with("journal-00000001 at byte "), "{torn}");
    let text = stdout(&run(&["doctor", &store]));
    assert!(text.contains(&format!("({torn}). That is harmless")), "{text}");
}

#[test]
fn damage_is_told_with_its_place_what_it_means_and_what_to_do() {
    let scratch = Scratch::new();
    let store = scratch.path("jobs");
    stores::fill(&store);
    stores::damage(&store);
    let before = stores::files(&store);
    let output = run(&["doctor", &store]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(stderr(&output), "");
    let text = stdout(&output);
    for words in ["damaged", "journal-00000001 at byte ", "What it means", "restore a backup"] {
        assert!(text.contains(words), "no `{words}` in\n{text}");
    }
    let findings = examined(&store, 1);
    assert_eq!(findings["ok"], false);
    assert_eq!(findings["damage"]["file"], "journal-00000001");
    assert!(findings["damage"]["byte"].as_u64().is_some(), "{findings}");
    assert_eq!(stores::files(&store), before);
}

#[test]
fn a_backup_of_a_closed_store_holds_the_same_jobs() {
    let scratch = Scratch::new();
    let (store, copy) = (scratch.path("jobs"), scratch.path("copy"));
    stores::fill(&store);
    let output = run(&["backup", &store, &copy]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = stdout(&output);
    assert!(text.contains("6 jobs, ") && text.contains("read back and found whole"), "{text}");
    assert_eq!(stdout(&run(&["export", &copy])), stdout(&run(&["export", &store])));
    check_refused(&["backup", &store, &copy], 4, "is there already");

    let other = scratch.path("other");
    let told = stdout(&run(&["backup", &store, &other, "-o", "json"]));
    let told: Value = serde_json::from_str(&told).expect("it is JSON");
    assert_eq!((&told["jobs"], &told["verified"]), (&6.into(), &true.into()));
}

#[test]
fn a_backup_taken_while_a_demo_runs_is_whole() {
    let scratch = Scratch::new();
    let (store, copy) = (scratch.path("demo"), scratch.path("copy"));
    let mut demo = Demo::start(&store, "1");
    demo.read_until("retry", "charge 1001 is done");
    let output = run(&["backup", &store, &copy]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(examined(&copy, 0)["ok"], true);
    // What had been acknowledged before is in it.
    let charges = stdout(&run(&["export", &copy, "--kind", "billing.charge"]));
    let charges = json_lines(&charges);
    let retried = charges.iter().find(|charge| charge["payload"]["order"] == 1001);
    assert_eq!(retried.expect("it is there")["state"], "completed");
    demo.signal("-INT");
    let (report, code, _) = demo.end();
    assert_eq!((&report["lost"], code), (&0.into(), Some(0)), "{report}");
    // And the copy is a store like any other.
    let output = run(&["demo", "--store", &copy, "--seconds", "1", "-o", "json"]);
    let lines = json_lines(&stdout(&output));
    assert_eq!(lines.last().expect("it prints a report")["lost"], 0);
}
