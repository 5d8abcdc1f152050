//! One machine: a disk, a clock, and a process that drives the ledger as `FileStore` does.
//!
//! What `FileStore` does with a lock, a writer thread and a thread that makes spare files is done
//! here one step at a time, whenever the caller likes, so that anything can happen in between:
//! another call, a failing disk, the end of the process. Answers are given when `FileStore` would
//! give them: claims as soon as they are decided, everything else when it has landed.

mod boot;
mod decide;
mod writer;

use std::collections::VecDeque;

use windlass::store::file::{Commit, JournaledLedger, LedgerOptions, Retired, WantedSpare};
use windlass_core::refusal::Refusal;

use crate::answer::{Answer, Decided, Failure, Reply, Request, Snapshot, Ticket};
use crate::clock::Clock;
use crate::cover::{Cover, Point};
use crate::disk::SimDisk;
use crate::oracle::{Oracle, Rules};
use crate::random::Random;
use crate::trace::Trace;
use crate::{Checked, ensure};

pub use boot::Opening;
pub(crate) use boot::words;
pub use writer::Worked;

/// See the module documentation.
#[derive(Debug)]
pub struct Machine {
    /// Its disk.
    pub disk: SimDisk,
    /// Its clocks.
    pub clock: Clock,
    /// Who watches.
    pub oracle: Oracle,
    /// Rare paths that were taken.
    pub cover: Cover,
    /// What happened.
    pub trace: Trace,
    options: LedgerOptions,
    process: Option<Process>,
    answers: VecDeque<(Ticket, Answer)>,
    /// Answers that were given so far.
    given: u64,
    /// The power is lost right after this many answers were given.
    ack_trap: Option<u64>,
    next_ticket: u64,
    /// Something failed or was damaged: the store may refuse everything until it is reopened.
    may_break: bool,
    crashes: u64,
}

/// What lives as long as the process.
#[derive(Debug)]
struct Process {
    ledger: JournaledLedger,
    /// Decided, in the commit that is being gathered.
    gathered: Vec<Decided>,
    /// Commits that have not landed, in order.
    flying: VecDeque<Flying>,
    /// How many of them the writer is about to sync.
    syncing: usize,
    /// A commit could not be written, and the writer has not noticed yet.
    failed: bool,
    retired: VecDeque<Retired>,
    /// A spare file that is being made apart.
    spare: Option<WantedSpare>,
    tending: Tending,
    compacting: bool,
    checkpointing: bool,
    sealed: bool,
    broken: bool,
    /// The writer has ended, as it does when the disk fails.
    gave_up: bool,
}

/// What is still to be done after a commit has landed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tending {
    Nothing,
    Compaction,
    Checkpoint,
}

/// A commit in the air.
#[derive(Debug)]
struct Flying {
    commit: Commit,
    decided: Vec<Decided>,
    written: bool,
}

impl Machine {
    /// A machine with an empty disk, and the store on it open.
    pub fn new(
        options: LedgerOptions,
        rules: Rules,
        random: Random,
        trace: Trace,
    ) -> Checked<Self> {
        let mut machine = Self::off(options, rules, random, trace);
        machine.start()?;
        Ok(machine)
    }

    /// A machine with an empty disk, and no process yet.
    pub fn off(options: LedgerOptions, rules: Rules, random: Random, trace: Trace) -> Self {
        let disk = SimDisk::new(random);
        if trace.is_wanted() {
            disk.keep_log();
        }
        Self {
            disk,
            clock: Clock::default(),
            oracle: Oracle::new(rules),
            cover: Cover::default(),
            trace,
            options,
            process: None,
            answers: VecDeque::new(),
            given: 0,
            ack_trap: None,
            next_ticket: 0,
            may_break: false,
            crashes: 0,
        }
    }

    /// Whether no process runs.
    pub fn is_down(&self) -> bool {
        self.process.is_none()
    }

    /// Whether the store refuses everything until it is reopened.
    pub fn is_broken(&self) -> bool {
        self.process.as_ref().is_some_and(|process| process.broken)
    }

    /// Ends of the process that were not wanted.
    pub fn crashes(&self) -> u64 {
        self.crashes
    }

    /// Answers that were given so far.
    pub fn given(&self) -> u64 {
        self.given
    }

    /// Loses the power right after so many answers were given in all.
    pub fn set_ack_trap(&mut self, given: u64) {
        self.ack_trap = Some(given);
    }

    /// The next answer.
    pub fn next_answer(&mut self) -> Option<(Ticket, Answer)> {
        self.answers.pop_front()
    }

    /// From now on the store may break, because something was done to its disk; or it was undone.
    pub fn expect_breakage(&mut self, expected: bool) {
        self.may_break = expected;
    }

    /// Makes a call. Its answer comes by [`Machine::next_answer`], at once or after some work.
    pub fn submit(&mut self, request: Request) -> Checked<Ticket> {
        self.next_ticket += 1;
        let ticket = Ticket(self.next_ticket);
        self.oracle.asked(&request);
        let now = self.clock.now();
        let Some(process) = self.process.as_mut() else {
            self.give(ticket, &request, Err(Failure::Unknown));
            return Ok(ticket);
        };
        let answer = decide::decide(&mut process.ledger, request.clone(), now);
        let mark = process.ledger.last_event();
        process.sealed = false;
        self.trace.line(|| format!("{now:?} {ticket:?} {request:?} -> {answer:?}"));
        self.trace_disk();
        if self.disk.is_dead() {
            self.fall();
            self.give(ticket, &request, Err(Failure::Unknown));
            return Ok(ticket);
        }
        self.note_breakage(&answer)?;
        self.oracle.decided(&request, &answer, now, &mut self.cover)?;
        let claims = matches!(request, Request::Claim(_)) && !is_turned_away(&answer);
        let decided = Decided { ticket, request, answer, mark, now, answered: false };
        self.wait_for_landing(decided)?;
        if claims && self.process.is_some() {
            self.write_here(ticket);
        }
        Ok(ticket)
    }

    /// Gives the answer now, or with the commit that it has to wait for.
    fn wait_for_landing(&mut self, decided: Decided) -> Checked {
        let Some(process) = self.process.as_mut() else { return Ok(()) };
        let broken = process.ledger.usable().is_err();
        let stalled = process.ledger.is_gathering() && !process.ledger.has_work() && !broken;
        self.cover.hit_if(Point::WaitedForRoom, stalled);
        let landed = broken || process.ledger.awaited() <= process.ledger.landed_commit();
        if broken {
            let refused = decided.answer.is_err();
            ensure!(refused, "a broken store answered {:?}", decided.answer);
        } else if landed {
            self.oracle.landed(&[], std::slice::from_ref(&decided), &mut self.cover)?;
        }
        let early = match &decided.request {
            // Nothing was decided, so there is nothing to wait for.
            _ if is_turned_away(&decided.answer) && !landed => {
                self.oracle.landed(&[], std::slice::from_ref(&decided), &mut self.cover)?;
                self.cover.hit(Point::TurnedAway);
                true
            }
            Request::Find(jobs) if process.ledger.have_landed(jobs) => {
                // Told before anything that is in the air: so it must be true without that.
                self.oracle.landed(&[], std::slice::from_ref(&decided), &mut self.cover)?;
                self.cover.hit_if(Point::ReadEarly, !landed && !jobs.is_empty());
                true
            }
            _ => false,
        };
        if landed || early {
            self.give(decided.ticket, &decided.request, decided.answer);
            return Ok(());
        }
        let Some(process) = self.process.as_mut() else { return Ok(()) };
        match process.flying.back_mut().filter(|_| !process.ledger.is_gathering()) {
            Some(flying) => flying.decided.push(decided),
            None => process.gathered.push(decided),
        }
        Ok(())
    }

    /// Gives the answer to a claim before its commit has landed.
    fn give_early(&mut self, ticket: Ticket, answer: impl FnOnce(&Decided) -> Answer) {
        let Some(process) = self.process.as_mut() else { return };
        let flying = process.flying.iter_mut().flat_map(|flying| &mut flying.decided);
        let mut all = flying.chain(&mut process.gathered);
        let Some(decided) = all.find(|decided| decided.ticket == ticket) else { return };
        decided.answered = true;
        let (request, answer) = (decided.request.clone(), answer(decided));
        self.give(ticket, &request, answer);
    }

    /// Notes the rare paths that only the disk knows of.
    pub fn note_disk(&mut self) {
        self.cover.hit_if(Point::SegmentRecycled, self.disk.reused() > 0);
        self.cover.hit_if(Point::SyncDropped, self.disk.gave_up() > 0);
    }

    /// What the disk was asked, for whoever looks into a failure.
    fn trace_disk(&mut self) {
        for line in self.disk.take_log() {
            self.trace.line(|| format!("    disk: {line}"));
        }
    }

    fn give(&mut self, ticket: Ticket, request: &Request, answer: Answer) {
        self.trace.line(|| format!("  {ticket:?} is answered"));
        self.oracle.answered(request, &answer, &mut self.cover);
        self.answers.push_back((ticket, answer));
        self.given += 1;
        if self.process.is_some() && self.ack_trap.is_some_and(|trap| trap == self.given) {
            self.ack_trap = None;
            self.fall();
        }
    }

    /// A store may say that it is broken only if something was done to its disk.
    fn note_breakage(&mut self, answer: &Answer) -> Checked {
        let Err(Failure::Refused(Refusal::StoreBroken { why })) = answer else { return Ok(()) };
        let expected = self.may_break || self.disk.failed() > 0 || self.disk.is_dead();
        ensure!(expected, "the store broke and nothing was done to its disk: {why}");
        let process = self.process.as_mut();
        let known = process.is_some_and(|process| std::mem::replace(&mut process.broken, true));
        self.cover.hit_if(Point::BrokenRefuses, known);
        Ok(())
    }

    /// The process is gone. Whoever waits for an answer gets none.
    fn fall(&mut self) {
        let Some(process) = self.process.take() else { return };
        self.crashes += 1;
        self.trace.line(|| "the process is gone".to_string());
        self.cover.hit_if(Point::LeftoverCompaction, process.compacting);
        self.cover.hit_if(Point::LeftoverCheckpoint, process.checkpointing);
        self.lose_sight(process.flying, process.gathered);
    }

    /// Nobody knows any more what becomes of these commits.
    fn lose_sight(&mut self, flying: VecDeque<Flying>, gathered: Vec<Decided>) {
        let in_the_air = flying.iter().flat_map(|flying| &flying.decided);
        let unanswered = in_the_air.chain(&gathered).filter(|decided| !decided.answered);
        let unanswered: Vec<(Ticket, Request)> =
            unanswered.map(|decided| (decided.ticket, decided.request.clone())).collect();
        for Flying { commit, decided, written } in flying {
            self.oracle.fell(commit.events, decided, written && self.disk.failed() == 0);
        }
        self.oracle.lost(&gathered, &mut self.cover);
        for (ticket, request) in unanswered {
            self.give(ticket, &request, Err(Failure::Unknown));
        }
    }

    /// Everything a user can see right now, landed or not; `None` if the store does not answer.
    fn look(&mut self) -> Option<Snapshot> {
        let now = self.clock.now();
        let process = self.process.as_mut()?;
        match decide::decide(&mut process.ledger, Request::Audit, now) {
            Ok(Reply::Audited(snapshot)) => Some(*snapshot),
            Ok(_) | Err(_) => None,
        }
    }

    /// With nothing on its way, everything there is must be what was told, and sound.
    pub fn inspect(&mut self) -> Checked {
        let Some(snapshot) = self.look() else {
            ensure!(self.may_break, "the store cannot be read");
            if let Some(process) = self.process.as_mut() {
                process.broken = true;
            }
            return Ok(());
        };
        self.oracle.audit(&snapshot)?;
        let wrong = self.process.as_mut().map(|process| process.ledger.check());
        let wrong = wrong.unwrap_or_default();
        ensure!(wrong.is_empty(), "the store is unsound: {}", wrong.join("; "));
        Ok(())
    }
}

/// Whether a call was turned away for want of room, before anything was decided.
fn is_turned_away(answer: &Answer) -> bool {
    matches!(answer, Err(Failure::Unknown | Failure::Refused(Refusal::StoreFull { .. })))
}
