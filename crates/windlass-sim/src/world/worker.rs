//! Workers: they claim, renew and settle as they should; or vanish, settle late, settle twice, and
//! run handlers that take the process down.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use windlass::store::ClaimedJob;
use windlass_core::job::{CancelReason, LeaseToken, NewJob, RequestId};
use windlass_core::ledger::{Claim, KindClaim, Renewal, Settlement};
use windlass_core::name::Name;
use windlass_core::object::RunResult;
use windlass_core::outcome::{self, ErrorText, Outcome, Retryable, Verdict};
use windlass_core::record::{LogLine, Progress, Report, Step};
use windlass_core::refusal::Refusal;
use windlass_core::retry::{Retry, jitter_seed};

use super::{Caller, Turn, World, handed};
use crate::Checked;
use crate::answer::{Answer, Failure, Reply, Request};
use crate::cover::Point;
use crate::profile::Settings;
use crate::random::Random;

/// One worker, and the jobs in its hands.
#[derive(Debug)]
pub(super) struct Worker {
    name: Arc<str>,
    kinds: Vec<Name>,
    queues: Option<Vec<Name>>,
    slots: usize,
    lease: Duration,
    /// It lives in another process, and goes on when the store's process dies.
    remote: bool,
    claiming: bool,
    /// A claim without an answer, to be made again.
    again: Option<Claim>,
    runs: BTreeMap<u64, Run>,
}

/// One job in a worker's hands.
#[derive(Clone, Debug)]
struct Run {
    job: Arc<NewJob>,
    attempt: u32,
    max_attempts: u32,
    renews: bool,
    marathon: bool,
    cancelled: bool,
    /// What was sent and not answered yet.
    settlement: Option<Settlement>,
}

impl Worker {
    pub(super) fn new(number: usize, settings: &Settings, random: &mut Random) -> Self {
        let all: Vec<Name> = settings.rules.kinds.keys().cloned().collect();
        // The first takes everything, so that nothing is left over for ever.
        let picky = number > 0 && random.chance(300);
        let kinds = if picky { vec![random.pick(&all).clone()] } else { all };
        let one_queue = number > 0 && random.chance(300);
        let queues = one_queue.then(|| vec![random.pick(&settings.queues).clone()]);
        Self {
            name: format!("worker{number}").into(),
            kinds,
            queues,
            slots: random.between(1, 8) as usize,
            lease: Duration::from_millis(random.between(1_000, settings.longest_lease)),
            remote: random.chance(400) && settings.processes == 1,
            claiming: false,
            again: None,
            runs: BTreeMap::new(),
        }
    }

    /// From now on it does everything right.
    pub(super) fn heal(&mut self, settings: &Settings) {
        self.kinds = settings.rules.kinds.keys().cloned().collect();
        self.queues = None;
        // Of several processes each is told what became of its claim.
        self.claiming &= settings.processes > 1;
        self.runs.clear();
    }

    pub(super) fn name(&self) -> Arc<str> {
        self.name.clone()
    }

    /// Its process begins anew.
    pub(super) fn begin_as(&mut self, name: Arc<str>) {
        self.name = name;
    }

    /// Its process is gone, and everything with it.
    pub(super) fn is_gone(&mut self) {
        self.claiming = false;
        self.again = None;
        self.runs.clear();
    }

    /// The store's process is gone, and the worker with it if it lived there.
    pub(super) fn process_gone(&mut self) {
        self.claiming = false;
        if !self.remote {
            self.runs.clear();
        }
    }
}

impl World {
    pub(super) fn worker_turn(&mut self, number: usize) -> Checked {
        let period = if self.healing { 600_000 } else { 150_000 };
        self.after_up_to(period, Turn::Worker(number));
        let worker = &mut self.workers[number];
        let free = worker.slots.saturating_sub(worker.runs.len());
        let nobody = self.processes.all.is_empty() && self.machine.is_down();
        if worker.claiming || free == 0 || nobody {
            return Ok(());
        }
        worker.claiming = true;
        if let Some(claim) = worker.again.clone() {
            self.ask(Caller::Claim(number), Request::Claim(claim))?;
            return Ok(());
        }
        let terms = worker.kinds.iter().map(|kind| {
            let rules = self.settings.rules.kinds[kind];
            KindClaim {
                kind: kind.clone(),
                lease: worker.lease,
                max_attempts: rules.max_attempts,
                concurrency: rules.concurrency,
                rate: rules.rate,
            }
        });
        let claim = Claim {
            worker: worker.name.clone(),
            queues: worker.queues.clone(),
            kinds: terms.collect(),
            limit: self.random.between(1, free as u64) as usize,
            request: self.request_id(),
        };
        self.workers[number].again = claim.request.is_some().then(|| claim.clone());
        self.ask(Caller::Claim(number), Request::Claim(claim))?;
        Ok(())
    }

    /// What a claim is made again by, in a world where answers are lost.
    fn request_id(&mut self) -> Option<RequestId> {
        let named = self.is_shared() && self.random.chance(800);
        named.then(|| RequestId(u128::from(self.random.number())))
    }

    pub(super) fn claim_answer(&mut self, number: usize, answer: Answer) -> Checked {
        self.workers[number].claiming = false;
        if !matches!(answer, Err(Failure::Unknown)) {
            self.workers[number].again = None;
        }
        let Some(handed) = handed(answer) else { return Ok(()) };
        let waits = handed.wake_in.is_some_and(|wait| wait < Duration::from_secs(1));
        let rated = self.settings.rules.kinds.values().any(|rules| rules.rate.is_some());
        self.machine.cover.hit_if(Point::RateLimited, rated && waits && handed.jobs.is_empty());
        for job in handed.jobs {
            self.begin(number, job)?;
        }
        Ok(())
    }

    fn begin(&mut self, number: usize, handed: ClaimedJob) -> Checked {
        let token = handed.lease.token.0;
        // Whoever was taken down by the job before begins no other.
        if !self.is_there(number) {
            return Ok(());
        }
        self.machine.oracle.began(&self.workers[number].name, handed.lease.token)?;
        let mix = self.settings.mix;
        let worker = &self.workers[number];
        let lease = worker.lease.as_micros() as u64;
        let bad = !self.healing;
        let poisoned = bad && handed.job.id.to_bytes()[0] as u64 * 4 < mix.poison;
        // Some run long, with much to say.
        let marathon = self.random.chance(mix.chatty / 10);
        let mut micros = self.random.spread(200, 1_500_000) + u64::from(marathon) * 5_000_000;
        let mut renews = true;
        if poisoned && self.random.coin() {
            self.machine.cover.hit(Point::AbortedAtStart);
            self.take_down_with(number);
            return Ok(());
        } else if bad && self.random.chance(mix.vanishing) {
            return Ok(());
        } else if bad && self.random.chance(mix.late) {
            renews = false;
            micros = lease + self.random.spread(1_000, 2_000_000);
        }
        let run = Run {
            job: handed.job,
            attempt: handed.attempt,
            max_attempts: handed.lease.max_attempts,
            renews,
            marathon,
            cancelled: false,
            settlement: None,
        };
        self.workers[number].runs.insert(token, run);
        self.after(micros, Turn::Run(number, token));
        Ok(())
    }

    /// A handler takes its process down.
    fn take_down_with(&mut self, number: usize) {
        if self.is_shared() {
            self.kill_process(self.home(number));
        } else {
            self.machine.kill();
        }
    }

    pub(super) fn renew_turn(&mut self, number: usize) -> Checked {
        let lease = self.workers[number].lease;
        let third = lease.as_micros() as u64 / 3;
        let marathon = self.workers[number].runs.values().any(|run| run.marathon);
        let chatty = marathon || self.random.chance(self.settings.mix.chatty);
        let next = if chatty { 20_000 } else { third };
        self.after(next.max(1), Turn::Renew(number));
        let at = self.machine.clock.now().wall;
        let mut renewals = Vec::new();
        for (token, run) in self.workers[number].runs.iter().filter(|(_, run)| run.renews) {
            let line = LogLine { at, attempt: run.attempt, text: "still at it".to_string() };
            let progress = Progress { percent: 50, note: "half way".to_string() };
            let name = Name::new(&format!("step{token}")).expect("a name");
            // Of an attempt it is always the same: whoever repeats a step repeats its result.
            let step = Step { name, result: vec![7; (*token % 200) as usize].into() };
            let report = Report {
                progress: (chatty && self.random.coin()).then_some(progress),
                lines: if chatty { vec![line] } else { Vec::new() },
                steps: if chatty && token % 3 == 0 { vec![step] } else { Vec::new() },
                lines_dropped: 0,
            };
            let (job, token) = (run.job.id, LeaseToken(*token));
            renewals.push(Renewal { job, token, lease, report });
        }
        let nobody = self.processes.all.is_empty() && self.machine.is_down();
        if !renewals.is_empty() && !nobody {
            let tokens = renewals.iter().map(|renewal| renewal.token.0).collect();
            self.ask(Caller::Renew(number, tokens), Request::Renew(renewals))?;
        }
        Ok(())
    }

    pub(super) fn renew_answer(&mut self, number: usize, tokens: &[u64], answer: Answer) {
        let Ok(Reply::Renewed(answers)) = answer else { return };
        for (token, answer) in tokens.iter().zip(answers) {
            if let Some(run) = self.workers[number].runs.get_mut(token) {
                run.cancelled |= answer.is_ok_and(|renewed| renewed.cancel_requested);
            }
        }
    }

    /// A handler ends.
    pub(super) fn run_turn(&mut self, number: usize, token: u64) -> Checked {
        let Some(run) = self.workers[number].runs.get(&token).cloned() else { return Ok(()) };
        let poisoned =
            run.job.id.to_bytes()[0] as u64 * 4 < self.settings.mix.poison && !self.healing;
        if poisoned && run.settlement.is_none() && !self.workers[number].remote {
            self.take_down_with(number);
            return Ok(());
        }
        let settlement = match run.settlement.clone() {
            Some(settlement) => settlement,
            None => self.settlement(&run, token),
        };
        if let Some(run) = self.workers[number].runs.get_mut(&token) {
            run.settlement = Some(settlement.clone());
        }
        self.ask(Caller::Settle(number, token), Request::Settle(vec![settlement]))?;
        Ok(())
    }

    fn settlement(&mut self, run: &Run, token: u64) -> Settlement {
        let outcome = self.outcome(run);
        let retry = run.job.retry.clone().unwrap_or_else(Retry::aggressive);
        let progress = outcome::RunCounts {
            attempt: run.attempt,
            max_attempts: run.max_attempts,
            since_first_start: Duration::ZERO,
            retry: &retry,
        };
        let verdict = outcome::decide(&outcome, progress, jitter_seed(run.job.id, run.attempt));
        let mut settlement = Settlement::new(run.job.id, LeaseToken(token), verdict);
        match verdict {
            Verdict::Complete => {
                settlement.output = self.random.coin().then(|| vec![7; 40].into());
                if !self.healing && self.random.chance(self.settings.mix.continuing) {
                    let mut next = self.new_job();
                    next.parent = Some(run.job.id);
                    if self.random.coin() {
                        (next.queue, next.kind) = (run.job.queue.clone(), run.job.kind.clone());
                        next.unique.clone_from(&run.job.unique);
                    }
                    settlement.next.push(Arc::new(next));
                }
            }
            Verdict::Retry(_) | Verdict::Bury(_) => {
                settlement.error = Some(ErrorText::new("it did not work out"));
            }
            Verdict::Snooze(_) | Verdict::Release | Verdict::Cancel(_) => {}
        }
        if let Some(object) = run.job.object.as_ref().filter(|_| !self.healing) {
            let ran = if verdict == Verdict::Complete { RunResult::Well } else { RunResult::Badly };
            settlement.turn = Some(Box::new(self.worker_spin(object, ran)));
        }
        if self.random.chance(self.settings.mix.chatty) {
            let at = self.machine.clock.now().wall;
            let line = LogLine { at, attempt: run.attempt, text: "the end".to_string() };
            settlement.report.lines.push(line);
        }
        settlement
    }

    fn outcome(&mut self, run: &Run) -> Outcome {
        if self.healing {
            return Outcome::Completed;
        }
        if run.cancelled {
            return Outcome::Cancelled(CancelReason::Requested);
        }
        if !self.random.chance(self.settings.mix.failing) {
            return Outcome::Completed;
        }
        match self.random.below(12) {
            0 => Outcome::Failed(Retryable::Never),
            1 => Outcome::Failed(Retryable::After(self.millis(1, 3_000))),
            2 => Outcome::Snoozed(self.millis(1, 3_000)),
            3 => Outcome::Interrupted,
            4 => Outcome::Cancelled(CancelReason::Handler),
            _ => Outcome::Failed(Retryable::ByPolicy),
        }
    }

    pub(super) fn settle_answer(&mut self, number: usize, token: u64, answer: Answer) -> Checked {
        let unknown = matches!(answer, Err(Failure::Unknown));
        let full = self.chaos.limited && unknown && !self.machine.is_down();
        self.machine.cover.hit_if(Point::FullUnknown, full);
        let Some(run) = self.workers[number].runs.get_mut(&token) else { return Ok(()) };
        let again = match answer {
            Err(Failure::Unknown) => true,
            Ok(Reply::Settled(answers)) => match answers.first() {
                Some(Ok(_)) => {
                    if let Some(turn) = run.settlement.as_ref().and_then(|s| s.turn.as_ref()) {
                        self.versions.insert(turn.object.clone(), turn.version + 1);
                    }
                    self.random.chance(30)
                }
                Some(Err(Refusal::ObjectChanged { object, version })) => {
                    self.versions.insert(object.clone(), *version);
                    if let Some(settlement) = &mut run.settlement {
                        let turn = settlement.turn.take().filter(|_| *version > 0);
                        settlement.turn = turn.map(|turn| {
                            Box::new(windlass_core::object::Turn { version: *version, ..*turn })
                        });
                    }
                    true
                }
                Some(Err(Refusal::LeaseLost { .. })) | None => false,
                Some(Err(_)) => {
                    // What it continues with is refused; it ends without.
                    if let Some(settlement) = &mut run.settlement {
                        settlement.next.clear();
                        settlement.turn = None;
                    }
                    true
                }
            },
            Ok(_) | Err(Failure::Refused(_)) => self.random.chance(800),
        };
        if again {
            let micros = self.random.spread(1_000, 1_500_000);
            self.after(micros, Turn::Run(number, token));
        } else {
            self.workers[number].runs.remove(&token);
        }
        Ok(())
    }
}
