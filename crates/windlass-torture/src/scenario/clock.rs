//! TBD.

use super::Verdict;
use crate::machine::Machine;
use crate::random::Random;

pub(super) fn run(_machine: &Machine, _rounds: u64, _random: Random) -> anyhow::Result<Verdict> {
    Err(crate::machine::Missing("everything".to_string()).into())
}
