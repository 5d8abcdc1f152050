//! The PostgreSQL store on a real server.
//!
//! Time is real here, because a server's is: whatever is waited for is a condition, with a deadline
//! that only a broken engine reaches.

mod bloat;
mod bouncer;
mod cancel;
mod chaos;
mod clock;
mod common;
mod conformance;
mod cuts;
mod failover;
mod foreign;
mod growth;
mod halves;
mod inside;
mod isolation;
mod many;
mod moving;
mod planted;
mod schemas;
mod sentences;
mod spoken;
#[cfg(feature = "tls")]
mod tls;
mod waking;
