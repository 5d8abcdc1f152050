//! A client of a few lines: one connection for each request, and nothing decided for the test.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use serde_json::Value;

/// Where to ask.
pub(crate) struct Client {
    address: SocketAddr,
}

/// What was answered.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Client {
    pub(crate) fn to(address: SocketAddr) -> Self {
        Self { address }
    }

    pub(crate) fn post(&self, path: &str, body: &str) -> Answer {
        self.send("POST", path, &[("content-type", "application/json")], body)
    }

    pub(crate) fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Answer {
        self.begin(method, path, headers, body.len(), body.as_bytes()).answer()
    }

    /// Begins a request that says it has so many bytes, and sends these.
    pub(crate) fn begin(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        length: usize,
        body: &[u8],
    ) -> Begun {
        let mut stream = TcpStream::connect(self.address).expect("it listens");
        let mut head = format!("{method} {path} HTTP/1.1\r\nconnection: close\r\n");
        if !headers.iter().any(|(name, _)| *name == "host") {
            head.push_str(&format!("host: {}\r\n", self.address));
        }
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str(&format!("content-length: {length}\r\n\r\n"));
        stream.write_all(head.as_bytes()).expect("it can be sent");
        // A server that has answered already reads no more.
        let _ = stream.write_all(body);
        Begun(stream)
    }
}

/// A request that was sent, and not answered yet.
pub(crate) struct Begun(TcpStream);

impl Begun {
    pub(crate) fn answer(mut self) -> Answer {
        let mut bytes = Vec::new();
        let mut part = [0; 64 << 10];
        // A connection that is reset after the answer has still brought it.
        while let Ok(length @ 1..) = self.0.read(&mut part) {
            bytes.extend_from_slice(&part[..length]);
        }
        let text = String::from_utf8(bytes).expect("it is text");
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{text:?}"));
        let mut lines = head.lines();
        let status = lines.next().and_then(|line| line.split(' ').nth(1));
        let status = status.and_then(|status| status.parse().ok()).expect("it has a status");
        let header = |line: &str| line.split_once(": ").map(|(a, b)| (a.into(), b.into()));
        Answer { status, headers: lines.filter_map(header).collect(), body: body.to_string() }
    }
}

impl Answer {
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(said, _)| said.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }
}
