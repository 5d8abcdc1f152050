//! `windlass list`: one line per job.

use serde::Serialize;
use windlass::core::filter::Order;
use windlass::core::limits;
use windlass::{Cursor, JobRecord, JobState};

use crate::cli::{ListFormat, ListOptions};
use crate::offline::Pages;
use crate::offline::look::Look;
use crate::output::{self, text_table};
use windlass_server::view::Brief;

/// Lists jobs, the last accepted first, or the first.
pub(crate) fn run(options: &ListOptions) -> anyhow::Result<()> {
    let mut look = Look::open(&options.path)?;
    let mut filter = options.which.filter(&[]);
    if options.oldest_first {
        filter.order = Order::OldestFirst;
    }
    let limit = usize::try_from(options.limit)?;
    let mut pages = Pages::new(&mut look, &filter, options.after.map(Cursor));
    let mut jobs = Vec::new();
    while jobs.len() < limit
        && let Some(page) = pages.next((limit - jobs.len()).min(limits::PAGE_JOBS))?
    {
        jobs.extend(page);
    }
    let next = pages.after;
    match options.output {
        ListFormat::Table => table(&jobs)?,
        ListFormat::Json => output::json(&ListedJobs::new(&jobs, next))?,
        ListFormat::Jsonl => jobs.iter().try_for_each(|job| output::json(&Brief::of(job)))?,
    }
    if let Some(Cursor(next)) = next.filter(|_| options.output != ListFormat::Json) {
        output::remark(&format!("There may be more: go on with --after {next}"));
    }
    Ok(())
}

/// A page as one JSON object.
#[derive(Serialize)]
struct ListedJobs<'a> {
    jobs: Vec<Brief<'a>>,
    /// What `--after` takes to go on; `null` at the end.
    next: Option<u64>,
}

impl<'a> ListedJobs<'a> {
    fn new(jobs: &'a [JobRecord], next: Option<Cursor>) -> Self {
        let next = next.map(|Cursor(next)| next);
        Self { jobs: jobs.iter().map(Brief::of).collect(), next }
    }
}

fn table(jobs: &[JobRecord]) -> anyhow::Result<()> {
    if jobs.is_empty() {
        return output::line("No job matches.");
    }
    let mut rows = text_table(&["id", "state", "kind", "queue", "starts", "accepted", ""]);
    for job in jobs {
        rows.add_row([
            job.id().to_string(),
            job.state().to_string(),
            job.job.kind.to_string(),
            job.job.queue.to_string(),
            job.status.attempts.to_string(),
            job.created_at.to_string(),
            remark(job),
        ]);
    }
    output::line(&rows.trim_fmt())
}

/// Characters of the last column.
const REMARK: usize = 60;

/// What the state alone does not say.
fn remark(job: &JobRecord) -> String {
    let text = status(job);
    let line = text.lines().next().unwrap_or_default();
    let bound = job.job.object.as_ref().map(ToString::to_string);
    let said = bound.into_iter().chain((!line.is_empty()).then(|| line.to_string()));
    cut(&said.collect::<Vec<_>>().join(": "))
}

fn status(job: &JobRecord) -> String {
    let error = job.error.as_ref().map(|error| error.as_str()).unwrap_or_default();
    match &job.status.state {
        JobState::Blocked { unmet: 1, .. } => "waits for 1 job".to_string(),
        JobState::Blocked { unmet, .. } => format!("waits for {unmet} jobs"),
        JobState::Scheduled { at } if error.is_empty() => format!("due {at}"),
        JobState::Scheduled { at } => format!("again {at}: {error}"),
        JobState::Ready { .. } | JobState::Completed { .. } => String::new(),
        JobState::Running(lease) => format!("started by {}", lease.worker),
        JobState::Dead { reason, .. } if error.is_empty() => reason.to_string(),
        JobState::Dead { .. } => error.to_string(),
        JobState::Cancelled { reason, .. } => reason.to_string(),
    }
}

/// So much of a line as fits the last column.
pub(super) fn cut(line: &str) -> String {
    match line.char_indices().nth(REMARK) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.to_string(),
    }
}
