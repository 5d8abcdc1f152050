//! Certificates for servers that encrypt.

use std::path::Path;
use std::process::Command;

use crate::Missing;

const OPENSSL: Missing = Missing { what: "openssl", how_to_install: "apt-get install openssl" };

/// A root, a certificate for `localhost` that it has signed, and a root that has signed nothing:
/// `root.pem`, `server.crt`, `server.key` and `other.pem` in this directory.
pub fn make_certificates(directory: &Path) -> Result<(), Missing> {
    made(directory).ok_or(OPENSSL)
}

fn made(directory: &Path) -> Option<()> {
    let openssl = |arguments: &[&str]| {
        let mut command = Command::new("openssl");
        command.current_dir(directory).args(arguments);
        command.output().ok().filter(|output| output.status.success()).map(drop)
    };
    for (name, subject) in [("root", "/CN=our root"), ("other", "/CN=another root")] {
        let (key, certificate) = (format!("{name}.key"), format!("{name}.pem"));
        openssl(&[
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-days",
            "3650",
            "-subj",
            subject,
            "-keyout",
            &key,
            "-out",
            &certificate,
        ])?;
    }
    openssl(&[
        "req",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-subj",
        "/CN=localhost",
        "-keyout",
        "server.key",
        "-out",
        "server.csr",
    ])?;
    let extensions = "subjectAltName=DNS:localhost\nbasicConstraints=CA:FALSE\n";
    std::fs::write(directory.join("extensions"), extensions).expect("it can be written");
    openssl(&[
        "x509",
        "-req",
        "-in",
        "server.csr",
        "-CA",
        "root.pem",
        "-CAkey",
        "root.key",
        "-CAcreateserial",
        "-days",
        "3650",
        "-extfile",
        "extensions",
        "-out",
        "server.crt",
    ])
}
