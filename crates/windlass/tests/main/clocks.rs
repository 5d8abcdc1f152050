//! Cron patterns around every change of the clocks, of every zone, in ten years.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::civil::DateTime;
use jiff::tz::{TimeZone, TimeZoneDatabase};
use jiff::{SignedDuration, ToSpan};
use windlass::{MissedRuns, Schedule, Timestamp};

/// How the patterns and the walk below divide time.
const STEP: SignedDuration = SignedDuration::from_secs(30);

const AROUND: SignedDuration = SignedDuration::from_hours(5);

/// A change of the clocks: when, what they would have shown, and what they show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Change {
    at: jiff::Timestamp,
    without: DateTime,
    with: DateTime,
}

/// The changes of a zone from 2020 to 2030.
fn changes(zone: &TimeZone) -> Vec<Change> {
    let (begin, end) = (year(2020), year(2030));
    let following = zone.following(begin).take_while(|change| change.timestamp() < end);
    let change = |at: jiff::Timestamp| {
        let before = zone.to_offset(at - STEP);
        Change { at, without: before.to_datetime(at), with: zone.to_datetime(at) }
    };
    following.map(|transition| change(transition.timestamp())).collect()
}

fn year(year: i16) -> jiff::Timestamp {
    let first = jiff::civil::date(year, 1, 1).at(0, 0, 0, 0);
    TimeZone::UTC.to_timestamp(first).expect("a time")
}

/// The zone and the change, for all changes that differ: hundreds of zones change like others.
fn all_changes() -> Vec<(String, TimeZone, Change)> {
    let database = TimeZoneDatabase::bundled();
    let mut seen = BTreeSet::new();
    let mut all = Vec::new();
    for name in database.available() {
        let name = name.as_str();
        // As schedules do: the machine's data count, where it has them.
        let zone = TimeZone::get(name).or_else(|_| database.get(name)).expect("it is listed");
        let changes = changes(&zone);
        for change in &changes {
            let near = |other: &&Change| (other.at - change.at).get_hours().abs() < 72;
            let near: Vec<Change> = changes.iter().filter(near).copied().collect();
            if seen.insert((*change, near)) {
                all.push((name.to_owned(), zone.clone(), *change));
            }
        }
    }
    all
}

/// A pattern of which the test itself knows what it means.
#[derive(Debug)]
struct Pattern {
    text: String,
    seconds: Vec<i8>,
    minutes: Vec<i8>,
    hours: Vec<i8>,
    days: Option<i8>,
    /// It names times of day: no `*` in second, minute and hour.
    named: bool,
}

impl Pattern {
    fn matches(&self, local: DateTime) -> bool {
        self.minutes.contains(&local.minute())
            && self.hours.contains(&local.hour())
            && self.seconds.contains(&local.second())
            && self.days.is_none_or(|day| day == local.day())
    }
}

/// One field: its text, and the values it stands for. Empty text means `*`.
fn field(text: &str, most: i8) -> (String, Vec<i8>, bool) {
    let values = match text.strip_prefix("*/") {
        Some(step) => (0..=most).step_by(step.parse().expect("a number")).collect(),
        None if text == "*" => (0..=most).collect(),
        None => text.split(',').map(|value| value.parse().expect("a number")).collect(),
    };
    (text.to_owned(), values, text.starts_with('*'))
}

fn pattern(second: &str, minute: &str, hour: &str, day: Option<i8>) -> Pattern {
    let (second, seconds, every_second) = field(second, 59);
    let (minute, minutes, every_minute) = field(minute, 59);
    let (hour, hours, every_hour) = field(hour, 23);
    let date = day.map_or("*".to_owned(), |day| day.to_string());
    Pattern {
        text: format!("{second} {minute} {hour} {date} * *"),
        seconds,
        minutes,
        hours,
        days: day,
        named: !(every_second || every_minute || every_hour),
    }
}

/// Patterns for times before, at, in and after what is skipped or repeated.
fn patterns(change: &Change) -> Vec<Pattern> {
    let mut patterns = Vec::new();
    let (first, last) = (change.without.min(change.with), change.without.max(change.with));
    let offsets = [-61, -60, -30, -1, 0, 1, 29, 30, 59, 60, 90];
    let near = |edge: DateTime| offsets.map(|minutes: i64| edge + minutes.minutes());
    let times: BTreeSet<DateTime> = near(first).into_iter().chain(near(last)).collect();
    for time in &times {
        let (minute, hour) = (time.minute().to_string(), time.hour().to_string());
        patterns.push(pattern("0", &minute, &hour, None));
        patterns.push(pattern("30", &minute, &hour, Some(time.day())));
        let later = *time + 45.minutes();
        let minutes = format!("{minute},{}", later.minute());
        let hours = format!("{hour},{}", later.hour());
        patterns.push(pattern("0,30", &minutes, &hours, None));
        patterns.push(pattern("0", &minute, "*", None));
    }
    for time in [first, last, first + 30.minutes()] {
        let (minute, hour) = (time.minute().to_string(), time.hour().to_string());
        patterns.push(pattern("0", "*/7", &hour, None));
        patterns.push(pattern("*/30", &minute, &hour, None));
    }
    patterns.push(pattern("0", "0", "*/2", None));
    patterns.push(pattern("0", "*/30", "*", None));
    patterns.push(pattern("0", "*/20", "*/3", None));
    patterns
}

/// What the clocks show, step by step, and every local time they show or pass over.
struct Shown {
    begin: jiff::Timestamp,
    locals: Vec<DateTime>,
    /// The place of what is shown at each step among `locals`.
    steps: Vec<usize>,
}

impl Shown {
    fn around(zone: &TimeZone, change: &Change) -> Self {
        let begin = change.at - AROUND;
        let count = 2 * AROUND.as_secs() / STEP.as_secs();
        let shown: Vec<DateTime> =
            (0..=count).map(|step| zone.to_datetime(begin + STEP * step as i32)).collect();
        let first = shown.iter().copied().min().expect("some");
        let place =
            |local: &DateTime| (local.duration_since(first).as_secs() / STEP.as_secs()) as usize;
        let steps: Vec<usize> = shown.iter().map(place).collect();
        let last = steps.iter().copied().max().expect("some");
        let locals = (0..=last).map(|step| first + STEP * step as i32).collect();
        Self { begin, locals, steps }
    }

    /// The runs of a pattern by definition, instant after instant.
    fn runs(&self, pattern: &Pattern) -> Vec<Timestamp> {
        let matching: Vec<bool> = self.locals.iter().map(|time| pattern.matches(*time)).collect();
        let mut passed = self.steps[0];
        let mut runs = Vec::new();
        for (step, place) in self.steps.iter().enumerate().skip(1) {
            let newly_passed = matching.get(passed + 1..*place + 1).unwrap_or_default();
            passed = passed.max(*place);
            let due = if pattern.named { newly_passed.contains(&true) } else { matching[*place] };
            if due {
                runs.push(ours(self.begin + STEP * step as i32));
            }
        }
        runs
    }
}

fn ours(at: jiff::Timestamp) -> Timestamp {
    Timestamp::from_micros(at.as_microsecond())
}

/// All of them take a minute; a test run looks at the zones with rules of their own, and at a
/// part of the others. With `WINDLASS_CLOCKS=all`, as in a soak, it looks at all.
fn changes_to_check() -> Vec<(String, TimeZone, Change)> {
    let mut all = all_changes();
    assert!(all.len() > 500, "only {} changes", all.len());
    if std::env::var("WINDLASS_CLOCKS").as_deref() == Ok("all") {
        return all;
    }
    let own_rules = |name: &str| {
        let zones = ["Lord_Howe", "Casablanca", "Havana", "Beirut", "Dublin", "Troll", "Casey"];
        zones.iter().any(|zone| name.ends_with(zone))
    };
    let mut number = 0;
    all.retain(|(name, _, change)| {
        number += 1;
        number % 25 == 0 || own_rules(name) && change.at > year(2026) && change.at < year(2027)
    });
    all
}

#[test]
fn forwards_and_backwards_agree_around_every_change_of_every_zone() {
    let mut checked = 0;
    for (name, zone, change) in changes_to_check() {
        let shown = Shown::around(&zone, &change);
        let (begin, end) = (ours(change.at - AROUND), ours(change.at + AROUND));
        for pattern in patterns(&change) {
            let told = format!("`{}` in {name} around {}", pattern.text, change.at);
            let schedule = Schedule::cron(&pattern.text).expect("valid").in_zone(&name);
            let schedule = schedule.expect("a zone");
            let expected = shown.runs(&pattern);
            let mut forwards = schedule.upcoming(begin, expected.len() + 1);
            forwards.retain(|run| *run <= end);
            assert_eq!(forwards, expected, "{told}: forwards");
            let catch_up = MissedRuns::CatchUp { at_most: 1_000 };
            let due = schedule.due(begin, end, catch_up, Duration::ZERO);
            assert_eq!(due.runs, expected, "{told}: backwards");
            checked += expected.len();
        }
    }
    assert!(checked > 10_000, "only {checked} runs");
}

/// The next runs of a pattern after a time are these, all in UTC.
#[track_caller]
fn check(text: &str, after: &str, expected: &[&str]) {
    let schedule: Schedule = text.parse().expect("a schedule");
    let after = ours(after.parse().expect("a time"));
    let found = schedule.upcoming(after, expected.len());
    let found: Vec<String> =
        found.iter().map(|run| run.to_string().replace(":00.000Z", "Z")).collect();
    assert_eq!(found, expected, "`{text}` after {after}");
}

#[test]
fn a_time_before_the_gap_runs_once_on_the_day_of_the_gap() {
    for (text, runs) in [
        ("30 1 * * * Europe/Berlin", ["2026-03-29T00:30Z", "2026-03-29T23:30Z"]),
        ("30 1 * * * America/New_York", ["2026-03-08T06:30Z", "2026-03-09T05:30Z"]),
        ("45 1 * * * Australia/Lord_Howe", ["2026-10-03T15:15Z", "2026-10-04T14:45Z"]),
        ("30 23 * * * America/Havana", ["2026-03-08T04:30Z", "2026-03-09T03:30Z"]),
        ("30 23 * * * Asia/Beirut", ["2026-03-28T21:30Z", "2026-03-29T20:30Z"]),
        ("30 0 * * * Europe/Dublin", ["2026-03-29T00:30Z", "2026-03-29T23:30Z"]),
    ] {
        let first: jiff::Timestamp = runs[0].replace("Z", ":00Z").parse().expect("a time");
        check(text, &(first - SignedDuration::from_mins(1)).to_string(), &runs);
    }
}

#[test]
fn named_times_in_a_gap_run_together_right_after_it_and_wildcards_do_not() {
    // In Berlin, 02:00 becomes 03:00 on 29 March 2026, which is 01:00 UTC.
    let (after, gap) = ("2026-03-29T00:59:00Z", "2026-03-29T01:00Z");
    check("0,20,40 2 * * * Europe/Berlin", after, &[gap, "2026-03-30T00:00Z"]);
    check("0 2,3 * * * Europe/Berlin", after, &[gap, "2026-03-30T00:00Z", "2026-03-30T01:00Z"]);
    check("*/20 2 * * * Europe/Berlin", after, &["2026-03-30T00:00Z"]);
    // Samoa had no 30 December 2011: midnight of the 31st is 10:00 UTC of the 30th.
    let nine = ["2011-12-30T10:00Z", "2011-12-30T19:00Z"];
    check("0 9 * * * Pacific/Apia", "2011-12-29T19:00:00Z", &nine);
    check("0 9 30 12 * Pacific/Apia", "2011-12-01T00:00:00Z", &nine[..1]);
}
