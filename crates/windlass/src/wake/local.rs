//! Wakes within one process.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use async_trait::async_trait;
use tokio::sync::{Notify, watch};

use super::{Interest, Listener, Ring, Rung, Wake};
use crate::clock::{Clock, SystemClock};

/// Rings everyone in this process who listens, at once.
#[derive(Debug, Default)]
pub struct LocalWake {
    ears: Mutex<Vec<Weak<QueueListener>>>,
    /// Somebody listens who did not before.
    came: Notify,
    log: RingLog,
}

/// Different rings that are remembered. More would say no more than "look everywhere".
const REMEMBERED: usize = 10_000;

/// When each ring came last, for those who pass rings on. Nothing is noted until somebody asks.
#[derive(Debug)]
struct RingLog {
    asked: AtomicBool,
    /// The number of the last ring.
    number: watch::Sender<u64>,
    last: Mutex<LastRings>,
}

#[derive(Debug)]
struct LastRings {
    by_ring: BTreeMap<Ring, u64>,
    /// Before this number it is not known what was rung.
    since: u64,
}

impl Default for RingLog {
    /// Numbers begin at the time, so that whoever asks with a number of an earlier process is not
    /// told that it has missed nothing.
    fn default() -> Self {
        let since = u64::try_from(SystemClock::new().now().wall.as_micros()).unwrap_or(0);
        let last = Mutex::new(LastRings { by_ring: BTreeMap::new(), since });
        Self { asked: AtomicBool::new(false), number: watch::Sender::new(since), last }
    }
}

impl RingLog {
    fn last(&self) -> MutexGuard<'_, LastRings> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes note of rings; of none in particular if everyone was rung.
    fn note(&self, rings: Option<&[Ring]>) {
        if !self.asked.load(Ordering::SeqCst) {
            return;
        }
        let mut last = self.last();
        let number = *self.number.borrow() + 1;
        match rings {
            Some(rings) if last.by_ring.len() < REMEMBERED => {
                for ring in rings {
                    match last.by_ring.get_mut(ring) {
                        Some(known) => *known = number,
                        None => drop(last.by_ring.insert(ring.clone(), number)),
                    }
                }
            }
            _ => {
                last.by_ring.clear();
                last.since = number;
            }
        }
        self.number.send_replace(number);
    }

    /// The rings after a number that somebody is interested in; nothing if there are none.
    fn after(&self, after: u64, interests: &[Interest]) -> Option<Rung> {
        let last = self.last();
        let upto = *self.number.borrow();
        if after < last.since || after > upto {
            return Some(Rung { upto, rings: None });
        }
        let wanted = |ring: &Ring| interests.iter().any(|interest| interest.includes(ring));
        let rung = last.by_ring.iter().filter(|(ring, number)| **number > after && wanted(ring));
        let rings: Vec<Ring> = rung.map(|(ring, _)| ring.clone()).collect();
        (!rings.is_empty()).then_some(Rung { upto, rings: Some(rings) })
    }
}

/// One who listens, to queues or to cancellations. The wake holds it weakly: whoever drops its
/// listener is forgotten at the next ring.
#[derive(Debug)]
struct QueueListener {
    interest: Interest,
    rung: Notify,
}

impl LocalWake {
    /// A wake nobody listens to yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Rings whoever wants any of these.
    pub(crate) fn ring_now(&self, rings: &[Ring]) {
        self.ring_if(|interest| rings.iter().any(|ring| interest.includes(ring)));
        self.log.note(Some(rings));
    }

    /// Rings everyone: nobody knows what was missed.
    pub(crate) fn ring_everyone(&self) {
        self.ring_if(|_| true);
        self.log.note(None);
    }

    /// Waits until somebody listens who does not when this is called.
    pub(crate) fn someone_more(&self) -> impl Future<Output = ()> + '_ {
        self.came.notified()
    }

    /// What those who listen now want to hear.
    pub(crate) fn interests(&self) -> Vec<Interest> {
        let mut interests = Vec::new();
        for ear in self.ears().iter().filter_map(Weak::upgrade) {
            if !interests.contains(&ear.interest) {
                interests.push(ear.interest.clone());
            }
        }
        interests
    }

    fn ears(&self) -> MutexGuard<'_, Vec<Weak<QueueListener>>> {
        self.ears.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ring_if(&self, wanted: impl Fn(&Interest) -> bool) {
        self.ears().retain(|ear| {
            let Some(ear) = ear.upgrade() else { return false };
            if wanted(&ear.interest) {
                // Keeps one ring for a listener that is not waiting at this moment.
                ear.rung.notify_one();
            }
            true
        });
    }
}

#[async_trait]
impl Wake for LocalWake {
    async fn ring(&self, rings: &[Ring]) {
        self.ring_now(rings);
    }

    fn listen(&self, interest: Interest) -> Box<dyn Listener> {
        let ear = Arc::new(QueueListener { interest, rung: Notify::new() });
        self.ears().push(Arc::downgrade(&ear));
        self.came.notify_waiters();
        Box::new(LocalListener { ear })
    }

    async fn rung_after(&self, after: Option<u64>, interests: &[Interest]) -> Rung {
        self.log.asked.store(true, Ordering::SeqCst);
        let mut number = self.log.number.subscribe();
        let Some(after) = after else {
            let upto = *number.borrow();
            return Rung { upto, rings: Some(Vec::new()) };
        };
        loop {
            number.mark_unchanged();
            if let Some(rung) = self.log.after(after, interests) {
                return rung;
            }
            if number.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }
}

struct LocalListener {
    ear: Arc<QueueListener>,
}

#[async_trait]
impl Listener for LocalListener {
    async fn heard(&mut self) {
        self.ear.rung.notified().await;
    }
}
