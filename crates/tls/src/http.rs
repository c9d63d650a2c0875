//! TLS at an HTTP door (ADR 0054).
//!
//! - **HTTP-D1** Such a door asks for a certificate and takes connections without one as well: load balancers have
//!   none. A certificate that is shown must be one of the authority; otherwise the handshake ends.
//! - **HTTP-D2** A connection without TLS is told apart by its first byte, and the door knows of it. What is answered
//!   there is up to the door's table.

use crate::accept::Acceptor;
use crate::either::{HANDSHAKE, Peeked};
use crate::role::Caller;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::task::JoinSet;

/// TLS of an HTTP door.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HttpTls {
    /// Plain text only.
    Off,
    /// Health checks in plain text as well.
    Checks,
    /// Nothing is answered in plain text.
    Required,
}

impl HttpTls {
    /// The name in the settings.
    pub const fn as_str(self) -> &'static str {
        match self {
            HttpTls::Off => "off",
            HttpTls::Checks => "checks",
            HttpTls::Required => "required",
        }
    }
}

/// Who asks at an HTTP door with TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HttpClient {
    /// Without TLS: nobody knows, and everybody on the way reads the answer.
    Plain,
    /// With TLS, without a certificate.
    Unnamed,
    /// With a certificate of the authority.
    Named(Arc<Caller>),
}

/// What is needed of a connection of an HTTP door.
pub trait Served: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Served for T {}

/// A connection of an HTTP door, with or without TLS.
pub type HttpConnection = Box<dyn Served>;

/// The connection after its handshake, if it begins one, and who is at its other end.
async fn begun<C>(acceptor: Acceptor, mut connection: C) -> io::Result<(HttpConnection, HttpClient)>
where
    C: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let first = connection.read_u8().await?;
    let connection = Peeked::new(vec![first], connection);
    if first != HANDSHAKE {
        let plain: HttpConnection = Box::new(connection);
        return Ok((plain, HttpClient::Plain));
    }
    let secured = acceptor.accept_http(connection).await?;
    let own = secured.get_ref().1.peer_certificates().and_then(|all| all.first()).map(|own| own.to_vec());
    let Some(own) = own else {
        let unnamed: HttpConnection = Box::new(secured);
        return Ok((unnamed, HttpClient::Unnamed));
    };
    let client = HttpClient::Named(Arc::new(Caller::of(&own).map_err(io::Error::other)?));
    // REVOKE-V2: it ends with its certificate.
    let secured: HttpConnection = Box::new(acceptor.revocations().follow(secured, Some(own))?);
    Ok((secured, client))
}

/// Handshakes of an HTTP door that go on beside each other; `A` is what the door knows of each connection. When this is
/// dropped, they all end. The listener bounds them: a connection holds its place and has its time limits meanwhile.
pub struct Handshakes<A> {
    acceptor: Acceptor,
    going_on: JoinSet<io::Result<(HttpConnection, HttpClient, A)>>,
}

impl<A> fmt::Debug for Handshakes<A> {
    /// Without the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Handshakes({})", self.going_on.len())
    }
}

impl<A: Send + 'static> Handshakes<A> {
    /// At a door with this TLS.
    pub fn new(acceptor: Acceptor) -> Self {
        Self { acceptor, going_on: JoinSet::new() }
    }

    /// Begins one. Must be called on a runtime.
    pub fn begin<C>(&mut self, connection: C, from: A)
    where
        C: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let acceptor = self.acceptor.clone();
        self.going_on.spawn(async move {
            let (connection, client) = begun(acceptor, connection).await?;
            Ok((connection, client, from))
        });
    }

    /// The next connection that may be served. Waits for ever while no handshake goes on. Nothing is lost if the call
    /// is dropped.
    pub async fn next(&mut self) -> (HttpConnection, HttpClient, A) {
        loop {
            match self.going_on.join_next().await {
                Some(Ok(Ok(done))) => return done,
                Some(Ok(Err(error))) => tracing::debug!(%error, "an HTTP connection ended in its handshake"),
                // A panic is a broken invariant and must not be lost.
                Some(Err(ended)) => {
                    if let Ok(panic) = ended.try_into_panic() {
                        std::panic::resume_unwind(panic);
                    }
                }
                None => std::future::pending::<()>().await,
            }
        }
    }
}

#[cfg(test)]
#[path = "http_tests.rs"]
mod tests;
