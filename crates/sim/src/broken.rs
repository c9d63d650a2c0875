//! Bugs that can be put in where the simulated outside meets a gateway: they show that the checks are there for
//! something, and how soon they speak.

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Broken {
    /// fdatasync answers and does nothing
    SyncsIgnored,
    /// A write is answered when it is handed in
    AnsweredEarly,
    /// Leases are counted on CLOCK_MONOTONIC, which stands still while a machine sleeps
    LeaseOnMonotonic,
    /// Leases are counted on the wall clock
    LeaseOnWall,
    /// Clocks drift four times as far as the margin allows for
    DriftBeyond,
    /// A snapshot shows what another one holds
    OtherSnapshot,
    /// Of several stores, one that is emptied has an entry again at once, as if it had never promised or accepted
    /// anything
    SlotForgotten,
    /// Of several stores, one that has an object is enough for it to count
    CountedAtOne,
    /// Of several stores, nobody fills what one lacks
    NoRepair,
    /// An attached device sends again what was answered, too, the latest first
    ReplaysAnswered,
    /// An attached device takes a write for answered once it is sent
    AnsweredWhenSent,
    /// An attached device that is refused a write, since another owner holds the set, takes it for done
    GoesOnFenced,
    /// An attached device takes in what lies in a connection that its user gave up, after the user has sent it again
    EndsUnseen,
    /// With agents: a database that has to be stopped at once goes on, and nothing watches over it
    NeverStops,
    /// With agents: nobody is asked who holds the lease, it is taken
    TakesUnasked,
    /// With agents: nothing watches over an agent that hangs or is gone
    NoWatchdog,
    /// With agents: a database's recovery leaves out the latest commit
    SkipsCommits,
    /// With agents: a database tells clients of a commit before it is flushed
    ToldUnflushed,
    /// With agents: their hosts' clocks lose 40 %, which no `lease.stop_margin_ms` covers
    SlowHosts,
}

impl Broken {
    /// As on the command line.
    pub fn word(self) -> String {
        clap::ValueEnum::to_possible_value(&self).map(|value| value.get_name().to_string()).unwrap_or_default()
    }
}
