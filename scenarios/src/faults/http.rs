//! The part of HTTP/1.1 that a transparent proxy needs: finding the end of a message.

use anyhow::{Context, Result, bail};
use std::io::{BufRead, Read, Write};
use std::net::TcpStream;

const HEAD_BYTES_MAX: usize = 64 << 10;
const BODY_BYTES_MAX: u64 = 256 << 20;

/// A request or a reply, unchanged.
#[derive(Clone, Debug)]
pub struct Message {
    /// First line and headers, with the empty line.
    pub head: Vec<u8>,
    /// Header names in lower case.
    headers: Vec<(String, String)>,
    first: String,
    /// The body unchanged, with chunk sizes if it is chunked.
    pub body: Vec<u8>,
}

impl Message {
    /// `GET`
    pub fn method(&self) -> &str {
        self.first.split(' ').next().unwrap_or_default()
    }

    /// Path and query.
    pub fn target(&self) -> &str {
        self.first.split(' ').nth(1).unwrap_or_default()
    }

    /// The value of a header, by its name in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// Whether the connection closes after it.
    pub fn closes(&self) -> bool {
        self.header("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"))
    }

    /// The whole message.
    pub fn bytes(&self) -> Vec<u8> {
        [self.head.as_slice(), &self.body].concat()
    }

    /// Sends the whole message.
    pub fn send(&self, mut to: &TcpStream) -> Result<()> {
        to.write_all(&self.bytes())?;
        Ok(())
    }

    fn status(&self) -> u16 {
        self.target().parse().unwrap_or(0)
    }
}

/// The next request; `None` at the end of the connection. Answers `100 Continue` if the client waits for that.
pub fn read_request(from: &mut impl BufRead, mut client: &TcpStream) -> Result<Option<Message>> {
    let Some(mut message) = read_head(from)? else { return Ok(None) };
    if message.header("expect").is_some() {
        client.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
    }
    read_body(from, &mut message, false)?;
    Ok(Some(message))
}

/// The answer to a request of `method`.
pub fn read_reply(from: &mut impl BufRead, method: &str) -> Result<Message> {
    loop {
        let mut message = read_head(from)?.context("the server closed the connection")?;
        if message.status() / 100 == 1 {
            continue;
        }
        if method != "HEAD" && !matches!(message.status(), 204 | 304) {
            let until_close = message.closes();
            read_body(from, &mut message, until_close)?;
        }
        return Ok(message);
    }
}

fn read_head(from: &mut impl BufRead) -> Result<Option<Message>> {
    let mut head = Vec::new();
    loop {
        let before = head.len();
        let read = from.by_ref().take((HEAD_BYTES_MAX - before) as u64).read_until(b'\n', &mut head)?;
        if read == 0 {
            if before == 0 {
                return Ok(None);
            }
            bail!("a head that ends early or is longer than {HEAD_BYTES_MAX} bytes");
        }
        if head.ends_with(b"\r\n\r\n") {
            break;
        }
    }
    let text = String::from_utf8_lossy(&head);
    let mut lines = text.lines();
    let first = lines.next().unwrap_or_default().to_owned();
    let headers = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    Ok(Some(Message { headers, first, body: Vec::new(), head }))
}

fn read_body(from: &mut impl BufRead, message: &mut Message, until_close: bool) -> Result<()> {
    let chunked =
        message.header("transfer-encoding").is_some_and(|value| value.to_ascii_lowercase().contains("chunked"));
    if chunked {
        return read_chunks(from, &mut message.body);
    }
    match message.header("content-length") {
        Some(text) => {
            let len: u64 = text.parse().with_context(|| format!("content-length: {text}"))?;
            anyhow::ensure!(len <= BODY_BYTES_MAX, "a body of {len} bytes");
            let read = from.by_ref().take(len).read_to_end(&mut message.body)?;
            anyhow::ensure!(read as u64 == len, "a body that ends after {read} of {len} bytes");
        }
        None if until_close => {
            from.by_ref().take(BODY_BYTES_MAX).read_to_end(&mut message.body)?;
        }
        None => {}
    }
    Ok(())
}

fn read_chunks(from: &mut impl BufRead, body: &mut Vec<u8>) -> Result<()> {
    loop {
        let begun = body.len();
        anyhow::ensure!(from.by_ref().take(1024).read_until(b'\n', body)? > 0, "chunks that end early");
        let line = String::from_utf8_lossy(&body[begun..]).trim().to_owned();
        let size = line.split(';').next().unwrap_or_default();
        let size = u64::from_str_radix(size, 16).with_context(|| format!("size of a chunk: {line}"))?;
        anyhow::ensure!(body.len() as u64 + size <= BODY_BYTES_MAX, "too many chunks");
        if size == 0 {
            // Trailers, up to the empty line.
            loop {
                let begun = body.len();
                anyhow::ensure!(from.by_ref().take(1024).read_until(b'\n', body)? > 0, "trailers that end early");
                if &body[begun..] == b"\r\n" {
                    return Ok(());
                }
            }
        }
        let read = from.by_ref().take(size + 2).read_to_end(body)?;
        anyhow::ensure!(read as u64 == size + 2, "a chunk that ends early");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_end_where_they_say() -> Result<()> {
        let wire = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabcHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\
                    2\r\nxy\r\n0\r\n\r\nHTTP/1.1 404 No\r\ncontent-length: 9\r\n\r\nHTTP/1.1 204 No\r\n\r\n";
        let mut from = wire.as_bytes();
        assert_eq!(read_reply(&mut from, "GET")?.body, b"abc");
        let chunks = read_reply(&mut from, "GET")?;
        assert_eq!(chunks.body, b"2\r\nxy\r\n0\r\n\r\n");
        assert_eq!(read_reply(&mut from, "HEAD")?.status(), 404);
        assert_eq!(read_reply(&mut from, "DELETE")?.status(), 204);
        assert!(read_head(&mut from)?.is_none());
        assert!(read_reply(&mut "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab".as_bytes(), "GET").is_err());
        Ok(())
    }
}
