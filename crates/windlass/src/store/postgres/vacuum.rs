//! Clearing dead rows away: autovacuum looks once in a minute, and a busy queue goes through a
//! million jobs in that time. Whoever may not, or comes second, leaves it to others.

use std::collections::HashMap;
use std::error::Error;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use deadpool_postgres::{Client, Pool};
use tokio_postgres::Row;
use windlass_core::time::Steady;

use super::connect::ask_in_read_committed;
use super::{PATIENCE, Schema};
use crate::clock::{Clock, SystemClock};

/// How often dead rows are looked for.
const PAUSE: Duration = Duration::from_secs(1);

/// After how many others a transaction is old.
const OLD: u32 = 1_000;

/// How long a table that could not be cleared is left alone, unless it gets much worse: someone's
/// old transaction may still see its dead rows.
const REST: Duration = Duration::from_secs(15);

/// Tables of which every call walks through dead rows, or whose rows are large, and how many are
/// worth clearing away.
const FEW: &str = "'counter_delta_0', 'counter_delta_1', 'low_water', 'settings', 'event', \
     'lease', 'history'";
const FEW_DEAD: i64 = 2_000;

/// The same of tables of which claims and timers walk through dead rows.
const WALKED: &str = "'ready_0', 'ready_1', 'scheduled', 'lane_ready', 'pending_effect'";
const WALKED_DEAD: i64 = 10_000;

/// The same while a transaction pins them, and nothing but the partitions can leave them behind.
const PINNED_DEAD: i64 = 2_000;

/// How many are worth it in tables in which they only take room.
const DEAD: i64 = 50_000;

/// Tables in two partitions, of which one can be emptied while the other is in use.
const PARTITIONS: [&str; 4] = ["ready_0", "ready_1", "counter_delta_0", "counter_delta_1"];

/// How often, one soon after the other, the partitions go a step on before it is asked whether they
/// must.
const STEPS: u32 = 100;
const STEP_PAUSE: Duration = Duration::from_millis(30);

/// What was swept, and when.
#[derive(Clone, Default)]
pub(super) struct Vacuum(Arc<Mutex<VacuumState>>);

#[derive(Default)]
struct VacuumState {
    looked: Option<Steady>,
    is_at_it: bool,
    /// Whether the partitions rotate at this time.
    is_rotating: bool,
    /// How many dead rows stayed in a table when it was last swept.
    stuck: HashMap<String, (i64, Steady)>,
}

type VacuumResult<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Where it is swept.
#[derive(Clone)]
pub(super) struct VacuumTarget {
    pub(super) pool: Pool,
    pub(super) schema: Schema,
}

impl Vacuum {
    /// Now and then looks for dead rows and clears them away. Nobody waits for it: with large
    /// tables it takes seconds.
    pub(super) fn sweep(&self, target: impl FnOnce() -> VacuumTarget, now: Steady) {
        {
            let mut swept = self.swept();
            if swept.is_at_it || swept.looked.is_some_and(|looked| now.since(looked) < PAUSE) {
                return;
            }
            (swept.looked, swept.is_at_it) = (Some(now), true);
        }
        let (vacuum, target) = (self.clone(), target());
        tokio::spawn(async move {
            let swept = tokio::time::timeout(PATIENCE, vacuum.clear(&target, now)).await;
            // Whoever may not, or would have to wait, leaves it to others.
            if !matches!(swept, Ok(Ok(()))) {
                tracing::debug!(schema = %target.schema, ?swept, "not swept");
            }
            vacuum.swept().is_at_it = false;
        });
    }

    /// Rotates the partitions, beside everything else, until vacuum can do it again.
    fn rotate(&self, target: &VacuumTarget) {
        if std::mem::replace(&mut self.swept().is_rotating, true) {
            return;
        }
        let (store, target) = (Arc::downgrade(&self.0), target.clone());
        tokio::spawn(async move {
            let rotated = rotations(&target, || store.strong_count() > 0).await;
            if let Err(error) = rotated {
                tracing::debug!(schema = %target.schema, %error, "no rotation");
            }
            if let Some(swept) = store.upgrade() {
                Vacuum(swept).swept().is_rotating = false;
            }
        });
    }

    /// Clears what is worth it, and rotates partitions in which rows are stuck.
    async fn clear(&self, target: &VacuumTarget, now: Steady) -> VacuumResult<()> {
        let is_pinned = target.is_pinned().await?;
        let dead = dead_rows(&target.pool.get().await?, &target.schema, is_pinned).await?;
        let is_partition = |table: &String| PARTITIONS.contains(&table.as_str());
        if is_pinned && dead.keys().any(is_partition) {
            self.rotate(target);
        } else if !is_pinned && !self.swept().is_rotating {
            // Whoever rotated them may have died.
            target.call("reset_rotation").await?;
        }
        let worth: HashMap<String, i64> = {
            let swept = self.swept();
            let is_worth = |(table, dead): &(String, i64)| {
                !is_pinned || !is_partition(table) && swept.is_worth_another_try(table, *dead, now)
            };
            dead.into_iter().filter(is_worth).collect()
        };
        if worth.is_empty() {
            return Ok(());
        }
        self.vacuum(target, worth, now).await?;
        // A transaction that is not seen from here may pin them as well.
        let is_stuck = {
            let mut swept = self.swept();
            let is_stuck = PARTITIONS.iter().any(|partition| swept.is_stuck(partition));
            swept.stuck.retain(|table, _| !is_partition(table));
            is_stuck
        };
        if is_stuck {
            self.rotate(target);
        }
        Ok(())
    }

    /// Clears tables as far as that is possible, and notes how far it was.
    async fn vacuum(
        &self,
        target: &VacuumTarget,
        dead: HashMap<String, i64>,
        now: Steady,
    ) -> VacuumResult<()> {
        let client = target.pool.get().await?;
        let tables = dead.keys().map(|table| format!("windlass.{table}")).collect::<Vec<_>>();
        let how = "skip_locked, truncate false, index_cleanup on, parallel 0";
        let sql = target.schema.in_sql(&format!("vacuum ({how}) {}", tables.join(", ")));
        if let Err(error) = client.batch_execute(&sql).await {
            drop(deadpool_postgres::Object::take(client));
            return Err(error.into());
        }
        let after: HashMap<String, i64> = dead_rows(&client, &target.schema, false).await?;
        let stuck = dead.into_iter().map(|(table, before)| {
            let left = after.get(&table).copied().unwrap_or(0);
            // Some have died since, or are told of late.
            (table, (if left > before / 2 { left } else { 0 }, now))
        });
        self.swept().stuck.extend(stuck);
        Ok(())
    }

    fn swept(&self) -> MutexGuard<'_, VacuumState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl VacuumState {
    fn is_stuck(&self, table: &str) -> bool {
        self.stuck.get(table).is_some_and(|(stuck, _)| *stuck > 0)
    }

    fn is_worth_another_try(&self, table: &str, dead: i64, now: Steady) -> bool {
        self.stuck
            .get(table)
            .is_none_or(|(stuck, when)| dead > stuck * 2 || now.since(*when) >= REST)
    }
}

/// Rotates the partitions, a step at a time, while a transaction pins dead rows and it is wanted.
async fn rotations(target: &VacuumTarget, is_wanted: impl Fn() -> bool) -> VacuumResult<()> {
    loop {
        for _ in 0..STEPS {
            SystemClock::new().sleep(STEP_PAUSE).await;
            if !is_wanted() {
                return Ok(());
            }
            // One that would have had to wait for somebody is made up for by the next.
            if let Err(error) = target.call("rotate").await {
                tracing::debug!(schema = %target.schema, %error, "the rotation waits");
            }
        }
        if !target.is_pinned().await? {
            return target.call("reset_rotation").await;
        }
    }
}

impl VacuumTarget {
    /// Calls a function of the schema that is given nothing.
    async fn call(&self, function: &str) -> VacuumResult<()> {
        let sql = self.schema.in_sql(&format!("select windlass.{function}()"));
        let call = async {
            let client = self.pool.get().await?;
            Ok(ask_in_read_committed(&client, &sql, &[]).await?)
        };
        let called: VacuumResult<Vec<Row>> = tokio::time::timeout(PATIENCE, call).await?;
        called.map(drop)
    }

    /// Whether some transaction is so old that much of what has died since cannot be cleared away.
    /// One of another role that only reads stays unseen.
    async fn is_pinned(&self) -> VacuumResult<bool> {
        let sql = format!(
            "select coalesce(greatest(max(age(backend_xmin)), max(age(backend_xid))) > {OLD}, \
             false) from pg_stat_activity"
        );
        let rows = self.pool.get().await?.query_typed(&sql, &[]).await?;
        Ok(rows.first().is_some_and(|row| row.get(0)))
    }
}

/// Tables with more dead rows than they should have.
async fn dead_rows(
    client: &Client,
    schema: &Schema,
    is_pinned: bool,
) -> Result<HashMap<String, i64>, tokio_postgres::Error> {
    let walked_dead = if is_pinned { PINNED_DEAD } else { WALKED_DEAD };
    let sql = format!(
        "select relname::text, n_dead_tup from pg_stat_user_tables \
         where schemaname = 'windlass' and n_dead_tup > \
           case when relname in ({FEW}) then {FEW_DEAD} \
             when relname in ({WALKED}) then {walked_dead} else {DEAD} end"
    );
    let rows = client.query_typed(&schema.in_sql(&sql), &[]).await?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
}
