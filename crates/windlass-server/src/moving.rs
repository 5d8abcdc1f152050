//! A store moved from a directory into a database, or back.

use serde_json::json;
use windlass::store::move_store;

use crate::cli::{Format, MoveOptions};
use crate::output::{self, counted};

/// Moves a store and tells what was moved.
pub(crate) fn run(options: &MoveOptions) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let moving = move_store(&options.from, &options.to, options.force);
    let moved = runtime.block_on(moving)?;
    if let Format::Json = options.output {
        return output::json(&json!({
            "jobs": moved.jobs,
            "objects": moved.objects,
            "resumed": moved.resumed,
            "was_done": moved.was_done,
            "verified": !moved.was_done,
        }));
    }
    if moved.was_done {
        return output::line(
            "it was moved before, and nothing has changed since; nothing was done",
        );
    }
    let resumed = if moved.resumed { "the rest is moved now: " } else { "moved: " };
    output::line(&format!(
        "{resumed}{} and {} in all, read back and found the same\n\
         The store they came from is as it was; do not open it again.",
        counted(moved.jobs, "job"),
        counted(moved.objects, "object"),
    ))
}
