//! The commands of a test case, as small plain data that shrinks and reads well.
//!
//! Everything comes from small pools, so that ids, keys, queues and dependencies collide often.
//! What depends on the moment (a token, a due time) is named here and looked up when it is used.

use std::fmt;
use std::num::NonZeroU32;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use proptest::collection::vec;
use proptest::option::weighted;
use proptest::prelude::*;
use proptest::sample::select;
use windlass_core::event::RecoveryReason;
use windlass_core::job::{
    CancelReason, DeadReason, Dependency, JobId, Lane, NewJob, OnFailure, Priority, RequestId,
    Start, StateName, Unique, UniqueScope,
};
use windlass_core::ledger::{Claim, KindClaim, QueueChange, Recovery, RecoveryMode, Rescue};
use windlass_core::limits::STEP_BYTES;
use windlass_core::name::Name;
use windlass_core::outcome::Verdict;
use windlass_core::rate::Rate;
use windlass_core::record::{self, LogLine, Progress, Report};
use windlass_core::retry::Retry;
use windlass_core::time::Timestamp;

use crate::turns::{self, Spin};

/// Largest payload the tested ledger takes.
pub(crate) const PAYLOAD_BYTES: usize = 4;

/// Numbers at which an old id is looked for; new ones count up from 1.
const IDS: u8 = 30;

static KINDS: LazyLock<Vec<Name>> = LazyLock::new(|| names(&["mail", "scan"]));
static QUEUES: LazyLock<Vec<Name>> = LazyLock::new(|| names(&["east", "west"]));
static WORKERS: LazyLock<[Arc<str>; 2]> = LazyLock::new(|| ["anna".into(), "bert".into()]);

fn names(texts: &[&str]) -> Vec<Name> {
    texts.iter().map(|text| Name::new(text).expect("a proper name")).collect()
}

pub(crate) fn id(number: u32) -> JobId {
    JobId::from_u128(u128::from(number))
}

pub(crate) fn queue(number: u8) -> Name {
    QUEUES[usize::from(number) % QUEUES.len()].clone()
}

pub(crate) fn seconds(number: u32) -> Duration {
    Duration::from_secs(u64::from(number))
}

/// One command, or a step of the clocks.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// Both clocks advance by this many milliseconds.
    Pass(u64),
    /// The wall clock alone is set forwards or back by this many seconds.
    SetWall(i64),
    Enqueue(Vec<Draft>),
    Claim(Request),
    Renew(Vec<(Hand, u32, Said)>),
    Settle(Vec<Ending>),
    Turn(Spin),
    Rescue {
        look: bool,
        reason: RecoveryReason,
        max_recoveries: u32,
        delay_s: u32,
    },
    Promote,
    Cancel(Vec<Pick>),
    Reschedule(Vec<Pick>, Begin),
    Replay(Vec<Pick>),
    ReplayEdited(Pick, Draft),
    Remove(Vec<Pick>),
    RemoveGraph(Vec<Pick>),
    /// A chunk of so many jobs of a queue is called off, after those of the step before it.
    Clear(u8, usize),
    Configure(u8, QueueChange),
    /// The journal is compacted between two hundredths of its length; `all` jobs are written once
    /// more, or only those that need it.
    Compact {
        from: u8,
        to: u8,
        all: bool,
    },
}

/// Which job is meant.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pick {
    /// One of the jobs in this state, if there is any.
    In(StateName, u8),
    /// One of the jobs that are kept.
    Kept(u8),
    /// One that stands before this one in its batch, if there is any.
    Before(u8),
    /// One of the same batch, perhaps itself.
    Sibling(u8),
    /// The job with this number, whether there is one or not.
    Number(u8),
}

/// The identity of a new job.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Identity {
    /// One that was never used.
    Fresh,
    /// That of another job, perhaps.
    Reused(Pick),
}

/// When a job may start.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Begin {
    Now,
    After(u32),
    /// So many seconds from now, or ago.
    At(i32),
}

impl Begin {
    pub(crate) fn start(self, now: Timestamp) -> Start {
        match self {
            Begin::Now => Start::Now,
            Begin::After(delay) => Start::After(seconds(delay)),
            Begin::At(offset) if offset < 0 => Start::At(now - seconds(offset.unsigned_abs())),
            Begin::At(offset) => Start::At(now + seconds(offset.unsigned_abs())),
        }
    }
}

/// A job to enqueue.
#[derive(Clone)]
pub(crate) struct Draft {
    pub(crate) identity: Identity,
    kind: u8,
    queue: u8,
    payload: u8,
    priority: i32,
    begin: Begin,
    unique: Option<(u8, UniqueScope, Option<u32>)>,
    depends_on: Vec<(Pick, OnFailure)>,
    max_attempts: Option<u32>,
    expires_after_s: Option<u32>,
    /// The number of a key, or spread over the lanes.
    lane: Option<Option<u8>>,
    /// The object it is bound to.
    object: Option<u8>,
}

/// Only what is out of the ordinary, so that a failing case fits on a page.
impl fmt::Debug for Draft {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {}/{}", self.identity, queue(self.queue), KINDS[usize::from(self.kind)])?;
        if self.payload != 0 {
            write!(f, " payload {}", self.payload)?;
        }
        if self.priority != 0 {
            write!(f, " priority {}", self.priority)?;
        }
        if !matches!(self.begin, Begin::Now) {
            write!(f, " begin {:?}", self.begin)?;
        }
        if let Some(unique) = self.unique {
            write!(f, " unique {unique:?}")?;
        }
        if !self.depends_on.is_empty() {
            write!(f, " after {:?}", self.depends_on)?;
        }
        if let Some(runs) = self.max_attempts {
            write!(f, " at most {runs} runs")?;
        }
        if let Some(seconds) = self.expires_after_s {
            write!(f, " expires after {seconds} s")?;
        }
        if let Some(lane) = self.lane {
            write!(f, " lane {lane:?}")?;
        }
        if let Some(number) = self.object {
            write!(f, " of {}", turns::object(number))?;
        }
        Ok(())
    }
}

impl Draft {
    pub(crate) fn job(
        &self,
        id: JobId,
        now: Timestamp,
        find: impl Fn(Pick) -> Option<JobId>,
    ) -> NewJob {
        // Rarely one byte too many.
        let bytes = vec![self.payload; if self.payload == u8::MAX { PAYLOAD_BYTES + 1 } else { 1 }];
        let kind = KINDS[usize::from(self.kind)].clone();
        let mut job = NewJob::new(id, kind, queue(self.queue), bytes);
        job.priority = Priority(self.priority);
        job.start = self.begin.start(now);
        job.unique = self.unique.map(|(key, scope, window)| Unique {
            key: format!("key-{key}"),
            scope,
            window: window.map(seconds),
        });
        let edges = self.depends_on.iter();
        let edges = edges.filter_map(|(on, on_failure)| find(*on).map(|on| (on, *on_failure)));
        job.depends_on = edges.map(|(on, on_failure)| Dependency { on, on_failure }).collect();
        job.retry = self.max_attempts.map(|runs| Retry::default().up_to(runs));
        job.expires_after = self.expires_after_s.map(seconds);
        job.lane = self.lane.map(|key| match key {
            Some(key) => Lane::Key(format!("customer-{key}")),
            None => Lane::Spread,
        });
        job.object = self.object.map(turns::object);
        job
    }
}

/// What a worker asks for.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    worker: u8,
    queues: Option<Vec<u8>>,
    kinds: Vec<u8>,
    limit: usize,
    lease_s: u32,
    max_attempts: u32,
    concurrency: Option<u32>,
    rate: Option<(u32, u32)>,
    /// Few, so that claims are repeated.
    number: Option<u8>,
}

impl Request {
    pub(crate) fn claim(&self) -> Claim {
        let terms = |kind: &u8| KindClaim {
            kind: KINDS[usize::from(*kind)].clone(),
            lease: seconds(self.lease_s),
            max_attempts: self.max_attempts,
            concurrency: self.concurrency,
            rate: self.rate.map(|(jobs, burst)| Rate { jobs, period: seconds(10), burst }),
        };
        Claim {
            worker: WORKERS[usize::from(self.worker)].clone(),
            queues: self.queues.as_ref().map(|queues| queues.iter().map(|q| queue(*q)).collect()),
            kinds: self.kinds.iter().map(terms).collect(),
            limit: self.limit,
            request: self.number.map(|number| RequestId(number.into())),
        }
    }
}

/// With which lease a worker acts, and on which job.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Hand {
    /// One of the leases that are held, if there is any.
    Right(u8),
    /// An earlier lease of the job, or of any other.
    Stale(u8),
    /// A lease that is held, presented for another job.
    Crossed(u8, Pick),
    /// A token no one was ever given.
    MadeUp(Pick),
}

/// What a handler says: how far it is, how many lines for its log, and the steps it finished.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Said {
    percent: Option<u8>,
    lines: u8,
    /// The number of its name, and how long its result is.
    step: Option<(u8, usize)>,
}

impl Said {
    pub(crate) fn report(self, at: Timestamp) -> Report {
        let line = LogLine { at, attempt: 1, text: "on the way".into() };
        let progress = self.percent.map(|percent| Progress { percent, note: String::new() });
        let step = self.step.map(|(number, bytes)| record::Step {
            name: Name::new(&format!("step{number}")).expect("a proper name"),
            result: vec![7; bytes].into(),
        });
        let lines = vec![line; usize::from(self.lines)];
        Report { progress, lines, steps: step.into_iter().collect(), lines_dropped: 0 }
    }
}

/// The end of an attempt.
#[derive(Clone, Debug)]
pub(crate) struct Ending {
    pub(crate) hand: Hand,
    pub(crate) verdict: Verdict,
    pub(crate) output_bytes: usize,
    pub(crate) said: Said,
    pub(crate) next: Vec<Draft>,
    pub(crate) turn: Option<Spin>,
}

pub(crate) fn rescue(look: bool, reason: RecoveryReason, max: u32, delay_s: u32) -> Rescue {
    let mode = if look { RecoveryMode::Observe } else { RecoveryMode::Act };
    let recovery = Recovery { mode, max_recoveries: max, delay: seconds(delay_s) };
    Rescue { recovery, reason }
}

/// A test case.
pub(crate) fn steps(at_most: usize) -> impl Strategy<Value = Vec<Step>> {
    vec(step(), 1..=at_most)
}

fn step() -> impl Strategy<Value = Step> {
    use StateName::{Blocked, Cancelled, Completed, Dead, Ready, Running, Scheduled};
    let some = |states: &[StateName]| vec(pick(states), 1..=3);
    let open = [Ready, Scheduled, Blocked, Running];
    let (hour, year) = (3_600, 365 * 86_400);
    prop_oneof![
        6 => select(vec![0, 1, 1_000, 2_000, 5_000, 31_000, 600_000]).prop_map(Step::Pass),
        1 => select(vec![hour, -hour, -hour, year, -year]).prop_map(Step::SetWall),
        10 => draft().prop_map(|draft| Step::Enqueue(vec![draft])),
        10 => vec(draft(), 0..=5).prop_map(Step::Enqueue),
        12 => request().prop_map(Step::Claim),
        2 => vec((hand(), 0u32..40, said()), 1..=2).prop_map(Step::Renew),
        12 => vec(ending(), 1..=3).prop_map(Step::Settle),
        9 => turns::spin().prop_map(Step::Turn),
        3 => recovery(),
        2 => Just(Step::Promote),
        2 => some(&open).prop_map(Step::Cancel),
        2 => (some(&open), begin()).prop_map(|(jobs, begin)| Step::Reschedule(jobs, begin)),
        4 => some(&[Dead, Cancelled]).prop_map(Step::Replay),
        2 => (pick(&[Dead]), draft()).prop_map(|(job, draft)| Step::ReplayEdited(job, draft)),
        1 => some(&[Dead, Completed, Cancelled]).prop_map(Step::Remove),
        1 => some(&[Dead, Completed, Cancelled]).prop_map(Step::RemoveGraph),
        2 => (0u8..2, 1usize..=3).prop_map(|(queue, limit)| Step::Clear(queue, limit)),
        3 => (0u8..2, queue_change()).prop_map(|(queue, change)| Step::Configure(queue, change)),
        3 => compaction(),
    ]
}

fn compaction() -> impl Strategy<Value = Step> {
    let from = prop_oneof![1 => Just(0), 1 => 0u8..=100];
    (from, 0u8..=100, any::<bool>()).prop_map(|(from, to, all)| Step::Compact { from, to, all })
}

fn pick(states: &[StateName]) -> impl Strategy<Value = Pick> + use<> {
    prop_oneof![
        60 => (select(states.to_vec()), 0u8..8).prop_map(|(state, nth)| Pick::In(state, nth)),
        20 => (0u8..16).prop_map(Pick::Kept),
        2 => (1..=IDS).prop_map(Pick::Number),
    ]
}

fn identity() -> impl Strategy<Value = Identity> {
    prop_oneof![
        20 => Just(Identity::Fresh),
        1 => (0u8..16).prop_map(|number| Identity::Reused(Pick::Kept(number))),
        1 => (1..=IDS).prop_map(|number| Identity::Reused(Pick::Number(number))),
    ]
}

fn edges() -> impl Strategy<Value = Vec<(Pick, OnFailure)>> {
    let policy = select(vec![OnFailure::Cascade, OnFailure::Ignore, OnFailure::Wait]);
    let open = [StateName::Ready, StateName::Running, StateName::Blocked, StateName::Dead];
    let on = prop_oneof![
        80 => pick(&open),
        80 => (0u8..6).prop_map(Pick::Before),
        5 => (0u8..6).prop_map(Pick::Sibling),
    ];
    prop_oneof![2 => Just(Vec::new()), 1 => vec((on, policy), 1..=3)]
}

pub(crate) fn draft() -> impl Strategy<Value = Draft> {
    let scope = select(vec![UniqueScope::Open, UniqueScope::Any]);
    let window = weighted(0.5, select(vec![1, 10, 4_000]));
    let who = (identity(), 0u8..2, 0u8..2, prop_oneof![60 => 0u8..2, 1 => Just(u8::MAX)]);
    let rest = (
        select(vec![0, 0, 0, -10, 10, 20]),
        begin(),
        weighted(0.3, (0u8..2, scope, window)),
        edges(),
        weighted(0.4, 1u32..=3),
        weighted(0.15, select(vec![0, 2, 30, 2_000])),
        weighted(0.5, weighted(0.8, 0u8..4)),
        weighted(0.15, 0u8..3),
    );
    (who, rest).prop_map(|((identity, kind, queue, payload), rest)| {
        let (priority, begin, unique, depends_on, max_attempts, expires_after_s, lane, object) =
            rest;
        Draft {
            identity,
            kind,
            queue,
            payload,
            priority,
            begin,
            unique,
            depends_on,
            max_attempts,
            expires_after_s,
            lane,
            object,
        }
    })
}

pub(crate) fn begin() -> impl Strategy<Value = Begin> {
    let century_and_more = 101 * 366 * 86_400;
    prop_oneof![
        150 => Just(Begin::Now),
        20 => select(vec![0, 1, 5, 60, 5_000]).prop_map(Begin::After),
        19 => select(vec![-100, 0, 1, 30, 7_200]).prop_map(Begin::At),
        1 => Just(Begin::After(century_and_more)),
    ]
}

fn request() -> impl Strategy<Value = Request> {
    let kinds = select(vec![vec![0, 1], vec![0, 1], vec![1, 0], vec![0], vec![1], vec![]]);
    let queues = weighted(0.3, select(vec![vec![0], vec![1], vec![1, 0], vec![0, 0], vec![]]));
    let limit = prop_oneof![1 => Just(0usize), 20 => 1usize..=4];
    let concurrency = weighted(0.3, 0u32..=3);
    let rate = weighted(0.3, (1u32..=3, 1u32..=3));
    let lease = select(vec![30, 5, 1, 0, 100_000]);
    let number = weighted(0.5, 0u8..3);
    (0u8..2, queues, kinds, limit, lease, 1u32..=3, concurrency, rate, number).prop_map(
        |(worker, queues, kinds, limit, lease_s, max_attempts, concurrency, rate, number)| {
            Request {
                worker,
                queues,
                kinds,
                limit,
                lease_s,
                max_attempts,
                concurrency,
                rate,
                number,
            }
        },
    )
}

fn hand() -> impl Strategy<Value = Hand> {
    prop_oneof![
        12 => (0u8..8).prop_map(Hand::Right),
        2 => (0u8..8).prop_map(Hand::Stale),
        1 => (0u8..8, 0u8..16).prop_map(|(lease, job)| Hand::Crossed(lease, Pick::Kept(job))),
        1 => (0u8..16).prop_map(|job| Hand::MadeUp(Pick::Kept(job))),
    ]
}

fn ending() -> impl Strategy<Value = Ending> {
    let output = prop_oneof![6 => 0usize..=PAYLOAD_BYTES, 1 => Just(PAYLOAD_BYTES + 1)];
    let next = prop_oneof![4 => Just(Vec::new()), 1 => vec(draft(), 1..=2)];
    let turn = weighted(0.3, turns::spin());
    (hand(), verdict(), output, said(), next, turn).prop_map(
        |(hand, verdict, output_bytes, said, next, turn)| Ending {
            hand,
            verdict,
            output_bytes,
            said,
            next,
            turn,
        },
    )
}

fn said() -> impl Strategy<Value = Said> {
    let percent = weighted(0.2, select(vec![0, 50, 100, 120]));
    let lines = prop_oneof![4 => Just(0), 1 => 1u8..=2];
    let bytes = prop_oneof![30 => 0usize..=9, 1 => Just(STEP_BYTES), 1 => Just(STEP_BYTES + 1)];
    let step = weighted(0.2, (0u8..=12, bytes));
    (percent, lines, step).prop_map(|(percent, lines, step)| Said { percent, lines, step })
}

fn verdict() -> impl Strategy<Value = Verdict> {
    let bury = vec![
        DeadReason::AttemptsExhausted,
        DeadReason::Permanent,
        DeadReason::DurationExhausted,
        DeadReason::Crashed,
    ];
    prop_oneof![
        5 => Just(Verdict::Complete),
        3 => select(vec![0, 1, 60]).prop_map(|delay| Verdict::Retry(seconds(delay))),
        2 => select(vec![0, 1, 60]).prop_map(|pause| Verdict::Snooze(seconds(pause))),
        2 => Just(Verdict::Release),
        4 => select(bury).prop_map(Verdict::Bury),
        2 => select(vec![CancelReason::Handler, CancelReason::Requested]).prop_map(Verdict::Cancel),
    ]
}

fn recovery() -> impl Strategy<Value = Step> {
    let reason = select(vec![
        RecoveryReason::LeaseExpired,
        RecoveryReason::LeaseExpired,
        RecoveryReason::Manual,
        RecoveryReason::Restart,
    ]);
    (any::<bool>(), reason, 0u32..=3, select(vec![0, 1, 20])).prop_map(
        |(look, reason, max_recoveries, delay_s)| Step::Rescue {
            look,
            reason,
            max_recoveries,
            delay_s,
        },
    )
}

fn queue_change() -> impl Strategy<Value = QueueChange> {
    prop_oneof![
        1 => Just(QueueChange::Pause),
        9 => Just(QueueChange::Resume),
        2 => weighted(0.5, select(vec![8, 4, 2, 0])).prop_map(QueueChange::MaxDepth),
        2 => weighted(0.7, select(vec![1, 10, 300]))
            .prop_map(|step| QueueChange::Ageing(step.map(seconds))),
        4 => weighted(0.8, select(vec![1, 2, 3])).prop_map(|lanes| {
            QueueChange::Lanes(lanes.and_then(NonZeroU32::new))
        }),
        3 => weighted(0.7, select(vec![3, 2, 0])).prop_map(QueueChange::LaneDepth),
        1 => (0u32..3).prop_map(QueueChange::PauseLane),
        2 => (0u32..3).prop_map(QueueChange::ResumeLane),
    ]
}

/// A claim for everything that is ready, on the plainest terms.
pub(crate) fn take_everything() -> Claim {
    Claim {
        worker: WORKERS[0].clone(),
        queues: None,
        kinds: KINDS.iter().cloned().map(KindClaim::new).collect(),
        limit: 100,
        request: None,
    }
}
