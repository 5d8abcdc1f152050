//! When things run: intervals, patterns, daylight saving, missed runs, and what is refused.

use std::time::Duration;

use windlass::{Due, InvalidSchedule, MissedRuns, RUNS_AT_ONCE, Schedule, Timestamp};

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3_600);

#[track_caller]
fn schedule(text: &str) -> Schedule {
    text.parse().unwrap_or_else(|error| panic!("`{text}`: {error}"))
}

/// A time in UTC, such as `2026-03-29 01:00`.
#[track_caller]
fn at(text: &str) -> Timestamp {
    let whole = format!("every 1s from {}:00Z", text.replace(' ', "T"));
    schedule(&whole).next_after(Timestamp::default()).expect("its first run")
}

/// The next runs after a time are these, all in UTC.
#[track_caller]
fn check(text: &str, after: &str, expected: &[&str]) {
    let found = schedule(text).upcoming(at(after), expected.len());
    let expected: Vec<String> = expected.iter().map(|time| at(time).to_string()).collect();
    let found: Vec<String> = found.iter().map(Timestamp::to_string).collect();
    assert_eq!(found, expected, "`{text}` after {after}");
}

#[track_caller]
fn refused(result: Result<Schedule, InvalidSchedule>, words: &[&str]) -> InvalidSchedule {
    let error = result.expect_err("it must be refused");
    let said = error.to_string();
    for word in words {
        assert!(said.contains(word), "`{said}` does not say `{word}`");
    }
    error
}

#[test]
fn a_time_of_day_that_is_skipped_in_spring_runs_once_right_after_the_gap() {
    // In Berlin, 02:00 becomes 03:00 on 29 March 2026, which is 01:00 UTC.
    check(
        "30 2 * * * Europe/Berlin",
        "2026-03-27 12:00",
        &["2026-03-28 01:30", "2026-03-29 01:00", "2026-03-30 00:30"],
    );
}

#[test]
fn a_time_of_day_that_comes_twice_in_autumn_runs_the_first_time_only() {
    // In Berlin, 03:00 becomes 02:00 on 25 October 2026, which is 01:00 UTC.
    check(
        "30 2 * * * Europe/Berlin",
        "2026-10-24 12:00",
        &["2026-10-25 00:30", "2026-10-26 01:30"],
    );
}

#[test]
fn a_pattern_with_a_wildcard_runs_in_both_halves_of_a_repeated_hour_and_not_in_a_skipped_one() {
    check(
        "*/30 * * * * Europe/Berlin",
        "2026-10-24 23:59",
        &[
            "2026-10-25 00:00",
            "2026-10-25 00:30",
            "2026-10-25 01:00",
            "2026-10-25 01:30",
            "2026-10-25 02:00",
        ],
    );
    check(
        "*/30 * * * * Europe/Berlin",
        "2026-03-29 00:29",
        &["2026-03-29 00:30", "2026-03-29 01:00", "2026-03-29 01:30"],
    );
}

#[test]
fn nine_in_the_morning_stays_nine_in_the_morning_over_both_changes() {
    check(
        "0 9 * * * Europe/Berlin",
        "2026-03-28 00:00",
        &["2026-03-28 08:00", "2026-03-29 07:00", "2026-03-30 07:00"],
    );
    check(
        "0 9 * * * Europe/Berlin",
        "2026-10-24 00:00",
        &["2026-10-24 07:00", "2026-10-25 08:00", "2026-10-26 08:00"],
    );
}

#[test]
fn short_months_are_passed_over_and_the_last_day_is_found_in_each() {
    check(
        "0 0 31 * *",
        "2026-01-01 00:00",
        &["2026-01-31 00:00", "2026-03-31 00:00", "2026-05-31 00:00"],
    );
    check(
        "0 0 L * *",
        "2028-01-15 00:00",
        &["2028-01-31 00:00", "2028-02-29 00:00", "2028-03-31 00:00"],
    );
}

#[test]
fn a_leap_day_comes_every_four_years_and_not_in_2100() {
    check("0 0 29 2 *", "2026-01-01 00:00", &["2028-02-29 00:00", "2032-02-29 00:00"]);
    check("0 0 29 2 *", "2096-03-01 00:00", &["2104-02-29 00:00"]);
}

#[test]
fn weekdays_may_be_written_in_letters_and_seconds_put_in_front() {
    check("0 9 * * MON-FRI", "2026-11-13 10:00", &["2026-11-16 09:00", "2026-11-17 09:00"]);
    check("0 */30 9 * * *", "2026-11-13 10:00", &["2026-11-14 09:00", "2026-11-14 09:30"]);
}

#[test]
fn an_interval_runs_at_multiples_of_it_and_a_late_question_does_not_move_it() {
    let quarter = Schedule::every(15 * MINUTE).expect("valid");
    let late = at("2026-11-16 09:07") + Duration::from_micros(1);
    assert_eq!(quarter.next_after(late), Some(at("2026-11-16 09:15")));
    assert_eq!(quarter.next_after(at("2026-11-16 09:15")), Some(at("2026-11-16 09:30")));
}

#[test]
fn an_interval_with_a_start_has_its_first_run_there_and_counts_from_it() {
    let start = at("2026-11-16 09:07");
    let quarter = Schedule::every(15 * MINUTE).expect("valid").starting_at(start).expect("valid");
    let first = ["2026-11-16 09:07", "2026-11-16 09:22"].map(at).to_vec();
    assert_eq!(quarter.upcoming(Timestamp::default(), 2), first);
    assert_eq!(quarter.next_after(start), Some(at("2026-11-16 09:22")));
    let far = start + 1_000_000 * 15 * MINUTE;
    assert_eq!(quarter.next_after(far), Some(far + 15 * MINUTE));
}

#[test]
fn a_pattern_with_a_start_does_not_run_before_it_and_may_run_at_it() {
    let nine = schedule("0 9 * * *").starting_at(at("2026-11-16 09:00")).expect("valid");
    assert_eq!(nine.next_after(Timestamp::default()), Some(at("2026-11-16 09:00")));
    let half = schedule("0 9 * * *").starting_at(at("2026-11-16 09:30")).expect("valid");
    assert_eq!(half.next_after(Timestamp::default()), Some(at("2026-11-17 09:00")));
}

#[test]
fn a_schedule_that_has_ended_has_no_next_run() {
    let once = schedule("0 0 9 16 11 * 2026");
    assert_eq!(once.next_after(at("2026-11-16 08:59")), Some(at("2026-11-16 09:00")));
    assert_eq!(once.next_after(at("2026-11-16 09:00")), None);
    let end = Timestamp::from_micros(i64::MAX);
    for rule in ["every 1ms", "every 36500d", "* * * * *"] {
        assert_eq!(schedule(rule).next_after(end), None, "{rule}");
        let due = schedule(rule).due(end, end, MissedRuns::CatchUp { at_most: 3 }, MINUTE);
        assert_eq!(due, Due { runs: vec![], left_out: false, next: None }, "{rule}");
    }
}

#[test]
fn schedules_are_told_in_words() {
    let told = |text: &str| schedule(text).describe();
    assert_eq!(told("every 15m"), "every 15 minutes");
    assert_eq!(told("every 1d"), "every day");
    assert_eq!(told("every 90s"), "every 1 minute and 30 seconds");
    let mornings = told("0 9 * * MON-FRI Europe/Berlin");
    assert!(mornings.contains("09:00") && mornings.contains("Monday"), "{mornings}");
    assert!(mornings.ends_with("(Europe/Berlin)"), "{mornings}");
}

#[test]
fn a_schedule_reads_back_from_its_text_and_from_its_stored_form() {
    for text in [
        "every 15m",
        "every 1d2h3m4s5ms",
        "every 36525d",
        "every 1m from 2026-11-16T09:07:00.000001Z",
        "0 9 * * 1-5 Europe/Berlin",
        "0 9 * * FRI",
        "@daily America/New_York",
        "0 0 0 L * * 2027 from 2026-11-16T09:07:00Z",
    ] {
        let schedule = schedule(text);
        assert_eq!(schedule.to_string(), text);
        let stored = serde_json::to_string(&schedule).expect("written");
        assert_eq!(serde_json::from_str::<Schedule>(&stored).expect("read"), schedule);
    }
}

#[test]
fn the_stored_form_is_what_it_always_was() {
    let stored = |text: &str| serde_json::to_string(&schedule(text)).expect("written");
    assert_eq!(stored("every 1m"), r#"{"every_ms":60000}"#);
    let berlin = r#"{"cron":"0 9 * * 1-5","zone":"Europe/Berlin"}"#;
    assert_eq!(stored("0 9  * * 1-5 europe/berlin"), berlin);
    let started = r#"{"every_ms":1000,"start_us":1000000}"#;
    assert_eq!(stored("every 1s from 1970-01-01T00:00:01Z"), started);
    let policy = MissedRuns::CatchUp { at_most: 5 };
    let written = serde_json::to_string(&policy).expect("written");
    assert_eq!(written, r#"{"catch_up":{"at_most":5}}"#);
    assert_eq!(serde_json::to_string(&MissedRuns::RunOnce).expect("written"), r#""run_once""#);
}

#[test]
fn a_stored_form_that_is_not_valid_is_not_read() {
    for stored in [
        r#"{}"#,
        r#"{"every_ms":0}"#,
        r#"{"every_ms":18446744073709551615}"#,
        r#"{"every_ms":60000,"cron":"* * * * *"}"#,
        r#"{"every_ms":60000,"zone":"Europe/Berlin"}"#,
        r#"{"cron":"0 0 30 2 *"}"#,
        r#"{"cron":"0 9 * * *","zone":"Europe/Atlantis"}"#,
        r#"{"cron":"0 9 * * *","start_us":-1}"#,
        r#"{"cron":"0 9 * * *","until_us":1}"#,
    ] {
        let read = serde_json::from_str::<Schedule>(stored);
        assert!(read.is_err(), "{stored} was read as {read:?}");
    }
}

#[test]
fn a_pattern_that_is_not_one_is_refused_with_what_to_write() {
    for pattern in ["", "  ", "hello", "* * * *", "60 * * * *", "* 25 * * *", "* * * 13 *"] {
        refused(Schedule::cron(pattern), &["not a cron pattern", "0 9 * * MON-FRI"]);
    }
    refused(Schedule::cron("ü * * * *"), &["ASCII"]);
    refused(Schedule::cron(&"1,".repeat(500)), &["256 bytes"]);
}

#[test]
fn a_pattern_that_no_date_matches_is_refused() {
    for pattern in ["0 0 30 2 *", "0 0 31 4,6,9,11 *"] {
        let error = refused(Schedule::cron(pattern), &["never runs", pattern]);
        assert!(matches!(error, InvalidSchedule::NeverRuns { .. }), "{error:?}");
    }
}

#[test]
fn a_zone_that_nobody_knows_is_refused_by_name() {
    for zone in ["Europe/Atlantis", "", "Etc/Unknown", "../../etc/passwd", "Europe/Berlin\0"] {
        let result = schedule("0 9 * * *").in_zone(zone);
        let error = refused(result, &["unknown", "Europe/Berlin"]);
        assert_eq!(error, InvalidSchedule::UnknownZone { zone: zone.to_owned() });
    }
    refused("0 9 * * * Europe/Atlantis".parse(), &["Europe/Atlantis", "unknown"]);
}

#[test]
fn an_interval_that_is_nothing_or_absurd_is_refused() {
    let century = Duration::from_secs(100 * 31_557_600);
    for interval in [
        Duration::ZERO,
        Duration::from_micros(999),
        Duration::from_micros(1_500),
        century + Duration::from_millis(1),
        Duration::MAX,
    ] {
        refused(Schedule::every(interval), &["1 ms to 100 years"]);
    }
    assert!(Schedule::every(Duration::from_millis(1)).is_ok());
    assert!(Schedule::every(century).is_ok());
}

#[test]
fn what_makes_no_sense_in_a_schedule_is_refused() {
    refused(schedule("every 1m").in_zone("Europe/Berlin"), &["no time zone", "cron"]);
    let early = Timestamp::from_micros(-1);
    refused(schedule("every 1m").starting_at(early), &["1970", "4999"]);
    for text in ["every", "every ", "every m", "every 15", "every 1m1h", "every 1x", "every -1m"] {
        assert!(text.parse::<Schedule>().is_err(), "`{text}`");
    }
    refused("every 99999999999999999999999999999999999999999d".parse(), &["not a schedule"]);
    refused("every 1m from noon".parse(), &["its start"]);
}

/// What is due at `now`, when everything until `since` was dealt with.
fn due(text: &str, since: &str, now: &str, missed: MissedRuns) -> Due {
    schedule(text).due(at(since), at(now), missed, MINUTE)
}

#[test]
fn a_restart_after_hours_runs_nothing_one_or_the_last_missed_ones_as_it_was_told() {
    for text in ["every 1h", "0 * * * *"] {
        let (since, now) = ("2026-11-16 01:00", "2026-11-16 09:30");
        let next = Some(at("2026-11-16 10:00"));
        let skip = due(text, since, now, MissedRuns::Skip);
        assert_eq!(skip, Due { runs: vec![], left_out: true, next });
        let once = due(text, since, now, MissedRuns::RunOnce);
        let nine = at("2026-11-16 09:00");
        assert_eq!(once, Due { runs: vec![nine], left_out: true, next });
        let three = due(text, since, now, MissedRuns::CatchUp { at_most: 3 });
        let runs = vec![nine - 2 * HOUR, nine - HOUR, nine];
        assert_eq!(three, Due { runs, left_out: true, next });
        let all = due(text, since, now, MissedRuns::CatchUp { at_most: 100 });
        assert_eq!((all.runs.len(), all.left_out), (8, false));
        assert_eq!(all.runs.first(), Some(&at("2026-11-16 02:00")));
    }
}

#[test]
fn a_run_whose_alarm_is_a_little_late_is_not_missed() {
    for missed in [MissedRuns::Skip, MissedRuns::RunOnce, MissedRuns::CatchUp { at_most: 0 }] {
        let heard = at("2026-11-16 09:00") + Duration::from_millis(3);
        let due = schedule("every 1h").due(at("2026-11-16 08:00"), heard, missed, MINUTE);
        let (runs, next) = (vec![at("2026-11-16 09:00")], Some(at("2026-11-16 10:00")));
        assert_eq!(due, Due { runs, left_out: false, next }, "{missed:?}");
    }
}

#[test]
fn asking_again_after_the_runs_were_written_down_runs_none_of_them_twice() {
    for missed in [MissedRuns::Skip, MissedRuns::RunOnce, MissedRuns::CatchUp { at_most: 9 }] {
        let now = at("2026-11-16 09:00");
        let first = schedule("0 * * * *").due(at("2026-11-16 06:30"), now, missed, MINUTE);
        let last = *first.runs.last().expect("a run is due");
        let again = schedule("0 * * * *").due(last, now, missed, MINUTE);
        assert_eq!(again, Due { runs: vec![], left_out: false, next: first.next });
    }
}

#[test]
fn a_clock_that_fell_back_makes_nothing_due_and_repeats_no_run() {
    let since = "2026-11-16 09:00";
    let due = due("every 1h", since, "2026-11-16 07:30", MissedRuns::CatchUp { at_most: 9 });
    assert_eq!(due, Due { runs: vec![], left_out: false, next: Some(at("2026-11-16 10:00")) });
}

#[test]
fn ten_missed_years_of_seconds_cost_no_more_than_the_runs_that_are_caught_up() {
    for text in ["every 1s", "* * * * * *"] {
        let (since, now) = ("2016-11-16 09:00", "2026-11-16 09:00");
        let due = due(text, since, now, MissedRuns::CatchUp { at_most: u32::MAX });
        assert_eq!((due.runs.len(), due.left_out), (RUNS_AT_ONCE, true), "{text}");
        assert_eq!(due.runs.last(), Some(&at(now)), "{text}");
        assert_eq!(due.next, Some(at(now) + Duration::from_secs(1)), "{text}");
    }
}

/// A small generator whose numbers are the same in every run.
struct Seeded(u64);

impl Seeded {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

const RULES: [&str; 14] = [
    "every 7m",
    "every 1d from 2026-03-29T00:30:00.5Z",
    "30 2 * * * Europe/Berlin",
    "*/20 * * * * Europe/Berlin",
    "0 */2 * * * America/New_York",
    "15,45 1-3 * * SUN Europe/Berlin",
    "0 0 29 2 *",
    "0 12 L * * Asia/Kathmandu",
    "0 9 * * MON#1 Australia/Lord_Howe",
    "30 0 * * * America/Sao_Paulo",
    "10 * * * * *",
    "0 0 13 * FRI Pacific/Apia",
    "30 1,2 * * * Australia/Lord_Howe",
    "* 2 * * * Europe/Berlin from 2026-03-28T00:00:00Z",
];

#[test]
fn what_comes_next_is_always_later_and_nothing_lies_between() {
    let mut seeded = Seeded(0x5EED);
    for round in 0..400 {
        let rule = RULES[seeded.below(RULES.len() as u64) as usize];
        let schedule = schedule(rule);
        let years = at("2005-01-01 00:00") + Duration::from_secs(seeded.below(25 * 31_557_600));
        // Half of the questions are asked close to a change of the clocks in Berlin.
        let near = at("2026-03-28 23:00") + Duration::from_secs(seeded.below(5) * 5_302_800);
        let after = if round % 2 == 0 { years } else { near };
        let after = after + Duration::from_micros(seeded.below(3) * 250_000);
        let runs = schedule.upcoming(after, 12);
        let mut before = after;
        for run in &runs {
            assert!(*run > before, "`{rule}` from {after}: {run} is not after {before}");
            let between = Duration::from_micros(seeded.below(run.since(before).as_micros() as u64));
            let next = schedule.next_after(before + between);
            assert_eq!(next, Some(*run), "`{rule}` {between:?} after {before}");
            before = *run;
        }
        let Some(last) = runs.last() else { continue };
        let caught_up = schedule.due(after, *last, MissedRuns::CatchUp { at_most: 12 }, MINUTE);
        assert_eq!(caught_up.runs, runs, "`{rule}` from {after}: backwards is not forwards");
        assert!(!caught_up.left_out, "`{rule}` from {after}");
    }
}

#[test]
fn no_text_makes_a_schedule_panic() {
    let pieces = [
        "*", "/", "-", ",", "L", "W", "#", "+", "?", "@", "0", "7", "31", "99", "MON", "JAN", " ",
        " ", " ", "ü", "every", "from", "ms", "65536", "UTC", "@daily", "\0",
    ];
    let mut seeded = Seeded(0xBAD5EED);
    for _ in 0..4_000 {
        let count = seeded.below(14);
        let text: String =
            (0..count).map(|_| pieces[seeded.below(pieces.len() as u64) as usize]).collect();
        if let Ok(schedule) = text.parse::<Schedule>() {
            let again: Schedule = schedule.to_string().parse().expect("it reads back");
            assert_eq!(again, schedule, "`{text}`");
        }
    }
}
