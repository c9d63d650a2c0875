//! Whether settings and envelopes have a form that can be used. Decides, and asks nobody.

use crate::error::{EnvelopeError, Wrong};
use crate::keeper::{Envelope, Keeper, KmsKey, VaultKey};
use holdfast_store::service::from_base64;
use std::path::Path;
use url::{Host, Position, Url};

const PRIVATE: &str = "https://HOST[:PORT], or http:// to this machine itself: keys cross this connection";
const VAULT_FORM: &str = "https://HOST:PORT/v1/MOUNT/keys/NAME, or http:// to this machine itself";
const ARN_FORM: &str = "arn:aws:kms:REGION:ACCOUNT:key/ID, or alias/NAME at its end";

impl Envelope {
    /// Checks the settings.
    ///
    /// # Errors
    /// The first that cannot be used.
    pub fn check(&self) -> Result<(), Wrong> {
        match &self.keeper {
            Keeper::Command(argv) => command(argv),
            Keeper::Vault(key) => {
                self.needs_file()?;
                VaultPlace::of(key).map(drop)
            }
            Keeper::Kms(key) => {
                self.needs_file()?;
                kms(key)
            }
        }
    }

    fn needs_file(&self) -> Result<(), Wrong> {
        let wrong = Wrong { setting: "envelope", found: "nothing".into(), expected: "the file with the wrapped key" };
        if self.file.is_some() { Ok(()) } else { Err(wrong) }
    }
}

/// ENVELOPE-V2: without a shell and without a search. An error has no argument in it (ENVELOPE-V3).
fn command(argv: &[String]) -> Result<(), Wrong> {
    let expected = "a program by its absolute path, and its arguments";
    let wrong = |found: String| Wrong { setting: "command", found, expected };
    let program = argv.first().ok_or_else(|| wrong("nothing".into()))?;
    if Path::new(program).is_absolute() { Ok(()) } else { Err(wrong(format!("{program:?}"))) }
}

/// ENVELOPE-V1.
fn is_private(url: &Url) -> bool {
    let local = match url.host() {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => return false,
    };
    url.scheme() == "https" || url.scheme() == "http" && local
}

fn is_bare(url: &Url) -> bool {
    url.username().is_empty() && url.password().is_none() && url.query().is_none() && url.fragment().is_none()
}

/// A value in an error; the part before an @ may be a password.
fn told(value: &str) -> String {
    if value.contains('@') { "***".into() } else { format!("{:?}", value.chars().take(200).collect::<String>()) }
}

/// Where a key of Vault wraps and opens.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct VaultPlace {
    pub decrypt: String,
    pub encrypt: String,
}

impl VaultPlace {
    /// # Errors
    /// The URL has another form.
    pub fn of(key: &VaultKey) -> Result<Self, Wrong> {
        let wrong = || Wrong { setting: "vault", found: told(&key.url), expected: VAULT_FORM };
        let url = Url::parse(&key.url).map_err(|_| wrong())?;
        let (mount, name) = url.path().rsplit_once("/keys/").ok_or_else(wrong)?;
        let named = mount.strip_prefix("/v1/").is_some_and(|mount| !mount.is_empty());
        if !named || name.is_empty() || name.contains('/') || !is_bare(&url) || !is_private(&url) {
            return Err(wrong());
        }
        let at = |what: &str| format!("{}{mount}/{what}/{name}", &url[..Position::BeforePath]);
        Ok(Self { decrypt: at("decrypt"), encrypt: at("encrypt") })
    }
}

fn kms(key: &KmsKey) -> Result<(), Wrong> {
    region(&key.arn)?;
    let Some(endpoint) = &key.endpoint else { return Ok(()) };
    let good = Url::parse(endpoint).is_ok_and(|url| is_private(&url) && is_bare(&url));
    if good { Ok(()) } else { Err(Wrong { setting: "kms_endpoint", found: told(endpoint), expected: PRIVATE }) }
}

/// The region in the ARN of a key.
///
/// # Errors
/// It is no ARN of a key.
pub(crate) fn region(arn: &str) -> Result<&str, Wrong> {
    let wrong = || Wrong { setting: "kms", found: told(arn), expected: ARN_FORM };
    let parts: Vec<&str> = arn.split(':').collect();
    let ["arn", _, "kms", region, _, key] = parts.as_slice() else { return Err(wrong()) };
    let (region, key) = (*region, *key);
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    let named = ["key/", "alias/"].iter().any(|kind| key.strip_prefix(*kind).is_some_and(|name| !name.is_empty()));
    if named && !region.is_empty() && region.bytes().all(plain) { Ok(region) } else { Err(wrong()) }
}

/// The text that Vault's encrypt has answered.
///
/// # Errors
/// It is none.
pub(crate) fn vault_text(path: &Path, content: &[u8]) -> Result<String, EnvelopeError> {
    let text = std::str::from_utf8(content).map(str::trim).unwrap_or_default();
    if text.starts_with("vault:v") && text.bytes().all(|b| b.is_ascii_graphic()) {
        return Ok(text.to_owned());
    }
    let found = format!("{} bytes of another form", content.len());
    let expected = "one line that begins with vault:v, as `vault write MOUNT/encrypt/NAME` prints it";
    Err(EnvelopeError::Shape { path: path.into(), found, expected })
}

/// What KMS has answered: base64, as `aws kms encrypt` prints it, or bytes.
///
/// # Errors
/// It is empty.
pub(crate) fn kms_bytes(path: &Path, content: Vec<u8>) -> Result<Vec<u8>, EnvelopeError> {
    let text = std::str::from_utf8(&content).ok().and_then(|text| from_base64(text.trim()));
    let bytes = text.unwrap_or(content);
    let expected = "the CiphertextBlob that `aws kms encrypt` prints, in base64 or as bytes";
    if bytes.is_empty() {
        return Err(EnvelopeError::Shape { path: path.into(), found: "nothing".into(), expected });
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vault(url: &str) -> Result<VaultPlace, Wrong> {
        VaultPlace::of(&VaultKey { url: url.into(), token_file: "/token".into(), ca: None })
    }

    #[test]
    fn a_key_of_vault_is_asked_beside_its_url() {
        let place = vault("https://vault.example:8200/v1/team/transit/keys/holdfast").expect("good");
        assert_eq!(place.decrypt, "https://vault.example:8200/v1/team/transit/decrypt/holdfast");
        assert_eq!(place.encrypt, "https://vault.example:8200/v1/team/transit/encrypt/holdfast");
        for bad in [
            "vault.example:8200",
            "https://vault.example/transit/keys/holdfast",
            "https://vault.example/v1/keys/holdfast",
            "https://vault.example/v1/transit/keys/",
            "https://vault.example/v1/transit/keys/a/b",
            "https://vault.example/v1/transit/decrypt/a",
            "https://vault.example/v1/transit/keys/a?x=1",
        ] {
            assert!(vault(bad).expect_err(bad).to_string().contains("key.vault: found"), "{bad}");
        }
        let told = vault("https://me:hunter2@vault.example/v1/t/keys/a").expect_err("a password").to_string();
        assert!(!told.contains("hunter2"), "{told}");
    }

    /// ENVELOPE-V1.
    #[test]
    fn a_key_does_not_cross_a_network_in_clear() {
        let kms = |endpoint: &str| {
            kms(&KmsKey {
                arn: "arn:aws:kms:eu-central-1:111122223333:key/1".into(),
                endpoint: Some(endpoint.into()),
                credentials_file: None,
            })
        };
        for (base, good) in [
            ("https://kms.example:8200", true),
            ("http://127.0.0.1:8200", true),
            ("http://[::1]:8200", true),
            ("http://localhost:8200", true),
            ("http://kms.example:8200", false),
            ("http://10.0.0.1:8200", false),
            ("http://localhost.example:8200", false),
            ("ftp://127.0.0.1:8200", false),
        ] {
            assert_eq!(vault(&format!("{base}/v1/transit/keys/a")).is_ok(), good, "{base}");
            assert_eq!(kms(base).is_ok(), good, "{base}");
        }
    }

    #[test]
    fn an_arn_has_its_region() {
        assert_eq!(region("arn:aws:kms:eu-central-1:111122223333:key/1234"), Ok("eu-central-1"));
        assert_eq!(region("arn:aws-us-gov:kms:us-gov-west-1:1:alias/holdfast"), Ok("us-gov-west-1"));
        for bad in ["", "1234", "arn:aws:s3:eu-central-1:1:key/1", "arn:aws:kms::1:key/1", "arn:aws:kms:eu:1:key/"] {
            assert!(region(bad).expect_err(bad).to_string().contains("expected arn:aws:kms:REGION"), "{bad}");
        }
    }

    #[test]
    fn a_program_is_named_by_its_path() {
        let of = |argv: &[&str]| command(&argv.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert_eq!(of(&["/usr/bin/gpg", "--decrypt"]), Ok(()));
        for bad in [&[][..], &["gpg", "--passphrase", "hunter2"], &["./gpg"]] {
            let told = of(bad).expect_err("no path").to_string();
            assert!(told.contains("expected a program by its absolute path") && !told.contains("hunter2"), "{told}");
        }
    }

    #[test]
    fn an_envelope_is_what_its_keeper_has_printed() {
        let path = Path::new("e");
        assert_eq!(vault_text(path, b"vault:v1:abc=\n").expect("good"), "vault:v1:abc=");
        for bad in [&b""[..], b"abc", b"vault:v1:a b", &[0xff; 9]] {
            assert!(vault_text(path, bad).expect_err("bad").to_string().contains("expected one line"), "{bad:?}");
        }
        assert_eq!(kms_bytes(path, b"AQID\n".to_vec()).expect("base64"), [1, 2, 3]);
        assert_eq!(kms_bytes(path, vec![1, 0xff, 2]).expect("bytes"), [1, 0xff, 2]);
        assert!(kms_bytes(path, b"\n".to_vec()).is_err());
    }
}
