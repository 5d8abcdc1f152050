//! Throttle: run at once for the first event of a key, and then not again for a while.
//!
//! An event that finds no period open runs in the commit that accepts it, and opens a period.
//! Events within it are passed over; or, if the definition keeps the latest, that one runs when the
//! period ends, and opens the next. A period is an alarm of the object; when one ends and nothing
//! was kept, the object is purged.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use windlass_core::object::{Address, ObjectStatus};
use windlass_core::time::Timestamp;

use super::debounce::{alarms, note_id, rest};
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

/// Runs at most once per period and key: see `docs/objects.md`. Cloning is cheap.
///
/// ```
/// use std::time::Duration;
/// use windlass::primitives::{Offered, Throttle, Throttled};
/// use windlass::{Engine, Failure};
///
/// async fn page(alert: Throttled<String>) -> Result<(), Failure> {
///     println!("{}: {} ({} more before)", alert.key, alert.event, alert.passed_over);
///     Ok(())
/// }
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), windlass::Error> {
/// let alerts = Throttle::new("alerts", Duration::from_secs(600), page);
/// let engine = Engine::open("memory:").await?;
/// let _worker = engine.worker().primitive(alerts.clone()).start().await?;
/// let alert = || "the disk is full".to_string();
/// assert_eq!(engine.throttle(&alerts).offer("db-1", alert()).await?, Offered::Runs);
/// let offered = engine.throttle(&alerts).offer("db-1", alert()).await?;
/// assert!(matches!(offered, Offered::Dropped { .. }));
/// # Ok(()) }
/// ```
pub struct Throttle<E> {
    named: Named,
    events: Events<E>,
    period: Duration,
    keeps_latest: bool,
    run: Code<Throttled<E>>,
}

impl<E> Clone for Throttle<E> {
    fn clone(&self) -> Self {
        Self {
            named: self.named.clone(),
            events: self.events.clone(),
            period: self.period,
            keeps_latest: self.keeps_latest,
            run: self.run.clone(),
        }
    }
}

impl<E> fmt::Debug for Throttle<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Throttle({}, once in {:?})", self.named.name(), self.period)
    }
}

impl<E: 'static> Throttle<E> {
    /// Runs `run` with the first event of a period, and drops the others.
    pub fn new<F, Fut, Fail>(name: impl Into<Arc<str>>, period: Duration, run: F) -> Self
    where
        F: Fn(Throttled<E>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), Fail>> + Send + 'static,
        Fail: Into<Failure>,
    {
        Self {
            named: Named::new(name),
            events: Events::default(),
            period,
            keeps_latest: false,
            run: code(run),
        }
    }

    /// The latest event of a period is not dropped: it runs when the period ends.
    pub fn keep_latest(mut self) -> Self {
        self.keeps_latest = true;
        self
    }

    definition_setters!(remember_ids);
    definition_setters!(validate E);
    definition_setters!(options);
}

/// What a run is given.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Throttled<E> {
    /// Whose event.
    pub key: String,
    /// The event.
    pub event: E,
    /// How many events were passed over since the run before this one.
    pub passed_over: u64,
    /// The attempt: which run it is, whether to stop, steps, progress, the engine.
    pub attempt: Attempt,
}

/// What became of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offered {
    /// It runs as soon as it may.
    Runs,
    /// It runs then, unless a later event takes its place.
    Deferred {
        /// When the period ends.
        at: Timestamp,
    },
    /// It was counted and dropped.
    Dropped {
        /// When the period ends.
        until: Timestamp,
    },
    /// An event with this id was accepted before; nothing was changed.
    Duplicate,
}

/// Where a key stands.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ThrottleStatus<E> {
    /// When the period that is open ends.
    pub until: Option<Timestamp>,
    /// The event that runs then.
    pub deferred: Option<E>,
    /// Events that were passed over since the last run was asked for.
    pub passed_over: u64,
}

/// What is known of a key. Stored.
#[derive(Debug, Serialize, Deserialize)]
pub struct ThrottleState<E> {
    until_us: i64,
    deferred: Option<E>,
    passed_over: u64,
    ids_until_us: i64,
}

impl<E> Default for ThrottleState<E> {
    fn default() -> Self {
        Self { until_us: 0, deferred: None, passed_over: 0, ids_until_us: 0 }
    }
}

/// What a run is stored as.
#[derive(Debug, Serialize, Deserialize)]
pub struct Admitted<E> {
    event: E,
    passed_over: u64,
}

/// What can be asked of a key.
#[derive(Debug)]
pub enum ThrottleCommand<E> {
    /// Run it, or not yet, or not at all.
    Offer {
        /// The event.
        event: E,
        /// Whether it has an id.
        has_id: bool,
    },
    /// End the period, and forget the event that waits for that.
    Clear,
}

impl<E> Primitive for Throttle<E>
where
    E: Clone + Serialize + DeserializeOwned + Send + Sync + 'static,
{
    const KIND: &'static str = "throttle";
    const BUILT_IN: bool = true;
    const OUTLIVES_OBJECT: bool = true;
    type State = ThrottleState<E>;
    type Command = ThrottleCommand<E>;
    type Reply = Offered;
    type Run = Admitted<E>;
    type Output = ();

    fn name(&self) -> &str {
        self.named.name()
    }

    fn options(&self) -> KindOptions {
        self.named.options()
    }

    fn check(&self) -> Result<(), Error> {
        check_duration("period", self.period)?;
        self.events.check()
    }

    fn on_command(
        &self,
        state: &mut ThrottleState<E>,
        command: &ThrottleCommand<E>,
        turn: &mut Turn<Self>,
    ) -> Result<Offered, Error> {
        match command {
            ThrottleCommand::Offer { event, has_id } => self.offer(state, event, *has_id, turn),
            ThrottleCommand::Clear => {
                state.deferred = None;
                state.until_us = 0;
                turn.cancel_alarm();
                rest(turn, state.ids_until_us, alarms(turn));
                Ok(Offered::Dropped { until: turn.now() })
            }
        }
    }

    fn on_alarm(&self, state: &mut ThrottleState<E>, turn: &mut Turn<Self>) {
        match state.deferred.take() {
            Some(event) => self.admit(state, event, turn),
            None => rest(turn, state.ids_until_us, 1),
        }
    }

    async fn run(&self, admitted: Admitted<E>, context: RunContext<Self>) -> Result<(), Failure> {
        let Admitted { event, passed_over } = admitted;
        let (key, attempt) = (context.key().to_string(), context.attempt().clone());
        (self.run)(Throttled { key, event, passed_over, attempt }).await
    }

    fn on_outcome(
        &self,
        state: &mut ThrottleState<E>,
        _: Admitted<E>,
        _: RunOutcome<()>,
        turn: &mut Turn<Self>,
    ) {
        // Otherwise the end of the period sees to it.
        if alarms(turn) == 0 {
            rest(turn, state.ids_until_us, 1);
        }
    }
}

impl<E> Throttle<E>
where
    E: Clone + Serialize + DeserializeOwned + Send + Sync + 'static,
{
    fn offer(
        &self,
        state: &mut ThrottleState<E>,
        event: &E,
        has_id: bool,
        turn: &mut Turn<Self>,
    ) -> Result<Offered, Error> {
        self.events.check_event(Self::KIND, self.named.name(), event)?;
        self.check_size(event)?;
        turn.keep();
        if turn.status() != ObjectStatus::Active {
            turn.activate();
        }
        if has_id {
            note_id(&mut state.ids_until_us, turn.now() + self.events.remember_ids);
        }
        let until = Timestamp::from_micros(state.until_us);
        // The end of a period waits for the run that opened it; an event that waits for it too
        // keeps its place.
        if turn.now() >= until && state.deferred.is_none() {
            self.admit(state, event.clone(), turn);
            return Ok(Offered::Runs);
        }
        if alarms(turn) == 0 {
            // Someone has cancelled it by hand.
            turn.alarm_in(until.since(turn.now()));
        }
        if !self.keeps_latest {
            state.passed_over += 1;
            return Ok(Offered::Dropped { until });
        }
        state.passed_over += u64::from(state.deferred.replace(event.clone()).is_some());
        Ok(Offered::Deferred { at: until })
    }

    /// It must fit into the state now, and into a payload later.
    fn check_size(&self, event: &E) -> Result<(), Error> {
        let encode = |source| Error::Encode { kind: self.name().to_string(), source };
        let bytes = json_bytes(event).map_err(encode)?;
        if bytes > MAX_BYTES {
            let allowed = format!("at most {MAX_BYTES} are taken; send its address instead");
            return Err(too_large(bytes, allowed));
        }
        Ok(())
    }

    /// Runs an event and opens a period.
    fn admit(&self, state: &mut ThrottleState<E>, event: E, turn: &mut Turn<Self>) {
        let passed_over = std::mem::take(&mut state.passed_over);
        turn.run(Admitted { event, passed_over });
        state.until_us = (turn.now() + self.period).as_micros();
        turn.alarm_in(self.period);
        turn.tell("started", serde_json::json!({ "passed_over": passed_over }));
    }
}

impl Engine {
    /// Offers events to a throttle, and looks.
    pub fn throttle<'a, E>(&'a self, definition: &'a Throttle<E>) -> ThrottleClient<'a, E>
    where
        E: Clone + Serialize + DeserializeOwned + Send + Sync + 'static,
    {
        ThrottleClient { objects: self.objects(definition) }
    }
}

/// The keys of one throttle. What a call has answered is durable.
pub struct ThrottleClient<'a, E>
where
    E: Clone + Serialize + DeserializeOwned + Send + Sync + 'static,
{
    objects: Objects<'a, Throttle<E>>,
}

impl<E> ThrottleClient<'_, E>
where
    E: Clone + Serialize + DeserializeOwned + Send + Sync + 'static,
{
    /// Offers an event: it runs, waits for the end of the period, or is dropped. Refuses what the
    /// definition finds invalid, and events of more than 64 KiB.
    pub async fn offer(&self, key: &str, event: E) -> Result<Offered, Error> {
        self.objects.command(key, &ThrottleCommand::Offer { event, has_id: false }).await
    }

    /// Like [`ThrottleClient::offer`]; an event whose id was accepted for this key within the
    /// memory of the definition changes nothing. One that was dropped was accepted.
    pub async fn offer_once(&self, key: &str, event_id: &str, event: E) -> Result<Offered, Error> {
        let command = ThrottleCommand::Offer { event, has_id: true };
        let window = self.objects.primitive().events.remember_ids;
        match self.objects.command_once(key, event_id, window, &command).await? {
            Commanded::Done(offered) => Ok(offered),
            Commanded::Duplicate => Ok(Offered::Duplicate),
        }
    }

    /// Ends the period, and forgets the event that waits for its end.
    pub async fn clear(&self, key: &str) -> Result<(), Error> {
        if self.objects.view(key).await?.is_some() {
            self.objects.command(key, &ThrottleCommand::Clear).await?;
        }
        Ok(())
    }

    /// Where a key stands; `None` if nothing is known of it, because no period is open.
    pub async fn status(&self, key: &str) -> Result<Option<ThrottleStatus<E>>, Error> {
        let Some(view) = self.objects.view(key).await? else { return Ok(None) };
        let state: ThrottleState<E> =
            open_envelope(&view.record.address, &view.record.state)?.state;
        let until = view.record.meta.alarm.map(|_| Timestamp::from_micros(state.until_us));
        let ThrottleState { deferred, passed_over, .. } = state;
        Ok(Some(ThrottleStatus { until, deferred, passed_over }))
    }

    /// A page of the keys that are remembered; it may be short and still name where to go on.
    pub async fn list(&self, after: Option<&Address>, limit: usize) -> Result<ObjectPage, Error> {
        self.objects.list(after, limit).await
    }
}

impl<E> fmt::Debug for ThrottleClient<'_, E>
where
    E: Clone + Serialize + DeserializeOwned + Send + Sync + 'static,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ThrottleClient({})", self.objects.primitive().named.name())
    }
}
