//! The command as a user meets it: the real binary, its exit codes and what it prints.

mod bench;
mod demo;
mod doctor;
mod http_workers;
#[cfg(feature = "postgres")]
mod migrate;
#[cfg(feature = "postgres")]
mod moving;
mod objects;
mod offline;
mod serve;
mod stores;

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

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

/// A directory for one test, removed with everything in it.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("cli-{}-{number}", std::process::id());
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&path).expect("a directory can be made");
        Self(path)
    }

    /// A path within.
    fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
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
    let commands = [
        "demo",
        "serve",
        "bench",
        "doctor",
        "backup",
        "list",
        "show",
        "objects",
        "object",
        "retry",
        "cancel",
        "export",
        "migrate",
        "move",
        "completions",
    ];
    for command in commands {
        assert!(stdout(&output).contains(&format!("\n  {command} ")), "{}", stdout(&output));
        let help = run(&[command, "--help"]);
        assert!(help.status.success(), "{command}");
        assert!(stdout(&help).contains("Usage: windlass "), "{command}");
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
    let scratch = Scratch::new();
    for arguments in [
        &["completions", "bash"][..],
        &["completions", "zsh"],
        &["demo", "--store", &scratch.path("demo"), "--seconds", "60"],
        &["demo", "--store", "memory:", "--seconds", "60", "-o", "json"],
    ] {
        let (line, ended) = read_one_line(arguments);
        assert!(!line.is_empty());
        assert_eq!(stderr(&ended), "", "{arguments:?}");
        assert_eq!(ended.status.code(), Some(0), "{arguments:?}");
    }
}

/// What a command shows on a terminal; `None` where `script`, which pretends to be one, is missing.
#[cfg(target_os = "linux")]
fn on_a_terminal(arguments: &str, no_color: &str) -> Option<String> {
    typing(arguments, "", no_color)
}

/// What a command shows on a terminal to someone who gives this answer.
#[cfg(target_os = "linux")]
fn answering(arguments: &str, answer: &str) -> Option<String> {
    typing(arguments, answer, "1")
}

#[cfg(target_os = "linux")]
fn typing(arguments: &str, answer: &str, no_color: &str) -> Option<String> {
    let command = format!("{} {arguments}", env!("CARGO_BIN_EXE_windlass"));
    let script = Command::new("script")
        .args(["-qefc", &command, "/dev/null"])
        .env("NO_COLOR", no_color)
        .env("TERM", "xterm")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let mut script = script.ok()?;
    let mut keys = script.stdin.take().expect("it is piped");
    keys.write_all(answer.as_bytes()).expect("it can be typed");
    let output = script.wait_with_output().expect("it ends");
    drop(keys);
    assert_eq!(output.status.code(), Some(0), "{}", stdout(&output));
    Some(stdout(&output))
}
