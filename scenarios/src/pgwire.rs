//! The few messages of PostgreSQL's wire protocol that a ledger needs: connect over the Unix socket or TCP, simple
//! query.
//!
//! Own code, not psql or a client crate: a commit is acknowledged exactly when this code has read its CommandComplete
//! message, without a foreign buffer in between.

use std::fmt;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

/// What went wrong with a query or a connection.
#[derive(Debug)]
pub enum PgError {
    /// The server refused: SQLSTATE and message. The statement had no effect, unless the state is one of a dying
    /// server.
    Server { state: String, message: String },
    /// The connection is lost: the outcome of a running statement is unknown (R12).
    Gone(std::io::Error),
}

impl fmt::Display for PgError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Server { state, message } => write!(f, "{state}: {message}"),
            Self::Gone(e) => write!(f, "connection gone: {e}"),
        }
    }
}

impl std::error::Error for PgError {}

impl From<std::io::Error> for PgError {
    fn from(e: std::io::Error) -> Self {
        Self::Gone(e)
    }
}

/// Address of a server, or of a proxy in front of it.
#[derive(Clone, Debug)]
pub enum Reach {
    /// Its Unix socket.
    Socket(PathBuf),
    /// Over TCP.
    Tcp(SocketAddr),
}

/// Timeout of a statement. Shorter over TCP, where a proxy must detect a lost server much sooner.
const SOCKET_PATIENCE: Duration = Duration::from_secs(120);
const TCP_PATIENCE: Duration = Duration::from_secs(60);

/// How long a connection may take to be made.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

trait Stream: Read + Write + Send + std::fmt::Debug {}
impl Stream for UnixStream {}
impl Stream for TcpStream {}

/// One session.
#[derive(Debug)]
pub struct Client(Box<dyn Stream>);

/// Rows of text; NULL is `None`.
pub type Rows = Vec<Vec<Option<String>>>;

fn odd(what: impl Into<String>) -> PgError {
    PgError::Gone(std::io::Error::new(std::io::ErrorKind::InvalidData, what.into()))
}

impl Client {
    /// Connects as `user` to `database` with trust authentication. Fails when the server is not there, not ready or
    /// asks for a password.
    pub fn connect(reach: &Reach, user: &str, database: &str) -> Result<Self, PgError> {
        let mut client = match reach {
            Reach::Socket(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_read_timeout(Some(SOCKET_PATIENCE))?;
                Self(Box::new(stream))
            }
            Reach::Tcp(at) => {
                let stream = TcpStream::connect_timeout(at, CONNECT_LIMIT)?;
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(TCP_PATIENCE))?;
                Self(Box::new(stream))
            }
        };
        let mut body = 196_608u32.to_be_bytes().to_vec();
        for text in ["user", user, "database", database, "application_name", "xtask"] {
            body.extend(text.as_bytes());
            body.push(0);
        }
        body.push(0);
        let mut message = frame_len(body.len())?.to_vec();
        message.extend(body);
        client.0.write_all(&message)?;
        client.until_ready(true).map(|_| client)
    }

    /// Runs one or several statements; returns the rows of all of them.
    pub fn query(&mut self, sql: &str) -> Result<Rows, PgError> {
        let mut message = vec![b'Q'];
        message.extend(frame_len(sql.len() + 1)?);
        message.extend(sql.as_bytes());
        message.push(0);
        self.0.write_all(&message)?;
        self.until_ready(false)
    }

    fn until_ready(&mut self, starting: bool) -> Result<Rows, PgError> {
        let (mut rows, mut failed, mut complete) = (Rows::new(), None, starting);
        loop {
            let (kind, body) = self.message()?;
            match kind {
                b'D' => rows.push(row(&body)?),
                b'C' => complete = true,
                b'E' => failed = Some(error(&body)),
                b'R' if body != [0, 0, 0, 0] => return Err(odd("the server asks for a password")),
                b'Z' => break,
                _ => {}
            }
            // A fatal error at connect or in a dying server is not followed by ReadyForQuery.
            if starting && let Some(e) = failed {
                return Err(e);
            }
        }
        match failed {
            Some(e) => Err(e),
            None if complete => Ok(rows),
            None => Err(odd("ready for the next query without having completed this one")),
        }
    }

    fn message(&mut self) -> Result<(u8, Vec<u8>), PgError> {
        let mut head = [0; 5];
        self.0.read_exact(&mut head)?;
        let len = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
        if !(4..1 << 28).contains(&len) {
            return Err(odd(format!("message of {len} bytes")));
        }
        let mut body = vec![0; len - 4];
        self.0.read_exact(&mut body)?;
        Ok((head[0], body))
    }
}

fn frame_len(body: usize) -> Result<[u8; 4], PgError> {
    u32::try_from(body + 4).map(u32::to_be_bytes).map_err(|e| odd(e.to_string()))
}

fn row(mut body: &[u8]) -> Result<Vec<Option<String>>, PgError> {
    fn take<'a>(body: &mut &'a [u8], n: usize) -> Result<&'a [u8], PgError> {
        let (a, b) = body.split_at_checked(n).ok_or_else(|| odd("short row"))?;
        *body = b;
        Ok(a)
    }
    let count = take(&mut body, 2)?;
    let count = u16::from_be_bytes([count[0], count[1]]);
    (0..count)
        .map(|_| {
            let len = take(&mut body, 4)?;
            match i32::from_be_bytes([len[0], len[1], len[2], len[3]]) {
                -1 => Ok(None),
                n => {
                    let n = usize::try_from(n).map_err(|e| odd(e.to_string()))?;
                    Ok(Some(String::from_utf8_lossy(take(&mut body, n)?).into_owned()))
                }
            }
        })
        .collect()
}

fn error(body: &[u8]) -> PgError {
    let field = |kind: u8| {
        body.split(|b| *b == 0)
            .find(|f| f.first() == Some(&kind))
            .map(|f| String::from_utf8_lossy(&f[1..]).into_owned())
    };
    PgError::Server { state: field(b'C').unwrap_or_default(), message: field(b'M').unwrap_or_default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_with_null_and_short_rows() {
        let body = [0, 2, 0, 0, 0, 1, b'7', 0xff, 0xff, 0xff, 0xff];
        assert_eq!(row(&body).ok(), Some(vec![Some("7".to_owned()), None]));
        assert!(row(&body[..6]).is_err());
    }

    #[test]
    fn error_fields() {
        let PgError::Server { state, message } = error(b"SPANIC\0C57P02\0Mcrash\0\0") else { panic!("a server error") };
        assert_eq!((state.as_str(), message.as_str()), ("57P02", "crash"));
    }
}
