//! The disk, as far as the journal needs one: a flat directory of files, a handful of calls.
//!
//! Everything that can go wrong with storage goes wrong behind this trait: a simulated disk tears,
//! drops and reorders what was not synced, fails, fills up and flips bits, and the journal above
//! cannot tell.

use std::fmt;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::OpenError;

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

/// A directory of the machine, held by this process alone for as long as the value lives.
pub struct RealDisk {
    path: PathBuf,
    /// The lock lives with the open file: the system gives it back however the process ends.
    lock: File,
}

const LOCK: &str = "lock";

impl Drop for RealDisk {
    /// Gives the lock up by itself: a process that is being started at this moment still has the
    /// file open, and would keep it until it is another program.
    fn drop(&mut self) {
        let _ = self.lock.unlock();
    }
}

impl RealDisk {
    /// Opens the directory, making it if need be, and takes its lock.
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        Self::make_directory(path).map_err(|error| OpenError::io(path, "open", error))?;
        Self::take(path)
    }

    /// Opens a directory that must exist, and takes its lock.
    pub fn open_existing(path: &Path) -> Result<Self, OpenError> {
        if !path.join(LOCK).exists() {
            return Err(OpenError::NoStore { path: path.display().to_string() });
        }
        Self::take(path)
    }

    fn take(path: &Path) -> Result<Self, OpenError> {
        let failed = |error| OpenError::io(path, "lock", error);
        let options = OpenOptions::new().read(true).write(true).create(true).mode(0o600).clone();
        let mut lock = options.open(path.join(LOCK)).map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut holder = String::new();
                let _ = lock.read_to_string(&mut holder);
                let holder = holder.trim().to_string();
                return Err(OpenError::InUse { path: path.display().to_string(), holder });
            }
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        let program = std::env::args().next().unwrap_or_default();
        let program = Path::new(&program).file_name().unwrap_or_default().to_string_lossy();
        let line = format!("process {} ({program})\n", std::process::id());
        lock.set_len(0).and_then(|()| lock.write_all(line.as_bytes())).map_err(failed)?;
        Ok(Self { path: path.to_path_buf(), lock })
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
        let ours = path.join(LOCK).exists() || fs::read_dir(path)?.next().is_none();
        if !ours || fs::metadata(path)?.permissions().mode() & 0o077 == 0 {
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
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            names.extend(entry?.file_name().into_string());
        }
        Ok(names)
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let file = OpenOptions::new().read(true).write(true).open(self.of(name))?;
        Ok(Arc::new(RealFile(file)))
    }

    fn create(&self, name: &str, bytes: u64) -> io::Result<Arc<dyn DiskFile>> {
        let path = self.of(name);
        let make = || {
            let mut options = OpenOptions::new();
            let file = options.read(true).write(true).create(true).truncate(true).mode(0o600);
            let mut file = file.open(&path)?;
            file.set_permissions(fs::Permissions::from_mode(0o600))?;
            let zeros = vec![0; 1 << 20];
            let mut left = bytes;
            while left > 0 {
                let some = left.min(zeros.len() as u64);
                file.write_all(&zeros[..usize::try_from(some).unwrap_or(zeros.len())])?;
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
        fs::rename(self.of(from), self.of(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.of(name))
    }

    fn sync_directory(&self) -> io::Result<()> {
        File::open(&self.path)?.sync_all()
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
