//! `windlass export`: every field of every job, streamed, so that no store is too large.

use windlass::core::limits;

use crate::cli::ExportOptions;
use crate::offline::Pages;
use crate::offline::look::Look;
use crate::output;
use windlass_server::view::Whole;

/// Prints one JSON object per line and job, the last accepted first.
pub(crate) fn run(options: &ExportOptions) -> anyhow::Result<()> {
    let mut look = Look::open(&options.path)?;
    let filter = options.which.filter(&[]);
    let mut pages = Pages::new(&mut look, &filter, None);
    while let Some(page) = pages.next(limits::PAGE_JOBS)? {
        let mut lines = Vec::new();
        for job in &page {
            serde_json::to_writer(&mut lines, &Whole::of(job))?;
            lines.push(b'\n');
        }
        output::write(&lines)?;
    }
    Ok(())
}
