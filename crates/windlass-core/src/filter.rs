//! Which jobs are meant: by state, kind, queue, tag and time.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

use crate::job::{JobId, StateName};
use crate::ledger::JobSummary;
use crate::name::Name;
use crate::record::JobRecord;
use crate::time::Timestamp;

/// A set of jobs. An empty list means any; the conditions hold together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "wire", derive(serde::Serialize, serde::Deserialize))]
pub struct Filter {
    /// In one of these states.
    pub states: Vec<StateName>,
    /// Of one of these kinds.
    pub kinds: Vec<Name>,
    /// In one of these queues.
    pub queues: Vec<Name>,
    /// With all of these tags.
    pub tags: Vec<Name>,
    /// Accepted at this time or later.
    pub created_from: Option<Timestamp>,
    /// Accepted before this time.
    pub created_before: Option<Timestamp>,
    /// That follow from this job: they name it as their `parent`.
    pub parent: Option<JobId>,
    /// That wait for this job, on which they depend.
    pub blocked_by: Option<JobId>,
    /// In which order a list gives them. A change of many jobs goes by acceptance, whatever this
    /// says.
    pub order: Order,
}

/// The order of a list of jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "wire", derive(serde::Serialize, serde::Deserialize))]
pub enum Order {
    /// The last accepted first.
    #[default]
    NewestFirst,
    /// The first accepted first. Jobs that are accepted meanwhile come at the end.
    OldestFirst,
}

impl Order {
    /// The cursor of a page that is to begin with the job of this sequence.
    pub const fn cursor(self, sequence: u64) -> u64 {
        match self {
            Order::NewestFirst => sequence.saturating_add(1),
            Order::OldestFirst => sequence,
        }
    }
}

/// What is asked for, as `word:value` pairs; `all jobs` if nothing is.
impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fn any(word: &str, values: &[impl ToString]) -> Option<String> {
            let values: Vec<String> = values.iter().map(ToString::to_string).collect();
            (!values.is_empty()).then(|| format!("{word}:{}", values.join(",")))
        }
        let said =
            [any("state", &self.states), any("kind", &self.kinds), any("queue", &self.queues)];
        let tags = self.tags.iter().map(|tag| format!("tag:{tag}"));
        let rest = [
            self.created_from.map(|from| format!("created_from:{from}")),
            self.created_before.map(|before| format!("created_before:{before}")),
            self.parent.map(|parent| format!("parent:{parent}")),
            self.blocked_by.map(|job| format!("blocked_by:{job}")),
        ];
        let said: Vec<String> =
            said.into_iter().flatten().chain(tags).chain(rest.into_iter().flatten()).collect();
        match said.is_empty() {
            true => f.write_str("all jobs"),
            false => f.write_str(&said.join(" ")),
        }
    }
}

impl Filter {
    /// Whether the filter means this job, as it looks at `now`.
    pub fn matches(&self, record: &JobRecord, now: Timestamp) -> bool {
        self.may_mean(record.state_at(now), &record.job.kind, &record.job.queue)
            && self.tags.iter().all(|tag| record.job.tags.contains(tag))
            && self.created_from.is_none_or(|from| record.created_at >= from)
            && self.created_before.is_none_or(|before| record.created_at < before)
            && (self.parent.is_none() || record.job.parent == self.parent)
            && self.blocked_by.is_none_or(|on| record.is_blocked_by(on))
    }

    /// Whether the filter may mean this candidate of the ledger, by its state, kind and queue
    /// alone: if not, its record need not be read.
    pub fn may_match(&self, summary: &JobSummary<'_>) -> bool {
        self.may_mean(summary.state, summary.kind, summary.queue)
    }

    /// Whether only records can tell which jobs are meant, by what they say of a job for good.
    pub fn needs_record(&self) -> bool {
        !self.tags.is_empty()
            || self.created_from.is_some()
            || self.created_before.is_some()
            || self.parent.is_some()
    }

    fn may_mean(&self, state: StateName, kind: &Name, queue: &Name) -> bool {
        let any = |list: &[Name], name: &Name| list.is_empty() || list.contains(name);
        (self.states.is_empty() || self.states.contains(&state))
            && any(&self.kinds, kind)
            && any(&self.queues, queue)
    }
}
