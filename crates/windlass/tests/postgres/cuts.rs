//! The connection is lost between a commit and its answer: the answer is *unknown*, never a
//! refusal, and repeating the call with the same ids and tokens has no second effect.

use std::fmt::Debug;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use windlass::core::event::RecoveryReason;
use windlass::core::filter::Filter;
use windlass::core::job::{LeaseToken, NewJob, RequestId, Start, Unique};
use windlass::core::ledger::{
    Claim, QueueChange, Renewal, Rescue, Settled, Settlement, WorkerInfo, WorkerKind, WorkerReport,
};
use windlass::core::object::{Address, Turn};
use windlass::core::outcome::Verdict;
use windlass::core::record::{Report, Step};
use windlass::store::postgres::PostgresStore;
use windlass::store::{
    AlterJobs, Answer, ClaimedJob, JobAction, JobActionResult, ObjectFilter, Selection, Store,
    StoreExt,
};
use windlass::store::{JobActionDone, StoreError};
use windlass::{
    Acceptance, CancelAnswer, DeadReason, Dependency, EventKind, JobId, JobRecord, JobState,
    Limits, OnFailure, Recovery, Refusal, StateName, UniqueScope,
};
use windlass_testbed::{Direction, Fault, Proxy};

use crate::common::{Ground, claim, name, raw};

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);

/// A store behind a network that cuts, and one beside it that sees what is true.
struct Rig {
    ground: Ground,
    proxy: Proxy,
    store: Arc<PostgresStore>,
    truth: Arc<PostgresStore>,
}

async fn rig() -> Option<Rig> {
    let ground = Ground::new()?;
    ground.make_clock();
    let proxy = Proxy::postgres(ground.server.port());
    let address = ground.text_address();
    let truth = ground.store_at(&address, Limits::default()).await;
    // One connection: the next answer is that of the call that is made.
    let through = format!("{}&windlass_pool=1", proxy.url(&address));
    let store = ground.store_at(&through, Limits::default()).await;
    Some(Rig { ground, proxy, store, truth })
}

impl Rig {
    /// Makes a call and cuts before its answer, when it is done: it must be unknown.
    async fn lose<T: Debug>(&self, call: impl Future<Output = Answer<T>>) {
        self.proxy.set(Fault::CutBeforeAnswer { nth: 1 });
        let answer = call.await;
        assert!(!self.proxy.is_armed(), "nothing was asked, and answered {answer:?}");
        assert_unknown(&answer);
    }

    /// Accepts a job, with its names known to the store, so that an enqueue is one call.
    async fn accepted(&self, job: NewJob) -> JobId {
        let id = job.id;
        self.store.enqueue(vec![Arc::new(job)]).await.expect("it is accepted");
        id
    }

    async fn taken(&self, job: NewJob) -> ClaimedJob {
        let id = self.accepted(job).await;
        let mut handed = self.store.claim(claim("w", 1)).await.expect("a claim is answered");
        let handed = handed.jobs.pop().expect("a job is claimable");
        assert_eq!(handed.job.id, id);
        handed
    }

    async fn dead(&self) -> JobId {
        let handed = self.taken(raw(0)).await;
        let bury = ending(&handed, Verdict::Bury(DeadReason::Permanent));
        settled(self.store.settle(vec![bury]).await).expect("the lease is held");
        handed.job.id
    }

    async fn record(&self, job: JobId) -> JobRecord {
        let found = self.truth.find(&[job]).await.expect("a find is answered").remove(0);
        found.expect("the job is kept")
    }

    async fn state(&self, job: JobId) -> StateName {
        self.record(job).await.status.state.name()
    }

    /// How many jobs are kept.
    async fn jobs(&self) -> usize {
        self.truth.list(&Filter::default(), None, 1_000).await.expect("a list").jobs.len()
    }

    /// How many events of these there were.
    async fn told(&self, meant: impl Fn(&EventKind) -> bool) -> usize {
        let events =
            self.truth.events(0, usize::MAX, Duration::ZERO).await.expect("events are answered");
        events.iter().filter(|event| meant(&event.what)).count()
    }

    async fn alter(&self, job: JobId, alteration: JobAction) -> Result<JobActionDone, Refusal> {
        let altered =
            self.store.alter(AlterJobs::new(Selection::Jobs(vec![job]), alteration)).await;
        let [JobActionResult { result, .. }] = &altered.expect("it is answered")[..] else {
            panic!("one job has one answer")
        };
        result.clone()
    }
}

#[track_caller]
fn assert_unknown<T: Debug>(answer: &Answer<T>) {
    assert!(matches!(answer, Err(StoreError::Unknown { .. })), "the answer was {answer:?}");
}

fn ending(handed: &ClaimedJob, verdict: Verdict) -> Settlement {
    Settlement::new(handed.job.id, handed.lease.token, verdict)
}

/// The answer to a single settlement.
fn settled<T: Clone + Debug>(answers: Answer<Vec<Result<T, Refusal>>>) -> Result<T, Refusal> {
    let answers = answers.expect("it is answered");
    assert_eq!(answers.len(), 1);
    answers[0].clone()
}

#[tokio::test(flavor = "current_thread")]
async fn an_enqueue_that_lost_its_answer_gives_one_job_when_repeated() {
    let Some(rig) = rig().await else { return };
    rig.accepted(raw(0)).await;
    let job = Arc::new(raw(1));
    rig.lose(rig.store.enqueue(vec![job.clone()])).await;
    assert_eq!(rig.state(job.id).await, StateName::Ready, "it was committed");
    let again = rig.store.enqueue(vec![job.clone()]).await.expect("it is answered");
    assert_eq!((again[0].id, again[0].acceptance), (job.id, Acceptance::AlreadyAccepted));
    assert_eq!(rig.jobs().await, 2);
    assert_eq!(rig.told(|what| matches!(what, EventKind::JobEnqueued { .. })).await, 2);
}

#[tokio::test(flavor = "current_thread")]
async fn a_batch_that_lost_its_answer_gives_each_job_once_when_repeated() {
    let Some(rig) = rig().await else { return };
    rig.accepted(raw(0)).await;
    let mut jobs: Vec<NewJob> = (0..100).map(raw).collect();
    let first = jobs[0].id;
    jobs[1].depends_on = vec![Dependency { on: first, on_failure: OnFailure::default() }];
    let key = "once".to_string();
    jobs[2].unique = Some(Unique { key, scope: UniqueScope::Open, window: None });
    let jobs: Vec<Arc<NewJob>> = jobs.into_iter().map(Arc::new).collect();
    rig.lose(rig.store.enqueue(jobs.clone())).await;
    assert_eq!(rig.jobs().await, 101);
    // The unique one does not meet itself.
    let again = rig.store.enqueue(jobs).await.expect("it is answered");
    assert!(again.iter().all(|each| each.acceptance == Acceptance::AlreadyAccepted), "{again:?}");
    assert_eq!(rig.jobs().await, 101);
}

#[tokio::test(flavor = "current_thread")]
async fn a_new_name_whose_note_lost_its_answer_is_noted_once() {
    let Some(rig) = rig().await else { return };
    let job = Arc::new(NewJob { queue: name("mail"), ..raw(1) });
    rig.lose(rig.store.enqueue(vec![job.clone()])).await;
    assert_eq!(rig.jobs().await, 0, "only the name was noted");
    rig.store.enqueue(vec![job]).await.expect("it is accepted");
    let counts = rig.truth.count().await.expect("counters are answered");
    assert_eq!((counts.lines.len(), counts.queues.len(), rig.jobs().await), (1, 1, 1));
}

#[tokio::test(flavor = "current_thread")]
async fn a_connection_that_is_cut_while_it_is_made_is_a_refusal_for_nothing_was_asked() {
    let Some(rig) = rig().await else { return };
    rig.accepted(raw(0)).await;
    rig.lose(rig.store.count()).await;
    rig.proxy.set(Fault::CutBeforeAnswer { nth: 1 });
    let refused = rig.store.enqueue(vec![Arc::new(raw(1))]).await;
    let Err(StoreError::Refused(Refusal::Unavailable { why })) = refused else {
        panic!("the answer was {refused:?}")
    };
    assert!(why.starts_with("cannot reach the database"), "{why}");
    assert_eq!(rig.jobs().await, 1);
}

#[tokio::test(flavor = "current_thread")]
async fn a_claim_that_lost_its_answer_is_rescued_when_its_lease_ends_and_not_handed_out_before() {
    let Some(rig) = rig().await else { return };
    let job = rig.accepted(raw(1)).await;
    rig.lose(rig.store.claim(claim("w", 10))).await;
    assert_eq!(rig.state(job).await, StateName::Running);
    let again = rig.store.claim(claim("w", 10)).await.expect("it is answered");
    assert!(again.jobs.is_empty(), "it is in nobody's hands twice");
    rig.ground.advance(31 * SECOND);
    let rescue = Rescue { recovery: Recovery::default(), reason: RecoveryReason::LeaseExpired };
    let rescued = rig.store.rescue(rescue).await.expect("it is answered");
    assert_eq!(rescued.jobs.len(), 1);
    rig.ground.advance(SECOND);
    let again = rig.store.claim(claim("w", 10)).await.expect("it is answered");
    assert_eq!((again.jobs[0].attempt, again.jobs[0].recoveries), (2, 1));
}

#[tokio::test(flavor = "current_thread")]
async fn a_claim_that_lost_its_answer_hands_out_the_same_jobs_when_it_is_repeated() {
    let Some(rig) = rig().await else { return };
    // Under a batch lease, and, with a key, under leases of their own.
    for number in [1, 2] {
        let unique =
            |place: u64| Unique { key: place.to_string(), scope: UniqueScope::Open, window: None };
        let mut jobs = Vec::new();
        for place in 0..3 {
            let unique = (number == 2).then(|| unique(place));
            jobs.push(rig.accepted(NewJob { unique, ..raw(place) }).await);
        }
        let request = Some(RequestId(number));
        rig.lose(rig.store.claim(Claim { request, ..claim("w", 3) })).await;
        let waiting = rig.accepted(raw(9)).await;
        let again = rig.store.claim(Claim { request, ..claim("w", 3) }).await.expect("answered");
        assert_eq!(again.jobs.iter().map(|handed| handed.job.id).collect::<Vec<_>>(), jobs);
        for handed in &again.jobs {
            assert_eq!(handed.attempt, 1);
            let state = rig.record(handed.job.id).await.status.state;
            assert_eq!(state, JobState::Running(handed.lease.clone()));
            let end = ending(handed, Verdict::Complete);
            settled(rig.store.settle(vec![end]).await).expect("the lease is held");
        }
        assert_eq!(rig.state(waiting).await, StateName::Ready, "nothing new was claimed");
        rig.store.clear(name("default")).await.expect("it is answered");
    }
    let started = rig.told(|what| matches!(what, EventKind::JobStarted { .. })).await;
    assert_eq!(started, 6, "each started once");
}

#[tokio::test(flavor = "current_thread")]
async fn a_renewal_that_lost_its_answer_is_made_again_and_its_step_counts_once() {
    let Some(rig) = rig().await else { return };
    let handed = rig.taken(raw(1)).await;
    let step = Step { name: name("paid"), result: b"7".to_vec().into() };
    let report = Report { steps: vec![step], ..Report::default() };
    let (job, token) = (handed.job.id, handed.lease.token);
    let renewal = Renewal { job, token, lease: 60 * SECOND, report };
    rig.ground.advance(SECOND);
    rig.lose(rig.store.renew(vec![renewal.clone()])).await;
    let JobState::Running(lease) = rig.record(job).await.status.state else { panic!("it runs") };
    assert!(lease.until > handed.lease.until, "it was renewed");
    settled(rig.store.renew(vec![renewal]).await).expect("the lease is held");
    assert_eq!(rig.record(job).await.steps.len(), 1);
    assert_eq!(rig.told(|what| matches!(what, EventKind::StepCompleted { .. })).await, 1);
}

#[tokio::test(flavor = "current_thread")]
async fn a_settlement_that_lost_its_answer_has_happened_and_its_repetition_says_so() {
    let Some(rig) = rig().await else { return };
    let verdicts = [
        (Verdict::Complete, StateName::Completed),
        (Verdict::Retry(HOUR), StateName::Scheduled),
        (Verdict::Snooze(HOUR), StateName::Scheduled),
        (Verdict::Bury(DeadReason::Permanent), StateName::Dead),
    ];
    for (verdict, state) in verdicts {
        let handed = rig.taken(raw(1)).await;
        let end = ending(&handed, verdict);
        rig.lose(rig.store.settle(vec![end.clone()])).await;
        let job = handed.job.id;
        let before = rig.record(job).await;
        assert_eq!(before.status.state.name(), state);
        let again = settled(rig.store.settle(vec![end]).await);
        assert_eq!(again, Ok(Settled { state }));
        assert_eq!(rig.record(job).await, before, "nothing happened twice");
    }
}

#[tokio::test(flavor = "current_thread")]
async fn a_settlement_with_next_jobs_and_a_turn_that_lost_its_answer_makes_them_once() {
    let Some(rig) = rig().await else { return };
    let handed = rig.taken(raw(1)).await;
    let (job, next) = (handed.job.id, raw(2));
    let waits = vec![Dependency { on: job, on_failure: OnFailure::default() }];
    let dependent = rig.accepted(NewJob { depends_on: waits, ..raw(3) }).await;
    let mut end = ending(&handed, Verdict::Complete);
    end.next = vec![Arc::new(next.clone())];
    rig.lose(rig.store.settle(vec![end.clone()])).await;
    let completed = Ok(Settled { state: StateName::Completed });
    assert_eq!(settled(rig.store.settle(vec![end]).await), completed);
    assert_eq!(rig.state(next.id).await, StateName::Ready);
    assert_eq!(rig.state(dependent).await, StateName::Ready);
    assert_eq!(rig.jobs().await, 3);
    assert_eq!(rig.told(|what| matches!(what, EventKind::JobUnblocked)).await, 1);

    rig.store.clear(name("default")).await.expect("it is answered");
    let handed = rig.taken(raw(4)).await;
    let mut end = ending(&handed, Verdict::Complete);
    end.turn = Some(Box::new(turn(0, b"one")));
    rig.lose(rig.store.settle(vec![end.clone()])).await;
    assert_eq!(settled(rig.store.settle(vec![end]).await), completed);
    let seen = rig.truth.object(&thing()).await.expect("it is answered").expect("it is there");
    assert_eq!((seen.record.meta.version, &seen.record.state[..]), (1, &b"one"[..]));
}

fn thing() -> Address {
    Address::new(name("test"), name("things"), "a").expect("an address")
}

fn turn(version: u64, state: &[u8]) -> Turn {
    Turn { state: Some(state.to_vec().into()), ..Turn::new(thing(), version) }
}

#[tokio::test(flavor = "current_thread")]
async fn a_turn_that_lost_its_answer_has_happened_and_its_repetition_meets_another_version() {
    let Some(rig) = rig().await else { return };
    rig.accepted(raw(0)).await;
    let made = Turn { jobs: vec![Arc::new(raw(1))], ..turn(0, b"one") };
    rig.lose(rig.store.turn(made.clone())).await;
    let again = rig.store.turn(made).await;
    let Err(StoreError::Refused(Refusal::ObjectChanged { version, .. })) = again else {
        panic!("the answer was {again:?}")
    };
    assert_eq!((version, rig.jobs().await), (1, 2));
    let next = rig.store.turn(turn(1, b"two")).await.expect("it is made from what is there");
    assert_eq!(next.version, 2);
}

#[tokio::test(flavor = "current_thread")]
async fn an_alteration_that_lost_its_answer_happens_once() {
    let Some(rig) = rig().await else { return };
    let one = |job: JobId| Selection::Jobs(vec![job]);
    // Called off while it waits.
    let waiting = rig.accepted(raw(1)).await;
    rig.lose(rig.store.alter(AlterJobs::new(one(waiting), JobAction::Cancel))).await;
    assert_eq!(rig.state(waiting).await, StateName::Cancelled);
    let again = rig.alter(waiting, JobAction::Cancel).await;
    assert!(!matches!(again, Ok(JobActionDone::Cancel(CancelAnswer::Requested))), "{again:?}");
    assert_eq!(rig.told(|what| matches!(what, EventKind::JobCancelled { .. })).await, 1);
    // Moved.
    let later = rig.accepted(raw(2)).await;
    let move_it = JobAction::Reschedule(Start::After(HOUR));
    rig.lose(rig.store.alter(AlterJobs::new(one(later), move_it.clone()))).await;
    assert_eq!(
        rig.alter(later, move_it).await,
        Ok(JobActionDone::Rescheduled(StateName::Scheduled))
    );
    assert_eq!(rig.record(later).await.status.attempts, 0);
    // Replayed.
    let dead = rig.dead().await;
    rig.lose(rig.store.alter(AlterJobs::new(one(dead), JobAction::Replay))).await;
    let again = rig.alter(dead, JobAction::Replay).await;
    assert!(matches!(again, Err(Refusal::WrongState { .. })), "{again:?}");
    assert_eq!(rig.record(dead).await.status.generation, 1);
    // Removed.
    rig.lose(rig.store.alter(AlterJobs::new(one(waiting), JobAction::Remove))).await;
    let again = rig.alter(waiting, JobAction::Remove).await;
    assert!(matches!(again, Err(Refusal::UnknownJob { .. })), "{again:?}");
    assert_eq!(rig.jobs().await, 2);
}

#[tokio::test(flavor = "current_thread")]
async fn a_cancellation_of_a_running_job_that_lost_its_answer_is_still_told_to_its_worker() {
    let Some(rig) = rig().await else { return };
    let handed = rig.taken(raw(1)).await;
    let (job, token) = (handed.job.id, handed.lease.token);
    rig.lose(rig.store.alter(AlterJobs::new(Selection::Jobs(vec![job]), JobAction::Cancel))).await;
    let renewal = Renewal { job, token, lease: 30 * SECOND, report: Report::default() };
    let renewed = settled(rig.store.renew(vec![renewal]).await).expect("the lease is held");
    assert!(renewed.cancel_requested);
    let again = rig.alter(job, JobAction::Cancel).await;
    assert_eq!(again, Ok(JobActionDone::Cancel(CancelAnswer::Requested)));
    assert_eq!(rig.told(|what| matches!(what, EventKind::JobCancelRequested)).await, 1);
}

#[tokio::test(flavor = "current_thread")]
async fn an_edited_replay_that_lost_its_answer_puts_one_job_in_the_place_of_the_dead_one() {
    let Some(rig) = rig().await else { return };
    let dead = rig.dead().await;
    let edited = NewJob { parent: Some(dead), ..raw(2) };
    rig.lose(rig.store.replay_edited(dead, edited.clone())).await;
    let again = rig.store.replay_edited(dead, edited.clone()).await;
    let Err(StoreError::Refused(refusal)) = again else { panic!("the answer was {again:?}") };
    assert!(matches!(refusal, Refusal::WrongState { .. }), "{refusal}");
    assert_eq!(rig.state(dead).await, StateName::Cancelled);
    assert_eq!((rig.state(edited.id).await, rig.jobs().await), (StateName::Ready, 2));
}

#[tokio::test(flavor = "current_thread")]
async fn a_setting_that_lost_its_answer_is_set() {
    let Some(rig) = rig().await else { return };
    rig.accepted(raw(1)).await;
    let queue = || name("default");
    rig.lose(rig.store.configure(queue(), QueueChange::Pause)).await;
    let claimed = rig.truth.claim(claim("w", 1)).await.expect("it is answered");
    assert!(claimed.jobs.is_empty(), "the queue is paused");
    let again = rig.store.configure(queue(), QueueChange::Pause).await.expect("it is answered");
    assert!(again.paused);
    assert_eq!(rig.told(|what| matches!(what, EventKind::QueuePaused)).await, 1);
}

#[tokio::test(flavor = "current_thread")]
async fn a_clearing_that_lost_its_answer_is_done() {
    let Some(rig) = rig().await else { return };
    let job = rig.accepted(raw(1)).await;
    rig.lose(rig.store.clear(name("default"))).await;
    assert_eq!(rig.state(job).await, StateName::Cancelled);
    let again = rig.store.clear(name("default")).await.expect("it is answered");
    assert_eq!((again.cleared, again.followed), (0, 0));
}

#[tokio::test(flavor = "current_thread")]
async fn a_rescue_that_lost_its_answer_counts_one_recovery() {
    let Some(rig) = rig().await else { return };
    let handed = rig.taken(raw(1)).await;
    rig.ground.advance(31 * SECOND);
    let rescue = Rescue { recovery: Recovery::default(), reason: RecoveryReason::LeaseExpired };
    rig.lose(rig.store.rescue(rescue)).await;
    let again = rig.store.rescue(rescue).await.expect("it is answered");
    assert!(again.jobs.is_empty());
    let record = rig.record(handed.job.id).await;
    assert_eq!((record.status.recoveries, record.status.attempts), (1, 1));
    let job = handed.job.id;
    let late = settled(rig.store.settle(vec![ending(&handed, Verdict::Complete)]).await);
    assert_eq!(late, Err(Refusal::LeaseLost { job }), "whoever lost the job changes nothing");
}

#[tokio::test(flavor = "current_thread")]
async fn time_that_passed_without_an_answer_has_passed_once() {
    let Some(rig) = rig().await else { return };
    let start = Start::After(SECOND);
    let due = rig.accepted(NewJob { start, ..raw(1) }).await;
    let stale = rig
        .accepted(NewJob { start: Start::After(HOUR), expires_after: Some(SECOND), ..raw(2) })
        .await;
    rig.ground.advance(2 * SECOND);
    rig.lose(rig.store.promote()).await;
    rig.store.promote().await.expect("it is answered");
    assert_eq!(rig.state(due).await, StateName::Ready);
    assert_eq!(rig.state(stale).await, StateName::Cancelled);
    assert_eq!(rig.told(|what| matches!(what, EventKind::JobCancelled { .. })).await, 1);
}

#[tokio::test(flavor = "current_thread")]
async fn a_worker_whose_word_lost_its_answer_is_known_once() {
    let Some(rig) = rig().await else { return };
    let kinds = vec![WorkerKind { kind: name("work"), concurrency: None, rate: None }];
    let card = WorkerInfo { queues: None, kinds, slots: 4, quiet: false };
    rig.lose(rig.store.heartbeat("w".into(), WorkerReport::Started(card.clone()))).await;
    rig.store.heartbeat("w".into(), WorkerReport::Started(card)).await.expect("it is answered");
    let counts = rig.truth.count().await.expect("counters are answered");
    assert_eq!(counts.workers.len(), 1);
}

#[tokio::test(flavor = "current_thread")]
async fn a_question_that_lost_its_answer_is_answered_when_asked_again() {
    let Some(rig) = rig().await else { return };
    let job = rig.accepted(raw(1)).await;
    let (store, all) = (&rig.store, Filter::default());
    rig.lose(store.find(&[job])).await;
    assert!(store.find(&[job]).await.expect("it is answered")[0].is_some());
    rig.lose(store.list(&all, None, 10)).await;
    assert_eq!(store.list(&all, None, 10).await.expect("it is answered").jobs.len(), 1);
    rig.lose(store.count()).await;
    assert_eq!(store.count().await.expect("it is answered").lines.len(), 1);
    rig.lose(store.explain(job)).await;
    store.explain(job).await.expect("it is answered");
    rig.lose(store.dependents(job)).await;
    assert!(store.dependents(job).await.expect("it is answered").is_empty());
    rig.lose(store.events(0, 10, Duration::ZERO)).await;
    assert!(!store.events(0, 10, Duration::ZERO).await.expect("it is answered").is_empty());
    rig.lose(store.object(&thing())).await;
    assert!(store.object(&thing()).await.expect("it is answered").is_none());
    let objects = ObjectFilter::default();
    rig.lose(store.list_objects(&objects, None, 10)).await;
    assert!(
        store.list_objects(&objects, None, 10).await.expect("it is answered").objects.is_empty()
    );
}

/// How far apart the bytes are at which a request or an answer is cut: a divisor of nothing in it.
const STEP: usize = 7;

#[tokio::test(flavor = "current_thread")]
async fn an_enqueue_that_is_cut_at_any_byte_of_its_request_or_answer_gives_one_job_or_none() {
    let Some(rig) = rig().await else { return };
    rig.accepted(raw(0)).await;
    for direction in [Direction::ToServer, Direction::ToClient] {
        let (mut cuts, mut done) = (0, 0);
        for bytes in (1..).step_by(STEP) {
            let job = Arc::new(raw(1));
            rig.proxy.set(Fault::CutAfter { direction, bytes });
            let answer = rig.store.enqueue(vec![job.clone()]).await;
            if rig.proxy.is_armed() {
                rig.proxy.heal();
                answer.expect("nothing was cut");
                break;
            }
            cuts += 1;
            // The last bytes of an answer say nothing that the client waits for.
            let known = direction == Direction::ToClient && answer.is_ok();
            if !known {
                assert_unknown(&answer);
            }
            let kept = rig.truth.find(&[job.id]).await.expect("a find is answered")[0].is_some();
            done += usize::from(kept);
            assert!(direction == Direction::ToServer || kept, "it was answered, so it is there");
            let again = rig.store.enqueue(vec![job.clone()]).await.expect("it is answered");
            assert_eq!(again[0].id, job.id);
            if kept {
                assert_eq!(again[0].acceptance, Acceptance::AlreadyAccepted, "at {bytes}");
            }
        }
        assert!(cuts > 20, "{cuts} cuts are a request");
        assert!(direction == Direction::ToServer || done == cuts);
    }
    let enqueued = rig.told(|what| matches!(what, EventKind::JobEnqueued { .. })).await;
    assert_eq!(rig.jobs().await, enqueued.min(1_000));
}

#[tokio::test(flavor = "current_thread")]
async fn a_token_that_was_never_given_settles_nothing() {
    let Some(rig) = rig().await else { return };
    let handed = rig.taken(raw(1)).await;
    let job = handed.job.id;
    for token in [0, 1, handed.lease.token.0 - 1, handed.lease.token.0 + 1, u64::MAX >> 1] {
        let end = Settlement::new(job, LeaseToken(token), Verdict::Complete);
        assert_eq!(settled(rig.store.settle(vec![end]).await), Err(Refusal::LeaseLost { job }));
    }
    assert_eq!(rig.state(job).await, StateName::Running);
}
