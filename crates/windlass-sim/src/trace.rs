//! What happened, line by line: for a person who looks into a failure, and for the test that runs
//! a seed twice.

/// Lines, if anyone wants them.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    wanted: bool,
    shown: bool,
    lines: Vec<String>,
}

impl Trace {
    /// Keeps nothing.
    pub fn none() -> Self {
        Self::default()
    }

    /// Keeps every line.
    pub fn kept() -> Self {
        Self { wanted: true, ..Self::default() }
    }

    /// Prints every line as it comes.
    pub fn shown() -> Self {
        Self { wanted: true, shown: true, ..Self::default() }
    }

    /// Adds a line, which is put together only if someone wants it.
    pub fn line(&mut self, line: impl FnOnce() -> String) {
        if self.shown {
            println!("{}", line());
        } else if self.wanted {
            self.lines.push(line());
        }
    }

    /// Whether anyone wants lines.
    pub fn is_wanted(&self) -> bool {
        self.wanted
    }

    /// The lines that were kept.
    pub fn into_lines(self) -> Vec<String> {
        self.lines
    }
}
