//! The real ledger as the state of a model: a list of commits, and the ledger they make.
//!
//! A model keeps only the list, which can be compared and hashed, and makes the ledger anew when
//! it needs to look. A decision made outside the commit, as the broken variants do, is written with
//! [`Book::write`], the way a store takes over a change.

use std::collections::BTreeMap;

use windlass_core::job::{JobId, LeaseToken, NewJob, State};
use windlass_core::ledger::{
    Applied, Claim, Command, Enqueue, Enqueued, KindClaim, Ledger, Restore, Settle, Settled,
    Settlement,
};
use windlass_core::limits::Limits;
use windlass_core::name::Name;
use windlass_core::outcome::Verdict;
use windlass_core::record::{Change, JobRecord, Update};
use windlass_core::refusal::Refusal;
use windlass_core::time::{Now, Timestamp};
use windlass_core::transition::{self, Input, Next};

pub(crate) struct Book {
    ledger: Ledger,
    pub(crate) records: BTreeMap<JobId, JobRecord>,
    /// Every change, in order.
    pub(crate) changes: Vec<Change>,
}

pub(crate) fn id(number: u8) -> JobId {
    JobId::from_u128(u128::from(number))
}

/// A job that asks for nothing in particular.
pub(crate) fn job(number: u8) -> NewJob {
    let name = |text| Name::new(text).expect("a proper name");
    NewJob::new(id(number), name("mail"), name("east"), Vec::new())
}

/// The lease of a job that was started by [`Book::start_all`], which starts them by number.
pub(crate) fn token_of(record: &JobRecord) -> Option<LeaseToken> {
    match &record.status.state {
        State::Running(lease) => Some(lease.token),
        State::Blocked { .. }
        | State::Scheduled { .. }
        | State::Ready { .. }
        | State::Completed { .. }
        | State::Dead { .. }
        | State::Cancelled { .. } => None,
    }
}

impl Book {
    pub(crate) fn new() -> Self {
        let ledger = Ledger::new(Limits::default());
        Self { ledger, records: BTreeMap::new(), changes: Vec::new() }
    }

    pub(crate) fn apply<C: Command>(&mut self, command: C) -> Result<C::Reply, Refusal> {
        let Applied { reply, changes, .. } = self.ledger.apply(command, Now::default());
        changes.into_iter().for_each(|change| self.keep(change));
        reply
    }

    pub(crate) fn enqueue(&mut self, job: NewJob) -> Result<Enqueued, Refusal> {
        self.apply(Enqueue { jobs: vec![job.into()] }).map(|mut enqueued| enqueued.remove(0))
    }

    /// A worker takes everything that is ready.
    pub(crate) fn start_all(&mut self) {
        let kind = KindClaim::new(job(0).kind);
        let claim = Claim {
            worker: "anna".into(),
            queues: None,
            kinds: vec![kind],
            limit: 10,
            request: None,
        };
        self.apply(claim).expect("a claim is never refused");
    }

    pub(crate) fn settle(
        &mut self,
        job: JobId,
        token: LeaseToken,
        verdict: Verdict,
    ) -> Result<Settled, Refusal> {
        let settlements = vec![Settlement::new(job, token, verdict)];
        self.apply(Settle { settlements })?.remove(0)
    }

    /// Writes a change that was decided elsewhere.
    pub(crate) fn write(&mut self, change: Change) {
        self.keep(change);
        let mut restore = Restore::new(Limits::default());
        self.changes.iter().for_each(|change| restore.absorb(change));
        self.ledger = restore.finish();
    }

    /// Writes what becomes of one job alone, if anything does.
    pub(crate) fn write_next(&mut self, job: JobId, input: &Input) {
        let at = Timestamp::default();
        let Some(record) = self.records.get(&job) else { return };
        if let Ok(Next::Is(status)) = transition::next(&record.status, input, at) {
            self.write(Change::Update(Update { job, at, status, note: None }));
        }
    }

    /// What the ledger's own check finds wrong.
    pub(crate) fn wrong(&self) -> Vec<String> {
        self.ledger.check()
    }

    fn keep(&mut self, change: Change) {
        match &change {
            Change::Insert(accepted) => {
                self.records.insert(accepted.job.id, JobRecord::new(accepted));
            }
            Change::Update(update) => {
                let record = self.records.get_mut(&update.job);
                record.expect("an update follows its insert").absorb(update);
            }
            Change::Remove { job } => {
                self.records.remove(job);
            }
            Change::Queue { .. }
            | Change::Rate { .. }
            | Change::QueueKind { .. }
            | Change::Lane { .. }
            | Change::Object(_)
            | Change::ObjectGone { .. } => {}
        }
        self.changes.push(change);
    }
}
