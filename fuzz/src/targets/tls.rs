//! Certificates of clients: anyone who reaches a door with TLS sends one, and its names are read after the authority's
//! signature was checked. A target has no authority, and reads them all.

use holdfast_tls::{Caller, Role};
use rcgen::{CertificateParams, DnType, KeyPair, SanType};

pub(super) fn certificates(data: &[u8]) -> bool {
    let Ok(caller) = Caller::of(data) else { return false };
    // It is written into logs, and compared with owners.
    assert!(!caller.name.chars().any(char::is_control), "a name with control characters: {:?}", caller.name);
    for role in Role::ALL {
        let _ = caller.has_one_of(&[role]);
    }
    let shown = [caller.owners_text(), caller.sets_text()];
    assert!(!shown.iter().any(|text| text.chars().any(char::is_control)), "control characters: {shown:?}");
    let _ = (caller.may_own("db1"), caller.may_use("tank"));
    true
}

pub(super) fn all_certificates() -> Vec<Vec<u8>> {
    let of = |role: Role, uris: &[&str]| {
        let key = KeyPair::generate().ok()?;
        let mut params = CertificateParams::new(vec![role.dns_name().to_string()]).ok()?;
        for uri in uris {
            params.subject_alt_names.push(SanType::URI((*uri).try_into().ok()?));
        }
        params.distinguished_name.push(DnType::CommonName, "db1");
        Some(params.self_signed(&key).ok()?.der().to_vec())
    };
    let host = of(Role::Host, &["holdfast://owner/db1", "holdfast://set/tank", "spiffe://other/thing"]);
    host.into_iter().chain(of(Role::Admin, &[])).collect()
}
