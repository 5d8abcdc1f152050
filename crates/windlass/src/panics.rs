//! A panic in a handler is a failure of the attempt, with its message and its place.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Once;
use std::task::{Context, Poll};

use crate::clock::BoxFuture;

thread_local! {
    static WATCHING: Cell<bool> = const { Cell::new(false) };
    static PLACE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Notes where a handler panics: only the panic hook knows the place, and only `catch_unwind` the
/// message. The hook that was there before runs as ever, so crash reporters keep working. Guarded
/// by `a_panic_is_a_failure_with_its_message_and_place` in `tests/main/journey.rs`.
pub(crate) fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if WATCHING.get() {
                PLACE.set(info.location().map(ToString::to_string));
            }
            before(info);
        }));
    });
}

/// Runs `work`; a panic becomes its description.
pub(crate) fn catch<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    let outer = WATCHING.replace(true);
    let result = catch_unwind(AssertUnwindSafe(work));
    WATCHING.set(outer);
    result.map_err(|panic| describe(&*panic))
}

fn describe(panic: &(dyn Any + Send)) -> String {
    let message = panic
        .downcast_ref::<&str>()
        .map(ToString::to_string)
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_string());
    match PLACE.take() {
        Some(place) => format!("panicked at {place}: {message}"),
        None => format!("panicked: {message}"),
    }
}

/// Polls a future; a panic ends it and becomes its description.
pub(crate) fn poll<F: Future + ?Sized>(
    future: Pin<&mut F>,
    context: &mut Context<'_>,
) -> Poll<Result<F::Output, String>> {
    match catch(|| future.poll(context)) {
        Ok(Poll::Pending) => Poll::Pending,
        Ok(Poll::Ready(value)) => Poll::Ready(Ok(value)),
        Err(panic) => Poll::Ready(Err(panic)),
    }
}

/// A future whose panics become values.
pub(crate) struct CatchPanic<T>(pub(crate) BoxFuture<'static, T>);

impl<T> Future for CatchPanic<T> {
    type Output = Result<T, String>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        poll(self.0.as_mut(), context)
    }
}
