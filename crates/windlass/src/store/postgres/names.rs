//! Queues and kinds as the database numbers them. A number never changes, so it is asked for once.

use std::collections::HashMap;
use std::sync::{Arc, MutexGuard, PoisonError};

use tokio::sync::OnceCell;
use tokio_postgres::types::Type;
use windlass_core::job::NewJob;
use windlass_core::name::Name;

use super::{Parameter, PostgresStore, understood, wire};
use crate::store::Answer;

/// The queue and the kind of each number of `queue_kind`.
pub(super) type QueueKinds = HashMap<i32, (Name, Name)>;

/// The pairs of queue and kind that are known here.
#[derive(Default)]
pub(super) struct Names {
    pub(super) by_number: QueueKinds,
    numbers: HashMap<(Name, Name), PairNumber>,
}

/// The number of a pair, once it is known.
///
/// Answers: in a cold start every caller registered the same pair, and waited for the others' locks
/// on it: 31 calls of 5 ms each when the first 1,000 jobs a second came to a new queue.
/// Why not simpler: a lock for all pairs would let one that is slow hold up the others. Whoever
/// comes while one asks waits for its answer, and asks itself if that one has failed or given up.
/// Guarded by: `callers_that_come_together_register_a_pair_once` in `tests/postgres/groups.rs`.
type PairNumber = Arc<OnceCell<i32>>;

impl Names {
    fn learn(&mut self, number: i32, pair: (Name, Name)) {
        self.by_number.insert(number, pair.clone());
        // It may be there already, or on its way: it is the same.
        let _ = self.number_of(&pair).set(number);
    }

    fn number_of(&mut self, pair: &(Name, Name)) -> PairNumber {
        self.numbers.entry(pair.clone()).or_default().clone()
    }
}

impl PostgresStore {
    pub(super) fn names(&self) -> MutexGuard<'_, Names> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads all pairs that others have noted.
    pub(super) async fn learn_names(&self) -> Answer<()> {
        let sql = "select l.id, q.name, k.name from windlass.queue_kind l \
             join windlass.queue q on q.id = l.queue join windlass.kind k on k.id = l.kind";
        let rows = self.call("read names", sql, &[]).await?;
        let mut names = self.names();
        for row in rows {
            let pair = (understood(wire::name(row.get(1)))?, understood(wire::name(row.get(2)))?);
            names.learn(row.get(0), pair);
        }
        Ok(())
    }

    /// Sees to it that all of these numbers are known.
    pub(super) async fn know(&self, mut numbers: impl Iterator<Item = i32>) -> Answer<()> {
        let is_known = {
            let names = self.names();
            numbers.all(|number| names.by_number.contains_key(&number))
        };
        if is_known { Ok(()) } else { self.learn_names().await }
    }

    /// The number of the queue and kind of each job. A new pair is noted in a commit of its own, so
    /// that nobody waits for a name until somebody's transaction ends.
    pub(super) async fn queue_kinds(&self, jobs: &[Arc<NewJob>]) -> Answer<Vec<i32>> {
        let mut numbers: Vec<i32> = Vec::with_capacity(jobs.len());
        let mut last: Option<&NewJob> = None;
        for job in jobs {
            // Most batches are of one kind.
            let is_as_before = |last: &NewJob| last.queue == job.queue && last.kind == job.kind;
            let number = match numbers.last().copied().filter(|_| last.is_some_and(is_as_before)) {
                Some(number) => number,
                None => self.number_of((job.queue.clone(), job.kind.clone())).await?,
            };
            numbers.push(number);
            last = Some(job);
        }
        Ok(numbers)
    }

    async fn number_of(&self, pair: (Name, Name)) -> Answer<i32> {
        let number = self.names().number_of(&pair);
        number.get_or_try_init(|| self.register(pair)).await.copied()
    }

    async fn register(&self, pair: (Name, Name)) -> Answer<i32> {
        let (queue, kind) = (pair.0.as_str(), pair.1.as_str());
        let parameters: [Parameter<'_>; 2] = [(&queue, Type::TEXT), (&kind, Type::TEXT)];
        let sql = "select windlass.register($1, $2)";
        let number: i32 = self.one("note a name", sql, &parameters).await?.get(0);
        self.names().by_number.insert(number, pair);
        Ok(number)
    }
}
