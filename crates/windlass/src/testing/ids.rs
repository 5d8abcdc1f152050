//! Ids that are the same in every run. The jitter of a retry is taken from the job's id, so with
//! random ids no two runs would write in the same order.

use std::cell::Cell;

use windlass_core::job::JobId;

thread_local! {
    static NEXT: Cell<Option<u64>> = const { Cell::new(None) };
}

/// The next id of this thread, if it counts.
pub(crate) fn next_id() -> Option<JobId> {
    let number = NEXT.get()?;
    NEXT.set(Some(number + 1));
    let mut bytes = *b"\0\0\0\0\0\0\x70\0\x80\0\0\0\0\0\0\0";
    bytes[9..].copy_from_slice(&number.to_be_bytes()[1..]);
    Some(JobId::from_bytes(bytes))
}

/// For as long as it lives, new ids of this thread are counted from 1.
pub(super) struct CountedIds(());

impl CountedIds {
    pub(super) fn begin() -> Self {
        NEXT.set(Some(1));
        Self(())
    }
}

impl Drop for CountedIds {
    fn drop(&mut self) {
        NEXT.set(None);
    }
}
