//! Objects on the disk: each is one whole record, written anew with every turn.

use std::collections::{HashMap, VecDeque};

use windlass_core::job::Bytes;
use windlass_core::ledger::Ledger;
use windlass_core::object::{Address, ObjectChange, ObjectRecord};
use windlass_core::record::RecordLocation;

use super::super::codec::{self, Entry};
use super::super::layout::{Place, Unreadable};
use super::JournalRecords;

/// How many objects have their state in memory at most, and how many bytes those have.
const STATES: usize = 4_096;
const STATE_BYTES: usize = 8 << 20;

impl JournalRecords {
    /// Writes an object as it is now, whole: its state is read back if it has not changed.
    pub(super) fn persist_object(
        &mut self,
        ledger: &mut Ledger,
        change: &ObjectChange,
    ) -> Result<(), Unreadable> {
        // An object that the same commit removes needs no record.
        if ledger.object(&change.address).is_none() {
            return Ok(());
        }
        let state = match &change.state {
            Some(state) => state.clone(),
            None => self.state_of(ledger, &change.address)?,
        };
        let (address, meta) = (change.address.clone(), change.meta.clone());
        self.states.insert(address.clone(), state.clone());
        self.write_object(ledger, &ObjectRecord { address, meta, state });
        Ok(())
    }

    pub(in crate::store::file) fn write_object(
        &mut self,
        ledger: &mut Ledger,
        record: &ObjectRecord,
    ) {
        let (place, weight) = self.journal.stage(|to| codec::encode_object(record, to));
        ledger.keep_object(&record.address, RecordLocation { place: place.pack(), weight });
    }

    /// The state of an object that the ledger holds.
    pub(super) fn state_of(
        &mut self,
        ledger: &Ledger,
        address: &Address,
    ) -> Result<Bytes, Unreadable> {
        if let Some(state) = self.states.get(address) {
            return Ok(state);
        }
        let place = ledger.object(address).map_or(0, |(_, kept)| kept.place);
        self.stored_object(address, Place::unpack(place)).map(|record| record.state)
    }

    /// The record of an object as it lies on the disk.
    pub(in crate::store::file) fn stored_object(
        &mut self,
        object: &Address,
        at: Place,
    ) -> Result<ObjectRecord, Unreadable> {
        let wrong = |why: &str| Unreadable::at(at, why);
        match codec::decode(&self.journal.read(at)?).map_err(wrong)? {
            Entry::Object(record) if record.address == *object => Ok(*record),
            Entry::Object(_)
            | Entry::ObjectCheckpoint(_)
            | Entry::Change(_)
            | Entry::Update { .. }
            | Entry::Whole(_)
            | Entry::Checkpoint(_) => Err(wrong("it is not about the object it should be about")),
        }
    }

    /// An object's record and the bytes it takes, if it is the one at `place`.
    pub(in crate::store::file) fn object_at(
        &mut self,
        ledger: &Ledger,
        address: &Address,
        place: Place,
    ) -> Result<Option<(ObjectRecord, u64)>, Unreadable> {
        let Some((_, kept)) = ledger.object(address) else { return Ok(None) };
        let there = Place::unpack(kept.place);
        if (there.segment, there.offset) != (place.segment, place.offset) {
            return Ok(None);
        }
        Ok(Some((self.stored_object(address, there)?, kept.weight.into())))
    }
}

/// States of objects that had a turn lately: most are read again soon, and a turn that leaves the
/// state as it is must write it again with the rest of the object.
#[derive(Debug, Default)]
pub(super) struct RecentStates {
    states: HashMap<Address, Bytes>,
    /// In the order in which they came; some may be gone.
    order: VecDeque<Address>,
    bytes: usize,
}

impl RecentStates {
    fn get(&self, address: &Address) -> Option<Bytes> {
        self.states.get(address).cloned()
    }

    fn insert(&mut self, address: Address, state: Bytes) {
        self.bytes += state.len();
        match self.states.insert(address.clone(), state) {
            Some(old) => self.bytes -= old.len(),
            None => self.order.push_back(address),
        }
        while self.order.len() > STATES || self.bytes > STATE_BYTES {
            let Some(oldest) = self.order.pop_front() else { break };
            self.remove(&oldest);
        }
    }

    pub(super) fn remove(&mut self, address: &Address) {
        if let Some(state) = self.states.remove(address) {
            self.bytes -= state.len();
        }
    }
}
