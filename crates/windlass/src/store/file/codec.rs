//! Records as bytes: what a journal entry says, in a form that never changes its meaning.
//!
//! Numbers are little endian; counts and small numbers are LEB128 varints; texts and byte strings
//! carry their length; times are microseconds since 1970. `docs/format.md` is the same in words.
//! A new field gets a new record type or a new bit, so that old journals are read for ever.
//! Decoding takes any bytes at all: it answers with a record or with what is wrong, never panics,
//! and never allocates more than the bytes at hand could hold.
//!
//! Every part has its writing and its reading side by side, in the file that it is about.

mod bytes;
mod job;
mod objects;
mod queues;
mod record;
mod status;
#[cfg(test)]
mod tests;

use windlass_core::job::JobId;
use windlass_core::ledger::CheckpointEntry;
use windlass_core::object::{Address, ObjectMeta, ObjectRecord};
use windlass_core::record::{Change, JobRecord, RecordLocation, Update};

use self::bytes::{EntryReader, id, name, time, varint};
use self::objects::{address, object, object_meta};
use self::queues::{settings, totals};
use self::record::{accepted, checkpoint_entry, location, update, whole};

/// What is wrong with some bytes.
pub(super) type Wrong = &'static str;

/// One entry of the journal.
#[derive(Debug, PartialEq)]
pub(super) enum Entry {
    /// What the ledger decided, except updates.
    Change(Change),
    /// An update of a job, and where the entry before it about the same job stands.
    Update { update: Update, previous: u64, weight: u32 },
    /// A whole job as it was when it was copied here; entries before this one no longer count.
    Whole(Box<JobRecord>),
    /// What the ledger knew of a job at this point, for those who begin to read here.
    Checkpoint(Box<CheckpointEntry>),
    /// A whole object.
    Object(Box<ObjectRecord>),
    /// What the ledger knew of an object at this point, and where its record is kept.
    ObjectCheckpoint(Box<(Address, ObjectMeta, RecordLocation)>),
}

const ACCEPTED: u8 = 1;
const UPDATE: u8 = 2;
const REMOVED: u8 = 3;
const WHOLE: u8 = 4;
const CHECKPOINT: u8 = 5;
const QUEUE: u8 = 6;
const RATE: u8 = 7;
const QUEUE_KIND: u8 = 8;
const LANE: u8 = 9;
const OBJECT: u8 = 10;
const OBJECT_GONE: u8 = 11;
const OBJECT_CHECKPOINT: u8 = 12;

/// The job an entry is about that a chain of updates starts from, without decoding the rest.
pub(super) fn base_job(body: &[u8]) -> Option<JobId> {
    let (kind, rest) = body.split_first()?;
    let id: [u8; 16] = rest.get(..16)?.try_into().ok()?;
    matches!(*kind, ACCEPTED | WHOLE).then(|| JobId::from_bytes(id))
}

/// The object that an entry is a whole record of, without decoding the rest.
pub(super) fn whole_object(body: &[u8]) -> Option<Address> {
    let (kind, rest) = body.split_first()?;
    (*kind == OBJECT).then(|| EntryReader { left: rest }.address().ok()).flatten()
}

/// Writes a change that is not an update.
pub(super) fn encode_change(change: &Change, to: &mut Vec<u8>) {
    match change {
        Change::Insert(job) => {
            to.push(ACCEPTED);
            accepted(job, to);
        }
        Change::Update(update) => encode_update(update, 0, 0, to),
        Change::Remove { job } => {
            to.push(REMOVED);
            id(*job, to);
        }
        Change::Queue { queue, settings: set, dead_letters_dropped } => {
            to.push(QUEUE);
            name(queue, to);
            settings(set, to);
            varint(*dead_letters_dropped, to);
        }
        Change::Rate { kind, full_at } => {
            to.push(RATE);
            name(kind, to);
            time(*full_at, to);
        }
        Change::QueueKind { queue, kind, totals: so_far } => {
            to.push(QUEUE_KIND);
            name(queue, to);
            name(kind, to);
            totals(so_far, to);
        }
        Change::Lane { queue, lane, totals: so_far } => {
            to.push(LANE);
            name(queue, to);
            varint((*lane).into(), to);
            totals(so_far, to);
        }
        Change::Object(change) => {
            // Its state, if it has not changed, is with whoever keeps objects.
            let state = change.state.clone().unwrap_or_else(|| Vec::new().into());
            let (address, meta) = (change.address.clone(), change.meta.clone());
            encode_object(&ObjectRecord { address, meta, state }, to);
        }
        Change::ObjectGone { address: gone } => {
            to.push(OBJECT_GONE);
            address(gone, to);
        }
    }
}

/// Writes an update; `previous` is where the entry before it about the same job stands.
pub(super) fn encode_update(change: &Update, previous: u64, weight: u32, to: &mut Vec<u8>) {
    to.push(UPDATE);
    update(change, previous, weight, to);
}

/// Writes a whole job.
pub(super) fn encode_whole(record: &JobRecord, to: &mut Vec<u8>) {
    to.push(WHOLE);
    whole(record, to);
}

/// Writes a checkpoint entry.
pub(super) fn encode_checkpoint_entry(entry: &CheckpointEntry, to: &mut Vec<u8>) {
    to.push(CHECKPOINT);
    checkpoint_entry(entry, to);
}

/// Writes a whole object.
pub(super) fn encode_object(record: &ObjectRecord, to: &mut Vec<u8>) {
    to.push(OBJECT);
    object(record, to);
}

/// Writes what is known of an object without its state, and where that is kept.
pub(super) fn encode_object_checkpoint_entry(
    object: &Address,
    meta: &ObjectMeta,
    kept: RecordLocation,
    to: &mut Vec<u8>,
) {
    to.push(OBJECT_CHECKPOINT);
    address(object, to);
    object_meta(meta, to);
    location(kept, to);
}

/// Reads one entry, which must be all there is.
pub(super) fn decode(body: &[u8]) -> Result<Entry, Wrong> {
    let mut from = EntryReader { left: body };
    let entry = match from.byte()? {
        ACCEPTED => Entry::Change(Change::Insert(Box::new(from.accepted()?))),
        UPDATE => {
            let (update, previous, weight) = from.update()?;
            Entry::Update { update, previous, weight }
        }
        REMOVED => Entry::Change(Change::Remove { job: from.id()? }),
        WHOLE => Entry::Whole(Box::new(from.whole()?)),
        CHECKPOINT => Entry::Checkpoint(Box::new(from.checkpoint_entry()?)),
        QUEUE => Entry::Change(Change::Queue {
            queue: from.name()?,
            settings: from.settings()?,
            dead_letters_dropped: from.varint()?,
        }),
        RATE => Entry::Change(Change::Rate { kind: from.name()?, full_at: from.time()? }),
        QUEUE_KIND => Entry::Change(Change::QueueKind {
            queue: from.name()?,
            kind: from.name()?,
            totals: from.totals()?,
        }),
        LANE => Entry::Change(Change::Lane {
            queue: from.name()?,
            lane: from.short()?,
            totals: from.totals()?,
        }),
        OBJECT => Entry::Object(Box::new(from.object()?)),
        OBJECT_GONE => Entry::Change(Change::ObjectGone { address: from.address()? }),
        OBJECT_CHECKPOINT => {
            let (address, meta) = (from.address()?, from.object_meta()?);
            Entry::ObjectCheckpoint(Box::new((address, meta, from.location()?)))
        }
        _ => return Err("its type is unknown"),
    };
    if from.left.is_empty() { Ok(entry) } else { Err("it is longer than what it says") }
}
