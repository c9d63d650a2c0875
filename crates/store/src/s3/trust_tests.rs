use super::*;
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, KeyPair, date_time_ymd};
use rustls::server::ServerConfig;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConnection, ServerConnection, SupportedProtocolVersion};
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use std::time::Duration;

const NAME: &str = "store.test";

/// An authority's own, as `openssl req -x509` makes it, for the years 2000 to 2099. All have the same subject.
fn own(purposes: &[ExtendedKeyUsagePurpose], key: &KeyPair) -> CertificateDer<'static> {
    let mut params = CertificateParams::new(vec![NAME.to_owned()]).expect("name");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.extended_key_usages = purposes.to_vec();
    params.not_before = date_time_ymd(2000, 1, 1);
    params.not_after = date_time_ymd(2100, 1, 1);
    params.self_signed(key).expect("certificate").der().clone()
}

fn trusting(named: &[CertificateDer<'static>]) -> Trust {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(named.iter().cloned());
    Trust { roots, named: named.to_vec() }
}

fn verifier(trust: Trust) -> Verifier {
    let provider = Arc::new(ring::default_provider());
    let usual = WebPkiServerVerifier::builder_with_provider(Arc::new(trust.roots), provider).build().expect("roots");
    Verifier { usual, named: trust.named }
}

#[test]
fn an_authoritys_own_is_taken_if_it_is_named_valid_of_that_name_and_for_servers() {
    let key = KeyPair::generate().expect("key");
    let plain = own(&[], &key);
    let servers = own(&[ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth], &key);
    let clients = own(&[ExtendedKeyUsagePurpose::ClientAuth], &key);
    let other = own(&[], &KeyPair::generate().expect("key"));
    let named = verifier(trusting(&[plain.clone(), servers.clone(), clients.clone()]));
    // Trusted as an authority, as the system's are; no person named it.
    let unnamed = verifier(Trust { named: Vec::new(), ..trusting(std::slice::from_ref(&plain)) });
    for (verifier, certificate, name, year, wrong) in [
        (&named, &plain, NAME, 2030, None),
        (&named, &servers, NAME, 2030, None),
        (&named, &clients, NAME, 2030, Some("InvalidPurpose")),
        (&named, &plain, "elsewhere.test", 2030, Some("not valid for name")),
        (&named, &plain, NAME, 2101, Some("expired")),
        (&named, &plain, NAME, 1999, Some("not valid yet")),
        (&named, &other, NAME, 2030, Some("CaUsedAsEndEntity")),
        (&unnamed, &plain, NAME, 2030, Some("CaUsedAsEndEntity")),
    ] {
        let host = ServerName::try_from(name).expect("name");
        let now = UnixTime::since_unix_epoch(Duration::from_secs((year - 1970) * 31_557_600));
        let judged = verifier.verify_server_cert(certificate, &[], &host, &[], now).map(|_| ());
        match (judged, wrong) {
            (Ok(()), None) => {}
            (Err(error), Some(wrong)) => assert!(error.to_string().contains(wrong), "{wrong:?} in {error}"),
            (judged, wrong) => panic!("{name} in {year}: found {judged:?}, expected {wrong:?}"),
        }
    }
}

/// A client that trusts `certificate` and names it, and a server that shows it and signs with `key`.
fn handshake(
    certificate: &CertificateDer<'static>,
    key: &KeyPair,
    version: &'static SupportedProtocolVersion,
) -> Result<(), rustls::Error> {
    let secret = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let signing = ring::sign::any_ecdsa_type(&secret).expect("key");
    let shown = SingleCertAndKey::from(CertifiedKey::new(vec![certificate.clone()], signing));
    let server = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[version])
        .expect("version")
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(shown));
    let mut server = ServerConnection::new(Arc::new(server)).expect("server");
    let config = trusting(std::slice::from_ref(certificate)).config();
    let name = ServerName::try_from(NAME).expect("name");
    let mut client = ClientConnection::new(Arc::new(config), name).expect("client");
    while client.is_handshaking() {
        let mut sent = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut sent).expect("written");
        }
        let mut rest = sent.as_slice();
        while !rest.is_empty() {
            server.read_tls(&mut rest).expect("read");
            server.process_new_packets().expect("what the client sent");
        }
        let mut sent = Vec::new();
        while server.wants_write() {
            server.write_tls(&mut sent).expect("written");
        }
        let mut rest = sent.as_slice();
        while !rest.is_empty() {
            client.read_tls(&mut rest).expect("read");
            client.process_new_packets()?;
        }
    }
    Ok(())
}

/// Anybody can show the certificate.
#[test]
fn a_server_that_lacks_the_key_of_a_named_certificate_is_refused() {
    let (key, another) = (KeyPair::generate().expect("key"), KeyPair::generate().expect("key"));
    let certificate = own(&[], &key);
    for version in [&TLS12, &TLS13] {
        assert_eq!(handshake(&certificate, &key, version), Ok(()), "{version:?}");
        let error = handshake(&certificate, &another, version).expect_err("not its key");
        assert_eq!(error, rustls::Error::from(CertificateError::BadSignature), "{version:?}");
    }
}

#[test]
fn either_setting_names_the_certificates_of_its_file() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("own.pem");
    let key = KeyPair::generate().expect("key");
    let made = CertificateParams::new(vec![NAME.to_owned()]).expect("name").self_signed(&key).expect("certificate");
    std::fs::write(&path, made.pem()).expect("write");
    let bundle = StoreOptions { ca_bundle: Some(path.clone()), ..StoreOptions::default() };
    let file = StoreOptions { cert_file: Some(path), ..StoreOptions::default() };
    for options in [bundle, file] {
        let trust = Trust::of(&options).expect("certificates");
        assert_eq!(trust.named, [made.der().clone()]);
        assert!(!trust.roots.is_empty());
    }
}

#[test]
fn a_bundle_without_certificates_is_refused() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("ca.pem");
    let refused = |path: &Path| {
        let options = StoreOptions { ca_bundle: Some(path.to_owned()), ..StoreOptions::default() };
        Trust::of(&options).expect_err("no bundle").to_string()
    };
    let junk = "-----BEGIN CERTIFICATE-----\naGVsbG8=\n-----END CERTIFICATE-----\n";
    for (text, says) in [("", "no certificate"), ("hello", "no certificate"), (junk, "none of which")] {
        std::fs::write(&path, text).expect("write");
        let error = refused(&path);
        assert!(error.contains(says) && error.contains("AWS_CA_BUNDLE"), "{error}");
    }
    let error = refused(&dir.path().join("nothing"));
    assert!(error.contains("No such file"), "{error}");
    let error = refused(dir.path());
    assert!(error.contains("no regular file"), "{error}");
}
