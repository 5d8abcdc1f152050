//! Attempts that end, on their way into the database.
//!
//! What is simply completed goes as ranges of numbers and tokens, which the database ends all at
//! once; the others go one by one.

use std::collections::HashSet;
use std::sync::Arc;

use serde_json::Value;
use tokio_postgres::Row;
use tokio_postgres::types::Type;
use windlass_core::job::{JobId, LeaseToken, NewJob, StateName};
use windlass_core::ledger::{Settled, Settlement};
use windlass_core::limits::Limits;
use windlass_core::outcome::Verdict;
use windlass_core::record::Report;
use windlass_core::refusal::Refusal;

use super::enqueue::check_batch;
use super::objects::check_turn;
use super::wire::{self, Sparse};
use super::{Parameter, PostgresStore, refusal, spec, understood};
use crate::store::Answer;

type SettleAnswers = Vec<Result<Settled, Refusal>>;

pub(super) async fn settle(
    store: &PostgresStore,
    settlements: Vec<Settlement>,
) -> Answer<SettleAnswers> {
    let mut answers: SettleAnswers = Vec::with_capacity(settlements.len());
    let mut accepted = Vec::with_capacity(settlements.len());
    for (index, settlement) in settlements.into_iter().enumerate() {
        let job = settlement.job;
        answers.push(Err(Refusal::LeaseLost { job }));
        match check_settlement(&settlement, &store.limits) {
            Ok(()) => accepted.push((index, settlement)),
            // A stale worker hears that it is stale, and one that repeats itself what became of the
            // job, whatever else is wrong.
            Err(refusal) => match state_under(store, job, settlement.token).await? {
                Some(StateName::Running) => answers[index] = Err(refusal),
                Some(state) => answers[index] = Ok(Settled { state }),
                None => {}
            },
        }
    }
    if !accepted.is_empty() {
        send(store, &accepted, &mut answers).await?;
    }
    Ok(answers)
}

/// Sends settlements to the database, and notes the answer to each at its place.
async fn send(
    store: &PostgresStore,
    settlements: &[(usize, Settlement)],
    answers: &mut SettleAnswers,
) -> Answer<()> {
    let jobs = || settlements.iter().map(|(_, settlement)| settlement.job);
    let numbers = store.sequences.numbers(jobs());
    let (mut ends, mut places) =
        (SettlementColumns::default(), Vec::with_capacity(settlements.len()));
    for (alone, at) in by_number(settlements, &numbers) {
        let (index, settlement) = &settlements[at];
        places.push((*index, settlement.job));
        ends.push(settlement, numbers[at], alone);
    }
    let sql = "select * from windlass.settle($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, \
         $12, $13, $14, $15, $16)";
    let rows = store.call("settle", sql, &ends.parameters()).await?;
    store.sequences.forget(jobs());
    // What has no row of its own is completed.
    for (index, _) in places.iter().take(usize::try_from(ends.alone).unwrap_or(0)) {
        answers[*index] = Ok(Settled { state: StateName::Completed });
    }
    let mut rings = None;
    for row in rows {
        let Some(number) = row.get::<_, Option<i32>>("n") else {
            rings = row.get("rings");
            continue;
        };
        let place = usize::try_from(number - 1).ok().and_then(|at| places.get(at));
        let Some((index, job)) = place else { continue };
        answers[*index] = read_settled(&row, *job)?;
    }
    store.committed_and_rings(rings).await;
    Ok(())
}

fn read_settled(row: &Row, job: JobId) -> Answer<Result<Settled, Refusal>> {
    if let Some(detail) = row.get::<_, Option<Value>>("refusal") {
        return Ok(Err(refusal::read(&detail, Some(job)).unwrap_or(Refusal::LeaseLost { job })));
    }
    let state = row.get::<_, Option<i32>>("state").unwrap_or(4);
    Ok(Ok(Settled { state: understood(wire::state_name(state.into()))? }))
}

/// The state of the job, if it runs under this lease or its last attempt was settled under it.
async fn state_under(
    store: &PostgresStore,
    job: JobId,
    token: LeaseToken,
) -> Answer<Option<StateName>> {
    let (job, token) = (wire::uuid(job), token.0.cast_signed());
    let sql = "select (select p.state::bigint from windlass.job j \
         join windlass.job_state_now p using (seq) \
         where j.id = $1 and p.token = $2 and (p.state = 3 or p.settled))";
    let parameters: [Parameter<'_>; 2] = [(&job, Type::UUID), (&token, Type::INT8)];
    let state: Option<i64> = store.one("look at a lease", sql, &parameters).await?.get(0);
    state.map(|state| understood(wire::state_name(state))).transpose()
}

/// What of a settlement can be refused without asking the database.
fn check_settlement(settlement: &Settlement, limits: &Limits) -> Result<(), Refusal> {
    let next: &[Arc<NewJob>] = match settlement.verdict {
        Verdict::Complete => &settlement.next,
        Verdict::Retry(_)
        | Verdict::Snooze(_)
        | Verdict::Release
        | Verdict::Bury(_)
        | Verdict::Cancel(_) => &[],
    };
    match &settlement.turn {
        Some(turn) => check_turn(turn, next, limits),
        None => check_batch(next, limits),
    }
}

/// Whether nothing but the attempt itself ends with this.
fn ends_alone(settlement: &Settlement) -> bool {
    settlement.verdict == Verdict::Complete
        && settlement.next.is_empty()
        && settlement.turn.is_none()
        && settlement.report == Report::default()
}

/// The order in which settlements go to the database, and which of them end alone. It goes through
/// these fastest by number, and their order is of no consequence; the others stay in theirs, and
/// so does whatever else is said of a job that was named before.
fn by_number(
    settlements: &[(usize, Settlement)],
    numbers: &[Option<i64>],
) -> impl Iterator<Item = (bool, usize)> {
    let mut seen = HashSet::with_capacity(settlements.len());
    let key = |(at, (number, (_, end))): (usize, (&Option<i64>, &(usize, Settlement)))| {
        let is_first = seen.insert(end.job);
        let alone = number.filter(|_| is_first && ends_alone(end));
        (alone.is_none(), alone, at)
    };
    let mut order: Vec<_> = numbers.iter().zip(settlements).enumerate().map(key).collect();
    order.sort_unstable();
    order.into_iter().map(|(others, _, at)| (!others, at))
}

/// Settlements, column by column.
#[derive(Default)]
struct SettlementColumns {
    jobs: Vec<uuid::Uuid>,
    /// How many of them, from the first on, end alone and are in the order of their numbers.
    alone: i32,
    /// Those as ranges.
    ranges: Ranges,
    /// The numbers, tokens and verdicts of the others.
    numbers: Vec<Option<i64>>,
    tokens: Vec<i64>,
    verdicts: Vec<i16>,
    arguments: Sparse<i64>,
    /// All outputs, one after the other.
    outputs: Vec<u8>,
    /// Where each begins, counted from one.
    starts: Sparse<i32>,
    /// How long each is.
    sizes: Sparse<i32>,
    errors: Sparse<String>,
    extras: Sparse<Value>,
    object_states: Sparse<Vec<u8>>,
}

impl SettlementColumns {
    fn push(&mut self, settlement: &Settlement, number: Option<i64>, alone: bool) {
        let (verdict, argument) = wire::verdict(settlement.verdict);
        let token = settlement.token.0.cast_signed();
        if let Some(number) = number.filter(|_| alone) {
            self.alone += 1;
            self.ranges.push(self.alone, number, token);
        } else {
            self.numbers.push(number);
            self.tokens.push(token);
            self.verdicts.push(verdict);
        }
        self.jobs.push(wire::uuid(settlement.job));
        self.arguments.push(argument);
        let place = settlement.output.as_ref().map(|output| {
            self.outputs.extend_from_slice(output);
            (self.outputs.len() - output.len() + 1, output.len())
        });
        let number = |count| i32::try_from(count).unwrap_or(i32::MAX);
        self.starts.push(place.map(|(start, _)| number(start)));
        self.sizes.push(place.map(|(_, size)| number(size)));
        self.errors.push(settlement.error.as_ref().map(|error| wire::text(error.as_str())));
        let mut extra = serde_json::Map::new();
        if let Some(report) = wire::report(&settlement.report) {
            extra.insert("report".to_string(), report);
        }
        if !settlement.next.is_empty() {
            let next = settlement.next.iter().map(|job| spec::whole_job(job)).collect();
            extra.insert("next".to_string(), next);
        }
        let mut state = None;
        if let Some(turn) = &settlement.turn {
            extra.insert("turn".to_string(), wire::turn(turn));
            state = turn.state.as_ref().map(|state| state.to_vec());
        }
        self.extras.push((!extra.is_empty()).then_some(Value::Object(extra)));
        self.object_states.push(state);
    }

    fn parameters(&self) -> [Parameter<'_>; 16] {
        [
            (&self.alone, Type::INT4),
            (&self.jobs, Type::UUID_ARRAY),
            (&self.ranges.firsts, Type::INT4_ARRAY),
            (&self.ranges.lows, Type::INT8_ARRAY),
            (&self.ranges.highs, Type::INT8_ARRAY),
            (&self.ranges.tokens, Type::INT8_ARRAY),
            (&self.numbers, Type::INT8_ARRAY),
            (&self.tokens, Type::INT8_ARRAY),
            (&self.verdicts, Type::INT2_ARRAY),
            (&self.arguments.column, Type::INT8_ARRAY),
            (&self.outputs, Type::BYTEA),
            (&self.starts.column, Type::INT4_ARRAY),
            (&self.sizes.column, Type::INT4_ARRAY),
            (&self.errors.column, Type::TEXT_ARRAY),
            (&self.extras.column, Type::JSONB_ARRAY),
            (&self.object_states.column, Type::BYTEA_ARRAY),
        ]
    }
}

/// Jobs in the order of their numbers as ranges, in which both numbers and tokens count up by one:
/// where each begins, counted from one, its lowest number and its highest, and the token of its
/// first.
#[derive(Default)]
struct Ranges {
    firsts: Vec<i32>,
    lows: Vec<i64>,
    highs: Vec<i64>,
    tokens: Vec<i64>,
    /// What the next one has if it belongs to the last range.
    next: Option<(i64, i64)>,
}

impl Ranges {
    fn push(&mut self, place: i32, number: i64, token: i64) {
        if self.next != Some((number, token)) {
            self.firsts.push(place);
            self.lows.push(number);
            self.highs.push(number);
            self.tokens.push(token);
        } else if let Some(high) = self.highs.last_mut() {
            *high = number;
        }
        self.next = Some((number + 1, token + 1));
    }
}
