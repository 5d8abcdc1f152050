//! Messages as bytes: the length, then the message.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// The most bytes of a call. An answer may be longer: it is what was asked for.
pub const CALL_BYTES: usize = 256 << 20;

/// How many bytes tell the length.
const LENGTH: usize = 4;

/// Bytes that are no message of the other side.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidFrame {
    /// It says to be longer than is taken.
    #[error("a message of {bytes} bytes; at most {most} are taken: send fewer jobs at once")]
    TooLong {
        /// Its length.
        bytes: u64,
        /// The most that is taken.
        most: usize,
    },
    /// It cannot be read.
    #[error("a message that cannot be read: {0}")]
    Unreadable(String),
}

/// Appends a message to what is to be sent.
pub fn encode<T: Serialize>(message: &T, to: &mut Vec<u8>) -> Result<(), InvalidFrame> {
    let begin = to.len();
    to.extend_from_slice(&[0; LENGTH]);
    let written = rmp_serde::encode::write_named(to, message)
        .map_err(|error| InvalidFrame::Unreadable(error.to_string()));
    let bytes = to.len() - begin - LENGTH;
    let length = u32::try_from(bytes).map_err(|_| {
        let most = u32::MAX as usize;
        InvalidFrame::TooLong { bytes: bytes as u64, most }
    });
    match written.and(length) {
        Ok(length) => {
            to[begin..begin + LENGTH].copy_from_slice(&length.to_le_bytes());
            Ok(())
        }
        Err(error) => {
            to.truncate(begin);
            Err(error)
        }
    }
}

/// Reads a message, without its length.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, InvalidFrame> {
    rmp_serde::from_slice(bytes).map_err(|error| InvalidFrame::Unreadable(error.to_string()))
}

/// Cuts what arrives into messages, however it arrives.
#[derive(Debug)]
pub struct Frames {
    arrived: Vec<u8>,
    /// How much of it was handed out.
    taken: usize,
    most: usize,
}

impl Frames {
    /// Takes messages of at most so many bytes.
    pub fn up_to(most: usize) -> Self {
        Self { arrived: Vec::new(), taken: 0, most }
    }

    /// Takes what has arrived.
    pub fn push(&mut self, bytes: &[u8]) {
        self.room(bytes.len()).extend_from_slice(bytes);
    }

    /// Where what arrives is put, at the end, with room for so much. Room is made for what is
    /// there, never for what is announced.
    pub(super) fn room(&mut self, bytes: usize) -> &mut Vec<u8> {
        if self.taken > 0 {
            self.arrived.drain(..self.taken);
            self.taken = 0;
        }
        self.arrived.reserve(bytes);
        &mut self.arrived
    }

    /// Whether bytes have arrived that are not handed out: part of a message, or all of it.
    #[cfg(feature = "remote")]
    pub(super) fn has_more(&self) -> bool {
        self.taken < self.arrived.len()
    }

    /// The next message, without its length, if all of it has arrived. After an error the
    /// connection is of no more use: nobody knows where the next message begins.
    pub fn take(&mut self) -> Result<Option<&[u8]>, InvalidFrame> {
        let left = &self.arrived[self.taken..];
        let Some((length, rest)) = left.split_first_chunk::<LENGTH>() else { return Ok(None) };
        let length = u32::from_le_bytes(*length) as usize;
        if length > self.most {
            return Err(InvalidFrame::TooLong { bytes: length as u64, most: self.most });
        }
        if rest.len() < length {
            return Ok(None);
        }
        let begin = self.taken + LENGTH;
        self.taken = begin + length;
        Ok(Some(&self.arrived[begin..begin + length]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_whole_however_they_are_cut() {
        let mut sent = Vec::new();
        for text in ["one", "", "three"] {
            encode(&text, &mut sent).expect("it fits");
        }
        for step in 1..=sent.len() {
            let (mut frames, mut seen) = (Frames::up_to(100), Vec::new());
            for piece in sent.chunks(step) {
                frames.push(piece);
                while let Some(message) = frames.take().expect("it is a message") {
                    seen.push(decode::<String>(message).expect("it is text"));
                }
            }
            assert_eq!(seen, ["one", "", "three"], "in pieces of {step}");
        }
    }

    #[test]
    fn a_message_that_says_to_be_huge_is_refused_before_it_arrives() {
        let mut frames = Frames::up_to(1_000);
        frames.push(&u32::MAX.to_le_bytes());
        assert!(matches!(frames.take(), Err(InvalidFrame::TooLong { most: 1_000, .. })));
    }
}
