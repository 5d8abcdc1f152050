//! The files of a journal: segments, spare files that become segments, and those that leave.
//!
//! Answers: a commit that needed a new file in the middle would wait until up to 64 MiB of zeros
//! are written and synced, and on a full disk would fail half-way.
//! Why not simpler: without zeros, each sync writes metadata too, and a write within a file may run
//! out of space. So a spare file is made in advance, by a thread of its own; a segment that leaves
//! becomes the next spare; and a commit that still finds none waits for its file as a whole
//! (`unbacked`).
//! Guarded by: `tests/main/writer.rs` (the planted bug 32), `tests/main/files/full.rs`
//! (`a_full_disk_is_not_filled_with_zeros_over_and_over`,
//! `a_commit_that_outgrew_a_full_disk_keeps_no_refusal_waiting_and_lands_by_itself`).

use std::io;
use std::sync::Arc;

use super::super::disk::Disk;
use super::super::layout::{
    HEADER, Place, SEGMENT_HEADER, SPARE, padded, segment_header, segment_name,
};
use super::{Journal, Segment, Write};

/// The largest segment: an offset within it has 26 bits in a [`Place`].
pub(in crate::store::file) const SEGMENT_MAX: u32 = 64 << 20;
/// The smallest segment that can be asked for: a commit without large jobs fits into it.
pub(in crate::store::file) const SEGMENT_LEAST: u32 = 4 << 10;
/// The smallest segment: what a new store takes.
const SEGMENT_MIN: u32 = 4 << 20;
/// The smallest segment that is tried when the disk is almost full.
const SEGMENT_LAST_RESORT: u32 = 1 << 20;
/// Bytes of a segment that an entry in it cannot have.
const OVERHEAD: usize = SEGMENT_HEADER as usize + 2 * HEADER + 8;

/// The disk has no room for another segment.
#[derive(Debug)]
pub(in crate::store::file) struct Full(pub(in crate::store::file) io::Error);

impl Full {
    /// Whether it may pass by itself: when there is room again, or a file handle.
    pub(in crate::store::file) fn may_pass(&self) -> bool {
        const TOO_MANY_FILES: [i32; 2] = [23, 24];
        let Full(error) = self;
        matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
            || error.raw_os_error().is_some_and(|code| TOO_MANY_FILES.contains(&code))
    }
}

impl Journal {
    fn header_of(&self, number: u32) -> Vec<u8> {
        let previous = self.segments.get(&number.saturating_sub(1));
        let previous_end = previous.map_or(0, |segment| segment.end);
        let bytes = self.segments.get(&number).map_or(0, |segment| segment.bytes);
        segment_header(number, bytes, previous_end)
    }

    /// Goes on in a new segment with room for an entry of `need` bytes. If no file can be had for
    /// it now, one is made later.
    pub(super) fn start_segment(&mut self, need: usize) {
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
        // One that is too small and holds nothing yet makes way. Of an empty segment only the head
        // is written: if the power took that alone, the store would be taken for damaged (seed
        // 17972 of the simulation).
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

    pub(super) fn is_empty(&self, number: u32) -> bool {
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
    pub(in crate::store::file) fn allocate_files(&mut self) -> Result<(), Full> {
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
    pub(in crate::store::file) fn wanted_size(&self) -> u32 {
        let used: u64 = self.segments.values().map(|segment| u64::from(segment.bytes)).sum();
        let grown = u32::try_from(used.next_power_of_two()).unwrap_or(SEGMENT_MAX);
        self.fixed_size.unwrap_or(grown.clamp(SEGMENT_MIN, SEGMENT_MAX))
    }

    /// Whether an entry of `need` bytes fits into what there is.
    pub(in crate::store::file) fn fits(&self, need: usize) -> bool {
        let need = need + OVERHEAD;
        let active = self.segments.get(&self.active);
        let end = self.staged.last().map(|fragment| fragment.at + fragment.bytes.len() as u32);
        let left = active.map_or(0, |active| active.bytes - end.unwrap_or(active.end));
        let mut spares = self.spares.iter();
        left as usize >= need || spares.any(|(_, bytes)| *bytes as usize >= need)
    }

    /// Makes a spare file now, with room for an entry of `need` bytes.
    pub(in crate::store::file) fn make_spare(&mut self, need: usize) -> Result<(), Full> {
        let (name, bytes) = self.wanted_spare(need).make().map_err(Full)?;
        self.spares.push((name, bytes));
        Ok(())
    }

    /// A spare file with room for an entry of `need` bytes, to be made.
    pub(in crate::store::file) fn wanted_spare(&mut self, need: usize) -> WantedSpare {
        let need = size_for(need);
        WantedSpare {
            name: self.spare_name(),
            bytes: self.wanted_size().max(need),
            least: need.max(SEGMENT_LAST_RESORT),
            disk: self.disk.clone(),
        }
    }

    /// How many spare files there are.
    pub(in crate::store::file) fn spare_count(&self) -> usize {
        self.spares.len()
    }

    /// Gives the disk back what the last spare files take, all but the first `keep` of them.
    pub(in crate::store::file) fn drop_spares(&mut self, keep: usize) {
        for (name, _) in self.spares.drain(keep.min(self.spares.len())..) {
            // A file that cannot leave now is let go when the store is next opened.
            let _ = self.disk.remove(&name);
        }
    }

    /// A name for a spare file that nobody else will use.
    pub(in crate::store::file) fn spare_name(&mut self) -> String {
        self.spare_number += 1;
        format!("{SPARE}{}-{}", self.opening, self.spare_number)
    }

    pub(in crate::store::file) fn add_spare(&mut self, name: String, bytes: u32) {
        self.spares.push((name, bytes));
    }

    /// Whether a spare file should be made soon.
    pub(in crate::store::file) fn wants_spare(&self) -> bool {
        let left = self.segments.get(&self.active).map_or(0, |segment| segment.bytes - segment.end);
        self.spares.is_empty() && left < self.wanted_size() / 2
    }

    /// Bytes that can be written without asking the disk for space.
    pub(in crate::store::file) fn room(&self) -> u64 {
        if !self.unbacked.is_empty() {
            return 0;
        }
        let taken = self.staged.last().map_or(0, |fragment| fragment.bytes.len() as u64);
        let active = self.segments.get(&self.active);
        let left = active.map_or(0, |segment| u64::from(segment.bytes - segment.end));
        let spare: u64 = self.spares.iter().map(|(_, bytes)| u64::from(*bytes)).sum();
        left.saturating_sub(taken) + spare
    }

    /// Whether each of its segments has a file, so that it can be taken.
    pub(in crate::store::file) fn has_files(&self) -> bool {
        self.unbacked.is_empty()
    }

    /// From this commit on, segments before `oldest` are not needed.
    pub(in crate::store::file) fn let_go_before(&mut self, oldest: u32) {
        self.oldest = oldest;
        if Place::unpack(self.begin).segment < oldest {
            self.begin = 0;
            self.since_begin = self.used();
        }
    }

    /// Bytes taken by segments that hold entries.
    pub(in crate::store::file) fn used(&self) -> u64 {
        let used = self.segments.range(self.oldest..).map(|(number, segment)| {
            u64::from(if *number == self.active { segment.end } else { segment.bytes })
        });
        used.sum()
    }

    /// Bytes of fragments in segments that are needed. The unused end of a segment, where the next
    /// entry did not fit, does not count: no copying would win it back, and compaction would go on
    /// for ever (seed 151 of the simulation).
    pub(in crate::store::file) fn filled(&self) -> u64 {
        self.segments.range(self.oldest..).map(|(_, segment)| u64::from(segment.end)).sum()
    }

    pub(in crate::store::file) fn segment_count(&self) -> usize {
        self.segments.len()
    }

    /// Takes segments out of the journal that are not needed any more.
    pub(super) fn retire_before(&mut self, oldest: u32) -> Vec<Retired> {
        let keep = self.segments.split_off(&oldest);
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
}

/// The size of a segment that has room for an entry of `need` bytes.
fn size_for(need: usize) -> u32 {
    u32::try_from(need + OVERHEAD).unwrap_or(SEGMENT_MAX).next_power_of_two()
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
        // Synced before it gets its next name: otherwise a power loss could bring back the old name
        // with the content of the new segment in it.
        self.disk.sync_directory()?;
        Ok(Some((self.spare, self.bytes)))
    }
}
