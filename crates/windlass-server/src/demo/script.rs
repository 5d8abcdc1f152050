//! The scenes: what happens to jobs in real life, each in a few lines of library calls.
//!
//! One round takes about four seconds, and then the next begins with other orders.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::sleep;
use windlass::primitives::PoolEvent;
use windlass::{Engine, Job, JobId, Options, new_id};

use crate::demo::jobs::{
    BuildReport, Charge, Extract, Load, Resize, SendReceipt, Transcode, Transform, World,
};
use crate::demo::objects::{Edit, LANES, Objects, Scan, SendDigest, Token};
use crate::demo::recovery::Numbers;
use crate::demo::story::{Cast, Line};

/// The queue that one scene pauses.
pub(crate) const PAUSED_QUEUE: &str = "media";

/// Between two rounds.
const INTERLUDE: Duration = Duration::from_secs(3);

/// What the scenes need.
#[derive(Clone)]
pub(crate) struct Script {
    pub(crate) engine: Engine,
    pub(crate) cast: Arc<Cast>,
    pub(crate) world: Arc<World>,
    pub(crate) objects: Objects,
    /// Where to announce what someone outside the engine does.
    pub(crate) say: mpsc::UnboundedSender<Line>,
    /// How long the longest job runs.
    pub(crate) longest: Duration,
    /// Where to begin.
    pub(crate) numbers: Numbers,
}

/// The scenes of one round, whose parts end with it.
const SCENES: [&str; 7] = ["retry", "dead letter", "lanes", "graph", "unique", "pause", "snooze"];

/// Where a parcel is seen, in this order.
const PLACES: [&str; 3] = ["post office", "depot", "door"];

/// The one loop, and the one schedule.
const LOOP: &str = "token";
const SCHEDULE: &str = "digest";

/// Plays until it is dropped.
pub(crate) async fn play(script: Script) -> anyhow::Result<()> {
    script.standing().await?;
    // How long a video takes is the user's choice, so the other scenes do not wait for it.
    tokio::try_join!(script.rounds(), script.videos())?;
    Ok(())
}

async fn after(millis: u64, scene: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    sleep(Duration::from_millis(millis)).await;
    scene.await
}

impl Script {
    /// Plays all scenes at once, round after round.
    async fn rounds(&self) -> anyhow::Result<()> {
        for round in self.numbers.round.. {
            let order = 1_000 + round;
            tokio::try_join!(
                after(200, self.retry(order)),
                after(500, self.dead_letter(order)),
                after(700, self.lanes(round)),
                after(900, self.debounce(round)),
                after(1_200, self.graph(round)),
                after(2_400, self.unique(order)),
                after(2_700, self.pause(round)),
                after(3_000, self.snooze(round)),
            )?;
            sleep(INTERLUDE).await;
            SCENES.iter().for_each(|scene| self.cast.dismiss(scene));
        }
        Ok(())
    }

    /// A loop and a schedule: made once, they go on whenever the demonstration does.
    async fn standing(&self) -> anyhow::Result<()> {
        let loops = self.engine.continuous(&self.objects.renewal);
        let runs = loops.status(LOOP).await?.map_or(0, |status| status.run_count);
        let started = loops.start(LOOP, Token::default()).await?;
        self.say(
            "loop",
            match started.created {
                true => format!("`{LOOP}` is started: it is renewed again and again"),
                false => format!("`{LOOP}` goes on, after {runs} runs in all"),
            },
        );
        let digest = SendDigest { to: "ada@example.org".to_string() };
        let schedules = self.engine.schedules();
        schedules.set(SCHEDULE, self.objects.digest.clone(), digest).await?;
        if let Some(schedule) = schedules.get(SCHEDULE).await? {
            self.say("schedule", format!("`{SCHEDULE}` is set: {}", schedule.words));
        }
        Ok(())
    }

    /// Jobs that take their time and say how far they are, one after the other.
    async fn videos(&self) -> anyhow::Result<()> {
        for video in self.numbers.video.. {
            sleep(Duration::from_millis(900)).await;
            let id = self.part("progress", format!("video {video}"));
            let takes_ms = u64::try_from(self.longest.as_millis()).unwrap_or(u64::MAX);
            let handle = self.engine.enqueue(Transcode { video, takes_ms }).id(id).await?;
            handle.outcome().await?;
            sleep(INTERLUDE).await;
            self.cast.dismiss("progress");
        }
        Ok(())
    }

    fn say(&self, scene: &'static str, text: impl Into<String>) {
        // Without a screen there is nobody to tell, and the demonstration is about to end.
        let _ = self.say.send(Line::of(scene, text));
    }

    /// Says how a scene ended, once the engine's own line about it is out.
    async fn conclude(&self, scene: &'static str, text: impl Into<String>) -> anyhow::Result<()> {
        sleep(Duration::from_millis(50)).await;
        self.say(scene, text);
        Ok(())
    }

    /// An id with a part to play, given out before the job exists so that no event is missed.
    fn part(&self, scene: &'static str, name: impl Into<String>) -> JobId {
        let id = new_id();
        self.cast.add(id, scene, name);
        id
    }

    /// A bank that does not answer twice: the policy tries again, and the third attempt succeeds.
    async fn retry(&self, order: u64) -> anyhow::Result<()> {
        let id = self.part("retry", format!("charge {order}"));
        let charge = Charge { order, cents: 4_200, declined: 2, takes_ms: 60 };
        self.engine.enqueue(charge).id(id).await?.outcome().await?;
        Ok(())
    }

    /// A receipt that can never be sent dies at once; an operator corrects it and replays it.
    async fn dead_letter(&self, order: u64) -> anyhow::Result<()> {
        let scene = "dead letter";
        let id = self.part(scene, format!("receipt {order}"));
        let wrong = SendReceipt { order, to: "ada.example.org".to_string(), takes_ms: 30 };
        let handle = self.engine.enqueue(wrong).id(id).await?;
        if handle.outcome().await.is_ok() {
            anyhow::bail!("a receipt without a proper address was sent");
        }
        sleep(Duration::from_millis(1_400)).await;
        self.say(scene, format!("an operator corrects the address of receipt {order}"));
        let right = SendReceipt { order, to: "ada@example.org".to_string(), takes_ms: 300 };
        let replayed = self.engine.replay_edited(id, right).await?;
        self.cast.add(replayed.id(), scene, format!("corrected receipt {order}"));
        let output = replayed.outcome().await?;
        self.conclude(scene, format!("done after all: {output}")).await
    }

    /// Scans of two parcels in a pool: one fails at first, and the later ones of its parcel wait.
    async fn lanes(&self, round: u64) -> anyhow::Result<()> {
        let scene = "lanes";
        let parcels = [format!("parcel {round}a"), format!("parcel {round}b")];
        self.say(
            scene,
            format!("6 scans of 2 parcels come in at once, to a pool of {LANES} lanes"),
        );
        let scans = scans_of(&parcels);
        let events = scans.iter().map(|scan| PoolEvent::new(scan.clone()).key(&scan.parcel));
        let queued = self.engine.pool(&self.objects.parcels).enqueue_many(events).await?;
        for (scan, queued) in scans.iter().zip(&queued) {
            self.cast.add(queued.id, scene, scan.to_string());
        }
        for queued in &queued {
            self.engine.handle::<Scan>(queued.id).outcome().await?;
        }
        if parcels.iter().any(|parcel| self.world.take_scans_of(parcel) != PLACES) {
            anyhow::bail!("scans of one parcel were made out of order");
        }
        let order = PLACES.join(", ");
        self.conclude(scene, format!("both parcels were scanned in order: {order}")).await
    }

    /// A page that is edited often is indexed once. What is gathered survives a kill.
    async fn debounce(&self, round: u64) -> anyhow::Result<()> {
        let page = format!("page-{round}");
        self.say("debounce", format!("{page} is edited five times in a row"));
        for version in 1..=5 {
            self.engine.debounce(&self.objects.index).add(&page, Edit { version }).await?;
            sleep(Duration::from_millis(80)).await;
        }
        Ok(())
    }

    /// Extract, three transforms of what it returned, and a load of what they returned: enqueued
    /// in one commit, run as soon as each may.
    async fn graph(&self, round: u64) -> anyhow::Result<()> {
        let scene = "graph";
        let rows = 100 * round;
        self.say(scene, "one batch: extract → 3 × transform → load");
        let mut batch = self.engine.batch();
        let mut add = Adding { script: self, scene, batch: &mut batch };
        let extract = add.job("extract", Extract { rows }, &[])?;
        let mut parts = Vec::new();
        for part in 0..3 {
            parts.push(add.job(&format!("transform {part}"), Transform { part }, &[extract])?);
        }
        let load = add.job("load", Load { table: format!("day_{round}") }, &parts)?;
        batch.commit().await?;
        let sum = self.engine.handle::<Load>(load).outcome().await?;
        self.conclude(scene, format!("the graph is complete: {rows} rows add up to {sum}")).await
    }

    /// The same charge asked for twice is done once.
    async fn unique(&self, order: u64) -> anyhow::Result<()> {
        let order = order + 500;
        let scene = "unique";
        let id = self.part(scene, format!("charge {order}"));
        let charge = || Charge { order, cents: 990, declined: 0, takes_ms: 200 };
        let first = self.engine.enqueue(charge()).id(id).await?;
        let second = self.engine.enqueue(charge()).await?;
        if !second.is_duplicate() || second.id() != first.id() {
            anyhow::bail!("a charge was accepted twice");
        }
        first.outcome().await?;
        Ok(())
    }

    /// A paused queue, and the engine's own answer to why a job in it does not run.
    async fn pause(&self, round: u64) -> anyhow::Result<()> {
        let scene = "pause";
        let media = self.engine.queue(PAUSED_QUEUE)?;
        media.pause().await?;
        let id = self.part(scene, format!("photo {round}"));
        let photo = Resize { photo: round, takes_ms: 80 };
        let handle = self.engine.enqueue(photo).id(id).await?;
        sleep(Duration::from_millis(700)).await;
        let why = self.engine.explain(id).await?;
        let reasons: Vec<String> = why.reasons.iter().map(ToString::to_string).collect();
        let reasons = reasons.join("; ");
        self.say(scene, format!("why does photo {round} not run? It is {}: {reasons}", why.state));
        sleep(Duration::from_millis(300)).await;
        media.resume().await?;
        handle.outcome().await?;
        Ok(())
    }

    /// A report that is not due to fail, only too early: it asks for later until the figures come.
    async fn snooze(&self, day: u64) -> anyhow::Result<()> {
        let scene = "snooze";
        let id = self.part(scene, format!("report {day}"));
        let handle = self.engine.enqueue(BuildReport { day, takes_ms: 150 }).id(id).await?;
        sleep(Duration::from_millis(600)).await;
        self.say(scene, format!("the figures of day {day} come in"));
        self.world.figures_arrive(day);
        let file = handle.outcome().await?;
        self.conclude(scene, format!("{file} is there")).await
    }
}

/// Every parcel at every place; the first at the first place fails once.
fn scans_of(parcels: &[String]) -> Vec<Scan> {
    let mut scans = Vec::new();
    for place in PLACES {
        for parcel in parcels {
            let (parcel, place) = (parcel.clone(), place.to_string());
            scans.push(Scan { parcel, place, fails: scans.is_empty() });
        }
    }
    scans
}

/// Adds jobs of one scene to one batch.
struct Adding<'a> {
    script: &'a Script,
    scene: &'static str,
    batch: &'a mut windlass::Batch,
}

impl Adding<'_> {
    fn job<J: Job>(&mut self, name: &str, job: J, after: &[JobId]) -> anyhow::Result<JobId> {
        let id = self.script.part(self.scene, name);
        let options = after.iter().fold(job.options().id(id), |o, on| Options::depends_on(o, *on));
        Ok(self.batch.add_with(job, options)?)
    }
}
