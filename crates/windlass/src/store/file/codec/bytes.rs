//! The parts that every entry is made of: numbers, times, texts, lists, and what may be missing.
//!
//! Each is written by a function and read by the method of the same name below it.

use std::time::Duration;

use windlass_core::job::JobId;
use windlass_core::name::Name;
use windlass_core::outcome::ErrorText;
use windlass_core::time::Timestamp;

use super::Wrong;

pub(super) const SHORT: Wrong = "it ends too early";
pub(super) const RANGE: Wrong = "a number in it is out of range";

/// What is left to read of one entry.
pub(super) struct EntryReader<'a> {
    pub(super) left: &'a [u8],
}

impl<'a> EntryReader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], Wrong> {
        let (taken, left) = self.left.split_at_checked(count).ok_or(SHORT)?;
        self.left = left;
        Ok(taken)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], Wrong> {
        self.take(N)?.try_into().map_err(|_| SHORT)
    }

    pub(super) fn byte(&mut self) -> Result<u8, Wrong> {
        Ok(self.array::<1>()?[0])
    }

    pub(super) fn flag(&mut self) -> Result<bool, Wrong> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err("a flag in it is neither set nor unset"),
        }
    }

    pub(super) fn long(&mut self) -> Result<u64, Wrong> {
        Ok(u64::from_le_bytes(self.array()?))
    }
}

pub(super) fn varint(mut number: u64, to: &mut Vec<u8>) {
    while number >= 0x80 {
        to.push(number as u8 | 0x80);
        number >>= 7;
    }
    to.push(number as u8);
}

impl EntryReader<'_> {
    pub(super) fn varint(&mut self) -> Result<u64, Wrong> {
        let mut number = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return Err(RANGE);
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(RANGE)
    }

    /// A varint that has to be small.
    pub(super) fn short(&mut self) -> Result<u32, Wrong> {
        u32::try_from(self.varint()?).map_err(|_| RANGE)
    }
}

pub(super) fn time(time: Timestamp, to: &mut Vec<u8>) {
    to.extend(time.as_micros().to_le_bytes());
}

impl EntryReader<'_> {
    pub(super) fn time(&mut self) -> Result<Timestamp, Wrong> {
        Ok(Timestamp::from_micros(i64::from_le_bytes(self.array()?)))
    }
}

pub(super) fn duration(duration: Duration, to: &mut Vec<u8>) {
    varint(duration.as_secs(), to);
    varint(duration.subsec_nanos().into(), to);
}

impl EntryReader<'_> {
    pub(super) fn duration(&mut self) -> Result<Duration, Wrong> {
        let (seconds, nanos) = (self.varint()?, self.short()?);
        if nanos < 1_000_000_000 { Ok(Duration::new(seconds, nanos)) } else { Err(RANGE) }
    }
}

pub(super) fn bytes(bytes: &[u8], to: &mut Vec<u8>) {
    varint(bytes.len() as u64, to);
    to.extend_from_slice(bytes);
}

impl<'a> EntryReader<'a> {
    pub(super) fn bytes(&mut self) -> Result<&'a [u8], Wrong> {
        let count = self.count(1)?;
        self.take(count)
    }
}

pub(super) fn text(text: &str, to: &mut Vec<u8>) {
    bytes(text.as_bytes(), to);
}

pub(super) fn name(name: &Name, to: &mut Vec<u8>) {
    text(name.as_str(), to);
}

pub(super) fn error(error: &ErrorText, to: &mut Vec<u8>) {
    text(error.as_str(), to);
}

impl<'a> EntryReader<'a> {
    pub(super) fn text(&mut self) -> Result<&'a str, Wrong> {
        core::str::from_utf8(self.bytes()?).map_err(|_| "a text in it is not UTF-8")
    }

    pub(super) fn name(&mut self) -> Result<Name, Wrong> {
        Name::new(self.text()?).map_err(|_| "a name in it is not a name")
    }

    pub(super) fn error(&mut self) -> Result<ErrorText, Wrong> {
        Ok(ErrorText::new(self.text()?))
    }
}

pub(super) fn option<T>(value: Option<T>, to: &mut Vec<u8>, put: impl FnOnce(T, &mut Vec<u8>)) {
    to.push(u8::from(value.is_some()));
    if let Some(value) = value {
        put(value, to);
    }
}

impl EntryReader<'_> {
    pub(super) fn option<T>(
        &mut self,
        get: impl FnOnce(&mut Self) -> Result<T, Wrong>,
    ) -> Result<Option<T>, Wrong> {
        if self.flag()? { get(self).map(Some) } else { Ok(None) }
    }
}

pub(super) fn list<T>(
    items: impl ExactSizeIterator<Item = T>,
    to: &mut Vec<u8>,
    mut put: impl FnMut(T, &mut Vec<u8>),
) {
    varint(items.len() as u64, to);
    items.for_each(|item| put(item, to));
}

impl EntryReader<'_> {
    /// A list of things of which each takes at least `size` bytes: so a count that is not true
    /// makes nobody allocate more than there can be.
    pub(super) fn list<T, L: FromIterator<T>>(
        &mut self,
        size: usize,
        mut get: impl FnMut(&mut Self) -> Result<T, Wrong>,
    ) -> Result<L, Wrong> {
        (0..self.count(size)?).map(|_| get(self)).collect()
    }

    fn count(&mut self, size: usize) -> Result<usize, Wrong> {
        let count = usize::try_from(self.varint()?).map_err(|_| RANGE)?;
        if count > self.left.len() / size { Err(SHORT) } else { Ok(count) }
    }
}

pub(super) fn id(id: JobId, to: &mut Vec<u8>) {
    to.extend(id.to_bytes());
}

pub(super) fn ids(ids: &[JobId], to: &mut Vec<u8>) {
    list(ids.iter(), to, |each, to| id(*each, to));
}

impl EntryReader<'_> {
    pub(super) fn id(&mut self) -> Result<JobId, Wrong> {
        Ok(JobId::from_bytes(self.array()?))
    }

    pub(super) fn ids(&mut self) -> Result<Vec<JobId>, Wrong> {
        self.list(16, EntryReader::id)
    }
}
