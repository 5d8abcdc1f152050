//! A victim as the harness sees it: a process, what it has said so far, and the means to kill it.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context;

use crate::facts::{Fact, Stamp, read_line};

/// How a process is started.
#[derive(Clone, Debug, Default)]
pub(crate) struct Launch {
    /// A command to run it under.
    pub(crate) under: Vec<OsString>,
    pub(crate) arguments: Vec<OsString>,
    pub(crate) environment: BTreeMap<String, OsString>,
}

impl Launch {
    pub(crate) fn new(verb: &str, path: &Path) -> Self {
        Self::default().with(verb).with(path)
    }

    pub(crate) fn with(mut self, argument: impl Into<OsString>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    pub(crate) fn option(self, name: &str, value: impl ToString) -> Self {
        self.with(name).with(value.to_string())
    }

    fn command(&self) -> anyhow::Result<Command> {
        let me = std::env::current_exe()?;
        let mut command = match self.under.split_first() {
            None => Command::new(me),
            Some((program, arguments)) => {
                let mut command = Command::new(program);
                command.args(arguments).arg(me);
                command
            }
        };
        command.args(&self.arguments).envs(&self.environment);
        Ok(command)
    }

    pub(crate) fn start(&self) -> anyhow::Result<Process> {
        let mut command = self.command()?;
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().with_context(|| format!("cannot start {command:?}"))?;
        let (out, err) = (child.stdout.take(), child.stderr.take());
        let heard = Arc::new(Received::default());
        let ear = heard.clone();
        let reader = out.map(|out| std::thread::spawn(move || ear.listen(out)));
        let errors = err.map(|mut err| {
            std::thread::spawn(move || {
                let mut text = String::new();
                let _ = err.read_to_string(&mut text);
                text
            })
        });
        Ok(Process { child, heard, reader, errors })
    }

    /// Runs to the end and returns everything that was said.
    pub(crate) fn run(&self) -> anyhow::Result<Said> {
        self.start()?.finish()
    }
}

/// What a process has said.
#[derive(Default)]
struct Received {
    lines: Mutex<Lines>,
    more: Condvar,
}

#[derive(Default)]
struct Lines {
    facts: Vec<(Stamp, Fact)>,
    nonsense: Vec<String>,
    over: bool,
}

impl Received {
    fn lock(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn listen(&self, out: ChildStdout) {
        let mut out = BufReader::with_capacity(1 << 16, out);
        let mut line = Vec::new();
        while out.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
            // A line that was cut off was not said.
            if let Some(text) = line.strip_suffix(b"\n") {
                let text = String::from_utf8_lossy(text);
                let mut lines = self.lock();
                match read_line(&text) {
                    Ok(said) => lines.facts.push(said),
                    Err(why) => lines.nonsense.push(format!("{why}: {text}")),
                }
                self.more.notify_all();
            }
            line.clear();
        }
        self.lock().over = true;
        self.more.notify_all();
    }
}

/// A running victim. Dropping it kills it.
pub(crate) struct Process {
    child: Child,
    heard: Arc<Received>,
    reader: Option<JoinHandle<()>>,
    errors: Option<JoinHandle<String>>,
}

/// Everything a process said, and how it ended.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) facts: Vec<(Stamp, Fact)>,
    pub(crate) nonsense: Vec<String>,
    pub(crate) errors: String,
    pub(crate) status: ExitStatus,
}

impl Process {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// How many facts were heard so far.
    pub(crate) fn mark(&self) -> usize {
        self.heard.lock().facts.len()
    }

    /// Waits until `wanted` is content with what was heard from `mark` on; `false` if it takes too
    /// long or the process ends before. It is shown every fact once: whoever read them all again
    /// for each new one would hold up the thread that hears them, the more the longer it takes.
    pub(crate) fn wait_for(
        &self,
        mut mark: usize,
        patience: Duration,
        mut wanted: impl FnMut(&[(Stamp, Fact)]) -> bool,
    ) -> bool {
        let deadline = Instant::now() + patience;
        let mut lines = self.heard.lock();
        loop {
            let fresh = lines.facts.get(mark..).unwrap_or_default();
            mark += fresh.len();
            if wanted(fresh) {
                return true;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if lines.over || left.is_zero() {
                return false;
            }
            let waited = self.heard.more.wait_timeout(lines, left);
            lines = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits for one fact.
    pub(crate) fn hears(&self, patience: Duration, wanted: impl Fn(&Fact) -> bool) -> bool {
        self.wait_for(0, patience, |facts| facts.iter().any(|(_, fact)| wanted(fact)))
    }

    /// What was heard from `mark` on, and the mark behind it.
    pub(crate) fn heard_since(&self, mark: usize) -> (Vec<Fact>, usize) {
        let lines = self.heard.lock();
        let fresh = lines.facts.get(mark..).unwrap_or_default();
        (fresh.iter().map(|(_, fact)| fact.clone()).collect(), lines.facts.len())
    }

    /// What the last fact that shows it shows.
    pub(crate) fn last<T>(&self, shown: impl Fn(&Fact) -> Option<T>) -> Option<T> {
        self.heard.lock().facts.iter().rev().find_map(|(_, fact)| shown(fact))
    }

    /// Waits until the store is open.
    pub(crate) fn is_open(&self) -> bool {
        let opened = |fact: &Fact| matches!(fact, Fact::Opened { .. });
        self.hears(Duration::from_secs(30), opened)
    }

    /// Sends a signal by its name.
    pub(crate) fn signal(&self, name: &str) -> anyhow::Result<()> {
        signal(self.pid(), name)
    }

    /// Ends it without a word of warning, and returns everything it said.
    pub(crate) fn kill(mut self) -> anyhow::Result<Said> {
        self.child.kill()?;
        self.finish()
    }

    /// Waits for its end, and returns everything it said.
    pub(crate) fn finish(mut self) -> anyhow::Result<Said> {
        let status = self.child.wait()?;
        let _ = self.reader.take().map(JoinHandle::join);
        let errors = self.errors.take().and_then(|errors| errors.join().ok()).unwrap_or_default();
        let mut lines = self.heard.lock();
        let (facts, nonsense) =
            (std::mem::take(&mut lines.facts), std::mem::take(&mut lines.nonsense));
        drop(lines);
        Ok(Said { facts, nonsense, errors, status })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends a signal to a process of ours.
pub(crate) fn signal(pid: u32, name: &str) -> anyhow::Result<()> {
    // The shell's own `kill`: one tool less that a machine may lack.
    let status = Command::new("sh").arg("-c").arg(format!("kill -{name} {pid}")).status()?;
    anyhow::ensure!(status.success(), "cannot send {name} to process {pid}");
    Ok(())
}
