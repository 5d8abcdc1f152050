//! Looking into a directory, whether or not a process has it open.

use std::path::Path;
use std::sync::Arc;

use tokio::runtime::{Builder, Runtime};
use windlass::core::filter::Filter;
use windlass::core::ledger::Counts;
use windlass::store::file::OfflineStore;
use windlass::store::{
    DirectoryOptions, DirectoryStore, ObjectFilter, ObjectPage, Sharing, Store, StoreExt,
};
use windlass::{Cursor, Explanation, JobId, JobRecord, ObjectAddress, ObjectView, OpenError, Page};

/// A directory that is looked into.
pub(super) enum Look {
    /// Nobody has it open.
    Offline(Box<OfflineStore>),
    /// Another process has it open, and answers.
    Joined(Joined),
}

/// A store that another process has open.
pub(super) struct Joined {
    runtime: Runtime,
    store: Arc<DirectoryStore>,
}

impl Joined {
    /// Joins the process that has the directory open.
    pub(super) fn open(path: &Path) -> anyhow::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let options =
            DirectoryOptions { sharing: Sharing::JoinOrFail, ..DirectoryOptions::default() };
        let store = runtime.block_on(DirectoryStore::open(path, options))?.store;
        Ok(Self { runtime, store })
    }

    /// Asks it something.
    pub(super) fn ask<T, E>(
        &self,
        ask: impl AsyncFnOnce(&DirectoryStore) -> Result<T, E>,
    ) -> Result<T, E> {
        self.runtime.block_on(ask(&self.store))
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        self.runtime.block_on(self.store.close());
    }
}

impl Look {
    /// Reads the directory, or joins whoever has it open.
    pub(super) fn open(path: &Path) -> anyhow::Result<Self> {
        match OfflineStore::open(path) {
            Ok(store) => Ok(Self::Offline(Box::new(store))),
            Err(OpenError::InUse { .. }) => Joined::open(path).map(Self::Joined),
            Err(error) => Err(error.into()),
        }
    }

    pub(super) fn find(&mut self, job: JobId) -> anyhow::Result<Option<JobRecord>> {
        Ok(match self {
            Self::Offline(store) => store.find(job)?,
            Self::Joined(joined) => {
                joined.ask(async |store| store.find(&[job]).await)?.pop().flatten()
            }
        })
    }

    pub(super) fn list(
        &mut self,
        filter: &Filter,
        after: Option<Cursor>,
        limit: usize,
    ) -> anyhow::Result<Page> {
        Ok(match self {
            Self::Offline(store) => store.list(filter, after, limit)?,
            Self::Joined(joined) => {
                joined.ask(async |store| store.list(filter, after, limit).await)?
            }
        })
    }

    pub(super) fn object(&mut self, address: &ObjectAddress) -> anyhow::Result<Option<ObjectView>> {
        Ok(match self {
            Self::Offline(store) => store.object(address)?,
            Self::Joined(joined) => joined.ask(async |store| store.object(address).await)?,
        })
    }

    pub(super) fn objects(
        &mut self,
        filter: &ObjectFilter,
        after: Option<&ObjectAddress>,
        limit: usize,
    ) -> anyhow::Result<ObjectPage> {
        Ok(match self {
            Self::Offline(store) => store.objects(filter, after, limit)?,
            Self::Joined(joined) => {
                joined.ask(async |store| store.list_objects(filter, after, limit).await)?
            }
        })
    }

    pub(super) fn counts(&mut self) -> anyhow::Result<Counts> {
        Ok(match self {
            Self::Offline(store) => store.counts(),
            Self::Joined(joined) => joined.ask(async |store| store.count().await)?,
        })
    }

    pub(super) fn explain(&mut self, job: JobId) -> anyhow::Result<Explanation> {
        Ok(match self {
            Self::Offline(store) => store.explain(job)?,
            Self::Joined(joined) => joined.ask(async |store| store.explain(job).await)?,
        })
    }
}
