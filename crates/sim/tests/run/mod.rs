//! What a run of the tests is told by its environment: `HOLDFAST_SEED` and `HOLDFAST_TIER`.

use std::io::Write;

/// How much is asked of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// `cargo test`, and the gate of `cargo xtask test`.
    Gate,
    /// `cargo xtask test --all`.
    All,
}

/// `HOLDFAST_TIER`: `gate`, also where it is not set, or `all`.
pub fn tier() -> Tier {
    match std::env::var("HOLDFAST_TIER").as_deref() {
        Err(_) | Ok("gate") => Tier::Gate,
        Ok("all") => Tier::All,
        Ok(other) => panic!("HOLDFAST_TIER: found {other:?}, expected gate or all"),
    }
}

/// The first seed of this run: `HOLDFAST_SEED`, or the Unix time in seconds. Two runs that are an hour apart share no seed then.
/// Printed past the test harness, which would keep it.
pub fn seed() -> u64 {
    let seed = match std::env::var("HOLDFAST_SEED") {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("HOLDFAST_SEED: found {text:?}, expected a number")),
        Err(_) => std::time::UNIX_EPOCH.elapsed().map_or(1, |time| time.as_secs()),
    };
    let said = writeln!(std::io::stderr(), "first seed {seed}: HOLDFAST_SEED={seed} runs the same seeds again");
    said.expect("written");
    seed
}
