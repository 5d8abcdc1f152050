//! The suite every store must pass.

use crate::schemas::{Trial, judge};

/// `WINDLASS_CASES` picks those whose sentence has it.
#[tokio::test(flavor = "current_thread")]
async fn the_postgresql_store_keeps_every_promise_of_the_suite() {
    let only = std::env::var("WINDLASS_CASES").unwrap_or_default();
    let mut trials = Trial::all(None);
    trials.retain(|trial| trial.case.contains(&only));
    let broken = judge(trials).await;
    assert!(broken.is_empty(), "{} promises are broken\n{}", broken.len(), broken.join("\n"));
}
