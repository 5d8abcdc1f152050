//! Bad input: a clear typed answer, and nothing stored.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize, Serializer};
use windlass::core::job::NewJob;
use windlass::{
    Attempt, DeadReason, Engine, Error, Failure, Job, JobId, Limits, Name, Options, Rate, Recovery,
    Refusal, State, StateName,
};

use crate::common::{HOUR, SECOND, Work, pass, rig, work};

async fn quick(job: Work) -> Result<i64, Failure> {
    Ok(job.number)
}

async fn nothing_is_stored(engine: &Engine) {
    let counts = engine.counts().await.expect("it is answered");
    assert_eq!(counts.totals().enqueued, 0);
}

#[tokio::test(start_paused = true)]
async fn odd_names_are_refused_by_name() {
    let rig = rig().await;
    for name in ["", "a b", "a/b", "..", "ü", &"x".repeat(129), "a\0b"] {
        let refused = rig.engine.enqueue(work(1)).queue(name).await.expect_err(name);
        assert!(matches!(refused, Error::Refused(Refusal::InvalidName(_))), "{refused}");
        let refused = rig.engine.enqueue(work(1)).tag(name).await.expect_err(name);
        assert!(matches!(refused, Error::Refused(Refusal::InvalidName(_))), "{refused}");
        assert!(rig.engine.queue(name).is_err());
        assert!(rig.engine.jobs().kind(name).page(None, 1).await.is_err());
        let worker = rig.engine.worker().handle(quick).queue(name).start().await;
        assert!(worker.is_err());
    }
    nothing_is_stored(&rig.engine).await;
}

#[tokio::test(start_paused = true)]
async fn huge_payloads_delays_and_keys_are_refused_with_limit_and_knob() {
    #[derive(Serialize, Deserialize)]
    struct Blob(String);
    impl Job for Blob {
        const KIND: &'static str = "blob";
        type Output = ();
    }
    let rig = rig().await;
    let huge = rig.engine.enqueue(Blob("x".repeat(200_000))).await.expect_err("too large");
    assert!(huge.to_string().contains("payload_bytes"), "{huge}");
    let enormous = rig.engine.enqueue(work(1)).delay(Duration::MAX).await.expect_err("too long");
    assert!(enormous.to_string().contains("at most 100 years"), "{enormous}");
    let far = SystemTime::now() + HOUR * 24 * 366 * 200;
    assert!(rig.engine.enqueue(work(1)).at(far).await.is_err());
    assert!(rig.engine.enqueue(work(1)).unique("").await.is_err());
    assert!(rig.engine.enqueue(work(1)).unique("k".repeat(600)).await.is_err());
    assert!(rig.engine.enqueue(work(1)).trace("not a trace").await.is_err());
    nothing_is_stored(&rig.engine).await;
}

#[tokio::test(start_paused = true)]
async fn a_time_in_the_past_means_now() {
    let rig = rig().await;
    let _worker = rig.engine.worker().handle(quick).start().await.expect("it starts");
    let handle = rig.engine.enqueue(work(1)).at(SystemTime::UNIX_EPOCH).await.expect("accepted");
    assert_eq!(handle.outcome_within(SECOND).await.expect("it runs at once"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_payload_that_cannot_be_written_is_an_error_of_the_call() {
    struct Unwritable;
    impl Serialize for Unwritable {
        fn serialize<S: Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
            Err(serde::ser::Error::custom("cannot be written"))
        }
    }
    impl<'de> Deserialize<'de> for Unwritable {
        fn deserialize<D: serde::Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
            Ok(Unwritable)
        }
    }
    impl Job for Unwritable {
        const KIND: &'static str = "unwritable";
        type Output = ();
    }
    let rig = rig().await;
    let error = rig.engine.enqueue(Unwritable).await.expect_err("it cannot be written");
    assert!(matches!(error, Error::Encode { .. }), "{error}");
    nothing_is_stored(&rig.engine).await;
}

#[tokio::test(start_paused = true)]
async fn a_malformed_payload_dies_at_once_with_a_readable_error() {
    let rig = rig().await;
    let _worker = rig.engine.worker().handle(quick).start().await.expect("it starts");
    let name = |text: &str| Name::new(text).expect("a name");
    for payload in [&b"not json"[..], b"", b"{\"number\":\"seven\"}", &[0, 159, 146, 150]] {
        let id = windlass::new_id();
        let job = NewJob::new(id, name("work"), name("default"), payload.to_vec());
        rig.engine.enqueue_raw(vec![job]).await.expect("payloads are opaque to the store");
        let error = rig.engine.handle::<Work>(id).outcome().await.expect_err("it dies");
        let Error::Died { reason: DeadReason::Permanent, error, .. } = error else {
            panic!("{error}");
        };
        assert!(error.contains("the payload is not a `work`"), "{error}");
        let record = rig.engine.find(id).await.expect("it is answered").expect("it is kept");
        assert_eq!(&*record.job.payload, payload);
        assert_eq!(record.status.attempts, 1, "trying again is pointless");
    }
}

#[tokio::test(start_paused = true)]
async fn bad_dependencies_are_refused_and_name_the_culprit() {
    let rig = rig().await;
    let stranger = windlass::new_id();
    let unknown = rig.engine.enqueue(work(1)).depends_on(stranger).await.expect_err("unknown");
    assert!(unknown.to_string().contains(&stranger.to_string()), "{unknown}");
    let own = windlass::new_id();
    let itself = rig.engine.enqueue(work(1)).id(own).depends_on(own).await.expect_err("itself");
    assert!(matches!(itself, Error::Refused(Refusal::DependencyCycle { .. })), "{itself}");
    let (a, b) = (windlass::new_id(), windlass::new_id());
    let mut batch = rig.engine.batch();
    batch.add_with(work(1), Options::new().id(a).depends_on(b)).expect("valid by itself");
    batch.add_with(work(2), Options::new().id(b).depends_on(a)).expect("valid by itself");
    let cycle = batch.commit().await.expect_err("a cycle");
    assert!(matches!(cycle, Error::Refused(Refusal::DependencyCycle { .. })), "{cycle}");
    nothing_is_stored(&rig.engine).await;
}

#[tokio::test(start_paused = true)]
async fn a_callers_id_may_be_repeated_but_not_reused() {
    let rig = rig().await;
    let id: JobId = "0199f2a4-7d1c-7c3e-9b52-2f0c5f6f7a10".parse().expect("a UUID");
    let first = rig.engine.enqueue(work(1)).id(id).await.expect("it is accepted");
    let again = rig.engine.enqueue(work(1)).id(id).await.expect("the call was repeated");
    assert_eq!(first.id(), again.id());
    let reused = rig.engine.enqueue(work(2)).id(id).await.expect_err("another payload");
    assert!(matches!(reused, Error::Refused(Refusal::IdReused { .. })), "{reused}");
    assert!("not-an-id".parse::<JobId>().is_err());
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_refuses_with_its_depth_and_takes_jobs_again_when_one_starts() {
    let rig = rig().await;
    rig.engine.queue("mail").expect("a name").max_depth(Some(2)).await.expect("it is set");
    let enqueue = |number| rig.engine.enqueue(work(number)).queue("mail");
    assert_eq!(enqueue(1).await.expect("it is accepted").depth(), Some(1));
    assert_eq!(enqueue(2).await.expect("it is accepted").depth(), Some(2));
    let full = enqueue(3).await.expect_err("it is full");
    let Error::Refused(Refusal::QueueFull { depth: 2, limit: 2, .. }) = full else {
        panic!("{full}");
    };
    let _worker = rig.engine.worker().handle(quick).start().await.expect("it starts");
    pass(SECOND).await;
    enqueue(3).await.expect("there is room again");
}

#[tokio::test(start_paused = true)]
async fn a_worker_is_refused_with_one_sentence_that_says_what_to_do() {
    async fn stateful(_: Work, _: Attempt, state: State<String>) -> Result<i64, Failure> {
        Ok(state.len() as i64)
    }
    let rig = rig().await;
    let worker = || rig.engine.worker();
    let sentence = |result: Result<windlass::Worker, Error>| {
        result.expect_err("it must not start").to_string()
    };
    let none = sentence(worker().start().await);
    assert!(none.contains(".handle("), "{none}");
    let twice = sentence(worker().handle(quick).handle(quick).start().await);
    assert_eq!(twice, "two handlers for kind `work`; a worker takes one handler per kind");
    let state = sentence(worker().handle(stateful).start().await);
    assert!(state.contains("String") && state.contains(".state("), "{state}");
    worker().state(String::from("x")).handle(stateful).start().await.expect("it starts");
    let slots = sentence(worker().handle(quick).slots(0).start().await);
    assert!(slots.contains("slots is 0"), "{slots}");
    for bad in [
        worker().handle_with(quick, |options| options.lease(Duration::from_millis(10))),
        worker().handle_with(quick, |options| options.lease(HOUR * 48)),
        worker().handle_with(quick, |options| options.concurrency(0)),
        worker().handle_with(quick, |options| options.rate(Rate::per_second(0))),
        worker().handle_with(quick, |options| options.timeout(Duration::ZERO)),
        worker().handle(quick).poll_interval(Duration::ZERO),
    ] {
        let error = bad.start().await.expect_err("it must not start");
        assert!(matches!(error, Error::InvalidSetting { .. }), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_engine_is_refused_with_the_setting_and_what_it_may_be() {
    let error = Engine::open("redis://nowhere").await.expect_err("not a store");
    assert!(error.to_string().contains("`redis://nowhere`"), "{error}");
    let limits = [
        Limits { payload_bytes: 0, ..Limits::default() },
        Limits { payload_bytes: 17 << 20, ..Limits::default() },
        Limits { dead_letters: 0, ..Limits::default() },
    ];
    for limits in limits {
        let error = Engine::builder().limits(limits).open("memory:").await.expect_err("refused");
        assert!(matches!(error, Error::InvalidSetting { .. }), "{error}");
    }
    let recoveries = [
        Recovery { max_recoveries: 0, ..Recovery::default() },
        Recovery { delay: HOUR * 2, ..Recovery::default() },
    ];
    for recovery in recoveries {
        let builder = Engine::builder().recovery(recovery);
        assert!(builder.open("memory:").await.is_err());
    }
}

#[tokio::test(start_paused = true)]
async fn verbs_on_unknown_and_finished_jobs_say_so() {
    let rig = rig().await;
    let stranger = windlass::new_id();
    assert!(rig.engine.find(stranger).await.expect("it is answered").is_none());
    assert!(rig.engine.dependents(stranger).await.expect("it is answered").is_empty());
    for error in [
        rig.engine.cancel(stranger).await.map(drop),
        rig.engine.run_now(stranger).await,
        rig.engine.reschedule_in(stranger, SECOND).await,
        rig.engine.replay(stranger).await,
        rig.engine.remove(stranger).await,
        rig.engine.explain(stranger).await.map(drop),
        rig.engine.replay_edited(stranger, work(1)).await.map(drop),
    ] {
        let error = error.expect_err("it is unknown");
        assert!(matches!(error, Error::Refused(Refusal::UnknownJob { .. })), "{error}");
    }
    let _worker = rig.engine.worker().handle(quick).start().await.expect("it starts");
    let handle = rig.engine.enqueue(work(1)).await.expect("it is accepted");
    handle.outcome().await.expect("it completes");
    for error in [
        rig.engine.cancel(handle.id()).await.map(drop),
        rig.engine.run_now(handle.id()).await,
        rig.engine.replay(handle.id()).await,
    ] {
        let error = error.expect_err("it has finished");
        let Error::Refused(Refusal::WrongState { state: StateName::Completed, .. }) = error else {
            panic!("{error}");
        };
    }
}

#[tokio::test(start_paused = true)]
async fn a_page_of_nothing_is_refused_with_what_a_page_may_have() {
    let rig = rig().await;
    let refused = rig.engine.jobs().page(None, 0).await.expect_err("nothing fits on it");
    assert!(refused.to_string().contains("page size is 0; a page has 1 to 1000 jobs"), "{refused}");
}
