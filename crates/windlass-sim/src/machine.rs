//! One machine: a disk, a clock, and a process with a file store: the owner, if several share it.
//!
//! The store is the one that ships: calls go through [`SharedLedger::decide`], and the steps of its
//! [`Writer`] are taken one at a time, whenever the caller likes, so that anything can happen in
//! between: another call, a failing disk, the end of the process. The store says when an answer may
//! be given, and the judge whether that was true.

mod boot;
mod decide;
mod writer;

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use windlass::store::StoreError;
use windlass::store::file::{
    CommitInFlight, JournalPath, JournaledLedger, LedgerOptions, PendingAnswer, PendingLanding,
    SharedLedger, WantedSpare, Writer,
};
use windlass_core::refusal::Refusal;
use windlass_core::time::Now;

use crate::answer::{Answer, Decided, Failure, Reply, Request, Snapshot, Ticket};
use crate::clock::{Clock, ProcessClock};
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
    /// Several processes share the directory: the owner's clock knows when it was stopped.
    shared: bool,
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
    store: Arc<SharedLedger<JournalPath>>,
    clock: Arc<ProcessClock>,
    /// The same, as the store reads it.
    reading: Arc<dyn windlass::clock::Clock>,
    writer: Writer,
    /// Calls whose commit has not landed, in order.
    waiting: VecDeque<Waiting>,
    /// The last event that subscribers were told of.
    told: u64,
    /// The last commit that is known to have landed.
    landed: u64,
    /// A spare file that is being made apart.
    spare: Option<WantedSpare>,
    compacting: bool,
    checkpointing: bool,
    broken: bool,
    /// The writer has ended, as it does when the disk fails.
    gave_up: bool,
}

/// A call that was decided.
#[derive(Debug)]
struct Waiting {
    /// The commit that has to land.
    commit: u64,
    decided: Decided,
    /// How the store tells; `None` if the answer was given before that.
    landing: Option<PendingLanding>,
}

/// What the ledger was like when it had decided a call.
struct Seen {
    answer: Answer,
    mark: u64,
    commit: u64,
    landed: bool,
    stalled: bool,
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
            shared: false,
            process: None,
            answers: VecDeque::new(),
            given: 0,
            ack_trap: None,
            next_ticket: 0,
            may_break: false,
            crashes: 0,
        }
    }

    /// From now on several processes share the directory; so far nobody has opened it.
    pub fn share(&mut self) {
        self.shared = true;
    }

    /// Whoever opens the store next finds that these workers live.
    pub fn set_living(&mut self, workers: BTreeSet<Arc<str>>) {
        self.options.living_workers = workers;
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
        let ticket = self.ticket();
        self.oracle.asked(&request);
        let now = self.clock.now();
        let Some(process) = self.process.as_mut() else {
            self.give(ticket, &request, Err(Failure::Unknown));
            return Ok(ticket);
        };
        process.clock.set(self.clock.machine_now());
        let (mut seen, disk, asked) = (None, &self.disk, request.clone());
        let outcome = process.store.decide("simulate", request.basis(), |ledger, now| {
            let writes_here = matches!(asked, Request::Claim(_));
            let answer = decide::decide(ledger, asked, now);
            if writes_here && ledger.has_work() {
                disk.mark();
            }
            seen = Some(Seen::of(ledger, &answer));
            answer.map(drop)
        });
        let seen = seen.unwrap_or_else(|| Seen::refused(&outcome));
        // A claim writes its commit itself, without the ledger.
        let outcome = outcome.and_then(|(_, pending)| match pending {
            PendingAnswer::Write(number) => {
                process.store.write_commit(number, "simulate").map(|()| None)
            }
            PendingAnswer::Landing(landing) => Ok(Some(landing)),
            PendingAnswer::Nothing => Ok(None),
        });
        let Seen { answer, mark, .. } = &seen;
        self.trace.line(|| format!("{now:?} {ticket:?} {request:?} -> {answer:?}"));
        self.trace_disk();
        self.note_breakage(answer)?;
        self.oracle.decided(&request, answer, now, &mut self.cover)?;
        let (answer, mark) = (answer.clone(), *mark);
        let decided = Decided { ticket, request, answer, mark, now, answered: false };
        self.cover.hit_if(Point::WaitedForRoom, seen.stalled);
        let landing = outcome.map_err(|error| Failure::from(&error));
        self.wait_or_give(decided, &seen, landing)?;
        Ok(ticket)
    }

    /// A name for a call.
    pub fn ticket(&mut self) -> Ticket {
        self.next_ticket += 1;
        Ticket(self.next_ticket)
    }

    /// Gives the answer now, if the store says so, or waits until it does.
    fn wait_or_give(
        &mut self,
        decided: Decided,
        seen: &Seen,
        landing: Result<Option<PendingLanding>, Failure>,
    ) -> Checked {
        let Some(process) = self.process.as_mut() else { return Ok(()) };
        let ticket = decided.ticket;
        let usable = process.store.inspect(|ledger| ledger.usable().is_ok()).unwrap_or(false);
        let claims = matches!(decided.request, Request::Claim(_)) && !is_turned_away(&seen.answer);
        let given_now = matches!(landing, Ok(None)) && !self.disk.is_dead();
        if given_now && (!usable || seen.landed || !claims) {
            return self.give_now(decided, seen, usable);
        }
        let (landing, refused) = match landing {
            Ok(landing) => (landing, None),
            Err(failure) => (None, Some(failure)),
        };
        process.waiting.push_back(Waiting { commit: seen.commit, decided, landing });
        if self.disk.is_dead() {
            self.fall();
        } else if !usable {
            self.fail()?;
        } else if claims {
            // Without waiting for its commit, whether it was written or there was no room for it.
            self.give_early(ticket, refused);
        }
        Ok(())
    }

    /// Gives an answer that waits for nothing: so it must be true without what is in the air.
    fn give_now(&mut self, decided: Decided, seen: &Seen, usable: bool) -> Checked {
        if usable {
            self.oracle.landed(&[], std::slice::from_ref(&decided), &mut self.cover)?;
        } else {
            let refused = decided.answer.is_err();
            ensure!(refused, "a broken store answered {:?}", decided.answer);
        }
        self.cover.hit_if(Point::TurnedAway, is_turned_away(&decided.answer) && !seen.landed);
        let read = matches!(&decided.request, Request::Find(jobs) if !jobs.is_empty());
        self.cover.hit_if(Point::ReadEarly, read && !seen.landed);
        self.give(decided.ticket, &decided.request, decided.answer);
        Ok(())
    }

    /// Gives the answer to a claim before its commit has landed.
    fn give_early(&mut self, ticket: Ticket, refused: Option<Failure>) {
        let Some(process) = self.process.as_mut() else { return };
        let mut all = process.waiting.iter_mut().map(|waiting| &mut waiting.decided);
        let Some(decided) = all.find(|decided| decided.ticket == ticket) else { return };
        if decided.answered {
            return;
        }
        decided.answered = true;
        let answer = refused.map_or_else(|| decided.answer.clone(), Err);
        let request = decided.request.clone();
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
        // Of a store that has failed, everyone has been told.
        if !process.gave_up {
            let in_flight = process.store.in_flight(&process.writer);
            self.lose_sight(in_flight, process.waiting);
        }
    }

    /// Nobody knows any more what becomes of these commits.
    fn lose_sight(&mut self, in_flight: Vec<CommitInFlight>, mut waiting: VecDeque<Waiting>) {
        let unanswered = waiting.iter().filter(|waiting| !waiting.decided.answered);
        let unanswered: Vec<(Ticket, Request)> = unanswered
            .map(|waiting| (waiting.decided.ticket, waiting.decided.request.clone()))
            .collect();
        for CommitInFlight { number, events, written } in in_flight {
            let later = waiting.partition_point(|waiting| waiting.commit <= number);
            let decided = waiting.drain(..later).map(|waiting| waiting.decided).collect();
            self.oracle.fell(events, decided, written && self.disk.failed() == 0);
        }
        let gathered: Vec<Decided> = waiting.into_iter().map(|waiting| waiting.decided).collect();
        self.oracle.lost(&gathered, &mut self.cover);
        for (ticket, request) in unanswered {
            self.give(ticket, &request, Err(Failure::Unknown));
        }
    }

    /// Everything a user can see right now, landed or not; `None` if the store does not answer.
    fn look(&mut self) -> Option<Snapshot> {
        let process = self.process.as_mut()?;
        let now = process.now(&self.clock);
        match process.store.inspect(|ledger| decide::decide(ledger, Request::Audit, now))? {
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
        let store = self.process.as_ref().map(|process| &process.store);
        let wrong = store.and_then(|store| store.inspect(|ledger| ledger.check()));
        let wrong = wrong.unwrap_or_default();
        ensure!(wrong.is_empty(), "the store is unsound: {}", wrong.join("; "));
        Ok(())
    }
}

impl Process {
    /// What time it is for the store.
    fn now(&self, clock: &Clock) -> Now {
        self.clock.set(clock.machine_now());
        self.reading.now()
    }
}

impl Seen {
    fn of(ledger: &JournaledLedger, answer: &Result<Reply, StoreError>) -> Self {
        let usable = ledger.usable().is_ok();
        Self {
            answer: match answer {
                Ok(reply) => Ok(reply.clone()),
                Err(error) => Err(error.into()),
            },
            mark: ledger.last_event(),
            commit: ledger.awaited(),
            landed: ledger.awaited() <= ledger.landed_commit(),
            stalled: usable && ledger.is_gathering() && !ledger.has_work(),
        }
    }

    /// Nothing was decided.
    fn refused<T, P>(outcome: &Result<(Result<T, StoreError>, P), StoreError>) -> Self {
        let error = match outcome {
            Ok((Err(error), _)) | Err(error) => Failure::from(error),
            Ok((Ok(_), _)) => unreachable!("what was answered was asked"),
        };
        Self { answer: Err(error), mark: 0, commit: 0, landed: true, stalled: false }
    }
}

/// Whether a call was turned away for want of room, before anything was decided.
fn is_turned_away(answer: &Answer) -> bool {
    matches!(answer, Err(Failure::Unknown | Failure::Refused(Refusal::StoreFull { .. })))
}
