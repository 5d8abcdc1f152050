//! A disk in memory that does what real ones do when the power fails, and worse.
//!
//! It knows of every byte and every name whether it was synced. [`SimDisk::crash`] leaves what a
//! power loss leaves; [`SimDisk::kill`] what the end of a process leaves, which is everything, but
//! no more durable than it was. Calls fail, the disk fills up, bits flip. All from one seed.

mod content;
mod mount;
mod names;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};

pub use content::{Loss, Wreck};
pub use names::NameLoss;
use windlass::store::file::Disk;

use self::content::Content;
use self::mount::{Mount, lock};
use self::names::{FileNumber, Names};
use crate::random::Random;

/// A call that changes the disk or makes changes durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Making a file.
    Create,
    /// Giving it another name.
    Rename,
    /// Deleting it.
    Remove,
    /// Making names durable.
    SyncDirectory,
    /// Writing bytes.
    Write,
    /// Making them durable.
    Sync,
}

/// When within a call the power is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// Before it did anything.
    Before,
    /// When a file was made in part, some bytes were handed over, a sync was not through.
    During,
    /// When it had done everything, and before anyone was told.
    After,
}

impl Moment {
    /// All three.
    pub const ALL: [Moment; 3] = [Moment::Before, Moment::During, Moment::After];
}

/// How often calls fail, in so many of 100,000.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// Of all writes; some of the bytes may have been written.
    pub write: u64,
    /// Of all syncs; every other time the system gives up on what it could not write.
    pub sync: u64,
    /// Of all syncs of the directory.
    pub sync_directory: u64,
    /// Of all files that are made.
    pub create: u64,
    /// Of all renames and removals.
    pub rename: u64,
    /// Of all reads.
    pub read: u64,
}

impl Faults {
    fn strike(&self, call: Call, random: &mut Random) -> bool {
        let rate = match call {
            Call::Create => self.create,
            Call::Rename | Call::Remove => self.rename,
            Call::SyncDirectory => self.sync_directory,
            Call::Write => self.write,
            Call::Sync => self.sync,
        };
        rate > 0 && random.below(100_000) < rate
    }

    fn strike_read(&self, random: &mut Random) -> bool {
        self.read > 0 && random.below(100_000) < self.read
    }
}

/// The power is lost at this call.
#[derive(Clone, Copy, Debug)]
struct Trap {
    at: u64,
    when: Moment,
}

#[derive(Clone, Debug)]
struct State {
    random: Random,
    files: BTreeMap<FileNumber, Content>,
    names: Names,
    next_file: FileNumber,
    /// Handles of an earlier process are dead.
    boot: u64,
    dead: bool,
    trap: Option<Trap>,
    faults: Faults,
    capacity: Option<u64>,
    calls: u64,
    /// Calls that failed.
    failed: u64,
    /// Syncs that failed and gave up on what they could not write.
    gave_up: u64,
    /// Files that hold old bytes and got a new name in the journal.
    reused: u64,
    was_full: bool,
    /// What was written since the last mark but one.
    recent: Vec<(FileNumber, Range<usize>)>,
    marked: usize,
    /// A byte that was damaged and not written since.
    damaged: Option<(FileNumber, usize)>,
    /// What was called, if anyone wants to know.
    log: Option<Vec<String>>,
}

impl State {
    fn note(&mut self, line: impl FnOnce() -> String) {
        if let Some(log) = &mut self.log {
            log.push(line());
        }
    }

    fn used(&self) -> u64 {
        self.names.all().map(|(_, file)| self.files[&file].now.len() as u64).sum()
    }

    fn is_reused(&self, file: FileNumber, to: &str) -> bool {
        to.starts_with("journal-") && self.files[&file].now.iter().take(8).any(|byte| *byte != 0)
    }
}

/// See the module documentation.
#[derive(Clone, Debug)]
pub struct SimDisk {
    shared: Arc<Mutex<State>>,
}

/// One bit that was flipped, or one file that was cut.
#[derive(Clone, Debug)]
pub struct Damage {
    file: FileNumber,
    at: usize,
    /// What stood there, and how many bytes stand there now.
    was: Vec<u8>,
    now_bytes: usize,
    /// In words.
    pub place: String,
}

impl SimDisk {
    /// An empty disk.
    pub fn new(random: Random) -> Self {
        let state = State {
            random,
            files: BTreeMap::new(),
            names: Names::default(),
            next_file: 0,
            boot: 0,
            dead: false,
            trap: None,
            faults: Faults::default(),
            capacity: None,
            calls: 0,
            failed: 0,
            gave_up: 0,
            reused: 0,
            was_full: false,
            recent: Vec::new(),
            marked: 0,
            damaged: None,
            log: None,
        };
        Self { shared: Arc::new(Mutex::new(state)) }
    }

    /// The disk for one process. Handles of processes before it stop working.
    pub fn mount(&self) -> Arc<dyn Disk> {
        let mut state = lock(&self.shared);
        state.boot += 1;
        Arc::new(Mount { shared: self.shared.clone(), boot: state.boot })
    }

    /// Notes every call from now on.
    pub fn keep_log(&self) {
        lock(&self.shared).log.get_or_insert_default();
    }

    /// The calls since this was last asked, if they are noted.
    pub fn take_log(&self) -> Vec<String> {
        lock(&self.shared).log.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Another disk with the same content, on which nothing fails.
    pub fn fork(&self) -> SimDisk {
        let mut state = lock(&self.shared).clone();
        state.faults = Faults::default();
        state.trap = None;
        state.dead = false;
        SimDisk { shared: Arc::new(Mutex::new(state)) }
    }

    /// Lets calls fail this often from now on; returns how often they did.
    pub fn set_faults(&self, faults: Faults) -> Faults {
        std::mem::replace(&mut lock(&self.shared).faults, faults)
    }

    /// Bytes that fit on the disk; `None` for no end.
    pub fn set_capacity(&self, capacity: Option<u64>) {
        lock(&self.shared).capacity = capacity;
    }

    /// Bytes taken by files.
    pub fn used(&self) -> u64 {
        lock(&self.shared).used()
    }

    /// Loses the power at the call with this number.
    pub fn set_trap(&self, at: u64, when: Moment) {
        lock(&self.shared).trap = Some(Trap { at, when });
    }

    /// Loses the power at no call.
    pub fn clear_trap(&self) {
        lock(&self.shared).trap = None;
    }

    /// Calls made so far.
    pub fn calls(&self) -> u64 {
        lock(&self.shared).calls
    }

    /// Calls that failed so far.
    pub fn failed(&self) -> u64 {
        lock(&self.shared).failed
    }

    /// Failed syncs that dropped what they could not write.
    pub fn gave_up(&self) -> u64 {
        lock(&self.shared).gave_up
    }

    /// Files that came back into the journal with their old content.
    pub fn reused(&self) -> u64 {
        lock(&self.shared).reused
    }

    /// Whether a file could not be made for want of space since this was last asked.
    pub fn was_full(&self) -> bool {
        std::mem::take(&mut lock(&self.shared).was_full)
    }

    /// Whether the power was lost at a trap. Nothing works until [`SimDisk::crash`].
    pub fn is_dead(&self) -> bool {
        lock(&self.shared).dead
    }

    /// The power is lost and comes back.
    pub fn crash(&self, loss: Loss, names: NameLoss) -> (Wreck, usize) {
        let mut state = lock(&self.shared);
        let mut wreck = Wreck::default();
        let State { files, random, .. } = &mut *state;
        for content in files.values_mut() {
            let part = content.crash(loss, random);
            wreck.dropped += part.dropped;
            wreck.torn += part.torn;
            wreck.kept += part.kept;
        }
        let State { names: all, random, .. } = &mut *state;
        let names_lost = all.crash(names, random);
        let named: Vec<FileNumber> = state.names.all().map(|(_, file)| file).collect();
        state.files.retain(|file, _| named.contains(file));
        state.boot += 1;
        state.dead = false;
        state.trap = None;
        (wreck, names_lost)
    }

    /// The process ends; the system keeps everything. It may or may not forget what it has given
    /// up writing.
    pub fn kill(&self) {
        let mut state = lock(&self.shared);
        let State { files, random, .. } = &mut *state;
        for content in files.values_mut() {
            if random.coin() {
                content.evict();
            }
        }
        state.boot += 1;
        state.dead = false;
        state.trap = None;
    }

    /// Time passes in peace: everything reaches the platter.
    pub fn settle(&self) {
        let mut state = lock(&self.shared);
        state.files.values_mut().for_each(Content::settle);
        state.names.sync();
    }

    /// Files with bytes that were not synced.
    pub fn dirty_files(&self) -> usize {
        lock(&self.shared).files.values().filter(|content| content.is_dirty()).count()
    }

    /// A commit begins: what was written before the last one is old.
    pub fn mark(&self) {
        let mut state = lock(&self.shared);
        let old = std::mem::take(&mut state.marked);
        state.recent.drain(..old);
        state.marked = state.recent.len();
    }

    /// Flips a bit in a file of the journal; if the last writes are `spared`, not in those.
    pub fn flip(&self, spared: bool, random: &mut Random) -> Option<Damage> {
        let mut state = lock(&self.shared);
        let (name, file) = state.pick_journal(random)?;
        let size = state.files[&file].now.len();
        // Most of a file may be unused; damage there says little.
        let at = (0..8).map(|_| random.index(size)).find(|at| state.files[&file].now[*at] != 0);
        let at = at.unwrap_or_else(|| random.index(size));
        let hit =
            |(other, range): &(FileNumber, Range<usize>)| *other == file && range.contains(&at);
        if spared && state.recent.iter().any(hit) {
            return None;
        }
        let was = state.files[&file].now[at];
        let is = was ^ (1 << random.below(8));
        state.files.get_mut(&file)?.now[at] = is;
        state.damaged = Some((file, at));
        let place = format!("a bit flipped in {name} at byte {at}");
        Some(Damage { file, at, was: vec![was], now_bytes: 1, place })
    }

    /// Cuts a file of the journal short.
    pub fn truncate(&self, random: &mut Random) -> Option<Damage> {
        let mut state = lock(&self.shared);
        let (name, file) = state.pick_journal(random)?;
        let content = state.files.get_mut(&file)?;
        let at = random.index(content.now.len());
        let was = content.now.split_off(at);
        state.damaged = Some((file, at));
        let place = format!("{name} cut to {at} bytes");
        Some(Damage { file, at, was, now_bytes: 0, place })
    }

    /// Undoes damage, unless something has been written over it.
    pub fn mend(&self, damage: &Damage) {
        let mut state = lock(&self.shared);
        if state.damaged.take() != Some((damage.file, damage.at)) {
            return;
        }
        let Some(content) = state.files.get_mut(&damage.file) else { return };
        content.now.splice(damage.at..damage.at + damage.now_bytes, damage.was.iter().copied());
    }
}

impl State {
    fn pick_journal(&self, random: &mut Random) -> Option<(String, FileNumber)> {
        let journal: Vec<(String, FileNumber)> = self
            .names
            .all()
            .filter(|(name, _)| name.starts_with("journal-"))
            .map(|(name, file)| (name.clone(), file))
            .collect();
        (!journal.is_empty()).then(|| random.pick(&journal).clone())
    }
}
