//! Subscribers hear everything that was committed, and can harm nobody.

use windlass::core::limits::EVENTS_KEPT;
use windlass::{Failure, Received, StateName, Topics};

use crate::common::{Notes, SECOND, Work, pass, rig, settle_down, work};

async fn quick(job: Work) -> Result<i64, Failure> {
    Ok(job.number)
}

#[tokio::test(start_paused = true)]
async fn a_subscription_is_complete_when_it_returns_and_hears_a_job_in_order() {
    let rig = rig().await;
    let mut all = rig.engine.subscribe(Topics::all()).expect("all topics are known");
    let _worker = rig.engine.worker().handle(quick).start().await.expect("it starts");
    let handle = rig.engine.enqueue(work(1)).await.expect("it is accepted");
    handle.outcome().await.expect("it completes");
    let (mut topics, mut number) = (Vec::new(), all.position());
    while let Some(Received::Event(event)) = all.try_next().await {
        assert_eq!(event.number, number + 1, "numbered without gaps");
        number = event.number;
        topics.push(event.topic().to_string());
    }
    let expected =
        ["worker.started", "job.enqueued", "job.started", "job.completed", "queue.empty"];
    assert_eq!(topics, expected);
}

#[tokio::test(start_paused = true)]
async fn topics_choose_by_name_prefix_job_and_queue() {
    let rig = rig().await;
    let first = rig.engine.enqueue(work(1)).queue("mail").await.expect("it is accepted");
    let from_start =
        |topics: Topics| rig.engine.subscribe_after(topics, Some(0)).expect("the topic is known");
    let mut exact = from_start(Topics::all().topic("job.completed"));
    let mut prefix = from_start(Topics::all().topic("job.*"));
    let mut one = from_start(Topics::all().job(first.id()));
    let mut queue = from_start(Topics::all().queue("other"));
    let _worker = rig.engine.worker().handle(quick).start().await.expect("it starts");
    rig.engine.enqueue(work(2)).queue("other").await.expect("it is accepted");
    pass(SECOND).await;
    let mut counted = Vec::new();
    for subscription in [&mut exact, &mut prefix, &mut one, &mut queue] {
        let mut heard = 0;
        while subscription.try_next().await.is_some() {
            heard += 1;
        }
        counted.push(heard);
    }
    assert_eq!(counted, [2, 6, 3, 4], "the queue's own event is among its four");
}

#[tokio::test(start_paused = true)]
async fn a_subscriber_that_never_reads_harms_nobody_and_learns_what_it_missed() {
    let rig = rig().await;
    let mut lazy = rig.engine.subscribe(Topics::all()).expect("all topics are known");
    let jobs = EVENTS_KEPT as i64 / 2 + 100;
    for chunk in 0..(jobs / 1_000 + 1) {
        let batch = (chunk * 1_000..(chunk + 1) * 1_000).map(work);
        rig.engine.enqueue_many(batch).await.expect("they are accepted");
    }
    let cancelled = rig.engine.jobs().cancel().await.expect("they wait").len() as u64;
    let Received::Lagged { missed } = lazy.next().await else { panic!("it missed something") };
    let Received::Event(next) = lazy.next().await else { panic!("and then goes on") };
    assert_eq!(next.number, missed + 1);
    let mut heard = 1;
    while let Some(Received::Event(_)) = lazy.try_next().await {
        heard += 1;
    }
    assert_eq!(heard, EVENTS_KEPT);
    // Enqueued and cancelled, and one for the queue that is now empty.
    assert_eq!(missed + EVENTS_KEPT as u64, cancelled * 2 + 1);
}

#[tokio::test(start_paused = true)]
async fn a_subscriber_that_panics_is_called_again_and_jobs_go_on() {
    let rig = rig().await;
    let heard = Notes::default();
    let notes = heard.clone();
    let subscribed = rig
        .engine
        .on_event(Topics::all().topic("job.*"), move |event| {
            let Received::Event(event) = event else { return };
            notes.add(event.topic());
            assert!(event.topic() != "job.started", "a clumsy subscriber");
        })
        .expect("the topic is known");
    let _worker = rig.engine.worker().handle(quick).start().await.expect("it starts");
    let handle = rig.engine.enqueue(work(1)).await.expect("it is accepted");
    handle.outcome().await.expect("it completes");
    settle_down().await;
    assert_eq!(heard.all(), ["job.enqueued", "job.started", "job.completed"]);
    drop(subscribed);
    rig.engine.enqueue(work(2)).await.expect("it is accepted");
    pass(SECOND).await;
    assert_eq!(heard.all().len(), 3, "a dropped guard ends the subscription");
    let counts = rig.engine.counts().await.expect("it is answered");
    assert_eq!(counts.in_state(StateName::Completed), 2);
}

#[tokio::test(start_paused = true)]
async fn a_subscriber_resumes_where_it_left_off() {
    let rig = rig().await;
    rig.engine.enqueue_many((0..5).map(work)).await.expect("they are accepted");
    let mut first = rig.engine.subscribe_after(Topics::all(), Some(0)).expect("the topic is known");
    for _ in 0..2 {
        first.next().await;
    }
    let position = first.position();
    drop(first);
    let mut second =
        rig.engine.subscribe_after(Topics::all(), Some(position)).expect("the topic is known");
    let Received::Event(event) = second.next().await else { panic!("nothing was missed") };
    assert_eq!(event.number, position + 1);
}

#[tokio::test(start_paused = true)]
async fn a_topic_that_no_event_can_have_is_refused_with_the_nearest_one() {
    let rig = rig().await;
    // Every way to subscribe says the same.
    let subscribe = |topic: &str| {
        let topics = || Topics::all().topic("job.*").topic(topic);
        let checked = topics().check().map_err(|error| error.to_string());
        let answers = [
            rig.engine.subscribe(topics()).map(drop),
            rig.engine.subscribe_after(topics(), Some(0)).map(drop),
            rig.engine.on_event(topics(), |_| {}).map(drop),
        ];
        for answer in answers {
            assert_eq!(answer.map_err(|error| error.to_string()), checked);
        }
        checked
    };
    for topic in windlass::core::event::TOPICS {
        assert_eq!(subscribe(topic), Ok(()));
    }
    // Those of the primitives of this crate, and those of yours, whatever they may be.
    for topic in ["debounce.flushed", "continuous.*", "schedule.fired", "task.failed", "deb*"] {
        assert_eq!(subscribe(topic), Ok(()), "{topic}");
    }
    let long = format!("{}.*", "k".repeat(118));
    for topic in ["*", "job.*", "job.c*", "jo*", "tally.failed", "mine.*", "mi*", "m.y.own", &long]
    {
        assert_eq!(subscribe(topic), Ok(()), "{topic}");
    }
    for (wrong, nearest) in [
        ("job.complete", "job.completed"),
        ("jobs.completed", "job.completed"),
        ("Job.dead", "job.dead"),
        ("job.finished*", "job.failed"),
        ("job.*.completed", "job.completed"),
        ("worker.eror", "worker.error"),
        ("debounce.flush", "debounce.flushed"),
        ("continuous.ran*", "continuous.failed"),
    ] {
        let refused = subscribe(wrong).expect_err("nothing has it");
        assert!(refused.contains(&format!("`{wrong}`")), "{refused}");
        assert!(refused.contains(&format!("nearest is `{nearest}`")), "{refused}");
    }
    let long = format!("mine.{}", "x".repeat(128));
    for wrong in ["", "completed", "job.", ".", ".*", "a b.c", "mine..*", "mine.*.told", &long] {
        subscribe(wrong).expect_err("nothing has it");
    }
}

#[tokio::test(start_paused = true)]
async fn every_topic_that_is_told_is_a_known_one() {
    let rig = rig().await;
    let mut all = rig.engine.subscribe(Topics::all()).expect("all topics are known");
    let _worker = rig.engine.worker().handle(quick).start().await.expect("it starts");
    rig.engine.enqueue(work(1)).await.expect("it is accepted");
    pass(SECOND).await;
    while let Some(heard) = all.try_next().await {
        let Received::Event(event) = heard else { continue };
        assert!(windlass::core::event::TOPICS.contains(&event.topic()), "{}", event.topic());
    }
}
