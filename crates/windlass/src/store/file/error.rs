//! Why a store could not be opened, and what can be done about it.

use std::path::Path;

use super::journal::Full;

/// Why a store could not be opened. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Another process has it open.
    #[error("the store at {path} is in use by {holder}; stop it first, or choose another path")]
    InUse {
        /// Where.
        path: String,
        /// Which process.
        holder: String,
    },

    /// Another process has it open, and cannot be joined.
    #[error("the store at {path} is in use by {holder}, which cannot be joined: {why}")]
    NotJoined {
        /// Where.
        path: String,
        /// Which process.
        holder: String,
        /// Why not.
        why: String,
    },

    /// It was to be joined, and nobody has it open.
    #[error("no process that can be joined has the store at {path} open; start one first")]
    NotOwned {
        /// Where.
        path: String,
    },

    /// There is nothing to open.
    #[error("there is no store at {path}; check the path")]
    NoStore {
        /// Where.
        path: String,
    },

    /// A move into it was interrupted.
    #[error(
        "a move into this store is not finished; run the same `windlass move` again, or remove the \
         directory"
    )]
    HalfMoved,

    /// It must hold no store, and does.
    #[error("{path} holds a store already; name a directory that is empty or not there yet")]
    NotEmpty {
        /// Where.
        path: String,
    },

    /// Something that was once on stable storage can no longer be read.
    #[error(
        "the store is damaged: {file} at byte {at}: {why}. Nothing was changed; \
         `windlass doctor` tells more, and a backup brings it back"
    )]
    Damaged {
        /// Which file.
        file: String,
        /// Which byte of it.
        at: u64,
        /// In which way.
        why: String,
    },

    /// A later version wrote it.
    #[error(
        "the store has format {version}, and this program reads formats up to {known}; \
         use a newer version of Windlass"
    )]
    Newer {
        /// Its format.
        version: u32,
        /// The newest format this program knows.
        known: u32,
    },

    /// A development version wrote it, before the format was fixed.
    #[error(
        "the store was written by a development version of Windlass, in a format that is no longer \
         read; export its jobs with that version, and start with a new directory"
    )]
    Development,

    /// The disk refused.
    #[error("cannot {doing} {path}: {why}{}", remedy(why))]
    Io {
        /// What was being done.
        doing: &'static str,
        /// With what.
        path: String,
        /// Why not.
        why: std::io::Error,
    },

    /// What was running could not be recovered.
    #[error("cannot recover the jobs that were running: {why}")]
    Recovery {
        /// Why not.
        why: String,
    },
}

impl OpenError {
    pub(super) fn io(path: &Path, doing: &'static str, why: std::io::Error) -> Self {
        Self::Io { doing, path: path.display().to_string(), why }
    }

    pub(super) fn disk(doing: &'static str, why: std::io::Error) -> Self {
        Self::Io { doing, path: "of the store".to_string(), why }
    }

    pub(super) fn full(Full(why): Full) -> Self {
        Self::disk("make room for a segment", why)
    }

    /// Whether a store of this very process has it.
    pub(crate) fn is_in_use_here(&self) -> bool {
        let us = format!("process {} ", std::process::id());
        matches!(self, Self::InUse { holder, .. } if holder.starts_with(&us))
    }

    pub(super) fn damaged(file: &str, at: u64, why: &str) -> Self {
        Self::Damaged { file: file.to_string(), at, why: why.to_string() }
    }
}

/// What can be done about it, where the system's own words do not say.
fn remedy(why: &std::io::Error) -> &'static str {
    use std::io::ErrorKind as Kind;
    // Our own words say what to do.
    if why.raw_os_error().is_none() && why.get_ref().is_some() {
        return "";
    }
    match why.kind() {
        Kind::PermissionDenied => {
            "; a store needs a directory that this process may read and write: change its mode or \
             owner, or choose another path"
        }
        Kind::ReadOnlyFilesystem => {
            "; a store must be able to write: mount it for writing, or choose another path"
        }
        Kind::StorageFull | Kind::QuotaExceeded => "; free some space, or choose another path",
        Kind::NotADirectory | Kind::AlreadyExists => {
            "; a file stands where a directory is needed: remove it, or choose another path"
        }
        _ => "",
    }
}
