//! Small servers: Redis, NATS, and a pooler in front of PostgreSQL.

use std::fs;
use std::net::TcpStream;
use std::path::PathBuf;

use crate::directory::{Directory, User, is_root};
use crate::process::{Process, find, free_port};
use crate::{Missing, Postgres};

/// A server that is one process, and needs nothing but its arguments.
#[derive(Debug)]
struct Service {
    // Stops before its directory leaves.
    process: Option<Process>,
    program: PathBuf,
    arguments: Vec<String>,
    user: Option<User>,
    port: u16,
    directory: Directory,
}

impl Service {
    /// A server that is not started yet.
    fn new(program: &str, missing: Missing) -> Result<Self, Missing> {
        let found = find(program, &[]).ok_or(missing)?;
        let (port, directory) = (free_port(), Directory::new(program));
        Ok(Self { process: None, program: found, arguments: vec![], user: None, port, directory })
    }

    fn start_again(&mut self) {
        if self.process.is_some() {
            return;
        }
        let (port, log) = (self.port, self.directory.path().join("log"));
        let arguments: Vec<&str> = self.arguments.iter().map(String::as_str).collect();
        let user = self.user.as_ref();
        let mut process = Process::start(&self.program, &arguments, user, "KILL", &log);
        process.wait_until(|| TcpStream::connect(("127.0.0.1", port)).is_ok());
        self.process = Some(process);
    }

    fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill();
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The methods that all of them have.
macro_rules! service {
    ($server:ident) => {
        impl $server {
            /// The port on 127.0.0.1.
            pub fn port(&self) -> u16 {
                self.service.port
            }

            /// Kills it. Does nothing if it is down.
            pub fn kill(&mut self) {
                self.service.kill();
            }

            /// Starts on the same port, and returns when connections are taken. Does nothing if
            /// it runs.
            pub fn start_again(&mut self) {
                self.service.start_again();
            }
        }
    };
}

/// A Redis server that keeps nothing.
#[derive(Debug)]
pub struct Redis {
    service: Service,
}

service!(Redis);

impl Redis {
    /// Starts a server.
    pub fn start() -> Result<Self, Missing> {
        let missing = Missing { what: "Redis", how_to_install: "apt-get install redis-server" };
        let mut service = Service::new("redis-server", missing)?;
        let (port, directory) = (service.port, service.directory.path().display());
        let arguments = format!(
            "--bind 127.0.0.1 --port {port} --dir {directory} --appendonly no --daemonize no"
        );
        service.arguments = arguments.split(' ').map(ToOwned::to_owned).collect();
        service.arguments.extend(["--save".to_owned(), String::new()]);
        service.start_again();
        Ok(Self { service })
    }

    /// Where it is.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.service.port)
    }
}

/// A NATS server without JetStream.
#[derive(Debug)]
pub struct Nats {
    service: Service,
}

service!(Nats);

impl Nats {
    /// Starts a server.
    pub fn start() -> Result<Self, Missing> {
        let missing = Missing { what: "NATS", how_to_install: "apt-get install nats-server" };
        let mut service = Service::new("nats-server", missing)?;
        let arguments = format!("-a 127.0.0.1 -p {}", service.port);
        service.arguments = arguments.split(' ').map(ToOwned::to_owned).collect();
        service.start_again();
        Ok(Self { service })
    }

    /// Where it is.
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.service.port)
    }
}

/// A pooler in transaction mode: the connection to the server behind a client's connection may be
/// another one for each transaction, and what belongs to a connection (`LISTEN`, statements
/// prepared by name, session settings) does not work.
#[derive(Debug)]
pub struct Pgbouncer {
    service: Service,
}

service!(Pgbouncer);

impl Pgbouncer {
    /// Starts a pooler in front of `postgres`. Every client is the superuser there.
    pub fn start(postgres: &Postgres) -> Result<Self, Missing> {
        let missing = Missing { what: "pgbouncer", how_to_install: "apt-get install pgbouncer" };
        let mut service = Service::new("pgbouncer", missing)?;
        if is_root() {
            // It refuses to run as root, too.
            let user = User::named("postgres").ok_or(missing)?;
            service.directory.give_to(&user);
            service.user = Some(user);
        }
        let settings = format!(
            "[databases]\n\
             * = host=127.0.0.1 port={} user=postgres\n\
             [pgbouncer]\n\
             listen_addr = 127.0.0.1\n\
             listen_port = {}\n\
             unix_socket_dir =\n\
             auth_type = any\n\
             pool_mode = transaction\n\
             max_client_conn = 500\n\
             ignore_startup_parameters = extra_float_digits\n",
            postgres.port(),
            service.port
        );
        let path = service.directory.path().join("pgbouncer.ini");
        fs::write(&path, settings).expect("the directory is there");
        service.arguments = vec![path.to_str().expect("the path is text").to_owned()];
        service.start_again();
        Ok(Self { service })
    }

    /// Where a database of the server is, through the pooler.
    pub fn url_for(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.service.port)
    }
}
