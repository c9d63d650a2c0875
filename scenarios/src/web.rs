//! One page over HTTP, as text.

use anyhow::{Context, Result};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// The whole answer to a GET: status line, headers and body. Fails when there is no answer from `address` (HOST:PORT)
/// within 10 s.
pub fn page(address: &str, path: &str) -> Result<String> {
    let mut stream = TcpStream::connect(address).with_context(|| format!("{path} at {address:?}"))?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").as_bytes())?;
    let mut page = String::new();
    stream.read_to_string(&mut page)?;
    Ok(page)
}
