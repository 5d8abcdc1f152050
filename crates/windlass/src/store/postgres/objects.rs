//! Objects: their turns on the way in, and what is read of them.

use std::sync::Arc;

use serde_json::Value;
use tokio_postgres::Row;
use tokio_postgres::types::Type;
use windlass_core::job::NewJob;
use windlass_core::ledger::Turned;
use windlass_core::limits::{self, Limits};
use windlass_core::name::Name;
use windlass_core::object::{Address, ObjectMeta, ObjectRecord, ObjectView, Turn};
use windlass_core::outcome::ErrorText;
use windlass_core::refusal::Refusal;
use windlass_core::reserved;

use super::enqueue::check_batch;
use super::wire::{self, Placed, Read};
use super::{Parameter, PostgresStore, about_now, understood};
use crate::store::{Answer, ObjectFilter, ObjectPage, ObjectQuery};

pub(super) async fn turn(store: &PostgresStore, turn: Turn) -> Answer<Turned> {
    check_turn(&turn, &[], &store.limits)?;
    let said = wire::turn(&turn);
    let state: Option<&[u8]> = turn.state.as_deref();
    let sql = "select * from windlass.turn($1, $2)";
    let parameters: [Parameter<'_>; 2] = [(&said, Type::JSONB), (&state, Type::BYTEA)];
    let row = store.one("turn an object", sql, &parameters).await?;
    store.committed_and_rings(row.get("rings")).await;
    let turned: Value = row.get("turned");
    let jobs = turned["jobs"].as_array().into_iter().flatten();
    let jobs = jobs.map(|job| understood(Placed::of_json(job).and_then(Placed::into_enqueued)));
    let version = turned["version"].as_u64().unwrap_or(0);
    Ok(Turned { version, jobs: jobs.collect::<Answer<_>>()? })
}

/// What of a turn, and of other jobs that come with it, can be refused without asking the
/// database.
pub(super) fn check_turn(
    turn: &Turn,
    others: &[Arc<NewJob>],
    limits: &Limits,
) -> Result<(), Refusal> {
    turn.check(about_now())?;
    // On its own: it is no part of the batch if it only moves the alarm there is.
    if let Some(alarm) = turn.alarm_job() {
        alarm.check(limits, about_now())?;
    }
    let jobs: Vec<Arc<NewJob>> = others.iter().chain(&turn.jobs).cloned().collect();
    check_batch(&jobs, limits)
}

/// Answers a query.
pub(super) async fn read(store: &PostgresStore, query: &ObjectQuery) -> Answer<ObjectPage> {
    match query {
        ObjectQuery::Address(address) => {
            let address = address.to_string();
            let address: [Parameter<'_>; 1] = [(&address, Type::TEXT)];
            let objects = objects_where(store, "o.address = $1", &address).await?;
            Ok(ObjectPage { objects, next: None })
        }
        ObjectQuery::Page { filter, after, limit } => {
            page(store, filter, after.as_ref(), *limit).await
        }
    }
}

async fn page(
    store: &PostgresStore,
    filter: &ObjectFilter,
    after: Option<&Address>,
    limit: usize,
) -> Answer<ObjectPage> {
    let limit = limit.clamp(1, limits::PAGE_JOBS);
    let kind = filter.kind.as_ref().map(Name::as_str);
    let name = filter.name.as_ref().map(Name::as_str);
    let status = filter.status.map(wire::status_number);
    let (after_kind, after_name, after_key) = match after {
        Some(after) => (after.kind().as_str(), after.name().as_str(), after.key()),
        None => ("", "", ""),
    };
    let most = i64::try_from(limit + 1).unwrap_or(i64::MAX);
    let parameters: [Parameter<'_>; 8] = [
        (&after_kind, Type::TEXT),
        (&after_name, Type::TEXT),
        (&after_key, Type::TEXT),
        (&kind, Type::TEXT),
        (&name, Type::TEXT),
        (&status, Type::INT2),
        (&most, Type::INT8),
        (&reserved::PREFIX, Type::TEXT),
    ];
    let condition = "(o.kind, o.name, o.key) \
           > ($1 collate \"C\", $2 collate \"C\", $3 collate \"C\") \
         and (o.kind = $4 or $4 is null and not starts_with(o.kind, $8)) \
         and ($5 is null or o.name = $5) and ($6 is null or o.status = $6) \
         order by o.kind, o.name, o.key limit $7";
    let mut objects = objects_where(store, condition, &parameters).await?;
    let more = objects.len() > limit;
    objects.truncate(limit);
    let last = objects.last().map(|object| object.record.address.clone());
    Ok(ObjectPage { next: last.filter(|_| more), objects })
}

async fn objects_where(
    store: &PostgresStore,
    condition: &str,
    parameters: &[Parameter<'_>],
) -> Answer<Vec<ObjectView>> {
    let sql = format!("{OBJECTS} where {condition}");
    let rows = store.call("read objects", &sql, parameters).await?;
    rows.iter().map(|row| understood(read_object(row))).collect()
}

/// An object's columns, given what its jobs say.
pub(super) const OBJECTS: &str = "select o.*, \
    (select min(p.since) from windlass.job_state p where p.object = o.address and p.state = 3) \
      as running, \
    (select case when p.state < 3 then p.at end from windlass.job j \
      join windlass.job_state p using (seq) where j.id = o.alarm) as alarm_at, \
    (select count(*) from windlass.job_state p where p.object = o.address) as open_jobs \
    from windlass.object o";

pub(super) fn read_object(row: &Row) -> Read<ObjectView> {
    let name = |what: &str| wire::name(row.get(what));
    let address = Address::new(name("kind")?, name("name")?, row.get("key"));
    let address = address.map_err(|refusal| wire::UnknownValue(refusal.to_string()))?;
    let at = |what: &str| row.get::<_, Option<i64>>(what).map(wire::time);
    let meta = ObjectMeta {
        version: row.get::<_, i64>("version").cast_unsigned(),
        incarnation: row.get::<_, i64>("incarnation").cast_unsigned(),
        status: wire::read_status(row.get("status"))?,
        reason: row.get::<_, Option<&str>>("reason").map(ErrorText::new),
        created_at: wire::time(row.get("created_at")),
        updated_at: wire::time(row.get("updated_at")),
        last_success_at: at("last_success_at"),
        runs: row.get::<_, i64>("runs").cast_unsigned(),
        failures: row.get::<_, i64>("failures").cast_unsigned(),
        recoveries: row.get::<_, i32>("recoveries").cast_unsigned(),
        last_recovery_at: at("last_recovery_at"),
        alarm: row.get::<_, Option<uuid::Uuid>>("alarm").map(wire::job_id),
        purge_at: at("purge_at"),
    };
    let state = wire::bytes(row.get("state"));
    Ok(ObjectView {
        record: ObjectRecord { address, meta, state },
        executing_since: at("running"),
        alarm_at: at("alarm_at"),
        open_jobs: row.get::<_, i64>("open_jobs").cast_unsigned(),
    })
}
