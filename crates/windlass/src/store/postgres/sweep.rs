//! Clearing dead rows away: autovacuum looks once in a minute, and a busy queue goes through a
//! million jobs in that time. Whoever may not, or comes second, leaves it to others.

use std::collections::HashMap;
use std::error::Error;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use deadpool_postgres::{Client, Pool};
use tokio_postgres::types::Type;
use windlass_core::time::Steady;

use super::{PATIENCE, Schema};
use crate::clock::{Clock, SystemClock};

/// How often dead rows are looked for.
const PAUSE: Duration = Duration::from_secs(2);

/// How long a table that could not be cleared is left alone, unless it gets much worse: someone's
/// old transaction may still see its dead rows.
const REST: Duration = Duration::from_secs(5);

/// Tables of which claims walk through dead rows, and how many are worth clearing away.
const WALKED: &str = "'ready_0', 'ready_1', 'tally_0', 'tally_1', 'due', 'lined', 'lease', 'event', \
     'past', 'after', 'house'";
const WALKED_DEAD: i64 = 10_000;

/// How many are worth it in tables in which they only take room.
const DEAD: i64 = 50_000;

/// Tables in two halves, of which one can be emptied while the other is in use.
const HALVES: [&str; 4] = ["ready_0", "ready_1", "tally_0", "tally_1"];

/// How often, one soon after the other, the halves take turns.
const TURNS: u32 = 100;
const TURN_PAUSE: Duration = Duration::from_millis(200);

/// What was swept, and when.
#[derive(Clone, Default)]
pub(super) struct Broom(Arc<Mutex<Swept>>);

#[derive(Default)]
struct Swept {
    looked: Option<Steady>,
    is_at_it: bool,
    /// One half of the tables that have two is to be emptied.
    is_turning: bool,
    /// How many dead rows stayed in a table when it was last swept.
    stuck: HashMap<String, (i64, Steady)>,
}

type Swiped = Result<(), Box<dyn Error + Send + Sync>>;

/// Where it is swept.
pub(super) struct Floor {
    pub(super) pool: Pool,
    pub(super) schema: Schema,
}

impl Broom {
    /// Now and then looks for dead rows and clears them away. Nobody waits for it: with large
    /// tables it takes seconds.
    pub(super) fn sweep(&self, floor: impl FnOnce() -> Floor, now: Steady) {
        {
            let mut swept = self.swept();
            if swept.is_at_it || swept.looked.is_some_and(|looked| now.since(looked) < PAUSE) {
                return;
            }
            (swept.looked, swept.is_at_it) = (Some(now), true);
        }
        let (broom, floor) = (self.clone(), floor());
        tokio::spawn(async move {
            for _ in 0..TURNS {
                let swept = tokio::time::timeout(PATIENCE, broom.clear(&floor, now)).await;
                if !matches!(swept, Ok(Ok(()))) {
                    tracing::debug!(schema = %floor.schema, ?swept, "dead rows are left to others");
                    break;
                }
                if !broom.swept().is_turning {
                    break;
                }
                SystemClock::new().sleep(TURN_PAUSE).await;
            }
            broom.swept().is_at_it = false;
        });
    }

    async fn clear(&self, floor: &Floor, now: Steady) -> Swiped {
        let client = floor.pool.get().await?;
        if self.swept().is_turning {
            return self.rotate(&client, &floor.schema, false).await;
        }
        let dead = dead_rows(&client, &floor.schema).await?;
        let worth: HashMap<String, i64> = {
            let swept = self.swept();
            dead.into_iter().filter(|(table, dead)| swept.is_worth(table, *dead, now)).collect()
        };
        if !worth.is_empty() {
            self.vacuum(floor, worth, now).await?;
        }
        let is_stuck = HALVES.iter().any(|half| self.swept().is_stuck(half));
        if is_stuck { self.rotate(&client, &floor.schema, true).await } else { Ok(()) }
    }

    /// Lets the halves take turns if dead rows are stuck, or empties one after that.
    async fn rotate(&self, client: &Client, schema: &Schema, is_stuck: bool) -> Swiped {
        let sql = schema.in_sql("select windlass.rotate($1)");
        let rows = client.query_typed(&sql, &[(&is_stuck, Type::BOOL)]).await?;
        let mut swept = self.swept();
        swept.is_turning = rows.first().is_some_and(|row| row.get(0));
        swept.stuck.retain(|table, _| !HALVES.contains(&table.as_str()));
        Ok(())
    }

    /// Clears tables as far as that is possible, and notes how far it was.
    async fn vacuum(&self, floor: &Floor, dead: HashMap<String, i64>, now: Steady) -> Swiped {
        let client = floor.pool.get().await?;
        let tables = dead.keys().map(|table| format!("windlass.{table}")).collect::<Vec<_>>();
        let how = "skip_locked, truncate false, index_cleanup on, parallel 0";
        let sql = floor.schema.in_sql(&format!("vacuum ({how}) {}", tables.join(", ")));
        if let Err(error) = client.batch_execute(&sql).await {
            drop(deadpool_postgres::Object::take(client));
            return Err(error.into());
        }
        let after: HashMap<String, i64> = dead_rows(&client, &floor.schema).await?;
        let stuck = dead.into_iter().map(|(table, before)| {
            let left = after.get(&table).copied().unwrap_or(0);
            // Some have died since, or are told of late.
            (table, (if left > before / 2 { left } else { 0 }, now))
        });
        self.swept().stuck.extend(stuck);
        Ok(())
    }

    fn swept(&self) -> MutexGuard<'_, Swept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Swept {
    fn is_stuck(&self, table: &str) -> bool {
        self.stuck.get(table).is_some_and(|(stuck, _)| *stuck > 0)
    }

    fn is_worth(&self, table: &str, dead: i64, now: Steady) -> bool {
        self.stuck
            .get(table)
            .is_none_or(|(stuck, when)| dead > stuck * 2 || now.since(*when) >= REST)
    }
}

/// Tables with more dead rows than they should have.
async fn dead_rows(
    client: &Client,
    schema: &Schema,
) -> Result<HashMap<String, i64>, tokio_postgres::Error> {
    let sql = format!(
        "select relname::text, n_dead_tup from pg_stat_user_tables \
         where schemaname = 'windlass' and n_dead_tup > \
           case when relname in ({WALKED}) then {WALKED_DEAD} else {DEAD} end"
    );
    let rows = client.query_typed(&schema.in_sql(&sql), &[]).await?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
}
