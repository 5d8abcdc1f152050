//! What a measurement says, as one line of JSON.

use std::time::Duration;

use serde::Serialize;

use crate::plan::Plan;
use crate::server::Used;

/// One line; what a column does not measure is left out.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    system: String,
    column: String,
    jobs: u32,
    seed: u32,
    /// How the system was set up, for people.
    settings: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    jobs_per_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    p50_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    p99_ms: Option<f64>,
    /// Processor time of the server, in microseconds a job.
    server_us: f64,
    /// Bytes of write-ahead log a job.
    wal_bytes: f64,
}

impl Report {
    /// With what the server used for so many jobs.
    pub(crate) fn new(plan: &Plan, settings: String, jobs: u32, used: Used) -> Self {
        let each = 1.0 / f64::from(jobs);
        Self {
            system: plan.system.clone(),
            column: plan.column.clone(),
            jobs,
            seed: plan.seed,
            settings,
            jobs_per_s: None,
            p50_ms: None,
            p99_ms: None,
            server_us: rounded(used.processor.as_secs_f64() * 1e6 * each),
            wal_bytes: (used.wal_bytes as f64 * each).round(),
        }
    }

    pub(crate) fn took(mut self, took: Duration) -> Self {
        self.jobs_per_s = Some((f64::from(self.jobs) / took.as_secs_f64()).round());
        self
    }

    pub(crate) fn latencies(mut self, mut latencies: Vec<Duration>) -> Self {
        latencies.sort_unstable();
        let at = |part: f64| {
            let rank = (latencies.len() as f64 * part).ceil() as usize;
            rounded(latencies[rank.clamp(1, latencies.len()) - 1].as_secs_f64() * 1e3)
        };
        self.p50_ms = Some(at(0.50));
        self.p99_ms = Some(at(0.99));
        self
    }
}

/// Two digits are more than a busy machine can promise.
fn rounded(figure: f64) -> f64 {
    (figure * 100.0).round() / 100.0
}
