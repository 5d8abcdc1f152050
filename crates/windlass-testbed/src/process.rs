//! A server's process: found, started, asked to stop, killed.

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::directory::User;

/// Longer than any server needs to start or stop on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running server.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `program` so that it gets `last_signal` when this process dies, and appends what it
    /// says to `log`.
    pub(crate) fn start(
        program: &Path,
        arguments: &[&str],
        user: Option<&User>,
        last_signal: &str,
        log: &Path,
    ) -> Self {
        let mut command = as_user(program, user, Some(last_signal));
        let out = File::options().create(true).append(true).open(log).expect("the log opens");
        let err = out.try_clone().expect("a file can be shared");
        command.args(arguments).stdin(Stdio::null()).stdout(out).stderr(err);
        Self { child: spawn(command), log: log.to_owned() }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until `ready`.
    ///
    /// # Panics
    /// If the server ends before, or is not ready in a minute, with what it said.
    pub(crate) fn wait_until(&mut self, ready: impl Fn() -> bool) {
        let begun = Instant::now();
        while !ready() {
            let ended = self.child.try_wait().expect("a child can be asked");
            let late = begun.elapsed() > PATIENCE;
            assert!(ended.is_none() && !late, "no server ({ended:?}):\n{}", self.said());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// What the server has said so far.
    pub(crate) fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Asks it to stop and waits for its end; kills it if it takes too long.
    pub(crate) fn stop(&mut self, signal: &str) {
        if matches!(self.child.try_wait(), Ok(None)) {
            send(signal, &[self.id()]);
            let begun = Instant::now();
            while matches!(self.child.try_wait(), Ok(None)) && begun.elapsed() < PATIENCE / 6 {
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        self.kill();
    }

    /// Kills it, together with its children, and waits for their end.
    pub(crate) fn kill(&mut self) {
        if !matches!(self.child.try_wait(), Ok(None)) {
            return;
        }
        // It is stopped first, so that it starts no more of them meanwhile.
        send("STOP", &[self.id()]);
        let children = children(self.id());
        let all: Vec<u32> = std::iter::once(self.id()).chain(children.iter().copied()).collect();
        send("KILL", &all);
        let _ = self.child.wait();
        // They belong to another parent now, which takes note of their end when it likes.
        let begun = Instant::now();
        while children.iter().any(|child| is_running(*child)) && begun.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Sends a signal to processes of ours; one that is gone already is passed over.
pub(crate) fn send(signal: &str, to: &[u32]) {
    let mut kill = Command::new("sh");
    kill.args(["-c", r#"for each in "$@"; do kill -s "$0" "$each"; done"#, signal]);
    kill.args(to.iter().map(ToString::to_string)).stderr(Stdio::null());
    let _ = kill.status();
}

/// Runs a program of a server to its end.
///
/// # Panics
/// If it fails, with what it said.
pub(crate) fn run(program: &Path, arguments: &[&str], user: Option<&User>) -> String {
    let mut command = as_user(program, user, None);
    command.args(arguments).stdin(Stdio::null());
    let Output { status, stdout, stderr } = command.output().expect("the program was found");
    let (out, err) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{command:?}: {status}\n{out}{err}");
    out.into_owned()
}

/// The command for `program`, without the environment of whoever runs the tests: a server must
/// not take settings from there.
fn as_user(program: &Path, user: Option<&User>, last_signal: Option<&str>) -> Command {
    let mut command = Command::new("setpriv");
    if let Some(User { id, group }) = user {
        command.args(["--clear-groups", &format!("--reuid={id}"), &format!("--regid={group}")]);
    }
    if let Some(signal) = last_signal {
        command.arg(format!("--pdeathsig={signal}"));
    }
    command.arg("--").arg(program);
    let path = std::env::var_os("PATH").unwrap_or_default();
    command.env_clear().env("PATH", path).env("LC_ALL", "C").current_dir("/");
    command
}

/// Starts a process from a thread that lives as long as this process. The kernel takes the death
/// of the starting *thread* for the death of the parent, and a test has a thread of its own.
fn spawn(command: Command) -> Child {
    type Order = (Command, Sender<std::io::Result<Child>>);
    static STARTER: OnceLock<Mutex<Sender<Order>>> = OnceLock::new();
    let starter = STARTER.get_or_init(|| {
        let (orders, inbox) = channel::<Order>();
        std::thread::spawn(move || {
            for (mut command, answer) in inbox {
                let _ = answer.send(command.spawn());
            }
        });
        Mutex::new(orders)
    });
    let (answer, started) = channel();
    let orders = starter.lock().unwrap_or_else(PoisonError::into_inner).clone();
    orders.send((command, answer)).expect("the starter never ends");
    started.recv().expect("the starter answers").expect("setpriv is there")
}

/// Where a program is: in one of the directories, or on the path.
pub(crate) fn find(program: &str, directories: &[PathBuf]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // Debian keeps servers where an ordinary user's path does not lead.
    let usual = ["/usr/local/sbin", "/usr/sbin"].map(PathBuf::from);
    let everywhere = directories.iter().cloned().chain(std::env::split_paths(&path)).chain(usual);
    everywhere.map(|directory| directory.join(program)).find(|path| path.is_file())
}

/// A port nobody listens on. It is below those that the kernel hands out to whoever connects, so
/// that it is still free when a server is started again.
pub(crate) fn free_port() -> u16 {
    const FIRST: u32 = 12_000;
    const COUNT: u32 = 20_000;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    for _ in 0..COUNT {
        // Test processes that run at the same time begin far from each other.
        let turn = NEXT.fetch_add(1, Ordering::Relaxed);
        let place = std::process::id().wrapping_mul(7_919).wrapping_add(turn) % COUNT;
        let port = u16::try_from(FIRST + place).expect("it is below 32,000");
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
    panic!("no port is free");
}

/// The processes started by this one.
pub(crate) fn children(parent: u32) -> Vec<u32> {
    let everyone = fs::read_dir("/proc").expect("there is /proc");
    let ids = everyone.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    ids.filter(|id| stat(*id).is_some_and(|(_, its_parent)| its_parent == parent)).collect()
}

fn is_running(process: u32) -> bool {
    stat(process).is_some_and(|(state, _)| state != 'Z')
}

/// State and parent of a process.
fn stat(process: u32) -> Option<(char, u32)> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name comes before, in brackets, and may hold anything.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}
