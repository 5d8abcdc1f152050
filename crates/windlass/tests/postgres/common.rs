//! Schemas on a shared server, with a clock that tests move.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use windlass::Limits;
use windlass::store::postgres::{PostgresAddress, PostgresStore};
use windlass::wake::LocalWake;
use windlass_testbed::{Postgres, or_skip};

/// A database of its own on the shared server.
pub(crate) struct Ground {
    pub(crate) server: &'static Postgres,
    pub(crate) database: String,
    made: AtomicUsize,
}

impl Ground {
    /// `None` if there is no server to be had.
    pub(crate) fn new() -> Option<Self> {
        let server = or_skip(Postgres::shared())?;
        let database = server.create_database();
        Some(Self { server, database, made: AtomicUsize::new(0) })
    }

    /// The address of a schema that nobody has used.
    pub(crate) fn address(&self) -> PostgresAddress {
        self.text_address().parse().expect("the address is well formed")
    }

    /// The same as text.
    pub(crate) fn text_address(&self) -> String {
        let made = self.made.fetch_add(1, Ordering::SeqCst);
        format!("{}?windlass_schema=s{made}", self.server.url_for(&self.database))
    }

    pub(crate) fn sql(&self, statements: &str) -> String {
        self.server.sql(&self.database, statements)
    }

    /// Makes a clock for all stores, which stands still until it is moved.
    pub(crate) fn make_clock(&self) {
        // What is tested on it is the rules, not the disk.
        self.server.sql(
            "postgres",
            &format!("alter database {} set synchronous_commit = off", self.database),
        );
        self.sql("create table public.clock (us bigint); insert into public.clock values (1700000000000000)");
    }

    pub(crate) fn advance(&self, by: Duration) {
        self.sql(&format!("update public.clock set us = us + {}", by.as_micros()));
    }

    /// A store on the clock of [`Ground::make_clock`].
    pub(crate) async fn store(&self, limits: Limits) -> Arc<PostgresStore> {
        let address = self.address();
        let store = PostgresStore::open(&address, limits, Arc::new(LocalWake::new())).await;
        let store = store.expect("the schema can be made");
        self.sql(&format!(
            "create or replace function {}.now_us() returns bigint language sql volatile as \
             $$ select us from public.clock $$",
            address.schema
        ));
        Arc::new(store)
    }
}
