//! Asking something of objects: look, decide, commit; and again if someone else came first.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use windlass_core::job::{Bytes, Lane, NewJob, Start};
use windlass_core::limits;
use windlass_core::name::Name;
use windlass_core::object::{
    Address, Alarm, ObjectEvent, ObjectMeta, ObjectView, Purge, RunResult, Turn as CoreTurn,
};
use windlass_core::outcome::ErrorText;
use windlass_core::refusal::Refusal;
use windlass_core::reserved::is_reserved;
use windlass_core::time::Timestamp;

use super::{AlarmRequest, Primitive, TOLD_OF_ALL, Turn, TurnRequests, is_built_in};
use crate::engine::Engine;
use crate::error::Error;
use crate::events::is_family;
use crate::store::{ObjectFilter, ObjectPage, StoreError, StoreExt};

/// How often a turn is made anew because another one came first, before the caller is told.
const TRIES: u32 = 1_000;

/// Ids of events kept per object within their window: beyond, the oldest is forgotten early.
const SEEN: usize = 1_024;

/// Locks for commands of this process.
///
/// Answers: of many commands for one object at a time, each turn but one is made for an old
/// version, refused, and made again.
/// Why not simpler: the version alone is enough to be right, and across processes it is all there
/// is. The lock only saves the vain turns; objects share them by hash, so they need no cleaning up.
/// Guarded by: `many_commands_at_once_are_all_carried_out` in `tests/main/primitives.rs` for the
/// result; no test sees the cost.
const LOCKS: usize = 1_024;

#[derive(Debug)]
pub(crate) struct TurnLocks(Vec<tokio::sync::Mutex<()>>);

impl Default for TurnLocks {
    fn default() -> Self {
        Self((0..LOCKS).map(|_| tokio::sync::Mutex::default()).collect())
    }
}

impl TurnLocks {
    pub(super) async fn lock(&self, object: &Address) -> tokio::sync::MutexGuard<'_, ()> {
        let mut hasher = DefaultHasher::new();
        object.hash(&mut hasher);
        self.0[hasher.finish() as usize % self.0.len()].lock().await
    }
}

/// What an object's state is stored as.
#[derive(Serialize, Deserialize)]
#[serde(bound(
    serialize = "S: Serialize",
    deserialize = "S: serde::de::DeserializeOwned + Default"
))]
pub(super) struct Envelope<S> {
    #[serde(default)]
    pub(super) state: S,
    /// Ids of events that were accepted, and until when they count, in milliseconds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    seen: Vec<(String, i64)>,
}

impl<S: Default> Default for Envelope<S> {
    fn default() -> Self {
        Self { state: S::default(), seen: Vec::new() }
    }
}

impl<S> Envelope<S> {
    fn has_seen(&self, event: &str, now: Timestamp) -> bool {
        self.seen.iter().any(|(seen, until)| seen == event && *until > millis(now))
    }

    fn note(&mut self, event: String, window: Duration, now: Timestamp) {
        self.seen.retain(|(_, until)| *until > millis(now));
        let surplus = (self.seen.len() + 1).saturating_sub(SEEN);
        self.seen.drain(..surplus);
        self.seen.push((event, millis(now + window)));
    }
}

fn millis(at: Timestamp) -> i64 {
    at.as_micros() / 1_000
}

/// What became of a command that carries the id of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Commanded<R> {
    /// It was carried out.
    Done(R),
    /// The event was accepted before; nothing was changed.
    Duplicate,
}

/// The objects of one definition. Cloning is cheap.
pub struct Objects<'a, P: Primitive> {
    engine: &'a Engine,
    primitive: &'a P,
}

impl<'a, P: Primitive> Objects<'a, P> {
    pub(crate) fn new(engine: &'a Engine, primitive: &'a P) -> Self {
        Self { engine, primitive }
    }

    /// The engine they live in.
    pub fn engine(&self) -> &'a Engine {
        self.engine
    }

    /// The definition they are made by.
    pub fn primitive(&self) -> &'a P {
        self.primitive
    }

    /// The address of the object with this key.
    pub fn address(&self, key: &str) -> Result<Address, Error> {
        Ok(Address::new(kind_of::<P>()?, Name::new(self.primitive.name())?, key)?)
    }

    /// Asks something of an object. When it has returned, everything it asked for is durable.
    ///
    /// If the answer is lost ([`Error::Unknown`]) it may have been carried out; a command that must
    /// not be carried out twice carries an id, see [`Objects::command_once`].
    pub async fn command(&self, key: &str, command: &P::Command) -> Result<P::Reply, Error> {
        match self.turn(key, None, command).await? {
            Commanded::Done(reply) => Ok(reply),
            Commanded::Duplicate => unreachable!("only an event with an id is a duplicate"),
        }
    }

    /// Asks something of an object on account of an event: an event whose id was accepted within
    /// the window changes nothing. The id is noted in the commit that accepts it. If an answer is
    /// lost, the command is repeated by itself.
    pub async fn command_once(
        &self,
        key: &str,
        event: &str,
        window: Duration,
        command: &P::Command,
    ) -> Result<Commanded<P::Reply>, Error> {
        self.turn(key, Some((event, window)), command).await
    }

    async fn turn(
        &self,
        key: &str,
        event: Option<(&str, Duration)>,
        command: &P::Command,
    ) -> Result<Commanded<P::Reply>, Error> {
        self.primitive.check()?;
        let address = self.address(key)?;
        let event = event.map(|(event, window)| (digest(event), window));
        let _lock = self.engine.turn_locks().lock(&address).await;
        let mut unknown = 0;
        for _ in 0..TRIES {
            let view = self.engine.store().object(&address).await?;
            let mut draft = Draft::<P>::new(&address, view, self.engine)?;
            if let Some((event, window)) = &event {
                if draft.envelope.has_seen(event, draft.turn.now) {
                    return Ok(Commanded::Duplicate);
                }
                draft.envelope.note(event.clone(), *window, draft.turn.now);
            }
            let reply =
                self.primitive.on_command(&mut draft.envelope.state, command, &mut draft.turn)?;
            let turn = CoreTurn { by: self.engine.actor(), ..draft.finish(None)? };
            match self.engine.store().turn(turn).await {
                Ok(_) => return Ok(Commanded::Done(reply)),
                Err(StoreError::Refused(Refusal::ObjectChanged { .. })) => {}
                // Looking again tells whether it was carried out.
                Err(StoreError::Unknown { .. }) if event.is_some() && unknown < 3 => unknown += 1,
                Err(error) => return Err(error.into()),
            }
        }
        Err(too_fast(&address))
    }

    /// Purges an object without reading its state: for one whose state can no longer be read.
    pub(super) async fn purge_unread(&self, key: &str) -> Result<(), Error> {
        let address = self.address(key)?;
        let _lock = self.engine.turn_locks().lock(&address).await;
        for _ in 0..TRIES {
            let view = self.engine.store().object(&address).await?;
            let view = view.ok_or_else(|| unknown(&address))?;
            let turn = CoreTurn::new(address.clone(), view.record.meta.version);
            let turn = CoreTurn { purge: Purge::Now, by: self.engine.actor(), ..turn };
            match self.engine.store().turn(turn).await {
                Ok(_) => return Ok(()),
                Err(StoreError::Refused(Refusal::ObjectChanged { .. })) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(too_fast(&address))
    }

    /// What an object remembers; `None` if there is no such object.
    pub async fn state(&self, key: &str) -> Result<Option<P::State>, Error> {
        let address = self.address(key)?;
        let Some(view) = self.engine.store().object(&address).await? else { return Ok(None) };
        let envelope = open_envelope::<P::State>(&address, &view.record.state)?;
        Ok(Some(envelope.state))
    }

    /// Where an object stands; `None` if there is no such object.
    pub async fn view(&self, key: &str) -> Result<Option<ObjectView>, Error> {
        Ok(self.engine.store().object(&self.address(key)?).await?)
    }

    /// A page of the definition's objects, by key; it may be short and still name where to go on.
    pub async fn list(&self, after: Option<&Address>, limit: usize) -> Result<ObjectPage, Error> {
        let (kind, name) = (kind_of::<P>()?, Name::new(self.primitive.name())?);
        let filter = ObjectFilter { kind: Some(kind), name: Some(name), status: None };
        Ok(self.engine.store().list_objects(&filter, after, limit).await?)
    }
}

fn too_fast(address: &Address) -> Error {
    let why = format!("object {address} changes too fast");
    Error::Refused(Refusal::Unavailable { why })
}

/// There is no such object.
pub(super) fn unknown(address: &Address) -> Error {
    Error::Refused(Refusal::UnknownObject { object: address.clone() })
}

/// An id of any length as a short text.
fn digest(event: &str) -> String {
    format!("{:032x}", xxhash_rust::xxh3::xxh3_128(event.as_bytes()))
}

/// Reads a stored state. What cannot be read is left as it is.
pub(super) fn open_envelope<S>(address: &Address, bytes: &Bytes) -> Result<Envelope<S>, Error>
where
    S: serde::de::DeserializeOwned + Default,
{
    if bytes.is_empty() {
        return Ok(Envelope::default());
    }
    let unreadable = |source| Error::UnreadableState { object: address.clone(), source };
    serde_json::from_slice(bytes).map_err(unreadable)
}

/// A turn being put together.
pub(super) struct Draft<P: Primitive> {
    pub(super) envelope: Envelope<P::State>,
    pub(super) turn: Turn<P>,
    address: Address,
    version: u64,
    /// What its jobs are called.
    kind: Name,
}

impl<P: Primitive> Draft<P> {
    pub(super) fn new(
        address: &Address,
        view: Option<ObjectView>,
        engine: &Engine,
    ) -> Result<Self, Error> {
        let envelope = match &view {
            Some(view) => open_envelope(address, &view.record.state)?,
            None => Envelope::default(),
        };
        let alarm_at = view.as_ref().and_then(|view| view.alarm_at);
        let open_jobs = view.as_ref().map_or(0, |view| view.open_jobs);
        let meta: Option<ObjectMeta> = view.map(|view| view.record.meta);
        let version = meta.as_ref().map_or(0, |meta| meta.version);
        let asked = TurnRequests {
            alarm: AlarmRequest::Keep,
            runs: Vec::new(),
            jobs: Vec::new(),
            status: None,
            news: Vec::new(),
            purge: Purge::Keep,
        };
        let now = engine.clock().now().wall;
        let turn = Turn { now, address: address.clone(), meta, alarm_at, open_jobs, asked };
        let kind = run_kind(address)?;
        Ok(Self { envelope, turn, address: address.clone(), version, kind })
    }

    /// The turn to commit.
    pub(super) fn finish(self, ran: Option<RunResult>) -> Result<CoreTurn, Error> {
        let encode = |source| Error::Encode { kind: self.kind.to_string(), source };
        let state = serde_json::to_vec(&self.envelope).map_err(encode)?;
        let asked = self.turn.asked;
        let job = |kind: &Name, start, payload: Vec<u8>| {
            let mut job = NewJob::new(crate::new_id(), kind.clone(), self.kind.clone(), payload);
            job.start = start;
            job.lane = Some(Lane::Key(self.address.key().to_string()));
            job.object = Some(self.address.clone());
            Arc::new(job)
        };
        let run = |start: Start, run: &P::Run| {
            Ok::<_, Error>(job(&self.kind, start, serde_json::to_vec(run).map_err(encode)?))
        };
        let alarm = match asked.alarm {
            AlarmRequest::Keep => Alarm::Keep,
            AlarmRequest::Cancel => Alarm::Cancel,
            AlarmRequest::Move(start) => Alarm::Move(start),
            AlarmRequest::Wake(start) => {
                Alarm::Set(job(&alarm_kind(&self.address)?, start, Vec::new()))
            }
            AlarmRequest::Run(start, payload) => Alarm::Set(run(start, &payload)?),
        };
        let mut jobs = Vec::with_capacity(asked.runs.len() + asked.jobs.len());
        for (start, payload) in &asked.runs {
            jobs.push(run(*start, payload)?);
        }
        jobs.extend(asked.jobs.into_iter().map(Arc::new));
        let mut news = Vec::with_capacity(asked.news.len());
        for (what, detail) in asked.news {
            news.push(ObjectEvent { topic: Name::new(&format!("{}.{what}", P::KIND))?, detail });
        }
        let status = asked.status.map(|(status, why)| (status, why.map(ErrorText::new)));
        let purge = asked.purge;
        let (object, version) = (self.address.clone(), self.version);
        let state = Some(state.into());
        // Whoever commits it says who acts.
        let by = None;
        Ok(CoreTurn { object, version, state, status, ran, alarm, jobs, news, purge, by })
    }
}

/// The kind of a primitive's objects. Their topics begin with it, so it must not be a word with
/// which others begin, and leave room for what is told of every object.
pub(super) fn kind_of<P: Primitive>() -> Result<Name, Error> {
    let refused = |allowed| {
        let (setting, got) = ("the KIND of a primitive", format!("`{}`", P::KIND));
        Err(Error::InvalidSetting { setting, got, allowed })
    };
    if is_reserved(P::KIND) {
        return refused("kinds that begin with `windlass.` are the engine's own; choose another");
    }
    if is_family(P::KIND) {
        return refused("the engine's own topics begin with that, or nearly; choose another word");
    }
    if is_built_in(P::KIND) && !P::BUILT_IN {
        return refused("a primitive of this crate has it; choose another word");
    }
    if TOLD_OF_ALL.iter().any(|what| P::KIND.len() + 1 + what.len() > limits::NAME_BYTES) {
        return refused("it may have at most 118 bytes, for topics begin with it");
    }
    Ok(Name::new(P::KIND)?)
}

/// The kind, and the queue, of the jobs that run an object's code.
pub(super) fn run_kind(address: &Address) -> Result<Name, Error> {
    Ok(Name::new(&format!("{}.{}", address.kind(), address.name()))?)
}

/// The kind of the jobs that are an object's alarm.
pub(super) fn alarm_kind(address: &Address) -> Result<Name, Error> {
    Ok(Name::new(&format!("{}.{}.alarm", address.kind(), address.name()))?)
}
