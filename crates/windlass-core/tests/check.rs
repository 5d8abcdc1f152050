//! The races that matter, in every order: a model checker walks all interleavings of a few jobs.
//!
//! - [`lease`]: claim, renew, settle, rescue and cancel, by workers that may be paused past their
//!   lease and come back. Each step of a job is the real state machine.
//! - [`graph`]: a dependent is accepted while the jobs it depends on end. Each commit is the real
//!   ledger.
//! - [`unique`]: two producers ask for the same unique key. Each commit is the real ledger.
//!
//! Every model has broken variants: a weaker guard, or a check made outside the commit. Each must
//! be found out, or the model would prove nothing.

#[path = "check/book.rs"]
mod book;
#[path = "check/graph.rs"]
mod graph;
#[path = "check/lease.rs"]
mod lease;
#[path = "check/unique.rs"]
mod unique;

use std::fmt::Debug;
use std::hash::Hash;

use stateright::{Checker, HasDiscoveries, Model};

/// Walks every reachable state: what must always hold does, and every rare path is walked.
fn holds<M>(model: M, what: &str)
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync,
    M::Action: Clone + Debug + PartialEq + Send + Sync,
{
    let failed = HasDiscoveries::AnyFailures;
    let checker = model.checker().threads(2).finish_when(failed).spawn_bfs().join();
    println!("{what}: {} unique states", checker.unique_state_count());
    checker.assert_properties();
}

/// Walks until the property that a broken variant is known to break is broken.
fn breaks<M>(model: M, what: &str, property: &'static str)
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync,
    M::Action: Clone + Debug + PartialEq + Send + Sync,
{
    let found = HasDiscoveries::AllOf([property].into());
    let checker = model.checker().finish_when(found).spawn_bfs().join();
    let path = checker.discovery(property);
    let steps = path.unwrap_or_else(|| panic!("{what} was not found out")).into_actions();
    let states = checker.unique_state_count();
    println!("{what}: {states} unique states until {steps:?}");
}
