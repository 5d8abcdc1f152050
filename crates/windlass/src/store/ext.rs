//! The phrases in which callers like to ask a store, written once over its verbs.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;

use windlass_core::audit::Actor;
use windlass_core::filter::Filter;
use windlass_core::job::{Bytes, JobId, NewJob};
use windlass_core::ledger::{Cleared, Enqueued, QueueChange};
use windlass_core::limits;
use windlass_core::name::Name;
use windlass_core::object::{Address as ObjectAddress, ObjectView};
use windlass_core::record::{JobRecord, QueueSettings};
use windlass_core::reserved::WorkerOrder;

use super::{
    AlterJobs, AlterQueue, Answer, AuditPage, Cursor, JobAction, JobActionDone, JobQuery,
    ObjectFilter, ObjectPage, ObjectQuery, Page, QueueAction, QueueActionDone, Selection, Store,
    StoreError, StoredValue, ValueChange, ValuePage, audit, orders, values,
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
        replay_edited(self, job, edited, None)
    }

    /// Changes one setting of a queue and answers with all of them. See [`Store::alter_queue`].
    fn configure(
        &self,
        queue: Name,
        change: QueueChange,
    ) -> impl Future<Output = Answer<QueueSettings>> + Send {
        configure(self, queue, change, None)
    }

    /// Calls off every waiting job of a queue. See [`Store::alter_queue`].
    fn clear(&self, queue: Name) -> impl Future<Output = Answer<Cleared>> + Send {
        clear(self, queue, None)
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

    /// Tells a worker what to do, or withdraws what it was told. The last order counts; it is
    /// durable, and the worker hears of it with its next heartbeat, within some seconds.
    ///
    /// It leaves with the worker, and [`limits::ORDER_KEPT`] after one that no more says that it
    /// lives. Whether there is such a worker is not asked. See [`Store::turn`].
    fn order_worker(
        &self,
        worker: &str,
        order: Option<WorkerOrder>,
        by: Option<Actor>,
    ) -> impl Future<Output = Answer<()>> + Send {
        orders::order(self, worker, order, by)
    }

    /// Reads a page of the audit trail, the latest entry first: every change that named who makes
    /// it, as far as they are kept ([`Limits::audit_entries`]). See [`Store::objects`].
    ///
    /// [`Limits::audit_entries`]: windlass_core::limits::Limits::audit_entries
    fn audit(
        &self,
        after: Option<&ObjectAddress>,
        limit: usize,
    ) -> impl Future<Output = Answer<AuditPage>> + Send {
        audit::list(self, after, limit)
    }

    /// Reads a named value; `None` if there is none. See [`Store::objects`].
    fn value(&self, name: &str) -> impl Future<Output = Answer<Option<StoredValue>>> + Send {
        values::read(self, name)
    }

    /// Sets a named value, if it is still at this version; 0 says that there is none yet. Small
    /// things that all who share a store share belong here: tokens, secrets, settings.
    ///
    /// *Order.* Changes of one value follow each other; each names the version it was made for, and
    /// of two for the same version one is [`ValueChange::Lost`]. *Atomic.* One commit, or nothing.
    /// More than [`limits::VALUE_BYTES`] are refused. If `by` names somebody, the audit entry has
    /// the value's name, not its bytes.
    /// *After a crash.* Durable once it returned. If it never returned it happened or not: read the
    /// value before setting it again. *Empty.* No bytes are a value too.
    fn set_value(
        &self,
        name: &str,
        bytes: impl Into<Bytes> + Send,
        version: u64,
        by: Option<Actor>,
    ) -> impl Future<Output = Answer<ValueChange>> + Send {
        values::change(self, name, Some(bytes.into()), version, by)
    }

    /// Removes a named value, if it is still at this version. The next of this name begins anew
    /// with version 1: where an old version must never fit again, set it to no bytes instead.
    fn remove_value(
        &self,
        name: &str,
        version: u64,
        by: Option<Actor>,
    ) -> impl Future<Output = Answer<ValueChange>> + Send {
        values::change(self, name, None, version, by)
    }

    /// Reads a page of the named values whose names begin with `prefix`, by name. `after` is where
    /// the page before ended. See [`Store::objects`].
    fn values(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> impl Future<Output = Answer<ValuePage>> + Send {
        values::list(self, prefix, after, limit)
    }
}

impl<S: Store + ?Sized> StoreExt for S {}

/// Puts `edited` in the place of a dead job, as somebody wants it.
pub(crate) async fn replay_edited<S: Store + ?Sized>(
    store: &S,
    job: JobId,
    edited: NewJob,
    by: Option<Actor>,
) -> Answer<Enqueued> {
    let action = JobAction::ReplayEdited(Arc::new(edited));
    let alter = AlterJobs { by, ..AlterJobs::new(Selection::Jobs(vec![job]), action) };
    let done = store.alter(alter).await?.pop();
    match done.map(|done| done.result).transpose()? {
        Some(JobActionDone::Replaced(enqueued)) => Ok(enqueued),
        other => Err(unexpected(&other)),
    }
}

/// Changes one setting of a queue, as somebody wants it.
pub(crate) async fn configure<S: Store + ?Sized>(
    store: &S,
    queue: Name,
    change: QueueChange,
    by: Option<Actor>,
) -> Answer<QueueSettings> {
    match store.alter_queue(AlterQueue { queue, action: QueueAction::Set(change), by }).await? {
        QueueActionDone::Set(settings) => Ok(settings),
        other @ QueueActionDone::Cleared(_) => Err(unexpected(&other)),
    }
}

/// Calls off every waiting job of a queue, as somebody wants it.
pub(crate) async fn clear<S: Store + ?Sized>(
    store: &S,
    queue: Name,
    by: Option<Actor>,
) -> Answer<Cleared> {
    match store.alter_queue(AlterQueue { queue, action: QueueAction::Clear, by }).await? {
        QueueActionDone::Cleared(cleared) => Ok(cleared),
        other @ QueueActionDone::Set(_) => Err(unexpected(&other)),
    }
}

/// A store answered something other than what it was asked, so nobody knows what it did.
fn unexpected(answer: &(dyn std::fmt::Debug + Sync)) -> StoreError {
    let source = format!("it answered {answer:?}, which is no answer to this");
    StoreError::Unknown { doing: "read the store's answer", source: source.into() }
}
