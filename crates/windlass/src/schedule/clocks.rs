//! The times of a cron pattern on the clocks of a zone, where clocks are put forward and back.
//!
//! The pattern is only ever matched against local times, without a zone; what an instant has to
//! do with local times is said here, once for searching forwards and once for backwards. The
//! cron library has a search of its own that knows zones, but its two directions disagree around
//! changes: `30 1 * * *` in Berlin ran at 01:30 and again at 03:00 when the clocks were put
//! forward at 02:00. `forwards_and_backwards_agree_around_every_change_of_every_zone` guards it.
//!
//! A pattern without `*` in second, minute and hour *names* times of day. A named time runs at
//! the first instant at which the clocks have shown it or have passed it. So a time in a gap runs
//! right after the gap, together with all others of that gap, and a time that comes twice runs
//! the first time. "Shown or passed" only grows with time, so the search is one for local times.
//!
//! A pattern with `*` in one of them is an interval: it runs at every instant at which the clocks
//! show a time that matches, in both halves of a repeated hour, and not in a gap.

use croner::Cron;
use jiff::civil::DateTime;
use jiff::tz::{AmbiguousOffset, TimeZone};
use jiff::{SignedDuration, Timestamp};

const SECOND: SignedDuration = SignedDuration::from_secs(1);

/// Longer than clocks were ever put back: the offsets of all zones lie within 26 hours.
const LONGEST_REPEAT: SignedDuration = SignedDuration::from_hours(48);

/// A pattern on the clocks of a zone. Times are whole seconds: patterns know nothing finer.
pub(super) struct Clocks<'a> {
    pub cron: &'a Cron,
    pub zone: &'a TimeZone,
}

impl Clocks<'_> {
    /// The first run later than `after`.
    pub(super) fn next_after(&self, after: Timestamp) -> Option<Timestamp> {
        if self.names_times() {
            let passed = self.passed_until(after)?;
            return self.first_showing(self.cron.find_next_occurrence(&passed, false).ok()?);
        }
        let mut from = after.checked_add(SECOND).ok()?;
        // No local time from the first to just before the second matches.
        let mut searched: Option<(DateTime, DateTime)> = None;
        loop {
            let offset = self.zone.to_offset(from);
            let local = offset.to_datetime(from);
            let matching = match searched {
                Some((first, matching)) if first <= local && local <= matching => matching,
                _ => self.cron.find_next_occurrence(&local, true).ok()?,
            };
            searched = Some((local, matching));
            let run = offset.to_timestamp(matching).ok()?;
            match self.zone.following(from).next().map(|change| change.timestamp()) {
                Some(change) if change <= run => from = change,
                _ => return Some(run),
            }
        }
    }

    /// The last run that is not later than `at`.
    pub(super) fn last_until(&self, at: Timestamp) -> Option<Timestamp> {
        if self.names_times() {
            let passed = self.passed_until(at)?;
            return self.first_showing(self.cron.find_previous_occurrence(&passed, true).ok()?);
        }
        let mut until = at;
        // No local time from just after the first to the second matches.
        let mut searched: Option<(DateTime, DateTime)> = None;
        loop {
            let offset = self.zone.to_offset(until);
            let local = offset.to_datetime(until);
            let matching = match searched {
                Some((matching, last)) if matching <= local && local <= last => matching,
                _ => self.cron.find_previous_occurrence(&local, true).ok()?,
            };
            searched = Some((matching, local));
            let run = offset.to_timestamp(matching).ok()?;
            match self.change_until(until) {
                Some(change) if run < change => until = change.checked_sub(SECOND).ok()?,
                _ => return Some(run),
            }
        }
    }

    /// Is it about times of day, and not about an interval?
    fn names_times(&self) -> bool {
        let pattern = &self.cron.pattern;
        let fields = [&pattern.seconds, &pattern.minutes, &pattern.hours];
        fields.iter().all(|field| !field.from_wildcard)
    }

    /// The latest local time that the clocks have shown by `at`: just before they were put back,
    /// that may be later than what they show.
    fn passed_until(&self, at: Timestamp) -> Option<DateTime> {
        let mut passed = self.zone.to_datetime(at);
        let mut until = at;
        let oldest = at.checked_sub(LONGEST_REPEAT).ok()?;
        while let Some(change) = self.change_until(until).filter(|change| *change > oldest) {
            until = change.checked_sub(SECOND).ok()?;
            passed = passed.max(self.zone.to_datetime(until));
        }
        Some(passed)
    }

    /// The first instant at which the clocks have shown a local time, or have passed it.
    fn first_showing(&self, local: DateTime) -> Option<Timestamp> {
        match self.zone.to_ambiguous_timestamp(local).offset() {
            AmbiguousOffset::Unambiguous { offset } => offset.to_timestamp(local).ok(),
            AmbiguousOffset::Fold { before, .. } => before.to_timestamp(local).ok(),
            AmbiguousOffset::Gap { before, .. } => {
                self.change_until(before.to_timestamp(local).ok()?)
            }
        }
    }

    /// The last change of the clocks that is not later than `at`.
    fn change_until(&self, at: Timestamp) -> Option<Timestamp> {
        let after = at.checked_add(SECOND).ok()?;
        self.zone.preceding(after).next().map(|change| change.timestamp())
    }
}
