//! By answering, a follower promises to vote for nobody else for a while (R3). How long depends on the times of the
//! group there, and its leader may have others: they change through the group's log (ADR 0058), and the settings that
//! bound them are changed one gateway after the other. So each answer to an append says for how long its sender is
//! bound, and a leader counts no more than that (PLEDGE-P3). The longest that a gateway's settings allow goes with
//! every call and answer: whoever has another setting is named.

use holdfast_types::sync::LockExt;
use holdfast_types::{MemberId, MonoTime, pledge};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;
use tonic::metadata::{MetadataMap, MetadataValue};

/// Metadata key: for how many milliseconds after sending a heartbeat a leader may read because of this member's answer.
const META_READ_LEASE: &str = "holdfast-read-lease-ms";

/// Metadata key: the longest that this could be by the settings of the gateway.
const META_LONGEST: &str = "holdfast-read-lease-longest-ms";

fn millis(time: Duration) -> MetadataValue<tonic::metadata::Ascii> {
    MetadataValue::from(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
}

fn told(meta: &MetadataMap, key: &str) -> Option<Duration> {
    meta.get(key).and_then(|text| text.to_str().ok()?.parse().ok()).map(Duration::from_millis)
}

/// Says in the answer to an append for how long the leader may read because of it.
pub(crate) fn stamp_answer(promised: Duration, meta: &mut MetadataMap) {
    meta.insert(META_READ_LEASE, millis(promised));
}

/// The longest promise of this gateway, and those of gateways with another one.
#[derive(Debug)]
pub(crate) struct Promises {
    own: Duration,
    others: Mutex<BTreeMap<MemberId, Duration>>,
}

impl Promises {
    pub(crate) fn new(own: Duration) -> Self {
        Self { own, others: Mutex::default() }
    }

    pub(crate) fn stamp(&self, meta: &mut MetadataMap) {
        meta.insert(META_READ_LEASE, millis(self.own));
        meta.insert(META_LONGEST, millis(self.own));
    }

    /// The promise in a call or an answer of `from`: of no time, if it has none.
    pub(crate) fn heard(&self, from: MemberId, meta: &MetadataMap) -> Duration {
        let promised = told(meta, META_READ_LEASE);
        // A build that does not send its longest promise gives no other.
        let longest = told(meta, META_LONGEST).or(promised).unwrap_or(Duration::ZERO);
        if longest == self.own {
            self.others.locked().remove(&from);
        } else if self.others.locked().insert(from, longest) != Some(longest) {
            tracing::warn!(member = %from, why = self.words(from, longest), "gateways have different timing settings");
        }
        promised.unwrap_or(Duration::ZERO)
    }

    /// Until when a leader here may read because of an answer to a message sent at `sent` (PLEDGE-P3).
    pub(crate) fn reads_until(&self, sent: MonoTime, theirs: Duration) -> MonoTime {
        pledge::reads_until(sent, self.own, theirs)
    }

    fn words(&self, member: MemberId, theirs: Duration) -> String {
        format!(
            "{member} lets a leader read for at most {} ms after a heartbeat, this gateway for {} ms: give all gateways the same rtt_ms",
            theirs.as_millis(),
            self.own.as_millis()
        )
    }

    /// For each member with another longest promise: what to do about it.
    pub(crate) fn unequal(&self) -> Vec<String> {
        self.others.locked().iter().map(|(member, theirs)| self.words(*member, *theirs)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(ms: u64) -> MetadataMap {
        let mut meta = MetadataMap::new();
        Promises::new(Duration::from_millis(ms)).stamp(&mut meta);
        meta
    }

    /// R3: a leader whose own lease is longer than a follower's promise stops reading when that promise ends.
    #[test]
    fn a_leader_counts_what_the_follower_promises_and_no_more() {
        let (ms, leader) = (1_000_000, Promises::new(Duration::from_millis(1680)));
        let (from, sent) = (MemberId(2), MonoTime(5_000 * ms));
        let reads_until = |theirs| leader.reads_until(sent, theirs).0 / ms;
        assert_eq!(reads_until(leader.heard(from, &said(480))), 5_480);
        assert_eq!(reads_until(leader.heard(from, &said(1680))), 6_680);
        assert_eq!(reads_until(leader.heard(from, &said(9000))), 6_680, "no longer than its own");
        assert_eq!(reads_until(leader.heard(from, &MetadataMap::new())), 5_000, "one that promises nothing");
    }

    #[test]
    fn who_has_other_times_is_named_until_it_has_the_same() {
        let own = Promises::new(Duration::from_millis(480));
        own.heard(MemberId(2), &said(480));
        assert!(own.unequal().is_empty());
        own.heard(MemberId(3), &said(1680));
        let unequal = own.unequal();
        assert!(unequal.len() == 1 && unequal[0].starts_with("m3 ") && unequal[0].contains("rtt_ms"), "{unequal:?}");
        own.heard(MemberId(3), &said(480));
        assert!(own.unequal().is_empty());
    }
    /// PLEDGE-P3: a group may have shorter times than the settings allow. That is no other setting.
    #[test]
    fn a_shorter_promise_of_one_group_is_counted_and_is_no_other_setting() {
        let own = Promises::new(Duration::from_millis(1680));
        let mut answer = said(1680);
        stamp_answer(Duration::from_millis(480), &mut answer);
        assert_eq!(own.heard(MemberId(2), &answer), Duration::from_millis(480));
        assert!(own.unequal().is_empty(), "{:?}", own.unequal());
        let mut older = MetadataMap::new();
        stamp_answer(Duration::from_millis(480), &mut older);
        assert_eq!(own.heard(MemberId(3), &older), Duration::from_millis(480));
        assert_eq!(own.unequal().len(), 1, "a build that sends no longest promise");
    }
}
