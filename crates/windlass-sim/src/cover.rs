//! Rare paths that the seeds must reach: a simulation that never gets there proves nothing.

/// Declares the points, each with its words.
macro_rules! points {
    ($($point:ident: $words:literal,)+) => {
        /// A rare path.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(missing_docs, reason = "each is described by its words")]
        pub enum Point { $($point,)+ }

        impl Point {
            /// All of them.
            pub const ALL: &'static [Point] = &[$(Point::$point,)+];

            /// What happened.
            pub const fn words(self) -> &'static str {
                match self { $(Point::$point => $words,)+ }
            }
        }
    };
}

points! {
    TornTail: "a torn tail was found and cut off",
    TornAcrossSegments: "a commit that spans segments was torn",
    CommitSurvived: "a commit in the air survived the crash, and nobody had been told",
    CommitLost: "a commit in the air was lost with the crash",
    LandedTogether: "several commits landed with one sync",
    ClaimLost: "a claim that was handed out was lost with the crash",
    UnsyncedKept: "the process was killed with writes not synced, and went on from them",
    NameLost: "a change of a name was lost with the power",
    SegmentRecycled: "a file came back into the journal with old content",
    SegmentRetired: "a segment left the journal",
    LeftoverCompaction: "the store was opened in the middle of clearing a segment",
    CompactionStaged: "compaction copied what is alive",
    Checkpointed: "a part of a checkpoint was written",
    LeftoverCheckpoint: "the store was opened in the middle of a checkpoint",
    ReadEarly: "a job was read while others were being written",
    ChainWhole: "a job with more updates than a chain may hold",
    OpenCrashed: "the machine crashed while the store was being opened",
    OpenCrashedTwice: "it crashed again while it was being opened again",
    OpenFailed: "opening failed with an error of the disk and was tried again",
    OpeningSurvived: "a crashed opening had written its commit",
    WriteFailed: "a write failed and everything was refused until reopened",
    SyncDropped: "a sync failed and dropped what it could not write",
    BrokenRefuses: "a broken store refused a call",
    StoreFull: "a full disk refused an enqueue",
    FullUnknown: "a full disk kept a worker from settling for a while",
    WaitedForRoom: "a commit waited for room on a full disk",
    TurnedAway: "a call was turned away while a commit was on its way",
    FullHealed: "an enqueue was accepted after the disk had been full",
    OpenFull: "a store could not be opened on a full disk",
    UnknownThenKnown: "an unknown enqueue was repeated and found accepted",
    UnknownThenAccepted: "an unknown enqueue was repeated and accepted",
    RepeatedInFlight: "an enqueue was repeated before the first had landed",
    StaleAfterReopen: "a token from before a reopening was refused",
    StaleAfterExpiry: "a token whose lease had ended was refused",
    SettledAgain: "a settlement was repeated and answered as before",
    SettledAgainAfterReopen: "a settlement from before a reopening was repeated and answered",
    RecoveredAtOpen: "a running job was recovered by opening",
    RecoveredByLease: "a running job was recovered when its lease ended",
    RecoveredToDead: "a job was recovered as often as it may be, and died",
    CancelledAtRecovery: "a job that was to be cancelled was recovered, and cancelled",
    PausedOverRestart: "a queue was paused when the store was opened",
    DepthRefused: "a queue at its depth refused an enqueue",
    Deduplicated: "an enqueue met the holder of its key",
    KeyHeldOverRestart: "a key was held when the store was opened",
    CascadeDead: "a job died with one it depends on",
    CascadeCancelled: "a job was cancelled with one it depends on",
    IgnoredFailure: "a job ran although one it depends on had failed",
    WaitedForReplay: "a job waited for a failed one, and ran when that was replayed",
    RemovedUnderWaiting: "a job died because one it waited for was removed",
    Expired: "a job expired",
    DeadLetterDropped: "a dead letter made room",
    HistoryDropped: "history made room",
    Replaced: "an edited job took the place of a dead one",
    RateLimited: "a rate limit held jobs back",
    ConcurrencyLimited: "a concurrency limit held jobs back",
    ContinuedSameKey: "a job continued with one that took over its key",
    ClockBackOverRestart: "the wall clock was set back before the store was opened",
    ClockStepped: "the wall clock was stepped",
    FlipRefused: "a flipped bit was found, and the store refused with the place",
    FlipFoundLater: "a flipped bit was found when what it spoilt was read",
    FlipHarmless: "a flipped bit changed nothing",
    FlipWhileOpen: "a bit flipped under an open store",
    CutRefused: "a file that was cut was found, and the store refused with the place",
    Sealed: "the journal was sealed",
    AbortedAtStart: "a handler took the process down as it began",
    StaleTurn: "a turn for another version was refused",
    AlarmMoved: "an alarm was moved",
    AlarmRecovered: "a job of an object was recovered",
    ObjectFailed: "an object failed with its alarm",
    CalledOff: "an object called off a job that had not started",
    PurgedWithJobs: "an object was purged with open jobs",
    RanOn: "a job ran on in a living process while another one opened the store",
    SettledAfterTakeover: "a job was settled under a lease that an earlier owner had given",
    RecoveredWhenNoticed: "a job was recovered when the end of its process was noticed",
    UnheldReleased: "a job whose claim lost its answer was given back when its process joined",
    ClaimRepeated: "a claim was made again and answered with the same jobs",
    TookOver: "a process that lived took the store over",
    Repeated: "a call that lost its answer was made again of the next owner",
    NeverSentAgain: "a call that may not be repeated lost its answer and stayed unknown",
    LastReply: "an answer was read after its owner had died",
    OwnerStopped: "an owner was stopped for long, and went on",
    JoinedStopped: "a process that had joined was stopped, and went on",
    DiedTogether: "an owner and one that had joined died together",
    NobodyLeft: "every process died at once",
    StuckForGood: "a job waits for ever for one that failed, as it was told to",
}

/// How often each point was reached.
#[derive(Clone, Debug)]
pub struct Cover([u64; Point::ALL.len()]);

impl Default for Cover {
    fn default() -> Self {
        Self([0; Point::ALL.len()])
    }
}

impl Cover {
    /// It happened.
    pub fn hit(&mut self, point: Point) {
        self.0[point as usize] += 1;
    }

    /// It happened, if it did.
    pub fn hit_if(&mut self, point: Point, happened: bool) {
        self.0[point as usize] += u64::from(happened);
    }

    /// How often it happened.
    pub fn count(&self, point: Point) -> u64 {
        self.0[point as usize]
    }

    /// Adds the counts of another run.
    pub fn add(&mut self, other: &Cover) {
        self.0.iter_mut().zip(other.0).for_each(|(sum, more)| *sum += more);
    }

    /// What never happened.
    pub fn missing(&self) -> Vec<Point> {
        Point::ALL.iter().copied().filter(|point| self.count(*point) == 0).collect()
    }
}
