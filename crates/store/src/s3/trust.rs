//! Which certificates a store's server may have.
//!
//! ```text
//!   AWS_CA_BUNDLE ─ set ──▶ these certificates only      (as AWS's own tools)
//!                 └ else ─▶ SSL_CERT_FILE, SSL_CERT_DIR, else those of the system
//! ```
//!
//! webpki judges, with one exception. It refuses a certificate with CA:TRUE as a server's own (`CaUsedAsEndEntity`),
//! and `openssl req -x509` makes such ones. [`Verifier`] takes it if the file that a person named has this very
//! certificate: its key is then trusted to vouch for anybody, so also for itself. Its dates, its names and its purpose
//! still have to be right, and the server still has to have its key.

use crate::options::StoreOptions;
use crate::url_error::{CA_BUNDLE_BYTES_MAX, StoreUrlError};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::ring;
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, OtherError, RootCertStore, SignatureScheme};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::{Arc, LazyLock};

/// The system's, or those that SSL_CERT_FILE and SSL_CERT_DIR name in their place. Read once: there are hundreds.
static SYSTEM: LazyLock<Vec<CertificateDer<'static>>> = LazyLock::new(|| {
    let found = rustls_native_certs::load_native_certs();
    if found.certs.is_empty() || !found.errors.is_empty() {
        tracing::warn!(trusted = found.certs.len(), errors = ?found.errors, "not all of this machine's trusted certificates can be read");
    }
    found.certs
});

/// What is trusted.
#[derive(Debug)]
pub(super) struct Trust {
    roots: RootCertStore,
    /// From the file that a person named: one of these may be a server's own.
    named: Vec<CertificateDer<'static>>,
}

impl Trust {
    /// Reads files: may block.
    ///
    /// # Errors
    /// The bundle cannot be used.
    pub(super) fn of(options: &StoreOptions) -> Result<Self, StoreUrlError> {
        let mut roots = RootCertStore::empty();
        let named = if let Some(bundle) = &options.ca_bundle {
            let bad = |found| StoreUrlError::CaBundle { path: bundle.to_owned(), found };
            certificates(bundle).map_err(bad)?
        } else {
            roots.add_parsable_certificates(SYSTEM.iter().cloned());
            // What is wrong with this file has been said when the system's were read.
            options.cert_file.as_deref().and_then(|file| certificates(file).ok()).unwrap_or_default()
        };
        roots.add_parsable_certificates(named.iter().cloned());
        Ok(Self { roots, named })
    }

    pub(super) fn config(self) -> ClientConfig {
        let provider = Arc::new(ring::default_provider());
        let roots = Arc::new(self.roots);
        let usual = WebPkiServerVerifier::builder_with_provider(roots.clone(), provider.clone()).build();
        let versions = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let versions = versions.expect("ring has what TLS 1.2 and 1.3 need");
        let verified = match usual {
            Ok(usual) => {
                let verifier = Verifier { usual, named: self.named };
                versions.dangerous().with_custom_certificate_verifier(Arc::new(verifier))
            }
            // A machine without any: the first connection is refused, and tells how to name one.
            Err(_) => versions.with_root_certificates(roots),
        };
        let mut config = verified.with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        config
    }
}

/// The certificates of a PEM file, or what is wrong with it. One that cannot be parsed is passed over, as in the
/// system's own list.
fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let opened = File::open(file).map_err(|error| error.to_string())?;
    // A pipe would be waited for.
    if !opened.metadata().map_err(|error| error.to_string())?.is_file() {
        return Err("no regular file".to_owned());
    }
    let mut pem = Vec::new();
    opened.take(CA_BUNDLE_BYTES_MAX + 1).read_to_end(&mut pem).map_err(|error| error.to_string())?;
    if pem.len() as u64 > CA_BUNDLE_BYTES_MAX {
        return Err(format!("more than {CA_BUNDLE_BYTES_MAX} bytes"));
    }
    let mut good = Vec::new();
    let mut passed_over = 0_u32;
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        match certificate {
            Ok(der) if webpki::anchor_from_trusted_cert(&der).is_ok() => good.push(der),
            _ => passed_over += 1,
        }
    }
    match (good.len(), passed_over) {
        (0, 0) => Err("no certificate".to_owned()),
        (0, bad_ones) => Err(format!("{bad_ones} certificates, none of which can be parsed")),
        (_, 0) => Ok(good),
        (trusted, passed_over) => {
            tracing::warn!(file = %file.display(), trusted, passed_over, "some certificates of this file cannot be parsed; the others are trusted");
            Ok(good)
        }
    }
}

/// webpki, and the exception of the module.
#[derive(Debug)]
struct Verifier {
    usual: Arc<WebPkiServerVerifier>,
    named: Vec<CertificateDer<'static>>,
}

impl Verifier {
    fn is_named(&self, certificate: &CertificateDer<'_>) -> bool {
        self.named.iter().any(|named| named[..] == certificate[..])
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        match self.usual.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
            // webpki has looked at the dates before; names and purpose would have come after.
            Err(error) if is_an_authoritys(&error) && self.is_named(end_entity) => {
                verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
                if is_for_others(end_entity) {
                    return Err(CertificateError::InvalidPurpose.into());
                }
                Ok(ServerCertVerified::assertion())
            }
            judged => judged,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.usual.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.usual.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.usual.supported_verify_schemes()
    }
}

/// Whether nothing is wrong so far but CA:TRUE.
fn is_an_authoritys(error: &rustls::Error) -> bool {
    let rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(why))) = error else { return false };
    matches!(why.downcast_ref::<webpki::Error>(), Some(webpki::Error::CaUsedAsEndEntity))
}

/// The extension "extended key usage" (2.5.29.37), as DER has it.
const PURPOSES: [u8; 5] = [6, 3, 0x55, 0x1d, 0x25];
/// One of its values: for servers (1.3.6.1.5.5.7.3.1).
const FOR_SERVERS: [u8; 10] = [6, 8, 0x2b, 6, 1, 5, 5, 7, 3, 1];

/// Whether a certificate says what it is for, and not for servers. webpki gives no access to this. Looking for the
/// bytes will do: a person has named this very certificate, so nobody has put them elsewhere on purpose.
fn is_for_others(certificate: &CertificateDer<'_>) -> bool {
    let has = |bytes: &[u8]| certificate.windows(bytes.len()).any(|window| window == bytes);
    has(&PURPOSES) && !has(&FOR_SERVERS)
}

#[cfg(test)]
#[path = "trust_tests.rs"]
mod tests;
