//! A ledger and the records that belong to it: deciding commands, and reading.
//!
//! No lock, no thread, no clock: the caller says what time it is. [`super::LedgerStore`] drives it,
//! and so do tests and simulations, by hand.

use std::collections::BTreeSet;

use windlass_core::event::Event;
use windlass_core::explain::Explanation;
use windlass_core::job::JobId;
use windlass_core::ledger::{Caused, Claims, Command, Counts, Heartbeat, Ledger, Ring};
use windlass_core::limits::Limits;
use windlass_core::object::{Address, ObjectRecord, ObjectView};
use windlass_core::record::JobRecord;
use windlass_core::refusal::Refusal;
use windlass_core::reserved::{self, WorkerOrder};
use windlass_core::time::{Now, Timestamp};

use super::{Need, Records, Verb};
use crate::store::{
    Answer, ClaimedBatch, ClaimedJob, HeartbeatAnswer, ObjectFilter, ObjectPage, StoreError,
};

/// For how many changes memory is kept from one command to the next.
const CHANGES_KEPT: usize = 4_096;

/// See the module documentation.
#[derive(Debug)]
pub struct RecordedLedger<R> {
    pub(in crate::store) ledger: Ledger,
    pub(in crate::store) records: R,
    /// What to tell when what was decided is committed, and whom to wake. The changes among it are
    /// kept by the records at once.
    pub(in crate::store) caused: Caused,
}

impl<R: Records> RecordedLedger<R> {
    /// An empty ledger.
    pub(in crate::store) fn empty(limits: Limits, records: R) -> Self {
        Self::with(Ledger::new(limits), records)
    }

    pub(in crate::store) fn with(ledger: Ledger, records: R) -> Self {
        Self { ledger, records, caused: Caused::default() }
    }

    /// Whether anything can still be decided; after a failure, why not.
    pub fn usable(&self) -> Answer<()> {
        Ok(self.records.usable()?)
    }

    /// Makes sure that there is room for what a command writes, before it is decided.
    pub fn admit(&mut self, need: Need, now: Now) -> Result<(), Refusal> {
        self.records.admit(need, now)
    }

    /// Decides a verb of the store, if there is room for it. What it changes joins the commit that
    /// is being gathered; nothing is durable yet when this returns.
    pub fn commit<V: Verb>(&mut self, verb: V, now: Now) -> Answer<V::Reply> {
        let need = verb.need();
        self.admit(need, now).map_err(|full| match need {
            Need::Growth(_) => StoreError::Refused(full),
            // Not refused: a refusal says that asking again is in vain, and whoever has something
            // to settle must ask again until there is room.
            Need::Progress(_) => StoreError::Unknown { doing: V::DOING, source: Box::new(full) },
        })?;
        self.apply(verb, now)
    }

    /// Decides a command and keeps what it changes. What it tells waits in `caused`.
    pub fn apply<C: Command>(&mut self, command: C, now: Now) -> Answer<C::Reply> {
        self.usable()?;
        let told = self.caused.events.len();
        let reply = self.ledger.apply_into(command, now, &mut self.caused);
        let tells = self.caused.events.len() > told;
        self.records.keep(&mut self.ledger, &mut self.caused.changes, tells)?;
        if self.caused.changes.capacity() > CHANGES_KEPT {
            self.caused.changes = Vec::new();
        }
        Ok(reply?)
    }

    /// Takes what is to be told when it is committed.
    pub(in crate::store) fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.caused.events)
    }

    /// Takes whom to wake.
    pub(in crate::store) fn take_rings(&mut self) -> BTreeSet<Ring> {
        std::mem::take(&mut self.caused.rings)
    }

    /// Adds to claimed jobs what their workers need.
    pub fn hand_out(&mut self, claims: Claims) -> Answer<ClaimedBatch> {
        let mut jobs = Vec::with_capacity(claims.jobs.len());
        for claimed in claims.jobs {
            let history = self.records.claimed(&self.ledger, claimed.id, claimed.lease.since)?;
            jobs.push(ClaimedJob {
                job: history.job,
                created_at: history.created_at,
                first_started_at: history.first_started_at,
                steps: history.steps,
                last_error: history.last_error,
                lease: claimed.lease,
                attempt: claimed.attempt,
                recoveries: claimed.recoveries,
                generation: claimed.generation,
                sequence: claimed.sequence,
            });
        }
        Ok(ClaimedBatch { jobs, ready: claims.ready, wake_in: claims.wake_in })
    }

    /// Reads jobs by id.
    pub fn find(&mut self, jobs: &[JobId], now: Now) -> Answer<Vec<Option<JobRecord>>> {
        self.usable()?;
        let now = self.ledger.glance(now).wall;
        jobs.iter().map(|job| self.record(*job, now)).collect()
    }

    /// The record of a job as it is now.
    fn record(&mut self, job: JobId, now: Timestamp) -> Answer<Option<JobRecord>> {
        let record = self.records.job(&self.ledger, job)?;
        Ok(record.map(|record| record.into_owned().seen_at(now)))
    }

    /// An object as it is now.
    pub fn object(&mut self, address: &Address, now: Now) -> Answer<Option<ObjectView>> {
        self.usable()?;
        self.ledger.glance(now);
        let Some((meta, _)) = self.ledger.object(address) else { return Ok(None) };
        let meta = meta.clone();
        let state = self.records.object_state(&self.ledger, address)?;
        let (executing_since, alarm_at, open_jobs) = self.ledger.object_jobs(address);
        let record = ObjectRecord { address: address.clone(), meta, state };
        Ok(Some(ObjectView { record, executing_since, alarm_at, open_jobs }))
    }

    /// A page of objects, by their addresses.
    pub fn objects(
        &mut self,
        filter: &ObjectFilter,
        after: Option<&Address>,
        limit: usize,
        now: Now,
    ) -> Answer<ObjectPage> {
        let (addresses, next) = filter.choose(&self.ledger, after, limit);
        let mut objects = Vec::with_capacity(addresses.len());
        for address in addresses {
            objects.extend(self.object(&address, now)?);
        }
        Ok(ObjectPage { objects, next })
    }

    /// Takes a worker's news, and looks for an order to it at the same moment.
    pub fn heartbeat(&mut self, heartbeat: Heartbeat, now: Now) -> Answer<HeartbeatAnswer> {
        let order = reserved::order_address(&heartbeat.worker);
        self.commit(heartbeat, now)?;
        let order = match order {
            Ok(address) => self.object(&address, now)?,
            Err(_) => None,
        };
        let order = order.and_then(|order| WorkerOrder::kept(&order.record.state));
        Ok(HeartbeatAnswer { order })
    }

    /// All counters.
    pub fn count(&mut self, now: Now) -> Counts {
        self.ledger.counts(now)
    }

    /// Why a job is not running.
    pub fn explain(&mut self, job: JobId, now: Now) -> Answer<Explanation> {
        Ok(self.ledger.explain(job, now)?)
    }

    /// The jobs that wait for this one.
    pub fn dependents(&self, job: JobId) -> Vec<JobId> {
        self.ledger.dependents(job)
    }

    /// The number of the last event that was given one.
    pub fn last_event(&self) -> u64 {
        self.ledger.last_event()
    }

    /// The ledger, to look at.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }
}
