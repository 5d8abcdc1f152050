//! Where the database is, and the connections to it.

use std::fmt;
use std::future::poll_fn;
use std::str::FromStr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use deadpool_postgres::{Manager, ManagerConfig, Pool, QueueMode, RecyclingMethod, Runtime};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_postgres::{AsyncMessage, Client, Connection, Error, NoTls, Row};

use super::fault::{OpenFault, causes, open_fault};
use super::tls::{Asked, Tls};
use crate::store::StoreInfo;

/// How long a connection may take to be made, and a caller waits for a free one.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// The schema everything stands in: a plain name, so that it needs no quotes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schema(Arc<str>);

impl Default for Schema {
    fn default() -> Self {
        Self("windlass".into())
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
        Ok(Self(text.into()))
    }
}

impl Schema {
    /// Its name, to be handed on.
    pub(super) fn shared(&self) -> Arc<str> {
        self.0.clone()
    }

    /// The schema that a store says it has.
    pub(super) fn of(info: &StoreInfo) -> Option<Self> {
        info.schema.clone().map(Self)
    }

    /// SQL that speaks of `windlass`, for this schema.
    pub(super) fn in_sql(&self, sql: &str) -> String {
        if &*self.0 == "windlass" {
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
    pub(super) tls: Tls,
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
        let (hosts, tls) = (self.config.get_hosts(), &self.tls);
        write!(f, "PostgresAddress({hosts:?}, {tls:?}, {})", self.schema)
    }
}

impl FromStr for PostgresAddress {
    type Err = OpenFault;

    fn from_str(address: &str) -> Result<Self, OpenFault> {
        let (base, query) = address.split_once('?').unwrap_or((address, ""));
        let mut own = Self {
            config: tokio_postgres::Config::new(),
            tls: Tls::default(),
            schema: Schema::default(),
            pool: 10,
            listen: true,
            migrate: true,
        };
        let (mut theirs, mut encryption) = (Vec::new(), Asked::default());
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
                _ if encryption.hear(key, value)? => {}
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
        let (mode, tls) = encryption.settle()?;
        own.config.ssl_mode(mode);
        own.tls = tls;
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

/// Asks a connection for the next thing the server says unasked.
type Ask = dyn FnMut(&mut Context<'_>) -> Poll<Option<Result<AsyncMessage, Error>>> + Send;

/// What keeps a connection going, whatever it is made of: it must be asked until it ends.
pub(crate) struct Driver(Box<Ask>);

impl Driver {
    fn of<S, T>(mut connection: Connection<S, T>) -> Self
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        Self(Box::new(move |context| connection.poll_message(context)))
    }

    /// What the server says next without being asked; `None` when the connection has ended.
    pub(crate) async fn message(&mut self) -> Option<Result<AsyncMessage, Error>> {
        poll_fn(|context| (self.0)(context)).await
    }
}

/// The one place where a single connection is made.
pub(crate) async fn dial(address: &PostgresAddress) -> Result<(Client, Driver), Error> {
    #[cfg(feature = "tls")]
    if let Some(tls) = &address.tls.0 {
        let (client, connection) = address.config.connect(tls.clone()).await?;
        return Ok((client, Driver::of(connection)));
    }
    let (client, connection) = address.config.connect(NoTls).await?;
    Ok((client, Driver::of(connection)))
}

/// One connection of its own, driven on a task that ends with it.
pub(crate) async fn connect(address: &PostgresAddress) -> Result<Client, OpenFault> {
    let (client, mut driver) = tokio::time::timeout(PATIENCE, dial(address))
        .await
        .map_err(|_| OpenFault::new(format!("the database did not answer within {PATIENCE:?}")))?
        .map_err(open_fault)?;
    tokio::spawn(async move {
        while let Some(message) = driver.message().await {
            if let Err(error) = message {
                tracing::debug!(%error, "a connection to the database ended");
                return;
            }
        }
    });
    Ok(client)
}

/// Makes a call in a transaction in READ COMMITTED, whatever the default of the session is.
///
/// The three go out together, so it is one round trip. A setting of the session would be shorter,
/// but behind a pooler in transaction mode it is lost, or left to somebody else.
pub(super) async fn ask_in_read_committed(
    client: &Client,
    sql: &str,
    parameters: &[super::Parameter<'_>],
) -> Result<Vec<Row>, Error> {
    let begin = client.batch_execute("begin isolation level read committed");
    let asked = client.query_typed(sql, parameters);
    let commit = client.batch_execute("commit");
    // Sent in this order, as each is when it is first polled.
    let (begun, answer, committed) = futures_util::future::join3(begin, asked, commit).await;
    begun?;
    let rows = answer?;
    committed?;
    Ok(rows)
}

pub(super) fn pool(address: &PostgresAddress) -> Result<Pool, OpenFault> {
    Pool::builder(manager(address))
        .max_size(address.pool)
        // The last one used has its plans at hand.
        .queue_mode(QueueMode::Lifo)
        .wait_timeout(Some(PATIENCE))
        .create_timeout(Some(PATIENCE))
        .runtime(Runtime::Tokio1)
        .build()
        .map_err(|error| OpenFault::new(error.to_string()))
}

fn manager(address: &PostgresAddress) -> Manager {
    let fast = ManagerConfig { recycling_method: RecyclingMethod::Fast };
    #[cfg(feature = "tls")]
    if let Some(tls) = &address.tls.0 {
        return Manager::from_config(address.config.clone(), tls.clone(), fast);
    }
    Manager::from_config(address.config.clone(), NoTls, fast)
}
