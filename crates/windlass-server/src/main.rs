//! The `windlass` command.
//!
//! - [`cli`] says what can be typed
//! - [`demo`] shows the engine at work
//! - [`serve`] lets programs on other machines reach a store
//! - [`bench`] measures it
//! - [`doctor`] checks a store, [`backup`] copies it
//! - [`offline`] lists, shows, changes and exports jobs, and shows objects, of a store that nobody
//!   has open
//! - [`migrate`] sees to the schema of a database, [`moving`] moves a store to or from one
//! - [`output`] prints, and turns every end into an exit code
//! - [`signals`] hears Ctrl-C

mod backup;
mod bench;
mod cli;
mod demo;
mod doctor;
mod migrate;
mod moving;
mod offline;
mod output;
mod serve;
mod signals;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use tracing::level_filters::LevelFilter;

use crate::cli::{Cli, Command};
use crate::offline::change::Verb;

fn main() -> ExitCode {
    let cli = Cli::parse();
    log_to_stderr(cli.log_level());
    output::exit_code(run(&cli))
}

fn run(cli: &Cli) -> anyhow::Result<()> {
    match &cli.command {
        Command::Demo(options) => demo::run(options, cli.verbose > 0),
        Command::Serve(options) => serve::run(options),
        Command::Bench(options) => bench::run(options),
        Command::Doctor(options) => doctor::run(options),
        Command::Backup(options) => backup::run(options),
        Command::List(options) => offline::list::run(options),
        Command::Show(options) => offline::show::run(options),
        Command::Objects(options) => offline::objects::list(options),
        Command::Object(options) => offline::objects::show(options),
        Command::Retry(options) => offline::change::run(options, Verb::Retry),
        Command::Cancel(options) => offline::change::run(options, Verb::Cancel),
        Command::Export(options) => offline::export::run(options),
        Command::Migrate(options) => migrate::run(options),
        Command::Move(options) => moving::run(options),
        Command::Completions { shell } => {
            // Rendered first and written at once: the generator panics when its pipe is closed.
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut Cli::command(), "windlass", &mut script);
            output::write(&script)
        }
    }
}

fn log_to_stderr(level: LevelFilter) {
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(std::io::stderr)
        .with_ansi(output::stderr_has_colour())
        .init();
}
