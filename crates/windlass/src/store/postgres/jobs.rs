//! Reading jobs: by id, a page of those that match a filter, or how many match it.

use std::collections::HashMap;

use serde_json::{Value, json};
use tokio_postgres::types::Type;
use windlass_core::filter::{Filter, Order};
use windlass_core::job::JobId;
use windlass_core::limits;
use windlass_core::name::Name;

use super::{Parameter, PostgresStore, record, signed, understood, wire};
use crate::store::{Answer, Cursor, JobQuery, Page};

/// Answers a query.
pub(super) async fn read(store: &PostgresStore, query: &JobQuery) -> Answer<Page> {
    match query {
        JobQuery::Ids(jobs) => by_id(store, jobs).await,
        JobQuery::Page { filter, after, limit } => page(store, filter, *after, *limit).await,
        JobQuery::Count { filter, after } => count(store, filter, *after).await,
    }
}

async fn by_id(store: &PostgresStore, jobs: &[JobId]) -> Answer<Page> {
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
    Ok(Page::of(jobs.iter().filter_map(|job| found.get(job).cloned()).collect()))
}

/// A page looks at so many jobs at most, from a place in the order of acceptance on.
struct PageScan<'a> {
    order: Order,
    start: i64,
    filter: &'a Value,
}

/// How many jobs a page looks at.
const SCAN: i64 = limits::PAGE_SCAN as i64;

impl PageScan<'_> {
    /// `scanned`, the numbers of the jobs that are looked at, and `ends`, how many there are and
    /// the last of them. Parameters: where to begin, how many, and the filter.
    fn sql(&self) -> String {
        let (beyond, way, last) = match self.order {
            Order::NewestFirst => ("<", "desc", "min"),
            Order::OldestFirst => (">=", "asc", "max"),
        };
        // There are indexes of jobs by their parent, and of those that wait for another, so that
        // no others need be looked at.
        let of_parent = match self.filter.get("parent") {
            Some(_) => "and spec ? 'parent' and spec->>'parent' = $3->>'parent'",
            None => "",
        };
        let waiting = match self.filter.get("blocked_by") {
            Some(_) => {
                "and seq in (select d.seq from windlass.dependency d \
                   where d.on_id = ($3->>'blocked_by')::uuid and not d.met)"
            }
            None => "",
        };
        format!(
            "with scanned as materialized (\
               select seq from windlass.job where seq {beyond} $1 {of_parent} {waiting} \
                 order by seq {way} limit $2), \
             ends as (select count(*) as n, {last}(seq) as last from scanned)"
        )
    }

    fn parameters(&self) -> [Parameter<'_>; 3] {
        [(&self.start, Type::INT8), (&SCAN, Type::INT8), (self.filter, Type::JSONB)]
    }

    /// Where to go on after a page that looked at `n` jobs up to `last`; `None` at the end.
    fn next(&self, n: i64, last: Option<i64>) -> Option<Cursor> {
        let last = last.filter(|_| n == SCAN)?;
        let beyond = match self.order {
            Order::NewestFirst => last - 1,
            Order::OldestFirst => last + 1,
        };
        Some(Cursor(self.order.cursor(beyond.cast_unsigned())))
    }
}

/// Those of the scanned jobs that match.
fn matching(columns: &str) -> String {
    format!(
        "select {columns} from {} where j.seq in (select seq from scanned) \
         and windlass._matches($3, case when p.state = 1 \
           and p.at <= (select windlass.now_us()) then 2 else p.state end, \
           j.queue_kind, j.spec, j.created_at)",
        record::TABLES
    )
}

fn start(order: Order, after: Option<Cursor>) -> i64 {
    let at = after.map(|Cursor(sequence)| signed(sequence));
    at.unwrap_or(match order {
        Order::NewestFirst => i64::MAX,
        Order::OldestFirst => 0,
    })
}

async fn page(
    store: &PostgresStore,
    filter: &Filter,
    after: Option<Cursor>,
    limit: usize,
) -> Answer<Page> {
    let limit = limit.clamp(1, limits::PAGE_JOBS);
    let Some(said) = self::filter(store, filter).await? else { return Ok(Page::default()) };
    let scan = PageScan { order: filter.order, start: start(filter.order, after), filter: &said };
    let most = i64::try_from(limit + 1).unwrap_or(i64::MAX);
    let way = match filter.order {
        Order::NewestFirst => "desc",
        Order::OldestFirst => "asc",
    };
    let sql = format!(
        "{} select (select windlass.now_us()) as now, x.n, x.last, y.* \
         from ends x left join lateral ({} order by j.seq {way} limit $4) y on true \
         order by y.seq {way}",
        scan.sql(),
        matching(record::COLUMNS)
    );
    let [begin, looked_at, said] = scan.parameters();
    let parameters = [begin, looked_at, said, (&most as _, Type::INT8)];
    let rows = store.call("list jobs", &sql, &parameters).await?;
    let mut page = Page::default();
    for row in &rows {
        if record::id(row).is_none() {
            break;
        }
        let record = understood(record::read(row))?.seen_at(wire::time(row.get("now")));
        if page.jobs.len() == limit {
            page.next = Some(Cursor(filter.order.cursor(record.sequence)));
            break;
        }
        page.jobs.push(record);
    }
    page.count = page.jobs.len() as u64;
    if page.next.is_none() {
        page.next = rows.first().and_then(|row| scan.next(row.get("n"), row.get("last")));
    }
    Ok(page)
}

async fn count(store: &PostgresStore, filter: &Filter, after: Option<Cursor>) -> Answer<Page> {
    let Some(said) = self::filter(store, filter).await? else { return Ok(Page::default()) };
    let scan = PageScan { order: filter.order, start: start(filter.order, after), filter: &said };
    let sql = format!(
        "{} select x.n, x.last, ({}) as matching from ends x",
        scan.sql(),
        matching("count(*)")
    );
    let row = store.one("count jobs", &sql, &scan.parameters()).await?;
    let count = row.get::<_, i64>("matching").unsigned_abs();
    Ok(Page { jobs: Vec::new(), count, next: scan.next(row.get("n"), row.get("last")) })
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
    if let Some(on) = filter.blocked_by {
        said["blocked_by"] = on.to_string().into();
    }
    Ok(Some(said))
}
