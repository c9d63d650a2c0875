//! Options of a TCP socket, of both sides of a connection.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

/// When the kernel takes a peer for dead.
#[derive(Clone, Copy, Debug)]
pub struct KeepAlive {
    /// A peer that has been silent for this long is probed.
    pub idle: Duration,
    /// Time between two probes.
    pub interval: Duration,
    /// Probes without an answer until the connection ends.
    pub probes: u32,
    /// A connection ends if sent bytes are not taken for this long.
    pub unacknowledged: Duration,
}

impl KeepAlive {
    /// Of every socket that a gateway accepts, and of those that dial a gateway, except for the lanes of attach.
    pub const GATEWAY: Self = Self {
        idle: Duration::from_secs(10),
        interval: Duration::from_secs(5),
        probes: 3,
        unacknowledged: Duration::from_secs(25),
    };

    /// Sets a socket up. Nagle's algorithm is off: a small frame that waits for the answer to the one before costs
    /// 40 ms (measured between gateways, it was the 99th percentile of every write).
    ///
    /// # Errors
    /// The kernel's; the socket is no TCP socket.
    pub fn set_up(&self, socket: &impl AsFd) -> io::Result<()> {
        use rustix::net::sockopt;
        sockopt::set_tcp_nodelay(socket, true)?;
        sockopt::set_socket_keepalive(socket, true)?;
        sockopt::set_tcp_keepidle(socket, self.idle)?;
        sockopt::set_tcp_keepintvl(socket, self.interval)?;
        sockopt::set_tcp_keepcnt(socket, self.probes)?;
        let limit = u32::try_from(self.unacknowledged.as_millis()).unwrap_or(u32::MAX);
        sockopt::set_tcp_user_timeout(socket, limit)?;
        Ok(())
    }
}

// Otherwise the probes would never decide.
const _: () = {
    let all = KeepAlive::GATEWAY;
    assert!(all.unacknowledged.as_secs() >= all.idle.as_secs() + all.interval.as_secs() * all.probes as u64);
};
