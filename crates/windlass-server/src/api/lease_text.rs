//! A lease as it travels: what a worker over HTTP proves that it holds a job with.
//!
//! Answers: the number of a lease can be guessed, and whoever guesses it could end the job of
//! another worker.
//! Why not simpler: random numbers would need a table of them, shared by all servers of a store and
//! as durable as the leases. A code over the number needs only a secret, which the store keeps.
//! Guarded by: `a_lease_that_was_guessed_or_changed_is_refused`.

use std::fmt;
use std::time::Duration;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use windlass::JobId;
use windlass::core::job::LeaseToken;
use windlass::store::{Store, StoreExt, StoredValue};

use super::ask;
use super::problem::{Problem, ProblemCode};

/// The name of the secret among the values of a store.
const SECRET: &str = "http/lease-secret";

/// How long the secret is: as long as what the code is made with uses.
const SECRET_BYTES: usize = 32;

/// Comes first in what the code is made over, so that no other use of the secret fits here.
const PURPOSE: &[u8] = b"windlass lease 1\n";

/// The secret that all servers of a store share. It is never printed.
#[derive(Clone)]
pub(super) struct LeaseSecret(Vec<u8>);

impl fmt::Debug for LeaseSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LeaseSecret(…)")
    }
}

/// A lease that was given over HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GivenLease {
    pub(super) job: JobId,
    pub(super) token: LeaseToken,
    /// Which start of the job it is for.
    pub(super) attempt: u32,
    /// How long it lasts unless renewed.
    pub(super) length: Duration,
}

impl LeaseSecret {
    /// The secret of this store, which is made if there is none.
    pub(super) async fn of(store: &dyn Store) -> Result<Self, Problem> {
        loop {
            let kept = ask(store.value(SECRET)).await?;
            if let Some(StoredValue { bytes, .. }) = kept {
                return Ok(Self(bytes.to_vec()));
            }
            let mut secret = [0; SECRET_BYTES];
            getrandom::fill(&mut secret).map_err(|error| {
                let why = format!("this machine gives no random numbers: {error}");
                Problem::new(ProblemCode::Unavailable, why)
            })?;
            // Whether it was this one or another that came first: read which it is.
            ask(store.set_value(SECRET, secret.to_vec(), 0, None)).await?;
        }
    }

    fn code(&self, text: &str) -> Hmac<Sha256> {
        let code = Hmac::<Sha256>::new_from_slice(&self.0);
        let mut code = code.expect("a key may have any length");
        code.update(PURPOSE);
        code.update(text.as_bytes());
        code
    }

    /// The lease as a worker is told it.
    pub(super) fn sign(&self, lease: &GivenLease) -> String {
        let GivenLease { job, token, attempt, length } = lease;
        let job: String = job.to_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        let text = format!("{token}.{attempt}.{}.{job}", length.as_millis());
        let code = self.code(&text).finalize().into_bytes();
        let code: String = code.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{text}.{code}")
    }

    /// The lease that a worker names; `None` if it was never given.
    pub(super) fn verify(&self, said: &str) -> Option<GivenLease> {
        let (text, code) = said.rsplit_once('.')?;
        // Compared in a time that does not tell where they differ.
        self.code(text).verify_slice(&from_hex(code)?).ok()?;
        let mut parts = text.split('.');
        let token = LeaseToken(parts.next()?.parse().ok()?);
        let attempt = parts.next()?.parse().ok()?;
        let length = Duration::from_millis(parts.next()?.parse().ok()?);
        let job = parts.next()?.parse().ok()?;
        Some(GivenLease { job, token, attempt, length })
    }
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|it| u8::try_from(it).ok());
    let pairs = text.as_bytes().chunks(2);
    pairs.map(|pair| Some(digit(*pair.first()?)? << 4 | digit(*pair.get(1)?)?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_known_again_and_no_other_is() {
        let (secret, other) = (LeaseSecret(vec![1; 32]), LeaseSecret(vec![2; 32]));
        let lease = GivenLease {
            job: JobId::from_u128(7),
            token: LeaseToken(41),
            attempt: 2,
            length: Duration::from_secs(30),
        };
        let text = secret.sign(&lease);
        assert_eq!(secret.verify(&text), Some(lease));
        assert_eq!(other.verify(&text), None);
        assert_eq!(secret.verify(&text.replacen("41", "42", 1)), None);
        assert_eq!(secret.verify(&text[..text.len() - 2]), None);
        for wrong in ["", ".", "41", "a.b.c.d.e", "41.2.30000.", "é.é"] {
            assert_eq!(secret.verify(wrong), None, "{wrong}");
        }
        for at in 0..text.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[at] ^= 1;
            let changed = String::from_utf8(bytes).expect("it is ASCII");
            assert_eq!(secret.verify(&changed), None, "{changed}");
        }
    }
}
