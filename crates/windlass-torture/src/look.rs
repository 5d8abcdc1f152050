//! Looking at a store without changing it: is it whole, and what is in it?

use std::path::Path;

use windlass::store::file::{self, BookOptions, FileOptions};
use windlass::{
    DeadReason, Durability, Engine, JobRecord, JobState, OpenError, Recovery, RecoveryMode,
    StateName,
};

use crate::facts::{Fact, Speaker, Standing};
use crate::plan::{End, Id};
use crate::victim::{limits, open_engine};

/// Reads and compares every byte, then opens the store, leaves what was running as it is, and lists
/// every job.
#[tokio::main(flavor = "current_thread")]
pub(crate) async fn check(path: &Path) -> anyhow::Result<()> {
    let speaker = Speaker::new()?;
    match file::check(path) {
        Ok(checked) => {
            let wrong: Vec<Fact> = checked.wrong.into_iter().map(Fact::Wrong).collect();
            speaker.say_all(&wrong);
        }
        // Whoever was killed before it began left nothing; if it left more, the list is short.
        Err(OpenError::NoStore { .. }) => {}
        Err(error) => speaker.say(Fact::Failed(error.to_string())),
    }
    let recovery = Recovery { mode: RecoveryMode::Observe, ..Recovery::default() };
    let book = BookOptions { limits: limits(), recovery, segment_bytes: None };
    match open_engine(path, FileOptions { book, durability: Durability::Sync }) {
        Ok(engine) => {
            list(&engine, &speaker).await?;
            engine.close().await;
        }
        Err(error) => speaker.say(Fact::Failed(format!("{error:#}"))),
    }
    Ok(())
}

/// Says every job in the store, and what the counters say.
pub(crate) async fn list(engine: &Engine, speaker: &Speaker) -> anyhow::Result<()> {
    let mut after = None;
    loop {
        let page = engine.jobs().page(after, 1_000).await?;
        speaker.say_all(&page.jobs.iter().map(have).collect::<Vec<Fact>>());
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    let counts = engine.counts().await?;
    let counted = StateName::ALL.map(|state| counts.in_state(state));
    speaker.say_all(&[Fact::Counted(counted), Fact::Listed]);
    Ok(())
}

fn have(record: &JobRecord) -> Fact {
    let Some(id) = Id::of(record.id()) else {
        return Fact::Wrong(format!("the store holds a stranger: {}", record.id()));
    };
    let attempts = record.condition.attempts;
    Fact::Have { id, standing: standing(record), attempts, recoveries: record.condition.recoveries }
}

/// Where a job stands.
pub(crate) fn standing(record: &JobRecord) -> Standing {
    let dead = |reason: DeadReason| Standing::Ended(End::Dead(reason));
    match record.condition.state {
        JobState::Completed { .. } => Standing::Ended(End::Completed),
        JobState::Dead { reason, .. } => dead(reason),
        JobState::Cancelled { .. } => Standing::Ended(End::Cancelled),
        JobState::Blocked { .. }
        | JobState::Scheduled { .. }
        | JobState::Ready { .. }
        | JobState::Running(_) => Standing::Open(record.state()),
    }
}
