//! Debounce: gather events by key, and run once for many of them.
//!
//! The first event of a key opens a window. When it closes (by time, by count, by size or by hand)
//! what was kept of the events is *sealed*: it becomes the payload of one run, in the same commit
//! that empties the object. So a batch is closed before its run begins. Events that arrive while
//! it runs open the next window; a failing run is tried again with the same batch, and a batch
//! that is given up is a dead letter that can be replayed.
//!
//! An object exists only for as long as there is something to remember: events, a run on its way,
//! or ids of events within their window. Then it is purged, and a million keys that are never used
//! again cost nothing.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use windlass_core::job::Start;
use windlass_core::object::{Address, ObjectStatus, ObjectView};
use windlass_core::time::Timestamp;

use super::definition::{
    Code, Events, MAX_BYTES, Named, check_duration, code, definition_setters, json_bytes, too_large,
};
use super::objects::{Commanded, Objects, open_envelope};
use super::{Primitive, RunContext, RunOutcome, Turn};
use crate::attempt::Attempt;
use crate::engine::Engine;
use crate::error::Error;
use crate::failure::Failure;
use crate::handler::KindOptions;
use crate::store::ObjectPage;

/// The most a definition may ask for: the state of an object has 1 MiB, and ids of events are in
/// it too.
const MAX_BYTES_MAX: usize = 900 * 1024;

type Reduce<E, A> = Arc<dyn Fn(Option<A>, E) -> A + Send + Sync>;

/// Gathers events by key and runs once for many: see `docs/objects.md`.
///
/// `E` is an event, and `A` is what is kept of all events of a window: the latest one, the first
/// one, all of them, or what a reducer makes of them. Both are stored as JSON. Cloning is cheap.
///
/// ```
/// use std::time::Duration;
/// use windlass::primitives::{Debounce, Flush};
/// use windlass::{Engine, Failure};
///
/// async fn index(page: Flush<String>) -> Result<(), Failure> {
///     println!("{} changed {} times; now: {}", page.key, page.count, page.kept);
///     Ok(())
/// }
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), windlass::Error> {
/// let pages = Debounce::new("pages", Duration::from_secs(300), index).max_events(20);
/// let engine = Engine::open("memory:").await?;
/// let _worker = engine.worker().primitive(pages.clone()).start().await?;
/// let added = engine.debounce(&pages).add("home", "a new headline".to_string()).await?;
/// assert_eq!(added.event_count, 1);
/// # Ok(()) }
/// ```
pub struct Debounce<E, A = E> {
    named: Named,
    events: Events<E>,
    flush_after: Duration,
    /// Every event moves the end of the window, to at most this long after the first.
    max_wait: Option<Duration>,
    max_events: u64,
    max_bytes: usize,
    reduce: Reduce<E, A>,
    run: Code<Flush<A>>,
}

impl<E, A> Clone for Debounce<E, A> {
    fn clone(&self) -> Self {
        Self {
            named: self.named.clone(),
            events: self.events.clone(),
            flush_after: self.flush_after,
            max_wait: self.max_wait,
            max_events: self.max_events,
            max_bytes: self.max_bytes,
            reduce: self.reduce.clone(),
            run: self.run.clone(),
        }
    }
}

impl<E, A> fmt::Debug for Debounce<E, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Debounce({}, after {:?})", self.named.name(), self.flush_after)
    }
}

impl<E: Clone + Send + Sync + 'static> Debounce<E, E> {
    /// Keeps the latest event of a window, and runs `flush` with it `flush_after` the first.
    pub fn new<F, Fut, Fail>(name: impl Into<Arc<str>>, flush_after: Duration, flush: F) -> Self
    where
        F: Fn(Flush<E>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), Fail>> + Send + 'static,
        Fail: Into<Failure>,
    {
        Self::reduce(name, flush_after, |_, event| event, flush)
    }

    /// Like [`Debounce::new`], and keeps the first event of a window.
    pub fn keep_first<F, Fut, Fail>(
        name: impl Into<Arc<str>>,
        flush_after: Duration,
        flush: F,
    ) -> Self
    where
        F: Fn(Flush<E>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), Fail>> + Send + 'static,
        Fail: Into<Failure>,
    {
        Self::reduce(name, flush_after, |first, event| first.unwrap_or(event), flush)
    }
}

impl<E: Clone + Send + Sync + 'static> Debounce<E, Vec<E>> {
    /// Like [`Debounce::new`], and keeps all events of a window, in their order.
    pub fn collect<F, Fut, Fail>(name: impl Into<Arc<str>>, flush_after: Duration, flush: F) -> Self
    where
        F: Fn(Flush<Vec<E>>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), Fail>> + Send + 'static,
        Fail: Into<Failure>,
    {
        let append = |all: Option<Vec<E>>, event| {
            let mut all = all.unwrap_or_default();
            all.push(event);
            all
        };
        Self::reduce(name, flush_after, append, flush)
    }

    /// Runs `flush` with all events, in batches: as soon as there are `max_events`, or
    /// `flush_after` the first of them.
    pub fn batch<F, Fut, Fail>(
        name: impl Into<Arc<str>>,
        max_events: u64,
        flush_after: Duration,
        flush: F,
    ) -> Self
    where
        F: Fn(Flush<Vec<E>>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), Fail>> + Send + 'static,
        Fail: Into<Failure>,
    {
        Self::collect(name, flush_after, flush).max_events(max_events)
    }
}

impl<E: 'static, A: 'static> Debounce<E, A> {
    /// Like [`Debounce::new`], and keeps what `reduce` makes of what was kept and an event. It must
    /// be pure: it may be called more than once for an event.
    pub fn reduce<F, Fut, Fail>(
        name: impl Into<Arc<str>>,
        flush_after: Duration,
        reduce: impl Fn(Option<A>, E) -> A + Send + Sync + 'static,
        flush: F,
    ) -> Self
    where
        F: Fn(Flush<A>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), Fail>> + Send + 'static,
        Fail: Into<Failure>,
    {
        Self {
            named: Named::new(name),
            events: Events::default(),
            flush_after,
            max_wait: None,
            max_events: u64::MAX,
            max_bytes: MAX_BYTES,
            reduce: Arc::new(reduce),
            run: code(flush),
        }
    }

    /// Every event moves the end of the window to `flush_after` itself, but never further than
    /// `max_wait` after the first. Without it the window is fixed by its first event.
    pub fn sliding(mut self, max_wait: Duration) -> Self {
        self.max_wait = Some(max_wait);
        self
    }

    /// Flushes as soon as there are so many events.
    pub fn max_events(mut self, max_events: u64) -> Self {
        self.max_events = max_events;
        self
    }

    /// How large what is kept may become, in bytes of JSON; 64 KiB by default, 900 KiB at most. An
    /// event that does not fit any more flushes what is there and opens the next window. Above
    /// 120 KiB, raise [`Limits::payload_bytes`](crate::Limits::payload_bytes) too: a batch is the
    /// payload of a job.
    pub fn max_bytes(mut self, max_bytes: usize) -> Self {
        self.max_bytes = max_bytes;
        self
    }

    definition_setters!(remember_ids);
    definition_setters!(validate E);
    definition_setters!(options);
}

/// What a flush is given: what was kept of a window's events, and how it came about.
///
/// [`Attempt::id`] is the same for every attempt of one batch, and for no other batch: an
/// idempotency key.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Flush<A> {
    /// Whose events.
    pub key: String,
    /// What was kept of them.
    pub kept: A,
    /// How many there were.
    pub count: u64,
    /// When the first was accepted.
    pub first_at: Timestamp,
    /// Why the window was closed.
    pub reason: FlushReason,
    /// The attempt: which run it is, whether to stop, steps, progress.
    pub attempt: Attempt,
}

impl<A> Flush<A> {
    /// Whether an earlier attempt of this batch may have done part of the work: it has failed, was
    /// lost with its worker, or was given up and replayed. One whose start was lost in a crash is
    /// not known of: what must not happen twice needs [`Attempt::id`] as a key.
    pub fn is_retry(&self) -> bool {
        let Self { attempt, .. } = self;
        attempt.is_retry() || attempt.recoveries() > 0 || attempt.generation() > 0
    }

    /// The engine, to enqueue more work with.
    pub fn engine(&self) -> &Engine {
        self.attempt.engine()
    }
}

/// Why a window was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FlushReason {
    /// Its time was over.
    Timeout,
    /// It had as many events as it may.
    MaxEvents,
    /// Someone asked for it.
    Manual,
    /// The next event did not fit.
    Full,
}

/// What has been gathered of a key. Stored.
#[derive(Debug, Serialize, Deserialize)]
pub struct DebounceState<A> {
    kept: Option<A>,
    count: u64,
    first_at_us: i64,
    flush_at_us: i64,
    /// Until when ids of events count.
    ids_until_us: i64,
}

impl<A> Default for DebounceState<A> {
    fn default() -> Self {
        Self { kept: None, count: 0, first_at_us: 0, flush_at_us: 0, ids_until_us: 0 }
    }
}

impl<A> DebounceState<A> {
    fn will_flush_at(&self) -> Option<Timestamp> {
        self.kept.is_some().then(|| Timestamp::from_micros(self.flush_at_us))
    }
}

/// A closed batch. Stored, as the payload of its run.
#[derive(Debug, Serialize, Deserialize)]
pub struct Sealed<A> {
    kept: A,
    count: u64,
    first_at_us: i64,
    reason: FlushReason,
}

/// What can be asked of a key.
#[derive(Debug)]
pub enum DebounceCommand<E> {
    /// Take an event; one with an id is remembered.
    Add {
        /// The event.
        event: E,
        /// Whether it has an id.
        has_id: bool,
    },
    /// Close the window now.
    Flush,
    /// Forget what was gathered.
    Clear,
}

impl<E, A> Primitive for Debounce<E, A>
where
    E: Clone + Send + Sync + 'static,
    A: Serialize + DeserializeOwned + Send + Sync + 'static,
{
    const KIND: &'static str = "debounce";
    const BUILT_IN: bool = true;
    /// A key is forgotten when it is idle; a batch of it that is replayed is told all the same.
    const OUTLIVES_OBJECT: bool = true;
    type State = DebounceState<A>;
    type Command = DebounceCommand<E>;
    type Reply = Added;
    type Run = Sealed<A>;
    type Output = ();

    fn name(&self) -> &str {
        self.named.name()
    }

    fn options(&self) -> KindOptions {
        self.named.options()
    }

    fn check(&self) -> Result<(), Error> {
        let invalid =
            |setting, got: String, allowed| Err(Error::InvalidSetting { setting, got, allowed });
        check_duration("flush_after", self.flush_after)?;
        self.events.check()?;
        if let Some(max_wait) = self.max_wait {
            check_duration("max_wait", max_wait)?;
            if max_wait < self.flush_after {
                let allowed = "it must not be below flush_after";
                return invalid("max_wait", format!("{max_wait:?}"), allowed);
            }
        }
        if self.max_events == 0 {
            return invalid("max_events", "0".into(), "it must be at least 1");
        }
        if self.max_bytes == 0 || self.max_bytes > MAX_BYTES_MAX {
            return invalid("max_bytes", self.max_bytes.to_string(), "it must be 1 to 900 KiB");
        }
        Ok(())
    }

    fn on_command(
        &self,
        state: &mut DebounceState<A>,
        command: &DebounceCommand<E>,
        turn: &mut Turn<Self>,
    ) -> Result<Added, Error> {
        match command {
            DebounceCommand::Add { event, has_id } => self.add(state, event, *has_id, turn),
            DebounceCommand::Flush => {
                let event_count = state.count;
                let flushed = self.seal(state, FlushReason::Manual, turn);
                self.rest(state, turn, alarms(turn));
                Ok(Added { event_count, will_flush_at: None, flushed, duplicate: false })
            }
            DebounceCommand::Clear => {
                let event_count = std::mem::take(&mut state.count);
                if state.kept.take().is_some() {
                    turn.cancel_alarm();
                    turn.tell("cleared", serde_json::json!({ "count": event_count }));
                }
                self.rest(state, turn, alarms(turn));
                Ok(Added { event_count, will_flush_at: None, flushed: false, duplicate: false })
            }
        }
    }

    fn on_alarm(&self, state: &mut DebounceState<A>, turn: &mut Turn<Self>) {
        self.seal(state, FlushReason::Timeout, turn);
        self.rest(state, turn, 1);
    }

    async fn run(&self, batch: Sealed<A>, context: RunContext<Self>) -> Result<(), Failure> {
        let flush = Flush {
            key: context.key().to_string(),
            kept: batch.kept,
            count: batch.count,
            first_at: Timestamp::from_micros(batch.first_at_us),
            reason: batch.reason,
            attempt: context.attempt().clone(),
        };
        (self.run)(flush).await
    }

    fn on_outcome(
        &self,
        state: &mut DebounceState<A>,
        batch: Sealed<A>,
        outcome: RunOutcome<()>,
        turn: &mut Turn<Self>,
    ) {
        match outcome {
            RunOutcome::Completed(()) => {
                let (reason, count) = (batch.reason, batch.count);
                turn.tell("flushed", serde_json::json!({ "reason": reason, "count": count }));
            }
            // The batch is in the job's record, to be replayed.
            RunOutcome::Failed { .. } | RunOutcome::Cancelled => {}
        }
        self.rest(state, turn, 1);
    }
}

impl<E, A> Debounce<E, A>
where
    E: Clone + Send + Sync + 'static,
    A: Serialize + DeserializeOwned + Send + Sync + 'static,
{
    fn add(
        &self,
        state: &mut DebounceState<A>,
        event: &E,
        has_id: bool,
        turn: &mut Turn<Self>,
    ) -> Result<Added, Error> {
        self.events.check_event(Self::KIND, self.named.name(), event)?;
        turn.keep();
        if has_id {
            note_id(&mut state.ids_until_us, turn.now() + self.events.remember_ids);
        }
        let mut flushed = self.keep(state, event, turn)?;
        self.set_window(state, turn);
        state.count += 1;
        let event_count = state.count;
        if state.count >= self.max_events {
            flushed |= self.seal(state, FlushReason::MaxEvents, turn);
        }
        let will_flush_at = state.will_flush_at();
        Ok(Added { event_count, will_flush_at, flushed, duplicate: false })
    }

    /// Takes an event into what is kept. What it does not fit into is flushed; whether that was so.
    fn keep(
        &self,
        state: &mut DebounceState<A>,
        event: &E,
        turn: &mut Turn<Self>,
    ) -> Result<bool, Error> {
        let encode = |source| Error::Encode { kind: self.name().to_string(), source };
        let before = state.kept.as_ref().map(serde_json::to_vec).transpose().map_err(encode)?;
        let mut kept = (self.reduce)(state.kept.take(), event.clone());
        let mut bytes = json_bytes(&kept).map_err(encode)?;
        let mut flushed = false;
        if bytes > self.max_bytes
            && let Some(before) = before
        {
            // The reducer took it; it has just been written, so it can be read.
            state.kept = Some(serde_json::from_slice(&before).map_err(encode)?);
            flushed = self.seal(state, FlushReason::Full, turn);
            kept = (self.reduce)(None, event.clone());
            bytes = json_bytes(&kept).map_err(encode)?;
        }
        if bytes > self.max_bytes {
            let allowed =
                format!("at most {} fit into a batch; raise its `max_bytes`", self.max_bytes);
            return Err(too_large(bytes, allowed));
        }
        state.kept = Some(kept);
        Ok(flushed)
    }

    /// Opens the window with its first event; sees to it that an open one will close.
    fn set_window(&self, state: &mut DebounceState<A>, turn: &mut Turn<Self>) {
        let now = turn.now();
        let is_first = state.count == 0;
        if is_first {
            state.first_at_us = now.as_micros();
        }
        let first_at = Timestamp::from_micros(state.first_at_us);
        let flush_at = match self.max_wait {
            Some(max_wait) => (now + self.flush_after).min(first_at + max_wait),
            None => first_at + self.flush_after,
        };
        // An alarm that someone has cancelled by hand must not leave the events waiting for ever.
        let is_deaf = turn.object().is_none_or(|meta| meta.alarm.is_none());
        if is_first || is_deaf || self.max_wait.is_some() {
            state.flush_at_us = flush_at.as_micros();
            // A delay and not a time: the clock of the store may be ahead of the wall.
            turn.alarm(Start::After(flush_at.since(now)));
        }
        if turn.status() != ObjectStatus::Active {
            turn.activate();
        }
        if is_first {
            let at = Timestamp::from_micros(state.flush_at_us).as_millis();
            turn.tell("started", serde_json::json!({ "will_flush_at_ms": at }));
        }
    }

    /// Closes the window: what was kept becomes the payload of a run. Whether there was anything.
    fn seal(
        &self,
        state: &mut DebounceState<A>,
        reason: FlushReason,
        turn: &mut Turn<Self>,
    ) -> bool {
        let Some(kept) = state.kept.take() else { return false };
        let count = std::mem::take(&mut state.count);
        turn.run(Sealed { kept, count, first_at_us: state.first_at_us, reason });
        turn.cancel_alarm();
        true
    }

    /// Lets an object go that has nothing left to remember. `ending` of its open jobs end with this
    /// turn.
    fn rest(&self, state: &DebounceState<A>, turn: &mut Turn<Self>, ending: u64) {
        if state.kept.is_none() {
            rest(turn, state.ids_until_us, ending);
        }
    }
}

/// How many alarms a turn that calls them off ends.
pub(super) fn alarms<P: Primitive>(turn: &Turn<P>) -> u64 {
    u64::from(turn.object().is_some_and(|meta| meta.alarm.is_some()))
}

/// Lets an object go when its ids count no more, unless more of its jobs are open than those that
/// end with this turn, or the turn asks for another.
pub(super) fn rest<P: Primitive>(turn: &mut Turn<P>, ids_until_us: i64, ending: u64) {
    if turn.open_jobs() > ending || turn.asks_for_runs() {
        return;
    }
    let ids_until = Timestamp::from_micros(ids_until_us);
    if ids_until > turn.now() || turn.object().is_none() {
        // An object that is made by this turn may have jobs it does not know of: replayed ones. A
        // purge that is put off waits for them, one that is not would call them off.
        turn.purge_after(ids_until.since(turn.now()));
    } else {
        turn.purge();
    }
}

/// Notes until when the ids of events count.
pub(super) fn note_id(ids_until_us: &mut i64, until: Timestamp) {
    *ids_until_us = (*ids_until_us).max(until.as_micros());
}

/// What became of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Added {
    /// How many events its window has, this one included; also if it was flushed with them.
    pub event_count: u64,
    /// When the window closes at the latest, if it is open still.
    pub will_flush_at: Option<Timestamp>,
    /// Whether a batch was flushed on account of this event: with it, because there were as many
    /// events as there may be, or without it, because it did not fit.
    pub flushed: bool,
    /// Whether an event with this id was accepted before; nothing was changed then.
    pub duplicate: bool,
}

/// What a key is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DebouncePhase {
    /// Nothing is known of it: it was never used, or it was idle and has been forgotten.
    NotFound,
    /// There is nothing to flush. It is remembered for the ids of its events.
    Idle,
    /// It has events, and a window that will close.
    Waiting,
    /// A batch is on its way: it runs, waits for a slot, or waits to be tried again. There may be
    /// events for the next one.
    Executing,
}

/// Where a key stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DebounceStatus {
    /// What it is at.
    pub phase: DebouncePhase,
    /// Events in the open window.
    pub event_count: u64,
    /// When that closes.
    pub will_flush_at: Option<Timestamp>,
}

impl Engine {
    /// Adds events to a debounce, flushes and looks.
    pub fn debounce<'a, E, A>(&'a self, definition: &'a Debounce<E, A>) -> DebounceClient<'a, E, A>
    where
        E: Clone + Send + Sync + 'static,
        A: Serialize + DeserializeOwned + Send + Sync + 'static,
    {
        DebounceClient { objects: self.objects(definition) }
    }
}

/// The keys of one debounce.
///
/// What a call has answered is durable. If the answer is lost ([`Error::Unknown`]) it may have been
/// carried out; [`DebounceClient::add_once`] can be repeated without harm.
pub struct DebounceClient<'a, E, A>
where
    E: Clone + Send + Sync + 'static,
    A: Serialize + DeserializeOwned + Send + Sync + 'static,
{
    objects: Objects<'a, Debounce<E, A>>,
}

impl<E, A> DebounceClient<'_, E, A>
where
    E: Clone + Send + Sync + 'static,
    A: Serialize + DeserializeOwned + Send + Sync + 'static,
{
    /// Adds an event. It will be in exactly one batch. Refuses what the definition finds invalid
    /// ([`Error::Validation`]) and what does not fit into an empty batch, and stores nothing then.
    pub async fn add(&self, key: &str, event: E) -> Result<Added, Error> {
        self.objects.command(key, &DebounceCommand::Add { event, has_id: false }).await
    }

    /// Like [`DebounceClient::add`]; an event whose id was accepted for this key within the memory
    /// of the definition changes nothing. The id is noted in the commit that accepts the event. Of
    /// one key, the last 1,024 ids are remembered.
    pub async fn add_once(&self, key: &str, event_id: &str, event: E) -> Result<Added, Error> {
        let command = DebounceCommand::Add { event, has_id: true };
        let window = self.objects.primitive().events.remember_ids;
        match self.objects.command_once(key, event_id, window, &command).await? {
            Commanded::Done(added) => Ok(added),
            Commanded::Duplicate => {
                let DebounceStatus { event_count, will_flush_at, .. } = self.status(key).await?;
                Ok(Added { event_count, will_flush_at, flushed: false, duplicate: true })
            }
        }
    }

    /// Closes the window now: a run with what was kept is durable when this returns. How many
    /// events it has; if 0, there was nothing to flush, and nothing runs.
    pub async fn flush(&self, key: &str) -> Result<u64, Error> {
        self.ask_if_there(key, &DebounceCommand::Flush).await
    }

    /// Forgets the events of the open window, and how many those were. A batch that has been closed
    /// is not touched.
    pub async fn clear(&self, key: &str) -> Result<u64, Error> {
        self.ask_if_there(key, &DebounceCommand::Clear).await
    }

    /// Asks nothing of a key of which nothing is known: that would only make an object of it.
    async fn ask_if_there(&self, key: &str, command: &DebounceCommand<E>) -> Result<u64, Error> {
        if self.objects.view(key).await?.is_none() {
            return Ok(0);
        }
        Ok(self.objects.command(key, command).await?.event_count)
    }

    /// Where a key stands.
    pub async fn status(&self, key: &str) -> Result<DebounceStatus, Error> {
        let Some(view) = self.objects.view(key).await? else {
            let phase = DebouncePhase::NotFound;
            return Ok(DebounceStatus { phase, event_count: 0, will_flush_at: None });
        };
        let state: DebounceState<A> =
            open_envelope(&view.record.address, &view.record.state)?.state;
        Ok(status(&state, &view))
    }

    /// What has been kept of the events of the open window; `None` if there are none.
    pub async fn state(&self, key: &str) -> Result<Option<A>, Error> {
        Ok(self.objects.state(key).await?.and_then(|state| state.kept))
    }

    /// A page of the keys that are remembered; it may be short and still name where to go on. Their
    /// counters (`runs`, `failures`) are those since the key was last idle and forgotten.
    pub async fn list(&self, after: Option<&Address>, limit: usize) -> Result<ObjectPage, Error> {
        self.objects.list(after, limit).await
    }
}

fn status<A>(state: &DebounceState<A>, view: &ObjectView) -> DebounceStatus {
    let batches = view.open_jobs.saturating_sub(u64::from(view.record.meta.alarm.is_some()));
    let phase = match (batches, &state.kept) {
        (0, None) => DebouncePhase::Idle,
        (0, Some(_)) => DebouncePhase::Waiting,
        (1.., _) => DebouncePhase::Executing,
    };
    DebounceStatus { phase, event_count: state.count, will_flush_at: state.will_flush_at() }
}

impl<E, A> fmt::Debug for DebounceClient<'_, E, A>
where
    E: Clone + Send + Sync + 'static,
    A: Serialize + DeserializeOwned + Send + Sync + 'static,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DebounceClient({})", self.objects.primitive().named.name())
    }
}
