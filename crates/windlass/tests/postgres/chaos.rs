//! Producers and workers under load while the server is hurt in every way, and an account outside
//! of the database of what was said to whom.
//!
//! The rules: what was acknowledged is there and completes (L1); what was refused never runs (L2);
//! what is unknown is there once or not at all (L3); one outcome, by the last attempt (L4);
//! attempts of a job do not overlap in the store's time (L5); starts are counted (L7); counters,
//! events and jobs agree (L8).

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use windlass::core::record::AttemptEnd;
use windlass::{
    Attempt, Engine, Error, Failure, JobId, JobRecord, Recovery, StateName, Subject, What, Worker,
};
use windlass_testbed::{Postgres, or_skip};

use crate::common::{
    Dice, Work, intervals, is_completed, most_at_once, records, soon, until, work,
};

const SEED: u64 = 5;
const MAX_ATTEMPTS: u32 = 1_000;

/// The account: what the outside world knows.
#[derive(Debug, Default)]
struct Account {
    acknowledged: BTreeSet<JobId>,
    refused: BTreeSet<JobId>,
    unknown: BTreeSet<JobId>,
    /// Which jobs ran, under which fence.
    runs: BTreeMap<JobId, Vec<String>>,
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
            now.0 >= acknowledged + 15 && now.1 >= ran + 15
        })
        .await;
    }
}

async fn open(address: &str) -> Engine {
    let recovery = Recovery { max_recoveries: MAX_ATTEMPTS, ..Recovery::default() };
    let engine = Engine::builder().recovery(recovery).open(address).await;
    engine.expect("the engine opens")
}

/// Enqueues one job after the other and keeps account of the answers.
async fn produce(engine: Engine, world: World, me: u64) {
    for number in 0.. {
        if world.stop.load(Ordering::SeqCst) {
            return;
        }
        let id = windlass::new_id();
        let mut is_unknown = false;
        loop {
            let job = engine.enqueue(work(me + number)).id(id).max_attempts(MAX_ATTEMPTS);
            match job.await {
                Ok(_) => {
                    world.account().acknowledged.insert(id);
                    break;
                }
                Err(Error::Unknown { .. }) => is_unknown = true,
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
        tokio::time::sleep(Duration::from_millis(5)).await;
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
            Ok(job.number)
        }
    };
    let worker = engine.worker().slots(1, 8).poll_interval(Duration::from_millis(250));
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
async fn hurt(server: &mut Postgres, world: &World, address: &str) {
    world.carries_on("the start").await;
    let mut process = Process::start(address);
    for _ in 0..6 {
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
    drop(process);
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
    assert!(record.condition.attempts <= MAX_ATTEMPTS, "L7: {record:?}");
}

/// Compares the account with the store.
async fn check(engine: &Engine, account: &Account) {
    let all = everything(engine).await;
    let kept: BTreeSet<JobId> = all.iter().map(JobRecord::id).collect();
    assert_eq!(kept.len(), all.len(), "a job is listed once");
    let lost: Vec<_> = account.acknowledged.difference(&kept).collect();
    assert!(lost.is_empty(), "L1: lost {lost:?} (seed {SEED})");
    let refused: Vec<_> = account.refused.intersection(&kept).collect();
    assert!(refused.is_empty(), "L2: refused and kept: {refused:?}");
    assert!(
        account.refused.iter().all(|job| !account.runs.contains_key(job)),
        "L2: refused and ran"
    );
    let strange = kept
        .iter()
        .find(|job| !account.acknowledged.contains(job) && !account.unknown.contains(job));
    assert_eq!(strange, None, "L3: nobody enqueued it");
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
    for event in engine.store().events(0, usize::MAX).await.expect("events are answered") {
        if let (What::JobCompleted { .. }, Subject::Job { id, .. }) = (&event.what, &event.subject)
        {
            *told.entry(*id).or_default() += 1;
        }
    }
    assert!(told.values().all(|times| *times == 1), "L8: completed twice by its events");
    assert_eq!(told.len(), all.len(), "L8: every end was told");
    println!(
        "{} acknowledged, {} refused, {} unknown, {} runs here",
        account.acknowledged.len(),
        account.refused.len(),
        account.unknown.len(),
        account.runs.values().map(Vec::len).sum::<usize>()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn under_load_a_server_that_is_hurt_loses_nothing_and_repeats_no_outcome() {
    let Some(mut server) = or_skip(Postgres::start()) else { return };
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
    hurt(&mut server, &world, &address).await;
    world.stop.store(true, Ordering::SeqCst);
    for producer in producers {
        soon("a producer", producer).await.expect("it ends well");
    }
    until("every job has ended", || async { open_jobs(&engines[0]).await == 0 }).await;
    for worker in workers {
        worker.stop().await.expect("the worker stops");
    }
    let account = std::mem::take(&mut *world.account());
    let some: Vec<JobId> = account.acknowledged.iter().copied().collect();
    assert_eq!(records(&engines[1], &some).await.len(), some.len());
    check(&engines[2], &account).await;
}
