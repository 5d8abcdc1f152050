//! Objects on the disk: each is one whole record, written anew with every turn.

use std::collections::{HashMap, VecDeque};

use windlass_core::job::Bytes;
use windlass_core::object::{Address, ObjectChange, ObjectRecord, ObjectView};
use windlass_core::record::RecordLocation;
use windlass_core::time::Now;

use super::super::codec::{self, Entry};
use super::super::layout::{Place, Unreadable};
use super::JournaledLedger;
use crate::store::{ObjectFilter, ObjectPage, StoreError};

/// Objects whose state is kept at hand, and the bytes of their states.
const STATES: usize = 4_096;
const STATE_BYTES: usize = 8 << 20;

impl JournaledLedger {
    /// Writes an object as it is now, whole: its state is read back if it has not changed.
    pub(super) fn persist_object(&mut self, change: &ObjectChange) -> Result<(), Unreadable> {
        // An object that the same commit removes needs no record.
        let Some((_, kept)) = self.ledger.object(&change.address) else { return Ok(()) };
        let state = match &change.state {
            Some(state) => state.clone(),
            None => self.object_state(&change.address, Place::unpack(kept.place))?,
        };
        let (address, meta) = (change.address.clone(), change.meta.clone());
        self.states.insert(address.clone(), state.clone());
        self.write_object(&ObjectRecord { address, meta, state });
        Ok(())
    }

    pub(super) fn write_object(&mut self, record: &ObjectRecord) {
        let (place, weight) = self.journal.stage(|to| codec::encode_object(record, to));
        self.ledger.keep_object(&record.address, RecordLocation { place: place.pack(), weight });
    }

    fn object_state(&mut self, address: &Address, place: Place) -> Result<Bytes, Unreadable> {
        match self.states.get(address) {
            Some(state) => Ok(state),
            None => self.stored_object(address, place).map(|record| record.state),
        }
    }

    /// The record of an object as it lies on the disk.
    pub(super) fn stored_object(
        &mut self,
        object: &Address,
        at: Place,
    ) -> Result<ObjectRecord, Unreadable> {
        let wrong = |why: &str| {
            let Place { segment, offset, .. } = at;
            Unreadable(format!("segment {segment:08x} at byte {offset}: {why}"))
        };
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

    /// An object as it is now.
    pub fn object(
        &mut self,
        address: &Address,
        now: Now,
    ) -> Result<Option<ObjectView>, StoreError> {
        self.usable()?;
        self.ledger.glance(now);
        let Some((meta, kept)) = self.ledger.object(address) else { return Ok(None) };
        let meta = meta.clone();
        let state = self.object_state(address, Place::unpack(kept.place));
        let state = state.map_err(|why| self.break_down(why))?;
        let (executing_since, alarm_at, open_jobs) = self.ledger.object_jobs(address);
        let record = ObjectRecord { address: address.clone(), meta, state };
        Ok(Some(ObjectView { record, executing_since, alarm_at, open_jobs }))
    }

    /// A page of objects, by their addresses.
    pub fn objects(
        &mut self,
        filter: &ObjectFilter,
        after: Option<&Address>,
        limit: usize,
        now: Now,
    ) -> Result<ObjectPage, StoreError> {
        let chosen = filter.choose(&self.ledger, after, limit);
        let (addresses, next) = chosen;
        let mut objects = Vec::with_capacity(addresses.len());
        for address in addresses {
            objects.extend(self.object(&address, now)?);
        }
        Ok(ObjectPage { objects, next })
    }

    /// Whether all that is known of an object has landed.
    pub fn object_has_landed(&self, address: &Address) -> bool {
        let kept = self.ledger.object(address).map(|(_, kept)| Place::unpack(kept.place));
        self.awaited() <= self.landed_commit()
            || kept.is_some_and(|place| self.journal.has_landed(place))
    }

    /// An object's record and the bytes it takes, if it is the one at `place`.
    pub(super) fn object_at(
        &mut self,
        address: &Address,
        place: Place,
    ) -> Result<Option<(ObjectRecord, u64)>, Unreadable> {
        let Some((_, kept)) = self.ledger.object(address) else { return Ok(None) };
        let there = Place::unpack(kept.place);
        if (there.segment, there.offset) != (place.segment, place.offset) {
            return Ok(None);
        }
        Ok(Some((self.stored_object(address, there)?, kept.weight.into())))
    }
}

/// States of objects that had a turn lately: most are looked at again soon.
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
