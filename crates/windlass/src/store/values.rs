//! Small named values that all who share a store share: tokens, secrets, settings.
//!
//! A value is an object of a reserved kind, so it has a version, and is in every backup and move.
//! The phrases over it are those of [`super::StoreExt`].

use windlass_core::audit::Actor;
use windlass_core::job::Bytes;
use windlass_core::limits;
use windlass_core::name::Name;
use windlass_core::object::{Address, ObjectView, Purge, Turn};
use windlass_core::refusal::Refusal;
use windlass_core::reserved;
use windlass_core::time::Timestamp;

use super::{Answer, ObjectFilter, Store, StoreError, StoreExt};

/// A named value as it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredValue {
    /// Its name.
    pub name: String,
    /// Its bytes, opaque; at most [`limits::VALUE_BYTES`].
    pub bytes: Bytes,
    /// Grows by one with every change; 1 for the first. One that was removed begins anew.
    pub version: u64,
    /// When it was last set.
    pub updated_at: Timestamp,
}

/// What became of a change of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueChange {
    /// It was made.
    Made {
        /// The value's version now; 0 if it was removed.
        version: u64,
    },
    /// Nothing was changed: another change came first.
    Lost {
        /// The value's version now; 0 if there is none.
        version: u64,
    },
}

/// Part of a list of values.
#[derive(Clone, Debug, Default)]
pub struct ValuePage {
    /// The values, by name.
    pub values: Vec<StoredValue>,
    /// The name to go on after; `None` at the end.
    pub next: Option<String>,
}

impl StoredValue {
    fn of(view: ObjectView) -> Self {
        let record = view.record;
        Self {
            name: record.address.key().to_string(),
            bytes: record.state,
            version: record.meta.version,
            updated_at: record.meta.updated_at,
        }
    }
}

pub(super) async fn read<S: Store + ?Sized>(store: &S, name: &str) -> Answer<Option<StoredValue>> {
    let address = reserved::value_address(name)?;
    Ok(store.object(&address).await?.map(StoredValue::of))
}

pub(super) async fn change<S: Store + ?Sized>(
    store: &S,
    name: &str,
    bytes: Option<Bytes>,
    version: u64,
    by: Option<Actor>,
) -> Answer<ValueChange> {
    let address = reserved::value_address(name)?;
    if bytes.is_none() && version == 0 {
        // A turn would make one in order to remove it.
        let version = read(store, name).await?.map_or(0, |value| value.version);
        return Ok(if version == 0 { ValueChange::Made { version } } else { lost(version) });
    }
    let purge = if bytes.is_some() { Purge::Keep } else { Purge::Now };
    match store.turn(Turn { state: bytes, purge, by, ..Turn::new(address, version) }).await {
        Ok(turned) => Ok(ValueChange::Made { version: turned.version }),
        Err(StoreError::Refused(Refusal::ObjectChanged { version, .. })) => Ok(lost(version)),
        Err(error) => Err(error),
    }
}

fn lost(version: u64) -> ValueChange {
    ValueChange::Lost { version }
}

pub(super) async fn list<S: Store + ?Sized>(
    store: &S,
    prefix: &str,
    after: Option<&str>,
    limit: usize,
) -> Answer<ValuePage> {
    let kind = Name::new(reserved::VALUE).map_err(Refusal::from)?;
    let filter = ObjectFilter { kind: Some(kind), ..ObjectFilter::default() };
    let mut values = Vec::new();
    // A page goes on after a name, and the prefix itself may be one.
    let begin = after.filter(|after| *after >= prefix);
    if begin.is_none() && !prefix.is_empty() {
        values.extend(read(store, prefix).await?);
    }
    let begin = begin.unwrap_or(prefix);
    let begin = if begin.is_empty() { None } else { Some(reserved::value_address(begin)?) };
    let limit = limit.clamp(1, limits::PAGE_JOBS);
    if values.len() == limit {
        return Ok(ValuePage { next: Some(prefix.to_string()), values });
    }
    let page = store.list_objects(&filter, begin.as_ref(), limit - values.len()).await?;
    let is_meant = |address: &Address| address.key().starts_with(prefix);
    let next = page.next.filter(is_meant).map(|next| next.key().to_string());
    let found = page.objects.into_iter().filter(|view| is_meant(&view.record.address));
    values.extend(found.map(StoredValue::of));
    Ok(ValuePage { values, next })
}
