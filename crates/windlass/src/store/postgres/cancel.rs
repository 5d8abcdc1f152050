//! Calls that are given up: their statements are stopped on the server.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use deadpool_postgres::Object;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_postgres::config::Host;
use tokio_postgres::{CancelToken, Client, NoTls};

use super::connect::{PATIENCE, PostgresAddress};
use crate::failure::BoxError;

/// A connection on which a statement is under way. Whoever drops it before the answer has come,
/// because the time is up or because nobody waits any longer, has the server stop the statement.
///
/// Without it the statement ran on, held its locks, and changed jobs long after its caller had
/// taken the answer for unknown; closing the connection is not enough, because a server that is at
/// work does not notice. Guarded by `cancel::what_is_given_up_stops_on_the_server`.
pub(super) struct CancelOnDrop<'a> {
    client: Option<Object>,
    address: &'a Arc<PostgresAddress>,
}

impl<'a> CancelOnDrop<'a> {
    pub(super) fn new(client: Object, address: &'a Arc<PostgresAddress>) -> Self {
        Self { client: Some(client), address }
    }

    /// The connection.
    pub(super) fn client(&self) -> &Client {
        let client = self.client.as_ref().map(|client| &***client);
        client.expect("it is there until it is dropped")
    }

    /// The answer is there: the connection goes back to the pool.
    pub(super) fn answered(mut self) {
        self.client = None;
    }

    /// The connection is lost, which the pool may not have noticed yet: nobody else gets it.
    ///
    /// Guarded by `groups::an_answer_that_is_lost_is_unknown_for_its_own_callers_alone`.
    pub(super) fn lost(mut self) {
        self.client.take().map(Object::take);
    }
}

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        let Some(client) = self.client.take() else { return };
        // Whatever it still has to say belongs to nobody.
        let client = Object::take(client);
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let (token, address) = (client.cancel_token(), self.address.clone());
        runtime.spawn(async move {
            match tokio::time::timeout(PATIENCE, cancel(&token, &address)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::debug!(%error, "a statement could not be stopped"),
                Err(_) => tracing::debug!("a statement could not be stopped in time"),
            }
            // Not before: a pooler forgets whom to stop when the connection is gone.
            drop(client);
        });
    }
}

/// Asks every server that the address names: one that has never heard of the statement does
/// nothing.
async fn cancel(token: &CancelToken, address: &PostgresAddress) -> Result<(), BoxError> {
    let (hosts, ports) = (address.config.get_hosts(), address.config.get_ports());
    for (index, host) in hosts.iter().enumerate() {
        let port = ports.get(index).or(ports.first()).copied().unwrap_or(5432);
        match host {
            Host::Tcp(name) => {
                let stream = SlowCancel(TcpStream::connect((name.as_str(), port)).await?);
                #[cfg(feature = "tls")]
                if let Some(tls) = &address.tls.0 {
                    use tokio_postgres::tls::MakeTlsConnect;
                    let mut tls = tls.clone();
                    let tls =
                        MakeTlsConnect::<SlowCancel<TcpStream>>::make_tls_connect(&mut tls, name)?;
                    token.cancel_query_raw(stream, tls).await?;
                    continue;
                }
                token.cancel_query_raw(stream, NoTls).await?;
            }
            #[cfg(unix)]
            Host::Unix(directory) => {
                let path = directory.join(format!(".s.PGSQL.{port}"));
                let stream = SlowCancel(tokio::net::UnixStream::connect(path).await?);
                token.cancel_query_raw(stream, NoTls).await?;
            }
        }
    }
    Ok(())
}

/// A stream that is not closed before the other side has closed it.
///
/// By closing, a server says that it has done what it was asked for. The client library does not
/// wait for that, and a pooler forgets the wish of whoever is gone; some (pgbouncer 1.18 and 1.19)
/// even crash. Guarded by `cancel::what_is_given_up_stops_behind_a_pooler`.
struct SlowCancel<S>(S);

impl<S: AsyncRead + Unpin> AsyncRead for SlowCancel<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for SlowCancel<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let mut bytes = [0; 64];
            let mut buffer = ReadBuf::new(&mut bytes);
            let read = ready!(Pin::new(&mut self.0).poll_read(context, &mut buffer));
            // Closed in whatever way: it is done.
            if read.is_err() || buffer.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
        }
    }
}
