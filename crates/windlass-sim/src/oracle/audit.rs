//! Everything a user can see against everything that was told.

use std::collections::BTreeMap;

use windlass_core::job::{JobId, State, StateName};
use windlass_core::ledger::Totals;
use windlass_core::name::Name;
use windlass_core::record::JobRecord;

use super::Oracle;
use super::model::Told;
use crate::answer::Snapshot;
use crate::{Checked, Violation, ensure};

impl Oracle {
    pub(super) fn compare(&self, snapshot: &Snapshot) -> Checked {
        for record in &snapshot.jobs {
            self.compare_found(record.id(), Some(record))?;
        }
        for id in self.model.jobs.keys() {
            let found = snapshot.jobs.iter().any(|record| record.id() == *id);
            ensure!(found, "job {id} was acknowledged or told of, and is not there");
        }
        let place = |record: &JobRecord| self.model.jobs[&record.id()].place;
        let ordered = snapshot
            .jobs
            .is_sorted_by(|one, next| one.sequence > next.sequence && place(one) > place(next));
        ensure!(ordered, "jobs are not listed in the order of acceptance");
        self.model.check_blocked()?;
        self.compare_objects(snapshot)?;
        self.compare_counts(snapshot)
    }

    pub(super) fn compare_found(&self, id: JobId, record: Option<&JobRecord>) -> Checked {
        match (self.model.jobs.get(&id), record) {
            (None, None) => Ok(()),
            (Some(told), Some(record)) => compare_job(told, record).map_err(|Violation(why)| {
                Violation(format!("job {id} differs in {why}: told was {told:?}, found {record:?}"))
            }),
            (Some(_), None) => {
                Err(Violation(format!("job {id} was acknowledged or told of, and is not found")))
            }
            (None, Some(record)) => {
                Err(Violation(format!("job {id} is there and should not be: {record:?}")))
            }
        }
    }

    fn compare_counts(&self, snapshot: &Snapshot) -> Checked {
        let mut scanned: BTreeMap<(&Name, &Name), [u64; 7]> = BTreeMap::new();
        for record in &snapshot.jobs {
            let line = (&record.job.queue, &record.job.kind);
            scanned.entry(line).or_default()[record.state() as usize] += 1;
        }
        let counts = &snapshot.counts;
        for line in &counts.lines {
            let found = scanned.remove(&(&line.queue, &line.kind)).unwrap_or_default();
            let (queue, kind) = (&line.queue, &line.kind);
            ensure!(found == line.states, "{queue}/{kind} counts {:?}, is {found:?}", line.states);
            let told = self.model.totals.get(&(queue.clone(), kind.clone()));
            let told = told.copied().unwrap_or_default();
            ensure!(told == line.totals, "{queue}/{kind} totals {:?}, told {told:?}", line.totals);
        }
        ensure!(scanned.is_empty(), "jobs of lines that are not counted: {scanned:?}");
        for ((queue, kind), totals) in &self.model.totals {
            let listed = counts.lines.iter().any(|line| (&line.queue, &line.kind) == (queue, kind));
            ensure!(listed || *totals == Totals::default(), "{queue}/{kind} is forgotten");
        }
        for queue in &counts.queues {
            let name = &queue.queue;
            let (told, set) = (self.model.settings(name), &queue.settings);
            ensure!(told == *set, "{name} is set to {set:?} and should be to {told:?}");
            let waiting = self.model.waiting(name);
            ensure!(waiting == queue.waiting, "{name} counts {}, told {waiting}", queue.waiting);
            let dropped = self.model.dropped.get(name).copied().unwrap_or(0);
            let counted = queue.dead_letters_dropped;
            ensure!(dropped == counted, "{name} dropped {counted} dead letters, told {dropped}");
        }
        for (name, settings) in &self.model.settings {
            let known = counts.queues.iter().any(|queue| queue.queue == *name);
            ensure!(known || *settings == Default::default(), "the settings of {name} are lost");
        }
        Ok(())
    }
}

fn compare_job(told: &Told, record: &JobRecord) -> Checked {
    let status = &record.status;
    ensure!(told.stand.looks_like(&status.state), "its state");
    let same_counts = (told.attempts, told.recoveries, told.generation)
        == (status.attempts, status.recoveries, status.generation);
    ensure!(same_counts, "its counters");
    ensure!(told.job == record.job, "what its producer said");
    ensure!(told.created_at == record.created_at, "when it was accepted");
    ensure!(told.output == record.output, "its output");
    ensure!(told.last_recovery_at == record.last_recovery_at, "when it was last recovered");
    let starts = record.attempts.len() + record.attempts_dropped as usize;
    ensure!(told.starts as usize == starts, "it has started {starts} times");
    let lines = record.log.len() + record.log_dropped as usize;
    for step in &told.steps {
        ensure!(record.steps.contains(step), "its finished step `{}` is gone", step.name);
    }
    ensure!(told.lines.is_none_or(|told| told == lines), "its log has {lines} lines");
    let met: std::collections::BTreeSet<JobId> = record.met.iter().copied().collect();
    ensure!(told.stand.is_terminal() || told.met == met, "which dependencies are met");
    ensure!(told.settled_by == status.settled_by, "under which lease it was settled");
    if let State::Running(lease) = &status.state {
        ensure!(told.token == Some(lease.token), "its lease");
        ensure!(told.cancel_requested == lease.cancel_requested, "whether it was asked to stop");
    }
    if record.state() == StateName::Completed {
        ensure!(record.error.is_none(), "it completed and has an error");
    }
    Ok(())
}
