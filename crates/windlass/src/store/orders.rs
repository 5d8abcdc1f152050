//! Orders to workers: kept as objects, and answered with when the worker says that it lives.

use windlass_core::audit::Actor;
use windlass_core::limits;
use windlass_core::object::{Purge, Turn};
use windlass_core::refusal::Refusal;
use windlass_core::reserved::{self, WorkerOrder};

use super::{Answer, Store, StoreError, StoreExt};

/// How often an order is given anew because another came first, before the caller is told.
const TRIES: u32 = 100;

pub(super) async fn order<S: Store + ?Sized>(
    store: &S,
    worker: &str,
    order: Option<WorkerOrder>,
    by: Option<Actor>,
) -> Answer<()> {
    let address = reserved::order_address(worker)?;
    for _ in 0..TRIES {
        let there = store.object(&address).await?;
        let version = there.map_or(0, |view| view.record.meta.version);
        let turn = Turn { by: by.clone(), ..Turn::new(address.clone(), version) };
        let turn = match order {
            None if version == 0 => return Ok(()),
            None => Turn { purge: Purge::Now, ..turn },
            Some(order) => Turn {
                state: Some(order.as_str().as_bytes().into()),
                purge: Purge::After(limits::ORDER_KEPT),
                ..turn
            },
        };
        match store.turn(turn).await {
            // The worker, or somebody else who gives it orders, came first.
            Err(StoreError::Refused(Refusal::ObjectChanged { .. })) => {}
            other => return other.map(drop),
        }
    }
    let why = format!("the order to worker {worker} changes too fast");
    Err(Refusal::Unavailable { why }.into())
}
