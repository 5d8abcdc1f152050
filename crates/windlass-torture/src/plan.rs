//! What a job of the torture does, derived from its id alone.
//!
//! The victim that enqueues it, the victim of another life that runs it, and the harness that
//! judges
//! it need not tell each other anything: whoever knows the id knows the payload, the delay, the
//! dependencies and the outcome. So an enqueue whose answer was lost can be repeated by anyone.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use windlass::core::job::{Dependency, NewJob, Unique, UniqueScope};
use windlass::{DeadReason, JobId, Lane, Name, OnFailure, Start};

use crate::random::{Random, mix};

/// Which job: the victim that made it, which of its producers, and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Id {
    pub(crate) session: u32,
    pub(crate) producer: u16,
    pub(crate) mix: Mix,
    pub(crate) number: u32,
}

/// What kind of jobs a producer makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, clap::ValueEnum)]
pub(crate) enum Mix {
    /// Everything: quick, slow, failing, delayed, dependent, unique.
    Mixed,
    /// Handlers that end the process.
    Poison,
    /// Nothing but delays.
    Delayed,
    /// Payloads that fill a disk.
    Bulky,
    /// Quick and harmless: nothing but completions.
    Plain,
    /// Of a few keys, each of which starts its jobs in the order of acceptance, one at a time.
    Keyed,
}

impl Mix {
    const ALL: [Mix; 6] =
        [Mix::Mixed, Mix::Poison, Mix::Delayed, Mix::Bulky, Mix::Plain, Mix::Keyed];

    fn letter(self) -> char {
        match self {
            Mix::Mixed => 'm',
            Mix::Poison => 'p',
            Mix::Delayed => 'd',
            Mix::Bulky => 'b',
            Mix::Plain => 'q',
            Mix::Keyed => 'k',
        }
    }
}

/// Marks the ids of the torture: a job without it is nobody's.
const MARK: u32 = 0x7042_7042;

impl Id {
    pub(crate) fn job(self) -> JobId {
        let mix = Mix::ALL.iter().position(|mix| *mix == self.mix).unwrap_or(0) as u128;
        let head = u128::from(MARK) << 96 | u128::from(self.session) << 64;
        JobId::from_u128(head | u128::from(self.producer) << 48 | mix << 32 | self.number as u128)
    }

    pub(crate) fn of(job: JobId) -> Option<Self> {
        let bits = u128::from_be_bytes(job.to_bytes());
        let mix = Mix::ALL.get((bits >> 32) as u16 as usize)?;
        let id = Id {
            session: (bits >> 64) as u32,
            producer: (bits >> 48) as u16,
            mix: *mix,
            number: bits as u32,
        };
        (id.job() == job).then_some(id)
    }

    fn before(self) -> Option<Self> {
        let number = self.number.checked_sub(1)?;
        Some(Id { number, ..self })
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Id { session, producer, mix, number } = self;
        write!(f, "{session}{}{producer}.{number}", mix.letter())
    }
}

impl FromStr for Id {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parse = || {
            let at = text.find(|c: char| c.is_ascii_alphabetic())?;
            let mix = Mix::ALL.into_iter().find(|mix| text[at..].starts_with(mix.letter()))?;
            let (producer, number) = text[at + 1..].split_once('.')?;
            Some(Id {
                session: text[..at].parse().ok()?,
                producer: producer.parse().ok()?,
                mix,
                number: number.parse().ok()?,
            })
        };
        parse().ok_or_else(|| format!("`{text}` is not a job of the torture"))
    }
}

/// How its handler behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Behaviour {
    /// Succeeds after a while.
    Complete(Duration),
    /// Fails so many times, then succeeds.
    FailFirst(u32),
    /// Fails as often as it may run.
    FailAlways,
    /// Fails for good at once.
    Permanent,
    /// Asks for later until it is so old, then succeeds.
    Snooze(Duration),
    /// Ends the process, if the victim was asked to let it.
    Abort,
}

/// Everything about one job.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) id: Id,
    pub(crate) behaviour: Behaviour,
    pub(crate) delay: Option<Duration>,
    pub(crate) depends_on: Option<Id>,
    pub(crate) on_failure: OnFailure,
    pub(crate) max_attempts: u32,
    /// May be deleted when it has finished.
    pub(crate) removable: bool,
    /// Jobs with the same start in order, one at a time, whoever made them.
    pub(crate) key: Option<u64>,
    unique: Option<u64>,
    payload_bytes: usize,
}

/// A delay that no round waits for.
pub(crate) const LONG: Duration = Duration::from_secs(1_800);

/// The kind and the queues of all jobs.
pub(crate) const KIND: &str = "torture";
const QUEUES: [&str; 3] = ["left", "right", "middle"];

/// The queue of jobs with a key, and how many keys there are.
const POOL: &str = "pool";
const KEYS: u64 = 12;

impl Plan {
    pub(crate) fn of(id: Id) -> Self {
        let mut random = Random::new(mix(u128::from_be_bytes(id.job().to_bytes())));
        let plain = Plan {
            id,
            behaviour: Behaviour::Complete(Duration::ZERO),
            delay: None,
            depends_on: None,
            on_failure: OnFailure::Cascade,
            max_attempts: 20,
            removable: false,
            key: None,
            unique: None,
            payload_bytes: 20,
        };
        match id.mix {
            Mix::Mixed => Self::mixed(plain, &mut random),
            Mix::Poison => {
                // Half may run more often than they may be recovered, half less.
                let max_attempts = if id.number.is_multiple_of(2) { 20 } else { 2 };
                Self { behaviour: Behaviour::Abort, max_attempts, ..plain }
            }
            Mix::Delayed => {
                let millis = Duration::from_millis(random.below(800));
                let delay = Some(if random.one_in(8) { LONG } else { millis });
                Self { delay, removable: !random.one_in(4), ..plain }
            }
            Mix::Bulky => {
                let behaviour = Behaviour::Complete(Duration::from_millis(random.between(0, 100)));
                let payload_bytes = random.between(2_000, 30_000) as usize;
                Self { behaviour, payload_bytes, removable: random.one_in(2), ..plain }
            }
            Mix::Plain => {
                let behaviour = Behaviour::Complete(Duration::from_millis(random.below(3)));
                Self { behaviour, ..plain }
            }
            Mix::Keyed => Self::keyed(plain, &mut random),
        }
    }

    /// Mostly quick, so that there is much to put in order; some fail, and hold the others back
    /// until they are tried again.
    fn keyed(plain: Plan, random: &mut Random) -> Self {
        let behaviour = match random.below(20) {
            0..14 => Behaviour::Complete(Duration::from_millis(random.below(4))),
            14..16 => Behaviour::Complete(Duration::from_millis(random.between(20, 120))),
            16..19 => Behaviour::FailFirst(1),
            _ => Behaviour::Permanent,
        };
        Self { behaviour, key: Some(random.below(KEYS)), removable: random.one_in(4), ..plain }
    }

    fn mixed(plain: Plan, random: &mut Random) -> Self {
        let behaviour = match random.below(100) {
            0..50 => Behaviour::Complete(Duration::ZERO),
            50..75 => Behaviour::Complete(Duration::from_millis(random.between(1, 15))),
            75..80 => Behaviour::Complete(Duration::from_millis(random.between(20, 150))),
            80..90 => Behaviour::FailFirst(random.between(1, 2) as u32),
            90..93 => Behaviour::FailAlways,
            93..96 => Behaviour::Permanent,
            _ => Behaviour::Snooze(Duration::from_millis(random.between(10, 60))),
        };
        let depends_on = if random.one_in(10) { plain.id.before() } else { None };
        let delay = random.one_in(10).then(|| Duration::from_millis(random.between(1, 120)));
        let ignore = random.one_in(3);
        Self {
            behaviour,
            delay,
            depends_on,
            on_failure: if ignore { OnFailure::Ignore } else { OnFailure::Cascade },
            max_attempts: if behaviour == Behaviour::FailAlways { 2 } else { 20 },
            removable: !random.one_in(3),
            unique: random.one_in(12).then(|| random.below(6)),
            payload_bytes: match random.below(20) {
                0 => random.between(4_000, 20_000) as usize,
                1..4 => random.between(200, 4_000) as usize,
                _ => random.between(0, 200) as usize,
            },
            ..plain
        }
    }

    /// The payload as it must arrive at the handler: a JSON text, different for every job.
    pub(crate) fn text(&self) -> String {
        let mut text = self.id.to_string();
        let mut random = Random::new(u64::from(self.id.number));
        while text.len() < self.payload_bytes {
            text.push_str(&random.next().to_string());
        }
        text
    }

    /// The job as its producer hands it over. Unique keys only in calls of one: a batch is then
    /// either wholly there or not at all.
    pub(crate) fn new_job(&self, alone: bool) -> anyhow::Result<NewJob> {
        let queue = match self.key {
            Some(_) => POOL,
            None => QUEUES[self.id.number as usize % QUEUES.len()],
        };
        let payload = format!("\"{}\"", self.text());
        let id = self.id.job();
        let dependency = |on: Id| Dependency { on: on.job(), on_failure: self.on_failure };
        Ok(NewJob {
            start: self.delay.map_or(Start::Now, Start::After),
            depends_on: self.depends_on.map(dependency).into_iter().collect(),
            max_attempts: Some(self.max_attempts),
            lane: self.key.map(|key| Lane::Key(format!("key {key}"))),
            unique: self.unique.filter(|_| alone).map(|key| Unique {
                key: format!("key {key}"),
                scope: UniqueScope::Open,
                window: None,
            }),
            ..NewJob::new(id, Name::new(KIND)?, Name::new(queue)?, payload.into_bytes())
        })
    }

    /// Whether the job may end like this. `crashed` says that it was lost as often as it may be.
    pub(crate) fn may_end(&self, end: End, crashed: bool) -> bool {
        match end {
            End::Completed => match self.behaviour {
                Behaviour::Complete(_) | Behaviour::FailFirst(_) | Behaviour::Snooze(_) => true,
                Behaviour::FailAlways | Behaviour::Permanent | Behaviour::Abort => false,
            },
            End::Dead(DeadReason::AttemptsExhausted) => self.behaviour == Behaviour::FailAlways,
            End::Dead(DeadReason::Permanent) => self.behaviour == Behaviour::Permanent,
            End::Dead(DeadReason::Crashed) => crashed,
            End::Dead(DeadReason::DependencyFailed) => {
                self.depends_on.is_some() && self.on_failure == OnFailure::Cascade
            }
            End::Dead(DeadReason::DurationExhausted) | End::Cancelled => false,
        }
    }
}

/// How a job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Completed,
    Dead(DeadReason),
    Cancelled,
}

const DEAD_REASONS: [(DeadReason, &str); 5] = [
    (DeadReason::AttemptsExhausted, "attempts"),
    (DeadReason::Permanent, "permanent"),
    (DeadReason::DurationExhausted, "duration"),
    (DeadReason::Crashed, "crashed"),
    (DeadReason::DependencyFailed, "dependency"),
];

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            End::Completed => "completed",
            End::Cancelled => "cancelled",
            End::Dead(reason) => {
                let word = DEAD_REASONS.iter().find(|(known, _)| known == reason);
                word.map_or("dead", |(_, word)| word)
            }
        })
    }
}

impl FromStr for End {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "completed" => Ok(End::Completed),
            "cancelled" => Ok(End::Cancelled),
            other => DEAD_REASONS
                .iter()
                .find(|(_, word)| *word == other)
                .map(|(reason, _)| End::Dead(*reason))
                .ok_or_else(|| format!("`{text}` is no end")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_survives_its_text_and_its_number() {
        for mix in Mix::ALL {
            let id = Id { session: 4_000_000_000, producer: 65_000, mix, number: u32::MAX };
            assert_eq!(id.to_string().parse(), Ok(id));
            assert_eq!(Id::of(id.job()), Some(id));
        }
        assert_eq!(Id::of(JobId::from_u128(7)), None);
    }
}
