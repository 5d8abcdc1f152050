//! Every example runs and ends well; cargo has built them beside this test.

use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use windlass::Engine;

use crate::common::Directory;

fn examples() -> PathBuf {
    let test = std::env::current_exe().expect("a test has a path");
    let deps = test.parent().expect("it lies in deps");
    deps.parent().expect("which lies in the profile's folder").join("examples")
}

/// Longer than any example takes, so that one that hangs fails.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs one example and looks for what it should print.
#[track_caller]
fn prints(example: &str, expected: &[&str]) {
    prints_with(example, &[], expected);
}

/// The same on `memory:`, on a directory that another program has open, and over HTTP.
#[track_caller]
fn prints_anywhere(example: &str, expected: &[&str]) {
    prints(example, expected);
    let stores = OtherProgram::start();
    for address in &stores.addresses {
        prints_on(&[address], example, &[], expected);
    }
}

/// The same with variables in its environment.
#[track_caller]
fn prints_with(example: &str, environment: &[(&str, &str)], expected: &[&str]) {
    prints_on(&[], example, environment, expected);
}

#[track_caller]
fn prints_on(
    arguments: &[&String],
    example: &str,
    environment: &[(&str, &str)],
    expected: &[&str],
) {
    let mut child = Command::new(examples().join(example))
        .args(arguments)
        .envs(environment.iter().copied())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("cargo built it");
    let mut stdout = child.stdout.take().expect("it is piped");
    let (done, finished) = mpsc::channel();
    std::thread::spawn(move || {
        let mut printed = String::new();
        let read = stdout.read_to_string(&mut printed);
        let _ = done.send(read.map(|_| printed));
    });
    let Ok(printed) = finished.recv_timeout(PATIENCE) else {
        child.kill().expect("it runs");
        panic!("{example} did not end within {PATIENCE:?}");
    };
    let printed = printed.expect("it prints text");
    let status = child.wait().expect("it ran");
    assert!(status.success(), "{example} failed:\n{printed}");
    for line in expected {
        assert!(printed.contains(line), "{example} did not print {line:?}:\n{printed}");
    }
}

/// A program that has stores open which examples reach: a directory, and one behind a server.
struct OtherProgram {
    addresses: Vec<String>,
    end: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl OtherProgram {
    fn start() -> Self {
        let (tell, told) = mpsc::channel();
        let (end, ended) = tokio::sync::oneshot::channel::<()>();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Runtime::new().expect("it starts");
            runtime.block_on(async {
                let directory = Directory::new();
                let address = directory.path().join("store").display().to_string();
                let engine = Engine::open(&address).await.expect("it opens");
                let mut addresses = vec![address];
                #[cfg(feature = "remote")]
                let served = crate::http::Server::start().await;
                #[cfg(feature = "remote")]
                addresses.push(served.url());
                tell.send(addresses).expect("they are waited for");
                let _ = ended.await;
                engine.close().await;
                #[cfg(feature = "remote")]
                served.close().await;
            });
        });
        let addresses = told.recv().expect("it tells");
        Self { addresses, end: Some(end), thread: Some(thread) }
    }
}

impl Drop for OtherProgram {
    fn drop(&mut self) {
        drop(self.end.take());
        let _ = self.thread.take().map(std::thread::JoinHandle::join);
    }
}

#[test]
fn hello_greets() {
    prints_anywhere("hello", &["Hello, Ada!", "1 completed"]);
}

#[test]
fn survive_recovers_the_job_of_a_process_that_died() {
    prints(
        "survive",
        &[
            "the first process ended well: false",
            "recovered: 1 job, now scheduled",
            "order 7 charged at attempt 2",
        ],
    );
}

#[test]
fn retries_fails_dies_and_is_replayed() {
    prints_anywhere(
        "retries",
        &[
            "attempt 3 of 3 fails",
            "died (it failed as often as it may run): the provider is down",
            "dead letter: charge after 3 attempts",
            "replayed: charged 999 cents",
            "edited and replayed: charged 50 cents",
        ],
    );
}

#[test]
fn priorities_run_in_order() {
    prints_anywhere("priorities", &["1: critical\n2: high\n3: normal\n4: low\n5: later"]);
}

#[test]
fn dependencies_load_what_was_transformed() {
    prints_anywhere("dependencies", &["3 jobs wait for the first", "loaded 600"]);
}

#[test]
fn unique_jobs_are_recognised() {
    prints_anywhere(
        "unique",
        &[
            "the second is a duplicate: true",
            "the third is a duplicate: false",
            "again within the hour is a duplicate: true",
        ],
    );
}

#[test]
fn graceful_stop_gives_the_long_job_back() {
    // On a clock that only a store in the same process can share.
    prints(
        "graceful_stop",
        &["told to stop: Shutdown", "short: 10 steps", "long: ready, 0 attempts counted"],
    );
}

#[test]
fn middleware_puts_the_job_on_every_line() {
    prints_anywhere(
        "middleware",
        &["[resize attempt 1] reading cat.png", "[resize attempt 1] succeeded"],
    );
}

#[test]
fn progress_is_seen() {
    prints_anywhere("progress", &["25 %", "100 %", "done in about", "log: file 4 imported"]);
}

#[test]
fn axum_app_enqueues_over_http() {
    prints_anywhere("axum_app", &["HTTP/1.1 200 OK", "{\"id\":\""]);
}

#[test]
fn crash_everywhere_finds_the_double_charge() {
    prints(
        "crash_everywhere",
        &[
            "naive: crash point 21 of 30, before the outcome of `checkout` was written; what was \
             not synced was lost:\nthe check failed: the card was charged 2 times\nRun this point \
             alone with WINDLASS_CRASH_POINT=21 in the environment.",
            "fixed: 30 crash points, and never more than one charge",
        ],
    );
}

#[test]
fn one_crash_point_can_be_run_alone() {
    let at = |point| [("WINDLASS_CRASH_POINT", point)];
    prints_with("crash_everywhere", &at("1"), &["naive: nothing found", "fixed: 1 crash points"]);
    prints_with("crash_everywhere", &at("21"), &["naive: crash point 21 of 30"]);
}
#[test]
fn steps_charge_once_and_ship_once() {
    prints_anywhere(
        "steps",
        &[
            "the handler runs\norder 7 is charged\nthe handler runs\nthe handler runs\n\
             order 7 is shipped\ndone: receipt 7-1, parcel 7\n",
            "step cool-down: {\"until_us\":",
        ],
    );
}

#[test]
fn webhook_debounce_delivers_each_burst_once() {
    prints_anywhere(
        "webhook_debounce",
        &[
            "acme: 3 gathered\nagain is a duplicate: true\n",
            "refused: an event of debounce `webhooks`: versions are counted from 1",
            "initech: version 20 of 20 changes (MaxEvents)",
            "acme: version 3 of 3 changes (Timeout)",
        ],
    );
}

#[test]
fn order_state_machine_ships_one_order_and_gives_up_the_other() {
    prints_anywhere(
        "order_state_machine",
        &[
            "order-7: New -> Unpaid(500)\n",
            "order-7: Unpaid(500) -> Paid\n",
            "order-8: no payment came",
            "dead letter: {\"event\":\"Shipped\"}",
        ],
    );
}

#[test]
fn ordered_pool_ships_in_the_order_of_each_customer() {
    prints_anywhere(
        "ordered_pool",
        &["acme 1 is shipped (run 2)\nacme 2 is shipped (run 1)", "initech 14 is shipped (run 1)"],
    );
    prints_anywhere(
        "ordered_pool",
        &["initech 13 is lost: nobody ships that", "3 shipped, 0 waiting"],
    );
}

#[test]
fn token_refresher_keeps_its_token_over_a_failure() {
    prints_anywhere(
        "token_refresher",
        &[
            "created: true\n",
            "created again: false\n",
            "run 3: token github-3",
            "Stopped after 3 runs: three are enough for an example",
            "kept: github-3 (refreshed 3 times)",
        ],
    );
}

#[test]
fn nightly_report_is_written_by_the_clocks_of_berlin() {
    prints_anywhere(
        "nightly_report",
        &["(Europe/Berlin)", "report for north", "paused: true", ":30:00.000Z"],
    );
}

#[test]
fn two_processes_share_a_directory() {
    prints(
        "two_processes",
        &[
            "the second process has joined the first",
            "the second process hears: cat.jpg is small now",
        ],
    );
}

#[cfg(feature = "remote")]
#[test]
fn server_is_reached_by_a_program_elsewhere() {
    prints("server", &["windlass: Seilwinde\n"]);
}
