//! Enqueueing with one SELECT from any language, by a role that can do nothing else.

use std::time::Duration;
use windlass::store::StoreExt as _;

use serde::{Deserialize, Serialize};
use tokio_postgres::{AsyncMessage, Client, NoTls};
use windlass::core::filter::Filter;
use windlass::core::ledger::QueueChange;
use windlass::postgres::enqueue_in;
use windlass::primitives::{Debounce, Flush};
use windlass::store::postgres::{PostgresAddress, Schema, grant_enqueue_sql, grant_work_sql};
use windlass::{
    Engine, Failure, Job, JobId, Name, Start, StateName, Timestamp, Topics, UniqueScope,
};
use windlass_testbed::Postgres;

use crate::common::{Ground, Work, soon, until, work};

#[derive(Serialize, Deserialize)]
struct Letter {
    to: String,
}

impl Job for Letter {
    const KIND: &'static str = "mail.letter";
    type Output = String;
}

async fn send(letter: Letter) -> Result<String, Failure> {
    Ok(format!("{} has it", letter.to))
}

/// A store, and someone who may only enqueue.
struct Scene {
    ground: Ground,
    engine: Engine,
    producer: Client,
    /// What was notified on the channel of the schema.
    heard: tokio::sync::mpsc::UnboundedReceiver<String>,
    listener: Client,
}

async fn connected(
    url: &str,
) -> (Client, tokio_postgres::Connection<tokio_postgres::Socket, tokio_postgres::tls::NoTlsStream>)
{
    tokio_postgres::connect(url, NoTls).await.expect("it lets us in")
}

impl Scene {
    async fn new() -> Option<Self> {
        let ground = Ground::new()?;
        let address = ground.text_address();
        let engine = Engine::open(&address).await.expect("it opens");
        let role = format!("producer \"{}\"", ground.database);
        ground.sql(&format!("create role \"{}\" login", role.replace('"', "\"\"")));
        let there: PostgresAddress = address.parse().expect("it is well formed");
        ground.sql(&grant_enqueue_sql(&there.schema, &role));
        let mut config: tokio_postgres::Config =
            ground.server.url_for(&ground.database).parse().expect("it is well formed");
        config.user(&role);
        let (producer, connection) = config.connect(NoTls).await.expect("it lets us in");
        tokio::spawn(connection);
        let (listener, heard) = listen(&ground.server.url_for(&ground.database)).await;
        Some(Self { ground, engine, producer, heard, listener })
    }

    async fn jobs(&self) -> u64 {
        let jobs = self.ground.sql("select count(*) from s0.job");
        jobs.parse().expect("a number")
    }

    /// What was notified until now.
    async fn rings(&mut self) -> Vec<String> {
        self.listener.batch_execute("notify s0, 'now'").await.expect("it can be said");
        let mut rings = Vec::new();
        while let Some(ring) = self.heard.recv().await {
            if ring == "now" {
                break;
            }
            rings.push(ring);
        }
        rings
    }

    /// What the database answers to a call that must be refused, and its code.
    async fn refused(&self, sql: &str) -> (String, String) {
        let answer = self.producer.simple_query(sql).await;
        let error = answer.expect_err(sql);
        let error = error.as_db_error().expect("the server says why");
        (error.code().code().to_string(), error.message().to_string())
    }
}

async fn listen(url: &str) -> (Client, tokio::sync::mpsc::UnboundedReceiver<String>) {
    let (client, mut connection) = connected(url).await;
    let (say, heard) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(Ok(message)) =
            std::future::poll_fn(|context| connection.poll_message(context)).await
        {
            if let AsyncMessage::Notification(said) = message {
                let _ = say.send(said.payload().to_string());
            }
        }
    });
    client.batch_execute("listen s0").await.expect("it listens");
    (client, heard)
}

const ENQUEUE: &str = "select s0.enqueue('mail.letter', '{\"to\": \"Ada\"}')";

#[tokio::test(flavor = "multi_thread")]
async fn a_job_enqueued_in_sql_is_there_with_its_transaction_and_wakes_a_worker() {
    let Some(mut scene) = Scene::new().await else { return };
    let mut ended =
        scene.engine.subscribe(Topics::all().topic("job.completed")).expect("the topic is known");
    let worker = scene.engine.worker().handle(send).start().await.expect("it starts");
    scene.producer.batch_execute(&format!("begin; {ENQUEUE}")).await.expect("it may");
    assert_eq!((scene.jobs().await, scene.rings().await), (0, vec![]), "it is not there yet");
    scene.producer.batch_execute("commit").await.expect("it commits");
    assert_eq!(scene.rings().await, ["q:default"]);
    ended.next().await;
    let page = scene.engine.store().list(&Filter::default(), None, 10).await.expect("a page");
    assert_eq!(page.jobs.len(), 1);
    assert_eq!(page.jobs[0].state(), StateName::Completed);
    assert_eq!(page.jobs[0].output.as_deref(), Some(&b"\"Ada has it\""[..]));
    worker.stop().await.expect("it stops");
    scene.engine.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_rolled_back_leaves_no_job_event_or_wake() {
    let Some(mut scene) = Scene::new().await else { return };
    let events = "select count(*) from s0.event where topic like 'job.%'";
    let rolled_back = format!("begin; {ENQUEUE}; rollback");
    scene.producer.batch_execute(&rolled_back).await.expect("it may");
    assert_eq!((scene.jobs().await, scene.rings().await), (0, vec![]));
    assert_eq!(scene.ground.sql(events), "0");
    let partly = format!(
        "begin; {ENQUEUE}; savepoint part; \
         select s0.enqueue('mail.letter', '{{\"to\": \"nobody\"}}', queue => 'other'); \
         rollback to part; commit"
    );
    scene.producer.batch_execute(&partly).await.expect("it may");
    assert_eq!((scene.jobs().await, scene.rings().await), (1, vec!["q:default".to_string()]));
    assert_eq!(scene.ground.sql(events), "1");
    scene.engine.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_a_producer_can_say_in_sql_is_kept() {
    let Some(scene) = Scene::new().await else { return };
    let first: uuid::Uuid = uuid::Uuid::from_u128(7);
    let say = format!(
        "select s0.enqueue('mail.letter', '{{\"to\": \"Ada\"}}', queue => 'mail', id => '{first}', \
           priority => 5, delay => interval '1 hour', max_attempts => 3, unique_key => 'ada', \
           unique_scope => 'any', unique_for => interval '1 day', \
           expires_after => interval '2 days', tags => array['post', 'air'], \
           metadata => '{{\"source\": \"a till\"}}')"
    );
    // The second holds its key, and the third has its id.
    for said in
        [say.clone(), say.replace(&first.to_string(), &uuid::Uuid::new_v4().to_string()), say]
    {
        let row = scene.producer.simple_query(&said).await.expect("it is taken");
        let told = row.iter().find_map(|row| match row {
            tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0),
            _ => None,
        });
        assert_eq!(told, Some(first.to_string().as_str()));
    }
    let id: JobId = first.to_string().parse().expect("an id");
    let dependent = format!(
        "select s0.enqueue('mail.letter', run_at => '2100-01-01 00:00:00+00', \
           depends_on => array['{first}', '{first}']::uuid[])"
    );
    scene.producer.simple_query(&dependent).await.expect("it is taken");
    assert_eq!(scene.jobs().await, 2);
    let store = scene.engine.store();
    let found = store.find(&[id]).await.expect("it answers");
    let record = found[0].clone().expect("it is kept");
    assert_eq!(record.state(), StateName::Scheduled);
    assert_eq!((record.job.priority.0, record.job.max_attempts), (5, Some(3)));
    assert_eq!(record.job.start, Start::After(Duration::from_secs(3_600)));
    assert_eq!(record.job.expires_after, Some(Duration::from_secs(2 * 86_400)));
    let unique = record.job.unique.clone().expect("it has a key");
    assert_eq!((unique.key.as_str(), unique.window), ("ada", Some(Duration::from_secs(86_400))));
    assert_eq!(unique.scope, UniqueScope::Any);
    assert_eq!(record.job.tags.iter().map(Name::as_str).collect::<Vec<_>>(), ["post", "air"]);
    assert_eq!(record.job.metadata.get("source").map(String::as_str), Some("a till"));
    let dependents = store.dependents(id).await.expect("it answers");
    assert_eq!(dependents.len(), 1);
    let found = store.find(&dependents).await.expect("it answers");
    let record = found[0].clone().expect("it is kept");
    let start = Timestamp::from_millis(4_102_444_800_000);
    assert_eq!(record.job.start, Start::At(start));
    scene.engine.close().await;
}

/// All that a role which may only enqueue must not do.
const FORBIDDEN: &[&str] = &[
    "select * from s0.job",
    "select * from s0.job_state",
    "select * from s0.worker",
    "select * from s0.migration",
    "select * from s0.settings",
    "insert into s0.queue (name) values ('mine')",
    "update s0.settings set payload_bytes = 1",
    "delete from s0.job",
    "truncate s0.job",
    "drop function s0.enqueue",
    "create table s0.mine (a int)",
    "create or replace function s0.now_us() returns bigint language sql as 'select 0::bigint'",
    "select nextval('s0.token')",
    "select * from s0.claim('me', null, '{mail.letter}', '{30000000}', '{1}', '{null}', '{null}', \
       '{null}', '{null}', 10, null)",
    "select * from s0.settle(0, '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '', '{}', \
     '{}', '{}', '{}', '{}')",
    "select * from s0.renew('{}', '{}', '{}', '{}')",
    "select * from s0.rescue(false, 3, 0, 0, true)",
    "select * from s0.promote()",
    "select * from s0.alter(null, '{}', 0, null, 250, 0, 0, null)",
    "select * from s0.configure('default', 'pause', null)",
    "select * from s0.clear('default', 0, null, 0)",
    "select * from s0.turn('{}', null)",
    "select s0.heartbeat('me', 0, '{}', null, null, null, null, null)",
    "select s0.register('mine', 'mine')",
    "select s0.now_us()",
    "select s0.counts()",
    "select * from s0.events(0, 10)",
    "select s0._accept_batch('{}', null, null, 0)",
];

#[tokio::test(flavor = "multi_thread")]
async fn a_role_that_may_only_enqueue_can_do_nothing_else() {
    let Some(scene) = Scene::new().await else { return };
    scene.producer.simple_query(ENQUEUE).await.expect("that it may");
    for sql in FORBIDDEN {
        let (code, message) = scene.refused(sql).await;
        assert_eq!(code, "42501", "{sql}: {message}");
    }
    scene.engine.close().await;
}

/// Input that is refused, and a part of the sentence that says why.
const WRONG: &[(&str, &str)] = &[
    ("null", "kind is `<NULL>`; a name has 1 to 128 letters"),
    ("'no kind'", "kind is `no kind`; a name has 1 to 128 letters"),
    ("'a..b'", "kind is `a..b`"),
    ("'a', queue => ''", "queue is ``; a name has"),
    ("'a', null", "payload must not be null"),
    ("'a', to_jsonb(repeat('x', 200000))", "payload is 200002 bytes; at most 131072 are allowed"),
    ("'a', delay => '1 s', run_at => now()", "give `delay` or `run_at`, not both"),
    ("'a', delay => '200 years'", "more than 100 years away"),
    ("'a', run_at => now() + interval '200 years'", "more than 100 years away"),
    ("'a', expires_after => '200 years'", "more than 100 years away"),
    ("'a', unique_key => 'k', unique_for => '200 years'", "more than 100 years away"),
    ("'a', run_at => 'infinity'", "infinite"),
    ("'a', run_at => '-infinity'", "infinite"),
    ("'a', delay => '-1 s'", "a duration is negative or nothing"),
    ("'a', expires_after => '0 s'", "a duration is negative or nothing"),
    ("'a', unique_key => 'k', unique_for => '0 s'", "a duration is negative or nothing"),
    ("'a', max_attempts => 0", "max_attempts is 0; it must be at least 1"),
    ("'a', unique_key => 'k', unique_scope => 'all'", "unique_scope is `all`; it must be `open`"),
    ("'a', unique_key => 'k', unique_scope => null", "it must be `open` or `any`"),
    ("'a', unique_key => ''", "unique_key must have 1 to 512 bytes"),
    ("'a', unique_key => repeat('k', 513)", "unique_key must have 1 to 512 bytes"),
    ("'a', unique_key => E'a\\nb'", "no control characters"),
    ("'a', depends_on => array_fill(gen_random_uuid(), '{10001}')", "depend on at most 10000"),
    ("'a', depends_on => array[null]::uuid[]", "depends_on has a null in it"),
    ("'a', depends_on => array[gen_random_uuid()]", ", which is unknown"),
    (
        "'a', id => '{00000000-0000-0000-0000-000000000007}', depends_on => \
       '{00000000-0000-0000-0000-000000000007}'",
        "depends on itself",
    ),
    ("'a', tags => array_fill('t'::text, '{17}')", "at most 16 tags"),
    ("'a', tags => array['no tag']", "tag is `no tag`"),
    ("'a', metadata => '[]'", "metadata must be an object of at most 32 strings"),
    ("'a', metadata => '{\"a\": 1}'", "metadata must be an object of at most 32 strings"),
    ("'a', metadata => jsonb_build_object('a', repeat('x', 9000))", "8192 bytes"),
    ("'a', '7', id => '00000000-0000-0000-0000-000000000001'", "already taken by a different job"),
    ("'a', queue => 'full'", "full"),
];

#[tokio::test(flavor = "multi_thread")]
async fn each_input_that_sql_refuses_gets_a_clear_error() {
    let Some(scene) = Scene::new().await else { return };
    let taken = "select s0.enqueue('a', id => '00000000-0000-0000-0000-000000000001'), \
         s0.enqueue('a', queue => 'full')";
    scene.producer.simple_query(taken).await.expect("they are taken");
    let full = Name::new("full").expect("a name");
    let limit = QueueChange::MaxDepth(Some(1));
    scene.engine.store().configure(full, limit).await.expect("it is set");
    for (arguments, words) in WRONG {
        let (code, message) = scene.refused(&format!("select s0.enqueue({arguments})")).await;
        assert_eq!(code, "WL001", "{arguments}: {message}");
        assert!(message.contains(words), "{arguments}: {message}");
    }
    assert_eq!(scene.jobs().await, 2, "nothing of them is stored");
    scene.engine.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_that_may_work_needs_not_own_the_schema() {
    let Some(ground) = Ground::new() else { return };
    let address = ground.text_address();
    let owner = Engine::open(&address).await.expect("the owner makes the schema");
    let role = format!("worker_{}", ground.database);
    ground.sql(&format!("create role {role} login"));
    let there: PostgresAddress = address.parse().expect("it is well formed");
    ground.sql(&grant_work_sql(&there.schema, &role));
    let theirs = address.replace("postgres@", &format!("{role}@"));
    let engine = Engine::open(&format!("{theirs}&windlass_migrate=off")).await;
    let engine = engine.expect("it may");
    let worker = engine.worker().handle(send).start().await.expect("it starts");
    let sent = owner.enqueue(Letter { to: "Ada".to_string() }).await.expect("it is taken");
    assert_eq!(sent.outcome().await.expect("it is done"), "Ada has it");
    worker.stop().await.expect("it stops");
    engine.close().await;
    owner.close().await;
    let server: &Postgres = ground.server;
    let mine = format!("postgres://{role}@127.0.0.1:{}/{}", server.port(), ground.database);
    let (client, connection) = connected(&mine).await;
    tokio::spawn(connection);
    for sql in [
        "insert into s0.migration (version, title, fingerprint) values (2, '', '')",
        "drop table s0.job",
    ] {
        let error = client.batch_execute(sql).await.expect_err(sql);
        assert_eq!(error.code().map(|code| code.code()), Some("42501"), "{sql}: {error}");
    }
}

/// Functions of the same names as PostgreSQL's own, which say so when they are called.
const PLANTED: &[&str] = &[
    "unnest(bigint[]) returns setof bigint",
    "unnest(uuid[]) returns setof uuid",
    "cardinality(anyarray) returns int",
    "array_position(anycompatiblearray, anycompatible) returns int",
    "nextval(regclass) returns bigint",
    "jsonb_array_elements(jsonb) returns setof jsonb",
    "octet_length(bytea) returns int",
    "hashtextextended(text, bigint) returns bigint",
    "pg_current_xact_id() returns xid8",
    "decode(text, text) returns bytea",
];

/// Puts them in front of the path of whoever uses the address that is answered.
pub(crate) async fn plant_in_front(ground: &Ground, address: &str) -> String {
    let of = |planted| {
        format!(
            "create function evil.{planted} language plpgsql as \
             $$ begin raise exception 'planted: {planted}'; end $$;"
        )
    };
    let all: String = PLANTED.iter().map(of).collect();
    let client = ground.client().await;
    client.batch_execute(&format!("create schema evil; {all}")).await.expect("they are made");
    format!("{address}&options=-csearch_path%3Devil,pg_catalog,public")
}

/// The functions that are called from outside and take the path of whoever calls them.
pub(crate) async fn on_the_callers_path(ground: &Ground, schema: &Schema) -> Vec<String> {
    let sql = "select p.proname::text from pg_proc p where p.pronamespace = $1::text::regnamespace \
         and (p.proname !~ '^_' or p.proname = '_number_events') and p.proname <> 'now_us' \
         and not coalesce(p.proconfig @> '{\"search_path=pg_catalog, pg_temp\"}', false) \
       order by 1";
    let rows = ground.client().await.query(sql, &[&schema.to_string()]).await;
    rows.expect("it is answered").iter().map(|row| row.get(0)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_stands_in_front_of_the_path_is_not_called() {
    let Some(ground) = Ground::new() else { return };
    let address = ground.text_address();
    let owner = Engine::open(&address).await.expect("it opens");
    let schema = address.parse::<PostgresAddress>().expect("it is well formed").schema;
    assert_eq!(on_the_callers_path(&ground, &schema).await, Vec::<String>::new());
    let address = plant_in_front(&ground, &address).await;
    let engine = Engine::open(&address).await.expect("it opens");
    let counted = Debounce::new("pages", Duration::from_millis(10), |_: Flush<u64>| async {
        Ok::<(), Failure>(())
    });
    let worker = engine.worker().primitive(counted.clone());
    let worker = worker.handle(|job: Work| async move { Ok::<u64, Failure>(job.number) });
    let worker = worker.start().await.expect("it starts");
    let first = engine.enqueue(work(1)).unique("k").await.expect("accepted");
    let next = engine.enqueue(work(2)).depends_on(&first).await.expect("accepted");
    assert_eq!(soon("a dependent", next.outcome()).await.expect("it completes"), 2);
    engine.debounce(&counted).add("home", 1).await.expect("it is added");
    let later = engine.enqueue(work(3)).delay(Duration::from_secs(3_600)).await.expect("accepted");
    later.cancel().await.expect("it is cancelled");
    // What is read, too.
    engine.store().events(0, 100, Duration::ZERO).await.expect("events are answered");
    engine.jobs().page(None, 10).await.expect("a list is answered");
    engine.store().dependents(first.id()).await.expect("dependents are answered");
    engine.store().explain(first.id()).await.expect("an explanation is answered");
    let mut client = ground.client().await;
    client.batch_execute("set search_path = evil, pg_catalog").await.expect("it is set");
    let transaction = client.transaction().await.expect("it begins");
    enqueue_in(&transaction, engine.enqueue(work(4))).await.expect("accepted");
    transaction.commit().await.expect("it commits");
    until("all is done", || async {
        let counts = owner.counts().await.expect("answered");
        let open = [StateName::Scheduled, StateName::Ready, StateName::Running];
        open.iter().all(|state| counts.in_state(*state) == 0)
    })
    .await;
    let report = worker.stop().await.expect("it stops");
    assert_eq!((report.failed, report.lost), (0, 0), "{report}");
}
