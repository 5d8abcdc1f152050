//! Ordinary jobs that keep coming, so that the scenes run beside a load.

use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};
use windlass::Engine;

use crate::demo::jobs::{BuildReport, Charge, Resize, SendReceipt};

/// Orders of the traffic begin here; those of the scenes are lower.
const FIRST_ORDER: u64 = 10_000;

/// How often something may come in.
const BEAT: Duration = Duration::from_millis(25);

/// Enqueues jobs of four kinds until it is dropped. So many orders came in before.
pub(crate) async fn flow(engine: Engine, seed: u64, before: u64) -> anyhow::Result<()> {
    let mut dice = Dice::new(seed);
    let mut order = FIRST_ORDER + before;
    let mut beat = interval(BEAT);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        beat.tick().await;
        order += 1;
        engine.enqueue(receipt(order, &mut dice)).await?;
        if dice.one_in(3) {
            engine.enqueue(charge(order, &mut dice)).await?;
        }
        if dice.one_in(2) {
            let takes_ms = dice.between(60, 260);
            engine.enqueue(Resize { photo: order, takes_ms }).await?;
        }
        if dice.one_in(40) {
            let takes_ms = dice.between(200, 500);
            engine.enqueue(BuildReport { day: 0, takes_ms }).await?;
        }
        if dice.one_in(100) {
            // An album comes in: many jobs in one commit.
            let photos = (0..30).map(|_| Resize { photo: order, takes_ms: dice.between(40, 120) });
            engine.enqueue_many(photos.collect::<Vec<_>>()).await?;
        }
    }
}

fn receipt(order: u64, dice: &mut Dice) -> SendReceipt {
    let takes_ms = dice.between(15, 60);
    SendReceipt { order, to: format!("customer-{order}@example.org"), takes_ms }
}

fn charge(order: u64, dice: &mut Dice) -> Charge {
    let declined = match dice.between(1, 20) {
        1 => 2,
        2..=4 => 1,
        _ => 0,
    };
    let cents = dice.between(500, 20_000);
    Charge { order, cents, declined, takes_ms: dice.between(30, 90) }
}

/// Chance that can be repeated: a xorshift generator, good enough to vary a demonstration.
struct Dice(u64);

impl Dice {
    fn new(seed: u64) -> Self {
        // Spreads small seeds over all bits; the generator needs at least one that is set.
        Self(seed.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    fn roll(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number from `low` to `high`, both included.
    fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.roll() % (high - low + 1)
    }

    fn one_in(&mut self, many: u64) -> bool {
        self.between(1, many) == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_rolls_the_same() {
        let rolls = |seed| {
            let mut dice = Dice::new(seed);
            [(); 8].map(|()| dice.between(1, 1_000_000))
        };
        assert_eq!(rolls(7), rolls(7));
        assert_ne!(rolls(7), rolls(8));
        assert!(rolls(u64::MAX).iter().any(|roll| *roll > 1));
    }
}
