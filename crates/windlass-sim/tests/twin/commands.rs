//! Random commands from small pools, so that they meet each other.

use std::sync::Arc;
use std::time::Duration;

use windlass_core::job::{
    CancelReason, DeadReason, Dependency, JobId, LeaseToken, NewJob, OnFailure, Priority, Start,
    Unique, UniqueScope,
};
use windlass_core::ledger::{Claim, KindClaim, QueueChange, Renewal, Settlement};
use windlass_core::limits;
use windlass_core::name::Name;
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
    Claim { worker: worker.into(), queues, kinds, limit: random.between(1, 4) as usize }
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
    match random.below(6) {
        0 => QueueChange::Pause,
        1 | 2 => QueueChange::Resume,
        3 => QueueChange::MaxDepth(random.coin().then(|| random.between(1, 8))),
        _ => QueueChange::Ageing(random.coin().then(|| Duration::from_millis(20))),
    }
}

pub(crate) fn start(random: &mut Random) -> Start {
    if random.coin() { Start::Now } else { Start::After(millis(random)) }
}
