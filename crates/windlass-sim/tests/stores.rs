//! One contract, and a store of each kind: the same random commands through memory, files,
//! PostgreSQL, a directory that another has open and a server over HTTP give the same answers, and
//! leave the same jobs, objects and counters.
//!
//! What may differ, and nothing else: lease tokens; places in the order of acceptance, of which a
//! database loses some to refused calls; ids of jobs that queues ask for themselves; and how exact
//! an idle store's guess is of when to look again.
//!
//! `WINDLASS_STORES_CASES` sets the number of cases (24 unless set) and `WINDLASS_STORES_SEED` the
//! first of their seeds.

#[path = "stores/answers.rs"]
mod answers;
#[path = "twin/commands.rs"]
mod commands;
#[path = "stores/each.rs"]
mod each;

use windlass_sim::Random;
use windlass_testbed::{Postgres, or_skip};

use crate::each::{EachStore, Server};

const COMMANDS: usize = 60;

fn number(name: &str, otherwise: u64) -> u64 {
    let value = std::env::var(name).ok();
    value.map_or(otherwise, |value| value.parse().expect("a number"))
}

#[tokio::test(flavor = "multi_thread")]
async fn stores_of_every_kind_answer_alike() {
    let Some(postgres) = or_skip(Postgres::shared()) else { return };
    // The isolation level that sessions have by default changes nothing.
    let mut servers = Vec::new();
    for level in ["read committed", "repeatable read", "serializable"] {
        servers.push(Server::new(postgres, level).await);
    }
    let first = number("WINDLASS_STORES_SEED", 1);
    let cases = number("WINDLASS_STORES_CASES", 16);
    println!("seeds {first} to {}", first + cases - 1);
    for seed in first..first + cases {
        let mut random = Random::new(seed);
        let server = &servers[seed as usize % servers.len()];
        let mut each = EachStore::new(server, &mut random).await;
        for step in 0..COMMANDS {
            let taken = each.step(&mut random).await;
            taken.unwrap_or_else(|difference| {
                panic!("seed {seed}, command {step}: {difference}");
            });
        }
        each.end().await;
    }
}
