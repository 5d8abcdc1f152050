//! Restarting what crashed, but not for ever.

use std::future::Future;
use std::sync::Arc;

use windlass_core::supervise::{Intensity, Restarts};

use crate::clock::Clock;
use crate::panics::CatchPanic;

/// Runs a loop until it ends by itself. A panic restarts it; more than the allowed intensity is
/// an error that says what crashed last. `on_crash` hears of every panic.
pub(crate) async fn supervise<Fut>(
    part: &'static str,
    clock: Arc<dyn Clock>,
    on_crash: impl Fn(&str) + Send,
    make: impl Fn() -> Fut + Send,
) -> Result<(), String>
where
    Fut: Future<Output = ()> + Send + 'static,
{
    let intensity = Intensity::default();
    let mut restarts = Restarts::new(intensity);
    loop {
        let Err(panic) = CatchPanic(Box::pin(make())).await else { return Ok(()) };
        tracing::error!(part, panic, "a part of the engine crashed");
        on_crash(&format!("{part} {panic}"));
        if !restarts.allow(clock.now().steady) {
            let Intensity { restarts, period } = intensity;
            return Err(format!(
                "{part} crashed more than {restarts} times in {period:?}; the last time it {panic}"
            ));
        }
        clock.sleep(restarts.rest()).await;
    }
}
