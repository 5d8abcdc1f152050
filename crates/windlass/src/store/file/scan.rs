//! Reading a journal from its beginning, and finding where it ends.
//!
//! A fragment that cannot be read is the unused rest of a segment, a torn tail, or damage. What
//! stands further on tells which: nothing; or only fragments that did not know it to be on stable
//! storage; or one that did.
//!
//! Answers: a torn tail was never acknowledged and must not stop an opening; damage to what was
//! acknowledged must.
//! Why not simpler: a checksum says that a fragment is broken, not whether anybody was told of it.
//! So every fragment names the last commit that was known to be synced when it was written.
//! Guarded by: `tests/main/files/damage.rs` (`every_flipped_byte_is_reported_or_harmless`), the
//! tests below, `windlass-sim/tests/crash_points.rs`, and the seeds of
//! `windlass-sim/tests/past_failures.rs`.

use std::collections::BTreeMap;

use windlass_core::record::NextIds;

use super::OpenError;
use super::layout::{
    HEADER, Header, LAST, MAGIC, Place, SEAL, SEGMENT_HEADER, SegmentProblem, VERSION, check_body,
    check_segment_header, entries_from, padded, segment_name,
};

/// Is given each entry of each whole commit and where it stands, and says what is wrong with it.
pub(super) type EntryVisitor<'a> = &'a mut dyn FnMut(Place, &[u8]) -> Result<(), String>;

/// What reading a journal found.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// The numbers of the last commit.
    pub(super) next_ids: NextIds,
    /// How many commits were read.
    pub(super) commits: u64,
    /// Where an unfinished commit was cut off.
    pub(super) torn: Option<String>,
    /// The segment of the last whole commit; 0 if there is none.
    pub(super) active: u32,
    /// The oldest segment that is needed.
    pub(super) oldest: u32,
    /// Where the fragments of each segment end.
    pub(super) ends: BTreeMap<u32, u32>,
    /// The number of the last whole commit.
    pub(super) commit: u64,
    /// The number of the last opening that wrote anything: its commit need not be whole.
    pub(super) opening: u32,
    /// Where one may begin to read, as it says.
    pub(super) begin: u64,
    /// Bytes that were read.
    pub(super) bytes: u64,
    /// The last commits: those that no later one knew to be on stable storage.
    pub(super) unproven: Vec<Unproven>,
    /// The heads of the segments.
    pub(super) heads: BTreeMap<u32, Vec<u8>>,
}

/// A fragment that is there and may not be on stable storage.
#[derive(Debug)]
pub(super) struct Unproven {
    commit: u64,
    pub(super) segment: u32,
    pub(super) offset: u32,
    pub(super) bytes: Vec<u8>,
}

/// Reads segments in order and finds where the journal ends.
pub(super) struct Scan {
    /// Which fragment comes next; commit 0 before the first was read.
    commit: u64,
    index: u32,
    /// Fragments of the commit that is not yet whole, with their headers.
    pending: Vec<(Header, Vec<u8>)>,
    unproven: Vec<Unproven>,
    /// Where the next fragment should stand and does not.
    gap: Option<Gap>,
    /// Something stands behind the gap that cannot count: the tail is torn. The newest opening that
    /// wrote such a thing.
    torn: Option<u32>,
    /// The newest opening that wrote anything at all. The next one must have another number, or
    /// what it writes could be taken for the rest of an unfinished commit.
    opening: u32,
    last: Option<Header>,
    /// Where the last whole commit ends.
    tail: Option<(u32, u32)>,
    first_segment: Option<u32>,
    previous_segment: Option<u32>,
    /// Where the fragments of each segment end.
    ends: BTreeMap<u32, u32>,
    /// The heads of the segments, as they are.
    heads: BTreeMap<u32, Vec<u8>>,
    /// Segments whose own header cannot be read.
    headless: Vec<(u32, &'static str)>,
    commits: u64,
    bytes: u64,
}

#[derive(Clone, Copy)]
struct Gap {
    segment: u32,
    offset: u32,
    why: &'static str,
}

impl Scan {
    pub(super) fn new(numbers: &[u32]) -> Self {
        Self {
            commit: 0,
            index: 0,
            pending: Vec::new(),
            unproven: Vec::new(),
            gap: None,
            torn: None,
            opening: 0,
            last: None,
            tail: None,
            first_segment: numbers.first().copied(),
            previous_segment: None,
            ends: BTreeMap::new(),
            heads: BTreeMap::new(),
            headless: Vec::new(),
            commits: 0,
            bytes: 0,
        }
    }

    pub(super) fn segment(
        &mut self,
        number: u32,
        from: Option<u32>,
        content: &[u8],
        read: EntryVisitor<'_>,
    ) -> Result<(), OpenError> {
        let mut at = from.unwrap_or(SEGMENT_HEADER);
        loop {
            let (header, bytes) = match self.fragment(number, content, at) {
                Ok(next) => next,
                // Unused, torn or damaged: what stands further on will tell.
                Err(why) => {
                    self.gap.get_or_insert(Gap { segment: number, offset: at, why });
                    break;
                }
            };
            if header.index == 0 {
                // What was pending is unfinished for good.
                self.pending.clear();
            }
            (self.gap, self.torn) = (None, None);
            self.opening = self.opening.max(header.opening);
            self.bytes += u64::from(header.length);
            at = padded(at + HEADER as u32 + header.length);
            self.take(header, bytes, at, read)?;
        }
        self.ends.insert(number, at);
        self.look_ahead(number, content, at)
    }

    /// The fragment at `at`, header and all, if it is the one that comes next.
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
        let next = (header.commit, header.index) == (self.commit, self.index);
        // A later opening may have written its own commit under the number of an unfinished one:
        // fragments of two openings never make one commit (seeds 255 and 5297 of the simulation).
        let one_opening = |(begun, _): &(Header, Vec<u8>)| begun.opening == header.opening;
        let next = next && self.pending.iter().all(one_opening);
        let anew = (header.commit, header.index) == (self.commit, 0);
        let anew = anew && header.opening > self.unfinished_opening();
        // The oldest segment may begin in the middle of a commit, but it is the oldest that must.
        let first = self.commit == 0 && !self.is_beginning_lost();
        if !(first || anew || next && self.torn.is_none()) {
            return Err("another commit stands here");
        }
        if header.flags & SEAL != 0 {
            return Err("the journal was sealed here");
        }
        let bytes = bytes.get(..HEADER + header.length as usize).ok_or("the commit is cut off")?;
        check_body(&header, &bytes[HEADER..])?;
        Ok((header, bytes.to_vec()))
    }

    /// Whether something should have been read before, and could not: a segment that holds nothing
    /// ends where it begins, and the head of the one after it says so.
    fn is_beginning_lost(&self) -> bool {
        self.gap.is_some_and(|gap| self.ends.get(&gap.segment).is_some_and(|end| *end > gap.offset))
    }

    fn newest_opening(&self) -> u32 {
        self.last.as_ref().map_or(0, |last| last.opening)
    }

    /// The newest opening that wrote something that is not known to count.
    fn unfinished_opening(&self) -> u32 {
        let pending = self.pending.iter().map(|(header, _)| header.opening);
        pending.chain(self.torn).max().unwrap_or(0)
    }

    fn take(
        &mut self,
        header: Header,
        bytes: Vec<u8>,
        end: u32,
        read: EntryVisitor<'_>,
    ) -> Result<(), OpenError> {
        let last = header.flags & LAST != 0;
        (self.commit, self.index) =
            if last { (header.commit + 1, 0) } else { (header.commit, header.index + 1) };
        let (segment, synced) = (header.segment, header.synced);
        self.pending.push((header, bytes));
        if !last {
            return Ok(());
        }
        self.unproven.retain(|fragment| fragment.commit > synced);
        for (header, bytes) in std::mem::take(&mut self.pending) {
            let Header { commit, segment, offset, .. } = header;
            let from = header.offset + HEADER as u32;
            for (within, entry) in entries_from(&bytes[HEADER..], 0) {
                let offset = from + within as u32;
                let place = Place { segment: header.segment, offset, depth: 0 };
                read(place, entry).map_err(|why| {
                    OpenError::damaged(&segment_name(header.segment), offset.into(), &why)
                })?;
            }
            self.unproven.push(Unproven { commit, segment, offset, bytes });
            self.last = Some(header);
        }
        self.tail = Some((segment, end));
        self.commits += 1;
        Ok(())
    }

    /// Checks the head of a segment, and learns where the one before it ends: that one need not be
    /// read for it.
    pub(super) fn head(&mut self, number: u32, head: &[u8], bytes: u32) -> Result<(), OpenError> {
        if let Some(previous) = self.previous_segment.replace(number)
            && previous + 1 != number
        {
            // Its name was lost with the power before the commit that began it had landed, or it is
            // damage: what stands further on will tell.
            let missing = Gap { segment: previous + 1, offset: 0, why: "the file is missing" };
            self.gap.get_or_insert(missing);
            self.torn = Some(u32::MAX);
        }
        match check_segment_header(number, head, bytes) {
            Ok(previous_end) => {
                self.heads.insert(number, head[..SEGMENT_HEADER as usize].to_vec());
                self.ends.insert(number.saturating_sub(1), previous_end);
                Ok(())
            }
            Err(SegmentProblem::Newer(version)) => {
                Err(OpenError::Newer { version, known: VERSION })
            }
            Err(SegmentProblem::Development) => Err(OpenError::Development),
            Err(SegmentProblem::Cut(why)) => Err(OpenError::damaged(&segment_name(number), 0, why)),
            Err(SegmentProblem::Unreadable(why)) => {
                self.headless.push((number, why));
                Ok(())
            }
        }
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
            self.opening = self.opening.max(header.opening);
            if header.synced >= self.commit.max(1) {
                let name = segment_name(gap.segment);
                return Err(OpenError::damaged(&name, gap.offset.into(), gap.why));
            }
            if header.flags & SEAL == 0 {
                self.torn = self.torn.max(Some(header.opening));
            }
        }
        Ok(())
    }

    /// `used_before` says that at least one commit landed once: then one must be there.
    pub(super) fn finish(mut self, used_before: bool) -> Result<Found, OpenError> {
        let first = self.first_segment.unwrap_or(1);
        let Some((last, (active, end))) = self.last.zip(self.tail) else {
            if !used_before {
                return Ok(Found { oldest: 1, opening: self.opening, ..Found::default() });
            }
            let (name, at) = (segment_name(first), SEGMENT_HEADER.into());
            return Err(OpenError::damaged(&name, at, "no commit can be read"));
        };
        if last.oldest < first {
            return Err(OpenError::damaged(&segment_name(first - 1), 0, "the file is missing"));
        }
        if let Some((number, why)) = self.headless.iter().find(|(number, _)| *number <= active) {
            return Err(OpenError::damaged(&segment_name(*number), 0, why));
        }
        let torn_at = self.pending.first().map(|(header, _)| (header.segment, header.offset));
        let torn_at = torn_at.or(self.gap.map(|gap| (gap.segment, gap.offset)));
        let torn = (self.torn.is_some() || !self.pending.is_empty()).then_some(torn_at).flatten();
        self.ends.insert(active, end);
        Ok(Found {
            next_ids: last.next_ids,
            commits: self.commits,
            torn: torn
                .map(|(segment, offset)| format!("{} at byte {offset}", segment_name(segment))),
            active,
            oldest: last.oldest,
            ends: self.ends,
            commit: last.commit,
            opening: self.opening,
            begin: last.begin,
            bytes: self.bytes,
            unproven: self.unproven,
            heads: self.heads,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::layout::{SEGMENT_MAGIC, segment_header};
    use super::*;

    const BYTES: u32 = 1_024;

    /// A segment with these fragments: commit, index, last commit known to be on the disk, flags.
    fn segment(number: u32, previous_end: u32, fragments: &[(u64, u32, u64, u32)]) -> Vec<u8> {
        written_by(1, number, previous_end, fragments)
    }

    fn written_by(
        opening: u32,
        number: u32,
        previous_end: u32,
        fragments: &[(u64, u32, u64, u32)],
    ) -> Vec<u8> {
        let mut content = segment_header(number, BYTES, previous_end);
        for (commit, index, synced, flags) in fragments {
            let header = Header {
                segment: number,
                offset: content.len() as u32,
                length: 0,
                check: crc32fast::hash(&[]),
                commit: *commit,
                synced: *synced,
                index: *index,
                flags: *flags,
                opening,
                oldest: 3,
                next_ids: NextIds::default(),
                begin: 0,
            };
            content.extend(header.encode());
        }
        content.resize(BYTES as usize, 0);
        content
    }

    fn scan(segments: &[(u32, Vec<u8>)]) -> Result<Found, OpenError> {
        let numbers: Vec<u32> = segments.iter().map(|(number, _)| *number).collect();
        let mut scan = Scan::new(&numbers);
        for (number, content) in segments {
            assert_eq!(content[..8], SEGMENT_MAGIC);
            scan.head(*number, content, BYTES)?;
            scan.segment(*number, None, content, &mut |_, _| Ok(()))?;
        }
        scan.finish(true)
    }

    #[test]
    fn an_oldest_segment_whose_only_fragment_is_damaged_is_not_passed_over() {
        let end = SEGMENT_HEADER + HEADER as u32;
        let mut oldest = segment(3, 0, &[(5, 1, 4, 0)]);
        let newest = segment(4, end, &[(5, 2, 4, LAST), (6, 0, 5, LAST), (7, 0, 6, SEAL)]);
        let found = scan(&[(3, oldest.clone()), (4, newest.clone())]).expect("nothing is wrong");
        assert_eq!(found.commit, 6);
        for at in SEGMENT_HEADER..end {
            oldest[at as usize] ^= 1;
            let refused = scan(&[(3, oldest.clone()), (4, newest.clone())]);
            let why = refused.expect_err("it is damaged").to_string();
            assert!(why.contains("journal-00000003 at byte 64"), "{why}");
            oldest[at as usize] ^= 1;
        }
    }

    #[test]
    fn a_segment_that_was_begun_and_never_written_is_no_damage() {
        let empty = segment(3, 0, &[]);
        let next = segment(4, SEGMENT_HEADER, &[(5, 0, 4, LAST), (6, 0, 5, LAST)]);
        let found = scan(&[(3, empty), (4, next)]).expect("nothing is wrong");
        assert_eq!(found.commit, 6);
    }
    #[test]
    fn an_opening_whose_only_commit_was_torn_is_counted() {
        let end = SEGMENT_HEADER + HEADER as u32;
        let first = segment(3, 0, &[(5, 0, 4, LAST)]);
        // It began its commit here, and the rest is missing; or the beginning is missing.
        for index in [0, 1] {
            let torn = written_by(7, 4, end, &[(6, index, 5, 0)]);
            let found = scan(&[(3, first.clone()), (4, torn)]).expect("a torn tail is no damage");
            assert_eq!((found.commit, found.opening), (5, 7));
            assert!(found.torn.is_some());
        }
    }
}
