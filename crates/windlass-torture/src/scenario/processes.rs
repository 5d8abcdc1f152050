//! Several processes on one directory: one owns it, the others have joined, and any of them is
//! killed or stopped at any moment.
//!
//! Each round does something terrible to a few victims that work on one store, and starts others
//! in their place. What the dead leave unanswered is repeated by those who come. After some rounds
//! all are killed, and a last victim, alone, brings every job to its end. `ledger/together.rs` says
//! what all of them are held to.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use super::{Life, Settings, Verdict, millis};
use crate::facts::{Fact, Role, Stamp, Why, stamp};
use crate::ledger::Tally;
use crate::ledger::together::VictimEnded;
use crate::machine::Machine;
use crate::plan::{Id, Plan};
use crate::process::{Process, Said};
use crate::random::Random;
use crate::victim::recovery;

/// Rounds in one store's life.
const ROUNDS: u64 = 12;

/// How many victims live at once, after each round.
const FEWEST: u64 = 2;
const MOST: u64 = 4;

/// How long a living victim may take to own the directory, or to go on.
const PATIENCE: Duration = Duration::from_secs(10);

/// More than any stop; and less than most.
const LONG_LEASE_MS: u64 = 30_000;
const SHORT_LEASE_MS: u64 = 1_000;

pub(super) fn run(machine: &Machine, rounds: u64, mut random: Random) -> anyhow::Result<Verdict> {
    let (mut verdict, mut tally) = (Verdict::default(), Tally::default());
    let mut left = rounds;
    while left > 0 && verdict.wrong.is_empty() {
        let life = begin(machine, &mut random);
        let path = life.path.clone();
        let life = live(life, left.min(ROUNDS), &mut random)?;
        left -= left.min(ROUNDS);
        verdict.add(&mut tally, life);
        if verdict.wrong.is_empty() {
            std::fs::remove_dir_all(path)?;
        }
    }
    if rounds >= ROUNDS && tally.takeovers == 0 && verdict.wrong.is_empty() {
        verdict.wrong.push("nobody took anything over: this shows nothing".into());
    }
    verdict.summary = format!("{} takeovers, {tally}", tally.takeovers);
    Ok(verdict)
}

fn begin(machine: &Machine, random: &mut Random) -> Life {
    // Either whoever takes over reads small segments, some of which are being cleared, or all is as
    // a user has it.
    let cut = if random.one_in(2) { Settings::random(random) } else { Settings::default() };
    let settings = Settings {
        // What was answered survives a kill under either.
        durability: random.one_in(4).then(|| "relaxed:50".to_string()),
        remove: random.one_in(2),
        shared: true,
        ..cut
    };
    let session = (random.next() as u32) & !0xffff;
    let disk = random.one_in(2);
    let path = if disk { machine.directory("processes") } else { machine.memory("processes") };
    Life::new(path, machine.aside(), settings, session)
}

/// A store's life, to its end.
fn live(life: Life, rounds: u64, random: &mut Random) -> anyhow::Result<Life> {
    let lease_ms = if random.one_in(4) { SHORT_LEASE_MS } else { LONG_LEASE_MS };
    let began = (Instant::now(), stamp());
    let mut crowd = Crowd { life, lease_ms, living: Vec::new(), ended: Vec::new() };
    crowd.fill(random)?;
    for _ in 0..rounds {
        crowd.round(random)?;
        crowd.fill(random)?;
        if !crowd.life.ledger.wrong.is_empty() {
            break;
        }
    }
    crowd.everyone_goes_on();
    crowd.nothing_waits();
    crowd.kill_all()?;
    let Crowd { mut life, ended, .. } = crowd;
    let (real, wall) = (began.0.elapsed(), Duration::from_micros(stamp().saturating_sub(began.1)));
    let same = real.abs_diff(wall) < Duration::from_millis(100);
    anyhow::ensure!(same, "the wall clock was set meanwhile, by which victims are put in order");
    life.ledger.take_over_together(&ended, lease_ms == LONG_LEASE_MS);
    // Either somebody looks first, or the last victim is the first to see what was left.
    if random.one_in(2) {
        life.check()?;
    }
    if life.ledger.wrong.is_empty() {
        let said = life.victim_that_repeats()?.option("--producers", 0).run()?;
        life.drained(&said)?;
    }
    Ok(life)
}

/// The victims of one store.
struct Crowd {
    life: Life,
    lease_ms: u64,
    living: Vec<Living>,
    ended: Vec<VictimEnded>,
}

struct Living {
    process: Process,
    victim: u32,
}

impl Living {
    fn role(&self) -> Option<Role> {
        self.process.last(|fact| if let Fact::Role(role) = fact { Some(*role) } else { None })
    }

    /// Sends the signal that nobody survives, and says until when it was alive.
    fn strike(self) -> anyhow::Result<Struck> {
        let alive = stamp();
        self.process.signal("KILL")?;
        Ok(Struck { living: self, alive })
    }
}

/// A victim that dies.
struct Struck {
    living: Living,
    alive: Stamp,
}

impl Crowd {
    /// Starts a victim that repeats what the dead were not answered.
    fn start(&mut self) -> anyhow::Result<Living> {
        let launch = self.life.victim_that_repeats()?.option("--lease-ms", self.lease_ms);
        let launch = launch.option("--mixes", "mixed,keyed,mixed");
        Ok(Living { process: launch.start()?, victim: self.life.session() })
    }

    /// Starts as many as are missing, and lets all of them work for a while.
    fn fill(&mut self, random: &mut Random) -> anyhow::Result<()> {
        let wanted = random.between(FEWEST, MOST) as usize;
        let before = self.living.len();
        while self.living.len() < wanted {
            let new = self.start()?;
            self.living.push(new);
        }
        for new in self.living.iter().skip(before) {
            if !new.process.is_open() {
                let wrong = format!("{} could not open the store", new.victim);
                self.life.ledger.wrong.push(wrong);
            }
        }
        std::thread::sleep(millis(random, 20, 200));
        Ok(())
    }

    fn round(&mut self, random: &mut Random) -> anyhow::Result<()> {
        let Some(owner) = self.owner() else { return Ok(()) };
        let joined = self.joined(random);
        match random.below(12) {
            0..3 => self.kill(vec![owner]),
            3..5 => self.kill(joined.into_iter().collect()),
            5 => self.kill(joined.into_iter().chain([owner]).collect()),
            6 => self.kill_all(),
            7 => self.kill_one_that_opens(random),
            8..10 => self.kill_one_that_takes_over(owner, random),
            _ => self.stop_one(random),
        }
    }

    fn kill_one_that_opens(&mut self, random: &mut Random) -> anyhow::Result<()> {
        let new = self.start()?;
        new.process.hears(PATIENCE, |fact| *fact == Fact::Opening);
        std::thread::sleep(millis(random, 0, 8));
        self.living.push(new);
        self.kill(vec![self.living.len() - 1])
    }

    /// Or one that joins whoever does.
    fn kill_one_that_takes_over(
        &mut self,
        owner: usize,
        random: &mut Random,
    ) -> anyhow::Result<()> {
        self.kill(vec![owner])?;
        std::thread::sleep(millis(random, 0, 12));
        let next = random.below(self.living.len().max(1) as u64) as usize;
        self.kill((0..self.living.len()).filter(|at| *at == next).collect())
    }

    /// Stops one for a while. Others may die meanwhile, or come.
    fn stop_one(&mut self, random: &mut Random) -> anyhow::Result<()> {
        let stopped = random.below(self.living.len() as u64) as usize;
        let stopped = self.living.swap_remove(stopped);
        stopped.process.signal("STOP")?;
        let pause = self.pause(random);
        std::thread::sleep(pause / 2);
        match random.below(4) {
            0 => {
                let other = random.below(self.living.len().max(1) as u64) as usize;
                self.kill((0..self.living.len()).filter(|at| *at == other).collect())?;
            }
            1 => {
                let new = self.start()?;
                self.living.push(new);
            }
            _ => {}
        }
        std::thread::sleep(pause / 2);
        stopped.process.signal("CONT")?;
        self.living.push(stopped);
        Ok(())
    }

    /// How long one is stopped. A serving thread that was away for two seconds knows that it was
    /// stopped; a lease that is short ends while its victim sleeps.
    fn pause(&self, random: &mut Random) -> Duration {
        match random.below(4) {
            _ if self.lease_ms == SHORT_LEASE_MS => millis(random, 1_050, 1_400),
            0 => millis(random, 2_050, 3_000),
            1 => millis(random, 600, 2_000),
            _ => millis(random, 200, 600),
        }
    }

    /// Where the victim is that owns the store; somebody must, before long.
    fn owner(&mut self) -> Option<usize> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let owns = |one: &Living| one.role() == Some(Role::Owner);
            if let Some(owner) = self.living.iter().position(owns) {
                return Some(owner);
            }
            if Instant::now() > deadline {
                let wrong = format!("nobody owned the store for {PATIENCE:?}");
                self.life.ledger.wrong.push(wrong);
                return None;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// One of those that do not own it.
    fn joined(&self, random: &mut Random) -> Option<usize> {
        let joined: Vec<usize> = (0..self.living.len())
            .filter(|at| self.living[*at].role() != Some(Role::Owner))
            .collect();
        (!joined.is_empty()).then(|| *random.choose(&joined))
    }

    /// Kills these, at the same time.
    fn kill(&mut self, mut which: Vec<usize>) -> anyhow::Result<()> {
        which.sort_unstable();
        let taken = which.into_iter().rev().map(|at| self.living.swap_remove(at));
        let struck: anyhow::Result<Vec<Struck>> = taken.map(Living::strike).collect();
        struck?.into_iter().try_for_each(|struck| self.bury(struck))
    }

    fn kill_all(&mut self) -> anyhow::Result<()> {
        self.kill((0..self.living.len()).collect())
    }

    fn bury(&mut self, struck: Struck) -> anyhow::Result<()> {
        let Struck { living: Living { process, victim }, alive } = struck;
        let said = process.finish()?;
        let dead = stamp();
        if said.status.code().is_some() {
            let wrong = format!("{victim} ended by itself, with {}", said.status);
            self.life.ledger.wrong.push(wrong);
        }
        self.complain_of_answers(victim, &said);
        self.life.ledger.repeat(unanswered(&said, self.life.settings.remove));
        self.ended.push(VictimEnded { victim, said, alive, dead });
        Ok(())
    }

    /// Whatever can start does, and what the dead ran runs again. Victims go on all the time, so
    /// only what was there at the beginning is looked for.
    fn nothing_waits(&mut self) {
        let mut due = Due::default();
        let mut of_the_dead = HashSet::new();
        for (_, fact) in self.ended.iter().flat_map(|one| &one.said.facts) {
            due.note(fact);
            if let Fact::Run { token, .. } = fact {
                of_the_dead.insert(*token);
            }
        }
        let mut marks = vec![0; self.living.len()];
        let mut first: Option<HashSet<Id>> = None;
        let deadline = Instant::now() + PATIENCE;
        loop {
            for (one, mark) in self.living.iter().zip(&mut marks) {
                let (facts, next) = one.process.heard_since(*mark);
                *mark = next;
                facts.iter().for_each(|fact| due.note(fact));
            }
            let now = due.waiting(&of_the_dead);
            let left = first.get_or_insert_with(|| now.clone());
            left.retain(|id| now.contains(id));
            if left.is_empty() {
                return;
            }
            if Instant::now() > deadline {
                let wrong = left.iter().map(|id| format!("{id} does not start, and could"));
                return self.life.ledger.wrong.extend(wrong);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Somebody always owned the store again, or went on, before anybody ran out of patience: so
    /// all that callers saw is a pause.
    fn complain_of_answers(&mut self, victim: u32, said: &Said) {
        let more = |fact: &Fact| {
            matches!(fact, Fact::Unknown(_))
                || matches!(fact, Fact::Refused(why, _) if *why != Why::Dependency)
        };
        let refused = said.facts.iter().filter(|(_, fact)| more(fact));
        for (at, fact) in refused {
            let wrong = format!("{victim} was told more than to wait: {at} {fact}");
            self.life.ledger.wrong.push(wrong);
        }
    }

    /// Every living victim is answered again, whatever became of the others.
    fn everyone_goes_on(&mut self) {
        let marks: Vec<usize> = self.living.iter().map(|one| one.process.mark()).collect();
        for (one, mark) in self.living.iter().zip(marks) {
            let acknowledged = |facts: &[(Stamp, Fact)]| {
                facts.iter().any(|(_, fact)| matches!(fact, Fact::Ack(_)))
            };
            if !one.process.wait_for(mark, PATIENCE, acknowledged) {
                let wrong = format!("{} is not answered any more", one.victim);
                self.life.ledger.wrong.push(wrong);
            }
        }
    }
}

/// Calls of a dead victim that were not answered, to be repeated by another. None of a job that may
/// be deleted, if some are: it would start over.
fn unanswered(said: &Said, some_are_deleted: bool) -> Vec<Vec<Id>> {
    let mut calls: Vec<&Vec<Id>> = Vec::new();
    for (_, fact) in &said.facts {
        if let Fact::Try(ids) = fact {
            calls.push(ids);
        } else if let Fact::Ack(ids) | Fact::Refused(_, ids) = fact {
            calls.retain(|call| *call != ids);
        } else if let Fact::Same(id, _) = fact {
            calls.retain(|call| **call != [*id]);
        }
    }
    calls.retain(|call| !some_are_deleted || !call.iter().any(|id| Plan::of(*id).removable));
    calls.into_iter().cloned().collect()
}

/// What must start before long: jobs that were acknowledged and wait for nothing, and those that
/// ran in a victim that died.
///
/// A lease would hold up a job of a dead victim, or of a claim that lost its answer, for longer
/// than anybody waits here.
#[derive(Default)]
struct Due {
    acknowledged: HashSet<Id>,
    /// The last start of each job, whoever told of it first.
    starts: HashMap<Id, LastStart>,
    ended: HashSet<Id>,
}

#[derive(Clone, Copy)]
struct LastStart {
    token: u64,
    attempt: u32,
    is_over: bool,
}

impl Due {
    fn note(&mut self, fact: &Fact) {
        if let Fact::Ack(ids) = fact {
            self.acknowledged.extend(ids);
        } else if let Fact::Run { id, attempt, token } = fact {
            let new = LastStart { token: *token, attempt: *attempt, is_over: false };
            let known = self.starts.entry(*id).or_insert(new);
            if known.token < *token {
                *known = new;
            }
        } else if let Fact::Left { id, token } = fact {
            let known = self.starts.get_mut(id).filter(|known| known.token == *token);
            known.into_iter().for_each(|known| known.is_over = true);
        } else if let Fact::End(id, _) = fact {
            self.ended.insert(*id);
        }
    }

    /// Those that have not started yet, and those whose last start was in a victim that died.
    fn waiting(&self, of_the_dead: &HashSet<u64>) -> HashSet<Id> {
        let can_start = |id: &&Id| {
            let plan = Plan::of(**id);
            let waits = plan.delay.is_some() || plan.depends_on.is_some();
            !waits && !self.starts.contains_key(*id)
        };
        // One that was lost once too often is dead, and who was told of it may be dead as well.
        let lost = |(_, start): &(&Id, &LastStart)| {
            let may_run_again = start.attempt <= recovery().max_recoveries;
            !start.is_over && may_run_again && of_the_dead.contains(&start.token)
        };
        let unseen = self.acknowledged.iter().filter(can_start);
        let lost = self.starts.iter().filter(lost).map(|(id, _)| id);
        unseen.chain(lost).filter(|id| !self.ended.contains(*id)).copied().collect()
    }
}
