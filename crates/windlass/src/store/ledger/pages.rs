//! Which jobs a filter means: a page of a list, and the choice of a change of many.
//!
//! The ledger itself knows state, kind and queue of a job. What else a filter asks for only its
//! record can tell.
//!
//! Answers: a change of all jobs with a tag may have to read a million records.
//! Why not simpler: to read them all with the ledger locked would stop everybody. So a call looks
//! at [`limits::PAGE_SCAN`] jobs and reads [`limits::PAGE_READS`] records at most, and lets others
//! go first before it goes on.
//! Guarded by: `a_filter_means_those_that_match_in_their_chunk_and_none_that_came_later` in
//! `tests/main/files/reopening.rs`.

use windlass_core::filter::{Filter, Order};
use windlass_core::job::JobId;
use windlass_core::ledger::BulkProgress;
use windlass_core::limits;
use windlass_core::time::Now;

use super::{RecordedLedger, Records};
use crate::store::{Answer, Cursor, Page};

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
        let (candidates, next) = self.candidates(filter, after, limits::PAGE_READS);
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
        let most = if filter.needs_record() { limits::PAGE_READS } else { limits::PAGE_SCAN };
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
            if self.ledger.may_mean(filter, &summary) {
                candidates.push((summary.sequence, summary.id));
            }
        }
        (candidates, None)
    }

    /// The next jobs, by acceptance, that a filter means and a bulk change is about, at most so
    /// many. There may be none and the change still not be done: others should have their turn.
    pub fn select(
        &mut self,
        filter: &Filter,
        bulk: &mut BulkProgress,
        most: usize,
        now: Now,
    ) -> Answer<Vec<JobId>> {
        self.usable()?;
        let now = self.ledger.glance(now).wall;
        let last = bulk.last(&self.ledger);
        let filter = Filter { order: Order::OldestFirst, ..filter.clone() };
        let first = Cursor(filter.order.cursor(bulk.after.saturating_add(1)));
        let enough = if filter.needs_record() { limits::PAGE_READS } else { most };
        let (candidates, next) = self.candidates(&filter, Some(first), enough);
        let mut meant = Vec::new();
        for (sequence, job) in candidates {
            if sequence > last || meant.len() == most {
                bulk.go_on_with(Some(sequence));
                return Ok(meant);
            }
            let is_meant = !filter.needs_record()
                || self
                    .records
                    .job(&self.ledger, job)?
                    .is_some_and(|job| filter.matches(&job, now));
            meant.extend(is_meant.then_some(job));
        }
        bulk.go_on_with(next.map(|Cursor(sequence)| sequence));
        Ok(meant)
    }
}
