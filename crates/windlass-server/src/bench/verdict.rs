//! What the figures mean to a person: what bounds each measurement, and what changed since the last
//! run.
//!
//! The last run of a directory is kept in a file beside it (`bench.last.json` for `./bench`),
//! because the directory itself is emptied. Only what was measured in the same way is compared.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::{Deserialize, Serialize};
use windlass::store::Address;

use crate::bench::result::Measurement;
use crate::output::{self, grouped};

/// From this part of the bare log's speed on, the disk is what bounds.
const NEAR_THE_LIMIT: f64 = 0.75;

/// From this part of all processors on, they are what bounds.
const BUSY: f64 = 0.8;

/// A change by less than this part is within what two runs differ by anyway.
const NOISE: f64 = 0.1;

/// What keeps a measurement from being faster.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Bound {
    /// The bare log is not much faster on this disk.
    Disk { of_limit: f64 },
    /// The processors have no time left.
    Processor,
    /// Neither: callers wait for their answers one after the other.
    Callers,
}

fn bound(of_limit: Option<f64>, busy: f64, cores: f64) -> Bound {
    match of_limit.filter(|part| *part >= NEAR_THE_LIMIT) {
        Some(of_limit) => Bound::Disk { of_limit },
        None if busy >= BUSY * cores => Bound::Processor,
        None => Bound::Callers,
    }
}

/// Prints what bounds each measurement that is about how fast jobs go, if the system tells what its
/// processors did.
pub(crate) fn print_bounds(measured: &[Measurement]) -> anyhow::Result<()> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from) as f64;
    let mut told = Vec::new();
    let mut someone_waits = false;
    for each in measured {
        let Some((busy, us_per_job)) = each.processors() else { continue };
        let bound = bound(each.of_limit(), busy, cores);
        someone_waits |= bound == Bound::Callers;
        let what = match bound {
            Bound::Disk { of_limit } => format!("the disk, {of_limit:.2} of a bare log"),
            Bound::Processor => "the processor".to_string(),
            Bound::Callers => "the callers, who wait".to_string(),
        };
        let work = format!("{busy:.1} of {cores} processors, {us_per_job:.1} µs a job");
        told.push((each.title(), format!("{what} ({work})")));
    }
    if told.is_empty() {
        return Ok(());
    }
    output::line("\nWhat bounds you:")?;
    let width = told.iter().map(|(title, _)| title.chars().count()).max().unwrap_or_default();
    for (title, why) in told {
        output::line(&format!("  {title:width$}  {why}"))?;
    }
    match someone_waits {
        true => output::line("Who waits shares a commit with others: try a larger --concurrency."),
        false => Ok(()),
    }
}

/// One measurement of the last run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct KeptFigure {
    /// What was measured, and how: only the same is compared.
    pub(crate) title: String,
    pub(crate) durability: String,
    pub(crate) n: u64,
    pub(crate) concurrency: u32,
    pub(crate) payload_bytes: usize,
    pub(crate) jobs_per_s: f64,
}

impl KeptFigure {
    fn is_like(&self, other: &KeptFigure) -> bool {
        Self { jobs_per_s: 0.0, ..self.clone() } == Self { jobs_per_s: 0.0, ..other.clone() }
    }

    /// How it differs from the last time, in words.
    fn since(&self, before: &KeptFigure) -> String {
        let ratio = self.jobs_per_s / before.jobs_per_s.max(1e-9);
        let change = match ratio - 1.0 {
            part if part.abs() < NOISE => "about the same".to_string(),
            part if part < 0.0 => format!("{:.0} % slower", -part * 100.0),
            part => format!("{:.0} % faster", part * 100.0),
        };
        let [now, then] = [self, before].map(|each| grouped(each.jobs_per_s.round() as u64));
        format!("{}: {now} jobs/s, was {then}: {change}", self.title)
    }
}

/// Where the last run of a store is kept; `None` unless it is a directory with a name.
fn place(store: &str) -> Option<PathBuf> {
    let Ok(Address::Directory(path)) = store.parse() else { return None };
    let mut name = path.file_name()?.to_os_string();
    name.push(".last.json");
    Some(path.with_file_name(name))
}

/// Keeps this run for the next one, and returns the last one. One that cannot be read is taken for
/// none: it is only a help.
pub(crate) fn exchange(
    store: &str,
    measured: &[Measurement],
) -> anyhow::Result<Option<Vec<KeptFigure>>> {
    let Some(place) = place(store) else { return Ok(None) };
    let now: Vec<KeptFigure> = measured.iter().filter_map(Measurement::kept).collect();
    let last = read(&place);
    // What was not measured this time stays for when it is.
    let mut kept = now.clone();
    let others = last.iter().flatten().filter(|old| !now.iter().any(|new| new.is_like(old)));
    kept.extend(others.cloned());
    fs::write(&place, serde_json::to_string_pretty(&kept)? + "\n")
        .with_context(|| format!("cannot keep this run in `{}`", place.display()))?;
    Ok(last)
}

fn read(place: &Path) -> Option<Vec<KeptFigure>> {
    serde_json::from_slice(&fs::read(place).ok()?).ok()
}

/// Prints what changed since the last run.
pub(crate) fn print_changes(measured: &[Measurement], last: &[KeptFigure]) -> anyhow::Result<()> {
    let now = measured.iter().filter_map(Measurement::kept);
    let pairs = now.filter_map(|now| {
        let before = last.iter().find(|before| before.is_like(&now))?;
        Some(now.since(before))
    });
    let told: Vec<String> = pairs.collect();
    if told.is_empty() {
        return Ok(());
    }
    output::line("\nSince the last run here:")?;
    told.iter().try_for_each(|text| output::line(&format!("  {text}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(jobs_per_s: f64) -> KeptFigure {
        KeptFigure {
            title: "drain".to_string(),
            durability: "sync".to_string(),
            n: 100,
            concurrency: 64,
            payload_bytes: 200,
            jobs_per_s,
        }
    }

    #[test]
    fn the_disk_bounds_near_its_limit_else_the_processors_if_they_are_busy_else_the_callers() {
        assert_eq!(bound(Some(0.9), 2.0, 2.0), Bound::Disk { of_limit: 0.9 });
        assert_eq!(bound(Some(0.5), 1.9, 2.0), Bound::Processor);
        assert_eq!(bound(None, 1.7, 2.0), Bound::Processor);
        assert_eq!(bound(Some(0.5), 1.1, 2.0), Bound::Callers);
    }

    #[test]
    fn a_change_within_a_tenth_is_none() {
        let words = |now, before| figure(now).since(&figure(before));
        assert_eq!(words(1_050.0, 1_000.0), "drain: 1,050 jobs/s, was 1,000: about the same");
        assert_eq!(words(500.0, 1_000.0), "drain: 500 jobs/s, was 1,000: 50 % slower");
        assert_eq!(words(1_500.0, 1_000.0), "drain: 1,500 jobs/s, was 1,000: 50 % faster");
    }

    #[test]
    fn only_what_was_measured_in_the_same_way_is_alike() {
        assert!(figure(1.0).is_like(&figure(2.0)));
        assert!(!figure(1.0).is_like(&KeptFigure { concurrency: 1, ..figure(1.0) }));
        assert!(!figure(1.0).is_like(&KeptFigure { n: 1, ..figure(1.0) }));
    }

    #[test]
    fn the_last_run_stands_beside_a_directory_and_nowhere_else() {
        assert_eq!(place("./bench"), Some(PathBuf::from("./bench.last.json")));
        assert_eq!(place("memory:"), None);
        assert_eq!(place("postgres://localhost/jobs"), None);
    }
}
