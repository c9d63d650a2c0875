//! Access to network and clock of an attached set, with defaults for a real host. A simulation replaces them (ADR
//! 0017).

use crate::machine::Lane;
use futures_util::future::BoxFuture;
use holdfast_host::boot_ns;
use holdfast_tls::KeepAlive;
use holdfast_types::Name;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// Of a lane. It ends if the other side does not take bytes for 30 s. The kernel counts two cases: no host acknowledges
/// them, or a host acknowledges them and has no room, like a gateway whose journal is full (R8, ATTACH-M7). Renewals
/// find a silent gateway in less than a second. This limit is for a connection that is dead although both hosts live,
/// for example because a firewall forgot it, so it may be long.
const KEEPALIVE: KeepAlive = KeepAlive {
    idle: Duration::from_secs(2),
    interval: Duration::from_secs(1),
    probes: 3,
    unacknowledged: Duration::from_secs(30),
};
/// The reading and the writing half of a connection.
pub type Halves = (Box<dyn AsyncRead + Send + Unpin>, Box<dyn AsyncWrite + Send + Unpin>);
/// Makes a lane's connection to HOST:PORT.
pub type Connect = Arc<dyn Fn(Lane, String) -> BoxFuture<'static, io::Result<Halves>> + Send + Sync>;
/// Source of a volume's clients, in place of its Unix socket.
pub type Clients = Arc<dyn Fn(&Name) -> mpsc::UnboundedReceiver<GivenClient> + Send + Sync>;

/// A client that did not connect to the volume's Unix socket.
pub struct GivenClient {
    /// Its connection.
    pub halves: Halves,
    /// Cancelled when it closes its connection, even if bytes are left to read.
    pub ended: CancellationToken,
}

/// See the module.
#[derive(Clone)]
pub struct Seams {
    /// Connects lanes; by default over TCP.
    pub connect: Connect,
    /// Where clients come from; by default a Unix socket per volume.
    pub clients: Option<Clients>,
    /// Nanoseconds of CLOCK_BOOTTIME: it goes on while the machine is suspended, as leases do.
    pub boot_ns: fn() -> u64,
}

impl Default for Seams {
    fn default() -> Self {
        Self { connect: over_tcp(), clients: None, boot_ns }
    }
}

impl fmt::Debug for Seams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seams").field("clients", &self.clients.is_some()).finish_non_exhaustive()
    }
}

/// Connects lanes over TCP.
pub(crate) fn over_tcp() -> Connect {
    Arc::new(|_, nbd| {
        Box::pin(async move {
            let socket = TcpStream::connect(nbd).await?;
            KEEPALIVE.set_up(&socket)?;
            let (read, write) = socket.into_split();
            Ok((Box::new(read) as _, Box::new(write) as _))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::sockopt;
    use tokio::net::TcpListener;

    /// The kernel alone notices a gateway's machine that vanished, even while no request is unanswered.
    #[tokio::test]
    async fn a_connection_is_set_up_to_notice_a_silent_peer() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        assert!(!sockopt::socket_keepalive(&socket).unwrap(), "it is on by default, so this tests nothing");
        KEEPALIVE.set_up(&socket).unwrap();
        assert!(sockopt::tcp_nodelay(&socket).unwrap());
        assert!(sockopt::socket_keepalive(&socket).unwrap());
        assert_eq!(sockopt::tcp_keepidle(&socket).unwrap(), KEEPALIVE.idle);
        assert_eq!(sockopt::tcp_keepintvl(&socket).unwrap(), KEEPALIVE.interval);
        assert_eq!(sockopt::tcp_keepcnt(&socket).unwrap(), KEEPALIVE.probes);
        assert_eq!(u128::from(sockopt::tcp_user_timeout(&socket).unwrap()), KEEPALIVE.unacknowledged.as_millis());
    }
}
