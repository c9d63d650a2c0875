//! The command line: names, arguments and the help that teaches them. No behaviour.

mod dev;
mod keys;
mod lease;
mod members;
mod stores;

use crate::command::{
    AgentArgs, AttachArgs, CertificatesArgs, DeleteArgs, HistoryArgs, PairCommand, RecoverArgs, SET_DELETE,
    SnapshotArg, SnapshotCommand, StandbyCommand, StoreCommand, VerifyArgs, VolumeCommand, WatchArgs,
};
use crate::exit::{CliError, EXIT_CODES};
use crate::{duration, output};
use clap::{ArgAction, Args, Parser, Subcommand};
use holdfast_set::recovery::Stores;
use holdfast_tls::{Dialer, Role, TlsFiles};
use holdfast_types::{ByteSize, MemberId, Name, Owner, Placement};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

pub use dev::DevArgs;
pub use keys::KeyCommand;
pub use lease::LeaseCommand;
pub use members::MembersCommand;
pub use stores::{HowArgs, StoresCommand};

/// Default admin address of a gateway.
pub const DEFAULT_API: &str = "127.0.0.1:7400";

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
#[command(name = "holdfast", bin_name = "holdfast", version, about = ABOUT, long_about = LONG_ABOUT, max_term_width = 110, disable_help_subcommand = true, after_long_help = with_codes(START))]
pub struct Cli {
    /// Arguments that every command takes.
    #[command(flatten)]
    pub common: Common,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Examples, followed by the exit codes.
pub fn with_codes(examples: &str) -> String {
    format!("{examples}\n{EXIT_CODES}")
}

const COMMON: &str = "Options of every command";

/// Default of `--timeout`: time for the whole command.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Default of `--timeout` for `holdfast dev`, which starts several gateways on one machine.
const DEV_TIMEOUT: Duration = Duration::from_secs(60);

impl Common {
    /// Loads the certificate files that the arguments name, for all connections of the command.
    ///
    /// # Errors
    /// A file cannot be used, or not all three are given.
    pub fn load_certificate(&mut self, role: Role) -> Result<(), CliError> {
        let (ca, certificate, key) = (self.tls_ca.clone(), self.tls_certificate.clone(), self.tls_key.clone());
        let tls = TlsFiles { ca, certificate, key }.load(role).map_err(|error| {
            CliError::usage("TLS").because(&error).next(
                "give --tls-ca, --tls-certificate and --tls-key (or HOLDFAST_TLS_CA, ..._CERTIFICATE, ..._KEY) of one cluster",
            )
        })?;
        self.dialer = Dialer::from(tls.as_ref());
        Ok(())
    }

    /// Time for the whole command.
    pub fn timeout(&self) -> Duration {
        self.timeout.unwrap_or(TIMEOUT)
    }

    /// Time until `holdfast dev` is ready.
    pub fn dev_timeout(&self) -> Duration {
        self.timeout.unwrap_or(DEV_TIMEOUT)
    }
}

/// Arguments that every command takes.
#[derive(Clone, Debug, Args)]
pub struct Common {
    /// Admin addresses of one or more gateways of the cluster; the command finds the right gateway from any of them
    #[arg(long, global = true, env = "HOLDFAST_API", hide_env_values = true, value_name = "HOST:PORT[,HOST:PORT]", value_delimiter = ',', value_parser = address,
          default_value = DEFAULT_API, help_heading = COMMON)]
    pub api: Vec<String>,

    /// Format of the result on standard output; errors on standard error have the same format
    #[arg(long, global = true, value_enum, value_name = "FORMAT", default_value_t, help_heading = COMMON)]
    pub output: output::Format,

    /// Time limit of the whole command, retries included; for `dev` until it is ready [default: 30s; `dev` 1m; `cluster recover` 2m; 10m for `set delete` and `gateway add`, `replace`, `remove` and `drain` while they wait]
    #[arg(long, global = true, value_name = "TIME", value_parser = duration::parse, help_heading = COMMON)]
    pub timeout: Option<Duration>,

    /// Log filter for standard error, such as `debug` or `holdfast_raft=debug,info` [default: info,openraft=error for gateways, warn for other commands]
    #[arg(long, global = true, env = "HOLDFAST_LOG", hide_env_values = true, value_name = "FILTER", help_heading = COMMON)]
    pub log: Option<String>,

    /// TLS: CA certificate of the cluster (PEM); requires --tls-certificate and --tls-key
    #[arg(long, global = true, env = "HOLDFAST_TLS_CA", hide_env_values = true, value_name = "FILE", help_heading = COMMON)]
    pub tls_ca: Option<PathBuf>,

    /// TLS: client certificate (PEM) with the role admin; `attach` uses the role host
    #[arg(long, global = true, env = "HOLDFAST_TLS_CERTIFICATE", hide_env_values = true, value_name = "FILE", help_heading = COMMON)]
    pub tls_certificate: Option<PathBuf>,

    /// TLS: private key of the client certificate (PEM)
    #[arg(long, global = true, env = "HOLDFAST_TLS_KEY", hide_env_values = true, value_name = "FILE", help_heading = COMMON)]
    pub tls_key: Option<PathBuf>,

    /// Connects to gateways, with the three files above
    #[arg(skip)]
    pub dialer: Dialer,
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
    /// Create, show, check, clone and delete sets; change their stores and snapshot schedules
    #[command(subcommand)]
    Set(SetCommand),
    /// Create, resize, rename, delete, import and export volumes
    #[command(subcommand)]
    Volume(VolumeCommand),
    /// Create, list, compare and delete snapshots of a set; roll back to one
    #[command(subcommand)]
    Snapshot(SnapshotCommand),
    /// Show and rotate the encryption keys
    #[command(subcommand, after_long_help = with_codes(keys::KEY))]
    Key(KeyCommand),
    /// Show, acquire, renew and release leases
    #[command(subcommand, after_long_help = with_codes(lease::LEASE))]
    Lease(LeaseCommand),
    /// Move a set to another gateway, planned: finishes requests first, and its owner keeps the lease
    Switchover(SwitchoverArgs),
    /// Move a set to another gateway by force: fences its present owner
    Failover(FailoverArgs),
    /// Attach the volumes of a set as devices on this host; they survive the loss of any gateway
    Attach(Box<AttachArgs>),
    /// Run PostgreSQL on one of several hosts: acquires the set, mounts it, starts PostgreSQL, and fails over when a host is lost
    Agent(Box<AgentArgs>),
    /// Run a read-only PostgreSQL on a local copy of a snapshot, refreshed at an interval, without load on the primary
    #[command(subcommand)]
    Standby(StandbyCommand),
    /// Show a pair of gateways that uses etcd in place of a third voter
    #[command(subcommand)]
    Pair(PairCommand),
    /// Check whether a store fulfils the requirements of sets; contacts no gateway
    #[command(subcommand)]
    Store(StoreCommand),
    /// Read sets from their store and report damage; contacts no gateway
    Verify(Box<VerifyArgs>),
    /// Show the history of the agents: takeovers with the time of each phase, restarts, fencing
    History(HistoryArgs),
    /// Show changes of sets, leases and gateways as they happen
    Watch(WatchArgs),
    /// Run a whole cluster on this machine, for trial and development
    Dev(DevArgs),
    /// Print the completion script of a shell
    #[command(after_long_help = "Example:\n  holdfast completions bash > /etc/bash_completion.d/holdfast")]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page, or write one page per command
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
    /// Create a certificate authority and certificates for TLS between gateways, hosts and administrators
    #[command(after_long_help = with_codes(CERTIFICATES))]
    Certificates(CertificatesArgs),
    /// Create a cluster from running gateways, with its sets; what exists already is left as it is
    #[command(after_long_help = with_codes(BOOTSTRAP))]
    Bootstrap {
        /// The plan: gateways and sets, in TOML (the format is below)
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
    },
    /// Show members, Raft groups and sets
    #[command(after_long_help = with_codes("Examples:\n  holdfast cluster status\n  holdfast cluster status --output json | jq '.members[] | select(.reachable | not) | .member.name'\n"))]
    Status,
    /// Create a new cluster from the data in a store, when every gateway of the old cluster is lost
    Recover(Box<RecoverArgs>),
}

const CERTIFICATES: &str = "\
Examples:
  holdfast cluster certificates --dir tls --gateway g1 --gateway g2 --host db1 --admin ann
  holdfast cluster certificates --dir tls --gateway g4         one more, of the same CA

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
    #[command(after_long_help = with_codes(GATEWAY_RUN))]
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
    /// Check the settings and exit
    #[arg(long)]
    pub check: bool,
    /// Exit when the parent process with this id exits
    #[arg(long, value_name = "PID", hide = true)]
    pub die_with: Option<u32>,
}

/// `holdfast set`.
#[derive(Debug, Subcommand)]
pub enum SetCommand {
    /// Create a set and its volumes; what exists already is left as it is
    #[command(after_long_help = with_codes("Examples:\n  holdfast set create demo --store s3://bucket/prefix --volume vol1=100GiB --volume vol2=100GiB\n  holdfast set create demo --store file:///srv/store --volume vol1=1GiB\n  holdfast set create demo --store s3://a/p --store s3://b/p --store s3://c/p --volume vol1=1GiB\n      three stores; an object counts as stored once two of them have it. Other commands name them together, in this order: \"w=2 s3://a/p s3://b/p s3://c/p\"\n  holdfast set create demo --store 's3://bucket/p?region=auto&profile=r2' --volume vol1=1GiB\n      with the credentials of that profile in each gateway's store.credentials_file\n"))]
    Create {
        /// Name of the set
        name: Name,
        /// Object store of the set; repeat it for several stores, which each get all data
        #[arg(long = "store", value_name = "URL", value_parser = store_url, required = true, action = ArgAction::Append)]
        stores: Vec<String>,
        /// With several stores: how many must confirm an object, more than half of them [default: the smallest majority]
        #[arg(long, value_name = "COUNT")]
        write_quorum: Option<usize>,
        /// A volume and its size; volumes are thin-provisioned; may be repeated
        #[arg(long = "volume", value_name = "NAME=SIZE", required = true, action = ArgAction::Append)]
        volumes: Vec<VolumeArg>,
    },
    /// List the sets
    #[command(after_long_help = with_codes(crate::command::set::LIST))]
    List,
    /// Show one set: its gateway, its owner, its volumes and its space in the store
    #[command(after_long_help = with_codes(crate::command::set::SHOW))]
    Show {
        /// The set
        set: Name,
        /// Show the view of any gateway, which may be outdated; works without a majority
        #[arg(long)]
        any_view: bool,
    },
    /// Show the stores of a set; add, drain and replace stores while the set is in use
    #[command(subcommand, after_long_help = with_codes(stores::STORES))]
    Stores(StoresCommand),
    /// Delete a set: its volumes, keys and objects, and its data on the gateways' disks
    #[command(after_long_help = with_codes(SET_DELETE))]
    Delete(DeleteArgs),
    /// Upload everything that was acknowledged so far to the store
    #[command(after_long_help = with_codes(crate::command::set::CHECKPOINT))]
    Checkpoint {
        /// The set
        set: Name,
    },
    /// Show or start the scrub of a set, which reads all its objects in the background and reports damage
    #[command(after_long_help = with_codes(crate::command::scrub::SCRUB))]
    Scrub {
        /// The set
        set: Name,
        /// Start it now, unless it is running
        #[arg(long)]
        start: bool,
    },
    /// Take snapshots of a set at fixed times, and delete old ones
    #[command(after_long_help = with_codes(SCHEDULE))]
    Schedule {
        /// The set
        set: Name,
        /// Rules such as 15mx8,1hx24,1dx30 (units s, m, h, d, w), or off
        #[arg(value_name = "RULES")]
        schedule: String,
    },
    /// Create a new writable set from a snapshot of another set; takes the same short time for any size
    #[command(after_long_help = with_codes(crate::command::clone::CLONE))]
    Clone {
        /// The snapshot, SET@SNAPSHOT
        snapshot: SnapshotArg,
        /// Name of the new set
        name: Name,
    },
}

const SCHEDULE: &str = "\
A rule is an interval and a number of snapshots to keep. 15mx8 takes a snapshot in every quarter
of an hour (UTC, by the gateways' clocks) and keeps the first snapshot of each of the last 8
quarters that have one. A snapshot can satisfy several rules. Its name is like
auto-20261120T083000Z. A missed snapshot is taken late, once. Manual snapshots are never deleted.
`off` stops the schedule and deletes nothing.

Examples:
  holdfast set schedule demo 15mx8,1hx24,1dx30
  holdfast set schedule demo off
";

/// `holdfast switchover`.
#[derive(Debug, Args)]
#[command(after_long_help = with_codes("Example:\n  holdfast switchover demo --to g2\n\nRequests in flight are answered first. Attach processes reconnect by themselves; connections without a token are closed.\n"))]
pub struct SwitchoverArgs {
    /// The set
    pub set: Name,
    /// Name of the gateway to move it to
    #[arg(long, value_name = "GATEWAY")]
    pub to: Name,
}

/// `holdfast failover`.
#[derive(Debug, Args)]
#[command(after_long_help = with_codes(FAILOVER))]
pub struct FailoverArgs {
    /// The set
    pub set: Name,
    /// Name of the gateway to move it to
    #[arg(long, value_name = "GATEWAY")]
    pub candidate: Name,
    /// Grant the lease to this new owner [default: nobody holds it afterwards]
    #[arg(long, value_parser = owner)]
    pub owner: Option<Owner>,
    /// Time to live of the new owner's lease without a renewal [default: the gateway's setting]
    #[arg(long, value_name = "TIME", value_parser = duration::parse, requires = "owner")]
    pub ttl: Option<Duration>,
    /// Reason, for the log
    #[arg(long, default_value = "")]
    pub reason: String,
    /// Do not ask for confirmation
    #[arg(long)]
    pub yes: bool,
}

const FAILOVER: &str = "\
Examples:
  holdfast failover demo --candidate g2
      asks for confirmation; afterwards nobody holds the set
  holdfast failover demo --candidate g2 --owner db2 --yes --output json
      for scripts: the result contains the new owner's token

The present owner is fenced: all its further writes are refused. No acknowledged write is lost.
Use `holdfast switchover` while the old gateway works.
";

/// `NAME=SIZE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeArg {
    /// The volume.
    pub name: Name,
    /// Its size.
    pub size: ByteSize,
}

impl FromStr for VolumeArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, size) =
            text.split_once('=').ok_or_else(|| format!("found {text:?}, expected NAME=SIZE, such as vol1=1GiB"))?;
        let name = Name::new(name).map_err(|error| error.to_string())?;
        let size: ByteSize = size.parse().map_err(|error: holdfast_types::SizeError| error.to_string())?;
        Ok(Self { name, size })
    }
}

/// Checks `HOST:PORT`.
pub fn address(text: &str) -> Result<String, String> {
    match holdfast_api::host_port(text) {
        Some(_) => Ok(text.to_string()),
        None => Err(format!("found {text:?}, expected HOST:PORT")),
    }
}

/// Reads `m2` or `2`.
pub fn member(text: &str) -> Result<MemberId, String> {
    let digits = text.strip_prefix('m').unwrap_or(text);
    let id = digits.parse().ok().filter(|&id| id != 0);
    id.map(MemberId)
        .ok_or_else(|| format!("found {text:?}, expected a member as `holdfast gateway list` shows it, such as m2"))
}

/// Checks an owner's name.
pub fn owner(text: &str) -> Result<Owner, String> {
    Owner::new(text).map_err(|error| error.to_string())
}

/// Checks the syntax of a store URL. The gateways check whether they can reach it.
pub fn store_url(text: &str) -> Result<String, String> {
    if text.starts_with("w=") {
        let stores = Stores::parse(text).map_err(|error| error.to_string())?;
        return stores.urls().iter().try_for_each(|url| store_url(url).map(drop)).map(|()| text.to_string());
    }
    let good = url::Url::parse(text).is_ok_and(|url| match url.scheme() {
        "s3" => url.has_host(),
        "file" => !url.has_host() && url.path().len() > 1,
        _ => false,
    });
    if good {
        Ok(text.to_string())
    } else {
        Err(format!(
            "found {text:?}, expected s3://BUCKET/PREFIX or file:///DIRECTORY, or for several stores \"w=QUORUM URL URL URL\""
        ))
    }
}

/// As [`store_url`]. Also accepts what `holdfast set list` shows of a set whose stores were changed: `c=2 ...`, and both lists during a change.
pub fn stores_text(text: &str) -> Result<String, String> {
    let placement = Placement::parse(text);
    if placement.next.is_none() && (text.contains(" | ") || text.contains(" => ")) {
        return Err(format!(
            "found {text:?}, expected the stores as `holdfast set list` shows them: \"LIST\", or during a change \"LIST => LIST\""
        ));
    }
    for list in std::iter::once(&placement.stores).chain(placement.next.as_ref().map(|(_, to)| to)) {
        if list.starts_with("c=") {
            let stores = Stores::parse(list).map_err(|error| error.to_string())?;
            stores.urls().iter().try_for_each(|url| store_url(url).map(drop))?;
        } else {
            store_url(list)?;
        }
    }
    Ok(text.to_string())
}

fn setting(text: &str) -> Result<(String, String), String> {
    let parts = text.split_once('=').filter(|(key, _)| !key.is_empty());
    parts
        .map(|(key, value)| (key.to_string(), value.to_string()))
        .ok_or_else(|| format!("found {text:?}, expected KEY=VALUE, such as journal.bound=2GiB"))
}

#[cfg(test)]
#[path = "cli_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "units_tests.rs"]
mod units;
