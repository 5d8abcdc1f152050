//! An order as a durable state machine: it waits for a payment, and is given up if none comes.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use windlass::primitives::{StateMachine, Task, TaskContext};
use windlass::{Engine, Error, Failure, Topics};

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
enum Order {
    #[default]
    New,
    Unpaid(u64),
    Paid,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
enum Event {
    Placed(u64),
    Paid(u64),
    Shipped,
}

struct Orders;

impl StateMachine for Orders {
    type State = Order;
    type Event = Event;

    async fn on_event(&self, order: &mut TaskContext<Order>, event: Event) -> Result<(), Failure> {
        let next = match (&order.state, &event) {
            (Order::New, Event::Placed(cents)) => {
                order.schedule(Duration::from_millis(300));
                Order::Unpaid(*cents)
            }
            (Order::Unpaid(due), Event::Paid(cents)) if cents >= due => {
                order.cancel_alarm();
                Order::Paid
            }
            (Order::Paid, Event::Shipped) => {
                order.terminate();
                Order::Paid
            }
            // Goes to the dead letters, and the next event goes on.
            (state, event) => return Err(Failure::permanent(format!("{event:?} in {state:?}"))),
        };
        println!("{}: {:?} -> {next:?}", order.key(), order.state);
        order.state = next;
        Ok(())
    }

    async fn on_alarm(&self, order: &mut TaskContext<Order>) -> Result<(), Failure> {
        println!("{}: no payment came", order.key());
        order.terminate();
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let orders = Task::new("orders", Orders);
    let store = std::env::args().nth(1).unwrap_or_else(|| "memory:".to_string());
    let engine = Engine::open(&store).await?;
    let mut ended = engine.subscribe(Topics::all().topic("task.terminated"))?;
    let worker = engine.worker().primitive(orders.clone()).start().await?;
    let client = engine.task(&orders);
    client.send("order-7", Event::Placed(500)).await?;
    client.send("order-7", Event::Shipped).await?; // not yet
    client.send_once("order-7", "payment-1", Event::Paid(500)).await?;
    client.send("order-7", Event::Shipped).await?;
    client.send("order-8", Event::Placed(900)).await?;
    ended.next().await;
    ended.next().await;
    for dead in engine.dead_letters().page(None, 10).await?.jobs {
        println!("dead letter: {}", String::from_utf8_lossy(&dead.job.payload));
    }
    worker.stop().await?;
    Ok(())
}
