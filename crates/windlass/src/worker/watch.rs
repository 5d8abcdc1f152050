//! Watching: tell attempts whose time is up or whose lease is over, and end those that were told
//! to stop and do not.
//!
//! One timer serves all attempts of a worker. It is set to the earliest end among them, and an
//! attempt that begins wakes the loop only if its own end comes earlier.
//!
//! Answers: most attempts end long before their time-out, and a timer of its own would be made and
//! dropped for each. And an attempt must hear that its lease is over even while the store hangs.
//! Why not simpler: the renew loop also knows when leases end, but it waits for the store. This one
//! never asks it: a lease ends on this worker's own clock, counted from when its last applied
//! renewal was sent.
//! Guarded by: `a_lost_lease_is_told_within_it_and_a_second_whatever_the_store_does` in
//! `tests/main/lost_leases.rs` (the planted bugs 53 and 54), and
//! `a_job_that_ends_in_time_is_not_hit_by_an_earlier_jobs_timeout` in `tests/main/worker.rs`.

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
