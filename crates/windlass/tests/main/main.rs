//! One binary for all tests of the library: one link, one place to look.
//!
//! Everything runs on tokio's paused time: nothing sleeps for real, and no test asserts how long
//! something took on this machine.

mod clocks;
mod common;
mod conformance;
mod connections;
mod continuous;
mod debounce;
mod directory;
mod events;
mod examples;
mod extremes;
mod faults;
mod files;
mod golden;
#[cfg(feature = "remote")]
mod http;
mod journey;
mod kit;
mod lost_leases;
mod orders;
mod outcomes;
mod pool;
mod primitives;
mod refusals;
mod relaxed;
mod scheduled;
mod schedules;
mod steps;
mod stopping;
mod task;
mod tidy;
mod tracing_spans;
mod wire;
mod worker;
mod worker_faults;
mod writer;
