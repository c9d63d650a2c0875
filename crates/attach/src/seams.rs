//! What an attached set touches the machine with (R8 and leases are decided elsewhere), each with its one default: a simulation puts its own there (ADR 0017).

use crate::lane;
use crate::machine::Lane;
use futures_util::future::BoxFuture;
use holdfast_host::boot_ns;
use holdfast_types::Name;
use std::fmt;
use std::io;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;

/// The reading and the writing half of a connection.
pub type Halves = (Box<dyn AsyncRead + Send + Unpin>, Box<dyn AsyncWrite + Send + Unpin>);
/// Makes a lane's connection to HOST:PORT.
pub type Connect = Arc<dyn Fn(Lane, String) -> BoxFuture<'static, io::Result<Halves>> + Send + Sync>;
/// Where clients of a volume come from, in place of its Unix socket.
pub type Clients = Arc<dyn Fn(&Name) -> mpsc::UnboundedReceiver<Halves> + Send + Sync>;

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
        Self { connect: lane::over_tcp(), clients: None, boot_ns }
    }
}

impl fmt::Debug for Seams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seams").field("clients", &self.clients.is_some()).finish_non_exhaustive()
    }
}
