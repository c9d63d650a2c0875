//! Ids and places. Each is a type of its own, so that a place cannot be used as a length, nor an epoch as a term.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Bytes in one sector: the smallest unit that a client can address (NBD minimum block size here).
pub const SECTOR_BYTES: u64 = 512;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty), $show:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($show, "{}"), self.0)
            }
        }
    };
}

number!(
    /// A Raft member: one gateway's disk. Never reused, also not after the member was removed.
    MemberId(u64), "m");
number!(
    /// A Raft group: 0 is the cluster group, every volume set has one of its own.
    GroupId(u64), "g");
number!(
    /// A volume inside its set. Never reused within the set.
    VolumeId(u32), "v");
number!(
    /// A Raft term. With one leader per term at most, a term names its leader.
    Term(u64), "t");
number!(
    /// A place in a group's Raft log.
    LogIndex(u64), "i");
number!(
    /// The fencing token of R2: grows by every grant, carried by every write, checked at apply.
    Epoch(u64), "e");
number!(
    /// Gapless number of a write entry within its epoch, from 1 (R2).
    WriteSeq(u64), "s");
number!(
    /// A place on a volume in sectors of [`SECTOR_BYTES`].
    Lba(u64), "lba");
number!(
    /// A length on a volume in sectors of [`SECTOR_BYTES`].
    Sectors(u64), "");
number!(
    /// A place in a file or object in bytes.
    ByteOffset(u64), "@");

impl GroupId {
    /// The cluster group: members, sets, regions, wrapped keys.
    pub const CLUSTER: GroupId = GroupId(0);
}

/// A volume set is named by its Raft group: one group each.
pub type SetId = GroupId;

impl Lba {
    /// First byte of the sector. `None` where it would not fit 64 bits.
    pub fn to_bytes(self) -> Option<ByteOffset> {
        self.0.checked_mul(SECTOR_BYTES).map(ByteOffset)
    }

    /// The sector that starts at `offset`. `None` where `offset` is not on a sector boundary.
    pub fn from_bytes(offset: u64) -> Option<Lba> {
        offset.is_multiple_of(SECTOR_BYTES).then_some(Lba(offset / SECTOR_BYTES))
    }

    /// The place `count` sectors further on. `None` on overflow.
    pub fn checked_add(self, count: Sectors) -> Option<Lba> {
        self.0.checked_add(count.0).map(Lba)
    }
}

impl Sectors {
    /// Length in bytes. `None` where it would not fit 64 bits.
    pub fn to_bytes(self) -> Option<u64> {
        self.0.checked_mul(SECTOR_BYTES)
    }

    /// A length in bytes as sectors. `None` where it is not a multiple of [`SECTOR_BYTES`].
    pub fn from_bytes(len: u64) -> Option<Sectors> {
        len.is_multiple_of(SECTOR_BYTES).then_some(Sectors(len / SECTOR_BYTES))
    }
}

/// Place and author of a Raft entry. One leader per term at most, hence no node id in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LogId {
    /// Term of the leader that appended the entry.
    pub term: Term,
    /// Place in the group's log.
    pub index: LogIndex,
}

impl LogId {
    /// Shorthand from raw numbers.
    pub fn new(term: u64, index: u64) -> Self {
        Self { term: Term(term), index: LogIndex(index) }
    }
}

impl fmt::Display for LogId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.term, self.index)
    }
}

/// Proof that its bearer holds the current grant of a set. Compared, never guessed: 128 random bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Token(pub u128);

/// Identity of a request that may be sent more than once (R12).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RequestId(pub u128);

impl fmt::Debug for Token {
    /// A token is a secret: logs show only enough of it to tell two apart.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({:08x}..)", (self.0 >> 96) as u32)
    }
}

/// 128 bits as 32 lower-case hex digits: the only text form of a token and a request id.
fn parse_hex128(text: &str) -> Option<u128> {
    let lower = text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    (text.len() == 32 && lower).then(|| u128::from_str_radix(text, 16).ok()).flatten()
}

impl Token {
    /// The text form: 32 lower-case hex digits.
    pub fn to_text(self) -> String {
        format!("{:032x}", self.0)
    }

    /// Reads what [`Token::to_text`] wrote. `None` for anything else.
    pub fn from_text(text: &str) -> Option<Self> {
        parse_hex128(text).map(Token)
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// Identity of one immutable object in a store, unique for ever (R7): who made it, and 128 random bits.
///
/// The text form is part of the object's key and of the key derivation: it is pinned by a test and never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ObjectId {
    /// Raft term of the maker: a leader takes what it finds of earlier terms for orphans, and of its own only what it
    /// knows that it gave up itself.
    pub term: Term,
    /// The member that made it.
    pub member: MemberId,
    /// That member's boot counter.
    pub boot: u64,
    /// Drawn when the object is sealed; a retry sends the same bytes under the same id.
    pub random: u128,
}

/// An object id could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("object id: found {found:?}, expected TERM-MEMBER-BOOT-RANDOM as 16, 16, 16 and 32 lower-case hex digits")]
pub struct ObjectIdError {
    /// The text that was found.
    pub found: String,
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}-{:016x}-{:016x}-{:032x}", self.term.0, self.member.0, self.boot, self.random)
    }
}

impl FromStr for ObjectId {
    type Err = ObjectIdError;

    fn from_str(text: &str) -> Result<Self, ObjectIdError> {
        let bad = || ObjectIdError { found: text.chars().take(120).collect() };
        let parts: Vec<&str> = text.split('-').collect();
        let [term, member, boot, random] = parts.as_slice() else { return Err(bad()) };
        let short = |part: &str| -> Option<u64> {
            let lower = part.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
            (part.len() == 16 && lower).then(|| u64::from_str_radix(part, 16).ok()).flatten()
        };
        Ok(ObjectId {
            term: Term(short(term).ok_or_else(bad)?),
            member: MemberId(short(member).ok_or_else(bad)?),
            boot: short(boot).ok_or_else(bad)?,
            random: parse_hex128(random).ok_or_else(bad)?,
        })
    }
}

/// A moment on one node's CLOCK_BOOTTIME, or on its CLOCK_MONOTONIC where that is said, in nanoseconds. Durations may
/// cross the wire, moments may not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MonoTime(pub u64);

impl MonoTime {
    /// The moment `d` later; stays at the end of time rather than wrap.
    pub fn saturating_add(self, d: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// Time since `earlier`, zero where `earlier` is later.
    pub fn saturating_since(self, earlier: MonoTime) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn object_id_text_is_pinned() {
        let id = ObjectId { term: Term(7), member: MemberId(2), boot: 3, random: 0xabcd };
        let text = "0000000000000007-0000000000000002-0000000000000003-0000000000000000000000000000abcd";
        assert_eq!(id.to_string(), text);
        assert_eq!(text.parse::<ObjectId>(), Ok(id));
        assert!(text.to_uppercase().parse::<ObjectId>().is_err());
        assert!("7-2-3-abcd".parse::<ObjectId>().is_err());
    }

    #[test]
    fn token_hides_itself() {
        let token = Token(u128::MAX);
        assert_eq!(Token::from_text(&token.to_text()), Some(token));
        assert!(!format!("{token:?}").contains(&token.to_text()));
        assert_eq!(Token::from_text("ff"), None);
    }

    #[test]
    fn places_do_not_wrap() {
        assert_eq!(Lba(u64::MAX).to_bytes(), None);
        assert_eq!(Lba::from_bytes(511), None);
        assert_eq!(Lba(u64::MAX).checked_add(Sectors(1)), None);
    }
}
