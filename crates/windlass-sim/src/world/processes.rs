//! Processes that share the directory: they begin, die, are stopped and go on.
//!
//! One of them owns the store ([`super::takeover`]); the calls of the others travel
//! ([`super::calls`]). Who lives is told to the judge as it happens, and to an opening as the locks
//! of member files would tell it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use windlass::store::HeldLeases;

use super::calls::Journey;
use super::{Caller, Client, Turn, World};
use crate::Checked;
use crate::answer::Ticket;
use crate::cover::Point;

/// An owner that was not there for longer has been stopped, and knows it. In microseconds.
const STOPPED: u64 = 2_000_000;

/// How often an owner looks who lives, in microseconds.
pub(super) const TICK: u64 = 100_000;

/// The longest time that a call or an answer travels, in microseconds.
pub(super) const TRAVEL: u64 = 2_000;

/// Whether a process reaches the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// It seeks an owner.
    Seeking,
    /// It has said what it holds, and waits for an answer.
    Joining,
    /// Its calls are answered.
    Joined,
}

/// One process.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) lives: bool,
    /// How often it has begun.
    pub(super) life: u64,
    pub(super) standing: Standing,
    /// Calls of an earlier connection do not arrive.
    pub(super) connection: u64,
    /// Since when it is stopped, and until when.
    pub(super) stopped: Option<(u64, u64)>,
    /// The leases of jobs that another process has handed to its workers.
    pub(super) held: HeldLeases,
}

/// All processes. A world of one has none of them: whoever is there reaches the store directly.
#[derive(Debug, Default)]
pub(super) struct Processes {
    pub(super) all: Vec<Member>,
    /// Who has the lock.
    pub(super) owner: Option<usize>,
    /// Who is about to take it.
    pub(super) opener: usize,
    /// Workers of processes that died, until their jobs are recovered.
    pub(super) unnoticed: BTreeMap<u64, BTreeSet<Arc<str>>>,
    deaths: u64,
    pub(super) journeys: BTreeMap<Ticket, Journey>,
    /// For which call a ticket of the machine stands.
    pub(super) arrived: BTreeMap<Ticket, Ticket>,
}

impl Processes {
    pub(super) fn new(processes: usize) -> Self {
        let dead = || Member {
            lives: false,
            life: 0,
            standing: Standing::Seeking,
            connection: 0,
            stopped: None,
            held: HeldLeases::begin(),
        };
        let all = if processes > 1 { (0..processes).map(|_| dead()).collect() } else { Vec::new() };
        Self { all, ..Self::default() }
    }

    pub(super) fn that(&self, holds: impl Fn(&Member) -> bool) -> Vec<usize> {
        (0..self.all.len()).filter(|process| holds(&self.all[*process])).collect()
    }
}

impl World {
    pub(super) fn is_shared(&self) -> bool {
        !self.processes.all.is_empty()
    }

    /// In which process a client or worker lives.
    pub(super) fn home(&self, number: usize) -> usize {
        number % self.processes.all.len().max(1)
    }

    /// Whether a client or worker is there: in a world of one process they are outside of it.
    pub(super) fn is_there(&self, number: usize) -> bool {
        !self.is_shared() || self.processes.all[self.home(number)].lives
    }

    /// In which process a caller waits.
    pub(super) fn process_of(&self, caller: &Caller) -> Option<usize> {
        match caller {
            Caller::Client(number)
            | Caller::Claim(number)
            | Caller::Renew(number, _)
            | Caller::Settle(number, _) => Some(self.home(*number)),
            Caller::Join(process) => Some(*process),
            Caller::Notice(_) | Caller::Nobody => None,
        }
    }

    /// The process that has to run for a turn.
    fn runs_in(&self, turn: &Turn) -> Option<usize> {
        match turn {
            Turn::Client(number)
            | Turn::Impatient(number, _)
            | Turn::Worker(number)
            | Turn::Renew(number)
            | Turn::Run(number, _) => Some(self.home(*number)),
            Turn::Join(process) => Some(*process),
            Turn::Deliver(call) => self.processes.journeys.get(call).map(|call| call.process),
            Turn::Housekeeper
            | Turn::Auditor
            | Turn::Writer
            | Turn::Spare
            | Turn::Arrive(..)
            | Turn::Notice(_) => self.processes.owner,
            Turn::Reopen | Turn::Rise(_) | Turn::GoOn(_) => None,
        }
    }

    /// Until when a turn has to wait, because its process is stopped.
    pub(super) fn held_up(&self, turn: &Turn) -> Option<u64> {
        let until = |process: usize| self.processes.all.get(process)?.stopped.map(|(_, to)| to);
        // Whoever joins talks to the owner.
        let owner = self.processes.owner.filter(|_| matches!(turn, Turn::Join(_)));
        self.runs_in(turn).and_then(until).max(owner.and_then(until))
    }

    /// The first process opens the store; the others come soon.
    pub(super) fn begin_processes(&mut self) -> Checked {
        if !self.is_shared() {
            return self.machine.start();
        }
        self.machine.share();
        self.rise(0);
        self.processes.opener = 0;
        self.machine.start()?;
        self.took_over()?;
        for process in 1..self.processes.all.len() {
            self.after_up_to(200_000, Turn::Rise(process));
        }
        Ok(())
    }

    /// A process begins, with clients and workers that nobody has heard of.
    pub(super) fn rise(&mut self, process: usize) {
        let risen = &mut self.processes.all[process];
        if std::mem::replace(&mut risen.lives, true) {
            return;
        }
        risen.life += 1;
        risen.held = HeldLeases::begin();
        risen.standing = Standing::Seeking;
        let life = risen.life;
        self.machine.trace.line(|| format!("process {process} begins"));
        for client in self.clients_of(process) {
            self.after_up_to(50_000, Turn::Client(client));
        }
        for worker in self.workers_of(process) {
            let name: Arc<str> = format!("worker{worker}-{process}-{life}").into();
            self.machine.oracle.lives(&name);
            self.workers[worker].begin_as(name);
            self.after_up_to(100_000, Turn::Worker(worker));
            self.after_up_to(1_000_000, Turn::Renew(worker));
        }
        if self.processes.owner.is_some() {
            self.after_up_to(50_000, Turn::Join(process));
        }
    }

    fn clients_of(&self, process: usize) -> Vec<usize> {
        (0..self.clients.len()).filter(|number| self.home(*number) == process).collect()
    }

    fn workers_of(&self, process: usize) -> Vec<usize> {
        (0..self.workers.len()).filter(|number| self.home(*number) == process).collect()
    }

    pub(super) fn names_of(&self, process: usize) -> BTreeSet<Arc<str>> {
        self.workers_of(process).iter().map(|worker| self.workers[*worker].name()).collect()
    }

    /// A process is gone with all who lived in it; if it owned the store, that goes with it.
    pub(super) fn kill_process(&mut self, process: usize) {
        let owned = self.processes.owner == Some(process);
        self.bury(process);
        if owned {
            self.machine.kill();
        }
    }

    /// Those in a process are gone, and what they asked for is answered to nobody.
    pub(super) fn bury(&mut self, process: usize) {
        let dead = &mut self.processes.all[process];
        if !std::mem::replace(&mut dead.lives, false) {
            return;
        }
        (dead.stopped, dead.standing) = (None, Standing::Seeking);
        self.machine.trace.line(|| format!("process {process} is dead"));
        let names = self.names_of(process);
        names.iter().for_each(|worker| self.machine.oracle.died(worker));
        for worker in self.workers_of(process) {
            self.workers[worker].is_gone();
        }
        for client in self.clients_of(process) {
            self.clients[client] = Client::default();
        }
        let mut callers = std::mem::take(&mut self.callers);
        callers.retain(|_, caller| self.process_of(caller) != Some(process));
        self.callers = callers;
        self.forget_journeys(process);
        let mut agenda = std::mem::take(&mut self.agenda);
        agenda.retain(|Reverse((_, _, turn))| {
            let everybodys = matches!(turn, Turn::Deliver(_));
            everybodys || self.owners_turn(turn) || self.runs_in(turn) != Some(process)
        });
        self.agenda = agenda;
        self.processes.deaths += 1;
        self.processes.unnoticed.insert(self.processes.deaths, names);
        if self.processes.owner.is_some_and(|owner| owner != process) {
            // What it had sent is read before its end is noticed.
            let micros = self.random.between(TRAVEL + 1, TICK);
            self.after(micros, Turn::Notice(self.processes.deaths));
        }
        let micros = self.random.spread(50_000, 3_000_000);
        self.after(micros, Turn::Rise(process));
    }

    /// Whether whoever owns the store takes this turn.
    fn owners_turn(&self, turn: &Turn) -> bool {
        match turn {
            Turn::Housekeeper
            | Turn::Auditor
            | Turn::Writer
            | Turn::Spare
            | Turn::Arrive(..)
            | Turn::Notice(_) => true,
            Turn::Client(_)
            | Turn::Impatient(..)
            | Turn::Worker(_)
            | Turn::Renew(_)
            | Turn::Run(..)
            | Turn::Deliver(_)
            | Turn::Join(_)
            | Turn::Rise(_)
            | Turn::GoOn(_)
            | Turn::Reopen => false,
        }
    }

    /// The power is lost: nobody is left.
    pub(super) fn everybody_dies(&mut self) {
        let living = self.processes.that(|process| process.lives);
        self.machine.cover.hit_if(Point::NobodyLeft, living.len() > 1);
        living.into_iter().for_each(|process| self.bury(process));
    }

    /// Draws who is killed.
    pub(super) fn kill_some(&mut self) {
        let Some(owner) = self.processes.owner else { return };
        let joined = self.processes.that(|process| process.lives);
        let joined: Vec<usize> = joined.into_iter().filter(|process| *process != owner).collect();
        let other = (!joined.is_empty()).then(|| *self.random.pick(&joined));
        match (self.random.below(16), other) {
            (0..=4, Some(other)) => self.kill_process(other),
            (5..=6, Some(other)) => {
                self.machine.cover.hit(Point::DiedTogether);
                self.kill_process(other);
                self.kill_process(owner);
            }
            (7, _) => {
                self.everybody_dies();
                self.machine.kill();
            }
            (_, _) => self.kill_process(owner),
        }
    }

    /// Stops a process for a while.
    pub(super) fn stop_some(&mut self) {
        let running = self.processes.that(|process| process.lives && process.stopped.is_none());
        if running.is_empty() {
            return;
        }
        let process = *self.random.pick(&running);
        let now = self.machine.clock.elapsed();
        let micros = self.random.spread(10_000, 8_000_000);
        self.machine.trace.line(|| format!("process {process} is stopped for {micros} µs"));
        self.processes.all[process].stopped = Some((now, now + micros));
        let owns = self.processes.owner == Some(process);
        self.machine.cover.hit_if(Point::JoinedStopped, !owns);
        self.after(micros, Turn::GoOn(process));
    }

    pub(super) fn go_on_turn(&mut self, process: usize) -> Checked {
        let now = self.machine.clock.elapsed();
        match self.processes.all[process].stopped {
            Some((_, until)) if until <= now => self.go_on(process),
            Some(_) | None => Ok(()),
        }
    }

    /// A process that was stopped goes on. Of an owner the time counts for no lease, and what has
    /// come meanwhile is dropped with its connection.
    pub(super) fn go_on(&mut self, process: usize) -> Checked {
        let Some((since, _)) = self.processes.all[process].stopped.take() else { return Ok(()) };
        let micros = self.machine.clock.elapsed() - since;
        self.machine.trace.line(|| format!("process {process} goes on"));
        if self.processes.owner != Some(process) || micros <= STOPPED {
            return Ok(());
        }
        self.machine.cover.hit(Point::OwnerStopped);
        self.machine.clock.was_stopped(micros);
        for other in self.processes.that(|other| other.lives) {
            if other != process && self.has_sent(other) {
                self.cut(other)?;
                self.after_up_to(50_000, Turn::Join(other));
            }
        }
        Ok(())
    }

    /// Nothing goes wrong any more: whoever is stopped goes on, and whoever is dead begins.
    pub(super) fn heal_processes(&mut self) -> Checked {
        for process in 0..self.processes.all.len() {
            self.go_on(process)?;
            self.rise(process);
        }
        Ok(())
    }

    /// Every process ends.
    pub(super) fn end_processes(&mut self) {
        for process in self.processes.that(|process| process.lives) {
            self.bury(process);
        }
        self.processes.owner = None;
        self.machine.set_living(BTreeSet::new());
    }

    /// How long ago it was, in microseconds.
    pub(super) fn since(&self, micros: u64) -> Duration {
        Duration::from_micros(self.machine.clock.elapsed().saturating_sub(micros))
    }
}
