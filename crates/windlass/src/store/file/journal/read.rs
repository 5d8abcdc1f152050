//! Reading entries back, from memory if they are not on the disk yet.

use super::super::layout::{
    ENTRY_HEADER, HEADER, Header, Place, Unreadable, check_body, entries_from, entry_at, length_at,
    padded,
};
use super::Journal;

/// How much is read at once from a segment that is no longer written.
const READ_AHEAD: usize = 64 << 10;

impl Journal {
    /// Reads one entry back, from memory if it is not on the disk yet.
    pub(in crate::store::file) fn read(&mut self, place: Place) -> Result<Vec<u8>, Unreadable> {
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
        let unreadable = |why: String| Unreadable::at(place, &why);
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
    pub(in crate::store::file) fn has_landed(&self, place: Place) -> bool {
        let unlanded = self.unlanded.front().map(|(_, segment, at)| (*segment, *at));
        let staged = self.staged.first().map(|fragment| (fragment.segment, fragment.at));
        unlanded.or(staged).is_none_or(|first| (place.segment, place.offset) < first)
    }

    /// Whether everything that will ever stand in this segment has been written. Only then may what
    /// was read ahead from it be used later, and may the segment be cleared: what is not written
    /// yet would be missing (seed 428 of the simulation).
    fn is_complete(&self, number: u32) -> bool {
        let flying = self.flying.iter().flat_map(|batch| &batch.writes);
        number != self.active
            && !self.staged.iter().any(|fragment| fragment.segment == number)
            && !flying.into_iter().any(|write| write.segment == number)
    }

    /// The oldest segment, if everything that will ever stand in it has been written.
    pub(in crate::store::file) fn oldest_closed(&self) -> Option<u32> {
        let mut numbers = self.segments.range(self.oldest..).map(|(number, _)| *number);
        numbers.next().filter(|number| *number < self.active && self.is_complete(*number))
    }

    /// Reads the fragment at `at` of a closed segment; `None` at its end.
    pub(in crate::store::file) fn fragment(
        &self,
        number: u32,
        at: u32,
    ) -> Result<Option<Fragment>, Unreadable> {
        let Some(segment) = self.segments.get(&number) else { return Ok(None) };
        let Some(file) = &segment.file else { return Ok(None) };
        if at + HEADER as u32 > segment.end {
            return Ok(None);
        }
        let place = Place { segment: number, offset: at, depth: 0 };
        let unreadable = |why: String| Unreadable::at(place, &why);
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
}

/// The entries of one fragment, handed out one by one.
#[derive(Debug)]
pub(in crate::store::file) struct Fragment {
    segment: u32,
    from: u32,
    /// Where the next fragment stands.
    pub(in crate::store::file) next: u32,
    body: Vec<u8>,
    at: usize,
}

impl Fragment {
    /// The next entry and where it stands.
    pub(in crate::store::file) fn next_entry(&mut self) -> Option<(Place, &[u8])> {
        let (within, entry) = entries_from(&self.body, self.at).next()?;
        self.at = within + ENTRY_HEADER + entry.len();
        let offset = self.from + within as u32;
        Some((Place { segment: self.segment, offset, depth: 0 }, entry))
    }
}
