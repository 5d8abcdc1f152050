//! A simulation of everything that can go wrong around the file store, from one seed.
//!
//! [`Machine`] is one machine: a [`SimDisk`], a clock that is stepped, and a process with the file
//! store that ships, whose [`Writer`](windlass::store::file::Writer) is driven one step at a time,
//! so that the power can be lost between any two of them. [`Oracle`] watches from
//! outside: it knows what was asked, answered and told, and says when that cannot all be true.
//! [`World`] puts clients and workers around the machine that do what programs do, and draws what
//! goes wrong. [`run`] is one seed; [`swarm`] runs thousands.
//!
//! In some worlds clients and workers live in several processes that share the directory. One owns
//! the store, and the calls of the others travel to it; each may die, be stopped, or take over. The
//! sockets and member files of the product are not simulated, and neither are its threads: what is
//! simulated is what they amount to, and the rules are those that ship, such as who is recovered
//! ([`LedgerOptions::living_workers`](windlass::store::file::LedgerOptions::living_workers)), what
//! a process says it holds ([`HeldLeases`](windlass::store::HeldLeases)), which calls are made
//! again ([`Call::may_repeat`](windlass::wire::Call::may_repeat)), and how an owner measures time
//! ([`AwakeClock`](windlass::clock::AwakeClock)).
//!
//! No threads, no sleeping, no other source of chance: a seed that fails once fails for ever.

mod answer;
mod clock;
mod cover;
mod disk;
mod machine;
mod oracle;
mod profile;
mod random;
pub mod swarm;
mod trace;
mod world;

pub use answer::{Answer, Decided, Failure, Reply, Request, Snapshot, Ticket};
pub use clock::Clock;
pub use cover::{Cover, Point};
pub use disk::{Call, Damage, Faults, Loss, Moment, NameLoss, SimDisk, Wreck};
pub use machine::{Machine, Opening, Worked};
pub use oracle::{KindRules, Oracle, Rules};
pub use profile::{Profile, Settings};
pub use random::Random;
pub use trace::Trace;
pub use world::{Outcome, Tally, World, run};

/// Something that must never be, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation(pub String);

/// A value, unless something was seen that must never be.
pub type Checked<T = ()> = Result<T, Violation>;

/// Ends the run with a violation unless the condition holds.
#[macro_export]
macro_rules! ensure {
    ($holds:expr, $($words:tt)+) => {
        if !$holds {
            return Err($crate::Violation(format!($($words)+)));
        }
    };
}
