//! A plain async function becomes a handler.

use std::any::{Any, TypeId};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::future::Future;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use windlass_core::job::Timeout;
use windlass_core::ledger::KindClaim;
use windlass_core::limits;
use windlass_core::name::Name;
use windlass_core::rate::Rate;
use windlass_core::retry::{DEFAULT_MAX_ATTEMPTS, Retry};

use crate::attempt::Attempt;
use crate::clock::BoxFuture;
use crate::error::Error;
use crate::failure::Failure;
use crate::middleware::Middleware;
use crate::options::Options;
use crate::primitives::Conclude;

/// A kind of work: what a handler receives, under which name, and what it returns.
///
/// ```
/// use serde::{Deserialize, Serialize};
/// use windlass::{Job, Options};
///
/// #[derive(Serialize, Deserialize)]
/// struct SendReceipt { order: u64, to: String }
///
/// impl Job for SendReceipt {
///     const KIND: &'static str = "send_receipt";
///     type Output = ();
///
///     fn options(&self) -> Options {
///         Options::new().queue("mail").unique(self.order)
///     }
/// }
/// ```
pub trait Job: Serialize + DeserializeOwned + Send + 'static {
    /// The name under which jobs of this kind are stored. Renaming it strands stored jobs.
    const KIND: &'static str;

    /// What a successful attempt returns; stored with the job.
    type Output: Serialize + DeserializeOwned + Send + 'static;

    /// How such a job is kept and run unless the enqueue says otherwise.
    fn options(&self) -> Options {
        Options::new()
    }
}

/// What a handler returned: the encoded output, or why there is none.
pub type Returned = Result<Vec<u8>, Failure>;

/// An async function that runs one kind of job.
///
/// Implemented for functions of the payload, then optionally the [`Attempt`], then up to six
/// [`State`]s, each of another type. They return `Result<Output, E>` where `E` is [`Failure`] or
/// any error.
///
/// A worker runs handlers on any thread, so it takes only those that are `Send` and `Sync` and
/// whose future is `Send`. That is asked for where a handler is given to a worker and not here, so
/// that the compiler names what is in the way instead of saying that it is not a handler.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a job handler",
    label = "must be an async function of a job, then optionally `Attempt`, then `State<T>`s, \
             six at most",
    note = "it must return `Result<J::Output, E>` where `J: Job` is its first argument and `E` is \
            `Failure` or any error type"
)]
pub trait Handler<Arguments> {
    /// The kind of job it runs.
    type Job: Job;

    /// What it fails with.
    type Error: Into<Failure>;

    /// One run of it.
    type Future: Future<Output = Result<<Self::Job as Job>::Output, Self::Error>>;

    /// The shared state it needs: the types and their names.
    fn needs() -> Vec<(TypeId, &'static str)>;

    /// Runs it once.
    fn call(&self, job: Self::Job, attempt: Attempt) -> Result<Self::Future, Failure>;
}

/// Functions with so many states are handlers, with and without the attempt before them.
macro_rules! handlers_with {
    ($($state:ident),*) => {
        impl<F, Fut, J, E, $($state),*> Handler<(J, $(State<$state>,)*)> for F
        where
            F: Fn(J, $(State<$state>),*) -> Fut,
            Fut: Future<Output = Result<J::Output, E>>,
            J: Job,
            E: Into<Failure>,
            $($state: Send + Sync + 'static,)*
        {
            type Job = J;
            type Error = E;
            type Future = Fut;

            fn needs() -> Vec<(TypeId, &'static str)> {
                vec![$((TypeId::of::<$state>(), std::any::type_name::<$state>())),*]
            }

            fn call(&self, job: J, _attempt: Attempt) -> Result<Fut, Failure> {
                Ok(self(job, $(shared_state::<$state>(&_attempt)?),*))
            }
        }

        impl<F, Fut, J, E, $($state),*> Handler<(J, Attempt, $(State<$state>,)*)> for F
        where
            F: Fn(J, Attempt, $(State<$state>),*) -> Fut,
            Fut: Future<Output = Result<J::Output, E>>,
            J: Job,
            E: Into<Failure>,
            $($state: Send + Sync + 'static,)*
        {
            type Job = J;
            type Error = E;
            type Future = Fut;

            fn needs() -> Vec<(TypeId, &'static str)> {
                vec![$((TypeId::of::<$state>(), std::any::type_name::<$state>())),*]
            }

            fn call(&self, job: J, attempt: Attempt) -> Result<Fut, Failure> {
                Ok(self(job, attempt.clone(), $(shared_state::<$state>(&attempt)?),*))
            }
        }
    };
}

handlers_with!();
handlers_with!(S1);
handlers_with!(S1, S2);
handlers_with!(S1, S2, S3);
handlers_with!(S1, S2, S3, S4);
handlers_with!(S1, S2, S3, S4, S5);
handlers_with!(S1, S2, S3, S4, S5, S6);

/// The worker checked when it started that it has the state.
fn shared_state<S: Send + Sync + 'static>(attempt: &Attempt) -> Result<State<S>, Failure> {
    attempt.state().ok_or_else(|| Failure::retry("its shared state is missing"))
}

/// State shared by all attempts of a worker, such as a connection pool.
#[derive(Debug)]
pub struct State<S>(pub Arc<S>);

impl<S> Clone for State<S> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<S> Deref for State<S> {
    type Target = S;

    fn deref(&self) -> &S {
        &self.0
    }
}

/// One value per type.
#[derive(Clone, Default)]
pub(crate) struct States(BTreeMap<TypeId, Arc<dyn Any + Send + Sync>>);

impl States {
    pub(crate) fn insert<S: Send + Sync + 'static>(&mut self, state: Arc<S>) {
        self.0.insert(TypeId::of::<S>(), state);
    }

    pub(crate) fn get<S: Send + Sync + 'static>(&self) -> Option<Arc<S>> {
        self.0.get(&TypeId::of::<S>()).cloned()?.downcast().ok()
    }

    pub(crate) fn contains(&self, state: TypeId) -> bool {
        self.0.contains_key(&state)
    }
}

/// Decides by the error whether to try again.
pub(crate) type RetryIf = Box<dyn Fn(&Failure) -> bool + Send + Sync>;

/// How a worker runs one kind of job.
pub struct KindOptions {
    pub(crate) lease: Duration,
    pub(crate) retry: Retry,
    pub(crate) timeout: Timeout,
    pub(crate) concurrency: Option<u32>,
    pub(crate) rate: Option<Rate>,
    pub(crate) retry_if: Option<RetryIf>,
    pub(crate) layers: Vec<Box<dyn Middleware>>,
}

impl Default for KindOptions {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(30),
            retry: Retry::default(),
            timeout: Timeout::After(Duration::from_secs(30)),
            concurrency: None,
            rate: None,
            retry_if: None,
            layers: Vec::new(),
        }
    }
}

impl KindOptions {
    /// How long the store waits for a sign of life before it gives the job to someone else; 30 s
    /// by default, renewed every third of it. 1 s to 1 day.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// When a failed attempt is tried again, for jobs that do not say themselves.
    pub fn retry(mut self, retry: Retry) -> Self {
        self.retry = retry;
        self
    }

    /// Decide by the error whether to try again. Asked only when the handler left it to the
    /// policy; `false` sends the job to the dead letters.
    pub fn retry_if(mut self, decide: impl Fn(&Failure) -> bool + Send + Sync + 'static) -> Self {
        self.retry_if = Some(Box::new(decide));
        self
    }

    /// How long one attempt may run, for jobs that do not say themselves; 30 s by default.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Timeout::After(timeout);
        self
    }

    /// Let an attempt run for as long as it takes.
    pub fn no_timeout(mut self) -> Self {
        self.timeout = Timeout::Off;
        self
    }

    /// Run at most this many jobs of the kind at once, over all workers.
    pub fn concurrency(mut self, limit: u32) -> Self {
        self.concurrency = Some(limit);
        self
    }

    /// Start jobs of the kind no faster than this, over all workers.
    pub fn rate(mut self, rate: Rate) -> Self {
        self.rate = Some(rate);
        self
    }

    /// Wraps every attempt of the kind, inside the middleware of the worker. The first one added
    /// is the outermost.
    ///
    /// ```
    /// # use serde::{Deserialize, Serialize};
    /// # use windlass::{Attempt, Failure, Job, Next, Returned};
    /// # #[derive(Serialize, Deserialize)]
    /// # struct SendReceipt;
    /// # impl Job for SendReceipt { const KIND: &'static str = "send_receipt"; type Output = (); }
    /// # async fn send(_: SendReceipt) -> Result<(), Failure> { Ok(()) }
    /// # fn demo(engine: windlass::Engine) {
    /// async fn in_a_transaction(_: Attempt, next: Next) -> Returned {
    ///     // begin; commit or roll back by what it returns
    ///     next.run().await
    /// }
    /// let worker = engine.worker().handle_with(send, |kind| kind.middleware(in_a_transaction));
    /// # drop(worker); }
    /// ```
    pub fn middleware(mut self, layer: impl Middleware) -> Self {
        self.layers.push(Box::new(layer));
        self
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        let invalid =
            |setting, got: String, allowed| Err(Error::InvalidSetting { setting, got, allowed });
        if self.lease < limits::LEASE_MIN || self.lease > limits::LEASE_MAX {
            return invalid("lease", format!("{:?}", self.lease), "it must be 1 s to 1 day");
        }
        if self.concurrency == Some(0) {
            return invalid("concurrency", "0".into(), "it must be at least 1");
        }
        if let Some(rate) = self.rate
            && (rate.jobs == 0 || rate.burst == 0 || rate.period.is_zero())
        {
            return invalid("rate", format!("{rate:?}"), "jobs, burst and period must not be 0");
        }
        if self.timeout == Timeout::After(Duration::ZERO) {
            return invalid("timeout", "0 s".into(), "use `no_timeout` to turn it off");
        }
        Ok(())
    }

    pub(crate) fn terms(&self, kind: Name) -> KindClaim {
        KindClaim {
            kind,
            lease: self.lease,
            max_attempts: self.retry.max_attempts.unwrap_or(DEFAULT_MAX_ATTEMPTS),
            concurrency: self.concurrency,
            rate: self.rate,
        }
    }
}

/// A handler with its types erased, and how its kind is run.
pub(crate) struct RegisteredHandler {
    pub(crate) kind: Cow<'static, str>,
    pub(crate) needs: Vec<(TypeId, &'static str)>,
    pub(crate) options: KindOptions,
    pub(crate) run: Box<dyn Fn(Attempt) -> BoxFuture<'static, Returned> + Send + Sync>,
    /// What the end of an attempt means to the object its job is bound to.
    pub(crate) conclude: Option<Arc<dyn Conclude>>,
}

impl RegisteredHandler {
    pub(crate) fn new<A, H>(handler: H, options: KindOptions) -> Self
    where
        A: 'static,
        H: Handler<A> + Send + Sync + 'static,
        H::Future: Send,
    {
        let handler = Arc::new(handler);
        let run = move |attempt: Attempt| -> BoxFuture<'static, Returned> {
            let handler = handler.clone();
            Box::pin(async move {
                let job = decode::<H::Job>(&attempt)?;
                let returned = handler.call(job, attempt)?.await;
                encode(&returned.map_err(Into::into)?)
            })
        };
        let (kind, run) = (H::Job::KIND.into(), Box::new(run));
        Self { kind, needs: H::needs(), options, run, conclude: None }
    }

    /// A handler that blocks its thread, run where that harms nobody.
    pub(crate) fn blocking<J, E, F>(handler: F, options: KindOptions) -> Self
    where
        J: Job,
        E: Into<Failure>,
        F: Fn(J, Attempt) -> Result<J::Output, E> + Send + Sync + 'static,
    {
        let handler = Arc::new(handler);
        let run = move |attempt: Attempt| -> BoxFuture<'static, Returned> {
            let handler = handler.clone();
            Box::pin(async move {
                let span = tracing::Span::current();
                let slot = attempt.hold_slot();
                let work = move || {
                    // Threads cannot be aborted: the slot is in use until this one returns.
                    let _slot = slot;
                    let _entered = span.entered();
                    if attempt.cancellation().is_cancelled() {
                        return Err(Failure::retry("stopped before it began"));
                    }
                    crate::trace::CURRENT.sync_scope(attempt.clone(), || {
                        let job = decode::<J>(&attempt)?;
                        encode(&handler(job, attempt).map_err(Into::into)?)
                    })
                };
                let caught = move || crate::panics::catch(work);
                match tokio::task::spawn_blocking(caught).await {
                    Ok(Ok(returned)) => returned,
                    Ok(Err(panic)) => Err(Failure::retry(panic)),
                    Err(error) => Err(Failure::retry(error)),
                }
            })
        };
        Self {
            kind: J::KIND.into(),
            needs: Vec::new(),
            options,
            run: Box::new(run),
            conclude: None,
        }
    }
}

/// A payload that cannot be read will not be readable next time either.
fn decode<J: Job>(attempt: &Attempt) -> Result<J, Failure> {
    serde_json::from_slice(attempt.payload())
        .map_err(|error| Failure::permanent(format!("the payload is not a `{}`: {error}", J::KIND)))
}

fn encode<O: Serialize>(output: &O) -> Returned {
    serde_json::to_vec(output).map_err(|error| {
        Failure::permanent(format!("the output cannot be written as JSON: {error}"))
    })
}
