//! The schema, and how it comes to be: numbered migrations, each in one transaction.
//!
//! Whoever migrates holds a lock that ends with its transaction, so any number of processes may
//! start at once, also through a pooler; one that is killed leaves what was there before.

use tokio_postgres::IsolationLevel::ReadCommitted;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Row};

use super::fault::{OpenFault, open_fault};
use super::{Parameter, Schema};

/// One step from one version of the schema to the next.
#[derive(Clone, Copy, Debug)]
pub struct Migration {
    /// The version it leads to.
    pub version: i32,
    /// What it brings.
    pub title: &'static str,
    parts: &'static [&'static str],
}

/// All of them, in order.
pub const MIGRATIONS: &[Migration] = &[Migration {
    version: 1,
    title: "jobs, queues, objects and the rules they live by",
    parts: &[
        include_str!("sql/tables.sql"),
        include_str!("sql/clock.sql"),
        include_str!("sql/common.sql"),
        include_str!("sql/graph.sql"),
        include_str!("sql/time.sql"),
        include_str!("sql/lanes.sql"),
        include_str!("sql/enqueue.sql"),
        include_str!("sql/finish.sql"),
        include_str!("sql/claim.sql"),
        include_str!("sql/settle.sql"),
        include_str!("sql/control.sql"),
        include_str!("sql/objects.sql"),
        include_str!("sql/retention.sql"),
        include_str!("sql/views.sql"),
        include_str!("sql/transaction.sql"),
        include_str!("sql/move.sql"),
        include_str!("sql/operator_views.sql"),
        include_str!("sql/public_api.sql"),
    ],
}];

/// The version this build works with.
pub const VERSION: i32 = MIGRATIONS[MIGRATIONS.len() - 1].version;

impl Migration {
    /// Its statements, for a schema of this name.
    pub fn sql(&self, schema: &Schema) -> String {
        self.parts.iter().map(|part| schema.in_sql(part)).collect::<Vec<_>>().join("\n")
    }
}

/// The version the database has; 0 for none.
pub(super) async fn version(client: &Client, schema: &Schema) -> Result<i32, OpenFault> {
    // Read from the catalogue itself: a backend may remember for a while that there was no such
    // table, and `to_regclass` would believe it.
    let known = "select exists (select from pg_catalog.pg_class c \
           join pg_catalog.pg_namespace n on n.oid = c.relnamespace \
         where n.nspname = $1 and c.relname = 'migration')";
    let name = schema.to_string();
    let known = one(client, known, &[(&name, Type::TEXT)]).await?;
    if !known.get::<_, bool>(0) {
        return Ok(0);
    }
    let version = schema.in_sql("select coalesce(max(version), 0) from windlass.migration");
    Ok(one(client, &version, &[]).await?.get(0))
}

/// Asks without a statement prepared by name, which a pooler would not find again.
async fn one(client: &Client, sql: &str, parameters: &[Parameter<'_>]) -> Result<Row, OpenFault> {
    let rows = client.query_typed(sql, parameters).await.map_err(open_fault)?;
    rows.into_iter().next().ok_or_else(|| OpenFault::new("the database answered without a row"))
}

/// A newer program may have given words a meaning that this one does not know.
pub(super) fn refuse_newer(found: i32, schema: &Schema) -> Result<(), OpenFault> {
    if found <= VERSION {
        return Ok(());
    }
    Err(OpenFault::new(format!(
        "schema `{schema}` has version {found}, and this build knows {VERSION}; update the program"
    )))
}

/// Brings the schema up to date and answers which versions that took.
pub(super) async fn up(client: &mut Client, schema: &Schema) -> Result<Vec<i32>, OpenFault> {
    let mut applied = Vec::new();
    for migration in MIGRATIONS {
        // Whoever waited for the lock must see what its holder has done.
        let read_committed = client.build_transaction().isolation_level(ReadCommitted);
        let transaction = read_committed.start().await.map_err(open_fault)?;
        let lock = "select pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended($1, 0))";
        let name = format!("{schema}.migration");
        one(transaction.client(), lock, &[(&name, Type::TEXT)]).await?;
        let found = version(transaction.client(), schema).await?;
        refuse_newer(found, schema)?;
        if found >= migration.version {
            continue;
        }
        transaction.batch_execute(&script(migration, schema)).await.map_err(open_fault)?;
        transaction.commit().await.map_err(open_fault)?;
        applied.push(migration.version);
    }
    Ok(applied)
}

/// Everything one migration does, its own mark included.
pub(super) fn script(migration: &Migration, schema: &Schema) -> String {
    let begin = match migration.version {
        1 => schema.in_sql(
            "do $$ begin\n  \
               if to_regnamespace('windlass') is null then create schema windlass; end if;\n\
             end $$;\n\
             create table windlass.migration (\n  \
               version int primary key,\n  \
               title text not null,\n  \
               applied_at timestamptz not null default now()\n\
             );\n",
        ),
        _ => String::new(),
    };
    let mark = schema.in_sql("insert into windlass.migration (version, title) values");
    let (version, title) = (migration.version, migration.title);
    format!("{begin}{}\n{mark} ({version}, '{title}');\n", migration.sql(schema))
}
