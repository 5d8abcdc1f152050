//! A store that another engine has open is as good as one's own, and nobody can harm it from
//! outside.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use windlass::conformance::wakes::{Pair, WakeHarness};
use windlass::conformance::{Harness, wakes};
use windlass::core::job::{LeaseToken, NewJob, RequestId, StateName};
use windlass::core::ledger::{Claim, KindClaim, Settlement};
use windlass::core::object::{Address, Turn};
use windlass::core::outcome::Verdict;
use windlass::store::file::{FileOptions, LedgerOptions};
use windlass::store::{ClaimedBatch, DirectoryOptions, DirectoryStore, OpenDirectory, Store};
use windlass::wire::{Call, Connection, Joining, Reply, StreamConnection};
use windlass::{Engine, JobId, Limits, Name, Ownership, Received, Sharing, Topics};

use crate::process::Directory;
use crate::suite::{SetClock, keeps_every_promise};

/// Two engines on one directory: one owns it, the other has joined.
struct TwoEngines {
    owner: Engine,
    joined: Engine,
    directory: Directory,
}

async fn two() -> TwoEngines {
    let directory = Directory::new();
    let path = directory.store();
    let open = || async { Engine::open(path.to_str().expect("text")).await.expect("it opens") };
    let (owner, joined) = (open().await, open().await);
    assert_eq!(owner.store().info().ownership, Some(Ownership::Owner));
    assert!(matches!(joined.store().info().ownership, Some(Ownership::Joined { .. })));
    TwoEngines { owner, joined, directory }
}

/// Stores that have joined another, without an engine that would keep house.
struct JoinedStores {
    clock: Arc<SetClock>,
    kept: Mutex<Vec<(OpenDirectory, OpenDirectory, Directory)>>,
}

#[async_trait]
impl Harness for JoinedStores {
    async fn fresh(&self, limits: Limits) -> Arc<dyn Store> {
        self.clock.begin_another_store();
        let before = std::mem::take(&mut *self.kept.lock().expect("nobody panicked"));
        for (owner, joined, _directory) in before {
            joined.store.close().await;
            owner.store.close().await;
        }
        let directory = Directory::new();
        let ledger = LedgerOptions { limits, ..LedgerOptions::default() };
        let options = DirectoryOptions {
            file: FileOptions { ledger, ..FileOptions::default() },
            clock: Some(self.clock.clone()),
            ..DirectoryOptions::default()
        };
        let path = directory.store();
        let open =
            || async { DirectoryStore::open(&path, options.clone()).await.expect("it opens") };
        let (owner, joined) = (open().await, open().await);
        assert!(matches!(joined.store.info().ownership, Some(Ownership::Joined { .. })));
        let store = joined.store.clone();
        self.kept.lock().expect("nobody panicked").push((owner, joined, directory));
        store
    }

    async fn advance(&self, by: Duration) {
        self.clock.advance(by);
    }
}

#[tokio::test(flavor = "current_thread")]
async fn a_joined_store_keeps_every_promise_of_the_suite() {
    let harness = JoinedStores { clock: SetClock::new(), kept: Mutex::default() };
    let harness: Arc<dyn Harness> = Arc::new(harness);
    keeps_every_promise(harness).await;
}

struct JoinedWakes(Mutex<Vec<TwoEngines>>);

#[async_trait]
impl WakeHarness for JoinedWakes {
    async fn pair(&self) -> Pair {
        let two = two().await;
        let pair =
            Pair { here: two.owner.wake().clone(), there: two.joined.wake().clone(), cut: None };
        self.0.lock().expect("nobody panicked").push(two);
        pair
    }
}

#[tokio::test(flavor = "current_thread")]
async fn rings_reach_processes_that_have_joined() {
    let broken = wakes::run(Arc::new(JoinedWakes(Mutex::default()))).await;
    let told: Vec<String> =
        broken.iter().map(|broken| format!("{}: {}", broken.name, broken.seen)).collect();
    assert!(broken.is_empty(), "{}", told.join("\n"));
}

fn name(text: &str) -> Name {
    Name::new(text).expect("a valid name")
}

fn job(number: u128) -> Arc<NewJob> {
    Arc::new(NewJob::new(JobId::from_u128(number), name("work"), name("default"), b"1".to_vec()))
}

fn claim(worker: &str, request: u128) -> Claim {
    Claim {
        worker: worker.into(),
        queues: None,
        kinds: vec![KindClaim::new(name("work"))],
        limit: 10,
        request: Some(RequestId(request)),
    }
}

fn tokens(claimed: &ClaimedBatch) -> BTreeSet<LeaseToken> {
    claimed.jobs.iter().map(|job| job.lease.token).collect()
}

#[tokio::test(flavor = "current_thread")]
async fn a_claim_whose_answer_died_with_the_owner_waits_for_no_lease() {
    let TwoEngines { owner, joined, directory: _directory } = two().await;
    owner.store().enqueue(vec![job(1), job(2)]).await.expect("they are accepted");
    let mut first = claim("mine", 1);
    first.limit = 1;
    let held = joined.store().claim(first).await.expect("it is answered");
    assert_eq!(held.jobs.len(), 1);
    // As if the answer to a second claim had been lost with the owner.
    let lost = owner.store().claim(claim("mine", 2)).await.expect("it is answered");
    assert_eq!(lost.jobs.len(), 1);
    owner.close().await;
    let again = joined.store().claim(claim("mine", 2)).await.expect("it is answered");
    assert_eq!(again.jobs.len(), 1, "it is not waited for until its lease ends");
    assert_eq!(again.jobs[0].job.id, lost.jobs[0].job.id);
    assert_eq!(again.jobs[0].attempt, 1, "the start that nobody saw is not counted");
    assert!(tokens(&again).is_disjoint(&tokens(&lost)), "no token comes twice");
    // What has arrived is held on to.
    let settled = Settlement::new(held.jobs[0].job.id, held.jobs[0].lease.token, Verdict::Complete);
    let settled = joined.store().settle(vec![settled]).await.expect("it is answered");
    assert_eq!(settled[0].as_ref().expect("it is held").state, StateName::Completed);
}

/// Waits for the owner to look who lives: one of whom nothing else is known is cleared away then.
async fn until_the_dead_are_looked_for(members: &Path) {
    let other = members.join("other");
    std::fs::write(&other, "process 2 (other)\n").expect("written");
    while other.exists() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "current_thread")]
async fn a_claim_that_is_made_after_its_process_died_waits_for_no_lease() {
    let directory = Directory::new();
    let path = directory.store();
    let owner = Engine::open(path.to_str().expect("text")).await.expect("it opens");
    owner.store().enqueue(vec![job(1)]).await.expect("it is accepted");
    // A process that has joined, and dies while the owner has yet to read what it asked.
    let member = path.join("members/dying");
    std::fs::write(&member, "process 1 (dying)\n\"dying\"\n").expect("written");
    let lock = std::fs::File::open(&member).expect("it is there");
    lock.lock().expect("locked");
    let stream = tokio::net::UnixStream::connect(path.join("socket")).await.expect("it listens");
    let connection = StreamConnection::greet(stream).await.expect("it greets");
    let joining = Joining { member: Some("dying".into()), ..Joining::default() };
    connection.send(Call::Join(joining)).await.expect("it is answered");
    drop(lock);
    until_the_dead_are_looked_for(&path.join("members")).await;
    let late = connection.send(Call::Claim(claim("dying", 1))).await.expect("it is answered");
    assert!(matches!(late.answer, Ok(Reply::Claimed(claimed)) if claimed.jobs.len() == 1));
    drop(connection);
    // It is forgotten when all that it asked is over; and the lease lasts for much longer.
    while member.exists() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let state = owner.find(JobId::from_u128(1)).await.expect("answered").expect("kept").state();
    assert_ne!(state, StateName::Running, "it is leased to nobody");
    owner.close().await;
}

#[tokio::test(flavor = "current_thread")]
async fn a_job_whose_settlement_was_refused_is_not_given_back_when_the_owner_changes() {
    let TwoEngines { owner, joined, directory: _directory } = two().await;
    owner.store().enqueue(vec![job(1)]).await.expect("it is accepted");
    let held = joined.store().claim(claim("mine", 1)).await.expect("it is answered");
    let (job, token) = (held.jobs[0].job.id, held.jobs[0].lease.token);
    let settlement = Settlement::new(job, token, Verdict::Complete);
    // The object was changed meanwhile, so the turn is refused and made again for its version.
    let name = |text: &str| Name::new(text).expect("a name");
    let object = Address::new(name("loop"), name("tokens"), "one").expect("an address");
    let stale = Settlement { turn: Some(Turn::new(object, 7).into()), ..settlement.clone() };
    let refused = joined.store().settle(vec![stale]).await.expect("it is answered");
    refused[0].as_ref().expect_err("there is no such version");
    owner.close().await;
    let settled = joined.store().settle(vec![settlement]).await.expect("it is answered");
    assert_eq!(settled[0].as_ref().expect("it is held").state, StateName::Completed);
    joined.close().await;
}

#[tokio::test(flavor = "current_thread")]
async fn workers_of_other_machines_keep_their_leases_when_every_process_here_ends() {
    let directory = Directory::new();
    let path = directory.store();
    let server = Engine::open(path.to_str().expect("text")).await.expect("it opens");
    server.store().enqueue(vec![job(1), job(2)]).await.expect("they are accepted");
    let far = server.store().for_remote_workers().expect("it makes a difference");
    let mut one = claim("far", 1);
    one.limit = 1;
    let held = far.claim(one).await.expect("it is answered");
    server.store().claim(claim("near", 2)).await.expect("it is answered");
    server.close().await;
    let server = Engine::open(path.to_str().expect("text")).await.expect("it opens");
    let (held, lease) = (held.jobs[0].job.id, held.jobs[0].lease.token);
    let opened = server.opened().expect("it owns the directory");
    assert_eq!(opened.recovered.len(), 1, "only what ran here is recovered");
    let settled = vec![Settlement::new(held, lease, Verdict::Complete)];
    let settled = server.store().settle(settled).await.expect("it is answered");
    assert_eq!(settled[0].as_ref().expect("it is held").state, StateName::Completed);
    server.close().await;
}

#[tokio::test(flavor = "current_thread")]
async fn a_successor_keeps_the_limits_of_the_directory() {
    let directory = Directory::new();
    let path = directory.store();
    let path = path.to_str().expect("text");
    let roomy = Limits { history_jobs: 1_000, ..Limits::default() };
    let owner = Engine::builder().limits(roomy).open(path).await.expect("it opens");
    let tight = Limits { history_jobs: 1, ..Limits::default() };
    let joined = Engine::builder().limits(tight.clone()).open(path).await.expect("it joins");
    joined.store().enqueue((1..=5).map(job).collect()).await.expect("they are accepted");
    complete_all(&joined).await;
    owner.close().await;
    joined.store().enqueue(vec![job(6)]).await.expect("it is accepted");
    complete_all(&joined).await;
    let kept = joined.store().count().await.expect("counted").in_state(StateName::Completed);
    assert_eq!(kept, 6, "a successor with smaller limits deletes nothing");
    joined.close().await;
    // Whoever is alone brings its own.
    let alone = Engine::builder().limits(tight).open(path).await.expect("it opens");
    alone.store().enqueue(vec![job(7)]).await.expect("it is accepted");
    complete_all(&alone).await;
    let kept = alone.store().count().await.expect("counted").in_state(StateName::Completed);
    assert_eq!(kept, 1);
    alone.close().await;
}

async fn complete_all(engine: &Engine) {
    let claimed = engine.store().claim(claim("w", rand())).await.expect("it is answered");
    let settle = |job: &windlass::store::ClaimedJob| {
        Settlement::new(job.job.id, job.lease.token, Verdict::Complete)
    };
    let settlements = claimed.jobs.iter().map(settle).collect();
    engine.store().settle(settlements).await.expect("it is answered");
}

/// A number that was not used before.
fn rand() -> u128 {
    static NEXT: AtomicU64 = AtomicU64::new(1_000);
    NEXT.fetch_add(1, Ordering::SeqCst).into()
}

#[tokio::test(flavor = "current_thread")]
async fn a_subscriber_learns_at_once_what_it_missed_when_the_owner_changes() {
    let TwoEngines { owner, joined, directory: _directory } = two().await;
    let mut told = joined.subscribe(Topics::all().topic("job.*")).expect("there are such events");
    owner.store().enqueue(vec![job(1)]).await.expect("it is accepted");
    assert!(matches!(told.next().await, Received::Event(_)));
    owner.store().enqueue(vec![job(2), job(3)]).await.expect("they are accepted");
    owner.close().await;
    // Two events have gone with the owner, and nothing happens after it.
    assert!(matches!(told.next().await, Received::Lagged { missed: 2 }));
    joined.store().enqueue(vec![job(4)]).await.expect("it is accepted");
    let Received::Event(event) = told.next().await else { panic!("it is the next one") };
    assert_eq!(event.job(), Some(JobId::from_u128(4)));
    joined.close().await;
}

#[tokio::test(flavor = "current_thread")]
async fn a_program_can_say_how_it_takes_part() {
    let directory = Directory::new();
    let path = directory.store();
    let path = path.to_str().expect("text");
    let open = |sharing| Engine::builder().sharing(sharing).open(path);
    let refused = open(Sharing::JoinOrFail).await.expect_err("nobody has it").to_string();
    assert!(refused.contains("no process that can be joined"), "{refused}");
    let owner = open(Sharing::OwnOrFail).await.expect("nobody has it");
    let joined = open(Sharing::JoinOrFail).await.expect("somebody has it");
    let script = open(Sharing::NeverTakeOver).await.expect("somebody has it");
    assert!(matches!(script.store().info().ownership, Some(Ownership::Joined { .. })));
    script.close().await;
    joined.close().await;
    owner.close().await;
    let alone = open(Sharing::NeverTakeOver).await.expect("nobody has it");
    assert_eq!(alone.store().info().ownership, Some(Ownership::Owner));
    alone.close().await;
}

/// What came back before the connection was ended.
fn talk(path: &Path, bytes: &[u8]) -> Vec<u8> {
    let mut stream = UnixStream::connect(path.join("socket")).expect("somebody listens");
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    answer
}

#[tokio::test(flavor = "current_thread")]
async fn a_hostile_peer_at_the_socket_harms_nobody() {
    let two = two().await;
    let path: PathBuf = two.directory.store();
    let mode = std::fs::metadata(path.join("socket")).expect("there is one").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    // Silent, half a frame, a huge one, nonsense; some of them stay.
    let silent = UnixStream::connect(path.join("socket")).expect("somebody listens");
    let mut half = UnixStream::connect(path.join("socket")).expect("somebody listens");
    half.write_all(&[200, 0, 0, 0, 1]).expect("it is taken");
    for bytes in
        [&[255; 64][..], &[0, 0, 0, 0], b"GET / HTTP/1.1\r\n\r\n", &[4, 0, 0, 0, 9, 9, 9, 9]]
    {
        let path = path.clone();
        let bytes = bytes.to_vec();
        let answered = tokio::task::spawn_blocking(move || talk(&path, &bytes)).await;
        assert!(answered.expect("it ends").len() < 1_000, "no more than a greeting");
    }
    two.joined.store().enqueue(vec![job(1)]).await.expect("it is accepted");
    assert!(two.owner.find(JobId::from_u128(1)).await.expect("answered").is_some());
    drop((silent, half));
    two.joined.close().await;
    two.owner.close().await;
}
