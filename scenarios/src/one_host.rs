//! PostgreSQL on ext4 on an attached volume, without an agent: stops and starts the whole stack around a failover.

use crate::attach::Device;
use crate::cluster::Cluster;
use crate::pg::Postgres;
use crate::process::Signal;
use anyhow::{Context, Result};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Connections of nbdfuse to the gateway.
const CONNECTIONS: u32 = 4;

/// The database and what is below it.
#[derive(Debug)]
pub struct OneHost {
    pub pg: Postgres,
    pub device: Option<Device>,
    pub mount: PathBuf,
    /// For mount points and logs.
    pub work: PathBuf,
}

impl OneHost {
    /// Attaches the volume through one gateway. Fails when that gateway does not accept it within `limit`.
    pub fn attach(&mut self, cluster: &Cluster, gateway: usize, limit: Duration) -> Result<()> {
        let begun = Instant::now();
        let work = self.work.join(cluster.name(gateway));
        loop {
            match cluster.device(gateway, CONNECTIONS, &work) {
                Ok(device) => {
                    self.device = Some(device);
                    return Ok(());
                }
                // Our own query for the serving gateway may still hold the plain lease for a moment.
                Err(e) if begun.elapsed() > limit => return Err(e),
                Err(_) => {}
            }
        }
    }

    /// Mounts what is attached. Fails when mount does, or when nothing is attached.
    pub fn mount(&mut self) -> Result<()> {
        self.device.as_mut().context("no device")?.mount(&self.mount)
    }

    /// Stops everything without saving, after the server of the device died. Fails when PostgreSQL or nbdfuse do not
    /// end.
    pub fn drop_dead_device(&mut self) -> Result<()> {
        self.pg.stop(Signal::QUIT)?;
        self.device.take().map_or(Ok(()), Device::detach)
    }
}
