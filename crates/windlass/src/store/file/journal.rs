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
//! - Putting a commit together never fails. If the disk is full, its last segments have no file
//!   yet, and it is not written before they do.
//!
//! `docs/format.md` draws the bytes.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Arc;

use windlass_core::record::NextIds;

use super::OpenError;
use super::disk::{Disk, DiskFile};
use super::layout::{
    ENTRY_HEADER, FORMAT, HEADER, Header, LAST, Place, SEAL, SEGMENT_HEADER, SPARE, Unreadable,
    VERSION, check_body, entries_from, entry_at, last_header, length_at, padded, parse_name,
    segment_header, segment_name, show,
};
use super::scan::{EntryVisitor, Found, Scan};

/// The largest segment: an offset within it has 26 bits in a [`Place`].
pub(super) const SEGMENT_MAX: u32 = 64 << 20;
/// The smallest segment that can be asked for: a commit without large jobs fits into it.
pub(super) const SEGMENT_LEAST: u32 = 4 << 10;
/// The smallest segment: what a new store takes.
const SEGMENT_MIN: u32 = 4 << 20;
/// The smallest segment that is tried when the disk is almost full.
const SEGMENT_LAST_RESORT: u32 = 1 << 20;
/// Bytes of a segment that an entry in it cannot have.
const OVERHEAD: usize = SEGMENT_HEADER as usize + 2 * HEADER + 8;
/// Buffers that are kept for the next commits, and how large each may be.
const BUFFERS: usize = 4;
const BUFFER_MAX: usize = 4 << 20;
/// How much is read at once from a segment that is no longer written.
const READ_AHEAD: usize = 64 << 10;

/// The disk has no room for another segment.
#[derive(Debug)]
pub(super) struct Full(pub(super) io::Error);

impl Full {
    /// Whether it may pass by itself: when there is room again, or a file handle.
    pub(super) fn may_pass(&self) -> bool {
        const TOO_MANY_FILES: [i32; 2] = [23, 24];
        let Full(error) = self;
        matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
            || error.raw_os_error().is_some_and(|code| TOO_MANY_FILES.contains(&code))
    }
}

#[derive(Debug)]
struct Segment {
    /// `None` while the disk is full.
    file: Option<Arc<dyn DiskFile>>,
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
pub(super) struct CommitBytes {
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

impl CommitBytes {
    pub(super) fn bytes(&self) -> u64 {
        self.writes.iter().map(|write| write.bytes.len() as u64).sum()
    }

    /// Hands the bytes to the system. They survive the process, not yet the power.
    pub(super) fn write(&self) -> io::Result<()> {
        self.writes.iter().try_for_each(|write| write.file.write_at(&write.bytes, write.at.into()))
    }

    /// Waits until the bytes of these commits survive the power too.
    pub(super) fn sync<'a>(
        batches: impl Iterator<Item = &'a CommitBytes> + Clone,
    ) -> io::Result<()> {
        if let Some(batch) = batches.clone().find(|batch| batch.names) {
            batch.disk.sync_directory()?;
        }
        let mut last = None;
        for write in batches.flat_map(|batch| &batch.writes) {
            // Commits follow each other through the segments.
            if last.replace(write.segment) != Some(write.segment) {
                write.file.sync()?;
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
    /// Buffers of commits that have landed, to be filled again.
    buffers: Vec<Vec<u8>>,
    /// Headers of segments that were started since the last commit was taken.
    started: Vec<Write>,
    /// Segments without a file.
    unbacked: Vec<u32>,
    /// Commits that are not in the files yet.
    flying: Vec<Arc<CommitBytes>>,
    /// Commits that are not on stable storage yet: their numbers, and where they begin.
    unlanded: VecDeque<(u64, u32, u32)>,
    next_commit: u64,
    landed: u64,
    /// Bytes of all commits that were taken since it was opened.
    written: u64,
    opening: u32,
    oldest: u32,
    /// Where one may begin to read, packed; 0 for the beginning.
    begin: u64,
    /// Bytes that were written since there.
    since_begin: u64,
    window: Option<(u32, u32, Vec<u8>)>,
    /// Files that are not part of the journal any more, found when it was opened.
    unused: Vec<String>,
    used_before: bool,
}

impl Journal {
    /// Reads every commit on the disk, oldest first, and answers with a journal that goes on after
    /// the last whole one. `read` is given each entry of each whole commit and where it stands.
    /// Unless it is to be thorough, it begins at the last checkpoint.
    pub(super) fn open(
        disk: Arc<dyn Disk>,
        fixed_size: Option<u32>,
        thorough: bool,
        read: EntryVisitor<'_>,
    ) -> Result<(Self, Found), OpenError> {
        let failed = |error| OpenError::disk("list the files", error);
        let mut numbers = Vec::new();
        let mut leftovers = Vec::new();
        let mut used_before = false;
        for name in disk.list().map_err(failed)? {
            match parse_name(&name) {
                Some(number) => numbers.push(number),
                None if name.starts_with(SPARE) => leftovers.push(name),
                None => used_before |= name == FORMAT,
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
            buffers: Vec::new(),
            started: Vec::new(),
            unbacked: Vec::new(),
            flying: Vec::new(),
            unlanded: VecDeque::new(),
            next_commit: 1,
            landed: 0,
            written: 0,
            opening: 0,
            oldest: numbers.first().copied().unwrap_or(1),
            begin: 0,
            since_begin: 0,
            window: None,
            unused: Vec::new(),
            used_before,
        };
        let (left, needed) = numbers.split_at(journal.beginning(&numbers)?);
        leftovers.extend(left.iter().copied().map(segment_name));
        let begin = if thorough { None } else { journal.find_begin(needed)? };
        let mut scan = Scan::new(needed);
        for number in needed {
            // What lies before the beginning is read when someone asks for it.
            let skipped = begin.is_some_and(|begin| *number < begin.segment);
            let (segment, content) = journal.open_segment(*number, !skipped)?;
            scan.head(*number, &content, segment.bytes)?;
            if !skipped {
                let from = begin.filter(|begin| begin.segment == *number);
                scan.segment(*number, from.map(|begin| begin.offset), &content, read)?;
            }
            journal.segments.insert(*number, segment);
        }
        if numbers.is_empty() && !used_before && journal.disk.has_held_a_store() {
            let why = "every segment is gone, and so is `format`, but the directory has held a \
                       store; if it is to be a new one, remove what is left in it";
            return Err(OpenError::damaged("the journal", 0, why));
        }
        let found = scan.finish(used_before)?;
        journal.resume(&found);
        journal.unused.extend(leftovers);
        Ok((journal, found))
    }

    /// Which of these segments is the first of the journal. They are numbered without a gap, except
    /// that before it may stand some that could not leave when they were let go, and behind it some
    /// that belong to a commit that never landed. So if there is a gap, the journal begins behind
    /// the last one from where everything that is needed can be read.
    fn beginning(&self, numbers: &[u32]) -> Result<usize, OpenError> {
        let gap = |index: &usize| numbers[index - 1] + 1 != numbers[*index];
        for start in (1..numbers.len()).rev().filter(gap) {
            let mut scan = Scan::new(&numbers[start..]);
            let mut whole = true;
            for number in &numbers[start..] {
                let (segment, content) = self.open_segment(*number, true)?;
                whole &= scan.head(*number, &content, segment.bytes).is_ok();
                whole &= scan.segment(*number, None, &content, &mut |_, _| Ok(())).is_ok();
            }
            if whole && scan.finish(true).is_ok() {
                return Ok(start);
            }
        }
        Ok(0)
    }

    /// Goes on where the scan found the end. What stands behind it was never acknowledged, and
    /// what was let go is not needed.
    fn resume(&mut self, found: &Found) {
        let Found { active, oldest, .. } = *found;
        let unused = |number: &u32| *number > active || *number < oldest;
        self.unused = self.segments.keys().copied().filter(unused).map(segment_name).collect();
        self.segments.retain(|number, _| !unused(number));
        for (number, segment) in &mut self.segments {
            segment.end = found.ends.get(number).map_or(segment.bytes, |end| *end);
            segment.end = segment.end.min(segment.bytes);
        }
        self.active = active;
        self.oldest = oldest;
        self.begin = found.begin;
        self.since_begin = found.bytes;
        self.next_commit = found.commit + 1;
        self.landed = found.commit;
        self.opening = found.opening;
    }

    /// Begins a new opening: makes the last commits durable, then deletes files that they no longer
    /// need, or that hold nothing that was ever acknowledged. The first commit after it must land
    /// before anything is answered.
    pub(super) fn begin(&mut self, found: &Found) -> io::Result<()> {
        if !found.unproven.is_empty() {
            self.disk.sync_directory()?;
            self.secure(found)?;
        }
        for name in std::mem::take(&mut self.unused) {
            self.disk.remove(&name)?;
        }
        self.opening += 1;
        self.disk.sync_directory()
    }

    /// Makes the last commits durable before anything is built on them. That they can be read only
    /// says that they were handed to the system, whose process may have ended before the sync. They
    /// are written again, because after a sync that failed a system shows what it will never write.
    fn secure(&self, found: &Found) -> io::Result<()> {
        let mut touched = BTreeMap::new();
        for fragment in &found.unproven {
            let Some(segment) = self.segments.get(&fragment.segment) else { continue };
            let Some(file) = &segment.file else { continue };
            touched.insert(fragment.segment, file);
            file.write_at(&fragment.bytes, fragment.offset.into())?;
        }
        for (number, file) in touched {
            found.heads.get(&number).map_or(Ok(()), |head| file.write_at(head, 0))?;
            file.sync()?;
        }
        Ok(())
    }

    fn header_of(&self, number: u32) -> Vec<u8> {
        let previous = self.segments.get(&number.saturating_sub(1));
        let previous_end = previous.map_or(0, |segment| segment.end);
        let bytes = self.segments.get(&number).map_or(0, |segment| segment.bytes);
        segment_header(number, bytes, previous_end)
    }

    /// Notes, once, that a commit has landed here: from now on an empty journal is damage.
    pub(super) fn mark_used(&mut self) -> io::Result<()> {
        if !std::mem::replace(&mut self.used_before, true) {
            let text = format!("Windlass store, format {VERSION}\n");
            let file = self.disk.create(FORMAT, text.len() as u64)?;
            file.write_at(text.as_bytes(), 0)?;
            file.sync()?;
            self.disk.sync_directory()?;
        }
        self.disk.note_store()
    }

    /// Where the last checkpoint begins, as the newest commit that can be read says.
    fn find_begin(&self, numbers: &[u32]) -> Result<Option<Place>, OpenError> {
        for number in numbers.iter().rev() {
            let (_, content) = self.open_segment(*number, true)?;
            if let Some(last) = last_header(*number, &content) {
                let begin = Place::unpack(last.begin);
                let there = begin.segment >= last.oldest && numbers.contains(&begin.segment);
                return Ok(there.then_some(begin));
            }
        }
        Ok(None)
    }

    /// Opens a segment, and reads all of it if it is needed.
    fn open_segment(&self, number: u32, all: bool) -> Result<(Segment, Vec<u8>), OpenError> {
        let name = segment_name(number);
        let failed = |error| OpenError::disk("read a segment", error);
        let file = self.disk.open(&name).map_err(failed)?;
        let size = file.size().map_err(failed)?;
        let bytes = u32::try_from(size).ok().filter(|bytes| *bytes <= SEGMENT_MAX);
        let bytes = bytes.ok_or_else(|| OpenError::damaged(&name, 0, "it is too large"))?;
        let mut content = vec![0; if all { bytes } else { bytes.min(SEGMENT_HEADER) } as usize];
        file.read_at(&mut content, 0).map_err(failed)?;
        Ok((Segment { file: Some(file), bytes, end: SEGMENT_HEADER }, content))
    }

    /// Adds an entry to the commit that is being put together. Returns where it will stand and how
    /// many bytes it takes.
    pub(super) fn stage(&mut self, encode: impl FnOnce(&mut Vec<u8>)) -> (Place, u32) {
        self.touch();
        let fragment = self.staged.last_mut().expect("a fragment was begun");
        let start = fragment.bytes.len();
        fragment.bytes.extend([0; ENTRY_HEADER]);
        encode(&mut fragment.bytes);
        let length = (fragment.bytes.len() - start - ENTRY_HEADER) as u32;
        let check = crc32fast::hash(&fragment.bytes[start + ENTRY_HEADER..]);
        fragment.bytes[start..start + 4].copy_from_slice(&length.to_le_bytes());
        fragment.bytes[start + 4..start + 8].copy_from_slice(&check.to_le_bytes());
        let end = fragment.at as usize + fragment.bytes.len();
        // Behind it there is always room for a seal.
        if end + HEADER > self.segments[&fragment.segment].bytes as usize {
            let entry = fragment.bytes.split_off(start);
            self.start_segment(entry.len());
            let fragment = self.staged.last_mut().expect("a fragment was begun");
            fragment.bytes.extend(entry);
        }
        let fragment = self.staged.last_mut().expect("a fragment was begun");
        let size = ENTRY_HEADER + length as usize;
        let start = fragment.bytes.len() - size;
        fragment.check.update(&fragment.bytes[start..start + ENTRY_HEADER]);
        let offset = fragment.at + start as u32;
        (Place { segment: fragment.segment, offset, depth: 0 }, size as u32)
    }

    /// Begins a commit, if none is being put together: even an empty one says something, the
    /// numbers that were used.
    pub(super) fn touch(&mut self) {
        if self.staged.is_empty() {
            self.begin_fragment();
        }
        if self.staged.is_empty() {
            self.start_segment(0);
        }
    }

    fn begin_fragment(&mut self) {
        let Some(segment) = self.segments.get(&self.active) else { return };
        if segment.end + 2 * HEADER as u32 + 64 > segment.bytes {
            return;
        }
        let (segment, at) = (self.active, segment.end);
        let mut bytes = self.buffers.pop().unwrap_or_default();
        bytes.resize(HEADER, 0);
        self.staged.push(Staged { segment, at, bytes, check: crc32fast::Hasher::new() });
    }

    /// Goes on in a new segment with room for an entry of `need` bytes. If no file can be had for
    /// it now, one is made later.
    fn start_segment(&mut self, need: usize) {
        if self.staged.last().is_some_and(|fragment| fragment.bytes.len() == HEADER) {
            self.staged.pop();
        }
        if let Some(fragment) = self.staged.last() {
            let end = padded(fragment.at + fragment.bytes.len() as u32);
            self.segments.entry(fragment.segment).and_modify(|segment| segment.end = end);
        }
        let need = need + OVERHEAD;
        let fits = |(_, bytes): &(String, u32)| *bytes as usize >= need;
        if !self.spares.iter().any(fits) {
            // If it cannot be made, there is none that fits.
            let _ = self.make_spare(need - OVERHEAD);
        }
        let spare = self.spares.iter().position(fits).map(|index| self.spares.remove(index));
        let smallest = self.wanted_size().min(SEGMENT_LAST_RESORT).max(size_for(need - OVERHEAD));
        let bytes = spare.as_ref().map_or(smallest, |(_, bytes)| *bytes);
        // One that is too small and holds nothing yet makes way: an empty segment in the middle of
        // a commit could lose its head and nothing else.
        let number = self.active + u32::from(!self.is_empty(self.active));
        self.started.retain(|write| write.segment != number);
        self.unbacked.retain(|unbacked| *unbacked != number);
        self.segments.insert(number, Segment { file: None, bytes, end: SEGMENT_HEADER });
        self.active = number;
        self.begin_fragment();
        let allocated = spare.is_some_and(|(name, _)| self.give_file(number, &name).is_ok());
        if !allocated {
            self.unbacked.push(number);
        }
    }

    fn is_empty(&self, number: u32) -> bool {
        let segment = self.segments.get(&number);
        segment.is_some_and(|segment| segment.end == SEGMENT_HEADER)
            && !self.staged.iter().any(|fragment| fragment.segment == number)
    }

    fn give_file(&mut self, number: u32, spare: &str) -> io::Result<()> {
        let name = segment_name(number);
        self.disk.rename(spare, &name)?;
        let file = self.disk.open(&name)?;
        let header = self.header_of(number);
        self.started.push(Write { segment: number, at: 0, bytes: header, file: file.clone() });
        self.segments.entry(number).and_modify(|segment| segment.file = Some(file));
        Ok(())
    }

    /// Makes files for the segments that have none.
    pub(super) fn allocate_files(&mut self) -> Result<(), Full> {
        while let Some(&number) = self.unbacked.first() {
            let bytes = self.segments.get(&number).map_or(0, |segment| segment.bytes);
            let name = self.spare_name();
            self.disk.create(&name, bytes.into()).map_err(Full)?;
            self.give_file(number, &name).map_err(Full)?;
            self.unbacked.remove(0);
        }
        Ok(())
    }

    /// The size a new segment should have: small stores stay small, large ones keep few files.
    pub(super) fn wanted_size(&self) -> u32 {
        let used: u64 = self.segments.values().map(|segment| u64::from(segment.bytes)).sum();
        let grown = u32::try_from(used.next_power_of_two()).unwrap_or(SEGMENT_MAX);
        self.fixed_size.unwrap_or(grown.clamp(SEGMENT_MIN, SEGMENT_MAX))
    }

    /// Whether an entry of `need` bytes fits into what there is.
    pub(super) fn fits(&self, need: usize) -> bool {
        let need = need + OVERHEAD;
        let active = self.segments.get(&self.active);
        let end = self.staged.last().map(|fragment| fragment.at + fragment.bytes.len() as u32);
        let left = active.map_or(0, |active| active.bytes - end.unwrap_or(active.end));
        let mut spares = self.spares.iter();
        left as usize >= need || spares.any(|(_, bytes)| *bytes as usize >= need)
    }

    /// Makes a spare file now, with room for an entry of `need` bytes.
    pub(super) fn make_spare(&mut self, need: usize) -> Result<(), Full> {
        let (name, bytes) = self.wanted_spare(need).make().map_err(Full)?;
        self.spares.push((name, bytes));
        Ok(())
    }

    /// A spare file with room for an entry of `need` bytes, to be made.
    pub(super) fn wanted_spare(&mut self, need: usize) -> WantedSpare {
        let need = size_for(need);
        WantedSpare {
            name: self.spare_name(),
            bytes: self.wanted_size().max(need),
            least: need.max(SEGMENT_LAST_RESORT),
            disk: self.disk.clone(),
        }
    }

    /// How many spare files there are.
    pub(super) fn spare_count(&self) -> usize {
        self.spares.len()
    }

    /// Gives the disk back what the last spare files take, all but the first `keep` of them.
    pub(super) fn drop_spares(&mut self, keep: usize) {
        for (name, _) in self.spares.drain(keep.min(self.spares.len())..) {
            // A file that cannot leave now is let go when the store is next opened.
            let _ = self.disk.remove(&name);
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
        if !self.unbacked.is_empty() {
            return 0;
        }
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

    /// Whether each of its segments has a file, so that it can be taken.
    pub(super) fn has_files(&self) -> bool {
        self.unbacked.is_empty()
    }

    /// The number of the commit that is being put together, or will be next.
    pub(super) fn next_commit(&self) -> u64 {
        self.next_commit
    }

    pub(super) fn landed_commit(&self) -> u64 {
        self.landed
    }

    /// Where the commit that is being put together begins: a checkpoint that begins with it needs
    /// nothing from before.
    pub(super) fn position(&self) -> u64 {
        let end = self.segments.get(&self.active).map_or(SEGMENT_HEADER, |segment| segment.end);
        let first = self.staged.first().map(|fragment| (fragment.segment, fragment.at));
        let (segment, offset) = first.unwrap_or((self.active, end));
        Place { segment, offset, depth: 0 }.pack()
    }

    /// A checkpoint that began there is on stable storage: from now on reading may begin there.
    pub(super) fn begin_at(&mut self, position: u64, bytes: u64) {
        if Place::unpack(position).segment >= self.oldest {
            self.begin = position;
            self.since_begin = bytes;
        }
    }

    /// Bytes that would have to be read if the store were opened now.
    pub(super) fn since_begin(&self) -> u64 {
        self.since_begin
    }

    /// From this commit on, segments before `oldest` are not needed.
    pub(super) fn let_go_before(&mut self, oldest: u32) {
        self.oldest = oldest;
        if Place::unpack(self.begin).segment < oldest {
            self.begin = 0;
            self.since_begin = self.used();
        }
    }

    /// Closes the commit that is being put together. `synced` is the last commit that is known to
    /// be on stable storage.
    pub(super) fn take(&mut self, next_ids: NextIds, synced: u64) -> Arc<CommitBytes> {
        let mut writes = std::mem::take(&mut self.started);
        let names = !writes.is_empty();
        let staged = std::mem::take(&mut self.staged);
        let count = staged.len();
        let begins = staged.first().map(|first| (self.next_commit, first.segment, first.at));
        self.unlanded.extend(begins);
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
                next_ids,
                begin: self.begin,
            };
            fragment.bytes[..HEADER].copy_from_slice(&header.encode());
            let file = segment.file.clone().expect("a commit is taken when it has files");
            let at = fragment.at;
            writes.push(Write { segment: fragment.segment, at, bytes: fragment.bytes, file });
        }
        let (number, oldest) = (self.next_commit, self.oldest);
        self.next_commit += 1;
        let token = next_ids.token;
        self.since_begin += writes.iter().map(|write| write.bytes.len() as u64).sum::<u64>();
        let batch =
            Arc::new(CommitBytes { number, token, oldest, writes, names, disk: self.disk.clone() });
        self.written += batch.bytes();
        self.flying.push(batch.clone());
        batch
    }

    /// A commit is on stable storage. Returns the segments that may leave now.
    pub(super) fn landed(&mut self, batch: &CommitBytes) -> Vec<Retired> {
        self.landed = self.landed.max(batch.number);
        while self.unlanded.front().is_some_and(|(number, ..)| *number <= self.landed) {
            self.unlanded.pop_front();
        }
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

    /// Takes back the memory of a commit that nobody reads any more.
    pub(super) fn reuse(&mut self, batch: Arc<CommitBytes>) {
        let Some(batch) = Arc::into_inner(batch) else { return };
        for mut write in batch.writes {
            if self.buffers.len() < BUFFERS && write.bytes.capacity() <= BUFFER_MAX {
                write.bytes.clear();
                self.buffers.push(write.bytes);
            }
        }
    }

    /// A mark behind the last commit that says that it is on stable storage: from now on damage to
    /// it is damage. The next commit is written over it.
    pub(super) fn seal(&self, next_ids: NextIds) -> Option<(Arc<dyn DiskFile>, u64, Vec<u8>)> {
        let segment = self.segments.get(&self.active)?;
        let everything = self.staged.is_empty() && self.unlanded.is_empty();
        if !everything || segment.end + HEADER as u32 > segment.bytes {
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
            next_ids,
            begin: self.begin,
        };
        Some((segment.file.clone()?, segment.end.into(), header.encode().to_vec()))
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
        let file = segment.file.as_ref();
        let file = file.ok_or_else(|| unreadable("its segment has no file yet".into()))?;
        let ahead = if number == self.active { 1 << 10 } else { READ_AHEAD };
        let left = (segment.bytes - offset.min(segment.bytes)) as usize;
        let mut bytes = vec![0; ahead.min(left)];
        file.read_at(&mut bytes, offset.into()).map_err(|e| unreadable(e.to_string()))?;
        let length = length_at(&bytes, 0).ok_or_else(|| unreadable("it is cut off".into()))?;
        let whole = ENTRY_HEADER + length;
        if whole > bytes.len() {
            if whole > left {
                return Err(unreadable("its length is out of range".into()));
            }
            bytes.resize(whole, 0);
            let read = file.read_at(&mut bytes, offset.into());
            read.map_err(|e| unreadable(e.to_string()))?;
        }
        let entry = entry_at(&bytes, 0, place);
        if self.is_complete(number) {
            self.window = Some((number, offset, bytes));
        }
        entry
    }

    /// Whether the entry at this place is on stable storage.
    pub(super) fn has_landed(&self, place: Place) -> bool {
        let unlanded = self.unlanded.front().map(|(_, segment, at)| (*segment, *at));
        let staged = self.staged.first().map(|fragment| (fragment.segment, fragment.at));
        unlanded.or(staged).is_none_or(|first| (place.segment, place.offset) < first)
    }

    /// Whether everything that will ever stand in this segment has been written: only then may
    /// what was read from it be used again.
    fn is_complete(&self, number: u32) -> bool {
        let flying = self.flying.iter().flat_map(|batch| &batch.writes);
        number != self.active
            && !self.staged.iter().any(|fragment| fragment.segment == number)
            && !flying.into_iter().any(|write| write.segment == number)
    }

    /// The oldest segment, if everything that will ever stand in it has been written.
    pub(super) fn oldest_closed(&self) -> Option<u32> {
        let mut numbers = self.segments.range(self.oldest..).map(|(number, _)| *number);
        numbers.next().filter(|number| *number < self.active && self.is_complete(*number))
    }

    /// Reads the fragment at `at` of a closed segment; `None` at its end.
    pub(super) fn fragment(&self, number: u32, at: u32) -> Result<Option<Fragment>, Unreadable> {
        let Some(segment) = self.segments.get(&number) else { return Ok(None) };
        let Some(file) = &segment.file else { return Ok(None) };
        if at + HEADER as u32 > segment.end {
            return Ok(None);
        }
        let place = Place { segment: number, offset: at, depth: 0 };
        let unreadable = |why: String| Unreadable(format!("{}: {why}", show(place)));
        let mut header = vec![0; HEADER];
        file.read_at(&mut header, at.into()).map_err(|e| unreadable(e.to_string()))?;
        let header = Header::decode(&header, number, at)
            .ok_or_else(|| unreadable("the head of a commit is damaged".into()))?;
        let mut body = vec![0; header.length as usize];
        let from = at + HEADER as u32;
        file.read_at(&mut body, from.into()).map_err(|e| unreadable(e.to_string()))?;
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

    /// Bytes of fragments in segments that are needed: without what is left over at the end of a
    /// segment because the next entry did not fit, which no copying would win back.
    pub(super) fn filled(&self) -> u64 {
        self.segments.range(self.oldest..).map(|(_, segment)| u64::from(segment.end)).sum()
    }

    pub(super) fn bytes_written(&self) -> u64 {
        self.written
    }

    pub(super) fn segment_count(&self) -> usize {
        self.segments.len()
    }
}

/// The size of a segment that has room for an entry of `need` bytes.
fn size_for(need: usize) -> u32 {
    u32::try_from(need + OVERHEAD).unwrap_or(SEGMENT_MAX).next_power_of_two()
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

/// A spare file that should be made.
#[derive(Debug)]
pub struct WantedSpare {
    name: String,
    bytes: u32,
    least: u32,
    disk: Arc<dyn Disk>,
}

impl WantedSpare {
    /// Makes it, smaller than wanted if the disk is almost full. Returns its name and its size.
    pub fn make(mut self) -> io::Result<(String, u32)> {
        loop {
            match self.disk.create(&self.name, self.bytes.into()) {
                Ok(_) => return Ok((self.name, self.bytes)),
                Err(_) if self.bytes / 2 >= self.least => self.bytes /= 2,
                Err(error) => return Err(error),
            }
        }
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
