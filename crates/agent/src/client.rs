//! HTTP client for agents: one short request per connection, bounded in time and size, with or without TLS.
//!
//! Written by hand, without a client crate: both sides are this program, and a message is a status with a small JSON
//! body.
//!
//! PEER-N1  With TLS an agent asks a peer only where the certificate is that of the peer's name: another host of the
//!     cluster that listens at its address gets no request.

use crate::config::AgentConfig;
use crate::local;
use crate::proof::{self, Proof};
use crate::seams::{Dial, Wire};
use holdfast_tls::{Connector, Dialer, HttpTls, Tls};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::Instant;

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
                let socket = TcpStream::connect(address).await?;
                // What ends a handshake and the request go out in one round trip.
                socket.set_nodelay(true)?;
                Box::new(socket)
            })
        })
    })
}

/// Like `over_tcp`, with TLS over TCP. The other side must prove to be a host of this cluster; where `hosts` has the
/// address, it must be the host of that name (PEER-N1): another host of the cluster is not believed there.
pub fn over_tls(connector: Connector, hosts: BTreeMap<String, String>) -> Dial {
    let (plain, hosts) = (over_tcp(), Arc::new(hosts));
    Arc::new(move |address: String| {
        let (connector, plain, hosts) = (connector.clone(), plain.clone(), hosts.clone());
        Box::pin(async move {
            let wire = plain(address.clone()).await?;
            if address.starts_with('/') {
                return Ok(wire);
            }
            let (secured, peer) = connector.connect_host(wire).await.map_err(|error| {
                let hint = "where http.tls of the agent is off, ask it without a certificate";
                io::Error::new(error.kind(), format!("TLS: {error} ({hint})"))
            })?;
            match hosts.get(&address) {
                Some(host) if !peer.may_own(host) => Err(io::Error::new(
                    io::ErrorKind::PermissionDenied,
                    format!("found the certificate of host {}, expected that of {host}", peer.owners_text()),
                )),
                _ => Ok(Box::new(secured) as Box<dyn Wire>),
            }
        })
    })
}

/// How an agent with these settings reaches the agents of the other hosts: with TLS if its own door has it.
pub(crate) fn to_peers(config: &AgentConfig, tls: Option<&Tls>) -> Dial {
    let hosts = config.peers.0.iter().map(|(name, address)| (address.clone(), name.clone())).collect();
    match Dialer::from(tls).connector() {
        Some(connector) if config.http_tls() != HttpTls::Off => over_tls(connector, hosts),
        _ => over_tcp(),
    }
}

/// Asks the agent at `address` once; `body` makes it a POST, a command, which proves that its sender has the `token`.
/// The token itself is not sent (PROOF-P1 to PROOF-P3).
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

/// Like `ask`, over another network than TCP.
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
    let peer = Peer { dial, address, limit };
    let text = body.map(ToString::to_string);
    // The challenge is part of what comes before the command: its time counts as that of the connection.
    let by = Instant::now() + limit;
    let Some((token, body)) = token.zip(text.as_deref()) else {
        return Ok(peer.exchange(&peer.request(path, text.as_deref(), None), by).await?.0);
    };
    let challenge = peer.challenge(by).await?;
    let Some((authorization, proof)) = Proof::new(token, &challenge, path, body) else {
        return Err(peer.not_sent("found no challenge of an agent".into()));
    };
    let (answer, given) = peer.exchange(&peer.request(path, Some(body), Some(&authorization)), by).await?;
    // Whoever answers may refuse. That something was done is believed of an agent only (PROOF-P3).
    if (200..300).contains(&answer.code) && !proof.is_answered(token, answer.code, &answer.body, given.as_deref()) {
        let why =
            "found an answer without a proof of the token, expected one of an agent with the same http.token_file";
        return Err(peer.no_answer(why.into()));
    }
    Ok(answer)
}

/// An agent that is asked.
struct Peer<'a> {
    dial: &'a Dial,
    address: &'a str,
    limit: Duration,
}

impl Peer<'_> {
    fn not_sent(&self, why: String) -> ClientError {
        ClientError::NotSent { address: self.address.into(), why }
    }

    fn no_answer(&self, why: String) -> ClientError {
        ClientError::NoAnswer { address: self.address.into(), why }
    }

    /// Asks for a challenge. Whatever becomes of that, no command was sent.
    async fn challenge(&self, by: Instant) -> Result<String, ClientError> {
        let asked = tokio::time::timeout_at(by, self.exchange(&self.request(proof::PATH, None, None), by)).await;
        let answer = match asked {
            Ok(Ok((answer, _))) => answer,
            Ok(Err(ClientError::NotSent { why, .. } | ClientError::NoAnswer { why, .. })) => {
                return Err(self.not_sent(why));
            }
            Err(_) => return Err(self.not_sent(format!("no challenge within {} ms", self.limit.as_millis()))),
        };
        let value: serde_json::Value = serde_json::from_str(&answer.body).unwrap_or_default();
        let challenge = value["challenge"].as_str().map(str::to_string);
        challenge.ok_or_else(|| self.not_sent(format!("found {} and no challenge of an agent", answer.code)))
    }

    /// The bytes of a request: a POST where it has a body.
    fn request(&self, path: &str, body: Option<&str>, authorization: Option<&str>) -> String {
        let method = if body.is_some() { "POST" } else { "GET" };
        let host = if self.address.starts_with('/') { "localhost" } else { self.address };
        let mut request = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n");
        if let Some(body) = body {
            request += &format!("Content-Type: application/json\r\nContent-Length: {}\r\n", body.len());
        }
        if let Some(authorization) = authorization {
            request += &format!("Authorization: {authorization}\r\n");
        }
        request += "\r\n";
        request + body.unwrap_or_default()
    }

    /// Sends a request over a connection of its own, which is made by then, and returns the answer with its proof.
    /// Waits `limit` for the answer.
    async fn exchange(&self, request: &str, by: Instant) -> Result<(Answer, Option<String>), ClientError> {
        let connecting = tokio::time::timeout_at(by, (self.dial)(self.address.to_string())).await;
        let mut stream = match connecting {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return Err(self.not_sent(error.to_string())),
            Err(_) => return Err(self.not_sent(format!("no connection within {} ms", self.limit.as_millis()))),
        };
        let exchange = async {
            stream.write_all(request.as_bytes()).await?;
            // TLS may still hold a part of it.
            stream.flush().await?;
            let mut bytes = Vec::new();
            stream.take(ANSWER_BYTES_MAX).read_to_end(&mut bytes).await?;
            Ok::<_, std::io::Error>(bytes)
        };
        let bytes = match tokio::time::timeout(self.limit, exchange).await {
            Ok(Ok(bytes)) => bytes,
            Ok(Err(error)) => return Err(self.no_answer(error.to_string())),
            Err(_) => return Err(self.no_answer(format!("nothing within {} ms", self.limit.as_millis()))),
        };
        parse(&bytes).ok_or_else(|| self.no_answer("found no HTTP answer".into()))
    }
}

/// The answer, and the value of its header with the proof.
pub(crate) fn parse(bytes: &[u8]) -> Option<(Answer, Option<String>)> {
    let text = String::from_utf8_lossy(bytes);
    let (head, body) = text.split_once("\r\n\r\n")?;
    let mut lines = head.lines();
    let mut words = lines.next()?.split(' ');
    words.next().filter(|version| version.starts_with("HTTP/1."))?;
    let code = words.next()?.parse().ok()?;
    let headers: Vec<_> = lines.filter_map(|line| line.split_once(':')).collect();
    let header = |wanted: &str| {
        let found = headers.iter().find(|(name, _)| name.eq_ignore_ascii_case(wanted));
        found.map(|(_, value)| value.trim())
    };
    // A truncated answer is not an answer.
    let length: usize = header("content-length").map_or(Some(body.len()), |value| value.parse().ok())?;
    let proof = header(proof::HEADER).map(str::to_string);
    (body.len() >= length).then(|| (Answer { code, body: body.to_string() }, proof))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Somebody who listens at the agent's port: plays back what an agent would answer, and keeps what it receives.
    async fn impostor() -> (String, tokio::task::JoinHandle<Vec<String>>) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let serving = tokio::spawn(async move {
            let mut heard = Vec::new();
            for body in [r#"{"challenge":"12ab"}"#, r#"{"message":"db2 takes over"}"#] {
                let (mut socket, _) = listener.accept().await.unwrap();
                let mut bytes = vec![0; 4096];
                let mut len = 0;
                while !String::from_utf8_lossy(&bytes[..len]).contains("\r\n\r\n") {
                    len += socket.read(&mut bytes[len..]).await.unwrap();
                }
                heard.push(String::from_utf8_lossy(&bytes[..len]).into_owned());
                let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
                socket.write_all(answer.as_bytes()).await.unwrap();
                socket.shutdown().await.unwrap();
                // A socket that is closed with something unread in it takes its answer back.
                let _ = socket.read_to_end(&mut Vec::new()).await;
            }
            heard
        });
        (address, serving)
    }

    /// PROOF-P3: any user of a host may listen at the agent's port while no agent does.
    #[tokio::test]
    async fn an_impostor_gets_no_token_and_is_not_believed() {
        let (address, serving) = impostor().await;
        let body = serde_json::json!({ "from": "db1" });
        let limit = Duration::from_secs(20);
        let error = ask(&address, "/claim", Some(&body), Some("very secret word"), limit).await.unwrap_err();
        assert!(matches!(&error, ClientError::NoAnswer { why, .. } if why.contains("without a proof")), "{error}");
        let heard = serving.await.unwrap();
        assert!(heard[0].starts_with("GET /challenge ") && heard[1].starts_with("POST /claim "), "{heard:?}");
        assert!(heard[1].contains("Authorization: Holdfast 12ab "), "{heard:?}");
        assert!(heard.iter().all(|text| !text.contains("secret")), "{heard:?}");
    }

    #[test]
    fn answers_are_whole_or_none() {
        let (answer, none) = parse(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 2\r\n\r\nno").unwrap();
        assert_eq!(none, None);
        assert_eq!((answer.code, answer.words().as_str()), (503, "no"));
        assert_eq!(parse(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nno"), None);
        assert_eq!(parse(b"SSH-2.0\r\n\r\n"), None);
        let bytes = b"HTTP/1.1 412 X\r\nHoldfast-Proof: 12ab\r\n\r\n{\"message\":\"not now\"}";
        let (refusal, proof) = parse(bytes).unwrap();
        assert_eq!((refusal.words().as_str(), proof.as_deref()), ("not now", Some("12ab")));
    }
}
