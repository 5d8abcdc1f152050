//! What becomes of work when processes that share a directory die, stop or leave.

use std::collections::BTreeSet;

use crate::process::{Directory, Process, own_name};

#[test]
fn what_ran_in_an_owner_that_is_killed_is_recovered_at_once_and_living_workers_go_on() {
    let directory = Directory::new();
    let mut owner = Process::start(&directory.store());
    let mut joined = Process::start(&directory.store());
    assert_eq!(joined.ask("info"), format!("joined process {} ({})", owner.id(), own_name()));
    owner.ask("work 1");
    owner.ask("enqueue 1");
    assert_eq!(owner.expect("started"), "1 attempt 1");
    joined.ask("work 2");
    joined.ask("enqueue 2");
    assert_eq!(joined.expect("started"), "2 attempt 1");
    owner.kill();
    // Job 1 ran in the dead process: it runs again, counted. Job 2 runs on.
    assert_eq!(joined.expect("started"), "1 attempt 2");
    assert!(joined.owns());
    assert_eq!(joined.ask("state 1"), "running attempts 2 recoveries 1");
    assert_eq!(joined.ask("state 2"), "running attempts 1 recoveries 0");
    joined.tell("outcome 2");
    joined.tell("release 2");
    assert_eq!(joined.expect("outcome 2"), "Ok(2)");
    joined.close();
}

#[test]
fn what_ran_in_a_joined_process_that_is_killed_is_recovered_at_once() {
    let directory = Directory::new();
    let mut owner = Process::start(&directory.store());
    let mut joined = Process::start(&directory.store());
    joined.ask("work 1");
    owner.ask("enqueue 1");
    assert_eq!(joined.expect("started"), "1 attempt 1");
    owner.ask("work 1");
    joined.kill();
    assert_eq!(owner.expect("started"), "1 attempt 2");
    assert_eq!(owner.ask("state 1"), "running attempts 2 recoveries 1");
    owner.close();
}

#[test]
fn enqueues_in_flight_when_the_owner_is_killed_give_exactly_one_job_each() {
    let directory = Directory::new();
    let owner = Process::start(&directory.store());
    let mut joined = Process::start(&directory.store());
    joined.tell("flood 2000");
    let first: u64 = joined.expect("accepted").parse().expect("a number");
    owner.kill();
    let mut accepted = BTreeSet::from([first]);
    while accepted.len() < 2_000 {
        assert!(accepted.insert(joined.expect("accepted").parse().expect("a number")));
    }
    assert_eq!(joined.ask("count"), "2000");
    joined.close();
}

#[test]
fn an_owner_that_closes_leaves_nothing_unknown_and_another_goes_on() {
    let directory = Directory::new();
    let owner = Process::start(&directory.store());
    let mut joined = Process::start(&directory.store());
    joined.tell("flood 500");
    joined.expect("accepted");
    owner.close();
    (1..500).for_each(|_| drop(joined.expect("accepted")));
    assert_eq!(joined.ask("count"), "500");
    assert!(joined.owns());
}

#[test]
fn ten_takeovers_in_a_row_lose_nothing() {
    let directory = Directory::new();
    let mut processes: Vec<Process> = (0..11).map(|_| Process::start(&directory.store())).collect();
    let mut number = 0;
    while processes.len() > 1 {
        for process in &mut processes {
            number += 1;
            assert_eq!(process.ask(&format!("enqueue {number}")), format!("accepted {number}"));
        }
        let owner = processes.iter_mut().position(Process::owns).expect("somebody owns it");
        processes.swap_remove(owner).kill();
    }
    let mut last = processes.remove(0);
    assert_eq!(last.ask("count"), number.to_string());
    assert!(last.owns());
    last.kill();
    let mut alone = Process::start(&directory.store());
    assert_eq!(alone.ask("count"), number.to_string());
}

#[test]
fn owner_and_joined_process_killed_together_lose_nothing() {
    let directory = Directory::new();
    let mut owner = Process::start(&directory.store());
    let mut joined = Process::start(&directory.store());
    owner.ask("work 1");
    joined.ask("work 1");
    owner.ask("enqueue 1");
    joined.ask("enqueue 2");
    owner.expect("started");
    joined.expect("started");
    owner.kill();
    joined.kill();
    let mut next = Process::start(&directory.store());
    next.ask("work 2");
    let started = BTreeSet::from([next.expect("started"), next.expect("started")]);
    assert_eq!(started, ["1 attempt 2", "2 attempt 2"].map(String::from).into());
    next.tell("outcome 1");
    next.tell("release 2");
    assert_eq!(next.expect("outcome 1"), "Ok(1)");
}

#[test]
fn whoever_waits_for_an_outcome_is_told_after_a_takeover() {
    let directory = Directory::new();
    let mut owner = Process::start(&directory.store());
    let mut waits = Process::start(&directory.store());
    let mut works = Process::start(&directory.store());
    works.ask("work 1");
    owner.ask("enqueue 1");
    works.expect("started");
    waits.tell("outcome 1");
    waits.ask("info");
    owner.kill();
    works.tell("release 1");
    assert_eq!(waits.expect("outcome 1"), "Ok(1)");
}

#[test]
fn a_stopped_owner_is_not_robbed_and_goes_on_where_it_was() {
    let directory = Directory::new();
    let mut owner = Process::start(&directory.store());
    let mut joined = Process::start(&directory.store());
    joined.ask("work 1");
    joined.ask("enqueue 1");
    joined.expect("started");
    owner.signal("STOP");
    let refused = joined.ask("enqueue 2");
    assert!(
        refused.contains("has not answered") || refused.contains("cannot be joined"),
        "{refused}"
    );
    assert!(refused.contains(&format!("process {}", owner.id())), "{refused}");
    owner.signal("CONT");
    assert_eq!(joined.ask("enqueue 3"), "accepted 3");
    assert_eq!(joined.ask("count"), "2", "what was given up is not done behind the caller's back");
    assert!(owner.owns());
    assert_eq!(joined.ask("state 1"), "running attempts 1 recoveries 0");
    joined.tell("outcome 1");
    joined.tell("release 1");
    assert_eq!(joined.expect("outcome 1"), "Ok(1)");
}

#[test]
fn a_program_that_blocks_its_runtime_still_serves_others() {
    let directory = Directory::new();
    let mut owner = Process::start(&directory.store());
    let mut joined = Process::start(&directory.store());
    assert_eq!(owner.ask("block"), "blocked");
    joined.tell("flood 200");
    (0..200).for_each(|_| drop(joined.expect("accepted")));
    joined.ask("work 200");
    (0..200).for_each(|_| drop(joined.expect("started")));
}

#[test]
fn a_process_that_never_takes_over_leaves_it_to_others() {
    let directory = Directory::new();
    let owner = Process::start(&directory.store());
    let mut command = Process::start_as(&directory.store(), "never");
    assert_eq!(command.ask("enqueue 1"), "accepted 1");
    owner.kill();
    command.tell("enqueue 2");
    let mut next = Process::start(&directory.store());
    assert_eq!(command.expect("= "), "accepted 2");
    assert!(next.owns() && !command.owns());
}

#[test]
fn a_directory_with_a_long_path_can_be_shared() {
    let directory = Directory::new();
    let path = directory.store().join("x".repeat(200)).join("y".repeat(200));
    let mut owner = Process::start(&path);
    let mut joined = Process::start(&path);
    assert!(owner.owns() && !joined.owns());
    assert_eq!(joined.ask("enqueue 1"), "accepted 1");
    // What killed processes leave behind is no obstacle, and is cleared away.
    joined.kill();
    owner.kill();
    let mut next = Process::start(&path);
    assert!(next.owns());
    let members = std::fs::read_dir(path.join("members")).expect("there are some");
    assert_eq!(members.count(), 1);
}
