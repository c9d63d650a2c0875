//! Bugs that a run may have on purpose.

/// A bug in what the agent finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// A database that is to be stopped at once goes on, and nothing watches over it.
    NeverStops,
    /// Nobody is asked who holds the lease: it is taken.
    TakesUnasked,
    /// Nothing watches over the agent.
    NoWatchdog,
    /// A recovery leaves out the latest commit.
    SkipsCommits,
    /// Clients are told of a commit before it is flushed.
    ToldUnflushed,
}
