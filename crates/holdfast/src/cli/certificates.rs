//! Arguments of `holdfast cluster certificates`.

use super::values::{GatewayArg, owner};
use clap::Args;
use holdfast_tls::make::DAYS_MAX;
use holdfast_types::{Name, Owner};
use std::path::PathBuf;

/// `holdfast cluster certificates`.
#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("who").args(["gateway", "host", "viewer", "operator", "admin"]).required(true).multiple(true)))]
pub struct CertificatesArgs {
    /// Directory of the CA, certificates and keys; created if missing
    #[arg(long, value_name = "DIR")]
    pub dir: PathBuf,
    /// Name of a gateway; may be repeated. NAME=HOST,HOST: with its DNS names and IP addresses, for NBD clients that
    /// check them
    #[arg(long, value_name = "NAME")]
    pub gateway: Vec<GatewayArg>,
    /// Name of a PostgreSQL host, for its attach process and agent; may be repeated
    #[arg(long, value_name = "NAME")]
    pub host: Vec<Name>,
    /// The hosts of this call may hold leases under this name, not under their own; may be repeated
    #[arg(long, value_name = "OWNER", value_parser = owner, requires = "host")]
    pub owner: Vec<Owner>,
    /// The hosts of this call may use this set only; may be repeated [default: all sets]
    #[arg(long, value_name = "SET", requires = "host")]
    pub set: Vec<Name>,
    /// Name of a person or tool with read-only access; may be repeated
    #[arg(long, value_name = "NAME")]
    pub viewer: Vec<Name>,
    /// Name of a person or tool that may operate the cluster, but delete nothing; may be repeated
    #[arg(long, value_name = "NAME")]
    pub operator: Vec<Name>,
    /// Name of an administrator, who may do everything; may be repeated
    #[arg(long, value_name = "NAME")]
    pub admin: Vec<Name>,
    /// Validity of the certificates in days
    #[arg(long, value_name = "DAYS", default_value_t = 825, value_parser = clap::value_parser!(u64).range(1..=DAYS_MAX))]
    pub days: u64,
}
