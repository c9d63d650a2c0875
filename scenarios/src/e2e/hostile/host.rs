//! A host with a lease beside the flood: with a plain connection, or through TLS where NBD requires it.

use crate::cluster::{Cluster, SET, VOLUME, free_ports};
use crate::cmd::cmd;
use crate::nbd::{Client, Uri, nbdsh, pattern};
use crate::process::{Proc, wait_until};
use anyhow::{Context, Result};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

/// Of the connection that stays: later than what the cluster itself has made with the same token.
const STAYS: (u32, u32) = (0, 1000);

/// Slot of the connections that come and go.
const COMES: u32 = 1;

/// A host with a lease.
pub(super) struct Host {
    /// The NBD address of the gateway that serves it.
    pub(super) address: String,
    token: String,
    /// Folder with its certificate, where NBD requires TLS.
    certificate: Option<PathBuf>,
}

impl Host {
    pub(super) fn attach(cluster: &Cluster) -> Result<Self> {
        if let Some(client) = cluster.client()? {
            let (token, address) = (client.token, client.address);
            return Ok(Self { address, token, certificate: Some(client.certificate) });
        }
        let mut said = None;
        // Whoever asked which gateway serves may still have its plain lease.
        wait_until(PATIENCE, || {
            said = cluster.holdfast(&["lease", "acquire", SET, "--owner", "db1", "--ttl", "10m"]).ok();
            said.is_some()
        });
        let said = said.context("no lease of a free set")?;
        let token = said["token"].as_str().context("no token")?.to_owned();
        let address = said["lease"]["gateway_nbd"].as_str().context("no gateway_nbd")?.to_owned();
        Ok(Self { address, token, certificate: None })
    }

    fn uri(&self, (slot, generation): (u32, u32)) -> Uri {
        let export = format!("{SET}/{VOLUME}?token={}&conn={slot}&gen={generation}", self.token);
        Uri { addr: self.address.clone(), export }
    }

    /// The connection that stays, and the program that has it where it is one through TLS: nbdkit, whom the client asks
    /// in plain text.
    pub(super) fn connect(&self, log: &Path) -> Result<(Client, Option<Proc>)> {
        let uri = self.uri(STAYS);
        let Some(certificate) = &self.certificate else { return Ok((Client::connect(&uri, PATIENCE)?, None)) };
        let (host, port) = uri.addr.split_once(':').context("HOST:PORT")?;
        let near = free_ports(1)?;
        let command = cmd("nbdkit").args(["-f", "-i", "127.0.0.1", "-p", &near.to_string(), "nbd", "tls=require"]);
        let command = command.arg(format!("tls-certificates={}", certificate.display()));
        let command = command.args([format!("hostname={host}"), format!("port={port}")]);
        let command = command.arg(format!("export={}", uri.export)).into_command();
        let mut nbdkit = Proc::spawn("nbdkit", command, log)?;
        let near = Uri { addr: format!("127.0.0.1:{near}"), export: String::new() };
        nbdkit.ready_when("listening", PATIENCE, || TcpStream::connect(&near.addr).is_ok())?;
        let client = Client::connect(&near, PATIENCE).context("through nbdkit and TLS")?;
        Ok((client, Some(nbdkit)))
    }

    /// A new connection, one write, and its end.
    pub(super) fn writes_once(&self, generation: u32, at: u64, len: usize) -> Result<()> {
        let uri = self.uri((COMES, generation));
        let Some(certificate) = &self.certificate else {
            let mut client = Client::connect(&uri, PATIENCE)?;
            client.write(at, &pattern(1, at, len))?;
            client.disconnect();
            return Ok(());
        };
        let connect = format!("h.connect_uri({:?})", uri.through_tls(certificate));
        let write = format!("h.pwrite(b'Z' * {len}, {at})");
        let all = ["-c", "h.set_uri_allow_local_file(True)", "-c", &connect, "-c", &write, "-c", "h.shutdown()"];
        nbdsh().args(all).run()
    }
}
