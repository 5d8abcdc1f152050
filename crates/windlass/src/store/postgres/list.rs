//! Jobs that are looked for: by id, by filter, by what depends on them.

use std::collections::HashMap;

use serde_json::{Value, json};
use tokio_postgres::Row;
use tokio_postgres::types::Type;
use windlass_core::filter::{Filter, Order};
use windlass_core::job::JobId;
use windlass_core::limits;
use windlass_core::name::Name;
use windlass_core::record::JobRecord;

use super::{Parameter, PostgresStore, record, signed, understood, wire};
use crate::store::{Answer, Cursor, Page};

pub(super) async fn find(store: &PostgresStore, jobs: &[JobId]) -> Answer<Vec<Option<JobRecord>>> {
    let ids: Vec<uuid::Uuid> = jobs.iter().copied().map(wire::uuid).collect();
    let sql = format!(
        "select (select windlass.now_us()) as now, {} from {} where j.id = any ($1)",
        record::COLUMNS,
        record::TABLES
    );
    let rows = store.call("read jobs", &sql, &[(&ids, Type::UUID_ARRAY)]).await?;
    let mut found = HashMap::with_capacity(rows.len());
    for row in &rows {
        let record = understood(record::read(row))?.seen_at(wire::time(row.get("now")));
        found.insert(record.id(), record);
    }
    Ok(jobs.iter().map(|job| found.get(job).cloned()).collect())
}

pub(super) async fn list(
    store: &PostgresStore,
    filter: &Filter,
    after: Option<Cursor>,
    limit: usize,
) -> Answer<Page> {
    let limit = limit.clamp(1, limits::PAGE_JOBS);
    let Some(said) = self::filter(store, filter).await? else { return Ok(Page::default()) };
    let start = match (filter.order, after) {
        (Order::NewestFirst, after) => after.map_or(i64::MAX, |Cursor(sequence)| signed(sequence)),
        (Order::OldestFirst, after) => after.map_or(0, |Cursor(sequence)| signed(sequence)),
    };
    let most = i64::try_from(limit + 1).unwrap_or(i64::MAX);
    let scan = i64::try_from(limits::PAGE_SCAN).unwrap_or(i64::MAX);
    let parameters: [Parameter<'_>; 4] =
        [(&start, Type::INT8), (&scan, Type::INT8), (&said, Type::JSONB), (&most, Type::INT8)];
    let rows = store.call("list jobs", &list_sql(filter), &parameters).await?;
    read_page(&rows, filter.order, limit, scan)
}

/// Looks through some jobs, from `$1` on and at most `$2`, and answers with those of them that the
/// filter `$3` means, at most `$4`. Each row also says how many were looked through and the last.
fn list_sql(filter: &Filter) -> String {
    let (beyond, way, last) = match filter.order {
        Order::NewestFirst => ("<", "desc", "min"),
        Order::OldestFirst => (">=", "asc", "max"),
    };
    // There is an index of jobs by their parent, so that others need not be looked at.
    let of_parent = match filter.parent {
        Some(_) => "and spec ? 'parent' and spec->>'parent' = $3->>'parent'",
        None => "",
    };
    format!(
        "with scanned as materialized (\
           select seq from windlass.job where seq {beyond} $1 {of_parent} \
             order by seq {way} limit $2), \
         ends as (select count(*) as n, {last}(seq) as last from scanned) \
         select (select windlass.now_us()) as now, x.n, x.last, y.* \
         from ends x left join lateral (\
           select {} from {} where j.seq in (select seq from scanned) \
             and windlass._matches($3, case when p.state = 1 \
               and p.at <= (select windlass.now_us()) then 2 else p.state end, \
               j.queue_kind, j.spec, j.created_at) \
           order by j.seq {way} limit $4) y on true order by y.seq {way}",
        record::COLUMNS,
        record::TABLES
    )
}

/// A page of at most `limit` jobs. If `scan` jobs were looked through, there may be others.
fn read_page(rows: &[Row], order: Order, limit: usize, scan: i64) -> Answer<Page> {
    let mut page = Page::default();
    for row in rows.iter().take_while(|row| record::id(row).is_some()) {
        let record = understood(record::read(row))?.seen_at(wire::time(row.get("now")));
        if page.jobs.len() == limit {
            page.next = Some(Cursor(order.cursor(record.sequence)));
            return Ok(page);
        }
        page.jobs.push(record);
    }
    let scanned =
        rows.first().map(|row| (row.get::<_, i64>("n"), row.get::<_, Option<i64>>("last")));
    if let Some((n, Some(last))) = scanned
        && n == scan
    {
        let beyond = match order {
            Order::NewestFirst => last - 1,
            Order::OldestFirst => last + 1,
        };
        page.next = Some(Cursor(order.cursor(beyond.cast_unsigned())));
    }
    Ok(page)
}

pub(super) async fn dependents(store: &PostgresStore, job: JobId) -> Answer<Vec<JobId>> {
    let job = wire::uuid(job);
    let sql = "select j.id from windlass.dependency e join windlass.job j on j.seq = e.seq \
         where e.on_id = $1 and not e.met order by j.id";
    let rows = store.call("read dependents", sql, &[(&job, Type::UUID)]).await?;
    Ok(rows.iter().map(|row| wire::job_id(row.get(0))).collect())
}

/// The filter in JSON. `None` if nothing can match it, because no job of its queues or kinds
/// was ever accepted.
pub(super) async fn filter(store: &PostgresStore, filter: &Filter) -> Answer<Option<Value>> {
    let mut said = json!({});
    if !filter.states.is_empty() {
        said["states"] = filter.states.iter().map(|state| *state as i64).collect();
    }
    if !filter.kinds.is_empty() || !filter.queues.is_empty() {
        store.learn_names().await?;
        let any = |list: &[Name], name: &Name| list.is_empty() || list.contains(name);
        let names = store.names();
        let meant = names
            .by_number
            .iter()
            .filter(|(_, (queue, kind))| any(&filter.queues, queue) && any(&filter.kinds, kind));
        let numbers: Vec<i32> = meant.map(|(number, _)| *number).collect();
        if numbers.is_empty() {
            return Ok(None);
        }
        said["queue_kinds"] = numbers.into_iter().collect();
    }
    if !filter.tags.is_empty() {
        said["tags"] = filter.tags.iter().map(Name::as_str).collect();
    }
    if let Some(from) = filter.created_from {
        said["from"] = from.as_micros().into();
    }
    if let Some(before) = filter.created_before {
        said["before"] = before.as_micros().into();
    }
    if let Some(parent) = filter.parent {
        said["parent"] = parent.to_string().into();
    }
    Ok(Some(said))
}
