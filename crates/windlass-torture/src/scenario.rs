//! What all scenarios share: one store's life under torture, and the verdict on it.

mod clock;
mod errors;
mod flips;
mod full;
mod kill;
mod plug;
mod poison;
mod processes;
mod site;

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::facts::Fact;
use crate::ledger::{Ledger, Tally};
use crate::machine::{Machine, Missing};
use crate::process::{Launch, Said};
use crate::random::Random;

/// The scenarios, in the order in which they are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Scenario {
    Kill,
    Poison,
    Plug,
    Errors,
    Full,
    Flips,
    Clock,
    Processes,
}

impl Scenario {
    pub(crate) const ALL: [Scenario; 8] = [
        Scenario::Kill,
        Scenario::Poison,
        Scenario::Plug,
        Scenario::Errors,
        Scenario::Full,
        Scenario::Flips,
        Scenario::Clock,
        Scenario::Processes,
    ];

    pub(crate) fn word(self) -> &'static str {
        match self {
            Scenario::Kill => "kill",
            Scenario::Poison => "poison",
            Scenario::Plug => "plug",
            Scenario::Errors => "errors",
            Scenario::Full => "full",
            Scenario::Flips => "flips",
            Scenario::Clock => "clock",
            Scenario::Processes => "processes",
        }
    }

    /// How many rounds each run of the tests makes.
    pub(crate) fn rounds(self) -> u64 {
        match self {
            Scenario::Kill => 60,
            Scenario::Poison => 6,
            Scenario::Plug => 30,
            Scenario::Errors => 100,
            Scenario::Full => 3,
            Scenario::Flips => 2_000,
            Scenario::Clock => 6,
            Scenario::Processes => 60,
        }
    }

    pub(crate) fn run(self, machine: &Machine, rounds: u64, seed: u64) -> Outcome {
        let began = Instant::now();
        let random = Random::new(seed ^ (self as u64) << 56);
        let run = match self {
            Scenario::Kill => kill::run,
            Scenario::Poison => poison::run,
            Scenario::Plug => plug::run,
            Scenario::Errors => errors::run,
            Scenario::Full => full::run,
            Scenario::Flips => flips::run,
            Scenario::Clock => clock::run,
            Scenario::Processes => processes::run,
        };
        let judged = run(machine, rounds, random);
        let result = match judged {
            Ok(verdict) => Result::Judged(verdict),
            Err(error) => match error.downcast::<Missing>() {
                Ok(missing) => Result::Skipped(missing),
                Err(error) => Result::Judged(Verdict {
                    wrong: vec![format!("the harness could not go on: {error:#}")],
                    ..Verdict::default()
                }),
            },
        };
        Outcome { scenario: self, rounds, seed, took: began.elapsed(), result }
    }
}

/// How a scenario went.
pub(crate) struct Outcome {
    pub(crate) scenario: Scenario,
    rounds: u64,
    pub(crate) seed: u64,
    took: Duration,
    pub(crate) result: Result,
}

pub(crate) enum Result {
    Judged(Verdict),
    /// This machine cannot do it.
    Skipped(Missing),
}

/// What was found.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    pub(crate) summary: String,
    pub(crate) wrong: Vec<String>,
    /// Everything that was said, if something is wrong.
    pub(crate) log: Vec<String>,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (word, rounds) = (self.scenario.word(), self.rounds);
        match &self.result {
            Result::Skipped(missing) => write!(f, "{word}: skipped, {missing}"),
            Result::Judged(verdict) => {
                let state = if verdict.wrong.is_empty() { "ok" } else { "WRONG" };
                let (summary, seconds) = (&verdict.summary, self.took.as_secs_f64());
                write!(f, "{word}: {state}, {rounds} rounds in {seconds:.1} s, {summary}")
            }
        }
    }
}

impl Verdict {
    /// Adds what one life showed.
    fn add(&mut self, tally: &mut Tally, life: Life) {
        let Life { ledger, path, .. } = life;
        tally.add(ledger.tally);
        if !ledger.wrong.is_empty() {
            self.log.push(format!("---- the store at {}", path.display()));
            self.log.extend(ledger.log);
        }
        self.wrong.extend(ledger.wrong);
    }
}

/// One store, from its first opening to its last.
pub(crate) struct Life {
    pub(crate) path: PathBuf,
    pub(crate) ledger: Ledger,
    pub(crate) settings: Settings,
    session: u32,
    /// What is not part of the store: on another filesystem, and unharmed.
    aside: PathBuf,
}

/// How the victims of one life open the store.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settings {
    pub(crate) durability: Option<String>,
    pub(crate) segment_bytes: Option<u32>,
    pub(crate) checkpoint_bytes: Option<u64>,
    pub(crate) remove: bool,
    /// As users open it, and not as the file store alone.
    pub(crate) shared: bool,
}

impl Settings {
    /// Small segments, so that names change often and must be as durable as bytes; checkpoints in
    /// some; deletions in most, so that there is something to clear.
    fn random(random: &mut Random) -> Self {
        Self {
            durability: None,
            segment_bytes: *random.choose(&[Some(64 << 10), Some(64 << 10), Some(256 << 10), None]),
            checkpoint_bytes: *random.choose(&[Some(8 << 10), Some(100 << 10), None]),
            remove: !random.one_in(4),
            shared: false,
        }
    }
}

impl Life {
    /// A new life at `path`, with what it needs aside.
    pub(crate) fn new(path: PathBuf, aside: &Path, settings: Settings, session: u32) -> Self {
        let aside = aside.join(format!("again-{session}"));
        Self { path, ledger: Ledger::default(), settings, session, aside }
    }

    /// The next victim.
    pub(crate) fn victim(&mut self) -> Launch {
        self.session += 1;
        let mut launch = Launch::new("work", &self.path).option("--session", self.session);
        if let Some(durability) = &self.settings.durability {
            launch = launch.option("--durability", durability);
        }
        if let Some(bytes) = self.settings.segment_bytes {
            launch = launch.option("--segment-bytes", bytes);
        }
        if let Some(bytes) = self.settings.checkpoint_bytes {
            launch = launch.option("--checkpoint-bytes", bytes);
        }
        if self.settings.remove {
            launch = launch.with("--remove");
        }
        if self.settings.shared {
            launch = launch.with("--shared");
        }
        launch
    }

    pub(crate) fn session(&self) -> u32 {
        self.session
    }

    /// The next victim, which first repeats the calls that were not answered.
    pub(crate) fn victim_that_repeats(&mut self) -> anyhow::Result<Launch> {
        let calls =
            self.ledger.take_again().into_iter().map(|ids| {
                ids.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ") + "\n"
            });
        std::fs::write(&self.aside, calls.collect::<String>())?;
        let aside = self.aside.clone();
        Ok(self.victim().with("--again").with(aside))
    }

    /// Looks at the store while nobody has it open.
    pub(crate) fn check(&mut self) -> anyhow::Result<()> {
        let said = Launch::new("check", &self.path).run()?;
        if !said.facts.iter().any(|(_, fact)| *fact == Fact::Listed) {
            self.ledger.wrong.push("the store could not be listed".to_string());
        }
        self.ledger.take_over(&said);
        Ok(())
    }

    /// Lets a last victim bring every job to its end, and looks once more.
    pub(crate) fn drain(&mut self) -> anyhow::Result<()> {
        let said = self.victim().option("--producers", 0).run()?;
        self.drained(&said)
    }

    pub(crate) fn drained(&mut self, said: &Said) -> anyhow::Result<()> {
        if !said.facts.iter().any(|(_, fact)| *fact == Fact::Drained) {
            let status = said.status;
            self.ledger.wrong.push(format!("the last victim did not finish ({status})"));
        }
        self.ledger.take_over(said);
        self.check()?;
        self.ledger.all_ended();
        Ok(())
    }
}

/// A random number of milliseconds.
fn millis(random: &mut Random, first: u64, last: u64) -> Duration {
    Duration::from_micros(random.between(first * 1_000, last * 1_000))
}
