//! Calls and answers as requests of HTTP: how programs reach a store on another machine.
//!
//! A request is a `POST` to [`PATH`], below whatever path the address names, of type [`TYPE`]. Its
//! body is a [`Hello`](super::Hello) and one or more [`Request`](super::Request)s, as frames. The
//! answer is the other side's `Hello` and a [`Response`](super::Response) for each request, as soon
//! as it is ready. A frame of no bytes says that the server is still at work.
//!
//! *What was done.* Any status but 200 says that nothing was, if it is one of a Windlass
//! server, which says so by [`VERSION`]. A server that ends answers a call that it has not made
//! with [`Goodbye`](super::Reply::Goodbye). All else that has no answer is unknown.
//!
//! [`HttpConnection`] is the client, [`HttpDoor`] what a server answers with, whatever framework
//! takes its requests; [`HttpWake`] passes rings on.

mod address;
mod connect;
mod connection;
mod door;
mod exchange;
mod failure;
mod token;
mod wake;

use std::time::Duration;

use address::ServerAddress;
pub use connection::HttpConnection;
pub use door::{AnswerBody, DOOR_BYTES, HttpDoor};
pub use token::{InvalidToken, Token};
pub use wake::HttpWake;

use crate::error::Error;
use crate::store::Store;

/// Where calls are answered.
pub const PATH: &str = "/wire";

/// What a body is that holds calls or answers.
pub const TYPE: &str = "application/vnd.windlass";

/// The header by which a Windlass server is known: its version.
pub const VERSION: &str = "windlass-version";

/// Where the token is found if the program gives none.
pub const TOKEN_VARIABLE: &str = "WINDLASS_TOKEN";

/// How long a server may be silent, and how long calls that were not made, or that can be repeated,
/// are made again.
const PATIENCE: Duration = Duration::from_secs(10);

/// A server that is at work on a call for this long says so, and again after each such time.
const AT_WORK: Duration = Duration::from_secs(3);

/// How a program reaches a server.
#[derive(Clone, Debug, Default)]
pub struct HttpOptions {
    /// What the server asks for; without one, [`TOKEN_VARIABLE`].
    pub token: Option<Token>,
    /// A root certificate, as PEM, in place of those of this machine.
    pub root_certificate: Option<Vec<u8>>,
}

/// The store of the server at an address, and its wakes. The server is asked once, now: whoever
/// names a wrong address is told at once.
pub(crate) async fn open(
    address: &str,
    options: &HttpOptions,
) -> Result<(impl Store + 'static, HttpWake), Error> {
    let connection = HttpConnection::to(address, options)?;
    let store = connection.open_store().await?;
    let wake = HttpWake::over(connection);
    Ok((store, wake))
}
