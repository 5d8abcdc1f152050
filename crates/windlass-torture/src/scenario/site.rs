//! A store on a filesystem in an image that can be cloned at one moment: what the power leaves.
//!
//! What has reached the image file is what a disk would hold; what is only in the system's memory
//! is what the power would take. The image lies on a filesystem that can clone a file at one
//! moment,
//! in the middle of a sync as well, so a clone of it is what a machine finds after the power came
//! back.

use std::path::PathBuf;

use super::{Life, Settings};
use crate::machine::{Machine, Mounted, make_filesystem, run};
use crate::process::{Process, Said};
use crate::random::Random;

const EXT4_BYTES: u64 = 256 << 20;
const XFS_BYTES: u64 = 512 << 20;
const SHELF_BYTES: u64 = 4 << 30;

/// Where images lie.
pub(super) fn shelf(machine: &Machine) -> anyhow::Result<Mounted> {
    machine.needs_mounts()?;
    machine.needs_tool("mkfs.xfs", "xfsprogs")?;
    machine.filesystem("xfs", SHELF_BYTES)
}

/// See the module documentation.
pub(super) struct Site<'a> {
    machine: &'a Machine,
    shelf: PathBuf,
    mounted: Option<Mounted>,
    pub(super) life: Life,
    cuts: u64,
}

impl<'a> Site<'a> {
    /// A new store on a new filesystem of this kind.
    pub(super) fn new(
        machine: &'a Machine,
        shelf: &Mounted,
        kind: &str,
        settings: Settings,
        random: &mut Random,
    ) -> anyhow::Result<Self> {
        let session = (random.next() as u32) & !0xffff;
        let image = shelf.at.join(format!("{session}-0"));
        make_filesystem(&image, kind, if kind == "xfs" { XFS_BYTES } else { EXT4_BYTES })?;
        let mounted = machine.mount(&image)?;
        let life = Life::new(mounted.at.join("store"), machine.aside(), settings, session);
        let shelf = shelf.at.clone();
        Ok(Self { machine, shelf, mounted: Some(mounted), life, cuts: 0 })
    }

    /// The power fails: the disk is as it is at this moment. What the victim says until `kill` is
    /// called was said before or after it; `mark` tells.
    pub(super) fn cut(&mut self, victim: &Process) -> anyhow::Result<Cut> {
        self.cuts += 1;
        let clone = self.shelf.join(format!("{}-{}", self.life.session(), self.cuts));
        let mounted = self.mounted.as_ref().ok_or_else(|| anyhow::anyhow!("nothing is mounted"))?;
        // Everything that was heard until now was said before the power fails.
        let mark = victim.mark();
        run("cp", ["--reflink=always".as_ref(), mounted.image.as_os_str(), clone.as_ref()])?;
        Ok(Cut { clone, mark })
    }

    /// The power is back: the store goes on with what was left of it.
    pub(super) fn go_on(&mut self, cut: Cut, said: &Said) -> anyhow::Result<()> {
        self.life.ledger.take_over_until(said, cut.mark);
        self.unmount()?;
        let mounted = self.machine.mount(&cut.clone)?;
        self.life.path = mounted.at.join("store");
        self.mounted = Some(mounted);
        Ok(())
    }

    fn unmount(&mut self) -> anyhow::Result<()> {
        if let Some(mounted) = self.mounted.take() {
            let image = mounted.image.clone();
            mounted.unmount()?;
            std::fs::remove_file(image)?;
        }
        Ok(())
    }

    pub(super) fn close(mut self) -> anyhow::Result<Life> {
        self.unmount()?;
        Ok(self.life)
    }
}

/// The moment at which the power failed.
pub(super) struct Cut {
    clone: PathBuf,
    /// How many facts were heard before.
    pub(super) mark: usize,
}
