//! The two stores side by side.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::Duration;

use windlass::store::StoreError;
use windlass::store::file::{JournaledLedger, LedgerOptions};
use windlass_core::event::{Event, RecoveryReason};
use windlass_core::job::{JobId, LeaseToken, State};
use windlass_core::ledger::{
    Applied, Cancel, Clear, Command, Configure, Enqueue, Ledger, Promote, Recovery, RecoveryMode,
    Remove, Renew, Renewal, Replay, ReplayEdited, Reschedule, Rescue, Settle,
};
use windlass_core::limits::Limits;
use windlass_core::object::{Address, ObjectChange, ObjectRecord, ObjectView, Turn};
use windlass_core::record::{Change, JobRecord, Report, Update};
use windlass_core::refusal::Refusal;
use windlass_core::time::{Now, Steady, Timestamp};
use windlass_sim::{Loss, NameLoss, Random, SimDisk};

use crate::commands::{self, Held};

/// How the two differ, in words.
pub(crate) type Same<T = ()> = Result<T, String>;

/// What the twin and the ledger answer.
type Answers<C> = (Result<<C as Command>::Reply, Refusal>, Result<<C as Command>::Reply, Refusal>);

pub(crate) struct Pair {
    twin: Ledger,
    records: BTreeMap<JobId, JobRecord>,
    objects: BTreeMap<Address, ObjectRecord>,
    disk: SimDisk,
    ledger: JournaledLedger,
    options: LedgerOptions,
    /// The twin's token of each token of the ledger.
    tokens: BTreeMap<u64, u64>,
    /// Every lease there ever was, in the twin's terms.
    held: Vec<Held>,
    events: Vec<Event>,
    elapsed: u64,
    /// When the ledger was opened: its steady clock starts there.
    opened_at: u64,
}

impl Pair {
    pub(crate) fn new(random: &mut Random) -> Self {
        let limits = Limits {
            dead_letters: if random.coin() { 3 } else { 1_000 },
            history_jobs: if random.coin() { 5 } else { 1_000 },
            audit_entries: 5,
            history_age: Duration::from_millis(if random.coin() { 3_000 } else { 1 << 40 }),
            ..Limits::default()
        };
        let recovery = Recovery {
            mode: RecoveryMode::Act,
            max_recoveries: random.between(0, 3) as u32,
            delay: Duration::from_millis(random.between(0, 500)),
        };
        let options = LedgerOptions {
            limits: limits.clone(),
            recovery,
            segment_bytes: Some(4_096 << random.below(4)),
            thorough: random.coin(),
            checkpoint_bytes: Some(random.spread(8_000, 60_000)),
            ..LedgerOptions::default()
        };
        let disk = SimDisk::new(random.branch());
        let now = at(0, 0);
        let (ledger, _) =
            JournaledLedger::open(disk.mount(), &options, now).expect("an empty disk");
        Self {
            twin: Ledger::new(limits),
            records: BTreeMap::new(),
            objects: BTreeMap::new(),
            disk,
            ledger,
            options,
            tokens: BTreeMap::new(),
            held: Vec::new(),
            events: Vec::new(),
            elapsed: 0,
            opened_at: 0,
        }
    }

    fn now(&self) -> Now {
        at(self.elapsed, 0)
    }

    fn book_now(&self) -> Now {
        at(self.elapsed, self.opened_at)
    }

    fn wall(&self) -> Timestamp {
        self.now().wall
    }

    /// One random command, or something that happens to the process.
    pub(crate) fn step(&mut self, random: &mut Random) -> Same {
        let wall = self.wall();
        match random.below(46) {
            0..=8 => self.both(Enqueue { jobs: commands::jobs(random, wall) })?,
            9..=15 => self.claim(random)?,
            16..=18 => self.renew(random)?,
            19..=25 => self.settle(random)?,
            26 => {
                let reason = RecoveryReason::LeaseExpired;
                self.both(Rescue { recovery: self.options.recovery, reason })?;
            }
            27 => self.both(Promote)?,
            28 => self.both(Cancel { jobs: commands::ids(random) })?,
            29 => {
                let (jobs, start) = (commands::ids(random), commands::start(random));
                self.both(Reschedule { jobs, start })?;
            }
            30 => self.both(Replay { jobs: commands::ids(random) })?,
            31 => {
                let (job, edited) = (commands::id(random), commands::job(random, wall));
                self.both(ReplayEdited { job, edited })?;
            }
            32 => self.both(Remove { jobs: commands::ids(random) })?,
            33 => {
                let (queue, change) = (commands::queue(random), commands::change(random));
                let by = commands::actor(random);
                self.both(Configure { queue, change, by })?;
            }
            34 if random.coin() => {
                let (queue, by) = (commands::queue(random), commands::actor(random));
                self.both(Clear::first(queue, by))?;
            }
            35..=36 => self.reopen(random)?,
            37..=42 => {
                let turn = self.turn(random);
                self.both(turn)?;
            }
            _ => self.elapsed += random.spread(1_000, 5_000_000),
        }
        if random.coin() {
            self.land(random)?;
        }
        if random.chance(100) { self.compare() } else { self.compare_objects() }
    }

    /// A turn of one of the objects as it is now, mostly.
    fn turn(&self, random: &mut Random) -> Turn {
        let object = commands::address(random);
        let version = self.objects.get(&object).map_or(0, |object| object.meta.version);
        commands::turn(random, object, version, self.wall())
    }

    fn both<C: Command<Reply: Debug> + Clone>(&mut self, command: C) -> Same {
        let (twin, ledger) = self.apply(command.clone(), command)?;
        self.same("the answer", &twin, &ledger)
    }

    /// Applies a command to both, in the terms of each, and compares the answers.
    fn apply<C: Command<Reply: Debug>>(&mut self, to_twin: C, to_book: C) -> Same<Answers<C>> {
        let Applied { reply, changes, events, .. } = self.twin.apply(to_twin, self.now());
        self.events.extend(events);
        changes.into_iter().for_each(|change| self.keep(change));
        let answer = match self.ledger.apply(to_book, self.book_now()) {
            Ok(answer) => Ok(answer),
            Err(StoreError::Refused(refusal)) => Err(refusal),
            Err(unknown) => return Err(format!("the book does not answer: {unknown}")),
        };
        Ok((reply, answer))
    }

    fn claim(&mut self, random: &mut Random) -> Same {
        let claim = commands::claim(random);
        let (twin, ledger) = self.apply(claim.clone(), claim)?;
        if let (Ok(twin), Ok(ledger)) = (&twin, &ledger) {
            for (twin, ledger) in twin.jobs.iter().zip(&ledger.jobs) {
                self.tokens.insert(ledger.lease.token.0, twin.lease.token.0);
                self.held.push((twin.id, twin.lease.token));
            }
        }
        self.same("the answer to a claim", &twin, &ledger)?;
        let Ok(claims) = ledger else { return Ok(()) };
        for handed in self.ledger.hand_out(claims).map_err(|error| error.to_string())?.jobs {
            let record = &self.records[&handed.job.id];
            self.same("a job that was handed out", &record.job, &handed.job)?;
            let (first, since) = (record.first_started_at, Some(handed.first_started_at));
            self.same("its first start", &first, &since)?;
        }
        Ok(())
    }

    /// Some leases, of now or of long ago.
    fn some_held(&self, random: &mut Random) -> Vec<Held> {
        let recent = self.held.len().saturating_sub(6);
        let pool = if random.chance(850) { &self.held[recent..] } else { &self.held[..] };
        let pool = pool.to_vec();
        (0..random.below(4)).filter_map(|_| pool.get(random.index(pool.len())).copied()).collect()
    }

    fn renew(&mut self, random: &mut Random) -> Same {
        let wall = self.wall();
        let held = self.some_held(random);
        let renewals: Vec<_> =
            held.into_iter().map(|held| commands::renewal(random, held, wall)).collect();
        let mut translated = renewals.clone();
        translated.iter_mut().for_each(|each| each.token = self.in_the_book(each.token));
        let (twin, ledger) = self.apply(Renew { renewals }, Renew { renewals: translated })?;
        self.same("the answer to a renewal", &twin, &ledger)
    }

    fn settle(&mut self, random: &mut Random) -> Same {
        let wall = self.wall();
        let held = self.some_held(random);
        let mut settlements: Vec<_> =
            held.into_iter().map(|held| commands::settlement(random, held, wall)).collect();
        for settlement in &mut settlements {
            settlement.turn = random.chance(350).then(|| Box::new(self.turn(random)));
        }
        let mut translated = settlements.clone();
        translated.iter_mut().for_each(|each| each.token = self.in_the_book(each.token));
        let (twin, ledger) =
            self.apply(Settle { settlements }, Settle { settlements: translated })?;
        self.same("the answer to a settlement", &twin, &ledger)
    }

    /// The ledger's token for one of the twin's.
    fn in_the_book(&self, token: LeaseToken) -> LeaseToken {
        let found = self.tokens.iter().find(|(_, twin)| **twin == token.0);
        LeaseToken(found.map_or(u64::MAX, |(ledger, _)| *ledger))
    }

    /// Compares in words, with the tokens of the ledger in the twin's terms.
    fn same<T: Debug + ?Sized>(&self, what: &str, twin: &T, ledger: &T) -> Same {
        let (twin, ledger) = (format!("{twin:?}"), self.translate(&format!("{ledger:?}")));
        if twin == ledger {
            return Ok(());
        }
        Err(format!("{what} differs\n  twin: {twin}\n  book: {ledger}"))
    }

    fn translate(&self, text: &str) -> String {
        const MARK: &str = "LeaseToken(";
        let mut parts = text.split(MARK);
        let mut translated = parts.next().unwrap_or_default().to_string();
        for part in parts {
            let (digits, rest) = part.split_once(')').expect("a token ends");
            let token: u64 = digits.parse().expect("a token is a number");
            let token = self.tokens.get(&token).copied().unwrap_or(token);
            translated.push_str(&format!("{MARK}{token}){rest}"));
        }
        translated
    }

    /// Makes what was gathered durable, and tidies up as a store does.
    fn land(&mut self, random: &mut Random) -> Same {
        while let Some(mut commit) = self.ledger.take() {
            commit.write().and_then(|()| commit.sync()).expect("the disk is sound");
            self.ledger.written(commit.number());
            let told = std::mem::take(&mut commit.events);
            let expected: Vec<Event> =
                self.events.drain(..told.len().min(self.events.len())).collect();
            self.same("what is told", &expected, &told)?;
            for retired in self.ledger.landed(&commit) {
                self.ledger.add_spare(retired.let_go().expect("the disk is sound"));
            }
            let budget = random.spread(100, 10_000);
            if self.ledger.wants_compaction() {
                self.ledger.compact(budget).map_err(|error| error.to_string())?;
            }
            if self.ledger.wants_checkpoint() {
                self.ledger.checkpoint(budget).map_err(|error| error.to_string())?;
            }
        }
        Ok(())
    }

    /// The ledger is closed, killed or cut off from power, and opened again.
    pub(crate) fn reopen(&mut self, random: &mut Random) -> Same {
        // What is due by now happens before the twin's leases are renewed below, which the ledger
        // does not see.
        self.both(Promote)?;
        self.land(random)?;
        self.compare()?;
        if random.coin() {
            self.ledger.seal().expect("the disk is sound");
        }
        if random.coin() {
            self.disk.kill();
        } else {
            let losses = [Loss::Keep, Loss::Drop, Loss::Tear, Loss::Mix];
            self.disk.crash(*random.pick(&losses), *random.pick(&NameLoss::ALL));
        }
        // Owning the directory proves that whoever ran a job is gone.
        let mut events = self.forget_lease_ends();
        if random.coin() {
            self.elapsed += random.spread(1_000, 5_000_000);
        }
        self.opened_at = self.elapsed;
        let opened = JournaledLedger::open(self.disk.mount(), &self.options, self.book_now());
        let (ledger, opened) = opened.map_err(|error| error.to_string())?;
        self.ledger = ledger;
        let rescue = Rescue { recovery: self.options.recovery, reason: RecoveryReason::Restart };
        let Applied { reply, changes, events: told, .. } = self.twin.apply(rescue, self.now());
        events.extend(told);
        changes.into_iter().for_each(|change| self.keep(change));
        let rescued = reply.map_err(|refusal| refusal.to_string())?;
        self.same("what was recovered", &rescued.jobs, &opened.recovered)?;
        let told = self.ledger.opening_events();
        self.same("what opening tells", &events, &told)?;
        let wrong = self.ledger.check();
        if !wrong.is_empty() {
            return Err(format!("the book is unsound: {}", wrong.join("; ")));
        }
        self.compare()
    }

    /// When leases end is not kept, and those that end together are rescued in the order of their
    /// tokens: so it is made in the twin.
    fn forget_lease_ends(&mut self) -> Vec<Event> {
        let renewals = self.held.iter().map(|(job, token)| Renewal {
            job: *job,
            token: *token,
            lease: Duration::from_secs(60),
            report: Report::default(),
        });
        let renew = Renew { renewals: renewals.collect() };
        let Applied { changes, events, .. } = self.twin.apply(renew, self.now());
        for change in changes {
            let running = |update: &Update| update.status.state.is_running();
            if !matches!(&change, Change::Update(update) if running(update)) {
                self.keep(change);
            }
        }
        events
    }

    /// Every record, every counter and the whole ledger are the same.
    fn compare(&mut self) -> Same {
        let (now, book_now) = (self.now(), self.book_now());
        let mut ids: Vec<JobId> = (1..=commands::IDS).map(commands::id_of).collect();
        // Queues add jobs of their own when one dies or a lane is empty.
        ids.extend(self.records.keys());
        let found = self.ledger.find(&ids, book_now).map_err(|error| error.to_string())?;
        let wall = self.twin.glance(now).wall;
        for (id, ledger) in ids.iter().zip(found) {
            let twin = self.records.get(id).cloned().map(|mut record| {
                record.status = self.twin.status_of(*id).expect("a record has an entry");
                record.seen_at(wall)
            });
            self.same("a record", &twin, &ledger)?;
        }
        self.compare_objects()?;
        let counts = (self.twin.counts(now), self.ledger.count(book_now));
        self.same("the counters", &counts.0, &counts.1)?;
        let (twin, ledger) = (self.twin.dump(), self.translate(&self.ledger.ledger().dump()));
        if twin != ledger {
            return Err(format!("the ledgers differ\n{twin}\nand\n{ledger}"));
        }
        Ok(())
    }

    /// Every object, its state and what its jobs say are the same.
    fn compare_objects(&mut self) -> Same {
        let (now, book_now) = (self.now(), self.book_now());
        self.twin.glance(now);
        for address in commands::addresses() {
            let twin = self.objects.get(&address).map(|record| {
                let (executing_since, alarm_at, open_jobs) = self.twin.object_jobs(&address);
                let record = record.clone();
                ObjectView { record, executing_since, alarm_at, open_jobs }
            });
            let ledger =
                self.ledger.object(&address, book_now).map_err(|error| error.to_string())?;
            self.same("an object", &twin, &ledger)?;
        }
        let wrong = self.twin.check();
        if wrong.is_empty() { Ok(()) } else { Err(format!("unsound: {}", wrong.join("; "))) }
    }

    fn keep_object(&mut self, change: ObjectChange) {
        let ObjectChange { address, meta, state } = change;
        let known = self.objects.get(&address).map(|record| record.state.clone());
        let state = state.or(known).expect("a new object has a state");
        self.objects.insert(address.clone(), ObjectRecord { address, meta, state });
    }

    fn keep(&mut self, change: Change) {
        match change {
            Change::Insert(accepted) => {
                self.records.insert(accepted.job.id, JobRecord::new(&accepted));
            }
            Change::Update(update) => {
                let Some(record) = self.records.get_mut(&update.job) else { return };
                if is_renewal(&update) {
                    record.status = update.status;
                } else {
                    record.absorb(&update);
                }
            }
            Change::Remove { job } => {
                self.records.remove(&job);
            }
            Change::Queue { .. }
            | Change::Rate { .. }
            | Change::QueueKind { .. }
            | Change::Lane { .. } => {}
            Change::Object(change) => self.keep_object(*change),
            Change::ObjectGone { address } => {
                self.objects.remove(&address);
            }
        }
    }
}

/// A renewal alone is not worth a write: whoever opens the store next ends every lease anyway.
fn is_renewal(update: &Update) -> bool {
    let running = match &update.status.state {
        State::Running(lease) => !lease.cancel_requested,
        _ => false,
    };
    running && update.note.is_none()
}

fn at(elapsed: u64, opened_at: u64) -> Now {
    let micros = 1_700_000_000_000_000 + i64::try_from(elapsed).expect("not so long");
    Now { wall: Timestamp::from_micros(micros), steady: Steady::from_micros(elapsed - opened_at) }
}
