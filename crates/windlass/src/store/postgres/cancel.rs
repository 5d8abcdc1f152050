//! Calls that are given up: their statements are stopped on the server.

use deadpool_postgres::Object;
use tokio_postgres::{CancelToken, Client, Error, NoTls};

use super::connect::PATIENCE;
use super::tls::Tls;

/// A connection on which a statement is under way. Whoever drops it before the answer has come,
/// because the time is up or because nobody waits any longer, has the server stop the statement.
///
/// Without it the statement ran on, held its locks, and changed jobs long after its caller had
/// taken the answer for unknown; closing the connection is not enough, because a server that is at
/// work does not notice. Guarded by `cancel::what_is_given_up_stops_on_the_server`.
pub(super) struct UnderWay<'a> {
    client: Option<Object>,
    tls: &'a Tls,
}

impl<'a> UnderWay<'a> {
    pub(super) fn new(client: Object, tls: &'a Tls) -> Self {
        Self { client: Some(client), tls }
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
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let Some(client) = self.client.take() else { return };
        // Whatever it still has to say belongs to nobody.
        let client = Object::take(client);
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let (token, tls) = (client.cancel_token(), self.tls.clone());
        runtime.spawn(async move {
            match tokio::time::timeout(PATIENCE, cancel(token, &tls)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::debug!(%error, "a statement could not be stopped"),
                Err(_) => tracing::debug!("a statement could not be stopped in time"),
            }
            // Not before: a pooler forgets whom to stop when the connection is gone.
            drop(client);
        });
    }
}

async fn cancel(token: CancelToken, tls: &Tls) -> Result<(), Error> {
    #[cfg(feature = "tls")]
    if let Some(tls) = &tls.0 {
        return token.cancel_query(tls.clone()).await;
    }
    #[cfg(not(feature = "tls"))]
    let _ = tls;
    token.cancel_query(NoTls).await
}
