//! Opens and makes an envelope by Vault's transit engine: one POST with the token, one answer in JSON.

use crate::error::{EnvelopeError, Wrong};
use crate::keeper::VaultKey;
use crate::shape::VaultPlace;
use holdfast_store::service::{Answer, ServiceError, from_base64, post, shown, to_base64};
use holdfast_store::{Secret, StoreOptions, StoreUrlError};
use holdfast_tls::files::{SECRET_BYTES_MAX, SecretError, read_secret};
use serde::Deserialize;
use std::io;
use zeroize::Zeroizing;

/// Advice if Vault did not answer.
const UNREACHED: &str =
    "expected Vault there: is it running, and does key.vault_ca name the authority of its certificate?";

/// What Vault answers. All else in it is of no use here.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Reply {
    data: Data,
    errors: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Data {
    plaintext: String,
    ciphertext: String,
}

/// # Errors
/// [`EnvelopeError`].
pub(crate) async fn open(key: &VaultKey, wrapped: &str) -> Result<Zeroizing<Vec<u8>>, EnvelopeError> {
    let url = VaultPlace::of(key)?.decrypt;
    let data = ask(key, &url, &serde_json::json!({ "ciphertext": wrapped })).await?;
    let text = Zeroizing::new(data.plaintext);
    match from_base64(&text).map(Zeroizing::new) {
        Some(plain) if !plain.is_empty() => Ok(plain),
        _ => Err(unexpected(url, 200, "an answer without a plaintext in base64")),
    }
}

/// # Errors
/// [`EnvelopeError`].
pub(crate) async fn make(key: &VaultKey, plain: &[u8; 32]) -> Result<String, EnvelopeError> {
    let url = VaultPlace::of(key)?.encrypt;
    let text = Zeroizing::new(to_base64(plain));
    let data = ask(key, &url, &serde_json::json!({ "plaintext": text.as_str() })).await?;
    if data.ciphertext.starts_with("vault:v") {
        return Ok(data.ciphertext + "\n");
    }
    Err(unexpected(url, 200, "an answer without a ciphertext"))
}

async fn ask(key: &VaultKey, url: &str, body: &serde_json::Value) -> Result<Data, EnvelopeError> {
    let headers = [("x-vault-token", token(key)?), ("x-vault-request", Secret::new("true"))];
    // The system's certificates, or the named ones: not those that AWS's variables name.
    let options = StoreOptions {
        ca_bundle: key.ca.clone(),
        ..StoreOptions::default().filled_from(|name| std::env::var(name).ok())
    };
    let answer = post(url, &headers, body.to_string().into_bytes(), &options).await;
    judge(url, answer.map_err(unanswered)?)
}

fn unanswered(source: ServiceError) -> EnvelopeError {
    match source {
        // Its text names the variable of a store's certificates.
        ServiceError::Options(StoreUrlError::CaBundle { path, found }) => {
            let found = format!("{}: {found}", path.display());
            EnvelopeError::Wrong(Wrong { setting: "vault_ca", found, expected: "a file of certificates (PEM)" })
        }
        source => EnvelopeError::Service { source: Box::new(source), next: UNREACHED },
    }
}

fn token(key: &VaultKey) -> Result<Secret, EnvelopeError> {
    let failed = |source| EnvelopeError::Token { path: key.token_file.clone(), source };
    let bytes = read_secret(&key.token_file, SECRET_BYTES_MAX).map(Zeroizing::new).map_err(failed)?;
    let text = std::str::from_utf8(&bytes).map(str::trim).unwrap_or_default();
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_graphic()) {
        let found = "found no token: nothing, several words, or bytes that are no text";
        return Err(failed(SecretError::Io(io::Error::new(io::ErrorKind::InvalidData, found))));
    }
    Ok(Secret::new(text))
}

fn unexpected(url: String, status: u16, why: &str) -> EnvelopeError {
    EnvelopeError::Vault { url, status, why: why.into(), next: "expected Vault's transit engine at this URL" }
}

/// The meaning of an answer. A message of the JSON parser is not shown: it may have a part of the key in it
/// (ENVELOPE-V3).
fn judge(url: &str, answer: Answer) -> Result<Data, EnvelopeError> {
    let body = Zeroizing::new(answer.body);
    let reply: Option<Reply> = serde_json::from_slice(&body).ok();
    if answer.status == 200 {
        return reply.map(|reply| reply.data).ok_or_else(|| unexpected(url.into(), 200, "no JSON of Vault"));
    }
    let why = shown(&reply.map(|reply| reply.errors.join("; ")).unwrap_or_default());
    let why = if why.is_empty() { "no words".to_string() } else { why };
    let next = match answer.status {
        400 => {
            "was the envelope made by another key of Vault, or by a version that is not allowed any more (min_decryption_version), or is it damaged?"
        }
        403 => "the token has ended, or its policy does not have `update` on this path",
        404 => "expected the mount of a transit engine, and a key of it, in key.vault",
        307 | 429 | 472 | 473 | 503 => "Vault is sealed, or on standby: unseal it, or name the active one",
        _ => "expected status 200: see Vault's own log",
    };
    Err(EnvelopeError::Vault { url: url.into(), status: answer.status, why, next })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(status: u16, body: &str) -> Result<Data, String> {
        judge("URL", Answer { status, body: body.as_bytes().to_vec() }).map_err(|error| error.to_string())
    }

    #[test]
    fn an_answer_is_data_or_says_what_to_do() {
        let data = judged(200, r#"{"request_id":"1","data":{"plaintext":"AQID","key_version":1}}"#).ok();
        assert_eq!(data.expect("data").plaintext, "AQID");
        for (status, body, expected) in [
            (
                403,
                r#"{"errors":["permission denied"]}"#,
                "URL: found status 403 (permission denied); the token has ended",
            ),
            (404, r#"{"errors":[]}"#, "status 404 (no words); expected the mount of a transit engine"),
            (400, r#"{"errors":["invalid ciphertext"]}"#, "(invalid ciphertext); was the envelope made by another key"),
            (503, "<html>", "status 503 (no words); Vault is sealed"),
            // A standby sends its clients to the active one; a token follows no redirection.
            (307, "", "or on standby: unseal it, or name the active one"),
            (500, "", "see Vault's own log"),
            (200, "<html>", "found status 200 (no JSON of Vault); expected Vault's transit engine"),
        ] {
            let told = judged(status, body).map(|_| ()).expect_err("refused");
            assert!(told.contains(expected), "expected {expected:?} in {told:?}");
        }
        // ENVELOPE-V3.
        let told = judged(200, r#"{"data":"c2VjcmV0"}"#).map(|_| ()).expect_err("of another form");
        assert!(!told.contains("c2VjcmV0"), "{told}");
    }
}
