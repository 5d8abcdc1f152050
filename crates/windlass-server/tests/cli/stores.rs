//! Stores to look at: jobs in every state, made with the library.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::runtime::Runtime;
use windlass::core::job::NewJob;
use windlass::core::ledger::{Claim, KindClaim};
use windlass::core::object::Turn;
use windlass::core::outcome::ErrorText;
use windlass::primitives::{Continuous, Debounce, Flush, PoolContext, PoolEvent, Tick, WorkerPool};
use windlass::{
    Attempt, Engine, Failure, Job, JobId, Name, ObjectAddress, ObjectStatus, Options, Schedule,
    new_id,
};

#[derive(Serialize, Deserialize)]
struct Letter {
    to: String,
}

impl Job for Letter {
    const KIND: &'static str = "mail.letter";
    type Output = String;

    fn options(&self) -> Options {
        Options::new().queue("mail").tag("customer-7").metadata("source", "a test")
    }
}

async fn send(letter: Letter, attempt: Attempt) -> Result<String, Failure> {
    attempt.log(format!("to {}", letter.to));
    attempt.progress(40, "in the bag");
    attempt.step("stamp", || async { Ok("blue".to_string()) }).await?;
    match letter.to.as_str() {
        "nobody" => Err(Failure::permanent("nobody lives there")),
        to => Ok(format!("{to} has it")),
    }
}

/// The jobs of a store, by the state they are in.
pub(crate) struct Jobs {
    pub(crate) completed: JobId,
    pub(crate) dead: JobId,
    pub(crate) scheduled: JobId,
    pub(crate) blocked: JobId,
    /// Of another kind and queue, with a payload that is no text.
    pub(crate) ready: JobId,
    /// Likewise, and claimed by a worker that is gone.
    pub(crate) running: JobId,
}

/// Makes a store with one job in each state but cancelled, and closes it.
pub(crate) fn fill(path: &str) -> Jobs {
    Runtime::new().expect("a runtime").block_on(fill_store(path)).expect("it can be filled")
}

async fn fill_store(path: &str) -> Result<Jobs, windlass::Error> {
    let engine = Engine::open(path).await?;
    let worker = engine.worker().name("postman").handle(send).start().await?;
    let letter = |to: &str| Letter { to: to.to_string() };
    let completed = engine.enqueue(letter("Ada")).await?;
    completed.outcome().await?;
    let dead = engine.enqueue(letter("nobody")).await?;
    dead.outcome().await.expect_err("it cannot be sent");
    worker.stop().await?;
    let later = Duration::from_secs(3_600);
    let scheduled = engine.enqueue(letter("Grace")).delay(later).await?.id();
    let blocked = engine.enqueue(letter("Edsger")).depends_on(scheduled).await?.id();
    let raw = |queue| -> Result<NewJob, windlass::Error> {
        Ok(NewJob::new(new_id(), Name::new("raw.bytes")?, Name::new(queue)?, [0xff, 0x00]))
    };
    let (ready, running) = (raw("left")?, raw("right")?);
    let (ready_id, running_id) = (ready.id, running.id);
    engine.enqueue_raw(vec![ready, running]).await?;
    let claim = Claim {
        worker: "gone".into(),
        queues: Some(vec![Name::new("right")?]),
        kinds: vec![KindClaim::new(Name::new("raw.bytes")?)],
        limit: 1,
        request: None,
    };
    engine.store().claim(claim).await?;
    engine.close().await;
    Ok(Jobs {
        completed: completed.id(),
        dead: dead.id(),
        scheduled,
        blocked,
        ready: ready_id,
        running: running_id,
    })
}

/// Jobs of a store with objects.
pub(crate) struct Bound {
    /// The alarm of `debounce/webhooks/acme/eu`.
    pub(crate) alarm: JobId,
    /// An event of a pool, with the key `ada`.
    pub(crate) keyed: JobId,
    /// Another, without a key.
    pub(crate) spread: JobId,
}

/// Makes a store with an object of each status, and events of a pool, and closes it:
/// `debounce/webhooks/acme/eu` is active, `continuous/poller/mailbox-7` is stopped, and
/// `saga/orders/7` has failed.
pub(crate) fn fill_with_objects(path: &str) -> Bound {
    Runtime::new().expect("a runtime").block_on(fill_objects(path)).expect("it can be filled")
}

async fn fill_objects(path: &str) -> Result<Bound, windlass::Error> {
    let engine = Engine::open(path).await?;
    let hour = Duration::from_secs(3_600);
    let deliver = |_: Flush<String>| async { Ok::<(), Failure>(()) };
    let webhooks = Debounce::new("webhooks", hour, deliver);
    engine.debounce(&webhooks).add_once("acme/eu", "event-1", "changed".to_string()).await?;
    let every = Schedule::every(hour).expect("an hour is an interval");
    let poll = |tick: Tick<u64>| async { Ok::<_, Failure>(tick) };
    let poller = Continuous::new("poller", every, poll).start_immediately(false);
    engine.continuous(&poller).start("mailbox-7", 40).await?;
    engine.continuous(&poller).stop("mailbox-7", "maintenance").await?;
    let saga = ObjectAddress::new(Name::new("saga")?, Name::new("orders")?, "7")?;
    let status = Some((ObjectStatus::Failed, Some(ErrorText::new("it went down three times"))));
    let state = Some([0xff, 0x00].into());
    engine.store().turn(Turn { status, state, ..Turn::new(saga, 0) }).await?;
    let ship = |_: String, _: PoolContext| async { Ok::<(), Failure>(()) };
    let orders = WorkerPool::new("orders", 4, ship);
    let pool = engine.pool(&orders);
    let keyed = pool.enqueue(PoolEvent::new("tea".to_string()).key("ada")).await?.id;
    let spread = pool.enqueue("post".to_string()).await?.id;
    let webhook = engine.objects(&webhooks).view("acme/eu").await?;
    let alarm = webhook.and_then(|object| object.record.meta.alarm).expect("it has an alarm");
    engine.close().await;
    Ok(Bound { alarm, keyed, spread })
}

/// Changes one byte in the middle of the first commits.
pub(crate) fn damage(path: &str) {
    let file = format!("{path}/journal-00000001");
    let mut bytes = std::fs::read(&file).expect("it has a segment");
    bytes[300] ^= 0x40;
    std::fs::write(&file, bytes).expect("it can be written");
}

/// Cuts off a commit as a crash would: behind the last whole one stands the head of another,
/// taken from a copy of the store that was opened once more.
pub(crate) fn tear(path: &str) {
    const HEAD: usize = 96;
    let copy = format!("{path}-copy");
    std::fs::create_dir(&copy).expect("a directory can be made");
    for (name, bytes) in files(path) {
        std::fs::write(format!("{copy}/{name}"), bytes).expect("it can be written");
    }
    let open = async { Engine::open(&copy).await.expect("it opens").close().await };
    Runtime::new().expect("a runtime").block_on(open);
    let journal = |path: &str| format!("{path}/journal-00000001");
    let read = |path: &str| std::fs::read(journal(path)).expect("it has a segment");
    let (mut bytes, longer) = (read(path), read(&copy));
    let differ = (0..bytes.len()).find(|at| bytes[*at] != longer[*at]);
    // Fragments stand at multiples of eight.
    let head = differ.expect("a commit was added") & !7;
    bytes[head..head + HEAD].copy_from_slice(&longer[head..head + HEAD]);
    std::fs::write(journal(path), bytes).expect("it can be written");
    std::fs::remove_dir_all(copy).expect("it can be removed");
}

/// Every file of a store but the lock and who is a member, to see whether anything was changed.
pub(crate) fn files(path: &str) -> Vec<(String, Vec<u8>)> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(path).expect("it is a directory") {
        let entry = entry.expect("it can be read");
        let name = entry.file_name().into_string().expect("names are text");
        if !["lock", "members"].contains(&name.as_str()) {
            files.push((name, std::fs::read(entry.path()).expect("it can be read")));
        }
    }
    files.sort();
    files
}
