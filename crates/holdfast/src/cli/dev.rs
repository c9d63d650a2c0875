//! Arguments of `holdfast dev`.

use super::values::{VolumeArg, setting, store_url};
use clap::{ArgAction, Args};
use holdfast_types::Name;
use std::path::PathBuf;

/// `holdfast dev`.
#[derive(Debug, Args)]
#[command(after_long_help = DEV)]
pub struct DevArgs {
    /// Directory of everything: ports, key, settings, logs, data and store
    #[arg(long, value_name = "DIR")]
    pub dir: PathBuf,
    /// Number of gateways [default: 3, or as in DIR]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=9))]
    pub gateways: Option<u16>,
    /// Object store of the set [default: a directory below DIR, or as in DIR]
    #[arg(long, value_name = "URL", value_parser = store_url)]
    pub store: Option<String>,
    /// Name of the set [default: demo, or as in DIR]
    #[arg(long)]
    pub set: Option<Name>,
    /// A volume and its size; may be repeated [default: vol1=1GiB, or as in DIR]
    #[arg(long = "volume", value_name = "NAME=SIZE", action = ArgAction::Append)]
    pub volumes: Vec<VolumeArg>,
    /// NBD port of the first gateway; the others use the following ports [default: free ports, or as in DIR]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..=65526))]
    pub nbd_port: Option<u16>,
    /// One setting for every gateway, with its name in the configuration file, where it is saved; may be repeated
    #[arg(long = "gateway-set", value_name = "KEY=VALUE", action = ArgAction::Append, value_parser = setting)]
    pub gateway_set: Vec<(String, String)>,
    /// Use TLS between gateways and for the admin API, and allow it for NBD: creates a CA and certificates in DIR/tls
    /// once, and uses them from then on
    #[arg(long)]
    pub tls: bool,
    /// Switch on everything that keeps others out: TLS for every client, NBD too; roles; exports only with a token; the
    /// store as the only one allowed; an audit log of each gateway. Creates certificates for each role in DIR/tls. It
    /// stays on
    #[arg(long)]
    pub secure: bool,
    /// Restart gateways that exit
    #[arg(long)]
    pub respawn: bool,
}

const DEV: &str = "\
Examples:
  holdfast dev --dir /tmp/hf
  holdfast dev --dir /tmp/hf --gateways 1 --volume vol1=10GiB --volume vol2=10GiB
  holdfast dev --dir /tmp/hf --output json
      prints one line when it is ready: NBD and admin addresses, process ids
  holdfast dev --dir /tmp/hf --gateway-set cache.memory=1GiB
  holdfast dev --dir /tmp/hf --secure
      everything on, as in production; prints commands with their certificates
  holdfast dev --dir /tmp/hf --store s3://bucket/prefix
      credentials from the AWS variables; endpoint and region from DIR/g1.toml and so on

It runs in the foreground and stops its gateways when it exits. Started again on the same
directory, it continues with the same data. The settings of gateway g1 are in DIR/g1.toml and may
be edited; its log is DIR/g1.log.
";
