//! The PostgreSQL store on a real server.
//!
//! Time is real here, because a server's is: whatever is waited for is a condition, with a deadline
//! that only a broken engine reaches.

mod batch_leases;
mod bloat;
mod bouncer;
mod bulk;
mod cancel;
mod chaos;
mod clock;
mod common;
mod conformance;
mod cuts;
mod failover;
mod groups;
mod growth;
mod isolation;
mod locks;
mod many;
mod moving;
mod operator_views;
mod planted;
mod public_api;
mod rotation;
mod schemas;
mod sentences;
#[cfg(feature = "tls")]
mod tls;
mod transaction;
mod waking;
