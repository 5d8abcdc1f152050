//! The demonstration, as a user meets it.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use super::*;

/// Asserts that nothing is missing from a report, and returns it.
#[track_caller]
fn check_report(line: &Value) -> &Value {
    assert_eq!(line["type"], "report", "{line}");
    let count = |key: &str| line[key].as_u64().unwrap_or_else(|| panic!("no `{key}` in {line}"));
    let found = count("completed") + count("dead") + count("cancelled") + count("open");
    assert_eq!(count("enqueued"), found, "{line}");
    assert_eq!(line["lost"], 0, "{line}");
    assert_eq!(line["events_missed"], 0, "{line}");
    assert_eq!(line["worker"]["lost"], 0, "{line}");
    line
}

#[test]
fn the_demo_tells_its_whole_story_and_loses_nothing() {
    let scratch = Scratch::new();
    let store = scratch.path("demo");
    let output = run(&["demo", "--store", &store, "--seconds", "6", "-o", "json"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(stderr(&output), "");
    let lines = json_lines(&stdout(&output));
    let (report, story) = lines.split_last().expect("it prints lines");
    let report = check_report(report);
    assert_eq!(report["forced"], false);
    assert_eq!((&report["store"], &report["durability"]), (&store.into(), &"sync".into()));
    assert_eq!(report["recovered"], 0);
    let told = |scene: &str, topic: &str| {
        let tells = |line: &&Value| line["scene"] == scene && line["event"]["topic"] == topic;
        story.iter().any(|line| tells(&line))
    };
    for (scene, topic) in [
        ("retry", "job.failed"),
        ("retry", "job.completed"),
        ("dead letter", "job.dead"),
        ("dead letter", "job.cancelled"),
        ("dead letter", "job.completed"),
        ("graph", "job.blocked"),
        ("graph", "job.unblocked"),
        ("graph", "job.completed"),
        ("lanes", "job.failed"),
        ("lanes", "job.completed"),
        ("debounce", "debounce.started"),
        ("debounce", "debounce.flushed"),
        ("loop", "continuous.executed"),
        ("schedule", "schedule.fired"),
        ("progress", "job.progress"),
        ("unique", "job.deduplicated"),
        ("pause", "queue.paused"),
        ("pause", "queue.resumed"),
        ("snooze", "job.snoozed"),
        ("snooze", "job.completed"),
    ] {
        assert!(told(scene, topic), "{scene}: no {topic} in\n{}", stdout(&output));
    }
    let said = |words: &str| {
        story.iter().any(|line| line["text"].as_str().is_some_and(|text| text.contains(words)))
    };
    for words in [
        "died (`ada.example.org` is not an address)",
        "receipt 1001 is replayed, as a corrected copy",
        "done after all: receipt 1001 is with ada@example.org",
        "the graph is complete: 100 rows add up to 5050",
        "both parcels were scanned in order: post office, depot, door",
        "page-1: 5 edits, indexed once",
        "`token` is started",
        "`digest` is set: every 3 seconds",
        "queue `media` is paused; resume it to start jobs",
        "durability sync: what is answered survives a kill and a power failure",
    ] {
        assert!(said(words), "nobody said `{words}` in\n{}", stdout(&output));
    }
    for key in
        ["died", "replayed", "retried", "duplicates", "snoozed", "flushed", "loop_runs", "fired"]
    {
        assert!(report[key].as_u64() >= Some(1), "{key} in {report}");
    }
}

#[test]
fn without_a_terminal_the_demo_prints_plain_lines() {
    let scratch = Scratch::new();
    for (store, durability, note) in [
        ("memory:".to_string(), "none", "keeps nothing after exit"),
        (scratch.path("demo"), "sync", "keeps everything: start again and it goes on"),
    ] {
        let output = run(&["demo", "--store", &store, "--seconds", "1"]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let text = stdout(&output);
        assert!(!text.contains('\x1b'), "{text:?}");
        assert!(text.contains("queues "), "{text}");
        assert!(text.contains("Stopped gracefully."), "{text}");
        assert!(text.contains("Nothing was lost: "), "{text}");
        assert!(text.contains(&format!("{store}, durability {durability}: ")), "{text}");
        assert!(text.contains(&format!("`{store}` {note}")), "{text}");
    }
}

#[test]
#[cfg(target_os = "linux")]
fn on_a_terminal_the_demo_draws_a_table_in_colours_unless_they_are_unwelcome() {
    let Some(coloured) = on_a_terminal("demo --store memory: --seconds 1", "") else { return };
    for words in ["queue  ", "completed", "Nothing was lost: ", "\x1b[1mretry"] {
        assert!(coloured.contains(words), "no `{words}` in\n{coloured}");
    }
    let Some(plain) = on_a_terminal("demo --store memory: --seconds 1", "1") else { return };
    assert!(plain.contains("Nothing was lost: "), "{plain}");
    for shade in ["1", "2", "31", "32", "33"] {
        assert!(!plain.contains(&format!("\x1b[{shade}m")), "{plain:?}");
    }
}

/// A demonstration in which one job runs for so long that no graceful stop could wait for it.
pub(crate) struct Demo {
    pub(crate) child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Demo {
    pub(crate) fn start(store: &str, longest: &str) -> Self {
        let mut child = windlass(&["demo", "--store", store, "--longest", longest, "-o", "json"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        let lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        Self { child, lines }
    }

    /// Reads on until a line of this scene.
    pub(crate) fn read_until(&mut self, scene: &str, words: &str) -> Value {
        loop {
            let line = self.lines.next().expect("the story goes on").expect("it can be read");
            let line: Value = serde_json::from_str(&line).expect("each line is JSON");
            let text = line["text"].as_str().unwrap_or_default();
            if line["scene"] == scene && text.contains(words) {
                return line;
            }
        }
    }

    /// Reads on until each of these scenes has had a line with these words, in whatever order.
    fn read_all(&mut self, wanted: &[(&str, &str)]) {
        let mut wanted = wanted.to_vec();
        while !wanted.is_empty() {
            let line = self.lines.next().expect("the story goes on").expect("it can be read");
            let line: Value = serde_json::from_str(&line).expect("each line is JSON");
            let text = line["text"].as_str().unwrap_or_default();
            wanted.retain(|(scene, words)| line["scene"] != *scene || !text.contains(words));
        }
    }

    pub(crate) fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        // The shell's own: `kill` as a program is not on every machine.
        let sent = Command::new("sh").args(["-c", r#"kill "$0" "$1""#, signal, &pid]).status();
        assert!(sent.expect("there is a shell").success());
    }

    /// The last line, the exit code, and what went to standard error.
    pub(crate) fn end(mut self) -> (Value, Option<i32>, String) {
        let last = self.lines.by_ref().map_while(Result::ok).last();
        let last = last.expect("it prints a report");
        let status = self.child.wait().expect("it ends");
        (serde_json::from_str(&last).expect("it is JSON"), status.code(), self.told())
    }

    /// What went to standard error until it ended.
    fn told(&mut self) -> String {
        let mut told = String::new();
        let mut stderr = self.child.stderr.take().expect("it is piped");
        stderr.read_to_string(&mut told).expect("it is text");
        told
    }
}

#[test]
#[cfg(unix)]
fn an_interrupt_stops_the_demo_gracefully_with_a_report() {
    let scratch = Scratch::new();
    for (signal, store) in [("-INT", "memory:"), ("-TERM", &scratch.path("demo"))] {
        let mut demo = Demo::start(store, "1");
        demo.read_until("progress", "video 1 starts");
        demo.signal(signal);
        demo.read_until("progress", "video 1 is done");
        let (report, code, told) = demo.end();
        check_report(&report);
        assert_eq!(report["forced"], false, "{report}");
        assert_eq!(report["worker"]["interrupted"], 0, "{report}");
        assert_eq!((code, told.as_str()), (Some(0), ""), "{signal}");
    }
}

#[test]
#[cfg(unix)]
fn a_second_interrupt_stops_the_demo_at_once() {
    let scratch = Scratch::new();
    let mut demo = Demo::start(&scratch.path("demo"), "86400");
    demo.read_until("progress", "video 1 starts");
    demo.signal("-INT");
    demo.read_until("stop", "Ctrl-C again stops now");
    demo.signal("-INT");
    demo.read_until("progress", "video 1 was interrupted and is back in its queue");
    let (report, code, told) = demo.end();
    check_report(&report);
    assert_eq!(report["forced"], true, "{report}");
    assert!(report["worker"]["interrupted"].as_u64() >= Some(1), "{report}");
    assert_eq!((code, told.as_str()), (Some(0), ""));
}

#[test]
#[cfg(unix)]
fn killed_and_started_again_the_demo_says_what_it_recovered_and_nothing_is_lost() {
    let scratch = Scratch::new();
    let store = scratch.path("demo");
    // A video of four seconds is running all the time.
    let mut demo = Demo::start(&store, "4");
    demo.read_until("store", "it is new");
    let mut other = Demo::start(&store, "1");
    let why = other.told();
    assert_eq!(other.child.wait().expect("it ends").code(), Some(4), "{why}");
    let holder = format!("is in use by process {} (windlass)", demo.child.id());
    assert!(why.contains(&holder), "{why}");
    demo.read_until("pause", "queue `media` is paused");
    demo.child.kill().expect("it can be killed");
    assert_eq!(demo.child.wait().expect("it ends").code(), None);

    let mut demo = Demo::start(&store, "1");
    demo.read_until("recovery", "earlier runs accepted");
    demo.read_until("recovery", "the last run was cut off: ");
    demo.read_until("recovery", "waiting, and go");
    demo.read_until("recovery", "queue `media` was left paused, and goes on");
    // The story goes on, with numbers of its own.
    demo.read_until("retry", "charge 1003 is done, at attempt 3");
    demo.read_until("snooze", "report-3.pdf is there");
    demo.signal("-INT");
    let (report, code, told) = demo.end();
    assert_eq!((code, told.as_str()), (Some(0), ""));
    check_report(&report);
    assert!(report["recovered"].as_u64() >= Some(1), "{report}");

    let output = run(&["demo", "--store", &store, "--seconds", "1", "-o", "json"]);
    let lines = json_lines(&stdout(&output));
    let ended = "the last run ended in order: no job was running";
    assert!(lines.iter().any(|line| line["text"] == ended), "{}", stdout(&output));
    let last = check_report(lines.last().expect("it prints a report"));
    assert!(last["enqueued"].as_u64() > report["enqueued"].as_u64(), "{last}");
    assert!(last["completed"].as_u64() > report["completed"].as_u64(), "{last}");
}

#[test]
#[cfg(unix)]
fn killed_and_started_again_objects_go_on_with_what_they_remember() {
    let scratch = Scratch::new();
    let store = scratch.path("demo");
    let mut demo = Demo::start(&store, "1");
    demo.read_all(&[
        ("loop", "run 1 of `token` is done"),
        ("debounce", "page-1: a window is open"),
    ]);
    demo.child.kill().expect("it can be killed");
    demo.child.wait().expect("it ends");

    // The window is as open as it was.
    let page = run(&["object", &store, "debounce/index/page-1", "-o", "json"]);
    assert_eq!(page.status.code(), Some(0), "{}", stderr(&page));
    let page = &json_lines(&stdout(&page))[0];
    assert_eq!((&page["status"], &page["runs"]), (&"active".into(), &0.into()), "{page}");
    let listed = stdout(&run(&["objects", &store]));
    for object in ["continuous/api/token", "schedule/", "/digest"] {
        assert!(listed.contains(object), "no `{object}` in\n{listed}");
    }

    let mut demo = Demo::start(&store, "1");
    demo.read_all(&[
        ("debounce", "page-1: "),
        ("loop", "`token` goes on, after "),
        ("loop", "run 3 of `token` is done"),
        ("schedule", "`digest` is due"),
        ("lanes", "both parcels were scanned in order"),
    ]);
    demo.signal("-INT");
    let (report, code, told) = demo.end();
    assert_eq!((code, told.as_str()), (Some(0), ""));
    check_report(&report);
}
