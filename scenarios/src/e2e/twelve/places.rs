//! Where the gateways of the laboratory stand, and how far apart they are.

use std::time::Duration;

/// Gateways of the laboratory, one in each zone. Further ones stand in zones that have one.
pub(crate) const GATEWAYS: usize = 12;

/// The regions, by number.
pub(crate) const REGIONS: [&str; 4] = ["eu-west", "eu-north", "us-east", "ap-south"];

const ZONES: [&str; 3] = ["a", "b", "c"];

/// Region and zone of further gateways. Not in the last region, which a scenario drains.
const FURTHER: [Place; 2] = [Place { region: 1, zone: 0 }, Place { region: 2, zone: 1 }];

/// Round trip between two gateways of one zone.
const WITHIN_ZONE: Duration = Duration::from_micros(200);

/// Round trip between two zones of one region.
const BETWEEN_ZONES: Duration = Duration::from_millis(1);

/// Round trips between regions, in milliseconds.
const BETWEEN_REGIONS_MS: [[u64; 4]; 4] = [[0, 20, 80, 150], [20, 0, 90, 140], [80, 90, 0, 120], [150, 140, 120, 0]];

/// The longest of them, in milliseconds: `rtt_ms` of every gateway.
pub(crate) const LONGEST_MS: u64 = 150;

/// Region and zone, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) region: usize,
    pub(crate) zone: usize,
}

impl Place {
    /// Of a gateway, by its index.
    pub(crate) fn of(gateway: usize) -> Self {
        match gateway.checked_sub(GATEWAYS) {
            None => Self { region: gateway / ZONES.len(), zone: gateway % ZONES.len() },
            Some(further) => FURTHER[further % FURTHER.len()],
        }
    }

    /// The setting `locality`.
    pub(crate) fn locality(self) -> String {
        format!("region={},zone={}", REGIONS[self.region], ZONES[self.zone])
    }
}

/// Round trip between two gateways.
pub(crate) fn round_trip(one: usize, other: usize) -> Duration {
    let (here, there) = (Place::of(one), Place::of(other));
    match (here.region == there.region, here.zone == there.zone) {
        (true, true) => WITHIN_ZONE,
        (true, false) => BETWEEN_ZONES,
        (false, _) => Duration::from_millis(BETWEEN_REGIONS_MS[here.region][there.region]),
    }
}

/// The gateways of a region, among `count` of them.
pub(crate) fn within(region: usize, count: usize) -> Vec<usize> {
    (0..count).filter(|gateway| Place::of(*gateway).region == region).collect()
}

/// The round trip that a commit has to contain: the leader's way to the last gateway of its nearest majority. R1.
pub(crate) fn commit_round_trip(leader: usize, voters: impl IntoIterator<Item = usize>) -> Duration {
    let others = voters.into_iter().filter(|voter| *voter != leader);
    let mut ways: Vec<Duration> = others.map(|voter| round_trip(leader, voter)).collect();
    ways.sort_unstable();
    // Half of the others, rounded up, are a majority together with the leader.
    let needed = ways.len().div_ceil(2);
    needed.checked_sub(1).map_or(Duration::ZERO, |last| ways[last])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn twelve_gateways_stand_in_twelve_zones() {
        let mut places: Vec<Place> = (0..GATEWAYS).map(Place::of).collect();
        places.dedup();
        assert_eq!(places.len(), GATEWAYS);
        assert_eq!(Place::of(4).locality(), "region=eu-north,zone=b");
        assert_eq!(Place::of(GATEWAYS).locality(), "region=eu-north,zone=a");
        assert_eq!(within(1, GATEWAYS), [3, 4, 5]);
        assert_eq!(within(1, GATEWAYS + 2), [3, 4, 5, 12]);
    }

    #[test]
    fn distances_are_the_same_both_ways_and_none_is_longer_than_the_setting() {
        let mut longest = Duration::ZERO;
        for one in 0..GATEWAYS + FURTHER.len() {
            for other in (0..GATEWAYS + FURTHER.len()).filter(|other| *other != one) {
                assert_eq!(round_trip(one, other), round_trip(other, one));
                longest = longest.max(round_trip(one, other));
            }
        }
        assert_eq!(longest, Duration::from_millis(LONGEST_MS));
        assert_eq!(round_trip(3, GATEWAYS), WITHIN_ZONE);
        assert_eq!(round_trip(3, 5), BETWEEN_ZONES);
    }

    #[test]
    fn a_commit_waits_for_the_nearest_majority() {
        let ms = Duration::from_millis;
        // Three in one region; one at home, one near, one far; five, two of them at home.
        assert_eq!(commit_round_trip(0, [0, 1, 2]), ms(1));
        assert_eq!(commit_round_trip(0, [0, 3, 9]), ms(20));
        assert_eq!(commit_round_trip(9, [0, 3, 9]), ms(140));
        assert_eq!(commit_round_trip(0, [0, 1, 3, 6, 9]), ms(20));
        assert_eq!(commit_round_trip(0, [0]), Duration::ZERO);
        // Four voters: a majority is three.
        assert_eq!(commit_round_trip(0, [0, 1, 3, 6]), ms(20));
    }
}
