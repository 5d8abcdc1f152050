//! The bytes of the journal: segments, fragments and entries, as `docs/format.md` draws them.
//!
//! Answers: segments are used again, so the bytes of an old commit may stand where a new one is
//! expected, whole and with a right checksum.
//! Why not simpler: zeroing a file before it is used again would write it twice. The header of a
//! fragment names its segment, offset, commit and opening instead, under its checksum, so old bytes
//! never pass for new ones.
//! Guarded by: `tests/main/files/damage.rs`, and crash points with a torn disk in
//! `windlass-sim/tests/crash_points.rs` (the planted bug 28).

use windlass_core::record::NextIds;
use windlass_core::time::Timestamp;

/// The version of the format this program writes. It reads every version up to it.
pub(super) const VERSION: u32 = 1;
pub(super) const SEGMENT_MAGIC: [u8; 8] = *b"Windlass";
/// What development versions began a segment with, before the format was fixed.
const DEVELOPMENT_MAGIC: [u8; 8] = *b"WINDLASS";
/// Bytes in front of the first fragment of a segment.
pub(super) const SEGMENT_HEADER: u32 = 64;
pub(super) const MAGIC: u32 = u32::from_le_bytes(*b"wlfr");
/// Bytes in front of the entries of a fragment.
pub(super) const HEADER: usize = 96;
/// Bytes in front of an entry: its length and its checksum.
pub(super) const ENTRY_HEADER: usize = 8;
pub(super) const LAST: u32 = 1;
pub(super) const SEAL: u32 = 2;

/// Where an entry stands, and how many updates lie between it and the base of its chain.
///
/// Packed into eight bytes, 32 bits for the segment, 26 for the offset and 6 for the depth: the
/// ledger holds one for every job. That is why a segment has at most 64 MiB and a chain 63 updates.
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

/// Files that may become segments.
pub(super) const SPARE: &str = "spare-";

/// The file that says that a commit has landed here once.
pub(super) const FORMAT: &str = "format";

pub(super) fn segment_name(number: u32) -> String {
    format!("journal-{number:08x}")
}

pub(super) fn parse_name(name: &str) -> Option<u32> {
    let digits = name.strip_prefix("journal-").filter(|digits| digits.len() == 8)?;
    u32::from_str_radix(digits, 16).ok().filter(|number| segment_name(*number) == name)
}

pub(super) fn padded(offset: u32) -> u32 {
    offset.next_multiple_of(8)
}

pub(super) fn show(place: Place) -> String {
    format!("{} at byte {}", segment_name(place.segment), place.offset)
}

pub(super) fn segment_header(number: u32, bytes: u32, previous_end: u32) -> Vec<u8> {
    let mut header = Vec::with_capacity(SEGMENT_HEADER as usize);
    header.extend(SEGMENT_MAGIC);
    for number in [VERSION, number, bytes, previous_end] {
        header.extend(number.to_le_bytes());
    }
    let check = crc32fast::hash(&header);
    header.extend(check.to_le_bytes());
    header.resize(SEGMENT_HEADER as usize, 0);
    header
}

/// What stands in front of a fragment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    pub(super) segment: u32,
    pub(super) offset: u32,
    pub(super) length: u32,
    /// Over the lengths and checksums of the entries, not over their bytes: each entry has a
    /// checksum of its own to be read alone by, and so is hashed once.
    pub(super) check: u32,
    pub(super) commit: u64,
    pub(super) synced: u64,
    pub(super) index: u32,
    pub(super) flags: u32,
    pub(super) opening: u32,
    pub(super) oldest: u32,
    pub(super) next_ids: NextIds,
    /// Where one may begin to read: behind it stands an entry for every job from before it.
    pub(super) begin: u64,
}

impl Header {
    pub(super) fn encode(&self) -> [u8; HEADER] {
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
        for number in [self.next_ids.sequence, self.next_ids.token, self.next_ids.event] {
            to.extend(number.to_le_bytes());
        }
        to.extend(self.next_ids.wall.as_micros().to_le_bytes());
        to.extend(self.begin.to_le_bytes());
        let check = crc32fast::hash(&to[8..]);
        to[4..8].copy_from_slice(&check.to_le_bytes());
        to.try_into().unwrap_or([0; HEADER])
    }

    /// The header in these bytes, if it belongs at this place.
    pub(super) fn decode(bytes: &[u8], segment: u32, offset: u32) -> Option<Self> {
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
            next_ids: NextIds {
                sequence: long(56),
                token: long(64),
                event: long(72),
                wall: Timestamp::from_micros(long(80) as i64),
            },
            begin: long(88),
        })
    }
}

pub(super) fn length_at(bytes: &[u8], at: usize) -> Option<usize> {
    let length: [u8; 4] = bytes.get(at..at + 4)?.try_into().ok()?;
    Some(u32::from_le_bytes(length) as usize)
}

pub(super) fn entry_at(bytes: &[u8], at: usize, place: Place) -> Result<Vec<u8>, Unreadable> {
    let unreadable = |why: &str| Unreadable::at(place, why);
    let length = length_at(bytes, at).ok_or_else(|| unreadable("it is cut off"))?;
    let check = length_at(bytes, at + 4).ok_or_else(|| unreadable("it is cut off"))?;
    let from = at + ENTRY_HEADER;
    let body = bytes.get(from..from + length).ok_or_else(|| unreadable("it is cut off"))?;
    if crc32fast::hash(body) as usize != check {
        return Err(unreadable("its checksum does not match"));
    }
    Ok(body.to_vec())
}

/// The head of the last fragment of a segment that can be read on its own.
pub(super) fn last_header(segment: u32, content: &[u8]) -> Option<Header> {
    let mut last = None;
    let mut at = SEGMENT_HEADER;
    while let Some(bytes) = content.get(at as usize..)
        && let Some(header) = Header::decode(bytes, segment, at)
    {
        last = Some(header);
        at = padded(at.saturating_add(HEADER as u32).saturating_add(header.length));
    }
    last
}

/// Why an entry could not be read back.
#[derive(Debug)]
pub(super) struct Unreadable(pub(super) String);

impl Unreadable {
    /// What is wrong with the entry that stands there.
    pub(super) fn at(place: Place, why: &str) -> Self {
        Self(format!("{}: {why}", show(place)))
    }
}

/// The entries of a body that was checked, each with its offset, from `at` on.
pub(super) fn entries_from(body: &[u8], mut at: usize) -> impl Iterator<Item = (usize, &[u8])> {
    std::iter::from_fn(move || {
        let start = at;
        let length = length_at(body, start)?;
        let entry = body.get(start + ENTRY_HEADER..start + ENTRY_HEADER + length)?;
        at = start + ENTRY_HEADER + length;
        Some((start, entry))
    })
}

pub(super) fn check_body(header: &Header, body: &[u8]) -> Result<(), &'static str> {
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

pub(super) enum SegmentProblem {
    Newer(u32),
    /// It was written before the format was fixed.
    Development,
    /// A file has its full size before it becomes a segment, so no crash leaves a shorter one.
    Cut(&'static str),
    /// The header may not have been written yet when the power was lost.
    Unreadable(&'static str),
}

/// Checks the head of a segment. Answers with where the segment before it ends.
pub(super) fn check_segment_header(
    number: u32,
    content: &[u8],
    bytes: u32,
) -> Result<u32, SegmentProblem> {
    let unreadable = |why| Err(SegmentProblem::Unreadable(why));
    let Some(head) = content.get(..SEGMENT_HEADER as usize) else {
        return Err(SegmentProblem::Cut("it is shorter than its header"));
    };
    let short = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().unwrap_or([0; 4]));
    let whole = short(24) == crc32fast::hash(&head[..24]);
    if head[..8] == DEVELOPMENT_MAGIC && whole {
        return Err(SegmentProblem::Development);
    }
    if head[..8] != SEGMENT_MAGIC || !whole {
        return unreadable("its header is damaged");
    }
    if short(8) > VERSION {
        return Err(SegmentProblem::Newer(short(8)));
    }
    if short(12) != number {
        return unreadable("its header belongs to another segment");
    }
    if short(16) != bytes {
        return Err(SegmentProblem::Cut("it does not have the size its header says"));
    }
    Ok(short(20))
}
