//! Encrypted connections: whom they trust, and what is said when that is nobody.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use windlass::Engine;
use windlass::wake::PostgresWake;
use windlass_testbed::{Missing, Postgres, make_certificates, or_skip};

/// A server with a certificate for `localhost`, and the root that has signed it.
struct Secure {
    server: Postgres,
    directory: PathBuf,
}

fn secure() -> Result<&'static Secure, Missing> {
    static SECURE: OnceLock<Result<Secure, Missing>> = OnceLock::new();
    SECURE.get_or_init(Secure::start).as_ref().map_err(|missing| *missing)
}

impl Secure {
    fn start() -> Result<Self, Missing> {
        let name = format!("windlass-tls-{}", std::process::id());
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&directory).expect("it is new");
        make_certificates(&directory)?;
        let server = Postgres::start()?;
        // Beside the data, where a file that nobody else may read can be put.
        let data = server.sql("postgres", "show data_directory");
        for file in ["server.crt", "server.key"] {
            let (from, to) = (directory.join(file), Path::new(&data).join(file));
            let mut install = Command::new("install");
            install.args(["-m", "600"]).arg(from).arg(&to);
            assert!(install.status().expect("it runs").success());
            let mut own = Command::new("chown");
            own.arg(format!("--reference={data}")).arg(&to);
            assert!(own.status().expect("it runs").success());
        }
        server.configure(&["ssl=on"]);
        Ok(Self { server, directory })
    }

    fn address(&self, host: &str, encryption: &str) -> String {
        let roots = self.directory.display().to_string();
        let encryption = encryption.replace("ROOTS", &roots);
        format!("postgres://postgres@{host}:{}/postgres?{encryption}", self.server.port())
    }
}

/// Whether all connections that the engine has are encrypted; it has at least two.
async fn is_encrypted(secure: &Secure, address: &str) -> bool {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let name = format!("test-{}", NUMBER.fetch_add(1, Ordering::Relaxed));
    let named = format!("{address}&application_name={name}");
    let engine = Engine::open(&named).await.unwrap_or_else(|error| panic!("{address}: {error}"));
    let sql = format!(
        "select count(*) > 1, bool_and(s.ssl) from pg_stat_ssl s join pg_stat_activity a \
         using (pid) where a.application_name = '{name}'"
    );
    let seen = secure.server.sql("postgres", &sql);
    engine.close().await;
    match seen.as_str() {
        "t|t" => true,
        "t|f" => false,
        other => panic!("{address}: {other}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_are_encrypted_as_the_address_says() {
    let Some(secure) = or_skip(secure()) else { return };
    for (host, encryption, encrypted) in [
        ("localhost", "sslmode=disable", false),
        ("localhost", "sslmode=prefer", true),
        ("localhost", "windlass_pool=2", true),
        ("127.0.0.1", "sslmode=require", true),
        ("localhost", "sslmode=require&sslrootcert=ROOTS/root.pem", true),
        ("127.0.0.1", "sslmode=verify-ca&sslrootcert=ROOTS/root.pem", true),
        ("localhost", "sslmode=verify-full&sslrootcert=ROOTS/root%2Epem", true),
    ] {
        let address = secure.address(host, encryption);
        assert_eq!(is_encrypted(secure, &address).await, encrypted, "{address}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_given_up_stops_over_an_encrypted_connection() {
    let Some(secure) = or_skip(secure()) else { return };
    let address = secure.address(
        "localhost",
        "sslmode=verify-full&sslrootcert=ROOTS/root.pem&windlass_schema=given_up",
    );
    crate::cancel::stops_when_it_is_given_up(&secure.server, "postgres", &address).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_that_does_not_verify_is_told_in_one_sentence() {
    let Some(secure) = or_skip(secure()) else { return };
    for (host, encryption, words) in [
        ("localhost", "sslmode=verify-full&sslrootcert=ROOTS/other.pem", "`sslrootcert=`"),
        ("localhost", "sslmode=verify-full", "name the right root with `sslrootcert=`"),
        ("localhost", "sslmode=verify-full&sslrootcert=system", "name the right root with"),
        ("localhost", "sslmode=verify-ca&sslrootcert=ROOTS/other.pem", "does not verify"),
        ("localhost", "sslmode=require&sslrootcert=ROOTS/other.pem", "does not verify"),
        ("127.0.0.1", "sslmode=verify-full&sslrootcert=ROOTS/root.pem", "by a name it is for"),
        ("localhost", "sslmode=verify-full&sslrootcert=ROOTS/none.pem", "cannot be read"),
        ("localhost", "sslmode=verify-full&sslrootcert=ROOTS/extensions", "no root certificate"),
        ("localhost", "sslmode=verify-full&sslrootcert=%", "a `%` that means nothing"),
        ("localhost", "sslmode=allow", "it must be `disable`, `prefer`, `require`"),
    ] {
        let address = secure.address(host, encryption);
        let error = Engine::open(&address).await.expect_err(&address);
        let said = error.to_string();
        assert!(said.contains(words) && !said.contains('\n'), "{address}: {said}");
        let error = PostgresWake::connect(&address).await.expect_err(&address);
        assert!(!error.to_string().contains('\n'), "{address}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_encryption_is_refused_where_it_is_asked_for() {
    let Some(server) = or_skip(Postgres::shared()) else { return };
    for mode in ["require", "verify-full"] {
        let roots = or_skip(secure()).map(|secure| secure.directory.join("root.pem"));
        let roots = roots.map_or(String::new(), |path| format!("&sslrootcert={}", path.display()));
        let address = format!("{}?sslmode={mode}{roots}", server.url());
        let said = Engine::open(&address).await.expect_err(&address).to_string();
        assert!(said.contains("the server offers no encryption"), "{said}");
    }
    let address = format!("{}?sslmode=prefer&windlass_schema=unencrypted", server.url());
    Engine::open(&address).await.expect("it goes without").close().await;
}
