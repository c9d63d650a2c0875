//! Volumes to measure, and numbers of repetitions.

use std::path::PathBuf;

/// A volume to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Volume {
    /// Size as `holdfast dev` takes it.
    pub(super) size: String,
    pub(super) extents: u64,
}

/// Settings for measuring each volume.
pub(super) struct Plan {
    pub(super) bin: PathBuf,
    pub(super) maker: PathBuf,
    pub(super) settings: Vec<String>,
    pub(super) reads: u64,
    pub(super) takeovers: u32,
    pub(super) checkpoints: u32,
    pub(super) large: u32,
    pub(super) seed: u64,
}
