//! Showing that something goes on: a spinner on a terminal, a line now and then elsewhere.

use std::io::{IsTerminal, Write, stderr};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::output::grouped;

/// How many jobs go by between two lines about filling a store.
const FILLED: u64 = 1_000_000;

/// It only ticks, and counts nothing, so that it does not disturb what it shows.
#[derive(Clone, Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
    terminal: bool,
}

impl Progress {
    pub(crate) fn start(text: String) -> Self {
        let terminal = stderr().is_terminal();
        if !terminal {
            return Self { bar: ProgressBar::hidden(), terminal };
        }
        let bar = ProgressBar::new_spinner().with_message(text);
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} … {elapsed}") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(120));
        Self { bar, terminal }
    }

    /// Says how full a store is, every now and then.
    pub(crate) fn filled(&self, name: &str, jobs: u64, of: u64) {
        if !jobs.is_multiple_of(FILLED) || jobs == of {
            return;
        }
        let text = format!("{name}: {} of {} jobs are in", grouped(jobs), grouped(of));
        if self.terminal {
            self.bar.set_message(text);
        } else {
            // Nobody is told; nothing is lost.
            let _ = writeln!(stderr(), "{text}");
        }
    }

    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
