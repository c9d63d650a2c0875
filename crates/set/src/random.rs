//! Random numbers: for names that must be unique (object keys, request ids, tokens), and the keys of entries.

use holdfast_seal::{ENTRY_KEY_BYTES, EntryKey};
use rand::rngs::SysRng;
use rand::{Rng, TryRng};

/// 128 random bits, never zero.
pub fn random_u128() -> u128 {
    let mut rng = rand::rng();
    let (high, low) = (u128::from(rng.next_u64()), u128::from(rng.next_u64()));
    ((high << 64) | low).max(1)
}

/// A new key for the data of one entry (SEAL-S4). From the kernel each time, not from a generator in this process: a
/// virtual machine that is cloned while it runs has that generator twice, and both would draw the same keys. The kernel
/// is told of the clone.
///
/// # Panics
/// When the kernel has no random bytes, which it has from its start on.
pub fn new_entry_key() -> EntryKey {
    let mut bytes = [0; ENTRY_KEY_BYTES];
    SysRng.try_fill_bytes(&mut bytes).expect("R10: the kernel gives random bytes");
    EntryKey::new(bytes)
}
