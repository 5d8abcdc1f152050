//! Pulling the plug.
//!
//! The store lives on a filesystem in an image file. What has reached that file is what a disk
//! would hold; what is only in the system's memory is what the power would take. The image lies on
//! a filesystem that can clone a file at one moment, in the middle of a sync as well, so a clone of
//! it is what a machine finds after the power came back: it is mounted, opened, and goes on.

use std::path::PathBuf;

use super::{Life, Settings, Verdict, millis};
use crate::ledger::Tally;
use crate::machine::{Machine, Mounted, make_filesystem, run as run_tool};
use crate::random::Random;

/// Pulls in one store's life.
const PULLS: u64 = 10;

/// Pulls with a durability that loses what the power takes: the method must see it.
const RELAXED: u64 = 4;

const IMAGE_BYTES: u64 = 256 << 20;
const XFS_BYTES: u64 = 512 << 20;
const SHELF_BYTES: u64 = 4 << 30;

pub(super) fn run(machine: &Machine, rounds: u64, mut random: Random) -> anyhow::Result<Verdict> {
    machine.needs_mounts()?;
    machine.needs_tool("mkfs.xfs", "xfsprogs")?;
    let shelf = machine.filesystem("xfs", SHELF_BYTES)?;
    let (mut verdict, mut tally) = (Verdict::default(), Tally::default());
    let mut left = rounds;
    while left > 0 && verdict.wrong.is_empty() {
        // Two filesystems: what one of them syncs by the way, the other may not.
        let kind = if random.one_in(3) { "xfs" } else { "ext4" };
        let mut site = Site::new(machine, &shelf, kind, None, &mut random)?;
        for _ in 0..left.min(PULLS) {
            site.pull(&mut random)?;
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

/// Shows that the method can see a loss.
fn relaxed(
    machine: &Machine,
    shelf: &Mounted,
    random: &mut Random,
    verdict: &mut Verdict,
) -> anyhow::Result<u64> {
    let mut lost = 0;
    for _ in 0..RELAXED {
        let mut site = Site::new(machine, shelf, "ext4", Some("relaxed:1000"), random)?;
        site.pull(random)?;
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

/// A store on a filesystem in an image that can be cloned.
struct Site<'a> {
    machine: &'a Machine,
    shelf: PathBuf,
    mounted: Option<Mounted>,
    life: Life,
    pulls: u64,
}

impl<'a> Site<'a> {
    fn new(
        machine: &'a Machine,
        shelf: &Mounted,
        kind: &str,
        durability: Option<&str>,
        random: &mut Random,
    ) -> anyhow::Result<Self> {
        let session = (random.next() as u32) & !0xffff;
        let image = shelf.at.join(format!("{session}-0"));
        make_filesystem(&image, kind, if kind == "xfs" { XFS_BYTES } else { IMAGE_BYTES })?;
        let mounted = machine.mount(&image)?;
        let settings = Settings {
            durability: durability.map(str::to_string),
            // Small segments: names change often, and must be as durable as bytes.
            segment_bytes: *random.choose(&[Some(64 << 10), Some(64 << 10), Some(1 << 20), None]),
            remove: !random.one_in(4),
        };
        let life = Life::new(mounted.at.join("store"), machine.aside(), settings, session);
        let shelf = shelf.at.clone();
        Ok(Self { machine, shelf, mounted: Some(mounted), life, pulls: 0 })
    }

    /// Lets a victim work, pulls the plug, and goes on with what the power left.
    fn pull(&mut self, random: &mut Random) -> anyhow::Result<()> {
        let mut launch = self.life.victim_that_repeats()?;
        if random.one_in(2) {
            launch = launch.with("--list");
        }
        let victim = launch.start()?;
        if !random.one_in(8) {
            victim.is_open();
        }
        std::thread::sleep(millis(random, 30, 400));
        self.pulls += 1;
        let clone = self.shelf.join(format!("{}-{}", self.life.session(), self.pulls));
        let mounted = self.mounted.take().ok_or_else(|| anyhow::anyhow!("nothing is mounted"))?;
        // Everything that was heard until now was said before the power fails.
        let mark = victim.mark();
        run_tool("cp", ["--reflink=always".as_ref(), mounted.image.as_os_str(), clone.as_ref()])?;
        let said = victim.kill()?;
        self.life.ledger.take_over_until(&said, mark);
        let old = mounted.image.clone();
        mounted.unmount()?;
        std::fs::remove_file(old)?;
        let mounted = self.machine.mount(&clone)?;
        self.life.path = mounted.at.join("store");
        self.mounted = Some(mounted);
        Ok(())
    }

    fn close(self) -> anyhow::Result<Life> {
        if let Some(mounted) = self.mounted {
            let image = mounted.image.clone();
            mounted.unmount()?;
            std::fs::remove_file(image)?;
        }
        Ok(self.life)
    }
}
