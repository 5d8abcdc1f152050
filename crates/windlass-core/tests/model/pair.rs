//! The ledger and the model side by side: one step into both, then every comparison.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{TestCaseError, TestCaseResult};
use windlass_core::event::{Event, EventKind, EventResult, Subject};
use windlass_core::job::{Bytes, CancelReason, JobId, LeaseToken, NewJob, State, StateName};
use windlass_core::ledger::{
    Applied, Cancel, Clear, ClearProgress, Command, Configure, Enqueue, JobSummary, Ledger,
    Promote, Remove, RemoveGraph, Renew, Renewal, Replay, ReplayEdited, Reschedule, Restore, Ring,
    Settle, Settlement,
};
use windlass_core::limits::Limits;
use windlass_core::name::Name;
use windlass_core::object::{Address, Alarm, Turn};
use windlass_core::outcome::Verdict;
use windlass_core::record::{Change, JobRecord, NextIds};
use windlass_core::refusal::Refusal;
use windlass_core::time::{Now, Steady, Timestamp};

use crate::journal::Journal;
use crate::naive::{self, About, Naive};
use crate::steps::{self, Draft, Ending, Hand, Identity, Pick, Said, Step};
use crate::turns::{self, AlarmDraft, Spin};

/// Small, so that every bound is met within a few commands.
fn limits() -> Limits {
    Limits {
        payload_bytes: steps::PAYLOAD_BYTES,
        dead_letters: 3,
        history_age: Duration::from_secs(3_600),
        history_jobs: 5,
        audit_entries: 5,
    }
}

/// The same, with cascades of few jobs.
fn bounded(mut ledger: Ledger) -> Ledger {
    ledger.bound_cascades(naive::CASCADE.0, naive::CASCADE.1);
    ledger
}

/// What the events have told of a job.
#[derive(Debug)]
struct Received {
    generation: u32,
    /// It has started, in whichever generation.
    started: bool,
    running: bool,
    ended: Option<StateName>,
    /// What its completion told.
    result: Option<EventResult>,
}

const FRESH: Received =
    Received { generation: 0, started: false, running: false, ended: None, result: None };

/// What came up in the cases, to show that the interesting things did.
#[derive(Default)]
pub(crate) struct Tally(RefCell<BTreeMap<String, u64>>);

impl Tally {
    fn note(&self, reply: &impl Debug, events: &[Event]) {
        let mut tally = self.0.borrow_mut();
        // Every word of a reply and of what was told: crude, and complete.
        let text = format!("{reply:?} {:?}", events.iter().map(|e| &e.what).collect::<Vec<_>>());
        for word in text.split(|c: char| !c.is_alphanumeric()).filter(|word| is_name(word)) {
            *tally.entry(word.to_string()).or_default() += 1;
        }
        for event in events.iter().filter(|event| matches!(event.what, EventKind::Object { .. })) {
            *tally.entry(event.topic().to_string()).or_default() += 1;
        }
    }

    fn note_alarm(&self, before: Option<JobId>, after: Option<JobId>) {
        let what = if before == after { "alarm moved" } else { "alarm replaced" };
        if before.is_some() && after.is_some() {
            *self.0.borrow_mut().entry(what.to_string()).or_default() += 1;
        }
    }

    pub(crate) fn count(&self, word: &str) -> u64 {
        self.0.borrow().get(word).copied().unwrap_or(0)
    }
}

fn is_name(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_uppercase())
}

pub(crate) struct Pair<'a> {
    tally: &'a Tally,
    /// Whether this case is one of those that are tallied.
    tallies: bool,
    ledger: Ledger,
    model: Naive,
    reading: Now,
    /// Every change so far, in order.
    changes: Vec<Change>,
    journal: Journal,
    /// What a store would keep of each job.
    records: BTreeMap<JobId, JobRecord>,
    /// What a store would keep of each object's state.
    states: BTreeMap<Address, Bytes>,
    heard: BTreeMap<JobId, Received>,
    last_event: u64,
    next_id: u32,
    /// Every lease ever given, oldest first.
    leases: Vec<(JobId, LeaseToken)>,
    /// Queues of which a part was cleared.
    clearing: BTreeMap<Name, ClearProgress>,
}

impl<'a> Pair<'a> {
    pub(crate) fn new(tally: &'a Tally, tallies: bool) -> Self {
        Self {
            tally,
            tallies,
            ledger: bounded(Ledger::new(limits())),
            model: Naive::new(limits()),
            reading: Now {
                wall: Timestamp::from_millis(1_800_000_000_000),
                steady: Steady::default(),
            },
            changes: Vec::new(),
            journal: Journal::default(),
            records: BTreeMap::new(),
            states: BTreeMap::new(),
            heard: BTreeMap::new(),
            last_event: 0,
            next_id: 0,
            leases: Vec::new(),
            clearing: BTreeMap::new(),
        }
    }

    /// Takes one step on both sides and compares everything.
    pub(crate) fn take(&mut self, step: Step) -> TestCaseResult {
        if let Step::Compact { from, to, all } = step {
            let place = |hundredth: u8| self.journal.len() * usize::from(hundredth) / 100;
            let span = place(from)..place(to.max(from));
            self.journal.compact(span, all, &self.records, &mut self.ledger);
            return Ok(());
        }
        self.turn_clocks(&step);
        self.model.begin(self.reading);
        match step {
            Step::Pass(_) | Step::SetWall(_) | Step::Promote => {
                let expected = self.model.promote();
                self.compare(Promote, Ok(expected))
            }
            Step::Enqueue(drafts) => {
                let jobs = self.jobs(&drafts);
                let expected = self.model.enqueue(jobs.clone());
                let jobs = jobs.into_iter().map(Arc::new).collect();
                self.compare_tidied(Enqueue { jobs }, expected, agree_on_cycle)
            }
            Step::Claim(request) => {
                let claim = request.claim();
                let expected = self.model.claim(&claim);
                for each in &expected.jobs {
                    let lease = (each.id, each.lease.token);
                    // One that is repeated hands out what was handed out.
                    if !self.leases.contains(&lease) {
                        self.leases.push(lease);
                    }
                }
                self.compare(claim, Ok(expected))
            }
            Step::Renew(renewals) => {
                let renewals: Vec<_> =
                    renewals.into_iter().filter_map(|each| self.renewal(each)).collect();
                let expected = renewals.iter().map(|each| self.model.renew(each)).collect();
                self.compare(Renew { renewals }, Ok(expected))
            }
            Step::Settle(endings) => {
                let settlements: Vec<_> =
                    endings.iter().filter_map(|each| self.settlement(each)).collect();
                let expected =
                    settlements.iter().map(|each| self.model.settle(each.clone())).collect();
                self.compare_tidied(Settle { settlements }, Ok(expected), |replies, cycles| {
                    replies.iter_mut().flatten().for_each(|reply| agree_on_cycle(reply, cycles));
                })
            }
            Step::Turn(spin) => {
                let turn = self.turn(&spin);
                let before = self.alarm_of(&turn.object);
                let expected = self.model.turn(turn.clone());
                if expected.is_ok() && matches!(turn.alarm, Alarm::Set(_)) {
                    self.tally.note_alarm(before, self.alarm_of(&turn.object));
                }
                self.compare_tidied(turn, expected, agree_on_cycle)
            }
            Step::Rescue { look, reason, max_recoveries, delay_s } => {
                let rescue = steps::rescue(look, reason, max_recoveries, delay_s);
                let expected = self.model.rescue(&rescue);
                self.compare(rescue, Ok(expected))
            }
            Step::Cancel(..)
            | Step::Reschedule(..)
            | Step::Replay(..)
            | Step::ReplayEdited(..)
            | Step::Remove(..)
            | Step::RemoveGraph(..)
            | Step::Clear(..)
            | Step::Configure(..)
            | Step::Compact { .. } => self.control(step),
        }
    }

    fn turn_clocks(&mut self, step: &Step) {
        if let Step::Pass(millis) = step {
            let passed = Duration::from_millis(*millis);
            self.reading.wall = self.reading.wall + passed;
            self.reading.steady = self.reading.steady + passed;
        }
        if let Step::SetWall(seconds) = step {
            let micros = self.reading.wall.as_micros() + seconds * 1_000_000;
            self.reading.wall = Timestamp::from_micros(micros);
        }
    }

    /// What people do, rather than workers.
    fn control(&mut self, step: Step) -> TestCaseResult {
        match step {
            Step::Cancel(picks) => {
                let jobs = self.find_all(&picks);
                let reason = CancelReason::Requested;
                let expected = jobs.iter().map(|id| self.model.cancel(*id, reason)).collect();
                self.compare(Cancel { jobs }, Ok(expected))
            }
            Step::Reschedule(picks, begin) => {
                let (jobs, start) = (self.find_all(&picks), begin.start(self.now()));
                let expected = self.model.reschedule(&jobs, start);
                self.compare(Reschedule { jobs, start }, expected)
            }
            Step::Replay(picks) => {
                let jobs = self.find_all(&picks);
                let expected = self.model.replay(jobs.clone());
                self.compare(Replay { jobs }, Ok(expected))
            }
            Step::ReplayEdited(pick, draft) => {
                let job = self.find(pick, &[], &[]).unwrap_or(steps::id(0));
                let edited = self.jobs(&[draft]).remove(0);
                let expected = self.model.replay_edited(job, edited.clone());
                self.compare(ReplayEdited { job, edited }, expected)
            }
            Step::Remove(picks) => {
                let jobs = self.find_all(&picks);
                let expected = jobs.iter().map(|id| self.model.remove(*id)).collect();
                self.compare(Remove { jobs }, Ok(expected))
            }
            Step::RemoveGraph(picks) => {
                let roots = self.find_all(&picks);
                let expected = roots.iter().map(|id| self.model.remove_graph(*id)).collect();
                self.compare(RemoveGraph { roots }, Ok(expected))
            }
            Step::Clear(queue, limit) => {
                let queue = steps::queue(queue);
                let progress = self.clearing.get(&queue).copied().unwrap_or_default();
                let clear = Clear { queue: queue.clone(), progress, limit, by: None };
                let expected = self.model.clear(&clear);
                match expected.bulk.done {
                    true => drop(self.clearing.remove(&queue)),
                    false => drop(self.clearing.insert(queue, expected)),
                }
                self.compare(clear, Ok(expected))
            }
            Step::Configure(queue, change) => {
                let configure = Configure { queue: steps::queue(queue), change, by: None };
                let expected = self.model.configure(&configure);
                self.compare(configure, expected)
            }
            Step::Pass(..)
            | Step::SetWall(..)
            | Step::Promote
            | Step::Enqueue(..)
            | Step::Claim(..)
            | Step::Renew(..)
            | Step::Settle(..)
            | Step::Turn(..)
            | Step::Rescue { .. }
            | Step::Compact { .. } => unreachable!("taken elsewhere"),
        }
    }

    fn now(&self) -> Timestamp {
        self.model.now.wall
    }

    /// The job that is meant, as things stand; `before` and `batch` are its siblings.
    fn find(&self, pick: Pick, before: &[JobId], batch: &[JobId]) -> Option<JobId> {
        let kept = self.model.jobs.iter();
        match pick {
            Pick::In(state, number) => {
                let there = kept.filter(|(_, job)| job.status.state.name() == state);
                nth(&there.map(|(id, _)| *id).collect::<Vec<_>>(), number)
            }
            Pick::Kept(number) => nth(&kept.map(|(id, _)| *id).collect::<Vec<_>>(), number),
            Pick::Before(number) => nth(before, number),
            Pick::Sibling(number) => nth(batch, number),
            Pick::Number(number) => Some(steps::id(u32::from(number))),
        }
    }

    fn find_all(&self, picks: &[Pick]) -> Vec<JobId> {
        picks.iter().filter_map(|pick| self.find(*pick, &[], &[])).collect()
    }

    /// The jobs of a batch, which may name each other.
    fn jobs(&mut self, drafts: &[Draft]) -> Vec<NewJob> {
        let mut ids = Vec::new();
        for draft in drafts {
            let reused = match draft.identity {
                Identity::Reused(pick) => self.find(pick, &[], &[]),
                Identity::Fresh => None,
            };
            self.next_id += u32::from(reused.is_none());
            ids.push(reused.unwrap_or(steps::id(self.next_id)));
        }
        let make = |(place, draft): (usize, &Draft)| {
            draft.job(ids[place], self.now(), |pick| self.find(pick, &ids[..place], &ids))
        };
        drafts.iter().enumerate().map(make).collect()
    }

    /// The job and the token that a worker would name.
    fn lease(&self, hand: Hand) -> Option<(JobId, LeaseToken)> {
        let held: Vec<_> = self.leases.iter().filter(|each| self.is_held(each)).copied().collect();
        match hand {
            Hand::Right(number) => nth(&held, number),
            Hand::Stale(number) => nth(&self.leases, number),
            Hand::Crossed(number, job) => {
                self.find(job, &[], &[]).zip(nth(&held, number).map(|(_, token)| token))
            }
            Hand::MadeUp(job) => self.find(job, &[], &[]).map(|job| (job, LeaseToken(u64::MAX))),
        }
    }

    fn is_held(&self, (id, token): &(JobId, LeaseToken)) -> bool {
        match self.model.jobs.get(id).map(|job| &job.status.state) {
            Some(State::Running(lease)) => lease.token == *token,
            Some(_) | None => false,
        }
    }

    fn renewal(&self, (hand, lease_s, said): (Hand, u32, Said)) -> Option<Renewal> {
        let (job, token) = self.lease(hand)?;
        let report = said.report(self.now());
        Some(Renewal { job, token, lease: steps::seconds(lease_s), report })
    }

    fn settlement(&mut self, ending: &Ending) -> Option<Settlement> {
        let (job, token) = self.lease(ending.hand)?;
        let mut settlement = Settlement::new(job, token, ending.verdict);
        settlement.output = Some(vec![7; ending.output_bytes].into());
        settlement.report = ending.said.report(self.now());
        settlement.next = self.jobs(&ending.next).into_iter().map(Arc::new).collect();
        settlement.turn = ending.turn.as_ref().map(|spin| Box::new(self.turn(spin)));
        Some(settlement)
    }

    fn alarm_of(&self, object: &Address) -> Option<JobId> {
        self.model.objects.get(object).and_then(|object| object.meta.alarm)
    }

    /// The turn that is meant, as things stand.
    fn turn(&mut self, spin: &Spin) -> Turn {
        let object = turns::object(spin.object);
        let version = self.model.objects.get(&object).map_or(0, |object| object.meta.version);
        let mut turn = spin.turn(version);
        turn.alarm = match &spin.alarm {
            AlarmDraft::Keep => Alarm::Keep,
            AlarmDraft::Cancel => Alarm::Cancel,
            AlarmDraft::Move(begin) => Alarm::Move(begin.start(self.now())),
            AlarmDraft::Plain(draft) => {
                let job = self.jobs(std::slice::from_ref(draft)).remove(0);
                let plain = NewJob::new(job.id, job.kind, steps::queue(0), Vec::new());
                Alarm::Set(Arc::new(NewJob { start: job.start, ..plain }))
            }
            AlarmDraft::Any(draft, bound) => {
                let mut job = self.jobs(std::slice::from_ref(draft)).remove(0);
                job.object = bound.then(|| object.clone()).or(job.object);
                Alarm::Set(Arc::new(job))
            }
        };
        let drafts: Vec<Draft> = spin.jobs.iter().map(|(draft, _)| draft.clone()).collect();
        for (mut job, (_, bound)) in self.jobs(&drafts).into_iter().zip(&spin.jobs) {
            job.object = bound.then(|| object.clone()).or(job.object);
            turn.jobs.push(Arc::new(job));
        }
        turn
    }

    fn compare<C: Command + Clone + Debug>(
        &mut self,
        command: C,
        expected: Result<C::Reply, Refusal>,
    ) -> TestCaseResult
    where
        C::Reply: PartialEq + Debug,
    {
        self.compare_tidied(command, expected, |_, _| {})
    }

    /// Gives the ledger the command that the model has answered, and compares.
    fn compare_tidied<C: Command + Clone + Debug>(
        &mut self,
        command: C,
        expected: Result<C::Reply, Refusal>,
        tidy: impl FnOnce(&mut Result<C::Reply, Refusal>, &BTreeSet<JobId>),
    ) -> TestCaseResult
    where
        C::Reply: PartialEq + Debug,
    {
        self.model.finish();
        let shown = command.clone();
        let applied = self.ledger.apply(command, self.reading);
        let Applied { mut reply, changes, events, rings } = applied;
        tidy(&mut reply, &self.model.cycles);
        prop_assert_eq!(&reply, &expected, "the reply to {:?}", shown);
        if self.tallies {
            self.tally.note(&reply, &events);
        }
        self.keep(&changes, &rings)?;
        self.hear(&events)?;
        let counts = self.ledger.counts(self.reading);
        prop_assert_eq!(counts, self.model.counts(), "the counters after {:?}", shown);
        prop_assert_eq!(self.ledger.check(), Vec::<String>::new(), "after {:?}", shown);
        self.compare_objects(&shown)?;
        self.compare_records(&shown)
    }

    /// Every object, its state and what its jobs say are those of the model.
    fn compare_objects(&self, after: &impl Debug) -> TestCaseResult {
        let expected: Vec<_> =
            self.model.objects.iter().map(|(address, object)| (address, &object.meta)).collect();
        let found = self.ledger.objects_after(None).map(|(address, meta, _)| (address, meta));
        prop_assert_eq!(found.collect::<Vec<_>>(), expected, "after {:?}", after);
        prop_assert_eq!(self.ledger.object_count(), self.model.objects.len() as u64);
        let states = self.states.iter().collect::<Vec<_>>();
        let expected: Vec<_> =
            self.model.objects.iter().map(|(address, object)| (address, &object.state)).collect();
        prop_assert_eq!(states, expected, "after {:?}", after);
        for number in 0..3 {
            let address = turns::object(number);
            let (found, expected) =
                (self.ledger.object_jobs(&address), self.model.object_jobs(&address));
            prop_assert_eq!(found, expected, "the jobs of {} after {:?}", address, after);
        }
        Ok(())
    }

    /// Keeps what a store would keep, and checks that no wake is missing.
    fn keep(&mut self, changes: &[Change], rings: &BTreeSet<Ring>) -> TestCaseResult {
        let (mut freed, mut lanes) = (BTreeSet::new(), Vec::new());
        for change in changes {
            match change {
                Change::Insert(accepted) => {
                    let record = JobRecord::new(accepted);
                    let before = self.records.insert(accepted.job.id, record);
                    prop_assert!(before.is_none(), "{} was inserted twice", accepted.job.id);
                    self.check_ring(accepted.job.id, rings)?;
                }
                Change::Update(update) => {
                    let record = self.records.get_mut(&update.job);
                    prop_assert!(record.is_some(), "an update of {}, which is gone", update.job);
                    let record = record.expect("it was just found");
                    if record.status.state.is_running() && !update.status.state.is_running() {
                        freed.insert(record.job.kind.clone());
                        lanes.push(update.job);
                    }
                    record.absorb(update);
                    self.check_ring(update.job, rings)?;
                }
                Change::Remove { job } => {
                    let gone = self.records.remove(job);
                    prop_assert!(gone.is_some(), "{job} was removed twice");
                }
                Change::Queue { .. }
                | Change::Rate { .. }
                | Change::QueueKind { .. }
                | Change::Lane { .. } => {}
                Change::Object(change) => {
                    let known = self.states.get(&change.address).cloned();
                    let state = change.state.clone().or(known);
                    prop_assert!(state.is_some(), "{} has no state", change.address);
                    self.states
                        .insert(change.address.clone(), state.expect("it was just looked at"));
                }
                Change::ObjectGone { address } => {
                    // One that comes and goes in one commit is told of by its end alone.
                    self.states.remove(address);
                }
            }
        }
        self.changes.extend_from_slice(changes);
        self.journal.write(changes, &mut self.ledger);
        self.check_lanes_freed(&lanes, rings)?;
        self.check_freed(freed, rings)
    }

    /// Whoever a concurrency limit turned away is woken when a job of the kind ends.
    fn check_freed(&mut self, kinds: BTreeSet<Name>, rings: &BTreeSet<Ring>) -> TestCaseResult {
        for kind in kinds {
            if !self.model.turned_away.remove(&kind) {
                continue;
            }
            let of_kind = self.model.jobs.values().filter(|job| job.new.kind == kind);
            let ready = of_kind.filter(|job| matches!(job.status.state, State::Ready { .. }));
            for job in ready.filter(|job| self.model.is_its_turn(job)) {
                let ring = Ring::Queue(job.new.queue.clone());
                prop_assert!(rings.contains(&ring), "nobody is woken for {}", job.new.id);
            }
        }
        Ok(())
    }

    /// Whoever found a lane busy is woken when its next job may start.
    fn check_lanes_freed(&self, lanes: &[JobId], rings: &BTreeSet<Ring>) -> TestCaseResult {
        for freed in lanes.iter().filter_map(|id| self.model.jobs.get(id)) {
            for job in self.model.in_lane_of(freed) {
                let ready = matches!(job.status.state, State::Ready { .. });
                let ring = Ring::Queue(job.new.queue.clone());
                let woken = !ready || !self.model.is_its_turn(job) || rings.contains(&ring);
                prop_assert!(woken, "nobody is woken for {}, whose turn it is", job.new.id);
            }
        }
        Ok(())
    }

    /// A job that may start now or at a new time must wake the workers of its queue.
    fn check_ring(&self, id: JobId, rings: &BTreeSet<Ring>) -> TestCaseResult {
        let record = &self.records[&id];
        if let State::Ready { .. } | State::Scheduled { .. } = record.status.state {
            let ring = Ring::Queue(record.job.queue.clone());
            prop_assert!(rings.contains(&ring), "{id} may start and nobody is woken");
        }
        Ok(())
    }

    /// Compares the events with the model's, and with what earlier events have told.
    fn hear(&mut self, events: &[Event]) -> TestCaseResult {
        for event in events {
            prop_assert_eq!(event.number, self.last_event + 1, "events have a gap at {:?}", event);
            self.last_event = event.number;
            prop_assert_eq!(event.at, self.now());
            if let Some(id) = event.job() {
                self.hear_of_job(id, &event.what)?;
            }
        }
        prop_assert_eq!(self.ledger.last_event(), self.last_event);
        let mut told: Vec<_> = events.iter().map(|event| (about(event), event.topic())).collect();
        told.sort();
        prop_assert_eq!(&told, &self.model.told, "the events");
        Ok(())
    }

    /// A job's events make sense one after the other: one end in each generation.
    fn hear_of_job(&mut self, id: JobId, what: &EventKind) -> TestCaseResult {
        if let EventKind::JobEnqueued { .. } = what {
            let heard = FRESH;
            let before = self.heard.insert(id, heard);
            prop_assert!(before.is_none(), "{id} was accepted twice");
            return Ok(());
        }
        let heard = self.heard.get_mut(&id);
        prop_assert!(heard.is_some(), "{what:?} of {id}, which nobody has heard of");
        let heard = heard.expect("it was just found");
        match what {
            EventKind::JobStarted { .. } => {
                prop_assert!(!heard.running && heard.ended.is_none(), "{id} started: {heard:?}");
                (heard.started, heard.running) = (true, true);
            }
            EventKind::JobReplayed { generation } => {
                prop_assert!(heard.ended.is_some(), "{id} was replayed before it ended");
                prop_assert_eq!(*generation, heard.generation + 1);
                // In a new generation it has not started: a turn may call it off without a trace.
                *heard = Received { generation: *generation, ..FRESH };
            }
            EventKind::JobRemoved { .. } => {
                // What an object calls off before it started leaves no trace.
                let may_go = heard.ended.is_some() || !heard.started;
                prop_assert!(may_go, "{id} was removed before it ended");
                self.heard.remove(&id);
            }
            EventKind::JobRetrying { .. }
            | EventKind::JobSnoozed { .. }
            | EventKind::JobReleased { .. } => {
                prop_assert!(heard.running, "{id} went back without running");
                heard.running = false;
            }
            EventKind::JobCompleted { .. }
            | EventKind::JobDead { .. }
            | EventKind::JobCancelled { .. } => {
                // The one end after an end: a dead job gives its place to an edited one.
                let replaced = EventKind::JobCancelled { reason: CancelReason::Replaced };
                let first = heard.ended.is_none();
                let replacement = *what == replaced && heard.ended == Some(StateName::Dead);
                prop_assert!(first || replacement, "{id} ended twice: {what:?}, {heard:?}");
                heard.running = false;
                heard.ended = ended(what);
                if let EventKind::JobCompleted { result, .. } = what {
                    heard.result = Some(result.clone());
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// The records a store would have, the model's jobs and what the events told are one.
    fn compare_records(&self, after: &impl Debug) -> TestCaseResult {
        let known: Vec<&JobId> = self.model.jobs.keys().collect();
        prop_assert_eq!(
            self.records.keys().collect::<Vec<_>>(),
            known.clone(),
            "after {:?}",
            after
        );
        prop_assert_eq!(self.heard.keys().collect::<Vec<_>>(), known, "after {:?}", after);
        for (id, job) in &self.model.jobs {
            prop_assert_eq!(self.ledger.dependents(*id), self.model.waiting_for(*id));
            let record = self.records[id].clone().seen_at(self.now());
            prop_assert_eq!(&record.status, &job.status, "{} after {:?}", id, after);
            prop_assert_eq!(record.sequence, job.sequence);
            prop_assert_eq!(record.created_at, job.accepted_at);
            prop_assert_eq!(record.first_started_at, job.first_started_at);
            prop_assert_eq!(record.last_recovery_at, job.last_recovery_at);
            let last = record.attempts.back().and_then(|last| last.ended).map(|(_, end)| end);
            prop_assert_eq!(last, job.last_end, "the last end of {} after {:?}", id, after);
            prop_assert_eq!(&record.output, &job.output, "the output of {} after {:?}", id, after);
            prop_assert_eq!(record.progress.map(|progress| progress.percent), job.percent);
            prop_assert_eq!(&record.steps, &job.steps, "the steps of {} after {:?}", id, after);
            prop_assert_eq!(record.log.len() + record.log_dropped as usize, job.lines);
            let starts = record.attempts.len() + record.attempts_dropped as usize;
            prop_assert_eq!(starts, job.starts as usize);
            let running = record.attempts.back().is_some_and(|last| last.ended.is_none());
            let state = record.status.state.name();
            prop_assert_eq!(running, state == StateName::Running, "{} after {:?}", id, after);
            let heard = &self.heard[id];
            prop_assert_eq!(heard.running, running);
            prop_assert_eq!(heard.ended, state.is_terminal().then_some(state));
            let completed = state == StateName::Completed;
            let result = completed.then(|| EventResult::of(record.output.as_ref()));
            prop_assert_eq!(&heard.result, &result, "the result of {} after {:?}", id, after);
            prop_assert_eq!(heard.generation, record.status.generation);
        }
        Ok(())
    }

    /// Ledgers that were rebuilt from what was kept are equal to it, and go on the same way.
    pub(crate) fn rebuild(mut self) -> TestCaseResult {
        let tokens: Vec<LeaseToken> = self.leases.iter().map(|(_, token)| *token).collect();
        prop_assert!(tokens.is_sorted_by(|one, next| one < next), "tokens repeat: {tokens:?}");
        let from_journal = bounded(self.journal.restore(limits()));
        self.compare_kept(&from_journal)?;
        let mut rebuilt = [self.rebuilt_from_changes()?, from_journal];
        self.reading = self.ledger.glance(self.reading);
        for second in &mut rebuilt {
            second.glance(self.reading);
            prop_assert_eq!(second.next_ids(), self.ledger.next_ids());
            prop_assert_eq!(second.check(), Vec::<String>::new(), "in the rebuilt ledger");
            let counts = second.counts(self.reading);
            prop_assert_eq!(counts, self.ledger.counts(self.reading));
            prop_assert_eq!(second.dump(), self.ledger.dump());
            self.compare_glimpses(second)?;
        }
        let held = self.leases.iter().filter(|lease| self.is_held(lease));
        let back = held.map(|(job, token)| Settlement::new(*job, *token, Verdict::Release));
        let settlements = back.collect();
        self.go_on(&mut rebuilt, &Settle { settlements })?;
        self.reading.wall = self.reading.wall + Duration::from_secs(10);
        self.reading.steady = self.reading.steady + Duration::from_secs(10);
        self.go_on(&mut rebuilt, &steps::take_everything())?;
        self.go_on(&mut rebuilt, &Promote)?;
        self.end_everything(&mut rebuilt)?;
        for second in &rebuilt {
            prop_assert_eq!(second.dump(), self.ledger.dump());
        }
        Ok(())
    }

    /// What runs completes, and what is left is called off.
    fn end_everything(&mut self, rebuilt: &mut [Ledger]) -> TestCaseResult {
        let jobs: Vec<JobId> = self.model.jobs.keys().copied().collect();
        let completed = jobs.iter().filter_map(|job| match self.ledger.status_of(*job)?.state {
            State::Running(lease) => Some(Settlement::new(*job, lease.token, Verdict::Complete)),
            _ => None,
        });
        let settlements = completed.collect();
        self.go_on(rebuilt, &Settle { settlements })?;
        self.go_on(rebuilt, &Cancel { jobs })
    }

    /// A ledger that took over every change, each twice, which is harmless.
    fn rebuilt_from_changes(&self) -> Result<Ledger, TestCaseError> {
        let mut restore = Restore::new(limits());
        let mut reached = Timestamp::default();
        for change in self.changes.iter().chain(&self.ledger.image()) {
            reached = reached.max(made_at(change).unwrap_or(reached));
            restore.absorb(change);
            restore.absorb(change);
        }
        // How far time has come is told by the changes, too.
        restore.next_ids(NextIds { wall: Timestamp::default(), ..self.ledger.next_ids() });
        let mut second = bounded(restore.finish());
        let resumed = second.glance(Now { wall: Timestamp::default(), ..self.reading }).wall;
        prop_assert_eq!(resumed, reached, "time went on or back");
        Ok(second)
    }

    /// The store finds every record where it has put it.
    fn compare_kept(&self, second: &Ledger) -> TestCaseResult {
        prop_assert_eq!(second.next_ids(), self.ledger.next_ids());
        prop_assert_eq!(second.kept_bytes(), self.ledger.kept_bytes());
        for job in self.model.jobs.keys() {
            prop_assert_eq!(second.kept(*job), self.ledger.kept(*job), "the place of {}", job);
        }
        for address in self.model.objects.keys() {
            prop_assert_eq!(second.object(address), self.ledger.object(address), "{}", address);
        }
        Ok(())
    }

    /// What the ledger shows of its jobs is what the model has, in the order of acceptance.
    fn compare_glimpses(&self, ledger: &Ledger) -> TestCaseResult {
        let mut jobs: Vec<&naive::Job> = self.model.jobs.values().collect();
        jobs.sort_by_key(|job| job.sequence);
        let expected: Vec<JobSummary<'_>> = jobs.iter().map(|job| summary(job)).collect();
        let middle = jobs.get(jobs.len() / 2).map_or(0, |job| job.sequence);
        let after: Vec<_> = ledger.summaries_after(middle).collect();
        let mut before: Vec<_> = ledger.summaries_before(middle + 1).collect();
        before.reverse();
        before.extend(after);
        prop_assert_eq!(before, expected);
        Ok(())
    }

    /// All ledgers answer one more command, with the same words and the same changes.
    fn go_on<C: Command + Clone>(&mut self, others: &mut [Ledger], command: &C) -> TestCaseResult
    where
        C::Reply: PartialEq + Debug,
    {
        let one = self.ledger.apply(command.clone(), self.reading);
        for other in others {
            let other = other.apply(command.clone(), self.reading);
            prop_assert_eq!(&other.reply, &one.reply);
            prop_assert_eq!(&other.changes, &one.changes);
            prop_assert_eq!(&other.events, &one.events);
        }
        Ok(())
    }
}

fn summary(job: &naive::Job) -> JobSummary<'_> {
    JobSummary {
        id: job.new.id,
        sequence: job.sequence,
        queue: &job.new.queue,
        kind: &job.new.kind,
        state: job.status.state.name(),
    }
}

fn nth<T: Copy>(from: &[T], number: u8) -> Option<T> {
    let place = usize::from(number).checked_rem(from.len())?;
    from.get(place).copied()
}

/// A refusal may name any job of a cycle; the model names the first.
fn agree_on_cycle<R>(reply: &mut Result<R, Refusal>, cycles: &BTreeSet<JobId>) {
    if let Err(Refusal::DependencyCycle { job }) = reply
        && cycles.contains(job)
        && let Some(first) = cycles.first()
    {
        *job = *first;
    }
}

fn made_at(change: &Change) -> Option<Timestamp> {
    match change {
        Change::Insert(accepted) => Some(accepted.at),
        Change::Update(update) => Some(update.at),
        Change::Remove { .. }
        | Change::Queue { .. }
        | Change::Rate { .. }
        | Change::QueueKind { .. }
        | Change::Lane { .. }
        | Change::ObjectGone { .. } => None,
        Change::Object(change) => Some(change.meta.updated_at),
    }
}

fn about(event: &Event) -> About {
    match &event.subject {
        Subject::Job { id, .. } => About::Job(*id),
        Subject::Queue(name) => About::Queue(name.clone()),
        Subject::Worker(worker) => panic!("no command here is about a worker, such as {worker}"),
        Subject::Object(address) => About::Object(address.clone()),
    }
}

fn ended(what: &EventKind) -> Option<StateName> {
    match what {
        EventKind::JobCompleted { .. } => Some(StateName::Completed),
        EventKind::JobDead { .. } => Some(StateName::Dead),
        EventKind::JobCancelled { .. } => Some(StateName::Cancelled),
        _ => None,
    }
}
