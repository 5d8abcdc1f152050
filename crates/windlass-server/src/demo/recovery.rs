//! What an earlier run left in the store, how it was found, and where the story goes on.

use windlass::Opened;
use windlass::store::Durability;
use windlass::{Counts, Engine, Job, StateName};

use crate::demo::jobs::{Load, SendReceipt, Transcode};
use crate::demo::script::PAUSED_QUEUE;
use crate::demo::story::Line;
use crate::output::{counted, grouped};

/// Says where jobs are kept, and what an answer is worth there.
pub(crate) fn header(store: &str, durability: Durability) -> Line {
    let worth = match durability {
        Durability::None => "jobs live as long as this process",
        Durability::Relaxed(_) => "what is answered survives a kill, and soon a power failure",
        Durability::Sync => "what is answered survives a kill and a power failure",
    };
    Line::of("store", format!("{store}, durability {durability}: {worth}"))
}

/// Tells what was found; nothing for a store without files.
pub(crate) fn tell(opened: &Opened, counts: &Counts) -> Vec<Line> {
    let accepted = counts.totals().enqueued;
    if accepted == 0 {
        return vec![Line::of("store", "it is new; kill -9 this process, and start it again")];
    }
    let (jobs, millis) = (counted(opened.jobs, "job"), opened.took.as_millis());
    let mut texts = vec![
        format!(
            "earlier runs accepted {}; {jobs} are kept, found again in {millis} ms",
            grouped(accepted)
        ),
        running(opened),
        waiting(opened, counts),
    ];
    texts.extend(opened.torn.as_ref().map(|place| {
        format!("a commit was cut off ({place}); nobody had been told of it, so nothing is missing")
    }));
    texts.into_iter().map(|text| Line::of("recovery", text)).collect()
}

/// What became of the jobs that were running.
fn running(opened: &Opened) -> String {
    let in_state = |wanted: fn(StateName) -> bool| {
        opened.recovered.iter().filter(|job| wanted(job.state)).count() as u64
    };
    let fates = [
        (in_state(StateName::is_waiting), "will run again"),
        (in_state(|state| state == StateName::Dead), "lost too often, now dead"),
        (in_state(|state| state == StateName::Cancelled), "called off before, now cancelled"),
    ];
    let fates = fates.into_iter().filter(|(jobs, _)| *jobs > 0);
    let fates: Vec<_> = fates.map(|(jobs, fate)| format!("{jobs} {fate}")).collect();
    match opened.recovered.len() {
        0 => "the last run ended in order: no job was running".to_string(),
        1 => format!("the last run was cut off: 1 job was running; {}", fates.join(", ")),
        many => format!("the last run was cut off: {many} jobs were running; {}", fates.join(", ")),
    }
}

fn waiting(opened: &Opened, counts: &Counts) -> String {
    let states = StateName::ALL.into_iter().filter(|state| state.is_waiting());
    let waiting: u64 = states.map(|state| counts.in_state(state)).sum();
    let recovered = opened.recovered.iter().filter(|job| job.state.is_waiting()).count() as u64;
    match waiting.saturating_sub(recovered) {
        0 => "no job was waiting".to_string(),
        1 => "1 job was waiting, and goes on".to_string(),
        many => format!("{} jobs were waiting, and go on", grouped(many)),
    }
}

/// Resumes the queue that a scene had paused when it was cut off, and no other.
pub(crate) async fn resume(engine: &Engine, counts: &Counts) -> anyhow::Result<Option<Line>> {
    let mut paused = counts.queues.iter().filter(|queue| queue.settings.paused);
    if !paused.any(|queue| queue.queue.as_str() == PAUSED_QUEUE) {
        return Ok(None);
    }
    engine.queue(PAUSED_QUEUE)?.resume().await?;
    let text = format!("queue `{PAUSED_QUEUE}` was left paused, and goes on");
    Ok(Some(Line::of("recovery", text)))
}

/// Numbers that no earlier run has used: an order that is still open would be recognised as a
/// duplicate, and the report of an earlier day waits for no figures.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Numbers {
    pub(crate) round: u64,
    pub(crate) video: u64,
    pub(crate) order: u64,
}

impl Numbers {
    /// Derived from how many of their kind were accepted so far.
    pub(crate) fn after(counts: &Counts) -> Self {
        let so_far = |kind: &str| {
            let lines = counts.lines.iter().filter(|line| line.kind.as_str() == kind);
            lines.map(|line| line.totals.enqueued).sum::<u64>()
        };
        // A round that was cut off may have begun before its graph came in.
        let begun = u64::from(counts.totals().enqueued > 0);
        Self {
            round: so_far(Load::KIND) + begun + 1,
            video: so_far(Transcode::KIND) + 1,
            order: so_far(SendReceipt::KIND),
        }
    }
}
