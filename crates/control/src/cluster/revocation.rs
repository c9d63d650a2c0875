//! Certificates that count no more, as data (ADR 0049). The rules: `revoked.rs`.

use serde::{Deserialize, Serialize};
use std::fmt;

/// What is revoked.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum RevokedBy {
    /// The certificate of this serial number, in hex.
    Serial(String),
    /// All certificates of this common name, those of the future among them.
    Name(String),
}

impl RevokedBy {
    pub(super) fn text(&self) -> &str {
        match self {
            RevokedBy::Serial(text) | RevokedBy::Name(text) => text,
        }
    }

    /// Whether it concerns this certificate.
    pub fn covers(&self, one: &Bearer) -> bool {
        match self {
            RevokedBy::Serial(serial) => *serial == one.serial,
            RevokedBy::Name(name) => *name == one.name,
        }
    }
}

impl fmt::Display for RevokedBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RevokedBy::Serial(serial) => write!(f, "serial number {serial}"),
            RevokedBy::Name(name) => write!(f, "name {name}"),
        }
    }
}

/// A certificate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bearer {
    /// Its common name; the serial number if it has none.
    pub name: String,
    /// Its serial number, in hex.
    pub serial: String,
}

/// When and by whom something was revoked. For people; nothing is decided by it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revocation {
    /// In milliseconds since 1970, by the clock of the proposer.
    pub at_unix_ms: u64,
    /// The administrator's certificate, by name.
    pub by: String,
    /// What the administrator said; may be empty.
    pub reason: String,
}
