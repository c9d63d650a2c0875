//! Random numbers for names that must never meet: object keys, request ids, tokens.

use rand::Rng;

/// 128 random bits, never zero.
pub fn random_u128() -> u128 {
    let mut rng = rand::rng();
    let (high, low) = (u128::from(rng.next_u64()), u128::from(rng.next_u64()));
    ((high << 64) | low).max(1)
}
