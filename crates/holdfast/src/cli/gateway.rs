//! `holdfast gateway run`.

use super::values::setting;
use clap::{ArgAction, Args};
use holdfast_types::Name;
use std::net::SocketAddr;
use std::path::PathBuf;

/// `holdfast gateway run`.
#[derive(Debug, Default, Args)]
pub struct GatewayRunArgs {
    /// Settings in TOML (`holdfast gateway sample-config` explains them)
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// One setting, with its name in the file, such as journal.bound=2GiB; may be repeated
    #[arg(long, value_name = "KEY=VALUE", action = ArgAction::Append, value_parser = setting)]
    pub set: Vec<(String, String)>,
    /// Name of this gateway
    #[arg(long)]
    pub name: Option<Name>,
    /// Region of this gateway
    #[arg(long)]
    pub region: Option<Name>,
    /// Directory of the journal, the gateway's identity and the cache
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Admin address, for commands, agents and attach processes
    #[arg(long, value_name = "IP:PORT")]
    pub api_listen: Option<SocketAddr>,
    /// Address for other gateways
    #[arg(long, value_name = "IP:PORT")]
    pub peer_listen: Option<SocketAddr>,
    /// NBD address (TCP)
    #[arg(long, value_name = "IP:PORT")]
    pub nbd_listen: Option<SocketAddr>,
    /// Path of the NBD Unix socket
    #[arg(long, value_name = "PATH")]
    pub nbd_unix: Option<PathBuf>,
    /// HTTP address of metrics and health checks
    #[arg(long, value_name = "IP:PORT")]
    pub http_listen: Option<SocketAddr>,
    /// Allow exports of volumes and snapshots without a token (for trial only)
    #[arg(long)]
    pub plain_exports: bool,
    /// Round-trip time between the two most distant gateways, in milliseconds
    #[arg(long, value_name = "MS")]
    pub rtt_ms: Option<u32>,
    /// File with the cluster key: 32 random bytes, or 64 hex digits
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,
    /// Check the settings and the files that they name, tell all that is wrong, and exit
    #[arg(long)]
    pub check: bool,
    /// Exit when the parent process with this id exits
    #[arg(long, value_name = "PID", hide = true)]
    pub die_with: Option<u32>,
}
