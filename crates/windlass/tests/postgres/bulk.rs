//! What SQL does in bulk, it does as one by one: the same random calls leave the same behind.
//!
//! One store is as it ships. In its first twin every bulk path is taken away, so that each call
//! treats its items one by one: jobs are accepted by the general path, leased job by job, settled
//! and rescued alone. To its second twin every item goes in a call of its own. All of them share
//! one clock. `WINDLASS_SEED` picks one seed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use windlass::core::event::RecoveryReason;
use windlass::core::job::{
    CancelReason, DeadReason, Dependency, JobId, Lane, LeaseToken, NewJob, OnFailure, Start, State,
    Unique, UniqueScope,
};
use windlass::core::ledger::{
    Claim, KindClaim, QueueChange, Recovery, RecoveryMode, Rescue, Settlement,
};
use windlass::core::outcome::{ErrorText, Verdict};
use windlass::store::postgres::{PostgresAddress, PostgresStore, Schema};
use windlass::store::{AlterJobs, JobAction, Selection, Store, StoreExt};
use windlass::wake::LocalWake;
use windlass::{JobRecord, Limits, Priority, StateName};

use crate::common::{Dice, Ground, clock_sql, name};
use crate::schemas::emptying_sql;

const SEEDS: std::ops::Range<u64> = 1..6;
const CALLS: usize = 40;
const QUEUES: [&str; 3] = ["plain", "mixed", "lanes"];

/// How a store is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// As it ships.
    Bulk,
    /// The same calls, without the bulk paths.
    Inside,
    /// Each item in a call of its own.
    Calls,
}

/// A store, and the leases it has given.
struct Twin {
    way: Way,
    store: PostgresStore,
    schema: Schema,
    tokens: BTreeMap<JobId, LeaseToken>,
}

/// Takes the bulk paths away.
fn without_bulk_sql(schema: &Schema) -> String {
    format!(
        "create or replace function {schema}._fit_batch_lease(_terms {schema}.claim_terms, \
           _plan {schema}.claim_plan, _rows {schema}.ready_rows) returns {schema}.claim_jobs \
           language sql as 'select null::{schema}.claim_jobs'; \
         create or replace function {schema}._rescue_batch(_seqs bigint[], _max_recoveries int, \
           _delay bigint, _reason int, _all boolean, _text text, _now bigint, out jobs uuid[], \
           out states int[], out ends bigint[]) \
           language sql as 'select null::uuid[], null::int[], null::bigint[]'; \
         create or replace function {schema}._complete_batch(_alone int, _jobs uuid[], \
           _firsts int[], _lows bigint[], _highs bigint[], _first_tokens bigint[], _outputs bytea, \
           _starts int[], _sizes int[], _most_bytes bigint, _now bigint, out done int, \
           out leases bigint[], out ended int[], out queue_kinds int[], out seqs bigint[]) \
           language sql as $$ select 0, null::bigint[], null::int[], '{{}}'::int[], \
             '{{}}'::bigint[] $$;"
    )
}

impl Twin {
    async fn new(ground: &Ground, way: Way, text: &str) -> Self {
        let address: PostgresAddress = text.parse().expect("it is well formed");
        let wake = Arc::new(LocalWake::new());
        let store = PostgresStore::open(&address, Limits::default(), wake).await.expect("it opens");
        let schema = address.schema;
        ground.sql(&clock_sql(&schema));
        if way == Way::Inside {
            ground.sql(&without_bulk_sql(&schema));
        }
        let twin = Self { way, store, schema, tokens: BTreeMap::new() };
        for queue in QUEUES {
            // A limit that is never reached makes every batch take the general path.
            let limit = (way == Way::Inside).then_some(1_000_000);
            let change = QueueChange::MaxDepth(limit);
            twin.store.configure(name(queue), change).await.expect("it is taken");
        }
        twin
    }

    /// What became of each job of a batch.
    async fn enqueue(&self, jobs: &[Arc<NewJob>]) -> Vec<String> {
        let mut answers = Vec::new();
        let size = if self.way == Way::Calls { 1 } else { jobs.len() };
        for some in jobs.chunks(size.max(1)) {
            let enqueued = self.store.enqueue(some.to_vec()).await.expect("they are taken");
            answers.extend(enqueued.iter().map(|one| match self.way {
                // How deep a queue is changes from call to call.
                Way::Calls => format!("{} {:?}", one.id, one.acceptance),
                Way::Bulk | Way::Inside => {
                    format!("{} {:?} {} {:?}", one.id, one.acceptance, one.depth, one.lane)
                }
            }));
        }
        answers
    }

    /// The jobs that a claim hands out, in the order of starting.
    async fn claim(&mut self, claim: &Claim) -> Vec<String> {
        let claimed = self.store.claim(claim.clone()).await.expect("it is answered");
        let mut told = Vec::new();
        for claimed in claimed.jobs {
            let (id, token) = (claimed.job.id, claimed.lease.token);
            self.tokens.insert(id, token);
            let lease = (claimed.lease.since, claimed.lease.until, claimed.lease.max_attempts);
            let past = (claimed.attempt, claimed.recoveries, claimed.generation);
            let rest = (claimed.created_at, claimed.first_started_at, claimed.last_error);
            told.push(format!("{:?} {lease:?} {past:?} {rest:?}", claimed.job));
        }
        told
    }

    async fn settle(&self, ends: &[Settlement]) -> Vec<String> {
        let own = |end: &Settlement| {
            let token = self.tokens.get(&end.job).copied().unwrap_or(LeaseToken(1));
            Settlement { token, ..end.clone() }
        };
        let ends: Vec<Settlement> = ends.iter().map(own).collect();
        let size = if self.way == Way::Calls { 1 } else { ends.len() };
        let mut answers = Vec::new();
        for some in ends.chunks(size.max(1)) {
            let settled = self.store.settle(some.to_vec()).await.expect("it is answered");
            answers.extend(settled.iter().map(|answer| format!("{answer:?}")));
        }
        answers
    }

    async fn rescue(&self, rescue: Rescue) -> Vec<String> {
        let rescued = self.store.rescue(rescue).await.expect("it is answered");
        let mut jobs: Vec<String> = rescued.jobs.iter().map(|job| format!("{job:?}")).collect();
        jobs.sort();
        jobs
    }

    async fn cancel(&self, jobs: &[JobId]) -> Vec<String> {
        let size = if self.way == Way::Calls { 1 } else { jobs.len() };
        let mut answers = Vec::new();
        for some in jobs.chunks(size.max(1)) {
            let chosen = Selection::Jobs(some.to_vec());
            let altered = self.store.alter(AlterJobs::new(chosen, JobAction::Cancel)).await;
            let altered = altered.expect("it is answered");
            answers.extend(altered.iter().map(|answer| format!("{answer:?}")));
        }
        answers
    }

    /// What is kept of jobs, without the numbers that may differ.
    async fn records(&self, jobs: &[JobId]) -> Vec<Option<JobRecord>> {
        let mut records = self.store.find(jobs).await.expect("it is answered");
        for record in records.iter_mut().flatten() {
            record.sequence = 0;
            let settled_by = &mut record.status.settled_by;
            *settled_by = settled_by.map(|_| LeaseToken(0));
            if let State::Running(lease) = &mut record.status.state {
                lease.token = LeaseToken(0);
            }
        }
        records
    }

    /// What happened to each job, in order.
    async fn events(&self) -> BTreeMap<String, Vec<String>> {
        let mut told: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for event in self.store.events(0, 1_000_000, Duration::ZERO).await.expect("it is answered")
        {
            let Some(job) = event.job() else { continue };
            let what = format!("{:?} {:?}", event.at, event.what);
            told.entry(job.to_string()).or_default().push(what);
        }
        told
    }

    /// What stands in the tables, as lines, without the numbers that may differ.
    fn tables(&self, ground: &Ground) -> Vec<String> {
        let sql = TABLES.replace("windlass.", &format!("{}.", self.schema));
        ground.sql(&sql).lines().map(str::to_string).collect()
    }
}

const TABLES: &str = "\
    with named as (select j.seq, j.id from windlass.job j), \
    lines as ( \
      select concat_ws(' ', 'job', j.id, q.name, k.name, j.created_at, j.priority, j.start_kind, \
          j.start_us, j.max_attempts, j.payload, j.spec) as line \
        from windlass.job j join windlass.queue_kind l on l.id = j.queue_kind \
          join windlass.queue q on q.id = l.queue join windlass.kind k on k.id = l.kind \
      union all select concat_ws(' ', 'state', n.id, p.state, p.at, p.updated_at, p.attempts, \
          p.recoveries, p.generation, p.steps, p.begun, p.cancel_requested, p.reason, \
          p.attempt_end, p.unmet, p.since, case when p.state = 3 then p.max_attempts end, \
          p.first_started, p.worker, p.output, \
          p.met) from windlass.job_state_now p join named n using (seq) \
      union all select concat_ws(' ', 'rest', n.id, p.rank, p.without_effects, p.offered, p.lane, \
          p.partition, p.object, p.expires_at, p.own_max_attempts) \
        from windlass.job_state p join named n using (seq) \
      union all select concat_ws(' ', 'ready', n.id, r.rank, r.at, r.never_started) \
        from windlass.ready r join named n using (seq) \
      union all select concat_ws(' ', 'lane_ready', n.id, r.lane, r.rank, r.at) \
        from windlass.lane_ready r join named n using (seq) \
      union all select concat_ws(' ', 'lane_held', n.id, r.lane, r.partition) \
        from windlass.lane_held r join named n using (seq) \
      union all select concat_ws(' ', 'scheduled', n.id, r.at) \
        from windlass.scheduled r join named n using (seq) \
      union all select concat_ws(' ', 'dead', n.id, r.at) \
        from windlass.dead r join named n using (seq) \
      union all select concat_ws(' ', 'history', n.id, h.at) from windlass.history h \
        cross join lateral windlass._from_ranges(h.lows, h.highs) s join named n on n.seq = s \
      union all select concat_ws(' ', 'unique_key', k.key, k.id, k.until) \
        from windlass.unique_key k \
      union all select concat_ws(' ', 'dependency', n.id, d.on_id, d.on_failure, d.met) \
        from windlass.dependency d join named n using (seq) \
      union all select concat_ws(' ', 'attempt_log', n.id, d.error, d.attempts, \
          d.attempts_dropped, d.recovered_at, d.log, d.log_dropped) \
        from windlass.attempt_log d join named n using (seq) \
        where d.error is not null or d.attempts is not null or d.log is not null \
      union all select concat_ws(' ', 'counters', q.name, k.name, c.lane, c.priority, c.counts) \
        from (select queue, queue_kind, lane, priority, array[sum(blocked), sum(scheduled), \
            sum(ready), sum(running), sum(completed), sum(dead), sum(cancelled), sum(t_enqueued), \
            sum(t_completed), sum(t_failed), sum(t_retried), sum(t_rescued), sum(t_dead), \
            sum(t_cancelled)] as counts \
          from windlass.counter_delta group by queue, queue_kind, lane, priority) c \
        join windlass.queue q on q.id = c.queue \
        left join windlass.queue_kind l on l.id = c.queue_kind \
        left join windlass.kind k on k.id = l.kind \
        where exists (select from unnest(c.counts) n where n <> 0)) \
    select line from lines order by line";

/// The calls of one seed.
struct Script {
    dice: Dice,
    jobs: Vec<JobId>,
}

impl Script {
    fn id(&mut self) -> JobId {
        let mut bytes = [0; 16];
        bytes.iter_mut().for_each(|byte| *byte = u8::try_from(self.dice.roll(256)).unwrap_or(0));
        let id = JobId::from_bytes(bytes);
        self.jobs.push(id);
        id
    }

    fn one_in(&mut self, sides: u64) -> bool {
        self.dice.roll(sides) == 0
    }

    fn seconds(&mut self, most: u64) -> Duration {
        Duration::from_secs(1 + self.dice.roll(most))
    }

    /// A batch of jobs, some of which depend on `good` ones or on each other.
    fn batch(&mut self, good: &[JobId]) -> Vec<Arc<NewJob>> {
        let plain = self.one_in(2);
        let mut jobs: Vec<Arc<NewJob>> = Vec::new();
        for _ in 0..=self.dice.roll(12) {
            let kind = ["work", "rest"][usize::try_from(self.dice.roll(2)).unwrap_or(0)];
            let queue = if plain { "plain" } else { "mixed" };
            let (id, payload) =
                (self.id(), vec![b'x'; usize::try_from(self.dice.roll(5)).unwrap_or(0)]);
            let mut job = NewJob::new(id, name(kind), name(queue), payload);
            if self.one_in(4) {
                job.priority = Priority(i32::try_from(self.dice.roll(3)).unwrap_or(0) - 1);
            }
            if self.one_in(4) {
                job.start = Start::After(self.seconds(20));
            }
            if self.one_in(4) {
                job.max_attempts = Some(1 + u32::try_from(self.dice.roll(2)).unwrap_or(0));
            }
            if !plain {
                self.with_side_effects(&mut job, good, &jobs);
            }
            jobs.push(Arc::new(job));
        }
        jobs
    }

    fn with_side_effects(&mut self, job: &mut NewJob, good: &[JobId], batch: &[Arc<NewJob>]) {
        match self.dice.roll(6) {
            0 => {
                let scope = if self.one_in(2) { UniqueScope::Open } else { UniqueScope::Any };
                let window = self.one_in(2).then(|| self.seconds(30));
                job.unique =
                    Some(Unique { key: format!("key {}", self.dice.roll(3)), scope, window });
            }
            1 => job.expires_after = Some(self.seconds(20)),
            2 => {
                job.queue = name("lanes");
                job.lane = Some(Lane::Key(format!("lane {}", self.dice.roll(3))));
            }
            3 | 4 => {
                let known: Vec<JobId> =
                    good.iter().copied().chain(batch.iter().map(|job| job.id)).collect();
                for _ in 0..=self.dice.roll(2) {
                    let at = self.dice.roll(known.len().max(1) as u64);
                    let Some(on) = known.get(usize::try_from(at).unwrap_or(0)).copied() else {
                        continue;
                    };
                    let on_failure = [OnFailure::Cascade, OnFailure::Ignore, OnFailure::Wait]
                        [usize::try_from(self.dice.roll(3)).unwrap_or(0)];
                    job.depends_on.push(Dependency { on, on_failure });
                }
            }
            _ => {}
        }
    }

    fn claim(&mut self) -> Claim {
        let mut kinds = vec![KindClaim::new(name("work")), KindClaim::new(name("rest"))];
        if self.one_in(3) {
            kinds[1].max_attempts = 1;
        }
        let queues = self.one_in(3).then(|| vec![name("plain")]);
        let limit = usize::try_from(1 + self.dice.roll(15)).unwrap_or(1);
        Claim { worker: "worker".into(), queues, kinds, limit, request: None }
    }

    /// How some of these attempts end, most of them well.
    fn ends(&mut self, running: &[JobId]) -> Vec<Settlement> {
        let mut ends = Vec::new();
        for &job in running {
            if self.one_in(3) {
                continue;
            }
            let verdict = match self.dice.roll(10) {
                0 => Verdict::Retry(self.seconds(10)),
                1 => Verdict::Snooze(self.seconds(10)),
                2 => Verdict::Release,
                3 => Verdict::Bury(DeadReason::Permanent),
                4 => Verdict::Cancel(CancelReason::Handler),
                _ => Verdict::Complete,
            };
            let mut end = Settlement::new(job, LeaseToken(0), verdict);
            match verdict {
                Verdict::Complete => end.output = self.one_in(2).then(|| b"output".to_vec().into()),
                Verdict::Retry(_) | Verdict::Bury(_) | Verdict::Cancel(_) => {
                    end.error = Some(ErrorText::new("it failed"));
                }
                Verdict::Snooze(_) | Verdict::Release => {}
            }
            ends.push(end);
        }
        ends
    }

    /// The jobs of these records that are in one of these states.
    fn those(&self, records: &[Option<JobRecord>], states: &[StateName]) -> Vec<JobId> {
        let records = records.iter().flatten();
        records.filter(|record| states.contains(&record.state())).map(JobRecord::id).collect()
    }
}

/// One call to each twin, which must be answered alike.
async fn call(script: &mut Script, twins: &mut [Twin], ground: &Ground, seed: u64, step: usize) {
    let records = twins[0].records(&script.jobs).await;
    let mut answers: Vec<Vec<String>> = Vec::new();
    let what = script.dice.roll(10);
    match what {
        0..3 => {
            let good = script.those(
                &records,
                &[StateName::Blocked, StateName::Scheduled, StateName::Ready, StateName::Completed],
            );
            let batch = script.batch(&good);
            for twin in &mut *twins {
                answers.push(twin.enqueue(&batch).await);
            }
            // The second twin tells less of them.
            let short =
                |line: &String| line.split(' ').next().map(str::to_string).unwrap_or_default();
            let last = twins.len() - 1;
            assert_eq!(
                answers[0].iter().map(short).collect::<Vec<_>>(),
                answers[last].iter().map(short).collect::<Vec<_>>(),
                "seed {seed}, call {step}"
            );
            answers.truncate(last);
        }
        3..5 => {
            let claim = script.claim();
            for twin in &mut *twins {
                answers.push(twin.claim(&claim).await);
            }
        }
        5..8 => {
            let running = script.those(&records, &[StateName::Running]);
            let ends = script.ends(&running);
            for twin in &mut *twins {
                answers.push(twin.settle(&ends).await);
            }
        }
        8 if script.one_in(2) => {
            let open =
                [StateName::Blocked, StateName::Scheduled, StateName::Ready, StateName::Running];
            let mut open = script.those(&records, &open);
            open.retain(|_| script.one_in(6));
            for twin in &mut *twins {
                answers.push(twin.cancel(&open).await);
            }
        }
        8 => {
            let recovery = Recovery {
                mode: RecoveryMode::Act,
                max_recoveries: 2,
                delay: Duration::from_secs(1),
            };
            let rescue = Rescue { recovery, reason: RecoveryReason::LeaseExpired };
            for twin in &mut *twins {
                answers.push(twin.rescue(rescue).await);
            }
        }
        _ => {
            let by = script.seconds(40);
            ground.advance(by);
            for twin in &mut *twins {
                twin.store.promote().await.expect("it is answered");
            }
        }
    }
    for (twin, answer) in twins.iter().zip(&answers).skip(1) {
        assert_eq!(&answers[0], answer, "seed {seed}, call {step}, kind {what}: {:?}", twin.way);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_done_in_bulk_is_done_as_one_by_one() {
    let Some(ground) = Ground::new() else { return };
    ground.make_clock();
    let texts: Vec<String> =
        (0..3).map(|_| format!("{}&windlass_pool=2", ground.text_address())).collect();
    let only: Option<u64> = std::env::var("WINDLASS_SEED").ok().and_then(|seed| seed.parse().ok());
    for seed in only.map_or(SEEDS, |seed| seed..seed + 1) {
        let mut twins = Vec::new();
        for (way, text) in [Way::Bulk, Way::Inside, Way::Calls].into_iter().zip(&texts) {
            let address: PostgresAddress = text.parse().expect("it is well formed");
            if seed != only.unwrap_or(SEEDS.start) {
                ground.sql(&emptying_sql(&address.schema));
            }
            twins.push(Twin::new(&ground, way, text).await);
        }
        let mut script = Script { dice: Dice::new(seed), jobs: Vec::new() };
        for step in 0..CALLS {
            call(&mut script, &mut twins, &ground, seed, step).await;
        }
        let (records, events) = (twins[0].records(&script.jobs).await, twins[0].events().await);
        let tables = twins[0].tables(&ground);
        assert!(records.iter().flatten().count() > 20, "seed {seed} makes too few jobs");
        for twin in &twins[1..] {
            for (bulk, alone) in records.iter().zip(twin.records(&script.jobs).await) {
                assert_eq!(bulk, &alone, "seed {seed}: {:?}", twin.way);
            }
            for (job, alone) in twin.events().await {
                assert_eq!(events.get(&job), Some(&alone), "seed {seed}: {:?}: {job}", twin.way);
            }
            let alone = twin.tables(&ground);
            let differ = tables.iter().zip(&alone).find(|(bulk, alone)| bulk != alone);
            assert_eq!(differ, None, "seed {seed}: {:?}", twin.way);
            assert_eq!(tables.len(), alone.len(), "seed {seed}: {:?}", twin.way);
        }
        for twin in twins {
            twin.store.close().await;
        }
    }
}
