//! Handing out ready jobs, each under a fresh lease.
//!
//! A line holds the ready jobs of one kind in one queue, sorted.
//!
//! Answers: a worker takes jobs of several kinds and queues in one order, by priority.
//! Why not simpler: one sorted list of all ready jobs would hold jobs that this worker does not
//! handle, and every claim would pass over them. A claim merges the heads of the lines it may take
//! from instead: its cost depends on how many lines there are and how many jobs it takes. With a
//! million waiting it costs 1.4 times one with a thousand (README.md).
//! Guarded by: the model test for the order; for the cost `windlass bench --mode backlog`, no test.

use alloc::collections::{BTreeMap, BTreeSet, BinaryHeap};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::time::Duration;

use super::entries::HeldLease;
use super::{Command, Effects, Ledger};
use crate::event::EventKind;
use crate::job::{JobId, JobStatus, Lease, LeaseToken, RequestId};
use crate::limits;
use crate::name::Name;
use crate::rate::Rate;
use crate::record::{Change, RecordNote};
use crate::refusal::Refusal;
use crate::retry::DEFAULT_MAX_ATTEMPTS;
use crate::time::Timestamp;
use crate::transition::Input;

/// Give this worker up to `limit` ready jobs.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "wire", derive(serde::Serialize, serde::Deserialize))]
pub struct Claim {
    /// Who asks.
    pub worker: Arc<str>,
    /// From which queues; `None` for all.
    pub queues: Option<Vec<Name>>,
    /// Of which kinds, and on what terms.
    pub kinds: Vec<KindClaim>,
    /// How many at most.
    pub limit: usize,
    /// Names the claim. If the worker has made it before and some of its jobs still run under the
    /// leases it gave, it is repeated: those are handed out again and no others are claimed.
    pub request: Option<RequestId>,
}

/// The terms on which a worker takes jobs of a kind.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "wire", derive(serde::Serialize, serde::Deserialize))]
pub struct KindClaim {
    /// The kind.
    pub kind: Name,
    /// How long the lease lasts unless renewed.
    pub lease: Duration,
    /// Total runs of a job that does not say itself.
    pub max_attempts: u32,
    /// Most jobs of the kind running at once, over all workers.
    pub concurrency: Option<u32>,
    /// How fast jobs of the kind may start, over all workers.
    pub rate: Option<Rate>,
}

impl KindClaim {
    /// Default terms: a lease of 30 s, three runs, no limits.
    pub fn new(kind: Name) -> Self {
        Self {
            kind,
            lease: Duration::from_secs(30),
            max_attempts: DEFAULT_MAX_ATTEMPTS,
            concurrency: None,
            rate: None,
        }
    }

    /// How long a lease is on these terms: within the bounds of all leases.
    pub fn lease_length(&self) -> Duration {
        self.lease.clamp(limits::LEASE_MIN, limits::LEASE_MAX)
    }

    /// How often a job may run, which says so itself or does not.
    pub fn most_runs(&self, own: Option<u32>) -> u32 {
        own.unwrap_or_else(|| self.max_attempts.max(1))
    }
}

/// What a claim answers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claims {
    /// The jobs, in the order in which they should start.
    pub jobs: Vec<Claimed>,
    /// Ready jobs that this worker could take but did not get.
    pub ready: u64,
    /// How long until something may become claimable without a ring; `None` for never.
    pub wake_in: Option<Duration>,
}

/// One job, handed to one worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claimed {
    /// The job.
    pub id: JobId,
    /// The right to run it.
    pub lease: Lease,
    /// Which start this is, 1 for the first.
    pub attempt: u32,
    /// How often it was recovered from a lost worker.
    pub recoveries: u32,
    /// How often it was replayed.
    pub generation: u32,
    /// Its place in the order of acceptance.
    pub sequence: u64,
}

/// The head of a line, ordered so that the greatest starts first.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Head {
    standing: i128,
    since: Reverse<Timestamp>,
    sequence: Reverse<u64>,
    line: u32,
    terms: usize,
    slot: u32,
}

impl Command for Claim {
    type Reply = Claims;

    fn run(self, ledger: &mut Ledger, effects: &mut Effects) -> Result<Claims, Refusal> {
        let now = effects.now;
        ledger.seen(&self.worker, now.steady);
        let lines = ledger.claimable_lines(&self);
        let mut heads: BinaryHeap<Head> =
            lines.iter().filter_map(|(line, terms)| ledger.head(*line, *terms, now.wall)).collect();
        let mut claims = Claims::default();
        if let Some(request) = self.request {
            claims.jobs = ledger.claimed_before(request, &self.worker);
        }
        let mut held_back: BTreeSet<u32> = BTreeSet::new();
        let mut rate_wait: Option<Duration> = None;
        let mut swept = true;
        let is_new = claims.jobs.is_empty();
        let limit = if is_new { self.limit.min(limits::CLAIM_JOBS) } else { 0 };
        while claims.jobs.len() < limit {
            let Some(head) = heads.pop() else { break };
            // More have expired than one command sweeps: the rest of this line waits for the next.
            if ledger.expiry_of(head.slot).is_some_and(|at| at <= now.wall) {
                swept = false;
                held_back.insert(head.line);
                continue;
            }
            let terms = &self.kinds[head.terms];
            match ledger.admit(head.line, terms, effects) {
                Admission::Granted => {}
                Admission::AtLimit => {
                    held_back.insert(head.line);
                    continue;
                }
                Admission::TooFast(wait) => {
                    rate_wait = Some(rate_wait.map_or(wait, |other| other.min(wait)));
                    held_back.insert(head.line);
                    continue;
                }
            }
            claims.jobs.push(ledger.lease(head.slot, &self.worker, terms, effects));
            heads.extend(ledger.head(head.line, head.terms, now.wall));
        }
        if let Some(request) = self.request.filter(|_| is_new) {
            ledger.requests.note(request, &self.worker, &claims.jobs);
        }
        claims.ready = lines
            .iter()
            .filter(|(line, _)| !held_back.contains(line))
            .map(|(line, _)| ledger.lines[*line as usize].ready.len() as u64)
            .sum();
        let next_due = ledger.timers.keys().next().map(|(at, _)| at.since(now.wall));
        // Those that are owed a release may be what this worker waits for.
        let at_once = (!swept || ledger.owes()).then_some(Duration::ZERO);
        claims.wake_in = [next_due, rate_wait, at_once].into_iter().flatten().min();
        Ok(claims)
    }
}

/// Claims that can be repeated: those of which a lease is held.
///
/// The tokens of one claim follow each other, so that of its leases only the first and the last is
/// noted, and whoever ends one finds the claim by its token.
#[derive(Debug, Default)]
pub(super) struct Requests {
    /// By the first token of each.
    claims: BTreeMap<LeaseToken, ClaimRequest>,
    firsts: BTreeMap<(RequestId, Arc<str>), LeaseToken>,
}

#[derive(Debug)]
struct ClaimRequest {
    request: RequestId,
    worker: Arc<str>,
    last: LeaseToken,
    /// How many of its leases are held.
    held: usize,
}

impl Requests {
    /// A claim was answered with these jobs. One that got none is not worth repeating.
    fn note(&mut self, request: RequestId, worker: &Arc<str>, jobs: &[Claimed]) {
        let (Some(first), Some(last)) = (jobs.first(), jobs.last()) else { return };
        let (first, last, worker) = (first.lease.token, last.lease.token, worker.clone());
        self.firsts.insert((request, worker.clone()), first);
        self.claims.insert(first, ClaimRequest { request, worker, last, held: jobs.len() });
    }

    /// A lease is held no longer.
    pub(super) fn lease_ended(&mut self, token: LeaseToken) {
        let Some((&first, claim)) = self.claims.range_mut(..=token).next_back() else { return };
        if token > claim.last {
            return;
        }
        claim.held -= 1;
        if claim.held == 0 {
            let key = (claim.request, claim.worker.clone());
            self.firsts.remove(&key);
            self.claims.remove(&first);
        }
    }

    /// Whether it agrees with the leases that are held, counted between two tokens.
    pub(super) fn check(&self, held: impl Fn(LeaseToken, LeaseToken) -> usize) -> bool {
        self.firsts.len() == self.claims.len()
            && self.claims.iter().all(|(first, claim)| {
                claim.held > 0
                    && held(*first, claim.last) == claim.held
                    && self.firsts.get(&(claim.request, claim.worker.clone())) == Some(first)
            })
    }
}

enum Admission {
    Granted,
    AtLimit,
    TooFast(Duration),
}

impl Ledger {
    /// The jobs of a claim that is repeated which still run under its leases, in the order in which
    /// they were handed out. None if it is a new one.
    fn claimed_before(&self, request: RequestId, worker: &Arc<str>) -> Vec<Claimed> {
        let Some(first) = self.requests.firsts.get(&(request, worker.clone())) else {
            return Vec::new();
        };
        let last = self.requests.claims[first].last;
        let again = |held: &HeldLease| {
            let entry = self.entry(held.slot);
            Claimed {
                id: entry.id,
                lease: held.lease.clone(),
                attempt: entry.attempts,
                recoveries: u32::from(entry.recoveries),
                generation: entry.generation(),
                sequence: entry.sequence,
            }
        };
        self.leases.range(*first..=last).map(|(_, held)| again(held)).collect()
    }

    /// The lines the request may take from, each with the index of its terms.
    fn claimable_lines(&self, claim: &Claim) -> Vec<(u32, usize)> {
        let mut lines = Vec::new();
        for (terms, kind) in claim.kinds.iter().enumerate() {
            let Some(&kind) = self.kind_ids.get(&kind.kind) else { continue };
            match &claim.queues {
                Some(queues) => {
                    let ids = queues.iter().filter_map(|queue| self.queue_ids.get(queue));
                    let found = ids.filter_map(|queue| self.line_ids.get(&(kind, *queue)));
                    lines.extend(found.map(|line| (*line, terms)));
                }
                None => {
                    let all = self.line_ids.range((kind, 0)..=(kind, u32::MAX));
                    lines.extend(all.map(|(_, line)| (*line, terms)));
                }
            }
        }
        lines.retain(|(line, _)| {
            let queue = self.lines[*line as usize].queue;
            !self.queues[queue as usize].settings.paused
        });
        lines.sort_unstable();
        lines.dedup_by_key(|(line, _)| *line);
        lines
    }

    fn head(&self, line: u32, terms: usize, now: Timestamp) -> Option<Head> {
        let entries = &self.lines[line as usize];
        let (key, &slot) = entries.ready.first_key_value()?;
        let priority = self.entry(slot).priority;
        let standing = self.queues[entries.queue as usize].standing(priority, key.since, now);
        Some(Head {
            standing,
            since: Reverse(key.since),
            sequence: Reverse(key.sequence),
            line,
            terms,
            slot,
        })
    }

    /// May one more job of this line's kind start now?
    fn admit(&mut self, line: u32, terms: &KindClaim, effects: &mut Effects) -> Admission {
        let kind = &mut self.kinds[self.lines[line as usize].kind as usize];
        if terms.concurrency.is_some_and(|limit| kind.running >= u64::from(limit)) {
            kind.turned_away = true;
            return Admission::AtLimit;
        }
        let Some(rate) = terms.rate else { return Admission::Granted };
        match rate.admit(kind.full_at, effects.now.wall) {
            Ok(full_at) => {
                kind.full_at = full_at;
                let kind = kind.name.clone();
                effects.changes.push(Change::Rate { kind, full_at });
                Admission::Granted
            }
            Err(wait) => Admission::TooFast(wait),
        }
    }

    fn lease(
        &mut self,
        slot: u32,
        worker: &Arc<str>,
        terms: &KindClaim,
        effects: &mut Effects,
    ) -> Claimed {
        let now = effects.now;
        let length = terms.lease_length();
        let own = self.entry(slot).max_attempts;
        let lease = Lease {
            token: LeaseToken(self.next_token),
            worker: worker.clone(),
            since: now.wall,
            until: now.wall + length,
            max_attempts: terms.most_runs((own > 0).then_some(own)),
            cancel_requested: false,
        };
        self.next_token += 1;
        let note = Some(RecordNote::Started { worker: worker.clone() });
        let status = self
            .transition(slot, &Input::Claim(lease.clone()), note, effects)
            .expect("a ready line holds only ready jobs");
        self.lease_until(lease.token, now.steady + length);
        let attempt = status.attempts;
        let started = EventKind::JobStarted { worker: worker.clone(), attempt };
        self.tell(slot, started, effects);
        let (id, sequence) = (self.entry(slot).id, self.entry(slot).sequence);
        let JobStatus { recoveries, generation, .. } = status;
        Claimed { id, lease, attempt, recoveries, generation, sequence }
    }

    /// Sets when a lease ends on the steady clock.
    pub(super) fn lease_until(&mut self, token: LeaseToken, ends: crate::time::Steady) {
        if let Some(held) = self.leases.get_mut(&token) {
            self.lease_ends.remove(&(held.ends, token));
            self.told_ends.remove(&(held.ends, token));
            held.ends = ends;
            held.told = false;
            self.lease_ends.insert((ends, token));
        }
    }
}
