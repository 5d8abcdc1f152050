//! How two programs find out whether they understand each other.

use serde::{Deserialize, Serialize};

/// The protocol that this program speaks.
pub const PROTOCOL: u32 = 1;

/// The oldest protocol that it also understands.
pub const OLDEST_PROTOCOL: u32 = 1;

/// The first message of each side.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The newest protocol that the program speaks.
    pub protocol: u32,
    /// The oldest one that it understands.
    pub oldest: u32,
    /// The version of Windlass it was built with, for people.
    pub version: String,
}

/// Two programs that do not understand each other.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the other program was built with Windlass {theirs}, which is too {age} for this one \
     ({ours}); update {who}"
)]
pub struct ProtocolMismatch {
    theirs: String,
    ours: &'static str,
    age: &'static str,
    who: &'static str,
}

impl Hello {
    /// What this program says.
    pub fn ours() -> Self {
        let version = env!("CARGO_PKG_VERSION").to_string();
        Self { protocol: PROTOCOL, oldest: OLDEST_PROTOCOL, version }
    }

    /// The protocol that both sides speak: the newest that they have in common.
    pub fn agree(&self) -> Result<u32, ProtocolMismatch> {
        let mismatch = |age, who| ProtocolMismatch {
            theirs: self.version.chars().filter(|c| !c.is_control()).take(32).collect(),
            ours: env!("CARGO_PKG_VERSION"),
            age,
            who,
        };
        if self.protocol < OLDEST_PROTOCOL {
            return Err(mismatch("old", "that one"));
        }
        if self.oldest > PROTOCOL {
            return Err(mismatch("new", "this one"));
        }
        Ok(self.protocol.min(PROTOCOL))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_programs_speak_the_newest_protocol_they_have_in_common() {
        assert_eq!(Hello::ours().agree(), Ok(PROTOCOL));
        let newer = Hello { protocol: PROTOCOL + 5, ..Hello::ours() };
        assert_eq!(newer.agree(), Ok(PROTOCOL));
    }

    #[test]
    fn a_program_that_is_too_old_or_too_new_is_refused_in_one_sentence() {
        let old = Hello { protocol: 0, oldest: 0, version: "0.0.1\n".into() };
        let said = old.agree().expect_err("it is too old").to_string();
        assert_eq!(
            said,
            "the other program was built with Windlass 0.0.1, which is too old for this one \
             (0.1.0); update that one"
        );
        let (protocol, oldest) = (PROTOCOL + 2, PROTOCOL + 1);
        let new = Hello { protocol, oldest, version: "9.0.0".into() };
        let said = new.agree().expect_err("it is too new").to_string();
        assert!(said.contains("too new for this one"), "{said}");
        assert!(said.ends_with("update this one"), "{said}");
    }
}
