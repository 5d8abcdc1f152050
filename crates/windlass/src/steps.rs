//! Durable steps inside a handler: what is finished is remembered and not done again.
//!
//! A step's result is written, fenced by the lease, before [`Attempt::step`] returns. Whatever
//! becomes of the attempt then, the next one finds the result and does not do the work again.
//! Reports wait for the renew loop; a step does not, because the handler waits for it.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use windlass_core::job::Bytes;
use windlass_core::ledger::Renewal;
use windlass_core::limits;
use windlass_core::name::Name;
use windlass_core::record::{Report, Step};
use windlass_core::refusal::Refusal;
use windlass_core::time::Timestamp;
use windlass_core::worker::store_backoff;

use crate::attempt::{Attempt, StopReason};
use crate::failure::Failure;

/// The steps of one attempt so far.
#[derive(Debug, Default)]
pub(crate) struct Steps {
    book: Mutex<StepNames>,
}

#[derive(Debug, Default)]
struct StepNames {
    /// Names that are in use: the work of the step runs, or has finished.
    taken: BTreeSet<Name>,
    /// How many this attempt has finished itself.
    finished: usize,
}

impl Steps {
    fn book(&self) -> MutexGuard<'_, StepNames> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A name in use. Given back when the work did not finish, so that it may be tried once more.
struct Taken<'a> {
    steps: &'a Steps,
    name: Name,
    /// The work has finished: from then on nobody may do it again.
    finished: bool,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if !self.finished {
            self.steps.book().taken.remove(&self.name);
        }
    }
}

/// What is kept of a durable sleep.
#[derive(Serialize, Deserialize)]
struct Slept {
    until_us: i64,
}

impl Attempt {
    /// Does a part of the work once, however often the job is tried: `work` runs, its result is
    /// kept with the job, and later attempts get that result without running it.
    ///
    /// ```
    /// # use windlass::{Attempt, Failure};
    /// # async fn charge(order: u64) -> Result<String, std::io::Error> { Ok(order.to_string()) }
    /// async fn handle(order: u64, attempt: &Attempt) -> Result<(), Failure> {
    ///     let receipt = attempt.step("charge", || async { Ok(charge(order).await?) }).await?;
    ///     attempt.log(format!("charged: {receipt}"));
    ///     Ok(())
    /// }
    /// ```
    ///
    /// *Durable.* When it returns, the result is as durable as the store; retry, crash, snooze,
    /// release and the replay of a dead letter go on after it. An edited replay is a new job and
    /// starts without steps. A crash between the work and its writing makes the work run again:
    /// a call to the outside should carry an idempotency key that the job has, such as its id.
    ///
    /// *Fails* as `work` fails, with nothing kept, and may then be called again. Fails for good,
    /// before the work runs, if the name was used in this attempt already, is not a
    /// [`Name`], or the job has [`limits::STEPS`] steps; and after it, if the result is larger
    /// than [`limits::STEP_BYTES`] or all are larger than [`limits::STEPS_BYTES`]. A kept result
    /// that cannot be read as `T` is a failure for good too. If the lease is lost, nothing is
    /// kept and nothing this attempt returns counts: pass the failure on with `?`.
    ///
    /// While the store does not answer, the same result is written again and again until it does
    /// or the lease is lost. Writing it twice is harmless: the first counts.
    ///
    /// Steps do not contain steps: `work` is not given the attempt. Bring what it needs into it.
    pub async fn step<T, F, Fut>(&self, name: &str, work: F) -> Result<T, Failure>
    where
        T: Serialize + DeserializeOwned,
        F: FnOnce() -> Fut,
        Fut: Future<Output = Result<T, Failure>>,
    {
        let mut taken = self.take_name(name)?;
        if let Some(result) = self.finished_step(&taken.name) {
            taken.finished = true;
            return read(&taken.name, &result);
        }
        self.room_for_a_step(&taken.name)?;
        let value = work().await?;
        taken.finished = true;
        let result = written(&taken.name, &value)?;
        // What later attempts will read is what this one returns, and not kept if it is not read.
        let value = read(&taken.name, &result)?;
        self.keep_step(Step { name: taken.name.clone(), result }).await?;
        Ok(value)
    }

    /// Lets time pass without holding a slot: when to go on is kept with the job as a step of this
    /// name, and the job is snoozed until then by the failure this returns, which is to be passed
    /// on with `?`. Then the handler runs again from the top, finished steps are passed over, and
    /// this returns at once.
    ///
    /// *Durable* like [`Attempt::step`], whose names it shares: a crash, a retry or a longer way
    /// back does not begin the pause anew. It is measured in the time of the store, and is at most
    /// [`limits::DELAY_MAX`]. The start that ends here is not counted as an attempt. It fails as a
    /// step does.
    pub async fn sleep(&self, name: &str, pause: Duration) -> Result<(), Failure> {
        let mut taken = self.take_name(name)?;
        let until = match self.finished_step(&taken.name) {
            Some(result) => Timestamp::from_micros(read::<Slept>(&taken.name, &result)?.until_us),
            None => {
                self.room_for_a_step(&taken.name)?;
                let until = self.store_time() + pause.min(limits::DELAY_MAX);
                let slept = Slept { until_us: until.as_micros() };
                let result = written(&taken.name, &slept)?;
                taken.finished = true;
                self.keep_step(Step { name: taken.name.clone(), result }).await?;
                until
            }
        };
        taken.finished = true;
        let left = until.since(self.store_time());
        if left.is_zero() { Ok(()) } else { Err(Failure::snooze(left)) }
    }

    /// Takes a name for a step, which exists once in an attempt.
    fn take_name(&self, name: &str) -> Result<Taken<'_>, Failure> {
        let name = Name::new(name)
            .map_err(|why| Failure::permanent(format!("a step cannot be called that: {why}")))?;
        let steps = self.steps();
        if !steps.book().taken.insert(name.clone()) {
            return Err(Failure::permanent(format!(
                "step `{name}` was called twice in one attempt; give every step its own name"
            )));
        }
        Ok(Taken { steps, name, finished: false })
    }

    /// Refuses a step that could not be kept, before its work is done.
    fn room_for_a_step(&self, name: &Name) -> Result<(), Failure> {
        let steps = self.steps_before().len() + self.steps().book().finished;
        if steps < limits::STEPS {
            return Ok(());
        }
        Err(Failure::permanent(format!(
            "step `{name}` was not begun: the job has {steps} steps, which is as many as it may \
             have; continue with another job"
        )))
    }

    /// What an earlier attempt has kept under this name.
    fn finished_step(&self, name: &Name) -> Option<Bytes> {
        let found = self.steps_before().iter().find(|step| step.name == *name);
        found.map(|step| step.result.clone())
    }

    /// Waits until the lease is lost; for ever, if there is another reason to stop first.
    async fn lease_lost(&self) {
        if self.cancellation().cancelled().await != StopReason::LeaseLost {
            std::future::pending::<()>().await;
        }
    }

    /// Writes a step, and waits until it is durable.
    async fn keep_step(&self, step: Step) -> Result<(), Failure> {
        let name = step.name.clone();
        let report = Report { steps: vec![step], ..Report::default() };
        let (job, token, lease) = (self.id(), self.token(), self.lease());
        let renewal = Renewal { job, token, lease, report };
        let lost = || Failure::retry(Refusal::LeaseLost { job });
        let mut failures = 0;
        loop {
            let answer = tokio::select! {
                biased;
                () = self.lease_lost() => return Err(lost()),
                answer = self.host().renew(renewal.clone()) => answer,
            };
            match answer {
                Ok(Ok(renewed)) => {
                    if renewed.cancel_requested {
                        self.tell(StopReason::Cancelled);
                    }
                    self.steps().book().finished += 1;
                    return Ok(());
                }
                Ok(Err(Refusal::LeaseLost { .. })) => {
                    self.tell(StopReason::LeaseLost);
                    return Err(lost());
                }
                Ok(Err(refusal)) => {
                    let why = format!("step `{name}` was done but cannot be kept: {refusal}");
                    return Err(Failure::permanent(why));
                }
                Err(error) => {
                    failures += 1;
                    tracing::warn!(%job, step = %name, %error, failures, "will be tried again");
                    self.engine().clock().sleep(store_backoff(failures)).await;
                }
            }
        }
    }
}

fn written<T: Serialize>(name: &Name, value: &T) -> Result<Bytes, Failure> {
    let unfit = |why| Failure::permanent(format!("step `{name}` returned what is not JSON: {why}"));
    Ok(serde_json::to_vec(value).map_err(unfit)?.into())
}

fn read<T: DeserializeOwned>(name: &Name, result: &[u8]) -> Result<T, Failure> {
    serde_json::from_slice(result).map_err(|why| {
        let asked = std::any::type_name::<T>();
        Failure::permanent(format!(
            "step `{name}` is finished, but its result cannot be read as `{asked}`: {why}; \
             give a step that returns something else another name"
        ))
    })
}
