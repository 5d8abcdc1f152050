//! The job that all systems carry: a number and padding, 200 bytes of JSON.

use serde::{Deserialize, Serialize};

/// Bytes of JSON in a payload.
const BYTES: usize = 200;

/// The number tells jobs apart, so that each is seen to run once.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Payload {
    pub(crate) number: u32,
    padding: String,
}

impl Payload {
    /// The job with this number, padded to the common size.
    pub(crate) fn new(number: u32) -> Self {
        let around = r#"{"number":,"padding":""}"#.len() + number.to_string().len();
        Self { number, padding: "x".repeat(BYTES - around) }
    }
}

/// Pauses between jobs: the same in every system for the same seed.
///
/// A linear congruential generator, because it is three lines in Rust and in JavaScript alike.
pub(crate) struct Pauses(u32);

impl Pauses {
    pub(crate) fn from_seed(seed: u32) -> Self {
        Self(seed)
    }

    /// The next pause, 5 to 25 ms, in microseconds.
    pub(crate) fn next_micros(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        5_000 + u64::from(self.0 >> 8) % 20_001
    }
}
