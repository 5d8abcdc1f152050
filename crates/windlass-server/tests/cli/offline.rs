//! Jobs of a store that nobody has open: looked at, changed and exported.

use serde_json::{Value, json};

use super::*;
use crate::demo::Demo;

/// Runs a command that must succeed in silence, and returns what it printed.
#[track_caller]
pub(crate) fn done(arguments: &[&str]) -> String {
    let output = run(arguments);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", stderr(&output));
    assert_eq!(stderr(&output), "", "{arguments:?}");
    stdout(&output)
}

#[track_caller]
fn listed(arguments: &[&str]) -> Vec<String> {
    let listed = done(&[&["list"], arguments, &["-o", "json"]].concat());
    let listed: Value = serde_json::from_str(&listed).expect("it is JSON");
    let jobs = listed["jobs"].as_array().expect("there are jobs");
    jobs.iter().map(|job| job["id"].as_str().expect("it has an id").to_string()).collect()
}

#[test]
fn jobs_are_listed_by_state_kind_queue_and_tag_the_last_accepted_first() {
    let scratch = Scratch::new();
    let store = scratch.path("jobs");
    let jobs = stores::fill(&store);
    let before = stores::files(&store);
    let all = [jobs.running, jobs.ready, jobs.blocked, jobs.scheduled, jobs.dead, jobs.completed];
    let all = all.map(|job| job.to_string());
    assert_eq!(listed(&[&store]), all);
    assert_eq!(listed(&[&store, "--state", "dead"]), [jobs.dead.to_string()]);
    assert_eq!(listed(&[&store, "--state", "blocked,scheduled"]), all[2..4]);
    assert_eq!(listed(&[&store, "--kind", "raw.bytes"]), all[..2]);
    assert_eq!(listed(&[&store, "--queue", "left", "--queue", "mail"]), all[1..]);
    assert_eq!(listed(&[&store, "--tag", "customer-7"]), all[2..]);
    assert_eq!(listed(&[&store, "--tag", "nobody"]), [""; 0]);

    let table = done(&["list", &store]);
    for words in ["id ", "accepted", &all[4], "nobody lives there", "waits for 1 job", "due 20"] {
        assert!(table.contains(words), "no `{words}` in\n{table}");
    }
    assert_eq!(done(&["list", &store, "--state", "cancelled"]), "No job matches.\n");
    let lines = json_lines(&done(&["list", &store, "-o", "jsonl"]));
    assert_eq!(lines.len(), 6);
    assert_eq!(lines[4]["error"], "nobody lives there");
    // Looking changes nothing at all: not even what was running is recovered.
    assert_eq!(stores::files(&store), before);
}

#[test]
fn a_list_goes_on_where_the_page_before_ended() {
    let scratch = Scratch::new();
    let store = scratch.path("jobs");
    stores::fill(&store);
    let (mut seen, mut after) = (Vec::new(), None::<String>);
    loop {
        let mut arguments = vec!["list", &store, "--limit", "4", "-o", "json"];
        arguments.extend(after.iter().flat_map(|after| ["--after", after]));
        let page: Value = serde_json::from_str(&done(&arguments)).expect("it is JSON");
        seen.extend(page["jobs"].as_array().expect("there are jobs").clone());
        match page["next"].as_u64() {
            Some(next) => after = Some(next.to_string()),
            None => break,
        }
    }
    let ids: Vec<_> = seen.iter().filter_map(|job| job["id"].as_str()).collect();
    assert_eq!(ids, listed(&[&store]));
    let output = run(&["list", &store, "--limit", "4"]);
    assert!(stderr(&output).contains("go on with --after "), "{}", stderr(&output));
}

#[test]
fn a_job_is_shown_with_everything_and_why_it_is_not_running() {
    let scratch = Scratch::new();
    let store = scratch.path("jobs");
    let jobs = stores::fill(&store);
    for (job, words) in [
        (jobs.completed, &["\"to\": \"Ada\"", "\"Ada has it\"", "it completed at"][..]),
        (
            jobs.dead,
            &[
                "nobody lives there",
                "attempts:",
                "by postman",
                "log:",
                "to nobody",
                "40 % in the bag",
                "finished steps:\n  stamp: \"blue\"",
                "it died at",
                "replay it to try again",
                "source = a test",
                "customer-7",
            ],
        ),
        (jobs.scheduled, &["it is scheduled for"]),
        (jobs.blocked, &["depends on", "(not met)", "it waits for [job"]),
        (jobs.ready, &["nobody has the store open", "ff00"]),
        (jobs.running, &["it had been started by gone", "it is recovered when"]),
    ] {
        let shown = done(&["show", &store, &job.to_string()]);
        for words in words {
            assert!(shown.contains(words), "no `{words}` in\n{shown}");
        }
    }
    let shown = done(&["show", &store, &jobs.dead.to_string(), "-o", "json"]);
    let shown: Value = serde_json::from_str(&shown).expect("it is JSON");
    assert_eq!(shown["payload"], json!({ "to": "nobody" }));
    assert_eq!(shown["attempts"][0]["end"], "failed");
    assert_eq!(shown["steps"], json!([{ "name": "stamp", "result": "blue" }]));
    assert_eq!(shown["why_not_running"].as_array().map(Vec::len), Some(1));
}

#[test]
fn an_export_has_every_field_of_every_job() {
    let scratch = Scratch::new();
    let store = scratch.path("jobs");
    let jobs = stores::fill(&store);
    let lines = json_lines(&done(&["export", &store]));
    assert_eq!(lines.len(), 6);
    let keys = |line: &Value| line.as_object().map(|job| job.keys().cloned().collect::<Vec<_>>());
    assert_eq!(keys(&lines[0]).map(|keys| keys.len()), Some(40));
    assert!(lines.iter().all(|line| keys(line) == keys(&lines[0])));
    assert_eq!(lines[0]["payload"], json!({ "hex": "ff00" }));
    assert_eq!(lines[0]["state_detail"]["worker"], "gone");
    assert_eq!(lines[2]["depends_on"][0]["on"], jobs.scheduled.to_string());
    assert_eq!(lines[5]["output"], "Ada has it");
    assert_eq!(lines[5]["metadata"], json!({ "source": "a test" }));
    let dead = json_lines(&done(&["export", &store, "--state", "dead"]));
    assert_eq!(dead, lines[4..5]);
}

#[test]
fn a_dead_job_is_tried_again_and_waiting_ones_are_called_off() {
    let scratch = Scratch::new();
    let store = scratch.path("jobs");
    let jobs = stores::fill(&store);
    let [dead, ready, running] = [jobs.dead, jobs.ready, jobs.running].map(|job| job.to_string());
    assert!(done(&["retry", &store, &dead]).contains("starts over"));
    assert!(listed(&[&store, "--state", "ready"]).contains(&dead));
    let told = done(&["cancel", &store, &ready, &running]);
    assert!(told.contains("2 jobs are called off"), "{told}");
    assert!(told.contains("1 of them had been started"), "{told}");
    assert_eq!(listed(&[&store, "--state", "cancelled"]), [ready.as_str()]);
    assert_eq!(listed(&[&store, "--state", "running"]), [running.as_str()]);
    assert!(done(&["cancel", &store, &ready]).contains("is called off already"));
    let shown = done(&["show", &store, &running]);
    assert!(shown.contains("cancelled as was asked"), "{shown}");

    let arguments = ["cancel", &store, "--queue", "mail", "--yes", "-o", "json"];
    let report: Value = serde_json::from_str(&done(&arguments)).expect("it is JSON");
    // The blocked one follows the scheduled one, before its own turn comes.
    assert_eq!(report["changed"].as_array().map(Vec::len), Some(2), "{report}");
    assert_eq!(report["already"], json!([jobs.blocked.to_string()]), "{report}");
    let told = done(&["retry", &store, "--state", "cancelled", "--tag", "customer-7", "--yes"]);
    assert!(told.contains("3 jobs start over"), "{told}");
    let told = done(&["retry", &store, "--queue", "nowhere", "--yes"]);
    assert_eq!(told, "No job matches; nothing was changed.\n");
    assert!(done(&["doctor", &store]).contains("all is well"));
}

#[test]
fn a_change_of_many_is_asked_for_and_refused_without_a_terminal() {
    let scratch = Scratch::new();
    let store = scratch.path("jobs");
    stores::fill(&store);
    let before = stores::files(&store);
    let cancel = ["cancel", &store, "--queue", "mail"];
    check_refused(&cancel, 2, "2 jobs would be changed, and there is no terminal");
    assert_eq!(stores::files(&store), before);
    check_refused(&["cancel", &store], 2, "required arguments");
    let both = ["cancel", &store, "0199f2a4-7d1c-7c3e-9b52-2f0c5f6f7a10", "--queue", "mail"];
    check_refused(&both, 2, "cannot be used with");
}

#[test]
#[cfg(target_os = "linux")]
fn on_a_terminal_the_answer_decides() {
    let scratch = Scratch::new();
    let store = scratch.path("jobs");
    stores::fill(&store);
    let cancel = format!("cancel {store} --queue mail");
    for (answer, words) in [("n\n", "Nothing was changed."), ("y\n", "2 jobs are called off.")] {
        let Some(told) = answering(&cancel, answer) else { return };
        assert!(told.contains("Call 2 jobs off? [y/N]"), "{told}");
        assert!(told.contains(words), "{told}");
    }
    assert_eq!(listed(&[&store, "--state", "cancelled"]).len(), 2);
}

/// What is refused says which job, and why, and the exit code tells the cases apart.
#[test]
fn what_cannot_be_changed_or_shown_is_said_with_its_exit_code() {
    let scratch = Scratch::new();
    let store = scratch.path("jobs");
    let jobs = stores::fill(&store);
    let unknown = "0199f2a4-7d1c-7c3e-9b52-2f0c5f6f7a10";
    check_refused(&["show", &store, unknown], 3, &format!("there is no job {unknown}"));
    check_refused(&["show", &store, "seven"], 2, "a job id is a UUID such as");
    check_refused(&["list", &store, "--state", "ded"], 2, "'dead'");
    check_refused(&["list", "memory:"], 2, "name a directory");
    for (job, code, words) in [
        (unknown.to_string(), 3, format!("job {unknown} is unknown")),
        (jobs.completed.to_string(), 1, format!("job {}: it is completed", jobs.completed)),
    ] {
        for verb in ["retry", "cancel"] {
            let output = run(&[verb, &store, &job]);
            assert_eq!(output.status.code(), Some(code), "{}", stderr(&output));
            assert!(stderr(&output).contains(&words), "{}", stderr(&output));
            assert_eq!(stdout(&output), "Nothing was changed.\n");
        }
    }
}

/// Every command on a store, for what they have in common.
fn commands<'a>(store: &'a str, copy: &'a str) -> [Vec<&'a str>; 8] {
    let id = "0199f2a4-7d1c-7c3e-9b52-2f0c5f6f7a10";
    [
        vec!["list", store],
        vec!["show", store, id],
        vec!["export", store],
        vec!["objects", store],
        vec!["object", store, "debounce/webhooks/acme"],
        vec!["retry", store, id],
        vec!["cancel", store, "--queue", "mail", "--yes"],
        vec!["backup", store, copy],
    ]
}

#[test]
fn a_store_that_is_missing_locked_or_damaged_is_said_to_be_so() {
    let scratch = Scratch::new();
    let (store, copy) = (scratch.path("jobs"), scratch.path("copy"));
    let exists = |path: &str| std::path::Path::new(path).exists();
    for arguments in commands(&store, &copy).iter().chain([&vec!["doctor", store.as_str()]]) {
        check_refused(arguments, 3, &format!("there is no store at {store}"));
        assert!(!exists(&store), "{arguments:?} made a store");
    }

    let mut demo = Demo::start(&store, "1");
    demo.read_until("store", "it is new");
    let holder = format!("is in use by process {} (windlass)", demo.child.id());
    check_refused(&["doctor", store.as_str()], 4, &holder);
    // All others ask the process that has it open.
    demo.read_until("retry", "charge");
    let listed = run(&["list", &store, "--limit", "1", "-o", "jsonl"]);
    assert!(listed.status.success(), "{listed:?}");
    let job: serde_json::Value = serde_json::from_slice(&listed.stdout).expect("a job");
    let job = job["id"].as_str().expect("it has an id");
    for arguments in [
        vec!["show", &store, job],
        vec!["objects", &store],
        vec!["export", &store],
        vec!["cancel", &store, "--queue", "no-such-queue", "--yes"],
    ] {
        let done = run(&arguments);
        assert!(done.status.success(), "{arguments:?}: {done:?}");
    }
    demo.child.kill().expect("it can be killed");
    demo.child.wait().expect("it ends");

    let damaged = scratch.path("damaged");
    stores::fill(&damaged);
    stores::damage(&damaged);
    let before = stores::files(&damaged);
    for arguments in &commands(&damaged, &copy) {
        check_refused(arguments, 1, "the store is damaged: journal-00000001 at byte ");
    }
    assert_eq!(stores::files(&damaged), before);
    assert!(!exists(&copy) && !exists(&scratch.path("copy.unfinished")));
}
