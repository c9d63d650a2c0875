//! What runs did, counted: of one, as its last line says it, and of many, added up from such lines.

/// What a run did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stats {
    pub faults: u64,
    pub kills: u64,
    pub leaders: u64,
    pub compared: u64,
    /// Epochs that another gateway, or another owner, served than the one before: planned, forced, or after a loss.
    pub moved: u64,
    pub handed: u64,
    /// Wishes of the administrator that were granted; gateways that left; leaders killed between the two entries of a change of voters.
    pub changes: u64,
    pub left: u64,
    pub halves: u64,
    /// Bits that rotted in a journal, and groups that were healed from their peers after it, as far as seen.
    pub rots: u64,
    pub healed: u64,
    /// Machines that slept; wall clocks that were set.
    pub sleeps: u64,
    pub walls: u64,
    /// Snapshots that were taken by hand and let go, and how often one was read and compared.
    pub taken: u64,
    pub dropped: u64,
    pub shown: u64,
    /// Whether the set has several stores; how often something was wrong with one of them, one was emptied and was whole again, one was away for long, and
    /// how often it was looked whether all that is named is in enough of them.
    pub several: u64,
    pub troubles: u64,
    pub emptied: u64,
    pub filled: u64,
    pub away: u64,
    pub counted: u64,
    /// Faults of the hosts that attach, devices that were made there, those that another owner fenced, and how often one was reconnected, as far as seen.
    pub attach_faults: u64,
    pub attached: u64,
    pub fenced: u64,
    /// Faults of the hosts with agents, commits that databases acknowledged, their recoveries, what a watchdog ended, hosts that rebooted since they could not let go,
    /// and pools that were imported while another host's name was on them.
    pub agent_faults: u64,
    pub commits: u64,
    pub recoveries: u64,
    pub watched: u64,
    pub reboots: u64,
    pub taken_pools: u64,
    /// Disks that were full, journals that were seen to wait for room, and starts that were refused for want of it.
    pub full: u64,
    pub stalls: u64,
    pub roomless: u64,
}

/// Adds up the numbers of such lines, by what they count.
#[derive(Debug, Default)]
pub struct Sum(Vec<(String, f64)>);

impl Sum {
    /// One more line; what is no number is left out.
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

    /// The sum of all that is counted by words that begin so.
    fn of(&self, what: &str) -> f64 {
        let found = self.0.iter().filter(|(known, _)| known.starts_with(what));
        // From 0.0 on: the sum of nothing would be -0.0, and be shown as that.
        found.fold(0.0, |all, (_, sum)| all + sum)
    }

    /// What clusters have lived through, where only those are in here that were whole afterwards.
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
