//! PostgreSQL's protocol, as far as a proxy must know it to cut between two messages.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::proxy::Direction;

/// A whole message, or a piece of a stream that has none.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Message {
    /// Its type; 0 where there is none.
    pub(crate) kind: u8,
    /// The server will answer it, and end that with `ReadyForQuery`.
    pub(crate) asks: bool,
    pub(crate) bytes: Vec<u8>,
}

/// What both directions of a connection know of each other.
#[derive(Debug)]
pub(crate) struct Talk {
    /// No messages can be told apart: another protocol, or it is encrypted.
    opaque: AtomicBool,
    /// The client has asked to encrypt, and the answer is a single byte.
    asked: Mutex<bool>,
}

impl Talk {
    pub(crate) fn new(is_postgres: bool) -> Arc<Self> {
        Arc::new(Self { opaque: AtomicBool::new(!is_postgres), asked: Mutex::new(false) })
    }

    fn asked(&self) -> std::sync::MutexGuard<'_, bool> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Cuts one direction of a connection into messages.
#[derive(Debug)]
pub(crate) struct Framer {
    direction: Direction,
    talk: Arc<Talk>,
    /// The client's first messages have no type.
    starting: bool,
    pending: Vec<u8>,
}

impl Framer {
    pub(crate) fn new(direction: Direction, talk: Arc<Talk>) -> Self {
        let starting = direction == Direction::ToServer;
        Self { direction, talk, starting, pending: Vec::new() }
    }

    /// The messages that are complete with these bytes.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> Vec<Message> {
        self.pending.extend_from_slice(bytes);
        std::iter::from_fn(|| self.next()).collect()
    }

    fn next(&mut self) -> Option<Message> {
        if self.talk.opaque.load(Ordering::SeqCst) {
            let rest = self.pending.len();
            return if rest == 0 { None } else { Some(self.take(0, rest)) };
        }
        if self.direction == Direction::ToClient && *self.talk.asked() {
            return self.agreement();
        }
        let typed = usize::from(!self.starting);
        let length = self.pending.get(typed..typed + 4)?.try_into().map(u32::from_be_bytes).ok()?;
        let whole = typed + usize::try_from(length).ok()?;
        if self.pending.len() < whole {
            return None;
        }
        let kind = if self.starting { 0 } else { *self.pending.first()? };
        let mut message = self.take(kind, whole);
        message.asks = if self.starting {
            self.begin(&message.bytes)
        } else {
            self.direction == Direction::ToServer && matches!(kind, b'Q' | b'S' | b'F')
        };
        Some(message)
    }

    /// The server's word whether the connection is to be encrypted.
    fn agreement(&mut self) -> Option<Message> {
        let answer = *self.pending.first()?;
        *self.talk.asked() = false;
        self.talk.opaque.store(answer != b'N', Ordering::SeqCst);
        Some(self.take(0, 1))
    }

    /// Takes note of one of the client's first messages; whether it opens the connection.
    fn begin(&mut self, message: &[u8]) -> bool {
        const ENCRYPT: [[u8; 4]; 2] = [80_877_103_u32.to_be_bytes(), 80_877_104_u32.to_be_bytes()];
        let asks = message.get(4..8).is_some_and(|code| ENCRYPT.iter().any(|known| known == code));
        *self.talk.asked() = asks;
        self.starting = asks;
        !asks
    }

    fn take(&mut self, kind: u8, length: usize) -> Message {
        let rest = self.pending.split_off(length);
        Message { kind, asks: false, bytes: std::mem::replace(&mut self.pending, rest) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(messages: &[Message]) -> Vec<u8> {
        messages.iter().map(|message| message.kind).collect()
    }

    #[test]
    fn messages_are_found_however_the_stream_is_cut() {
        let stream = b"C\0\0\0\x0bCOMMIT\0Z\0\0\0\x05I";
        for cut in 0..stream.len() {
            let mut framer = Framer::new(Direction::ToClient, Talk::new(true));
            let mut found = framer.feed(&stream[..cut]);
            found.extend(framer.feed(&stream[cut..]));
            assert_eq!(kinds(&found), b"CZ", "cut at {cut}");
            assert_eq!(found[0].bytes, b"C\0\0\0\x0bCOMMIT\0");
        }
    }

    #[test]
    fn a_client_that_asks_to_encrypt_is_understood_until_the_server_agrees() {
        let asks = [0, 0, 0, 8, 4, 210, 22, 47];
        for (answer, then) in [(b'N', b"Z".to_vec()), (b'S', vec![0])] {
            let talk = Talk::new(true);
            let mut client = Framer::new(Direction::ToServer, talk.clone());
            let mut server = Framer::new(Direction::ToClient, talk);
            assert_eq!(kinds(&client.feed(&asks)), [0]);
            assert_eq!(
                server.feed(&[answer]),
                [Message { kind: 0, asks: false, bytes: vec![answer] }]
            );
            assert_eq!(kinds(&server.feed(b"Z\0\0\0\x05I")), then);
        }
    }

    #[test]
    fn what_will_be_answered_is_known() {
        let mut framer = Framer::new(Direction::ToServer, Talk::new(true));
        let stream = b"\0\0\0\x08\0\x03\0\0P\0\0\0\x04S\0\0\0\x04Q\0\0\0\x04X\0\0\0\x04";
        let asks: Vec<bool> = framer.feed(stream).iter().map(|message| message.asks).collect();
        assert_eq!(asks, [true, false, true, true, false]);
    }

    #[test]
    fn another_protocol_passes_as_it_comes() {
        let mut framer = Framer::new(Direction::ToServer, Talk::new(false));
        let [message] = &framer.feed(b"PING\r\n")[..] else { panic!("it is one piece") };
        assert_eq!((message.kind, &message.bytes[..]), (0, &b"PING\r\n"[..]));
    }
}
