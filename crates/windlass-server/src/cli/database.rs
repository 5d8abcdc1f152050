//! What the commands can be asked for that see to a store in a database.

use clap::{Args, Subcommand};

use crate::cli::Format;

#[derive(Args, Debug)]
pub(crate) struct MigrateOptions {
    #[command(subcommand)]
    pub(crate) command: MigrateCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum MigrateCommand {
    /// Bring the schema up to date; any number may do so at once
    #[command(after_help = "Example:\n  \
        windlass migrate up --store 'postgres://owner@host/app?windlass_schema=jobs'\n\n\
        Each migration is one transaction: one that is interrupted has changed nothing and can be \
        run again.")]
    Up {
        #[command(flatten)]
        database: Database,
    },
    /// Tell which version the schema has and which this program needs
    #[command(
        after_help = "It exits with 0 if the schema is the one this program works with, and \
        with 1 otherwise."
    )]
    Status {
        #[command(flatten)]
        database: Database,
    },
    /// Print the SQL of the migrations, to be run by other means
    #[command(after_help = "Example:\n  windlass migrate sql --from 0 | psql postgres://host/app")]
    Sql {
        /// The version the schema has; 0 for none
        #[arg(long, value_name = "VERSION", default_value_t = 0)]
        from: i32,

        /// The name of the schema
        #[arg(long, value_name = "NAME", default_value = "windlass")]
        schema: String,
    },
}

/// Which database is meant, and how to tell of it.
#[derive(Args, Debug)]
pub(crate) struct Database {
    /// The database, such as `postgres://user@host/database`
    #[arg(long, value_name = "ADDRESS", env = "WINDLASS_STORE", hide_env_values = true)]
    pub(crate) store: String,

    /// How to print
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub(crate) output: Format,
}
