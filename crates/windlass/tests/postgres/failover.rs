//! A primary with a synchronous standby that takes over: nothing acknowledged is lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use windlass::store::StoreError;
use windlass::{Engine, Error, Failure, JobId, Recovery, Refusal, StateName};
use windlass_testbed::{Postgres, or_skip};

use crate::common::{Work, is_completed, open, raw, records, soon, until, work};

/// A primary and its standby, which has everything that was ever acknowledged.
fn pair() -> Option<(Postgres, Postgres)> {
    let primary = or_skip(Postgres::start())?;
    let standby = or_skip(Postgres::standby_of(&primary))?;
    // Only now: the standby copied the settings, and would wait for one of its own.
    primary.configure(&["synchronous_standby_names='standby'"]);
    Some((primary, standby))
}

async fn is_synchronous(primary: &Postgres) -> bool {
    let state = "select coalesce(string_agg(sync_state, ','), '') from pg_stat_replication";
    primary.sql("postgres", state) == "sync"
}

/// Where both are, the one that takes writes to be found by the client.
fn both(primary: &Postgres, standby: &Postgres, session: &str) -> String {
    format!(
        "postgres://postgres@127.0.0.1:{},127.0.0.1:{}/postgres?windlass_schema=pair{session}",
        primary.port(),
        standby.port()
    )
}

/// Enqueues one job after the other, and returns those that were acknowledged.
async fn produce(engine: Engine, stop: Arc<AtomicBool>) -> Vec<JobId> {
    let mut acknowledged = Vec::new();
    for number in 0.. {
        if stop.load(Ordering::SeqCst) {
            break;
        }
        // However often its lease ends on a busy machine, it is tried again.
        match engine.enqueue(work(number)).max_attempts(1_000).await {
            Ok(job) => acknowledged.push(job.id()),
            Err(Error::Unknown { .. } | Error::Refused(Refusal::Unavailable { .. })) => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Err(other) => panic!("a failover is no reason for this: {other}"),
        }
    }
    acknowledged
}

/// How many jobs have completed; 0 while nobody says.
async fn completed(engine: &Engine) -> u64 {
    let counts = engine.counts().await.unwrap_or_default();
    counts.lines.iter().map(|line| line.states[StateName::Completed as usize]).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_acknowledged_is_lost_when_a_synchronous_standby_takes_over() {
    let Some((mut primary, standby)) = pair() else { return };
    until("the standby is synchronous", || is_synchronous(&primary)).await;
    let address = both(&primary, &standby, "&target_session_attrs=read-write");
    let recovery = Recovery { max_recoveries: 1_000, ..Recovery::default() };
    let patient = || Engine::builder().recovery(recovery).open(&address);
    let producer = patient().await.expect("the engine opens");
    let other = patient().await.expect("the engine opens");
    let handler = |job: Work| async move { Ok::<u64, Failure>(job.number) };
    let worker = other.worker().handle_with(handler, |terms| terms.lease(Duration::from_secs(2)));
    let worker = worker.poll_interval(Duration::from_millis(200)).start().await;
    let worker = worker.expect("the worker starts");
    let stop = Arc::new(AtomicBool::new(false));
    let producing = tokio::spawn(produce(producer.clone(), stop.clone()));
    until("some jobs are done", || async { completed(&producer).await >= 30 }).await;

    primary.kill_postmaster();
    standby.promote();
    until("it answers again", || async { completed(&producer).await > 0 }).await;
    let before = completed(&producer).await;
    until("both carry on by themselves", || async { completed(&producer).await >= before + 30 })
        .await;

    // What is written nowhere but in memory is as good as new, too.
    let later = producer.enqueue(work(0)).delay(Duration::from_secs(3_600)).await;
    let later = later.expect("it is accepted");
    producer.run_now(later.id()).await.expect("it is answered");
    assert_eq!(soon("its outcome", later.outcome()).await.expect("it completes"), 0);

    stop.store(true, Ordering::SeqCst);
    let acknowledged = producing.await.expect("the producer ends");
    until("every acknowledged job is done", || async {
        records(&producer, &acknowledged).await.iter().all(is_completed)
    })
    .await;
    worker.stop().await.expect("the worker stops");
}

/// What is wrong and what to do about it, in one sentence.
fn is_about_a_standby(why: &str) -> bool {
    why.contains("read-only") && why.contains("connect to the primary") && !why.contains('\n')
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_is_refused_in_one_sentence_and_used_once_it_is_promoted() {
    let Some((mut primary, standby)) = pair() else { return };
    until("the standby is synchronous", || is_synchronous(&primary)).await;
    // Without asking for the one that takes writes.
    let engine = open(&both(&primary, &standby, "")).await;
    let kept = engine.enqueue(work(1)).await.expect("it is accepted").id();
    // Before there is a schema, and after.
    for schema in ["pair", "other"] {
        let address = format!("{}?windlass_schema={schema}", standby.url());
        let refused = Engine::open(&address).await.expect_err("it takes no writes");
        assert!(is_about_a_standby(&refused.to_string()), "{refused}");
    }
    primary.kill_postmaster();
    let job = Arc::new(raw(2));
    until("its calls are refused", || async {
        match engine.store().enqueue(vec![job.clone()]).await {
            Err(StoreError::Refused(Refusal::Unavailable { why })) => is_about_a_standby(&why),
            Err(StoreError::Unknown { .. }) => false,
            other => panic!("the answer was {other:?}"),
        }
    })
    .await;
    assert!(engine.find(kept).await.expect("reads are answered").is_some());
    standby.promote();
    until("it takes jobs again", || async {
        engine.store().enqueue(vec![job.clone()]).await.is_ok()
    })
    .await;
    assert_eq!(records(&engine, &[kept, job.id]).await.len(), 2);
}
