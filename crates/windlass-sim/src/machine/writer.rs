//! The writer of the store, one step at a time, and what the judge makes of each.

use windlass::store::file::{JournaledLedger, WriterStep};
use windlass_core::event::Event;

use super::{Machine, Process, Waiting};
use crate::answer::{Decided, Failure};
use crate::cover::Point;
use crate::{Checked, ensure};

/// What one step of the writer did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Worked {
    /// There was nothing to do.
    Idle,
    /// It closed the commit that was being gathered.
    Took,
    /// It handed its bytes to the system.
    Wrote,
    /// It waited until they were on stable storage.
    Synced,
    /// It answered those who waited for them.
    Landed,
    /// It let a segment go.
    LetGo,
    /// It cleared a part of the oldest segment, or wrote a part of a checkpoint.
    Tended,
    /// It marked the journal as whole.
    Sealed,
    /// The disk failed, and the store refuses everything.
    Failed,
    /// The process is gone.
    Died,
}

/// What the journal wants, by which a step can be told.
#[derive(Clone, Copy)]
struct Wants {
    gathering: bool,
    work: bool,
    compaction: bool,
    checkpoint: bool,
}

impl Wants {
    fn of(ledger: &mut JournaledLedger) -> Self {
        Self {
            gathering: ledger.is_gathering(),
            work: ledger.has_work(),
            compaction: ledger.wants_compaction(),
            checkpoint: ledger.wants_checkpoint(),
        }
    }

    fn now(process: &Process) -> Option<Self> {
        process.store.inspect(Self::of)
    }
}

impl Machine {
    /// Does one step of what the writer has to do. `budget` is how much of the oldest segment it
    /// clears at most.
    pub fn work(&mut self, budget: u64) -> Checked<Worked> {
        let worked = self.step(budget)?;
        if worked != Worked::Idle {
            self.trace.line(|| format!("  writer: {worked:?}"));
            self.trace_disk();
        }
        if self.disk.is_dead() && self.process.is_some() {
            self.fall();
            return Ok(Worked::Died);
        }
        Ok(if self.process.is_none() { Worked::Died } else { worked })
    }

    fn step(&mut self, budget: u64) -> Checked<Worked> {
        let Some(process) = self.process.as_mut() else { return Ok(Worked::Died) };
        if process.gave_up {
            return Ok(Worked::Idle);
        }
        process.clock.set(self.clock.machine_now());
        let before = Wants::now(process);
        let step = process.writer.step(&process.store, budget);
        let (Some(before), Some(after)) = (before, Wants::now(process)) else {
            return self.fail();
        };
        process.compacting = after.compaction;
        process.checkpointing = after.checkpoint;
        Ok(match step {
            WriterStep::Took => {
                if before.gathering && !after.gathering {
                    self.disk.mark();
                }
                Worked::Took
            }
            WriterStep::Wrote => Worked::Wrote,
            WriterStep::Synced => Worked::Synced,
            WriterStep::Answered => return self.land(),
            WriterStep::LetGo => {
                self.cover.hit(Point::SegmentRetired);
                Worked::LetGo
            }
            WriterStep::Tended => {
                let staged = before.compaction && !before.work && after.work;
                self.cover.hit_if(Point::CompactionStaged, staged);
                self.cover.hit_if(Point::Checkpointed, before.checkpoint && !before.compaction);
                Worked::Tended
            }
            WriterStep::Sealed => {
                self.cover.hit(Point::Sealed);
                Worked::Sealed
            }
            WriterStep::Idle(_) => Worked::Idle,
            WriterStep::Failed | WriterStep::Closed => return self.fail(),
        })
    }

    /// The writer has answered: those whose commit has landed, and nobody else.
    fn land(&mut self) -> Checked<Worked> {
        let Some(process) = self.process.as_mut() else { return Ok(Worked::Died) };
        let landed = process.store.inspect(|ledger| ledger.landed_commit()).unwrap_or_default();
        self.cover.hit_if(Point::LandedTogether, landed > process.landed + 1);
        process.landed = landed;
        let many = process.waiting.partition_point(|waiting| waiting.commit <= landed);
        let mut answered: Vec<Waiting> = process.waiting.drain(..many).collect();
        for waiting in &mut answered {
            let told = waiting.landing.as_mut().map(|landing| landing.try_recv());
            let ticket = waiting.decided.ticket;
            ensure!(told.is_none_or(|told| told == Ok(Ok(()))), "{ticket:?} was not answered");
        }
        for waiting in &mut process.waiting {
            let told = waiting.landing.as_mut().map(|landing| landing.try_recv());
            let ticket = waiting.decided.ticket;
            ensure!(told.is_none_or(|told| told.is_err()), "{ticket:?} was answered too early");
        }
        let events = process.store.events_after(process.told);
        let events: Vec<Event> = events.iter().map(|event| Event::clone(event)).collect();
        process.told = events.last().map_or(process.told, |event| event.number);
        let decided: Vec<Decided> = answered.into_iter().map(|waiting| waiting.decided).collect();
        self.oracle.landed(&events, &decided, &mut self.cover)?;
        self.answer(decided);
        Ok(Worked::Landed)
    }

    fn answer(&mut self, decided: Vec<Decided>) {
        for Decided { ticket, request, answer, answered, .. } in decided {
            if self.process.is_none() && !answered {
                // The machine went off between two answers.
                self.give(ticket, &request, Err(Failure::Unknown));
            } else if !answered {
                self.give(ticket, &request, answer);
            }
        }
    }

    /// The disk failed: nothing is known any more, and whoever waits is told so.
    pub(super) fn fail(&mut self) -> Checked<Worked> {
        if self.disk.is_dead() {
            return Ok(Worked::Died);
        }
        let expected = self.may_break || self.disk.failed() > 0;
        ensure!(expected, "the store broke and nothing was done to its disk");
        let Some(process) = self.process.as_mut() else { return Ok(Worked::Died) };
        (process.broken, process.gave_up) = (true, true);
        self.cover.hit(Point::WriteFailed);
        let in_flight = process.store.in_flight(&process.writer);
        let mut waiting = std::mem::take(&mut process.waiting);
        for waiting in &mut waiting {
            let told = waiting.landing.as_mut().map(|landing| landing.try_recv());
            let ticket = waiting.decided.ticket;
            let unknown = told.is_none_or(|told| matches!(told, Ok(Err(_))));
            ensure!(unknown, "{ticket:?} was not told that nothing is known");
        }
        self.lose_sight(in_flight, waiting);
        Ok(Worked::Failed)
    }

    /// Begins to make a spare file, if one is wanted: the other thread of the store.
    pub fn begin_spare(&mut self) -> bool {
        let Some(process) = self.process.as_mut().filter(|process| process.spare.is_none()) else {
            return false;
        };
        let now = process.now(&self.clock);
        process.spare = process.store.inspect(|ledger| ledger.wanted_spare(now)).flatten();
        process.spare.is_some()
    }

    /// Makes the spare file that was begun.
    pub fn finish_spare(&mut self) {
        let Some(process) = self.process.as_mut() else { return };
        let Some(wanted) = process.spare.take() else { return };
        let now = process.now(&self.clock);
        let made = wanted.make();
        process.store.inspect(|ledger| ledger.spare_made(made, now));
        self.trace_disk();
        if self.disk.is_dead() {
            self.fall();
        }
    }

    /// Works until there is nothing left to do.
    pub fn work_to_rest(&mut self) -> Checked {
        while !matches!(self.work(u64::MAX)?, Worked::Idle | Worked::Died) {
            if self.is_broken() {
                break;
            }
        }
        Ok(())
    }
}
