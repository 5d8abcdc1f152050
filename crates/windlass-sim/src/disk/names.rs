//! The names of files: what a reader sees, and what the platter holds.

use std::collections::BTreeMap;

use crate::random::Random;

/// The identity of a file, whatever its name.
pub(super) type FileNumber = u64;

/// What becomes of names that were changed and not synced when the power is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameLoss {
    /// Every change had reached the platter.
    Keep,
    /// No change had.
    Drop,
    /// The changes up to some moment had.
    Suffix,
    /// Each change had or had not, as long as no file has two names.
    Scatter,
}

impl NameLoss {
    /// All of them.
    pub const ALL: [NameLoss; 4] =
        [NameLoss::Keep, NameLoss::Drop, NameLoss::Suffix, NameLoss::Scatter];
}

#[derive(Clone, Debug)]
enum Change {
    Named { name: String, file: FileNumber },
    Renamed { from: String, to: String, file: FileNumber },
    Removed { name: String },
}

impl Change {
    fn apply(&self, names: &mut BTreeMap<String, FileNumber>) {
        match self {
            Change::Named { name, file } => {
                names.insert(name.clone(), *file);
            }
            Change::Renamed { from, to, file } => {
                names.remove(from);
                names.retain(|_, other| other != file);
                names.insert(to.clone(), *file);
            }
            Change::Removed { name } => {
                names.remove(name);
            }
        }
    }
}

/// See the module documentation.
#[derive(Clone, Debug, Default)]
pub(super) struct Names {
    now: BTreeMap<String, FileNumber>,
    platter: BTreeMap<String, FileNumber>,
    unsynced: Vec<Change>,
}

impl Names {
    pub(super) fn get(&self, name: &str) -> Option<FileNumber> {
        self.now.get(name).copied()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = (&String, FileNumber)> {
        self.now.iter().map(|(name, file)| (name, *file))
    }

    fn change(&mut self, change: Change) {
        change.apply(&mut self.now);
        self.unsynced.push(change);
    }

    pub(super) fn name(&mut self, name: &str, file: FileNumber) {
        self.change(Change::Named { name: name.to_string(), file });
    }

    pub(super) fn rename(&mut self, from: &str, to: &str, file: FileNumber) {
        self.change(Change::Renamed { from: from.to_string(), to: to.to_string(), file });
    }

    pub(super) fn remove(&mut self, name: &str) {
        self.change(Change::Removed { name: name.to_string() });
    }

    pub(super) fn sync(&mut self) {
        self.unsynced.clear();
        self.platter.clone_from(&self.now);
    }

    /// Puts the names back to what the platter holds; returns how many changes were lost.
    pub(super) fn crash(&mut self, loss: NameLoss, random: &mut Random) -> usize {
        let changes = std::mem::take(&mut self.unsynced);
        let first_lost = random.index(changes.len() + 1);
        let mut lost = 0;
        for (number, change) in changes.iter().enumerate() {
            let kept = match loss {
                NameLoss::Keep => true,
                NameLoss::Drop => false,
                NameLoss::Suffix => number < first_lost,
                NameLoss::Scatter => random.coin(),
            };
            if kept {
                change.apply(&mut self.platter);
            } else {
                lost += 1;
            }
        }
        self.now.clone_from(&self.platter);
        lost
    }
}
