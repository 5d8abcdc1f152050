//! Flipped bits and cut files.
//!
//! Each case damages one bit or one length of a store, looks at it, and mends it again. It must be
//! refused, naming the file and the byte, or show exactly what was there: never less, never a
//! panic.
//!
//! One exception is in the nature of things. Of the last commits before a kill nobody has noted yet
//! that they are on the disk, so damage to them cannot be told from a write that was cut short.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use windlass::JobRecord;
use windlass::core::filter::Filter;
use windlass::store::file::{self, OfflineStore};

use super::{Life, Settings, Verdict};
use crate::facts::Fact;
use crate::machine::Machine;
use crate::process::Launch;
use crate::random::Random;

/// One case in so many is also given to a process that opens the store to work on it.
const TO_A_VICTIM: u64 = 50;

pub(super) fn run(machine: &Machine, rounds: u64, mut random: Random) -> anyhow::Result<Verdict> {
    let (mut verdict, mut score) = (Verdict::default(), FlipScore::default());
    let ends = [Ended::Closed, Ended::Closed, Ended::KilledIdle, Ended::KilledBusy];
    for (index, ended) in ends.into_iter().enumerate() {
        let checkpoint_bytes = (index % 2 == 1).then_some(8 << 10);
        let store = Store::make(machine, ended, checkpoint_bytes, &mut random)?;
        for case in 0..rounds / ends.len() as u64 {
            store.try_one(case, &mut random, &mut score, &mut verdict)?;
        }
        fs::remove_dir_all(&store.path)?;
    }
    let FlipScore { refused, identical, unproven } = score;
    verdict.summary = format!(
        "{refused} refused by name, {identical} showed everything, {unproven} in commits nobody \
         had noted before the kill, 0 panics"
    );
    Ok(verdict)
}

#[derive(Default)]
struct FlipScore {
    refused: u64,
    identical: u64,
    unproven: u64,
}

/// How the store's last process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    Closed,
    KilledIdle,
    KilledBusy,
}

/// What is done to a file.
#[derive(Clone, Copy, Debug)]
enum Damage {
    Flip { at: u64, bit: u8 },
    Cut { at: u64 },
}

/// What a look at the store showed.
#[derive(Debug, PartialEq)]
enum Seen {
    Everything(Vec<JobRecord>),
    Refused(String),
}

struct Store {
    path: PathBuf,
    copy: PathBuf,
    ended: Ended,
    intact: Seen,
    files: Vec<PathBuf>,
}

impl Store {
    fn make(
        machine: &Machine,
        ended: Ended,
        checkpoint_bytes: Option<u64>,
        random: &mut Random,
    ) -> anyhow::Result<Self> {
        let (path, copy) = (machine.memory("flips"), machine.memory("flips-copy"));
        let session = (random.next() as u32) & !0xffff;
        let segment_bytes = Some(64 << 10);
        let settings =
            Settings { segment_bytes, checkpoint_bytes, remove: true, ..Settings::default() };
        let mut life = Life::new(path.clone(), machine.aside(), settings, session);
        let launch = life.victim().option("--mixes", "mixed,delayed,mixed");
        match ended {
            Ended::Closed => {
                drop(launch.option("--jobs", 90).option("--stop-after-ms", 150).run()?)
            }
            Ended::KilledIdle => {
                let victim = launch.option("--jobs", 90).start()?;
                std::thread::sleep(Duration::from_millis(600));
                drop(victim.kill()?);
            }
            Ended::KilledBusy => {
                let victim = launch.option("--jobs", 200).start()?;
                victim.is_open();
                std::thread::sleep(Duration::from_millis(80));
                drop(victim.kill()?);
            }
        }
        // Short delays are over: from now on only damage changes what is seen.
        std::thread::sleep(Duration::from_millis(850));
        let mut files = Vec::new();
        for entry in fs::read_dir(&path)? {
            files.push(entry?.path());
        }
        files.sort();
        let mut store = Self { path, copy, ended, intact: Seen::Everything(Vec::new()), files };
        store.intact = look(&store.path);
        match &store.intact {
            Seen::Everything(jobs) if jobs.len() > 50 => Ok(store),
            other => anyhow::bail!("a store to damage could not be made: {other:?}"),
        }
    }

    fn try_one(
        &self,
        case: u64,
        random: &mut Random,
        score: &mut FlipScore,
        verdict: &mut Verdict,
    ) -> anyhow::Result<()> {
        let is_journal = |file: &PathBuf| file.to_string_lossy().contains("/journal-");
        let mut file = random.choose(&self.files);
        while !is_journal(file) && !random.one_in(20) {
            file = random.choose(&self.files);
        }
        let file = file.clone();
        let bytes = fs::read(&file)?;
        let damage = choose(&bytes, random);
        let unproven = self.is_unproven(&file, damage)?;
        inflict(&file, damage)?;
        let seen = catch_unwind(AssertUnwindSafe(|| look(&self.path)));
        let checked = catch_unwind(AssertUnwindSafe(|| file::check(&self.path).is_ok()));
        let mut wrong = match (seen, checked) {
            (Ok(seen), Ok(_)) => self.judge(&seen, unproven, score),
            _ => Some("a panic".to_string()),
        };
        if wrong.is_none() && case.is_multiple_of(TO_A_VICTIM) {
            wrong = self.let_a_victim_open_it(unproven)?;
        }
        // Mended, for the next case.
        fs::write(&file, &bytes)?;
        if let Some(wrong) = wrong {
            let (ended, file) = (self.ended, file.display());
            verdict.wrong.push(format!("{ended:?} store, {file}, {damage:?}: {wrong}"));
        }
        Ok(())
    }

    fn judge(&self, seen: &Seen, unproven: bool, score: &mut FlipScore) -> Option<String> {
        match seen {
            Seen::Refused(why) if names_the_place(why) => score.refused += 1,
            Seen::Refused(why) => return Some(format!("refused without naming the place: {why}")),
            seen if *seen == self.intact => score.identical += 1,
            Seen::Everything(_) if unproven => score.unproven += 1,
            Seen::Everything(jobs) => {
                let Seen::Everything(all) = &self.intact else { return None };
                let same = jobs.iter().filter(|job| all.contains(job)).count();
                let (all, jobs) = (all.len(), jobs.len());
                return Some(format!("{all} jobs became {jobs}, of which {same} are the same"));
            }
        }
        None
    }

    /// Whether the damage is to a commit of which no other says that it was on the disk.
    fn is_unproven(&self, file: &Path, damage: Damage) -> anyhow::Result<bool> {
        if self.ended == Ended::Closed {
            return Ok(false);
        }
        let Damage::Flip { at, .. } = damage else { return Ok(false) };
        let mut proven = 0;
        let mut hit = None;
        for segment in &self.files {
            for fragment in fragments(&fs::read(segment)?) {
                proven = proven.max(fragment.synced);
                if segment == file && (fragment.from..fragment.to).contains(&at) {
                    hit = Some(fragment.commit);
                }
            }
        }
        Ok(hit.is_some_and(|commit| commit > proven))
    }

    /// A copy of it is opened by a process that means to work.
    fn let_a_victim_open_it(&self, unproven: bool) -> anyhow::Result<Option<String>> {
        let _ = fs::remove_dir_all(&self.copy);
        fs::create_dir_all(&self.copy)?;
        for file in &self.files {
            fs::copy(file, self.copy.join(file.file_name().unwrap_or_default()))?;
        }
        let launch = Launch::new("work", &self.copy).with("--list");
        let said = launch.option("--jobs", 0).option("--stop-after-ms", 0).run()?;
        let listed = said.facts.iter().filter(|(_, fact)| matches!(fact, Fact::Have { .. }));
        let (listed, all) = (listed.count(), self.intact.jobs());
        if said.errors.contains("panicked") {
            return Ok(Some(format!("a victim panicked: {}", said.errors)));
        }
        let failed = said.facts.iter().find_map(|(_, fact)| match fact {
            Fact::Failed(why) => Some(why.clone()),
            _ => None,
        });
        // Damage to what is only read on demand is told by the call that reads it.
        let failed = failed.or((!said.status.success()).then_some(said.errors));
        Ok(match failed {
            Some(why) if names_the_place(&why) => None,
            Some(why) => Some(format!("a victim was refused without naming the place: {why}")),
            None if listed == all || unproven => None,
            None => Some(format!("a victim found {listed} of {all} jobs")),
        })
    }
}

impl Seen {
    fn jobs(&self) -> usize {
        match self {
            Seen::Everything(jobs) => jobs.len(),
            Seen::Refused(_) => 0,
        }
    }
}

fn names_the_place(why: &str) -> bool {
    (why.contains("journal-") || why.contains("segment ")) && why.contains("byte ")
}

fn look(path: &Path) -> Seen {
    let list = || -> anyhow::Result<Vec<JobRecord>> {
        let mut look = OfflineStore::open(path)?;
        let mut jobs = Vec::new();
        let mut after = None;
        loop {
            let page = look.list(&Filter::default(), after, 1_000)?;
            jobs.extend(page.jobs);
            after = page.next;
            if after.is_none() {
                return Ok(jobs);
            }
        }
    };
    match list() {
        Ok(jobs) => Seen::Everything(jobs),
        Err(error) => Seen::Refused(format!("{error:#}")),
    }
}

/// Mostly where something is written.
fn choose(bytes: &[u8], random: &mut Random) -> Damage {
    let used = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    let within = if random.one_in(10) { bytes.len() } else { (used + 16).min(bytes.len()) };
    let at = random.below(within.max(1) as u64);
    match random.one_in(12) {
        true => Damage::Cut { at },
        false => Damage::Flip { at, bit: random.below(8) as u8 },
    }
}

fn inflict(path: &Path, damage: Damage) -> anyhow::Result<()> {
    let file: File = OpenOptions::new().read(true).write(true).open(path)?;
    match damage {
        Damage::Cut { at } => file.set_len(at)?,
        Damage::Flip { at, bit } => {
            let mut byte = [0];
            if file.read_at(&mut byte, at)? == 1 {
                file.write_all_at(&[byte[0] ^ (1 << bit)], at)?;
            }
        }
    }
    Ok(())
}

/// A fragment of the journal, as `docs/format.md` draws it.
struct Fragment {
    from: u64,
    to: u64,
    commit: u64,
    synced: u64,
}

/// The fragments that count: of several at one place in the order of commits, the newest opening's.
fn fragments(bytes: &[u8]) -> Vec<Fragment> {
    const HEAD: usize = 96;
    let mut found: BTreeMap<usize, Fragment> = BTreeMap::new();
    for from in (0..bytes.len().saturating_sub(HEAD)).step_by(8) {
        let head = &bytes[from..from + HEAD];
        let short = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().unwrap_or_default());
        let long = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().unwrap_or_default());
        if &head[..4] == b"wlfr" && short(4) == crc32(&head[8..]) && short(12) as usize == from {
            let to = (from + HEAD) as u64 + u64::from(short(16));
            let (from, commit, synced) = (from as u64, long(24), long(32));
            found.insert(from as usize, Fragment { from, to, commit, synced });
        }
    }
    found.into_values().collect()
}

fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |sum, byte| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| {
            (sum >> 1) ^ (0xedb8_8320 & 0u32.wrapping_sub(sum & 1))
        })
    })
}
