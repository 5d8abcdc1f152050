//! Approval: so many people say yes before a deadline, or it expires; then code of yours runs,
//! once.

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use windlass::primitives::{Primitive, RunContext, RunOutcome, Turn};
use windlass::{Engine, Error, Failure};

/// What was decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Decision {
    /// Enough people said yes.
    Approved,
    /// The deadline came first.
    Expired,
}

/// Where an approval stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Votes {
    /// Who has said yes.
    pub yes: BTreeSet<String>,
    /// What was decided, if it was.
    pub decision: Option<Decision>,
    /// The code that follows from the decision has run.
    pub carried_out: bool,
}

type Code = dyn Fn(String, Decision) -> Pin<Box<dyn Future<Output = Result<(), Failure>> + Send>>
    + Send
    + Sync;

/// A kind of approval: how many, by when, and what follows. Cloning is cheap.
#[derive(Clone)]
pub struct Approval {
    name: String,
    needed: usize,
    deadline: Duration,
    code: Arc<Code>,
}

impl Approval {
    /// `needed` different people must say yes within `deadline` of the first; then `code` runs with
    /// the key and the decision.
    pub fn new<F, Fut>(name: &str, needed: usize, deadline: Duration, code: F) -> Self
    where
        F: Fn(String, Decision) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), Failure>> + Send + 'static,
    {
        let code = move |key, decision| -> Pin<Box<dyn Future<Output = _> + Send>> {
            Box::pin(code(key, decision))
        };
        Self { name: name.to_string(), needed, deadline, code: Arc::new(code) }
    }

    fn decide(votes: &mut Votes, decision: Decision, turn: &mut Turn<Self>) {
        votes.decision = Some(decision);
        turn.cancel_alarm();
        turn.run(decision);
        turn.tell("decided", decision);
    }
}

impl Primitive for Approval {
    const KIND: &'static str = "approval";
    type State = Votes;
    /// Who says yes.
    type Command = String;
    type Reply = Votes;
    type Run = Decision;
    type Output = ();

    fn name(&self) -> &str {
        &self.name
    }

    fn check(&self) -> Result<(), Error> {
        let allowed = "someone must say yes";
        let got = "0".to_string();
        let invalid = Error::InvalidSetting { setting: "needed", got, allowed };
        if self.needed == 0 { Err(invalid) } else { Ok(()) }
    }

    fn on_command(
        &self,
        votes: &mut Votes,
        who: &String,
        turn: &mut Turn<Self>,
    ) -> Result<Votes, Error> {
        if who.is_empty() {
            let (what, issues) = ("a vote".to_string(), "nobody has cast it".to_string());
            return Err(Error::Validation { what, issues });
        }
        if votes.decision.is_none() {
            if votes.yes.is_empty() {
                turn.alarm_in(self.deadline);
            }
            votes.yes.insert(who.clone());
            if votes.yes.len() >= self.needed {
                Self::decide(votes, Decision::Approved, turn);
            }
        }
        Ok(votes.clone())
    }

    fn on_alarm(&self, votes: &mut Votes, turn: &mut Turn<Self>) {
        if votes.decision.is_none() {
            Self::decide(votes, Decision::Expired, turn);
        }
    }

    async fn run(&self, decision: Decision, context: RunContext<Self>) -> Result<(), Failure> {
        (self.code)(context.key().to_string(), decision).await
    }

    fn on_outcome(
        &self,
        votes: &mut Votes,
        _: Decision,
        outcome: RunOutcome<()>,
        turn: &mut Turn<Self>,
    ) {
        match outcome {
            RunOutcome::Completed(()) => votes.carried_out = true,
            RunOutcome::Failed { error, .. } => turn.fail(error),
            RunOutcome::Cancelled => turn.fail("it was called off"),
        }
    }
}

/// Says yes to the approval with this key. Saying it twice counts once.
pub async fn approve(
    engine: &Engine,
    approval: &Approval,
    key: &str,
    who: &str,
) -> Result<Votes, Error> {
    engine.objects(approval).command(key, &who.to_string()).await
}
