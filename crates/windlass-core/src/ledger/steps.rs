//! Finished steps of a job's handler: what the ledger knows of them, and how many there may be.
//!
//! Answers: a job may finish only so many steps, and a step that is reported again counts once.
//! Why not simpler: names and results are in the job's record, which the ledger does not hold. It
//! keeps a mark of 16 bytes per step instead: a hash of the name, and the length of the result.
//! Guarded by: the model test (`tests/model/running.rs`), and in the crate `windlass`
//! `conformance/stepping.rs`.

use alloc::vec::Vec;

use super::{Effects, Ledger};
use crate::event::EventKind;
use crate::limits;
use crate::record::Step;
use crate::refusal::Refusal;

/// What the ledger knows of a finished step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepMark {
    /// A hash of its name. Should two names of one job share it, the second step is kept all the
    /// same, by its name; it is only not counted.
    pub print: u64,
    /// How long its result is.
    pub bytes: u32,
}

impl StepMark {
    /// The mark of a step.
    pub fn of(step: &Step) -> Self {
        let print = xxhash_rust::xxh3::xxh3_64(step.name.as_str().as_bytes());
        Self { print, bytes: u32::try_from(step.result.len()).unwrap_or(u32::MAX) }
    }
}

/// Refuses steps that a job with these finished ones may not have as well: too many, or results
/// that are too large, one or all together. A step that is reported again counts once.
pub fn admit_steps(known: &[StepMark], steps: &[Step]) -> Result<(), Refusal> {
    if steps.is_empty() {
        return Ok(());
    }
    let mut marks: Vec<StepMark> = known.to_vec();
    for step in steps {
        limits::STEP_BYTES_BOUND.check(step.result.len())?;
        let mark = StepMark::of(step);
        if marks.iter().all(|known| known.print != mark.print) {
            marks.push(mark);
        }
    }
    limits::STEPS_BOUND.check(marks.len())?;
    limits::STEPS_BYTES_BOUND.check(marks.iter().map(|mark| mark.bytes as usize).sum())
}

impl Ledger {
    /// Whether the job may have these steps as well as those it has.
    pub(super) fn admit_steps(&self, slot: u32, steps: &[Step]) -> Result<(), Refusal> {
        admit_steps(self.entry(slot).steps(), steps)
    }

    /// Takes note of steps that were admitted, and tells of those that are new.
    pub(super) fn finish_steps(&mut self, slot: u32, steps: Vec<Step>, effects: &mut Effects) {
        for step in steps {
            if self.entries.get_mut(slot).add_step(StepMark::of(&step)) {
                self.tell(slot, EventKind::StepCompleted { name: step.name }, effects);
            }
        }
    }
}
