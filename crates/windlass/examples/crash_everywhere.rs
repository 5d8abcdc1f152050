//! A handler that charges a card twice when its process dies at the wrong moment; the test kit
//! finds the moment, and shows that the repaired handler has none.

use std::panic::catch_unwind;
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use windlass::testing::{Setup, crash_everywhere};
use windlass::{Attempt, BoxError, Engine, Failure, Job, State};

#[derive(Serialize, Deserialize)]
struct Checkout {
    order: u64,
}

impl Job for Checkout {
    const KIND: &'static str = "checkout";
    type Output = ();
}

/// The outside world, which does not crash with us: every charge, and every receipt.
#[derive(Default)]
struct Shop {
    charges: Mutex<Vec<String>>,
    receipts: Mutex<Vec<u64>>,
}

impl Shop {
    /// Charges a card. A provider remembers the keys it has seen, and charges once for each.
    fn charge(&self, key: String) {
        let mut charges = self.charges.lock().unwrap_or_else(PoisonError::into_inner);
        if !charges.contains(&key) {
            charges.push(key);
        }
    }

    fn send_receipt(&self, order: u64) {
        self.receipts.lock().unwrap_or_else(PoisonError::into_inner).push(order);
    }
}

/// The bug: every attempt charges under a key of its own.
async fn naive(job: Checkout, attempt: Attempt, shop: State<Shop>) -> Result<(), Failure> {
    shop.charge(attempt.fence());
    shop.send_receipt(job.order);
    Ok(())
}

/// The repair: all attempts of a job share its id, whatever happens to the process.
async fn fixed(job: Checkout, attempt: Attempt, shop: State<Shop>) -> Result<(), Failure> {
    shop.charge(attempt.id().to_string());
    shop.send_receipt(job.order);
    Ok(())
}

async fn buy(engine: Engine, _: Arc<Shop>) -> Result<(), BoxError> {
    engine.enqueue(Checkout { order: 7 }).await?;
    Ok(())
}

/// A receipt may come twice. Money may not be taken twice.
async fn charged_once(_: Engine, shop: Arc<Shop>) -> Result<(), BoxError> {
    match shop.charges.lock().unwrap_or_else(PoisonError::into_inner).len() {
        0 | 1 => Ok(()),
        charges => Err(format!("the card was charged {charges} times").into()),
    }
}

fn main() {
    std::panic::set_hook(Box::new(|_| {})); // the message is printed below
    let with_naive = || Setup::new(Shop::default(), |worker| worker.handle(naive));
    let found = catch_unwind(|| crash_everywhere(with_naive, buy, charged_once));
    let message = found.err().and_then(|panic| panic.downcast::<String>().ok());
    println!("naive: {}\n", message.map_or("nothing found".to_string(), |message| *message));

    let with_fixed = || Setup::new(Shop::default(), |worker| worker.handle(fixed));
    let points = crash_everywhere(with_fixed, buy, charged_once);
    println!("fixed: {points} crash points, and never more than one charge");
}
