//! Makes the authority of a cluster and the certificates of its processes, for users without an authority of their own.
//!
//! ```text
//!   DIR/ca.pem  DIR/ca.key          the authority; its key belongs on no gateway and no host
//!   DIR/NAME.pem  DIR/NAME.key      one process each
//! ```

use crate::error::TlsError;
use crate::files::{self, PEM_BYTES_MAX, SecretError};
use crate::role::{OWNER_URI, Role, SET_URI, check_name, is_known};
use rcgen::string::Ia5String;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    SanType,
};
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// The authority's common name. Issuer and subject are compared by it: it never changes.
const AUTHORITY: &str = "Holdfast cluster authority";

/// How long an authority is valid, in days.
const AUTHORITY_DAYS: u64 = 3650;

/// A new certificate is valid from this long ago, since clocks of a cluster may differ.
const CLOCK_SLACK: Duration = Duration::from_secs(24 * 3600);

/// Maximum validity of a certificate in days.
pub const DAYS_MAX: u64 = AUTHORITY_DAYS;

/// A certificate to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// File name and common name.
    pub name: String,
    /// Its role.
    pub role: Role,
    /// Of a host: names under which it may hold leases; none: its name (TLS-T4).
    pub owners: Vec<String>,
    /// Of a host: sets that it may use; none: all.
    pub sets: Vec<String>,
    /// Of a gateway: DNS names and IP addresses, for NBD clients that check by what they connected to (libnbd, nbdkit).
    /// Our own expect the role's name (TLS-T2).
    pub hosts: Vec<String>,
}

impl Wanted {
    /// A certificate without owners, sets and hosts.
    pub fn new(name: impl Into<String>, role: Role) -> Self {
        Self { name: name.into(), role, owners: Vec::new(), sets: Vec::new(), hosts: Vec::new() }
    }
}

/// Result of [`certificates`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Made {
    /// Whether the authority was made, too. Otherwise it existed.
    pub authority_made: bool,
    /// The authority's certificate.
    pub ca: PathBuf,
    /// Certificate and key of each, in the requested order.
    pub files: Vec<(Wanted, PathBuf, PathBuf)>,
}

fn file(path: &Path, source: io::Error) -> TlsError {
    TlsError::File { path: path.into(), source }
}

/// Never overwrites a file, so that a second call does not lose a key in use.
pub(crate) fn write_new(path: &Path, text: &str, mode: u32) -> Result<(), TlsError> {
    let mut open = OpenOptions::new();
    let mut out = open.write(true).create_new(true).mode(mode).open(path).map_err(|source| file(path, source))?;
    out.write_all(text.as_bytes()).and_then(|()| out.sync_all()).map_err(|source| file(path, source))
}

fn validity(params: &mut CertificateParams, days: u64) {
    let now = SystemTime::now();
    params.not_before = (now - CLOCK_SLACK).into();
    params.not_after = (now + Duration::from_secs(days * 24 * 3600)).into();
}

fn authority_params() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, AUTHORITY);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    validity(&mut params, AUTHORITY_DAYS);
    params
}

fn failed<'a>(name: &'a str) -> impl Fn(rcgen::Error) -> TlsError + 'a {
    move |error| TlsError::Make { name: name.to_string(), reason: error.to_string() }
}

/// The authority in `dir`, which must be there with its key.
pub(crate) fn existing_authority(dir: &Path) -> Result<Issuer<'static, KeyPair>, TlsError> {
    let key_path = dir.join("ca.key");
    // Not made here: certificates of a new one would be trusted nowhere.
    std::fs::metadata(&key_path).map_err(|source| file(&key_path, source))?;
    authority(dir).map(|(issuer, _)| issuer)
}

/// A certificate and its key, as PEM.
pub(crate) struct Signed {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

/// A certificate with a new key. `serves`: its bearer is dialled, too.
pub(crate) fn sign(
    issuer: &Issuer<'static, KeyPair>,
    common_name: &str,
    names: Vec<SanType>,
    serves: bool,
    days: u64,
) -> Result<Signed, TlsError> {
    let make = failed(common_name);
    let key = KeyPair::generate().map_err(&make)?;
    let mut params = CertificateParams::default();
    params.subject_alt_names = names;
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common_name);
    // An older QEMU refuses a certificate without the second, although no key of this kind enciphers another.
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
    params.extended_key_usages = if serves {
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth]
    } else {
        vec![ExtendedKeyUsagePurpose::ClientAuth]
    };
    params.use_authority_key_identifier_extension = true;
    validity(&mut params, days.min(DAYS_MAX));
    let certificate = params.signed_by(&key, issuer).map_err(&make)?;
    Ok(Signed { certificate: certificate.pem(), key: key.serialize_pem() })
}

/// The authority in `dir`. It is made if there is none.
fn authority(dir: &Path) -> Result<(Issuer<'static, KeyPair>, bool), TlsError> {
    let (certificate_path, key_path) = (dir.join("ca.pem"), dir.join("ca.key"));
    let make = failed(AUTHORITY);
    match files::read_secret_text(&key_path, PEM_BYTES_MAX) {
        Ok(text) => {
            let key = KeyPair::from_pem(&text).map_err(|error| TlsError::Content {
                path: key_path,
                found: error.to_string(),
                expected: "the authority's private key (PEM)",
            })?;
            // Without its certificate, nobody could trust what the key signs.
            std::fs::metadata(&certificate_path).map_err(|source| file(&certificate_path, source))?;
            Ok((Issuer::new(authority_params(), key), false))
        }
        Err(SecretError::Io(error)) if error.kind() == io::ErrorKind::NotFound => {
            let key = KeyPair::generate().map_err(&make)?;
            let params = authority_params();
            let certificate = params.self_signed(&key).map_err(&make)?;
            write_new(&certificate_path, &certificate.pem(), 0o644)?;
            write_new(&key_path, &key.serialize_pem(), 0o600)?;
            Ok((Issuer::new(params, key), true))
        }
        Err(error) => Err(TlsError::of_secret(&key_path, error)),
    }
}

/// The DNS names and IP addresses of a certificate: that of its role first.
fn names(one: &Wanted) -> Vec<String> {
    std::iter::once(one.role.dns_name().to_string()).chain(one.hosts.iter().cloned()).collect()
}

/// What a host's certificate is bound to (TLS-T4).
fn uris(one: &Wanted) -> impl Iterator<Item = String> {
    let owners = one.owners.iter().map(|owner| format!("{OWNER_URI}{owner}"));
    owners.chain(one.sets.iter().map(|set| format!("{SET_URI}{set}")))
}

/// No process would take a certificate with other names.
fn check(one: &Wanted) -> Result<(), TlsError> {
    let bad = |reason| TlsError::Make { name: one.name.clone(), reason };
    check_name(&one.name).map_err(bad)?;
    match uris(one).find(|uri| !is_known(uri)) {
        Some(uri) => Err(bad(format!("URI name {uri:?}"))),
        None => Ok(()),
    }
}

/// Makes certificates for `wanted` in `dir`, valid for `days`, with the authority there. It is made if there is none.
///
/// # Errors
/// A file exists already, or cannot be written; a name is empty, too long or has control characters.
pub fn certificates(dir: &Path, wanted: &[Wanted], days: u64) -> Result<Made, TlsError> {
    std::fs::create_dir_all(dir).map_err(|source| file(dir, source))?;
    wanted.iter().try_for_each(check)?;
    let (issuer, authority_made) = authority(dir)?;
    let mut files = Vec::with_capacity(wanted.len());
    for one in wanted {
        let make = failed(&one.name);
        // Tells names from addresses.
        let mut all = CertificateParams::new(names(one)).map_err(&make)?.subject_alt_names;
        for uri in uris(one) {
            all.push(SanType::URI(Ia5String::try_from(uri).map_err(&make)?));
        }
        // Gateways dial each other, and so do the agents of hosts.
        let serves = matches!(one.role, Role::Gateway | Role::Host);
        let Signed { certificate, key } = sign(&issuer, &one.name, all, serves, days)?;
        let (certificate_path, key_path) =
            (dir.join(format!("{}.pem", one.name)), dir.join(format!("{}.key", one.name)));
        write_new(&key_path, &key, 0o600)?;
        write_new(&certificate_path, &certificate, 0o644)?;
        files.push((one.clone(), certificate_path, key_path));
    }
    Ok(Made { authority_made, ca: dir.join("ca.pem"), files })
}
