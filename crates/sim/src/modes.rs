//! Options of a run.

/// Options that are off by default; each changes the course of a seed.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub struct Modes {
    /// The set has several stores, whatever the seed says
    #[arg(long)]
    pub several: bool,
    /// The owners are hosts with the code of attach, over NBD and the admin APIs, instead of tasks at the gateways'
    /// devices
    #[arg(long)]
    pub attach: bool,
    /// Disks under the journal are full now and then
    #[arg(long)]
    pub full: bool,
    /// The owners are hosts with the code of the agent and of attach, and a database: nobody else says who has the set
    #[arg(long, conflicts_with = "attach")]
    pub agents: bool,
    /// Sets are moved to other members now and then
    #[arg(long)]
    pub placing: bool,
    /// With the usual rates, sizes, clocks and number of sets, and not with those that the seed draws
    #[arg(long)]
    pub usual: bool,
}

impl Modes {
    /// As on the command line, each with a leading space.
    pub fn words(self) -> String {
        let words = [
            (self.several, " --several"),
            (self.attach, " --attach"),
            (self.full, " --full"),
            (self.agents, " --agents"),
            (self.placing, " --placing"),
            (self.usual, " --usual"),
        ];
        words.into_iter().filter(|(on, _)| *on).map(|(_, word)| word).collect()
    }
}
