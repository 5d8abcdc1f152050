//! Keeping the database's time steady: whoever has a store open looks at its clock twice a second.
//!
//! A server cannot tell a step of its clock from time that has passed, but a process that looks at
//! it regularly can, by its own steady clock. The rules of what is believed in between are in
//! `sql/clock.sql`.

use std::time::Duration;

use tokio_postgres::Client;
use tokio_postgres::types::Type;
use windlass_core::time::Steady;

use super::connect::{self, PostgresAddress};
use super::{Parameter, Schema};
use crate::clock::{Clock, SystemClock};

/// How often a store looks.
const PAUSE: Duration = Duration::from_millis(500);

/// How long a look may take. One that takes longer says little.
const PATIENCE: Duration = Duration::from_secs(5);

/// Steps below this are followed: no one feels them.
const TOLERANCE: i64 = 250_000;

/// How far beyond the last confirmed time the clock is believed; as in `now_us`.
const BELIEVED: i64 = 2_000_000;

/// Looks at the clock until the store is dropped.
#[derive(Debug)]
pub(super) struct ClockWatch(tokio::task::JoinHandle<()>);

impl ClockWatch {
    pub(super) fn start(address: PostgresAddress) -> Self {
        Self(tokio::spawn(watch(address)))
    }

    pub(super) fn stop(&self) {
        self.0.abort();
    }
}

impl Drop for ClockWatch {
    fn drop(&mut self) {
        self.stop();
    }
}

/// On a connection of its own, so that a pool that is busy does not make time stand.
async fn watch(mut address: PostgresAddress) {
    let name = address.config.get_application_name().unwrap_or("windlass");
    let name = format!("{name} clock");
    address.config.application_name(name);
    let clock = SystemClock::new();
    let mut last = None;
    loop {
        if let Ok(client) = connect::connect(&address).await {
            while let Ok(Some(again)) = look(&client, &address.schema, &clock, &mut last).await {
                clock.sleep(again).await;
            }
        }
        clock.sleep(PAUSE).await;
    }
}

/// Looks once, and answers after which time to look again; `None` if that took too long.
async fn look(
    client: &Client,
    schema: &Schema,
    clock: &SystemClock,
    last: &mut Option<ClockLook>,
) -> Result<Option<Duration>, tokio_postgres::Error> {
    let looked = tokio::time::timeout(PATIENCE, async {
        let sent = clock.now().steady;
        let sql = schema.in_sql("select * from windlass.look_at_clock()");
        let rows = client.query_typed(&sql, &[]).await?;
        let Some(row) = rows.first() else { return Ok(PAUSE) };
        let (reading, shift, mark): (i64, i64, i64) = (row.get(0), row.get(1), row.get(2));
        let now = ClockLook { reading, sent, received: clock.now().steady };
        let verdict = judge(last.as_ref(), &now, mark);
        let correction = match verdict {
            ClockJudgement::Unsure => {
                client.query_typed(&schema.in_sql("select windlass.now_us()"), &[]).await?;
                *last = None;
                return Ok(PAUSE);
            }
            ClockJudgement::Stepped { correction } => {
                tracing::warn!(
                    by_ms = -correction / 1_000,
                    "the clock of the database was stepped; its jobs go on in their own time"
                );
                correction
            }
            ClockJudgement::Steady => 0,
        };
        let parameters: [Parameter<'_>; 3] =
            [(&reading, Type::INT8), (&shift, Type::INT8), (&correction, Type::INT8)];
        let sql = schema.in_sql("select windlass.confirm_clock($1, $2, $3)");
        client.query_typed(&sql, &parameters).await?;
        if correction != 0 {
            // What was read does not count; whether it is right now is seen at once.
            return Ok(Duration::ZERO);
        }
        *last = Some(now);
        Ok(PAUSE)
    });
    looked.await.ok().transpose()
}

/// What the clock said, and between which moments of our own steady clock it did.
#[derive(Clone, Copy, Debug)]
struct ClockLook {
    reading: i64,
    sent: Steady,
    received: Steady,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClockJudgement {
    /// As much time has passed on it as really has.
    Steady,
    /// It must be corrected by so many microseconds.
    Stepped { correction: i64 },
    /// Nothing that is known is recent enough to tell.
    Unsure,
}

/// Compares what has passed between two looks on the database's clock and on ours.
///
/// A look happens at some moment between its sending and its answer, and this process may have
/// been stopped in between. So at least the time from the last answer to this sending has passed,
/// and at most that from the last sending to this answer; only what is beyond both is a step.
/// If someone has confirmed a later time than that, it is our own clock that stood still, as in a
/// machine that was suspended.
fn judge(last: Option<&ClockLook>, now: &ClockLook, mark: i64) -> ClockJudgement {
    let stepped_to =
        |time: i64| ClockJudgement::Stepped { correction: time.max(mark) - now.reading };
    let Some(last) = last else {
        return match now.reading - mark {
            ahead if ahead < -TOLERANCE => stepped_to(mark),
            ahead if ahead > BELIEVED => ClockJudgement::Unsure,
            _ => ClockJudgement::Steady,
        };
    };
    let micros = |time: Duration| i64::try_from(time.as_micros()).unwrap_or(i64::MAX);
    let at_least = last.reading + micros(now.sent.since(last.received));
    let longest = micros(now.received.since(last.sent));
    let at_most = last.reading.saturating_add(longest);
    if now.reading < at_least.max(mark) - TOLERANCE {
        stepped_to(at_least)
    } else if now.reading > at_most + TOLERANCE && mark <= at_most + TOLERANCE {
        stepped_to(at_most)
    } else if now.reading > mark + BELIEVED && longest > BELIEVED {
        ClockJudgement::Unsure
    } else {
        ClockJudgement::Steady
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000;

    /// A look sent and answered so many milliseconds after the first moment.
    fn at(reading: i64, sent: u64, received: u64) -> ClockLook {
        let after = |millis: u64| Steady::from_micros(millis * 1_000);
        ClockLook { reading, sent: after(sent), received: after(received) }
    }

    #[test]
    fn only_what_cannot_have_passed_is_taken_for_a_step() {
        let last = at(100 * SECOND, 0, 10);
        let step = |seconds: i64| ClockJudgement::Stepped { correction: seconds * SECOND };
        // What, the reading in microseconds, sent and answered in milliseconds, the mark, and the
        // verdict.
        let table = [
            ("half a second passed", 100_500_000, 500, 510, 100 * SECOND, ClockJudgement::Steady),
            ("a small step", 100_700_000, 500, 510, 100 * SECOND, ClockJudgement::Steady),
            ("an hour ahead", 3_700_510_000, 500, 510, 100 * SECOND, step(-3_600)),
            ("an hour back", -3_499_510_000, 500, 510, 100 * SECOND, step(3_600)),
            ("a slow answer", 104_000_000, 500, 4_510, 102 * SECOND, ClockJudgement::Steady),
            (
                "we were stopped, and someone looked",
                109 * SECOND,
                500,
                9_000,
                109 * SECOND,
                ClockJudgement::Steady,
            ),
            (
                "we were stopped, and nobody looked",
                109 * SECOND,
                500,
                9_000,
                100 * SECOND,
                ClockJudgement::Unsure,
            ),
            (
                "we were suspended, and someone looked",
                109 * SECOND,
                500,
                510,
                109 * SECOND,
                ClockJudgement::Steady,
            ),
            (
                "a step while we were stopped",
                3_709 * SECOND,
                500,
                9_000,
                100 * SECOND,
                step(-3_600),
            ),
        ];
        for (what, reading, sent, received, mark, verdict) in table {
            let found = judge(Some(&last), &at(reading, sent, received), mark);
            assert_eq!(found, verdict, "{what}");
        }
        let first = |reading, mark| judge(None, &at(reading, 0, 10), mark);
        assert_eq!(first(100 * SECOND, 99 * SECOND), ClockJudgement::Steady, "others look too");
        assert_eq!(
            first(100 * SECOND, 90 * SECOND),
            ClockJudgement::Unsure,
            "time passed, or a step"
        );
        assert_eq!(first(90 * SECOND, 100 * SECOND), step(10), "time goes on from the mark");
    }
}
