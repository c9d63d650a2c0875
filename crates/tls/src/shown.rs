//! A process's own certificate, for people.

use crate::der::hex;
use crate::expiry::Lives;
use crate::revoked::Identity;
use rustls_pki_types::{CertificateDer, UnixTime};
use sha2::{Digest, Sha256};
use std::time::Duration;
use tokio_rustls::rustls::crypto::ring::default_provider;
use webpki::{EndEntityCert, KeyUsage, anchor_from_trusted_cert};

/// What a certificate says about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shown {
    /// The subject's common name; the serial number if there is none.
    pub name: String,
    /// The serial number in hex.
    pub serial: String,
    /// DNS names and URIs, the role's name among them.
    pub names: Vec<String>,
    /// SHA-256 of the authority's certificate that issued it, in hex, as `openssl x509 -noout -fingerprint -sha256`
    /// prints it without colons. Empty if none of the trusted ones did, which is so for a while in a change of
    /// authority.
    pub issuer: String,
}

impl Shown {
    /// The first of `own`, which the others lead to an authority.
    pub(crate) fn of(own: &[CertificateDer<'_>], ca: &[CertificateDer<'_>]) -> Self {
        let Some((first, between)) = own.split_first() else { return Self::default() };
        let Ok(certificate) = EndEntityCert::try_from(first) else { return Self::default() };
        let Identity { name, serial } = Identity::read(&certificate);
        let names = certificate.valid_dns_names().chain(certificate.valid_uri_names()).map(str::to_string).collect();
        // Parse as of a time when all are valid; otherwise the parser does not look for an issuer. Authorities do not
        // expire there.
        let ends = Lives::of(own, &[]).first_end().unwrap_or_default();
        let at = UnixTime::since_unix_epoch(Duration::from_secs(ends));
        let algorithms = default_provider().signature_verification_algorithms.all;
        let signed = |one: &&CertificateDer<'_>| {
            let Ok(anchor) = anchor_from_trusted_cert(one) else { return false };
            let usage = KeyUsage::client_auth();
            certificate.verify_for_usage(algorithms, &[anchor], between, at, usage, None, None).is_ok()
        };
        let issuer = ca.iter().find(signed).map(|one| hex(&Sha256::digest(&one[..]))).unwrap_or_default();
        Self { name, serial, names, issuer }
    }
}
