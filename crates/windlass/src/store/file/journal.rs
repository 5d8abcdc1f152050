//! The journal: commits appended to prezeroed segments, each with its checksum, read back in order.
//!
//! Invariants:
//! - A commit is written after every commit before it, and is on stable storage when it is said to
//!   have landed. It may span segments; it counts only when its last fragment is whole.
//! - A fragment is bound to its segment, its offset, its commit and the opening of the store that
//!   wrote it, so bytes left over from an earlier use of the file can never pass for it.
//! - A fragment says which commit was known to be on stable storage when it was written. That
//!   tells a torn tail, which was never acknowledged, from damage, which is reported and never
//!   skipped: a broken commit that a later fragment knew to be durable is damage.
//! - A segment leaves only after a commit that no longer needs it has landed.
//!
//! `docs/format.md` draws the bytes.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use windlass_core::record::Floors;
use windlass_core::time::Timestamp;

use super::OpenError;
use super::disk::{Disk, DiskFile};

/// The version of the format this program writes. It reads every version up to it.
const VERSION: u32 = 1;
const SEGMENT_MAGIC: [u8; 8] = *b"WINDLASS";
/// Bytes in front of the first fragment of a segment.
pub(super) const SEGMENT_HEADER: u32 = 64;
const MAGIC: u32 = u32::from_le_bytes(*b"wlfr");
/// Bytes in front of the entries of a fragment.
const HEADER: usize = 96;
/// Bytes in front of an entry: its length and its checksum.
const ENTRY_HEADER: usize = 8;
/// The largest segment: an offset within it has 26 bits in a [`Place`].
const SEGMENT_MAX: u32 = 64 << 20;
/// The smallest segment: what a new store takes.
const SEGMENT_MIN: u32 = 4 << 20;
/// The smallest segment that is tried when the disk is almost full.
const SEGMENT_LAST_RESORT: u32 = 1 << 20;
/// How much is read at once from a segment that is no longer written.
const READ_AHEAD: usize = 64 << 10;

const LAST: u32 = 1;
const SEAL: u32 = 2;

/// Where an entry stands, and how many updates lie between it and the base of its chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) segment: u32,
    pub(super) offset: u32,
    pub(super) depth: u8,
}

/// The longest chain of updates; beyond it the job is written whole.
pub(super) const DEPTH_MAX: u8 = 63;

impl Place {
    pub(super) fn pack(self) -> u64 {
        u64::from(self.segment) << 32 | u64::from(self.offset) << 6 | u64::from(self.depth)
    }

    pub(super) fn unpack(packed: u64) -> Self {
        Self {
            segment: (packed >> 32) as u32,
            offset: (packed as u32) >> 6,
            depth: packed as u8 & DEPTH_MAX,
        }
    }
}

/// The disk has no room for another segment.
#[derive(Debug)]
pub(super) struct Full(pub(super) io::Error);

#[derive(Debug)]
struct Segment {
    file: Arc<dyn DiskFile>,
    bytes: u32,
    /// Where the next fragment goes.
    end: u32,
}

/// A fragment that is being put together.
#[derive(Debug)]
struct Staged {
    segment: u32,
    at: u32,
    bytes: Vec<u8>,
    check: crc32fast::Hasher,
}

/// A commit on its way to the disk.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) number: u64,
    /// The next lease token as of this commit.
    pub(super) token: u64,
    /// Segments before this one are no longer needed once it has landed.
    oldest: u32,
    writes: Vec<Write>,
    /// A segment was added: its name must be durable too.
    names: bool,
    disk: Arc<dyn Disk>,
}

#[derive(Debug)]
struct Write {
    segment: u32,
    at: u32,
    bytes: Vec<u8>,
    file: Arc<dyn DiskFile>,
}

impl Batch {
    pub(super) fn bytes(&self) -> u64 {
        self.writes.iter().map(|write| write.bytes.len() as u64).sum()
    }

    /// Hands the bytes to the system. They survive the process, not yet the power.
    pub(super) fn write(&self) -> io::Result<()> {
        self.writes.iter().try_for_each(|write| write.file.write_at(&write.bytes, write.at.into()))
    }

    /// Waits until the bytes survive the power too.
    pub(super) fn sync(&self) -> io::Result<()> {
        if self.names {
            self.disk.sync_directory()?;
        }
        let mut last = None;
        for write in &self.writes {
            if last != Some(write.segment) {
                write.file.sync()?;
                last = Some(write.segment);
            }
        }
        Ok(())
    }
}

/// Segments on a disk, and the commit that is being put together.
#[derive(Debug)]
pub(super) struct Journal {
    disk: Arc<dyn Disk>,
    fixed_size: Option<u32>,
    segments: BTreeMap<u32, Segment>,
    active: u32,
    spares: Vec<(String, u32)>,
    spare_number: u64,
    staged: Vec<Staged>,
    /// Headers of segments that were started since the last commit was taken.
    started: Vec<Write>,
    flying: Vec<Arc<Batch>>,
    next_commit: u64,
    landed: u64,
    opening: u32,
    oldest: u32,
    window: Option<(u32, u32, Vec<u8>)>,
    /// Files that are not part of the journal any more, found when it was opened.
    unused: Vec<String>,
}

/// What reading a journal found.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) floors: Floors,
    pub(super) commits: u64,
    /// Where an unfinished commit was cut off, and what it was.
    pub(super) torn: Option<String>,
}

/// Damage found while reading one entry.
#[derive(Debug)]
pub(super) struct Unreadable(pub(super) String);

impl Journal {
    /// Reads every commit on the disk, oldest first, and answers with a journal that goes on after
    /// the last whole one. `read` is given each entry of each whole commit and where it stands.
    pub(super) fn open(
        disk: Arc<dyn Disk>,
        fixed_size: Option<u32>,
        read: &mut dyn FnMut(Place, &[u8]) -> Result<(), String>,
    ) -> Result<(Self, Found), OpenError> {
        let failed = |error| OpenError::disk("list the files", error);
        let mut numbers = Vec::new();
        let mut leftovers = Vec::new();
        for name in disk.list().map_err(failed)? {
            match parse_name(&name) {
                Some(number) => numbers.push(number),
                None if name.starts_with(SPARE) => leftovers.push(name),
                None => {}
            }
        }
        numbers.sort_unstable();
        let mut journal = Self {
            disk,
            fixed_size,
            segments: BTreeMap::new(),
            active: 0,
            spares: Vec::new(),
            spare_number: 0,
            staged: Vec::new(),
            started: Vec::new(),
            flying: Vec::new(),
            next_commit: 1,
            landed: 0,
            opening: 0,
            oldest: numbers.first().copied().unwrap_or(1),
            window: None,
            unused: Vec::new(),
        };
        let mut scan = Scan::new(numbers.first().copied());
        for number in &numbers {
            let (segment, content) = journal.open_segment(*number)?;
            scan.segment(*number, &content, read)?;
            journal.segments.insert(*number, segment);
        }
        let found = scan.finish(&mut journal)?;
        journal.unused.extend(leftovers);
        Ok((journal, found))
    }

    /// Deletes files that hold nothing that was ever acknowledged, or that are no longer needed,
    /// and begins a new opening. The first commit after it must land before anything is answered.
    pub(super) fn begin(&mut self) -> io::Result<()> {
        for name in std::mem::take(&mut self.unused) {
            self.disk.remove(&name)?;
        }
        self.opening += 1;
        self.disk.sync_directory()
    }

    fn open_segment(&self, number: u32) -> Result<(Segment, Vec<u8>), OpenError> {
        let name = segment_name(number);
        let failed = |error| OpenError::disk("read a segment", error);
        let file = self.disk.open(&name).map_err(failed)?;
        let size = file.size().map_err(failed)?;
        let bytes = u32::try_from(size).ok().filter(|bytes| *bytes <= SEGMENT_MAX);
        let bytes = bytes.ok_or_else(|| OpenError::damaged(&name, 0, "it is too large"))?;
        let mut content = vec![0; bytes as usize];
        file.read_at(&mut content, 0).map_err(failed)?;
        Ok((Segment { file, bytes, end: SEGMENT_HEADER }, content))
    }

    /// Adds an entry to the commit that is being put together. Returns where it will stand and how
    /// many bytes it takes. Fails only if it needs a new segment and the disk is full; then
    /// nothing more can be added and the journal must be reopened.
    pub(super) fn stage(
        &mut self,
        encode: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(Place, u32), Full> {
        self.touch()?;
        let fragment = self.staged.last_mut().expect("a fragment was begun");
        let start = fragment.bytes.len();
        fragment.bytes.extend([0; ENTRY_HEADER]);
        encode(&mut fragment.bytes);
        let length = (fragment.bytes.len() - start - ENTRY_HEADER) as u32;
        let check = crc32fast::hash(&fragment.bytes[start + ENTRY_HEADER..]);
        fragment.bytes[start..start + 4].copy_from_slice(&length.to_le_bytes());
        fragment.bytes[start + 4..start + 8].copy_from_slice(&check.to_le_bytes());
        let end = fragment.at as usize + fragment.bytes.len();
        if end > self.segments[&fragment.segment].bytes as usize {
            let entry = fragment.bytes.split_off(start);
            self.start_segment(entry.len())?;
            let fragment = self.staged.last_mut().expect("a fragment was begun");
            fragment.bytes.extend(entry);
        }
        let fragment = self.staged.last_mut().expect("a fragment was begun");
        let size = ENTRY_HEADER + length as usize;
        let start = fragment.bytes.len() - size;
        fragment.check.update(&fragment.bytes[start..start + ENTRY_HEADER]);
        let offset = fragment.at + start as u32;
        Ok((Place { segment: fragment.segment, offset, depth: 0 }, size as u32))
    }

    /// Begins a commit, if none is being put together: even an empty one says something, the
    /// numbers that were used.
    pub(super) fn touch(&mut self) -> Result<(), Full> {
        if self.staged.is_empty() {
            self.begin_fragment();
        }
        if self.staged.is_empty() { self.start_segment(0) } else { Ok(()) }
    }

    fn begin_fragment(&mut self) {
        let Some(segment) = self.segments.get(&self.active) else { return };
        if segment.end + HEADER as u32 + 64 > segment.bytes {
            return;
        }
        let (segment, at) = (self.active, segment.end);
        let bytes = vec![0; HEADER];
        self.staged.push(Staged { segment, at, bytes, check: crc32fast::Hasher::new() });
    }

    /// Goes on in a new segment with room for an entry of `need` bytes.
    fn start_segment(&mut self, need: usize) -> Result<(), Full> {
        if self.staged.last().is_some_and(|fragment| fragment.bytes.len() == HEADER) {
            self.staged.pop();
        }
        if let Some(fragment) = self.staged.last() {
            let end = padded(fragment.at + fragment.bytes.len() as u32);
            self.segments.entry(fragment.segment).and_modify(|segment| segment.end = end);
        }
        let need = need + SEGMENT_HEADER as usize + HEADER + 8;
        if !self.spares.iter().any(|(_, bytes)| *bytes as usize >= need) {
            self.make_spare(need)?;
        }
        let fits = |(_, bytes): &(String, u32)| *bytes as usize >= need;
        let index = self.spares.iter().position(fits).expect("a spare was made");
        let (spare, bytes) = self.spares.remove(index);
        let number = self.active + 1;
        let name = segment_name(number);
        self.disk.rename(&spare, &name).map_err(Full)?;
        let file = self.disk.open(&name).map_err(Full)?;
        let header = segment_header(number, bytes);
        self.started.push(Write { segment: number, at: 0, bytes: header, file: file.clone() });
        self.segments.insert(number, Segment { file, bytes, end: SEGMENT_HEADER });
        self.active = number;
        self.begin_fragment();
        Ok(())
    }

    /// The size a new segment should have: small stores stay small, large ones keep few files.
    pub(super) fn wanted_size(&self) -> u32 {
        let used: u64 = self.segments.values().map(|segment| u64::from(segment.bytes)).sum();
        let grown = u32::try_from(used.next_power_of_two()).unwrap_or(SEGMENT_MAX);
        self.fixed_size.unwrap_or(grown.clamp(SEGMENT_MIN, SEGMENT_MAX))
    }

    /// Makes a spare file now, smaller than wanted if the disk is almost full.
    pub(super) fn make_spare(&mut self, need: usize) -> Result<(), Full> {
        let need = u32::try_from(need).unwrap_or(SEGMENT_MAX).next_power_of_two();
        let mut bytes = self.wanted_size().max(need);
        loop {
            let name = self.spare_name();
            match self.disk.create(&name, bytes.into()) {
                Ok(_) => {
                    self.spares.push((name, bytes));
                    return Ok(());
                }
                Err(_) if bytes / 2 >= need.max(SEGMENT_LAST_RESORT) => bytes /= 2,
                Err(error) => return Err(Full(error)),
            }
        }
    }

    /// A name for a spare file that nobody else will use.
    pub(super) fn spare_name(&mut self) -> String {
        self.spare_number += 1;
        format!("{SPARE}{}-{}", self.opening, self.spare_number)
    }

    pub(super) fn add_spare(&mut self, name: String, bytes: u32) {
        self.spares.push((name, bytes));
    }

    /// Whether a spare file should be made soon.
    pub(super) fn wants_spare(&self) -> bool {
        let left = self.segments.get(&self.active).map_or(0, |segment| segment.bytes - segment.end);
        self.spares.is_empty() && left < self.wanted_size() / 2
    }

    /// Bytes that can be written without asking the disk for space.
    pub(super) fn room(&self) -> u64 {
        let taken = self.staged.last().map_or(0, |fragment| fragment.bytes.len() as u64);
        let active = self.segments.get(&self.active);
        let left = active.map_or(0, |segment| u64::from(segment.bytes - segment.end));
        let spare: u64 = self.spares.iter().map(|(_, bytes)| u64::from(*bytes)).sum();
        left.saturating_sub(taken) + spare
    }

    /// Whether there is anything in the commit that is being put together.
    pub(super) fn is_staged(&self) -> bool {
        !self.staged.is_empty()
    }

    /// The number of the commit that is being put together, or will be next.
    pub(super) fn next_commit(&self) -> u64 {
        self.next_commit
    }

    pub(super) fn landed_commit(&self) -> u64 {
        self.landed
    }

    /// From this commit on, segments before `oldest` are not needed.
    pub(super) fn let_go_before(&mut self, oldest: u32) {
        self.oldest = oldest;
    }

    /// Closes the commit that is being put together. `synced` is the last commit that is known to
    /// be on stable storage.
    pub(super) fn take(&mut self, floors: Floors, synced: u64) -> Arc<Batch> {
        let mut writes = std::mem::take(&mut self.started);
        let names = !writes.is_empty();
        let staged = std::mem::take(&mut self.staged);
        let count = staged.len();
        for (index, mut fragment) in staged.into_iter().enumerate() {
            let segment = self.segments.get_mut(&fragment.segment).expect("a segment in use");
            let end = fragment.at + fragment.bytes.len() as u32;
            segment.end = padded(end).min(segment.bytes);
            let header = Header {
                segment: fragment.segment,
                offset: fragment.at,
                length: (fragment.bytes.len() - HEADER) as u32,
                check: fragment.check.finalize(),
                commit: self.next_commit,
                synced,
                index: index as u32,
                flags: if index + 1 == count { LAST } else { 0 },
                opening: self.opening,
                oldest: self.oldest,
                floors,
            };
            fragment.bytes[..HEADER].copy_from_slice(&header.encode());
            let (file, at) = (segment.file.clone(), fragment.at);
            writes.push(Write { segment: fragment.segment, at, bytes: fragment.bytes, file });
        }
        let (number, oldest) = (self.next_commit, self.oldest);
        self.next_commit += 1;
        let token = floors.token;
        let batch =
            Arc::new(Batch { number, token, oldest, writes, names, disk: self.disk.clone() });
        self.flying.push(batch.clone());
        batch
    }

    /// A commit is on stable storage. Returns the segments that may leave now.
    pub(super) fn landed(&mut self, batch: &Batch) -> Vec<Retired> {
        self.landed = self.landed.max(batch.number);
        let keep = self.segments.split_off(&batch.oldest);
        let gone = std::mem::replace(&mut self.segments, keep);
        let mut retired = Vec::new();
        for (number, segment) in gone {
            let spare = self.spare_name();
            let reuse = self.spares.is_empty() && segment.bytes == self.wanted_size();
            let (bytes, disk) = (segment.bytes, self.disk.clone());
            retired.push(Retired { name: segment_name(number), spare, bytes, reuse, disk });
        }
        retired
    }

    /// A commit was handed to the system, so it can be read back from the files.
    pub(super) fn written(&mut self, number: u64) {
        self.flying.retain(|batch| batch.number > number);
    }

    /// A mark behind the last commit that says that it is on stable storage: from now on damage to
    /// it is damage. The next commit is written over it.
    pub(super) fn seal(&self, floors: Floors) -> Option<(Arc<dyn DiskFile>, u64, Vec<u8>)> {
        let segment = self.segments.get(&self.active)?;
        if !self.staged.is_empty() || segment.end + HEADER as u32 > segment.bytes {
            return None;
        }
        let header = Header {
            segment: self.active,
            offset: segment.end,
            length: 0,
            check: crc32fast::hash(&[]),
            commit: self.next_commit,
            synced: self.landed,
            index: 0,
            flags: SEAL,
            opening: self.opening,
            oldest: self.oldest,
            floors,
        };
        Some((segment.file.clone(), segment.end.into(), header.encode().to_vec()))
    }

    /// Reads one entry back, from memory if it is not on the disk yet.
    pub(super) fn read(&mut self, place: Place) -> Result<Vec<u8>, Unreadable> {
        let Place { segment, offset, .. } = place;
        for fragment in &self.staged {
            if fragment.segment == segment && fragment.at <= offset {
                return entry_at(&fragment.bytes, (offset - fragment.at) as usize, place);
            }
        }
        for write in self.flying.iter().flat_map(|batch| &batch.writes) {
            let end = write.at + write.bytes.len() as u32;
            if write.segment == segment && (write.at..end).contains(&offset) {
                return entry_at(&write.bytes, (offset - write.at) as usize, place);
            }
        }
        self.read_file(place)
    }

    fn read_file(&mut self, place: Place) -> Result<Vec<u8>, Unreadable> {
        let Place { segment: number, offset, .. } = place;
        if let Some((segment, from, window)) = &self.window
            && *segment == number
            && offset >= *from
        {
            let within = (offset - from) as usize;
            if let Some(length) = length_at(window, within)
                && within + ENTRY_HEADER + length <= window.len()
            {
                return entry_at(window, within, place);
            }
        }
        let unreadable = |why: String| Unreadable(format!("{}: {why}", show(place)));
        let segment = self.segments.get(&number);
        let segment = segment.ok_or_else(|| unreadable("its segment is gone".into()))?;
        let ahead = if number == self.active { 1 << 10 } else { READ_AHEAD };
        let left = (segment.bytes - offset.min(segment.bytes)) as usize;
        let mut bytes = vec![0; ahead.min(left)];
        segment.file.read_at(&mut bytes, offset.into()).map_err(|e| unreadable(e.to_string()))?;
        let length = length_at(&bytes, 0).ok_or_else(|| unreadable("it is cut off".into()))?;
        let whole = ENTRY_HEADER + length;
        if whole > bytes.len() {
            if whole > left {
                return Err(unreadable("its length is out of range".into()));
            }
            bytes.resize(whole, 0);
            let read = segment.file.read_at(&mut bytes, offset.into());
            read.map_err(|e| unreadable(e.to_string()))?;
        }
        let entry = entry_at(&bytes, 0, place);
        if number != self.active {
            self.window = Some((number, offset, bytes));
        }
        entry
    }

    /// The oldest segment, if it is no longer written.
    pub(super) fn oldest_closed(&self) -> Option<u32> {
        let mut numbers = self.segments.range(self.oldest..).map(|(number, _)| *number);
        numbers.next().filter(|number| *number < self.active)
    }

    /// Reads the fragment at `at` of a closed segment; `None` at its end.
    pub(super) fn fragment(&self, number: u32, at: u32) -> Result<Option<Fragment>, Unreadable> {
        let Some(segment) = self.segments.get(&number) else { return Ok(None) };
        if at + HEADER as u32 > segment.end {
            return Ok(None);
        }
        let place = Place { segment: number, offset: at, depth: 0 };
        let unreadable = |why: String| Unreadable(format!("{}: {why}", show(place)));
        let mut header = vec![0; HEADER];
        segment.file.read_at(&mut header, at.into()).map_err(|e| unreadable(e.to_string()))?;
        let header = Header::decode(&header, number, at)
            .ok_or_else(|| unreadable("the head of a commit is damaged".into()))?;
        let mut body = vec![0; header.length as usize];
        let from = at + HEADER as u32;
        segment.file.read_at(&mut body, from.into()).map_err(|e| unreadable(e.to_string()))?;
        check_body(&header, &body).map_err(|why| unreadable(why.into()))?;
        Ok(Some(Fragment {
            segment: number,
            from,
            next: padded(from + header.length),
            body,
            at: 0,
        }))
    }

    /// Bytes taken by segments that hold entries.
    pub(super) fn used(&self) -> u64 {
        let used = self.segments.range(self.oldest..).map(|(number, segment)| {
            u64::from(if *number == self.active { segment.end } else { segment.bytes })
        });
        used.sum()
    }

    pub(super) fn segment_count(&self) -> usize {
        self.segments.len()
    }
}

/// The entries of one fragment, handed out one by one.
#[derive(Debug)]
pub(super) struct Fragment {
    segment: u32,
    from: u32,
    /// Where the next fragment stands.
    pub(super) next: u32,
    body: Vec<u8>,
    at: usize,
}

impl Fragment {
    /// The next entry and where it stands.
    pub(super) fn next_entry(&mut self) -> Option<(Place, &[u8])> {
        let (within, entry) = entries_from(&self.body, self.at).next()?;
        self.at = within + ENTRY_HEADER + entry.len();
        let offset = self.from + within as u32;
        Some((Place { segment: self.segment, offset, depth: 0 }, entry))
    }
}

/// A segment that is no longer needed; its file is used again or deleted.
#[derive(Debug)]
pub struct Retired {
    name: String,
    spare: String,
    bytes: u32,
    reuse: bool,
    disk: Arc<dyn Disk>,
}

impl Retired {
    /// Lets the file go. Returns it as a spare if it is to be used again.
    pub fn let_go(self) -> io::Result<Option<(String, u32)>> {
        if !self.reuse {
            self.disk.remove(&self.name)?;
            self.disk.sync_directory()?;
            return Ok(None);
        }
        self.disk.rename(&self.name, &self.spare)?;
        // Before it can get its next name: a name that comes back must not bring new content.
        self.disk.sync_directory()?;
        Ok(Some((self.spare, self.bytes)))
    }
}

const SPARE: &str = "spare-";

fn segment_name(number: u32) -> String {
    format!("journal-{number:08x}")
}

fn parse_name(name: &str) -> Option<u32> {
    let digits = name.strip_prefix("journal-").filter(|digits| digits.len() == 8)?;
    u32::from_str_radix(digits, 16).ok().filter(|number| segment_name(*number) == name)
}

fn padded(offset: u32) -> u32 {
    offset.next_multiple_of(8)
}

fn show(place: Place) -> String {
    format!("{} at byte {}", segment_name(place.segment), place.offset)
}

fn segment_header(number: u32, bytes: u32) -> Vec<u8> {
    let mut header = Vec::with_capacity(SEGMENT_HEADER as usize);
    header.extend(SEGMENT_MAGIC);
    header.extend(VERSION.to_le_bytes());
    header.extend(number.to_le_bytes());
    header.extend(bytes.to_le_bytes());
    let check = crc32fast::hash(&header);
    header.extend(check.to_le_bytes());
    header.resize(SEGMENT_HEADER as usize, 0);
    header
}

/// What stands in front of a fragment.
#[derive(Clone, Copy, Debug)]
struct Header {
    segment: u32,
    offset: u32,
    length: u32,
    /// Over the lengths and checksums of the entries.
    check: u32,
    commit: u64,
    synced: u64,
    index: u32,
    flags: u32,
    opening: u32,
    oldest: u32,
    floors: Floors,
}

impl Header {
    fn encode(&self) -> [u8; HEADER] {
        let mut to = Vec::with_capacity(HEADER);
        to.extend(MAGIC.to_le_bytes());
        to.extend([0; 4]);
        for number in [self.segment, self.offset, self.length, self.check] {
            to.extend(number.to_le_bytes());
        }
        to.extend(self.commit.to_le_bytes());
        to.extend(self.synced.to_le_bytes());
        for number in [self.index, self.flags, self.opening, self.oldest] {
            to.extend(number.to_le_bytes());
        }
        for number in [self.floors.sequence, self.floors.token, self.floors.event] {
            to.extend(number.to_le_bytes());
        }
        to.extend(self.floors.wall.as_micros().to_le_bytes());
        to.resize(HEADER, 0);
        let check = crc32fast::hash(&to[8..]);
        to[4..8].copy_from_slice(&check.to_le_bytes());
        to.try_into().unwrap_or([0; HEADER])
    }

    /// The header in these bytes, if it belongs at this place.
    fn decode(bytes: &[u8], segment: u32, offset: u32) -> Option<Self> {
        let bytes = bytes.get(..HEADER)?;
        let short = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap_or([0; 4]));
        let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap_or([0; 8]));
        let belongs = short(0) == MAGIC && short(8) == segment && short(12) == offset;
        if !belongs || short(4) != crc32fast::hash(&bytes[8..]) {
            return None;
        }
        Some(Self {
            segment,
            offset,
            length: short(16),
            check: short(20),
            commit: long(24),
            synced: long(32),
            index: short(40),
            flags: short(44),
            opening: short(48),
            oldest: short(52),
            floors: Floors {
                sequence: long(56),
                token: long(64),
                event: long(72),
                wall: Timestamp::from_micros(long(80) as i64),
            },
        })
    }
}

fn length_at(bytes: &[u8], at: usize) -> Option<usize> {
    let length: [u8; 4] = bytes.get(at..at + 4)?.try_into().ok()?;
    Some(u32::from_le_bytes(length) as usize)
}

fn entry_at(bytes: &[u8], at: usize, place: Place) -> Result<Vec<u8>, Unreadable> {
    let unreadable = |why: &str| Unreadable(format!("{}: {why}", show(place)));
    let length = length_at(bytes, at).ok_or_else(|| unreadable("it is cut off"))?;
    let check = length_at(bytes, at + 4).ok_or_else(|| unreadable("it is cut off"))?;
    let from = at + ENTRY_HEADER;
    let body = bytes.get(from..from + length).ok_or_else(|| unreadable("it is cut off"))?;
    if crc32fast::hash(body) as usize != check {
        return Err(unreadable("its checksum does not match"));
    }
    Ok(body.to_vec())
}

/// The entries of a body that was checked, each with its offset, from `at` on.
fn entries_from(body: &[u8], mut at: usize) -> impl Iterator<Item = (usize, &[u8])> {
    std::iter::from_fn(move || {
        let start = at;
        let length = length_at(body, start)?;
        let entry = body.get(start + ENTRY_HEADER..start + ENTRY_HEADER + length)?;
        at = start + ENTRY_HEADER + length;
        Some((start, entry))
    })
}

fn check_body(header: &Header, body: &[u8]) -> Result<(), &'static str> {
    let mut check = crc32fast::Hasher::new();
    let mut at = 0;
    while at < body.len() {
        let head = body.get(at..at + ENTRY_HEADER).ok_or("an entry is cut off")?;
        check.update(head);
        let length = length_at(head, 0).unwrap_or(0);
        let from = at + ENTRY_HEADER;
        let entry = body.get(from..from + length).ok_or("an entry is cut off")?;
        if length_at(head, 4) != Some(crc32fast::hash(entry) as usize) {
            return Err("the checksum of an entry does not match");
        }
        at = from + length;
    }
    if check.finalize() == header.check { Ok(()) } else { Err("its checksum does not match") }
}

/// Reads segments in order and finds where the journal ends.
struct Scan {
    /// Which fragment comes next; commit 0 before the first was read.
    commit: u64,
    index: u32,
    /// Fragments of the commit that is not yet whole.
    pending: Vec<(Header, Vec<u8>)>,
    /// Where the next fragment should stand and does not.
    gap: Option<Gap>,
    /// Something stands behind the gap that cannot count: the tail is torn.
    torn: bool,
    last: Option<Header>,
    /// Where the last whole commit ends.
    tail: Option<(u32, u32)>,
    first_segment: Option<u32>,
    previous_segment: Option<u32>,
    /// Where the fragments of each segment end.
    ends: BTreeMap<u32, u32>,
    /// Segments whose own header cannot be read.
    headless: Vec<(u32, &'static str)>,
    commits: u64,
}

#[derive(Clone, Copy)]
struct Gap {
    segment: u32,
    offset: u32,
    why: &'static str,
}

impl Scan {
    fn new(first_segment: Option<u32>) -> Self {
        Self {
            commit: 0,
            index: 0,
            pending: Vec::new(),
            gap: None,
            torn: false,
            last: None,
            tail: None,
            first_segment,
            previous_segment: None,
            ends: BTreeMap::new(),
            headless: Vec::new(),
            commits: 0,
        }
    }

    fn segment(
        &mut self,
        number: u32,
        content: &[u8],
        read: &mut dyn FnMut(Place, &[u8]) -> Result<(), String>,
    ) -> Result<(), OpenError> {
        if let Some(previous) = self.previous_segment.replace(number)
            && previous + 1 != number
        {
            let missing = segment_name(previous + 1);
            return Err(OpenError::damaged(&missing, 0, "the file is missing"));
        }
        match check_segment_header(number, content) {
            Ok(()) => {}
            Err(SegmentProblem::Newer(version)) => {
                return Err(OpenError::Newer { version, known: VERSION });
            }
            Err(SegmentProblem::Damaged(why)) => self.headless.push((number, why)),
        }
        let mut at = SEGMENT_HEADER;
        while !self.torn {
            let (header, body) = match self.fragment(number, content, at) {
                Ok(next) => next,
                // Unused, torn or damaged: what stands further on will tell.
                Err(why) => {
                    self.gap.get_or_insert(Gap { segment: number, offset: at, why });
                    break;
                }
            };
            self.gap = None;
            at = padded(at + HEADER as u32 + header.length);
            self.take(header, body, at, read)?;
        }
        self.ends.insert(number, at);
        self.look_ahead(number, content, at)
    }

    /// The fragment at `at`, if it is the one that comes next.
    fn fragment(
        &self,
        number: u32,
        content: &[u8],
        at: u32,
    ) -> Result<(Header, Vec<u8>), &'static str> {
        let bytes = content.get(at as usize..).unwrap_or_default();
        let header = Header::decode(bytes, number, at).ok_or("no commit can be read here")?;
        if header.opening < self.newest_opening() {
            return Err("only an older commit stands here");
        }
        // The oldest segment may begin in the middle of a commit.
        if self.commit != 0 && (header.commit, header.index) != (self.commit, self.index) {
            return Err("another commit stands here");
        }
        if header.flags & SEAL != 0 {
            return Err("the journal was sealed here");
        }
        let from = at as usize + HEADER;
        let body = content.get(from..from + header.length as usize);
        let body = body.ok_or("the commit is cut off")?;
        check_body(&header, body)?;
        Ok((header, body.to_vec()))
    }

    fn newest_opening(&self) -> u32 {
        self.last.as_ref().map_or(0, |last| last.opening)
    }

    fn take(
        &mut self,
        header: Header,
        body: Vec<u8>,
        end: u32,
        read: &mut dyn FnMut(Place, &[u8]) -> Result<(), String>,
    ) -> Result<(), OpenError> {
        let last = header.flags & LAST != 0;
        (self.commit, self.index) =
            if last { (header.commit + 1, 0) } else { (header.commit, header.index + 1) };
        let segment = header.segment;
        self.pending.push((header, body));
        if !last {
            return Ok(());
        }
        for (header, body) in std::mem::take(&mut self.pending) {
            let from = header.offset + HEADER as u32;
            for (within, entry) in entries_from(&body, 0) {
                let offset = from + within as u32;
                let place = Place { segment: header.segment, offset, depth: 0 };
                read(place, entry).map_err(|why| {
                    OpenError::damaged(&segment_name(header.segment), offset.into(), &why)
                })?;
            }
            self.last = Some(header);
        }
        self.tail = Some((segment, end));
        self.commits += 1;
        Ok(())
    }

    /// Looks for fragments that cannot count because one before them is missing. One that knew the
    /// missing commit to be durable proves damage; any other only shows that the tail is torn.
    fn look_ahead(&mut self, number: u32, content: &[u8], from: u32) -> Result<(), OpenError> {
        let Some(gap) = self.gap else { return Ok(()) };
        let newest = self.newest_opening();
        for at in (from as usize..content.len().saturating_sub(HEADER - 1)).step_by(8) {
            if content[at..at + 4] != MAGIC.to_le_bytes() {
                continue;
            }
            let Some(header) = Header::decode(&content[at..], number, at as u32) else { continue };
            if header.opening < newest {
                continue;
            }
            if header.synced >= self.commit.max(1) {
                let name = segment_name(gap.segment);
                return Err(OpenError::damaged(&name, gap.offset.into(), gap.why));
            }
            self.torn |= header.flags & SEAL == 0;
        }
        Ok(())
    }

    fn finish(mut self, journal: &mut Journal) -> Result<Found, OpenError> {
        let Some(first) = self.first_segment else { return Ok(Found::default()) };
        let oldest = self.last.map_or(first, |last| last.oldest);
        if oldest < first {
            return Err(OpenError::damaged(&segment_name(oldest), 0, "the file is missing"));
        }
        if self.last.is_none() && first > 1 {
            let name = segment_name(first);
            return Err(OpenError::damaged(&name, SEGMENT_HEADER.into(), "no commit can be read"));
        }
        let (segment, end) = self.tail.unwrap_or((0, SEGMENT_HEADER));
        if let Some((number, why)) = self.headless.iter().find(|(number, _)| *number <= segment) {
            return Err(OpenError::damaged(&segment_name(*number), 0, why));
        }
        let torn_at = self.pending.first().map(|(header, _)| (header.segment, header.offset));
        let torn_at = torn_at.or(self.gap.map(|gap| (gap.segment, gap.offset)));
        let torn = (self.torn || !self.pending.is_empty()).then_some(torn_at).flatten();
        // What stands behind the tail was never acknowledged, and what was let go is not needed.
        let unused = |number: &u32| *number > segment || *number < oldest;
        journal.unused =
            journal.segments.keys().copied().filter(unused).map(segment_name).collect();
        journal.segments.retain(|number, _| !unused(number));
        self.ends.insert(segment, end);
        for (number, kept) in &mut journal.segments {
            kept.end = self.ends.get(number).map_or(kept.bytes, |end| *end).min(kept.bytes);
        }
        journal.active = segment;
        journal.oldest = oldest;
        journal.next_commit = self.last.map_or(1, |last| last.commit + 1);
        journal.landed = journal.next_commit - 1;
        journal.opening = self.last.map_or(0, |last| last.opening);
        Ok(Found {
            floors: self.last.map_or_else(Floors::default, |last| last.floors),
            commits: self.commits,
            torn: torn
                .map(|(segment, offset)| format!("{} at byte {offset}", segment_name(segment))),
        })
    }
}

enum SegmentProblem {
    Newer(u32),
    Damaged(&'static str),
}

fn check_segment_header(number: u32, content: &[u8]) -> Result<(), SegmentProblem> {
    let damaged = |why| Err(SegmentProblem::Damaged(why));
    let Some(head) = content.get(..SEGMENT_HEADER as usize) else {
        return damaged("it is shorter than its header");
    };
    let short = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().unwrap_or([0; 4]));
    if head[..8] != SEGMENT_MAGIC || short(20) != crc32fast::hash(&head[..20]) {
        return damaged("its header is damaged");
    }
    if short(8) > VERSION {
        return Err(SegmentProblem::Newer(short(8)));
    }
    if short(12) != number {
        return damaged("its header belongs to another segment");
    }
    if short(16) as usize != content.len() {
        return damaged("it does not have the size its header says");
    }
    Ok(())
}
