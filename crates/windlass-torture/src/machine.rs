//! The machine under the harness: places for stores, filesystems in files, tools that may be
//! missing. Whatever is made here is unmade when its value is dropped.

use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context;

/// Something this machine lacks.
#[derive(Debug)]
pub(crate) struct Missing(pub(crate) String);

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "this machine lacks {}", self.0)
    }
}

impl std::error::Error for Missing {}

/// Where the harness may work.
pub(crate) struct Machine {
    /// On a disk.
    scratch: PathBuf,
    /// In memory if possible, so that a filesystem in a file is as quick as can be.
    memory: PathBuf,
    next: AtomicU64,
}

impl Machine {
    pub(crate) fn new(scratch: PathBuf, memory: PathBuf) -> Self {
        Self { scratch, memory, next: AtomicU64::new(1) }
    }

    /// A place for what must survive the victim.
    pub(crate) fn aside(&self) -> &Path {
        &self.scratch
    }

    fn fresh(&self, name: &str) -> String {
        format!("{name}-{}", self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// A path on the disk where there is nothing yet.
    pub(crate) fn directory(&self, name: &str) -> PathBuf {
        self.scratch.join(self.fresh(name))
    }

    /// A path in memory where there is nothing yet.
    pub(crate) fn memory(&self, name: &str) -> PathBuf {
        self.memory.join(self.fresh(name))
    }

    /// Refuses to go on without being able to mount filesystems.
    pub(crate) fn needs_mounts(&self) -> anyhow::Result<()> {
        let root = Command::new("id").arg("-u").output();
        let root = root.is_ok_and(|output| output.stdout.trim_ascii() == b"0");
        if !root {
            return Err(Missing("root, to mount filesystems".to_string()).into());
        }
        self.needs_tool("mkfs.ext4", "e2fsprogs")?;
        if !Path::new("/dev/loop-control").exists() {
            return Err(Missing("loop devices".to_string()).into());
        }
        Ok(())
    }

    /// Refuses to go on without a program.
    pub(crate) fn needs_tool(&self, tool: &str, package: &str) -> anyhow::Result<()> {
        let found = Command::new("sh").arg("-c").arg(format!("command -v {tool}")).output();
        if found.is_ok_and(|output| output.status.success()) {
            return Ok(());
        }
        Err(Missing(format!("{tool} (package {package})")).into())
    }

    /// A new filesystem of this type and size in a file in memory, mounted.
    pub(crate) fn filesystem(&self, kind: &str, bytes: u64) -> anyhow::Result<Mounted> {
        let image = self.memory(kind);
        make_filesystem(&image, kind, bytes)?;
        self.mount(&image)
    }

    /// Mounts the filesystem in a file.
    pub(crate) fn mount(&self, image: &Path) -> anyhow::Result<Mounted> {
        let at = self.scratch.join(self.fresh("mount"));
        std::fs::create_dir_all(&at)?;
        let mounted = Mounted { at, image: image.to_path_buf() };
        run("mount", [OsStr::new("-o"), "loop".as_ref(), image.as_ref(), mounted.at.as_ref()])?;
        Ok(mounted)
    }
}

/// Makes a filesystem in a new sparse file.
pub(crate) fn make_filesystem(image: &Path, kind: &str, bytes: u64) -> anyhow::Result<()> {
    std::fs::File::create(image)?.set_len(bytes)?;
    match kind {
        // Nothing is left to be done in the background, where it would race what is tested.
        "ext4" => {
            let lazy = "lazy_itable_init=0,lazy_journal_init=0";
            run("mkfs.ext4", ["-q".as_ref(), "-F".as_ref(), "-E".as_ref(), lazy.as_ref(), image])
        }
        other => run(&format!("mkfs.{other}"), ["-q".as_ref(), image]),
    }
}

/// A mounted filesystem. Dropping it unmounts it.
pub(crate) struct Mounted {
    pub(crate) at: PathBuf,
    pub(crate) image: PathBuf,
}

impl Mounted {
    pub(crate) fn unmount(self) -> anyhow::Result<()> {
        let unmounted = self.try_unmount();
        std::mem::forget(self);
        unmounted
    }

    fn try_unmount(&self) -> anyhow::Result<()> {
        // Whoever was killed a moment ago may still hold it.
        let mut tries = 0;
        while let Err(error) = run("umount", [&self.at]) {
            tries += 1;
            if tries == 50 {
                return Err(error);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.try_unmount().is_err() {
            let _ = run("umount", [OsStr::new("-l"), self.at.as_ref()]);
        }
    }
}

/// Runs a program that must succeed.
pub(crate) fn run<A: AsRef<OsStr>>(
    program: &str,
    arguments: impl IntoIterator<Item = A>,
) -> anyhow::Result<()> {
    let mut command = Command::new(program);
    command.args(arguments);
    let output = command.output().with_context(|| format!("cannot start {program}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(output.status.success(), "{command:?} failed: {}", said.trim());
    Ok(())
}
