//! Moving between stores: every job and object of one is taken over into the other as it is.
//!
//! The source is not changed, except that what was running is given back first. A target into which
//! a move is not finished is marked, and nobody can open it; the same move, run again, finishes it.
//! At the end everything is read back from both and compared.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use windlass_core::object::{Address as ObjectAddress, ObjectRecord};
use windlass_core::record::{Change, JobRecord, NextIds, QueueSettings, Totals};
use windlass_core::time::Timestamp;

use super::Address;
use super::file::moving::{FileSide, FileTarget};
#[cfg(feature = "postgres")]
use super::postgres::{
    PostgresAddress,
    moving::{PostgresSide, fit},
};
use crate::error::Error;

/// How many records are taken over at once, and about how many bytes.
const BATCH: usize = 100;
const BATCH_BYTES: usize = 4 << 20;

/// What was moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Moved {
    /// Jobs in the target, as many as in the source.
    pub jobs: u64,
    /// Durable objects, likewise.
    pub objects: u64,
    /// An earlier move was interrupted, and this one went on with it.
    pub resumed: bool,
    /// All of it had been moved before, and nothing was done.
    pub was_done: bool,
}

/// Copies the store at `from` into the empty store at `to`: each a directory or, with the feature
/// `postgres`, a database.
///
/// Jobs keep their ids, order, records, keys and dependencies, queues their settings and totals,
/// objects their state, alarm and counters. When this returns, all of that was read back and found
/// the same. The source stays as it was and should not be opened again.
///
/// Refuses a source that someone has open or works on; with `force`, workers of a database count
/// as lost and their jobs are given back. Refuses a target that holds jobs or objects already.
/// After a crash, the target cannot be opened until the same move has been run again to its end.
///
/// Blocks its thread while it reads and writes directories.
pub async fn move_store(from: &str, to: &str, force: bool) -> Result<Moved, Error> {
    let (source, name) = Source::open(from.parse()?, force).await?;
    let next_ids = source.next_ids().await?;
    // Whatever happens to a job is told by an event, and each event has a number.
    let stand = format!("{}:{}", next_ids.sequence, next_ids.event);
    let target: Address = to.parse()?;
    match target {
        Address::Memory => Err(Error::NotMoved {
            why: "what is in memory is gone with its process; name a directory or a database"
                .to_string(),
        }),
        Address::Directory(path) => into_directory(source, next_ids, &path).await,
        #[cfg(feature = "postgres")]
        Address::Postgres(address) => {
            into_database(source, next_ids, &address.parse()?, &name, &stand).await
        }
        #[cfg(not(feature = "postgres"))]
        Address::Postgres(_) => {
            drop((name, stand));
            Err(Error::NoPostgres)
        }
        Address::Http(_) => Err(not_through_a_server()),
    }
}

fn not_through_a_server() -> Error {
    let why = "a store is not moved through a server; name the directory or the database itself";
    Error::NotMoved { why: why.to_string() }
}

/// A store that is read.
enum Source {
    File(Box<FileSide>),
    #[cfg(feature = "postgres")]
    Postgres(Box<PostgresSide>),
}

impl Source {
    /// The store, and a name of it that holds no password.
    async fn open(address: Address, force: bool) -> Result<(Self, String), Error> {
        match address {
            Address::Memory => Err(Error::NotMoved {
                why: "what is in memory is there for its own process alone".to_string(),
            }),
            Address::Directory(path) => {
                let side = FileSide::source(&path)?;
                let whole: PathBuf = path.canonicalize().unwrap_or(path);
                Ok((Self::File(Box::new(side)), whole.display().to_string()))
            }
            #[cfg(feature = "postgres")]
            Address::Postgres(address) => {
                let address: PostgresAddress = address.parse()?;
                let side = PostgresSide::source(&address, force).await?;
                Ok((Self::Postgres(Box::new(side)), PostgresSide::name(&address)))
            }
            #[cfg(not(feature = "postgres"))]
            Address::Postgres(_) => {
                let _ = force;
                Err(Error::NoPostgres)
            }
            Address::Http(_) => Err(not_through_a_server()),
        }
    }

    async fn jobs_after(&mut self, sequence: u64) -> Result<Vec<JobRecord>, Error> {
        match self {
            Self::File(side) => Ok(side.jobs_after(sequence, BATCH, BATCH_BYTES)?),
            #[cfg(feature = "postgres")]
            Self::Postgres(side) => side.jobs_after(sequence, BATCH, BATCH_BYTES).await,
        }
    }

    async fn objects_after(
        &mut self,
        address: Option<&ObjectAddress>,
    ) -> Result<Vec<ObjectRecord>, Error> {
        match self {
            Self::File(side) => Ok(side.objects_after(address, BATCH, BATCH_BYTES)?),
            #[cfg(feature = "postgres")]
            Self::Postgres(side) => side.objects_after(address, BATCH).await,
        }
    }

    async fn image(&self) -> Result<Vec<Change>, Error> {
        match self {
            Self::File(side) => Ok(side.image()),
            #[cfg(feature = "postgres")]
            Self::Postgres(side) => side.image().await,
        }
    }

    async fn next_ids(&self) -> Result<NextIds, Error> {
        match self {
            Self::File(side) => Ok(side.next_ids()),
            #[cfg(feature = "postgres")]
            Self::Postgres(side) => side.next_ids().await,
        }
    }
}

async fn into_directory(
    mut source: Source,
    next_ids: NextIds,
    path: &Path,
) -> Result<Moved, Error> {
    let mut target = FileTarget::begin(path)?;
    target.put(&[], &[], &source.image().await?, next_ids)?;
    let mut last = 0;
    loop {
        let jobs = source.jobs_after(last).await?;
        let Some(newest) = jobs.last() else { break };
        last = newest.sequence;
        target.put(&jobs, &[], &[], next_ids)?;
    }
    let mut at = None;
    loop {
        let objects = source.objects_after(at.as_ref()).await?;
        let Some(newest) = objects.last() else { break };
        at = Some(newest.address.clone());
        target.put(&[], &objects, &[], next_ids)?;
    }
    let mut copy = Source::File(Box::new(target.read_back()?));
    let moved = compare(&mut source, &mut copy, |record| record).await?;
    // Its ledger and the one that reads it back share the directory's lock.
    drop(copy);
    target.finish()?;
    Ok(moved)
}

#[cfg(feature = "postgres")]
async fn into_database(
    mut source: Source,
    next_ids: NextIds,
    address: &PostgresAddress,
    name: &str,
    stand: &str,
) -> Result<Moved, Error> {
    let (target, stand) = PostgresSide::target(address, name, stand).await?;
    let resumed = stand.jobs > 0 || stand.object.is_some() || stand.settled;
    if stand.finished {
        return Ok(Moved { was_done: true, ..Moved::default() });
    }
    let image = source.image().await?;
    let mut last = stand.jobs;
    if !stand.settled {
        target.put_settings(&image).await?;
        loop {
            let jobs: Vec<JobRecord> =
                source.jobs_after(last).await?.into_iter().map(fit).collect();
            let Some(newest) = jobs.last().map(|job| job.sequence) else { break };
            target.put_jobs(last, &jobs).await?;
            last = newest;
        }
        let mut at = stand.object;
        loop {
            let objects = source.objects_after(at.as_ref()).await?;
            let Some(newest) = objects.last().map(|object| object.address.clone()) else { break };
            target.put_objects(last, &objects).await?;
            at = Some(newest);
        }
        target.settle(last, &image, next_ids).await?;
    }
    let mut copy = Source::Postgres(Box::new(target));
    let moved = compare(&mut source, &mut copy, fit).await?;
    if let Source::Postgres(target) = &copy {
        target.finish().await?;
    }
    Ok(Moved { resumed, ..moved })
}

/// Reads both stores from the beginning to the end and compares every record. `fit` is what the
/// target cannot keep otherwise.
async fn compare(
    source: &mut Source,
    target: &mut Source,
    fit: fn(JobRecord) -> JobRecord,
) -> Result<Moved, Error> {
    let differs = |what: String| Error::NotMoved { why: format!("{what} differs in the target") };
    // A job whose time has come meanwhile is the same job.
    let seen = |record: JobRecord| record.seen_at(Timestamp::from_micros(i64::MAX));
    let (mut moved, mut last) = (Moved::default(), 0);
    loop {
        let (ours, theirs) = (source.jobs_after(last).await?, target.jobs_after(last).await?);
        if ours.is_empty() && theirs.is_empty() {
            break;
        }
        let before = moved.jobs;
        for (our, their) in ours.into_iter().zip(theirs) {
            last = our.sequence;
            let (our, their) = (seen(fit(our)), seen(their));
            if our != their {
                return Err(differs(format!("job {}", our.id())));
            }
            moved.jobs += 1;
        }
        if moved.jobs == before {
            return Err(differs("the number of jobs".to_string()));
        }
    }
    let mut at = None;
    loop {
        let ours = source.objects_after(at.as_ref()).await?;
        let theirs = target.objects_after(at.as_ref()).await?;
        if ours.is_empty() && theirs.is_empty() {
            break;
        }
        let before = moved.objects;
        for (our, their) in ours.into_iter().zip(theirs) {
            if our != their {
                return Err(differs(format!("object {}", our.address)));
            }
            at = Some(our.address);
            moved.objects += 1;
        }
        if moved.objects == before {
            return Err(differs("the number of objects".to_string()));
        }
    }
    let (ours, theirs) = (said(&source.image().await?), said(&target.image().await?));
    match ours.iter().find(|(what, value)| theirs.get(*what) != Some(*value)) {
        Some((what, _)) => Err(differs(what.clone())),
        None if ours.len() != theirs.len() => Err(differs("the number of queues".to_string())),
        None => Ok(moved),
    }
}

/// What an image says beyond what is so anyway, by what it is about.
fn said(image: &[Change]) -> BTreeMap<String, String> {
    let mut said = BTreeMap::new();
    for change in image {
        let (what, value) = match change {
            Change::Queue { settings, dead_letters_dropped: 0, .. }
                if *settings == QueueSettings::default() =>
            {
                continue;
            }
            Change::Queue { queue, .. } => (format!("queue `{queue}`"), format!("{change:?}")),
            Change::QueueKind { totals, .. } | Change::Lane { totals, .. }
                if *totals == Totals::default() =>
            {
                continue;
            }
            Change::QueueKind { queue, kind, totals } => {
                (format!("the count of kind `{kind}` in queue `{queue}`"), format!("{totals:?}"))
            }
            Change::Lane { queue, lane, totals } => {
                (format!("the count of lane {lane} of queue `{queue}`"), format!("{totals:?}"))
            }
            Change::Rate { kind, full_at } => {
                (format!("the rate limit of kind `{kind}`"), format!("{full_at:?}"))
            }
            Change::Insert(_)
            | Change::Update(_)
            | Change::Remove { .. }
            | Change::Object(_)
            | Change::ObjectGone { .. } => continue,
        };
        said.insert(what, value);
    }
    said
}
