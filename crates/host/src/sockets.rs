//! What the client of a socket has sent last, without reading it.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::ioctl_fionread;
use rustix::net::{RecvFlags, recv};
use std::os::fd::AsFd;

/// Maximum number of bytes that [`left_by_client`] returns: more than Linux keeps for a socket by default (6 MiB for
/// TCP, 208 KiB for a Unix socket). A caller that drops them before it waits holds them once for each thread, not once
/// for each connection.
pub const LEFT_BYTES_MAX: usize = 8 << 20;

/// The unread bytes of a client that sends nothing more, at most the first [`LEFT_BYTES_MAX`]. `None`: it may send
/// more. Never waits, and leaves the bytes in the socket.
pub fn left_by_client(socket: &impl AsFd) -> Option<Vec<u8>> {
    left_within(socket, LEFT_BYTES_MAX)
}

fn left_within(socket: &impl AsFd, most: usize) -> Option<Vec<u8>> {
    let mut fds = [PollFd::new(socket, PollFlags::RDHUP)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    // It can only fail for lack of the kernel's memory; the next read shows the end then.
    let ended = poll(&mut fds, Some(&now)).is_ok() && !fds[0].revents().is_empty();
    if !ended {
        return None;
    }
    // The client decides how much lies there. A connection that was reset has nothing left.
    let count = usize::try_from(ioctl_fionread(socket).unwrap_or(0)).unwrap_or(usize::MAX);
    let mut bytes = vec![0; count.min(most)];
    let found = recv(socket, &mut bytes[..], RecvFlags::PEEK | RecvFlags::DONTWAIT).map_or(0, |(_, found)| found);
    bytes.truncate(found);
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::Shutdown;
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_look_at_what_a_client_left_is_bounded_and_takes_nothing() {
        let (mut client, mut server) = UnixStream::pair().unwrap();
        client.write_all(&[7; 3000]).unwrap();
        assert_eq!(left_by_client(&server), None, "it may send more");
        client.shutdown(Shutdown::Write).unwrap();
        assert_eq!(left_within(&server, 1000), Some(vec![7; 1000]), "no more than the bound");
        assert_eq!(left_by_client(&server), Some(vec![7; 3000]));
        drop(client);
        assert_eq!(left_by_client(&server), Some(vec![7; 3000]), "closed altogether");
        let mut read = Vec::new();
        server.read_to_end(&mut read).unwrap();
        assert_eq!(read, [7; 3000]);
        assert_eq!(left_by_client(&server), Some(Vec::new()));
    }
}
