//! Checks which life of a member sent a call or an answer. Each one carries disk, boot counter and nonce. A life that
//! cannot be the member's is refused (CLUSTER-C3): a restored disk has an older counter than was seen, a copied disk
//! has a counter that is taken, and a copy that has counted further does not remember the registered life.
//!
//! The known lives come from group 0, as applied here. A member or a start that is not known yet is accepted: when all
//! gateways start at once, nobody can register before group 0 has a leader, and it gets no leader before they talk.

use crate::protocol::Protocol;
use holdfast_types::sync::{LockExt, RwLockExt};
use holdfast_types::{MemberId, MonoTime};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, RwLock};
use std::time::Duration;
use tonic::metadata::{MetadataMap, MetadataValue};

/// Metadata key: disk in hex, boot counter, nonce.
const META_LIFE: &str = "holdfast-life";

/// Metadata key: the earlier lives, `COUNTER:NONCE` each, oldest first. Missing if there are none.
const META_BEFORE: &str = "holdfast-lives-before";

/// Maximum number of lives that one disk remembers.
pub const LIVES_MAX: usize = 64;

/// One process on one disk, until it renews its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    /// The disk's boot counter: counts its starts, and the renewals of its life.
    pub boot: u64,
    /// Drawn for this life.
    pub nonce: u64,
    /// The disk's uuid.
    pub disk: u128,
}

/// A life, and the earlier lives of its disk that may still be the last one known to group 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lineage {
    /// The present life.
    pub life: Life,
    /// Counter and nonce of the earlier lives, oldest first, from the last one known to be registered. Older ones were
    /// registered before that one and cannot be the newest. Empty if nothing is known of them.
    pub before: Vec<(u64, u64)>,
}

impl From<Life> for Lineage {
    fn from(life: Life) -> Self {
        Self { life, before: Vec::new() }
    }
}

/// The data of a member in group 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownLife {
    /// The disk that joined.
    pub disk: u128,
    /// Boot counter and nonce of its last registered start.
    pub boot: Option<(u64, u64)>,
}

impl KnownLife {
    /// Whether this lineage may speak for the member.
    ///
    /// # Errors
    /// What was found and what was expected.
    pub fn judge(&self, Lineage { life, before }: &Lineage) -> Result<(), String> {
        if life.disk != self.disk {
            holdfast_reached::reached!("lives: another disk speaks for a member");
            return Err(format!("disk: found {:032x}, expected {:032x}", life.disk, self.disk));
        }
        holdfast_reached::reached!(
            "lives: an earlier life speaks for a member",
            self.boot.is_some_and(|(seen, _)| life.boot < seen)
        );
        holdfast_reached::reached!(
            "lives: a copied disk speaks for a member",
            self.boot.is_some_and(|(seen, nonce)| life.boot == seen && life.nonce != nonce)
        );
        match self.boot {
            Some((seen, _)) if life.boot < seen => Err(format!(
                "boot counter: found {}, expected at least {seen}, which was registered: a disk restored from an older copy, or a \
                 process that another start has taken over from",
                life.boot
            )),
            Some((seen, nonce)) if life.boot == seen && life.nonce != nonce => {
                Err(format!("boot counter {seen} is that of another process: a copied disk"))
            }
            // Its counter is above the registered one, and it remembers another life under that number, or none. A
            // receiver that is far behind knows an older life than any in `before`: it cannot judge.
            Some((seen, nonce))
                if before.first().is_some_and(|(oldest, _)| *oldest <= seen)
                    && life.boot > seen
                    && !before.contains(&(seen, nonce)) =>
            {
                holdfast_reached::reached!("lives: a restored disk has started again since");
                Err(format!(
                    "boot counter {seen} was registered by a process that is not in the history of this disk: the disk was restored from an older copy, or copied, and started since"
                ))
            }
            _ => Ok(()),
        }
    }
}

/// This process's own lives.
#[derive(Debug)]
struct Own {
    lineage: Lineage,
    /// The life before the last renewal: a call that was sent before may still carry it.
    renewed: Option<Life>,
}

/// Message for a member that is refused; the member then ends.
pub fn not_who_it_says(member: MemberId, why: &str) -> String {
    format!(
        "{member} is not who it says: {why}. If another process runs as {member}, end this one; otherwise stop this gateway, move its data_dir away, start it empty, and join it \
         in place of {member} (holdfast gateway replace)"
    )
}

/// This process's life, and the known lives of the others.
#[derive(Debug)]
pub(crate) struct Lives {
    own: RwLock<Own>,
    protocol: Protocol,
    known: RwLock<BTreeMap<MemberId, KnownLife>>,
    /// All ids below this were assigned: one of them that is not known was removed.
    next: AtomicU64,
    /// The cluster's feature level.
    level: AtomicU32,
    /// When it was said last that a call is refused for its protocol.
    refusal_said: Mutex<Option<MonoTime>>,
}

/// Minimum time between two lines about calls that are refused for their protocol. A gateway of another build asks for
/// each group again and again.
const SAY_AGAIN: Duration = Duration::from_secs(30);

impl Lives {
    pub(crate) fn new(own: Lineage, protocol: Protocol) -> Self {
        let own = RwLock::new(Own { lineage: own, renewed: None });
        let (known, next, level) = (RwLock::default(), AtomicU64::new(0), AtomicU32::new(0));
        Self { own, protocol, known, next, level, refusal_said: Mutex::default() }
    }

    /// Whether a call that is refused for its protocol leaves a line in the log at `now`.
    pub(crate) fn may_say_refusal(&self, now: MonoTime) -> bool {
        let mut said = self.refusal_said.locked();
        let may = said.is_none_or(|at| now.saturating_since(at) >= SAY_AGAIN);
        if may {
            *said = Some(now);
        }
        may
    }

    /// The same process continues under this life.
    pub(crate) fn set_own(&self, lineage: Lineage) {
        let mut own = self.own.writing();
        if own.lineage.life != lineage.life {
            own.renewed = Some(own.lineage.life);
        }
        own.lineage = lineage;
    }

    /// Whether `life` is this process.
    pub(crate) fn is_own(&self, life: &Life) -> bool {
        let own = self.own.reading();
        own.lineage.life == *life || own.renewed.as_ref() == Some(life)
    }

    pub(crate) fn set_known(&self, known: BTreeMap<MemberId, KnownLife>, next: MemberId, level: u32) {
        *self.known.writing() = known;
        self.next.store(next.0, Ordering::Release);
        self.level.store(level, Ordering::Release);
    }

    /// Whether `member` was removed: ids are never reused.
    pub(crate) fn removed(&self, member: MemberId) -> bool {
        let known = || self.known.reading().contains_key(&member);
        member.0 < self.next.load(Ordering::Acquire) && !known()
    }

    /// Whether the other side supports a version of the peer protocol that this one supports.
    pub(crate) fn check_protocol(&self, meta: &MetadataMap) -> Result<(), String> {
        self.protocol.common(meta).map(drop)
    }

    /// Adds this process's life and its protocol versions.
    pub(crate) fn stamp(&self, meta: &mut MetadataMap) {
        self.protocol.stamp(meta);
        let own = self.own.reading();
        let Life { disk, boot, nonce } = own.lineage.life;
        if let Ok(text) = MetadataValue::try_from(format!("{disk:032x} {boot} {nonce}")) {
            meta.insert(META_LIFE, text);
        }
        if own.lineage.before.is_empty() {
            return;
        }
        let before: Vec<String> = own.lineage.before.iter().map(|(boot, nonce)| format!("{boot}:{nonce}")).collect();
        if let Ok(text) = MetadataValue::try_from(before.join(" ")) {
            meta.insert(META_BEFORE, text);
        }
    }

    pub(crate) fn own(&self) -> Lineage {
        self.own.reading().lineage.clone()
    }

    /// The sender's lineage in a call.
    pub(crate) fn of(meta: &MetadataMap) -> Option<Lineage> {
        let life = parse(meta.get(META_LIFE)?.to_str().ok()?)?;
        let before = match meta.get(META_BEFORE) {
            None => Vec::new(),
            Some(text) => parse_before(text.to_str().ok()?)?,
        };
        Some(Lineage { life, before })
    }

    /// Whether `lineage` may speak for `member`, as far as is known here. A member whose build knows less than feature
    /// level `level` is not judged: it counts starts but not lives, so its counter may be behind. It is refused because
    /// of its build.
    pub(crate) fn judge(&self, member: MemberId, lineage: &Lineage, level: u32) -> Result<(), String> {
        if level < self.level.load(Ordering::Acquire) {
            return Ok(());
        }
        let known = self.known.reading().get(&member).copied();
        known.map_or(Ok(()), |known| known.judge(lineage))
    }

    /// Whether `from` can be the member that it claims to be, and supports one of our protocol versions.
    pub(crate) fn check(&self, from: MemberId, meta: &MetadataMap) -> Result<(), String> {
        self.check_protocol(meta).map_err(|why| format!("{from}: {why}"))?;
        let known = self.known.reading().get(&from).copied();
        let Some(known) = known else { return Ok(()) };
        let text = |key| meta.get(key).and_then(|v| v.to_str().ok()).unwrap_or("");
        let lineage = Self::of(meta).ok_or_else(|| {
            let (life, before) = (text(META_LIFE), text(META_BEFORE));
            format!(
                "{from}: found {life:?} and {before:?}, expected disk, boot counter and nonce, and the lives before"
            )
        })?;
        known.judge(&lineage).map_err(|why| format!("{from} is not who it says: {why}"))
    }
}

fn parse(text: &str) -> Option<Life> {
    let mut words = text.split(' ');
    let disk = u128::from_str_radix(words.next()?, 16).ok()?;
    let (boot, nonce) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    words.next().is_none().then_some(Life { disk, boot, nonce })
}

fn parse_before(text: &str) -> Option<Vec<(u64, u64)>> {
    let one = |word: &str| {
        let (boot, nonce) = word.split_once(':')?;
        Some((boot.parse().ok()?, nonce.parse().ok()?))
    };
    let before: Vec<_> = text.split(' ').map(one).collect::<Option<_>>()?;
    let rising = before.is_sorted_by(|(a, _): &(u64, u64), (b, _)| a < b);
    (rising && before.len() <= LIVES_MAX).then_some(before)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::PROTOCOL;

    #[test]
    fn refusals_of_another_build_leave_a_line_now_and_then() {
        let lives = Lives::new(Life { disk: 1, boot: 1, nonce: 1 }.into(), PROTOCOL);
        let at = |seconds: u64| MonoTime(seconds * 1_000_000_000);
        let said: Vec<u64> = (5..100).filter(|&seconds| lives.may_say_refusal(at(seconds))).collect();
        assert_eq!(said, [5, 35, 65, 95]);
    }

    #[test]
    fn an_older_or_a_copied_life_is_refused_and_a_newer_one_is_not() {
        let own = Life { disk: 7, boot: 4, nonce: 40 };
        let (member, lives) = (MemberId(2), Lives::new(Life { disk: 1, boot: 1, nonce: 1 }.into(), PROTOCOL));
        let check = |life: Life| {
            let mut meta = MetadataMap::new();
            Lives::new(life.into(), PROTOCOL).stamp(&mut meta);
            lives.check(member, &meta)
        };
        assert_eq!(check(own), Ok(()), "nothing is known of it yet");
        lives.set_known([(member, KnownLife { disk: 7, boot: None })].into(), MemberId(3), 1);
        assert_eq!(check(own), Ok(()), "not registered yet");
        assert!(check(Life { disk: 8, ..own }).is_err(), "another disk");
        assert!(lives.check(member, &MetadataMap::new()).is_err(), "it does not say");
        lives.set_known([(member, KnownLife { disk: 7, boot: Some((4, 40)) })].into(), MemberId(3), 1);
        assert_eq!(check(own), Ok(()));
        assert_eq!(check(Life { boot: 5, nonce: 50, ..own }), Ok(()), "its next start");
        assert!(check(Life { boot: 3, ..own }).is_err(), "restored");
        assert!(check(Life { nonce: 41, ..own }).is_err(), "copied");
        let mut meta = MetadataMap::new();
        let later = Protocol { oldest: PROTOCOL.newest + 1, newest: PROTOCOL.newest + 2 };
        Lives::new(own.into(), later).stamp(&mut meta);
        let why = lives.check(member, &meta).unwrap_err();
        let (oldest, newest) = (later.oldest, later.newest);
        let says = format!("m2: peer protocol: the other gateway speaks versions {oldest}-{newest}");
        assert!(why.starts_with(&says), "{why}");
        let removed = [1, 2, 3, 9].map(|id| lives.removed(MemberId(id)));
        assert_eq!(removed, [true, false, false, false], "m1 was one; m3 may come");
        assert!(parse("7 4").is_none() && parse("7 4 40 1").is_none() && parse("x 4 40").is_none());
    }

    /// CLUSTER-C3: a disk whose counter is above the registered one speaks for the member only if it remembers that
    /// life.
    #[test]
    fn a_disk_that_does_not_remember_what_was_registered_is_refused_however_often_it_starts() {
        let (member, lives) = (MemberId(2), Lives::new(Life { disk: 1, boot: 1, nonce: 1 }.into(), PROTOCOL));
        let known = |boot, nonce| {
            lives.set_known([(member, KnownLife { disk: 7, boot: Some((boot, nonce)) })].into(), MemberId(3), 1);
        };
        let check = |boot, before: &[(u64, u64)]| {
            let (mut meta, life) = (MetadataMap::new(), Life { disk: 7, boot, nonce: boot * 10 });
            Lives::new(Lineage { life, before: before.to_vec() }, PROTOCOL).stamp(&mut meta);
            lives.check(member, &meta)
        };
        // Two lives were registered; the disk remembers the second, or both.
        known(5, 50);
        assert_eq!(check(6, &[(5, 50)]), Ok(()));
        assert_eq!(check(7, &[(4, 40), (5, 50), (6, 60)]), Ok(()), "starts that were not registered, or not answered");
        // A copy from before life 5: it has another life 5, and so does every later start of it.
        for boot in [6, 7, 60] {
            let why = check(boot, &[(4, 40), (5, 51), (6, 61)]).unwrap_err();
            assert!(
                why.contains("boot counter 5 was registered by a process that is not in the history of this disk"),
                "{why}"
            );
        }
        assert!(check(6, &[(4, 40)]).is_err(), "nor does one that it has left out count");
        assert!(check(6, &[(5, 51)]).is_err(), "the oldest that it remembers is another life 5");
        // Nothing is known of the earlier lives, as in builds that did not send them. A receiver that is behind all of
        // them cannot judge either.
        assert_eq!(check(6, &[]), Ok(()));
        assert_eq!(check(9, &[(7, 70), (8, 80)]), Ok(()));
        known(8, 80);
        assert_eq!(check(9, &[(7, 70), (8, 80)]), Ok(()));
        // A list that cannot be read is not accepted.
        let mut meta = MetadataMap::new();
        Lives::new(Life { disk: 7, boot: 9, nonce: 90 }.into(), PROTOCOL).stamp(&mut meta);
        for text in ["8", "8:80 7:70", "8:80 8:80", "8:x", ""] {
            meta.insert(META_BEFORE, text.parse().unwrap());
            assert!(lives.check(member, &meta).is_err(), "{text:?}");
        }
        let many: Vec<String> = (0..=LIVES_MAX).map(|n| format!("{n}:1")).collect();
        assert!(parse_before(&many.join(" ")).is_none() && parse_before(&many[1..].join(" ")).is_some());
    }

    /// It counts starts and no lives, so its counter may be behind: it is told that its build is too old, and nothing
    /// else.
    #[test]
    fn a_member_of_a_build_below_the_clusters_level_is_not_judged_by_its_life() {
        let (member, lives) = (MemberId(2), Lives::new(Life { disk: 1, boot: 1, nonce: 1 }.into(), PROTOCOL));
        lives.set_known([(member, KnownLife { disk: 7, boot: Some((5, 50)) })].into(), MemberId(3), 4);
        let stale = Lineage::from(Life { disk: 7, boot: 4, nonce: 40 });
        let judged = [2, 3, 4, 5].map(|level| lives.judge(member, &stale, level).is_ok());
        assert_eq!(judged, [true, true, false, false]);
        assert_eq!(lives.judge(MemberId(9), &stale, 4), Ok(()), "nothing is known of it");
    }

    #[test]
    fn a_process_that_renews_its_life_is_still_itself() {
        let life = |boot| Life { disk: 7, boot, nonce: boot * 10 };
        let lives = Lives::new(life(3).into(), PROTOCOL);
        lives.set_own(Lineage { life: life(4), before: vec![(3, 30)] });
        assert!(lives.is_own(&life(3)) && lives.is_own(&life(4)) && !lives.is_own(&life(5)));
        lives.set_own(life(4).into());
        assert!(lives.is_own(&life(3)), "it forgets the lives before once this one is registered");
        lives.set_own(Lineage { life: life(5), before: vec![(4, 40)] });
        assert!(!lives.is_own(&life(3)) && lives.is_own(&life(4)));
        assert!(!lives.is_own(&Life { nonce: 1, ..life(5) }));
    }
}
