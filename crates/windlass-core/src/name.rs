//! Names: of kinds, queues and tags. One rule for all, checked once, when the name is made.

use alloc::borrow::Cow;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

use crate::limits;

/// The name of a kind, a queue or a tag: 1 to 128 of `A-Z a-z 0-9 _ - .`, starting with a letter,
/// a digit or `_`, with no two dots in a row.
///
/// The pattern is strict so that a name can stand in a URL, a file name, a SQL identifier or a
/// metric label without quoting. Cloning is cheap.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Arc<str>);

impl Name {
    /// Checks `text` against the rule.
    pub fn new(text: &str) -> Result<Self, InvalidName> {
        let problem = if text.is_empty() {
            Some("is empty")
        } else if text.len() > limits::NAME_BYTES {
            Some("is longer than 128 bytes")
        } else if !text.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b)) {
            Some("has a character other than letters, digits, `_`, `-` and `.`")
        } else if !text.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_') {
            Some("does not start with a letter, a digit or `_`")
        } else if text.contains("..") {
            Some("has two dots in a row")
        } else {
            None
        };
        match problem {
            None => Ok(Self(text.into())),
            Some(problem) => Err(InvalidName { name: excerpt(text), problem: problem.into() }),
        }
    }

    /// No name comes before it.
    pub(crate) fn least() -> Self {
        Self("0".into())
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.0)
    }
}

impl AsRef<str> for Name {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl core::borrow::Borrow<str> for Name {
    fn borrow(&self) -> &str {
        &self.0
    }
}

/// Why a text is not a name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "wire", derive(serde::Serialize, serde::Deserialize))]
#[error("the name `{name}` {problem}")]
pub struct InvalidName {
    /// The text, shortened to what fits a line.
    pub name: String,
    /// What is wrong with it.
    pub problem: Cow<'static, str>,
}

/// The first characters of a text that may be huge or hold control characters.
pub(crate) fn excerpt(text: &str) -> String {
    const SHOWN: usize = 48;
    let mut shown: String = text.chars().take(SHOWN).flat_map(char::escape_debug).collect();
    if text.chars().nth(SHOWN).is_some() {
        shown.push('…');
    }
    shown.to_string()
}

/// The most similar of some names, if any is similar at all.
pub fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a Name>) -> Option<Name> {
    let tolerance = 2 + name.len() / 4;
    known
        .map(|candidate| (distance(name.as_bytes(), candidate.as_str().as_bytes()), candidate))
        .filter(|(distance, _)| *distance <= tolerance)
        .min()
        .map(|(_, candidate)| candidate.clone())
}

/// Letters to insert, delete or replace to get from one name to the other.
fn distance(from: &[u8], to: &[u8]) -> usize {
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.iter().enumerate() {
        let mut diagonal = core::mem::replace(&mut row[0], i + 1);
        for (j, b) in to.iter().enumerate() {
            let replaced = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_names_are_accepted() {
        for name in ["mail", "send_receipt", "email.send", "0-day", "_x", &"a".repeat(128)] {
            assert_eq!(Name::new(name).map(|n| n.to_string()), Ok(name.to_string()));
        }
    }

    #[test]
    fn odd_names_are_refused_with_a_reason_and_a_short_excerpt() {
        for name in ["", "a b", "a/b", "a:b", "..", "a..b", ".a", "-a", "ä", "a\0b", "'; drop"] {
            assert!(Name::new(name).is_err(), "{name:?} was accepted");
        }
        let error = Name::new(&"x".repeat(10_000)).expect_err("too long");
        assert!(error.to_string().len() < 120, "{error}");
    }
}
