//! Jobs and objects of a store that nobody has open: to be listed, shown, changed and exported.
//!
//! Looking changes nothing at all: jobs that were running when a process ended are shown as
//! running, and are recovered by whoever opens the store to work with it.
//!
//! - `list`, `show` and `export` look
//! - `objects` looks at durable objects
//! - `change` tries jobs again, or calls them off
//! - `view` is a job as JSON

pub(crate) mod change;
pub(crate) mod export;
pub(crate) mod list;
pub(crate) mod objects;
pub(crate) mod show;
mod view;

use windlass::core::filter::Filter;
use windlass::store::file::OfflineStore;
use windlass::{Cursor, JobRecord};

/// Jobs that match, page by page, the last accepted first.
struct Pages<'a> {
    look: &'a mut OfflineStore,
    filter: &'a Filter,
    after: Option<Cursor>,
    ended: bool,
}

impl<'a> Pages<'a> {
    fn new(look: &'a mut OfflineStore, filter: &'a Filter, after: Option<Cursor>) -> Self {
        Self { look, filter, after, ended: false }
    }

    /// At most so many more; fewer, even none, only because some did not match.
    fn next(&mut self, limit: usize) -> anyhow::Result<Option<Vec<JobRecord>>> {
        if self.ended {
            return Ok(None);
        }
        let page = self.look.list(self.filter, self.after, limit)?;
        self.after = page.next;
        self.ended = page.next.is_none();
        Ok(Some(page.jobs))
    }
}
