//! The command line: names, arguments and the help that teaches them. No behaviour.

mod agent;
#[cfg(feature = "whole")]
mod attach;
mod certificate;
mod certificates;
mod common;
#[cfg(feature = "whole")]
mod csi;
mod dev;
mod doctor;
mod gateway;
mod history;
mod keys;
mod lease;
mod limits;
mod members;
mod moves;
mod pair;
mod paths;
mod placing;
mod recover;
mod set;
mod snapshot;
#[cfg(feature = "whole")]
mod standby;
mod store;
mod stores;
mod values;
mod verify;
mod volume;
mod watch;

use clap::{Parser, Subcommand};
use std::path::PathBuf;

pub use agent::{AgentArgs, AgentCommand, Agents};
#[cfg(feature = "whole")]
pub use attach::AttachArgs;
pub use certificate::{CertificateCommand, WhichArgs};
pub use certificates::CertificatesArgs;
pub use common::{Common, DEFAULT_API, GIVE_TLS};
#[cfg(feature = "whole")]
pub use csi::{CsiArgs, CsiServices};
pub use dev::DevArgs;
pub use doctor::{DoctorArgs, SupportArgs};
pub use gateway::GatewayRunArgs;
pub use history::HistoryArgs;
pub use keys::KeyCommand;
pub use lease::LeaseCommand;
pub use limits::LimitArgs;
pub use members::MembersCommand;
pub use moves::{FailoverArgs, SwitchoverArgs};
pub use pair::PairCommand;
pub use paths::{SnapshotArg, VolumePath};
pub use placing::{PlaceArgs, PolicyArgs};
pub use recover::RecoverArgs;
pub use set::{DeleteArgs, SetCommand};
pub use snapshot::SnapshotCommand;
#[cfg(feature = "whole")]
pub use standby::{CopyArgs, StandbyCommand};
pub use store::{CheckArgs, KeyArgs, StoreArgs, StoreCommand};
pub use stores::{HowArgs, StoresCommand};
pub use values::{VolumeArg, address, member, stores_text, with_codes};
pub use verify::VerifyArgs;
pub use volume::{ExportArgs, ImportArgs, VolumeCommand};
pub use watch::WatchArgs;

const ABOUT: &str = "Replicated block devices over NBD, kept in object storage";

const LONG_ABOUT: &str = "\
Replicated block devices over NBD, kept in object storage.

Three or more gateways write every change to a journal on a majority of their disks, and upload it \
to an object store in the background. One gateway at a time serves a set of volumes. When it \
fails, another gateway takes over; no acknowledged write is lost.";

const START: &str = "\
Examples:
  holdfast dev --dir /tmp/hf                         a whole cluster on this machine, for trial
  holdfast gateway sample-config > g1.toml           a configuration file with explanations
  holdfast gateway run --config g1.toml              run it
  holdfast cluster bootstrap --config cluster.toml   create a cluster from running gateways
  holdfast cluster status --api 10.0.0.1:7400        show its state
  holdfast attach demo --api 10.0.0.1:7400           use the volumes of a set on this host
  holdfast failover demo --candidate g2              take over from a lost gateway or owner
  holdfast verify --store s3://b/p --key-file key    check the data in the store
";

/// Arguments of the whole program.
#[derive(Debug, Parser)]
#[command(name = "holdfast", bin_name = "holdfast", version, about = ABOUT, long_about = LONG_ABOUT, max_term_width = 110, disable_help_subcommand = true, after_long_help = with_codes(START), mut_subcommands = common::explained_once)]
pub struct Cli {
    /// Arguments that every command takes.
    #[command(flatten)]
    pub common: Common,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Create, inspect and recover a cluster
    #[command(subcommand)]
    Cluster(ClusterCommand),
    /// Run a gateway; add, remove, replace and drain gateways
    #[command(subcommand)]
    Gateway(GatewayCommand),
    /// Create, show, check, clone, place, limit and delete sets; change their stores and snapshot schedules
    #[command(subcommand)]
    Set(SetCommand),
    /// Create, resize, rename, limit, delete, import and export volumes
    #[command(subcommand)]
    Volume(VolumeCommand),
    /// Create, list, compare and delete snapshots of a set; roll back to one
    #[command(subcommand)]
    Snapshot(SnapshotCommand),
    /// Show and rotate the encryption keys
    #[command(subcommand, after_long_help = keys::KEY)]
    Key(KeyCommand),
    /// Show the certificates of the gateways; revoke certificates
    #[command(subcommand)]
    Certificate(CertificateCommand),
    /// Show, acquire, renew and release leases
    #[command(subcommand, after_long_help = lease::LEASE)]
    Lease(LeaseCommand),
    /// Move a set to another gateway, planned: finishes requests first, and its owner keeps the lease
    Switchover(SwitchoverArgs),
    /// Move a set to another gateway by force: fences its present owner
    Failover(FailoverArgs),
    /// Attach the volumes of a set as devices on this host; they survive the loss of any gateway
    #[cfg(feature = "whole")]
    Attach(Box<AttachArgs>),
    /// Run PostgreSQL on one of several hosts: acquires the set, mounts it, starts PostgreSQL, and fails over when a
    /// host is lost
    #[cfg(feature = "whole")]
    Agent(Box<AgentArgs>),
    /// Run a read-only PostgreSQL on a local copy of a snapshot, refreshed at an interval, without load on the primary
    #[cfg(feature = "whole")]
    #[command(subcommand)]
    Standby(StandbyCommand),
    /// Serve volumes to Kubernetes by the Container Storage Interface (CSI)
    #[cfg(feature = "whole")]
    Csi(Box<CsiArgs>),
    /// Show a pair of gateways that uses etcd in place of a third voter
    #[cfg(feature = "whole")]
    #[command(subcommand)]
    Pair(PairCommand),
    /// Check whether a store fulfils the requirements of sets; contacts no gateway
    #[command(subcommand)]
    Store(StoreCommand),
    /// Read sets from their store and report damage; contacts no gateway
    Verify(Box<VerifyArgs>),
    /// Show the history of the agents: takeovers with the time of each phase, restarts, fencing
    #[cfg(feature = "whole")]
    History(HistoryArgs),
    /// Show changes of sets, leases and gateways as they happen
    Watch(WatchArgs),
    /// Check this host, its settings and its cluster, and say what to do
    #[cfg(feature = "whole")]
    #[command(after_long_help = doctor::DOCTOR)]
    Doctor(Box<DoctorArgs>),
    /// Write a bundle for support, a tar.gz without secrets
    #[cfg(feature = "whole")]
    #[command(after_long_help = doctor::SUPPORT)]
    SupportBundle(Box<SupportArgs>),
    /// Run a whole cluster on this machine, for trial and development
    Dev(DevArgs),
    /// Print the completion script of a shell
    #[cfg(feature = "whole")]
    #[command(after_long_help = "Example:\n  holdfast completions bash > /etc/bash_completion.d/holdfast")]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page, or write one page per command
    #[cfg(feature = "whole")]
    #[command(after_long_help = "Examples:\n  holdfast man | man -l -\n  holdfast man --dir /usr/local/share/man/man1")]
    Man {
        /// Write one page per command to this directory
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
    },
}

/// `holdfast cluster`.
#[derive(Debug, Subcommand)]
pub enum ClusterCommand {
    /// Create a certificate authority and certificates for TLS between gateways, hosts and people
    #[command(after_long_help = CERTIFICATES)]
    Certificates(CertificatesArgs),
    /// Create a cluster from running gateways, with its sets; what exists already is left as it is
    #[command(after_long_help = BOOTSTRAP)]
    Bootstrap {
        /// The plan: gateways and sets, in TOML (the format is below)
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
    },
    /// Show members, Raft groups and sets
    #[command(
        after_long_help = "Examples:\n  holdfast cluster status\n  holdfast cluster status --output json | jq '.members[] | select(.reachable | not) | .member.name'\n"
    )]
    Status,
    /// Create a new cluster from the data in a store, when every gateway of the old cluster is lost
    Recover(Box<RecoverArgs>),
}

const CERTIFICATES: &str = "\
Examples:
  holdfast cluster certificates --dir tls --gateway g1 --gateway g2 --host db1 --admin ann
  holdfast cluster certificates --dir tls --gateway g4         one more, of the same CA
  holdfast cluster certificates --dir tls --host db2 --set demo --viewer grafana --operator oda

A host holds leases under its NAME, which is the name of its agent or the --owner of its attach.
Copy ca.pem to every machine, and NAME.pem and NAME.key to the machine NAME. Name them in [tls] of
its settings, or by --tls-ca, --tls-certificate and --tls-key. Whoever has ca.key can issue
certificates for gateways: keep DIR away from gateways and hosts. Existing files are never
overwritten.
";

const BOOTSTRAP: &str = "\
Example:
  holdfast cluster bootstrap --config cluster.toml

The plan:
  [[gateways]]
  name = \"g1\"
  region = \"eu\"
  api = \"10.0.0.1:7400\"
  # ... one for each gateway; all must be running (holdfast gateway run) with the same cluster key

  [[sets]]
  name = \"demo\"
  store = \"s3://bucket/prefix\"        # or file:///directory
  volumes = { vol1 = \"100GiB\", vol2 = \"100GiB\" }

Run it again after a failure, or after adding a gateway, set or volume to the plan: what exists
already is left as it is.
";

/// `holdfast gateway`.
#[derive(Debug, Subcommand)]
pub enum GatewayCommand {
    /// Run a gateway until it receives SIGINT or SIGTERM
    #[command(after_long_help = GATEWAY_RUN)]
    Run(Box<GatewayRunArgs>),
    /// Print a configuration file that explains every setting
    #[command(visible_alias = "config", after_long_help = "Example:\n  holdfast gateway sample-config > g1.toml")]
    SampleConfig,
    /// Gateways of a running cluster
    #[command(flatten)]
    Members(MembersCommand),
}

const GATEWAY_RUN: &str = "\
Settings are read from the file, then from --set, then from the other options. The last one wins.

Examples:
  holdfast gateway run --config g1.toml
  holdfast gateway run --config g1.toml --check
  holdfast gateway run --name g1 --data-dir /srv/hf --nbd-unix /run/nbd.sock --key-file key
  holdfast gateway run --config g1.toml --set journal.bound=2GiB --set upload.compression=zstd

A new gateway belongs to no cluster until `holdfast cluster bootstrap` or `holdfast gateway add`
adopts it.
";

#[cfg(test)]
#[path = "cli_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "units_tests.rs"]
mod units;

#[cfg(test)]
#[path = "chart_tests.rs"]
mod chart;

#[cfg(test)]
#[path = "docs_tests.rs"]
mod docs;
