//! A temporary directory that does not outlive the test process, however that ends.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

/// An own directory, removed when dropped.
#[derive(Debug)]
pub(crate) struct Directory {
    path: PathBuf,
    guard: Child,
}

/// Waits until the test process is gone, then removes the directory. Servers die at the same
/// moment, and one that still writes may put a file back, so it looks again.
const GUARD: &str = r#"cat; for try in 1 2 3 4 5; do rm -rf "$0"; sleep 0.2; done"#;

impl Directory {
    pub(crate) fn new(server: &str) -> Self {
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let (process, number) = (std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        let name = format!("windlass-{server}-{process}-{number}");
        let path = std::env::temp_dir().join(name);
        // What an earlier process of the same number may have left.
        let _ = fs::remove_dir_all(&path);
        fs::DirBuilder::new().mode(0o700).create(&path).expect("the temporary directory is ours");
        let guard = Command::new("sh")
            .args(["-c", GUARD])
            .arg(&path)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // A signal to the whole group, such as Ctrl-C, must leave it alone.
            .process_group(0)
            .spawn();
        Self { path, guard: guard.expect("there is a shell") }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Gives the directory to the user that a server runs as.
    pub(crate) fn give_to(&self, user: &User) {
        chown(&self.path, Some(user.id), Some(user.group)).expect("root may give it away");
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = self.guard.kill();
        let _ = self.guard.wait();
        if let Err(error) = fs::remove_dir_all(&self.path) {
            eprintln!("{} is left behind: {error}", self.path.display());
        }
    }
}

/// A user of this machine.
#[derive(Clone, Debug)]
pub(crate) struct User {
    pub(crate) id: u32,
    pub(crate) group: u32,
}

impl User {
    /// Looks a user up by name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        let users = fs::read_to_string("/etc/passwd").ok()?;
        let mut fields =
            users.lines().map(|line| line.split(':')).find(|f| f.clone().next() == Some(name))?;
        let id = fields.nth(2)?.parse().ok()?;
        Some(Self { id, group: fields.next()?.parse().ok()? })
    }
}

/// Whether this process is root's.
pub(crate) fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}
