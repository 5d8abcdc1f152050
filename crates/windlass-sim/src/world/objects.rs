//! Clients that make turns of objects, and what workers make of their jobs.

use std::sync::Arc;

use windlass_core::job::{Lane, NewJob, Start};
use windlass_core::name::Name;
use windlass_core::object::{Address, Alarm, ObjectEvent, ObjectStatus, Purge, RunResult, Turn};
use windlass_core::refusal::Refusal;

use super::World;
use crate::answer::{Answer, Failure, Reply, Request};

const KEYS: [&str; 3] = ["one", "two", "three"];

impl World {
    /// A turn as a client sends it.
    pub(super) fn client_spin(&mut self) -> Request {
        let object = self.some_object();
        let mut turn = self.spin(object);
        turn.purge = match self.random.below(20) {
            0 => Purge::Now,
            1 => Purge::After(self.millis(1, 5_000)),
            2 => Purge::Never,
            _ => Purge::Keep,
        };
        Request::Turn(Box::new(turn))
    }

    /// The turn with which the job of an object is settled.
    pub(super) fn worker_spin(&mut self, object: &Address, ran: RunResult) -> Turn {
        let mut turn = self.spin(object.clone());
        turn.ran = Some(ran);
        turn
    }

    fn spin(&mut self, object: Address) -> Turn {
        let version = self.versions.get(&object).copied().unwrap_or(0);
        let mut turn = Turn::new(object, version);
        let bytes = self.random.spread(1, 500) as usize;
        turn.state =
            self.random.chance(800).then(|| vec![self.random.number() as u8; bytes].into());
        turn.status = self.random.chance(300).then_some((ObjectStatus::Active, None));
        turn.alarm = match self.random.below(10) {
            0 => Alarm::Cancel,
            1..=6 => Alarm::Set(Arc::new(self.object_job(&turn.object, Vec::new()))),
            _ => Alarm::Keep,
        };
        if self.random.chance(200) {
            let fill = self.random.number() as u8;
            turn.jobs.push(Arc::new(self.object_job(&turn.object, vec![fill; 40])));
        }
        // So that every turn is told of, and a crash leaves no doubt whether it counts.
        let topic = Name::new("loop.turned").expect("a valid name");
        turn.news.push(ObjectEvent { topic, detail: "{}".to_string() });
        turn
    }

    /// A job bound to an object; without a payload it is an alarm.
    fn object_job(&mut self, object: &Address, payload: Vec<u8>) -> NewJob {
        let kind = self.settings.rules.kinds.keys().next().expect("there is a kind").clone();
        let queue = self.settings.queues[0].clone();
        let id = self.fresh_id();
        // Few of them are known to those who meddle with jobs.
        if self.random.chance(700) {
            self.known.pop();
        }
        let mut job = NewJob::new(id, kind, queue, payload);
        job.object = Some(object.clone());
        job.lane = Some(Lane::Key(object.key().to_string()));
        job.start = Start::After(self.millis(1, 3_000));
        job
    }

    fn some_object(&mut self) -> Address {
        let name = |text: &str| Name::new(text).expect("a valid name");
        let key = *self.random.pick(&KEYS);
        Address::new(name("loop"), name("tokens"), key).expect("a valid key")
    }

    /// Whoever made a turn knows the version afterwards, or looks it up.
    pub(super) fn note_version(&mut self, object: &Address, answer: &Answer) {
        let version = match answer {
            Ok(Reply::Turned(turned)) => turned.version,
            Err(Failure::Refused(Refusal::ObjectChanged { version, .. })) => *version,
            Ok(_) | Err(_) => return,
        };
        self.versions.insert(object.clone(), version);
    }
}
