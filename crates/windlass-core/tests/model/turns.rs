//! The turns of a test case, of three objects only, so that they meet each other.

use std::sync::LazyLock;

use proptest::collection::vec;
use proptest::option::weighted;
use proptest::prelude::*;
use proptest::sample::select;
use windlass_core::name::Name;
use windlass_core::object::{Address, ObjectEvent, ObjectStatus, Purge, RunResult, Turn};
use windlass_core::outcome::ErrorText;

use crate::steps::{Begin, Draft, begin, draft, seconds};

static OBJECTS: LazyLock<Vec<Address>> = LazyLock::new(|| {
    let name = |text: &str| Name::new(text).expect("a proper name");
    let address = |key| Address::new(name("loop"), name("tokens"), key).expect("a proper key");
    ["a", "b", "c"].map(address).to_vec()
});

pub(crate) fn object(number: u8) -> Address {
    OBJECTS[usize::from(number) % OBJECTS.len()].clone()
}

/// A turn to make.
#[derive(Clone, Debug)]
pub(crate) struct Spin {
    pub(crate) object: u8,
    /// Made for the version there is, or for this one.
    pub(crate) stale: Option<u64>,
    state: Option<u8>,
    status: Option<(ObjectStatus, bool)>,
    ran: Option<RunResult>,
    pub(crate) alarm: AlarmDraft,
    /// Each with whether it is bound to the object.
    pub(crate) jobs: Vec<(Draft, bool)>,
    news: bool,
    purge: Purge,
}

/// What becomes of the alarm.
#[derive(Clone, Debug)]
pub(crate) enum AlarmDraft {
    Keep,
    Cancel,
    Move(Begin),
    /// One that is like all others but for its time.
    Plain(Draft),
    /// Any job, bound to the object or to none.
    Any(Draft, bool),
}

impl Spin {
    /// The turn without its jobs.
    pub(crate) fn turn(&self, version: u64) -> Turn {
        let mut turn = Turn::new(object(self.object), self.stale.unwrap_or(version));
        turn.state = self.state.map(|byte| vec![byte; usize::from(byte)].into());
        turn.status = self
            .status
            .map(|(status, why)| (status, why.then(|| ErrorText::new("someone said so"))));
        turn.ran = self.ran;
        if self.news {
            let topic = Name::new("loop.told").expect("a proper name");
            turn.news.push(ObjectEvent { topic, detail: "{}".to_string() });
        }
        turn.purge = self.purge;
        turn
    }
}

pub(crate) fn spin() -> impl Strategy<Value = Spin> {
    let all = vec![ObjectStatus::Active, ObjectStatus::Stopped, ObjectStatus::Failed];
    let status = weighted(0.2, (select(all), any::<bool>()));
    let ran = select(vec![None, Some(RunResult::Well), Some(RunResult::Badly)]);
    let jobs = prop_oneof![3 => Just(Vec::new()), 1 => vec((draft(), any::<bool>()), 1..=2)];
    let purge = prop_oneof![
        20 => Just(Purge::Keep),
        1 => Just(Purge::Now),
        2 => select(vec![0, 2, 60]).prop_map(|delay| Purge::After(seconds(delay))),
        1 => Just(Purge::Never),
    ];
    let stale = weighted(0.08, 0u64..4);
    let plain = (0u8..3, stale, weighted(0.6, 0u8..9), status, ran);
    (plain, alarm(), jobs, weighted(0.2, Just(())), purge).prop_map(
        |((object, stale, state, status, ran), alarm, jobs, news, purge)| Spin {
            object,
            stale,
            state,
            status,
            ran,
            alarm,
            jobs,
            news: news.is_some(),
            purge,
        },
    )
}

fn alarm() -> impl Strategy<Value = AlarmDraft> {
    prop_oneof![
        3 => Just(AlarmDraft::Keep),
        1 => Just(AlarmDraft::Cancel),
        1 => begin().prop_map(AlarmDraft::Move),
        5 => draft().prop_map(AlarmDraft::Plain),
        2 => (draft(), any::<bool>()).prop_map(|(draft, bound)| AlarmDraft::Any(draft, bound)),
    ]
}
