//! The harness's own harness: whatever becomes of the work, nothing is left behind.
//!
//! The work is done by a child in a mount namespace of its own, so that every mount, and with it
//! every loop device, goes when the child does, killed or not. What stays outside only waits for
//! it, and then deletes its files.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context;
use tokio::process::Command;
use tokio::signal::unix::{SignalKind, signal};

use crate::machine::Machine;
use crate::scenario::{Outcome, Result, Scenario};

/// What is to be done.
pub(crate) struct Task {
    pub(crate) scenarios: Vec<(Scenario, u64)>,
    pub(crate) seed: Option<u64>,
}

/// Says that this is the child, and where it may work: two paths.
const INSIDE: &str = "WINDLASS_TORTURE_INSIDE";

/// Where evidence is left.
const EVIDENCE: &str = "windlass-torture-evidence";

pub(crate) fn supervise(task: Task) -> anyhow::Result<ExitCode> {
    if let Ok(inside) = std::env::var(INSIDE) {
        let (scratch, memory) = inside.split_once(':').context("two paths")?;
        return Ok(work(task, &Machine::new(scratch.into(), memory.into())));
    }
    let name = format!("windlass-torture-{}", std::process::id());
    let scratch = std::env::temp_dir().join(&name);
    let shared_memory = Path::new("/dev/shm");
    let memory = match shared_memory.is_dir() {
        true => shared_memory.join(&name),
        false => scratch.join("memory"),
    };
    let ended = wait_inside(&scratch, &memory);
    for path in [&scratch, &memory] {
        let _ = std::fs::remove_dir_all(path);
    }
    ended
}

#[tokio::main(flavor = "current_thread")]
async fn wait_inside(scratch: &Path, memory: &Path) -> anyhow::Result<ExitCode> {
    std::fs::create_dir_all(scratch)?;
    std::fs::create_dir_all(memory)?;
    let me = std::env::current_exe()?;
    // Without root there are no mounts either, and those who need them say so.
    let apart = ["--mount", "--propagation", "private"];
    let can = Command::new("unshare").args(apart).arg("true").output().await;
    let mut command = match can.is_ok_and(|output| output.status.success()) {
        true => {
            let mut command = Command::new("unshare");
            command.args(apart).arg(me);
            command
        }
        false => Command::new(me),
    };
    let inside = format!("{}:{}", scratch.display(), memory.display());
    command.args(std::env::args_os().skip(1)).env(INSIDE, inside).kill_on_drop(true);
    let mut child = command.spawn()?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let status = tokio::select! {
        status = child.wait() => status?,
        _ = interrupt.recv() => {
            child.kill().await?;
            anyhow::bail!("interrupted");
        }
        _ = terminate.recv() => {
            child.kill().await?;
            anyhow::bail!("told to stop");
        }
    };
    Ok(ExitCode::from(u8::try_from(status.code().unwrap_or(1)).unwrap_or(1)))
}

fn work(task: Task, machine: &Machine) -> ExitCode {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let seed = task.seed.unwrap_or(now.as_millis() as u64 % 1_000_000);
    let mut skipped = Vec::new();
    let mut failed = false;
    for (scenario, rounds) in task.scenarios {
        let outcome = scenario.run(machine, rounds, seed);
        println!("{outcome}");
        match &outcome.result {
            Result::Skipped(missing) => skipped.push(format!("{}: {missing}", scenario.word())),
            Result::Judged(verdict) if verdict.wrong.is_empty() => {}
            Result::Judged(_) => {
                failed = true;
                if let Err(error) = show(&outcome, rounds) {
                    println!("  the evidence could not be kept: {error:#}");
                }
            }
        }
    }
    if !skipped.is_empty() {
        println!("Skipped for want of something:");
        skipped.iter().for_each(|skipped| println!("  {skipped}"));
        failed |= std::env::var("CI").is_ok_and(|ci| ci == "true");
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Shows what is wrong, and keeps everything that was said.
fn show(outcome: &Outcome, rounds: u64) -> anyhow::Result<()> {
    let Result::Judged(verdict) = &outcome.result else { return Ok(()) };
    for wrong in verdict.wrong.iter().take(20) {
        println!("  {wrong}");
    }
    if verdict.wrong.len() > 20 {
        println!("  … and {} more", verdict.wrong.len() - 20);
    }
    let (word, seed) = (outcome.scenario.word(), outcome.seed);
    println!("  again: windlass-torture {word} --rounds {rounds} --seed {seed}");
    let evidence: PathBuf = std::env::temp_dir().join(EVIDENCE);
    std::fs::create_dir_all(&evidence)?;
    let file = evidence.join(format!("{word}-{seed}.log"));
    let lines = verdict.wrong.iter().map(|wrong| format!("WRONG {wrong}"));
    let lines: Vec<String> = lines.chain(verdict.log.iter().cloned()).collect();
    std::fs::write(&file, lines.join("\n"))?;
    println!("  everything that was said: {}", file.display());
    Ok(())
}
