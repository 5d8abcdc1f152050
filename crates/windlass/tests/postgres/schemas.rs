//! Schemas with a bug in them or none, emptied and used again, and the suite on them.
//!
//! To make a schema takes longer than most cases of the suite. A bug is another text in the place
//! of one in the script that makes it, so to plant one is to replace the functions that differ.

use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::task::{JoinHandle, JoinSet};
use tokio_postgres::Client;
use windlass::Limits;
use windlass::conformance::{self, Harness};
use windlass::store::Store;
use windlass::store::postgres::{PostgresAddress, PostgresStore, Schema, migration_sql};
use windlass::wake::LocalWake;

use crate::common::{Ground, clock_sql};

/// A mistake somebody could make.
#[derive(Debug)]
pub(crate) struct Bug {
    /// What is wrong, as a sentence.
    pub(crate) what: &'static str,
    /// What stands in the script once, wherever its lines break, and what stands there instead.
    pub(crate) edits: &'static [(&'static str, &'static str)],
    /// The cases that must fail.
    pub(crate) caught_by: &'static [&'static str],
}

impl Bug {
    /// The script with the bug in it, or what is to be done if it can no longer be planted.
    pub(crate) fn script(&self, schema: &Schema) -> Result<String, String> {
        let there = |sql: &str| sql.replace("windlass.", &format!("{schema}."));
        let mut script = migration_sql(schema, 0);
        for (find, replacement) in self.edits {
            let find = there(find);
            script = match places(&script, &find)[..] {
                [(start, end)] => {
                    format!("{}{}{}", &script[..start], there(replacement), &script[end..])
                }
                [] => {
                    return Err(format!("{}: no longer there; plant it again: {find}", self.what));
                }
                _ => return Err(format!("{}: there more than once: {find}", self.what)),
            };
        }
        Ok(script)
    }

    /// Statements that plant the bug in a schema without one, and such that take it out again.
    fn patch(&self, schema: &Schema) -> (String, String) {
        let right = migration_sql(schema, 0);
        let wrong = self.script(schema).expect("all were planted before");
        let (right, wrong) = (definitions(&right), definitions(&wrong));
        assert_eq!(right.len(), wrong.len(), "{}: it is not one of functions", self.what);
        let differ = right.iter().zip(&wrong).filter(|(right, wrong)| right != wrong);
        let (right, wrong): (Vec<&str>, Vec<&str>) = differ.unzip();
        assert!(!right.is_empty(), "{}: it is not one of functions", self.what);
        // A function that is replaced forgets the path that was set for it.
        let path = paths(schema);
        let replace = |definitions: Vec<&str>| {
            let replaced = definitions.iter().map(|each| format!("create or replace {each}\n"));
            replaced.collect::<String>() + &path
        };
        (replace(wrong), replace(right))
    }
}

/// Where a text stands in a script, however its lines are broken and indented.
fn places(script: &str, text: &str) -> Vec<(usize, usize)> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let Some(first) = words.first() else { return Vec::new() };
    let end_of_rest = |(start, _): (usize, &str)| {
        let mut end = start + first.len();
        for word in &words[1..] {
            let rest = &script[end..];
            let next = rest.trim_start();
            if next.len() == rest.len() || !next.starts_with(word) {
                return None;
            }
            end = script.len() - next.len() + word.len();
        }
        Some((start, end))
    };
    script.match_indices(first).filter_map(end_of_rest).collect()
}

/// The functions and views of a script, each from its first word after `create` to its end.
fn definitions(script: &str) -> Vec<&str> {
    let parts = script.split("\ncreate ").skip(1);
    let end = |part: &str| match part.split_once(' ') {
        Some(("function", _)) => part.find("$$;\n").map(|end| end + 3),
        Some(("view", _)) => part.find(";\n").map(|end| end + 1),
        _ => None,
    };
    parts.filter_map(|part| Some(&part[..end(part)?])).collect()
}

/// What sets the paths of functions that are called from outside.
fn paths(schema: &Schema) -> String {
    let script = migration_sql(schema, 0);
    let start = script.rfind("\ndo $$").expect("it sets paths at its end");
    let length = script[start..].find("end $$;").expect("it ends") + "end $$;".len();
    script[start..start + length].to_string()
}

/// A database with schemas, on one clock.
pub(crate) struct Plot {
    pub(crate) ground: Ground,
    client: Client,
    /// Those that nobody uses, with the bugs they have.
    free: Mutex<Vec<(String, Option<&'static Bug>)>>,
}

impl Plot {
    /// `None` if there is no server to be had.
    pub(crate) async fn new() -> Option<Arc<Self>> {
        let ground = Ground::new()?;
        ground.make_clock();
        let client = ground.client().await;
        Some(Arc::new(Self { ground, client, free: Mutex::default() }))
    }

    pub(crate) async fn sql(&self, statements: &str, of: &str) {
        let done = self.client.batch_execute(statements).await;
        done.unwrap_or_else(|error| panic!("{of}: the SQL is not understood: {error:?}"));
    }

    /// Ends whatever was left under way by those who are done, so that it changes nothing later.
    pub(crate) async fn quiet(&self) {
        let end = "select pg_terminate_backend(pid, 10000) from pg_stat_activity \
             where datname = current_database() and pid <> pg_backend_pid() \
               and backend_type = 'client backend'";
        self.sql(end, "whoever was left").await;
    }

    /// An empty schema with this bug, or with none.
    pub(crate) async fn borrow(self: &Arc<Self>, bug: Option<&'static Bug>) -> Borrowed {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        // Small pools: a server has a hundred connections for all tests that run.
        let fresh = || format!("{}&windlass_pool=4", self.ground.text_address());
        let (text, had) = free.clone().unwrap_or_else(|| (fresh(), None));
        let address: PostgresAddress = text.parse().expect("it is well formed");
        match free {
            Some(_) => self.sql(&emptying_sql(&address.schema), "the emptying").await,
            None => {
                let script = migration_sql(&address.schema, 0);
                self.sql(&format!("{script}{}", clock_sql(&address.schema)), "no bug").await;
            }
        }
        if had.map(|bug| bug.what) != bug.map(|bug| bug.what) {
            if let Some(had) = had {
                self.sql(&had.patch(&address.schema).1, had.what).await;
            }
            if let Some(bug) = bug {
                self.sql(&bug.patch(&address.schema).0, bug.what).await;
            }
        }
        Borrowed { plot: self.clone(), text, address, bug }
    }
}

/// A schema, until this is dropped.
pub(crate) struct Borrowed {
    plot: Arc<Plot>,
    pub(crate) text: String,
    pub(crate) address: PostgresAddress,
    bug: Option<&'static Bug>,
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        let mut free = self.plot.free.lock().unwrap_or_else(PoisonError::into_inner);
        free.push((self.text.clone(), self.bug));
    }
}

/// Makes a schema as it was at first, but for its turns and its clock.
pub(crate) fn emptying_sql(schema: &Schema) -> String {
    // Rows leave in whatever order, so nobody asks whether others need them.
    format!(
        "set session_replication_role = replica; \
         do $$ declare _table regclass; begin \
           for _table in select oid from pg_class \
             where relnamespace = '{schema}'::regnamespace and relkind in ('r', 'p') \
               and not relispartition and relname <> 'migration' \
           loop execute format('delete from %s', _table); end loop; \
           perform setval(s.seqrelid, s.seqstart, false) from pg_sequence s \
             join pg_depend d on d.objid = s.seqrelid and d.deptype = 'i' \
             join pg_class c on c.oid = s.seqrelid \
             where c.relnamespace = '{schema}'::regnamespace; \
           insert into {schema}.settings default values; \
         end $$; \
         reset session_replication_role"
    )
}

/// Stores for one trial.
struct Schemas {
    plot: Arc<Plot>,
    bug: Option<&'static Bug>,
    meanwhile: Option<Meanwhile>,
    /// They are free when nobody has a store of this trial any more.
    borrowed: Mutex<Vec<Borrowed>>,
    going_on: Mutex<Vec<JoinHandle<()>>>,
}

#[async_trait]
impl Harness for Schemas {
    async fn fresh(&self, limits: Limits) -> Arc<dyn Store> {
        let borrowed = self.plot.borrow(self.bug).await;
        let wake = Arc::new(LocalWake::new());
        let store = PostgresStore::open(&borrowed.address, limits, wake).await;
        if let Some(meanwhile) = self.meanwhile {
            let client = self.plot.ground.client().await;
            let going_on = meanwhile(client, borrowed.address.schema.clone());
            self.going_on.lock().unwrap_or_else(PoisonError::into_inner).push(going_on);
        }
        self.borrowed.lock().unwrap_or_else(PoisonError::into_inner).push(borrowed);
        Arc::new(store.expect("the schema is there"))
    }

    async fn advance(&self, by: Duration) {
        let advance = format!("update public.clock set us = us + {}", by.as_micros());
        self.plot.sql(&advance, "the clock").await;
    }
}

impl Drop for Schemas {
    fn drop(&mut self) {
        let going_on = self.going_on.lock().unwrap_or_else(PoisonError::into_inner);
        going_on.iter().for_each(JoinHandle::abort);
    }
}

/// What goes on in a schema while a case is checked in it.
pub(crate) type Meanwhile = fn(Client, Schema) -> JoinHandle<()>;

/// A case, in schemas with a bug or with none.
pub(crate) struct Trial {
    pub(crate) case: String,
    pub(crate) bug: Option<&'static Bug>,
    pub(crate) meanwhile: Option<Meanwhile>,
}

/// How many trials go on at once, each in a database and on a clock of its own.
const AT_ONCE: usize = 3;

/// A case that hangs has seen the bug, too. Far longer than the slowest takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// Checks all of these, some at once, and answers what is wrong with them.
pub(crate) async fn check_all<T, Fut>(
    all: Vec<T>,
    check: fn(Arc<Plot>, Arc<Vec<T>>, usize) -> Fut,
) -> Vec<String>
where
    T: Send + Sync + 'static,
    Fut: Future<Output = Option<String>> + Send + 'static,
{
    let (all, next) = (Arc::new(all), Arc::new(AtomicUsize::new(0)));
    let mut at_work = JoinSet::new();
    for _ in 0..AT_ONCE {
        let Some(plot) = Plot::new().await else { return Vec::new() };
        let (all, next) = (all.clone(), next.clone());
        at_work.spawn(async move {
            let mut problems = Vec::new();
            loop {
                let number = next.fetch_add(1, Ordering::SeqCst);
                if number >= all.len() {
                    return problems;
                }
                plot.quiet().await;
                problems.extend(check(plot.clone(), all.clone(), number).await);
            }
        });
    }
    at_work.join_all().await.into_iter().flatten().collect()
}

/// What is wrong with these trials: cases that see no bug, or that fail without one.
pub(crate) async fn judge(trials: Vec<Trial>) -> Vec<String> {
    check_all(trials, |plot, trials, number| async move { trials[number].judge(plot).await }).await
}

impl Trial {
    /// Every case, without a bug.
    pub(crate) fn all(meanwhile: Option<Meanwhile>) -> Vec<Self> {
        let cases = conformance::cases().into_iter().map(|case| case.name);
        cases.map(|case| Self { case, bug: None, meanwhile }).collect()
    }

    async fn judge(&self, plot: Arc<Plot>) -> Option<String> {
        let (bug, meanwhile) = (self.bug, self.meanwhile);
        let cases = conformance::cases();
        let Some(case) = cases.iter().find(|case| case.name == self.case) else {
            return Some(format!("there is no case `{}`", self.case));
        };
        let (borrowed, going_on) = (Mutex::default(), Mutex::default());
        let harness = Arc::new(Schemas { plot, bug, meanwhile, borrowed, going_on });
        let checked = tokio::time::timeout(PATIENCE, case.check(harness)).await;
        match (bug, checked) {
            (None, Ok(None)) => None,
            (None, Ok(Some(broken))) => Some(format!("{case:?}\n  without a bug: {}", broken.seen)),
            (None, Err(_)) => Some(format!("{case:?}\n  without a bug: no end of it")),
            (Some(bug), Ok(None)) => Some(format!("NOT CAUGHT: {}\n  by {case:?}", bug.what)),
            // The server itself refuses what makes no sense: that is no bug that could be shipped.
            (Some(bug), Ok(Some(broken))) if broken.seen.contains("Unavailable") => {
                Some(format!("{}: the SQL does not run\n  {}", bug.what, broken.seen))
            }
            (Some(_), Ok(Some(_)) | Err(_)) => None,
        }
    }
}
