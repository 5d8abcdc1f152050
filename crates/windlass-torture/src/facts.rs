//! What a victim says, one line per fact, and how the harness reads it.
//!
//! A fact is written with one call, before whatever it announces and after whatever it reports, so
//! a victim that is killed at any instruction has said at most too little: a line that is cut off
//! counts as not said. It begins with when it was said, by the wall clock: so what several victims
//! said is put in order, however late their pipes are read.

use std::fmt;
use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::str::FromStr;
use std::sync::Mutex;
use std::time::{SystemTime, UNIX_EPOCH};

use windlass::StateName;

use crate::plan::{End, Id};

/// One line.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Fact {
    /// The store is about to be opened.
    Opening,
    /// It was opened, and this was found.
    Opened { jobs: u64, recovered: u64, torn: bool, micros: u64 },
    /// Who owns the store, from now on.
    Role(Role),
    /// It could not be opened, or the victim could not go on.
    Failed(String),
    /// These are about to be enqueued, in one call.
    Try(Vec<Id>),
    /// They were acknowledged.
    Ack(Vec<Id>),
    /// The first was not added, because the second holds its key.
    Same(Id, Id),
    /// They were refused: nothing was changed.
    Refused(Why, Vec<Id>),
    /// No answer came.
    Unknown(Vec<Id>),
    /// These are about to be deleted.
    Drop(Vec<Id>),
    /// They are deleted.
    Gone(Vec<Id>),
    /// A handler starts.
    Run { id: Id, attempt: u32, token: u64 },
    /// The handler that was started under this token has ended, or was dropped.
    Left { id: Id, token: u64 },
    /// An outcome was told.
    End(Id, End),
    /// The store holds this job. `lost` are the attempts that its record says were lost with their
    /// worker: unlike `recoveries`, they do not begin anew when it completes.
    Have { id: Id, standing: Standing, attempts: u32, recoveries: u32, lost: u32 },
    /// How many jobs the counters say there are, in the order of [`StateName::ALL`].
    Counted([u64; 7]),
    /// Everything that is wrong with the store was told, and every job in it.
    Listed,
    /// No job is open any more.
    Drained,
    /// Something that must never be.
    Wrong(String),
}

/// Who owns the store, as a victim sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// This victim.
    Owner,
    /// Another one, which it has joined.
    Joined,
    /// Nobody that is known.
    Seeking,
}

/// When something was said or done: microseconds of the wall clock, which is one for all processes.
pub(crate) type Stamp = u64;

/// This moment.
pub(crate) fn stamp() -> Stamp {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    now.as_micros() as Stamp
}

/// A line as it is said, and as it is read.
pub(crate) fn read_line(line: &str) -> Result<(Stamp, Fact), String> {
    let (at, fact) = line.split_once(' ').ok_or("it has no stamp")?;
    Ok((number(at)?, fact.parse()?))
}

/// Why an enqueue was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// There is no room.
    Full,
    /// The store gave up after a failure.
    Broken,
    /// A dependency is unknown or has failed.
    Dependency,
    /// Anything else.
    Other,
}

/// Where a job stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    Open(StateName),
    Ended(End),
}

impl fmt::Display for Fact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fact::Opening => f.write_str("opening"),
            Fact::Opened { jobs, recovered, torn, micros } => {
                write!(f, "opened {jobs} {recovered} {torn} {micros}")
            }
            Fact::Role(role) => write!(f, "role {}", role.word()),
            Fact::Failed(why) => write!(f, "failed {}", one_line(why)),
            Fact::Try(ids) => several(f, "try", ids),
            Fact::Ack(ids) => several(f, "ack", ids),
            Fact::Same(id, holder) => write!(f, "same {id} {holder}"),
            Fact::Refused(why, ids) => several(f, &format!("refused {}", why.word()), ids),
            Fact::Unknown(ids) => several(f, "unknown", ids),
            Fact::Drop(ids) => several(f, "drop", ids),
            Fact::Gone(ids) => several(f, "gone", ids),
            Fact::Run { id, attempt, token } => write!(f, "run {id} {attempt} {token}"),
            Fact::Left { id, token } => write!(f, "left {id} {token}"),
            Fact::End(id, end) => write!(f, "end {id} {end}"),
            Fact::Have { id, standing, attempts, recoveries, lost } => {
                write!(f, "have {id} {standing} {attempts} {recoveries} {lost}")
            }
            Fact::Counted(states) => {
                f.write_str("counted")?;
                states.iter().try_for_each(|count| write!(f, " {count}"))
            }
            Fact::Listed => f.write_str("listed"),
            Fact::Drained => f.write_str("drained"),
            Fact::Wrong(what) => write!(f, "wrong {}", one_line(what)),
        }
    }
}

fn several(f: &mut fmt::Formatter<'_>, word: &str, ids: &[Id]) -> fmt::Result {
    f.write_str(word)?;
    ids.iter().try_for_each(|id| write!(f, " {id}"))
}

fn one_line(text: &str) -> String {
    text.replace('\n', " | ")
}

impl FromStr for Fact {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let words: Vec<&str> = rest.split_whitespace().collect();
        let at = |index: usize| words.get(index).copied().unwrap_or_default();
        let ids = |from: usize| -> Result<Vec<Id>, String> {
            words.iter().skip(from).map(|id| id.parse()).collect()
        };
        Ok(match word {
            "opening" => Fact::Opening,
            "opened" => Fact::Opened {
                jobs: number(at(0))?,
                recovered: number(at(1))?,
                torn: at(2) == "true",
                micros: number(at(3))?,
            },
            "role" => Fact::Role(Role::of(at(0))?),
            "failed" => Fact::Failed(rest.to_string()),
            "try" => Fact::Try(ids(0)?),
            "ack" => Fact::Ack(ids(0)?),
            "same" => Fact::Same(at(0).parse()?, at(1).parse()?),
            "refused" => Fact::Refused(Why::of(at(0))?, ids(1)?),
            "unknown" => Fact::Unknown(ids(0)?),
            "drop" => Fact::Drop(ids(0)?),
            "gone" => Fact::Gone(ids(0)?),
            "run" => Fact::Run {
                id: at(0).parse()?,
                attempt: number(at(1))? as u32,
                token: number(at(2))?,
            },
            "left" => Fact::Left { id: at(0).parse()?, token: number(at(1))? },
            "end" => Fact::End(at(0).parse()?, at(1).parse()?),
            "have" => Fact::Have {
                id: at(0).parse()?,
                standing: at(1).parse()?,
                attempts: number(at(2))? as u32,
                recoveries: number(at(3))? as u32,
                lost: number(at(4))? as u32,
            },
            "counted" => {
                let mut states = [0; 7];
                for (index, count) in states.iter_mut().enumerate() {
                    *count = number(at(index))?;
                }
                Fact::Counted(states)
            }
            "listed" => Fact::Listed,
            "drained" => Fact::Drained,
            "wrong" => Fact::Wrong(rest.to_string()),
            other => return Err(format!("`{other}` is no fact")),
        })
    }
}

fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("`{text}` is no number"))
}

impl Role {
    const ALL: [Role; 3] = [Role::Owner, Role::Joined, Role::Seeking];

    fn word(self) -> &'static str {
        match self {
            Role::Owner => "owner",
            Role::Joined => "joined",
            Role::Seeking => "seeking",
        }
    }

    fn of(word: &str) -> Result<Self, String> {
        let role = Self::ALL.into_iter().find(|role| role.word() == word);
        role.ok_or_else(|| format!("`{word}` is no role"))
    }
}

impl Why {
    const ALL: [Why; 4] = [Why::Full, Why::Broken, Why::Dependency, Why::Other];

    fn word(self) -> &'static str {
        match self {
            Why::Full => "full",
            Why::Broken => "broken",
            Why::Dependency => "dependency",
            Why::Other => "other",
        }
    }

    fn of(word: &str) -> Result<Self, String> {
        let why = Self::ALL.into_iter().find(|why| why.word() == word);
        why.ok_or_else(|| format!("`{word}` is no reason"))
    }
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Standing::Open(state) => state.fmt(f),
            Standing::Ended(end) => end.fmt(f),
        }
    }
}

impl FromStr for Standing {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut open = StateName::ALL.into_iter().filter(|state| !state.is_terminal());
        match open.find(|state| state.as_str() == text) {
            Some(state) => Ok(Standing::Open(state)),
            None => text.parse().map(Standing::Ended),
        }
    }
}

/// Where a victim says its facts.
pub(crate) struct Speaker(Mutex<File>);

impl Speaker {
    pub(crate) fn new() -> anyhow::Result<Self> {
        Ok(Self(Mutex::new(std::io::stdout().as_fd().try_clone_to_owned()?.into())))
    }

    /// Says a fact. A victim that nobody hears any more ends.
    pub(crate) fn say(&self, fact: Fact) {
        self.say_all(&[fact]);
    }

    /// Says facts in one write.
    pub(crate) fn say_all(&self, facts: &[Fact]) {
        let mut out = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        // Read with the pipe in hand, so that no line is older than the one before it.
        let now = stamp();
        let lines: String = facts.iter().map(|fact| format!("{now} {fact}\n")).collect();
        if out.write_all(lines.as_bytes()).is_err() {
            std::process::exit(3);
        }
    }
}

#[cfg(test)]
mod tests {
    use windlass::DeadReason;

    use super::*;
    use crate::plan::Mix;

    #[test]
    fn every_fact_is_read_as_it_was_said() {
        let id = Id { session: 7, producer: 2, mix: Mix::Mixed, number: 90 };
        let other = Id { number: 91, ..id };
        let standing = Standing::Open(StateName::Blocked);
        let facts = [
            Fact::Opening,
            Fact::Opened { jobs: 3, recovered: 2, torn: true, micros: 9 },
            Fact::Role(Role::Seeking),
            Fact::Failed("no such luck".to_string()),
            Fact::Try(vec![id, other]),
            Fact::Ack(vec![id]),
            Fact::Same(id, other),
            Fact::Refused(Why::Full, vec![id, other]),
            Fact::Unknown(vec![id]),
            Fact::Drop(vec![id]),
            Fact::Gone(vec![id]),
            Fact::Run { id, attempt: 2, token: 1 << 40 },
            Fact::Left { id, token: 7 },
            Fact::End(id, End::Dead(DeadReason::Crashed)),
            Fact::Have { id, standing, attempts: 2, recoveries: 0, lost: 1 },
            Fact::Counted([1, 2, 3, 4, 5, 6, 7]),
            Fact::Listed,
            Fact::Drained,
            Fact::Wrong("this".to_string()),
        ];
        for fact in facts {
            assert_eq!(read_line(&format!("12 {fact}")), Ok((12, fact)));
        }
    }
}
