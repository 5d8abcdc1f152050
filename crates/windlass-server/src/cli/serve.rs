//! What can be typed after `windlass serve`.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use windlass::store::Address;

#[derive(Args, Debug)]
#[command(after_help = "Examples:
  windlass serve --store ./jobs
  WINDLASS_TOKEN=… windlass serve --store postgres://jobs@db/jobs --listen 0.0.0.0:7878

A Rust program reaches it with Engine::open(\"http://127.0.0.1:7878\"), and says the same token.
Any other reaches the API below /v1 (docs/http.md).
GET /livez tells that the server runs, GET /readyz that its store answers. For TLS, put a proxy
before it. SIGTERM and Ctrl-C finish what was begun and close the store.")]
pub(crate) struct ServeOptions {
    /// The store: a directory, `postgres://host/database`, `memory:`, or another server
    #[arg(long, value_name = "ADDRESS", env = "WINDLASS_STORE", hide_env_values = true)]
    pub(crate) store: StoreAddress,

    /// Where to listen; with port 0, at one that is free
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:7878")]
    pub(crate) listen: SocketAddr,

    /// A file with the token that clients must say [default: the variable WINDLASS_TOKEN]
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
}

/// The address of a store, as it was typed. It is shown without its password.
#[derive(Clone)]
pub(crate) struct StoreAddress(pub(crate) String, Address);

impl std::str::FromStr for StoreAddress {
    type Err = windlass::Error;

    fn from_str(text: &str) -> Result<Self, windlass::Error> {
        Ok(Self(text.to_string(), text.parse()?))
    }
}

impl fmt::Display for StoreAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.1.fmt(f)
    }
}

impl fmt::Debug for StoreAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.1.fmt(f)
    }
}
