//! Seal: keys, and the encryption of everything that a gateway puts into a store (R10) or keeps on its own disk.
//!
//! Owns: the cluster key (from a passphrase or a key file), data keys and their wrapping, sealing and opening of the
//! parts of one object, and what each part is bound to. Does not own: randomness (salts, nonces and object ids are
//! arguments), compression, the layout of an object, key storage, the pages that keys are in (`locked`). Depends on
//! `types` and `locked`.
//!
//! ```text
//!   passphrase --Argon2id--> cluster key --HKDF--> wrapping key --XChaCha20-Poly1305--> wrapped data key
//!   key file   ------------>      |
//!                                 +-------HKDF--> fingerprint (tells "wrong key" from "damaged")
//!
//!   data key --HKDF(object id)--> object key --ChaCha20-Poly1305, nonce = part's number--> sealed part
//!   node key --HKDF(file uuid)--> file key ----ChaCha20-Poly1305, nonce = place in the file--> sealed chunk
//!   random, for one entry -------> entry key ---ChaCha20-Poly1305, nonce = place in the entry-> sealed unit
//! ```
//!
//! Invariants:
//! - **SEAL-S1** An object key seals under each nonce at most once: a part's number, and in an extent the block. A
//!   sealer tracks the numbers it used. Sealing again takes a new object id; sending again sends the same bytes. Two
//!   sealers of one object id are never made.
//! - **SEAL-S2** Every part is bound to format version, key id, set, object, kind, number, block, volume, place,
//!   lengths and codec: a part that is opened as anything else than what it was sealed as is an error, never other
//!   bytes (R9).
//! - **SEAL-S3** Key bytes are wiped when dropped and never printed. Except ring's copy of a key, which is on the stack
//!   for one call: it is not wiped, and stays until other calls overwrite it. Cluster, data and node keys are in locked
//!   pages (LOCKED-M1); keys of one object, file or log entry are in ordinary memory.
//! - **SEAL-S4** An entry key is drawn for one entry, and seals each unit of its data once. Making the entry uses it
//!   up; sending the entry again sends the same bytes (R12).
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

mod cipher;
mod entry;
mod error;
mod fingerprint;
mod kdf;
mod key;
mod node;
mod object;
mod part;
mod ring;
mod wrapped;

pub use entry::{ENTRY_KEY_BYTES, EntryKey};
pub use error::{SealError, SealedKind, SealedPart};
pub use fingerprint::KeyFingerprint;
pub use kdf::{Argon2id, argon2_parameters};
pub use key::{
    CLUSTER_KEY_BYTES, ClusterKey, DATA_KEY_BYTES, DataKey, PASSPHRASE_BYTES_MIN, WRAPPED_KEY_BYTES, WRAPPED_VERSION,
    wrapped_by,
};
pub use node::{
    FileKey, NODE_KEY_BYTES, NodeKey, NotAuthentic, WRAPPED_NODE_KEY_BYTES, WRAPPED_NODE_KEY_VERSION, node_wrapped_by,
};
pub use object::{EXTENT_NUMBER_MAX, ObjectOpener, ObjectSealer, PAGE_NUMBER_MAX, SEAL_VERSION};
pub use part::{ExtentAad, ExtentPart, Part, TAG_BYTES};
pub use ring::{join_ring, ring_ids, ring_wrapped_by, split_ring};
