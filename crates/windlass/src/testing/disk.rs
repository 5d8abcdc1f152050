//! A disk in memory that notes every durable write, and on which the process can be killed at any
//! of them.
//!
//! Simpler than a real disk where that is the engine's affair and not that of a user's test: names
//! are durable at once, and what was not synced survives wholly or not at all.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{fmt, io};

use tokio::sync::Notify;

use crate::store::file::{Disk, DiskFile};

/// What was done to the disk, or told of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    /// Bytes were written.
    Write,
    /// They were made durable.
    Sync,
    /// A file was made, renamed or removed.
    Name,
    /// Whoever asked for it was told that it is done.
    Answer,
}

/// One act, in the order in which they happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) act: Act,
    /// Of what: "the outcome of `charge`".
    pub(super) of: String,
    /// Whether bytes were unsynced before it.
    pub(super) dirty: bool,
}

/// Where the process is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Trap {
    /// At the mark with this index.
    pub(super) mark: usize,
    /// Before it took effect, or after.
    pub(super) before: bool,
}

struct Content {
    bytes: Vec<u8>,
    /// What stood where, before each write since the last sync.
    unsynced: Vec<(usize, Vec<u8>)>,
}

#[derive(Default)]
struct DiskState {
    names: BTreeMap<String, u64>,
    files: BTreeMap<u64, Content>,
    next_file: u64,
    /// Which process has it; handles of an earlier one are dead.
    boot: u64,
    dead: bool,
    /// Notes marks, and kills at the trap.
    armed: bool,
    trap: Option<Trap>,
    marks: Vec<Mark>,
    /// What is being written.
    of: String,
    /// A claim is being made: its sync is passed over, because the store that ships does not wait
    /// for it either. It is synced with whatever comes next
    /// (`a_start_that_was_not_synced_may_be_forgotten_by_a_crash` in `tests/main/kit.rs`).
    lazy: bool,
}

/// See the module documentation.
#[derive(Clone, Default)]
pub(super) struct MemoryDisk {
    state: Arc<Mutex<DiskState>>,
    killed: Arc<Notify>,
}

/// Without its bytes: a store asks its disk what it is called.
impl fmt::Debug for MemoryDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a disk in memory")
    }
}

impl MemoryDisk {
    fn lock(&self) -> MutexGuard<'_, DiskState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The disk for one process. Handles of the process before it stop working.
    pub(super) fn mount(&self) -> Arc<dyn Disk> {
        Arc::new(Mount { disk: self.clone(), boot: self.boot() })
    }

    pub(super) fn boot(&self) -> u64 {
        self.lock().boot
    }

    /// Notes everything from now on, and kills the process at the trap.
    pub(super) fn arm(&self, trap: Option<Trap>) {
        let mut state = self.lock();
        (state.armed, state.trap) = (true, trap);
    }

    /// What was noted since it was armed.
    pub(super) fn marks(&self) -> Vec<Mark> {
        self.lock().marks.clone()
    }

    /// Whether the trap was reached. Nothing works until [`MemoryDisk::revive`].
    pub(super) fn is_dead(&self) -> bool {
        self.lock().dead
    }

    /// Waits for that.
    pub(super) async fn killed(&self) {
        self.killed.notified().await;
    }

    /// The machine starts again, with or without what was not synced.
    pub(super) fn revive(&self, keep_unsynced: bool) {
        let mut state = self.lock();
        for content in state.files.values_mut() {
            for (at, before) in std::mem::take(&mut content.unsynced).into_iter().rev() {
                if !keep_unsynced {
                    content.bytes[at..at + before.len()].copy_from_slice(&before);
                }
            }
        }
        state.boot += 1;
        (state.dead, state.armed, state.lazy) = (false, false, false);
    }

    /// Says what the next writes are for. Returns how many marks there are.
    pub(super) fn begin(&self, of: String, lazy: bool) -> usize {
        let mut state = self.lock();
        (state.of, state.lazy) = (of, lazy);
        state.marks.len()
    }

    /// The call that began at this many marks is about to be answered: if it wrote something, that
    /// is noted. `of` says more of what it was for, now that it is known.
    pub(super) fn answer(&self, began: usize, of: Option<String>) {
        let mut state = self.lock();
        state.lazy = false;
        if let Some(of) = of {
            state.marks[began..].iter_mut().for_each(|mark| mark.of.clone_from(&of));
            state.of = of;
        }
        if state.marks.len() > began && state.mark(Act::Answer).is_some() {
            self.die(&mut state);
        }
    }

    fn die(&self, state: &mut DiskState) {
        state.dead = true;
        self.killed.notify_one();
    }

    /// Does `work`, unless the process is killed before, and tells that it was done, unless it is
    /// killed after.
    fn act<T>(
        &self,
        boot: u64,
        act: Act,
        work: impl FnOnce(&mut DiskState) -> io::Result<T>,
    ) -> io::Result<T> {
        let mut state = self.lock();
        state.alive(boot)?;
        let trap = state.mark(act);
        if trap.is_some_and(|trap| trap.before) {
            self.die(&mut state);
            return Err(gone());
        }
        let done = work(&mut state);
        if trap.is_some() {
            self.die(&mut state);
            return Err(gone());
        }
        done
    }
}

fn gone() -> io::Error {
    io::Error::other("the process was killed here, by the test")
}

fn no_such_file() -> io::Error {
    io::Error::from(io::ErrorKind::NotFound)
}

impl DiskState {
    fn alive(&self, boot: u64) -> io::Result<()> {
        if self.dead || self.boot != boot { Err(gone()) } else { Ok(()) }
    }

    /// Notes an act. Returns the trap if it is set here.
    fn mark(&mut self, act: Act) -> Option<Trap> {
        if !self.armed {
            return None;
        }
        let dirty = self.files.values().any(|content| !content.unsynced.is_empty());
        self.marks.push(Mark { act, of: self.of.clone(), dirty });
        self.trap.filter(|trap| trap.mark + 1 == self.marks.len())
    }

    fn content(&mut self, file: u64) -> io::Result<&mut Content> {
        self.files.get_mut(&file).ok_or_else(no_such_file)
    }

    fn sync(&mut self) {
        self.files.values_mut().for_each(|content| content.unsynced.clear());
    }
}

struct Mount {
    disk: MemoryDisk,
    boot: u64,
}

impl fmt::Debug for Mount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.disk.fmt(f)
    }
}

#[derive(Debug)]
struct File {
    disk: MemoryDisk,
    boot: u64,
    file: u64,
}

impl Mount {
    fn handle(&self, file: u64) -> Arc<dyn DiskFile> {
        Arc::new(File { disk: self.disk.clone(), boot: self.boot, file })
    }

    /// Changes names. What was written before is synced first, because a store that lets go of a
    /// file has synced what replaces it.
    fn rename_with<T>(&self, work: impl FnOnce(&mut DiskState) -> io::Result<T>) -> io::Result<T> {
        self.disk.act(self.boot, Act::Name, |state| {
            state.sync();
            work(state)
        })
    }
}

impl Disk for Mount {
    fn list(&self) -> io::Result<Vec<String>> {
        let state = self.disk.lock();
        state.alive(self.boot)?;
        Ok(state.names.keys().cloned().collect())
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let state = self.disk.lock();
        state.alive(self.boot)?;
        state.names.get(name).map(|file| self.handle(*file)).ok_or_else(no_such_file)
    }

    fn create(&self, name: &str, bytes: u64) -> io::Result<Arc<dyn DiskFile>> {
        let size = usize::try_from(bytes).map_err(io::Error::other)?;
        self.rename_with(|state| {
            state.next_file += 1;
            let (name, file) = (name.to_string(), state.next_file);
            let content = Content { bytes: vec![0; size], unsynced: Vec::new() };
            state.files.insert(file, content);
            let replaced = state.names.insert(name, file);
            let _ = replaced.and_then(|file| state.files.remove(&file));
            Ok(self.handle(file))
        })
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.rename_with(|state| {
            let file = state.names.remove(from).ok_or_else(no_such_file)?;
            let replaced = state.names.insert(to.to_string(), file);
            let _ = replaced.and_then(|file| state.files.remove(&file));
            Ok(())
        })
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.rename_with(|state| {
            let file = state.names.remove(name).ok_or_else(no_such_file)?;
            state.files.remove(&file);
            Ok(())
        })
    }

    fn sync_directory(&self) -> io::Result<()> {
        self.disk.lock().alive(self.boot)
    }
}

impl DiskFile for File {
    fn size(&self) -> io::Result<u64> {
        let mut state = self.disk.lock();
        state.alive(self.boot)?;
        Ok(state.content(self.file)?.bytes.len() as u64)
    }

    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<()> {
        let mut state = self.disk.lock();
        state.alive(self.boot)?;
        let from = usize::try_from(at).map_err(io::Error::other)?;
        let bytes = state.content(self.file)?.bytes.get(from..from + buffer.len());
        buffer.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        let from = usize::try_from(at).map_err(io::Error::other)?;
        self.disk.act(self.boot, Act::Write, |state| {
            let content = state.content(self.file)?;
            let place = content.bytes.get_mut(from..from + bytes.len());
            let place = place.ok_or(io::ErrorKind::UnexpectedEof)?;
            content.unsynced.push((from, place.to_vec()));
            place.copy_from_slice(bytes);
            Ok(())
        })
    }

    fn sync(&self) -> io::Result<()> {
        if self.disk.lock().lazy {
            return Ok(());
        }
        // All files: those that a lazy sync has passed over too.
        self.disk.act(self.boot, Act::Sync, |state| {
            state.sync();
            Ok(())
        })
    }
}
