//! A small NBD client for cases that libnbd hides: error texts of the server, unanswered requests, and bytes in the
//! receive buffer of a stopped server.
//!
//! Fixed newstyle, simple replies only. Deliberately independent of `crates/nbd`: a test must not share code with the
//! tested program.

use crate::cmd::{Cmd, cmd};
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::fmt;
use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::Path;
use std::time::Duration;

/// libnbd's shell. The distribution's Python has its module; another Python first on the PATH does not.
pub fn nbdsh() -> Cmd {
    cmd("nbdsh").env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
}

/// Address of an export: `nbd://HOST:PORT/NAME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uri {
    /// `HOST:PORT`.
    pub addr: String,
    /// The export of a volume: `SET/VOLUME`.
    pub export: String,
}

impl Uri {
    /// Reads an `nbd://` URI with a host and a port. Fails when it is not of that form.
    pub fn parse(text: &str) -> Result<Self> {
        let rest = text.strip_prefix("nbd://").with_context(|| format!("{text}: expected nbd://HOST:PORT/NAME"))?;
        let (addr, export) = rest.split_once('/').unwrap_or((rest, ""));
        anyhow::ensure!(addr.contains(':'), "{text}: expected a port");
        Ok(Self { addr: addr.into(), export: export.into() })
    }

    /// Another export of the same server.
    pub fn with_export(&self, export: &str) -> Self {
        Self { addr: self.addr.clone(), export: export.into() }
    }

    /// The same through TLS, for clients of libnbd: with the certificate in this folder. A `?` in the export's name is
    /// a part of the name.
    pub fn through_tls(&self, certificate: &Path) -> String {
        let export = self.export.replace('?', "%3F");
        format!("nbds://{}/{export}?tls-certificates={}", self.addr, certificate.display())
    }
}

impl fmt::Display for Uri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "nbd://{}/{}", self.addr, self.export)
    }
}

/// Why a request has no good answer.
#[derive(Debug)]
pub enum NbdError {
    /// The server answered the handshake with an error and a text.
    Refused(String),
    /// The server answered a request with this errno.
    Errno(u32),
    /// The connection is closed or silent: the outcome of unanswered requests is unknown (R12).
    Gone(std::io::Error),
    /// The server violated the protocol.
    Protocol(String),
}

impl fmt::Display for NbdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(words) => write!(f, "refused: {words}"),
            Self::Errno(n) => write!(f, "answered with errno {n}"),
            Self::Gone(e) => write!(f, "connection gone: {e}"),
            Self::Protocol(what) => write!(f, "protocol: {what}"),
        }
    }
}

impl std::error::Error for NbdError {}

impl From<std::io::Error> for NbdError {
    fn from(e: std::io::Error) -> Self {
        Self::Gone(e)
    }
}

const OPT_GO: u32 = 7;
const REP_ACK: u32 = 1;
const REP_INFO: u32 = 3;
const REP_ERR: u32 = 1 << 31;
const OPT_MAGIC: u64 = 0x4948_4156_454f_5054;
const OPT_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;

const CMD_READ: u16 = 0;
const CMD_WRITE: u16 = 1;
const CMD_DISC: u16 = 2;
const CMD_FLUSH: u16 = 3;
const CMD_TRIM: u16 = 4;

/// One connection in transmission.
#[derive(Debug)]
pub struct Client {
    stream: TcpStream,
    next: u64,
    /// For each open request, the length of data in a successful answer.
    open: BTreeMap<u64, u32>,
}

/// An answer to one request.
#[derive(Debug)]
pub struct Reply {
    /// The cookie of the request.
    pub cookie: u64,
    /// Data of a read, or the server's errno.
    pub result: std::result::Result<Vec<u8>, u32>,
}

fn be<const N: usize>(stream: &mut TcpStream) -> std::io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

impl Client {
    /// Connects and opens the export. `patience` is the timeout of each wait for the server, now and later. Fails with
    /// [`NbdError::Refused`] and the server's text, or with another error of the connection.
    pub fn connect(uri: &Uri, patience: Duration) -> std::result::Result<Self, NbdError> {
        let addr =
            uri.addr.to_socket_addrs()?.next().ok_or_else(|| NbdError::Protocol(format!("no address: {uri}")))?;
        let mut stream = TcpStream::connect_timeout(&addr, patience)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        let greeting: [u8; 18] = be(&mut stream)?;
        if &greeting[..16] != b"NBDMAGICIHAVEOPT" {
            return Err(NbdError::Protocol(format!("greeting {greeting:?}")));
        }
        let name = uri.export.as_bytes();
        let name_len = u32::try_from(name.len()).map_err(|e| NbdError::Protocol(e.to_string()))?;
        let mut hello = 3u32.to_be_bytes().to_vec(); // fixed newstyle, no zeroes
        hello.extend(OPT_MAGIC.to_be_bytes());
        hello.extend(OPT_GO.to_be_bytes());
        hello.extend((name_len + 6).to_be_bytes());
        hello.extend(name_len.to_be_bytes());
        hello.extend(name);
        hello.extend(0u16.to_be_bytes());
        stream.write_all(&hello)?;
        let mut named = false;
        loop {
            let head: [u8; 20] = be(&mut stream)?;
            let magic = u64::from_be_bytes(head[..8].try_into().unwrap_or_default());
            let word = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap_or_default());
            let (kind, len) = (word(12), word(16));
            if magic != OPT_REPLY_MAGIC || len > 1 << 20 {
                return Err(NbdError::Protocol(format!("option reply, magic {magic:#x}, {len} bytes")));
            }
            let mut body = vec![0; len as usize];
            stream.read_exact(&mut body)?;
            match kind {
                REP_INFO if body.len() >= 12 && body[..2] == [0, 0] => {
                    named = true;
                }
                REP_INFO => {}
                REP_ACK => break,
                kind if kind & REP_ERR != 0 => {
                    let words = String::from_utf8_lossy(&body).into_owned();
                    return Err(NbdError::Refused(format!("{words} (error {})", kind & !REP_ERR)));
                }
                other => return Err(NbdError::Protocol(format!("option reply {other}"))),
            }
        }
        if !named {
            return Err(NbdError::Protocol("no export info before the acknowledgement".into()));
        }
        Ok(Self { stream, next: 1, open: BTreeMap::new() })
    }

    /// Changes the timeout of each wait. Fails when the connection is gone.
    pub fn set_patience(&self, patience: Duration) -> std::io::Result<()> {
        self.stream.set_read_timeout(Some(patience))?;
        self.stream.set_write_timeout(Some(patience))
    }

    fn send(&mut self, kind: u16, offset: u64, len: u32, data: &[u8]) -> std::result::Result<u64, NbdError> {
        let cookie = self.next;
        self.next += 1;
        let mut bytes = Vec::with_capacity(28 + data.len());
        bytes.extend(REQUEST_MAGIC.to_be_bytes());
        bytes.extend(0u16.to_be_bytes());
        bytes.extend(kind.to_be_bytes());
        bytes.extend(cookie.to_be_bytes());
        bytes.extend(offset.to_be_bytes());
        bytes.extend(len.to_be_bytes());
        bytes.extend(data);
        self.stream.write_all(&bytes)?;
        if kind != CMD_DISC {
            self.open.insert(cookie, if kind == CMD_READ { len } else { 0 });
        }
        Ok(cookie)
    }

    /// Sends a read without waiting for its answer. Fails when the connection is gone.
    pub fn send_read(&mut self, offset: u64, len: u32) -> std::result::Result<u64, NbdError> {
        self.send(CMD_READ, offset, len, &[])
    }

    /// Sends a write without waiting for its answer. Fails when the connection is gone.
    pub fn send_write(&mut self, offset: u64, data: &[u8]) -> std::result::Result<u64, NbdError> {
        let len = u32::try_from(data.len()).map_err(|e| NbdError::Protocol(e.to_string()))?;
        self.send(CMD_WRITE, offset, len, data)
    }

    /// Sends a flush without waiting for its answer. Fails when the connection is gone.
    pub fn send_flush(&mut self) -> std::result::Result<u64, NbdError> {
        self.send(CMD_FLUSH, 0, 0, &[])
    }

    /// Sends a trim without waiting for its answer. Fails when the connection is gone.
    pub fn send_trim(&mut self, offset: u64, len: u32) -> std::result::Result<u64, NbdError> {
        self.send(CMD_TRIM, offset, len, &[])
    }

    /// Waits for the next answer to any request. Fails when the connection is closed, or silent for longer than the
    /// timeout.
    pub fn receive(&mut self) -> std::result::Result<Reply, NbdError> {
        let head: [u8; 16] = be(&mut self.stream)?;
        let word = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap_or_default());
        let cookie = u64::from_be_bytes(head[8..].try_into().unwrap_or_default());
        if word(0) != REPLY_MAGIC {
            return Err(NbdError::Protocol(format!("reply magic {:#x}", word(0))));
        }
        let len = self
            .open
            .remove(&cookie)
            .ok_or_else(|| NbdError::Protocol(format!("answer with unknown cookie {cookie}")))?;
        if word(4) != 0 {
            return Ok(Reply { cookie, result: Err(word(4)) });
        }
        let mut data = vec![0; len as usize];
        self.stream.read_exact(&mut data)?;
        Ok(Reply { cookie, result: Ok(data) })
    }

    fn answer_to(&mut self, cookie: u64) -> std::result::Result<Vec<u8>, NbdError> {
        let reply = self.receive()?;
        if reply.cookie != cookie {
            return Err(NbdError::Protocol(format!("answer to {}, expected {cookie}", reply.cookie)));
        }
        reply.result.map_err(NbdError::Errno)
    }

    /// Reads and waits. Do not use it while requests are unanswered; the same holds for [`Client::write`] and
    /// [`Client::flush`]. Fails with the server's errno, or a closed connection.
    pub fn read(&mut self, offset: u64, len: u32) -> std::result::Result<Vec<u8>, NbdError> {
        let cookie = self.send_read(offset, len)?;
        self.answer_to(cookie)
    }

    /// Writes and waits.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> std::result::Result<(), NbdError> {
        let cookie = self.send_write(offset, data)?;
        self.answer_to(cookie).map(drop)
    }

    /// Flushes and waits.
    pub fn flush(&mut self) -> std::result::Result<(), NbdError> {
        let cookie = self.send_flush()?;
        self.answer_to(cookie).map(drop)
    }

    /// Zeroes a range and waits.
    pub fn trim(&mut self, offset: u64, len: u32) -> std::result::Result<(), NbdError> {
        let cookie = self.send_trim(offset, len)?;
        self.answer_to(cookie).map(drop)
    }

    /// Disconnects cleanly; the server closes the connection.
    pub fn disconnect(mut self) {
        let _ = self.send(CMD_DISC, 0, 0, &[]);
        // Wait for the end of the stream: then the server has noticed the disconnect.
        let _ = self.stream.read(&mut [0; 1]);
    }
}

/// A block that contains the number of its write and its place: `tag` and `offset`, repeated.
pub fn pattern(tag: u64, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len);
    let mut word = 0u64;
    while bytes.len() < len {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(offset.to_le_bytes());
        // Incompressible filler, so that compression does not make it an easy case.
        for _ in 0..6 {
            word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(tag ^ offset ^ 1_442_695_040_888_963_407);
            bytes.extend(word.to_le_bytes());
        }
    }
    bytes.truncate(len);
    bytes
}

/// The tag of a block made by [`pattern`]. Checks the whole block. Fails when the block is torn or belongs to another
/// offset.
pub fn tag_of(bytes: &[u8], offset: u64) -> Result<u64> {
    anyhow::ensure!(bytes.len() >= 16, "a pattern has at least 16 bytes, found {}", bytes.len());
    let tag = u64::from_le_bytes(bytes[..8].try_into()?);
    if bytes == pattern(tag, offset, bytes.len()) {
        return Ok(tag);
    }
    if bytes.iter().all(|b| *b == 0) {
        return Ok(0);
    }
    let there = u64::from_le_bytes(bytes[8..16].try_into()?);
    bail!("block at {offset}: torn or misplaced (tag {tag}, says it belongs at {there})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pattern_names_its_place_and_tearing_is_seen() -> Result<()> {
        let mut block = pattern(7, 8192, 4096);
        assert_eq!(tag_of(&block, 8192)?, 7);
        assert!(tag_of(&block, 4096).is_err());
        block[4000] ^= 1;
        assert!(tag_of(&block, 8192).is_err());
        assert_eq!(tag_of(&[0; 4096], 0)?, 0);
        let (a, b) = (pattern(1, 0, 4096), pattern(2, 0, 4096));
        let torn: Vec<u8> = a[..512].iter().chain(&b[512..]).copied().collect();
        assert!(tag_of(&torn, 0).is_err());
        Ok(())
    }

    #[test]
    fn uris() -> Result<()> {
        let uri = Uri::parse("nbd://127.0.0.1:10809/demo/vol1")?;
        assert_eq!((uri.addr.as_str(), uri.export.as_str()), ("127.0.0.1:10809", "demo/vol1"));
        assert_eq!(uri.to_string(), "nbd://127.0.0.1:10809/demo/vol1");
        assert!(Uri::parse("nbd+unix:///x").is_err());
        assert!(Uri::parse("nbd://host/x").is_err());
        assert_eq!(
            uri.with_export("demo/vol1?token=7&conn=0").through_tls(Path::new("/tls")),
            "nbds://127.0.0.1:10809/demo/vol1%3Ftoken=7&conn=0?tls-certificates=/tls"
        );
        Ok(())
    }
}
