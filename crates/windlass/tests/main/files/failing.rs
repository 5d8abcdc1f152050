//! A disk whose calls can be made to fail, to wait, or to find no room.

use super::*;

/// A disk whose calls can be made to fail.
#[derive(Debug)]
pub(super) struct Failing {
    disk: RealDisk,
    switches: Arc<Switches>,
}

#[derive(Debug, Default)]
pub(super) struct Switches {
    pub(super) sync_fails: AtomicBool,
    pub(super) write_fails: AtomicBool,
    pub(super) rename_fails: AtomicBool,
    pub(super) list_fails_once: AtomicBool,
    pub(super) full: AtomicBool,
    /// Bytes that all files may take; 0 for no bound.
    pub(super) capacity: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) syncs: AtomicU64,
    pub(super) gate: Arc<Gate>,
    pub(super) write_gate: Arc<Gate>,
    pub(super) large_write_fails: AtomicBool,
}

impl Switches {
    fn check(&self, switch: &AtomicBool) -> io::Result<()> {
        if switch.load(Ordering::SeqCst) { Err(io::Error::other("EIO")) } else { Ok(()) }
    }
}

/// Writes of at least so many bytes can be stopped: no mark and no small commit among them.
pub(super) const LARGE: usize = 1_000;

#[derive(Debug)]
struct FailingFile {
    file: Arc<dyn DiskFile>,
    switches: Arc<Switches>,
}

impl Failing {
    pub(super) fn open(path: &Path) -> (Arc<Self>, Arc<Switches>) {
        let switches = Arc::new(Switches::default());
        switches.gate.set(true);
        switches.write_gate.set(true);
        let disk = RealDisk::open(path).expect("it is nobody's");
        (Arc::new(Self { disk, switches: switches.clone() }), switches)
    }

    /// Bytes of all files.
    pub(super) fn taken(&self) -> io::Result<u64> {
        let names = self.disk.list()?;
        names.iter().map(|name| self.disk.open(name)?.size()).sum()
    }

    fn wrap(&self, file: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
        Arc::new(FailingFile { file, switches: self.switches.clone() })
    }
}

impl Disk for Failing {
    fn list(&self) -> io::Result<Vec<String>> {
        if self.switches.list_fails_once.swap(false, Ordering::SeqCst) {
            return Err(io::Error::other("EIO"));
        }
        self.disk.list()
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        Ok(self.wrap(self.disk.open(name)?))
    }

    fn create(&self, name: &str, bytes: u64) -> io::Result<Arc<dyn DiskFile>> {
        let capacity = self.switches.capacity.load(Ordering::SeqCst);
        let fits = capacity == 0 || self.taken()? + bytes <= capacity;
        if self.switches.full.load(Ordering::SeqCst) || !fits {
            self.switches.refused.fetch_add(1, Ordering::SeqCst);
            return Err(io::Error::from(io::ErrorKind::StorageFull));
        }
        Ok(self.wrap(self.disk.create(name, bytes)?))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.switches.check(&self.switches.rename_fails)?;
        self.disk.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.disk.remove(name)
    }

    fn sync_directory(&self) -> io::Result<()> {
        self.disk.sync_directory()
    }
}

impl DiskFile for FailingFile {
    fn size(&self) -> io::Result<u64> {
        self.file.size()
    }

    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<()> {
        self.file.read_at(buffer, at)
    }

    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        if bytes.len() >= LARGE {
            self.switches.write_gate.pass();
            if self.switches.large_write_fails.load(Ordering::SeqCst) {
                return Err(io::Error::other("EIO"));
            }
        }
        self.switches.check(&self.switches.write_fails)?;
        self.file.write_at(bytes, at)
    }

    fn sync(&self) -> io::Result<()> {
        self.switches.syncs.fetch_add(1, Ordering::SeqCst);
        self.switches.gate.pass();
        self.switches.check(&self.switches.sync_fails)?;
        self.file.sync()
    }
}

/// The writer's syncs wait for this.
#[derive(Debug, Default)]
pub(super) struct Gate {
    open: Mutex<bool>,
    opened: Condvar,
    pub(super) reached: tokio::sync::Notify,
}

impl Gate {
    pub(super) fn set(&self, open: bool) {
        *self.open.lock().expect("nobody panics here") = open;
        self.opened.notify_all();
    }

    pub(super) fn pass(&self) {
        self.reached.notify_one();
        let mut open = self.open.lock().expect("nobody panics here");
        while !*open {
            open = self.opened.wait(open).expect("nobody panics here");
        }
    }
}
