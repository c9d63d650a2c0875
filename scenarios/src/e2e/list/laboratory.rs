//! The scenarios of the laboratory of twelve gateways.

use super::super::{Scenario, Tier, placing_twelve, regions};

pub(super) const PLACING_TWELVE: Scenario = Scenario {
    name: "placing-twelve",
    shows: "twelve gateways in four regions, 24 sets (--sets N) with three policies: one gateway is killed for good, two are added, the dead one is removed, a region is drained; each policy is met at the end, writers see no error; prints what moved beside the least that had to move (R1, R8)",
    tier: Tier::Long(
        "takes some eight minutes; in the gate, property tests plan for random clusters, and simulated sets move",
    ),
    needs: &[],
    run: placing_twelve::run,
};

pub(super) const REGIONS: Scenario = Scenario {
    name: "regions",
    shows: "twelve gateways in four regions: a commit takes the round trip to the nearest majority, for each loss that a set survives; then the home region is lost, another one is lost, one is slow, a line flaps: prints the pauses of a writer and a reader, nothing acknowledged is lost (R1, R3, R8)",
    tier: Tier::Long(
        "takes some six minutes; the gate has takeovers without delays, and chaos with partitions between three gateways",
    ),
    needs: &[],
    run: regions::run,
};
