//! The PostgreSQL server of the testbed does what tests of the store rely on.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use windlass_testbed::{Postgres, or_skip};

fn is_alive(process: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    !stat.is_empty() && !stat.contains(") Z ")
}

#[test]
fn a_server_is_durable_and_has_databases_apart_from_each_other() {
    let Some(server) = or_skip(Postgres::with(&["max_connections=17"])) else { return };
    let settings = "SELECT current_setting('fsync'), current_setting('synchronous_commit'), \
                    current_setting('max_connections')";
    assert_eq!(server.sql("postgres", settings), "on|on|17");
    let (one, other) = (server.create_database(), server.create_database());
    server.sql(&one, "CREATE TABLE only_here (number int)");
    assert_eq!(server.sql(&other, "SELECT to_regclass('only_here') IS NULL"), "t");
    assert!(server.url_for(&one).ends_with(&format!(":{}/{one}", server.port())));
}

#[test]
fn a_dropped_server_leaves_neither_a_process_nor_a_file() {
    let Some(server) = or_skip(Postgres::start()) else { return };
    let directory = server.socket_directory().to_owned();
    let process = server.process_id().expect("it runs");
    let panicked = std::thread::spawn(move || {
        let _dropped_by_the_panic = server;
        panic!("a test failed, on purpose");
    });
    assert!(panicked.join().is_err());
    assert!(!is_alive(process));
    assert!(!directory.exists());
}

#[test]
fn what_was_committed_survives_a_kill_of_everything_and_a_restart() {
    let Some(mut server) = or_skip(Postgres::start()) else { return };
    server.sql("postgres", "CREATE TABLE kept (number int); INSERT INTO kept VALUES (7)");
    let (port, before) = (server.port(), server.process_id());
    server.kill_postmaster();
    assert_eq!(server.process_id(), None);
    server.start_again();
    assert_ne!(server.process_id(), before);
    assert_eq!(server.sql("postgres", "SELECT number FROM kept"), "7");
    assert!(server.log().contains("database system was interrupted"), "it was no kill");
    server.restart();
    assert_eq!(server.sql("postgres", "SELECT number FROM kept"), "7");
    assert!(server.log().contains("database system was shut down at"), "it was no good order");
    assert_eq!(server.port(), port);
}

#[test]
fn a_killed_backend_takes_the_others_with_it() {
    let Some(server) = or_skip(Postgres::start()) else { return };
    let host = server.socket_directory().to_owned();
    let mut other = psql(&host, server.port(), "SELECT pg_backend_pid(), pg_sleep(3600)");
    let other = other.spawn().expect("psql is there");
    let sleeping = "SELECT pid FROM pg_stat_activity WHERE query LIKE '%pg_sleep(3600)' \
                    AND pid <> pg_backend_pid()";
    let backend = loop {
        if let Ok(found) = server.sql("postgres", sleeping).parse() {
            break found;
        }
    };
    server.kill_backend(backend);
    let ended = other.wait_with_output().expect("it ends");
    assert!(!ended.status.success());
}

fn psql(host: &Path, port: u16, statement: &str) -> Command {
    let mut psql = Command::new("psql");
    psql.arg("-X").arg("-h").arg(host).args(["-p", &port.to_string(), "-U", "postgres"]);
    psql.args(["-c", statement]).stdout(std::process::Stdio::piped());
    psql.stderr(std::process::Stdio::null());
    psql
}

#[test]
fn a_standby_follows_and_takes_over() {
    let Some(mut primary) = or_skip(Postgres::start()) else { return };
    let Some(standby) = or_skip(Postgres::standby_of(&primary)) else { return };
    primary.configure(&["synchronous_standby_names='standby'", "synchronous_commit=remote_apply"]);
    let synchronous = "SELECT sync_state FROM pg_stat_replication";
    while primary.sql("postgres", synchronous) != "sync" {}
    primary.sql("postgres", "CREATE TABLE kept (number int); INSERT INTO kept VALUES (7)");
    primary.kill_postmaster();
    assert_eq!(standby.sql("postgres", "SELECT number, pg_is_in_recovery() FROM kept"), "7|t");
    standby.promote();
    standby.sql("postgres", "INSERT INTO kept VALUES (8)");
}

#[test]
fn a_shared_server_is_one_and_outlives_the_test_that_started_it() {
    let starter = std::thread::spawn(|| Postgres::shared().map(Postgres::process_id));
    let Some(first) = or_skip(starter.join().expect("it starts")) else { return };
    let Some(server) = or_skip(Postgres::shared()) else { return };
    assert_eq!(server.process_id(), first);
    assert_eq!(server.sql("postgres", "SELECT 1"), "1");
}

/// Starts this very test binary anew, as a process that can be killed.
#[test]
fn a_killed_test_process_leaves_neither_a_server_nor_a_file() {
    const NAME: &str = "a_killed_test_process_leaves_neither_a_server_nor_a_file";
    if std::env::var_os("WINDLASS_TESTBED_VICTIM").is_some() {
        let server = Postgres::start().expect("the parent looked whether it is there");
        println!(
            "{} {}",
            server.process_id().expect("it runs"),
            server.socket_directory().display()
        );
        std::thread::park();
    }
    let Some(found) = or_skip(Postgres::start()) else { return };
    drop(found);
    let mut victim = Command::new(std::env::current_exe().expect("it runs"))
        .args(["--exact", NAME, "--nocapture"])
        .env("WINDLASS_TESTBED_VICTIM", "1")
        .process_group(0)
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("it starts");
    let out = std::io::BufReader::new(victim.stdout.take().expect("it is a pipe"));
    let line = std::io::BufRead::lines(out)
        .map_while(Result::ok)
        .find_map(|line| line.split_once(" /").map(|(a, b)| (a.to_owned(), format!("/{b}"))));
    let (process, directory) = line.expect("it says where its server is");
    // The harness may have begun the line.
    let process = process.rsplit(' ').next().and_then(|word| word.parse().ok());
    let process = process.expect("a number");
    assert!(is_alive(process) && Path::new(&directory).exists());
    // The whole group, as Ctrl-C and `timeout` do.
    let group = format!("-{}", victim.id());
    let killed = Command::new("sh").args(["-c", r#"kill -s KILL -- "$0""#, &group]).status();
    assert!(killed.expect("there is a shell").success());
    victim.wait().expect("it ends");
    while is_alive(process) || Path::new(&directory).exists() {
        std::thread::yield_now();
    }
}
