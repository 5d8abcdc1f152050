//! Which jobs a filter means: a page of a list, and the choice of a change of many.
//!
//! The ledger itself knows state, kind and queue of a job. What else a filter asks for only its
//! record can tell.
//!
//! Answers: a change of all jobs with a tag is one commit, and may have to read a million records.
//! Why not simpler: to read them all with the ledger locked would stop everybody. So a call reads
//! at most [`PAGE_READS`] of them and lets others go first; it chooses, and changes, when no job is
//! left whose record it does not know. What of a record a filter asks for never changes.
//! Guarded by: `a_filter_that_needs_many_records_means_exactly_those_that_match_at_the_commit` in
//! `tests/main/files/reopening.rs`.

use std::collections::HashMap;

use windlass_core::filter::{Filter, Order};
use windlass_core::job::JobId;
use windlass_core::ledger::JobSummary;
use windlass_core::limits;
use windlass_core::time::{Now, Timestamp};

use super::{RecordedLedger, Records};
use crate::store::{Answer, Cursor, Page, Selection};

/// Records that one call may read when only they can tell whether they match.
const PAGE_READS: usize = 2_000;

/// What is known of the jobs that a filter may mean and only their records can tell.
#[derive(Debug, Default)]
pub struct SelectionProgress {
    is_meant: HashMap<JobId, bool>,
    /// How far it has come, in the order of acceptance; 0 at the beginning.
    after: u64,
}

impl<R: Records> RecordedLedger<R> {
    /// Reads a page of jobs, in the order that the filter says.
    pub fn list(
        &mut self,
        filter: &Filter,
        after: Option<Cursor>,
        limit: usize,
        now: Now,
    ) -> Answer<Page> {
        self.usable()?;
        let now = self.ledger.glance(now).wall;
        let limit = limit.clamp(1, limits::PAGE_JOBS);
        let (candidates, next) = self.candidates(filter, after, limit.max(PAGE_READS));
        let mut page = Page { next, ..Page::default() };
        for (sequence, job) in candidates {
            if page.jobs.len() == limit {
                page.next = Some(Cursor(filter.order.cursor(sequence)));
                break;
            }
            let record = self.records.job(&self.ledger, job)?;
            let meant = record.filter(|record| filter.matches(record, now));
            page.jobs.extend(meant.map(|record| record.into_owned().seen_at(now)));
        }
        page.count = page.jobs.len() as u64;
        Ok(page)
    }

    /// Counts the jobs that match, as far as one call looks. Reads records only if it must.
    pub fn count_matching(
        &mut self,
        filter: &Filter,
        after: Option<Cursor>,
        now: Now,
    ) -> Answer<Page> {
        self.usable()?;
        let now = self.ledger.glance(now).wall;
        let most = if filter.needs_record() { PAGE_READS } else { limits::PAGE_SCAN };
        let (candidates, next) = self.candidates(filter, after, most);
        if !filter.needs_record() {
            return Ok(Page { count: candidates.len() as u64, next, ..Page::default() });
        }
        let mut page = Page { next, ..Page::default() };
        for (_, job) in candidates {
            let record = self.records.job(&self.ledger, job)?;
            page.count += u64::from(record.is_some_and(|record| filter.matches(&record, now)));
        }
        Ok(page)
    }

    /// Jobs from a cursor on that may match, at most so many, and where to go on.
    fn candidates(
        &self,
        filter: &Filter,
        after: Option<Cursor>,
        most: usize,
    ) -> (Vec<(u64, JobId)>, Option<Cursor>) {
        let summaries = self.ledger.candidates(filter, after.map(|Cursor(place)| place));
        let mut candidates = Vec::new();
        for (looked_at, summary) in summaries.enumerate() {
            if looked_at == limits::PAGE_SCAN || candidates.len() == most {
                return (candidates, Some(Cursor(filter.order.cursor(summary.sequence))));
            }
            if filter.may_match(&summary) {
                candidates.push((summary.sequence, summary.id));
            }
        }
        (candidates, None)
    }

    /// The jobs that are meant, by acceptance if they are chosen by a filter. `None` if more
    /// records have to be read than one call may: then ask again, with the `progress` so far.
    pub fn select(
        &mut self,
        selection: &Selection,
        progress: &mut SelectionProgress,
        now: Now,
    ) -> Answer<Option<Vec<JobId>>> {
        self.usable()?;
        let now = self.ledger.glance(now).wall;
        let filter = match selection {
            Selection::Jobs(jobs) => return Ok(Some(jobs.clone())),
            Selection::Matching(filter) => filter,
        };
        let by_acceptance = Filter { order: Order::OldestFirst, ..filter.clone() };
        let anew = progress.after == 0;
        self.read_unknown(&by_acceptance, progress, now)?;
        if !anew || progress.after > 0 {
            return Ok(None);
        }
        // Every job that may match was read, in this call or an earlier one.
        let is_meant = |summary: &JobSummary<'_>| {
            filter.may_match(summary)
                && progress.is_meant.get(&summary.id).is_none_or(|meant| *meant)
        };
        let candidates = self.ledger.candidates(&by_acceptance, None);
        Ok(Some(candidates.filter(is_meant).map(|summary| summary.id).collect()))
    }

    /// Reads some of the records that have to be read. `progress.after` is 0 if none is left.
    fn read_unknown(
        &mut self,
        filter: &Filter,
        progress: &mut SelectionProgress,
        now: Timestamp,
    ) -> Answer<()> {
        let unknown = |summary: &JobSummary<'_>| {
            filter.needs_record()
                && filter.may_match(summary)
                && !progress.is_meant.contains_key(&summary.id)
        };
        let next = progress.after.saturating_add(1);
        let summaries = self.ledger.candidates(filter, Some(next)).filter(unknown);
        let unread: Vec<(u64, JobId)> =
            summaries.map(|summary| (summary.sequence, summary.id)).take(PAGE_READS).collect();
        for (sequence, job) in &unread {
            let record = self.records.job(&self.ledger, *job)?;
            let is_meant = record.is_some_and(|record| filter.matches(&record, now));
            progress.is_meant.insert(*job, is_meant);
            progress.after = *sequence;
        }
        if unread.len() < PAGE_READS {
            progress.after = 0;
        }
        Ok(())
    }
}
