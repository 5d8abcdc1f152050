//! Time as the engine sees it: two readings in, one time out that never moves backwards.
//!
//! A machine has a wall clock that may be stepped by an hour or a year in either direction, and a
//! steady clock that only advances. Due times live on the wall clock because people choose them;
//! leases live on the steady clock because a clock step must not end one. [`Timeline`] joins the
//! two: engine time follows the wall clock forwards, and when the wall clock falls back it keeps
//! advancing with the steady clock, so nothing that was due becomes undue and nothing waits for
//! the wall clock to catch up.

use core::fmt;
use core::ops::{Add, Sub};
use core::time::Duration;

/// A point in time: microseconds since 1970-01-01 UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "wire", derive(serde::Serialize, serde::Deserialize))]
pub struct Timestamp(i64);

impl Timestamp {
    /// The time `micros` microseconds after 1970-01-01 UTC.
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// The time `millis` milliseconds after 1970-01-01 UTC.
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis.saturating_mul(1_000))
    }

    /// Microseconds since 1970-01-01 UTC.
    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// Whole milliseconds since 1970-01-01 UTC.
    pub const fn as_millis(self) -> i64 {
        self.0.div_euclid(1_000)
    }

    /// How long after `earlier` this is; zero if it is not after it.
    pub fn since(self, earlier: Timestamp) -> Duration {
        let micros = self.0.saturating_sub(earlier.0);
        Duration::from_micros(u64::try_from(micros).unwrap_or(0))
    }
}

/// Saturates at the far end of time instead of overflowing.
impl Add<Duration> for Timestamp {
    type Output = Timestamp;

    fn add(self, duration: Duration) -> Timestamp {
        Timestamp(self.0.saturating_add(micros(duration)))
    }
}

/// Saturates at the near end of time instead of overflowing.
impl Sub<Duration> for Timestamp {
    type Output = Timestamp;

    fn sub(self, duration: Duration) -> Timestamp {
        Timestamp(self.0.saturating_sub(micros(duration)))
    }
}

impl fmt::Display for Timestamp {
    /// RFC 3339 in UTC with milliseconds, such as `2026-11-15T20:54:01.250Z`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = self.as_millis();
        let (year, month, day) = civil_date(millis.div_euclid(86_400_000));
        let of_day = millis.rem_euclid(86_400_000);
        let (hour, minute) = (of_day / 3_600_000, of_day / 60_000 % 60);
        let (second, milli) = (of_day / 1_000 % 60, of_day % 1_000);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{milli:03}Z")
    }
}

/// Days since 1970-01-01 as a proleptic Gregorian date, by counting from 1 March so that the leap
/// day comes last.
fn civil_date(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

/// A duration in microseconds, saturating.
pub(crate) fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

/// A reading of a clock that only advances: microseconds since an arbitrary start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Steady(u64);

impl Steady {
    /// The reading `micros` microseconds after the clock's own start.
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// Microseconds since the clock's own start.
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// How long after `earlier` this is; zero if it is not after it.
    pub fn since(self, earlier: Steady) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Steady {
    type Output = Steady;

    fn add(self, duration: Duration) -> Steady {
        Steady(self.0.saturating_add(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)))
    }
}

/// One look at both clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// What the wall clock shows.
    pub wall: Timestamp,
    /// What the steady clock shows.
    pub steady: Steady,
}

/// Turns raw readings into engine time, which never moves backwards.
#[derive(Clone, Copy, Debug, Default)]
pub struct Timeline {
    last: Now,
    /// The steady clock was read: how far it has advanced is known from then on.
    begun: bool,
}

impl Timeline {
    /// A timeline that will not go back before `floor`, the last time known to have been seen.
    pub fn starting_at(floor: Now) -> Self {
        Self { last: floor, begun: true }
    }

    /// Takes a reading and returns engine time.
    ///
    /// A wall clock that jumps ahead is followed. One that falls back is not: engine time then
    /// advances with the steady clock alone until the wall clock has overtaken it.
    pub fn observe(&mut self, reading: Now) -> Now {
        let steady = reading.steady.max(self.last.steady);
        let passed = if self.begun { steady.since(self.last.steady) } else { Duration::ZERO };
        self.begun = true;
        self.last = Now { wall: reading.wall.max(self.last.wall + passed), steady };
        self.last
    }

    /// Takes note of a time that was reached before this timeline began, such as that of a change
    /// that was kept: engine time does not go back before it.
    pub fn resume_at(&mut self, wall: Timestamp) {
        self.last.wall = self.last.wall.max(wall);
    }

    /// The engine time of the latest reading.
    pub fn latest(&self) -> Now {
        self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    fn at(wall_s: i64, steady_s: u64) -> Now {
        Now {
            wall: Timestamp::from_micros(wall_s * 1_000_000),
            steady: Steady::from_micros(steady_s * 1_000_000),
        }
    }

    #[test]
    fn a_wall_clock_that_falls_back_a_year_neither_rewinds_nor_stalls_engine_time() {
        let year = 365 * 86_400;
        let mut time = Timeline::default();
        time.observe(at(10 * year, 100));
        let after = time.observe(at(9 * year, 160));
        assert_eq!(after.wall, at(10 * year + 60, 0).wall);
    }

    #[test]
    fn a_steady_clock_that_did_not_start_at_zero_does_not_move_a_time_that_was_reached_before() {
        let mut time = Timeline::default();
        time.resume_at(at(1_000, 0).wall);
        assert_eq!(time.observe(at(900, 5_000)), at(1_000, 5_000));
        assert_eq!(time.observe(at(900, 5_001)), at(1_001, 5_001));
    }

    #[test]
    fn a_wall_clock_that_jumps_ahead_is_followed() {
        let mut time = Timeline::default();
        time.observe(at(1_000, 0));
        assert_eq!(time.observe(at(4_600, 1)), at(4_600, 1));
    }

    #[test]
    fn a_steady_clock_that_is_read_out_of_order_does_not_rewind() {
        let mut time = Timeline::default();
        time.observe(at(1_000, 50));
        assert_eq!(time.observe(at(999, 40)), at(1_000, 50));
    }

    #[test]
    fn timestamps_read_as_rfc_3339() {
        assert_eq!(Timestamp::from_millis(0).to_string(), "1970-01-01T00:00:00.000Z");
        assert_eq!(Timestamp::from_millis(951_782_399_999).to_string(), "2000-02-28T23:59:59.999Z");
        assert_eq!(
            Timestamp::from_millis(1_709_164_800_000).to_string(),
            "2024-02-29T00:00:00.000Z"
        );
        assert_eq!(Timestamp::from_millis(-1).to_string(), "1969-12-31T23:59:59.999Z");
    }

    #[test]
    fn time_arithmetic_saturates_at_both_ends() {
        let end = Timestamp::from_micros(i64::MAX);
        assert_eq!(end + Duration::MAX, end);
        assert_eq!(
            Timestamp::from_micros(i64::MIN) - Duration::MAX,
            Timestamp::from_micros(i64::MIN)
        );
        assert_eq!(Timestamp::from_micros(5).since(end), Duration::ZERO);
    }
}
