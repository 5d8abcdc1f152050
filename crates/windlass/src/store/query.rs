//! What can be read of jobs and objects: by name, or page by page.

use serde::{Deserialize, Serialize};
use windlass_core::filter::Filter;
use windlass_core::job::JobId;
use windlass_core::ledger::Ledger;
use windlass_core::limits;
use windlass_core::name::Name;
use windlass_core::object::{Address as ObjectAddress, ObjectStatus, ObjectView};
use windlass_core::record::JobRecord;
#[cfg(doc)]
use windlass_core::reserved;
use windlass_core::reserved::is_reserved;

/// Which jobs to read.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum JobQuery {
    /// These. Those that are unknown are left out.
    Ids(Vec<JobId>),
    /// A page of those that match.
    Page {
        /// Which jobs.
        filter: Filter,
        /// Where the page before ended; `None` for the first.
        after: Option<Cursor>,
        /// How many at most.
        limit: usize,
    },
    /// How many match, as far as one call looks; [`Page::next`] says where to go on counting.
    Count {
        /// Which jobs.
        filter: Filter,
        /// Where the count before ended; `None` to begin.
        after: Option<Cursor>,
    },
}

impl JobQuery {
    /// Whether a page came before it: then others may have waited for that to end.
    pub(crate) fn goes_on(&self) -> bool {
        match self {
            JobQuery::Ids(_) => false,
            JobQuery::Page { after, .. } | JobQuery::Count { after, .. } => after.is_some(),
        }
    }
}

/// A place in a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cursor(pub u64);

/// Part of a list.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Page {
    /// The jobs; none in answer to [`JobQuery::Count`].
    pub jobs: Vec<JobRecord>,
    /// How many jobs this part of the list has.
    pub count: u64,
    /// Where to go on; `None` at the end.
    pub next: Option<Cursor>,
}

impl Page {
    /// All of these, and nothing after them.
    pub(crate) fn of(jobs: Vec<JobRecord>) -> Self {
        Self { count: jobs.len() as u64, jobs, next: None }
    }
}

/// Which objects to read.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum ObjectQuery {
    /// This one.
    Address(ObjectAddress),
    /// A page of those that match.
    Page {
        /// Which objects.
        filter: ObjectFilter,
        /// The last one of the page before; `None` for the first.
        after: Option<ObjectAddress>,
        /// How many at most.
        limit: usize,
    },
}

/// Which objects are meant: all that match everything that is said. Without a kind, those that the
/// engine keeps for itself are not ([`reserved`]).
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ObjectFilter {
    /// The primitive.
    pub kind: Option<Name>,
    /// The definition.
    pub name: Option<Name>,
    /// Where it stands.
    pub status: Option<ObjectStatus>,
}

impl ObjectFilter {
    /// The addresses of a page, and where to go on.
    pub(crate) fn choose(
        &self,
        ledger: &Ledger,
        after: Option<&ObjectAddress>,
        limit: usize,
    ) -> (Vec<ObjectAddress>, Option<ObjectAddress>) {
        let limit = limit.clamp(1, limits::PAGE_JOBS);
        let mut chosen: Vec<ObjectAddress> = Vec::new();
        let mut last = None;
        let objects: Box<dyn Iterator<Item = _>> = match &self.kind {
            Some(kind) => Box::new(ledger.objects_of(kind, after)),
            None => Box::new(ledger.objects_after(after)),
        };
        for (looked_at, (address, meta, _)) in objects.enumerate() {
            if chosen.len() == limit || looked_at == limits::PAGE_SCAN {
                return (chosen, last);
            }
            last = Some(address.clone());
            let fits = (self.kind.is_some() || !is_reserved(address.kind().as_str()))
                && self.name.as_ref().is_none_or(|name| name == address.name())
                && self.status.is_none_or(|status| status == meta.status);
            if fits {
                chosen.push(address.clone());
            }
        }
        (chosen, None)
    }
}

/// Part of a list of objects.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ObjectPage {
    /// The objects.
    pub objects: Vec<ObjectView>,
    /// Where to go on; `None` at the end.
    pub next: Option<ObjectAddress>,
}
