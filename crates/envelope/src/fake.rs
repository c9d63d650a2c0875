//! A small HTTP server on loopback for tests: one request for each connection.

use std::collections::BTreeMap;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A request.
pub(crate) struct Asked {
    /// Its first line.
    pub line: String,
    /// Its headers, with names in lower case.
    pub headers: BTreeMap<String, String>,
    /// Its body.
    pub body: serde_json::Value,
}

impl Asked {
    /// A header, or nothing.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }

    /// A text at the top of the body, or nothing.
    pub fn text(&self, name: &str) -> &str {
        self.body.get(name).and_then(serde_json::Value::as_str).unwrap_or_default()
    }
}

/// Answers each request with a status and a body, as long as the test's runtime lives. Returns `http://HOST:PORT`.
pub(crate) async fn serve(answer: impl Fn(&Asked) -> (u16, String) + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    tokio::spawn(async move {
        while let Ok((mut connection, _)) = listener.accept().await {
            let Some(asked) = read(&mut connection).await else { continue };
            let (status, body) = answer(&asked);
            let head = format!(
                "HTTP/1.1 {status} X\r\ncontent-type: application/x-amz-json-1.1\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
                body.len()
            );
            let _ = connection.write_all((head + &body).as_bytes()).await;
            let _ = connection.shutdown().await;
        }
    });
    format!("http://{address}")
}

async fn read(connection: &mut TcpStream) -> Option<Asked> {
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(at) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break at;
        }
        if connection.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8(bytes[..end].to_vec()).ok()?;
    let mut lines = head.split("\r\n");
    let line = lines.next()?.to_string();
    let headers: BTreeMap<String, String> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_string()))
        .collect();
    let len: usize = headers.get("content-length")?.parse().ok()?;
    while bytes.len() < end + 4 + len {
        if connection.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    }
    let body = serde_json::from_slice(&bytes[end + 4..]).ok()?;
    Some(Asked { line, headers, body })
}
