//! Objects that the engine keeps for itself: small named values, orders to workers, and the audit
//! trail.
//!
//! A durable object is a named state with a version, on every store, in every backup and move.
//! What servers and operators share is kept as objects of kinds that begin with `windlass.`, so it
//! needs no verb, no table and no record of its own. Such kinds are reserved: no primitive may have
//! one, and a list of objects leaves them out unless its filter names the kind.

use alloc::format;
use alloc::string::ToString;
use core::fmt;

use crate::limits;
use crate::name::{Name, excerpt};
use crate::object::Address;
use crate::refusal::Refusal;
use crate::time::Timestamp;

/// With what reserved kinds begin.
pub const PREFIX: &str = "windlass.";

/// The kind of small named values.
pub const VALUE: &str = "windlass.value";

/// The kind of orders to workers.
pub const ORDER: &str = "windlass.order";

/// The kind of audit entries.
pub const AUDIT: &str = "windlass.audit";

/// What the objects of each reserved kind are called.
pub const AUDIT_NAME: &str = "entry";
const ORDER_NAME: &str = "worker";
const VALUE_NAME: &str = "named";

/// Whether a kind of objects is reserved for the engine.
pub fn is_reserved(kind: &str) -> bool {
    kind.starts_with(PREFIX)
}

/// The object that keeps the value of this name. It may have 1 to 512 bytes and no control
/// characters.
pub fn value_address(name: &str) -> Result<Address, Refusal> {
    address(VALUE, VALUE_NAME, name)
}

/// The object that keeps the order to a worker.
pub fn order_address(worker: &str) -> Result<Address, Refusal> {
    address(ORDER, ORDER_NAME, worker)
}

/// The object that keeps an audit entry. The number tells it from others of the same moment.
///
/// Times and numbers count down in the key, so that the latest entry comes first in the order of
/// addresses.
pub fn audit_address(at: Timestamp, number: u64) -> Result<Address, Refusal> {
    let left = |number: i64| i64::MAX - number.max(0);
    let number = i64::try_from(number).unwrap_or(i64::MAX);
    let key = format!("{:019}-{:019}", left(at.as_micros()), left(number));
    address(AUDIT, AUDIT_NAME, &key)
}

/// Refuses a turn of an object that nobody but the store itself may change.
pub(crate) fn check_turn_of(object: &Address) -> Result<(), Refusal> {
    if object.kind().as_str() != AUDIT {
        return Ok(());
    }
    let allowed = "audit entries are written by the store alone".to_string();
    Err(Refusal::OutOfBounds {
        what: "object of a turn".into(),
        got: excerpt(object.key()),
        allowed,
    })
}

/// What a worker is told to do when it next says that it lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "wire", derive(serde::Serialize, serde::Deserialize))]
pub enum WorkerOrder {
    /// Claim nothing more, and go on with what runs. It claims again when the order is withdrawn.
    Quiet,
    /// Claim nothing more, finish what runs, then end.
    Stop,
}

impl WorkerOrder {
    /// The word by which it is kept and shown.
    pub const fn as_str(self) -> &'static str {
        match self {
            WorkerOrder::Quiet => "quiet",
            WorkerOrder::Stop => "stop",
        }
    }

    /// The order that a store has kept; `None` if a later version wrote one that is unknown here.
    pub fn kept(state: &[u8]) -> Option<Self> {
        let known = [WorkerOrder::Quiet, WorkerOrder::Stop];
        known.into_iter().find(|order| order.as_str().as_bytes() == state)
    }
}

impl fmt::Display for WorkerOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

fn address(kind: &str, name: &str, key: &str) -> Result<Address, Refusal> {
    Address::new(Name::new(kind)?, Name::new(name)?, key)
}

/// The most bytes that the state of an object of this kind may have, and what to do about more.
pub(crate) fn state_bound(kind: &Name) -> limits::Bound {
    match kind.as_str() {
        VALUE => limits::VALUE_BYTES_BOUND,
        _ => limits::OBJECT_STATE_BOUND,
    }
}
