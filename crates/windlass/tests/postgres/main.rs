//! The PostgreSQL store on a real server.

mod common;
mod conformance;
mod foreign;
mod moving;
mod sentences;
#[cfg(feature = "tls")]
mod tls;
