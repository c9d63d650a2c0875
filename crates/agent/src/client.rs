//! HTTP client for other agents: one short request per connection, bounded in time and size.
//!
//! Written by hand, without a client crate: both sides are this program, and a message is a status with a small JSON body.

use crate::local;
use crate::seams::{Dial, Wire};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Maximum length of an answer in bytes: a whole history fits.
const ANSWER_BYTES_MAX: u64 = 4 << 20;

/// An agent's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The HTTP status.
    pub code: u16,
    /// The body.
    pub body: String,
}

impl Answer {
    /// The text of a refusal, or else the whole body.
    pub fn words(&self) -> String {
        let value: Option<serde_json::Value> = serde_json::from_str(&self.body).ok();
        let words = value.and_then(|value| value["message"].as_str().map(str::to_string));
        words.unwrap_or_else(|| self.body.trim().to_string())
    }
}

/// Reason why there was no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// No connection: nothing happened.
    #[error("{address}: {why}")]
    NotSent {
        /// The address.
        address: String,
        /// The reason.
        why: String,
    },
    /// The request was sent; its outcome is unknown (R12).
    #[error("{address}: no answer: {why}")]
    NoAnswer {
        /// The address.
        address: String,
        /// The reason.
        why: String,
    },
}

/// Connects over TCP, or to a Unix socket if the address is an absolute path.
pub fn over_tcp() -> Dial {
    Arc::new(|address: String| {
        Box::pin(async move {
            Ok(if address.starts_with('/') {
                Box::new(local::connect(Path::new(&address)).await?) as Box<dyn Wire>
            } else {
                Box::new(TcpStream::connect(address).await?)
            })
        })
    })
}

/// Asks the agent at `address` once; `body` makes it a POST.
///
/// # Errors
/// [`ClientError`]. A refusal is an answer, not an error.
pub async fn ask(
    address: &str,
    path: &str,
    body: Option<&serde_json::Value>,
    token: Option<&str>,
    limit: Duration,
) -> Result<Answer, ClientError> {
    ask_over(&over_tcp(), address, path, body, token, limit).await
}

/// The same over another network than TCP.
///
/// # Errors
/// As [`ask`].
pub async fn ask_over(
    dial: &Dial,
    address: &str,
    path: &str,
    body: Option<&serde_json::Value>,
    token: Option<&str>,
    limit: Duration,
) -> Result<Answer, ClientError> {
    let not_sent = |why: String| ClientError::NotSent { address: address.into(), why };
    let no_answer = |why: String| ClientError::NoAnswer { address: address.into(), why };
    let connecting = tokio::time::timeout(limit, dial(address.to_string())).await;
    let mut stream = match connecting {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return Err(not_sent(error.to_string())),
        Err(_) => return Err(not_sent(format!("no connection within {} ms", limit.as_millis()))),
    };
    let text = body.map(ToString::to_string).unwrap_or_default();
    let method = if body.is_some() { "POST" } else { "GET" };
    let host = if address.starts_with('/') { "localhost" } else { address };
    let mut request = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n");
    if body.is_some() {
        request += &format!("Content-Type: application/json\r\nContent-Length: {}\r\n", text.len());
    }
    if let Some(token) = token {
        request += &format!("Authorization: Bearer {token}\r\n");
    }
    request += "\r\n";
    request += &text;
    let exchange = async {
        stream.write_all(request.as_bytes()).await?;
        let mut bytes = Vec::new();
        stream.take(ANSWER_BYTES_MAX).read_to_end(&mut bytes).await?;
        Ok::<_, std::io::Error>(bytes)
    };
    let bytes = match tokio::time::timeout(limit, exchange).await {
        Ok(Ok(bytes)) => bytes,
        Ok(Err(error)) => return Err(no_answer(error.to_string())),
        Err(_) => return Err(no_answer(format!("nothing within {} ms", limit.as_millis()))),
    };
    parse(&bytes).ok_or_else(|| no_answer("found no HTTP answer".into()))
}

fn parse(bytes: &[u8]) -> Option<Answer> {
    let text = String::from_utf8_lossy(bytes);
    let (head, body) = text.split_once("\r\n\r\n")?;
    let mut lines = head.lines();
    let mut words = lines.next()?.split(' ');
    words.next().filter(|version| version.starts_with("HTTP/1."))?;
    let code = words.next()?.parse().ok()?;
    // A truncated answer is not an answer.
    let length =
        lines.filter_map(|line| line.split_once(':')).find(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    let length: usize = length.map_or(Some(body.len()), |(_, value)| value.trim().parse().ok())?;
    (body.len() >= length).then(|| Answer { code, body: body.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_whole_or_none() {
        let answer = parse(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 2\r\n\r\nno").unwrap();
        assert_eq!((answer.code, answer.words().as_str()), (503, "no"));
        assert_eq!(parse(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nno"), None);
        assert_eq!(parse(b"SSH-2.0\r\n\r\n"), None);
        let refusal = parse(b"HTTP/1.1 412 X\r\n\r\n{\"message\":\"not now\"}").unwrap();
        assert_eq!(refusal.words(), "not now");
    }
}
