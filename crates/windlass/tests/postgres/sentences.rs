//! Bad input and faults: each is told in one clear sentence, and none of them tells a password.

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tracing::field::{Field, Visit};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use windlass::store::postgres::{PostgresAddress, migrate_up, schema_version};
use windlass::{Engine, Failure, Job, Refusal};
use windlass_testbed::{Missing, Postgres, or_skip};

use crate::common::{Ground, open, soon, until};

#[derive(Serialize, Deserialize)]
struct Note {
    text: String,
}

impl Job for Note {
    const KIND: &'static str = "note.take";
    type Output = String;
}

fn note(text: &str) -> Note {
    Note { text: text.to_string() }
}

async fn take(note: Note) -> Result<String, Failure> {
    Ok(note.text)
}

/// What an engine says that cannot be opened. It must be one line, and no password.
#[track_caller]
fn one_sentence(error: &dyn std::error::Error) -> String {
    let said = error.to_string();
    assert!(!said.contains('\n') && said.len() < 400, "{said}");
    for told in [said.clone(), format!("{error:?}")] {
        assert!(!told.contains("secret"), "{told}");
    }
    assert!(error.source().is_none(), "what is told is told once: {error:?}");
    said
}

async fn refused(address: &str) -> String {
    let error = Engine::open(address).await.expect_err("it must not open");
    one_sentence(&error)
}

#[track_caller]
fn tells(said: &str, words: &[&str]) {
    for word in words {
        assert!(said.contains(word), "no `{word}` in: {said}");
    }
}

/// A server that asks the role `guarded` for a password, and nobody else.
fn guarded() -> Result<&'static Postgres, Missing> {
    static GUARDED: OnceLock<Result<Postgres, Missing>> = OnceLock::new();
    let start = || {
        let name = format!("windlass-hba-{}", std::process::id());
        let rules = std::env::temp_dir().join(name);
        let text = "local all all trust\n\
             host all guarded 127.0.0.1/32 scram-sha-256\n\
             host all all 127.0.0.1/32 trust\n";
        std::fs::write(&rules, text).expect("it can be written");
        let server = Postgres::with(&[&format!("hba_file='{}'", rules.display())])?;
        std::fs::remove_file(rules).expect("it is ours");
        server.sql("postgres", "create role guarded login password 'secret-word'");
        Ok(server)
    };
    GUARDED.get_or_init(start).as_ref().map_err(|missing| *missing)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_that_cannot_be_meant_is_refused_in_one_sentence() {
    let good = "postgres://me:secret@127.0.0.1/jobs";
    for (address, words) in [
        ("postgres://me:secret@host:port/jobs".to_string(), ["`port`", "postgres://user:password"]),
        (format!("{good}?sllmode=require"), ["unknown option `sllmode`", "postgres://user"]),
        (format!("{good}?windlass_scheme=x"), ["`windlass_scheme` is not known", "windlass_pool"]),
        (format!("{good}?windlass_pool=many"), ["windlass_pool is `many`", "1 to 1000"]),
        (format!("{good}?windlass_pool=0"), ["windlass_pool is `0`", "1 to 1000"]),
        (format!("{good}?windlass_listen=maybe"), ["windlass_listen is `maybe`", "`on` or `off`"]),
        (format!("{good}?windlass_schema=My-Jobs"), ["`My-Jobs` is no name for a schema", "a-z"]),
        (format!("{good}?windlass_schema=pg_jobs"), ["`pg_jobs` is no name for a schema", "a-z"]),
        ("postgres://me:se?secret@host/jobs".to_string(), ["cannot be read", "`%3F`"]),
        ("postgre://me:secret@host/jobs".to_string(), ["cannot open", "postgres://host/database"]),
    ] {
        tells(&refused(&address).await, &words);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_password_is_told_without_repeating_it() {
    let Some(server) = or_skip(guarded()) else { return };
    let at = |who: &str, database: &str| {
        format!("postgres://{who}@127.0.0.1:{}/{database}", server.port())
    };
    let said = refused(&at("guarded:secret-guess", "postgres")).await;
    tells(&said, &["does not let us in", "password authentication failed", "check user and"]);
    let said = refused(&at("guarded", "postgres")).await;
    tells(&said, &["asks for a password, and the address has none"]);
    let said = refused(&at("nobody", "postgres")).await;
    tells(&said, &["does not let us in", "role \"nobody\" does not exist"]);
    let said = refused(&at("postgres", "no_such_database")).await;
    tells(&said, &["database \"no_such_database\" does not exist", "create it"]);
    let database = server.create_database();
    server.sql("postgres", &format!("grant create on database {database} to guarded"));
    let right = at("guarded:secret-word", &database);
    let engine = Engine::open(&right).await.expect("the password is right");
    let address: PostgresAddress = right.parse().expect("it is well formed");
    for told in [format!("{engine:?}"), format!("{address:?}"), format!("{:?}", engine.store())] {
        assert!(!told.contains("secret"), "{told}");
    }
    engine.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_rights_are_named_with_what_to_do() {
    let Some(server) = or_skip(guarded()) else { return };
    let database = server.create_database();
    server.sql("postgres", "create role powerless login");
    let theirs = format!("postgres://powerless@127.0.0.1:{}/{database}", server.port());
    let said = refused(&theirs).await;
    tells(&said, &["lacks a right", "permission denied for database", "windlass migrate up"]);
    let owner: PostgresAddress = server.url_for(&database).parse().expect("it is well formed");
    migrate_up(&owner).await.expect("the owner may");
    let said = refused(&theirs).await;
    tells(&said, &["lacks a right", "permission denied for schema windlass"]);
    server.sql(&database, "grant usage on schema windlass to powerless");
    let said = refused(&theirs).await;
    tells(&said, &["lacks a right", "permission denied for table migration"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schema_of_another_build_is_refused_and_left_as_it_is() {
    let Some(ground) = Ground::new() else { return };
    let address = ground.text_address();
    let there: PostgresAddress = address.parse().expect("it is well formed");
    migrate_up(&there).await.expect("it can be made");
    // The same version with other statements, and one of before they were compared.
    for other in [
        "update s0.migration set fingerprint = 'another'",
        "alter table s0.migration drop column fingerprint",
    ] {
        ground.sql(other);
        for address in [address.clone(), format!("{address}&windlass_migrate=off")] {
            let said = refused(&address).await;
            tells(&said, &["schema `s0` was made by another build", "drop schema s0 cascade"]);
            tells(&said, &["`windlass_schema`"]);
        }
        let fault = migrate_up(&there).await.expect_err("it must not be changed");
        tells(&one_sentence(&fault), &["schema `s0` was made by another build"]);
        assert_eq!(ground.sql("select count(*) from s0.migration"), "1");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schema_of_another_version_is_refused_politely() {
    let Some(ground) = Ground::new() else { return };
    let address = ground.text_address();
    let said = refused(&format!("{address}&windlass_migrate=off")).await;
    tells(&said, &["schema `s0` is not there yet", "run `windlass migrate up`"]);
    let there: PostgresAddress = address.parse().expect("it is well formed");
    migrate_up(&there).await.expect("it can be made");
    let engine = Engine::open(&format!("{address}&windlass_migrate=off")).await;
    engine.expect("it is up to date").close().await;
    ground.sql("insert into s0.migration (version, title, fingerprint) values (999, 'later', '')");
    let said = refused(&address).await;
    tells(&said, &["schema `s0` has version 999", "update the program"]);
    let error = migrate_up(&there).await.expect_err("it is newer");
    tells(&one_sentence(&error), &["schema `s0` has version 999", "update the program"]);
    assert_eq!(schema_version(&there).await.expect("it can be read"), 999);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_takes_no_writes_is_told_from_one_that_does() {
    let Some(primary) = or_skip(Postgres::start()) else { return };
    let database = primary.create_database();
    let engine = Engine::open(&primary.url_for(&database)).await.expect("it is a primary");
    engine.close().await;
    let Some(standby) = or_skip(Postgres::standby_of(&primary)) else { return };
    let said = refused(&standby.url_for(&database)).await;
    tells(&said, &["the database is read-only", "connect to the primary"]);
    let empty = refused(&standby.url_for("postgres")).await;
    tells(&empty, &["the database is read-only", "connect to the primary"]);
    let set = format!("alter database {database} set default_transaction_read_only = on");
    primary.sql("postgres", &set);
    let said = refused(&primary.url_for(&database)).await;
    tells(&said, &["the database is read-only", "`default_transaction_read_only` is off"]);
}

/// How often a worker has said that a claim failed.
#[derive(Clone, Default)]
struct FailedClaims(Arc<AtomicUsize>);

impl<S: tracing::Subscriber> Layer<S> for FailedClaims {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        event.record(&mut self.clone());
    }
}

impl Visit for FailedClaims {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" && format!("{value:?}").starts_with("claiming will be") {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
}

// On one thread, where what the worker says is heard.
#[tokio::test(flavor = "current_thread")]
async fn a_server_that_is_gone_is_told_at_the_start_and_later_the_worker_carries_on_by_itself() {
    let Some(mut server) = or_skip(Postgres::start()) else { return };
    let failed = FailedClaims::default();
    let heard = tracing_subscriber::registry().with(failed.clone());
    let _heard = tracing::subscriber::set_default(heard);
    let address = server.url();
    let engine = Engine::open(&address).await.expect("it runs");
    let worker = engine.worker().handle(take).poll_interval(Duration::from_millis(20));
    let worker = worker.start().await.expect("it starts");
    let first = engine.enqueue(note("before")).await.expect("it is taken");
    assert_eq!(first.outcome().await.expect("it is done"), "before");
    server.stop();
    let said = refused(&address).await;
    tells(&said, &["cannot reach the database", "is it running, and is the address right?"]);
    let lost = loop {
        match engine.enqueue(note("lost")).await {
            // The connections it had are noticed to be gone one by one.
            Err(windlass::Error::Unknown { .. }) => {}
            Err(error) => break error,
            Ok(_) => panic!("there is no server"),
        }
    };
    assert!(matches!(lost, windlass::Error::Refused(Refusal::Unavailable { .. })), "{lost:?}");
    tells(&one_sentence(&lost), &["cannot reach the database", "is it running"]);
    until("the worker has noticed", || async {
        // Another test may have come by the place first and noted that nobody listens.
        tracing::callsite::rebuild_interest_cache();
        failed.0.load(Ordering::SeqCst) > 1
    })
    .await;
    server.start_again();
    let second = loop {
        match engine.enqueue(note("after")).await {
            Ok(handle) => break handle,
            Err(error) => drop(error),
        }
    };
    assert_eq!(soon("its outcome", second.outcome()).await.expect("the worker is back"), "after");
    worker.stop().await.expect("it stops");
    engine.close().await;
}

/// A file system of this size, gone when it is dropped; `None` where it cannot be had.
struct Small(PathBuf);

impl Small {
    fn new(size: &str) -> Option<Self> {
        let path = std::env::temp_dir().join(format!("windlass-small-{}", std::process::id()));
        std::fs::create_dir(&path).expect("it is new");
        let options = format!("size={size},mode=1777");
        let mut mount = Command::new("mount");
        let mounted = mount.args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(&path).output();
        if mounted.is_ok_and(|output| output.status.success()) {
            return Some(Self(path));
        }
        std::fs::remove_dir(&path).expect("it is ours");
        None
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
        let _ = std::fs::remove_dir(&self.0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_of_the_server_refuses_new_jobs_and_goes_on_when_there_is_room() {
    const NO_MOUNTS: Missing =
        Missing { what: "the right to mount", how_to_install: "run as root, outside a sandbox" };
    let Some(server) = or_skip(Postgres::start()) else { return };
    let Some(small) = or_skip(Small::new("24m").ok_or(NO_MOUNTS)) else { return };
    let tables = small.0.join("tables");
    let made = Command::new("install").args(["-d", "-o", "postgres"]).arg(&tables).status();
    assert!(made.expect("it runs").success());
    server.sql("postgres", &format!("create tablespace small location '{}'", tables.display()));
    server.sql("postgres", "create database crowded tablespace small");
    let engine = Engine::open(&server.url_for("crowded")).await.expect("there is room");
    let ballast = small.0.join("ballast");
    // Written until there is no room.
    let mut fill = Command::new("dd");
    fill.args(["if=/dev/zero", "bs=64k"]).arg(format!("of={}", ballast.display()));
    assert!(fill.output().is_ok_and(|output| !output.status.success()), "there is no end");
    let full = loop {
        // The pages that are there have some room.
        match engine.enqueue(note(&"x".repeat(100_000))).await {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert!(matches!(full, windlass::Error::Refused(Refusal::StoreFull { .. })), "{full:?}");
    tells(&one_sentence(&full), &["no room left", "No space left on device", "free some space"]);
    std::fs::remove_file(ballast).expect("it is ours");
    engine.enqueue(note("at last")).await.expect("there is room again");
    engine.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_that_is_exhausted_and_a_server_that_is_crowded_say_what_to_raise() {
    let settings = ["max_connections=9", "superuser_reserved_connections=3"];
    let Some(server) = or_skip(Postgres::with(&settings)) else { return };
    let database = server.create_database();
    server.sql("postgres", "create role many login");
    server.sql("postgres", &format!("alter database {database} owner to many"));
    let address = format!("postgres://many@127.0.0.1:{}/{database}", server.port());
    // Its wake, its store and its look at the clock have one connection each; a server counts those
    // that have just been closed for a moment longer.
    let engine = Engine::open(&format!("{address}?windlass_pool=1")).await.expect("there is room");
    let mut engines = vec![engine];
    let said = loop {
        match Engine::open(&address).await {
            Ok(engine) => engines.push(engine),
            Err(error) => break one_sentence(&error),
        }
    };
    tells(&said, &["lower `windlass_pool`, or raise `max_connections`"]);
    for engine in engines {
        engine.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_that_somebody_keeps_locked_are_told_and_nothing_waits_on_at_the_server() {
    let Some(ground) = Ground::new() else { return };
    let engine = open(&ground.text_address()).await;
    let id = engine.enqueue(note("hold me")).await.expect("it is taken").id();
    let url = ground.server.url_for(&ground.database);
    let (holder, connection) =
        tokio_postgres::connect(&url, tokio_postgres::NoTls).await.expect("it connects");
    tokio::spawn(connection);
    holder
        .batch_execute("begin; select from s0.job_state for update")
        .await
        .expect("it holds them");
    // Ten seconds are too long for a test.
    ground.sql("alter function s0.alter set lock_timeout = '100ms'");
    let refused = engine.cancel(id).await.expect_err("it is held");
    tells(&one_sentence(&refused), &["keeps rows of the schema locked", "pg_stat_activity"]);
    let waiting = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' \
         and datname = current_database()";
    assert_eq!(ground.sql(waiting), "0");
    holder.batch_execute("rollback").await.expect("it lets go");
    engine.cancel(id).await.expect("it is free");
}
