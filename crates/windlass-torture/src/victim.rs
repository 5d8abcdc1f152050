//! The victim: an engine on a directory, with producers and a worker, that says what it does.
//!
//! It is made to be killed, stopped, starved of space and lied to by its disk, so it keeps nothing
//! of its own: everything it knows is in the store or was said.

mod shared;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use anyhow::Context;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use windlass::clock::SystemClock;
use windlass::store::file::{FileOptions, LedgerOptions};
use windlass::store::{AlterJobs, FileStore, JobAction, Selection};
use windlass::wake::LocalWake;
use windlass::{
    Acceptance, Attempt, Durability, Engine, Error, EventKind, Failure, Job, JobActionDone, JobId,
    Limits, Opened, Received, Recovery, Refusal, State, StateName, Topics, Worker,
};

use crate::facts::{Fact, Role, Speaker, Why};
use crate::look;
use crate::plan::{Behaviour, End, Id, KIND, Mix, Plan};
use crate::random::Random;

/// How a victim works.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct WorkOptions {
    /// The directory of the store.
    pub(crate) path: PathBuf,
    /// When the store may answer: `sync`, or `relaxed:MS`.
    #[arg(long, default_value = "sync", value_parser = durability)]
    pub(crate) durability: Durability,
    /// The size of every segment of the journal; grows with the store if it is not given.
    #[arg(long)]
    pub(crate) segment_bytes: Option<u32>,
    /// How much an opening may have to read before a checkpoint is written.
    #[arg(long)]
    pub(crate) checkpoint_bytes: Option<u64>,
    /// The number in the ids of the jobs it makes; no two victims of a store have the same.
    #[arg(long, default_value_t = 1)]
    pub(crate) session: u32,
    /// What its producers make, each one of these in turn.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "mixed")]
    pub(crate) mixes: Vec<Mix>,
    /// How many producers enqueue at once; with 0 it finishes what is open, and ends.
    #[arg(long, default_value_t = 3)]
    pub(crate) producers: u16,
    /// Jobs each producer makes before it rests.
    #[arg(long, default_value_t = u32::MAX)]
    pub(crate) jobs: u32,
    /// How many jobs may be open before producers wait.
    #[arg(long, default_value_t = 400)]
    pub(crate) backlog: i64,
    /// How many jobs run at once.
    #[arg(long, default_value_t = 8)]
    pub(crate) slots: u32,
    /// How long a lease lasts without a sign of life.
    #[arg(long, default_value_t = 30_000)]
    pub(crate) lease_ms: u64,
    /// Calls whose answer an earlier victim never heard: one per line, to be repeated first.
    #[arg(long)]
    pub(crate) again: Option<PathBuf>,
    /// List every job before working.
    #[arg(long)]
    pub(crate) list: bool,
    /// Let poisonous handlers end the process.
    #[arg(long)]
    pub(crate) poison: bool,
    /// Stop after so long, gracefully, and close the store.
    #[arg(long)]
    pub(crate) stop_after_ms: Option<u64>,
    /// Delete finished jobs, so that the journal has something to clear.
    #[arg(long)]
    pub(crate) remove: bool,
    /// Own the directory or join whoever does, as users' programs do.
    #[arg(long)]
    pub(crate) shared: bool,
}

fn durability(text: &str) -> Result<Durability, String> {
    match text.split_once(':') {
        None if text == "sync" => Ok(Durability::Sync),
        Some(("relaxed", millis)) => match millis.parse() {
            Ok(millis) => Ok(Durability::Relaxed(Duration::from_millis(millis))),
            Err(_) => Err(format!("`{millis}` is no number of milliseconds")),
        },
        None | Some(_) => Err("it is `sync` or `relaxed:MS`".to_string()),
    }
}

/// How often a job is recovered before it is dead.
pub(crate) fn recovery() -> Recovery {
    Recovery { delay: Duration::from_millis(20), ..Recovery::default() }
}

/// Nothing is forgotten by itself: whatever is missing was lost.
pub(crate) fn limits() -> Limits {
    Limits {
        dead_letters: usize::MAX,
        history_age: Duration::from_secs(200 * 366 * 86_400),
        history_jobs: usize::MAX,
        audit_entries: usize::MAX,
        ..Limits::default()
    }
}

/// Works until it is killed or, without producers, until nothing is open.
#[tokio::main(worker_threads = 2)]
pub(crate) async fn work(options: WorkOptions) -> anyhow::Result<()> {
    let speaker = Arc::new(Speaker::new()?);
    speaker.say(Fact::Opening);
    let opened = match options.shared {
        true => shared::open(&options).await,
        false => open(&options),
    };
    let engine = match opened {
        Ok(engine) => engine,
        Err(error) => {
            speaker.say(Fact::Failed(format!("{error:#}")));
            std::process::exit(2);
        }
    };
    if options.shared {
        let role = shared::role(&engine);
        speaker.say(Fact::Role(role));
        tokio::spawn(shared::watch_role(engine.clone(), speaker.clone(), role));
    }
    say_opened(engine.opened(), &speaker);
    if options.list {
        look::list(&engine, &speaker).await?;
    }
    let victim = Victim { engine, speaker, options, open: Arc::default() };
    Arc::new(victim).live().await
}

fn file_options(options: &WorkOptions) -> FileOptions {
    let ledger = LedgerOptions {
        limits: limits(),
        recovery: recovery(),
        segment_bytes: options.segment_bytes,
        checkpoint_bytes: options.checkpoint_bytes,
        ..LedgerOptions::default()
    };
    FileOptions { ledger, durability: options.durability }
}

fn open(options: &WorkOptions) -> anyhow::Result<Engine> {
    let (clock, wake) = (Arc::new(SystemClock::new()), Arc::new(LocalWake::new()));
    let how = file_options(options);
    let store = FileStore::open(&options.path, &how, clock.clone(), wake.clone())?;
    let builder = Engine::builder().recovery(recovery());
    Ok(builder.on_store(Arc::new(store), wake, clock)?)
}

fn say_opened(opened: Option<&Opened>, speaker: &Speaker) {
    let opened = opened.cloned().unwrap_or_default();
    speaker.say(Fact::Opened {
        jobs: opened.jobs,
        recovered: opened.recovered.len() as u64,
        torn: opened.torn.is_some(),
        micros: opened.took.as_micros() as u64,
    });
}

struct Victim {
    engine: Engine,
    speaker: Arc<Speaker>,
    options: WorkOptions,
    /// Jobs that were accepted and have not ended, as far as this victim knows.
    open: Arc<AtomicI64>,
}

impl Victim {
    async fn live(self: Arc<Self>) -> anyhow::Result<()> {
        let (ended, to_remove) = mpsc::unbounded_channel();
        let topics = ["job.completed", "job.dead", "job.cancelled"]
            .iter()
            .fold(Topics::all(), |topics, topic| topics.topic(*topic));
        // From the first event on: what opening told is part of the story. Whoever joins has others
        // to tell what was before.
        let joined = self.options.shared && shared::role(&self.engine) != Role::Owner;
        let mut events = self.engine.subscribe_after(topics, (!joined).then_some(0))?;
        let hearing = self.clone();
        tokio::spawn(async move {
            loop {
                hearing.hear(events.next().await, &ended);
            }
        });
        if self.options.shared {
            tokio::spawn(shared::count_open(self.engine.clone(), self.open.clone()));
        }
        let worker = self.start_worker().await?;
        self.repeat().await?;
        if self.options.remove {
            // Not before: what is repeated after it was deleted would start over.
            tokio::spawn(self.clone().remove(to_remove));
        }
        let producers: Vec<_> = (0..self.options.producers)
            .map(|producer| tokio::spawn(self.clone().produce(producer)))
            .collect();
        if producers.is_empty() {
            return self.drain(&worker).await;
        }
        if let Some(millis) = self.options.stop_after_ms {
            tokio::time::sleep(Duration::from_millis(millis)).await;
            self.engine.close().await;
            return Ok(());
        }
        for producer in producers {
            producer.await??;
        }
        std::future::pending().await
    }

    fn hear(&self, heard: Received, ended: &mpsc::UnboundedSender<Id>) {
        // Events of before this life that are no longer kept.
        let Received::Event(event) = heard else { return };
        let Some(id) = event.job().and_then(Id::of) else { return };
        let end = match &event.what {
            EventKind::JobCompleted { .. } => End::Completed,
            EventKind::JobDead { reason, .. } => End::Dead(*reason),
            _ => End::Cancelled,
        };
        self.speaker.say(Fact::End(id, end));
        self.open.fetch_sub(1, Ordering::Relaxed);
        // Of many who hear it, one deletes it: whoever made it, and knows that it was answered.
        if !self.options.shared || id.session == self.options.session {
            let _ = ended.send(id);
        }
    }

    async fn start_worker(&self) -> anyhow::Result<Worker> {
        let lease = Duration::from_millis(self.options.lease_ms);
        let poison = self.options.poison;
        let handle = move |work: Work, attempt: Attempt, speaker: State<Arc<Speaker>>| {
            run(work, attempt, speaker, poison)
        };
        let worker = self.engine.worker().slots(self.options.slots).state(self.speaker.clone());
        let worker = worker.handle_with(handle, |kind| kind.lease(lease));
        Ok(worker.poll_interval(Duration::from_millis(500)).start().await?)
    }

    /// Repeats, with the same ids, the calls whose answer nobody heard.
    async fn repeat(&self) -> anyhow::Result<()> {
        let Some(file) = &self.options.again else { return Ok(()) };
        for line in std::fs::read_to_string(file)?.lines() {
            let ids: Result<Vec<Id>, String> = line.split_whitespace().map(str::parse).collect();
            self.enqueue(ids.map_err(anyhow::Error::msg)?).await?;
        }
        Ok(())
    }

    async fn produce(self: Arc<Self>, producer: u16) -> anyhow::Result<()> {
        let (session, mixes) = (self.options.session, &self.options.mixes);
        let mix = mixes[usize::from(producer) % mixes.len()];
        let first = Id { session, producer, mix, number: 0 };
        let mut random =
            Random::new(crate::random::mix(u128::from_be_bytes(first.job().to_bytes())));
        let mut next = 0;
        let mut last = Vec::new();
        while next < self.options.jobs {
            while self.open.load(Ordering::Relaxed) > self.options.backlog {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            // A call that was answered is repeated now and then: it must change nothing. Unless
            // the job may have been deleted since: then it would start over.
            let may_be_gone = self.options.remove && last.iter().any(|id| Plan::of(*id).removable);
            if random.one_in(20) && !last.is_empty() && !may_be_gone {
                self.enqueue(std::mem::take(&mut last)).await?;
                continue;
            }
            let size = match random.below(10) {
                0 => random.between(20, 120),
                1..3 => random.between(2, 10),
                _ => 1,
            };
            let size = (size as u32).min(self.options.jobs - next);
            last = (next..next + size).map(|number| Id { number, ..first }).collect();
            next += size;
            if !self.enqueue(last.clone()).await? {
                last.clear();
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
        Ok(())
    }

    /// Enqueues in one call and says what came of it; whether it was acknowledged.
    async fn enqueue(&self, ids: Vec<Id>) -> anyhow::Result<bool> {
        let alone = ids.len() == 1;
        let jobs = ids.iter().map(|id| Plan::of(*id).new_job(alone)).collect::<Result<_, _>>()?;
        self.speaker.say(Fact::Try(ids.clone()));
        let enqueued = match self.engine.enqueue_raw(jobs).await {
            Ok(enqueued) => enqueued,
            Err(error) => {
                self.speaker.say(refused(error, ids));
                return Ok(false);
            }
        };
        match (&ids[..], &enqueued[..]) {
            ([id], [one]) if matches!(one.acceptance, Acceptance::Deduplicated { .. }) => {
                let holder = Id::of(one.id).context("a stranger holds the key")?;
                self.speaker.say(Fact::Same(*id, holder));
            }
            _ => {
                let is_new = |one: &&windlass::Enqueued| one.acceptance == Acceptance::Accepted;
                let added = enqueued.iter().filter(is_new).count() as i64;
                self.open.fetch_add(added, Ordering::Relaxed);
                self.speaker.say(Fact::Ack(ids));
            }
        }
        Ok(true)
    }

    /// Deletes what has ended and may be deleted.
    async fn remove(self: Arc<Self>, mut ended: mpsc::UnboundedReceiver<Id>) {
        loop {
            let mut ids = Vec::new();
            ended.recv_many(&mut ids, 200).await;
            ids.retain(|id| Plan::of(*id).removable);
            if ids.is_empty() {
                continue;
            }
            self.speaker.say(Fact::Drop(ids.clone()));
            let jobs: Vec<JobId> = ids.iter().map(|id| id.job()).collect();
            let jobs = Selection::Jobs(jobs);
            if let Ok(altered) =
                self.engine.store().alter(AlterJobs::new(jobs, JobAction::Remove)).await
            {
                let gone =
                    altered.iter().filter(|one| matches!(one.result, Ok(JobActionDone::Removed)));
                self.speaker.say(Fact::Gone(gone.filter_map(|one| Id::of(one.job)).collect()));
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Finishes what is open, and ends.
    async fn drain(&self, worker: &Worker) -> anyhow::Result<()> {
        let mut patience = 1_500;
        loop {
            let counts = self.engine.counts().await?;
            let open = StateName::ALL.into_iter().filter(|state| !state.is_terminal());
            let open: u64 = open.map(|state| counts.in_state(state)).sum();
            if open == 0 {
                break;
            }
            patience -= 1;
            if patience == 0 {
                self.speaker.say(Fact::Wrong(format!("{open} jobs do not end")));
                self.explain().await?;
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        worker.stop().await?;
        self.engine.close().await;
        self.speaker.say(Fact::Drained);
        Ok(())
    }

    /// Says why the first few open jobs are not running.
    async fn explain(&self) -> anyhow::Result<()> {
        for state in StateName::ALL.into_iter().filter(|state| !state.is_terminal()) {
            for record in self.engine.jobs().state(state).page(None, 3).await?.jobs {
                let why = self.engine.store().explain(record.id()).await?;
                let id = Id::of(record.id()).map(|id| id.to_string()).unwrap_or_default();
                self.speaker.say(Fact::Wrong(format!("{id} is {state}: {why:?}")));
            }
        }
        Ok(())
    }
}

fn refused(error: Error, ids: Vec<Id>) -> Fact {
    match error {
        Error::Unknown { .. } => Fact::Unknown(ids),
        Error::Refused(Refusal::StoreFull { .. }) => Fact::Refused(Why::Full, ids),
        Error::Refused(Refusal::StoreBroken { .. }) => Fact::Refused(Why::Broken, ids),
        Error::Refused(Refusal::UnknownDependency { .. } | Refusal::DependencyFailed { .. }) => {
            Fact::Refused(Why::Dependency, ids)
        }
        _ => Fact::Refused(Why::Other, ids),
    }
}

/// The one kind of job.
#[derive(Serialize, Deserialize)]
#[serde(transparent)]
struct Work(String);

impl Job for Work {
    const KIND: &'static str = KIND;
    type Output = ();
}

/// A handler that runs, until it returns or is dropped.
struct Running {
    id: Id,
    token: u64,
    speaker: State<Arc<Speaker>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.speaker.say(Fact::Left { id: self.id, token: self.token });
    }
}

/// Runs one attempt as its plan says.
async fn run(
    work: Work,
    attempt: Attempt,
    speaker: State<Arc<Speaker>>,
    poison: bool,
) -> Result<(), Failure> {
    let Some(id) = Id::of(attempt.id()) else {
        speaker.say(Fact::Wrong(format!("a stranger runs: {attempt:?}")));
        return Ok(());
    };
    let fence = attempt.fence();
    let token = fence.rsplit('-').next().and_then(|token| token.parse().ok());
    let token = token.unwrap_or(0);
    speaker.say(Fact::Run { id, attempt: attempt.number(), token });
    let _running = Running { id, token, speaker: speaker.clone() };
    let plan = Plan::of(id);
    if work.0 != plan.text() {
        speaker.say(Fact::Wrong(format!("{id} has another payload: {:.80}", work.0)));
    }
    let age = attempt.started_at().since(attempt.enqueued_at());
    if plan.delay.is_some_and(|delay| age < delay) {
        speaker.say(Fact::Wrong(format!("{id} started {age:?} old, before its {:?}", plan.delay)));
    }
    match plan.behaviour {
        Behaviour::Complete(pause) => {
            if !pause.is_zero() {
                tokio::time::sleep(pause).await;
            }
            Ok(())
        }
        Behaviour::FailFirst(times) if attempt.number() <= times => {
            let delay = Duration::from_millis(5 * u64::from(attempt.number()));
            Err(Failure::retry_after(delay, "not yet"))
        }
        Behaviour::FailFirst(_) => Ok(()),
        Behaviour::FailAlways => Err(Failure::retry_after(Duration::from_millis(5), "never")),
        Behaviour::Permanent => Err(Failure::permanent("pointless")),
        Behaviour::Snooze(until) if age < until => Err(Failure::snooze(until - age)),
        Behaviour::Snooze(_) => Ok(()),
        Behaviour::Abort if poison => std::process::abort(),
        Behaviour::Abort => Err(Failure::permanent("poison that was not let out")),
    }
}
