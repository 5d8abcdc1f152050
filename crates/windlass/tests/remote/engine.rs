//! Programs on a server: the same engine, client and worker as on a directory.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::Barrier;
use windlass::store::Store;
use windlass::wire::http::HttpDoor;
use windlass::{Engine, Failure, Job, Ownership, Received, Topics};

use crate::common::{Server, engine_with_server, fresh, job, remote};

#[derive(Serialize, Deserialize)]
struct Double(u64);

impl Job for Double {
    const KIND: &'static str = "double";
    type Output = u64;
}

async fn double(job: Double) -> Result<u64, Failure> {
    Ok(job.0 * 2)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_one_program_enqueues_another_one_runs_and_a_third_one_hears() {
    let (engine, server) = engine_with_server().await;
    let open = || async { Engine::open(&server.url()).await.expect("it is there") };
    let (client, worker, watcher) = (open().await, open().await, open().await);
    let mut events = watcher.subscribe(Topics::all()).expect("it may");
    let running = worker.worker().handle(double).start().await.expect("it starts");
    for number in 0..100 {
        let handle = client.enqueue(Double(number)).await.expect("it is accepted");
        assert_eq!(handle.outcome().await.expect("it is done"), number * 2);
    }
    assert!(matches!(events.next().await, Received::Event(_)));
    running.stop().await.expect("it stops");
    for engine in [client, worker, watcher, engine] {
        engine.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_on_a_server_names_it_and_leaves_housekeeping_to_it() {
    let (engine, server) = engine_with_server().await;
    let far = Engine::open(&server.url()).await.expect("it is there");
    let owner = format!("the server at {}", server.url());
    assert_eq!(far.store().info().ownership, Some(Ownership::Joined { owner }));
    assert!(far.opened().is_none(), "it has opened nothing itself");
    far.close().await;
    engine.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_started_anew_is_a_pause() {
    let (engine, server) = engine_with_server().await;
    let far = Engine::open(&server.url()).await.expect("it is there");
    let running = far.worker().handle(double).start().await.expect("it starts");
    let begun = Arc::new(Barrier::new(9));
    let callers: Vec<_> = (0..8_u64)
        .map(|caller| {
            let (far, begun) = (far.clone(), begun.clone());
            tokio::spawn(async move {
                for number in 0..50 {
                    let number = caller * 1_000 + number;
                    let handle = far.enqueue(Double(number)).await.expect("it is accepted");
                    assert_eq!(handle.outcome().await.expect("it is done"), number * 2);
                    if number % 1_000 == 5 {
                        begun.wait().await;
                    }
                }
            })
        })
        .collect();
    begun.wait().await;
    let mut server = server;
    for _ in 0..3 {
        let port = server.stop().await;
        server = Server::with(HttpDoor::to_engine(&engine), port).await;
    }
    for caller in callers {
        caller.await.expect("nothing failed");
    }
    let counts = engine.store().count().await.expect("it is answered");
    assert_eq!(counts.in_state(windlass::StateName::Completed), 400);
    running.stop().await.expect("it stops");
    far.close().await;
    engine.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_waits_when_its_server_stops_waits_on_at_the_next() {
    let served = fresh();
    let server = Server::start(served.clone()).await;
    let far = Arc::new(remote(&server.url()).await);
    let waits = tokio::spawn({
        let far = far.clone();
        async move { far.events(0, 10, Duration::from_secs(60)).await }
    });
    // On its way before this one, over a connection of its own.
    far.count().await.expect("it is answered");
    let port = server.stop().await;
    let _server = Server::with(HttpDoor::to(served.clone()), port).await;
    served.store.enqueue(vec![job(1)]).await.expect("it is accepted");
    let told = waits.await.expect("no panic").expect("it is made again, and answered");
    assert_eq!(told.len(), 1);
}
