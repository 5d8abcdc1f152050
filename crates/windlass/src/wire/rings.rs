//! Rings of another program, for those who listen in this one.

use std::time::Duration;

use super::{Call, Connection, Fault, Reply};
use crate::clock::{Clock, SystemClock};
use crate::wake::LocalWake;

/// How long the other program waits for a ring before it is asked again.
const WAIT: Duration = Duration::from_secs(20);

/// How long nothing is asked after a ring. A queue that is rung ten thousand times a second is rung
/// here a thousand times.
const REST: Duration = Duration::from_millis(1);

/// The number of the last ring of the other program, after which to ask.
pub(crate) async fn last_ring(connection: &dyn Connection) -> Result<u64, Fault> {
    let call = Call::Rung { after: None, interests: Vec::new(), wait: WAIT };
    match connection.send(call).await?.answer? {
        Reply::Rung(Some(rung)) => Ok(rung.upto),
        _ => Err(odd()),
    }
}

/// Rings those who listen here whenever the other program is rung, for as long as the connection
/// lasts; then says why it does not. Whoever listens is rung once at the beginning: nobody knows
/// what was missed.
///
/// While nobody listens, nothing is asked.
pub async fn pass_rings_on(connection: &dyn Connection, local: &LocalWake) -> Fault {
    match last_ring(connection).await {
        Ok(after) => {
            local.ring_everyone();
            pass_rings_on_after(after, connection, local).await
        }
        Err(fault) => fault,
    }
}

/// The same, after a ring of which whoever listens has heard.
pub(crate) async fn pass_rings_on_after(
    mut after: u64,
    connection: &dyn Connection,
    local: &LocalWake,
) -> Fault {
    loop {
        // Made before looking: whoever begins to listen in between is heard.
        let someone_more = local.someone_more();
        let interests = local.interests();
        if interests.is_empty() {
            someone_more.await;
            continue;
        }
        let call = Call::Rung { after: Some(after), interests, wait: WAIT };
        let answer = tokio::select! {
            answer = connection.send(call) => answer.and_then(|response| response.answer),
            // What is asked for is no longer all that is wanted.
            () = someone_more => continue,
        };
        match answer {
            Ok(Reply::Rung(Some(rung))) => {
                after = rung.upto;
                match rung.rings {
                    Some(rings) => local.ring_now(&rings),
                    None => local.ring_everyone(),
                }
                SystemClock::new().sleep(REST).await;
            }
            Ok(Reply::Rung(None)) => {}
            Ok(_) => return odd(),
            Err(fault) => return fault,
        }
    }
}

fn odd() -> Fault {
    Fault::Unknown { why: "the answer is one to another call".to_string() }
}
