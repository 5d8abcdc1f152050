//! Where the demonstration is seen: a live table under a growing story on a terminal, plain lines
//! in a pipe or a log, JSON for programs.

use std::collections::{BTreeMap, VecDeque};
use std::io::{IsTerminal, stdout};

use comfy_table::{ColumnConstraint, Width};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use tokio::time::Instant;
use windlass::{Counts, StateName};

use crate::cli::Format;
use crate::demo::report::Report;
use crate::demo::story::{Line, Told};
use crate::output::{self, grouped, table};

/// Frames over which a rate is measured: one second of them.
const RATE_FRAMES: usize = 4;

/// How wide the columns of the table are, whatever they hold, so that it does not jump with its
/// figures; together they fit a terminal of 80 characters.
const WIDTHS: [u16; 8] = [16, 9, 11, 9, 9, 11, 7, 7];

/// Where the demonstration is seen.
pub(crate) struct Screen {
    began: Instant,
    rates: Rates,
    face: Face,
}

enum Face {
    Live { bar: ProgressBar, colour: bool },
    Plain { frames: usize },
    Json,
}

impl Screen {
    /// A live one if there is a terminal, and no log that would be written across it.
    pub(crate) fn new(format: Format, verbose: bool) -> Self {
        let face = match format {
            Format::Json => Face::Json,
            Format::Table if stdout().is_terminal() && !verbose => Face::live(),
            Format::Table => Face::Plain { frames: 0 },
        };
        Self { began: Instant::now(), rates: Rates::default(), face }
    }

    fn seconds(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }

    /// Adds a line to the story.
    pub(crate) fn tell(&mut self, line: &Line) -> anyhow::Result<()> {
        let seconds = self.seconds();
        match &self.face {
            Face::Live { bar, colour } => {
                bar.println(story_line(seconds, line, *colour));
                Ok(())
            }
            Face::Plain { .. } => output::line(&story_line(seconds, line, false)),
            Face::Json => output::json(&JsonLine::Story {
                seconds: rounded(seconds),
                scene: line.scene,
                text: &line.text,
                event: line.event.as_ref(),
            }),
        }
    }

    /// Shows how the queues stand. Called once per frame.
    pub(crate) fn show(&mut self, counts: &Counts) -> anyhow::Result<()> {
        let seconds = self.seconds();
        self.rates.note(seconds, counts);
        match &mut self.face {
            Face::Live { bar, .. } => bar.set_message(queue_table(counts, &self.rates)),
            Face::Plain { frames } => {
                *frames += 1;
                if frames.is_multiple_of(RATE_FRAMES) {
                    output::line(&summary(seconds, counts, &self.rates))?;
                }
            }
            Face::Json => {}
        }
        Ok(())
    }

    /// Shows the end.
    pub(crate) fn finish(&mut self, counts: &Counts, report: &Report) -> anyhow::Result<()> {
        let seconds = self.seconds();
        match &self.face {
            Face::Live { bar, .. } => {
                bar.finish_with_message(queue_table(counts, &self.rates));
                output::line(&format!("\n\n{}", report.text()))
            }
            Face::Plain { .. } => output::line(&format!("\n{}", report.text())),
            Face::Json => output::json(&JsonLine::Report { seconds: rounded(seconds), report }),
        }
    }
}

impl Face {
    fn live() -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stdout());
        if let Ok(style) = ProgressStyle::with_template("\n{msg}") {
            bar.set_style(style);
        }
        Face::Live { bar, colour: output::stdout_has_colour() }
    }
}

/// A line of JSON output.
#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum JsonLine<'a> {
    Story {
        seconds: f64,
        scene: &'static str,
        text: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        event: Option<&'a Told>,
    },
    Report {
        seconds: f64,
        #[serde(flatten)]
        report: &'a Report,
    },
}

fn rounded(seconds: f64) -> f64 {
    (seconds * 1_000.0).round() / 1_000.0
}

fn story_line(seconds: f64, line: &Line, colour: bool) -> String {
    let scene = format!("{:<11}", line.scene);
    if !colour {
        return format!("{seconds:6.2} s  {scene}  {}", line.text);
    }
    let topic = line.event.as_ref().map_or("", |event| event.topic.as_str());
    let shade = match topic {
        "job.dead" | "job.failed" => "31",
        "job.completed" => "32",
        "queue.paused" | "job.snoozed" | "job.deduplicated" => "33",
        _ => "0",
    };
    format!(
        "\x1b[2m{seconds:6.2} s\x1b[0m  \x1b[1m{scene}\x1b[0m  \x1b[{shade}m{}\x1b[0m",
        line.text
    )
}

fn summary(seconds: f64, counts: &Counts, rates: &Rates) -> String {
    let states = [
        StateName::Ready,
        StateName::Scheduled,
        StateName::Blocked,
        StateName::Running,
        StateName::Dead,
    ];
    let states = states.map(|state| format!("{} {state}", counts.in_state(state))).join(", ");
    let completed = grouped(counts.totals().completed);
    let rate = rates.of_all();
    format!("{seconds:6.2} s  {:<11}  {states}, {completed} completed, {rate:.0} per s", "queues")
}

/// One row per queue and one for all of them.
fn queue_table(counts: &Counts, rates: &Rates) -> String {
    let header =
        ["queue", "ready", "scheduled", "blocked", "running", "completed", "dead", "per s"];
    let mut rows = table(&header);
    let mut all = Row::default();
    for queue in &counts.queues {
        let name = queue.queue.as_str();
        let row = Row::of(counts, name, rates.of(name));
        let paused = if queue.settings.paused { " (paused)" } else { "" };
        rows.add_row(row.cells(&format!("{name}{paused}")));
        all.add(&row);
    }
    rows.add_row(all.cells("all"));
    for (column, width) in rows.column_iter_mut().zip(WIDTHS) {
        column.set_constraint(ColumnConstraint::Absolute(Width::Fixed(width)));
    }
    rows.trim_fmt()
}

#[derive(Clone, Copy, Debug, Default)]
struct Row {
    states: [u64; 4],
    completed: u64,
    dead: u64,
    rate: f64,
}

impl Row {
    fn of(counts: &Counts, queue: &str, rate: f64) -> Self {
        let states =
            [StateName::Ready, StateName::Scheduled, StateName::Blocked, StateName::Running];
        Self {
            states: states.map(|state| counts.in_queue(queue, state)),
            completed: completed_in(counts, queue),
            dead: counts.in_queue(queue, StateName::Dead),
            rate,
        }
    }

    fn add(&mut self, other: &Row) {
        for (sum, count) in self.states.iter_mut().zip(other.states) {
            *sum += count;
        }
        self.completed += other.completed;
        self.dead += other.dead;
        self.rate += other.rate;
    }

    fn cells(&self, name: &str) -> Vec<String> {
        let mut cells = vec![name.to_string()];
        cells.extend(self.states.map(grouped));
        cells.extend([grouped(self.completed), grouped(self.dead), format!("{:.0}", self.rate)]);
        cells
    }
}

/// Completed since the start, whether or not the jobs are still kept.
fn completed_in(counts: &Counts, queue: &str) -> u64 {
    let lines = counts.lines.iter().filter(|line| line.queue.as_str() == queue);
    lines.map(|line| line.totals.completed).sum()
}

/// How fast jobs complete, over the last second.
#[derive(Debug, Default)]
struct Rates {
    seen: VecDeque<(f64, BTreeMap<String, u64>)>,
}

impl Rates {
    fn note(&mut self, seconds: f64, counts: &Counts) {
        let queues = counts.queues.iter().map(|queue| queue.queue.to_string());
        let completed = queues.map(|queue| {
            let completed = completed_in(counts, &queue);
            (queue, completed)
        });
        self.seen.push_back((seconds, completed.collect()));
        if self.seen.len() > RATE_FRAMES + 1 {
            self.seen.pop_front();
        }
    }

    fn of(&self, queue: &str) -> f64 {
        let (Some((from, before)), Some((to, after))) = (self.seen.front(), self.seen.back())
        else {
            return 0.0;
        };
        let at = |seen: &BTreeMap<String, u64>| seen.get(queue).copied().unwrap_or(0) as f64;
        if to > from { (at(after) - at(before)) / (to - from) } else { 0.0 }
    }

    fn of_all(&self) -> f64 {
        let queues = self.seen.back().into_iter().flat_map(|(_, queues)| queues.keys());
        queues.map(|queue| self.of(queue)).sum()
    }
}
