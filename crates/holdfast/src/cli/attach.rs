//! Arguments of `holdfast attach`.

use super::values::owner;
use crate::duration;
use clap::Args;
use holdfast_attach::DeviceKind;
use holdfast_types::{ByteSize, Locality, Name, Owner};
use std::path::PathBuf;
use std::time::Duration;

/// Default of `--queue-requests`.
const QUEUE_REQUESTS: u32 = 1024;

const ATTACH: &str = "\
Examples:
  holdfast attach demo --api 10.0.0.1:7400,10.0.0.2:7400
      acquires the lease with this host's name as owner, creates /dev/nbdN or /dev/loopN for each
      volume, runs in the foreground
  holdfast attach demo --device none --dir /tmp/demo
      Unix sockets only; connect with nbd+unix:///demo/vol1?socket=/tmp/demo/vol1.sock
  holdfast attach demo --output json
      prints one line when the devices are ready, the same as --status
  holdfast attach demo --status
  holdfast attach demo --detach

If the gateway fails, requests wait until another gateway serves the set, and continue there: no
I/O error, no data loss. If another owner acquires the set, all further requests fail permanently.
The process then stays until it is detached (stop the programs that use the devices, then
--detach) and ends with 7.

SIGTERM and SIGINT detach: the process waits for outstanding answers, then releases the lease.
Unmount first. Devices: `kernel` is the kernel's nbd driver, `nbdfuse` is a loop device on
nbdfuse, `auto` is the first of them that is available. Kernel devices survive this process:
started again with the same owner and directory, it takes them over and continues waiting
requests.
";

/// `holdfast attach`.
#[derive(Debug, Args)]
#[command(after_long_help = ATTACH)]
pub struct AttachArgs {
    /// The set
    pub set: Name,
    /// Owner of the lease [default: this host's name]
    #[arg(long, value_parser = owner)]
    pub owner: Option<Owner>,
    /// Where this host stands, as in a gateway's settings, for example region=eu-west,zone=a: the set is then served by
    /// the nearest of its gateways
    #[arg(long, value_name = "LOCALITY")]
    pub locality: Option<Locality>,
    /// Run directory, with the lock, the status and one Unix socket per volume [default: /run/holdfast/SET]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Kind of block devices
    #[arg(long, value_enum, value_name = "KIND", default_value_t)]
    pub device: Device,
    /// Time to live of the lease; it is renewed six times in this time [default: the gateway's setting]
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    pub ttl: Option<Duration>,
    /// Take the set from the present owner, whose further writes are refused
    #[arg(long)]
    pub force: bool,
    /// Connections to the gateway for each volume
    #[arg(long, value_name = "COUNT", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=16))]
    pub connections: u8,
    /// Limit of outstanding requests for each volume; at the limit, new requests wait
    #[arg(long, value_name = "COUNT", default_value_t = QUEUE_REQUESTS, value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub queue_requests: u32,
    /// The same limit in bytes: the memory that each volume may use while no gateway serves it
    #[arg(long, value_name = "SIZE", default_value = "64MiB")]
    pub queue_bytes: ByteSize,
    /// Sockets between a kernel device and this process; with more than one, the kernel drops a socket whose request is
    /// older than 30 s
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=16))]
    pub kernel_sockets: u8,
    /// How long a kernel device waits for a new process after this one died, before its requests fail
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = duration::parse)]
    pub dead_timeout: Duration,
    /// Disconnect the kernel devices that a dead process left behind; requests on them fail
    #[arg(long, conflicts_with_all = ["status", "detach", "ttl", "force"])]
    pub abandon: bool,
    /// Show the attached set and exit
    #[arg(long, conflicts_with_all = ["detach", "owner", "ttl", "force"])]
    pub status: bool,
    /// Detach the set: stop the process that attached it, and wait for its end
    #[arg(long, conflicts_with_all = ["owner", "ttl", "force"])]
    pub detach: bool,
}

/// `--device`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Device {
    /// The kernel's nbd driver if it is loaded, else nbdfuse and a loop device
    #[default]
    Auto,
    /// Unix sockets only
    None,
    /// nbdfuse and a loop device
    Nbdfuse,
    /// The kernel's nbd driver
    Kernel,
}

impl From<Device> for DeviceKind {
    fn from(device: Device) -> Self {
        match device {
            Device::Auto => Self::Auto,
            Device::None => Self::None,
            Device::Nbdfuse => Self::Nbdfuse,
            Device::Kernel => Self::Kernel,
        }
    }
}
