//! `windlass migrate` on a real server.

use serde_json::json;
use windlass::store::postgres::VERSION;
use windlass_testbed::{Direction, Fault, Postgres, Proxy, or_skip};

use super::*;

fn migrate(verb: &str, store: &str) -> Output {
    run(&["migrate", verb, "--store", store])
}

#[track_caller]
fn says(output: &Output, code: i32, words: &str) {
    let (told, complained) = (stdout(output), stderr(output));
    assert_eq!(output.status.code(), Some(code), "{told}{complained}");
    assert!(told.contains(words) || complained.contains(words), "{told}{complained}");
}

#[test]
fn migrate_brings_a_schema_up_to_date_and_tells_how_it_stands() {
    let Some(server) = or_skip(Postgres::shared()) else { return };
    let database = server.url_for(&server.create_database());
    let store = format!("{database}?windlass_schema=jobs");
    says(&migrate("status", &store), 1, "schema `jobs` is not there yet and needs");
    says(&migrate("up", &store), 0, &format!("schema `jobs` now has version {VERSION}:\n  1  "));
    says(&migrate("status", &store), 0, &format!("has version {VERSION}, the newest"));
    let again = windlass(&["migrate", "up", "-o", "json"]).env("WINDLASS_STORE", &store).output();
    let again = json_lines(&stdout(&again.expect("the binary starts")));
    assert_eq!(again, [json!({ "schema": "jobs", "applied": [], "version": VERSION })]);
    let status = run(&["migrate", "status", "--store", &store, "-o", "json"]);
    let nothing: [i32; 0] = [];
    let expected =
        json!({ "schema": "jobs", "version": VERSION, "needed": VERSION, "pending": nothing });
    assert_eq!(json_lines(&stdout(&status)), [expected]);
}

#[test]
fn a_schema_of_a_newer_program_is_left_alone() {
    let Some(server) = or_skip(Postgres::shared()) else { return };
    let name = server.create_database();
    let store = server.url_for(&name);
    says(&migrate("up", &store), 0, "now has version");
    let later = "insert into windlass.migration (version, title, fingerprint) values (999, '', '')";
    server.sql(&name, later);
    let words = format!("has version 999, and this build knows {VERSION}; update the program");
    says(&migrate("up", &store), 1, &words);
    says(&migrate("status", &store), 1, "has version 999");
}

#[test]
fn a_schema_of_another_build_is_left_alone() {
    let Some(server) = or_skip(Postgres::shared()) else { return };
    let name = server.create_database();
    let store = server.url_for(&name);
    says(&migrate("up", &store), 0, "now has version");
    server.sql(&name, "update windlass.migration set fingerprint = 'another'");
    for command in ["up", "status"] {
        says(&migrate(command, &store), 1, "schema `windlass` was made by another build");
    }
}

#[test]
fn migrations_can_be_printed_and_run_by_other_means() {
    let Some(server) = or_skip(Postgres::shared()) else { return };
    let name = server.create_database();
    let printed = run(&["migrate", "sql", "--schema", "by_hand"]);
    says(&printed, 0, "create table by_hand.job");
    assert!(!stdout(&printed).contains("windlass."), "it is for another schema");
    // It is too long for an argument.
    let file = std::env::temp_dir().join(format!("windlass-{name}.sql"));
    std::fs::write(&file, &printed.stdout).expect("it can be written");
    server.sql(&name, &format!("\\i {}", file.display()));
    std::fs::remove_file(file).expect("it is ours");
    let store = format!("{}?windlass_schema=by_hand", server.url_for(&name));
    says(&migrate("status", &store), 0, "the newest");
    let newest = VERSION.to_string();
    let nothing = run(&["migrate", "sql", "--from", &newest]);
    assert_eq!(stdout(&nothing), format!("-- version {VERSION} is the newest\n"));
    check_refused(&["migrate", "sql", "--from", "999"], 2, "there is no version 999");
    check_refused(&["migrate", "sql", "--schema", "Jobs"], 2, "is no name for a schema");
}

#[test]
fn what_is_no_database_has_no_schema() {
    for store in ["./jobs", "memory:", "redis://localhost"] {
        check_refused(&["migrate", "up", "--store", store], 2, "only a database has a schema");
    }
    check_refused(&["migrate", "up"], 2, "--store");
    let store = "postgres://me:secret@127.0.0.1:1/jobs";
    check_refused(&["migrate", "up", "--store", store], 1, "is it running, and is the address");
}

#[test]
fn any_number_of_processes_may_migrate_at_once() {
    let Some(server) = or_skip(Postgres::shared()) else { return };
    let name = server.create_database();
    let store = server.url_for(&name);
    let start = || {
        let mut command = windlass(&["migrate", "up", "--store", &store, "-o", "json"]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary starts")
    };
    let started: Vec<_> = (0..8).map(|_| start()).collect();
    let ended: Vec<Output> =
        started.into_iter().map(|child| child.wait_with_output().expect("it ends")).collect();
    let mut busy = 0;
    for output in &ended {
        assert_eq!(output.status.code(), Some(0), "{}", stderr(output));
        let told = json_lines(&stdout(output));
        busy += usize::from(told[0]["applied"] != json!([]));
    }
    assert_eq!(busy, 1, "one of them does it, the others wait and see");
    assert_eq!(server.sql(&name, "select count(*) from windlass.migration"), VERSION.to_string());
}

/// Ends the session of whoever runs the statement with this number, from 1; counts them all.
const TRAP: &str = "
create sequence public.statements;
create table public.trap (at bigint);
insert into public.trap values (0);
create function public.spring() returns event_trigger language plpgsql as $$
begin
  if nextval('public.statements') = (select at from public.trap) then
    perform pg_terminate_backend(pg_backend_pid());
  end if;
end $$;
create event trigger trap on ddl_command_end execute function public.spring();
";

#[test]
fn a_migration_that_is_killed_at_a_statement_leaves_nothing_and_can_be_run_again() {
    let Some(server) = or_skip(Postgres::shared()) else { return };
    let name = server.create_database();
    let store = server.url_for(&name);
    server.sql(&name, TRAP);
    let whole = format!("{store}?windlass_schema=whole");
    says(&migrate("up", &whole), 0, "now has version");
    let statements = server.sql(&name, "select last_value from public.statements");
    let statements: usize = statements.parse().expect("a number");
    assert!(statements > 50, "there are {statements}");
    let last = [2, statements - 1, statements];
    for statement in (1..statements).step_by(statements / 12).chain(last) {
        let trap = format!(
            "select setval('public.statements', 1, false); update public.trap set at = {statement}"
        );
        server.sql(&name, &trap);
        says(&migrate("up", &store), 1, "error: ");
        let left = server.sql(&name, "select to_regnamespace('windlass') is null");
        assert_eq!(left, "t", "statement {statement}");
    }
    server.sql(&name, "update public.trap set at = 0");
    says(&migrate("up", &store), 0, "now has version");
}

#[test]
fn a_migration_whose_connection_is_cut_is_there_as_a_whole_or_not_at_all() {
    let Some(server) = or_skip(Postgres::shared()) else { return };
    let proxy = Proxy::postgres(server.port());
    let within = [
        Fault::CutAfter { direction: Direction::ToServer, bytes: 20_000 },
        // Before the script, before the commit, and among the answers to the script.
        Fault::CutBefore { direction: Direction::ToServer, message: b'Q', nth: 2 },
        Fault::CutBefore { direction: Direction::ToServer, message: b'Q', nth: 3 },
        Fault::CutBefore { direction: Direction::ToClient, message: b'C', nth: 40 },
    ];
    // Then every answer in turn, until there is none left to lose.
    let answers = (1..50).map(|nth| Fault::CutBeforeAnswer { nth });
    let mut committed = 0;
    for cut in within.into_iter().chain(answers) {
        let name = server.create_database();
        let store = server.url_for(&name);
        proxy.set(cut);
        let migrated = migrate("up", &proxy.url(&store));
        if proxy.is_armed() {
            proxy.heal();
            says(&migrated, 0, &format!("version {VERSION}"));
            break;
        }
        says(&migrated, 1, "error: ");
        proxy.heal();
        let there = server.sql(&name, "select to_regclass('windlass.migration') is not null");
        committed += usize::from(there == "t");
        let (words, code) = if there == "t" { ("the newest", 0) } else { ("not there yet", 1) };
        says(&migrate("status", &store), code, words);
        says(&migrate("up", &store), 0, &format!("version {VERSION}"));
    }
    assert_eq!(committed, 1, "only the answer to the last commit was lost");
}
