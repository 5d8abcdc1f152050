//! Wakes over Redis: publish and subscribe on one channel, `windlass:wake` by default.
//!
//! The message is `q:` and the queue, or `c` for a cancellation, then `@` and who says it: Redis
//! gives a publisher its own messages back, and its listeners were rung already.

use async_trait::async_trait;
use futures_util::StreamExt;
use redis::aio::{MultiplexedConnection, PubSubSink, PubSubStream};
use uuid::Uuid;

use super::remote::{
    BoxError, Remote, RemoteConnection, Transport, WakeOptions, WakePublisher, WakeSubscriber,
    wake_over,
};
use crate::error::Error;

/// Rings processes that listen on the same Redis server under the same name.
///
/// It has a connection to hear and one to speak, and makes them again when one is lost. While
/// there are none, workers poll. Redis keeps nothing of it.
#[derive(Debug)]
pub struct RedisWake {
    remote: Remote,
}

wake_over!(RedisWake);

impl RedisWake {
    /// Connects to the server at `url`, such as `redis://host:6379`, and listens.
    ///
    /// Fails if the server cannot be reached or does not let this user in. Must be called within
    /// a tokio runtime, where a background task keeps the connections.
    pub async fn connect(url: &str) -> Result<Self, Error> {
        Self::connect_with(url, WakeOptions::default()).await
    }

    /// The same with options.
    pub async fn connect_with(url: &str, options: WakeOptions) -> Result<Self, Error> {
        let client = redis::Client::open(url).map_err(|why| Error::WakeAddress {
            kind: "Redis",
            why: why.to_string(),
            example: "redis://host:6379",
        })?;
        let channel = format!("{}:wake", options.name);
        let transport =
            RedisTransport { client, channel, speaker: Uuid::new_v4().simple().to_string() };
        Ok(Self { remote: Remote::start(transport, &options).await? })
    }
}

struct RedisTransport {
    client: redis::Client,
    channel: String,
    speaker: String,
}

// The client would print its password.
impl std::fmt::Debug for RedisTransport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.server())
    }
}

#[async_trait]
impl Transport for RedisTransport {
    fn server(&self) -> String {
        format!("Redis at {}", self.client.get_connection_info().addr())
    }

    async fn connect(&self, listening: bool) -> Result<RemoteConnection, BoxError> {
        let (mut hears, said) = self.client.get_async_pubsub().await?.split();
        if listening {
            hears.subscribe(&self.channel).await?;
        }
        let speaks = self.client.get_multiplexed_async_connection().await?;
        let (channel, speaker) = (self.channel.clone(), self.speaker.clone());
        let subscriber = RedisSubscriber { said, speaker: speaker.clone() };
        let publisher = RedisPublisher { speaks, hears, channel, speaker };
        Ok(RemoteConnection { publisher: Box::new(publisher), subscriber: Box::new(subscriber) })
    }
}

struct RedisPublisher {
    speaks: MultiplexedConnection,
    hears: PubSubSink,
    channel: String,
    speaker: String,
}

#[async_trait]
impl WakePublisher for RedisPublisher {
    async fn say(&mut self, words: &[String]) -> Result<(), BoxError> {
        if words.is_empty() {
            // Both must be alive.
            let _: redis::Value = self.hears.ping().await?;
            return Ok(redis::cmd("PING").exec_async(&mut self.speaks).await?);
        }
        let mut all = redis::pipe();
        for word in words {
            let message = format!("{word}@{}", self.speaker);
            all.cmd("PUBLISH").arg(&self.channel).arg(message).ignore();
        }
        Ok(all.exec_async(&mut self.speaks).await?)
    }
}

struct RedisSubscriber {
    said: PubSubStream,
    speaker: String,
}

#[async_trait]
impl WakeSubscriber for RedisSubscriber {
    async fn hear(&mut self) -> Result<String, BoxError> {
        while let Some(message) = self.said.next().await {
            let said = String::from_utf8_lossy(message.get_payload_bytes()).into_owned();
            match said.split_once('@') {
                Some((_, speaker)) if speaker == self.speaker => {}
                Some((word, _)) => return Ok(word.to_owned()),
                None => return Ok(said),
            }
        }
        Err("the server ended the connection".into())
    }
}
