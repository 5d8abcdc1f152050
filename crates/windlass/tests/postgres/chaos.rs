//! Producers and workers under load while the server is hurt in every way, and an account outside
//! of the database of what was said to whom.
//!
//! The rules: what was acknowledged is there and completes (L1); what was refused never runs (L2);
//! what is unknown is there once or not at all (L3); one outcome, by the last attempt (L4);
//! attempts of a job do not overlap in the store's time (L5), jobs of one key keep their order
//! (L6); starts are counted (L7); counters, events and jobs agree (L8).

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use windlass::core::record::AttemptEnd;
use windlass::{
    Attempt, Engine, Error, EventKind, Failure, JobId, JobRecord, KindOptions, Options, Recovery,
    StateName, Subject, Worker,
};
use windlass_testbed::{Fault, Postgres, Proxy, or_skip};

use crate::common::{
    Dice, Ground, Interval, Work, claim, intervals, is_completed, most_at_once, records, soon,
    until, work,
};

const SEED: u64 = 5;
const MAX_ATTEMPTS: u32 = 1_000;

/// From this number on, a job follows from another.
const FOLLOWERS: u64 = 1_000_000_000;

/// The account: what the outside world knows.
#[derive(Debug, Default)]
struct Account {
    acknowledged: BTreeMap<JobId, Spoken>,
    /// How many things were said or heard so far.
    moments: u64,
    /// How often an answer was lost for good, or for a while.
    lost_answers: u64,
    refused: BTreeSet<JobId>,
    unknown: BTreeSet<JobId>,
    /// Which jobs ran, under which fence.
    runs: BTreeMap<JobId, Vec<String>>,
}

/// When, by the order of everything that was said, a job was first enqueued and acknowledged.
#[derive(Clone, Copy, Debug)]
struct Spoken {
    said: u64,
    heard: u64,
}

impl Account {
    fn moment(&mut self) -> u64 {
        self.moments += 1;
        self.moments
    }
}

#[derive(Clone, Debug, Default)]
struct World {
    account: Arc<Mutex<Account>>,
    stop: Arc<AtomicBool>,
    /// Runs whose handler has returned.
    ran: Arc<AtomicU64>,
}

impl World {
    fn account(&self) -> std::sync::MutexGuard<'_, Account> {
        self.account.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many jobs were acknowledged and how many runs have ended.
    fn progress(&self) -> (usize, u64) {
        (self.account().acknowledged.len(), self.ran.load(Ordering::SeqCst))
    }

    /// Producers and workers carry on by themselves.
    async fn carries_on(&self, after: &str) {
        let (acknowledged, ran) = self.progress();
        until(&format!("things go on after {after} (seed {SEED})"), || async {
            let now = self.progress();
            now.0 >= acknowledged + 60 && now.1 >= ran + 40
        })
        .await;
    }
}

async fn open(address: &str) -> Engine {
    let recovery = Recovery { max_recoveries: MAX_ATTEMPTS, ..Recovery::default() };
    let engine = Engine::builder().recovery(recovery).open(address).await;
    engine.expect("the engine opens")
}

/// Some jobs have a key, and those of one key keep their order.
fn key_of(number: u64) -> Option<String> {
    number.is_multiple_of(5).then(|| format!("key-{}", number % 35))
}

/// Some jobs continue with another one when they complete.
fn continues(number: u64) -> bool {
    number < FOLLOWERS && number.is_multiple_of(13)
}

/// Enqueues one job after the other and keeps account of the answers.
async fn produce(engine: Engine, world: World, me: u64) {
    let mut last: Option<JobId> = None;
    for number in me.. {
        if world.stop.load(Ordering::SeqCst) {
            return;
        }
        let (id, said) = (windlass::new_id(), world.account().moment());
        let mut is_unknown = false;
        loop {
            let mut job = engine.enqueue(work(number)).id(id).max_attempts(MAX_ATTEMPTS);
            if let Some(key) = key_of(number) {
                job = job.lane(key);
            } else if let Some(last) = last.filter(|_| number.is_multiple_of(7)) {
                job = job.depends_on(last);
            }
            match job.await {
                Ok(_) => {
                    let heard = world.account().moment();
                    world.account().acknowledged.insert(id, Spoken { said, heard });
                    last = Some(id);
                    break;
                }
                Err(Error::Unknown { .. }) => {
                    is_unknown = true;
                    world.account().lost_answers += 1;
                }
                // A refusal says nothing of a call before it.
                Err(Error::Refused(_)) if is_unknown => {}
                Err(Error::Refused(_)) => {
                    world.account().refused.insert(id);
                    break;
                }
                Err(other) => panic!("an enqueue is answered otherwise: {other}"),
            }
            if world.stop.load(Ordering::SeqCst) {
                world.account().unknown.insert(id);
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        // A steady load, not a flood.
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// A worker whose handler fails now and then, and is slow now and then.
async fn work_in(engine: &Engine, world: &World) -> Worker {
    let world = world.clone();
    let handler = move |job: Work, attempt: Attempt| {
        let world = world.clone();
        async move {
            world.account().runs.entry(attempt.id()).or_default().push(attempt.fence());
            let mut dice = Dice::new(SEED ^ job.number.wrapping_mul(31));
            let slow = if dice.roll(40) == 0 { 400 } else { dice.roll(10) };
            tokio::time::sleep(Duration::from_millis(slow)).await;
            world.ran.fetch_add(1, Ordering::SeqCst);
            if attempt.number() == 1 && dice.roll(10) == 0 {
                return Err(Failure::retry_after(Duration::from_millis(20), "once more"));
            }
            if continues(job.number) {
                let follower = Options::new().max_attempts(MAX_ATTEMPTS);
                attempt.continue_with_options(work(FOLLOWERS + job.number), follower)?;
            }
            Ok(job.number)
        }
    };
    let worker = engine.worker().slots(8).poll_interval(Duration::from_millis(250));
    let worker = worker.handle_with(handler, |terms| terms.lease(Duration::from_secs(2)));
    worker.start().await.expect("the worker starts")
}

const CHILD: &str = "WINDLASS_TEST_WORKER_AT";

/// A worker that is a process of its own, killed when this is dropped.
struct Process(Child);

impl Process {
    fn start(address: &str) -> Self {
        let own = std::env::current_exe().expect("this program has a path");
        let this = "chaos::a_process_that_only_works_until_it_is_killed";
        let child = Command::new(own)
            .args(["--exact", this])
            .env(CHILD, address)
            // It ends when this pipe does, so that it does not outlive a killed test.
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Self(child.expect("a process can be started"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_only_works_until_it_is_killed() {
    let Ok(address) = std::env::var(CHILD) else { return };
    let engine = open(&address).await;
    let _worker = work_in(&engine, &World::default()).await;
    let orphaned = tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new()));
    let _ = orphaned.await;
}

fn terminate_backends(server: &Postgres) {
    server.sql(
        "postgres",
        "select count(pg_terminate_backend(pid)) from pg_stat_activity \
         where application_name = 'windlass'",
    );
}

fn kill_a_backend(server: &Postgres) {
    let backend = server.sql(
        "postgres",
        "select pid from pg_stat_activity where application_name = 'windlass' limit 1",
    );
    server.kill_backend(backend.parse().expect("a number"));
}

/// Hurts the server in every way there is, and lets things go on in between.
async fn hurt(server: &mut Postgres, world: &World, address: &str, rounds: usize) {
    world.carries_on("the start").await;
    let mut process = Process::start(address);
    for _ in 0..rounds {
        for _ in 0..4 {
            terminate_backends(server);
            world.carries_on("its connections were ended").await;
        }
        kill_a_backend(server);
        world.carries_on("a backend was killed").await;
        // A whole process of workers dies with it.
        drop(process);
        server.kill_postmaster();
        server.start_again();
        process = Process::start(address);
        world.carries_on("the server was killed").await;
        server.restart();
        world.carries_on("the server was restarted").await;
    }
}

async fn open_jobs(engine: &Engine) -> u64 {
    let counts = engine.counts().await.expect("counters are answered");
    let waiting = [StateName::Blocked, StateName::Scheduled, StateName::Ready, StateName::Running];
    let in_state = |state: StateName| -> u64 {
        counts.lines.iter().map(|line| line.states[state as usize]).sum()
    };
    waiting.into_iter().map(in_state).sum()
}

/// Everything that is kept.
async fn everything(engine: &Engine) -> Vec<JobRecord> {
    let (mut jobs, mut after) = (Vec::new(), None);
    loop {
        let page = engine.jobs().page(after, 1_000).await.expect("a page is answered");
        jobs.extend(page.jobs);
        after = page.next;
        if after.is_none() {
            return jobs;
        }
    }
}

fn check_record(record: &JobRecord) {
    assert!(is_completed(record), "L1: it did not complete (seed {SEED}): {record:?}");
    let completed = |end: &(_, AttemptEnd)| end.1 == AttemptEnd::Completed;
    let ends: Vec<_> = record.attempts.iter().filter_map(|attempt| attempt.ended).collect();
    assert_eq!(ends.iter().filter(|end| completed(end)).count(), 1, "L4: {record:?}");
    assert!(ends.last().is_some_and(completed), "L4: {record:?}");
    assert_eq!(most_at_once(&intervals(record)), 1, "L5: {record:?}");
    assert!(record.status.attempts <= MAX_ATTEMPTS, "L7: {record:?}");
}

fn number_of(record: &JobRecord) -> u64 {
    serde_json::from_slice::<Work>(&record.job.payload).expect("we encoded it").number
}

/// L3: what nobody enqueued is what one completed job continued with, and no other did.
fn check_strangers(all: &[JobRecord], account: &Account) {
    let known =
        |job: &JobId| account.acknowledged.contains_key(job) || account.unknown.contains(job);
    let (known, strangers): (Vec<_>, Vec<_>) = all.iter().partition(|record| known(&record.id()));
    let parents: BTreeSet<JobId> = strangers.iter().filter_map(|job| job.job.parent).collect();
    let continued = known.iter().filter(|record| continues(number_of(record)));
    let continued: BTreeSet<JobId> = continued.map(|record| record.id()).collect();
    assert_eq!((parents.len(), &parents), (strangers.len(), &continued), "L3: one follower each");
}

/// L6: of two jobs of a key, of which one was acknowledged before the other was enqueued, that one
/// is done before the other begins.
fn check_order(all: &[JobRecord], account: &Account) {
    let mut by_key: BTreeMap<String, Vec<(Spoken, Vec<Interval>)>> = BTreeMap::new();
    for record in all {
        let batch_leases = account.acknowledged.get(&record.id());
        if let (Some(key), Some(batch_leases)) = (key_of(number_of(record)), batch_leases) {
            by_key.entry(key).or_default().push((*batch_leases, intervals(record)));
        }
    }
    for (key, jobs) in by_key {
        for (one, first) in &jobs {
            for (_, second) in jobs.iter().filter(|(other, _)| one.heard < other.said) {
                let (end, begin) = (first.last().map(|at| at.1), second.first().map(|at| at.0));
                assert!(end <= begin, "L6: {key} (seed {SEED}): {first:?} and {second:?}");
            }
        }
    }
}

/// Compares the account with the store.
async fn check(engine: &Engine, account: &Account) {
    let all = everything(engine).await;
    let kept: BTreeSet<JobId> = all.iter().map(JobRecord::id).collect();
    assert_eq!(kept.len(), all.len(), "a job is listed once");
    let lost: Vec<_> = account.acknowledged.keys().filter(|job| !kept.contains(job)).collect();
    assert!(lost.is_empty(), "L1: lost {lost:?} (seed {SEED})");
    let refused: Vec<_> = account.refused.intersection(&kept).collect();
    assert!(refused.is_empty(), "L2: refused and kept: {refused:?}");
    assert!(
        account.refused.iter().all(|job| !account.runs.contains_key(job)),
        "L2: refused and ran"
    );
    check_strangers(&all, account);
    check_order(&all, account);
    for record in &all {
        check_record(record);
        let runs = account.runs.get(&record.id()).map_or(&[][..], |runs| &runs[..]);
        let fences: BTreeSet<&String> = runs.iter().collect();
        assert_eq!(fences.len(), runs.len(), "a fence is given once: {runs:?}");
        let attempts = record.attempts.len() + record.attempts_dropped as usize;
        assert!(runs.len() <= attempts, "L7: {} runs, {record:?}", runs.len());
    }
    let counts = engine.counts().await.expect("counters are answered");
    let completed: u64 =
        counts.lines.iter().map(|line| line.states[StateName::Completed as usize]).sum();
    let total: u64 = counts.lines.iter().map(|line| line.totals.completed).sum();
    assert_eq!((completed, total), (all.len() as u64, all.len() as u64), "L8");
    let mut told: BTreeMap<JobId, u32> = BTreeMap::new();
    for event in
        engine.store().events(0, usize::MAX, Duration::ZERO).await.expect("events are answered")
    {
        if let (EventKind::JobCompleted { .. }, Subject::Job { id, .. }) =
            (&event.what, &event.subject)
        {
            *told.entry(*id).or_default() += 1;
        }
    }
    assert!(told.values().all(|times| *times == 1), "L8: completed twice by its events");
    assert_eq!(told.len(), all.len(), "L8: every end was told");
    println!(
        "{} lost answers, {} recoveries, {} acknowledged, {} refused, {} unknown, {} runs here",
        account.lost_answers,
        counts.lines.iter().map(|line| line.totals.rescued).sum::<u64>(),
        account.acknowledged.len(),
        account.refused.len(),
        account.unknown.len(),
        account.runs.values().map(Vec::len).sum::<usize>()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn under_load_a_server_that_is_hurt_loses_nothing_and_repeats_no_outcome() {
    lose_and_repeat_nothing("read committed", 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn under_load_nothing_is_lost_where_sessions_are_repeatable_read_by_default() {
    lose_and_repeat_nothing("repeatable read", 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn under_load_nothing_is_lost_where_sessions_are_serializable_by_default() {
    lose_and_repeat_nothing("serializable", 1).await;
}

/// Where sessions have this isolation level by default.
async fn lose_and_repeat_nothing(level: &str, rounds: usize) {
    let level = format!("default_transaction_isolation='{level}'");
    let Some(mut server) = or_skip(Postgres::with(&[&level])) else { return };
    let address = format!("{}?windlass_schema=chaos&windlass_pool=5", server.url());
    let world = World::default();
    let (mut producers, mut workers) = (Vec::new(), Vec::new());
    let mut engines = Vec::new();
    for me in 0..3 {
        let engine = open(&address).await;
        workers.push(work_in(&engine, &world).await);
        let producing = produce(engine.clone(), world.clone(), me * 1_000_000);
        producers.push(tokio::spawn(producing));
        engines.push(engine);
    }
    hurt(&mut server, &world, &address, rounds).await;
    world.stop.store(true, Ordering::SeqCst);
    for producer in producers {
        soon("a producer", producer).await.expect("it ends well");
    }
    until("every job has ended", || async { open_jobs(&engines[0]).await == 0 }).await;
    for worker in workers {
        worker.stop().await.expect("the worker stops");
    }
    let account = std::mem::take(&mut *world.account());
    let some: Vec<JobId> = account.acknowledged.keys().copied().collect();
    assert_eq!(records(&engines[1], &some).await.len(), some.len());
    check(&engines[2], &account).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_of_the_server_ends_no_lease() {
    let Some(mut server) = or_skip(Postgres::start()) else { return };
    let address = format!("{}?windlass_schema=held", server.url());
    let (engine, other) = (open(&address).await, open(&address).await);
    let (entered, leave) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (enters, leaves) = (entered.clone(), leave.clone());
    let handler = move |job: Work, _: Attempt| {
        let (enters, leaves) = (enters.clone(), leaves.clone());
        async move {
            enters.notify_one();
            leaves.notified().await;
            Ok::<u64, Failure>(job.number)
        }
    };
    let worker = engine.worker().handle_with(handler, |terms| terms.lease(Duration::from_secs(60)));
    let worker = worker.start().await.expect("the worker starts");
    let job = engine.enqueue(work(1)).await.expect("it is accepted");
    soon("its start", entered.notified()).await;
    server.kill_postmaster();
    server.start_again();
    until("the server answers", || async { other.counts().await.is_ok() }).await;
    let taken = other.store().claim(claim("other", 1)).await.expect("it is answered");
    assert!(taken.jobs.is_empty(), "the lease is a row, and no session's");
    leave.notify_one();
    assert_eq!(soon("its outcome", job.outcome()).await.expect("it completes"), 1);
    let record = job.record().await.expect("it is kept");
    assert_eq!((record.status.attempts, record.attempts.len()), (1, 1));
    worker.stop().await.expect("the worker stops");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_was_cut_off_for_longer_than_its_lease_changes_nothing_when_it_is_back() {
    let Some(ground) = Ground::new() else { return };
    let address = ground.text_address();
    let proxy = Proxy::postgres(ground.server.port());
    let (engine, far) = (open(&address).await, open(&proxy.url(&address)).await);
    let (entered, leave) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (enters, leaves) = (entered.clone(), leave.clone());
    // It does not stop when it is told to: what it returns must be refused by the store.
    let stubborn = move |_: Work, _: Attempt| {
        let (enters, leaves) = (enters.clone(), leaves.clone());
        async move {
            enters.notify_one();
            leaves.notified().await;
            Ok::<u64, Failure>(666)
        }
    };
    let terms = |terms: KindOptions| terms.lease(Duration::from_secs(1));
    let cut_off = far.worker().handle_with(stubborn, terms).cancel_grace(Duration::from_secs(60));
    let cut_off = cut_off.start().await.expect("the worker starts");
    let job = engine.enqueue(work(1)).await.expect("it is accepted");
    soon("its start", entered.notified()).await;
    proxy.set(Fault::BlackHole);
    let prompt = |job: Work| async move { Ok::<u64, Failure>(job.number) };
    let near = engine.worker().handle_with(prompt, terms);
    let near = near.start().await.expect("the worker starts");
    assert_eq!(soon("its outcome", job.outcome()).await.expect("it completes"), 1);
    leave.notify_one();
    proxy.heal();
    let report = soon("its stop", cut_off.stop()).await.expect("the worker stops");
    assert_eq!((report.completed, report.lost), (0, 1), "{report}");
    let record = job.record().await.expect("it is kept");
    assert_eq!(record.output.as_deref(), Some(&b"1"[..]));
    assert_eq!((record.status.attempts, record.attempts.len()), (2, 2));
    near.stop().await.expect("the worker stops");
}
