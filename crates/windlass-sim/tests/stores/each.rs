//! A store of each kind, one clock, and what is asked of all of them.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio_postgres::{Client, NoTls};
use windlass::Sharing;
use windlass::clock::{BoxFuture, Clock};
use windlass::store::file::{FileOptions, LedgerOptions};
use windlass::store::postgres::PostgresStore;
use windlass::store::{
    AlterJobs, AlterQueue, DirectoryOptions, DirectoryStore, Durability, FileStore, JobAction,
    MemoryStore, ObjectFilter, QueueAction, Selection, Store, StoreExt,
};
use windlass::wake::LocalWake;
use windlass::wire::http::{HttpConnection, HttpDoor, HttpOptions};
use windlass::wire::{RemoteStore, Served};
use windlass_core::audit::Actor;
use windlass_core::event::{Event, EventKind, EventResult, RecoveryReason, Subject};
use windlass_core::filter::Filter;
use windlass_core::job::{JobId, LeaseToken, RequestId};
use windlass_core::ledger::{Claim, Recovery, RecoveryMode, Rescue};
use windlass_core::limits::Limits;
use windlass_core::object::Turn;
use windlass_core::outcome::Verdict;
use windlass_core::record::JobRecord;
use windlass_core::reserved::is_reserved;
use windlass_core::time::{Now, Steady, Timestamp};
use windlass_sim::Random;
use windlass_testbed::Postgres;

use crate::answers::{self, words};
use crate::commands;

/// How the stores differ, in words.
pub(crate) type Same = Result<(), String>;

const STORES: usize = 5;
const NAMES: [&str; STORES] = ["memory", "files", "postgresql", "joined", "http"];

/// A clock that only tests move.
#[derive(Debug, Default)]
struct Still(AtomicU64);

impl Still {
    fn wall(&self) -> Timestamp {
        self.now().wall
    }
}

impl Clock for Still {
    fn now(&self) -> Now {
        let elapsed = self.0.load(Ordering::SeqCst);
        let wall = 1_700_000_000_000_000 + elapsed.cast_signed();
        Now { wall: Timestamp::from_micros(wall), steady: Steady::from_micros(elapsed) }
    }

    fn sleep(&self, _: Duration) -> BoxFuture<'static, ()> {
        Box::pin(std::future::pending())
    }
}

/// A database whose schemas share a clock.
pub(crate) struct Server {
    url: String,
    client: Client,
    made: Mutex<u64>,
}

impl Server {
    /// Its sessions have this isolation level unless they say otherwise.
    pub(crate) async fn new(postgres: &Postgres, level: &str) -> Self {
        let database = postgres.create_database();
        let level = format!("set default_transaction_isolation = '{level}'");
        postgres.sql("postgres", &format!("alter database {database} {level}"));
        let url = postgres.url_for(&database);
        let (client, connection) = tokio_postgres::connect(&url, NoTls).await.expect("connects");
        tokio::spawn(connection);
        // What is compared is the rules, not the disk.
        let server = Self { url, client, made: Mutex::new(0) };
        server
            .run("create table public.clock (us bigint); insert into public.clock values (0)")
            .await;
        server
    }

    async fn run(&self, sql: &str) {
        self.client.batch_execute(sql).await.expect("the statement runs");
    }

    async fn store(&self, limits: Limits) -> (PostgresStore, String) {
        let number = {
            let mut made = self.made.lock().expect("nobody panics here");
            *made += 1;
            *made
        };
        let schema = format!("case{number}");
        let address = format!("{}?windlass_schema={schema}&windlass_pool=2", self.url);
        let address = address.parse().expect("an address");
        let store = PostgresStore::open(&address, limits, Arc::new(LocalWake::new())).await;
        self.run(&format!(
            "create or replace function {schema}.now_us() returns bigint language sql volatile as \
             $$ select us from public.clock $$"
        ))
        .await;
        (store.expect("it opens"), schema)
    }
}

/// Opens a directory, or joins whoever has opened it.
async fn share(path: &Path, options: &FileOptions, clock: &Arc<Still>) -> Arc<dyn Store> {
    let options = DirectoryOptions {
        file: options.clone(),
        sharing: Sharing::OwnOrJoin,
        clock: Some(clock.clone()),
        wake: Some(Arc::new(LocalWake::new())),
    };
    DirectoryStore::open(path, options).await.expect("it opens").store
}

/// A server on the loopback. Dropping it ends it.
struct HttpServer(tokio::task::JoinHandle<()>);

impl Drop for HttpServer {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The store as a program on another machine has it.
async fn over_http(store: Arc<dyn Store>) -> (Arc<dyn Store>, HttpServer) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port is free");
    let url = format!("http://{}", listener.local_addr().expect("it is bound"));
    let door = HttpDoor::to(Served { store, wake: Arc::new(LocalWake::new()) });
    let server = tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let door = door.clone();
            let answer = service_fn(move |request| {
                let door = door.clone();
                async move { Ok::<_, Infallible>(door.answer(request).await) }
            });
            tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), answer));
        }
    });
    let connection = HttpConnection::to(&url, &HttpOptions::default()).expect("an address");
    let store = RemoteStore::over(connection).await.expect("it is there");
    (Arc::new(store), HttpServer(server))
}

/// A lease that is or was held: the job, and its token in each store.
type Held = (JobId, [LeaseToken; STORES]);

pub(crate) struct EachStore<'a> {
    server: &'a Server,
    schema: String,
    directory: PathBuf,
    clock: Arc<Still>,
    stores: [Arc<dyn Store>; STORES],
    /// Those that answer behind the last two.
    behind: [Arc<dyn Store>; 2],
    _server: HttpServer,
    recovery: Recovery,
    held: Vec<Held>,
    /// Claims that can be repeated.
    requested: BTreeMap<RequestId, Claim>,
}

impl<'a> EachStore<'a> {
    pub(crate) async fn new(server: &'a Server, random: &mut Random) -> Self {
        let limits = Limits {
            dead_letters: if random.coin() { 3 } else { 1_000 },
            history_jobs: if random.coin() { 5 } else { 1_000 },
            audit_entries: 5,
            history_age: Duration::from_millis(if random.coin() { 3_000 } else { 1 << 40 }),
            ..Limits::default()
        };
        let recovery = Recovery {
            mode: RecoveryMode::Act,
            max_recoveries: random.between(0, 3) as u32,
            delay: Duration::from_millis(random.between(0, 500)),
        };
        let clock = Arc::new(Still::default());
        let wake = || Arc::new(LocalWake::new());
        let memory = MemoryStore::new(limits.clone(), clock.clone(), wake());
        let (postgres, schema) = server.store(limits.clone()).await;
        let directory = format!("windlass-stores-{}-{schema}", std::process::id());
        let directory = std::env::temp_dir().join(directory);
        let ledger = LedgerOptions { limits: limits.clone(), recovery, ..LedgerOptions::default() };
        let options = FileOptions { ledger, durability: Durability::Relaxed(Duration::MAX) };
        let files = directory.join("files");
        let files = FileStore::open(&files, &options, clock.clone(), wake()).expect("opens");
        let shared = directory.join("shared");
        let (owner, joined) =
            (share(&shared, &options, &clock).await, share(&shared, &options, &clock).await);
        let served: Arc<dyn Store> = Arc::new(MemoryStore::new(limits, clock.clone(), wake()));
        let (http, _server) = over_http(served.clone()).await;
        let stores: [Arc<dyn Store>; STORES] =
            [Arc::new(memory), Arc::new(files), Arc::new(postgres), joined, http];
        let behind = [owner, served];
        let (held, requested) = (Vec::new(), BTreeMap::new());
        let each = Self {
            server,
            schema,
            directory,
            clock,
            stores,
            behind,
            _server,
            recovery,
            held,
            requested,
        };
        each.set_clock().await;
        each
    }

    async fn set_clock(&self) {
        let us = self.clock.wall().as_micros();
        self.server.run(&format!("update public.clock set us = {us}")).await;
    }

    /// Lets go of everything.
    pub(crate) async fn end(self) {
        for store in self.stores.iter().chain(&self.behind) {
            store.close().await;
        }
        let drop = format!("set client_min_messages = error; drop schema {} cascade", self.schema);
        self.server.run(&drop).await;
        let _ = std::fs::remove_dir_all(&self.directory);
    }

    /// One random command to all of them.
    pub(crate) async fn step(&mut self, random: &mut Random) -> Same {
        let wall = self.clock.wall();
        match random.below(46) {
            0..=8 => {
                let jobs = commands::jobs(random, wall);
                let ask = async |store: &dyn Store| {
                    words(&answers::without_sequences(store.enqueue(jobs.clone()).await))
                };
                self.same("an enqueue", &jobs, ask).await?;
            }
            9..=15 => self.claim(random).await?,
            16..=18 => self.renew(random).await?,
            19..=25 => self.settle(random).await?,
            26 => {
                let rescue =
                    Rescue { recovery: self.recovery, reason: RecoveryReason::LeaseExpired };
                let ask = async |store: &dyn Store| {
                    words(&store.rescue(rescue).await.map(|rescued| (rescued.jobs, rescued.more)))
                };
                self.same("a rescue", &rescue, ask).await?;
            }
            27 => {
                let ask = async |store: &dyn Store| {
                    words(&store.promote().await.map(|promoted| promoted.purged))
                };
                self.same("a promote", &(), ask).await?;
            }
            28 => self.alter(commands::ids(random), JobAction::Cancel).await?,
            29 => {
                let (jobs, start) = (commands::ids(random), commands::start(random));
                self.alter(jobs, JobAction::Reschedule(start)).await?;
            }
            30 => self.alter(commands::ids(random), JobAction::Replay).await?,
            31 => {
                let (job, edited) = (commands::id(random), commands::job(random, wall));
                let ask = async |store: &dyn Store| {
                    let enqueued = store.replay_edited(job, edited.clone()).await;
                    words(&answers::without_sequences(enqueued.map(|one| vec![one])))
                };
                self.same("an edited replay", &(job, &edited), ask).await?;
            }
            32 if random.coin() => {
                self.alter(commands::ids(random), JobAction::RemoveGraph).await?;
            }
            32 => self.alter(commands::ids(random), JobAction::Remove).await?,
            33 => {
                let (queue, change) = (commands::queue(random), commands::change(random));
                let action = QueueAction::Set(change.clone());
                let alter =
                    AlterQueue { queue: queue.clone(), action, by: commands::actor(random) };
                let ask = async |store: &dyn Store| words(&store.alter_queue(alter.clone()).await);
                self.same("a setting", &(&queue, &change), ask).await?;
            }
            34 if random.coin() => {
                let queue = commands::queue(random);
                let (action, by) = (QueueAction::Clear, commands::actor(random));
                let alter = AlterQueue { queue: queue.clone(), action, by };
                let ask = async |store: &dyn Store| words(&store.alter_queue(alter.clone()).await);
                self.same("a clear", &queue, ask).await?;
            }
            35..=42 => {
                let turn = self.turn(random).await;
                let ask = async |store: &dyn Store| {
                    let turned = store.turn(turn.clone()).await;
                    words(&turned.map(|turned| {
                        (turned.version, answers::without_sequences(Ok(turned.jobs)).ok())
                    }))
                };
                self.same("a turn", &turn, ask).await?;
            }
            _ => {
                let by = random.spread(1_000, 5_000_000);
                self.clock.0.fetch_add(by, Ordering::SeqCst);
                self.set_clock().await;
            }
        }
        self.compare().await
    }

    /// Asks all of them the same and compares the answers.
    async fn same<C: std::fmt::Debug>(
        &self,
        what: &str,
        asked: &C,
        ask: impl AsyncFn(&dyn Store) -> String,
    ) -> Same {
        let mut answers = Vec::new();
        for store in &self.stores {
            answers.push(ask(&**store).await);
        }
        alike(what, asked, &answers)
    }

    async fn alter(&self, jobs: Vec<JobId>, alteration: JobAction) -> Same {
        let ask = async |store: &dyn Store| {
            let selection = Selection::Jobs(jobs.clone());
            let by = Some(Actor::new("bob").expect("a name"));
            words(&store.alter(AlterJobs { selection, action: alteration.clone(), by }).await)
        };
        self.same("an alteration", &(&jobs, &alteration), ask).await
    }

    async fn claim(&mut self, random: &mut Random) -> Same {
        let mut claim = commands::claim(random);
        if random.chance(400) {
            // Few, so that claims are repeated, and then just as they were.
            let request = RequestId(random.below(4).into());
            claim.request = Some(request);
            claim = self.requested.entry(request).or_insert(claim).clone();
        }
        let mut handed = Vec::new();
        for store in &self.stores {
            handed.push(store.claim(claim.clone()).await.map_err(|error| error.to_string())?);
        }
        let seen: Vec<String> = handed
            .iter()
            .map(|handed| {
                let jobs = handed.jobs.iter().map(|handed| {
                    let mut lease = handed.lease.clone();
                    lease.token = LeaseToken(0);
                    (
                        handed.job.clone(),
                        lease,
                        handed.attempt,
                        handed.recoveries,
                        handed.created_at,
                        handed.first_started_at,
                        handed.steps.clone(),
                    )
                });
                format!("{:?} ready {}", jobs.collect::<Vec<_>>(), handed.ready)
            })
            .collect();
        alike("a claim", &claim, &seen)?;
        for (index, job) in handed[0].jobs.iter().enumerate() {
            let tokens = std::array::from_fn(|store| handed[store].jobs[index].lease.token);
            if !self.held.contains(&(job.job.id, tokens)) {
                self.held.push((job.job.id, tokens));
            }
        }
        Ok(())
    }

    /// Some leases, of now or of long ago.
    fn some_held(&self, random: &mut Random) -> Vec<Held> {
        let recent = self.held.len().saturating_sub(6);
        let pool = if random.chance(850) { &self.held[recent..] } else { &self.held[..] };
        let mut some: Vec<Held> = Vec::new();
        for _ in 0..random.below(4) {
            // Who settles or renews a job twice in one call is told in another order.
            let held = pool.get(random.index(pool.len())).copied();
            some.extend(held.filter(|(job, _)| some.iter().all(|(other, _)| other != job)));
        }
        some
    }

    async fn renew(&mut self, random: &mut Random) -> Same {
        let wall = self.clock.wall();
        let held = self.some_held(random);
        let renewals: Vec<_> = held
            .iter()
            .map(|(job, tokens)| commands::renewal(random, (*job, tokens[0]), wall))
            .collect();
        let mut answers = Vec::new();
        for (index, store) in self.stores.iter().enumerate() {
            let mut renewals = renewals.clone();
            for (renewal, (_, tokens)) in renewals.iter_mut().zip(&held) {
                renewal.token = tokens[index];
            }
            answers.push(words(&store.renew(renewals).await));
        }
        alike("a renewal", &renewals, &answers)
    }

    async fn settle(&mut self, random: &mut Random) -> Same {
        let wall = self.clock.wall();
        let held = self.some_held(random);
        let mut settlements: Vec<_> = held
            .iter()
            .map(|(job, tokens)| commands::settlement(random, (*job, tokens[0]), wall))
            .collect();
        for settlement in &mut settlements {
            if settlement.verdict == Verdict::Complete {
                // An error of a success is not kept in a database.
                settlement.error = None;
            }
            if random.chance(350) {
                settlement.turn = Some(Box::new(self.turn(random).await));
            }
        }
        let mut answers = Vec::new();
        for (index, store) in self.stores.iter().enumerate() {
            let mut settlements = settlements.clone();
            for (settlement, (_, tokens)) in settlements.iter_mut().zip(&held) {
                settlement.token = tokens[index];
            }
            answers.push(words(&store.settle(settlements).await));
        }
        alike("a settlement", &settlements, &answers)
    }

    /// A turn of one of the objects as it is now, mostly.
    async fn turn(&self, random: &mut Random) -> Turn {
        let object = commands::address(random);
        let found = self.stores[0].object(&object).await.expect("memory answers");
        let version = found.map_or(0, |object| object.record.meta.version);
        commands::turn(random, object, version, self.clock.wall())
    }

    /// Every job, every object and every counter are the same, and so is what was told of each job.
    async fn compare(&self) -> Same {
        // A refused call rolls back what time had done first: let it pass everywhere.
        for store in &self.stores {
            store.promote().await.map_err(|error| error.to_string())?;
        }
        let ids: Vec<JobId> = (1..=commands::IDS).map(commands::id_of).collect();
        let ask = async |store: &dyn Store| {
            let found = store.find(&ids).await;
            words(&found.map(|all| all.into_iter().map(answers::record).collect::<Vec<_>>()))
        };
        self.same("a record", &"find", ask).await?;
        let ask = async |store: &dyn Store| {
            let records = store.find(&ids).await.unwrap_or_default();
            let mut objects = store.list_objects(&ObjectFilter::default(), None, 100).await;
            // Numbers differ between stores; whom they say an object owns does not.
            let mut owned = Vec::new();
            for object in objects.iter_mut().flat_map(|page| &mut page.objects) {
                let (address, meta) = (&object.record.address, &mut object.record.meta);
                let bound = records.iter().flatten();
                let bound = bound.filter(|job| job.job.object.as_ref() == Some(address));
                let own = bound.filter(|job| meta.owns(job.sequence)).map(JobRecord::id);
                owned.push((address.clone(), own.collect::<Vec<_>>()));
                meta.incarnation = 0;
            }
            words(&objects.map(|page| (page, owned)))
        };
        self.same("an object", &"objects", ask).await?;
        let ask =
            async |store: &dyn Store| words(&store.audit(None, 100).await.map(|page| page.entries));
        self.same("the audit trail", &"audit", ask).await?;
        // Of one of them each time, to keep it short.
        let on = ids[self.clock.0.load(Ordering::SeqCst) as usize % ids.len()];
        let waiting = Filter { blocked_by: Some(on), ..Filter::default() };
        let ask = async |store: &dyn Store| {
            let waiting = store.count_matching(&waiting).await;
            format!("{} {}", words(&store.dependents(on).await), words(&waiting))
        };
        self.same("who waits", &on, ask).await?;
        let ask = async |store: &dyn Store| match store.count().await {
            Ok(counts) => answers::counts(&counts),
            Err(error) => error.to_string(),
        };
        self.same("the counters", &"count", ask).await?;
        // A database has the results of completed jobs as long as their records.
        let found = self.stores[0].find(&ids).await.map_err(|error| error.to_string())?;
        let kept: Vec<(JobId, Timestamp)> = found
            .iter()
            .flatten()
            .filter_map(|record| Some((record.id(), record.last_success_at()?)))
            .collect();
        let ask = async |store: &dyn Store| match store.events(0, usize::MAX, Duration::ZERO).await
        {
            Ok(events) => told(&events, &ids, &kept),
            Err(error) => error.to_string(),
        };
        self.same("what was told", &"events", ask).await
    }
}

fn alike<C: std::fmt::Debug>(what: &str, asked: &C, answers: &[String]) -> Same {
    for (name, answer) in NAMES.iter().zip(answers).skip(1) {
        if !answers::agree(answer, &answers[0]) {
            let (one, other) = answers::where_they_part(&answers[0], answer);
            return Err(format!(
                "{what} differs\n  {}: {one}\n  {name}: {other}\nasked: {asked:?}\n{}: {}",
                NAMES[0], NAMES[0], answers[0]
            ));
        }
    }
    Ok(())
}

/// What was told of each job, queue and object, each in order.
fn told(events: &[Arc<Event>], pool: &[JobId], kept: &[(JobId, Timestamp)]) -> String {
    let mut of_each: BTreeMap<String, Vec<String>> = BTreeMap::new();
    // A database knows the names of refused jobs, and so of queues that never had one.
    let nothing = |event: &&Arc<Event>| !matches!(event.what, EventKind::QueueCleared { jobs: 0 });
    for event in events.iter().filter(nothing) {
        let about = match &event.subject {
            Subject::Job { id, .. } if !pool.contains(id) => continue,
            Subject::Job { id, .. } => id.to_string(),
            Subject::Queue(queue) => format!("queue {queue}"),
            Subject::Worker(worker) => format!("worker {worker}"),
            // Its key has a number of the store in it.
            Subject::Object(object) if is_reserved(object.kind().as_str()) => {
                object.kind().to_string()
            }
            Subject::Object(object) => object.to_string(),
        };
        let mut what = event.what.clone();
        if let EventKind::JobCompleted { result, .. } = &mut what
            && !event.job().is_some_and(|job| kept.contains(&(job, event.at)))
        {
            *result = EventResult::Gone;
        }
        of_each.entry(about).or_default().push(format!("{} {what:?}", event.at));
    }
    format!("{of_each:#?}")
}
