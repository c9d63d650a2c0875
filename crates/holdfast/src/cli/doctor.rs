//! Arguments of `holdfast doctor` and `holdfast support-bundle`.

use super::store::StoreArgs;
use super::values::stores_text;
use clap::Args;
use std::path::PathBuf;

pub(super) const DOCTOR: &str = "\
Examples:
  holdfast doctor
  holdfast doctor --config g1.toml --store s3://bucket/prefix
  holdfast doctor --output json | jq '.checks[] | select(.verdict != \"ok\")'

Checks the host (kernel, nbd, clocks), the settings with their keys, certificates and disk, the
network to the others, and the cluster. It changes nothing, except that it writes and deletes a
small file in data_dir, and what `holdfast store check` does in each --store.

Each check is ok, a WARNING (it will cost something), BAD (it does not work) or unknown (the check
could not be made). Ends with 1 if something is bad. Run it as root, or as the gateway's user.
";

/// `holdfast doctor`.
#[derive(Clone, Debug, Default, Args)]
pub struct DoctorArgs {
    /// Settings of a gateway of this host [default: /etc/holdfast/gateway.toml if it exists]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Settings of an agent of this host [default: /etc/holdfast/agent.toml if it exists]
    #[arg(long, value_name = "FILE")]
    pub agent_config: Option<PathBuf>,
    /// Check this store too, as `holdfast store check` does; may be given several times
    #[arg(long = "store", value_name = "URL", value_parser = stores_text)]
    pub stores: Vec<String>,
    #[command(flatten)]
    pub access: StoreArgs,
}

pub(super) const SUPPORT: &str = "\
Examples:
  holdfast support-bundle --file support.tar.gz
  holdfast support-bundle --file support.tar.gz --include-log g1.log --since -2h

In it: what `holdfast doctor` found, the settings, the state of the cluster, metrics of its
gateways, status and history of this host's agent, facts of the host, systemd's journal of the
units holdfast*, and the end of each --include-log.

Secrets are taken out: the content of files and variables that the settings name as secret, and all
that looks like a password, a token or a key. Look through it before you send it. Run it as root on
the host with the problem.
";

/// `holdfast support-bundle`.
#[derive(Clone, Debug, Args)]
pub struct SupportArgs {
    /// The bundle to write, a tar.gz; it must not exist yet
    #[arg(long, value_name = "FILE")]
    pub file: PathBuf,
    /// Include the last 16MiB of this log; may be given several times
    #[arg(long = "include-log", value_name = "FILE")]
    pub logs: Vec<PathBuf>,
    /// Include systemd's journal from then on, as `journalctl --since` takes it
    #[arg(long, value_name = "TIME", default_value = "-24h", allow_hyphen_values = true)]
    pub since: String,
    #[command(flatten)]
    pub doctor: DoctorArgs,
}
