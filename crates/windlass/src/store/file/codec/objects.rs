//! Objects: their address, what is known of them, and their state.

use windlass_core::object::{Address, ObjectMeta, ObjectRecord, ObjectStatus};

use super::Wrong;
use super::bytes::{EntryReader, RANGE, bytes, error, id, name, option, text, time, varint};

pub(super) fn object(record: &ObjectRecord, to: &mut Vec<u8>) {
    address(&record.address, to);
    object_meta(&record.meta, to);
    bytes(&record.state, to);
}

impl EntryReader<'_> {
    pub(super) fn object(&mut self) -> Result<ObjectRecord, Wrong> {
        Ok(ObjectRecord {
            address: self.address()?,
            meta: self.object_meta()?,
            state: self.bytes()?.into(),
        })
    }
}

pub(super) fn address(address: &Address, to: &mut Vec<u8>) {
    name(address.kind(), to);
    name(address.name(), to);
    text(address.key(), to);
}

impl EntryReader<'_> {
    pub(super) fn address(&mut self) -> Result<Address, Wrong> {
        let (kind, name, key) = (self.name()?, self.name()?, self.text()?);
        Address::new(kind, name, key).map_err(|_| "a key in it is not a key")
    }
}

pub(super) fn object_meta(meta: &ObjectMeta, to: &mut Vec<u8>) {
    varint(meta.version, to);
    varint(meta.incarnation, to);
    to.push(match meta.status {
        ObjectStatus::Active => 0,
        ObjectStatus::Stopped => 1,
        ObjectStatus::Failed => 2,
    });
    option(meta.reason.as_ref(), to, error);
    time(meta.created_at, to);
    time(meta.updated_at, to);
    option(meta.last_success_at, to, time);
    varint(meta.runs, to);
    varint(meta.failures, to);
    varint(meta.recoveries.into(), to);
    option(meta.last_recovery_at, to, time);
    option(meta.alarm, to, id);
    option(meta.purge_at, to, time);
}

impl EntryReader<'_> {
    pub(super) fn object_meta(&mut self) -> Result<ObjectMeta, Wrong> {
        Ok(ObjectMeta {
            version: self.varint()?,
            incarnation: self.varint()?,
            status: match self.byte()? {
                0 => ObjectStatus::Active,
                1 => ObjectStatus::Stopped,
                2 => ObjectStatus::Failed,
                _ => return Err(RANGE),
            },
            reason: self.option(EntryReader::error)?,
            created_at: self.time()?,
            updated_at: self.time()?,
            last_success_at: self.option(EntryReader::time)?,
            runs: self.varint()?,
            failures: self.varint()?,
            recoveries: self.short()?,
            last_recovery_at: self.option(EntryReader::time)?,
            alarm: self.option(EntryReader::id)?,
            purge_at: self.option(EntryReader::time)?,
        })
    }
}
