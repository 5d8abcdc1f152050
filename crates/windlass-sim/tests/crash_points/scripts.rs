//! What is played: the life of jobs, dependencies and keys, lanes, the life of objects, compaction
//! and retention.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use windlass::store::ClaimedJob;
use windlass_core::job::{
    CancelReason, DeadReason, Dependency, Lane, LeaseToken, NewJob, OnFailure, Start, Unique,
    UniqueScope,
};
use windlass_core::ledger::{QueueChange, Renewal, Settlement};
use windlass_core::limits::Limits;
use windlass_core::object::{Address, Alarm, Purge, RunResult, Turn};
use windlass_core::outcome::{ErrorText, Verdict};
use windlass_core::record::{LogLine, Progress, Report, Step};
use windlass_sim::{Checked, Request};

use crate::player::{Player, Script, id, job, name, options};

/// Jobs are accepted, run, fail, are tried again, snoozed, given back, lost and called off.
pub(crate) const LIFE: Script =
    Script { options: || options(Limits::default(), 16 << 10), play: life };

fn life(player: &mut Player) -> Checked {
    for round in 0..4 * player.scale {
        life_round(player, round * 100)?;
    }
    Ok(())
}

fn life_round(player: &mut Player, base: u64) -> Checked {
    player.enqueue([job(base + 1, "mail", "slow")])?;
    player.enqueue((2..6).map(|number| job(base + number, "report", "slow")))?;
    player.work(2)?;
    let later = NewJob { start: Start::After(SECOND), ..job(base + 6, "mail", "fast") };
    player.enqueue([later, job(base + 7, "mail", "fast")])?;
    let first = player.claim("one", 3)?;
    player.land()?;
    for job in first.iter().take(1) {
        player.ask(Request::Renew(vec![report(job)]))?;
    }
    for (number, job) in first.iter().enumerate() {
        let verdict = if number == 1 { RETRY } else { Verdict::Complete };
        player.settle_all([settlement(job, verdict)])?;
        player.work(1)?;
    }
    player.land()?;
    player.reopen()?;
    player.advance(600);
    let second = player.claim("two", 4)?;
    let verdicts =
        [Verdict::Snooze(SECOND), Verdict::Release, Verdict::Bury(DeadReason::Permanent), RETRY];
    player
        .settle_all(second.iter().zip(verdicts).map(|(job, verdict)| settlement(job, verdict)))?;
    player.land()?;
    // One more start, a worker that is lost, and its late answer.
    let third = player.claim("three", 5)?;
    player.ask(Request::Cancel(third.iter().map(|job| job.job.id).take(1).collect()))?;
    player.land()?;
    player.advance(2_500);
    player.rescue()?;
    player.land()?;
    for job in &third {
        player.settle(job, Verdict::Complete)?;
    }
    player.land()?;
    player.advance(2_000);
    for job in player.claim("four", 2)? {
        player.settle(&job, Verdict::Cancel(CancelReason::Handler))?;
    }
    player.ask(Request::Replay((1..8).map(|number| id(base + number)).collect()))?;
    player.land()
}

/// Chains, diamonds, cascades, all three policies, unique keys, replays and replacements.
pub(crate) const GRAPH: Script =
    Script { options: || options(Limits::default(), 8 << 10), play: graph };

fn graph(player: &mut Player) -> Checked {
    for round in 0..4 * player.scale {
        graph_round(player, round * 100)?;
    }
    Ok(())
}

fn graph_round(player: &mut Player, base: u64) -> Checked {
    let after = |number: u64, on: &[u64], on_failure: OnFailure| NewJob {
        depends_on: on.iter().map(|on| Dependency { on: id(base + on), on_failure }).collect(),
        ..job(base + number, "mail", "graph")
    };
    let keyed = |number: u64, scope: UniqueScope| NewJob {
        unique: Some(Unique { key: format!("key{base}"), scope, window: None }),
        ..job(base + number, "report", "keys")
    };
    // A diamond, a chain behind it, and one of each policy, the dependents first.
    player.enqueue([
        after(4, &[2, 3], OnFailure::Cascade),
        after(5, &[4], OnFailure::Cascade),
        after(2, &[1], OnFailure::Cascade),
        after(3, &[1], OnFailure::Ignore),
        after(6, &[2], OnFailure::Wait),
        job(base + 1, "mail", "graph"),
    ])?;
    player.work(2)?;
    player.enqueue([keyed(10, UniqueScope::Open)])?;
    player.enqueue([keyed(11, UniqueScope::Open)])?;
    player.land()?;
    for job in player.claim("one", 2)? {
        let mut settled = settlement(&job, Verdict::Complete);
        if job.job.unique.is_some() {
            settled.next.push(keyed(12, UniqueScope::Any).into());
        }
        player.settle_all([settled])?;
    }
    player.land()?;
    for job in player.claim("two", 3)? {
        player.settle(&job, Verdict::Bury(DeadReason::Permanent))?;
        player.work(3)?;
    }
    player.land()?;
    player.reopen()?;
    player.ask(Request::Replay((1..7).map(|number| id(base + number)).collect()))?;
    player.work(1)?;
    player.ask(Request::ReplayEdited(id(base + 12), Box::new(keyed(13, UniqueScope::Any))))?;
    player.enqueue([keyed(14, UniqueScope::Open)])?;
    player.land()?;
    let third = player.claim("three", 2)?;
    player.ask(Request::Cancel(vec![id(base + 2), id(base + 4)]))?;
    player.land()?;
    for job in &third {
        player.settle(job, Verdict::Bury(DeadReason::Permanent))?;
    }
    player.ask(Request::Remove(vec![id(base + 1), id(base + 2)]))?;
    let expiring = NewJob { expires_after: Some(SECOND), ..after(20, &[6], OnFailure::Ignore) };
    player.enqueue([expiring])?;
    player.land()?;
    player.advance(1_500);
    player.ask(Request::Promote)?;
    player.ask(Request::Clear(name("graph")))?;
    player.land()
}

/// Jobs of few keys in lanes, whose number changes while they wait, run and are tried again.
pub(crate) const LANES: Script =
    Script { options: || options(Limits::default(), 8 << 10), play: lanes };

fn lanes(player: &mut Player) -> Checked {
    for round in 0..3 * player.scale {
        let base = round * 100;
        let keyed = |number: u64| NewJob {
            lane: Some(Lane::Key(format!("customer{}", number % 3))),
            ..job(base + number, "mail", "pool")
        };
        player.configure("pool", QueueChange::Lanes(NonZeroU32::new(2)))?;
        player.enqueue((1..5).map(keyed))?;
        player.work(2)?;
        player.enqueue((5..8).map(keyed))?;
        let first = player.claim("one", 4)?;
        player.land()?;
        for (number, job) in first.iter().enumerate() {
            let verdict = if number == 0 { RETRY } else { Verdict::Complete };
            player.settle_all([settlement(job, verdict)])?;
            player.work(1)?;
        }
        player.configure("pool", QueueChange::Lanes(NonZeroU32::new(3 + round as u32)))?;
        let second = player.claim("two", 4)?;
        player.land()?;
        player.reopen()?;
        for job in &second {
            player.settle(job, Verdict::Complete)?;
        }
        player.advance(400);
        for job in player.claim("three", 4)? {
            player.settle_all([settlement(&job, Verdict::Complete)])?;
        }
        player.configure("pool", QueueChange::Lanes(None))?;
        player.land()?;
    }
    Ok(())
}

/// Objects start, tick, fail, are changed while they run, lose a worker and are purged.
pub(crate) const OBJECTS: Script =
    Script { options: || options(Limits::default(), 8 << 10), play: objects };

fn objects(player: &mut Player) -> Checked {
    for round in 0..2 * player.scale {
        objects_round(player, round * 100, "first")?;
        objects_round(player, round * 100 + 50, "second")?;
    }
    Ok(())
}

fn objects_round(player: &mut Player, base: u64, key: &str) -> Checked {
    let object = Address::new(name("loop"), name("tokens"), key).expect("a valid key");
    let alarm = |number: u64, start: Start| {
        let plain = NewJob { payload: Vec::new().into(), ..job(base + number, "mail", "loops") };
        let lane = Some(Lane::Key(key.to_string()));
        Alarm::Set(Arc::new(NewJob { start, lane, object: Some(object.clone()), ..plain }))
    };
    let state = |turn: Turn, byte: u8| Turn { state: Some(vec![byte; 60].into()), ..turn };
    // It starts, and its alarm is moved to now.
    let start = state(player.turn(&object), 1);
    player.make(Turn { alarm: alarm(1, Start::After(SECOND)), ..start })?;
    player.make(Turn { alarm: alarm(2, Start::Now), ..player.turn(&object) })?;
    // It ticks: outcome, state, count and next alarm are one commit.
    for ticking in player.claim("one", 1)? {
        let tick = Turn { ran: Some(RunResult::Well), ..state(player.turn(&object), 2) };
        let tick = Turn { alarm: alarm(3, Start::Now), ..tick };
        player.settle_with(settlement(&ticking, Verdict::Complete), tick)?;
    }
    // A turn that fails leaves the state as it was.
    for failing in player.claim("two", 1)? {
        let failed = Turn { ran: Some(RunResult::Badly), ..player.turn(&object) };
        player.settle_with(settlement(&failing, RETRY), failed)?;
    }
    player.reopen()?;
    player.advance(300);
    // Someone changes it while it runs, so its own turn has to be made again.
    for running in player.claim("three", 1)? {
        let tick = Turn { ran: Some(RunResult::Well), ..state(player.turn(&object), 4) };
        let tick = Turn { alarm: alarm(5, Start::Now), ..tick };
        player.ask(Request::Turn(Box::new(state(player.turn(&object), 3))))?;
        player.work(2)?;
        player.settle_with(settlement(&running, Verdict::Complete), tick)?;
    }
    // Its worker is lost.
    player.claim("four", 1)?;
    player.land()?;
    player.advance(2_500);
    player.rescue()?;
    player.land()?;
    player.make(state(player.turn(&object), 5))?;
    let jobs = vec![Arc::new(NewJob {
        start: Start::After(SECOND),
        object: Some(object.clone()),
        ..job(base + 6, "report", "loops")
    })];
    player.make(Turn { jobs, ..player.turn(&object) })?;
    // It goes with all that waits of it, at once or by itself.
    let purge = if base.is_multiple_of(100) { Purge::Now } else { Purge::After(SECOND) };
    player.make(Turn { purge, ..player.turn(&object) })?;
    player.advance(1_500);
    player.ask(Request::Promote)?;
    player.land()
}

/// Small segments that are cleared, let go and used again; settings; bounds on what is kept.
pub(crate) const COMPACTION: Script = Script { options: tight, play: compaction };

fn tight() -> windlass::store::file::LedgerOptions {
    let limits = Limits { dead_letters: 2, history_jobs: 6, ..Limits::default() };
    options(limits, 4 << 10)
}

fn compaction(player: &mut Player) -> Checked {
    for round in 0..3 * player.scale {
        player.configure("small", QueueChange::MaxDepth(Some(30 + round)))?;
        player.configure("large", QueueChange::Ageing(Some(Duration::from_millis(50))))?;
        let base = round * 100;
        let many = (1..9).map(|number| job(base + number, "mail", "small"));
        player.enqueue(many)?;
        player.work(2)?;
        // Larger than a segment.
        let payload = vec![round as u8; 5_000].into();
        player.enqueue([NewJob { payload, ..job(base + 50, "report", "large") }])?;
        player.land()?;
        let pause = if round.is_multiple_of(2) { QueueChange::Pause } else { QueueChange::Resume };
        player.configure("large", pause)?;
        for pass in 0..3 {
            let jobs = player.claim("worker", 4)?;
            for (number, job) in jobs.iter().enumerate() {
                let verdict = match (number + pass) % 4 {
                    0 => Verdict::Retry(Duration::ZERO),
                    1 => Verdict::Bury(DeadReason::Permanent),
                    _ => Verdict::Complete,
                };
                player.settle_all([settlement(job, verdict)])?;
                player.work(3)?;
            }
            player.land()?;
            player.advance(50);
        }
        if round == 1 {
            player.reopen()?;
        }
    }
    Ok(())
}

const SECOND: Duration = Duration::from_secs(1);
const RETRY: Verdict = Verdict::Retry(Duration::from_millis(200));

fn settlement(job: &ClaimedJob, verdict: Verdict) -> Settlement {
    let mut settlement = Settlement::new(job.job.id, job.lease.token, verdict);
    settlement.output = (verdict == Verdict::Complete).then(|| vec![9; 30].into());
    settlement.error = (verdict != Verdict::Complete).then(|| ErrorText::new("not this time"));
    settlement
}

fn report(job: &ClaimedJob) -> Renewal {
    let LeaseToken(token) = job.lease.token;
    let line = LogLine { at: job.created_at, attempt: job.attempt, text: format!("as {token}") };
    let step = Step { name: name(&format!("step{token}")), result: vec![7; 20].into() };
    let progress = Some(Progress { percent: 40, note: "on the way".to_string() });
    Renewal {
        job: job.job.id,
        token: job.lease.token,
        lease: Duration::from_secs(2),
        report: Report { progress, lines: vec![line], steps: vec![step], lines_dropped: 3 },
    }
}
