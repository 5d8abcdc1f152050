//! Counters of queues and lanes, and workers that were heard of.

use std::sync::Arc;

use serde_json::{Value, json};
use tokio_postgres::types::Type;
use windlass_core::job::Priority;
use windlass_core::ledger::{
    Counts, LaneCount, QueueCount, QueueKindCount, Totals, WorkerInfo, WorkerKind, WorkerReport,
    WorkerView,
};
use windlass_core::limits;
use windlass_core::name::Name;
use windlass_core::rate::Rate;
use windlass_core::record::QueueSettings;
use windlass_core::reserved::{self, WorkerOrder};

use super::{Parameter, PostgresStore, odd, wire};
use crate::store::{Answer, HeartbeatAnswer};

pub(super) async fn count(store: &PostgresStore) -> Answer<Counts> {
    let row = store.one("count", "select windlass.counts()", &[]).await?;
    let counts: Value = row.get(0);
    read_counts(&counts).ok_or_else(|| odd("count", "the counters make no sense"))
}

pub(super) fn read_counts(value: &Value) -> Option<Counts> {
    Some(Counts {
        lines: value["queue_kinds"].as_array()?.iter().map(read_pair).collect::<Option<_>>()?,
        queues: value["queues"].as_array()?.iter().map(read_queue).collect::<Option<_>>()?,
        workers: value["workers"].as_array()?.iter().map(read_worker).collect::<Option<_>>()?,
    })
}

fn count_of(value: &Value) -> Option<u64> {
    Some(value.as_i64()?.max(0).cast_unsigned())
}

fn name_of(value: &Value) -> Option<Name> {
    Name::new(value.as_str()?).ok()
}

fn read_pair(pair: &Value) -> Option<QueueKindCount> {
    let mut states = [0; 7];
    for (index, state) in states.iter_mut().enumerate() {
        *state = count_of(&pair["states"][index])?;
    }
    Some(QueueKindCount {
        queue: name_of(&pair["queue"])?,
        kind: name_of(&pair["kind"])?,
        states,
        totals: read_totals(&pair["totals"])?,
    })
}

fn read_queue(queue: &Value) -> Option<QueueCount> {
    let settings = wire::settings(&queue["settings"]).ok()?;
    Some(QueueCount {
        queue: name_of(&queue["queue"])?,
        waiting: count_of(&queue["waiting"])?,
        waiting_by_priority: read_priorities(queue)?,
        dead_letters_dropped: count_of(&queue["dropped"])?,
        lanes: read_lanes(queue, &settings)?,
        settings,
    })
}

fn read_lanes(queue: &Value, settings: &QueueSettings) -> Option<Vec<LaneCount>> {
    let number = settings.lanes.map_or(0, |lanes| lanes.get() as usize);
    let mut lanes = vec![LaneCount::default(); number];
    for said in queue["lanes"].as_array()? {
        let number = said["lane"].as_i64().and_then(|lane| usize::try_from(lane).ok());
        let Some(lane) = number.and_then(|number| lanes.get_mut(number)) else { continue };
        lane.waiting = count_of(&said["waiting"])?;
        lane.running = count_of(&said["running"])?;
        lane.totals = read_totals(&said["totals"])?;
    }
    for paused in &settings.paused_lanes {
        if let Some(lane) = lanes.get_mut(*paused as usize) {
            lane.paused = true;
        }
    }
    Some(lanes)
}

/// The table has those of other priorities than 0; 0 is what they leave.
fn read_priorities(queue: &Value) -> Option<Vec<(Priority, u64)>> {
    let mut waiting = Vec::new();
    for said in queue["priorities"].as_array()? {
        let priority = i32::try_from(said[0].as_i64()?).ok()?;
        waiting.push((Priority(priority), count_of(&said[1])?));
    }
    waiting.push((Priority::NORMAL, count_of(&queue["normal"])?));
    waiting.retain(|(_, jobs)| *jobs > 0);
    waiting.sort_unstable_by(|one, other| other.cmp(one));
    waiting.truncate(limits::PRIORITIES_COUNTED);
    Some(waiting)
}

fn read_worker(worker: &Value) -> Option<WorkerView> {
    Some(WorkerView {
        worker: worker["worker"].as_str()?.into(),
        info: read_worker_info(&worker["info"])?,
        running: count_of(&worker["running"])?,
        stopping: worker["stopping"].as_bool()?,
    })
}

pub(super) fn read_totals(value: &Value) -> Option<Totals> {
    let number = |index: usize| Some(value[index].as_i64()?.max(0).cast_unsigned());
    Some(Totals {
        enqueued: number(0)?,
        completed: number(1)?,
        failed: number(2)?,
        retried: number(3)?,
        rescued: number(4)?,
        dead: number(5)?,
        cancelled: number(6)?,
    })
}

pub(super) async fn heartbeat(
    store: &PostgresStore,
    worker: Arc<str>,
    news: WorkerReport,
) -> Answer<HeartbeatAnswer> {
    let (number, info, error) = match &news {
        WorkerReport::Started(info) => (0_i32, Some(write_worker_info(info)), None),
        WorkerReport::Alive(info) => (4, Some(write_worker_info(info)), None),
        WorkerReport::Stopping => (1, None, None),
        WorkerReport::Stopped => (2, None, None),
        WorkerReport::Error(error) => (3, None, Some(wire::text(error.as_str()))),
    };
    let worker = &*worker;
    let (host, pid) = (host(), i64::from(std::process::id()));
    let version = env!("CARGO_PKG_VERSION");
    let order = reserved::order_address(worker).ok().map(|address| address.to_string());
    let parameters: [Parameter<'_>; 8] = [
        (&worker, Type::TEXT),
        (&number, Type::INT4),
        (&info, Type::JSONB),
        (&host, Type::TEXT),
        (&pid, Type::INT8),
        (&version, Type::TEXT),
        (&error, Type::TEXT),
        (&order, Type::TEXT),
    ];
    let sql = "select windlass.heartbeat($1, $2, $3, $4, $5, $6, $7, $8) as kept";
    let row = store.one("announce a worker", sql, &parameters).await?;
    match news {
        WorkerReport::Alive(_) => {}
        WorkerReport::Started(_)
        | WorkerReport::Stopping
        | WorkerReport::Stopped
        | WorkerReport::Error(_) => store.database.committed.send_modify(|_| {}),
    }
    let kept: Option<&[u8]> = row.get("kept");
    Ok(HeartbeatAnswer { order: kept.and_then(WorkerOrder::kept) })
}

fn write_worker_info(info: &WorkerInfo) -> Value {
    let kind = |kind: &WorkerKind| {
        let rate = kind.rate.map(|rate| json!([rate.jobs, wire::micros(rate.period), rate.burst]));
        json!({ "kind": kind.kind.as_str(), "concurrency": kind.concurrency, "rate": rate })
    };
    let queues = info.queues.as_ref();
    let queues = queues.map(|queues| queues.iter().map(Name::as_str).collect::<Vec<_>>());
    let kinds: Vec<Value> = info.kinds.iter().map(kind).collect();
    json!({ "queues": queues, "kinds": kinds, "slots": info.slots, "quiet": info.quiet })
}

fn read_worker_info(value: &Value) -> Option<WorkerInfo> {
    let number = |value: &Value| value.as_u64().and_then(|number| u32::try_from(number).ok());
    let name = |value: &Value| Name::new(value.as_str()?).ok();
    let kind = |value: &Value| {
        let rate = match value["rate"].as_array() {
            Some(rate) => Some(Rate {
                jobs: number(rate.first()?)?,
                period: wire::duration(rate.get(1)?.as_i64()?),
                burst: number(rate.get(2)?)?,
            }),
            None => None,
        };
        let concurrency = number(&value["concurrency"]);
        Some(WorkerKind { kind: name(&value["kind"])?, concurrency, rate })
    };
    let queues = match value["queues"].as_array() {
        Some(queues) => Some(queues.iter().map(name).collect::<Option<Vec<_>>>()?),
        None => None,
    };
    Some(WorkerInfo {
        queues,
        kinds: value["kinds"].as_array()?.iter().map(kind).collect::<Option<_>>()?,
        slots: number(&value["slots"])?,
        quiet: value["quiet"].as_bool().unwrap_or(false),
    })
}

/// The name of this machine, as far as it is known.
fn host() -> Option<String> {
    let name = std::fs::read_to_string("/etc/hostname").ok();
    let name = name.or_else(|| std::env::var("HOSTNAME").ok());
    name.map(|name| wire::text(name.trim())).filter(|name| !name.is_empty())
}
