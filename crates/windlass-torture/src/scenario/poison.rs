//! Handlers that end their process.
//!
//! A start is counted when the job is claimed, so a handler that never comes back cannot run more
//! often than it may, and then the job is dead as crashed. Whoever waits is unharmed. Whoever ran
//! beside it is recovered; and if it runs beside it each time, it shares its fate, because nobody
//! can tell which of them it was. How many did is part of the summary.

use std::os::unix::process::ExitStatusExt;

use windlass::DeadReason;

use super::{Life, Settings, Verdict};
use crate::ledger::Tally;
use crate::machine::Machine;
use crate::plan::{End, Id, Mix, Plan};
use crate::random::Random;
use crate::victim::recovery;

/// Poisonous jobs in each round, and harmless ones for each of them.
const JOBS: u32 = 4;
const NEIGHBOURS: u16 = 5;

/// More crashes than a store of them can need.
const CRASHES: u32 = 60;

const ABORTED: i32 = 6;

pub(super) fn run(machine: &Machine, rounds: u64, mut random: Random) -> anyhow::Result<Verdict> {
    let (mut verdict, mut tally) = (Verdict::default(), Tally::default());
    let (mut crashes, mut shared_its_fate) = (0, 0);
    for round in 0..rounds {
        let session = (random.next() as u32) & !0xffff;
        let path = machine.directory("poison");
        let mut life = Life::new(path, machine.aside(), Settings::default(), session);
        // One by one, where every start can be told; then side by side.
        let slots = if round % 2 == 0 { 1 } else { 8 };
        crashes += crash_until_drained(&mut life, slots)?;
        life.check()?;
        life.ledger.all_ended();
        shared_its_fate += judge(&mut life, slots);
        verdict.add(&mut tally, life);
    }
    let fate = format!("{shared_its_fate} neighbours died beside it");
    verdict.summary = format!("{crashes} crashes, {fate}, {tally}");
    Ok(verdict)
}

fn crash_until_drained(life: &mut Life, slots: u32) -> anyhow::Result<u32> {
    for crash in 0..CRASHES {
        let launch = life.victim_that_repeats()?.option("--slots", slots).with("--poison");
        let launch = match crash {
            0 => {
                let producers = launch.option("--producers", NEIGHBOURS + 1);
                producers.option("--mixes", "poison,plain,plain,plain,plain,plain")
            }
            _ => launch.option("--producers", 0),
        };
        let said = launch.option("--jobs", JOBS).run()?;
        life.ledger.take_over(&said);
        match said.status.signal() {
            Some(ABORTED) => {}
            _ if said.status.success() => return Ok(crash),
            _ => {
                let wrong = format!("a victim ended with {}: {}", said.status, said.errors);
                life.ledger.wrong.push(wrong);
                return Ok(crash);
            }
        }
    }
    life.ledger.wrong.push(format!("{CRASHES} crashes were not enough"));
    Ok(CRASHES)
}

/// Holds every job to what it may come to; how many died for another.
fn judge(life: &mut Life, slots: u32) -> u32 {
    let mut jobs: Vec<Id> = life.ledger.acknowledged().collect();
    jobs.sort_unstable();
    let mut shared_its_fate = 0;
    for id in jobs {
        let (starts, end) = (life.ledger.starts_of(id), life.ledger.end_of(id));
        let shown = end.map(|end| end.to_string()).unwrap_or_default();
        let crashed = end == Some(End::Dead(DeadReason::Crashed));
        if id.mix == Mix::Poison {
            let allowed = Plan::of(id).max_attempts.min(recovery().max_recoveries + 1);
            // Side by side, one handler may end the process before another has said that it runs.
            let exact = if slots == 1 { starts == allowed } else { starts <= allowed };
            if !exact || !crashed {
                let wrong = format!("{id} started {starts} times of {allowed}, and is {shown}");
                life.ledger.wrong.push(wrong);
            }
        } else if crashed && slots > 1 {
            // The ledger has made sure that it was recovered as often as may be.
            shared_its_fate += 1;
        } else if end != Some(End::Completed) {
            let wrong = format!("{id} waited beside poison, started {starts} times: {shown}");
            life.ledger.wrong.push(wrong);
        }
    }
    shared_its_fate
}
