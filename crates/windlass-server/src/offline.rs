//! Jobs and objects of a directory: to be listed, shown, changed and exported.
//!
//! If nobody has it open, looking changes nothing at all: jobs that were running when a process
//! ended are shown as running, and are recovered by whoever opens the store to work with it. If a
//! process has it open, the command joins that one and asks it.
//!
//! - `list`, `show` and `export` look
//! - `objects` looks at durable objects
//! - `change` tries jobs again, or calls them off
//! - `look` is where both come from; how a job looks as JSON is told by `windlass_server::view`

pub(crate) mod change;
pub(crate) mod export;
pub(crate) mod list;
mod look;
pub(crate) mod objects;
pub(crate) mod show;

use windlass::core::filter::Filter;
use windlass::{Cursor, JobRecord};

use self::look::Look;

/// Jobs that match, page by page, the last accepted first.
struct Pages<'a> {
    look: &'a mut Look,
    filter: &'a Filter,
    after: Option<Cursor>,
    ended: bool,
}

impl<'a> Pages<'a> {
    fn new(look: &'a mut Look, filter: &'a Filter, after: Option<Cursor>) -> Self {
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
