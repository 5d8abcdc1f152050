//! Waiting for events: the one loop by which a store lets a reader wait for the next commit.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use windlass_core::event::Event;

use super::Answer;
use crate::clock::Clock;

/// Looks until there are events, or for as long as `wait`: whenever `committed` changes, and every
/// `look_again` in case it does not, as when another process commits.
pub(crate) async fn events_within<Looked>(
    wait: Duration,
    look_again: Duration,
    clock: &dyn Clock,
    mut committed: watch::Receiver<u64>,
    mut look: impl FnMut() -> Looked,
) -> Answer<Vec<Arc<Event>>>
where
    Looked: Future<Output = Answer<Vec<Arc<Event>>>>,
{
    let began = clock.now().steady;
    loop {
        // Before looking: a commit between the look and the wait still ends the wait
        // (`a_reader_that_waits_is_told_of_the_next_event` of the conformance suite).
        committed.mark_unchanged();
        let events = look().await?;
        let left = wait.saturating_sub(clock.now().steady.since(began));
        if !events.is_empty() || left.is_zero() {
            return Ok(events);
        }
        tokio::select! {
            biased;
            told = committed.changed() => {
                if told.is_err() {
                    return Ok(events);
                }
                // Other tasks that are ready run first, and may commit more that is read with it.
                tokio::task::yield_now().await;
            }
            () = clock.sleep(left.min(look_again)) => {}
        }
    }
}
