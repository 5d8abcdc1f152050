//! The demonstration: an engine, jobs that flow in by themselves, and a story.
//!
//! It keeps its jobs in a directory. Cut off by whatever it may be and started again, it says what
//! it found there, runs what was left, and goes on.
//!
//! - `jobs` is what a program that uses the library would contain: kinds and handlers
//! - `objects` is the same for durable objects: a pool, a debounce, a loop, a schedule
//! - `traffic` keeps ordinary jobs coming
//! - `script` plays the scenes, each a thing that happens to jobs in real life
//! - `story` puts into words what the engine tells about the scenes' jobs
//! - `recovery` puts into words what an earlier run has left
//! - `screen` shows it, and `report` adds it all up at the end

mod jobs;
mod objects;
mod recovery;
mod report;
mod screen;
mod script;
mod story;
mod traffic;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Interval, MissedTickBehavior, sleep};
use windlass::{Engine, Sharing, StopReport, Subscription, Topics, Worker};

use crate::cli::DemoOptions;
use crate::demo::jobs::World;
use crate::demo::objects::Objects;
use crate::demo::recovery::Numbers;
use crate::demo::report::Report;
use crate::demo::screen::Screen;
use crate::demo::script::Script;
use crate::demo::story::{Cast, Line, Story};
use crate::signals::Interrupts;

/// How long a graceful stop waits for running jobs: longer than any of them but the one whose
/// length the user chooses.
const GRACE: Duration = Duration::from_secs(10);

/// How often the screen is drawn.
const FRAME: Duration = Duration::from_millis(250);

/// Runs the demonstration until its time is over or someone presses Ctrl-C.
pub(crate) fn run(options: &DemoOptions, verbose: bool) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let played = runtime.block_on(play(options, verbose));
    // Nothing is left to wait for, and a handler that was aborted may still hold a thread.
    runtime.shutdown_background();
    played
}

async fn play(options: &DemoOptions, verbose: bool) -> anyhow::Result<()> {
    let mut interrupts = Interrupts::listen()?;
    // A second demo would tell the story of both.
    let engine = Engine::builder().sharing(Sharing::OwnOrFail).open(&options.store).await?;
    let (say, said) = mpsc::unbounded_channel();
    let cast = Arc::new(Cast::default());
    let world = Arc::new(World::default());
    let mut stage = Stage {
        // Subscribed before anything happens, so that the story misses nothing.
        events: engine.subscribe(Topics::all())?,
        engine: engine.clone(),
        store: options.store.clone(),
        story: Story::new(cast.clone()),
        said,
        screen: Screen::new(options.output, verbose),
        frame: frames(),
    };
    let numbers = stage.open().await?;
    world.figures_arrive(numbers.round - 1);
    let objects = Objects::new(world.clone())?;
    let worker = jobs::worker(&engine, world.clone(), &objects).grace(GRACE).start().await?;
    let longest = Duration::from_secs(options.longest);
    let script = Script { engine: engine.clone(), cast, world, objects, say, longest, numbers };
    let mut performers = JoinSet::new();
    performers.spawn(traffic::flow(engine, options.seed, numbers.order));
    performers.spawn(script::play(script));

    stage.show_until(ended(options.seconds, &mut interrupts, &mut performers)).await??;
    performers.shutdown().await;
    stage.tell(&stopping(&worker))?;
    let (stopped, forced) = stage.show_until(wind_down(&worker, &mut interrupts)).await?;
    stage.finish(stopped?, forced).await
}

fn frames() -> Interval {
    let mut frame = tokio::time::interval(FRAME);
    frame.set_missed_tick_behavior(MissedTickBehavior::Delay);
    frame
}

/// Waits for the end: the time is over, someone presses Ctrl-C, or a performer fails.
async fn ended(
    seconds: Option<u64>,
    interrupts: &mut Interrupts,
    performers: &mut JoinSet<anyhow::Result<()>>,
) -> anyhow::Result<()> {
    let time_is_over = async {
        match seconds {
            Some(seconds) => sleep(Duration::from_secs(seconds)).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = time_is_over => Ok(()),
        () = interrupts.next() => Ok(()),
        // They play until they are stopped, so one that ends has failed.
        Some(performed) = performers.join_next() => performed?,
    }
}

/// Stops the worker gracefully, or at once when Ctrl-C comes meanwhile; and says which it was.
async fn wind_down(
    worker: &Worker,
    interrupts: &mut Interrupts,
) -> (Result<StopReport, windlass::Error>, bool) {
    tokio::select! {
        biased;
        stopped = worker.stop() => (stopped, false),
        () = interrupts.next() => (worker.stop_now().await, true),
    }
}

fn stopping(worker: &Worker) -> Line {
    let text = match worker.busy() {
        0 => "nothing runs any more".to_string(),
        busy => {
            format!("{busy} may finish, in at most {} s; Ctrl-C again stops now", GRACE.as_secs())
        }
    };
    Line::of("stop", text)
}

/// What is shown, and where it comes from.
struct Stage {
    engine: Engine,
    store: String,
    events: Subscription,
    said: mpsc::UnboundedReceiver<Line>,
    story: Story,
    screen: Screen,
    frame: Interval,
}

impl Stage {
    /// Tells where jobs are kept and what an earlier run has left, and says where to go on.
    async fn open(&mut self) -> anyhow::Result<Numbers> {
        self.tell(&recovery::header(&self.store, self.engine.durability()))?;
        let counts = self.engine.counts().await?;
        let found = self.engine.opened().map(|opened| recovery::tell(opened, &counts));
        for line in found.unwrap_or_default() {
            self.tell(&line)?;
        }
        if let Some(line) = recovery::resume(&self.engine, &counts).await? {
            self.tell(&line)?;
        }
        Ok(Numbers::after(&counts))
    }

    /// Keeps the screen up to date until `end` is there.
    async fn show_until<T>(&mut self, end: impl Future<Output = T>) -> anyhow::Result<T> {
        tokio::pin!(end);
        loop {
            tokio::select! {
                biased;
                ended = &mut end => return Ok(ended),
                // What the script announces comes before what it causes.
                Some(line) = self.said.recv() => self.tell(&line)?,
                heard = self.events.next() => {
                    if let Some(line) = self.story.hear(&heard) {
                        self.tell(&line)?;
                    }
                }
                _ = self.frame.tick() => {
                    let counts = self.engine.counts().await?;
                    self.screen.show(&counts)?;
                }
            }
        }
    }

    fn tell(&mut self, line: &Line) -> anyhow::Result<()> {
        self.screen.tell(line)
    }

    /// Tells the rest of the story, and the report.
    async fn finish(mut self, worker: StopReport, forced: bool) -> anyhow::Result<()> {
        while let Some(heard) = self.events.try_next().await {
            if let Some(line) = self.story.hear(&heard) {
                self.tell(&line)?;
            }
        }
        let counts = self.engine.counts().await?;
        let store = (self.store.as_str(), &self.engine);
        let report = Report::new(store, &counts, self.story.tally(), worker, forced);
        self.engine.close().await;
        self.screen.finish(&counts, &report)
    }
}
