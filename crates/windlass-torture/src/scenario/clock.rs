//! Wall clocks that jump by an hour or a year, either way, while victims work and between them.
//!
//! libfaketime stands between the victim and the clock, and reads the offset from a file that is
//! rewritten meanwhile; the steady clock is left alone. Nothing may be lost, doubled or held up,
//! and nothing may start before its time by the clock of the engine (the victim complains itself).

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::{Life, Scenario, Settings, Verdict, millis};
use crate::facts::Fact;
use crate::ledger::Tally;
use crate::machine::{Machine, Missing};
use crate::plan::{Behaviour, Id, LONG, Plan};
use crate::process::{Launch, Process, Said};
use crate::random::Random;

const HOUR: i64 = 3_600;
const YEAR: i64 = 365 * 24 * HOUR;

/// Where the wall clock may stand, in seconds from where it should.
const OFFSETS: [i64; 5] = [-YEAR, -HOUR, 0, HOUR, YEAR];

/// Steps of the clock in each victim's life.
const STEPS: u64 = 3;

/// While jobs are due, some job ends at least this often: a busy machine is slow, and others are
/// served in between; a step of the clock would hold jobs up for an hour or more.
const PATIENCE: Duration = Duration::from_secs(10);

/// And all that are due end within this time.
const PATIENCE_WITH_ALL: Duration = Duration::from_secs(120);

pub(super) fn run(machine: &Machine, rounds: u64, mut random: Random) -> anyhow::Result<Verdict> {
    let clock = Clock { library: library()?, file: machine.directory("offset") };
    let settings = Settings { segment_bytes: Some(256 << 10), remove: true, ..Settings::default() };
    let session = (random.next() as u32) & !0xffff;
    let mut life = Life::new(machine.directory("clock"), machine.aside(), settings, session);
    let (mut steps, mut ahead_of_time) = (0, 0);
    for round in 0..rounds {
        // The engine's time never goes back; so that it is pushed ahead again and again, the whole
        // range moves.
        let base = 2 * HOUR * round as i64;
        clock.set(base + *random.choose(&OFFSETS))?;
        let launch = life.victim_that_repeats()?.option("--mixes", "delayed,mixed,delayed");
        let victim = clock.over(launch).start()?;
        victim.is_open();
        for _ in 0..STEPS {
            std::thread::sleep(millis(&mut random, 60, 250));
            clock.set(base + *random.choose(&OFFSETS))?;
            steps += 1;
        }
        std::thread::sleep(millis(&mut random, 60, 250));
        if let Some(id) = held_up(&victim) {
            let wrong = format!("{id} and maybe others were held up by a step of the clock");
            life.ledger.wrong.push(wrong);
        }
        let pid = victim.pid();
        let said = victim.kill()?;
        clean_up_after(pid);
        ahead_of_time += said.facts.iter().filter(|(_, fact)| is_long(fact)).count();
        life.ledger.wrong.extend(doubled(&said).map(|id| format!("{id} ran twice at once")));
        life.ledger.take_over(&said);
        life.check()?;
        if !life.ledger.wrong.is_empty() {
            break;
        }
    }
    if life.ledger.wrong.is_empty() {
        // So far ahead that the longest delays are over.
        clock.set(2 * HOUR * rounds as i64 + 3 * YEAR)?;
        let said = clock.over(life.victim().option("--producers", 0)).run()?;
        life.drained(&said)?;
    }
    if ahead_of_time == 0 && rounds >= Scenario::Clock.rounds() {
        life.ledger.wrong.push("no long delay was cut short: the clock did not jump".to_string());
    }
    let (mut verdict, mut tally) = (Verdict::default(), Tally::default());
    verdict.add(&mut tally, life);
    let summary = format!("{steps} steps under way, {ahead_of_time} long delays cut short");
    verdict.summary = format!("{summary}, {tally}");
    Ok(verdict)
}

/// A wall clock that can be put wrong.
struct Clock {
    library: PathBuf,
    file: PathBuf,
}

impl Clock {
    fn set(&self, seconds: i64) -> anyhow::Result<()> {
        let fresh = self.file.with_extension("fresh");
        std::fs::write(&fresh, format!("{seconds:+}\n"))?;
        Ok(std::fs::rename(fresh, &self.file)?)
    }

    fn over(&self, mut launch: Launch) -> Launch {
        let library = self.library.clone().into_os_string();
        launch.environment.insert("LD_PRELOAD".into(), library);
        let file = self.file.clone().into_os_string();
        launch.environment.insert("FAKETIME_TIMESTAMP_FILE".into(), file);
        launch.environment.insert("FAKETIME_NO_CACHE".into(), "1".into());
        launch.environment.insert("FAKETIME_DONT_FAKE_MONOTONIC".into(), "1".into());
        launch
    }
}

fn library() -> anyhow::Result<PathBuf> {
    let folders = std::fs::read_dir("/usr/lib").into_iter().flatten().flatten();
    let folders = folders.map(|entry| entry.path()).chain([Path::new("/usr/lib").into()]);
    let mut found = folders.map(|folder| folder.join("faketime/libfaketimeMT.so.1"));
    let missing = || Missing("libfaketime (package libfaketime)".to_string());
    Ok(found.find(|library| library.exists()).ok_or_else(missing)?)
}

/// Removes what libfaketime leaves behind of a process that was killed.
fn clean_up_after(pid: u32) {
    for file in [format!("faketime_shm_{pid}"), format!("sem.faketime_sem_{pid}")] {
        let _ = std::fs::remove_file(Path::new("/dev/shm").join(file));
    }
}

/// Waits for everything that is due soon to end; one that did not.
fn held_up(victim: &Process) -> Option<Id> {
    let deadline = Instant::now() + PATIENCE_WITH_ALL;
    let mut left: Option<BTreeSet<Id>> = None;
    let mut mark = 0;
    loop {
        let mut seen = mark;
        let progress = victim.wait_for(mark, PATIENCE, |facts| {
            seen += facts.len();
            let due = || facts.iter().flat_map(|(_, fact)| due_soon(fact)).collect();
            let left = left.get_or_insert_with(due);
            let mut ends = 0;
            for (_, fact) in facts {
                if let Fact::End(id, _) = fact {
                    left.remove(id);
                    ends += 1;
                }
            }
            left.is_empty() || ends > 0
        });
        mark = seen;
        let left = left.as_ref()?;
        if left.is_empty() {
            return None;
        }
        if !progress || Instant::now() > deadline {
            return left.first().copied();
        }
    }
}

/// Jobs that were acknowledged and wait for nothing but a short time.
fn due_soon(fact: &Fact) -> Vec<Id> {
    let Fact::Ack(ids) = fact else { return Vec::new() };
    let soon = |id: &&Id| {
        let plan = Plan::of(**id);
        plan.depends_on.is_none() && plan.delay != Some(LONG)
    };
    ids.iter().filter(soon).copied().collect()
}

/// Whether a job starts that should have waited for longer than any round lasts.
fn is_long(fact: &Fact) -> bool {
    matches!(fact, Fact::Run { id, .. } if Plan::of(*id).delay == Some(LONG))
}

/// Jobs that started again although nothing had happened to their worker.
fn doubled(said: &Said) -> impl Iterator<Item = Id> {
    let mut starts: BTreeMap<Id, u32> = BTreeMap::new();
    for (_, fact) in &said.facts {
        if let Fact::Run { id, .. } = fact
            && matches!(Plan::of(*id).behaviour, Behaviour::Complete(_))
        {
            *starts.entry(*id).or_default() += 1;
        }
    }
    starts.into_iter().filter(|(_, starts)| *starts > 1).map(|(id, _)| id)
}
