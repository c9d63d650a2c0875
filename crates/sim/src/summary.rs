//! The last line of a run.

use crate::world::World;
use std::fmt::Write as _;

impl World {
    /// The last line: numbers, each with what it counts.
    pub fn summary(&self) -> String {
        let s = &self.stats;
        let counts = [
            (self.hosts.len() as u64, "gateways"),
            (s.faults, "faults"),
            (s.kills, "kills"),
            (s.halves, "kills between two sets of voters"),
            (s.sleeps, "sleeps"),
            (s.walls, "wall clocks set"),
            (s.rots, "bits rotted"),
            (s.healed, "groups healed"),
            (s.changes, "wishes granted"),
            (s.left, "gateways left"),
            (s.leaders, "epochs served"),
            (s.moved, "failovers to another gateway"),
            (s.handed, "failovers to another owner"),
            (s.taken, "snapshots taken"),
            (s.dropped, "snapshots dropped"),
            (s.shown, "snapshots read"),
            (s.several, "sets of several stores"),
            (s.troubles, "faults of one store"),
            (s.away, "stores away for long"),
            (s.emptied, "stores emptied"),
            (s.filled, "filled again under faults"),
            (s.counted, "looks at all copies"),
            (s.full, "full disks"),
            (s.stalls, "journals that waited for room"),
            (s.roomless, "starts refused for want of room"),
            (s.attach_faults, "faults of attached hosts"),
            (s.attached, "devices attached"),
            (s.fenced, "errors of fenced devices"),
            (s.resent, "requests sent again by devices"),
            (self.model.answered, "writes"),
            (self.model.reads, "blocks read"),
            (s.compared, "states compared"),
        ];
        let of_agents = [
            (s.agent_faults, "faults of hosts with agents"),
            (s.commits, "commits"),
            (s.recoveries, "recoveries"),
            (s.watched, "databases ended by a watchdog"),
            (s.reboots, "reboots"),
            (s.taken_pools, "pools taken"),
        ];
        let more = if self.agents.is_some() { &of_agents[..] } else { &[] };
        let mut line = format!("{:.1} s simulated", self.now as f64 / 1e9);
        for (count, what) in counts.iter().chain(more) {
            // Into a string: never fails.
            let _ = write!(line, ", {count} {what}");
        }
        line
    }
}
