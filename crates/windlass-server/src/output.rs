//! Printing, and how the program ends.
//!
//! Results go to standard output, everything else to standard error. A reader who has seen enough
//! and closes the pipe (`windlass … | head`) is no failure, so nothing here uses `println!`, which
//! panics then.

use std::env;
use std::fmt;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::process::ExitCode;

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;
use windlass::store::file::OpenError;

/// What a failure exits with.
pub(crate) const FAILED: u8 = 1;
/// What was typed cannot be meant, or not like this.
pub(crate) const USAGE: u8 = 2;
/// What was asked for is not there.
pub(crate) const NOT_FOUND: u8 = 3;
/// Something stands in the way.
pub(crate) const CONFLICT: u8 = 4;

/// A failure with an exit code of its own.
#[derive(Debug)]
pub(crate) struct Failure {
    code: u8,
    /// Why; `None` if everything has been said already.
    text: Option<String>,
}

impl Failure {
    pub(crate) fn because(code: u8, text: impl Into<String>) -> anyhow::Error {
        Self { code, text: Some(text.into()) }.into()
    }

    /// A failure of which everything has been said.
    pub(crate) fn told(code: u8) -> anyhow::Error {
        Self { code, text: None }.into()
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text.as_deref().unwrap_or("it was said already"))
    }
}

impl std::error::Error for Failure {}

/// Writes to standard output at once.
pub(crate) fn write(bytes: &[u8]) -> anyhow::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(bytes)?;
    stdout.flush()?;
    Ok(())
}

/// Writes one line to standard output at once.
pub(crate) fn line(text: &str) -> anyhow::Result<()> {
    write(format!("{text}\n").as_bytes())
}

/// Writes one line of JSON to standard output at once.
pub(crate) fn json(value: &impl Serialize) -> anyhow::Result<()> {
    line(&serde_json::to_string(value)?)
}

/// A table without frame whose first column is text and whose others are numbers.
pub(crate) fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header);
    for (index, column) in table.column_iter_mut().enumerate() {
        if index > 0 {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// A table without frame whose columns are all text; without a header if there is none.
pub(crate) fn text_table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    if !header.is_empty() {
        table.set_header(header);
    }
    table
}

/// Bytes in the unit that fits.
pub(crate) fn bytes(number: u64) -> String {
    let units = [(1_000_000_000, "GB"), (1_000_000, "MB"), (1_000, "kB")];
    let fits = units.into_iter().find(|(unit, _)| number >= *unit);
    fits.map_or_else(
        || counted(number, "byte"),
        |(unit, name)| format!("{:.1} {name}", number as f64 / unit as f64),
    )
}

/// A number with a comma between the thousands.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// So many of something: `1 job`, `2 jobs`.
pub(crate) fn counted(number: u64, what: &str) -> String {
    format!("{} {what}{}", grouped(number), if number == 1 { "" } else { "s" })
}

/// Whether colours are welcome on standard output.
pub(crate) fn stdout_has_colour() -> bool {
    io::stdout().is_terminal() && colour_is_welcome()
}

/// Whether colours are welcome on standard error.
pub(crate) fn stderr_has_colour() -> bool {
    io::stderr().is_terminal() && colour_is_welcome()
}

fn colour_is_welcome() -> bool {
    let set = |name| env::var_os(name).is_some_and(|value| !value.is_empty());
    !set("NO_COLOR") && env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Tells why the program failed, if it did, in one sentence on standard error.
pub(crate) fn exit_code(result: anyhow::Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            if !is_told(&error) {
                complain(&format!("{error:#}"));
            }
            ExitCode::from(code_of(&error))
        }
    }
}

/// Says what went wrong on standard error. If that is closed too, the exit code must do.
pub(crate) fn complain(text: &str) {
    let _ = writeln!(io::stderr(), "error: {text}");
}

/// Says something that is not a result on standard error.
pub(crate) fn remark(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

fn is_told(error: &anyhow::Error) -> bool {
    error.downcast_ref().is_some_and(|failure: &Failure| failure.text.is_none())
}

fn code_of(error: &anyhow::Error) -> u8 {
    error.chain().find_map(code_of_cause).unwrap_or(FAILED)
}

fn code_of_cause(cause: &(dyn std::error::Error + 'static)) -> Option<u8> {
    if let Some(failure) = cause.downcast_ref::<Failure>() {
        return Some(failure.code);
    }
    let opening = cause.downcast_ref().or(match cause.downcast_ref() {
        Some(windlass::Error::Open(error)) => Some(error),
        _ => None,
    });
    match opening {
        Some(OpenError::InUse { .. } | OpenError::NotEmpty { .. } | OpenError::HalfMoved) => {
            Some(CONFLICT)
        }
        Some(OpenError::NoStore { .. }) => Some(NOT_FOUND),
        _ => None,
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let broken = |error: &io::Error| error.kind() == ErrorKind::BrokenPipe;
    error.chain().any(|cause| cause.downcast_ref().is_some_and(broken))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_in_thousands() {
        for (number, text) in [(0, "0"), (999, "999"), (1_000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(grouped(number), text);
        }
    }
}
