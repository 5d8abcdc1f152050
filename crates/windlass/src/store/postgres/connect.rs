//! Where the database is, and the connections to it.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use deadpool_postgres::{Manager, ManagerConfig, Pool, RecyclingMethod, Runtime};
use tokio_postgres::{Client, NoTls};

use super::fault::{OpenFault, causes, open_fault};

/// How long a connection may take to be made, and a caller waits for a free one.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// The schema everything stands in: a plain name, so that it needs no quotes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schema(String);

impl Default for Schema {
    fn default() -> Self {
        Self("windlass".to_string())
    }
}

impl fmt::Display for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Schema {
    type Err = OpenFault;

    fn from_str(text: &str) -> Result<Self, OpenFault> {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        let fits = (1..=40).contains(&text.len()) && text.bytes().all(plain);
        if !fits
            || text.starts_with(|first: char| first.is_ascii_digit())
            || text.starts_with("pg_")
        {
            return Err(OpenFault::new(format!(
                "`{text}` is no name for a schema; use up to 40 of a-z, 0-9 and _, a letter first"
            )));
        }
        Ok(Self(text.to_string()))
    }
}

impl Schema {
    /// SQL that speaks of `windlass`, for this schema.
    pub(super) fn in_sql(&self, sql: &str) -> String {
        if self.0 == "windlass" {
            return sql.to_string();
        }
        sql.replace("windlass.", &format!("{}.", self.0))
            .replace("'windlass'", &format!("'{}'", self.0))
            .replace("schema windlass", &format!("schema {}", self.0))
            .replace("exists windlass", &format!("exists {}", self.0))
    }
}

/// An address such as `postgres://user@host/database`, with what is ours in it.
#[derive(Clone)]
pub struct PostgresAddress {
    pub(crate) config: tokio_postgres::Config,
    /// `windlass_schema`: the schema, `windlass` unless said otherwise.
    pub schema: Schema,
    /// `windlass_pool`: how many connections at most.
    pub pool: usize,
    /// `windlass_listen=off` behind a transaction pooler: workers then poll, or use another wake.
    pub listen: bool,
    /// `windlass_migrate=off`: open refuses an old schema instead of bringing it up to date.
    pub migrate: bool,
}

impl fmt::Debug for PostgresAddress {
    /// Without the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PostgresAddress({:?}, {})", self.config.get_hosts(), self.schema)
    }
}

impl FromStr for PostgresAddress {
    type Err = OpenFault;

    fn from_str(address: &str) -> Result<Self, OpenFault> {
        let (base, query) = address.split_once('?').unwrap_or((address, ""));
        let mut own = Self {
            config: tokio_postgres::Config::new(),
            schema: Schema::default(),
            pool: 10,
            listen: true,
            migrate: true,
        };
        let mut theirs = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            match key {
                "windlass_schema" => own.schema = value.parse()?,
                "windlass_pool" => own.pool = pool_size(value)?,
                "windlass_listen" => own.listen = on_or_off(key, value)?,
                "windlass_migrate" => own.migrate = on_or_off(key, value)?,
                _ if key.starts_with("windlass_") => {
                    return Err(OpenFault::new(format!(
                        "`{key}` is not known; there are windlass_schema, windlass_pool, \
                         windlass_listen and windlass_migrate"
                    )));
                }
                _ => theirs.push(known_to_them(key, pair)?),
            }
        }
        let query =
            if theirs.is_empty() { String::new() } else { format!("?{}", theirs.join("&")) };
        own.config = format!("{base}{query}").parse().map_err(|error: tokio_postgres::Error| {
            // What is wrong, without repeating an address that may hold a password.
            OpenFault::new(format!(
                "the address of the database cannot be read ({}); it looks like \
                 postgres://user:password@host:5432/database",
                causes(&error)
            ))
        })?;
        if own.config.get_application_name().is_none() {
            own.config.application_name("windlass");
        }
        own.config.connect_timeout(PATIENCE);
        own.config.keepalives_idle(Duration::from_secs(30));
        Ok(own)
    }
}

/// A pair for the client, unless it can be the rest of a password, which nobody may see.
fn known_to_them<'a>(key: &str, pair: &'a str) -> Result<&'a str, OpenFault> {
    if key.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_') {
        return Ok(pair);
    }
    Err(OpenFault::new(
        "the address of the database cannot be read: after its `?` come pairs such as \
         `windlass_pool=20`; a `?` in a password is written `%3F`",
    ))
}

fn pool_size(value: &str) -> Result<usize, OpenFault> {
    let size = value.parse().ok().filter(|size| (1..=1_000).contains(size));
    size.ok_or_else(|| OpenFault::new(format!("windlass_pool is `{value}`; it must be 1 to 1000")))
}

fn on_or_off(key: &str, value: &str) -> Result<bool, OpenFault> {
    match value {
        "on" | "true" => Ok(true),
        "off" | "false" => Ok(false),
        _ => Err(OpenFault::new(format!("{key} is `{value}`; it must be `on` or `off`"))),
    }
}

/// One connection of its own, driven on a task that ends with it.
pub(crate) async fn connect(address: &PostgresAddress) -> Result<Client, OpenFault> {
    let connecting = address.config.connect(NoTls);
    let (client, connection) = tokio::time::timeout(PATIENCE, connecting)
        .await
        .map_err(|_| OpenFault::new(format!("the database did not answer within {PATIENCE:?}")))?
        .map_err(open_fault)?;
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a connection to the database ended");
        }
    });
    Ok(client)
}

pub(super) fn pool(address: &PostgresAddress) -> Result<Pool, OpenFault> {
    let fast = ManagerConfig { recycling_method: RecyclingMethod::Fast };
    let manager = Manager::from_config(address.config.clone(), NoTls, fast);
    Pool::builder(manager)
        .max_size(address.pool)
        .wait_timeout(Some(PATIENCE))
        .create_timeout(Some(PATIENCE))
        .runtime(Runtime::Tokio1)
        .build()
        .map_err(|error| OpenFault::new(error.to_string()))
}
