//! What a seed is made of: each draws its own sizes, rates and mix of features.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use windlass::store::file::LedgerOptions;
use windlass_core::ledger::{Recovery, RecoveryMode};
use windlass_core::limits::Limits;
use windlass_core::name::Name;
use windlass_core::rate::Rate;

use crate::disk::Faults;
use crate::oracle::{KindRules, Rules};
use crate::random::Random;

/// What goes wrong most in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// Almost nothing: the store is closed and opened now and then.
    Calm,
    /// The power fails and the process is killed, often and while the store is being opened.
    Crashy,
    /// Every step of the writer takes long, so that much is in the air when something happens.
    SlowDisk,
    /// There is no space, and then there is.
    FullDisk,
    /// Calls fail.
    FlakyDisk,
    /// The wall clock is stepped by hours and years.
    ClockStorm,
    /// Handlers take the process down, hang, vanish and settle late.
    PoisonHandlers,
    /// Bits flip and files are cut.
    BitRot,
    /// Several processes share the directory: they join, die, are stopped and take over.
    Processes,
    /// The same, on a disk that is slow, fails and fills up, with openings that crash.
    FailingOwners,
}

impl Profile {
    /// All of them.
    pub const ALL: [Profile; 10] = [
        Profile::Calm,
        Profile::Crashy,
        Profile::SlowDisk,
        Profile::FullDisk,
        Profile::FlakyDisk,
        Profile::ClockStorm,
        Profile::PoisonHandlers,
        Profile::BitRot,
        Profile::Processes,
        Profile::FailingOwners,
    ];

    /// The profile of a seed of which none was named.
    pub fn of_seed(seed: u64) -> Self {
        Self::ALL[(seed % Self::ALL.len() as u64) as usize]
    }

    /// Its name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Profile::Calm => "calm",
            Profile::Crashy => "crashy",
            Profile::SlowDisk => "slow-disk",
            Profile::FullDisk => "full-disk",
            Profile::FlakyDisk => "flaky-disk",
            Profile::ClockStorm => "clock-storm",
            Profile::PoisonHandlers => "poison-handlers",
            Profile::BitRot => "bit-rot",
            Profile::Processes => "processes",
            Profile::FailingOwners => "failing-owners",
        }
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Profile {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.iter().find(|profile| profile.as_str() == text);
        known.copied().ok_or_else(|| {
            let names: Vec<&str> = Self::ALL.iter().map(|profile| profile.as_str()).collect();
            format!("no profile is called `{text}`; there are {}", names.join(", "))
        })
    }
}

/// How often something bad happens, in so many of 100,000 turns.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rates {
    /// The power is lost between two turns.
    pub power_loss: u64,
    /// The power is lost at one of the next calls to the disk.
    pub trap: u64,
    /// The process is killed, or of several the owner, another, both or all.
    pub kill: u64,
    /// A process is stopped for a while.
    pub stop: u64,
    /// The store is closed and opened.
    pub close: u64,
    /// The wall clock is stepped.
    pub clock_step: u64,
    /// A bit flips or a file is cut.
    pub damage: u64,
    /// The disk fills up, or gets space.
    pub space: u64,
}

/// How often a client or worker does something, in so many of 1,000 times.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mix {
    /// A job is delayed.
    pub delayed: u64,
    /// A job has a unique key.
    pub unique: u64,
    /// A job depends on others.
    pub dependent: u64,
    /// A job expires.
    pub expiring: u64,
    /// An enqueue is a batch.
    pub batch: u64,
    /// A call is not an enqueue but one that controls jobs or queues.
    pub control: u64,
    /// A payload is large for its segment.
    pub large: u64,
    /// A handler fails.
    pub failing: u64,
    /// A worker forgets a job.
    pub vanishing: u64,
    /// A worker settles when its lease has long ended.
    pub late: u64,
    /// A job takes the process down when it runs.
    pub poison: u64,
    /// A handler has much to say.
    pub chatty: u64,
    /// A completed job continues with another.
    pub continuing: u64,
    /// A job has a lane.
    pub laned: u64,
    /// A call is a turn of an object.
    pub turning: u64,
}

/// See the module documentation.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What goes wrong most.
    pub profile: Profile,
    /// Jobs that clients make.
    pub jobs: u64,
    /// Clients at work.
    pub clients: usize,
    /// Workers at work.
    pub workers: usize,
    /// Processes that share the directory.
    pub processes: usize,
    /// Queues in use.
    pub queues: Vec<Name>,
    /// How the store is opened.
    pub options: LedgerOptions,
    /// What its users know of it.
    pub rules: Rules,
    /// How often something bad happens.
    pub rates: Rates,
    /// How often clients and workers do what.
    pub mix: Mix,
    /// How often calls to the disk fail.
    pub faults: Faults,
    /// An opening crashes in so many of 1,000 times.
    pub open_crash: u64,
    /// The longest step of the writer in microseconds.
    pub slowest_step: u64,
    /// The longest time a lease lasts unless renewed, in milliseconds.
    pub longest_lease: u64,
}

impl Settings {
    /// What this seed is made of.
    pub fn draw(profile: Profile, random: &mut Random) -> Self {
        let queues = (0..random.between(1, 3)).map(|n| name(&format!("queue{n}"))).collect();
        let kinds = (0..random.between(1, 3)).map(|n| (name(&format!("kind{n}")), kind(random)));
        let kinds = kinds.collect();
        let recovery = Recovery {
            mode: RecoveryMode::Act,
            max_recoveries: random.between(0, 4) as u32,
            delay: Duration::from_millis(random.between(0, 300)),
        };
        let limits = limits(random);
        let rules = Rules { limits: limits.clone(), recovery, kinds };
        let segment_bytes = Some(4_096 << random.below(5));
        let checkpoint_bytes = Some(random.spread(8_000, 100_000));
        let thorough = random.chance(250);
        let options = LedgerOptions {
            limits,
            recovery,
            segment_bytes,
            thorough,
            checkpoint_bytes,
            ..LedgerOptions::default()
        };
        let mut settings = Self {
            profile,
            jobs: random.between(40, 160),
            clients: random.between(1, 5) as usize,
            workers: random.between(1, 5) as usize,
            processes: 1,
            queues,
            options,
            rules,
            rates: Rates::default(),
            mix: mix(random),
            faults: Faults::default(),
            open_crash: random.between(0, 200),
            slowest_step: random.spread(50, 5_000),
            longest_lease: random.spread(1_000, 8_000),
        };
        settings.worsen(random);
        settings
    }

    /// What the profile adds.
    fn worsen(&mut self, random: &mut Random) {
        let mut up_to = |most: u64| random.between(most / 4, most);
        self.rates = match self.profile {
            Profile::Calm => Rates { close: up_to(120), ..Rates::default() },
            Profile::Crashy => Rates {
                power_loss: up_to(400),
                trap: up_to(500),
                kill: up_to(400),
                close: up_to(50),
                ..Rates::default()
            },
            Profile::SlowDisk | Profile::PoisonHandlers | Profile::FlakyDisk => Rates {
                power_loss: up_to(100),
                trap: up_to(100),
                kill: up_to(100),
                ..Rates::default()
            },
            Profile::FullDisk => Rates {
                power_loss: up_to(60),
                trap: up_to(60),
                kill: up_to(60),
                space: up_to(1_500),
                ..Rates::default()
            },
            Profile::ClockStorm => Rates {
                power_loss: up_to(100),
                kill: up_to(100),
                clock_step: up_to(1_500),
                ..Rates::default()
            },
            Profile::Processes => Rates {
                power_loss: up_to(80),
                trap: up_to(80),
                kill: up_to(500),
                stop: up_to(400),
                close: up_to(100),
                ..Rates::default()
            },
            Profile::FailingOwners => Rates {
                power_loss: up_to(80),
                trap: up_to(80),
                kill: up_to(300),
                stop: up_to(300),
                close: up_to(100),
                space: up_to(300),
                ..Rates::default()
            },
            Profile::BitRot => {
                Rates { power_loss: up_to(50), damage: up_to(400), ..Rates::default() }
            }
        };
        match self.profile {
            Profile::SlowDisk => self.slowest_step = random.spread(50_000, 3_000_000),
            Profile::FlakyDisk => self.faults = faults(random),
            Profile::PoisonHandlers => {
                self.mix.poison = random.between(10, 60);
                self.mix.vanishing = random.between(50, 300);
                self.mix.late = random.between(50, 300);
            }
            Profile::Crashy => self.open_crash = random.between(100, 600),
            Profile::Processes => self.share(random),
            Profile::FailingOwners => {
                self.share(random);
                self.faults = faults(random);
                self.open_crash = random.between(50, 400);
                self.mix.poison = random.between(0, 20);
                if random.coin() {
                    self.slowest_step = random.spread(5_000, 1_000_000);
                }
            }
            Profile::Calm | Profile::FullDisk | Profile::ClockStorm | Profile::BitRot => {}
        }
    }

    /// Several processes share the directory, each with clients or workers.
    fn share(&mut self, random: &mut Random) {
        self.processes = random.between(2, 4) as usize;
        self.clients = random.between(2, 5) as usize;
        self.workers = random.between(2, 5) as usize;
    }
}

fn name(text: &str) -> Name {
    Name::new(text).expect("a valid name")
}

fn kind(random: &mut Random) -> KindRules {
    KindRules {
        max_attempts: random.between(1, 5) as u32,
        concurrency: random.chance(300).then(|| random.between(1, 4) as u32),
        rate: random.chance(200).then(|| {
            Rate::per_second(random.between(5, 60) as u32).burst(random.between(1, 10) as u32)
        }),
    }
}

fn limits(random: &mut Random) -> Limits {
    let mut limits = Limits { payload_bytes: 1 << 20, ..Limits::default() };
    if random.chance(250) {
        limits.dead_letters = random.between(1, 6) as usize;
    }
    if random.chance(250) {
        limits.history_jobs = random.between(3, 30) as usize;
    }
    if random.chance(200) {
        limits.history_age = Duration::from_millis(random.between(500, 20_000));
    }
    limits
}

fn mix(random: &mut Random) -> Mix {
    let mut up_to = |most: u64| if random.chance(250) { 0 } else { random.below(most) };
    Mix {
        delayed: up_to(300),
        unique: up_to(300),
        dependent: up_to(400),
        expiring: up_to(200),
        batch: up_to(500),
        control: up_to(500),
        large: up_to(80),
        failing: up_to(500),
        vanishing: up_to(80),
        late: up_to(80),
        poison: 0,
        chatty: up_to(200),
        continuing: up_to(250),
        laned: up_to(400),
        turning: up_to(400),
    }
}

fn faults(random: &mut Random) -> Faults {
    let mut rate = || if random.coin() { random.below(1_200) } else { 0 };
    Faults {
        write: rate(),
        sync: rate(),
        sync_directory: rate(),
        create: rate() * 8,
        rename: rate() * 2,
        read: rate() / 2,
    }
}
