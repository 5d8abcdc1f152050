//! Syncs, writes and renames that fail.
//!
//! The system call is not made and an error is returned in its place, at the k-th call of each
//! thread. What was not written or synced is then truly not on the disk, and the disk is cut off
//! right after (see `site.rs`): an acknowledgement that relied on the failed call is a lost job.
//! And whoever wrote a commit and failed must not acknowledge anything more.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::site::{Site, shelf};
use super::{Settings, Verdict};
use crate::facts::{Fact, Why};
use crate::ledger::Tally;
use crate::machine::Machine;
use crate::plan::Id;
use crate::process::{Process, Said};
use crate::random::Random;

/// Failures in one store's life.
const FAILURES: u64 = 10;

/// The calls that may fail, and up to which of a thread's calls.
const CALLS: [(&str, u64); 4] = [("fdatasync", 30), ("pwrite64", 30), ("fsync", 8), ("rename", 4)];

/// How long a victim may take to reach the call; some never do. A busy machine is slow, so it also
/// has so many calls acknowledged before it is given up, unless even that takes too long.
const PATIENCE: Duration = Duration::from_millis(1_200);
const ENOUGH_ACKNOWLEDGED: usize = 100;
const PATIENCE_AT_MOST: Duration = Duration::from_secs(20);

/// What was on its way when the call failed has been answered after this long.
const AFTERWARDS: Duration = Duration::from_millis(40);

pub(super) fn run(machine: &Machine, rounds: u64, mut random: Random) -> anyhow::Result<Verdict> {
    machine.needs_tool("strace", "strace")?;
    let shelf = shelf(machine)?;
    let (mut verdict, mut tally, mut score) =
        (Verdict::default(), Tally::default(), ErrorScore::default());
    let mut left = rounds;
    while left > 0 && verdict.wrong.is_empty() {
        let segment_bytes = Some(64 << 10);
        let settings = Settings { segment_bytes, ..Settings::random(&mut random) };
        let mut site = Site::new(machine, &shelf, "ext4", settings, &mut random)?;
        for _ in 0..left.min(FAILURES) {
            one_failure(&mut site, machine, &mut random, &mut score)?;
            site.life.check()?;
            if !site.life.ledger.wrong.is_empty() {
                break;
            }
        }
        left -= left.min(FAILURES);
        if site.life.ledger.wrong.is_empty() {
            site.life.drain()?;
        }
        verdict.add(&mut tally, site.close()?);
    }
    if score.reached * 2 < rounds && verdict.wrong.is_empty() {
        verdict.wrong.push(format!("only {} of {rounds} failures came to pass", score.reached));
    }
    let ErrorScore { reached, while_opening, stopped, went_on } = score;
    verdict.summary = format!(
        "{reached} failures came to pass ({while_opening} while opening, {stopped} stopped the \
         store, {went_on} did not matter), {tally}"
    );
    shelf.unmount()?;
    Ok(verdict)
}

#[derive(Default)]
struct ErrorScore {
    reached: u64,
    while_opening: u64,
    stopped: u64,
    went_on: u64,
}

fn one_failure(
    site: &mut Site<'_>,
    machine: &Machine,
    random: &mut Random,
    score: &mut ErrorScore,
) -> anyhow::Result<()> {
    let (call, last) = *random.choose(&CALLS);
    let error = *random.choose(&["EIO", "ENOSPC"]);
    let from = random.between(1, last);
    // Once, or from then on.
    let on = if random.one_in(3) { "+" } else { "" };
    let log = machine.directory("strace");
    // Producers that never rest: whoever goes on in spite of a failure shows it.
    let mut launch = site.life.victim_that_repeats()?.option("--backlog", 5_000);
    launch.under = under_strace(&log, call, error, &format!("{from}{on}"));
    let what = format!("{call} number {from}{on} fails with {error}");
    site.life.ledger.log.push(format!("-- {what}"));
    let victim = launch.start()?;
    // Another thread may reach its own such call later; that one is not waited for.
    let injected = wait_for_injection(&victim, &log);
    if !injected.is_empty() {
        std::thread::sleep(AFTERWARDS);
    }
    let cut = site.cut(&victim)?;
    // Whoever goes on has time to show it.
    std::thread::sleep(AFTERWARDS);
    let mut said = victim.kill()?;
    let opened = take_failed_opening(&mut said);
    if injected.is_empty() {
        return site.go_on(cut, &said);
    }
    score.reached += 1;
    site.life.ledger.log.extend(injected.iter().map(|line| format!("-- {line}")));
    if !opened {
        score.while_opening += 1;
        return site.go_on(cut, &said);
    }
    let acknowledged = acknowledged_after(&said, cut.mark);
    match (acknowledged, injected.iter().any(|line| must_stop(line))) {
        (0, true) if says_broken(&said) => score.stopped += 1,
        (0, true) => site.life.ledger.wrong.push(format!("{what}: it stopped without a word")),
        (0, false) => {}
        (_, false) => score.went_on += 1,
        (acknowledged, true) => {
            let wrong = format!("{what}: {acknowledged} calls begun later were acknowledged");
            site.life.ledger.wrong.push(wrong);
        }
    }
    site.go_on(cut, &said)
}

fn under_strace(log: &Path, call: &str, error: &str, when: &str) -> Vec<std::ffi::OsString> {
    let calls = "fdatasync,fsync,pwrite64,/^rename";
    let call = if call == "rename" { "/^rename" } else { call };
    let inject = format!("inject={call}:error={error}:when={when}");
    // As a grandchild: killing the victim ends both. `-y` names files, `-x` shows bytes.
    let mut under: Vec<std::ffi::OsString> = Vec::new();
    for word in ["strace", "-D", "-f", "-qq", "-y", "-x", "-s", "48", "--seccomp-bpf"] {
        under.push(word.into());
    }
    under.extend(["-e".into(), format!("trace={calls}").into()]);
    under.extend(["-e".into(), inject.into(), "-e".into(), "signal=none".into()]);
    under.extend(["-o".into(), PathBuf::from(log).into_os_string()]);
    under
}

/// Waits for the call to fail, and returns what strace says of it.
fn wait_for_injection(victim: &Process, log: &Path) -> Vec<String> {
    let began = Instant::now();
    let (mut mark, mut acknowledged, mut ended) = (0, 0, false);
    loop {
        victim.wait_for(mark, Duration::from_millis(3), |facts| {
            mark += facts.len();
            acknowledged += facts.iter().filter(|(_, fact)| matches!(fact, Fact::Ack(_))).count();
            ended |= facts.iter().any(|(_, fact)| matches!(fact, Fact::Failed(_)));
            ended
        });
        // If it has ended, this last look finds what there is.
        let calls = std::fs::read_to_string(log).unwrap_or_default();
        let injected = calls.lines().filter(|line| line.contains("(INJECTED)"));
        let injected: Vec<String> = injected.map(str::to_string).collect();
        let waited = began.elapsed();
        let enough = waited > PATIENCE && acknowledged >= ENOUGH_ACKNOWLEDGED;
        if !injected.is_empty() || ended || enough || waited > PATIENCE_AT_MOST {
            return injected;
        }
    }
}

/// Takes out that the store could not be opened, which is to be expected; whether it could.
fn take_failed_opening(said: &mut Said) -> bool {
    let opened = said.facts.iter().any(|(_, fact)| matches!(fact, Fact::Opened { .. }));
    if !opened {
        said.facts.retain(|(_, fact)| !matches!(fact, Fact::Failed(_)));
    }
    opened
}

/// Calls that were begun after the mark, and acknowledged.
fn acknowledged_after(said: &Said, mark: usize) -> usize {
    let later = said.facts.get(mark..).unwrap_or_default();
    let begun = later.iter().filter_map(|(_, fact)| match fact {
        Fact::Try(ids) => Some(ids),
        _ => None,
    });
    let acknowledged = |ids: &Vec<Id>| {
        later.iter().any(|(_, fact)| matches!(fact, Fact::Ack(acked) if acked == ids))
    };
    begun.filter(|ids| acknowledged(ids)).count()
}

fn says_broken(said: &Said) -> bool {
    let broken = |fact: &Fact| matches!(fact, Fact::Refused(Why::Broken, _) | Fact::Unknown(_));
    said.facts.iter().any(|(_, fact)| broken(fact))
}

/// Whether the failed call was a write or a sync of a commit. A mark that the journal is idle, a
/// spare file that could not be made and a file that could not be let go are not; a rename loses
/// nothing and may be tried again; of a failed sync of the directory it cannot be told.
fn must_stop(line: &str) -> bool {
    let of_a_commit = line.contains("fdatasync(") || line.contains("pwrite64(");
    let bytes = line.split('"').nth(1).unwrap_or_default();
    of_a_commit && line.contains("/journal-") && !is_seal(bytes)
}

/// Whether these bytes, as strace writes them, are the head of a fragment with the flag of a seal
/// (see `docs/format.md`).
fn is_seal(bytes: &str) -> bool {
    const FLAGS: usize = 44;
    let byte = |at: usize| bytes.get(4 * at..4 * at + 4);
    byte(0) == Some("\\x77") && byte(FLAGS) == Some("\\x02")
}
