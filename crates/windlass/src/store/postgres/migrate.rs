//! The schema, and how it comes to be: numbered migrations, each in one transaction.
//!
//! Whoever migrates holds a lock that ends with its transaction, so any number of processes may
//! start at once, also through a pooler; one that is killed leaves what was there before.

use tokio_postgres::IsolationLevel::ReadCommitted;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Row};

use super::fault::{OpenFault, open_fault};
use super::{Parameter, Schema, sql};

/// One step from one version of the schema to the next.
#[derive(Clone, Copy, Debug)]
pub struct Migration {
    /// The version it leads to.
    pub version: i32,
    /// What it brings.
    pub title: &'static str,
    /// What makes it so, in the schema `windlass`.
    script: fn() -> String,
}

/// All of them, in order.
pub const MIGRATIONS: &[Migration] = &[Migration {
    version: 1,
    title: "jobs, queues, objects and the rules they live by",
    script: sql::script,
}];

/// The version this build works with.
pub const VERSION: i32 = MIGRATIONS[MIGRATIONS.len() - 1].version;

impl Migration {
    /// Its statements, for a schema of this name.
    pub fn sql(&self, schema: &Schema) -> String {
        schema.in_sql(&(self.script)())
    }

    /// A number that differs if its statements do. It is kept with the version, because until the
    /// first release a migration may change without another number.
    fn fingerprint(&self) -> String {
        // FNV-1a: it need not resist anybody.
        let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        let hash = (self.script)().bytes().fold(0xcbf2_9ce4_8422_2325, mix);
        format!("{hash:016x}")
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

/// The version the database has, if this build can work with it or bring it up to date.
pub(super) async fn known_version(client: &Client, schema: &Schema) -> Result<i32, OpenFault> {
    let found = version(client, schema).await?;
    // A newer program may have given words a meaning that this one does not know.
    if found > VERSION {
        return Err(OpenFault::new(format!(
            "schema `{schema}` has version {found}, and this build knows {VERSION}; update the \
             program"
        )));
    }
    if found > 0 {
        refuse_other_builds(client, schema).await?;
    }
    Ok(found)
}

/// Refuses a schema whose versions are not what this build calls by their numbers.
async fn refuse_other_builds(client: &Client, schema: &Schema) -> Result<(), OpenFault> {
    // As JSON, so that it is no error if the column is not there.
    let sql = schema.in_sql(
        "select version, to_jsonb(m)->>'fingerprint' from windlass.migration m order by version",
    );
    let rows = client.query_typed(&sql, &[]).await.map_err(open_fault)?;
    for row in rows {
        let (version, found): (i32, Option<String>) = (row.get(0), row.get(1));
        let ours = MIGRATIONS.iter().find(|migration| migration.version == version);
        if ours.map(Migration::fingerprint) != found {
            return Err(OpenFault::new(format!(
                "schema `{schema}` was made by another build, whose version {version} differs; \
                 drop it with `drop schema {schema} cascade` to have it made anew, or name \
                 another one with `windlass_schema`"
            )));
        }
    }
    Ok(())
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
        let found = known_version(transaction.client(), schema).await?;
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
               fingerprint text not null,\n  \
               applied_at timestamptz not null default now()\n\
             );\n",
        ),
        _ => String::new(),
    };
    let mark = schema.in_sql("insert into windlass.migration (version, title, fingerprint) values");
    let (version, title, print) = (migration.version, migration.title, migration.fingerprint());
    format!("{begin}{}\n{mark} ({version}, '{title}', '{print}');\n", migration.sql(schema))
}
