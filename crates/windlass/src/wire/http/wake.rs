//! Wakes over a server: its rings are heard here, and rings of here are heard there.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio::time::timeout;

use super::super::{Call, Connection, Fault, Response, pass_rings_on};
use super::connection::HttpConnection;
use crate::clock::{Clock, SystemClock};
use crate::wake::{Interest, Listener, LocalWake, Ring, Rung, Wake};

/// The first pause before rings are asked for again; it doubles up to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LAST_PAUSE: Duration = Duration::from_secs(5);

/// How long [`Wake::flush`] may take: whoever ends a process wants it to end.
const FLUSH: Duration = Duration::from_millis(500);

/// Rings kept for a server that is away. More would say no more than "look again".
const KEPT_RINGS: usize = 1_000;

/// The wakes of a server. Losing it costs a poll interval; it comes back by itself, and then
/// everyone who listens is rung once.
#[derive(Debug)]
pub struct HttpWake {
    shared: Arc<HttpWakeShared>,
    tasks: [AbortHandle; 2],
}

#[derive(Debug)]
struct HttpWakeShared {
    local: LocalWake,
    connection: HttpConnection,
    /// What is to be sent. The same ring stands once, however often it came.
    unsent: Mutex<BTreeSet<Ring>>,
    more: Notify,
    all_sent: watch::Sender<bool>,
}

impl HttpWakeShared {
    fn unsent(&self) -> MutexGuard<'_, BTreeSet<Ring>> {
        self.unsent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HttpWake {
    /// Begins to listen to a server, now or when it is there.
    ///
    /// Must be called within a tokio runtime.
    pub fn over(connection: HttpConnection) -> Self {
        let shared = Arc::new(HttpWakeShared {
            local: LocalWake::new(),
            connection,
            unsent: Mutex::default(),
            more: Notify::new(),
            all_sent: watch::Sender::new(true),
        });
        let hear = tokio::spawn(hear(shared.clone())).abort_handle();
        let say = tokio::spawn(say(shared.clone())).abort_handle();
        Self { shared, tasks: [hear, say] }
    }
}

impl Drop for HttpWake {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

/// A connection that makes each call once: that rings were missed must be noticed.
#[derive(Debug)]
struct WithoutPatience(HttpConnection);

#[async_trait]
impl Connection for WithoutPatience {
    async fn send(&self, call: Call) -> Result<Response, Fault> {
        self.0.send_once(call).await
    }
}

/// Passes rings of the server on, for as long as the wake lives.
async fn hear(shared: Arc<HttpWakeShared>) {
    let connection = WithoutPatience(shared.connection.clone());
    let clock = SystemClock::new();
    let mut pause = FIRST_PAUSE;
    loop {
        let began = clock.now().steady;
        let fault = pass_rings_on(&connection, &shared.local).await;
        if clock.now().steady.since(began) > LAST_PAUSE {
            pause = FIRST_PAUSE;
        }
        tracing::debug!(?fault, "wakes are lost; workers poll until they come back");
        clock.sleep(pause).await;
        pause = (pause * 2).min(LAST_PAUSE);
    }
}

/// Sends rings of here. What comes while a call is under way is one more call.
async fn say(shared: Arc<HttpWakeShared>) {
    loop {
        shared.more.notified().await;
        loop {
            let rings: Vec<Ring> = std::mem::take(&mut *shared.unsent()).into_iter().collect();
            if rings.is_empty() {
                break;
            }
            // If it does not arrive for as long as the patience lasts, workers there poll.
            let _ = shared.connection.send(Call::Ring(rings)).await;
        }
        let unsent = shared.unsent();
        shared.all_sent.send_replace(unsent.is_empty());
    }
}

#[async_trait]
impl Wake for HttpWake {
    async fn ring(&self, rings: &[Ring]) {
        self.shared.local.ring_now(rings);
        let mut unsent = self.shared.unsent();
        for ring in rings {
            if unsent.len() < KEPT_RINGS {
                unsent.insert(ring.clone());
            }
        }
        if !unsent.is_empty() {
            self.shared.all_sent.send_replace(false);
        }
        drop(unsent);
        self.shared.more.notify_one();
    }

    fn listen(&self, interest: Interest) -> Box<dyn Listener> {
        self.shared.local.listen(interest)
    }

    async fn flush(&self) {
        let mut all_sent = self.shared.all_sent.subscribe();
        let _ = timeout(FLUSH, all_sent.wait_for(|sent| *sent)).await;
    }

    async fn rung_after(&self, after: Option<u64>, interests: &[Interest]) -> Rung {
        self.shared.local.rung_after(after, interests).await
    }
}
