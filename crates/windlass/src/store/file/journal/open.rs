//! Opening a journal: which segments belong to it, where it goes on, and what is made durable
//! before anything is built on it.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Arc;

use super::super::OpenError;
use super::super::disk::Disk;
use super::super::layout::{
    FORMAT, Place, SEGMENT_HEADER, SPARE, VERSION, last_header, parse_name, segment_name,
};
use super::super::moving::MOVE_MARK;
use super::super::scan::{EntryVisitor, Found, Scan};
use super::segments::SEGMENT_MAX;
use super::{Journal, Segment};

impl Journal {
    /// Reads every commit on the disk, oldest first, and answers with a journal that goes on after
    /// the last whole one. `read` is given each entry of each whole commit and where it stands.
    /// Unless it is to be thorough, it begins at the last checkpoint.
    pub(in crate::store::file) fn open(
        disk: Arc<dyn Disk>,
        fixed_size: Option<u32>,
        thorough: bool,
        read: EntryVisitor<'_>,
    ) -> Result<(Self, Found), OpenError> {
        let failed = |error| OpenError::disk("list the files", error);
        let mut numbers = Vec::new();
        let mut leftovers = Vec::new();
        let (mut used_before, mut moved_into) = (false, false);
        for name in disk.list().map_err(failed)? {
            match parse_name(&name) {
                Some(number) => numbers.push(number),
                None if name.starts_with(SPARE) => leftovers.push(name),
                None => {
                    used_before |= name == FORMAT;
                    moved_into |= name == MOVE_MARK;
                }
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
        // A move that begins anew has itself removed what it left before.
        let lost = numbers.is_empty() && !used_before && !moved_into;
        if lost && journal.disk.has_held_a_store() {
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
    pub(in crate::store::file) fn begin(&mut self, found: &Found) -> io::Result<()> {
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

    /// Makes the last commits durable before anything is built on them.
    ///
    /// Answers: that a commit can be read only says that it was written; the process may have ended
    /// before its sync.
    /// Why not simpler: a sync alone is not enough. After a sync that failed, a system may show
    /// bytes that it will never write. So they are written again, then synced.
    /// Guarded by: seed 321 in `windlass-sim/tests/past_failures.rs`, and the profile `flaky-disk`
    /// of the simulation.
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

    /// Notes, once, that a commit has landed here: from now on an empty journal is damage.
    pub(in crate::store::file) fn mark_used(&mut self) -> io::Result<()> {
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
}
