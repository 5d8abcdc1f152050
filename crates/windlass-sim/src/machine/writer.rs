//! The writer of `FileStore`, one step at a time.

use windlass::store::file::Commit;

use super::{Flying, Machine, Process, Tending};
use crate::Checked;
use crate::answer::{Decided, Failure, Ticket};
use crate::cover::Point;

/// What one step of the writer did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Worked {
    /// There was nothing to do.
    Idle,
    /// It closed the commit that was being gathered.
    Took,
    /// It handed its bytes to the system.
    Wrote,
    /// It waited until they were on stable storage, and answered.
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

impl Process {
    /// Writes the commits that are not in the files yet, one after the other.
    fn write_in_order(&mut self) {
        for flying in self.flying.iter_mut().filter(|flying| !flying.written) {
            match flying.commit.write() {
                Ok(()) => flying.written = true,
                // Whoever wrote a later one does not know of it.
                Err(_) => self.failed = true,
            }
            let number = flying.commit.number();
            if flying.written {
                self.ledger.written(number);
            }
        }
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
        if let Some(retired) = process.retired.pop_front() {
            self.cover.hit(Point::SegmentRetired);
            // A file that cannot leave now is let go when the store is next opened.
            if let Ok(spare) = retired.let_go() {
                process.ledger.add_spare(spare);
            }
            return Ok(Worked::LetGo);
        }
        if process.tending != Tending::Nothing {
            return self.tend(budget);
        }
        if process.failed {
            return Ok(self.fail());
        }
        match process.syncing.checked_sub(1).and_then(|last| process.flying.get(last)) {
            Some(flying) if flying.written => self.land(),
            Some(_) => self.write(),
            None => self.take(),
        }
    }

    /// Keeps the journal small, and short to read.
    fn tend(&mut self, budget: u64) -> Checked<Worked> {
        let Some(process) = self.process.as_mut() else { return Ok(Worked::Died) };
        let ledger = &mut process.ledger;
        let compacts = process.tending == Tending::Compaction && ledger.wants_compaction();
        let done = if compacts {
            let had_work = ledger.has_work();
            let done = ledger.compact(budget);
            self.cover.hit_if(Point::CompactionStaged, !had_work && ledger.has_work());
            // A step that finds nothing alive has nothing to write, so the next one follows.
            let again = done.is_ok() && !ledger.has_work();
            process.tending = if again { Tending::Compaction } else { Tending::Checkpoint };
            done
        } else {
            process.tending = Tending::Nothing;
            let wanted = ledger.wants_checkpoint();
            self.cover.hit_if(Point::Checkpointed, wanted);
            if wanted { ledger.checkpoint(budget) } else { Ok(()) }
        };
        process.compacting = ledger.wants_compaction();
        process.checkpointing = ledger.wants_checkpoint();
        if let Err(error) = done {
            self.note_breakage(&Err(error.into()))?;
        }
        Ok(Worked::Tended)
    }

    fn take(&mut self) -> Checked<Worked> {
        let Some(process) = self.process.as_mut() else { return Ok(Worked::Died) };
        if process.ledger.usable().is_err() {
            return Ok(self.fail());
        }
        if process.ledger.is_stalled() && process.syncing == 0 {
            process.ledger.make_room(self.clock.now());
        }
        if let Some(commit) = process.ledger.take() {
            self.disk.mark();
            let decided = std::mem::take(&mut process.gathered);
            process.flying.push_back(Flying { commit, decided, written: false });
        }
        process.syncing = process.flying.len();
        if process.syncing > 0 {
            return Ok(Worked::Took);
        }
        if process.ledger.wants_compaction() {
            process.tending = Tending::Compaction;
            return Ok(Worked::Tended);
        }
        if process.sealed {
            return Ok(Worked::Idle);
        }
        process.sealed = true;
        let sealed = process.ledger.seal();
        self.cover.hit_if(Point::Sealed, sealed.is_ok());
        Ok(Worked::Sealed)
    }

    fn write(&mut self) -> Checked<Worked> {
        let Some(process) = self.process.as_mut() else { return Ok(Worked::Died) };
        process.write_in_order();
        Ok(if process.failed { self.fail() } else { Worked::Wrote })
    }

    /// Writes what was gathered on the caller's own time, and leaves the sync to the writer: so
    /// claims are answered when they survive the process.
    pub(super) fn write_here(&mut self, ticket: Ticket) {
        let Some(process) = self.process.as_mut() else { return };
        if !process.ledger.is_gathering() {
            return self.give_early(ticket, |decided| decided.answer.clone());
        }
        let Some(commit) = process.ledger.take() else {
            return self.give_early(ticket, |_| Err(Failure::Unknown));
        };
        self.disk.mark();
        let decided = std::mem::take(&mut process.gathered);
        process.flying.push_back(Flying { commit, decided, written: false });
        process.write_in_order();
        let written = process.flying.back().is_some_and(|last| last.written);
        self.trace_disk();
        if self.disk.is_dead() {
            self.fall();
        } else if written {
            self.give_early(ticket, |decided| decided.answer.clone());
        } else {
            self.fail();
        }
    }

    /// Waits for stable storage, tells what happened and answers.
    fn land(&mut self) -> Checked<Worked> {
        let Some(process) = self.process.as_mut() else { return Ok(Worked::Died) };
        let count = std::mem::take(&mut process.syncing);
        let later = process.flying.split_off(count);
        let landing = std::mem::replace(&mut process.flying, later);
        let (mut commits, mut decided): (Vec<_>, Vec<_>) =
            landing.into_iter().map(|flying| (flying.commit, flying.decided)).unzip();
        if Commit::sync_all(&commits).is_err() {
            for (commit, decided) in commits.into_iter().zip(decided).rev() {
                process.flying.push_front(Flying { commit, decided, written: true });
            }
            return Ok(self.fail());
        }
        self.cover.hit_if(Point::LandedTogether, count > 1);
        process.tending = Tending::Compaction;
        let mut events = Vec::new();
        for mut commit in commits.drain(..) {
            process.ledger.written(commit.number());
            process.retired.extend(process.ledger.landed(&commit));
            events.push(std::mem::take(&mut commit.events));
            process.ledger.reuse(commit);
        }
        for (events, decided) in events.iter().zip(&decided) {
            self.oracle.landed(events, decided, &mut self.cover)?;
        }
        decided.drain(..).for_each(|decided| self.answer(decided));
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
    fn fail(&mut self) -> Worked {
        if self.disk.is_dead() {
            return Worked::Died;
        }
        let Some(process) = self.process.as_mut() else { return Worked::Died };
        process.ledger.fail("a write to the disk failed (simulated)".to_string());
        (process.broken, process.gave_up) = (true, true);
        self.cover.hit(Point::WriteFailed);
        let (flying, gathered) = (&mut process.flying, &mut process.gathered);
        let (flying, gathered) = (std::mem::take(flying), std::mem::take(gathered));
        self.lose_sight(flying, gathered);
        Worked::Failed
    }

    /// Begins to make a spare file, if one is wanted: the other thread of `FileStore`.
    pub fn begin_spare(&mut self) -> bool {
        let Some(process) = self.process.as_mut().filter(|process| process.spare.is_none()) else {
            return false;
        };
        process.spare = process.ledger.wanted_spare(self.clock.now());
        process.spare.is_some()
    }

    /// Makes the spare file that was begun.
    pub fn finish_spare(&mut self) {
        let Some(process) = self.process.as_mut() else { return };
        let Some(wanted) = process.spare.take() else { return };
        process.ledger.spare_made(wanted.make(), self.clock.now());
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
