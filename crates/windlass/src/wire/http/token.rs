//! The secret that a server asks its clients for.

use std::fmt;

/// The fewest characters of a token.
const FEWEST: usize = 16;

/// A token: what a client says to be let in. It is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

/// A text that is no token. The text is not repeated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidToken {
    /// It could be guessed.
    #[error("the token is too short: it must have at least {FEWEST} characters")]
    Short,
    /// It cannot be sent.
    #[error("the token has a character that is no ASCII letter, digit or punctuation mark")]
    Character,
}

impl Token {
    /// Takes a text for a token: at least 16 visible characters of ASCII.
    pub fn new(text: impl Into<String>) -> Result<Self, InvalidToken> {
        let text = text.into();
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(InvalidToken::Character);
        }
        if text.len() < FEWEST {
            return Err(InvalidToken::Short);
        }
        Ok(Self(text))
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether this is the token. It takes as long wherever they differ.
    pub fn is(&self, said: &[u8]) -> bool {
        let ours = self.0.as_bytes();
        let differ = ours.iter().zip(said).fold(0, |differ, (a, b)| differ | (a ^ b));
        std::hint::black_box(differ) == 0 && ours.len() == said.len()
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_long_can_be_sent_and_is_never_printed() {
        let token = Token::new("0123456789abcdef").expect("it is long enough");
        assert_eq!(format!("{token:?}"), "Token(…)");
        assert_eq!(Token::new("0123456789abcde"), Err(InvalidToken::Short));
        for bad in
            ["0123456789abcde ", "0123456789abcdef\n", "0123456789abcdé", "\0abcdefghijklmnop"]
        {
            assert_eq!(Token::new(bad), Err(InvalidToken::Character));
        }
    }

    #[test]
    fn only_the_whole_token_is_the_token() {
        let token = Token::new("0123456789abcdef").expect("it is long enough");
        assert!(token.is(b"0123456789abcdef"));
        for wrong in ["", "0123456789abcde", "0123456789abcdeg", "0123456789abcdefg"] {
            assert!(!token.is(wrong.as_bytes()), "{wrong}");
        }
    }
}
