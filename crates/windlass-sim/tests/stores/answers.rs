//! Answers as text in which what may differ does not.

use std::collections::BTreeMap;
use std::fmt::Debug;

use windlass::store::{Answer, StoreError};
use windlass_core::job::State;
use windlass_core::ledger::{Counts, Enqueued};
use windlass_core::record::JobRecord;

/// An answer in words; one that is neither given nor refused cannot be compared.
pub(crate) fn words<T: Debug>(answer: &Answer<T>) -> String {
    match answer {
        Ok(answer) => format!("{answer:?}"),
        Err(StoreError::Refused(refusal)) => format!("refused: {refusal:?}"),
        Err(StoreError::Unknown { doing, source }) => format!("unknown: {doing}: {source}"),
    }
}

pub(crate) fn without_sequences(answer: Answer<Vec<Enqueued>>) -> Answer<Vec<Enqueued>> {
    let without = |mut enqueued: Enqueued| {
        enqueued.sequence = 0;
        enqueued
    };
    answer.map(|all| all.into_iter().map(without).collect())
}

/// A record without its place and its leases' tokens.
pub(crate) fn record(record: Option<JobRecord>) -> Option<JobRecord> {
    record.map(|mut record| {
        record.sequence = 0;
        record.status.settled_by = record.status.settled_by.map(|_| Default::default());
        if let State::Running(lease) = &mut record.status.state {
            lease.token = Default::default();
            // Files do not keep a renewal alone.
            record.updated_at = Default::default();
        }
        record
    })
}

/// Counters of queues and kinds that have some: a database notes names of refused jobs too.
pub(crate) fn counts(counts: &Counts) -> String {
    let lines: Vec<String> = counts
        .lines
        .iter()
        .filter(|line| line.totals.enqueued > 0 || line.states.iter().any(|jobs| *jobs > 0))
        .map(|line| format!("{line:?}"))
        .collect();
    let queues: BTreeMap<_, _> = counts
        .queues
        .iter()
        .filter(|queue| queue.waiting > 0 || queue.settings != Default::default())
        .map(|queue| (queue.queue.clone(), format!("{queue:?}")))
        .collect();
    format!("{lines:#?} {queues:#?}")
}

/// Why a batch may be refused. Of several such reasons, each store may find another one first.
const REASONS: [&str; 10] = [
    "IdTwiceInBatch",
    "ObjectChanged",
    "DependencyCycle",
    "UnknownDependency",
    "DependencyFailed",
    "IdReused",
    "KeyTaken",
    "UnknownObject",
    "QueueFull",
    "LaneFull",
];

/// Whether two answers are the same.
pub(crate) fn agree(one: &str, other: &str) -> bool {
    one == other || blur(one) == blur(other)
}

/// An answer that says that a batch was refused, and not why.
fn blur(answer: &str) -> String {
    let mut text = answer.to_string();
    for reason in REASONS {
        while let Some(start) = text.find(&format!("{reason} {{")) {
            let end = text[start..].find('}').map_or(text.len(), |length| start + length + 1);
            text.replace_range(start..end, "a batch");
        }
    }
    text
}

/// The part of two texts in which they begin to differ.
pub(crate) fn where_they_part(one: &str, other: &str) -> (String, String) {
    let same = one.chars().zip(other.chars()).take_while(|(a, b)| a == b).count();
    let part = |text: &str| text.chars().skip(same.saturating_sub(300)).take(600).collect();
    (part(one), part(other))
}
