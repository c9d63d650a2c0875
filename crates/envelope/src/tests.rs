//! The contract with each keeper, against a small server of the same form.

use super::*;
use crate::fake::{Asked, serve};
use holdfast_store::service::{from_base64, to_base64};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

const KEY: [u8; 32] = *b"0123456789abcdef0123456789ABCDEF";
const TOKEN: &str = "hvs.token";
const ARN: &str = "arn:aws:kms:eu-central-1:111122223333:key/1234";

fn secret(path: &Path, text: &str) {
    std::fs::write(path, text).expect("written");
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).expect("a mode");
}

/// Wraps by turning a text round.
fn turned(text: &str) -> String {
    text.chars().rev().collect()
}

fn vault(asked: &Asked) -> (u16, String) {
    let no = |status, why: &str| (status, serde_json::json!({ "errors": [why] }).to_string());
    if asked.header("x-vault-token") != TOKEN {
        return no(403, "permission denied");
    }
    let data = match asked.line.as_str() {
        "POST /v1/transit/encrypt/holdfast HTTP/1.1" => {
            serde_json::json!({ "ciphertext": format!("vault:v1:{}", turned(asked.text("plaintext"))) })
        }
        "POST /v1/transit/decrypt/holdfast HTTP/1.1" => match asked.text("ciphertext").strip_prefix("vault:v1:") {
            Some(wrapped) => serde_json::json!({ "plaintext": turned(wrapped) }),
            None => return no(400, "invalid ciphertext"),
        },
        _ => return no(404, "no handler for route"),
    };
    (200, serde_json::json!({ "request_id": "1", "data": data }).to_string())
}

fn kms(asked: &Asked) -> (u16, String) {
    let no = |code: &str| (400, serde_json::json!({ "__type": code, "message": "not you" }).to_string());
    let signed = asked.header("authorization");
    if !signed.starts_with("AWS4-HMAC-SHA256 Credential=ID/") || !signed.contains("/eu-central-1/kms/aws4_request") {
        return no("AccessDeniedException");
    }
    let context = asked.body.get("EncryptionContext").cloned().unwrap_or_default();
    if context != serde_json::json!({ "holdfast": "cluster-key" }) || asked.text("KeyId") != ARN {
        return no("InvalidCiphertextException");
    }
    let answer = match asked.header("x-amz-target") {
        "TrentService.Encrypt" => serde_json::json!({ "CiphertextBlob": to_base64(&wrap(asked.text("Plaintext"))) }),
        "TrentService.Decrypt" => {
            let wrapped = from_base64(asked.text("CiphertextBlob")).unwrap_or_default();
            let plain = wrapped.strip_prefix(b"kms").map(<[u8]>::to_vec).unwrap_or_default();
            serde_json::json!({ "KeyId": ARN, "Plaintext": String::from_utf8(plain).expect("text") })
        }
        _ => return no("UnknownOperationException"),
    };
    (200, answer.to_string())
}

fn wrap(plain: &str) -> Vec<u8> {
    [b"kms", plain.as_bytes()].concat()
}

struct Lab {
    dir: tempfile::TempDir,
}

impl Lab {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        secret(&dir.path().join("token"), &format!("{TOKEN}\n"));
        let keys = "[default]\naws_access_key_id = ID\naws_secret_access_key = SECRET\n";
        secret(&dir.path().join("keys"), keys);
        Self { dir }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn by(&self, keeper: Keeper) -> Envelope {
        Envelope { file: Some(self.at("envelope")), keeper }
    }

    fn by_vault(&self, base: &str, name: &str) -> Envelope {
        let url = format!("{base}/v1/transit/keys/{name}");
        self.by(Keeper::Vault(VaultKey { url, token_file: self.at("token"), ca: None }))
    }

    fn by_kms(&self, endpoint: &str, arn: &str) -> Envelope {
        let (endpoint, credentials_file) = (Some(endpoint.to_string()), Some(self.at("keys")));
        self.by(Keeper::Kms(KmsKey { arn: arn.to_string(), endpoint, credentials_file }))
    }

    /// Makes an envelope, and opens it.
    async fn there_and_back(&self, envelope: &Envelope) -> Result<Vec<u8>, String> {
        let made = envelope.make(&KEY).await.map_err(|error| error.to_string())?;
        assert!(made.ends_with('\n') && !made.contains(std::str::from_utf8(&KEY).expect("text")), "{made}");
        std::fs::write(self.at("envelope"), made).expect("written");
        envelope.open().await.map(|key| key.to_vec()).map_err(|error| error.to_string())
    }
}

#[tokio::test]
async fn vault_wraps_and_opens() {
    let (lab, base) = (Lab::new(), serve(vault).await);
    let envelope = lab.by_vault(&base, "holdfast");
    assert_eq!(lab.there_and_back(&envelope).await, Ok(KEY.to_vec()));
    // Another key of Vault, another text, another token, a token for everybody.
    let told = lab.by_vault(&base, "other").open().await.expect_err("no such key").to_string();
    assert!(told.contains("status 404 (no handler for route); expected the mount"), "{told}");
    std::fs::write(lab.at("envelope"), "vault:v2:abc").expect("written");
    let told = envelope.open().await.expect_err("another version").to_string();
    assert!(told.contains("status 400 (invalid ciphertext)"), "{told}");
    secret(&lab.at("token"), "other");
    let told = envelope.open().await.expect_err("another token").to_string();
    assert!(told.contains("status 403 (permission denied); the token has ended"), "{told}");
    std::fs::set_permissions(lab.at("token"), std::fs::Permissions::from_mode(0o644)).expect("a mode");
    let told = envelope.open().await.expect_err("exposed").to_string();
    assert!(told.contains("token: found mode 0644"), "{told}");
    std::fs::remove_file(lab.at("envelope")).expect("removed");
    let told = envelope.open().await.expect_err("no envelope").to_string();
    assert!(told.contains("envelope: No such file") && told.ends_with(MISSING), "{told}");
    // A second envelope would have another key in it.
    std::fs::create_dir(lab.at("envelope")).expect("a folder in its place");
    let told = envelope.open().await.expect_err("not read").to_string();
    assert!(told.ends_with(KEEP), "{told}");
}

#[tokio::test]
async fn kms_wraps_and_opens() {
    let (lab, endpoint) = (Lab::new(), serve(kms).await);
    let envelope = lab.by_kms(&endpoint, ARN);
    assert_eq!(lab.there_and_back(&envelope).await, Ok(KEY.to_vec()));
    let told = lab.by_kms(&endpoint, &format!("{ARN}5")).open().await.expect_err("another key").to_string();
    assert!(told.contains("refused: InvalidCiphertextException: not you; expected kms:Decrypt"), "{told}");
    secret(&lab.at("keys"), "[default]\naws_access_key_id = ID\n");
    let told = envelope.open().await.expect_err("half a pair").to_string();
    assert!(told.contains("found no aws_secret_access_key") && told.contains("store.credentials_file"), "{told}");
}

#[tokio::test]
async fn a_service_that_is_away_is_told_with_what_to_do() {
    let lab = Lab::new();
    std::fs::write(lab.at("envelope"), "vault:v1:abc").expect("written");
    // A port that was free a moment ago.
    let free = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let base = format!("http://{}", free.local_addr().expect("bound"));
    drop(free);
    let told = lab.by_vault(&base, "holdfast").open().await.expect_err("away").to_string();
    assert!(told.contains("no answer: ") && told.contains("expected Vault there"), "{told}");
    let (url, token_file) = ("https://127.0.0.1:1/v1/transit/keys/holdfast".to_string(), lab.at("token"));
    let unknown = lab.by(Keeper::Vault(VaultKey { url, token_file, ca: Some(lab.at("ca.pem")) }));
    let told = unknown.open().await.expect_err("no authority").to_string();
    assert!(told.starts_with("key.vault_ca: found ") && told.contains("ca.pem: No such file"), "{told}");
    let told = lab.by_kms(&base, ARN).open().await.expect_err("away").to_string();
    assert!(told.contains("no answer: ") && told.contains("expected AWS KMS there"), "{told}");
}

#[tokio::test]
async fn a_command_gets_the_envelope_or_nothing() {
    let lab = Lab::new();
    std::fs::write(lab.at("envelope"), KEY).expect("written");
    let mut envelope = lab.by(Keeper::Command(vec!["/bin/cat".into()]));
    assert_eq!(envelope.open().await.expect("printed").to_vec(), KEY.to_vec());
    assert!(matches!(envelope.make(&KEY).await, Err(EnvelopeError::MadeElsewhere)));
    envelope.file = None;
    let told = envelope.open().await.expect_err("nothing").to_string();
    assert!(told.contains("it printed nothing"), "{told}");
}
