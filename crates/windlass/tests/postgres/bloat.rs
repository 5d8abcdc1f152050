//! What is dead: rows that a forgotten transaction keeps from being cleared away, and statistics
//! that were taken before anything was there, cost no verb more than it has to do.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio_postgres::Client;
use windlass::store::ClaimedJob;
use windlass::{Engine, Error, Priority, StateName};

use crate::common::{Dice, Ground, Work, claim, count, open, raw, until, until_vacuumed};

const SEED: u64 = 20_261_116;

/// How often each job has run, by its number.
type Runs = Arc<Mutex<BTreeMap<u64, u64>>>;

async fn start_worker(engine: &Engine, slots: u32, runs: &Runs) -> windlass::Worker {
    let runs = runs.clone();
    let handler = move |job: Work| {
        let mut runs = runs.lock().unwrap_or_else(PoisonError::into_inner);
        *runs.entry(job.number).or_default() += 1;
        async move { Ok::<_, Error>(job.number) }
    };
    engine.worker().slots(slots).handle(handler).start().await.expect("it starts")
}

/// Lets the partitions rotate until it is told to stop, and says how often they did: every second
/// time one is emptied.
async fn take_turns(client: Client, stop: Arc<tokio::sync::Notify>) -> u32 {
    let (mut dice, mut turns) = (Dice::new(SEED), 0);
    loop {
        // Half of the time it is only told how far a partition is empty.
        let worth = if dice.roll(2) == 0 { 0 } else { i64::MAX };
        let turn = format!("select s0.rotate({worth})");
        let turn = client.query_one(&turn, &[]);
        tokio::select! {
            biased;
            () = stop.notified() => return turns,
            // It gives up rather than let others wait for long.
            turned = turn => turns += turned.map_or(0, |row| u32::from(row.get::<_, bool>(0))),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_are_neither_lost_nor_run_twice_while_partitions_rotate() {
    const JOBS: u64 = 4_000;
    let Some(ground) = Ground::new() else { return };
    let engines = ground.engines(2).await;
    let (runs, stop) = (Runs::default(), Arc::new(tokio::sync::Notify::new()));
    let turning = tokio::spawn(take_turns(ground.client().await, stop.clone()));
    let mut workers = Vec::new();
    for (engine, slots) in engines.iter().zip([7, 50]) {
        workers.push(start_worker(engine, slots, &runs).await);
    }
    let (mut dice, mut next) = (Dice::new(SEED), 0);
    while next < JOBS {
        let size = (1 + dice.roll(60)).min(JOBS - next);
        let jobs = (next..next + size).map(|number| {
            let mut job = raw(number);
            job.priority = Priority(i32::try_from(dice.roll(3)).unwrap_or(0));
            job
        });
        engines[0].enqueue_raw(jobs.collect()).await.expect("they are taken");
        next += size;
    }
    until(&format!("all have run (seed {SEED})"), || async {
        count(&engines[1], StateName::Completed).await == JOBS
    })
    .await;
    stop.notify_one();
    assert!(turning.await.expect("it ends") >= 4, "no half was emptied while jobs ran");
    let twice: Vec<u64> = {
        let runs = runs.lock().unwrap_or_else(PoisonError::into_inner);
        assert_eq!(runs.len() as u64, JOBS);
        runs.iter().filter(|(_, times)| **times > 1).map(|(number, _)| *number).collect()
    };
    assert_eq!(twice, Vec::<u64>::new(), "ran twice (seed {SEED})");
    for state in [StateName::Ready, StateName::Running, StateName::Dead] {
        assert_eq!(count(&engines[0], state).await, 0, "{state:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_rows_that_an_old_transaction_pins_are_left_behind() {
    const JOBS: u64 = 16_000;
    let Some(ground) = Ground::new() else { return };
    let engine = open(&ground.text_address()).await;
    let forgetful = ground.client().await;
    let begin = "begin isolation level repeatable read; select pg_current_xact_id()";
    forgetful.batch_execute(begin).await.expect("it begins");
    let runs = Runs::default();
    let _worker = start_worker(&engine, 500, &runs).await;
    for first in (0..JOBS).step_by(1_000) {
        let jobs = (first..first + 1_000).map(raw).collect();
        engine.enqueue_raw(jobs).await.expect("they are taken");
    }
    until("all have run", || async { count(&engine, StateName::Completed).await == JOBS }).await;
    // Whatever half is in use is far from full of what is dead.
    until_vacuumed("what is dead is left behind", || async {
        let dead = "select pg_stat_force_next_flush(); select coalesce(sum(n_dead_tup), 0) < 5000 \
             from pg_stat_user_tables where schemaname = 's0' and relname like 'ready%'";
        let sizes = "select max(pg_relation_size(c.oid)) < 200000 from pg_class c \
             join pg_namespace n on n.oid = c.relnamespace \
             where n.nspname = 's0' and c.relname in ('ready_0', 'ready_1')";
        ground.sql(dead).ends_with('t') && ground.sql(sizes) == "t"
    })
    .await;
    engine.enqueue(Work { number: JOBS }).await.expect("it is taken");
    until("it goes on", || async { count(&engine, StateName::Completed).await == JOBS + 1 }).await;
    forgetful.batch_execute("rollback").await.expect("it ends");
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_rows_that_nothing_pins_are_cleared_away_by_the_housekeeping() {
    let Some(ground) = Ground::new() else { return };
    let engine = open(&ground.text_address()).await;
    ground.sql(
        "insert into s0.history (at, n, lows, highs) \
           select 0, 0, '{}', '{}' from generate_series(1, 5000)",
    );
    ground.sql("delete from s0.history");
    until("it is cleared", || async {
        engine.store().promote().await.expect("it is answered");
        // Autovacuum is counted apart.
        let cleared = "select vacuum_count > 0 from pg_stat_user_tables \
             where schemaname = 's0' and relname = 'history'";
        ground.sql(cleared) == "t"
    })
    .await;
}

/// Rows that a statement fetches by index from the large tables.
async fn fetched(client: &mut Client, sql: &str) -> i64 {
    let transaction = client.transaction().await.expect("it begins");
    transaction.batch_execute(sql).await.expect(sql);
    let sql = "select coalesce(sum(idx_tup_fetch + seq_tup_read), 0)::bigint \
         from pg_stat_xact_user_tables \
         where schemaname = 's0' \
         and relname in ('job', 'job_state', 'ready_0', 'ready_1', 'scheduled')";
    let rows = transaction.query_one(sql, &[]).await.expect("it is told").get(0);
    transaction.rollback().await.expect("it is undone");
    rows
}

/// Lets jobs wait, claims ten, and gives every verb ten to do.
async fn verbs_for_ten(engine: &Engine) -> Vec<String> {
    const WAITING: u64 = 20_000;
    for first in (0..WAITING).step_by(1_000) {
        let jobs = (first..first + 1_000).map(raw).collect();
        engine.enqueue_raw(jobs).await.expect("they are taken");
    }
    let ten = engine.store().claim(claim("ten", 10)).await.expect("it is answered").jobs;
    let list = |of: fn(&ClaimedJob) -> String| ten.iter().map(of).collect::<Vec<_>>().join(",");
    let ids = list(|handed| handed.job.id.to_string());
    let tokens = list(|handed| handed.lease.token.0.to_string());
    let seqs = list(|handed| handed.sequence.to_string());
    let all = |value: &str| format!("array_fill({value}, array[10])");
    let (no_number, no_bytes) = (all("null::bigint"), all("null::bytea"));
    let (no_text, no_json) = (all("null::text"), all("null::jsonb"));
    let (zero, one, small, until) =
        (all("0"), all("1"), all("0::smallint"), all("60000000::bigint"));
    let (low, token) = (ten[0].sequence, ten[0].lease.token.0);
    let run = format!("'{{1}}', '{{{low}}}', '{{{}}}', '{{{token}}}'", low + 9);
    // One by one: tried again, and dead.
    let ended = |verdict: &str, argument: &str| {
        let (verdict, argument) = (all(verdict), all(argument));
        format!(
            "select * from s0.settle(0, '{{{ids}}}', null, null, null, null, {no_number}, \
             '{{{tokens}}}', {verdict}, {argument}, '', null, null, {no_text}, {no_json}, \
             {no_bytes})"
        )
    };
    vec![
        "select * from s0.claim('w', null, '{work}', '{60000000}', '{3}', array[null::int], \
           array[null::int], array[null::bigint], array[null::int], 10, null)"
            .to_string(),
        format!(
            "select * from s0.settle(10, '{{{ids}}}', {run}, null, null, null, null, '', null, \
             null, null, null, null)"
        ),
        ended("0::smallint", "null::bigint"),
        ended("1::smallint", "0::bigint"),
        ended("4::smallint", "0::bigint"),
        format!("select * from s0.alter('{{{ids}}}', null, 0, null, null, 0, 0, null)"),
        format!("select * from s0.renew('{{{ids}}}', '{{{tokens}}}', {until}, {no_json})"),
        format!("select * from s0.job_state_now where seq in ({seqs})"),
        "select * from s0.rescue(false, 5, 0, 0, true)".to_string(),
        "select * from s0.promote()".to_string(),
        format!(
            "select * from s0.accept(array(select gen_random_uuid() from generate_series(1, 10)), \
             {one}, {}, {zero}, {small}, {no_number}, {no_number}, {no_json})",
            all("'x'::bytea")
        ),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn no_statistics_make_a_verb_look_at_more_than_its_jobs() {
    for statistics in ["of nothing", "of many", "of nothing but dead rows"] {
        // Each has a database of its own: what one has learnt would hide what another has not.
        let Some(ground) = Ground::new() else { return };
        let engine = open(&ground.text_address()).await;
        let forgetful = ground.client().await;
        let verbs = match statistics {
            "of nothing" => {
                ground.sql("vacuum analyze");
                verbs_for_ten(&engine).await
            }
            "of many" => {
                let verbs = verbs_for_ten(&engine).await;
                ground.sql("analyze");
                verbs
            }
            _ => {
                verbs_for_ten(&engine).await;
                forgetful.batch_execute("begin; select pg_current_xact_id()").await.expect("it is");
                for table in ["job_state", "job", "ready", "lease"] {
                    ground.sql(&format!("delete from s0.{table}"));
                }
                ground.sql("vacuum s0.job_state, s0.job, s0.ready, s0.lease");
                verbs_for_ten(&engine).await
            }
        };
        let mut client = ground.client().await;
        for verb in &verbs {
            let rows = fetched(&mut client, verb).await;
            assert!(rows < 1_000, "statistics {statistics}: {rows} rows looked at by {verb}");
        }
    }
}
