//! Pulling the plug: whatever was acknowledged before is there when the power is back.

use super::site::{Site, shelf};
use super::{Settings, Verdict, millis};
use crate::ledger::Tally;
use crate::machine::{Machine, Mounted};
use crate::random::Random;

/// Pulls in one store's life.
const PULLS: u64 = 10;

/// Pulls with a durability that loses what the power takes: the method must see it.
const RELAXED: u64 = 4;

pub(super) fn run(machine: &Machine, rounds: u64, mut random: Random) -> anyhow::Result<Verdict> {
    let shelf = shelf(machine)?;
    let (mut verdict, mut tally) = (Verdict::default(), Tally::default());
    let mut left = rounds;
    while left > 0 && verdict.wrong.is_empty() {
        // Two filesystems: what one of them syncs by the way, the other may not.
        let kind = if random.one_in(3) { "xfs" } else { "ext4" };
        let settings = Settings::random(&mut random);
        let mut site = Site::new(machine, &shelf, kind, settings, &mut random)?;
        for _ in 0..left.min(PULLS) {
            pull(&mut site, &mut random)?;
            site.life.check()?;
            if !site.life.ledger.wrong.is_empty() {
                break;
            }
        }
        left -= left.min(PULLS);
        if site.life.ledger.wrong.is_empty() {
            site.life.drain()?;
        }
        verdict.add(&mut tally, site.close()?);
    }
    let bite = relaxed(machine, &shelf, &mut random, &mut verdict)?;
    verdict.summary = format!("{tally}; relaxed lost {bite} of what it said");
    shelf.unmount()?;
    Ok(verdict)
}

/// Lets a victim work, pulls the plug, and goes on with what the power left.
fn pull(site: &mut Site<'_>, random: &mut Random) -> anyhow::Result<()> {
    let mut launch = site.life.victim_that_repeats()?;
    if random.one_in(2) {
        launch = launch.with("--list");
    }
    let victim = launch.start()?;
    // Now and then while it opens.
    if !random.one_in(8) {
        victim.is_open();
    }
    std::thread::sleep(millis(random, 30, 400));
    let cut = site.cut(&victim)?;
    let said = victim.kill()?;
    site.go_on(cut, &said)
}

/// Shows that the method can see a loss.
fn relaxed(
    machine: &Machine,
    shelf: &Mounted,
    random: &mut Random,
    verdict: &mut Verdict,
) -> anyhow::Result<u64> {
    let mut lost = 0;
    for _ in 0..RELAXED {
        let durability = Some("relaxed:1000".to_string());
        let settings = Settings { durability, ..Settings::random(random) };
        let mut site = Site::new(machine, shelf, "ext4", settings, random)?;
        pull(&mut site, random)?;
        site.life.check()?;
        let life = site.close()?;
        lost += life.ledger.tally.lost;
        // Whole commits may be gone; that, and nothing else.
        let expected = ["L1:", "L4:"];
        let others = life.ledger.wrong.into_iter().filter(|wrong| {
            !expected.iter().any(|rule| wrong.starts_with(rule)) && !wrong.contains("came back")
        });
        verdict.wrong.extend(others.map(|wrong| format!("relaxed: {wrong}")));
    }
    if lost == 0 {
        verdict.wrong.push("relaxed durability lost nothing: this method sees no loss".into());
    }
    Ok(lost)
}
