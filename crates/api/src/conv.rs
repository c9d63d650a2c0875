//! Conversions between texts on the wire and our types. Input is untrusted: readers return errors and never panic.

use crate::v1;
use holdfast_types::{Name, Owner, RequestId, Token};

/// A malformed field of a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: found {found:?}, expected {expected}")]
pub struct FieldError {
    /// The field's name in the proto.
    pub field: &'static str,
    /// Its beginning as found.
    pub found: String,
    /// Expected form.
    pub expected: &'static str,
}

fn bad(field: &'static str, found: &str, expected: &'static str) -> FieldError {
    FieldError { field, found: found.chars().take(80).collect(), expected }
}

const HEX: &str = "32 lower-case hex digits";
const NAME: &str = "1 to 63 of a-z A-Z 0-9 . _ -, beginning with a letter or digit";
const OWNER: &str = "1 to 127 of a-z A-Z 0-9 . _ - / :, beginning with a letter or digit";

/// 128 bits as text: cluster ids and disk uuids.
pub fn hex128(value: u128) -> String {
    format!("{value:032x}")
}

/// Reads [`hex128`]; `field` names the field in the error.
///
/// # Errors
/// When it is not 32 lower-case hex digits, or is all zero, which is no id.
pub fn disk_from_text(field: &'static str, text: &str) -> Result<u128, FieldError> {
    let value = Token::from_text(text).map(|token| token.0).filter(|&value| value != 0);
    value.ok_or_else(|| bad(field, text, HEX))
}

/// Reads a token. Its text is a secret and is not repeated in the error.
///
/// # Errors
/// When it is not 32 lower-case hex digits.
pub fn token(text: &str) -> Result<Token, FieldError> {
    Token::from_text(text).ok_or_else(|| bad("token", &format!("{} characters", text.chars().count()), HEX))
}

/// Reads a request id.
///
/// # Errors
/// When it is not 32 lower-case hex digits.
pub fn request_id(text: &str) -> Result<RequestId, FieldError> {
    disk_from_text("request_id", text).map(RequestId)
}

/// Reads a name; `field` names the field in the error.
///
/// # Errors
/// When it is not of [`Name`]'s form.
pub fn name(field: &'static str, text: &str) -> Result<Name, FieldError> {
    Name::new(text).map_err(|_| bad(field, text, NAME))
}

/// Reads an owner.
///
/// # Errors
/// When it is not of [`Owner`]'s form.
pub fn owner(text: &str) -> Result<Owner, FieldError> {
    Owner::new(text).map_err(|_| bad("owner", text, OWNER))
}

/// Host and port of `HOST:PORT`, `[V6]:PORT` included. `None` for anything else, and for port 0.
pub fn host_port(text: &str) -> Option<(&str, u16)> {
    let (host, port) = text.rsplit_once(':')?;
    let port: u16 = port.parse().ok().filter(|&port| port != 0)?;
    let plain = |host: &str| !host.is_empty() && host.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
    let six = |host: &str| {
        let inner = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        inner.is_some_and(|inner| inner.parse::<std::net::Ipv6Addr>().is_ok())
    };
    (plain(host) || six(host)).then_some((host, port))
}

/// The member of a node; with id 0 if it is none yet.
pub fn member_of(node: &v1::Node) -> v1::Member {
    v1::Member {
        id: node.member,
        name: node.name.clone(),
        region: node.region.clone(),
        locality: node.locality.clone(),
        disk: node.disk.clone(),
        addresses: node.addresses.clone(),
        role: node.role.clone(),
        standing: String::new(),
        level: node.level,
    }
}

/// Whether a gateway's certificate should be renewed.
pub fn expires_soon(certificate: &v1::NodeCertificate) -> bool {
    // An older gateway does not say so.
    certificate.expires_soon.unwrap_or_else(|| certificate.days_left.is_some_and(|days| days < 30))
}

/// Name of a role, as in `--output json`.
pub fn role_name(role: i32) -> &'static str {
    match v1::Role::try_from(role).unwrap_or(v1::Role::Unspecified) {
        v1::Role::Unspecified => "unknown",
        v1::Role::Leader => "leader",
        v1::Role::Follower => "follower",
        v1::Role::Candidate => "candidate",
        v1::Role::Learner => "learner",
        v1::Role::Stopped => "stopped",
        v1::Role::Healing => "healing",
    }
}

pub(crate) fn role_text<S: serde::Serializer>(role: &i32, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(role_name(*role))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Refusal, RefusalCode};

    #[test]
    fn ids_round_trip_and_refuse() {
        assert_eq!(disk_from_text("disk", &hex128(7)), Ok(7));
        for text in ["", "7", &hex128(0), &hex128(u128::MAX).to_uppercase()] {
            assert!(disk_from_text("disk", text).is_err(), "{text}");
        }
        assert!(!token("deadbeef").unwrap_err().to_string().contains("deadbeef"));
        let status = tonic::Status::from(name("set", "a/b").unwrap_err());
        assert_eq!(status.code(), tonic::Code::InvalidArgument);
        assert_eq!(Refusal::from_status(&status).map(|refusal| refusal.code), Some(RefusalCode::Invalid));
    }

    #[test]
    fn addresses() {
        assert_eq!(host_port("127.0.0.1:80"), Some(("127.0.0.1", 80)));
        assert_eq!(host_port("[::1]:80"), Some(("[::1]", 80)));
        assert_eq!(host_port("db-1.example:65535"), Some(("db-1.example", 65535)));
        for bad in ["", ":80", "h", "h:", "h:0", "h:65536", "::1:80", "h:80/x", "a@b:1"] {
            assert_eq!(host_port(bad), None, "{bad}");
        }
    }
}
