//! Orders of one customer are shipped in their order, those of different customers at once.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use windlass::primitives::{PoolContext, PoolEvent, WorkerPool};
use windlass::{Engine, Error, Failure, Received, Retry, Topics};

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Order {
    customer: String,
    number: u32,
}

async fn ship(order: Order, context: PoolContext) -> Result<(), Failure> {
    let Order { customer, number } = order;
    if customer == "acme" && number == 1 && !context.is_retry() {
        return Err(Failure::retry("the van is late"));
    }
    if number == 13 {
        return Err(Failure::permanent("nobody ships that"));
    }
    println!("{customer} {number} is shipped (run {})", context.number());
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let shipping = WorkerPool::new("shipping", 4, ship)
        .options(|options| options.retry(Retry::constant(Duration::from_millis(50))))
        .lane_depth(1_000)
        .on_dead_letter(|letter| async move {
            println!("{} {} is lost: {}", letter.event.customer, letter.event.number, letter.error);
            Ok::<_, Failure>(())
        });

    let store = std::env::args().nth(1).unwrap_or_else(|| "memory:".to_string());
    let engine = Engine::open(&store).await?;
    let mut ended = engine.subscribe(Topics::all().topic("job.completed").topic("job.dead"))?;
    let worker = engine.worker().pool(&shipping).start().await?;
    let pool = engine.pool(&shipping);
    for (customer, number) in [("acme", 1), ("acme", 2), ("initech", 13), ("initech", 14)] {
        let order = Order { customer: customer.into(), number };
        let event = PoolEvent::new(order).key(customer).id(format!("{customer}-{number}"));
        let queued = pool.enqueue(event).await?;
        println!("{customer} {number} waits behind {}", queued.position.unwrap_or(0));
    }
    // Four events, and the hook for the one that died.
    for _ in 0..5 {
        if let Received::Lagged { missed } = ended.next().await {
            println!("{missed} events missed");
        }
    }
    let status = pool.status().await?;
    println!("{} shipped, {} waiting", status.completed, status.pending);
    worker.stop().await?;
    engine.close().await;
    Ok(())
}
