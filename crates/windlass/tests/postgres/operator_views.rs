//! What an operator sees with psql, and what a role that may only look can do.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio_postgres::{Client, NoTls};
use windlass::store::postgres::{PostgresAddress, grant_read_sql};
use windlass::{Engine, Failure, Job, Schedule};

use crate::common::Ground;

#[derive(Serialize, Deserialize)]
struct Letter {
    to: String,
}

impl Job for Letter {
    const KIND: &'static str = "mail.letter";
    type Output = String;
}

fn letter(to: &str) -> Letter {
    Letter { to: to.to_string() }
}

async fn send(letter: Letter) -> Result<String, Failure> {
    match letter.to.as_str() {
        "nobody" => Err(Failure::permanent("no such address")),
        to => Ok(format!("{to} has it")),
    }
}

/// A store, and someone who may only look at it.
struct Scene {
    ground: Ground,
    engine: Engine,
    reader: Client,
}

impl Scene {
    async fn new() -> Option<Self> {
        let ground = Ground::new()?;
        let address = ground.text_address();
        let engine = Engine::open(&address).await.expect("it opens");
        let role = format!("reader_{}", ground.database);
        ground.sql(&format!("create role {role} login"));
        let there: PostgresAddress = address.parse().expect("it is well formed");
        ground.sql(&grant_read_sql(&there.schema, &role));
        let (port, database) = (ground.server.port(), &ground.database);
        let url = format!("postgres://{role}@127.0.0.1:{port}/{database}");
        let (reader, connection) = tokio_postgres::connect(&url, NoTls).await.expect("it may");
        tokio::spawn(connection);
        Some(Self { ground, engine, reader })
    }

    /// The rows of a query as text, made by the one who may only look.
    async fn seen(&self, sql: &str) -> Vec<String> {
        let rows = self.reader.query(sql, &[]).await;
        let rows = rows.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
        rows.iter().map(|row| row.get(0)).collect()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_queues_and_dead_letters_are_seen_in_words() {
    let Some(scene) = Scene::new().await else { return };
    let engine = &scene.engine;
    let worker = engine.worker().queue("mail").handle(send).start().await.expect("it starts");
    let done = engine.enqueue(letter("Ada")).queue("mail").await.expect("it is taken");
    done.outcome().await.expect("it is done");
    let dead = engine.enqueue(letter("nobody")).queue("mail").await.expect("it is taken");
    dead.outcome().await.expect_err("nobody is there");
    let hour = Duration::from_secs(3_600);
    let later = engine.enqueue(letter("Bob")).queue("later").delay(hour).unique("bob").tag("vip");
    later.await.expect("it is taken");
    engine.enqueue(letter("Eve")).queue("waits").await.expect("it is taken");

    let jobs = "select concat_ws(' ', queue, kind, state, reason, attempts, payload->>'to', \
         output, error, unique_key, tags) from s0.jobs order by sequence";
    let seen = scene.seen(jobs).await;
    assert_eq!(
        seen,
        [
            "mail mail.letter completed 1 Ada \"Ada has it\"",
            "mail mail.letter dead permanent failure 1 nobody no such address",
            "later mail.letter scheduled 0 Bob bob [\"vip\"]",
            "waits mail.letter ready 0 Eve",
        ]
    );
    let times = "select concat_ws(' ', state, due_at > now() + '50 minutes', \
         finished_at between created_at and now() + '1 minute', worker is null) \
         from s0.jobs order by sequence";
    let seen = scene.seen(times).await;
    assert_eq!(seen, ["completed t t", "dead t t", "scheduled t t", "ready f t"]);
    let dead = "select concat_ws(' ', queue, kind, reason, error, attempts, payload->>'to', \
         died_at > created_at) from s0.dead_letters";
    let seen = scene.seen(dead).await;
    assert_eq!(seen, ["mail mail.letter permanent failure no such address 1 nobody t"]);
    let queues = "select concat_ws(' ', queue, paused, scheduled, ready, running, completed, \
         dead, enqueued_so_far) from s0.queues \
         where queue in ('mail', 'later', 'waits') order by 1";
    let seen = scene.seen(queues).await;
    assert_eq!(seen, ["later f 1 0 0 0 0 1", "mail f 0 0 0 1 1 2", "waits f 0 1 0 0 0 1"]);
    let workers = "select concat_ws(' ', worker like 'worker-%', alive, stopping, slots, \
         pid is not null) from s0.workers";
    assert_eq!(scene.seen(workers).await, ["t t f 10 t"]);
    worker.stop().await.expect("it stops");
    engine.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn schedules_are_seen_with_their_next_time() {
    let Some(scene) = Scene::new().await else { return };
    let nightly = Schedule::cron("0 3 * * *").expect("it is a schedule");
    let schedules = scene.engine.schedules();
    schedules.set("nightly", nightly, letter("Ada")).queue("mail").await.expect("it is set");
    schedules.pause("nightly").await.expect("it is there");
    let every = Schedule::every(Duration::from_secs(3_600)).expect("it is a schedule");
    schedules.set("hourly", every, letter("Bob")).queue("mail").await.expect("it is set");
    let sql = "select concat_ws(' ', schedule, status, kind, queue, next_at > now(), \
         next_at < now() + '61 minutes') from s0.schedules order by schedule";
    let seen = scene.seen(sql).await;
    assert_eq!(seen, ["hourly active mail.letter mail t t", "nightly paused mail.letter mail"]);
    scene.engine.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_json_and_what_lasts_for_ever_can_be_seen_too() {
    let Some(scene) = Scene::new().await else { return };
    let sql = "select concat_ws(' ', s0._json('\\xff00') is null, s0._json('nothing') is null, \
         s0._json('{\"n\": 9007199254740993}'), s0._timestamp(9223372036854775807), \
         s0._timestamp(0) = 'epoch', s0._timestamp(null) is null)";
    let seen = scene.seen(sql).await;
    assert_eq!(seen, ["t t {\"n\": 9007199254740993} infinity t t"]);
    scene.engine.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_that_may_only_look_can_do_nothing_else() {
    let Some(scene) = Scene::new().await else { return };
    for sql in [
        "select * from s0.job",
        "select * from s0.job_state",
        "delete from s0.dead_letters",
        "update s0.queues set paused = true",
        "insert into s0.workers (worker) values ('me')",
        "select s0.enqueue('mine')",
        "select * from s0.clear('mail', 0, null, 0)",
        "select nextval('s0.token')",
    ] {
        let error = scene.reader.batch_execute(sql).await.expect_err(sql);
        let code = error.code().map(|code| code.code().to_string());
        // A view that joins cannot be written to at all, whoever tries.
        let refused = matches!(code.as_deref(), Some("42501" | "55000"));
        assert!(refused, "{sql}: {error:?}");
    }
    // The owner looks through the same views.
    assert_eq!(scene.ground.sql("select count(*) from s0.jobs"), "0");
    scene.engine.close().await;
}
