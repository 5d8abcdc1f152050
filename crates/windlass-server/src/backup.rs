//! A copy of a store, taken at one moment and read back, also while a process uses the store.

use anyhow::Context;
use serde_json::json;
use windlass::store::file::back_up;

use crate::cli::{BackupOptions, Format};
use crate::output::{self, CONFLICT, Failure, bytes, counted};

/// Copies a store and tells what is in the copy.
pub(crate) fn run(options: &BackupOptions) -> anyhow::Result<()> {
    let (from, to) = (options.from.display(), options.to.display());
    if options.to.exists() {
        let text = format!("`{to}` is there already; name a directory that is not there yet");
        return Err(Failure::because(CONFLICT, text));
    }
    let copied = back_up(&options.from, &options.to)
        .with_context(|| format!("`{from}` was not backed up"))?;
    match options.output {
        Format::Table => output::line(&format!(
            "{from} is backed up to {to}: {}, {}, read back and found whole",
            counted(copied.jobs, "job"),
            bytes(copied.bytes)
        )),
        Format::Json => output::json(&json!({
            "from": from.to_string(),
            "to": to.to_string(),
            "jobs": copied.jobs,
            "bytes": copied.bytes,
            "verified": true,
        })),
    }
}
