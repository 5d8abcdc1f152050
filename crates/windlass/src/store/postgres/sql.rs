//! The SQL of the schema: its files in order, and what they take from Rust.
//!
//! A rule that stands in SQL keeps to the bounds and sentences of the core. They are not repeated
//! there: a file names them in braces, `{STEPS}`, and gets them when the schema is made.

use windlass_core::limits::{self, Bound, Limits};
use windlass_core::refusal::Refusal;
use windlass_core::reserved;

use super::{refusal, wire};

/// In the order in which they are run: functions in SQL and views need what they name.
const FILES: [&str; 36] = [
    include_str!("sql/values.sql"),
    include_str!("sql/tables.sql"),
    include_str!("sql/rotation.sql"),
    include_str!("sql/claim_types.sql"),
    include_str!("sql/batch_lease.sql"),
    include_str!("sql/clock.sql"),
    include_str!("sql/refusals.sql"),
    include_str!("sql/names.sql"),
    include_str!("sql/events.sql"),
    include_str!("sql/counters.sql"),
    include_str!("sql/job_state.sql"),
    include_str!("sql/cascade.sql"),
    include_str!("sql/begin.sql"),
    include_str!("sql/lanes.sql"),
    include_str!("sql/accept.sql"),
    include_str!("sql/accept_checks.sql"),
    include_str!("sql/effects.sql"),
    include_str!("sql/retention.sql"),
    include_str!("sql/claim.sql"),
    include_str!("sql/settle.sql"),
    include_str!("sql/renew.sql"),
    include_str!("sql/rescue.sql"),
    include_str!("sql/audit.sql"),
    include_str!("sql/alter.sql"),
    include_str!("sql/remove.sql"),
    include_str!("sql/replay_edited.sql"),
    include_str!("sql/configure.sql"),
    include_str!("sql/clear.sql"),
    include_str!("sql/turn.sql"),
    include_str!("sql/promote.sql"),
    include_str!("sql/heartbeat.sql"),
    include_str!("sql/views.sql"),
    include_str!("sql/transaction.sql"),
    include_str!("sql/move.sql"),
    include_str!("sql/operator_views.sql"),
    include_str!("sql/public_api.sql"),
];

/// How many tokens belong to one lease: more than the most jobs of a claim, because the tokens of a
/// batch lease follow from the numbers of its jobs, which may have gaps.
const LEASE_TOKENS: usize = 16_384;

/// How many events one row tells at most.
const EVENTS_PER_ROW: usize = 10_000;

/// What the files name in braces.
fn named() -> Vec<(&'static str, String)> {
    let limits = Limits::default();
    let numbers = [
        ("LEASE_TOKENS", LEASE_TOKENS),
        ("EVENTS_PER_ROW", EVENTS_PER_ROW),
        ("ATTEMPTS_KEPT", limits::ATTEMPTS_KEPT),
        ("AUDIT_ENTRIES", limits.audit_entries),
        ("BATCH_JOBS", limits::BATCH_JOBS),
        ("CASCADE_EACH", limits::CASCADE_EACH),
        ("CASCADE_JOBS", limits::CASCADE_JOBS),
        ("CHUNK_JOBS", limits::CHUNK_JOBS),
        ("CLAIM_JOBS", limits::CLAIM_JOBS),
        ("DEAD_LETTERS", limits.dead_letters),
        ("DEPENDENCIES", limits::DEPENDENCIES),
        ("EVENTS_KEPT", limits::EVENTS_KEPT),
        ("HISTORY_JOBS", limits.history_jobs),
        ("KEY_BYTES", limits::KEY_BYTES),
        ("LOG_LINES_KEPT", limits::LOG_LINES_KEPT),
        ("METADATA_BYTES", limits::METADATA_BYTES),
        ("METADATA_ENTRIES", limits::METADATA_ENTRIES),
        ("NAME_BYTES", limits::NAME_BYTES),
        ("NAME_BYTES_LESS_1", limits::NAME_BYTES - 1),
        ("PAGE_SCAN", limits::PAGE_SCAN),
        ("PAYLOAD_BYTES", limits.payload_bytes),
        ("PRIORITIES_COUNTED", limits::PRIORITIES_COUNTED),
        ("PROMOTE_BATCH", limits::PROMOTE_BATCH),
        ("SWEEP_BATCH", limits::SWEEP_BATCH),
        ("TAGS", limits::TAGS),
    ];
    let bounds = [
        ("BOUND_KINDS", limits::KINDS_BOUND),
        ("BOUND_OBJECT_NAMES", limits::OBJECT_NAMES_BOUND),
        ("BOUND_QUEUES", limits::QUEUES_BOUND),
        ("BOUND_STEPS", limits::STEPS_BOUND),
        ("BOUND_STEPS_BYTES", limits::STEPS_BYTES_BOUND),
        ("BOUND_STEP_BYTES", limits::STEP_BYTES_BOUND),
    ];
    let texts = [
        ("AT_MOST", at_most()),
        ("AUDIT_KIND", kind(reserved::AUDIT)),
        ("AUDIT_NAME", quoted(reserved::AUDIT_NAME)),
        ("GRAPH_REMEDY", quoted(limits::GRAPH_BOUND.remedy)),
        ("GRAPH_WHAT", quoted(limits::GRAPH_BOUND.what)),
        ("HISTORY_AGE", wire::micros(limits.history_age).to_string()),
        ("ISOLATION_WHAT", quoted(refusal::ISOLATION_WHAT)),
        ("LANES_NUMBERED", lanes_numbered()),
        ("ORDER_KEPT", wire::micros(limits::ORDER_KEPT).to_string()),
        ("OUTPUT_WHAT", quoted(limits::OUTPUT_WHAT)),
        ("PAYLOAD_REMEDY", quoted(limits::PAYLOAD_REMEDY)),
        ("SENTENCES", refusal::sentences()),
    ];
    let numbers = numbers.into_iter().map(|(name, number)| (name, number.to_string()));
    let bounds = bounds.into_iter().map(|(name, bound)| (name, arguments(bound)));
    numbers.chain(bounds).chain(texts).collect()
}

/// A reserved kind as an expression, with its first word in two parts: where SQL says `windlass` it
/// means the schema, and is given the schema's name.
fn kind(kind: &str) -> String {
    let (first, rest) = kind.split_at("wind".len());
    format!("('{first}' || '{}')", quoted(rest))
}

fn quoted(text: &str) -> String {
    text.replace('\'', "''")
}

/// A bound as the first arguments of `_check_bound`.
fn arguments(bound: Bound) -> String {
    format!("'{}', {}, '{}'", quoted(bound.what), bound.most, quoted(bound.remedy))
}

/// What a bound allows, for `format` in SQL.
fn at_most() -> String {
    match limits::at_most("", 2, 1, "REMEDY") {
        Err(Refusal::OutOfBounds { allowed, .. }) => refusal::template(&allowed, &["1", "REMEDY"]),
        _ => unreachable!("two are more than one"),
    }
}

/// How lanes are numbered, for `format` in SQL.
fn lanes_numbered() -> String {
    match limits::no_such_lane(1, 1_000_001) {
        Refusal::OutOfBounds { allowed, .. } => refusal::template(&allowed, &["1000001"]),
        _ => unreachable!("it is a bound"),
    }
}

/// Everything that makes the schema `windlass`.
pub(super) fn script() -> String {
    let written = FILES.join("\n");
    named()
        .into_iter()
        .fold(written, |sql, (name, text)| sql.replace(&format!("{{{name}}}"), &text))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The names in braces that a text has.
    fn names_in(sql: &str) -> Vec<&str> {
        let ends = |part: &'_ str| part.find('}').map(|end| part[..end].to_string());
        let is_name = |name: &&str| {
            name.starts_with(|first: char| first.is_ascii_uppercase())
                && name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
        };
        let starts = sql.match_indices('{').map(|(at, _)| &sql[at + 1..]);
        starts
            .filter_map(|part| ends(part).map(|name| &part[..name.len()]))
            .filter(is_name)
            .collect()
    }

    #[test]
    fn every_name_in_braces_is_given_a_value() {
        assert_eq!(names_in(&script()), Vec::<&str>::new());
    }

    #[test]
    fn every_value_is_named_by_a_file() {
        let files = FILES.join("\n");
        let used = names_in(&files);
        for (name, _) in named() {
            assert!(used.contains(&name), "{name} is not named by any file");
        }
    }
}
