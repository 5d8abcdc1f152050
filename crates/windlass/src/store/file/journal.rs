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

mod open;
mod read;
mod segments;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Arc;

use windlass_core::record::NextIds;

pub(super) use self::read::Fragment;
pub(super) use self::segments::{Full, SEGMENT_LEAST, SEGMENT_MAX};
pub use self::segments::{Retired, WantedSpare};
use super::disk::{Disk, DiskFile};
use super::layout::{ENTRY_HEADER, HEADER, Header, LAST, Place, SEAL, SEGMENT_HEADER, padded};

/// Buffers that are kept for the next commits, and how large each may be.
const BUFFERS: usize = 4;
const BUFFER_MAX: usize = 4 << 20;

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
    /// Commits that were taken and are not in the files yet: they are read from memory.
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
    /// What was read ahead last: of which segment, from which offset.
    window: Option<(u32, u32, Vec<u8>)>,
    /// Files that are not part of the journal any more, found when it was opened.
    unused: Vec<String>,
    used_before: bool,
}

impl Journal {
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
        // There is always room for a seal behind the last commit.
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

    /// Whether there is anything in the commit that is being put together.
    pub(super) fn is_staged(&self) -> bool {
        !self.staged.is_empty()
    }

    /// How many bytes there are in it.
    pub(super) fn staged_bytes(&self) -> u64 {
        self.staged.iter().map(|fragment| fragment.bytes.len() as u64).sum()
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
        self.retire_before(batch.oldest)
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

    /// A mark behind the last commit that says that it is on stable storage. The next commit is
    /// written over it.
    ///
    /// Answers: a commit is known to be synced by the one after it, and the last one has none. A
    /// flipped bit in it would pass for a torn tail, and what it acknowledged would be gone.
    /// Why not simpler: a second write per commit would cost every commit; this one is made only
    /// when there is nothing else to do, and nobody waits for it.
    /// Guarded by: `tests/main/files/damage.rs` (the planted bug 26), and seed 179 of the
    /// simulation, which found a commit with no room behind it.
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

    pub(super) fn bytes_written(&self) -> u64 {
        self.written
    }
}
