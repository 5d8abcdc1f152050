//! A store that is reached over a connection: as good as one that is here, whatever the connection
//! or the other program does.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::task::JoinHandle;
use windlass::conformance::{Harness, run};
use windlass::core::ledger::{Claim, KindClaim, Settlement};
use windlass::core::outcome::Verdict;
use windlass::store::{JobQuery, MemoryStore, Store, StoreError, StoreExt};
use windlass::testing::VirtualClock;
use windlass::wake::LocalWake;
use windlass::wire::{
    Call, ConnectionError, Frames, Hello, RemoteStore, Request, Response, Served, StreamConnection,
    decode, encode, serve,
};
use windlass::{JobId, Limits, Name, NewJob, Refusal};

fn memory(clock: &Arc<VirtualClock>, limits: Limits) -> Arc<dyn Store> {
    Arc::new(MemoryStore::new(limits, clock.clone(), Arc::new(LocalWake::new())))
}

/// The store as others reach it.
fn served(store: &Arc<dyn Store>) -> Arc<Served> {
    Arc::new(Served { store: store.clone(), wake: Arc::new(LocalWake::new()) })
}

fn fresh() -> Arc<dyn Store> {
    memory(&Arc::new(VirtualClock::new()), Limits::default())
}

/// A store over a connection that carries so many bytes at once.
async fn reached(store: &Arc<dyn Store>, bytes: usize) -> RemoteStore<StreamConnection> {
    let (here, there) = duplex(bytes);
    tokio::spawn(serve(there, served(store)));
    let connection = StreamConnection::greet(here).await.expect("they understand each other");
    RemoteStore::over(connection).await.expect("it is there")
}

struct OverAConnection(Arc<VirtualClock>);

#[async_trait]
impl Harness for OverAConnection {
    async fn fresh(&self, limits: Limits) -> Arc<dyn Store> {
        Arc::new(reached(&memory(&self.0, limits), 1 << 10).await)
    }

    async fn advance(&self, by: Duration) {
        tokio::time::advance(by).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_over_a_connection_keeps_every_promise_of_the_suite() {
    let broken = run(Arc::new(OverAConnection(Arc::new(VirtualClock::new())))).await;
    let told: Vec<String> =
        broken.iter().map(|broken| format!("{}: {}", broken.name, broken.seen)).collect();
    assert!(broken.is_empty(), "{} are broken:\n{}", broken.len(), told.join("\n"));
}

fn job(number: u128) -> Arc<NewJob> {
    let name = |text| Name::new(text).expect("a valid name");
    let (id, payload) = (JobId::from_u128(number), vec![7; 300]);
    Arc::new(NewJob::new(id, name("work"), name("default"), payload))
}

#[tokio::test(start_paused = true)]
async fn many_callers_share_a_connection_and_each_has_its_own_answer() {
    let store = fresh();
    let remote = Arc::new(reached(&store, 100).await);
    let callers: Vec<JoinHandle<_>> = (1..=200)
        .map(|number| {
            let remote = remote.clone();
            tokio::spawn(async move { remote.enqueue(vec![job(number)]).await })
        })
        .collect();
    for (number, caller) in (1..).zip(callers) {
        let answer = caller.await.expect("it ends").expect("it is accepted");
        assert_eq!(answer[0].id, JobId::from_u128(number));
    }
    assert_eq!(remote.info().last_event, store.info().last_event);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_waits_holds_up_no_other() {
    let remote = Arc::new(reached(&fresh(), 1 << 16).await);
    let waits = {
        let remote = remote.clone();
        tokio::spawn(async move { remote.events(0, 10, Duration::from_secs(3_600)).await })
    };
    tokio::task::yield_now().await;
    remote.enqueue(vec![job(1)]).await.expect("it is accepted");
    let told = waits.await.expect("it ends").expect("it is answered");
    assert_eq!(told.len(), 1, "it was told of the job");
}

/// Passes bytes on in both directions, and ends everything after so many to the store or from it.
async fn cut_after(bytes: usize, to_the_store: bool, here: DuplexStream, there: DuplexStream) {
    async fn pass(
        from: &mut (impl AsyncReadExt + Unpin),
        to: &mut (impl AsyncWriteExt + Unpin),
        most: usize,
    ) {
        let (mut room, mut passed) = ([0; 16], 0);
        while passed < most
            && let Ok(got) = from.read(&mut room[..(most - passed).min(16)]).await
            && got > 0
            && to.write_all(&room[..got]).await.is_ok()
        {
            passed += got;
        }
    }
    let (mut here_reads, mut here_writes) = tokio::io::split(here);
    let (mut there_reads, mut there_writes) = tokio::io::split(there);
    let (to, from) = if to_the_store { (bytes, usize::MAX) } else { (usize::MAX, bytes) };
    tokio::select! {
        () = pass(&mut here_reads, &mut there_writes, to) => {}
        () = pass(&mut there_reads, &mut here_writes, from) => {}
    }
}

/// Enqueues, claims and settles a job, and repeats what has no answer over a connection that works.
async fn work_through(store: &Arc<dyn Store>, first: &RemoteStore<StreamConnection>) {
    let second = reached(store, 1 << 16).await;
    let unless_cut = |error: &StoreError| match error {
        StoreError::Unknown { .. } | StoreError::Refused(Refusal::Unavailable { .. }) => {}
        StoreError::Refused(other) => panic!("a cut refuses nothing: {other}"),
    };
    if let Err(error) = first.enqueue(vec![job(1)]).await {
        unless_cut(&error);
        second.enqueue(vec![job(1)]).await.expect("it is accepted, or was");
    }
    let request = Some(windlass::core::job::RequestId(5));
    let kinds = vec![KindClaim::new(Name::new("work").expect("a valid name"))];
    let claim = Claim { worker: "w".into(), queues: None, kinds, limit: 1, request };
    let claimed = match first.claim(claim.clone()).await {
        Ok(claimed) => claimed,
        Err(error) => {
            unless_cut(&error);
            second.claim(claim).await.expect("it is answered")
        }
    };
    let lease = &claimed.jobs.first().expect("it is handed out, or was").lease;
    let settlement = Settlement::new(JobId::from_u128(1), lease.token, Verdict::Complete);
    if let Err(error) = first.settle(vec![settlement.clone()]).await {
        unless_cut(&error);
        let settled = second.settle(vec![settlement]).await.expect("it is answered");
        settled[0].as_ref().expect("it is settled, or was");
    }
}

#[tokio::test(start_paused = true)]
async fn wherever_a_connection_is_cut_what_is_repeated_is_done_once() {
    for to_the_store in [true, false] {
        let mut cut_at = 0;
        loop {
            let store = fresh();
            let ((here, hither), (thither, there)) = (duplex(1 << 16), duplex(1 << 16));
            tokio::spawn(serve(there, served(&store)));
            let cut = tokio::spawn(cut_after(cut_at, to_the_store, hither, thither));
            if let Ok(connection) = StreamConnection::greet(here).await
                && let Ok(first) = RemoteStore::over(connection).await
            {
                work_through(&store, &first).await;
                let counts = store.count().await.expect("it is answered");
                assert_eq!(counts.in_state(windlass::StateName::Completed), 1, "cut at {cut_at}");
                let kept = store.find(&[JobId::from_u128(1)]).await.expect("it is answered");
                let record = kept[0].as_ref().expect("it is kept");
                assert_eq!(record.attempts.len(), 1, "cut at {cut_at}");
                if !cut.is_finished() {
                    break;
                }
            }
            cut_at += 1;
        }
        assert!(cut_at > 500, "it was cut only {cut_at} times");
    }
}

/// The end of a connection to a program that says and takes whatever a test likes.
async fn stranger(
    store: &Arc<dyn Store>,
) -> (DuplexStream, JoinHandle<Result<(), ConnectionError>>) {
    let (here, there) = duplex(1 << 12);
    (here, tokio::spawn(serve(there, served(store))))
}

fn message(message: &impl serde::Serialize) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(message, &mut bytes).expect("it can be sent");
    bytes
}

/// The store answers others.
async fn still_answers(store: &Arc<dyn Store>) {
    reached(store, 1 << 10).await.count().await.expect("it is answered");
}

#[tokio::test(start_paused = true)]
async fn a_stranger_that_says_nothing_or_nonsense_is_left_and_harms_nobody() {
    let store = fresh();
    let (_silent, served) = stranger(&store).await;
    still_answers(&store).await;
    let ended = served.await.expect("it does not panic").expect_err("it was waited for");
    assert!(ended.to_string().contains("did not say hello"), "{ended}");

    let (mut nonsense, served) = stranger(&store).await;
    nonsense.write_all(b"GET / HTTP/1.1\r\n\r\n").await.expect("it is sent");
    let ended = served.await.expect("it does not panic").expect_err("that is no message");
    assert!(ended.to_string().contains("at most"), "{ended}");

    let (mut half, served) = stranger(&store).await;
    half.write_all(&message(&Hello::ours())).await.expect("it is sent");
    half.write_all(&1_000_u32.to_le_bytes()).await.expect("it is sent");
    half.write_all(&[0; 10]).await.expect("it is sent");
    still_answers(&store).await;
    drop(half);
    served.await.expect("it does not panic").expect("it went");
}

#[tokio::test(start_paused = true)]
async fn a_program_of_another_protocol_is_refused_in_one_sentence() {
    let store = fresh();
    let (mut newer, served) = stranger(&store).await;
    let hello = Hello { protocol: 9, oldest: 8, version: "9.9.9".to_string() };
    newer.write_all(&message(&hello)).await.expect("it is sent");
    let ended = served.await.expect("it does not panic").expect_err("they cannot talk");
    assert!(ended.to_string().contains("9.9.9, which is too new for this one"), "{ended}");
}

#[tokio::test(start_paused = true)]
async fn who_never_reads_is_left_and_what_it_asked_for_is_bounded() {
    let store = fresh();
    let (mut deaf, served) = stranger(&store).await;
    deaf.write_all(&message(&Hello::ours())).await.expect("it is sent");
    let asks = message(&Request { number: 1, call: Call::Count });
    let mut asked = 0;
    while tokio::time::timeout(Duration::from_secs(1), deaf.write_all(&asks)).await.is_ok() {
        asked += 1;
        assert!(asked < 10_000, "it is read without end");
    }
    still_answers(&store).await;
    let ended = served.await.expect("it does not panic").expect_err("it takes nothing");
    assert!(ended.to_string().contains("did not take what was sent"), "{ended}");
}

#[tokio::test(start_paused = true)]
async fn a_call_of_a_newer_program_is_refused_and_the_next_is_answered() {
    #[derive(serde::Serialize)]
    struct NewerRequest {
        number: u64,
        call: &'static str,
    }
    let store = fresh();
    let (mut newer, _served) = stranger(&store).await;
    newer.write_all(&message(&Hello::ours())).await.expect("it is sent");
    newer.write_all(&message(&NewerRequest { number: 5, call: "Teleport" })).await.expect("sent");
    newer.write_all(&message(&Request { number: 6, call: Call::Count })).await.expect("sent");
    let mut frames = Frames::up_to(1 << 20);
    let mut answers: Vec<Response> = Vec::new();
    let mut greeted = false;
    while answers.len() < 2 {
        let mut room = [0; 1_024];
        let got = newer.read(&mut room).await.expect("it is answered");
        frames.push(&room[..got]);
        while let Some(bytes) = frames.take().expect("it is a message") {
            match greeted {
                true => answers.push(decode(bytes).expect("it is an answer")),
                false => greeted = true,
            }
        }
    }
    answers.sort_by_key(|answer| answer.number);
    assert!(answers[0].answer.is_err() && answers[1].answer.is_ok(), "{answers:?}");
}

#[tokio::test(start_paused = true)]
async fn what_was_asked_before_a_connection_broke_is_carried_through() {
    let store = fresh();
    let (mut broken, served) = stranger(&store).await;
    let mut sent = message(&Hello::ours());
    sent.extend(message(&Request { number: 1, call: Call::Enqueue(vec![job(1)]) }));
    sent.extend(u32::MAX.to_le_bytes());
    broken.write_all(&sent).await.expect("it is sent");
    served.await.expect("it does not panic").expect_err("that is no message");
    tokio::task::yield_now().await;
    let counts = store.count().await.expect("it is answered");
    assert_eq!(counts.in_state(windlass::StateName::Ready), 1);
}

#[tokio::test(start_paused = true)]
async fn who_takes_no_answer_is_left_also_if_it_asks_for_nothing_more() {
    let store = fresh();
    for number in 1..=100 {
        store.enqueue(vec![job(number)]).await.expect("it is accepted");
    }
    let (mut deaf, served) = stranger(&store).await;
    deaf.write_all(&message(&Hello::ours())).await.expect("it is sent");
    let call = Call::Jobs(JobQuery::Ids((1..=100).map(JobId::from_u128).collect()));
    deaf.write_all(&message(&Request { number: 1, call })).await.expect("it is sent");
    let ended = tokio::time::timeout(Duration::from_secs(3_600), served).await;
    let ended = ended.expect("it is not kept for ever").expect("it does not panic");
    let ended = ended.expect_err("it takes nothing");
    assert!(ended.to_string().contains("did not take"), "{ended}");
}

#[tokio::test(start_paused = true)]
async fn a_connection_ends_with_its_peer_although_a_call_waits() {
    let store = fresh();
    let (mut gone, served) = stranger(&store).await;
    gone.write_all(&message(&Hello::ours())).await.expect("it is sent");
    let call = Call::Events { after: 0, limit: 10, wait: Duration::from_secs(3_600) };
    gone.write_all(&message(&Request { number: 1, call })).await.expect("it is sent");
    tokio::task::yield_now().await;
    drop(gone);
    let ended = tokio::time::timeout(Duration::from_secs(60), served).await;
    let _ = ended.expect("it is not kept until the call has waited").expect("it does not panic");
}
