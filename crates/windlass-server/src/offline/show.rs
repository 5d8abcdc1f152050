//! `windlass show`: everything about one job, and why it is not running.

use serde::Serialize;
use windlass::core::job::Lane;
use windlass::{Explanation, JobRecord, JobState, Reason};

use crate::cli::{Format, ShowOptions};
use crate::offline::look::Look;
use crate::output::{self, Failure, NOT_FOUND, text_table};
use windlass_server::view::{Content, Whole, content};

/// Shows a job.
pub(crate) fn run(options: &ShowOptions) -> anyhow::Result<()> {
    let mut look = Look::open(&options.path)?;
    let id = options.id;
    let Some(job) = look.find(id)? else {
        let path = options.path.display();
        let text = format!(
            "there is no job {id} in {path}: it was never accepted there, or its history is gone; \
             `windlass list {path}` shows which are there"
        );
        return Err(Failure::because(NOT_FOUND, text));
    };
    let why = why(&job, &look.explain(id)?);
    match options.output {
        Format::Table => output::line(&text(&job, &why)),
        Format::Json => output::json(&Shown { job: Whole::of(&job), why_not_running: why }),
    }
}

#[derive(Serialize)]
struct Shown<'a> {
    #[serde(flatten)]
    job: Whole<'a>,
    why_not_running: Vec<String>,
}

/// The reasons, in words. That no worker is there is not worth saying: nobody has the store open.
fn why(job: &JobRecord, explanation: &Explanation) -> Vec<String> {
    if let JobState::Running(lease) = &job.status.state {
        let asked = if lease.cancel_requested { ", and then cancelled as was asked" } else { "" };
        return vec![format!(
            "it had been started by {} when the store was last open; it is recovered when the \
             store is opened again{asked}",
            lease.worker
        )];
    }
    let of_workers = |reason: &&Reason| {
        matches!(reason, Reason::NoWorkerForKind { .. } | Reason::NoWorkerForQueue { .. })
    };
    let reasons = explanation.reasons.iter().filter(|reason| !of_workers(reason));
    let mut reasons: Vec<String> = reasons.map(ToString::to_string).collect();
    if reasons.is_empty() {
        reasons.push("nobody has the store open; a worker for its kind would start it".to_string());
    }
    reasons
}

fn text(job: &JobRecord, why: &[String]) -> String {
    let mut parts = vec![head(job), section("why it is not running", &why.join("\n"))];
    parts.push(section("payload", &readable(&job.job.payload)));
    parts.extend(job.output.as_deref().map(|output| section("output", &readable(output))));
    let error = job.error.as_ref();
    parts.extend(error.map(|error| section("last error", error.as_str())));
    parts.extend(steps(job));
    parts.extend(attempts(job));
    parts.extend(log(job));
    parts.join("\n\n")
}

pub(super) fn section(title: &str, text: &str) -> String {
    let lines = text.lines().map(|line| format!("\n  {line}"));
    format!("{title}:{}", lines.collect::<String>())
}

/// Indented if it is JSON, as it is if it is text, and in hexadecimal otherwise.
pub(super) fn readable(bytes: &[u8]) -> String {
    match content(bytes) {
        Content::Json(json) => {
            let value: Option<serde_json::Value> = serde_json::from_str(json.get()).ok();
            let pretty = value.and_then(|value| serde_json::to_string_pretty(&value).ok());
            pretty.unwrap_or_else(|| json.get().to_string())
        }
        Content::Text(text) => text.to_string(),
        Content::Hex(hex) => hex,
    }
}

fn head(job: &JobRecord) -> String {
    let new = &job.job;
    let mut rows = text_table(&[]);
    let mut row = |name: &str, value: String| {
        if !value.is_empty() {
            rows.add_row([name.to_string(), value]);
        }
    };
    row("kind", new.kind.to_string());
    row("queue", new.queue.to_string());
    row("state", job.state().to_string());
    row("priority", new.priority.0.to_string());
    row("accepted", format!("{} (number {})", job.created_at, job.sequence));
    row("last changed", job.updated_at.to_string());
    let count = |number: u32| if number == 0 { String::new() } else { number.to_string() };
    row("starts", job.status.attempts.to_string());
    row("recoveries", count(job.status.recoveries));
    row("replays", count(job.status.generation));
    row("tags", joined(&new.tags));
    row("unique key", new.unique.as_ref().map(|unique| unique.key.clone()).unwrap_or_default());
    row("lane", new.lane.as_ref().map(lane).unwrap_or_default());
    row("object", new.object.as_ref().map(ToString::to_string).unwrap_or_default());
    row("parent", new.parent.map(|parent| parent.to_string()).unwrap_or_default());
    for on in &new.depends_on {
        let met = if job.met.contains(&on.on) { "met" } else { "not met" };
        row("depends on", format!("{} ({met})", on.on));
    }
    for (key, value) in &new.metadata {
        row("metadata", format!("{key} = {value}"));
    }
    let progress = job.progress.as_ref();
    let progress = progress.map(|progress| format!("{} % {}", progress.percent, progress.note));
    row("progress", progress.unwrap_or_default());
    format!("job {}\n{}", job.id(), rows.trim_fmt())
}

fn lane(lane: &Lane) -> String {
    match lane {
        Lane::Key(key) => format!("that of key {key}"),
        Lane::Turn(turn) => format!("number {turn} of those without a key"),
        Lane::Spread => "not chosen yet".to_string(),
    }
}

fn joined(names: &[windlass::Name]) -> String {
    names.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// The finished steps of its handler, each with the first line of what it returned.
fn steps(job: &JobRecord) -> Option<String> {
    let lines = job.steps.iter().map(|step| {
        let result = match content(&step.result) {
            Content::Json(json) => json.get().to_string(),
            Content::Text(text) => text.lines().next().unwrap_or_default().to_string(),
            Content::Hex(hex) => hex,
        };
        let cut = result.chars().take(STEP_COLUMNS).collect::<String>();
        let more = if cut.len() < result.len() { " …" } else { "" };
        format!("{}: {cut}{more}", step.name)
    });
    listed("finished steps", 0, lines)
}

/// How much of a step's result fits a line; JSON output has all of it.
const STEP_COLUMNS: usize = 80;

fn attempts(job: &JobRecord) -> Option<String> {
    let lines = job.attempts.iter().map(|attempt| {
        let end = match attempt.ended {
            Some((at, end)) => {
                let millis = at.since(attempt.started_at).as_millis();
                let why = end.recovery().filter(|why| why.as_str() != end.as_str());
                let why = why.map(|why| format!(" ({})", why.as_str())).unwrap_or_default();
                format!("{}{why} after {millis} ms", end.as_str())
            }
            None => "not ended".to_string(),
        };
        let error = attempt.error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
        let (number, worker) = (attempt.number, &attempt.worker);
        format!("{number}. {} by {worker}, {end}{error}", attempt.started_at)
    });
    listed("attempts", job.attempts_dropped, lines)
}

fn log(job: &JobRecord) -> Option<String> {
    let lines = job.log.iter().map(|line| format!("{} [{}] {}", line.at, line.attempt, line.text));
    listed("log", job.log_dropped, lines)
}

fn listed(title: &str, dropped: u32, lines: impl Iterator<Item = String>) -> Option<String> {
    let mut lines: Vec<String> = lines.collect();
    if dropped > 0 {
        lines.insert(0, format!("({dropped} earlier ones are no longer kept)"));
    }
    (!lines.is_empty()).then(|| section(title, &lines.join("\n")))
}
