//! Why a request has no answers, in a sentence, and whether it is worth making again.

use std::io;

use hyper::StatusCode;
use windlass_core::refusal::Refusal;

use super::super::Fault;

/// Why a call has no answer.
#[derive(Clone, Debug)]
pub(super) struct HttpFailure {
    pub(super) why: String,
    /// Nothing of it was done.
    pub(super) not_made: bool,
    /// It may be otherwise in a moment.
    pub(super) passes: bool,
    /// Nothing was heard of the server meanwhile.
    pub(super) is_silence: bool,
}

impl HttpFailure {
    /// It was not made, and may be in a moment.
    pub(super) fn not_made(why: impl Into<String>) -> Self {
        Self { why: why.into(), not_made: true, passes: true, is_silence: false }
    }

    /// It was not made, and will not be until somebody changes something.
    pub(super) fn refused(why: impl Into<String>) -> Self {
        Self { why: why.into(), not_made: true, passes: false, is_silence: false }
    }

    /// It may have been made.
    pub(super) fn unknown(why: impl Into<String>) -> Self {
        Self { why: why.into(), not_made: false, passes: true, is_silence: false }
    }

    /// It may have been made, and asking again would end alike.
    pub(super) fn not_understood(why: impl Into<String>) -> Self {
        Self { why: why.into(), not_made: false, passes: false, is_silence: false }
    }

    /// Nothing was heard for all that time.
    pub(super) fn by_silence(self) -> Self {
        Self { is_silence: true, ..self }
    }

    /// Whether to make the call again.
    pub(super) fn is_worth_repeating(&self, may_repeat: bool) -> bool {
        self.passes && (self.not_made || may_repeat)
    }

    pub(super) fn into_fault(self, server: &str) -> Fault {
        let why = format!("the server at {server}: {}", self.why);
        match self.not_made {
            true => Fault::Refused(Refusal::Unavailable { why }),
            false => Fault::Unknown { why },
        }
    }

    /// Nobody was reached.
    pub(super) fn to_connect(error: &io::Error) -> Self {
        let why = match error.kind() {
            io::ErrorKind::ConnectionRefused => {
                "nobody listens there; start it with `windlass serve`, or check the address".into()
            }
            _ => format!("it cannot be reached: {error}"),
        };
        Self::not_made(why)
    }

    /// There is no encrypted connection.
    pub(super) fn to_encrypt(error: &io::Error) -> Self {
        let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>());
        match cause {
            Some(rustls::Error::InvalidCertificate(certificate)) => Self::refused(format!(
                "its certificate does not verify ({certificate}); use a name it is for, and give \
                 its root with `EngineBuilder::root_certificate` if this machine does not know it"
            )),
            Some(rustls::Error::InvalidMessage(_)) => {
                Self::refused("it does not speak TLS; write `http://` if that is meant")
            }
            Some(other) => Self::refused(format!("no encrypted connection: {other}")),
            None => Self::not_made(format!("no encrypted connection: {error}")),
        }
    }

    /// The connection ended, or what came over it is no HTTP.
    pub(super) fn of_connection(error: &hyper::Error) -> Self {
        match error.is_parse() {
            true => Self::not_understood("it does not speak HTTP; check the address"),
            false => Self::unknown(format!("the connection was lost: {error}")),
        }
    }

    /// It answered with another status than 200.
    pub(super) fn of_status(status: StatusCode, is_windlass: bool, said: &str) -> Self {
        let code = status.as_u16();
        match status {
            // Of our own server every status but 200 says that nothing was done.
            StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS if is_windlass => {
                Self::not_made(said)
            }
            _ if is_windlass => Self::refused(said),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Self::refused(format!(
                "it, or a proxy before it, lets nobody in like this ({code})"
            )),
            StatusCode::PAYLOAD_TOO_LARGE => Self::refused(
                "a proxy before it takes no request of this length (413); raise the proxy's \
                 limit, or send fewer jobs at once",
            ),
            StatusCode::TOO_MANY_REQUESTS => Self::not_made("a proxy before it is busy (429)"),
            _ if status.is_server_error() => {
                Self::unknown(format!("it, or a proxy before it, failed ({code})"))
            }
            _ => {
                Self::refused(format!("that is not a Windlass server ({code}); check the address"))
            }
        }
    }
}
