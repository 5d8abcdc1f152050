//! Whether a connection is encrypted, and whom it trusts, in the words of libpq: `sslmode` and
//! `sslrootcert`.
//!
//! `prefer` and `require` encrypt and believe every certificate; `verify-ca` wants one that a known
//! root has signed, `verify-full` one that is also for the host in the address.

use tokio_postgres::config::SslMode;

use super::fault::OpenFault;

/// What `sslmode` asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Wish {
    Disable,
    #[default]
    Prefer,
    Require,
    VerifyCa,
    VerifyFull,
}

impl Wish {
    fn mode(self) -> SslMode {
        match self {
            Wish::Disable => SslMode::Disable,
            Wish::Prefer => SslMode::Prefer,
            Wish::Require | Wish::VerifyCa | Wish::VerifyFull => SslMode::Require,
        }
    }
}

/// What an address says of encryption.
#[derive(Debug, Default)]
pub(super) struct Asked {
    wish: Wish,
    roots: Option<String>,
}

impl Asked {
    /// Takes over a pair of the address if it is about encryption.
    pub(super) fn hear(&mut self, key: &str, value: &str) -> Result<bool, OpenFault> {
        match key {
            "sslmode" => {
                self.wish = match value {
                    "disable" => Wish::Disable,
                    "prefer" => Wish::Prefer,
                    "require" => Wish::Require,
                    "verify-ca" => Wish::VerifyCa,
                    "verify-full" => Wish::VerifyFull,
                    _ => {
                        return Err(OpenFault::new(format!(
                            "sslmode is `{value}`; it must be `disable`, `prefer`, `require`, \
                             `verify-ca` or `verify-full`"
                        )));
                    }
                };
            }
            "sslrootcert" => self.roots = Some(decoded(value)?),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// What the client is to be told, and how connections are made.
    pub(super) fn settle(self) -> Result<(SslMode, Tls), OpenFault> {
        // As libpq has it: who names roots wants them to be looked at.
        let wish = match (self.wish, self.roots.as_deref()) {
            (Wish::Require, Some("system")) => Wish::VerifyFull,
            (Wish::Require, Some(_)) => Wish::VerifyCa,
            (wish, _) => wish,
        };
        Ok((wish.mode(), Tls::new(wish, self.roots.as_deref())?))
    }
}

/// A value of an address without its percent signs.
fn decoded(value: &str) -> Result<String, OpenFault> {
    let mut bytes = Vec::with_capacity(value.len());
    let mut rest = value.as_bytes();
    while let [first, tail @ ..] = rest {
        let (byte, after) = match (first, tail) {
            (b'%', [high, low, after @ ..]) => (hex(*high, *low), after),
            (b'%', _) => (None, tail),
            (byte, after) => (Some(*byte), after),
        };
        let unclear = || OpenFault::new(format!("`{value}` has a `%` that means nothing"));
        bytes.push(byte.ok_or_else(unclear)?);
        rest = after;
    }
    String::from_utf8(bytes).map_err(|_| OpenFault::new(format!("`{value}` is no text")))
}

fn hex(high: u8, low: u8) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    Some(digit(high)? * 16 + digit(low)?)
}

/// How connections are made: without encryption, which is all this build can do.
#[cfg(not(feature = "tls"))]
#[derive(Clone, Debug, Default)]
pub(crate) struct Tls(());

#[cfg(not(feature = "tls"))]
impl Tls {
    fn new(wish: Wish, _roots: Option<&str>) -> Result<Self, OpenFault> {
        match wish {
            Wish::Disable | Wish::Prefer => Ok(Self(())),
            Wish::Require | Wish::VerifyCa | Wish::VerifyFull => Err(OpenFault::new(
                "`sslmode` asks for encryption, and this build has none: build with the feature \
                 `tls`",
            )),
        }
    }
}

#[cfg(feature = "tls")]
pub(crate) use encrypted::Tls;

#[cfg(feature = "tls")]
mod encrypted {
    use std::fmt;
    use std::sync::Arc;

    use rustls::client::WebPkiServerVerifier;
    use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
    use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
    use rustls::{
        CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore,
        SignatureScheme,
    };
    use tokio_postgres_rustls::MakeRustlsConnect;

    use super::{OpenFault, Wish};

    /// How connections are made.
    #[derive(Clone, Default)]
    pub(crate) struct Tls(pub(crate) Option<MakeRustlsConnect>);

    impl fmt::Debug for Tls {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(if self.0.is_some() { "encrypted" } else { "plain" })
        }
    }

    impl Tls {
        pub(super) fn new(wish: Wish, roots: Option<&str>) -> Result<Self, OpenFault> {
            let provider = Arc::new(ring::default_provider());
            let verifier: Arc<dyn ServerCertVerifier> = match wish {
                Wish::Disable => return Ok(Self(None)),
                Wish::Prefer | Wish::Require => {
                    Arc::new(Lenient { provider: provider.clone(), roots: None })
                }
                Wish::VerifyCa => {
                    let roots = Some(by_roots(roots, &provider)?);
                    Arc::new(Lenient { provider: provider.clone(), roots })
                }
                Wish::VerifyFull => by_roots(roots, &provider)?,
            };
            let versions = ClientConfig::builder_with_provider(provider)
                .with_safe_default_protocol_versions()
                .map_err(|error| OpenFault::new(format!("no encryption: {error}")))?;
            let mut config = versions
                .dangerous()
                .with_custom_certificate_verifier(verifier)
                .with_no_client_auth();
            // A server that is greeted without PostgreSQL's own words (`sslnegotiation=direct`)
            // must hear from here which protocol is meant.
            config.alpn_protocols = vec![b"postgresql".to_vec()];
            Ok(Self(Some(MakeRustlsConnect::new(config))))
        }
    }

    fn by_roots(
        named: Option<&str>,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Arc<WebPkiServerVerifier>, OpenFault> {
        let mut roots = RootCertStore::empty();
        match named {
            None | Some("system") => {
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            }
            Some(path) => {
                let unreadable = |why: String| {
                    OpenFault::new(format!(
                        "the roots in sslrootcert `{path}` cannot be read: {why}"
                    ))
                };
                let certificates = CertificateDer::pem_file_iter(path)
                    .map_err(|error| unreadable(error.to_string()))?;
                for certificate in certificates {
                    let certificate = certificate.map_err(|error| unreadable(error.to_string()))?;
                    roots.add(certificate).map_err(|error| unreadable(error.to_string()))?;
                }
            }
        }
        if roots.is_empty() {
            let place = named.filter(|named| *named != "system").unwrap_or("this machine");
            return Err(OpenFault::new(format!(
                "there is no root certificate in `{place}`; name a file that has one with \
                 `sslrootcert=`"
            )));
        }
        WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone())
            .build()
            .map_err(|error| OpenFault::new(format!("no encryption: {error}")))
    }

    /// Looks less closely than rustls would: for whatever host, and without roots at every
    /// certificate. What is signed with its key must still be signed.
    #[derive(Debug)]
    struct Lenient {
        provider: Arc<CryptoProvider>,
        roots: Option<Arc<WebPkiServerVerifier>>,
    }

    impl ServerCertVerifier for Lenient {
        fn verify_server_cert(
            &self,
            certificate: &CertificateDer<'_>,
            others: &[CertificateDer<'_>],
            name: &ServerName<'_>,
            status: &[u8],
            now: UnixTime,
        ) -> Result<ServerCertVerified, Error> {
            let Some(roots) = &self.roots else { return Ok(ServerCertVerified::assertion()) };
            match roots.verify_server_cert(certificate, others, name, status, now) {
                // The name is looked at last: the rest is right.
                Err(Error::InvalidCertificate(
                    CertificateError::NotValidForName
                    | CertificateError::NotValidForNameContext { .. },
                )) => Ok(ServerCertVerified::assertion()),
                other => other,
            }
        }

        fn verify_tls12_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signed: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            let algorithms = &self.provider.signature_verification_algorithms;
            verify_tls12_signature(message, certificate, signed, algorithms)
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signed: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            let algorithms = &self.provider.signature_verification_algorithms;
            verify_tls13_signature(message, certificate, signed, algorithms)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            self.provider.signature_verification_algorithms.supported_schemes()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_of_an_address_is_decoded() {
        assert_eq!(
            decoded("/etc/my%20roots%2Epem").expect("it is well formed"),
            "/etc/my roots.pem"
        );
        for wrong in ["%", "%2", "%zz", "a%ff"] {
            decoded(wrong).expect_err(wrong);
        }
    }

    #[test]
    fn a_build_without_encryption_says_so() {
        let mut asked = Asked::default();
        assert!(asked.hear("sslmode", "require").expect("it is known"));
        let settled = asked.settle().map(|(mode, _)| mode);
        if cfg!(feature = "tls") {
            assert_eq!(settled.expect("it can be had"), SslMode::Require);
        } else {
            let refused = settled.expect_err("it cannot be had").to_string();
            assert!(refused.contains("build with the feature `tls`"), "{refused}");
        }
    }
}
