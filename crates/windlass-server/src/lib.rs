//! The Windlass server as a library: the job engine over HTTP, for any language.
//!
//! [`router`] is an axum router with the public API, `/v1`, to nest in an application of one's own
//! under any prefix; the command `windlass serve` answers with the same one. [`Api`] is what is
//! behind it, for who has to end it.
//!
//! - [`access`] says who is let in
//! - [`view`] is how a job looks as JSON, in the API and in the command

mod api;
pub mod view;

pub use api::access::{self, Access, Peer};
pub use api::{Api, router};
