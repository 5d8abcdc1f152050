//! Calls and answers travel between programs, and mean the same when they arrive.
//!
//! `tests/golden/wire-1/` has messages as protocol 1 was first written (`bytes.txt`) and what they
//! mean (`meaning.txt`). A change that can no longer read them, or reads something else, breaks
//! every program that is not updated at the same moment. When a field is added, what they mean has
//! a new word: write that anew with `WINDLASS_WRITE_GOLDEN=meaning cargo test -p windlass --test
//! main wire`, and read the difference. The bytes are written once (`=wire-1`), and never again.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{Debug, Write};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use serde::{Serialize, de::DeserializeOwned};
use windlass::conformance::{Harness, run};
use windlass::store::{MemoryStore, Store};
use windlass::testing::VirtualClock;
use windlass::wake::LocalWake;
use windlass::wire::{
    CALL_BYTES, Call, Connection, Fault, Frames, Hello, RemoteStore, Reply, Request, Response,
    Served, decode, encode,
};
use windlass::{Limits, ObjectAddress, Refusal};

/// Sends a message through bytes.
fn travel<T: Serialize + DeserializeOwned>(message: &T) -> T {
    decode(&bytes_of(message)).expect("it is what was sent")
}

fn bytes_of<T: Serialize>(message: &T) -> Vec<u8> {
    let mut sent = Vec::new();
    encode(message, &mut sent).expect("it can be sent");
    let mut frames = Frames::up_to(CALL_BYTES);
    frames.push(&sent);
    let message = frames.take().expect("it is a message");
    message.expect("all of it has arrived").to_vec()
}

/// The shortest message that has it, for each word: together they have every variant and field that
/// travels.
#[derive(Default)]
struct Kept(BTreeMap<String, (&'static str, Vec<u8>)>);

impl Kept {
    fn note(&mut self, what: &'static str, message: &(impl Debug + Serialize)) {
        let bytes = bytes_of(message);
        for word in words_of(message) {
            let known = self.0.get(&word);
            if known.is_none_or(|(_, known)| known.len() > bytes.len()) {
                self.0.insert(word, (what, bytes.clone()));
            }
        }
    }
}

/// Names of types, variants and fields: not what stands in quotes, numbers or ids.
fn words_of(message: &impl Debug) -> BTreeSet<String> {
    let text = format!("{message:?}").replace("\\\"", "");
    let plain: Vec<&str> = text.split('"').step_by(2).collect();
    let plain = plain.join(" ");
    let words = plain.split(|c: char| !c.is_alphanumeric() && c != '_' && c != '-');
    let is_word =
        |word: &&str| !word.is_empty() && word.chars().all(|c| c.is_ascii_alphabetic() || c == '_');
    words.filter(is_word).map(ToString::to_string).collect()
}

/// Bytes to a store that is in the same process, and back.
struct Loopback {
    served: Served,
    kept: Arc<Mutex<Kept>>,
}

impl Debug for Loopback {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Loopback")
    }
}

#[async_trait]
impl Connection for Loopback {
    async fn send(&self, call: Call) -> Result<Response, Fault> {
        let request = travel(&Request { number: 7, call });
        self.kept().note("request", &request);
        let answer = request.call.answered_by(&self.served).await;
        let last_event = self.served.store.info().last_event;
        let response = travel(&Response { number: request.number, last_event, answer });
        let Response { number, last_event, answer } = &response;
        match answer {
            Ok(Reply::Events(events)) => {
                for event in events {
                    let answer = Ok(Reply::Events(vec![event.clone()]));
                    let (number, last_event) = (*number, *last_event);
                    self.kept().note("response", &Response { number, last_event, answer });
                }
            }
            _ => self.kept().note("response", &response),
        }
        Ok(response)
    }
}

impl Loopback {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().expect("nobody panicked with it")
    }
}

struct BehindTheWire {
    clock: Arc<VirtualClock>,
    kept: Arc<Mutex<Kept>>,
}

#[async_trait]
impl Harness for BehindTheWire {
    async fn fresh(&self, limits: Limits) -> Arc<dyn Store> {
        let wake = Arc::new(LocalWake::new());
        let store = Arc::new(MemoryStore::new(limits, self.clock.clone(), wake.clone()));
        let loopback = Loopback { served: Served { store, wake }, kept: self.kept.clone() };
        Arc::new(RemoteStore::over(loopback).await.expect("it is there"))
    }

    async fn advance(&self, by: Duration) {
        tokio::time::advance(by).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_behind_the_wire_keeps_every_promise_of_the_suite() {
    let kept = Arc::new(Mutex::new(Kept::default()));
    let harness = BehindTheWire { clock: Arc::new(VirtualClock::new()), kept: kept.clone() };
    let broken = run(Arc::new(harness)).await;
    let told: Vec<String> =
        broken.iter().map(|broken| format!("{}: {}", broken.name, broken.seen)).collect();
    assert!(broken.is_empty(), "{} are broken:\n{}", broken.len(), told.join("\n"));
    let kept = kept.lock().expect("nobody panicked with it");
    if std::env::var("WINDLASS_WRITE_GOLDEN").as_deref() == Ok("wire-1") {
        write_bytes(&kept);
    }
    // What the suite says today must be in what was written, so that nothing new goes unproven.
    let known = words_of_golden();
    let new: Vec<&String> = kept.0.keys().filter(|word| !known.contains(*word)).collect();
    assert!(new.is_empty(), "not in tests/golden/wire-*: {new:?}; add a file of messages");
}

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/wire-1")
}

fn write_bytes(kept: &Kept) {
    let mut text = String::new();
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    writeln!(text, "hello {}", hex(&bytes_of(&Hello::ours()))).expect("it is text");
    let messages: BTreeSet<_> = kept.0.values().collect();
    for (what, message) in messages {
        writeln!(text, "{what} {}", hex(message)).expect("it is text");
    }
    fs::create_dir_all(golden()).expect("it can be written");
    fs::write(golden().join("bytes.txt"), text).expect("it can be written");
}

/// The messages that were written once.
fn messages() -> Vec<(String, Vec<u8>)> {
    let text = fs::read_to_string(golden().join("bytes.txt")).expect("it is there");
    let byte = |pair: &[u8]| {
        let pair = str::from_utf8(pair).expect("it is text");
        u8::from_str_radix(pair, 16).expect("it is a number")
    };
    let message = |line: &str| {
        let (what, hex) = line.split_once(' ').expect("a word and bytes");
        (what.to_string(), hex.as_bytes().chunks(2).map(byte).collect())
    };
    text.lines().map(message).collect()
}

fn meaning_of(what: &str, bytes: &[u8]) -> Result<String, String> {
    fn read<T: DeserializeOwned + Debug>(bytes: &[u8]) -> Result<String, String> {
        let message = decode::<T>(bytes).map_err(|error| error.to_string())?;
        Ok(format!("{message:?}"))
    }
    match what {
        "hello" => read::<Hello>(bytes),
        "request" => read::<Request>(bytes),
        _ => read::<Response>(bytes),
    }
}

fn words_of_golden() -> BTreeSet<String> {
    let words = |(what, bytes): &(String, Vec<u8>)| match what.as_str() {
        "request" => words_of(&decode::<Request>(bytes).expect("it is readable")),
        "response" => words_of(&decode::<Response>(bytes).expect("it is readable")),
        _ => BTreeSet::new(),
    };
    messages().iter().flat_map(words).collect()
}

#[test]
fn messages_of_protocol_1_are_read_as_they_were_written() {
    let mut meaning = String::new();
    for (what, bytes) in messages() {
        let read = meaning_of(&what, &bytes).expect("it is readable");
        writeln!(meaning, "{what} {read}").expect("it is text");
    }
    let path = golden().join("meaning.txt");
    if std::env::var("WINDLASS_WRITE_GOLDEN").as_deref() == Ok("meaning") {
        fs::write(&path, &meaning).expect("it can be written");
    }
    let expected = fs::read_to_string(path).expect("it is there");
    for (now, then) in meaning.lines().zip(expected.lines()) {
        assert_eq!(now, then);
    }
    assert_eq!(meaning.lines().count(), expected.lines().count());
}

#[test]
fn faults_that_no_suite_can_cause_travel_too() {
    let invalid = windlass::Name::new("a b").expect_err("it has a space");
    let why = || "the disk is gone".to_string();
    for fault in [
        Fault::Refused(Refusal::InvalidName(invalid)),
        Fault::Refused(Refusal::ShuttingDown),
        Fault::Refused(Refusal::Unavailable { why: why() }),
        Fault::Refused(Refusal::StoreFull { why: why() }),
        Fault::Refused(Refusal::StoreBroken { why: why() }),
        Fault::Unknown { why: why() },
    ] {
        assert_eq!(travel(&fault), fault);
    }
}

#[test]
fn what_could_not_be_made_is_not_received() {
    #[derive(Serialize)]
    struct Parts {
        kind: &'static str,
        name: &'static str,
        key: &'static str,
    }
    let address = |kind, name, key| bytes_of(&Parts { kind, name, key });
    assert!(decode::<ObjectAddress>(&address("task", "mail", "one")).is_ok());
    for bad in [address("task", "no name", "one"), address("task", "mail", "")] {
        decode::<ObjectAddress>(&bad).expect_err("no such object can be");
    }
    decode::<windlass::Name>(&bytes_of(&"a/b")).expect_err("no such name can be");
    let long = decode::<windlass::ErrorText>(&bytes_of(&"é".repeat(100_000))).expect("it is cut");
    assert!(long.as_str().len() <= windlass::limits::ERROR_BYTES);
}

#[test]
fn what_a_newer_program_adds_is_passed_over() {
    #[derive(Serialize)]
    struct NewerRequest {
        urgency: [u8; 3],
        number: u64,
        call: Call,
        origin: Option<&'static str>,
    }
    let (number, urgency, origin) = (9, [1, 2, 3], Some("elsewhere"));
    let newer = NewerRequest { urgency, number, call: Call::Count, origin };
    let read: Request = decode(&bytes_of(&newer)).expect("the rest is understood");
    assert_eq!(read.number, 9);
    assert!(matches!(read.call, Call::Count));
}

#[test]
fn a_verb_that_only_a_newer_program_has_is_named() {
    #[derive(Serialize)]
    enum NewerCall {
        Teleport,
    }
    #[derive(Serialize)]
    struct NewerRequest {
        number: u64,
        call: NewerCall,
    }
    let newer = NewerRequest { number: 1, call: NewerCall::Teleport };
    let said = decode::<Request>(&bytes_of(&newer)).expect_err("nobody knows it").to_string();
    assert!(said.contains("Teleport"), "{said}");
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

#[test]
fn bytes_that_are_no_message_are_refused_and_do_no_harm() {
    let messages = messages();
    for seed in 0..20_000 {
        let mut random = Random(seed);
        let (what, bytes) = &messages[random.below(messages.len())];
        let mut bytes = bytes.clone();
        for _ in 0..=random.below(4) {
            let at = random.below(bytes.len());
            match random.below(4) {
                0 => bytes[at] = random.below(256) as u8,
                // Types and lengths of MessagePack: arrays, maps, bytes and texts of any length.
                1 => bytes[at] = [0xdd, 0xdf, 0xc6, 0xdb, 0xc1, 0xcf][random.below(6)],
                2 => bytes.truncate(at.max(1)),
                _ => {
                    bytes.insert(at, random.below(256) as u8);
                }
            }
        }
        // It is read as something or refused: it neither panics nor asks for more memory than came.
        let _ = meaning_of(what, &bytes);
    }
}
