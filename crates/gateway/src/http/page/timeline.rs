//! What has happened to the leases of sets, as far as this gateway has seen it: a bounded list in memory.

use std::collections::{BTreeMap, VecDeque};

/// Changes that are kept; the oldest is dropped first.
pub(super) const KEPT: usize = 200;

/// Who has a set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Held {
    /// The host.
    pub owner: String,
    /// Name of the gateway that serves it.
    pub gateway: String,
    pub epoch: u64,
    pub since_unix_ms: u64,
}

/// What has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// It was so when this gateway looked first.
    Found,
    /// Nobody had it.
    Granted,
    /// Another owner had it.
    TakenFrom(String),
    /// The same owner, at another gateway.
    MovedFrom(String),
    /// The same owner at the same gateway, under a new epoch.
    Continued,
    /// Nobody has it now.
    Released,
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Takeover {
    /// When it was seen, by this gateway's clock. [`Change::Found`]: since when it is so.
    pub at_unix_ms: u64,
    pub set: String,
    pub change: Change,
    /// Who has it now; after a release, who had it.
    pub held: Held,
}

/// The list, and what was there at the last look.
#[derive(Debug, Default)]
pub(super) struct Timeline {
    last: BTreeMap<String, Option<Held>>,
    kept: VecDeque<Takeover>,
}

impl Timeline {
    /// Looks at all sets of this gateway. Of several changes between two looks the list has one.
    pub(super) fn look(&mut self, now_unix_ms: u64, sets: BTreeMap<String, Option<Held>>) {
        for (set, held) in &sets {
            let before = self.last.get(set).map(Option::as_ref);
            let Some((change, held)) = compared(before, held.as_ref()) else { continue };
            let at_unix_ms = if change == Change::Found { held.since_unix_ms } else { now_unix_ms };
            if self.kept.len() == KEPT {
                self.kept.pop_front();
            }
            self.kept.push_back(Takeover { at_unix_ms, set: set.clone(), change, held: held.clone() });
        }
        self.last = sets;
    }

    /// The newest `most`, newest first.
    pub(super) fn newest(&self, most: usize) -> Vec<Takeover> {
        self.kept.iter().rev().take(most).cloned().collect()
    }
}

/// What has changed, and the lease that tells it. `before` is `None` if the set was not looked at before.
fn compared<'a>(before: Option<Option<&'a Held>>, now: Option<&'a Held>) -> Option<(Change, &'a Held)> {
    match (before, now) {
        (None | Some(None), None) => None,
        (None, Some(now)) => Some((Change::Found, now)),
        (Some(None), Some(now)) => Some((Change::Granted, now)),
        (Some(Some(before)), None) => Some((Change::Released, before)),
        (Some(Some(before)), Some(now)) if before.epoch == now.epoch => None,
        (Some(Some(before)), Some(now)) if before.owner != now.owner => {
            Some((Change::TakenFrom(before.owner.clone()), now))
        }
        (Some(Some(before)), Some(now)) if before.gateway != now.gateway => {
            Some((Change::MovedFrom(before.gateway.clone()), now))
        }
        (Some(Some(_)), Some(now)) => Some((Change::Continued, now)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(owner: &str, gateway: &str, epoch: u64) -> Held {
        Held { owner: owner.to_string(), gateway: gateway.to_string(), epoch, since_unix_ms: epoch * 10 }
    }

    fn demo(held: Option<Held>) -> BTreeMap<String, Option<Held>> {
        BTreeMap::from([("demo".to_string(), held)])
    }

    #[test]
    fn each_change_of_a_lease_is_told_once() {
        let mut line = Timeline::default();
        let steps = [
            (Some(held("db1", "g1", 5)), Some(Change::Found)),
            (Some(held("db1", "g1", 5)), None),
            (Some(held("db1", "g2", 6)), Some(Change::MovedFrom("g1".to_string()))),
            (Some(held("db2", "g3", 7)), Some(Change::TakenFrom("db1".to_string()))),
            (Some(held("db2", "g3", 8)), Some(Change::Continued)),
            (None, Some(Change::Released)),
            (None, None),
            (Some(held("db1", "g3", 9)), Some(Change::Granted)),
        ];
        for (at, (now, expected)) in steps.into_iter().enumerate() {
            let before = line.kept.len();
            line.look(1000 + at as u64, demo(now));
            let told = line.newest(1).pop().filter(|_| line.kept.len() > before);
            assert_eq!(told.map(|told| told.change), expected, "step {at}");
        }
        let times: Vec<u64> = line.newest(KEPT).iter().map(|told| told.at_unix_ms).collect();
        assert_eq!(times, [1007, 1005, 1004, 1003, 1002, 50], "newest first; the first since its grant");
        assert_eq!(line.newest(2)[1].held, held("db2", "g3", 8), "a release tells who had it");
    }

    #[test]
    fn a_free_set_and_one_that_goes_away_tell_nothing() {
        let mut line = Timeline::default();
        line.look(1, demo(None));
        line.look(2, BTreeMap::new());
        assert_eq!(line.newest(9), []);
        line.look(3, demo(Some(held("db1", "g1", 5))));
        assert_eq!(line.newest(9)[0].change, Change::Found, "what happened meanwhile is not known");
    }

    #[test]
    fn the_list_is_bounded() {
        let mut line = Timeline::default();
        for epoch in 0..KEPT as u64 + 10 {
            line.look(epoch, demo(Some(held("db1", "g1", epoch))));
        }
        assert_eq!((line.kept.len(), line.newest(1)[0].at_unix_ms), (KEPT, KEPT as u64 + 9));
        assert_eq!(line.kept[0].at_unix_ms, 10);
    }
}
