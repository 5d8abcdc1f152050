//! Reading the audit trail: what somebody changed, the latest first.

use windlass_core::audit::AuditEntry;
use windlass_core::name::Name;
use windlass_core::object::{Address, ObjectView};
use windlass_core::refusal::Refusal;
use windlass_core::reserved;

use super::{Answer, ObjectFilter, Store, StoreExt};

/// Part of the audit trail.
#[derive(Clone, Debug, Default)]
pub struct AuditPage {
    /// The entries, the latest first.
    pub entries: Vec<AuditEntry>,
    /// Where to go on; `None` at the end.
    pub next: Option<Address>,
}

pub(super) async fn list<S: Store + ?Sized>(
    store: &S,
    after: Option<&Address>,
    limit: usize,
) -> Answer<AuditPage> {
    let kind = Some(Name::new(reserved::AUDIT).map_err(Refusal::from)?);
    let filter = ObjectFilter { kind, ..ObjectFilter::default() };
    let page = store.list_objects(&filter, after, limit).await?;
    let entry =
        |view: &ObjectView| AuditEntry::kept(view.record.meta.created_at, &view.record.state);
    Ok(AuditPage { entries: page.objects.iter().filter_map(entry).collect(), next: page.next })
}
