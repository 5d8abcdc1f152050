//! `windlass-sim`: runs seeds, and prints one line to replay the first that fails.

use std::process::ExitCode;
use std::time::Duration;

use windlass_sim::swarm::{self, Report, Swarm};
use windlass_sim::{Point, Profile, Trace};

const HELP: &str = "\
Runs the file store on a simulated disk, with clients, workers and everything that goes wrong.

windlass-sim [--seed S] [--seeds N] [--profile P] [--seconds T] [--threads N] [--trace] [--cover]

  --seed S     the first seed (default 1)
  --seeds N    how many seeds (default 1; without end if --seconds is given)
  --profile P  what goes wrong (default: each seed chooses): calm, crashy, slow-disk, full-disk,
               flaky-disk, clock-storm, poison-handlers, bit-rot, processes, failing-owners
  --seconds T  begin no new seed after so long
  --threads N  how many seeds at once (default: one per core)
  --trace      print every step of the first seed
  --cover      print how often each rare path was taken

Exit code 1 if a seed fails, with a line to replay it; or if 20,000 seeds of all profiles leave a
rare path untaken.";

/// Seeds after which every rare path must have been taken.
const ENOUGH: u64 = 20_000;

fn main() -> ExitCode {
    match run(std::env::args().skip(1)) {
        Ok(code) => code,
        Err(problem) => {
            eprintln!("{problem}\n\n{HELP}");
            ExitCode::from(2)
        }
    }
}

fn run(arguments: impl Iterator<Item = String>) -> Result<ExitCode, String> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut swarm = Swarm { first: 1, seeds: 1, profile: None, within: None, threads };
    let (mut traced, mut covered, mut counted) = (false, false, false);
    let mut arguments = arguments;
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
        match argument.as_str() {
            "--seed" => swarm.first = number(&value()?)?,
            "--seeds" => (swarm.seeds, counted) = (number(&value()?)?, true),
            "--profile" => swarm.profile = Some(value()?.parse()?),
            "--seconds" => swarm.within = Some(Duration::from_secs(number(&value()?)?)),
            "--threads" => swarm.threads = number(&value()?)? as usize,
            "--trace" => traced = true,
            "--cover" => covered = true,
            "--help" | "-h" => {
                println!("{HELP}");
                return Ok(ExitCode::SUCCESS);
            }
            other => return Err(format!("`{other}` is not known")),
        }
    }
    if swarm.within.is_some() && !counted {
        swarm.seeds = u64::MAX - swarm.first;
    }
    if traced {
        let profile = swarm.profile.unwrap_or_else(|| Profile::of_seed(swarm.first));
        let outcome = swarm::run_seed(swarm.first, profile, Trace::shown());
        return Ok(
            outcome.map_or_else(|why| failed(swarm.first, profile, &why), |_| ExitCode::SUCCESS)
        );
    }
    // A panic of the engine is told with its seed; told twice it would only confuse.
    std::panic::set_hook(Box::new(|_| {}));
    let report = swarm::run(&swarm);
    tell(&report, covered);
    if let Some((seed, profile, why)) = &report.failure {
        return Ok(failed(*seed, *profile, why));
    }
    let missing = report.cover.missing();
    if report.seeds >= ENOUGH && swarm.profile.is_none() && !missing.is_empty() {
        for point in missing {
            println!("never: {}", point.words());
        }
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

fn number(text: &str) -> Result<u64, String> {
    text.replace('_', "").parse().map_err(|_| format!("`{text}` is not a number"))
}

fn failed(seed: u64, profile: Profile, why: &str) -> ExitCode {
    // What was asked and answered can be long; --trace shows all of it.
    let why: String = why.chars().take(600).collect();
    println!("windlass-sim --seed {seed} --profile {profile}  # {why}");
    ExitCode::FAILURE
}

fn tell(report: &Report, covered: bool) {
    let Report { seeds, tally, took, .. } = report;
    let rate = *seeds as f64 / took.as_secs_f64().max(0.001);
    println!(
        "{seeds} seeds in {:.1} s ({rate:.0}/s): {} jobs acknowledged, {} crashes, {} answers, \
         {} calls to the disk",
        took.as_secs_f64(),
        tally.jobs,
        tally.crashes,
        tally.answers,
        tally.disk_calls,
    );
    if covered {
        for point in Point::ALL {
            println!("{:>9}  {}", report.cover.count(*point), point.words());
        }
    }
}
