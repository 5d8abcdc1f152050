//! The suite every store must pass.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use windlass::Limits;
use windlass::conformance::{self, Harness};
use windlass::store::Store;

use crate::common::Ground;

struct Schemas(Ground);

#[async_trait]
impl Harness for Schemas {
    async fn fresh(&self, limits: Limits) -> Arc<dyn Store> {
        self.0.store(limits).await
    }

    async fn advance(&self, by: Duration) {
        self.0.advance(by);
    }
}

#[tokio::test(flavor = "current_thread")]
async fn the_postgresql_store_keeps_every_promise_of_the_suite() {
    let Some(ground) = Ground::new() else { return };
    ground.make_clock();
    let broken = conformance::run(Arc::new(Schemas(ground))).await;
    for case in &broken {
        eprintln!("broken: {}\n  {}", case.name, case.seen);
    }
    assert!(broken.is_empty(), "{} promises are broken", broken.len());
}
