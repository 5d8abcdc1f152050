//! The disk as a process has it: handles that die with the process, and calls that fail.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{fmt, io};

use windlass::store::file::{Disk, DiskFile};

use super::content::{Content, SECTOR};
use super::names::FileNumber;
use super::{Call, Moment, State};

/// A process's view of the disk.
pub(super) struct Mount {
    pub(super) shared: Arc<Mutex<State>>,
    pub(super) boot: u64,
}

/// Its name, as a store that is opened on it asks for; all of its bytes, at every opening, took
/// most of the simulation's time.
impl fmt::Debug for Mount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the simulated disk, boot {}", self.boot)
    }
}

#[derive(Debug)]
struct Handle {
    shared: Arc<Mutex<State>>,
    boot: u64,
    file: FileNumber,
}

pub(super) fn lock(shared: &Mutex<State>) -> MutexGuard<'_, State> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

fn no_such_file() -> io::Error {
    io::Error::from(io::ErrorKind::NotFound)
}

fn failed() -> io::Error {
    io::Error::other("the disk failed (simulated)")
}

fn gone() -> io::Error {
    io::Error::other("the machine is off (simulated)")
}

/// How a call that was let through goes on.
struct Passage {
    /// The power is lost in the middle of it, or right after.
    dies: Option<Moment>,
    fails: bool,
}

impl State {
    fn alive(&self, boot: u64) -> io::Result<()> {
        if self.dead || self.boot != boot { Err(gone()) } else { Ok(()) }
    }

    fn enter(&mut self, call: Call, boot: u64) -> io::Result<Passage> {
        self.alive(boot)?;
        self.calls += 1;
        let dies = self.trap.filter(|trap| trap.at == self.calls).map(|trap| trap.when);
        if dies == Some(Moment::Before) {
            self.dead = true;
            return Err(gone());
        }
        let fails = self.faults.strike(call, &mut self.random);
        self.failed += u64::from(fails);
        if fails || dies.is_some() {
            self.note(|| format!("{call:?} fails: {fails}, dies: {dies:?}"));
        }
        Ok(Passage { dies, fails })
    }

    fn leave<T>(&mut self, passage: &Passage, answer: io::Result<T>) -> io::Result<T> {
        if passage.dies.is_some() {
            self.dead = true;
            return Err(gone());
        }
        answer
    }

    fn make(&mut self, name: &str, bytes: usize) -> FileNumber {
        self.next_file += 1;
        self.files.insert(self.next_file, Content::zeros(bytes));
        self.names.name(name, self.next_file);
        self.next_file
    }

    /// A file that was only begun and is then deleted: a power loss may bring it back.
    fn begin_and_fail(&mut self, name: &str, bytes: usize) {
        let part = self.random.index(bytes + 1) / 4_096 * 4_096;
        self.make(name, part);
        self.names.remove(name);
    }

    /// How many of the bytes of a write that failed in the middle are there: whole sectors.
    fn cut(&mut self, from: usize, length: usize) -> usize {
        let end = from + self.random.index(length + 1);
        (end / SECTOR * SECTOR).saturating_sub(from)
    }

    fn content(&mut self, file: FileNumber) -> io::Result<&mut Content> {
        self.files.get_mut(&file).ok_or_else(no_such_file)
    }
}

impl Disk for Mount {
    fn list(&self) -> io::Result<Vec<String>> {
        let mut state = lock(&self.shared);
        state.alive(self.boot)?;
        let mut names: Vec<String> = state.names.all().map(|(name, _)| name.clone()).collect();
        // A directory has no order that anyone may count on.
        for last in (1..names.len()).rev() {
            let other = state.random.index(last + 1);
            names.swap(last, other);
        }
        Ok(names)
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let state = lock(&self.shared);
        state.alive(self.boot)?;
        let file = state.names.get(name).ok_or_else(no_such_file)?;
        Ok(Arc::new(Handle { shared: self.shared.clone(), boot: self.boot, file }))
    }

    fn create(&self, name: &str, bytes: u64) -> io::Result<Arc<dyn DiskFile>> {
        let mut state = lock(&self.shared);
        let passage = state.enter(Call::Create, self.boot)?;
        let size = usize::try_from(bytes).expect("a small file");
        state.note(|| format!("create {name} of {bytes} bytes"));
        if passage.dies == Some(Moment::During) {
            let part = state.random.index(size) / 4_096 * 4_096;
            state.make(name, part);
            return state.leave(&passage, Err(failed()));
        }
        let free = state.capacity.map(|capacity| capacity.saturating_sub(state.used()));
        if free.is_some_and(|free| free < bytes) {
            state.begin_and_fail(name, size);
            state.was_full = true;
            return state.leave(&passage, Err(io::Error::from(io::ErrorKind::StorageFull)));
        }
        if passage.fails {
            state.begin_and_fail(name, size);
            return state.leave(&passage, Err(failed()));
        }
        let file = state.make(name, size);
        let handle = Handle { shared: self.shared.clone(), boot: self.boot, file };
        state.leave(&passage, Ok(Arc::new(handle) as Arc<dyn DiskFile>))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = lock(&self.shared);
        let passage = state.enter(Call::Rename, self.boot)?;
        let file = state.names.get(from).ok_or_else(no_such_file)?;
        if passage.fails {
            return state.leave(&passage, Err(failed()));
        }
        state.note(|| format!("rename {from} to {to}"));
        state.reused += u64::from(state.is_reused(file, to));
        state.names.rename(from, to, file);
        state.leave(&passage, Ok(()))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = lock(&self.shared);
        let passage = state.enter(Call::Remove, self.boot)?;
        state.names.get(name).ok_or_else(no_such_file)?;
        state.note(|| format!("remove {name}"));
        if passage.fails {
            return state.leave(&passage, Err(failed()));
        }
        state.names.remove(name);
        state.leave(&passage, Ok(()))
    }

    fn sync_directory(&self) -> io::Result<()> {
        let mut state = lock(&self.shared);
        let passage = state.enter(Call::SyncDirectory, self.boot)?;
        state.note(|| "sync the directory".to_string());
        if passage.fails {
            return state.leave(&passage, Err(failed()));
        }
        state.names.sync();
        state.leave(&passage, Ok(()))
    }
}

impl DiskFile for Handle {
    fn size(&self) -> io::Result<u64> {
        let mut state = lock(&self.shared);
        state.alive(self.boot)?;
        Ok(state.content(self.file)?.now.len() as u64)
    }

    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<()> {
        let mut state = lock(&self.shared);
        state.alive(self.boot)?;
        let State { faults, random, failed: failures, .. } = &mut *state;
        if faults.strike_read(random) {
            *failures += 1;
            return Err(failed());
        }
        let from = usize::try_from(at).expect("a small file");
        let bytes = state.content(self.file)?.now.get(from..from + buffer.len());
        let bytes = bytes.ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))?;
        buffer.copy_from_slice(bytes);
        Ok(())
    }

    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        let mut state = lock(&self.shared);
        let passage = state.enter(Call::Write, self.boot)?;
        let from = usize::try_from(at).expect("a small file");
        if from + bytes.len() > state.content(self.file)?.now.len() {
            return Err(io::Error::other("a write beyond the end of a file of fixed size"));
        }
        let torn = passage.fails || passage.dies == Some(Moment::During);
        let length = if torn { state.cut(from, bytes.len()) } else { bytes.len() };
        let (file, range) = (self.file, from..from + bytes.len());
        state.note(|| format!("write file {file} at {range:?}"));
        state.damaged.take_if(|(file, at)| *file == self.file && range.contains(at));
        state.recent.push((self.file, range));
        state.content(self.file)?.write(&bytes[..length], from);
        let answer = if passage.fails { Err(failed()) } else { Ok(()) };
        state.leave(&passage, answer)
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = lock(&self.shared);
        let passage = state.enter(Call::Sync, self.boot)?;
        let file = self.file;
        state.note(|| format!("sync file {file}"));
        if passage.fails {
            let drops = state.random.coin();
            let dropped = drops && state.content(self.file)?.give_up();
            state.gave_up += u64::from(dropped);
            return state.leave(&passage, Err(failed()));
        }
        if passage.dies != Some(Moment::During) {
            state.content(self.file)?.sync();
        }
        state.leave(&passage, Ok(()))
    }
}
