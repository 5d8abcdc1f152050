//! The file store and its twin in memory: the same random commands, the same answers, the same
//! records, whatever happens to the process between them.
//!
//! The twin is a plain ledger with its records in a map. The other has its journal on a simulated
//! disk, and is closed, killed and cut off among the commands; nothing that has landed may be lost.
//! Opening it recovers what was running, and the twin is told to do the same. Two things may
//! differ, and nothing else: lease tokens jump ahead with an opening, and a renewal alone is not
//! kept in the record.
//!
//! `WINDLASS_TWIN_CASES` sets the number of cases (2,000 unless set) and `WINDLASS_TWIN_SEED` the
//! first of their seeds.

#[path = "twin/commands.rs"]
mod commands;
#[path = "twin/pair.rs"]
mod pair;

use windlass_sim::Random;

use crate::pair::Pair;

const COMMANDS: usize = 60;

fn number(name: &str, otherwise: u64) -> u64 {
    let value = std::env::var(name).ok();
    value.map_or(otherwise, |value| value.parse().expect("a number"))
}

fn check(half: u64) {
    let cases = number("WINDLASS_TWIN_CASES", 2_000) / 2;
    let first = number("WINDLASS_TWIN_SEED", 1) + half * cases;
    println!("seeds {first} to {}", first + cases - 1);
    for seed in first..first + cases {
        let mut random = Random::new(seed);
        let mut pair = Pair::new(&mut random);
        for step in 0..COMMANDS {
            pair.step(&mut random).unwrap_or_else(|difference| {
                panic!("seed {seed}, command {step}: {difference}");
            });
        }
        pair.reopen(&mut random).unwrap_or_else(|difference| {
            panic!("seed {seed}, at the end: {difference}");
        });
    }
}

/// Two tests share the cases, so that two cores work on them.
#[test]
fn the_file_store_answers_as_its_twin_in_memory_in_the_first_half_of_the_cases() {
    check(0);
}

#[test]
fn the_file_store_answers_as_its_twin_in_memory_in_the_second_half_of_the_cases() {
    check(1);
}
