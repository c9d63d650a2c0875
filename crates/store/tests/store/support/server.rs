//! An S3 server that answers as the test says, byte by byte, and records the requests.

use bytes::Bytes;
use holdfast_store::{ObjectStore, StoreOptions, open};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

#[derive(Clone, Debug)]
pub struct Request {
    /// `PUT /bucket/key`
    pub line: String,
    /// In lower case.
    pub headers: Vec<(String, String)>,
    pub body: Bytes,
}

impl Request {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }
}

pub enum Answer {
    /// Status, headers and body; the length is that of the body.
    Send(u16, &'static str, Bytes),
    /// A body that ends after so many of its bytes.
    Cut(Bytes, usize),
    /// The connection closes without an answer.
    Close,
    /// No answer, ever.
    Hang,
}

/// Answers requests in the order of a script, and records them.
pub struct Server {
    asked: Arc<Mutex<Vec<Request>>>,
    pub options: StoreOptions,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    pub async fn start(script: impl IntoIterator<Item = Answer>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let options = super::options(listener.local_addr().expect("address"));
        let asked = Arc::new(Mutex::new(Vec::new()));
        let script = Arc::new(Mutex::new(script.into_iter().collect::<VecDeque<_>>()));
        let kept = asked.clone();
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, script.clone(), kept.clone()));
            }
        });
        Self { asked, options, task }
    }

    pub fn store(&self) -> Arc<dyn ObjectStore> {
        open("s3://bucket/pre", &self.options).expect("open")
    }

    pub fn asked(&self) -> Vec<Request> {
        self.asked.lock().expect("lock").clone()
    }

    pub fn lines(&self) -> Vec<String> {
        self.asked().into_iter().map(|request| request.line).collect()
    }
}

async fn serve(mut stream: TcpStream, script: Arc<Mutex<VecDeque<Answer>>>, asked: Arc<Mutex<Vec<Request>>>) {
    while let Some(request) = receive(&mut stream).await {
        let head = request.line.starts_with("HEAD");
        asked.lock().expect("lock").push(request);
        let answer = script.lock().expect("lock").pop_front().expect("the script covers every request");
        let text = |status: u16, headers: &str, len: usize| {
            format!("HTTP/1.1 {status} X\r\ncontent-length: {len}\r\n{headers}\r\n")
        };
        match answer {
            Answer::Send(status, headers, body) => {
                let mut whole = text(status, headers, body.len()).into_bytes();
                if !head {
                    whole.extend_from_slice(&body);
                }
                let _ = stream.write_all(&whole).await;
            }
            Answer::Cut(body, at) => {
                let mut whole = text(200, "etag: \"1\"\r\n", body.len()).into_bytes();
                whole.extend_from_slice(&body[..at]);
                let _ = stream.write_all(&whole).await;
                return;
            }
            Answer::Close => return,
            Answer::Hang => std::future::pending::<()>().await,
        }
    }
}

/// The next request of a connection; `None` at its end.
pub async fn receive(stream: &mut TcpStream) -> Option<Request> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    let head = String::from_utf8(head).expect("text");
    let mut lines = head.lines();
    let line = lines.next()?.trim_end_matches(" HTTP/1.1").to_owned();
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_lowercase(), value.trim().to_owned()))
        .collect();
    let request = Request { line, headers, body: Bytes::new() };
    if request.header("expect").is_some() {
        stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await.ok()?;
    }
    let len = request.header("content-length").and_then(|len| len.parse().ok()).unwrap_or(0);
    let mut body = vec![0; len];
    stream.read_exact(&mut body).await.ok()?;
    Some(Request { body: body.into(), ..request })
}

pub fn ok(body: Bytes) -> Answer {
    Answer::Send(200, "etag: \"1\"\r\n", body)
}

pub fn error(status: u16, code: &'static str) -> Answer {
    let body = format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>words</Message></Error>");
    Answer::Send(status, "content-type: application/xml\r\ndate: Tue, 01 Jan 2030 00:00:00 GMT\r\n", body.into())
}
