//! Requests that no Windlass program sends: refused in a sentence, with nothing done.

use std::collections::BTreeMap;

use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::header::CONTENT_TYPE;
use hyper::{Request as HttpRequest, StatusCode};
use windlass::StateName;
use windlass::wire::http::{HttpDoor, TYPE};
use windlass::wire::{Call, Hello, Request, encode};

use crate::common::{counted, fresh, job};

/// What a door answers to a body: the status, and the sentence or the answers.
async fn asked(door: &HttpDoor, body: Vec<u8>, of: &str) -> (StatusCode, Vec<u8>) {
    let request = HttpRequest::post("/wire").header(CONTENT_TYPE, of);
    let request = request.body(Full::new(Bytes::from(body))).expect("it is a request");
    let response = door.answer(request).await;
    let status = response.status();
    let said = response.into_body().collect().await.expect("it cannot fail").to_bytes();
    (status, said.to_vec())
}

/// A request as our own programs send it.
fn body(calls: impl IntoIterator<Item = Call>) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(&Hello::ours(), &mut bytes).expect("it fits");
    for (number, call) in (1..).zip(calls) {
        encode(&Request { number, call }, &mut bytes).expect("it fits");
    }
    bytes
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_request_of_ours_is_refused_in_a_sentence_and_nothing_is_done() {
    let served = fresh();
    let store = served.store.clone();
    let door = HttpDoor::to(served);
    let enqueue = || body([Call::Enqueue(vec![job(1)])]);
    let mut half = enqueue();
    half.truncate(half.len() - 1);
    let mut huge = body([]);
    huge.extend_from_slice(&u32::MAX.to_be_bytes());
    let many = body((0..2_000).map(|_| Call::Count));
    for (what, body, of, status) in [
        ("no type", enqueue(), "application/json", StatusCode::UNSUPPORTED_MEDIA_TYPE),
        ("nothing", Vec::new(), TYPE, StatusCode::BAD_REQUEST),
        ("a greeting alone", body([]), TYPE, StatusCode::BAD_REQUEST),
        ("half a message", half, TYPE, StatusCode::BAD_REQUEST),
        ("a huge message", huge, TYPE, StatusCode::BAD_REQUEST),
        ("too many calls", many, TYPE, StatusCode::BAD_REQUEST),
        ("JSON", b"{\"kind\":\"hello\"}".to_vec(), TYPE, StatusCode::BAD_REQUEST),
    ] {
        let (answered, said) = asked(&door, body, of).await;
        let said = String::from_utf8(said).expect("it is a sentence");
        assert_eq!(answered, status, "{what}: {said}");
        assert!(said.len() > 10 && said.lines().count() == 1, "{what}: {said}");
    }
    assert_eq!(counted(&store, StateName::Ready).await, 0);
    let (status, _) = asked(&door, enqueue(), TYPE).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(counted(&store, StateName::Ready).await, 1);
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % end as u64) as usize
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_requests_are_answered_or_refused_and_do_no_harm() {
    let mut seen: BTreeMap<u16, u32> = BTreeMap::new();
    for seed in 0..5_000 {
        let mut random = Random(seed);
        let door = HttpDoor::to(fresh());
        let mut bytes = body([Call::Enqueue(vec![job(1)]), Call::Count, Call::Info]);
        for _ in 0..=random.below(3) {
            let at = random.below(bytes.len());
            match random.below(4) {
                0 => bytes[at] = random.below(256) as u8,
                1 => bytes[at] = [0xdd, 0xdf, 0xc6, 0xdb, 0xc1, 0xff][random.below(6)],
                2 => bytes.truncate(at.max(1)),
                _ => bytes.insert(at, random.below(256) as u8),
            }
        }
        let (status, _) = asked(&door, bytes, TYPE).await;
        assert!(
            matches!(status, StatusCode::OK | StatusCode::BAD_REQUEST),
            "seed {seed}: {status}"
        );
        *seen.entry(status.as_u16()).or_default() += 1;
    }
    assert!(seen.len() == 2, "{seen:?}");
}
