//! The memory store: a ledger behind a mutex, and the records beside it.
//!
//! Nothing survives the process. It is the fastest store, the reference for the others, and what
//! tests run on.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::watch;
use windlass_core::event::Event;
use windlass_core::explain::Explanation;
use windlass_core::filter::Filter;
use windlass_core::job::{Bytes, JobId, NewJob};
use windlass_core::ledger::{
    Alter, Applied, Claim, Clear, Command, Configure, Counts, Enqueue, Enqueued, Heartbeat, Ledger,
    Promote, Promoted, Renew, Renewal, Renewed, Rescue, Rescued, Ring, Settle, Settled, Settlement,
    Turned, WorkerReport,
};
use windlass_core::limits::{self, Limits};
use windlass_core::name::Name;
use windlass_core::object::{Address, ObjectRecord, ObjectView, Turn};
use windlass_core::record::{Change, JobRecord};
use windlass_core::refusal::Refusal;
use windlass_core::time::Timestamp;

use super::{
    Answer, ClaimedBatch, ClaimedJob, Cursor, Durability, JobAction, JobActionResult, JobQuery,
    ObjectPage, ObjectQuery, Page, QueueAction, QueueActionDone, Selection, Store, StoreInfo,
    events_within,
};
use crate::clock::Clock;
use crate::wake::Wake;

/// Keeps jobs for as long as the process lives.
#[derive(Debug)]
pub struct MemoryStore {
    book: Mutex<MemoryLedger>,
    clock: Arc<dyn Clock>,
    wake: Arc<dyn Wake>,
    committed: watch::Sender<u64>,
}

/// The ledger and the records, which change together.
#[derive(Debug)]
struct MemoryLedger {
    ledger: Ledger,
    /// By sequence, so that a list goes by acceptance. Boxed, because the map moves what it holds.
    records: BTreeMap<u64, Box<JobRecord>>,
    sequences: BTreeMap<JobId, u64>,
    /// What the ledger does not keep of objects.
    states: BTreeMap<Address, Bytes>,
    events: VecDeque<Arc<Event>>,
}

impl MemoryStore {
    /// An empty store.
    pub fn new(limits: Limits, clock: Arc<dyn Clock>, wake: Arc<dyn Wake>) -> Self {
        let book = MemoryLedger {
            ledger: Ledger::new(limits),
            records: BTreeMap::new(),
            sequences: BTreeMap::new(),
            states: BTreeMap::new(),
            events: VecDeque::new(),
        };
        Self { book: Mutex::new(book), clock, wake, committed: watch::Sender::new(0) }
    }

    /// The ledger, unless a call crashed while it held it: half a change cannot be told from a
    /// whole one.
    fn book(&self) -> Result<MutexGuard<'_, MemoryLedger>, Refusal> {
        self.book.lock().map_err(|_| Refusal::Unavailable {
            why: "an earlier call crashed while changing it; start anew".to_string(),
        })
    }

    /// Applies one command and keeps what it changed; `read` looks at the ledger in the same
    /// breath.
    async fn commit<C: Command, T>(
        &self,
        command: C,
        read: impl FnOnce(&MemoryLedger, C::Reply) -> T,
    ) -> Answer<T> {
        let (reply, rings) = self.commit_chosen(|_, _| command, read);
        self.ring(&rings).await;
        reply
    }

    /// Like `commit`, with a command that is chosen by what the ledger holds.
    fn commit_chosen<C: Command, T>(
        &self,
        choose: impl FnOnce(&MemoryLedger, Timestamp) -> C,
        read: impl FnOnce(&MemoryLedger, C::Reply) -> T,
    ) -> (Answer<T>, Vec<Ring>) {
        let mut book = match self.book() {
            Ok(book) => book,
            Err(refusal) => return (Err(refusal.into()), Vec::new()),
        };
        let now = self.clock.now();
        let seen = book.ledger.glance(now).wall;
        let command = choose(&book, seen);
        let Applied { reply, changes, events, rings } = book.ledger.apply(command, now);
        let mut gone = Gone::default();
        changes.iter().for_each(|change| book.keep(change, &mut gone));
        let told = !events.is_empty();
        book.remember(events, &mut gone);
        let reply = reply.map(|reply| read(&book, reply)).map_err(Into::into);
        if told {
            self.committed.send_replace(book.ledger.last_event());
        }
        // Others wait for the ledger: what is no longer needed is dropped without it.
        drop(book);
        drop((changes, gone));
        (reply, rings.into_iter().collect())
    }

    async fn ring(&self, rings: &[Ring]) {
        if !rings.is_empty() {
            self.wake.ring(rings).await;
        }
    }
}

/// What a commit has let go of.
#[derive(Default)]
struct Gone {
    #[expect(clippy::vec_box, reason = "as they were kept; they are only dropped")]
    records: Vec<Box<JobRecord>>,
    events: Vec<Arc<Event>>,
}

impl MemoryLedger {
    fn keep(&mut self, change: &Change, gone: &mut Gone) {
        match change {
            Change::Insert(accepted) => {
                self.sequences.insert(accepted.job.id, accepted.sequence);
                self.records.insert(accepted.sequence, Box::new(JobRecord::new(accepted)));
            }
            Change::Update(update) => {
                let sequence = self.sequences.get(&update.job);
                if let Some(record) = sequence.and_then(|at| self.records.get_mut(at)) {
                    record.absorb(update);
                }
            }
            Change::Remove { job } => {
                if let Some(sequence) = self.sequences.remove(job) {
                    gone.records.extend(self.records.remove(&sequence));
                }
            }
            Change::Object(change) => {
                if let Some(state) = &change.state {
                    self.states.insert(change.address.clone(), state.clone());
                }
            }
            Change::ObjectGone { address } => {
                self.states.remove(address);
            }
            // The ledger itself keeps these for as long as the process lives.
            Change::Queue { .. }
            | Change::Rate { .. }
            | Change::QueueKind { .. }
            | Change::Lane { .. } => {}
        }
    }

    fn remember(&mut self, events: Vec<Event>, gone: &mut Gone) {
        for event in events {
            if self.events.len() == limits::EVENTS_KEPT {
                gone.events.extend(self.events.pop_front());
            }
            self.events.push_back(Arc::new(event));
        }
    }

    fn record(&self, job: JobId) -> Option<&JobRecord> {
        self.records.get(self.sequences.get(&job)?).map(|record| &**record)
    }

    fn object(&self, address: &Address) -> Option<ObjectView> {
        let (meta, _) = self.ledger.object(address)?;
        let state = self.states.get(address).cloned().unwrap_or_else(|| Vec::new().into());
        let (executing_since, alarm_at, open_jobs) = self.ledger.object_jobs(address);
        let record = ObjectRecord { address: address.clone(), meta: meta.clone(), state };
        Some(ObjectView { record, executing_since, alarm_at, open_jobs })
    }

    fn select(&self, selection: Selection, now: Timestamp) -> Vec<JobId> {
        match selection {
            Selection::Jobs(jobs) => jobs,
            Selection::Matching(filter) => self
                .records
                .values()
                .filter(|record| filter.matches(record, now))
                .map(|record| record.id())
                .collect(),
        }
    }

    /// The jobs of a list from a place on, as far as `keep` takes them or one page looks.
    fn page(
        &self,
        filter: &Filter,
        after: Option<Cursor>,
        now: Timestamp,
        mut keep: impl FnMut(&mut Page, &JobRecord) -> bool,
    ) -> Page {
        let (mut page, mut full) = (Page::default(), false);
        let candidates = self.ledger.candidates(filter, after.map(|Cursor(at)| at));
        for (looked_at, summary) in candidates.enumerate() {
            if full || looked_at == limits::PAGE_SCAN {
                page.next = Some(Cursor(filter.order.cursor(summary.sequence)));
                break;
            }
            let record = self.record(summary.id).filter(|record| filter.matches(record, now));
            if let Some(record) = record {
                page.count += 1;
                full = !keep(&mut page, record);
            }
        }
        page
    }

    fn events_after(&self, after: u64, limit: usize) -> Vec<Arc<Event>> {
        let first = self.events.front().map_or(1, |event| event.number);
        let skip =
            usize::try_from(after.saturating_add(1).saturating_sub(first)).unwrap_or(usize::MAX);
        self.events.iter().skip(skip).take(limit).cloned().collect()
    }

    fn hand(&self, claims: windlass_core::ledger::Claims) -> ClaimedBatch {
        let jobs = claims.jobs.into_iter().filter_map(|claimed| {
            let record = self.record(claimed.id)?;
            Some(ClaimedJob {
                job: record.job.clone(),
                first_started_at: record.first_started_at.unwrap_or(claimed.lease.since),
                created_at: record.created_at,
                lease: claimed.lease,
                attempt: claimed.attempt,
                recoveries: claimed.recoveries,
                generation: claimed.generation,
                sequence: claimed.sequence,
                steps: record.steps.clone(),
                last_error: record.error.clone(),
            })
        });
        ClaimedBatch { jobs: jobs.collect(), ready: claims.ready, wake_in: claims.wake_in }
    }
}

#[async_trait]
impl Store for MemoryStore {
    async fn enqueue(&self, jobs: Vec<Arc<NewJob>>) -> Answer<Vec<Enqueued>> {
        self.commit(Enqueue { jobs }, |_, reply| reply).await
    }

    async fn claim(&self, claim: Claim) -> Answer<ClaimedBatch> {
        self.commit(claim, MemoryLedger::hand).await
    }

    async fn renew(&self, renewals: Vec<Renewal>) -> Answer<Vec<Result<Renewed, Refusal>>> {
        self.commit(Renew { renewals }, |_, reply| reply).await
    }

    async fn settle(&self, settlements: Vec<Settlement>) -> Answer<Vec<Result<Settled, Refusal>>> {
        self.commit(Settle { settlements }, |_, reply| reply).await
    }

    async fn rescue(&self, rescue: Rescue) -> Answer<Rescued> {
        self.commit(rescue, |_, reply| reply).await
    }

    async fn promote(&self) -> Answer<Promoted> {
        self.commit(Promote, |_, reply| reply).await
    }

    async fn alter(&self, selection: Selection, action: JobAction) -> Answer<Vec<JobActionResult>> {
        selection.check(&action)?;
        let alter = |book: &MemoryLedger, now| {
            let jobs = book.select(selection, now);
            Alter { jobs, action }
        };
        let (reply, rings) = self.commit_chosen(alter, |_, reply| reply);
        self.ring(&rings).await;
        reply
    }

    async fn alter_queue(&self, queue: Name, action: QueueAction) -> Answer<QueueActionDone> {
        match action {
            QueueAction::Set(change) => {
                self.commit(Configure { queue, change }, |_, reply| QueueActionDone::Set(reply))
                    .await
            }
            QueueAction::Clear => {
                self.commit(Clear { queue }, |_, reply| QueueActionDone::Cleared(reply)).await
            }
        }
    }

    async fn turn(&self, turn: Turn) -> Answer<Turned> {
        self.commit(turn, |_, reply| reply).await
    }

    async fn objects(&self, query: &ObjectQuery) -> Answer<ObjectPage> {
        let mut book = self.book()?;
        book.ledger.glance(self.clock.now());
        Ok(match query {
            ObjectQuery::Address(address) => {
                ObjectPage { objects: book.object(address).into_iter().collect(), next: None }
            }
            ObjectQuery::Page { filter, after, limit } => {
                let (addresses, next) = filter.choose(&book.ledger, after.as_ref(), *limit);
                let objects = addresses.iter().filter_map(|address| book.object(address)).collect();
                ObjectPage { objects, next }
            }
        })
    }

    async fn heartbeat(&self, worker: Arc<str>, news: WorkerReport) -> Answer<()> {
        self.commit(Heartbeat { worker, news }, |_, reply| reply).await
    }

    async fn jobs(&self, query: &JobQuery) -> Answer<Page> {
        let mut book = self.book()?;
        let now = book.ledger.glance(self.clock.now()).wall;
        match query {
            JobQuery::Ids(jobs) => {
                let found = jobs.iter().filter_map(|job| book.record(*job));
                Ok(Page::of(found.map(|record| record.clone().seen_at(now)).collect()))
            }
            JobQuery::Page { filter, after, limit } => {
                let limit = (*limit).clamp(1, limits::PAGE_JOBS);
                let keep = |page: &mut Page, record: &JobRecord| {
                    page.jobs.push(record.clone().seen_at(now));
                    page.jobs.len() < limit
                };
                Ok(book.page(filter, *after, now, keep))
            }
            JobQuery::Count { filter, after } => Ok(book.page(filter, *after, now, |_, _| true)),
        }
    }

    async fn count(&self) -> Answer<Counts> {
        Ok(self.book()?.ledger.counts(self.clock.now()))
    }

    async fn explain(&self, job: JobId) -> Answer<Explanation> {
        Ok(self.book()?.ledger.explain(job, self.clock.now())?)
    }

    async fn events(&self, after: u64, limit: usize, wait: Duration) -> Answer<Vec<Arc<Event>>> {
        let look = || async { Ok(self.book()?.events_after(after, limit)) };
        let committed = self.committed.subscribe();
        events_within(wait, Duration::MAX, &*self.clock, committed, look).await
    }

    fn info(&self) -> StoreInfo {
        StoreInfo::new(Durability::None, *self.committed.borrow())
    }
}
