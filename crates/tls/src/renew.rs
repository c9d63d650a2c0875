//! New certificates in the place of old ones, which [`crate::make`] or another tool has made, by the authority in the
//! same directory: with a new key, and all names of the old one.

use crate::der::{Name, alternative_names, common_name};
use crate::error::TlsError;
use crate::files::{self, PEM_BYTES_MAX};
use crate::make::{self, Signed};
use crate::revoked::Identity;
use crate::role::Role;
use rcgen::SanType;
use rcgen::string::Ia5String;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// A certificate and its key, after they were replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Renewed {
    /// File name without its end.
    pub name: String,
    /// The serial number of the certificate that was there, in hex.
    pub before: String,
    /// The certificate.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

fn file(path: &Path, source: io::Error) -> TlsError {
    TlsError::File { path: path.into(), source }
}

/// What a certificate says, as it is put into the next one.
struct Old {
    common_name: String,
    serial: String,
    names: Vec<SanType>,
    /// Its bearer is dialled, too.
    serves: bool,
}

fn read(path: &Path) -> Result<Old, TlsError> {
    let bad = |found: String| TlsError::Content { path: path.into(), found, expected: "a certificate (PEM)" };
    let text = files::read_text(path, PEM_BYTES_MAX).map_err(|source| file(path, source))?;
    let der = CertificateDer::from_pem_slice(text.as_bytes()).map_err(|error| bad(error.to_string()))?;
    let certificate = webpki::EndEntityCert::try_from(&der).map_err(|error| bad(error.to_string()))?;
    let common_name = common_name(certificate.subject()).ok_or_else(|| bad("one without a common name".into()))?;
    let found = alternative_names(&der).ok_or_else(|| bad("one without subjectAltName".into()))?;
    // None is left out: whoever connects by it would be refused.
    let names =
        found.iter().map(|name| of(name).ok_or_else(|| bad(format!("a name that cannot be renewed: {name:?}"))));
    let names = names.collect::<Result<Vec<_>, _>>()?;
    let serves = [Role::Gateway, Role::Host];
    let serves =
        found.iter().any(|name| matches!(name, Name::Dns(name) if serves.iter().any(|role| *name == role.dns_name())));
    let serial = Identity::read(&certificate).serial;
    Ok(Old { common_name, serial, names, serves })
}

fn of(name: &Name<'_>) -> Option<SanType> {
    match *name {
        Name::Dns(name) => Ia5String::try_from(name).ok().map(SanType::DnsName),
        Name::Uri(uri) => Ia5String::try_from(uri).ok().map(SanType::URI),
        Name::Ip(bytes) => {
            let four = <[u8; 4]>::try_from(bytes).map(IpAddr::from).ok();
            four.or_else(|| <[u8; 16]>::try_from(bytes).map(IpAddr::from).ok()).map(SanType::IpAddress)
        }
        Name::Other(_) => None,
    }
}

/// Renews the certificates `NAME.pem` in `dir` with the authority there, each with a new key, valid for `days`. A file
/// is replaced as a whole, the key first.
///
/// # Errors
/// There is no authority with its key in `dir`; a certificate cannot be read or has a name of an unknown kind; a file
/// cannot be written. Those before it are renewed then.
pub fn renew(dir: &Path, names: &[String], days: u64) -> Result<Vec<Renewed>, TlsError> {
    let at = |name: &str, end: &str| dir.join(format!("{name}.{end}"));
    let issuer = make::existing_authority(dir)?;
    // All are read before the first is replaced.
    let old = names.iter().map(|name| read(&at(name, "pem"))).collect::<Result<Vec<_>, _>>()?;
    let mut renewed = Vec::with_capacity(names.len());
    for (name, old) in names.iter().zip(old) {
        let Signed { certificate, key } = make::sign(&issuer, &old.common_name, old.names, old.serves, days)?;
        let (certificate_path, key_path) = (at(name, "pem"), at(name, "key"));
        let (next_certificate, next_key) = (at(name, "pem.new"), at(name, "key.new"));
        // Of a call that was interrupted. Nothing uses them, and this one makes both anew.
        for left in [&next_key, &next_certificate] {
            match std::fs::remove_file(left) {
                Err(source) if source.kind() != io::ErrorKind::NotFound => return Err(file(left, source)),
                _ => {}
            }
        }
        make::write_new(&next_key, &key, 0o600)?;
        make::write_new(&next_certificate, &certificate, 0o644)?;
        for (from, to) in [(&next_key, &key_path), (&next_certificate, &certificate_path)] {
            std::fs::rename(from, to).map_err(|source| file(to, source))?;
        }
        renewed.push(Renewed { name: name.clone(), before: old.serial, certificate: certificate_path, key: key_path });
    }
    Ok(renewed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::make::{Wanted, certificates};
    use crate::tests::load;

    /// A name that was lost would be noticed at the next connection of whoever needs it.
    #[test]
    fn a_renewed_certificate_has_all_names_and_another_key() {
        let dir = tempfile::tempdir().expect("a directory");
        let hosts = vec!["g1.example".to_string(), "10.0.0.1".to_string(), "2001:db8::1".to_string()];
        let (owners, sets) = (vec!["db1".to_string()], vec!["demo".to_string()]);
        let all = [
            Wanted { hosts, ..Wanted::new("g1", Role::Gateway) },
            Wanted { owners, sets, ..Wanted::new("db1", Role::Host) },
        ];
        certificates(dir.path(), &all, 10).expect("made");
        let names_of = |name: &str| {
            let der = CertificateDer::from_pem_file(dir.path().join(name)).expect("a certificate");
            format!("{:?}", alternative_names(&der).expect("names"))
        };
        let before = [names_of("g1.pem"), names_of("db1.pem")];
        assert!(before[0].contains("g1.example") && before[1].contains("holdfast://set/demo"), "{before:?}");
        let (own, key) = (load(dir.path(), "g1", Role::Gateway), dir.path().join("g1.key"));
        let (expiry, serial, secret) = (own.expiry(), own.shown().serial, std::fs::read(&key).expect("a key"));
        let renewed = renew(dir.path(), &["g1".to_string(), "db1".to_string()], 20).expect("renewed");
        assert_eq!((renewed.len(), &renewed[0].before), (2, &serial));
        assert_eq!([names_of("g1.pem"), names_of("db1.pem")], before);
        let own = load(dir.path(), "g1", Role::Gateway);
        assert!(own.expiry().own > expiry.own && own.shown().serial != serial);
        assert!(!own.shown().issuer.is_empty());
        assert_ne!(std::fs::read(&key).expect("a key"), secret);
        load(dir.path(), "db1", Role::Host);
    }

    /// The key was replaced and the certificate was not: the next call brings them together again.
    #[test]
    fn a_renewal_that_was_interrupted_is_made_again() {
        let dir = tempfile::tempdir().expect("a directory");
        certificates(dir.path(), &[Wanted::new("g1", Role::Gateway)], 10).expect("made");
        let at = |name: &str| dir.path().join(name);
        let other = rcgen::KeyPair::generate().expect("a key").serialize_pem();
        std::fs::write(at("g1.key"), other).expect("written");
        for left in ["g1.pem.new", "g1.key.new"] {
            std::fs::write(at(left), "a part").expect("written");
        }
        renew(dir.path(), &["g1".to_string()], 20).expect("renewed");
        load(dir.path(), "g1", Role::Gateway);
        assert!(!at("g1.pem.new").exists() && !at("g1.key.new").exists());
    }

    #[test]
    fn nothing_is_renewed_without_its_authority_or_if_one_of_them_cannot_be() {
        let dir = tempfile::tempdir().expect("a directory");
        certificates(dir.path(), &[Wanted::new("g1", Role::Gateway)], 10).expect("made");
        let read = || std::fs::read(dir.path().join("g1.pem")).expect("a certificate");
        let before = read();
        let both = ["g1".to_string(), "g2".to_string()];
        let error = renew(dir.path(), &both, 20).expect_err("there is no g2").to_string();
        assert!(error.contains("g2.pem"), "{error}");
        std::fs::remove_file(dir.path().join("ca.key")).expect("removed");
        let error = renew(dir.path(), &both[..1], 20).expect_err("no authority").to_string();
        assert!(error.contains("ca.key"), "{error}");
        assert_eq!(read(), before);
    }
}
