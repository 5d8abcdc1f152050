//! WorkerPool: W1–W66, one named test each where a test says it best.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use windlass::primitives::{
    Cancelled, DeadEvent, EmptyLane, LaneState, PoolContext, PoolEvent, Queued, WorkerPool,
};
use windlass::store::Store;
use windlass::testing::{Setup, crash_everywhere};
use windlass::{
    BoxError, Engine, Error, Failure, Jitter, JobId, NewJobId, Priority, Refusal, Retry, StateName,
    Timestamp,
};

use crate::common::{Directory, Rig, SECOND, pass, rig};

/// What a handler is told to do.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Order {
    number: u32,
    key: String,
    takes_ms: u64,
    fails: u32,
}

fn order(number: u32) -> Order {
    Order { number, ..Order::default() }
}

/// Notes what its handler saw.
#[derive(Clone, Default)]
struct Seen {
    starts: Arc<Mutex<Vec<(u32, u32, u32)>>>,
    ends: Arc<Mutex<Vec<u32>>>,
    running: Arc<Mutex<BTreeMap<String, u32>>>,
    most: Arc<Mutex<u32>>,
    dead: Arc<Mutex<Vec<DeadEvent<Order>>>>,
    empty: Arc<Mutex<Vec<EmptyLane>>>,
}

impl Seen {
    /// Number, lane and run of every start.
    fn starts(&self) -> Vec<(u32, u32, u32)> {
        self.starts.lock().expect("whole").clone()
    }

    fn ends(&self) -> Vec<u32> {
        self.ends.lock().expect("whole").clone()
    }

    fn empty(&self) -> Vec<EmptyLane> {
        self.empty.lock().expect("whole").clone()
    }

    async fn handle(self, order: Order, context: PoolContext) -> Result<(), Failure> {
        let lane = context.lane();
        // Its key, where the number of lanes changes under the handler's feet.
        let line = if order.key.is_empty() { lane.to_string() } else { order.key.clone() };
        {
            self.starts.lock().expect("whole").push((order.number, lane, context.number()));
            let mut running = self.running.lock().expect("whole");
            *running.entry(line.clone()).or_default() += 1;
            assert_eq!(running[&line], 1, "two at once in {line}");
            let all = running.values().sum();
            let mut most = self.most.lock().expect("whole");
            *most = (*most).max(all);
        }
        tokio::time::sleep(Duration::from_millis(order.takes_ms)).await;
        *self.running.lock().expect("whole").entry(line).or_default() -= 1;
        if context.number() <= order.fails {
            return Err(Failure::retry("told to fail"));
        }
        self.ends.lock().expect("whole").push(order.number);
        Ok(())
    }
}

fn pool(lanes: u32, seen: &Seen) -> WorkerPool<Order> {
    let (handler, dead, empty) = (seen.clone(), seen.clone(), seen.clone());
    WorkerPool::new("orders", lanes, move |order, context| handler.clone().handle(order, context))
        .on_dead_letter(move |letter| {
            dead.dead.lock().expect("whole").push(letter);
            async { Ok::<_, Failure>(()) }
        })
        .on_empty(move |lane| {
            empty.empty.lock().expect("whole").push(lane);
            async { Ok::<_, Failure>(()) }
        })
}

async fn start(engine: &Engine, pool: &WorkerPool<Order>) -> windlass::Worker {
    engine.worker().pool(pool).slots(50).start().await.expect("it starts")
}

async fn with_lanes(lanes: u32) -> (Rig, Seen, WorkerPool<Order>) {
    let (rig, seen) = (rig().await, Seen::default());
    let pool = pool(lanes, &seen);
    (rig, seen, pool)
}

#[tokio::test(start_paused = true)]
async fn each_lane_runs_one_at_a_time_and_all_lanes_run_at_once() {
    let (rig, seen, pool) = with_lanes(3).await;
    let orders = (0..30).map(|number| Order { takes_ms: 10, ..order(number) });
    rig.engine.pool(&pool).enqueue_many(orders).await.expect("accepted");
    let _worker = start(&rig.engine, &pool).await;
    pass(SECOND * 60).await;
    assert_eq!(seen.ends().len(), 30);
    assert_eq!(*seen.most.lock().expect("whole"), 3, "as many at once as there are lanes");
}

#[tokio::test(start_paused = true)]
async fn a_key_always_goes_to_one_lane_and_events_without_one_are_spread_evenly() {
    let (rig, _, pool) = with_lanes(4).await;
    let pool = rig.engine.pool(&pool);
    for key in 0..100 {
        let event = || PoolEvent::new(order(0)).key(format!("customer-{key}"));
        let first = pool.enqueue(event()).await.expect("accepted").lane;
        let second = pool.enqueue(event()).await.expect("accepted").lane;
        assert_eq!(first, second);
    }
    pool.clear(None).await.expect("cleared");
    pool.enqueue_many((0..102).map(order)).await.expect("accepted");
    let status = pool.status().await.expect("counted");
    let pending: Vec<u64> = status.lanes.iter().map(|lane| lane.pending).collect();
    assert!(pending.iter().all(|lane| (25..=26).contains(lane)), "{pending:?}");
}

#[tokio::test(start_paused = true)]
async fn an_enqueue_tells_sequence_position_lane_and_depth() {
    let (rig, _, pool) = with_lanes(1).await;
    let pool = rig.engine.pool(&pool);
    let first = pool.enqueue(order(1)).await.expect("accepted");
    let second = pool.enqueue(order(2)).await.expect("accepted");
    let urgent = PoolEvent::new(order(3)).priority(Priority::HIGH);
    let third = pool.enqueue(urgent).await.expect("accepted");
    assert_eq!((first.position, first.lane, first.depth), (Some(0), Some(0), 1));
    assert_eq!((second.position, second.sequence), (Some(1), first.sequence + 1));
    assert_eq!(third.position, Some(0), "ahead of the others");
}

#[tokio::test(start_paused = true)]
async fn the_same_event_id_is_stored_once_and_answered_with_where_it_stands() {
    let (rig, _, pool) = with_lanes(2).await;
    let pool = rig.engine.pool(&pool);
    let event = || PoolEvent::new(order(1)).key("k").id("event-1");
    let first = pool.enqueue(event()).await.expect("accepted");
    let again = pool.enqueue(event()).await.expect("answered");
    assert!(!first.duplicate);
    assert_eq!(again, Queued { duplicate: true, ..first });
    assert_eq!(pool.status().await.expect("counted").pending, 1);
}

#[tokio::test(start_paused = true)]
async fn an_event_that_the_pool_refuses_leaves_nothing_behind() {
    let (rig, _, pool) = with_lanes(1).await;
    let strict = pool.validate(|order| match order.number {
        0 => Err("an order has a number".to_string()),
        _ => Ok(()),
    });
    let pool = rig.engine.pool(&strict);
    let refused = pool.enqueue_many([order(1), order(0)]).await;
    assert!(matches!(refused, Err(Error::Validation { .. })), "{refused:?}");
    assert_eq!(pool.status().await.expect("counted").pending, 0);
}

#[tokio::test(start_paused = true)]
async fn a_lane_beyond_its_depth_refuses_exactly_and_takes_more_when_one_has_ended() {
    let (rig, seen, pool) = with_lanes(2).await;
    let pool = pool.lane_depth(3);
    let client = rig.engine.pool(&pool);
    client.enqueue_many((0..6).map(order)).await.expect("six fit in two lanes");
    let refused = client.enqueue(order(6)).await;
    let Err(Error::Refused(Refusal::LaneFull { lane: 0, depth: 3, limit: 3, .. })) = refused else {
        panic!("{refused:?}");
    };
    let refused = client.enqueue_many([order(7)]).await;
    assert!(matches!(refused, Err(Error::Refused(Refusal::LaneFull { .. }))), "{refused:?}");
    let _worker = start(&rig.engine, &pool).await;
    pass(SECOND).await;
    client.enqueue(order(8)).await.expect("there is room");
    pass(SECOND).await;
    assert_eq!(seen.ends().len(), 7);
}

#[tokio::test(start_paused = true)]
async fn concurrent_enqueues_never_pass_the_depth_limit() {
    let (rig, _, pool) = with_lanes(1).await;
    let pool = pool.lane_depth(10);
    let calls = (0..50).map(|number| {
        let (engine, pool) = (rig.engine.clone(), pool.clone());
        tokio::spawn(async move { engine.pool(&pool).enqueue(order(number)).await })
    });
    let mut accepted = 0;
    for call in calls.collect::<Vec<_>>() {
        accepted += usize::from(call.await.expect("no panic").is_ok());
    }
    assert_eq!(accepted, 10);
}

#[tokio::test(start_paused = true)]
async fn a_lane_drains_by_priority_then_in_order() {
    let (rig, seen, pool) = with_lanes(1).await;
    let client = rig.engine.pool(&pool);
    for number in 0..60 {
        let priority = Priority([0, 10, -10][number as usize % 3]);
        let event = PoolEvent::new(order(number)).priority(priority);
        client.enqueue(event).await.expect("accepted");
    }
    let _worker = start(&rig.engine, &pool).await;
    pass(SECOND * 10).await;
    let ranked = |class: u32| (0..60).filter(move |number| number % 3 == class);
    let expected: Vec<u32> = ranked(1).chain(ranked(0)).chain(ranked(2)).collect();
    assert_eq!(seen.ends(), expected);
}

#[tokio::test(start_paused = true)]
async fn a_failed_event_holds_its_own_key_and_no_other() {
    let (rig, seen, pool) = with_lanes(1).await;
    let client = rig.engine.pool(&pool);
    let event =
        |number, key: &str, fails| PoolEvent::new(Order { fails, ..order(number) }).key(key);
    for event in [event(1, "a", 1), event(2, "a", 0), event(3, "b", 0)] {
        client.enqueue(event).await.expect("accepted");
    }
    let _worker = start(&rig.engine, &pool).await;
    pass(SECOND * 30).await;
    let order: Vec<u32> = seen.ends();
    assert_eq!(order, [3, 1, 2], "key b goes on while a waits, and a keeps its order");
}

#[tokio::test(start_paused = true)]
async fn retries_grow_and_a_dead_letter_is_told_and_the_lane_goes_on() {
    let (rig, seen, pool) = with_lanes(1).await;
    let pool = pool.options(|options| options.retry(Retry::default().up_to(3)));
    let client = rig.engine.pool(&pool);
    client
        .enqueue(PoolEvent::new(Order { fails: 9, ..order(1) }).key("k"))
        .await
        .expect("accepted");
    client.enqueue(PoolEvent::new(order(2)).key("k")).await.expect("accepted");
    let _worker = start(&rig.engine, &pool).await;
    pass(SECOND * 60).await;
    let runs: Vec<u32> = seen.starts().iter().map(|(_, _, run)| *run).collect();
    assert_eq!(runs, [1, 2, 3, 1]);
    assert_eq!(seen.ends(), [2]);
    let dead = seen.dead.lock().expect("whole").clone();
    let [letter] = &dead[..] else { panic!("{dead:?}") };
    assert_eq!((letter.event.number, letter.attempts, letter.lane), (1, 3, 0));
    assert!(letter.error.contains("told to fail") && letter.failed_at > letter.enqueued_at);
    let status = client.status().await.expect("counted");
    assert_eq!((status.completed, status.lanes[0].dead), (1, 1), "counted apart");
}

#[tokio::test(start_paused = true)]
async fn on_empty_is_called_once_per_drain_to_empty() {
    let (rig, seen, pool) = with_lanes(1).await;
    let client = rig.engine.pool(&pool);
    let _worker = start(&rig.engine, &pool).await;
    client.enqueue_many([order(1), order(2), order(3)]).await.expect("accepted");
    pass(SECOND).await;
    let told = |completed| EmptyLane { lane: 0, completed, pool: "orders".into() };
    assert_eq!(seen.empty(), [told(3)]);
    client.enqueue(order(4)).await.expect("accepted");
    pass(SECOND).await;
    assert_eq!(seen.empty(), [told(3), told(4)]);
}

#[tokio::test(start_paused = true)]
async fn a_paused_pool_accepts_and_runs_nothing_and_goes_on_when_resumed() {
    let (rig, seen, pool) = with_lanes(2).await;
    let client = rig.engine.pool(&pool);
    let _worker = start(&rig.engine, &pool).await;
    client.pause(None).await.expect("paused");
    client.enqueue_many((0..10).map(order)).await.expect("accepted");
    pass(SECOND * 60).await;
    let status = client.status().await.expect("counted");
    assert_eq!((status.pending, status.paused, seen.ends().len()), (10, 2, 0));
    client.resume(None).await.expect("resumed");
    pass(SECOND).await;
    assert_eq!(seen.ends().len(), 10);
}

#[tokio::test(start_paused = true)]
async fn one_lane_can_be_paused_and_cleared_alone() {
    let (rig, seen, pool) = with_lanes(2).await;
    let client = rig.engine.pool(&pool);
    let _worker = start(&rig.engine, &pool).await;
    client.pause(Some(1)).await.expect("paused");
    client.enqueue_many((0..10).map(order)).await.expect("accepted");
    pass(SECOND).await;
    assert_eq!(seen.ends(), [0, 2, 4, 6, 8]);
    assert_eq!(client.lane_status(1).await.expect("there").state, LaneState::Paused);
    client.pause(Some(0)).await.expect("paused");
    client.enqueue(order(10)).await.expect("accepted");
    assert_eq!(client.clear(Some(1)).await.expect("cleared"), 5);
    client.resume(Some(0)).await.expect("resumed");
    client.resume(Some(1)).await.expect("resumed");
    client.enqueue(order(11)).await.expect("accepted");
    pass(SECOND).await;
    assert_eq!(seen.ends().len(), 7, "what waited in the other lane was not cleared");
    assert!(client.pause(Some(2)).await.is_err(), "there is no such lane");
}

#[tokio::test(start_paused = true)]
async fn a_pause_during_a_back_off_keeps_its_due_time() {
    let (rig, seen, pool) = with_lanes(1).await;
    let client = rig.engine.pool(&pool);
    let _worker = start(&rig.engine, &pool).await;
    client.enqueue(Order { fails: 1, ..order(1) }).await.expect("accepted");
    pass(Duration::from_millis(100)).await;
    client.pause(None).await.expect("paused");
    client.resume(None).await.expect("resumed");
    pass(Duration::from_millis(100)).await;
    assert_eq!(seen.starts().len(), 1, "the back-off was not cut short");
    pass(SECOND * 10).await;
    assert_eq!(seen.ends(), [1]);
}

#[tokio::test(start_paused = true)]
async fn clearing_leaves_the_running_event_alone_and_loses_nothing_that_comes_later() {
    clear_beside_a_running_event(None).await;
    clear_beside_a_running_event(Some(0)).await;
}

async fn clear_beside_a_running_event(lane: Option<u32>) {
    let (rig, seen, pool) = with_lanes(1).await;
    let client = rig.engine.pool(&pool);
    let _worker = start(&rig.engine, &pool).await;
    client.enqueue(Order { takes_ms: 5_000, ..order(1) }).await.expect("accepted");
    client.enqueue(order(2)).await.expect("accepted");
    pass(SECOND).await;
    assert_eq!(client.clear(lane).await.expect("cleared"), 1);
    client.enqueue(order(3)).await.expect("accepted");
    pass(SECOND * 30).await;
    assert_eq!(seen.ends(), [1, 3]);
    let status = client.status().await.expect("counted");
    assert_eq!((status.completed, status.lanes[0].cancelled), (2, 1), "counters stay");
}

#[tokio::test(start_paused = true)]
async fn an_event_is_cancelled_by_its_id_in_whatever_state_it_is() {
    let (rig, _, pool) = with_lanes(1).await;
    let client = rig.engine.pool(&pool);
    let running = client.enqueue(Order { takes_ms: 5_000, ..order(1) }).await.expect("accepted");
    let waiting = client.enqueue(order(2)).await.expect("accepted");
    let _worker = start(&rig.engine, &pool).await;
    pass(SECOND).await;
    assert_eq!(client.cancel(waiting.id).await.expect("answered"), Cancelled::Cancelled);
    assert_eq!(client.cancel(running.id).await.expect("answered"), Cancelled::Requested);
    pass(SECOND * 30).await;
    let ended = client.cancel(running.id).await.expect("answered");
    assert!(matches!(ended, Cancelled::Ended(_)), "{ended:?}");
    let unknown = windlass::new_id();
    assert_eq!(client.cancel(unknown).await.expect("answered"), Cancelled::NotFound);
}

#[tokio::test(start_paused = true)]
async fn an_event_is_cancelled_by_the_id_it_was_given() {
    let (rig, seen, pool) = with_lanes(2).await;
    let other = WorkerPool::new("others", 1, |_: Order, _| async { Ok::<_, Failure>(()) });
    let client = rig.engine.pool(&pool);
    // Its number is the key of what it notes: one that is aborted does not note its end.
    let event = |number: u32, id: &str| {
        let order = Order { takes_ms: 5_000, key: number.to_string(), ..order(number) };
        PoolEvent::new(order).key("k").id(id)
    };
    rig.engine.pool(&other).enqueue(event(9, "waiting")).await.expect("accepted");
    for (number, id) in [(1, "running"), (2, "waiting"), (3, "handled")] {
        client.enqueue(event(number, id)).await.expect("accepted");
    }
    let _worker = start(&rig.engine, &pool).await;
    pass(SECOND).await;
    let cancel = async |id: &str| client.cancel(id).await.expect("answered");
    assert_eq!(cancel("waiting").await, Cancelled::Cancelled);
    assert_eq!(cancel("waiting").await, Cancelled::Ended(StateName::Cancelled));
    assert_eq!(cancel("running").await, Cancelled::Requested);
    assert_eq!(cancel("nobody").await, Cancelled::NotFound);
    pass(SECOND * 30).await;
    assert_eq!(seen.ends(), [3]);
    assert_eq!(cancel("handled").await, Cancelled::Ended(StateName::Completed));
    let waits = rig.engine.pool(&other).status().await.expect("counted").pending;
    assert_eq!(waits, 1, "the event of that id in another pool was not called off");
    assert_eq!(client.cancel(JobId::new()).await.expect("answered"), Cancelled::NotFound);

    // The id is used again after it was forgotten: the event that has not ended is meant.
    pass(Duration::from_secs(86_400)).await;
    client.pause(None).await.expect("paused");
    client.enqueue(event(4, "handled")).await.expect("accepted");
    pass(Duration::from_secs(2 * 86_400)).await;
    assert_eq!(cancel("handled").await, Cancelled::Cancelled, "however long it waits");
}

/// What a context says of a run: all of it but its times, and those.
type Told = (String, Vec<Timestamp>);

fn telling(told: &Arc<Mutex<Vec<Told>>>) -> WorkerPool<Order> {
    let told = told.clone();
    let retry = Retry::constant(SECOND * 7).jitter(Jitter::None).up_to(2);
    WorkerPool::new("orders", 3, move |order: Order, context: PoolContext| {
        let all = format!(
            "{} {:?} #{} run {} retry {} lane {} {} {} {:?}",
            order.number,
            context.key(),
            context.sequence(),
            context.number(),
            context.is_retry(),
            context.lane(),
            context.pool(),
            context.lane_name(),
            context.attempt().priority(),
        );
        let times = vec![context.enqueued_at(), context.started_at()];
        told.lock().expect("whole").push((all, times));
        let fails = context.number() <= order.fails;
        async move { if fails { Err(Failure::retry("told to fail")) } else { Ok(()) } }
    })
    .options(move |options| options.retry(retry.clone()))
}

// W7, W30.
#[tokio::test(start_paused = true)]
async fn a_handler_is_told_everything_of_its_event_on_both_runs() {
    let told = Arc::default();
    let pool = telling(&told);
    let rig = rig().await;
    let event = PoolEvent::new(Order { fails: 1, ..order(5) });
    let event = event.key("customer-7").priority(Priority::HIGH);
    let queued = rig.engine.pool(&pool).enqueue(event).await.expect("accepted");
    let record = rig.engine.find(queued.id).await.expect("answered").expect("it is kept");
    let enqueued_at = record.created_at;
    pass(SECOND * 3).await;
    let _worker = rig.engine.worker().pool(&pool).start().await.expect("it starts");
    pass(SECOND * 8).await;
    let (sequence, lane) = (queued.sequence, queued.lane.expect("it waits"));
    let says = |run: u32, retry: bool| {
        format!(
            "5 Some(\"customer-7\") #{sequence} run {run} retry {retry} lane {lane} orders \
             pool:orders:{lane} {:?}",
            Priority::HIGH
        )
    };
    let began = enqueued_at + SECOND * 3;
    let expected = [
        (says(1, false), vec![enqueued_at, began]),
        (says(2, true), vec![enqueued_at, began + SECOND * 7]),
    ];
    assert_eq!(*told.lock().expect("whole"), expected);
    rig.engine.pool(&pool).enqueue(order(6)).await.expect("accepted");
    pass(SECOND).await;
    let last = told.lock().expect("whole").pop().expect("it ran").0;
    assert!(last.starts_with("6 None "), "{last}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_keeps_its_key_its_priority_and_its_time_over_a_restart() {
    let (directory, told) = (Directory::new(), Arc::default());
    let (address, pool) = (directory.path().display().to_string(), telling(&told));
    let event = || PoolEvent::new(order(5)).key("customer-7").priority(Priority::HIGH).id("e");
    let engine = Engine::open(&address).await.expect("opened");
    let queued = engine.pool(&pool).enqueue(event()).await.expect("accepted");
    let record = engine.find(queued.id).await.expect("answered").expect("it is kept");
    engine.close().await;
    drop(engine);
    let engine = Engine::open(&address).await.expect("opened");
    let _worker = engine.worker().pool(&pool).start().await.expect("it starts");
    engine.pool(&pool).enqueue_and_wait(event()).await.expect("handled");
    let told = told.lock().expect("whole").clone();
    let [(all, times)] = &told[..] else { panic!("{told:?}") };
    assert!(all.starts_with("5 Some(\"customer-7\") "), "{all}");
    assert!(all.ends_with(&format!("{:?}", Priority::HIGH)), "{all}");
    assert_eq!(times[0], record.created_at);
}

#[tokio::test(start_paused = true)]
async fn the_status_of_a_lane_names_what_runs() {
    let (rig, _, pool) = with_lanes(2).await;
    let client = rig.engine.pool(&pool);
    let _worker = start(&rig.engine, &pool).await;
    let first = client.enqueue(Order { takes_ms: 5_000, ..order(1) }).await.expect("accepted");
    pass(SECOND).await;
    let status = client.status().await.expect("counted");
    assert_eq!((status.active, status.lanes.len()), (1, 2));
    let lane = status.lanes[first.lane.expect("it has one") as usize];
    assert_eq!((lane.state, lane.current), (LaneState::Processing, Some(first.sequence)));
    assert_eq!(status.lanes[1].state, LaneState::Idle);
}

#[tokio::test(start_paused = true)]
async fn the_order_of_a_key_holds_while_the_number_of_lanes_changes_under_load() {
    let (rig, seen, pool) = with_lanes(3).await;
    let definitions = [pool.clone(), self::pool(7, &seen), self::pool(2, &seen)];
    let _worker = start(&rig.engine, &pool).await;
    let mut number = 0;
    for definition in definitions.iter().cycle().take(30) {
        let client = rig.engine.pool(definition);
        for key in 0..10 {
            let fails = u32::from(number % 17 == 0);
            let body =
                Order { number, key: format!("k{key}"), takes_ms: u64::from(number % 5), fails };
            client.enqueue(PoolEvent::new(body).key(format!("k{key}"))).await.expect("accepted");
            number += 1;
        }
        pass(Duration::from_millis(3)).await;
    }
    pass(SECOND * 600).await;
    let ends = seen.ends();
    assert_eq!(ends.len(), 300);
    for key in 0..10 {
        let of_key: Vec<u32> = ends.iter().copied().filter(|number| number % 10 == key).collect();
        assert!(of_key.is_sorted(), "key {key}: {of_key:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_pool_that_cannot_work_is_refused_in_words() {
    let (rig, seen, _) = with_lanes(1).await;
    let none = pool(0, &seen);
    let refused = rig.engine.pool(&none).enqueue(order(1)).await;
    assert!(matches!(refused, Err(Error::InvalidSetting { setting: "lanes", .. })), "{refused:?}");
    let started = rig.engine.worker().pool(&none).start().await;
    assert!(matches!(started, Err(Error::InvalidSetting { .. })));
    for window in [Duration::ZERO, Duration::MAX] {
        let refused = rig.engine.pool(&pool(1, &seen).remember_ids(window)).enqueue(order(1)).await;
        let Err(Error::InvalidSetting { setting, .. }) = refused else { panic!("{refused:?}") };
        assert_eq!(setting, "remember_ids");
    }
    let many = pool(1_000_000, &seen);
    let refused = rig.engine.pool(&many).enqueue(order(1)).await;
    assert!(matches!(refused, Err(Error::Refused(Refusal::OutOfBounds { .. }))), "{refused:?}");
    assert!(rig.store.count().await.expect("counted").lines.is_empty(), "nothing was stored");
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_for_an_event_learns_how_it_ended() {
    let (rig, seen, pool) = with_lanes(2).await;
    let pool = pool.options(|options| options.retry(Retry::default().up_to(1)));
    let _worker = start(&rig.engine, &pool).await;
    let client = rig.engine.pool(&pool);
    client.enqueue_and_wait(order(1)).await.expect("it is handled");
    assert_eq!(seen.ends(), [1]);
    let died = client.enqueue_and_wait(Order { fails: 1, ..order(2) }).await;
    assert!(matches!(died, Err(Error::Died { .. })), "{died:?}");
}

/// What is left outside of a process that is killed: the numbers that ran, by key, and those that
/// were acknowledged.
#[derive(Default)]
struct Outside {
    ran: Mutex<BTreeMap<String, Vec<u32>>>,
    acknowledged: Mutex<Vec<(String, u32)>>,
}

async fn note(order: Order, context: PoolContext) -> Result<(), Failure> {
    let outside = context.attempt().state::<Outside>().expect("the kit gives it");
    outside.ran.lock().expect("whole").entry(order.key).or_default().push(order.number);
    Ok(())
}

#[test]
fn no_crash_loses_an_event_or_breaks_the_order_of_a_key() {
    fn noting() -> WorkerPool<Order> {
        WorkerPool::new("orders", 2, note)
    }
    async fn scenario(engine: Engine, outside: Arc<Outside>) -> Result<(), BoxError> {
        let pool = noting();
        for number in 0..6 {
            let key = format!("k{}", number % 2);
            let body = Order { key: key.clone(), ..order(number) };
            engine.pool(&pool).enqueue(PoolEvent::new(body).key(key.clone())).await?;
            outside.acknowledged.lock().expect("whole").push((key, number));
        }
        Ok(())
    }
    async fn check(_: Engine, outside: Arc<Outside>) -> Result<(), BoxError> {
        let ran = outside.ran.lock().expect("whole").clone();
        for (key, number) in outside.acknowledged.lock().expect("whole").iter() {
            if !ran.get(key).is_some_and(|ran| ran.contains(number)) {
                return Err(format!("{key} {number} was lost: {ran:?}").into());
            }
        }
        // One that runs again does so before the next of its key begins.
        match ran.values().find(|numbers| !numbers.is_sorted()) {
            Some(numbers) => Err(format!("out of order: {numbers:?}").into()),
            None => Ok(()),
        }
    }
    let setup = || Setup::new(Outside::default(), |worker| worker.pool(&noting()));
    assert!(crash_everywhere(setup, scenario, check) > 30);
}
