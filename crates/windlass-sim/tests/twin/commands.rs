//! Random commands from small pools, so that they meet each other.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use windlass_core::audit::Actor;
use windlass_core::job::{
    CancelReason, DeadReason, Dependency, JobId, Lane, LeaseToken, NewJob, OnFailure, Priority,
    Start, Unique, UniqueScope,
};
use windlass_core::ledger::{Claim, KindClaim, QueueChange, Renewal, Settlement};
use windlass_core::limits;
use windlass_core::name::Name;
use windlass_core::object::{Address, Alarm, ObjectEvent, ObjectStatus, Purge, RunResult, Turn};
use windlass_core::outcome::{ErrorText, Verdict};
use windlass_core::rate::Rate;
use windlass_core::record::{LogLine, Progress, Report, Step};
use windlass_core::time::Timestamp;
use windlass_sim::Random;

pub(crate) const IDS: u64 = 16;

pub(crate) fn name(text: &str) -> Name {
    Name::new(text).expect("a valid name")
}

pub(crate) fn id_of(number: u64) -> JobId {
    JobId::from_u128(u128::from(number) * 0x1234_5678_9abc_def1)
}

pub(crate) fn id(random: &mut Random) -> JobId {
    id_of(random.between(1, IDS))
}

pub(crate) fn ids(random: &mut Random) -> Vec<JobId> {
    (0..random.between(1, 4)).map(|_| id(random)).collect()
}

pub(crate) fn queue(random: &mut Random) -> Name {
    name(if random.coin() { "red" } else { "green" })
}

fn kind(random: &mut Random) -> Name {
    name(if random.coin() { "mail" } else { "report" })
}

fn millis(random: &mut Random) -> Duration {
    Duration::from_millis(random.spread(1, 4_000))
}

pub(crate) fn job(random: &mut Random, now: Timestamp) -> NewJob {
    // The same id often means the same job, so that a repeated call is recognised.
    let id = id(random);
    let fixed = id.to_bytes()[15];
    let mut job = NewJob::new(id, kind(random), queue(random), vec![fixed; usize::from(fixed)]);
    if random.chance(700) {
        (job.kind, job.queue) = (name("mail"), name("red"));
    }
    job.priority = Priority(random.below(3) as i32);
    job.start = match random.below(5) {
        0 => Start::After(millis(random)),
        1 => Start::At(now + millis(random)),
        _ => Start::Now,
    };
    if random.chance(300) {
        job.unique = Some(Unique {
            key: format!("key{}", random.below(3)),
            scope: if random.coin() { UniqueScope::Open } else { UniqueScope::Any },
            window: random.coin().then(|| millis(random)),
        });
    }
    for _ in 0..random.below(3) {
        let policies = [OnFailure::Cascade, OnFailure::Ignore, OnFailure::Wait];
        let on_failure = *random.pick(&policies);
        job.depends_on.push(Dependency { on: self::id(random), on_failure });
    }
    job.max_attempts = random.chance(300).then(|| random.between(1, 4) as u32);
    job.expires_after = random.chance(150).then(|| millis(random));
    if random.chance(100) {
        job.payload = vec![7; 6_000].into();
    }
    if random.chance(400) {
        let key = Lane::Key(format!("customer{}", random.below(4)));
        job.lane = Some(if random.chance(800) { key } else { Lane::Spread });
    }
    job.object = random.chance(150).then(|| address(random));
    job
}

/// One of a few objects.
pub(crate) fn address(random: &mut Random) -> Address {
    let addresses = addresses();
    random.pick(&addresses).clone()
}

pub(crate) fn addresses() -> Vec<Address> {
    let loops = ["one", "two", "three"].into_iter().map(|key| ("continuous", key));
    let all = loops.chain([("debounce", "one")]);
    all.map(|(kind, key)| Address::new(name(kind), name("tokens"), key).expect("a valid key"))
        .collect()
}

/// A turn of an object that is at this version.
pub(crate) fn turn(random: &mut Random, object: Address, version: u64, now: Timestamp) -> Turn {
    let made_for = if random.chance(900) { version } else { random.below(6) };
    let mut turn = Turn::new(object, made_for);
    if random.chance(600) {
        let bytes = random.spread(1, 5_000) as usize;
        turn.state = Some(vec![random.below(250) as u8; bytes].into());
    }
    if random.chance(250) {
        let all = [ObjectStatus::Active, ObjectStatus::Stopped, ObjectStatus::Failed];
        let reason = random.coin().then(|| ErrorText::new("someone said so"));
        turn.status = Some((*random.pick(&all), reason));
    }
    turn.ran = *random.pick(&[None, Some(RunResult::Well), Some(RunResult::Badly)]);
    turn.alarm = match random.below(8) {
        0 => Alarm::Cancel,
        1..=4 => Alarm::Set(Arc::new(alarm(random, &turn.object, now))),
        _ => Alarm::Keep,
    };
    if random.chance(300) {
        turn.jobs = jobs(random, now);
    }
    for job in turn.jobs.iter_mut().filter(|_| random.chance(700)) {
        Arc::make_mut(job).object = Some(turn.object.clone());
    }
    if random.chance(200) {
        let detail = "{\"why\":\"it was time\"}".to_string();
        turn.news.push(ObjectEvent { topic: name("tokens.told"), detail });
    }
    turn.purge = match random.below(16) {
        0 => Purge::Now,
        1 | 2 => Purge::After(millis(random)),
        3 => Purge::Never,
        _ => Purge::Keep,
    };
    turn
}

/// An alarm of an object: mostly like the one before but for the time, so that it is moved.
fn alarm(random: &mut Random, object: &Address, now: Timestamp) -> NewJob {
    let mut job = job(random, now);
    if random.chance(800) {
        let plain = NewJob::new(job.id, name("mail"), name("red"), Vec::new());
        job = NewJob { start: job.start, ..plain };
    }
    job.object = random.chance(900).then(|| object.clone()).or(job.object);
    job
}

pub(crate) fn jobs(random: &mut Random, now: Timestamp) -> Vec<Arc<NewJob>> {
    (0..random.between(1, 4)).map(|_| Arc::new(job(random, now))).collect()
}

pub(crate) fn claim(random: &mut Random) -> Claim {
    let terms = ["mail", "report"].into_iter().filter(|_| random.chance(850)).map(|kind| {
        let rate = Rate::per_second(3).burst(4);
        let plain = KindClaim::new(name(kind));
        KindClaim { lease: Duration::from_secs(2), rate: Some(rate), ..plain }
    });
    let mut kinds: Vec<KindClaim> = terms.collect();
    for terms in &mut kinds {
        terms.concurrency = random.chance(300).then(|| random.between(1, 3) as u32);
        terms.rate = terms.rate.filter(|_| random.chance(300));
    }
    let worker = if random.coin() { "one" } else { "two" };
    let queues = random.chance(200).then(|| vec![queue(random)]);
    Claim {
        worker: worker.into(),
        queues,
        kinds,
        limit: random.between(1, 4) as usize,
        request: None,
    }
}

fn report(random: &mut Random, at: Timestamp) -> Report {
    let progress = Progress { percent: random.below(100) as u8, note: "so far".to_string() };
    let line = LogLine { at, attempt: 1, text: "a line".to_string() };
    // Few names, so that a step is reported again; long results, so that bounds are met.
    let step = Step {
        name: name(&format!("step{}", random.below(12))),
        result: vec![7; random.spread(1, limits::STEP_BYTES as u64 + 9) as usize].into(),
    };
    Report {
        progress: random.coin().then_some(progress),
        lines: if random.coin() { vec![line] } else { Vec::new() },
        steps: if random.chance(300) { vec![step] } else { Vec::new() },
        lines_dropped: 0,
    }
}

/// A lease that is or was held: the job and the token.
pub(crate) type Held = (JobId, LeaseToken);

pub(crate) fn renewal(random: &mut Random, (job, token): Held, at: Timestamp) -> Renewal {
    let report = if random.coin() { report(random, at) } else { Report::default() };
    Renewal { job, token, lease: millis(random), report }
}

pub(crate) fn settlement(random: &mut Random, (job, token): Held, now: Timestamp) -> Settlement {
    let verdict = match random.below(8) {
        0 => Verdict::Retry(millis(random)),
        1 => Verdict::Snooze(millis(random)),
        2 => Verdict::Release,
        3 => Verdict::Bury(*random.pick(&[DeadReason::Permanent, DeadReason::AttemptsExhausted])),
        4 => Verdict::Cancel(CancelReason::Handler),
        _ => Verdict::Complete,
    };
    let mut settlement = Settlement::new(job, token, verdict);
    settlement.output = random.coin().then(|| vec![5; 60].into());
    settlement.error = random.coin().then(|| ErrorText::new("it went wrong"));
    settlement.report = if random.coin() { report(random, now) } else { Report::default() };
    if random.chance(200) {
        settlement.next.push(Arc::new(self::job(random, now)));
    }
    settlement
}

pub(crate) fn change(random: &mut Random) -> QueueChange {
    let lane = random.below(4) as u32;
    match random.below(12) {
        6 | 7 => QueueChange::Lanes(NonZeroU32::new(lane)),
        8 => QueueChange::PauseLane(lane),
        9 => QueueChange::ResumeLane(lane),
        10 => QueueChange::LaneDepth(random.coin().then(|| random.between(1, 4))),
        11 if random.coin() => QueueChange::OnDead(random.coin().then(|| name("report"))),
        11 => QueueChange::OnEmpty(random.coin().then(|| name("mail"))),
        0 => QueueChange::Pause,
        1 | 2 => QueueChange::Resume,
        3 => QueueChange::MaxDepth(random.coin().then(|| random.between(1, 8))),
        _ => QueueChange::Ageing(random.coin().then(|| Duration::from_millis(20))),
    }
}

pub(crate) fn start(random: &mut Random) -> Start {
    if random.coin() { Start::Now } else { Start::After(millis(random)) }
}

/// Somebody who acts, or nobody.
pub(crate) fn actor(random: &mut Random) -> Option<Actor> {
    random.coin().then(|| Actor::new("anna").expect("a name"))
}
