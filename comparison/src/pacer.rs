//! Calls at a fixed rate, an open loop: when a call is due does not depend on earlier calls.
//!
//! The moments come from a thread that only sleeps: the runtime's own timer rounds up to whole milliseconds, which would
//! be most of the latency that is to be measured.

use std::time::{Duration, Instant};

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// The number of a call and the moment at which it is due, sent at that moment.
pub(crate) fn start(calls: u32, every: Duration) -> UnboundedReceiver<(u32, Instant)> {
    let (due, receiver) = unbounded_channel();
    std::thread::spawn(move || {
        let began = Instant::now();
        for number in 0..calls {
            let moment = began + every * number;
            std::thread::sleep(moment.saturating_duration_since(Instant::now()));
            if due.send((number, moment)).is_err() {
                return;
            }
        }
    });
    receiver
}
