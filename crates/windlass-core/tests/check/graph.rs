//! Dependencies: a job is accepted while the two it depends on end, in every order.
//!
//! It must be released once, when the second of them completes, or follow the one that dies, or be
//! refused because one is dead already. Each commit is a command to the real ledger. The broken
//! variants look before the commit, or release once more when an answer was lost.

use std::sync::Arc;

use stateright::{Model, Property};
use windlass_core::job::{
    DeadReason, Dependency, JobId, JobStatus, LeaseToken, NewJob, OnFailure, State, StateName,
};
use windlass_core::outcome::Verdict;
use windlass_core::record::{Accepted, Change};
use windlass_core::time::Timestamp;
use windlass_core::transition::Input;

use crate::book::{self, Book};

/// The two jobs that are depended on, and run; their lease tokens are the same numbers.
const FIRST: u8 = 1;
const SECOND: u8 = 2;
/// The one that depends on both.
const LAST: u8 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Variant {
    /// What is decided is decided in the commit: ours.
    InOneCommit,
    /// The producer counts what is unmet first and inserts the job later.
    AcceptLooksBefore,
    /// The worker lists the dependents first and completes the job later.
    EndLooksBefore,
    /// A settlement that is repeated releases the dependents again.
    ReleaseRepeats,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Commit {
    Accept,
    /// Insert the job with the count that was seen.
    AcceptAsSeen {
        unmet: u32,
    },
    Complete {
        job: u8,
    },
    Bury {
        job: u8,
    },
    /// Complete the job and release its dependents if there was one to be seen.
    CompleteAsSeen {
        job: u8,
        dependent: bool,
    },
    /// The answer was lost, so the worker says it again.
    CompleteAgain {
        job: u8,
    },
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct World {
    commits: Vec<Commit>,
    /// What the producer saw, once it has looked.
    unmet_seen: Option<u32>,
    /// Per worker, whether it saw a dependent, once it has looked.
    dependent_seen: [Option<bool>; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    LookForUnmet,
    LookForDependent { job: u8 },
    Commit(Commit),
}

struct Graph {
    variant: Variant,
}

fn last() -> NewJob {
    let on_failure = OnFailure::Cascade;
    let on = |number| Dependency { on: book::id(number), on_failure };
    NewJob { depends_on: vec![on(FIRST), on(SECOND)], ..book::job(LAST) }
}

impl World {
    /// The ledger that the commits make.
    fn book(&self, variant: Variant) -> Book {
        let mut book = Book::new();
        for number in [FIRST, SECOND] {
            book.enqueue(book::job(number)).expect("it asks for nothing");
        }
        book.start_all();
        for commit in &self.commits {
            carry_out(*commit, variant, &mut book);
        }
        book
    }

    fn has_accepted(&self) -> bool {
        let accept = |commit: &Commit| match commit {
            Commit::Accept | Commit::AcceptAsSeen { .. } => true,
            Commit::Complete { .. }
            | Commit::Bury { .. }
            | Commit::CompleteAsSeen { .. }
            | Commit::CompleteAgain { .. } => false,
        };
        self.commits.iter().any(accept)
    }

    fn count_ends_of(&self, number: u8) -> usize {
        let ends = self.commits.iter().filter(|commit| match commit {
            Commit::Complete { job }
            | Commit::Bury { job }
            | Commit::CompleteAsSeen { job, .. }
            | Commit::CompleteAgain { job } => *job == number,
            Commit::Accept | Commit::AcceptAsSeen { .. } => false,
        });
        ends.count()
    }
}

fn carry_out(commit: Commit, variant: Variant, book: &mut Book) {
    let release = |book: &mut Book| book.write_next(book::id(LAST), &Input::Unblock);
    let settle = |book: &mut Book, job: u8, verdict| {
        // A repeated settlement is refused, which is an answer.
        let _ = book.settle(book::id(job), LeaseToken(u64::from(job)), verdict);
    };
    match commit {
        Commit::Accept => {
            let _ = book.enqueue(last());
        }
        Commit::AcceptAsSeen { unmet } => insert(book, unmet),
        Commit::Complete { job } => settle(book, job, Verdict::Complete),
        Commit::Bury { job } => settle(book, job, Verdict::Bury(DeadReason::Permanent)),
        Commit::CompleteAsSeen { job, dependent } => {
            let (token, verdict) = (LeaseToken(u64::from(job)), Verdict::Complete);
            book.write_next(book::id(job), &Input::Settle { token, verdict });
            if dependent {
                release(book);
            }
        }
        Commit::CompleteAgain { job } => {
            settle(book, job, Verdict::Complete);
            if variant == Variant::ReleaseRepeats {
                release(book);
            }
        }
    }
}

fn insert(book: &mut Book, unmet: u32) {
    let at = Timestamp::default();
    let state = match unmet {
        0 => State::Ready { since: at },
        _ => State::Blocked { unmet, not_before: at },
    };
    let status = JobStatus::new(state);
    let met =
        last().depends_on.iter().map(|dependency| dependency.on).skip(unmet as usize).collect();
    let accepted = Accepted { job: Arc::new(last()), sequence: 3, at, status, met };
    book.write(Change::Insert(Box::new(accepted)));
}

fn state_of(book: &Book, number: u8) -> Option<StateName> {
    book.records.get(&book::id(number)).map(|record| record.status.state.name())
}

fn count_unmet(book: &Book) -> u32 {
    let unmet = |number: &u8| state_of(book, *number) != Some(StateName::Completed);
    [FIRST, SECOND].iter().filter(|number| unmet(number)).count() as u32
}

/// Whether the dependent is what it must be, given what became of the others.
fn is_right(book: &Book) -> bool {
    let Some(record) = book.records.get(&book::id(LAST)) else { return true };
    let died = [FIRST, SECOND].iter().any(|one| state_of(book, *one) == Some(StateName::Dead));
    match (&record.status.state, count_unmet(book)) {
        (State::Dead { .. }, _) => died,
        (State::Ready { .. }, 0) => !died,
        (State::Blocked { unmet, .. }, left) => !died && *unmet == left && left > 0,
        (
            State::Scheduled { .. }
            | State::Ready { .. }
            | State::Running(_)
            | State::Completed { .. }
            | State::Cancelled { .. },
            _,
        ) => false,
    }
}

/// How often the dependent went from blocked to ready.
fn count_releases(book: &Book) -> usize {
    let of_last = |job: JobId| job == book::id(LAST);
    let releases = book.changes.iter().filter(|change| match change {
        Change::Update(update) => {
            of_last(update.job) && update.status.state.name() == StateName::Ready
        }
        Change::Insert(_)
        | Change::Remove { .. }
        | Change::Queue { .. }
        | Change::Rate { .. }
        | Change::QueueKind { .. }
        | Change::Lane { .. }
        | Change::Object(_)
        | Change::ObjectGone { .. } => false,
    });
    releases.count()
}

impl Model for Graph {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World::default()]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        if !world.has_accepted() {
            actions.push(match (self.variant, world.unmet_seen) {
                (Variant::AcceptLooksBefore, None) => Action::LookForUnmet,
                (_, Some(unmet)) => Action::Commit(Commit::AcceptAsSeen { unmet }),
                (_, None) => Action::Commit(Commit::Accept),
            });
        }
        for job in [FIRST, SECOND] {
            let seen = world.dependent_seen[usize::from(job - 1)];
            match (world.count_ends_of(job), self.variant, seen) {
                (0, Variant::EndLooksBefore, None) => {
                    actions.push(Action::LookForDependent { job });
                }
                (0, _, Some(dependent)) => {
                    actions.push(Action::Commit(Commit::CompleteAsSeen { job, dependent }));
                }
                (0, _, None) => {
                    actions.push(Action::Commit(Commit::Complete { job }));
                    actions.push(Action::Commit(Commit::Bury { job }));
                }
                (1, _, _) => actions.push(Action::Commit(Commit::CompleteAgain { job })),
                _ => {}
            }
        }
    }

    fn next_state(&self, before: &World, action: Action) -> Option<World> {
        let mut world = before.clone();
        match action {
            Action::Commit(commit) => world.commits.push(commit),
            Action::LookForUnmet => {
                world.unmet_seen = Some(count_unmet(&before.book(self.variant)));
            }
            Action::LookForDependent { job } => {
                let there = state_of(&before.book(self.variant), LAST).is_some();
                world.dependent_seen[usize::from(job - 1)] = Some(there);
            }
        }
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let ours = self.variant == Variant::InOneCommit;
        let mut properties = vec![
            Property::always(
                "the dependent follows those it depends on",
                |model: &Graph, world: &World| is_right(&world.book(model.variant)),
            ),
            Property::always(
                "the dependent is released at most once",
                |model: &Graph, world: &World| count_releases(&world.book(model.variant)) <= 1,
            ),
            Property::always("the book is in order", |model: &Graph, world: &World| {
                world.book(model.variant).wrong().is_empty()
            }),
        ];
        properties.extend(rare_paths().into_iter().filter(|_| ours));
        properties
    }
}

fn rare_paths() -> Vec<Property<Graph>> {
    vec![
        Property::sometimes(
            "it is accepted before both, and released",
            |model: &Graph, world: &World| {
                let first = world.commits.first() == Some(&Commit::Accept);
                first && count_releases(&world.book(model.variant)) == 1
            },
        ),
        Property::sometimes(
            "it is accepted between the two, and released",
            |model: &Graph, world: &World| {
                let second = world.commits.get(1) == Some(&Commit::Accept);
                second && count_releases(&world.book(model.variant)) == 1
            },
        ),
        Property::sometimes(
            "it is accepted after both, and ready",
            |model: &Graph, world: &World| {
                let third = world.commits.get(2) == Some(&Commit::Accept);
                third && state_of(&world.book(model.variant), LAST) == Some(StateName::Ready)
            },
        ),
        Property::sometimes("it is refused", |model: &Graph, world: &World| {
            world.has_accepted() && state_of(&world.book(model.variant), LAST).is_none()
        }),
        Property::sometimes("it dies with one it depends on", |model: &Graph, world: &World| {
            state_of(&world.book(model.variant), LAST) == Some(StateName::Dead)
        }),
    ]
}

const FOLLOWS: &str = "the dependent follows those it depends on";

#[test]
fn a_dependent_is_released_once_whatever_races_its_acceptance() {
    crate::holds(Graph { variant: Variant::InOneCommit }, "dependencies in one commit");
}

#[test]
fn a_dependent_that_was_counted_outside_the_commit_waits_for_ever() {
    let variant = Variant::AcceptLooksBefore;
    crate::breaks(Graph { variant }, "dependencies counted before the commit", FOLLOWS);
}

#[test]
fn a_dependent_that_was_not_there_when_the_worker_looked_waits_for_ever() {
    let variant = Variant::EndLooksBefore;
    crate::breaks(Graph { variant }, "dependents listed before the commit", FOLLOWS);
}

#[test]
fn a_release_that_is_repeated_starts_a_job_too_early() {
    let variant = Variant::ReleaseRepeats;
    crate::breaks(Graph { variant }, "a release that is repeated", FOLLOWS);
}
