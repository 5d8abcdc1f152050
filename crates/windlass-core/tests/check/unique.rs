//! Unique keys: two producers ask for the same key, a worker finishes jobs, in every order.
//!
//! At most one open job holds the key, and a call that is repeated because its answer was lost
//! adds nothing. Each commit is a command to the real ledger. The broken variant looks for the
//! holder first and inserts the job later.

use std::collections::BTreeSet;
use std::sync::Arc;

use stateright::{Model, Property};
use windlass_core::job::{JobId, JobStatus, NewJob, State, StateName, Unique, UniqueScope};
use windlass_core::ledger::Acceptance;
use windlass_core::outcome::Verdict;
use windlass_core::record::{Accepted, Change};
use windlass_core::time::Timestamp;

use crate::book::{self, Book};

/// Each producer asks for one job of this number.
const PRODUCERS: [u8; 2] = [1, 2];
/// A producer that gets no answer asks once more.
const CALLS: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Commit {
    Accept(u8),
    /// Insert the job because nobody was seen to hold the key.
    Insert(u8),
    StartAll,
    Complete(u8),
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct World {
    commits: Vec<Commit>,
    /// Producers that have looked and seen the key free.
    seen_free: BTreeSet<u8>,
    /// Producers that have looked and seen the key taken.
    seen_taken: BTreeSet<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    OfflineStore(u8),
    Commit(Commit),
}

struct Keys {
    looks_before: bool,
}

fn job(number: u8) -> NewJob {
    let unique = Unique { key: "order-7".into(), scope: UniqueScope::Open, window: None };
    NewJob { unique: Some(unique), ..book::job(number) }
}

/// The ledger that the commits make, and every answer that was given.
fn write(commits: &[Commit]) -> (Book, Vec<(JobId, Acceptance)>) {
    let mut book = Book::new();
    let mut answers = Vec::new();
    for commit in commits {
        match commit {
            Commit::Accept(number) => {
                let enqueued = book.enqueue(job(*number)).expect("it breaks no rule");
                answers.push((enqueued.id, enqueued.acceptance));
            }
            Commit::Insert(number) => {
                insert(&mut book, *number);
                answers.push((book::id(*number), Acceptance::Accepted));
            }
            Commit::StartAll => book.start_all(),
            Commit::Complete(number) => {
                let record = &book.records[&book::id(*number)];
                let token = book::token_of(record).expect("only running jobs are completed");
                let settled = book.settle(book::id(*number), token, Verdict::Complete);
                settled.expect("the token is the right one");
            }
        }
    }
    (book, answers)
}

fn insert(book: &mut Book, number: u8) {
    let at = Timestamp::default();
    let state = State::Ready { since: at };
    let status = JobStatus::new(state);
    let sequence = book.records.len() as u64 + 1;
    let accepted = Accepted { job: Arc::new(job(number)), sequence, at, status, met: Vec::new() };
    book.write(Change::Insert(Box::new(accepted)));
}

fn count_in(book: &Book, wanted: impl Fn(StateName) -> bool) -> usize {
    book.records.values().filter(|record| wanted(record.status.state.name())).count()
}

fn count_open(book: &Book) -> usize {
    count_in(book, |state| !state.is_terminal())
}

impl World {
    fn count_calls(&self, number: u8) -> usize {
        let calls = self.commits.iter().filter(|commit| match commit {
            Commit::Accept(of) | Commit::Insert(of) => *of == number,
            Commit::StartAll | Commit::Complete(_) => false,
        });
        calls.count()
    }
}

impl Model for Keys {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World::default()]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        let (book, _) = write(&world.commits);
        for number in PRODUCERS {
            if self.looks_before {
                let has_called = world.count_calls(number) > 0;
                if world.seen_free.contains(&number) && !has_called {
                    actions.push(Action::Commit(Commit::Insert(number)));
                } else if !world.seen_taken.contains(&number) && !has_called {
                    actions.push(Action::OfflineStore(number));
                }
            } else if world.count_calls(number) < CALLS {
                actions.push(Action::Commit(Commit::Accept(number)));
            }
        }
        if count_in(&book, |state| state == StateName::Ready) > 0 {
            actions.push(Action::Commit(Commit::StartAll));
        }
        for number in PRODUCERS {
            if book.records.get(&book::id(number)).and_then(book::token_of).is_some() {
                actions.push(Action::Commit(Commit::Complete(number)));
            }
        }
    }

    fn next_state(&self, before: &World, action: Action) -> Option<World> {
        let mut world = before.clone();
        match action {
            Action::Commit(commit) => world.commits.push(commit),
            Action::OfflineStore(number) => {
                let free = count_open(&write(&before.commits).0) == 0;
                let seen = if free { &mut world.seen_free } else { &mut world.seen_taken };
                seen.insert(number);
            }
        }
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always("at most one open job holds the key", |_, world: &World| {
                count_open(&write(&world.commits).0) <= 1
            }),
            Property::always("every answer names a job that is there", |_, world: &World| {
                let (book, answers) = write(&world.commits);
                answers.iter().all(|(id, _)| book.records.contains_key(id))
            }),
            Property::always("the book is in order", |_, world: &World| {
                write(&world.commits).0.wrong().is_empty()
            }),
        ];
        if !self.looks_before {
            properties.extend(rare_paths());
        }
        properties
    }
}

fn rare_paths() -> Vec<Property<Keys>> {
    vec![
        Property::sometimes("a producer meets the holder of the key", |_, world: &World| {
            let (_, answers) = write(&world.commits);
            let met = Acceptance::Deduplicated { payload_differs: false };
            answers.iter().any(|(_, acceptance)| *acceptance == met)
        }),
        Property::sometimes("a repeated call adds nothing", |_, world: &World| {
            let (_, answers) = write(&world.commits);
            answers.iter().any(|(_, acceptance)| *acceptance == Acceptance::AlreadyAccepted)
        }),
        Property::sometimes(
            "the key is taken again after its job completed",
            |_, world: &World| {
                let (book, _) = write(&world.commits);
                count_open(&book) == 1 && book.records.len() == 2
            },
        ),
    ]
}

#[test]
fn a_unique_key_has_one_open_job_whatever_races() {
    crate::holds(Keys { looks_before: false }, "unique keys checked in the commit");
}

#[test]
fn a_unique_key_that_is_checked_before_the_commit_gets_two_jobs() {
    let broken = "at most one open job holds the key";
    crate::breaks(Keys { looks_before: true }, "unique keys checked before the commit", broken);
}
