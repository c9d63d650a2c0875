//! Environment of a run of the tests: `HOLDFAST_SEED` and `HOLDFAST_TIER`.

use std::io::Write;

/// Size of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// `cargo test`, and the gate of `cargo xtask test`.
    Gate,
    /// `cargo xtask test --all`.
    All,
}

/// `HOLDFAST_TIER`: `gate` (the default), or `all`.
pub fn tier() -> Tier {
    match std::env::var("HOLDFAST_TIER").as_deref() {
        Err(_) | Ok("gate") => Tier::Gate,
        Ok("all") => Tier::All,
        Ok(other) => panic!("HOLDFAST_TIER: found {other:?}, expected gate or all"),
    }
}

/// The first seed of this run: `HOLDFAST_SEED`, or the Unix time in seconds, so that two runs an hour apart share no
/// seed. Printed past the test harness, which would hide it.
pub fn seed() -> u64 {
    let seed = match std::env::var("HOLDFAST_SEED") {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("HOLDFAST_SEED: found {text:?}, expected a number")),
        Err(_) => std::time::UNIX_EPOCH.elapsed().map_or(1, |time| time.as_secs()),
    };
    let said = writeln!(std::io::stderr(), "first seed {seed}: HOLDFAST_SEED={seed} runs the same seeds again");
    said.expect("written");
    seed
}
