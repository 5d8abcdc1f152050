//! The schema of a store in a database: brought up to date, looked at, or printed as SQL.

use crate::cli::{MigrateCommand, MigrateOptions};

/// Does what was asked for.
#[cfg(feature = "postgres")]
pub(crate) fn run(options: &MigrateOptions) -> anyhow::Result<()> {
    match &options.command {
        MigrateCommand::Up { database } => database::up(database),
        MigrateCommand::Status { database } => database::status(database),
        MigrateCommand::Sql { from, schema } => database::sql(*from, schema),
    }
}

/// Without a client there is nothing to migrate.
#[cfg(not(feature = "postgres"))]
pub(crate) fn run(options: &MigrateOptions) -> anyhow::Result<()> {
    match &options.command {
        MigrateCommand::Up { .. } | MigrateCommand::Status { .. } | MigrateCommand::Sql { .. } => {
            Err(windlass::Error::NoPostgres.into())
        }
    }
}

#[cfg(feature = "postgres")]
mod database {
    use serde_json::json;
    use windlass::store::Address;
    use windlass::store::postgres::{
        MIGRATIONS, PostgresAddress, Schema, VERSION, migrate_up, migration_sql, schema_version,
    };

    use crate::cli::{Database, Format};
    use crate::output::{self, FAILED, Failure, USAGE};

    /// Brings the schema up to date and tells what that took.
    pub(super) fn up(database: &Database) -> anyhow::Result<()> {
        let address = address(&database.store)?;
        let applied = wait_for(migrate_up(&address))??;
        let schema = &address.schema;
        match database.output {
            Format::Json => output::json(&json!({
                "schema": schema.to_string(),
                "applied": applied,
                "version": VERSION,
            })),
            Format::Table if applied.is_empty() => output::line(&format!(
                "schema `{schema}` has version {VERSION}, the newest; there was nothing to do"
            )),
            Format::Table => {
                let title = |version: &i32| {
                    let found = MIGRATIONS.iter().find(|known| known.version == *version);
                    format!("  {version}  {}", found.map_or("", |known| known.title))
                };
                let titles: Vec<String> = applied.iter().map(title).collect();
                output::line(&format!(
                    "schema `{schema}` now has version {VERSION}:\n{}",
                    titles.join("\n")
                ))
            }
        }
    }

    /// Tells which version the schema has, and fails if it is not the one that is needed.
    pub(super) fn status(database: &Database) -> anyhow::Result<()> {
        let address = address(&database.store)?;
        let found = wait_for(schema_version(&address))??;
        let schema = &address.schema;
        let due = MIGRATIONS.iter().filter(|known| known.version > found);
        match database.output {
            Format::Json => output::json(&json!({
                "schema": schema.to_string(),
                "version": found,
                "needed": VERSION,
                "pending": due.map(|migration| migration.version).collect::<Vec<_>>(),
            }))?,
            Format::Table if found == VERSION => {
                output::line(&format!("schema `{schema}` has version {VERSION}, the newest"))?;
            }
            Format::Table if found > VERSION => output::line(&format!(
                "schema `{schema}` has version {found}, and this program knows {VERSION}; update \
                 the program"
            ))?,
            Format::Table => {
                let due: Vec<String> =
                    due.map(|known| format!("  {}  {}", known.version, known.title)).collect();
                let stands = match found {
                    0 => "is not there yet".to_string(),
                    version => format!("has version {version}"),
                };
                output::line(&format!(
                    "schema `{schema}` {stands} and needs {VERSION}; `windlass migrate up` does:\n\
                     {}",
                    due.join("\n")
                ))?;
            }
        }
        if found == VERSION { Ok(()) } else { Err(Failure::told(FAILED)) }
    }

    /// Prints what `up` would do to a schema of this version.
    pub(super) fn sql(from: i32, schema: &str) -> anyhow::Result<()> {
        let schema: Schema = schema.parse().map_err(usage)?;
        if !(0..=VERSION).contains(&from) {
            let text = format!("there is no version {from}; there are 0, for none, to {VERSION}");
            return Err(Failure::because(USAGE, text));
        }
        if from == VERSION {
            return output::line(&format!("-- version {VERSION} is the newest"));
        }
        output::write(migration_sql(&schema, from).as_bytes())
    }

    fn address(store: &str) -> anyhow::Result<PostgresAddress> {
        match store.parse() {
            Ok(Address::Postgres(address)) => address.parse().map_err(usage),
            Ok(Address::Memory | Address::Directory(_) | Address::Http(_)) | Err(_) => {
                Err(Failure::because(
                    USAGE,
                    "only a database has a schema; name one like `postgres://user@host/database`",
                ))
            }
        }
    }

    fn usage(error: windlass::store::postgres::OpenFault) -> anyhow::Error {
        Failure::because(USAGE, error.to_string())
    }

    fn wait_for<T>(asked: impl Future<Output = T>) -> anyhow::Result<T> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(runtime.block_on(asked))
    }
}
