//! Plays a script on a machine until it goes down, and finishes all work afterwards.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use windlass::store::ClaimedJob;
use windlass::store::file::LedgerOptions;
use windlass_core::event::RecoveryReason;
use windlass_core::job::{JobId, NewJob};
use windlass_core::ledger::{
    Claim, KindClaim, QueueChange, Recovery, RecoveryMode, Rescue, Settlement,
};
use windlass_core::limits::Limits;
use windlass_core::name::Name;
use windlass_core::object::{Address, ObjectEvent, Turn};
use windlass_core::outcome::Verdict;
use windlass_core::refusal::Refusal;
use windlass_sim::{
    Checked, Failure, KindRules, Machine, Random, Reply, Request, Rules, Trace, Violation, Worked,
};

/// A fixed run.
#[derive(Clone, Copy)]
pub(crate) struct Script {
    pub(crate) options: fn() -> LedgerOptions,
    pub(crate) play: fn(&mut Player) -> Checked,
}

/// Who plays it.
pub(crate) struct Player {
    pub(crate) machine: Machine,
    pub(crate) scale: u64,
    kinds: Vec<Name>,
    /// The version of each object, as last answered.
    versions: BTreeMap<Address, u64>,
}

pub(crate) fn name(text: &str) -> Name {
    Name::new(text).expect("a valid name")
}

pub(crate) fn id(number: u64) -> JobId {
    // Spread, so that the order of ids is not that of acceptance.
    let mixed = Random::new(number).number();
    JobId::from_u128(u128::from(mixed) << 64 | u128::from(number))
}

pub(crate) fn job(number: u64, kind: &str, queue: &str) -> NewJob {
    NewJob::new(id(number), name(kind), name(queue), vec![number as u8; 20])
}

pub(crate) const RECOVERY: Recovery =
    Recovery { mode: RecoveryMode::Act, max_recoveries: 2, delay: Duration::from_millis(100) };

pub(crate) fn options(limits: Limits, segment_bytes: u32) -> LedgerOptions {
    let checkpoint_bytes = Some(8_000);
    let segment_bytes = Some(segment_bytes);
    LedgerOptions {
        limits,
        recovery: RECOVERY,
        segment_bytes,
        thorough: false,
        checkpoint_bytes,
        ..LedgerOptions::default()
    }
}

impl Player {
    pub(crate) fn new(script: Script, scale: u64, seed: u64) -> Self {
        let options = (script.options)();
        let kinds = vec![name("mail"), name("report")];
        let terms = KindRules { max_attempts: 3, concurrency: None, rate: None };
        let rules = Rules {
            limits: options.limits.clone(),
            recovery: RECOVERY,
            kinds: kinds.iter().map(|kind| (kind.clone(), terms)).collect(),
        };
        let machine = Machine::off(options, rules, Random::new(seed), Trace::none());
        Self { machine, scale, kinds, versions: BTreeMap::new() }
    }

    /// Makes a call. Its answer comes when it has landed.
    pub(crate) fn ask(&mut self, request: Request) -> Checked {
        self.machine.submit(request).map(|_| ())
    }

    pub(crate) fn enqueue(&mut self, jobs: impl IntoIterator<Item = NewJob>) -> Checked {
        self.ask(Request::Enqueue(jobs.into_iter().map(Arc::new).collect()))
    }

    pub(crate) fn configure(&mut self, queue: &str, change: QueueChange) -> Checked {
        self.ask(Request::Configure(name(queue), change))
    }

    /// Lets the writer do what there is to do.
    pub(crate) fn land(&mut self) -> Checked {
        self.machine.work_to_rest()?;
        if self.machine.begin_spare() {
            self.machine.finish_spare();
        }
        Ok(())
    }

    /// Lets the writer do this many steps only, so that the next calls find a commit in the air.
    pub(crate) fn work(&mut self, steps: usize) -> Checked {
        for _ in 0..steps {
            if self.machine.work(500)? == Worked::Died {
                break;
            }
        }
        Ok(())
    }

    pub(crate) fn advance(&mut self, millis: u64) {
        self.machine.clock.advance(Duration::from_millis(millis));
    }

    /// Claims jobs; none if the machine has gone down.
    pub(crate) fn claim(&mut self, worker: &str, limit: usize) -> Checked<Vec<ClaimedJob>> {
        let terms = |kind: &Name| {
            let lease = Duration::from_secs(2);
            KindClaim { lease, max_attempts: 3, ..KindClaim::new(kind.clone()) }
        };
        let claim = Claim {
            worker: worker.into(),
            queues: None,
            kinds: self.kinds.iter().map(terms).collect(),
            limit,
            request: None,
        };
        let ticket = self.machine.submit(Request::Claim(claim))?;
        while let Some((answered, answer)) = self.machine.next_answer() {
            if answered == ticket
                && let Ok(Reply::ClaimedBatch(handed)) = answer
            {
                return Ok(handed.jobs);
            }
        }
        Ok(Vec::new())
    }

    pub(crate) fn settle(&mut self, job: &ClaimedJob, verdict: Verdict) -> Checked {
        self.settle_all([Settlement::new(job.job.id, job.lease.token, verdict)])
    }

    pub(crate) fn settle_all(&mut self, all: impl IntoIterator<Item = Settlement>) -> Checked {
        self.ask(Request::Settle(all.into_iter().collect()))
    }

    /// A turn of this object, for the version that was last answered.
    pub(crate) fn turn(&self, object: &Address) -> Turn {
        let version = self.versions.get(object).copied().unwrap_or(0);
        let mut turn = Turn::new(object.clone(), version);
        // So that every turn is told of, and a crash leaves no doubt whether it counts.
        turn.news.push(ObjectEvent { topic: name("loop.turned"), detail: "{}".to_string() });
        turn
    }

    /// Makes a turn and waits for its answer.
    pub(crate) fn make(&mut self, turn: Turn) -> Checked {
        let object = turn.object.clone();
        let ticket = self.machine.submit(Request::Turn(Box::new(turn)))?;
        self.land()?;
        while let Some((answered, answer)) = self.machine.next_answer() {
            let version = match answer {
                Ok(Reply::Turned(turned)) => turned.version,
                Err(Failure::Refused(Refusal::ObjectChanged { version, .. })) => version,
                Ok(_) | Err(_) => continue,
            };
            if answered == ticket {
                self.versions.insert(object.clone(), version);
            }
        }
        Ok(())
    }

    /// Settles a job with a turn; refused, it is done again for the version there is.
    pub(crate) fn settle_with(&mut self, settlement: Settlement, turn: Turn) -> Checked {
        let object = turn.object.clone();
        let mut settlement = Settlement { turn: Some(Box::new(turn)), ..settlement };
        for _ in 0..2 {
            let ticket = self.machine.submit(Request::Settle(vec![settlement.clone()]))?;
            self.land()?;
            let Some(turn) = settlement.turn.as_mut() else { return Ok(()) };
            while let Some((answered, answer)) = self.machine.next_answer() {
                let Ok(Reply::Settled(answers)) = answer else { continue };
                if answered != ticket {
                    continue;
                }
                match answers.first() {
                    Some(Ok(_)) => {
                        self.versions.insert(object.clone(), turn.version + 1);
                        return Ok(());
                    }
                    Some(Err(Refusal::ObjectChanged { version, .. })) => turn.version = *version,
                    Some(Err(_)) | None => return Ok(()),
                }
            }
        }
        Ok(())
    }

    pub(crate) fn rescue(&mut self) -> Checked {
        let rescue = Rescue { recovery: RECOVERY, reason: RecoveryReason::LeaseExpired };
        self.ask(Request::Rescue(rescue))
    }

    /// Closes the store and opens it again, unless the machine has gone down.
    pub(crate) fn reopen(&mut self) -> Checked {
        self.land()?;
        if self.machine.is_down() {
            return Ok(());
        }
        self.machine.close()?;
        if !self.machine.disk.is_dead() {
            self.machine.open()?;
        }
        Ok(())
    }

    /// Nothing goes wrong any more: all that can end ends, and everything is what was told.
    pub(crate) fn finish(&mut self) -> Checked {
        for queue in self.machine.oracle.paused_queues() {
            self.ask(Request::Configure(queue, QueueChange::Resume))?;
        }
        let mut held: BTreeMap<JobId, ClaimedJob> = BTreeMap::new();
        for _ in 0..200 {
            self.land()?;
            let open = self.machine.oracle.open_jobs();
            if open.is_empty() {
                self.machine.inspect()?;
                self.machine.close()?;
                return self.machine.start();
            }
            for (_, job) in std::mem::take(&mut held) {
                self.settle(&job, Verdict::Complete)?;
            }
            held.extend(self.claim("finisher", 100)?.into_iter().map(|job| (job.job.id, job)));
            self.advance(1_000);
            self.rescue()?;
            self.ask(Request::Promote)?;
        }
        Err(Violation(format!("{:?} do not end", self.machine.oracle.open_jobs())))
    }
}
