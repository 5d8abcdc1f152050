//! The worker's fault matrix: the real worker on a store that misbehaves, on virtual time.
//!
//! A cell is one fault of the store (a verb, which calls of it, and what becomes of them), what the
//! handler does, and what the operator does. Every cell is run, and after each the same judge looks
//! at what the store holds, what the handlers saw, and what the worker says of itself. A cell that
//! fails is printed, and `WINDLASS_CELL` set to what was printed runs it alone.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::Barrier;
use tokio::time::Instant;
use windlass::core::job::NewJob;
use windlass::core::ledger::Recovery;
use windlass::store::{MemoryStore, StoreExt};
use windlass::testing::VirtualClock;
use windlass::wake::LocalWake;
use windlass::{
    Attempt, Cancellation, Engine, Failure, Job, JobId, JobRecord, KindOptions, Limits, Name,
    Retry, StateName, StopReason, StopReport, Worker,
};

use crate::common::{Fault, LeaseAnswer, SECOND, Tampered, Work, settle_down, work};

const MILLISECOND: Duration = Duration::from_millis(1);
const LEASE: Duration = Duration::from_secs(3);
const GRACE: Duration = Duration::from_secs(5);
const SLOTS: u32 = 2;
/// One more than there are slots, so that one waits for a slot to be given back.
const JOBS: i64 = 3;
/// From here on, jobs show that every slot is free: they wait for each other.
const PROBE: i64 = 1_000;
/// How long a stop may take beyond the grace: one call to announce it, one claim on its way, and
/// then the time to obey, a store's patience and four tries of a settlement.
const STOP_BOUND: Duration = Duration::from_secs(60);

/// What a handler does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Handling {
    /// Returns soon.
    Returns,
    /// Works for longer than a lease.
    Works,
    /// Fails at first.
    Fails,
    /// Panics at first.
    Panics,
    /// Works for long, and returns an error when it is told to stop.
    Obeys,
    /// Works for long and does not listen.
    Ignores,
    /// Reports, and keeps steps.
    Reports,
}

const HANDLINGS: [Handling; 7] = [
    Handling::Returns,
    Handling::Works,
    Handling::Fails,
    Handling::Panics,
    Handling::Obeys,
    Handling::Ignores,
    Handling::Reports,
];

/// What an operator does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operating {
    Nothing,
    Stop,
    StopThenForce,
    StopNow,
    /// Drops every handle; the worker works on.
    Drop,
}

const OPERATINGS: [Operating; 5] = [
    Operating::Nothing,
    Operating::Stop,
    Operating::StopThenForce,
    Operating::StopNow,
    Operating::Drop,
];

fn faults() -> [Fault; 10] {
    [
        Fault::Refused,
        Fault::NotDone,
        Fault::Done,
        Fault::Panic,
        Fault::Late(SECOND),
        Fault::Late(SECOND * 4),
        Fault::Delayed(SECOND),
        Fault::Delayed(SECOND * 4),
        Fault::Hang,
        Fault::DoneHang,
    ]
}

/// One run of the matrix.
#[derive(Clone, Copy)]
struct Cell {
    verb: &'static str,
    /// The first call of the verb that the fault is for.
    call: u64,
    /// How many calls in a row.
    times: u64,
    fault: Fault,
    handling: Handling,
    operating: Operating,
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Cell { verb, call, times, fault, handling, operating } = self;
        write!(f, "{verb} {call}x{times} {fault:?} {handling:?} {operating:?}")
    }
}

impl Cell {
    fn all(verb: &'static str) -> impl Iterator<Item = Cell> {
        let calls = [(1, 1), (2, 1), (3, 1), (1, 5)];
        let faults = move || calls.into_iter().flat_map(|at| faults().map(|fault| (at, fault)));
        // What the handler does matters to its own calls; to the others, whether it takes long.
        let handlings = match verb {
            "claim" | "renew" | "settle" => &HANDLINGS[..],
            _ => &[Handling::Returns, Handling::Works, Handling::Obeys],
        };
        let doings = || handlings.iter().flat_map(|doing| OPERATINGS.map(|op| (*doing, op)));
        faults().flat_map(move |((call, times), fault)| {
            doings().map(move |(handling, operating)| Cell {
                verb,
                call,
                times,
                fault,
                handling,
                operating,
            })
        })
    }

    fn stops(&self) -> bool {
        !matches!(self.operating, Operating::Nothing | Operating::Drop)
    }

    /// Whether the worker may lose leases: the store says so, or does not let it renew them. A
    /// claim whose answer does not come in time hands out a lease that nobody knows of.
    fn may_lose_leases(&self) -> bool {
        let unheard = match self.fault {
            Fault::Done | Fault::DoneHang => true,
            Fault::Late(delay) => delay >= LEASE,
            _ => false,
        };
        self.verb == "renew" || self.verb == "claim" && unheard
    }

    /// Whether a result may be lost: the store says that its lease is lost, or the worker has
    /// stopped without waiting for a store that does not answer.
    fn may_lose_results(&self) -> bool {
        let gives_up = self.stops() && self.times > 3;
        self.verb == "settle" && (self.fault == Fault::Refused || gives_up)
    }
}

/// One run of a handler, as it saw it.
#[derive(Clone, Debug)]
struct Run {
    fence: String,
    job: i64,
    began: Instant,
    told: Option<(Instant, StopReason)>,
    /// When it returned, panicked or was aborted.
    ended: Option<Instant>,
    returned_ok: bool,
    said: Option<String>,
}

/// Everything the handlers of a cell saw.
#[derive(Default)]
struct Seen {
    runs: Mutex<Vec<Run>>,
    steps: Mutex<BTreeMap<(i64, &'static str), u32>>,
    running: AtomicU32,
    most: AtomicU32,
}

impl Seen {
    fn runs(&self) -> MutexGuard<'_, Vec<Run>> {
        self.runs.lock().expect("no test panics while it notes")
    }
}

/// Notes the end of a run, however it ends.
struct Running {
    seen: Arc<Seen>,
    number: usize,
    cancellation: Cancellation,
}

impl Running {
    fn begin(seen: &Arc<Seen>, job: i64, attempt: &Attempt) -> Self {
        let running = seen.running.fetch_add(1, Ordering::SeqCst) + 1;
        seen.most.fetch_max(running, Ordering::SeqCst);
        let mut runs = seen.runs();
        let number = runs.len();
        runs.push(Run {
            fence: attempt.fence(),
            job,
            began: Instant::now(),
            told: None,
            ended: None,
            returned_ok: false,
            said: None,
        });
        drop(runs);
        let (watched, noted) = (attempt.cancellation().clone(), seen.clone());
        tokio::spawn(async move {
            watched.cancelled().await;
            // Without a reason the attempt is over; and who has returned was not told.
            let mut runs = noted.runs();
            if runs[number].ended.is_none() {
                runs[number].told = watched.reason().map(|reason| (Instant::now(), reason));
            }
        });
        Self { seen: seen.clone(), number, cancellation: attempt.cancellation().clone() }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.seen.running.fetch_sub(1, Ordering::SeqCst);
        let mut runs = self.seen.runs();
        let (run, now) = (&mut runs[self.number], Instant::now());
        run.ended = Some(now);
        // It may have heard a moment before the task that notes it.
        run.told = run.told.or(self.cancellation.reason().map(|reason| (now, reason)));
    }
}

/// Does what the cell says, once.
async fn handle(
    seen: Arc<Seen>,
    handling: Handling,
    probes: Arc<Barrier>,
    job: i64,
    attempt: Attempt,
) -> Result<i64, Failure> {
    let running = Running::begin(&seen, job, &attempt);
    if job >= PROBE {
        probes.wait().await;
        return Ok(job + 1);
    }
    let first = seen.runs().iter().filter(|run| run.job == job).count() == 1;
    match handling {
        Handling::Returns => tokio::time::sleep(MILLISECOND * 100).await,
        // Not a multiple of the lease: who returns as it ends is in time or not.
        Handling::Works => tokio::time::sleep(MILLISECOND * 4_300).await,
        Handling::Fails | Handling::Panics => {
            tokio::time::sleep(MILLISECOND * 500).await;
            if first && handling == Handling::Panics {
                // Without the hook, which would write thousands of reports.
                std::panic::resume_unwind(Box::new("planned"));
            }
            if first {
                return Err(Failure::retry("planned"));
            }
        }
        Handling::Obeys => {
            let work =
                tokio::time::timeout(MILLISECOND * 5_300, attempt.cancellation().cancelled());
            if let Ok(reason) = work.await {
                return Err(Failure::retry(format!("{reason:?}")));
            }
        }
        Handling::Ignores => tokio::time::sleep(MILLISECOND * 7_300).await,
        Handling::Reports => reports(&seen, job, &attempt, running.number).await?,
    }
    seen.runs()[running.number].returned_ok = true;
    Ok(job + 1)
}

async fn reports(
    seen: &Arc<Seen>,
    job: i64,
    attempt: &Attempt,
    number: usize,
) -> Result<(), Failure> {
    let line = format!("run {}", attempt.fence());
    attempt.log(line.clone());
    seen.runs()[number].said = Some(line);
    for (percent, step) in [(30, "one"), (60, "two")] {
        attempt.progress(percent, step);
        let done = || async {
            *seen.steps.lock().expect("not poisoned").entry((job, step)).or_default() += 1;
            Ok(percent)
        };
        attempt.step(step, done).await?;
        tokio::time::sleep(SECOND).await;
    }
    Ok(())
}

/// A cell that is being run.
struct Trial {
    cell: Cell,
    store: Arc<Tampered>,
    seen: Arc<Seen>,
    probes: Arc<Barrier>,
    jobs: Vec<JobId>,
    began: Instant,
    problems: Vec<String>,
}

impl Trial {
    fn expect(&mut self, holds: bool, problem: impl FnOnce() -> String) {
        if !holds {
            self.problems.push(problem());
        }
    }

    async fn start_worker(&mut self, engine: &Engine) -> Worker {
        let (seen, probes) = (self.seen.clone(), self.probes.clone());
        let handling = self.cell.handling;
        let handler = move |job: Work, attempt: Attempt| {
            handle(seen.clone(), handling, probes.clone(), job.number, attempt)
        };
        let retry = Retry::constant(MILLISECOND * 100).up_to(50);
        let terms = move |options: KindOptions| options.lease(LEASE).retry(retry).no_timeout();
        loop {
            let worker = engine.worker().slots(SLOTS).grace(GRACE);
            let worker = worker.handle_with(handler.clone(), terms.clone());
            // On a task of its own, because the store may panic.
            match tokio::spawn(worker.start()).await {
                Ok(Ok(worker)) => return worker,
                failed => {
                    let why = || format!("it did not start: {failed:?}");
                    self.expect(self.cell.verb == "announce", why);
                }
            }
        }
    }

    /// Lets the operator do what he does, and says what the worker then said of itself.
    async fn operate(&mut self, engine: Engine, worker: Worker) -> Option<(Engine, Worker)> {
        let operating = self.cell.operating;
        if operating == Operating::Nothing {
            return Some((engine, worker));
        }
        tokio::time::sleep(MILLISECOND * 1_700).await;
        if operating == Operating::Drop {
            drop((engine, worker));
            return None;
        }
        let asked = Instant::now();
        let force = async {
            if operating == Operating::StopThenForce {
                tokio::time::sleep(SECOND).await;
                return worker.stop_now().await;
            }
            std::future::pending().await
        };
        let stop = async {
            match operating {
                Operating::StopNow => worker.stop_now().await,
                _ => worker.stop().await,
            }
        };
        let report = tokio::select! {
            report = stop => report,
            report = force => report,
            () = tokio::time::sleep(GRACE + STOP_BOUND) => {
                self.problems.push("the stop hangs".into());
                return Some((engine, worker));
            }
        };
        match report {
            Ok(report) => self.judge_stop(report, asked).await,
            Err(error) => self.problems.push(format!("the worker failed: {error}")),
        }
        self.store.heal();
        let next = self.start_worker(&engine).await;
        Some((engine, next))
    }

    async fn judge_stop(&mut self, report: StopReport, asked: Instant) {
        let running = self.seen.running.load(Ordering::SeqCst);
        self.expect(running == 0, || format!("{running} handlers run after the stop"));
        self.expect(report.abandoned == 0, || format!("slots are kept: {report}"));
        let took = asked.elapsed();
        // Without trouble at the calls of a stop, it takes no longer than the grace and what
        // handlers have to obey.
        let in_the_way = ["claim", "settle", "announce", "renew"].contains(&self.cell.verb);
        let most = match self.cell.operating {
            Operating::Stop => GRACE + if in_the_way { STOP_BOUND } else { SECOND * 2 },
            _ => SECOND * if in_the_way { 30 } else { 2 },
        };
        self.expect(took <= most, || format!("the stop took {took:?}"));
        // Everything that runs is given back, unless the store did not hear of it or did not say.
        if matches!(self.cell.verb, "renew" | "announce" | "heartbeat" | "rescue" | "promote") {
            let lost = self.lost_leases();
            let open = self.records().await.into_iter().filter(|record| {
                record.state() == StateName::Running
                    && !lost.iter().any(|run| run.fence.starts_with(&record.id().to_string()))
            });
            let open = open.count();
            self.expect(open == 0, || format!("{open} jobs were not given back"));
        }
    }

    async fn records(&self) -> Vec<JobRecord> {
        let found = self.store.inner().find(&self.jobs).await.expect("the memory store answers");
        found.into_iter().map(|record| record.expect("it is kept")).collect()
    }

    /// Waits until all jobs have finished.
    async fn finish(&mut self) {
        for _ in 0..200 {
            if self.records().await.iter().all(|record| record.state().is_terminal()) {
                settle_down().await;
                return;
            }
            tokio::time::sleep(SECOND).await;
        }
        let states: Vec<_> = self.records().await.iter().map(|record| record.state()).collect();
        self.problems.push(format!("stalled: {states:?}"));
    }

    /// Lets as many jobs as there are slots wait for each other.
    async fn probe_slots(&mut self) {
        let name = |text: &str| Name::new(text).expect("a name");
        let probe = |number: i64| {
            let payload = serde_json::to_vec(&work(PROBE + number)).expect("it is JSON");
            NewJob::new(windlass::new_id(), name(Work::KIND), name("default"), payload).into()
        };
        let probes: Vec<Arc<NewJob>> = (0..i64::from(SLOTS)).map(probe).collect();
        let ids: Vec<JobId> = probes.iter().map(|job| job.id).collect();
        let stuck = self.seen.running.load(Ordering::SeqCst);
        self.expect(stuck == 0, || format!("{stuck} handlers run when all is done"));
        self.store.inner().enqueue(probes).await.expect("the memory store accepts");
        for _ in 0..200 {
            let found = self.store.inner().find(&ids).await.expect("the memory store answers");
            let done = |record: &Option<JobRecord>| {
                record.as_ref().is_some_and(|r| r.state().is_terminal())
            };
            if found.iter().all(done) {
                return;
            }
            tokio::time::sleep(MILLISECOND * 500).await;
        }
        self.problems.push("slots were not given back".into());
    }

    /// Runs that were told that their lease is lost.
    fn lost_leases(&self) -> Vec<Run> {
        let lost = |run: &&Run| matches!(run.told, Some((_, StopReason::LeaseLost)));
        self.seen.runs().iter().filter(lost).cloned().collect()
    }

    async fn judge(&mut self) {
        let events =
            self.store.inner().events(0, 100_000, Duration::ZERO).await.expect("it answers");
        let count = |job: JobId, topic: &str| {
            events.iter().filter(|e| e.job() == Some(job) && e.topic() == topic).count()
        };
        let records = self.records().await;
        for (number, record) in (0..).zip(&records) {
            let id = record.id();
            let ends = events.iter().filter(|e| e.job() == Some(id) && e.what.is_terminal());
            let ends: Vec<_> = ends.map(|event| event.topic()).collect();
            self.expect(ends == ["job.completed"], || format!("job {number} ended as {ends:?}"));
            let output = record.output.as_deref().map(String::from_utf8_lossy);
            let expected = (number + 1).to_string();
            self.expect(output.as_deref() == Some(&*expected), || {
                format!("job {number} returned {output:?}")
            });
            self.judge_starts(number, record, &count);
            self.judge_reports(number, record);
        }
        let most = self.seen.most.load(Ordering::SeqCst);
        self.expect(most <= SLOTS, || format!("{most} handlers ran at once"));
        self.judge_leases(&self.store.leases());
    }

    fn judge_starts(
        &mut self,
        number: i64,
        record: &JobRecord,
        count: &dyn Fn(JobId, &str) -> usize,
    ) {
        let runs: Vec<Run> =
            self.seen.runs().iter().filter(|run| run.job == number).cloned().collect();
        let of = |topic| count(record.id(), topic);
        let attempts = record.status.attempts as usize;
        // Every start is counted, unless it was given back.
        let given_back = of("job.released");
        self.expect(runs.len() <= attempts + given_back, || {
            format!("job {number}: {} starts, {attempts} counted, {given_back} back", runs.len())
        });
        // And nothing else is counted: what was interrupted was given back uncounted. A recovery
        // is told as a failure too.
        let expected = 1 + of("job.failed");
        self.expect(attempts == expected, || {
            format!("job {number}: {attempts} attempts are counted and {expected} were made")
        });
        // What returned in time is the result, and the job does not run again.
        let in_time = |run: &&Run| {
            let told = run.told.map(|(_, reason)| reason);
            run.returned_ok && told != Some(StopReason::LeaseLost)
        };
        let results = runs.iter().filter(in_time).count();
        self.expect(results == 1 || self.cell.may_lose_results() && results > 0, || {
            format!("job {number} returned {results} times with its lease")
        });
        let rescued = of("job.recovered");
        let failed = of("job.failed") - rescued;
        let most = match self.cell.handling {
            Handling::Fails | Handling::Panics => 1,
            // The store panics in the handler's own call.
            Handling::Reports if self.cell.fault == Fault::Panic => self.cell.times,
            _ => 0,
        };
        self.expect(failed as u64 <= most, || format!("job {number} failed {failed} times"));
        let may_be_rescued = self.cell.may_lose_leases() || self.cell.may_lose_results();
        let gave_up = self.cell.verb == "settle" && self.cell.stops();
        self.expect(rescued == 0 || may_be_rescued || gave_up, || {
            format!("job {number} was recovered {rescued} times")
        });
    }

    fn judge_reports(&mut self, number: i64, record: &JobRecord) {
        if self.cell.handling != Handling::Reports {
            return;
        }
        let runs: Vec<Run> =
            self.seen.runs().iter().filter(|run| run.job == number).cloned().collect();
        let result = runs.iter().rfind(|run| run.returned_ok);
        let said = result.and_then(|run| run.said.clone()).unwrap_or_default();
        let kept = record.log.iter().any(|line| line.text == said);
        self.expect(kept, || format!("job {number} said {said:?} and it is not in its log"));
        let percent = record.progress.as_ref().map(|progress| progress.percent);
        self.expect(percent == Some(60), || format!("job {number} stands at {percent:?}"));
        for step in ["one", "two"] {
            let done =
                *self.seen.steps.lock().expect("not poisoned").get(&(number, step)).unwrap_or(&0);
            // Done again only if the run before could not keep it, or was aborted over it.
            let most = u32::try_from(runs.len()).unwrap_or(u32::MAX);
            let once = !self.cell.may_lose_leases();
            self.expect(done >= 1 && done <= most && (done == 1 || !once), || {
                format!("job {number} did step {step} {done} times in {most} runs")
            });
        }
    }

    /// Whoever has lost its lease was told in time, and nobody else was told so.
    fn judge_leases(&mut self, leases: &[LeaseAnswer]) {
        let runs = self.seen.runs().clone();
        for run in &runs {
            let of_it = || leases.iter().filter(|answer| answer.fence == run.fence);
            let Some(sent) = of_it().filter(|lease| lease.applied).map(|lease| lease.sent).max()
            else {
                self.problems.push(format!("{} has no lease", run.fence));
                continue;
            };
            let lost_at = run.told.filter(|(_, why)| *why == StopReason::LeaseLost);
            let told_at = run.told.map(|(at, _)| at);
            let (over, ended) = (sent + LEASE + SECOND, run.ended.unwrap_or_else(Instant::now));
            self.expect(ended <= over || told_at.is_some_and(|told| told <= over), || {
                format!("{}: its lease was over at {over:?}, told {told_at:?}", run.fence)
            });
            let refusals = of_it().filter(|answer| !answer.applied).map(|answer| answer.at);
            for refused in refusals.filter(|at| *at < ended) {
                self.expect(told_at.is_some_and(|told| told <= refused + MILLISECOND), || {
                    format!("{}: refused at {refused:?}, told {told_at:?}", run.fence)
                });
            }
            self.expect(lost_at.is_none() || self.cell.may_lose_leases(), || {
                format!("{} was told that its lease is lost", run.fence)
            });
            let begun_late = run.began > sent + LEASE;
            self.expect(!begun_late, || format!("{} began after its lease", run.fence));
        }
    }
}

async fn run_cell(cell: Cell) -> Vec<String> {
    let (clock, wake) = (Arc::new(VirtualClock::new()), Arc::new(LocalWake::new()));
    let memory = MemoryStore::new(Limits::default(), clock.clone(), wake.clone());
    let store = Arc::new(Tampered::new(Arc::new(memory)));
    let recovery = Recovery { max_recoveries: 50, ..Recovery::default() };
    let builder = Engine::builder().recovery(recovery);
    let engine = builder.on_store(store.clone(), wake, clock).expect("the settings are valid");
    let handles = engine.enqueue_many((0..JOBS).map(work)).await.expect("they are accepted");
    let mut trial = Trial {
        cell,
        store,
        seen: Arc::default(),
        probes: Arc::new(Barrier::new(SLOTS as usize)),
        jobs: handles.iter().map(|handle| handle.id()).collect(),
        began: Instant::now(),
        problems: Vec::new(),
    };
    drop(handles);
    trial.store.tamper(cell.verb, move |call| {
        (call >= cell.call && call < cell.call + cell.times).then_some(cell.fault)
    });
    let worker = trial.start_worker(&engine).await;
    let still = trial.operate(engine, worker).await;
    if trial.problems.is_empty() {
        trial.finish().await;
    }
    if trial.problems.is_empty() {
        trial.judge().await;
        trial.probe_slots().await;
    }
    if let Some((_, worker)) = still
        && trial.problems.is_empty()
    {
        trial.store.heal();
        // The last settlement may still wait for its answer.
        let answered = async {
            while worker.busy() > 0 {
                tokio::time::sleep(MILLISECOND * 100).await;
            }
        };
        let free = tokio::time::timeout(SECOND * 60, answered).await;
        trial.expect(free.is_ok(), || format!("{} slots are busy for ever", worker.busy()));
        let report = tokio::time::timeout(STOP_BOUND, worker.stop_now()).await;
        trial.expect(matches!(report, Ok(Ok(_))), || format!("the last stop: {report:?}"));
    }
    if !trial.problems.is_empty() {
        let told: Vec<_> = trial.seen.runs().iter().map(|run| describe(run, trial.began)).collect();
        trial.problems.extend(told);
    }
    trial.problems
}

fn describe(run: &Run, origin: Instant) -> String {
    let at = |at: Instant| at - origin;
    let ended = run.ended.map(at);
    let told = run.told.map(|(told, reason)| (at(told), reason));
    format!(
        "    {} of job {}: began {:?}, told {told:?}, ended {ended:?}, ok {}",
        run.fence,
        run.job,
        at(run.began),
        run.returned_ok
    )
}

/// Runs all cells of a verb, each on a runtime of its own.
fn run_matrix(verb: &'static str) {
    let only = std::env::var("WINDLASS_CELL").ok();
    let mut failed = Vec::new();
    let mut count = 0;
    for cell in Cell::all(verb) {
        if only.as_ref().is_some_and(|only| *only != cell.to_string()) {
            continue;
        }
        count += 1;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime");
        let problems = runtime.block_on(run_cell(cell));
        if !problems.is_empty() {
            failed.push(format!("{cell}\n  {}", problems.join("\n  ")));
        }
        if failed.len() == 5 {
            break;
        }
    }
    println!("{count} cells of {verb}");
    assert!(failed.is_empty(), "of {count} cells these failed:\n{}", failed.join("\n"));
}

#[test]
fn every_fault_of_a_claim_loses_and_doubles_nothing() {
    run_matrix("claim");
}

#[test]
fn every_fault_of_a_renewal_is_told_and_loses_nothing_else() {
    run_matrix("renew");
}

#[test]
fn every_fault_of_a_settlement_is_repeated_until_it_is_answered() {
    run_matrix("settle");
}

#[test]
fn every_fault_of_an_announcement_holds_nobody_up() {
    run_matrix("announce");
}

#[test]
fn every_fault_of_a_heartbeat_is_passed_over() {
    run_matrix("heartbeat");
}

#[test]
fn every_fault_of_a_rescue_is_passed_over() {
    run_matrix("rescue");
}

#[test]
fn every_fault_of_a_promotion_is_passed_over() {
    run_matrix("promote");
}
