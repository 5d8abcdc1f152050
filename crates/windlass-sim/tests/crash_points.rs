//! Fixed stories, crashed before and after every call to the disk and after every acknowledgement,
//! with what was not synced kept, dropped or torn; then reopened, checked, and run to the end.
//!
//! Where the simulation draws its crashes, this leaves none out.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use windlass::core::job::{
    DeadReason, Dependency, JobId, LeaseToken, NewJob, OnFailure, StateName, Unique, UniqueScope,
};
use windlass::core::ledger::{
    Cancel, Claim, Clear, Command, Configure, Enqueue, KindClaim, QueueChange, Remove, Replay,
    Settle, Settlement,
};
use windlass::core::limits::Limits;
use windlass::core::name::Name;
use windlass::core::outcome::Verdict;
use windlass::core::time::{Now, Steady, Timestamp};
use windlass::store::file::{Book, BookOptions};
use windlass_sim::{Loss, Moment, NameLoss, Random, SimDisk};

/// The power went, at a call to the disk or right after an acknowledgement.
struct Crashed;

type Told<T = ()> = Result<T, Crashed>;

/// What was acknowledged of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Acked {
    Accepted,
    Ended(StateName),
    /// It was asked to leave: it may be there or not.
    Leaving,
}

/// A store on a disk, and what its callers were told.
struct Story {
    disk: SimDisk,
    book: Option<Book>,
    micros: u64,
    acked: BTreeMap<JobId, Acked>,
    paused: Option<bool>,
    last_token: LeaseToken,
    acks: u64,
    crash_after_ack: Option<u64>,
}

fn name(text: &str) -> Name {
    Name::new(text).expect("a name")
}

fn id(number: u128) -> JobId {
    JobId::from_u128(number)
}

fn job(number: u128) -> NewJob {
    NewJob::new(id(number), name("work"), name("main"), vec![number as u8; 120])
}

fn options() -> BookOptions {
    BookOptions {
        limits: Limits { history_jobs: 6, ..Limits::default() },
        segment_bytes: Some(4 << 10),
        checkpoint_bytes: Some(2 << 10),
        ..BookOptions::default()
    }
}

impl Story {
    fn new(crash_after_ack: Option<u64>) -> Self {
        Self {
            disk: SimDisk::new(Random::new(7)),
            book: None,
            micros: 1_000_000,
            acked: BTreeMap::new(),
            paused: None,
            last_token: LeaseToken(0),
            acks: 0,
            crash_after_ack,
        }
    }

    fn now(&mut self) -> Now {
        self.micros += 1_000;
        let wall = Timestamp::from_micros(1_767_225_600_000_000 + self.micros as i64);
        Now { wall, steady: Steady::from_micros(self.micros) }
    }

    fn pass(&mut self, time: Duration) {
        self.micros += time.as_micros() as u64;
    }

    fn open(&mut self) -> Told {
        let now = self.now();
        match Book::open(self.disk.mount(), &options(), now) {
            Ok((book, _)) => {
                self.book = Some(book);
                Ok(())
            }
            Err(_) if self.disk.is_dead() => Err(Crashed),
            Err(error) => panic!("the store does not open: {error}"),
        }
    }

    /// Decides a command and lands it, as a store without a writer thread does.
    fn ask<C: Command>(&mut self, command: C) -> Told<C::Reply> {
        let now = self.now();
        let book = self.book.as_mut().expect("it is open");
        let reply = book.apply(command, now);
        let landed = land(book);
        if self.disk.is_dead() {
            return Err(Crashed);
        }
        landed.expect("nothing fails but by the power");
        Ok(reply.unwrap_or_else(|refused| panic!("refused: {refused}")))
    }

    /// The caller has been told.
    fn ack(&mut self, facts: impl IntoIterator<Item = (JobId, Acked)>) -> Told {
        self.acked.extend(facts);
        self.acks += 1;
        if self.crash_after_ack == Some(self.acks) { Err(Crashed) } else { Ok(()) }
    }

    fn enqueue(&mut self, jobs: Vec<NewJob>) -> Told {
        let ids: Vec<JobId> = jobs.iter().map(|job| job.id).collect();
        self.ask(Enqueue { jobs: jobs.into_iter().map(Arc::new).collect() })?;
        self.ack(ids.into_iter().map(|id| (id, Acked::Accepted)))
    }

    fn claim(&mut self, limit: usize) -> Told<Vec<(JobId, LeaseToken)>> {
        let kinds = vec![KindClaim { max_attempts: 100, ..KindClaim::new(name("work")) }];
        let claims = self.ask(Claim { worker: "w".into(), queues: None, kinds, limit })?;
        for claimed in &claims.jobs {
            assert!(claimed.lease.token > self.last_token, "a token came twice");
            self.last_token = claimed.lease.token;
        }
        Ok(claims.jobs.iter().map(|claimed| (claimed.id, claimed.lease.token)).collect())
    }

    fn settle(&mut self, job: JobId, token: LeaseToken, verdict: Verdict) -> Told {
        let mut settlement = Settlement::new(job, token, verdict);
        settlement.output = Some(vec![9; 40].into());
        let answers = self.ask(Settle { settlements: vec![settlement] })?;
        let state = answers[0].as_ref().expect("the lease is held").state;
        let fact = match state.is_terminal() {
            true => Acked::Ended(state),
            false => Acked::Accepted,
        };
        self.ack([(job, fact)])
    }

    /// Everything that was acknowledged is there, and nothing is wrong with the rest.
    fn check(&mut self) {
        let now = self.now();
        let book = self.book.as_mut().expect("it is open");
        assert_eq!(book.check(), Vec::<String>::new());
        let ids: Vec<JobId> = self.acked.keys().copied().collect();
        let found = book.find(&ids, now).expect("it is whole");
        let history = options().limits.history_jobs;
        let counts = book.count(now);
        let full = counts.totals().completed + counts.totals().cancelled > history as u64;
        for (record, (job, acked)) in found.iter().zip(&self.acked) {
            match (record, acked) {
                (_, Acked::Leaving) => {}
                (Some(record), Acked::Ended(state)) => assert_eq!(record.state(), *state, "{job}"),
                (Some(_), Acked::Accepted) => {}
                // Retention may have taken it, once there is more history than is kept.
                (None, Acked::Ended(StateName::Completed | StateName::Cancelled)) if full => {}
                // It may have ended since, unheard, and left the same way.
                (None, Acked::Accepted) if full => {}
                (None, acked) => panic!("job {job} is lost; it was {acked:?}"),
            }
        }
        if let Some(paused) = self.paused {
            let queue = counts.queues.iter().find(|queue| queue.queue.as_str() == "slow");
            assert_eq!(queue.is_some_and(|queue| queue.settings.paused), paused, "a pause is lost");
        }
    }

    /// Runs whatever is left; every job that can end does.
    fn drain(&mut self) -> Told {
        for _ in 0..400 {
            self.pass(Duration::from_secs(5));
            let handed = self.claim(3)?;
            for (job, token) in &handed {
                self.settle(*job, *token, Verdict::Complete)?;
            }
            let now = self.now();
            let counts = self.book.as_mut().expect("it is open").count(now);
            let open = [StateName::Scheduled, StateName::Ready, StateName::Running];
            if open.iter().all(|state| counts.in_queue("main", *state) == 0) {
                return Ok(());
            }
        }
        panic!("jobs are left that never end");
    }
}

fn land(book: &mut Book) -> std::io::Result<()> {
    while let Some(flight) = book.take() {
        flight.write()?;
        flight.sync()?;
        book.written(flight.number());
        for retired in book.landed(&flight) {
            if let Ok(spare) = retired.let_go() {
                book.add_spare(spare);
            }
        }
        if book.wants_compaction() {
            book.compact(2_000).map_err(std::io::Error::other)?;
        }
        if book.wants_checkpoint() {
            book.checkpoint(1_000).map_err(std::io::Error::other)?;
        }
    }
    book.seal()
}

type Script = fn(&mut Story) -> Told;

/// Enqueue, claim, fail, retry, complete, over two openings.
fn lifecycle(story: &mut Story) -> Told {
    story.open()?;
    story.enqueue((1..=4).map(job).collect())?;
    let handed = story.claim(3)?;
    story.settle(handed[0].0, handed[0].1, Verdict::Complete)?;
    story.settle(handed[1].0, handed[1].1, Verdict::Retry(Duration::from_secs(1)))?;
    story.enqueue(vec![job(5)])?;
    story.book = None;
    story.open()?;
    story.pass(Duration::from_secs(2));
    for (job, token) in story.claim(2)? {
        story.settle(job, token, Verdict::Complete)?;
    }
    story.settle_one(Verdict::Bury(DeadReason::Permanent))
}

/// Dependencies that cascade, unique keys, replay, cancel, pause and clear.
fn graph(story: &mut Story) -> Told {
    story.open()?;
    let after = |number, on, on_failure| NewJob {
        depends_on: vec![Dependency { on: id(on), on_failure }],
        ..job(number)
    };
    let unique = Some(Unique { key: "k".into(), scope: UniqueScope::Open, window: None });
    story.enqueue(vec![
        job(1),
        after(2, 1, OnFailure::Cascade),
        after(3, 2, OnFailure::Cascade),
        after(4, 1, OnFailure::Ignore),
        NewJob { unique, ..job(5) },
    ])?;
    let handed = story.claim(1)?;
    story.settle(handed[0].0, handed[0].1, Verdict::Bury(DeadReason::Permanent))?;
    let dead = [2, 3].map(|number| (id(number), Acked::Ended(StateName::Dead)));
    story.ack(dead)?;
    story.ask(Configure { queue: name("slow"), change: QueueChange::Pause })?;
    story.paused = Some(true);
    story.ack([])?;
    // From the moment it is asked, either state is right.
    story.acked.extend([1, 2, 3].map(|number| (id(number), Acked::Accepted)));
    story.ask(Replay { jobs: vec![id(1), id(2), id(3)] })?;
    story.ack([])?;
    story.acked.insert(id(4), Acked::Accepted);
    story.ask(Cancel { jobs: vec![id(4)] })?;
    story.ack([(id(4), Acked::Ended(StateName::Cancelled))])?;
    let waiting = (10..13).map(|n| NewJob { queue: name("slow"), ..job(n) }).collect();
    story.enqueue(waiting)?;
    story.acked.extend((10..13).map(|number| (id(number), Acked::Accepted)));
    story.ask(Clear { queue: name("slow") })?;
    story.ack((10..13).map(|number| (id(number), Acked::Ended(StateName::Cancelled))))
}

/// So many jobs through segments of a few kilobytes that they are cleared, leave and come back.
fn churn(story: &mut Story) -> Told {
    story.open()?;
    story.enqueue(vec![NewJob { queue: name("slow"), kind: name("rare"), ..job(500) }])?;
    for round in 0..12u128 {
        let number = 1 + round * 3;
        story.enqueue((number..number + 3).map(job).collect())?;
        for (job, token) in story.claim(3)? {
            story.settle(job, token, Verdict::Complete)?;
        }
        if round == 6 {
            story.acked.insert(id(500), Acked::Leaving);
            story.ask(Cancel { jobs: vec![id(500)] })?;
            story.ask(Remove { jobs: vec![id(500)] })?;
        }
    }
    Ok(())
}

impl Story {
    fn settle_one(&mut self, verdict: Verdict) -> Told {
        self.pass(Duration::from_secs(60));
        match self.claim(1)?.first() {
            Some((job, token)) => self.settle(*job, *token, verdict),
            None => Ok(()),
        }
    }
}

/// Runs a script up to a crash, and everything after it.
fn crash(script: Script, trap: Option<(u64, Moment)>, ack: Option<u64>, loss: Loss) {
    let mut story = Story::new(ack);
    if let Some((call, when)) = trap {
        story.disk.set_trap(call, when);
    }
    if script(&mut story).is_ok() && trap.is_none() {
        panic!("the story ended before its crash");
    }
    story.crash_after_ack = None;
    story.book = None;
    let names = match loss {
        Loss::Keep => NameLoss::Keep,
        Loss::Drop => NameLoss::Drop,
        Loss::Tear | Loss::Mix => NameLoss::Suffix,
    };
    story.disk.crash(loss, names);
    let again = story.open().and_then(|()| {
        story.check();
        story.drain()
    });
    assert!(again.is_ok(), "nothing fails after the crash");
    story.check();
}

fn every_point(script: Script) -> u64 {
    let mut story = Story::new(None);
    assert!(script(&mut story).is_ok(), "the story itself ends well");
    story.check();
    let (calls, acks) = (story.disk.calls(), story.acks);
    let mut points = 0;
    for loss in [Loss::Keep, Loss::Drop, Loss::Tear] {
        for call in 0..=calls {
            for when in [Moment::Before, Moment::After] {
                crash(script, Some((call, when)), None, loss);
                points += 1;
            }
        }
        for ack in 1..=acks {
            crash(script, None, Some(ack), loss);
            points += 1;
        }
    }
    points
}

#[test]
fn no_crash_point_of_three_stories_loses_or_doubles_anything() {
    let stories: [Script; 3] = [lifecycle, graph, churn];
    let points: Vec<u64> = stories.map(every_point).to_vec();
    println!("crash points: {points:?}");
    assert!(points.iter().sum::<u64>() >= 2_000, "{points:?}");
}
