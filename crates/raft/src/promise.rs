//! By answering, a follower promises to vote for nobody else for a while (R3). How long depends on its own settings,
//! and its leader may have others, because settings are changed one gateway after the other. So each gateway sends the
//! duration with every call and answer, and a leader counts no more than that.

use holdfast_types::sync::LockExt;
use holdfast_types::{MemberId, MonoTime};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;
use tonic::metadata::{MetadataMap, MetadataValue};

/// Metadata key: for how many milliseconds after sending a heartbeat a leader may read because of this member's answer.
const META_READ_LEASE: &str = "holdfast-read-lease-ms";

/// This member's promise, and those of members with a different promise.
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
        meta.insert(META_READ_LEASE, MetadataValue::from(u64::try_from(self.own.as_millis()).unwrap_or(u64::MAX)));
    }

    /// The promise in a call or an answer of `from`: of no time, if it has none.
    pub(crate) fn heard(&self, from: MemberId, meta: &MetadataMap) -> Duration {
        let told = meta.get(META_READ_LEASE).and_then(|text| text.to_str().ok()?.parse().ok());
        let theirs = told.map_or(Duration::ZERO, Duration::from_millis);
        if theirs == self.own {
            self.others.locked().remove(&from);
        } else if self.others.locked().insert(from, theirs) != Some(theirs) {
            tracing::warn!(member = %from, why = self.words(from, theirs), "the gateways' times differ");
        }
        theirs
    }

    /// The time that a leader here uses for an answer to a message sent at `sent`: earlier by the difference if the
    /// follower's promise is shorter than this leader's own.
    pub(crate) fn counted_from(&self, sent: MonoTime, theirs: Duration) -> MonoTime {
        let short = u64::try_from(self.own.saturating_sub(theirs).as_nanos()).unwrap_or(u64::MAX);
        MonoTime(sent.0.saturating_sub(short))
    }

    fn words(&self, member: MemberId, theirs: Duration) -> String {
        format!(
            "{member} lets a leader read for {} ms after a heartbeat, this gateway for {} ms: give all gateways the same rtt_ms",
            theirs.as_millis(),
            self.own.as_millis()
        )
    }

    /// For each member with a different promise: what to do about it.
    pub(crate) fn unequal(&self) -> Vec<String> {
        self.others.locked().iter().map(|(member, theirs)| self.words(*member, *theirs)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(ms: u64) -> MetadataMap {
        let mut meta = MetadataMap::new();
        Promises::new(Duration::from_millis(ms)).stamp(&mut meta);
        meta
    }

    /// R3: a leader whose own lease is longer than a follower's promise stops reading when that promise ends.
    #[test]
    fn a_leader_counts_what_the_follower_promises_and_no_more() {
        let (ms, leader) = (1_000_000, Promises::new(Duration::from_millis(1680)));
        let (from, sent) = (MemberId(2), MonoTime(5_000 * ms));
        let reads_until = |theirs| leader.counted_from(sent, theirs).0 / ms + 1680;
        assert_eq!(reads_until(leader.heard(from, &told(480))), 5_480);
        assert_eq!(reads_until(leader.heard(from, &told(1680))), 6_680);
        assert_eq!(reads_until(leader.heard(from, &told(9000))), 6_680, "no longer than its own");
        assert_eq!(reads_until(leader.heard(from, &MetadataMap::new())), 5_000, "one that promises nothing");
        assert_eq!(leader.counted_from(MonoTime(7), Duration::ZERO), MonoTime(0), "shortly after the machine's start");
    }

    #[test]
    fn who_has_other_times_is_named_until_it_has_the_same() {
        let own = Promises::new(Duration::from_millis(480));
        own.heard(MemberId(2), &told(480));
        assert!(own.unequal().is_empty());
        own.heard(MemberId(3), &told(1680));
        let unequal = own.unequal();
        assert!(unequal.len() == 1 && unequal[0].starts_with("m3 ") && unequal[0].contains("rtt_ms"), "{unequal:?}");
        own.heard(MemberId(3), &told(480));
        assert!(own.unequal().is_empty());
    }
}
