//! Network access of the agent's HTTP server ([`crate::Host`] covers everything else). A real agent uses TCP
//! ([`crate::run()`]); a simulation puts its own there ([`crate::run_over`], ADR 0017).

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;

/// Both directions of a connection.
pub trait Wire: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Wire for T {}

/// A connection that is being made.
pub type Dialling = Pin<Box<dyn Future<Output = io::Result<Box<dyn Wire>>> + Send>>;
/// Makes a connection to the agent at HOST:PORT.
pub type Dial = Arc<dyn Fn(String) -> Dialling + Send + Sync>;
/// Incoming connections, with the address of the caller.
pub type Incoming = mpsc::UnboundedReceiver<(Box<dyn Wire>, SocketAddr)>;

/// See the module.
pub struct Seams {
    /// In place of `http.listen`.
    pub incoming: Incoming,
    /// How other hosts' agents are reached.
    pub dial: Dial,
    /// In place of `http.token_file`.
    pub token: Option<Arc<str>>,
}
