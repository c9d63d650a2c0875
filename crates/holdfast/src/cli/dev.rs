//! Arguments of `holdfast dev`.

use super::{VolumeArg, setting, store_url, with_codes};
use clap::{ArgAction, Args};
use holdfast_types::Name;
use std::path::PathBuf;

/// `holdfast dev`.
#[derive(Debug, Args)]
#[command(after_long_help = with_codes(DEV))]
pub struct DevArgs {
    /// Everything is kept here: ports, key, settings, logs, data, store
    #[arg(long, value_name = "DIR")]
    pub dir: PathBuf,
    /// How many gateways [default: 3, or as before]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=9))]
    pub gateways: Option<u16>,
    /// Where the set's data goes [default: a directory under DIR, or as before]
    #[arg(long, value_name = "URL", value_parser = store_url)]
    pub store: Option<String>,
    /// Name of the set [default: demo, or as before]
    #[arg(long)]
    pub set: Option<Name>,
    /// A volume and its size; may be given several times [default: vol1=1GiB, or as before]
    #[arg(long = "volume", value_name = "NAME=SIZE", action = ArgAction::Append)]
    pub volumes: Vec<VolumeArg>,
    /// NBD port of the first gateway; the others take the next ones [default: free ones, or as before]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..=65526))]
    pub nbd_port: Option<u16>,
    /// One setting of every gateway, as in its file, where it is kept; may be given several times
    #[arg(long = "gateway-set", value_name = "KEY=VALUE", action = ArgAction::Append, value_parser = setting)]
    pub gateway_set: Vec<(String, String)>,
    /// With TLS between gateways and at the admin door: makes an authority and certificates in DIR/tls, once; kept from then on
    #[arg(long)]
    pub tls: bool,
    /// Start a gateway again that ended
    #[arg(long)]
    pub respawn: bool,
}

const DEV: &str = "\
Examples:
  holdfast dev --dir /tmp/hf
  holdfast dev --dir /tmp/hf --gateways 1 --volume vol1=10GiB --volume vol2=10GiB
  holdfast dev --dir /tmp/hf --output json
      prints one line once it is ready: nbd, api, pids
  holdfast dev --dir /tmp/hf --gateway-set cache.memory=1GiB
  holdfast dev --dir /tmp/hf --store s3://bucket/prefix
      credentials come from the AWS variables, endpoint and region from DIR/g1.toml and so on

It stays in the foreground; the gateways end with it. Started again on the same directory it comes back with its data.
Each gateway's settings are in DIR/g1.toml and so on, to be changed by hand; its log is DIR/g1.log.
";
