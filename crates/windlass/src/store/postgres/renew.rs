//! Leases that go on, and jobs of lost workers that are given back.

use std::time::Duration;

use serde_json::Value;
use tokio_postgres::types::Type;
use windlass_core::event::RecoveryReason;
use windlass_core::job::JobId;
use windlass_core::ledger::{RecoveryMode, Renewal, Renewed, Rescue, Rescued, RescuedJob};
use windlass_core::limits;
use windlass_core::refusal::Refusal;

use super::{Parameter, PostgresStore, event, record, refusal, understood, wire};
use crate::store::Answer;

pub(super) async fn renew(
    store: &PostgresStore,
    renewals: Vec<Renewal>,
) -> Answer<Vec<Result<Renewed, Refusal>>> {
    if renewals.is_empty() {
        return Ok(Vec::new());
    }
    let ids: Vec<JobId> = renewals.iter().map(|renewal| renewal.job).collect();
    let jobs: Vec<uuid::Uuid> = ids.iter().copied().map(wire::uuid).collect();
    let tokens: Vec<i64> = renewals.iter().map(|each| each.token.0.cast_signed()).collect();
    let length = |lease: Duration| wire::micros(lease.clamp(limits::LEASE_MIN, limits::LEASE_MAX));
    let leases: Vec<i64> = renewals.iter().map(|each| length(each.lease)).collect();
    let mut answers: Vec<Result<Renewed, Refusal>> =
        ids.iter().map(|job| Err(Refusal::LeaseLost { job: *job })).collect();
    let reports: Vec<Option<Value>> =
        renewals.iter().map(|renewal| wire::report(&renewal.report)).collect();
    let parameters: [Parameter<'_>; 4] = [
        (&jobs, Type::UUID_ARRAY),
        (&tokens, Type::INT8_ARRAY),
        (&leases, Type::INT8_ARRAY),
        (&reports, Type::JSONB_ARRAY),
    ];
    let sql = "select * from windlass.renew($1, $2, $3, $4)";
    for row in store.call("renew leases", sql, &parameters).await? {
        let index = usize::try_from(row.get::<_, i32>("n") - 1).unwrap_or(usize::MAX);
        let Some(answer) = answers.get_mut(index) else { continue };
        let refused: Option<Value> = row.get("refusal");
        *answer = match refused {
            Some(detail) => Err(refusal::read(&detail, Some(ids[index]))
                .unwrap_or(Refusal::LeaseLost { job: ids[index] })),
            None => Ok(Renewed {
                until: wire::time(row.get("until")),
                cancel_requested: row.get("cancel_requested"),
            }),
        };
    }
    store.database.committed.send_modify(|_| {});
    Ok(answers)
}

pub(super) async fn rescue(store: &PostgresStore, rescue: Rescue) -> Answer<Rescued> {
    let observe = rescue.recovery.mode == RecoveryMode::Observe;
    let most = i32::try_from(rescue.recovery.max_recoveries).unwrap_or(i32::MAX);
    let delay = wire::micros(rescue.recovery.delay);
    let reason = event::recovery_number(rescue.reason);
    let all = rescue.reason == RecoveryReason::Restart;
    let parameters: [Parameter<'_>; 5] = [
        (&observe, Type::BOOL),
        (&most, Type::INT4),
        (&delay, Type::INT8),
        (&reason, Type::INT4),
        (&all, Type::BOOL),
    ];
    let sql = "select * from windlass.rescue($1, $2, $3, $4, $5)";
    let rows = store.call("rescue", sql, &parameters).await?;
    let (mut rescued, mut rings) = (Rescued::default(), None);
    for row in rows {
        if let Some(id) = record::id(&row) {
            let state = understood(wire::state_name(row.get::<_, i32>("state").into()))?;
            rescued.jobs.push(RescuedJob { id, state });
        } else {
            rescued.more = row.get("more");
            rescued.next_in = row.get::<_, Option<i64>>("next_in").map(wire::duration);
            rings = row.get("rings");
        }
    }
    if !rescued.jobs.is_empty() || observe {
        store.committed_and_rings(rings).await;
    }
    Ok(rescued)
}
