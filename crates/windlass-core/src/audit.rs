//! Who acts, and what is kept of it: the audit trail.
//!
//! A change that names an [`Actor`] leaves an [`AuditEntry`] in the commit that makes it, as an
//! object of a reserved kind ([`crate::reserved::AUDIT`]). What a program does by itself names
//! nobody, leaves nothing and costs nothing.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::filter::Filter;
use crate::job::{JobId, Start};
use crate::ledger::{JobAction, QueueChange};
use crate::limits::{self, at_most};
use crate::name::{Name, excerpt};
use crate::object::{Purge, Turn};
use crate::outcome::cut;
use crate::refusal::Refusal;
use crate::time::Timestamp;

/// Who acts, and from where. Cloning is cheap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Actor {
    name: Arc<str>,
    place: Option<Arc<str>>,
}

impl Actor {
    /// Somebody of this name: of a person, a program or a token. It may have 1 to
    /// [`limits::ACTOR_BYTES`] bytes and no control characters.
    pub fn new(name: &str) -> Result<Self, Refusal> {
        Ok(Self { name: part("name of an actor", name)?, place: None })
    }

    /// From this place: an address, a host or a program, by the same rule.
    pub fn from(self, place: &str) -> Result<Self, Refusal> {
        Ok(Self { place: Some(part("place of an actor", place)?), ..self })
    }

    /// Who.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// From where, if that is known.
    pub fn place(&self) -> Option<&str> {
        self.place.as_deref()
    }
}

fn part(what: &'static str, text: &str) -> Result<Arc<str>, Refusal> {
    at_most(what, text.len(), limits::ACTOR_BYTES, "shorten it")?;
    if text.is_empty() || text.chars().any(char::is_control) {
        let allowed = "it must not be empty or hold control characters".to_string();
        return Err(Refusal::OutOfBounds { what: what.into(), got: excerpt(text), allowed });
    }
    Ok(text.into())
}

/// One change that somebody made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditEntry {
    /// Who made it, and from where.
    pub by: Actor,
    /// When.
    pub at: Timestamp,
    /// What was done: `cancel`, `replay`, `pause`, `clear`, `turn`, …
    pub action: String,
    /// To what: the jobs by their ids or by the filter that chose them, the queue or the object.
    pub target: String,
    /// What else belongs to the action, such as when to start or the value of a setting.
    pub detail: String,
    /// How many jobs it changed, without those that followed.
    pub jobs: u64,
}

impl AuditEntry {
    /// The entry that a store has kept; `None` if it cannot be read.
    pub fn kept(at: Timestamp, state: &[u8]) -> Option<Self> {
        let mut lines = core::str::from_utf8(state).ok()?.split('\n');
        let mut next = || lines.next();
        let (name, place) = (next()?, next()?);
        let by = Actor::new(name).ok()?;
        let by = if place.is_empty() { by } else { by.from(place).ok()? };
        let mut text = || next().map(ToString::to_string);
        let (action, target, detail) = (text()?, text()?, text()?);
        Some(Self { by, at, action, target, detail, jobs: next()?.parse().ok()? })
    }
}

/// What an entry will say, as far as it is known before the change is made.
#[derive(Clone, Debug)]
pub struct AuditNote {
    by: Actor,
    action: &'static str,
    target: String,
    detail: String,
}

impl AuditNote {
    /// Somebody does this to these jobs.
    pub fn of_jobs(by: Actor, action: &JobAction, jobs: &[JobId]) -> Self {
        let named: Vec<String> =
            jobs.iter().take(limits::AUDIT_IDS).map(|job| format!("job:{job}")).collect();
        let mut target = named.join(" ");
        if jobs.len() > limits::AUDIT_IDS {
            target += &format!(" and {} more", jobs.len() - limits::AUDIT_IDS);
        }
        Self::of_action(by, action, target)
    }

    /// Somebody does this to the jobs that a filter means.
    pub fn of_filter(by: Actor, action: &JobAction, filter: &Filter) -> Self {
        Self::of_action(by, action, filter.to_string())
    }

    fn of_action(by: Actor, action: &JobAction, target: String) -> Self {
        let detail = match action {
            JobAction::Reschedule(Start::Now) => "now".to_string(),
            JobAction::Reschedule(Start::After(delay)) => format!("in {delay:?}"),
            JobAction::Reschedule(Start::At(at)) => format!("at {at}"),
            JobAction::ReplayEdited(edited) => format!("as job:{}", edited.id),
            JobAction::Cancel | JobAction::Replay | JobAction::Remove | JobAction::RemoveGraph => {
                String::new()
            }
        };
        Self { by, action: action.as_str(), target, detail }
    }

    /// Somebody changes this setting of a queue.
    pub fn of_setting(by: Actor, queue: &Name, change: &QueueChange) -> Self {
        fn shown(value: Option<impl ToString>) -> String {
            value.map_or_else(|| "none".to_string(), |value| value.to_string())
        }
        let (action, detail) = match change {
            QueueChange::Pause => ("pause", String::new()),
            QueueChange::Resume => ("resume", String::new()),
            QueueChange::MaxDepth(limit) => ("max_depth", shown(*limit)),
            QueueChange::Ageing(step) => ("ageing", shown(step.map(|step| format!("{step:?}")))),
            QueueChange::Lanes(lanes) => ("lanes", shown(*lanes)),
            QueueChange::PauseLane(lane) => ("pause_lane", lane.to_string()),
            QueueChange::ResumeLane(lane) => ("resume_lane", lane.to_string()),
            QueueChange::LaneDepth(limit) => ("lane_depth", shown(*limit)),
            QueueChange::OnDead(kind) => ("on_dead", shown(kind.as_ref())),
            QueueChange::OnEmpty(kind) => ("on_empty", shown(kind.as_ref())),
        };
        Self { by, action, target: format!("queue:{queue}"), detail }
    }

    /// Somebody calls off what waits in a queue.
    pub fn of_clear(by: Actor, queue: &Name) -> Self {
        let target = format!("queue:{queue}");
        Self { by, action: "clear", target, detail: String::new() }
    }

    /// Somebody makes this turn; `None` if nobody is named.
    pub fn of_turn(turn: &Turn) -> Option<Self> {
        let action = match turn.purge {
            Purge::Now => "purge",
            Purge::Keep | Purge::After(_) | Purge::Never => "turn",
        };
        let detail = turn.status.as_ref().map_or("", |(status, _)| status.as_str());
        let (target, detail) = (format!("object:{}", turn.object), detail.to_string());
        Some(Self { by: turn.by.clone()?, action, target, detail })
    }

    /// The entry without its last line, which says how many jobs were changed.
    ///
    /// A line each, because none of the parts can hold a line break: so SQL can write it too.
    pub fn head(&self) -> String {
        let shortened = |text: &str| cut(text, limits::AUDIT_TEXT_BYTES).to_string();
        let place = self.by.place().unwrap_or_default();
        let (target, detail) = (shortened(&self.target), shortened(&self.detail));
        format!("{}\n{place}\n{}\n{target}\n{detail}\n", self.by.name(), self.action)
    }

    /// The entry as it is kept, of a change of so many jobs.
    pub fn state(&self, jobs: u64) -> Vec<u8> {
        (self.head() + &jobs.to_string()).into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_read_as_it_was_noted() {
        let actor = Actor::new("anna").expect("a name").from("10.0.0.7").expect("a place");
        let now = Timestamp::from_millis(1);
        for by in [actor, Actor::new("bob").expect("a name")] {
            let action = JobAction::Reschedule(Start::Now);
            let note = AuditNote::of_jobs(by.clone(), &action, &[JobId::from_u128(7)]);
            let entry = AuditEntry::kept(now, &note.state(3)).expect("it is readable");
            assert_eq!((&entry.by, entry.at, entry.jobs), (&by, now, 3));
            assert_eq!((&*entry.action, &*entry.detail), ("reschedule", "now"));
            assert_eq!(entry.target, format!("job:{}", JobId::from_u128(7)));
        }
    }

    #[test]
    fn however_many_jobs_are_named_an_entry_stays_short() {
        let by = Actor::new(&"n".repeat(limits::ACTOR_BYTES)).expect("a name");
        let jobs: Vec<JobId> = (0..10_000).map(JobId::from_u128).collect();
        let note = AuditNote::of_jobs(by.clone(), &JobAction::Cancel, &jobs);
        let state = note.state(u64::MAX);
        assert!(state.len() < 3 * limits::AUDIT_TEXT_BYTES, "{}", state.len());
        let entry = AuditEntry::kept(Timestamp::default(), &state).expect("it is readable");
        assert!(entry.target.ends_with("and 9990 more"), "{}", entry.target);
        let many = (0..100).map(|n| Name::new(&format!("{n:0100}")).expect("a name")).collect();
        let filter = Filter { kinds: many, ..Filter::default() };
        let state = AuditNote::of_filter(by, &JobAction::Cancel, &filter).state(1);
        assert!(state.len() < 3 * limits::AUDIT_TEXT_BYTES, "{}", state.len());
        assert!(AuditEntry::kept(Timestamp::default(), &state).is_some());
    }

    #[test]
    fn an_actor_has_a_short_printable_name() {
        for bad in ["", "two\nlines", "\0", &"n".repeat(limits::ACTOR_BYTES + 1)] {
            assert!(Actor::new(bad).is_err(), "{bad:?}");
            assert!(Actor::new("anna").and_then(|anna| anna.from(bad)).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_no_entry() {
        for bad in
            [&b""[..], b"anna", b"anna\n\ncancel\n\n\nmany", b"\n\n\n\n\n1", b"\xff\n\n\n\n\n1"]
        {
            assert_eq!(AuditEntry::kept(Timestamp::default(), bad), None);
        }
    }
}
