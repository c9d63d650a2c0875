//! Counts of runs: of one, as in its last line, and of many, added up from such lines.

/// Counts of one run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stats {
    pub faults: u64,
    pub kills: u64,
    pub leaders: u64,
    pub compared: u64,
    /// Epochs served by another gateway, or another owner, than the one before: planned, forced, or after a loss.
    pub moved: u64,
    pub handed: u64,
    /// Granted requests of the administrator; gateways that left; leaders killed between the two entries of a change of
    /// voters.
    pub changes: u64,
    pub left: u64,
    pub halves: u64,
    /// Flipped bits in journals, and groups healed from their peers afterwards, as far as seen.
    pub rots: u64,
    pub healed: u64,
    /// Suspended machines; set wall clocks.
    pub sleeps: u64,
    pub walls: u64,
    /// Snapshots taken by hand and deleted, and how often one was read and compared.
    pub taken: u64,
    pub dropped: u64,
    pub shown: u64,
    /// Whether the set has several stores; faults of one of them, refills of an emptied one, long outages, and checks
    /// that all named objects are in enough of them.
    pub several: u64,
    pub troubles: u64,
    pub emptied: u64,
    pub filled: u64,
    pub away: u64,
    pub counted: u64,
    /// Faults of attaching hosts, devices made there, errors of devices fenced by another owner, and requests that a
    /// device sent again on another connection.
    pub attach_faults: u64,
    pub attached: u64,
    pub fenced: u64,
    pub resent: u64,
    /// Faults of hosts with agents, acknowledged commits, recoveries, databases ended by a watchdog, reboots of hosts
    /// that could not release, and imports of pools with another host's label.
    pub agent_faults: u64,
    pub commits: u64,
    pub recoveries: u64,
    pub watched: u64,
    pub reboots: u64,
    pub taken_pools: u64,
    /// Full disks, journals seen waiting for space, and starts refused for lack of it.
    pub full: u64,
    pub stalls: u64,
    pub roomless: u64,
}

/// Sums of such lines, by meaning.
#[derive(Debug, Default)]
pub struct Sum(Vec<(String, f64)>);

impl Sum {
    /// Adds a line; anything that is no number is ignored.
    pub fn add(&mut self, line: &str) {
        for part in line.trim_end().split(", ") {
            let Some((number, what)) = part.split_once(' ') else { continue };
            let Ok(number) = number.parse::<f64>() else { continue };
            match self.0.iter_mut().find(|(known, _)| known == what) {
                Some((_, sum)) => *sum += number,
                None => self.0.push((what.to_string(), number)),
            }
        }
    }

    /// As one line.
    pub fn line(&self) -> String {
        self.0.iter().map(|(what, sum)| format!("{sum:.0} {what}")).collect::<Vec<_>>().join(", ")
    }

    /// Sum over all meanings that begin with this text.
    fn of(&self, what: &str) -> f64 {
        let found = self.0.iter().filter(|(known, _)| known.starts_with(what));
        // From 0.0 on: the sum of nothing would be -0.0, and be printed so.
        found.fold(0.0, |all, (_, sum)| all + sum)
    }

    /// What clusters survived; contains only runs that were complete afterwards.
    pub fn survived(&self) -> String {
        let (hours, faults) = (self.of("s simulated") / 3600.0, self.of("faults"));
        let (gateways, owners) = (self.of("failovers to another gateway"), self.of("failovers to another owner"));
        format!(
            "{hours:.2} simulated hours, {faults:.0} faults, \
             {gateways:.0} failovers to another gateway, {owners:.0} to another owner"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_added_up_by_what_they_count() {
        let mut sum = Sum::default();
        sum.add("12.5 s simulated, 3 faults, 1 kills\n");
        sum.add("12.5 s simulated, 4 faults, 2 sleeps");
        assert_eq!(sum.line(), "25 s simulated, 7 faults, 1 kills, 2 sleeps");
    }

    #[test]
    fn what_was_survived_is_said_in_hours_faults_and_failovers() {
        let mut sum = Sum::default();
        sum.add("3600.0 s simulated, 3 faults, 5 failovers to another gateway, 2 failovers to another owner\n");
        sum.add("1800.0 s simulated, 4 faults, 1 failovers to another gateway, 2 faults of one store, 3 full disks\n");
        let expected = "1.50 simulated hours, 9 faults, 6 failovers to another gateway, 2 to another owner";
        assert_eq!(sum.survived(), expected);
        assert!(Sum::default().survived().starts_with("0.00 simulated hours, 0 faults"), "of no seed at all");
    }
}
