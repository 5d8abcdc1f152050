//! The phrases in which callers like to ask a store, written once over its verbs.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;

use windlass_core::filter::Filter;
use windlass_core::job::{JobId, NewJob};
use windlass_core::ledger::{Cleared, Enqueued, QueueChange};
use windlass_core::limits;
use windlass_core::name::Name;
use windlass_core::object::{Address as ObjectAddress, ObjectView};
use windlass_core::record::{JobRecord, QueueSettings};

use super::{
    Answer, Cursor, JobAction, JobActionDone, JobQuery, ObjectFilter, ObjectPage, ObjectQuery,
    Page, QueueAction, QueueActionDone, Selection, Store, StoreError,
};

/// What every [`Store`] can do besides, by its verbs alone. Each promises what its verb does.
pub trait StoreExt: Store {
    /// Reads jobs by id: one answer per id, in the order given; `None` for a job that was never
    /// accepted or is no longer kept. See [`Store::jobs`].
    fn find(&self, jobs: &[JobId]) -> impl Future<Output = Answer<Vec<Option<JobRecord>>>> + Send {
        async move {
            let page = self.jobs(&JobQuery::Ids(jobs.to_vec())).await?;
            if let ([_], 0 | 1) = (jobs, page.jobs.len()) {
                return Ok(vec![page.jobs.into_iter().next()]);
            }
            let found: HashMap<JobId, JobRecord> =
                page.jobs.into_iter().map(|record| (record.id(), record)).collect();
            Ok(jobs.iter().map(|job| found.get(job).cloned()).collect())
        }
    }

    /// Reads a page of jobs. See [`Store::jobs`].
    fn list(
        &self,
        filter: &Filter,
        after: Option<Cursor>,
        limit: usize,
    ) -> impl Future<Output = Answer<Page>> + Send {
        let query = JobQuery::Page { filter: filter.clone(), after, limit };
        async move { self.jobs(&query).await }
    }

    /// Counts the jobs that match, in as many calls of [`Store::jobs`] as it takes: exact as long
    /// as nothing changes meanwhile.
    fn count_matching(&self, filter: &Filter) -> impl Future<Output = Answer<u64>> + Send {
        async move {
            let (mut counted, mut after) = (0, None);
            loop {
                let query = JobQuery::Count { filter: filter.clone(), after };
                let part = self.jobs(&query).await?;
                counted += part.count;
                match part.next {
                    Some(next) => after = Some(next),
                    None => return Ok(counted),
                }
            }
        }
    }

    /// The jobs that wait for this one, by id, in as many calls of [`Store::jobs`] as it takes.
    fn dependents(&self, job: JobId) -> impl Future<Output = Answer<Vec<JobId>>> + Send {
        async move {
            let filter = Filter { blocked_by: Some(job), ..Filter::default() };
            let (mut waiting, mut after) = (Vec::new(), None);
            loop {
                let page = self.list(&filter, after, limits::PAGE_JOBS).await?;
                waiting.extend(page.jobs.iter().map(JobRecord::id));
                match page.next {
                    Some(next) => after = Some(next),
                    None => break,
                }
            }
            waiting.sort_unstable();
            Ok(waiting)
        }
    }

    /// Puts `edited` in the place of a dead job. See [`JobAction::ReplayEdited`].
    fn replay_edited(
        &self,
        job: JobId,
        edited: NewJob,
    ) -> impl Future<Output = Answer<Enqueued>> + Send {
        async move {
            let action = JobAction::ReplayEdited(Arc::new(edited));
            let done = self.alter(Selection::Jobs(vec![job]), action).await?.pop();
            match done.map(|done| done.result).transpose()? {
                Some(JobActionDone::Replaced(enqueued)) => Ok(enqueued),
                other => Err(unexpected(&other)),
            }
        }
    }

    /// Changes one setting of a queue and answers with all of them. See [`Store::alter_queue`].
    fn configure(
        &self,
        queue: Name,
        change: QueueChange,
    ) -> impl Future<Output = Answer<QueueSettings>> + Send {
        async move {
            match self.alter_queue(queue, QueueAction::Set(change)).await? {
                QueueActionDone::Set(settings) => Ok(settings),
                other @ QueueActionDone::Cleared(_) => Err(unexpected(&other)),
            }
        }
    }

    /// Calls off every waiting job of a queue. See [`Store::alter_queue`].
    fn clear(&self, queue: Name) -> impl Future<Output = Answer<Cleared>> + Send {
        async move {
            match self.alter_queue(queue, QueueAction::Clear).await? {
                QueueActionDone::Cleared(cleared) => Ok(cleared),
                other @ QueueActionDone::Set(_) => Err(unexpected(&other)),
            }
        }
    }

    /// Reads an object; `None` if it never was, or was purged. See [`Store::objects`].
    fn object(
        &self,
        address: &ObjectAddress,
    ) -> impl Future<Output = Answer<Option<ObjectView>>> + Send {
        let query = ObjectQuery::Address(address.clone());
        async move { Ok(self.objects(&query).await?.objects.pop()) }
    }

    /// Reads a page of objects. See [`Store::objects`].
    fn list_objects(
        &self,
        filter: &ObjectFilter,
        after: Option<&ObjectAddress>,
        limit: usize,
    ) -> impl Future<Output = Answer<ObjectPage>> + Send {
        let (filter, after) = (filter.clone(), after.cloned());
        let query = ObjectQuery::Page { filter, after, limit };
        async move { self.objects(&query).await }
    }
}

impl<S: Store + ?Sized> StoreExt for S {}

/// A store answered something other than what it was asked, so nobody knows what it did.
fn unexpected(answer: &(dyn std::fmt::Debug + Sync)) -> StoreError {
    let source = format!("it answered {answer:?}, which is no answer to this");
    StoreError::Unknown { doing: "read the store's answer", source: source.into() }
}
