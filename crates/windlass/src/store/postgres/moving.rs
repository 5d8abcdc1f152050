//! A database as one side of a move: read in one snapshot, or written batch by batch.
//!
//! Each batch is one transaction that also notes how far the move has come, so one that was
//! interrupted goes on where it was. Until it is finished the schema says so, and nobody opens it.

use std::time::Duration;

use serde_json::{Value, json};
use tokio_postgres::Client;
use tokio_postgres::types::Type;
use windlass_core::event::RecoveryReason;
use windlass_core::job::State;
use windlass_core::ledger::Recovery;
use windlass_core::name::Name;
use windlass_core::object::{Address, ObjectRecord};
use windlass_core::outcome::ErrorText;
use windlass_core::record::{AttemptRecord, Change, JobRecord, LogLine, NextIds, Step, Totals};
use windlass_core::time::Timestamp;

use super::counts::{read_counts, read_totals};
use super::fault::{OpenFault, open_fault};
use super::objects::{OBJECTS, read_object};
use super::{PostgresAddress, Schema, connect, event, migrate, record, spec, wire};
use crate::clock::{Clock, SystemClock};
use crate::error::Error;

/// How often a source is looked at until nothing runs there, and how long it is left alone between.
const REST_TRIES: u32 = 100;
const REST_PAUSE: Duration = Duration::from_millis(20);

/// Refuses a schema into which a move is not finished.
pub(super) async fn refuse_half_moved(client: &Client, schema: &Schema) -> Result<(), OpenFault> {
    let sql = schema.in_sql("select source from windlass.move where finished_at is null");
    let rows = client.query_typed(&sql, &[]).await.map_err(open_fault)?;
    let Some(row) = rows.first() else { return Ok(()) };
    let source: &str = row.get(0);
    Err(OpenFault::new(format!(
        "a move from {source} into schema `{schema}` is not finished; run the same \
         `windlass move` again, or delete the schema"
    )))
}

/// One side of a move.
pub(in crate::store) struct PostgresSide {
    client: Client,
    schema: Schema,
    /// Whether it reads in one transaction, from one snapshot.
    is_snapshot: bool,
}

/// How far a move has come.
pub(in crate::store) struct MoveProgress {
    pub(in crate::store) jobs: u64,
    pub(in crate::store) object: Option<Address>,
    pub(in crate::store) settled: bool,
    pub(in crate::store) finished: bool,
}

impl PostgresSide {
    /// A name of the store that holds no password.
    pub(in crate::store) fn name(address: &PostgresAddress) -> String {
        let config = &address.config;
        let host = match config.get_hosts().first() {
            Some(tokio_postgres::config::Host::Tcp(host)) => host.clone(),
            Some(tokio_postgres::config::Host::Unix(path)) => path.display().to_string(),
            None => "localhost".to_string(),
        };
        let port = config.get_ports().first().unwrap_or(&5432);
        let database = config.get_dbname().unwrap_or_default();
        format!("postgres://{host}:{port}/{database} (schema {})", address.schema)
    }

    /// Opens the store that is moved away. Refuses while someone works on it, unless that is to be
    /// ignored; what runs is then given back, as if its workers were lost.
    pub(in crate::store) async fn source(
        address: &PostgresAddress,
        force: bool,
    ) -> Result<Self, Error> {
        let client = connect::connect(address).await?;
        let mut side = Self { client, schema: address.schema.clone(), is_snapshot: false };
        let found = migrate::known_version(&side.client, &side.schema).await?;
        if found != super::VERSION {
            let schema = &side.schema;
            let why = format!("schema `{schema}` is not up to date; run `windlass migrate up`");
            return Err(Error::NotMoved { why });
        }
        refuse_half_moved(&side.client, &side.schema).await?;
        side.come_to_rest(force).await?;
        side.run("begin isolation level repeatable read read only").await?;
        side.is_snapshot = true;
        Ok(side)
    }

    /// Sees to it that nothing runs.
    async fn come_to_rest(&self, force: bool) -> Result<(), Error> {
        let sql = "select (select string_agg(id, ', ' order by id) from windlass.worker \
               where seen_at > (select windlass.now_us()) - 60000000), \
             (select count(*) from windlass.job_state_now \
               where state = 3 and at > (select windlass.now_us()))";
        let row = self.ask(sql, &[]).await?;
        let (workers, held): (Option<String>, i64) = (row[0].get(0), row[0].get(1));
        if let (Some(workers), false) = (workers, force) {
            let why = format!(
                "workers are at work there ({workers}); stop them, or say --force if they are gone"
            );
            return Err(Error::NotMoved { why });
        }
        if held > 0 && !force {
            let why = format!(
                "{held} of its jobs run; let them finish, or say --force if their workers are gone"
            );
            return Err(Error::NotMoved { why });
        }
        let recovery = Recovery::default();
        let most = i32::try_from(recovery.max_recoveries).unwrap_or(i32::MAX);
        let delay = wire::micros(recovery.delay);
        let reason = event::recovery_number(RecoveryReason::Restart);
        let terms: [super::Parameter<'_>; 3] =
            [(&most, Type::INT4), (&delay, Type::INT8), (&reason, Type::INT4)];
        // What someone else looks at in the same moment is passed over, so this looks again.
        let mut passed_over = 0;
        while passed_over < REST_TRIES {
            let sql = "select bool_or(more) from windlass.rescue(false, $1, $2, $3, true)";
            if self.ask(sql, &terms).await?[0].get::<_, Option<bool>>(0).unwrap_or(false) {
                continue;
            }
            let sql = "select exists (select from windlass.lease)";
            if !self.ask(sql, &[]).await?[0].get::<_, bool>(0) {
                return self.ask("select windlass._number_events()", &[]).await.map(drop);
            }
            passed_over += 1;
            SystemClock::new().sleep(REST_PAUSE).await;
        }
        let why = "jobs are claimed there all the time; stop the workers first".into();
        Err(Error::NotMoved { why })
    }

    /// Makes the schema if need be, and begins or goes on with a move into it.
    pub(in crate::store) async fn target(
        address: &PostgresAddress,
        source: &str,
        stand: &str,
    ) -> Result<(Self, MoveProgress), Error> {
        let mut client = connect::connect(address).await?;
        let found = migrate::known_version(&client, &address.schema).await?;
        if found < super::VERSION && !address.migrate {
            let why = format!("schema `{}` is not up to date", address.schema);
            return Err(Error::NotMoved { why: format!("{why}; run `windlass migrate up`") });
        }
        migrate::up(&mut client, &address.schema).await?;
        let side = Self { client, schema: address.schema.clone(), is_snapshot: false };
        let rows = side
            .ask(
                "select * from windlass.move_begin($1, $2)",
                &[(&source, Type::TEXT), (&stand, Type::TEXT)],
            )
            .await?;
        let object: Option<Value> = rows[0].get("object");
        let object = object.as_ref().map(wire::read_address).transpose().map_err(unclear)?;
        let stand = MoveProgress {
            jobs: rows[0].get::<_, i64>("jobs").cast_unsigned(),
            object,
            settled: rows[0].get("settled"),
            finished: rows[0].get("finished"),
        };
        Ok((side, stand))
    }

    async fn ask(
        &self,
        sql: &str,
        parameters: &[super::Parameter<'_>],
    ) -> Result<Vec<tokio_postgres::Row>, Error> {
        let sql = self.schema.in_sql(sql);
        let rows = match self.is_snapshot {
            true => self.client.query_typed(&sql, parameters).await,
            false => connect::ask_in_read_committed(&self.client, &sql, parameters).await,
        };
        rows.map_err(|error| match error.code().map(|code| code.code().to_string()) {
            // It says already what to do.
            Some(code) if code == super::fault::REFUSED => {
                Error::NotMoved { why: super::fault::said(&error) }
            }
            _ => open_fault(error).into(),
        })
    }

    async fn run(&self, sql: &str) -> Result<(), Error> {
        let sql = self.schema.in_sql(sql);
        self.client.batch_execute(&sql).await.map_err(|error| open_fault(error).into())
    }

    /// Jobs accepted after `sequence`, in that order: at most so many, and not many more bytes.
    pub(in crate::store) async fn jobs_after(
        &self,
        sequence: u64,
        most: usize,
        bytes: usize,
    ) -> Result<Vec<JobRecord>, Error> {
        let after = sequence.cast_signed();
        let limit = i64::try_from(most).unwrap_or(i64::MAX);
        let sizes = "select j.seq, pg_catalog.octet_length(j.payload) \
               + coalesce(pg_catalog.octet_length(p.output), 0) \
             from windlass.job j join windlass.job_state p using (seq) where j.seq > $1 \
             order by j.seq limit $2";
        let sizes = self.ask(sizes, &[(&after, Type::INT8), (&limit, Type::INT8)]).await?;
        let (mut last, mut size) = (after, 0);
        for row in &sizes {
            last = row.get(0);
            size += usize::try_from(row.get::<_, i32>(1)).unwrap_or(0);
            if size > bytes {
                break;
            }
        }
        let sql = format!(
            "select {} from {} where j.seq > $1 and j.seq <= $2 order by j.seq",
            record::COLUMNS,
            record::TABLES
        );
        let rows = self.ask(&sql, &[(&after, Type::INT8), (&last, Type::INT8)]).await?;
        rows.iter().map(|row| record::read(row).map_err(unclear)).collect()
    }

    /// Objects after `address`, in that order.
    pub(in crate::store) async fn objects_after(
        &self,
        address: Option<&Address>,
        most: usize,
    ) -> Result<Vec<ObjectRecord>, Error> {
        let (kind, name, key) = match address {
            Some(after) => (after.kind().as_str(), after.name().as_str(), after.key()),
            None => ("", "", ""),
        };
        let limit = i64::try_from(most).unwrap_or(i64::MAX);
        let sql = format!(
            "{OBJECTS} where (o.kind, o.name, o.key) > \
               ($1 collate \"C\", $2 collate \"C\", $3 collate \"C\") \
             order by o.kind, o.name, o.key limit $4"
        );
        let parameters: [super::Parameter<'_>; 4] =
            [(&kind, Type::TEXT), (&name, Type::TEXT), (&key, Type::TEXT), (&limit, Type::INT8)];
        let rows = self.ask(&sql, &parameters).await?;
        rows.iter().map(|row| read_object(row).map(|view| view.record).map_err(unclear)).collect()
    }

    /// All that is not about one job or object.
    pub(in crate::store) async fn image(&self) -> Result<Vec<Change>, Error> {
        let counts: Value = self.ask("select windlass.counts()", &[]).await?[0].get(0);
        let strange = || Error::NotMoved { why: "its counters make no sense".to_string() };
        let counts = read_counts(&counts).ok_or_else(strange)?;
        let mut changes = Vec::new();
        for queue in counts.queues {
            changes.push(Change::Queue {
                queue: queue.queue,
                settings: queue.settings,
                dead_letters_dropped: queue.dead_letters_dropped,
            });
        }
        let line = |line: windlass_core::ledger::QueueKindCount| Change::QueueKind {
            queue: line.queue,
            kind: line.kind,
            totals: line.totals,
        };
        changes.extend(counts.lines.into_iter().map(line));
        changes.extend(self.lane_totals().await?);
        let kinds = "select name, full_at from windlass.kind where full_at > $1";
        for row in self.ask(kinds, &[(&i64::MIN, Type::INT8)]).await? {
            let kind: Name = wire::name(row.get(0)).map_err(unclear)?;
            changes.push(Change::Rate { kind, full_at: wire::time(row.get(1)) });
        }
        Ok(changes)
    }

    /// What has happened in each lane, also of queues that have fewer or none by now.
    async fn lane_totals(&self) -> Result<Vec<Change>, Error> {
        let sql = "select q.name, t.lane, jsonb_build_array(sum(t_enqueued), sum(t_completed), \
               sum(t_failed), sum(t_retried), sum(t_rescued), sum(t_dead), sum(t_cancelled)) \
             from windlass.counter_delta t join windlass.queue q on q.id = t.queue \
             where t.queue_kind is null and t.lane is not null group by q.name, t.lane";
        let mut changes = Vec::new();
        for row in self.ask(sql, &[]).await? {
            let queue = wire::name(row.get(0)).map_err(unclear)?;
            let lane = u32::try_from(row.get::<_, i64>(1)).ok();
            if let (Some(lane), Some(totals)) = (lane, read_totals(&row.get(2))) {
                changes.push(Change::Lane { queue, lane, totals });
            }
        }
        Ok(changes)
    }

    /// The next numbers.
    pub(in crate::store) async fn next_ids(&self) -> Result<NextIds, Error> {
        let sql = "select (select last_value + is_called::int from windlass.job_seq_seq), \
             (select (last_value + 1) * 16384 from windlass.token), \
             (select last_event + 1 from windlass.settings), windlass.now_us()";
        let rows = self.ask(sql, &[]).await?;
        let number = |index: usize| rows[0].get::<_, i64>(index).cast_unsigned();
        let wall = Timestamp::from_micros(rows[0].get(3));
        Ok(NextIds { sequence: number(0), token: number(1), event: number(2), wall })
    }

    /// Takes over settings and rate limits.
    pub(in crate::store) async fn put_settings(&self, image: &[Change]) -> Result<(), Error> {
        let (mut queues, mut kinds) = (Vec::new(), Vec::new());
        for change in image {
            match change {
                Change::Queue { queue, settings, dead_letters_dropped } => queues.push(json!({
                    "name": queue.as_str(),
                    "paused": settings.paused,
                    "max_depth": settings.max_depth,
                    "ageing": settings.ageing.map(wire::micros),
                    "lanes": settings.lanes,
                    "paused_lanes": settings.paused_lanes,
                    "lane_depth": settings.lane_depth,
                    "on_dead": settings.on_dead.as_ref().map(Name::as_str),
                    "on_empty": settings.on_empty.as_ref().map(Name::as_str),
                    "dropped": dead_letters_dropped,
                })),
                Change::Rate { kind, full_at } => {
                    kinds.push(json!({ "name": kind.as_str(), "full_at": full_at.as_micros() }));
                }
                Change::QueueKind { .. }
                | Change::Lane { .. }
                | Change::Insert(_)
                | Change::Update(_)
                | Change::Remove { .. }
                | Change::Object(_)
                | Change::ObjectGone { .. } => {}
            }
        }
        let (queues, kinds) = (Value::from(queues), Value::from(kinds));
        let sql = "select windlass.move_settings($1, $2)";
        self.ask(sql, &[(&queues, Type::JSONB), (&kinds, Type::JSONB)]).await.map(drop)
    }

    /// Takes over jobs that follow the one with number `after`.
    pub(in crate::store) async fn put_jobs(
        &self,
        after: u64,
        jobs: &[JobRecord],
    ) -> Result<(), Error> {
        let jobs: Value = jobs.iter().map(row_of).collect::<Result<Vec<_>, _>>()?.into();
        let after = after.cast_signed();
        let sql = "select windlass.move_jobs($1, $2)";
        self.ask(sql, &[(&after, Type::INT8), (&jobs, Type::JSONB)]).await.map(drop)
    }

    /// Takes over objects, when the last job has the number `after`.
    pub(in crate::store) async fn put_objects(
        &self,
        after: u64,
        objects: &[ObjectRecord],
    ) -> Result<(), Error> {
        let objects: Value = objects.iter().map(object_row).collect();
        let after = after.cast_signed();
        let sql = "select windlass.move_objects($1, $2)";
        self.ask(sql, &[(&after, Type::INT8), (&objects, Type::JSONB)]).await.map(drop)
    }

    /// Takes over totals and numbers, when all jobs and objects are there.
    pub(in crate::store) async fn settle(
        &self,
        after: u64,
        image: &[Change],
        next_ids: NextIds,
    ) -> Result<(), Error> {
        let (mut lines, mut lanes) = (Vec::new(), Vec::new());
        for change in image {
            match change {
                Change::QueueKind { queue, kind, totals } => lines.push(json!({
                    "queue": queue.as_str(), "kind": kind.as_str(), "t": numbers(totals),
                })),
                Change::Lane { queue, lane, totals } => lanes.push(json!({
                    "queue": queue.as_str(), "lane": lane, "t": numbers(totals),
                })),
                Change::Queue { .. }
                | Change::Rate { .. }
                | Change::Insert(_)
                | Change::Update(_)
                | Change::Remove { .. }
                | Change::Object(_)
                | Change::ObjectGone { .. } => {}
            }
        }
        let (lines, lanes) = (Value::from(lines), Value::from(lanes));
        let after = after.cast_signed();
        let (sequence, token) = (next_ids.sequence.cast_signed(), next_ids.token.cast_signed());
        let event = next_ids.event.cast_signed();
        let parameters: [super::Parameter<'_>; 6] = [
            (&after, Type::INT8),
            (&lines, Type::JSONB),
            (&lanes, Type::JSONB),
            (&sequence, Type::INT8),
            (&token, Type::INT8),
            (&event, Type::INT8),
        ];
        let sql = "select windlass.move_settle($1, $2, $3, $4, $5, $6)";
        self.ask(sql, &parameters).await.map(drop)
    }

    /// From now on it is a store like any other.
    pub(in crate::store) async fn finish(&self) -> Result<(), Error> {
        self.run("update windlass.move set finished_at = now()").await
    }
}

fn unclear(strange: wire::UnknownValue) -> Error {
    Error::NotMoved { why: strange.to_string() }
}

fn numbers(totals: &Totals) -> Value {
    let Totals { enqueued, completed, failed, retried, rescued, dead, cancelled } = totals;
    json!([enqueued, completed, failed, retried, rescued, dead, cancelled])
}

/// A record as this database can keep it: its texts have no room for the character NUL.
pub(in crate::store) fn fit(mut record: JobRecord) -> JobRecord {
    let fit_error = |error: &mut Option<ErrorText>| {
        if let Some(text) = error
            && text.as_str().contains('\0')
        {
            *text = ErrorText::new(wire::text(text.as_str()));
        }
    };
    fit_error(&mut record.error);
    for attempt in &mut record.attempts {
        fit_error(&mut attempt.error);
        if attempt.worker.contains('\0') {
            attempt.worker = wire::text(&attempt.worker).into();
        }
    }
    if let Some(progress) = &mut record.progress {
        progress.note = wire::text(&progress.note);
    }
    for line in &mut record.log {
        line.text = wire::text(&line.text);
    }
    record
}

/// A record as `windlass.move_jobs` takes it.
fn row_of(record: &JobRecord) -> Result<Value, Error> {
    let stuck = |what: &str| Error::NotMoved { why: format!("job {} {what}", record.id()) };
    let (state, at, reason, unmet) = match &record.status.state {
        State::Blocked { unmet, not_before } => (0, *not_before, None, Some(*unmet)),
        State::Scheduled { at } => (1, *at, None, None),
        State::Ready { since } => (2, *since, None, None),
        State::Running(_) => return Err(stuck("runs; wait until it has ended")),
        State::Completed { at } => (4, *at, None, None),
        State::Dead { at, reason } => (5, *at, Some(*reason as i64), None),
        State::Cancelled { at, reason } => (6, *at, Some(*reason as i64), None),
    };
    let mut row = spec::whole_job(&record.job);
    let tries: Option<Vec<Value>> = record.attempts.iter().map(attempt).collect();
    let tries = tries.ok_or_else(|| stuck("has an attempt that has not ended"))?;
    let line = |line: &LogLine| {
        json!({
            "at": line.at.as_micros(), "attempt": line.attempt, "text": line.text,
        })
    };
    let step =
        |step: &Step| json!({ "name": step.name.as_str(), "result": wire::hex(&step.result) });
    let log: Vec<Value> = record.log.iter().map(line).collect();
    let more = json!({
        "seq": record.sequence,
        "created_at": record.created_at.as_micros(),
        "state": state,
        "at": at.as_micros(),
        "reason": reason,
        "unmet": unmet,
        "updated_at": record.updated_at.as_micros(),
        "attempts": record.status.attempts,
        "recoveries": record.status.recoveries,
        "generation": record.status.generation,
        "begun": record.status.begun,
        "settled_by": record.status.settled_by.map(|token| token.0.cast_signed()),
        "first_started": record.first_started_at.map(Timestamp::as_micros),
        "recovered_at": record.last_recovery_at.map(Timestamp::as_micros),
        "met": (!record.met.is_empty())
            .then(|| record.met.iter().map(ToString::to_string).collect::<Vec<_>>()),
        "output": record.output.as_deref().map(wire::hex),
        "error": record.error.as_ref().map(ErrorText::as_str),
        "tries": (!tries.is_empty()).then_some(tries),
        "tries_dropped": record.attempts_dropped,
        "progress": record.progress.as_ref()
            .map(|progress| json!({ "percent": progress.percent, "note": progress.note })),
        "log": (!log.is_empty()).then_some(log),
        "log_dropped": record.log_dropped,
        "steps": record.steps.iter().map(step).collect::<Vec<_>>(),
    });
    if let (Value::Object(row), Value::Object(more)) = (&mut row, more) {
        row.extend(more);
    }
    Ok(row)
}

fn attempt(attempt: &AttemptRecord) -> Option<Value> {
    let (ended, end) = attempt.ended?;
    Some(json!({
        "number": attempt.number,
        "worker": &*attempt.worker,
        "started": attempt.started_at.as_micros(),
        "ended": ended.as_micros(),
        "end": end.number(),
        "error": attempt.error.as_ref().map(ErrorText::as_str),
    }))
}

/// An object as `windlass.move_objects` takes it.
fn object_row(object: &ObjectRecord) -> Value {
    let ObjectRecord { address, meta, state } = object;
    json!({
        "kind": address.kind().as_str(),
        "name": address.name().as_str(),
        "key": address.key(),
        "version": meta.version,
        "incarnation": meta.incarnation,
        "status": wire::status_number(meta.status),
        "reason": meta.reason.as_ref().map(|reason| wire::text(reason.as_str())),
        "created_at": meta.created_at.as_micros(),
        "updated_at": meta.updated_at.as_micros(),
        "last_success_at": meta.last_success_at.map(Timestamp::as_micros),
        "runs": meta.runs,
        "failures": meta.failures,
        "recoveries": meta.recoveries,
        "last_recovery_at": meta.last_recovery_at.map(Timestamp::as_micros),
        "alarm": meta.alarm.map(|alarm| alarm.to_string()),
        "purge_at": meta.purge_at.map(Timestamp::as_micros),
        "state": wire::hex(state),
    })
}
