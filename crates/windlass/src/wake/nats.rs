//! Wakes over NATS: core publish and subscribe on one subject, `windlass.wake` by default.
//!
//! The message is `q:` and the queue, or `c` for a cancellation. The client could reconnect by
//! itself, but says so before it listens again, and does not say what was lost with the old
//! connection; so one that is lost is left, and a new one made, like everywhere else.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_nats::{Client, ConnectOptions, Event, RequestErrorKind, ServerAddr, Subscriber};
use async_trait::async_trait;
use futures_util::StreamExt;
use tokio::sync::Notify;

use super::remote::{
    BoxError, Remote, RemoteConnection, Transport, WakeOptions, WakePublisher, WakeSubscriber,
    wake_over,
};
use crate::error::Error;

/// Rings processes that listen on the same NATS server or cluster under the same name.
///
/// It has one connection, and makes it again when it is lost. While there is none, workers poll.
/// JetStream is not needed.
#[derive(Debug)]
pub struct NatsWake {
    remote: Remote,
}

wake_over!(NatsWake);

impl NatsWake {
    /// Connects to the server at `url`, such as `nats://host:4222`, and listens.
    ///
    /// Fails if the server cannot be reached or does not let this user in. Must be called within
    /// a tokio runtime, where a background task keeps the connection.
    pub async fn connect(url: &str) -> Result<Self, Error> {
        Self::connect_with(url, WakeOptions::default()).await
    }

    /// The same with options.
    pub async fn connect_with(url: &str, options: WakeOptions) -> Result<Self, Error> {
        let address = url.parse().map_err(|why: std::io::Error| Error::WakeAddress {
            kind: "NATS",
            why: why.to_string(),
            example: "nats://host:4222",
        })?;
        let transport = NatsTransport { address, subject: format!("{}.wake", options.name) };
        Ok(Self { remote: Remote::start(transport, &options).await? })
    }
}

/// When a client that was lost may connect by itself: it is left by then, and finds that out.
const TOO_LATE: Duration = Duration::from_secs(10);

struct NatsTransport {
    address: ServerAddr,
    subject: String,
}

// The address would print its password.
impl std::fmt::Debug for NatsTransport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.server())
    }
}

#[async_trait]
impl Transport for NatsTransport {
    fn server(&self) -> String {
        format!("NATS at {}:{}", self.address.host(), self.address.port())
    }

    async fn connect(&self, listening: bool) -> Result<RemoteConnection, BoxError> {
        let lost = Arc::new(Notify::new());
        let (tell, tell_early) = (lost.clone(), lost.clone());
        let is_first = AtomicBool::new(true);
        let client = ConnectOptions::new()
            .name("windlass")
            // Listeners of this process were rung already.
            .no_echo()
            .max_reconnects(1)
            .reconnect_delay_callback(move |_| {
                if is_first.swap(false, Ordering::SeqCst) {
                    return Duration::ZERO;
                }
                tell_early.notify_one();
                TOO_LATE
            })
            .event_callback(move |event| {
                if matches!(event, Event::Disconnected | Event::Closed) {
                    tell.notify_one();
                }
                std::future::ready(())
            })
            .connect(self.address.clone())
            .await?;
        let said = match listening {
            true => Some(client.subscribe(self.subject.clone()).await?),
            false => None,
        };
        let mut publisher = NatsPublisher { client, subject: self.subject.clone() };
        // The server takes things in their order: when it answers this, it has subscribed us.
        publisher.round_trip().await?;
        Ok(RemoteConnection {
            publisher: Box::new(publisher),
            subscriber: Box::new(NatsSubscriber { said, lost }),
        })
    }
}

struct NatsPublisher {
    client: Client,
    subject: String,
}

impl NatsPublisher {
    /// Asks for something that nobody answers, which the server then says.
    async fn round_trip(&mut self) -> Result<(), BoxError> {
        let nobody = format!("{}.nobody", self.subject);
        match self.client.request(nobody, "".into()).await {
            Err(why) if why.kind() != RequestErrorKind::NoResponders => Err(why.into()),
            Ok(_) | Err(_) => Ok(()),
        }
    }
}

#[async_trait]
impl WakePublisher for NatsPublisher {
    async fn say(&mut self, words: &[String]) -> Result<(), BoxError> {
        for word in words {
            self.client.publish(self.subject.clone(), word.clone().into()).await?;
        }
        // Publishing only puts it down to be sent. A round trip tells that it was, and that the
        // connection is alive.
        self.round_trip().await
    }
}

struct NatsSubscriber {
    said: Option<Subscriber>,
    lost: Arc<Notify>,
}

#[async_trait]
impl WakeSubscriber for NatsSubscriber {
    async fn hear(&mut self) -> Result<String, BoxError> {
        let next = async {
            match &mut self.said {
                Some(said) => said.next().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            message = next => match message {
                Some(message) => Ok(String::from_utf8_lossy(&message.payload).into_owned()),
                None => Err("the subscription has ended".into()),
            },
            () = self.lost.notified() => Err("the connection is lost".into()),
        }
    }
}
