//! A connection to a server: a socket, encrypted if the address says so, with HTTP on it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::HeaderValue;
use hyper_util::rt::TokioIo;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::exchange::CallBody;
use super::failure::HttpFailure;
use super::{HttpOptions, ServerAddress, TOKEN_VARIABLE, Token};

/// How long a connection may take to be made.
const CONNECTING: Duration = Duration::from_secs(5);

/// Makes connections to one server.
pub(super) struct Connector {
    pub(super) address: ServerAddress,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    /// What every request says to be let in.
    pub(super) authorization: Option<HeaderValue>,
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.address)
    }
}

impl Connector {
    /// Refuses an address, a token or a certificate that cannot be used.
    pub(super) fn new(address: &str, options: &HttpOptions) -> Result<Self, String> {
        let address: ServerAddress = address.parse()?;
        let token = match &options.token {
            Some(token) => Some(token.clone()),
            None => token_of_the_environment()?,
        };
        let authorization = token.as_ref().map(bearer).transpose()?;
        let tls = match address.secure {
            true => Some((encryption(options)?, name_of(&address)?)),
            false => None,
        };
        Ok(Self { address, tls, authorization })
    }

    /// A new connection. It is carried on by a task of its own.
    pub(super) async fn connect(&self) -> Result<SendRequest<CallBody>, HttpFailure> {
        let connected = timeout(CONNECTING, self.connect_to_it()).await;
        connected.unwrap_or_else(|_| {
            Err(HttpFailure::not_made(format!("no connection in {CONNECTING:?}")).by_silence())
        })
    }

    async fn connect_to_it(&self) -> Result<SendRequest<CallBody>, HttpFailure> {
        let place = (self.address.host.as_str(), self.address.port);
        let stream = TcpStream::connect(place).await;
        let stream = stream.map_err(|error| HttpFailure::to_connect(&error))?;
        // If it cannot be set, answers come a little later.
        let _ = stream.set_nodelay(true);
        let Some((tls, name)) = &self.tls else { return begin(TokioIo::new(stream)).await };
        let stream = tls.connect(name.clone(), stream).await;
        let stream = stream.map_err(|error| HttpFailure::to_encrypt(&error))?;
        begin(TokioIo::new(stream)).await
    }
}

/// HTTP on a stream.
async fn begin<S>(stream: S) -> Result<SendRequest<CallBody>, HttpFailure>
where
    S: hyper::rt::Read + hyper::rt::Write + Send + Unpin + 'static,
{
    let begun = handshake(stream).await;
    let (sender, connection) =
        begun.map_err(|error| HttpFailure::not_made(format!("no connection: {error}")))?;
    // Whoever waits for an answer over it is told of its end.
    tokio::spawn(async move { drop(connection.await) });
    Ok(sender)
}

fn token_of_the_environment() -> Result<Option<Token>, String> {
    let said = std::env::var(TOKEN_VARIABLE).ok().filter(|said| !said.is_empty());
    let token = said.map(Token::new).transpose();
    token.map_err(|error| format!("{TOKEN_VARIABLE}: {error}"))
}

fn bearer(token: &Token) -> Result<HeaderValue, String> {
    let value = HeaderValue::from_str(&format!("Bearer {}", token.as_str()));
    let mut value = value.map_err(|_| "the token cannot be sent".to_string())?;
    value.set_sensitive(true);
    Ok(value)
}

fn name_of(address: &ServerAddress) -> Result<ServerName<'static>, String> {
    ServerName::try_from(address.host.clone()).map_err(|error| error.to_string())
}

/// Certificates are looked at, by the roots of this machine or by the one that was given.
fn encryption(options: &HttpOptions) -> Result<TlsConnector, String> {
    let mut roots = RootCertStore::empty();
    match &options.root_certificate {
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
        Some(pem) => {
            let unreadable =
                |why: String| format!("the root certificate that was given cannot be read: {why}");
            for certificate in CertificateDer::pem_slice_iter(pem) {
                let certificate = certificate.map_err(|error| unreadable(error.to_string()))?;
                roots.add(certificate).map_err(|error| unreadable(error.to_string()))?;
            }
        }
    }
    if roots.is_empty() {
        return Err("there is no root certificate to know it by; give one, as PEM, with \
             `EngineBuilder::root_certificate`"
            .to_string());
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| format!("no encryption: {error}"))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}
