//! The socket through which others reach whoever owns a directory.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use tokio::net::UnixStream;

/// Its name in the directory.
const SOCKET: &str = "socket";

/// The directory, and a short way to its socket. The path of a socket may have 108 bytes, and that
/// of a directory many more.
struct ShortPath {
    path: PathBuf,
    _directory: File,
}

fn short(directory: &Path) -> io::Result<ShortPath> {
    let open = File::open(directory)?;
    let here = if cfg!(target_os = "linux") {
        Path::new("/proc/self/fd").join(open.as_raw_fd().to_string())
    } else {
        directory.to_path_buf()
    };
    Ok(ShortPath { path: here.join(SOCKET), _directory: open })
}

/// Listens in a directory that is owned: what stands there was left by an owner that is gone.
pub(super) fn listen(directory: &Path) -> io::Result<UnixListener> {
    let short = short(directory)?;
    match fs::remove_file(&short.path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(&short.path)?;
    // Until then others are turned away when they have come.
    fs::set_permissions(&short.path, Permissions::from_mode(0o600))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Nobody listens any more.
pub(super) fn remove(directory: &Path) {
    // If it stays, the next owner replaces it.
    let _ = fs::remove_file(directory.join(SOCKET));
}

/// Reaches whoever owns the directory. It is not waited for: where too many are waiting already, it
/// is an error, and can be tried again.
pub(super) async fn connect(directory: &Path) -> io::Result<UnixStream> {
    let short = short(directory)?;
    UnixStream::connect(&short.path).await
}

/// Whether whoever has come may: the user that the directory belongs to, or root.
pub(super) fn may_enter(user: u32, directory: &Path) -> io::Result<bool> {
    Ok(user == 0 || user == fs::metadata(directory)?.uid())
}
