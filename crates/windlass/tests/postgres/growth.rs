//! What a call costs grows with how much it is about, and no faster: counted, not timed.
//!
//! The server tells of every statement within a call how many rows each step of its plan has looked
//! at. Four times as many jobs may cost four times as many rows, and a little more.

use std::future::poll_fn;

use serde_json::Value;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio_postgres::{AsyncMessage, Client, NoTls};
use windlass::core::job::{Dependency, Lane, NewJob, OnFailure, Unique, UniqueScope};
use windlass::core::ledger::QueueChange;
use windlass::store::{Alteration, HandedJob, Selection};
use windlass::{Engine, JobId};

use crate::common::{Ground, claim, name, open, raw};

const SMALL: usize = 150;
const LARGE: usize = 4 * SMALL;

/// A connection whose server tells what it does.
struct Meter {
    client: Client,
    plans: UnboundedReceiver<String>,
}

impl Meter {
    async fn new(ground: &Ground) -> Self {
        let url = ground.server.url_for(&ground.database);
        let (client, mut connection) =
            tokio_postgres::connect(&url, NoTls).await.expect("connects");
        let (tell, plans) = unbounded_channel();
        tokio::spawn(async move {
            while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await
            {
                if let AsyncMessage::Notice(notice) = message {
                    let _ = tell.send(notice.message().to_string());
                }
            }
        });
        let settings = "load 'auto_explain'; set auto_explain.log_analyze = on; \
             set auto_explain.log_timing = off; set auto_explain.log_nested_statements = on; \
             set auto_explain.log_format = json; set client_min_messages = log";
        client.batch_execute(settings).await.expect("it is installed with the server");
        Self { client, plans }
    }

    /// How many rows a statement looks at, in all that it does. Nothing of it is kept.
    async fn rows(&mut self, sql: &str) -> u64 {
        self.run("begin; set auto_explain.log_min_duration = 0").await;
        self.run(sql).await;
        self.run("set auto_explain.log_min_duration = -1; rollback").await;
        let mut rows = 0;
        while let Ok(said) = self.plans.try_recv() {
            if let Some((_, plan)) = said.split_once("plan:") {
                let plan: Value = serde_json::from_str(plan).expect("it is JSON");
                rows += rows_of(&plan["Plan"]);
            }
        }
        rows
    }

    async fn run(&self, sql: &str) {
        self.client.batch_execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }
}

/// The rows that a step of a plan, and those below it, took or passed over.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "numbers of rows")]
fn rows_of(plan: &Value) -> u64 {
    let number = |what: &str| plan[what].as_f64().unwrap_or(0.0);
    let passed = ["Rows Removed by Filter", "Rows Removed by Join Filter"].map(number);
    let own = (number("Actual Rows") + passed[0] + passed[1]) * number("Actual Loops");
    let below = plan["Plans"].as_array().into_iter().flatten().map(rows_of);
    own as u64 + below.sum::<u64>()
}

/// A call that enqueues so many jobs, the specification of each being this SQL of `i` and `n`.
fn accept(spec: &str, jobs: usize) -> String {
    format!(
        "select * from s0.accept( \
           array(select md5(i::text)::uuid from generate_series(1, {jobs}) i), \
           array_fill(1, array[{jobs}]), array_fill('x'::bytea, array[{jobs}]), \
           array_fill(0, array[{jobs}]), array_fill(0::smallint, array[{jobs}]), \
           array_fill(null::bigint, array[{jobs}]), array_fill(null::bigint, array[{jobs}]), \
           array(select {spec} from generate_series(1, {jobs}) i, (select {jobs} as n) n \
             order by i))"
    )
}

fn on(job: &str) -> String {
    format!(
        "jsonb_build_object('depends_on', jsonb_build_array(jsonb_build_object( \
           'on', md5(({job})::text)::uuid, 'on_failure', 0)))"
    )
}

/// Whether four times as many cost about four times as much; what they cost if not.
fn is_linear(what: &str, small: u64, large: u64) -> Option<String> {
    let is_linear = small > 0 && large < small * 5;
    (!is_linear).then(|| format!("{what}: {SMALL} jobs {small} rows, {LARGE} jobs {large} rows"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_costs_as_much_as_there_is_in_it() {
    let Some(ground) = Ground::new() else { return };
    let engine = open(&ground.text_address()).await;
    // The first line there is, with a queue that has lanes.
    engine.enqueue_raw(vec![raw(0)]).await.expect("it is taken");
    let lanes = QueueChange::Lanes(std::num::NonZeroU32::new(8));
    engine.store().configure(name("default"), lanes).await.expect("it is configured");
    let mut meter = Meter::new(&ground).await;
    let sorts = [
        ("plain", "null::jsonb".to_string()),
        ("expiring", "'{\"expires_after\": 3600000000}'::jsonb".to_string()),
        (
            "keyed",
            "jsonb_build_object('unique', jsonb_build_object('key', i::text, 'scope', 'open'))"
                .to_string(),
        ),
        (
            "keyed, two of each",
            "jsonb_build_object('unique', jsonb_build_object('key', (i / 2)::text, 'scope', 'any'))"
                .to_string(),
        ),
        ("in one lane", "'{\"lane\": {\"key\": \"a\", \"partition\": 3}}'::jsonb".to_string()),
        (
            "in lanes",
            "jsonb_build_object('lane', jsonb_build_object('key', i::text, 'partition', i))"
                .to_string(),
        ),
        ("spread", "'{\"lane\": {\"spread\": true}}'::jsonb".to_string()),
        ("in a row", format!("case when i > 1 then {} end", on("i - 1"))),
        ("in a row, the last first", format!("case when i < n then {} end", on("i + 1"))),
        ("after one", format!("case when i > 1 then {} end", on("1"))),
        (
            "before one",
            "case when i = n then jsonb_build_object('depends_on', (select jsonb_agg( \
               jsonb_build_object('on', md5(d::text)::uuid, 'on_failure', 0)) \
               from generate_series(1, n - 1) d)) end"
                .to_string(),
        ),
    ];
    let mut problems = Vec::new();
    for (sort, spec) in &sorts {
        let small = meter.rows(&accept(spec, SMALL)).await;
        let large = meter.rows(&accept(spec, LARGE)).await;
        problems.extend(is_linear(sort, small, large));
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

fn after(job: NewJob, on: JobId) -> NewJob {
    let edge = Dependency { on, on_failure: OnFailure::Cascade };
    NewJob { depends_on: vec![edge], ..job }
}

/// A job, and others that depend on it: all of them directly, or each on the one before.
fn family(jobs: usize, in_a_row: bool) -> Vec<NewJob> {
    let mut family = vec![raw(0)];
    for number in 1..jobs {
        let on = if in_a_row { family[number - 1].id } else { family[0].id };
        family.push(after(raw(number as u64), on));
    }
    family
}

/// Settles these jobs one by one, with this verdict.
fn settle(handed: &[HandedJob], verdict: i16) -> String {
    let list = |of: fn(&HandedJob) -> String| handed.iter().map(of).collect::<Vec<_>>().join(",");
    let ids = list(|handed| handed.job.id.to_string());
    let tokens = list(|handed| handed.lease.token.0.to_string());
    let all = |value: &str| format!("array_fill({value}, array[{}])", handed.len());
    format!(
        "select * from s0.settle(0, '{{{ids}}}', null, null, null, null, {}, '{{{tokens}}}', {}, \
         {}, '', null, null, {}, {}, {})",
        all("null::bigint"),
        all(&format!("{verdict}::smallint")),
        all("0::bigint"),
        all("null::text"),
        all("null::jsonb"),
        all("null::bytea")
    )
}

/// What becomes of jobs, and how many of them are settled.
struct Ending {
    what: &'static str,
    jobs: fn(usize) -> Vec<NewJob>,
    /// All of them, or only the first.
    all: bool,
    verdict: i16,
}

const COMPLETE: i16 = 0;
const BURY: i16 = 4;
const CANCEL: i16 = 5;

fn with_keys(jobs: usize) -> Vec<NewJob> {
    let key =
        |number: u64| Unique { key: number.to_string(), scope: UniqueScope::Open, window: None };
    (0..jobs as u64).map(|number| NewJob { unique: Some(key(number)), ..raw(number) }).collect()
}

fn in_lanes(jobs: usize) -> Vec<NewJob> {
    let lane = |number: u64| Some(Lane::Key(number.to_string()));
    (0..jobs as u64).map(|number| NewJob { lane: lane(number), ..raw(number) }).collect()
}

/// As many that one waits for.
fn before_one(jobs: usize) -> Vec<NewJob> {
    let mut all: Vec<NewJob> = (1..jobs as u64).map(raw).collect();
    let edge = |job: &NewJob| Dependency { on: job.id, on_failure: OnFailure::Cascade };
    let edges = all.iter().map(edge).collect();
    all.push(NewJob { depends_on: edges, ..raw(0) });
    all
}

async fn rows_of_ending(ending: &Ending, jobs: usize) -> Option<u64> {
    let ground = Ground::new()?;
    let engine: Engine = open(&ground.text_address()).await;
    engine.enqueue_raw((ending.jobs)(jobs)).await.expect("they are taken");
    let limit = if ending.all { jobs } else { 1 };
    let handed = engine.store().claim(claim("w", limit)).await.expect("it is answered").jobs;
    assert!(!handed.is_empty(), "{}", ending.what);
    let rows = Meter::new(&ground).await.rows(&settle(&handed, ending.verdict)).await;
    Some(rows)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_costs_as_much_as_follows_from_it() {
    let endings = [
        Ending { what: "a row dies", jobs: |n| family(n, true), all: false, verdict: BURY },
        Ending { what: "a fan dies", jobs: |n| family(n, false), all: false, verdict: BURY },
        Ending {
            what: "a row is cancelled",
            jobs: |n| family(n, true),
            all: false,
            verdict: CANCEL,
        },
        Ending {
            what: "a fan is released",
            jobs: |n| family(n, false),
            all: false,
            verdict: COMPLETE,
        },
        Ending { what: "many release one", jobs: before_one, all: true, verdict: COMPLETE },
        Ending { what: "jobs with keys end", jobs: with_keys, all: true, verdict: COMPLETE },
        Ending { what: "jobs of lanes end", jobs: in_lanes, all: true, verdict: COMPLETE },
        Ending { what: "jobs of lanes die", jobs: in_lanes, all: true, verdict: BURY },
    ];
    let mut problems = Vec::new();
    for ending in &endings {
        let Some(small) = rows_of_ending(ending, SMALL).await else { return };
        let Some(large) = rows_of_ending(ending, LARGE).await else { return };
        problems.extend(is_linear(ending.what, small, large));
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// Jobs that have ended and are deleted with all that depend on them.
struct Deletion {
    what: &'static str,
    jobs: fn(usize) -> Vec<NewJob>,
    /// Every one of them is named in the call, or only the first.
    all: bool,
}

/// As many, each second one of which depends on the one before.
fn in_pairs(jobs: usize) -> Vec<NewJob> {
    let mut all: Vec<NewJob> = Vec::new();
    for number in 0..jobs {
        let job = raw(number as u64);
        let on = all.last().map(|job| job.id).filter(|_| number % 2 == 1);
        all.push(on.map_or(job.clone(), |on| after(job, on)));
    }
    all
}

async fn rows_of_deletion(deletion: &Deletion, jobs: usize) -> Option<u64> {
    let ground = Ground::new()?;
    let engine: Engine = open(&ground.text_address()).await;
    let jobs = (deletion.jobs)(jobs);
    let ids: Vec<JobId> = jobs.iter().map(|job| job.id).collect();
    let first = if deletion.all { &ids[..] } else { &ids[..1] };
    engine.enqueue_raw(jobs).await.expect("they are taken");
    let everyone = Selection::Jobs(ids.clone());
    engine.store().alter(everyone, Alteration::Cancel).await.expect("it is answered");
    let list: Vec<String> = first.iter().map(ToString::to_string).collect();
    let call = format!("select * from s0.alter('{{{}}}', null, 4, 0, null)", list.join(","));
    let rows = Meter::new(&ground).await.rows(&call).await;
    let roots = Selection::Jobs(first.to_vec());
    engine.store().alter(roots, Alteration::RemoveGraph).await.expect("it is answered");
    let left = engine.store().find(&ids).await.expect("it is answered");
    assert!(left.iter().all(Option::is_none), "{}: some are left", deletion.what);
    Some(rows)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_costs_as_much_as_there_is_to_delete() {
    let deletions = [
        Deletion { what: "a row by its first", jobs: |n| family(n, true), all: false },
        Deletion { what: "a row by each of it", jobs: |n| family(n, true), all: true },
        Deletion { what: "a fan by its first", jobs: |n| family(n, false), all: false },
        Deletion { what: "many pairs", jobs: in_pairs, all: true },
        Deletion { what: "many that nobody depends on", jobs: with_keys, all: true },
    ];
    let mut problems = Vec::new();
    for deletion in &deletions {
        let Some(small) = rows_of_deletion(deletion, SMALL).await else { return };
        let Some(large) = rows_of_deletion(deletion, LARGE).await else { return };
        problems.extend(is_linear(deletion.what, small, large));
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}
