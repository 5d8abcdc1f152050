//! Encrypted connections: whom they trust, and what is said when that is nobody.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use windlass::Engine;
use windlass::wire::http::HttpDoor;
use windlass_testbed::{Missing, make_certificates, or_skip};

use crate::common::{answer, fresh};

/// A server with a certificate for `localhost`, and the roots beside it.
async fn encrypted() -> Result<(String, PathBuf), Missing> {
    let name = format!("remote-tls-{}", std::process::id());
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&directory).expect("it can be made");
    make_certificates(&directory)?;
    let read = |name: &str| std::fs::read(directory.join(name)).expect("it was made");
    let chain = CertificateDer::pem_slice_iter(&read("server.crt"))
        .collect::<Result<Vec<_>, _>>()
        .expect("it is a certificate");
    let key = PrivateKeyDer::from_pem_slice(&read("server.key")).expect("it is a key");
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("there are some")
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .expect("they belong together");
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    let port = listener.local_addr().expect("it is bound").port();
    let door = HttpDoor::to(fresh());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, door) = (acceptor.clone(), door.clone());
            tokio::spawn(async move {
                if let Ok(stream) = acceptor.accept(stream).await {
                    answer(stream, door).await;
                }
            });
        }
    });
    Ok((format!("https://localhost:{port}"), directory))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_is_known_by_the_root_that_was_given_and_by_no_other() {
    let Some((url, directory)) = or_skip(encrypted().await) else { return };
    let root = |name: &str| std::fs::read(directory.join(name)).expect("it was made");
    let open = |root: Vec<u8>, url: String| async move {
        Engine::builder().root_certificate(root).open(&url).await
    };
    let engine = open(root("root.pem"), url.clone()).await.expect("it is trusted");
    engine.store().count().await.expect("it is answered");
    engine.close().await;
    let other = open(root("other.pem"), url.clone()).await.expect_err("another root").to_string();
    assert!(other.contains("certificate does not verify"), "{other}");
    let number = url.replace("localhost", "127.0.0.1");
    let other = open(root("root.pem"), number).await.expect_err("another name").to_string();
    assert!(other.contains("certificate does not verify"), "{other}");
    let other = open(b"no PEM".to_vec(), url.clone()).await.expect_err("no root").to_string();
    assert!(other.contains("root certificate"), "{other}");
    let plain = url.replace("https:", "http:");
    Engine::open(&plain).await.expect_err("it is encrypted");
    std::fs::remove_dir_all(directory).expect("it can be removed");
}
