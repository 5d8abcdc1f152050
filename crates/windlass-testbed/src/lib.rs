//! Real servers for tests, and a network between that misbehaves.
//!
//! Every server listens on 127.0.0.1 at a port of its own and keeps its files in a directory of
//! its own. Dropping it stops it and removes the directory, also when the test panics; when the
//! test process itself is killed, the kernel stops the server and a guard removes the directory.
//!
//! A server whose program is not installed is [`Missing`]: [`or_skip`] then skips the test by
//! name, or fails it under `CI=true`. Everything else that goes wrong panics with the server's own
//! log, because a test has no better answer to it.

mod certificates;
mod directory;
mod framing;
mod postgres;
mod process;
mod proxy;
mod service;

use std::fs::OpenOptions;
use std::io::Write;

pub use certificates::make_certificates;
pub use postgres::Postgres;
pub use proxy::{Direction, Fault, Proxy};
pub use service::{Nats, Pgbouncer, Redis};

/// A program that is not installed on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missing {
    /// The program.
    pub what: &'static str,
    /// What to do about it.
    pub how_to_install: &'static str,
}

impl std::fmt::Display for Missing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} is missing ({})", self.what, self.how_to_install)
    }
}

impl std::error::Error for Missing {}

/// What was asked for, or `None` when the test must be skipped for want of it: then it is said on
/// standard error and in the file that `WINDLASS_SKIPPED` names.
///
/// # Panics
/// Under `CI=true`: there nothing may be skipped.
pub fn or_skip<T>(found: Result<T, Missing>) -> Option<T> {
    let missing = match found {
        Ok(found) => return Some(found),
        Err(missing) => missing,
    };
    assert!(std::env::var("CI").as_deref() != Ok("true"), "{missing}");
    let thread = std::thread::current();
    // The test harness names the thread of a test after the test.
    let line = format!("{}: {missing}\n", thread.name().unwrap_or("a test"));
    eprint!("skipped {line}");
    if let Some(file) = std::env::var_os("WINDLASS_SKIPPED") {
        let file = OpenOptions::new().create(true).append(true).open(file);
        // One write: lines of tests that run at the same time must not mix.
        file.and_then(|mut file| file.write_all(line.as_bytes())).expect("the list is writable");
    }
    None
}
