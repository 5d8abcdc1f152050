//! Durations and times as people write them: `30s`, `5m`, `1h30m`; RFC 3339.

use std::fmt;
use std::marker::PhantomData;
use std::time::{Duration, SystemTime};

use jiff::{Span, SpanRelativeTo};
use serde::de::{Deserialize, Deserializer, Error, Visitor};

/// A duration, such as `30s`, `5m`, `1h30m` or `2d`.
#[derive(Clone, Copy, Debug)]
pub(super) struct DurationText(pub(super) Duration);

/// A time by RFC 3339, such as `2026-11-20T09:00:00Z`.
#[derive(Clone, Copy, Debug)]
pub(super) struct TimeText(pub(super) SystemTime);

impl std::str::FromStr for DurationText {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let days = SpanRelativeTo::days_are_24_hours();
        let length = text.parse::<Span>().and_then(|span| span.to_duration(days));
        let length = length.ok().and_then(|length| Duration::try_from(length).ok());
        length.map(Self).ok_or_else(|| {
            let shown: String = text.chars().take(40).collect();
            format!("{shown:?} is no duration; write it like \"30s\", \"5m\", \"1h30m\" or \"2d\"")
        })
    }
}

impl std::str::FromStr for TimeText {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let time = text.parse::<jiff::Timestamp>();
        time.map(|time| Self(time.into())).map_err(|_| {
            let shown: String = text.chars().take(40).collect();
            format!("{shown:?} is no time; write it like \"2026-11-20T09:00:00Z\"")
        })
    }
}

/// Reads a text that means something.
pub(super) struct Meant<T>(&'static str, PhantomData<T>);

impl<T> Meant<T> {
    /// What is expected, in words.
    pub(super) fn of(expected: &'static str) -> Self {
        Self(expected, PhantomData)
    }
}

impl<T: std::str::FromStr<Err = String>> Visitor<'_> for Meant<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }
}

impl<'de> Deserialize<'de> for DurationText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let expected = "a duration as text, such as \"30s\" or \"5m\"";
        deserializer.deserialize_str(Meant::of(expected))
    }
}

impl<'de> Deserialize<'de> for TimeText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let expected = "a time as text, such as \"2026-11-20T09:00:00Z\"";
        deserializer.deserialize_str(Meant::of(expected))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_people_write_them() {
        for (text, seconds) in [("30s", 30), ("5m", 300), ("1h30m", 5_400), ("2d", 172_800)] {
            let read = text.parse::<DurationText>().expect(text);
            assert_eq!(read.0, Duration::from_secs(seconds), "{text}");
        }
        assert_eq!("250ms".parse::<DurationText>().expect("it is").0, Duration::from_millis(250));
        for wrong in ["", "5", "-5s", "5 parsecs", "1mo", "5m ago", "999999999999999999999h"] {
            assert!(wrong.parse::<DurationText>().is_err(), "{wrong}");
        }
    }
}
