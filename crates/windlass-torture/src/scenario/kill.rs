//! Processes that are killed, stopped and started twice.
//!
//! A kill takes nothing that was handed to the system, so it says nothing about syncs; it says
//! whether every instruction is a good one to be killed at, the opening's too.

use std::time::Duration;

use super::{Life, Settings, Verdict, millis};
use crate::facts::Fact;
use crate::ledger::Tally;
use crate::machine::Machine;
use crate::process::Launch;
use crate::random::Random;

/// Kills in one store's life.
const KILLS: u64 = 12;

pub(super) fn run(machine: &Machine, rounds: u64, mut random: Random) -> anyhow::Result<Verdict> {
    let (mut verdict, mut tally) = (Verdict::default(), Tally::default());
    let mut left = rounds;
    while left > 0 {
        let mut life = begin(machine, &mut random)?;
        for _ in 0..left.min(KILLS) {
            one_round(&mut life, &mut random)?;
            if !life.ledger.wrong.is_empty() {
                break;
            }
        }
        left -= left.min(KILLS);
        if life.ledger.wrong.is_empty() {
            life.drain()?;
        }
        let path = life.path.clone();
        verdict.add(&mut tally, life);
        if !verdict.wrong.is_empty() {
            break;
        }
        std::fs::remove_dir_all(path)?;
    }
    verdict.summary = tally.to_string();
    Ok(verdict)
}

fn begin(machine: &Machine, random: &mut Random) -> anyhow::Result<Life> {
    let settings = Settings {
        // What was answered survives a kill under either.
        durability: random.one_in(4).then(|| "relaxed:50".to_string()),
        ..Settings::random(random)
    };
    let session = (random.next() as u32) & !0xffff;
    // On a disk, where syncs take their time, and in memory, where everything races.
    let path = if random.one_in(2) { machine.directory("kill") } else { machine.memory("kill") };
    Ok(Life::new(path, machine.aside(), settings, session))
}

fn one_round(life: &mut Life, random: &mut Random) -> anyhow::Result<()> {
    // Either somebody looks first, or the next victim is the first to see what the last one left.
    if random.one_in(2) {
        life.check()?;
    }
    let mut launch = if random.one_in(2) { life.victim_that_repeats()? } else { life.victim() };
    if random.one_in(2) {
        launch = launch.with("--list");
    }
    match random.below(10) {
        0..6 => work_and_die(life, &launch, random),
        6..8 => die_while_opening(life, &launch, random),
        8 => sleep_past_the_lease(life, launch.option("--lease-ms", 1_000), random),
        _ => two_at_once(life, &launch, random),
    }
}

fn work_and_die(life: &mut Life, launch: &Launch, random: &mut Random) -> anyhow::Result<()> {
    let victim = launch.start()?;
    victim.is_open();
    std::thread::sleep(millis(random, 20, 300));
    life.ledger.take_over(&victim.kill()?);
    Ok(())
}

fn die_while_opening(life: &mut Life, launch: &Launch, random: &mut Random) -> anyhow::Result<()> {
    let victim = launch.start()?;
    victim.hears(Duration::from_secs(10), |fact| *fact == Fact::Opening);
    std::thread::sleep(millis(random, 0, 6));
    life.ledger.take_over(&victim.kill()?);
    Ok(())
}

/// A process that is stopped for longer than its leases last wakes up as somebody else: what it
/// still runs may have been given to others.
fn sleep_past_the_lease(
    life: &mut Life,
    launch: Launch,
    random: &mut Random,
) -> anyhow::Result<()> {
    let victim = launch.start()?;
    victim.is_open();
    std::thread::sleep(millis(random, 50, 150));
    victim.signal("STOP")?;
    std::thread::sleep(millis(random, 1_050, 1_300));
    let mark = victim.mark();
    victim.signal("CONT")?;
    let acknowledged = |fact: &Fact| matches!(fact, Fact::Ack(_));
    let mut count = 0;
    let awake = victim.wait_for(mark, Duration::from_secs(10), |facts| {
        count += facts.iter().filter(|(_, fact)| acknowledged(fact)).count();
        count > 20
    });
    if !awake {
        life.ledger.wrong.push("a victim that was stopped and continued did not go on".into());
    }
    life.ledger.take_over(&victim.kill()?);
    Ok(())
}

/// The second process must be refused, and told by which.
fn two_at_once(life: &mut Life, launch: &Launch, random: &mut Random) -> anyhow::Result<()> {
    let victim = launch.start()?;
    if !victim.is_open() {
        life.ledger.take_over(&victim.kill()?);
        return Ok(());
    }
    let holder = format!("process {} ", victim.pid());
    for verb in ["work", "check"] {
        let second = Launch::new(verb, &life.path).run()?;
        let refused = |fact: &Fact| matches!(fact, Fact::Failed(why) if why.contains(&holder));
        if !second.facts.iter().any(|(_, fact)| refused(fact)) {
            let said: Vec<String> = second.facts.iter().map(|(_, f)| f.to_string()).collect();
            let wrong = format!("a second process was not refused by {holder}: {said:?}");
            life.ledger.wrong.push(wrong);
        }
    }
    std::thread::sleep(millis(random, 20, 100));
    life.ledger.take_over(&victim.kill()?);
    Ok(())
}
