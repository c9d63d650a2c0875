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

/// Where a gateway listens that was told nothing else.
pub const DEFAULT_API: &str = "127.0.0.1:7400";

const ABOUT: &str = "Replicated block devices over NBD, kept in object storage";

const LONG_ABOUT: &str = "\
Replicated block devices over NBD, kept in object storage.

Three or more gateways keep a journal of every write on a majority of their disks and fill an object store behind it. \
A set of volumes is served by one gateway at a time; when it goes away, another one takes over with nothing acknowledged lost.";

const START: &str = "\
Examples:
  holdfast dev --dir /tmp/hf                         a whole cluster on this machine, to try out
  holdfast gateway sample-config > g1.toml           settings of one gateway, explained
  holdfast gateway run --config g1.toml              run it
  holdfast cluster bootstrap --config cluster.toml   make a cluster of running gateways
  holdfast cluster status --api 10.0.0.1:7400        see how it does
  holdfast attach demo --api 10.0.0.1:7400           use its devices on this host
  holdfast failover demo --candidate g2              take over what a lost gateway or owner held
  holdfast verify --store s3://b/p --key-file key    check what the store has
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

/// Examples, and below them what the exit codes mean.
pub fn with_codes(examples: &str) -> String {
    format!("{examples}\n{EXIT_CODES}")
}

const COMMON: &str = "Options of every command";

/// Time that a command has in all where `--timeout` says nothing.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The same for `holdfast dev`: several gateways start on one machine.
const DEV_TIMEOUT: Duration = Duration::from_secs(60);

impl Common {
    /// Reads the certificate that the arguments name, for all connections of the command.
    ///
    /// # Errors
    /// Files that cannot be used, or not all three of them.
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
    /// Admin addresses of one or more gateways of the cluster; any of them finds the one that can do it
    #[arg(long, global = true, env = "HOLDFAST_API", hide_env_values = true, value_name = "HOST:PORT[,HOST:PORT]", value_delimiter = ',', value_parser = address,
          default_value = DEFAULT_API, help_heading = COMMON)]
    pub api: Vec<String>,

    /// Form of the result; errors follow it on standard error
    #[arg(long, global = true, value_enum, value_name = "FORM", default_value_t, help_heading = COMMON)]
    pub output: output::Format,

    /// Time for the whole command, retries included; for `dev` until it is ready [default: 30s; `dev` 1m, `cluster recover` 2m, where `set delete` and `gateway add`, `replace`, `remove` or `drain` wait 10m]
    #[arg(long, global = true, value_name = "TIME", value_parser = duration::parse, help_heading = COMMON)]
    pub timeout: Option<Duration>,

    /// What to log to standard error, such as `debug` or `holdfast_raft=debug,info` [default: info,openraft=error for gateways, else warn]
    #[arg(long, global = true, env = "HOLDFAST_LOG", hide_env_values = true, value_name = "FILTER", help_heading = COMMON)]
    pub log: Option<String>,

    /// TLS: certificate of the cluster's authority (PEM); with it, --tls-certificate and --tls-key
    #[arg(long, global = true, env = "HOLDFAST_TLS_CA", hide_env_values = true, value_name = "FILE", help_heading = COMMON)]
    pub tls_ca: Option<PathBuf>,

    /// TLS: own certificate (PEM), of an administrator, or a host's where it attaches
    #[arg(long, global = true, env = "HOLDFAST_TLS_CERTIFICATE", hide_env_values = true, value_name = "FILE", help_heading = COMMON)]
    pub tls_certificate: Option<PathBuf>,

    /// TLS: private key of the own certificate (PEM)
    #[arg(long, global = true, env = "HOLDFAST_TLS_KEY", hide_env_values = true, value_name = "FILE", help_heading = COMMON)]
    pub tls_key: Option<PathBuf>,

    /// How gateways are connected to, from the three files above
    #[arg(skip)]
    pub dialer: Dialer,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Make a cluster, look at it, recover it
    #[command(subcommand)]
    Cluster(ClusterCommand),
    /// Run one gateway; let gateways in and out, and make them stand aside
    #[command(subcommand)]
    Gateway(GatewayCommand),
    /// Create, show, check, clone and delete volume sets; their stores and schedules
    #[command(subcommand)]
    Set(SetCommand),
    /// Make volumes, resize, rename and delete them; fill them from images, write them to images
    #[command(subcommand)]
    Volume(VolumeCommand),
    /// Keep a set as it is at one moment; list, compare, delete snapshots, go back to one
    #[command(subcommand)]
    Snapshot(SnapshotCommand),
    /// Look at the keys that everything is sealed under, and change them
    #[command(subcommand, after_long_help = with_codes(keys::KEY))]
    Key(KeyCommand),
    /// Look at leases, take them, give them back
    #[command(subcommand, after_long_help = with_codes(lease::LEASE))]
    Lease(LeaseCommand),
    /// Move a set to another gateway, planned: drains first, its owner keeps the lease
    Switchover(SwitchoverArgs),
    /// Move a set to another gateway by force: fences whoever holds it
    Failover(FailoverArgs),
    /// Keep a set's devices on this host: through the loss of any gateway, until another owner takes the set
    Attach(Box<AttachArgs>),
    /// Run PostgreSQL on one host of several: takes the set, mounts it, starts PostgreSQL, and takes over from a lost host
    Agent(Box<AgentArgs>),
    /// Run a PostgreSQL for reading on a local copy of a snapshot, renewed now and then; the set does not notice
    #[command(subcommand)]
    Standby(StandbyCommand),
    /// Look at a pair of gateways that has an etcd in place of a third voter
    #[command(subcommand)]
    Pair(PairCommand),
    /// Look whether stores do what sets rely on, before a set is put there; asks no gateway
    #[command(subcommand)]
    Store(StoreCommand),
    /// Read sets as their store has them, and name what is damaged; asks no gateway
    Verify(Box<VerifyArgs>),
    /// Show what the agents did: takeovers with the time of each phase, restarts, fences
    History(HistoryArgs),
    /// Watch sets, leases and gateways as they change
    Watch(WatchArgs),
    /// Run a whole cluster on this machine, to try out and to develop with
    Dev(DevArgs),
    /// Print the completions of a shell
    #[command(after_long_help = "Example:\n  holdfast completions bash > /etc/bash_completion.d/holdfast")]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page, or write one page per command
    #[command(after_long_help = "Examples:\n  holdfast man | man -l -\n  holdfast man --dir /usr/local/share/man/man1")]
    Man {
        /// Directory for one page per command
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
    },
}

/// `holdfast cluster`.
#[derive(Debug, Subcommand)]
pub enum ClusterCommand {
    /// Make an authority and certificates for TLS between gateways, hosts and commands
    #[command(after_long_help = with_codes(CERTIFICATES))]
    Certificates(CertificatesArgs),
    /// Make a cluster of running gateways, with its sets; says what it did, and does only what is missing
    #[command(after_long_help = with_codes(BOOTSTRAP))]
    Bootstrap {
        /// The plan: gateways and sets in TOML
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
    },
    /// Show members, groups and sets
    #[command(after_long_help = with_codes("Examples:\n  holdfast cluster status\n  holdfast cluster status --output json | jq '.members[] | select(.reachable | not) | .member.name'\n"))]
    Status,
    /// Make a new cluster of what a store has, when every gateway of the old one is lost
    Recover(Box<RecoverArgs>),
}

const CERTIFICATES: &str = "\
Examples:
  holdfast cluster certificates --dir tls --gateway g1 --gateway g2 --host db1 --admin ann
  holdfast cluster certificates --dir tls --gateway g4         one more, by the same authority

ca.pem goes to every machine; NAME.pem and NAME.key to its own, named in [tls] of its settings or by --tls-certificate and --tls-key.
ca.key can make a gateway of anything: keep DIR off the gateways and hosts. A file that is there is never overwritten.
";

const BOOTSTRAP: &str = "\
Example:
  holdfast cluster bootstrap --config cluster.toml

The plan:
  [[gateways]]
  name = \"g1\"
  region = \"eu\"
  api = \"10.0.0.1:7400\"
  # ... one for each gateway; they must be running (holdfast gateway run), with one cluster key

  [[sets]]
  name = \"demo\"
  store = \"s3://bucket/prefix\"        # or file:///directory
  volumes = { vol1 = \"100GiB\", vol2 = \"100GiB\" }

Run it again after a failure, or after adding a gateway, set or volume to the plan: what is there already is left alone.
";

/// `holdfast gateway`.
#[derive(Debug, Subcommand)]
pub enum GatewayCommand {
    /// Run a gateway until it is told to stop
    #[command(after_long_help = with_codes(GATEWAY_RUN))]
    Run(Box<GatewayRunArgs>),
    /// Print a configuration file with every setting explained
    #[command(visible_alias = "config", after_long_help = "Example:\n  holdfast gateway sample-config > g1.toml")]
    SampleConfig,
    /// For a running cluster
    #[command(flatten)]
    Members(MembersCommand),
}

const GATEWAY_RUN: &str = "\
Settings come from the file, then from --set, then from the flags: the last one counts.

Examples:
  holdfast gateway run --config g1.toml
  holdfast gateway run --config g1.toml --check
  holdfast gateway run --name g1 --data-dir /srv/hf --nbd-unix /run/nbd.sock --key-file key
  holdfast gateway run --config g1.toml --set journal.bound=2GiB --set upload.compression=zstd

A gateway that runs for the first time belongs to no cluster: `holdfast cluster bootstrap` or `holdfast gateway add` adopts it.
";

/// `holdfast gateway run`.
#[derive(Debug, Default, Args)]
pub struct GatewayRunArgs {
    /// Settings in TOML (`holdfast gateway sample-config` explains them)
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// One setting, as in the file
    #[arg(long, value_name = "KEY=VALUE", action = ArgAction::Append, value_parser = setting)]
    pub set: Vec<(String, String)>,
    /// Name of this gateway
    #[arg(long)]
    pub name: Option<Name>,
    /// Region that it stands in
    #[arg(long)]
    pub region: Option<Name>,
    /// Directory of journal, identity and cache
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Admin door: where commands, agents and attach processes connect
    #[arg(long, value_name = "IP:PORT")]
    pub api_listen: Option<SocketAddr>,
    /// Where other gateways connect
    #[arg(long, value_name = "IP:PORT")]
    pub peer_listen: Option<SocketAddr>,
    /// NBD over TCP
    #[arg(long, value_name = "IP:PORT")]
    pub nbd_listen: Option<SocketAddr>,
    /// NBD over a Unix socket
    #[arg(long, value_name = "PATH")]
    pub nbd_unix: Option<PathBuf>,
    /// Metrics and health
    #[arg(long, value_name = "IP:PORT")]
    pub http_listen: Option<SocketAddr>,
    /// Allow exports of volumes and of snapshots without a token: for trying out
    #[arg(long)]
    pub plain_exports: bool,
    /// Round trip between the farthest gateways in milliseconds
    #[arg(long, value_name = "MS")]
    pub rtt_ms: Option<u32>,
    /// File with the cluster key: 32 random bytes, or the same as 64 hex digits
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,
    /// Check the settings and stop
    #[arg(long)]
    pub check: bool,
    /// End when this process, the parent, ends
    #[arg(long, value_name = "PID", hide = true)]
    pub die_with: Option<u32>,
}

/// `holdfast set`.
#[derive(Debug, Subcommand)]
pub enum SetCommand {
    /// Create a set and its volumes; does only what is missing
    #[command(after_long_help = with_codes("Examples:\n  holdfast set create demo --store s3://bucket/prefix --volume vol1=100GiB --volume vol2=100GiB\n  holdfast set create demo --store file:///srv/store --volume vol1=1GiB\n  holdfast set create demo --store s3://a/p --store s3://b/p --store s3://c/p --volume vol1=1GiB\n      three stores, two of which must have an object. Wherever a store is asked for, all of them, in this order: \"w=2 s3://a/p s3://b/p s3://c/p\"\n  holdfast set create demo --store 's3://bucket/p?region=auto&profile=r2' --volume vol1=1GiB\n      with the keys of that profile in each gateway's store.credentials_file\n"))]
    Create {
        /// Name of the set
        name: Name,
        /// Where its data goes; several times for several stores, which all get everything
        #[arg(long = "store", value_name = "URL", value_parser = store_url, required = true, action = ArgAction::Append)]
        stores: Vec<String>,
        /// Of several stores, how many must have an object before it counts: more than half [default: the smallest majority]
        #[arg(long, value_name = "COUNT")]
        write_quorum: Option<usize>,
        /// A volume and its size (thin: it takes what is written)
        #[arg(long = "volume", value_name = "NAME=SIZE", required = true, action = ArgAction::Append)]
        volumes: Vec<VolumeArg>,
    },
    /// List the sets
    #[command(after_long_help = with_codes(crate::command::set::LIST))]
    List,
    /// Show one set: who serves it, who holds it, its volumes, and what it takes up in its store
    #[command(after_long_help = with_codes(crate::command::set::SHOW))]
    Show {
        /// The set
        set: Name,
        /// Take any gateway's view, which may be old: also without a majority
        #[arg(long)]
        any_view: bool,
    },
    /// Show where a set lies, and put it into other stores while it serves: add, drain, replace
    #[command(subcommand, after_long_help = with_codes(stores::STORES))]
    Stores(StoresCommand),
    /// Delete a set: its volumes, its key, its objects, what gateways have of it on their disks
    #[command(after_long_help = with_codes(SET_DELETE))]
    Delete(DeleteArgs),
    /// Put everything that was acknowledged so far into the store, and say up to where it is
    #[command(after_long_help = with_codes(crate::command::set::CHECKPOINT))]
    Checkpoint {
        /// The set
        set: Name,
    },
    /// Read all objects of a set slowly in the background and name what is damaged; shows how far it is
    #[command(after_long_help = with_codes(crate::command::scrub::SCRUB))]
    Scrub {
        /// The set
        set: Name,
        /// Begin now, unless it is under way
        #[arg(long)]
        start: bool,
    },
    /// Take snapshots of a set at fixed times, and let the old ones go
    #[command(after_long_help = with_codes(SCHEDULE))]
    Schedule {
        /// The set
        set: Name,
        /// Rules such as 15mx8,1hx24,1dx30 (times in s, m, h, d, w; also with ×), or off
        #[arg(value_name = "RULES")]
        schedule: String,
    },
    /// Make a new set that begins with what a snapshot of another one shows, at once whatever its size; both can be written from then on
    #[command(after_long_help = with_codes(crate::command::clone::CLONE))]
    Clone {
        /// The snapshot, SET@SNAPSHOT
        snapshot: SnapshotArg,
        /// Name of the new set
        name: Name,
    },
}

const SCHEDULE: &str = "\
A rule is a time and how many to keep: 15mx8 wants a snapshot in every quarter of an hour (by the gateways' clock, in UTC) and keeps the first
one of each of the last 8 that have any. One snapshot serves all rules. They are named auto-20261120T083000Z. A missed time is taken once, late.
Snapshots that people took are left alone; `off` takes none any more and deletes none.

Examples:
  holdfast set schedule demo 15mx8,1hx24,1dx30
  holdfast set schedule demo off
";

/// `holdfast switchover`.
#[derive(Debug, Args)]
#[command(after_long_help = with_codes("Example:\n  holdfast switchover demo --to g2\n\nRequests in flight are answered first; attach processes reconnect by themselves, plain connections are closed.\n"))]
pub struct SwitchoverArgs {
    /// The set
    pub set: Name,
    /// Gateway that shall serve it
    #[arg(long, value_name = "GATEWAY")]
    pub to: Name,
}

/// `holdfast failover`.
#[derive(Debug, Args)]
#[command(after_long_help = with_codes(FAILOVER))]
pub struct FailoverArgs {
    /// The set
    pub set: Name,
    /// Gateway that shall serve it
    #[arg(long, value_name = "GATEWAY")]
    pub candidate: Name,
    /// New owner, granted at once [default: the set is left free]
    #[arg(long, value_parser = owner)]
    pub owner: Option<Owner>,
    /// How long the new owner's lease lasts without a renewal [default: the gateway's]
    #[arg(long, value_name = "TIME", value_parser = duration::parse, requires = "owner")]
    pub ttl: Option<Duration>,
    /// Why, for the log
    #[arg(long, default_value = "")]
    pub reason: String,
    /// Do not ask
    #[arg(long)]
    pub yes: bool,
}

const FAILOVER: &str = "\
Examples:
  holdfast failover demo --candidate g2
      asks, then leaves the set free at g2
  holdfast failover demo --candidate g2 --owner db2 --yes --output json
      for scripts: the new owner's token is in the result

Whoever holds the set is fenced: each of its writes is refused from then on, whatever it believes.
Nothing acknowledged is lost. Prefer `holdfast switchover` while the old side is well.
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

/// Checks the form of a store's address; whether it can be reached is the gateways' to say.
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
            "found {text:?}, expected s3://BUCKET/PREFIX or file:///DIRECTORY, or several as \"w=QUORUM URL URL URL\""
        ))
    }
}

/// As [`store_url`], and what `holdfast set list` shows of a set whose stores were changed: `c=2 ...`, in the middle of a change both lists.
pub fn stores_text(text: &str) -> Result<String, String> {
    let placement = Placement::parse(text);
    if placement.next.is_none() && (text.contains(" | ") || text.contains(" => ")) {
        return Err(format!(
            "found {text:?}, expected the stores as `holdfast set list` showed them: \"LIST\", or in the middle of a change \"LIST => LIST\""
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
