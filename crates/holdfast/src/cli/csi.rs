//! Arguments of `holdfast csi`.

use super::values::{owner, stores_text};
use clap::Args;
use holdfast_csi::{DeviceChoice, Prefix};
use holdfast_types::{Locality, Owner};
use std::path::{Path, PathBuf};

const CSI: &str = "\
Examples:
  holdfast csi --serve controller --endpoint /csi/csi.sock --store s3://bucket/prefix
  holdfast csi --serve node --endpoint /csi/csi.sock --node worker1 --locality region=eu,zone=a

The chart in deploy/helm/holdfast runs both: one controller for the Kubernetes cluster, one node
service on each node. A volume of Kubernetes is a set with the volume `data`; the node where it is
staged owns its lease. The node service needs root, the kernel's nbd driver and the network of the
node.
";

/// `holdfast csi`.
#[derive(Debug, Args)]
#[command(after_long_help = CSI)]
pub struct CsiArgs {
    /// The services of this process
    #[arg(long, value_enum, value_name = "SERVICE", default_value_t)]
    pub serve: CsiServices,
    /// Unix socket to serve at: a path, or unix://PATH
    #[arg(long, env = "CSI_ENDPOINT", hide_env_values = true, value_name = "SOCKET", value_parser = socket)]
    pub endpoint: PathBuf,
    /// Controller: store of the sets whose StorageClass names none, as in `holdfast set create`
    #[arg(long, value_name = "URL", value_parser = stores_text)]
    pub store: Option<String>,
    /// Controller: beginning of the names of its sets and snapshots; each Kubernetes cluster that uses the same
    /// gateways needs its own
    #[arg(long, value_name = "PREFIX", default_value = "csi-")]
    pub set_prefix: Prefix,
    /// Node: its name in Kubernetes, which owns the leases; with TLS that of its certificate [default: this host's
    /// name]
    #[arg(long, env = "NODE_NAME", hide_env_values = true, value_name = "NAME", value_parser = owner)]
    pub node: Option<Owner>,
    /// Node: where it stands, as in a gateway's settings, for example region=eu-west,zone=a
    #[arg(long, value_name = "LOCALITY")]
    pub locality: Option<Locality>,
    /// Node: records of staged volumes and run directories of attach; on the node, not in the container
    #[arg(long, value_name = "DIR", default_value = "/run/holdfast/csi")]
    pub dir: PathBuf,
    /// Node: kind of block devices
    #[arg(long, value_enum, value_name = "KIND", default_value_t)]
    pub device: CsiDevice,
    /// Node: most sets that are attached at once; each is a process
    #[arg(long, value_name = "COUNT", default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub max_volumes: u16,
}

/// `--serve`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum CsiServices {
    /// Both, for trials without TLS
    #[default]
    All,
    /// Creates, grows, copies and deletes volumes
    Controller,
    /// Brings volumes to one node
    Node,
}

/// `--device` of `holdfast csi`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum CsiDevice {
    /// The kernel's nbd driver
    #[default]
    Kernel,
    /// For tests: nbdfuse and a loop device; mounts die with the process, and do not grow
    Nbdfuse,
}

impl From<CsiDevice> for DeviceChoice {
    fn from(device: CsiDevice) -> Self {
        match device {
            CsiDevice::Kernel => Self::Kernel,
            CsiDevice::Nbdfuse => Self::Nbdfuse,
        }
    }
}

fn socket(text: &str) -> Result<PathBuf, String> {
    let path = text.strip_prefix("unix://").or_else(|| text.strip_prefix("unix:")).unwrap_or(text);
    if Path::new(path).is_absolute() {
        return Ok(PathBuf::from(path));
    }
    Err(format!("found {text:?}, expected an absolute path of a Unix socket, with or without unix:// before it"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_a_path_with_or_without_a_scheme() {
        for text in ["/csi/csi.sock", "unix:///csi/csi.sock", "unix:/csi/csi.sock"] {
            assert_eq!(socket(text).unwrap(), Path::new("/csi/csi.sock"), "{text}");
        }
        assert!(socket("csi.sock").is_err() && socket("tcp://127.0.0.1:1").is_err());
    }
}
