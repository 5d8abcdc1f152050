//! What commands do to objects that the engine keeps for itself.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::{Effects, Ledger};
use crate::audit::AuditNote;
use crate::event::{EventKind, Subject};
use crate::limits;
use crate::object::{ObjectChange, ObjectMeta};
use crate::record::Change;
use crate::reserved;

impl Ledger {
    /// Keeps who makes the change of this command, if somebody does, and how many jobs it changes.
    /// Beyond the bound the oldest entries make room.
    pub(super) fn audit(&mut self, note: Option<&AuditNote>, jobs: u64, effects: &mut Effects) {
        let Some(note) = note else { return };
        let now = effects.now.wall;
        // The event that tells of the entry has this number, so no other entry does.
        let Ok(address) = reserved::audit_address(now, self.next_event) else { return };
        let mut meta = ObjectMeta::new(now, self.next_sequence);
        meta.version = 1;
        let number = self.objects.number(&address);
        self.objects.write(number, meta.clone());
        self.tell_of(Subject::Object(address.clone()), EventKind::ObjectCreated, effects);
        let state = Some(note.state(jobs).into());
        let kind = address.kind().clone();
        effects.changes.push(Change::Object(Box::new(ObjectChange { address, meta, state })));
        let surplus = self.objects_of(&kind, None).skip(self.limits.audit_entries);
        let surplus: Vec<_> = surplus.map(|(address, ..)| address.clone()).collect();
        for oldest in surplus.iter().take(limits::SWEEP_BATCH) {
            if let Some(number) = self.objects.find(oldest) {
                self.purge_object(number, effects);
            }
        }
    }

    /// A worker lives: an order to it is kept for longer. Written now and then, not every time.
    pub(super) fn keep_order(&mut self, worker: &str, effects: &mut Effects) {
        let Ok(address) = reserved::order_address(worker) else { return };
        let Some((meta, _)) = self.object(&address) else { return };
        let now = effects.now.wall;
        if meta.purge_at.is_some_and(|at| at < now + limits::ORDER_KEPT / 2) {
            let mut meta = meta.clone();
            meta.purge_at = Some(now + limits::ORDER_KEPT);
            let number = self.objects.number(&address);
            self.change_object(number, meta, effects);
        }
    }

    /// A worker has ended, and an order to it with it.
    pub(super) fn forget_order(&mut self, worker: &str, effects: &mut Effects) {
        let Ok(address) = reserved::order_address(worker) else { return };
        if let Some(number) = self.objects.find(&address) {
            self.purge_object(number, effects);
        }
    }
}
