//! `windlass move` on a real server, killed at every batch.

use std::process::Child;

use serde_json::json;
use tokio::runtime::Runtime;
use windlass::core::job::NewJob;
use windlass::{Engine, Name, new_id};
use windlass_testbed::{Postgres, or_skip};

use super::stores::fill_with_objects;
use super::*;

/// A store of several batches, with objects and lanes.
fn fill(path: &str) {
    fill_with_objects(path);
    let more = async {
        let engine = Engine::open(path).await?;
        let (kind, queue) = (Name::new("raw.bytes")?, Name::new("left")?);
        let job = |number: u64| {
            NewJob::new(new_id(), kind.clone(), queue.clone(), number.to_le_bytes().to_vec())
        };
        engine.enqueue_raw((0..450).map(job).collect()).await?;
        engine.close().await;
        Ok::<_, windlass::Error>(())
    };
    Runtime::new().expect("a runtime").block_on(more).expect("it can be filled");
}

fn exported(path: &str) -> Vec<Value> {
    let output = run(&["export", path]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    json_lines(&stdout(&output))
}

fn start_move(from: &str, to: &str) -> Child {
    let mut command = windlass(&["move", from, to, "-o", "json"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary starts")
}

/// Waits until the move has ended, or this condition holds; then it is killed.
fn end_or_kill(mut child: Child, server: &Postgres, stalled: &str) -> Option<Output> {
    loop {
        if child.try_wait().expect("it can be asked").is_some() {
            return Some(child.wait_with_output().expect("it has ended"));
        }
        if server.sql("postgres", stalled) == "t" {
            child.kill().expect("it runs");
            child.wait().expect("it is gone");
            return None;
        }
    }
}

#[track_caller]
fn check_half_moved(store: &str, words: &str) {
    let open = async { Engine::open(store).await.map(drop) };
    let error = Runtime::new().expect("a runtime").block_on(open).expect_err("it is half moved");
    let said = error.to_string();
    assert!(said.contains(words) && said.contains("`windlass move` again"), "{said}");
}

#[test]
fn a_store_is_moved_into_a_database_and_back() {
    let Some(server) = or_skip(Postgres::shared()) else { return };
    let scratch = Scratch::new();
    let (from, back) = (scratch.path("jobs"), scratch.path("back"));
    fill(&from);
    let database = server.url_for(&server.create_database());
    let output = run(&["move", &from, &database]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let jobs = exported(&from).len();
    let words = format!("moved: {jobs} jobs and 3 objects in all, read back and found the same");
    assert!(stdout(&output).contains(&words), "{}", stdout(&output));
    let again = run(&["move", &from, &database]);
    assert!(stdout(&again).contains("it was moved before"), "{}", stdout(&again));
    let output = run(&["move", &database, &back, "-o", "json"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let told = json_lines(&stdout(&output));
    let expected = json!({
        "jobs": jobs, "objects": 3, "resumed": false, "was_done": false, "verified": true,
    });
    assert_eq!(told, [expected]);
    assert_eq!(exported(&from), exported(&back));
    assert_eq!(run(&["doctor", &back]).status.code(), Some(0));
    check_refused(&["move", &database, &back], 4, "holds a store already");
    check_refused(&["move", &scratch.path("none"), &database], 3, "there is no store at");
    check_refused(&["move", &from], 2, "<TO>");
}

/// Stalls whoever notes for the so manieth time how far a move has come.
const TRAP: &str = "
create sequence public.notes;
create table public.trap (at bigint);
insert into public.trap values (0);
create function public.spring() returns trigger language plpgsql as $$
begin
  if nextval('public.notes') = (select at from public.trap) then perform pg_sleep(600); end if;
  return new;
end $$;
create trigger trap before update on windlass.move for each row execute function public.spring();
";

#[test]
fn a_move_into_a_database_that_is_killed_at_any_batch_goes_on_and_ends_the_same() {
    let Some(server) = or_skip(Postgres::shared()) else { return };
    let scratch = Scratch::new();
    let (from, back) = (scratch.path("jobs"), scratch.path("back"));
    fill(&from);
    let name = server.create_database();
    let database = server.url_for(&name);
    assert!(run(&["migrate", "up", "--store", &database]).status.success());
    server.sql(&name, TRAP);
    let mine = format!("from pg_stat_activity where datname = '{name}'");
    let stalled = format!("select count(*) > 0 {mine} and wait_event = 'PgSleep'");
    let mut killed = 0;
    let ended = loop {
        let note = killed + 1;
        server.sql(
            &name,
            &format!(
                "select setval('public.notes', 1, false); \
            update public.trap set at = {note}"
            ),
        );
        match end_or_kill(start_move(&from, &database), server, &stalled) {
            Some(ended) => break ended,
            None => killed += 1,
        }
        server.sql("postgres", &format!("select pg_terminate_backend(pid, 10000) {mine}"));
        check_half_moved(&database, "a move from ");
    };
    assert_eq!(ended.status.code(), Some(0), "{}", stderr(&ended));
    // Each run gets further than the one before, by a batch or more.
    assert!(killed >= 3, "it was killed {killed} times");
    let told = json_lines(&stdout(&ended));
    assert_eq!(told[0]["resumed"], true);
    assert_eq!(told[0]["jobs"], exported(&from).len());
    assert!(run(&["move", &database, &back]).status.success());
    assert_eq!(exported(&from), exported(&back));
}

#[test]
fn a_source_that_was_used_after_an_interrupted_move_is_moved_anew() {
    let Some(server) = or_skip(Postgres::shared()) else { return };
    let scratch = Scratch::new();
    let from = scratch.path("jobs");
    fill(&from);
    let name = server.create_database();
    let database = server.url_for(&name);
    assert!(run(&["migrate", "up", "--store", &database]).status.success());
    server.sql(&name, TRAP);
    server.sql(&name, "update public.trap set at = 3");
    let mine = format!("from pg_stat_activity where datname = '{name}'");
    let stalled = format!("select count(*) > 0 {mine} and wait_event = 'PgSleep'");
    assert!(end_or_kill(start_move(&from, &database), server, &stalled).is_none());
    server.sql("postgres", &format!("select pg_terminate_backend(pid, 10000) {mine}"));
    let waiting = run(&["cancel", &from, "--queue", "left", "--yes"]);
    assert!(waiting.status.success(), "{}", stderr(&waiting));
    let other = scratch.path("other");
    fill(&other);
    check_refused(&["move", &other, &database], 1, "is not finished; finish that first");
    let output = run(&["move", &from, &database, "-o", "json"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(json_lines(&stdout(&output))[0]["resumed"], false);
}

#[test]
fn a_move_into_a_directory_that_is_killed_leaves_nothing_that_opens_and_can_be_run_again() {
    let started = Postgres::with(&["max_prepared_transactions=2"]);
    let Some(server) = or_skip(started) else { return };
    let scratch = Scratch::new();
    let (from, back) = (scratch.path("jobs"), scratch.path("back"));
    fill(&from);
    let database = server.url();
    assert!(run(&["move", &from, &database]).status.success());
    let mine = "from pg_stat_activity where application_name = 'windlass'";
    let stalled = format!("select count(*) > 0 {mine} and wait_event_type = 'Lock'");
    for table in ["kind", "object"] {
        let hold = format!(
            "begin; lock table windlass.{table} in access exclusive mode; \
             prepare transaction 'hold'"
        );
        server.sql("postgres", &hold);
        assert!(end_or_kill(start_move(&database, &back), &server, &stalled).is_none(), "{table}");
        server.sql("postgres", "rollback prepared 'hold'");
        server.sql("postgres", &format!("select pg_terminate_backend(pid, 10000) {mine}"));
        check_half_moved(&back, "a move into this store is not finished");
        check_refused(&["list", &back], 4, "is not finished");
    }
    let output = run(&["move", &database, &back]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(exported(&from), exported(&back));
}
