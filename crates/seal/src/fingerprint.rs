//! [`KeyFingerprint`].

use std::fmt;

/// Eight bytes that distinguish cluster keys and reveal nothing else about them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeyFingerprint(pub u64);

impl fmt::Display for KeyFingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}
