//! Arguments of `holdfast cluster certificates`.

use super::values::GatewayArg;
use clap::Args;
use holdfast_tls::make::DAYS_MAX;
use holdfast_types::Name;
use std::path::PathBuf;

/// `holdfast cluster certificates`.
#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("who").args(["gateway", "host", "admin"]).required(true).multiple(true)))]
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
    /// Name of an administrator; may be repeated
    #[arg(long, value_name = "NAME")]
    pub admin: Vec<Name>,
    /// Validity of the certificates in days
    #[arg(long, value_name = "DAYS", default_value_t = 825, value_parser = clap::value_parser!(u64).range(1..=DAYS_MAX))]
    pub days: u64,
}
