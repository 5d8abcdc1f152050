//! Adding it all up: nothing that was accepted may be missing.

use serde::Serialize;
use windlass::store::Durability;
use windlass::{Counts, Engine, StateName, StopReport};

use crate::demo::story::Tally;
use crate::output::{grouped, table};

/// What happened, and what is left.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) store: String,
    pub(crate) durability: String,
    /// A second request to stop came before the running jobs had finished.
    pub(crate) forced: bool,
    /// This and what follows counts over all runs on the store; what is only heard, and not kept,
    /// counts in this run: `snoozed`, `replayed`, `duplicates`, `flushed`, `loop_runs`, `fired`.
    pub(crate) enqueued: u64,
    pub(crate) completed: u64,
    /// Jobs among the dead letters now; `died` counts every death, also of those replayed since.
    pub(crate) dead: u64,
    pub(crate) cancelled: u64,
    /// Jobs that wait or run.
    pub(crate) open: u64,
    pub(crate) failed_attempts: u64,
    pub(crate) retried: u64,
    pub(crate) snoozed: u64,
    pub(crate) died: u64,
    pub(crate) replayed: u64,
    pub(crate) duplicates: u64,
    pub(crate) flushed: u64,
    pub(crate) loop_runs: u64,
    pub(crate) fired: u64,
    pub(crate) events_missed: u64,
    pub(crate) worker: WorkerReport,
    pub(crate) lost: i128,
    /// Jobs that were running when the run before was cut off.
    pub(crate) recovered: u64,
    pub(crate) note: String,
    #[serde(skip)]
    keeps: bool,
}

/// The worker's own report.
#[derive(Debug, Serialize)]
pub(crate) struct WorkerReport {
    completed: u64,
    failed: u64,
    snoozed: u64,
    cancelled: u64,
    interrupted: u64,
    lost: u64,
    abandoned: u64,
    #[serde(skip)]
    text: String,
}

impl From<StopReport> for WorkerReport {
    fn from(report: StopReport) -> Self {
        let text = report.to_string();
        let StopReport { completed, failed, snoozed, cancelled, interrupted, lost, abandoned } =
            report;
        Self { completed, failed, snoozed, cancelled, interrupted, lost, abandoned, text }
    }
}

impl Report {
    pub(crate) fn new(
        (store, engine): (&str, &Engine),
        counts: &Counts,
        tally: Tally,
        worker: StopReport,
        forced: bool,
    ) -> Self {
        let totals = counts.totals();
        let open = StateName::ALL.into_iter().filter(|state| !state.is_terminal());
        let open = open.map(|state| counts.in_state(state)).sum();
        let dead = counts.in_state(StateName::Dead);
        // Totals, because history is bounded: an old completed job is counted but no longer kept.
        let (completed, cancelled) = (totals.completed, totals.cancelled);
        let found = [completed, dead, cancelled, open].into_iter().map(i128::from).sum::<i128>();
        Self {
            store: store.to_string(),
            durability: engine.durability().to_string(),
            forced,
            enqueued: totals.enqueued,
            completed,
            dead,
            cancelled,
            open,
            failed_attempts: totals.failed,
            retried: totals.retried,
            snoozed: tally.snoozed,
            died: totals.dead,
            replayed: tally.replayed,
            duplicates: tally.duplicates,
            flushed: tally.flushed,
            loop_runs: tally.loop_runs,
            fired: tally.fired,
            events_missed: tally.missed,
            worker: worker.into(),
            lost: i128::from(totals.enqueued) - found,
            note: match engine.durability() {
                Durability::None => format!("`{store}` keeps nothing after exit"),
                Durability::Relaxed(_) | Durability::Sync => {
                    format!("`{store}` keeps everything: start again and it goes on")
                }
            },
            recovered: engine.opened().map_or(0, |opened| opened.recovered.len() as u64),
            keeps: engine.durability() != Durability::None,
        }
    }

    /// The report as a person reads it.
    pub(crate) fn text(&self) -> String {
        let mut rows = table(&["", ""]);
        let rows_of = [
            ("enqueued", self.enqueued, ""),
            ("completed", self.completed, ""),
            ("failed attempts", self.failed_attempts, ""),
            ("retried", self.retried, "of the failed attempts"),
            ("snoozed", self.snoozed, "in this run: called again later, not failed"),
            ("died", self.died, ""),
            ("replayed", self.replayed, "in this run, of those that died"),
            ("cancelled", self.cancelled, "closed by their corrected copies"),
            ("duplicates", self.duplicates, "in this run: recognised, nothing added"),
            ("flushed", self.flushed, "in this run: batches of edits"),
            ("loop runs", self.loop_runs, "in this run"),
            ("fired", self.fired, "in this run: times of the schedule"),
            ("recovered", self.recovered, "cut off with the run before"),
            ("dead", self.dead, "among the dead letters now"),
            ("open", self.open, "waiting, or interrupted"),
        ];
        for (name, number, remark) in rows_of {
            rows.add_row([name.to_string(), grouped(number), remark.to_string()]);
        }
        let rows = rows.trim_fmt();
        format!("{}\n{rows}\n\n{}\n{}", self.heading(), self.balance(), self.rest())
    }

    fn heading(&self) -> String {
        let how = if self.forced { "Stopped at once" } else { "Stopped gracefully" };
        format!("{how}. The worker: {}.", self.worker.text)
    }

    fn balance(&self) -> String {
        let (enqueued, completed) = (grouped(self.enqueued), grouped(self.completed));
        let verdict = match self.lost {
            0 => "Nothing was lost".to_string(),
            lost => format!("{lost} ARE UNACCOUNTED FOR"),
        };
        format!(
            "{verdict}: {enqueued} enqueued = {completed} completed + {} dead + {} cancelled + {} \
             open.",
            self.dead, self.cancelled, self.open
        )
    }

    /// What becomes of the open jobs.
    fn rest(&self) -> String {
        let note = &self.note;
        match (self.keeps, self.open) {
            (_, 0) => format!("{note}."),
            (false, 1) => format!("{note}: the open job ends here."),
            (false, open) => format!("{note}: the {open} open jobs end here."),
            (true, 1) => format!("{note} with the open job."),
            (true, open) => format!("{note} with the {open} open jobs."),
        }
    }
}
