//! The agent's Unix socket: commands of this host's root need no token.
//!
//! LOCAL-L1  Only root and the agent's own user are let in, by what the kernel says of the process that connects
//!     (SO_PEERCRED). The modes of the socket (0600) and of the run directory (0700) say the same once more.

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

/// A path by which the kernel takes a socket however long its own path is (107 bytes at most). Good for as long as the
/// directory is open.
fn by_directory(path: &Path) -> io::Result<(File, PathBuf)> {
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    };
    // A FIFO of that name would keep whoever opens it.
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

/// Connects to the socket at `path`, of which anybody may have told.
///
/// # Errors
/// Nobody listens there, or this user may not connect, or another user listens.
pub async fn connect(path: &Path) -> io::Result<UnixStream> {
    let (_dir, short) = by_directory(path)?;
    let socket = UnixStream::connect(short).await?;
    let uid = socket.peer_cred()?.uid();
    if is_let_in(uid) {
        return Ok(socket);
    }
    Err(io::Error::new(io::ErrorKind::PermissionDenied, format!("the user with number {uid} listens, expected root")))
}

/// LOCAL-L1: whether this user may give commands, or take them.
fn is_let_in(uid: u32) -> bool {
    uid == 0 || uid == geteuid().as_raw()
}

/// The next connection of somebody who may give commands; others are closed unanswered.
pub(crate) async fn accept(listener: &UnixListener) -> io::Result<UnixStream> {
    loop {
        let (socket, _) = listener.accept().await?;
        match socket.peer_cred() {
            Ok(peer) if is_let_in(peer.uid()) => return Ok(socket),
            Ok(peer) => tracing::warn!(uid = peer.uid(), "somebody asked at the agent's socket who may not: closed"),
            Err(error) => tracing::warn!(%error, "somebody asked at the agent's socket, and who is not known: closed"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_and_the_agents_own_user_are_let_in() {
        let own = geteuid().as_raw();
        assert!(is_let_in(0) && is_let_in(own));
        assert!(!is_let_in(own + 1000) && !is_let_in(u32::MAX));
    }

    #[tokio::test]
    async fn a_socket_of_any_path_is_its_users_alone() {
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
