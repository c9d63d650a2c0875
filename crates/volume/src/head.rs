//! The head of a set in its store: what a cluster can be rebuilt from when every gateway is gone, and the fence between its lives.
//!
//! The one object of a set that is replaced, always by a conditional PUT. Its frame is that of [`crate::object`] under an id drawn
//! anew for each version, which makes every version's bytes unique (R12):
//!
//! ```text
//!   | header | keyring, in clear: "HFK" version(1), postcard of Keyring | sealed: "HFH" version(1), postcard of Keyring and Head |
//! ```
//! The keyring must be readable before the data key is known; the wrapped key in it authenticates itself, and a copy of all of it is
//! sealed, so that a forged one is found (R9, R10).
//!
//! HEAD-H1  Generations of a set's head only grow. Whoever finds a higher one than its own, or its own under another cluster's name, has
//!     been replaced, and serves nothing any more.
//! HEAD-H2  Within a generation the log id that the head covers only grows, and everything that its root names was in the store before. Everything that it
//!     lists of snapshots is there too (SET-S15).
//! HEAD-H3  What the head names is the state at one log id, whole: a prefix of the set's order of writes (R4).
//! HEAD-H4  A head whose keyring has no key stands where a set was, for ever: a tombstone. Its generation is one that no life has, so whoever lived the set
//!     finds that it has been replaced (HEAD-H1), and no PUT of a life that is over takes its place.

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

/// Bytes of a head at most: half of it for snapshots; 256 volumes with the longest names take a twentieth.
pub const HEAD_BYTES_MAX: usize = 512 << 10;

const _: () = assert!(LIST_BYTES_MAX * 2 <= HEAD_BYTES_MAX);

/// The generation of a tombstone (HEAD-H4).
pub const DELETED_GENERATION: u64 = u64::MAX;

/// What opens a set's data, given the cluster key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Keyring {
    /// The set's data key, wrapped by the cluster key.
    pub wrapped_key: Vec<u8>,
    /// Where a passphrase leads to the cluster key.
    pub passphrase: Argon2id,
}

/// One life of a set: a recovery begins the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetLife {
    /// The cluster that the set lives in.
    pub cluster: u128,
    /// Which life.
    pub generation: u64,
}

/// A checkpoint as the head names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Covered {
    /// It holds every entry up to this one.
    pub upto: LogId,
    /// The generation in whose log that entry is.
    pub generation: u64,
    /// Wall clock of the gateway that made it, in Unix milliseconds, from just before: what was acknowledged earlier is in it. For people.
    pub at_unix_ms: u64,
}

/// The head, opened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// Who may replace it.
    pub life: SetLife,
    /// Disk uuid of a gateway that a recovery raised the generation for, until that life's first checkpoint; then 0. A recovery that was
    /// cut short goes on only with that very gateway.
    pub raised_for: u128,
    /// The set's name.
    pub name: Name,
    /// The last epoch granted as of the checkpoint, for people: the base of the next life lies above it by construction.
    pub epoch: Epoch,
    /// Which moment of the set this is; `None` before the first checkpoint.
    pub covered: Option<Covered>,
    /// The set at that moment.
    pub content: Restored,
    /// Its pins, what it is a clone of, and its snapshots: of the moment at which the head was written, not of the checkpoint's. What is pinned too long costs space;
    /// a pin that a recovery did not find would cost the clone.
    pub links: Links,
}

/// What a head says to somebody who lives `life`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It is this life's.
    Ours,
    /// An older life's: a stale read. It proves nothing.
    Older,
    /// Another life has taken the set over (HEAD-H1).
    Taken,
}

impl Head {
    /// What this head says to somebody who lives `life`.
    pub fn standing(&self, life: SetLife) -> Standing {
        match self.life.generation.cmp(&life.generation) {
            std::cmp::Ordering::Less => Standing::Older,
            std::cmp::Ordering::Equal if self.life.cluster == life.cluster => Standing::Ours,
            // HEAD-H1: two recoveries began from one life; the conditional PUT let one of them through.
            _ => Standing::Taken,
        }
    }

    /// Whether this head of the same life covers what `next` would: `next` is old then (HEAD-H2).
    pub fn covers(&self, next: &Covered) -> bool {
        self.covered.is_some_and(|c| c.generation == next.generation && c.upto.index >= next.upto.index)
    }

    /// The head of the life after this one, which begins with the same content.
    pub fn raised(&self, cluster: u128, raised_for: u128) -> Self {
        let life = SetLife { cluster, generation: self.life.generation.saturating_add(1) };
        // Places in the log of the life before mean nothing in the next.
        Self { life, raised_for, links: self.links.inherited(), ..self.clone() }
    }
}

/// A head is not what it should be (R9).
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
    // Postcard refuses only what has no length ahead, and nothing here is of that kind.
    assert!(body.is_ok(), "R9: a head cannot be written: {:?}", body.err());
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

/// A new version of the head, as an object. The sealer's id must have been drawn for it.
pub fn seal_head(head: &Head, keyring: &Keyring, mut sealer: ObjectSealer) -> Bytes {
    let mut object = vec![0; OBJECT_HEADER_BYTES];
    object.extend_from_slice(&write(KEYRING_MAGIC, keyring));
    let body = write(HEAD_MAGIC, &(keyring, head));
    seal_frame(ObjectKind::Head, &mut sealer, Part::Header, &body, &mut object);
    Bytes::from(object)
}

/// What takes the place of a deleted set's head (HEAD-H4), sealed by the set's own key as long as there is one: who still has it can tell that this is no forgery.
pub fn seal_tombstone(cluster: u128, name: Name, sealer: ObjectSealer) -> Bytes {
    let life = SetLife { cluster, generation: DELETED_GENERATION };
    let content = Restored::default();
    let links = Links::default();
    let head = Head { life, raised_for: 0, name, epoch: Epoch(0), covered: None, content, links };
    let keyring = Keyring { wrapped_key: Vec::new(), passphrase: Argon2id::ours([0; 16]) };
    seal_head(&head, &keyring, sealer)
}

/// Whether this stands where a set was (HEAD-H4), as far as can be told without a key.
pub fn is_tombstone(object: &[u8]) -> bool {
    read_keyring(object).is_ok_and(|(_, keyring)| keyring.wrapped_key.is_empty())
}

/// The part of a head that can be read without its key: the header and the keyring. Not authentic before [`open_head`].
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

/// Opens what [`seal_head`] made.
///
/// # Errors
/// [`HeadError`] where the object is not exactly this head.
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
