//! `windlass retry` and `windlass cancel`: jobs are tried again, or called off, in one commit.
//!
//! The store is opened without recovering what was running, and with no bound on what it keeps:
//! only whoever works with it knows which bounds it should have.

use std::io::{IsTerminal, Write, stderr, stdin};
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use serde::Serialize;
use windlass::clock::SystemClock;
use windlass::core::filter::Filter;
use windlass::core::limits;
use windlass::store::file::{FileOptions, FileStore, LedgerOptions, RealDisk};
use windlass::store::{AlterJobs, JobAction, JobActionResult, Selection, Store};
use windlass::wake::LocalWake;
use windlass::{
    Actor, CancelAnswer, JobActionDone, Limits, OpenError, Recovery, RecoveryMode, Refusal,
    StateName,
};

use crate::cli::{ChangeOptions, Format};
use crate::offline::Pages;
use crate::offline::look::{Joined, Look};
use crate::output::{self, FAILED, Failure, NOT_FOUND, USAGE, counted, grouped};

/// What is done to jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Retry,
    Cancel,
}

impl Verb {
    fn alteration(self) -> JobAction {
        match self {
            Verb::Retry => JobAction::Replay,
            Verb::Cancel => JobAction::Cancel,
        }
    }

    /// The states it is about, if none are named.
    fn states(self) -> &'static [StateName] {
        match self {
            Verb::Retry => &[StateName::Dead],
            Verb::Cancel => {
                &[StateName::Blocked, StateName::Scheduled, StateName::Ready, StateName::Running]
            }
        }
    }

    fn question(self, jobs: u64) -> String {
        match self {
            Verb::Retry => format!("Try {} again?", counted(jobs, "job")),
            Verb::Cancel => format!("Call {} off?", counted(jobs, "job")),
        }
    }
}

/// Changes the jobs that were named, or that match.
pub(crate) fn run(options: &ChangeOptions, verb: Verb) -> anyhow::Result<()> {
    let selection = if options.ids.is_empty() {
        let filter = options.which.filter(verb.states());
        let jobs = count(&options.path, &filter)?;
        if jobs > 0 && !confirmed(verb, jobs, options.yes)? {
            return output::line("Nothing was changed.");
        }
        Selection::Matching(filter)
    } else {
        Selection::Jobs(options.ids.clone())
    };
    let altered = alter(&options.path, selection, verb.alteration())?;
    let report = ChangeReport::of(&altered);
    match options.output {
        Format::Table => output::line(&report.text(verb, !options.ids.is_empty()))?,
        Format::Json => output::json(&report)?,
    }
    report.failure(&altered)
}

/// How many jobs match. The counters know, unless tags are asked for.
fn count(path: &Path, filter: &Filter) -> anyhow::Result<u64> {
    let mut look = Look::open(path)?;
    if filter.tags.is_empty() {
        let counts = look.counts()?;
        let meant = counts.lines.iter().filter(|line| {
            (filter.kinds.is_empty() || filter.kinds.contains(&line.kind))
                && (filter.queues.is_empty() || filter.queues.contains(&line.queue))
        });
        let jobs =
            meant.flat_map(|line| filter.states.iter().map(|state| line.states[*state as usize]));
        return Ok(jobs.sum());
    }
    let mut pages = Pages::new(&mut look, filter, None);
    let mut jobs = 0;
    while let Some(page) = pages.next(limits::PAGE_JOBS)? {
        jobs += page.len() as u64;
    }
    Ok(jobs)
}

fn confirmed(verb: Verb, jobs: u64, yes: bool) -> anyhow::Result<bool> {
    if yes {
        return Ok(true);
    }
    if !stdin().is_terminal() {
        let text = format!(
            "{} would be changed, and there is no terminal to ask on; add --yes to do it",
            counted(jobs, "job")
        );
        return Err(Failure::because(USAGE, text));
    }
    write!(stderr(), "{} [y/N] ", verb.question(jobs)).context("cannot ask")?;
    let mut answer = String::new();
    stdin().read_line(&mut answer).context("no answer can be read")?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}

/// Who acts, as the environment says: it is told of in the audit trail. `None` if it does not say.
fn user() -> Option<Actor> {
    let name = ["USER", "LOGNAME"].into_iter().find_map(|name| std::env::var(name).ok())?;
    Actor::new(&name).and_then(|user| user.from("the command `windlass`")).ok()
}

fn alter(
    path: &Path,
    selection: Selection,
    alteration: JobAction,
) -> anyhow::Result<Vec<JobActionResult>> {
    let alter = AlterJobs { by: user(), ..AlterJobs::new(selection, alteration) };
    // Opening would make a store where there is none.
    match RealDisk::open_existing(path) {
        Ok(free) => drop(free),
        Err(OpenError::InUse { .. }) => {
            return Ok(Joined::open(path)?.ask(async |store| store.alter(alter).await)?);
        }
        Err(error) => return Err(error.into()),
    }
    let unbounded = Limits {
        payload_bytes: limits::PAYLOAD_BYTES_MAX,
        dead_letters: usize::MAX,
        history_age: limits::DELAY_MAX,
        history_jobs: usize::MAX,
        audit_entries: usize::MAX,
    };
    let recovery = Recovery { mode: RecoveryMode::Observe, ..Recovery::default() };
    let ledger = LedgerOptions { limits: unbounded, recovery, ..LedgerOptions::default() };
    let options = FileOptions { ledger, ..FileOptions::default() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (clock, wake) = (Arc::new(SystemClock::new()), Arc::new(LocalWake::new()));
        let store = FileStore::open(path, &options, clock, wake)?;
        let altered = store.alter(alter).await;
        store.close().await;
        Ok(altered?)
    })
}

/// What was done.
#[derive(Debug, Default, Serialize)]
struct ChangeReport {
    changed: Vec<String>,
    /// Jobs that were cancelled already, or as dependents of one before them.
    already: Vec<String>,
    /// Among those changed: jobs that had been started and are cancelled when they are recovered.
    later: Vec<String>,
    refused: Vec<Refused>,
}

#[derive(Debug, Serialize)]
struct Refused {
    job: String,
    why: String,
}

impl ChangeReport {
    fn of(altered: &[JobActionResult]) -> Self {
        let mut report = Self::default();
        for JobActionResult { job, result } in altered {
            let job = job.to_string();
            match result {
                Ok(deed) => {
                    if *deed == JobActionDone::Cancel(CancelAnswer::Requested) {
                        report.later.push(job.clone());
                    }
                    report.changed.push(job);
                }
                Err(Refusal::WrongState { state: StateName::Cancelled, .. }) => {
                    report.already.push(job);
                }
                Err(refusal) => report.refused.push(Refused { job, why: refusal.to_string() }),
            }
        }
        report
    }

    fn text(&self, verb: Verb, each: bool) -> String {
        let mut lines = Vec::new();
        if each {
            let what = match verb {
                Verb::Retry => "starts over",
                Verb::Cancel => "is called off",
            };
            lines.extend(self.changed.iter().map(|job| format!("{job} {what}")));
            lines.extend(self.already.iter().map(|job| format!("{job} is called off already")));
        }
        let dependents = if each { 0 } else { self.already.len() };
        let number = (self.changed.len() + dependents) as u64;
        let jobs = counted(number, "job");
        lines.push(match (number, verb) {
            (0, _) if self.refused.is_empty() && !each => {
                "No job matches; nothing was changed.".to_string()
            }
            (0, _) => "Nothing was changed.".to_string(),
            (1, Verb::Retry) => format!("{jobs} starts over when the store is next opened."),
            (_, Verb::Retry) => format!("{jobs} start over when the store is next opened."),
            (1, Verb::Cancel) => format!("{jobs} is called off."),
            (_, Verb::Cancel) => format!("{jobs} are called off."),
        });
        if !self.later.is_empty() {
            lines.push(format!(
                "{} of them had been started, and will be cancelled when the store is next opened.",
                grouped(self.later.len() as u64)
            ));
        }
        lines.join("\n")
    }

    /// Complains of what was refused.
    fn failure(&self, altered: &[JobActionResult]) -> anyhow::Result<()> {
        if self.refused.is_empty() {
            return Ok(());
        }
        for refused in self.refused.iter().take(SHOWN) {
            output::complain(&refused.why);
        }
        if self.refused.len() > SHOWN {
            let more = grouped((self.refused.len() - SHOWN) as u64);
            output::remark(&format!("… and {more} more were refused"));
        }
        let unknown =
            |altered: &JobActionResult| matches!(altered.result, Err(Refusal::UnknownJob { .. }));
        let code = if altered.iter().any(unknown) { NOT_FOUND } else { FAILED };
        Err(Failure::told(code))
    }
}

/// How many refusals are printed.
const SHOWN: usize = 20;
