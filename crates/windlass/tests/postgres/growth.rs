//! What a call costs grows with how much it is about, and no faster: counted, not timed.
//!
//! The server tells of every statement within a call how many rows each step of its plan has looked
//! at. Four times as many jobs may cost four times as many rows, and a little more: less than four
//! and a half, where what is linear is at four, and what costs the square of some part at five.

use std::future::poll_fn;
use std::sync::Arc;

use serde_json::Value;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio_postgres::{AsyncMessage, Client, NoTls};
use windlass::JobId;
use windlass::core::job::{Dependency, Lane, NewJob, OnFailure, Unique, UniqueScope};
use windlass::core::ledger::QueueChange;
use windlass::store::postgres::Schema;
use windlass::store::{AlterJobs, ClaimedJob, JobAction, Selection, StoreExt};

use crate::common::{Ground, claim, name, open, raw};
use crate::schemas::{Bug, Plot};

const SMALL: usize = 60;
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

/// A call that is about many jobs.
pub(crate) struct Growth {
    pub(crate) what: &'static str,
    call: Call,
}

enum Call {
    /// Enqueues jobs, the specification of each being this SQL of `i` and `n`.
    Accept(String),
    /// Settles jobs one by one with this verdict: all of them, or only the first.
    Settle { jobs: fn(usize) -> Vec<NewJob>, all: bool, verdict: i16 },
    /// Deletes jobs that have ended, with all that depend on them: each is named, or only the
    /// first.
    Delete { jobs: fn(usize) -> Vec<NewJob>, all: bool },
}

impl Growth {
    /// What is wrong with its cost, in schemas that have this bug, or none.
    pub(crate) async fn problem(
        &self,
        plot: &Arc<Plot>,
        bug: Option<&'static Bug>,
    ) -> Option<String> {
        let (small, large) = match &self.call {
            Call::Accept(spec) => {
                let borrowed = plot.borrow(bug).await;
                let engine = open(&borrowed.text).await;
                let schema = &borrowed.address.schema;
                // The first line there is, with a queue that has lanes.
                engine.enqueue_raw(vec![raw(0)]).await.expect("it is taken");
                let lanes = QueueChange::Lanes(std::num::NonZeroU32::new(8));
                engine.store().configure(name("default"), lanes).await.expect("it is configured");
                let mut meter = Meter::new(&plot.ground).await;
                let small = meter.rows(&accept(schema, spec, SMALL)).await;
                let large = meter.rows(&accept(schema, spec, LARGE)).await;
                engine.close().await;
                (small, large)
            }
            Call::Settle { .. } | Call::Delete { .. } => {
                (self.rows(plot, bug, SMALL).await, self.rows(plot, bug, LARGE).await)
            }
        };
        let is_linear = small > 0 && large * 2 < small * 9;
        let cost = || format!("{SMALL} jobs {small} rows, {LARGE} jobs {large} rows");
        (!is_linear).then(|| format!("{}: {}", self.what, cost()))
    }

    async fn rows(&self, plot: &Arc<Plot>, bug: Option<&'static Bug>, number: usize) -> u64 {
        let borrowed = plot.borrow(bug).await;
        let engine = open(&borrowed.text).await;
        let schema = &borrowed.address.schema;
        let call = match &self.call {
            Call::Accept(spec) => accept(schema, spec, number),
            Call::Settle { jobs, all, verdict } => {
                engine.enqueue_raw(jobs(number)).await.expect("they are taken");
                let limit = if *all { number } else { 1 };
                let handed = engine.store().claim(claim("w", limit)).await.expect("it is answered");
                assert!(!handed.jobs.is_empty(), "{}", self.what);
                settle(schema, &handed.jobs, *verdict)
            }
            Call::Delete { jobs, all } => {
                let jobs = jobs(number);
                let ids: Vec<JobId> = jobs.iter().map(|job| job.id).collect();
                engine.enqueue_raw(jobs).await.expect("they are taken");
                let everyone = Selection::Jobs(ids.clone());
                let altered =
                    engine.store().alter(AlterJobs::new(everyone, JobAction::Cancel)).await;
                assert_eq!(altered.expect("it is answered").len(), number, "{}", self.what);
                delete(schema, if *all { &ids } else { &ids[..1] })
            }
        };
        let mut meter = Meter::new(&plot.ground).await;
        let rows = meter.rows(&call).await;
        engine.close().await;
        rows
    }
}

fn accept(schema: &Schema, spec: &str, jobs: usize) -> String {
    format!(
        "select * from {schema}.accept( \
           array(select md5(i::text)::uuid from generate_series(1, {jobs}) i), \
           array_fill(1, array[{jobs}]), array_fill('x'::bytea, array[{jobs}]), \
           array_fill(0, array[{jobs}]), array_fill(0::smallint, array[{jobs}]), \
           array_fill(null::bigint, array[{jobs}]), array_fill(null::bigint, array[{jobs}]), \
           array(select {spec} from generate_series(1, {jobs}) i, (select {jobs} as n) n \
             order by i))"
    )
}

fn settle(schema: &Schema, handed: &[ClaimedJob], verdict: i16) -> String {
    let list = |of: fn(&ClaimedJob) -> String| handed.iter().map(of).collect::<Vec<_>>().join(",");
    let ids = list(|handed| handed.job.id.to_string());
    let tokens = list(|handed| handed.lease.token.0.to_string());
    let all = |value: &str| format!("array_fill({value}, array[{}])", handed.len());
    format!(
        "select * from {schema}.settle(0, '{{{ids}}}', null, null, null, null, {}, '{{{tokens}}}', \
         {}, {}, '', null, null, {}, {}, {})",
        all("null::bigint"),
        all(&format!("{verdict}::smallint")),
        all("0::bigint"),
        all("null::text"),
        all("null::jsonb"),
        all("null::bytea")
    )
}

fn delete(schema: &Schema, roots: &[JobId]) -> String {
    let roots: Vec<String> = roots.iter().map(ToString::to_string).collect();
    format!(
        "select * from {schema}.alter('{{{}}}', null, 0, null, null, 4, 0, null)",
        roots.join(",")
    )
}

/// Checks how the cost of each of these grows.
async fn check(growths: Vec<Growth>) {
    let Some(plot) = Plot::new().await else { return };
    let mut problems = Vec::new();
    for growth in growths {
        problems.extend(growth.problem(&plot, None).await);
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_costs_as_much_as_there_is_in_it() {
    check(batches()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_costs_as_much_as_follows_from_it() {
    check(endings()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_costs_as_much_as_there_is_to_delete() {
    check(deletions()).await;
}

/// All of them.
pub(crate) fn growths() -> Vec<Growth> {
    [batches(), endings(), deletions()].into_iter().flatten().collect()
}

fn batches() -> Vec<Growth> {
    let accept = |what, spec: &str| Growth { what, call: Call::Accept(spec.to_string()) };
    let on = |job: &str| {
        format!(
            "jsonb_build_object('depends_on', jsonb_build_array(jsonb_build_object( \
               'on', md5(({job})::text)::uuid, 'on_failure', 0)))"
        )
    };
    vec![
        accept("plain", "null::jsonb"),
        accept("expiring", "'{\"expires_after\": 3600000000}'::jsonb"),
        accept(
            "keyed",
            "jsonb_build_object('unique', jsonb_build_object('key', i::text, 'scope', 'open'))",
        ),
        accept(
            "keyed, two of each",
            "jsonb_build_object('unique', \
               jsonb_build_object('key', (i / 2)::text, 'scope', 'any'))",
        ),
        accept("in one lane", "'{\"lane\": {\"key\": \"a\", \"partition\": 3}}'::jsonb"),
        accept(
            "in lanes",
            "jsonb_build_object('lane', jsonb_build_object('key', i::text, 'partition', i))",
        ),
        accept("spread", "'{\"lane\": {\"spread\": true}}'::jsonb"),
        accept("in a row", &format!("case when i > 1 then {} end", on("i - 1"))),
        accept("in a row, the last first", &format!("case when i < n then {} end", on("i + 1"))),
        accept("after one", &format!("case when i > 1 then {} end", on("1"))),
        accept(
            "before one",
            "case when i = n then jsonb_build_object('depends_on', (select jsonb_agg( \
               jsonb_build_object('on', md5(d::text)::uuid, 'on_failure', 0)) \
               from generate_series(1, n - 1) d)) end",
        ),
    ]
}

const COMPLETE: i16 = 0;
const BURY: i16 = 4;
const CANCEL: i16 = 5;

fn endings() -> Vec<Growth> {
    let first =
        |what, jobs, verdict| Growth { what, call: Call::Settle { jobs, all: false, verdict } };
    let all =
        |what, jobs, verdict| Growth { what, call: Call::Settle { jobs, all: true, verdict } };
    vec![
        first("a row dies", in_a_row, BURY),
        first("a fan dies", in_a_fan, BURY),
        first("a row is cancelled", in_a_row, CANCEL),
        first("a fan is released", in_a_fan, COMPLETE),
        all("many release one", before_one, COMPLETE),
        all("jobs with keys end", with_keys, COMPLETE),
        all("jobs of lanes end", in_lanes, COMPLETE),
        all("jobs of lanes die", in_lanes, BURY),
    ]
}

fn deletions() -> Vec<Growth> {
    let delete = |what, jobs, all| Growth { what, call: Call::Delete { jobs, all } };
    vec![
        delete("a row is deleted by its first", in_a_row, false),
        delete("a row is deleted by each of it", in_a_row, true),
        delete("a fan is deleted by its first", in_a_fan, false),
        delete("pairs are deleted", in_pairs, true),
        delete("jobs that nobody depends on are deleted", with_keys, true),
    ]
}

fn after(job: NewJob, on: JobId) -> NewJob {
    let edge = Dependency { on, on_failure: OnFailure::Cascade };
    NewJob { depends_on: vec![edge], ..job }
}

/// As many jobs, some of which depend on another: the number of which is answered for theirs.
fn family(jobs: usize, on: fn(usize) -> Option<usize>) -> Vec<NewJob> {
    let mut family: Vec<NewJob> = Vec::with_capacity(jobs);
    for number in 0..jobs {
        let job = raw(number as u64);
        let on = on(number).map(|on| family[on].id);
        family.push(match on {
            Some(on) => after(job, on),
            None => job,
        });
    }
    family
}

/// Each depends on the one before.
fn in_a_row(jobs: usize) -> Vec<NewJob> {
    family(jobs, |number| number.checked_sub(1))
}

/// All depend on the first.
fn in_a_fan(jobs: usize) -> Vec<NewJob> {
    family(jobs, |number| (number > 0).then_some(0))
}

/// Each second one depends on the one before.
fn in_pairs(jobs: usize) -> Vec<NewJob> {
    family(jobs, |number| (number % 2 == 1).then(|| number - 1))
}

/// As many that one waits for.
fn before_one(jobs: usize) -> Vec<NewJob> {
    let mut all: Vec<NewJob> = (1..jobs as u64).map(raw).collect();
    let edge = |job: &NewJob| Dependency { on: job.id, on_failure: OnFailure::Cascade };
    let edges = all.iter().map(edge).collect();
    all.push(NewJob { depends_on: edges, ..raw(0) });
    all
}

fn with_keys(jobs: usize) -> Vec<NewJob> {
    let key =
        |number: u64| Unique { key: number.to_string(), scope: UniqueScope::Open, window: None };
    (0..jobs as u64).map(|number| NewJob { unique: Some(key(number)), ..raw(number) }).collect()
}

fn in_lanes(jobs: usize) -> Vec<NewJob> {
    let lane = |number: u64| Some(Lane::Key(number.to_string()));
    (0..jobs as u64).map(|number| NewJob { lane: lane(number), ..raw(number) }).collect()
}
