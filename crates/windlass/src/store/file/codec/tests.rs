//! What is written is read back, and no bytes at all make reading panic.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use windlass_core::job::{
    CancelReason, DeadReason, Dependency, JobStatus, Lane, Lease, LeaseToken, NewJob, OnFailure,
    Priority, Start, State, Timeout, Unique, UniqueScope,
};
use windlass_core::ledger::{Partition, StepMark};
use windlass_core::name::Name;
use windlass_core::object::ObjectStatus;
use windlass_core::outcome::ErrorText;
use windlass_core::record::{
    Accepted, AttemptEnd, LogLine, Progress, QueueSettings, RecordNote, Report, Step, Totals,
};
use windlass_core::retry::{Backoff, Jitter, Retry};
use windlass_core::time::Timestamp;

use super::job::new_job;
use super::*;

fn id(number: u128) -> JobId {
    JobId::from_u128(number)
}

fn name(text: &str) -> Name {
    Name::new(text).expect("a name")
}

fn at(micros: i64) -> Timestamp {
    Timestamp::from_micros(micros)
}

fn object() -> Address {
    Address::new(name("debounce"), name("webhooks"), "ключ / 1").expect("an address")
}

/// An object that leaves nothing at its default.
fn meta(status: ObjectStatus) -> ObjectMeta {
    ObjectMeta {
        version: u64::MAX,
        incarnation: u64::MAX - 1,
        status,
        reason: Some(ErrorText::new("why")),
        created_at: at(1),
        updated_at: at(2),
        last_success_at: Some(at(3)),
        runs: 4,
        failures: 5,
        recoveries: 6,
        last_recovery_at: Some(at(7)),
        alarm: Some(id(8)),
        purge_at: Some(at(9)),
    }
}

/// A job that leaves nothing at its default.
fn full_job() -> NewJob {
    let mut job = NewJob::new(id(7), name("kind"), name("queue"), vec![1, 2, 3]);
    job.priority = Priority(-10);
    job.start = Start::At(at(-5));
    let window = Some(Duration::new(u64::MAX, 999_999_999));
    job.unique = Some(Unique { key: "ключ".to_string(), scope: UniqueScope::Any, window });
    job.depends_on = [OnFailure::Cascade, OnFailure::Ignore, OnFailure::Wait]
        .into_iter()
        .enumerate()
        .map(|(number, on_failure)| Dependency { on: id(number as u128), on_failure })
        .collect();
    job.retry = Some(Retry {
        backoff: Backoff::Custom(vec![Duration::from_millis(5), Duration::MAX]),
        cap: Duration::MAX,
        jitter: Jitter::Full,
        max_attempts: Some(9),
        max_duration: Some(Duration::from_secs(1)),
    });
    job.max_attempts = Some(u32::MAX);
    job.timeout = Some(Timeout::After(Duration::from_nanos(1)));
    job.expires_after = Some(Duration::from_secs(60));
    job.tags = vec![name("one"), name("two")];
    job.metadata = BTreeMap::from([("key".to_string(), "value".to_string())]);
    job.trace = Some("00-trace".to_string());
    job.parent = Some(id(u128::MAX));
    job.lane = Some(Lane::Key("customer 7".to_string()));
    job.object = Some(object());
    job
}

fn states() -> Vec<State> {
    let lease = Lease {
        token: LeaseToken(1 << 40),
        worker: "worker".into(),
        since: at(10),
        until: at(20),
        max_attempts: 3,
        cancel_requested: true,
    };
    let dead = [
        DeadReason::AttemptsExhausted,
        DeadReason::Permanent,
        DeadReason::DurationExhausted,
        DeadReason::Crashed,
        DeadReason::DependencyFailed,
    ];
    let cancelled = [
        CancelReason::Requested,
        CancelReason::Handler,
        CancelReason::Expired,
        CancelReason::Cleared,
        CancelReason::DependencyCancelled,
        CancelReason::Replaced,
    ];
    let mut states = vec![
        State::Blocked { unmet: 300, not_before: at(10) },
        State::Scheduled { at: at(i64::MAX) },
        State::Ready { since: at(10) },
        State::Running(lease),
        State::Completed { at: at(i64::MIN) },
    ];
    states.extend(dead.map(|reason| State::Dead { at: at(1), reason }));
    states.extend(cancelled.map(|reason| State::Cancelled { at: at(1), reason }));
    states
}

fn notes() -> Vec<Option<RecordNote>> {
    let ends = (0..).map_while(AttemptEnd::from_number);
    let line = LogLine { at: at(3), attempt: 2, text: "a line".to_string() };
    let progress = Some(Progress { percent: 100, note: "done".to_string() });
    let ended = |end| {
        let (output, error) = (Some(vec![0].into()), Some(ErrorText::new("why")));
        Some(RecordNote::Ended { end, output, error })
    };
    let mut notes: Vec<Option<RecordNote>> = ends.map(ended).collect();
    notes.extend([
        None,
        Some(RecordNote::Started { worker: "worker".into() }),
        Some(RecordNote::Started { worker: "another".into() }),
        Some(RecordNote::Reported(Box::new(Report {
            progress: progress.clone(),
            lines: vec![line.clone()],
            ..Report::default()
        }))),
        Some(RecordNote::Reported(Box::new(Report {
            progress: progress.clone(),
            lines: vec![line.clone()],
            steps: finished(),
            lines_dropped: 0,
        }))),
        Some(RecordNote::Reported(Box::new(Report {
            progress,
            lines: vec![line],
            steps: Vec::new(),
            lines_dropped: 50,
        }))),
        Some(RecordNote::Failed(ErrorText::new("gone"))),
        Some(RecordNote::Replayed { met: vec![id(1), id(2)] }),
        Some(RecordNote::Met { on: id(3) }),
    ]);
    notes
}

fn finished() -> Vec<Step> {
    let step = |text: &str, result: &[u8]| Step { name: name(text), result: result.into() };
    vec![step("charge", b"{\"cents\":5}"), step("ship", b"")]
}

fn whole(state: State) -> JobRecord {
    let settled_by = None;
    let status =
        JobStatus { state, attempts: 1, recoveries: 2, generation: 3, begun: true, settled_by };
    let (job, sequence) = (Arc::new(full_job()), u64::MAX);
    let met = vec![id(1)];
    let mut record = JobRecord::new(&Accepted { job, sequence, at: at(10), status, met });
    for note in notes() {
        let status = record.status.clone();
        let job = record.id();
        record.absorb(&Update { job, at: at(10), status, note });
    }
    record.output = Some(vec![9; 300].into());
    record.last_recovery_at = Some(at(8));
    record.attempts_dropped = 4;
    record.log_dropped = 5;
    record
}

fn checkpoint_entry(status: JobStatus) -> CheckpointEntry {
    let job = full_job();
    CheckpointEntry {
        id: job.id,
        kind: job.kind,
        queue: job.queue,
        sequence: 5,
        status,
        fingerprint: u64::MAX,
        priority: job.priority,
        max_attempts: 7,
        depends_on: job.depends_on,
        met: vec![id(1)],
        unique: Some(("key".to_string(), UniqueScope::Any, Some(at(9)))),
        expires_at: Some(at(8)),
        partition: Some(Partition { number: u64::MAX, turn: true }),
        object: Some(object()),
        steps: finished().iter().map(StepMark::of).collect(),
        kept: RecordLocation { place: u64::MAX, weight: 6 },
    }
}

/// Every kind of entry, with everything it can hold.
fn all() -> Vec<(Entry, Vec<u8>)> {
    let mut all = Vec::new();
    let mut add = |entry: Entry, encode: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = Vec::new();
        encode(&mut bytes);
        all.push((entry, bytes));
    };
    for state in states() {
        let settled_by = Some(LeaseToken(u64::MAX));
        let status =
            JobStatus { state, attempts: 9, recoveries: 8, generation: 7, begun: true, settled_by };
        for note in notes() {
            let status = status.clone();
            let update = Update { job: id(5), at: at(10), status, note };
            let encoded = update.clone();
            let entry = Entry::Update { update, previous: u64::MAX, weight: u32::MAX };
            add(entry, &|to| encode_update(&encoded, u64::MAX, u32::MAX, to));
        }
        let record = whole(status.state.clone());
        add(Entry::Whole(Box::new(record.clone())), &|to| encode_whole(&record, to));
        let record = JobRecord { steps: Vec::new(), ..record };
        add(Entry::Whole(Box::new(record.clone())), &|to| encode_whole(&record, to));
        let checkpoint_entry = checkpoint_entry(status.clone());
        add(Entry::Checkpoint(Box::new(checkpoint_entry.clone())), &|to| {
            encode_checkpoint_entry(&checkpoint_entry, to)
        });
        let plain = CheckpointEntry {
            partition: None,
            object: None,
            steps: Vec::new(),
            ..checkpoint_entry
        };
        add(Entry::Checkpoint(Box::new(plain.clone())), &|to| encode_checkpoint_entry(&plain, to));
        let (job, met) = (Arc::new(full_job()), vec![id(9)]);
        let accepted = Accepted { job, sequence: 1, at: at(10), status, met };
        let insert = Change::Insert(Box::new(accepted));
        add(Entry::Change(insert.clone()), &|to| encode_change(&insert, to));
    }
    let settings = QueueSettings {
        paused: true,
        max_depth: Some(0),
        ageing: Some(Duration::from_secs(3)),
        ..QueueSettings::default()
    };
    let laned = QueueSettings {
        lanes: NonZeroU32::new(7),
        paused_lanes: [0, 6].into(),
        lane_depth: Some(u64::MAX),
        on_dead: Some(name("dead")),
        on_empty: Some(name("empty")),
        ..settings.clone()
    };
    for status in [ObjectStatus::Active, ObjectStatus::Stopped, ObjectStatus::Failed] {
        let (address, meta) = (object(), meta(status));
        let kept = RecordLocation { place: u64::MAX, weight: 6 };
        let checkpoint_entry =
            Entry::ObjectCheckpoint(Box::new((address.clone(), meta.clone(), kept)));
        add(checkpoint_entry, &|to| encode_object_checkpoint_entry(&address, &meta, kept, to));
        let (address, meta) = (address.clone(), meta.clone());
        let record = ObjectRecord { address, meta, state: vec![1, 2].into() };
        add(Entry::Object(Box::new(record.clone())), &|to| encode_object(&record, to));
    }
    let totals = Totals { enqueued: 1, completed: u64::MAX, ..Totals::default() };
    for change in [
        Change::Remove { job: id(4) },
        Change::Queue { queue: name("q"), settings, dead_letters_dropped: 77 },
        Change::Queue { queue: name("q"), settings: laned, dead_letters_dropped: 1 },
        Change::Lane { queue: name("q"), lane: 4_095, totals },
        Change::ObjectGone { address: object() },
        Change::Rate { kind: name("k"), full_at: at(-1) },
        Change::QueueKind { queue: name("q"), kind: name("k"), totals },
    ] {
        add(Entry::Change(change.clone()), &|to| encode_change(&change, to));
    }
    all
}

#[test]
fn what_is_written_is_read_back() {
    for (entry, bytes) in all() {
        assert_eq!(decode(&bytes).as_ref(), Ok(&entry));
    }
    let mut plain = Vec::new();
    let mut job = NewJob::new(id(1), name("k"), name("q"), vec![]);
    for (start, timeout) in [(Start::Now, None), (Start::After(Duration::ZERO), Some(Timeout::Off))]
    {
        (job.start, job.timeout) = (start, timeout);
        plain.clear();
        new_job(&job, &mut plain);
        assert_eq!(EntryReader { left: &plain }.new_job().as_ref(), Ok(&job));
    }
    for lane in [Lane::Spread, Lane::Turn(u64::MAX)] {
        job.lane = Some(lane);
        plain.clear();
        new_job(&job, &mut plain);
        assert_eq!(EntryReader { left: &plain }.new_job().as_ref(), Ok(&job));
    }
}

#[test]
fn any_bytes_are_read_or_refused_and_never_panic() {
    for (entry, bytes) in all() {
        for length in 0..bytes.len() {
            assert!(decode(&bytes[..length]).is_err(), "{entry:?} cut at {length}");
        }
        let mut changed = bytes.clone();
        for at in 0..bytes.len() {
            for change in [1, 0x80, 0xff] {
                changed[at] ^= change;
                let _ = decode(&changed);
                changed[at] ^= change;
            }
        }
        changed.push(0);
        assert!(decode(&changed).is_err(), "{entry:?} with a byte too many");
    }
}
