//! What is true about jobs, and nothing else.
//!
//! This crate holds every rule of the Windlass engine as pure functions over plain data. It is
//! `#![no_std]`: a clock, a file, a socket or a thread cannot be named here, so the compiler and
//! not a reviewer keeps it pure. Time is an argument, chance is an argument, and a lost race is a
//! value.
//!
//! Reading order: [`job`] says what a job is, [`transition`] every legal change of one,
//! [`outcome`] how an attempt's end becomes a verdict, and [`ledger`] is the whole ledger: it takes
//! a command and answers with a reply, the record changes to persist, and the events to tell.

#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod audit;
pub mod batch;
pub mod event;
pub mod explain;
pub mod filter;
pub mod job;
mod lease;
pub mod ledger;
pub mod limits;
pub mod name;
pub mod object;
pub mod outcome;
pub mod rate;
pub mod record;
pub mod refusal;
pub mod reserved;
pub mod retry;
pub mod supervise;
pub mod time;
pub mod transition;
#[cfg(feature = "wire")]
mod wire;
pub mod worker;
