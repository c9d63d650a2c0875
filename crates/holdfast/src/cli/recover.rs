//! Arguments of `holdfast cluster recover`.

use super::store::{KeyArgs, StoreArgs};
use super::values::stores_text;
use clap::Args;
use std::path::PathBuf;

/// `holdfast cluster recover`.
#[derive(Debug, Args)]
#[command(after_long_help = RECOVER)]
pub struct RecoverArgs {
    /// A store of the lost cluster; repeat it for each store. For a set with several stores, or whose stores were
    /// changed, the text that `set stores show` printed for a recovery: 'w=2 URL URL URL', 'c=2 URL', or 'LIST => LIST'
    /// during a change
    #[arg(long = "from-store", value_name = "URL", required = true, value_parser = stores_text)]
    pub from_store: Vec<String>,
    /// The new gateways: a plan as for `cluster bootstrap`, without sets
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    #[command(flatten)]
    pub key: KeyArgs,
    #[command(flatten)]
    pub access: StoreArgs,
    /// Confirm that no gateway of the old cluster runs any more; writes after the last checkpoint are lost
    #[arg(long)]
    pub i_know_the_old_cluster_is_gone: bool,
    /// Confirm that stores without objects of a set were emptied or are new; they are filled from the other stores
    #[arg(long)]
    pub fill_empty_stores: bool,
}

const RECOVER: &str = "\
Examples:
  holdfast cluster recover --from-store s3://b/p --config new.toml --key-file key
      shows what can be recovered, and changes nothing
  holdfast cluster recover --from-store s3://b/p --config new.toml --key-file key --i-know-the-old-cluster-is-gone

Do not use this while a majority of the old gateways' disks exists: start those gateways instead,
and nothing is lost.

The plan lists new gateways with empty data directories, which must be running with the same
cluster key. Each set returns to its last checkpoint, which is printed: it has all writes up to it
and none after. Segments of an unfinished checkpoint are not used: they are sorted by address, not
by time, so they do not form a consistent state. Snapshots and the snapshot schedule are recovered
too. A snapshot with missing objects is left out and reported. The old gateways are fenced in the
store. Run it again after a failure: finished steps are skipped.

A set whose stores were changed is in its new stores, written as `c=2 ...`; the old stores name
the new ones. In the phase `ending` of a change either list may be the valid one: --from-store
's3://b/p => c=2 s3://new/p' names both, and the change continues.
";
