//! How much room a command needs where its records are kept, and what it is called in an error.
//!
//! A store that may be full asks before a command is decided, because a decision cannot be taken
//! back. So this is an estimate, and never below what is written in the end.

use windlass_core::job::NewJob;
use windlass_core::ledger::{
    Claim, Clear, Command, Configure, Enqueue, Heartbeat, JobAction, Promote, Renew, Renewal,
    Rescue, RescueLost, Settle, Settlement,
};
use windlass_core::limits;
use windlass_core::object::{Alarm, Turn};
use windlass_core::record::Step;

/// How much a command may write.
#[derive(Clone, Copy, Debug)]
pub enum Need {
    /// It adds jobs: refused when only the reserve is left.
    Growth(Size),
    /// It moves on what is there.
    Progress(Size),
}

impl Need {
    /// It moves on what is there, and adds next to nothing.
    pub const LITTLE: Self = Self::Progress(Size { all: 0, largest: 0 });

    /// An audit entry besides, if there is one.
    pub fn and_audit(self, is_audited: bool) -> Self {
        /// An entry has three parts of bounded length, and what is kept of any object.
        const ENTRY: u64 = 3 * limits::AUDIT_TEXT_BYTES as u64 + 2_048;
        let with = |Size { all, largest }| match is_audited {
            true => Size { all: all + ENTRY, largest: largest.max(ENTRY) },
            false => Size { all, largest },
        };
        match self {
            Self::Growth(size) => Self::Growth(with(size)),
            Self::Progress(size) => Self::Progress(with(size)),
        }
    }

    /// What people do to jobs moves on what is there, but for an edited job, which is a new one.
    pub fn of_action(action: &JobAction) -> Self {
        match action {
            JobAction::ReplayEdited(edited) => {
                Self::Growth([job_size(edited)].into_iter().collect())
            }
            JobAction::Cancel
            | JobAction::Reschedule(_)
            | JobAction::Replay
            | JobAction::Remove
            | JobAction::RemoveGraph => Self::LITTLE,
        }
    }
}

/// About how many bytes something takes in the journal.
#[derive(Clone, Copy, Debug, Default)]
pub struct Size {
    /// All of it.
    pub all: u64,
    /// The largest part that must stand in one piece.
    pub largest: u64,
}

impl FromIterator<u64> for Size {
    /// From the bytes of each part.
    fn from_iter<T: IntoIterator<Item = u64>>(parts: T) -> Self {
        parts.into_iter().fold(Self::default(), |Self { all, largest }, part| Self {
            all: all + part,
            largest: largest.max(part),
        })
    }
}

/// A command as a store is asked for it.
pub trait Verb: Command {
    /// What it is called in an error.
    const DOING: &'static str;

    /// How much it may write.
    fn need(&self) -> Need {
        Need::LITTLE
    }
}

impl Verb for Enqueue {
    const DOING: &'static str = "enqueue";

    fn need(&self) -> Need {
        Need::Growth(self.jobs.iter().map(|job| job_size(job)).collect())
    }
}

impl Verb for Claim {
    const DOING: &'static str = "claim";

    fn need(&self) -> Need {
        let all = self.limit.min(limits::CLAIM_JOBS) as u64 * 256;
        Need::Progress(Size { all, largest: 0 })
    }
}

impl Verb for Renew {
    const DOING: &'static str = "renew";

    fn need(&self) -> Need {
        let report = |renewal: &Renewal| {
            let lines = renewal.report.lines.iter().map(|line| line.text.len() as u64 + 64);
            lines.chain(step_sizes(&renewal.report.steps)).sum::<u64>() + 256
        };
        Need::Progress(self.renewals.iter().map(report).collect())
    }
}

impl Verb for Settle {
    const DOING: &'static str = "settle";

    fn need(&self) -> Need {
        let size = |settlement: &Settlement| {
            let output = settlement.output.as_ref().map_or(0, |output| output.len());
            let steps = step_sizes(&settlement.report.steps);
            output as u64 + steps.sum::<u64>() + 1_024
        };
        let next = self.settlements.iter().flat_map(|settlement| &settlement.next);
        let turns = self.settlements.iter().filter_map(|settlement| settlement.turn.as_deref());
        let sizes = self.settlements.iter().map(size).chain(next.map(|job| job_size(job)));
        Need::Progress(sizes.chain(turns.flat_map(turn_sizes)).collect())
    }
}

impl Verb for Turn {
    const DOING: &'static str = "turn";

    fn need(&self) -> Need {
        Need::Growth(turn_sizes(self).collect()).and_audit(self.by.is_some())
    }
}

impl Verb for Rescue {
    const DOING: &'static str = "rescue";
}

impl Verb for RescueLost {
    const DOING: &'static str = "rescue";
}

impl Verb for Promote {
    const DOING: &'static str = "promote";
}

impl Verb for Configure {
    const DOING: &'static str = "configure";

    fn need(&self) -> Need {
        Need::LITTLE.and_audit(self.by.is_some())
    }
}

impl Verb for Clear {
    const DOING: &'static str = "clear";

    fn need(&self) -> Need {
        Need::LITTLE.and_audit(self.by.is_some())
    }
}

impl Verb for Heartbeat {
    const DOING: &'static str = "announce";
}

fn job_size(job: &NewJob) -> u64 {
    let labels: usize = job.metadata.iter().map(|(key, value)| key.len() + value.len() + 8).sum();
    (job.payload.len() + labels + job.depends_on.len() * 17 + 1_024) as u64
}

fn step_sizes(steps: &[Step]) -> impl Iterator<Item = u64> {
    steps.iter().map(|step| step.result.len() as u64 + 160)
}

fn turn_sizes(turn: &Turn) -> impl Iterator<Item = u64> {
    let state = turn.state.as_ref().map_or(0, |state| state.len()) as u64 + 2_048;
    let alarm = match &turn.alarm {
        Alarm::Set(job) => Some(job_size(job)),
        Alarm::Keep | Alarm::Cancel | Alarm::Move(_) => None,
    };
    turn.jobs.iter().map(|job| job_size(job)).chain(alarm).chain([state])
}
