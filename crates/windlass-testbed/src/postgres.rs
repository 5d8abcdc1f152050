//! A PostgreSQL server of a test's own.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::Missing;
use crate::directory::{Directory, User, is_root};
use crate::process::{Process, children, find, free_port, run, send};

/// A PostgreSQL server: durable as by default (`fsync` and `synchronous_commit` on), open to
/// everyone on this machine, with the superuser `postgres` and the database `postgres`.
///
/// It runs as the system user `postgres` when the tests run as root, because PostgreSQL refuses
/// to run as root.
#[derive(Debug)]
pub struct Postgres {
    // Stops before its directory leaves.
    process: Option<Process>,
    programs: PathBuf,
    user: Option<User>,
    port: u16,
    databases: AtomicUsize,
    /// What stands between the server and the machine's clock.
    fake_clock: Option<PathBuf>,
    directory: Directory,
}

const MISSING: Missing =
    Missing { what: "PostgreSQL", how_to_install: "apt-get install postgresql" };

const NO_FAKE_CLOCK: Missing =
    Missing { what: "libfaketime", how_to_install: "apt-get install libfaketime" };

/// Immediate shutdown: everything ends at once, and no shared memory is left behind, as it would
/// be after a kill.
const AT_ONCE: &str = "QUIT";

impl Postgres {
    /// Starts a server with default settings.
    pub fn start() -> Result<Self, Missing> {
        Self::with(&[])
    }

    /// Starts a server with lines of configuration, such as `max_connections=200`.
    pub fn with(settings: &[&str]) -> Result<Self, Missing> {
        Self::make(settings, None)
    }

    /// Starts a server whose wall clock can be stepped while it runs. It looks late for circles of
    /// locks, so that an ordinary wait sets off no timer: that makes a process read its clock in a
    /// signal handler, where the library that steps it may crash ("corrupted double-linked list"),
    /// or tell the real time.
    pub fn with_clock() -> Result<Self, Missing> {
        Self::make(&["deadlock_timeout=4s"], Some(fake_clock().ok_or(NO_FAKE_CLOCK)?))
    }

    fn make(settings: &[&str], fake_clock: Option<PathBuf>) -> Result<Self, Missing> {
        let mut server = Self::lay_out()?;
        if fake_clock.is_some() {
            server.set_clock(0);
        }
        server.fake_clock = fake_clock;
        let (data, programs) = (server.data(), &server.programs);
        let data = data.to_str().expect("the path is text");
        let options = ["-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync"];
        run(&programs.join("initdb"), &[&options[..], &["--locale=C"]].concat(), server.user());
        server.write_settings(settings);
        server.start_again();
        Ok(server)
    }

    /// One server for all tests of a test binary. It ends with the process.
    pub fn shared() -> Result<&'static Self, Missing> {
        static SHARED: OnceLock<Result<Postgres, Missing>> = OnceLock::new();
        SHARED.get_or_init(Self::start).as_ref().map_err(|missing| *missing)
    }

    /// A standby that follows `primary` by streaming, as `application_name=standby`. Its data is
    /// complete as of this call, and it answers reads when this returns.
    pub fn standby_of(primary: &Self) -> Result<Self, Missing> {
        let mut server = Self::lay_out()?;
        let from = format!(
            "host={} port={} user=postgres application_name=standby",
            primary.directory.path().display(),
            primary.port
        );
        let data = server.data();
        let data = data.to_str().expect("the path is text");
        let options = ["-D", data, "-d", &from, "-R", "-X", "stream", "-c", "fast", "--no-sync"];
        run(&server.programs.join("pg_basebackup"), &options, server.user());
        // Last, since the copy brought the primary's own.
        server.write_settings(&[]);
        server.start_again();
        Ok(server)
    }

    /// An own directory and port; nothing runs yet.
    fn lay_out() -> Result<Self, Missing> {
        let programs = programs().ok_or(MISSING)?;
        let user = if is_root() { Some(User::named("postgres").ok_or(MISSING)?) } else { None };
        let directory = Directory::new("postgres");
        if let Some(user) = &user {
            directory.give_to(user);
        }
        let port = free_port();
        let databases = AtomicUsize::new(0);
        let fake_clock = None;
        Ok(Self { process: None, programs, user, port, databases, fake_clock, directory })
    }

    fn user(&self) -> Option<&User> {
        self.user.as_ref()
    }

    fn data(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    fn write_settings(&self, settings: &[&str]) {
        let sockets = self.directory.path().display();
        let own = format!(
            "listen_addresses='127.0.0.1'\nport={}\nunix_socket_directories='{sockets}'\n",
            self.port
        );
        let all = settings.iter().fold(own, |all, setting| all + setting + "\n");
        let path = self.data().join("postgresql.conf");
        let file = fs::OpenOptions::new().append(true).open(path);
        file.and_then(|mut file| file.write_all(all.as_bytes())).expect("initdb made the file");
    }

    /// Puts the wall clock of a server from [`Postgres::with_clock`] so many seconds from where it
    /// should be. Its steady clock goes on.
    pub fn set_clock(&self, seconds: i64) {
        let (file, fresh) = (self.clock_file(), self.clock_file().with_extension("fresh"));
        let written = fs::write(&fresh, format!("{seconds:+}\n"));
        written.and_then(|()| fs::rename(fresh, file)).expect("the directory is ours");
    }

    fn clock_file(&self) -> PathBuf {
        self.directory.path().join("clock")
    }

    /// The program and what comes before its arguments. It alone is to read its clock through the
    /// library: whoever changes to the server's user first would leave it locks it cannot open.
    fn program(&self) -> (PathBuf, Vec<String>) {
        let program = self.programs.join("postgres");
        let Some(library) = &self.fake_clock else { return (program, Vec::new()) };
        let before = vec![
            format!("LD_PRELOAD={}", library.display()),
            format!("FAKETIME_TIMESTAMP_FILE={}", self.clock_file().display()),
            "FAKETIME_NO_CACHE=1".to_string(),
            "FAKETIME_DONT_FAKE_MONOTONIC=1".to_string(),
            "FAKETIME_DISABLE_SHM=1".to_string(),
            program.display().to_string(),
        ];
        (PathBuf::from("/usr/bin/env"), before)
    }

    /// Where the server is, as its superuser, in the database `postgres`.
    pub fn url(&self) -> String {
        self.url_for("postgres")
    }

    /// Where another database of the server is.
    pub fn url_for(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port)
    }

    /// The port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Where its unix socket is; a client takes this for a host.
    pub fn socket_directory(&self) -> &Path {
        self.directory.path()
    }

    /// The process of the postmaster, for signals of your own; `None` while the server is down.
    pub fn process_id(&self) -> Option<u32> {
        self.process.as_ref().map(Process::id)
    }

    /// Makes an empty database and returns its name.
    pub fn create_database(&self) -> String {
        let number = self.databases.fetch_add(1, Ordering::Relaxed);
        // The port is in it because a standby counts anew when it has been promoted.
        let name = format!("test_{}_{number}", self.port);
        self.sql("postgres", &format!("CREATE DATABASE {name}"));
        name
    }

    /// Runs statements in a database and returns what they print, one row per line and columns
    /// separated by `|`.
    ///
    /// # Panics
    /// If one fails, with what the server says.
    pub fn sql(&self, database: &str, statements: &str) -> String {
        let (host, port) = (self.directory.path().display().to_string(), self.port.to_string());
        let place = ["-h", &host, "-p", &port, "-U", "postgres", "-d", database];
        let plain = ["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-c", statements];
        let out = run(&self.programs.join("psql"), &[place, plain].concat(), self.user());
        out.trim_end().to_owned()
    }

    /// Adds lines of configuration and has the running server read them. Those that need a restart
    /// wait for [`Postgres::restart`].
    pub fn configure(&self, settings: &[&str]) {
        self.write_settings(settings);
        self.sql("postgres", "SELECT pg_reload_conf()");
    }

    /// Stops in good order: connections are told that the administrator ended them, and
    /// everything is written. Does nothing if it is down.
    pub fn stop(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.stop("INT");
        }
    }

    /// Stops in good order and starts again, on the same port.
    pub fn restart(&mut self) {
        self.stop();
        self.start_again();
    }

    /// Kills the postmaster and every process it has started, as a machine that loses its power
    /// would, except that what was written to files is kept. Does nothing if it is down.
    pub fn kill_postmaster(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill();
        }
    }

    /// Starts on the same port with the same data, and returns when connections are answered. Does
    /// nothing if it runs.
    pub fn start_again(&mut self) {
        if self.process.is_some() {
            return;
        }
        let data = self.data();
        let state = data.join("postmaster.pid");
        // A leftover of a kill would be taken for the new server's word that it is ready.
        let _ = fs::remove_file(&state);
        let ((program, before), log) = (self.program(), self.directory.path().join("log"));
        let mut arguments: Vec<&str> = before.iter().map(String::as_str).collect();
        arguments.extend(["-D", data.to_str().expect("the path is text")]);
        let mut process = Process::start(&program, &arguments, self.user(), AT_ONCE, &log);
        process.wait_until(|| is_ready(&state));
        self.process = Some(process);
    }

    /// Kills one backend. The postmaster then ends all others too and recovers by itself, which
    /// takes a moment; `pg_backend_pid()` tells a connection's number.
    ///
    /// # Panics
    /// If that is no process of this server.
    pub fn kill_backend(&self, backend: u32) {
        let postmaster = self.process_id().expect("the server runs");
        assert!(children(postmaster).contains(&backend), "{backend} is no backend of the server");
        send("KILL", &[backend]);
    }

    /// Makes a standby a primary, and returns when it takes writes.
    pub fn promote(&self) {
        let data = self.data();
        let arguments = ["promote", "-w", "-D", data.to_str().expect("the path is text")];
        run(&self.programs.join("pg_ctl"), &arguments, self.user());
    }

    /// What the server has logged so far.
    pub fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.stop(AT_ONCE);
        } else if let Some(segment) = shared_memory(&self.data().join("postmaster.pid")) {
            // A killed server could not remove it, and a machine has only so many.
            let _ = Command::new("ipcrm").args(["-m", &segment]).stderr(Stdio::null()).status();
        }
    }
}

/// Where the programs of the newest installed version are.
fn programs() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let numbered = versions.filter_map(|entry| {
        let number: u32 = entry.file_name().to_str()?.parse().ok()?;
        Some((number, entry.path().join("bin")))
    });
    let mut numbered: Vec<(u32, PathBuf)> = numbered.collect();
    numbered.sort_by(|a, b| b.cmp(a));
    let newest_first: Vec<PathBuf> = numbered.into_iter().map(|(_, path)| path).collect();
    let initdb = find("initdb", &newest_first)?;
    // A link on the path leads to where the others are.
    Some(initdb.canonicalize().ok()?.parent()?.to_owned())
}

/// Where libfaketime is.
fn fake_clock() -> Option<PathBuf> {
    let folders = fs::read_dir("/usr/lib").into_iter().flatten().flatten();
    let folders = folders.map(|entry| entry.path()).chain([PathBuf::from("/usr/lib")]);
    folders.map(|folder| folder.join("faketime/libfaketime.so.1")).find(|library| library.exists())
}

/// The number of the server's shared memory, which it writes down beside its own.
fn shared_memory(state: &Path) -> Option<String> {
    let state = fs::read_to_string(state).ok()?;
    state.lines().nth(6)?.split_whitespace().nth(1).map(ToOwned::to_owned)
}

/// The postmaster writes down how far it is, in the last line of the file with its number.
fn is_ready(state: &Path) -> bool {
    let state = fs::read_to_string(state).unwrap_or_default();
    state.lines().nth(7).is_some_and(|line| matches!(line.trim(), "ready" | "standby"))
}
