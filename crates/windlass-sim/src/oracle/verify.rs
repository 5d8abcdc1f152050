//! Each answer against the ledgers as they stand right after the command.

use windlass_core::event::EventResult;
use windlass_core::job::{CancelReason, JobId, StateName};
use windlass_core::ledger::{Acceptance, CancelAnswer, Enqueued, Settled, Settlement};
use windlass_core::outcome::Verdict;
use windlass_core::record::Report;
use windlass_core::refusal::Refusal;

use super::Oracle;
use super::model::Stand;
use crate::answer::{Decided, Failure, Reply, Request};
use crate::cover::{Cover, Point};
use crate::{Checked, Violation, ensure};

impl Oracle {
    pub(super) fn verify(&mut self, decided: &Decided, cover: &mut Cover) -> Checked {
        self.verify_answer(decided, cover).map_err(|Violation(why)| {
            let Decided { ticket, request, answer, .. } = decided;
            Violation(format!("{why} ({ticket:?} {request:?} was answered with {answer:?})"))
        })
    }

    fn verify_answer(&mut self, decided: &Decided, cover: &mut Cover) -> Checked {
        let alone = match &decided.request {
            Request::Enqueue(jobs) => jobs.len() == 1,
            Request::Cancel(jobs)
            | Request::Replay(jobs)
            | Request::Remove(jobs)
            | Request::RemoveGraph(jobs) => jobs.len() == 1,
            _ => true,
        };
        let reply = match &decided.answer {
            Ok(reply) => reply,
            Err(Failure::Unknown) => return Ok(()),
            Err(Failure::Refused(refusal)) => return self.verify_refusal(refusal, alone, cover),
        };
        if decided.request.happens_each_time() {
            self.note_done(decided.ticket);
        }
        match (&decided.request, reply) {
            (Request::Enqueue(jobs), Reply::Enqueued(answers)) => {
                ensure!(jobs.len() == answers.len(), "not every item was answered");
                let mut each = jobs.iter().zip(answers);
                each.try_for_each(|(job, answer)| self.verify_enqueued(job.id, answer))
            }
            (Request::Claim(_), Reply::ClaimedBatch(handed)) => {
                for job in &handed.jobs {
                    self.verify_handed(job)?;
                }
                cover.hit_if(Point::ConcurrencyLimited, self.is_at_limit());
                Ok(())
            }
            (Request::Renew(renewals), Reply::Renewed(answers)) => {
                for (renewal, answer) in renewals.iter().zip(answers) {
                    if answer.is_ok() {
                        self.verify_state(renewal.job, StateName::Running)?;
                        self.note_report(renewal.job, &renewal.report, cover);
                    }
                }
                Ok(())
            }
            (Request::Settle(settlements), Reply::Settled(answers)) => {
                for (settlement, answer) in settlements.iter().zip(answers) {
                    match answer {
                        _ if self.was_settled(settlement) => {
                            self.verify_repeated(settlement, answer, cover)?;
                        }
                        Ok(settled) => {
                            self.verify_settled(settlement, settled.state, cover)?;
                            if let Some(turn) = &settlement.turn {
                                self.turned(turn, cover)?;
                            }
                        }
                        Err(refusal) => self.verify_refusal(refusal, alone, cover)?,
                    }
                }
                Ok(())
            }
            (Request::Turn(turn), Reply::Turned(_)) => self.turned(turn, cover),
            (Request::Join(..), Reply::Joined(answers)) => {
                for (settlement, answer) in answers {
                    let released = answer.as_ref().map(|settled| settled.state);
                    let Ok(state) = released else {
                        return Err(Violation("what is not held was not given back".into()));
                    };
                    self.verify_settled(settlement, state, cover)?;
                }
                Ok(())
            }
            (Request::Rescue(_) | Request::RescueLost(_), Reply::Rescued(rescued)) => {
                let mut jobs = rescued.jobs.iter();
                jobs.try_for_each(|job| self.verify_state(job.id, job.state))
            }
            _ => self.verify_queues(decided, reply, alone, cover),
        }
    }

    fn verify_queues(
        &mut self,
        decided: &Decided,
        reply: &Reply,
        alone: bool,
        cover: &mut Cover,
    ) -> Checked {
        match (&decided.request, reply) {
            (Request::ReplayEdited(job, _), Reply::Replaced(enqueued)) => {
                self.verify_enqueued(enqueued.id, enqueued)?;
                let old = self.model.jobs.get(job).map(|told| told.stand.clone());
                let replaced = old.is_none_or(|stand| {
                    matches!(stand, Stand::Cancelled { reason: CancelReason::Replaced, .. })
                });
                ensure!(replaced, "job {job} was not replaced");
                Ok(())
            }
            (Request::Configure(queue, _), Reply::Configured(settings)) => {
                let told = self.model.settings(queue).paused;
                ensure!(told == settings.paused, "what was told of {queue} is something else");
                self.model.settings.insert(queue.clone(), settings.clone());
                Ok(())
            }
            (Request::Clear(queue), Reply::Cleared(_)) => {
                let left = self.model.waiting(queue);
                ensure!(left == 0, "{left} jobs still wait in {queue}");
                Ok(())
            }
            _ => self.verify_control(decided, reply, alone, cover),
        }
    }

    fn verify_control(
        &mut self,
        decided: &Decided,
        reply: &Reply,
        alone: bool,
        cover: &mut Cover,
    ) -> Checked {
        match (&decided.request, reply) {
            (Request::Cancel(jobs), Reply::Cancelled(answers)) => {
                for (job, answer) in jobs.iter().zip(answers) {
                    match answer {
                        Ok(CancelAnswer::Cancelled) => {
                            self.verify_state(*job, StateName::Cancelled)?;
                        }
                        Ok(CancelAnswer::Requested) => {
                            let asked = self.model.told(*job)?.cancel_requested;
                            ensure!(asked, "job {job} was not told to stop");
                        }
                        Err(refusal) => self.verify_refusal(refusal, alone, cover)?,
                    }
                }
            }
            (Request::Reschedule(jobs, _), Reply::Rescheduled(answers)) => {
                for (job, answer) in jobs.iter().zip(answers) {
                    match answer {
                        Ok(state) => self.verify_state(*job, *state)?,
                        Err(refusal) => self.verify_refusal(refusal, alone, cover)?,
                    }
                }
            }
            (Request::Replay(_), Reply::Replayed(answers)) => {
                for (job, answer) in answers {
                    match answer {
                        Ok(()) => {
                            let waits = !self.model.told(*job)?.stand.is_terminal();
                            ensure!(waits, "job {job} was not replayed");
                        }
                        Err(refusal) => self.verify_refusal(refusal, alone, cover)?,
                    }
                }
            }
            (Request::Remove(jobs), Reply::Removed(answers)) => {
                for (job, answer) in jobs.iter().zip(answers) {
                    match answer {
                        Ok(()) => {
                            ensure!(!self.model.jobs.contains_key(job), "job {job} is still there");
                        }
                        Err(refusal) => self.verify_refusal(refusal, alone, cover)?,
                    }
                }
            }
            (Request::RemoveGraph(roots), Reply::GraphsRemoved(answers)) => {
                for (root, answer) in roots.iter().zip(answers) {
                    match answer {
                        Ok(_) => self.verify_graph_is_gone(*root)?,
                        Err(refusal) => self.verify_refusal(refusal, alone, cover)?,
                    }
                }
            }
            _ => self.verify_reading(decided, reply)?,
        }
        Ok(())
    }

    fn verify_graph_is_gone(&self, root: JobId) -> Checked {
        ensure!(!self.model.jobs.contains_key(&root), "job {root} is still there");
        let depends = |told: &super::model::Told| {
            told.job.depends_on.iter().any(|dependency| dependency.on == root)
        };
        let left = self.model.jobs.iter().find(|(_, told)| depends(told)).map(|(job, _)| job);
        ensure!(left.is_none(), "job {left:?} depended on {root} and is still there");
        Ok(())
    }

    fn verify_reading(&self, decided: &Decided, reply: &Reply) -> Checked {
        match (&decided.request, reply) {
            (Request::Find(jobs), Reply::Found(records)) => {
                for (job, record) in jobs.iter().zip(records) {
                    self.compare_found(*job, record.as_ref())?;
                }
                Ok(())
            }
            (Request::Explain(job), Reply::Explained(explanation)) => {
                let stand = &self.model.told(*job)?.stand;
                ensure!(stand.may_be(explanation.state), "it is {}", stand.name());
                Ok(())
            }
            (Request::Audit, Reply::Audited(snapshot)) => self.compare(snapshot),
            (Request::Promote, Reply::Promoted(_)) => Ok(()),
            _ => Err(Violation("that is an answer to another question".into())),
        }
    }

    /// The job is in this state, or has just made room for others.
    fn verify_state(&self, job: JobId, state: StateName) -> Checked {
        let Some(told) = self.model.jobs.get(&job) else {
            ensure!(state.is_terminal(), "job {job} is said to be {state} and is gone");
            return Ok(());
        };
        let is = told.stand.name();
        ensure!(is == state, "job {job} is said to be {state} and is {is}");
        Ok(())
    }

    fn verify_enqueued(&self, job: JobId, answer: &Enqueued) -> Checked {
        let stands = self.model.told(answer.id)?;
        match answer.acceptance {
            Acceptance::Accepted | Acceptance::AlreadyAccepted => {
                ensure!(answer.id == job, "{} stands for job {job}", answer.id);
            }
            Acceptance::Deduplicated { .. } => {
                let holds = stands.holds_key(self.model.last_at);
                ensure!(holds && answer.id != job, "{} does not hold its key", answer.id);
            }
        }
        let depth = self.model.waiting(&stands.job.queue);
        ensure!(answer.depth == depth, "{depth} jobs wait in its queue");
        Ok(())
    }

    fn verify_handed(&mut self, handed: &windlass::store::ClaimedJob) -> Checked {
        let id = handed.job.id;
        let told = self.model.told(id)?;
        let same = (told.attempts, told.recoveries) == (handed.attempt, handed.recoveries);
        ensure!(same, "job {id} is at start {}", told.attempts);
        ensure!(told.created_at == handed.created_at, "job {id} was accepted at another time");
        self.verify_state(id, StateName::Running)?;
        self.model.jobs.entry(id).and_modify(|told| told.token = Some(handed.lease.token));
        Ok(())
    }

    fn is_at_limit(&self) -> bool {
        let running = |kind: &windlass_core::name::Name| {
            let of_kind = self.model.jobs.values().filter(|told| told.job.kind == *kind);
            of_kind.filter(|told| told.stand.name() == StateName::Running).count()
        };
        self.rules.kinds.iter().any(|(kind, rules)| {
            rules.concurrency.is_some_and(|limit| running(kind) == limit as usize)
        })
    }

    /// Whether the job's last attempt was settled under the token of this settlement.
    fn was_settled(&self, settlement: &Settlement) -> bool {
        let told = self.model.jobs.get(&settlement.job);
        told.is_some_and(|told| told.settled_by == Some(settlement.token))
    }

    /// Whoever settles again is told where the job stands, and nothing else happens.
    fn verify_repeated(
        &self,
        settlement: &Settlement,
        answer: &Result<Settled, Refusal>,
        cover: &mut Cover,
    ) -> Checked {
        let (job, token) = (settlement.job, settlement.token);
        let stand = self.model.jobs.get(&job).map(|told| &told.stand);
        let is_so = |settled: &Settled| stand.is_some_and(|stand| stand.may_be(settled.state));
        ensure!(answer.as_ref().is_ok_and(is_so), "job {job} is {stand:?}, settled under {token}");
        cover.hit(Point::SettledAgain);
        cover.hit_if(Point::SettledAgainAfterReopen, self.runs.is_before_reopening(token));
        Ok(())
    }

    fn verify_settled(
        &mut self,
        settlement: &Settlement,
        state: StateName,
        cover: &mut Cover,
    ) -> Checked {
        let job = settlement.job;
        self.verify_state(job, state)?;
        let ends = match settlement.verdict {
            Verdict::Complete => state == StateName::Completed,
            Verdict::Bury(_) => state == StateName::Dead,
            Verdict::Cancel(_) => state == StateName::Cancelled,
            Verdict::Retry(_) | Verdict::Snooze(_) => {
                matches!(state, StateName::Scheduled | StateName::Cancelled)
            }
            Verdict::Release => matches!(state, StateName::Ready | StateName::Cancelled),
        };
        ensure!(ends, "that verdict does not lead there");
        self.note_report(job, &settlement.report, cover);
        let Some(told) = self.model.jobs.get_mut(&job) else { return Ok(()) };
        (told.token, told.settled_by) = (None, Some(settlement.token));
        if let Some(result) = told.result.take() {
            let returned = EventResult::of(settlement.output.as_ref());
            ensure!(result == returned, "its event tells {result:?}, it returned {returned:?}");
        }
        if settlement.verdict == Verdict::Complete {
            told.output.clone_from(&settlement.output);
        }
        let key = told.job.unique.clone();
        let continues = settlement.next.iter().any(|next| key.is_some() && next.unique == key);
        cover.hit_if(Point::ContinuedSameKey, continues);
        Ok(())
    }

    fn note_report(&mut self, job: JobId, report: &Report, cover: &mut Cover) {
        let Some(told) = self.model.jobs.get_mut(&job) else { return };
        told.lines =
            told.lines.map(|lines| lines + report.lines.len() + report.lines_dropped as usize);
        told.steps.extend(report.steps.iter().cloned());
        told.updates += u32::from(!report.is_empty());
        cover.hit_if(Point::ChainWhole, told.updates == 80);
    }

    fn verify_refusal(&self, refusal: &Refusal, alone: bool, cover: &mut Cover) -> Checked {
        let model = &self.model;
        let stand = |job: &JobId| model.jobs.get(job).map(|told| &told.stand);
        let there = |job: &JobId| model.jobs.contains_key(job);
        let holds = match refusal {
            Refusal::QueueFull { queue, depth, limit } => {
                cover.hit(Point::DepthRefused);
                let settings = model.settings(queue);
                settings.max_depth == Some(*limit) && model.waiting(queue) == *depth
            }
            Refusal::IdReused { job } => there(job),
            Refusal::UnknownDependency { dependency, .. } => !there(dependency),
            Refusal::DependencyFailed { dependency, state, .. } => {
                stand(dependency).is_some_and(|stand| stand.name() == *state)
            }
            Refusal::UnknownJob { job } => !there(job),
            // Whatever it was then, the rest of the batch may have changed it, or bounds removed
            // it.
            Refusal::WrongState { job, state, .. } => {
                !alone || stand(job).is_none_or(|stand| stand.may_be(*state))
            }
            Refusal::StillNeeded { job, by } => {
                !alone
                    || model.jobs.get(by).is_some_and(|told| {
                        !told.stand.is_terminal()
                            && told.job.depends_on.iter().any(|on| on.on == *job)
                    })
            }
            // A dependency may turn into one on the job itself, by a key that both have.
            Refusal::DependencyCycle { .. } => !alone,
            Refusal::KeyTaken { holder, .. } => {
                model.jobs.get(holder).is_some_and(|told| told.holds_key(model.last_at))
            }
            Refusal::LeaseLost { .. } => true,
            Refusal::StoreFull { .. } | Refusal::StoreBroken { .. } => true,
            Refusal::Unavailable { .. } => true,
            _ => self.refuses_turn(refusal, cover),
        };
        ensure!(holds, "that is not so");
        Ok(())
    }
}
