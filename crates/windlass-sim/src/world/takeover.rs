//! Who owns the directory: one of the processes opens it, and the others join.
//!
//! What is done and said, and in which order, is as in `store/directory/manager.rs`: an opening
//! knows who lives, the new owner gives back what its own workers were given and do not hold, and
//! whoever joins says what it holds before it asks for anything.

use windlass_core::ledger::{LostWorkers, RescueLost};

use super::processes::{Member, Standing, TICK, TRAVEL};
use super::{Caller, Turn, World};
use crate::Checked;
use crate::answer::{Answer, Reply, Request};
use crate::cover::Point;

impl World {
    /// Somebody who lives gets the lock; if nobody does, somebody begins.
    pub(super) fn choose_opener(&mut self) -> Checked {
        if !self.is_shared() {
            return Ok(());
        }
        let living = self.processes.that(|process| process.lives);
        let awake = self.processes.that(|process| process.lives && process.stopped.is_none());
        self.processes.opener = match (awake.is_empty(), living.first()) {
            (false, _) => *self.random.pick(&awake),
            (true, Some(stopped)) => {
                self.go_on(*stopped)?;
                *stopped
            }
            (true, None) => {
                let process = self.random.index(self.processes.all.len());
                self.rise(process);
                process
            }
        };
        let living = self.processes.that(|process| process.lives);
        let names = living.into_iter().flat_map(|process| self.names_of(process)).collect();
        self.machine.set_living(names);
        Ok(())
    }

    /// The store was opened: what ran in dead processes is recovered, and those who live join.
    pub(super) fn took_over(&mut self) -> Checked {
        if !self.is_shared() {
            return Ok(());
        }
        let owner = self.processes.opener;
        self.machine.trace.line(|| format!("process {owner} owns the store"));
        self.processes.owner = Some(owner);
        self.processes.unnoticed.clear();
        self.deliver_all(owner)?;
        self.processes.all[owner].standing = Standing::Joined;
        if let Some(held) = self.processes.all[owner].held.known() {
            let join = Request::Join(self.names_of(owner), held);
            self.ask_here(Caller::Nobody, join)?;
        }
        self.processes.all[owner].held.forget_all();
        self.depart_all(owner)?;
        for other in self.processes.that(|process| process.lives) {
            if other != owner {
                self.machine.cover.hit(Point::TookOver);
                let micros = self.random.spread(TRAVEL + 1, 60_000);
                self.after(micros, Turn::Join(other));
            }
        }
        Ok(())
    }

    /// The owner has closed, died, or lost its disk: everyone seeks another.
    pub(super) fn owner_is_gone(&mut self, closed: bool) -> Checked {
        if self.processes.owner.take().is_none() {
            return Ok(());
        }
        for process in 0..self.processes.all.len() {
            self.lose_connection(process, closed)?;
        }
        self.processes.arrived.clear();
        Ok(())
    }

    /// A process joins whoever owns the store: it says what it holds before it asks for anything.
    pub(super) fn join_turn(&mut self, process: usize) -> Checked {
        let owner = self.processes.owner;
        let seeks = self.processes.all[process].standing == Standing::Seeking;
        if owner.is_none() || owner == Some(process) || !seeks || !self.processes.all[process].lives
        {
            return Ok(());
        }
        // Answers that have come are read first.
        self.deliver_all(process)?;
        self.processes.all[process].standing = Standing::Joining;
        let Some(held) = self.processes.all[process].held.known() else {
            return self.joined(process);
        };
        let join = Request::Join(self.names_of(process), held);
        self.ask_here(Caller::Join(process), join)?;
        Ok(())
    }

    pub(super) fn join_answer(&mut self, process: usize, answer: &Answer) -> Checked {
        if self.processes.all[process].standing != Standing::Joining {
            return Ok(());
        }
        if let Ok(Reply::Joined(_)) = answer {
            return self.joined(process);
        }
        self.processes.all[process].standing = Standing::Seeking;
        self.after(TICK, Turn::Join(process));
        Ok(())
    }

    fn joined(&mut self, process: usize) -> Checked {
        self.machine.trace.line(|| format!("process {process} has joined"));
        self.processes.all[process].standing = Standing::Joined;
        self.depart_all(process)
    }

    /// The owner finds that a member is dead.
    pub(super) fn notice_turn(&mut self, death: u64) -> Checked {
        let Some(workers) = self.processes.unnoticed.get(&death) else { return Ok(()) };
        if self.processes.owner.is_none() {
            return Ok(());
        }
        let lost = LostWorkers::These(workers.clone());
        let rescue = RescueLost { recovery: self.settings.rules.recovery, lost };
        self.ask_here(Caller::Notice(death), Request::RescueLost(rescue))?;
        Ok(())
    }

    pub(super) fn notice_answer(&mut self, death: u64, answer: &Answer) {
        match answer {
            Ok(Reply::Rescued(rescued)) if !rescued.more => {
                self.processes.unnoticed.remove(&death);
            }
            Ok(_) | Err(_) => self.after(TICK, Turn::Notice(death)),
        }
    }

    /// How soon the store is opened again.
    pub(super) fn opening_delay(&mut self) -> u64 {
        let lives = |process: &Member| process.lives;
        let most = if self.processes.all.iter().any(lives) { 100_000 } else { 4_000_000 };
        self.random.spread(1_000, most)
    }
}
