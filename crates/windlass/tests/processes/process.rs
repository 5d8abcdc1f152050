//! A process of its own that has an engine on a directory, and does what it is told.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;
use windlass::core::job::StateName;
use windlass::{Attempt, Engine, Failure, Job, JobId, Ownership, Sharing, Worker};

/// Longer than anything takes that does not wait for a lease.
const PATIENCE: Duration = Duration::from_secs(60);

/// Longer than any test takes.
pub(crate) const LEASE: Duration = Duration::from_secs(600);

const DIRECTORY: &str = "WINDLASS_TEST_MEMBER_OF";
const SHARING: &str = "WINDLASS_TEST_SHARING";

/// A directory that is removed when the test ends.
pub(crate) struct Directory(PathBuf);

impl Directory {
    pub(crate) fn new() -> Self {
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let made = MADE.fetch_add(1, Ordering::SeqCst);
        let name = format!("windlass-processes-{}-{made}", std::process::id());
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&path).expect("a directory of its own");
        Self(path)
    }

    pub(crate) fn store(&self) -> PathBuf {
        self.0.join("store")
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A job that waits to be told to end.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Held {
    pub(crate) number: u64,
}

impl Job for Held {
    const KIND: &'static str = "held";
    type Output = u64;
}

pub(crate) fn id(number: u64) -> JobId {
    JobId::from_u128(number.into())
}

/// A process that has the store open; killed when this is dropped.
pub(crate) struct Process {
    process: Child,
    told: ChildStdin,
    lines: Receiver<String>,
    /// Said, and not waited for yet.
    kept: VecDeque<String>,
}

impl Process {
    /// Starts a process on the directory, and waits until it has it open.
    pub(crate) fn start(path: &Path) -> Self {
        Self::start_as(path, "any")
    }

    /// The same with another part in it, such as `never` for one that never takes over.
    pub(crate) fn start_as(path: &Path, sharing: &str) -> Self {
        let mut started = Self::begin(path, sharing);
        started.expect("open");
        started
    }

    /// Starts one without waiting.
    pub(crate) fn begin(path: &Path, sharing: &str) -> Self {
        let own = std::env::current_exe().expect("a test has a path");
        let mut process = Command::new(own)
            .args(["--exact", "process::a_process_that_does_what_it_is_told", "--nocapture"])
            .env(DIRECTORY, path)
            .env(SHARING, sharing)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process can be started");
        let told = process.stdin.take().expect("it is a pipe");
        let said = BufReader::new(process.stdout.take().expect("it is a pipe"));
        let (tell, lines) = channel();
        std::thread::spawn(move || {
            for line in said.lines().map_while(Result::ok) {
                // The harness may have begun the line.
                if let Some((_, line)) = line.split_once("> ") {
                    let _ = tell.send(line.to_string());
                }
            }
        });
        Self { process, told, lines, kept: VecDeque::new() }
    }

    pub(crate) fn tell(&mut self, line: &str) {
        writeln!(self.told, "{line}").expect("it reads");
    }

    /// Waits for a line that begins so, and returns the rest. Others are kept for later.
    pub(crate) fn expect(&mut self, begin: &str) -> String {
        let rest = |line: &String| line.strip_prefix(begin).map(|rest| rest.trim().to_string());
        if let Some(found) = self.kept.iter().position(|line| rest(line).is_some()) {
            return self.kept.remove(found).as_ref().and_then(rest).expect("it is there");
        }
        loop {
            let line = self.lines.recv_timeout(PATIENCE);
            let line = line.unwrap_or_else(|_| {
                panic!("it did not say `{begin}`, but {:?}", self.kept);
            });
            if let Some(rest) = rest(&line) {
                return rest;
            }
            self.kept.push_back(line);
        }
    }

    /// Tells it something and waits for the answer.
    pub(crate) fn ask(&mut self, line: &str) -> String {
        self.tell(line);
        self.expect("= ")
    }

    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    pub(crate) fn kill(mut self) {
        self.process.kill().expect("it runs");
        self.process.wait().expect("it has ended");
    }

    /// Sends a signal, such as `STOP`.
    pub(crate) fn signal(&self, signal: &str) {
        let sent =
            Command::new("kill").args([&format!("-{signal}"), &self.id().to_string()]).status();
        assert!(sent.expect("there is a `kill`").success());
    }

    /// Ends it as a program ends.
    pub(crate) fn close(mut self) {
        assert_eq!(self.ask("close"), "closed");
    }

    pub(crate) fn owns(&mut self) -> bool {
        self.ask("info") == "owner"
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// What this program is called, as processes name it.
pub(crate) fn own_name() -> String {
    let own = std::env::current_exe().expect("a test has a path");
    own.file_name().expect("a name").to_string_lossy().into_owned()
}

fn say(line: &str) {
    // At once, and whole: the harness buffers what is printed without a new line.
    println!("> {line}");
}

#[tokio::test(flavor = "current_thread")]
async fn a_process_that_does_what_it_is_told() {
    let Ok(path) = std::env::var(DIRECTORY) else { return };
    let sharing = match std::env::var(SHARING).as_deref() {
        Ok("never") => Sharing::NeverTakeOver,
        _ => Sharing::OwnOrJoin,
    };
    let engine = match Engine::builder().sharing(sharing).open(&path).await {
        Ok(engine) => engine,
        Err(error) => return say(&format!("open refused: {error}")),
    };
    say("open");
    let mut told = Told { engine, worker: None, released: Arc::new(Semaphore::new(0)) };
    let (send, mut lines) = tokio::sync::mpsc::unbounded_channel();
    std::thread::spawn(move || {
        // It ends when this pipe does, so that it does not outlive a killed test.
        for line in std::io::stdin().lines().map_while(Result::ok) {
            let _ = send.send(line);
        }
        std::process::exit(0);
    });
    while let Some(line) = lines.recv().await {
        let (word, rest) = line.split_once(' ').unwrap_or((&line, ""));
        told.obey(word, rest).await;
    }
}

struct Told {
    engine: Engine,
    worker: Option<Worker>,
    released: Arc<Semaphore>,
}

impl Told {
    async fn obey(&mut self, word: &str, rest: &str) {
        let number = rest.parse().unwrap_or(0);
        match word {
            "enqueue" => say(&match self.engine.enqueue(Held { number }).id(id(number)).await {
                Ok(_) => format!("= accepted {number}"),
                Err(error) => format!("= refused {:#}", anyhow::Error::from(error)),
            }),
            // Many at once, each answered on its own.
            "flood" => {
                for number in 1..=number {
                    let engine = self.engine.clone();
                    tokio::spawn(async move {
                        let accepted = engine.enqueue(Held { number }).id(id(number)).await;
                        match accepted {
                            Ok(_) => say(&format!("accepted {number}")),
                            Err(error) => say(&format!("refused {number}: {error}")),
                        }
                    });
                }
            }
            "outcome" => {
                let engine = self.engine.clone();
                tokio::spawn(async move {
                    let end = engine.handle::<Held>(id(number)).outcome().await;
                    say(&format!("outcome {number} {end:?}"));
                });
            }
            "work" => {
                self.worker = Some(self.start_worker(number.max(1) as u32).await);
                say("= working");
            }
            "release" => self.released.add_permits(number.max(1) as usize),
            "info" => {
                let info = self.engine.store().info();
                say(&match info.ownership.expect("it is a directory") {
                    Ownership::Owner => "= owner".to_string(),
                    Ownership::Joined { owner } => format!("= joined {owner}"),
                    Ownership::Seeking => "= seeking".to_string(),
                });
            }
            "state" => {
                let record = self.engine.find(id(number)).await.expect("answered");
                let record = record.expect("it is kept");
                say(&format!(
                    "= {} attempts {} recoveries {}",
                    record.state(),
                    record.status.attempts,
                    record.status.recoveries
                ));
            }
            "count" => {
                let counts = self.engine.counts().await.expect("counted");
                let all: u64 = StateName::ALL.iter().map(|state| counts.in_state(*state)).sum();
                say(&format!("= {all}"));
            }
            // The program keeps its runtime to itself for ever.
            "block" => {
                say("= blocked");
                loop {
                    std::thread::park();
                }
            }
            "close" => {
                self.engine.close().await;
                say("= closed");
                std::process::exit(0);
            }
            other => panic!("nobody knows `{other}`"),
        }
    }

    async fn start_worker(&self, slots: u32) -> Worker {
        let released = self.released.clone();
        let hold = move |job: Held, attempt: Attempt| {
            let released = released.clone();
            async move {
                say(&format!("started {} attempt {}", job.number, attempt.number()));
                released.acquire().await.expect("it is open").forget();
                Ok::<u64, Failure>(job.number)
            }
        };
        let worker = self.engine.worker().slots(slots);
        let worker = worker.handle_with(hold, |options| options.lease(LEASE).timeout(LEASE));
        worker.start().await.expect("it starts")
    }
}
