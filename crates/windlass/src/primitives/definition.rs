//! What definitions of primitives have in common: a name, terms to run on, and how events are
//! checked and remembered.
//!
//! A definition is made once and cloned freely, so everything in here is cheap to clone. The
//! setters that users call are written once too, by [`definition_setters`].

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use windlass_core::limits;
use windlass_core::refusal::Refusal;

use crate::clock::BoxFuture;
use crate::error::Error;
use crate::failure::Failure;
use crate::handler::KindOptions;

/// How long ids of events are remembered unless a definition says otherwise.
const REMEMBER_IDS: Duration = Duration::from_secs(86_400);

/// What is kept of events, in bytes of JSON, unless a definition says otherwise: half of what a
/// payload may have by default, so that it always fits into one.
pub(super) const MAX_BYTES: usize = 64 * 1024;

type KindTerms = Arc<dyn Fn(KindOptions) -> KindOptions + Send + Sync>;
type Validate<E> = Arc<dyn Fn(&E) -> Result<(), String> + Send + Sync>;

/// An async function of the user's, boxed.
pub(super) type Code<I, O = ()> =
    Arc<dyn Fn(I) -> BoxFuture<'static, Result<O, Failure>> + Send + Sync>;

/// Boxes an async function of the user's.
pub(super) fn code<I, O, F, Fut, Fail>(run: F) -> Code<I, O>
where
    F: Fn(I) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<O, Fail>> + Send + 'static,
    Fail: Into<Failure>,
{
    Arc::new(move |input| {
        let running = run(input);
        Box::pin(async move { running.await.map_err(Into::into) })
    })
}

/// A name, and the terms on which the code of a definition is run.
#[derive(Clone)]
pub(super) struct Named {
    name: Arc<str>,
    terms: Option<KindTerms>,
}

impl Named {
    pub(super) fn new(name: impl Into<Arc<str>>) -> Self {
        Self { name: name.into(), terms: None }
    }

    pub(super) fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// The options of its jobs: the default ones, as the definition changes them.
    pub(super) fn options(&self) -> KindOptions {
        let options = KindOptions::default();
        self.terms.iter().fold(options, |options, terms| terms(options))
    }

    pub(super) fn set_options(
        &mut self,
        terms: impl Fn(KindOptions) -> KindOptions + Send + Sync + 'static,
    ) {
        self.terms = Some(Arc::new(terms));
    }
}

/// Which events are taken, and how long their ids count.
pub(super) struct Events<E> {
    pub(super) remember_ids: Duration,
    validate: Option<Validate<E>>,
}

impl<E> Default for Events<E> {
    fn default() -> Self {
        Self { remember_ids: REMEMBER_IDS, validate: None }
    }
}

impl<E> Clone for Events<E> {
    fn clone(&self) -> Self {
        Self { remember_ids: self.remember_ids, validate: self.validate.clone() }
    }
}

impl<E> Events<E> {
    pub(super) fn set_validate(
        &mut self,
        validate: impl Fn(&E) -> Result<(), String> + Send + Sync + 'static,
    ) {
        self.validate = Some(Arc::new(validate));
    }

    /// What is wrong with the definition, if anything.
    pub(super) fn check(&self) -> Result<(), Error> {
        check_duration("remember_ids", self.remember_ids)
    }

    /// Refuses an event that the definition finds invalid.
    pub(super) fn check_event(&self, kind: &str, name: &str, event: &E) -> Result<(), Error> {
        let what = || format!("an event of {kind} `{name}`");
        let checked = self.validate.as_ref().map_or(Ok(()), |validate| validate(event));
        checked.map_err(|issues| Error::Validation { what: what(), issues })
    }
}

/// Refuses a duration of nothing, and one that can only be a mistake of units.
pub(super) fn check_duration(setting: &'static str, given: Duration) -> Result<(), Error> {
    if given.is_zero() || given > limits::DELAY_MAX {
        let allowed = "it must be more than nothing and at most a century";
        return Err(Error::InvalidSetting { setting, got: format!("{given:?}"), allowed });
    }
    Ok(())
}

/// The refusal of an event of so many bytes.
pub(super) fn too_large(bytes: usize, allowed: String) -> Error {
    Refusal::OutOfBounds { what: "event".into(), got: format!("{bytes} bytes"), allowed }.into()
}

/// How long a value is as JSON.
pub(super) fn json_bytes(value: &impl Serialize) -> Result<usize, serde_json::Error> {
    struct JsonLength(usize);
    impl std::io::Write for JsonLength {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut counted = JsonLength(0);
    serde_json::to_writer(&mut counted, value)?;
    Ok(counted.0)
}

/// Writes setters of a definition, which keeps what they set in `named` and `events`.
macro_rules! definition_setters {
    (options) => {
        /// How its code is run: retries, time-out, concurrency, rate. By default a run that fails
        /// is tried twice more, and each attempt may take 30 s.
        pub fn options(
            mut self,
            options: impl Fn($crate::KindOptions) -> $crate::KindOptions + Send + Sync + 'static,
        ) -> Self {
            self.named.set_options(options);
            self
        }
    };
    (remember_ids) => {
        /// How long the id of an event is remembered, so that it counts once; a day by default.
        pub fn remember_ids(mut self, window: std::time::Duration) -> Self {
            self.events.remember_ids = window;
            self
        }
    };
    (validate $event:ty) => {
        /// Refuses events for which this returns an error, with
        /// [`Error::Validation`](crate::Error::Validation) and that text. Nothing is stored of
        /// them.
        pub fn validate(
            mut self,
            validate: impl Fn(&$event) -> Result<(), String> + Send + Sync + 'static,
        ) -> Self {
            self.events.set_validate(validate);
            self
        }
    };
}
pub(super) use definition_setters;
