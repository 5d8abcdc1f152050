//! Watching: tell attempts whose time is up or whose lease is over, and end those that were told
//! to stop and do not.
//!
//! One timer for all attempts of a worker, and none of them waits for it to be moved: it is moved
//! only by an attempt whose time is up sooner than the loop would look.
//!
//! This loop never asks the store. A lease ends on this worker's own clock, counted from when its
//! last applied renewal was sent, so an attempt hears of it in time even while the renew loop waits
//! for a store that hangs.

use std::sync::Arc;

use super::life::Stage;
use super::run::give_up;
use super::shared::Shared;

/// Watches over everything that runs.
pub(super) async fn watch_loop(shared: Arc<Shared>) {
    loop {
        let forced = shared.life.stage() >= Stage::Forced;
        let (overdue, next) = shared.leases.watch(shared.timing.cancel_grace, forced);
        overdue.iter().for_each(|attempt| give_up(&shared, attempt));
        tokio::select! {
            biased;
            () = shared.life.reached(Stage::Stopped) => return,
            () = shared.life.forced(), if !forced => {}
            () = shared.leases.told() => {}
            () = shared.sleep(next) => {}
        }
    }
}
