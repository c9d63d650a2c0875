//! Which life of a member speaks: disk, boot counter and nonce go with every call and every answer between gateways, and one that
//! cannot be the member any more is refused (C3): a restored disk is older than what was seen, a cloned one has a counter that is taken.
//!
//! What is known comes from group 0, as applied here. A member or a start that is not known yet is let through: after a start of all
//! gateways at once nobody could register before group 0 has a leader, and group 0 has none before they talk.

use crate::protocol::Protocol;
use holdfast_types::MemberId;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};
use tonic::metadata::{MetadataMap, MetadataValue};

/// Metadata key: disk in hex, boot counter, nonce.
const META_LIFE: &str = "holdfast-life";

/// One process on one disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    /// The disk's uuid.
    pub disk: u128,
    /// The disk's boot counter.
    pub boot: u64,
    /// Drawn by the process.
    pub nonce: u64,
}

/// What group 0 knows of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownLife {
    /// The disk that joined.
    pub disk: u128,
    /// Boot counter and nonce of its last registered start.
    pub boot: Option<(u64, u64)>,
}

impl KnownLife {
    /// Whether `life` may speak for the member.
    ///
    /// # Errors
    /// What was found and expected.
    pub fn judge(&self, life: &Life) -> Result<(), String> {
        if life.disk != self.disk {
            return Err(format!("disk: found {:032x}, expected {:032x}", life.disk, self.disk));
        }
        match self.boot {
            Some((seen, _)) if life.boot < seen => Err(format!(
                "boot counter: found {}, expected at least {seen}, which was registered: a disk restored from an older copy, or a \
                 process that another start has taken over from",
                life.boot
            )),
            Some((seen, nonce)) if life.boot == seen && life.nonce != nonce => {
                Err(format!("boot counter {seen} is that of another process: a cloned disk"))
            }
            _ => Ok(()),
        }
    }
}

/// This process's life, and what is known of the others'.
#[derive(Debug)]
pub(crate) struct Lives {
    own: Life,
    protocol: Protocol,
    known: RwLock<BTreeMap<MemberId, KnownLife>>,
    /// Ids below it were given away: one of them that is not known was removed.
    next: AtomicU64,
}

impl Lives {
    pub(crate) fn new(own: Life, protocol: Protocol) -> Self {
        Self { own, protocol, known: RwLock::default(), next: AtomicU64::new(0) }
    }

    pub(crate) fn set_known(&self, known: BTreeMap<MemberId, KnownLife>, next: MemberId) {
        *self.known.write().unwrap_or_else(PoisonError::into_inner) = known;
        self.next.store(next.0, Ordering::Release);
    }

    /// Whether `member` was one and is none any more: ids are never used again.
    pub(crate) fn removed(&self, member: MemberId) -> bool {
        let known = || self.known.read().unwrap_or_else(PoisonError::into_inner).contains_key(&member);
        member.0 < self.next.load(Ordering::Acquire) && !known()
    }

    /// Whether the other side speaks a version of the peer protocol that this one does.
    pub(crate) fn check_protocol(&self, meta: &MetadataMap) -> Result<(), String> {
        self.protocol.common(meta).map(drop)
    }

    /// Says who we are, and what we speak.
    pub(crate) fn stamp(&self, meta: &mut MetadataMap) {
        self.protocol.stamp(meta);
        let Life { disk, boot, nonce } = self.own;
        if let Ok(text) = MetadataValue::try_from(format!("{disk:032x} {boot} {nonce}")) {
            meta.insert(META_LIFE, text);
        }
    }

    pub(crate) fn own(&self) -> Life {
        self.own
    }

    /// What a call says of its sender.
    pub(crate) fn of(meta: &MetadataMap) -> Option<Life> {
        parse(meta.get(META_LIFE)?.to_str().ok()?)
    }

    /// Whether what `from` says of itself can be true, and we understand each other.
    pub(crate) fn check(&self, from: MemberId, meta: &MetadataMap) -> Result<(), String> {
        self.check_protocol(meta).map_err(|why| format!("{from}: {why}"))?;
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner).get(&from).copied();
        let Some(known) = known else { return Ok(()) };
        let text = meta.get(META_LIFE).and_then(|v| v.to_str().ok()).unwrap_or("");
        let life =
            parse(text).ok_or_else(|| format!("{from}: found {text:?}, expected disk, boot counter and nonce"))?;
        known.judge(&life).map_err(|why| format!("{from} is not who it says: {why}"))
    }
}

fn parse(text: &str) -> Option<Life> {
    let mut words = text.split(' ');
    let disk = u128::from_str_radix(words.next()?, 16).ok()?;
    let (boot, nonce) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    words.next().is_none().then_some(Life { disk, boot, nonce })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::PROTOCOL;

    #[test]
    fn an_older_or_a_cloned_life_is_refused_and_a_newer_one_is_not() {
        let own = Life { disk: 7, boot: 4, nonce: 40 };
        let (member, lives) = (MemberId(2), Lives::new(Life { disk: 1, boot: 1, nonce: 1 }, PROTOCOL));
        let check = |life: Life| {
            let mut meta = MetadataMap::new();
            Lives::new(life, PROTOCOL).stamp(&mut meta);
            lives.check(member, &meta)
        };
        assert_eq!(check(own), Ok(()), "nothing is known of it yet");
        lives.set_known([(member, KnownLife { disk: 7, boot: None })].into(), MemberId(3));
        assert_eq!(check(own), Ok(()), "not registered yet");
        assert!(check(Life { disk: 8, ..own }).is_err(), "another disk");
        assert!(lives.check(member, &MetadataMap::new()).is_err(), "it does not say");
        lives.set_known([(member, KnownLife { disk: 7, boot: Some((4, 40)) })].into(), MemberId(3));
        assert_eq!(check(own), Ok(()));
        assert_eq!(check(Life { boot: 5, nonce: 50, ..own }), Ok(()), "its next start");
        assert!(check(Life { boot: 3, ..own }).is_err(), "restored");
        assert!(check(Life { nonce: 41, ..own }).is_err(), "cloned");
        let mut meta = MetadataMap::new();
        Lives::new(own, Protocol { oldest: 2, newest: 3 }).stamp(&mut meta);
        let why = lives.check(member, &meta).unwrap_err();
        assert!(why.starts_with("m2: peer protocol: the other gateway speaks versions 2-3"), "{why}");
        let removed = [1, 2, 3, 9].map(|id| lives.removed(MemberId(id)));
        assert_eq!(removed, [true, false, false, false], "m1 was one; m3 may come");
        assert!(parse("7 4").is_none() && parse("7 4 40 1").is_none() && parse("x 4 40").is_none());
    }
}
