//! Derivation of a cluster key from a passphrase: Argon2id's parameters and the salt, as text for a settings file and
//! as fields of a set's head.

use crate::error::{SealError, hex};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Argon2id parameters of a passphrase without others noted beside it, from before clusters had their own. Other values
/// give another key, so these never change; [`Argon2id`] notes others beside the passphrase.
pub mod argon2_parameters {
    /// Memory in KiB: 19 MiB.
    pub const MEMORY_KIB: u32 = 19 * 1024;
    /// Passes over the memory.
    pub const PASSES: u32 = 2;
    /// Lanes.
    pub const LANES: u32 = 1;
    /// Bytes of salt.
    pub const SALT_BYTES: usize = 16;
}

/// Fewest KiB for a new key: 64 MiB.
const NEW_MEMORY_KIB_MIN: u32 = 64 * 1024;

/// Limit in KiB: the parameters are read from a store before they are authenticated, and must not exhaust the memory.
const MEMORY_KIB_MAX: u32 = 1 << 20;
/// Passes at most, for the same reason.
const PASSES_MAX: u32 = 64;
/// Lanes at most.
const LANES_MAX: u32 = 16;
/// Fewest KiB per lane, as the algorithm requires.
const MEMORY_KIB_PER_LANE: u32 = 8;

const FORM: &str = "argon2id:m=KIB,t=PASSES,p=LANES:SALT with 8p to 1048576 KiB, 1 to 64 passes, 1 to 16 lanes, and 32 hex digits of salt";

/// Parameters that derive a cluster key from a passphrase. Not secret. Unused for a key file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Argon2id {
    /// Memory in KiB.
    pub memory_kib: u32,
    /// Passes over the memory.
    pub passes: u32,
    /// Lanes.
    pub lanes: u32,
    /// Salt; drawn once for each passphrase.
    pub salt: [u8; argon2_parameters::SALT_BYTES],
}

impl Argon2id {
    /// Parameters for a new passphrase, with a salt of its own: the second recommendation of RFC 9106, section 4.
    pub fn fresh(salt: [u8; argon2_parameters::SALT_BYTES]) -> Self {
        Self { memory_kib: NEW_MEMORY_KIB_MIN, passes: 3, lanes: 4, salt }
    }

    /// Whether a new key may be derived like this: with a salt other than `shared`, and enough memory.
    ///
    /// # Errors
    /// [`SealError::Kdf`].
    pub fn check_new(&self, shared: [u8; argon2_parameters::SALT_BYTES]) -> Result<(), SealError> {
        const EXPECTED: &str = "a salt of the cluster's own and m=65536 (64 MiB) or more";
        let good = self.salt != shared && self.memory_kib >= NEW_MEMORY_KIB_MIN;
        if good { Ok(()) } else { Err(SealError::Kdf { found: self.to_string(), expected: EXPECTED }) }
    }

    /// The parameters of [`argon2_parameters`], with `salt`.
    pub fn ours(salt: [u8; argon2_parameters::SALT_BYTES]) -> Self {
        use argon2_parameters::{LANES, MEMORY_KIB, PASSES};
        Self { memory_kib: MEMORY_KIB, passes: PASSES, lanes: LANES, salt }
    }

    /// Checks the bounds.
    ///
    /// # Errors
    /// [`SealError::Kdf`].
    pub fn check(&self) -> Result<(), SealError> {
        let lanes = (1..=LANES_MAX).contains(&self.lanes);
        let passes = (1..=PASSES_MAX).contains(&self.passes);
        let memory =
            self.memory_kib <= MEMORY_KIB_MAX && self.memory_kib >= MEMORY_KIB_PER_LANE.saturating_mul(self.lanes);
        if lanes && passes && memory { Ok(()) } else { Err(SealError::Kdf { found: self.to_string(), expected: FORM }) }
    }
}

impl fmt::Display for Argon2id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "argon2id:m={},t={},p={}:{}", self.memory_kib, self.passes, self.lanes, hex(&self.salt))
    }
}

impl FromStr for Argon2id {
    type Err = SealError;

    fn from_str(text: &str) -> Result<Self, SealError> {
        let wrong = || SealError::Kdf { found: format!("{text:?}"), expected: FORM };
        let rest = text.strip_prefix("argon2id:").ok_or_else(wrong)?;
        let (numbers, salt_text) = rest.split_once(':').ok_or_else(wrong)?;
        let mut fields = numbers.split(',');
        let mut number = |name: &str| -> Result<u32, SealError> {
            let field = fields.next().and_then(|f| f.strip_prefix(name)).and_then(|f| f.strip_prefix('='));
            field.and_then(|f| f.parse().ok()).ok_or_else(wrong)
        };
        let (memory_kib, passes, lanes) = (number("m")?, number("t")?, number("p")?);
        if fields.next().is_some() || salt_text.len() != 2 * argon2_parameters::SALT_BYTES {
            return Err(wrong());
        }
        let mut salt = [0; argon2_parameters::SALT_BYTES];
        for (byte, pair) in salt.iter_mut().zip(salt_text.as_bytes().chunks_exact(2)) {
            let digit = |at: usize| char::from(pair[at]).to_digit(16);
            let (Some(high), Some(low)) = (digit(0), digit(1)) else { return Err(wrong()) };
            *byte = (high * 16 + low) as u8;
        }
        let parsed = Self { memory_kib, passes, lanes, salt };
        parsed.check()?;
        Ok(parsed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ClusterKey;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn text_comes_back(memory_kib in 128u32..=MEMORY_KIB_MAX, passes in 1..=PASSES_MAX, lanes in 1..=LANES_MAX, salt: [u8; 16]) {
            let made = Argon2id { memory_kib, passes, lanes, salt };
            prop_assert_eq!(made.to_string().parse::<Argon2id>().unwrap(), made);
        }

        #[test]
        fn no_text_is_a_panic(text in ".{0,80}", tail in "[-m=0-9a-f,:tp]{0,60}") {
            let _ = text.parse::<Argon2id>();
            let _ = format!("argon2id:{tail}").parse::<Argon2id>();
        }
    }

    #[test]
    fn another_salt_is_another_key_and_the_fixed_one_opens_what_it_made() {
        let (old, new) = (Argon2id::ours(*b"holdfast-cluster"), Argon2id::ours([7; 16]));
        let key = |by| ClusterKey::from_passphrase_by("correct horse", by).expect("good parameters").fingerprint();
        let before = ClusterKey::from_passphrase("correct horse", *b"holdfast-cluster").expect("a passphrase");
        assert_eq!(key(&old), before.fingerprint());
        assert_ne!(key(&old), key(&new));
    }

    #[test]
    fn a_new_key_needs_its_own_salt_and_64_mib() {
        const SHARED: [u8; 16] = *b"holdfast-cluster";
        let fresh = Argon2id::fresh([7; 16]);
        fresh.check().expect("within the bounds");
        fresh.check_new(SHARED).expect("what we print");
        let weak = [
            Argon2id::ours([7; 16]),
            Argon2id { memory_kib: NEW_MEMORY_KIB_MIN - 1, ..fresh },
            Argon2id { salt: SHARED, ..fresh },
        ];
        for weak in weak {
            let told = weak.check_new(SHARED).expect_err("weak").to_string();
            assert!(told.contains(&weak.to_string()) && told.contains("m=65536"), "{told}");
        }
    }

    #[test]
    fn what_would_take_the_machine_is_refused() {
        let ours = Argon2id::ours([1; 16]);
        for bad in [
            Argon2id { memory_kib: MEMORY_KIB_MAX + 1, ..ours },
            Argon2id { passes: PASSES_MAX + 1, ..ours },
            Argon2id { passes: 0, ..ours },
            Argon2id { lanes: 0, ..ours },
            Argon2id { memory_kib: 15, lanes: 2, ..ours },
        ] {
            let told = ClusterKey::from_passphrase_by("correct horse", &bad).expect_err("out of bounds").to_string();
            assert!(told.contains("expected argon2id:m=KIB"), "{told}");
        }
    }
}
