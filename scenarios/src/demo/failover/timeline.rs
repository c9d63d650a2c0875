//! Timeline of one fault: phases from the agents' histories, the clients' pause from the ledger. No I/O.

use serde::{Deserialize, Serialize};

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    HostKilled,
    Switchover,
    GatewayKilled,
    HostCutOff,
    /// The primary's host and the gateway that serves its set, at the same time.
    RegionLost,
}

/// In the order of a round.
pub const KINDS: [Kind; 5] =
    [Kind::HostKilled, Kind::Switchover, Kind::GatewayKilled, Kind::HostCutOff, Kind::RegionLost];

impl Kind {
    pub fn words(self) -> &'static str {
        match self {
            Kind::HostKilled => "host killed",
            Kind::Switchover => "switchover",
            Kind::GatewayKilled => "gateway killed",
            Kind::HostCutOff => "host cut off",
            Kind::RegionLost => "region lost",
        }
    }
}

/// Milliseconds of each phase of becoming primary, from an agent's history.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Phases {
    pub detect_ms: Option<u64>,
    pub lease_ms: Option<u64>,
    pub attach_ms: Option<u64>,
    pub mount_ms: Option<u64>,
    pub recover_ms: Option<u64>,
    pub first_write_ms: Option<u64>,
}

impl Phases {
    /// In their order.
    pub fn all(&self) -> [(&'static str, Option<u64>); 6] {
        [
            ("detect", self.detect_ms),
            ("lease", self.lease_ms),
            ("attach", self.attach_ms),
            ("mount", self.mount_ms),
            ("recover", self.recover_ms),
            ("first write", self.first_write_ms),
        ]
    }
}

/// The used fields of a line of an agent's history.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Line {
    pub at_unix_ms: u64,
    pub host: String,
    pub event: String,
    pub reason: String,
    pub epoch: u64,
    pub phases: Option<Phases>,
}

/// An event, with its time in Unix milliseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moment {
    pub at: u64,
    pub who: String,
    pub what: String,
}

impl Moment {
    pub fn new(at: u64, who: &str, what: impl Into<String>) -> Self {
        Self { at, who: who.into(), what: what.into() }
    }
}

/// Times on the way to primary: its phases, counted back from its end.
pub fn way(line: &Line) -> Vec<Moment> {
    let phases = line.phases.clone().unwrap_or_default();
    let whole: u64 = phases.all().iter().filter_map(|(_, took)| *took).sum();
    let mut at = line.at_unix_ms.saturating_sub(whole);
    let mut moments = Vec::new();
    for (phase, took) in phases.all() {
        let Some(took) = took else { continue };
        at += took;
        let what = match phase {
            "detect" => "detect: the lease has run out, or was let go of".into(),
            "lease" => format!("lease: granted under e{}", line.epoch),
            "attach" => "attach: the device is there".into(),
            "mount" => "mount: the file system is mounted".into(),
            "recover" => "recover: PostgreSQL takes connections".into(),
            _ => "first write: a commit is durable".to_owned(),
        };
        moments.push(Moment::new(at, &line.host, format!("{what} ({took} ms)")));
    }
    moments
}

/// Time of the grant as seen by the agent that got it: some checks (50 ms each) late, never early.
pub fn granted(line: &Line) -> u64 {
    let phases = line.phases.clone().unwrap_or_default();
    let after = [phases.attach_ms, phases.mount_ms, phases.recover_ms, phases.first_write_ms];
    line.at_unix_ms.saturating_sub(after.into_iter().flatten().sum())
}

/// How long before `grant` something ended, in milliseconds; negative if it ended later. Both by the shared wall clock.
pub fn over_before(grant: u64, over: u64) -> i64 {
    grant.cast_signed().saturating_sub(over.cast_signed())
}

/// The longest time without an acknowledged commit of any writer that ends after the fault: begin and end. Of a pause
/// that began before the fault only the rest counts for the comparison. `moments` are in order.
pub fn longest_pause(moments: &[(u64, usize)], fault: u64) -> Option<(u64, u64)> {
    let pauses = moments.windows(2).map(|pair| (pair[0].0, pair[1].0));
    pauses.filter(|(_, to)| *to > fault).max_by_key(|(from, to)| to - fault.max(*from))
}

/// In order, with times relative to the fault.
pub fn shown(fault: u64, mut moments: Vec<Moment>) -> Vec<String> {
    moments.sort_by_key(|moment| moment.at);
    let relative = |at: u64| i128::from(at) - i128::from(fault);
    moments.iter().map(|m| format!("{:>8} ms  {:<5} {}", relative(m.at), m.who, m.what)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_way_is_counted_back_from_its_end() {
        let text = r#"{"at_unix_ms":10000,"host":"db2","set":"demo","total_ms":4000,"event":"failover","reason":"","epoch":7,
            "phases":{"detect_ms":3000,"lease_ms":40,"recover_ms":900,"first_write_ms":60}}"#;
        let line: Line = serde_json::from_str(text).unwrap();
        let lines = shown(6200, way(&line));
        assert_eq!(lines.len(), 4);
        assert_eq!(lines[0], "    2800 ms  db2   detect: the lease has run out, or was let go of (3000 ms)");
        assert_eq!(lines[1], "    2840 ms  db2   lease: granted under e7 (40 ms)");
        assert!(lines[3].starts_with("    3800 ms"), "{}", lines[3]);
        // At the end of its phase "lease": 6200 + 2840.
        assert_eq!(granted(&line), 9040);
    }

    #[test]
    fn what_outlives_a_grant_is_negative() {
        assert_eq!((over_before(9040, 8900), over_before(9040, 9040), over_before(9040, 9083)), (140, 0, -43));
    }

    #[test]
    fn the_longest_pause() {
        assert_eq!(longest_pause(&[(5, 0)], 0), None);
        assert_eq!(longest_pause(&[(5, 0), (6, 1), (4006, 1), (4010, 0)], 7), Some((6, 4006)));
    }

    /// A checkpoint, or other load on the machine, causes pauses too.
    #[test]
    fn a_pause_before_the_fault_is_not_of_the_fault() {
        let moments = [(0, 0), (4000, 1), (4017, 0), (5200, 1), (5201, 0)];
        assert_eq!(longest_pause(&moments, 4017), Some((4017, 5200)));
        assert_eq!(longest_pause(&moments, 4000), Some((4017, 5200)), "what ends with the fault is over");
        assert_eq!(longest_pause(&moments, 3990), Some((4017, 5200)), "all but its last 10 ms were before the fault");
        assert_eq!(longest_pause(&moments, 100), Some((0, 4000)), "it was under way, and went on for longer than any");
        assert_eq!(longest_pause(&moments, 5201), None);
    }
}
