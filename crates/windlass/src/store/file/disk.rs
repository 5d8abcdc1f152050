//! The disk, as far as the journal needs one: a flat directory of files, a handful of calls.
//!
//! Everything that can go wrong with storage goes wrong behind this trait: a simulated disk tears,
//! drops and reorders what was not synced, fails, fills up and flips bits, and the journal above
//! cannot tell.

use std::fmt;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::OpenError;
use super::layout::{FORMAT, SPARE, parse_name};

/// A flat directory of files.
///
/// A name that was created, renamed or removed is certain to stay so over a power loss only after
/// [`Disk::sync_directory`]; bytes only after [`DiskFile::sync`]. A failed call may have done its
/// work in part.
pub trait Disk: Send + Sync + fmt::Debug {
    /// The names of all files.
    fn list(&self) -> io::Result<Vec<String>>;

    /// Opens a file that exists.
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;

    /// Makes a file of `bytes` zeros, written and synced, so that later writes within it need no
    /// space and no metadata. Leaves nothing behind if it fails.
    fn create(&self, name: &str, bytes: u64) -> io::Result<Arc<dyn DiskFile>>;

    /// Gives a file another name, replacing what had it.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Deletes a file.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Makes names durable.
    fn sync_directory(&self) -> io::Result<()>;

    /// Whether something outside of the journal says that a store was here, so that a journal
    /// without a single segment is one that was lost. A disk that keeps nothing else cannot tell.
    fn has_held_a_store(&self) -> bool {
        false
    }

    /// Keeps for good, outside of the journal, that a store is here.
    fn note_store(&self) -> io::Result<()> {
        Ok(())
    }
}

/// One open file of fixed size.
pub trait DiskFile: Send + Sync + fmt::Debug {
    /// Its size in bytes.
    fn size(&self) -> io::Result<u64>;

    /// Fills `buffer` from `at`; a file that ends before is an error.
    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<()>;

    /// Writes all of `bytes` at `at`.
    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()>;

    /// Makes everything written so far durable. After a failure nothing is known, and trying again
    /// proves nothing: the system may have dropped what it could not write.
    fn sync(&self) -> io::Result<()>;
}

/// How many zeros of a new file are on their way to the disk at once.
///
/// Answers: while a file is made in advance, commits are synced beside it, and each waits for what
/// the disk was given before it.
/// Why not simpler: with one sync for all 64 MiB, small enqueues beside a flow of jobs had a p99 of
/// 24 ms, and with a sync for each of these 20 ms; calls of a thousand jobs 11 and 8 ms. With a
/// sync for every MiB, 64 callers that enqueue were slower by 4 %.
/// Guarded by: no test sees this cost; `windlass bench --mode steady` does.
const ZEROS_AT_ONCE: usize = 4 << 20;

/// A directory of the machine, held by this process alone for as long as the value lives.
///
/// Its rules: it belongs to the user this process runs as, nobody else may write to it, and no
/// symbolic link in it is followed. So whatever is written here is written here, to files that
/// nobody else has put there.
pub struct RealDisk {
    path: PathBuf,
    /// The directory itself, which is what is locked. A lock on the file alone ends with its name:
    /// whoever deleted that would let a second process in (`tests/main/directory.rs`, the planted
    /// bug 35). The system gives the lock back however the process ends.
    directory: File,
    /// Says who has the directory, and whether it has held a store. Locked as well, for programs
    /// that know no other lock.
    lock: File,
    held_a_store: AtomicBool,
}

const LOCK: &str = "lock";
/// The first line of the lock file of a directory that has held a store.
const HELD_A_STORE: &str = "Windlass store\n";

impl Drop for RealDisk {
    /// Gives the lock up by itself: a process that is being started at this moment still has the
    /// file open, and would keep it until it is another program.
    fn drop(&mut self) {
        let _ = self.lock.unlock();
        let _ = self.directory.unlock();
    }
}

impl RealDisk {
    /// Opens the directory, making it if need be, and takes its lock.
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        let failed = |error| OpenError::io(path, "open", error);
        if path.is_dir() {
            refuse_others(path).map_err(failed)?;
        }
        Self::make_directory(path).map_err(failed)?;
        Self::take(path)
    }

    /// Opens a directory that must exist, and takes its lock.
    pub fn open_existing(path: &Path) -> Result<Self, OpenError> {
        if !names_in(path).is_ok_and(|names| names.iter().any(|name| is_of_a_store(name))) {
            return Err(OpenError::NoStore { path: path.display().to_string() });
        }
        Self::take(path)
    }

    /// Which process has the directory at `path` open, as far as it says.
    pub(crate) fn holder(path: &Path) -> String {
        let lock = open_to_read(&path.join(LOCK));
        lock.map_or_else(|_| "another process".to_string(), |lock| holder_of(&lock))
    }

    fn take(path: &Path) -> Result<Self, OpenError> {
        let failed = |error| OpenError::io(path, "lock", error);
        let directory = File::open(path).map_err(failed)?;
        refuse_others(path).map_err(failed)?;
        let was_there = path.join(LOCK).symlink_metadata().is_ok();
        let mut options = OpenOptions::new();
        let lock = open_plain(&path.join(LOCK), options.create(true)).map_err(failed)?;
        if !(try_lock(&directory).map_err(failed)? && try_lock(&lock).map_err(failed)?) {
            let holder = holder_of(&lock);
            return Err(OpenError::InUse { path: path.display().to_string(), holder });
        }
        let names = names_in(path).map_err(failed)?;
        // The lock file is made before anything else: what is there without one has lost it.
        let lost = !was_there && names.iter().any(|name| name != LOCK && is_of_a_store(name));
        let held_a_store = lost || read_lock(&lock).starts_with(HELD_A_STORE);
        let disk =
            Self { path: path.to_path_buf(), directory, lock, held_a_store: held_a_store.into() };
        disk.write_lock().map_err(failed)?;
        Ok(disk)
    }

    /// Writes who has the directory. It is never empty meanwhile: what it says must not be lost
    /// with the power.
    fn write_lock(&self) -> io::Result<()> {
        let program = std::env::args().next().unwrap_or_default();
        let program = Path::new(&program).file_name().unwrap_or_default().to_string_lossy();
        let held = if self.has_held_a_store() { HELD_A_STORE } else { "" };
        let text = format!("{held}process {} ({program})\n", std::process::id());
        self.lock.write_all_at(text.as_bytes(), 0)?;
        self.lock.set_len(text.len() as u64)
    }

    /// Fails when another directory stands in the place of the one that is locked: names would go
    /// there, where they are missed or do harm.
    fn still_here(&self) -> io::Result<()> {
        let (here, there) = (self.directory.metadata()?, fs::metadata(&self.path));
        let same = there.is_ok_and(|there| (here.dev(), here.ino()) == (there.dev(), there.ino()));
        if same { Ok(()) } else { Err(io::Error::other("the directory was moved or replaced")) }
    }

    fn make_directory(path: &Path) -> io::Result<()> {
        let existed = path.is_dir();
        if existed {
            Self::tighten(path)?;
        }
        for holder in Self::make_with_parents(path)? {
            // Without this the directory itself can vanish with the power.
            match File::open(holder).and_then(|holder| holder.sync_all()) {
                Err(error) if existed && is_not_ours(&error) => {}
                synced => synced?,
            }
        }
        Ok(())
    }

    /// Keeps others out of a directory that was there before. One that holds something else is left
    /// as it is: it is not ours alone.
    fn tighten(path: &Path) -> io::Result<()> {
        if !is_ours_alone(path)? || fs::metadata(path)?.permissions().mode() & 0o077 == 0 {
            return Ok(());
        }
        match fs::set_permissions(path, fs::Permissions::from_mode(0o700)) {
            Err(error) if is_not_ours(&error) => Ok(()),
            tightened => tightened,
        }
    }

    /// Makes the directory and what it lies in, as far as they are missing. Returns the directories
    /// whose names of them must be made durable. The one it lies in is always among them: whoever
    /// made it before may have lost the power before that was done.
    fn make_with_parents(path: &Path) -> io::Result<Vec<PathBuf>> {
        let path = std::path::absolute(path)?;
        let missing = path.ancestors().take_while(|ancestor| !ancestor.is_dir()).count();
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&path)?;
        let path = path.canonicalize()?;
        Ok(path.ancestors().skip(1).take(missing.max(1)).map(Path::to_path_buf).collect())
    }

    fn of(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

/// Refuses a directory that another user owns, or that others may write to. One that holds a store
/// or nothing is closed to them instead; one that holds something else is not ours to close.
///
/// That goes for root too: it would leave files that the owner of the directory cannot open.
fn refuse_others(path: &Path) -> io::Result<()> {
    let refused = |why: String| Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    let (meta, us) = (fs::metadata(path)?, effective_user()?);
    if meta.uid() != us {
        return refused(format!(
            "it belongs to user {} and this process runs as user {us}; run as its owner, or name \
             a directory that is not there yet",
            meta.uid()
        ));
    }
    if meta.mode() & 0o022 != 0 && !is_ours_alone(path)? {
        return refused(format!(
            "others may write to it (mode {:o}) and it holds other files; take that away \
             (chmod go-w), or name a directory of its own",
            meta.mode() & 0o7777
        ));
    }
    Ok(())
}

/// Whether the directory holds a store, or nothing at all.
fn is_ours_alone(path: &Path) -> io::Result<bool> {
    Ok(path.join(LOCK).symlink_metadata().is_ok() || names_in(path)?.is_empty())
}

/// The user this process runs as. The standard library does not tell, and `unsafe` is forbidden;
/// but whoever makes a pipe owns it. Guarded by
/// `a_directory_of_another_user_is_refused_even_to_root` in `tests/main/directory.rs`.
fn effective_user() -> io::Result<u32> {
    let (pipe, _) = io::pipe()?;
    Ok(File::from(OwnedFd::from(pipe)).metadata()?.uid())
}

fn names_in(path: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(path)? {
        names.extend(entry?.file_name().into_string());
    }
    Ok(names)
}

/// Whether only a store leaves a file of this name.
fn is_of_a_store(name: &str) -> bool {
    name == LOCK || name == FORMAT || name.starts_with(SPARE) || parse_name(name).is_some()
}

/// Opens a plain file for reading and writing, and nothing else: no link is followed, no pipe and
/// no device is opened for a file.
pub(in crate::store) fn open_plain(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    open_no_link(path, options.read(true).write(true).mode(0o600))
}

/// The same for reading only.
pub(in crate::store) fn open_to_read(path: &Path) -> io::Result<File> {
    open_no_link(path, OpenOptions::new().read(true))
}

fn open_no_link(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let options = options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let file = options.open(path).map_err(|error| match path.symlink_metadata() {
        Ok(meta) if meta.file_type().is_symlink() => other_than_a_file(path, "a symbolic link"),
        _ => error,
    })?;
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(other_than_a_file(path, "no plain file"))
    }
}

fn other_than_a_file(path: &Path, what: &str) -> io::Error {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    io::Error::other(format!("`{name}` in it is {what}; a store follows none, remove it"))
}

pub(in crate::store) fn try_lock(file: &File) -> io::Result<bool> {
    match file.try_lock() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Which process has the lock, as far as it says.
fn holder_of(lock: &File) -> String {
    let said = read_lock(lock);
    let holder = said.strip_prefix(HELD_A_STORE).unwrap_or(&said).trim();
    if holder.is_empty() { "another process".to_string() } else { holder.to_string() }
}

fn read_lock(lock: &File) -> String {
    let mut text = vec![0; 4096];
    let read = lock.read_at(&mut text, 0).unwrap_or(0);
    text.truncate(read);
    String::from_utf8_lossy(&text).into_owned()
}

/// Whether a directory that someone else has made cannot be synced by us: it may not be read, or
/// lies on a filesystem that does not know how.
fn is_not_ours(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidInput, PermissionDenied, Unsupported};
    matches!(error.kind(), PermissionDenied | InvalidInput | Unsupported)
}

impl fmt::Debug for RealDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.path.display().fmt(f)
    }
}

impl Disk for RealDisk {
    fn list(&self) -> io::Result<Vec<String>> {
        self.still_here()?;
        names_in(&self.path)
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.still_here()?;
        Ok(Arc::new(RealFile(open_plain(&self.of(name), &mut OpenOptions::new())?)))
    }

    fn create(&self, name: &str, bytes: u64) -> io::Result<Arc<dyn DiskFile>> {
        self.still_here()?;
        let path = self.of(name);
        let make = || {
            let mut options = OpenOptions::new();
            let mut file = open_plain(&path, options.create(true).truncate(true))?;
            file.set_permissions(fs::Permissions::from_mode(0o600))?;
            let zeros = vec![0; ZEROS_AT_ONCE];
            let mut left = bytes;
            while left > 0 {
                let some = left.min(zeros.len() as u64);
                file.write_all(&zeros[..usize::try_from(some).unwrap_or(zeros.len())])?;
                file.sync_data()?;
                left -= some;
            }
            file.sync_all()?;
            Ok(Arc::new(RealFile(file)) as Arc<dyn DiskFile>)
        };
        make().inspect_err(|_| {
            let _ = fs::remove_file(&path);
        })
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.still_here()?;
        fs::rename(self.of(from), self.of(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.still_here()?;
        fs::remove_file(self.of(name))
    }

    fn sync_directory(&self) -> io::Result<()> {
        self.directory.sync_all()
    }

    fn has_held_a_store(&self) -> bool {
        self.held_a_store.load(Ordering::SeqCst)
    }

    fn note_store(&self) -> io::Result<()> {
        if self.held_a_store.swap(true, Ordering::SeqCst) {
            return Ok(());
        }
        self.write_lock()?;
        self.lock.sync_all()
    }
}

#[derive(Debug)]
struct RealFile(File);

impl DiskFile for RealFile {
    fn size(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<()> {
        self.0.read_exact_at(buffer, at)
    }

    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.0.write_all_at(bytes, at)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync_data()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_directory_that_was_made_is_made_durable_and_at_least_the_last_one() {
        let name = format!("windlass-directories-{}", std::process::id());
        let base = std::env::temp_dir().canonicalize().expect("there is one").join(name);
        fs::create_dir(&base).expect("it is new");
        let path = base.join("data").join("more").join("jobs");
        let made = RealDisk::make_with_parents(&path).expect("made");
        assert_eq!(made, [base.join("data").join("more"), base.join("data"), base.clone()]);
        let found = RealDisk::make_with_parents(&path).expect("found");
        assert_eq!(found, [base.join("data").join("more")]);
        RealDisk::make_directory(&path).expect("synced");
        fs::remove_dir_all(&base).expect("removed");
    }

    #[test]
    fn a_process_that_is_being_started_does_not_keep_the_lock() {
        let path = std::env::temp_dir().join(format!("windlass-lock-{}", std::process::id()));
        let disk = RealDisk::open(&path).expect("it opens");
        // What a process has between its birth and its program.
        let inherited = disk.lock.try_clone().expect("it can be open twice");
        assert!(matches!(RealDisk::open(&path), Err(OpenError::InUse { .. })));
        drop(disk);
        RealDisk::open(&path).expect("nobody uses it any more");
        drop(inherited);
        fs::remove_dir_all(&path).expect("removed");
    }
}
