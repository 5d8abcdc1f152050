//! What the text that names a store means.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::error::Error;

/// Where a store is.
#[derive(Clone, PartialEq, Eq)]
pub enum Address {
    /// `memory:`
    Memory,
    /// A path, or `file:` and a path.
    Directory(PathBuf),
    /// `postgres://…` or `postgresql://…`
    Postgres(String),
    /// `http://…` or `https://…`: a Windlass server.
    Http(String),
}

impl fmt::Debug for Address {
    /// Without the password of a database.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Memory => f.write_str("Memory"),
            Address::Directory(path) => f.debug_tuple("Directory").field(path).finish(),
            Address::Postgres(address) => {
                f.debug_tuple("Postgres").field(&without_credentials(address)).finish()
            }
            Address::Http(address) => {
                f.debug_tuple("Http").field(&without_credentials(address)).finish()
            }
        }
    }
}

impl fmt::Display for Address {
    /// As it is written, without the password of a database.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Memory => f.write_str("memory:"),
            Address::Directory(path) => write!(f, "{}", path.display()),
            Address::Postgres(address) | Address::Http(address) => {
                f.write_str(&without_credentials(address))
            }
        }
    }
}

impl FromStr for Address {
    type Err = Error;

    /// Refuses what looks like the address of another system, such as `redis://host` or
    /// `sqlite:jobs.db`: a directory of that name is hardly meant. If it is, say
    /// `./sqlite:jobs.db`.
    fn from_str(address: &str) -> Result<Self, Error> {
        if address == "memory:" {
            return Ok(Address::Memory);
        }
        if address.starts_with("postgres://") || address.starts_with("postgresql://") {
            return Ok(Address::Postgres(address.to_string()));
        }
        if address.starts_with("http://") || address.starts_with("https://") {
            return Ok(Address::Http(address.to_string()));
        }
        let path = match address.strip_prefix("file:") {
            Some(path) => path,
            None if has_scheme(address) => "",
            None => address,
        };
        if path.is_empty() || path.starts_with("//") {
            return Err(Error::UnknownStore { address: without_credentials(address) });
        }
        Ok(Address::Directory(path.into()))
    }
}

/// An address that can be shown: before its `@` and after its `?` may be a password.
fn without_credentials(address: &str) -> String {
    let (scheme, rest) = match address.split_once("://") {
        Some((scheme, rest)) => (format!("{scheme}://"), rest),
        None => (String::new(), address),
    };
    let host = rest.rsplit_once('@').map(|(_, host)| format!("…@{host}"));
    let shown = host.unwrap_or_else(|| rest.to_string());
    match shown.split_once('?') {
        Some((shown, _)) => format!("{scheme}{shown}?…"),
        None => format!("{scheme}{shown}"),
    }
}

/// A single letter is a drive.
fn has_scheme(address: &str) -> bool {
    let of_a_scheme = |byte: u8| byte.is_ascii_alphanumeric() || b"+-".contains(&byte);
    address
        .split_once(':')
        .is_some_and(|(scheme, _)| scheme.len() > 1 && scheme.bytes().all(of_a_scheme))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_a_directory_and_other_systems_are_refused() {
        for path in ["./jobs", "/var/lib/jobs", "jobs", "file:jobs", "./redis://x", "c:\\jobs"] {
            let expected = path.strip_prefix("file:").unwrap_or(path);
            let address: Address = path.parse().expect(path);
            assert_eq!(address, Address::Directory(expected.into()));
        }
        for url in ["postgres://localhost/jobs", "postgresql://me@host"] {
            let address: Address = url.parse().expect(url);
            assert_eq!(address, Address::Postgres(url.to_string()));
        }
        for url in ["http://127.0.0.1:7878", "https://jobs.example/base"] {
            let address: Address = url.parse().expect(url);
            assert_eq!(address, Address::Http(url.to_string()));
        }
        assert_eq!("memory:".parse::<Address>().expect("it is known"), Address::Memory);
        for other in ["", "file:", "file://jobs", "redis://x", "sqlite:jobs", "memory:x", "no:"] {
            let refused = other.parse::<Address>().expect_err(other).to_string();
            assert!(refused.contains(&format!("`{other}`")), "{refused}");
        }
    }

    #[test]
    fn a_password_in_an_address_that_cannot_be_opened_is_not_repeated() {
        for address in
            ["postgre://me:secret@host/jobs", "redis:me:secret@x", "mysql://a:secret@b@c"]
        {
            let refused = address.parse::<Address>().expect_err(address).to_string();
            assert!(!refused.contains("secret") && refused.contains("…@"), "{refused}");
        }
    }
}
