//! The suite every store must pass.

use windlass::conformance;

use crate::schemas::judge;

/// `WINDLASS_CASES` picks those whose sentence has it.
#[tokio::test(flavor = "current_thread")]
async fn the_postgresql_store_keeps_every_promise_of_the_suite() {
    let only = std::env::var("WINDLASS_CASES").unwrap_or_default();
    let names = conformance::cases().into_iter().map(|case| case.name);
    let broken =
        judge(names.filter(|name| name.contains(&only)).map(|name| (None, name)).collect());
    let broken = broken.await;
    assert!(broken.is_empty(), "{} promises are broken\n{}", broken.len(), broken.join("\n"));
}
