//! Looking at a store that nobody has open: is it whole, and what is in it?

use std::path::Path;

use windlass::core::filter::Filter;
use windlass::store::file::{self, OfflineStore};
use windlass::store::{Cursor, Page};
use windlass::{
    AttemptEnd, AttemptRecord, Counts, DeadReason, Engine, JobRecord, JobState, OpenError,
    StateName,
};

use crate::facts::{Fact, Speaker, Standing};
use crate::plan::{End, Id};

const PAGE: usize = 1_000;

/// Reads and compares every byte, then says every job. Nothing is written: what is said is what the
/// last victim left.
pub(crate) fn check(path: &Path) -> anyhow::Result<()> {
    let speaker = Speaker::new()?;
    match file::check(path) {
        Ok(checked) => {
            let wrong: Vec<Fact> = checked.wrong.into_iter().map(Fact::Wrong).collect();
            speaker.say_all(&wrong);
        }
        // Whoever was killed before it began left nothing; if it left more, the list is short.
        Err(OpenError::NoStore { .. }) => {
            say_counts(&Counts::default(), &speaker);
            return Ok(());
        }
        Err(error) => {
            speaker.say(Fact::Failed(error.to_string()));
            return Ok(());
        }
    }
    let mut look = OfflineStore::open(path)?;
    let mut after = None;
    loop {
        after = say_page(&look.list(&Filter::default(), after, PAGE)?, &speaker);
        if after.is_none() {
            break;
        }
    }
    say_counts(&look.counts(), &speaker);
    Ok(())
}

/// Says every job in a store that is open, and what the counters say.
pub(crate) async fn list(engine: &Engine, speaker: &Speaker) -> anyhow::Result<()> {
    let mut after = None;
    loop {
        after = say_page(&engine.jobs().page(after, PAGE).await?, speaker);
        if after.is_none() {
            break;
        }
    }
    say_counts(&engine.counts().await?, speaker);
    Ok(())
}

fn say_page(page: &Page, speaker: &Speaker) -> Option<Cursor> {
    speaker.say_all(&page.jobs.iter().map(have).collect::<Vec<Fact>>());
    page.next
}

fn say_counts(counts: &Counts, speaker: &Speaker) {
    let counted = StateName::ALL.map(|state| counts.in_state(state));
    speaker.say_all(&[Fact::Counted(counted), Fact::Listed]);
}

fn have(record: &JobRecord) -> Fact {
    let Some(id) = Id::of(record.id()) else {
        return Fact::Wrong(format!("the store holds a stranger: {}", record.id()));
    };
    let lost =
        |attempt: &&AttemptRecord| matches!(attempt.ended, Some((_, AttemptEnd::Crashed(_))));
    Fact::Have {
        id,
        standing: standing(record),
        attempts: record.status.attempts,
        recoveries: record.status.recoveries,
        lost: record.attempts.iter().filter(lost).count() as u32,
    }
}

/// Where a job stands.
pub(crate) fn standing(record: &JobRecord) -> Standing {
    let dead = |reason: DeadReason| Standing::Ended(End::Dead(reason));
    match record.status.state {
        JobState::Completed { .. } => Standing::Ended(End::Completed),
        JobState::Dead { reason, .. } => dead(reason),
        JobState::Cancelled { .. } => Standing::Ended(End::Cancelled),
        JobState::Blocked { .. }
        | JobState::Scheduled { .. }
        | JobState::Ready { .. }
        | JobState::Running(_) => Standing::Open(record.state()),
    }
}
