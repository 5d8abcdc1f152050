//! Wakes over PostgreSQL: `LISTEN` and `NOTIFY` on a connection of their own.
//!
//! The channel has the name of the schema; the payload is `q:` and the queue, or `c` for a
//! cancellation. Whoever commits jobs by other means can say the same with
//! `pg_notify('windlass', 'q:mail')`. Ours are sent outside of any job's transaction: notifying
//! takes a lock that all notifying commits of a server share.

use std::iter;

use async_trait::async_trait;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::AbortHandle;
use tokio_postgres::config::Host;
use tokio_postgres::{AsyncMessage, Client, Notification, SimpleQueryMessage};

use super::remote::{
    BoxError, Remote, RemoteConnection, Transport, WakeOptions, WakePublisher, WakeSubscriber,
    wake_over,
};
use crate::error::Error;
use crate::store::postgres::connect::{Driver, dial};
use crate::store::postgres::{OpenFault, PostgresAddress};

/// Rings processes that listen on the same PostgreSQL database and schema.
///
/// It has one connection, and makes it again when it is lost. While there is none, workers poll.
#[derive(Debug)]
pub struct PostgresWake {
    remote: Remote,
}

wake_over!(PostgresWake);

impl PostgresWake {
    /// Connects to the server at `url`, such as `postgres://user@host/database`, and listens.
    ///
    /// Fails if the server cannot be reached or does not let this user in. Must be called within
    /// a tokio runtime, where a background task keeps the connection.
    pub async fn connect(url: &str) -> Result<Self, Error> {
        Self::connect_with(url, WakeOptions::default()).await
    }

    /// The same with options.
    pub async fn connect_with(url: &str, options: WakeOptions) -> Result<Self, Error> {
        let address: PostgresAddress =
            url.parse().map_err(|why: OpenFault| Error::WakeAddress {
                kind: "PostgreSQL",
                why: why.to_string(),
                example: "postgres://user@host/database",
            })?;
        let transport = PostgresTransport { address, channel: options.name.clone() };
        Ok(Self { remote: Remote::start(transport, &options).await? })
    }
}

impl PostgresWake {
    /// The wake of a store at this address. It need not be reachable yet: the store says so.
    pub(crate) async fn of(address: &PostgresAddress) -> Result<Self, Error> {
        let name = address.schema.to_string();
        let options = WakeOptions { name, listening: address.listen, at_once: false };
        let transport =
            PostgresTransport { address: address.clone(), channel: options.name.clone() };
        Ok(Self { remote: Remote::start(transport, &options).await? })
    }
}

#[derive(Debug)]
struct PostgresTransport {
    address: PostgresAddress,
    channel: String,
}

#[async_trait]
impl Transport for PostgresTransport {
    fn server(&self) -> String {
        let host = match self.address.config.get_hosts().first() {
            Some(Host::Tcp(host)) => host.clone(),
            Some(Host::Unix(path)) => path.display().to_string(),
            None => "localhost".into(),
        };
        let port = self.address.config.get_ports().first().unwrap_or(&5432);
        format!("PostgreSQL at {host}:{port}")
    }

    async fn connect(&self, listening: bool) -> Result<RemoteConnection, BoxError> {
        let (client, driver) = dial(&self.address).await?;
        let (heard, inbox) = unbounded_channel();
        let driver = tokio::spawn(drive(driver, heard)).abort_handle();
        let channel = format!("\"{}\"", self.channel.replace('"', "\"\""));
        // Made before anything can fail, so that the driver ends with it.
        let mut subscriber = PostgresSubscriber { inbox, driver, own: None };
        if listening {
            subscriber.own = own_process(&client).await?;
            client.batch_execute(&format!("LISTEN {channel}")).await?;
        }
        let publisher = PostgresPublisher { client, channel };
        Ok(RemoteConnection { publisher: Box::new(publisher), subscriber: Box::new(subscriber) })
    }
}

/// The server's process for this connection, which it names as the sender of our notifications.
async fn own_process(client: &Client) -> Result<Option<i32>, tokio_postgres::Error> {
    let rows = client.simple_query("SELECT pg_backend_pid()").await?;
    Ok(rows.iter().find_map(|row| match row {
        SimpleQueryMessage::Row(row) => row.get(0)?.parse().ok(),
        _ => None,
    }))
}

/// Keeps a connection going and passes on what others say.
async fn drive(mut driver: Driver, heard: UnboundedSender<Result<Notification, BoxError>>) {
    while let Some(message) = driver.message().await {
        match message {
            Ok(AsyncMessage::Notification(said)) => {
                let _ = heard.send(Ok(said));
            }
            Ok(_) => {}
            Err(why) => {
                let _ = heard.send(Err(why.into()));
                return;
            }
        }
    }
}

/// Answers: a notification is a commit too, and the claim it is about waits for its sync.
/// Why not simpler: nothing of it is durable, so the sync is for nobody.
/// Guarded by: `tests/wakes/` for what is heard; no test sees the cost, `comparison/run` does.
const COMMIT_WITHOUT_SYNC: &str = "SELECT set_config('synchronous_commit', 'off', true);";

struct PostgresPublisher {
    client: Client,
    channel: String,
}

#[async_trait]
impl WakePublisher for PostgresPublisher {
    async fn say(&mut self, words: &[String]) -> Result<(), BoxError> {
        let each = words
            .iter()
            .map(|word| format!("NOTIFY {}, '{}';", self.channel, word.replace('\'', "''")));
        // One question for all, and without a prepared statement, which no pooler would keep. The
        // setting is for its transaction alone.
        let commit = if words.is_empty() { "" } else { COMMIT_WITHOUT_SYNC };
        let question: String = iter::once(commit.to_string()).chain(each).collect();
        Ok(self.client.batch_execute(&question).await?)
    }
}

struct PostgresSubscriber {
    inbox: UnboundedReceiver<Result<Notification, BoxError>>,
    driver: AbortHandle,
    own: Option<i32>,
}

#[async_trait]
impl WakeSubscriber for PostgresSubscriber {
    async fn hear(&mut self) -> Result<String, BoxError> {
        while let Some(said) = self.inbox.recv().await {
            let said = said?;
            // Listeners of this process were rung already.
            if Some(said.process_id()) != self.own {
                return Ok(said.payload().to_owned());
            }
        }
        Err("the server ended the connection".into())
    }
}

impl Drop for PostgresSubscriber {
    fn drop(&mut self) {
        self.driver.abort();
    }
}
