//! When something runs next: intervals and cron patterns, as pure functions of time.
//!
//! Nothing here reads a clock. A [`Schedule`] is a rule; a caller brings the time and asks for
//! what comes after it, or what came between two times ([`Schedule::due`]). The rule is all that
//! must be kept: run `k` of an interval is at `start + k × interval`, computed and never counted
//! up, so that a late run does not move the next one. The only thing that is read from outside
//! is the time-zone data: that of the machine and, where it has none, that of the build.
//!
//! A schedule that cannot run cannot be made: every way in, stored bytes included, ends in the
//! same checks.
//!
//! Daylight saving: a pattern that names times of day, such as `30 2 * * *` or `0 2,14 * * *`,
//! runs once on the day on which such a time is skipped (right after the gap, once for all that
//! lie in it) and once on the day on which it comes twice (the first time). A pattern with a `*`
//! in second, minute or hour, such as `*/15 * * * *` or `0 */2 * * *`, runs whenever the clocks
//! show a time that matches: in both halves of a repeated hour, and not in a skipped one.

use std::fmt::{self, Write as _};
use std::str::FromStr;
use std::time::Duration;

use croner::Cron;
use jiff::tz::{TimeZone, TimeZoneDatabase};
use serde::{Deserialize, Serialize};
use windlass_core::time::Timestamp;

use self::clocks::Clocks;

mod clocks;

/// Shortest interval: the clock of the engine is told in milliseconds.
const SHORTEST: Duration = Duration::from_millis(1);

/// Longest interval, a hundred years: beyond, a unit was mistaken.
const LONGEST: Duration = Duration::from_secs(100 * 31_557_600);

/// Longest pattern in bytes: an honest one is far shorter, and a schedule is kept with its state.
const PATTERN_BYTES: usize = 256;

/// Most runs that one answer holds: each of them becomes work that is written down.
pub const RUNS_AT_ONCE: usize = 1_000;

/// When something runs: at an interval, or by a cron pattern in a time zone.
///
/// ```
/// # use std::time::Duration;
/// # use windlass::{InvalidSchedule, Schedule};
/// let often = Schedule::every(Duration::from_secs(900))?;
/// let mornings = Schedule::cron("0 9 * * MON-FRI")?.in_zone("Europe/Berlin")?;
/// assert_eq!(often.describe(), "every 15 minutes");
/// assert_eq!(mornings, "0 9 * * MON-FRI Europe/Berlin".parse()?);
/// # Ok::<(), InvalidSchedule>(())
/// ```
///
/// Its stored form is small and does not change: `{"every_ms":900000}`, or
/// `{"cron":"0 9 * * 1-5","zone":"Europe/Berlin"}`, each with `"start_us"` if it has a start.
/// Reading one back that is not valid is an error.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Stored", into = "Stored")]
pub struct Schedule {
    rule: Rule,
    start: Option<Timestamp>,
}

#[derive(Clone, PartialEq, Eq)]
enum Rule {
    Every(Duration),
    Cron(Box<CronRule>),
}

#[derive(Clone, PartialEq, Eq)]
struct CronRule {
    /// As it was written, with single spaces.
    pattern: String,
    cron: Cron,
    zone_name: String,
    zone: TimeZone,
}

/// Why a schedule cannot be made, and what would be one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidSchedule {
    /// The pattern is not one.
    #[error(
        "`{pattern}` is not a cron pattern: {why}; write minute, hour, day, month and weekday, \
         such as `0 9 * * MON-FRI`"
    )]
    Pattern {
        /// What was given.
        pattern: String,
        /// What is wrong with it.
        why: String,
    },

    /// No day is ever like that.
    #[error("`{pattern}` never runs: no date matches it; check its day and month")]
    NeverRuns {
        /// What was given.
        pattern: String,
    },

    /// No such time zone.
    #[error("time zone `{zone}` is unknown; use a name such as `Europe/Berlin` or `UTC`")]
    UnknownZone {
        /// What was given.
        zone: String,
    },

    /// An interval is the same in every zone.
    #[error("an interval has no time zone; for a time of day use a cron pattern")]
    ZoneOfInterval,

    /// The interval is too short, too long, or not in whole milliseconds.
    #[error(
        "an interval of {got:?} cannot be kept; it is 1 ms to 100 years, in whole milliseconds"
    )]
    Interval {
        /// What was given.
        got: Duration,
    },

    /// The start is before 1970 or after the year 4999.
    #[error("a schedule cannot start at {got}; it starts between the years 1970 and 4999")]
    Start {
        /// What was given.
        got: Timestamp,
    },

    /// The text is not a schedule at all.
    #[error("`{text}` is not a schedule: {why}; write `every 15m`, or a pattern and a zone")]
    Text {
        /// What was given.
        text: String,
        /// What is wrong with it.
        why: &'static str,
    },
}

/// What becomes of runs whose time passed while nobody could run them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MissedRuns {
    /// They are left out; the next run is the next one that is planned.
    Skip,
    /// The latest of them runs and stands for all.
    #[default]
    RunOnce,
    /// They run, oldest first, but no more than the last `at_most` of them.
    CatchUp {
        /// How many. 0 counts as 1, and more than [`RUNS_AT_ONCE`] as that.
        at_most: u32,
    },
}

/// How late an alarm may be before its run counts as missed: the longest that a worker sleeps when
/// it hears nothing, unless it is set otherwise.
pub(crate) const GRACE: Duration = Duration::from_secs(5);

/// What is to be done at one point in time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Due {
    /// The planned times of the runs that are due, oldest first; at most [`RUNS_AT_ONCE`].
    pub runs: Vec<Timestamp>,
    /// There were other runs that are left out.
    pub left_out: bool,
    /// When to ask again; `None` if nothing will ever run again.
    pub next: Option<Timestamp>,
}

impl Schedule {
    /// Every so often. Without a start, run `k` is at `k × interval` after 1970, so that everyone
    /// who has the same interval means the same times; with [`Schedule::starting_at`], run `k` is
    /// at `start + k × interval`.
    ///
    /// Refuses what is shorter than a millisecond, longer than 100 years, or not in whole
    /// milliseconds.
    pub fn every(interval: Duration) -> Result<Self, InvalidSchedule> {
        let whole = interval.subsec_nanos().is_multiple_of(1_000_000);
        if !whole || !(SHORTEST..=LONGEST).contains(&interval) {
            return Err(InvalidSchedule::Interval { got: interval });
        }
        Ok(Self { rule: Rule::Every(interval), start: None })
    }

    /// By a cron pattern, in UTC unless [`Schedule::in_zone`] says otherwise.
    ///
    /// Five fields (minute, hour, day of month, month, weekday), six with seconds in front, seven
    /// with a year at the end, or a word such as `@daily`. If both a day of the month and a
    /// weekday are given, either is enough. Refuses what is not a pattern, and a pattern that no
    /// date between 1970 and 4999 matches.
    ///
    /// Where clocks are put forward, a named time that is skipped runs right after the gap; where
    /// they are put back, one that comes twice runs the first time. A pattern with a `*` in
    /// second, minute or hour runs whenever the clocks show a time that matches: twice in a
    /// repeated hour, not in a skipped one.
    pub fn cron(pattern: &str) -> Result<Self, InvalidSchedule> {
        let rule = CronRule::new(pattern)?;
        Ok(Self { rule: Rule::Cron(Box::new(rule)), start: None })
    }

    /// The same pattern, read on the clocks of this zone: an IANA name such as `Europe/Berlin`.
    ///
    /// Refuses a zone that neither the machine nor this build knows, and a zone for an interval.
    pub fn in_zone(mut self, zone: &str) -> Result<Self, InvalidSchedule> {
        match &mut self.rule {
            Rule::Every(_) => Err(InvalidSchedule::ZoneOfInterval),
            Rule::Cron(rule) => {
                (rule.zone_name, rule.zone) = find_zone(zone)?;
                Ok(self)
            }
        }
    }

    /// The same schedule without runs before `start`. An interval has its first run there, and
    /// counts from it.
    ///
    /// Refuses a start before 1970 or after the year 4999.
    pub fn starting_at(mut self, start: Timestamp) -> Result<Self, InvalidSchedule> {
        if !(Timestamp::default()..END).contains(&start) {
            return Err(InvalidSchedule::Start { got: start });
        }
        self.start = Some(start);
        Ok(self)
    }

    /// The same schedule, counted from `start` unless it has a start of its own.
    pub(crate) fn counted_from(&self, start: Timestamp) -> Self {
        Self { start: self.start.or(Some(start)), ..self.clone() }
    }

    /// The first run that is strictly later than `after`; `None` if there is none before the year
    /// 5000.
    pub fn next_after(&self, after: Timestamp) -> Option<Timestamp> {
        // A run exactly at the start counts, so the search begins just before it.
        let start = self.start.unwrap_or_default();
        let after = after.max(start - Duration::from_micros(1));
        let next = match &self.rule {
            Rule::Every(interval) => {
                let runs = (after + Duration::from_micros(1)).since(start);
                let behind = runs.as_micros().div_ceil(interval.as_micros());
                run_number(start, *interval, behind)
            }
            Rule::Cron(rule) => rule.next_after(after),
        };
        next.filter(|at| *at < END)
    }

    /// The last run that is not later than `at`; `None` if there is none.
    fn last_until(&self, at: Timestamp) -> Option<Timestamp> {
        let start = self.start.unwrap_or_default();
        if at < start {
            return None;
        }
        let at = at.min(END - Duration::from_micros(1));
        match &self.rule {
            Rule::Every(interval) => {
                run_number(start, *interval, at.since(start).as_micros() / interval.as_micros())
            }
            Rule::Cron(rule) => rule.last_until(at).filter(|last| *last >= start),
        }
    }

    /// The next `count` runs that are later than `after`; fewer if there are no more, and never
    /// more than [`RUNS_AT_ONCE`].
    pub fn upcoming(&self, after: Timestamp, count: usize) -> Vec<Timestamp> {
        let first = self.next_after(after);
        let later = std::iter::successors(first, |at| self.next_after(*at));
        later.take(count.min(RUNS_AT_ONCE)).collect()
    }

    /// What is due at `now`, if everything up to and including `since` was dealt with: `since` is
    /// the last planned run, or when the schedule was made.
    ///
    /// An alarm is never heard at the very moment, so a run is not missed until it is more than
    /// `grace` late. With [`MissedRuns::Skip`], the latest run that has come is due if it is not
    /// missed, and nothing otherwise; the other policies do not look at `grace`.
    ///
    /// The same arguments give the same answer: a caller that writes down the last of `runs` (or
    /// `now`, if there is none) in the commit that starts them runs none of them twice.
    ///
    /// The work does not depend on how much was missed: an interval is computed, and a pattern is
    /// searched backwards from `now`, once for each run of the answer and once more.
    pub fn due(
        &self,
        since: Timestamp,
        now: Timestamp,
        missed: MissedRuns,
        grace: Duration,
    ) -> Due {
        let next = self.next_after(now.max(since));
        let at_most = match missed {
            MissedRuns::Skip | MissedRuns::RunOnce => 1,
            MissedRuns::CatchUp { at_most } => (at_most as usize).clamp(1, RUNS_AT_ONCE),
        };
        let just_before = |at: Timestamp| self.last_until(at - Duration::from_micros(1));
        let passed = std::iter::successors(self.last_until(now), |at| just_before(*at));
        let mut runs: Vec<Timestamp> =
            passed.take_while(|at| *at > since).take(at_most + 1).collect();
        let mut left_out = runs.len() > at_most;
        runs.truncate(at_most);
        if missed == MissedRuns::Skip && runs.first().is_some_and(|at| now.since(*at) > grace) {
            runs.clear();
            left_out = true;
        }
        runs.reverse();
        Due { runs, left_out, next }
    }

    /// The schedule in words, such as `every 15 minutes`, or `At 09:00, on Monday. (UTC)`.
    pub fn describe(&self) -> String {
        let mut words = match &self.rule {
            Rule::Every(interval) => format!("every {}", in_words(*interval)),
            Rule::Cron(rule) => {
                let described = rule.cron.describe();
                format!("{} ({})", described.trim_end_matches('.'), rule.zone_name)
            }
        };
        if let Some(start) = self.start {
            let _ = write!(words, ", from {start}");
        }
        words
    }
}

/// Where schedules end: the search for a match goes no further.
const END: Timestamp = Timestamp::from_millis(95_617_584_000_000);

/// Run `number` of an interval.
fn run_number(start: Timestamp, interval: Duration, number: u128) -> Option<Timestamp> {
    let past = number.checked_mul(interval.as_micros())?;
    Some(start + Duration::from_micros(u64::try_from(past).ok()?))
}

impl CronRule {
    fn new(pattern: &str) -> Result<Self, InvalidSchedule> {
        let pattern = single_spaced(pattern);
        let invalid = |why: &str| {
            let shown = pattern.chars().take(PATTERN_BYTES).collect();
            InvalidSchedule::Pattern { pattern: shown, why: why.trim_end_matches('.').to_owned() }
        };
        if pattern.len() > PATTERN_BYTES {
            return Err(invalid("it is longer than 256 bytes"));
        }
        if !pattern.is_ascii() {
            return Err(invalid("it has a character that is not ASCII"));
        }
        let cron = Cron::from_str(&pattern).map_err(|error| invalid(&error.to_string()))?;
        let rule = Self { cron, zone_name: "UTC".to_owned(), zone: TimeZone::UTC, pattern };
        if rule.next_after(Timestamp::default() - Duration::from_micros(1)).is_none() {
            return Err(InvalidSchedule::NeverRuns { pattern: rule.pattern });
        }
        Ok(rule)
    }

    fn next_after(&self, after: Timestamp) -> Option<Timestamp> {
        self.clocks().next_after(whole_second(after)?).map(instant)
    }

    fn last_until(&self, at: Timestamp) -> Option<Timestamp> {
        self.clocks().last_until(whole_second(at)?).map(instant)
    }

    fn clocks(&self) -> Clocks<'_> {
        Clocks { cron: &self.cron, zone: &self.zone }
    }
}

fn whole_second(at: Timestamp) -> Option<jiff::Timestamp> {
    jiff::Timestamp::from_second(at.as_micros().div_euclid(1_000_000)).ok()
}

fn instant(at: jiff::Timestamp) -> Timestamp {
    Timestamp::from_micros(at.as_microsecond())
}

/// The zone of this name, and its name as it is usually written. A machine without time-zone
/// data, or with a part of it, is helped out by the build's own.
fn find_zone(name: &str) -> Result<(String, TimeZone), InvalidSchedule> {
    let found = TimeZone::get(name).or_else(|_| TimeZoneDatabase::bundled().get(name));
    let unknown = || InvalidSchedule::UnknownZone { zone: name.chars().take(64).collect() };
    let zone = found.map_err(|_| unknown())?;
    let name = zone.iana_name().ok_or_else(unknown)?.to_owned();
    Ok((name, zone))
}

fn single_spaced(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The units of an interval: milliseconds, the letters, and the word.
const UNITS: [(u128, &str, &str); 5] = [
    (86_400_000, "d", "day"),
    (3_600_000, "h", "hour"),
    (60_000, "m", "minute"),
    (1_000, "s", "second"),
    (1, "ms", "millisecond"),
];

/// The parts of an interval that are not zero: how many, the letters, and the word.
fn parts(interval: Duration) -> Vec<(u128, &'static str, &'static str)> {
    let mut rest = interval.as_millis();
    let mut parts = Vec::new();
    for (millis, letters, word) in UNITS {
        if rest >= millis {
            parts.push((rest / millis, letters, word));
            rest %= millis;
        }
    }
    parts
}

/// Such as `15 minutes`, `1 hour and 30 minutes`, or `day`.
fn in_words(interval: Duration) -> String {
    let parts = parts(interval);
    if let [(1, _, word)] = parts[..] {
        return word.to_owned();
    }
    let plural = |count: u128| if count == 1 { "" } else { "s" };
    let words = parts.iter().map(|(count, _, word)| format!("{count} {word}{}", plural(*count)));
    words.collect::<Vec<_>>().join(" and ")
}

/// Reads `1h30m`: numbers with units, greatest first.
fn read_interval(text: &str) -> Result<Duration, &'static str> {
    let (mut rest, mut millis) = (text, 0_u128);
    let mut units = UNITS.iter();
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let count: u128 = rest[..digits].parse().map_err(|_| "a number is missing or too great")?;
        rest = &rest[digits..];
        let letters = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let unit = units.find(|(_, unit, _)| *unit == &rest[..letters]);
        let (unit, _, _) = unit.ok_or("the units are d, h, m, s and ms, in this order")?;
        rest = &rest[letters..];
        millis = millis.saturating_add(count.saturating_mul(*unit));
    }
    Ok(Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX)))
}

impl fmt::Display for Schedule {
    /// `every 15m`, or `0 9 * * 1-5 Europe/Berlin`; with a start, ` from 2026-11-16T09:00:00Z`
    /// comes after it. Reads back with `parse`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.rule {
            Rule::Every(interval) => {
                f.write_str("every ")?;
                for (count, letters, _) in parts(*interval) {
                    write!(f, "{count}{letters}")?;
                }
            }
            Rule::Cron(rule) if rule.zone_name == "UTC" => f.write_str(&rule.pattern)?,
            Rule::Cron(rule) => write!(f, "{} {}", rule.pattern, rule.zone_name)?,
        }
        let Some(start) = self.start else { return Ok(()) };
        match jiff::Timestamp::from_microsecond(start.as_micros()) {
            Ok(start) => write!(f, " from {start}"),
            Err(_) => write!(f, " from {start}"),
        }
    }
}

impl fmt::Debug for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Schedule({self})")
    }
}

impl FromStr for Schedule {
    type Err = InvalidSchedule;

    fn from_str(text: &str) -> Result<Self, InvalidSchedule> {
        let text = single_spaced(text);
        let Some((rule, start)) = text.split_once(" from ") else { return read_rule(&text) };
        let start: jiff::Timestamp = start.parse().map_err(|_| not_one(&text, BAD_START))?;
        read_rule(rule)?.starting_at(Timestamp::from_micros(start.as_microsecond()))
    }
}

const BAD_START: &str = "its start is not a time such as `2026-11-16T09:00:00Z`";

fn not_one(text: &str, why: &'static str) -> InvalidSchedule {
    InvalidSchedule::Text { text: text.chars().take(PATTERN_BYTES).collect(), why }
}

fn read_rule(text: &str) -> Result<Schedule, InvalidSchedule> {
    if let Some(interval) = text.strip_prefix("every ") {
        return Schedule::every(read_interval(interval).map_err(|why| not_one(text, why))?);
    }
    let whole = Schedule::cron(text);
    // The last word is a zone if what is before it is a pattern and the whole is not: `FRI` may
    // be the last field of one.
    match (&whole, text.rsplit_once(' ')) {
        (Err(InvalidSchedule::Pattern { .. }), Some((pattern, zone)))
            if zone.starts_with(|first: char| first.is_ascii_alphabetic()) =>
        {
            match Schedule::cron(pattern) {
                Err(InvalidSchedule::Pattern { .. }) => whole,
                schedule => schedule?.in_zone(zone),
            }
        }
        _ => whole,
    }
}

/// A schedule as it is kept.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    every_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cron: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    zone: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    start_us: Option<i64>,
}

impl From<Schedule> for Stored {
    fn from(schedule: Schedule) -> Self {
        let (every_ms, cron, zone) = match schedule.rule {
            // At most a hundred years, so it fits.
            Rule::Every(interval) => (u64::try_from(interval.as_millis()).ok(), None, None),
            Rule::Cron(rule) => (None, Some(rule.pattern), Some(rule.zone_name)),
        };
        Self { every_ms, cron, zone, start_us: schedule.start.map(Timestamp::as_micros) }
    }
}

impl TryFrom<Stored> for Schedule {
    type Error = InvalidSchedule;

    fn try_from(stored: Stored) -> Result<Self, InvalidSchedule> {
        let schedule = match (stored.every_ms, &stored.cron) {
            (Some(millis), None) => Schedule::every(Duration::from_millis(millis))?,
            (None, Some(pattern)) => Schedule::cron(pattern)?,
            (None, None) | (Some(_), Some(_)) => {
                return Err(not_one("stored form", "it has one of `every_ms` and `cron`"));
            }
        };
        let schedule = match &stored.zone {
            Some(zone) => schedule.in_zone(zone)?,
            None => schedule,
        };
        match stored.start_us {
            Some(start) => schedule.starting_at(Timestamp::from_micros(start)),
            None => Ok(schedule),
        }
    }
}
