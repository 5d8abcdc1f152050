//! The command as a user meets it: the real binary, its exit codes and what it prints.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

fn windlass(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_windlass"));
    command.args(arguments).env_remove("WINDLASS_STORE").env_remove("WINDLASS_LOG");
    command
}

fn run(arguments: &[&str]) -> Output {
    windlass(arguments).output().expect("the binary starts")
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Every line of the output as JSON.
fn json_lines(output: &str) -> Vec<Value> {
    let parse = |line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    output.lines().map(parse).collect()
}

#[track_caller]
fn check_refused(arguments: &[&str], code: i32, sentence: &str) {
    let output = run(arguments);
    let told = stderr(&output);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {told}");
    assert!(told.starts_with("error: "), "{arguments:?}: {told}");
    assert!(told.contains(sentence), "{arguments:?}: {told}");
    assert!(!told.contains("panicked"), "{arguments:?}: {told}");
    assert_eq!(stdout(&output), "", "{arguments:?}");
}

#[test]
fn help_lists_the_commands() {
    let output = run(&["--help"]);
    assert!(output.status.success());
    for command in ["demo", "bench", "completions"] {
        assert!(stdout(&output).contains(&format!("\n  {command} ")), "{}", stdout(&output));
    }
    for command in ["demo", "bench", "completions"] {
        assert!(run(&[command, "--help"]).status.success(), "{command}");
    }
}

#[test]
fn the_version_is_that_of_the_package() {
    let output = run(&["--version"]);
    assert_eq!(stdout(&output), format!("windlass {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn nothing_to_do_is_wrong_usage_and_shows_the_help() {
    let output = run(&[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("Usage: windlass"), "{}", stderr(&output));
}

#[test]
fn bad_input_gets_a_sentence_and_the_right_exit_code() {
    check_refused(&["demmo"], 2, "a similar subcommand exists: 'demo'");
    check_refused(&["bench", "--jobs", "0"], 2, "from 1 to 20000000");
    check_refused(&["bench", "--jobs", "many"], 2, "such as 20000, 100k or 1M");
    check_refused(&["bench", "--concurrency", "0"], 2, "1..=10000");
    check_refused(&["bench", "--payload", "999999999"], 2, "2..=131072");
    check_refused(&["bench", "--mode", "lifecycel"], 2, "'lifecycle'");
    check_refused(&["bench", "--json", "-o", "table"], 2, "cannot be used with");
    check_refused(&["demo", "--seconds", "0"], 2, "--seconds");
    check_refused(&["completions", "tcsh"], 2, "bash");
    // The address is well-formed; only the store cannot be opened.
    check_refused(&["bench", "--store", "nowhere:"], 1, "cannot open `nowhere:`");
}

#[test]
fn completions_are_printed_for_every_shell() {
    for (shell, word) in [
        ("bash", "_windlass()"),
        ("zsh", "#compdef windlass"),
        ("fish", "complete -c windlass"),
        ("powershell", "Register-ArgumentCompleter"),
    ] {
        let output = run(&["completions", shell]);
        assert!(output.status.success(), "{shell}");
        assert!(stdout(&output).contains(word), "{shell}");
    }
}

/// Starts a command, takes the first line of its output, and closes the pipe.
fn read_one_line(arguments: &[&str]) -> (String, Output) {
    let mut child = windlass(arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    let mut line = String::new();
    let mut output = BufReader::with_capacity(16, child.stdout.take().expect("it is piped"));
    output.read_line(&mut line).expect("it prints a line");
    drop(output);
    (line, child.wait_with_output().expect("it ends"))
}

#[test]
fn a_reader_who_has_seen_enough_is_no_failure() {
    for arguments in [
        &["completions", "bash"][..],
        &["completions", "zsh"],
        &["demo", "--seconds", "60"],
        &["demo", "--seconds", "60", "-o", "json"],
    ] {
        let (line, ended) = read_one_line(arguments);
        assert!(!line.is_empty());
        assert_eq!(stderr(&ended), "", "{arguments:?}");
        assert_eq!(ended.status.code(), Some(0), "{arguments:?}");
    }
}

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
    assert!(line["note"].as_str().is_some_and(|note| note.contains("nothing after exit")));
    line
}

#[test]
fn the_demo_tells_its_whole_story_and_loses_nothing() {
    let output = run(&["demo", "--seconds", "6", "-o", "json"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(stderr(&output), "");
    let lines = json_lines(&stdout(&output));
    let (report, story) = lines.split_last().expect("it prints lines");
    let report = check_report(report);
    assert_eq!(report["forced"], false);
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
        "queue `media` is paused; resume it to start jobs",
    ] {
        assert!(said(words), "nobody said `{words}` in\n{}", stdout(&output));
    }
    for key in ["died", "replayed", "retried", "duplicates", "snoozed"] {
        assert!(report[key].as_u64() >= Some(1), "{key} in {report}");
    }
}

#[test]
fn without_a_terminal_the_demo_prints_plain_lines() {
    let output = run(&["demo", "--seconds", "1"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = stdout(&output);
    assert!(!text.contains('\x1b'), "{text:?}");
    assert!(text.contains("queues "), "{text}");
    assert!(text.contains("Stopped gracefully."), "{text}");
    assert!(text.contains("Nothing was lost: "), "{text}");
    assert!(text.contains("`memory:` keeps nothing after exit"), "{text}");
}

/// What a command shows on a terminal; `None` where `script`, which pretends to be one, is missing.
#[cfg(target_os = "linux")]
fn on_a_terminal(arguments: &str, no_color: &str) -> Option<String> {
    let command = format!("{} {arguments}", env!("CARGO_BIN_EXE_windlass"));
    let script = Command::new("script")
        .args(["-qefc", &command, "/dev/null"])
        .env("NO_COLOR", no_color)
        .env("TERM", "xterm")
        .output();
    let output = script.ok()?;
    assert_eq!(output.status.code(), Some(0), "{}", stdout(&output));
    Some(stdout(&output))
}

#[test]
#[cfg(target_os = "linux")]
fn on_a_terminal_the_demo_draws_a_table_in_colours_unless_they_are_unwelcome() {
    let Some(coloured) = on_a_terminal("demo --seconds 1", "") else { return };
    for words in ["queue  ", "completed", "Nothing was lost: ", "\x1b[1mretry"] {
        assert!(coloured.contains(words), "no `{words}` in\n{coloured}");
    }
    let Some(plain) = on_a_terminal("demo --seconds 1", "1") else { return };
    assert!(plain.contains("Nothing was lost: "), "{plain}");
    for shade in ["1", "2", "31", "32", "33"] {
        assert!(!plain.contains(&format!("\x1b[{shade}m")), "{plain:?}");
    }
}

#[test]
#[cfg(target_os = "linux")]
fn on_a_terminal_a_bench_cleans_up_its_progress() {
    let Some(shown) = on_a_terminal("bench --mode latency --jobs 100", "") else { return };
    assert!(shown.contains("latency: 100 samples"), "{shown:?}");
    assert!(shown.contains("jobs/s"), "{shown:?}");
}

/// A demonstration in which one job runs for so long that no graceful stop could wait for it.
struct Demo {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Demo {
    fn start(longest: &str) -> Self {
        let mut child = windlass(&["demo", "--longest", longest, "-o", "json"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        let lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        Self { child, lines }
    }

    /// Reads on until a line of this scene.
    fn read_until(&mut self, scene: &str, words: &str) -> Value {
        loop {
            let line = self.lines.next().expect("the story goes on").expect("it can be read");
            let line: Value = serde_json::from_str(&line).expect("each line is JSON");
            let text = line["text"].as_str().unwrap_or_default();
            if line["scene"] == scene && text.contains(words) {
                return line;
            }
        }
    }

    fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args([signal, &pid]).status().expect("`kill` is there");
        assert!(sent.success());
    }

    /// The last line, the exit code, and what went to standard error.
    fn end(mut self) -> (Value, Option<i32>, String) {
        let last = self.lines.map_while(Result::ok).last().expect("it prints a report");
        let status = self.child.wait().expect("it ends");
        let mut told = String::new();
        let mut stderr = self.child.stderr.take().expect("it is piped");
        stderr.read_to_string(&mut told).expect("it is text");
        (serde_json::from_str(&last).expect("it is JSON"), status.code(), told)
    }
}

#[test]
#[cfg(unix)]
fn an_interrupt_stops_the_demo_gracefully_with_a_report() {
    for signal in ["-INT", "-TERM"] {
        let mut demo = Demo::start("1");
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
    let mut demo = Demo::start("86400");
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

/// Keys every measurement has, whatever it measures.
const KEYS: [&str; 12] = [
    "system",
    "store",
    "durability",
    "mode",
    "n",
    "concurrency",
    "jobs_per_s",
    "p50_ms",
    "p99_ms",
    "max_ms",
    "rss_bytes",
    "bytes_written_per_job",
];

#[track_caller]
fn check_bench(arguments: &[&str], extra: &[&str]) -> Vec<Value> {
    let mut all = vec!["bench"];
    all.extend(arguments);
    let output = run(&all);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(stderr(&output), "");
    let lines = json_lines(&stdout(&output));
    for line in &lines {
        for key in KEYS.iter().chain(extra) {
            assert!(line.get(key).is_some(), "no `{key}` in {line}");
        }
        assert_eq!(line["system"], "windlass");
        assert_eq!(line["store"], "memory:");
        assert_eq!(line["durability"], "none");
        assert_eq!(line["bytes_written_per_job"], 0);
    }
    lines
}

#[test]
fn each_bench_prints_one_line_of_json_per_measurement() {
    let lines = check_bench(&["--mode", "lifecycle", "--jobs", "200", "--json"], &[]);
    assert_eq!(lines.len(), 1);
    assert_eq!(lines[0]["mode"], "lifecycle");
    assert_eq!(lines[0]["n"], 200);
    assert!(lines[0]["jobs_per_s"].as_f64() > Some(0.0));
    assert!(lines[0]["p50_ms"].as_f64() <= lines[0]["max_ms"].as_f64());

    for mode in ["enqueue", "bulk", "drain", "latency"] {
        let lines = check_bench(&["--mode", mode, "--jobs", "20", "-o", "json"], &[]);
        assert_eq!(lines.len(), 1, "{mode}");
        assert_eq!(lines[0]["mode"], mode);
    }
    let extra = ["backlog", "ns_per_job", "ratio"];
    let lines = check_bench(&["--mode", "backlog", "--jobs", "1k", "--json"], &extra);
    assert_eq!(lines.len(), 1);
    assert_eq!((&lines[0]["backlog"], &lines[0]["ratio"]), (&1_000.into(), &1.0.into()));
    let extra = ["state", "bytes_per_job"];
    let lines = check_bench(&["--mode", "memory", "--jobs", "2k", "--json"], &extra);
    assert_eq!((&lines[0]["state"], &lines[1]["state"]), (&"ready".into(), &"scheduled".into()));
}

#[test]
fn a_bench_without_json_prints_a_table() {
    let output = run(&["bench", "--mode", "enqueue", "--jobs", "20"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(stderr(&output), "");
    let text = stdout(&output);
    assert!(text.starts_with("store memory: (durability: none), 200 bytes of payload"), "{text}");
    assert!(text.contains("jobs/s"), "{text}");
    assert!(text.contains("\n enqueue "), "{text}");
}
