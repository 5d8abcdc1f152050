//! The memory store passes the public suite.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use windlass::Limits;
use windlass::conformance::{Harness, cases, run};
use windlass::store::{MemoryStore, Store};
use windlass::testing::VirtualClock;
use windlass::wake::LocalWake;

struct Memory {
    clock: Arc<VirtualClock>,
}

#[async_trait]
impl Harness for Memory {
    async fn fresh(&self, limits: Limits) -> Arc<dyn Store> {
        Arc::new(MemoryStore::new(limits, self.clock.clone(), Arc::new(LocalWake::new())))
    }

    async fn advance(&self, by: Duration) {
        tokio::time::advance(by).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_memory_store_keeps_every_promise_of_the_suite() {
    let broken = run(Arc::new(Memory { clock: Arc::new(VirtualClock::new()) })).await;
    let told: Vec<String> =
        broken.iter().map(|broken| format!("{}: {}", broken.name, broken.seen)).collect();
    assert!(
        broken.is_empty(),
        "{} of {} broken:\n{}",
        broken.len(),
        cases().len(),
        told.join("\n")
    );
}
