//! Every bound in the system, each with the reason for its number.
//!
//! A refusal names the limit and the knob. What can be configured is a field of [`Limits`]; what
//! cannot is a constant.

use alloc::format;
use alloc::string::{String, ToString};
use core::time::Duration;

use crate::name::excerpt;
use crate::refusal::Refusal;

/// Longest name in bytes: fits a file name, a SQL identifier with prefix and a metric label.
pub const NAME_BYTES: usize = 128;

/// Longest unique key in bytes: room for a URL or a composed key, small enough to index.
pub const KEY_BYTES: usize = 512;

/// Most distinct queues, and most distinct kinds: far above any real program, low enough that a
/// hostile producer cannot grow the ledger by inventing names.
pub const NAMES: usize = 10_000;

/// Most lanes of one queue: each has counters of its own, for ever.
pub const LANES: usize = 4_096;

/// The last number among jobs that are spread over lanes: so far from the end of all numbers that
/// counting on from it cannot get there.
pub const TURN_MAX: u64 = 1 << 62;

/// Largest state of an object in bytes: every turn writes it anew.
pub const OBJECT_STATE_BYTES: usize = 1024 * 1024;

/// Largest named value in bytes: a token, a secret or some settings, read whole with every look.
pub const VALUE_BYTES: usize = 64 * 1024;

/// How long an order to a worker is kept that says no more that it lives: a worker that was out of
/// reach for so long is taken for dead, and orders to the dead must not pile up.
pub const ORDER_KEPT: Duration = Duration::from_secs(86_400);

/// Longest name of who acts, and of from where, in bytes: room for a mail address or a host.
pub const ACTOR_BYTES: usize = 256;

/// Longest part of an audit entry in bytes: what was done, not the whole list of what it was done
/// to.
pub const AUDIT_TEXT_BYTES: usize = 1_000;
/// Jobs that an audit entry names, of those that were chosen by their ids.
pub const AUDIT_IDS: usize = 10;

/// Most news one turn tells: it is one change, not a log.
pub const OBJECT_NEWS: usize = 100;

/// Most tags on one job: each is an index entry in a SQL store.
pub const TAGS: usize = 16;

/// Most metadata entries on one job, and their total bytes: metadata is for labels, not for data.
pub const METADATA_ENTRIES: usize = 32;
/// See [`METADATA_ENTRIES`].
pub const METADATA_BYTES: usize = 8 * 1024;

/// Most dependencies of one job: enough for a wide fan-in, bounded so that an enqueue stays quick.
pub const DEPENDENCIES: usize = 10_000;

/// Most jobs in one enqueue call: one commit must stay short enough for others to get a turn.
pub const BATCH_JOBS: usize = 10_000;

/// Jobs that a change by a filter, or the clearing of a queue, changes in one commit: about a
/// millisecond of the ledger's time, so that others get theirs between two.
pub const CHUNK_JOBS: usize = 250;

/// Most jobs one claim hands out.
pub const CLAIM_JOBS: usize = 10_000;

/// Payload and output bytes refused above this unless configured: large data belongs in a file or
/// object store, with its address in the payload.
pub const PAYLOAD_BYTES: usize = 128 * 1024;
/// The most [`Limits::payload_bytes`] can be raised to.
pub const PAYLOAD_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Longest body of a request to the public API in bytes: the largest payload there may be, with
/// what is said around it.
pub const REQUEST_BYTES: usize = PAYLOAD_BYTES_MAX + 1024 * 1024;

/// Bytes of such bodies that a server holds at once, of all requests together: room for a few of
/// the longest, or for thousands of ordinary ones.
pub const REQUESTS_BYTES: usize = 4 * REQUEST_BYTES;

/// Most jobs on one page of a list of the public API: a page is whole JSON in memory.
pub const PAGE_JOBS_HTTP: usize = 500;

/// Longest a request to the public API waits for something: proxies cut what is silent for longer.
pub const WAIT_MAX: Duration = Duration::from_secs(60);

/// Most jobs one worker is given at once over HTTP: with their payloads they are one answer.
pub const LEASE_JOBS: usize = 100;

/// Furthest delay or due time: a century catches a unit mistake (seconds for milliseconds) and
/// keeps time arithmetic far from overflow.
pub const DELAY_MAX: Duration = Duration::from_secs(100 * 366 * 86_400);

/// Longest trace context in bytes: a `traceparent` is 55.
pub const TRACE_BYTES: usize = 128;

/// Most delays in a custom retry policy; the last one repeats anyway.
pub const CUSTOM_DELAYS: usize = 100;

/// Longest error text kept, in bytes: a stack of causes, not a log.
pub const ERROR_BYTES: usize = 10_000;

/// Attempts remembered in a job's record; older ones are dropped and counted.
pub const ATTEMPTS_KEPT: usize = 20;

/// Log lines kept per job; older ones are dropped and counted.
pub const LOG_LINES_KEPT: usize = 100;
/// Longest log line or progress note in bytes.
pub const LOG_LINE_BYTES: usize = 1_000;

/// Most finished steps of one job: a handler with more is a loop, and each one is a commit.
pub const STEPS: usize = 256;
/// Largest result of one step in bytes, as of an output: large data belongs elsewhere, with its
/// address in the result.
pub const STEP_BYTES: usize = 128 * 1024;
/// Most bytes of all results of one job: every start of the job reads them all.
pub const STEPS_BYTES: usize = 1024 * 1024;

/// Largest result in bytes that the event of a completed job carries: room for an id, a count or a
/// short answer. [`EVENTS_KEPT`] events of that size take 64 MB, where whole outputs could take a
/// terabyte.
pub const EVENT_RESULT_BYTES: usize = 1_024;

/// Events kept for subscribers that lag: at full speed about a second of history, some 10 MB.
pub const EVENTS_KEPT: usize = 65_536;

/// Dependents that the ends of one command reach: those beyond it are reached by the commands that
/// follow, so many by each `Promote` and [`CASCADE_EACH`] by each other. A thousand take one or two
/// milliseconds, and nearly every graph is smaller.
pub const CASCADE_JOBS: usize = 1_000;

/// Dependents that every single end reaches at once, however many ends a command has: so that
/// ordinary jobs release those that wait for them in their own commit, also in large batches.
pub const CASCADE_EACH: usize = 16;

/// Due jobs made ready by one command: bounds the pause when a clock step makes everything due at
/// once. Beyond it, those due earliest come first.
pub const PROMOTE_BATCH: usize = 10_000;

/// Jobs rescued, purged or lapsed by one command, for the same reason.
pub const SWEEP_BATCH: usize = 1_000;

/// Most jobs on one page of a list.
pub const PAGE_JOBS: usize = 1_000;

/// Jobs one page, or one chunk of a change by a filter, may look at: a filter that matches nothing
/// still answers quickly, with a cursor to go on from.
pub const PAGE_SCAN: usize = 20_000;

/// Records one page or one chunk may read, where only they can tell whether they match: about a
/// millisecond. So a page of a store over a ledger has at most as many jobs.
pub const PAGE_READS: usize = 250;

/// Priorities of a queue whose waiting jobs are told apart in its counts, the highest first: a
/// program has a handful, and one that uses them as sort keys must not make every count long.
pub const PRIORITIES_COUNTED: usize = 100;

/// Shortest lease: below it an ordinary scheduling delay would look like a crash.
pub const LEASE_MIN: Duration = Duration::from_secs(1);
/// Longest lease: a day without a sign of life is a dead worker.
pub const LEASE_MAX: Duration = Duration::from_secs(86_400);

/// How deep an explanation follows blocked jobs.
pub const EXPLAIN_DEPTH: usize = 16;
/// How many of the jobs that one waits for are explained themselves: more would bury the first.
pub const EXPLAIN_BLOCKERS: usize = 3;
/// How many jobs ahead in line an explanation counts before it says "at least".
pub const EXPLAIN_AHEAD: usize = 1_000;

/// Bounds that a user may move.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "wire", derive(serde::Serialize, serde::Deserialize))]
pub struct Limits {
    /// Largest payload or output in bytes; at most [`PAYLOAD_BYTES_MAX`].
    pub payload_bytes: usize,
    /// Dead letters kept per queue; the oldest makes room and is counted.
    pub dead_letters: usize,
    /// How long completed and cancelled jobs can be found.
    pub history_age: Duration,
    /// How many completed and cancelled jobs can be found; the oldest makes room.
    pub history_jobs: usize,
    /// How many changes by actors are kept in the audit trail; the oldest makes room.
    pub audit_entries: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            payload_bytes: PAYLOAD_BYTES,
            dead_letters: 10_000,
            history_age: Duration::from_secs(7 * 86_400),
            history_jobs: 100_000,
            audit_entries: 10_000,
        }
    }
}

/// A fixed bound as a refusal tells it: what is counted, the most of it, and what to do about more.
#[derive(Clone, Copy, Debug)]
pub struct Bound {
    /// What is counted.
    pub what: &'static str,
    /// The most there may be.
    pub most: usize,
    /// What to do instead.
    pub remedy: &'static str,
}

impl Bound {
    /// Refuses more than there may be.
    pub fn check(&self, got: usize) -> Result<(), Refusal> {
        at_most(self.what, got, self.most, self.remedy)
    }
}

/// What to do with bytes that are too many for a payload or an output.
pub const PAYLOAD_REMEDY: &str = "raise `payload_bytes`, or store the data elsewhere";

const STEP_REMEDY: &str = "store the data elsewhere, and return its address";

/// Of [`STEP_BYTES`].
pub const STEP_BYTES_BOUND: Bound =
    Bound { what: "a step's result in bytes", most: STEP_BYTES, remedy: STEP_REMEDY };

/// Of [`STEPS`].
pub const STEPS_BOUND: Bound =
    Bound { what: "steps of one job", most: STEPS, remedy: "continue with another job" };

/// Of [`STEPS_BYTES`].
pub const STEPS_BYTES_BOUND: Bound =
    Bound { what: "results of all steps in bytes", most: STEPS_BYTES, remedy: STEP_REMEDY };

/// Of [`NAMES`].
pub const QUEUES_BOUND: Bound =
    Bound { what: "distinct queues", most: NAMES, remedy: "reuse the ones there are" };

/// Of [`NAMES`].
pub const KINDS_BOUND: Bound =
    Bound { what: "distinct kinds", most: NAMES, remedy: "reuse the ones there are" };

/// Of [`NAMES`].
pub const OBJECT_NAMES_BOUND: Bound =
    Bound { what: "distinct names of objects", most: NAMES, remedy: "use keys, not names" };

/// Of [`OBJECT_STATE_BYTES`].
pub const OBJECT_STATE_BOUND: Bound = Bound {
    what: "bytes of an object's state",
    most: OBJECT_STATE_BYTES,
    remedy: "keep large data elsewhere, with its address in the state",
};

/// Of [`VALUE_BYTES`].
pub const VALUE_BYTES_BOUND: Bound = Bound {
    what: "bytes of a named value",
    most: VALUE_BYTES,
    remedy: "keep large data elsewhere, with its address in the value",
};

/// Of the jobs that are named in one change, all in one commit.
pub const NAMED_JOBS_BOUND: Bound =
    Bound { what: "jobs of one change", most: BATCH_JOBS, remedy: "choose them by a filter" };

/// Of the jobs that are deleted as one graph, all in one commit.
pub const GRAPH_BOUND: Bound =
    Bound { what: "jobs of one graph", most: BATCH_JOBS, remedy: "delete them by a filter" };

/// What an output is called, whose bound is [`Limits::payload_bytes`].
pub const OUTPUT_WHAT: &str = "output bytes";

/// Refuses a number that no lane of a queue has.
pub fn no_such_lane(lane: u32, lanes: u32) -> Refusal {
    let allowed = format!("the queue has {lanes} lanes, numbered from 0");
    Refusal::OutOfBounds { what: "lane".into(), got: lane.to_string(), allowed }
}

/// Refuses more than `limit` of something, with what to do about it.
pub fn at_most(what: &'static str, got: usize, limit: usize, remedy: &str) -> Result<(), Refusal> {
    if got <= limit {
        return Ok(());
    }
    let allowed = format!("at most {limit} are allowed; {remedy}");
    Err(Refusal::OutOfBounds { what: what.into(), got: got.to_string(), allowed })
}

/// Refuses a duration beyond [`DELAY_MAX`].
pub fn no_longer_than(what: &'static str, got: Duration) -> Result<(), Refusal> {
    if got <= DELAY_MAX {
        return Ok(());
    }
    let allowed = "it may be at most 100 years; check the unit".to_string();
    Err(Refusal::OutOfBounds { what: what.into(), got: shown(got), allowed })
}

/// A limit on how many of something there may be, as every store can keep it. Nobody has more.
pub fn countable(limit: u64) -> u64 {
    limit.min(i64::MAX.unsigned_abs())
}

/// Refuses a key that is empty, too long or cannot be printed.
pub(crate) fn well_formed(what: &'static str, key: &str) -> Result<(), Refusal> {
    at_most(what, key.len(), KEY_BYTES, "hash it")?;
    if key.is_empty() || key.chars().any(char::is_control) {
        return Err(Refusal::OutOfBounds {
            what: what.into(),
            got: excerpt(key),
            allowed: "it must not be empty or hold control characters".to_string(),
        });
    }
    Ok(())
}

/// A value that was refused, as text of bounded length.
pub(crate) fn shown(value: impl core::fmt::Debug) -> String {
    format!("{value:?}")
}
