//! What a scenario gets, and the clusters that it makes.

use crate::cluster::{Cluster, Options};
use anyhow::Result;
use std::path::PathBuf;
use std::time::Duration;

/// Limit for a takeover; a longer one fails the scenario.
pub(super) const TAKEOVER_LIMIT: Duration = Duration::from_secs(60);

/// Input of a scenario.
pub(super) struct Lab {
    pub(super) bin: PathBuf,
    pub(super) dir: PathBuf,
    pub(super) long: bool,
    /// A `holdfast` program of an older version: one that was given, or that of the last release.
    pub(super) older: Option<PathBuf>,
    /// Number of sets, for the scenario that makes many.
    pub(super) sets: usize,
}

impl Lab {
    /// Three gateways on an empty folder with the embedded store.
    pub(super) fn cluster(&self, size: &str) -> Result<Cluster> {
        self.cluster_with(size, None, Vec::new())
    }

    /// Three gateways on a given store, without automatic checkpoints.
    pub(super) fn cluster_quiet(&self, size: &str, store: String, env: Vec<(String, String)>) -> Result<Cluster> {
        self.cluster_as(size, Some(store), &["upload.interval_ms=3600000", "upload.bytes=1GiB"], env)
    }

    pub(super) fn cluster_with(
        &self,
        size: &str,
        store: Option<String>,
        env: Vec<(String, String)>,
    ) -> Result<Cluster> {
        self.cluster_as(size, store, &[], env)
    }

    /// What makes three gateways in `cluster`, with the embedded store and these settings.
    pub(super) fn options(&self, size: &str, settings: &[&str]) -> Options {
        let (bin, dir) = (self.bin.clone(), self.dir.join("cluster"));
        let settings = settings.iter().copied().map(String::from).collect();
        Options { bin, dir, gateways: 3, store: None, size: size.into(), settings, env: Vec::new() }
    }

    /// Three gateways with further settings for each.
    pub(super) fn cluster_as(
        &self,
        size: &str,
        store: Option<String>,
        settings: &[&str],
        env: Vec<(String, String)>,
    ) -> Result<Cluster> {
        Cluster::start(Options { store, env, ..self.options(size, settings) })
    }
}
