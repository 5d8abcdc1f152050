//! Adding it all up: nothing that was accepted may be missing.

use serde::Serialize;
use windlass::{Counts, StateName, StopReport};

use crate::demo::STORE;
use crate::demo::story::Tally;
use crate::output::{grouped, table};

/// What happened, and what is left.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) store: &'static str,
    /// A second request to stop came before the running jobs had finished.
    pub(crate) forced: bool,
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
    pub(crate) events_missed: u64,
    pub(crate) worker: WorkerReport,
    pub(crate) lost: i128,
    pub(crate) note: String,
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
    pub(crate) fn new(counts: &Counts, tally: Tally, worker: StopReport, forced: bool) -> Self {
        let totals = counts.totals();
        let open = StateName::ALL.into_iter().filter(|state| !state.is_terminal());
        let open = open.map(|state| counts.in_state(state)).sum();
        let dead = counts.in_state(StateName::Dead);
        // Totals, because history is bounded: an old completed job is counted but no longer kept.
        let (completed, cancelled) = (totals.completed, totals.cancelled);
        let found = [completed, dead, cancelled, open].into_iter().map(i128::from).sum::<i128>();
        Self {
            store: STORE,
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
            events_missed: tally.missed,
            worker: worker.into(),
            lost: i128::from(totals.enqueued) - found,
            note: format!("`{STORE}` keeps nothing after exit"),
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
            ("snoozed", self.snoozed, "called again later, not failed"),
            ("died", self.died, ""),
            ("replayed", self.replayed, "of those that died"),
            ("cancelled", self.cancelled, "closed by their corrected copies"),
            ("duplicates", self.duplicates, "recognised, nothing added"),
            ("dead", self.dead, "among the dead letters now"),
            ("open", self.open, "waiting, or interrupted"),
        ];
        for (name, number, remark) in rows_of {
            rows.add_row([name.to_string(), grouped(number), remark.to_string()]);
        }
        let rows = rows.trim_fmt();
        format!("{}\n{rows}\n\n{}\n{}", self.heading(), self.balance(), self.memory())
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

    fn memory(&self) -> String {
        match self.open {
            0 => format!("{}.", self.note),
            1 => format!("{}: the open job ends here.", self.note),
            open => format!("{}: the {open} open jobs end here.", self.note),
        }
    }
}
