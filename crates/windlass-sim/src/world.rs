//! Clients and workers around one machine, and everything that happens to it, from one seed. They
//! are outside of the store's process, or in one of several that share its directory.
//!
//! Two phases. First things go wrong, and the judge must find everything safe after every step.
//! Then nothing goes wrong any more: every job that can end must end within bounded time.

mod calls;
mod chaos;
mod client;
mod objects;
mod processes;
mod takeover;
mod worker;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

use windlass_core::event::RecoveryReason;
use windlass_core::job::JobId;
use windlass_core::ledger::{QueueChange, Rescue};
use windlass_core::object::Address;

use self::chaos::Chaos;
use self::client::Client;
use self::processes::Processes;
use self::worker::Worker;
use crate::answer::{Answer, Reply, Request, Ticket};
use crate::cover::{Cover, Point};
use crate::machine::{Machine, Worked};
use crate::profile::{Profile, Settings};
use crate::random::Random;
use crate::trace::Trace;
use crate::{Checked, ensure};

/// Turns after which a run is brought to its end, however few jobs were made.
const MOST_TURNS: u64 = 6_000;

/// How long jobs go on after the last one was made, in microseconds.
const LINGER: u64 = 3_000_000;

/// The time within which every job ends once nothing goes wrong any more, in microseconds.
const PATIENCE: u64 = 3_600_000_000;

/// Whose turn it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Turn {
    Client(usize),
    /// The client has waited long enough for this answer.
    Impatient(usize, Ticket),
    Worker(usize),
    Renew(usize),
    /// A handler ends.
    Run(usize, u64),
    Housekeeper,
    Auditor,
    Writer,
    Spare,
    Reopen,
    /// A call of a process that has joined reaches the owner, by this connection.
    Arrive(Ticket, u64),
    /// Its answer is back.
    Deliver(Ticket),
    /// A process joins whoever owns the store.
    Join(usize),
    /// A process begins.
    Rise(usize),
    /// A process that was stopped goes on.
    GoOn(usize),
    /// The owner finds that a process is dead.
    Notice(u64),
}

/// Who gets an answer.
#[derive(Clone, Debug)]
enum Caller {
    Client(usize),
    Claim(usize),
    Renew(usize, Vec<u64>),
    Settle(usize, u64),
    Join(usize),
    Notice(u64),
    Nobody,
}

/// What a run came to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Jobs that were acknowledged.
    pub jobs: u64,
    /// Ends of the process that were not wanted.
    pub crashes: u64,
    /// Turns that were taken.
    pub turns: u64,
    /// Calls that were answered.
    pub answers: u64,
    /// Calls to the disk.
    pub disk_calls: u64,
}

impl Tally {
    /// Adds another run.
    pub fn add(&mut self, other: Tally) {
        self.jobs += other.jobs;
        self.crashes += other.crashes;
        self.turns += other.turns;
        self.answers += other.answers;
        self.disk_calls += other.disk_calls;
    }
}

/// What became of a run.
#[derive(Debug)]
pub struct Outcome {
    /// What was seen that must never be, if something was.
    pub result: Checked,
    /// What it came to.
    pub tally: Tally,
    /// Rare paths that were taken.
    pub cover: Cover,
    /// What happened, if it was wanted.
    pub trace: Trace,
}

/// See the module documentation.
#[derive(Debug)]
pub struct World {
    settings: Settings,
    random: Random,
    machine: Machine,
    agenda: BinaryHeap<Reverse<(u64, u64, Turn)>>,
    turns: u64,
    scheduled: u64,
    callers: BTreeMap<Ticket, Caller>,
    clients: Vec<Client>,
    workers: Vec<Worker>,
    chaos: Chaos,
    processes: Processes,
    /// Jobs that were ever sent.
    known: Vec<JobId>,
    made: u64,
    /// The version of each object, as last heard.
    versions: BTreeMap<Address, u64>,
    writer_due: bool,
    reopen_due: bool,
    healing: bool,
}

/// Runs one seed.
pub fn run(seed: u64, profile: Profile, trace: Trace) -> Outcome {
    let mut random = Random::new(seed ^ (profile as u64) << 56);
    let settings = Settings::draw(profile, &mut random);
    let (options, rules) = (settings.options.clone(), settings.rules.clone());
    let mut machine = Machine::off(options, rules, random.branch(), trace);
    machine.trace.line(|| format!("{settings:?}"));
    let mut world = World::new(settings, random, machine);
    let result = world.live();
    let tally = Tally {
        jobs: world.machine.oracle.acknowledged(),
        crashes: world.machine.crashes(),
        turns: world.turns,
        answers: world.machine.given(),
        disk_calls: world.machine.disk.calls(),
    };
    world.machine.note_disk();
    let Machine { cover, trace, .. } = world.machine;
    Outcome { result, tally, cover, trace }
}

impl World {
    fn new(settings: Settings, mut random: Random, machine: Machine) -> Self {
        let clients = (0..settings.clients).map(|_| Client::default()).collect();
        let workers =
            (0..settings.workers).map(|n| Worker::new(n, &settings, &mut random)).collect();
        let processes = Processes::new(settings.processes);
        Self {
            settings,
            random,
            machine,
            agenda: BinaryHeap::new(),
            turns: 0,
            scheduled: 0,
            callers: BTreeMap::new(),
            clients,
            workers,
            chaos: Chaos::default(),
            processes,
            known: Vec::new(),
            made: 0,
            versions: BTreeMap::new(),
            writer_due: false,
            reopen_due: false,
            healing: false,
        }
    }

    fn live(&mut self) -> Checked {
        self.begin_processes()?;
        self.machine.disk.set_faults(self.settings.faults);
        if !self.is_shared() {
            for client in 0..self.clients.len() {
                self.after_up_to(50_000, Turn::Client(client));
            }
            for worker in 0..self.workers.len() {
                self.after_up_to(100_000, Turn::Worker(worker));
                self.after_up_to(1_000_000, Turn::Renew(worker));
            }
        }
        self.after_up_to(500_000, Turn::Housekeeper);
        self.after_up_to(1_000_000, Turn::Auditor);
        let mut end = u64::MAX;
        while self.machine.clock.elapsed() < end && self.turns < MOST_TURNS {
            self.turn()?;
            self.strike()?;
            if self.made >= self.settings.jobs && end == u64::MAX {
                end = self.machine.clock.elapsed() + LINGER;
            }
        }
        self.heal()
    }

    /// Nothing goes wrong any more: everything that can end must end.
    fn heal(&mut self) -> Checked {
        self.healing = true;
        self.machine.trace.line(|| "nothing goes wrong any more".to_string());
        self.heal_processes()?;
        self.make_whole()?;
        for worker in 0..self.workers.len() {
            self.workers[worker].heal(&self.settings);
        }
        let end = self.machine.clock.elapsed() + PATIENCE;
        loop {
            for queue in self.machine.oracle.paused_queues() {
                self.ask(Caller::Nobody, Request::Configure(queue, QueueChange::Resume))?;
            }
            for _ in 0..25 {
                self.turn()?;
            }
            let open = self.machine.oracle.open_jobs();
            if open.is_empty() {
                break;
            }
            let late = self.machine.clock.elapsed() > end;
            ensure!(!late, "{} jobs do not end, such as {}", open.len(), open[0]);
        }
        self.machine.cover.hit_if(Point::StuckForGood, self.machine.oracle.stuck_jobs() > 0);
        self.machine.work_to_rest()?;
        self.machine.inspect()?;
        self.machine.close()?;
        self.end_processes();
        self.machine.start()
    }

    fn after(&mut self, micros: u64, turn: Turn) {
        self.scheduled += 1;
        let at = self.machine.clock.elapsed() + micros;
        self.agenda.push(Reverse((at, self.scheduled, turn)));
    }

    fn after_up_to(&mut self, micros: u64, turn: Turn) {
        let micros = self.random.between(1, micros);
        self.after(micros, turn);
    }

    /// Whoever is next does something.
    fn turn(&mut self) -> Checked {
        let Some(Reverse((at, _, turn))) = self.agenda.pop() else { return Ok(()) };
        self.turns += 1;
        self.machine.clock.advance_to(at);
        if let Some(until) = self.held_up(&turn) {
            self.after(until.saturating_sub(self.machine.clock.elapsed()), turn);
            return Ok(());
        }
        match turn {
            Turn::Client(client) => self.client_turn(client)?,
            Turn::Impatient(client, ticket) => self.impatient_turn(client, ticket)?,
            Turn::Worker(worker) => self.worker_turn(worker)?,
            Turn::Renew(worker) => self.renew_turn(worker)?,
            Turn::Run(worker, token) => self.run_turn(worker, token)?,
            Turn::Housekeeper => self.housekeeper_turn()?,
            Turn::Auditor => self.auditor_turn()?,
            Turn::Writer => self.writer_turn()?,
            Turn::Spare => self.machine.finish_spare(),
            Turn::Reopen => self.reopen_turn()?,
            Turn::Arrive(call, connection) => self.arrive_turn(call, connection)?,
            Turn::Deliver(call) => self.deliver_turn(call)?,
            Turn::Join(process) => self.join_turn(process)?,
            Turn::Rise(process) => self.rise(process),
            Turn::GoOn(process) => self.go_on_turn(process)?,
            Turn::Notice(death) => self.notice_turn(death)?,
        }
        self.hear()?;
        self.notice()
    }

    /// Makes a call, from the process in which its caller lives.
    fn ask(&mut self, caller: Caller, request: Request) -> Checked<Ticket> {
        match self.process_of(&caller) {
            Some(process) if self.is_shared() && self.processes.owner != Some(process) => {
                self.send(process, caller, request)
            }
            Some(_) | None => self.ask_here(caller, request),
        }
    }

    /// Makes a call in the process that owns the store.
    fn ask_here(&mut self, caller: Caller, request: Request) -> Checked<Ticket> {
        let ticket = self.machine.submit(request)?;
        self.callers.insert(ticket, caller);
        self.wake_writer();
        Ok(ticket)
    }

    /// Hands answers to those who asked.
    fn hear(&mut self) -> Checked {
        while let Some((ticket, answer)) = self.machine.next_answer() {
            match self.processes.arrived.remove(&ticket) {
                Some(call) => self.carry_back(call, answer),
                None => self.tell(ticket, answer)?,
            }
        }
        Ok(())
    }

    /// Hands an answer to whoever asked, if that one is still there.
    fn tell(&mut self, ticket: Ticket, answer: Answer) -> Checked {
        match self.callers.remove(&ticket) {
            Some(Caller::Client(client)) => self.client_answer(client, ticket, answer),
            Some(Caller::Claim(worker)) => self.claim_answer(worker, answer),
            Some(Caller::Renew(worker, tokens)) => {
                self.renew_answer(worker, &tokens, answer);
                Ok(())
            }
            Some(Caller::Settle(worker, token)) => self.settle_answer(worker, token, answer),
            Some(Caller::Join(process)) => self.join_answer(process, &answer),
            Some(Caller::Notice(death)) => {
                self.notice_answer(death, &answer);
                Ok(())
            }
            Some(Caller::Nobody) | None => Ok(()),
        }
    }

    fn wake_writer(&mut self) {
        if !self.writer_due && !self.machine.is_down() {
            self.writer_due = true;
            self.after_step();
        }
    }

    fn after_step(&mut self) {
        let micros = self.random.spread(5, self.settings.slowest_step);
        let micros = if self.healing { micros.min(1_000) } else { micros };
        self.after(micros, Turn::Writer);
    }

    fn writer_turn(&mut self) -> Checked {
        self.writer_due = false;
        // Small enough to need several rounds for one segment.
        let budget = self.random.spread(64, 32_768);
        let worked = self.machine.work(budget)?;
        if worked == Worked::Landed && self.machine.begin_spare() {
            self.after_up_to(self.settings.slowest_step, Turn::Spare);
        }
        if !matches!(worked, Worked::Idle | Worked::Died | Worked::Failed) {
            self.wake_writer();
        }
        Ok(())
    }

    fn housekeeper_turn(&mut self) -> Checked {
        let recovery = self.settings.rules.recovery;
        let rescue = Rescue { recovery, reason: RecoveryReason::LeaseExpired };
        self.ask(Caller::Nobody, Request::Rescue(rescue))?;
        self.ask(Caller::Nobody, Request::Promote)?;
        self.after_up_to(1_000_000, Turn::Housekeeper);
        Ok(())
    }

    /// Someone looks: at everything, at some jobs, at why one does not run.
    fn auditor_turn(&mut self) -> Checked {
        let mut some: Vec<JobId> = Vec::new();
        for _ in 0..self.known.len().min(3) {
            some.push(*self.random.pick(&self.known));
        }
        if let Some(job) = some.first() {
            self.ask(Caller::Nobody, Request::Explain(*job))?;
        }
        self.ask(Caller::Nobody, Request::Find(some))?;
        if self.random.chance(400) {
            self.ask(Caller::Nobody, Request::Audit)?;
        }
        self.after_up_to(2_000_000, Turn::Auditor);
        Ok(())
    }

    fn reopen_turn(&mut self) -> Checked {
        self.reopen_due = false;
        if self.machine.is_down() || self.machine.is_broken() {
            self.reopen()?;
        }
        Ok(())
    }

    /// Sees to it that a store that is down is opened again some time.
    fn notice(&mut self) -> Checked {
        let down = self.machine.is_down();
        if self.is_shared() && (down || self.machine.is_broken()) {
            if self.machine.disk.is_dead() {
                self.everybody_dies();
            }
            self.owner_is_gone(false)?;
        }
        if down {
            self.writer_due = false;
            self.agenda.retain(|Reverse((_, _, turn))| !matches!(turn, Turn::Writer | Turn::Spare));
            if !self.is_shared() {
                self.workers.iter_mut().for_each(Worker::process_gone);
            }
        }
        if (down || self.machine.is_broken()) && !self.reopen_due {
            self.reopen_due = true;
            let micros = self.opening_delay();
            self.after(micros, Turn::Reopen);
        }
        Ok(())
    }

    /// A fresh id, in no order.
    fn fresh_id(&mut self) -> JobId {
        self.made += 1;
        let id = JobId::from_u128(u128::from(self.random.number()) << 64 | u128::from(self.made));
        self.known.push(id);
        id
    }

    fn millis(&mut self, first: u64, last: u64) -> Duration {
        Duration::from_millis(self.random.spread(first, last))
    }
}

/// The answer to a claim, if it was one.
fn handed(answer: Answer) -> Option<windlass::store::ClaimedBatch> {
    match answer {
        Ok(Reply::ClaimedBatch(handed)) => Some(handed),
        Ok(_) | Err(_) => None,
    }
}
