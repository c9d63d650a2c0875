//! Components below and around the gateways that the faults of a run need, and no others: disks in memory are slower,
//! and clocks must be right unless a fault needs wrong ones.
//!
//! Owns: making them. Does not own: when they inject faults (`scene`).

use super::clocks::Clocks;
use super::disks::Disk;
use super::fault::Needs;
use super::late::Late;
use super::store::Store;
use crate::gateways::{GATEWAYS, Own, name};
use crate::net::Net;
use crate::say::note;
use crate::stage::{self, Below};
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};

/// Small files that are purged soon, since disks keep them in memory; and an upload every two seconds, so that an
/// outage has an effect.
const GATEWAY: &str = "[journal]\nbound = \"512MiB\"\nreserve = \"64MiB\"\nfile = \"16MiB\"\ntail = \"16MiB\"\n\
     [cache]\nmemory = \"128MiB\"\ndisk = \"0B\"\n[upload]\ninterval_ms = 2000\nbytes = \"32MiB\"\n";

/// See the module. Dropped after the gateways.
#[derive(Debug, Default)]
pub struct Ground {
    /// One per gateway, or none.
    disks: Vec<Disk>,
    clocks: Option<Clocks>,
    late: Option<Late>,
    store: Option<Store>,
    needed: bool,
}

impl Ground {
    /// Makes the needed components below `dir`, the stage's folder; `tools` has the tools of Jepsen's faults. Fails
    /// when something does not come up.
    pub fn make(needs: Needs, tools: &Path, seed: u64, net: &Net, dir: &Path) -> Result<Self> {
        let cluster = stage::cluster(dir);
        let mut ground = Self { needed: needs != Needs::default(), ..Self::default() };
        if needs.disks {
            for (gateway, seed) in (0..GATEWAYS).zip(seed..) {
                let name = name(gateway);
                let log = dir.join(format!("{name}-disk.log"));
                ground.disks.push(Disk::mount(&cluster.join(&name), seed, &log).context(name)?);
            }
            note("each gateway's data is on a disk that loses unsynced data");
        }
        if needs.clocks {
            ground.clocks = Some(Clocks::make(tools, dir)?);
            note("each gateway has clocks that can be wrong");
        }
        if needs.late {
            ground.late = Some(Late::start(net, &tools.join("between"), &dir.join("between.log"))?);
            note("relays between the gateways can delay messages");
        }
        if needs.store {
            ground.store = Some(Store::start(&cluster, seed)?);
            note("the store is an S3 server");
        }
        Ok(ground)
    }

    /// The gateways' settings for them.
    pub fn below(&self, dir: &Path) -> Below {
        let mut below = Below::usual(dir);
        if self.needed {
            below.settings = GATEWAY;
        }
        if let Some(store) = &self.store {
            (below.store, below.env) = (store.url(), store.env());
        }
        below.own = std::array::from_fn(|gateway| Own {
            env: self.clocks.as_ref().map(|clocks| clocks.env(gateway)).unwrap_or_default(),
            settings: self.late.as_ref().map(|_| Late::settings(gateway)).unwrap_or_default(),
            mounts: self.disks.get(gateway).map(Disk::mounts),
        });
        below
    }

    /// Path to a gateway's data for this process.
    pub fn data(&self, dir: &Path, gateway: usize) -> PathBuf {
        self.disks.get(gateway).map_or_else(|| stage::cluster(dir).join(name(gateway)), Disk::seen)
    }

    /// The disks. Fails when this run has none.
    pub fn disks(&mut self) -> Result<&mut [Disk]> {
        anyhow::ensure!(!self.disks.is_empty(), "this run has no disks that lose unsynced data");
        Ok(&mut self.disks)
    }

    /// The clocks. Fails when this run has only right clocks.
    pub fn clocks(&self) -> Result<&Clocks> {
        self.clocks.as_ref().context("this run has no clocks that can be wrong")
    }

    /// The delaying relays. Fails when this run has no relays between gateways.
    pub fn late(&mut self) -> Result<&mut Late> {
        self.late.as_mut().context("this run has no delaying relays between its gateways")
    }

    /// The S3 server. Fails when the store of this run is a folder.
    pub fn store(&mut self) -> Result<&mut Store> {
        self.store.as_mut().context("this run has no S3 server")
    }
}
