//! Copies of a store, and whether one is whole.
//!
//! A copy can be taken while the store is open.
//!
//! Answers: files that are copied one after the other are not of one moment.
//! Why not simpler: to stop the store, or to hold its lock, would stop everybody for as long as the
//! copy takes. The journal is only ever appended to, so a copy of its newest segment, and then of
//! all before it, is the state at one moment: that of the last whole commit in the copy of the
//! newest. A segment that leaves meanwhile is noticed, because commits say which segment is the
//! oldest that is needed, and the copy is begun anew.
//! Guarded by: `a_backup_of_a_store_in_use_opens_as_of_one_moment_with_fresh_tokens` in
//! `tests/main/files/backups.rs`.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::Arc;

use windlass_core::reserved::is_reserved;

use super::OpenError;
use super::disk::{RealDisk, open_plain, open_to_read};
use super::layout::FORMAT;
use super::ledger::{COPY_MARK, JournaledLedger, LedgerOptions};
use crate::store::Space;

/// What a check found.
#[derive(Clone, Debug, Default)]
pub struct Checked {
    /// Jobs in the store.
    pub jobs: u64,
    /// Durable objects in the store, without those that the engine keeps for itself.
    pub objects: u64,
    /// Commits in the journal.
    pub commits: u64,
    /// What it takes on the disk.
    pub space: Space,
    /// Where an unfinished commit was cut off: harmless, it was never acknowledged.
    pub torn: Option<String>,
    /// Everything that is wrong, in words.
    pub wrong: Vec<String>,
}

/// Reads every byte of the store at `path` and compares everything with everything. Changes
/// nothing; refuses a store that someone has open.
pub fn check(path: &Path) -> Result<Checked, OpenError> {
    let disk = Arc::new(RealDisk::open_existing(path)?);
    super::moving::refuse_half_moved(&*disk)?;
    let options = LedgerOptions { thorough: true, ..LedgerOptions::default() };
    let (mut ledger, found) = JournaledLedger::read(disk, &options, None)?;
    let objects = ledger.ledger().objects_after(None);
    let objects = objects.filter(|(address, ..)| !is_reserved(address.kind().as_str())).count();
    Ok(Checked {
        jobs: ledger.ledger().jobs(),
        objects: objects as u64,
        commits: found.commits,
        space: ledger.space(),
        torn: found.torn,
        wrong: ledger.check(),
    })
}

/// What was copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copied {
    /// Jobs in the copy.
    pub jobs: u64,
    /// Bytes of it.
    pub bytes: u64,
}

/// Copies the store at `from`, which may be open, to the new directory `to`, and reads the copy
/// back. Everything acknowledged before the call is in it.
///
/// Whoever opens the copy goes on with lease tokens far beyond those of the original, so that a
/// worker of the one can never settle a job of the other.
pub fn back_up(from: &Path, to: &Path) -> Result<Copied, OpenError> {
    if !from.join("lock").exists() {
        return Err(OpenError::NoStore { path: from.display().to_string() });
    }
    let failed = |error| OpenError::io(to, "copy the store to", error);
    if to.exists() {
        return Err(failed(io::Error::from(io::ErrorKind::AlreadyExists)));
    }
    let mut name = to.file_name().unwrap_or_default().to_os_string();
    name.push(".unfinished");
    let unfinished = to.with_file_name(name);
    claim_directory(&unfinished)?;
    let (bytes, checked) = copy_whole(from, &unfinished).inspect_err(|_| {
        let _ = fs::remove_dir_all(&unfinished);
    })?;
    let mark = create(&unfinished.join(COPY_MARK)).and_then(|mark| mark.sync_all());
    mark.and_then(|()| File::open(&unfinished)?.sync_all()).map_err(failed)?;
    fs::rename(&unfinished, to).map_err(failed)?;
    let parent = to.canonicalize().ok().and_then(|to| to.parent().map(Path::to_path_buf));
    parent.map_or(Ok(()), |parent| File::open(parent)?.sync_all()).map_err(failed)?;
    Ok(Copied { jobs: checked.jobs, bytes })
}

/// Makes a directory for a copy that nobody else writes to.
fn claim_directory(path: &Path) -> Result<(), OpenError> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let make = |path, parents| fs::DirBuilder::new().recursive(parents).mode(0o700).create(path);
    let made = parent.map_or(Ok(()), |parent| make(parent, true));
    made.and_then(|()| make(path, false)).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => {
            let why = "it is there: another backup writes to it, or one was interrupted; \
                       if so, remove it";
            OpenError::io(path, "copy the store to", io::Error::new(error.kind(), why))
        }
        _ => OpenError::io(path, "copy the store to", error),
    })
}

fn create(path: &Path) -> io::Result<File> {
    open_plain(path, OpenOptions::new().create(true).truncate(true))
}

/// Copies until the copy is whole, which takes more than once only if segments leave meanwhile.
fn copy_whole(from: &Path, to: &Path) -> Result<(u64, Checked), OpenError> {
    let mut tries = 0;
    loop {
        tries += 1;
        drop(RealDisk::open(to)?);
        let copied = clear(to).and_then(|()| copy_segments(from, to));
        let bytes = copied.map_err(|error| OpenError::io(to, "copy the store to", error))?;
        match check(to) {
            Ok(checked) if checked.wrong.is_empty() => return Ok((bytes, checked)),
            // A segment left while it was being copied: what it held stands further on by now.
            _ if tries < TRIES => {}
            Ok(checked) => {
                let why = checked.wrong.join("; ");
                return Err(OpenError::Damaged { file: "the copy".to_string(), at: 0, why });
            }
            Err(error) => return Err(error),
        }
    }
}

/// How often a copy is begun anew when segments leave meanwhile.
const TRIES: usize = 10;

fn is_copied(name: &str) -> bool {
    name.starts_with("journal-") || name == FORMAT
}

/// Takes away what an earlier try has left.
fn clear(to: &Path) -> io::Result<()> {
    for entry in fs::read_dir(to)? {
        let entry = entry?;
        if entry.file_name().to_str().is_some_and(is_copied) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Copies the newest segment first: each one then holds everything that came before what is
/// already in the copy.
fn copy_segments(from: &Path, to: &Path) -> io::Result<u64> {
    let mut names = Vec::new();
    for entry in fs::read_dir(from)? {
        names.extend(entry?.file_name().into_string());
    }
    names.retain(|name| is_copied(name));
    names.sort_unstable();
    let mut bytes = 0;
    for name in names.iter().rev() {
        let mut source = match open_to_read(&from.join(name)) {
            Ok(source) => source,
            // It left. If it is missed, the check will tell.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        let mut copy = create(&to.join(name))?;
        bytes += io::copy(&mut source, &mut copy)?;
        copy.sync_all()?;
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_destination_that_is_gone_is_not_taken_for_a_segment_that_left() {
        let name = format!("windlass-copy-{}", std::process::id());
        let from = std::env::temp_dir().join(name);
        fs::create_dir(&from).expect("it is new");
        fs::write(from.join("journal-00000001"), "content").expect("written");
        let copied = copy_segments(&from, &from.join("gone"));
        fs::remove_dir_all(&from).expect("removed");
        assert!(copied.is_err(), "{copied:?}");
    }
}
