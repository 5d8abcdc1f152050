//! A job's record, put together from the rows that hold parts of it.

use std::collections::VecDeque;
use std::sync::Arc;

use serde_json::Value;
use tokio_postgres::Row;
use windlass_core::job::{JobId, JobStatus, Lease, LeaseToken, State};
use windlass_core::limits;
use windlass_core::outcome::ErrorText;
use windlass_core::record::{AttemptEnd, AttemptRecord, JobRecord, LogLine, Progress, Step};
use windlass_core::time::Timestamp;

use super::spec::JobColumns;
use super::wire::{self, Read, UnknownValue};

/// What a record is made of, given `j`, `p`, `d`, `q` and `k` for a job, where it stands, its
/// attempt log, its queue and its kind.
pub(super) const COLUMNS: &str = "j.id, j.seq, q.name as queue, k.name as kind, j.payload, j.spec, \
    j.priority, j.start_kind, j.start_us, j.created_at, \
    p.state::bigint as state, p.at, p.updated_at, p.attempts, p.recoveries, p.generation, p.begun, \
    p.settled, p.first_started, p.met, p.token, p.worker, p.since, p.unmet, p.max_attempts, \
    p.cancel_requested, p.reason::bigint as reason, p.attempt_end::bigint as attempt_end, \
    p.output, d.error, d.attempts as diary_attempts, d.attempts_dropped, d.recovered_at, \
    d.progress, d.progress_token, d.log, d.log_dropped, \
    case when p.steps > 0 then \
      (select array_agg(s.name order by s.number) from windlass.step s where s.seq = j.seq) end \
      as step_names, \
    case when p.steps > 0 then \
      (select array_agg(s.result order by s.number) from windlass.step s where s.seq = j.seq) end \
      as step_results";

/// Where those stand.
pub(super) const TABLES: &str = "windlass.job j \
    join windlass.queue_kind l on l.id = j.queue_kind join windlass.queue q on q.id = l.queue \
    join windlass.kind k on k.id = l.kind \
    join windlass.job_state_now p on p.seq = j.seq \
    left join windlass.attempt_log d on d.seq = j.seq";

/// The record of a row with [`COLUMNS`].
pub(super) fn read(row: &Row) -> Read<JobRecord> {
    let job = Arc::new(JobColumns::of(row)?.into_job()?);
    let status = status(row)?;
    let (attempts, attempts_dropped) = attempts(row, &status)?;
    let token: Option<i64> = row.get("token");
    let progress: Option<Value> = row.get("progress");
    let of_last_attempt = row.get::<_, Option<i64>>("progress_token") == token;
    let log: Option<Value> = row.get("log");
    let met: Option<Vec<uuid::Uuid>> = row.get("met");
    Ok(JobRecord {
        job,
        sequence: row.get::<_, i64>("seq").cast_unsigned(),
        created_at: wire::time(row.get("created_at")),
        updated_at: wire::time(row.get("updated_at")),
        first_started_at: row.get::<_, Option<i64>>("first_started").map(wire::time),
        last_recovery_at: row.get::<_, Option<i64>>("recovered_at").map(wire::time),
        output: row.get::<_, Option<Vec<u8>>>("output").map(wire::bytes),
        error: row.get::<_, Option<&str>>("error").map(ErrorText::new),
        attempts,
        attempts_dropped,
        progress: progress.filter(|_| of_last_attempt).as_ref().and_then(read_progress),
        log: log.iter().flat_map(Value::as_array).flatten().filter_map(read_line).collect(),
        log_dropped: row.get::<_, Option<i32>>("log_dropped").unwrap_or(0).cast_unsigned(),
        met: met.unwrap_or_default().into_iter().map(wire::job_id).collect(),
        steps: steps(row.get("step_names"), row.get("step_results"))?,
        status,
    })
}

pub(super) fn steps(names: Option<Vec<String>>, results: Option<Vec<Vec<u8>>>) -> Read<Vec<Step>> {
    let steps = names.unwrap_or_default().into_iter().zip(results.unwrap_or_default());
    let step = |(name, result): (String, Vec<u8>)| {
        Ok(Step { name: wire::name(&name)?, result: wire::bytes(result) })
    };
    steps.map(step).collect()
}

fn status(row: &Row) -> Read<JobStatus> {
    let at: Option<i64> = row.get("at");
    let Some(at) = at.map(wire::time) else {
        let job: uuid::Uuid = row.get("id");
        return Err(UnknownValue(format!("job {job}, which stands nowhere")));
    };
    let reason = row.get::<_, Option<i64>>("reason").unwrap_or(0);
    let state = match row.get("state") {
        0_i64 => {
            let unmet = row.get::<_, Option<i32>>("unmet").unwrap_or(0).cast_unsigned();
            State::Blocked { unmet, not_before: at }
        }
        1 => State::Scheduled { at },
        2 => State::Ready { since: at },
        3 => State::Running(lease(row, at)),
        4 => State::Completed { at },
        5 => State::Dead { at, reason: wire::dead_reason(reason)? },
        6 => State::Cancelled { at, reason: wire::cancel_reason(reason)? },
        other => return Err(UnknownValue(format!("the state {other}"))),
    };
    Ok(JobStatus {
        state,
        attempts: row.get::<_, i32>("attempts").cast_unsigned(),
        recoveries: row.get::<_, i32>("recoveries").cast_unsigned(),
        generation: row.get::<_, i32>("generation").cast_unsigned(),
        begun: row.get("begun"),
        settled_by: match row.get("settled") {
            true => {
                row.get::<_, Option<i64>>("token").map(|token| LeaseToken(token.cast_unsigned()))
            }
            false => None,
        },
    })
}

fn lease(row: &Row, until: Timestamp) -> Lease {
    let runs = row.get::<_, Option<i64>>("max_attempts").unwrap_or(1);
    Lease {
        token: LeaseToken(row.get::<_, Option<i64>>("token").unwrap_or(0).cast_unsigned()),
        worker: row.get::<_, Option<&str>>("worker").unwrap_or_default().into(),
        since: wire::time(row.get::<_, Option<i64>>("since").unwrap_or(0)),
        until,
        max_attempts: u32::try_from(runs).unwrap_or(u32::MAX),
        cancel_requested: row.get("cancel_requested"),
    }
}

/// The attempts of the attempt log, and the one that runs or ended the job.
fn attempts(row: &Row, status: &JobStatus) -> Read<(VecDeque<AttemptRecord>, u32)> {
    let attempt_log: Option<Value> = row.get("diary_attempts");
    let mut attempts = VecDeque::new();
    for entry in attempt_log.iter().flat_map(Value::as_array).flatten() {
        attempts.push_back(read_attempt(entry)?);
    }
    let mut dropped = row.get::<_, Option<i32>>("attempts_dropped").unwrap_or(0).cast_unsigned();
    let end: Option<i64> = row.get("attempt_end");
    let last = match (&status.state, end) {
        (State::Running(lease), _) => Some((lease.since, None, None)),
        (
            State::Completed { at } | State::Dead { at, .. } | State::Cancelled { at, .. },
            Some(end),
        ) => {
            let end = wire::attempt_end(end)?;
            let error =
                matches!(end, AttemptEnd::Failed | AttemptEnd::Cancelled | AttemptEnd::Crashed(_));
            let error = row.get::<_, Option<&str>>("error").filter(|_| error).map(ErrorText::new);
            let since = wire::time(row.get::<_, Option<i64>>("since").unwrap_or(0));
            Some((since, Some((*at, end)), error))
        }
        _ => None,
    };
    if let Some((started_at, ended, error)) = last {
        if attempts.len() == limits::ATTEMPTS_KEPT {
            attempts.pop_front();
            dropped += 1;
        }
        let worker = row.get::<_, Option<&str>>("worker").unwrap_or_default().into();
        let number = status.attempts;
        attempts.push_back(AttemptRecord { number, worker, started_at, ended, error });
    }
    Ok((attempts, dropped))
}

fn read_attempt(entry: &Value) -> Read<AttemptRecord> {
    let number = |what: &str| {
        entry[what].as_i64().ok_or_else(|| UnknownValue(format!("the attempt {entry}")))
    };
    Ok(AttemptRecord {
        number: u32::try_from(number("number")?).unwrap_or(u32::MAX),
        worker: entry["worker"].as_str().unwrap_or_default().into(),
        started_at: wire::time(number("started")?),
        ended: Some((wire::time(number("ended")?), wire::attempt_end(number("end")?)?)),
        error: entry["error"].as_str().map(ErrorText::new),
    })
}

fn read_progress(value: &Value) -> Option<Progress> {
    let percent = u8::try_from(value["percent"].as_u64()?).ok()?;
    Some(Progress { percent, note: value["note"].as_str()?.to_string() })
}

fn read_line(value: &Value) -> Option<LogLine> {
    Some(LogLine {
        at: wire::time(value["at"].as_i64()?),
        attempt: u32::try_from(value["attempt"].as_u64()?).ok()?,
        text: value["text"].as_str()?.to_string(),
    })
}

/// The id of a row, for rows that may be of no job.
pub(super) fn id(row: &Row) -> Option<JobId> {
    row.get::<_, Option<uuid::Uuid>>("id").map(wire::job_id)
}
