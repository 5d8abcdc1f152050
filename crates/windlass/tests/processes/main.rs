//! Processes that share a directory: real ones, which are killed and stopped.
//!
//! A test starts processes, which are this binary again, and talks to them by lines
//! ([`process::Process`]). Nothing asserts how long something took, except that it is less than a
//! lease of ten minutes: whatever needs one would not end here.

mod failures;
mod joined;
mod process;
#[path = "../support/suite.rs"]
mod suite;
mod takeover;
