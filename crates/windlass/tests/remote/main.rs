//! A store that is reached over HTTP: as good as one that is here, whatever the network does.
//!
//! The server runs in the test, on the loopback, with the code that `windlass serve` answers with.
//! Time is real here, because a network's is; nothing waits for a time to pass.

mod common;
mod conformance;
mod cuts;
mod engine;
mod refusals;
mod strangers;
#[path = "../support/suite.rs"]
mod suite;
mod tls;
mod verbs;
