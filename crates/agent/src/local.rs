//! The agent's Unix socket: commands of this host's root need no token.
//!
//! LOCAL-L1  Only root and the agent's own user may connect. The kernel tells the user of the other process
//!     (SO_PEERCRED). The modes of the socket (0600) and of the run directory (0700) have the same effect.

use rustix::fs::OFlags;
use rustix::process::geteuid;
use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use tokio::net::{UnixListener, UnixStream};

/// Its name in the run directory.
pub const SOCKET: &str = "agent.sock";

/// A short path to a socket: the kernel accepts at most 107 bytes. It can be used as long as the directory is open.
fn by_directory(path: &Path) -> io::Result<(File, PathBuf)> {
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    };
    // To open a FIFO of that name would block.
    let dir = OpenOptions::new().read(true).custom_flags(OFlags::DIRECTORY.bits().cast_signed()).open(dir)?;
    let short = Path::new("/proc/self/fd").join(dir.as_raw_fd().to_string()).join(name);
    Ok((dir, short))
}

/// Listens in this run directory, in place of an earlier agent. The caller holds the agent's lock.
///
/// # Errors
/// The socket could not be made.
pub fn listen(run_dir: &Path) -> io::Result<UnixListener> {
    let path = run_dir.join(SOCKET);
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let (_dir, short) = by_directory(&path)?;
    let listener = UnixListener::bind(short)?;
    std::fs::set_permissions(&path, Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Connects to the socket at `path`, which may come from an untrusted source.
///
/// # Errors
/// No process listens there, this user may not connect, or a process of another user listens.
pub async fn connect(path: &Path) -> io::Result<UnixStream> {
    let (_dir, short) = by_directory(path)?;
    let socket = UnixStream::connect(short).await?;
    let uid = socket.peer_cred()?.uid();
    if is_let_in(uid) {
        return Ok(socket);
    }
    Err(io::Error::new(
        io::ErrorKind::PermissionDenied,
        format!("found a socket of the user with number {uid}, expected one of root or of this user"),
    ))
}

/// LOCAL-L1: whether a process of this user may send commands, or receive them.
fn is_let_in(uid: u32) -> bool {
    uid == 0 || uid == geteuid().as_raw()
}

/// The next connection of a process that may send commands. Other connections are closed without an answer.
pub(crate) async fn accept(listener: &UnixListener) -> io::Result<UnixStream> {
    loop {
        let (socket, _) = listener.accept().await?;
        match socket.peer_cred() {
            Ok(peer) if is_let_in(peer.uid()) => return Ok(socket),
            Ok(peer) => tracing::warn!(
                uid = peer.uid(),
                "a process of a user without permission connected to the agent's socket: closed"
            ),
            Err(error) => {
                tracing::warn!(%error, "a process of an unknown user connected to the agent's socket: closed")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_root_and_the_agents_own_user_may_connect() {
        let own = geteuid().as_raw();
        assert!(is_let_in(0) && is_let_in(own));
        assert!(!is_let_in(own + 1000) && !is_let_in(u32::MAX));
    }

    #[tokio::test]
    async fn a_socket_may_have_a_long_path_and_only_its_user_may_open_it() {
        let dir = tempfile::tempdir().unwrap();
        let run = dir.path().join("r".repeat(150));
        std::fs::create_dir(&run).unwrap();
        for round in ["first", "after one that was killed"] {
            let listener = listen(&run).unwrap();
            let mode = std::fs::metadata(run.join(SOCKET)).unwrap().permissions().mode() & 0o777;
            assert_eq!(mode, 0o600, "{round}");
            let connected = tokio::spawn({
                let path = run.join(SOCKET);
                async move { connect(&path).await.map(drop) }
            });
            accept(&listener).await.unwrap();
            connected.await.unwrap().unwrap();
        }
        assert!(connect(&dir.path().join("none")).await.is_err());
    }
}
