//! How much a run of the tests does.

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
