//! The harness's own account of what victims were told, and the rules it holds the store to.
//!
//! It lives in another process, on another filesystem, and knows nothing of the store's insides:
//! only what was said before and after each call, and what a later opening finds.
//!
//! - L1 What was acknowledged is there, once, until its deletion was asked for.
//! - L2 What was refused is not there and never runs.
//! - L3 What was not answered is there once or not at all, a batch wholly or not at all.
//! - L4 An outcome that was told is the recorded one, and the job never runs again.
//! - Tokens only grow; starts are bounded; counters agree with what is listed; the deleted stay
//!   gone.
//!
//! What victims that live at the same time are held to besides is in [`together`].

pub(crate) mod together;

use std::collections::{BTreeMap, HashMap, HashSet};

use windlass::StateName;

use crate::facts::{Fact, Stamp, Standing};
use crate::plan::{Behaviour, End, Id, Plan};
use crate::process::Said;
use crate::victim::recovery;

/// What the producer of a job was told last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    /// Nothing yet.
    Asked,
    Acknowledged,
    Refused,
    /// Another job stands for it.
    Replaced,
    /// Nothing, and nobody will: it is there or not.
    Unknown,
    /// Nothing, and it was seen not to be there.
    Absent,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Deletion {
    No,
    Asked,
    Done,
}

#[derive(Clone, Debug)]
struct Entry {
    answer: Answer,
    deletion: Deletion,
    end: Option<End>,
    /// Victims that were told the end; nobody, if it was only seen in a list.
    told: Vec<VictimNumber>,
    runs: u32,
    last_token: u64,
    /// Starts in the present session.
    runs_in_session: u32,
    /// Starts of which the store may know nothing, because a crash took the claim.
    uncounted: u32,
}

impl Default for Entry {
    fn default() -> Self {
        Self {
            answer: Answer::Asked,
            deletion: Deletion::No,
            end: None,
            told: Vec::new(),
            runs: 0,
            last_token: 0,
            runs_in_session: 0,
            uncounted: 0,
        }
    }
}

/// Which victim speaks: its session, where several live at the same time.
pub(crate) type VictimNumber = u32;

/// The victim where only one lives at a time.
const ALONE: VictimNumber = 0;

/// What all victims of a scenario did.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) acknowledged: u64,
    pub(crate) refused: u64,
    pub(crate) unknown: u64,
    pub(crate) runs: u64,
    pub(crate) duplicates: u64,
    pub(crate) deleted: u64,
    pub(crate) recoveries: u64,
    pub(crate) longest_opening_micros: u64,
    pub(crate) torn: u64,
    pub(crate) lost: u64,
    /// How often a victim that had joined became the owner.
    pub(crate) takeovers: u64,
}

impl Tally {
    pub(crate) fn add(&mut self, other: Tally) {
        self.acknowledged += other.acknowledged;
        self.refused += other.refused;
        self.unknown += other.unknown;
        self.runs += other.runs;
        self.duplicates += other.duplicates;
        self.deleted += other.deleted;
        self.recoveries += other.recoveries;
        self.longest_opening_micros = self.longest_opening_micros.max(other.longest_opening_micros);
        self.torn += other.torn;
        self.lost += other.lost;
        self.takeovers += other.takeovers;
    }
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} acks, {} refused, {} unknown, {} runs, {} duplicates, {} deleted, {} recoveries, \
             {} torn tails, longest opening {:.1} ms, lost {}",
            self.acknowledged,
            self.refused,
            self.unknown,
            self.runs,
            self.duplicates,
            self.deleted,
            self.recoveries,
            self.torn,
            self.longest_opening_micros as f64 / 1_000.0,
            self.lost
        )
    }
}

/// See the module documentation.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    jobs: HashMap<Id, Entry>,
    /// Calls of the present session that were not answered yet.
    asked: Vec<(VictimNumber, Vec<Id>)>,
    /// Calls of earlier sessions whose answer nobody heard, until a listing shows what became of
    /// them.
    unanswered: Vec<Vec<Id>>,
    /// The same, to be repeated by the next victim.
    again: Vec<Vec<Id>>,
    tokens: HashSet<u64>,
    /// The greatest token of all sessions before this one.
    token_floor: u64,
    greatest_token: u64,
    /// No crash took a claim, so the store knows of every start.
    every_start_is_counted: bool,
    listing: Vec<Listed>,
    counted: [u64; 7],
    pub(crate) tally: Tally,
    pub(crate) wrong: Vec<String>,
    /// Everything that was said, for whoever has to find out why.
    pub(crate) log: Vec<String>,
}

/// A job as the store lists it.
#[derive(Clone, Copy, Debug)]
struct Listed {
    id: Id,
    standing: Standing,
    attempts: u32,
    recoveries: u32,
    lost: u32,
}

impl Ledger {
    /// Takes over everything a victim said, and that it has ended, by itself or not.
    pub(crate) fn take_over(&mut self, said: &Said) {
        self.complain_of_nonsense(said);
        self.hear(&said.facts);
        self.end_session();
    }

    /// Takes over what was said until the power failed. What was said later happened in a world
    /// that is gone: it only tells what may be there.
    pub(crate) fn take_over_until(&mut self, said: &Said, mark: usize) {
        self.complain_of_nonsense(said);
        let (before, after) = said.facts.split_at(mark.min(said.facts.len()));
        self.hear(before);
        self.log.push("-- the power failed; what follows may not have happened".to_string());
        let greatest_token = self.greatest_token;
        for (_, fact) in after {
            self.log.push(fact.to_string());
            self.overhear(fact);
        }
        // Who had not even opened the store by then gave tokens away in the other world alone.
        if after.iter().any(|(_, fact)| matches!(fact, Fact::Opened { .. })) {
            self.greatest_token = greatest_token;
        }
        self.end_session();
    }

    fn complain_of_nonsense(&mut self, said: &Said) {
        self.wrong.extend(said.nonsense.iter().map(|line| format!("a victim said {line}")));
        if said.errors.contains("panicked") {
            self.wrong.push(format!("a victim panicked: {}", said.errors.trim()));
        }
        self.log.push(format!("-- a victim that ended with {}", said.status));
        self.log.extend(said.errors.lines().map(|line| format!("-- {line}")));
    }

    pub(crate) fn hear(&mut self, facts: &[(Stamp, Fact)]) {
        for (_, fact) in facts {
            self.log.push(fact.to_string());
            self.hear_one(ALONE, fact);
        }
    }

    fn hear_one(&mut self, victim: VictimNumber, fact: &Fact) {
        match fact {
            Fact::Opening | Fact::Role(_) | Fact::Left { .. } | Fact::Drained => {}
            Fact::Opened { recovered, torn, micros, .. } => {
                self.tally.recoveries += recovered;
                self.tally.torn += u64::from(*torn);
                let longest = self.tally.longest_opening_micros.max(*micros);
                self.tally.longest_opening_micros = longest;
            }
            Fact::Failed(why) => self.wrong.push(format!("a victim could not go on: {why}")),
            Fact::Try(ids) => self.ask(victim, ids),
            Fact::Ack(ids) => self.acknowledge(victim, ids),
            Fact::Same(id, holder) => {
                self.answered(victim, &[*id]);
                if !self.jobs.contains_key(holder) {
                    self.wrong.push(format!("{id} has a stranger for its double: {holder}"));
                }
                self.entry(*id).answer = Answer::Replaced;
            }
            Fact::Refused(_, ids) => self.refuse(victim, ids),
            Fact::Unknown(ids) => {
                self.tally.unknown += ids.len() as u64;
                self.answered(victim, ids);
                self.unanswered.push(ids.clone());
                self.again.push(ids.clone());
                self.no_answer(ids);
            }
            Fact::Drop(ids) => {
                ids.iter().for_each(|id| self.entry(*id).deletion = Deletion::Asked);
            }
            Fact::Gone(ids) => {
                self.tally.deleted += ids.len() as u64;
                ids.iter().for_each(|id| self.entry(*id).deletion = Deletion::Done);
            }
            Fact::Run { id, token, .. } => self.run(*id, *token),
            Fact::End(id, end) => self.end(victim, *id, *end),
            Fact::Have { id, standing, attempts, recoveries, lost } => self.listing.push(Listed {
                id: *id,
                standing: *standing,
                attempts: *attempts,
                recoveries: *recoveries,
                lost: *lost,
            }),
            Fact::Counted(counted) => self.counted = *counted,
            Fact::Listed => self.compare(),
            Fact::Wrong(what) => self.wrong.push(what.clone()),
        }
    }

    /// Takes note of what may have happened.
    fn overhear(&mut self, fact: &Fact) {
        match fact {
            Fact::Try(ids) => self.ask(ALONE, ids),
            Fact::Drop(ids) => {
                ids.iter().for_each(|id| self.entry(*id).deletion = Deletion::Asked);
            }
            Fact::Run { id, token, .. } => {
                self.greatest_token = self.greatest_token.max(*token);
                let entry = self.entry(*id);
                entry.runs += 1;
                entry.runs_in_session += 1;
            }
            Fact::Wrong(what) => self.wrong.push(what.clone()),
            Fact::Opening
            | Fact::Opened { .. }
            | Fact::Role(_)
            | Fact::Left { .. }
            | Fact::Failed(_)
            | Fact::Ack(_)
            | Fact::Same(..)
            | Fact::Refused(..)
            | Fact::Unknown(_)
            | Fact::Gone(_)
            | Fact::End(..)
            | Fact::Have { .. }
            | Fact::Counted(_)
            | Fact::Listed
            | Fact::Drained => {}
        }
    }

    fn entry(&mut self, id: Id) -> &mut Entry {
        self.jobs.entry(id).or_default()
    }

    fn ask(&mut self, victim: VictimNumber, ids: &[Id]) {
        self.asked.push((victim, ids.to_vec()));
        for id in ids {
            let entry = self.entry(*id);
            // What was not there may be there now: also because whoever held its key has ended.
            if matches!(entry.answer, Answer::Absent | Answer::Replaced) {
                entry.answer = Answer::Unknown;
            }
        }
    }

    fn answered(&mut self, victim: VictimNumber, ids: &[Id]) {
        let is_it = |(who, asked): &(VictimNumber, Vec<Id>)| *who == victim && asked == ids;
        if let Some(at) = self.asked.iter().position(is_it) {
            self.asked.swap_remove(at);
        } else {
            self.wrong.push(format!("an answer to a question nobody asked: {ids:?}"));
        }
    }

    fn acknowledge(&mut self, victim: VictimNumber, ids: &[Id]) {
        self.answered(victim, ids);
        for id in ids {
            let entry = self.entry(*id);
            let before = std::mem::replace(&mut entry.answer, Answer::Acknowledged);
            self.tally.acknowledged += u64::from(before != Answer::Acknowledged);
        }
    }

    fn refuse(&mut self, victim: VictimNumber, ids: &[Id]) {
        self.answered(victim, ids);
        self.tally.refused += ids.len() as u64;
        for id in ids {
            let entry = self.entry(*id);
            // If it was asked for before, this answer is about the repetition alone.
            if entry.answer != Answer::Asked {
                continue;
            }
            entry.answer = Answer::Refused;
            if entry.runs > 0 {
                self.wrong.push(format!("L2: {id} was refused, and had run"));
            }
        }
    }

    fn no_answer(&mut self, ids: &[Id]) {
        for id in ids {
            let entry = self.entry(*id);
            if entry.answer == Answer::Asked {
                entry.answer = Answer::Unknown;
            }
        }
    }

    fn run(&mut self, id: Id, token: u64) {
        self.tally.runs += 1;
        if !self.tokens.insert(token) {
            self.wrong.push(format!("token {token} of {id} was given away before"));
        }
        if token <= self.token_floor {
            let floor = self.token_floor;
            self.wrong.push(format!("token {token} of {id} is not above {floor} of before"));
        }
        self.greatest_token = self.greatest_token.max(token);
        if !self.jobs.contains_key(&id) {
            self.wrong.push(format!("{id} runs, and nobody enqueued it"));
        }
        let once = matches!(Plan::of(id).behaviour, Behaviour::Complete(_));
        let entry = self.entry(id);
        let Entry { answer, deletion, end, last_token, .. } = entry.clone();
        entry.runs += 1;
        entry.runs_in_session += 1;
        entry.last_token = token;
        let again = once && entry.runs > 1;
        self.tally.duplicates += u64::from(again);
        if token <= last_token {
            self.wrong.push(format!("{id} runs under token {token} after {last_token}"));
        }
        if matches!(answer, Answer::Refused | Answer::Replaced | Answer::Absent) {
            self.wrong.push(format!("L2: {id} runs, and its enqueue was {answer:?}"));
        }
        if let Some(end) = end {
            self.wrong.push(format!("L4: {id} runs again after it was told as {end}"));
        }
        if deletion == Deletion::Done {
            self.wrong.push(format!("{id} runs after it was deleted"));
        }
    }

    fn end(&mut self, victim: VictimNumber, id: Id, end: End) {
        let entry = self.entry(id);
        let told = entry.told.contains(&victim);
        if !told {
            entry.told.push(victim);
        }
        let before = entry.end.replace(end);
        if let Some(before) = before.filter(|before| told || *before != end) {
            self.wrong.push(format!("L4: {id} was told as {before} and then as {end}"));
        }
    }

    /// The victim is gone: whatever was not answered never will be.
    fn end_session(&mut self) {
        self.never_answered(ALONE);
        self.token_floor = self.greatest_token;
        // A list that was cut off says nothing.
        self.listing.clear();
        for entry in self.jobs.values_mut() {
            // The last start, and one before it whose end was not yet written.
            if entry.end.is_none() {
                entry.uncounted += entry.runs_in_session.min(2);
            }
            entry.runs_in_session = 0;
        }
    }

    /// What this victim asked and was not answered never will be.
    fn never_answered(&mut self, victim: VictimNumber) {
        let asked = self.asked.extract_if(.., |(who, _)| *who == victim);
        for ids in asked.map(|(_, ids)| ids).collect::<Vec<_>>() {
            self.tally.unknown += ids.len() as u64;
            self.no_answer(&ids);
            self.again.push(ids.clone());
            self.unanswered.push(ids);
        }
    }

    /// The next victim is to repeat these calls.
    pub(crate) fn repeat(&mut self, calls: Vec<Vec<Id>>) {
        self.again.extend(calls);
    }

    /// Calls whose answer nobody heard, to be repeated. None of a job that was seen to have gone on
    /// since: it may have been deleted, and would start over.
    pub(crate) fn take_again(&mut self) -> Vec<Vec<Id>> {
        let mut again = std::mem::take(&mut self.again);
        let untouched = |id: &Id| {
            let entry = self.jobs.get(id);
            entry.is_none_or(|it| it.deletion == Deletion::No && it.end.is_none())
        };
        again.retain(|ids| ids.iter().all(untouched));
        again
    }

    /// Compares what the store lists with the account.
    fn compare(&mut self) {
        let mut found: BTreeMap<Id, Listed> = BTreeMap::new();
        for listed in std::mem::take(&mut self.listing) {
            if found.insert(listed.id, listed).is_some() {
                self.wrong.push(format!("L1: {} is there twice", listed.id));
            }
        }
        self.compare_counts(&found);
        for listed in found.values() {
            self.compare_found(listed);
        }
        for ids in std::mem::take(&mut self.unanswered) {
            let there = ids.iter().filter(|id| found.contains_key(id)).count();
            let deleted = ids.iter().any(|id| self.jobs[id].deletion != Deletion::No);
            if there != 0 && there != ids.len() && !deleted {
                let (first, all) = (ids[0], ids.len());
                self.wrong.push(format!("L3: {there} of a batch of {all} are there: {first}…"));
            }
        }
        let mut lost = Vec::new();
        for (id, entry) in &mut self.jobs {
            match (entry.answer, found.contains_key(id)) {
                (Answer::Acknowledged, false) if entry.deletion == Deletion::No => {
                    lost.push(format!("L1: {id} was acknowledged and is lost"));
                }
                (Answer::Unknown, true) => entry.answer = Answer::Acknowledged,
                (Answer::Unknown, false) => entry.answer = Answer::Absent,
                _ => {}
            }
        }
        self.tally.lost += lost.len() as u64;
        lost.sort();
        self.wrong.extend(lost);
    }

    fn compare_counts(&mut self, found: &BTreeMap<Id, Listed>) {
        let waits = |state: StateName| match state {
            // Time passes between the list and the count.
            StateName::Scheduled => StateName::Ready,
            other => other,
        };
        let (mut listed, mut counted) = ([0; 7], [0; 7]);
        for one in found.values() {
            let state = match one.standing {
                Standing::Open(state) => waits(state),
                Standing::Ended(End::Completed) => StateName::Completed,
                Standing::Ended(End::Dead(_)) => StateName::Dead,
                Standing::Ended(End::Cancelled) => StateName::Cancelled,
            };
            listed[state as usize] += 1;
        }
        for state in StateName::ALL {
            counted[waits(state) as usize] += self.counted[state as usize];
        }
        if listed != counted {
            self.wrong.push(format!("counters say {counted:?}, the list {listed:?}"));
        }
    }

    fn compare_found(&mut self, listed: &Listed) {
        let Listed { id, standing, attempts, recoveries, .. } = *listed;
        let plan = Plan::of(id);
        let Some(entry) = self.jobs.get_mut(&id) else {
            self.wrong.push(format!("{id} is there, and nobody enqueued it"));
            return;
        };
        if matches!(entry.answer, Answer::Refused | Answer::Replaced | Answer::Absent) {
            let answer = entry.answer;
            self.wrong.push(format!("L2: {id} is there, and its enqueue was {answer:?}"));
        }
        if entry.deletion == Deletion::Done {
            self.wrong.push(format!("{id} came back after it was deleted"));
        }
        match (standing, entry.end) {
            (standing, Some(end)) if standing != Standing::Ended(end) => {
                self.wrong.push(format!("L4: {id} was told as {end} and is {standing}"));
            }
            (Standing::Ended(end), None) => entry.end = Some(end),
            _ => {}
        }
        let crashed = recoveries >= recovery().max_recoveries || attempts >= plan.max_attempts;
        if let Standing::Ended(end) = standing
            && !plan.may_end(end, crashed)
        {
            self.wrong.push(format!("{id} ended as {end}, against its plan {plan:?}"));
        }
        if attempts > plan.max_attempts || recoveries > recovery().max_recoveries {
            self.wrong.push(format!("{id} has {attempts} attempts, {recoveries} recoveries"));
        }
        let allowed = plan.max_attempts + entry.uncounted;
        if entry.runs > allowed && !matches!(plan.behaviour, Behaviour::Snooze(_)) {
            let runs = entry.runs;
            self.wrong.push(format!("{id} ran {runs} times, {allowed} are allowed"));
        }
        if self.every_start_is_counted {
            self.compare_starts(listed, &plan);
        }
    }

    /// Complains of everything that has not ended: for when nothing was in its way any more.
    pub(crate) fn all_ended(&mut self) {
        let open = |entry: &Entry| {
            entry.answer == Answer::Acknowledged
                && entry.deletion == Deletion::No
                && entry.end.is_none()
        };
        let open: Vec<Id> =
            self.jobs.iter().filter(|(_, entry)| open(entry)).map(|(id, _)| *id).collect();
        self.wrong.extend(open.iter().map(|id| format!("L1: {id} never came to an end")));
    }

    /// How often a job was seen to start.
    pub(crate) fn starts_of(&self, id: Id) -> u32 {
        self.jobs.get(&id).map_or(0, |entry| entry.runs)
    }

    /// How a job ended, as far as is known.
    pub(crate) fn end_of(&self, id: Id) -> Option<End> {
        self.jobs.get(&id).and_then(|entry| entry.end)
    }

    /// All jobs that were acknowledged.
    pub(crate) fn acknowledged(&self) -> impl Iterator<Item = Id> + '_ {
        let all = self.jobs.iter();
        all.filter(|(_, entry)| entry.answer == Answer::Acknowledged).map(|(id, _)| *id)
    }
}
