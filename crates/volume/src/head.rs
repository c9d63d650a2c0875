//! Head of a set in its store. A cluster is rebuilt from it when every gateway is lost; it also fences older lives of
//! the set.
//!
//! The head is the only object of a set that is replaced, always by a conditional PUT. Its frame is that of
//! [`crate::object`]; each version has a fresh random id, so that its bytes are unique (R12):
//!
//! ```text
//!   | header | keyring, in clear: "HFK" version(1), postcard of Keyring | sealed: "HFH" version(1), postcard of Keyring and Head |
//! ```
//! The keyring must be readable before the data key is known. The wrapped key in it authenticates itself. A copy of the
//! whole keyring is sealed, so that a forged one is detected (R9, R10).
//!
//! HEAD-H1  Generations of a set's head only grow. A gateway that finds a higher generation than its own, or its own
//!     generation under another cluster's name, has been replaced and stops serving.
//! HEAD-H2  Within a generation the covered log id only grows. Everything that the head's root and its list of
//!     snapshots name was in the store before (SET-S15).
//! HEAD-H3  The head names the complete state at one log id: a prefix of the set's order of writes (R4).
//! HEAD-H4  A head whose keyring has no key is a tombstone: the set was deleted, for ever. No life has its generation,
//!     so every gateway of an older life finds itself replaced (HEAD-H1), and no PUT of an older life replaces it.

use crate::object::{OBJECT_HEADER_BYTES, ObjectError, ObjectHeader, ObjectKind};
use crate::segment::seal_frame;
use bytes::Bytes;
use holdfast_control::set::{LIST_BYTES_MAX, Links, Restored};
pub use holdfast_seal::Argon2id;
use holdfast_seal::{ObjectOpener, ObjectSealer, Part, SealError};
use holdfast_types::{Epoch, LogId, Name};
use serde::{Deserialize, Serialize};

const KEYRING_MAGIC: &[u8] = b"HFK\x01";
const HEAD_MAGIC: &[u8] = b"HFH\x01";

/// Upper bound of a head's bytes: half of it for snapshots; 256 volumes with the longest names take a twentieth.
pub const HEAD_BYTES_MAX: usize = 512 << 10;

const _: () = assert!(LIST_BYTES_MAX * 2 <= HEAD_BYTES_MAX);

/// The generation of a tombstone (HEAD-H4).
pub const DELETED_GENERATION: u64 = u64::MAX;

/// The keys that open a set's data, given the cluster key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Keyring {
    /// The set's data key, wrapped by the cluster key.
    pub wrapped_key: Vec<u8>,
    /// Where a passphrase leads to the cluster key.
    pub passphrase: Argon2id,
}

/// One life of a set; each recovery begins the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetLife {
    /// The cluster that the set lives in.
    pub cluster: u128,
    /// Number of the life.
    pub generation: u64,
}

/// A checkpoint as the head names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Covered {
    /// It holds every entry up to this one.
    pub upto: LogId,
    /// The generation whose log has that entry.
    pub generation: u64,
    /// Wall clock of the gateway just before it made the checkpoint, in Unix milliseconds: all writes acknowledged
    /// earlier are in it. For display.
    pub at_unix_ms: u64,
}

/// The head, opened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// The life that may replace it.
    pub life: SetLife,
    /// Disk uuid of the gateway for which a recovery raised the generation, until that life's first checkpoint; then 0.
    /// An interrupted recovery continues only with that gateway.
    pub raised_for: u128,
    /// The set's name.
    pub name: Name,
    /// The last epoch granted as of the checkpoint, for display: the next life begins above it by construction.
    pub epoch: Epoch,
    /// The covered moment; `None` before the first checkpoint.
    pub covered: Option<Covered>,
    /// The set at that moment.
    pub content: Restored,
    /// Pins, origin of a clone, and snapshots, as of the writing of the head and not of the checkpoint. A pin that is
    /// kept too long costs space; a lost pin would cost the clone.
    pub links: Links,
}

/// How a head relates to a life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It belongs to this life.
    Ours,
    /// It belongs to an older life: a stale read, which proves nothing.
    Older,
    /// Another life has taken the set over (HEAD-H1).
    Taken,
}

impl Head {
    /// How this head relates to `life`.
    pub fn standing(&self, life: SetLife) -> Standing {
        match self.life.generation.cmp(&life.generation) {
            std::cmp::Ordering::Less => Standing::Older,
            std::cmp::Ordering::Equal if self.life.cluster == life.cluster => Standing::Ours,
            // HEAD-H1: two recoveries began from one life; the conditional PUT let one of them win.
            _ => Standing::Taken,
        }
    }

    /// Whether this head of the same life covers at least as much as `next`: then `next` is stale (HEAD-H2).
    pub fn covers(&self, next: &Covered) -> bool {
        self.covered.is_some_and(|c| c.generation == next.generation && c.upto.index >= next.upto.index)
    }

    /// The first head of the next life, with the same content.
    pub fn raised(&self, cluster: u128, raised_for: u128) -> Self {
        let life = SetLife { cluster, generation: self.life.generation.saturating_add(1) };
        // Log positions of the old life mean nothing in the new one.
        Self { life, raised_for, links: self.links.inherited(), ..self.clone() }
    }
}

/// An invalid head (R9).
#[derive(Debug, thiserror::Error)]
pub enum HeadError {
    /// The object as a whole.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// The seal does not open.
    #[error(transparent)]
    Seal(#[from] SealError),
    /// It does not decode.
    #[error("{what} of a head: found {found}, expected {expected}")]
    Form {
        /// Keyring or body.
        what: &'static str,
        /// What was there.
        found: String,
        /// What should be there.
        expected: &'static str,
    },
}

fn form(what: &'static str, found: impl Into<String>, expected: &'static str) -> HeadError {
    HeadError::Form { what, found: found.into(), expected }
}

fn write<T: Serialize>(magic: &[u8], value: &T) -> Vec<u8> {
    let mut out = magic.to_vec();
    let body = postcard::to_stdvec(value);
    // Postcard refuses only sequences of unknown length; there are none here.
    assert!(body.is_ok(), "R9: a head cannot be encoded: {:?}", body.err());
    out.extend_from_slice(&body.unwrap_or_default());
    out
}

fn read<T: for<'a> Deserialize<'a>>(what: &'static str, magic: &'static [u8], bytes: &[u8]) -> Result<T, HeadError> {
    let body = bytes.strip_prefix(magic).ok_or_else(|| {
        form(what, format!("{:02x?}", &bytes[..bytes.len().min(4)]), "its magic and a version that this build knows")
    })?;
    let (value, rest) =
        postcard::take_from_bytes(body).map_err(|e| form(what, e.to_string(), "what a gateway wrote"))?;
    if rest.is_empty() { Ok(value) } else { Err(form(what, format!("{} bytes more", rest.len()), "its end")) }
}

/// Seals a new version of the head. The sealer's id must be fresh.
pub fn seal_head(head: &Head, keyring: &Keyring, mut sealer: ObjectSealer) -> Bytes {
    let mut object = vec![0; OBJECT_HEADER_BYTES];
    object.extend_from_slice(&write(KEYRING_MAGIC, keyring));
    let body = write(HEAD_MAGIC, &(keyring, head));
    seal_frame(ObjectKind::Head, &mut sealer, Part::Header, &body, &mut object);
    Bytes::from(object)
}

/// Seals the tombstone that replaces a deleted set's head (HEAD-H4), with the set's own key while it exists: a holder
/// of the key can tell that it is no forgery.
pub fn seal_tombstone(cluster: u128, name: Name, sealer: ObjectSealer) -> Bytes {
    let life = SetLife { cluster, generation: DELETED_GENERATION };
    let content = Restored::default();
    let links = Links::default();
    let head = Head { life, raised_for: 0, name, epoch: Epoch(0), covered: None, content, links };
    let keyring = Keyring { wrapped_key: Vec::new(), passphrase: Argon2id::ours([0; 16]) };
    seal_head(&head, &keyring, sealer)
}

/// Whether the object is a tombstone (HEAD-H4), as far as visible without a key.
pub fn is_tombstone(object: &[u8]) -> bool {
    read_keyring(object).is_ok_and(|(_, keyring)| keyring.wrapped_key.is_empty())
}

/// Reads the part of a head that needs no key: header and keyring. Not authenticated before [`open_head`].
///
/// # Errors
/// [`HeadError`].
pub fn read_keyring(object: &[u8]) -> Result<(ObjectHeader, Keyring), HeadError> {
    if object.len() > HEAD_BYTES_MAX {
        return Err(form("object", format!("{} bytes", object.len()), "at most 512 KiB"));
    }
    let header = ObjectHeader::decode(object)?;
    let end = usize::try_from(header.main_offset).unwrap_or(usize::MAX);
    let clear = object
        .get(OBJECT_HEADER_BYTES..end)
        .ok_or_else(|| form("keyring", format!("{} bytes in all", object.len()), "a whole object"))?;
    Ok((header, read("keyring", KEYRING_MAGIC, clear)?))
}

/// Opens an object of [`seal_head`].
///
/// # Errors
/// [`HeadError`] where the object is not this head.
pub fn open_head(opener: &ObjectOpener, object: &[u8]) -> Result<Head, HeadError> {
    let (_, clear) = read_keyring(object)?;
    let (header, main) = ObjectHeader::of_whole(ObjectKind::Head, opener, object)?;
    let plain = opener.open_part_by(header.key_id, Part::Header, main)?;
    let (keyring, head): (Keyring, Head) = read("body", HEAD_MAGIC, &plain)?;
    if keyring != clear {
        return Err(form("keyring", "another one in clear", "the one that was sealed with it"));
    }
    Ok(head)
}

#[cfg(test)]
mod tests;
