//! Why a job is not running, told from what the database says of it and of the workers.

use serde_json::Value;
use tokio_postgres::types::Type;
use windlass_core::explain::{Explanation, Reason};
use windlass_core::job::JobId;
use windlass_core::ledger::{WorkerView, nearest};
use windlass_core::limits;
use windlass_core::name::Name;
use windlass_core::refusal::Refusal;

use super::{PostgresStore, odd, understood, wire};
use crate::clock::BoxFuture;
use crate::store::{Answer, Store};

/// How many of the jobs that a job waits for are explained themselves.
const SHOWN: usize = 3;

pub(super) async fn explain(store: &PostgresStore, job: JobId) -> Answer<Explanation> {
    let workers = store.count().await?.workers;
    explain_job(store, job, &workers, limits::EXPLAIN_DEPTH).await
}

fn explain_job<'a>(
    store: &'a PostgresStore,
    job: JobId,
    workers: &'a [WorkerView],
    depth: usize,
) -> BoxFuture<'a, Answer<Explanation>> {
    Box::pin(async move {
        let id = wire::uuid(job);
        let sql = "select windlass.explain_facts($1)";
        let facts = store.one("explain a job", sql, &[(&id, Type::UUID)]).await?;
        let Some(facts) = facts.get::<_, Option<Value>>(0) else {
            return Err(Refusal::UnknownJob { job }.into());
        };
        let number = facts["state"].as_i64().unwrap_or(-1);
        let state = understood(wire::state_name(number))?;
        let reasons = match number {
            0 => blocked(store, &facts, workers, depth).await?,
            _ => reasons(&facts, number, workers)
                .ok_or_else(|| odd("explain a job", "its facts make no sense"))?,
        };
        Ok(Explanation { job, state, reasons })
    })
}

async fn blocked(
    store: &PostgresStore,
    facts: &Value,
    workers: &[WorkerView],
    depth: usize,
) -> Answer<Vec<Reason>> {
    let blockers = facts["blockers"].as_array().into_iter().flatten();
    let blockers: Vec<JobId> = blockers.filter_map(|id| id.as_str()?.parse().ok()).collect();
    let shown = if depth == 0 { 0 } else { SHOWN.min(blockers.len()) };
    let mut reasons = Vec::new();
    for job in &blockers[..shown] {
        reasons.push(Reason::BlockedBy(explain_job(store, *job, workers, depth - 1).await?));
    }
    if blockers.len() > shown {
        let jobs = u32::try_from(blockers.len() - shown).unwrap_or(u32::MAX);
        reasons.push(Reason::BlockedByMore { jobs });
    }
    Ok(reasons)
}

fn reasons(facts: &Value, state: i64, workers: &[WorkerView]) -> Option<Vec<Reason>> {
    let at = wire::time(facts["at"].as_i64()?);
    let reason = facts["reason"].as_i64().unwrap_or(0);
    Some(match state {
        1 => {
            let attempts = u32::try_from(facts["attempts"].as_u64()?).ok()?;
            let mut reasons = vec![Reason::ScheduledFor { at, attempts }];
            reasons.extend(line(facts, workers)?);
            reasons
        }
        2 => {
            let mut reasons = line(facts, workers)?;
            reasons.extend(place(facts, workers)?);
            reasons
        }
        3 => vec![Reason::Running { cancel_requested: facts["cancel_requested"].as_bool()? }],
        4 => vec![Reason::Completed { at }],
        5 => vec![Reason::Dead { at, reason: wire::dead_reason(reason).ok()? }],
        6 => vec![Reason::Cancelled { at, reason: wire::cancel_reason(reason).ok()? }],
        _ => return None,
    })
}

fn handles(worker: &WorkerView, kind: &Name) -> bool {
    worker.info.kinds.iter().any(|known| known.kind == *kind)
}

fn listens(worker: &WorkerView, queue: &Name) -> bool {
    worker.info.queues.as_ref().is_none_or(|queues| queues.contains(queue))
}

/// What keeps every job of this queue and kind from starting.
fn line(facts: &Value, workers: &[WorkerView]) -> Option<Vec<Reason>> {
    let queue = Name::new(facts["queue"].as_str()?).ok()?;
    let kind = Name::new(facts["kind"].as_str()?).ok()?;
    let mut reasons = Vec::new();
    if facts["paused"].as_bool()? {
        reasons.push(Reason::QueuePaused { queue: queue.clone() });
    }
    let live: Vec<&WorkerView> = workers.iter().filter(|worker| !worker.stopping).collect();
    let handling: Vec<&WorkerView> =
        live.iter().copied().filter(|worker| handles(worker, &kind)).collect();
    if handling.is_empty() {
        let known = live.iter().flat_map(|worker| worker.info.kinds.iter().map(|kind| &kind.kind));
        let nearest = nearest(kind.as_str(), known);
        reasons.push(Reason::NoWorkerForKind { kind: kind.clone(), nearest });
    } else if !handling.iter().any(|worker| listens(worker, &queue)) {
        reasons.push(Reason::NoWorkerForQueue { queue });
    }
    let mut terms = handling.iter().flat_map(|worker| worker.info.kinds.iter());
    let Some(terms) = terms.rfind(|terms| terms.kind == kind) else { return Some(reasons) };
    let running = facts["running"].as_u64()?;
    if let Some(limit) = terms.concurrency
        && running >= u64::from(limit)
    {
        reasons.push(Reason::ConcurrencyLimit { kind: kind.clone(), running, limit });
    }
    let (full_at, now) = (facts["full_at"].as_i64()?, facts["now"].as_i64()?);
    if let Some(rate) = terms.rate
        && let Err(wait) = rate.admit(wire::time(full_at), wire::time(now))
    {
        reasons.push(Reason::RateLimit { kind, wait });
    }
    Some(reasons)
}

/// What keeps this ready job from being the next.
fn place(facts: &Value, workers: &[WorkerView]) -> Option<Vec<Reason>> {
    let lane = &facts["lane"];
    if !lane.is_null() {
        let ahead = lane["ahead"].as_u64()?;
        let holder = lane["holder"].as_str().and_then(|job| job.parse().ok());
        let reason = if let Some(job) = holder {
            Some(Reason::BehindItsKey { job })
        } else if lane["paused"].as_bool()? {
            Some(Reason::LanePaused { lane: u32::try_from(lane["lane"].as_u64()?).ok()? })
        } else if lane["busy"].as_bool()? {
            Some(Reason::LaneBusy { ahead })
        } else if lane["first"].as_bool()? {
            None
        } else {
            Some(Reason::BehindOthers { ahead, at_least: false })
        };
        if let Some(reason) = reason {
            return Some(vec![reason]);
        }
    }
    let mut reasons = Vec::new();
    let ahead = facts["ahead"].as_u64()?;
    if ahead > 0 {
        let at_least = ahead >= limits::EXPLAIN_AHEAD as u64;
        reasons.push(Reason::BehindOthers { ahead, at_least });
    }
    let queue = Name::new(facts["queue"].as_str()?).ok()?;
    let kind = Name::new(facts["kind"].as_str()?).ok()?;
    let takers = workers
        .iter()
        .filter(|worker| !worker.stopping && handles(worker, &kind) && listens(worker, &queue));
    let (busy, slots) = takers.fold((0, 0), |(busy, slots), worker| {
        (busy + worker.running, slots + u64::from(worker.info.slots))
    });
    if slots > 0 && busy >= slots {
        reasons.push(Reason::WorkersBusy { busy, slots });
    }
    Some(reasons)
}
