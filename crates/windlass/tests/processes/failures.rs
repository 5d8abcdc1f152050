//! What goes wrong around a directory that processes share: disks, locks, sockets, and programs
//! that are no help.

use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use tokio::net::UnixStream;
use windlass::Engine;
use windlass::wire::{Hello, encode};
use windlass_testbed::{Missing, or_skip};

use crate::process::{Directory, Process, id, own_name};

const STRACE: Missing = Missing { what: "strace", how_to_install: "apt-get install strace" };

/// Every sync of a process fails from now on, until this is dropped.
struct FailingSyncs(Child);

impl FailingSyncs {
    fn of(process: &Process) -> Result<Self, Missing> {
        let mut strace = Command::new("strace")
            .args(["-f", "-e", "trace=fdatasync", "-e", "inject=fdatasync:error=EIO", "-o"])
            .args(["/dev/null", "-p", &process.id().to_string()])
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|_| STRACE)?;
        let mut said = strace.stderr.take().expect("it is a pipe");
        // It says `strace: Process 4711 attached` when it has every thread.
        let mut first = [0; 16];
        said.read_exact(&mut first).expect("it attaches");
        // Nobody may wait for it to be read.
        std::thread::spawn(move || std::io::copy(&mut said, &mut std::io::sink()));
        Ok(Self(strace))
    }
}

impl Drop for FailingSyncs {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn an_owner_whose_store_breaks_gives_it_up_and_joins_whoever_opens_it() {
    let directory = Directory::new();
    let mut owner = Process::start(&directory.store());
    let mut joined = Process::start(&directory.store());
    owner.ask("enqueue 1");
    let Some(failing) = or_skip(FailingSyncs::of(&owner)) else { return };
    let told = joined.ask("enqueue 2");
    // Its answer was lost with the broken store, and the call made again at its successor, which
    // is this process.
    assert_eq!(told, "accepted 2");
    assert!(joined.owns());
    // The one whose disk failed lives on, and works through the other.
    while !owner.ask("info").starts_with("joined") {
        std::thread::yield_now();
    }
    assert_eq!(owner.ask("enqueue 3"), "accepted 3");
    assert_eq!(owner.ask("info"), format!("joined process {} ({})", joined.id(), own_name()));
    assert_eq!(owner.ask("count"), "3");
    drop(failing);
    owner.close();
    joined.close();
}

#[test]
fn of_all_that_have_joined_exactly_one_takes_over() {
    let directory = Directory::new();
    let owner = Process::start(&directory.store());
    let mut others: Vec<Process> = (0..6).map(|_| Process::start(&directory.store())).collect();
    owner.kill();
    // Each asks at once.
    others.iter_mut().zip(1..).for_each(|(other, number)| other.tell(&format!("enqueue {number}")));
    others.iter_mut().for_each(|other| drop(other.expect("= accepted")));
    assert_eq!(others.iter_mut().filter_map(|other| other.owns().then_some(())).count(), 1);
    assert_eq!(others[0].ask("count"), "6");
}

#[test]
fn a_successor_that_is_killed_while_it_takes_over_is_succeeded_in_turn() {
    let directory = Directory::new();
    for round in 0..8 {
        let mut processes: Vec<Process> =
            (0..3).map(|_| Process::start(&directory.store())).collect();
        let owner = processes.iter_mut().position(Process::owns).expect("somebody owns it");
        let owner = processes.remove(owner);
        let (mut first, mut second) = (processes.remove(0), processes.remove(0));
        first.ask("work 1");
        owner.kill();
        // At some moment of its taking over, or before, or after.
        std::thread::yield_now();
        (0..round * 40).for_each(|_| drop(fs::read_dir(directory.store())));
        first.kill();
        assert_eq!(
            second.ask(&format!("enqueue {}", round + 1)),
            format!("accepted {}", round + 1)
        );
        assert_eq!(second.ask("count"), (round + 1).to_string());
        assert!(second.owns());
        second.kill();
    }
}

#[tokio::test(flavor = "current_thread")]
async fn a_full_backlog_is_tried_again_and_nobody_is_taken_for_dead() {
    let directory = Directory::new();
    let mut owner = Process::start(&directory.store());
    owner.ask("enqueue 1");
    owner.signal("STOP");
    // Nobody is let in any more, and whoever comes is turned away at once.
    let mut crowd = Vec::new();
    while crowd.len() < 10_000
        && let Ok(stream) = UnixStream::connect(directory.store().join("socket")).await
    {
        crowd.push(stream);
    }
    assert!(crowd.len() < 10_000, "the backlog is bounded");
    // Whoever comes now tries for as long as its patience lasts, and takes nobody for dead.
    let mut early = Process::begin(&directory.store(), "any");
    let refused = early.expect("open refused:");
    assert!(refused.contains(&format!("process {}", owner.id())), "{refused}");
    owner.signal("CONT");
    drop(crowd);
    let mut late = Process::start(&directory.store());
    assert_eq!(late.ask("count"), "1");
    assert!(owner.owns() && !late.owns());
}

/// The lock of a directory, held by somebody who does nothing with it.
struct HeldLock(#[expect(dead_code, reason = "held until it is dropped")] [File; 2]);

impl HeldLock {
    fn of(store: &Path) -> Self {
        let lock = OpenOptions::new().read(true).write(true).open(store.join("lock"));
        let held = [File::open(store).expect("it is there"), lock.expect("it is there")];
        held.iter().for_each(|file| file.lock().expect("nobody has it"));
        Self(held)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_a_child_of_a_dead_owner_holds_is_not_stolen() {
    let directory = Directory::new();
    let mut owner = Process::start(&directory.store());
    owner.ask("enqueue 1");
    let dead = owner.id();
    owner.kill();
    let held = HeldLock::of(&directory.store());
    let path = directory.store();
    let refused = Engine::open(path.to_str().expect("text")).await.expect_err("it is held");
    let refused = anyhow::Error::from(refused).to_string();
    assert!(refused.contains(&format!("process {dead}")), "{refused}");
    drop(held);
    let engine = Engine::open(path.to_str().expect("text")).await.expect("it is free");
    assert!(engine.find(id(1)).await.expect("answered").is_some());
    engine.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_of_another_version_is_refused_in_one_sentence() {
    use std::io::Write;
    let directory = Directory::new();
    Process::start(&directory.store()).close();
    let _held = HeldLock::of(&directory.store());
    let listener = UnixListener::bind(directory.store().join("socket")).expect("it is free");
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let hello = Hello { protocol: 9, oldest: 8, version: "9.9.9".to_string() };
            let mut bytes = Vec::new();
            encode(&hello, &mut bytes).expect("it fits");
            let _ = stream.write_all(&bytes);
            let _ = stream.read_to_end(&mut Vec::new());
        }
    });
    let path = directory.store();
    let refused = Engine::open(path.to_str().expect("text")).await.expect_err("too new");
    let refused = anyhow::Error::from(refused).to_string();
    assert!(refused.contains("9.9.9") && !refused.contains('\n'), "{refused}");
}

#[test]
fn where_there_can_be_no_socket_one_process_owns_and_others_are_refused() {
    let directory = Directory::new();
    // What stands there cannot be removed by `unlink`, and nothing can be bound there.
    fs::create_dir_all(directory.store().join("socket").join("occupied")).expect("made");
    let mut owner = Process::start(&directory.store());
    assert!(owner.owns());
    assert_eq!(owner.ask("enqueue 1"), "accepted 1");
    let mut other = Process::begin(&directory.store(), "any");
    let refused = other.expect("open refused:");
    assert!(refused.contains(&format!("process {}", owner.id())), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_that_cannot_be_written_is_refused_in_one_sentence() {
    // Nothing can be made there, not even by root.
    for path in ["/sys/kernel", "/proc"] {
        let refused = Engine::open(path).await.expect_err("it cannot be written").to_string();
        assert!(refused.contains(path) && !refused.contains('\n'), "{refused}");
    }
}
