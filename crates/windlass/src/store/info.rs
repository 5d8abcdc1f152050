//! What a store says about itself.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use windlass_core::ledger::{Recovery, RescuedJob};

/// What a store says about itself. A store that is somewhere else answers with what it last heard.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct StoreInfo {
    /// What an answer means when the power fails.
    pub durability: Durability,
    /// The number of the last event that this process knows to be committed. Everything that was
    /// answered before is among the events up to it, so that nothing that follows is missed by
    /// reading on from here.
    pub last_event: u64,
    /// Calls that arrive while a commit is under way share the next one. So nothing is gained by
    /// gathering results for one call, as it is where every call is a commit.
    pub shares_commits: bool,
    /// What was found and done when the store was opened; `None` for a store that starts empty, or
    /// that others have open too.
    pub opened: Option<Arc<Opened>>,
    /// What the store takes on its disk; `None` for a store without one of its own.
    pub space: Option<Space>,
    /// The schema of a database in which a transaction of the caller's own can reach the store;
    /// `None` for a store that is in no database.
    pub schema: Option<Arc<str>>,
    /// Whether this process owns the store, or another one does that answers its calls; `None` for
    /// a store that processes do not share in this way.
    #[serde(default)]
    pub ownership: Option<Ownership>,
    /// What to do about jobs of lost workers, where that belongs to the store; `None` where it
    /// belongs to each engine.
    #[serde(default)]
    pub recovery: Option<Recovery>,
}

/// Who owns a store that processes share, and keeps it in order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ownership {
    /// This process.
    Owner,
    /// Another one, which answers the calls of this one.
    Joined {
        /// Which one, such as `process 4711 (web)`, or `the server at https://jobs.example`.
        owner: String,
    },
    /// Nobody is known to: the last owner has gone, and another is sought.
    Seeking,
}

impl StoreInfo {
    /// A store with nothing more to say than this.
    pub fn new(durability: Durability, last_event: u64) -> Self {
        Self {
            durability,
            last_event,
            shares_commits: false,
            opened: None,
            space: None,
            schema: None,
            ownership: None,
            recovery: None,
        }
    }
}

/// What an acknowledgement means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Durability {
    /// Nothing: jobs live as long as the process.
    None,
    /// It survives the process at once, and the power after at most this long.
    Relaxed(Duration),
    /// It survives the power: what was acknowledged is on stable storage.
    Sync,
}

/// `none`, `sync`, or `relaxed(50ms)`.
impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Durability::None => f.write_str("none"),
            Durability::Relaxed(every) => write!(f, "relaxed({every:?})"),
            Durability::Sync => f.write_str("sync"),
        }
    }
}

/// What was found and done when a store was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opened {
    /// Jobs in the store.
    pub jobs: u64,
    /// Jobs that were running when the store was last open, and what became of them.
    pub recovered: Vec<RescuedJob>,
    /// Jobs that were running and were left so, because recovery only observes.
    pub observed: u64,
    /// Commits that were read.
    pub commits: u64,
    /// Where an unfinished commit was cut off. It had not been acknowledged.
    pub torn: Option<String>,
    /// How long reading took.
    pub took: Duration,
}

/// What a store takes on its disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Space {
    /// Bytes of the journal.
    pub used: u64,
    /// Bytes of them that belong to jobs that are kept.
    pub live: u64,
    /// Files.
    pub segments: usize,
    /// Bytes written to the journal since it was opened; what compaction copies is among them.
    pub written: u64,
    /// How often it has waited for the disk since it was opened: the fewer, the more was
    /// acknowledged by each.
    pub syncs: u64,
}
