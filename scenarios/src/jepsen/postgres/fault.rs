//! The faults of `append` by name, and their needs below the gateways. No I/O.

use crate::chaos::seed::Seeded;
use crate::gateways::GATEWAYS;
use crate::shape::Shape;

/// A fault, with its name in Jepsen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    KillHost,
    CutHost,
    PauseHost,
    Switchover,
    KillGateway,
    CutGateway,
    PauseGateway,
    RestartGateways,
    PauseAll,
    Partition(Parting),
    Loss,
    Delay,
    Unsynced,
    UnsyncedAll,
    Store(Outage),
    Clock(Wrong),
    Corrupt,
    Truncate,
    Upgrade,
    Drain,
    Replace,
    Restored,
    Twice,
}

/// How the gateways do not hear each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parting {
    Primary,
    Halves,
    Ring,
    Bridge,
    OneWay,
}

/// Behaviour of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outage {
    Down,
    Slow,
    Refuses,
}

/// Kind of clock error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    Jump,
    Drift,
}

/// All faults. jepsen/src/jepsen/holdfast/hosts.clj describes each.
pub const FAULTS: [(&str, Fault); 30] = [
    ("kill-host", Fault::KillHost),
    ("cut-host", Fault::CutHost),
    ("pause-host", Fault::PauseHost),
    ("switchover", Fault::Switchover),
    ("kill-gateway", Fault::KillGateway),
    ("cut-gateway", Fault::CutGateway),
    ("pause-gateway", Fault::PauseGateway),
    ("restart-gateways", Fault::RestartGateways),
    ("pause-all", Fault::PauseAll),
    ("partition-primary", Fault::Partition(Parting::Primary)),
    ("partition-halves", Fault::Partition(Parting::Halves)),
    ("partition-ring", Fault::Partition(Parting::Ring)),
    ("partition-bridge", Fault::Partition(Parting::Bridge)),
    ("partition-one-way", Fault::Partition(Parting::OneWay)),
    ("loss", Fault::Loss),
    ("delay", Fault::Delay),
    ("unsynced", Fault::Unsynced),
    ("unsynced-all", Fault::UnsyncedAll),
    ("s3-down", Fault::Store(Outage::Down)),
    ("s3-slow", Fault::Store(Outage::Slow)),
    ("s3-503", Fault::Store(Outage::Refuses)),
    ("clock-jump", Fault::Clock(Wrong::Jump)),
    ("clock-drift", Fault::Clock(Wrong::Drift)),
    ("corrupt", Fault::Corrupt),
    ("truncate", Fault::Truncate),
    ("upgrade", Fault::Upgrade),
    ("drain", Fault::Drain),
    ("replace", Fault::Replace),
    ("restored", Fault::Restored),
    ("twice", Fault::Twice),
];

/// Names of several in turn.
pub const SETS: [&str; 2] = ["mix", "mix-2"];

/// Faults that the other workloads do not have.
const OWN: [&str; 7] =
    ["kill-host", "cut-host", "pause-host", "kill-gateway", "cut-gateway", "pause-gateway", "restart-gateways"];

impl Fault {
    /// Whether it takes one gateway away and gives it back by itself.
    pub fn takes_one(self) -> bool {
        matches!(self, Fault::Upgrade | Fault::Restored | Fault::Twice)
    }
}

fn names(nemesis: &str) -> impl Iterator<Item = &str> {
    nemesis.split([',', '+'])
}

/// The fault of this name.
pub fn called(name: &str) -> Option<Fault> {
    FAULTS.iter().find(|(known, _)| *known == name).map(|(_, fault)| *fault)
}

/// Whether these are faults of `append`: names joined by `+` and `,`.
pub fn knows(nemesis: &str) -> bool {
    names(nemesis).all(|name| SETS.contains(&name) || called(name).is_some())
}

/// Whether one of these is a fault of `append` and of no other workload.
pub fn is_own(nemesis: &str) -> bool {
    names(nemesis).any(|name| OWN.contains(&name))
}

/// Components that must exist before the gateways start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Disks that lose unsynced data.
    pub disks: bool,
    /// Clocks that can be wrong.
    pub clocks: bool,
    /// A relay between the gateways that can delay.
    pub late: bool,
    /// An S3 server as the store, with a proxy in front of it.
    pub store: bool,
}

impl Needs {
    const ALL: Self = Self { disks: true, clocks: true, late: true, store: true };

    /// Of these faults.
    pub fn of(nemesis: &str) -> Self {
        let mut needs = Self::default();
        for name in names(nemesis) {
            match called(name) {
                Some(Fault::Unsynced | Fault::UnsyncedAll) => needs.disks = true,
                Some(Fault::Clock(_)) => needs.clocks = true,
                Some(Fault::Delay) => needs.late = true,
                Some(Fault::Store(_)) => needs.store = true,
                // Draws from all faults that need something.
                None if name == "mix-2" => return Self::ALL,
                _ => {}
            }
        }
        needs
    }
}

/// One of `n`.
pub fn draw(chance: &mut Seeded, n: usize) -> usize {
    usize::try_from(chance.below(n as u64)).unwrap_or(0)
}

impl Parting {
    /// Its shape this time.
    pub fn shape(self, serving: usize, chance: &mut Seeded) -> Shape {
        match self {
            Parting::Primary => Shape::Alone(serving),
            Parting::Halves => Shape::Alone((serving + 1 + draw(chance, GATEWAYS - 1)) % GATEWAYS),
            Parting::Ring => Shape::Ring,
            Parting::Bridge => {
                let one = draw(chance, GATEWAYS);
                Shape::Cut(one, (one + 1) % GATEWAYS)
            }
            Parting::OneWay if chance.chance(50) => Shape::Deaf(serving),
            Parting::OneWay => Shape::Mute(serving),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTS: &str = include_str!("../../../../jepsen/src/jepsen/holdfast/hosts.clj");

    /// Texts in quotation marks between two places of hosts.clj.
    fn quoted(from: &str, to: &str) -> Vec<&'static str> {
        let there = HOSTS.split(from).nth(1).and_then(|rest| rest.split(to).next()).unwrap_or_default();
        there.split('"').skip(1).step_by(2).collect()
    }

    #[test]
    fn the_faults_are_those_that_the_test_asks_for() {
        for (name, _) in FAULTS {
            assert!(HOSTS.contains(&format!("\"{name}\" ")), "hosts.clj has no {name}");
        }
        // A name and a description for each.
        assert_eq!(quoted("(def faults", "})").len(), 2 * FAULTS.len());
    }

    #[test]
    fn sets_of_faults_need_what_their_faults_need() {
        for set in SETS {
            let drawn = quoted(&format!("{set:?} ["), "]");
            assert!(!drawn.is_empty() && drawn.iter().all(|name| knows(name)), "{set}: {drawn:?}");
            assert_eq!(Needs::of(set), Needs::of(&drawn.join(",")), "{set}: {drawn:?}");
        }
        assert_eq!(Needs::of("mix"), Needs::default());
        assert_eq!(Needs::of("kill-host+s3-slow,delay"), Needs { store: true, late: true, ..Needs::default() });
    }

    #[test]
    fn names_that_other_workloads_have_too_are_not_our_own() {
        let theirs = [
            include_str!("../../../../jepsen/src/jepsen/holdfast/nemesis.clj"),
            include_str!("../../../../jepsen/src/jepsen/holdfast/weather.clj"),
            include_str!("../../../../jepsen/src/jepsen/holdfast/disks.clj"),
            include_str!("../../../../jepsen/src/jepsen/holdfast/s3.clj"),
            include_str!("../../../../jepsen/src/jepsen/holdfast/clocks.clj"),
            include_str!("../../../../jepsen/src/jepsen/holdfast/rolling.clj"),
            include_str!("../../../../jepsen/src/jepsen/holdfast/copies.clj"),
        ];
        for (name, _) in FAULTS {
            let shared = theirs.iter().any(|text| text.contains(&format!("\"{name}\" ")));
            assert_eq!(is_own(name), !shared, "{name}");
        }
    }

    #[test]
    fn partitions_are_about_who_serves() {
        let mut chance = Seeded::new(3, 0);
        let mut drawn = |parting: Parting| -> Vec<Shape> { (0..40).map(|_| parting.shape(1, &mut chance)).collect() };
        assert!(drawn(Parting::Primary).iter().all(|shape| *shape == Shape::Alone(1)));
        let halves = drawn(Parting::Halves);
        assert!(halves.iter().all(|shape| [Shape::Alone(0), Shape::Alone(2)].contains(shape)), "{halves:?}");
        let one_way = drawn(Parting::OneWay);
        assert!(one_way.contains(&Shape::Deaf(1)) && one_way.contains(&Shape::Mute(1)), "{one_way:?}");
        let bridges = drawn(Parting::Bridge);
        assert!((0..GATEWAYS).all(|one| bridges.contains(&Shape::Cut(one, (one + 1) % GATEWAYS))), "{bridges:?}");
    }
}
