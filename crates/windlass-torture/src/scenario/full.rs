//! A disk that is full.
//!
//! New jobs are refused with the typed answer, running work is settled all the same, and when there
//! is space again the same process goes on by itself. Then it is killed, on a disk that is full
//! once more, and opened there.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use super::{Life, Settings, Verdict};
use crate::facts::{Fact, Why};
use crate::ledger::Tally;
use crate::machine::{Machine, Mounted};
use crate::plan::Id;
use crate::process::Process;
use crate::random::Random;

const DISK_BYTES: u64 = 16 << 20;
const BALLAST_BYTES: u64 = 3 << 20;
const PATIENCE: Duration = Duration::from_secs(20);

pub(super) fn run(machine: &Machine, rounds: u64, mut random: Random) -> anyhow::Result<Verdict> {
    machine.needs_mounts()?;
    let (mut verdict, mut tally) = (Verdict::default(), Tally::default());
    for round in 0..rounds {
        let disk = machine.filesystem("ext4", DISK_BYTES)?;
        let session = (random.next() as u32) & !0xffff;
        // With segments that grow, with small ones, and with deletions that want to be cleared.
        let settings = Settings {
            segment_bytes: [None, Some(256 << 10), Some(512 << 10)][round as usize % 3],
            remove: round % 2 == 1,
            ..Settings::default()
        };
        let mut life = Life::new(disk.at.join("store"), machine.aside(), settings, session);
        one_disk(&mut life, &disk)?;
        verdict.add(&mut tally, life);
        let image = disk.image.clone();
        disk.unmount()?;
        std::fs::remove_file(image)?;
        if !verdict.wrong.is_empty() {
            break;
        }
    }
    verdict.summary = tally.to_string();
    Ok(verdict)
}

fn one_disk(life: &mut Life, disk: &Mounted) -> anyhow::Result<()> {
    let ballast = [disk.at.join("ballast-1"), disk.at.join("ballast-2")];
    for file in &ballast {
        std::fs::write(file, vec![1; BALLAST_BYTES as usize])?;
    }
    // So many may be open that the disk is full before producers rest.
    let launch = life.victim().option("--mixes", "bulky").option("--backlog", 5_000);
    let victim = launch.start()?;
    if let Some(wrong) = fill_up(&victim, 0).or_else(|| heal(&victim, &ballast[0])) {
        life.ledger.wrong.push(wrong);
    }
    let said = victim.kill()?;
    if said.facts.iter().any(|(_, fact)| matches!(fact, Fact::Refused(Why::Broken, _))) {
        life.ledger.wrong.push("the store did not only refuse, it broke".to_string());
    }
    life.ledger.take_over(&said);
    life.check()?;
    open_on_a_full_disk(life)?;
    std::fs::remove_file(&ballast[1])?;
    life.drain()
}

/// Waits until the disk is full, and until what runs then has ended; what is wrong, if so.
fn fill_up(victim: &Process, mark: usize) -> Option<String> {
    let full = |fact: &Fact| matches!(fact, Fact::Refused(Why::Full, _));
    if !victim.wait_for(mark, PATIENCE, |facts| facts.iter().any(|(_, fact)| full(fact))) {
        return Some("the disk was filled, and nobody was refused for it".to_string());
    }
    // Those that run now; what begins later is not waited for.
    let mut running: Option<BTreeSet<Id>> = None;
    let settled = victim.wait_for(0, PATIENCE, |facts| {
        let began = || {
            facts.iter().filter_map(|(_, fact)| match fact {
                Fact::Run { id, .. } => Some(*id),
                _ => None,
            })
        };
        let running = running.get_or_insert_with(|| began().collect());
        for (_, fact) in facts {
            if let Fact::End(id, _) = fact {
                running.remove(id);
            }
        }
        running.is_empty()
    });
    (!settled).then(|| format!("on a full disk running work was not settled: {running:?}"))
}

/// Makes room, waits until the same process takes jobs again, and fills the disk once more.
fn heal(victim: &Process, ballast: &Path) -> Option<String> {
    let mark = victim.mark();
    if let Err(error) = std::fs::remove_file(ballast) {
        return Some(error.to_string());
    }
    // Jobs, not calls: a few large batches fill the disk once more.
    let acknowledged = |fact: &Fact| match fact {
        Fact::Ack(ids) => ids.len(),
        _ => 0,
    };
    let mut jobs = 0;
    let went_on = victim.wait_for(mark, PATIENCE, |facts| {
        jobs += facts.iter().map(|(_, fact)| acknowledged(fact)).sum::<usize>();
        jobs >= 10
    });
    if !went_on {
        return Some("there was room again, and it did not go on by itself".to_string());
    }
    fill_up(victim, victim.mark())
}

/// Nothing is lost by opening: it works, or it says that there is no room.
fn open_on_a_full_disk(life: &mut Life) -> anyhow::Result<()> {
    let victim = life.victim().option("--producers", 1).option("--mixes", "bulky").start()?;
    victim.hears(PATIENCE, |fact| matches!(fact, Fact::Opened { .. } | Fact::Failed(_)));
    std::thread::sleep(Duration::from_millis(200));
    let mut said = victim.kill()?;
    said.facts.retain(|(_, fact)| {
        !matches!(fact, Fact::Failed(why) if why.contains("space") || why.contains("room"))
    });
    life.ledger.take_over(&said);
    life.check()
}
