//! The judge: it knows what was asked, answered and told, and says when that cannot all be true.
//!
//! It stands outside the engine. What it believes comes from three ledgers of its own: what
//! producers sent and were answered, what workers were handed ([`runs`]), and what events told
//! ([`model`]). What it compares with is what any user can see: answers, records, counters,
//! explanations.
//!
//! It knows which process ran what ([`members`]), so it says whether an opening has recovered the
//! jobs of the dead and left those of the living alone.
//!
//! The events of a commit count when the commit has landed. After a crash a commit that was in the
//! air has landed or not; the number of the last event tells which, so the ledgers are exact again
//! and every answer of that commit must be true as a whole, or none of it.

mod audit;
mod members;
mod model;
mod objects;
mod runs;
mod verify;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use windlass::store::Opened;
use windlass_core::event::Event;
use windlass_core::job::{JobId, NewJob};
use windlass_core::ledger::{Acceptance, QueueChange, Recovery};
use windlass_core::limits::Limits;
use windlass_core::name::Name;
use windlass_core::rate::Rate;
use windlass_core::time::Now;

use self::members::Members;
use self::model::{Around, Model};
use self::runs::Runs;
use crate::answer::{Answer, Decided, Reply, Request, Snapshot, jobs_of};
use crate::cover::{Cover, Point};
use crate::{Checked, ensure};

/// The rules that hold in a run, as its users know them.
#[derive(Clone, Debug)]
pub struct Rules {
    /// The bounds of the store.
    pub limits: Limits,
    /// How lost jobs are recovered.
    pub recovery: Recovery,
    /// On what terms every worker takes jobs of each kind.
    pub kinds: BTreeMap<Name, KindRules>,
}

/// The terms of one kind.
#[derive(Clone, Copy, Debug)]
pub struct KindRules {
    /// Total runs of a job that does not say itself.
    pub max_attempts: u32,
    /// Most jobs running at once.
    pub concurrency: Option<u32>,
    /// How fast they start.
    pub rate: Option<Rate>,
}

impl Rules {
    fn kind(&self, kind: &Name) -> KindRules {
        let plain = KindRules { max_attempts: 3, concurrency: None, rate: None };
        self.kinds.get(kind).copied().unwrap_or(plain)
    }
}

/// A commit of which nobody knows whether it is on the platter.
#[derive(Clone, Debug)]
struct Unsure {
    events: Vec<Event>,
    decided: Vec<Decided>,
    /// It was written, and only the process has ended since: it must be there.
    certain: bool,
}

/// See the module documentation.
#[derive(Clone, Debug)]
pub struct Oracle {
    rules: Rules,
    model: Model,
    runs: Runs,
    members: Members,
    sent: BTreeMap<JobId, Arc<NewJob>>,
    unsure: Vec<Unsure>,
    /// Jobs of which nobody knows how many log lines are kept.
    unsure_lines: Vec<JobId>,
    /// Enqueues without an answer, and those that were answered.
    unanswered: BTreeSet<JobId>,
    refused_full: bool,
    acknowledged: u64,
}

impl Oracle {
    /// A judge who has seen nothing yet.
    pub fn new(rules: Rules) -> Self {
        Self {
            model: Model::new(rules.clone()),
            rules,
            runs: Runs::default(),
            members: Members::default(),
            sent: BTreeMap::new(),
            unsure: Vec::new(),
            unsure_lines: Vec::new(),
            unanswered: BTreeSet::new(),
            refused_full: false,
            acknowledged: 0,
        }
    }

    /// Jobs that were acknowledged.
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// Jobs that have not ended and will.
    pub fn open_jobs(&self) -> Vec<JobId> {
        let stuck = self.model.stuck();
        let open = self.model.jobs.iter().filter(|(_, told)| !told.stand.is_terminal());
        open.map(|(id, _)| *id).filter(|id| !stuck.contains(id)).collect()
    }

    /// Queues that are paused.
    pub fn paused_queues(&self) -> Vec<Name> {
        let paused = self.model.settings.iter().filter(|(_, settings)| settings.paused);
        paused.map(|(queue, _)| queue.clone()).collect()
    }

    /// Jobs that wait for ever, as they were told to.
    pub fn stuck_jobs(&self) -> usize {
        self.model.stuck().len()
    }

    /// Someone is about to ask.
    pub fn asked(&mut self, request: &Request) {
        // From here on the queue may be running, whatever becomes of the call.
        if let Request::Configure(queue, QueueChange::Resume) = request {
            self.runs.resuming(queue);
        }
    }

    /// The store has decided; nobody has been told yet, but claims are answered at once.
    pub fn decided(
        &mut self,
        request: &Request,
        answer: &Answer,
        now: Now,
        cover: &mut Cover,
    ) -> Checked {
        let Ok(reply) = answer else { return Ok(()) };
        match (request, reply) {
            (Request::Enqueue(jobs), Reply::Enqueued(answers)) => {
                let accepted = |(_, answer): &(_, &windlass_core::ledger::Enqueued)| {
                    answer.acceptance == Acceptance::Accepted
                };
                let aliases: BTreeMap<JobId, JobId> =
                    jobs.iter().zip(answers).map(|(job, answer)| (job.id, answer.id)).collect();
                for (job, _) in jobs.iter().zip(answers).filter(accepted) {
                    self.sent.insert(job.id, resolved(job, &aliases));
                    self.runs.accepted(job.id);
                }
                Ok(())
            }
            (Request::Claim(claim), Reply::ClaimedBatch(handed)) => {
                self.runs.handed(claim, handed, now, &self.sent, &self.rules, cover)
            }
            (Request::Renew(renewals), Reply::Renewed(answers)) => {
                let mut each = renewals.iter().zip(answers);
                each.try_for_each(|(renewal, answer)| self.runs.renewed(renewal, answer, now))
            }
            (Request::Settle(settlements), Reply::Settled(answers)) => {
                for (settlement, answer) in settlements.iter().zip(answers) {
                    self.runs.settled(settlement, answer, cover)?;
                    let turn = settlement.turn.iter().flat_map(|turn| jobs_of(turn));
                    for job in settlement.next.iter().chain(turn).filter(|_| answer.is_ok()) {
                        self.sent.entry(job.id).or_insert_with(|| job.clone());
                    }
                }
                Ok(())
            }
            (Request::Turn(turn), Reply::Turned(_)) => {
                for job in jobs_of(turn) {
                    self.sent.entry(job.id).or_insert_with(|| job.clone());
                }
                Ok(())
            }
            (Request::Rescue(_), Reply::Rescued(rescued)) => self.runs.rescued(rescued, now),
            (Request::RescueLost(rescue), Reply::Rescued(rescued)) => {
                self.runs.recovered(&rescue.lost, rescued)
            }
            (Request::Join(workers, held), Reply::Joined(answers)) => {
                self.runs.joined(workers, held, answers, cover)
            }
            (Request::Replay(_), Reply::Replayed(answers)) => {
                let replayed = answers.iter().filter(|(_, answer)| answer.is_ok());
                replayed.for_each(|(job, _)| self.runs.replayed(*job));
                Ok(())
            }
            (Request::Configure(queue, QueueChange::Pause), _) => {
                self.runs.pausing(queue);
                Ok(())
            }
            (Request::ReplayEdited(_, edited), Reply::Replaced(_)) => {
                self.sent.insert(edited.id, Arc::new(edited.as_ref().clone()));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// A commit has landed: its events are told and its answers given, in this order.
    pub fn landed(&mut self, events: &[Event], decided: &[Decided], cover: &mut Cover) -> Checked {
        let mut events = events.iter().peekable();
        for each in decided {
            let mut around = Around { cause: Some(each), sent: &self.sent, cover };
            while let Some(event) = events.next_if(|event| event.number <= each.mark) {
                self.check_cause(event, &each.request)?;
                self.model.take(event, &mut around)?;
            }
            self.model.end_command()?;
            self.verify(each, cover)?;
        }
        let surplus = events.next();
        ensure!(surplus.is_none(), "{surplus:?} was caused by nothing");
        Ok(())
    }

    /// The process ended while this commit was in the air. If it is certain, it was written, and
    /// unless the power is lost too it must be there.
    pub fn fell(&mut self, events: Vec<Event>, decided: Vec<Decided>, certain: bool) {
        self.unsure.push(Unsure { events, decided, certain });
    }

    /// The power is lost: nothing that was not synced is certain.
    pub fn power_lost(&mut self) {
        self.unsure.iter_mut().for_each(|unsure| unsure.certain = false);
    }

    /// What was decided and is gone.
    pub fn lost(&mut self, decided: &[Decided], cover: &mut Cover) {
        for each in decided {
            if let Ok(Reply::ClaimedBatch(handed)) = &each.answer {
                self.runs.lost(handed);
                cover.hit_if(Point::ClaimLost, !handed.jobs.is_empty());
            }
        }
    }

    /// What opening the store would find and do, seen on a copy of the disk: the opening may be
    /// interrupted, and then its commit is one more that may have landed.
    pub fn peeked(&mut self, opening: Vec<Event>, last_event: u64, cover: &mut Cover) -> Checked {
        let base = last_event - opening.len() as u64;
        self.keep_visible(base, cover)?;
        let (events, decided) = (opening, Vec::new());
        self.unsure.push(Unsure { events, decided, certain: false });
        Ok(())
    }

    /// Drops the commits that are not on the disk; those that are must end at `base`.
    fn keep_visible(&mut self, base: u64, cover: &mut Cover) -> Checked {
        let mut last = self.model.last_event;
        ensure!(base >= last, "event {last} was told, and the store knows of none after {base}");
        let (mut kept, mut silent) = (Vec::new(), Vec::new());
        for unsure in std::mem::take(&mut self.unsure) {
            let Some(first) = unsure.events.first().map(|event| event.number) else {
                silent.push(unsure);
                continue;
            };
            let end = unsure.events.last().map_or(first, |event| event.number);
            if first == last + 1 && end <= base {
                last = end;
                // Those before it are there, too.
                kept.append(&mut silent);
                kept.push(unsure);
            } else {
                ensure!(!unsure.certain, "the process ended, and a commit it had written is gone");
                cover.hit(Point::CommitLost);
                self.lost(&unsure.decided, cover);
            }
        }
        // Log lines have no event: without one nobody knows whether they are kept.
        for each in silent.iter().flat_map(|unsure| &unsure.decided) {
            if let Request::Renew(renewals) = &each.request {
                self.unsure_lines.extend(renewals.iter().map(|renewal| renewal.job));
            }
        }
        ensure!(last == base, "the store knows of event {base}, a commit ends at {last}");
        self.unsure = kept;
        Ok(())
    }

    /// The store was opened.
    pub fn reopened(
        &mut self,
        opening: &[Event],
        last_event: u64,
        opened: &Opened,
        now: Now,
        cover: &mut Cover,
    ) -> Checked {
        self.keep_visible(last_event - opening.len() as u64, cover)?;
        for unsure in std::mem::take(&mut self.unsure) {
            let nobody_knew = !unsure.decided.is_empty();
            cover.hit(if nobody_knew { Point::CommitSurvived } else { Point::OpeningSurvived });
            if nobody_knew {
                self.landed(&unsure.events, &unsure.decided, cover)?;
            } else {
                self.take_opening(&unsure.events, cover)?;
            }
        }
        self.take_opening(opening, cover)?;
        for job in std::mem::take(&mut self.unsure_lines) {
            self.model.jobs.entry(job).and_modify(|told| told.lines = None);
        }
        let kept = self.survivors(cover)?;
        self.runs.reopened(kept, now);
        for rescued in &opened.recovered {
            let Some(told) = self.model.jobs.get(&rescued.id) else { continue };
            let (is, was) = (told.stand.name(), rescued.state);
            ensure!(is == was, "job {} was recovered to {was} and is {is}", rescued.id);
        }
        let paused = self.model.settings.values().any(|settings| settings.paused);
        cover.hit_if(Point::PausedOverRestart, paused);
        let held = |told: &model::Told| told.holds_key(self.model.last_at);
        cover.hit_if(Point::KeyHeldOverRestart, self.model.jobs.values().any(held));
        Ok(())
    }

    fn take_opening(&mut self, events: &[Event], cover: &mut Cover) -> Checked {
        events.iter().try_for_each(|event| self.check_opening(event))?;
        let mut around = Around { cause: None, sent: &self.sent, cover };
        events.iter().try_for_each(|event| self.model.take(event, &mut around))?;
        self.model.end_command()
    }

    /// Everything a user can see now must be what was told.
    pub fn audit(&self, snapshot: &Snapshot) -> Checked {
        self.compare(snapshot)
    }

    /// An answer is given to whoever asked.
    pub fn answered(&mut self, request: &Request, answer: &Answer, cover: &mut Cover) {
        match (request, answer) {
            (Request::Enqueue(jobs), Ok(Reply::Enqueued(answers))) => {
                for (job, answer) in jobs.iter().zip(answers) {
                    let unknown = self.unanswered.remove(&job.id);
                    let point = match answer.acceptance {
                        Acceptance::Accepted => Point::UnknownThenAccepted,
                        Acceptance::AlreadyAccepted => Point::UnknownThenKnown,
                        Acceptance::Deduplicated { .. } => Point::Deduplicated,
                    };
                    let told = matches!(answer.acceptance, Acceptance::Deduplicated { .. });
                    cover.hit_if(point, unknown || told);
                    self.acknowledged += u64::from(answer.acceptance == Acceptance::Accepted);
                }
                cover.hit_if(Point::FullHealed, std::mem::take(&mut self.refused_full));
            }
            (Request::Enqueue(jobs), Err(crate::answer::Failure::Unknown)) => {
                self.unanswered.extend(jobs.iter().map(|job| job.id));
            }
            (Request::Configure(queue, QueueChange::Pause), Ok(_)) => self.runs.paused(queue),
            (Request::Settle(settlements), Ok(Reply::Settled(answers))) => {
                for (settlement, answer) in settlements.iter().zip(answers) {
                    let done = windlass_core::outcome::Verdict::Complete;
                    if settlement.verdict == done && answer.is_ok() {
                        self.runs.completed(settlement.job);
                    }
                }
            }
            _ => {}
        }
        let full = matches!(
            answer,
            Err(
                crate::answer::Failure::Refused(windlass_core::refusal::Refusal::StoreFull { .. },)
            )
        );
        let enqueues = matches!(request, Request::Enqueue(_));
        cover.hit_if(Point::StoreFull, full && enqueues);
        self.refused_full |= full && enqueues;
    }
}

/// The job as it is accepted: dependencies on what met the holder of its key are on that holder,
/// and one that is named twice counts once.
fn resolved(job: &Arc<NewJob>, aliases: &BTreeMap<JobId, JobId>) -> Arc<NewJob> {
    let mut depends_on: Vec<windlass_core::job::Dependency> = Vec::new();
    for edge in &job.depends_on {
        let on = aliases.get(&edge.on).copied().unwrap_or(edge.on);
        if depends_on.iter().all(|other| other.on != on) {
            depends_on.push(windlass_core::job::Dependency { on, ..*edge });
        }
    }
    if depends_on == job.depends_on {
        return job.clone();
    }
    Arc::new(NewJob { depends_on, ..job.as_ref().clone() })
}
