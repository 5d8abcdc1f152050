//! Calls of processes that have joined: they travel to the owner, and their answers travel back.
//!
//! A call may be lost with the owner before it arrives, or its answer after it was applied; nobody
//! can tell which. What the product says may be repeated ([`Call::may_repeat`]) waits for the next
//! owner and is made again as it was; the rest is unknown to its caller.

use std::time::Duration;

use windlass::store::{AlterJobs, AlterQueue, JobQuery, QueueAction, Selection};
use windlass::wire::Call;
use windlass_core::job::{JobId, LeaseToken};
use windlass_core::ledger::JobAction;

use super::processes::{Standing, TRAVEL};
use super::{Caller, Turn, World};
use crate::Checked;
use crate::answer::{Answer, Failure, Reply, Request, Ticket};
use crate::cover::Point;

/// How long a call waits for an owner that answers.
const PATIENCE: Duration = Duration::from_secs(10);

/// One call of a process that has joined.
#[derive(Debug)]
pub(super) struct Journey {
    pub(super) process: usize,
    /// In which of its lives the process made it.
    life: u64,
    request: Request,
    stage: Stage,
    /// Under which tickets it was made so far.
    made: Vec<Ticket>,
    /// Since when it waits for an owner.
    since: u64,
}

/// Where a call is.
#[derive(Debug)]
enum Stage {
    /// In its process, which seeks an owner.
    Waits,
    /// On its way to the owner.
    Sent,
    /// The owner has decided it.
    Decided,
    /// The answer is on its way back.
    Answered(Answer),
}

impl World {
    /// Makes a call of a process that does not own the store.
    pub(super) fn send(
        &mut self,
        process: usize,
        caller: Caller,
        request: Request,
    ) -> Checked<Ticket> {
        let call = self.machine.ticket();
        self.callers.insert(call, caller);
        let since = self.machine.clock.elapsed();
        let (stage, made, life) = (Stage::Waits, Vec::new(), self.processes.all[process].life);
        let journey = Journey { process, life, request, stage, made, since };
        self.processes.journeys.insert(call, journey);
        if self.processes.all[process].standing == Standing::Joined {
            self.depart(call)?;
        }
        Ok(call)
    }

    fn depart(&mut self, call: Ticket) -> Checked {
        let Some(journey) = self.processes.journeys.get_mut(&call) else { return Ok(()) };
        for before in &journey.made {
            self.machine.oracle.repeats(&journey.request, *before)?;
            self.machine.cover.hit(Point::Repeated);
        }
        journey.stage = Stage::Sent;
        let connection = self.processes.all[journey.process].connection;
        let micros = self.random.spread(10, TRAVEL);
        self.after(micros, Turn::Arrive(call, connection));
        Ok(())
    }

    /// Everything that waits in a process is sent; what has waited too long is given up.
    pub(super) fn depart_all(&mut self, process: usize) -> Checked {
        for call in self.calls_of(process, |stage| matches!(stage, Stage::Waits)) {
            let since = self.processes.journeys[&call].since;
            if self.since(since) > PATIENCE {
                self.processes.journeys.remove(&call);
                self.tell(call, Err(Failure::Unknown))?;
            } else {
                self.depart(call)?;
            }
        }
        Ok(())
    }

    fn calls_of(&self, process: usize, is: impl Fn(&Stage) -> bool) -> Vec<Ticket> {
        let all = self.processes.journeys.iter();
        let those = all.filter(|(_, call)| call.process == process && is(&call.stage));
        those.map(|(call, _)| *call).collect()
    }

    /// The owner has read a call, and decides it.
    pub(super) fn arrive_turn(&mut self, call: Ticket, connection: u64) -> Checked {
        let Some(journey) = self.processes.journeys.get_mut(&call) else { return Ok(()) };
        let current = self.processes.all[journey.process].connection == connection;
        if !current || !matches!(journey.stage, Stage::Sent) {
            return Ok(());
        }
        let ticket = self.machine.submit(journey.request.clone())?;
        journey.stage = Stage::Decided;
        journey.made.push(ticket);
        self.processes.arrived.insert(ticket, call);
        self.wake_writer();
        Ok(())
    }

    /// The owner has answered a call that came from elsewhere.
    pub(super) fn carry_back(&mut self, call: Ticket, answer: Answer) {
        // Whoever dies answers nobody.
        let gone = self.machine.is_down() || self.machine.is_broken();
        let Some(journey) = self.processes.journeys.get_mut(&call) else { return };
        if gone && matches!(answer, Err(Failure::Unknown)) {
            return;
        }
        journey.stage = Stage::Answered(answer);
        let micros = self.random.spread(10, TRAVEL);
        self.after(micros, Turn::Deliver(call));
    }

    /// An answer has come.
    pub(super) fn deliver_turn(&mut self, call: Ticket) -> Checked {
        let Some(journey) = self.processes.journeys.get(&call) else { return Ok(()) };
        if !matches!(journey.stage, Stage::Answered(_)) {
            return Ok(());
        }
        let Some(Journey { process, life, request, stage: Stage::Answered(answer), .. }) =
            self.processes.journeys.remove(&call)
        else {
            return Ok(());
        };
        if self.processes.all[process].life != life {
            return Ok(());
        }
        let held = &self.processes.all[process].held;
        if let (Request::Claim(_), Ok(Reply::ClaimedBatch(handed))) = (&request, &answer) {
            held.claimed(handed);
        }
        if let (Request::Settle(settlements), Ok(Reply::Settled(answers))) = (&request, &answer) {
            let tokens: Vec<LeaseToken> = settlements.iter().map(|each| each.token).collect();
            held.settled(&tokens, answers);
        }
        self.tell(call, answer)
    }

    /// Delivers every answer that is on its way to a process.
    pub(super) fn deliver_all(&mut self, process: usize) -> Checked {
        let calls = self.calls_of(process, |stage| matches!(stage, Stage::Answered(_)));
        calls.into_iter().try_for_each(|call| self.deliver_turn(call))
    }

    /// Whether calls of a process are on their way.
    pub(super) fn has_sent(&self, process: usize) -> bool {
        !self.calls_of(process, |stage| matches!(stage, Stage::Sent)).is_empty()
    }

    /// The owner drops the connection of a process, and with it what it has not read. What it has
    /// read it carries through, and tells nobody.
    pub(super) fn cut(&mut self, process: usize) -> Checked {
        self.lose_connection(process, false)?;
        let Self { processes, .. } = self;
        let journeys = &processes.journeys;
        processes.arrived.retain(|_, call| {
            journeys.get(call).is_none_or(|journey| matches!(journey.stage, Stage::Decided))
        });
        Ok(())
    }

    /// The connection of a process has ended. An owner that closes has said up to where it read, so
    /// the rest was not applied.
    pub(super) fn lose_connection(&mut self, process: usize, closed: bool) -> Checked {
        self.processes.all[process].standing = Standing::Seeking;
        self.processes.all[process].connection += 1;
        for call in self.calls_of(process, |stage| !matches!(stage, Stage::Waits)) {
            let stage = &self.processes.journeys[&call].stage;
            let may_be_read = matches!(stage, Stage::Answered(_));
            let not_applied = closed && matches!(stage, Stage::Sent);
            if may_be_read && (closed || self.random.coin()) {
                self.machine.cover.hit(Point::LastReply);
            } else {
                self.lose(call, not_applied)?;
            }
        }
        Ok(())
    }

    /// A call will get no answer.
    fn lose(&mut self, call: Ticket, not_applied: bool) -> Checked {
        let now = self.machine.clock.elapsed();
        let Some(journey) = self.processes.journeys.get_mut(&call) else { return Ok(()) };
        let process = &self.processes.all[journey.process];
        let dead = !process.lives || process.life != journey.life;
        if !dead && (not_applied || may_repeat(&journey.request)) {
            (journey.stage, journey.since) = (Stage::Waits, now);
            return Ok(());
        }
        self.machine.cover.hit_if(Point::NeverSentAgain, !dead);
        self.processes.journeys.remove(&call);
        if dead { Ok(()) } else { self.tell(call, Err(Failure::Unknown)) }
    }

    /// A process is dead: some of what it has sent arrives, and is answered to nobody.
    pub(super) fn forget_journeys(&mut self, process: usize) {
        for call in self.calls_of(process, |stage| !matches!(stage, Stage::Decided)) {
            let sent = matches!(self.processes.journeys[&call].stage, Stage::Sent);
            if !sent || self.random.coin() {
                self.processes.journeys.remove(&call);
            }
        }
    }
}

/// Whether the product makes this call again when its answer was lost.
fn may_repeat(request: &Request) -> bool {
    let alter = |jobs: &[JobId], action| {
        Call::Alter(AlterJobs::new(Selection::Jobs(jobs.to_vec()), action))
    };
    let call = match request {
        Request::Enqueue(jobs) => Call::Enqueue(jobs.clone()),
        Request::Claim(claim) => Call::Claim(claim.clone()),
        Request::Renew(renewals) => Call::Renew(renewals.clone()),
        Request::Settle(settlements) => Call::Settle(settlements.clone()),
        Request::Turn(turn) => Call::Turn(turn.clone()),
        Request::Rescue(rescue) => Call::Rescue(*rescue),
        Request::Promote => Call::Promote,
        Request::Cancel(jobs) => alter(jobs, JobAction::Cancel),
        Request::Reschedule(jobs, start) => alter(jobs, JobAction::Reschedule(*start)),
        Request::Replay(jobs) => alter(jobs, JobAction::Replay),
        Request::Remove(jobs) => alter(jobs, JobAction::Remove),
        Request::RemoveGraph(jobs) => alter(jobs, JobAction::RemoveGraph),
        Request::ReplayEdited(job, edited) => {
            alter(&[*job], JobAction::ReplayEdited(edited.as_ref().clone().into()))
        }
        Request::Configure(queue, change) => {
            let action = QueueAction::Set(change.clone());
            Call::AlterQueue(AlterQueue::new(queue.clone(), action))
        }
        Request::Clear(queue) => {
            Call::AlterQueue(AlterQueue::new(queue.clone(), QueueAction::Clear))
        }
        Request::Find(jobs) => Call::Jobs(JobQuery::Ids(jobs.clone())),
        Request::Explain(job) => Call::Explain(*job),
        Request::Audit => Call::Count,
        // What the owner does itself, and what is said anew to each.
        Request::RescueLost(_) | Request::Join(..) => return false,
    };
    call.may_repeat()
}
