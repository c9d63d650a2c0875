//! A server that wraps and opens as the transit engine of HashiCorp Vault does. It keeps what it has wrapped in memory,
//! and hands out numbers: what it was not asked to wrap, it cannot open.

use crate::faults::http::{Message, read_request};
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::io::{BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// What a caller has to show.
pub const TOKEN: &str = "hvs.of-a-scenario";

const ENCRYPT: &str = "/v1/transit/encrypt/holdfast";
const DECRYPT: &str = "/v1/transit/decrypt/holdfast";

/// The server. Ends when it is dropped.
#[derive(Debug)]
pub struct Vault {
    address: String,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    /// Texts that it has wrapped; the number of one is its place, counted from 1.
    wrapped: Mutex<Vec<String>>,
    opened: AtomicU64,
    ended: AtomicBool,
}

impl Vault {
    /// Starts it on a free port of loopback. Fails when no port is free.
    pub fn start() -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).context("a port for Vault")?;
        let address = listener.local_addr()?.to_string();
        let shared = Arc::new(Shared::default());
        let accepting = shared.clone();
        std::thread::spawn(move || {
            for client in listener.incoming() {
                if accepting.ended.load(Ordering::Relaxed) {
                    return;
                }
                let Ok(client) = client else { continue };
                let shared = accepting.clone();
                std::thread::spawn(move || {
                    // A caller may leave at any time.
                    let _ = serve(&client, &shared);
                });
            }
        });
        Ok(Self { address, shared })
    }

    /// URL of its key, for the settings of a gateway.
    pub fn key(&self) -> String {
        format!("http://{}/v1/transit/keys/holdfast", self.address)
    }

    /// How often it has opened an envelope.
    pub fn opened(&self) -> u64 {
        self.shared.opened.load(Ordering::Relaxed)
    }
}

impl Drop for Vault {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Relaxed);
        // Wakes the thread that accepts.
        let _ = TcpStream::connect(&self.address);
    }
}

fn serve(client: &TcpStream, shared: &Shared) -> Result<()> {
    let mut from = BufReader::new(client.try_clone()?);
    while let Some(asked) = read_request(&mut from, client)? {
        let (status, body) = shared.answer(&asked);
        let body = body.to_string();
        let head = format!(
            "HTTP/1.1 {status} Vault\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        let mut to = client;
        to.write_all((head + &body).as_bytes())?;
        if asked.closes() {
            break;
        }
    }
    Ok(())
}

impl Shared {
    fn answer(&self, asked: &Message) -> (u16, Value) {
        let no = |status: u16, why: &str| (status, json!({ "errors": [why] }));
        if asked.header("x-vault-token") != Some(TOKEN) {
            return no(403, "permission denied");
        }
        let body: Value = serde_json::from_slice(&asked.body).unwrap_or_default();
        let text = |name: &str| body[name].as_str().unwrap_or_default().to_owned();
        let mut wrapped = self.wrapped.lock().unwrap_or_else(PoisonError::into_inner);
        match (asked.method(), asked.target()) {
            ("POST", ENCRYPT) => {
                wrapped.push(text("plaintext"));
                (200, json!({ "data": { "ciphertext": format!("vault:v1:{}", wrapped.len()) } }))
            }
            ("POST", DECRYPT) => {
                let number = text("ciphertext").strip_prefix("vault:v1:").and_then(|number| number.parse().ok());
                match number.and_then(|number: usize| wrapped.get(number.checked_sub(1)?)) {
                    Some(plain) => {
                        self.opened.fetch_add(1, Ordering::Relaxed);
                        (200, json!({ "data": { "plaintext": plain } }))
                    }
                    None => no(400, "invalid ciphertext"),
                }
            }
            _ => no(404, "no handler for route"),
        }
    }
}
