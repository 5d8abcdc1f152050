//! Debounce, throttle, loops, pools, tasks, and a primitive of one's own.

use std::time::{Duration, SystemTime};

use windlass::primitives::{
    Continuous, Debounce, FailedRun, PoolEvent, Primitive, RunContext, RunOutcome, StateMachine,
    Task, TaskContext, TaskTurn, Throttle, Turn, WorkerPool,
};
use windlass::{Error, Failure, MissedRuns, Priority, Schedule, Start, Timestamp};

use super::schedules::{MISSED, schedules};
use super::{COUNTS, DURATIONS, LONG_COUNTS, MICROS, PRIORITIES, SIZES, times, try_rows};
use crate::common::{HOUR, SECOND, pass};

#[test]
fn a_debounce_may_be_given_any_number() {
    #[derive(Clone, Copy, Debug)]
    enum Odd {
        FlushAfter(Duration),
        Sliding(Duration, Duration),
        MaxEvents(u64),
        MaxBytes(usize),
        RememberIds(Duration),
    }
    let mut rows = Vec::new();
    for duration in DURATIONS {
        rows.extend([
            Odd::FlushAfter(duration),
            Odd::Sliding(duration, duration),
            Odd::Sliding(SECOND, duration),
            Odd::Sliding(duration, Duration::MAX),
            Odd::RememberIds(duration),
        ]);
    }
    rows.extend(LONG_COUNTS.map(Odd::MaxEvents));
    rows.extend(SIZES.map(Odd::MaxBytes));
    try_rows("a debounce with", rows, async |scene, odd| {
        let flush = |_| async { Ok::<_, Failure>(()) };
        let debounce = |after| Debounce::<u32, Vec<u32>>::collect("odd", after, flush);
        let definition = match odd {
            Odd::FlushAfter(after) => debounce(after),
            Odd::Sliding(after, max_wait) => debounce(after).sliding(max_wait),
            Odd::MaxEvents(events) => debounce(SECOND).max_events(events),
            Odd::MaxBytes(bytes) => debounce(SECOND).max_bytes(bytes),
            Odd::RememberIds(window) => debounce(SECOND).remember_ids(window),
        };
        let worker = scene.engine.worker().primitive(definition.clone()).start().await;
        let worker = scene.taken(worker);
        let client = scene.engine.debounce(&definition);
        for event in 0..3 {
            let added = scene.taken(client.add("key", event).await);
            assert!(worker.is_some() || added.is_none(), "{}: refused and taken", scene.row);
            scene.taken(client.add_once("key", &event.to_string(), event).await);
            pass(SECOND / 2).await;
            scene.taken(client.status("key").await);
        }
        scene.taken(client.flush("key").await);
        scene.taken(client.clear("key").await);
        pass(SECOND * 3).await;
        if let Some(worker) = worker {
            worker.stop().await.expect("it stops");
        }
    });
}

#[test]
fn a_throttle_may_be_given_any_number() {
    let periods = DURATIONS.into_iter().map(|period| (period, HOUR));
    let windows = DURATIONS.into_iter().map(|window| (SECOND, window));
    try_rows("a throttle with", periods.chain(windows), async |scene, (period, window)| {
        let run = |_| async { Ok::<_, Failure>(()) };
        let definition = Throttle::<u32>::new("odd", period, run).remember_ids(window);
        for definition in [definition.clone(), definition.keep_latest()] {
            let worker = scene.engine.worker().primitive(definition.clone()).start().await;
            let worker = scene.taken(worker);
            let client = scene.engine.throttle(&definition);
            for event in 0..3 {
                let offered = scene.taken(client.offer("key", event).await);
                assert!(worker.is_some() || offered.is_none(), "{}: refused, taken", scene.row);
                scene.taken(client.offer_once("key", &event.to_string(), event).await);
                pass(SECOND / 2).await;
                scene.taken(client.status("key").await);
            }
            scene.taken(client.clear("key").await);
            pass(SECOND).await;
            if let Some(worker) = worker {
                worker.stop().await.expect("it stops");
            }
        }
    });
}

#[test]
fn a_loop_may_be_given_any_number() {
    #[derive(Clone, Debug)]
    enum Odd {
        Schedule(Schedule, MissedRuns),
        NextIn(Duration),
        NextAt(SystemTime),
        PurgeAfter(Duration),
    }
    let mut rows = Vec::new();
    for schedule in schedules() {
        rows.extend(MISSED.map(|missed| Odd::Schedule(schedule.clone(), missed)));
    }
    for duration in DURATIONS {
        rows.extend([Odd::NextIn(duration), Odd::PurgeAfter(duration)]);
    }
    rows.extend(times().into_iter().map(Odd::NextAt));
    try_rows("a loop with", rows, async |scene, odd| {
        let wish = odd.clone();
        let code = move |mut tick: windlass::primitives::Tick<u64>| {
            let wish = wish.clone();
            async move {
                tick.state += 1;
                // Only now and then: what is to run at once again and again does so.
                match wish {
                    Odd::NextIn(delay) if tick.run_count() <= 3 => tick.next_in(delay),
                    Odd::NextAt(time) if tick.run_count() <= 3 => tick.next_at(time),
                    _ => {}
                }
                Ok(tick)
            }
        };
        let (schedule, missed) = match &odd {
            Odd::Schedule(schedule, missed) => (schedule.clone(), *missed),
            Odd::NextIn(_) | Odd::NextAt(_) | Odd::PurgeAfter(_) => {
                (Schedule::every(SECOND).expect("it is valid"), MissedRuns::RunOnce)
            }
        };
        let definition = Continuous::new("odd", schedule, code).missed_runs(missed);
        let definition = match odd {
            Odd::PurgeAfter(delay) => definition.purge_after(delay),
            Odd::Schedule(..) | Odd::NextIn(_) | Odd::NextAt(_) => definition,
        };
        let worker = scene.engine.worker().primitive(definition.clone()).start().await;
        let worker = scene.taken(worker);
        let client = scene.engine.continuous(&definition);
        let started = scene.taken(client.start("key", 0).await);
        assert!(worker.is_some() || started.is_none(), "{}: refused and taken", scene.row);
        let (Some(worker), Some(_)) = (worker, started) else { return };
        pass(Duration::from_millis(100)).await;
        let ran = client.state("key").await.expect("it can be read").expect("it was started");
        assert!(ran >= 1, "{}: it does not run", scene.row);
        worker.stop().await.expect("it stops");
        scene.clock.step_forward(SECOND * 5_000);
        let again = scene.engine.worker().primitive(definition.clone()).start().await;
        let again = again.expect("it started before");
        pass(Duration::from_millis(20)).await;
        scene.taken(client.status("key").await);
        scene.taken(client.trigger("key").await);
        pass(Duration::from_millis(20)).await;
        let then = client.state("key").await.expect("it can be read").expect("it was started");
        assert!(then > ran, "{}: it does not run any more: {ran}, {then}", scene.row);
        scene.taken(client.terminate("key").await);
        again.stop().await.expect("it stops");
    });
}

#[test]
fn a_pool_may_be_given_any_number() {
    #[derive(Clone, Copy, Debug)]
    enum Odd {
        Lanes(u32),
        LaneDepth(u64),
        RememberIds(Duration),
        Priority(i32),
        Lane(u32),
    }
    let rows = COUNTS.map(Odd::Lanes).into_iter().chain(COUNTS.map(Odd::Lane));
    let rows = rows.chain(LONG_COUNTS.map(Odd::LaneDepth)).chain(DURATIONS.map(Odd::RememberIds));
    let rows = rows.chain(PRIORITIES.map(Odd::Priority));
    try_rows("a pool with", rows, async |scene, odd| {
        let handle = |_: u32, _| async { Ok::<_, Failure>(()) };
        let lanes = if let Odd::Lanes(lanes) = odd { lanes } else { 3 };
        let pool = WorkerPool::new("odd", lanes, handle);
        let pool = match odd {
            Odd::LaneDepth(depth) => pool.lane_depth(depth),
            Odd::RememberIds(window) => pool.remember_ids(window),
            Odd::Lanes(_) | Odd::Priority(_) | Odd::Lane(_) => pool,
        };
        let worker = scene.taken(scene.engine.worker().pool(&pool).start().await);
        let client = scene.engine.pool(&pool);
        for number in 0..5 {
            let event = PoolEvent::new(number).key(number.to_string()).id(number.to_string());
            let event = match odd {
                Odd::Priority(priority) => event.priority(Priority(priority)),
                Odd::Lanes(_) | Odd::LaneDepth(_) | Odd::RememberIds(_) | Odd::Lane(_) => event,
            };
            let taken = scene.taken(client.enqueue(event).await);
            assert!(worker.is_some() || taken.is_none(), "{}: refused and taken", scene.row);
        }
        let lane = if let Odd::Lane(lane) = odd { Some(lane) } else { None };
        scene.taken(client.pause(lane).await);
        scene.taken(client.resume(lane).await);
        scene.taken(client.lane_status(lane.unwrap_or(0)).await);
        pass(SECOND).await;
        scene.taken(client.status().await);
        scene.taken(client.clear(lane).await);
        scene.taken(client.cancel("1").await);
        if let Some(worker) = worker {
            worker.stop().await.expect("it stops");
        }
    });
}

/// Wishes for an alarm wherever it can.
#[derive(Clone, Copy, Debug)]
enum TaskWish {
    After(Duration),
    At(i64),
    OnIdle(Duration),
    OnError(Duration),
}

struct Wishful(TaskWish);

impl StateMachine for Wishful {
    type State = u32;
    type Event = u32;

    async fn on_event(&self, task: &mut TaskContext<u32>, event: u32) -> Result<(), Failure> {
        task.state += 1;
        match self.0 {
            TaskWish::OnError(_) if event == 0 => return Err(Failure::permanent("as it wishes")),
            TaskWish::After(delay) if event == 0 => task.schedule(delay),
            TaskWish::At(at) if event == 0 => task.schedule_at(Timestamp::from_micros(at)),
            _ => {}
        }
        Ok(())
    }

    async fn on_alarm(&self, task: &mut TaskContext<u32>) -> Result<(), Failure> {
        task.state += 100;
        Ok(())
    }

    fn on_idle(&self, turn: &mut TaskTurn<'_, Self>) {
        match self.0 {
            TaskWish::OnIdle(delay) if *turn.state < 100 => turn.schedule(delay),
            _ => {}
        }
    }

    fn on_error(&self, turn: &mut TaskTurn<'_, Self>, _: FailedRun<u32>) {
        if let TaskWish::OnError(delay) = self.0 {
            turn.schedule(delay);
        }
    }
}

#[test]
fn a_task_may_wish_for_any_alarm() {
    let wishes = DURATIONS.into_iter().flat_map(|duration| {
        [TaskWish::After(duration), TaskWish::OnIdle(duration), TaskWish::OnError(duration)]
    });
    try_rows("a task wishes for", wishes.chain(MICROS.map(TaskWish::At)), async |scene, wish| {
        let definition = Task::new("odd", Wishful(wish));
        let worker = scene.engine.worker().primitive(definition.clone()).start().await;
        let worker = worker.expect("it starts");
        let client = scene.engine.task(&definition);
        client.send("key", 0).await.expect("it is accepted");
        pass(SECOND * 30).await;
        // It takes events as ever, and its state is that of all that succeeded.
        client.send("key", 1).await.expect("it is accepted");
        pass(SECOND * 30).await;
        let state = client.state("key").await.expect("it can be read").expect("it is there");
        let status = client.status("key").await.expect("it can be read").expect("it is there");
        assert!(state % 100 >= 1, "{}: {state}, {status:?}", scene.row);
        assert_eq!(status.events, 0, "{}: {state}, {status:?}", scene.row);
        worker.stop().await.expect("it stops");
    });
    let windows = DURATIONS;
    try_rows("a task remembers for", windows, async |scene, window| {
        let odd = Task::new("odd", Wishful(TaskWish::At(0))).remember_ids(window);
        let client = scene.engine.task(&odd);
        scene.taken(client.send_once("key", "one", 1).await);
        scene.taken(client.send_once("key", "one", 1).await);
    });
}

/// A primitive of one's own that wishes for something in one of its turns.
#[derive(Clone, Debug)]
pub(super) struct Own {
    pub(super) wish: OwnWish,
    pub(super) at: Where,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum OwnWish {
    Alarm(Start),
    AlarmToRun(Start),
    Move(Start),
    Purge(Duration),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Where {
    Command,
    Alarm,
    Outcome,
}

impl Own {
    fn wish_for(&self, turn: &mut Turn<Self>) {
        match self.wish {
            OwnWish::Alarm(start) => turn.alarm(start),
            OwnWish::AlarmToRun(start) => turn.alarm_to_run(start, 1),
            OwnWish::Move(start) => turn.move_alarm(start),
            OwnWish::Purge(delay) => turn.purge_after(delay),
        }
    }
}

impl Primitive for Own {
    const KIND: &'static str = "own";
    type State = u32;
    type Command = u32;
    type Reply = u32;
    type Run = u32;
    type Output = u32;

    fn name(&self) -> &str {
        match self.at {
            Where::Command => "command",
            Where::Alarm => "alarm",
            Where::Outcome => "outcome",
        }
    }

    fn on_command(&self, sum: &mut u32, add: &u32, turn: &mut Turn<Self>) -> Result<u32, Error> {
        *sum += add;
        turn.alarm_in(SECOND);
        if self.at == Where::Command && *add == 1 {
            self.wish_for(turn);
        }
        Ok(*sum)
    }

    fn on_alarm(&self, sum: &mut u32, turn: &mut Turn<Self>) {
        *sum += 1_000;
        match self.at {
            Where::Alarm if *sum < 4_000 => self.wish_for(turn),
            Where::Outcome if *sum < 4_000 => turn.run(0),
            Where::Alarm | Where::Outcome | Where::Command => {}
        }
    }

    async fn run(&self, _: u32, _: RunContext<Self>) -> Result<u32, Failure> {
        Ok(0)
    }

    fn on_outcome(&self, sum: &mut u32, _: u32, _: RunOutcome<u32>, turn: &mut Turn<Self>) {
        *sum += 1_000_000;
        if self.at == Where::Outcome && *sum < 4_000_000 {
            self.wish_for(turn);
        }
    }
}

#[test]
fn a_primitive_of_ones_own_may_wish_for_any_number() {
    let starts = DURATIONS.map(Start::After).into_iter();
    let starts = starts.chain(MICROS.map(|micros| Start::At(Timestamp::from_micros(micros))));
    let wishes = starts.flat_map(|start| {
        [OwnWish::Alarm(start), OwnWish::AlarmToRun(start), OwnWish::Move(start)]
    });
    let wishes: Vec<_> = wishes.chain(DURATIONS.map(OwnWish::Purge)).collect();
    try_rows("a primitive", wishes, async |scene, wish| {
        let own = [Where::Command, Where::Alarm, Where::Outcome].map(|at| Own { wish, at });
        let worker = own.iter().fold(scene.engine.worker(), |to, own| to.primitive(own.clone()));
        let worker = worker.start().await.expect("it starts");
        for own in &own {
            scene.taken(scene.engine.objects(own).command("key", &1).await);
        }
        pass(SECOND * 20).await;
        for own in &own {
            let (objects, row) = (scene.engine.objects(own), &scene.row);
            let gone = matches!(wish, OwnWish::Purge(_));
            if own.at != Where::Command && !gone {
                let view = objects.view("key").await.expect("it is answered");
                let view = view.unwrap_or_else(|| panic!("{row}, {own:?}: it is gone"));
                let sum = objects.state("key").await.expect("it can be read");
                // An alarm was taken over at least, and what followed from it has ended.
                assert!(sum >= Some(1_000), "{row}, {own:?}: {sum:?}, {view:?}");
                assert_eq!(view.executing_since, None, "{row}, {own:?}: {sum:?}, {view:?}");
            }
            // Whatever came of it, the object takes commands.
            objects.command("key", &2).await.unwrap_or_else(|e| panic!("{row}, {own:?}: {e}"));
            for limit in SIZES {
                objects.list(None, limit).await.expect("it is answered");
            }
        }
        pass(SECOND * 3).await;
        worker.stop().await.expect("it stops");
    });
}
