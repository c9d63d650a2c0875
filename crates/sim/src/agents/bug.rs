//! Bugs that a run may inject.

/// A bug in the agent's environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// A database that must stop at once goes on, and no watchdog ends it.
    NeverStops,
    /// The lease is taken without a check of its holder.
    TakesUnasked,
    /// Nothing watches over the agent.
    NoWatchdog,
    /// A recovery leaves out the latest commit.
    SkipsCommits,
    /// Clients are told of a commit before it is flushed.
    ToldUnflushed,
}
