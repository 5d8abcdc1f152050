//! What is different for a victim on a directory that other victims have open too.
//!
//! It opens the directory as a user does, so it owns it or joins whoever does, and it says which.
//! Events are gone when their owner is, so it counts what is open and not what it has heard.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use anyhow::Context;
use windlass::store::{DirectoryOptions, DirectoryStore, OpenDirectory};
use windlass::{Engine, Ownership, StateName};

use super::{WorkOptions, file_options, limits, recovery, say_opened};
use crate::facts::{Fact, Role, Speaker};

/// How often a victim looks whether it owns the directory: whoever kills owners wants to know soon.
const LOOK: Duration = Duration::from_millis(2);

/// How often it counts what is open.
const COUNT: Duration = Duration::from_millis(20);

/// Opens the directory, or joins the process that has it open. How the journal is cut cannot be
/// said to an engine, so with that it is the store that is opened, as an engine does.
pub(super) async fn open(options: &WorkOptions) -> anyhow::Result<Engine> {
    let builder = Engine::builder().limits(limits()).recovery(recovery());
    if options.segment_bytes.is_none() && options.checkpoint_bytes.is_none() {
        let path = options.path.to_str().context("the path is no text")?;
        return Ok(builder.durability(options.durability).open(path).await?);
    }
    let how = DirectoryOptions { file: file_options(options), ..DirectoryOptions::default() };
    let OpenDirectory { store, clock, wake } = DirectoryStore::open(&options.path, how).await?;
    Ok(builder.on_store(store, wake, clock)?)
}

/// Who owns it now.
pub(super) fn role(engine: &Engine) -> Role {
    match engine.store().info().ownership {
        Some(Ownership::Owner) => Role::Owner,
        Some(Ownership::Joined { .. }) => Role::Joined,
        Some(Ownership::Seeking) | None => Role::Seeking,
    }
}

/// Says whenever the owner changes, and what this victim found when it took over.
pub(super) async fn watch_role(engine: Engine, speaker: Arc<Speaker>, first: Role) {
    let mut known = first;
    loop {
        tokio::time::sleep(LOOK).await;
        let now = role(&engine);
        if now != known {
            known = now;
            speaker.say(Fact::Role(now));
            if now == Role::Owner {
                say_opened(engine.store().info().opened.as_deref(), &speaker);
            }
        }
    }
}

/// Keeps account of what is open.
pub(super) async fn count_open(engine: Engine, open: Arc<AtomicI64>) {
    loop {
        if let Ok(counts) = engine.counts().await {
            let states = StateName::ALL.into_iter().filter(|state| !state.is_terminal());
            let now: u64 = states.map(|state| counts.in_state(state)).sum();
            open.store(now as i64, Ordering::Relaxed);
        }
        tokio::time::sleep(COUNT).await;
    }
}
