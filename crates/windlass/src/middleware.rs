//! Wrapping every attempt: logging, metrics, tenancy, whatever each handler would repeat.

use std::future::Future;
use std::sync::Arc;

use crate::attempt::Attempt;
use crate::clock::BoxFuture;
use crate::handler::{RegisteredHandler, Returned};

/// Code around every attempt of a worker ([`crate::WorkerBuilder::middleware`]) or of one kind
/// ([`crate::KindOptions::middleware`]). The first one added is the outermost; those of a worker
/// are around those of the kind.
///
/// Any async function of the attempt and the rest is one:
///
/// ```
/// use windlass::{Attempt, Next, Returned};
///
/// async fn log(attempt: Attempt, next: Next) -> Returned {
///     println!("{} begins", attempt.id());
///     let returned = next.run().await;
///     println!("{} ends", attempt.id());
///     returned
/// }
/// ```
pub trait Middleware: Send + Sync + 'static {
    /// Runs around one attempt. What it returns is what counts; not running `next` skips the
    /// handler.
    fn around(&self, attempt: Attempt, next: Next) -> BoxFuture<'static, Returned>;
}

impl<F, Fut> Middleware for F
where
    F: Fn(Attempt, Next) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Returned> + Send + 'static,
{
    fn around(&self, attempt: Attempt, next: Next) -> BoxFuture<'static, Returned> {
        Box::pin(self(attempt, next))
    }
}

/// What is left to run: the inner middleware, and the handler at the heart.
pub struct Next {
    attempt: Attempt,
    handler: Arc<RegisteredHandler>,
    layers: Arc<[Box<dyn Middleware>]>,
    depth: usize,
}

impl Next {
    pub(crate) fn new(
        attempt: Attempt,
        handler: Arc<RegisteredHandler>,
        layers: Arc<[Box<dyn Middleware>]>,
    ) -> Self {
        Self { attempt, handler, layers, depth: 0 }
    }

    /// Runs it.
    pub fn run(mut self) -> BoxFuture<'static, Returned> {
        let attempt = self.attempt.clone();
        let (layers, handler) = (self.layers.clone(), self.handler.clone());
        // Those of the worker first, then those of the kind.
        match layers.iter().chain(&handler.options.layers).nth(self.depth) {
            Some(layer) => {
                self.depth += 1;
                layer.around(attempt, self)
            }
            None => (handler.run)(attempt),
        }
    }
}
