//! What the command line asks for.

use std::env;
use std::str::FromStr;

use anyhow::{Context, bail};

/// One measurement.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) system: String,
    pub(crate) column: String,
    /// A database of its own, which is empty.
    pub(crate) url: String,
    /// The server's first process, whose processor time is told with that of its children.
    pub(crate) postmaster: u32,
    pub(crate) jobs: u32,
    /// Jobs before those that are measured, so that caches, plans and connections are there.
    pub(crate) warm_up: u32,
    pub(crate) seed: u32,
    /// Jobs at once in a worker; the system's own choice if it is not said.
    pub(crate) slots: Option<u32>,
    /// Connections of the system; its own choice if it is not said.
    pub(crate) pool: Option<u32>,
}

impl Plan {
    /// `SYSTEM COLUMN --url … --postmaster … --jobs … [--warm-up …] [--seed …] [--slots …] [--pool …]`
    pub(crate) fn from_arguments() -> anyhow::Result<Self> {
        let mut words = env::args().skip(1);
        let mut plan = Self {
            system: words.next().context("name a system: windlass or apalis")?,
            column: words.next().context("name a column: enqueue, bulk, drain, idle or load")?,
            url: String::new(),
            postmaster: 0,
            jobs: 1_000,
            warm_up: 0,
            seed: 1,
            slots: None,
            pool: None,
        };
        while let Some(name) = words.next() {
            let value = words.next().with_context(|| format!("{name} needs a value"))?;
            plan.set(&name, &value).with_context(|| format!("{name} {value}"))?;
        }
        Ok(plan)
    }

    fn set(&mut self, name: &str, value: &str) -> anyhow::Result<()> {
        match name {
            "--url" => self.url = value.into(),
            "--postmaster" => self.postmaster = u32::from_str(value)?,
            "--jobs" => self.jobs = u32::from_str(value)?,
            "--warm-up" => self.warm_up = u32::from_str(value)?,
            "--seed" => self.seed = u32::from_str(value)?,
            "--slots" => self.slots = Some(u32::from_str(value)?),
            "--pool" => self.pool = Some(u32::from_str(value)?),
            _ => bail!("unknown option"),
        }
        Ok(())
    }
}
