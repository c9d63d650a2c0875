//! Options of `cargo xtask zfs`, and the parts of a run.

use crate::binary::Build;
use std::path::PathBuf;

/// Options on the command line.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Which parts to run
    #[arg(long, value_enum, default_value_t)]
    pub(super) part: Part,
    /// Seconds of load before each fault
    #[arg(long, default_value_t = 10, value_name = "SECONDS")]
    pub(super) load: u64,
    /// Scale of pgbench's tables (about 15 MB for each)
    #[arg(long, default_value_t = 2, value_name = "N")]
    pub(super) scale: u32,
    /// Sockets per kernel device
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub(super) sockets: u8,
    /// Folder of the guest's image; the image is built there if it is missing or out of date
    #[arg(long, value_name = "DIR")]
    pub(super) image: Option<PathBuf>,
    /// Do not install missing programs
    #[arg(long)]
    pub(super) no_setup: bool,
    #[command(flatten)]
    pub(super) build: Build,
    /// Set by the chore itself when it runs in its own network namespace: the folder for all files
    #[arg(long, hide = true)]
    pub(super) inside: Option<PathBuf>,
}

/// Parts of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Part {
    /// All parts
    #[default]
    All,
    /// One guest: the pool is created, volumes grow, a gateway and attach are killed, another owner takes the set,
    /// attach is killed and not restarted
    Devices,
    /// Two guests: a standby on a copy of the pool, first beside the primary, then on the host with the pool itself;
    /// the copy is killed
    Standby,
    /// Two guests with agents: one killed, one paused and resumed; a process keeps the pool from a switchover, and one
    /// does so once PostgreSQL has stopped
    Agents,
    /// Two guests with agents: the primary is cut off the network, and connected again
    CutOff,
    /// Two guests under systemd, with the machine's watchdog: agent, helper and attach hang, a machine is shut down,
    /// PostgreSQL as a unit moves
    Watchdog,
    /// Two guests with agents and a pool with multihost=on: switchovers, missing and duplicate host ids, the primary
    /// killed
    Multihost,
    /// One pool over two sets in two stores: each side is lost and comes back, one side alone is stale, the host is
    /// killed
    Mirror,
    /// One guest with an agent: datasets that are not mounted, WAL and a tablespace on a disk of the host
    OffSet,
    /// L2ARC and SLOG on disks of the hosts: the benefit of each, the disk is lost under load, the host is killed,
    /// `zpool import -m` and what it loses
    SecondDevice,
}

impl Part {
    /// Whether a run of this part includes `part`.
    pub(super) fn runs(self, part: Self) -> bool {
        self == Self::All || self == part
    }
}
