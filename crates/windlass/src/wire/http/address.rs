//! What the address of a server means.

use std::fmt;
use std::str::FromStr;

use hyper::Uri;

/// Where a server is: `http://host:port`, or `https://`, and a path if it is below one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ServerAddress {
    pub(super) secure: bool,
    /// Without the brackets of an IPv6 address.
    pub(super) host: String,
    pub(super) port: u16,
    /// As it stands in the address: what `Host` says.
    pub(super) authority: String,
    /// Before our own path; without a slash at its end.
    pub(super) base: String,
}

impl FromStr for ServerAddress {
    type Err = String;

    /// Refuses what could hold a secret: it would be repeated in logs and errors.
    fn from_str(address: &str) -> Result<Self, String> {
        let example = "write it like `https://host:7878`";
        let uri: Uri = address.parse().map_err(|error| format!("{error}; {example}"))?;
        let authority = uri.authority().ok_or_else(|| format!("it names no host; {example}"))?;
        if authority.as_str().contains('@') {
            return Err("an address takes no name and no password; give the token with \
                 `EngineBuilder::token` or in `WINDLASS_TOKEN`"
                .to_string());
        }
        if uri.query().is_some() {
            return Err(format!("an address takes nothing after a `?`; {example}"));
        }
        let secure = uri.scheme_str() == Some("https");
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_string();
        let port = authority.port_u16().unwrap_or(if secure { 443 } else { 80 });
        let base = uri.path().trim_end_matches('/').to_string();
        Ok(Self { secure, host, port, authority: authority.to_string(), base })
    }
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.secure { "https" } else { "http" };
        write!(f, "{scheme}://{}{}", self.authority, self.base)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_names_a_host_a_port_and_perhaps_a_path() {
        for (address, host, port, base, secure) in [
            ("http://127.0.0.1:7878", "127.0.0.1", 7878, "", false),
            ("https://jobs.example", "jobs.example", 443, "", true),
            ("http://[::1]:7878/", "::1", 7878, "", false),
            ("https://a.example/jobs/", "a.example", 443, "/jobs", true),
        ] {
            let parsed: ServerAddress = address.parse().expect(address);
            assert_eq!((&*parsed.host, parsed.port, &*parsed.base), (host, port, base));
            assert_eq!(parsed.secure, secure);
            assert_eq!(parsed.to_string(), address.trim_end_matches('/'));
        }
    }

    #[test]
    fn an_address_with_a_secret_is_refused_and_not_repeated() {
        for address in ["http://me:hidden@host", "https://hidden@host", "http://host/?t=hidden"] {
            let refused = address.parse::<ServerAddress>().expect_err(address);
            assert!(!refused.contains("hidden"), "{refused}");
        }
        for address in ["http://", "http://a b", "http:///x"] {
            address.parse::<ServerAddress>().expect_err(address);
        }
    }
}
