//! What an agent's door touches the network with (its [`crate::Host`] is what it touches everything else with), each with its one default: a simulation puts its
//! own there (ADR 0017).

use crate::client;
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
/// Connections that come in, and whose they are.
pub type Incoming = mpsc::UnboundedReceiver<(Box<dyn Wire>, SocketAddr)>;

/// See the module.
pub struct Seams {
    /// In place of `http.listen`.
    pub incoming: Incoming,
    /// How other hosts' agents are reached; by default over TCP.
    pub dial: Dial,
    /// In place of `http.token_file`.
    pub token: Option<Arc<str>>,
}

impl Seams {
    /// Over what comes in there, with everything else as it comes.
    pub fn over(incoming: Incoming) -> Self {
        Self { incoming, dial: client::over_tcp(), token: None }
    }
}
