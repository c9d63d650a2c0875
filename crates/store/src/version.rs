//! The version of an object, as conditional writes compare it.

use sha2::{Digest, Sha256};
use std::fmt;

/// Opaque: it is compared and passed back, never interpreted. S3's version is the ETag; the others hash the content as
/// well, so that none of them is stricter in tests than S3 is in production.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version(pub(crate) String);

impl Version {
    /// The version of this content, for stores without versions of their own.
    pub(crate) fn of(body: &[u8]) -> Self {
        let digest = Sha256::digest(body);
        Self(digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect())
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
