//! What belongs to the directory, whoever has it open: limits, recovery, durability.
//!
//! Whoever opens a directory that nobody else has open brings its own settings. While others have
//! it open they stay as they are: a successor with smaller limits must not delete history.

use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};
use windlass_core::ledger::Recovery;
use windlass_core::limits::Limits;

use crate::store::Durability;
use crate::store::file::{open_plain, open_to_read};

/// The name of the file.
const SETTINGS: &str = "settings.json";

/// What belongs to the directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Settings {
    pub(super) limits: Limits,
    pub(super) recovery: Recovery,
    pub(super) durability: Durability,
}

impl Settings {
    /// Those of the directory, if it has some that can be read.
    pub(super) fn read(directory: &Path) -> Option<Self> {
        let mut text = String::new();
        open_to_read(&directory.join(SETTINGS)).ok()?.read_to_string(&mut text).ok()?;
        serde_json::from_str(&text).ok()
    }

    /// Writes them down for those who open it next. Only whoever owns it may.
    pub(super) fn write(&self, directory: &Path) -> io::Result<()> {
        if Self::read(directory).as_ref() == Some(self) {
            return Ok(());
        }
        let unfinished = directory.join("settings.new");
        let mut file = open_plain(&unfinished, OpenOptions::new().create(true).truncate(true))?;
        file.write_all(&serde_json::to_vec_pretty(self)?)?;
        file.sync_all()?;
        fs::rename(&unfinished, directory.join(SETTINGS))
    }
}
