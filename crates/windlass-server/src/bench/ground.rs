//! Where the stores of the measurements stand: in memory, or each in a directory or a schema of its
//! own.
//!
//! A directory that holds anything else is refused, because what a measurement leaves is removed
//! with everything in it. A mark tells the directories that a bench has made.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};
use windlass::store::Space;
use windlass::store::{Address, Durability};
use windlass::{Engine, Error, Sharing};

use crate::bench::Plan;
use crate::bench::doors::{Door, OtherProcess};
use crate::bench::process::processor_time;
use crate::bench::result::Measurement;
#[cfg(feature = "postgres")]
use crate::bench::server::{Server, Work};
use crate::cli::Mode;

/// The file that says that a directory belongs to a bench.
const MARK: &str = "windlass-bench";

/// Where stores are opened.
#[derive(Debug)]
pub(crate) struct Ground {
    root: Option<Root>,
    /// The address of a database, in which each measurement has a schema of its own.
    database: Option<String>,
    durability: Option<Durability>,
    keep: bool,
}

#[derive(Debug)]
struct Root {
    path: PathBuf,
    made_directory: bool,
    made_mark: bool,
}

impl Ground {
    /// Refuses an address that cannot be opened, and a directory that holds something else.
    pub(crate) fn new(
        address: &str,
        durability: Option<Durability>,
        keep: bool,
    ) -> anyhow::Result<Self> {
        let (mut root, mut database) = (None, None);
        match address.parse()? {
            Address::Directory(path) => root = Some(Root::new(path)?),
            Address::Postgres(_) if durability.is_some() => {
                bail!("the server decides what is durable; see its `synchronous_commit`")
            }
            Address::Postgres(address) => database = Some(address),
            Address::Http(_) => bail!(
                "a bench makes a store for each measurement; name a directory, and measure a \
                 server with --mode doors"
            ),
            Address::Memory if durability.is_some() => {
                bail!(
                    "`memory:` keeps nothing, so there is no durability to choose; \
                       name a directory with --store"
                )
            }
            Address::Memory => {}
        }
        Ok(Self { root, database, durability, keep })
    }

    pub(crate) fn is_a_database(&self) -> bool {
        self.database.is_some()
    }

    /// When stores answer, if that was asked for.
    pub(crate) fn durability(&self) -> Option<Durability> {
        self.durability
    }

    /// The address of the database, if it is one.
    #[cfg(feature = "postgres")]
    pub(crate) fn database(&self) -> Option<&str> {
        self.database.as_deref()
    }

    pub(crate) fn is_a_disk(&self) -> bool {
        self.root.is_some()
    }

    /// A new place for the stores of one measurement.
    pub(crate) fn plot(&self, mode: Mode) -> anyhow::Result<Plot> {
        let path = self.root.as_ref().map(|root| root.new_directory(mode.name())).transpose()?;
        let address = match (&path, &self.database) {
            (Some(path), _) => format!("file:{}", path.display()),
            (None, Some(database)) => in_new_schema(database, mode),
            (None, None) => "memory:".to_string(),
        };
        Ok(Plot { path, address, durability: self.durability, keep: self.keep })
    }
}

impl Root {
    fn new(path: PathBuf) -> anyhow::Result<Self> {
        let made_directory = !path.exists();
        let cannot = || format!("cannot measure in `{}`", path.display());
        fs::create_dir_all(&path).with_context(cannot)?;
        let made_mark = !path.join(MARK).exists();
        if made_mark {
            if fs::read_dir(&path).with_context(cannot)?.next().is_some() {
                bail!(
                    "`{}` is not empty and not made by a bench; nothing was changed. \
                     Name a directory that is empty or not there yet",
                    path.display()
                );
            }
            fs::write(path.join(MARK), "Made by `windlass bench`, to be filled and emptied.\n")
                .with_context(cannot)?;
        }
        Ok(Self { path, made_directory, made_mark })
    }

    fn new_directory(&self, name: &str) -> anyhow::Result<PathBuf> {
        let mut number = 1;
        loop {
            let path = self.path.join(format!("{name}-{number}"));
            match fs::create_dir(&path) {
                Ok(()) => return Ok(path),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => number += 1,
                Err(error) => {
                    return Err(error).with_context(|| format!("cannot make {}", path.display()));
                }
            }
        }
    }
}

impl Drop for Ground {
    /// Leaves things as they were. What cannot be removed stays, and is recognised next time.
    fn drop(&mut self) {
        let Some(root) = self.root.as_ref().filter(|root| root.made_mark && !self.keep) else {
            return;
        };
        let _ = fs::remove_file(root.path.join(MARK));
        if root.made_directory {
            let _ = fs::remove_dir(&root.path);
        }
    }
}

/// The place of one measurement, emptied when it is dropped.
#[derive(Debug)]
pub(crate) struct Plot {
    path: Option<PathBuf>,
    address: String,
    durability: Option<Durability>,
    keep: bool,
}

/// The address of a schema that no other measurement has.
fn in_new_schema(database: &str, mode: Mode) -> String {
    static MADE: AtomicU32 = AtomicU32::new(0);
    let number = MADE.fetch_add(1, Ordering::Relaxed);
    let join = if database.contains('?') { '&' } else { '?' };
    let (mode, process) = (mode.name(), std::process::id());
    format!("{database}{join}windlass_schema=bench_{mode}_{process}_{number}")
}

impl Plot {
    /// The directory; `None` in memory.
    pub(crate) fn directory(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Opens the store that stands here.
    pub(crate) async fn open(&self) -> Result<Engine, Error> {
        let mut builder = Engine::builder().sharing(Sharing::OwnOrFail);
        if let Some(durability) = self.durability {
            builder = builder.durability(durability);
        }
        builder.open(&self.address).await
    }

    /// Removes a schema; a directory goes by itself.
    async fn clear(&self) {
        #[cfg(feature = "postgres")]
        if let (Ok(Address::Postgres(address)), false) = (self.address.parse(), self.keep) {
            let removed =
                async { windlass::store::postgres::remove_schema(&address.parse()?).await };
            if let Err(error) = removed.await {
                tracing::warn!(%error, "the schema of a measurement stays behind");
            }
        }
    }

    /// Bytes that the files here take on the disk, unused ones included.
    pub(crate) fn bytes(&self) -> anyhow::Result<u64> {
        let Some(path) = &self.path else { return Ok(0) };
        let mut bytes = 0;
        for entry in fs::read_dir(path)? {
            bytes += entry?.metadata()?.len();
        }
        Ok(bytes)
    }
}

impl Drop for Plot {
    fn drop(&mut self) {
        if let Some(path) = self.path.as_ref().filter(|_| !self.keep) {
            let _ = fs::remove_dir_all(path);
        }
    }
}

/// An engine that is measured, and the place of its store.
pub(crate) struct Subject {
    pub(crate) engine: Engine,
    pub(crate) plot: Plot,
    /// The process that owns the store, if it is not this one.
    pub(crate) other: Option<OtherProcess>,
    written_before: u64,
    worked_before: Option<Duration>,
    /// The database that is measured, and what it had done before; `None` where only the store's
    /// own connections are let in, so that this is not told.
    #[cfg(feature = "postgres")]
    server: Option<(Server, Work)>,
}

impl Subject {
    /// A new engine on an empty store.
    pub(crate) async fn open(mode: Mode, plan: &Plan) -> anyhow::Result<Self> {
        let plot = plan.ground.plot(mode)?;
        let (engine, other) = match plan.door {
            Door::Own => (plot.open().await?, None),
            Door::Joined => {
                let other = OtherProcess::start(plot.address())?;
                let joined = Engine::open(plot.address()).await?;
                (joined, Some(other))
            }
            Door::Http => {
                let other = OtherProcess::start(plot.address())?;
                (Engine::open(&other.url).await?, Some(other))
            }
        };
        #[cfg(feature = "postgres")]
        let server = match plan.ground.is_a_database() {
            true => Server::connect(plot.address()).await.ok().map(|it| (it, Work::default())),
            false => None,
        };
        let mut subject = Self {
            engine,
            plot,
            other,
            written_before: 0,
            worked_before: None,
            #[cfg(feature = "postgres")]
            server,
        };
        subject.begin().await?;
        Ok(subject)
    }

    /// From here on it is measured.
    pub(crate) async fn begin(&mut self) -> anyhow::Result<()> {
        self.written_before = self.space().written;
        self.worked_before = processor_time();
        #[cfg(feature = "postgres")]
        if let Some((server, before)) = &mut self.server {
            *before = server.work().await?;
        }
        Ok(())
    }

    /// What it takes on the disk; nothing in memory.
    pub(crate) fn space(&self) -> Space {
        self.engine.store().info().space.unwrap_or_default()
    }

    /// A measurement of `n` jobs that ends now.
    pub(crate) async fn measured(
        &self,
        mode: Mode,
        plan: &Plan,
        n: u64,
    ) -> anyhow::Result<Measurement> {
        let worked = processor_time().zip(self.worked_before);
        let worked = worked.map(|(now, before)| now.saturating_sub(before));
        let measured = Measurement::new(mode, plan, n).worked(worked);
        let measured = measured.durability(self.engine.durability());
        #[cfg(feature = "postgres")]
        if let Some((server, before)) = &self.server {
            let Work { bytes, commits } = server.work().await?;
            let measured = measured.wrote(bytes - before.bytes);
            return Ok(measured.committed(commits - before.commits));
        }
        // What another process writes is not known here.
        if plan.ground.is_a_database() || self.other.is_some() {
            return Ok(measured);
        }
        Ok(measured.wrote(self.space().written - self.written_before))
    }

    /// Closes it; its store is removed.
    pub(crate) async fn end(self) {
        self.engine.close().await;
        self.plot.clear().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn temporary(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("windlass-{name}-{}", std::process::id()))
    }

    #[test]
    fn a_bench_leaves_nothing_behind_unless_it_is_kept() -> anyhow::Result<()> {
        let path = temporary("ground");
        let address = path.display().to_string();
        for keep in [false, true] {
            let ground = Ground::new(&address, None, keep)?;
            let (one, other) = (ground.plot(Mode::Drain)?, ground.plot(Mode::Drain)?);
            assert_ne!(one.directory(), other.directory());
            drop((one, other, ground));
            assert_eq!(path.exists(), keep);
        }
        assert!(path.join("drain-1").exists());
        // What was kept is recognised, and stays.
        drop(Ground::new(&address, None, false)?);
        assert!(path.join("drain-1").exists());
        fs::remove_file(path.join(MARK))?;
        let refused = Ground::new(&address, None, false).expect_err("it holds something else");
        assert!(refused.to_string().contains("is not empty"), "{refused}");
        Ok(fs::remove_dir_all(path)?)
    }
}
