//! What is kept of queues: settings and counters.

use std::num::NonZeroU32;

use windlass_core::record::{QueueSettings, Totals};

use super::Wrong;
use super::bytes::{EntryReader, RANGE, duration, list, name, option, varint};

pub(super) fn settings(settings: &QueueSettings, to: &mut Vec<u8>) {
    to.push(u8::from(settings.paused));
    option(settings.max_depth, to, varint);
    option(settings.ageing, to, duration);
    option(settings.lanes, to, |lanes, to| varint(lanes.get().into(), to));
    list(settings.paused_lanes.iter(), to, |lane, to| varint((*lane).into(), to));
    option(settings.lane_depth, to, varint);
    option(settings.on_dead.as_ref(), to, name);
    option(settings.on_empty.as_ref(), to, name);
}

impl EntryReader<'_> {
    pub(super) fn settings(&mut self) -> Result<QueueSettings, Wrong> {
        Ok(QueueSettings {
            paused: self.flag()?,
            max_depth: self.option(EntryReader::varint)?,
            ageing: self.option(EntryReader::duration)?,
            lanes: self.option(|from| NonZeroU32::new(from.short()?).ok_or(RANGE))?,
            paused_lanes: self.list(1, EntryReader::short)?,
            lane_depth: self.option(EntryReader::varint)?,
            on_dead: self.option(EntryReader::name)?,
            on_empty: self.option(EntryReader::name)?,
        })
    }
}

pub(super) fn totals(totals: &Totals, to: &mut Vec<u8>) {
    let Totals { enqueued, completed, failed, retried, rescued, dead, cancelled } = *totals;
    for number in [enqueued, completed, failed, retried, rescued, dead, cancelled] {
        varint(number, to);
    }
}

impl EntryReader<'_> {
    pub(super) fn totals(&mut self) -> Result<Totals, Wrong> {
        Ok(Totals {
            enqueued: self.varint()?,
            completed: self.varint()?,
            failed: self.varint()?,
            retried: self.varint()?,
            rescued: self.varint()?,
            dead: self.varint()?,
            cancelled: self.varint()?,
        })
    }
}
