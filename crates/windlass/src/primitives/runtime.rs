//! Running the code of objects: what a worker does with their jobs.
//!
//! A primitive has two kinds of jobs: runs, which call the user's code, and alarms, which only make
//! a turn. Both end with a turn that is part of the settlement, so an outcome and what it means to
//! the object are one commit. If another turn of the object came first, the turn is made anew from
//! what is there now; the user's code does not run again for that.

use crate::store::StoreExt as _;
use std::sync::Arc;

use serde::Serialize;
use windlass_core::job::Bytes;
use windlass_core::name::Name;
use windlass_core::object::{Address, ObjectStatus, ObjectView, RunResult, Turn as CoreTurn};
use windlass_core::outcome::{ErrorText, Verdict};
use windlass_core::retry::Retry;

use super::objects::{Draft, alarm_kind, kind_of, open_envelope, run_kind};
use super::{Primitive, RunOutcome};
use crate::attempt::Attempt;
use crate::clock::BoxFuture;
use crate::error::Error;
use crate::failure::Failure;
use crate::handler::{KindOptions, RegisteredHandler, Returned};

/// Bytes of a state that are told when a run fails; with the error they fit into an event.
const STATE_TOLD: usize = 4_000;

/// Characters of an error that are told with it: as JSON, none takes more than six bytes.
const ERROR_TOLD: usize = 800;

/// What a run of the user's code is given besides its input.
pub struct RunContext<P: Primitive> {
    attempt: Attempt,
    state: P::State,
    view: Option<ObjectView>,
}

impl<P: Primitive> RunContext<P> {
    /// The attempt: which run it is, whether to stop, steps, progress, the engine.
    pub fn attempt(&self) -> &Attempt {
        &self.attempt
    }

    /// The state of the object as it was when the run began; the default if it has been purged.
    pub fn state(&self) -> &P::State {
        &self.state
    }

    /// The state, to be changed and returned.
    pub fn into_state(self) -> P::State {
        self.state
    }

    /// What is known of the object; `None` if it has been purged.
    pub fn object(&self) -> Option<&ObjectView> {
        self.view.as_ref()
    }

    /// The object's key.
    pub fn key(&self) -> &str {
        self.attempt.object().map_or("", Address::key)
    }
}

/// How an attempt is about to be settled.
pub(crate) struct AttemptEnding<'a> {
    pub(crate) verdict: Verdict,
    pub(crate) output: Option<&'a Bytes>,
    pub(crate) error: Option<&'a ErrorText>,
}

/// What the end of an attempt means to the object its job is bound to.
pub(crate) trait Conclude: Send + Sync {
    /// The turn to commit with the settlement; `None` if there is none to make.
    fn turn<'a>(
        &'a self,
        attempt: &'a Attempt,
        ending: AttemptEnding<'a>,
    ) -> BoxFuture<'a, Result<Option<CoreTurn>, Error>>;
}

/// The handlers of a primitive's two kinds of jobs.
pub(crate) fn handlers<P: Primitive>(primitive: P) -> Result<Vec<RegisteredHandler>, Error> {
    primitive.check()?;
    let primitive = Arc::new(primitive);
    let sample = Address::new(kind_of::<P>()?, Name::new(primitive.name())?, "key")?;
    let run = {
        let primitive = primitive.clone();
        move |attempt: Attempt| -> BoxFuture<'static, Returned> {
            let primitive = primitive.clone();
            Box::pin(async move { run(&*primitive, attempt).await })
        }
    };
    let concluder =
        |role| -> Arc<dyn Conclude> { Arc::new(Concluder { primitive: primitive.clone(), role }) };
    let wake = |_: Attempt| -> BoxFuture<'static, Returned> { Box::pin(async { Ok(Vec::new()) }) };
    Ok(vec![
        RegisteredHandler {
            kind: run_kind(&sample)?.to_string().into(),
            needs: Vec::new(),
            options: primitive.options(),
            run: Box::new(run),
            conclude: Some(concluder(Role::Run)),
        },
        RegisteredHandler {
            kind: alarm_kind(&sample)?.to_string().into(),
            needs: Vec::new(),
            // A turn that was refused (a queue is full) may be accepted later; an alarm that gave
            // up would leave its object asleep.
            options: KindOptions::default().retry(Retry::default().unlimited()),
            run: Box::new(wake),
            conclude: Some(concluder(Role::Alarm)),
        },
    ])
}

async fn run<P: Primitive>(primitive: &P, attempt: Attempt) -> Returned {
    let input = serde_json::from_slice(attempt.payload())
        .map_err(|error| Failure::permanent(format!("its input cannot be read: {error}")))?;
    let view = look(&attempt).await.map_err(Failure::retry)?;
    let state = match &view {
        Some(view) => {
            open_envelope::<P::State>(&view.record.address, &view.record.state)
                .map_err(Failure::permanent)?
                .state
        }
        None => P::State::default(),
    };
    let output = primitive.run(input, RunContext { attempt, state, view }).await?;
    serde_json::to_vec(&output)
        .map_err(|error| Failure::permanent(format!("the output cannot be written: {error}")))
}

/// The object that an attempt's job is bound to.
///
/// `None` if that was purged, even if another has been made at its address since.
async fn look(attempt: &Attempt) -> Result<Option<ObjectView>, Error> {
    let Some(address) = attempt.object() else { return Ok(None) };
    let view = attempt.engine().store().object(address).await?;
    Ok(view.filter(|view| view.record.meta.owns(attempt.sequence())))
}

/// What a job is to its object.
#[derive(Clone, Copy, Debug)]
enum Role {
    /// It runs the user's code.
    Run,
    /// It only makes a turn.
    Alarm,
}

/// Concludes the jobs of a primitive that have one role.
struct Concluder<P: Primitive> {
    primitive: Arc<P>,
    role: Role,
}

impl<P: Primitive> Conclude for Concluder<P> {
    fn turn<'a>(
        &'a self,
        attempt: &'a Attempt,
        ending: AttemptEnding<'a>,
    ) -> BoxFuture<'a, Result<Option<CoreTurn>, Error>> {
        Box::pin(async move {
            let Some(address) = attempt.object() else { return Ok(None) };
            let view = match look(attempt).await? {
                None if P::OUTLIVES_OBJECT => attempt.engine().store().object(address).await?,
                None => return Ok(None),
                view => view,
            };
            if !self.has_turn(attempt, view.as_ref(), ending.verdict) {
                return Ok(None);
            }
            let version = view.as_ref().map_or(0, |view| view.record.meta.version);
            let before = view.as_ref().map(|view| view.record.state.clone()).unwrap_or_default();
            let mut draft = match Draft::<P>::new(address, view, attempt.engine()) {
                Ok(draft) => draft,
                Err(error) => return Ok(Some(parked(address.clone(), version, &error))),
            };
            let ran = match self.role {
                Role::Run => self.conclude_run(attempt, &ending, &before, &mut draft)?,
                Role::Alarm => {
                    self.primitive.on_alarm(&mut draft.envelope.state, &mut draft.turn);
                    None
                }
            };
            draft.turn.stay_within_bounds();
            draft.finish(ran).map(Some)
        })
    }
}

/// What is told of a run that failed.
#[derive(Serialize)]
struct Failed<'a> {
    job: String,
    attempt: u32,
    error: &'a str,
    /// The state before the run, which it has not changed; `null` if it is too large to be told.
    state: Option<serde_json::Value>,
    again: bool,
}

impl<P: Primitive> Concluder<P> {
    /// Whether the object has anything to do with this end.
    fn has_turn(&self, attempt: &Attempt, view: Option<&ObjectView>, verdict: Verdict) -> bool {
        match (self.role, verdict) {
            (_, Verdict::Snooze(_) | Verdict::Release) => false,
            (Role::Run, _) => true,
            // Not if another alarm has taken its place, or it was called off on its way.
            (Role::Alarm, Verdict::Complete) => {
                view.is_some_and(|view| view.record.meta.alarm == Some(attempt.id()))
            }
            (Role::Alarm, Verdict::Retry(_) | Verdict::Bury(_) | Verdict::Cancel(_)) => false,
        }
    }

    /// Tells the object how a run of its code has ended, which began with the state `before`.
    fn conclude_run(
        &self,
        attempt: &Attempt,
        ending: &AttemptEnding<'_>,
        before: &Bytes,
        draft: &mut Draft<P>,
    ) -> Result<Option<RunResult>, Error> {
        let error = ending.error.map_or("", ErrorText::as_str);
        let (outcome, ran) = match ending.verdict {
            Verdict::Complete => {
                let bytes = ending.output.map_or(&b"null"[..], |output| &output[..]);
                let decode = |source| Error::Decode { job: attempt.id(), source };
                let output = serde_json::from_slice(bytes).map_err(decode)?;
                (Some(RunOutcome::Completed(output)), Some(RunResult::Well))
            }
            Verdict::Bury(_) => {
                let (error, attempts) = (error.to_string(), attempt.number());
                (Some(RunOutcome::Failed { error, attempts }), Some(RunResult::Badly))
            }
            Verdict::Cancel(_) => (Some(RunOutcome::Cancelled), None),
            Verdict::Retry(_) | Verdict::Snooze(_) | Verdict::Release => (None, None),
        };
        if let Verdict::Retry(_) | Verdict::Bury(_) = ending.verdict {
            let again = matches!(ending.verdict, Verdict::Retry(_));
            let job = attempt.id().to_string();
            let error: String = error.chars().take(ERROR_TOLD).collect();
            let state = told_state(before);
            let failed = Failed { job, attempt: attempt.number(), error: &error, state, again };
            draft.turn.tell("failed", failed);
        }
        // It was read before it ran.
        if let Some(outcome) = outcome
            && let Ok(input) = serde_json::from_slice(attempt.payload())
        {
            let state = &mut draft.envelope.state;
            self.primitive.on_outcome(state, input, outcome, &mut draft.turn);
        }
        Ok(ran)
    }
}

/// A stored state as an event tells it: as JSON, without the ids of events that are kept with it.
fn told_state(stored: &Bytes) -> Option<serde_json::Value> {
    let mut stored: serde_json::Value = serde_json::from_slice(stored).ok()?;
    let state = stored.get_mut("state").map(serde_json::Value::take)?;
    (state.to_string().len() <= STATE_TOLD).then_some(state)
}

/// The turn of an object whose state can no longer be read: it is left alone, with the reason.
fn parked(object: Address, version: u64, error: &Error) -> CoreTurn {
    tracing::error!(%object, %error, "the object is parked");
    let reason = ErrorText::new(error.to_string());
    let status = Some((ObjectStatus::Failed, Some(reason)));
    CoreTurn { status, ..CoreTurn::new(object, version) }
}
