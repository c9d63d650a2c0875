//! The client of a cluster that `holdfast dev --secure` has started: it holds a lease, and comes with its token through
//! TLS. Nobody else is served there, so it also finds out which gateway serves.

use super::secured::{Lease, OWNER};
use super::{Cluster, Options, SET, VOLUME, free_ports};
use crate::attach::Device;
use crate::cmd::cmd;
use crate::nbd::{Uri, nbdsh};
use crate::process::POLL;
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Longer than a client is away here. Each write renews the lease as well.
const TTL: &str = "10m";

/// Of one command.
const ASK_LIMIT: &str = "5s";

/// What the client has for its connections.
#[derive(Clone, Debug)]
pub struct Held {
    /// The token of its lease.
    pub token: String,
    /// NBD address of the gateway that gave it.
    pub address: String,
    /// Folder with its certificate, under the file names that libnbd expects.
    pub certificate: PathBuf,
}

impl Cluster {
    /// The same as [`Cluster::start`], with everything on that keeps others out. The volume has one client, which comes
    /// with a token through TLS; [`Cluster::device`] is for that.
    pub fn start_secure(options: Options) -> Result<Self> {
        let port = free_ports(options.gateways)?;
        Self::start_with(options, port, &["--secure"], &|| None)
    }

    /// What the client has, where everything is on that keeps others out. Its own connections had slot 0. Fails when
    /// the certificate cannot be copied.
    pub fn client(&self) -> Result<Option<Held>> {
        let Some(secured) = &self.secured else { return Ok(None) };
        let Some(lease) = &secured.lease else { return Ok(None) };
        let certificate = secured.certificates.for_others(OWNER)?;
        Ok(Some(Held { token: lease.token.clone(), address: lease.address.clone(), certificate }))
    }

    /// Makes the volume a device, through the gateway that serves it.
    pub fn device(&self, index: usize, connections: u32, work: &Path) -> Result<Device> {
        let Some(secured) = &self.secured else { return Device::nbd(&self.gateways[index].nbd, connections, work) };
        let certificate = secured.certificates.for_others(OWNER)?;
        // A token's connections have a slot each, and nbdfuse has one name for all of its own.
        Device::nbds(&self.with_token(index)?, &certificate, 1, work)
    }

    /// [`Cluster::first_to_serve`] where nobody is served without a token: the lease is continued until a gateway
    /// answers a read.
    pub(super) fn first_to_grant(
        &mut self,
        among: &[usize],
        since: Instant,
        limit: Duration,
    ) -> Result<(usize, Duration)> {
        let mut last = String::from("never asked");
        while since.elapsed() < limit {
            match self.granted(among) {
                Ok(index) => return Ok((index, since.elapsed())),
                Err(error) => last = format!("{error:#}"),
            }
            self.dev.must_run()?;
            std::thread::sleep(POLL);
        }
        bail!("no gateway serves {SET}/{VOLUME} to {OWNER} after {limit:?}: {last}")
    }

    /// The gateway among these that answers a read with the token.
    fn granted(&mut self, among: &[usize]) -> Result<usize> {
        if let Some(index) = self.lease_at()
            && among.contains(&index)
            && self.reads(index).is_ok()
        {
            return Ok(index);
        }
        let lease = self.grant()?;
        // At once: from its first use on, the one before counts no more.
        self.secured.as_mut().context("not secured")?.lease = Some(lease);
        let index = self.lease_at().context("the lease is at no gateway of this cluster")?;
        anyhow::ensure!(among.contains(&index), "the lease is at {}", self.name(index));
        self.reads(index)?;
        Ok(index)
    }

    /// The gateway that gave the lease.
    fn lease_at(&self) -> Option<usize> {
        let lease = self.secured.as_ref()?.lease.as_ref()?;
        self.gateways.iter().position(|gateway| gateway.nbd.addr == lease.address)
    }

    /// The first grant, or the lease continued at whoever leads the set now.
    fn grant(&self) -> Result<Lease> {
        let secured = self.secured.as_ref().context("not secured")?;
        let command = cmd(&self.options.bin).args(["lease"]);
        let command = match &secured.lease {
            None => command.args(["acquire", SET, "--owner", OWNER, "--ttl", TTL]),
            Some(lease) => command.args(["continue", SET, "--owner", OWNER]).env("HOLDFAST_TOKEN", &lease.token),
        };
        let command = command.args(["--output", "json", "--timeout", ASK_LIMIT, "--api", &self.apis().join(",")]);
        let env = secured.certificates.env(OWNER);
        let said = env.into_iter().fold(command, |command, (key, value)| command.env(key, value)).out()?;
        let said: Value = serde_json::from_str(&said).context("a grant that is no JSON")?;
        let address = said["lease"]["gateway_nbd"].as_str().context("no gateway_nbd")?;
        let token = said["token"].as_str().context("no token")?;
        Ok(Lease::new(token, address))
    }

    /// The volume at a gateway, with the token.
    fn with_token(&self, index: usize) -> Result<Uri> {
        let secured = self.secured.as_ref().context("not secured")?;
        Ok(self.gateways[index].nbd.with_export(&secured.export(&format!("{SET}/{VOLUME}"))?))
    }

    /// Reads the first block through TLS, with the token, by libnbd.
    fn reads(&self, index: usize) -> Result<()> {
        let secured = self.secured.as_ref().context("not secured")?;
        let uri = self.with_token(index)?.through_tls(&secured.certificates.for_others(OWNER)?);
        let connect = format!("h.connect_uri({uri:?})");
        let all = ["-c", "h.set_uri_allow_local_file(True)", "-c", &connect, "-c", "h.pread(4096, 0)"];
        nbdsh().args(all).args(["-c", "h.shutdown()"]).run()
    }
}
