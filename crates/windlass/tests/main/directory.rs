//! The directory of a store: whose it is, who gets in, and what is left of it.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;

use windlass::core::job::NewJob;
use windlass::store::file::{Disk, FileOptions, LedgerOptions, OpenError, RealDisk};
use windlass::store::{Durability, FileStore, Store, StoreExt};
use windlass::testing::VirtualClock;
use windlass::wake::LocalWake;
use windlass::{Engine, JobId, Name};

use crate::common::Directory;

fn plain_job(number: u128) -> NewJob {
    let name = |text| Name::new(text).expect("it is valid");
    NewJob::new(JobId::from_u128(number), name("work"), name("default"), b"1".to_vec())
}

fn open(path: &Path) -> Result<FileStore, OpenError> {
    let ledger = LedgerOptions { segment_bytes: Some(64 << 10), ..LedgerOptions::default() };
    let options = FileOptions { ledger, durability: Durability::Sync };
    let clock = Arc::new(VirtualClock::new());
    FileStore::on_disk(Arc::new(RealDisk::open(path)?), &options, clock, Arc::new(LocalWake::new()))
}

fn refusal(path: &Path) -> String {
    open(path).expect_err("it must not open").to_string()
}

/// A store with a job in it, closed.
async fn store_with_a_job(path: &Path) {
    let store = open(path).expect("it opens");
    store.enqueue(vec![plain_job(1).into()]).await.expect("it is accepted");
    store.close().await;
}

fn names(path: &Path) -> Vec<String> {
    let entries = fs::read_dir(path).expect("it can be read");
    entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect()
}

#[tokio::test(start_paused = true)]
async fn a_planted_link_is_not_followed_and_what_it_points_to_stays_as_it_is() {
    for name in ["lock", "format", "journal-00000001"] {
        let directory = Directory::new();
        let (path, victim) = (directory.path().join("store"), directory.path().join("victim"));
        store_with_a_job(&path).await;
        fs::write(&victim, "precious").expect("written");
        fs::remove_file(path.join(name)).expect("it is there");
        symlink(&victim, path.join(name)).expect("planted");
        let opened = open(&path);
        assert_eq!(fs::read_to_string(&victim).expect("it is there"), "precious", "{name}");
        // `format` is only looked for.
        if name != "format" {
            let refused = opened.expect_err("it must not open").to_string();
            assert!(refused.contains("symbolic link") && refused.contains(name), "{refused}");
        }
    }
    // Also where there is no store yet.
    let directory = Directory::new();
    let (path, victim) = (directory.path().join("store"), directory.path().join("victim"));
    fs::create_dir(&path).expect("made");
    symlink(&victim, path.join("lock")).expect("planted");
    assert!(refusal(&path).contains("symbolic link"));
    assert!(!victim.exists(), "nothing was made through a link that led nowhere");
}

#[test]
fn a_directory_of_another_user_is_refused_even_to_root() {
    let directory = Directory::new();
    let mut path = directory.path().join("theirs");
    fs::create_dir(&path).expect("made");
    // Who is not root cannot give a directory away, and has others to try.
    if chown(&path, Some(12_345), None).is_err() {
        path = "/usr".into();
    }
    let before = names(&path);
    let owner = fs::metadata(&path).expect("it is there").uid();
    let refused = refusal(&path);
    assert!(refused.contains(&format!("belongs to user {owner}")), "{refused}");
    assert_eq!(names(&path), before, "nothing was left there");
}

#[test]
fn a_directory_that_others_may_write_to_is_closed_to_them_or_refused() {
    let directory = Directory::new();
    let path = directory.path().join("open");
    fs::create_dir(&path).expect("made");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).expect("changed");
    drop(open(&path).expect("nothing else is in it"));
    let mode = fs::metadata(&path).expect("it is there").mode();
    assert_eq!(mode & 0o777, 0o700);
    let path = directory.path().join("shared");
    fs::create_dir(&path).expect("made");
    fs::write(path.join("letter"), "of somebody").expect("written");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o770)).expect("changed");
    let refused = refusal(&path);
    assert!(refused.contains("others may write to it (mode 770)"), "{refused}");
    assert_eq!(names(&path), ["letter"]);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("changed");
    drop(open(&path).expect("others may look, but not write"));
}

#[tokio::test(start_paused = true)]
async fn whoever_deletes_the_lock_file_lets_nobody_in() {
    let directory = Directory::new();
    let path = directory.path().join("store");
    let store = open(&path).expect("it opens");
    fs::remove_file(path.join("lock")).expect("it is there");
    let second = RealDisk::open(&path);
    assert!(matches!(second, Err(OpenError::InUse { .. })), "{second:?}");
    store.enqueue(vec![plain_job(1).into()]).await.expect("it is accepted");
    drop(store);
    let store = open(&path).expect("nobody has it");
    assert!(store.find(&[plain_job(1).id]).await.expect("answered")[0].is_some());
}

const OWNER: &str = "WINDLASS_TEST_OWNER_OF";

/// A process of its own that has a store open and accepts a job for every line it reads; killed
/// when this is dropped.
struct Owner {
    process: Child,
    asked: ChildStdin,
    answers: std::io::Lines<BufReader<ChildStdout>>,
}

impl Owner {
    fn start(path: &Path) -> Self {
        let own = std::env::current_exe().expect("a test has a path");
        let mut process = Command::new(own)
            .args(["--exact", "directory::a_process_that_owns_a_store", "--nocapture"])
            .env(OWNER, path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process can be started");
        let asked = process.stdin.take().expect("it is a pipe");
        let answers = BufReader::new(process.stdout.take().expect("it is a pipe")).lines();
        Self { process, asked, answers }
    }

    /// Has a job accepted, durably.
    fn accept(&mut self, number: u128) {
        writeln!(self.asked, "{number}").expect("it reads");
        let wanted = format!("accepted {number}");
        // The harness may have begun the line.
        let answered = self.answers.by_ref().any(|line| line.expect("text").ends_with(&wanted));
        assert!(answered, "the owner ended without an answer");
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[tokio::test(flavor = "current_thread")]
async fn a_process_that_owns_a_store() {
    let Ok(path) = std::env::var(OWNER) else { return };
    let store = open(Path::new(&path)).expect("it is nobody's");
    // It ends when this pipe does, so that it does not outlive a killed test.
    for line in std::io::stdin().lines() {
        let number = line.expect("text").parse().expect("a number");
        store.enqueue(vec![plain_job(number).into()]).await.expect("it is accepted");
        println!("accepted {number}");
    }
}

#[tokio::test(flavor = "current_thread")]
async fn whoever_deletes_the_lock_file_lets_no_other_process_in() {
    let directory = Directory::new();
    let path = directory.path().join("store");
    let mut owner = Owner::start(&path);
    owner.accept(1);
    fs::remove_file(path.join("lock")).expect("it is there");
    for _ in 0..2 {
        let second = open(&path);
        assert!(matches!(second, Err(OpenError::InUse { .. })), "{second:?}");
    }
    owner.accept(2);
    drop(owner);
    let store = open(&path).expect("its owner was killed");
    let kept = store.find(&[plain_job(1).id, plain_job(2).id]).await.expect("answered");
    assert!(kept.iter().all(Option::is_some), "{kept:?}");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_lost_its_journal_is_not_taken_for_a_new_one() {
    for left in [["lock"].as_slice(), &["spare-00000001"], &["lock", "spare-00000001"]] {
        let directory = Directory::new();
        let path = directory.path().join("store");
        store_with_a_job(&path).await;
        for name in names(&path).iter().filter(|name| !left.contains(&name.as_str())) {
            fs::remove_file(path.join(name)).expect("it is there");
        }
        for name in left.iter().filter(|name| **name != "lock") {
            fs::write(path.join(name), [0; 64]).expect("written");
        }
        for _ in 0..2 {
            let refused = refusal(&path);
            assert!(refused.contains("has held a store"), "{left:?}: {refused}");
        }
        names(&path).iter().for_each(|name| fs::remove_file(path.join(name)).expect("it goes"));
        drop(open(&path).expect("with nothing left it is a new one"));
    }
}

#[test]
fn a_store_that_was_never_opened_to_the_end_is_new() {
    let directory = Directory::new();
    let path = directory.path().join("store");
    drop(RealDisk::open(&path).expect("it is nobody's"));
    fs::write(path.join("spare-00000001"), [0; 64]).expect("written");
    drop(open(&path).expect("nothing was ever kept here"));
}

#[test]
fn nothing_is_made_in_a_directory_that_took_the_place_of_the_locked_one() {
    let directory = Directory::new();
    let path = directory.path().join("store");
    let disk = RealDisk::open(&path).expect("it is nobody's");
    fs::rename(&path, directory.path().join("moved")).expect("moved");
    fs::create_dir(&path).expect("another one");
    assert!(disk.create("journal-00000001", 64).is_err());
    assert!(disk.rename("lock", "gone").is_err());
    assert!(names(&path).is_empty());
}

#[tokio::test(flavor = "current_thread")]
async fn an_engine_can_be_opened_again_as_soon_as_it_was_dropped() {
    let directory = Directory::new();
    let path = directory.path().join("store");
    let address = path.to_str().expect("it is text");
    for _ in 0..10 {
        let engine = Engine::open(address).await.expect("nobody has it");
        drop(engine);
    }
}

#[test]
fn what_is_wrong_with_a_directory_is_told_with_its_cause() {
    let directory = Directory::new();
    let file = directory.path().join("file");
    fs::write(&file, "no directory").expect("written");
    for path in [file.clone(), file.join("below")] {
        let refused = refusal(&path);
        let told = refused.contains(path.to_str().expect("text"));
        assert!(told && refused.contains("a file stands where a directory is needed"), "{refused}");
    }
}
