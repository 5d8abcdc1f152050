//! Victims that live at the same time: what each of them said, held against the others.
//!
//! Each says its facts on a pipe of its own. A fact carries when it was said, before whatever it
//! announces and after whatever it reports, so what all of them said, in that order, is one story
//! in which every rule for a single victim holds. (Nobody may set the wall clock meanwhile; the
//! scenario looks.) A victim that is killed was alive until the signal was sent, and dead when its
//! process was waited for; nothing is concluded from the time in between.
//!
//! These rules come to the others:
//! - L5 Two runs of a job never overlap, and no job of a victim that lives is given to another. A
//!   killed process forgets no claim that was answered, so every start has a number of its own, and
//!   the record has as many starts as were seen, and for each that was made again without having
//!   failed, a loss. Where leases are so short that a stopped victim outlives them, runs may
//!   overlap; that the record has a loss for each is what is left of the rule.
//! - L6 What was acknowledged before another job of its key was asked for starts before it. A key
//!   starts nothing while a job of it runs.
//!
//! What cannot be told:
//! - Whether a handler that had not said that it starts was started. So the store may count more
//!   starts than were seen, never fewer.
//! - Which of two calls that overlap was accepted first.
//! - What a store holds that others change while it is listed: so it is listed when nobody lives.
//! - Whether a token is above all that were given away before it, as two owners may have given them
//!   to victims that say so at the same time. That none comes twice, and that those of one job only
//!   grow, is told.
//! - How a job that was deleted was counted: its record is gone.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::{Ledger, Listed, VictimNumber};
use crate::facts::{Fact, Role, Stamp, Standing};
use crate::plan::{Behaviour, End, Id, Plan};
use crate::process::Said;

/// A victim that has ended, and everything it said.
pub(crate) struct VictimEnded {
    pub(crate) victim: VictimNumber,
    pub(crate) said: Said,
    /// It was alive then.
    pub(crate) alive: Stamp,
    /// It was dead then.
    pub(crate) dead: Stamp,
}

/// A handler that was seen to start.
#[derive(Clone, Copy, Debug)]
struct Run {
    id: Id,
    victim: VictimNumber,
    attempt: u32,
    token: u64,
    start: Stamp,
    /// It ran until then at least.
    until: Stamp,
}

/// When an enqueue was first asked for, and when it was first acknowledged.
#[derive(Clone, Copy, Debug)]
struct Enqueue {
    tried: Stamp,
    acknowledged: Option<Stamp>,
}

/// What happened when.
#[derive(Debug, Default)]
struct Story {
    /// When each victim was alive for the last time.
    alive: HashMap<VictimNumber, Stamp>,
    runs: Vec<Run>,
    /// Which of the runs is under which token, while nobody said that it is over.
    running: HashMap<u64, usize>,
    enqueues: HashMap<Id, Enqueue>,
}

impl Ledger {
    /// Takes over what victims said that lived at the same time, and that all of them have ended.
    /// `leases_last` says that no lease ended while its victim lived.
    pub(crate) fn take_over_together(&mut self, ended: &[VictimEnded], leases_last: bool) {
        self.every_start_is_counted = true;
        let mut lines: Vec<(Stamp, VictimNumber, Option<&Fact>)> = Vec::new();
        for one in ended {
            self.complain_of_nonsense(&one.said);
            lines.extend(one.said.facts.iter().map(|(at, fact)| (*at, one.victim, Some(fact))));
            lines.push((one.dead, one.victim, None));
        }
        // Stable, so what one victim said at the same moment stays as it was.
        lines.sort_by_key(|(at, ..)| *at);
        let alive = ended.iter().map(|one| (one.victim, one.alive)).collect();
        let mut story = Story { alive, ..Story::default() };
        for (at, victim, fact) in lines {
            match fact {
                Some(fact) => {
                    self.log.push(format!("{at} {victim} {fact}"));
                    self.hear_one(victim, fact);
                    story.note(at, victim, fact);
                }
                None => {
                    self.log.push(format!("{at} {victim} -- is dead"));
                    self.never_answered(victim);
                }
            }
        }
        self.tally.takeovers += ended.iter().map(|one| takeovers(&one.said)).sum::<u64>();
        story.go_on_until_death();
        self.wrong.extend(story.wrong(leases_last));
        self.end_session();
    }

    /// Holds the starts that were seen against those that the store has counted.
    pub(super) fn compare_starts(&mut self, listed: &Listed, plan: &Plan) {
        let Listed { id, standing, attempts, lost, .. } = *listed;
        let runs = self.starts_of(id);
        match plan.behaviour {
            // Going on later is not counted.
            Behaviour::Snooze(_) => return,
            Behaviour::Complete(_) => {
                if runs > lost + 1 {
                    let wrong = format!("L5: {id} ran {runs} times, and was lost {lost} times");
                    self.wrong.push(wrong);
                }
                if standing == Standing::Ended(End::Completed) && attempts != lost + 1 {
                    let wrong = format!("{id} has {attempts} attempts, and was lost {lost} times");
                    self.wrong.push(wrong);
                }
            }
            Behaviour::FailFirst(_)
            | Behaviour::FailAlways
            | Behaviour::Permanent
            | Behaviour::Abort => {}
        }
        if runs > attempts {
            self.wrong.push(format!("{id} ran {runs} times, and {attempts} starts are counted"));
        }
    }
}

/// How often it became the owner after it had joined another.
fn takeovers(said: &Said) -> u64 {
    let is_role = |fact: &&Fact| matches!(fact, Fact::Role(_));
    let roles = said.facts.iter().map(|(_, fact)| fact).filter(is_role);
    roles.skip(1).filter(|role| **role == Fact::Role(Role::Owner)).count() as u64
}

impl Story {
    fn note(&mut self, at: Stamp, victim: VictimNumber, fact: &Fact) {
        match fact {
            Fact::Try(ids) => {
                for id in ids {
                    let new = Enqueue { tried: at, acknowledged: None };
                    self.enqueues.entry(*id).or_insert(new);
                }
            }
            Fact::Ack(ids) => {
                for id in ids {
                    let enqueue = self.enqueues.get_mut(id);
                    enqueue.map(|enqueue| enqueue.acknowledged.get_or_insert(at));
                }
            }
            Fact::Run { id, attempt, token } => {
                self.running.insert(*token, self.runs.len());
                let (id, attempt, token) = (*id, *attempt, *token);
                self.runs.push(Run { id, victim, attempt, token, start: at, until: at });
            }
            Fact::Left { token, .. } => {
                if let Some(run) = self.running.remove(token) {
                    self.runs[run].until = at;
                }
            }
            Fact::Opening
            | Fact::Opened { .. }
            | Fact::Role(_)
            | Fact::Failed(_)
            | Fact::Same(..)
            | Fact::Refused(..)
            | Fact::Unknown(_)
            | Fact::Drop(_)
            | Fact::Gone(_)
            | Fact::End(..)
            | Fact::Have { .. }
            | Fact::Counted(_)
            | Fact::Listed
            | Fact::Drained
            | Fact::Wrong(_) => {}
        }
    }

    /// A handler that did not end ran for as long as its victim lived.
    fn go_on_until_death(&mut self) {
        for run in self.running.values() {
            let run = &mut self.runs[*run];
            run.until = self.alive.get(&run.victim).copied().unwrap_or(run.start).max(run.start);
        }
    }

    fn wrong(&self, leases_last: bool) -> Vec<String> {
        let mut by_job: BTreeMap<Id, Vec<Run>> = BTreeMap::new();
        let mut by_key: BTreeMap<u64, Vec<Run>> = BTreeMap::new();
        for run in &self.runs {
            by_job.entry(run.id).or_default().push(*run);
            if let Some(key) = Plan::of(run.id).key {
                by_key.entry(key).or_default().push(*run);
            }
        }
        let mut wrong = Vec::new();
        for (id, runs) in &mut by_job {
            runs.sort_by_key(|run| run.token);
            wrong.extend(self.wrong_with_job(*id, runs, leases_last));
        }
        for (key, runs) in &mut by_key {
            runs.sort_by_key(|run| run.start);
            if leases_last {
                wrong.extend(overlaps(&format!("L6: of key {key}"), runs));
            }
            wrong.extend(self.wrong_order(*key, runs));
        }
        wrong
    }

    /// Looks at the runs of one job, in the order in which they were given away.
    fn wrong_with_job(&self, id: Id, runs: &[Run], leases_last: bool) -> Vec<String> {
        let mut wrong = Vec::new();
        let behaviour = Plan::of(id).behaviour;
        for (first, second) in runs.iter().zip(runs.iter().skip(1)) {
            let (earlier, later) = (first.attempt, second.attempt);
            // Going on later is not counted.
            if later <= earlier && !matches!(behaviour, Behaviour::Snooze(_)) {
                wrong.push(format!("{id} started as attempt {earlier} and then as {later}"));
            }
            let alive = self.alive.get(&first.victim).copied().unwrap_or(0);
            if leases_last && matches!(behaviour, Behaviour::Complete(_)) && alive > second.start {
                let (from, to) = (first.victim, second.victim);
                wrong.push(format!("L5: {id} was given to {to}, and {from}, which ran it, lived"));
            }
        }
        if leases_last {
            wrong.extend(overlaps("L5:", runs));
        }
        wrong
    }

    /// Looks at the runs of one key, in the order in which they started.
    fn wrong_order(&self, key: u64, runs: &[Run]) -> Option<String> {
        // The job that was asked for last, among those that have started.
        let mut last: Option<(Stamp, Id)> = None;
        let mut started = HashSet::new();
        for run in runs.iter().filter(|run| started.insert(run.id)) {
            let Some(enqueue) = self.enqueues.get(&run.id) else { continue };
            if let (Some(at), Some((tried, by))) = (enqueue.acknowledged, last)
                && at < tried
            {
                let id = run.id;
                return Some(format!("L6: key {key} started {by} before {id}, which came first"));
            }
            last = last.max(Some((enqueue.tried, run.id)));
        }
        None
    }
}

/// Runs of which one starts before another is over, in the order in which they should run.
fn overlaps(what: &str, runs: &[Run]) -> Vec<String> {
    let pairs = runs.iter().zip(runs.iter().skip(1));
    let overlapping = pairs.filter(|(first, second)| second.start < first.until);
    let shown = |(first, second): (&Run, &Run)| {
        let (id, victim, token) = (first.id, first.victim, first.token);
        let (other, by, under) = (second.id, second.victim, second.token);
        format!(
            "{what} {id} ran in {victim} under {token} when {other} began in {by} under {under}"
        )
    };
    overlapping.map(shown).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    use super::*;
    use crate::plan::Mix;

    /// The first job with a plan like this.
    fn job(mix: Mix, from: u32, wanted: impl Fn(&Plan) -> bool) -> Id {
        let ids = (from..10_000).map(|number| Id { session: 1, producer: 0, mix, number });
        ids.into_iter().find(|id| wanted(&Plan::of(*id))).expect("there is one")
    }

    /// One that only completes.
    fn simple() -> Id {
        job(Mix::Plain, 0, |_| true)
    }

    fn run(id: Id, attempt: u32, token: u64) -> Fact {
        Fact::Run { id, attempt, token }
    }

    fn victim(victim: VictimNumber, alive: Stamp, facts: Vec<(Stamp, Fact)>) -> VictimEnded {
        let status = ExitStatus::from_raw(9);
        let said = Said { facts, nonsense: Vec::new(), errors: String::new(), status };
        VictimEnded { victim, said, alive, dead: alive + 1 }
    }

    /// What is wrong with a story, if leases are long.
    fn wrong(ended: &[VictimEnded]) -> Vec<String> {
        let mut ledger = Ledger::default();
        ledger.take_over_together(ended, true);
        ledger.wrong
    }

    #[test]
    fn a_job_of_a_victim_that_was_killed_may_run_again_in_another() {
        let id = simple();
        let asked = vec![(1, Fact::Try(vec![id])), (2, Fact::Ack(vec![id])), (3, run(id, 1, 1))];
        let next = vec![(12, run(id, 2, 2)), (13, Fact::Left { id, token: 2 })];
        let told = (15, Fact::End(id, End::Completed));
        let next = [next, vec![told.clone()]].concat();
        let all = [victim(1, 10, asked), victim(2, 20, next), victim(3, 20, vec![told])];
        assert_eq!(wrong(&all), [""; 0]);
    }

    #[test]
    fn a_job_of_a_victim_that_lives_may_not() {
        let id = simple();
        let asked = vec![(1, Fact::Try(vec![id])), (3, run(id, 1, 1))];
        let all = [victim(1, 30, asked), victim(2, 30, vec![(12, run(id, 2, 2))])];
        let wrong = wrong(&all);
        assert_eq!(wrong.len(), 2, "{wrong:?}");
        assert!(wrong[0].contains("lived") && wrong[1].starts_with("L5:"), "{wrong:?}");
    }

    #[test]
    fn a_start_that_was_not_counted_is_seen() {
        let id = simple();
        let asked = vec![(1, Fact::Try(vec![id])), (3, run(id, 1, 1))];
        let wrong = wrong(&[victim(1, 10, asked), victim(2, 30, vec![(12, run(id, 1, 2))])]);
        assert!(wrong[0].contains("as attempt 1 and then as 1"), "{wrong:?}");
    }

    #[test]
    fn an_end_that_two_victims_tell_differently_is_seen() {
        let id = simple();
        let asked = vec![(1, Fact::Try(vec![id])), (9, Fact::End(id, End::Completed))];
        let other = vec![(8, Fact::End(id, End::Cancelled))];
        let wrong = wrong(&[victim(1, 10, asked), victim(2, 30, other)]);
        assert!(wrong[0].starts_with("L4:"), "{wrong:?}");
    }

    #[test]
    fn what_another_stood_for_may_run_when_it_is_asked_for_again() {
        let (first, second) = (simple(), job(Mix::Plain, 1, |_| true));
        let replaced = [Fact::Try(vec![second]), Fact::Same(second, first)];
        let again = [Fact::Try(vec![second]), run(second, 1, 7)];
        let facts = [vec![Fact::Try(vec![first])], replaced.to_vec(), again.to_vec()].concat();
        let facts = facts.into_iter().zip(1..).map(|(fact, at)| (at, fact)).collect();
        assert_eq!(wrong(&[victim(1, 99, facts)]), [""; 0]);
    }

    /// Two jobs of one key, of two victims.
    fn of_one_key() -> (Id, Id) {
        let first = job(Mix::Keyed, 0, |_| true);
        let key = Plan::of(first).key;
        (first, job(Mix::Keyed, 1, |plan| plan.key == key))
    }

    #[test]
    fn a_key_that_starts_what_came_later_first_is_seen() {
        let (first, second) = of_one_key();
        let ran = |id, token, at| vec![(at, run(id, 1, token)), (at + 1, Fact::Left { id, token })];
        let asked = |id, at| vec![(at, Fact::Try(vec![id])), (at + 1, Fact::Ack(vec![id]))];
        let story = |second_at, first_starts, second_starts| {
            let one = [asked(first, 1), ran(second, 2, second_starts)].concat();
            let other = [asked(second, second_at), ran(first, 1, first_starts)].concat();
            wrong(&[victim(1, 99, one), victim(2, 99, other)])
        };
        assert_eq!(story(5, 20, 30), [""; 0]);
        let told = story(5, 30, 20);
        assert!(told.iter().any(|wrong| wrong.starts_with("L6:")), "{told:?}");
        assert_eq!(story(2, 30, 20), [""; 0], "nobody knows which of the two came first");
    }

    #[test]
    fn a_key_that_runs_two_jobs_at_once_is_seen() {
        let (first, second) = of_one_key();
        let one = vec![(1, Fact::Try(vec![first, second])), (10, run(first, 1, 1))];
        let other = vec![(11, run(second, 1, 2)), (12, Fact::Left { id: second, token: 2 })];
        let wrong = wrong(&[victim(1, 99, one), victim(2, 99, other)]);
        assert!(wrong[0].starts_with("L6:"), "{wrong:?}");
    }
}
